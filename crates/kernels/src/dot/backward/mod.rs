//! The backward pass.
//!
//! With `P = e^{s - lse}`, `δ_i = dO_i · O_i` and `∘` for products number by number:
//! ```text
//! dV = Pᵀ dO     dP = dO Vᵀ     dS = P ∘ (dP - δ)     dQ = scale · dS K     dK = scale · dSᵀ Q
//! ```
//! Between `s` and the product `scale · q k` stand the slopes of softcap (`1 - tanh²`) and of a caller's
//! change; the gradient of a bias is `dS` before the softcap, that of a sink `-Σ_i e^{sink - lse_i} δ_i`.
//! Under dropout `dP` is masked and scaled as the weights were, and so is the `P` of `dV`.
//!
//! ```text
//! for each panel of queries (lanes), for each tile of keys:
//!     Sᵀ  block [8 keys, 3 vectors]   P  = e^(scale · Sᵀ - lse), in registers  -> P tile  [keys, queries]
//!     dPᵀ block [8 keys, 3 vectors]   dS = P ∘ (dPᵀ - δ), in registers         -> dS tile [keys, queries]
//!     dQᵀ block [8 dims, 3 vectors]  += Σ over the tile's keys     K dS     -> dQ panel [dim, queries]
//!     dV  block [8 keys, 2 or 3 vectors of dims] += Σ over queries P dO     -> rows of the output
//!     dK  block [8 keys, 2 or 3 vectors of dims] += Σ over queries dS Q     -> rows of the output
//! ```
//! All five are the micro-kernel of `micro`. In the first three the queries lie in the lanes and
//! numbers of a key, a value or a key are spread; in the last two the dims lie in the lanes and numbers
//! of the tiles are spread, which lie side by side for one key. So nothing is transposed but the panels.
//!
//! Who owns what: all panels of all query heads of one key/value head are one task, which alone writes
//! that head's `dK` and `dV`. With fewer than [`share::TASKS`] such heads each is split into a fixed
//! number of parts, every part with a `dK` and `dV` of its own but the first; these are summed in order
//! (see [`share`]). The cut follows from the shapes alone, so the bits do not depend on the threads.
//!
//! A hidden key meets a gradient of 0, and `0 · NaN` is NaN. So where a mask cuts through a segment whose
//! keys, queries or output gradients are not all finite, its products are formed one by one, reading
//! only what is seen.

mod blocks;
mod options;
mod share;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{
    error::{KernelError, check_length},
    mask::{TILE_KEYS, Visible},
    problem::Attention,
    simd::{Buffer, Kernel, Level, Simd, run},
    threads::crew,
    view::{SharedRows, View, ViewMut},
};

use super::{
    Job, check_shape,
    forward::{Context, ContextKernel, careful_context},
    modify::Modify,
    panel::{pack, unpack, width},
    panel_width,
    plan::{Plan, Segment, Task, Tile},
    stored::Rows,
};

use blocks::{GradientBlock, GradientKernel, Spread, SpreadKernel, WeightBlock, WeightKernel};
use options::Slopes;
use share::{Copies, Destination, Shares};

/// Keys whose weights and gradients are held at once.
const TILE: usize = 128;
/// Segments in a tile.
const SEGMENTS: usize = TILE / TILE_KEYS;

/// Where the gradients go. What stands there is overwritten.
#[derive(Debug)]
pub struct Gradients<'a> {
    /// `[batch, heads, queries, dim]`
    pub query: ViewMut<'a>,
    /// `[batch, key_heads, keys, dim]`
    pub key: ViewMut<'a>,
    /// `[batch, key_heads, keys, value_dim]`
    pub value: ViewMut<'a>,
    /// Of the shape of [`Attention::bias`]: summed over the axes that it is broadcast along.
    pub bias: Option<ViewMut<'a>>,
    /// `[heads]`
    pub sink: Option<&'a mut [f32]>,
}

/// The other arguments of the backward pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) query: View<'a>,
    pub(super) key: View<'a>,
    pub(super) value: View<'a>,
    pub(super) output: View<'a>,
    pub(super) lse: &'a [f32],
    pub(super) d_output: View<'a>,
}

