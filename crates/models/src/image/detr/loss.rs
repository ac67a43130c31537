//! The loss of a set of predictions (Carion et al. 2020, sections 3.1 and A.2).
//!
//! ```text
//! match     each object with the prediction of least  -p(class) + 5 |b - b̂|_1 - 2 GIoU(b, b̂),  one of its own
//! class     Σ w (-log p(target)) / Σ w        over all predictions; target: the class of the object, or no object with w = 0.1
//! box       Σ (5 |b - b̂|_1 + 2 (1 - GIoU(b, b̂))) / objects         over matched pairs
//! mask      Σ (focal + dice) / objects                               over matched pairs, of the last layer
//! focal     mean over pixels of α_t (1 - p_t)² (-log p_t),  α = 0.25          (Lin et al. 2017)
//! dice      1 - (2 Σ p m + 1) / (Σ p + Σ m + 1)                               (Milletari et al. 2016)
//! ```
//! Class and box are summed over the layers of the decoder, each with its own matching. `objects` counts those of the whole batch,
//! at least 1; boxes are centre and size as shares of the image.

use burn::tensor::{
    Int, Tensor, TensorData,
    activation::{log_sigmoid, log_softmax},
};

use regard_nn::bridge::{sigmoid, sum};

use super::{
    assignment::{AssignmentError, assign},
    boxes::{Corners, generalized_iou, to_corners},
};
use crate::image::detector::{Detected, Predicted};

/// `α` of the focal loss: the weight of pixels of the object.
const FOCAL_ALPHA: f64 = 0.25;

/// An object that is to be found.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// Its class.
    pub class: usize,
    /// Centre and size as shares of the image's width and height.
    pub bounds: [f32; 4],
    /// Its pixels, row by row, 1 where it is; for a model with masks.
    pub mask: Option<Vec<f32>>,
}

/// The weights of the terms; by default those of the paper.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SetLoss {
    /// Of `|b - b̂|_1`, when matching too.
    pub l1: f64,
    /// Of the GIoU, when matching too.
    pub giou: f64,
    /// Of a prediction that no object is matched with, beside 1 for the others.
    pub no_object: f64,
    /// Of the focal loss of masks.
    pub focal: f64,
    /// Of the dice loss of masks.
    pub dice: f64,
}

impl Default for SetLoss {
    fn default() -> Self {
        Self {
            l1: 5.0,
            giou: 2.0,
            no_object: 0.1,
            focal: 1.0,
            dice: 1.0,
        }
    }
}

/// The loss of a batch.
#[derive(Debug, Clone)]
pub struct Losses {
    /// What is minimised, `[1]`: the sum of the two [`terms`](Self::terms).
    pub total: Tensor<1>,
    /// The terms of classes, and those of boxes and masks, with their weights, `[1]` each; each with the number that it is a mean over:
    /// the sum of the weights of the classes, and the objects.
    pub terms: [(Tensor<1>, f64); 2],
    /// The class term of the last layer, `[1]`.
    pub class: Tensor<1>,
    /// `|b - b̂|_1` of the last layer, without its weight, `[1]`.
    pub l1: Tensor<1>,
    /// `1 - GIoU` of the last layer, without its weight, `[1]`.
    pub giou: Tensor<1>,
    /// Focal and dice loss of the masks, without their weights, `[1]` each.
    pub mask: Option<[Tensor<1>; 2]>,
}

