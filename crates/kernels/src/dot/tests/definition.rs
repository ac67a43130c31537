//! Shapes and options, alone and together, within the bound of a naive computation.

use super::*;

#[test]
fn every_awkward_size() {
    let mut checked = 0;
    let lengths = [
        (1, 1),
        (2, 5),
        (97, 97),
        (33, 200),
        (130, 50),
        (257, 257),
        (20, 1025),
    ];
    let dims = [(1, 3), (40, 40), (59, 64), (64, 111), (128, 8), (256, 256)];
    for &(queries, keys) in unless_miri(&lengths[..], &[(2, 5)]) {
        for &(dim, value_dim) in unless_miri(&dims[..], &[(1, 3)]) {
            // A naive computation of a few rows may be exact by chance, hence many heads.
            let heads = (unless_miri(256, 1) / queries).clamp(2, 64);
            let shape = Shape {
                heads,
                ..Shape::one_head(queries, keys, dim, value_dim)
            };
            checked += check("plain", &Attention::default(), shape, &shape.inputs(2.0));
            let causal = Attention {
                causal: true,
                ..Attention::default()
            };
            checked += check("causal", &causal, shape, &shape.inputs(2.0));
        }
    }
    for &key_heads in unless_miri(&[1, 2, 8][..], &[2]) {
        let heads = Shape {
            batch: 2,
            heads: 8,
            key_heads,
            ..unless_miri(
                Shape::one_head(50, 70, 16, 16),
                Shape::one_head(5, 20, 2, 3),
            )
        };
        checked += check("groups", &Attention::default(), heads, &heads.inputs(2.0));
    }
    assert_eq!(
        checked,
        unless_miri(7 * 6 * 2 + 3, 2 + 1) * Level::available().len()
    );
}

#[test]
fn every_option_alone_and_in_pairs() {
    let shape = Shape {
        batch: unless_miri(2, 1),
        heads: 2,
        key_heads: 1,
        ..unless_miri(
            Shape::one_head(77, 100, 24, 20),
            Shape::one_head(5, 20, 3, 2),
        )
    };
    let inputs = shape.inputs(2.0);
    let options = Options::new(shape);
    let (mut checked, step) = (0, unless_miri(1, 4));
    for first in (0..OPTIONS).step_by(step) {
        for second in first..unless_miri(OPTIONS, first + 1) {
            let mut attention = Attention::default();
            let names = [
                options.set(first, &mut attention),
                options.set(second, &mut attention),
            ];
            let name = names.join(" and ");
            checked += check(&name, &attention, shape, &inputs);
        }
    }
    let alone = OPTIONS.div_ceil(step);
    let calls = unless_miri(OPTIONS * (OPTIONS + 1) / 2, alone);
    assert_eq!(checked, calls * Level::available().len());
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn all_options_at_once() {
    let shape = Shape {
        batch: 2,
        heads: 4,
        key_heads: 2,
        ..Shape::one_head(130, 190, 64, 64)
    };
    let options = Options::new(shape);
    let mut attention = Attention::default();
    for option in 0..OPTIONS {
        if ![3, 4, 9, 13].contains(&option) {
            options.set(option, &mut attention);
        }
    }
    check("all", &attention, shape, &shape.inputs(3.0));
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn large_logits_and_rising_scores() {
    let shape = Shape {
        heads: 8,
        ..Shape::one_head(60, 300, 32, 16)
    };
    let [query, mut key, value] = shape.inputs(1.0);
    // At 1e4, the rounding of a product decides between near ties in any computation, so the inputs are
    // rounded to eighths, whose products are exact.
    let eighths = |x: &[f32]| {
        x.iter()
            .map(|x| (x * 8.0).round() / 8.0)
            .collect::<Vec<_>>()
    };
    let cut = [eighths(&query), eighths(&key), value.clone()];
    for (scale, inputs) in [
        (1e2, [query.clone(), key.clone(), value.clone()]),
        (8192.0, cut),
    ] {
        let attention = Attention {
            scale: Some(scale),
            ..Attention::default()
        };
        check("large", &attention, shape, &inputs);
        let causal = Attention {
            causal: true,
            ..attention
        };
        check("large causal", &causal, shape, &inputs);
    }
    // Every key scores higher than the previous one, so that the base is raised again and again.
    for (j, row) in key.chunks_exact_mut(32).enumerate() {
        for (x, q) in row.iter_mut().zip(&query) {
            *x = q * j as f32 * 0.1;
        }
    }
    let attention = Attention {
        scale: Some(3.0),
        ..Attention::default()
    };
    check("rising", &attention, shape, &[query, key, value]);
}

/// A row of one key: its weight is 1, and its `lse` is the score.
#[test]
#[cfg_attr(miri, ignore = "large")]
fn the_lse_of_one_key_is_its_score() {
    let shape = Shape {
        batch: 8,
        heads: 4,
        key_heads: 4,
        ..Shape::one_head(3, 5, 4, 3)
    };
    for softcap in [None, Some(0.8), Some(20.0)] {
        for (scale, alignment) in [(1.0, Alignment::UpperLeft), (30.0, Alignment::LowerRight)] {
            let attention = Attention {
                scale: Some(1.0),
                softcap,
                causal: true,
                alignment,
                ..Attention::default()
            };
            check(
                &format!("softcap {softcap:?}"),
                &attention,
                shape,
                &shape.inputs(scale),
            );
        }
    }
}
