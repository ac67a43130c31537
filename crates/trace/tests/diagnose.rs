//! Diagnostics against numpy and networkx, and what holds for any map.

mod common;

use proptest::prelude::*;
use regard_trace::diagnose::{
    Finding, HeadDiagnostics, Problem, StackError, check, flow, flow_from, heads, report, rollout,
    stacks,
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

    let says = |found: &[Finding], words: &str| {
        assert!(
            found.iter().any(|f| f.to_string().contains(words)),
            "{words}: {found:?}"
        );
    };
    // Mask.
    let inverted: Vec<bool> = causal.iter().map(|seen| !seen).collect();
    let found = findings(&good, &good, None, Some(&inverted));
    assert_eq!(found[0], Finding::InvertedMask);
    let mut blind = vec![true; 16];
    blind[4..8].fill(false);
    let found = findings(&good, &good, None, Some(&blind));
    assert_eq!(found, [Finding::NothingVisible { queries: 1 }]);
    says(&found, "True means that a key may be seen");
    let itself: Vec<bool> = (0..16).map(|i| i % 5 == 0).collect();
    assert_eq!(
        findings(&good, &good, None, Some(&itself)),
        [Finding::OneVisible { queries: 4, of: 4 }]
    );
    // Scale.
    let found = findings(&good, &good, Some(1e-3), None);
    assert!(
        matches!(found[..], [Finding::ScaleTooSmall { usual, .. }] if usual == 0.5),
        "{found:?}"
    );
    // Dead head.
    let found = findings(&[0.0; 16], &good, None, None);
    assert_eq!(
        found,
        [Finding::DeadHead {
            field: "queries",
            longest: 0.0
        }]
    );
    says(
        &findings(&good, &[1e-9; 16], None, None),
        "the keys are zero",
    );
    // Collapse.
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
    // Saturation.
    let large: Vec<f32> = good.iter().map(|x| 4.0 * x).collect();
    let found = findings(&large, &good, None, None);
    assert!(
        matches!(found[..], [Finding::Saturated { share: 1.0, .. }]),
        "{found:?}"
    );
    // Positions.
    let mut repeated = good.clone();
    repeated.copy_within(0..4, 12);
    let found = findings(&good, &repeated, None, None);
    assert_eq!(
        found,
        [Finding::MissingPositions {
            pair: (0, 3),
            keys: 2
        }]
    );
    // Nothing wrong but the symptom.
    let small: Vec<f32> = good.iter().map(|x| 0.05 * x).collect();
    let found = findings(&small, &good, None, None);
    assert!(matches!(found[..], [Finding::Uniform { .. }]), "{found:?}");
    // Numbers that are none.
    let mut broken = good.clone();
    broken[9] = f32::NAN;
    let found = findings(&good, &broken, None, None);
    assert_eq!(
        found,
        [Finding::NotFinite {
            field: "key",
            position: 2
        }]
    );
}

#[test]
fn a_problem_that_does_not_fit_names_the_field() {
    let refused = |problem: Problem<'_>, words: &str| {
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
