//! The attention of one decoder step for a block of rows, one query each.
//!
//! ```text
//! e_j = q · key_j  or  vᵀ tanh(q + key_j)      α = softmax of e over the kept sources in the window      c = Σ_j α_j value_j
//! back:  dα_j = dc · value_j      de = α ∘ (dα - Σ_j α_j dα_j)      dq, and of additive keys the sums over steps
//!
//! of a row:   kept positions | 0 | 2 | 3 |      e, α of these alone, side by side, then spread into α [sources]
//! ```
//! The gradients of values (`Σ_t α_t ⊗ dc_t`), and of keys under a dot product, are sums over steps and taken once at
//! the end, source by source: a row of the result stays in registers over all steps.
//!
//! The additive row arithmetic is that of [`crate::additive`]; here it runs inside a task that
//! already owns its rows, over source positions listed, and exponentials of the keys taken, once for
//! the whole sequence.

use super::rows::Strided;
use crate::additive::{Keys, Room, softmax, weighted_sum};
use crate::simd::{Kernel, Simd, dot};

/// How a query is scored against a key.
#[derive(Clone, Copy)]
pub(super) enum Scoring<'a> {
    /// `q · key`
    Dot,
    /// `v · tanh(q + key)`, from the keys as the block's task has read them.
    Additive(&'a Keys),
}

impl<'a> Scoring<'a> {
    /// Additive if keys have been read.
    pub(super) fn of(read: Option<&'a Keys>) -> Self {
        read.map_or(Self::Dot, Self::Additive)
    }
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

    /// Every block of a batch, `rows` rows each.
    pub(super) fn blocks(
        keep: Option<&[bool]>,
        batch: usize,
        rows: usize,
        sources: usize,
    ) -> Vec<Self> {
        (0..batch)
            .step_by(rows)
            .map(|first| Self::new(keep, first, rows.min(batch - first), sources))
            .collect()
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

/// Makes [`Scoring::Additive`] of the keys of a block.
pub(super) struct ReadKeys<'a> {
    /// The score vector.
    pub(super) v: &'a [f32],
    /// `[rows, sources, attention]`
    pub(super) keys: &'a [f32],
    pub(super) kept: &'a Kept,
    pub(super) sources: usize,
}

impl Kernel for ReadKeys<'_> {
    type Output = Keys;

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> Keys {
        let rows = self.kept.rows();
        let width = self.sources * self.v.len();
        let mut keys = Keys::new(s, self.v, rows, self.sources);
        for row in 0..rows {
            let from = &self.keys[row * width..][..width];
            keys.read(s, row, from, self.kept.of(row, None));
        }
        keys
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
        let mut room = Room::new(1, attention);
        for row in 0..kept.rows() {
            let kept = kept.of(row, windows);
            let query = &self.queries[row * attention..][..attention];
            let keys = self.from.keys_of(row);
            let scores = &mut self.scores[..kept.len()];
            match scoring {
                Scoring::Additive(read) => read
                    .beside(s, row, query, keys, kept, &mut room)
                    .scores(s, 1, scores),
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
            weighted_sum(s, scores, self.from.values_of(row), kept, false, context);
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
        /// Each row's [`Keys::sums`], added to.
        sums: &'a mut [f32],
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
        let mut room = Room::new(1, attention);
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
                (KeyGradient::Additive { sums, v }, Scoring::Additive(read)) => {
                    let query = self.queries.row(row, attention);
                    let sums = &mut sums[row * read.sums()..][..read.sums()];
                    let d_v = &mut v[row * attention..][..attention];
                    read.beside(s, row, query, keys, kept, &mut room)
                        .sweep(s, d_scores, d_query, sums, d_v);
                }
                (KeyGradient::Dot { scores }, Scoring::Dot) => {
                    weighted_sum(s, d_scores, keys, kept, false, d_query);
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

/// From the sums of [`AttendBack`] over all steps to the gradient of additive keys.
pub(super) struct WriteKeyGradient<'a> {
    pub(super) read: &'a Keys,
    pub(super) kept: &'a Kept,
    /// `[rows, sums]`
    pub(super) sums: &'a [f32],
    /// `[rows, sources, attention]`, overwritten.
    pub(super) d_keys: &'a mut [f32],
}

impl Kernel for WriteKeyGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let rows = self.kept.rows();
        let (width, of_row) = (self.d_keys.len() / rows.max(1), self.read.sums());
        for row in 0..rows {
            let sums = &self.sums[row * of_row..][..of_row];
            let d_keys = &mut self.d_keys[row * width..][..width];
            self.read
                .write_gradient(s, sums, self.kept.of(row, None), false, d_keys);
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
                weighted_sum(s, &of_source, &rows, &steps_in_order, false, out);
            }
        }
    }
}
