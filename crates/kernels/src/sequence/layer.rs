//! A recurrent layer over a whole sequence.
//!
//! With `x_t` already projected (biases included), `h_t = unit(x_t, h_{t-1})` for each of the [`Unit`]s; the states of an LSTM
//! are `h | c`, side by side in each row.
//!
//! ```text
//!              rows ->                     a task: a block of rows, all steps; the state and the gates in the core's own
//!  step 1   |======|======|===|            memory, U packed once and read by every step
//!   ...       task   task  task
//!  step T   |======|======|===|            backward likewise; then dU = Σ_t h_{t-1}ᵀ d(gates)_t as one product
//! ```
//!
//! ```
//! use regard_kernels::{Operation, Unit, sequence::{Layer, LayerFields, LayerWritten}};
//!
//! // One step, one row, one unit: z = σ(0) = 1/2, r = 1/2, ñ = tanh(0 + (1/2 · 1) · 0) = 0.
//! let gru = Layer { steps: 1, batch: 1, hidden: 1, ..Layer::new(Unit::ChoGru) };
//! let inputs = LayerFields { x_projection: &[0.0; 3][..], recurrent: &[0.0; 3], initial: &[1.0] };
//! let mut states = [0.0];
//! gru.forward(inputs, LayerWritten { states: &mut states, gates: &mut [] })?;
//! assert_eq!(states, [0.5]);
//!
//! // All gates σ(0) = 1/2, g = tanh(0) = 0: c' = c / 2, h' = tanh(c') / 2.
//! let lstm = Layer { steps: 1, batch: 1, hidden: 1, ..Layer::new(Unit::Lstm) };
//! let inputs = LayerFields { x_projection: &[0.0; 4][..], recurrent: &[0.0; 4], initial: &[0.0, 4.0] };
//! let mut states = [0.0; 2];
//! lstm.forward(inputs, LayerWritten { states: &mut states, gates: &mut [] })?;
//! assert_eq!(states[1], 2.0);
//! assert!((states[0] - 0.5 * 2.0f32.tanh()).abs() < 1e-6);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use super::additive_decoder::{AdditiveDecoder, AdditiveFields, AdditiveWritten};
use super::unit::Unit;
use crate::error::{KernelError, check_length};
use crate::operation::{Checked, Operation, Shape, fields};

/// A recurrent layer over a sequence, by its sizes and options.
#[derive(Debug, Clone)]
pub struct Layer {
    /// The kind of recurrent unit.
    pub unit: Unit,
    /// Steps `T`.
    pub steps: usize,
    /// Rows `B`.
    pub batch: usize,
    /// Units `n`.
    pub hidden: usize,
    /// `[T, B]`, `true` where the step is real; a padded step copies the state.
    pub keep: Option<Vec<bool>>,
    /// Whether time runs from the last step to the first.
    pub reverse: bool,
}

/// The sizes of a layer and of what it attends to. `gates` is the width of the unit's gates side by side, `states` that of its
/// states, `saved` that of what a row saves for the backward pass.
pub(super) struct Sizes {
    pub(super) steps: usize,
    pub(super) batch: usize,
    pub(super) hidden: usize,
    pub(super) gates: usize,
    pub(super) states: usize,
    pub(super) saved: usize,
    pub(super) sources: usize,
    pub(super) attention: usize,
    pub(super) value: usize,
}

fields! {
    /// What a [`Layer`] reads. `gates` are [`Unit::gates`] times `hidden`, `states` [`Unit::states`] times.
    LayerFields in Sizes {
        /// Input part of the pre-activations.
        x_projection: [steps, batch, gates],
        /// Recurrent weights `U`.
        recurrent: [hidden, gates],
        /// State before the first step.
        initial: [batch, states],
    }
}

fields! {
    /// What a [`Layer`] writes.
    LayerWritten in Sizes {
        /// The state after every step.
        states: [steps, batch, states],
        /// Activated gates, for the backward pass: `saved` is `gates`, but four times `hidden` for PyTorch's GRU.
        gates: [steps, batch, saved],
    }
}

impl Layer {
    /// A layer of no steps, to be given sizes by struct update.
    pub fn new(unit: Unit) -> Self {
        Self {
            unit,
            steps: 0,
            batch: 0,
            hidden: 0,
            keep: None,
            reverse: false,
        }
    }

    pub(super) fn check(&self) -> Result<(), KernelError> {
        let sizes = [self.steps, self.batch];
        self.keep.as_ref().map_or(Ok(()), |keep| {
            check_length("keep", "[steps, batch]", &sizes, keep.len())
        })
    }

    /// The same layer as a decoder that attends to nothing.
    pub(super) fn decoder(&self) -> AdditiveDecoder {
        AdditiveDecoder {
            layer: self.clone(),
            sources: 0,
            attention: 0,
            value: 0,
            keep_source: None,
        }
    }
}

impl Operation for Layer {
    type Inputs<T> = LayerFields<T>;
    type Written<T> = LayerWritten<T>;
    const RESULTS: usize = 1;

    fn shapes(&self) -> Result<(LayerFields<Shape>, LayerWritten<Shape>), KernelError> {
        self.check()?;
        let sizes = self.decoder().sizes();
        Ok((LayerFields::of(&sizes), LayerWritten::of(&sizes)))
    }

    fn forward_checked(
        &self,
        checked: Checked,
        inputs: LayerFields<&[f32]>,
        written: LayerWritten<&mut [f32]>,
    ) {
        let written = AdditiveWritten {
            output: written.states,
            gates: written.gates,
            ..AdditiveWritten::default()
        };
        let decoder = self.decoder();
        decoder.forward_checked(checked, inputs.into(), written);
    }

    fn backward_checked(
        &self,
        checked: Checked,
        inputs: LayerFields<&[f32]>,
        written: LayerWritten<&[f32]>,
        d_states: &[f32],
        gradients: LayerFields<&mut [f32]>,
    ) {
        let written = AdditiveWritten {
            output: written.states,
            gates: written.gates,
            ..AdditiveWritten::default()
        };
        let decoder = self.decoder();
        let (inputs, gradients) = (inputs.into(), gradients.into());
        decoder.backward_checked(checked, inputs, written, d_states, gradients);
    }
}

impl<T: Default> From<LayerFields<T>> for AdditiveFields<T> {
    fn from(layer: LayerFields<T>) -> Self {
        Self {
            x_projection: layer.x_projection,
            recurrent: layer.recurrent,
            initial: layer.initial,
            ..Self::default()
        }
    }
}
