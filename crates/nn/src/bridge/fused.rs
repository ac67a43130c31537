//! How a fused operation enters Burn's autodiff.
//!
//! An [`Operation`] works on Flex tensors: its forward pass gives one differentiable output (Burn's
//! `Backward<B, N>` has one), perhaps a second, untracked one, and whatever its backward pass needs. [`run`] unwraps the Burn
//! tensors, records the operation if any input is tracked, and wraps the outputs again. What is saved is stored in the recorded
//! step itself, so gradient checkpointing neither needs nor changes anything here. Second derivatives are not supported.

use std::{fmt::Debug, sync::Arc};

pub(super) use burn::backend::flex::FlexTensor;
use burn::{
    backend::{
        Autodiff, AutodiffBackend, BackendTensor, DispatchAutodiffContext, DispatchDevice,
        DispatchTensor, DispatchTensorKind, Flex,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        flex::Layout,
        tensor::FloatTensor,
    },
    tensor::{Bytes, DType, Shape, Tensor},
};
use regard_kernels::View;

pub(super) use super::operation::{Forward, Operation, Reads};
use super::{early, layout::contiguous, suspended::suspended};

type Tracked = FloatTensor<Autodiff<Flex>>;

/// Whether the fused operations can take `tensor`: it is `f32` on the Flex backend, with or without
/// autodiff, and they are not suspended ([`without_kernels`](super::without_kernels)).
pub(super) fn takes<const D: usize>(tensor: &Tensor<D>) -> bool {
    if suspended() {
        return false;
    }
    let device = tensor.device().inner();
    // With Flex as the only backend compiled in, the first pattern always matches.
    #[allow(irrefutable_let_patterns, clippy::match_like_matches_macro)]
    let on_flex = match device.as_dispatch() {
        DispatchDevice::Flex(_) => true,
        #[allow(unreachable_patterns)]
        _ => false,
    };
    on_flex && tensor.dtype() == DType::F32
}

/// Runs `operation` on `inputs`, which [`takes`] has accepted; returns the differentiable output and the untracked one, both
/// with the autodiff context of the inputs.
///
/// # Panics
/// If the operation refuses its inputs: the functions of this module check shapes before they call it, so that would be a
/// mistake in this module.
pub(super) fn run(
    operation: impl Operation,
    inputs: Vec<DispatchTensor>,
) -> (DispatchTensor, Option<DispatchTensor>) {
    let context = inputs
        .iter()
        .fold(DispatchAutodiffContext::Disabled, |context, input| {
            context.merge(input.autodiff)
        });
    if context == DispatchAutodiffContext::Disabled {
        let inputs = inputs.into_iter().map(plain).collect();
        let Forward { output, beside, .. } = forward(&operation, inputs, false);
        let wrap = |tensor| DispatchTensor {
            kind: DispatchTensorKind::Flex(BackendTensor::Float(tensor)),
            autodiff: context,
        };
        return (wrap(output), beside.map(wrap));
    }
    let inputs: Vec<Tracked> = inputs
        .into_iter()
        .map(|input| match input.kind {
            DispatchTensorKind::Autodiff(kind) => match *kind {
                DispatchTensorKind::Flex(tensor) => tensor.autodiff(),
                other => wrong_backend(&other),
            },
            kind => <Autodiff<Flex> as AutodiffBackend>::from_inner(flex(kind)),
        })
        .collect();
    let (output, beside) = record(Arc::new(operation), inputs);
    let wrap = |tensor| DispatchTensor {
        kind: DispatchTensorKind::Autodiff(Box::new(DispatchTensorKind::Flex(
            BackendTensor::Autodiff(tensor),
        ))),
        autodiff: context,
    };
    (wrap(output), beside.map(wrap))
}

fn plain(tensor: DispatchTensor) -> FlexTensor {
    flex(tensor.kind)
}

fn flex(kind: DispatchTensorKind) -> FlexTensor {
    match kind {
        DispatchTensorKind::Flex(tensor) => tensor.float(),
        other => wrong_backend(&other),
    }
}

fn wrong_backend(kind: &DispatchTensorKind) -> ! {
    panic!("a fused operation runs on the Flex backend, but an input is {kind:?}")
}

fn forward(operation: &dyn Operation, inputs: Vec<FlexTensor>, tracked: bool) -> Forward {
    let inputs = arrange(inputs, operation.reads());
    match operation.forward(inputs, tracked) {
        Ok(forward) => forward,
        Err(error) => panic!("{operation:?}: {error}"),
    }
}

