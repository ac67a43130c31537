//! Monotonic attention (Raffel, Luong, Liu, Weiss, Eck 2017): each query continues from where the previous one
//! stopped.
//!
//! From the position of the previous query, the reader moves right and stops at key `j` with probability
//! `p_j = σ(s_j)`. The expected position is
//!
//! ```text
//! q_i = (1 - p_{i-1}) q_{i-1} + α_{prev,i}        α_i = p_i q_i
//! ```
//!
//! At the start all weight is on the first key. A query that sees nothing is passed over: its weights are 0, and the next one continues
//! from where the one before it stopped. A row sums to at most 1: the reader may run past the end. Two forms
//! compute the same weights ([`Form`]): recursive, exact, key by key; and parallel, from cumulative sums and products,
//! `α = p · c · cumsum(α_prev / c)`, `c_i = Π_{j<i} (1 - p_j)`, with `c` cut at 1e-10 as the authors do. A hard reader
//! stops at the first `p_j >= ½`: linear time, online.
//!
//! With noise (training), Gaussian noise with standard deviation `noise` is added to the scores, which drives `p` to 0
//! or 1.
//!
//! Use it where the order is the same on both sides: speech, handwriting, transliteration.
//!
//! Cost: queries are computed one after the other, each over `Lk` keys, in the recursive form key by key.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::normalize::{Form, Monotonic};
//!
//! let scores = Tensor::<4>::from_floats([[[[0.0, 0.0, 0.0], [-200.0, 200.0, 0.0]]]], &Device::flex());
//! let weights = Monotonic::new(Form::Recursive).forward(scores, None, None, None).weights;
//! let weights = weights.into_data().into_vec::<f32>().unwrap();
//! assert_eq!(weights, [0.5, 0.25, 0.125, 0.0, 0.75, 0.0625]);
//! ```

use burn::{
    module::Module,
    tensor::{Bool, DType, Tensor},
};

use super::{NormalizeFunction, NormalizeOptions, Normalized};
use crate::{
    attention::{AttentionError, check_finite},
    bridge::sigmoid,
    dropout::DropoutRng,
    precision::wide,
    record::report,
};

/// How the expected position is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// Key by key; exact.
    Recursive,
    /// By cumulative sums and products.
    #[default]
    Parallel,
    /// The reader's own steps at inference: stop where `p >= ½`. No gradient.
    Hard,
}

/// `α_i = p_i ((1 - p_{i-1}) q_{i-1} + α_{prev,i})`.
#[derive(Module, Debug, Default)]
pub struct Monotonic {
    #[module(skip)]
    form: Form,
    #[module(skip)]
    noise: f64,
}

impl Monotonic {
    /// In the given form, without noise on the scores.
    pub fn new(form: Form) -> Self {
        Self { form, noise: 0.0 }
    }

    /// How the expected position is computed.
    pub fn form(&self) -> Form {
        self.form
    }

    /// With Gaussian noise of this deviation on the scores in training (paper: 1).
    pub fn with_noise(self, deviation: f64) -> Self {
        Self {
            noise: deviation,
            ..self
        }
    }

