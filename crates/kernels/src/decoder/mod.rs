//! Generation with a Transformer's decoder, one token of many hypotheses at a time.
//!
//! ```text
//! x ← x + W_o attend(W_qkv norm(x), own past)        for each layer, with norms before the blocks;
//! x ← x + W_o attend(W_q norm(x), source)            after them (post-norm): x ← norm(x + ..)
//! x ← x + W_2 φ(W_1 norm(x))
//! log p = log softmax(W_out norm(x))
//! ```
//! A step multiplies a few rows with every weight of the model, so it takes as long as the weights take to come from memory.
//! They are packed once ([`Product`]), in halves that two threads read side by side where there are few rows (`companion.rs`);
//! many rows are shared out instead.
//!
//! ```text
//! past, by step:     | k v of row 0 | k v of row 1 | ..      written once, where the step's rows stood then
//! row 2's ancestors: step 0: row 0, step 1: row 0, step 2: row 1, ..
//! ```
//! Beam search reorders, drops and repeats rows after every step. Keys and values stay where they are: only the list of ancestors
//! of each row is copied. Keys and values of a source are kept once for all of its hypotheses.
//!
//! Tried: the same steps through Burn's operations on reordered caches, 4.8 times as long at batch 1 and beam 5
//! (`bench/peers/translation.py`, 19.3 ms a sentence against 4.0, on different days' load); new memory for the logits of every
//! step, whose clearing by the system was a sixth of the samples at 160 rows.
//!
//! Each row's numbers are the same to the last bit whatever rows it is computed with, and on any number of threads.

mod attend;
mod companion;
mod product;

#[cfg(test)]
mod tests;

pub use product::Product;

use crate::error::{KernelError, check_length};
use crate::loss;
use crate::norm::{self, Kind, Norm};
use crate::simd::{self, Kernel, Level, Simd, run};
use attend::{Heads, Keys, attend};
use companion::Companion;

/// The sizes of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// The size of a state.
    pub model: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads, a divisor of `heads`.
    pub key_value_heads: usize,
    /// The features of a head.
    pub head: usize,
    /// How many positions a position sees, itself among them; all if not said.
    pub window: Option<usize>,
    /// Whether norms stand after the blocks.
    pub post_norm: bool,
}

/// The weights of a norm.
#[derive(Debug, Clone)]
pub struct NormWeights {
    /// Which one.
    pub kind: Kind,
    /// `[model]`
    pub weight: Vec<f32>,
    /// `[model]`, of layer norm.
    pub bias: Option<Vec<f32>>,
    /// `ε`
    pub epsilon: f64,
}

/// What stands between the products of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `max(x, 0)`
    Relu,
    /// `SiLU(g) ∘ x` of `[g | x]`.
    Swiglu,
}

