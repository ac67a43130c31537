//! A part of the map of weights, pooled to the size of a picture, without the map.
//!
//! ```text
//! cell (r, c) = max or mean of w_ij     over i in queries r, j in keys c
//! queries r   = first + r·n/rows .. first + (r + 1)·n/rows          of the n queries asked for; keys alike
//! ```
//! Weights are computed as in [`observe`](super::observe()), from queries, keys and `lse`, so that only the part that is asked for
//! costs anything. A thread computes whole rows of cells, so that each cell has one order of summing.
//!
//! ```
//! use regard_kernels::{Attention, View, ViewMut, dot, pool::Kind};
//!
//! let numbers = [1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]; // 4 positions of dim 2
//! let view = View::heads_first(&numbers, [1, 1, 4, 2]);
//! let causal = Attention { causal: true, ..Attention::default() };
//! let (mut output, mut lse) = ([0.0f32; 8], [0.0f32; 12]);
//! dot::forward(&causal, view, view, view, ViewMut::heads_first(&mut output, [1, 1, 4, 2]), Some(&mut lse))?;
//! let mut cells = [0.0f32; 4];
//! let part = dot::Pooled { queries: 0..4, keys: 0..4, rows: 2, columns: 2, kind: Kind::Max, cells: &mut cells };
//! dot::pool(&causal, view, view, &lse, part)?;
//! assert_eq!(cells[0], 1.0); // the first query sees itself alone
//! assert_eq!(cells[1], 0.0); // no query sees what comes after it
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use std::ops::Range;

use crate::{
    error::{KernelError, check_length, check_value},
    mask::{TILE_KEYS, Visible},
    pool::Kind,
    problem::Attention,
    simd::{Buffer, Kernel, Level, Simd, exp2, run},
    threads::{Tasks, team},
    view::{SharedRows, View, ViewMut},
};

use super::super::{Job, LSE, panel::width, plan::Task};
use super::logs::{Logs, Panel};

/// Queries of one piece of work: many panels, of which only the last one is not full.
const PIECE: usize = 384;

/// Which part of the map, and where to write it.
#[derive(Debug)]
pub struct Pooled<'a> {
    /// The queries of the part.
    pub queries: Range<usize>,
    /// The keys of the part.
    pub keys: Range<usize>,
    /// Rows of cells, at most as many as there are queries.
    pub rows: usize,
    /// Columns of cells, at most as many as there are keys.
    pub columns: usize,
    /// How weights become a cell: the largest, or their mean, in which a hidden pair counts as 0.
    pub kind: Kind,
    /// `[batch, heads, rows, columns]`
    pub cells: &'a mut [f32],
}

/// Fills the cells, from the `lse [batch, heads, queries, 3]` of a [`forward`](crate::dot::forward) with the same arguments.
///
/// # Errors
/// An argument whose shape, strides or values do not fit, by name; nothing is written then. A packed batch is refused.
pub fn pool(
    attention: &Attention,
    query: View,
    key: View,
    lse: &[f32],
    pooled: Pooled,
) -> Result<(), KernelError> {
    pool_at(Level::current(), attention, query, key, lse, pooled)
}

