//! Whole recurrent sequences as single differentiable operations, on the CPU backend.
//!
//! Burn's autodiff would record several nodes for every step and sum a weight's gradient step by
//! step; here one node stands for the whole sequence, forward and backward, and each row of the
//! batch runs through all steps on one core. See [`regard_kernels::sequence`] for the formulas.
//!
//! All tensors are time-major, `[steps, batch, ..]`, and `f32`. These functions need the Flex
//! backend, with or without autodiff: ask [`is_fused`] first and take plain operations elsewhere.
//! Masks are `true` = keep. As with Burn's own operations, shapes that do not fit are a panic that
//! names them. Second derivatives are not supported.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::bridge::sequence::{GruOptions, gru_sequence, is_fused};
//!
//! let device = Device::flex();
//! let x = Tensor::<3>::zeros([5, 2, 9], &device); // 5 steps, 2 rows, 3 units
//! assert!(is_fused(&x));
//! let recurrent = Tensor::<2>::zeros([3, 9], &device);
//! let states = gru_sequence(x, recurrent, None, Tensor::ones([2, 3], &device), None, GruOptions::default());
//! assert_eq!(states.dims(), [5, 2, 3]);
//! ```

use burn::tensor::{Bool, Tensor};
pub use regard_kernels::sequence::gru::Convention;

pub use super::sequence_gnmt::{AdditiveLstmInput, AdditiveLstmOutput, additive_lstm_decoder};
pub use super::sequence_luong::{
    InputFeedingInput, InputFeedingOutput, InputFeedingScore, UpperLayers,
    input_feeding_lstm_decoder,
};

use super::sequence_ops::{AdditiveGru, Gru, Lstm};
use super::{expect_dims, fused};

/// Whether the fused operations of this module take a sequence of tensors like `x`: it is `f32` on Burn's Flex backend (autodiff
/// makes no difference), outside of [`without_kernels`](super::without_kernels).
pub fn is_fused<const D: usize>(x: &Tensor<D>) -> bool {
    fused::takes(x)
}

/// How [`gru_sequence`] runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GruOptions {
    /// Whether time runs from the last step to the first.
    pub reverse: bool,
    /// Which gated recurrent unit.
    pub convention: Convention,
}

impl Default for GruOptions {
    /// Forward in time, Cho's unit.
    fn default() -> Self {
        Self {
            reverse: false,
            convention: Convention::Cho,
        }
    }
}

/// A GRU over a sequence: the states after every step, `[T, B, n]`.
///
/// - `x_projection [T, B, 3n]`: input part of the gates `z | r | n`, biases included
/// - `recurrent [n, 3n]`
/// - `hidden_bias [3n]`: added to the recurrent product, for [`Convention::PyTorch`] only
/// - `initial [B, n]`
/// - `keep [T, B]`: `true` where the step is real; a padded step copies the state through
///
/// Gradients flow to every float argument.
///
/// # Panics
/// If a shape does not fit, if [`Convention::Cho`] is given a hidden bias, or off the Flex backend.
pub fn gru_sequence(
    x_projection: Tensor<3>,
    recurrent: Tensor<2>,
    hidden_bias: Option<Tensor<1>>,
    initial: Tensor<2>,
    keep: Option<Tensor<2, Bool>>,
    options: GruOptions,
) -> Tensor<3> {
    let [steps, batch, _] = x_projection.dims();
    let [hidden, _] = recurrent.dims();
    expect_dims(
        "x_projection",
        x_projection.dims(),
        [steps, batch, 3 * hidden],
    );
    expect_dims("recurrent", recurrent.dims(), [hidden, 3 * hidden]);
    expect_dims("initial", initial.dims(), [batch, hidden]);
    let biased = hidden_bias.is_some();
    assert!(
        !biased || options.convention == Convention::PyTorch,
        "`hidden_bias` given to Cho's unit, which has none: add it to `x_projection`"
    );
    let bias = hidden_bias.unwrap_or_else(|| Tensor::zeros([3 * hidden], &initial.device()));
    expect_dims("hidden_bias", bias.dims(), [3 * hidden]);
    let keep = mask("keep", keep, [steps, batch]);
    let GruOptions {
        reverse,
        convention,
    } = options;
    let operation = Gru {
        steps,
        batch,
        hidden,
        keep,
        reverse,
        convention,
        biased,
    };
    let inputs = vec![
        x_projection.into_dispatch(),
        recurrent.into_dispatch(),
        bias.into_dispatch(),
        initial.into_dispatch(),
    ];
    let (states, _) = fused::run(operation, inputs);
    Tensor::from_dispatch(states)
}

