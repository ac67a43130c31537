//! Properties other than the values: the same bits on any pool, hidden positions, strides, and
//! refused calls.

use super::*;

pub(super) fn bits(all: &[Vec<f32>]) -> Vec<Vec<u32>> {
    all.iter()
        .map(|x| x.iter().map(|x| x.to_bits()).collect())
        .collect()
}

#[test]
fn same_bits_on_any_number_of_threads() {
    let shapes = [(8, 4, 400), (2, 1, 600), (1, 1, 1000)];
    for &(heads, key_heads, queries) in unless_miri(&shapes[..], &[(1, 1, 400)]) {
        let (keys, dim) = unless_miri((300, 40), (20, 3));
        let shape = Shape {
            batch: 1,
            heads,
            key_heads,
            queries,
            keys,
            dim,
            value_dim: dim,
        };
        let data = Data::new(shape, false);
        let inputs = shape.inputs(1.0);
        let option_sets = [
            &["causal", "bias of keys", "sink"][..],
            &["dropout", "bias"],
            &[],
        ];
        for &options in unless_miri(&option_sets[..], &option_sets[..1]) {
            let attention = data.attention(options);
            let level = Level::current();
            let on = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .unwrap();
                bits(&pool.install(|| fast(level, &attention, shape, &inputs)))
            };
            let alone = on(1);
            for &threads in unless_miri(&[1, 2, 3, 8][..], &[2]) {
                assert_eq!(
                    alone,
                    on(threads),
                    "{threads} threads, {shape:?}, {options:?}"
                );
            }
        }
    }
}

/// What a mask hides may be anything: the gradients have the same bits as with zeros there.
#[test]
fn hidden_rows_do_not_leak() {
    let shape = Shape {
        batch: 1,
        heads: 2,
        key_heads: 1,
        queries: unless_miri(70, 20),
        keys: 90,
        dim: unless_miri(24, 3),
        value_dim: unless_miri(40, 2),
    };
    let Shape {
        queries,
        keys,
        heads,
        dim,
        value_dim,
        ..
    } = shape;
    // Query 13 sees nothing; no query sees keys 7, 40 and those past 77.
    let hidden_key = |j: usize| j == 7 || j == 40 || j > 77;
    let keep: Vec<u8> = (0..queries * keys)
        .map(|x| u8::from(x / keys != 13 && !hidden_key(x % keys)))
        .collect();
    for causal in [false, true] {
        let attention = Attention {
            keep: Some(View::heads_first(&keep, [1, 1, queries, keys])),
            causal,
            ..Attention::default()
        };
        let filled = |with: f32| {
            let mut inputs = shape.inputs(1.0);
            for j in (0..keys).filter(|&j| hidden_key(j)) {
                inputs[1][j * dim..][..dim].fill(with);
                inputs[2][j * value_dim..][..value_dim].fill(with);
            }
            for head in 0..heads {
                let row = head * queries + 13;
                inputs[0][row * dim..][..dim].fill(with);
                inputs[3][row * value_dim..][..value_dim].fill(with);
            }
            inputs
        };
        for &level in Level::available() {
            let clean = fast(level, &attention, shape, &filled(0.0));
            let poisons = [f32::NAN, f32::INFINITY, f32::MAX];
            for &poison in unless_miri(&poisons[..], &poisons[..1]) {
                let found = fast(level, &attention, shape, &filled(poison));
                for (found, clean) in found.iter().zip(&clean) {
                    let close = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-5;
                    assert!(
                        found.iter().zip(clean).all(close),
                        "{poison} leaks, {level:?}"
                    );
                }
            }
            assert!(
                clean[0][13 * dim..][..dim].iter().all(|&x| x == 0.0),
                "gradient of a blind query"
            );
            for j in (0..keys).filter(|&j| hidden_key(j)) {
                assert!(
                    clean[1][j * dim..][..dim].iter().all(|&x| x == 0.0),
                    "gradient of a hidden key"
                );
                assert!(
                    clean[2][j * value_dim..][..value_dim]
                        .iter()
                        .all(|&x| x == 0.0)
                );
            }
        }
    }
}

#[test]
fn nothing_to_see_gives_zeros() {
    let shape = |batch, queries, keys| Shape {
        batch,
        heads: 2,
        key_heads: 1,
        queries,
        keys,
        dim: 4,
        value_dim: 5,
    };
    for shape in [
        shape(1, 3, 0),
        shape(1, 0, 3),
        shape(0, 3, 3),
        shape(1, 3, 3),
    ] {
        let lengths = vec![0; shape.batch];
        let attention = Attention {
            lengths: Some(&lengths),
            ..Attention::default()
        };
        let found = fast(Level::current(), &attention, shape, &shape.inputs(1.0));
        assert!(found.iter().flatten().all(|&x| x == 0.0), "{shape:?}");
    }
}

