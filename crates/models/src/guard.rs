//! Calls of libraries that panic on some damaged files.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// What `call` gives; `None` if it panics, for which its caller has an error.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(outer);
    result.ok()
}

/// Whether this thread calls a library whose panics become errors. A panic hook that reports a bug leaves these out.
pub fn is_guarded() -> bool {
    GUARDED.get()
}

#[cfg(test)]
mod tests {
    use super::{guarded, is_guarded};

    #[test]
    fn a_panic_is_known_to_be_guarded_while_the_call_runs() {
        assert_eq!(guarded(is_guarded), Some(true));
        assert_eq!(guarded(|| panic!("as a damaged file makes it")), None::<()>);
        let inner = || guarded(|| ()).is_some() && is_guarded();
        assert_eq!(guarded(inner), Some(true));
        assert!(!is_guarded());
    }
}
