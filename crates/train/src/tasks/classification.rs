//! The task of classification: labelled sentences, cross-entropy, accuracy.

use std::{ops::Range, path::PathBuf};

use burn::tensor::{Device, Int, Tensor, TensorData};
use regard_config::Check;
use regard_evaluate::Accuracy;
use regard_models::{AnyClassifier, ClassifierSizes, RoleOf, SourceBatch};
use regard_nn::{bridge, dropout::DropoutRng};
use regard_trace::Trace;
use serde::{Deserialize, Serialize};

use super::{
    BatchLoss, Contents, Describe, OF_IMAGES, OF_TRANSLATION, Task, Term, Update, Verdict,
    check_lengths, fingerprint, known_tokenizers,
};
use crate::{
    corpus::{
        Batches, CorpusError, EncodedPair, FilterReport, LabelledText, LengthFilter, ParallelText,
        Random,
    },
    error::TrainError,
    learner::events::Quality,
    model_file::{
        Header, Metadata, ModelFileError, entry, expect_no_problem, expect_table, json_entry,
        tokenizers, tokenizers_entry,
    },
    ranks::Ranks,
    recipe::{self, LabelledData, Measure, Model, Recipe, Split},
    sentence_classifier::{Description, SentenceClassifier},
    tokenizer::{SubwordTokenizer, TokenizerPair},
};

const LABELS: &str = "regard.labels";

/// The class of padding, which no sentence has, so that every prediction counts.
const NO_CLASS: usize = usize::MAX;

/// Models that give a sentence a label.
#[derive(Debug, Clone, Copy)]
pub struct Classification(RoleOf<AnyClassifier>);

/// Labelled sentences.
#[derive(Debug)]
pub struct Data {
    train: Encoded,
    filtered: FilterReport,
    validation: Option<Encoded>,
}

/// Sentences as ids.
#[derive(Debug)]
struct Encoded {
    sentences: Vec<EncodedPair>,
    /// The class of each sentence.
    classes: Vec<usize>,
    /// Lines of the text, those that the filter left out included.
    lines: usize,
    batches: Batches,
}

impl Encoded {
    /// The sentences of `text` that pass `filter`; errors of the filter call the text `name`.
    fn new(
        text: &LabelledText,
        name: &'static str,
        tokenizers: &TokenizerPair,
        labels: &[String],
        recipe: &Recipe,
        filter: LengthFilter,
    ) -> Result<(Self, FilterReport), TrainError> {
        let classes = text.classes(labels)?;
        // Limits are those of sentences; a label is no text.
        let alone = ParallelText::new(text.sentences().to_vec(), text.sentences().to_vec())?;
        let kept = filter.apply(&alone, tokenizers);
        let (sentences, report) = kept.map_err(|error| error.of(name))?;
        let encoded = Self {
            classes: sentences.iter().map(|kept| classes[kept.line]).collect(),
            lines: alone.len(),
            batches: Batches::of_sources(&sentences, recipe.batch.budget())?,
            sentences,
        };
        Ok((encoded, report))
    }

    fn fingerprint(&self) -> u64 {
        let classes: Vec<u32> = self.classes.iter().map(|&class| class as u32).collect();
        let sentences = self.sentences.iter().map(|one| one.source.as_slice());
        fingerprint(sentences.chain([classes.as_slice()]))
    }

    /// The sentences and classes at the places `share` of `rows`.
    fn batch(
        &self,
        rows: &[usize],
        share: Range<usize>,
        model: &AnyClassifier,
        device: &Device,
    ) -> (SourceBatch, Tensor<1, Int>, usize) {
        let ids: Vec<_> = rows
            .iter()
            .map(|&row| self.sentences[row].source.clone())
            .collect();
        let own = &rows[share.clone()];
        let classes: Vec<i32> = own.iter().map(|&row| self.classes[row] as i32).collect();
        let classes = Tensor::from_data(TensorData::new(classes, [own.len()]), device);
        let tokens = ids[share.clone()].iter().map(|ids| ids.len() + 1).sum();
        (batch(&ids, model, device).rows(share), classes, tokens)
    }
}

/// Sentences with the marks that `model` reads.
pub(crate) fn batch(sentences: &[Vec<u32>], model: &AnyClassifier, device: &Device) -> SourceBatch {
    let vocabulary = model.vocabulary();
    match model.reads_start() {
        true => SourceBatch::with_start(sentences, &vocabulary, device),
        false => SourceBatch::new(sentences, &vocabulary, device),
    }
}

/// The labels in the metadata of a file.
#[derive(Serialize, Deserialize)]
struct Labels {
    labels: Vec<String>,
    max_tokens: usize,
}

