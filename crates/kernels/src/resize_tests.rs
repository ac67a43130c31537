use proptest::prelude::*;

use super::*;
use crate::testing::{difference, on_every_pool, probe, random, unless_miri, wide};

/// The definition, in double precision: every place of `x` has a share in every place of `y`, mostly 0.
fn plain(resize: &Resize, x: &[f64]) -> Vec<f64> {
    let share = |axis: usize, t: usize, a: usize| {
        let (size, output) = (resize.size[axis] as f64, resize.output[axis] as f64);
        let s = match resize.align_corners {
            true if output == 1.0 => 0.0,
            true => t as f64 * (size - 1.0) / (output - 1.0),
            false => (t as f64 + 0.5) * size / output - 0.5,
        };
        (1.0 - (s.clamp(0.0, size - 1.0) - a as f64).abs()).max(0.0)
    };
    let [height, width] = resize.size;
    let mut y = vec![];
    for map in x.chunks_exact(height * width) {
        for t in 0..resize.output[0] {
            for u in 0..resize.output[1] {
                let of = |at: usize| share(0, t, at / width) * share(1, u, at % width) * map[at];
                y.push((0..map.len()).map(of).sum());
            }
        }
    }
    y
}

#[test]
fn wrong_sizes_are_refused_by_name() {
    let resize = Resize {
        maps: 1,
        size: [2, 2],
        output: [3, 3],
        align_corners: false,
    };
    let short = resize.forward(&[0.0; 3], &mut [0.0; 9]).unwrap_err();
    assert!(short.to_string().contains("`x`"), "{short}");
    let short = resize.backward(&[0.0; 8], &mut [0.0; 4]).unwrap_err();
    assert!(short.to_string().contains("`d_y`"), "{short}");
    let empty = Resize {
        output: [0, 3],
        ..resize
    };
    assert!(empty.forward(&[0.0; 4], &mut []).is_err());
    let absurd = Resize {
        output: [usize::MAX, usize::MAX],
        ..resize
    };
    assert!(absurd.forward(&[0.0; 4], &mut []).is_err());
}

#[test]
fn a_place_without_a_share_has_no_influence() {
    let line = |size, output, align_corners| Resize {
        maps: 1,
        size: [1, size],
        output: [1, output],
        align_corners,
    };
    let column = |resize: Resize| Resize {
        size: [resize.size[1], 1],
        output: [resize.output[1], 1],
        ..resize
    };
    let same = [1.0, f32::INFINITY, 2.0, f32::NAN];
    for (resize, x, right) in [
        (line(4, 4, false), &same[..], &same[..]),
        (line(4, 4, true), &same, &same),
        // Every other place.
        (
            line(5, 3, true),
            &[1.0, f32::NAN, 2.0, f32::NAN, 3.0],
            &[1.0, 2.0, 3.0],
        ),
        (
            line(2, 3, true),
            &[1.0, f32::INFINITY],
            &[1.0, f32::INFINITY, f32::INFINITY],
        ),
    ] {
        for resize in [resize, column(resize)] {
            let mut y = vec![7.0; right.len()];
            resize.forward(x, &mut y).unwrap();
            // The first NaN is as good as any other.
            let text = |x: &[f32]| format!("{x:?}");
            assert_eq!(text(&y), text(right), "{resize:?}");
        }
    }
    for resize in [line(4, 4, false), column(line(4, 4, true))] {
        let mut d_x = [7.0; 4];
        resize.backward(&same, &mut d_x).unwrap();
        assert_eq!(format!("{d_x:?}"), format!("{same:?}"), "{resize:?}");
    }
    let mut d_x = [7.0; 5];
    let d_y = [1.0, f32::INFINITY, 2.0];
    line(5, 3, true).backward(&d_y, &mut d_x).unwrap();
    assert_eq!(d_x, [1.0, 0.0, f32::INFINITY, 0.0, 2.0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(unless_miri(150, 2)))]

    #[test]
    fn any_resizing_is_its_definition(
        maps in 0usize..4, size in (1usize..9, 1usize..9), output in (1usize..12, 1usize..12), align_corners in any::<bool>(),
    ) {
        let resize = Resize { maps, size: size.into(), output: output.into(), align_corners };
        let x = random(1, maps * size.0 * size.1, 1.0);
        let truth = plain(&resize, &wide(&x));
        let d_y = random(2, truth.len(), 1.0);
        let found = on_every_pool(|| {
            let (mut y, mut d_x) = (vec![f32::NAN; truth.len()], vec![f32::NAN; x.len()]);
            resize.forward(&x, &mut y).unwrap();
            resize.backward(&d_y, &mut d_x).unwrap();
            vec![y, d_x]
        });
        for (found, truth) in found[0].iter().zip(&truth) {
            prop_assert!((f64::from(*found) - truth).abs() <= 1e-6, "{resize:?}");
        }
        for at in (0..x.len()).step_by(1 + x.len() / 11) {
            let slope = difference(&wide(&x), at, |x| probe(&plain(&resize, x), &wide(&d_y)));
            prop_assert!((f64::from(found[1][at]) - slope).abs() <= 1e-5, "{resize:?}");
        }
    }
}
