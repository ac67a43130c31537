use proptest::prelude::*;

use super::*;
use crate::{
    activation::{
        Activation,
        tests::{ALL, truth},
    },
    matmul::{Write, affine, input_gradient, weight_gradient},
    pointwise::{DropoutMask, Part},
    testing::{bits, on_every_pool, random, unless_miri, wide},
};

/// `y`, `u` and all gradients are those of a product, an activation and a product one after the other: to the last bit, on every level and
/// pool, whatever else is wanted.
fn check(
    activation: Activation,
    gated: bool,
    [rows, inputs, width, outputs]: [usize; 4],
    biased: bool,
    dropped: bool,
) {
    let inner = if gated { 2 * width } else { width };
    let bias = random(1, inner, 1.0);
    let (first, second) = (
        random(2, inputs * inner, 1.0),
        random(3, width * outputs, 1.0),
    );
    let (x, d_y) = (
        random(4, rows * inputs, 1.0),
        random(5, rows * outputs, 1.0),
    );
    let activated = Activated {
        activation,
        gated,
        rows,
        width,
        bias: biased.then_some(&*bias),
        dropout: dropped.then_some(DropoutMask {
            probability: 0.3,
            seed: 7,
            part: None,
        }),
    };
    let layer = FeedForward {
        activated,
        inputs,
        outputs,
        first: &first,
        second: &second,
    };

    // One after the other.
    let apart = activated.unbiased();
    let nan = |count: usize| vec![f32::NAN; count];
    let [mut u, mut a, mut y] = [rows * inner, rows * width, rows * outputs].map(nan);
    affine([rows, inputs, inner], &x, &first, activated.bias, &mut u).unwrap();
    apart.forward(&u, &mut a).unwrap();
    affine([rows, width, outputs], &a, &second, None, &mut y).unwrap();
    let [mut d_a, mut d_u, mut d_x] = [rows * width, rows * inner, rows * inputs].map(nan);
    input_gradient([rows, width, outputs], &d_y, &second, &mut d_a).unwrap();
    apart.backward(&u, Some(&d_a), &mut d_u, None).unwrap();
    input_gradient([rows, inputs, inner], &d_u, &first, &mut d_x).unwrap();

    for &level in Level::available() {
        let all = on_every_pool(|| {
            let mut found = [
                y.len(),
                u.len(),
                y.len(),
                d_x.len(),
                d_u.len(),
                a.len(),
                inner,
                d_x.len(),
            ]
            .map(nan);
            let [y, kept, again, to_x, to_u, to_a, to_bias, alone] = &mut found;
            layer.forward_on(level, &x, None, fresh(y)).unwrap();
            layer
                .forward_on(level, &x, Some(fresh(kept)), fresh(again))
                .unwrap();
            let gradients = Gradients {
                d_x: Some(fresh(to_x)),
                d_u: Some(fresh(to_u)),
                a: Some(fresh(to_a)),
                d_bias: Some(to_bias),
            };
            layer.backward_on(level, kept, &d_y, gradients).unwrap();
            let gradients = Gradients {
                d_x: Some(fresh(alone)),
                d_u: None,
                a: None,
                d_bias: None,
            };
            layer.backward_on(level, kept, &d_y, gradients).unwrap();
            found.into()
        });
        let [found_y, kept, again, to_x, to_u, to_a, to_bias, alone] = all.try_into().unwrap();
        assert_eq!(bits(&found_y), bits(&again), "whether u is kept or not");
        assert_eq!(bits(&to_x), bits(&alone), "whatever is wanted");
        for (column, &found) in to_bias.iter().enumerate() {
            let of_rows = to_u.iter().skip(column).step_by(inner);
            let (sum, size) = of_rows.fold((0.0, 0.0), |(sum, size), &x| {
                (sum + f64::from(x), size + f64::from(x.abs()))
            });
            let error = (f64::from(found) - sum).abs();
            assert!(error <= 1e-6 * size, "bias {found} {sum}");
        }
        if level != Level::current() {
            continue; // the others round in other places
        }
        for (name, found, expected) in [
            ("u", &kept, &u),
            ("y", &again, &y),
            ("a", &to_a, &a),
            ("d_u", &to_u, &d_u),
            ("d_x", &to_x, &d_x),
        ] {
            assert_eq!(bits(found), bits(expected), "{activation:?} {name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(unless_miri(24, 1)))]

    #[test]
    fn any_network_is_its_products_and_its_activation(
        which in 0..5usize, gated: bool, rows in 0..150usize, inputs in 0..40usize, width in 0..70usize, outputs in 0..40usize,
        biased: bool, dropped: bool,
    ) {
        check(ALL[which], gated, [rows, inputs, width, outputs], biased, dropped);
    }
}

/// Weights beyond the L2 cache have blocks of several units, of which the last may be a part.
#[test]
fn large_weights_are_read_for_more_rows() {
    let sizes = unless_miri([203, 900, 600, 3], [70, 3, 5, 2]);
    check(Activation::Relu, false, sizes, true, true);
    let sizes = unless_miri([75, 900, 300, 3], [70, 3, 5, 2]);
    check(Activation::Silu, true, sizes, true, false);
}

/// Rows of a batch that several processes share drop what the whole batch would drop.
#[test]
fn a_part_of_a_batch_has_the_masks_of_the_whole() {
    let [rows, inputs, width, outputs] = [100, 3, 20, 2];
    let (first, second) = (
        random(1, inputs * width, 1.0),
        random(2, width * outputs, 1.0),
    );
    let x = random(3, rows * inputs, 1.0);
    let y = |range: std::ops::Range<usize>| {
        let part = Some(Part {
            held: range.len() * width,
            of: rows * width,
            first: range.start * width,
        });
        let dropout = Some(DropoutMask {
            probability: 0.5,
            seed: 3,
            part,
        });
        let activated = Activated {
            activation: Activation::Gelu,
            gated: false,
            rows: range.len(),
            width,
            bias: None,
            dropout,
        };
        let layer = FeedForward {
            activated,
            inputs,
            outputs,
            first: &first,
            second: &second,
        };
        let mut y = vec![f32::NAN; range.len() * outputs];
        layer
            .forward(&x[range.start * inputs..range.end * inputs], None, &mut y)
            .unwrap();
        bits(&y)
    };
    assert_eq!(y(0..rows), [y(0..37), y(37..rows)].concat());
}

/// A ReLU that lets nothing through has a gradient of 0, whatever comes back.
#[test]
fn infinite_gradients_do_not_pass_a_relu() {
    let activated = Activated {
        activation: Activation::Relu,
        gated: false,
        rows: 1,
        width: 2,
        bias: None,
        dropout: None,
    };
    let layer = FeedForward {
        activated,
        inputs: 1,
        outputs: 1,
        first: &[-1.0, 1.0],
        second: &[1.0, 1.0],
    };
    let (mut u, mut y, mut d_u) = ([0.0; 2], [0.0], [7.0; 2]);
    layer.forward(&[3.0], Some(&mut u), &mut y).unwrap();
    let gradients = Gradients {
        d_x: None,
        d_u: Some(fresh(&mut d_u)),
        a: None,
        d_bias: None,
    };
    layer.backward(&u, &[f32::INFINITY], gradients).unwrap();
    assert_eq!(d_u, [0.0, f32::INFINITY]);
}

/// The loss `Σ y ∘ ẏ` in double precision.
fn loss(layer: &FeedForward<'_>, [x, first, bias, second, d_y]: &[Vec<f64>; 5]) -> f64 {
    let Activated {
        activation,
        gated,
        rows,
        width,
        ..
    } = layer.activated;
    let (inner, mut loss) = (layer.inner(), 0.0);
    for row in 0..rows {
        let u = |column: usize| {
            let term = |k: usize| x[row * layer.inputs + k] * first[k * inner + column];
            bias[column] + (0..layer.inputs).map(term).sum::<f64>()
        };
        for column in 0..width {
            let gate = if gated { u(width + column) } else { 1.0 };
            let a = truth(activation, u(column)) * gate;
            let term = |k: usize| second[column * layer.outputs + k] * d_y[row * layer.outputs + k];
            loss += a * (0..layer.outputs).map(term).sum::<f64>();
        }
    }
    loss
}

#[test]
fn gradients_are_finite_differences() {
    for (activation, gated) in ALL.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let [rows, inputs, width, outputs] = [3, 4, 5, 2];
        let inner = if gated { 2 * width } else { width };
        let lengths = [
            rows * inputs,
            inputs * inner,
            inner,
            width * outputs,
            rows * outputs,
        ];
        let seeds = [1, 2, 3, 4, 5];
        let numbers: [Vec<f32>; 5] =
            seeds.map(|seed| random(seed, lengths[seed as usize - 1], 1.0));
        let [x, first, bias, second, d_y] = &numbers;
        let activated = Activated {
            activation,
            gated,
            rows,
            width,
            bias: Some(bias),
            dropout: None,
        };
        let layer = FeedForward {
            activated,
            inputs,
            outputs,
            first,
            second,
        };
        let nan = |count: usize| vec![f32::NAN; count];
        let [mut u, mut y, mut d_x, mut d_u, mut a, mut d_bias] = [
            rows * inner,
            rows * outputs,
            rows * inputs,
            rows * inner,
            rows * width,
            inner,
        ]
        .map(nan);
        layer.forward(x, Some(&mut u), &mut y).unwrap();
        let gradients = Gradients {
            d_x: Some(fresh(&mut d_x)),
            d_u: Some(fresh(&mut d_u)),
            a: Some(fresh(&mut a)),
            d_bias: Some(&mut d_bias),
        };
        layer.backward(&u, d_y, gradients).unwrap();
        let [mut d_first, mut d_second] = [inputs * inner, width * outputs].map(nan);
        weight_gradient(
            [rows, inputs, inner],
            x,
            &d_u,
            &mut d_first,
            inner,
            Write::Replace,
        )
        .unwrap();
        weight_gradient(
            [rows, width, outputs],
            &a,
            d_y,
            &mut d_second,
            outputs,
            Write::Replace,
        )
        .unwrap();
        let wide = numbers.each_ref().map(|numbers| wide(numbers));
        for (which, found) in [d_x, d_first, d_bias, d_second].iter().enumerate() {
            for (at, &found) in found.iter().enumerate() {
                let moved = |by: f64| {
                    let mut moved = wide.clone();
                    moved[which][at] += by;
                    loss(&layer, &moved)
                };
                let slope = (moved(1e-6) - moved(-1e-6)) / 2e-6;
                let error = (f64::from(found) - slope).abs();
                assert!(
                    error <= 3e-6 * (1.0 + slope.abs()),
                    "{activation:?} {gated} input {which}, {at}: {found} {slope}"
                );
            }
        }
    }
}

/// What is not a number, or too large for one, stays in its row.
#[test]
fn rows_do_not_touch_each_other() {
    for activation in ALL {
        let [rows, inputs, width, outputs] = [70, 3, 20, 2];
        let (first, second) = (
            random(1, inputs * width, 1.0),
            random(2, width * outputs, 1.0),
        );
        let activated = Activated {
            activation,
            gated: false,
            rows,
            width,
            bias: None,
            dropout: None,
        };
        let layer = FeedForward {
            activated,
            inputs,
            outputs,
            first: &first,
            second: &second,
        };
        let (mut x, mut d_y) = (
            random(3, rows * inputs, 1.0),
            random(4, rows * outputs, 1.0),
        );
        let run = |x: &[f32], d_y: &[f32]| {
            let [mut u, mut y, mut d_x] =
                [width, outputs, inputs].map(|width| vec![7.0; rows * width]);
            layer.forward(x, Some(&mut u), &mut y).unwrap();
            let gradients = Gradients {
                d_x: Some(fresh(&mut d_x)),
                d_u: None,
                a: None,
                d_bias: None,
            };
            layer.backward(&u, d_y, gradients).unwrap();
            (y, d_x)
        };
        let (y, d_x) = run(&x, &d_y);
        for (row, extreme) in [
            (0, f32::NAN),
            (5, f32::INFINITY),
            (64, f32::MAX),
            (69, -1e30),
        ] {
            x[row * inputs] = extreme;
        }
        for (row, extreme) in [(7, f32::NAN), (66, f32::MIN)] {
            d_y[row * outputs] = extreme;
        }
        let (moved_y, moved_x) = run(&x, &d_y);
        let of_row =
            |numbers: &[f32], row: usize, width: usize| bits(&numbers[row * width..][..width]);
        for row in 0..rows {
            let of_x = [0, 5, 64, 69].contains(&row);
            let of_y = [7, 66].contains(&row);
            if !of_x {
                assert_eq!(
                    of_row(&y, row, outputs),
                    of_row(&moved_y, row, outputs),
                    "{row}"
                );
            }
            if !of_x && !of_y {
                assert_eq!(
                    of_row(&d_x, row, inputs),
                    of_row(&moved_x, row, inputs),
                    "{row}"
                );
            }
        }
        assert!(moved_y[..outputs].iter().all(|y| y.is_nan()));
        assert!(moved_x[7 * inputs..][..inputs].iter().all(|d| d.is_nan()));
    }
}

#[test]
fn sizes_of_nothing_are_taken() {
    for sizes in [[0, 3, 4, 2], [3, 0, 4, 2], [3, 2, 0, 4], [3, 2, 4, 0]] {
        check(Activation::Gelu, true, sizes, true, true);
    }
    let activated = Activated {
        activation: Activation::Relu,
        gated: false,
        rows: usize::MAX,
        width: 0,
        bias: None,
        dropout: None,
    };
    let none = FeedForward {
        activated,
        inputs: 0,
        outputs: 0,
        first: &[],
        second: &[],
    };
    none.forward(&[], Some(&mut []), &mut []).unwrap();
    let gradients = Gradients {
        d_x: Some(&mut []),
        d_u: Some(&mut []),
        a: Some(&mut []),
        d_bias: Some(&mut []),
    };
    none.backward(&[], &[], gradients).unwrap();
}

#[test]
fn lengths_and_probabilities_are_checked() {
    let activated = Activated {
        activation: Activation::Silu,
        gated: true,
        rows: 2,
        width: 3,
        bias: None,
        dropout: None,
    };
    let (first, second) = ([0.0; 24], [0.0; 15]);
    let layer = FeedForward {
        activated,
        inputs: 4,
        outputs: 5,
        first: &first,
        second: &second,
    };
    let message = |error: Result<(), KernelError>| error.unwrap_err().to_string();
    let forward = |layer: FeedForward<'_>, x: &[f32], u: usize, y: usize| {
        message(layer.forward(x, Some(&mut vec![0.0; u]), &mut vec![0.0; y]))
    };
    let x = &[0.0; 8];
    assert!(forward(layer, &x[1..], 12, 10).contains("`x`"));
    assert!(forward(layer, x, 11, 10).contains("`u`"));
    assert!(forward(layer, x, 12, 9).contains("`y`"));
    assert!(
        forward(
            FeedForward {
                first: &first[1..],
                ..layer
            },
            x,
            12,
            10
        )
        .contains("`first`")
    );
    assert!(
        forward(
            FeedForward {
                second: &second[1..],
                ..layer
            },
            x,
            12,
            10
        )
        .contains("`second`")
    );
    let of = |activated| FeedForward { activated, ..layer };
    let bias = Some(&first[..5]);
    assert!(forward(of(Activated { bias, ..activated }), x, 12, 10).contains("bias"));
    let dropout = Some(DropoutMask {
        probability: 1.0,
        seed: 0,
        part: None,
    });
    assert!(
        forward(
            of(Activated {
                dropout,
                ..activated
            }),
            x,
            12,
            10
        )
        .contains("probability")
    );
    assert!(layer.forward(x, None, &mut [0.0; 10]).is_ok());
    let huge = of(Activated {
        width: usize::MAX,
        ..activated
    });
    assert!(huge.forward(x, None, &mut [0.0; 10]).is_err());
    let huge = of(Activated {
        rows: usize::MAX,
        ..activated
    });
    assert!(huge.forward(x, None, &mut [0.0; 10]).is_err());

    let backward = |u: usize, d_y: usize, [d_x, d_u, a, d_bias]: [usize; 4]| {
        let [mut d_x, mut d_u, mut a, mut d_bias] =
            [d_x, d_u, a, d_bias].map(|count| vec![0.0; count]);
        let gradients = Gradients {
            d_x: Some(fresh(&mut d_x)),
            d_u: Some(fresh(&mut d_u)),
            a: Some(fresh(&mut a)),
            d_bias: Some(&mut d_bias),
        };
        message(layer.backward(&vec![0.0; u], &vec![0.0; d_y], gradients))
    };
    assert!(backward(11, 10, [8, 12, 6, 6]).contains("`u`"));
    assert!(backward(12, 9, [8, 12, 6, 6]).contains("`y`"));
    assert!(backward(12, 10, [7, 12, 6, 6]).contains("`d_x`"));
    assert!(backward(12, 10, [8, 11, 6, 6]).contains("`d_u`"));
    assert!(backward(12, 10, [8, 12, 5, 6]).contains("`a`"));
    assert!(backward(12, 10, [8, 12, 6, 5]).contains("`d_bias`"));
}
