//! Every tile of every mask, place by place.

use super::*;
use crate::problem::{Blocks, Documents};

/// Every tile of every mask says what `sees` says, one place at a time.
#[test]
#[cfg_attr(miri, ignore = "large")]
fn tiles_agree_with_single_places() {
    let keep: Vec<u8> = (0..70 * 90).map(|x| u8::from(x % 7 != 3)).collect();
    let table: Vec<u8> = (0..7 * 6).map(|x| u8::from(x % 3 == 0)).collect();
    let (query_documents, key_documents): (Vec<u32>, Vec<u32>) = (
        (0..70).map(|i| i / 30).collect(),
        (0..90).map(|j| j / 33).collect(),
    );
    let window = |left, right| Some(Window { left, right });
    let none = Attention::default();
    let masks = [
        none,
        Attention {
            causal: true,
            ..none
        },
        Attention {
            causal: true,
            alignment: Alignment::UpperLeft,
            ..none
        },
        Attention {
            window: window(Some(9), Some(4)),
            ..none
        },
        Attention {
            window: window(None, Some(20)),
            ..none
        },
        Attention {
            causal: true,
            window: window(Some(5), None),
            prefix: Some(&[37]),
            ..none
        },
        Attention {
            lengths: Some(&[61]),
            causal: true,
            ..none
        },
        Attention {
            keep: Some(View::heads_first(&keep, [1, 1, 70, 90])),
            ..none
        },
        Attention {
            keep: Some(View::heads_first(&keep, [1, 1, 1, 90])),
            causal: true,
            ..none
        },
        Attention {
            keep: Some(View::heads_first(&keep, [1, 1, 70, 1])),
            ..none
        },
        Attention {
            documents: Some(Documents {
                query: &query_documents,
                key: &key_documents,
            }),
            ..none
        },
        Attention {
            blocks: Some(Blocks {
                query_size: 10,
                key_size: 15,
                table: View::heads_first(&table, [1, 1, 7, 6]),
            }),
            ..none
        },
    ];
    let mut checked = 0;
    for attention in masks {
        let sizes = attention
            .check([1, 1, 70, 8], [1, 1, 90, 8], [1, 1, 90, 8])
            .unwrap();
        let visible = Visible::new(&attention, &sizes, &attention.sequence(&sizes, 0), 0, 0);
        for query in (0..70).step_by(16) {
            let queries = 16.min(70 - query);
            for key in (0..90).step_by(16) {
                let keys = 16.min(90 - key);
                let tile = visible.tile(query, queries, key, keys);
                let seen = visible.seen_by_all(query, queries);
                let (whole, until) = match visible.blocks_from(query, queries, key) {
                    BlockRun::Kept(until) => (Some(true), until.min(90)),
                    BlockRun::Hidden(until) => (Some(false), until.min(90)),
                    BlockRun::Mixed => (None, key),
                };
                if attention.blocks.is_some() {
                    assert!(whole.is_none() || until > key);
                    for (i, j) in (0..queries).flat_map(|i| (key..until).map(move |j| (i, j))) {
                        let sees = visible.sees(query + i, j);
                        assert_eq!(Some(sees), whole, "{query} + {i}, {j}");
                    }
                } else {
                    assert_eq!((whole, until), (Some(true), 90));
                    let near = visible.near_all(query, queries);
                    assert_eq!(near, seen);
                }
                for i in 0..queries {
                    for j in 0..keys {
                        let expected = visible.sees(query + i, key + j);
                        let found = match tile {
                            Tile::Skip => false,
                            Tile::Full => true,
                            Tile::Partial(bits) => bits[j] >> i & 1 == 1,
                        };
                        assert_eq!(
                            found,
                            expected,
                            "{attention:?} at {}, {}",
                            query + i,
                            key + j
                        );
                        assert!(expected || !seen.contains(&(key + j)));
                        if expected {
                            assert!(visible.reach(query, queries).contains(&(key + j)));
                        }
                        checked += 1;
                    }
                }
            }
        }
    }
    assert_eq!(checked, 12 * 70 * 90);
}

/// A window of any size sees what lies within it; one wider than any sequence sees everything.
#[test]
fn windows_of_any_size() {
    let sides = [
        0,
        3,
        1 << 31,
        1 << 40,
        (1 << 40) + 1,
        (1 << 63) - 1,
        1 << 63,
        usize::MAX,
    ];
    for (queries, keys) in [(5, 9), (9, 5)] {
        for alignment in [Alignment::LowerRight, Alignment::UpperLeft] {
            for (left, right) in sides
                .iter()
                .flat_map(|&left| sides.map(|right| (left, right)))
            {
                let attention = Attention {
                    alignment,
                    window: Some(Window {
                        left: Some(left),
                        right: Some(right),
                    }),
                    ..Attention::default()
                };
                let (query, key) = ([1, 1, queries, 8], [1, 1, keys, 8]);
                let sizes = attention.check(query, key, key).unwrap();
                let visible =
                    Visible::new(&attention, &sizes, &attention.sequence(&sizes, 0), 0, 0);
                for (i, j) in (0..queries).flat_map(|i| (0..keys).map(move |j| (i, j))) {
                    let shift = match alignment {
                        Alignment::LowerRight => keys as i128 - queries as i128,
                        Alignment::UpperLeft => 0,
                    };
                    let after = j as i128 - (i as i128 + shift);
                    let expected = -(left as i128) <= after && after <= right as i128;
                    assert_eq!(
                        visible.sees(i, j),
                        expected,
                        "{alignment:?} {left} {right} {i} {j}"
                    );
                    let tile = visible.tile(i, 1, j, 1);
                    assert_eq!(tile == Tile::Full, expected);
                    assert!(!expected || visible.reach(i, 1).contains(&j));
                }
            }
        }
    }
}
