//! One head of one sequence: its panels' weights, tile by tile, and what is kept of them.
//!
//! ```text
//! scores of a tile [keys, queries]  ->  w = e^(s - lse), in place   ->  rows asked for, column sums, top k
//!                                       Σ_j w log₂ w, in the lanes  ->  entropy
//! ```

use crate::{
    mask::{TILE_KEYS, Visible},
    simd::{Buffer, Kernel, Simd, exp2},
    threads::Tasks,
    view::SharedRows,
};

use super::super::{
    panel::{VECTORS, width},
    plan::{Segment, Task},
    sink_log,
};
use super::logs::{Logs, Panel};

/// What all heads share.
pub(super) struct Observer<'a> {
    pub(super) logs: Logs<'a>,
    pub(super) rows: Option<(&'a [usize], SharedRows<'a, f32>)>,
    pub(super) entropy: Option<SharedRows<'a, f32>>,
    pub(super) sums: Option<SharedRows<'a, f32>>,
    pub(super) top_weights: Option<SharedRows<'a, f32>>,
    pub(super) top_keys: Option<SharedRows<'a, u32>>,
    pub(super) k: usize,
    /// Whether every panel is needed, not only those with chosen rows.
    pub(super) everywhere: bool,
}

/// One head of one sequence.
pub(super) struct Head<'a> {
    pub(super) observer: &'a Observer<'a>,
    pub(super) index: usize,
    pub(super) head: usize,
    pub(super) tasks: &'a Tasks,
}

/// One worker's memory.
struct Scratch {
    /// Its logarithms become weights in place.
    panel: Panel,
    /// `Σ_j w (log₂ w)`
    entropy: Buffer,
    /// The largest weights of each lane, largest first.
    top: Vec<Vec<(f32, u32)>>,
}

impl Kernel for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let (observer, width) = (self.observer, width::<S>());
        let job = observer.logs.job;
        let sequence = job.attention.sequence(&job.sizes, self.index);
        let mut scratch = Scratch {
            panel: Panel::new::<S>(job),
            entropy: Buffer::new(width),
            top: vec![Vec::with_capacity(observer.k.min(sequence.keys) + 1); width],
        };
        for query in (0..sequence.queries).step_by(width) {
            self.tasks.heed_stop();
            let task = Task {
                sequence,
                index: self.index,
                head: self.head,
                heads: 1,
                query,
                queries: width.min(sequence.queries - query),
            };
            let positions =
                sequence.first_query + query..sequence.first_query + query + task.queries;
            let chosen =
                |(wanted, _): &(&[usize], _)| wanted.iter().any(|row| positions.contains(row));
            if observer.everywhere || observer.rows.as_ref().is_some_and(chosen) {
                observer.panel(s, &mut scratch, &task);
            }
        }
    }
}

