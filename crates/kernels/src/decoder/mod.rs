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
//! many rows are divided among the threads instead.
//!
//! ```text
//! past:              | k v of state 0 | k v of state 1 | ..    a state for each row of each step, in the order of the steps
//! row 2's ancestors: step 0: state 0, step 1: state 1, step 2: state 4, ..
//! ```
//! Beam search reorders, drops and repeats rows after every step. Keys and values stay where they are: only the list of ancestors
//! of each row is copied. Keys and values of a source are kept once for all of its hypotheses. To [`dot::decode`] both are pages
//! and their table: a page of one position for each state, and one for each source.
//!
//! What was tried is in `docs/experiments.md`.
//!
//! Each row's numbers are the same to the last bit whatever rows it is computed with, and on any number of threads.

mod helper;
mod product;
mod weights;

#[cfg(test)]
mod tests;

pub use product::Product;
pub use weights::{Activation, Layer, NormWeights, Sizes};

use crate::dot::{self, Cache};
use crate::error::{KernelError, check_length, check_value};
use crate::{Attention, MAX_DIM, View, ViewMut, loss};
use helper::Helper;
use weights::expect;

/// Where each row's keys and values are.
struct Table {
    /// `[rows, pages of a row]`
    pages: Vec<u32>,
    /// `[rows]`: how many keys there are.
    filled: Vec<u32>,
}

/// A decoder's weights, ready to generate.
#[derive(Debug, Clone)]
pub struct Decoder {
    sizes: Sizes,
    layers: Vec<Layer>,
    last_norm: Option<NormWeights>,
    output: Product,
}

/// The hypotheses of a running search.
#[derive(Debug, Clone)]
pub struct State {
    /// For each layer, the keys and values of each row of each step: `[states, k | v]`.
    past: Vec<Vec<f32>>,
    /// For each layer, the keys and values of the sources: `[sentences, length, k | v]`.
    sources: Vec<Vec<f32>>,
    /// The padded length of the sources.
    length: usize,
    /// The real length of each source.
    lengths: Vec<usize>,
    rows: Vec<Row>,
    steps: usize,
    /// Number of rows of all steps together.
    states: u32,
}

#[derive(Debug, Clone)]
struct Row {
    sentence: usize,
    /// The state that holds its past at each step.
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
        check_value(
            "head",
            "a size of 1 to 256",
            sizes.head as f64,
            (1..=MAX_DIM).contains(&sizes.head),
        )?;
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
            states: 0,
        })
    }

    /// One step: from the embedded previous tokens `x [rows, model]`, positions included, to the log-probabilities of the next
    /// token, `[rows, vocabulary]`, in the memory of `to`. `rows` are those of [`State::select`], at first one for each
    /// sentence.
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
        for (row, ancestor) in state.rows.iter_mut().zip(state.states..) {
            row.ancestors.push(ancestor);
        }
        state.steps += 1;
        state.states += rows as u32;
        let first = window.map_or(0, |window| state.steps.saturating_sub(window));
        let ancestors = state.rows.iter().flat_map(|row| &row.ancestors[first..]);
        let own = Table {
            pages: ancestors.copied().collect(),
            filled: vec![(state.steps - first) as u32; rows],
        };
        let sentences = || state.rows.iter().map(|row| row.sentence);
        let cross = Table {
            pages: sentences().map(|sentence| sentence as u32).collect(),
            filled: sentences()
                .map(|sentence| state.lengths[sentence] as u32)
                .collect(),
        };
        for (layer, (past, source)) in self
            .layers
            .iter()
            .zip(state.past.iter_mut().zip(&state.sources))
        {
            let joint = product(&layer.own, &self.enter(&layer.own_norm, &x)?);
            let width = query + 2 * key;
            for row in joint.chunks_exact(width) {
                past.extend_from_slice(&row[query..]);
            }
            let read = self.attend(&joint, width, past, 1, &own)?;
            self.leave(&layer.own_norm, &mut x, &product(&layer.own_output, &read))?;

            let queries = product(&layer.cross_query, &self.enter(&layer.cross_norm, &x)?);
            let read = self.attend(&queries, query, source, state.length, &cross)?;
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

    /// The context of each row, heads side by side. A row's query is at the beginning of `width` numbers, keys and values are
    /// in pages of `page` states, `[pages, page, k | v]`.
    fn attend(
        &self,
        queries: &[f32],
        width: usize,
        states: &[f32],
        page: usize,
        table: &Table,
    ) -> Result<Vec<f32>, KernelError> {
        let Sizes {
            heads,
            key_value_heads,
            head,
            ..
        } = self.sizes;
        let (rows, state) = (table.filled.len(), 2 * key_value_heads * head);
        let pages = states.len().checked_div(page * state).unwrap_or(0);
        let part = |first: usize| View {
            data: states.get(first..).unwrap_or_default(),
            shape: [pages, key_value_heads, page, head],
            strides: [page * state, head, state],
        };
        let cache = Cache::Paged {
            key: part(0),
            value: part(state / 2),
            table: &table.pages,
            filled: &table.filled,
        };
        let shape = [rows, heads, 1, head];
        let query = View {
            data: queries,
            shape,
            strides: [width, head, head],
        };
        let mut read = vec![0.0; rows * heads * head];
        let to = ViewMut::heads_first(&mut read, shape);
        dot::decode(&Attention::default(), query, cache, to, None)?;
        Ok(read)
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
