//! What attention looked at, from its `lse`, without the matrix of weights.
//!
//! ```text
//! w_ij = e^{s_ij - lse_i}                                  before dropout
//! rows of weights      w_i.           for the queries asked for     [batch, heads, rows, keys]
//! entropy              -Σ_j w_ij ln w_ij (nats; a sink's share is in it)   [batch, heads, queries]
//! column sums          Σ_i w_ij       what each key received        [batch, heads, keys]
//! top k                the k largest w_ij of each query             [batch, heads, queries, k]
//! ```
//! The scores are computed once more (no values are read: half of a forward pass), tile by tile; if only
//! rows are asked for, only the panels that hold them. One thread owns a head, so sums have one order.
//!
//! ```
//! use regard_kernels::{Attention, View, ViewMut, dot};
//!
//! let (query, key, value) = ([1.0f32, 0.0], [1.0f32, 0.0, 0.0, 1.0], [1.0f32, 2.0]);
//! let (q, k) = (View::heads_first(&query, [1, 1, 1, 2]), View::heads_first(&key, [1, 1, 2, 2]));
//! let v = View::heads_first(&value, [1, 1, 2, 1]);
//! let (mut output, mut lse, mut weights) = ([0.0f32], [0.0f32], [0.0f32; 2]);
//! let attention = Attention::default();
//! dot::forward(&attention, q, k, v, ViewMut::heads_first(&mut output, [1, 1, 1, 1]), Some(&mut lse))?;
//! let observe = dot::Observe { rows: Some((&[0], &mut weights)), ..dot::Observe::default() };
//! dot::observe(&attention, q, k, &lse, observe)?;
//! assert!((weights[0] + weights[1] - 1.0).abs() < 1e-6 && weights[0] > weights[1]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{
    error::{KernelError, check_length, product},
    mask::{Plane, TILE_KEYS, Visible},
    problem::Attention,
    simd::{Buffer, Kernel, Level, Simd, exp2, run},
    threads::crew,
    view::{SharedRows, View, ViewMut},
};

use super::{
    Job, Modify, Unmodified,
    forward::{SEGMENTS, TILE},
    panel::{VECTORS, pack, width},
    plan::{Segment, Task, Tile},
    score_block::ScoreBlock,
    scores::turn_bias,
    stored::Rows,
};

/// What to observe; everything is optional. Of a packed batch, queries count through the pack and keys
/// from the start of their sequence, with room for all keys of the pack.
#[derive(Debug, Default)]
pub struct Observe<'a> {
    /// Queries whose weights are wanted, and `[batch, heads, rows, keys]` for them.
    pub rows: Option<(&'a [usize], &'a mut [f32])>,
    /// `[batch, heads, queries]`, in nats.
    pub entropy: Option<&'a mut [f32]>,
    /// `[batch, heads, keys]`
    pub column_sums: Option<&'a mut [f32]>,
    /// The `k` largest weights of each query.
    pub top: Option<Top<'a>>,
}

/// The largest weights of each query, largest first, the earlier key first among equals.
#[derive(Debug)]
pub struct Top<'a> {
    /// How many.
    pub k: usize,
    /// `[batch, heads, queries, k]`; 0 where a query sees fewer keys.
    pub weights: &'a mut [f32],
    /// `[batch, heads, queries, k]`: the keys; `u32::MAX` where a query sees fewer.
    pub keys: &'a mut [u32],
}

/// Fills what `observe` asks for, from the `lse [batch, heads, queries]` of a [`super::forward`] with the
/// same arguments.
///
/// # Errors
/// An argument whose shape, strides or values do not fit, by name; nothing is written then.
pub fn observe(
    attention: &Attention,
    query: View,
    key: View,
    lse: &[f32],
    observe: Observe,
) -> Result<(), KernelError> {
    observe_modified(attention, &Unmodified, query, key, lse, observe)
}

/// [`observe()`] of [`super::forward_modified`].
///
/// # Errors
/// As [`observe()`].
pub fn observe_modified<M: Modify>(
    attention: &Attention,
    modify: &M,
    query: View,
    key: View,
    lse: &[f32],
    observe: Observe,
) -> Result<(), KernelError> {
    observe_at(
        Level::current(),
        attention,
        modify,
        query,
        key,
        lse,
        observe,
    )
}

