//! Dot-product attention: `softmax(scale · q kᵀ) v` and everything that [`Attention`] adds to it.
//!
//! The scores `[queries, keys]` never exist as a whole: memory beyond the outputs is a tile for each
//! thread, whatever the lengths. See [`Attention`] for what is computed.
//!
//! ```
//! use regard_kernels::{Attention, View, ViewMut, dot};
//!
//! // One head, a causal mask: two queries and keys of dim 2.
//! let query = [1.0f32, 0.0, 0.0, 1.0];
//! let key = [1.0f32, 0.0, 0.0, 1.0];
//! let value = [10.0f32, 20.0];
//! let mut output = [0.0f32; 2];
//! let causal = Attention { causal: true, ..Attention::default() };
//! dot::forward(
//!     &causal,
//!     View::heads_first(&query, [1, 1, 2, 2]),
//!     View::heads_first(&key, [1, 1, 2, 2]),
//!     View::heads_first(&value, [1, 1, 2, 1]),
//!     ViewMut::heads_first(&mut output, [1, 1, 2, 1]),
//!     None,
//! )?;
//! assert_eq!(output[0], 10.0); // the first query sees the first key alone
//! assert!(output[1] > 15.0 && output[1] < 20.0);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

mod forward;
mod micro;
mod modify;
mod panel;
mod plan;
pub mod reference;
mod scores;
#[cfg(test)]
mod tests;

use std::sync::atomic::AtomicUsize;

pub use modify::{Modify, Place, Unmodified};

use crate::{
    error::{KernelError, check_length, check_size},
    problem::{Alignment, Attention, Sizes},
    simd::{Kernel, Level, Simd, run},
    threads::crew,
    view::{View, ViewMut},
};

use forward::Worker;
use plan::{Plan, Task};

/// A checked call.
struct Job<'a, M> {
    attention: Attention<'a>,
    modify: &'a M,
    sizes: Sizes,
    query: View<'a>,
    key: View<'a>,
    value: View<'a>,
    /// What queries are multiplied by: the scale, and `log₂ e` if nothing acts between product and
    /// softmax.
    factor: f32,
    /// Whether something does.
    modified: bool,
    /// `1 / (1 - dropout probability)`
    keep_scale: f32,
}

impl<'a, M: Modify> Job<'a, M> {
    fn new(
        attention: &Attention<'a>,
        modify: &'a M,
        query: View<'a>,
        key: View<'a>,
        value: View<'a>,
    ) -> Result<Self, KernelError> {
        query.check("query")?;
        key.check("key")?;
        value.check("value")?;
        let sizes = attention.check(query.shape, key.shape, value.shape)?;
        let modified = M::ACTIVE
            || attention.softcap.is_some()
            || attention.bias.is_some()
            || attention.alibi.is_some();
        let scale = attention.scale(sizes.dim);
        Ok(Self {
            attention: *attention,
            modify,
            sizes,
            query,
            key,
            value,
            factor: if modified {
                scale
            } else {
                scale * std::f32::consts::LOG2_E
            },
            modified,
            keep_scale: attention
                .dropout
                .map_or(1.0, |dropout| 1.0 / (1.0 - dropout.probability)),
        })
    }

    /// Position of query 0 among the keys.
    #[inline(always)]
    fn shift(&self, task: &Task) -> i64 {
        match self.attention.alignment {
            Alignment::UpperLeft => 0,
            Alignment::LowerRight => task.sequence.keys as i64 - task.sequence.queries as i64,
        }
    }

    /// A rough estimate of `products` products of queries with keys, on one thread.
    fn nanoseconds(&self, products: f64) -> f64 {
        let pairs: f64 = (0..self.sizes.batch)
            .map(|index| {
                let sequence = self.attention.sequence(&self.sizes, index);
                sequence.queries as f64 * sequence.keys as f64
            })
            .sum();
        products * pairs * (self.sizes.heads * self.sizes.dim.max(self.sizes.value_dim)) as f64
            / 40.0
    }
}

/// `output [batch, heads, queries, value_dim]` for `query [batch, heads, queries, dim]`,
/// `key [batch, key_heads, keys, dim]` and `value [batch, key_heads, keys, value_dim]`; `lse`, if asked
/// for, is `[batch, heads, queries]`, the natural logarithm of the softmax's sum. The backward pass
/// needs it.
///
/// # Errors
/// An argument whose shape, strides or values do not fit, by name; nothing is written then.
pub fn forward(
    attention: &Attention,
    query: View,
    key: View,
    value: View,
    output: ViewMut,
    lse: Option<&mut [f32]>,
) -> Result<(), KernelError> {
    forward_modified(attention, &Unmodified, query, key, value, output, lse)
}

/// [`forward`] with a change of scores of the caller's own.
///
/// # Errors
/// As [`forward`].
pub fn forward_modified<M: Modify>(
    attention: &Attention,
    modify: &M,
    query: View,
    key: View,
    value: View,
    output: ViewMut,
    lse: Option<&mut [f32]>,
) -> Result<(), KernelError> {
    forward_at(
        Level::current(),
        attention,
        modify,
        query,
        key,
        value,
        output,
        lse,
    )
}

#[allow(clippy::too_many_arguments)]
fn forward_at<M: Modify>(
    level: Level,
    attention: &Attention,
    modify: &M,
    query: View,
    key: View,
    value: View,
    mut output: ViewMut,
    lse: Option<&mut [f32]>,
) -> Result<(), KernelError> {
    let job = Job::new(attention, modify, query, key, value)?;
    let [batch, heads, queries, _] = query.shape;
    let shape = [batch, heads, queries, job.sizes.value_dim];
    check_shape("output", output.shape, shape)?;
    output.check("output")?;
    let mut lse = match lse {
        None => None,
        Some(lse) => {
            check_length("lse", "[batch, heads, queries]", &shape[..3], lse.len())?;
            Some(ViewMut::heads_first(lse, [batch, heads, queries, 1]))
        }
    };
    let plan = Plan::new(attention, &job.sizes, panel_width(level));
    let output = output.shared();
    let lse = lse.as_mut().map(ViewMut::shared);
    crew(plan.tasks(), job.nanoseconds(2.0), &|next: &AtomicUsize| {
        run(
            level,
            Worker {
                job: &job,
                plan: &plan,
                output,
                lse,
                next,
            },
        );
    });
    Ok(())
}

fn check_shape(
    argument: &'static str,
    found: [usize; 4],
    expected: [usize; 4],
) -> Result<(), KernelError> {
    let axes = ["batch", "heads", "length", "dim"];
    for axis in 0..4 {
        let reason = "as query and value ask for";
        check_size(argument, axes[axis], found[axis], expected[axis], reason)?;
    }
    Ok(())
}

/// Queries in a panel at `level`.
fn panel_width(level: Level) -> usize {
    struct Width;
    impl Kernel for Width {
        type Output = usize;
        #[inline(always)]
        fn call<S: Simd>(self, _: S) -> usize {
            panel::width::<S>()
        }
    }
    run(level, Width)
}
