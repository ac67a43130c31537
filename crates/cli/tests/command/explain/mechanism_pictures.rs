//! The picture of each mechanism: its panels, cells, curves and sentences.

use super::{Holds, drawn, holds, json};

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
