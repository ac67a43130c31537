//! Axial attention: self-attention along the columns of a map, then along its rows, so that after both
//! every position has seen every other (Ho et al. 2019; Wang et al. 2020).
//!
//! Along one axis, with positions `o` (query) and `p` (key) on the same line and heads of size `d`:
//!
//! `y_o = Σ_p softmax_p((q_oᵀ k_p + q_oᵀ r^q_{p-o} + k_pᵀ r^k_{p-o}) / √d) (v_p + r^v_{p-o})`
//!
//! The vectors `r` are learned, one for each distance, shared by the heads: they encode relative positions
//! (Wang et al. 2020, "position-sensitive"; they do not divide by `√d`, their code uses batch
//! normalisation instead). Without a [`span`](AxialAttentionConfig::span) there are none, and the order of
//! positions on a line does not matter.
//!
//! | tensor | shape |
//! |---|---|
//! | map, output | `[batch, channels, height, width]` |
//! | weights along the columns | `[batch, width, heads, height, height]` |
//! | weights along the rows | `[batch, height, heads, width, width]` |
//! | `W_q`, `W_k`, `W_v`, `W_o` of each axis | `[channels, channels]`, no bias |
//! | `r^q`, `r^k`, `r^v` of each axis | `[2 span - 1, d]`, the distance `p - o = 0` in the middle row |
//!
//! **Use it** where [`NonLocal`](super::NonLocal) is too large: dense prediction, high resolution. Add the
//! map itself around it (a residual sum), as every known network does. **Do not use it** where a single
//! layer must relate any two positions freely: information passes through the position at the corner
//! between them, where it is mixed with that of others.
//!
//! **Cost**: `8 C²` weights; with `H × W` positions, `H W (H + W) · 2 C` multiplications beside the
//! projections and `heads · H W (H + W)` numbers of memory (twice in training), where a full attention has
//! `(H W)²`; with positions, `3 d L²` more multiplications and numbers for lines of length `L`.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, vision::AxialAttentionConfig};
//!
//! let device = Device::flex();
//! let axial = AxialAttentionConfig::new(16)
//!     .with_heads(4)
//!     .with_span(Some(9))
//!     .init(&mut Initializer::new(1, &device))?;
//! let attended = axial.attend(Tensor::<4>::ones([2, 16, 9, 6], &device))?;
//! assert_eq!(attended.output.dims(), [2, 16, 9, 6]);
//! assert_eq!(attended.column_weights.dims(), [2, 6, 4, 9, 9]);
//! assert_eq!(attended.row_weights.dims(), [2, 9, 4, 6, 6]);
//! # Ok::<(), regard_nn::vision::VisionError>(())
//! ```
//!
//! Sources: J. Ho, N. Kalchbrenner, D. Weissenborn, T. Salimans, *Axial Attention in Multidimensional
//! Transformers*, arXiv:1912.12180; H. Wang, Y. Zhu, B. Green, H. Adam, A. Yuille, L.-C. Chen,
//! *Axial-DeepLab*, arXiv:2003.07853, equation 4 and the order height, width.

use burn::{
    config::Config,
    module::{Module, Param},
    nn::Linear,
    tensor::{Device, Int, Tensor, TensorData},
};

use super::{
    VisionError, check_map,
    error::{check_positive, check_precision, divide},
};
use crate::{
    bridge::{apply, matmul},
    initialize::Initializer,
    normalize::masked_softmax,
};

/// How an [`AxialAttention`] is built.
#[derive(Config, Debug, PartialEq, Eq)]
pub struct AxialAttentionConfig {
    /// Channels of the map.
    pub channels: usize,
    /// Heads; they divide the channels.
    #[config(default = 8)]
    pub heads: usize,
    /// The longest line (height or width) whose distances have learned vectors; `None` for no such
    /// vectors.
    pub span: Option<usize>,
}

impl AxialAttentionConfig {
    /// The module: matrices from `U(-1/√channels, 1/√channels)`, vectors of distances from `N(0, 1/d)`.
    ///
    /// # Errors
    /// A size of 0, or heads that do not divide the channels.
    pub fn init(&self, initializer: &mut Initializer) -> Result<AxialAttention, VisionError> {
        Ok(AxialAttention {
            height: self.axis(initializer)?,
            width: self.axis(initializer)?,
        })
    }

    fn axis(&self, initializer: &mut Initializer) -> Result<AxisAttention, VisionError> {
        let Self {
            channels,
            heads,
            span,
        } = *self;
        let head_size = divide(("channels", channels), ("heads", heads))?;
        if let Some(span) = span {
            check_positive("span", span)?;
        }
        let mut matrix = || initializer.linear(channels, channels, false);
        Ok(AxisAttention {
            query: matrix(),
            key: matrix(),
            value: matrix(),
            output: matrix(),
            distances: span.map(|span| {
                let deviation = 1.0 / (head_size as f32).sqrt();
                let mut table = || initializer.normal([2 * span - 1, head_size], deviation);
                DistanceVectors {
                    query: table(),
                    key: table(),
                    value: table(),
                }
            }),
            heads,
        })
    }
}

/// `r^q`, `r^k`, `r^v`: one vector for each distance `p - o` between key and query.
#[derive(Module, Debug)]
pub struct DistanceVectors {
    /// `r^q`, `[2 span - 1, head size]`.
    pub query: Param<Tensor<2>>,
    /// `r^k`, the same shape.
    pub key: Param<Tensor<2>>,
    /// `r^v`, the same shape.
    pub value: Param<Tensor<2>>,
}

impl DistanceVectors {
    fn span(&self) -> usize {
        self.query.dims()[0].div_ceil(2)
    }

