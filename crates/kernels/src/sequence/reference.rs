//! The definitions of [`super`]: plain loops, one number after the other.
//!
//! Generic over [`Real`], as [`crate::reference`] is: at `f64` these are what the fast versions are
//! tested against. Sizes, masks and flags come from the same structs that the fast versions take;
//! the numbers come beside them, so that they can have another type. Nothing is checked beyond the
//! slices' bounds.

use super::additive_gru::AdditiveGruDecoder;
use super::additive_lstm::AdditiveLstmDecoder;
use super::gru::{Convention, GruSequence};
use super::input_feeding::{InputFeedingDecoder, Score};
use super::lstm::LstmSequence;
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

/// One step of Cho's unit on one row: `input [3n]` is everything in the pre-activations but the
/// recurrent products.
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

/// The states `[T, B, n]` of a GRU; `bias` `[3n]` is read for PyTorch's unit only.
pub fn gru<T: Real>(
    like: &GruSequence<'_>,
    x_projection: &[T],
    recurrent: &[T],
    bias: &[T],
    initial: &[T],
) -> Vec<T> {
    let GruSequence {
        steps,
        batch,
        hidden: n,
        ..
    } = *like;
    let mut states = vec![T::of(0.0); steps * batch * n];
    for row in 0..batch {
        let mut state = initial[row * n..][..n].to_vec();
        for step in order(steps, like.reverse) {
            let cell = step * batch + row;
            if like.keep.is_none_or(|keep| keep[cell]) {
                let x = &x_projection[cell * 3 * n..][..3 * n];
                let u = |at: usize| dot(&state, recurrent, 3 * n, at) + bias[at];
                state = match like.convention {
                    Convention::Cho => cho(x, recurrent, &state),
                    Convention::PyTorch => (0..n)
                        .map(|i| {
                            let part = |k: usize| k * n + i;
                            let x = [0, 1, 2].map(|k| x[part(k)]);
                            gru_reset_after(x, [0, 1, 2].map(|k| u(part(k))), state[i])
                        })
                        .collect(),
                };
            }
            states[cell * n..][..n].copy_from_slice(&state);
        }
    }
    states
}

/// The states `h | c`, `[T, B, 2n]`, of an LSTM.
pub fn lstm<T: Real>(
    like: &LstmSequence<'_>,
    x_projection: &[T],
    recurrent: &[T],
    initial_hidden: &[T],
    initial_cell: &[T],
) -> Vec<T> {
    let LstmSequence {
        steps,
        batch,
        hidden: n,
        ..
    } = *like;
    let mut states = vec![T::of(0.0); steps * batch * 2 * n];
    for row in 0..batch {
        let mut hidden = initial_hidden[row * n..][..n].to_vec();
        let mut cell = initial_cell[row * n..][..n].to_vec();
        for step in order(steps, like.reverse) {
            let at = step * batch + row;
            if like.keep.is_none_or(|keep| keep[at]) {
                let x = &x_projection[at * 4 * n..][..4 * n];
                let new: Vec<(T, T)> = (0..n)
                    .map(|i| {
                        let gate =
                            |k: usize| x[k * n + i] + dot(&hidden, recurrent, 4 * n, k * n + i);
                        lstm_cell([0, 1, 2, 3].map(gate), cell[i])
                    })
                    .collect();
                (hidden, cell) = new.into_iter().unzip();
            }
            states[at * 2 * n..][..n].copy_from_slice(&hidden);
            states[at * 2 * n + n..][..n].copy_from_slice(&cell);
        }
    }
    states
}

/// What a decoder with additive attention looks at.
struct AdditiveSources<'a, T> {
    sources: usize,
    value: usize,
    /// `[B, S, a]`
    keys: &'a [T],
    /// `[B, S, d]`
    values: &'a [T],
    /// `[n, a]`
    query_weight: &'a [T],
    /// `[a]`
    score: &'a [T],
}

