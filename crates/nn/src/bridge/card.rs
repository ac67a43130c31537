//! What graphics cards compute in one operation of ours, with a gradient of its own in Burn's autodiff: [`attention`], [`product`]s of
//! matrices in full precision, and [`exp`] and [`sigmoid`] within a few roundings.

mod attention;
mod pointwise;
mod product;

use std::fmt::Debug;

use burn::{
    backend::{
        Autodiff, AutodiffBackend, BackendTensor, Cube, DispatchAutodiffContext, DispatchTensor,
        DispatchTensorKind,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        tensor::FloatTensor,
    },
    tensor::{DType, Tensor},
};

use super::suspended::suspended;
use crate::devices::is_card;

pub(crate) use attention::attention;
pub(crate) use pointwise::{exp, sigmoid};
pub(crate) use product::{multiplies, product};

type Primitive = FloatTensor<Cube>;
type Tracked = FloatTensor<Autodiff<Cube>>;

/// Whether the kernel of attention takes tensors like `tensor`.
pub(crate) fn takes<const D: usize>(tensor: &Tensor<D>) -> bool {
    let known = matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16);
    is_card(&tensor.device()) && known && !suspended()
}

/// What CubeCL calls a card; `None` for other devices.
#[cfg(feature = "cuda")]
pub(crate) fn device(device: &burn::tensor::Device) -> Option<regard_gpu::Card> {
    match device.clone().inner().as_dispatch() {
        burn::backend::DispatchDevice::Cube(card) => Some(card.clone()),
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

/// An operation on the numbers of 1 to 4 inputs.
trait Operation: Clone + Debug + Send + 'static {
    /// What the backward pass reads beside the inputs.
    type Kept: Clone + Debug + Send + 'static;

    /// The output, and what is kept of it.
    fn forward(&self, inputs: &[Primitive]) -> (Primitive, Self::Kept);

    /// A gradient for each input, at least where it is `wanted`, from that of the output.
    fn backward(
        &self,
        inputs: &[Primitive],
        kept: &Self::Kept,
        gradient: Primitive,
        wanted: &[bool],
    ) -> Vec<Option<Primitive>>;
}

/// The output of `operation`, on the device of the inputs and recorded if one of them has a gradient, and what was kept.
fn run<O: Operation>(operation: O, inputs: Vec<DispatchTensor>) -> (DispatchTensor, O::Kept) {
    let autodiff = inputs
        .iter()
        .fold(DispatchAutodiffContext::Disabled, |context, input| {
            context.merge(input.autodiff)
        });
    if autodiff == DispatchAutodiffContext::Disabled {
        let inputs: Vec<_> = inputs.into_iter().map(inner).collect();
        let (output, kept) = operation.forward(&inputs);
        return (dispatch(BackendTensor::Float(output), autodiff), kept);
    }
    let tracked = |input: DispatchTensor| match input.kind {
        DispatchTensorKind::Autodiff(kind) => match *kind {
            DispatchTensorKind::Cube(tensor) => tensor.autodiff(),
            other => elsewhere(&other),
        },
        _ => <Autodiff<Cube> as AutodiffBackend>::from_inner(inner(input)),
    };
    let count = inputs.len();
    let mut inputs = inputs.into_iter().map(tracked);
    let mut next = || inputs.next().expect("as many as there are");
    let (output, kept) = match count {
        1 => record([next()], operation),
        2 => record([next(), next()], operation),
        3 => record([next(), next(), next()], operation),
        4 => record([next(), next(), next(), next()], operation),
        other => panic!("an operation on {other} inputs, expected 1 to 4"),
    };
    (dispatch(BackendTensor::Autodiff(output), autodiff), kept)
}

/// Records the operation, with a parent for each input.
fn record<O: Operation, const N: usize>(inputs: [Tracked; N], operation: O) -> (Tracked, O::Kept) {
    let mut primitives = Vec::with_capacity(N);
    let guards = inputs.map(|input| {
        let (primitive, guard) = input.into_parts();
        primitives.push(primitive);
        guard
    });
    let prepared = Step(operation.clone())
        .prepare::<NoCheckpointing>(guards)
        .compute_bound()
        .stateful();
    let (output, kept) = operation.forward(&primitives);
    let output = match prepared {
        OpsKind::Tracked(prepared) => prepared.finish((primitives, kept.clone()), output),
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    };
    (output, kept)
}

/// The recorded operation.
#[derive(Debug)]
struct Step<O>(O);

impl<O: Operation, const N: usize> Backward<Cube, N> for Step<O> {
    /// The inputs, and what was kept.
    type State = (Vec<Primitive>, O::Kept);

    fn backward(
        self,
        ops: Ops<Self::State, N>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let (inputs, kept) = ops.state;
        let gradient = grads.consume::<Cube>(&ops.node);
        let wanted = ops.parents.each_ref().map(Option::is_some);
        let found = self.0.backward(&inputs, &kept, gradient, &wanted);
        for (parent, gradient) in ops.parents.into_iter().zip(found) {
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<Cube>(parent.id, gradient);
            }
        }
    }
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
    panic!("this runs on a card, but an input is {kind:?}")
}
