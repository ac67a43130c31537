//! The recurrent operations of `regard-kernels` in Burn's autodiff, one implementation for all of them: an
//! [`Operation`](regard_kernels::Operation) declares its operands.
//!
//! The inputs and what the forward pass wrote are saved for the backward pass; all of it is shared or moved, nothing is
//! copied.

use burn::{
    backend::DispatchTensor,
    tensor::{Bool, Tensor},
};
use regard_kernels::{Fields, KernelError, Operation, Shape};

use super::fused::{self, FlexTensor, Forward, numbers, tensor};
use super::memory;

/// A tensor of floats as an operand of a recurrent operation, whatever its rank: `x.into()`.
#[derive(Debug, Clone)]
pub struct Operand {
    tensor: DispatchTensor,
    shape: Vec<usize>,
}

impl<const D: usize> From<Tensor<D>> for Operand {
    fn from(tensor: Tensor<D>) -> Self {
        Self {
            shape: tensor.dims().to_vec(),
            tensor: tensor.into_dispatch(),
        }
    }
}

impl Operand {
    /// The shape of an operand that must have `D` dimensions.
    #[track_caller]
    pub(super) fn dims<const D: usize>(&self, name: &str) -> [usize; D] {
        let shape = &self.shape;
        <[usize; D]>::try_from(&shape[..])
            .unwrap_or_else(|_| panic!("`{name}` has shape {shape:?}, expected {D} dimensions"))
    }
}

/// The flags of a mask.
pub(super) fn flags<const D: usize>(mask: Option<Tensor<D, Bool>>) -> Option<Vec<bool>> {
    mask.map(|mask| mask.into_data().iter::<bool>().collect())
}

/// Runs `operation`, whose operands `fused::takes` has accepted: returns its differentiable result and the untracked one,
/// if there is one.
///
/// # Panics
/// If a shape does not fit.
#[track_caller]
pub(super) fn run<O: Operation>(
    operation: O,
    inputs: O::Inputs<Operand>,
) -> (DispatchTensor, Option<DispatchTensor>) {
    let shapes = match operation.shapes() {
        Ok((shapes, _)) => shapes.into_vec(),
        Err(error) => panic!("{error}"),
    };
    let names = O::Inputs::<()>::NAMES.iter();
    let inputs = names.zip(shapes).zip(inputs.into_vec());
    let checked = inputs.map(|((name, expected), Operand { tensor, shape })| {
        let Shape { words, sizes } = expected;
        assert!(
            shape == sizes,
            "`{name}` has shape {shape:?}, expected {sizes:?}, which is {words}"
        );
        tensor
    });
    let checked = checked.collect();
    fused::run(Recurrent(operation), checked)
}

#[derive(Debug)]
struct Recurrent<O>(O);

impl<O: Operation> fused::Operation for Recurrent<O> {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let (_, shapes) = self.0.shapes()?;
        let mut shapes = shapes.into_vec();
        let mut written = Vec::with_capacity(shapes.len());
        for (at, shape) in shapes.iter().enumerate() {
            let needed = tracked || at < O::RESULTS;
            written.push(memory::zeros(if needed { shape.len()? } else { 0 }));
        }
        let to = O::Written::collect(written.iter_mut().map(|x| &mut x[..]));
        let slices = O::Inputs::collect(inputs.iter().map(numbers));
        self.0.forward(slices, to)?;
        if !tracked {
            shapes.truncate(O::RESULTS);
        }
        let written = written.into_iter().zip(shapes);
        let mut saved = inputs;
        let first = saved.len();
        saved.extend(written.map(|(numbers, shape)| tensor(numbers, shape.sizes)));
        Ok(Forward {
            output: saved[first].clone(),
            beside: (O::RESULTS > 1).then(|| saved[first + 1].clone()),
            saved: if tracked { saved } else { Vec::new() },
        })
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let (inputs, written) = saved.split_at(O::Inputs::<()>::NAMES.len());
        let zeros = |input: &FlexTensor| memory::zeros(numbers(input).len());
        let mut gradients: Vec<_> = inputs.iter().map(zeros).collect();
        let to = O::Inputs::collect(gradients.iter_mut().map(|x| &mut x[..]));
        let operands = O::Inputs::collect(inputs.iter().map(numbers));
        let written = O::Written::collect(written.iter().map(numbers));
        let d_result = numbers(&gradient);
        self.0.backward(operands, written, d_result, to)?;
        let shaped = gradients
            .into_iter()
            .zip(inputs)
            .map(|(numbers, input)| Some(tensor(numbers, input.layout().shape().clone())));
        Ok(shaped.collect())
    }
}
