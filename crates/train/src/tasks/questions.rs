//! The task of questions about images: binary cross-entropy for each answer, accuracy.
//!
//! An example is an image with all of its questions, so that the network reads the image once for them. Scenes are drawn when an
//! update needs them; other images are decoded once, brought to one size and kept as bytes.
//!
//! ```text
//! s_a   min(people who gave answer a / 3, 1): 1 where an answer is known (Teney et al. 2018, section 3.6)
//! loss  mean over questions of -Σ_a (s_a ln p_a + (1 - s_a) ln(1 - p_a))
//! ```
//! With `training.guided_attention = λ` the loss has `λ` times the mean of [`guided_attention`] over the questions whose object is known:
//! the last look is pulled to its pixels.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
};

use burn::tensor::{Device, Int, Tensor, TensorData};
use rayon::prelude::*;
use regard_config::Check;
use regard_evaluate::{CellMask, Looking, normalize_answer, vqa_accuracy, vqa_target};
use regard_images::{
    Bounds, Decoding, Image, Mask, Normalize,
    data::{Dataset, Question},
};
use regard_models::{
    AnyQuestionAnswerer, QuestionBatch, QuestionLook, QuestionSizes, RoleOf, SourceBatch,
    binary_cross_entropy, guided_attention,
};
use regard_nn::dropout::DropoutRng;
use regard_trace::Trace;
use serde::{Deserialize, Serialize};

use super::{
    BatchLoss, Contents, Describe, Fingerprint, OF_TRANSLATION, Task, Term, Update, Verdict,
};
use crate::{
    corpus::{Batches, CorpusError, FilterReport, Random},
    error::TrainError,
    image_classifier::{Form, Preparation},
    learner::events::Quality,
    model_file::{
        Header, Metadata, ModelFileError, entry, expect_table, json_entry, tokenizers,
        tokenizers_entry,
    },
    question_answerer::{Description, QuestionAnswerer, best, encode, words},
    ranks::Ranks,
    recipe::{Measure, QuestionData, Recipe, SceneData, SceneSet, Split},
    tokenizer::{SubwordTokenizer, TokenizerPair},
};

const QUESTIONS: &str = "regard.questions";

/// Images that are judged together.
const JUDGED: usize = 50;

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

/// The images of a part.
#[derive(Debug)]
pub enum Asked {
    /// Drawn when they are asked for.
    Scenes(SceneSet),
    /// In memory, of one size.
    Images(Vec<Shown>),
}

/// An image with its questions.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The image.
    pub image: Image,
    /// What is asked of it.
    pub questions: Vec<Question>,
    /// The pixels of each object that questions speak of, where they are known.
    pub masks: Vec<Mask>,
}

impl Asked {
    /// How many images there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Scenes(set) => set.len(),
            Self::Images(images) => images.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The image of this number, and its questions.
    pub fn get(&self, index: usize) -> Shown {
        self.shown(index).into_owned()
    }

    fn shown(&self, index: usize) -> Cow<'_, Shown> {
        match self {
            Self::Scenes(set) => {
                let scene = set.scene(index);
                let scene = scene.expect("the configuration of scenes was checked");
                Cow::Owned(Shown {
                    image: scene.image,
                    questions: scene.questions,
                    masks: scene.masks,
                })
            }
            Self::Images(images) => Cow::Borrowed(&images[index]),
        }
    }

    /// What the images are like.
    fn form(&self) -> Form {
        match self {
            Self::Scenes(scenes) => Form::of_scenes(scenes),
            Self::Images(images) => {
                Form::of("data.questions", images.first().map(|shown| &shown.image))
            }
        }
    }

    /// A hash of images, questions and answers.
    fn fingerprint(&self) -> u64 {
        // Scenes follow from the recipe: the first ones tell others from them.
        let images = match self {
            Asked::Scenes(set) => set.len().min(16),
            Asked::Images(images) => images.len(),
        };
        let mut hash = Fingerprint::new();
        for index in 0..images {
            let shown = self.shown(index);
            for question in &shown.questions {
                hash.bytes(question.phrase.text.as_bytes());
            }
            for question in &shown.questions {
                hash.bytes(question.answers.join("\n").as_bytes());
            }
            hash.bytes(shown.image.pixels());
        }
        hash.list(1, [self.len() as u32].into_iter());
        hash.0
    }

    fn rows(&self, rows: &[usize]) -> Vec<Shown> {
        rows.par_iter().map(|&row| self.get(row)).collect()
    }

    /// Reads a part of the data that a recipe names, and counts the images that were left out; `None` if it names none.
    ///
    /// # Errors
    /// Those of [`QuestionFiles::read`](crate::recipe::QuestionFiles::read) and of images; [`TrainError::NoImages`].
    pub fn read(recipe: &Recipe, split: Split) -> Result<Option<(Self, usize)>, TrainError> {
        let data = &recipe.data;
        if let Some(scenes) = &data.scenes {
            let part = Self::Scenes(scenes.part(split, recipe.training.seed));
            return Ok(Some((part, 0)));
        }
        let settings = data.questions.as_ref().ok_or(TrainError::NoData)?;
        let broken = settings.broken.policy();
        let files = settings.files(split);
        let Some(dataset) = files.and_then(|files| files.read(broken)) else {
            return Ok(None);
        };
        let (images, skipped) = decoded(dataset?, settings)?;
        if images.is_empty() {
            return Err(TrainError::NoImages {
                key: match split {
                    Split::Train => "data.questions.train",
                    Split::Valid => "data.questions.valid",
                    Split::Test => "data.questions.test",
                },
                broken: skipped,
                expected: "images with questions, which can be read",
            });
        }
        Ok(Some((Self::Images(images), skipped)))
    }
}

