//! The task of classification: labelled sentences, cross-entropy, accuracy.

use std::collections::HashMap;

use burn::tensor::{Device, Int, Tensor, TensorData};
use regard_evaluate::Accuracy;
use regard_models::{Classifier, SourceBatch};
use regard_nn::{bridge, dropout::Noise};

use super::{
    TrainError,
    build::classifier_config,
    events::Quality,
    task::{BatchLoss, Contents, Task, Update, Verdict},
};
use crate::{
    classifier_file::Description,
    corpus::{Batches, EncodedPair, FilterReport, LabelledText, Random},
    recipe::{Recipe, Split},
    tokenizer::{SubwordTokenizer, TokenizerPair},
};

/// A padding class that no sentence has: every prediction counts.
const NO_CLASS: usize = usize::MAX;

/// Labelled sentences and what is learned from them.
pub(super) struct Classification {
    train: Encoded,
    filtered: FilterReport,
    validation: Option<Encoded>,
    description: Description,
}

/// Sentences as ids.
struct Encoded {
    sentences: Vec<EncodedPair>,
    /// Of each of them.
    classes: Vec<usize>,
    batches: Batches,
}

impl Encoded {
    fn new(
        text: &LabelledText,
        tokenizers: &TokenizerPair,
        labels: &[String],
        recipe: &Recipe,
    ) -> Result<(Self, FilterReport), TrainError> {
        let classes = text.classes(labels)?;
        let filter = recipe.data.filter.length_filter();
        let (sentences, report) = filter.apply(text.pairs(), tokenizers)?;
        let encoded = Self {
            classes: sentences.iter().map(|kept| classes[kept.line]).collect(),
            batches: Batches::of_sources(&sentences, recipe.batch.budget())?,
            sentences,
        };
        Ok((encoded, report))
    }

    /// The sentences and classes at `rows`.
    fn batch(&self, rows: &[usize], device: &Device) -> (SourceBatch, Tensor<1, Int>, usize) {
        let ids: Vec<_> = rows
            .iter()
            .map(|&row| self.sentences[row].source.clone())
            .collect();
        let classes: Vec<i32> = rows.iter().map(|&row| self.classes[row] as i32).collect();
        let classes = Tensor::from_data(TensorData::new(classes, [rows.len()]), device);
        let tokens = ids.iter().map(|ids| ids.len() + 1).sum();
        (SourceBatch::new(&ids, device), classes, tokens)
    }
}

impl Task for Classification {
    type Model = Classifier;

    fn start(recipe: &Recipe) -> Result<Self, TrainError> {
        Self::load(recipe, None)
    }

    fn resume(
        recipe: &Recipe,
        metadata: &HashMap<String, String>,
        name: &str,
    ) -> Result<Self, TrainError> {
        let description = Description::from_metadata(metadata, name)?;
        Self::load(recipe, Some(description))
    }

    fn init(&self, seed: u64, device: &Device) -> Result<Classifier, TrainError> {
        Ok(self.description.model.init(seed, device)?)
    }

    fn metadata(&self) -> HashMap<String, String> {
        self.description.metadata()
    }

    fn contents(&self) -> Contents<'_> {
        Contents {
            model: self.description.model.name(),
            examples: "labelled sentences",
            tokenizers: &self.description.tokenizers,
            batches: &self.train.batches,
            filtered: &self.filtered,
            validation: self.validation.as_ref().map_or(0, |set| set.classes.len()),
        }
    }

    fn loss(&self, model: &Classifier, update: &Update<'_>) -> BatchLoss {
        let settings = &update.recipe.training;
        let mut random = Random::new(&[settings.seed, update.step]);
        let mut noise = Noise::seeded(random.next_u64());
        let (source, classes, tokens) = self.train.batch(update.rows, update.training);
        let classified = model.forward(&source, &mut noise);
        let smoothing = settings.label_smoothing as f32;
        let batch = bridge::cross_entropy_mean(classified.logits, classes, NO_CLASS, smoothing);
        BatchLoss {
            loss: match classified.penalty {
                Some(penalty) => batch.loss + penalty,
                None => batch.loss,
            },
            negative_log_likelihood: batch.nll,
            predictions: update.rows.len(),
            tokens,
        }
    }

    fn validate(
        &self,
        model: &Classifier,
        _recipe: &Recipe,
        device: &Device,
    ) -> Result<Option<Verdict>, TrainError> {
        let Some(set) = &self.validation else {
            return Ok(None);
        };
        let labels = &self.description.labels;
        let mut found = vec![0; set.classes.len()];
        let mut sum = 0.0;
        for rows in set.batches.sorted() {
            let (source, classes, _) = set.batch(&rows, device);
            let logits = model.forward(&source, &mut Noise::none()).logits;
            sum += bridge::cross_entropy_mean(logits.clone(), classes, NO_CLASS, 0.0).nll;
            let best: Tensor<1, Int> = logits.argmax(1).squeeze_dim(1);
            for (&row, class) in rows.iter().zip(best.into_data().iter::<i32>()) {
                found[row] = class as usize;
            }
        }
        let accuracy = Accuracy::of(&found, &set.classes, labels.len());
        Ok(Some(Verdict {
            loss: sum / found.len().max(1) as f64,
            quality: Quality::Accuracy {
                accuracy: accuracy.share(),
                correct: accuracy.correct,
                sentences: accuracy.sentences,
            },
            lines: found.iter().map(|&class| labels[class].clone()).collect(),
        }))
    }
}

impl Classification {
    /// Reads and encodes the data; learns tokenizer and labels unless they are given.
    fn load(recipe: &Recipe, former: Option<Description>) -> Result<Self, TrainError> {
        let files = recipe.data.labelled.as_ref().ok_or(TrainError::NoData)?;
        let train = files.load(Split::Train)?.ok_or(TrainError::NoData)?;
        let (tokenizers, labels) = match former {
            Some(former) => (former.tokenizers, former.labels),
            None => {
                let (size, lowercase) = (recipe.data.vocabulary.size, recipe.data.lowercase);
                let sentences = train.sentences().iter();
                let tokenizer = SubwordTokenizer::learn(sentences, size, lowercase)?;
                (TokenizerPair::joint(tokenizer), train.labels())
            }
        };
        let (encoded, filtered) = Encoded::new(&train, &tokenizers, &labels, recipe)?;
        let validation = match files.load(Split::Valid)? {
            Some(text) => Some(Encoded::new(&text, &tokenizers, &labels, recipe)?.0),
            None => None,
        };
        let description = Description {
            model: classifier_config(&recipe.model, &tokenizers, labels.len())?,
            tokenizers,
            labels,
            max_tokens: recipe.data.filter.max_tokens,
        };
        Ok(Self {
            train: encoded,
            filtered,
            validation,
            description,
        })
    }
}
