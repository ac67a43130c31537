//! Residual connection, dropout and norms around attention or feed-forward.

use burn::{module::Module, tensor::Tensor};

use super::{Norm, NormPlace};
use crate::{
    attention::AttentionError, bridge::add_dropout, dropout::DropoutRng, precision::check_weights,
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

/// The connection around attention or feed-forward: `x ← x + dropout(f(x))` with its norms.
#[derive(Module, Debug)]
pub struct Residual {
    /// The norm before `f` ([`NormPlace::Pre`], [`NormPlace::Both`]) or after the sum ([`NormPlace::Post`]). In parallel
    /// blocks, the feed-forward network has none and shares the attention's norm.
    pub norm: Option<Norm>,
    /// The norm of the output of `f`, before the sum ([`NormPlace::Both`]).
    pub after: Option<Norm>,
    #[module(skip)]
    pub(super) place: NormPlace,
    #[module(skip)]
    pub(super) dropout: f64,
}

impl Residual {
    /// Where the norms are placed.
    pub fn place(&self) -> NormPlace {
        self.place
    }

    /// The input of `f`, from `x [batch, length, model]`.
    pub(super) fn enter(&self, x: &Tensor<3>) -> Tensor<3> {
        match (self.place, &self.norm) {
            (NormPlace::Post, _) | (_, None) => x.clone(),
            (_, Some(norm)) => norm.forward(x.clone()),
        }
    }

    /// The sum of `x` and `y`, the output of `f`, and a bias that is still to be added to `y`, if there is one.
    pub(super) fn leave(
        &self,
        x: Tensor<3>,
        y: Tensor<3>,
        bias: Option<Tensor<1>>,
        noise: &mut DropoutRng,
    ) -> Tensor<3> {
        let (y, bias) = match (&self.after, bias) {
            (Some(norm), Some(bias)) => (norm.forward(y + bias.unsqueeze::<3>()), None),
            (Some(norm), None) => (norm.forward(y), None),
            (None, bias) => (y, bias),
        };
        let sum = add_dropout(x, y, bias, self.dropout, noise);
        match (self.place, &self.norm) {
            (NormPlace::Post, Some(norm)) => norm.forward(sum),
            _ => sum,
        }
    }
}
