//! The attention of one decoder step for a block of rows, one query each.
//!
//! The additive row arithmetic is that of [`crate::additive`]; here it runs inside a task that
//! already owns its rows, over source positions listed once for the whole sequence.

use super::rows::Strided;
use crate::additive::{Sweep, score_keys, softmax, weighted_sum};
use crate::simd::{Kernel, Simd, dot};

/// How a query is scored against a key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scoring<'a> {
    /// `q · key`
    Dot,
    /// `v · tanh(q + key)`
    Additive(&'a [f32]),
}

/// Which source positions each row of a block may attend to.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    /// For each row, in order.
    positions: Vec<Vec<usize>>,
}

impl Kept {
    /// The rows from `first` on, of `keep [batch, sources]`.
    pub(super) fn new(keep: Option<&[bool]>, first: usize, rows: usize, sources: usize) -> Self {
        let of_row = |row: usize| match keep {
            None => (0..sources).collect(),
            Some(keep) => (0..sources)
                .filter(|&source| keep[row * sources + source])
                .collect(),
        };
        Self {
            positions: (first..first + rows).map(of_row).collect(),
        }
    }

    /// Rows of the block.
    pub(super) fn rows(&self) -> usize {
        self.positions.len()
    }

    /// The positions of a row that lie in its window, if there are windows (`[start, end)` of each
    /// row).
    #[inline(always)]
    fn of(&self, row: usize, windows: Option<&[[usize; 2]]>) -> &[usize] {
        let positions = &self.positions[row];
        match windows {
            None => positions,
            Some(windows) => {
                let [start, end] = windows[row];
                let from = positions.partition_point(|&source| source < start);
                let to = positions.partition_point(|&source| source < end);
                &positions[from..to.max(from)]
            }
        }
    }
}

/// What one step of attention reads.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub(super) scoring: Scoring<'a>,
    /// `[rows, sources, attention]`
    pub(super) keys: &'a [f32],
    /// `[rows, sources, value]`
    pub(super) values: &'a [f32],
    pub(super) kept: &'a Kept,
    /// Of this step.
    pub(super) windows: Option<&'a [[usize; 2]]>,
    pub(super) sources: usize,
    /// Width of a key and a query.
    pub(super) attention: usize,
    pub(super) value: usize,
}

impl Sources<'_> {
    #[inline(always)]
    fn keys_of(&self, row: usize) -> &[f32] {
        &self.keys[row * self.sources * self.attention..][..self.sources * self.attention]
    }

    #[inline(always)]
    fn values_of(&self, row: usize) -> &[f32] {
        &self.values[row * self.sources * self.value..][..self.sources * self.value]
    }
}

/// Scores, softmax and context of each row.
pub(super) struct Attend<'a> {
    pub(super) from: Sources<'a>,
    /// `[rows, attention]`
    pub(super) queries: &'a [f32],
    /// Room for the scores of one row.
    pub(super) scores: &'a mut [f32],
    /// `[rows, sources]`
    pub(super) weights: &'a mut [f32],
    /// `[rows, value]`
    pub(super) context: &'a mut [f32],
}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Sources {
            scoring,
            kept,
            windows,
            sources,
            attention,
            value,
            ..
        } = self.from;
        for row in 0..kept.rows() {
            let kept = kept.of(row, windows);
            let query = &self.queries[row * attention..][..attention];
            let keys = self.from.keys_of(row);
            let scores = &mut self.scores[..kept.len()];
            match scoring {
                Scoring::Additive(v) => score_keys(s, query, v, keys, kept, scores),
                Scoring::Dot => {
                    for (score, &source) in scores.iter_mut().zip(kept) {
                        *score = dot(s, query, &keys[source * attention..][..attention]);
                    }
                }
            }
            softmax(s, scores);
            let weights = &mut self.weights[row * sources..][..sources];
            weights.fill(0.0);
            for (&weight, &source) in scores.iter().zip(kept) {
                weights[source] = weight;
            }
            let context = &mut self.context[row * value..][..value];
            weighted_sum(s, scores, self.from.values_of(row), kept, context);
        }
    }
}

/// From the gradient of each row's context to those of its query and, if the score is additive, of
/// its keys and the score vector. What is a product over all steps is not taken here: the gradient
/// of the values ([`OuterSums`]), and of the keys if the score is a dot product.
pub(super) struct AttendBack<'a> {
    pub(super) from: Sources<'a>,
    pub(super) queries: Strided<'a>,
    /// `[rows, sources]`
    pub(super) weights: &'a [f32],
    /// `[rows, value]`
    pub(super) d_context: &'a [f32],
    /// Room for the scores of one row.
    pub(super) d_scores: &'a mut [f32],
    /// `[rows, attention]`, overwritten.
    pub(super) d_queries: &'a mut [f32],
    pub(super) d_keys: KeyGradient<'a>,
}