pub(in crate::dot) fn pool_at(
    level: Level,
    attention: &Attention,
    query: View,
    key: View,
    lse: &[f32],
    pooled: Pooled,
) -> Result<(), KernelError> {
    let job = Job::new(attention, query, key, key)?;
    let [batch, heads, queries, _] = query.shape;
    check_length("lse", LSE, &[batch, heads, queries, 3], lse.len())?;
    if let Some(offsets) = attention.offsets {
        let expected = "no packed batch";
        check_value("offsets", expected, offsets.query.len() as f64, false)?;
    }
    let Pooled {
        rows,
        columns,
        kind,
        ..
    } = pooled;
    for (argument, range, cells, length) in [
        ("queries", &pooled.queries, rows, queries),
        ("keys", &pooled.keys, columns, key.shape[2]),
    ] {
        let inside = range.start <= range.end && range.end <= length;
        let expected = "a range inside the view";
        check_value(argument, expected, range.end as f64, inside)?;
        let expected =
            "at most one cell for each position, and at least one where there are positions";
        let fits = cells <= range.len() && (cells > 0 || range.is_empty());
        check_value(argument, expected, cells as f64, fits)?;
    }
    let shape = [batch, heads, rows, columns];
    let length = "[batch, heads, rows, columns]";
    check_length("cells", length, &shape, pooled.cells.len())?;
    if pooled.cells.is_empty() {
        return Ok(());
    }
    let height = (PIECE * rows).div_ceil(pooled.queries.len()); // rows of a piece
    let pieces = rows.div_ceil(height);
    let mut cells = ViewMut::heads_first(pooled.cells, shape);
    let shared = Shared {
        logs: Logs {
            job: &job,
            query,
            key,
            lse,
        },
        queries: pooled.queries,
        keys: pooled.keys,
        rows,
        columns,
        kind,
        cells: cells.shared(),
    };
    let count = batch * heads * pieces;
    let share = (shared.queries.len() as f64 / queries as f64)
        * (shared.keys.len() as f64 / key.shape[2] as f64);
    team(count, job.nanoseconds(share), &|tasks| {
        while let Some(task) = tasks.take() {
            // The last rows see most keys under a causal mask: they come first.
            let piece = pieces - 1 - task % pieces;
            let (index, head) = (task / pieces / heads, task / pieces % heads);
            run(
                level,
                Piece {
                    shared: &shared,
                    index,
                    head,
                    rows: piece * height..((piece + 1) * height).min(rows),
                    tasks,
                },
            );
        }
    });
    Ok(())
}

/// What all pieces share.
struct Shared<'a> {
    logs: Logs<'a>,
    queries: Range<usize>,
    keys: Range<usize>,
    rows: usize,
    columns: usize,
    kind: Kind,
    cells: SharedRows<'a, f32>,
}

impl Shared<'_> {
    /// The first query of a row of cells.
    fn query(&self, row: usize) -> usize {
        cell(&self.queries, row, self.rows).start
    }

    /// The first key of a column of cells.
    fn key(&self, column: usize) -> usize {
        cell(&self.keys, column, self.columns).start
    }

    /// The row of cells of a query.
    fn row_of(&self, query: usize) -> usize {
        cell_of(&self.queries, query, self.rows)
    }
}

/// The positions of cell `index`, of `cells` that share out `range`.
///
/// # Panics
/// If `cells` is 0.
pub fn cell(range: &Range<usize>, index: usize, cells: usize) -> Range<usize> {
    let start =
        |index: usize| range.start + (index as u64 * range.len() as u64 / cells as u64) as usize;
    start(index)..start(index + 1)
}

/// The cell of a position of `range`, of `cells` that share it out.
///
/// ```
/// use regard_kernels::dot::{cell, cell_of};
///
/// assert_eq!((cell(&(10..20), 2, 4), cell_of(&(10..20), 15, 4)), (15..17, 2));
/// ```
///
/// # Panics
/// If `position` is outside of `range`, or `cells` is 0.
pub fn cell_of(range: &Range<usize>, position: usize, cells: usize) -> usize {
    assert!(
        range.contains(&position) && cells > 0,
        "a position of a cell"
    );
    let after = (position - range.start + 1) as u64;
    ((after * cells as u64 - 1) / range.len() as u64) as usize
}

/// Some rows of cells of one head.
struct Piece<'a> {
    shared: &'a Shared<'a>,
    index: usize,
    head: usize,
    rows: Range<usize>,
    tasks: &'a Tasks,
}

