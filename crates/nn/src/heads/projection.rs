//! From states to the queries, keys and values of every head, by three matrices or by one.
//!
//! `Q = X W^Q`, `K = Y W^K`, `V = Y W^V`; `W^Q [model, h · d]`, `W^K [source, g · d]`,
//! `W^V [source, g · d_v]` for `h` query heads and `g` key/value heads. The columns of a head are
//! contiguous.
//!
//! [`Fused`] holds `W^Q | W^K | W^V` as one matrix: self-attention then takes one large product in place
//! of three. Both layouts start from the same numbers and give the same results; choose the one in which
//! the checkpoint is stored (GPT-2 and PyTorch: one; Llama: three).
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{heads::MultiHeadConfig, heads::ProjectionLayout, initialize::Initializer};
//!
//! let device = Device::flex();
//! let config = MultiHeadConfig { projection: ProjectionLayout::Fused, ..MultiHeadConfig::new(8, 2) };
//! let layer = config.init(&mut Initializer::new(1, &device))?;
//! let source = layer.source(Tensor::ones([1, 3, 8], &device))?;
//! assert_eq!((source.keys.dims(), source.values.dims()), ([1, 2, 3, 4], [1, 2, 3, 4]));
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::{
    module::Module,
    nn::Linear,
    tensor::{Device, Int, Tensor, TensorData},
};
use serde::{Deserialize, Serialize};

use crate::{
    attention::AttentionError,
    bridge::{apply, linear, reshaped},
    initialize::Initializer,
};

/// How the matrices of [`Projection`] are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum ProjectionLayout {
    /// `W^Q`, `W^K` and `W^V`, each by itself.
    #[default]
    Separate,
    /// `W^Q | W^K | W^V`, one matrix; queries and source must be of one size.
    Fused,
}

/// The sizes of the heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// `h`
    pub(super) heads: usize,
    /// `g`, a divisor of `h`
    pub(super) key_value_heads: usize,
    /// `d`
    pub(super) head: usize,
    /// `d_v`
    pub(super) value: usize,
}

impl Sizes {
    /// The columns of `W^Q`, `W^K` and `W^V`.
    fn columns(&self) -> [usize; 3] {
        [
            self.heads * self.head,
            self.key_value_heads * self.head,
            self.key_value_heads * self.value,
        ]
    }

    /// Keys and values, the columns of each head together, as heads.
    fn shaped(&self, key: Tensor<3>, value: Tensor<3>) -> KeyValues {
        KeyValues {
            keys: split_heads(key, self.key_value_heads),
            values: split_heads(value, self.key_value_heads),
        }
    }
}

/// `W^Q`, `W^K` and `W^V`, as three matrices or as one.
#[derive(Module, Debug)]
pub enum Projection {
    /// Three matrices.
    Separate(Separate),
    /// One matrix.
    Fused(Fused),
}

/// Three matrices.
#[derive(Module, Debug)]
pub struct Separate {
    /// `W^Q`, `[model, h · d]`.
    pub query: Linear,
    /// `W^K`, `[source, g · d]`.
    pub key: Linear,
    /// `W^V`, `[source, g · d_v]`.
    pub value: Linear,
}

/// One matrix.
#[derive(Module, Debug)]
pub struct Fused {
    /// `W^Q | W^K | W^V`, `[model, (h + g) · d + g · d_v]`.
    pub query_key_value: Linear,
}

/// The keys and values of a source, computed once and read any number of times.
#[derive(Debug, Clone)]
pub struct KeyValues {
    /// `[batch, key/value heads, length, d]`
    pub keys: Tensor<4>,
    /// `[batch, key/value heads, length, d_v]`
    pub values: Tensor<4>,
}

impl KeyValues {
    /// How many keys there are.
    pub fn length(&self) -> usize {
        self.keys.dims()[2]
    }

    /// The batch rows at `rows`, in that order (rows may repeat).
    ///
    /// # Errors
    /// If a row is not there.
    pub fn select(&self, rows: &[usize]) -> Result<Self, AttentionError> {
        let batch = self.keys.dims()[0];
        let index = row_index(rows, batch, &self.keys.device())?;
        Ok(Self {
            keys: self.keys.clone().select(0, index.clone()),
            values: self.values.clone().select(0, index),
        })
    }
}

/// `rows` as a tensor, checked against the `batch`.
pub(crate) fn row_index(
    rows: &[usize],
    batch: usize,
    device: &Device,
) -> Result<Tensor<1, Int>, AttentionError> {
    if let Some(found) = rows.iter().find(|&&row| row >= batch) {
        return Err(AttentionError::value(
            "rows",
            found,
            format!("less than {batch}, the rows of the batch"),
            "rows count from 0",
        ));
    }
    let rows_of: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
    Ok(Tensor::from_data(
        TensorData::new(rows_of, [rows.len()]),
        device,
    ))
}

impl Projection {
    /// Draws the matrices in the order query, key, value, each from `U(-b, b)` with
    /// `b = √(6 / (inputs + outputs))` (Glorot & Bengio 2010), so that both layouts start alike. Biases
    /// are 0.
    pub(super) fn new(
        layout: ProjectionLayout,
        [model, source]: [usize; 2],
        sizes: &Sizes,
        bias: bool,
        initializer: &mut Initializer,
    ) -> Self {
        let [query, key, value] = sizes.columns();
        let query = glorot(model, query, bias, initializer);
        let key = glorot(source, key, bias, initializer);
        let value = glorot(source, value, bias, initializer);
        match layout {
            ProjectionLayout::Separate => Self::Separate(Separate { query, key, value }),
            ProjectionLayout::Fused => Self::Fused(Fused {
                query_key_value: initializer.side_by_side(&[query, key, value]),
            }),
        }
    }

