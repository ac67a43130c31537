//! The forward pass of operands stored as bfloat16 and half precision, against the definition.
//!
//! Operands are rounded to their storage first; the truth (`f64`) and the naive computation (`f32`) then
//! start from the same numbers, so that the bound is that of `f32` operands.

use half::{bf16, f16};

use super::{
    Unmodified, forward_at, reference,
    tests::{OPTIONS, Options, Shape},
};
use crate::{
    Attention, Element, KernelError, View, ViewMut,
    simd::Level,
    testing::{assert_close, on_every_pool, wide},
};

fn narrow<T: Element>(x: &[f32]) -> Vec<T> {
    x.iter().map(|&x| T::narrow(x)).collect()
}

fn widen<T: Element>(x: &[T]) -> Vec<f32> {
    x.iter().map(|x| x.widen()).collect()
}

/// Output and `lse` of operands that are rounded to `T`.
fn forward<T: Element, O: Element>(
    level: Level,
    attention: &Attention,
    shape: Shape,
    inputs: &[Vec<f32>; 3],
) -> Result<(Vec<O>, Vec<f32>), KernelError> {
    let [query, key, value] = &inputs.each_ref().map(|x| narrow::<T>(x));
    let views = shape.views();
    let rows = shape.batch * shape.heads * shape.queries;
    let mut output = vec![O::narrow(f32::NAN); rows * shape.value_dim];
    let mut lse = vec![f32::NAN; rows];
    forward_at(
        level,
        attention,
        &Unmodified,
        View::heads_first(query, views[0]),
        View::heads_first(key, views[1]),
        View::heads_first(value, views[2]),
        ViewMut::heads_first(&mut output, shape.output()),
        Some(&mut lse),
    )?;
    Ok((output, lse))
}

/// Compares every level with the definition.
fn check<T: Element>(name: &str, attention: &Attention, shape: Shape) {
    let inputs = shape.inputs(2.0).map(|x| widen(&narrow::<T>(&x)));
    let [query, key, value] = &inputs.each_ref().map(|x| wide(x));
    let truth = reference::forward(attention, &Unmodified, shape.views(), query, key, value);
    let [query, key, value] = &inputs;
    let naive = reference::forward(attention, &Unmodified, shape.views(), query, key, value);
    for &level in Level::available() {
        let name = format!("{name} {:?} {level:?} {shape:?}", T::KIND);
        let (output, lse) = forward::<T, f32>(level, attention, shape, &inputs).unwrap();
        let what = format!("{name}: output");
        assert_close(&what, &output, &naive.output, &truth.output, 2.0);
        for (fast, truth) in lse.iter().zip(&truth.lse) {
            let close = (f64::from(*fast) - truth).abs() < 1e-5 || f64::from(*fast) == *truth;
            assert!(close, "{name}: lse {fast}, not {truth}");
        }
        // Rounded once, as it is written.
        let (stored, _) = forward::<T, T>(level, attention, shape, &inputs).unwrap();
        assert_eq!(
            widen(&stored),
            widen(&narrow::<T>(&output)),
            "{name}: stored"
        );
    }
}

#[test]
fn awkward_sizes() {
    for (queries, keys) in [(1, 1), (2, 5), (49, 97), (130, 50), (20, 300)] {
        for (dim, value_dim) in [(1, 3), (17, 40), (64, 64), (59, 111), (256, 8)] {
            let shape = Shape {
                heads: (64 / queries).clamp(2, 32),
                ..Shape::one_head(queries, keys, dim, value_dim)
            };
            check::<bf16>("plain", &Attention::default(), shape);
            let causal = Attention {
                causal: true,
                ..Attention::default()
            };
            check::<f16>("causal", &causal, shape);
        }
    }
}

#[test]
fn every_option() {
    let shape = Shape {
        batch: 2,
        heads: 4,
        key_heads: 2,
        ..Shape::one_head(70, 90, 24, 20)
    };
    let options = Options::new(shape);
    for option in 0..OPTIONS {
        let mut attention = Attention {
            causal: option % 2 == 1,
            ..Attention::default()
        };
        let name = options.set(option, &mut attention);
        check::<bf16>(name, &attention, shape);
        check::<f16>(name, &attention, shape);
    }
}

#[test]
fn hidden_keys_have_no_influence() {
    let shape = Shape::one_head(60, 70, 16, 16);
    let attention = Attention {
        lengths: Some(&[41]),
        ..Attention::default()
    };
    let inputs = shape.inputs(2.0);
    let mut poisoned = inputs.clone();
    poisoned[1][41 * 16..].fill(f32::NAN);
    poisoned[2][41 * 16..].fill(f32::INFINITY);
    for &level in Level::available() {
        let result = |inputs| forward::<bf16, bf16>(level, &attention, shape, inputs).unwrap();
        let ((output, lse), (with_poison, with_poison_lse)) = (result(&inputs), result(&poisoned));
        assert!(output.iter().all(|x| x.is_finite()));
        assert_eq!((output, lse), (with_poison, with_poison_lse), "{level:?}");
    }
}

#[test]
fn nothing_to_see_and_nothing_to_do() {
    for shape in [
        Shape::one_head(0, 5, 4, 4),
        Shape::one_head(5, 0, 4, 4),
        Shape {
            batch: 0,
            ..Shape::one_head(5, 5, 4, 4)
        },
    ] {
        let attention = Attention::default();
        let inputs = shape.inputs(1.0);
        let (output, lse) =
            forward::<f16, f16>(Level::current(), &attention, shape, &inputs).unwrap();
        assert!(output.iter().all(|&x| x == f16::ZERO));
        assert!(lse.iter().all(|&x| x == f32::NEG_INFINITY));
    }
}

#[test]
fn same_bits_on_any_pool() {
    let shape = Shape {
        heads: 4,
        key_heads: 2,
        ..Shape::one_head(300, 300, 32, 32)
    };
    let inputs = shape.inputs(2.0);
    on_every_pool(|| {
        let attention = Attention::default();
        let (output, lse) =
            forward::<bf16, bf16>(Level::current(), &attention, shape, &inputs).unwrap();
        vec![widen(&output), lse]
    });
}

#[test]
fn a_key_of_another_dim_is_refused() {
    let (query, key) = ([bf16::ONE; 8], [bf16::ONE; 6]);
    let error = super::forward_stored(
        &Attention::default(),
        &Unmodified,
        View::heads_first(&query, [1, 1, 2, 4]),
        View::heads_first(&key, [1, 1, 2, 3]),
        View::heads_first(&key, [1, 1, 2, 3]),
        ViewMut::heads_first(&mut [bf16::ZERO; 6], [1, 1, 2, 3]),
        None,
    )
    .unwrap_err()
    .to_string();
    assert!(
        error.contains("key") && error.contains('4') && error.contains('3'),
        "{error}"
    );
}