impl SetLoss {
    /// The loss of what was `found` in images that show `targets`, a list for each image. `masks` draws the masks of predictions
    /// `[image, query]` ([`Detector::masks`](crate::image::Detector::masks)).
    ///
    /// # Errors
    /// Predictions that are not finite.
    ///
    /// # Panics
    /// If there are not as many lists as images, or a class is not one of the model's.
    pub fn of(
        &self,
        found: &Detected,
        targets: &[Vec<Target>],
        masks: impl FnOnce(&[[usize; 2]]) -> Option<Tensor<3>>,
    ) -> Result<Losses, AssignmentError> {
        let count = targets.iter().map(Vec::len).sum::<usize>() as f64;
        let objects = count.max(1.0);
        let mut sums: Option<[Tensor<1>; 2]> = None;
        let mut classes = 0.0;
        let mut last = None;
        for predicted in &found.layers {
            let pairs = self.matched(predicted, targets)?;
            let class;
            (class, classes) = self.class(predicted, targets, &pairs);
            let [l1, giou] = boxes(predicted, targets, &pairs).map(|sum| sum / objects);
            let placed = l1.clone() * self.l1 + giou.clone() * self.giou;
            sums = Some(match sums {
                None => [class.clone(), placed],
                Some([all, others]) => [all + class.clone(), others + placed],
            });
            last = Some((class, l1, giou, pairs));
        }
        let ([all, mut others], (class, l1, giou, pairs)) = sums
            .zip(last)
            .expect("a detector predicts after at least one layer");
        let with_masks: Vec<&Pair> = pairs.iter().filter(|pair| pair.mask().is_some()).collect();
        let mut mask = None;
        if !with_masks.is_empty() {
            let chosen: Vec<[usize; 2]> = with_masks.iter().map(|pair| pair.place()).collect();
            if let Some(drawn) = masks(&chosen) {
                let terms = pixels(drawn, &with_masks).map(|sum| sum / objects);
                let [focal, dice] = terms.clone();
                others = others + focal * self.focal + dice * self.dice;
                mask = Some(terms);
            }
        }
        Ok(Losses {
            total: all.clone() + others.clone(),
            terms: [(all, classes), (others, count)],
            class,
            l1,
            giou,
            mask,
        })
    }

    /// The cheapest pairs of predictions and objects, image by image.
    ///
    /// # Errors
    /// Predictions that are not finite.
    pub fn matched<'a>(
        &self,
        predicted: &Predicted,
        targets: &'a [Vec<Target>],
    ) -> Result<Vec<Pair<'a>>, AssignmentError> {
        let [batch, queries, classes] = predicted.logits.dims();
        assert_eq!(batch, targets.len(), "a list of objects for each image");
        let numbers = |tensor: Tensor<3>| -> Vec<f32> {
            let data = tensor.into_data();
            data.iter::<f32>().collect()
        };
        let logs = numbers(log_softmax(predicted.logits.clone(), 2));
        let boxes = numbers(predicted.boxes.clone());
        let mut pairs = vec![];
        for (image, objects) in targets.iter().enumerate() {
            let mut costs = Vec::with_capacity(queries * objects.len());
            for query in image * queries..(image + 1) * queries {
                let found: [f32; 4] = std::array::from_fn(|i| boxes[query * 4 + i]);
                for object in objects {
                    let log = logs[query * classes..][..classes - 1][object.class];
                    let apart = found.iter().zip(&object.bounds);
                    let l1: f64 = apart.map(|(a, b)| f64::from((a - b).abs())).sum();
                    let [a, b] = [found, object.bounds].map(Corners::of);
                    let giou = f64::from(a.generalized_iou(b));
                    costs.push(-f64::from(log.exp()) + self.l1 * l1 - self.giou * giou);
                }
            }
            let assigned = assign(&costs, queries, objects.len())?;
            pairs.extend(assigned.into_iter().map(|[query, object]| Pair {
                image,
                query,
                target: &objects[object],
            }));
        }
        Ok(pairs)
    }

    /// The weighted mean of `-log p(target)`.
    fn class(
        &self,
        predicted: &Predicted,
        targets: &[Vec<Target>],
        pairs: &[Pair],
    ) -> (Tensor<1>, f64) {
        let [batch, queries, classes] = predicted.logits.dims();
        debug_assert_eq!(batch, targets.len());
        let rows = batch * queries;
        let mut target = vec![classes - 1; rows];
        for pair in pairs {
            target[pair.image * queries + pair.query] = pair.target.class;
        }
        let weight = |&class: &usize| match class == classes - 1 {
            true => self.no_object,
            false => 1.0,
        };
        let whole: f64 = target.iter().map(weight).sum();
        // The share of each row, in the column of its target.
        let mut shares = vec![0.0f32; rows * classes];
        for (row, class) in target.iter().enumerate() {
            shares[row * classes + class] = (weight(class) / whole.max(f64::MIN_POSITIVE)) as f32;
        }
        let device = predicted.logits.device();
        let shares = Tensor::<2>::from_data(TensorData::new(shares, [rows, classes]), &device);
        let logs = log_softmax(predicted.logits.clone().reshape([rows, classes]), 1);
        (-sum(logs * shares), whole)
    }
}

