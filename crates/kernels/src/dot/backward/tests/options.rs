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
    for (queries, keys) in [(1, 1), (2, 5), (97, 97), (33, 200), (130, 50)] {
        for (dim, value_dim) in dims {
            let shape = Shape {
                batch: 1,
                heads: 2,
                key_heads: 1,
                queries,
                keys,
                dim,
                value_dim,
            };
            checked += check(
                "plain",
                &Attention::default(),
                &Unmodified,
                shape,
                &shape.inputs(2.0),
            );
        }
    }
    for (heads, key_heads) in [(1, 1), (2, 2), (8, 4), (8, 1)] {
        let (queries, keys) = (257, 257);
        let shape = Shape {
            batch: 2,
            heads,
            key_heads,
            queries,
            keys,
            dim: 16,
            value_dim: 24,
        };
        checked += check(
            "groups",
            &Attention::default(),
            &Unmodified,
            shape,
            &shape.inputs(2.0),
        );
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
    checked += check("long", &causal, &Unmodified, shape, &shape.inputs(2.0));
    assert_eq!(checked, 40 * Level::available().len());
}

#[test]
fn options_alone_and_in_pairs() {
    let shape = Shape {
        batch: 2,
        heads: 4,
        key_heads: 2,
        queries: 50,
        keys: 70,
        dim: 12,
        value_dim: 20,
    };
    let data = Data::new(shape, false);
    let inputs = shape.inputs(2.0);
    let mut checked = 0;
    for (i, first) in OPTIONS.iter().enumerate() {
        checked += data.check(&[first], &inputs);
        for second in &OPTIONS[i + 1..] {
            checked += data.check(&[first, second], &inputs);
        }
    }
    assert_eq!(checked, (18 + 18 * 17 / 2) * Level::available().len());
}

#[test]
fn options_of_a_packed_batch() {
    let shape = Shape {
        batch: 1,
        heads: 4,
        key_heads: 2,
        queries: 101,
        keys: 160,
        dim: 12,
        value_dim: 20,
    };
    let data = Data::new(shape, true);
    let inputs = shape.inputs(2.0);
    let mut checked = data.check(&[], &inputs);
    for first in OPTIONS {
        checked += data.check(&[first], &inputs);
        checked += data.check(&[first, "causal"], &inputs);
    }
    assert_eq!(checked, (1 + 2 * 18) * Level::available().len());
}

/// Heads few enough to be split, so that parts and copies are met.
#[test]
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
    assert_eq!(checked, 19 * Level::available().len());
}

#[test]
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
            "sink", "dropout", "change",
        ];
        data.check(&options, &shape.inputs(2.0));
    }
}

/// Logits of ±1e4: one key has all the weight, or a few share it.
#[test]
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
    check("large", &none, &Unmodified, shape, &inputs);
    check(
        "large",
        &Attention {
            causal: true,
            ..none
        },
        &Unmodified,
        shape,
        &inputs,
    );
}