pub(super) fn observe_at<M: Modify>(
    level: Level,
    attention: &Attention,
    modify: &M,
    query: View,
    key: View,
    lse: &[f32],
    observe: Observe,
) -> Result<(), KernelError> {
    let job = Job::new(attention, modify, query, key, key)?;
    let [batch, heads, queries, _] = query.shape;
    let keys = key.shape[2];
    check_length(
        "lse",
        "[batch, heads, queries]",
        &[batch, heads, queries],
        lse.len(),
    )?;
    let mut rows = None;
    if let Some((wanted, weights)) = observe.rows {
        if let Some(position) = wanted.iter().position(|&row| row >= queries) {
            return Err(KernelError::Entry {
                argument: "rows",
                position,
                expected: format!("a query below {queries}"),
                found: wanted[position].to_string(),
            });
        }
        let shape = [batch, heads, wanted.len(), keys];
        check_length(
            "rows.weights",
            "[batch, heads, rows, keys]",
            &shape,
            weights.len(),
        )?;
        weights.fill(0.0);
        rows = Some((wanted, ViewMut::heads_first(weights, shape)));
    }
    let mut entropy = None;
    if let Some(to) = observe.entropy {
        check_length(
            "entropy",
            "[batch, heads, queries]",
            &[batch, heads, queries],
            to.len(),
        )?;
        entropy = Some(ViewMut::heads_first(to, [batch, heads, queries, 1]));
    }
    let mut sums = None;
    if let Some(to) = observe.column_sums {
        check_length(
            "column_sums",
            "[batch, heads, keys]",
            &[batch, heads, keys],
            to.len(),
        )?;
        to.fill(0.0);
        sums = Some(ViewMut::heads_first(to, [batch, heads, 1, keys]));
    }
    let (mut top_weights, mut top_keys, mut k) = (None, None, 0);
    if let Some(top) = observe.top {
        let shape = [batch, heads, queries, top.k];
        product("top.weights", "[batch, heads, queries, k]", &shape)?;
        check_length(
            "top.weights",
            "[batch, heads, queries, k]",
            &shape,
            top.weights.len(),
        )?;
        check_length(
            "top.keys",
            "[batch, heads, queries, k]",
            &shape,
            top.keys.len(),
        )?;
        k = top.k;
        top_weights = Some(ViewMut::heads_first(top.weights, shape));
        top_keys = Some(ViewMut::heads_first(top.keys, shape));
    }
    let everywhere = entropy.is_some() || sums.is_some() || k > 0;
    let tasks = job.sizes.batch * heads;
    let shared = Observer {
        job: &job,
        query,
        key,
        lse,
        rows: rows.as_mut().map(|(wanted, to)| (*wanted, to.shared())),
        entropy: entropy.as_mut().map(ViewMut::shared),
        sums: sums.as_mut().map(ViewMut::shared),
        top_weights: top_weights.as_mut().map(ViewMut::shared),
        top_keys: top_keys.as_mut().map(ViewMut::shared),
        k,
        everywhere,
    };
    crew(tasks, job.nanoseconds(1.0), &|next: &AtomicUsize| {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            run(
                level,
                Head {
                    observer: &shared,
                    index: task / heads,
                    head: task % heads,
                },
            );
        }
    });
    Ok(())
}

struct Observer<'a, M> {
    job: &'a Job<'a, M>,
    query: View<'a>,
    key: View<'a>,
    lse: &'a [f32],
    rows: Option<(&'a [usize], SharedRows<'a, f32>)>,
    entropy: Option<SharedRows<'a, f32>>,
    sums: Option<SharedRows<'a, f32>>,
    top_weights: Option<SharedRows<'a, f32>>,
    top_keys: Option<SharedRows<'a, u32>>,
    k: usize,
    /// Every panel is needed, not only those with chosen rows.
    everywhere: bool,
}

/// One head of one sequence.
struct Head<'a, M> {
    observer: &'a Observer<'a, M>,
    index: usize,
    head: usize,
}

/// One worker's memory.
struct Scratch {
    query: Buffer,
    weights: Buffer,
    bias: Buffer,
    minus_lse: Buffer,
    /// `Σ_j w (log₂ w)`
    entropy: Buffer,
    unused: Buffer,
    tile: Tile<SEGMENTS>,
    /// The largest weights of each lane, largest first.
    top: Vec<Vec<(f32, u32)>>,
}

impl<M: Modify> Kernel for Head<'_, M> {
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
            minus_lse: Buffer::new(width),
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

impl<M: Modify> Observer<'_, M> {
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
        let natural = f64::from(job.to_natural[0]) + f64::from(job.to_natural[1]);
        // A row that sees nothing (and has no sink) has no weights, whatever it is divided by.
        for (to, &lse) in scratch
            .minus_lse
            .iter_mut()
            .zip(&self.lse[first..first + task.queries])
        {
            *to = if lse == f32::NEG_INFINITY {
                0.0
            } else {
                (-f64::from(lse) / natural) as f32
            };
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
            tile.fill(
                &visible,
                job.modify,
                task,
                S::LANES,
                &(0..0),
                reach.end,
                &mut next,
            );
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
                        self.lse[first + i],
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
    fn whole_entropy(&self, entropy: f32, head: usize, lse: f32) -> f32 {
        match self.job.attention.sink {
            Some(sinks) => {
                let log = sinks[head] - lse;
                entropy - log.exp() * log
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
            if let Some(bias) = &job.attention.bias {
                let plane = Plane::new(bias, task.index, task.head);
                let live = segment.first..segment.end;
                turn_bias(s, &plane, task, range.clone(), live, &mut scratch.bias);
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
                minus_m: &scratch.minus_lse,
                sum: &mut scratch.unused,
                weights: rows,
                bits: None,
                row: 0,
                bias: &scratch.bias,
                raw: true,
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
                    let minus_lse = s.load(&scratch.minus_lse[lane..]);
                    let to = &mut rows[j * width + lane..];
                    let mut log = s.fma(s.load(to), to_base, minus_lse);
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
                    if weight > least {
                        let at = best.partition_point(|&(other, _)| other >= weight);
                        best.insert(at, (weight, key as u32));
                        best.truncate(self.k);
                    }
                }
            }
        }
        debug_assert!(segment.end <= VECTORS);
    }
}
