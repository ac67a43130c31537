//! The definitions of [`super`]: plain loops, one number after the other.
//!
//! Generic over [`Real`], as [`crate::reference`] is: in `f64` these are what the fast versions are tested against. Sizes,
//! masks and flags come from the same structs that the fast versions take; the numbers are separate arguments, so that they can
//! have another type. Nothing is checked beyond the slices' bounds.

use super::{
    AdditiveDecoder, AdditiveFields, InputFeedingDecoder, InputFeedingFields, Layer, LayerFields,
    Score, Unit,
};
use crate::reference::{Real, gru_reset_after, lstm as lstm_cell, sigmoid, softmax};

/// `Σ_k left[k] right[k · stride + column]`
fn dot<T: Real>(left: &[T], right: &[T], stride: usize, column: usize) -> T {
    let terms = left
        .iter()
        .enumerate()
        .map(|(k, &x)| x * right[k * stride + column]);
    terms.fold(T::of(0.0), |sum, term| sum + term)
}

/// Steps in the order of time.
fn order(steps: usize, reverse: bool) -> Vec<usize> {
    if reverse {
        (0..steps).rev().collect()
    } else {
        (0..steps).collect()
    }
}

/// One step of Cho's unit on one row: `input [3n]` is everything in the pre-activations except the recurrent products.
fn cho<T: Real>(input: &[T], recurrent: &[T], state: &[T]) -> Vec<T> {
    let n = state.len();
    let gate = |at: usize| sigmoid(input[at] + dot(state, recurrent, 3 * n, at));
    let reset: Vec<T> = (0..n).map(|i| gate(n + i) * state[i]).collect();
    (0..n)
        .map(|i| {
            let new = (input[2 * n + i] + dot(&reset, recurrent, 3 * n, 2 * n + i)).tanh();
            let z = gate(i);
            (T::of(1.0) - z) * state[i] + z * new
        })
        .collect()
}

/// The states `[n]`, or `h | c`, after one step of one row: `input` is everything in the pre-activations except the recurrent
/// products.
fn step<T: Real>(unit: Unit, n: usize, input: &[T], recurrent: &[T], state: &[T]) -> Vec<T> {
    let (hidden, stride) = (&state[..n], unit.gates() * n);
    let product = |k: usize, i: usize| dot(hidden, recurrent, stride, k * n + i);
    let input_of = |k: usize, i: usize| input[k * n + i];
    match unit {
        Unit::ChoGru => cho(input, recurrent, state),
        Unit::PyTorchGru => (0..n)
            .map(|i| {
                let x = [0, 1, 2].map(|k| input_of(k, i));
                gru_reset_after(x, [0, 1, 2].map(|k| product(k, i)), state[i])
            })
            .collect(),
        Unit::Lstm => {
            let gates = |i: usize| [0, 1, 2, 3].map(|k| input_of(k, i) + product(k, i));
            let new = (0..n).map(|i| lstm_cell(gates(i), state[n + i]));
            let (hidden, cell): (Vec<T>, Vec<T>) = new.unzip();
            [hidden, cell].concat()
        }
    }
}

/// The states `[T, B, states]` of a layer.
pub fn layer<T: Real>(layer: &Layer, inputs: &LayerFields<&[T]>) -> Vec<T> {
    additive_decoder(&layer.decoder(), &AdditiveFields::from(*inputs)).0
}

/// The sources of a row that may be attended to.
fn kept_of(keep: Option<&[bool]>, sources: usize, row: usize) -> Vec<usize> {
    let is_kept = |&j: &usize| keep.is_none_or(|keep| keep[row * sources + j]);
    (0..sources).filter(is_kept).collect()
}

/// The context `[d]` for the query `state`, and the weights of the `kept` sources.
fn attend<T: Real>(
    decoder: &AdditiveDecoder,
    inputs: &AdditiveFields<&[T]>,
    kept: &[usize],
    state: &[T],
    row: usize,
) -> (Vec<T>, Vec<T>) {
    let AdditiveDecoder {
        sources,
        attention,
        value,
        ..
    } = *decoder;
    let zero = T::of(0.0);
    let query: Vec<T> = (0..attention)
        .map(|i| dot(state, inputs.query_weight, attention, i))
        .collect();
    let scores: Vec<T> = kept
        .iter()
        .map(|&j| {
            let key = &inputs.keys[(row * sources + j) * attention..][..attention];
            (0..attention).fold(zero, |sum, i| {
                sum + inputs.score[i] * (query[i] + key[i]).tanh()
            })
        })
        .collect();
    let weights = softmax(&scores);
    let mut context = vec![zero; value];
    for (&weight, &j) in weights.iter().zip(kept) {
        for (i, c) in context.iter_mut().enumerate() {
            *c = *c + weight * inputs.values[(row * sources + j) * value + i];
        }
    }
    (context, weights)
}

