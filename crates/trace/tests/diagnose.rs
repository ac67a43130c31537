//! Diagnostics against numpy and networkx, and properties of any map.

mod common;

use proptest::prelude::*;
use regard_trace::diagnose::{
    Cause, Finding, HeadDiagnostics, Names, Problem, Side, StackError, check, flow, flow_from,
    heads, report, rollout, stacks,
};
use regard_trace::{AttentionMap, Axis, Kind, Token, Tokens, Trace};
use serde_json::Value;

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/diagnose.json")).expect("the golden file is JSON")
}

fn numbers(value: &Value) -> Vec<f64> {
    let numbers = value.as_array().expect("a list");
    numbers
        .iter()
        .map(|n| n.as_f64().expect("a number"))
        .collect()
}

fn weights(value: &Value) -> Vec<f32> {
    numbers(value).iter().map(|&w| w as f32).collect()
}

/// Both sides start from the same f32 weights; what differs is rounding in f64, and that the golden
/// diagonality comes from a numerical integration of 200,000 steps.
fn near(name: &str, found: Option<f64>, expected: &Value) {
    let tolerance = if name == "diagonality" { 1e-5 } else { 1e-9 };
    match (found, expected.as_f64()) {
        (Some(found), Some(expected)) => {
            assert!(
                (found - expected).abs() < tolerance,
                "{name}: {found}, expected {expected}"
            );
        }
        (found, expected) => assert_eq!(found, expected, "{name}"),
    }
}

#[test]
fn a_summary_counts_heads_without_a_choice_apart() {
    let (one, four) = (Tokens::from_words("a"), Tokens::from_words("a b c d"));
    let alone = AttentionMap::new(Kind::Cross, four.clone(), one, 1, vec![1.0; 4]).unwrap();
    #[rustfmt::skip]
    let weights = vec![0.4, 0.1, 0.1, 0.4,
                       0.1, 0.4, 0.4, 0.1,
                       0.4, 0.1, 0.4, 0.1,
                       0.1, 0.4, 0.1, 0.4];
    let spread = AttentionMap::new(Kind::EncoderSelf, four.clone(), four, 1, weights).unwrap();
    let trace = Trace::new("m", "a", "a b c d").with_map(alone);
    assert_eq!(
        report::summary(&trace)[1..],
        ["without a choice between keys: 1 head"]
    );
    assert_eq!(
        report::summary(&trace.with_map(spread))[1..],
        [
            "without a choice between keys: 1 head",
            "spread out: 1 other head"
        ]
    );
}

/// Weights of exactly 0 in cross-attention hide nothing: every row of hard attention had a choice, and made it.
#[test]
fn hard_attention_is_certain() {
    let words = || Tokens::from_words("a b c");
    let weights = vec![0., 0., 1., 0., 1., 0., 1., 0., 0.];
    let map = AttentionMap::new(Kind::Cross, words(), words(), 1, weights).unwrap();
    let head = &heads(&map)[0];
    assert_eq!(
        (head.uniformity, head.effective_keys),
        (Some(0.0), Some(1.0))
    );
    let summary = report::summary(&Trace::new("m", "a b c", "c b a").with_map(map));
    assert!(
        !summary.join(" ").contains("without a choice"),
        "{summary:?}"
    );
}

#[test]
fn measures_equal_numpy() {
    let mut checked = 0;
    for case in golden()["maps"].as_array().unwrap() {
        let shape = numbers(&case["shape"]);
        let [count, queries, keys] = [0, 1, 2].map(|i| shape[i] as usize);
        let (kind, rows, columns): (Kind, Axis, Axis) = match case["tokens"].as_array() {
            Some(tokens) => {
                let tokens: Tokens = tokens
                    .iter()
                    .map(|t| Token::new(t.as_str().unwrap()))
                    .collect();
                (Kind::SelfAttention, tokens.clone().into(), tokens.into())
            }
            None => (
                Kind::Cross,
                Axis::Positions { length: queries },
                Axis::Positions { length: keys },
            ),
        };
        let map = AttentionMap::new(kind, rows, columns, count, weights(&case["weights"])).unwrap();
        for (found, expected) in heads(&map).iter().zip(case["measures"].as_array().unwrap()) {
            compare(found, expected);
            checked += 1;
        }
    }
    assert_eq!(checked, 6);
}