/// What [`AttendBack`] leaves for the gradient of the keys.
pub(super) enum KeyGradient<'a> {
    Additive {
        /// `[rows, sources, attention]`, added to.
        keys: &'a mut [f32],
        /// `[rows, attention]`: each row's part of the score vector's gradient, added to.
        v: &'a mut [f32],
    },
    Dot {
        /// `[rows, sources]`: the gradient of the scores, overwritten.
        scores: &'a mut [f32],
    },
}

impl Kernel for AttendBack<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(mut self, s: S) {
        let Sources {
            scoring,
            kept,
            windows,
            sources,
            attention,
            value,
            ..
        } = self.from;
        for row in 0..kept.rows() {
            let kept = kept.of(row, windows);
            let (keys, values) = (self.from.keys_of(row), self.from.values_of(row));
            let weights = &self.weights[row * sources..][..sources];
            let d_context = &self.d_context[row * value..][..value];
            let d_scores = &mut self.d_scores[..kept.len()];
            let mut expected = 0.0;
            for (d_score, &source) in d_scores.iter_mut().zip(kept) {
                *d_score = dot(s, d_context, &values[source * value..][..value]);
                expected += weights[source] * *d_score;
            }
            for (d_score, &source) in d_scores.iter_mut().zip(kept) {
                *d_score = weights[source] * (*d_score - expected);
            }
            let d_query = &mut self.d_queries[row * attention..][..attention];
            match (&mut self.d_keys, scoring) {
                (
                    KeyGradient::Additive {
                        keys: d_keys,
                        v: d_v,
                    },
                    Scoring::Additive(v),
                ) => {
                    let query = self.queries.row(row, attention);
                    let d_keys = &mut d_keys[row * sources * attention..][..sources * attention];
                    let d_v = &mut d_v[row * attention..][..attention];
                    let sweep = Sweep {
                        query,
                        v,
                        key: keys,
                        kept,
                        d_scores,
                    };
                    sweep.run::<S, true>(s, d_query, d_keys, d_v);
                }
                (KeyGradient::Dot { scores }, Scoring::Dot) => {
                    weighted_sum(s, d_scores, keys, kept, d_query);
                    let scores = &mut scores[row * sources..][..sources];
                    scores.fill(0.0);
                    for (&d_score, &source) in d_scores.iter().zip(kept) {
                        scores[source] = d_score;
                    }
                }
                _ => unreachable!("the key gradient is that of the scoring"),
            }
        }
    }
}

/// `out[row, j] = Σ_t left[t, row, j] right[t, row]` for the rows from `first` on: the gradient of
/// the values from weights and context gradients, and of dot-product keys from score gradients and
/// queries.
pub(super) struct OuterSums<'a> {
    pub(super) first: usize,
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) sources: usize,
    /// `[steps, batch, sources]`
    pub(super) left: &'a [f32],
    /// `[steps, batch, ..]`, rows `stride` apart, the first `width` numbers of each.
    pub(super) right: &'a [f32],
    pub(super) stride: usize,
    pub(super) width: usize,
    pub(super) kept: &'a Kept,
    /// `[rows, sources, width]`, overwritten.
    pub(super) out: &'a mut [f32],
}

impl Kernel for OuterSums<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Self {
            first,
            steps,
            batch,
            sources,
            width,
            ..
        } = self;
        let mut of_source = vec![0.0; steps];
        // `weighted_sum` takes rows of one width without gaps, so rows with gaps are gathered.
        let mut rows = vec![0.0; steps * width];
        let steps_in_order: Vec<usize> = (0..steps).collect();
        self.out.fill(0.0);
        for row in 0..self.kept.rows() {
            let out = &mut self.out[row * sources * width..][..sources * width];
            for step in 0..steps {
                let from = (step * batch + first + row) * self.stride;
                rows[step * width..][..width].copy_from_slice(&self.right[from..][..width]);
            }
            for &source in self.kept.of(row, None) {
                for (step, to) in of_source.iter_mut().enumerate() {
                    *to = self.left[(step * batch + first + row) * sources + source];
                }
                let out = &mut out[source * width..][..width];
                weighted_sum(s, &of_source, &rows, &steps_in_order, out);
            }
        }
    }
}
