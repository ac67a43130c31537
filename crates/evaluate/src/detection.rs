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
//! What is found is compared with what is there in each image alone. So [`Matches`] are made once, and are sorted by score once: from
//! them follow the numbers of any choice of the images, which a bootstrap asks for a thousand times.
//!
//! Source: Lin et al. 2014, "Microsoft COCO", and `COCOeval` of its tools.

use std::{iter, ops::Range};

use serde::{Deserialize, Serialize};

use crate::{Ratio, Resampled};

/// Most objects of a class that count in an image.
const MOST: usize = 100;

/// Recalls at which precision is read.
const RECALLS: usize = 101;

/// The least IoUs.
const THRESHOLDS: usize = 10;

/// The place of .75 among them.
const AT_75: usize = 5;

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
        Matches::new(images, classes).precision()
    }
}

/// Found objects, compared with those that are there: what the average precision of any choice of the images follows from.
///
/// ```
/// use regard_evaluate::{Bootstrap, DetectedImage, FoundObject, Matches, Resampled, TrueObject};
///
/// let image = |overlap| DetectedImage {
///     found: vec![FoundObject { class: 0, score: 0.9 }],
///     truth: vec![TrueObject { class: 0, crowd: false }],
///     overlap: vec![overlap],
/// };
/// let matches = Matches::new(&[image(0.6), image(0.4)], 1);
/// // Twice the first image, or twice the second.
/// assert_eq!(matches.ap50().score(&[0, 0]), Some(1.0));
/// assert_eq!(matches.ap50().score(&[1, 1]), Some(0.0));
/// let interval = Bootstrap::default().confidence_of(&matches.ap50())?.unwrap();
/// assert_eq!((interval.lower, interval.upper), (0.0, 1.0));
/// # Ok::<(), regard_evaluate::EvaluateError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Matches {
    images: usize,
    classes: Vec<OfClass>,
}

/// What was found of a class, and what is there.
#[derive(Debug, Clone, PartialEq)]
struct OfClass {
    /// The highest score first. A stable sort, as pycocotools has: of equal scores the earlier image first.
    ranked: Vec<Candidate>,
    /// Images with objects that must be found, and how many.
    wanted: Vec<(u32, usize)>,
}

/// A found object as it counts at each least IoU, for which there is a bit.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    score: f64,
    image: u32,
    right: u16,
    /// It lies in a crowd.
    ignored: u16,
}

impl Matches {
    /// Compares what was found in these images with what is there; classes are below `classes`, others count for nothing.
    ///
    /// # Panics
    /// If an image has not one overlap for each pair.
    pub fn new(images: &[DetectedImage], classes: usize) -> Self {
        for image in images {
            let pairs = image.found.len() * image.truth.len();
            assert_eq!(image.overlap.len(), pairs, "an overlap for each pair");
        }
        let of_class = |class: usize| {
            let (mut ranked, mut wanted) = (vec![], vec![]);
            for (number, image) in (0u32..).zip(images) {
                ranked.extend(candidates(image, number, class));
                let must = |object: &&TrueObject| object.class == class && !object.crowd;
                match image.truth.iter().filter(must).count() {
                    0 => {}
                    count => wanted.push((number, count)),
                }
            }
            ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
            OfClass { ranked, wanted }
        };
        Self {
            images: images.len(),
            classes: (0..classes).map(of_class).collect(),
        }
    }

    /// The average precision of all images.
    pub fn precision(&self) -> AveragePrecision {
        let copies = vec![1; self.images];
        let classes = self.classes.iter();
        let of_class = classes.map(|class| class.precision(&copies, 0..THRESHOLDS));
        let of_class: Vec<Option<Vec<f64>>> = of_class.collect();
        let there = || of_class.iter().flatten();
        let at = |threshold: usize| mean(there().map(|class| class[threshold]));
        AveragePrecision {
            ap: mean(there().flatten().copied()).unwrap_or_default(),
            ap50: at(0).unwrap_or_default(),
            ap75: at(AT_75).unwrap_or_default(),
            classes: of_class
                .iter()
                .map(|class| mean(class.as_ref()?.iter().copied()))
                .collect(),
        }
    }

    /// [`AveragePrecision::ap`] of any choice of the images.
    pub fn ap(&self) -> MatchesAt<'_> {
        self.at(0..THRESHOLDS)
    }

    /// [`AveragePrecision::ap50`] of any choice of the images.
    pub fn ap50(&self) -> MatchesAt<'_> {
        self.at(0..1)
    }

    /// [`AveragePrecision::ap75`] of any choice of the images.
    pub fn ap75(&self) -> MatchesAt<'_> {
        self.at(AT_75..AT_75 + 1)
    }

    fn at(&self, thresholds: Range<usize>) -> MatchesAt<'_> {
        MatchesAt {
            matches: self,
            thresholds,
        }
    }
}

/// The average precision of any choice of the images, as a mean over some of the least IoUs: of [`Matches::ap`], [`Matches::ap50`] and
/// [`Matches::ap75`]. It is that of a set in which an image stands as often as it is named, copies side by side; none where no object
/// must be found.
#[derive(Debug, Clone)]
pub struct MatchesAt<'a> {
    matches: &'a Matches,
    thresholds: Range<usize>,
}

impl Resampled for MatchesAt<'_> {
    fn examples(&self) -> usize {
        self.matches.images
    }

    fn score(&self, drawn: &[u32]) -> Option<f64> {
        let mut copies = vec![0; self.matches.images];
        for &image in drawn {
            copies[image as usize] += 1;
        }
        let classes = self.matches.classes.iter();
        let there = classes.filter_map(|class| class.precision(&copies, self.thresholds.clone()));
        mean(there.flatten())
    }
}

