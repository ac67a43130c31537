//! Properties that hold to the last bit: hidden positions, strides, packing, pools.

use super::*;
use crate::dot::{
    Gradients,
    backward::{Inputs, backward_at},
};

#[test]
fn what_is_hidden_does_not_leak() {
    let shape = Shape {
        heads: 2,
        key_heads: 2,
        ..Shape::one_head(90, 120, unless_miri(24, 3), unless_miri(40, 2))
    };
    let (dim, value_dim) = (shape.dim, shape.value_dim);
    let options = Options::new(shape);
    let clean = shape.inputs(2.0);
    for &option in unless_miri(&[2, 4, 5, 7, 8, 9, 10, 11][..], &[7]) {
        let mut attention = Attention::default();
        let name = options.set(option, &mut attention);
        for &level in Level::available() {
            let expected = forward(level, &attention, shape, &clean);
            for &poison in unless_miri(&[f32::NAN, f32::INFINITY][..], &[f32::NAN]) {
                for &key in unless_miri(&[0, 1, 17, 60, 118, 119][..], &[17, 119]) {
                    let mut inputs = clean.clone();
                    for head in 0..2 {
                        inputs[1][(head * 120 + key) * dim..][..dim].fill(poison);
                        inputs[2][(head * 120 + key) * value_dim..][..value_dim].fill(poison);
                    }
                    let found = forward(level, &attention, shape, &inputs);
                    let sizes = attention
                        .check(shape.views()[0], shape.views()[1], shape.views()[2])
                        .unwrap();
                    for head in 0..2 {
                        let sequence = attention.sequence(&sizes, 0);
                        let visible =
                            crate::mask::Visible::new(&attention, &sizes, &sequence, 0, head);
                        for query in 0..90 {
                            if visible.sees(query, key) {
                                continue;
                            }
                            let row = head * 90 + query;
                            let span = row * value_dim..(row + 1) * value_dim;
                            assert_eq!(
                                found.0[span.clone()],
                                expected.0[span],
                                "{name} {level:?} {key} {query}"
                            );
                            let lse = |run: &(Vec<f32>, Vec<f32>)| {
                                [0, 1, 2].map(|part| run.1[3 * row + part].to_bits())
                            };
                            assert_eq!(lse(&found), lse(&expected), "{name}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn rows_that_see_nothing_are_zero() {
    let shape = Shape {
        heads: 2,
        ..Shape::one_head(70, 40, 16, 8)
    };
    // Lower-right: the first 30 queries stand before the first key.
    let attention = Attention {
        causal: true,
        ..Attention::default()
    };
    for &level in Level::available() {
        let (output, lse) = forward(level, &attention, shape, &shape.inputs(1.0));
        for row in [0, 29, 70, 99] {
            assert_eq!(output[row * 8..][..8], [0.0; 8]);
            assert_eq!(lse[3 * row..][..3], [f32::NEG_INFINITY, 0.0, 0.0]);
        }
        assert!(lse[3 * 30].is_finite() && output[30 * 8] != 0.0);
        let sinks = [0.5, 0.0];
        let attention = Attention {
            sink: Some(&sinks),
            ..attention
        };
        let (output, lse) = forward(level, &attention, shape, &shape.inputs(1.0));
        let lse = sum_lse(&lse);
        assert_eq!((output[0], lse[0], lse[70]), (0.0, 0.5, 0.0));
    }
    // A bias of -∞ everywhere.
    let bias = [f32::NEG_INFINITY; 40];
    let attention = Attention {
        bias: Some(View::heads_first(&bias, [1, 1, 1, 40])),
        ..Attention::default()
    };
    for &level in Level::available() {
        let (output, lse) = forward(level, &attention, shape, &shape.inputs(1.0));
        assert!(output.iter().all(|&x| x == 0.0));
        assert!(sum_lse(&lse).iter().all(|&x| x == f64::NEG_INFINITY));
    }
}

/// A query that overflows as it is scaled reaches the keys that it sees, and no others.
#[test]
fn an_infinite_product_with_the_scale_stays_in_its_row() {
    let shape = Shape::one_head(20, 20, 4, 3);
    let mut inputs = shape.inputs(1.0);
    inputs[0][..4].fill(1e38);
    let attention = Attention {
        causal: true,
        scale: Some(10.0),
        ..Attention::default()
    };
    let d_output = random(4, 20 * 3, 1.0);
    for &level in Level::available() {
        let (output, lse) = forward(level, &attention, shape, &inputs);
        let (mut query, mut key, mut value) = ([0.0; 80], [f32::NAN; 80], [f32::NAN; 60]);
        let view = |numbers, dim| View::heads_first(numbers, [1, 1, 20, dim]);
        let inputs = Inputs {
            query: view(&inputs[0], 4),
            key: view(&inputs[1], 4),
            value: view(&inputs[2], 3),
            output: view(&output, 3),
            lse: &lse,
            d_output: view(&d_output, 3),
        };
        let gradients = Gradients {
            query: ViewMut::heads_first(&mut query, [1, 1, 20, 4]),
            key: ViewMut::heads_first(&mut key, [1, 1, 20, 4]),
            value: ViewMut::heads_first(&mut value, [1, 1, 20, 3]),
            bias: None,
            sink: None,
        };
        backward_at(level, &attention, inputs, gradients).unwrap();
        assert!(key[4..].iter().all(|x| x.is_finite()), "{level:?} {key:?}");
        assert!(value.iter().all(|x| x.is_finite()), "{level:?} {value:?}");
    }
}

#[test]
fn empty_sizes_are_no_error() {
    for shape in [
        Shape {
            batch: 0,
            ..Shape::one_head(3, 4, 5, 6)
        },
        Shape {
            heads: 0,
            key_heads: 0,
            ..Shape::one_head(3, 4, 5, 6)
        },
        Shape::one_head(0, 4, 5, 6),
        Shape::one_head(3, 0, 5, 6),
    ] {
        let (output, lse) = forward(
            Level::current(),
            &Attention::default(),
            shape,
            &shape.inputs(1.0),
        );
        assert!(output.iter().all(|&x| x == 0.0));
        assert!(sum_lse(&lse).iter().all(|&x| x == f64::NEG_INFINITY));
    }
}

#[test]
fn layouts_and_strides_give_the_same_bits() {
    let (batch, heads, length, dim) = (2, 3, unless_miri(50, 9), unless_miri(20, 5));
    let shape = Shape {
        batch,
        heads,
        key_heads: heads,
        ..Shape::one_head(length, length, dim, dim)
    };
    let inputs = shape.inputs(2.0);
    let attention = Attention {
        causal: true,
        ..Attention::default()
    };
    let expected = forward(Level::current(), &attention, shape, &inputs).0;
    // One fused [batch, length, 3, heads, dim] projection, as a model has it.
    let mut fused = vec![f32::NAN; 3 * batch * length * heads * dim];
    let at = |part: usize, b: usize, h: usize, i: usize| {
        (((b * length + i) * 3 + part) * heads + h) * dim
    };
    for (part, input) in inputs.iter().enumerate() {
        for b in 0..batch {
            for h in 0..heads {
                for i in 0..length {
                    let from = ((b * heads + h) * length + i) * dim;
                    fused[at(part, b, h, i)..][..dim].copy_from_slice(&input[from..][..dim]);
                }
            }
        }
    }
    let view = |part: usize| View {
        data: &fused[part * heads * dim..],
        shape: [batch, heads, length, dim],
        strides: [length * 3 * heads * dim, dim, 3 * heads * dim],
    };
    let mut output = vec![f32::NAN; batch * length * heads * dim];
    let to = ViewMut::length_first(&mut output, [batch, heads, length, dim]);
    crate::dot::forward(&attention, view(0), view(1), view(2), to, None).unwrap();
    for b in 0..batch {
        for h in 0..heads {
            for i in 0..length {
                let from = ((b * heads + h) * length + i) * dim;
                let found = &output[((b * length + i) * heads + h) * dim..][..dim];
                assert_eq!(found, &expected[from..][..dim]);
            }
        }
    }
}

#[test]
fn a_packed_batch_is_its_sequences() {
    let lengths = unless_miri(
        [(5, 9), (0, 3), (60, 33), (1, 1), (17, 0), (100, 100)],
        [(5, 9), (0, 3), (3, 2), (1, 1), (2, 0), (7, 7)],
    );
    let (heads, dim) = (2, unless_miri(24, 3));
    let (queries, keys) = lengths.iter().fold((0, 0), |(q, k), l| (q + l.0, k + l.1));
    let shape = Shape {
        heads,
        key_heads: heads,
        ..Shape::one_head(queries, keys, dim, dim)
    };
    let inputs = shape.inputs(2.0);
    let offsets = |side: fn(&(usize, usize)) -> usize| {
        let mut offsets = vec![0u32];
        for length in &lengths {
            offsets.push(offsets[offsets.len() - 1] + side(length) as u32);
        }
        offsets
    };
    let (query_offsets, key_offsets) = (offsets(|l| l.0), offsets(|l| l.1));
    let packed = Attention {
        causal: true,
        dropout: Some(Dropout {
            probability: 0.2,
            seed: 3,
            first_batch: 0,
        }),
        offsets: Some(Offsets {
            query: &query_offsets,
            key: &key_offsets,
        }),
        ..Attention::default()
    };
    check("packed", &packed, shape, &inputs);
    let (output, lse) = forward(Level::current(), &packed, shape, &inputs);
    for (index, &(queries_here, keys_here)) in lengths.iter().enumerate() {
        let (query, key) = (query_offsets[index] as usize, key_offsets[index] as usize);
        let cut = |input: &[f32], total: usize, first: usize, count: usize| -> Vec<f32> {
            let head = |h: usize| &input[(h * total + first) * dim..][..count * dim];
            [head(0), head(1)].concat()
        };
        let alone = Shape {
            heads,
            key_heads: heads,
            ..Shape::one_head(queries_here, keys_here, dim, dim)
        };
        let alone_inputs = [
            cut(&inputs[0], queries, query, queries_here),
            cut(&inputs[1], keys, key, keys_here),
            cut(&inputs[2], keys, key, keys_here),
        ];
        // Dropout uses the number of the sequence as the batch, so it is left out of this
        // comparison.
        let attention = Attention {
            dropout: None,
            ..packed
        };
        let together = forward(Level::current(), &attention, shape, &inputs);
        let attention = Attention {
            offsets: None,
            ..attention
        };
        let expected = forward(Level::current(), &attention, alone, &alone_inputs);
        assert_eq!(
            cut(&together.0, queries, query, queries_here),
            expected.0,
            "sequence {index}"
        );
    }
    assert!(output.iter().chain(&lse).all(|x| !x.is_nan()));
}

#[test]
fn the_same_bits_on_any_pool_and_in_any_batch() {
    let shape = Shape {
        batch: 3,
        heads: 4,
        key_heads: 2,
        ..unless_miri(
            Shape::one_head(150, 150, 32, 32),
            Shape::one_head(26, 20, 4, 4),
        )
    };
    let inputs = shape.inputs(2.0);
    let causal = Attention {
        causal: true,
        ..Attention::default()
    };
    let run = || {
        let (output, lse) = forward(Level::current(), &causal, shape, &inputs);
        vec![output, lse]
    };
    let all = on_every_pool(run);
    let one = Shape { batch: 1, ..shape };
    let part = |x: &[f32]| x[x.len() / 3..x.len() / 3 * 2].to_vec();
    let middle = inputs.each_ref().map(|x| part(x));
    let (output, lse) = forward(Level::current(), &causal, one, &middle);
    assert_eq!((output, lse), (part(&all[0]), part(&all[1])));
}

/// The output and the gradient of a query depend on its own numbers and masks alone: not on how many other queries there are, and not
/// on what these see.
#[test]
fn a_query_has_the_same_bits_whatever_the_others_see() {
    let (dim, value_dim) = (8, 6);
    for case in 0..unless_miri(60u64, 1) {
        let drawn = random(100 + case, 8, 1.0);
        let number = |index: usize, below: usize| {
            let share = f64::from(drawn[index]).abs().min(0.999);
            (share * below as f64) as usize
        };
        let queries = 2 + number(0, unless_miri(190, 20));
        let keys = 1 + number(1, unless_miri(if case % 10 == 9 { 1400 } else { 400 }, 40));
        let own = number(2, queries);
        let shape = Shape::one_head(queries, keys, dim, value_dim);
        let inputs = shape.inputs(3.0);
        let d_output = random(4, queries * value_dim, 1.0);
        // Runs of keys that are kept or of one document; those of the other queries are drawn twice.
        let runs = |seed: u64, count: usize, length: usize| -> Vec<u8> {
            let drawn = random(seed, count.div_ceil(length), 1.0);
            (0..count)
                .map(|i| u8::from(drawn[i / length] > 0.2))
                .collect()
        };
        let length = 1 + number(3, 60);
        let keep = [1, 2].map(|draw| {
            let mut keep = runs(1000 * draw + case, queries * keys, length);
            keep[own * keys..][..keys].copy_from_slice(&runs(case, keys, length));
            keep
        });
        let documents = [1, 2].map(|draw| {
            let mut of_queries = runs(1000 * draw + case, queries, 3);
            of_queries[own] = 1;
            of_queries.into_iter().map(u32::from).collect::<Vec<_>>()
        });
        let of_keys: Vec<u32> = runs(case, keys, length)
            .into_iter()
            .map(u32::from)
            .collect();
        let (prefix, lengths) = ([number(6, keys) as u32], [1 + number(7, keys) as u32]);
        let side = |index: usize| (drawn[index] > 0.0).then(|| number(index, 150));
        let attention = |draw: usize, queries: usize| Attention {
            alignment: Alignment::UpperLeft,
            causal: case % 2 == 0,
            window: (case % 3 > 0).then(|| Window {
                left: side(4),
                right: side(5),
            }),
            prefix: (case % 7 == 3).then_some(&prefix[..]),
            lengths: (case % 7 == 4).then_some(&lengths[..]),
            alibi: (case % 7 == 5).then_some(&[0.1][..]),
            keep: (case % 5 == 1)
                .then(|| View::heads_first(&keep[draw][..queries * keys], [1, 1, queries, keys])),
            documents: (case % 5 == 2).then(|| Documents {
                query: &documents[draw][..queries],
                key: &of_keys,
            }),
            ..Attention::default()
        };
        for &level in Level::available() {
            let row = |draw: usize, queries: usize| {
                let attention = attention(draw, queries);
                let shape = Shape { queries, ..shape };
                let [query, key, value] = &inputs;
                let query = &query[..queries * dim];
                let of_shape = [query.to_vec(), key.clone(), value.clone()];
                let (output, lse) = forward(level, &attention, shape, &of_shape);
                let mut d_query = vec![f32::NAN; queries * dim];
                let (mut d_key, mut d_value) = (vec![0.0; keys * dim], vec![0.0; keys * value_dim]);
                let [of_query, of_key, of_value] = shape.views();
                let inputs = Inputs {
                    query: View::heads_first(query, of_query),
                    key: View::heads_first(key, of_key),
                    value: View::heads_first(value, of_value),
                    output: View::heads_first(&output, shape.output()),
                    lse: &lse,
                    d_output: View::heads_first(&d_output[..output.len()], shape.output()),
                };
                let gradients = Gradients {
                    query: ViewMut::heads_first(&mut d_query, of_query),
                    key: ViewMut::heads_first(&mut d_key, of_key),
                    value: ViewMut::heads_first(&mut d_value, of_value),
                    bias: None,
                    sink: None,
                };
                backward_at(level, &attention, inputs, gradients).unwrap();
                [
                    output[own * value_dim..][..value_dim].to_vec(),
                    lse[own * 3..][..3].to_vec(),
                    d_query[own * dim..][..dim].to_vec(),
                ]
            };
            let expected = row(0, queries);
            let name = format!("case {case}, {level:?}, query {own} of {queries}, {keys} keys");
            assert_eq!(
                row(1, queries),
                expected,
                "{name}: others see something else"
            );
            assert_eq!(row(0, own + 1), expected, "{name}: no queries behind it");
        }
    }
}
