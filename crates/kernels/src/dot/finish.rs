//! The end of a panel: what was summed is written to the rows of the output.
//!
//! ```text
//! O / l  [value_dim, queries]  ->  rows of the output [queries, value_dim];   lse = m + ln l
//! ```

use crate::{
    element::{Element, Kind},
    simd::{Simd, split_ln},
};

use super::{
    forward::Worker,
    panel::{unpack, width},
    plan::Task,
    rescale::Scratch,
};

impl<T: Element, O: Element> Worker<'_, T, O> {
    /// Divides by the sums and writes the rows. False if a result is not finite and `check` is set.
    #[inline(always)]
    pub(super) fn finish<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        member: usize,
        task: &Task,
        check: bool,
    ) -> bool {
        let (job, head) = (self.job, &mut scratch.heads[member]);
        let (width, value_dim) = (width::<S>(), job.sizes.value_dim);
        let vectors = task.queries.div_ceil(S::LANES);
        let mut log_sums = [0.0f32; 48];
        let mut of_sink = 0u64; // lanes whose sink exceeds the sum of all they have seen
        let mut finite = true;
        for v in 0..vectors {
            let at = v * S::LANES;
            let mut sum = s.load(&head.sum[at..]);
            if let Some(sinks) = job.attention.sink {
                let mut factors = [0.0f32; 16];
                s.store(&mut factors, sum);
                let sink = f64::from(sinks[task.head]);
                for (i, factor) in factors[..S::LANES].iter_mut().enumerate() {
                    // Relative to the base, like the sums.
                    let own = f64::from(*factor).ln();
                    let sink = sink - f64::from(head.m[at + i]) * job.unit[0];
                    let top = own.max(sink);
                    let rest = ((own - top).exp() + (sink - top).exp()).ln();
                    if sink > own {
                        of_sink |= 1 << (at + i);
                        log_sums[at + i] = rest as f32;
                    } else {
                        log_sums[at + i] = (top + rest) as f32;
                    }
                    *factor = if head.met[at + i] == 0.0 {
                        1.0
                    } else {
                        (-top - rest).exp() as f32
                    };
                }
                sum = s.load(&factors); // inverses of the divisors
            } else {
                let empty = s.greater(s.splat(f32::MIN_POSITIVE), sum);
                let (n, ln_f) = split_ln(s, sum);
                let log = s.fma(n, s.splat(std::f32::consts::LN_2), ln_f);
                let normal = s.greater(sum, s.zero());
                s.store(&mut log_sums[at..], s.select(normal, log, sum)); // NaN stays
                let safe = s.select(empty, s.splat(1.0), sum);
                sum = s.div(s.splat(1.0), safe);
            }
            if job.keep_scale != 1.0 {
                sum = s.mul(sum, s.splat(job.keep_scale));
            }
            let mut residue = s.zero();
            for line in head.output[..value_dim * width].chunks_exact_mut(width) {
                let x = s.mul(s.load(&line[at..]), sum);
                s.store(&mut line[at..], x);
                residue = s.fma(x, s.zero(), residue);
            }
            let inside = S::LANES.min(task.queries - at);
            let all = ((1u64 << inside) - 1) as u32;
            finite &= s.greater(s.splat(1.0), residue) & all == all;
        }
        if check && !finite {
            return false;
        }
        let sequence = &task.sequence;
        let position = sequence.first_query + task.query;
        let (to, stride) = self.output.start(sequence.batch, task.head, position);
        // SAFETY: the output was checked; this task alone has these rows.
        unsafe {
            match O::KIND {
                Kind::F32 => {
                    let to = to.cast();
                    unpack(s, &head.output, task.queries, value_dim, to, stride);
                }
                Kind::Bf16 | Kind::F16 => {
                    let rows = scratch.wide.as_mut_ptr();
                    unpack(s, &head.output, task.queries, value_dim, rows, value_dim);
                    for (i, row) in scratch.wide.chunks_exact(value_dim).enumerate() {
                        if i == task.queries {
                            break;
                        }
                        for (c, &x) in row.iter().enumerate() {
                            *to.add(i * stride + c) = O::narrow(x);
                        }
                    }
                }
            }
        }
        if let Some(to) = &self.lse {
            let (mut high, mut low) = ([0.0f32; 48], [0.0f32; 48]);
            // In a loop of its own, which the compiler vectorises.
            for ((high, low), &m) in high.iter_mut().zip(&mut low).zip(&head.m[..width]) {
                [*high, *low] = job.base_to_lse(m);
            }
            for (i, high) in high.iter_mut().enumerate().take(task.queries) {
                match job.attention.sink {
                    None if head.met[i] == 0.0 && log_sums[i] == 0.0 => *high = f32::NEG_INFINITY,
                    Some(sinks) if of_sink >> i & 1 == 1 => {
                        (*high, low[i]) = (sinks[task.head], 0.0);
                    }
                    _ => {}
                }
            }
            let (start, _) = to.start(sequence.batch, task.head, position);
            // SAFETY: the lse was checked, and its rows lie side by side; this task alone has these.
            let to = unsafe { std::slice::from_raw_parts_mut(start, 3 * task.queries) };
            for (i, to) in to.chunks_exact_mut(3).enumerate() {
                to.copy_from_slice(&[high[i], low[i], log_sums[i]]);
            }
        }
        true
    }
}
