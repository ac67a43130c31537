//! Dot-product attention on graphics cards in one operation, forward and backward: the kernel of [`regard_gpu`] in Burn's autodiff.
//!
//! It takes `f32`, f16 and bfloat16 where the device has them. What it lacks (a sink, dropout on the weights, ALiBi, masks other than a band and
//! lengths, observations) is left to plain operations, on the card too.

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
use regard_gpu::{Forward, Options, backward, forward};
use regard_kernels::Alignment;

use super::{dot::DotInputs, dot::DotOptions, fused};

// One limit for both kernels: [`KernelPlan`](crate::KernelPlan) asks for it once.
const _: () = assert!(regard_gpu::MAX_SIZE == super::MAX_SIZE);

type Primitive = FloatTensor<Cube>;
type Tracked = FloatTensor<Autodiff<Cube>>;

/// A score that is at most this is hidden.
const HIDDEN: f32 = -3.0e38;

/// Whether the kernel takes tensors like `tensor`.
pub(crate) fn takes<const D: usize>(tensor: &Tensor<D>) -> bool {
    let device = tensor.device().inner();
    let on_card = matches!(device.as_dispatch(), DispatchDevice::Cube(_));
    let known = matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16);
    on_card && known && !fused::suspended()
}

/// The context `[batch, heads, queries, value size]`, with gradients to every input, and the `lse` `[batch, heads, queries]` without.
/// There are no empty inputs, and none of the options that [`KernelMask::is_band`](crate::mask::KernelMask::is_band) excludes.
pub(crate) fn attention(inputs: DotInputs, options: &DotOptions) -> (Tensor<4>, Tensor<3>) {
    let DotInputs {
        query,
        key,
        value,
        bias,
        ..
    } = inputs;
    let [batch, heads, queries, _] = query.dims();
    let keys = key.dims()[2];
    // The gradient of a bias is summed where it is broadcast by that of `expand`.
    let bias = bias.map(|bias| bias.cast(DType::F32).expand([batch, heads, queries, keys]));
    let options = kernel(options, queries, keys);
    let inputs: Vec<_> = [query, key, value]
        .into_iter()
        .chain(bias)
        .map(Tensor::into_dispatch)
        .collect();
    let (context, stats) = run(inputs, options);
    let lse = Tensor::<4>::from_dispatch(stats)
        .sum_dim(3)
        .reshape([batch, heads, queries]);
    let hidden = lse.clone().lower_equal_elem(HIDDEN);
    (
        Tensor::from_dispatch(context),
        lse.mask_fill(hidden, f32::NEG_INFINITY),
    )
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

fn run(inputs: Vec<DispatchTensor>, options: Options) -> (DispatchTensor, DispatchTensor) {
    let context = inputs
        .iter()
        .fold(DispatchAutodiffContext::Disabled, |context, input| {
            context.merge(input.autodiff)
        });
    let plain = |tensor| DispatchTensor {
        kind: DispatchTensorKind::Cube(BackendTensor::Float(tensor)),
        autodiff: DispatchAutodiffContext::Disabled,
    };
    if context == DispatchAutodiffContext::Disabled {
        let inputs: Vec<_> = inputs
            .into_iter()
            .map(|input| primitive(input.kind))
            .collect();
        let Forward { context, stats } = compute(&inputs, &options);
        return (plain(context), plain(stats));
    }
    let inputs: Vec<Tracked> = inputs
        .into_iter()
        .map(|input| match input.kind {
            DispatchTensorKind::Autodiff(kind) => match *kind {
                DispatchTensorKind::Cube(tensor) => tensor.autodiff(),
                other => elsewhere(&other),
            },
            kind => <Autodiff<Cube> as AutodiffBackend>::from_inner(primitive(kind)),
        })
        .collect();
    let (output, stats) = match <[Tracked; 4]>::try_from(inputs) {
        Ok(inputs) => record(inputs, options),
        Err(inputs) => match <[Tracked; 3]>::try_from(inputs) {
            Ok(inputs) => record(inputs, options),
            Err(inputs) => panic!("attention of {} inputs, expected 3 or 4", inputs.len()),
        },
    };
    let tracked = DispatchTensor {
        kind: DispatchTensorKind::Autodiff(Box::new(DispatchTensorKind::Cube(
            BackendTensor::Autodiff(output),
        ))),
        autodiff: context,
    };
    (tracked, plain(stats))
}

fn primitive(kind: DispatchTensorKind) -> Primitive {
    match kind {
        DispatchTensorKind::Cube(tensor) => tensor.float(),
        other => elsewhere(&other),
    }
}

fn elsewhere(kind: &DispatchTensorKind) -> ! {
    panic!("attention runs on a card, but an input is {kind:?}")
}

fn compute(inputs: &[Primitive], options: &Options) -> Forward {
    let [query, key, value] = [0, 1, 2].map(|at| inputs[at].clone());
    forward(query, key, value, inputs.get(3).cloned(), options)
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
        let [query, key, value] = [0, 1, 2].map(|at| inputs[at].clone());
        let bias = inputs.get(3).cloned();
        let found = backward(
            query, key, value, bias, &options, &found, gradient, wants_bias,
        );
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
