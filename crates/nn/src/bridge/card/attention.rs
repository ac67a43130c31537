//! Dot-product attention on graphics cards in one operation, forward and backward: the kernel of [`regard_gpu`] in Burn's autodiff.
//!
//! It takes `f32`, f16 and bfloat16 where the device has them. What it lacks (a sink, dropout on the weights, ALiBi, masks other than a
//! band and lengths) is left to plain operations, on the card too. What is observed is computed from the scores once more, of
//! [`BLOCK`] queries at a time unless all weights are asked for.

use std::ops::Range;

use burn::tensor::{DType, Tensor};
use regard_gpu::{Forward, Inputs, Options, backward, forward, weights};
use regard_kernels::Alignment;

use super::{
    super::dot::{DotInputs, DotOptions},
    Operation, Primitive, inner, run, untracked,
};
use crate::attention::{Observe, Observed};

// One limit for both kernels: [`KernelPlan`](crate::KernelPlan) asks for it once.
const _: () = assert!(regard_gpu::MAX_SIZE == super::super::MAX_SIZE);

/// A score that is at most this is hidden.
const HIDDEN: f32 = -3.0e38;

/// Queries whose weights are held at a time.
const BLOCK: usize = 256;

/// The context `[batch, heads, queries, value size]`, with gradients to every input; the `lse` `[batch, heads, queries]` and what is
/// observed, in `f32`, without. There are no empty inputs, and none of the options that
/// [`KernelMask::is_band`](crate::mask::KernelMask::is_band) excludes.
pub(crate) fn attention(
    inputs: DotInputs,
    options: &DotOptions,
    observe: &Observe,
) -> (Tensor<4>, Tensor<3>, Observed) {
    let DotInputs {
        query,
        key,
        value,
        bias,
        ..
    } = inputs;
    let [batch, heads, queries, _] = query.dims();
    let keys = key.dims()[2];
    // A cache may hold them in half precision.
    let (key, value) = (key.cast(query.dtype()), value.cast(query.dtype()));
    // The gradient of a bias is summed where it is broadcast by that of `expand`.
    let bias = bias.map(|bias| bias.cast(DType::F32).expand([batch, heads, queries, keys]));
    let options = kernel(options, queries, keys);
    let inputs: Vec<_> = [query, key, value]
        .into_iter()
        .chain(bias)
        .map(Tensor::into_dispatch)
        .collect();
    let seen = (*observe != Observe::Nothing).then(|| inputs.clone());
    let (context, Forward { stats, .. }) = run(options.clone(), inputs);
    let observed = seen.map(|inputs| {
        let inputs = inputs.into_iter().map(inner).collect::<Vec<_>>();
        let weights = |rows: Range<usize>| {
            let weights = weights(named(&inputs), &options, stats.clone(), rows);
            untracked::<4>(weights, context.autodiff)
        };
        observed(weights, queries, observe)
    });
    let [largest, sum] = untracked::<4>(stats, context.autodiff)
        .split(1, 3)
        .try_into()
        .expect("two numbers of each row");
    let hidden = largest.clone().lower_equal_elem(HIDDEN);
    let lse = (largest + sum.log()).mask_fill(hidden, f32::NEG_INFINITY);
    (
        Tensor::from_dispatch(context),
        lse.reshape([batch, heads, queries]),
        observed.unwrap_or_default(),
    )
}

/// What `observe` asks for, from the `weights [batch, heads, rows, keys]` of any rows.
fn observed(
    weights: impl Fn(Range<usize>) -> Tensor<4>,
    queries: usize,
    observe: &Observe,
) -> Observed {
    let rows: Vec<_> = match observe {
        Observe::Rows(rows) if rows.is_empty() => {
            return Observed::new(weights(0..1), observe);
        }
        Observe::Weights => std::iter::once(0..queries).collect(),
        Observe::Rows(rows) => rows
            .chunk_by(|one, next| one + 1 == *next)
            .map(|run| run[0]..run[0] + run.len())
            .collect(),
        _ => (0..queries)
            .step_by(BLOCK)
            .map(|first| first..(first + BLOCK).min(queries))
            .collect(),
    };
    // The rows are chosen already.
    let observe = match observe {
        Observe::Rows(_) => &Observe::Weights,
        other => other,
    };
    let parts: Vec<_> = rows
        .into_iter()
        .map(|rows| Observed::new(weights(rows), observe))
        .collect();
    Observed::join(&parts)
}

/// The options of the kernel.
fn kernel(options: &DotOptions, queries: usize, keys: usize) -> Options {
    let mask = &options.mask;
    let [left, right] = match mask.window {
        Some(window) => [window.left, window.right],
        None => [None, None],
    };
    Options {
        softcap: options.softcap,
        shift: match mask.alignment {
            Alignment::LowerRight => keys as i64 - queries as i64,
            Alignment::UpperLeft => 0,
        },
        left,
        right: if mask.causal { Some(0) } else { right },
        lengths: mask.lengths.clone(),
        ..Options::new(options.scale)
    }
}

impl Operation for Options {
    type Kept = Forward;

    fn forward(&self, inputs: &[Primitive]) -> (Primitive, Forward) {
        let found = forward(named(inputs), self);
        (found.context.clone(), found)
    }

    fn backward(
        &self,
        inputs: &[Primitive],
        found: &Forward,
        gradient: Primitive,
        wanted: &[bool],
    ) -> Vec<Option<Primitive>> {
        let wants_bias = wanted.get(3) == Some(&true);
        let found = backward(named(inputs), self, found, gradient, wants_bias);
        let first = [found.query, found.key, found.value].map(Some);
        first.into_iter().chain([found.bias]).collect()
    }
}

fn named(inputs: &[Primitive]) -> Inputs {
    let [query, key, value] = [0, 1, 2].map(|at| inputs[at].clone());
    Inputs {
        query,
        key,
        value,
        bias: inputs.get(3).cloned(),
    }
}
