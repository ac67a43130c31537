//! Generation: greedy and beam search and sampling, batched, with the attention weights following the
//! back-pointers, so that every entry of an n-best list has its own picture.
//!
//! A hypothesis `Y` of a source of `S` positions is ranked as in GNMT (Wu et al. 2016):
//! `log P(Y) / lp(Y) + cp(Y)`, `lp = ((5 + |Y|) / 6)^α`, `cp = β Σ_i log min(Σ_j p_ij, 1)`.
//!
//! A beam of 1 is greedy search. Finished hypotheses leave the beam, which shrinks by their number
//! (Bahdanau 2014's decoder); the search ends when the beam is empty or the length limit is reached. Models that others have
//! trained are ranked and searched as in transformers: [`LengthPenalty::Power`] and the other ways of [`Stopping`].

mod beam;
mod penalty;
mod sample;
mod tree;

pub(crate) use beam::repeating;
pub use beam::{Hypothesis, beam_search};
pub use penalty::{BeamConfig, LengthLimit, LengthPenalty, Stopping};
pub(crate) use sample::penalize;
pub use sample::{Prompt, SampleConfig, SampleEnd, SampleError, Sampled, sample};
pub use tree::{Proposal, Recorder, SearchTree};

use burn::{
    module::Module,
    tensor::{Device, Int, Tensor, TensorData},
};
use regard_kernels::loss;
use regard_nn::{devices, dropout::DropoutRng};

use crate::{
    batch::SourceBatch,
    erased::AnyGenerator,
    generator::{DecoderState, Output, Packed, Stepper},
    image::Captioner,
    vocabulary::Vocabulary,
};

/// Translates sentences of ids (without `</s>`): for each its n-best list, best first.
///
/// Sentences are searched together as one batch; each one's result is that of the sentence alone.
/// An empty sentence gives one empty hypothesis with score 0.
pub fn translate(
    model: &AnyGenerator,
    sentences: &[Vec<u32>],
    config: &BeamConfig,
    device: &Device,
) -> Vec<Vec<Hypothesis>> {
    search(model, None, sentences, config, device)
}

/// A model prepared for generation: if it is on the CPU and there is a kernel for it, a copy of its weights is packed in the order in which
/// generation reads them (see [`Generator::pack`](crate::Generator::pack)). After further training it has to be made anew.
#[derive(Debug)]
pub struct Prepared {
    model: AnyGenerator,
    packed: Option<Box<dyn Packed>>,
}

impl Prepared {
    /// Prepares `model`.
    pub fn new(model: AnyGenerator) -> Self {
        let on_card = model.devices().iter().any(devices::is_card);
        let packed = if on_card { None } else { model.pack() };
        Self { model, packed }
    }

    /// The model.
    pub fn model(&self) -> &AnyGenerator {
        &self.model
    }

    /// As [`translate`].
    pub fn translate(
        &self,
        sentences: &[Vec<u32>],
        config: &BeamConfig,
        device: &Device,
    ) -> Vec<Vec<Hypothesis>> {
        search(
            &self.model,
            self.packed.as_deref(),
            sentences,
            config,
            device,
        )
    }

    /// The packed weights, if there is a kernel for the model.
    pub fn packed(&self) -> Option<&dyn Packed> {
        self.packed.as_deref()
    }

    /// The same, to change heads.
    pub fn packed_mut(&mut self) -> Option<&mut (dyn Packed + 'static)> {
        self.packed.as_deref_mut()
    }

    /// As [`Prepared::translate`] of one sentence, with the tree of the search: the `listed` likeliest proposals of each step, and
    /// what became of them. Its leaves are the hypotheses. Recording changes no number.
    pub fn search_tree(
        &self,
        sentence: &[u32],
        config: &BeamConfig,
        device: &Device,
        listed: usize,
    ) -> (Vec<Hypothesis>, SearchTree) {
        if sentence.is_empty() {
            return (vec![Hypothesis::empty()], SearchTree::default());
        }
        let vocabularies = self.model.vocabularies();
        let source = SourceBatch::new(&[sentence.to_vec()], &vocabularies.source, device);
        let stepper = begin(&self.model, self.packed.as_deref(), &source, config, device);
        let mut recorder = Recorder::new(stepper);
        let found = beam_search(&mut recorder, source.keep.lengths(), config);
        let hypotheses = found.into_iter().next().unwrap_or_default();
        let texts: Vec<Vec<u32>> = hypotheses.iter().map(Hypothesis::with_end).collect();
        let tree = recorder.tree(0, &texts, listed);
        (hypotheses, tree)
    }
}

