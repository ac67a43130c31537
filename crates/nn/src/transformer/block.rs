//! Residual connection, dropout and norm around what a layer computes.

use burn::{module::Module, tensor::Tensor};

use super::{Norm, NormPlace};
use crate::{
    attention::AttentionError, bridge::add_dropout, dropout::Noise, precision::check_weights,
    recurrent::check_shape,
};

/// Checks that states `x [batch, length, model]` have the size and the precision of `layers`.
pub(super) fn check_states<M: Module>(
    field: &'static str,
    x: &Tensor<3>,
    size: Option<usize>,
    layers: &M,
) -> Result<(), AttentionError> {
    let [batch, length, found] = x.dims();
    let expected = [batch, length, size.unwrap_or(found)];
    let meaning = "[batch, length, model]: make the layers with the size of their input";
    check_shape(field, x.dims(), expected, meaning)?;
    check_weights(field, x.dtype(), layers)
}

/// What stands around attention or feed-forward.
#[derive(Module, Debug)]
pub struct Residual {
    /// The block's norm.
    pub norm: Norm,
    #[module(skip)]
    pub(super) place: NormPlace,
    #[module(skip)]
    pub(super) dropout: f64,
}

impl Residual {
    /// Where the norm stands.
    pub fn place(&self) -> NormPlace {
        self.place
    }

    /// What the block reads of `x`.
    pub(super) fn enter(&self, x: &Tensor<3>) -> Tensor<3> {
        match self.place {
            NormPlace::Pre => self.norm.forward(x.clone()),
            NormPlace::Post => x.clone(),
        }
    }

    /// `x` with what the block gave, `y` and perhaps a bias.
    pub(super) fn leave(
        &self,
        x: Tensor<3>,
        y: Tensor<3>,
        bias: Option<Tensor<1>>,
        noise: &mut Noise,
    ) -> Tensor<3> {
        let sum = add_dropout(x, y, bias, self.dropout, noise);
        match self.place {
            NormPlace::Pre => sum,
            NormPlace::Post => self.norm.forward(sum),
        }
    }
}
