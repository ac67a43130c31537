use proptest::prelude::*;

use super::*;
use crate::testing::{difference, on_every_pool, probe, random, unless_miri, wide};

/// The definition, in double precision: a window at a time, places outside of the map left out.
fn plain(pool: &Pool, x: &[f64]) -> Vec<f64> {
    let [height, width] = pool.size;
    let [out_height, out_width] = pool.output_size().unwrap();
    let mut y = vec![];
    for map in x.chunks_exact(height * width) {
        for t in 0..out_height {
            for u in 0..out_width {
                let mut window = vec![];
                let reads = |axis: usize, t: usize, at: usize| {
                    let Windows {
                        kernel,
                        stride,
                        padding,
                        ..
                    } = pool.windows;
                    let place = (at + padding[axis]).checked_sub(t * stride[axis]);
                    place.is_some_and(|place| place < kernel[axis])
                };
                for a in (0..height).filter(|&a| reads(0, t, a)) {
                    for b in (0..width).filter(|&b| reads(1, u, b)) {
                        window.push(map[a * width + b]);
                    }
                }
                assert!(!window.is_empty(), "a window inside the map");
                y.push(match pool.windows.kind {
                    Kind::Max => window.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                    Kind::Mean => window.iter().sum::<f64>() / window.len() as f64,
                });
            }
        }
    }
    y
}

fn check(pool: &Pool) {
    let [height, width] = pool.size;
    let x = random(1, pool.maps * height * width, 1.0);
    let truth = plain(pool, &wide(&x));
    let d_y = random(2, truth.len(), 1.0);
    let found = on_every_pool(|| {
        let (mut y, mut d_x) = (vec![f32::NAN; truth.len()], vec![f32::NAN; x.len()]);
        pool.forward(&x, &mut y).unwrap();
        pool.backward(&x, &d_y, &mut d_x).unwrap();
        vec![y, d_x]
    });
    for (found, truth) in found[0].iter().zip(&truth) {
        assert!((f64::from(*found) - truth).abs() <= 1e-6, "{pool:?}");
    }
    for at in (0..x.len()).step_by(1 + x.len() / 11) {
        let slope = difference(&wide(&x), at, |x| probe(&plain(pool, x), &wide(&d_y)));
        assert!((f64::from(found[1][at]) - slope).abs() <= 1e-5, "{pool:?}");
    }
}

#[test]
fn ties_and_nan_have_one_place() {
    let pool = Pool {
        windows: Windows {
            kind: Kind::Max,
            kernel: [1, 4],
            stride: [1, 1],
            padding: [0, 0],
            ceil: false,
        },
        maps: 1,
        size: [1, 4],
    };
    let mut d_x = [f32::NAN; 4];
    pool.backward(&[1.0, 2.0, 2.0, 0.0], &[5.0], &mut d_x)
        .unwrap();
    assert_eq!(d_x, [0.0, 5.0, 0.0, 0.0]);
    let mut y = [0.0];
    pool.forward(&[1.0, f32::NAN, 9.0, 0.0], &mut y).unwrap();
    assert!(y[0].is_nan());
}

#[test]
fn wrong_sizes_are_refused_by_name() {
    let pool = Pool {
        windows: Windows {
            kind: Kind::Mean,
            kernel: [3, 1],
            stride: [1, 1],
            padding: [0, 0],
            ceil: false,
        },
        maps: 1,
        size: [2, 2],
    };
    let message = pool.output_size().unwrap_err().to_string();
    assert_eq!(
        message,
        "`kernel` is 3, expected a window no larger than the padded map"
    );
    let changed = |change: fn(&mut Windows)| {
        let mut changed = pool;
        change(&mut changed.windows);
        changed
    };
    let outside = changed(|windows| windows.padding = [2, 0]);
    assert!(
        outside
            .output_size()
            .unwrap_err()
            .to_string()
            .contains("`padding` is 2")
    );
    let short = changed(|windows| windows.kernel = [2, 2]);
    assert!(short.forward(&[0.0; 3], &mut [0.0]).is_err());
    assert!(short.backward(&[], &[0.0], &mut [0.0; 4]).is_ok());
}

#[test]
fn absurd_windows_are_refused_or_cost_nothing() {
    const HUGE: [usize; 3] = [1 << 20, usize::MAX / 2, usize::MAX];
    for (kind, ceil) in [(Kind::Max, true), (Kind::Mean, true), (Kind::Max, false)] {
        for huge in HUGE {
            let usual = Windows {
                kind,
                kernel: [2, 2],
                stride: [2, 2],
                padding: [0, 0],
                ceil,
            };
            let all = [
                Windows {
                    kernel: [huge, 2],
                    ..usual
                },
                Windows {
                    stride: [2, huge],
                    ..usual
                },
                Windows {
                    padding: [huge, huge],
                    ..usual
                },
                Windows {
                    kernel: [huge; 2],
                    padding: [huge / 2; 2],
                    ..usual
                },
            ];
            for windows in all {
                let pool = Pool {
                    windows,
                    maps: 1,
                    size: [3, 4],
                };
                if pool
                    .output_size()
                    .is_ok_and(|[height, width]| height * width <= 12)
                {
                    check(&pool);
                }
            }
        }
    }
}

#[test]
fn no_maps_cost_nothing_whatever_their_size() {
    for kind in [Kind::Max, Kind::Mean] {
        let windows = Windows {
            kind,
            kernel: [2, 2],
            stride: [1, 1],
            padding: [0, 0],
            ceil: false,
        };
        let pool = Pool {
            windows,
            maps: 0,
            size: [1 << 40; 2],
        };
        pool.forward(&[], &mut []).unwrap();
        pool.backward(&[], &[], &mut []).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(unless_miri(150, 2)))]

    #[test]
    fn any_pooling_is_its_definition(
        largest in any::<bool>(), maps in 1usize..4, size in (1usize..12, 1usize..12), kernel in (1usize..5, 1usize..5),
        stride in (1usize..4, 1usize..4), padding in (0usize..3, 0usize..3), ceil in any::<bool>(),
    ) {
        let pool = Pool { windows: Windows { kind: if largest { Kind::Max } else { Kind::Mean }, kernel: kernel.into(), stride: stride.into(), padding: padding.into(), ceil, }, maps, size: size.into(), };
        prop_assume!(pool.output_size().is_ok());
        check(&pool);
    }
}
