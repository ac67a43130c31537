//! Scores of captions against pycocoevalcap (`golden/captions_golden.py` and its output), and their refusals.

use regard_evaluate::{CaptionCounts, CaptionScores, Resampled};
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
    // The sixth has contractions, those behind it orders without a match or without an n-gram.
    assert_eq!(cases.len(), 11);
    for case in cases {
        let found = CaptionScores::of(&case.captions, &case.references).unwrap();
        assert!((found.cider_d - case.cider_d).abs() < 1e-9, "{found}");
        for (found, expected) in found.bleu.iter().zip(case.bleu) {
            // pycocoevalcap adds 1e-9 to every count of n-grams.
            let expected = 100.0 * expected;
            let most = 1e-6 * expected.min(1.0);
            assert!((found - expected).abs() <= most, "{found} {expected}");
        }
    }
}

#[test]
fn any_choice_of_images_has_the_scores_of_its_captions() {
    let captions = ["a red ball", "two dogs run", "a b c d e f"];
    let references = [
        vec!["a red ball", "the ball"],
        vec!["two dogs run fast"],
        vec!["a b c d e g"],
    ];
    let counts = CaptionCounts::collect(&captions, &references).unwrap();
    let all = CaptionScores::of(&captions, &references).unwrap();
    assert_eq!(counts.scores(), all);
    assert_eq!(counts.bleu_4().all(), Some(all.bleu[3]));
    assert_eq!(counts.cider_d().all(), Some(all.cider_d));
    let drawn = [2, 0, 2];
    let chosen = drawn.map(|image: u32| captions[image as usize]);
    let chosen_references = drawn.map(|image| references[image as usize].clone());
    let chosen = CaptionScores::of(&chosen, &chosen_references).unwrap();
    let bleu = counts.bleu_4().score(&drawn).unwrap();
    assert!((bleu - chosen.bleu[3]).abs() < 1e-9, "{bleu}");
    // How frequent an n-gram is, is counted in all references: CIDEr-D is a mean over images.
    let one = |image| counts.cider_d().score(&[image]).unwrap();
    let mean = (2.0 * one(2) + one(0)) / 3.0;
    assert!((counts.cider_d().score(&drawn).unwrap() - mean).abs() < 1e-12);
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