/// The inputs, copied where they do not lie as they are read.
fn arrange(inputs: Vec<FlexTensor>, reads: Reads) -> Vec<FlexTensor> {
    // Taking the contiguous form by value drops the original handle, so that an input without other handles remains the only
    // handle on its storage.
    let arrange = |input: FlexTensor| {
        let forward = input.layout().strides().iter().all(|&stride| stride >= 0);
        let as_it_is = forward
            && match reads {
                Reads::Contiguous => false,
                Reads::Rows => matches!(input.layout().strides(), [_, _, _, 1]),
                Reads::Strides => true,
            };
        match as_it_is {
            true => input,
            false => contiguous(input),
        }
    };
    inputs.into_iter().map(arrange).collect()
}

/// The numbers of tensors that [`takes`] has accepted, for operations without gradient.
pub(super) fn untracked(inputs: Vec<DispatchTensor>, reads: Reads) -> Vec<FlexTensor> {
    let inner = |input: DispatchTensor| match input.kind {
        DispatchTensorKind::Autodiff(kind) => match *kind {
            DispatchTensorKind::Flex(tensor) => tensor.autodiff().into_primitive(),
            other => wrong_backend(&other),
        },
        kind => flex(kind),
    };
    arrange(inputs.into_iter().map(inner).collect(), reads)
}

/// Records the operation with as many parents as there are inputs.
fn record(operation: Arc<dyn Operation>, inputs: Vec<Tracked>) -> (Tracked, Option<Tracked>) {
    macro_rules! by_count {
        ($($count:literal)+) => {
            match inputs.len() {
                $($count => {
                    let inputs: [Tracked; $count] =
                        inputs.try_into().unwrap_or_else(|_| unreachable!("the length was matched"));
                    record_array(operation, inputs)
                })+
                count => panic!("a fused operation of {count} inputs: add {count} to this list"),
            }
        };
    }
    by_count!(1 2 3 4 5 6 7 8 9 10 12 13 14)
}

fn record_array<const N: usize>(
    operation: Arc<dyn Operation>,
    inputs: [Tracked; N],
) -> (Tracked, Option<Tracked>) {
    let mut primitives = Vec::with_capacity(N);
    let nodes = inputs.each_ref().map(Tracked::id);
    let guards = inputs.map(|input| {
        let (primitive, guard) = input.into_parts();
        primitives.push(primitive);
        guard
    });
    let prepared = Step
        .prepare::<NoCheckpointing>(guards)
        .compute_bound()
        .stateful();
    let tracked = matches!(prepared, OpsKind::Tracked(_));
    if tracked {
        early::read(&nodes);
    }
    let Forward {
        output,
        beside,
        saved,
    } = forward(&*operation, primitives, tracked);
    let output = match prepared {
        OpsKind::Tracked(prepared) => prepared.finish(State { operation, saved }, output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    };
    (
        output,
        beside.map(<Autodiff<Flex> as AutodiffBackend>::from_inner),
    )
}

/// The recorded step of every fused operation.
#[derive(Debug)]
struct Step;

#[derive(Debug, Clone)]
struct State {
    operation: Arc<dyn Operation>,
    saved: Vec<FlexTensor>,
}

impl<const N: usize> Backward<Flex, N> for Step {
    type State = State;

    fn backward(self, ops: Ops<State, N>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        let State { operation, saved } = ops.state;
        let gradient = contiguous(grads.consume::<Flex>(&ops.node));
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let gradients = match operation.backward(saved, gradient, &wanted) {
            Ok(gradients) => gradients,
            Err(error) => panic!("{operation:?}, backward: {error}"),
        };
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            let Some(parent) = parent else { continue };
            if let Some(gradient) = gradient {
                grads.register::<Flex>(parent.id, gradient);
            }
            early::gone_back(parent.id, grads);
        }
    }
}

/// A tensor of four dimensions with contiguous rows, in place.
pub(super) fn view(tensor: &FlexTensor) -> View<'_> {
    view_of(tensor, tensor.storage())
}

/// The same for numbers of any type, in the tensor's `storage`.
pub(super) fn view_of<'a, T>(tensor: &FlexTensor, storage: &'a [T]) -> View<'a, T> {
    let layout = tensor.layout();
    let strides = layout.strides();
    View {
        data: &storage[layout.start_offset()..],
        shape: dims(tensor),
        strides: std::array::from_fn(|axis| strides[axis] as usize),
    }
}

/// The numbers of a contiguous `f32` tensor.
pub(super) fn numbers(tensor: &FlexTensor) -> &[f32] {
    match tensor.as_slice() {
        Some(numbers) => numbers,
        None => panic!("a fused operation met {tensor:?}, expected contiguous f32"),
    }
}

/// A tensor of `numbers`.
pub(super) fn tensor(numbers: Vec<f32>, shape: impl Into<Shape>) -> FlexTensor {
    FlexTensor::new(
        Bytes::from_elems(numbers),
        Layout::contiguous(shape.into()),
        DType::F32,
    )
}

/// The shape of a tensor of `D` dimensions.
pub(super) fn dims<const D: usize>(tensor: &FlexTensor) -> [usize; D] {
    std::array::from_fn(|d| tensor.layout().shape()[d])
}