fn compare(found: &HeadDiagnostics, expected: &Value) {
    assert_eq!(Some(found.rows as u64), expected["rows"].as_u64());
    for (name, found) in [
        ("entropy", found.entropy),
        ("uniformity", found.uniformity),
        ("first_token", found.first_token),
        ("diagonality", found.diagonality),
        ("previous_token", found.previous_token),
        ("duplicate_token", found.duplicate_token),
        ("coverage", found.coverage),
        ("effective_keys", found.effective_keys),
        ("effective_span", found.effective_span),
        ("distance", found.distance),
        ("largest_weight", found.largest_weight),
    ] {
        near(name, found, &expected[name]);
    }
    let (key, weight) = found.top_key.unwrap();
    assert_eq!(Some(key as u64), expected["top_key"][0].as_u64());
    near("top_key", Some(weight), &expected["top_key"][1]);
    for (found, expected) in found
        .column_sums
        .iter()
        .zip(expected["column_sums"].as_array().unwrap())
    {
        near("column_sums", Some(*found), expected);
    }
}

fn layers(case: &Value) -> Vec<AttentionMap> {
    let (count, length) = (&case["heads"], &case["length"]);
    let length = length.as_u64().unwrap() as usize;
    let axis = Axis::Positions { length };
    let maps = case["layers"].as_array().unwrap().iter().enumerate();
    maps.map(|(layer, values)| {
        let count = count.as_u64().unwrap() as usize;
        AttentionMap::new(
            Kind::EncoderSelf,
            axis.clone(),
            axis.clone(),
            count,
            weights(values),
        )
        .unwrap()
        .at_layer(layer)
    })
    .collect()
}

#[test]
fn rollout_and_flow_equal_the_authors_formula_and_networkx() {
    let golden = golden();
    let cases = golden["stacks"].as_array().unwrap();
    assert_eq!(cases.len(), 3);
    for case in cases {
        let maps = layers(case);
        let maps: Vec<&AttentionMap> = maps.iter().collect();
        let (rolled, flowed) = (rollout(&maps).unwrap(), flow(&maps).unwrap());
        for (map, name) in [(&rolled, "rollout"), (&flowed, "flow")] {
            assert_eq!(map.name(), name);
            for (found, expected) in map.weights().iter().zip(numbers(&case[name])) {
                // The result is stored as f32.
                assert!(
                    (f64::from(*found) - expected).abs() < 1e-7,
                    "{name}: {found} {expected}"
                );
            }
        }
        let length = rolled.queries().len();
        let row = flow_from(&maps, length - 1).unwrap();
        for (found, expected) in row
            .iter()
            .zip(&numbers(&case["flow"])[length * (length - 1)..])
        {
            assert!((found - expected).abs() < 1e-10, "{found} {expected}");
        }
    }
}

/// A path through this many layers is longer than the stack of a thread is deep.
#[test]
fn flow_passes_any_number_of_layers() {
    let one = Axis::Positions { length: 1 };
    let map = AttentionMap::new(Kind::EncoderSelf, one.clone(), one, 1, vec![1.0]).unwrap();
    assert_eq!(flow(&vec![&map; 120_000]).unwrap().weights(), [1.0]);
}

