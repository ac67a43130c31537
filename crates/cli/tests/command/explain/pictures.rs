//! Pictures of layers and algorithms, of one query and of options; pages and files of pictures.

use std::fs;

use tempfile::tempdir;

use super::{Holds, drawn, explained, holds, json, text_of};
use crate::{inside, regard, snapshot};

#[test]
fn each_layer_and_algorithm_is_told_and_drawn() {
    let list = json(["explain", "--list", "--json"]);
    for topic in list["topics"].as_array().unwrap() {
        let name = topic["name"].as_str().unwrap();
        let text = explained(["explain", name]);
        let head = format!(
            "{name} ({})\n{}\n",
            topic["source"].as_str().unwrap(),
            topic["summary"].as_str().unwrap()
        );
        assert!(text.starts_with(&head), "{text}");
        // Numbers from a test elsewhere compare steps with definitions; here each drawn step has a panel with its cells.
        let lesson = json(["explain", name, "--json"]);
        let picture = drawn(&[name]);
        let mut cells = 0;
        for step in lesson["steps"].as_array().unwrap() {
            let title = step["name"].as_str().unwrap();
            assert!(text.contains(&format!("\n{title}: ")), "{name}: {title}");
            if ["vectors", "between"].contains(&step["quantity"].as_str().unwrap()) {
                continue;
            }
            assert!(picture.contains(&format!(">{title}</")), "{name}: {title}");
            let rows = step["table"]["rows"].as_array().unwrap();
            cells += rows
                .iter()
                .map(|row| row["cells"].as_array().unwrap().len())
                .sum::<usize>();
        }
        let drawn = |class: &str| picture.matches(&format!("class=\"{class}\"")).count();
        assert_eq!(drawn("cell") + drawn("hidden"), cells, "{name}");
        for remark in lesson["remarks"].as_array().unwrap() {
            assert!(text.contains(remark.as_str().unwrap()), "{name}");
        }
    }
    snapshot(
        "explain-self-attention.txt",
        &explained(["explain", "self"]),
    );
    snapshot(
        "explain-flash.txt",
        &explained(["explain", "flash-attention"]),
    );
    snapshot(
        "explain-longformer.txt",
        &explained(["explain", "longformer", "--digits", "3"]),
    );
    let quiet = explained(["explain", "flash", "--quiet"]);
    assert!(quiet.starts_with("plain attention: "), "{quiet}");
}

#[test]
fn a_page_holds_picture_and_numbers() {
    let folder = tempdir().unwrap();
    let (page, path) = inside(folder.path(), "page.html");
    for (arguments, number) in [
        (["explain", "softmax", "--digits", "8"], "0.65900114"),
        (["explain", "lstmn", "--digits", "2"], "0.51"),
        (
            ["explain", "mask", "window:2 & causal", "--causal"],
            "pairs seen",
        ),
    ] {
        regard()
            .args(arguments)
            .args(["--html", &path])
            .assert()
            .success();
        let text = fs::read_to_string(&page).unwrap();
        assert!(
            text.starts_with("<!DOCTYPE html>") && text.contains("<svg"),
            "{arguments:?}"
        );
        let numbers = text.split("<pre>").nth(1).unwrap();
        assert!(numbers.contains(number), "{numbers}");
    }
}

