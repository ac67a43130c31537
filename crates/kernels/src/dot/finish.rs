//! The end of a panel: what was summed becomes rows.
//!
//! ```text
//! O / l  [value_dim, queries]  ->  rows of the output [queries, value_dim];   lse = (m + log₂ l) ln 2
//! ```

use crate::{
    element::{Element, Kind},
    simd::{Simd, split_ln},
};

use super::{
    forward::Worker,
    modify::Modify,
    panel::{unpack, width},
    plan::Task,
    raise::Scratch,
};

impl<T: Element, O: Element, M: Modify> Worker<'_, T, O, M> {
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
        let mut lse = [f32::NEG_INFINITY; 48];
        let mut finite = true;
        for v in 0..vectors {
            let at = v * S::LANES;
            let mut sum = s.load(&head.sum[at..]);
            let m = s.sub(s.zero(), s.load(&head.minus_m[at..]));
            if let Some(sinks) = job.attention.sink {
                let seen = s.greater(s.load(&head.met[at..]), s.splat(0.5));
                let mut factors = [0.0f32; 16];
                s.store(&mut factors, sum);
                let mut bases = [0.0f32; 16];
                s.store(&mut bases, m);
                let natural = f64::from(job.to_natural[0]) + f64::from(job.to_natural[1]);
                for i in 0..S::LANES {
                    let sink = f64::from(sinks[task.head]);
                    let log = if seen >> i & 1 == 1 {
                        let own = f64::from(bases[i]) * natural + f64::from(factors[i]).ln();
                        let top = own.max(sink);
                        top + ((own - top).exp() + (sink - top).exp()).ln()
                    } else {
                        sink
                    };
                    lse[at + i] = log as f32;
                    let power = f64::from(bases[i]) * natural - log;
                    factors[i] = power.exp() as f32;
                }
                sum = s.load(&factors); // what divides, inverted
            } else {
                let some = s.greater(sum, s.zero());
                // lse = m natural + n ln 2 + ln f. `m` and `n` may be large against their sum, so they are
                // added first; `natural` is not quite ln 2, since the factor was rounded.
                let [high, low] = job.to_natural;
                let (n, ln_f) = split_ln(s, sum);
                let (base, rest) = (s.add(m, n), std::f32::consts::LN_2 - high - low);
                let small = s.fma(n, s.splat(rest), s.fma(base, s.splat(low), ln_f));
                let log = s.fma(base, s.splat(high), small);
                let empty = s.greater(s.splat(f32::MIN_POSITIVE), sum);
                let log = s.select(empty, s.splat(f32::NEG_INFINITY), log);
                let nan = !(some | empty);
                s.store(&mut lse[at..], s.select(nan, sum, log));
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
            for (i, &lse) in lse[..task.queries].iter().enumerate() {
                // SAFETY: the lse was checked; this task alone has these rows.
                unsafe { to.row_mut(sequence.batch, task.head, position + i)[0] = lse };
            }
        }
        true
    }
}
