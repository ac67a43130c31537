//! Decoding against the definition.

use half::{bf16, f16};

use super::{Cache, decode_at};
use crate::dot::{
    reference,
    tests::{OPTIONS, Options, Shape, sum_lse},
};
use crate::{
    Attention, Element, View, ViewMut,
    simd::Level,
    testing::{assert_close, on_every_pool, unless_miri, wide},
};

fn decode<T: Element>(
    level: Level,
    attention: &Attention,
    shape: Shape,
    query: &[f32],
    cache: Cache<T>,
) -> (Vec<f32>, Vec<f32>) {
    let rows = shape.batch * shape.heads * shape.queries;
    let mut output = vec![f32::NAN; rows * shape.value_dim];
    let mut lse = vec![f32::NAN; 3 * rows];
    let to = ViewMut::heads_first(&mut output, shape.output());
    let query = View::heads_first(query, shape.views()[0]);
    decode_at(level, attention, query, cache, to, Some(&mut lse)).unwrap();
    (output, lse)
}

/// Checks a contiguous cache of `T` on every level.
fn check<T: Element>(name: &str, attention: &Attention, shape: Shape) {
    let mut inputs = shape.inputs(2.0);
    let narrow = |x: &[f32]| x.iter().map(|&x| T::narrow(x)).collect::<Vec<T>>();
    let (key, value) = (narrow(&inputs[1]), narrow(&inputs[2]));
    inputs[1] = key.iter().map(|x| x.widen()).collect();
    inputs[2] = value.iter().map(|x| x.widen()).collect();
    let cache = Cache::Contiguous {
        key: View::heads_first(&key, shape.views()[1]),
        value: View::heads_first(&value, shape.views()[2]),
        filled: None,
    };
    let [query, key, value] = &inputs.each_ref().map(|x| wide(x));
    let truth = reference::forward(attention, shape.views(), query, key, value);
    let [query, key, value] = &inputs;
    let naive = reference::forward(attention, shape.views(), query, key, value);
    for &level in Level::available() {
        let name = format!("{name} {:?} {level:?} {shape:?}", T::KIND);
        let (output, lse) = decode(level, attention, shape, query, cache);
        assert_close(
            &format!("{name}: output"),
            &output,
            &naive.output,
            &truth.output,
            2.0,
        );
        for (fast, truth) in sum_lse(&lse).iter().zip(&truth.lse) {
            let close = (fast - truth).abs() < 1e-5 || fast == truth;
            assert!(close, "{name}: lse {fast}, not {truth}");
        }
    }
}

