//! The pre-activation residual unit (He et al. 2016), of which the mask branch consists:
//! `x + W_3 a(W_2 * a(W_1 a(x)))`, `a(x) = ReLU(BatchNorm(x))`, windows of 1, 3 and 1.

use burn::{
    module::Module,
    nn::{BatchNorm, BatchNormConfig, conv::Conv2d},
    tensor::Tensor,
};

use crate::{
    bridge::{batch_norm, convolve},
    initialize::Initializer,
    vision::{
        VisionError,
        convolution::convolution,
        error::{check_map, check_positive, check_precision, divide},
    },
};

/// Batch normalisation, ReLU, convolution without bias.
#[derive(Module, Debug)]
pub struct PreActivation {
    /// Scale, shift and running statistics of each channel.
    pub norm: BatchNorm,
    /// `[outputs, inputs, kernel, kernel]`.
    pub convolution: Conv2d,
}

impl PreActivation {
    pub(super) fn new(
        inputs: usize,
        outputs: usize,
        kernel: usize,
        initializer: &mut Initializer,
    ) -> Self {
        Self {
            norm: BatchNormConfig::new(inputs).init(initializer.device()),
            convolution: convolution(inputs, outputs, kernel, initializer),
        }
    }

    /// `map [batch, inputs, height, width]` -> `[batch, outputs, height, width]`.
    pub(super) fn forward(&self, map: Tensor<4>) -> Tensor<4> {
        convolve(&self.convolution, batch_norm(&self.norm, map, None, true))
    }
}

/// `x + W_3 a(W_2 * a(W_1 a(x)))`, `a(x) = ReLU(BatchNorm(x))`, windows of 1, 3 and 1: the pre-activation
/// residual unit (K. He, X. Zhang, S. Ren, J. Sun, arXiv:1603.05027).
#[derive(Module, Debug)]
pub struct ResidualUnit {
    /// `W_1`: 1×1, to fewer channels.
    pub reduce: PreActivation,
    /// `W_2`: 3×3.
    pub window: PreActivation,
    /// `W_3`: 1×1, back to all channels.
    pub expand: PreActivation,
    /// 1×1 on `x` before the sum, where the channels or the size change.
    pub shortcut: Option<Conv2d>,
}

impl ResidualUnit {
    /// A unit for maps of `channels`, with `reduction` times fewer in the middle (He et al. 2016: 4).
    ///
    /// # Errors
    /// A size of 0, or a reduction that does not divide the channels.
    pub fn new(
        channels: usize,
        reduction: usize,
        initializer: &mut Initializer,
    ) -> Result<Self, VisionError> {
        Self::changing([channels, channels], 1, reduction, initializer)
    }

    /// A unit from maps of one number of channels to maps of another, `stride` times smaller: the 3×3 window has the stride. `x`
    /// takes part in the sum through a 1×1 convolution, unless nothing changes.
    ///
    /// # Errors
    /// A size of 0, or a reduction that does not divide the channels of the output.
    pub fn changing(
        [inputs, outputs]: [usize; 2],
        stride: usize,
        reduction: usize,
        initializer: &mut Initializer,
    ) -> Result<Self, VisionError> {
        let hidden = divide(("channels", outputs), ("reduction", reduction))?;
        check_positive("stride", stride)?;
        let changes = inputs != outputs || stride > 1;
        let mut unit = Self {
            reduce: PreActivation::new(inputs, hidden, 1, initializer),
            window: PreActivation::new(hidden, hidden, 3, initializer),
            expand: PreActivation::new(hidden, outputs, 1, initializer),
            shortcut: changes.then(|| convolution(inputs, outputs, 1, initializer)),
        };
        unit.window.convolution.stride = [stride; 2];
        if let Some(shortcut) = &mut unit.shortcut {
            shortcut.stride = [stride; 2];
        }
        Ok(unit)
    }

    /// `map [batch, channels, height, width]`, in the same shape unless the unit [changes](Self::changing) it.
    ///
    /// # Errors
    /// A map of other channels or another precision, or with a size of 0.
    pub fn forward(&self, map: Tensor<4>) -> Result<Tensor<4>, VisionError> {
        let [_, channels, _, _] = self.reduce.convolution.weight.dims();
        check_map("map", map.dims(), channels)?;
        check_precision("map", map.dtype(), self)?;
        let branch = self.window.forward(self.reduce.forward(map.clone()));
        let map = match &self.shortcut {
            Some(shortcut) => convolve(shortcut, map),
            None => map,
        };
        Ok(map + self.expand.forward(branch))
    }
}
