//! Generation: greedy and beam search, batched, with the attention weights following the
//! back-pointers, so that every entry of an n-best list has its own picture.
//!
//! A hypothesis `Y` of a source of `S` positions is ranked as in GNMT (Wu et al. 2016):
//! `log P(Y) / lp(Y) + cp(Y)`, `lp = ((5 + |Y|) / 6)^α`, `cp = β Σ_i log min(Σ_j p_ij, 1)`.
//!
//! A beam of 1 is greedy search. Finished hypotheses leave the beam, which shrinks by their number
//! (Bahdanau 2014's decoder); the search ends when the beam is empty or the length limit is reached.

mod beam;
mod penalty;
mod prepared;

pub use beam::{Hypothesis, Stepper, beam_search};
pub use penalty::{BeamConfig, LengthLimit};
pub use prepared::Prepared;

use burn::tensor::{Device, Int, Tensor, TensorData, activation::log_softmax};
use regard_nn::dropout::Noise;

use crate::{DecoderState, SourceBatch, TranslationModel};

/// Translates sentences of ids (without `</s>`): for each its n-best list, best first.
///
/// Sentences are searched together as one batch; each one's result is that of the sentence alone.
/// An empty sentence gives one empty hypothesis with score 0.
pub fn translate(
    model: &TranslationModel,
    sentences: &[Vec<u32>],
    config: &BeamConfig,
    device: &Device,
) -> Vec<Vec<Hypothesis>> {
    search_with(sentences, config, device, |source| ModelStepper {
        model,
        device,
        state: Some(model.encode(source, &mut Noise::none())),
        observe: config.coverage_penalty != 0.0,
    })
}

/// Searches with the stepper that `begin` makes for the sentences that are not empty.
fn search_with<S: Stepper>(
    sentences: &[Vec<u32>],
    config: &BeamConfig,
    device: &Device,
    begin: impl FnOnce(&SourceBatch) -> S,
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
    let source = SourceBatch::new(&batch, device);
    let mut stepper = begin(&source);
    let found = beam_search(&mut stepper, source.keep.lengths(), config);
    for (i, hypotheses) in full.into_iter().zip(found) {
        results[i] = hypotheses;
    }
    results
}

struct ModelStepper<'a> {
    model: &'a TranslationModel,
    device: &'a Device,
    state: Option<DecoderState>,
    /// Whether hypotheses are ranked by what they looked at.
    observe: bool,
}

impl Stepper for ModelStepper<'_> {
    fn step(&mut self, previous: &[u32], log_probabilities: &mut Vec<f32>) -> Option<Vec<f32>> {
        log_probabilities.clear();
        let state = self.state.take()?;
        let ids: Vec<i32> = previous.iter().map(|&id| id as i32).collect();
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [previous.len()]), self.device);
        let (output, state) = self.model.step(ids, state, self.observe);
        self.state = Some(state);
        let found = log_softmax(output.logits, 1).into_data();
        log_probabilities.extend(found.iter::<f32>());
        output
            .weights
            .map(|weights| weights.into_data().iter::<f32>().collect())
    }

    fn select(&mut self, rows: &[usize], same_sources: bool) {
        self.state = self
            .state
            .take()
            .map(|state| state.select(rows, same_sources, self.device));
    }
}
