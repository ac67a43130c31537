//! The peak speed of this machine, and the fraction of it that each kernel reaches.
//!
//! ```text
//! peak       operations a second of a loop of nothing but fused multiply-adds      2 · lanes each
//! stream     bytes a second of a sum over memory far larger than the caches
//! rate       work of a call / its seconds            work: what the formula needs, not what is executed
//! fraction   median over rounds of  rate / yardstick, both of the same round
//! ```
//! Each round measures the yardstick and then the kernel, so that a change of the clock rate, or other load on
//! the machine, affects both. Medians are reported, because a disturbed round is slow, never fast. Everything
//! runs on the caller's rayon pool and on the instruction set that the kernels use
//! ([`Level::current`](crate::simd::Level::current)).
//!
//! ```
//! use regard_kernels::measure::{Settings, suite};
//!
//! let softmaxes: Vec<_> = suite().into_iter().filter(|case| case.kernel.contains("cross-entropy")).collect();
//! assert!(!softmaxes.is_empty());
//! let row = softmaxes[0].run(&Settings { rounds: 1, seconds: 1e-4 })?;
//! assert!(row.value > 0.0 && row.fraction.is_some());
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

mod case;
mod numbers;
mod peak;
mod stream;
mod suite;

pub use case::{Call, Case, Row, Settings, Unit, Yardstick, machine};
pub use numbers::numbers;
pub use peak::{bf16_peak, fma_peak};
pub use stream::Stream;
pub use suite::{memory_suite, suite};
