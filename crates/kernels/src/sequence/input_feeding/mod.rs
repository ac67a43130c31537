//! Luong's decoder with input feeding over a whole target sequence, teacher forced (Luong et al.
//! 2015): a stack of LSTMs that attends with its *current* state and receives the attentional vector of the previous step as
//! input.
//!
//! With the first layer's input part `x_t` projected (bias included), one step is
//!
//! ```text
//! layer 1:  gates = x_t + h̃_{t-1} F + h¹ U_1
//! layer l:  gates = b_l + (h^{l-1} ∘ mask_{l-1}) W_l + h^l U_l        (columns i | f | g | o)
//! e_j   = h^L · key_j                        dot; general if the keys are projected
//!       or vᵀ tanh(h^L W_a + key_j)          additive (Luong's concat)
//! α     = softmax of e over the kept sources inside the step's window
//! c_t   = Σ_j α_j value_j
//! h̃_t   = tanh([c_t; h^L] W_c + b_c) ∘ mask_L
//! ```
//!
//! The output is `h̃_t`, after its dropout mask, which is also the input of the next step. The masks are already scaled (0 or
//! `1 / (1 - p)`): mask `l` is applied to layer `l`'s output as the input of the layer above, the last one to `h̃`; recurrent
//! connections and the attention's query are never dropped.
//!
//! ```text
//!              rows ->                     a task: a block of rows, all steps; inside a step the layers from the bottom
//!  step 1   |======|======|===|            to the top, the attention, h̃, which the next step's bottom layer reads
//!   ...       task   task  task
//!  step T   |======|======|===|            backward from the top to the bottom; then one product over all
//!                                          steps for each weight, and the sums of keys and values for each row
//! ```
//!
//! ```
//! use regard_kernels::{Operation, sequence::{InputFeedingDecoder, InputFeedingFields, InputFeedingWritten, Score}};
//!
//! // All weights 0: every gate is 1/2, every state 0, the attention uniform, h̃ = tanh(b_c).
//! let decoder = InputFeedingDecoder {
//!     steps: 1,
//!     batch: 1,
//!     sources: 2,
//!     hidden: 1,
//!     layers: 1,
//!     value: 1,
//!     score: Score::Dot,
//!     dropout: None,
//!     windows: None,
//!     keep_source: None,
//! };
//! let inputs = InputFeedingFields {
//!     x_projection: &[0.0; 4][..],
//!     feed: &[0.0],
//!     feed_weight: &[0.0; 4],
//!     recurrent: &[0.0; 4],
//!     initial: &[0.0; 2],
//!     keys: &[1.0, 2.0],
//!     values: &[1.0, 2.0],
//!     combine_weight: &[0.0; 2],
//!     combine_bias: &[0.5],
//!     ..InputFeedingFields::default() // no layers above the first, no additive score
//! };
//! let (mut output, mut weights) = ([0.0], [0.0; 2]);
//! let written = InputFeedingWritten { output: &mut output[..], weights: &mut weights, ..Default::default() };
//! decoder.forward(inputs, written)?;
//! assert_eq!(weights, [0.5, 0.5]);
//! assert!((output[0] - 0.5f32.tanh()).abs() < 1e-6);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

mod backward;
mod forward;
mod step;
mod weight_gradients;

use crate::error::{KernelError, check_length};
use crate::matmul::Packed;
use crate::operation::{Checked, Fields, Operation, Shape, fields};
use crate::rows::{Blocks, Cut, Place};
use crate::sequence::attend::Sources;
use crate::sequence::rows::pack;
use crate::sequence::unit::{Unit, UnitWeights};
use crate::simd::Level;

/// How the decoder scores its state against the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// `h · key`, keys `[B, S, n]`; Luong's *dot*, and his *general* if the keys are projected outside.
    Dot,
    /// `vᵀ tanh(h W_a + key)`, keys `[B, S, a]`; Luong's *concat* with the keys projected outside.
    Additive {
        /// Width of the alignment model, `a`.
        attention: usize,
    },
}

/// Luong's decoder, by its sizes, masks and score. `T` = steps, `B` = batch, `S` = sources, `n` = hidden, `L` = layers,
/// `d` = value.
#[derive(Debug, Clone)]
pub struct InputFeedingDecoder {
    /// Target steps `T`.
    pub steps: usize,
    /// Rows `B`.
    pub batch: usize,
    /// Source positions `S`.
    pub sources: usize,
    /// Units of each layer, `n`.
    pub hidden: usize,
    /// Layers `L`, at least 1.
    pub layers: usize,
    /// Width of a value, `d`.
    pub value: usize,
    /// How states are scored against keys.
    pub score: Score,
    /// Scaled dropout masks, `[T, L, B, n]`.
    pub dropout: Option<Vec<f32>>,
    /// `[T, B]`: the source positions `start..end` that a step may attend to (Luong's local-m).
    pub windows: Option<Vec<[usize; 2]>>,
    /// `[B, S]`, `true` where a source position may be attended to.
    pub keep_source: Option<Vec<bool>>,
}