/// Searches with `packed` weights if there are any, or with the model as it is.
fn search(
    model: &AnyGenerator,
    packed: Option<&dyn Packed>,
    sentences: &[Vec<u32>],
    config: &BeamConfig,
    device: &Device,
) -> Vec<Vec<Hypothesis>> {
    let full: Vec<usize> = (0..sentences.len())
        .filter(|&i| !sentences[i].is_empty())
        .collect();
    let mut results: Vec<Vec<Hypothesis>> = sentences
        .iter()
        .map(|_| vec![Hypothesis::empty()])
        .collect();
    if full.is_empty() {
        return results;
    }
    let batch: Vec<Vec<u32>> = full.iter().map(|&i| sentences[i].clone()).collect();
    let source = SourceBatch::new(&batch, &model.vocabularies().source, device);
    let mut stepper = begin(model, packed, &source, config, device);
    let found = beam_search(&mut *stepper, source.keep.lengths(), config);
    for (i, hypotheses) in full.into_iter().zip(found) {
        results[i] = hypotheses;
    }
    results
}

/// A search's stepper on `packed` weights if there are any, or on the model as it is.
fn begin<'a>(
    model: &'a AnyGenerator,
    packed: Option<&'a dyn Packed>,
    source: &SourceBatch,
    config: &BeamConfig,
    device: &'a Device,
) -> Box<dyn Stepper + 'a> {
    // The packed model reports no attention weights, which the coverage penalty needs.
    let observe = config.coverage_penalty != 0.0;
    match packed {
        Some(packed) if !observe => packed.begin(source),
        _ => Box::new(ModelStepper {
            vocabulary: model.vocabularies().target,
            device,
            state: Some(model.encode(source, &mut DropoutRng::none())),
            step: move |previous, state| model.step(previous, state, observe),
        }),
    }
}

/// Writes a caption for each of `images [batch, channels, height, width]`: for each its n-best list, best first.
///
/// The length limit is that of a source with a token for each region. A beam's coverage penalty counts regions.
pub fn caption(model: &Captioner, images: Tensor<4>, config: &BeamConfig) -> Vec<Vec<Hypothesis>> {
    let [batch, ..] = images.dims();
    if batch == 0 {
        return vec![];
    }
    let device = &images.device();
    let mut stepper = ModelStepper {
        vocabulary: model.vocabulary(),
        device,
        state: Some(model.encode(images)),
        step: |previous, state| model.step(previous, state),
    };
    let regions = model.grid().iter().product();
    beam_search(&mut stepper, &vec![regions; batch], config)
}

/// A model at work: its state, and how it makes a step.
struct ModelStepper<'a, S, F> {
    vocabulary: Vocabulary,
    device: &'a Device,
    state: Option<S>,
    step: F,
}

impl<S, F> Stepper for ModelStepper<'_, S, F>
where
    S: DecoderState,
    F: Fn(Tensor<1, Int>, S) -> (Output, S),
{
    fn vocabulary(&self) -> Vocabulary {
        self.vocabulary
    }

    fn step(&mut self, previous: &[u32], log_probabilities: &mut Vec<f32>) -> Option<Vec<f32>> {
        log_probabilities.clear();
        let state = self.state.take()?;
        let ids: Vec<i32> = previous.iter().map(|&id| id as i32).collect();
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [previous.len()]), self.device);
        let (output, state) = (self.step)(ids, state);
        self.state = Some(state);
        let [_, classes] = output.logits.dims();
        log_probabilities.extend(output.logits.into_data().iter::<f32>());
        loss::log_softmax(log_probabilities, classes);
        output
            .weights
            .map(|weights| weights.into_data().iter::<f32>().collect())
    }

    fn select(&mut self, rows: &[usize], same_sources: bool) {
        self.state = self
            .state
            .take()
            .map(|state| state.select(rows, same_sources));
    }
}