/// Rows stored as `[batch, length, heads, dim]`, some further apart than necessary.
#[test]
fn strides_change_nothing() {
    let shape = Shape {
        batch: 2,
        heads: 4,
        key_heads: 2,
        queries: unless_miri(50, 5),
        keys: unless_miri(61, 17),
        dim: unless_miri(20, 3),
        value_dim: unless_miri(12, 2),
    };
    let inputs = shape.inputs(1.0);
    let attention = Attention {
        causal: true,
        ..Attention::default()
    };
    let expected = fast(Level::current(), &attention, shape, &inputs);

    let strides = |[_, heads, length, dim]: [usize; 4]| {
        let dim = dim + 3;
        [length * heads * dim, dim, heads * dim]
    };
    let scatter = |x: &[f32], shape: [usize; 4]| -> Vec<f32> {
        let [batch, heads, length, dim] = shape;
        let mut to = vec![f32::NAN; batch * heads * length * (dim + 3)];
        let strides = strides(shape);
        for (row, from) in x.chunks(dim).enumerate() {
            let (b, h, i) = (row / length / heads, row / length % heads, row % length);
            to[b * strides[0] + h * strides[1] + i * strides[2]..][..dim].copy_from_slice(from);
        }
        to
    };
    let [query, key, value] = shape.views();
    let shapes = [query, key, value, shape.output()];
    let spread: Vec<Vec<f32>> = inputs
        .iter()
        .zip(shapes)
        .map(|(x, shape)| scatter(x, shape))
        .collect();
    let view = |i: usize| View {
        data: &spread[i],
        shape: shapes[i],
        strides: strides(shapes[i]),
    };
    let mut output = scatter(&vec![0.0; shapes[3].iter().product()], shapes[3]);
    let mut lse = vec![0.0; 2 * 4 * shape.queries * 3];
    let to = ViewMut {
        data: &mut output,
        shape: shapes[3],
        strides: strides(shapes[3]),
    };
    let level = Level::current();
    forward_at(
        level,
        &attention,
        view(0),
        view(1),
        view(2),
        to,
        Some(&mut lse),
    )
    .unwrap();
    let mut found: Vec<Vec<f32>> = spread[..3]
        .iter()
        .map(|x| vec![f32::NAN; x.len()])
        .collect();
    let [d_query, d_key, d_value] = &mut found[..] else {
        unreachable!()
    };
    let to = |data, i: usize| ViewMut {
        data,
        shape: shapes[i],
        strides: strides(shapes[i]),
    };
    let gradients = Gradients {
        query: to(d_query, 0),
        key: to(d_key, 1),
        value: to(d_value, 2),
        bias: None,
        sink: None,
    };
    let inputs = Inputs {
        query: view(0),
        key: view(1),
        value: view(2),
        output: View {
            data: &output,
            shape: shapes[3],
            strides: strides(shapes[3]),
        },
        lse: &lse,
        d_output: view(3),
    };
    backward_at(level, &attention, inputs, gradients).unwrap();
    for i in 0..3 {
        assert_eq!(
            bits(&[scatter(&expected[i], shapes[i])]),
            bits(&found[i..=i]),
            "{}",
            NAMES[i]
        );
    }
}

#[test]
fn misfits_are_named() {
    let shape = [1, 1, 2, 4];
    let x = [0.0f32; 8];
    let view = View::heads_first(&x, shape);
    let attempt = |change: &dyn Fn(&mut Attention, &mut Inputs, &mut Gradients)| {
        let [mut a, mut b, mut c] = [[f32::NAN; 8]; 3];
        let mut attention = Attention::default();
        let mut inputs = Inputs {
            query: view,
            key: view,
            value: view,
            output: view,
            lse: &x[..6],
            d_output: view,
        };
        let mut gradients = Gradients {
            query: ViewMut::heads_first(&mut a, shape),
            key: ViewMut::heads_first(&mut b, shape),
            value: ViewMut::heads_first(&mut c, shape),
            bias: None,
            sink: None,
        };
        change(&mut attention, &mut inputs, &mut gradients);
        let result = backward_at(Level::current(), &attention, inputs, gradients);
        if result.is_err() {
            assert!(
                [a, b, c].iter().flatten().all(|x| x.is_nan()),
                "nothing is written"
            );
        }
        result
    };
    assert_eq!(attempt(&|_, _, _| {}), Ok(()));
    let message = |change: &dyn Fn(&mut Attention, &mut Inputs, &mut Gradients)| {
        attempt(change).unwrap_err().to_string()
    };
    let found = message(&|_, inputs, _| inputs.lse = &[]);
    assert!(
        found.contains("`lse`") && found.contains('0') && found.contains('6'),
        "{found}"
    );
    let found = message(&|_, inputs, _| inputs.d_output.shape[3] = 3);
    assert!(
        found.contains("`d_output`") && found.contains('3') && found.contains('4'),
        "{found}"
    );
    let found = message(&|_, inputs, _| inputs.output.strides[2] = 40);
    assert!(
        found.contains("`output`") && found.contains("44"),
        "{found}"
    );
    let overlap = attempt(&|_, _, gradients| gradients.key.strides[2] = 2);
    assert!(matches!(
        overlap,
        Err(KernelError::Overlap {
            argument: "gradients.key",
            ..
        })
    ));
    let found = message(&|_, _, gradients| gradients.value.shape[2] = 1);
    assert!(found.contains("`gradients.value`"), "{found}");
    let found = message(&|_, _, gradients| gradients.sink = Some(&mut []));
    assert!(
        found.contains("`gradients.sink`") && found.contains("set `sink`"),
        "{found}"
    );
    let found = message(&|_, _, gradients| {
        gradients.bias = Some(ViewMut {
            data: &mut [],
            shape: [1; 4],
            strides: [0; 3],
        });
    });
    assert!(
        found.contains("`gradients.bias`") && found.contains("set `bias`"),
        "{found}"
    );
}
