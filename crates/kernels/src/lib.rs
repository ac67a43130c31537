//! Fused attention kernels on plain slices: SIMD, threads, forward and backward. No framework.
//!
//! | module | what it computes |
//! |---|---|
//! | [`additive`] | Bahdanau's additive attention, forward and backward |
//! | [`cell`] | the pointwise part of GRU and LSTM steps, forward and backward |
//! | [`sequence`] | GRU and LSTM layers over whole sequences, forward and backward through time |
//! | [`loss`] | softmax cross-entropy with label smoothing, with its gradient in one pass |
//! | [`norm`] | layer norm and RMS norm, forward and backward |
//! | [`optim`] | Adam, AdamW, Adadelta, SGD; global norm |
//! | [`simd`] | exp, tanh, sigmoid over slices; which instructions this process uses |
//! | [`reference`](mod@reference) | plain loops that define all of the above |
//!
//! Everything is `f32` on contiguous slices. Every public function checks every length before it
//! reads or writes anything, and answers with a [`KernelError`] that names the argument, what was
//! expected and what was found. Results are the same to the last bit for any number of threads and
//! from run to run. Work runs on the caller's [rayon] pool if it is large enough to be worth
//! waking a thread, else on the calling thread.
//!
//! `tanh` of two slices' worth of numbers, and a softmax cross-entropy:
//! ```
//! use regard_kernels::{loss, simd};
//! let mut x = [0.5, -0.5];
//! simd::tanh_in_place(&mut x);
//! assert_eq!(x[0], -x[1]);
//! let spec = loss::CrossEntropy { rows: 1, classes: 2, targets: &[0i64], ignore: None, smoothing: 0.1 };
//! let losses = loss::forward(&spec, &x, None)?;
//! assert!(losses.nll < losses.smoothed);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```
#![deny(missing_docs)]

pub mod additive;
pub mod cell;
pub mod dot;
mod error;
pub mod loss;
mod mask;
pub mod matmul;
pub mod norm;
pub mod optim;
mod problem;
pub mod reference;
pub mod sequence;
pub mod simd;
mod threads;
mod view;

pub use error::KernelError;
pub use problem::{Alignment, Attention, Blocks, Documents, Dropout, MAX_DIM, Offsets, Window};
pub use view::{View, ViewMut};

#[cfg(test)]
mod testing;
