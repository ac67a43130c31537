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

mod backward;
mod context;
mod decode;
mod finish;
mod forward;
#[cfg(test)]
mod half_tests;
mod micro;
mod observe;
mod pairs;
mod panel;
mod plan;
pub mod reference;
mod rescale;
mod score_block;
mod scores;
mod stored;
#[cfg(test)]
mod tests;

pub use backward::Gradients;
pub(crate) use decode::decode_at;
pub use decode::{Cache, decode};
pub use observe::{Observe, Pooled, Top, cell, cell_of, observe, pool};

use crate::{
    element::Element,
    error::{KernelError, check_length, check_size},
    problem::{Alignment, Attention, Sizes},
    simd::{Kernel, Level, Simd, run},
    threads::team,
    view::{View, ViewMut},
};

use forward::Worker;
use plan::{Plan, Task};

/// A checked call.
struct Job<'a> {
    attention: Attention<'a>,
    sizes: Sizes,
    /// What products are multiplied by: the scale, and `log₂ e` unless they are [`modified`](Self::modified).
    factor: f32,
    /// Whether the products are turned into scores before the softmax subtracts `m`. If not, `m` is subtracted from the
    /// products themselves, and the scale is applied to the difference.
    modified: bool,
    /// The factor from the units in which `m` is subtracted to natural scores, and its inverse.
    unit: [f64; 2],
    /// `1 / (1 - dropout probability)`
    keep_scale: f32,
}

impl<'a> Job<'a> {
    fn new<T>(
        attention: &Attention<'a>,
        query: View<T>,
        key: View<T>,
        value: View<T>,
    ) -> Result<Self, KernelError> {
        query.check("query")?;
        key.check("key")?;
        value.check("value")?;
        let sizes = attention.check(query.shape, key.shape, value.shape)?;
        let scale = attention.scale(sizes.dim);
        // A difference of products may overflow where that of the scores does not, if the scale is very small; if it is
        // very large, `scale · log₂ e` may.
        let modified = attention.softcap.is_some()
            || attention.has_bias()
            || attention.alibi.is_some()
            || !(1e-6..1e6).contains(&scale.abs());
        let factor = if modified {
            scale
        } else {
            scale * std::f32::consts::LOG2_E
        };
        let unit = if modified { 1.0 } else { scale.into() };
        Ok(Self {
            attention: *attention,
            sizes,
            factor,
            modified,
            unit: [unit, 1.0 / unit],
            keep_scale: attention
                .dropout
                .map_or(1.0, |dropout| 1.0 / (1.0 - dropout.probability)),
        })
    }

    /// The factor from differences in those units to exponents of 2.
    fn to_base(&self) -> f32 {
        if self.modified {
            std::f32::consts::LOG2_E
        } else {
            self.factor
        }
    }

    /// The first two addends of an `lse`: their sum is exactly the row's base times the scale.
    #[inline(always)]
    fn base_to_lse(&self, base: f32) -> [f32; 2] {
        let score = f64::from(base) * self.unit[0];
        let high = score as f32;
        [high, (score - f64::from(high)) as f32]
    }