pub(super) fn backward_at<M: Modify>(
    level: Level,
    attention: &Attention,
    modify: &M,
    inputs: Inputs,
    gradients: Gradients,
) -> Result<(), KernelError> {
    let job = Job::new(attention, modify, inputs.query, inputs.key, inputs.value)?;
    check(&job, &inputs, &gradients)?;
    let Gradients {
        mut query,
        mut key,
        mut value,
        mut bias,
        sink,
    } = gradients;
    let sizes = &job.sizes;
    let plan = Plan::new(attention, sizes, panel_width(level));
    let shares = Shares::new(attention, sizes, bias.as_ref().map(|bias| bias.shape));
    let mut key_copies = Copies::new(key.shape, shares.parts);
    let mut value_copies = Copies::new(value.shape, shares.parts);
    // Parts have queries of their own, so rows of a bias only meet where all queries share one.
    let mut bias_copies = bias.as_ref().map(|bias| {
        let parts = if bias.shape[2] == 1 { shares.parts } else { 1 };
        Copies::new(bias.shape, parts)
    });
    let mut sinks = vec![0.0f64; sizes.batch * sizes.heads * shares.parts];
    let mut sink_rows =
        ViewMut::heads_first(&mut sinks, [sizes.batch, sizes.heads, shares.parts, 1]);
    if let Some(bias) = &mut bias {
        share::clear(bias);
    }
    let d_query = query.shared();
    let (mut other_keys, mut other_values) = (key_copies.view(), value_copies.view());
    let mut other_biases = bias_copies.as_mut().map(Copies::view);
    let d_key = Destination::new(&mut key, &mut other_keys);
    let d_value = Destination::new(&mut value, &mut other_values);
    let d_bias = match (&mut bias, &mut other_biases) {
        (Some(bias), Some(copies)) => Some(Destination::new(bias, copies)),
        _ => None,
    };
    let sink_rows = sink_rows.shared();
    crew(
        shares.tasks(),
        job.nanoseconds(5.0),
        &|next: &AtomicUsize| {
            let (job, plan, shares, inputs) = (&job, &plan, &shares, &inputs);
            let worker = Worker {
                job,
                plan,
                shares,
                inputs,
                d_query,
                d_key,
                d_value,
                d_bias,
                sink_rows,
                next,
            };
            run(level, worker);
        },
    );
    key_copies.add_to(&mut key);
    value_copies.add_to(&mut value);
    if let (Some(bias), Some(copies)) = (&mut bias, &bias_copies) {
        copies.add_to(bias);
    }
    if let Some(sink) = sink {
        for (head, sink) in sink.iter_mut().enumerate() {
            let row = |index: usize| {
                &sinks[(index * sizes.heads + head) * shares.parts..][..shares.parts]
            };
            *sink = (0..sizes.batch).flat_map(row).sum::<f64>() as f32;
        }
    }
    Ok(())
}

fn check<M: Modify>(
    job: &Job<M>,
    inputs: &Inputs,
    gradients: &Gradients,
) -> Result<(), KernelError> {
    let attention = &job.attention;
    let [batch, heads, queries, _] = inputs.query.shape;
    let shape = [batch, heads, queries, job.sizes.value_dim];
    for (argument, view) in [("output", &inputs.output), ("d_output", &inputs.d_output)] {
        check_shape(argument, view.shape, shape)?;
        view.check(argument)?;
    }
    check_length(
        "lse",
        "[batch, heads, queries]",
        &shape[..3],
        inputs.lse.len(),
    )?;
    for (argument, view, like) in [
        ("gradients.query", &gradients.query, &inputs.query),
        ("gradients.key", &gradients.key, &inputs.key),
        ("gradients.value", &gradients.value, &inputs.value),
    ] {
        check_shape(argument, view.shape, like.shape)?;
        view.check(argument)?;
    }
    if let Some(gradient) = &gradients.bias {
        let Some(bias) = &attention.bias else {
            return Err(absent("gradients.bias", "bias"));
        };
        check_shape("gradients.bias", gradient.shape, bias.shape)?;
        gradient.check("gradients.bias")?;
    }
    if let Some(gradient) = &gradients.sink {
        if attention.sink.is_none() {
            return Err(absent("gradients.sink", "sink"));
        }
        check_length("gradients.sink", "[heads]", &[heads], gradient.len())?;
    }
    Ok(())
}

