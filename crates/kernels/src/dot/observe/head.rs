//! One head of one sequence: its panels' weights, tile by tile, and what is kept of them.
//!
//! ```text
//! scores of a tile [keys, queries]  ->  w = e^(s - lse), in place   ->  rows asked for, column sums, top k
//!                                       Σ_j w log₂ w, in the lanes  ->  entropy
//! ```

use crate::{
    mask::{TILE_KEYS, Visible},
    simd::{Buffer, Kernel, Simd, exp2},
    view::{SharedRows, View},
};

use super::super::{
    Job,
    backward::log_weight,
    forward::{SEGMENTS, TILE},
    panel::{VECTORS, pack, width},
    plan::{Segment, Task, Tile},
    prefetch::Prefetch,
    score_block::ScoreBlock,
    scores::Biases,
    sink_log,
    stored::Rows,
};

/// What all heads share.
pub(super) struct Observer<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) query: View<'a>,
    pub(super) key: View<'a>,
    pub(super) lse: &'a [f32],
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
}

/// One worker's memory.
struct Scratch {
    query: Buffer,
    weights: Buffer,
    bias: Buffer,
    /// The `lse` as base and `-log₂` of the sum.
    base: Buffer,
    minus_log: Buffer,
    /// `Σ_j w (log₂ w)`
    entropy: Buffer,
    unused: Buffer,
    tile: Tile<SEGMENTS>,
    /// The largest weights of each lane, largest first.
    top: Vec<Vec<(f32, u32)>>,
}

