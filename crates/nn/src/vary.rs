//! Attention weights as variables: how an output changes with each of them, varied alone.
//!
//! [`varied`] runs some work in which every weight `a_ij` that the values are multiplied by becomes `a_ij + δ_ij`, `δ = 0`. The gradient
//! with respect to `δ_ij` is that of one weight alone: the other weights of its row stay as they are, so the row's sum changes with it.
//! A weight of 0, such as that of a hidden key, has a gradient as well; times the weight it is 0.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{Attention, Observe, score::Score, vary::varied};
//!
//! let device = Device::flex().autodiff();
//! let x = Tensor::<4>::from_floats([[[[1.0, 0.0], [0.0, 2.0]]]], &device);
//! let attention = Attention::new(Score::dot());
//! let (attended, varied) = varied(vec![], || attention.forward(x.clone(), x.clone(), x, Observe::Nothing));
//! let gradients = attended?.context.sum().backward();
//! // The sum of the context grows with a weight by the sum of the value that it reads: [1, 0] or [0, 2].
//! let found = varied[0].added.grad(&gradients).unwrap();
//! assert_eq!(found.into_data().to_vec::<f32>().unwrap(), [1.0, 2.0, 1.0, 2.0]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```
//!
//! As a [recording](crate::record), this belongs to a thread and covers everything that is called; all operations take their plain path.

use std::cell::RefCell;

use burn::tensor::Tensor;

use crate::bridge::without_kernels;

thread_local! {
    static VARYING: RefCell<Option<Varying>> = const { RefCell::new(None) };
}

struct Varying {
    /// What is added in the calls to come, the next one last.
    added: Vec<Tensor<4>>,
    done: Vec<Varied>,
}

/// The weights of one call of attention. Decoders that attend step by step call it for each step.
#[derive(Debug, Clone)]
pub struct Varied {
    /// The weights with what was added, `[batch, heads, queries, keys]`.
    pub weights: Tensor<4>,
    /// What was added to them, of the same shape; its gradient is that of the weights.
    pub added: Tensor<4>,
}

/// Runs `work` and returns its result and the weights of every call of attention in it, on this thread, in order. `added` are what is
/// added to the weights of the first calls; zeros to those of all others. Differentiation needs a device with autodiff.
///
/// # Panics
/// If `added` does not have the shape and precision of the weights.
pub fn varied<T>(added: Vec<Tensor<4>>, work: impl FnOnce() -> T) -> (T, Vec<Varied>) {
    struct Restore(Option<Varying>);
    impl Drop for Restore {
        fn drop(&mut self) {
            VARYING.set(self.0.take());
        }
    }
    let added = added.into_iter().rev().collect();
    let varying = Varying {
        added,
        done: vec![],
    };
    let _restore = Restore(VARYING.replace(Some(varying)));
    let given = without_kernels(work);
    (given, VARYING.take().map_or(vec![], |varying| varying.done))
}

/// The same of a single head, `[batch, queries, keys]`.
pub(crate) fn vary_one(weights: Tensor<3>) -> Tensor<3> {
    match VARYING.with_borrow(Option::is_some) {
        true => vary(weights.unsqueeze_dim(1)).squeeze_dim(1),
        false => weights,
    }
}

/// The weights as variables, if they are varied here.
pub(crate) fn vary(weights: Tensor<4>) -> Tensor<4> {
    VARYING.with_borrow_mut(|varying| {
        let Some(varying) = varying else {
            return weights;
        };
        let zeros = || Tensor::zeros(weights.dims(), (&weights.device(), weights.dtype()));
        let added = varying.added.pop().unwrap_or_else(zeros).require_grad();
        let weights = weights + added.clone();
        varying.done.push(Varied {
            weights: weights.clone(),
            added,
        });
        weights
    })
}
