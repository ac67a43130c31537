//! Long short-term memory-network (Cheng, Dong & Lapata 2016): an LSTM that, instead of carrying one
//! state from step to step, keeps every state on a *tape* and reads the tape by attention.
//!
//! ```text
//! a_i     = vᵀ tanh(W_h h_i + W_x x_t + W_h̃ h̃_{t-1})          i < t
//! s       = softmax(a)
//! h̃_t, c̃_t = Σ_i s_i h_i, Σ_i s_i c_i                          zeros at the first step
//! i, f, o = σ(W [h̃_t, x_t]),  ĉ = tanh(W_c [h̃_t, x_t])
//! c_t     = f ∘ c̃_t + i ∘ ĉ,  h_t = o ∘ tanh c_t
//! ```
//!
//! So it is an [`Lstm`] whose previous state is read from the tape by an [`Additive`] score with the query `[x_t; h̃_{t-1}]`.
//! Row `t` of the weights says which earlier words the word at `t` was linked to.
//!
//! As a decoder it can read a source in two ways. **Shallow fusion** needs nothing more: the network is a
//! [`RecurrentCell`](super::RecurrentCell), and [`AttentiveDecoder`](super::AttentiveDecoder) gives any such cell a source.
//! **Deep fusion** ([`Lstmn::with_fusion`]) reads the source's tape `[γ_j; α_j]` into the cell itself:
//!
//! ```text
//! b_j     = uᵀ tanh(W_γ γ_j + W_x x_t + W_γ̃ γ̃_{t-1}),  p = softmax(b)
//! γ̃_t, α̃_t = Σ_j p_j γ_j, Σ_j p_j α_j
//! r       = σ(W_r [γ̃_t, x_t])
//! c_t     = r ∘ α̃_t + f ∘ c̃_t + i ∘ ĉ
//! ```
//!
//! **Use it** to see which words the network relates to each other; not for speed: each step waits for the one before and
//! reads all earlier ones, so a sequence of `T` steps costs `O(T² (a + n))` on top of the LSTM's products, and the tape
//! `O(T n)` memory.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, recurrent::Lstmn};
//!
//! let device = Device::flex();
//! let lstmn = Lstmn::new(4, 6, 5, &mut Initializer::new(1, &device)); // input, n, a
//! let x = Tensor::<3>::ones([7, 2, 4], &device); // [time, batch, input]
//! let read = lstmn.sequence(x, None, None)?;
//! assert_eq!(read.hidden.dims(), [7, 2, 6]);
//! assert_eq!(read.weights.dims(), [2, 7, 7]); // row t is zero from column t on
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```
//!
//! A decoder with deep fusion takes one step after the other:
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, mask::PaddingMask, recurrent::{Lstmn, SourceTape}};
//!
//! let device = Device::flex();
//! let mut init = Initializer::new(1, &device);
//! let (encoder, decoder) = (Lstmn::new(4, 6, 5, &mut init), Lstmn::new(3, 6, 5, &mut init));
//! let decoder = decoder.with_fusion(6, 5, &mut init);
//! let read = encoder.sequence(Tensor::ones([7, 2, 4], &device), None, None)?;
//! let source = decoder.source(&SourceTape {
//!     hidden: read.hidden.swap_dims(0, 1),
//!     cell: read.cell.swap_dims(0, 1),
//!     keep: PaddingMask::from_lengths(&[7, 5], 7, &device),
//! })?;
//! let mut tape = decoder.tape(2, &device);
//! for _ in 0..3 {
//!     let step = decoder.step(Tensor::ones([2, 3], &device), tape, Some(&source))?;
//!     assert_eq!(step.source_weights.unwrap().dims(), [2, 7]);
//!     tape = step.tape;
//! }
//! assert_eq!(tape.last().hidden.dims(), [2, 6]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::{
    module::Module,
    tensor::{Bool, Device, Tensor},
};

use super::{Lstm, LstmState, at, check_shape, no_states, real_steps};
use crate::{
    AttentionError,
    bridge::{self, matmul, sigmoid, spread, with_axis},
    initialize::Initializer,
    precision::check_weights,
    record::report,
    score::Additive,
};

mod fusion;
mod tape;

use fusion::{unread, unsourced};

pub use fusion::{DeepFusion, PreparedSource, SourceTape};
pub use tape::Tape;

/// A long short-term memory-network of `n` units.
#[derive(Module, Debug)]
pub struct Lstmn {
    /// The gates `W [h̃, x]`, `i | f | ĉ | o`.
    pub cell: Lstm,
    /// How the tape is read: the query is `[x_t; h̃_{t-1}]`, its rows in `W` in that order.
    pub attention: Additive,
    /// How a source is read into the cell.
    pub fusion: Option<DeepFusion>,
}

/// The results of an LSTMN for a sequence.
#[derive(Debug, Clone)]
pub struct LstmnOutput {
    /// `h_t`, `[time, batch, n]`; a padded step repeats the previous state.
    pub hidden: Tensor<3>,
    /// `c_t`, `[time, batch, n]`; a padded step repeats the previous state.
    pub cell: Tensor<3>,
    /// `s`, `[batch, time, time]`, without gradient: row `t` sums to 1 over the columns before `t`, and
    /// is 0 at the first step and at padding.
    pub weights: Tensor<3>,
    /// `p`, `[batch, time, source]`, without gradient: with deep fusion.
    pub source_weights: Option<Tensor<3>>,
}

/// The results of an LSTMN for one step.
#[derive(Debug, Clone)]
pub struct LstmnStep {
    /// The tape with the new state on it ([`Tape::last`]).
    pub tape: Tape,
    /// `s`, the weights over the earlier states, `[batch, steps]`, without gradient; `None` at the first step.
    pub weights: Option<Tensor<2>>,
    /// `p`, the weights over the source, `[batch, source]`, without gradient: with deep fusion.
    pub source_weights: Option<Tensor<2>>,
}

/// The parts of one step that depend on the input alone.
struct Projected {
    /// `[batch, 4n]`
    gates: Tensor<2>,
    /// `[batch, a]`
    query: Tensor<2>,
    /// Deep fusion's gate `[batch, n]` and query.
    fusion: Option<(Tensor<2>, Tensor<2>)>,
}

/// The two blocks of a query's matrix: rows of the input, rows of the summary.
struct QueryWeights {
    input: Tensor<2>,
    summary: Tensor<2>,
}

impl QueryWeights {
    fn of(attention: &Additive, input: usize) -> Self {
        let weight = attention.query.weight.val();
        let [rows, _] = weight.dims();
        Self {
            input: weight.clone().narrow(0, 0, input),
            summary: weight.narrow(0, input, rows - input),
        }
    }
}

impl Lstmn {
    /// A network of `size` units for inputs of `input`; tape and query are compared in `attention`
    /// dimensions.
    pub fn new(input: usize, size: usize, attention: usize, initializer: &mut Initializer) -> Self {
        Self {
            cell: Lstm::new(input, size, initializer),
            attention: Additive::new(input + size, size, attention, initializer),
            fusion: None,
        }
    }

    /// The same network, which also reads a source of hidden states of `source` units (its cells must
    /// have as many units as this network) and compares in `attention` dimensions.
    pub fn with_fusion(
        self,
        source: usize,
        attention: usize,
        initializer: &mut Initializer,
    ) -> Self {
        let (input, size) = (self.input_size(), self.size());
        let bound = 1.0 / (size as f32).sqrt();
        Self {
            fusion: Some(DeepFusion {
                attention: Additive::new(input + source, source, attention, initializer),
                input: initializer.linear(input, size, true),
                recurrent: initializer.uniform([source, size], bound),
            }),
            ..self
        }
    }

    /// `n`.
    pub fn size(&self) -> usize {
        self.cell.size()
    }

    /// The size of an input.
    pub fn input_size(&self) -> usize {
        self.cell.input_size()
    }

    /// An empty tape for `batch` sequences.
    pub fn tape(&self, batch: usize, device: &Device) -> Tape {
        // In the precision of the weights, in which everything is computed.
        let dtype = self.cell.recurrent.val().dtype();
        let zeros = |size: usize| Tensor::zeros([batch, size], (device, dtype));
        Tape {
            written: None,
            summary: zeros(self.size()),
            source_summary: self
                .fusion
                .as_ref()
                .map(|fusion| zeros(fusion.recurrent.dims()[0])),
            last: LstmState {
                hidden: zeros(self.size()),
                cell: zeros(self.size()),
            },
        }
    }

    /// A source prepared to be read at every step ([`Lstmn::step`]) of a network with deep fusion.
    ///
    /// # Errors
    /// Sizes that do not fit; a network without deep fusion.
    pub fn source(&self, source: &SourceTape) -> Result<PreparedSource, AttentionError> {
        let [batch, _, _] = source.hidden.dims();
        match &self.fusion {
            Some(fusion) => fusion.prepare(source, batch, self.size()),
            None => Err(unread()),
        }
    }

    /// Reads one input `x [batch, input]` on top of `tape` and, with deep fusion, of `source`. Consecutive steps give the
    /// results of [`Lstmn::sequence`].
    ///
    /// # Errors
    /// An input of another size or precision; a tape or source of another batch or network; a source without deep fusion, deep
    /// fusion without a source.
    pub fn step(
        &self,
        x: Tensor<2>,
        tape: Tape,
        source: Option<&PreparedSource>,
    ) -> Result<LstmnStep, AttentionError> {
        let [batch, _] = tape.summary.dims();
        let expected = [batch, self.input_size()];
        check_shape("x", x.dims(), expected, "[batch, input]")?;
        check_weights("x", x.dtype(), self)?;
        self.check_tape(&tape, batch)?;
        let fusion = match (&self.fusion, source) {
            (None, None) => None,
            (Some(fusion), Some(source)) => {
                fusion.check(source, &tape, self.size())?;
                Some((fusion, source))
            }
            (Some(_), None) => return Err(unsourced()),
            (None, Some(_)) => return Err(unread()),
        };
        let own = QueryWeights::of(&self.attention, self.input_size());
        let fused =
            fusion.map(|(fusion, _)| QueryWeights::of(&fusion.attention, self.input_size()));
        let projected = Projected {
            gates: self.cell.project(x.clone()),
            query: matmul(x.clone(), own.input),
            fusion: fusion.zip(fused.as_ref()).map(|((fusion, _), weights)| {
                let query = matmul(x.clone(), weights.input.clone());
                (bridge::apply(&fusion.input, x), query)
            }),
        };
        let source = source
            .zip(fused.as_ref())
            .map(|(source, weights)| (source, &weights.summary));
        let mut tape = tape;
        let read = self.advance(projected, &own.summary, &mut tape, source, None);
        Ok(LstmnStep {
            tape,
            weights: read.own,
            source_weights: read.source,
        })
    }

    /// Reads a whole sequence `x [time, batch, input]` and, with deep fusion, `source`; `keep
    /// [time, batch]` is true at real steps.
    ///
    /// # Errors
    /// Sizes that do not fit; a source without deep fusion, deep fusion without a source.
    pub fn sequence(
        &self,
        x: Tensor<3>,
        source: Option<&SourceTape>,
        keep: Option<Tensor<2, Bool>>,
    ) -> Result<LstmnOutput, AttentionError> {
        let source = self.check(&x, source, keep.as_ref())?;
        let [length, batch, input] = x.dims();
        let device = x.device();
        let start = self.tape(batch, &device);
        if let Some(none) = no_states(&x, &start.last.hidden) {
            let options = (&device, x.dtype());
            let positions = source.map(|source| source.keys.dims()[1]);
            return Ok(LstmnOutput {
                hidden: none.clone(),
                cell: none,
                weights: Tensor::zeros([batch, length, length], options),
                source_weights: positions
                    .map(|positions| Tensor::zeros([batch, length, positions], options)),
            });
        }
        let x = real_steps(x, keep.as_ref());
        let own = QueryWeights::of(&self.attention, input);
        let fused = self
            .fusion
            .as_ref()
            .map(|fusion| QueryWeights::of(&fusion.attention, input));
        let gates = self.cell.project(x.clone());
        let queries = bridge::linear(x.clone(), own.input, None);
        let fusion = self
            .fusion
            .as_ref()
            .zip(fused.as_ref())
            .map(|(f, weights)| {
                let queries = bridge::linear(x.clone(), weights.input.clone(), None);
                (bridge::apply(&f.input, x.clone()), queries)
            });
        let keep = keep.map(|keep| keep.swap_dims(0, 1)); // [batch, time]
        let source = source
            .as_ref()
            .zip(fused.as_ref())
            .map(|(source, weights)| (source, &weights.summary));
        let mut tape = start;
        let (mut hidden, mut cell) = (Vec::with_capacity(length), Vec::with_capacity(length));
        let (mut weights, mut source_weights) = (vec![], vec![]);
        for t in 0..length {
            let projected = Projected {
                gates: at(&gates, t),
                query: at(&queries, t),
                fusion: fusion
                    .as_ref()
                    .map(|(gate, query)| (at(gate, t), at(query, t))),
            };
            let read = self.advance(projected, &own.summary, &mut tape, source, keep.as_ref());
            hidden.push(tape.last.hidden.clone());
            cell.push(tape.last.cell.clone());
            weights.push(row(read.own, length, &tape.summary));
            source_weights.extend(read.source);
        }
        let rows = |steps: Vec<Tensor<2>>| {
            let steps = steps.into_iter().map(|step| with_axis(step, 1)).collect();
            real_rows(Tensor::cat(steps, 1), keep.as_ref())
        };
        Ok(LstmnOutput {
            hidden: Tensor::stack(hidden, 0),
            cell: Tensor::stack(cell, 0),
            weights: rows(weights),
            source_weights: source.map(|_| rows(source_weights)),
        })
    }

    /// Checks that a tape belongs to this network and has `batch` sequences.
    pub(super) fn check_tape(&self, tape: &Tape, batch: usize) -> Result<(), AttentionError> {
        let n = self.size();
        let meaning = "[batch, units]";
        check_shape("tape", tape.summary.dims(), [batch, n], meaning)?;
        check_weights("tape", tape.summary.dtype(), self)?;
        let Some((states, keys)) = &tape.written else {
            return Ok(());
        };
        let steps = tape.steps();
        let meaning = "[batch, steps, both states]";
        check_shape("tape", states.dims(), [batch, steps, 2 * n], meaning)?;
        let size = self.attention.vector.dims()[0];
        let meaning = "[batch, steps, attention size]";
        check_shape("tape", keys.dims(), [batch, steps, size], meaning)
    }

    /// Checks the shapes of a sequence, and prepares the source.
    fn check(
        &self,
        x: &Tensor<3>,
        source: Option<&SourceTape>,
        keep: Option<&Tensor<2, Bool>>,
    ) -> Result<Option<PreparedSource>, AttentionError> {
        let [length, batch, _] = x.dims();
        let expected = [length, batch, self.input_size()];
        check_shape("x", x.dims(), expected, "[time, batch, input]")?;
        check_weights("x", x.dtype(), self)?;
        if let Some(keep) = keep {
            check_shape("keep", keep.dims(), [length, batch], "[time, batch]")?;
        }
        match (&self.fusion, source) {
            (None, None) => Ok(None),
            (Some(_), None) => Err(unsourced()),
            (None, Some(_)) => Err(unread()),
            (Some(fusion), Some(source)) => Ok(Some(fusion.prepare(source, batch, self.size())?)),
        }
    }

    /// One step: reads the tape (and the source), computes the new state and writes it to the tape. `keep [batch, time]`
    /// covers the whole sequence.
    fn advance(
        &self,
        x: Projected,
        query_weight: &Tensor<2>,
        tape: &mut Tape,
        source: Option<(&PreparedSource, &Tensor<2>)>,
        keep: Option<&Tensor<2, Bool>>,
    ) -> Read {
        let (n, t) = (self.size(), tape.steps());
        let real = keep.map(|keep| keep.clone().narrow(1, t, 1)); // [batch, 1]
        let carry = |new: Tensor<2>, old: Tensor<2>| match &real {
            Some(real) => old.mask_where(spread(real.clone(), new.dims()), new),
            None => new,
        };
        let mut read = Read::default();
        let mut former = LstmState {
            hidden: tape.last.hidden.zeros_like(),
            cell: tape.last.cell.zeros_like(),
        };
        if let Some((states, keys)) = &tape.written {
            let query = x.query + matmul(tape.summary.clone(), query_weight.clone());
            let (found, weights) = bridge::additive_attention(
                query.unsqueeze_dim(1),
                keys.clone(),
                self.attention.vector.val(),
                states.clone(),
                keep.map(|keep| keep.clone().narrow(1, 0, t)),
                None,
            );
            let found: Tensor<2> = found.squeeze_dim(1); // h̃ | c̃
            former = LstmState {
                hidden: found.clone().narrow(1, 0, n),
                cell: found.narrow(1, n, n),
            };
            read.own = Some(weights.squeeze_dim(1));
        }
        report("read hidden", || former.hidden.clone());
        report("read cell", || former.cell.clone());
        let summary = former.hidden.clone();
        let before = tape.source_summary.take();
        let new = match (&self.fusion, x.fusion, source, before) {
            (Some(fusion), Some((gate, query)), Some((source, query_weight)), Some(before)) => {
                let query = query + matmul(before.clone(), query_weight.clone());
                let (found, weights) = bridge::additive_attention(
                    query.unsqueeze_dim(1),
                    source.keys.clone(),
                    fusion.attention.vector.val(),
                    source.states.clone(),
                    source.keep.clone(),
                    None,
                );
                let found: Tensor<2> = found.squeeze_dim(1); // γ̃ | α̃
                let [m, _] = fusion.recurrent.dims();
                let hidden = found.clone().narrow(1, 0, m);
                let gate = sigmoid(gate + matmul(hidden.clone(), fusion.recurrent.val()));
                read.source = Some(weights.squeeze_dim(1));
                tape.source_summary = Some(carry(hidden, before));
                self.fused_step(x.gates, former, gate * found.narrow(1, m, n))
            }
            _ => self.cell.step(x.gates, former),
        };
        tape.last = LstmState {
            hidden: carry(new.hidden, tape.last.hidden.clone()),
            cell: carry(new.cell, tape.last.cell.clone()),
        };
        tape.summary = carry(summary, tape.summary.clone());
        self.write(tape);
        read
    }

    /// The cell with deep fusion: `c = r ∘ α̃ + f ∘ c̃ + i ∘ ĉ`.
    fn fused_step(&self, gates: Tensor<2>, former: LstmState, carried: Tensor<2>) -> LstmState {
        let n = self.size();
        let gates = gates + matmul(former.hidden, self.cell.recurrent.val());
        let gate = |k: usize| gates.clone().narrow(1, k * n, n);
        let kept = sigmoid(gate(1)) * former.cell;
        let cell = carried + kept + sigmoid(gate(0)) * gate(2).tanh();
        LstmState {
            hidden: sigmoid(gate(3)) * cell.clone().tanh(),
            cell,
        }
    }

    /// Writes the last state to the tape.
    fn write(&self, tape: &mut Tape) {
        let LstmState { hidden, cell } = tape.last.clone();
        let state = Tensor::cat(vec![hidden.clone(), cell], 1).unsqueeze_dim::<3>(1); // [batch, 1, 2n]
        let key = self.attention.keys(hidden.unsqueeze_dim(1));
        tape.written = Some(match tape.written.take() {
            Some((states, keys)) => (
                Tensor::cat(vec![states, state], 1),
                Tensor::cat(vec![keys, key], 1),
            ),
            None => (state, key),
        });
    }
}

/// The weights of one step.
#[derive(Default)]
struct Read {
    /// `[batch, steps before]`
    own: Option<Tensor<2>>,
    /// `[batch, source]`
    source: Option<Tensor<2>>,
}

/// `weights [batch, some]` as a row of `width`, zeros on the right; all zeros where there are none. It has the batch, device
/// and precision of `like`.
fn row(weights: Option<Tensor<2>>, width: usize, like: &Tensor<2>) -> Tensor<2> {
    let (device, [batch, _]) = (like.device(), like.dims());
    let zeros = |width| Tensor::zeros([batch, width], (&device, like.dtype()));
    match weights {
        None => zeros(width),
        Some(weights) => match width - weights.dims()[1] {
            0 => weights,
            rest => Tensor::cat(vec![weights, zeros(rest)], 1),
        },
    }
}

/// `weights [batch, time, ..]` with zeros in the rows of padded steps.
fn real_rows(weights: Tensor<3>, keep: Option<&Tensor<2, Bool>>) -> Tensor<3> {
    match keep {
        None => weights,
        Some(keep) => {
            let padded = keep.clone().bool_not().unsqueeze_dim::<3>(2);
            let shape = weights.dims();
            weights.mask_fill(spread(padded, shape), 0.0)
        }
    }
}