/// The output `[T, B, states + d]` and the attention `[T, B, S]` of a decoder with additive attention.
pub fn additive_decoder<T: Real>(
    decoder: &AdditiveDecoder,
    inputs: &AdditiveFields<&[T]>,
) -> (Vec<T>, Vec<T>) {
    let (sources, value) = (decoder.sources, decoder.value);
    let Layer {
        unit,
        steps,
        batch,
        hidden: n,
        reverse,
        ..
    } = decoder.layer;
    let (wide, states) = (unit.gates() * n, unit.states() * n);
    let mut output = vec![T::of(0.0); steps * batch * (states + value)];
    let mut weights = vec![T::of(0.0); steps * batch * sources];
    for row in 0..batch {
        let kept = kept_of(decoder.keep_source.as_deref(), sources, row);
        let mut state = inputs.initial[row * states..][..states].to_vec();
        for at in order(steps, reverse) {
            let cell = at * batch + row;
            let (context, seen) = attend(decoder, inputs, &kept, &state[..n], row);
            for (weight, &j) in seen.into_iter().zip(&kept) {
                weights[cell * sources + j] = weight;
            }
            if decoder.layer.keep.as_ref().is_none_or(|keep| keep[cell]) {
                let input: Vec<T> = (0..wide)
                    .map(|column| {
                        let x = inputs.x_projection[cell * wide + column];
                        x + dot(&context, inputs.context_weight, wide, column)
                    })
                    .collect();
                state = step(unit, n, &input, inputs.recurrent, &state);
            }
            let to = &mut output[cell * (states + value)..][..states + value];
            to[..states].copy_from_slice(&state);
            to[states..].copy_from_slice(&context);
        }
    }
    (output, weights)
}

/// The output `h̃_t` `[T, B, n]` and the attention `[T, B, S]` of Luong's decoder.
pub fn input_feeding<T: Real>(
    decoder: &InputFeedingDecoder,
    inputs: &InputFeedingFields<&[T]>,
) -> (Vec<T>, Vec<T>) {
    let InputFeedingDecoder {
        steps,
        batch,
        sources,
        hidden: n,
        layers,
        value,
        ..
    } = *decoder;
    let zero = T::of(0.0);
    let mut output = vec![zero; steps * batch * n];
    let mut weights = vec![zero; steps * batch * sources];
    for row in 0..batch {
        let initial = |l: usize| inputs.initial[(l * batch + row) * 2 * n..][..2 * n].to_vec();
        let mut states: Vec<Vec<T>> = (0..layers).map(initial).collect();
        let mut feed = inputs.feed[row * n..][..n].to_vec();
        for step in 0..steps {
            let at = step * batch + row;
            let mask = |layer: usize, i: usize| {
                let index = ((step * layers + layer) * batch + row) * n + i;
                decoder
                    .dropout
                    .as_ref()
                    .map_or(T::of(1.0), |masks| T::of(f64::from(masks[index])))
            };
            let mut up = feed.clone();
            for (layer, state) in states.iter_mut().enumerate() {
                let size = 4 * n * n;
                let weight = match layer {
                    0 => inputs.feed_weight,
                    _ => &inputs.layer_weight[(layer - 1) * size..][..size],
                };
                let recurrent = &inputs.recurrent[layer * size..][..size];
                let gate = |column: usize| {
                    let input = match layer {
                        0 => inputs.x_projection[at * 4 * n + column],
                        _ => inputs.layer_bias[(layer - 1) * 4 * n + column],
                    };
                    input + dot(&up, weight, 4 * n, column)
                };
                let gates: Vec<T> = (0..4 * n).map(gate).collect();
                *state = self::step(Unit::Lstm, n, &gates, recurrent, state);
                up = (0..n).map(|i| state[i] * mask(layer, i)).collect();
            }
            let top = &states[layers - 1][..n];
            let [start, end] = decoder
                .windows
                .as_ref()
                .map_or([0, sources], |windows| windows[at]);
            let kept: Vec<usize> = (start..end.min(sources))
                .filter(|&j| {
                    decoder
                        .keep_source
                        .as_ref()
                        .is_none_or(|keep| keep[row * sources + j])
                })
                .collect();
            let query: Vec<T> = match decoder.score {
                Score::Dot => top.to_vec(),
                Score::Additive { attention } => (0..attention)
                    .map(|i| dot(top, inputs.query_weight, attention, i))
                    .collect(),
            };
            let width = query.len();
            let score = |&j: &usize| {
                let key = &inputs.keys[(row * sources + j) * width..][..width];
                match decoder.score {
                    Score::Dot => dot(&query, key, 1, 0),
                    Score::Additive { .. } => (0..width).fold(zero, |sum, i| {
                        sum + inputs.score[i] * (query[i] + key[i]).tanh()
                    }),
                }
            };
            let scores: Vec<T> = kept.iter().map(score).collect();
            let mut context = vec![zero; value];
            for (weight, &j) in softmax(&scores).into_iter().zip(&kept) {
                weights[at * sources + j] = weight;
                for (i, c) in context.iter_mut().enumerate() {
                    *c = *c + weight * inputs.values[(row * sources + j) * value + i];
                }
            }
            let (of_context, of_state) = inputs.combine_weight.split_at(value * n);
            feed = (0..n)
                .map(|i| {
                    let sum = dot(&context, of_context, n, i) + dot(top, of_state, n, i);
                    (sum + inputs.combine_bias[i]).tanh() * mask(layers - 1, i)
                })
                .collect();
            output[at * n..][..n].copy_from_slice(&feed);
        }
    }
    (output, weights)
}
