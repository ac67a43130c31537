//! The task of translation: sentence pairs, teacher forcing, BLEU.

use std::path::PathBuf;

use burn::{module::Module, tensor::Device};
use regard_config::{Check, ConfigError, Place};
use regard_evaluate::Bleu;
use regard_models::{AnyGenerator, RoleOf, SourceBatch, TargetBatch, Vocabularies};
use regard_trace::Trace;

use super::{
    BatchLoss, Contents, Describe, OF_IMAGES, Task, Term, Update, Verdict, check_lengths,
    fingerprint, known_tokenizers, reward,
};
use crate::{
    corpus::{Batches, CorpusError, EncodedPair, FilterReport, ParallelText, Random},
    error::TrainError,
    familiarity::Familiarity,
    learner::{events::Quality, sampling},
    model_file::{
        Header, Metadata, ModelFileError, entry, expect_table, json_entry, tokenizers,
        tokenizers_entry,
    },
    ranks::Ranks,
    recipe::{self, LongSource, Measure, Model, Recipe, Split},
    tokenizer::TokenizerPair,
    translator::{Description, Languages, LineError, Translator, teacher_forced},
};

const TRANSLATE: &str = "regard.translate";
const LANGUAGES: &str = "regard.languages";
const FAMILIARITY: &str = "regard.familiarity";

/// Models that translate.
#[derive(Debug, Clone, Copy)]
pub struct Translation(RoleOf<AnyGenerator>);

/// Sentence pairs.
#[derive(Debug)]
pub struct Data {
    pairs: Vec<EncodedPair>,
    /// To cut the pairs anew with `data.vocabulary.dropout`.
    tokenizers: TokenizerPair,
    batches: Batches,
    filtered: FilterReport,
    validation: Option<ValidationSet>,
}

#[derive(Debug)]
struct ValidationSet {
    text: ParallelText,
    /// The pairs as ids.
    pairs: Vec<EncodedPair>,
    batches: Batches,
}

impl Translation {
    /// Checks that `model` has room for the longest source and the longest translation that `settings` allow. Errors are said to be at
    /// `place`. [`Registry::task_of`](crate::Registry::task_of) gives the task of a model.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for `translate.max_source_tokens` or `translate.max_length.absolute`.
    ///
    /// # Panics
    /// If the model is of another architecture than this task.
    pub fn check_settings(
        &self,
        model: &Model,
        settings: &recipe::Translation,
        place: Place,
    ) -> Result<(), ConfigError> {
        let mut check = Check::default();
        self.check_room(model, &lengths(settings), &mut check);
        match check.into_first() {
            Some(problem) => Err(problem.at(place)),
            None => Ok(()),
        }
    }

    /// Checks that `model` has room for texts as long as these settings allow, to which a mark is added.
    fn check_room(&self, model: &Model, settings: &[(&str, usize)], check: &mut Check) {
        if let Some(room) = self.0.of(&*model.config).properties().longest {
            let why = format!(
                ": this model has room for {room} tokens (model.max_length), one of them a mark"
            );
            check_lengths(settings, room.saturating_sub(1), &why, check);
        }
    }
}

