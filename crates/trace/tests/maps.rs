//! Checks on entry, merging, heads and alignment.

mod common;

use proptest::prelude::*;
use regard_trace::{AttentionMap, Axis, Kind, Token, Tokens, TraceError};

fn positions(length: usize) -> Axis {
    Axis::Positions { length }
}

fn cross(
    heads: usize,
    queries: usize,
    keys: usize,
    weights: &[f32],
) -> Result<AttentionMap, TraceError> {
    AttentionMap::new(
        Kind::Cross,
        positions(queries),
        positions(keys),
        heads,
        weights.to_vec(),
    )
}

#[test]
fn wrong_maps_are_refused_by_name() {
    let error = cross(1, 2, 2, &[1.0; 3]).unwrap_err();
    assert!(matches!(error, TraceError::Shape { found: 3, .. }));
    assert!(
        error
            .to_string()
            .contains("1 heads x 2 queries x 2 keys need 4"),
        "{error}"
    );

    assert!(matches!(
        cross(0, 1, 1, &[]),
        Err(TraceError::NoHeads { .. })
    ));
    let huge = cross(usize::MAX, usize::MAX, 2, &[1.0]);
    assert!(matches!(huge, Err(TraceError::Shape { .. })));

    for bad in [f32::NAN, f32::INFINITY, -0.25] {
        let error = cross(2, 1, 2, &[0.5, 0.5, 1.0, bad]).unwrap_err();
        assert!(
            matches!(
                error,
                TraceError::Weight {
                    head: 1,
                    query: 0,
                    key: 1,
                    ..
                }
            ),
            "{error}"
        );
    }
    let error = cross(1, 2, 2, &[0.5, 0.5, 0.5, 0.4]).unwrap_err();
    assert!(
        matches!(error, TraceError::RowSum { query: 1, .. }),
        "{error}"
    );
    let free =
        AttentionMap::unnormalized(Kind::Other, positions(1), positions(2), 1, vec![0.9, 0.9]);
    assert!(!free.expect("any sum is fine here").is_normalized());
}

#[test]
fn masked_rows_and_empty_axes_are_maps() {
    assert!(cross(1, 2, 2, &[0.0, 0.0, 0.5, 0.5]).is_ok());
    let empty = cross(3, 0, 4, &[]).expect("no queries");
    assert_eq!(empty.mean_heads().shape(), [1, 0, 4]);
    assert_eq!(empty.merge_words().shape(), [3, 0, 4]);
    let blind = cross(1, 2, 0, &[]).expect("no keys");
    assert_eq!(blind.row(0, 1), [0.0f32; 0]);
    assert_eq!(blind.align_argmax().to_string(), "");
}

#[test]
fn heads_are_chosen_and_averaged() {
    let map = cross(2, 2, 2, &[1.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.25, 0.75]).expect("valid");
    assert_eq!(
        map.head(1).expect("there").weights(),
        [0.5, 0.5, 0.25, 0.75]
    );
    // The first head masked its second row, so the mean is the other head's.
    assert_eq!(map.mean_heads().weights(), [0.75, 0.25, 0.25, 0.75]);
    let error = map.head(2).unwrap_err().to_string();
    assert!(error.contains("no head 2: its heads are 0 to 1"), "{error}");
}

#[test]
fn sums_beyond_f32_stay_finite() {
    let keys = Tokens::from(vec![Token::new("a").in_word(0), Token::new("b").in_word(0)]);
    let map = AttentionMap::unnormalized(Kind::Other, positions(1), keys, 1, vec![f32::MAX; 2]);
    assert_eq!(map.expect("finite").merge_words().weights(), [f32::MAX]);
}

#[test]
fn words_are_runs_of_the_same_index() {
    let tokens = Tokens::from(vec![
        Token::special("<s>"),
        Token::new("a").in_word(0),
        Token::new("b").in_word(0),
        Token::new("c"),
        Token::new("d"),
        Token::new("e").in_word(0),
        Token {
            special: true,
            ..Token::new("</s>").in_word(0)
        },
    ]);
    assert_eq!(
        tokens.merge_words().texts(),
        ["<s>", "ab", "c", "d", "e", "</s>"]
    );
}

#[test]
fn alignment_skips_specials_and_takes_the_first_of_equals() {
    let source = Tokens::from(vec![
        Token::special("<s>"),
        Token::new("a"),
        Token::new("b"),
    ]);
    let target = Tokens::from(vec![
        Token::special("<s>"),
        Token::new("A"),
        Token::new("B"),
        Token::new("C"),
    ]);
    #[rustfmt::skip]
    let weights = vec![0.0, 1.0, 0.0,
                       0.0, 0.5, 0.5,
                       0.6, 0.0, 0.4,
                       0.0, 0.0, 0.0];
    let map = AttentionMap::new(Kind::Cross, target, source, 1, weights).expect("valid");
    assert_eq!(map.align_argmax().links(), [(0, 0)]);
    assert_eq!(map.align_threshold(0.0).to_string(), "0-0 1-0 1-1");
}

proptest! {
    #[test]
    fn merging_and_averaging_keep_row_sums(map in common::map()) {
        for merged in [map.merge_words(), map.mean_heads(), map.mean_heads().merge_words()] {
            let rebuilt = AttentionMap::new(
                merged.kind(),
                merged.queries().clone(),
                merged.keys().clone(),
                merged.heads(),
                merged.weights().to_vec(),
            );
            prop_assert!(rebuilt.is_ok(), "{:?}", rebuilt);
            let [heads, queries, _] = merged.shape();
            for row in (0..heads).flat_map(|h| (0..queries).map(move |q| (h, q))) {
                let sum: f64 = merged.row(row.0, row.1).iter().map(|&w| f64::from(w)).sum();
                prop_assert!(sum == 0.0 || (sum - 1.0).abs() < 1e-5, "{}", sum);
            }
        }
    }

    #[test]
    fn merging_twice_is_merging_once_where_words_are_whole(map in common::map()) {
        let once = map.merge_words();
        prop_assert_eq!(once.keys().labels().concat(), map.keys().labels().concat());
        prop_assert_eq!(once.merge_words(), once);
    }

    #[test]
    fn argmax_links_are_threshold_links(map in common::map(), threshold in 0.0f32..0.2) {
        // Some weight of a row of n is at least 1/n; with at most 10 keys, 0.1 keeps the largest.
        let (best, all) = (map.align_argmax(), map.align_threshold(threshold.min(0.099)));
        for link in best.links() {
            prop_assert!(all.links().contains(link));
        }
    }
}
