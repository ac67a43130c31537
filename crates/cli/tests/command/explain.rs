//! `regard explain`: worked examples and masks.

use std::fs;

use serde_json::Value;
use tempfile::tempdir;

use crate::{inside, refused, regard, run, snapshot, stderr, stdout};

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

/// The SVG that these arguments draw.
fn drawn(arguments: &[&str]) -> String {
    let folder = tempdir().unwrap();
    let (svg, path) = inside(folder.path(), "picture.svg");
    let arguments = ["explain"].iter().chain(arguments).copied();
    let assert = regard()
        .args(arguments)
        .args(["--quiet", "--svg", &path])
        .assert();
    assert_eq!(stderr(&assert.success()), "");
    fs::read_to_string(svg).unwrap()
}

/// All that is written in a picture, lines joined.
fn text_of(picture: &str) -> String {
    let texts = picture.split("<text").skip(1).map(|text| {
        let inside = text.split("</text>").next().unwrap();
        inside.split_once('>').unwrap().1
    });
    texts
        .collect::<Vec<_>>()
        .join(" ")
        .replace("&#39;", "'")
        .replace("&quot;", "\"")
        .replace("&amp;", "&")
}

/// What a picture must hold: panels by title, how many cells or bars, hidden ones, curves, marks and lines, and texts.
#[derive(Default)]
struct Holds {
    panels: &'static [&'static str],
    cells: usize,
    bars: usize,
    hidden: usize,
    curves: usize,
    marks: usize,
    lines: usize,
    texts: &'static [&'static str],
}

fn holds(name: &str, picture: &str, expected: &Holds) {
    let count = |class: &str| picture.matches(&format!("class=\"{class}\"")).count();
    let found = ["cell", "bar", "hidden", "curve", "mark", "line"].map(count);
    let Holds {
        cells,
        bars,
        hidden,
        curves,
        marks,
        lines,
        ..
    } = *expected;
    assert_eq!(
        found,
        [cells, bars, hidden, curves, marks, lines],
        "{name}: cells, bars, hidden, curves, marks, lines"
    );
    let titles: Vec<&str> = picture
        .split("font-size=\"14\" font-weight=\"bold\">")
        .skip(1)
        .map(|rest| rest.split('<').next().unwrap())
        .collect();
    assert_eq!(titles, expected.panels, "{name}");
    let text = text_of(picture);
    for part in expected.texts {
        assert!(
            picture.contains(part) || text.contains(part),
            "{name}: {part:?} is not in {text}"
        );
    }
    // A hidden cell is called hidden and has no number.
    assert_eq!(
        hidden > 0,
        picture.contains("hidden from the query: weight 0"),
        "{name}"
    );
    assert_eq!(
        hidden,
        picture.matches(": hidden</title>").count(),
        "{name}"
    );
}

