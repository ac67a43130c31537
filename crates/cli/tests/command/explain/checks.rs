//! `--check`: what it finds in scores and weights, and why they are so.

use super::{explained, json};
use crate::{refused, regard, stdout};

#[test]
fn checks_say_why_attention_is_uniform() {
    // The words are short and point about the same way; they are not orthogonal.
    for preset in ["words", "causal"] {
        let text = explained(["explain", preset, "--check"]);
        for part in [
            "uniform weights",
            "the vectors are short, queries 0.841 and keys 0.841",
            "similar directions",
            "from 0.6432 to 1.0000",
        ] {
            assert!(text.contains(part), "{preset}: {part:?} is not in {text}");
        }
        assert!(
            !text.contains("orthogonal") && !text.contains("the scale"),
            "{text}"
        );
    }
    let tiny = explained(["explain", "scaled-dot", "--scale", "0.0001", "--check"]);
    assert!(
        tiny.contains("the scale 0.0001 is 5774 times smaller than 1/√d = 0.577"),
        "{tiny}"
    );
    let check = |query: &str, keys: &str, more: &[&str]| -> String {
        let mut command = regard();
        command.args([
            "explain",
            "scaled-dot",
            "--query",
            query,
            "--keys",
            keys,
            "--check",
        ]);
        stdout(&command.args(more).assert().success())
    };
    let square = "4,0;0,4";
    let cases: [(&str, &str, &[&str], &str); 8] = [
        ("2,0;0,2", "2,0;0,2", &[], "nothing found"),
        (
            square,
            square,
            &["--scale", "1e-5"],
            "Cause: the scale 1.00e-5 is",
        ),
        (
            square,
            square,
            &["--softcap", "0.01"],
            "Cause: the softcap 0.01 is too low",
        ),
        (
            "0.01,0;0,0.01",
            square,
            &[],
            "Cause: the vectors are short, queries 0.01 and keys 4",
        ),
        (
            "4,0,0;4,0,1e-3",
            "0,4,0;0,0,4",
            &[],
            "nearly orthogonal (no cosine is beyond ±0.00025)",
        ),
        (square, "1,1;1,1.001", &[], "equal keys: they differ by 0.0"),
        (
            "4,0",
            square,
            &["--mask", "keep:0,1"],
            "mask: q1 (1 of 1 queries) sees one of the 2 keys",
        ),
        (
            square,
            "4,0;0,4;4,0",
            &[],
            "(k1 and k3 are the same vector)",
        ),
    ];
    for (query, keys, more, part) in cases {
        let text = check(query, keys, more);
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    // The window of local attention hides keys as a mask does; named keys are called by their names.
    let local = explained(["explain", "local-m", "--half-width", "0", "--check"]);
    assert!(
        local.contains("mask: hello, hi and tomato (3 of 3 queries) see one of the 3 keys"),
        "{local}"
    );
    // A Gaussian changes the weights that are checked.
    let predicted = explained(["explain", "local-p", "--check"]);
    assert!(
        predicted.contains("checks of the softmax, before the Gaussian:\n"),
        "{predicted}"
    );
    let value = json(["explain", "lookup", "--check", "--json"]);
    let finding = value["findings"][0].as_str().unwrap();
    assert!(
        finding.contains("saturated")
            && finding.contains("the vectors are long, queries 15 and keys"),
        "{finding}"
    );
    // Numbers beyond the range of f32 are accepted.
    let far = explained([
        "explain",
        "dot",
        "--query",
        "1e60",
        "--keys",
        "1e-60;2e-60",
        "--check",
    ]);
    assert!(!far.contains("NaN"), "{far}");
    for mechanism in ["cosine", "sink", "ntm"] {
        refused(
            ["explain", mechanism, "--check"],
            2,
            ["--check looks at the softmax of dot products", mechanism],
        );
    }
}
