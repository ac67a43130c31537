//! The positions that act inside an attention layer, as one choice.

use burn::{module::Module, tensor::Tensor};
use serde::{Deserialize, Serialize};

use super::{
    Alibi, Positions, Relative, RelativeBuckets, RelativeBucketsConfig, Rotary, RotaryConfig,
};
use crate::{attention::AttentionError, initialize::Initializer};

/// Which position mechanism acts inside an attention layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum PositionConfig {
    /// None: the order of tokens does not matter, or their embeddings contain positions already.
    #[default]
    None,
    /// [`Rotary`].
    Rotary(RotaryConfig),
    /// [`Alibi`].
    Alibi,
    /// [`RelativeBuckets`].
    Buckets(RelativeBucketsConfig),
    /// [`Relative`].
    Relative {
        /// The largest distance, in tokens, that has a vector of its own.
        max_distance: usize,
        /// Whether there are vectors for values too.
        values: bool,
    },
}

/// A position mechanism that acts inside an attention layer.
#[derive(Module, Debug)]
pub enum Position {
    /// Rotates queries and keys.
    Rotary(Rotary),
    /// A penalty that grows with the distance.
    Alibi(Alibi),
    /// A trained number for each head and bucket of distances.
    Buckets(RelativeBuckets),
    /// A trained vector for each distance.
    Relative(Relative),
}

impl PositionConfig {
    /// The mechanism for `heads` query heads of `head_size`, with values of `value_size`.
    ///
    /// # Errors
    /// If a number of the configuration is out of range, or it rotates more features than a head has.
    pub fn init(
        &self,
        heads: usize,
        head_size: usize,
        value_size: usize,
        initializer: &mut Initializer,
    ) -> Result<Option<Position>, AttentionError> {
        Ok(Some(match self {
            Self::None => return Ok(None),
            Self::Rotary(config) => {
                if config.size > head_size {
                    return Err(AttentionError::value(
                        "rotary.size",
                        config.size,
                        format!("at most {head_size}, the features of a head"),
                        "turn fewer features, or make the heads larger",
                    ));
                }
                Position::Rotary(config.init()?)
            }
            Self::Alibi => Position::Alibi(Alibi::new(heads)?),
            Self::Buckets(config) => {
                Position::Buckets(RelativeBuckets::new(config, heads, initializer)?)
            }
            Self::Relative {
                max_distance,
                values,
            } => Position::Relative(Relative::new(
                *max_distance,
                head_size,
                values.then_some(value_size),
                initializer,
            )?),
        }))
    }
}

impl Position {
    /// Queries or keys `[batch, heads, length, d]` with their positions applied; the first of them is at
    /// position `first`.
    ///
    /// # Errors
    /// If they have fewer features than are rotated.
    pub fn place(&self, x: Tensor<4>, first: usize) -> Result<Tensor<4>, AttentionError> {
        match self {
            Self::Rotary(rotary) => {
                let rotation = rotary.rotation(first, x.dims()[2], &x.device(), x.dtype());
                rotation.apply(x)
            }
            _ => Ok(x),
        }
    }

    /// The term that is added to the scores of `query [batch, heads, queries, d]`, each of the first two
    /// sizes or 1: `[batch, heads, queries, keys]`. `scale` is that of the scores.
    ///
    /// # Errors
    /// If the shape of `query` does not fit the mechanism or `positions`.
    pub fn bias(
        &self,
        query: &Tensor<4>,
        positions: &Positions,
        scale: f64,
    ) -> Result<Option<Tensor<4>>, AttentionError> {
        Ok(match self {
            Self::Rotary(_) => None,
            Self::Alibi(alibi) => Some(alibi.bias(positions, &query.device(), query.dtype())),
            Self::Buckets(buckets) => Some(buckets.bias(positions)),
            Self::Relative(relative) => Some(relative.scores(query.clone() * scale, positions)?),
        })
    }

    /// The vectors that are read together with the values, if the mechanism has some.
    pub fn values(&self) -> Option<&Relative> {
        match self {
            Self::Relative(relative) if relative.values.is_some() => Some(relative),
            _ => None,
        }
    }
}
