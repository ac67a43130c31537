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

/// A fused operation with its backward pass.
pub(super) trait Operation: Debug + Send + Sync + 'static {
    /// Whether inputs may come with strides of their own, as long as the last dimension is contiguous ([`view`](super::fused::view)).
    fn reads_strides(&self) -> bool {
        false
    }

    /// Computes the outputs. `inputs` are contiguous `f32` (but see [`Operation::reads_strides`]), and owned so that the storage of one
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
