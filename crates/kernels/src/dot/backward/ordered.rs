//! The order in which the parts of a task add to the rows of `dQ`.
//!
//! ```text
//! panel        0    1    2    3   ..
//! part 0       w    w    w    w          writes the rows
//! part 1            +    +    +    +     adds to them, once part 0 has done the panel
//! part 2                 +    +    +     adds to them, once part 1 has
//! ```
//! All parts go through the same panels in the same order, so one count for each part is enough, and the terms of a
//! row are added in one order whichever threads run the parts. Tasks are handed out in order, so a part only ever
//! waits for one that another thread is computing. (The tile loop calls nothing by which the thread pool could
//! start another task in the middle of a part.)

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::threads::look_again;

/// The panels that each task of a call has done.
pub(super) struct Ordered {
    done: Vec<AtomicUsize>,
}

impl Ordered {
    pub(super) fn new(tasks: usize) -> Self {
        Self {
            done: (0..tasks).map(|_| AtomicUsize::new(0)).collect(),
        }
    }

    /// The turn of one part of a task. The previous part is the previous task.
    pub(super) fn of(&self, task: usize, part: usize) -> Turn<'_> {
        Turn {
            before: (part > 0).then(|| &self.done[task - 1]),
            own: &self.done[task],
            panel: 0,
        }
    }
}

/// One part's progress through the panels.
pub(super) struct Turn<'a> {
    before: Option<&'a AtomicUsize>,
    own: &'a AtomicUsize,
    panel: usize,
}

impl Turn<'_> {
    /// Whether this part is the first to write a row.
    pub(super) fn writes(&self) -> bool {
        self.before.is_none()
    }

    /// Waits until the part before has done this panel.
    pub(super) fn wait(&self) {
        let Some(before) = self.before else { return };
        let mut looks = 0;
        while before.load(Ordering::Acquire) <= self.panel {
            look_again(&mut looks);
        }
    }

    /// Marks the panel as done.
    pub(super) fn next(&mut self) {
        self.panel += 1;
        self.own.store(self.panel, Ordering::Release);
    }
}

impl Drop for Turn<'_> {
    /// A part that has ended, even by a panic, must keep no other waiting.
    fn drop(&mut self) {
        self.own.store(usize::MAX, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_take_turns_panel_by_panel() {
        let ordered = Ordered::new(3);
        let order = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for part in [2, 1, 0] {
                let (ordered, order) = (&ordered, &order);
                scope.spawn(move || {
                    let mut turn = ordered.of(part, part);
                    for panel in 0..20 {
                        turn.wait();
                        order.lock().unwrap().push((panel, part));
                        turn.next();
                    }
                });
            }
        });
        let order = order.into_inner().unwrap();
        assert_eq!(order.len(), 60);
        for panel in 0..20 {
            let of_panel: Vec<usize> = order
                .iter()
                .filter(|at| at.0 == panel)
                .map(|at| at.1)
                .collect();
            assert_eq!(of_panel, [0, 1, 2]);
        }
    }

    #[test]
    fn a_part_that_is_over_is_not_waited_for() {
        let ordered = Ordered::new(2);
        drop(ordered.of(0, 0));
        let mut second = ordered.of(1, 1);
        for _ in 0..5 {
            second.wait();
            second.next();
        }
        assert!(!second.writes());
    }
}
