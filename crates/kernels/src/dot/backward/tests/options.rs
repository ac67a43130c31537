//! Shapes and options, alone and together.

use super::*;

#[test]
fn plain_attention_of_every_shape() {
    let mut checked = 0;
    let dims = [
        (1, 3),
        (40, 40),
        (59, 64),
        (64, 111),
        (111, 8),
        (128, 128),
        (256, 250),
    ];
    let lengths = [(1, 1), (2, 5), (97, 97), (33, 200), (130, 50)];
    for &(queries, keys) in unless_miri(&lengths[..], &[(2, 5)]) {
        for &(dim, value_dim) in unless_miri(&dims[..], &dims[..1]) {
            let shape = Shape {
                batch: 1,
                heads: 2,
                key_heads: 1,
                queries,
                keys,
                dim,
                value_dim,
            };
            checked += check("plain", &Attention::default(), shape, &shape.inputs(2.0));
        }
    }
    let groups = [(1, 1), (2, 2), (8, 4), (8, 1)];
    for &(heads, key_heads) in unless_miri(&groups[..], &[(4, 2)]) {
        let (queries, keys) = unless_miri((257, 257), (3, 20));
        let shape = Shape {
            batch: 2,
            heads,
            key_heads,
            queries,
            keys,
            dim: unless_miri(16, 3),
            value_dim: unless_miri(24, 2),
        };
        checked += check("groups", &Attention::default(), shape, &shape.inputs(2.0));
    }
    let shape = Shape {
        batch: 1,
        heads: 1,
        key_heads: 1,
        queries: 1025,
        keys: 1025,
        dim: 40,
        value_dim: 40,
    };
    let causal = Attention {
        causal: true,
        ..Attention::default()
    };
    if !cfg!(miri) {
        checked += check("long", &causal, shape, &shape.inputs(2.0));
    }
    assert_eq!(checked, unless_miri(40, 2) * Level::available().len());
}

#[test]
fn options_alone_and_in_pairs() {
    let shape = Shape {
        batch: unless_miri(2, 1),
        heads: unless_miri(4, 2),
        key_heads: unless_miri(2, 1),
        queries: unless_miri(50, 5),
        keys: unless_miri(70, 20),
        dim: unless_miri(12, 3),
        value_dim: unless_miri(20, 2),
    };
    let data = Data::new(shape, false);
    let inputs = shape.inputs(2.0);
    let mut checked = 0;
    let step = unless_miri(1, 4);
    for (i, first) in OPTIONS.iter().enumerate().step_by(step) {
        checked += data.check(&[first], &inputs);
        for second in unless_miri(&OPTIONS[i + 1..], &[]) {
            checked += data.check(&[first, second], &inputs);
        }
    }
    assert_eq!(
        checked,
        unless_miri(OPTIONS.len() * (OPTIONS.len() + 1) / 2, 5) * Level::available().len()
    );
}

#[test]
fn options_of_a_packed_batch() {
    let shape = Shape {
        batch: 1,
        heads: unless_miri(4, 2),
        key_heads: unless_miri(2, 1),
        queries: unless_miri(101, 11),
        keys: unless_miri(160, 30),
        dim: unless_miri(12, 3),
        value_dim: unless_miri(20, 2),
    };
    let data = Data::new(shape, true);
    let inputs = shape.inputs(2.0);
    let mut checked = data.check(&[], &inputs);
    for first in unless_miri(&OPTIONS[..], &OPTIONS[3..4]) {
        checked += data.check(&[first], &inputs);
        checked += data.check(&[first, "causal"], &inputs);
    }
    assert_eq!(
        checked,
        (1 + 2 * unless_miri(OPTIONS.len(), 1)) * Level::available().len()
    );
}

/// So few heads that they are split into parts, with copies.
#[test]
#[cfg_attr(miri, ignore = "large")]
fn options_of_split_heads() {
    let shape = Shape {
        batch: 1,
        heads: 2,
        key_heads: 1,
        queries: 500,
        keys: 300,
        dim: 8,
        value_dim: 8,
    };
    let data = Data::new(shape, false);
    let inputs = shape.inputs(2.0);
    let mut checked = data.check(&[], &inputs);
    for first in OPTIONS {
        checked += data.check(&[first, "dropout"], &inputs);
    }
    assert_eq!(checked, (1 + OPTIONS.len()) * Level::available().len());
}

#[test]
#[cfg_attr(miri, ignore = "large")]
fn all_at_once() {
    let shape = Shape {
        batch: 1,
        heads: 6,
        key_heads: 3,
        queries: 120,
        keys: 170,
        dim: 33,
        value_dim: 47,
    };
    for packed in [false, true] {
        let data = Data::new(shape, packed);
        let options = [
            "scale", "softcap", "causal", "window", "prefix", "lengths", "keep", "bias", "alibi",
            "sink", "dropout", "relative",
        ];
        data.check(&options, &shape.inputs(2.0));
    }
}

/// Logits of ±1e4: one key has all the weight, or a few share it.
#[test]
#[cfg_attr(miri, ignore = "large")]
fn large_logits() {
    let shape = Shape {
        batch: 1,
        heads: 2,
        key_heads: 1,
        queries: 60,
        keys: 80,
        dim: 16,
        value_dim: 16,
    };
    let mut inputs = shape.inputs(1.0);
    for x in inputs[..2].iter_mut().flatten() {
        *x *= 100.0;
    }
    let none = Attention::default();
    check("large", &none, shape, &inputs);
    check(
        "large",
        &Attention {
            causal: true,
            ..none
        },
        shape,
        &inputs,
    );
}
