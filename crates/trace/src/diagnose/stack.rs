//! Stacks of self-attention layers, as rollout and flow read them.

use crate::{AttentionMap, Axis, Kind, Trace};

/// Why maps do not form a stack of layers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// There is no map at all.
    #[error(
        "no layers: rollout and flow need at least one self-attention map; give a model that has some"
    )]
    Empty,
    /// A map's queries and keys are different sequences.
    #[error(
        "attention map {map:?} has {queries} queries and {keys} keys, expected as many of both: rollout and \
         flow read self-attention; leave cross attention out"
    )]
    NotSelf {
        /// Name of the map.
        map: String,
        /// Its queries.
        queries: usize,
        /// Its keys.
        keys: usize,
    },
    /// Layers are of different lengths.
    #[error(
        "attention map {map:?} has {found} positions, expected {expected} as in the layer below; give the \
         layers of one sequence"
    )]
    Length {
        /// Name of the map.
        map: String,
        /// Its positions.
        found: usize,
        /// Those of the first layer.
        expected: usize,
    },
    /// A position that is not there.
    #[error("position {found} does not exist: the stack has {length} positions, counted from 0")]
    Position {
        /// The position asked for.
        found: usize,
        /// How many there are.
        length: usize,
    },
}

/// The self-attention maps of a trace, by kind, each from the lowest layer to the highest.
pub fn stacks(trace: &Trace) -> Vec<(Kind, Vec<&AttentionMap>)> {
    [Kind::EncoderSelf, Kind::DecoderSelf, Kind::SelfAttention]
        .into_iter()
        .filter_map(|kind| {
            let mut maps: Vec<_> = trace.maps.iter().filter(|map| map.kind() == kind).collect();
            maps.sort_by_key(|map| map.layer());
            (!maps.is_empty()).then_some((kind, maps))
        })
        .collect()
}

/// `½(Ā + I)` of each layer, rows renormalised, heads averaged: `[layers][length · length]`.
pub(super) struct Stack<'a> {
    pub(super) layers: Vec<Vec<f64>>,
    pub(super) length: usize,
    first: &'a AttentionMap,
}

impl<'a> Stack<'a> {
    pub(super) fn new(maps: &[&'a AttentionMap]) -> Result<Self, StackError> {
        let first = *maps.first().ok_or(StackError::Empty)?;
        let length = first.queries().len();
        let layers = maps
            .iter()
            .map(|map| {
                let [_, queries, keys] = map.shape();
                if queries != keys {
                    return Err(StackError::NotSelf {
                        map: map.name().to_owned(),
                        queries,
                        keys,
                    });
                }
                if queries != length {
                    return Err(StackError::Length {
                        map: map.name().to_owned(),
                        found: queries,
                        expected: length,
                    });
                }
                Ok(with_residual(map))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            layers,
            length,
            first,
        })
    }

    pub(super) fn axis(&self) -> &'a Axis {
        self.first.keys()
    }

    pub(super) fn predictions(&self) -> Option<&'a Axis> {
        self.first.predictions()
    }

    pub(super) fn kind(&self) -> Kind {
        self.first.kind()
    }
}

fn with_residual(map: &AttentionMap) -> Vec<f64> {
    let [heads, length, _] = map.shape();
    let mut layer = Vec::with_capacity(length * length);
    for query in 0..length {
        let mut row: Vec<f64> = (0..length)
            .map(|key| {
                let sum: f64 = (0..heads)
                    .map(|head| f64::from(map.weight(head, query, key)))
                    .sum();
                sum / heads as f64
            })
            .collect();
        row[query] += 1.0;
        let total: f64 = row.iter().sum();
        layer.extend(row.iter().map(|weight| weight / total));
    }
    layer
}