/// The sources of a row that may be attended to.
fn kept_of(keep: Option<&[bool]>, sources: usize, row: usize) -> Vec<usize> {
    let is_kept = |&j: &usize| keep.is_none_or(|keep| keep[row * sources + j]);
    (0..sources).filter(is_kept).collect()
}

/// The context `[d]` that `state` asks for, and the weights of the `kept` sources.
fn attend<T: Real>(
    from: &AdditiveSources<'_, T>,
    kept: &[usize],
    state: &[T],
    row: usize,
) -> (Vec<T>, Vec<T>) {
    let (zero, attention) = (T::of(0.0), from.score.len());
    let query: Vec<T> = (0..attention)
        .map(|i| dot(state, from.query_weight, attention, i))
        .collect();
    let scores: Vec<T> = kept
        .iter()
        .map(|&j| {
            let key = &from.keys[(row * from.sources + j) * attention..][..attention];
            (0..attention).fold(zero, |sum, i| {
                sum + from.score[i] * (query[i] + key[i]).tanh()
            })
        })
        .collect();
    let weights = softmax(&scores);
    let mut context = vec![zero; from.value];
    for (&weight, &j) in weights.iter().zip(kept) {
        for (i, c) in context.iter_mut().enumerate() {
            *c = *c + weight * from.values[(row * from.sources + j) * from.value + i];
        }
    }
    (context, weights)
}

/// The tensors of [`AdditiveGruDecoder`], in any precision.
pub struct AdditiveGruTensors<'a, T> {
    /// `[T, B, 3n]`
    pub x_projection: &'a [T],
    /// `[B, n]`
    pub initial: &'a [T],
    /// `[B, S, a]`
    pub keys: &'a [T],
    /// `[B, S, d]`
    pub values: &'a [T],
    /// `[n, a]`
    pub query_weight: &'a [T],
    /// `[a]`
    pub score: &'a [T],
    /// `[n, 3n]`
    pub recurrent: &'a [T],
    /// `[d, 3n]`
    pub context_weight: &'a [T],
}

/// The output `s_t | c_t` `[T, B, n + d]` and the attention `[T, B, S]` of Bahdanau's decoder.
pub fn additive_gru<T: Real>(
    like: &AdditiveGruDecoder<'_>,
    tensors: &AdditiveGruTensors<'_, T>,
) -> (Vec<T>, Vec<T>) {
    let AdditiveGruDecoder {
        steps,
        batch,
        sources,
        hidden: n,
        value,
        ..
    } = *like;
    let from = AdditiveSources {
        sources,
        value,
        keys: tensors.keys,
        values: tensors.values,
        query_weight: tensors.query_weight,
        score: tensors.score,
    };
    let mut output = vec![T::of(0.0); steps * batch * (n + value)];
    let mut weights = vec![T::of(0.0); steps * batch * sources];
    for row in 0..batch {
        let kept = kept_of(like.keep_source, sources, row);
        let mut state = tensors.initial[row * n..][..n].to_vec();
        for step in 0..steps {
            let cell = step * batch + row;
            let (context, seen) = attend(&from, &kept, &state, row);
            for (weight, &j) in seen.into_iter().zip(&kept) {
                weights[cell * sources + j] = weight;
            }
            if like.keep.is_none_or(|keep| keep[cell]) {
                let input: Vec<T> = (0..3 * n)
                    .map(|at| {
                        let x = tensors.x_projection[cell * 3 * n + at];
                        x + dot(&context, tensors.context_weight, 3 * n, at)
                    })
                    .collect();
                state = cho(&input, tensors.recurrent, &state);
            }
            let to = &mut output[cell * (n + value)..][..n + value];
            to[..n].copy_from_slice(&state);
            to[n..].copy_from_slice(&context);
        }
    }
    (output, weights)
}

