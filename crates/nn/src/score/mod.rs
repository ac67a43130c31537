//! How well a query and a key match.
//!
//! | page | score | `score(s, h)` | source |
//! |---|---|---|---|
//! | [dot] | [`Dot`] | `sᵀ h` | Luong 2015 |
//! | [scaled dot](scaled_dot) | [`ScaledDot`] | `sᵀ h / √d`, or any scale | Vaswani 2017 |
//! | [general] | [`General`] | `sᵀ W h` | Luong 2015 |
//! | | [`ScaledGeneral`] | `g · sᵀ W h`, `g` learned | TensorFlow's scaled Luong |
//! | [additive] | [`Additive`] | `vᵀ tanh(W s + U h)`, Luong's "concat" | Bahdanau 2014 |
//! | | [`WeightNormAdditive`] | `g v/‖v‖ · tanh(W s + U h + b)` | Salimans & Kingma 2016 |
//! | [cosine] | [`Cosine`] | `β cos(s, h)` | Graves 2014 |
//! | [L2 distance](distance) | [`Distance`] | `-‖s - h‖² / √d` | Kim 2021 |
//! | [location] | [`Location`] | `W s`: position alone | Luong 2015 |
//! | [soft window](gaussian_window) | [`GaussianWindow`] | `Σ_k a_k exp(-b_k (κ_k - u)²)`: a position that moves forward | Graves 2013 |
//!
//! | your own | [`Score::custom`] | a [`ScoreFunction`] of any crate | |
//!
//! A score prepares the annotations once per source ([`Score::keys`]) and then scores any number of
//! queries against them ([`Score::forward`]). Shapes are `[batch, heads, length, size]`; weights are shared by
//! the heads.
//!
//! Which one: scaled dot for self-attention and wherever a kernel should serve at any length; additive or general
//! between a decoder and its source; cosine for a memory addressed by content; the soft window where reading moves
//! forward and an explicit position is wanted. Location and L2 are for comparison.
//!
//! # A score of your own
//!
//! Implement [`ScoreFunction`] for a Burn module, in any crate, and give it to [`Score::custom`]. Its weights are trained,
//! saved and moved like those of the other scores. A score that can be computed as a product of prepared queries and keys
//! declares so ([`ScoreFunction::form`]) and runs fused:
//!
//! ```
//! use regard_nn::burn::{self, module::{Module, Param}, tensor::{Device, Tensor}};
//! use regard_nn::{Attention, AttentionOptions, KernelPlan, Path, initialize::Initializer};
//! use regard_nn::score::{Dot, KernelForm, Score, ScoreFunction, Sizes};
//!
//! /// `Σ_d g_d s_d h_d`: a dot product in which each feature has a weight.
//! #[derive(Module, Debug)]
//! struct Weighted {
//!     gains: Param<Tensor<1>>,
//! }
//!
//! impl ScoreFunction for Weighted {
//!     fn name(&self) -> &'static str {
//!         "weighted dot"
//!     }
//!     fn sizes(&self) -> Sizes {
//!         Sizes::Equal
//!     }
//!     fn score(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
//!         Dot.forward(self.prepared_query(query), keys)
//!     }
//!     fn form(&self, _query_size: usize) -> Option<KernelForm> {
//!         Some(KernelForm::Dot { scale: 1.0 })
//!     }
//!     fn prepared_query(&self, query: Tensor<4>) -> Tensor<4> {
//!         query * self.gains.val().unsqueeze::<4>()
//!     }
//! }
//!
//! let device = Device::flex();
//! let gains = Initializer::new(1, &device).constant([8], 0.5);
//! let attention = Attention::new(Score::custom(Weighted { gains }));
//! let x = Tensor::<4>::ones([2, 4, 5, 8], &device);
//! let options = AttentionOptions::default().path(Path::Fused); // an error if no kernel served
//! # if cfg!(feature = "kernels") {
//! let attended = attention.forward_with(x.clone(), x.clone(), x, options)?;
//! assert_eq!(attended.context.dims(), [2, 4, 5, 8]);
//! # }
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

pub mod additive;
pub mod cosine;
pub mod distance;
pub mod dot;
pub mod gaussian_window;
pub mod general;
pub mod location;
pub mod scaled_dot;

use std::{fmt::Debug, ops::Deref};

use burn::{
    module::Module,
    tensor::{DType, Tensor},
};

pub use additive::{Additive, WeightNormAdditive};
pub use cosine::Cosine;
pub use distance::Distance;
pub use dot::Dot;
pub use gaussian_window::GaussianWindow;
pub use general::{General, ScaledGeneral};
pub use location::Location;
pub use scaled_dot::ScaledDot;

use crate::{any_module, attention::AttentionError, bridge::reshaped, normalize::Normalize};

/// How well a query and a key match: the interface of every score, including those of other crates ([`Score::custom`]).
pub trait ScoreFunction: Debug + Send + Sync {
    /// The name by which the literature knows the score.
    fn name(&self) -> &'static str;

    /// The sizes of queries and annotations that it takes; others are refused before it is called.
    fn sizes(&self) -> Sizes;

    /// The keys that are computed from annotations `[batch, heads, keys, annotation size]`, `[batch, heads, keys, key size]`:
    /// once per source. `None` where they are the annotations themselves.
    fn prepared_keys(&self, _annotations: &Tensor<4>) -> Option<Tensor<4>> {
        None
    }

