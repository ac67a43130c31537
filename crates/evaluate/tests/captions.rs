//! Scores of captions against pycocoevalcap (`golden/captions_golden.py` and its output), and their refusals.

use regard_evaluate::CaptionScores;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    captions: Vec<String>,
    references: Vec<Vec<String>>,
    bleu: [f64; 4],
    cider_d: f64,
}

#[test]
fn captions_score_as_in_pycocoevalcap() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("golden/captions.json")).unwrap();
    assert_eq!(cases.len(), 5);
    for case in cases {
        let found = CaptionScores::of(&case.captions, &case.references).unwrap();
        assert!((found.cider_d - case.cider_d).abs() < 1e-9, "{found}");
        for (found, expected) in found.bleu.iter().zip(case.bleu) {
            // pycocoevalcap adds 1e-9 to every count of n-grams.
            assert!(
                (found - 100.0 * expected).abs() < 1e-6,
                "{found} {expected}"
            );
        }
    }
}

#[test]
fn equal_captions_have_the_highest_bleu_and_unequal_numbers_are_refused() {
    let captions = ["a small red ball", "two dogs run on the street"];
    let references = captions.map(|caption| vec![caption]);
    let scores = CaptionScores::of(&captions, &references).unwrap();
    assert!(scores.bleu.iter().all(|bleu| (bleu - 100.0).abs() < 1e-9));
    assert!((scores.cider_d - 10.0).abs() < 1e-9);
    let none: [Vec<&str>; 2] = [vec!["a"], vec![]];
    for error in [
        CaptionScores::of(&captions[..1], &references),
        CaptionScores::of(&captions, &none),
        CaptionScores::of::<&str, Vec<&str>, &str>(&[], &[]),
    ] {
        error.unwrap_err();
    }
    // A caption without words scores 0, and is no error.
    let empty = CaptionScores::of(&["", ""], &references).unwrap();
    assert_eq!((empty.bleu, empty.cider_d), ([0.0; 4], 0.0));
}
