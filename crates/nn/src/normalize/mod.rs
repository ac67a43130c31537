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
//! In all of them a key that may not be seen has weight 0 and gets gradient 0, and a row in which nothing may be
//! seen has weights 0.
//!
//! Which one: softmax, with a sink where a head must be able to say nothing. The sparse ones where a picture should show few
//! words, the hard ones where only what was looked at may be computed, the monotonic one where both sides run in the
//! same order. A kernel serves softmax and sink.

pub mod addressing;
pub mod hard;
pub mod identity;
pub mod monotonic;
pub mod reinforce;
pub mod sigmoid;
pub mod sink;
pub mod softmax;
pub mod sparse;

use burn::{
    module::Module,
    tensor::{Bool, Tensor},
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

use crate::{attention::Sampled, bridge::spread, dropout::DropoutRng};

/// One of the normalisers.
#[derive(Module, Debug)]
pub enum Normalize {
    /// `e^{s_i} / Σ e^{s_j}`
    Softmax(Softmax),
    /// `e^{s_i} / (e^{sink} + Σ e^{s_j})`
    Sink(Sink),
    /// `max(s_i - τ, 0)`
    Sparsemax(Sparsemax),
    /// `max(s_i/2 - τ, 0)²`
    Entmax15(Entmax15),
    /// `σ(s_i + b)`
    Sigmoid(Sigmoid),
    /// 1 at the best key
    Hardmax(Hardmax),
    /// 1 at a drawn key
    HardSample(HardSample),
    /// where a reader that moves right stops
    Monotonic(Monotonic),
    /// content, interpolation, shift, sharpening
    Addressing(Addressing),
    /// `s_i`
    Identity(Identity),
}

/// Weights, and what some normalisers know beside them.
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
    /// The last query's weights, for normalisers that go on from them: `[batch, heads, 1, keys]`.
    pub carried: Option<Tensor<4>>,
}

impl Normalized {
    fn new(weights: Tensor<4>) -> Self {
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
    /// The usual one.
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

    /// The name by which the literature knows the normaliser.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Softmax(_) => "softmax",
            Self::Sink(_) => "softmax with a sink",
            Self::Sparsemax(_) => "sparsemax",
            Self::Entmax15(_) => "1.5-entmax",
            Self::Sigmoid(_) => "sigmoid",
            Self::Hardmax(_) => "hardmax",
            Self::HardSample(_) => "hard sample",
            Self::Monotonic(_) => "monotonic",
            Self::Addressing(_) => "NTM addressing",
            Self::Identity(_) => "identity",
        }
    }

    /// Weights of `scores [batch, heads, queries, keys]`; `seen` broadcasts against them. `query`, `carried` and
    /// `noise` are looked at by those normalisers that need them.
    pub fn forward(
        &self,
        scores: Tensor<4>,
        seen: Option<Tensor<4, Bool>>,
        query: &Tensor<4>,
        carried: Option<Tensor<4>>,
        noise: Option<&mut DropoutRng>,
    ) -> Normalized {
        match self {
            Self::Softmax(normalizer) => normalizer.forward(scores, seen),
            Self::Sink(normalizer) => normalizer.forward(scores, seen),
            Self::Sparsemax(normalizer) => normalizer.forward(scores, seen),
            Self::Entmax15(normalizer) => normalizer.forward(scores, seen),
            Self::Sigmoid(normalizer) => normalizer.forward(scores, seen),
            Self::Hardmax(normalizer) => normalizer.forward(scores, seen),
            Self::HardSample(normalizer) => normalizer.forward(scores, seen, noise),
            Self::Monotonic(normalizer) => normalizer.forward(scores, seen, carried, noise),
            Self::Addressing(normalizer) => {
                normalizer.forward(scores, seen, query.clone(), carried)
            }
            Self::Identity(normalizer) => normalizer.forward(scores, seen),
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
