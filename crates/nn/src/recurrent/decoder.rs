//! A recurrent cell with attention over a source: any cell, any score, two ways to wire them.
//!
//! ```text
//! Wiring::Previous (Bahdanau 2014)          Wiring::Current (Luong 2015)
//! c_t = attend(s_{t-1})                     h_t = cell([x_t; h̃_{t-1}], h_{t-1})   with input feeding
//! s_t = cell([x_t; c_t], s_{t-1})           c_t = attend(h_t)
//! output s_t                                output h̃_t = tanh(W_c [c_t; h_t])
//! ```
//!
//! With the first wiring, the context of a step enters the new state; with the second, the query is the
//! state that the step has just reached, and earlier attention enters only by input feeding. Which one is
//! better depends on the data; without input feeding, the second can attend at all steps at once (see
//! `regard_models::Luong`, which also has both wirings fused for LSTMs and GRUs).
//!
//! With [`Coverage`], which the additive scores support, the decoder sums up its past attention. Where weights are used in a loss, as
//! by a [`PointerGenerator`](super::PointerGenerator), they need their gradient
//! ([`AttentiveDecoder::with_differentiable_weights`]). State that
//! the attention carries from step to step (monotonic, NTM addressing, the Gaussian window) is passed on.
//! Cost of a step: the cell's, and one read of the memory.
//!
//! A GRU as in Bahdanau's paper, reading 5 annotations of size 6:
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{
//!     Attention, dropout::DropoutRng, initialize::Initializer, mask::PaddingMask,
//!     recurrent::{AttentiveDecoder, Gru, Reset}, score::{Additive, Score},
//! };
//!
//! let device = Device::flex();
//! let mut initializer = Initializer::new(1, &device);
//! let (x, context, n) = (4, 6, 8);
//! let cell = Gru::new(x + context, n, Reset::BeforeProduct, &mut initializer);
//! let score = Score::Additive(Additive::new(n, context, 7, &mut initializer));
//! let decoder = AttentiveDecoder::previous(cell, Attention::new(score), context)?;
//!
//! let memory = decoder.attention.memory(
//!     Tensor::ones([2, 5, 6], &device),
//!     PaddingMask::from_lengths(&[5, 3], 5, &device),
//! )?;
//! let state = decoder.start(&memory);
//! let target = Tensor::<3>::ones([9, 2, 4], &device); // [time, batch, input]
//! let decoded = decoder.sequence(target, state, &memory, &mut DropoutRng::none())?;
//! assert_eq!(decoded.output.dims(), [9, 2, 8]);
//! assert_eq!(decoded.weights.dims(), [2, 9, 5]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::{
    module::Module,
    nn::Linear,
    tensor::{DType, Int, Tensor},
};

use super::{Coverage, RecurrentCell, at, check_shape};
use crate::{
    Attention, AttentionError, AttentionOptions, Memory, Observe,
    attention::Sampled,
    bridge::{apply, with_axis, zeros_of},
    dropout::DropoutRng,
    initialize::Initializer,
    precision::{as_read, check_precision, check_weights},
    score::Score,
};

/// When the decoder attends to the source, and where the context enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wiring {
    /// Before the cell, with the previous state; the context is part of the cell's input.
    Previous,
    /// After the cell, with the current state; context and state make the output.
    Current {
        /// Whether the output is part of the next input.
        input_feeding: bool,
    },
}

/// A cell and its attention.
#[derive(Module, Debug)]
pub struct AttentiveDecoder<C: Module> {
    /// The cell.
    pub cell: C,
    /// How the source is read.
    pub attention: Attention,
    /// `W_c`, `[context + n, n]`, rows in the order `[c; h]`: of [`Wiring::Current`].
    pub combine: Option<Linear>,
    /// Past attention, as part of the score.
    pub coverage: Option<Coverage>,
    #[module(skip)]
    wiring: Wiring,
    #[module(skip)]
    context_size: usize,
    #[module(skip)]
    differentiable_weights: bool,
}

/// What the decoder carries from step to step.
#[derive(Debug, Clone)]
pub struct AttentiveState<S> {
    /// The cell's state.
    pub cell: S,
    /// `h̃_{t-1}`, `[batch, n]`, zeros at first: with input feeding.
    pub attentional: Option<Tensor<2>>,
    /// The sum of all attention so far, `[batch, positions]`: with coverage.
    pub seen: Option<Tensor<2>>,
    /// The state that the attention continues from.
    pub carried: Option<Tensor<4>>,
    /// The number of the next step.
    pub step: usize,
}