/// With a search through all keys for each of them, this would take minutes.
#[test]
fn a_summary_names_what_no_layer_looked_at_among_many_keys() {
    const KEYS: usize = 200_000;
    let map = |layer: usize, looked_at: &dyn Fn(usize) -> bool| {
        let (queries, keys) = (
            Axis::Positions { length: 1 },
            Axis::Positions { length: KEYS },
        );
        let weights = (0..KEYS).map(|key| f32::from(u8::from(looked_at(key))));
        let map = AttentionMap::unnormalized(Kind::Cross, queries, keys, 1, weights.collect());
        map.unwrap().at_layer(layer)
    };
    // The first layer leaves out the keys 6 to 9, the second 8 and 9 and all from 100 on.
    let trace = Trace::new("m", "", "")
        .with_map(map(0, &|key| !(6..10).contains(&key)))
        .with_map(map(1, &|key| key < 8 || (10..100).contains(&key)));
    let axis = Axis::Positions { length: KEYS };
    let [eighth, ninth] = [8, 9].map(|key| format!("`{}`", axis.label(key)));
    assert_eq!(
        report::summary(&trace).last(),
        Some(&format!(
            "hardly looked at by the decoder: {eighth}, {ninth}"
        ))
    );
}

/// As that of any key, so that the first key has no other mean as the top key than as the first.
#[test]
fn the_mean_of_the_first_key_counts_rows_that_do_not_see_it() {
    let words = || Tokens::from_words("a b c d");
    #[rustfmt::skip]
    let weights = vec![1.0, 0.0, 0.0, 0.0,
                       0.9, 0.1, 0.0, 0.0,
                       0.0, 0.5, 0.5, 0.0,
                       0.0, 0.0, 0.5, 0.5];
    let map = AttentionMap::new(Kind::SelfAttention, words(), words(), 1, weights).unwrap();
    let head = &heads(&map)[0];
    let (key, weight) = head.top_key.unwrap();
    assert_eq!((head.rows, key), (3, 2));
    assert!((weight - 1.0 / 3.0).abs() < 1e-9);
    assert!((head.first_token.unwrap() - 0.3).abs() < 1e-7);
}

#[test]
fn a_stack_that_is_none_says_why() {
    let square = |length| {
        let axis = Axis::Positions { length };
        let weights = vec![1.0 / length as f32; length * length];
        AttentionMap::new(Kind::EncoderSelf, axis.clone(), axis, 1, weights).unwrap()
    };
    assert_eq!(rollout(&[]).unwrap_err(), StackError::Empty);
    let error = flow(&[&square(2), &square(3).named("b")]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("\"b\" has 3 positions, expected 2"),
        "{error}"
    );
    let (two, three) = (Axis::Positions { length: 2 }, Axis::Positions { length: 3 });
    let cross = AttentionMap::new(Kind::Cross, two, three, 1, vec![0.0; 6]).unwrap();
    let error = rollout(&[&cross]).unwrap_err();
    assert!(
        error.to_string().contains("2 queries and 3 keys"),
        "{error}"
    );
    let error = flow_from(&[&square(2)], 2).unwrap_err();
    assert!(
        error.to_string().contains("position 2 does not exist"),
        "{error}"
    );

    let trace = Trace::new("m", "", "")
        .with_map(square(2).at_layer(1))
        .with_map(cross)
        .with_map(square(2).named("low"));
    let found = stacks(&trace);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, Kind::EncoderSelf);
    assert_eq!(found[0].1[0].name(), "low");
}

fn tokens() -> Tokens {
    let words = ["the", "dog", "saw", "the", "cat"].map(Token::new);
    std::iter::once(Token::special("<s>"))
        .chain(words)
        .collect()
}

/// A head of self-attention over [`tokens`] in layer 2, from the key that each query looks at.
fn pointing(at: [usize; 6]) -> AttentionMap {
    let mut weights = vec![0.01; 36];
    for (query, key) in at.into_iter().enumerate() {
        weights[6 * query + key] = 0.95;
    }
    AttentionMap::new(Kind::SelfAttention, tokens(), tokens(), 1, weights)
        .unwrap()
        .at_layer(2)
}

