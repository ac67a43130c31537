//! Luong's local attention (Luong, Pham, Manning 2015, section 3.2): which part of the source a
//! decoder step sees.
//!
//! - local-m: `p_t = t`
//! - local-p: `p_t = S · σ(v_pᵀ tanh(W_p h_t))`, and the weights inside the window are multiplied by
//!   `exp(-(s - p_t)² / 2σ²)`, `σ = D/2`, and not renormalised, so that `p_t` is trained
//!
//! Positions `s` count from 0; the window is `[p_t - D, p_t + D]`, cut at the sentence's ends, and the
//! softmax runs inside it. `S` is the true length of each sentence. If a sentence has padding before it, `p_t` counts from its
//! first word.
//!
//! Use local-m where source and target progress at the same rate (speech, transliteration), local-p where the order differs
//! but an alignment is sharp. Not for short sentences: a window of 21 positions covers them whole. Cost: local-m as a window;
//! local-p one prediction for each query, and the plain path.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::mask::Mask;
//!
//! assert_eq!(Mask::local_monotonic(1).picture(3, 4), "■■··\n■■■·\n·■■■\n");
//! let centres = Tensor::from_floats([[[[0.2], [2.9]]]], &Device::flex());
//! assert_eq!(Mask::local_predictive(centres, 1).picture(2, 4), "■■··\n··■■\n");
//! ```

use std::sync::Arc;

use burn::{
    module::{Module, Param},
    nn::Linear,
    tensor::{Int, Tensor, TensorData},
};
use regard_kernels::SequencePosition;
use serde::{Deserialize, Serialize};

use super::{Alignment, Grid, Mask, Row, Rule};
use crate::{
    attention::AttentionError,
    bridge::{apply, sigmoid},
    initialize::Initializer,
};

/// Which part of the source a decoder step may see.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Locality {
    /// The whole source.
    #[default]
    Global,
    /// local-m: the window `[t - D, t + D]` around the decoder step's own number.
    Monotonic {
        /// `D`, in source positions.
        half_width: usize,
    },
    /// local-p: the window `[p_t - D, p_t + D]` around a predicted position.
    Predictive {
        /// `D`, in source positions.
        half_width: usize,
    },
}

impl Locality {
    /// The locality of an attention with `predictor` and `mask`.
    pub(crate) fn of(predictor: &Option<PositionPredictor>, mask: &Mask) -> Self {
        if let Some(predictor) = predictor {
            let half_width = predictor.half_width();
            return Self::Predictive { half_width };
        }
        match monotonic(&mask.0) {
            Some(half_width) => Self::Monotonic { half_width },
            None => Self::Global,
        }
    }
}

/// `D` of local-m, where `rule` is local-m or joins it with other rules.
fn monotonic(rule: &Rule) -> Option<usize> {
    match rule {
        Rule::Local(Centres {
            half_width,
            predicted: None,
        }) => Some(*half_width),
        Rule::And(a, b) => match (monotonic(a), monotonic(b)) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        },
        _ => None,
    }
}

/// Predicts the centre of attention: `p = S · σ(v_pᵀ tanh(W_p h))`, with the window `D` around it.
#[derive(Module, Debug)]
pub struct PositionPredictor {
    /// `W_p`, `[query size, query size]`, no bias.
    pub hidden: Linear,
    /// `v_p`, `[query size]`.
    pub vector: Param<Tensor<1>>,
    #[module(skip)]
    half_width: usize,
}

impl PositionPredictor {
    /// A predictor for queries of size `query_size`; the window reaches `half_width` (`D`) to each side.
    pub fn new(query_size: usize, half_width: usize, initializer: &mut Initializer) -> Self {
        let bound = 1.0 / (query_size as f32).sqrt();
        Self {
            hidden: initializer.linear(query_size, query_size, false),
            vector: initializer.uniform([query_size], bound),
            half_width,
        }
    }

    /// `D`, in source positions.
    pub fn half_width(&self) -> usize {
        self.half_width
    }

    /// The centre `p` for each query `[batch, heads, queries, size]`, given the true length of each sentence
    /// (one for each batch row): `[batch, heads, queries, 1]`, counted from the first word of each sentence.
    pub fn forward(&self, query: Tensor<4>, lengths: &[usize]) -> Tensor<4> {
        let lengths: Vec<f32> = lengths.iter().map(|&length| length as f32).collect();
        let batch = lengths.len();
        let lengths = TensorData::new(lengths, [batch, 1, 1, 1]);
        let lengths = Tensor::<4>::from_data(lengths, &query.device()).cast(query.dtype());
        let hidden = apply(&self.hidden, query).tanh(); // [batch, heads, queries, size]
        let vector = self.vector.val().unsqueeze_dims::<4>(&[0, 1, 2]);
        sigmoid((hidden * vector).sum_dim(3)) * lengths
    }
}