/// One layer.
#[derive(Debug, Clone)]
pub struct Layer {
    /// `W^Q | W^K | W^V` of self-attention, `[model, (heads + 2 key_value_heads) head]`.
    pub own: Product,
    /// `W^O [heads · head, model]`
    pub own_output: Product,
    /// Self-attention's norm.
    pub own_norm: NormWeights,
    /// `W^Q` of cross-attention, `[model, heads · head]`.
    pub cross_query: Product,
    /// `W^K | W^V` of cross-attention, `[source size, 2 key_value_heads · head]`.
    pub cross_source: Product,
    /// `W^O [heads · head, model]`
    pub cross_output: Product,
    /// Cross-attention's norm.
    pub cross_norm: NormWeights,
    /// `W_1 [model, inner]`; under SwiGLU `W_g | W_1 [model, 2 inner]`.
    pub inner: Product,
    /// `φ`
    pub activation: Activation,
    /// `W_2 [inner, model]`
    pub outer: Product,
    /// The feed-forward network's norm.
    pub outer_norm: NormWeights,
}

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
        let Sizes {
            model,
            heads,
            key_value_heads,
            head,
            ..
        } = sizes;
        let (query, both) = (heads * head, 2 * key_value_heads * head);
        let expect = |argument, shape, found: [usize; 2], expected: [usize; 2]| {
            check_length(argument, shape, &[expected[0]], found[0])?;
            check_length(argument, shape, &[expected[1]], found[1])
        };
        for layer in &layers {
            expect(
                "own",
                "[model, (heads + 2 key_value_heads) head]",
                layer.own.sizes(),
                [model, query + both],
            )?;
            expect(
                "own_output",
                "[heads · head, model]",
                layer.own_output.sizes(),
                [query, model],
            )?;
            expect(
                "cross_query",
                "[model, heads · head]",
                layer.cross_query.sizes(),
                [model, query],
            )?;
            let source = layer.cross_source.sizes();
            expect(
                "cross_source",
                "[source, 2 key_value_heads · head]",
                source,
                [source[0], both],
            )?;
            expect(
                "cross_output",
                "[heads · head, model]",
                layer.cross_output.sizes(),
                [query, model],
            )?;
            let [_, inner] = layer.inner.sizes();
            expect(
                "inner",
                "[model, inner]",
                layer.inner.sizes(),
                [model, inner],
            )?;
            let inner = match layer.activation {
                Activation::Relu => inner,
                Activation::Swiglu => inner / 2,
            };
            expect(
                "outer",
                "[inner, model]",
                layer.outer.sizes(),
                [inner, model],
            )?;
            for norm in [&layer.own_norm, &layer.cross_norm, &layer.outer_norm] {
                norm.check(model)?;
            }
        }
        if let Some(norm) = &last_norm {
            norm.check(model)?;
        }
        let [inputs, classes] = output.sizes();
        expect(
            "output",
            "[model, vocabulary]",
            [inputs, classes],
            [model, classes],
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
                .apply(encoded, states, &Companion::default()))
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
        Companion::beside(|companion| self.advance(state, x.to_vec(), to, companion))
    }

    fn advance(
        &self,
        state: &mut State,
        mut x: Vec<f32>,
        to: &mut Vec<f32>,
        companion: &Companion,
    ) -> Result<(), KernelError> {
        let rows = state.rows.len();
        let product = |product: &Product, x: &[f32]| product.apply(x, rows, companion);
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
        self.output.apply_to(&x, rows, to, companion);
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

impl NormWeights {
    fn check(&self, model: usize) -> Result<(), KernelError> {
        check_length("norm weight", "[model]", &[model], self.weight.len())?;
        match &self.bias {
            Some(bias) => check_length("norm bias", "[model]", &[model], bias.len()),
            None => Ok(()),
        }
    }

    fn apply(&self, x: &[f32]) -> Result<Vec<f32>, KernelError> {
        let width = self.weight.len();
        let mut y = vec![0.0; x.len()];
        let norm = Norm {
            kind: self.kind,
            rows: x.len() / width.max(1),
            width,
            weight: Some(&self.weight),
            bias: self.bias.as_deref(),
            epsilon: self.epsilon,
        };
        norm::forward(&norm, x, &mut y)?;
        Ok(y)
    }
}

impl Activation {
    /// Of rows of `width` numbers; under SwiGLU half as many remain.
    fn apply(self, x: &mut Vec<f32>, width: usize) {
        match self {
            Self::Relu => run(Level::current(), Relu(x)),
            Self::Swiglu => {
                let half = width / 2;
                let mut kept = Vec::with_capacity(x.len() / 2);
                for row in x.chunks_exact(width) {
                    let (gate, value) = row.split_at(half);
                    kept.extend_from_slice(gate);
                    let to = kept.len() - half;
                    run(
                        Level::current(),
                        Gated {
                            gate: &mut kept[to..],
                            value,
                        },
                    );
                }
                *x = kept;
            }
        }
    }
}

struct Relu<'a>(&'a mut [f32]);

impl Kernel for Relu<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        let zero = s.zero();
        simd::zip_map(
            s,
            [],
            [self.0],
            #[inline(always)]
            |[], [x]| [s.max(x, zero)],
        );
    }
}

/// `gate = gate σ(gate) value`
struct Gated<'a> {
    gate: &'a mut [f32],
    value: &'a [f32],
}

impl Kernel for Gated<'_> {
    type Output = ();

    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        simd::zip_map(
            s,
            [self.value],
            [self.gate],
            #[inline(always)]
            |[value], [gate]| [s.mul(s.mul(gate, simd::sigmoid(s, gate)), value)],
        );
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