#[test]
fn heads_are_described_in_words() {
    let described = |map: &AttentionMap| report::describe(map, &heads(map)[0]);
    assert_eq!(
        described(&pointing([0; 6])),
        "layer 3 head 1: 95 % on `<s>`, a sink"
    );
    assert_eq!(
        described(&pointing([3; 6])),
        "layer 3 head 1: 95 % on `saw`, whatever the query"
    );
    assert_eq!(
        described(&pointing([5, 0, 1, 2, 3, 4])),
        "layer 3 head 1: 95 % on the token before, a previous-token head"
    );
    assert_eq!(
        described(&pointing([5, 4, 3, 2, 0, 1])),
        "layer 3 head 1: one key at a time; it looks at about 1.3 keys, 90 % within 1.0 neighbours"
    );
    assert_eq!(
        described(&pointing([0, 1, 2, 3, 4, 5])),
        "layer 3 head 1: one key at a time, along the diagonal; it looks at about 1.3 keys, 90 % \
         within 1.0 neighbours"
    );
    // The second "the", at 4, looks at the first, at 1.
    let duplicate = pointing([5, 4, 3, 2, 1, 0]);
    assert_eq!(
        described(&duplicate),
        "layer 3 head 1: 95 % on earlier tokens of the same text, a duplicate-token head"
    );
    let one = Tokens::from_words("a");
    let alone = AttentionMap::new(Kind::SelfAttention, one.clone(), one, 1, vec![1.0]).unwrap();
    assert_eq!(
        described(&alone),
        "layer 1 head 1: no query had a choice between keys"
    );
}

#[test]
fn words_nobody_looked_at_are_named() {
    let source: Tokens = ["a", "red", "dog"]
        .map(Token::new)
        .into_iter()
        .chain([Token::special("</s>")])
        .collect();
    let target = Tokens::from_words("ein Hund");
    let weights = vec![0.98, 0.01, 0.01, 0.0, 0.01, 0.01, 0.98, 0.0];
    let map = AttentionMap::new(Kind::Cross, target, source, 1, weights).unwrap();
    assert_eq!(report::uncovered(&map, &heads(&map)), [1]);
    let coverage = heads(&map)[0].coverage.unwrap();
    assert!(
        (coverage - (0.99 + 0.02 + 0.99) / 3.0).abs() < 1e-6,
        "{coverage}"
    );
}

#[test]
fn of_many_cells_nobody_looked_at_ten_are_named() {
    let cells = Axis::Image {
        prefix: Tokens::default(),
        rows: 14,
        columns: 14,
    };
    let mut weights = vec![0.0; 196];
    weights[195] = 1.0;
    let map = AttentionMap::new(Kind::Cross, Tokens::from_words("dog"), cells, 1, weights).unwrap();
    let summary = report::summary(&Trace::new("m", "a.png", "dog").with_map(map));
    let last = summary.last().unwrap();
    assert!(
        last.starts_with("hardly looked at by the decoder: `(0, 0)`, `(0, 1)`, ")
            && last.ends_with(", `(0, 9)` and 185 more"),
        "{last}"
    );
}

/// Queries and keys in order: 4 orthogonal directions, long enough to be told apart.
fn healthy() -> Vec<f32> {
    (0..16)
        .map(|i| if i % 5 == 0 { 3.0 } else { 0.0 })
        .collect()
}

fn findings(query: &[f32], key: &[f32], scale: Option<f64>, mask: Option<&[bool]>) -> Vec<Finding> {
    let mut problem = Problem::new(query, key, 4);
    if let Some(scale) = scale {
        problem = problem.scale(scale);
    }
    if let Some(mask) = mask {
        problem = problem.mask(mask);
    }
    check(&problem).expect("lengths fit")
}