/// The sizes of a decoder. `upper` is the number of layers above the first. `key` is the width of a key, which is also that of
/// a query; under a dot product the query is the state. `query` is the width of a query that is computed apart from the state,
/// 0 for a dot product.
struct Sizes {
    steps: usize,
    batch: usize,
    sources: usize,
    hidden: usize,
    layers: usize,
    upper: usize,
    value: usize,
    key: usize,
    query: usize,
}

fields! {
    /// What an [`InputFeedingDecoder`] reads. Columns of gates are `i | f | g | o`. `upper` are the layers above the first; for
    /// [`Score::Dot`] a `key` has `hidden` numbers and a `query` none, for [`Score::Additive`] both have `attention` numbers.
    InputFeedingFields in Sizes {
        /// Input part of the first layer's gates, bias included.
        x_projection: [steps, batch, 4 hidden],
        /// The attentional vector before the first step; normally zeros.
        feed: [batch, hidden],
        /// Weights of the fed vector, `F`.
        feed_weight: [hidden, 4 hidden],
        /// Recurrent weights of each layer.
        recurrent: [layers, hidden, 4 hidden],
        /// Input weights of the layers above the first.
        layer_weight: [upper, hidden, 4 hidden],
        /// Biases of the layers above the first.
        layer_bias: [upper, 4 hidden],
        /// States `h | c` before the first step.
        initial: [layers, batch, 2 hidden],
        /// Keys; their gradient is zero at sources that are not kept.
        keys: [batch, sources, key],
        /// Values; their gradient is zero at sources that are not kept.
        values: [batch, sources, value],
        /// `W_c`, the context's rows first.
        combine_weight: [value + hidden, hidden],
        /// `b_c`
        combine_bias: [hidden],
        /// `W_a` of an additive score.
        query_weight: [hidden, query],
        /// `v` of an additive score.
        score: [query],
    }
}

fields! {
    /// What an [`InputFeedingDecoder`] writes; sizes as in [`InputFeedingFields`].
    InputFeedingWritten in Sizes {
        /// `h̃_t`
        output: [steps, batch, hidden],
        /// Attention.
        weights: [steps, batch, sources],
        /// Activated gates, for the backward pass.
        gates: [layers, steps, batch, 4 hidden],
        /// `h | c` of each layer, for the backward pass.
        states: [layers, steps, batch, 2 hidden],
        /// Contexts, for the backward pass.
        contexts: [steps, batch, value],
        /// `tanh([c; h] W_c + b_c)` before the mask, for the backward pass.
        combined: [steps, batch, hidden],
        /// Queries `h W_a` of an additive score, for the backward pass.
        queries: [steps, batch, query],
    }
}

type Inputs<'a> = InputFeedingFields<&'a [f32]>;
type Written<'a> = InputFeedingWritten<&'a [f32]>;

/// The packed weights of one direction.
struct Weights {
    feed: Packed,
    recurrent: Vec<UnitWeights>,
    layers: Vec<Packed>,
    /// Present for an additive score.
    query: Option<Packed>,
    combine_context: Packed,
    combine_state: Packed,
}

impl InputFeedingDecoder {
    fn sizes(&self) -> Sizes {
        let (key, query) = match self.score {
            Score::Dot => (self.hidden, 0),
            Score::Additive { attention } => (attention, attention),
        };
        Sizes {
            steps: self.steps,
            batch: self.batch,
            sources: self.sources,
            hidden: self.hidden,
            layers: self.layers,
            upper: self.layers.saturating_sub(1),
            value: self.value,
            key,
            query,
        }
    }

