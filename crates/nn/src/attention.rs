//! Attention: score the query against the keys, mask what may not be seen, normalise into weights,
//! read the values.
//!
//! `context = Σ_i α_i v_i`, `α = normalize(mask(score(q, k_i)))`
//!
//! The annotations of a source are prepared once ([`Attention::memory`]) and read any number of times.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{Attention, initialize::Initializer, mask::{Keep, Locality}, score::{Dot, Score}};
//!
//! let device = Device::flex();
//! let mut initializer = Initializer::new(1, &device);
//! let attention = Attention::new(Score::Dot(Dot), Locality::Global, 3, &mut initializer);
//! // Formula sheet, worked numbers: the second key wins, so the context is the second key.
//! let keys = Tensor::<3>::from_floats([[[0., 1., 1.], [5., 0., 1.], [1., 1., 0.], [0., 5., 1.]]], &device);
//! let memory = attention.memory(keys, Keep::from_lengths(&[4], 4, &device));
//! let query = Tensor::<3>::from_floats([[[10., 5., 10.]]], &device);
//! let attended = attention.forward(query, &memory, 0);
//! let context = attended.context.into_data().into_vec::<f32>().unwrap();
//! assert!((context[0] - 5.0).abs() < 1e-5 && context[1].abs() < 1e-5 && (context[2] - 1.0).abs() < 1e-5);
//! ```

use burn::{
    module::Module,
    tensor::{Bool, Int, Tensor, TensorData},
};

use crate::{
    bridge,
    initialize::Initializer,
    mask::{Keep, Locality, PositionPredictor, local},
    normalize::masked_softmax,
    score::Score,
};

/// An attention mechanism: a score, and which part of the source a step may see.
#[derive(Module, Debug)]
pub struct Attention {
    /// How well a query and a key match.
    pub score: Score,
    /// The centre of the window, for local-p.
    pub predictor: Option<PositionPredictor>,
    #[module(skip)]
    locality: Locality,
}

/// A source prepared for attention.
#[derive(Debug, Clone)]
pub struct Memory {
    /// What queries are scored against: `[batch, keys, key size]`.
    pub keys: Tensor<3>,
    /// What is read: `[batch, keys, value size]`.
    pub values: Tensor<3>,
    /// Which positions are real.
    pub keep: Keep,
}

/// What attention returns.
#[derive(Debug, Clone)]
pub struct Attended {
    /// The weighted sum of the values: `[batch, queries, value size]`.
    pub context: Tensor<3>,
    /// One row per query: `[batch, queries, keys]`. Rows sum to 1, except under local-p, whose Gaussian
    /// is not renormalised, and where nothing may be seen (0).
    pub weights: Tensor<3>,
}

impl Memory {
    /// The sources at `rows`, in that order (rows may repeat).
    pub fn select(&self, rows: &[usize]) -> Self {
        let index: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        let index: Tensor<1, Int> =
            Tensor::from_data(TensorData::new(index, [rows.len()]), &self.keys.device());
        Self {
            keys: self.keys.clone().select(0, index.clone()),
            values: self.values.clone().select(0, index),
            keep: self.keep.select(rows),
        }
    }
}

impl Attention {
    /// Attention with `score` over `locality`, for queries of `query_size`.
    pub fn new(
        score: Score,
        locality: Locality,
        query_size: usize,
        initializer: &mut Initializer,
    ) -> Self {
        let predictor = matches!(locality, Locality::Predictive { .. })
            .then(|| PositionPredictor::new(query_size, initializer));
        Self {
            score,
            predictor,
            locality,
        }
    }

    /// Which part of the source a step may see.
    pub fn locality(&self) -> Locality {
        self.locality
    }

    /// Prepares annotations `[batch, keys, annotation size]`: zeros the padding and computes the keys.
    pub fn memory(&self, annotations: Tensor<3>, keep: Keep) -> Memory {
        let values = keep.zero_padding(annotations);
        Memory {
            keys: self.score.keys(values.clone()),
            values,
            keep,
        }
    }

    /// Reads `memory` with `query [batch, queries, query size]`; the queries are decoder steps
    /// `first_step..` (local-m needs to know). Runs fused where a kernel serves.
    pub fn forward(&self, query: Tensor<3>, memory: &Memory, first_step: usize) -> Attended {
        match (&self.score, self.locality) {
            (Score::Additive(score), Locality::Global) => {
                let (context, weights) = bridge::additive_attention(
                    score.query.forward(query),
                    memory.keys.clone(),
                    score.vector.val(),
                    memory.values.clone(),
                    (!memory.keep.is_full()).then(|| memory.keep.tensor()),
                    None,
                );
                Attended { context, weights }
            }
            _ => self.forward_plain(query, memory, first_step),
        }
    }

    /// The same by plain tensor operations, on every device: the definition that the fused form is
    /// tested against.
    pub fn forward_plain(&self, query: Tensor<3>, memory: &Memory, first_step: usize) -> Attended {
        let [_, queries, _] = query.dims();
        let length = memory.keep.length();
        let device = query.device();
        let mut seen = self.seen(memory);
        let mut gaussian = None;
        match (self.locality, &self.predictor) {
            (Locality::Monotonic { half_width }, _) => {
                let window =
                    local::monotonic_window(first_step, queries, half_width, length, &device);
                seen = Some(intersect(seen, window));
            }
            (Locality::Predictive { half_width }, Some(predictor)) => {
                let centre = predictor.forward(query.clone(), &memory.keep);
                let (window, factor) = local::predictive_window(centre, half_width, length);
                seen = Some(intersect(seen, window));
                gaussian = Some(factor);
            }
            _ => {}
        }
        let scores = self.score.forward(query, memory.keys.clone());
        let mut weights = masked_softmax(scores, seen);
        if let Some(factor) = gaussian {
            weights = weights * factor;
        }
        Attended {
            context: weights.clone().matmul(memory.values.clone()),
            weights,
        }
    }

    /// Padding and the score's reach: `[batch, 1, keys]`, or nothing when every key may be seen.
    fn seen(&self, memory: &Memory) -> Option<Tensor<3, Bool>> {
        let length = memory.keep.length();
        let padded = (!memory.keep.is_full()).then(|| memory.keep.tensor().unsqueeze_dim::<3>(1));
        match self.score.reach() {
            Some(reach) if reach < length => {
                let positions = Tensor::<1, Int>::arange(0..length as i64, &memory.keys.device());
                let reachable = positions
                    .lower_elem(reach as i64)
                    .unsqueeze_dims::<3>(&[0, 1]);
                Some(intersect(padded, reachable))
            }
            _ => padded,
        }
    }
}

/// Where both may be seen; the operands broadcast.
fn intersect(a: Option<Tensor<3, Bool>>, b: Tensor<3, Bool>) -> Tensor<3, Bool> {
    let Some(a) = a else { return b };
    let [a_batch, a_queries, keys] = a.dims();
    let [b_batch, b_queries, _] = b.dims();
    let shape = [a_batch.max(b_batch), a_queries.max(b_queries), keys];
    a.expand(shape).bool_and(b.expand(shape))
}
