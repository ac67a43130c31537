//! Scores of any finite size: huge biases used as masks, single huge keys, huge scales, products and slopes, rows of one
//! value, differences of 1e-3 and of 1e30. Forward, backward, observed, decoded, stored in half precision.
//!
//! Products are exact here (eighths, and scales that are powers of 2), and adding a bias or a slope rounds a score only
//! once, so that every computation in `f32` has the same scores. Whatever their size, the results must then agree with the
//! definition in `f32` to within the rounding of its sums; the bound of the other tests, which follows the error of a
//! naive computation, would be far too wide.

use half::{bf16, f16};

use super::*;
use crate::{
    Element,
    dot::{
        Cache, Gradients,
        backward::{Inputs, backward_at},
        decode::decode_at,
    },
};

const SHAPE: Shape = Shape {
    batch: 1,
    heads: 2,
    key_heads: 1,
    queries: 19,
    keys: 100,
    dim: 8,
    value_dim: 5,
};

/// Numbers that people use for "very small", and beyond.
const HUGE: [f32; 11] = [
    -1e5, -1e6, -1e9, -1e10, -1e12, -1e20, -1e30, -1e38, 1e9, 1e30, 1e38,
];

/// Query, key, value and the output's gradient: multiples of 1/8 whose products are exact.
fn eighths(shape: Shape) -> [Vec<f32>; 4] {
    let [query, key, value] = shape.inputs(2.0);
    let d_output = random(4, shape.output().iter().product(), 1.0);
    [query, key, value, d_output].map(|x| x.iter().map(|x| (x * 8.0).round() / 8.0).collect())
}

/// A bias with one number for each key, for every head.
fn of_keys(bias: &[f32]) -> Option<View<'_>> {
    Some(View::heads_first(bias, [1, 1, 1, bias.len()]))
}

#[track_caller]
fn assert_within(name: &str, found: &[f32], expected: &[f32], size: f32) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (index, (x, y)) in found.iter().zip(expected).enumerate() {
        let same = x == y || (x - y).abs() <= 1e-5 * size;
        assert!(same, "{name} {index}: {x}, not {y} (size {size:e})");
    }
}

fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |m, x| m.max(x.abs()))
}

/// All functions on the same call, on every level, against the definition in `f32`.
fn check_all(name: &str, attention: &Attention, shape: Shape, inputs: &[Vec<f32>; 4]) {
    let [query, key, value, d_output] = inputs;
    let views = shape.views();
    let expected = reference::forward(attention, views, query, key, value);
    assert!(expected.output.iter().all(|x| x.is_finite()), "{name}");
    let slopes = reference::backward(
        attention,
        views,
        query,
        key,
        value,
        &expected.output,
        d_output,
    );
    let d_weight = shape.value_dim as f32 * largest(d_output) * largest(value);
    let d_product = d_weight * attention.scale(shape.dim).abs();
    let queries = (shape.heads / shape.key_heads * shape.queries) as f32;
    for &level in Level::available() {
        let name = format!("{name}, {level:?}");
        let three = [query.clone(), key.clone(), value.clone()];
        let (output, lse) = forward(level, attention, shape, &three);
        let size = largest(value);
        assert_within(&format!("{name}: output"), &output, &expected.output, size);

        let found = gradients(level, attention, shape, inputs, &output, &lse);
        for (what, found, expected, size) in [
            ("query", &found[0], &slopes.query, d_product * largest(key)),
            (
                "key",
                &found[1],
                &slopes.key,
                d_product * largest(query) * queries,
            ),
            (
                "value",
                &found[2],
                &slopes.value,
                largest(d_output) * queries,
            ),
            ("bias", &found[3], &slopes.bias, d_weight * queries),
            ("sink", &found[4], &slopes.sink, d_weight * queries),
        ] {
            assert_within(
                &format!("{name}: gradient of {what}"),
                found,
                expected,
                size,
            );
        }
        observed(
            &name,
            level,
            attention,
            shape,
            inputs,
            &lse,
            &expected.weights,
        );
    }
}

