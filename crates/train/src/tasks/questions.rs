//! The task of questions about images: binary cross-entropy for each answer, accuracy.
//!
//! An example is an image with all of its questions, so that the network reads the image once for them. Scenes are drawn when an
//! update needs them; other images are brought to one size and kept as bytes as far as memory allows. Of questions of files that have more
//! words than `data.filter.max_tokens`, those of training are left out, and of others the first words are read, so that all are judged.
//!
//! ```text
//! s_a   min(people who gave answer a / 3, 1): 1 where an answer is known (Teney et al. 2018, section 3.6)
//! loss  mean over questions of -Σ_a (s_a ln p_a + (1 - s_a) ln(1 - p_a))
//! ```
//! With `training.guided_attention = λ` the loss has `λ` times the mean of [`guided_attention`] over the questions whose object is known:
//! the last look is pulled to its pixels.

mod asked;
mod judge;

use std::collections::HashMap;

use burn::tensor::{Device, Int, Tensor, TensorData};
use rayon::prelude::*;
use regard_config::{Check, SIZE};
use regard_evaluate::{CellMask, normalize_answer, vqa_target};
use regard_images::{Image, Normalize, data::Question};
use regard_models::{
    AnyQuestionAnswerer, QuestionBatch, QuestionSizes, RoleOf, SourceBatch, binary_cross_entropy,
    guided_attention,
};
use regard_nn::dropout::DropoutRng;
use regard_trace::Trace;
use serde::{Deserialize, Serialize};

pub use asked::{Asked, Shown};
pub use judge::{AnswerScores, Judged, Scores};

use super::{BatchLoss, Contents, Describe, OF_TRANSLATION, Task, Term, Update, Verdict};
use crate::{
    corpus::{Batches, CorpusError, FilterReport, Random},
    error::TrainError,
    image_classifier::Preparation,
    learner::events::Quality,
    model_file::{
        Header, Metadata, ModelFileError, entry, expect_no_problem, expect_table, json_entry,
        tokenizers, tokenizers_entry,
    },
    question_answerer::{Description, QuestionAnswerer, encode, words},
    ranks::Ranks,
    recipe::{Filter, Measure, Recipe, SceneData, Split},
    tokenizer::{SubwordTokenizer, TokenizerPair},
};
use judge::{cells, spoken_of};

const QUESTIONS: &str = "regard.questions";

/// Scenes whose questions have every word, and whose pixels tell the mean of all.
const SAMPLED: usize = 1_000;

/// Models that answer questions about images.
#[derive(Debug, Clone, Copy)]
pub struct VisualQuestions(RoleOf<AnyQuestionAnswerer>);

/// Images with questions.
#[derive(Debug)]
pub struct Data {
    train: Asked,
    batches: Batches,
    filtered: FilterReport,
    validation: Option<Asked>,
    reader: Reader,
}

/// The answers that at least `fewest` people gave, the most frequent first.
fn frequent_answers<'a>(
    questions: impl Iterator<Item = &'a Question>,
    fewest: usize,
) -> Vec<String> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for answer in questions.flat_map(|question| &question.answers) {
        *counts.entry(normalize_answer(answer)).or_default() += 1;
    }
    let mut frequent: Vec<(String, usize)> = counts.into_iter().collect();
    frequent.retain(|(answer, count)| *count >= fewest && !answer.is_empty());
    frequent.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    frequent.into_iter().map(|(answer, _)| answer).collect()
}

/// A batch as a model reads it.
struct Batch {
    images: Tensor<4>,
    questions: QuestionBatch,
    /// `s [questions, answers]`
    targets: Tensor<2>,
    tokens: usize,
}

/// How images, questions and answers become numbers.
#[derive(Debug)]
struct Reader {
    tokenizers: TokenizerPair,
    answers: HashMap<String, usize>,
    preparation: Preparation,
}

impl Reader {
    fn new(description: &Description) -> Self {
        Self {
            tokenizers: description.tokenizers.clone(),
            answers: description.answers.iter().cloned().zip(0..).collect(),
            preparation: description.preparation.clone(),
        }
    }

