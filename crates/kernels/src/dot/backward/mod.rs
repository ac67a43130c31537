//! The backward pass.
//!
//! With `P = e^{s - lse}`, `δ_i = dO_i · O_i` and `∘` for products number by number:
//! ```text
//! dV = Pᵀ dO     dP = dO Vᵀ     dS = P ∘ (dP - δ)     dQ = scale · dS K     dK = scale · dSᵀ Q
//! ```
//! On the way from `s` to the product `scale · q k`, softcap multiplies `dS` by its slope (`1 - tanh²`); the gradient of a bias
//! is `dS` before that, the gradient of a sink is `-Σ_i e^{sink - lse_i} δ_i`. Under dropout `dP` is masked and scaled as the
//! weights were, and so is the `P` of `dV`.
//!
//! ```text
//! for each panel of queries (lanes), for each tile of keys:
//!     Sᵀ  block [8 keys, 3 vectors]   P  = e^(scale · Sᵀ - lse), in registers  -> P tile  [keys, queries]
//!     dPᵀ block [8 keys, 3 vectors]   dS = P ∘ (dPᵀ - δ), in registers         -> dS tile [keys, queries]
//!     dQᵀ block [8 dims, 3 vectors]  += Σ over the tile's keys     K dS     -> dQ panel [dim, queries]
//!     dV  block [8 keys, 2 or 3 vectors of dims] += Σ over queries P dO     -> rows of the output
//!     dK  block [8 keys, 2 or 3 vectors of dims] += Σ over queries dS Q     -> rows of the output
//! ```
//! All five use the micro-kernel of `micro`. In the first three the queries lie in the lanes, and numbers of a key, a value and
//! a key are broadcast; in the last two the dims lie in the lanes, and numbers of the tiles are broadcast, which are contiguous
//! for one key. So only the panels are transposed.
//!
//! How the work is divided: all panels of all query heads of one key/value head are one task, and only this task writes that
//! head's `dK` and `dV`. With fewer than [`split::TASKS`] such heads, each is split into a fixed number of parts. Where there
//! are many keys, each part has keys of its own and is the only one that writes their `dK` and `dV`, and the parts add to the
//! rows of `dQ` one after the other, a panel at a time ([`ordered`]). Where there are few, each part has queries of its own;
//! the first part writes `dK` and `dV` in place, the others write copies, which are added in order. How a call is split follows
//! from the shapes alone, so the bits do not depend on the threads (see [`split`]).
//!
//! Memory beyond the arguments, in numbers of 4 bytes, `D` and `E` the dims of keys and values, `w` = 48 lanes
//! (24 on AVX2): for each thread `w (3 D + 3 E + 2 · 128 + 3)`, dims rounded up to whole vectors, and a byte for 16 keys.
//! With fewer than 4 key heads and fewer than 1,024 keys, or at any length if the gradient of a bias is asked for, also at most
//! 3 copies of a head's `dK` and `dV`, `D + E` numbers a key.
//!
//! Operands stored in half precision are widened where they are read: queries, outputs and output gradients once a panel, the
//! keys and values of a tile once for each panel that reads them. All arithmetic is `f32`, and so are the gradients: `dK` and
//! `dV` are sums over all panels, for which half precision is not enough.
//!
//! The score gradient of a hidden key is 0, but `0 · NaN` is NaN. So where a mask hides a part of a segment whose keys, queries
//! or output gradients are not all finite, its products are computed one by one, reading only what is seen.

mod blocks;
mod fetch;
mod options;
mod ordered;
mod scratch;
mod split;
#[cfg(test)]
mod tests;
mod worker;

use crate::{
    element::Element,
    error::{KernelError, check_length},
    problem::Attention,
    simd::{Level, run},
    threads::team,
    view::{View, ViewMut},
};

pub(super) use blocks::log_weight;

use super::{Job, LSE, check_shape, panel_width, plan::Plan};

use ordered::Ordered;
use split::{Copies, Destination, Splits};
use worker::Worker;