impl Kernel for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let shared = self.shared;
        let (job, width, columns) = (shared.logs.job, width::<S>(), shared.columns);
        let sequence = job.attention.sequence(&job.sizes, self.index);
        let mut panel = Panel::new::<S>(job);
        let mut sums = vec![0.0f64; self.rows.len() * columns];
        let end = shared.query(self.rows.end);
        for query in (shared.query(self.rows.start)..end).step_by(width) {
            self.tasks.heed_stop();
            let task = Task {
                sequence,
                index: self.index,
                head: self.head,
                heads: 1,
                query,
                queries: width.min(end - query),
            };
            let rows: Vec<usize> = (query..query + task.queries)
                .map(|query| shared.row_of(query) - self.rows.start)
                .collect();
            shared.panel(s, &mut panel, &task, |column, numbers| {
                for (&row, &number) in rows.iter().zip(numbers) {
                    let sum = &mut sums[row * columns + column];
                    match shared.kind {
                        // NaN stays.
                        Kind::Max if number.is_nan() || f64::from(number) > *sum => {
                            *sum = f64::from(number);
                        }
                        Kind::Max => {}
                        Kind::Mean => *sum += f64::from(number),
                    }
                }
            });
        }
        for (row, sums) in self.rows.zip(sums.chunks_exact(columns)) {
            // SAFETY: the cells were checked; one thread has this row.
            let to = unsafe { shared.cells.row_mut(sequence.batch, self.head, row) };
            let high = shared.query(row + 1) - shared.query(row);
            for (column, (to, &sum)) in to.iter_mut().zip(sums).enumerate() {
                let wide = shared.key(column + 1) - shared.key(column);
                *to = match shared.kind {
                    Kind::Max => sum as f32,
                    Kind::Mean => (sum / (high as f64 * wide as f64)) as f32,
                };
            }
        }
    }
}

impl Shared<'_> {
    /// Gives `take` the largest weight, or the sum of weights, of each query `[queries]` over keys of one column, perhaps several
    /// times for a column.
    #[inline(always)]
    fn panel<S: Simd>(
        &self,
        s: S,
        panel: &mut Panel,
        task: &Task,
        mut take: impl FnMut(usize, &[f32]),
    ) {
        let (logs, width) = (&self.logs, width::<S>());
        let job = logs.job;
        let (attention, sizes) = (&job.attention, &job.sizes);
        let visible = Visible::new(attention, sizes, &task.sequence, task.index, task.head);
        let reach = visible.reach(task.query, task.queries);
        let (first, end) = (
            reach.start.max(self.keys.start),
            reach.end.min(self.keys.end),
        );
        if first >= end {
            return;
        }
        logs.begin(s, panel, task);
        let mut pooled = Buffer::new(width);
        let mut column = cell_of(&self.keys, first, self.columns);
        let mut next = first / TILE_KEYS * TILE_KEYS;
        while next < end {
            logs.tile(s, panel, task, &visible, &mut next, end);
            for segment in panel.segments() {
                let (mut key, last) = (segment.key.max(first), segment.key + segment.keys);
                while key < last {
                    while self.key(column + 1) <= key {
                        column += 1;
                    }
                    let until = last.min(self.key(column + 1));
                    let rows = segment.row + key - segment.key..segment.row + until - segment.key;
                    let logs = &panel.logs[rows.start * width..rows.end * width];
                    pooled.fill(0.0);
                    for v in segment.first..segment.end {
                        let lane = v * S::LANES;
                        let lines = logs.chunks_exact(width).map(|line| s.load(&line[lane..]));
                        let number = match self.kind {
                            // The weight of the largest logarithm is the largest weight; NaN, which is not below infinity, stays.
                            Kind::Max => {
                                let (least, infinity) =
                                    (s.splat(f32::NEG_INFINITY), s.splat(f32::INFINITY));
                                let (largest, numbers) = lines.fold(
                                    (least, u32::MAX),
                                    #[inline(always)]
                                    |(largest, numbers), log| {
                                        let number = s.greater(infinity, log);
                                        (s.max(log, largest), numbers & number)
                                    },
                                );
                                s.select(numbers, exp2(s, largest), s.splat(f32::NAN))
                            }
                            Kind::Mean => lines.fold(s.zero(), |sum, log| s.add(sum, exp2(s, log))),
                        };
                        s.store(&mut pooled[lane..], number);
                    }
                    take(column, &pooled[..task.queries]);
                    key = until;
                }
            }
        }
    }
}
