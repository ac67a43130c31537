//! Gradients of operands stored in half precision.
//!
//! Operands are rounded to their storage first. Truth and naive computation start from the same numbers as the
//! kernel, so the bound is that of `f32` operands; and because widening is exact and nothing else differs,
//! the gradients have the same bits as those of the widened operands.

use half::{bf16, f16};

use super::*;

/// `inputs` rounded to their storage.
fn rounded<T: Element, O: Element>(inputs: [Vec<f32>; 4]) -> [Vec<f32>; 4] {
    let [query, key, value, d_output] = inputs;
    let [query, key, value] = [query, key, value].map(|x| widen(&narrow::<T>(&x)));
    [query, key, value, widen(&narrow::<O>(&d_output))]
}

/// Compares with the definition and with the bits of `f32` operands.
fn check_both<T: Element, O: Element>(name: &str, attention: &Attention, shape: Shape) -> usize {
    let inputs = rounded::<T, O>(shape.inputs(2.0));
    let name = format!("{name}, {:?} and {:?}", T::KIND, O::KIND);
    for &level in Level::available() {
        let found = run::<T, O>(level, attention, shape, &inputs);
        let (output, lse) = (&found.output, &found.lse);
        let wide = gradients_of::<f32, f32>(level, attention, shape, &inputs, output, lse);
        assert_eq!(
            properties::bits(&found.gradients),
            properties::bits(&wide),
            "{name}, {level:?}, {shape:?}"
        );
    }
    // The naive computation starts from the same output, so that the bound includes the rounding of that
    // output.
    check_stored::<T, O>(&name, attention, shape, &inputs)
}

#[test]
fn awkward_sizes() {
    let mut checked = 0;
    let lengths = [(1, 1), (2, 5), (49, 97), (130, 50), (20, 300)];
    let dims = [(1, 3), (17, 40), (64, 64), (59, 111), (256, 8)];
    for &(queries, keys) in unless_miri(&lengths[..], &[(2, 5)]) {
        for &(dim, value_dim) in unless_miri(&dims[..], &dims[..1]) {
            let shape = Shape {
                batch: 1,
                heads: unless_miri(4, 2),
                key_heads: unless_miri(2, 1),
                queries,
                keys,
                dim,
                value_dim,
            };
            let plain = Attention::default();
            let causal = Attention {
                causal: true,
                ..plain
            };
            checked += check_both::<bf16, bf16>("plain", &plain, shape);
            checked += check_both::<f16, f32>("causal", &causal, shape);
            checked += check_both::<f32, f16>("plain", &plain, shape);
        }
    }
    assert_eq!(
        checked,
        unless_miri(5 * 5, 1) * 3 * Level::available().len()
    );
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn every_option() {
    let shape = Shape {
        batch: 2,
        heads: 4,
        key_heads: 2,
        queries: 50,
        keys: 70,
        dim: 12,
        value_dim: 20,
    };
    for packed in [false, true] {
        let shape = Shape {
            batch: if packed { 1 } else { 2 },
            ..shape
        };
        let data = Data::new(shape, packed);
        for option in OPTIONS {
            let attention = data.attention(&[option, "causal"]);
            check_both::<f16, f32>(option, &attention, shape);
            check_both::<bf16, bf16>(option, &attention, shape);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn hidden_keys_have_no_influence() {
    let shape = Shape {
        batch: 1,
        heads: 2,
        key_heads: 1,
        queries: 60,
        keys: 70,
        dim: 16,
        value_dim: 24,
    };
    let attention = Attention {
        lengths: Some(&[41]),
        ..Attention::default()
    };
    let inputs = shape.inputs(1.0);
    let mut poisoned = inputs.clone();
    poisoned[1][41 * 16..].fill(f32::NAN);
    poisoned[2][41 * 24..].fill(f32::INFINITY);
    for &level in Level::available() {
        let gradients = |inputs| {
            let run = run::<bf16, bf16>(level, &attention, shape, inputs);
            run.gradients
        };
        let (clean, other) = (gradients(&inputs), gradients(&poisoned));
        assert!(clean.iter().flatten().all(|x| x.is_finite()));
        assert_eq!(
            properties::bits(&clean),
            properties::bits(&other),
            "{level:?}"
        );
    }
}

#[test]
fn errors_name_what_does_not_fit() {
    let (rows, numbers) = ([bf16::ONE; 8], [0.0f32; 6]);
    let view = |shape| View::heads_first(&rows, shape);
    let [mut a, mut b, mut c] = [[f32::NAN; 8]; 3];
    let gradients = Gradients {
        query: ViewMut::heads_first(&mut a, [1, 1, 2, 4]),
        key: ViewMut::heads_first(&mut b, [1, 1, 2, 4]),
        value: ViewMut::heads_first(&mut c, [1, 1, 2, 3]),
        bias: None,
        sink: None,
    };
    let error = crate::dot::backward_stored(
        &Attention::default(),
        view([1, 1, 2, 4]),
        view([1, 1, 2, 4]),
        view([1, 1, 2, 3]),
        View::heads_first(&numbers, [1, 1, 2, 3]),
        &[0.0; 5],
        View::heads_first(&numbers, [1, 1, 2, 3]),
        gradients,
    )
    .unwrap_err()
    .to_string();
    assert!(
        error.contains("`lse`") && error.contains('5') && error.contains('6'),
        "{error}"
    );
    assert!([a, b, c].iter().flatten().all(|x| x.is_nan()));
}