    /// Weights of scores `[batch, heads, queries, keys]`, whose queries are consecutive. `before` are the weights of
    /// the query before the first, `[batch, heads, 1, keys]`; `None` at the start.
    pub fn forward(
        &self,
        scores: Tensor<4>,
        seen: Option<Tensor<4, Bool>>,
        before: Option<Tensor<4>>,
        noise: Option<&mut DropoutRng>,
    ) -> Normalized {
        let [batch, heads, queries, keys] = scores.dims();
        if scores.dims().contains(&0) {
            return Normalized {
                carried: before,
                ..Normalized::new(scores)
            };
        }
        let device = scores.device();
        let mut scores = super::hide(scores, &seen);
        if self.noise > 0.0
            && let Some(gaussian) = noise.and_then(|noise| noise.normal(scores.dims(), &device))
        {
            scores = scores.clone() + gaussian.cast(scores.dtype()) * self.noise;
        }
        let stop = match self.form {
            Form::Hard => {
                let dtype = scores.dtype();
                scores.detach().greater_equal_elem(0.0).float().cast(dtype)
            }
            _ => sigmoid(scores),
        };
        let stop = super::hide(stop, &seen);
        report("stopping probabilities", || stop.clone());
        let mut before = before.unwrap_or_else(|| {
            let options = (&device, stop.dtype());
            let first = Tensor::ones([batch, heads, 1, 1], options);
            let rest = Tensor::zeros([batch, heads, 1, keys - 1], options);
            match keys {
                1 => first,
                _ => Tensor::cat(vec![first, rest], 3),
            }
        });
        let mut rows = Vec::with_capacity(queries);
        for query in 0..queries {
            let stop = stop.clone().narrow(2, query, 1);
            let weights = match self.form {
                Form::Parallel => parallel(stop, before.clone()),
                Form::Recursive | Form::Hard => recursive(stop, before.clone()),
            };
            let seen_now = super::seen_by(query, &seen);
            // 0 even where an earlier key, which is seen, is NaN.
            let weights = super::hide(weights, &seen_now);
            rows.push(weights.clone());
            before = super::carry_on(before, weights, &seen_now);
        }
        Normalized {
            carried: Some(before),
            ..Normalized::new(Tensor::cat(rows, 2))
        }
    }
}

/// One query from the stopping probabilities and the weights before, both `[batch, heads, 1, keys]`, key by key.
fn recursive(stop: Tensor<4>, before: Tensor<4>) -> Tensor<4> {
    let keys = stop.dims()[3];
    let mut passed: Option<Tensor<4>> = None; // (1 - p_{i-1}) q_{i-1}
    let mut weights = Vec::with_capacity(keys);
    for key in 0..keys {
        let p = stop.clone().narrow(3, key, 1);
        let arriving = before.clone().narrow(3, key, 1);
        let q = match passed {
            None => arriving,
            Some(passed) => passed + arriving,
        };
        weights.push(p.clone() * q.clone());
        passed = Some((p.neg() + 1.0) * q);
    }
    Tensor::cat(weights, 3)
}

/// The same by cumulative sums and products.
fn parallel(stop: Tensor<4>, before: Tensor<4>) -> Tensor<4> {
    const SMALLEST: f64 = 1e-10;
    let dtype = stop.dtype();
    let [stop, before] = [stop, before].map(|x| x.cast(wide(dtype)));
    let [batch, heads, _, keys] = stop.dims();
    let going = (stop.clone().neg() + 1.0).clamp_min(SMALLEST).log();
    // Exclusive: the product over the keys before.
    let zero = Tensor::zeros([batch, heads, 1, 1], (&stop.device(), stop.dtype()));
    let before_it = match keys {
        1 => zero,
        _ => Tensor::cat(vec![zero, going.narrow(3, 0, keys - 1)], 3),
    };
    let passed = before_it.cumsum(3).exp();
    let arrived = (before / passed.clone().clamp_min(SMALLEST)).cumsum(3);
    (stop * passed * arrived).cast(dtype)
}

impl NormalizeFunction for Monotonic {
    fn name(&self) -> &'static str {
        "monotonic"
    }

    fn normalize(&self, scores: Tensor<4>, options: NormalizeOptions<'_>) -> Normalized {
        self.forward(scores, options.seen, options.carried, options.noise)
    }

    fn carries(&self) -> bool {
        true
    }

    fn check(&self, _heads: usize, dtype: DType) -> Result<(), AttentionError> {
        check_finite("monotonic noise", self.noise, dtype)?;
        match self.noise < 0.0 {
            true => Err(AttentionError::value(
                "monotonic noise",
                self.noise,
                "at least 0",
                "it is a standard deviation; 0 adds none",
            )),
            false => Ok(()),
        }
    }
}