/// The tensors of [`AdditiveLstmDecoder`], in any precision.
pub struct AdditiveLstmTensors<'a, T> {
    /// `[T, B, 4n]`
    pub x_projection: &'a [T],
    /// `[B, n]`
    pub initial_hidden: &'a [T],
    /// `[B, n]`
    pub initial_cell: &'a [T],
    /// `[B, S, a]`
    pub keys: &'a [T],
    /// `[B, S, d]`
    pub values: &'a [T],
    /// `[n, a]`
    pub query_weight: &'a [T],
    /// `[a]`
    pub score: &'a [T],
    /// `[n, 4n]`
    pub recurrent: &'a [T],
    /// `[d, 4n]`
    pub context_weight: &'a [T],
}

/// The output `h_t | a_t` `[T, B, n + d]` and the attention `[T, B, S]` of GNMT's bottom decoder layer.
pub fn additive_lstm<T: Real>(
    like: &AdditiveLstmDecoder<'_>,
    tensors: &AdditiveLstmTensors<'_, T>,
) -> (Vec<T>, Vec<T>) {
    let AdditiveLstmDecoder {
        steps,
        batch,
        sources,
        hidden: n,
        value,
        ..
    } = *like;
    let from = AdditiveSources {
        sources,
        value,
        keys: tensors.keys,
        values: tensors.values,
        query_weight: tensors.query_weight,
        score: tensors.score,
    };
    let mut output = vec![T::of(0.0); steps * batch * (n + value)];
    let mut weights = vec![T::of(0.0); steps * batch * sources];
    for row in 0..batch {
        let kept = kept_of(like.keep_source, sources, row);
        let mut hidden = tensors.initial_hidden[row * n..][..n].to_vec();
        let mut cell = tensors.initial_cell[row * n..][..n].to_vec();
        for step in 0..steps {
            let at = step * batch + row;
            let (context, seen) = attend(&from, &kept, &hidden, row);
            for (weight, &j) in seen.into_iter().zip(&kept) {
                weights[at * sources + j] = weight;
            }
            let gate = |column: usize| {
                tensors.x_projection[at * 4 * n + column]
                    + dot(&context, tensors.context_weight, 4 * n, column)
                    + dot(&hidden, tensors.recurrent, 4 * n, column)
            };
            let new: Vec<(T, T)> = (0..n)
                .map(|i| lstm_cell([0, 1, 2, 3].map(|k| gate(k * n + i)), cell[i]))
                .collect();
            (hidden, cell) = new.into_iter().unzip();
            let to = &mut output[at * (n + value)..][..n + value];
            to[..n].copy_from_slice(&hidden);
            to[n..].copy_from_slice(&context);
        }
    }
    (output, weights)
}

/// The tensors of [`InputFeedingDecoder`], in any precision.
pub struct InputFeedingTensors<'a, T> {
    /// `[T, B, 4n]`
    pub x_projection: &'a [T],
    /// `[B, n]`
    pub feed: &'a [T],
    /// `[n, 4n]`
    pub feed_weight: &'a [T],
    /// `[L, n, 4n]`
    pub recurrent: &'a [T],
    /// `[L - 1, n, 4n]`
    pub layer_weight: &'a [T],
    /// `[L - 1, 4n]`
    pub layer_bias: &'a [T],
    /// `[L, B, n]`
    pub initial_hidden: &'a [T],
    /// `[L, B, n]`
    pub initial_cell: &'a [T],
    /// `[B, S, n]` or `[B, S, a]`
    pub keys: &'a [T],
    /// `[B, S, d]`
    pub values: &'a [T],
    /// `[d + n, n]`
    pub combine_weight: &'a [T],
    /// `[n]`
    pub combine_bias: &'a [T],
    /// `[n, a]`, empty for dot.
    pub query_weight: &'a [T],
    /// `[a]`, empty for dot.
    pub vector: &'a [T],
}

