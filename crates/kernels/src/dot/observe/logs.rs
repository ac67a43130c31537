//! `log₂ w` of a panel of queries, a tile of keys at a time.

use crate::{
    mask::{TILE_KEYS, Visible},
    prefetch::Prefetch,
    simd::{Buffer, Simd},
    view::View,
};

use super::super::{
    Job,
    backward::log_weight,
    forward::{SEGMENTS, TILE},
    panel::{pack, width},
    plan::{Segment, Task, Tile},
    score_block::ScoreBlock,
    scores::Biases,
    stored::Rows,
};

/// What the logarithms follow from.
#[derive(Clone, Copy)]
pub(super) struct Logs<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) query: View<'a>,
    pub(super) key: View<'a>,
    pub(super) lse: &'a [f32],
}

/// A panel of queries and one tile of it: one worker's memory.
pub(super) struct Panel {
    query: Buffer,
    bias: Buffer,
    /// The `lse` as base and `-log₂` of the sum.
    base: Buffer,
    minus_log: Buffer,
    unused: Buffer,
    tile: Tile<SEGMENTS>,
    /// `[TILE, width]`: `log₂ w` of the tile's segments, a line for each key; `-∞` where a key is hidden.
    pub(super) logs: Buffer,
}

impl Panel {
    #[inline(always)]
    pub(super) fn new<S: Simd>(job: &Job) -> Self {
        let width = width::<S>();
        Self {
            query: Buffer::new(job.sizes.dim * width),
            bias: Buffer::new(2 * TILE_KEYS * width),
            base: Buffer::new(width),
            minus_log: Buffer::new(width),
            unused: Buffer::new(width),
            tile: Tile::EMPTY,
            logs: Buffer::new(TILE * width),
        }
    }

    pub(super) fn segments(&self) -> &[Segment] {
        self.tile.segments()
    }
}

impl Logs<'_> {
    /// The row of the first query of `task` among all rows of its head.
    pub(super) fn position(&self, task: &Task) -> usize {
        task.sequence.first_query + task.query
    }

    /// The `lse` of the queries of `task`, three numbers each.
    pub(super) fn lse(&self, task: &Task) -> &[f32] {
        let sizes = &self.job.sizes;
        let first = (task.sequence.batch * sizes.heads + task.head) * sizes.queries;
        &self.lse[3 * (first + self.position(task))..][..3 * task.queries]
    }

    /// Goes to the panel of `task`.
    #[inline(always)]
    pub(super) fn begin<S: Simd>(&self, s: S, panel: &mut Panel, task: &Task) {
        let position = self.position(task);
        let row = |i: usize| self.query.row(task.sequence.batch, task.head, position + i);
        pack(
            s,
            &mut panel.query,
            task.queries,
            self.job.sizes.dim,
            self.query.strides[2],
            1.0,
            row,
        );
        for (i, lse) in self.lse(task).chunks_exact(3).enumerate() {
            (panel.base[i], panel.minus_log[i]) = self.job.lse_to_base(lse);
        }
    }

    /// Computes the next tile, of keys from `*next` to `end`, and moves `*next` behind it.
    #[inline(always)]
    pub(super) fn tile<S: Simd>(
        &self,
        s: S,
        panel: &mut Panel,
        task: &Task,
        visible: &Visible,
        next: &mut usize,
        end: usize,
    ) {
        let sizes = &self.job.sizes;
        let key_head = task.head / (sizes.heads / sizes.key_heads);
        let key = Rows::new(
            &self.key,
            task.sequence.batch,
            key_head,
            task.sequence.first_key,
        );
        let near_all = 0..0;
        (panel.tile).fill(visible, task, S::LANES, &near_all, end, next);
        for index in 0..panel.tile.segments().len() {
            let segment = panel.tile.segments()[index];
            self.segment(s, panel, task, &segment, key);
        }
    }

    #[inline(always)]
    fn segment<S: Simd>(&self, s: S, panel: &mut Panel, task: &Task, segment: &Segment, key: Rows) {
        let (job, width) = (self.job, width::<S>());
        for row in (0..segment.keys).step_by(TILE_KEYS) {
            let keys = TILE_KEYS.min(segment.keys - row);
            let range = segment.key + row..segment.key + row + keys;
            if let Some(biases) = Biases::of(job, task) {
                let live = segment.first..segment.end;
                biases.transpose(s, task, range.clone(), live, &mut panel.bias);
            }
            let at = (segment.row + row) * width;
            let rows = &mut panel.logs[at..][..TILE_KEYS * width];
            let block = ScoreBlock {
                job,
                task,
                query: &panel.query,
                key: key.from(range.start),
                keys: range,
                first: segment.first,
                m: &panel.base,
                sum: &mut panel.unused,
                weights: rows,
                bits: None,
                row: 0,
                bias: &panel.bias,
                raw: true,
                prefetch: &mut Prefetch::default(),
            };
            let vectors = segment.end - segment.first;
            match S::LANES {
                16 => block.run::<S, 8>(s, vectors),
                _ => block.run::<S, 4>(s, vectors),
            };
            let to_base = s.splat(job.to_base());
            for v in segment.first..segment.end {
                let lane = v * S::LANES;
                let base = s.load(&panel.base[lane..]);
                let minus_log = s.load(&panel.minus_log[lane..]);
                for j in 0..keys {
                    let to = &mut rows[j * width + lane..];
                    let mut log = log_weight(s, s.load(to), base, to_base, minus_log);
                    if let Some(bits) = &segment.bits {
                        let bits = bits[v][row + j].into();
                        log = s.select(bits, log, s.splat(f32::NEG_INFINITY));
                    }
                    s.store(to, log);
                }
            }
        }
    }
}
