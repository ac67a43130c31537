//! Sparse normalisers: weights that can be exactly 0, and still a row sums to 1.
//!
//! - [`Sparsemax`] (Martins & Astudillo 2016): the Euclidean projection of the scores onto the simplex,
//!   `α_i = max(s_i - τ, 0)`, `τ` such that the row sums to 1.
//! - [`Entmax15`] (Peters, Niculae, Martins 2019, with α = 1.5): `α_i = max(s_i/2 - τ, 0)²`, between softmax and
//!   sparsemax: sparse, but smooth where weights become 0.
//!
//! Keys more than 1 (sparsemax) or 2 (1.5-entmax) below the best get no weight, and no gradient: start from
//! small scores, or keys without weight never learn. Use them where a picture should show few words.
//!
//! Gradient: with the support `S` (the keys with weight), both are smooth functions of the scores inside `S`;
//! `τ` is computed again from `S` in closed form, and this form is differentiated.
//!
//! Cost: a sort of each row beside `Lq · Lk` arithmetic.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::normalize::{Entmax15, Sparsemax};
//!
//! let scores = Tensor::<4>::from_floats([[[[2.0, 1.5, 0.1]]]], &Device::flex());
//! let weights = Sparsemax.forward(scores.clone(), None).weights;
//! assert_eq!(weights.into_data().into_vec::<f32>().unwrap(), [0.75, 0.25, 0.0]);
//! let weights = Entmax15.forward(scores, None).weights.into_data().into_vec::<f32>().unwrap();
//! assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
//! ```

use burn::{
    module::Module,
    tensor::{Bool, Tensor},
};

use super::{NormalizeFunction, NormalizeOptions, Normalized, softmax::lowest};
use crate::precision::wide;

/// `max(s_i - τ, 0)`.
#[derive(Module, Debug, Default)]
pub struct Sparsemax;

/// `max(s_i/2 - τ, 0)²`.
#[derive(Module, Debug, Default)]
pub struct Entmax15;

impl Sparsemax {
    /// Weights of scores `[batch, heads, queries, keys]`.
    pub fn forward(&self, scores: Tensor<4>, seen: Option<Tensor<4, Bool>>) -> Normalized {
        if scores.dims().contains(&0) {
            return Normalized::new(scores);
        }
        let dtype = scores.dtype();
        let (scores, unseen) = lowered(scores, seen);
        // k is in the support of the sorted scores while 1 + k z_(k) > Σ_{j <= k} z_(j).
        let sorted = scores.clone().detach().sort_descending(3);
        let count = counts(&sorted);
        let inside = (sorted.clone() * count + 1.0).greater(sorted.clone().cumsum(3));
        let support = of_support(&scores, sorted, inside);
        let size = support.clone().sum_dim(3);
        let threshold = ((scores.clone() * support.clone()).sum_dim(3) - 1.0) / size;
        let weights = ((scores - threshold) * support).cast(dtype);
        Normalized::new(hide(weights, unseen))
    }
}

impl Entmax15 {
    /// Weights of scores `[batch, heads, queries, keys]`.
    pub fn forward(&self, scores: Tensor<4>, seen: Option<Tensor<4, Bool>>) -> Normalized {
        if scores.dims().contains(&0) {
            return Normalized::new(scores);
        }
        let dtype = scores.dtype();
        let (scores, unseen) = lowered(scores, seen);
        let scores = scores * 0.5;
        // Of the k largest, τ_k = mean - √((1 - k variance) / k); k is in the support while τ_k <= z_(k).
        let sorted = scores.clone().detach().sort_descending(3);
        let count = counts(&sorted);
        let mean = sorted.clone().cumsum(3) / count.clone();
        let mean_of_squares = sorted.clone().powi_scalar(2).cumsum(3) / count.clone();
        let spread = (mean_of_squares - mean.clone().powi_scalar(2)) * count.clone();
        let rest = ((spread.neg() + 1.0) / count).clamp_min(0.0);
        let inside = (mean - rest.sqrt()).lower_equal(sorted.clone());
        let support = of_support(&scores, sorted, inside);
        let size = support.clone().sum_dim(3);
        let mean = (scores.clone() * support.clone()).sum_dim(3) / size.clone();
        let deviation = (scores.clone() - mean.clone()) * support.clone();
        let spread = deviation.powi_scalar(2).sum_dim(3);
        // With the exact support, the variance leaves a positive rest; rounding could make it 0.
        let rest = ((spread.neg() + 1.0) / size).clamp_min(f32::MIN_POSITIVE);
        let threshold = mean - rest.sqrt();
        let weights = ((scores - threshold) * support).powi_scalar(2).cast(dtype);
        Normalized::new(hide(weights, unseen))
    }
}

/// Scores shifted to a maximum of 0 and bounded far below what could get weight, so that squares and sums stay
/// finite; and the hidden keys. In a precision in which many keys can be counted: above 256 keys, `bf16` skips numbers.
fn lowered(
    scores: Tensor<4>,
    seen: Option<Tensor<4, Bool>>,
) -> (Tensor<4>, Option<Tensor<4, Bool>>) {
    let dtype = wide(scores.dtype());
    let scores = scores.cast(dtype);
    let unseen = seen.map(|seen| seen.bool_not().expand(scores.dims()));
    let scores = match &unseen {
        None => scores,
        Some(unseen) => {
            let lowest = lowest(scores.dtype());
            scores.mask_fill(unseen.clone(), lowest)
        }
    };
    let maximum = scores.clone().detach().max_dim(3);
    let scores = (scores - maximum).clamp_min(-4.0);
    // A visible score may also be the lowest number, and has to stay above hidden ones.
    let scores = match &unseen {
        None => scores,
        Some(unseen) => scores.mask_fill(unseen.clone(), -4.0),
    };
    (scores, unseen)
}

/// `1, 2, ..` along the keys: `[1, 1, 1, keys]`.
fn counts(like: &Tensor<4>) -> Tensor<4> {
    let keys = like.dims()[3];
    Tensor::<1>::ones([keys], (&like.device(), like.dtype()))
        .cumsum(0)
        .unsqueeze_dims::<4>(&[0, 1, 2])
}

/// 1 where a score is at least the smallest one `inside` the support.
fn of_support(scores: &Tensor<4>, sorted: Tensor<4>, inside: Tensor<4, Bool>) -> Tensor<4> {
    let smallest = sorted.mask_fill(inside.bool_not(), 1.0).min_dim(3);
    let shape = scores.dims();
    let support = scores
        .clone()
        .detach()
        .greater_equal(smallest.expand(shape));
    support.float().cast(scores.dtype())
}

fn hide(weights: Tensor<4>, unseen: Option<Tensor<4, Bool>>) -> Tensor<4> {
    match unseen {
        None => weights,
        Some(unseen) => weights.mask_fill(unseen, 0.0),
    }
}

impl NormalizeFunction for Sparsemax {
    fn name(&self) -> &'static str {
        "sparsemax"
    }

    fn normalize(&self, scores: Tensor<4>, options: NormalizeOptions<'_>) -> Normalized {
        self.forward(scores, options.seen)
    }
}

impl NormalizeFunction for Entmax15 {
    fn name(&self) -> &'static str {
        "1.5-entmax"
    }

    fn normalize(&self, scores: Tensor<4>, options: NormalizeOptions<'_>) -> Normalized {
        self.forward(scores, options.seen)
    }
}