/// The images of a data set in the recipe's size, and the number of those that were left out.
fn decoded(dataset: Dataset, settings: &QuestionData) -> Result<(Vec<Shown>, usize), TrainError> {
    let left_out = dataset.skipped.len();
    let examples = dataset.examples;
    let decoding = Decoding {
        channels: regard_images::Channels::Colour,
        ..Decoding::default()
    };
    let (count, size) = (examples.len(), settings.size);
    let (images, broken) = super::decoded(count, settings.broken.policy(), move |index| {
        let example = &examples[index];
        Ok(Shown {
            image: example.image(&decoding)?.fitted(size, size)?,
            questions: example.questions.clone(),
            masks: vec![],
        })
    })?;
    Ok((images, left_out + broken))
}

/// The answers that at least `fewest` people gave, the most frequent first.
fn frequent_answers(images: &[Shown], fewest: usize) -> Vec<String> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    let questions = images.iter().flat_map(|shown| &shown.questions);
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
        let images: Vec<Image> = shown.iter().map(|shown| shown.image.clone()).collect();
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

/// How good answers are.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Scores {
    accuracy: f64,
    /// Questions.
    pub questions: usize,
    /// Whether the last look was at the pixels of what is asked for, where that is known.
    pub looking: Looking,
    /// The same, with the box of an object in place of its pixels: a digit is more than its strokes.
    pub looking_at_boxes: Looking,
}

/// How good answers are, all together and by kind of question.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct AnswerScores {
    /// Of all questions.
    pub all: Scores,
    /// Of the questions of each kind.
    pub kinds: BTreeMap<String, Scores>,
}

impl Scores {
    fn with(self, other: Self) -> Self {
        Self {
            accuracy: self.accuracy + other.accuracy,
            questions: self.questions + other.questions,
            looking: self.looking.with(other.looking),
            looking_at_boxes: self.looking_at_boxes.with(other.looking_at_boxes),
        }
    }

    /// The mean accuracy, 0 to 1; 0 if there is no question.
    pub fn accuracy(&self) -> f64 {
        self.accuracy / self.questions.max(1) as f64
    }
}

impl AnswerScores {
    /// Counts an answer to `question`, for which the model looked as `weights` over `grid` say at `shown`. Weights that are no finite
    /// numbers are no look: the loss tells of them.
    fn add(&mut self, shown: &Shown, question: &Question, answer: &str, look: Option<Region<'_>>) {
        let accuracy = vqa_accuracy(answer, &question.answers);
        let look = look.filter(|look| look.weights.iter().all(|weight| weight.is_finite()));
        let seen = look.and_then(|look| {
            let cells = spoken_of(shown, question)?.map(|object| cells(shown, object, look.grid));
            Some((look.weights, cells))
        });
        let of_kind = self.kinds.entry(question.kind.clone()).or_default();
        for scores in [&mut self.all, of_kind] {
            scores.accuracy += accuracy;
            scores.questions += 1;
            if let Some((weights, [pixels, boxes])) = &seen {
                let added = scores.looking.add(weights, pixels);
                let added = added.and_then(|()| scores.looking_at_boxes.add(weights, boxes));
                added.expect("the grid is that of the model");
            }
        }
    }
}

