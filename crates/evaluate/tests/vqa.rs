//! The accuracy of answers to questions about images against its definition (`golden/vqa_golden.py`).

use regard_evaluate::{normalize_answer, vqa_accuracy, vqa_target};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    normalized: Vec<Normalized>,
    judged: Vec<Judged>,
}

#[derive(Deserialize)]
struct Normalized {
    answer: String,
    normalized: String,
}

#[derive(Deserialize)]
struct Judged {
    answer: String,
    people: Vec<String>,
    accuracy: f64,
}

#[test]
fn answers_are_judged_as_defined() {
    let golden: Golden = serde_json::from_str(include_str!("golden/vqa.json")).unwrap();
    for Normalized { answer, normalized } in golden.normalized {
        assert_eq!(normalize_answer(&answer), normalized, "{answer:?}");
    }
    assert!(golden.judged.len() > 200);
    for Judged {
        answer,
        people,
        accuracy,
    } in golden.judged
    {
        let found = vqa_accuracy(&answer, &people);
        assert!(
            (found - accuracy).abs() < 1e-12,
            "{answer:?} of {people:?}: {found}, not {accuracy}"
        );
    }
}

#[test]
fn a_single_person_is_right_and_targets_grow_to_1() {
    assert_eq!(vqa_accuracy("Red.", &["red".to_owned()]), 1.0);
    assert_eq!(vqa_accuracy("blue", &["red".to_owned()]), 0.0);
    assert_eq!(vqa_accuracy("red", &[]), 0.0);
    let targets = [0, 1, 2, 3, 10].map(|given| vqa_target(given, 10));
    assert_eq!(targets, [0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0, 1.0]);
    assert_eq!(
        (vqa_target(1, 1), vqa_target(1, 2), vqa_target(0, 0)),
        (1.0, 0.5, 0.0)
    );
}
