//! `regard explain`: worked examples and masks.

use std::fs;

use serde_json::Value;
use tempfile::tempdir;

use crate::{inside, refused, run, snapshot, stderr, stdout};

fn explained<const N: usize>(arguments: [&str; N]) -> String {
    let assert = run(arguments).success();
    assert_eq!(stderr(&assert), "");
    stdout(&assert)
}

fn json<const N: usize>(arguments: [&str; N]) -> Value {
    serde_json::from_str(&explained(arguments)).expect("JSON")
}

#[test]
fn steps_are_printed_as_tables() {
    let dot = [
        "explain",
        "dot",
        "--query",
        "10,5,10",
        "--keys",
        "0,1,1;5,0,1;1,1,0;0,5,1",
    ];
    snapshot("explain-dot.txt", &explained(dot));
    snapshot("explain-words.txt", &explained(["explain", "words"]));
    snapshot("explain-softmax.txt", &explained(["explain", "softmax"]));
    snapshot("explain-causal.txt", &explained(["explain", "causal"]));
    snapshot(
        "explain-additive.txt",
        &explained([
            "explain",
            "bahdanau",
            "--query",
            "1,0",
            "--keys",
            "1,2;-3,4",
            "--vector",
            "1,-1",
            "--normalizer",
            "sparsemax",
        ]),
    );
    snapshot(
        "explain-ntm.txt",
        &explained([
            "explain",
            "ntm",
            "--previous",
            "0,1,0",
            "--gate",
            "0",
            "--shift",
            "0,0,1",
        ]),
    );
    snapshot(
        "explain-local-p.txt",
        &explained(["explain", "local-p", "--digits", "4"]),
    );
    snapshot("explain-list.txt", &explained(["explain", "--list"]));
}