/// The outputs of the backward pass. They are overwritten.
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
pub(super) struct Inputs<'a, T = f32, O = f32> {
    pub(super) query: View<'a, T>,
    pub(super) key: View<'a, T>,
    pub(super) value: View<'a, T>,
    pub(super) output: View<'a, O>,
    pub(super) lse: &'a [f32],
    pub(super) d_output: View<'a, O>,
}

pub(super) fn backward_at<T: Element, O: Element>(
    level: Level,
    attention: &Attention,
    inputs: Inputs<T, O>,
    gradients: Gradients,
) -> Result<(), KernelError> {
    let job = Job::new(attention, inputs.query, inputs.key, inputs.value)?;
    check(&job, &inputs, &gradients)?;
    let Gradients {
        mut query,
        mut key,
        mut value,
        mut bias,
        sink,
    } = gradients;
    let sizes = &job.sizes;
    // Without queries all gradients are 0, and what is beside a size of 0 may be more than could be counted.
    if inputs.query.shape.contains(&0) {
        let views = [Some(&mut key), Some(&mut value), bias.as_mut()];
        views.into_iter().flatten().for_each(split::clear);
        if let Some(sink) = sink {
            sink.fill(0.0);
        }
        return Ok(());
    }
    let plan = Plan::new(attention, sizes, panel_width(level));
    let splits = Splits::new(attention, sizes, bias.as_ref().map(|bias| bias.shape));
    let ordered = Ordered::new(if splits.by_keys { splits.tasks() } else { 0 });
    let mut key_copies = Copies::new(key.shape, splits.outputs());
    let mut value_copies = Copies::new(value.shape, splits.outputs());
    // Here each part has queries of its own, so two parts add to the same row of the bias only where all queries share one.
    let mut bias_copies = bias.as_ref().map(|bias| {
        let parts = if bias.shape[2] == 1 { splits.parts } else { 1 };
        Copies::new(bias.shape, parts)
    });
    let mut sinks = vec![0.0f64; sizes.batch * sizes.heads * splits.parts];
    let mut sink_rows =
        ViewMut::heads_first(&mut sinks, [sizes.batch, sizes.heads, splits.parts, 1]);
    if let Some(bias) = &mut bias {
        split::clear(bias);
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
    team(splits.tasks(), job.nanoseconds(5.0), &|tasks| {
        let (job, plan, splits, ordered, inputs) = (&job, &plan, &splits, &ordered, &inputs);
        let worker = Worker {
            job,
            plan,
            splits,
            ordered,
            inputs,
            d_query,
            d_key,
            d_value,
            d_bias,
            sink_rows,
            tasks,
        };
        run(level, worker);
    });
    key_copies.add_to(&mut key);
    value_copies.add_to(&mut value);
    if let (Some(bias), Some(copies)) = (&mut bias, &bias_copies) {
        copies.add_to(bias);
    }
    if let Some(sink) = sink {
        for (head, sink) in sink.iter_mut().enumerate() {
            let row = |index: usize| {
                &sinks[(index * sizes.heads + head) * splits.parts..][..splits.parts]
            };
            *sink = (0..sizes.batch).flat_map(row).sum::<f64>() as f32;
        }
    }
    Ok(())
}

fn check<T: Element, O: Element>(
    job: &Job,
    inputs: &Inputs<T, O>,
    gradients: &Gradients,
) -> Result<(), KernelError> {
    let attention = &job.attention;
    let [batch, heads, queries, _] = inputs.query.shape;
    let shape = [batch, heads, queries, job.sizes.value_dim];
    for (argument, view) in [("output", &inputs.output), ("d_output", &inputs.d_output)] {
        check_shape(argument, view.shape, shape)?;
        view.check(argument)?;
    }
    check_length("lse", LSE, &[batch, heads, queries, 3], inputs.lse.len())?;
    for (argument, view, shape) in [
        ("gradients.query", &gradients.query, inputs.query.shape),
        ("gradients.key", &gradients.key, inputs.key.shape),
        ("gradients.value", &gradients.value, inputs.value.shape),
    ] {
        check_shape(argument, view.shape, shape)?;
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

/// The error for a gradient of an option that is not set.
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
