//! Average precision, and the mean IoU of masks, equal those of pycocotools (`golden/detection_golden.py`), also of images that a
//! bootstrap draws.

use regard_evaluate::{
    AveragePrecision, DetectedImage, FoundObject, Matches, Resampled, TrueObject, box_iou,
    mask_iou, mean_iou, mean_iou_of,
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
    /// For each least score.
    mean_iou: Vec<(f64, f64)>,
    drawn: Drawn,
}

/// Some of the images, some of them several times, and the scores of a data set of these copies.
#[derive(Deserialize)]
struct Drawn {
    images: Vec<u32>,
    bbox: Scores,
    segm: Scores,
    mean_iou: f64,
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

fn overlap_of_boxes(found: &Object, truth: &Object) -> f64 {
    box_iou(found.bbox, truth.bbox, truth.crowd == 1)
}

fn cases() -> Vec<Case> {
    let cases: Vec<Case> = serde_json::from_str(include_str!("golden/detection.json")).unwrap();
    assert_eq!(cases.len(), 5);
    cases
}

#[test]
fn average_precision_is_that_of_pycocotools() {
    for (index, case) in cases().iter().enumerate() {
        let by_boxes = images(case, overlap_of_boxes);
        let found = AveragePrecision::of(&by_boxes, case.classes);
        check(&format!("case {index}, boxes"), &found, &case.bbox);
        let by_masks = images(case, overlap_of_masks);
        let found = AveragePrecision::of(&by_masks, case.classes);
        check(&format!("case {index}, masks"), &found, &case.segm);
    }
}

#[test]
fn average_precision_of_drawn_images_is_that_of_so_many_copies() {
    for (index, case) in cases().iter().enumerate() {
        let by_boxes = (images(case, overlap_of_boxes), &case.drawn.bbox);
        let by_masks = (images(case, overlap_of_masks), &case.drawn.segm);
        for (images, expected) in [by_boxes, by_masks] {
            let matches = Matches::new(&images, case.classes);
            let mut drawn = case.drawn.images.clone();
            // They are drawn in any order.
            drawn.reverse();
            for (score, expected) in [
                (matches.ap(), expected.ap),
                (matches.ap50(), expected.ap50),
                (matches.ap75(), expected.ap75),
            ] {
                let found = score.score(&drawn).unwrap();
                assert!((found - expected).abs() < 1e-12, "case {index}: {found}");
            }
        }
    }
}

#[test]
fn the_mean_iou_of_masks_is_that_of_pycocotools() {
    for (index, case) in cases().iter().enumerate() {
        let images = images(case, overlap_of_masks);
        for &(least_score, expected) in &case.mean_iou {
            let found = mean_iou(&images, least_score).unwrap();
            assert!((found - expected).abs() < 1e-12, "case {index}: {found}");
        }
        let drawn = mean_iou_of(&images, 0.5).score(&case.drawn.images).unwrap();
        let expected = case.drawn.mean_iou;
        assert!((drawn - expected).abs() < 1e-12, "case {index}: {drawn}");
    }
}

#[test]
fn images_without_objects_have_no_average_precision() {
    let image = |class| DetectedImage {
        found: vec![FoundObject {
            class: 0,
            score: 0.9,
        }],
        truth: vec![TrueObject {
            class,
            crowd: false,
        }],
        overlap: vec![0.8],
    };
    // The object of the second image has a class that does not count.
    let matches = Matches::new(&[image(0), image(1)], 1);
    let ap = matches.ap50();
    assert_eq!((ap.examples(), ap.score(&[1, 1])), (2, None));
    assert!(ap.score(&[0, 1]).unwrap() > 0.99);
    assert_eq!(Matches::default().ap().all(), None);
    assert_eq!(mean_iou_of(&[], 0.5).all(), None);
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