/// The centres of the windows of local attention.
#[derive(Debug, Clone)]
pub(crate) struct Centres {
    pub(crate) half_width: usize,
    /// `p_t`, `[batch, heads, queries, 1]` row-major with those sizes; `None` for `p_t = t`.
    pub(crate) predicted: Option<(Arc<[f32]>, [usize; 4])>,
}

impl Mask {
    /// local-m: decoder step `t` (the query's number, [`crate::AttentionOptions::first_query`] onwards) sees keys at most
    /// `half_width` away from key `t`.
    pub fn local_monotonic(half_width: usize) -> Self {
        Self(Rule::Local(Centres {
            half_width,
            predicted: None,
        }))
    }

    /// local-p: each query sees keys at most `half_width` away from its predicted centre; `centres` is
    /// `[batch, heads, queries, 1]` (batch and heads may be 1), of the queries of the call; other shapes are refused where the
    /// mask is used. The mask has no gradient; the Gaussian factor
    /// of [`crate::Attention::with_predictor`] gives `p_t` one.
    pub fn local_predictive(centres: Tensor<4>, half_width: usize) -> Self {
        let shape = centres.dims();
        let values: Vec<f32> = centres.into_data().iter::<f32>().collect();
        Self(Rule::Local(Centres {
            half_width,
            predicted: Some((values.into(), shape)),
        }))
    }
}

impl Centres {
    pub(super) fn batch(&self) -> usize {
        self.predicted.as_ref().map_or(1, |(_, sizes)| sizes[0])
    }

    pub(super) fn heads(&self) -> usize {
        self.predicted.as_ref().map_or(1, |(_, sizes)| sizes[1])
    }

    pub(super) fn fill(&self, row: &Row, seen: &mut [bool]) {
        let Some((centres, [batch, heads, queries, _])) = &self.predicted else {
            let centre = row.position(Alignment::UpperLeft);
            let [half_width, one] = [self.half_width, 1].map(SequencePosition::saturating);
            return row.fill(centre - half_width, centre + half_width + one, seen);
        };
        let (b, h) = (row.batch.min(batch - 1), row.head.min(heads - 1));
        let centre = f64::from(centres[(b * heads + h) * queries + row.query]);
        for (key, seen) in (row.first_key..).zip(seen) {
            *seen = (key as f64 - centre).abs() <= self.half_width as f64;
        }
    }

    pub(super) fn check(&self, grid: &Grid) -> Result<(), AttentionError> {
        let Some((_, found)) = &self.predicted else {
            return Ok(());
        };
        let [batch, heads, queries, one] = *found;
        let fits = |found: usize, size: usize| found == 1 || found == size;
        let all = fits(batch, grid.batch) && fits(heads, grid.heads) && queries == grid.queries;
        if all && one == 1 {
            return Ok(());
        }
        let expected = [grid.batch, grid.heads, grid.queries, 1];
        Err(AttentionError::shape(
            "local centres",
            found,
            format!("{expected:?} (batch and heads may be 1)"),
            "predict one centre for each query that is read",
        ))
    }
}

/// The Gaussian factor `exp(-(s - p)² / 2σ²)`, `σ = D/2`, of local-p: `[batch, heads, queries, length]` of centres
/// `[batch, heads, queries, 1]`.
pub(crate) fn gaussian(centre: Tensor<4>, half_width: usize, length: usize) -> Tensor<4> {
    let deviation = deviation(half_width);
    let positions = Tensor::<1, Int>::arange(0..length as i64, &centre.device())
        .float()
        .cast(centre.dtype())
        .unsqueeze_dims::<4>(&[0, 1, 2]);
    ((positions - centre).powi_scalar(2) / (-2.0 * deviation * deviation)).exp()
}

/// `σ = D/2`. A window of width 0 has no deviation; the one used here is so small that the factor is 0 at any position but the
/// centre, and so large that the reciprocal of its square fits `f16`.
pub(crate) fn deviation(half_width: usize) -> f32 {
    (half_width as f32 / 2.0).max(1e-2)
}
