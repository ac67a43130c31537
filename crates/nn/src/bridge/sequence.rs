//! Whole recurrent sequences as single differentiable operations, on the CPU backend.
//!
//! Burn's autodiff would record several nodes for every step and sum a weight's gradient step by
//! step; here one node stands for the whole sequence, forward and backward, and each row of the
//! batch runs through all steps on one core. See [`regard_kernels::sequence`] for the formulas.
//!
//! All tensors are time-major, `[steps, batch, ..]`, and `f32`; they are passed in the kernels' structs, whose fields document
//! meaning and shape. These functions need the Flex backend, with or without autodiff: call [`is_fused`] first and use plain
//! operations elsewhere. Masks are `true` = keep. Like Burn's own operations, they panic with the shapes if these do not fit.
//! Second derivatives are not supported.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::bridge::sequence::{LayerFields, Unit, is_fused, layer};
//!
//! let device = Device::flex();
//! let x = Tensor::<3>::zeros([5, 2, 9], &device); // 5 steps, 2 rows, 3 units
//! assert!(is_fused(&x));
//! let inputs = LayerFields {
//!     x_projection: x.into(),
//!     recurrent: Tensor::<2>::zeros([3, 9], &device).into(),
//!     initial: Tensor::<2>::ones([2, 3], &device).into(),
//! };
//! let states = layer(Unit::ChoGru, inputs, None, false);
//! assert_eq!(states.dims(), [5, 2, 3]);
//! ```

use burn::tensor::{Bool, Tensor};
pub use regard_kernels::sequence::{AdditiveFields, InputFeedingFields, LayerFields, Unit};
use regard_kernels::{
    Operation,
    sequence::{AdditiveDecoder, InputFeedingDecoder, Layer, Score},
};

use super::fused;
pub use super::recurrent::Operand;
use super::recurrent::{flags, run};

/// Whether the fused operations of this module take a sequence of tensors like `x`: it is `f32` on Burn's Flex backend (autodiff
/// makes no difference), outside of [`without_kernels`](super::without_kernels).
pub fn is_fused<const D: usize>(x: &Tensor<D>) -> bool {
    fused::takes(x)
}

/// A recurrent layer over a sequence: the states after every step, `[T, B, n]`, or `h | c`, `[T, B, 2n]`, for an LSTM, as one
/// differentiable tensor to slice.
///
/// `keep [T, B]` is `true` where the step is real; a padded step copies the state through. With `reverse`, time runs from the
/// last step to the first. Gradients flow to every operand.
///
/// # Panics
/// If a shape does not fit, or off the Flex backend.
pub fn layer(
    unit: Unit,
    inputs: LayerFields<Operand>,
    keep: Option<Tensor<2, Bool>>,
    reverse: bool,
) -> Tensor<3> {
    let [steps, batch, _] = inputs.x_projection.dims("x_projection");
    let [hidden, _] = inputs.recurrent.dims("recurrent");
    let operation = Layer {
        unit,
        steps,
        batch,
        hidden,
        keep: flags(keep),
        reverse,
    };
    Tensor::from_dispatch(run(operation, inputs).0)
}

/// The results of a decoder.
#[derive(Debug, Clone)]
pub struct Decoded {
    /// The output of every step, differentiable.
    pub output: Tensor<3>,
    /// Attention, `[T, B, S]`, untracked.
    pub weights: Tensor<3>,
}

fn decode<O: Operation>(operation: O, inputs: O::Inputs<Operand>) -> Decoded {
    let (output, weights) = run(operation, inputs);
    let weights = weights.expect("a decoder gives its weights beside the output");
    Decoded {
        output: Tensor::from_dispatch(output),
        weights: Tensor::from_dispatch(weights),
    }
}

/// A layer that attends with its previous state over a whole target sequence, teacher forced: with Cho's GRU it is Bahdanau's
/// decoder, with an LSTM the bottom layer of GNMT's; see [`regard_kernels::sequence::additive_decoder`]. The output is the
/// state and the context, `s_t | a_t`, or `h_t | c_t | a_t` for an LSTM: one differentiable tensor to slice. Gradients flow to
/// every operand.
///
/// `keep_source [B, S]` is `true` where a source position may be attended to, `keep [T, B]` where the target step is real; a padded
/// step copies the state through.
///
/// # Panics
/// If a shape does not fit, or off the Flex backend.
pub fn additive_decoder(
    unit: Unit,
    inputs: AdditiveFields<Operand>,
    keep_source: Option<Tensor<2, Bool>>,
    keep: Option<Tensor<2, Bool>>,
) -> Decoded {
    let [steps, batch, _] = inputs.x_projection.dims("x_projection");
    let [hidden, attention] = inputs.query_weight.dims("query_weight");
    let [_, sources, value] = inputs.values.dims("values");
    let operation = AdditiveDecoder {
        layer: Layer {
            steps,
            batch,
            hidden,
            keep: flags(keep),
            ..Layer::new(unit)
        },
        sources,
        attention,
        value,
        keep_source: flags(keep_source),
    };
    decode(operation, inputs)
}

/// The masks of [`input_feeding_decoder`].
#[derive(Debug, Clone, Default)]
pub struct InputFeedingMasks {
    /// Scaled dropout masks (0 or `1 / (1 - p)`), `[T, L, B, n]`: mask `l` is applied to layer `l`'s output as the input of the
    /// layer above, the last one to the attentional vector. Takes no gradient.
    pub dropout: Option<Tensor<4>>,
    /// The source positions `start..end` that each step may attend to, `T x B` pairs, the steps
    /// outermost (Luong's local-m).
    pub windows: Option<Vec<[usize; 2]>>,
    /// `[B, S]`, `true` where a source position may be attended to.
    pub keep_source: Option<Tensor<2, Bool>>,
}

/// Luong's stacked-LSTM decoder with input feeding over a whole target sequence, teacher forced; see
/// [`regard_kernels::sequence::input_feeding`]. The output is the attentional vectors `h̃_t` after their dropout, `[T, B, n]`.
/// Gradients flow to every operand.
///
/// An additive score has a `query_weight [n, a]` and a `score [a]`; for a dot product `a` is 0. A decoder of one layer has a
/// `layer_weight [0, n, 4n]` and a `layer_bias [0, 4n]`.
///
/// # Panics
/// If a shape does not fit, or off the Flex backend.
pub fn input_feeding_decoder(
    inputs: InputFeedingFields<Operand>,
    masks: InputFeedingMasks,
) -> Decoded {
    let [steps, batch, _] = inputs.x_projection.dims("x_projection");
    let [layers, hidden, _] = inputs.recurrent.dims("recurrent");
    let [_, sources, value] = inputs.values.dims("values");
    let score = match inputs.query_weight.dims("query_weight") {
        [_, 0] => Score::Dot,
        [_, attention] => Score::Additive { attention },
    };
    let dropout = masks.dropout.map(|dropout| {
        let dropout = dropout.into_data().convert::<f32>();
        let numbers = dropout.try_into_vec::<f32>();
        numbers.unwrap_or_else(|_| unreachable!("the masks were converted to f32"))
    });
    let operation = InputFeedingDecoder {
        steps,
        batch,
        sources,
        hidden,
        layers,
        value,
        score,
        dropout,
        windows: masks.windows,
        keep_source: flags(masks.keep_source),
    };
    decode(operation, inputs)
}
