use proptest::prelude::*;

use super::*;
use crate::reference::Real;
use crate::testing::{assert_close, on_every_pool, random, unless_miri, wide};

/// Calls `visit(y, w, x)` with the indices of every product.
fn every_product(c: &Convolution, mut visit: impl FnMut(usize, usize, usize)) {
    let [out_height, out_width] = c.output_size().unwrap();
    let [outputs, inputs, height, width] = c.weight_shape();
    for n in 0..c.batch {
        for o in 0..outputs {
            let group = o / (outputs / c.groups);
            for t in 0..out_height {
                for u in 0..out_width {
                    let y = ((n * outputs + o) * out_height + t) * out_width + u;
                    for k in 0..inputs * height * width {
                        let (channel, j, i) = (k / (height * width), k / width % height, k % width);
                        let a = (t * c.stride[0] + j * c.dilation[0]).checked_sub(c.padding[0]);
                        let b = (u * c.stride[1] + i * c.dilation[1]).checked_sub(c.padding[1]);
                        let (Some(a), Some(b)) = (a, b) else { continue };
                        if a < c.size[0] && b < c.size[1] {
                            let channel = n * c.inputs + group * inputs + channel;
                            let x = (channel * c.size[0] + a) * c.size[1] + b;
                            visit(y, o * inputs * height * width + k, x);
                        }
                    }
                }
            }
        }
    }
}

struct Lengths {
    x: usize,
    w: usize,
    y: usize,
}

fn lengths(c: &Convolution) -> Lengths {
    let [height, width] = c.output_size().unwrap();
    Lengths {
        x: c.batch * c.inputs * c.size[0] * c.size[1],
        w: c.weight_shape().iter().product(),
        y: c.batch * c.outputs * height * width,
    }
}

/// The definition: `[y, ẋ, ẇ, ḃ]`.
fn plain<T: Real>(c: &Convolution, x: &[T], w: &[T], bias: &[T], d_y: &[T]) -> [Vec<T>; 4] {
    let n = lengths(c);
    let plane = n.y / (c.batch * c.outputs).max(1);
    let channel = |y: usize| y / plane % c.outputs;
    let zeros = |count| vec![T::of(0.0); count];
    let mut y = zeros(n.y);
    let (mut d_x, mut d_w, mut d_b) = (zeros(n.x), zeros(n.w), zeros(c.outputs));
    every_product(c, |at, k, from| {
        y[at] = y[at] + w[k] * x[from];
        d_x[from] = d_x[from] + w[k] * d_y[at];
        d_w[k] = d_w[k] + x[from] * d_y[at];
    });
    for at in 0..n.y {
        y[at] = y[at] + bias[channel(at)];
        d_b[channel(at)] = d_b[channel(at)] + d_y[at];
    }
    [y, d_x, d_w, d_b]
}

fn fast(c: &Convolution, level: Level, [x, w, bias, d_y]: [&[f32]; 4]) -> Vec<Vec<f32>> {
    let n = lengths(c);
    let poison = |count| vec![f32::NAN; count];
    let (mut y, mut d_x) = (poison(n.y), poison(n.x));
    let (mut d_w, mut d_b) = (poison(n.w), poison(c.outputs));
    c.forward_on(level, x, w, Some(bias), fresh(&mut y))
        .unwrap();
    c.backward_input_on(level, w, d_y, fresh(&mut d_x)).unwrap();
    let mut gradients = Gradients {
        weight: &mut d_w,
        bias: Some(&mut d_b),
    };
    c.backward_weight_on(level, x, d_y, &mut gradients).unwrap();
    vec![y, d_x, d_w, d_b]
}

fn check(c: &Convolution) {
    check_with(c, |x| x);
}

/// The same with inputs that `change` makes of ordinary ones.
fn check_with(c: &Convolution, change: impl Fn(f32) -> f32) {
    let n = lengths(c);
    let x: Vec<f32> = random(1, n.x, 1.0).into_iter().map(change).collect();
    let w = random(2, n.w, 1.0);
    let bias = random(3, c.outputs, 1.0);
    let d_y = random(4, n.y, 1.0);
    let truth = plain(c, &wide(&x), &wide(&w), &wide(&bias), &wide(&d_y));
    let slow = plain(c, &x, &w, &bias, &d_y);
    for &level in Level::available() {
        let found = on_every_pool(|| fast(c, level, [&x, &w, &bias, &d_y]));
        let names = ["y", "d_x", "d_w", "d_b"];
        for (at, name) in names.iter().enumerate() {
            let name = format!("{name} of {c:?} on {level:?}");
            assert_close(&name, &found[at], &slow[at], &truth[at], 2.0);
        }
    }
}

