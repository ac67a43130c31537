//! What options do to the weights and score gradients of a tile: softcap, bias, ALiBi, dropout.
//!
//! ```text
//! forward   x = scale q k  ->  c = cap(x)  ->  s = c + bias - alibi  ->  P = e^{s - lse}
//! backward  dx = dc · cap'(x)  <-  dc = ds; dbias = ds  <-  ds = P (z dP - δ)
//! ```
//! with `z` 0 where dropout dropped the weight and `1 / (1 - p)` elsewhere. The slopes `cap' = 1 - (c/cap)²` are stored while
//! the weights are computed, so that no `tanh` is computed twice.

use crate::{
    mask::TILE_KEYS,
    problem::{Attention, key_hash},
    simd::{Buffer, Simd, exp2},
};

use super::{
    super::{
        Job,
        panel::width,
        plan::{Segment, Task},
        scores::{Biases, biased, softcap_tanh},
    },
    blocks::log_weight,
    split::Target,
};

/// The slopes of a tile, `[TILE, width]`, empty without softcap; and the biases of 16 keys, `[16, width]`.
pub(super) struct Slopes {
    softcap: Buffer,
    bias: Buffer,
}

impl Slopes {
    pub(super) fn new(attention: &Attention, tile: usize, width: usize) -> Self {
        let buffer = |needed, length| Buffer::new(if needed { length } else { 0 });
        Self {
            softcap: buffer(attention.softcap.is_some(), tile * width),
            bias: buffer(attention.has_bias(), TILE_KEYS * width),
        }
    }

    pub(super) fn any(&self) -> bool {
        !self.softcap.is_empty()
    }
}

/// Turns the products of a segment into weights, and keeps the slopes.
#[inline(always)]
pub(super) fn weights<S: Simd>(
    s: S,
    job: &Job,
    task: &Task,
    segment: &Segment,
    (base, minus_log): (&[f32], &[f32]),
    weights: &mut [f32],
    slopes: &mut Slopes,
) {
    let width = width::<S>();
    let (live, attention) = (segment.first..segment.end, &job.attention);
    let biases = Biases::of(job, task);
    for j in 0..segment.keys {
        let key = segment.key + j;
        if let Some(biases) = &biases
            && j % TILE_KEYS == 0
        {
            let keys = key..key + TILE_KEYS.min(segment.keys - j);
            biases.transpose(s, task, keys, live.clone(), &mut slopes.bias);
        }
        for v in live.clone() {
            let lane = v * S::LANES;
            let (at, in_tile) = (j * width + lane, (segment.row + j) * width + lane);
            let bias = biases
                .as_ref()
                .map(|_| s.load(&slopes.bias[j % TILE_KEYS * width + lane..]));
            let (product, factor) = (s.load(&weights[at..]), s.splat(job.factor));
            // Rounded as in the forward pass: otherwise, where scores are large, the weights would differ from those in its
            // sum.
            let (mut x, bias) = match (attention.softcap, bias) {
                (None, Some(bias)) => (s.fma(product, factor, bias), None),
                (_, bias) => (s.mul(product, factor), bias),
            };
            if let Some(cap) = attention.softcap {
                let bend = softcap_tanh(s, s.mul(x, s.splat(1.0 / cap)));
                s.store(
                    &mut slopes.softcap[in_tile..],
                    s.fnma(bend, bend, s.splat(1.0)),
                );
                x = s.mul(s.splat(cap), bend);
            }
            x = biased(s, job, task, v, key, x, bias);
            let log2_e = s.splat(std::f32::consts::LOG2_E);
            let (base, minus_log) = (s.load(&base[lane..]), s.load(&minus_log[lane..]));
            x = log_weight(s, x, base, log2_e, minus_log);
            if let Some(bits) = &segment.bits {
                x = s.select(bits[v][j].into(), x, s.splat(f32::NEG_INFINITY));
            }
            s.store(&mut weights[at..], exp2(s, x));
        }
    }
}

/// A segment's weights, and its `dP`, which becomes `dx`: `[keys, width]` each.
pub(super) struct TileGradients<'a> {
    pub(super) segment: &'a Segment,
    pub(super) weights: &'a mut [f32],
    pub(super) gradients: &'a mut [f32],
    pub(super) slopes: &'a Slopes,
}