#[test]
fn every_cause_of_uniform_attention_is_found() {
    let good = healthy();
    assert_eq!(findings(&good, &good, None, None), []);
    let causal: Vec<bool> = (0..16).map(|i| i % 4 <= i / 4).collect();
    assert_eq!(findings(&good, &good, None, Some(&causal)), []);

    // Mask.
    let inverted: Vec<bool> = causal.iter().map(|seen| !seen).collect();
    let found = findings(&good, &good, None, Some(&inverted));
    assert_eq!(found[0], Finding::InvertedMask);
    let mut blind = vec![true; 16];
    blind[4..8].fill(false);
    let found = findings(&good, &good, None, Some(&blind));
    assert_eq!(found, [Finding::NothingVisible { queries: vec![1] }]);
    says(
        &found[0],
        &["q2 sees no key", "True means that a key may be seen"],
    );
    let itself: Vec<bool> = (0..16).map(|i| i % 5 == 0).collect();
    let found = findings(&good, &good, None, Some(&itself));
    says(
        &found[0],
        &[
            "q1, q2, q3 and 1 more (4 of 4 queries) see one of the 4 keys",
            "weight is 1",
        ],
    );
    assert_eq!(found.len(), 1);
    // One query with one visible key, and one key at all.
    let found = findings(&good[..4], &good, None, Some(&itself[..4]));
    assert!(
        matches!(&found[..], [Finding::OneVisible { queries, of: 1, keys: 4 }] if queries == &[0])
    );
    says(
        &findings(&good, &good[..4], None, None)[0],
        &["one key: there is nothing to choose from"],
    );
    // Dead head.
    let found = findings(&[0.0; 16], &good, None, None);
    let (side, longest) = (Side::Queries, 0.0);
    assert_eq!(found, [Finding::DeadHead { side, longest }]);
    says(
        &findings(&good, &[1e-9; 16], None, None)[0],
        &["the keys are zero"],
    );
    // Tiny vectors on one side and long ones on the other give usual scores: the head is not dead.
    let (tiny, long) = (
        good.iter().map(|x| x * 1e-8).collect::<Vec<_>>(),
        good.iter().map(|x| x * 1e8),
    );
    assert_eq!(findings(&tiny, &long.collect::<Vec<_>>(), None, None), []);
    // Equal keys, equal queries.
    let same: Vec<f32> = (0..16)
        .map(|i| [1.0, 2.0, 3.0, 4.0][i % 4] + 1e-3 * (i / 4) as f32)
        .collect();
    let found = findings(&good, &same, None, None);
    assert!(
        matches!(found[..], [Finding::CollapsedKeys { .. }]),
        "{found:?}"
    );
    let found = findings(&same, &good, None, None);
    assert!(
        matches!(found[0], Finding::CollapsedQueries { .. }),
        "{found:?}"
    );
    // Keys that differ little, but enough for queries that are long.
    let far: Vec<f32> = good.iter().map(|x| 1e4 * x).collect();
    let found = findings(&far, &same, None, None);
    assert!(
        !found
            .iter()
            .any(|f| matches!(f, Finding::CollapsedKeys { .. })),
        "{found:?}"
    );
    // Positions.
    let mut repeated = good.clone();
    repeated.copy_within(0..4, 12);
    let found = findings(&good, &repeated, None, None);
    let (pair, keys) = ((0, 3), 2);
    assert_eq!(found, [Finding::MissingPositions { pair, keys }]);
    says(
        &found[0],
        &["2 keys have an equal", "(k1 and k4 are the same vector)"],
    );
    let named = ["a", "b", "c", "d"].map(str::to_owned);
    let names = Names {
        queries: &[],
        keys: &named,
    };
    assert!(
        found[0]
            .told(names)
            .contains("(a and d are the same vector)")
    );
    // Padding, unless a mask hides it from what is not padding.
    let mut padded = good.clone();
    padded.extend([0.0; 12]);
    let found = findings(&good, &padded, None, None);
    assert_eq!(found, [Finding::Padding { from: 4, keys: 3 }]);
    says(&found[0], &["the last 3 keys, from k5 on", "mask them"]);
    let causal: Vec<bool> = (0..49).map(|i| i % 7 <= i / 7).collect();
    let hidden = findings(&padded, &padded, None, Some(&causal));
    assert!(
        !hidden.iter().any(|f| matches!(f, Finding::Padding { .. })),
        "{hidden:?}"
    );
    // A NaN.
    let mut broken = good.clone();
    broken[9] = f32::NAN;
    let found = findings(&good, &broken, None, None);
    let (side, position) = (Side::Keys, 2);
    assert_eq!(found, [Finding::NotFinite { side, position }]);
    says(&found[0], &["k3 holds a NaN"]);
}