    /// The weights as they are, or their transposes for the backward pass.
    fn pack(&self, level: Level, inputs: &Inputs<'_>, transposed: bool) -> Weights {
        let (n, value, query) = (self.hidden, self.value, self.sizes().query);
        let pack = |matrix: &[f32], inner: usize, columns: usize| {
            pack(level, matrix, columns, inner, columns, transposed)
        };
        let (context, state) = inputs.combine_weight.split_at(value * n);
        let unit = |u: &[f32]| UnitWeights::pack(level, Unit::Lstm, u, n, transposed);
        let (recurrent, layers) = (inputs.recurrent, inputs.layer_weight);
        Weights {
            feed: pack(inputs.feed_weight, n, 4 * n),
            recurrent: recurrent.chunks_exact(4 * n * n).map(unit).collect(),
            layers: layers
                .chunks_exact(4 * n * n)
                .map(|matrix| pack(matrix, n, 4 * n))
                .collect(),
            query: (self.score != Score::Dot).then(|| pack(inputs.query_weight, n, query)),
            combine_context: pack(context, value, n),
            combine_state: pack(state, n, n),
        }
    }

    fn blocks(&self) -> Blocks {
        let Sizes {
            hidden: n,
            layers,
            value,
            sources,
            key,
            query,
            ..
        } = self.sizes();
        let of_row = 8 * n * n * layers + (value + n) * n + n * query;
        let products = self.steps * self.batch * (of_row + sources * (key + value));
        Blocks::new(self.batch, products)
    }

    fn source<'a>(&'a self, inputs: &Inputs<'a>) -> Sources<'a> {
        Sources {
            score: (self.score != Score::Dot).then_some(inputs.score),
            keys: inputs.keys,
            values: inputs.values,
            keep: self.keep_source.as_deref(),
            windows: self.windows.as_deref(),
            sources: self.sources,
            attention: self.sizes().key,
            value: self.value,
        }
    }

    /// The dropout mask of one layer's output at the step of `place`.
    fn mask(&self, place: Place, layer: usize) -> Option<&[f32]> {
        let place = place.at(place.step * self.layers + layer);
        let masks = self.dropout.as_deref()?;
        Some(place.of(masks, self.hidden))
    }
}

impl Operation for InputFeedingDecoder {
    type Inputs<T> = InputFeedingFields<T>;
    type Written<T> = InputFeedingWritten<T>;
    const RESULTS: usize = 2;

    fn shapes(
        &self,
    ) -> Result<(InputFeedingFields<Shape>, InputFeedingWritten<Shape>), KernelError> {
        let sizes = self.sizes();
        let Sizes {
            steps,
            batch,
            sources,
            hidden,
            layers,
            ..
        } = sizes;
        if layers == 0 {
            let expected = "at least 1";
            return Err(KernelError::Value {
                argument: "layers",
                expected,
                found: 0.0,
            });
        }
        if let Some(dropout) = &self.dropout {
            let shape = "[steps, layers, batch, hidden]";
            let sizes = [steps, layers, batch, hidden];
            check_length("dropout", shape, &sizes, dropout.len())?;
        }
        if let Some(windows) = &self.windows {
            check_length("windows", "[steps, batch]", &[steps, batch], windows.len())?;
        }
        if let Some(keep) = &self.keep_source {
            let shape = "[batch, sources]";
            check_length("keep_source", shape, &[batch, sources], keep.len())?;
        }
        let written = InputFeedingWritten::of(&sizes);
        Ok((InputFeedingFields::of(&sizes), written))
    }

    fn forward_checked(
        &self,
        checked: Checked,
        inputs: Inputs<'_>,
        written: InputFeedingWritten<&mut [f32]>,
    ) {
        let Sizes {
            steps,
            batch,
            sources,
            hidden: n,
            layers,
            value,
            query,
            ..
        } = self.sizes();
        // Without steps nothing is written, and sizes that no operand has may be more than could be allocated.
        if steps == 0 || batch == 0 || n == 0 {
            written.weights.fill(0.0);
            return;
        }
        let packed = self.pack(checked.level(), &inputs, false);
        let outputs = [
            (written.output, steps, n),
            (written.weights, steps, sources),
            (written.gates, layers * steps, 4 * n),
            (written.states, layers * steps, 2 * n),
            (written.contexts, steps, value),
            (written.combined, steps, n),
            (written.queries, steps, query),
        ];
        let outputs = outputs.map(|(data, outer, width)| Cut { data, outer, width });
        self.blocks().run(outputs, |place, parts| {
            self.forward_block(checked.level(), &packed, &inputs, place, parts);
        });
    }

    fn backward_checked(
        &self,
        checked: Checked,
        inputs: Inputs<'_>,
        written: Written<'_>,
        d_output: &[f32],
        to: InputFeedingFields<&mut [f32]>,
    ) {
        if self.steps == 0 || self.batch == 0 || self.hidden == 0 {
            to.into_vec()
                .into_iter()
                .for_each(|gradient| gradient.fill(0.0));
            return;
        }
        self.backward_all(checked.level(), &inputs, &written, d_output, to);
    }
}