/// A gradient was asked for by an option that is not set.
fn absent(argument: &'static str, option: &'static str) -> KernelError {
    KernelError::Entry {
        argument,
        position: 0,
        expected: format!(
            "nothing, for the attention has no {option}: pass None, or set `{option}`"
        ),
        found: "a place for a gradient".into(),
    }
}

/// What the workers of one call share.
struct Worker<'a, M> {
    job: &'a Job<'a, M>,
    plan: &'a Plan,
    shares: &'a Shares,
    inputs: &'a Inputs<'a>,
    d_query: SharedRows<'a, f32>,
    d_key: Destination<'a>,
    d_value: Destination<'a>,
    d_bias: Option<Destination<'a>>,
    /// `[batch, heads, parts, 1]`
    sink_rows: SharedRows<'a, f64>,
    next: &'a AtomicUsize,
}

/// One worker's memory.
struct Scratch {
    /// Qᵀ, Oᵀ and dOᵀ, `[dim, width]`.
    query: Buffer,
    output: Buffer,
    d_output: Buffer,
    /// scale Q and dO, `[width, dim]`, the dims rounded up to whole vectors.
    query_rows: Buffer,
    d_output_rows: Buffer,
    /// Pᵀ and dSᵀ, `[TILE, width]`.
    weights: Buffer,
    gradients: Buffer,
    slopes: Slopes,
    /// dQᵀ, `[dim, width]`.
    d_query: Buffer,
    /// `-lse`, to base 2 where nothing acts on the scores, and `-δ`: `[width]`.
    minus_lse: Buffer,
    minus_delta: Buffer,
    /// The queries' part of dropout's hashes.
    hashes: [u32; 48],
    /// Whether Q, dO and, for each 16 of its rows, K hold finite numbers only.
    finite_query: bool,
    finite_d_output: bool,
    finite_key: Vec<bool>,
    tile: Tile<SEGMENTS>,
}

impl<M: Modify> Kernel for Worker<'_, M> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let (width, sizes) = (width::<S>(), &self.job.sizes);
        let rounded = |dim: usize| dim.next_multiple_of(S::LANES);
        let mut scratch = Scratch {
            query: Buffer::new(sizes.dim * width),
            output: Buffer::new(sizes.value_dim * width),
            d_output: Buffer::new(sizes.value_dim * width),
            query_rows: Buffer::new(rounded(sizes.dim) * width),
            d_output_rows: Buffer::new(rounded(sizes.value_dim) * width),
            weights: Buffer::new(TILE * width),
            gradients: Buffer::new(TILE * width),
            slopes: Slopes::new::<M>(&self.job.attention, TILE, width),
            d_query: Buffer::new(sizes.dim * width),
            minus_lse: Buffer::new(width),
            minus_delta: Buffer::new(width),
            hashes: [0; 48],
            finite_query: true,
            finite_d_output: true,
            finite_key: Vec::new(),
            tile: Tile::EMPTY,
        };
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= self.shares.tasks() {
                return;
            }
            let share = self.shares.share(task);
            for index in share.sequences.clone() {
                for key_head in share.key_heads.clone() {
                    self.key_head(s, &mut scratch, share.part, index, key_head);
                }
            }
        }
    }
}