/// The gradients in the order query, key, value, bias, sink.
fn gradients(
    level: Level,
    attention: &Attention,
    shape: Shape,
    inputs: &[Vec<f32>; 4],
    output: &[f32],
    lse: &[f32],
) -> [Vec<f32>; 5] {
    let views = shape.views();
    let bias_shape = attention.bias.map_or([0; 4], |bias| bias.shape);
    let sinks = attention.sink.map_or(0, <[f32]>::len);
    let mut found = [
        inputs[0].len(),
        inputs[1].len(),
        inputs[2].len(),
        bias_shape.iter().product(),
        sinks,
    ]
    .map(|count| vec![f32::NAN; count]);
    let [d_query, d_key, d_value, d_bias, d_sink] = &mut found;
    let gradients = Gradients {
        query: ViewMut::heads_first(d_query, views[0]),
        key: ViewMut::heads_first(d_key, views[1]),
        value: ViewMut::heads_first(d_value, views[2]),
        bias: (attention.bias).map(|_| ViewMut::heads_first(d_bias, bias_shape)),
        sink: attention.sink.map(|_| &mut d_sink[..]),
    };
    let arguments = Inputs {
        query: View::heads_first(&inputs[0], views[0]),
        key: View::heads_first(&inputs[1], views[1]),
        value: View::heads_first(&inputs[2], views[2]),
        output: View::heads_first(output, shape.output()),
        lse,
        d_output: View::heads_first(&inputs[3], shape.output()),
    };
    backward_at(level, attention, arguments, gradients).unwrap();
    found
}

/// Rows, entropies, column sums and the largest weights, against `weights`.
#[allow(clippy::too_many_arguments)]
fn observed(
    name: &str,
    level: Level,
    attention: &Attention,
    shape: Shape,
    inputs: &[Vec<f32>; 4],
    lse: &[f32],
    weights: &[f32],
) {
    let (queries, keys) = (shape.queries, shape.keys);
    let wanted: Vec<usize> = (0..queries).collect();
    let rows = weights.len() / keys;
    let (mut found, mut top) = (vec![f32::NAN; weights.len()], vec![f32::NAN; rows]);
    let (mut entropy, mut top_keys) = (vec![f32::NAN; rows], vec![0; rows]);
    let mut sums = vec![f32::NAN; rows / queries * keys];
    let observe = Observe {
        rows: Some((&wanted, &mut found)),
        entropy: Some(&mut entropy),
        column_sums: Some(&mut sums),
        top: Some(Top {
            k: 1,
            weights: &mut top,
            keys: &mut top_keys,
        }),
    };
    let [query, key, _] = shape.views();
    let query = View::heads_first(&inputs[0], query);
    let key = View::heads_first(&inputs[1], key);
    observe_at(level, attention, query, key, lse, observe).unwrap();
    assert_within(&format!("{name}: weight"), &found, weights, 1.0);
    let plane = |head: usize| &weights[head * queries * keys..][..queries * keys];
    let column = |index: usize| {
        let column = plane(index / keys).iter().skip(index % keys).step_by(keys);
        column.sum::<f32>()
    };
    let expected: Vec<f32> = (0..sums.len()).map(column).collect();
    assert_within(
        &format!("{name}: column sum"),
        &sums,
        &expected,
        queries as f32,
    );
    let of_row = |row: &[f32]| row.iter().fold(0.0f32, |m, &w| m.max(w));
    let expected: Vec<f32> = weights.chunks_exact(keys).map(of_row).collect();
    assert_within(&format!("{name}: largest weight"), &top, &expected, 1.0);
    if attention.sink.is_none() {
        let term = |&w: &f32| if w > 0.0 { -w * w.ln() } else { 0.0 };
        let of_row = |row: &[f32]| row.iter().map(term).sum();
        let expected: Vec<f32> = weights.chunks_exact(keys).map(of_row).collect();
        assert_within(&format!("{name}: entropy"), &entropy, &expected, 10.0);
    }
}

/// With a scale below 1, no finite product reaches the largest sinks.
#[test]
fn sinks_beyond_every_product() {
    let inputs = eighths(SHAPE);
    for sink in [f32::MAX, f32::MIN, 3e37, -3e37] {
        let sinks = [sink, 0.5];
        let attention = Attention {
            scale: Some(1.0 / 256.0),
            sink: Some(&sinks),
            ..Attention::default()
        };
        let name = format!("sink {sink:e}");
        check_all(&name, &attention, SHAPE, &inputs);
    }
}

