//! What is done to the scores of a tile between the product and the softmax: softcap, bias, ALiBi; and what is done to its
//! weights: dropout.
//!
//! All of it acts on a block of keys by vectors of queries that lies in the L1 cache.

use std::ops::Range;

use crate::{
    mask::{Plane, TILE_KEYS},
    problem::{Attention, Dropout, RelativeBias, key_hash},
    simd::{Simd, tanh, tanh_small},
};

use super::{
    Job,
    panel::width,
    plan::{Segment, Task},
};

/// The position of a block of scores.
pub(super) struct ScoresAt<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) task: &'a Task,
    /// The vector of queries of the first column, and the key of the first row.
    pub(super) vector: usize,
    pub(super) key: usize,
}

/// Turns products of a block, keys in rows, into modified scores in natural units.
///
/// Options that take few instructions are applied in registers. The softcap of a block that holds a large score is applied in
/// memory (the L1 cache), since its code, unrolled for each of 24 vectors, would push the others out of the registers. Either
/// way a score comes out the same.
///
/// # Safety
/// `bias` and `room` have `R` lines `width` apart with `V` vectors each.
#[inline(always)]
pub(super) unsafe fn modify_scores<S: Simd, const R: usize, const V: usize>(
    s: S,
    at: &ScoresAt,
    scores: &mut [[S::V; V]; R],
    bias: Option<*const f32>,
    room: *mut f32,
    width: usize,
) {
    let (job, task) = (at.job, at.task);
    let factor = s.splat(job.factor);
    // Without a softcap, product and bias are rounded together.
    if let (None, Some(bias)) = (job.attention.softcap, bias) {
        for (r, line) in scores.iter_mut().enumerate() {
            for (v, x) in line.iter_mut().enumerate() {
                // SAFETY: the caller vouches for the bias.
                *x = s.fma(*x, factor, unsafe {
                    s.load_from(bias.add(r * width + v * S::LANES))
                });
            }
        }
    } else {
        for line in scores.iter_mut() {
            for x in line {
                *x = s.mul(*x, factor);
            }
        }
    }
    if let Some(cap) = job.attention.softcap {
        let (cap, inverse) = (s.splat(cap), s.splat(1.0 / cap));
        let mut large = s.zero();
        for line in scores.iter_mut() {
            for x in line {
                *x = s.mul(*x, inverse);
                large = s.max(s.abs(*x), large);
            }
        }
        if s.greater(large, s.splat(SMALL)) == 0 {
            for line in scores.iter_mut() {
                for x in line {
                    *x = s.mul(cap, tanh_small(s, *x));
                }
            }
        } else {
            // SAFETY: the caller vouches for the room.
            unsafe {
                in_memory(s, scores, room, width, |x| s.mul(cap, softcap_tanh(s, x)));
            }
        }
    }
    if let (Some(_), Some(bias)) = (job.attention.softcap, bias) {
        for (r, line) in scores.iter_mut().enumerate() {
            for (v, x) in line.iter_mut().enumerate() {
                // SAFETY: the caller vouches for the bias.
                *x = s.add(*x, unsafe {
                    s.load_from(bias.add(r * width + v * S::LANES))
                });
            }
        }
    }
    if let Some(slopes) = job.attention.alibi {
        let slope = s.splat(slopes[task.head]);
        let first = (task.query + at.vector * S::LANES) as i64 + job.shift(task) - at.key as i64;
        let offsets: [S::V; V] =
            std::array::from_fn(|v| s.add(s.splat((v * S::LANES) as f32), s.load(&COUNT)));
        for (r, line) in scores.iter_mut().enumerate() {
            let nearest = s.splat((first - r as i64) as f32);
            for (x, &offset) in line.iter_mut().zip(&offsets) {
                *x = s.fnma(slope, s.abs(s.add(nearest, offset)), *x);
            }
        }
    }
}

/// Applies `change` to each vector in a loop that is not unrolled.
///
/// # Safety
/// As [`modify_scores`].
#[inline(always)]
unsafe fn in_memory<S: Simd, const R: usize, const V: usize>(
    s: S,
    scores: &mut [[S::V; V]; R],
    room: *mut f32,
    width: usize,
    change: impl Fn(S::V) -> S::V,
) {
    // SAFETY: the caller vouches for `R` lines with `V` vectors each.
    unsafe {
        for (r, line) in scores.iter().enumerate() {
            for (v, &x) in line.iter().enumerate() {
                s.store_to(room.add(r * width + v * S::LANES), x);
            }
        }
        for place in 0..R * V {
            let (r, v) = (place / V, place % V);
            let to = room.add(r * width + v * S::LANES);
            s.store_to(to, change(s.load_from(to)));
        }
        for (r, line) in scores.iter_mut().enumerate() {
            for (v, x) in line.iter_mut().enumerate() {
                *x = s.load_from(room.add(r * width + v * S::LANES));
            }
        }
    }
}

/// Scores with bias and ALiBi.
#[inline(always)]
pub(super) fn biased<S: Simd>(
    s: S,
    job: &Job,
    task: &Task,
    v: usize,
    key: usize,
    mut x: S::V,
    bias: Option<S::V>,
) -> S::V {
    if let Some(bias) = bias {
        x = s.add(x, bias);
    }
    if let Some(slopes) = job.attention.alibi {
        // Whole numbers below 2²⁴ are exact, and larger distances need not be.
        let first = task.query + v * S::LANES;
        let nearest = (first as i64 + job.shift(task) - key as i64) as f32;
        let distance = s.abs(s.add(s.splat(nearest), s.load(&COUNT)));
        x = s.fnma(s.splat(slopes[task.head]), distance, x);
    }
    x
}