/// The results of one step.
#[derive(Debug, Clone)]
pub struct AttentiveStep {
    /// `s_t` or `h̃_t`, `[batch, n]`.
    pub output: Tensor<2>,
    /// `c_t`, `[batch, context size]`.
    pub context: Tensor<2>,
    /// `[batch, positions]`; with gradient under coverage and after
    /// [`with_differentiable_weights`](AttentiveDecoder::with_differentiable_weights).
    pub weights: Tensor<2>,
    /// `Σ_i min(a_i, c_i)`, `[batch]`: with coverage.
    pub coverage_loss: Option<Tensor<1>>,
    /// What hard attention drew, `[batch, 1, 1]`, for [`Reinforce`](crate::normalize::Reinforce).
    pub sampled: Option<Sampled>,
}

/// The results for a whole target.
#[derive(Debug, Clone)]
pub struct AttentiveOutput<S> {
    /// `s_t` or `h̃_t`, `[time, batch, n]`.
    pub output: Tensor<3>,
    /// `c_t`, `[time, batch, context size]`.
    pub context: Tensor<3>,
    /// `[batch, time, positions]`; with gradient as [`AttentiveStep::weights`].
    pub weights: Tensor<3>,
    /// `Σ_i min(a_i, c_i)`, `[time, batch]`: with coverage.
    pub coverage_loss: Option<Tensor<2>>,
    /// What hard attention drew, `[batch, 1, time]`, for [`Reinforce`](crate::normalize::Reinforce); `None` without sentences.
    pub sampled: Option<Sampled>,
    /// The state after the last step.
    pub state: AttentiveState<S>,
}

impl<C: RecurrentCell> AttentiveDecoder<C> {
    /// Bahdanau's wiring: `cell` takes inputs `[x; c]`, of which the last `context_size` are the context.
    ///
    /// # Errors
    /// A cell whose input has room for nothing but the context.
    pub fn previous(
        cell: C,
        attention: Attention,
        context_size: usize,
    ) -> Result<Self, AttentionError> {
        units(cell.hidden_size())?;
        room(cell.input_size(), context_size)?;
        Ok(Self {
            cell,
            attention,
            combine: None,
            coverage: None,
            wiring: Wiring::Previous,
            context_size,
            differentiable_weights: false,
        })
    }

    /// Luong's wiring: `cell` takes inputs `x`, or `[x; h̃]` with input feeding.
    ///
    /// # Errors
    /// With input feeding, a cell whose input has room for nothing but `h̃`.
    pub fn current(
        cell: C,
        attention: Attention,
        context_size: usize,
        input_feeding: bool,
        initializer: &mut Initializer,
    ) -> Result<Self, AttentionError> {
        let n = cell.hidden_size();
        units(n)?;
        if input_feeding {
            room(cell.input_size(), n)?;
        }
        Ok(Self {
            combine: Some(initializer.linear(context_size + n, n, false)),
            cell,
            attention,
            coverage: None,
            wiring: Wiring::Current { input_feeding },
            context_size,
            differentiable_weights: false,
        })
    }

    /// The same decoder with coverage in its score.
    ///
    /// # Errors
    /// A score that does not support it: only the additive ones do.
    pub fn with_coverage(self, initializer: &mut Initializer) -> Result<Self, AttentionError> {
        let size = match &self.attention.score {
            Score::Additive(score) => score.vector.dims()[0],
            Score::WeightNormAdditive(score) => score.vector.dims()[0],
            other => {
                return Err(AttentionError::combination(
                    "coverage",
                    "asked for",
                    format!("the {} score", other.name()),
                    "coverage enters the tanh of an additive score; use one",
                ));
            }
        };
        Ok(Self {
            coverage: Some(Coverage::new(size, initializer)),
            ..self
        })
    }

    /// The same decoder, whose weights keep their gradient, as a loss on them needs ([`PointerGenerator::mix`]). Takes the plain path.
    ///
    /// [`PointerGenerator::mix`]: super::PointerGenerator::mix
    pub fn with_differentiable_weights(self) -> Self {
        Self {
            differentiable_weights: true,
            ..self
        }
    }

    /// How cell and attention are wired.
    pub fn wiring(&self) -> Wiring {
        self.wiring
    }

    /// The size of the input `x` of a step, without what the decoder adds to it.
    pub fn input_size(&self) -> usize {
        let added = match self.wiring {
            Wiring::Previous => self.context_size,
            Wiring::Current {
                input_feeding: true,
            } => self.cell.hidden_size(),
            Wiring::Current {
                input_feeding: false,
            } => 0,
        };
        self.cell.input_size() - added
    }