    /// A row's base, and `-log₂` of the sum above it, from its `lse`. For a row that sees nothing both are 0, since it has no
    /// weights.
    #[inline(always)]
    fn lse_to_base(&self, lse: &[f32]) -> (f32, f32) {
        if lse[0] == f32::NEG_INFINITY {
            return (0.0, 0.0);
        }
        let score = f64::from(lse[0]) + f64::from(lse[1]);
        // A sink may exceed every product at this scale: clamping it to finite numbers leaves the weights 0.
        let finite = |x: f64| (x as f32).clamp(f32::MIN, f32::MAX);
        let base = finite(score * self.unit[1]);
        let rest = score - f64::from(base) * self.unit[0]; // 0 if the forward pass wrote the `lse`
        let log_sum = rest + f64::from(lse[2]);
        (base, finite(-log_sum * std::f64::consts::LOG2_E))
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
/// `key [batch, key_heads, keys, dim]` and `value [batch, key_heads, keys, value_dim]`.
///
/// `lse`, if asked for, is `[batch, heads, queries, 3]`: three addends of `ln Σ_j e^{s_j}`, the natural logarithm of the
/// softmax's sum. The first two are, exactly, a score of the row near its largest (or the sink, if that is larger), the third
/// is the logarithm of the sum of `e` to the differences from it. [`backward`] and [`observe()`] take all three, because one
/// number is not precise enough: at scores of `-1e9`, neighbouring `f32` are 64 apart, and the logarithm of the number of
/// keys would be lost. To read an `lse`, or to merge two results, add the three up. A row that sees nothing has `[-∞, 0, 0]`.
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
    forward_at(Level::current(), attention, query, key, value, output, lse)
}

/// [`forward`] of operands stored as `T`, with an output stored as `O`: `f32`,
/// [`bf16`](half::bf16) or [`f16`](half::f16). Sums and `lse` are `f32`; the output is rounded once, as it is written.
///
/// Weights are `f32` too, with one exception: where the machine multiplies pairs of `bfloat16` (AVX512-BF16) and `T` is
/// `bf16` with an even `dim`, each weight is rounded to `bfloat16` before it is multiplied by its value, a relative error of
/// up to 2⁻⁸. The softmax's sum uses the weights before rounding. Results then differ between machines; `REGARD_SIMD=avx2`
/// gives the results without pairs.
///
/// ```
/// use half::bf16;
/// use regard_kernels::{Attention, View, ViewMut, dot};
///
/// let query = [bf16::ONE];
/// let key = [bf16::ONE, bf16::ONE];
/// let value = [bf16::from_f32(1.0), bf16::from_f32(2.0)];
/// let mut output = [0.0f32];
/// dot::forward_stored(
///     &Attention::default(),
///     View::heads_first(&query, [1, 1, 1, 1]),
///     View::heads_first(&key, [1, 1, 2, 1]),
///     View::heads_first(&value, [1, 1, 2, 1]),
///     ViewMut::heads_first(&mut output, [1, 1, 1, 1]),
///     None,
/// )?;
/// assert_eq!(output, [1.5]);
/// # Ok::<(), regard_kernels::KernelError>(())
/// ```
///
/// # Errors
/// As [`forward`].
pub fn forward_stored<T: Element, O: Element>(
    attention: &Attention,
    query: View<T>,
    key: View<T>,
    value: View<T>,
    output: ViewMut<O>,
    lse: Option<&mut [f32]>,
) -> Result<(), KernelError> {
    forward_at(Level::current(), attention, query, key, value, output, lse)
}

fn forward_at<T: Element, O: Element>(
    level: Level,
    attention: &Attention,
    query: View<T>,
    key: View<T>,
    value: View<T>,
    mut output: ViewMut<O>,
    lse: Option<&mut [f32]>,
) -> Result<(), KernelError> {
    let job = Job::new(attention, query, key, value)?;
    let [batch, heads, queries, _] = query.shape;
    let shape = [batch, heads, queries, job.sizes.value_dim];
    check_shape("output", output.shape, shape)?;
    output.check("output")?;
    let mut lse = match lse {
        None => None,
        Some(lse) => {
            let shape = [batch, heads, queries, 3];
            check_length("lse", LSE, &shape, lse.len())?;
            Some(ViewMut::heads_first(lse, shape))
        }
    };
    // Nothing to write: what is beside a size of 0 may be more than could be counted.
    if output.shape.contains(&0) {
        return Ok(());
    }
    let plan = Plan::forward(attention, &job.sizes, panel_width(level));
    let output = output.shared();
    let lse = lse.as_mut().map(ViewMut::shared);
    team(plan.tasks(), job.nanoseconds(2.0), &|tasks| {
        run(
            level,
            Worker {
                job: &job,
                query,
                key,
                value,
                plan: &plan,
                output,
                lse,
                tasks,
            },
        );
    });
    Ok(())
}

/// The gradients of a scalar with respect to the arguments of [`forward`], given `d_output`, its gradient with respect to the
/// output. `attention`, `query`, `key` and `value` are the arguments of that call, `output` and `lse` its results.
///
/// A query that sees nothing gets gradients of 0 and contributes none; what a mask hides has no influence, NaN included.
/// Memory: a tile for each thread, and, with fewer than 4 key heads in the whole batch and fewer than 1,024 keys, or where
/// the gradient of a bias is asked for, up to 3 copies of the gradients of key and value.
///
/// ```
/// use regard_kernels::{Attention, View, ViewMut, dot};
///
/// // Two keys of equal score: both weights are 1/2.
/// let (query, key, value) = ([0.0f32], [1.0f32, 3.0], [10.0f32, 20.0]);
/// let view = |x| View::heads_first(x, [1, 1, 2, 1]);
/// let one = |x| View::heads_first(x, [1, 1, 1, 1]);
/// let (mut output, mut lse) = ([0.0f32], [0.0f32; 3]);
/// let attention = Attention::default();
/// let to = ViewMut::heads_first(&mut output, [1, 1, 1, 1]);
/// dot::forward(&attention, one(&query), view(&key), view(&value), to, Some(&mut lse))?;
///
/// let (mut d_query, mut d_key, mut d_value) = ([0.0f32], [0.0f32; 2], [0.0f32; 2]);
/// let gradients = dot::Gradients {
///     query: ViewMut::heads_first(&mut d_query, [1, 1, 1, 1]),
///     key: ViewMut::heads_first(&mut d_key, [1, 1, 2, 1]),
///     value: ViewMut::heads_first(&mut d_value, [1, 1, 2, 1]),
///     bias: None,
///     sink: None,
/// };
/// let d_output = [1.0f32];
/// dot::backward(
///     &attention, one(&query), view(&key), view(&value), one(&output), &lse, one(&d_output), gradients,
/// )?;
/// assert!((d_value[0] - 0.5).abs() < 1e-6 && (d_value[1] - 0.5).abs() < 1e-6);
/// assert!((d_query[0] - 5.0).abs() < 1e-5); // Σ weight · (value - 15) · key
/// # Ok::<(), regard_kernels::KernelError>(())
/// ```
///
/// # Errors
/// An argument whose shape, strides or values do not fit, by name; nothing is written then.
#[allow(clippy::too_many_arguments)]
pub fn backward(
    attention: &Attention,
    query: View,
    key: View,
    value: View,
    output: View,
    lse: &[f32],
    d_output: View,
    gradients: Gradients,
) -> Result<(), KernelError> {
    backward_stored(
        attention, query, key, value, output, lse, d_output, gradients,
    )
}

/// [`backward`] of [`forward_stored`]: operands stored as `T`, the output and its gradient as `O`.
/// The gradients are `f32` whatever the storage: those of keys and values are sums over all queries.
///
/// ```
/// use half::bf16;
/// use regard_kernels::{Attention, View, ViewMut, dot};
///
/// // Two keys of equal score, values 1 and 3, so the output is 2.
/// let (query, key, value) = ([bf16::ZERO], [bf16::ONE; 2], [1.0, 3.0].map(bf16::from_f32));
/// let (output, lse, d_output) = ([2.0f32], [0.0, 0.0, 2.0f32.ln()], [1.0f32]);
/// let (mut d_query, mut d_key, mut d_value) = ([f32::NAN], [f32::NAN; 2], [f32::NAN; 2]);
/// dot::backward_stored(
///     &Attention::default(),
///     View::heads_first(&query, [1, 1, 1, 1]),
///     View::heads_first(&key, [1, 1, 2, 1]),
///     View::heads_first(&value, [1, 1, 2, 1]),
///     View::heads_first(&output, [1, 1, 1, 1]),
///     &lse,
///     View::heads_first(&d_output, [1, 1, 1, 1]),
///     dot::Gradients {
///         query: ViewMut::heads_first(&mut d_query, [1, 1, 1, 1]),
///         key: ViewMut::heads_first(&mut d_key, [1, 1, 2, 1]),
///         value: ViewMut::heads_first(&mut d_value, [1, 1, 2, 1]),
///         bias: None,
///         sink: None,
///     },
/// )?;
/// assert!(d_value.iter().all(|d| (d - 0.5).abs() < 1e-6) && d_query[0].abs() < 1e-6);
/// # Ok::<(), regard_kernels::KernelError>(())
/// ```
///
/// # Errors
/// As [`backward`].
#[allow(clippy::too_many_arguments)]
pub fn backward_stored<T: Element, O: Element>(
    attention: &Attention,
    query: View<T>,
    key: View<T>,
    value: View<T>,
    output: View<O>,
    lse: &[f32],
    d_output: View<O>,
    gradients: Gradients,
) -> Result<(), KernelError> {
    let inputs = backward::Inputs {
        query,
        key,
        value,
        output,
        lse,
        d_output,
    };
    backward::backward_at(Level::current(), attention, inputs, gradients)
}

/// The logarithm of a sink's weight.
fn sink_log(sink: f32, lse: &[f32]) -> f64 {
    let [high, low, log_sum] = [lse[0], lse[1], lse[2]].map(f64::from);
    f64::from(sink) - high - low - log_sum
}

/// The shape of every `lse`.
const LSE: &str = "[batch, heads, queries, 3]";

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

/// Queries in a panel at `level`. The order in which a causal row is summed depends on its place in the panel.
pub(crate) fn panel_width(level: Level) -> usize {
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