    /// Queries `[batch, h, length, d]`, keys and values, all of one sequence `[batch, length, model]`.
    pub(super) fn all(&self, x: Tensor<3>, sizes: &Sizes) -> (Tensor<4>, KeyValues) {
        let fused = match self {
            // Burn's slices of nothing are not in the graph.
            Self::Fused(fused) if !x.dims().contains(&0) => fused,
            _ => return (self.query(x.clone(), sizes), self.source(x, sizes)),
        };
        let [query, key, value] = sizes.columns();
        let joint = apply(&fused.query_key_value, x);
        let source = sizes.shaped(
            joint.clone().narrow(2, query, key),
            joint.clone().narrow(2, query + key, value),
        );
        (split_heads(joint.narrow(2, 0, query), sizes.heads), source)
    }

    /// Queries: `[batch, length, model]` -> `[batch, h, length, d]`.
    pub(super) fn query(&self, x: Tensor<3>, sizes: &Sizes) -> Tensor<4> {
        let query = match self {
            Self::Separate(separate) => apply(&separate.query, x),
            Self::Fused(fused) => {
                let [query, ..] = sizes.columns();
                forward_columns(&fused.query_key_value, 0, query, x)
            }
        };
        split_heads(query, sizes.heads)
    }

    /// Keys and values: `[batch, length, source]` -> [`KeyValues`].
    pub(super) fn source(&self, y: Tensor<3>, sizes: &Sizes) -> KeyValues {
        let (key, value) = match self {
            Self::Separate(separate) => {
                (apply(&separate.key, y.clone()), apply(&separate.value, y))
            }
            Self::Fused(fused) => {
                let [query, key, value] = sizes.columns();
                let columns =
                    |first, count| forward_columns(&fused.query_key_value, first, count, y.clone());
                match y.dims().contains(&0) {
                    // Burn's slices of nothing are not in the graph.
                    true => (columns(query, key), columns(query + key, value)),
                    false => {
                        let both = columns(query, key + value);
                        (both.clone().narrow(2, 0, key), both.narrow(2, key, value))
                    }
                }
            }
        };
        sizes.shaped(key, value)
    }

    /// Keys of `keys [batch, length, source]` and values of `values`, which are of the same shape.
    pub(super) fn keys_and_values(
        &self,
        keys: Tensor<3>,
        values: Tensor<3>,
        sizes: &Sizes,
    ) -> KeyValues {
        let (key, value) = match self {
            Self::Separate(separate) => {
                (apply(&separate.key, keys), apply(&separate.value, values))
            }
            Self::Fused(fused) => {
                let [query, key, value] = sizes.columns();
                let joint = &fused.query_key_value;
                (
                    forward_columns(joint, query, key, keys),
                    forward_columns(joint, query + key, value, values),
                )
            }
        };
        sizes.shaped(key, value)
    }

    /// The matrices as they are, one or three; `None` if a joint matrix would have to read another
    /// source.
    pub(super) fn matrices(&self, cross: bool) -> Option<Vec<&Linear>> {
        match self {
            Self::Separate(separate) => Some(vec![&separate.query, &separate.key, &separate.value]),
            Self::Fused(fused) => (!cross).then(|| vec![&fused.query_key_value]),
        }
    }

    /// The size of the states that queries are computed from.
    pub(super) fn d_model(&self) -> usize {
        match self {
            Self::Separate(separate) => separate.query.weight.dims()[0],
            Self::Fused(fused) => fused.query_key_value.weight.dims()[0],
        }
    }

    /// The size of the states that keys and values are computed from.
    pub(super) fn source_size(&self) -> usize {
        match self {
            Self::Separate(separate) => separate.key.weight.dims()[0],
            Self::Fused(fused) => fused.query_key_value.weight.dims()[0],
        }
    }
}

/// `W` from `U(-b, b)`, `b = √(6 / (inputs + outputs))`, biases 0.
pub(crate) fn glorot(
    inputs: usize,
    outputs: usize,
    bias: bool,
    initializer: &mut Initializer,
) -> Linear {
    let bound = (6.0 / (inputs + outputs) as f32).sqrt();
    Linear {
        weight: initializer.uniform([inputs, outputs], bound),
        bias: bias.then(|| initializer.zeros([outputs])),
    }
}

/// `x W + b` for the columns `first..first + count` of `W` and `b`.
fn forward_columns(layer: &Linear, first: usize, count: usize, x: Tensor<3>) -> Tensor<3> {
    let weight = layer.weight.val().narrow(1, first, count);
    let bias = layer
        .bias
        .as_ref()
        .map(|bias| bias.val().narrow(0, first, count));
    linear(x, weight, bias)
}

/// `[batch, length, heads · size]` -> `[batch, heads, length, size]`.
fn split_heads(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, length, size] = x.dims();
    reshaped(x, [batch, length, heads, size / heads]).swap_dims(1, 2)
}

/// `[batch, heads, length, size]` -> `[batch, length, heads · size]`.
pub(super) fn join_heads(x: Tensor<4>) -> Tensor<3> {
    let [batch, heads, length, size] = x.dims();
    reshaped(x.swap_dims(1, 2), [batch, length, heads * size])
}