/// An LSTM over a sequence: `h | c` after every step, `[T, B, 2n]`, one differentiable tensor to
/// slice.
///
/// - `x_projection [T, B, 4n]`: input part of the gates `i | f | g | o`, biases included
/// - `recurrent [n, 4n]`
/// - `initial_hidden`, `initial_cell [B, n]`
/// - `keep [T, B]`: `true` where the step is real; a padded step copies both states through
///
/// Gradients flow to every float argument.
///
/// # Panics
/// If a shape does not fit, or off the Flex backend.
pub fn lstm_sequence(
    x_projection: Tensor<3>,
    recurrent: Tensor<2>,
    initial_hidden: Tensor<2>,
    initial_cell: Tensor<2>,
    keep: Option<Tensor<2, Bool>>,
    reverse: bool,
) -> Tensor<3> {
    let [steps, batch, _] = x_projection.dims();
    let [hidden, _] = recurrent.dims();
    expect_dims(
        "x_projection",
        x_projection.dims(),
        [steps, batch, 4 * hidden],
    );
    expect_dims("recurrent", recurrent.dims(), [hidden, 4 * hidden]);
    expect_dims("initial_hidden", initial_hidden.dims(), [batch, hidden]);
    expect_dims("initial_cell", initial_cell.dims(), [batch, hidden]);
    let keep = mask("keep", keep, [steps, batch]);
    let operation = Lstm {
        steps,
        batch,
        hidden,
        keep,
        reverse,
    };
    let inputs = vec![
        x_projection.into_dispatch(),
        recurrent.into_dispatch(),
        initial_hidden.into_dispatch(),
        initial_cell.into_dispatch(),
    ];
    let (states, _) = fused::run(operation, inputs);
    Tensor::from_dispatch(states)
}

/// The tensors of [`additive_gru_decoder`]. `T` = target steps, `B` = batch, `S` = sources, `n` =
/// state, `a` = alignment model, `d` = value.
#[derive(Debug, Clone)]
pub struct AdditiveGruInput {
    /// Input part of the gates `z | r | n`, biases included, `[T, B, 3n]`.
    pub x_projection: Tensor<3>,
    /// State before the first step, `[B, n]`.
    pub initial: Tensor<2>,
    /// Projected keys `U_a h_j` (bias included), `[B, S, a]`.
    pub keys: Tensor<3>,
    /// Values `h_j`, `[B, S, d]`.
    pub values: Tensor<3>,
    /// Query weights `W_a`, `[n, a]`.
    pub query_weight: Tensor<2>,
    /// Score vector `v`, `[a]`.
    pub score: Tensor<1>,
    /// Recurrent weights, `[n, 3n]`.
    pub recurrent: Tensor<2>,
    /// Context weights, `[d, 3n]`.
    pub context_weight: Tensor<2>,
    /// `[B, S]`, `true` where a source position may be attended to.
    pub keep_source: Option<Tensor<2, Bool>>,
    /// `[T, B]`, `true` where the target step is real; a padded step copies the state through.
    pub keep: Option<Tensor<2, Bool>>,
}

/// What [`additive_gru_decoder`] gives.
#[derive(Debug, Clone)]
pub struct AdditiveGruOutput {
    /// `s_t | c_t`, `[T, B, n + d]`: one differentiable tensor to slice.
    pub states_and_contexts: Tensor<3>,
    /// Attention, `[T, B, S]`, untracked.
    pub weights: Tensor<3>,
}

/// Bahdanau's decoder over a whole target sequence, teacher forced; see
/// [`regard_kernels::sequence::additive_gru`]. Gradients flow to every float argument.
///
/// # Panics
/// If a shape does not fit, or off the Flex backend.
pub fn additive_gru_decoder(input: AdditiveGruInput) -> AdditiveGruOutput {
    let AdditiveGruInput {
        x_projection,
        initial,
        keys,
        values,
        query_weight,
        score,
        recurrent,
        context_weight,
        keep_source,
        keep,
    } = input;
    let [steps, batch, _] = x_projection.dims();
    let [hidden, attention] = query_weight.dims();
    let [_, sources, value] = values.dims();
    expect_dims(
        "x_projection",
        x_projection.dims(),
        [steps, batch, 3 * hidden],
    );
    expect_dims("initial", initial.dims(), [batch, hidden]);
    expect_dims("keys", keys.dims(), [batch, sources, attention]);
    expect_dims("values", values.dims(), [batch, sources, value]);
    expect_dims("score", score.dims(), [attention]);
    expect_dims("recurrent", recurrent.dims(), [hidden, 3 * hidden]);
    expect_dims("context_weight", context_weight.dims(), [value, 3 * hidden]);
    let operation = AdditiveGru {
        steps,
        batch,
        sources,
        hidden,
        attention,
        value,
        keep_source: mask("keep_source", keep_source, [batch, sources]),
        keep: mask("keep", keep, [steps, batch]),
    };
    let inputs = vec![
        x_projection.into_dispatch(),
        initial.into_dispatch(),
        keys.into_dispatch(),
        values.into_dispatch(),
        query_weight.into_dispatch(),
        score.into_dispatch(),
        recurrent.into_dispatch(),
        context_weight.into_dispatch(),
    ];
    let (output, weights) = fused::run(operation, inputs);
    let weights = weights.expect("the decoder gives its weights beside the output");
    AdditiveGruOutput {
        states_and_contexts: Tensor::from_dispatch(output),
        weights: Tensor::from_dispatch(weights),
    }
}

/// The numbers of a mask.
#[track_caller]
pub(super) fn mask(
    name: &str,
    mask: Option<Tensor<2, Bool>>,
    expected: [usize; 2],
) -> Option<Vec<bool>> {
    mask.map(|mask| {
        expect_dims(name, mask.dims(), expected);
        mask.into_data().iter::<bool>().collect()
    })
}