#[test]
fn one_query_is_drawn_as_bars() {
    let vectors = ["--query", "1,0", "--keys", "1,2;0,1;-1,1"];
    let one = |name: &'static str, more: &[&'static str]| {
        let arguments: Vec<&str> = [name].iter().chain(&vectors).chain(more).copied().collect();
        drawn(&arguments)
    };
    let two: &[&str] = &["scores", "weights"];
    // Vectors of two numbers lie in a plane.
    let plane = one("dot", &[]);
    holds(
        "dot",
        &plane,
        &Holds {
            panels: two,
            bars: 6,
            texts: &["q1 · k3 = -1", ">y</text>"],
            ..Holds::default()
        },
    );
    assert!(!plane.contains(">z</text>"));
    let masked = one("dot", &["--mask", "keep:1,0,1"]);
    let texts: &[&str] = &["q1 → k2: hidden", "q1 → k1: 0.881"];
    holds(
        "masked",
        &masked,
        &Holds {
            panels: two,
            bars: 4,
            hidden: 2,
            texts,
            ..Holds::default()
        },
    );
    assert!(
        !masked.contains(">y</text>"),
        "no arrows where a mask decides"
    );
    let sink = one("sink", &["--sink", "1"]);
    holds(
        "sink",
        &sink,
        &Holds {
            panels: two,
            bars: 7,
            texts: &["q1 → sink: 0.399", "score is 1"],
            ..Holds::default()
        },
    );
    let sparse = one("sparsemax", &[]);
    let texts: &[&str] = &[
        "A score up to τ (0), the dashed line, gets weight 0",
        "q1 → k2: 0<",
    ];
    holds(
        "sparsemax",
        &sparse,
        &Holds {
            panels: two,
            bars: 6,
            lines: 1,
            texts,
            ..Holds::default()
        },
    );
    let negative = one("identity", &[]);
    let expected = Holds {
        panels: &["weights"],
        bars: 3,
        texts: &["q1 → k3: -1<", "may have any sum (0)"],
        ..Holds::default()
    };
    holds("identity", &negative, &expected);
    let window = drawn(&["graves", "--query", "0,0,0", "--keys", "1;2;3;4"]);
    let texts: &[&str] = &["q1 → k2: 1<", "its centre κ (1)"];
    let expected = Holds {
        panels: &["weights"],
        bars: 4,
        curves: 1,
        marks: 1,
        texts,
        ..Holds::default()
    };
    holds("gaussian-window", &window, &expected);
}

#[test]
fn sentences_of_a_picture_follow_the_options() {
    let cases: [(&[&str], &str); 9] = [
        (
            &["distance", "--scale", "-1"],
            "no score is below 0, and the farthest key has the largest",
        ),
        (&["distance", "--scale", "0"], "so is every score"),
        (&["cosine", "--beta", "-2"], "within ±|β| = ±2."),
        (&["scaled-general", "--gain", "2"], "times g = 2."),
        (&["additive", "--vector", "1,-3,0"], "within ±4,"),
        (&["sink", "--sink", "2"], "The sink's score is 2."),
        (
            &["hard-sample", "--draw", "0.9"],
            "whose sum passes u = 0.9",
        ),
        (
            &["dot", "--causal", "--mask", "global:0"],
            "The mask is global:0 & causal; its positions count from 0.",
        ),
        (
            &["hard", "--query", "1", "--query-names", "x", "--keys", "2"],
            "The query is called x.",
        ),
    ];
    for (arguments, sentence) in cases {
        let text = text_of(&drawn(arguments));
        assert!(text.contains(sentence), "{sentence:?} is not in {text}");
    }
    // Weights that are the scores are drawn once, masked or not.
    let masked = drawn(&["gaussian-window", "--causal"]);
    let expected = Holds {
        panels: &["weights"],
        cells: 6,
        hidden: 3,
        curves: 3,
        marks: 3,
        ..Holds::default()
    };
    holds("gaussian-window", &masked, &expected);
}

#[test]
fn pictures_are_written() {
    let folder = tempdir().unwrap();
    let (svg, svg_path) = inside(folder.path(), "words.svg");
    let (png, png_path) = inside(folder.path(), "words.png");
    explained(["explain", "words", "--svg", &svg_path, "--png", &png_path]);
    assert!(
        fs::read_to_string(&svg)
            .unwrap()
            .contains("hello · hi = 0.7557")
    );
    assert!(fs::read(&png).unwrap().starts_with(b"\x89PNG"));
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
}