    /// The state before the first step over `memory`: the cell's own start.
    pub fn start(&self, memory: &Memory) -> AttentiveState<C::State> {
        let [batch, _, _] = memory.values.dims();
        self.start_from(self.cell.start(batch, &memory.values.device()), memory)
    }

    /// The state before the first step over `memory`, from a state of the cell (an encoder's last, say).
    pub fn start_from(&self, cell: C::State, memory: &Memory) -> AttentiveState<C::State> {
        let [batch, positions, _] = memory.values.dims();
        let device = memory.values.device();
        // In the precision of the weights: the memory may be stored in half of it.
        let zeros = |size: usize, dtype: DType| Tensor::zeros([batch, size], (&device, dtype));
        let fed = self.combine.as_ref().filter(|_| self.input_feeding());
        let seen = self.coverage.as_ref();
        AttentiveState {
            cell,
            attentional: fed.map(|combine| zeros(self.cell.hidden_size(), combine.weight.dtype())),
            seen: seen.map(|coverage| zeros(positions, coverage.weight.dtype())),
            carried: None,
            step: 0,
        }
    }

    /// Checks an input `[batch, input size]`, and that the state was made for this decoder and for `memory`.
    fn check(
        &self,
        x: [usize; 2],
        dtype: DType,
        state: &AttentiveState<C::State>,
        memory: &Memory,
    ) -> Result<(), AttentionError> {
        let [batch, positions, value] = memory.values.dims();
        let meaning = "[batch of the memory, input size]";
        check_shape("x", x, [batch, self.input_size()], meaning)?;
        let meaning = "[context size of the decoder]";
        check_shape("memory.values", [value], [self.context_size], meaning)?;
        check_weights("x", dtype, self)?;
        let stored = as_read(memory.values.dtype(), dtype);
        check_precision("memory.values", stored, dtype, "the input")?;
        self.cell.check(&state.cell, batch)?;
        let fed = self
            .input_feeding()
            .then(|| [batch, self.cell.hidden_size()]);
        let seen = self.coverage.is_some().then_some([batch, positions]);
        for (field, found, expected) in [
            ("state.attentional", &state.attentional, fed),
            ("state.seen", &state.seen, seen),
        ] {
            match (found, expected) {
                (Some(found), Some(expected)) => {
                    let meaning = "as the memory and the cell have";
                    check_shape(field, found.dims(), expected, meaning)?;
                    check_precision(field, found.dtype(), dtype, "the input")?;
                }
                (None, None) => {}
                _ => {
                    let said = |there: bool| if there { "there" } else { "absent" };
                    return Err(AttentionError::value(
                        field,
                        said(found.is_some()),
                        said(expected.is_some()),
                        "begin with the `start` of this decoder",
                    ));
                }
            }
        }
        Ok(())
    }

    fn input_feeding(&self) -> bool {
        self.wiring
            == Wiring::Current {
                input_feeding: true,
            }
    }

    /// One step with the input `x [batch, input size]`.
    ///
    /// # Errors
    /// An input, state or memory of another size, batch or precision.
    pub fn step(
        &self,
        x: Tensor<2>,
        state: AttentiveState<C::State>,
        memory: &Memory,
        noise: &mut DropoutRng,
    ) -> Result<(AttentiveStep, AttentiveState<C::State>), AttentionError> {
        self.check(x.dims(), x.dtype(), &state, memory)?;
        let AttentiveState {
            cell,
            attentional,
            seen,
            carried,
            step,
        } = state;
        let look = |query: Tensor<2>, noise: &mut DropoutRng| {
            let call = AttentionOptions::new(Observe::Weights)
                .first_query(step)
                .carried(carried)
                .noise(noise);
            let call = match self.differentiable_weights || self.coverage.is_some() {
                true => call.differentiable(),
                false => call,
            };
            let query = query.unsqueeze_dim::<3>(1); // [batch, 1, n]
            match (&self.coverage, &seen) {
                (Some(coverage), Some(seen)) => {
                    let memory = coverage.apply(memory, seen.clone())?;
                    self.attention.read(query, &memory, call)
                }
                _ => self.attention.read(query, memory, call),
            }
        };
        let (cell, output, reading) = match (self.wiring, &self.combine) {
            (Wiring::Current { .. }, Some(combine)) => {
                let x = match attentional {
                    Some(fed) => Tensor::cat(vec![x, fed], 1),
                    None => x,
                };
                let cell = self.cell.advance(x, cell);
                let hidden = self.cell.hidden(&cell);
                let reading = look(hidden.clone(), noise)?;
                let context: Tensor<2> = reading.context.clone().squeeze_dim(1);
                let output = apply(combine, Tensor::cat(vec![context, hidden], 1)).tanh();
                (cell, output, reading)
            }
            _ => {
                let reading = look(self.cell.hidden(&cell), noise)?;
                let context: Tensor<2> = reading.context.clone().squeeze_dim(1);
                let cell = self.cell.advance(Tensor::cat(vec![x, context], 1), cell);
                let output = self.cell.hidden(&cell);
                (cell, output, reading)
            }
        };
        let weights: Tensor<2> = reading.weights.squeeze_dim(1);
        let state = AttentiveState {
            cell,
            attentional: self.input_feeding().then(|| output.clone()),
            seen: seen.clone().map(|seen| seen + weights.clone()),
            carried: reading.carried,
            step: step + 1,
        };
        let step = AttentiveStep {
            output,
            context: reading.context.squeeze_dim(1),
            coverage_loss: seen.map(|seen| Coverage::loss(weights.clone(), seen)),
            weights,
            sampled: reading.sampled,
        };
        Ok((step, state))
    }

