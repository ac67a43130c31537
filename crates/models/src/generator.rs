//! The role of models that write tokens.
//!
//! A [`Generator`] scores a target under teacher forcing, and it makes single steps, for the greedy and beam search of
//! [`generate`](crate::generate). It can be asked what it looked at. A generator without a source ignores the one that it is
//! given. Its [`ModelConfig`](crate::ModelConfig) is the section `[model]` of a recipe, and stands in a model file beside the weights.

use std::fmt::{Debug, Display};

use burn::{
    module::Module,
    tensor::{Int, Tensor},
};
use regard_kernels::{
    KernelError,
    stack::{ChangedHead, Observer, Stack},
};
use regard_nn::{
    bridge::{CrossEntropy, OutputWeights, output_cross_entropy_mean},
    dropout::DropoutRng,
};

use crate::{
    attention::Draws,
    batch::{SourceBatch, TargetBatch},
    vocabulary::{Vocabularies, Vocabulary},
};

/// A model that writes tokens. The batches that it reads hold at least one sentence.
pub trait Generator: Module + Sync + 'static {
    /// The prefix of the names of its weights in a file.
    const NAME: &'static str;

    /// The state that it carries from step to step.
    type State: DecoderState;

    /// The vocabularies that it reads and writes.
    fn vocabularies(&self) -> Vocabularies;

    /// Scores `target` given `source`, teacher-forced.
    fn forward(&self, source: &SourceBatch, target: &TargetBatch, noise: &mut DropoutRng)
    -> Scored;

    /// Encodes a batch into the decoder's first state.
    fn encode(&self, source: &SourceBatch, noise: &mut DropoutRng) -> Self::State;

    /// One step of generation: the logits of the token after the `previous` one of each row (`[rows]`). A model with many heads
    /// reports its weights only if `observe` asks for them, any other always.
    fn step(
        &self,
        previous: Tensor<1, Int>,
        state: Self::State,
        observe: bool,
    ) -> (Output, Self::State);

    /// Every weight of every head while the model reads `source` and writes `target`; `None` for models with a single row of
    /// weights in each step, which [`Generator::step`] gives.
    fn look(&self, _source: &SourceBatch, _target: &TargetBatch) -> Option<AttentionMaps> {
        None
    }

    /// Whether the weights that [`Generator::step`] and [`Generator::look`] give sum to 1.
    fn is_normalized(&self) -> bool {
        true
    }

    /// A copy of the weights in the order in which generation reads them, if there is a kernel for that.
    fn pack(&self) -> Option<Box<dyn Packed>> {
        None
    }
}

/// The state that a decoder carries from step to step, a row for each hypothesis.
pub trait DecoderState: Clone + Debug + 'static {
    /// The rows at `rows`, in that order; as hypotheses of a beam survive, fork and end, rows may repeat or be left out.
    /// `same_sources` says that every row keeps the source it had, so that data about the source can stay in place.
    fn select(self, rows: &[usize], same_sources: bool) -> Self;
}

/// Weights in the order in which generation reads them.
pub trait Packed: Debug + Send + Sync {
    /// Encodes a batch, a row for each sentence.
    fn begin<'a>(&'a self, source: &SourceBatch) -> Box<dyn Stepper + 'a>;

    /// Packs what generation itself does not need, so that heads can be changed and observed; false if a part of the model has no
    /// kernel. From then on the numbers are those of the kernels throughout: the same up to rounding.
    fn open(&mut self) -> bool;

    /// Changes these heads of the encoder and of the decoder from now on, and no others.
    ///
    /// # Errors
    /// A head that is not there; heads of an encoder that is not [opened](Self::open).
    fn change_heads(
        &mut self,
        encoder: Vec<ChangedHead>,
        decoder: Vec<ChangedHead>,
    ) -> Result<(), KernelError>;

    /// The stacks of encoder and decoder that observers see; `None` before the encoder is [opened](Self::open).
    fn stacks(&self) -> Option<[&Stack; 2]>;

    /// Reads the first sentence of `source` and writes that of `target`. The observers see the attention of the encoder and of the decoder.
    ///
    /// # Errors
    /// Those of the observers; an encoder that is not [opened](Self::open).
    fn observe(
        &self,
        source: &SourceBatch,
        target: &TargetBatch,
        encoder: &mut (dyn Observer + Send),
        decoder: &mut (dyn Observer + Send),
    ) -> Result<(), KernelError>;
}

