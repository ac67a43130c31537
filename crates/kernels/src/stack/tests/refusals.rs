//! Sizes, weights, sources and states that do not fit.

use super::*;

#[test]
fn what_does_not_fit_is_refused() {
    let block = stack(&PLAIN).blocks[0].clone();
    let message = |sizes| {
        let made = Stack::new(sizes, vec![block.clone()], None, vec![]);
        made.unwrap_err().to_string()
    };
    let sizes = PLAIN.sizes;
    let three = Sizes {
        key_value_heads: 3,
        ..sizes
    };
    assert!(message(three).contains("key_value_heads"));
    for count in [0, 1 << 60] {
        let heads = Sizes {
            heads: count,
            key_value_heads: count,
            ..sizes
        };
        assert!(message(heads).contains("heads"), "{count}");
    }
    let mut narrow = block.clone();
    narrow.attention.window = Some(0);
    let error = Stack::new(sizes, vec![narrow], None, vec![]).unwrap_err();
    assert!(error.to_string().contains("window"), "{error}");
    for head in [0, 257] {
        let error = message(Sizes { head, ..sizes });
        assert!(
            error.contains("`head`") && error.contains("1 to 256"),
            "{error}"
        );
    }
    let wide = Sizes { model: 9, ..sizes };
    assert!(message(wide).contains("`query_key_value` holds 8"));
    // Without a feature any number of positions would fit, and any number of heads.
    let none = Sizes {
        model: 0,
        heads: 1 << 60,
        key_value_heads: 1 << 60,
        head: 16,
        ..sizes
    };
    assert!(message(none).starts_with("`model` is 0"));
    let mut reads = stack(&Choice {
        cross: true,
        ..PLAIN
    });
    let mut reading = reads.blocks.remove(0);
    if let Some(cross) = &mut reading.cross {
        cross.key_value = Product::zeros(Storage::F32, 0, 24).unwrap();
    }
    let error = Stack::new(sizes, vec![reading], None, vec![]).unwrap_err();
    assert!(
        error.to_string().starts_with("`cross key_value` is 0"),
        "{error}"
    );
    let values = vec![0.0; 10];
    let relative = RelativePositions { values, zero: 0 };
    let error = stack(&PLAIN).with_relative(vec![relative]).unwrap_err();
    assert!(
        error.to_string().starts_with("`relative` holds 10"),
        "{error}"
    );
    let values = vec![0.0; 4];
    let relative = RelativePositions { values, zero: 0 };
    let error = stack(&PLAIN).with_relative(vec![relative; 2]).unwrap_err();
    assert!(error.to_string().contains("one for each block"), "{error}");
    let error = stack(&PLAIN).with_alibi(vec![0.5; 3]).unwrap_err();
    assert!(error.to_string().starts_with("`alibi` holds 3"), "{error}");
    let error = stack(&PLAIN).with_alibi(vec![f32::NAN; 4]).unwrap_err();
    assert!(error.to_string().contains("alibi"), "{error}");
    let ready = stack(&Choice {
        cross: true,
        ..PLAIN
    });
    let begin = |count: usize, lengths: &[usize]| {
        ready.begin_with_sources(&vec![0.5; count], 4, lengths, Kind::F32)
    };
    let error = begin(39, &[4, 2]).unwrap_err().to_string();
    assert!(error.starts_with("`encoded` holds 39"), "{error}");
    let error = begin(40, &[5, 2]).unwrap_err().to_string();
    assert!(error.contains("`lengths`"), "{error}");
    let mut state = begin(40, &[4, 0]).unwrap();
    let error = ready.forward(Some(&mut state), &[0.0; 8], &[1, 1], None);
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("`x` holds 8"), "{error}");
    let error = ready.forward(Some(&mut state), &[0.0; 8], &[1], None);
    assert!(error.unwrap_err().to_string().contains("`counts`"));
    let error = ready
        .forward(None, &[0.0; 8], &[1], None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("sources"), "{error}");
    // Sizes that cannot be, and a state that a refusal leaves as it was.
    let mut plain = stack(&PLAIN).begin(2, Kind::F32);
    for counts in [[usize::MAX, 2], [1 << 63, 1 << 63]] {
        let error = stack(&PLAIN).forward(Some(&mut plain), &[0.0; 8], &counts, None);
        assert!(error.unwrap_err().to_string().contains("`x`"));
    }
    assert_eq!([plain.length(0), plain.length(1)], [0, 0]);
    let pass = Pass::new(&ready, None, &[1 << 32], &[]);
    assert!(matches!(pass, Err(KernelError::TooLarge { .. })));
    let error = ready.begin_with_sources(&[], 1 << 63, &[0, 0], Kind::F32);
    assert!(error.unwrap_err().to_string().contains("`encoded`"));
    let mut without = ready.begin(1, Kind::F32);
    let error = ready.forward(Some(&mut without), &[0.0; 8], &[1], None);
    assert!(error.unwrap_err().to_string().contains("sources"));
    assert_eq!(without.length(0), 0);
    // No rows, and sources of any length.
    let none = ready.begin_with_sources(&[], usize::MAX, &[], Kind::F32);
    let found = ready.forward(Some(&mut none.unwrap()), &[], &[], None);
    assert_eq!(found, Ok(vec![]));
    assert!(Product::zeros(Storage::Int8, usize::MAX, usize::MAX).is_err());
    for (storage, largest) in [
        (Storage::F16, 65504.0),
        (Storage::Bf16, 3.38e38),
        (Storage::Int8, 127.0 * 65504.0),
    ] {
        let mut product = Product::zeros(storage, 1, 1).unwrap();
        product.set_column(0, &[largest]).unwrap();
        let found = product.forward(&[1.0], 1).unwrap()[0];
        assert!((found / largest - 1.0).abs() < 0.01, "{storage:?} {found}");
        let error = product.set_column(0, &[f32::MAX]).unwrap_err().to_string();
        assert!(error.contains("`values`"), "{error}");
    }
    // A source without words adds nothing, and no NaN.
    let found = step(&ready, &mut state, &random(1, 16, 1.0));
    assert!(found.iter().all(|x| x.is_finite()));
}

