//! Fused operations switched off on a thread: those on the CPU, and attention on graphics cards.

use std::cell::Cell;

thread_local! {
    static SUSPENDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` with the fused operations suspended on this thread: everything that would use a kernel uses the plain tensor
/// operations that define it. The numbers are the same up to rounding, so this is how to tell whether a kernel is to blame for
/// a result; it is slower, and attention keeps its matrix of scores.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use regard_nn::bridge::{linear, without_kernels};
///
/// let device = Device::flex();
/// let x = Tensor::<2>::from_data([[1.0, 2.0]], &device);
/// let weight = Tensor::<2>::from_data([[3.0], [4.0]], &device);
/// let fused = linear(x.clone(), weight.clone(), None);
/// let plain = without_kernels(|| linear(x, weight, None));
/// assert_eq!(fused.into_scalar::<f32>(), plain.into_scalar::<f32>());
/// ```
pub fn without_kernels<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            SUSPENDED.set(self.0);
        }
    }
    let _restore = Restore(SUSPENDED.replace(true));
    work()
}

/// Whether the fused operations are suspended on this thread ([`without_kernels`]).
pub(super) fn suspended() -> bool {
    SUSPENDED.get()
}