static COUNT: [f32; 16] = [
    0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
];

/// The largest magnitude for which [`tanh_small`] is accurate.
const SMALL: f32 = 0.625;

/// `tanh x`, fast where all lanes are small, as caps are chosen above most scores. A lane's result depends on its own value
/// alone.
#[inline(always)]
pub(super) fn softcap_tanh<S: Simd>(s: S, x: S::V) -> S::V {
    let (large, quick) = (s.greater(s.abs(x), s.splat(SMALL)), tanh_small(s, x));
    match large {
        0 => quick,
        _ => s.select(large, tanh(s, x), quick),
    }
}

/// What is added to the scores of one head.
pub(super) struct Biases<'a> {
    /// By query and key.
    plane: Option<Plane<'a, f32>>,
    /// By distance, and the position of query 0.
    relative: Option<(RelativeBias<'a>, i64)>,
}

impl<'a> Biases<'a> {
    /// Those of the head of `task`; `None` if there are none.
    #[inline(always)]
    pub(super) fn of(job: &Job<'a>, task: &Task) -> Option<Self> {
        let Attention { bias, relative, .. } = &job.attention;
        let heads = job.sizes.heads;
        job.attention.has_bias().then(|| Self {
            plane: bias.map(|bias| Plane::new(&bias, task.index, task.head)),
            relative: relative.map(|all| (all.of_head(heads, task.head), job.shift(task))),
        })
    }

    /// Writes the biases of up to 16 `keys` so that queries lie in the lanes, `[16, width]`.
    #[inline(always)]
    pub(super) fn transpose<S: Simd>(
        &self,
        s: S,
        task: &Task,
        keys: Range<usize>,
        live: Range<usize>,
        to: &mut [f32],
    ) {
        const WIDEST: usize = 48;
        let (width, first) = (width::<S>(), keys.start as i64);
        let lanes = live.start * S::LANES..live.end * S::LANES;
        if let Some(plane) = &self.plane {
            transpose_bias(s, plane, task, keys.clone(), live, to);
        }
        let Some((relative, shift)) = &self.relative else {
            return;
        };
        // All distances of the block: entry `x` is that of query `x - 15` to the first key.
        let position = task.query as i64 + shift - (TILE_KEYS as i64 - 1);
        let by_distance: [f32; WIDEST + TILE_KEYS] =
            std::array::from_fn(|x| relative.at(first - position - x as i64));
        for (j, row) in to.chunks_mut(width).take(keys.len()).enumerate() {
            let from = &by_distance[TILE_KEYS - 1 - j..][lanes.clone()];
            let to = &mut row[lanes.clone()];
            match self.plane {
                None => to.copy_from_slice(from),
                Some(_) => to.iter_mut().zip(from).for_each(|(to, x)| *to += x),
            }
        }
    }
}

/// Transposes the biases of up to 16 `keys` so that queries lie in the lanes, `[16, width]`, and prefetches those of the keys
/// that come soon.
#[inline(always)]
fn transpose_bias<S: Simd>(
    s: S,
    bias: &Plane<f32>,
    task: &Task,
    keys: Range<usize>,
    live: Range<usize>,
    to: &mut [f32],
) {
    let width = width::<S>();
    for v in live {
        let at = v * S::LANES;
        let first = task.query + at;
        let count = S::LANES.min(task.queries - at);
        let whole = keys.len() == TILE_KEYS && count == S::LANES && !bias.is_one_row();
        if whole && let Some((from, stride)) = bias.square(first, count, keys.clone()) {
            for i in 0..count {
                s.prefetch(
                    from.as_ptr().wrapping_add(i * stride + 4 * TILE_KEYS),
                    false,
                );
            }
            for j in (0..TILE_KEYS).step_by(S::LANES) {
                let to = &mut to[j * width + at..][..(S::LANES - 1) * width + S::LANES];
                // SAFETY: LANES rows of 16 numbers can be read; `to` was cut to LANES such rows.
                unsafe { s.transpose(from[j..].as_ptr(), stride, to.as_mut_ptr(), width) };
            }
            continue;
        }
        for (j, key) in keys.clone().enumerate() {
            for i in 0..count {
                to[j * width + at + i] = bias.get(first + i, key);
            }
        }
    }
}

/// Sets the weights that dropout drops to 0. `weights` has a row for each key of each segment.
#[inline(always)]
pub(super) fn drop_weights<S: Simd>(
    s: S,
    dropout: &Dropout,
    task: &Task,
    segments: &[Segment],
    weights: &mut [f32],
) {
    let width = width::<S>();
    let threshold = dropout.threshold();
    let mut queries = [0u32; 48];
    for (i, hash) in queries[..task.queries].iter_mut().enumerate() {
        *hash = dropout.query_hash(task.index, task.head, task.query + i);
    }
    for segment in segments {
        for j in 0..segment.keys {
            let key = key_hash(segment.key + j);
            for v in segment.first..segment.end {
                let at = (segment.row + j) * width + v * S::LANES;
                let kept = s.hash_at_least(&queries[v * S::LANES..], key, threshold);
                let weight = s.load(&weights[at..]);
                s.store(&mut weights[at..], s.select(kept, weight, s.zero()));
            }
        }
    }
}
