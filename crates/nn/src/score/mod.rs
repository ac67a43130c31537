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
//! | [soft window](gaussian_window) | [`GaussianWindow`] | `Σ_k a_k exp(-b_k (κ_k - u)²)`: a place that moves on | Graves 2013 |
//!
//! A score prepares the annotations once per source ([`Score::keys`]) and then scores any number of
//! queries against them ([`Score::forward`]). Shapes are `[batch, heads, length, size]`; weights are shared by
//! the heads.
//!
//! Which one: scaled dot for self-attention and wherever a kernel should serve at any length; additive or general
//! between a decoder and its source; cosine for a memory addressed by content; the soft window where reading moves
//! forward and an explicit place is wanted. Location and L2 are for comparison.

pub mod additive;
pub mod cosine;
pub mod distance;
pub mod dot;
pub mod gaussian_window;
pub mod general;
pub mod location;
pub mod scaled_dot;

use burn::{module::Module, tensor::Tensor};

pub use additive::{Additive, WeightNormAdditive};
pub use cosine::Cosine;
pub use distance::Distance;
pub use dot::Dot;
pub use gaussian_window::GaussianWindow;
pub use general::{General, ScaledGeneral};
pub use location::Location;
pub use scaled_dot::ScaledDot;

/// One of the score functions.
#[derive(Module, Debug)]
pub enum Score {
    /// `sᵀ h`
    Dot(Dot),
    /// `scale · sᵀ h`
    ScaledDot(ScaledDot),
    /// `sᵀ W h`
    General(General),
    /// `g · sᵀ W h`
    ScaledGeneral(ScaledGeneral),
    /// `vᵀ tanh(W s + U h)`
    Additive(Additive),
    /// `g v/‖v‖ · tanh(W s + U h + b)`
    WeightNormAdditive(WeightNormAdditive),
    /// `β cos(s, h)`
    Cosine(Cosine),
    /// `-scale · ‖s - h‖²`
    Distance(Distance),
    /// `(W s)_i`
    Location(Location),
    /// `Σ_k a_k exp(-b_k (κ_k - u)²)`
    GaussianWindow(GaussianWindow),
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

    /// The name by which the literature knows the score.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Dot(_) => "dot",
            Self::ScaledDot(_) => "scaled dot",
            Self::General(_) => "general",
            Self::ScaledGeneral(_) => "scaled general",
            Self::Additive(_) => "additive",
            Self::WeightNormAdditive(_) => "weight-normed additive",
            Self::Cosine(_) => "cosine",
            Self::Distance(_) => "L2 distance",
            Self::Location(_) => "location",
            Self::GaussianWindow(_) => "Gaussian window",
        }
    }

    /// The size of annotations that the score was made for, if it was made for one.
    pub(crate) fn annotation_size(&self) -> Option<usize> {
        let key = match self {
            Self::General(score) => &score.key,
            Self::ScaledGeneral(score) => &score.key,
            Self::Additive(score) => &score.key,
            Self::WeightNormAdditive(score) => &score.key,
            _ => return None,
        };
        Some(key.weight.dims()[0])
    }

    /// Prepares annotations `[.., annotation size]` for scoring: `[.., key size]`.
    pub fn keys<const D: usize>(&self, annotations: Tensor<D>) -> Tensor<D> {
        match self {
            Self::General(score) => score.keys(annotations),
            Self::ScaledGeneral(score) => score.keys(annotations),
            Self::Additive(score) => score.keys(annotations),
            Self::WeightNormAdditive(score) => score.keys(annotations),
            Self::Cosine(score) => score.keys(annotations),
            Self::Dot(_)
            | Self::ScaledDot(_)
            | Self::Distance(_)
            | Self::Location(_)
            | Self::GaussianWindow(_) => annotations,
        }
    }

    /// Scores `[batch, heads, queries, keys]` of queries `[batch, heads, queries, query size]` against prepared
    /// keys `[batch, heads, keys, key size]`. The Gaussian window starts at 0.
    pub fn forward(&self, query: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Dot(score) => score.forward(query, keys),
            Self::ScaledDot(score) => score.forward(query, keys),
            Self::General(score) => score.forward(query, keys),
            Self::ScaledGeneral(score) => score.forward(query, keys),
            Self::Additive(score) => score.forward(query, keys),
            Self::WeightNormAdditive(score) => score.forward(query, keys),
            Self::Cosine(score) => score.forward(query, keys),
            Self::Distance(score) => score.forward(query, keys),
            Self::Location(score) => score.forward(query, keys.dims()[2]),
            Self::GaussianWindow(score) => score.forward(query, None, keys.dims()[2]).0,
        }
    }

    /// The number of leading keys that can have a score at all (location-based scores know a fixed
    /// number of positions).
    pub fn reach(&self) -> Option<usize> {
        match self {
            Self::Location(score) => Some(score.positions()),
            _ => None,
        }
    }
}
