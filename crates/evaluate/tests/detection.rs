//! Average precision equals that of pycocotools (`golden/detection_golden.py`).

use regard_evaluate::{
    AveragePrecision, DetectedImage, FoundObject, TrueObject, box_iou, mask_iou, mean_iou,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    images: usize,
    classes: usize,
    truth: Vec<Object>,
    found: Vec<Object>,
    bbox: Scores,
    segm: Scores,
}

#[derive(Deserialize)]
struct Object {
    image: usize,
    category: usize,
    bbox: [f64; 4],
    #[serde(default)]
    score: f64,
    #[serde(default)]
    crowd: u8,
}

#[derive(Debug, Deserialize)]
struct Scores {
    ap: f64,
    ap50: f64,
    ap75: f64,
    classes: Vec<Option<f64>>,
}

/// The pixels of a box as the script fills them: rows and columns from its rounded corner, at least one, of 40.
fn pixels([x, y, width, height]: [f64; 4]) -> [usize; 4] {
    // Python rounds halves to even.
    let place = |value: f64| value.round_ties_even() as usize;
    let side = |from: f64, length: f64| {
        let from = place(from);
        [from.min(40), (from + place(length).max(1)).min(40)]
    };
    let ([left, right], [top, bottom]) = (side(x, width), side(y, height));
    [left, top, right, bottom]
}

fn overlap_of_masks(found: &Object, truth: &Object) -> f64 {
    let [a, b] = [found, truth].map(|object| pixels(object.bbox));
    let area = |[left, top, right, bottom]: [usize; 4]| {
        right.saturating_sub(left) * bottom.saturating_sub(top)
    };
    let shared = [
        a[0].max(b[0]),
        a[1].max(b[1]),
        a[2].min(b[2]),
        a[3].min(b[3]),
    ];
    mask_iou(area(shared), area(a), area(b), truth.crowd == 1)
}

fn images(case: &Case, overlap: impl Fn(&Object, &Object) -> f64) -> Vec<DetectedImage> {
    let of = |objects: &'static str, image: usize| {
        let all = if objects == "found" {
            &case.found
        } else {
            &case.truth
        };
        all.iter().filter(move |object| object.image == image)
    };
    let image = |image: usize| DetectedImage {
        found: of("found", image)
            .map(|object| FoundObject {
                class: object.category,
                score: object.score,
            })
            .collect(),
        truth: of("truth", image)
            .map(|object| TrueObject {
                class: object.category,
                crowd: object.crowd == 1,
            })
            .collect(),
        overlap: of("found", image)
            .flat_map(|found| {
                of("truth", image)
                    .map(|truth| overlap(found, truth))
                    .collect::<Vec<_>>()
            })
            .collect(),
    };
    (0..case.images).map(image).collect()
}

fn check(name: &str, found: &AveragePrecision, expected: &Scores) {
    let same = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{name}: {found:?} {expected:?}");
    same(found.ap, expected.ap);
    same(found.ap50, expected.ap50);
    same(found.ap75, expected.ap75);
    assert_eq!(found.classes.len(), expected.classes.len());
    for (found, expected) in found.classes.iter().zip(&expected.classes) {
        match (found, expected) {
            (Some(found), Some(expected)) => same(*found, *expected),
            (found, expected) => assert_eq!(found, expected, "{name}"),
        }
    }
}

#[test]
fn average_precision_is_that_of_pycocotools() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("golden/detection.json")).unwrap();
    assert_eq!(cases.len(), 5);
    for (index, case) in cases.iter().enumerate() {
        let by_boxes = images(case, |a, b| box_iou(a.bbox, b.bbox, b.crowd == 1));
        let found = AveragePrecision::of(&by_boxes, case.classes);
        check(&format!("case {index}, boxes"), &found, &case.bbox);
        let by_masks = images(case, overlap_of_masks);
        let found = AveragePrecision::of(&by_masks, case.classes);
        check(&format!("case {index}, masks"), &found, &case.segm);
    }
}

#[test]
fn nothing_is_no_error() {
    let empty = AveragePrecision::of(&[], 3);
    assert_eq!((empty.ap, empty.classes), (0.0, vec![None; 3]));
    assert_eq!(mean_iou(&[], 0.5), None);
    let missed = DetectedImage {
        truth: vec![TrueObject {
            class: 0,
            crowd: false,
        }],
        ..DetectedImage::default()
    };
    assert_eq!(mean_iou(std::slice::from_ref(&missed), 0.5), Some(0.0));
    assert_eq!(AveragePrecision::of(&[missed], 1).ap, 0.0);
}

#[test]
fn masks_count_once_and_only_of_their_class() {
    let found = |class, score| FoundObject { class, score };
    let truth = |class| TrueObject {
        class,
        crowd: false,
    };
    let image = DetectedImage {
        found: vec![found(0, 0.6), found(0, 0.9), found(1, 0.4)],
        truth: vec![truth(0), truth(1)],
        overlap: vec![0.9, 0.9, 0.5, 0.5, 0.9, 0.9],
    };
    // The surer one takes the only object of class 0; that of class 1 is not sure enough.
    assert_eq!(mean_iou(&[image], 0.5), Some(0.25));
}