    fn batch(&self, shown: &[Shown], model: &AnyQuestionAnswerer, device: &Device) -> Batch {
        let images: Vec<&Image> = shown.iter().map(|shown| &shown.image).collect();
        let questions = || {
            let all = shown.iter().enumerate();
            all.flat_map(|(place, shown)| shown.questions.iter().map(move |one| (place, one)))
        };
        let tokenizer = self.tokenizers.source();
        let ids = questions().map(|(_, question)| encode(tokenizer, &question.phrase.text));
        let ids: Vec<Vec<u32>> = ids.collect();
        let answers = self.answers.len();
        let mut targets = vec![0.0; ids.len() * answers];
        for ((_, question), targets) in questions().zip(targets.chunks_exact_mut(answers)) {
            let mut counts: HashMap<usize, usize> = HashMap::new();
            for answer in &question.answers {
                if let Some(&answer) = self.answers.get(&normalize_answer(answer)) {
                    *counts.entry(answer).or_default() += 1;
                }
            }
            for (answer, given) in counts {
                targets[answer] = vqa_target(given, question.answers.len()) as f32;
            }
        }
        let targets = TensorData::new(targets, [ids.len(), answers]);
        Batch {
            images: self.preparation.tensor(&images, device),
            questions: QuestionBatch {
                words: SourceBatch::new(&ids, &model.vocabulary(), device),
                images: questions().map(|(place, _)| place).collect(),
            },
            targets: Tensor::from_data(targets, device),
            tokens: ids.iter().map(|ids| ids.len() + 1).sum(),
        }
    }
}

/// The mean of [`guided_attention`] over the questions about images whose object is known, by the weights `[questions, regions]` of
/// their last look.
fn guided(shown: &[Shown], weights: &Tensor<2>, grid: [usize; 2]) -> Term {
    let device = weights.device();
    let covers = shown.par_iter().flat_map_iter(|shown| {
        shown.questions.iter().map(|question| {
            let [pixels, _] = spoken_of(shown, question)?;
            Some(cells(shown, pixels, grid))
        })
    });
    let covers: Vec<Option<CellMask>> = covers.collect();
    let known = (0..).zip(&covers).filter(|(_, cover)| cover.is_some());
    let rows: Vec<i32> = known.map(|(row, _)| row).collect();
    let count = rows.len();
    if count == 0 {
        return Term::new(Tensor::zeros([1], &device), 0);
    }
    let cover = covers.iter().flatten().flat_map(CellMask::cover);
    let cover: Vec<f32> = cover.map(|&share| share as f32).collect();
    let cover = TensorData::new(cover, [count, grid[0] * grid[1]]);
    let rows = Tensor::<1, Int>::from_data(TensorData::new(rows, [count]), &device);
    let weights = weights.clone().select(0, rows);
    let loss = guided_attention(weights, Tensor::from_data(cover, &device));
    Term::new(loss / count as f64, count)
}

/// What the metadata of a file say of its answers and images, and of their data.
#[derive(Serialize, Deserialize)]
struct Stored {
    answers: Vec<String>,
    mean: Vec<f32>,
    deviation: Vec<f32>,
    /// Former files lack this and what follows.
    max_tokens: Option<usize>,
    scenes: Option<SceneData>,
    #[serde(default)]
    seed: u64,
}

impl Task for VisualQuestions {
    const MODEL: &'static str = "a model that answers questions about images";
    const DOES: &'static str = "answers questions about images";
    const UNREAD: &'static [&'static [&'static str]] = &[
        OF_TRANSLATION,
        &[
            "data.lowercase",
            "data.vocabulary",
            "data.tokenizer",
            "data.filter.max_words",
            "data.filter.max_ratio",
            "data.filter.long_lines",
            "data.labelled",
            "data.text",
            "data.images",
            "data.captions",
            "data.objects",
            "batch.tokens",
            "batch.pool",
            "training.label_smoothing",
        ],
    ];
    const ASKS: bool = true;
    type Model = AnyQuestionAnswerer;
    type Description = Description;
    type Data = Data;

    fn of(role: RoleOf<AnyQuestionAnswerer>) -> Self {
        Self(role)
    }

    fn role(&self) -> RoleOf<AnyQuestionAnswerer> {
        self.0
    }

    fn example(&self, recipe: &mut Recipe) {
        recipe.data.scenes = Some(SceneData::default());
    }