impl<M: Modify> Worker<'_, M> {
    /// One part of all that belongs to a key head of a sequence.
    #[inline(always)]
    fn key_head<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        part: usize,
        index: usize,
        key_head: usize,
    ) {
        let (job, sizes) = (self.job, &self.job.sizes);
        let sequence = job.attention.sequence(sizes, index);
        scratch.finite_key.clear();
        let key = |j: usize| {
            self.inputs
                .key
                .row(sequence.batch, key_head, sequence.first_key + j)
        };
        for first in (0..sequence.keys).step_by(TILE_KEYS) {
            let end = sequence.keys.min(first + TILE_KEYS);
            scratch
                .finite_key
                .push((first..end).all(|j| is_finite(s, key(j))));
        }
        if part == 0 {
            for (to, dim) in [(&self.d_key, sizes.dim), (&self.d_value, sizes.value_dim)] {
                let to = to.rows(part, sequence.batch, key_head, sequence.first_key);
                for j in 0..sequence.keys {
                    // SAFETY: the gradients were checked; this part alone has the rows of this key head.
                    unsafe { to.from(j).row(dim) }.fill(0.0);
                }
            }
        }
        let group = sizes.heads / sizes.key_heads;
        for head in key_head * group..(key_head + 1) * group {
            let mut sink = 0.0;
            let panels = self.plan.panels_of(&sequence, index, head);
            for task in panels.skip(part).step_by(self.shares.parts) {
                let task = self.plan.task(&job.attention, sizes, task);
                sink += self.panel(s, scratch, &task, key_head, part);
            }
            // SAFETY: the rows were made for the call; this task alone has this one.
            unsafe { self.sink_rows.row_mut(index, head, part)[0] = sink };
        }
    }

    /// The gradients of one panel. Returns its part of the sink's.
    #[inline(always)]
    fn panel<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        task: &Task,
        key_head: usize,
        part: usize,
    ) -> f64 {
        let (job, sizes, sequence) = (self.job, &self.job.sizes, &task.sequence);
        let sink = self.fetch(s, scratch, task);
        let visible = Visible::new(&job.attention, sizes, sequence, task.index, task.head);
        let heads = Heads {
            key: Rows::new(
                &self.inputs.key,
                sequence.batch,
                key_head,
                sequence.first_key,
            ),
            value: Rows::new(
                &self.inputs.value,
                sequence.batch,
                key_head,
                sequence.first_key,
            ),
            d_key: self
                .d_key
                .rows(part, sequence.batch, key_head, sequence.first_key),
            d_value: self
                .d_value
                .rows(part, sequence.batch, key_head, sequence.first_key),
            part,
        };
        let range = visible.reach(task.query, task.queries);
        let mut seen_by_all = visible.seen_by_all(task.query, task.queries);
        if M::ACTIVE {
            seen_by_all = 0..0; // the caller may skip tiles
        }
        let mut key = range.start / TILE_KEYS * TILE_KEYS;
        while key < range.end {
            let (tile, modify, lanes) = (&mut scratch.tile, job.modify, S::LANES);
            tile.fill(
                &visible,
                modify,
                task,
                lanes,
                &seen_by_all,
                range.end,
                &mut key,
            );
            for index in 0..scratch.tile.segments().len() {
                let segment = scratch.tile.segments()[index];
                if S::LANES == 16 {
                    self.score_gradients::<S, 8>(s, scratch, task, &segment, &heads);
                } else {
                    self.score_gradients::<S, 4>(s, scratch, task, &segment, &heads);
                }
            }
            let mut first = 0;
            while first < scratch.tile.segments().len() {
                first = self.products(s, scratch, task, first, &heads);
            }
        }
        let scale = s.splat(job.attention.scale(sizes.dim));
        for x in scratch.d_query.chunks_exact_mut(S::LANES) {
            let scaled = s.mul(s.load(x), scale);
            s.store(x, scaled);
        }
        let position = sequence.first_query + task.query;
        let (to, stride) = self.d_query.start(sequence.batch, task.head, position);
        // SAFETY: the gradient was checked; this task alone has these rows.
        unsafe { unpack(s, &scratch.d_query, task.queries, sizes.dim, to, stride) };
        sink
    }

    /// Brings in the queries of a panel and what belongs to them. Returns its part of the sink's gradient.
    #[inline(always)]
    fn fetch<S: Simd>(&self, s: S, scratch: &mut Scratch, task: &Task) -> f64 {
        let (job, inputs) = (self.job, self.inputs);
        let (sizes, batch, head) = (&job.sizes, task.sequence.batch, task.head);
        let position = task.sequence.first_query + task.query;
        let query = |i: usize| inputs.query.row(batch, head, position + i);
        let output = |i: usize| inputs.output.row(batch, head, position + i);
        let d_output = |i: usize| inputs.d_output.row(batch, head, position + i);
        let stride = inputs.query.strides[2];
        pack(
            s,
            &mut scratch.query,
            task.queries,
            sizes.dim,
            stride,
            1.0,
            query,
        );
        let stride = inputs.d_output.strides[2];
        pack(
            s,
            &mut scratch.d_output,
            task.queries,
            sizes.value_dim,
            stride,
            1.0,
            d_output,
        );
        let stride = inputs.output.strides[2];
        pack(
            s,
            &mut scratch.output,
            task.queries,
            sizes.value_dim,
            stride,
            1.0,
            output,
        );
        scratch.d_query.fill(0.0);
        scratch.minus_lse.fill(0.0);
        // In the order of the products that it is taken off: where one key has nearly all the weight,
        // both round alike and the difference is exact.
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
        (scratch.finite_query, scratch.finite_d_output) = (true, true);
        let scale = s.splat(job.attention.scale(sizes.dim));
        // Where nothing acts on the scores, `lse` goes to the base of the products.
        let base = if job.modified {
            1.0
        } else {
            f64::from(job.to_natural[0]) + f64::from(job.to_natural[1])
        };
        let lse = &inputs.lse[(batch * sizes.heads + head) * sizes.queries + position..];
        let mut sink = 0.0;
        for (i, &lse) in lse[..task.queries].iter().enumerate() {
            if let Some(dropout) = &job.attention.dropout {
                scratch.hashes[i] = dropout.query_hash(task.index, head, task.query + i);
            }
            scratch.finite_query &= is_finite(s, query(i));
            scratch.finite_d_output &= is_finite(s, d_output(i));
            let stride = sizes.dim.next_multiple_of(S::LANES);
            copy(s, query(i), &mut scratch.query_rows[i * stride..], scale);
            let stride = sizes.value_dim.next_multiple_of(S::LANES);
            copy(
                s,
                d_output(i),
                &mut scratch.d_output_rows[i * stride..],
                s.splat(1.0),
            );
            // A query that sees nothing has -∞ there, and no weight whatever it starts from.
            if lse != f32::NEG_INFINITY {
                scratch.minus_lse[i] = (-f64::from(lse) / base) as f32;
                if let Some(sinks) = job.attention.sink {
                    let weight = (f64::from(sinks[head]) - f64::from(lse)).exp();
                    sink -= weight * inner(d_output(i), output(i));
                }
            }
        }
        sink
    }

    /// Weights and score gradients of a segment, `R` keys at a time.
    #[inline(always)]
    fn score_gradients<S: Simd, const R: usize>(
        &self,
        s: S,
        scratch: &mut Scratch,
        task: &Task,
        segment: &Segment,
        heads: &Heads,
    ) {
        let job = self.job;
        let width = width::<S>();
        let lines =
            segment.row * width..(segment.row + segment.keys.next_multiple_of(TILE_KEYS)) * width;
        let vectors = segment.end - segment.first;
        let block = WeightBlock {
            query: &scratch.query,
            dim: job.sizes.dim,
            key: heads.key.from(segment.key),
            segment,
            scores: (!job.modified).then_some((job.factor, &*scratch.minus_lse)),
            weights: &mut scratch.weights[lines.clone()],
        };
        match vectors {
            3 => s.outline(WeightKernel::<R, 3>(block)),
            2 => s.outline(WeightKernel::<R, 2>(block)),
            _ => s.outline(WeightKernel::<R, 1>(block)),
        }
        let slopes = &mut scratch.slopes;
        if job.modified {
            let weights = &mut scratch.weights[lines.clone()];
            options::weights(s, job, task, segment, &scratch.minus_lse, weights, slopes);
        }
        let raw = job.attention.dropout.is_some() || slopes.any() || self.d_bias.is_some();
        let block = GradientBlock {
            d_output: &scratch.d_output,
            value_dim: job.sizes.value_dim,
            value: heads.value.from(segment.key),
            segment,
            minus_delta: (!raw).then_some(&*scratch.minus_delta),
            weights: &scratch.weights[lines.clone()],
            gradients: &mut scratch.gradients[lines.clone()],
        };
        match vectors {
            3 => s.outline(GradientKernel::<R, 3>(block)),
            2 => s.outline(GradientKernel::<R, 2>(block)),
            _ => s.outline(GradientKernel::<R, 1>(block)),
        }
        if raw {
            let weights = &mut scratch.weights[lines.clone()];
            let gradients = &mut scratch.gradients[lines];
            let tile = options::TileGradients {
                segment,
                weights,
                gradients,
                slopes,
            };
            let d_bias = self.d_bias.as_ref().map(|d_bias| {
                |tile: &options::TileGradients| {
                    let row = |query| d_bias.broadcast(heads.part, task.index, task.head, query);
                    tile.add_to_bias(s, task, row);
                }
            });
            tile.apply(s, job, &scratch.minus_delta, &scratch.hashes, d_bias);
        }
    }

    /// What segments from `first` on add to the gradients of queries, keys and values: as many as follow
    /// each other. Returns the next segment.
    #[inline(always)]
    fn products<S: Simd>(
        &self,
        s: S,
        scratch: &mut Scratch,
        task: &Task,
        first: usize,
        heads: &Heads,
    ) -> usize {
        let segments = &scratch.tile.segments()[first..];
        let segment = &segments[0];
        // What is hidden has a gradient of 0, so segments can be read together.
        let (mut keys, mut count) = (segment.keys, 1);
        while count < segments.len() && segments[count].follows(segment, keys) {
            keys += segments[count].keys;
            count += 1;
        }
        let segments = &segments[..count];
        let partial = |segment: &Segment| segment.bits.is_some();
        let any_partial = segments.iter().any(partial);
        let finite_key = |segment: &Segment| scratch.finite_key[segment.key / TILE_KEYS];

        let (sizes, width) = (&self.job.sizes, width::<S>());
        let lines = segment.row * width..(segment.row + keys) * width;
        let (weights, gradients) = (&scratch.weights[lines.clone()], &scratch.gradients[lines]);
        let run = Context {
            weights: gradients,
            output: &mut scratch.d_query,
            value: heads.key.from(segment.key),
            keys,
            value_dim: sizes.dim,
            first: segment.first,
        };
        if segments
            .iter()
            .any(|segment| partial(segment) && !finite_key(segment))
        {
            careful_context(s, run, segments);
        } else {
            match segment.end - segment.first {
                3 => s.outline(ContextKernel::<f32, 3>(run)),
                2 => s.outline(ContextKernel::<f32, 2>(run)),
                _ => s.outline(ContextKernel::<f32, 1>(run)),
            }
        }
        let queries = segment.first * S::LANES..task.queries.min(segment.end * S::LANES);
        let (d_value, d_key) = (
            heads.d_value.from(segment.key),
            heads.d_key.from(segment.key),
        );
        for (scalars, rows, dim, to, finite) in [
            (
                weights,
                &scratch.d_output_rows,
                sizes.value_dim,
                d_value,
                scratch.finite_d_output,
            ),
            (
                gradients,
                &scratch.query_rows,
                sizes.dim,
                d_key,
                scratch.finite_query,
            ),
        ] {
            let run = Spread {
                scalars,
                rows,
                dim,
                to,
                keys,
                queries: queries.clone(),
            };
            if any_partial && !finite {
                run.careful(s, segments);
            } else {
                s.outline(SpreadKernel(run));
            }
        }
        first + count
    }
}

/// The rows of one key head.
struct Heads {
    key: Rows,
    value: Rows,
    d_key: share::Target,
    d_value: share::Target,
    part: usize,
}

/// `Σ a_i b_i` in double precision.
#[inline(always)]
fn inner(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(&a, &b)| f64::from(a) * f64::from(b))
        .sum()
}

/// True if every number is finite.
#[inline(always)]
fn is_finite<S: Simd>(s: S, row: &[f32]) -> bool {
    let mut sum = s.zero(); // 0 · ∞ is NaN
    for at in (0..row.len()).step_by(S::LANES) {
        sum = s.fma(s.load_at(row, at), s.zero(), sum);
    }
    s.reduce_add(sum) == 0.0
}

/// `to = factor · from`
#[inline(always)]
fn copy<S: Simd>(s: S, from: &[f32], to: &mut [f32], factor: S::V) {
    for at in (0..from.len()).step_by(S::LANES) {
        s.store(&mut to[at..], s.mul(s.load_at(from, at), factor));
    }
}
