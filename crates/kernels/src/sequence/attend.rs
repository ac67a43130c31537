//! The attention of one decoder step for a block of rows, one query each.
//!
//! ```text
//! e_j = q · key_j  or  vᵀ tanh(q + key_j)      α = softmax of e over the kept sources in the window      c = Σ_j α_j value_j
//! back:  dα_j = dc · value_j      de = α ∘ (dα - Σ_j α_j dα_j)      dq, and of additive keys the sums over steps
//!
//! of a row:   kept positions | 0 | 2 | 3 |      e, α of these alone, side by side, then spread into α [sources]
//! ```
//! The gradients of values (`Σ_t α_t ⊗ dc_t`), and of keys under a dot product, are sums over steps. They are computed once
//! at the end, source by source: a row of the result stays in registers over all steps.
//!
//! The additive row arithmetic is that of [`crate::additive`]; here it runs inside a task that
//! already owns its rows. The kept source positions are listed, and the exponentials of the keys computed, once for the whole
//! sequence.

use crate::additive::{Keys, Room, softmax, weighted_sum};
use crate::rows::{Place, Strided};
use crate::simd::{Kernel, Level, Simd, dot, run};

/// Which source positions each row of a block may attend to.
struct Kept {
    /// For each row, its positions in order.
    positions: Vec<Vec<usize>>,
}

impl Kept {
    /// Reads the rows from `first` on, of `keep [batch, sources]`.
    fn new(keep: Option<&[bool]>, first: usize, rows: usize, sources: usize) -> Self {
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

/// What the rows of a block attend to over a whole sequence.
pub(super) struct Source<'a> {
    /// What the whole batch attends to.
    of: Sources<'a>,
    /// `[rows, sources, attention]`
    keys: &'a [f32],
    /// `[rows, sources, value]`
    values: &'a [f32],
    kept: Kept,
    /// Additive keys, as exponentials; `None` for a dot product.
    read: Option<Keys>,
}

/// What a batch attends to.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    /// The score vector of `v · tanh(q + key)`; `None` for `q · key`.
    pub(super) score: Option<&'a [f32]>,
    /// `[batch, sources, attention]`
    pub(super) keys: &'a [f32],
    /// `[batch, sources, value]`
    pub(super) values: &'a [f32],
    /// `[batch, sources]`
    pub(super) keep: Option<&'a [bool]>,
    /// `[steps, batch]`: `[start, end)` of what a step may attend to.
    pub(super) windows: Option<&'a [[usize; 2]]>,
    pub(super) sources: usize,
    /// Width of a key and a query.
    pub(super) attention: usize,
    pub(super) value: usize,
}

impl<'a> Sources<'a> {
    /// The part of it for the rows at `place`.
    pub(super) fn of(self, level: Level, place: Place) -> Source<'a> {
        let place = place.at(0);
        let kept = Kept::new(self.keep, place.first, place.rows, self.sources);
        let keys = place.of(self.keys, self.sources * self.attention);
        let read = self.score.map(|v| {
            let (kept, sources) = (&kept, self.sources);
            run(
                level,
                ReadKeys {
                    v,
                    keys,
                    kept,
                    sources,
                },
            )
        });
        Source {
            of: self,
            keys,
            values: place.of(self.values, self.sources * self.value),
            kept,
            read,
        }
    }
}

impl Source<'_> {
    /// How many numbers [`AttendBack`] sums up for the gradient of additive keys.
    pub(super) fn sums(&self) -> usize {
        let of_row = self.read.as_ref().map_or(0, Keys::sums);
        self.kept.positions.len() * of_row
    }

    /// Each row with its position, its kept sources at the step of `place`, its keys and its values.
    #[inline(always)]
    fn rows(&self, place: Place) -> impl Iterator<Item = (usize, &[usize], &[f32], &[f32])> {
        let Sources {
            sources,
            attention,
            value,
            windows,
            ..
        } = self.of;
        let windows = windows.map(|all| place.of(all, 1));
        (0..place.rows).map(move |row| {
            let keys = &self.keys[row * sources * attention..][..sources * attention];
            let values = &self.values[row * sources * value..][..sources * value];
            (row, self.kept.of(row, windows), keys, values)
        })
    }
}

/// The keys of a block, ready to be scored at every step.
struct ReadKeys<'a> {
    v: &'a [f32],
    /// `[rows, sources, attention]`
    keys: &'a [f32],
    kept: &'a Kept,
    sources: usize,
}

impl Kernel for ReadKeys<'_> {
    type Output = Keys;

    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> Keys {
        let rows = self.kept.positions.len();
        let width = self.sources * self.v.len();
        let mut keys = Keys::new(s, self.v, rows, self.sources);
        for row in 0..rows {
            let from = &self.keys[row * width..][..width];
            keys.read(s, row, from, self.kept.of(row, None));
        }
        keys
    }
}

/// Scores, softmax and context of each row at one step.
pub(super) struct Attend<'a> {
    pub(super) from: &'a Source<'a>,
    pub(super) place: Place,
    /// `[rows, attention]`
    pub(super) queries: Strided<'a>,
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
            sources,
            attention,
            value,
            ..
        } = self.from.of;
        let mut room = Room::new(1, attention);
        let mut scores = vec![0.0; sources];
        for (row, kept, keys, values) in self.from.rows(self.place) {
            let query = self.queries.row(row, attention);
            let scores = &mut scores[..kept.len()];
            match &self.from.read {
                Some(read) => read
                    .beside(s, row, query, keys, kept, &mut room)
                    .scores(s, 1, scores),
                None => {
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
            weighted_sum(s, scores, values, kept, false, context);
        }
    }
}