/// The output `h̃_t` `[T, B, n]` and the attention `[T, B, S]` of Luong's decoder.
pub fn input_feeding<T: Real>(
    like: &InputFeedingDecoder<'_>,
    tensors: &InputFeedingTensors<'_, T>,
) -> (Vec<T>, Vec<T>) {
    let InputFeedingDecoder {
        steps,
        batch,
        sources,
        hidden: n,
        layers,
        value,
        ..
    } = *like;
    let zero = T::of(0.0);
    let mut output = vec![zero; steps * batch * n];
    let mut weights = vec![zero; steps * batch * sources];
    for row in 0..batch {
        let initial = |states: &[T]| -> Vec<Vec<T>> {
            (0..layers)
                .map(|l| states[(l * batch + row) * n..][..n].to_vec())
                .collect()
        };
        let (mut hidden, mut cell) = (
            initial(tensors.initial_hidden),
            initial(tensors.initial_cell),
        );
        let mut feed = tensors.feed[row * n..][..n].to_vec();
        for step in 0..steps {
            let at = step * batch + row;
            let mask = |layer: usize, i: usize| {
                let index = ((step * layers + layer) * batch + row) * n + i;
                like.dropout
                    .map_or(T::of(1.0), |masks| T::of(f64::from(masks[index])))
            };
            let mut up = feed.clone();
            for layer in 0..layers {
                let size = 4 * n * n;
                let weight = match layer {
                    0 => tensors.feed_weight,
                    _ => &tensors.layer_weight[(layer - 1) * size..][..size],
                };
                let recurrent = &tensors.recurrent[layer * size..][..size];
                let gate = |k: usize, i: usize| {
                    let column = k * n + i;
                    let input = match layer {
                        0 => tensors.x_projection[at * 4 * n + column],
                        _ => tensors.layer_bias[(layer - 1) * 4 * n + column],
                    };
                    let from_below = dot(&up, weight, 4 * n, column);
                    input + from_below + dot(&hidden[layer], recurrent, 4 * n, column)
                };
                let new: Vec<(T, T)> = (0..n)
                    .map(|i| lstm_cell([0, 1, 2, 3].map(|k| gate(k, i)), cell[layer][i]))
                    .collect();
                (hidden[layer], cell[layer]) = new.into_iter().unzip();
                up = (0..n).map(|i| hidden[layer][i] * mask(layer, i)).collect();
            }
            let top = &hidden[layers - 1];
            let [start, end] = like.windows.map_or([0, sources], |windows| windows[at]);
            let kept: Vec<usize> = (start..end.min(sources))
                .filter(|&j| like.keep_source.is_none_or(|keep| keep[row * sources + j]))
                .collect();
            let query: Vec<T> = match like.score {
                Score::Dot => top.clone(),
                Score::Additive { attention, .. } => (0..attention)
                    .map(|i| dot(top, tensors.query_weight, attention, i))
                    .collect(),
            };
            let width = query.len();
            let score = |&j: &usize| {
                let key = &tensors.keys[(row * sources + j) * width..][..width];
                match like.score {
                    Score::Dot => dot(&query, key, 1, 0),
                    Score::Additive { .. } => (0..width).fold(zero, |sum, i| {
                        sum + tensors.vector[i] * (query[i] + key[i]).tanh()
                    }),
                }
            };
            let scores: Vec<T> = kept.iter().map(score).collect();
            let mut context = vec![zero; value];
            for (weight, &j) in softmax(&scores).into_iter().zip(&kept) {
                weights[at * sources + j] = weight;
                for (i, c) in context.iter_mut().enumerate() {
                    *c = *c + weight * tensors.values[(row * sources + j) * value + i];
                }
            }
            let (of_context, of_state) = tensors.combine_weight.split_at(value * n);
            feed = (0..n)
                .map(|i| {
                    let sum = dot(&context, of_context, n, i) + dot(top, of_state, n, i);
                    (sum + tensors.combine_bias[i]).tanh() * mask(layers - 1, i)
                })
                .collect();
            output[at * n..][..n].copy_from_slice(&feed);
        }
    }
    (output, weights)
}
