//! Generation with a Transformer's decoder, one token of many hypotheses at a time.
//!
//! ```text
//! x ← x + W_o attend(W_qkv norm(x), own past)        for each layer, with norms before the blocks;
//! x ← x + W_o attend(W_q norm(x), source)            after them (post-norm): x ← norm(x + ..)
//! x ← x + W_2 φ(W_1 norm(x))
//! log p = log softmax(W_out norm(x))
//! ```
//! A step multiplies a few rows with every weight of the model, so it takes as long as the weights take to come from memory.
//! They are packed once ([`Product`]), in halves that two threads read side by side where there are few rows (`helper.rs`);
//! many rows are shared out instead.
//!
//! ```text
//! past, by step:     | k v of row 0 | k v of row 1 | ..      written once, where the step's rows stood then
//! row 2's ancestors: step 0: row 0, step 1: row 0, step 2: row 1, ..
//! ```
//! Beam search reorders, drops and repeats rows after every step. Keys and values stay where they are: only the list of ancestors
//! of each row is copied. Keys and values of a source are kept once for all of its hypotheses.
//!
//! What was tried is told in `docs/experiments.md`.
//!
//! Each row's numbers are the same to the last bit whatever rows it is computed with, and on any number of threads.

mod attend;
mod helper;
mod product;
mod weights;

#[cfg(test)]
mod tests;

pub use product::Product;
pub use weights::{Activation, Layer, NormWeights, Sizes};

use crate::error::{KernelError, check_length};
use crate::loss;
use attend::{Heads, Keys, attend};
use helper::Helper;
use weights::expect;

/// A decoder's weights, ready to generate.
#[derive(Debug, Clone)]
pub struct Decoder {
    sizes: Sizes,
    layers: Vec<Layer>,
    last_norm: Option<NormWeights>,
    output: Product,
}

/// Hypotheses on their way.
#[derive(Debug, Clone)]
pub struct State {
    /// Of each layer, keys and values of each step: `[step][rows then, k | v]`.
    past: Vec<Vec<Vec<f32>>>,
    /// Of each layer, keys and values of the sources: `[sentences, length, k | v]`.
    sources: Vec<Vec<f32>>,
    /// The padded length of the sources.
    length: usize,
    /// The real length of each source.
    lengths: Vec<usize>,
    rows: Vec<Row>,
    steps: usize,
}

#[derive(Debug, Clone)]
struct Row {
    sentence: usize,
    /// The row that held its past at each step.
    ancestors: Vec<u32>,
}

impl Decoder {
    /// A decoder from its weights.
    ///
    /// # Errors
    /// [`KernelError`] that names the first weight whose sizes do not fit.
    pub fn new(
        sizes: Sizes,
        layers: Vec<Layer>,
        last_norm: Option<NormWeights>,
        output: Product,
    ) -> Result<Self, KernelError> {
        for layer in &layers {
            layer.check(&sizes)?;
        }
        if let Some(norm) = &last_norm {
            norm.check(sizes.model)?;
        }
        let [inputs, classes] = output.sizes();
        let expected = [sizes.model, classes];
        expect("output", "[model, vocabulary]", [inputs, classes], expected)?;
        let (heads, key_value_heads) = (sizes.heads, sizes.key_value_heads);
        let groups = heads.checked_rem(key_value_heads);
        if groups != Some(0) {
            return Err(KernelError::Size {
                argument: "key_value_heads",
                axis: "count",
                found: key_value_heads,
                expected: heads,
                reason: "it must divide the query heads",
            });
        }
        Ok(Self {
            sizes,
            layers,
            last_norm,
            output,
        })
    }

    /// Begins a hypothesis for each of `lengths.len()` sources, whose states are `encoded [sentences, length, source size]`, of
    /// which sentence `i` has `lengths[i]` real ones.
    ///
    /// # Errors
    /// [`KernelError`] if `encoded` does not hold `sentences · length` states, or a real length is more than `length`.
    pub fn begin(
        &self,
        encoded: &[f32],
        length: usize,
        lengths: &[usize],
    ) -> Result<State, KernelError> {
        if let Some(position) = lengths.iter().position(|&real| real > length) {
            return Err(KernelError::Entry {
                argument: "lengths",
                position,
                expected: format!("at most {length}, the padded length"),
                found: lengths[position].to_string(),
            });
        }
        let states = lengths.len() * length;
        let of_layer = |layer: &Layer| {
            let [size, _] = layer.cross_source.sizes();
            check_length(
                "encoded",
                "[sentences, length, source size]",
                &[states, size],
                encoded.len(),
            )?;
            Ok(layer
                .cross_source
                .apply(encoded, states, &Helper::default()))
        };
        let sources = self
            .layers
            .iter()
            .map(of_layer)
            .collect::<Result<_, KernelError>>()?;
        let row = |sentence| Row {
            sentence,
            ancestors: vec![],
        };
        Ok(State {
            past: vec![vec![]; self.layers.len()],
            sources,
            length,
            lengths: lengths.to_vec(),
            rows: (0..lengths.len()).map(row).collect(),
            steps: 0,
        })
    }