#[test]
fn the_worked_numbers_come_out_exactly() {
    let words = explained(["explain", "words"]);
    for score in ["0.7557", "0.4461", "0.4341"] {
        assert!(words.contains(score), "{words}");
    }
    let lookup = explained(["explain", "lookup"]);
    let line = |text: &str, after: &str| {
        let rest = &text[text.find(after).expect(after)..];
        rest.lines()
            .nth(2)
            .unwrap()
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(line(&lookup, "scores:"), ["q1", "15", "60", "15", "35"]);
    assert_eq!(line(&lookup, "weights:"), ["q1", "≈0", "≈1", "≈0", "≈0"]);
    let context = line(&lookup, "context:");
    assert_eq!(context, ["q1", "≈5", "≈0", "1"]);
    let softmax = explained(["explain", "softmax"]);
    for weight in ["0.65900114", "0.24243297", "0.09856589"] {
        assert!(softmax.contains(weight), "{softmax}");
    }
}

#[test]
fn programs_get_json() {
    let value = json(["explain", "lookup", "--json"]);
    assert_eq!(value["mechanism"], "dot");
    assert_eq!(
        value["scores"],
        serde_json::json!([[15.0, 60.0, 15.0, 35.0]])
    );
    let weight = value["weights"][0][1].as_f64().unwrap();
    assert!(
        (weight - 1.0).abs() < 1e-9 && weight != 1.0,
        "all digits: {weight}"
    );
    assert_eq!(value["steps"][0]["name"], "queries");

    let causal = json(["explain", "causal", "--json"]);
    let masked = causal["steps"]
        .as_array()
        .unwrap()
        .iter()
        .find(|step| step["name"] == "masked scores");
    assert_eq!(masked.unwrap()["table"]["rows"][0]["cells"][1], Value::Null);

    let list = json(["explain", "--list", "--json"]);
    assert_eq!(list["mechanisms"].as_array().unwrap().len(), 22);
    assert_eq!(list["masks"][1]["name"], "causal");

    let mask = json(["explain", "mask", "causal", "--size", "2", "--json"]);
    assert_eq!(
        mask["seen"],
        serde_json::json!([[true, false], [true, true]])
    );
    assert_eq!(mask["pairs_seen"], 3);
}

#[test]
fn quiet_prints_the_result_alone() {
    let text = explained(["explain", "softmax", "--quiet"]);
    assert!(
        text.starts_with("weights:") && text.contains("context:") && !text.contains("scores:"),
        "{text}"
    );
    assert_eq!(
        explained(["explain", "mask", "causal", "--size", "2", "-q"]),
        "■·\n■■\n"
    );
}

#[test]
fn masks_are_drawn() {
    let text = explained(["explain", "mask", "window:3", "--causal"]);
    snapshot("explain-mask.txt", &text);
    let sized = explained(["explain", "mask", "causal", "--size", "2x4"]);
    assert!(sized.contains("■■■·\n■■■■\n7 of 8 pairs"), "{sized}");
    // A list says how long the sequence is.
    let documents = explained(["explain", "mask", "document:0,0,1", "-q"]);
    assert_eq!(documents, "■■·\n■■·\n··■\n");
    // Whatever is added holds for the whole of what was given.
    let either = explained([
        "explain",
        "mask",
        "window:1 | global:0",
        "--causal",
        "--size",
        "3",
        "-q",
    ]);
    assert_eq!(either, "■··\n■■·\n■·■\n");
    let on_scores = explained(["explain", "dot", "--mask", "window:1"]);
    assert!(
        on_scores.contains("masked scores: hidden (·)"),
        "{on_scores}"
    );
}

#[test]
fn pictures_are_written() {
    let folder = tempdir().unwrap();
    let (svg, svg_path) = inside(folder.path(), "words.svg");
    let (png, png_path) = inside(folder.path(), "words.png");
    explained(["explain", "words", "--svg", &svg_path, "--png", &png_path]);
    let picture = fs::read_to_string(&svg).unwrap();
    for part in [
        "hello",
        "tomato",
        "hello · hi = 0.7557",
        "hi · tomato = 0.4341",
    ] {
        assert!(picture.contains(part), "{part}");
    }
    assert!(fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    // Vectors of another size have no place in space; their weights have a heat map.
    explained(["explain", "softmax", "--svg", &svg_path]);
    assert!(fs::read_to_string(&svg).unwrap().contains("q1 → k1: 0.66"));
    explained([
        "explain",
        "mask",
        "longformer:2:0",
        "--svg",
        &svg_path,
        "--png",
        &png_path,
    ]);
    assert!(fs::read_to_string(&svg).unwrap().contains("pairs seen"));
    let negative = [
        "explain", "identity", "--query", "1", "--keys", "-1;2", "--svg", &svg_path,
    ];
    refused(negative, 1, ["nothing to draw", "not negative"]);
}

#[test]
fn checks_say_why_attention_is_uniform() {
    let uniform = explained([
        "explain",
        "scaled-dot",
        "--query",
        "4,0;0,4",
        "--keys",
        "4,0;0,4",
        "--scale",
        "1e-5",
        "--check",
    ]);
    assert!(
        uniform.contains("scale:") && uniform.contains("1/√d"),
        "{uniform}"
    );
    let good = explained([
        "explain",
        "scaled-dot",
        "--query",
        "2,0;0,2",
        "--keys",
        "2,0;0,2",
        "--check",
    ]);
    assert!(good.contains("nothing found"), "{good}");
    let value = json(["explain", "lookup", "--check", "--json"]);
    assert!(
        value["findings"][0].as_str().unwrap().contains("saturated"),
        "{value}"
    );
    refused(
        ["explain", "cosine", "--check"],
        2,
        ["--check reads dot products"],
    );
}

#[test]
fn a_wrong_example_is_refused_with_the_way_out() {
    refused(["explain"], 2, ["NAME"]);
    refused(
        ["explain", "dott"],
        2,
        ["no mechanism \"dott\"", "did you mean \"dot\"?"],
    );
    refused(["explain", "bahdanu"], 2, ["did you mean \"bahdanau\"?"]);
    refused(["explain", "qqq"], 2, ["--list"]);
    refused(
        ["explain", "dot", "--normalizer", "sparsmax"],
        2,
        ["did you mean \"sparsemax\"?"],
    );
    refused(
        ["explain", "dot", "--query", "1,2"],
        2,
        ["--keys is missing"],
    );
    refused(
        ["explain", "dot", "--keys", "1,2"],
        2,
        ["--query is missing"],
    );
    refused(
        ["explain", "dot", "--query", "1,2", "--keys", "1,2;3"],
        2,
        ["`keys`: row 2 is of size 1, expected 2"],
    );
    refused(
        ["explain", "dot", "--query", "1,2", "--keys", "1,2;3,x"],
        2,
        ["vector 2", "\"x\" is not a number"],
    );
    refused(
        ["explain", "dot", "--query", "nan", "--keys", "1"],
        2,
        ["`queries` is NaN"],
    );
    refused(
        ["explain", "dot", "--query", "1,2", "--keys", "1,2,3"],
        2,
        ["`key size` is 3, expected 2"],
    );
    refused(["explain", "dot", "--half-width", "2"], 2, ["window:3"]);
    refused(["explain", "dot", "causal"], 2, ["regard explain mask"]);
    refused(
        ["explain", "dot", "--size", "3"],
        2,
        ["regard explain mask"],
    );
    refused(["explain", "mask"], 2, ["which mask?"]);
    refused(
        ["explain", "mask", "windw:3"],
        2,
        ["did you mean \"window\"?"],
    );
    refused(
        ["explain", "mask", "window"],
        2,
        ["expected window:WIDTH[:DILATION]"],
    );
    refused(
        ["explain", "mask", "causal", "--size", "0"],
        2,
        ["from 1 to 512"],
    );
    refused(
        ["explain", "mask", "document:0,1", "--size", "3"],
        2,
        ["expected 3 positions"],
    );
}