/// The longest source and the longest translation that settings allow, by their keys.
fn lengths(settings: &recipe::Translation) -> [(&'static str, usize); 2] {
    [
        ("translate.max_source_tokens", settings.max_source_tokens),
        (
            "translate.max_length.absolute",
            settings.max_length.absolute,
        ),
    ]
}

impl Task for Translation {
    const MODEL: &'static str = "a model that translates";
    const DOES: &'static str = "translates";
    const UNREAD: &'static [&'static [&'static str]] =
        &[OF_IMAGES, &["data.labelled", "data.text"]];
    const PERPLEXITY: bool = true;
    type Model = AnyGenerator;
    type Description = Description;
    type Data = Data;

    fn of(role: RoleOf<AnyGenerator>) -> Self {
        Self(role)
    }

    fn role(&self) -> RoleOf<AnyGenerator> {
        self.0
    }

    fn example(&self, recipe: &mut Recipe) {
        let data = &mut recipe.data;
        data.train_source = Some(PathBuf::from("data/train.en.gz"));
        data.train_target = Some(PathBuf::from("data/train.de.gz"));
        data.valid_source = Some(PathBuf::from("data/val.en.gz"));
        data.valid_target = Some(PathBuf::from("data/val.de.gz"));
    }

    fn check(&self, recipe: &Recipe, check: &mut Check) {
        check_files(&recipe.data, check);
        let data = &recipe.data;
        let properties = self.0.of(&*recipe.model.config).properties();
        let apart = match (&data.synthetic, &data.tokenizer) {
            (None, None) if !data.vocabulary.joint => Some("data.vocabulary.joint = false"),
            (None, Some(_)) if data.target_tokenizer.is_some() => Some("data.target_tokenizer"),
            _ => None,
        };
        if let (true, Some(apart)) = (properties.needs_joint_vocabulary, apart) {
            let expected = "a joint vocabulary, or \"none\" or \"target\"";
            check.fail("model.tie", format!("found \"all\" with {apart}"), expected);
        }
        let trained = [("data.filter.max_tokens", data.filter.max_tokens)];
        self.check_room(&recipe.model, &trained, check);
        self.check_room(&recipe.model, &lengths(&recipe.translate), check);
        if recipe.validation.measure == Some(Measure::Accuracy) {
            let expected = "\"bleu\" or \"loss\" for this kind of model";
            check.fail("validation.measure", "found \"accuracy\"", expected);
        }
    }

    fn load(
        &self,
        recipe: &Recipe,
        former: Option<Description>,
        tokenizers: Option<TokenizerPair>,
    ) -> Result<(Data, Description), TrainError> {
        let former = former.map(|former| former.tokenizers);
        let known = known_tokenizers(recipe, former, tokenizers)?;
        let seed = recipe.training.seed;
        let train = recipe
            .data
            .load(Split::Train, seed)?
            .ok_or(TrainError::NoData)?;
        // What is wrong with test data is told now, not after training.
        recipe.data.load(Split::Test, seed)?;
        let tokenizers = match known {
            Some(known) => known,
            None => recipe.data.tokenizers(&train.text)?,
        };
        let filter = recipe.data.filter.length_filter();
        let named = |text| move |error: CorpusError| error.of(text);
        let (pairs, filtered) = filter
            .apply(&train.text, &tokenizers)
            .map_err(named("the training text"))?;
        let batches = Batches::new(&pairs, recipe.batch.budget())?;
        let validation = match recipe.data.load(Split::Valid, seed)? {
            Some(loaded) => {
                let (pairs, _) = recipe
                    .data
                    .filter
                    .validation_filter()
                    .apply(&loaded.text, &tokenizers)
                    .map_err(named("the validation text"))?;
                let batches = Batches::new(&pairs, recipe.batch.budget())?;
                Some(ValidationSet {
                    text: loaded.text,
                    pairs,
                    batches,
                })
            }
            None => None,
        };
        let data = Data {
            pairs,
            tokenizers: tokenizers.clone(),
            batches,
            filtered,
            validation,
        };
        let description = Description {
            model: recipe.model.clone(),
            tokenizers,
            translate: recipe.translate.clone(),
            languages: Languages {
                source: recipe.data.source_language.clone(),
                target: recipe.data.target_language.clone(),
            },
            familiarity: None,
        };
        Ok((data, description))
    }

    fn metadata(&self, description: &Description) -> Metadata {
        let sizes = description.sizes();
        let mut metadata = Metadata::from([
            Header::entry(&description.model, &sizes),
            tokenizers_entry(&description.tokenizers),
            entry(TRANSLATE, &description.translate),
            entry(LANGUAGES, &description.languages),
        ]);
        let familiarity = description.familiarity.as_ref();
        metadata.extend(familiarity.map(|of| entry(FAMILIARITY, of)));
        metadata
    }

    fn describe(
        &self,
        header: Header,
        metadata: &Metadata,
        name: &str,
    ) -> Result<Description, ModelFileError> {
        let sizes: Vocabularies = header.sizes(name)?;
        let tokenizers = tokenizers(metadata, name)?;
        expect_table("source", tokenizers.source(), sizes.source, name)?;
        expect_table("target", tokenizers.target(), sizes.target, name)?;
        let translate: recipe::Translation = json_entry(metadata, TRANSLATE, name)?;
        let place = Place::Name {
            name: name.to_owned(),
        };
        translate
            .check_file(name)
            .and_then(|()| self.check_settings(&header.model, &translate, place))
            .map_err(|error| ModelFileError::Settings(Box::new(error)))?;
        let familiarity: Option<Familiarity> = match metadata.contains_key(FAMILIARITY) {
            true => Some(json_entry(metadata, FAMILIARITY, name)?),
            false => None,
        };
        let pieces = tokenizers.source().vocabulary_size();
        if let Some(problem) = familiarity.as_ref().and_then(|of| of.problem(pieces)) {
            return Err(ModelFileError::Familiarity {
                name: name.to_owned(),
                problem,
            });
        }
        Ok(Description {
            model: header.model,
            tokenizers,
            translate,
            languages: json_entry(metadata, LANGUAGES, name)?,
            familiarity,
        })
    }

    fn fingerprint(&self, data: &Data) -> Result<u64, TrainError> {
        Ok(pairs_fingerprint(&data.pairs))
    }

    fn validation_fingerprint(&self, data: &Data) -> Result<u64, TrainError> {
        let pairs = data.validation.as_ref().map_or(&[][..], |set| &set.pairs);
        Ok(pairs_fingerprint(pairs))
    }

    fn contents<'a>(&self, data: &'a Data, description: &'a Description) -> Contents<'a> {
        Contents {
            examples: "sentence pairs",
            tokenizers: Some(&description.tokenizers),
            batches: &data.batches,
            filtered: &data.filtered,
            validation: data.validation.as_ref().map_or(0, |set| set.pairs.len()),
        }
    }

    fn loss(
        &self,
        data: &Data,
        model: &AnyGenerator,
        update: &Update<'_>,
    ) -> Result<BatchLoss, TrainError> {
        let settings = &update.recipe.training;
        let vocabularies = model.vocabularies();
        let mut random = Random::new(&[settings.seed, update.step]);
        let mut noise = update.noise(random.next_u64());
        // Also the rows of other processes are cut anew, as the draws follow each other.
        let (mut sources, mut targets): (Vec<_>, Vec<_>) = update
            .rows
            .iter()
            .map(|&i| (data.pairs[i].source.clone(), data.pairs[i].target.clone()))
            .unzip();
        let dropout = update.recipe.data.vocabulary.dropout;
        if dropout > 0.0 {
            let longest = update.recipe.data.filter.max_tokens;
            let sides = [
                (&mut sources, data.tokenizers.source()),
                (&mut targets, data.tokenizers.target()),
            ];
            for (ids, tokenizer) in sides {
                for ids in ids {
                    let again = tokenizer.encode_again(ids, dropout, &mut random);
                    if again.len() <= longest {
                        *ids = again;
                    }
                }
            }
        }
        let share = &update.share;
        let source_on =
            |device| SourceBatch::new(&sources, &vocabularies.source, device).rows(share.clone());
        let target = TargetBatch::new(&targets, &vocabularies.target, update.training);
        let mut target = target.rows(share.clone());
        if let Some(sampled) = &settings.scheduled_sampling {
            target = sampling::mix(
                &model.valid(),
                &source_on(update.device),
                target,
                sampling::probability(sampled, update.step),
                &mut random,
                update,
            );
        }
        let source = source_on(update.training);
        let scored = model.forward(&source, &target, &mut noise);
        let reinforced = scored.reinforced(&target, update.baseline);
        let batch = scored.cross_entropy(target.outputs, settings.label_smoothing);
        let (reward, baseline) = reward(reinforced, share.len());
        let loss = Term::new(batch.loss, batch.tokens);
        Ok(BatchLoss {
            terms: [loss].into_iter().chain(reward).collect(),
            negative_log_likelihood: batch.nll,
            predictions: batch.tokens,
            tokens: batch.tokens,
            baseline,
        })
    }

    fn validate(
        &self,
        data: &Data,
        description: &Description,
        model: &AnyGenerator,
        recipe: &Recipe,
        device: &Device,
        ranks: &dyn Ranks,
    ) -> Result<Option<Verdict>, TrainError> {
        let Some(set) = &data.validation else {
            return Ok(None);
        };
        let settings = &recipe.validation;
        let (loss, _) = teacher_forced(model, &set.pairs, &set.batches, device, ranks)?;
        let translator = Translator::new(model.clone(), description.clone(), device).looking(false);
        let search = recipe::Translation {
            beam: settings.beam,
            n_best: 1,
            batch_sentences: settings.batch_sentences,
            // A long line is no reason to end a training.
            long_lines: LongSource::Cut,
            ..description.translate.clone()
        };
        let count = settings
            .max_sentences
            .unwrap_or(usize::MAX)
            .min(set.text.len());
        let translations = ranks.spread(&set.text.source()[..count], |begin, own| {
            let translated = translator.translate(own, &search);
            let translated = translated.map_err(|error| error.after(begin))?.into_iter();
            let best = translated.map(|mut line| line.n_best.swap_remove(0).text);
            Ok::<Vec<String>, TrainError>(best.collect())
        })?;
        let metric = Bleu {
            tokenizer: settings.tokenizer,
            lowercase: settings.lowercase,
            ..Bleu::default()
        };
        let score = metric.corpus(&translations, &[&set.text.target()[..count]])?;
        Ok(Some(Verdict {
            loss,
            quality: Quality::Bleu {
                bleu: score.score,
                signature: score.signature.to_string(),
            },
            lines: translations,
        }))
    }

    fn look(
        &self,
        data: &Data,
        description: &Description,
        model: &AnyGenerator,
        row: usize,
        device: &Device,
    ) -> Result<Option<Trace>, TrainError> {
        let set = data.validation.as_ref();
        let line = set.and_then(|set| set.text.source().get(row));
        let Some(line) = line else { return Ok(None) };
        let translator = Translator::new(model.clone(), description.clone(), device);
        let greedy = recipe::Translation {
            beam: 1,
            n_best: 1,
            long_lines: LongSource::Cut,
            ..description.translate.clone()
        };
        match translator.translate(&[line], &greedy) {
            Ok(mut found) => Ok(Some(found.swap_remove(0).n_best.swap_remove(0).trace)),
            // Nothing of it is measured.
            Err(LineError::Of { source, .. })
                if matches!(*source, LineError::TooManyWeights { .. }) =>
            {
                Ok(Some(Trace::new(description.model.kind, "", "")))
            }
            Err(error) => Err(TrainError::look(error)),
        }
    }
}

fn pairs_fingerprint(pairs: &[EncodedPair]) -> u64 {
    let sides = pairs.iter().flat_map(|pair| [&pair.source, &pair.target]);
    fingerprint(sides.map(Vec::as_slice))
}

/// Checks that there are files for both sides of every part, or a synthetic task.
fn check_files(data: &recipe::Data, check: &mut Check) {
    let files = [
        ("train", &data.train_source, &data.train_target),
        ("valid", &data.valid_source, &data.valid_target),
        ("test", &data.test_source, &data.test_target),
    ];
    for (part, source, target) in files {
        let (source_key, target_key) =
            (format!("data.{part}_source"), format!("data.{part}_target"));
        match (source, target, &data.synthetic) {
            (None, None, _) | (Some(_), Some(_), None) => {}
            (Some(_), None, None) => check.fail(
                &target_key,
                format!("missing, though {source_key} is set"),
                "both sides or none",
            ),
            (None, Some(_), None) => check.fail(
                &source_key,
                format!("missing, though {target_key} is set"),
                "both sides or none",
            ),
            (Some(_), _, Some(_)) => check.fail(
                &source_key,
                "set together with data.synthetic",
                "files or a synthetic task, not both",
            ),
            (None, Some(_), Some(_)) => check.fail(
                &target_key,
                "set together with data.synthetic",
                "files or a synthetic task, not both",
            ),
        }
        let needed = part != "test" && data.synthetic.is_none();
        if needed && source.is_none() && target.is_none() {
            check.fail(
                &source_key,
                "missing",
                "a file for each side, or a section [data.synthetic]",
            );
        }
    }
    let learned = data.tokenizer.is_none() && data.synthetic.is_none();
    if data.vocabulary.dropout > 0.0 && !learned {
        let found = format!("found {}", data.vocabulary.dropout);
        let expected = "0.0 without sub-words that are learned here";
        check.fail("data.vocabulary.dropout", found, expected);
    }
    if data.tokenizer.is_some() && data.synthetic.is_some() {
        let expected = "no such section: the symbols are the vocabulary";
        check.fail(
            "data.tokenizer",
            "set together with data.synthetic",
            expected,
        );
    }
}