fn says(found: &Finding, parts: &[&str]) {
    let sentence = found.to_string();
    for part in parts {
        assert!(sentence.contains(part), "{part:?} is not in: {sentence}");
    }
}

/// Scores are `scale · |q| |k| · cos(q, k)`: which factor makes the weights uniform, or one of them 1, and the
/// numbers that the sentence gives for it.
#[test]
fn causes_of_uniform_and_saturated_weights_are_told_apart() {
    let good = healthy();
    let times = |factor: f32| good.iter().map(|x| factor * x).collect::<Vec<f32>>();
    // All keys share a large part, so that the cosines of all pairs are nearly equal.
    let shared: Vec<f32> = good.iter().map(|x| 0.02 * x + 2.0).collect();
    let orthogonal = [0.0, 0.0, 0.0, 3.0];
    let others: Vec<f32> = (0..12)
        .map(|i| if i % 5 == 0 { 3.0 } else { 0.0 })
        .collect();
    // hello, hi, tomato: short, and pointing about the same way.
    let words = [0.71, 0.14, 0.51, 0.69, 0.15, 0.48, 0.16, 0.59, 0.49];
    type Case<'a> = (&'a str, Problem, &'a [&'a str], &'a [&'a str]);
    let cases: [Case<'_>; 11] = [
        ("healthy", Problem::new(&good, &good, 4), &[], &[]),
        (
            "a tiny scale",
            Problem::new(&good, &good, 4).scale(1e-3),
            &["Scale"],
            &[
                "the scale 0.001 is 500 times smaller than 1/√d = 0.5",
                "applied twice",
            ],
        ),
        (
            "no scale at all",
            Problem::new(&good, &good, 4).scale(0.0),
            &["Scale"],
            &["Cause: the scale is 0"],
        ),
        (
            "short queries",
            Problem::new(&times(0.05), &good, 4),
            &["Lengths"],
            &["the vectors are short, queries 0.15 and keys 3 on average, where √d = 2 is usual"],
        ),
        (
            "queries orthogonal to keys of good length",
            Problem::new(&orthogonal, &others, 4),
            &["Orthogonal"],
            &[
                "nearly orthogonal (no cosine is beyond ±0)",
                "no key fits any query",
            ],
        ),
        (
            "keys in one direction",
            Problem::new(&good, &shared, 4),
            &["Alike"],
            &[
                "similar directions",
                "for q1, whose cosines differ most, they run from 0.4962 to 0.5111",
            ],
        ),
        (
            "a low softcap",
            Problem::new(&good, &good, 4).softcap(0.01),
            &["Softcap"],
            &["the softcap 0.01 is too low: without it the scores of a row deviate by 1.95"],
        ),
        (
            "words",
            Problem::new(&words, &words, 3).scale(1.0),
            &["Lengths", "Alike"],
            &[
                "99.3 %",
                "from 0.6432 to 1.0000",
                "queries 0.841 and keys 0.841",
                "√d = 1.73",
            ],
        ),
        (
            "words and a tiny scale",
            Problem::new(&words, &words, 3).scale(1e-4),
            &["Scale", "Lengths", "Alike"],
            &["the scale 0.0001 is 5774 times smaller than 1/√d = 0.577"],
        ),
        (
            "long queries",
            Problem::new(&times(4.0), &good, 4),
            &["Lengths"],
            &["saturated", "the vectors are long, queries 12 and keys 3"],
        ),
        (
            "a large scale",
            Problem::new(&good, &good, 4).scale(5.0),
            &["Scale"],
            &[
                "saturated",
                "the scale 5 is 10 times larger than 1/√d = 0.5",
            ],
        ),
    ];
    for (name, problem, expected, parts) in cases {
        let found = check(&problem).expect("lengths fit");
        let causes = found.iter().flat_map(|finding| match finding {
            Finding::Uniform { causes, .. } | Finding::Saturated { causes, .. } => {
                causes.as_slice()
            }
            _ => &[],
        });
        let kinds: Vec<&str> = causes
            .map(|cause| match cause {
                Cause::Scale { .. } => "Scale",
                Cause::Lengths { .. } => "Lengths",
                Cause::Orthogonal { .. } => "Orthogonal",
                Cause::Alike { .. } => "Alike",
                Cause::Softcap { .. } => "Softcap",
                _ => "another",
            })
            .collect();
        assert_eq!(kinds, expected, "{name}: {found:?}");
        assert_eq!(
            found.len(),
            usize::from(!expected.is_empty()),
            "{name}: {found:?}"
        );
        if let Some(finding) = found.first() {
            says(finding, parts);
        }
    }
}