    fn check(&self, recipe: &Recipe, check: &mut Check) {
        match (&recipe.data.scenes, &recipe.data.questions) {
            (None, None) => check.fail(
                "data.scenes",
                "missing",
                "a section [data.scenes] or [data.questions], whose questions a model learns to answer",
            ),
            (Some(_), Some(_)) => check.fail(
                "data.questions",
                "set beside [data.scenes]",
                "one of the two",
            ),
            _ => {}
        }
        if recipe.data.scenes.is_some() {
            let most = recipe.data.filter.max_tokens;
            let usual = Filter::default().max_tokens;
            let expected =
                format!("{usual} with [data.scenes], whose questions are never left out");
            check.require(most == usual, "data.filter.max_tokens", most, &expected);
        }
        if recipe.training.guided_attention > 0.0 {
            let found = format!("found {}", recipe.training.guided_attention);
            let config = self.0.of(&*recipe.model.config);
            if recipe.data.scenes.is_none() {
                let expected = "0 without [data.scenes], whose objects are known";
                check.fail("training.guided_attention", found, expected);
            } else if !config.properties().looks {
                let expected = "0 for a model that sees no image";
                check.fail("training.guided_attention", found, expected);
            }
        }
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
        if let Some(settings) = &recipe.data.questions {
            // What is wrong with test data is told now, not after training.
            let test = settings.files(Split::Test);
            test.and_then(|files| files.read(settings.broken.policy()))
                .transpose()?;
        }
        let part = Asked::part(recipe, Split::Train)?;
        let (train, mut filtered) = part.ok_or(TrainError::NoData)?;
        let validation = match Asked::part(recipe, Split::Valid)? {
            Some((part, read)) => {
                filtered.broken += read.broken;
                Some(part)
            }
            None => None,
        };
        let (tokenizers, answers, preparation) = match former {
            Some(former) => (former.tokenizers, former.answers, former.preparation),
            None => learned(recipe, &train, tokenizers)?,
        };
        preparation.expect_form(train.form())?;
        let scenes = recipe.data.scenes.clone();
        let description = Description {
            model: recipe.model.clone(),
            tokenizers,
            answers,
            preparation,
            max_tokens: recipe.data.filter.max_tokens,
            scenes: scenes.map(|scenes| (scenes, recipe.training.seed)),
        };
        let data = Data {
            batches: Batches::of_lengths(vec![(1, 0); train.len()], recipe.batch.budget())?,
            train,
            filtered,
            validation,
            reader: Reader::new(&description),
        };
        Ok((data, description))
    }

    fn metadata(&self, description: &Description) -> Metadata {
        let normalize = &description.preparation.normalize;
        let (scenes, seed) = description.scenes.clone().unzip();
        let stored = Stored {
            answers: description.answers.clone(),
            mean: normalize.mean().to_vec(),
            deviation: normalize.deviation().to_vec(),
            max_tokens: Some(description.max_tokens),
            scenes,
            seed: seed.unwrap_or_default(),
        };
        Metadata::from([
            Header::entry(&description.model, &description.sizes()),
            tokenizers_entry(&description.tokenizers),
            entry(QUESTIONS, &stored),
        ])
    }

    fn describe(
        &self,
        header: Header,
        metadata: &Metadata,
        name: &str,
    ) -> Result<Description, ModelFileError> {
        let sizes: QuestionSizes = header.sizes(name)?;
        let tokenizers = tokenizers(metadata, name)?;
        let Stored {
            answers,
            mean,
            deviation,
            max_tokens,
            scenes,
            seed,
        } = json_entry(metadata, QUESTIONS, name)?;
        let mut check = Check::default();
        check.range("regard.questions.max_tokens", &max_tokens, SIZE);
        if let Some(scenes) = &scenes {
            check.table("data.scenes", scenes);
        }
        expect_no_problem(check, name)?;
        expect_table("source", tokenizers.source(), sizes.vocabulary, name)?;
        if answers.len() != sizes.answers {
            return Err(ModelFileError::Labels {
                name: name.to_owned(),
                labels: answers.len(),
                classes: sizes.answers,
            });
        }
        let stored = [mean, deviation];
        let preparation = Preparation::stored(QUESTIONS, sizes.size, sizes.channels, stored, name)?;
        Ok(Description {
            model: header.model,
            tokenizers,
            answers,
            preparation,
            max_tokens: max_tokens.unwrap_or(Filter::default().max_tokens),
            scenes: scenes.map(|scenes| (scenes, seed)),
        })
    }

    fn fingerprint(&self, data: &Data) -> Result<u64, TrainError> {
        data.train.fingerprint()
    }

    fn validation_fingerprint(&self, data: &Data) -> Result<u64, TrainError> {
        data.validation.as_ref().map_or(Ok(0), Asked::fingerprint)
    }

    fn contents<'a>(&self, data: &'a Data, description: &'a Description) -> Contents<'a> {
        Contents {
            examples: "images with questions",
            tokenizers: Some(&description.tokenizers),
            batches: &data.batches,
            filtered: &data.filtered,
            validation: data.validation.as_ref().map_or(0, Asked::len),
        }
    }

    fn ahead(&self, data: &Data, rows: &[usize]) -> Result<(), TrainError> {
        match &data.train {
            Asked::Scenes(_) => Ok(()),
            Asked::Images { images, .. } => Ok(images.ahead(rows)?),
        }
    }

