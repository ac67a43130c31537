//! The task of translation: sentence pairs, teacher forcing, BLEU.

use std::collections::HashMap;

use burn::tensor::Device;
use regard_models::{SourceBatch, TargetBatch, TranslationModel};
use regard_nn::dropout::Noise;

use super::{
    TrainError,
    build::model_config,
    sampling,
    task::{BatchLoss, Contents, Task, Update, Verdict},
    validate::{ValidationSet, validate},
};
use crate::{
    corpus::{Batches, EncodedPair, FilterReport, Random},
    model_file::{Description, Languages},
    recipe::{Recipe, Split},
    tokenizer::TokenizerPair,
};

/// Sentence pairs and what is learned from them.
pub(super) struct Translation {
    pairs: Vec<EncodedPair>,
    batches: Batches,
    filtered: FilterReport,
    validation: Option<ValidationSet>,
    description: Description,
}

impl Task for Translation {
    type Model = TranslationModel;

    fn start(recipe: &Recipe) -> Result<Self, TrainError> {
        Self::load(recipe, None)
    }

    fn resume(
        recipe: &Recipe,
        metadata: &HashMap<String, String>,
        name: &str,
    ) -> Result<Self, TrainError> {
        let description = Description::from_metadata(metadata, name)?;
        Self::load(recipe, Some(description.tokenizers))
    }

    fn init(&self, seed: u64, device: &Device) -> Result<TranslationModel, TrainError> {
        Ok(self.description.model.init(seed, device)?)
    }

    fn metadata(&self) -> HashMap<String, String> {
        self.description.metadata()
    }

    fn contents(&self) -> Contents<'_> {
        Contents {
            model: self.description.model.name(),
            examples: "sentence pairs",
            tokenizers: &self.description.tokenizers,
            batches: &self.batches,
            filtered: &self.filtered,
            validation: self.validation.as_ref().map_or(0, |set| set.pairs.len()),
        }
    }

    fn loss(&self, model: &TranslationModel, update: &Update<'_>) -> BatchLoss {
        let settings = &update.recipe.training;
        let mut random = Random::new(&[settings.seed, update.step]);
        let mut noise = Noise::seeded(random.next_u64());
        let pairs = || update.rows.iter().map(|&i| &self.pairs[i]);
        let sources: Vec<_> = pairs().map(|pair| pair.source.clone()).collect();
        let targets: Vec<_> = pairs().map(|pair| pair.target.clone()).collect();
        let mut target = TargetBatch::new(&targets, update.training);
        if let Some(sampled) = &settings.scheduled_sampling {
            use burn::module::Module as _;
            target = sampling::mix(
                &model.valid(),
                &sources,
                target,
                sampling::probability(sampled, update.step),
                &mut random,
                update.device,
                update.training,
            );
        }
        let source = SourceBatch::new(&sources, update.training);
        let scored = model.forward(&source, &target, &mut noise);
        let batch = scored.cross_entropy(target.outputs, settings.label_smoothing);
        BatchLoss {
            loss: batch.loss,
            negative_log_likelihood: batch.nll,
            predictions: batch.tokens,
            tokens: batch.tokens,
        }
    }

    fn validate(
        &self,
        model: &TranslationModel,
        recipe: &Recipe,
        device: &Device,
    ) -> Result<Option<Verdict>, TrainError> {
        let Some(set) = &self.validation else {
            return Ok(None);
        };
        let verdict = validate(model, set, &self.description, &recipe.validation, device)?;
        Ok(Some(verdict))
    }
}

impl Translation {
    /// Reads and encodes the data; learns the tokenizers unless they are given.
    fn load(recipe: &Recipe, tokenizers: Option<TokenizerPair>) -> Result<Self, TrainError> {
        let seed = recipe.training.seed;
        let train = recipe
            .data
            .load(Split::Train, seed)?
            .ok_or(TrainError::NoData)?;
        let tokenizers = match tokenizers {
            Some(tokenizers) => tokenizers,
            None => recipe.data.tokenizers(&train.text)?,
        };
        let filter = recipe.data.filter.length_filter();
        let (pairs, filtered) = filter.apply(&train.text, &tokenizers)?;
        if pairs.is_empty() {
            return Err(TrainError::NothingKept(train.text.len()));
        }
        let batches = Batches::new(&pairs, recipe.batch.budget())?;
        let validation = match recipe.data.load(Split::Valid, seed)? {
            Some(loaded) => {
                let (pairs, _) = filter.apply(&loaded.text, &tokenizers)?;
                let batches = Batches::new(&pairs, recipe.batch.budget())?;
                Some(ValidationSet {
                    text: loaded.text,
                    pairs,
                    batches,
                })
            }
            None => None,
        };
        let description = Description {
            model: model_config(&recipe.model, &tokenizers)?,
            tokenizers,
            translate: recipe.translate.clone(),
            languages: Languages {
                source: recipe.data.source_language.clone(),
                target: recipe.data.target_language.clone(),
            },
            familiarity: None,
        };
        Ok(Self {
            pairs,
            batches,
            filtered,
            validation,
            description,
        })
    }
}