/// A state of another stack: other blocks, keys and values of another width, or another block that reads a source.
#[test]
fn a_state_of_another_stack_is_refused() {
    let three = stack(&PLAIN);
    let blocks = three.blocks[..1].to_vec();
    let one = Stack::new(PLAIN.sizes, blocks, None, vec![]).unwrap();
    let narrow = stack(&Choice {
        sizes: Sizes {
            key_value_heads: 1,
            ..PLAIN.sizes
        },
        ..PLAIN
    });
    let reads = stack(&Choice {
        cross: true,
        ..PLAIN
    });
    let mut reads_first = reads.clone();
    reads_first.blocks[1].cross = None;
    let x = random(5, 6 * 8, 1.0);
    for (own, other, message) in [
        (&one, &three, "`state` has blocks 1, expected 3"),
        (&three, &one, "`state` has blocks 3, expected 1"),
        (
            &three,
            &narrow,
            "`state` has features of keys and values 24, expected 12",
        ),
        (
            &narrow,
            &three,
            "`state` has features of keys and values 12, expected 24",
        ),
        (
            &three,
            &reads,
            "`state` has keys and values of sources 0, expected 192",
        ),
        (
            &reads_first,
            &reads,
            "`state` has keys and values of sources 0, expected 192",
        ),
    ] {
        let begin = own.begin_with_sources(&sources(), 4, &SOURCES, Kind::Bf16);
        let mut state = begin.unwrap();
        for counts in [[0, 0], [2, 1], [1, 1]] {
            let count: usize = counts.iter().sum();
            let x = &x[..count * 8];
            let mut again = state.clone();
            let error = other.forward(Some(&mut again), x, &counts, None);
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
            if !counts.contains(&0) {
                let (output, mut to) = (product(9, Storage::F32, 8, 9), vec![]);
                let outputs = other.last_outputs(&mut again, x, &counts, &output, &mut to, None);
                assert_eq!(outputs.unwrap_err().to_string(), error);
            }
            // A refusal leaves the state as it was.
            let found = own.forward(Some(&mut again), x, &counts, None).unwrap();
            let truth = own.forward(Some(&mut state), x, &counts, None).unwrap();
            same_bits(&found, &truth);
        }
    }
}