/// A model at work on a batch of rows, one row per live hypothesis.
pub trait Stepper {
    /// The vocabulary of the output.
    fn vocabulary(&self) -> Vocabulary;

    /// The tokens that end a text: the mark of the vocabulary, unless the model has several.
    fn ends(&self) -> Vec<u32> {
        vec![self.vocabulary().end]
    }

    /// Overwrites `log_probabilities` with those of the token after the `previous` one of each row, `[rows, vocabulary]`, and
    /// gives the weights `[rows, source]` if the model attends.
    fn step(&mut self, previous: &[u32], log_probabilities: &mut Vec<f32>) -> Option<Vec<f32>>;

    /// Keeps the state of `rows`, in that order (rows may repeat). `same_sources` says that row `i`
    /// keeps the source it had.
    fn select(&mut self, rows: &[usize], same_sources: bool);
}

impl<S: Stepper + ?Sized> Stepper for Box<S> {
    fn vocabulary(&self) -> Vocabulary {
        (**self).vocabulary()
    }

    fn ends(&self) -> Vec<u32> {
        (**self).ends()
    }

    fn step(&mut self, previous: &[u32], log_probabilities: &mut Vec<f32>) -> Option<Vec<f32>> {
        (**self).step(previous, log_probabilities)
    }

    fn select(&mut self, rows: &[usize], same_sources: bool) {
        (**self).select(rows, same_sources);
    }
}

/// The result of scoring a target under teacher forcing.
#[derive(Debug, Clone)]
pub struct Scored {
    /// The input of the output layer: `[time · batch, readout]`, time-major.
    pub readout: Tensor<2>,
    /// The output layer.
    pub output: OutputWeights,
    /// The weights of each step, `[batch, target, source]`; `None` without attention, and for models with many heads (see
    /// [`Generator::look`]).
    pub weights: Option<Tensor<3>>,
    /// The id of padding in the outputs, which does not count in the loss.
    pub padding: u32,
    /// The keys drawn by hard attention that learns by reward.
    pub draws: Option<Draws>,
}

impl Scored {
    /// Before the softmax: `[time · batch, target vocabulary]`, time-major.
    pub fn logits(&self) -> Tensor<2> {
        self.output.logits(self.readout.clone())
    }

    /// The mean loss per token against `outputs [time · batch]` ([`TargetBatch::outputs`]), padding left out, with label
    /// `smoothing`; the logits are never kept whole.
    ///
    /// # Panics
    /// If `outputs` are of another batch or vocabulary, or `smoothing` is not in `[0, 1]`.
    pub fn cross_entropy(self, outputs: Tensor<1, Int>, smoothing: f64) -> CrossEntropy {
        output_cross_entropy_mean(
            self.readout,
            self.output,
            outputs,
            self.padding as usize,
            smoothing as f32,
        )
    }
}

/// The result of one step of generation.
#[derive(Debug, Clone)]
pub struct Output {
    /// Before the softmax: `[rows, target vocabulary]`.
    pub logits: Tensor<2>,
    /// The weights of the step, `[rows, source]`; `None` without attention.
    pub weights: Option<Tensor<2>>,
}

/// Every weight of every head, by layer from the first: each `[batch, heads, queries, keys]`.
#[derive(Debug, Clone)]
pub struct AttentionMaps {
    /// The encoder's self-attention: source to source.
    pub encoder: Vec<Tensor<4>>,
    /// The decoder's self-attention: target to target.
    pub decoder: Vec<Tensor<4>>,
    /// Cross-attention: target to source.
    pub cross: Vec<Tensor<4>>,
}

/// The value of a result that cannot be an error, because all sizes follow from one configuration.
///
/// # Panics
/// With the error, if it does fail.
#[track_caller]
pub(crate) fn expect_valid<T>(result: Result<T, impl Display>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}