#[test]
fn one_bias_on_every_key_of_a_row() {
    let inputs = eighths(SHAPE);
    for size in unless_miri(&[&HUGE[..], &[f32::MIN, f32::MAX]].concat()[..], &[-1e9]) {
        let bias = vec![*size; SHAPE.keys];
        let attention = Attention {
            scale: Some(0.25),
            bias: of_keys(&bias),
            ..Attention::default()
        };
        check_all(&format!("bias {size:e}"), &attention, SHAPE, &inputs);
    }
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn single_keys_above_and_below_the_others() {
    let inputs = eighths(SHAPE);
    let (first, middle) = (0..1, 41..42);
    let (half, most) = (50..100, 0..99);
    for range in [first, middle, half, most] {
        for size in [&HUGE[..], &[f32::MIN / 2.0, f32::MAX / 2.0, 1e20]].concat() {
            for base in [0.0, -1e9] {
                let mut bias = vec![base; SHAPE.keys];
                bias[range.clone()].fill(size);
                let attention = Attention {
                    scale: Some(0.25),
                    bias: of_keys(&bias),
                    ..Attention::default()
                };
                let name = format!("bias {size:e} at {range:?}, else {base:e}");
                check_all(&name, &attention, SHAPE, &inputs);
            }
        }
    }
}

/// Neighbours far from 0 that differ by little, and rows in which every key raises the maximum by a lot.
#[test]
#[cfg_attr(miri, ignore = "large")]
fn differences_of_any_size() {
    let inputs = eighths(SHAPE);
    for base in [0.0, -1e4, 1e6, -1e9, 1e30] {
        for step in [1e-3, 0.5, 64.0, 1e4, 1e9, -1e9, 1e30, -1e30, 3e36, -3e36] {
            let bias: Vec<f32> = (0..SHAPE.keys).map(|j| base + step * j as f32).collect();
            let attention = Attention {
                scale: Some(0.25),
                bias: of_keys(&bias),
                ..Attention::default()
            };
            let name = format!("{base:e} and steps of {step:e}");
            check_all(&name, &attention, SHAPE, &inputs);
        }
    }
}

/// Exact powers of 2 make products of all sizes.
#[test]
fn huge_scales_and_products() {
    for (of_query, of_key, scale) in unless_miri(
        &[
            (0, 0, 30),
            (0, 0, 60),
            (0, 0, 110),
            (15, 15, 0),
            (30, 30, 0),
            (60, 55, 0),
            (60, -58, 3),
            (60, 60, -118),
            (30, 30, -60),
            (-30, -30, 60),
            (-30, -30, 90),
            (0, 0, -40),
        ][..],
        &[(15, 15, 0)],
    ) {
        let power = |exponent: i32| 2.0f32.powi(exponent);
        let [query, key, value, d_output] = eighths(SHAPE);
        let times = |x: Vec<f32>, factor: f32| x.iter().map(|x| x * factor).collect();
        let inputs = [
            times(query, power(*of_query)),
            times(key, power(*of_key)),
            value,
            d_output,
        ];
        let bias: Vec<f32> = (0..SHAPE.keys).map(|j| (j % 7) as f32).collect();
        for sign in [1.0, -1.0] {
            for bias in [None, of_keys(&bias)] {
                let attention = Attention {
                    scale: Some(sign * power(*scale)),
                    bias,
                    ..Attention::default()
                };
                let biased = bias.is_some();
                let name = format!("{of_query} {of_key} {scale} sign {sign} bias {biased}");
                check_all(&name, &attention, SHAPE, &inputs);
            }
        }
    }
    let attention = Attention {
        scale: Some(0.0),
        ..Attention::default()
    };
    check_all("no scale", &attention, SHAPE, &eighths(SHAPE));
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn huge_slopes_and_rows_of_one_value() {
    let inputs = eighths(SHAPE);
    for exponent in [-3, 10, 20, 30, 60, 110] {
        let slope = 2.0f32.powi(exponent);
        for slopes in [[slope, -slope], [-slope, slope / 2.0]] {
            for causal in [false, true] {
                let attention = Attention {
                    scale: Some(0.25),
                    alibi: Some(&slopes),
                    causal,
                    ..Attention::default()
                };
                check_all(&format!("{slopes:?}"), &attention, SHAPE, &inputs);
            }
        }
    }
    let mut of_zeros = inputs.clone();
    of_zeros[0].fill(0.0);
    let mut of_ones = inputs;
    of_ones[1].fill(1.0);
    for inputs in [of_zeros, of_ones] {
        for size in HUGE {
            let bias = vec![size; SHAPE.keys];
            let attention = Attention {
                scale: Some(1024.0),
                bias: of_keys(&bias),
                ..Attention::default()
            };
            check_all(&format!("one value {size:e}"), &attention, SHAPE, &inputs);
        }
    }
}

/// Sinks against scores of all sizes, with dropout, masks and packed sequences.
#[test]
#[cfg_attr(miri, ignore = "large")]
fn with_every_other_option() {
    let inputs = eighths(SHAPE);
    for size in HUGE {
        let bias: Vec<f32> = (0..SHAPE.keys)
            .map(|j| if j < 70 { size } else { -1e9 })
            .collect();
        let attention = Attention {
            scale: Some(0.25),
            bias: of_keys(&bias),
            ..Attention::default()
        };
        for sink in [0.0, -1e9, 1e9, size, -size, 2e38, -2e38] {
            let sinks = [sink, sink / 2.0];
            let attention = Attention {
                sink: Some(&sinks),
                ..attention
            };
            let name = format!("bias {size:e} sink {sink:e}");
            check_all(&name, &attention, SHAPE, &inputs);
        }
        let dropout = Some(Dropout {
            probability: 0.25,
            seed: 3,
            first_batch: 0,
        });
        let masked = Attention {
            causal: true,
            lengths: Some(&[90]),
            dropout,
            ..attention
        };
        check_all(&format!("masked {size:e}"), &masked, SHAPE, &inputs);
        let (query, key) = ([0, 7, 19], [0, 60, 100]);
        let packed = Attention {
            offsets: Some(Offsets {
                query: &query,
                key: &key,
            }),
            bias: of_keys(&bias[..60]),
            ..attention
        };
        let [query, key, value] = SHAPE.views();
        let expected = reference::forward(
            &packed,
            [query, key, value],
            &inputs[0],
            &inputs[1],
            &inputs[2],
        );
        let three = [0, 1, 2].map(|i| inputs[i].clone());
        for &level in Level::available() {
            let (output, _) = forward(level, &packed, SHAPE, &three);
            assert_within(&format!("packed {size:e}"), &output, &expected.output, 2.0);
        }
    }
}

/// A softcap rounds the scores, so here the bound is that of a naive computation.
#[test]
#[cfg_attr(miri, ignore = "large")]
fn large_softcaps() {
    let [query, key, value, _] = eighths(SHAPE);
    for cap in [2.0, 50.0, 1e3] {
        for scale in [0.25, 64.0, 1e6, 1e20] {
            let bias = vec![-1e4; SHAPE.keys];
            for bias in [None, of_keys(&bias)] {
                let attention = Attention {
                    scale: Some(scale),
                    softcap: Some(cap),
                    bias,
                    ..Attention::default()
                };
                let inputs = [query.clone(), key.clone(), value.clone()];
                check("softcap", &attention, SHAPE, &inputs);
            }
        }
    }
}

/// The same in half precision, where the machine may multiply pairs; and as decoding, in pages too.
#[test]
#[cfg_attr(miri, ignore = "large")]
fn stored_and_decoded() {
    fn narrow<T: Element>(x: &[f32]) -> Vec<T> {
        x.iter().map(|&x| T::narrow(x)).collect()
    }
    fn compare<T: Element>(attention: &Attention, inputs: &[Vec<f32>; 4], tolerance: f32) {
        let [query, key, value, _] = inputs;
        let views = SHAPE.views();
        let expected = reference::forward(attention, views, query, key, value).output;
        let stored = [query, key, value].map(|x| narrow::<T>(x));
        let [q, k, v] = [0, 1, 2].map(|i| View::heads_first(&stored[i], views[i]));
        for &level in Level::available() {
            let name = format!("{:?} {level:?} {attention:?}", T::KIND);
            let mut output = vec![f32::NAN; expected.len()];
            let to = ViewMut::heads_first(&mut output, SHAPE.output());
            forward_at(level, attention, q, k, v, to, None).unwrap();
            assert_within(&name, &output, &expected, 2e5 * tolerance);

            let query = View::heads_first(query, views[0]);
            let to = ViewMut::heads_first(&mut output, SHAPE.output());
            let cache = Cache::Contiguous {
                key: k,
                value: v,
                filled: None,
            };
            decode_at(level, attention, query, cache, to, None).unwrap();
            assert_within(&format!("decoded {name}"), &output, &expected, 2.0);

            // One head, in pages of 20.
            let cache = Cache::Paged {
                key: View::heads_first(&stored[1], [5, 1, 20, SHAPE.dim]),
                value: View::heads_first(&stored[2], [5, 1, 20, SHAPE.value_dim]),
                table: &[0, 1, 2, 3, 4],
                filled: &[100],
            };
            let to = ViewMut::heads_first(&mut output, SHAPE.output());
            decode_at(level, attention, query, cache, to, None).unwrap();
            assert_within(&format!("paged {name}"), &output, &expected, 2.0);
        }
    }
    let inputs = eighths(SHAPE);
    for size in HUGE {
        for count in [100, 50, 1] {
            let mut bias = vec![0.0; SHAPE.keys];
            bias[..count].fill(size);
            let attention = Attention {
                scale: Some(0.25),
                bias: of_keys(&bias),
                ..Attention::default()
            };
            compare::<f32>(&attention, &inputs, 1e-5);
            compare::<f16>(&attention, &inputs, 1e-5);
            compare::<bf16>(&attention, &inputs, 2e-2);
        }
    }
    for scale in [30, 60, 110] {
        let attention = Attention {
            scale: Some(2.0f32.powi(scale)),
            ..Attention::default()
        };
        compare::<f32>(&attention, &inputs, 1e-5);
        compare::<f16>(&attention, &inputs, 1e-5);
        compare::<bf16>(&attention, &inputs, 2e-2);
    }
}
