//! Attention: score the query against the keys, mask what may not be seen, normalise into weights,
//! read the values.
//!
//! `context = Σ_i α_i v_i`, `α = normalize(mask(score(q, k_i)))`
//!
//! [`Attention`] is made of those words. `query [batch, heads, queries, size]`, `key` and `value
//! [batch, key heads, keys, size]`; the key heads divide the heads (grouped queries share them).
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{Attention, Observe, mask::Mask, score::Score};
//!
//! let device = Device::flex();
//! let attention = Attention::new(Score::scaled_dot()).with_mask(Mask::causal());
//! let x = Tensor::<4>::ones([2, 4, 10, 16], &device); // [batch, heads, length, size]
//! let attended = attention.forward(x.clone(), x.clone(), x, Observe::Weights)?;
//! assert_eq!(attended.context.dims(), [2, 4, 10, 16]);
//! assert_eq!(attended.weights.unwrap().dims(), [2, 4, 10, 10]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```
//!
//! A decoder reads the same source at every step. Its annotations are prepared once ([`Attention::memory`]) and read
//! any number of times ([`Attention::read`]):
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{Attention, AttentionOptions, mask::PaddingMask, score::Score};
//!
//! let device = Device::flex();
//! let attention = Attention::new(Score::dot());
//! // Formula sheet, worked numbers: the second key wins, so the context is the second key.
//! let keys = Tensor::<3>::from_floats([[[0., 1., 1.], [5., 0., 1.], [1., 1., 0.], [0., 5., 1.]]], &device);
//! let memory = attention.memory(keys, PaddingMask::from_lengths(&[4], 4, &device))?;
//! let query = Tensor::<3>::from_floats([[[10., 5., 10.]]], &device);
//! let reading = attention.read(query, &memory, AttentionOptions::default())?;
//! let context = reading.context.into_data().into_vec::<f32>().unwrap();
//! assert!((context[0] - 5.0).abs() < 1e-5 && context[1].abs() < 1e-5 && (context[2] - 1.0).abs() < 1e-5);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```
//!
//! Which calls run fused: see [`KernelPlan`]. Both paths give the same numbers up to rounding.

mod attended;
mod between;
mod check;
mod error;
mod fused;
mod memory;
mod observe;
mod options;
mod plain;
mod plan;

use burn::{module::Module, tensor::Tensor};

use crate::{
    initialize::Initializer,
    mask::{Locality, Mask, PositionPredictor},
    normalize::Normalize,
    score::Score,
};

pub use attended::{Attended, Sampled, Top};
pub(crate) use between::Between;
pub(crate) use check::{check_divisor, check_finite};
pub use error::AttentionError;
pub use memory::{Memory, Reading};
pub(crate) use observe::Observed;
pub use options::{AttentionOptions, Observe, Path};
pub(crate) use plan::Asked;
pub use plan::{KernelPlan, Unserved};

/// An attention mechanism: a score, a mask, a normaliser.
#[derive(Module, Debug)]
pub struct Attention {
    /// How well a query and a key match.
    pub score: Score,
    /// The centre of the window, for local-p.
    pub predictor: Option<PositionPredictor>,
    /// From scores to weights.
    pub normalize: Normalize,
    #[module(skip)]
    mask: Mask,
    #[module(skip)]
    softcap: Option<f64>,
    #[module(skip)]
    dropout: f64,
}

impl Attention {
    /// Attention with `score` that sees everything, normalised by softmax.
    pub fn new(score: Score) -> Self {
        Self {
            score,
            predictor: None,
            normalize: Normalize::softmax(),
            mask: Mask::all(),
            softcap: None,
            dropout: 0.0,
        }
    }

    /// Sees what `mask` allows, in every call; an earlier mask is replaced.
    pub fn with_mask(self, mask: Mask) -> Self {
        Self { mask, ..self }
    }

    /// Normalised by `normalize`.
    pub fn with_normalize(self, normalize: Normalize) -> Self {
        Self { normalize, ..self }
    }

    /// Scores are capped by `c · tanh(s / c)`, so that none exceeds `c` (Gemma 2: 50).
    pub fn with_softcap(self, softcap: f64) -> Self {
        Self {
            softcap: Some(softcap),
            ..self
        }
    }

    /// In training each weight is dropped with this probability and the others are multiplied by `1 / (1 - p)`.
    pub fn with_dropout(self, dropout: f64) -> Self {
        Self { dropout, ..self }
    }

    /// local-p (Luong 2015): a window around a predicted position, and a Gaussian on the weights.
    pub fn with_predictor(self, predictor: PositionPredictor) -> Self {
        Self {
            predictor: Some(predictor),
            ..self
        }
    }

    /// One of Luong's localities (2015, section 3), for queries of `query_size`; its mask is joined with an earlier one.
    pub fn with_locality(
        self,
        locality: Locality,
        query_size: usize,
        initializer: &mut Initializer,
    ) -> Self {
        match locality {
            Locality::Global => self,
            Locality::Monotonic { half_width } => {
                let mask = self.mask.clone() & Mask::local_monotonic(half_width);
                self.with_mask(mask)
            }
            Locality::Predictive { half_width } => {
                self.with_predictor(PositionPredictor::new(query_size, half_width, initializer))
            }
        }
    }

    /// The mask that applies in every call.
    pub fn mask(&self) -> &Mask {
        &self.mask
    }

    /// The bound on scores.
    pub fn softcap(&self) -> Option<f64> {
        self.softcap
    }

    /// The probability of dropping a weight in training.
    pub fn dropout(&self) -> f64 {
        self.dropout
    }

    /// Which of Luong's localities this is.
    pub fn locality(&self) -> Locality {
        Locality::of(&self.predictor, &self.mask)
    }

    /// Reads `value` with `query` against `key`, and reports what `observe` asks for.
    ///
    /// # Errors
    /// When shapes do not fit, a setting is outside its range, or two settings contradict each other.
    pub fn forward(
        &self,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        observe: Observe,
    ) -> Result<Attended, AttentionError> {
        self.forward_with(query, key, value, AttentionOptions::new(observe))
    }

    /// The same with padding, bias, noise and whatever else `call` holds.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn forward_with(
        &self,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        call: AttentionOptions<'_>,
    ) -> Result<Attended, AttentionError> {
        let problem = self.problem(query, key, value, false, call)?;
        problem.solve(self, None)
    }

    /// The scores as they go into the normaliser: scaled, capped, biased. `[batch, heads, queries, keys]`. For
    /// mechanisms that add a step between score and normaliser (talking heads).
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn scores(
        &self,
        query: Tensor<4>,
        key: Tensor<4>,
        call: AttentionOptions<'_>,
    ) -> Result<Tensor<4>, AttentionError> {
        let value = key.clone();
        let problem = self.problem(query, key, value, false, call)?;
        problem.scores(self)
    }
}