impl Classification {
    /// Checks that `model` has room for sentences of as many tokens as the setting `key` allows.
    fn check_length(&self, model: &Model, key: &str, most: usize, check: &mut Check) {
        if let Some(room) = self.0.of(&*model.config).properties().longest {
            let why = ", model.context without two marks";
            check_lengths(&[(key, most)], room, why, check);
        }
    }
}

impl Task for Classification {
    const MODEL: &'static str = "a classifier of sentences";
    const DOES: &'static str = "classifies";
    const UNREAD: &'static [&'static [&'static str]] = &[
        OF_TRANSLATION,
        OF_IMAGES,
        &["data.text", "data.filter.max_ratio"],
    ];
    type Model = AnyClassifier;
    type Description = Description;
    type Data = Data;

    fn of(role: RoleOf<AnyClassifier>) -> Self {
        Self(role)
    }

    fn role(&self) -> RoleOf<AnyClassifier> {
        self.0
    }

    fn example(&self, recipe: &mut Recipe) {
        recipe.data.labelled = Some(LabelledData {
            train: Some(PathBuf::from("data/train.tsv")),
            valid: Some(PathBuf::from("data/dev.tsv")),
            ..LabelledData::default()
        });
    }

    fn check(&self, recipe: &Recipe, check: &mut Check) {
        check_files(&recipe.data, check);
        let most = recipe.data.filter.max_tokens;
        self.check_length(&recipe.model, "data.filter.max_tokens", most, check);
        if recipe.validation.measure == Some(Measure::Bleu) {
            let expected = "\"accuracy\" or \"loss\" for this kind of model";
            check.fail("validation.measure", "found \"bleu\"", expected);
        }
    }

    fn load(
        &self,
        recipe: &Recipe,
        former: Option<Description>,
        tokenizers: Option<TokenizerPair>,
    ) -> Result<(Data, Description), TrainError> {
        let (former, labels) = former
            .map(|former| (former.tokenizers, former.labels))
            .unzip();
        let known = known_tokenizers(recipe, former, tokenizers)?;
        let files = recipe.data.labelled.as_ref().ok_or(TrainError::NoData)?;
        let text = files.load(Split::Train)?.ok_or(TrainError::NoData)?;
        let tokenizers = match known {
            Some(known) => known,
            None => {
                let (size, lowercase) = (recipe.data.vocabulary.size, recipe.data.lowercase);
                let sentences = text.sentences().iter();
                TokenizerPair::joint(SubwordTokenizer::learn(sentences, size, lowercase)?)
            }
        };
        let labels = match labels {
            Some(labels) => labels,
            None => {
                let labels = text.labels();
                if let [only] = &labels[..] {
                    let problem = format!(
                        "all sentences have the label {only:?}; expected at least 2 labels"
                    );
                    let field = "data.labelled.train";
                    return Err(CorpusError::Setting { field, problem }.into());
                }
                labels
            }
        };
        let filter = recipe.data.filter.length_filter();
        let name = "the training text";
        let (train, filtered) = Encoded::new(&text, name, &tokenizers, &labels, recipe, filter)?;
        if let Some(test) = files.load(Split::Test)? {
            // What is wrong with it is told now, not after training.
            test.classes(&labels)?;
        }
        let validation = match files.load(Split::Valid)? {
            Some(text) => {
                let filter = recipe.data.filter.validation_filter();
                let name = "the validation text";
                Some(Encoded::new(&text, name, &tokenizers, &labels, recipe, filter)?.0)
            }
            None => None,
        };
        let data = Data {
            train,
            filtered,
            validation,
        };
        let description = Description {
            model: recipe.model.clone(),
            tokenizers,
            labels,
            max_tokens: recipe.data.filter.max_tokens,
        };
        Ok((data, description))
    }

    fn metadata(&self, description: &Description) -> Metadata {
        let labels = Labels {
            labels: description.labels.clone(),
            max_tokens: description.max_tokens,
        };
        Metadata::from([
            Header::entry(&description.model, &description.sizes()),
            tokenizers_entry(&description.tokenizers),
            entry(LABELS, &labels),
        ])
    }

    fn describe(
        &self,
        header: Header,
        metadata: &Metadata,
        name: &str,
    ) -> Result<Description, ModelFileError> {
        let sizes: ClassifierSizes = header.sizes(name)?;
        let tokenizers = tokenizers(metadata, name)?;
        let Labels { labels, max_tokens } = json_entry(metadata, LABELS, name)?;
        expect_table("source", tokenizers.source(), sizes.vocabulary, name)?;
        if labels.len() != sizes.classes {
            return Err(ModelFileError::Labels {
                name: name.to_owned(),
                labels: labels.len(),
                classes: sizes.classes,
            });
        }
        let mut check = Check::default();
        self.check_length(
            &header.model,
            "regard.labels.max_tokens",
            max_tokens,
            &mut check,
        );
        expect_no_problem(check, name)?;
        Ok(Description {
            model: header.model,
            tokenizers,
            labels,
            max_tokens,
        })
    }