/// A prediction and the object that it was matched with.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    /// The image.
    pub image: usize,
    /// The query.
    pub query: usize,
    /// The object.
    pub target: &'a Target,
}

impl Pair<'_> {
    fn place(&self) -> [usize; 2] {
        [self.image, self.query]
    }

    fn mask(&self) -> Option<&[f32]> {
        self.target.mask.as_deref()
    }
}

/// The sums of `|b - b̂|_1` and of `1 - GIoU` over the pairs.
fn boxes(predicted: &Predicted, targets: &[Vec<Target>], pairs: &[Pair]) -> [Tensor<1>; 2] {
    let [batch, queries, _] = predicted.boxes.dims();
    debug_assert_eq!(batch, targets.len());
    let device = predicted.boxes.device();
    if pairs.is_empty() {
        return [(); 2].map(|()| Tensor::zeros([1], &device));
    }
    let count = pairs.len();
    let places = pairs
        .iter()
        .map(|pair| (pair.image * queries + pair.query) as i32);
    let places: Tensor<1, Int> =
        Tensor::from_data(TensorData::new(places.collect(), [count]), &device);
    let all = predicted.boxes.clone().reshape([batch * queries, 4]);
    let found = all.select(0, places); // [pairs, 4]
    let wanted: Vec<f32> = pairs.iter().flat_map(|pair| pair.target.bounds).collect();
    let wanted = Tensor::<2>::from_data(TensorData::new(wanted, [count, 4]), &device);
    let l1 = sum((found.clone() - wanted.clone()).abs());
    let giou = generalized_iou(to_corners(found), to_corners(wanted));
    [l1, sum(-giou + 1.0)]
}

/// The sums of focal and dice loss over masks `drawn [pairs, height, width]`, before the sigmoid.
fn pixels(drawn: Tensor<3>, pairs: &[&Pair]) -> [Tensor<1>; 2] {
    let [count, height, width] = drawn.dims();
    let size = height * width;
    let wanted: Vec<f32> = pairs
        .iter()
        .filter_map(|pair| pair.mask())
        .flatten()
        .copied()
        .collect();
    let device = drawn.device();
    let wanted = Tensor::<2>::from_data(TensorData::new(wanted, [count, size]), &device);
    let logits = drawn.reshape([count, size]);
    let p = sigmoid(logits.clone());
    let rest = -wanted.clone() + 1.0;
    // -log p of pixels of the object, -log (1 - p) of the others.
    let surprise =
        -(log_sigmoid(logits.clone()) * wanted.clone() + log_sigmoid(-logits) * rest.clone());
    let missed = p.clone() * rest.clone() + (-p.clone() + 1.0) * wanted.clone(); // 1 - p_t
    let alpha = wanted.clone() * FOCAL_ALPHA + rest * (1.0 - FOCAL_ALPHA);
    let focal = sum(alpha * missed.clone() * missed * surprise) / size as f64;
    let shared = (p.clone() * wanted.clone()).sum_dim(1) * 2.0 + 1.0;
    let dice = shared / (p.sum_dim(1) + wanted.sum_dim(1) + 1.0);
    [focal, sum(-dice + 1.0)]
}