#[test]
fn each_picture_shows_its_mechanism() {
    let two = &["scores", "weights"];
    let scaled = &["scores", "scaled scores", "weights"];
    let cases: [(&str, Holds); 28] = [
        (
            "dot",
            Holds {
                panels: two,
                cells: 18,
                texts: &[
                    "hello · hi = 0.7557",
                    "hi · tomato = 0.4341",
                    ">z</text>",
                    "hello → hi: 0.756",
                    "hello → hi: 0.362",
                ],
                ..Holds::default()
            },
        ),
        (
            "scaled-dot",
            Holds {
                panels: scaled,
                cells: 27,
                texts: &["s_i ← s_i / √d, d = 3", "hello → hi: 0.436"],
                ..Holds::default()
            },
        ),
        (
            "causal",
            Holds {
                panels: scaled,
                cells: 18,
                hidden: 9,
                texts: &[
                    "hello → tomato: hidden",
                    "hello → hello: 1<",
                    "The mask is causal.",
                ],
                ..Holds::default()
            },
        ),
        (
            "bidirectional",
            Holds {
                panels: scaled,
                cells: 27,
                texts: &["hello → tomato: 0.258"],
                ..Holds::default()
            },
        ),
        (
            "sliding-window",
            Holds {
                panels: scaled,
                cells: 63,
                hidden: 129,
                texts: &[
                    "3 → 0: hidden",
                    "At 1024 tokens it sees 3069 pairs, 0.293 % of all.",
                ],
                ..Holds::default()
            },
        ),
        (
            "longformer",
            Holds {
                panels: scaled,
                cells: 102,
                hidden: 90,
                texts: &[
                    "7 → 5: hidden",
                    "At 1024 tokens it sees 5114 pairs, 0.488 % of all.",
                ],
                ..Holds::default()
            },
        ),
        (
            "block-sparse",
            Holds {
                panels: scaled,
                cells: 144,
                hidden: 48,
                texts: &["The mask is chunked:2:1 | global:0,1;", "7 → 2: hidden"],
                ..Holds::default()
            },
        ),
        (
            "general",
            Holds {
                panels: two,
                cells: 18,
                texts: &["identity the score is the dot product.", "s_i = qᵀ (W k_i)"],
                ..Holds::default()
            },
        ),
        (
            "scaled-general",
            Holds {
                panels: scaled,
                cells: 27,
                texts: &["s_i ← g · s_i, g = 1", "the dot product times g = 1."],
                ..Holds::default()
            },
        ),
        (
            "additive",
            Holds {
                panels: two,
                cells: 18,
                texts: &["s_i = vᵀ h_i", "scores lie within ±3, however long"],
                ..Holds::default()
            },
        ),
        (
            "soft",
            Holds {
                panels: two,
                cells: 18,
                texts: &["s_i = vᵀ h_i"],
                ..Holds::default()
            },
        ),
        (
            "weight-norm-additive",
            Holds {
                panels: two,
                cells: 18,
                texts: &[
                    "s_i = g v/‖v‖ · h_i, g = 1, ‖v‖ = 1.732051",
                    "scores lie within ±1.732, however long",
                ],
                ..Holds::default()
            },
        ),
        (
            "cosine",
            Holds {
                panels: &["products", "scores", "weights"],
                cells: 27,
                texts: &[
                    "Directions count and lengths do not: scores lie within ±|β| = ±1.",
                    "hello → hello: 1<",
                    "hello → tomato: 0.643",
                ],
                ..Holds::default()
            },
        ),
        (
            "distance",
            Holds {
                panels: &["squared distances", "scores", "weights"],
                cells: 27,
                texts: &[
                    "hello → hello: 0<",
                    "hello → tomato: -0.292",
                    "nearest key has the largest",
                ],
                ..Holds::default()
            },
        ),
        (
            "location",
            Holds {
                panels: two,
                cells: 18,
                texts: &["No key is looked at", "hello → hello: 0.71<"],
                ..Holds::default()
            },
        ),
        (
            "gaussian-window",
            Holds {
                panels: &["weights"],
                cells: 9,
                curves: 3,
                marks: 3,
                texts: &["q1 0.368, q2 1.038, q3 1.709", "q1 → hello: 0.8"],
                ..Holds::default()
            },
        ),
        (
            "global",
            Holds {
                panels: two,
                cells: 18,
                texts: &["s_i = qᵀ (W k_i)"],
                ..Holds::default()
            },
        ),
        (
            "local-m",
            Holds {
                panels: two,
                cells: 14,
                hidden: 4,
                texts: &["at most D = 1 away", "hello → tomato: hidden"],
                ..Holds::default()
            },
        ),
        (
            "local-p",
            Holds {
                panels: &["scores", "weights", "Gaussian", "weights near p_t"],
                cells: 24,
                hidden: 12,
                curves: 3,
                marks: 6,
                texts: &[
                    "predicted position p_t, counted from 0 (hello 2.316, hi 2.302, tomato 2.275)",
                    "more than D = 2 away",
                ],
                ..Holds::default()
            },
        ),
        (
            "sink",
            Holds {
                panels: two,
                cells: 21,
                texts: &[
                    "hello → sink: 0.145",
                    ">sink</text>",
                    "The sink's score is 0.",
                    "(hello 0.145, hi 0.148, tomato 0.168)",
                ],
                ..Holds::default()
            },
        ),
        (
            "sparsemax",
            Holds {
                panels: two,
                cells: 18,
                texts: &["A score up to τ (hello 4.1", "hello → tomato: 0<"],
                ..Holds::default()
            },
        ),
        (
            "entmax15",
            Holds {
                panels: two,
                cells: 18,
                texts: &["A score up to 2τ (hello 3.2", "hello → tomato: 0<"],
                ..Holds::default()
            },
        ),
        (
            "sigmoid",
            Holds {
                panels: two,
                cells: 18,
                texts: &[
                    "b = -ln(3 keys) = -1.098612",
                    "need not sum to 1 (its sum: hello 1.179, ",
                ],
                ..Holds::default()
            },
        ),
        (
            "hard",
            Holds {
                panels: two,
                cells: 18,
                texts: &[
                    "α = one-hot(argmax s)",
                    "tomato → tomato: 1<",
                    "tomato → hi: 0<",
                ],
                ..Holds::default()
            },
        ),
        (
            "hard-sample",
            Holds {
                panels: &["scores", "probabilities", "weights"],
                cells: 27,
                texts: &[
                    "passes u = 0.5 is drawn",
                    "hello → hi: 0.362",
                    "hello → hi: 1<",
                ],
                ..Holds::default()
            },
        ),
        (
            "monotonic",
            Holds {
                panels: &["scores", "stopping probabilities", "weights"],
                cells: 30,
                texts: &[
                    "hello → none: 0.0",
                    ">none</text>",
                    "A reader goes right",
                    "α_i = p_i r_i",
                ],
                ..Holds::default()
            },
        ),
        (
            "ntm",
            Holds {
                panels: &[
                    "products",
                    "scores",
                    "content",
                    "interpolated",
                    "shifted",
                    "weights",
                ],
                cells: 54,
                texts: &[
                    "g = 0.5 from its content",
                    "0.2 (stay), 0.8 (by +1)",
                    "γ = 2",
                ],
                ..Holds::default()
            },
        ),
        (
            "identity",
            Holds {
                panels: &["weights"],
                cells: 9,
                texts: &["α_i = s_i", "a row may have any sum (hello 1.986, "],
                ..Holds::default()
            },
        ),
    ];
    let list = json(["explain", "--list", "--json"]);
    let listed = list["mechanisms"].as_array().unwrap();
    assert_eq!(listed.len(), cases.len());
    for ((name, expected), mechanism) in cases.iter().zip(listed) {
        assert_eq!(
            mechanism["name"], *name,
            "a case for each mechanism, in their order"
        );
        let picture = drawn(&[name]);
        let title = format!("{name} ({})", mechanism["source"].as_str().unwrap());
        assert!(
            picture.contains(&title.replace('&', "&amp;").replace('\'', "&#39;")),
            "{title}"
        );
        holds(name, &picture, expected);
        // Arrows show dot products and nothing else.
        assert_eq!(picture.contains(">z</text>"), *name == "dot", "{name}");
    }
}

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