    /// A whole target `x [time, batch, input size]`, teacher-forced.
    ///
    /// # Errors
    /// As [`step`](Self::step); a target of no steps.
    pub fn sequence(
        &self,
        x: Tensor<3>,
        mut state: AttentiveState<C::State>,
        memory: &Memory,
        noise: &mut DropoutRng,
    ) -> Result<AttentiveOutput<C::State>, AttentionError> {
        let [time, _, _] = x.dims();
        if time == 0 {
            let advice = "a target starts with <s>: give at least one step";
            return Err(AttentionError::shape(
                "x",
                &x.dims(),
                "at least one step",
                advice,
            ));
        }
        let [batch, positions, _] = memory.values.dims();
        if batch == 0 {
            let [_, _, size] = x.dims();
            self.check([0, size], x.dtype(), &state, memory)?;
            let options = (&x.device(), x.dtype());
            let output = Tensor::zeros([time, 0, self.cell.hidden_size()], options);
            return Ok(AttentiveOutput {
                output: zeros_of(zeros_of(output, &x), &memory.values.clone().cast(x.dtype())),
                context: Tensor::zeros([time, 0, self.context_size], options),
                weights: Tensor::zeros([0, time, positions], options),
                coverage_loss: state
                    .seen
                    .as_ref()
                    .map(|_| Tensor::zeros([time, 0], options)),
                sampled: None,
                state: AttentiveState {
                    step: state.step + time,
                    ..state
                },
            });
        }
        let (mut output, mut context) = (Vec::with_capacity(time), Vec::with_capacity(time));
        let (mut weights, mut losses) = (Vec::with_capacity(time), vec![]);
        let mut sampled = Vec::with_capacity(time);
        for t in 0..time {
            let (step, next) = self.step(at(&x, t), state, memory, noise)?;
            state = next;
            output.push(step.output);
            context.push(step.context);
            weights.push(with_axis(step.weights, 1));
            losses.extend(step.coverage_loss);
            sampled.push(step.sampled);
        }
        Ok(AttentiveOutput {
            output: Tensor::stack(output, 0),
            context: Tensor::stack(context, 0),
            // Also for a source without positions.
            weights: Tensor::cat(weights, 1),
            coverage_loss: (!losses.is_empty()).then(|| Tensor::stack(losses, 0)),
            sampled: Sampled::all_steps(sampled),
            state,
        })
    }

    /// The sequences at `index`, in that order; the same rows of the memory must be selected.
    pub fn select(
        &self,
        state: AttentiveState<C::State>,
        index: Tensor<1, Int>,
    ) -> AttentiveState<C::State> {
        AttentiveState {
            cell: self.cell.select(state.cell, index.clone()),
            attentional: state.attentional.map(|x| x.select(0, index.clone())),
            seen: state.seen.map(|x| x.select(0, index.clone())),
            carried: state.carried.map(|x| x.select(0, index)),
            step: state.step,
        }
    }
}

/// Checks that the state, which is the query, has units.
fn units(size: usize) -> Result<(), AttentionError> {
    match size {
        0 => Err(AttentionError::value(
            "cell units",
            0,
            "at least 1",
            "the source is asked with the state of the cell",
        )),
        _ => Ok(()),
    }
}

/// Checks that an input of `input` numbers holds `added` and at least one more.
fn room(input: usize, added: usize) -> Result<(), AttentionError> {
    match input > added {
        true => Ok(()),
        false => Err(AttentionError::value(
            "cell input size",
            input,
            format!("more than {added}"),
            "the cell's input is the step's own input and what the wiring adds: make it for both",
        )),
    }
}
