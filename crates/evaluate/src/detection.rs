//! How well objects are found: average precision as COCO defines it, and the mean IoU of masks.
//!
//! ```text
//! IoU = |found ∩ true| / |found ∪ true|;   with a crowd |found ∩ crowd| / |found|
//!
//! for each class and each least IoU t in {.50, .55, .., .95}:
//!   in each image, its 100 best-scored objects, best first, each take the free true object of largest IoU >= t
//!   over all images by score: precision and recall after each; precision is raised to that of any later recall
//!   AP_t = mean of the precision at recalls 0, .01, .., 1
//! AP = mean over t and over the classes that occur;  AP50 and AP75: only t = .50 or .75
//! ```
//! A crowd is many things that are not told apart: an object in it is neither right nor wrong, and it need not be found. The numbers
//! are those of pycocotools 2.0 for all areas and 100 objects an image.
//!
//! Source: Lin et al. 2014, "Microsoft COCO", and `COCOeval` of its tools.

use serde::{Deserialize, Serialize};

/// Most objects of a class that count in an image.
const MOST: usize = 100;

/// Recalls at which precision is read.
const RECALLS: usize = 101;

/// The least IoUs.
const THRESHOLDS: usize = 10;

/// `|a ∩ b| / |a ∪ b|` of boxes `[x, y, width, height]`; with a crowd `b` the share of `a` inside it.
///
/// ```
/// use regard_evaluate::box_iou;
///
/// assert_eq!(box_iou([0.0, 0.0, 2.0, 2.0], [1.0, 0.0, 2.0, 2.0], false), 1.0 / 3.0);
/// assert_eq!(box_iou([0.0, 0.0, 2.0, 2.0], [1.0, 0.0, 2.0, 2.0], true), 0.5);
/// ```
pub fn box_iou(a: [f64; 4], b: [f64; 4], crowd: bool) -> f64 {
    let shared = |axis: usize| {
        let end = (a[axis] + a[axis + 2]).min(b[axis] + b[axis + 2]);
        end - a[axis].max(b[axis])
    };
    let (across, down) = (shared(0), shared(1));
    if across <= 0.0 || down <= 0.0 {
        return 0.0;
    }
    let (own, other) = (a[2] * a[3], b[2] * b[3]);
    iou(across * down, own, other, crowd)
}

/// The same of masks, from the number of pixels that both have, `a` has, and `b` has.
pub fn mask_iou(shared: usize, a: usize, b: usize, crowd: bool) -> f64 {
    match shared {
        0 => 0.0,
        _ => iou(shared as f64, a as f64, b as f64, crowd),
    }
}

fn iou(shared: f64, own: f64, other: f64, crowd: bool) -> f64 {
    let either = if crowd { own } else { own + other - shared };
    shared / either
}

/// An object that was found in an image.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FoundObject {
    /// Its class.
    pub class: usize,
    /// How sure it is: the order of objects follows from it.
    pub score: f64,
}

/// An object that is in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrueObject {
    /// Its class.
    pub class: usize,
    /// Whether it stands for many things that are not told apart.
    pub crowd: bool,
}

/// What was found in an image, what is in it, and how much they overlap.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DetectedImage {
    /// The objects that were found.
    pub found: Vec<FoundObject>,
    /// Those that are there.
    pub truth: Vec<TrueObject>,
    /// The IoU of each pair, by boxes ([`box_iou`]) or masks ([`mask_iou`]), `[found, truth]`.
    pub overlap: Vec<f64>,
}

/// Average precision of detections.
///
/// ```
/// use regard_evaluate::{AveragePrecision, DetectedImage, FoundObject, TrueObject};
///
/// let found = |score| FoundObject { class: 0, score };
/// let image = DetectedImage {
///     found: vec![found(0.9), found(0.8)],
///     truth: vec![TrueObject { class: 0, crowd: false }],
///     overlap: vec![0.4, 0.72],
/// };
/// // The best-scored one is wrong at any least IoU; the other is right up to .70, with a precision of a half.
/// let precision = AveragePrecision::of(&[image], 1);
/// assert_eq!((precision.ap50, precision.ap75, precision.ap), (0.5, 0.0, 0.25));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AveragePrecision {
    /// Mean over all least IoUs, 0 to 1; 0 if no class occurs.
    pub ap: f64,
    /// At a least IoU of .50.
    pub ap50: f64,
    /// At a least IoU of .75.
    pub ap75: f64,
    /// The mean over all least IoUs of each class; `None` for a class that does not occur.
    pub classes: Vec<Option<f64>>,
}

impl AveragePrecision {
    /// Scores what was found in these images; classes are below `classes`, others count for nothing.
    ///
    /// # Panics
    /// If an image has not one overlap for each pair.
    pub fn of(images: &[DetectedImage], classes: usize) -> Self {
        for image in images {
            let pairs = image.found.len() * image.truth.len();
            assert_eq!(image.overlap.len(), pairs, "an overlap for each pair");
        }
        let of_class: Vec<Option<[f64; THRESHOLDS]>> = (0..classes)
            .map(|class| precision_of(images, class))
            .collect();
        let there: Vec<&[f64; THRESHOLDS]> = of_class.iter().flatten().collect();
        let mean = |values: &mut dyn Iterator<Item = f64>| {
            let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| {
                (sum + value, count + 1)
            });
            sum / count.max(1) as f64
        };
        let at = |threshold: usize| mean(&mut there.iter().map(|class| class[threshold]));
        Self {
            ap: mean(&mut there.iter().flat_map(|class| class.iter().copied())),
            ap50: at(0),
            ap75: at(5),
            classes: of_class
                .iter()
                .map(|class| Some(mean(&mut class.as_ref()?.iter().copied())))
                .collect(),
        }
    }
}