/// Where a model looked.
struct Region<'a> {
    weights: &'a [f32],
    grid: [usize; 2],
}

/// The pixels that a question asks for, and those of the boxes around: of "how many" and "is there" those of every object that it
/// speaks of, of others those of the one that is asked for. `None` where nothing is known, or nothing is there.
fn spoken_of(shown: &Shown, question: &Question) -> Option<[Vec<bool>; 2]> {
    let several = matches!(question.kind.as_str(), "how many" | "is there");
    let objects = match several {
        true => question.objects.as_slice(),
        false => question.objects.get(..1)?,
    };
    let masks = objects.iter().filter_map(|&object| shown.masks.get(object));
    let masks: Vec<&Mask> = masks.collect();
    let first = masks.first()?;
    let boxes: Vec<Bounds> = masks.iter().filter_map(|mask| mask.bounds()).collect();
    let places = (0..first.height()).flat_map(|y| (0..first.width()).map(move |x| (y, x)));
    let pixels = places
        .clone()
        .map(|(y, x)| masks.iter().any(|mask| mask.get(y, x)));
    let boxed = places.map(|(y, x)| boxes.iter().any(|bounds| bounds.covers(y, x)));
    Some([pixels.collect(), boxed.collect()])
}

/// The cells of a `grid` over an image in which an object of the image lies.
fn cells(shown: &Shown, object: Vec<bool>, grid: [usize; 2]) -> CellMask {
    let size = [shown.image.height(), shown.image.width()];
    CellMask::new(size, object, grid)
        .expect("the mask is that of the image, whose pixels are finer than the grid")
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

/// What the metadata of a file say of its answers and images.
#[derive(Serialize, Deserialize)]
struct Stored {
    answers: Vec<String>,
    mean: Vec<f32>,
    deviation: Vec<f32>,
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
            "data.filter",
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
        let part = Asked::read(recipe, Split::Train)?;
        let (train, broken) = part.ok_or(TrainError::NoData)?;
        let (validation, broken) = match Asked::read(recipe, Split::Valid)? {
            Some((part, more)) => (Some(part), broken + more),
            None => (None, broken),
        };
        let description = match former {
            Some(former) => Description {
                model: recipe.model.clone(),
                ..former
            },
            None => described(recipe, &train, tokenizers)?,
        };
        description.preparation.expect_form(train.form())?;
        let filtered = FilterReport {
            kept: train.len(),
            broken,
            ..FilterReport::default()
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
        let stored = Stored {
            answers: description.answers.clone(),
            mean: normalize.mean().to_vec(),
            deviation: normalize.deviation().to_vec(),
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
        } = json_entry(metadata, QUESTIONS, name)?;
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
        })
    }

    fn fingerprint(&self, data: &Data) -> u64 {
        data.train.fingerprint()
    }

    fn validation_fingerprint(&self, data: &Data) -> u64 {
        data.validation.as_ref().map_or(0, Asked::fingerprint)
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

    fn loss(&self, data: &Data, model: &AnyQuestionAnswerer, update: &Update<'_>) -> BatchLoss {
        let mut random = Random::new(&[update.recipe.training.seed, update.step]);
        let shown = data.train.rows(update.rows);
        let (before, own) = (&shown[..update.share.start], &shown[update.share.clone()]);
        // What is dropped are numbers of questions, not of images.
        let count = |shown: &[Shown]| shown.iter().map(|one| one.questions.len()).sum::<usize>();
        let first = count(before);
        let mut noise =
            DropoutRng::seeded(random.next_u64()).of_rows(first..first + count(own), count(&shown));
        let batch = data.reader.batch(own, model, update.training);
        let questions = batch.questions.images.len();
        let found = model.forward(batch.images, &batch.questions, &mut noise);
        let loss = binary_cross_entropy(found.logits, batch.targets);
        let mut terms = vec![Term::new(loss.clone() / questions.max(1) as f64, questions)];
        let weight = update.recipe.training.guided_attention;
        if let (true, Some(last)) = (weight > 0.0, found.looks.last()) {
            let Term { mean, count } = guided(own, last, found.grid);
            terms.push(Term {
                mean: mean * weight,
                count,
            });
        }
        BatchLoss {
            negative_log_likelihood: f64::from(loss.into_scalar::<f32>()),
            terms,
            predictions: questions,
            tokens: batch.tokens,
            baseline: None,
        }
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
        let shown = set.get(row);
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

/// Answers to all questions of a part, judged.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Judged {
    /// How good they are.
    pub scores: AnswerScores,
    /// The sum of the binary cross-entropies.
    pub loss: f64,
    /// Question and answer, line by line.
    pub lines: Vec<String>,
}

impl Asked {
    /// Asks `model` all questions, on `device` without autodiff. The `ranks` share the images.
    ///
    /// # Errors
    /// Images of another size than the model reads; ranks that are gone.
    pub fn judge(
        &self,
        description: &Description,
        model: &AnyQuestionAnswerer,
        device: &Device,
        ranks: &dyn Ranks,
    ) -> Result<Judged, TrainError> {
        description.preparation.expect_form(self.form())?;
        let reader = Reader::new(description);
        let rows: Vec<usize> = (0..self.len()).collect();
        let batches: Vec<&[usize]> = rows.chunks(JUDGED).collect();
        let judged = ranks.spread(&batches, |_, own| {
            let judge =
                |rows: &&[usize]| self.judge_batch(rows, &reader, description, model, device);
            Ok::<_, TrainError>(own.iter().map(judge).collect())
        })?;
        Ok(judged.into_iter().fold(Judged::default(), Judged::with))
    }

    fn judge_batch(
        &self,
        rows: &[usize],
        reader: &Reader,
        description: &Description,
        model: &AnyQuestionAnswerer,
        device: &Device,
    ) -> Judged {
        let mut judged = Judged::default();
        let shown = self.rows(rows);
        let batch = reader.batch(&shown, model, device);
        if batch.questions.images.is_empty() {
            return judged;
        }
        let QuestionLook {
            logits,
            looks,
            grid,
        } = model.look(batch.images, &batch.questions);
        let loss = binary_cross_entropy(logits.clone(), batch.targets);
        judged.loss = f64::from(loss.into_scalar::<f32>());
        let numbers = |tensor: Tensor<2>| tensor.into_data().iter::<f32>().collect::<Vec<_>>();
        let logits = numbers(logits);
        let last = looks.into_iter().next_back().map(numbers);
        let questions = shown.iter().flat_map(|shown| {
            let questions = shown.questions.iter();
            questions.map(move |question| (shown, question))
        });
        let logits = logits.chunks_exact(description.answers.len());
        for (row, ((shown, question), logits)) in questions.zip(logits).enumerate() {
            let answer = &description.answers[best(logits)];
            let cells = grid[0] * grid[1];
            let look = last.as_ref().map(|last| Region {
                weights: &last[row * cells..][..cells],
                grid,
            });
            judged.scores.add(shown, question, answer, look);
            judged
                .lines
                .push(format!("{} {answer}", question.phrase.text));
        }
        judged
    }
}

impl Judged {
    /// Both together.
    fn with(mut self, other: Self) -> Self {
        self.loss += other.loss;
        self.lines.extend(other.lines);
        self.scores.all = self.scores.all.with(other.scores.all);
        for (kind, scores) in other.scores.kinds {
            let of_kind = self.scores.kinds.entry(kind).or_default();
            *of_kind = of_kind.with(scores);
        }
        self
    }
}

/// Words, unless those of a model to begin with are `known`, answers and preparation, from the training images.
fn described(
    recipe: &Recipe,
    train: &Asked,
    known: Option<TokenizerPair>,
) -> Result<Description, TrainError> {
    let drawn: Vec<Shown>;
    let sample: &[Shown] = match train {
        Asked::Scenes(set) => {
            let rows: Vec<usize> = (0..set.len().min(SAMPLED)).collect();
            drawn = train.rows(&rows);
            &drawn
        }
        Asked::Images(images) => images,
    };
    let tokenizers = match known {
        Some(known) => known,
        None => {
            let questions = sample.iter().flat_map(|shown| &shown.questions);
            let questions = questions.map(|question| words(&question.phrase.text));
            TokenizerPair::joint(SubwordTokenizer::learn_words(questions, false)?)
        }
    };
    let data = &recipe.data;
    let answers = match (train, &data.questions) {
        (Asked::Scenes(set), _) => set.config().answers(),
        (_, Some(settings)) => frequent_answers(sample, settings.min_answers),
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
    let images = || sample.iter().map(|shown| &shown.image);
    let size = images().next().map(|image| [image.height(), image.width()]);
    Ok(Description {
        model: recipe.model.clone(),
        tokenizers,
        answers,
        preparation: Preparation::new(size.ok_or(TrainError::NoData)?, Normalize::of(images())?),
    })
}
