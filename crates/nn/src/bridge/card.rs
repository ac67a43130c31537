//! Dot-product attention on graphics cards in one operation, forward and backward: the kernel of [`regard_gpu`] in Burn's autodiff.
//!
//! It takes `f32`, f16 and bfloat16 where the device has them. What it lacks (a sink, dropout on the weights, ALiBi, masks other than a
//! band and lengths) is left to plain operations, on the card too. What is observed is computed from the scores once more, of
//! [`BLOCK`] queries at a time unless all weights are asked for.

use std::ops::Range;

use burn::{
    backend::{
        Autodiff, AutodiffBackend, BackendTensor, Cube, DispatchAutodiffContext, DispatchDevice,
        DispatchTensor, DispatchTensorKind,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        tensor::FloatTensor,
    },
    tensor::{DType, Tensor},
};
use regard_gpu::{Forward, Inputs, Options, backward, forward, weights};
use regard_kernels::Alignment;

use super::{dot::DotInputs, dot::DotOptions, fused};
use crate::attention::{Observe, Observed};

// One limit for both kernels: [`KernelPlan`](crate::KernelPlan) asks for it once.
const _: () = assert!(regard_gpu::MAX_SIZE == super::MAX_SIZE);

type Primitive = FloatTensor<Cube>;
type Tracked = FloatTensor<Autodiff<Cube>>;

/// A score that is at most this is hidden.
const HIDDEN: f32 = -3.0e38;

/// Queries whose weights are held at a time.
const BLOCK: usize = 256;

/// Whether the kernel takes tensors like `tensor`.
pub(crate) fn takes<const D: usize>(tensor: &Tensor<D>) -> bool {
    let device = tensor.device().inner();
    let on_card = matches!(device.as_dispatch(), DispatchDevice::Cube(_));
    let known = matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16);
    on_card && known && !fused::suspended()
}

/// What CubeCL calls a card; `None` for other devices.
#[cfg(feature = "cuda")]
pub(crate) fn device(device: &burn::tensor::Device) -> Option<regard_gpu::Card> {
    match device.clone().inner().as_dispatch() {
        DispatchDevice::Cube(card) => Some(card.clone()),
        _ => None,
    }
}

/// What `compute` makes of the numbers of a tensor without gradient, which nobody else has.
///
/// # Errors
/// Those of `compute`.
#[cfg(feature = "cuda")]
pub(crate) fn with<E>(
    tensor: Tensor<1>,
    compute: impl FnOnce(Primitive) -> Result<Primitive, E>,
) -> Result<Tensor<1>, E> {
    let tensor = tensor.into_dispatch();
    let autodiff = tensor.autodiff;
    compute(inner(tensor)).map(|found| untracked(found, autodiff))
}

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
    let (context, stats) = run(inputs, options.clone());
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

/// The context, on the device of the inputs, and the `stats` of [`regard_gpu::Forward`].
fn run(inputs: Vec<DispatchTensor>, options: Options) -> (DispatchTensor, Primitive) {
    let autodiff = inputs
        .iter()
        .fold(DispatchAutodiffContext::Disabled, |context, input| {
            context.merge(input.autodiff)
        });
    if autodiff == DispatchAutodiffContext::Disabled {
        let inputs: Vec<_> = inputs.into_iter().map(inner).collect();
        let Forward { context, stats } = compute(&inputs, &options);
        return (dispatch(BackendTensor::Float(context), autodiff), stats);
    }
    let inputs: Vec<Tracked> = inputs
        .into_iter()
        .map(|input| match input.kind {
            DispatchTensorKind::Autodiff(kind) => match *kind {
                DispatchTensorKind::Cube(tensor) => tensor.autodiff(),
                other => elsewhere(&other),
            },
            _ => <Autodiff<Cube> as AutodiffBackend>::from_inner(inner(input)),
        })
        .collect();
    let (context, stats) = match <[Tracked; 4]>::try_from(inputs) {
        Ok(inputs) => record(inputs, options),
        Err(inputs) => match <[Tracked; 3]>::try_from(inputs) {
            Ok(inputs) => record(inputs, options),
            Err(inputs) => panic!("attention of {} inputs, expected 3 or 4", inputs.len()),
        },
    };
    (dispatch(BackendTensor::Autodiff(context), autodiff), stats)
}

fn dispatch(tensor: BackendTensor<Cube>, autodiff: DispatchAutodiffContext) -> DispatchTensor {
    let tracked = matches!(tensor, BackendTensor::Autodiff(_));
    let kind = DispatchTensorKind::Cube(tensor);
    let kind = match tracked {
        true => DispatchTensorKind::Autodiff(Box::new(kind)),
        false => kind,
    };
    DispatchTensor { kind, autodiff }
}

/// A tensor without gradient, on the device that `autodiff` belongs to.
fn untracked<const D: usize>(tensor: Primitive, autodiff: DispatchAutodiffContext) -> Tensor<D> {
    let tensor = match autodiff {
        DispatchAutodiffContext::Disabled => BackendTensor::Float(tensor),
        _ => BackendTensor::Autodiff(<Autodiff<Cube> as AutodiffBackend>::from_inner(tensor)),
    };
    Tensor::from_dispatch(dispatch(tensor, autodiff))
}

/// The numbers of a tensor.
fn inner(tensor: DispatchTensor) -> Primitive {
    match tensor.kind {
        DispatchTensorKind::Cube(tensor) => tensor.float(),
        DispatchTensorKind::Autodiff(kind) => match *kind {
            DispatchTensorKind::Cube(tensor) => {
                <Autodiff<Cube> as AutodiffBackend>::inner(tensor.autodiff())
            }
            other => elsewhere(&other),
        },
        other => elsewhere(&other),
    }
}

fn elsewhere(kind: &DispatchTensorKind) -> ! {
    panic!("attention runs on a card, but an input is {kind:?}")
}

fn compute(inputs: &[Primitive], options: &Options) -> Forward {
    forward(named(inputs), options)
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

/// Records the operation, with a parent for each input.
fn record<const N: usize>(inputs: [Tracked; N], options: Options) -> (Tracked, Primitive) {
    let mut primitives = Vec::with_capacity(N);
    let guards = inputs.map(|input| {
        let (primitive, guard) = input.into_parts();
        primitives.push(primitive);
        guard
    });
    let prepared = Step
        .prepare::<NoCheckpointing>(guards)
        .compute_bound()
        .stateful();
    let found = compute(&primitives, &options);
    let (context, stats) = (found.context.clone(), found.stats.clone());
    let context = match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(
            State {
                inputs: primitives,
                options,
                found,
            },
            context,
        ),
        OpsKind::UnTracked(prepared) => prepared.finish(context),
    };
    (context, stats)
}

/// The recorded step.
#[derive(Debug)]
struct Step;

#[derive(Debug, Clone)]
struct State {
    inputs: Vec<Primitive>,
    options: Options,
    found: Forward,
}

impl<const N: usize> Backward<Cube, N> for Step {
    type State = State;

    fn backward(self, ops: Ops<State, N>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let State {
            inputs,
            options,
            found,
        } = ops.state;
        let gradient = grads.consume::<Cube>(&ops.node);
        let wants_bias = ops.parents.get(3).is_some_and(Option::is_some);
        let found = backward(named(&inputs), &options, &found, gradient, wants_bias);
        let all = [
            Some(found.query),
            Some(found.key),
            Some(found.value),
            found.bias,
        ];
        for (parent, gradient) in ops.parents.into_iter().zip(all) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<Cube>(parent.id, gradient);
            }
        }
    }
}