impl TileGradients<'_> {
    /// Turns `dP` into `dx`, and weights into those that `dV` takes. On the way it adds `db`, the value in between, to `bias`.
    #[inline(always)]
    pub(super) fn apply<S: Simd>(
        mut self,
        s: S,
        job: &Job,
        minus_delta: &[f32],
        hashes: &[u32],
        bias: Option<impl FnOnce(&Self)>,
    ) {
        let (width, segment) = (width::<S>(), self.segment);
        let keep_scale = s.splat(job.keep_scale);
        let dropout = job.attention.dropout.as_ref();
        let later = bias.is_some();
        for j in 0..segment.keys {
            for v in segment.first..segment.end {
                let lane = v * S::LANES;
                let at = j * width + lane;
                let weight = s.load(&self.weights[at..]);
                let mut x = s.load(&self.gradients[at..]);
                if let Some(dropout) = dropout {
                    let hash = key_hash(segment.key + j);
                    let kept = s.hash_at_least(&hashes[lane..], hash, dropout.threshold());
                    x = s.select(kept, s.mul(x, keep_scale), s.zero());
                    let scaled = s.select(kept, s.mul(weight, keep_scale), s.zero());
                    s.store(&mut self.weights[at..], scaled);
                }
                x = s.mul(weight, s.add(x, s.load(&minus_delta[lane..])));
                if !later {
                    x = self.bend(s, at, x);
                }
                if let Some(bits) = &segment.bits {
                    x = s.select(bits[v][j].into(), x, s.zero()); // a hidden key or value may be NaN
                }
                s.store(&mut self.gradients[at..], x);
            }
        }
        let Some(bias) = bias else { return };
        bias(&self);
        if self.slopes.softcap.is_empty() {
            return;
        }
        for j in 0..segment.keys {
            for v in segment.first..segment.end {
                let at = j * width + v * S::LANES;
                let mut x = self.bend(s, at, s.load(&self.gradients[at..]));
                if let Some(bits) = &segment.bits {
                    x = s.select(bits[v][j].into(), x, s.zero());
                }
                s.store(&mut self.gradients[at..], x);
            }
        }
    }

    /// `x` times the slope of the softcap at `at`.
    #[inline(always)]
    fn bend<S: Simd>(&mut self, s: S, at: usize, x: S::V) -> S::V {
        if self.slopes.softcap.is_empty() {
            return x;
        }
        s.mul(
            x,
            s.load(&self.slopes.softcap[self.segment.row * width::<S>() + at..]),
        )
    }

    /// Adds the segment's `db` to the bias row that `row` gives for each query, and its length: one
    /// number for each key of the sequence, or 1.
    #[inline(always)]
    pub(super) fn add_to_bias<S: Simd>(
        &self,
        s: S,
        task: &Task,
        row: impl Fn(usize) -> (Target, usize),
    ) {
        let (width, segment) = (width::<S>(), self.segment);
        let mut square = [0.0f32; 256];
        for v in segment.first..segment.end {
            let lane = v * S::LANES;
            let queries = S::LANES.min(task.queries - lane);
            for first in (0..segment.keys).step_by(S::LANES) {
                let keys = S::LANES.min(segment.keys - first);
                let from = &self.gradients[first * width + lane..];
                assert!(from.len() >= (S::LANES - 1) * width + S::LANES);
                // SAFETY: the tile has LANES lines from there on: segments are rounded up to 16.
                unsafe { s.transpose(from.as_ptr(), width, square.as_mut_ptr(), S::LANES) };
                for i in 0..queries {
                    let line = &square[i * S::LANES..][..keys];
                    let (to, length) = row(task.query + lane + i);
                    // SAFETY: the gradient was checked; this part alone has the row of this query.
                    let to = unsafe { to.row(length) };
                    if length == 1 {
                        to[0] += line.iter().sum::<f32>();
                        continue;
                    }
                    for (to, &x) in to[segment.key + first..].iter_mut().zip(line) {
                        *to += x;
                    }
                }
            }
        }
    }
}
