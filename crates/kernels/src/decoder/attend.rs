//! One query of each row against the keys that it sees, wherever those are: `o = Σ_j softmax_j(q · k_j / √size) v_j`.
//!
//! ```text
//! a row:   key j at step j, row ancestors[j]      or  at j of its sentence
//!          | k of all heads | v of all heads |    a head at a time: scores [keys], e^(s - largest), then v by v
//! ```

use crate::simd::{self, Kernel, Level, Simd, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

/// The sizes of the heads.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) heads: usize,
    pub(super) key_value_heads: usize,
    pub(super) size: usize,
}

/// Keys and values: `k | v` of all heads, state by state.
pub(super) enum Keys<'a> {
    /// Those of `ancestors[step]` at each step from `first` on.
    Past {
        steps: &'a [Vec<f32>],
        ancestors: &'a [u32],
        first: usize,
    },
    /// One after the other.
    Source { states: &'a [f32] },
}

impl Keys<'_> {
    fn count(&self, width: usize) -> usize {
        match self {
            Self::Past {
                ancestors, first, ..
            } => ancestors.len() - first,
            Self::Source { states } => states.len() / width.max(1),
        }
    }

    /// `k | v` of key `at`.
    #[inline(always)]
    fn state(&self, at: usize, width: usize) -> &[f32] {
        match self {
            Self::Past {
                steps,
                ancestors,
                first,
            } => {
                let step = first + at;
                &steps[step][ancestors[step] as usize * width..][..width]
            }
            Self::Source { states } => &states[at * width..][..width],
        }
    }
}

/// What each row reads, heads side by side: `queries` and the result are `[count, heads · size]`.
pub(super) fn attend<'k>(
    sizes: Heads,
    queries: &[f32],
    count: usize,
    keys: &(impl Fn(usize) -> Keys<'k> + Sync),
) -> Vec<f32> {
    let width = sizes.heads * sizes.size;
    let mut out = vec![0.0; count * width];
    let seen = if count > 0 {
        keys(0).count(2 * sizes.key_value_heads * sizes.size)
    } else {
        0
    };
    let nanoseconds = (count * sizes.heads * seen * sizes.size) as f64 * 0.5;
    let level = Level::current();
    for_each_chunk(
        rows(&mut out, width),
        count,
        8,
        nanoseconds,
        &|first, out: RowsMut<f32>| {
            for (row, to) in (first..).zip(out.data.chunks_exact_mut(width.max(1))) {
                let query = &queries[row * width..][..width];
                run(
                    level,
                    OneRow {
                        sizes,
                        query,
                        keys: keys(row),
                        to,
                    },
                );
            }
        },
    );
    out
}

struct OneRow<'a, 'k> {
    sizes: Heads,
    query: &'a [f32],
    keys: Keys<'k>,
    to: &'a mut [f32],
}

impl Kernel for OneRow<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let Heads {
            heads,
            key_value_heads,
            size,
        } = self.sizes;
        let (width, of_values) = (2 * key_value_heads * size, key_value_heads * size);
        let count = self.keys.count(width);
        let scale = 1.0 / (size as f32).sqrt();
        let mut scores = vec![0.0f32; count];
        for head in 0..heads {
            let at = head * key_value_heads / heads * size;
            let query = &self.query[head * size..][..size];
            for (key, score) in scores.iter_mut().enumerate() {
                let key = &self.keys.state(key, width)[at..][..size];
                *score = simd::dot(s, query, key) * scale;
            }
            let largest = s.splat(simd::max(s, &scores));
            simd::zip_map(
                s,
                [],
                [&mut scores],
                #[inline(always)]
                |[], [x]| [simd::exp(s, s.sub(x, largest))],
            );
            let sum = simd::sum_f64(
                s,
                &scores,
                #[inline(always)]
                |x| x,
            ) as f32;
            let to = &mut self.to[head * size..][..size];
            to.fill(0.0);
            for (key, weight) in scores.iter().enumerate() {
                let value = &self.keys.state(key, width)[of_values + at..][..size];
                simd::axpy(s, weight / sum, value, to);
            }
        }
    }
}
