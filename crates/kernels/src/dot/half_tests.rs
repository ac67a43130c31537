//! The forward pass of operands stored as bfloat16 and half precision, against the definition.
//!
//! Operands are rounded to their storage first; the truth (`f64`) and the naive computation (`f32`) then
//! start from the same numbers, so that the bound is that of `f32` operands. Where pairs of bfloat16 are
//! multiplied, weights are rounded to bfloat16 before they are multiplied by values, and the naive computation
//! of bfloat16 operands does the same.
//!
//! The bound for bfloat16 has one term more. A score `s` comes with an error of up to `ε |s|`: `ε / 2` from the
//! product, `ε / 2` from the conversion to base 2. In `f32`, the error changes the weight `e^{s - m}` in the
//! numerator and in the denominator, and for a key that has nearly all the weight the two cancel. Rounded to
//! bfloat16, the weight in the numerator mostly does not change, and the sum in the denominator changes alone:
//! by a relative `ε |s|` for the largest score, and `max s ≤ lse`. So the output moves by up to `ε |lse|` of
//! its size, which a naive computation, whose weights are rounded after they are divided, does not show.

use half::{bf16, f16};

use super::{
    forward_at, reference,
    tests::{OPTIONS, Options, Shape, sum_lse},
};
use crate::{
    Attention, Element, KernelError, Kind, View, ViewMut,
    simd::Level,
    testing::{assert_close, on_every_pool, unless_miri, wide},
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
    let mut lse = vec![f32::NAN; 3 * rows];
    forward_at(
        level,
        attention,
        View::heads_first(query, views[0]),
        View::heads_first(key, views[1]),
        View::heads_first(value, views[2]),
        ViewMut::heads_first(&mut output, shape.output()),
        Some(&mut lse),
    )?;
    Ok((output, lse))
}

/// The naive output of weights that are rounded to bfloat16.
fn rounded_weights(
    attention: &Attention,
    shape: Shape,
    weights: &[f32],
    value: &[f32],
) -> Vec<f32> {
    let (queries, keys, dim) = (shape.queries, shape.keys, shape.value_dim);
    let mut output = vec![0.0; shape.batch * shape.heads * queries * dim];
    for (row, output) in output.chunks_exact_mut(dim).enumerate() {
        let (head, query) = (row / queries, row % queries);
        let (batch, head) = (head / shape.heads, head % shape.heads);
        let key_head = batch * shape.key_heads + head / (shape.heads / shape.key_heads);
        for j in 0..keys {
            let mut weight = bf16::from_f32(weights[row * keys + j]).to_f32();
            if let Some(dropout) = &attention.dropout {
                let keep = f32::from(u8::from(dropout.keeps(batch, head, query, j)));
                weight *= keep / (1.0 - dropout.probability);
            }
            if weight != 0.0 {
                let value = &value[(key_head * keys + j) * dim..][..dim];
                for (output, x) in output.iter_mut().zip(value) {
                    *output += weight * x;
                }
            }
        }
    }
    output
}

/// Compares every level with the definition.
fn check<T: Element>(name: &str, attention: &Attention, shape: Shape) {
    let inputs = shape.inputs(2.0).map(|x| widen(&narrow::<T>(&x)));
    let [query, key, value] = &inputs.each_ref().map(|x| wide(x));
    let truth = reference::forward(attention, shape.views(), query, key, value);
    let [query, key, value] = &inputs;
    let naive = reference::forward(attention, shape.views(), query, key, value);
    let rounded = rounded_weights(attention, shape, &naive.weights, value);
    for &level in Level::available() {
        let name = format!("{name} {:?} {level:?} {shape:?}", T::KIND);
        let pairs = T::KIND == Kind::Bf16 && shape.dim.is_multiple_of(2) && level.has_pairs();
        let (output, lse) = forward::<T, f32>(level, attention, shape, &inputs).unwrap();
        let what = format!("{name}: output");
        if pairs {
            let (truth, lse) = (&truth.output, &truth.lse);
            let worst = |x: &[f32]| {
                let errors = x.iter().zip(truth).map(|(&x, t)| (f64::from(x) - t).abs());
                errors.fold(0.0f64, |m, x| if x >= m || x.is_nan() { x } else { m })
            };
            let largest = |x: &[f64]| {
                let finite = x.iter().filter(|x| x.is_finite());
                finite.fold(0.0f64, |m, x| m.max(x.abs()))
            };
            let rounding = (0.3 + largest(truth) * (1.0 + largest(lse))) * f64::from(f32::EPSILON);
            let (error, bound) = (worst(&output), 2.0 * worst(&rounded) + rounding);
            assert!(error <= bound, "{what}: error {error:e} above {bound:e}");
        } else {
            assert_close(&what, &output, &naive.output, &truth.output, 2.0);
        }
        for (fast, truth) in sum_lse(&lse).iter().zip(&truth.lse) {
            let close = (fast - truth).abs() < 1e-5 || fast == truth;
            assert!(close, "{name}: lse {fast}, not {truth}");
        }
        // The output is rounded once, as it is written.
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
    let lengths = [(1, 1), (2, 5), (49, 97), (130, 50), (20, 300)];
    let dims = [(1, 3), (17, 40), (64, 64), (59, 111), (256, 8)];
    for &(queries, keys) in unless_miri(&lengths[..], &[(2, 5)]) {
        for &(dim, value_dim) in unless_miri(&dims[..], &[(6, 5)]) {
            let shape = Shape {
                heads: (unless_miri(64, 1) / queries).clamp(2, 32),
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
#[cfg_attr(miri, ignore = "large")]
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
        assert!(sum_lse(&lse).iter().all(|&x| x == f64::NEG_INFINITY));
    }
}

#[test]
fn same_bits_on_any_pool() {
    let shape = Shape {
        heads: 4,
        key_heads: 2,
        ..unless_miri(
            Shape::one_head(300, 300, 32, 32),
            Shape::one_head(26, 20, 4, 4),
        )
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