    fn loss(
        &self,
        data: &Data,
        model: &AnyQuestionAnswerer,
        update: &Update<'_>,
    ) -> Result<BatchLoss, TrainError> {
        let mut random = Random::new(&[update.recipe.training.seed, update.step]);
        let own = data.train.rows(update.own_rows())?;
        // What is dropped are numbers of questions, not of images.
        let count = |rows: &[usize]| data.train.count(rows);
        let first = count(&update.rows[..update.share.start]);
        let end = first + own.iter().map(|one| one.questions.len()).sum::<usize>();
        let all = end + count(&update.rows[update.share.end..]);
        let mut noise = DropoutRng::seeded(random.next_u64()).of_rows(first..end, all);
        let batch = data.reader.batch(&own, model, update.training);
        let questions = batch.questions.images.len();
        let found = model.forward(batch.images, &batch.questions, &mut noise);
        let loss = binary_cross_entropy(found.logits, batch.targets);
        let mut terms = vec![Term::new(loss.clone() / questions.max(1) as f64, questions)];
        let weight = update.recipe.training.guided_attention;
        if let (true, Some(last)) = (weight > 0.0, found.looks.last()) {
            let Term { mean, count } = guided(&own, last, found.grid);
            terms.push(Term {
                mean: mean * weight,
                count,
            });
        }
        Ok(BatchLoss {
            negative_log_likelihood: f64::from(loss.into_scalar::<f32>()),
            terms,
            predictions: questions,
            tokens: batch.tokens,
            baseline: None,
        })
    }

    fn validate(
        &self,
        data: &Data,
        description: &Description,
        model: &AnyQuestionAnswerer,
        _recipe: &Recipe,
        device: &Device,
        ranks: &dyn Ranks,
    ) -> Result<Option<Verdict>, TrainError> {
        let Some(set) = data.validation.as_ref().filter(|set| !set.is_empty()) else {
            return Ok(None);
        };
        let Judged {
            scores,
            loss,
            lines,
            ..
        } = set.judge(description, model, device, ranks)?;
        let AnswerScores { all, kinds } = scores;
        let looking = all.looking;
        Ok(Some(Verdict {
            loss: loss / all.questions.max(1) as f64,
            quality: Quality::Answers {
                accuracy: all.accuracy(),
                questions: all.questions,
                kinds: kinds
                    .into_iter()
                    .map(|(kind, scores)| (kind, scores.accuracy()))
                    .collect(),
                pointing: (looking.looks > 0).then(|| looking.pointing()),
            },
            lines,
        }))
    }

    fn look(
        &self,
        data: &Data,
        description: &Description,
        model: &AnyQuestionAnswerer,
        row: usize,
        device: &Device,
    ) -> Result<Option<Trace>, TrainError> {
        let Some(set) = data.validation.as_ref().filter(|set| row < set.len()) else {
            return Ok(None);
        };
        let shown = set.get(row)?;
        let questions = shown.questions.iter();
        let questions: Vec<(usize, &str)> =
            questions.map(|one| (0, one.phrase.text.as_str())).collect();
        let answerer = QuestionAnswerer::new(model.clone(), description.clone(), device);
        let answered = answerer.ask(&[shown.image], &questions);
        let answered = answered.map_err(TrainError::look)?;
        // The looks of all questions about the image are maps of one trace.
        let maps = answered.into_iter().flat_map(|(_, trace)| trace.maps);
        let empty = Trace::new(description.model.kind, "", "");
        Ok(Some(maps.fold(empty, Trace::with_map)))
    }
}

/// Words, unless those of a model to begin with are `known`, answers and preparation, from the training images.
fn learned(
    recipe: &Recipe,
    train: &Asked,
    known: Option<TokenizerPair>,
) -> Result<(TokenizerPair, Vec<String>, Preparation), TrainError> {
    let some: Vec<Shown>;
    let (questions, form, normalize): (Vec<&Question>, _, _) = match train {
        Asked::Scenes(set) => {
            let rows: Vec<usize> = (0..set.len().min(SAMPLED)).collect();
            some = train.rows(&rows)?;
            let config = set.config();
            (
                some.iter().flat_map(|shown| &shown.questions).collect(),
                Some([3, config.height, config.width]),
                Normalize::of(some.iter().map(|shown| &shown.image))?,
            )
        }
        Asked::Images { images, questions } => (
            questions.iter().flatten().collect(),
            images.form(),
            images.normalize(usize::MAX)?,
        ),
    };
    let [_, height, width] = form.ok_or(TrainError::NoData)?;
    let tokenizers = match known {
        Some(known) => known,
        None => {
            let questions = questions
                .iter()
                .map(|question| words(&question.phrase.text));
            TokenizerPair::joint(SubwordTokenizer::learn_words(questions, false)?)
        }
    };
    let data = &recipe.data;
    let answers = match (train, &data.questions) {
        (Asked::Scenes(set), _) => set.config().answers(),
        (_, Some(settings)) => frequent_answers(questions.into_iter(), settings.min_answers),
        _ => vec![],
    };
    if answers.len() < 2 {
        let problem = format!(
            "the number of answers is {}; expected at least 2 that so many people gave: choose a lower number",
            answers.len()
        );
        let field = "data.questions.min_answers";
        return Err(CorpusError::Setting { field, problem }.into());
    }
    let preparation = Preparation::new([height, width], normalize);
    Ok((tokenizers, answers, preparation))
}
