//! Boxes as tensors, and how much two of them overlap.
//!
//! ```text
//! centre and size  [x, y, width, height]  <->  corners  [left, top, right, bottom]
//! IoU(a, b)  = |a ∩ b| / |a ∪ b|                             0 to 1
//! GIoU(a, b) = IoU - (|hull| - |a ∪ b|) / |hull|             -1 to 1; hull: the smallest box around both
//! ```
//! All are shares of the image's width and height. GIoU (Rezatofighi et al. 2019) has a gradient where boxes do not touch, which IoU
//! has not. [`Corners`] does the same on plain numbers, without gradients.

use burn::tensor::Tensor;

/// Against division by 0 for boxes without area.
const SMALLEST: f32 = 1e-7;

/// Corners `[boxes, 4]` of `boxes [boxes, 4]` given by centre and size.
pub fn to_corners(boxes: Tensor<2>) -> Tensor<2> {
    let centre = boxes.clone().narrow(1, 0, 2);
    let half = boxes.narrow(1, 2, 2) * 0.5;
    Tensor::cat(vec![centre.clone() - half.clone(), centre + half], 1)
}

/// Centre and size `[boxes, 4]` of `corners [boxes, 4]`.
pub fn from_corners(corners: Tensor<2>) -> Tensor<2> {
    let low = corners.clone().narrow(1, 0, 2);
    let high = corners.narrow(1, 2, 2);
    Tensor::cat(vec![(low.clone() + high.clone()) * 0.5, high - low], 1)
}

/// The GIoU of each of `a [boxes, 4]` with the one of `b` in the same row, both corners: `[boxes]`.
pub fn generalized_iou(a: Tensor<2>, b: Tensor<2>) -> Tensor<1> {
    let low = |x: &Tensor<2>| x.clone().narrow(1, 0, 2);
    let high = |x: &Tensor<2>| x.clone().narrow(1, 2, 2);
    let area = |sides: Tensor<2>| {
        let [across, down] = [0, 1].map(|axis| sides.clone().narrow(1, axis, 1));
        (across * down).squeeze_dim::<1>(1)
    };
    let shared = high(&a).min_pair(high(&b)) - low(&a).max_pair(low(&b));
    let shared = area(shared.clamp_min(0.0));
    let union = area(high(&a) - low(&a)) + area(high(&b) - low(&b)) - shared.clone();
    let hull = area(high(&a).max_pair(high(&b)) - low(&a).min_pair(low(&b)));
    let [union_, hull_] = [&union, &hull].map(|area| area.clone().clamp_min(SMALLEST));
    shared / union_ - (hull - union) / hull_
}

/// A box by its corners, left, top, right, bottom.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Corners(pub [f32; 4]);

impl Corners {
    /// The corners of a box of this centre and size.
    pub fn of([x, y, width, height]: [f32; 4]) -> Self {
        Self([
            x - width / 2.0,
            y - height / 2.0,
            x + width / 2.0,
            y + height / 2.0,
        ])
    }

    /// Width times height, 0 for a box that is turned inside out.
    pub fn area(self) -> f32 {
        let [left, top, right, bottom] = self.0;
        (right - left).max(0.0) * (bottom - top).max(0.0)
    }

    /// What both cover, and what either covers.
    fn shared_and_union(self, other: Self) -> [f32; 2] {
        let ([l, t, r, b], [left, top, right, bottom]) = (self.0, other.0);
        let shared = Self([l.max(left), t.max(top), r.min(right), b.min(bottom)]).area();
        [shared, self.area() + other.area() - shared]
    }

    /// Intersection over union; 0 for two boxes without area.
    pub fn iou(self, other: Self) -> f32 {
        let [shared, union] = self.shared_and_union(other);
        shared / union.max(SMALLEST)
    }

    /// The generalized IoU.
    pub fn generalized_iou(self, other: Self) -> f32 {
        let ([l, t, r, b], [left, top, right, bottom]) = (self.0, other.0);
        let hull = Self([l.min(left), t.min(top), r.max(right), b.max(bottom)]).area();
        let [shared, union] = self.shared_and_union(other);
        shared / union.max(SMALLEST) - (hull - union) / hull.max(SMALLEST)
    }
}