/// From the gradient of each row's context, computes those of its query, of its scores and, if the score is additive, of its
/// keys and the score vector. The gradients that are products over all steps are not computed here: that of the values, and
/// that of the keys if the score is a dot product ([`OuterSums`]).
pub(super) struct AttendBack<'a> {
    pub(super) from: &'a Source<'a>,
    pub(super) place: Place,
    pub(super) queries: Strided<'a>,
    /// `[rows, sources]`
    pub(super) weights: &'a [f32],
    /// `[rows, value]`
    pub(super) d_context: &'a [f32],
    /// `[rows, attention]`, overwritten.
    pub(super) d_queries: &'a mut [f32],
    /// `[rows, sources]` for a dot product, overwritten; else empty.
    pub(super) d_scores: &'a mut [f32],
    /// For an additive score, each row's [`Keys::sums`], added to.
    pub(super) sums: &'a mut [f32],
    /// `[rows, attention]` for an additive score: each row's part of the score vector's gradient, added to.
    pub(super) d_score: &'a mut [f32],
}

impl Kernel for AttendBack<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Sources {
            sources,
            attention,
            value,
            ..
        } = self.from.of;
        let mut room = Room::new(1, attention);
        let mut d_of_kept = vec![0.0; sources];
        for (row, kept, keys, values) in self.from.rows(self.place) {
            let weights = &self.weights[row * sources..][..sources];
            let d_context = &self.d_context[row * value..][..value];
            let d_kept = &mut d_of_kept[..kept.len()];
            let mut expected = 0.0;
            for (d_score, &source) in d_kept.iter_mut().zip(kept) {
                *d_score = dot(s, d_context, &values[source * value..][..value]);
                expected += weights[source] * *d_score;
            }
            for (d_score, &source) in d_kept.iter_mut().zip(kept) {
                *d_score = weights[source] * (*d_score - expected);
            }
            let d_query = &mut self.d_queries[row * attention..][..attention];
            match &self.from.read {
                Some(read) => {
                    let query = self.queries.row(row, attention);
                    let sums = &mut self.sums[row * read.sums()..][..read.sums()];
                    let d_v = &mut self.d_score[row * attention..][..attention];
                    read.beside(s, row, query, keys, kept, &mut room)
                        .sweep(s, d_kept, d_query, sums, d_v);
                }
                None => {
                    weighted_sum(s, d_kept, keys, kept, false, d_query);
                    let d_scores = &mut self.d_scores[row * sources..][..sources];
                    d_scores.fill(0.0);
                    for (&d_score, &source) in d_kept.iter().zip(kept) {
                        d_scores[source] = d_score;
                    }
                }
            }
        }
    }
}

/// Turns the sums of [`AttendBack`] over all steps into the gradient of additive keys.
pub(super) struct WriteKeyGradient<'a> {
    pub(super) from: &'a Source<'a>,
    /// `[rows, sums]`
    pub(super) sums: &'a [f32],
    /// `[rows, sources, attention]`, overwritten.
    pub(super) d_keys: &'a mut [f32],
}

impl Kernel for WriteKeyGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Some(read) = &self.from.read else {
            return;
        };
        let width = self.from.of.sources * self.from.of.attention;
        for row in 0..self.from.kept.positions.len() {
            let sums = &self.sums[row * read.sums()..][..read.sums()];
            let d_keys = &mut self.d_keys[row * width..][..width];
            let kept = self.from.kept.of(row, None);
            read.write_gradient(s, sums, kept, false, d_keys);
        }
    }
}

/// `out[row, j] = Σ_t left[t, row, j] right[t, row]` for the rows of a block: the gradient of the values from weights and
/// context gradients, and of dot-product keys from score gradients and queries. `left` and `right` give a block's rows at a
/// step, `[rows, sources]` and `[rows, width]`.
pub(super) struct OuterSums<'a, L, R> {
    pub(super) from: &'a Source<'a>,
    pub(super) steps: usize,
    pub(super) left: L,
    pub(super) right: R,
    pub(super) width: usize,
    /// `[rows, sources, width]`, overwritten.
    pub(super) out: &'a mut [f32],
}

impl<'b, L: Fn(usize) -> &'b [f32], R: Fn(usize) -> Strided<'b>> Kernel for OuterSums<'_, L, R> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let (steps, width, sources) = (self.steps, self.width, self.from.of.sources);
        let mut of_source = vec![0.0; steps];
        // `weighted_sum` takes rows of one width without gaps, so rows with gaps are gathered.
        let mut rows = vec![0.0; steps * width];
        let steps_in_order: Vec<usize> = (0..steps).collect();
        self.out.fill(0.0);
        for (row, kept) in self.from.kept.positions.iter().enumerate() {
            let out = &mut self.out[row * sources * width..][..sources * width];
            for step in 0..steps {
                let from = (self.right)(step).row(row, width);
                rows[step * width..][..width].copy_from_slice(from);
            }
            for &source in kept {
                for (step, to) in of_source.iter_mut().enumerate() {
                    *to = (self.left)(step)[row * sources + source];
                }
                let out = &mut out[source * width..][..width];
                weighted_sum(s, &of_source, &rows, &steps_in_order, false, out);
            }
        }
    }
}
