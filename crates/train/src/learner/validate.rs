//! Judging a model on the validation set: teacher-forced loss, and BLEU of its own translations.

use burn::tensor::Device;
use regard_evaluate::{Bleu, EvaluateError};
use regard_models::{SourceBatch, TargetBatch, TranslationModel};
use regard_nn::dropout::Noise;

use super::{events::Quality, task::Verdict};
use crate::{
    Translator,
    corpus::{Batches, EncodedPair, ParallelText},
    model_file::Description,
    recipe::{Translation, Validation},
    translator::TranslateError,
};

/// The validation set.
#[derive(Debug)]
pub struct ValidationSet {
    /// The text.
    pub text: ParallelText,
    /// The same as ids.
    pub pairs: Vec<EncodedPair>,
    /// Its batches, by length.
    pub batches: Batches,
}

/// Why a model could not be judged.
#[derive(Debug, thiserror::Error)]
pub enum ValidateError {
    /// Translation failed.
    #[error(transparent)]
    Translate(#[from] TranslateError),
    /// The metric refused its input.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
}

/// The mean negative log-likelihood per target token of `pairs`, teacher-forced, and the tokens.
pub fn teacher_forced(
    model: &TranslationModel,
    pairs: &[EncodedPair],
    batches: &Batches,
    device: &Device,
) -> (f64, usize) {
    let (mut sum, mut tokens) = (0.0, 0);
    for rows in batches.sorted() {
        let source: Vec<_> = rows.iter().map(|&i| pairs[i].source.clone()).collect();
        let target: Vec<_> = rows.iter().map(|&i| pairs[i].target.clone()).collect();
        let source = SourceBatch::new(&source, device);
        let target = TargetBatch::new(&target, device);
        let scored = model.forward(&source, &target, &mut Noise::none());
        let batch = scored.cross_entropy(target.outputs, 0.0);
        sum += batch.nll;
        tokens += batch.tokens;
    }
    (sum / tokens.max(1) as f64, tokens)
}

/// Judges `model`, which lives on `device` without autodiff.
///
/// # Errors
/// Translations or scores that cannot be had.
pub(super) fn validate(
    model: &TranslationModel,
    set: &ValidationSet,
    description: &Description,
    settings: &Validation,
    device: &Device,
) -> Result<Verdict, ValidateError> {
    let (loss, _) = teacher_forced(model, &set.pairs, &set.batches, device);
    let translator = Translator::new(model.clone(), description.clone(), device).looking(false);
    let search = Translation {
        beam: settings.beam,
        n_best: 1,
        batch_sentences: settings.batch_sentences,
        ..description.translate.clone()
    };
    let count = settings
        .max_sentences
        .unwrap_or(usize::MAX)
        .min(set.text.len());
    let translations: Vec<String> = translator
        .translate(&set.text.source()[..count], &search)?
        .into_iter()
        .map(|mut line| line.n_best.swap_remove(0).text)
        .collect();
    let metric = Bleu {
        tokenizer: settings.tokenizer,
        lowercase: settings.lowercase,
        ..Bleu::default()
    };
    let score = metric.corpus(&translations, &[&set.text.target()[..count]])?;
    Ok(Verdict {
        loss,
        quality: Quality::Bleu {
            bleu: score.score,
            signature: score.signature.to_string(),
        },
        lines: translations,
    })
}