impl OfClass {
    /// The average precision at each of the least IoUs, of as many `copies` of each image; `None` if there is no object that must be
    /// found.
    fn precision(&self, copies: &[u32], thresholds: Range<usize>) -> Option<Vec<f64>> {
        let copies = |image: u32| copies[image as usize] as usize;
        let wanted = self.wanted.iter();
        let wanted: usize = wanted.map(|&(image, count)| copies(image) * count).sum();
        if wanted == 0 {
            return None;
        }
        let mut found = 0usize;
        let mut ignored = [0usize; THRESHOLDS];
        // The precision wherever one more object is right.
        let mut precisions: [Vec<f64>; THRESHOLDS] = Default::default();
        let together = |a: &Candidate, b: &Candidate| {
            a.image == b.image && a.score.total_cmp(&b.score).is_eq()
        };
        // What has equal scores in an image stays together, as the copies of the image follow each other.
        for of_image in self.ranked.chunk_by(together) {
            for candidate in iter::repeat_n(of_image, copies(of_image[0].image)).flatten() {
                found += 1;
                if candidate.right | candidate.ignored == 0 {
                    continue;
                }
                for threshold in thresholds.clone() {
                    let bit = 1 << threshold;
                    if candidate.ignored & bit != 0 {
                        ignored[threshold] += 1;
                    } else if candidate.right & bit != 0 {
                        let right = (precisions[threshold].len() + 1) as f64;
                        // The term against division by 0 is pycocotools'.
                        let all = (found - ignored[threshold]) as f64 + f64::EPSILON;
                        precisions[threshold].push(right / all);
                    }
                }
            }
        }
        let precisions = &mut precisions[thresholds];
        let means = precisions
            .iter_mut()
            .map(|of_right| mean_precision(of_right, wanted));
        Some(means.collect())
    }
}

/// `None` of no values.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| {
        (sum + value, count + 1)
    });
    (count > 0).then(|| sum / count as f64)
}

/// The least IoUs, computed as pycocotools does.
fn threshold(index: usize) -> f64 {
    match index + 1 == THRESHOLDS {
        true => 0.95,
        false => 0.5 + index as f64 * ((0.95 - 0.5) / (THRESHOLDS - 1) as f64),
    }
}

/// The places of the class's best-scored objects, best first.
fn best(image: &DetectedImage, class: usize) -> Vec<usize> {
    let of_class = |&place: &usize| image.found[place].class == class;
    let mut order: Vec<usize> = (0..image.found.len()).filter(of_class).collect();
    order.sort_by(|&a, &b| image.found[b].score.total_cmp(&image.found[a].score));
    order.truncate(MOST);
    order
}

/// The objects of a class that were found in the image of this number, best first.
fn candidates(image: &DetectedImage, number: u32, class: usize) -> Vec<Candidate> {
    let best = best(image, class);
    let candidate = |&found: &usize| Candidate {
        score: image.found[found].score,
        image: number,
        right: 0,
        ignored: 0,
    };
    let mut candidates: Vec<Candidate> = best.iter().map(candidate).collect();
    let mut truth: Vec<usize> = (0..image.truth.len())
        .filter(|&place| image.truth[place].class == class)
        .collect();
    // Crowds come last: they are taken only by what fits nothing else.
    truth.sort_by_key(|&place| image.truth[place].crowd);
    for index in 0..THRESHOLDS {
        let mut taken = vec![false; image.truth.len()];
        for (&found, candidate) in best.iter().zip(&mut candidates) {
            let mut least = threshold(index).min(1.0 - 1e-10);
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
            let Some(place) = matched else { continue };
            taken[place] = true;
            *match image.truth[place].crowd {
                true => &mut candidate.ignored,
                false => &mut candidate.right,
            } |= 1 << index;
        }
    }
    candidates
}

/// The mean of the precision at all recalls, from the precision wherever one more object is right, `wanted` of which should be found.
fn mean_precision(precisions: &mut [f64], wanted: usize) -> f64 {
    for index in (1..precisions.len()).rev() {
        precisions[index - 1] = precisions[index - 1].max(precisions[index]);
    }
    let mut reached = 0;
    let mut sum = 0.0;
    for step in 0..RECALLS {
        let least = match step + 1 == RECALLS {
            true => 1.0,
            false => step as f64 * 0.01,
        };
        let recall = |right: usize| (right + 1) as f64 / wanted as f64;
        while reached < precisions.len() && recall(reached) < least {
            reached += 1;
        }
        sum += precisions.get(reached).copied().unwrap_or(0.0);
    }
    sum / RECALLS as f64
}

/// The mean, over all true objects that are no crowd, of the IoU with the object that was found for it; 0 for one that was not found.
/// Objects of the same class and a score of at least `least_score` are taken best-scored first, each for the free true object of
/// largest IoU; of equal scores the first, of equal IoUs the last. `None` if there is no object.
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
    mean_iou_of(images, least_score).all()
}

/// [`mean_iou`] of any choice of `images`.
pub fn mean_iou_of(images: &[DetectedImage], least_score: f64) -> Ratio {
    let of_image = |image: &DetectedImage| {
        let mut sum = 0.0;
        let objects = image.truth.len();
        let mut order: Vec<usize> = (0..image.found.len()).collect();
        order.retain(|&found| image.found[found].score >= least_score);
        order.sort_by(|&a, &b| image.found[b].score.total_cmp(&image.found[a].score));
        let mut free: Vec<bool> = image.truth.iter().map(|object| !object.crowd).collect();
        let count = free.iter().filter(|free| **free).count();
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
        (sum, count as f64)
    };
    images.iter().map(of_image).collect()
}