    /// One step: from the embedded previous tokens `x [rows, model]`, positions included, to the log-probabilities of what
    /// follows, `[rows, vocabulary]`, in the memory of `to`. `rows` are those of [`State::select`], at first one for each sentence.
    ///
    /// # Errors
    /// [`KernelError::Length`] if `x` does not hold a state for each row.
    pub fn step(&self, state: &mut State, x: &[f32], to: &mut Vec<f32>) -> Result<(), KernelError> {
        let rows = state.rows.len();
        check_length("x", "[rows, model]", &[rows, self.sizes.model], x.len())?;
        Helper::beside(|helper| self.advance(state, x.to_vec(), to, helper))
    }

    fn advance(
        &self,
        state: &mut State,
        mut x: Vec<f32>,
        to: &mut Vec<f32>,
        helper: &Helper,
    ) -> Result<(), KernelError> {
        let rows = state.rows.len();
        let product = |product: &Product, x: &[f32]| product.apply(x, rows, helper);
        let Sizes {
            heads,
            key_value_heads,
            head,
            window,
            ..
        } = self.sizes;
        let (query, key) = (heads * head, key_value_heads * head);
        let sizes = Heads {
            heads,
            key_value_heads,
            size: head,
        };
        for (at, row) in state.rows.iter_mut().enumerate() {
            row.ancestors.push(at as u32);
        }
        state.steps += 1;
        let first = window.map_or(0, |window| state.steps.saturating_sub(window));
        for (layer, (past, source)) in self
            .layers
            .iter()
            .zip(state.past.iter_mut().zip(&state.sources))
        {
            let joint = product(&layer.own, &self.enter(&layer.own_norm, &x)?);
            let width = query + 2 * key;
            let (mut queries, mut new) = (
                Vec::with_capacity(rows * query),
                Vec::with_capacity(rows * 2 * key),
            );
            for row in joint.chunks_exact(width) {
                queries.extend_from_slice(&row[..query]);
                new.extend_from_slice(&row[query..]);
            }
            past.push(new);
            let own = |row: usize| Keys::Past {
                steps: past,
                ancestors: &state.rows[row].ancestors,
                first,
            };
            let read = attend(sizes, &queries, rows, &own);
            self.leave(&layer.own_norm, &mut x, &product(&layer.own_output, &read))?;

            let queries = product(&layer.cross_query, &self.enter(&layer.cross_norm, &x)?);
            let of_source = |row: usize| {
                let sentence = state.rows[row].sentence;
                let from = sentence * state.length * 2 * key;
                Keys::Source {
                    states: &source[from..][..state.lengths[sentence] * 2 * key],
                }
            };
            let read = attend(sizes, &queries, rows, &of_source);
            self.leave(
                &layer.cross_norm,
                &mut x,
                &product(&layer.cross_output, &read),
            )?;

            let mut inner = product(&layer.inner, &self.enter(&layer.outer_norm, &x)?);
            let [_, width] = layer.inner.sizes();
            layer.activation.apply(&mut inner, width);
            self.leave(&layer.outer_norm, &mut x, &product(&layer.outer, &inner))?;
        }
        if let Some(norm) = &self.last_norm {
            x = norm.apply(&x)?;
        }
        self.output.apply_to(&x, rows, to, helper);
        let [_, classes] = self.output.sizes();
        loss::log_softmax(to, classes);
        Ok(())
    }

    fn enter(&self, norm: &NormWeights, x: &[f32]) -> Result<Vec<f32>, KernelError> {
        match self.sizes.post_norm {
            true => Ok(x.to_vec()),
            false => norm.apply(x),
        }
    }

    fn leave(&self, norm: &NormWeights, x: &mut Vec<f32>, y: &[f32]) -> Result<(), KernelError> {
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
        if self.sizes.post_norm {
            *x = norm.apply(x)?;
        }
        Ok(())
    }
}

impl State {
    /// How many steps were taken.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Keeps the hypotheses at `rows`, in that order (rows may repeat).
    ///
    /// # Errors
    /// [`KernelError::Entry`] if a row is not there.
    pub fn select(&mut self, rows: &[usize]) -> Result<(), KernelError> {
        if let Some(position) = rows.iter().position(|&row| row >= self.rows.len()) {
            return Err(KernelError::Entry {
                argument: "rows",
                position,
                expected: format!("less than {}", self.rows.len()),
                found: rows[position].to_string(),
            });
        }
        self.rows = rows.iter().map(|&row| self.rows[row].clone()).collect();
        Ok(())
    }
}