#[test]
fn every_storage_and_awkward_size() {
    let lengths = [(1, 1), (1, 63), (2, 300), (5, 64), (3, 4500)];
    let dims = [(1, 3), (40, 40), (64, 111), (128, 128), (256, 8)];
    for &(queries, keys) in unless_miri(&lengths[..], &[(2, 70)]) {
        for &(dim, value_dim) in unless_miri(&dims[..], &[(1, 3)]) {
            for &(heads, key_heads) in unless_miri(&[(1, 1), (8, 2)][..], &[(2, 1)]) {
                let shape = Shape {
                    heads,
                    key_heads,
                    ..Shape::one_head(queries, keys, dim, value_dim)
                };
                let causal = Attention {
                    causal: true,
                    ..Attention::default()
                };
                check::<f32>("causal", &causal, shape);
                check::<bf16>("causal", &causal, shape);
                check::<f16>("plain", &Attention::default(), shape);
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn every_option_of_a_full_cache() {
    let shape = Shape {
        batch: 2,
        heads: 4,
        key_heads: 2,
        ..Shape::one_head(5, 150, 24, 20)
    };
    let options = Options::new(shape);
    let mut checked = 0;
    // Dropout is refused.
    for option in (0..OPTIONS).filter(|&option| option != 16) {
        let mut attention = Attention::default();
        let name = options.set(option, &mut attention);
        check::<f32>(name, &attention, shape);
        attention.causal = true;
        check::<f32>(name, &attention, shape);
        checked += 1;
    }
    assert_eq!(checked, OPTIONS - 1);
}

#[test]
fn pages_and_filled_keys_are_the_cache_cut_to_them() {
    let (batch, heads, key_heads, queries, dim, page, pages) =
        (3, 4, 2, 2, unless_miri(16, 4), 16, 12);
    let shape = Shape {
        batch,
        heads,
        key_heads,
        ..Shape::one_head(queries, 4 * page, dim, dim)
    };
    let filled = [50u32, 2, 64];
    let table = [7u32, 0, 3, 9, 5, 999, 999, 999, 1, 2, 11, 4];
    let store = Shape {
        batch: pages,
        heads: 1,
        key_heads,
        ..Shape::one_head(1, page, dim, dim)
    };
    let [_, key, value] = store.inputs(2.0);
    let query = shape.inputs(2.0)[0].clone();
    let attention = Attention {
        causal: true,
        ..Attention::default()
    };
    for &level in Level::available() {
        let cache = Cache::Paged {
            key: View::heads_first(&key, store.views()[1]),
            value: View::heads_first(&value, store.views()[2]),
            table: &table,
            filled: &filled,
        };
        let paged = decode(level, &attention, shape, &query, cache);
        // The same cache, contiguous, with NaN where nothing is filled.
        let gather = |from: &[f32]| {
            let mut to = vec![f32::NAN; batch * key_heads * 4 * page * dim];
            for b in 0..batch {
                for h in 0..key_heads {
                    for j in 0..filled[b] as usize {
                        let at = table[b * 4 + j / page] as usize;
                        let from = &from[((at * key_heads + h) * page + j % page) * dim..][..dim];
                        to[((b * key_heads + h) * 4 * page + j) * dim..][..dim]
                            .copy_from_slice(from);
                    }
                }
            }
            to
        };
        let (key, value) = (gather(&key), gather(&value));
        let whole = Cache::Contiguous {
            key: View::heads_first(&key, shape.views()[1]),
            value: View::heads_first(&value, shape.views()[2]),
            filled: Some(&filled),
        };
        assert_eq!(decode(level, &attention, shape, &query, whole), paged);
        for b in 0..batch {
            // The sequence alone, cut to its length.
            let length = filled[b] as usize;
            let cut = |from: &[f32]| -> Vec<f32> {
                let head = |h: usize| &from[(b * key_heads + h) * 4 * page * dim..][..length * dim];
                (0..key_heads).flat_map(|h| head(h).to_vec()).collect()
            };
            let alone = Shape {
                batch: 1,
                keys: length,
                ..shape
            };
            let (key, value) = (cut(&key), cut(&value));
            let cache = Cache::Contiguous {
                key: View::heads_first(&key, alone.views()[1]),
                value: View::heads_first(&value, alone.views()[2]),
                filled: None,
            };
            let size = heads * queries * dim;
            let (output, _) = decode(level, &attention, alone, &query[b * size..][..size], cache);
            assert_eq!(output, paged.0[b * size..][..size]);
        }
    }
}

/// A table of pages of one position, as hypotheses of a beam share their past. A row has the same bits whether it is alone
/// or in its group.
#[test]
fn ancestors_and_groups_change_no_bit() {
    check_ancestors::<f32>();
    check_ancestors::<bf16>();
    check_ancestors::<f16>();
}

fn check_ancestors<T: Element>() {
    let (beams, heads, keys, dim) = (3, 4, unless_miri(70, 20), unless_miri(40, 5));
    let shape = Shape {
        batch: beams,
        heads,
        key_heads: 1,
        ..Shape::one_head(1, keys, dim, dim)
    };
    let store = Shape {
        batch: beams * keys,
        heads: 1,
        key_heads: 1,
        ..Shape::one_head(1, 1, dim, dim)
    };
    let narrow = |x: &[f32]| x.iter().map(|&x| T::narrow(x)).collect::<Vec<T>>();
    let [_, key, value] = store.inputs(2.0);
    let (key, value) = (narrow(&key), narrow(&value));
    let query = shape.inputs(2.0)[0].clone();
    let table: Vec<u32> = (0..beams * keys)
        .map(|at| (at % keys * beams + at / keys * at % beams) as u32)
        .collect();
    let filled = [keys as u32, 1, keys as u32 - 3];
    let gather = |from: &[T]| -> Vec<T> {
        let rows = table
            .iter()
            .map(|&page| &from[page as usize * dim..][..dim]);
        rows.flatten().copied().collect()
    };
    let (own_key, own_value) = (gather(&key), gather(&value));
    for &level in Level::available() {
        let cache = Cache::Paged {
            key: View::heads_first(&key, store.views()[1]),
            value: View::heads_first(&value, store.views()[2]),
            table: &table,
            filled: &filled,
        };
        let paged = decode(level, &Attention::default(), shape, &query, cache);
        let cache = Cache::Contiguous {
            key: View::heads_first(&own_key, shape.views()[1]),
            value: View::heads_first(&own_value, shape.views()[2]),
            filled: Some(&filled),
        };
        let whole = decode(level, &Attention::default(), shape, &query, cache);
        assert_eq!(paged, whole, "{:?} {level:?}", T::KIND);
        for row in 0..beams * heads {
            let alone = Shape {
                batch: 1,
                heads: 1,
                ..shape
            };
            let part = |x: &'_ [T]| x[row / heads * keys * dim..][..keys * dim].to_vec();
            let (key, value) = (part(&own_key), part(&own_value));
            let cache = Cache::Contiguous {
                key: View::heads_first(&key, alone.views()[1]),
                value: View::heads_first(&value, alone.views()[2]),
                filled: Some(&filled[row / heads..][..1]),
            };
            let query = &query[row * dim..][..dim];
            let (output, lse) = decode(level, &Attention::default(), alone, query, cache);
            assert_eq!(
                output,
                whole.0[row * dim..][..dim],
                "{:?} {level:?}",
                T::KIND
            );
            assert_eq!(lse, whole.1[row * 3..][..3], "{:?} {level:?}", T::KIND);
        }
    }
}

#[test]
fn the_same_bits_on_any_pool() {
    let shape = Shape {
        heads: 4,
        key_heads: 2,
        ..unless_miri(
            Shape::one_head(1, 9000, 64, 64),
            Shape::one_head(1, 4100, 2, 2),
        )
    };
    let [query, key, value] = shape.inputs(2.0);
    on_every_pool(|| {
        let cache = Cache::Contiguous {
            key: View::heads_first(&key, shape.views()[1]),
            value: View::heads_first(&value, shape.views()[2]),
            filled: None,
        };
        let (output, lse) = decode(
            Level::current(),
            &Attention::default(),
            shape,
            &query,
            cache,
        );
        vec![output, lse]
    });
}

#[test]
fn hidden_positions_are_not_read() {
    let shape = Shape {
        heads: 2,
        key_heads: 1,
        ..unless_miri(
            Shape::one_head(3, 100, 16, 16),
            Shape::one_head(3, 100, 4, 4),
        )
    };
    let dim = shape.dim;
    let [query, key, value] = shape.inputs(2.0);
    let options = Options::new(shape);
    for &option in unless_miri(&[2, 4, 8, 9][..], &[2]) {
        let mut attention = Attention::default();
        let name = options.set(option, &mut attention);
        let run = |key: &[f32], value: &[f32]| {
            let cache = Cache::Contiguous {
                key: View::heads_first(key, shape.views()[1]),
                value: View::heads_first(value, shape.views()[2]),
                filled: None,
            };
            decode(Level::current(), &attention, shape, &query, cache).0
        };
        let expected = run(&key, &value);
        let visible = crate::mask::Visible::new(
            &attention,
            &attention
                .check(shape.views()[0], shape.views()[1], shape.views()[2])
                .unwrap(),
            &crate::problem::Sequence {
                batch: 0,
                first_query: 0,
                queries: 3,
                first_key: 0,
                keys: 100,
            },
            0,
            0,
        );
        for &position in unless_miri(&[0, 2, 50, 98, 99][..], &[0, 98]) {
            let (mut key, mut value) = (key.clone(), value.clone());
            key[position * dim..][..dim].fill(f32::NAN);
            value[position * dim..][..dim].fill(f32::INFINITY);
            let found = run(&key, &value);
            for row in 0..6 {
                if !visible.sees(row % 3, position) {
                    assert_eq!(
                        found[row * dim..][..dim],
                        expected[row * dim..][..dim],
                        "{name} {position}"
                    );
                }
            }
        }
    }
}

#[test]
fn wrong_caches_are_named() {
    let numbers = [0.0f32; 64];
    let query = View::heads_first(&numbers[..8], [1, 1, 1, 8]);
    let page = View::heads_first(&numbers, [4, 1, 2, 8]);
    let refused = |attention: &Attention, table: &[u32], filled: &[u32]| {
        let mut output = [0.0f32; 8];
        let cache = Cache::Paged {
            key: page,
            value: page,
            table,
            filled,
        };
        let to = ViewMut::heads_first(&mut output, [1, 1, 1, 8]);
        super::decode(attention, query, cache, to, None)
            .unwrap_err()
            .to_string()
    };
    let none = Attention::default();
    assert!(refused(&none, &[0], &[]).contains("`filled`"));
    let message = refused(&none, &[0, 1], &[5]);
    assert!(
        message.contains("`filled`") && message.contains("at most the cache's 4 keys"),
        "{message}"
    );
    let message = refused(&none, &[0, 4], &[4]);
    assert!(
        message.contains("`table` holds 4 at position 1") && message.contains("below 4"),
        "{message}"
    );
    let dropout = Attention {
        dropout: Some(crate::Dropout {
            probability: 0.5,
            seed: 1,
            first_batch: 0,
        }),
        ..none
    };
    assert!(refused(&dropout, &[0], &[1]).contains("`dropout.probability`"));
}

/// `lengths` mark padding, which shifts no position, in the forward pass and in decoding alike; keys that are filled are
/// all the keys there are.
#[test]
fn lengths_mean_what_they_mean_in_a_forward_pass() {
    let shape = Shape {
        batch: 2,
        heads: 2,
        key_heads: 1,
        ..Shape::one_head(3, 40, 8, 8)
    };
    let inputs = shape.inputs(2.0);
    let [query, key, value] = [0, 1, 2].map(|i| View::heads_first(&inputs[i], shape.views()[i]));
    let window = Some(crate::Window {
        left: Some(9),
        right: Some(2),
    });
    for lengths in [[40, 40], [39, 30], [7, 0]] {
        for (causal, window, alibi) in [(true, None, None), (false, window, Some(&[0.5, 0.25][..]))]
        {
            let attention = Attention {
                causal,
                window,
                alibi,
                lengths: Some(&lengths),
                ..Attention::default()
            };
            let mut expected = vec![f32::NAN; 2 * 2 * 3 * 8];
            let to = ViewMut::heads_first(&mut expected, shape.output());
            crate::dot::forward(&attention, query, key, value, to, None).unwrap();
            for filled in [None, Some(&[40u32, 40][..])] {
                let cache = Cache::Contiguous { key, value, filled };
                let (output, _) = decode(Level::current(), &attention, shape, &inputs[0], cache);
                for (found, expected) in output.iter().zip(&expected) {
                    assert!(
                        (found - expected).abs() < 1e-5,
                        "{lengths:?}: {found}, not {expected}"
                    );
                }
            }
        }
    }
}

/// A hidden key stays hidden even where its scaled score is beyond `f32`.
#[test]
fn a_bias_hides_scores_that_overflow() {
    let shape = Shape::one_head(2, 40, 4, 3);
    let inputs = shape.inputs(2.0);
    let key: Vec<f32> = inputs[1].iter().map(|x| x.abs()).collect();
    let query = [1e15, 1e15, 1e15, 1e15, 0.0, 0.0, 0.0, 0.0];
    let mut bias = [f32::NEG_INFINITY; 2 * 40];
    bias[40 + 3] = 0.0; // what the second query sees
    let attention = Attention {
        scale: Some(1e30),
        bias: Some(View::heads_first(&bias, [1, 1, 2, 40])),
        ..Attention::default()
    };
    let value = View::heads_first(&inputs[2], shape.views()[2]);
    let key = View::heads_first(&key, shape.views()[1]);
    let expected = [&[0.0; 3][..], &inputs[2][3 * 3..][..3]].concat();
    let mut output = [f32::NAN; 6];
    let to = ViewMut::heads_first(&mut output, shape.output());
    let asked = View::heads_first(&query, shape.views()[0]);
    crate::dot::forward(&attention, asked, key, value, to, None).unwrap();
    assert_eq!(output[..], expected);
    for &level in Level::available() {
        let filled = None;
        let cache = Cache::Contiguous { key, value, filled };
        let (output, lse) = decode(level, &attention, shape, &query, cache);
        assert_eq!(output, expected, "{level:?}");
        assert_eq!(lse, [f32::NEG_INFINITY, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }
}
