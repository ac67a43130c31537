//! What a fused operation is.

use std::fmt::Debug;

use regard_kernels::KernelError;

use super::fused::FlexTensor;

/// What a forward pass gives.
#[derive(Debug)]
pub(super) struct Forward {
    /// The output that gradients flow back from.
    pub(super) output: FlexTensor,
    /// An output without gradient.
    pub(super) beside: Option<FlexTensor>,
    /// What the backward pass needs; left empty if no backward pass will follow.
    pub(super) saved: Vec<FlexTensor>,
}

impl Forward {
    /// An output whose backward pass needs nothing.
    pub(super) fn only(output: FlexTensor) -> Self {
        Self {
            output,
            beside: None,
            saved: vec![],
        }
    }
}

/// How the numbers of an input may lie; one that lies otherwise is copied first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// One after the other, the last dimension first.
    Contiguous,
    /// In four dimensions, the last of which is contiguous ([`view`](super::fused::view)).
    Rows,
    /// With any strides that are not negative.
    Strides,
}

/// A fused operation with its backward pass.
pub(super) trait Operation: Debug + Send + Sync + 'static {
    /// How inputs may come.
    fn reads(&self) -> Reads {
        Reads::Contiguous
    }

    /// Computes the outputs. `inputs` are `f32`, lie as [`Operation::reads`] says, and are owned so that the storage of one
    /// that nobody else holds can be used again.
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError>;

    /// The gradients of the inputs, in their order, from that of the output (contiguous `f32`). Of
    /// an input that is not `wanted` it may be `None`.
    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError>;
}
