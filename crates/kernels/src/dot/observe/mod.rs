//! What attention looked at: its weights, computed again from the `lse`, without the whole matrix.
//!
//! ```text
//! w_ij = e^{s_ij - lse_i}                                  before dropout
//! rows of weights      w_i.           for the queries asked for     [batch, heads, rows, keys]
//! entropy              -Σ_j w_ij ln w_ij (nats; a sink's share is in it)   [batch, heads, queries]
//! column sums          Σ_i w_ij       what each key received        [batch, heads, keys]
//! top k                the k largest w_ij of each query             [batch, heads, queries, k]
//! ```
//! The scores are computed once more (no values are read: half of a forward pass), tile by tile; if only
//! rows are asked for, only for the panels that hold them. One thread computes a head, so its sums have one
//! order.
//!
//! ```
//! use regard_kernels::{Attention, View, ViewMut, dot};
//!
//! let (query, key, value) = ([1.0f32, 0.0], [1.0f32, 0.0, 0.0, 1.0], [1.0f32, 2.0]);
//! let (q, k) = (View::heads_first(&query, [1, 1, 1, 2]), View::heads_first(&key, [1, 1, 2, 2]));
//! let v = View::heads_first(&value, [1, 1, 2, 1]);
//! let (mut output, mut lse, mut weights) = ([0.0f32], [0.0f32; 3], [0.0f32; 2]);
//! let attention = Attention::default();
//! dot::forward(&attention, q, k, v, ViewMut::heads_first(&mut output, [1, 1, 1, 1]), Some(&mut lse))?;
//! let observe = dot::Observe { rows: Some((&[0], &mut weights)), ..dot::Observe::default() };
//! dot::observe(&attention, q, k, &lse, observe)?;
//! assert!((weights[0] + weights[1] - 1.0).abs() < 1e-6 && weights[0] > weights[1]);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

mod head;
mod logs;
mod pooled;

use crate::{
    error::{KernelError, check_length, product},
    problem::Attention,
    simd::{Level, run},
    threads::team,
    view::{View, ViewMut},
};

use super::{Job, LSE};

#[cfg(test)]
pub(super) use pooled::pool_at;
pub use pooled::{Pooled, cell, cell_of, pool};

use head::{Head, Observer};
use logs::Logs;

/// What to observe; everything is optional. In a packed batch, queries are numbered across the pack, and keys
/// from the start of their sequence; every row has room for all keys of the pack.
#[derive(Debug, Default)]
pub struct Observe<'a> {
    /// The queries whose weights are wanted, and where to write them: `[batch, heads, rows, keys]`.
    pub rows: Option<(&'a [usize], &'a mut [f32])>,
    /// `[batch, heads, queries]`, in nats.
    pub entropy: Option<&'a mut [f32]>,
    /// `[batch, heads, keys]`
    pub column_sums: Option<&'a mut [f32]>,
    /// The `k` largest weights of each query.
    pub top: Option<Top<'a>>,
}

/// The largest weights of each query, largest first (NaN before all numbers), the earlier key first among equals.
#[derive(Debug)]
pub struct Top<'a> {
    /// How many weights to keep for each query.
    pub k: usize,
    /// `[batch, heads, queries, k]`; 0 where fewer keys of a query have a weight above 0.
    pub weights: &'a mut [f32],
    /// `[batch, heads, queries, k]`: the keys; `u32::MAX` where fewer have a weight above 0.
    pub keys: &'a mut [u32],
}

/// Fills what `observe` asks for, from the `lse [batch, heads, queries, 3]` of a [`super::forward`] with the
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
    observe_at(Level::current(), attention, query, key, lse, observe)
}

pub(in crate::dot) fn observe_at(
    level: Level,
    attention: &Attention,
    query: View,
    key: View,
    lse: &[f32],
    observe: Observe,
) -> Result<(), KernelError> {
    let job = Job::new(attention, query, key, key)?;
    let [batch, heads, queries, _] = query.shape;
    let keys = key.shape[2];
    check_length("lse", LSE, &[batch, heads, queries, 3], lse.len())?;
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
    if let Some((_, weights)) = &mut rows {
        weights.data.fill(0.0);
    }
    if let Some(sums) = &mut sums {
        sums.data.fill(0.0);
    }
    // No query to look at: what is beside a size of 0 may be more than could be counted.
    if query.shape.contains(&0) {
        return Ok(());
    }
    let everywhere = entropy.is_some() || sums.is_some() || k > 0;
    let count = job.sizes.batch * heads;
    let shared = Observer {
        logs: Logs {
            job: &job,
            query,
            key,
            lse,
        },
        rows: rows.as_mut().map(|(wanted, to)| (*wanted, to.shared())),
        entropy: entropy.as_mut().map(ViewMut::shared),
        sums: sums.as_mut().map(ViewMut::shared),
        top_weights: top_weights.as_mut().map(ViewMut::shared),
        top_keys: top_keys.as_mut().map(ViewMut::shared),
        k,
        everywhere,
    };
    team(count, job.nanoseconds(1.0), &|tasks| {
        while let Some(task) = tasks.take() {
            run(
                level,
                Head {
                    observer: &shared,
                    index: task / heads,
                    head: task % heads,
                    tasks,
                },
            );
        }
    });
    Ok(())
}
