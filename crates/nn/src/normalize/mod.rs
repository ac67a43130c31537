//! From scores to weights.
//!
//! | page | normaliser | `α_i` | a row sums to | source |
//! |---|---|---|---|---|
//! | [softmax] | [`Softmax`] | `e^{s_i} / Σ e^{s_j}` | 1 | |
//! | [sink] | [`Sink`] | `e^{s_i} / (e^{sink} + Σ e^{s_j})` | at most 1 | Miller 2023; Xiao 2024 |
//! | [sparse] | [`Sparsemax`] | `max(s_i - τ, 0)` | 1 | Martins & Astudillo 2016 |
//! | | [`Entmax15`] | `max(s_i/2 - τ, 0)²` | 1 | Peters 2019 |
//! | [sigmoid] | [`Sigmoid`] | `σ(s_i + b)` | anything | Ramapuram 2024 |
//! | [hard] | [`Hardmax`] | 1 at the best key | 1 | |
//! | | [`HardSample`] | 1 at a drawn key; trained by an estimator or by [REINFORCE](reinforce) | 1 | Xu 2015; Bengio 2013; Jang 2017 |
//! | [monotonic] | [`Monotonic`] | where a reader that moves right stops | at most 1 | Raffel 2017 |
//! | [NTM addressing](addressing) | [`Addressing`] | content, interpolation, shift, sharpening | 1 | Graves 2014 (NTM) |
//! | [identity] | [`Identity`] | `s_i` | anything | |
//!
//! | your own | [`Normalize::custom`] | what your [`NormalizeFunction`] says | | |
//!
//! In all of them a key that may not be seen has weight 0 and gets gradient 0, and a row in which nothing may be
//! seen has weights 0.
//!
//! Which one: softmax, with a sink where a head must be able to attend to nothing. The sparse ones where a picture should show
//! few words, the hard ones where only the chosen key may be computed, the monotonic one where both sides run in the same
//! order. A kernel serves softmax and sink.
//!
//! # A normaliser of your own
//!
//! Implement [`NormalizeFunction`] for a Burn module, in any crate, and give it to [`Normalize::custom`]:
//!
//! ```
//! use regard_nn::burn::{self, module::Module, tensor::{Device, Tensor, activation::relu}};
//! use regard_nn::{Attention, Observe, mask::Mask, score::Score};
//! use regard_nn::normalize::{Normalize, NormalizeFunction, NormalizeOptions, Normalized};
//!
//! /// `α_i = max(s_i, 0)`
//! #[derive(Module, Debug)]
//! struct Relu;
//!
//! impl NormalizeFunction for Relu {
//!     fn name(&self) -> &'static str {
//!         "ReLU"
//!     }
//!     fn normalize(&self, scores: Tensor<4>, _options: NormalizeOptions<'_>) -> Normalized {
//!         Normalized::new(relu(scores))
//!     }
//! }
//!
//! let attention = Attention::new(Score::dot()).with_normalize(Normalize::custom(Relu)).with_mask(Mask::causal());
//! let x = Tensor::<4>::ones([1, 1, 2, 4], &Device::flex());
//! let weights = attention.forward(x.clone(), x.clone(), x, Observe::Weights)?.weights.unwrap();
//! assert_eq!(weights.into_data().into_vec::<f32>().unwrap(), [4., 0., 4., 4.]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

pub mod addressing;
pub mod hard;
pub mod identity;
pub mod monotonic;
pub mod reinforce;
pub mod sigmoid;
pub mod sink;
pub mod softmax;
pub mod sparse;

use std::{fmt::Debug, ops::Deref};

use burn::{
    module::Module,
    tensor::{Bool, DType, Tensor},
};

pub use addressing::Addressing;
pub use hard::{Estimator, HardSample, Hardmax};
pub use identity::Identity;
pub use monotonic::{Form, Monotonic};
pub use reinforce::Reinforce;
pub use sigmoid::Sigmoid;
pub use sink::Sink;
pub use softmax::{Softmax, masked_softmax};
pub use sparse::{Entmax15, Sparsemax};

use crate::{
    any_module,
    attention::{AttentionError, Sampled},
    bridge::spread,
    dropout::DropoutRng,
};

/// From scores to weights: the interface of every normaliser, including those of other crates ([`Normalize::custom`]).
pub trait NormalizeFunction: Debug + Send + Sync {
    /// The name by which the literature knows the normaliser.
    fn name(&self) -> &'static str;

    /// Weights of `scores [batch, heads, queries, keys]`, each of which may be 0.
    fn normalize(&self, scores: Tensor<4>, options: NormalizeOptions<'_>) -> Normalized;

    /// The size of queries that it requires, if it uses them.
    fn query_size(&self) -> Option<usize> {
        None
    }

    /// Whether it continues from the weights of the previous query that saw a key, `[batch, heads, 1, keys]`.
    fn carries(&self) -> bool {
        false
    }

    /// Checks its settings, for a number of heads and a precision.
    ///
    /// # Errors
    /// A setting outside its range.
    fn check(&self, _heads: usize, _dtype: DType) -> Result<(), AttentionError> {
        Ok(())
    }
}

/// What a normaliser may use beside the scores.
#[derive(Debug)]
pub struct NormalizeOptions<'a> {
    /// Where a key may be seen, each of the four sizes or 1; `None` where all may be. Scores elsewhere may be anything.
    pub seen: Option<Tensor<4, Bool>>,
    /// The queries, `[batch, heads, queries, query size]`.
    pub query: &'a Tensor<4>,
    /// What the query before the first one left, for normalisers that [carry](NormalizeFunction::carries).
    pub carried: Option<Tensor<4>>,
    /// The source of random numbers; without it nothing is random.
    pub noise: Option<&'a mut DropoutRng>,
}