    /// Scores `[batch, heads, queries, keys]` of queries `[batch, heads, queries, query size]` against prepared keys `[batch,
    /// heads, keys, key size]`, by plain tensor operations.
    fn score(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4>;

    /// [`ScoreFunction::score`] of queries that continue from those of an earlier call, which returned `carried`; and what
    /// these queries leave to the next call. Both are `[batch, heads, 1, size]` with the size of
    /// [`ScoreFunction::carried_size`].
    fn score_after(
        &self,
        query: Tensor<4>,
        keys: Tensor<4>,
        _carried: Option<Tensor<4>>,
    ) -> (Tensor<4>, Option<Tensor<4>>) {
        (self.score(query, keys), None)
    }

    /// The size of the state that is carried from query to query, if there is any. A score with such a state is also called for
    /// no queries or no keys.
    fn carried_size(&self) -> Option<usize> {
        None
    }

    /// Whether it depends on the positions of keys, so that it needs the source from its beginning.
    fn counts_positions(&self) -> bool {
        false
    }

    /// The number of leading keys that can have a score at all (location-based scores have a fixed number of positions).
    fn reach(&self) -> Option<usize> {
        None
    }

    /// Checks its settings, for a precision and a normaliser.
    ///
    /// # Errors
    /// A setting outside its range, or a normaliser that makes no sense with it.
    fn check(&self, _normalize: &Normalize, _dtype: DType) -> Result<(), AttentionError> {
        Ok(())
    }

    /// The form in which a kernel can compute the score for queries of this size, if there is one.
    fn form(&self, _query_size: usize) -> Option<KernelForm> {
        None
    }

    /// The queries of its [`KernelForm`], `[batch, heads, queries, key size]`.
    fn prepared_query(&self, query: Tensor<4>) -> Tensor<4> {
        query
    }

    /// The `v` of [`KernelForm::Additive`], `[key size]`.
    fn vector(&self) -> Option<Tensor<1>> {
        None
    }
}

/// The sizes of queries and annotations that a score takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    /// Queries and annotations of one size, whichever it is.
    Equal,
    /// Queries of this size; annotations of any size, as they are not used.
    Query(usize),
    /// The sizes that its weights were made for.
    Made {
        /// Of a query.
        query: usize,
        /// Of an annotation.
        annotation: usize,
        /// Of a prepared key.
        key: usize,
    },
}

/// The forms of a score, in terms of prepared queries `q` and keys `k`, that a kernel can compute.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum KernelForm {
    /// `scale · qᵀ k`
    Dot {
        /// The factor.
        scale: f64,
    },
    /// `vᵀ tanh(q + k)`, with the `v` of [`ScoreFunction::vector`].
    Additive,
}

any_module!(AnyScore, ScoreFunction, DynScore, None, {
    /// The score itself.
    fn function(&self) -> &(dyn ScoreFunction + 'static);
} {
    fn function(&self) -> &(dyn ScoreFunction + 'static) {
        self
    }
});

/// A score whose type is chosen at run time.
pub struct AnyScore(Box<dyn DynScore>);

/// The list of scores.
macro_rules! scores {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// One of the score functions; its methods are those of [`ScoreFunction`].
        #[derive(Module, Debug)]
        pub enum Score {
            $($(#[$doc])* $name($name),)+
            /// A score of any crate, see [`Score::custom`].
            Custom(AnyScore),
        }

        impl Deref for Score {
            type Target = dyn ScoreFunction;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$name(score) => score,)+
                    Self::Custom(score) => score.function(),
                }
            }
        }
    };
}

scores! {
    /// `sᵀ h`
    Dot,
    /// `scale · sᵀ h`
    ScaledDot,
    /// `sᵀ W h`
    General,
    /// `g · sᵀ W h`
    ScaledGeneral,
    /// `vᵀ tanh(W s + U h)`
    Additive,
    /// `g v/‖v‖ · tanh(W s + U h + b)`
    WeightNormAdditive,
    /// `β cos(s, h)`
    Cosine,
    /// `-scale · ‖s - h‖²`
    Distance,
    /// `(W s)_i`
    Location,
    /// `Σ_k a_k exp(-b_k (κ_k - u)²)`
    GaussianWindow,
}

impl Score {
    /// `sᵀ h`.
    pub fn dot() -> Self {
        Self::Dot(Dot)
    }

    /// `sᵀ h / √d`.
    pub fn scaled_dot() -> Self {
        Self::ScaledDot(ScaledDot::default())
    }

    /// A score of your own, see the [module page](self).
    pub fn custom(score: impl ScoreFunction + Module + 'static) -> Self {
        Self::Custom(AnyScore::new(score))
    }

    /// Prepares annotations `[.., annotation size]` for scoring: `[.., key size]`.
    ///
    /// # Panics
    /// With more than four axes.
    pub fn keys<const D: usize>(&self, annotations: Tensor<D>) -> Tensor<D> {
        let dims = annotations.dims();
        let mut shape = [1; 4];
        shape[4 - D..].copy_from_slice(&dims);
        match self.prepared_keys(&reshaped(annotations.clone(), shape)) {
            None => annotations,
            Some(keys) => {
                let mut shape = dims;
                shape[D - 1] = keys.dims()[3];
                reshaped(keys, shape)
            }
        }
    }

    /// Scores `[batch, heads, queries, keys]` of queries `[batch, heads, queries, query size]` against prepared
    /// keys `[batch, heads, keys, key size]`. The Gaussian window starts at 0.
    pub fn forward(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        self.score(query, keys)
    }
}
