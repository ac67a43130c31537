//! Judging a detector: the loss of what it finds, and the comparison of found with true objects by COCO's measures.

use burn::tensor::Device;
use regard_evaluate::{
    AveragePrecision, DetectedImage, FoundObject, Matches, Ratio, Resampled, TrueObject, box_iou,
    mask_iou, mean_iou_of,
};
use regard_images::Mask;
use regard_models::{
    AnyDetector,
    image::{
        Detected,
        detr::loss::{Losses, SetLoss, Target},
    },
};
use regard_nn::dropout::DropoutRng;
use serde::{Deserialize, Serialize};

use super::samples::{Sample, Samples, Sought, batch};
use crate::{
    detector::{Description, Guess, masks_of},
    error::TrainError,
    ranks::Ranks,
};

/// Images that are judged together.
const JUDGED: usize = 50;

/// The least score of an object whose mask is judged.
const SURE: f32 = 0.5;

/// The loss of what was found; NaN where the predictions are not finite.
pub(super) fn loss_of(
    model: &AnyDetector,
    found: &Detected,
    targets: &[Vec<Target>],
    size: [usize; 2],
) -> Option<Losses> {
    let masks = |chosen: &[[usize; 2]]| model.masks(found, chosen, size);
    SetLoss::default().of(found, targets, masks).ok()
}

/// How well a model finds objects.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// The mean loss of an image.
    pub loss: f64,
    /// Of the boxes.
    pub precision: AveragePrecision,
    /// What the precision of any choice of the images follows from.
    pub matches: Matches,
    /// Of the masks of objects with a score of at least .5, of a model with masks.
    pub mean_iou: Option<f64>,
    /// The same of any choice of the images.
    pub overlaps: Option<Ratio>,
    /// What was found in each image, in words.
    pub lines: Vec<String>,
}

/// Judges `model`, which is on `device`, by `samples`, which the `ranks` share; IoUs of masks are those in the model's size.
///
/// # Errors
/// Images of another size or with other channels than the model reads; a mask that is too large; ranks that are gone.
pub fn judge(
    model: &AnyDetector,
    description: &Description,
    samples: &Samples,
    device: &Device,
    ranks: &dyn Ranks,
) -> Result<Judged, TrainError> {
    description.preparation.expect_form(samples.form())?;
    let rows: Vec<usize> = (0..samples.len()).collect();
    let batches: Vec<&[usize]> = rows.chunks(JUDGED).collect();
    let judged = ranks.spread(&batches, |_, own| {
        let judge = |rows: &&[usize]| judge_batch(model, description, &samples.all(rows)?, device);
        own.iter()
            .map(judge)
            .collect::<Result<Vec<_>, TrainError>>()
    })?;
    let (mut by_boxes, mut by_masks, mut lines) = (vec![], vec![], vec![]);
    let mut sum = 0.0;
    for batch in judged {
        sum += batch.loss;
        by_boxes.extend(batch.by_boxes);
        by_masks.extend(batch.by_masks);
        lines.extend(batch.lines);
    }
    let matches = Matches::new(&by_boxes, description.labels.len());
    let masks = model.has_masks();
    let overlaps = masks.then(|| mean_iou_of(&by_masks, f64::from(SURE)));
    Ok(Judged {
        loss: sum / samples.len().max(1) as f64,
        precision: matches.precision(),
        matches,
        mean_iou: overlaps.as_ref().and_then(|overlaps| overlaps.all()),
        overlaps,
        lines,
    })
}

/// Some images, judged.
#[derive(Serialize, Deserialize)]
struct JudgedBatch {
    /// The sum of the losses.
    loss: f64,
    by_boxes: Vec<DetectedImage>,
    /// Of a model with masks; empty for others.
    by_masks: Vec<DetectedImage>,
    lines: Vec<String>,
}

fn judge_batch(
    model: &AnyDetector,
    description: &Description,
    samples: &[Sample],
    device: &Device,
) -> Result<JudgedBatch, TrainError> {
    let Description {
        labels,
        preparation,
        ..
    } = description;
    let (images, targets) = batch(samples, preparation, device);
    let found = model.forward(images, &mut DropoutRng::none());
    let loss = loss_of(model, &found, &targets, preparation.size);
    let loss = loss.map_or(f32::NAN, |losses| losses.total.into_scalar::<f32>());
    let (mut by_boxes, mut by_masks, mut lines) = (vec![], vec![], vec![]);
    let guesses = Guess::all(found.last());
    for (row, (sample, guesses)) in samples.iter().zip(guesses).enumerate() {
        by_boxes.push(compared_by_boxes(sample, &guesses));
        let sure: Vec<Guess> = guesses
            .into_iter()
            .filter(|guess| guess.score >= SURE)
            .collect();
        lines.push(in_words(&sure, labels));
        let chosen: Vec<[usize; 2]> = sure.iter().map(|guess| [row, guess.query]).collect();
        if let Some(masks) = masks_of(model, &found, &chosen, preparation.size)? {
            by_masks.push(compared_by_masks(sample, &sure, &masks));
        }
    }
    Ok(JudgedBatch {
        loss: f64::from(loss) * samples.len() as f64,
        by_boxes,
        by_masks,
        lines,
    })
}

/// What was found and what is there, with an overlap for each pair.
fn compared(
    sample: &Sample,
    guesses: &[Guess],
    overlap: impl Fn(usize, &Sought) -> f64,
) -> DetectedImage {
    let found = guesses.iter().map(|guess| FoundObject {
        class: guess.class,
        score: f64::from(guess.score),
    });
    let truth = sample.objects.iter().map(|object| TrueObject {
        class: object.class,
        crowd: object.crowd,
    });
    let pairs = (0..guesses.len()).flat_map(|guess| {
        let overlap = &overlap;
        sample
            .objects
            .iter()
            .map(move |object| overlap(guess, object))
    });
    DetectedImage {
        found: found.collect(),
        truth: truth.collect(),
        overlap: pairs.collect(),
    }
}

pub(super) fn compared_by_boxes(sample: &Sample, guesses: &[Guess]) -> DetectedImage {
    compared(sample, guesses, |guess, object| {
        let [x, y, width, height] = object.bounds;
        let truth = [x - width / 2.0, y - height / 2.0, width, height];
        box_iou(
            guesses[guess].bounds.map(f64::from),
            truth.map(f64::from),
            object.crowd,
        )
    })
}

/// The same by masks; objects without one are left out.
fn compared_by_masks(sample: &Sample, guesses: &[Guess], masks: &[Mask]) -> DetectedImage {
    let mut sample = sample.clone();
    sample.objects.retain(|object| object.mask.is_some());
    compared(&sample, guesses, |guess, object| {
        let Some(truth) = &object.mask else {
            return 0.0;
        };
        let found = &masks[guess];
        let shared = found
            .iter()
            .zip(truth.iter())
            .filter(|pair| *pair == (true, true));
        mask_iou(shared.count(), found.area(), truth.area(), object.crowd)
    })
}

/// "circle .98 (10 12 20 20)" for each, with left, top, width and height in percent.
fn in_words(guesses: &[Guess], labels: &[String]) -> String {
    let words = guesses.iter().map(|guess| {
        let [x, y, width, height] = guess.bounds.map(|share| (100.0 * share).round());
        let (label, score) = (&labels[guess.class], guess.score);
        format!("{label} {score:.2} ({x} {y} {width} {height})")
    });
    words.collect::<Vec<_>>().join(", ")
}
