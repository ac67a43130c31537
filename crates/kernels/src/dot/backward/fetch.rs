//! What is loaded for a panel of queries before the loop over its keys.
//!
//! ```text
//! Q, dO [queries, dim]  ->  Qᵀ, dOᵀ [dim, width]     queries in the lanes, for scores and dP
//!                       ->  scale Q, dO [width, dim] dims in the lanes, for dK and dV
//! O     [queries, dim]  ->  Oᵀ                       for δ_i = dO_i · O_i
//! ```

use crate::{
    element::{Element, load},
    simd::{Buffer, Simd},
};

use super::{
    super::{
        panel::{pack, width},
        plan::Task,
        sink_log,
        stored::Rows,
    },
    scratch::Scratch,
    worker::Worker,
};

impl<T: Element, O: Element> Worker<'_, T, O> {
    /// Loads the queries of a panel with their outputs and output gradients. Returns the panel's part of the
    /// sink's gradient.
    #[inline(always)]
    pub(super) fn fetch<S: Simd>(&self, s: S, scratch: &mut Scratch, task: &Task) -> f64 {
        let (job, inputs) = (self.job, self.inputs);
        let (sizes, batch, head) = (&job.sizes, task.sequence.batch, task.head);
        let position = task.sequence.first_query + task.query;
        scratch.finite_query = self.operand(
            s,
            Rows::new(&inputs.query, batch, head, position),
            (task.queries, sizes.dim),
            &mut scratch.wide,
            &mut scratch.query,
            Some((&mut scratch.query_rows, job.attention.scale(sizes.dim))),
        );
        scratch.finite_d_output = self.operand(
            s,
            Rows::new(&inputs.d_output, batch, head, position),
            (task.queries, sizes.value_dim),
            &mut scratch.wide,
            &mut scratch.d_output,
            Some((&mut scratch.d_output_rows, 1.0)),
        );
        self.operand(
            s,
            Rows::new(&inputs.output, batch, head, position),
            (task.queries, sizes.value_dim),
            &mut scratch.wide,
            &mut scratch.output,
            None,
        );
        scratch.d_query.fill(0.0);
        scratch.base.fill(0.0);
        scratch.minus_log.fill(0.0);
        // Summed in the order of the products that `δ` is subtracted from: where one key has nearly all the
        // weight, both round alike and the difference is exact.
        let width = width::<S>();
        for lane in (0..task.queries).step_by(S::LANES) {
            let mut delta = s.zero();
            for line in (0..sizes.value_dim).map(|c| c * width + lane) {
                let (x, y) = (
                    s.load(&scratch.output[line..]),
                    s.load(&scratch.d_output[line..]),
                );
                delta = s.fma(x, y, delta);
            }
            s.store(&mut scratch.minus_delta[lane..], s.sub(s.zero(), delta));
        }
        let first = (batch * sizes.heads + head) * sizes.queries + position;
        let lse = &inputs.lse[3 * first..3 * (first + task.queries)];
        let mut sink = 0.0;
        for (i, lse) in lse.chunks_exact(3).enumerate() {
            if let Some(dropout) = &job.attention.dropout {
                scratch.hashes[i] = dropout.query_hash(task.index, head, task.query + i);
            }
            (scratch.base[i], scratch.minus_log[i]) = job.lse_to_base(lse);
            if let Some(sinks) = job.attention.sink {
                let weight = sink_log(sinks[head], lse).exp();
                let (d_output, output) = (&inputs.d_output, &inputs.output);
                sink -= weight
                    * inner(
                        d_output.row(batch, head, position + i),
                        output.row(batch, head, position + i),
                    );
            }
        }
        sink
    }

    /// Packs `count` rows of `dim` numbers. With `rows`, also copies them there, times a factor, and returns
    /// whether all are finite; without it, returns true.
    #[inline(always)]
    fn operand<S: Simd, U: Element>(
        &self,
        s: S,
        from: Rows<U>,
        (count, dim): (usize, usize),
        wide: &mut Buffer,
        panel: &mut Buffer,
        rows: Option<(&mut Buffer, f32)>,
    ) -> bool {
        // SAFETY: the view was checked, and these are rows of it.
        let from = unsafe { from.widen(s, count, dim, wide) };
        let row = |i: usize| {
            // SAFETY: row `i` is one of the view's, or of those widened from it.
            unsafe { std::slice::from_raw_parts(from.from(i).start, dim) }
        };
        pack(s, panel, count, dim, from.stride, 1.0, row);
        let Some((rows, factor)) = rows else {
            return true;
        };
        let (stride, factor) = (dim.next_multiple_of(S::LANES), s.splat(factor));
        let mut finite = true;
        for i in 0..count {
            let to = &mut rows[i * stride..];
            copy(s, row(i), to, factor);
            finite &= is_finite(s, &to[..dim]);
        }
        finite
    }
}

/// `Σ a_i b_i` in double precision.
#[inline(always)]
fn inner<O: Element>(a: &[O], b: &[O]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(a.widen()) * f64::from(b.widen()))
        .sum()
}

/// True if every number is finite.
#[inline(always)]
pub(super) fn is_finite<S: Simd, T: Element>(s: S, row: &[T]) -> bool {
    let mut sum = s.zero(); // 0 · ∞ is NaN
    let vectors = row.chunks_exact(S::LANES);
    let rest = vectors.remainder();
    for vector in vectors {
        // SAFETY: there are as many numbers as lanes.
        let x = unsafe { load(s, vector.as_ptr()) };
        sum = s.fma(x, s.zero(), sum);
    }
    s.reduce_add(sum) == 0.0 && rest.iter().all(|x| x.widen().is_finite())
}

/// `to = factor · from`
#[inline(always)]
fn copy<S: Simd>(s: S, from: &[f32], to: &mut [f32], factor: S::V) {
    for at in (0..from.len()).step_by(S::LANES) {
        s.store(&mut to[at..], s.mul(s.load_at(from, at), factor));
    }
}