impl Observer<'_> {
    #[inline(always)]
    fn panel<S: Simd>(&self, s: S, scratch: &mut Scratch, task: &Task) {
        let (logs, sequence) = (&self.logs, &task.sequence);
        logs.begin(s, &mut scratch.panel, task);
        scratch.entropy.fill(0.0);
        scratch.top.iter_mut().for_each(Vec::clear);
        let (job, position) = (logs.job, logs.position(task));
        let visible = Visible::new(&job.attention, &job.sizes, sequence, task.index, task.head);
        let reach = visible.reach(task.query, task.queries);
        let mut next = reach.start / TILE_KEYS * TILE_KEYS;
        while next < reach.end {
            logs.tile(s, &mut scratch.panel, task, &visible, &mut next, reach.end);
            for index in 0..scratch.panel.segments().len() {
                let segment = scratch.panel.segments()[index];
                self.weigh(s, scratch, &segment);
                self.read(s, scratch, task, &segment);
            }
        }
        let lse = logs.lse(task);
        let (batch, head) = (sequence.batch, task.head);
        for i in 0..task.queries {
            // SAFETY: the outputs were checked; one thread has this head of this sequence, whose queries are its own.
            unsafe {
                if let Some(entropy) = &self.entropy {
                    entropy.row_mut(batch, head, position + i)[0] = self.whole_entropy(
                        -scratch.entropy[i] * std::f32::consts::LN_2,
                        task.head,
                        &lse[3 * i..3 * (i + 1)],
                    );
                }
                if let (Some(weights), Some(keys)) = (&self.top_weights, &self.top_keys) {
                    let best = scratch.top[i]
                        .iter()
                        .copied()
                        .chain(std::iter::repeat((0.0, u32::MAX)));
                    let weights = weights.row_mut(batch, head, position + i);
                    let keys = keys.row_mut(batch, head, position + i);
                    for ((weight, key), best) in weights.iter_mut().zip(keys).zip(best) {
                        (*weight, *key) = best;
                    }
                }
            }
        }
    }

    /// Adds the sink's share to an entropy.
    fn whole_entropy(&self, entropy: f32, head: usize, lse: &[f32]) -> f32 {
        match self.logs.job.attention.sink {
            Some(sinks) => {
                let log = sink_log(sinks[head], lse);
                entropy - (log.exp() * log) as f32
            }
            None => entropy,
        }
    }

    /// The weights of one segment in place of their logarithms, and their entropy.
    #[inline(always)]
    fn weigh<S: Simd>(&self, s: S, scratch: &mut Scratch, segment: &Segment) {
        let width = width::<S>();
        let rows = &mut scratch.panel.logs[segment.row * width..][..segment.keys * width];
        for line in rows.chunks_exact_mut(width) {
            for v in segment.first..segment.end {
                let lane = v * S::LANES;
                let log = s.load(&line[lane..]);
                let weight = exp2(s, log);
                s.store(&mut line[lane..], weight);
                // 0 · -∞ counts as 0, and so does what lies below the normal numbers; NaN, which is not below them, stays.
                let nothing = s.greater(s.splat(f32::MIN_POSITIVE), weight);
                let term = s.select(nothing, s.zero(), s.mul(weight, log));
                let total = s.add(s.load(&scratch.entropy[lane..]), term);
                s.store(&mut scratch.entropy[lane..], total);
            }
        }
    }

    /// Chosen rows, column sums and the largest weights, of one segment.
    #[inline(always)]
    fn read<S: Simd>(&self, _: S, scratch: &mut Scratch, task: &Task, segment: &Segment) {
        let width = width::<S>();
        let (batch, head) = (task.sequence.batch, task.head);
        let position = self.logs.position(task);
        let lanes = segment.first * S::LANES..(segment.end * S::LANES).min(task.queries);
        let weights = &scratch.panel.logs[segment.row * width..][..segment.keys * width];
        let keys = segment.key..segment.key + segment.keys;
        if let Some((wanted, to)) = &self.rows {
            for (index, &row) in wanted.iter().enumerate() {
                let Some(lane) = row
                    .checked_sub(position)
                    .filter(|lane| lanes.contains(lane))
                else {
                    continue;
                };
                // SAFETY: the output was checked; one thread has this head of the sequence that the query belongs to.
                let to = unsafe { to.row_mut(batch, head, index) };
                for (to, line) in to[keys.clone()].iter_mut().zip(weights.chunks_exact(width)) {
                    *to = line[lane];
                }
            }
        }
        if let Some(sums) = &self.sums {
            let first = task.sequence.first_key;
            let of_pack = first + keys.start..first + keys.end;
            // SAFETY: the output was checked; one thread has this head of this sequence. The row may belong to several
            // sequences of a pack, but these keys are of this one alone.
            let to = unsafe { sums.part_mut(batch, head, 0, of_pack) };
            for (to, line) in to.iter_mut().zip(weights.chunks_exact(width)) {
                *to += line[lanes.clone()].iter().sum::<f32>();
            }
        }
        if self.k > 0 {
            for (key, line) in keys.zip(weights.chunks_exact(width)) {
                for lane in lanes.clone() {
                    let best = &mut scratch.top[lane];
                    let weight = line[lane];
                    let least = if best.len() < self.k {
                        0.0
                    } else {
                        best[self.k - 1].0
                    };
                    // NaN comes before all numbers, so that it cannot be missed.
                    if weight > least || weight.is_nan() {
                        let before = |&(other, _): &(f32, u32)| other.is_nan() || other >= weight;
                        let at = best.partition_point(before);
                        best.insert(at, (weight, key as u32));
                        best.truncate(self.k);
                    }
                }
            }
        }
        debug_assert!(segment.end <= VECTORS);
    }
}