    /// The vectors of `table` for all pairs on a line: `[length (o), length (p), head size]`.
    fn pairs(&self, table: &Param<Tensor<2>>, length: usize, device: &Device) -> Tensor<3> {
        let first = self.span() - 1;
        let rows: Vec<i32> = (0..length)
            .flat_map(|o| (0..length).map(move |p| (first + p - o) as i32))
            .collect();
        let rows = TensorData::new(rows, [length * length]);
        let rows = Tensor::<1, Int>::from_data(rows, device);
        let head_size = table.dims()[1];
        table
            .val()
            .select(0, rows)
            .reshape([length, length, head_size])
    }
}

/// Self-attention along one axis; the lines along it are separate sequences.
#[derive(Module, Debug)]
pub struct AxisAttention {
    /// `W_q`.
    pub query: Linear,
    /// `W_k`.
    pub key: Linear,
    /// `W_v`.
    pub value: Linear,
    /// `W_o`, over the heads side by side.
    pub output: Linear,
    /// `r`, if distances are used.
    pub distances: Option<DistanceVectors>,
    #[module(skip)]
    heads: usize,
}

impl AxisAttention {
    /// `lines [lines, length, channels]` in the same shape, and weights
    /// `[lines · heads, length, length]`.
    fn attend(&self, lines: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        let [count, length, channels] = lines.dims();
        let head_size = channels / self.heads;
        let sequences = count * self.heads;
        let device = lines.device();
        let split = |projected: Tensor<3>| {
            projected
                .reshape([count, length, self.heads, head_size])
                .swap_dims(1, 2)
                .reshape([sequences, length, head_size])
        };
        let query = split(apply(&self.query, lines.clone()));
        let key = split(apply(&self.key, lines.clone()));
        let value = split(apply(&self.value, lines));

        let mut scores = matmul(query.clone(), key.clone().swap_dims(1, 2)); // [sequences, o, p]
        if let Some(distances) = &self.distances {
            let of_query = distances.pairs(&distances.query, length, &device); // [o, p, size]
            let of_key = distances.pairs(&distances.key, length, &device);
            let by_query = matmul(query.swap_dims(0, 1), of_query.swap_dims(1, 2)); // [o, sequences, p]
            let by_key = matmul(key.swap_dims(0, 1), of_key.permute([1, 2, 0])); // [p, sequences, o]
            scores = scores + by_query.swap_dims(0, 1) + by_key.permute([1, 2, 0]);
        }
        let weights = masked_softmax(scores * (head_size as f64).sqrt().recip(), None);
        let mut read = matmul(weights.clone(), value); // [sequences, o, size]
        if let Some(distances) = &self.distances {
            let of_value = distances.pairs(&distances.value, length, &device);
            let by_value = matmul(weights.clone().swap_dims(0, 1), of_value); // [o, sequences, size]
            read = read + by_value.swap_dims(0, 1);
        }
        let read = read
            .reshape([count, self.heads, length, head_size])
            .swap_dims(1, 2)
            .reshape([count, length, channels]);
        (apply(&self.output, read), weights)
    }

    fn check_length(&self, field: &'static str, found: usize) -> Result<(), VisionError> {
        match &self.distances {
            Some(distances) if found > distances.span() => Err(VisionError::TooLong {
                field,
                found,
                span: distances.span(),
            }),
            _ => Ok(()),
        }
    }
}

/// What [`AxialAttention`] returns.
#[derive(Debug, Clone)]
pub struct AxialAttended {
    /// `[batch, channels, height, width]`.
    pub output: Tensor<4>,
    /// The weights of each position over its column: `[batch, width, heads, height, height]`. Rows sum to
    /// 1.
    pub column_weights: Tensor<5>,
    /// The weights of each position over its row: `[batch, height, heads, width, width]`. Rows sum to 1.
    pub row_weights: Tensor<5>,
}

/// Attention along the height, then along the width (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct AxialAttention {
    /// Along the columns.
    pub height: AxisAttention,
    /// Along the rows.
    pub width: AxisAttention,
}

impl AxialAttention {
    /// `map [batch, channels, height, width]` in the same shape.
    ///
    /// # Errors
    /// A map of other channels or another precision, with a size of 0, or larger than the span.
    pub fn forward(&self, map: Tensor<4>) -> Result<Tensor<4>, VisionError> {
        Ok(self.attend(map)?.output)
    }

    /// The same, and the weights along columns and rows.
    ///
    /// # Errors
    /// A map of other channels or another precision, with a size of 0, or larger than the span.
    pub fn attend(&self, map: Tensor<4>) -> Result<AxialAttended, VisionError> {
        let [batch, channels, height, width] = map.dims();
        let [expected, _] = self.height.query.weight.dims();
        check_map("map", map.dims(), expected)?;
        check_precision("map", map.dtype(), self)?;
        self.height.check_length("height", height)?;
        self.width.check_length("width", width)?;
        let heads = self.height.heads;

        let columns = map
            .permute([0, 3, 2, 1]) // [batch, width, height, channels]
            .reshape([batch * width, height, channels]);
        let (columns, column_weights) = self.height.attend(columns);
        let rows = columns
            .reshape([batch, width, height, channels])
            .swap_dims(1, 2)
            .reshape([batch * height, width, channels]);
        let (rows, row_weights) = self.width.attend(rows);
        Ok(AxialAttended {
            output: rows
                .reshape([batch, height, width, channels])
                .permute([0, 3, 1, 2]),
            column_weights: column_weights.reshape([batch, width, heads, height, height]),
            row_weights: row_weights.reshape([batch, height, heads, width, width]),
        })
    }
}