any_module!(AnyNormalize, NormalizeFunction, DynNormalize, None, {
    /// The normaliser itself.
    fn function(&self) -> &(dyn NormalizeFunction + 'static);
} {
    fn function(&self) -> &(dyn NormalizeFunction + 'static) {
        self
    }
});

/// A normaliser whose type is chosen at run time.
pub struct AnyNormalize(Box<dyn DynNormalize>);

/// The list of normalisers.
macro_rules! normalizers {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// One of the normalisers; its methods are those of [`NormalizeFunction`].
        #[derive(Module, Debug)]
        pub enum Normalize {
            $($(#[$doc])* $name($name),)+
            /// A normaliser of any crate, see [`Normalize::custom`].
            Custom(AnyNormalize),
        }

        impl Deref for Normalize {
            type Target = dyn NormalizeFunction;

            fn deref(&self) -> &Self::Target {
                match self {
                    $(Self::$name(normalizer) => normalizer,)+
                    Self::Custom(normalizer) => normalizer.function(),
                }
            }
        }
    };
}

normalizers! {
    /// `e^{s_i} / Σ e^{s_j}`
    Softmax,
    /// `e^{s_i} / (e^{sink} + Σ e^{s_j})`
    Sink,
    /// `max(s_i - τ, 0)`
    Sparsemax,
    /// `max(s_i/2 - τ, 0)²`
    Entmax15,
    /// `σ(s_i + b)`
    Sigmoid,
    /// 1 at the best key
    Hardmax,
    /// 1 at a drawn key
    HardSample,
    /// where a reader that moves right stops
    Monotonic,
    /// content, interpolation, shift, sharpening
    Addressing,
    /// `s_i`
    Identity,
}

/// Weights, and what some normalisers compute beside them.
#[derive(Debug, Clone)]
pub struct Normalized {
    /// `[batch, heads, queries, keys]`.
    pub weights: Tensor<4>,
    /// `ln Σ e^{s}` of the softmax normalisers, `[batch, heads, queries]`.
    pub lse: Option<Tensor<3>>,
    /// `ln` of the share of a sink, `[batch, heads, queries]`.
    pub log_sink: Option<Tensor<3>>,
    /// What hard attention drew.
    pub sampled: Option<Sampled>,
    /// The weights of the last query that saw a key, for normalisers that continue from them: `[batch, heads, 1, keys]`.
    pub carried: Option<Tensor<4>>,
}

impl Normalized {
    /// Weights alone.
    pub fn new(weights: Tensor<4>) -> Self {
        Self {
            weights,
            lse: None,
            log_sink: None,
            sampled: None,
            carried: None,
        }
    }
}

impl Normalize {
    /// The usual normaliser.
    pub fn softmax() -> Self {
        Self::Softmax(Softmax)
    }

    /// Euclidean projection onto the simplex.
    pub fn sparsemax() -> Self {
        Self::Sparsemax(Sparsemax)
    }

    /// Between softmax and sparsemax.
    pub fn entmax15() -> Self {
        Self::Entmax15(Entmax15)
    }

    /// The best key alone.
    pub fn hardmax() -> Self {
        Self::Hardmax(Hardmax)
    }

    /// The scores as they are.
    pub fn identity() -> Self {
        Self::Identity(Identity)
    }

    /// A normaliser of your own, see the [module page](self).
    pub fn custom(normalizer: impl NormalizeFunction + Module + 'static) -> Self {
        Self::Custom(AnyNormalize::new(normalizer))
    }

    /// As [`NormalizeFunction::normalize`]. Whatever the normaliser, a key that may not be seen has weight 0 and gets gradient 0.
    pub fn forward(
        &self,
        scores: Tensor<4>,
        seen: Option<Tensor<4, Bool>>,
        query: &Tensor<4>,
        carried: Option<Tensor<4>>,
        noise: Option<&mut DropoutRng>,
    ) -> Normalized {
        let of_others = matches!(self, Self::Custom(_)).then(|| seen.clone());
        let options = NormalizeOptions {
            seen,
            query,
            carried,
            noise,
        };
        match of_others {
            None => self.normalize(scores, options),
            Some(seen) => {
                let normalized = self.normalize(hide(scores, &seen), options);
                Normalized {
                    weights: hide(normalized.weights, &seen),
                    ..normalized
                }
            }
        }
    }
}

impl Default for Normalize {
    fn default() -> Self {
        Self::softmax()
    }
}

/// What one query may see, `[batch or 1, heads or 1, 1, keys]`.
fn seen_by(query: usize, seen: &Option<Tensor<4, Bool>>) -> Option<Tensor<4, Bool>> {
    seen.as_ref().map(|seen| match seen.dims()[2] {
        1 => seen.clone(),
        _ => seen.clone().narrow(2, query, 1),
    })
}

/// What a query leaves to the next one: its `weights`, or what was left to it, `before`, where it sees nothing. All are
/// `[batch, heads, 1, keys]`.
fn carry_on(
    before: Tensor<4>,
    weights: Tensor<4>,
    seen_by_it: &Option<Tensor<4, Bool>>,
) -> Tensor<4> {
    match seen_by_it {
        None => weights,
        Some(seen) => {
            let shape = weights.dims();
            before.mask_where(spread(seen.clone().any_dim(3), shape), weights)
        }
    }
}

/// `x` with zeros where a key may not be seen.
pub(crate) fn hide(x: Tensor<4>, seen: &Option<Tensor<4, Bool>>) -> Tensor<4> {
    match seen {
        None => x,
        Some(seen) => {
            let shape = x.dims();
            x.mask_fill(spread(seen.clone().bool_not(), shape), 0.0)
        }
    }
}