    fn fingerprint(&self, data: &Data) -> Result<u64, TrainError> {
        Ok(data.train.fingerprint())
    }

    fn validation_fingerprint(&self, data: &Data) -> Result<u64, TrainError> {
        Ok(data.validation.as_ref().map_or(0, Encoded::fingerprint))
    }

    fn contents<'a>(&self, data: &'a Data, description: &'a Description) -> Contents<'a> {
        Contents {
            examples: "labelled sentences",
            tokenizers: Some(&description.tokenizers),
            batches: &data.train.batches,
            filtered: &data.filtered,
            validation: data.validation.as_ref().map_or(0, |set| set.classes.len()),
        }
    }

    fn loss(
        &self,
        data: &Data,
        model: &AnyClassifier,
        update: &Update<'_>,
    ) -> Result<BatchLoss, TrainError> {
        let settings = &update.recipe.training;
        let mut random = Random::new(&[settings.seed, update.step]);
        let mut noise = update.noise(random.next_u64());
        let share = update.share.clone();
        let (source, classes, tokens) =
            data.train.batch(update.rows, share, model, update.training);
        let classified = model.forward(&source, &mut noise);
        let smoothing = settings.label_smoothing as f32;
        let batch = bridge::cross_entropy_mean(classified.logits, classes, NO_CLASS, smoothing);
        let loss = match classified.penalty {
            Some(penalty) => batch.loss + penalty,
            None => batch.loss,
        };
        let predictions = update.share.len();
        Ok(BatchLoss {
            terms: vec![Term::new(loss, predictions)],
            negative_log_likelihood: batch.nll,
            predictions,
            tokens,
            baseline: None,
        })
    }

    fn validate(
        &self,
        data: &Data,
        description: &Description,
        model: &AnyClassifier,
        _recipe: &Recipe,
        device: &Device,
        ranks: &dyn Ranks,
    ) -> Result<Option<Verdict>, TrainError> {
        let Some(set) = &data.validation else {
            return Ok(None);
        };
        let labels = &description.labels;
        let judge = |rows: &Vec<usize>| {
            let (source, classes, _) = set.batch(rows, 0..rows.len(), model, device);
            let logits = model.forward(&source, &mut DropoutRng::none()).logits;
            let sum = bridge::cross_entropy_mean(logits.clone(), classes, NO_CLASS, 0.0).nll;
            let best: Tensor<1, Int> = logits.argmax(1).squeeze_dim(1);
            let best = best.into_data().iter::<i32>().collect();
            (sum, best)
        };
        let batches = set.batches.sorted();
        let judged: Vec<(f64, Vec<i32>)> = ranks.spread(&batches, |_, own| {
            Ok::<_, TrainError>(own.iter().map(judge).collect())
        })?;
        let mut found = vec![0; set.classes.len()];
        let mut sum = 0.0;
        for (rows, (loss, classes)) in batches.iter().zip(judged) {
            sum += loss;
            for (&row, class) in rows.iter().zip(classes) {
                found[row] = class as usize;
            }
        }
        let accuracy = Accuracy::of(&found, &set.classes, labels.len());
        let mut lines = vec![String::new(); set.lines];
        for (sentence, &class) in set.sentences.iter().zip(&found) {
            lines[sentence.line].clone_from(&labels[class]);
        }
        Ok(Some(Verdict {
            loss: sum / found.len().max(1) as f64,
            quality: Quality::Accuracy {
                accuracy: accuracy.share(),
                correct: accuracy.correct,
                sentences: accuracy.sentences,
            },
            lines,
        }))
    }

    fn look(
        &self,
        data: &Data,
        description: &Description,
        model: &AnyClassifier,
        row: usize,
        device: &Device,
    ) -> Result<Option<Trace>, TrainError> {
        let set = data.validation.as_ref();
        let Some(pair) = set.and_then(|set| set.sentences.get(row)) else {
            return Ok(None);
        };
        let classifier = SentenceClassifier::new(model.clone(), description.clone(), device);
        let ids = pair.source.clone();
        let found = classifier.classify_ids(&[ids], &[""]);
        Ok(Some(found.map_err(TrainError::look)?.swap_remove(0).trace))
    }
}

/// Checks that the data are files of labelled sentences and no others.
fn check_files(data: &recipe::Data, check: &mut Check) {
    let Some(LabelledData { train, valid, .. }) = &data.labelled else {
        check.fail(
            "data.labelled",
            "missing",
            "a section [data.labelled] with train and valid, which a classifier learns from",
        );
        return;
    };
    for (key, file) in [("train", train), ("valid", valid)] {
        if file.is_none() {
            let key = format!("data.labelled.{key}");
            check.fail(&key, "missing", "a file of labelled sentences");
        }
    }
}