impl Kernel for Head<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let (observer, width) = (self.observer, width::<S>());
        let job = observer.job;
        let sequence = job.attention.sequence(&job.sizes, self.index);
        let mut scratch = Scratch {
            query: Buffer::new(job.sizes.dim * width),
            weights: Buffer::new(TILE * width),
            bias: Buffer::new(2 * TILE_KEYS * width),
            base: Buffer::new(width),
            minus_log: Buffer::new(width),
            entropy: Buffer::new(width),
            unused: Buffer::new(width),
            tile: Tile::EMPTY,
            top: vec![Vec::with_capacity(observer.k + 1); width],
        };
        for query in (0..sequence.queries).step_by(width) {
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
        let job = self.job;
        let (sizes, sequence, width) = (&job.sizes, &task.sequence, width::<S>());
        let position = sequence.first_query + task.query;
        let row = |i: usize| self.query.row(sequence.batch, task.head, position + i);
        pack(
            s,
            &mut scratch.query,
            task.queries,
            sizes.dim,
            self.query.strides[2],
            1.0,
            row,
        );
        let first = (sequence.batch * sizes.heads + task.head) * sizes.queries + position;
        let lse = &self.lse[3 * first..3 * (first + task.queries)];
        for (i, lse) in lse.chunks_exact(3).enumerate() {
            (scratch.base[i], scratch.minus_log[i]) = job.lse_to_base(lse);
        }
        scratch.entropy.fill(0.0);
        scratch.top.iter_mut().for_each(Vec::clear);
        let visible = Visible::new(&job.attention, sizes, sequence, task.index, task.head);
        let key_head = task.head / (sizes.heads / sizes.key_heads);
        let key = Rows::new(&self.key, sequence.batch, key_head, sequence.first_key);
        let reach = visible.reach(task.query, task.queries);
        let mut next = reach.start / TILE_KEYS * TILE_KEYS;
        while next < reach.end {
            let tile = &mut scratch.tile;
            tile.fill(&visible, task, S::LANES, &(0..0), reach.end, &mut next);
            for index in 0..scratch.tile.segments().len() {
                let segment = scratch.tile.segments()[index];
                self.weigh(s, scratch, task, &segment, key);
                self.read(s, scratch, task, &segment);
            }
        }
        let (batch, head) = (sequence.batch, task.head);
        for i in 0..task.queries {
            // SAFETY: the outputs were checked; one thread has this head.
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
        debug_assert!(width >= task.queries);
    }

    /// Adds the sink's share to an entropy.
    fn whole_entropy(&self, entropy: f32, head: usize, lse: &[f32]) -> f32 {
        match self.job.attention.sink {
            Some(sinks) => {
                let log = sink_log(sinks[head], lse);
                entropy - (log.exp() * log) as f32
            }
            None => entropy,
        }
    }

    /// The weights of one segment, into its rows of the tile, and their entropy.
    #[inline(always)]
    fn weigh<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        task: &Task,
        segment: &Segment,
        key: Rows,
    ) {
        let (job, width) = (self.job, width::<S>());
        for row in (0..segment.keys).step_by(TILE_KEYS) {
            let keys = TILE_KEYS.min(segment.keys - row);
            let range = segment.key + row..segment.key + row + keys;
            if let Some(biases) = Biases::of(job, task) {
                let live = segment.first..segment.end;
                biases.transpose(s, task, range.clone(), live, &mut scratch.bias);
            }
            let at = (segment.row + row) * width;
            let rows = &mut scratch.weights[at..][..TILE_KEYS * width];
            let block = ScoreBlock {
                job,
                task,
                query: &scratch.query,
                key: key.from(range.start),
                keys: range,
                first: segment.first,
                m: &scratch.base,
                sum: &mut scratch.unused,
                weights: rows,
                bits: None,
                row: 0,
                bias: &scratch.bias,
                raw: true,
                prefetch: &mut Prefetch::default(),
            };
            let vectors = segment.end - segment.first;
            match S::LANES {
                16 => block.run::<S, 8>(s, vectors),
                _ => block.run::<S, 4>(s, vectors),
            };
            let to_base = s.splat(job.to_base());
            for j in 0..keys {
                for v in segment.first..segment.end {
                    let lane = v * S::LANES;
                    let base = s.load(&scratch.base[lane..]);
                    let minus_log = s.load(&scratch.minus_log[lane..]);
                    let to = &mut rows[j * width + lane..];
                    let mut log = log_weight(s, s.load(to), base, to_base, minus_log);
                    if let Some(bits) = &segment.bits {
                        let bits = bits[v][row + j].into();
                        log = s.select(bits, log, s.splat(f32::NEG_INFINITY));
                    }
                    let weight = exp2(s, log);
                    s.store(to, weight);
                    // 0 · -∞ counts as 0.
                    let term = s.select(s.greater(weight, s.zero()), s.mul(weight, log), s.zero());
                    let total = s.add(s.load(&scratch.entropy[lane..]), term);
                    s.store(&mut scratch.entropy[lane..], total);
                }
            }
        }
    }

    /// Chosen rows, column sums and the largest weights, of one segment.
    #[inline(always)]
    fn read<S: Simd>(&self, _: S, scratch: &mut Scratch, task: &Task, segment: &Segment) {
        let width = width::<S>();
        let (batch, head) = (task.sequence.batch, task.head);
        let position = task.sequence.first_query + task.query;
        let lanes = segment.first * S::LANES..(segment.end * S::LANES).min(task.queries);
        let weights = &scratch.weights[segment.row * width..][..segment.keys * width];
        let keys = segment.key..segment.key + segment.keys;
        if let Some((wanted, to)) = &self.rows {
            for (index, &row) in wanted.iter().enumerate() {
                let Some(lane) = row
                    .checked_sub(position)
                    .filter(|lane| lanes.contains(lane))
                else {
                    continue;
                };
                // SAFETY: the output was checked; one thread has this head.
                let to = unsafe { to.row_mut(batch, head, index) };
                for (to, line) in to[keys.clone()].iter_mut().zip(weights.chunks_exact(width)) {
                    *to = line[lane];
                }
            }
        }
        if let Some(sums) = &self.sums {
            // SAFETY: as above.
            let to = unsafe { sums.row_mut(batch, head, 0) };
            let first = task.sequence.first_key;
            let to = &mut to[first + keys.start..first + keys.end];
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
