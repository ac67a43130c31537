//! What is done to scores between the product and the softmax, in the tile: softcap, bias, ALiBi, a
//! user's change; and what is done to weights: dropout.
//!
//! All of it acts on a block of keys by vectors of queries that lies in the first cache.

use std::ops::Range;

use crate::{
    mask::Plane,
    problem::{Dropout, key_hash},
    simd::{Simd, tanh},
};

use super::{
    Job,
    micro::ROWS,
    modify::{Modify, Place},
    panel::{VECTORS, width},
    plan::{Segment, Task},
};
use crate::mask::TILE_KEYS;

/// Turns products `scale · q k` of `keys` with the `live` vectors of queries (rows of `width`) into
/// `s log₂ e - m`, `-∞` where `bits` hide them.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(super) fn modify_scores<S: Simd, M: Modify>(
    s: S,
    job: &Job<M>,
    task: &Task,
    keys: Range<usize>,
    live: Range<usize>,
    minus_m: &[f32],
    rows: &mut [f32],
    bits: Option<&[[u16; ROWS]; VECTORS]>,
) {
    let width = width::<S>();
    let log2_e = s.splat(std::f32::consts::LOG2_E);
    let hidden = s.splat(f32::NEG_INFINITY);
    for (r, line) in rows.chunks_exact_mut(width).enumerate() {
        for v in live.clone() {
            let at = v * S::LANES;
            let mut x = hidden;
            if r < keys.len() {
                let first = task.query + at;
                let count = S::LANES.min(task.queries - at);
                x = modified(
                    s,
                    job,
                    task,
                    first,
                    count,
                    keys.start + r,
                    s.load(&line[at..]),
                );
                x = s.fma(x, log2_e, s.load(&minus_m[at..]));
                if let Some(bits) = bits {
                    x = s.select(bits[v][r].into(), x, hidden);
                }
            }
            s.store(&mut line[at..], x);
        }
    }
}

/// The modified scores of `key` and the queries `first..first + count`, natural units.
#[inline(always)]
pub(super) fn modified<S: Simd, M: Modify>(
    s: S,
    job: &Job<M>,
    task: &Task,
    first: usize,
    count: usize,
    key: usize,
    mut x: S::V,
) -> S::V {
    let attention = &job.attention;
    if let Some(cap) = attention.softcap {
        x = s.mul(s.splat(cap), tanh(s, s.mul(x, s.splat(1.0 / cap))));
    }
    if let Some(bias) = &attention.bias {
        x = s.add(
            x,
            bias_lanes(
                s,
                &Plane::new(bias, task.index, task.head),
                first,
                count,
                key,
            ),
        );
    }
    if let Some(slopes) = attention.alibi {
        let mut distance = [0.0f32; 16];
        let shift = job.shift(task);
        for (i, distance) in distance.iter_mut().enumerate() {
            *distance = ((first + i) as i64 + shift - key as i64).unsigned_abs() as f32;
        }
        x = s.fnma(s.splat(slopes[task.head]), s.load(&distance), x);
    }
    if M::ACTIVE {
        let mut lanes = [0.0f32; 16];
        s.store(&mut lanes, x);
        for (i, lane) in lanes[..S::LANES].iter_mut().enumerate() {
            *lane = job.modify.score(*lane, place(task, first + i, key));
        }
        x = s.load(&lanes);
    }
    x
}

/// The place of a score.
#[inline(always)]
pub(super) fn place(task: &Task, query: usize, key: usize) -> Place {
    Place {
        batch: task.index as u32,
        head: task.head as u32,
        query: query as u32,
        key: key as u32,
    }
}

/// The biases of `key` and the queries `first..first + count`.
#[inline(always)]
fn bias_lanes<S: Simd>(s: S, bias: &Plane<f32>, first: usize, count: usize, key: usize) -> S::V {
    if bias.is_one_row() {
        return s.splat(bias.get(first, key));
    }
    let mut lanes = [0.0f32; 16];
    for (i, lane) in lanes[..count].iter_mut().enumerate() {
        *lane = bias.get(first + i, key);
    }
    s.load(&lanes)
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
    for (index, segment) in segments.iter().enumerate() {
        for j in 0..segment.keys {
            let key = key_hash(segment.key + j);
            for v in segment.first..segment.end {
                let at = (index * TILE_KEYS + j) * width + v * S::LANES;
                let kept = s.hash_at_least(&queries[v * S::LANES..], key, threshold);
                let weight = s.load(&weights[at..]);
                s.store(&mut weights[at..], s.select(kept, weight, s.zero()));
            }
        }
    }
}
