//! Fused attention kernels on plain slices: SIMD, threads, forward and backward. No framework.
//!
//! | module | what it computes |
//! |---|---|
//! | [`dot`] | dot-product attention: `softmax(scale · q kᵀ) v` with masks, biases, sinks, dropout; decoding; attention weights after the fact |
//! | [`additive`] | Bahdanau's additive attention, forward and backward |
//! | [`gated_scores`] | scores by a layer of gated hyperbolic tangents, forward and backward |
//! | [`cell`] | the pointwise part of GRU and LSTM steps, forward and backward |
//! | [`stack`] | Transformer blocks for inference: prompts, token by token for many hypotheses, encoders |
//! | [`sequence`] | GRU and LSTM layers over whole sequences, forward and backward through time |
//! | [`matmul`] | products with weights packed once, in 32, 16 or 8 bits; a linear layer's products, forward and backward |
//! | [`activation`] | activations of a feed-forward network, with a gate or without, forward and backward |
//! | [`feed_forward`] | the feed-forward network of a Transformer, whose inner numbers stay in a cache, forward and backward |
//! | [`loss`] | softmax cross-entropy with label smoothing, with its gradient in one pass |
//! | [`norm`] | layer norm and RMS norm, forward and backward |
//! | [`convolution`] | convolution of maps with stride, dilation and groups, forward and backward |
//! | [`batch_norm`], [`pool`], [`resize`] | batch norm with residual sum and ReLU; pooling; bilinear interpolation; forward and backward |
//! | [`optim`] | Adam, AdamW, Adadelta, SGD; global norm |
//! | [`transpose`], [`sum`] | matrices transposed; the sum of all numbers, the same bits on any number of threads |
//! | [`rotary`] | rotary positions, forward and backward |
//! | [`pointwise`] | bias, ReLU, dropout, residual sum between products, forward and backward |
//! | [`measure`] | the peak speed of this machine, and the fraction of it that each kernel reaches |
//! | [`simd`] | exp, tanh, sigmoid over slices; which instructions this process uses |
//! | [`reference`](mod@reference) | plain loops that define all of the above |
//!
//! Attention on slices, causal, one head of two positions:
//! ```
//! use regard_kernels::{Attention, View, ViewMut, dot};
//!
//! let (query, key, value) = ([1.0f32, 0.0, 0.0, 1.0], [1.0f32, 0.0, 0.0, 1.0], [10.0f32, 20.0]);
//! let mut output = [0.0f32; 2];
//! let view = |x, dim| View::heads_first(x, [1, 1, 2, dim]); // batch, heads, length, dim
//! let causal = Attention { causal: true, ..Attention::default() };
//! let to = ViewMut::heads_first(&mut output, [1, 1, 2, 1]);
//! dot::forward(&causal, view(&query, 2), view(&key, 2), view(&value, 1), to, None)?;
//! assert_eq!(output[0], 10.0);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```
//!
//! Arithmetic is `f32`; [`dot`] takes strided views, everything else contiguous slices. Every public function checks every length before it
//! reads or writes anything, and answers with a [`KernelError`] that names the argument, what was
//! expected and what was found. Results are the same to the last bit for any number of threads and
//! from run to run. Work runs on the caller's [rayon] pool if it is large enough to be worth
//! waking a thread, else on the calling thread. [`stoppable`] ends long calls early.
//!
//! `tanh` over a slice, and a softmax cross-entropy:
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

pub mod activation;
pub mod additive;
pub mod batch_norm;
pub mod cell;
pub mod convolution;
pub mod dot;
mod element;
mod error;
pub mod feed_forward;
pub mod gated_scores;
pub mod loss;
mod mask;
pub mod matmul;
pub mod measure;
pub mod norm;
mod operation;
pub mod optim;
pub mod pointwise;
pub mod pool;
mod position;
mod prefetch;
mod problem;
pub mod reference;
pub mod resize;
pub mod rotary;
mod rows;
pub mod sequence;
pub mod simd;
pub mod stack;
pub mod sum;
mod threads;
pub mod transpose;
mod view;

pub use element::{Element, Kind};
pub use error::KernelError;
pub use operation::{Checked, Fields, Operation, Shape};
pub use position::SequencePosition;
pub use problem::{
    Alignment, Attention, Blocks, Documents, Dropout, MAX_DIM, Offsets, RelativeBias, Window,
};
pub use sequence::Unit;
pub use threads::{Stopped, for_each_task, stoppable};
pub use view::{View, ViewMut};

#[cfg(test)]
mod testing;
