//! Judging answers: their accuracy, and whether the last look was at what was asked for.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};
use regard_evaluate::{CellMask, Looking, Ratio, vqa_accuracy};
use regard_images::{Bounds, Mask, data::Question};
use regard_models::{AnyQuestionAnswerer, QuestionLook, binary_cross_entropy};
use serde::{Deserialize, Serialize};

use super::{Asked, Reader, Shown};
use crate::{
    error::TrainError,
    question_answerer::{Description, best},
    ranks::Ranks,
};

/// Images that are judged together.
const JUDGED: usize = 50;

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

    /// [`Scores::accuracy`] of any choice of `images`, whose scores these are.
    pub fn accuracy_of<'a>(images: impl IntoIterator<Item = &'a Self>) -> Ratio {
        let images = images.into_iter();
        let parts = images.map(|one| (one.accuracy, one.questions as f64));
        parts.collect()
    }
}

impl AnswerScores {
    /// Those of both.
    fn with(mut self, other: &Self) -> Self {
        self.all = self.all.with(other.all);
        for (kind, scores) in &other.kinds {
            let of_kind = self.kinds.entry(kind.clone()).or_default();
            *of_kind = of_kind.with(*scores);
        }
        self
    }

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
pub(super) fn spoken_of(shown: &Shown, question: &Question) -> Option<[Vec<bool>; 2]> {
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
pub(super) fn cells(shown: &Shown, object: Vec<bool>, grid: [usize; 2]) -> CellMask {
    let size = [shown.image.height(), shown.image.width()];
    CellMask::new(size, object, grid)
        .expect("the mask is that of the image, whose pixels are finer than the grid")
}

/// Answers to all questions of a part, judged.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Judged {
    /// How good they are.
    pub scores: AnswerScores,
    /// The same, image by image.
    pub images: Vec<AnswerScores>,
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
            own.iter()
                .map(judge)
                .collect::<Result<Vec<_>, TrainError>>()
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
    ) -> Result<Judged, TrainError> {
        let mut judged = Judged::default();
        let shown = self.rows(rows)?;
        let none = shown.iter().map(|_| AnswerScores::default());
        judged.images = none.collect();
        let batch = reader.batch(&shown, model, device);
        if batch.questions.images.is_empty() {
            return Ok(judged);
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
        let questions = shown.iter().enumerate().flat_map(|(image, shown)| {
            let questions = shown.questions.iter();
            questions.map(move |question| (image, shown, question))
        });
        let logits = logits.chunks_exact(description.answers.len());
        for (row, ((image, shown, question), logits)) in questions.zip(logits).enumerate() {
            let answer = &description.answers[best(logits)];
            let cells = grid[0] * grid[1];
            let look = last.as_ref().map(|last| Region {
                weights: &last[row * cells..][..cells],
                grid,
            });
            judged.images[image].add(shown, question, answer, look);
            judged
                .lines
                .push(format!("{} {answer}", question.phrase.text));
        }
        let images = judged.images.iter();
        judged.scores = images.fold(AnswerScores::default(), AnswerScores::with);
        Ok(judged)
    }
}

impl Judged {
    /// Both together.
    fn with(mut self, other: Self) -> Self {
        self.loss += other.loss;
        self.lines.extend(other.lines);
        self.images.extend(other.images);
        self.scores = self.scores.with(&other.scores);
        self
    }
}