#[test]
fn a_problem_that_does_not_fit_names_the_field() {
    let refused = |problem: Problem, words: &str| {
        let error = check(&problem).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(
        Problem::new(&[1.0; 6], &[1.0; 8], 4),
        "`query` has 6 values, expected a multiple",
    );
    refused(Problem::new(&[1.0; 4], &[], 4), "`key` has 0 values");
    refused(Problem::new(&[1.0; 4], &[1.0; 4], 0), "`dimension`");
    let mask = [true; 3];
    refused(
        Problem::new(&[1.0; 4], &[1.0; 8], 4).mask(&mask),
        "1 queries x 2 keys = 2",
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_map_has_measures_within_their_range(map in common::map()) {
        let [_, _, keys] = map.shape();
        for head in heads(&map) {
            for share in [head.uniformity, head.first_token, head.diagonality, head.previous_token,
                head.duplicate_token, head.coverage, head.largest_weight].into_iter().flatten() {
                prop_assert!((-1e-9..=1.0 + 1e-6).contains(&share), "{:?}", head);
            }
            if let Some(effective) = head.effective_keys {
                prop_assert!((1.0 - 1e-9..=keys as f64 + 1e-6).contains(&effective));
            }
            if let Some(span) = head.effective_span {
                prop_assert!((1.0..=keys as f64).contains(&span));
            }
            prop_assert!(report::describe(&map, &head).starts_with("layer "));
        }
        report::uncovered(&map, &heads(&map));
    }

    #[test]
    fn rollout_and_flow_rows_sum_to_one(
        length in 1usize..6, depth in 1usize..4, values in proptest::collection::vec(0.01f32..1.0, 125 * 3),
    ) {
        let maps: Vec<AttentionMap> = (0..depth).map(|layer| {
            let mut weights = values[layer * 125..][..length * length].to_vec();
            for row in weights.chunks_exact_mut(length) {
                let sum: f32 = row.iter().sum();
                row.iter_mut().for_each(|w| *w /= sum);
            }
            let axis = Axis::Positions { length };
            AttentionMap::new(Kind::SelfAttention, axis.clone(), axis, 1, weights).unwrap()
        }).collect();
        let maps: Vec<&AttentionMap> = maps.iter().collect();
        for map in [rollout(&maps).unwrap(), flow(&maps).unwrap()] {
            for query in 0..length {
                let sum: f64 = map.row(0, query).iter().map(|&w| f64::from(w)).sum();
                prop_assert!((sum - 1.0).abs() < 1e-5, "{sum}");
            }
        }
    }
}
