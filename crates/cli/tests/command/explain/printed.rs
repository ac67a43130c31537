//! What is printed: tables of steps, what computes a mechanism, JSON, results alone, and masks.

use serde_json::Value;

use super::{explained, json};
use crate::{refused, regard, snapshot, stdout};

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
fn what_computes_a_mechanism_is_said() {
    for (arguments, said) in [
        (vec!["dot"], "dot: the dot-product kernel"),
        (vec!["gpt"], "causal: the dot-product kernel"),
        (
            vec!["sink", "--softcap", "2"],
            "sink: the dot-product kernel",
        ),
        (vec!["local-m"], "local-m: the dot-product kernel"),
        (vec!["bahdanau"], "additive: the additive kernel"),
        (
            vec!["sparsemax"],
            "sparsemax: no kernel serves the sparsemax normaliser: plain operations",
        ),
        (
            vec!["dot", "--normalizer", "entmax15"],
            "dot: no kernel serves the 1.5-entmax normaliser: plain operations",
        ),
        (
            vec!["additive", "--causal"],
            "additive: no kernel serves a mask other than padding: plain operations",
        ),
        (
            vec!["local-p"],
            "local-p: no kernel serves local-p: plain operations",
        ),
        (
            vec!["graves"],
            "gaussian-window: no kernel serves the Gaussian window score: plain operations",
        ),
    ] {
        let all: Vec<&str> = ["explain"]
            .into_iter()
            .chain(arguments)
            .chain(["--path"])
            .collect();
        let assert = regard().args(&all).assert().success();
        assert_eq!(stdout(&assert), format!("{said}\n"), "{all:?}");
    }
    let list = json(["explain", "--list", "--json"]);
    for mechanism in list["mechanisms"].as_array().unwrap() {
        let name = mechanism["name"].as_str().unwrap();
        let said = explained(["explain", name, "--path"]);
        assert!(said.starts_with(name) && said.contains("kernel"), "{said}");
    }
    let value = json(["explain", "ntm", "--path", "--json"]);
    assert_eq!(value["unserved"], "the NTM addressing normaliser");
    assert_eq!(value["kernel"], Value::Null);
    refused(
        ["explain", "dot", "--path", "--check"],
        2,
        ["cannot be used with"],
    );
    refused(
        ["explain", "mask", "causal", "--path"],
        2,
        ["--path is an option of mechanisms"],
    );
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
    let awareness = explained(["explain", "awareness"]);
    assert_eq!(line(&awareness, "scores:"), ["power", "3", "1", "2"]);
    assert!(line(&awareness, "context:")[1].starts_with("10.1"));
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
    assert_eq!(list["mechanisms"].as_array().unwrap().len(), 28);
    assert_eq!(list["topics"].as_array().unwrap().len(), 18);
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
    // The list gives the length of the sequence.
    let documents = explained(["explain", "mask", "document:0,0,1", "-q"]);
    assert_eq!(documents, "■■·\n■■·\n··■\n");
    // --causal is combined with the whole mask, not with its last alternative.
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
        on_scores.contains("masked scores: the mask is window:1; · is hidden"),
        "{on_scores}"
    );
    let first = explained(["explain", "dot", "--mask", "global:0", "--causal"]);
    assert!(
        first.contains("the mask is global:0 & causal (positions count from 0); · is hidden"),
        "{first}"
    );
    let first = explained(["explain", "mask", "longformer:2:0"]);
    assert!(
        first.contains("■ is seen; positions count from 0\n"),
        "{first}"
    );
    // A mask with `|` can itself be added by --mask.
    let added = ["--mask", "window:1 | global:0", "--size", "3", "-q"];
    let all = regard()
        .args(["explain", "mask", "causal"])
        .args(added)
        .assert();
    assert_eq!(stdout(&all.success()), "■··\n■■·\n■·■\n");
    // The blocks give the length of the sequence.
    let blocks = explained(["explain", "mask", "block-sparse:1:10/11", "-q"]);
    assert_eq!(blocks, "■·\n■■\n");
}
