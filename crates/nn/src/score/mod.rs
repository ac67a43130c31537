//! How well a query and a key match.
//!
//! | score | `score(s, h)` | source |
//! |---|---|---|
//! | [`Dot`] | `sᵀ h` | Luong 2015 |
//! | [`General`] | `sᵀ W h` | Luong 2015 |
//! | [`Additive`] | `vᵀ tanh(W s + U h)`, Luong's "concat" | Bahdanau 2014 |
//! | [`Location`] | `W s`: position alone | Luong 2015 |
//!
//! A score prepares the annotations once per source ([`Score::keys`]) and then scores any number of
//! queries against them ([`Score::forward`]).

mod additive;
mod dot;
mod general;
mod location;

use burn::{module::Module, tensor::Tensor};

pub use additive::Additive;
pub use dot::Dot;
pub use general::General;
pub use location::Location;

/// One of the score functions.
#[derive(Module, Debug)]
pub enum Score {
    /// `sᵀ h`
    Dot(Dot),
    /// `sᵀ W h`
    General(General),
    /// `vᵀ tanh(W s + U h)`
    Additive(Additive),
    /// `(W s)_i`
    Location(Location),
}

impl Score {
    /// Prepares annotations `[batch, keys, value size]` for scoring: `[batch, keys, key size]`.
    pub fn keys(&self, annotations: Tensor<3>) -> Tensor<3> {
        match self {
            Self::Dot(_) | Self::Location(_) => annotations,
            Self::General(score) => score.keys(annotations),
            Self::Additive(score) => score.keys(annotations),
        }
    }

    /// Scores `[batch, queries, keys]` of queries `[batch, queries, query size]` against prepared keys
    /// `[batch, keys, key size]`.
    pub fn forward(&self, query: Tensor<3>, keys: Tensor<3>) -> Tensor<3> {
        match self {
            Self::Dot(score) => score.forward(query, keys),
            Self::General(score) => score.forward(query, keys),
            Self::Additive(score) => score.forward(query, keys),
            Self::Location(score) => score.forward(query, keys.dims()[1]),
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