/// The least IoUs, computed as pycocotools does.
fn threshold(index: usize) -> f64 {
    match index + 1 == THRESHOLDS {
        true => 0.95,
        false => 0.5 + index as f64 * ((0.95 - 0.5) / (THRESHOLDS - 1) as f64),
    }
}

/// The average precision of a class at each least IoU; `None` if no image has an object of it that must be found.
fn precision_of(images: &[DetectedImage], class: usize) -> Option<[f64; THRESHOLDS]> {
    let wanted = |object: &&TrueObject| object.class == class && !object.crowd;
    let wanted: usize = images
        .iter()
        .map(|image| image.truth.iter().filter(wanted).count())
        .sum();
    if wanted == 0 {
        return None;
    }
    Some(std::array::from_fn(|index| {
        let threshold = threshold(index);
        // Score, and whether it is right; without what lies in a crowd.
        let mut ranked: Vec<(f64, bool)> = vec![];
        for image in images {
            ranked.extend(judged(image, class, threshold));
        }
        // A stable sort, as pycocotools has: of equal scores the earlier image first.
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
        mean_precision(&ranked, wanted)
    }))
}

/// The places of the class's best-scored objects, best first.
fn best(image: &DetectedImage, class: usize) -> Vec<usize> {
    let of_class = |&place: &usize| image.found[place].class == class;
    let mut order: Vec<usize> = (0..image.found.len()).filter(of_class).collect();
    order.sort_by(|&a, &b| image.found[b].score.total_cmp(&image.found[a].score));
    order.truncate(MOST);
    order
}

/// The objects of a class that were found, best first, with whether they are right; those in a crowd are left out.
fn judged(image: &DetectedImage, class: usize, threshold: f64) -> Vec<(f64, bool)> {
    let mut truth: Vec<usize> = (0..image.truth.len())
        .filter(|&place| image.truth[place].class == class)
        .collect();
    // Crowds come last: they are taken only by what fits nothing else.
    truth.sort_by_key(|&place| image.truth[place].crowd);
    let mut taken = vec![false; image.truth.len()];
    let mut judged = vec![];
    for found in best(image, class) {
        let mut least = threshold.min(1.0 - 1e-10);
        let mut matched: Option<usize> = None;
        for &place in &truth {
            let crowd = image.truth[place].crowd;
            if taken[place] && !crowd {
                continue;
            }
            if crowd && matched.is_some_and(|place| !image.truth[place].crowd) {
                break;
            }
            let overlap = image.overlap[found * image.truth.len() + place];
            if overlap >= least {
                (least, matched) = (overlap, Some(place));
            }
        }
        if let Some(place) = matched {
            taken[place] = true;
        }
        if !matched.is_some_and(|place| image.truth[place].crowd) {
            judged.push((image.found[found].score, matched.is_some()));
        }
    }
    judged
}

/// The mean of the precision at all recalls of objects by rank, `wanted` of which should be found.
fn mean_precision(ranked: &[(f64, bool)], wanted: usize) -> f64 {
    let (mut right, mut points) = (0.0, vec![]);
    for (rank, (_, is_right)) in ranked.iter().enumerate() {
        right += f64::from(u8::from(*is_right));
        // The term against division by 0 is pycocotools'.
        let precision = right / ((rank + 1) as f64 + f64::EPSILON);
        points.push((right / wanted as f64, precision));
    }
    for index in (1..points.len()).rev() {
        let later = points[index].1;
        points[index - 1].1 = points[index - 1].1.max(later);
    }
    let at = |recall: f64| {
        let reached = points.partition_point(|point| point.0 < recall);
        points.get(reached).map_or(0.0, |point| point.1)
    };
    let recalls = (0..RECALLS).map(|step| match step + 1 == RECALLS {
        true => 1.0,
        false => step as f64 * 0.01,
    });
    recalls.map(at).sum::<f64>() / RECALLS as f64
}

/// The mean, over all true objects that are no crowd, of the IoU with the object that was found for it; 0 for one that was not found.
/// Objects of the same class and a score of at least `least_score` are taken best-scored first, each for the free true object of
/// largest IoU. `None` if there is no object.
///
/// ```
/// use regard_evaluate::{DetectedImage, FoundObject, TrueObject, mean_iou};
///
/// let image = DetectedImage {
///     found: vec![FoundObject { class: 0, score: 0.9 }],
///     truth: vec![TrueObject { class: 0, crowd: false }; 2],
///     overlap: vec![0.8, 0.1],
/// };
/// assert_eq!(mean_iou(&[image], 0.5), Some(0.4));
/// ```
pub fn mean_iou(images: &[DetectedImage], least_score: f64) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0usize);
    for image in images {
        let objects = image.truth.len();
        count += image.truth.iter().filter(|object| !object.crowd).count();
        let mut order: Vec<usize> = (0..image.found.len()).collect();
        order.retain(|&found| image.found[found].score >= least_score);
        order.sort_by(|&a, &b| image.found[b].score.total_cmp(&image.found[a].score));
        let mut free: Vec<bool> = image.truth.iter().map(|object| !object.crowd).collect();
        for found in order {
            let overlap = |place: usize| image.overlap[found * objects + place];
            let class = image.found[found].class;
            let fits = |&place: &usize| free[place] && image.truth[place].class == class;
            let best = (0..objects)
                .filter(fits)
                .max_by(|&a, &b| overlap(a).total_cmp(&overlap(b)));
            if let Some(best) = best.filter(|&best| overlap(best) > 0.0) {
                sum += overlap(best);
                free[best] = false;
            }
        }
    }
    (count > 0).then(|| sum / count as f64)
}
