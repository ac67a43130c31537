//! Options and vectors of an example: what they change, and which are refused.

use super::explained;
use crate::{refused, regard, stderr, stdout};

#[test]
fn an_option_changes_one_thing_of_an_example() {
    // NTM's example interpolates, shifts and sharpens; parameters that are not given stay as they are.
    let text = explained(["explain", "ntm", "--beta", "2"]);
    for part in ["β = 2", "g = 0.5", "γ = 2"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let text = explained(["explain", "ntm", "--gate", "1"]);
    assert!(text.contains("g = 1\n") && text.contains("γ = 2"), "{text}");
    // With another normaliser, or with given vectors, none of the example's parameters are used.
    let text = explained(["explain", "ntm", "--normalizer", "softmax"]);
    assert!(!text.contains("γ"), "{text}");
    let text = explained(["explain", "ntm", "--query", "1,0", "--keys", "1,0;0,1"]);
    assert!(text.contains("g = 1\n") && text.contains("γ = 1"), "{text}");
}

#[test]
fn numbers_of_layers_and_tokens_of_mechanisms_are_options() {
    let with = |name: &str, more: &[&str]| {
        stdout(
            &regard()
                .args(["explain", name])
                .args(more)
                .assert()
                .success(),
        )
    };
    let tiles = |more: &[&str]| {
        let told = with("flash", more);
        told.lines()
            .filter(|line| line.starts_with("tile ") && line.contains("scores:"))
            .count()
    };
    assert_eq!(tiles(&[]), 3);
    assert_eq!(tiles(&["--tile", "3"]), 2);
    assert_eq!(tiles(&["--tile", "3", "--length", "12"]), 4);
    assert!(explained(["explain", "rope", "--base", "100"]).contains("100^{-2i/d}"));
    let heads = explained(["explain", "multi-head", "--heads", "3"]);
    assert!(heads.contains("Concat(head_1, head_2, head_3)"), "{heads}");
    let tokens = explained(["explain", "causal", "--length", "5", "-q"]);
    assert!(
        tokens
            .lines()
            .any(|line| line.trim_start().starts_with('4')),
        "{tokens}"
    );
    // The mask of a sparse mechanism gives way to one that is named; that of `causal` stays.
    let window = |more: &[&str]| with("sliding-window", more);
    assert!(window(&[]).contains("window:3 & causal"));
    assert!(
        window(&["--mask", "window:5"]).contains("window:5")
            && !window(&["--mask", "window:5"]).contains("causal &")
    );
    assert!(explained(["explain", "causal", "--mask", "window:2"]).contains("causal & window:2"));
    refused(
        ["explain", "flash", "--tile", "1000000000"],
        2,
        ["`tile` is 1000000000", "1, 2, 3"],
    );
    refused(
        ["explain", "dot", "--length", "1000000000"],
        2,
        ["--length 1000000000", "1 to 64"],
    );
    refused(
        ["explain", "dot", "--tile", "2"],
        2,
        ["--tile is no option of dot", "--length"],
    );
    refused(
        [
            "explain", "dot", "--length", "4", "--query", "1", "--keys", "2",
        ],
        2,
        ["without vectors"],
    );
    refused(
        ["explain", "mask", "causal", "--heads", "2"],
        2,
        ["--heads"],
    );
}

#[test]
fn an_option_that_a_mechanism_does_not_have_is_refused() {
    refused(
        [
            "explain",
            "scaled-dot",
            "--query-weight",
            "1,0,0;0,1,0;0,0,1",
        ],
        2,
        [
            "--query-weight is no option of scaled-dot",
            "which has --scale, --softcap",
        ],
    );
    refused(
        ["explain", "dot", "--beta", "2"],
        2,
        [
            "--beta is no option of dot, which has --softcap",
            "--normalizer",
        ],
    );
    refused(
        ["explain", "words", "--sigmoid-bias", "0"],
        2,
        ["--sigmoid-bias is no option of dot"],
    );
    refused(
        ["explain", "dot", "--half-width", "2"],
        2,
        ["--half-width is no option of dot", "window:3"],
    );
    explained([
        "explain",
        "dot",
        "--normalizer",
        "sigmoid",
        "--sigmoid-bias",
        "0",
    ]);
    refused(
        ["explain", "mask", "causal", "--beta", "3"],
        2,
        ["--beta is an option of mechanisms", "--size"],
    );
    refused(
        ["explain", "mask", "causal", "--check"],
        2,
        ["--check is an option of mechanisms"],
    );
    refused(
        ["explain", "mask", "causal", "--digits", "3"],
        2,
        ["--digits is an option of mechanisms", "--size"],
    );
    refused(
        ["explain", "hard-sample", "--draw", "1"],
        2,
        ["`draw` is 1, expected from 0 to 1, and below 1"],
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
    refused(["explain", "selv"], 2, ["did you mean \"self\"?"]);
    refused(
        ["explain", "flash-atention"],
        2,
        ["did you mean \"flash-attention\"?"],
    );
    refused(["explain", "sofmax"], 2, ["did you mean \"softmax\"?"]);
    for arguments in [
        ["flash", "--causal"].as_slice(),
        &["flash", "causal"],
        &["flash", "--size", "3"],
        &["flash", "--heads", "3"],
        &["flash", "--beta", "1", "--digits", "2"],
        &["flash", "--query", "1,2"],
    ] {
        let assert = regard().arg("explain").args(arguments).assert().code(2);
        let said = stderr(&assert);
        assert!(
            said.contains("is no option of flash, which has --length, --tile, --svg"),
            "{said}"
        );
    }
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
    refused(["explain", "dot", "causal"], 2, ["regard explain mask"]);
    refused(
        ["explain", "dot", "--size", "3"],
        2,
        ["regard explain mask"],
    );
    refused(["explain", "mask"], 2, ["which mask?"]);
    refused(
        ["explain", "--list", "--png", "list.png"],
        2,
        ["cannot be used with"],
    );
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