#[test]
fn passes_are_their_definition() {
    let mut checked = 0;
    for kernel in unless_miri(1..=7, 3..=3) {
        for stride in unless_miri(1..=3, 2..=2) {
            for (dilation, groups, size) in [
                (1, 1, [9, 17]),
                (1, 1, [16, 16]),
                (2, 1, [13, 20]),
                (1, 2, [8, 7]),
                (3, 4, [19, 21]),
            ] {
                for padding in [0, kernel / 2, kernel + 1] {
                    check(&Convolution {
                        kernel: [kernel, kernel.min(5)],
                        stride: [stride, 1 + stride % 3],
                        padding: [padding, kernel / 2],
                        dilation: [dilation, 1],
                        groups,
                        ..Convolution::new(2, [4, 8], size)
                    });
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, unless_miri(7 * 3 * 5 * 3, 15));
}

#[test]
fn every_width_of_tile_is_its_definition() {
    for outputs in unless_miri(&[1, 3, 7, 16, 31, 48, 50][..], &[3]) {
        for (inputs, size) in unless_miri(
            // Rows of 8, 16 and 32 are computed without the zeros beside them.
            &[
                (1, [5, 5]),
                (3, [32, 32]),
                (5, [7, 8]),
                (20, [8, 8]),
                (3, [9, 16]),
                (40, [6, 49]),
            ][..],
            &[(1, [5, 5]), (1, [3, 8])],
        ) {
            check(&Convolution {
                kernel: [3, 3],
                padding: [1, 1],
                ..Convolution::new(3, [*inputs, *outputs], *size)
            });
        }
    }
}

#[test]
fn rows_in_pairs_are_their_definition() {
    for (groups, channels, size) in unless_miri(
        &[
            (1, [8, 8], [1, 9]),
            (1, [8, 9], [2, 16]),
            (1, [24, 8], [7, 8]),
            (2, [12, 11], [9, 5]),
            // More rows than a task has, forward and for the weights.
            (1, [8, 16], [130, 70]),
        ][..],
        &[(1, [8, 8], [3, 4])],
    ) {
        for padding in [[0, 0], [1, 1], [2, 0], [5, 7]] {
            for (width, dilation) in [(1, 1), (3, 1), (2, 3)] {
                let c = Convolution {
                    kernel: [3, width],
                    padding,
                    dilation: [1, dilation],
                    groups: *groups,
                    ..Convolution::new(2, channels.map(|channels| channels * groups), *size)
                };
                if c.output_size().is_ok() {
                    check(&c);
                }
            }
        }
    }
}

#[test]
fn extreme_inputs_are_within_the_bound() {
    for channels in [[3, 8], [16, 9]] {
        let c = Convolution {
            kernel: [3, 3],
            padding: [1, 1],
            ..Convolution::new(2, channels, [8, 12])
        };
        check_with(&c, |x| 1e34 * x);
        check_with(&c, |x| 1e-38 * x);
        check_with(&c, |x| f32::MIN_POSITIVE / 4.0 * x);
        // Some very large ones among ordinary ones, as where something is masked.
        check_with(&c, |x| if x > 0.9 { -1e30 } else { x });
        check_with(&c, |x| if x > 0.9 { f32::MAX / 256.0 } else { 0.0 });
        check_with(&c, |x| 1e4 + x);
    }
}

#[test]
fn what_is_not_finite_reaches_only_the_outputs_that_read_it() {
    let c = Convolution {
        kernel: [3, 3],
        padding: [1, 1],
        ..Convolution::new(2, [8, 8], [8, 16])
    };
    let mut x = vec![1.0; 2 * 8 * 8 * 16];
    x[3 * 16 + 5] = f32::INFINITY;
    let mut y = vec![0.0; x.len()];
    c.forward(&x, &[1.0; 8 * 8 * 9], None, &mut y).unwrap();
    for (at, y) in y.iter().enumerate() {
        let (map, row, column) = (at / 128, at / 16 % 8, at % 16);
        let reads = map < 8 && (2..=4).contains(&row) && (4..=6).contains(&column);
        assert_eq!(
            !y.is_finite(),
            reads,
            "map {map}, row {row}, column {column}"
        );
    }
}

#[test]
fn columns_that_read_only_padding_are_the_bias() {
    // The others of all rows fill whole vectors together, of 8 and of 16 lanes, but not those of a row alone.
    for size in [[11, 4], [13, 10], [7, 16], [3, 28]] {
        check(&Convolution {
            kernel: [1, 4],
            stride: [1, 3],
            padding: [0, 4],
            ..Convolution::new(unless_miri(40, 1), [1, 2], size)
        });
    }
}

#[test]
fn depthwise_and_strided_single_taps_are_their_definition() {
    check(&Convolution {
        kernel: [3, 3],
        padding: [1, 1],
        groups: 6,
        ..Convolution::new(2, [6, 12], [15, 11])
    });
    check(&Convolution {
        stride: [2, 2],
        ..Convolution::new(3, [16, 32], [16, 16])
    });
    check(&Convolution {
        kernel: [7, 7],
        stride: [2, 2],
        padding: [3, 3],
        ..Convolution::new(1, [3, 8], [64, 50])
    });
    check(&Convolution {
        kernel: [4, 4],
        stride: [4, 4],
        ..Convolution::new(2, [3, 20], [17, 18])
    });
}

#[test]
fn a_map_alone_has_the_bits_of_the_batch() {
    // A task has some rows of a map alone, and all rows of one of 17 maps (on up to four threads): its sums are the maps then.
    for (batch, stride, size) in [
        (5, [2, 1], [32, 32]),
        (17, [1, 1], [32, 32]),
        (17, [1, 1], [8, 8]),
        (17, [1, 1], [7, 8]),
        (17, [1, 1], [5, 9]),
    ] {
        let c = Convolution {
            kernel: [3, 3],
            padding: [1, 1],
            stride,
            ..Convolution::new(batch, [8, 24], size)
        };
        let n = lengths(&c);
        let (of_x, of_y) = (n.x / batch, n.y / batch);
        let (x, w) = (random(1, n.x, 1.0), random(2, n.w, 1.0));
        let (d_y, bias) = (random(3, n.y, 1.0), random(4, 24, 1.0));
        let (mut y, mut d_x) = (vec![0.0; n.y], vec![0.0; n.x]);
        c.forward(&x, &w, Some(&bias), &mut y).unwrap();
        c.backward_input(&w, &d_y, &mut d_x).unwrap();
        let alone = Convolution { batch: 1, ..c };
        let (mut y_alone, mut d_x_alone) = (vec![0.0; of_y], vec![0.0; of_x]);
        for map in 0..batch {
            let (from, to) = (map * of_x, map * of_y);
            alone
                .forward(&x[from..][..of_x], &w, Some(&bias), &mut y_alone)
                .unwrap();
            alone
                .backward_input(&w, &d_y[to..][..of_y], &mut d_x_alone)
                .unwrap();
            assert_eq!(y_alone, y[to..][..of_y], "{c:?}");
            assert_eq!(d_x_alone, d_x[from..][..of_x], "{c:?}");
        }
    }
}

#[test]
fn wrong_sizes_are_refused_by_name() {
    let good = Convolution {
        kernel: [3, 3],
        ..Convolution::new(1, [2, 2], [4, 4])
    };
    let message = |c: Convolution| c.output_size().unwrap_err().to_string();
    let refused = message(Convolution {
        kernel: [5, 3],
        ..good
    });
    assert_eq!(
        refused,
        "`kernel` is 5, expected a window (dilation · (kernel - 1) + 1) no larger than the padded map"
    );
    assert!(
        message(Convolution {
            stride: [0, 1],
            ..good
        })
        .contains("`stride` is 0")
    );
    assert!(message(Convolution { groups: 3, ..good }).contains("`inputs` is 2"));
    assert!(message(Convolution { groups: 0, ..good }).contains("`inputs` is 2"));
    let huge = [usize::MAX, 0];
    assert!(matches!(
        Convolution {
            padding: huge,
            ..good
        }
        .output_size(),
        Err(KernelError::TooLarge { .. })
    ));
    assert!(matches!(
        Convolution {
            size: [usize::MAX / 8, 4],
            ..good
        }
        .output_size(),
        Err(KernelError::TooLarge { .. })
    ));
    let error = good.forward(&[0.0; 32], &[0.0; 35], None, &mut [0.0; 8]);
    assert!(matches!(
        error,
        Err(KernelError::Length {
            argument: "weight",
            ..
        })
    ));
    let error = good.backward_input(&[0.0; 36], &[0.0; 7], &mut [0.0; 32]);
    assert!(matches!(
        error,
        Err(KernelError::Length {
            argument: "d_y",
            ..
        })
    ));
}

#[test]
fn no_maps_and_no_channels_are_a_convolution() {
    let empty = Convolution::new(0, [2, 3], [4, 4]);
    let mut d_w = [f32::NAN; 6];
    let mut d_b = [f32::NAN; 3];
    empty.forward(&[], &[0.0; 6], None, &mut []).unwrap();
    empty.backward_input(&[0.0; 6], &[], &mut []).unwrap();
    let mut gradients = Gradients {
        weight: &mut d_w,
        bias: Some(&mut d_b),
    };
    empty.backward_weight(&[], &[], &mut gradients).unwrap();
    assert_eq!((d_w, d_b), ([0.0; 6], [0.0; 3]));
    let blind = Convolution::new(1, [0, 1], [2, 2]);
    let mut y = [f32::NAN; 4];
    blind.forward(&[], &[], Some(&[2.0]), &mut y).unwrap();
    assert_eq!(y, [2.0; 4]);
}

/// Work and memory go with the maps and the weights, not with the sizes of windows that read zeros.
#[test]
fn absurd_windows_are_their_definition() {
    const HUGE: usize = 1 << 40;
    let channels = [2, 3];
    let small = Convolution::new(1, channels, [3, 4]);
    for c in [
        // A second window that would be far outside.
        Convolution {
            kernel: [3, 2],
            stride: [usize::MAX, usize::MAX / 2],
            ..small
        },
        // Windows that step over the whole map.
        Convolution {
            padding: [HUGE + 1, 0],
            stride: [HUGE, 1],
            ..small
        },
        Convolution {
            padding: [HUGE, HUGE],
            stride: [HUGE + 2, HUGE - 1],
            ..small
        },
        // The same of several maps, which are requested while those before them are computed.
        Convolution {
            batch: 40,
            padding: [HUGE, HUGE],
            stride: [HUGE + 2, HUGE - 1],
            ..small
        },
        // Taps of which one, or none, reads the map.
        Convolution {
            kernel: [3, 2],
            padding: [HUGE, 1],
            dilation: [HUGE, 4],
            ..small
        },
        Convolution {
            kernel: [2, 1],
            padding: [HUGE, 0],
            dilation: [2 * HUGE, 1],
            ..small
        },
        // A tall map and a wide window, and the other way round.
        Convolution {
            kernel: [1, 9],
            padding: [0, 40_000],
            stride: [1, 5],
            dilation: [1, 9_999],
            ..Convolution::new(1, [1, 1], [900, 1])
        },
        Convolution {
            kernel: [9, 1],
            padding: [40_000, 0],
            stride: [5, 1],
            dilation: [9_999, 1],
            ..Convolution::new(1, [1, 1], [1, 900])
        },
    ] {
        c.output_size().unwrap();
        check(&c);
    }
    let largest = Convolution {
        dilation: [usize::MAX; 2],
        padding: [usize::MAX; 2],
        ..small
    };
    assert!(largest.output_size().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(unless_miri(200, 2)))]

    #[test]
    fn any_convolution_is_its_definition(
        batch in 1usize..4, groups in 1usize..4, channels in (1usize..6, 1usize..20),
        size in (1usize..24, 1usize..40), kernel in (1usize..5, 1usize..5), stride in (1usize..5, 1usize..5),
        padding in (0usize..5, 0usize..5), dilation in (1usize..4, 1usize..4),
    ) {
        let c = Convolution {
            batch,
            inputs: groups * channels.0,
            outputs: groups * channels.1,
            size: size.into(),
            kernel: kernel.into(),
            stride: stride.into(),
            padding: padding.into(),
            dilation: dilation.into(),
            groups,
        };
        prop_assume!(c.output_size().is_ok());
        check(&c);
    }

    #[test]
    fn any_rows_in_pairs_are_their_definition(
        batch in 1usize..4, groups in 1usize..3, channels in (8usize..24, 8usize..24), size in (1usize..24, 1usize..40),
        width in 1usize..6, padding in (0usize..5, 0usize..5), dilation in 1usize..4,
    ) {
        let c = Convolution {
            kernel: [3, width],
            padding: padding.into(),
            dilation: [1, dilation],
            groups,
            ..Convolution::new(batch, [groups * channels.0, groups * channels.1], size.into())
        };
        prop_assume!(c.output_size().is_ok());
        check(&c);
    }
}
