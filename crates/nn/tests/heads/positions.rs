//! Positions: equal to the published code (`../golden/heads_golden.py`), and dependent on distances alone.

use crate::{
    finite_differences::{check_gradients, double, doubles},
    mechanisms::drawn,
    support::{Case, GoldenFile, device, numbers, values},
};
use burn::tensor::{DType, Tensor};
use proptest::prelude::*;
use regard_nn::{
    initialize::Initializer,
    position::{
        Alibi, Layout, Learned, Positions, Relative, RelativeBuckets, RelativeBucketsConfig,
        RotaryConfig, RotaryGrid, Scaling, Sinusoidal,
    },
};

const BATCH: usize = 2;
const LENGTH: usize = 5;
const KEYS: usize = 7;

fn golden() -> GoldenFile {
    GoldenFile::read(include_bytes!("../golden/heads.safetensors"))
}

fn initializer() -> Initializer {
    Initializer::new(1, &device())
}

fn count(case: &Case, field: &str) -> usize {
    case.number(field) as usize
}

fn flag(case: &Case, field: &str) -> bool {
    case.description[field].as_bool().unwrap()
}

#[test]
fn sinusoidal() {
    let golden = golden();
    let cases = golden.cases("sinusoidal");
    assert_eq!(cases.len(), 3);
    for mut case in cases {
        let size = count(&case, "size");
        let x = case.leaf("x", [BATCH, LENGTH, size]);
        let module = Sinusoidal::new(size).unwrap();
        let y = module.forward(x.clone(), count(&case, "first")).unwrap();
        case.output("x", &y);
        let loss = y * case.constant("loss", [BATCH, LENGTH, size]);
        case.gradient("x", &x, &loss.sum().backward());
        case.close();
    }
}

fn rotary_config(case: &Case) -> RotaryConfig {
    let numbers: Vec<f64> = serde_json::from_value(case.description["numbers"].clone()).unwrap();
    RotaryConfig {
        size: count(case, "size"),
        base: case.number("base"),
        layout: match case.text("layout") {
            "half-split" => Layout::HalfSplit,
            "interleaved" => Layout::Interleaved,
            other => panic!("{other}"),
        },
        scaling: match case.text("scaling") {
            "none" => Scaling::None,
            "linear" => Scaling::Linear { factor: numbers[0] },
            "ntk" => Scaling::Ntk { factor: numbers[0] },
            "llama3" => Scaling::Llama3 {
                factor: numbers[0],
                low_frequency_factor: numbers[1],
                high_frequency_factor: numbers[2],
                original_length: numbers[3] as usize,
            },
            other => panic!("{other}"),
        },
        grid: None,
    }
}

/// Products depend on the distances in rows and in columns alone; tokens before the cells stay as they are.
#[test]
fn rotary_of_a_grid() {
    let grid = RotaryGrid {
        marks: 1,
        columns: 3,
    };
    for layout in [Layout::HalfSplit, Layout::Interleaved] {
        let config = RotaryConfig {
            base: 100.0,
            layout,
            grid: Some(grid),
            ..RotaryConfig::new(8)
        };
        let rotary = config.init().unwrap();
        let cells = 4 * grid.columns;
        let rotation = rotary.rotation(0, 1 + cells, &device(), DType::F64);
        let turned = |seed: &str| -> Vec<f64> {
            let vector = doubles(&values(seed, 8, 1.0), [1, 1, 1, 8]);
            let same = vector.repeat_dim(2, 1 + cells); // [1, 1, 1 + cells, 8]
            rotation.apply(same).unwrap().into_data().iter().collect()
        };
        let (queries, keys) = (turned("q"), turned("k"));
        let plain = values("q", 8, 1.0);
        let first = queries[..8].iter().zip(&plain);
        assert!(
            first
                .clone()
                .all(|(a, b)| (a - f64::from(*b)).abs() < 1e-12)
        );
        let product = |query: [usize; 2], key: [usize; 2]| -> f64 {
            let at = |[row, column]: [usize; 2]| 8 * (1 + row * grid.columns + column);
            let (query, key) = (at(query), at(key));
            let pairs = queries[query..query + 8].iter().zip(&keys[key..key + 8]);
            pairs.map(|(a, b)| a * b).sum()
        };
        // One row down and one column to the left, from two places; and not the same as one to the right.
        let (one, other) = (product([0, 1], [1, 0]), product([2, 2], [3, 1]));
        assert!((one - other).abs() < 1e-12, "{one} {other}");
        assert!((one - product([0, 1], [1, 2])).abs() > 1e-3);
        // By hand: the pairs of rows turn by 1 and by base^(-4/8), those of columns the same.
        let expected = [1.0, 0.1, 1.0, 0.1];
        for (found, expected) in rotary.frequencies().iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12);
        }
    }
    for (size, columns, field) in [(6, 3, "rotary.size"), (8, 0, "rotary.grid.columns")] {
        let grid = Some(RotaryGrid { marks: 0, columns });
        let config = RotaryConfig {
            grid,
            ..RotaryConfig::new(size)
        };
        assert!(config.init().unwrap_err().to_string().contains(field));
    }
}

#[test]
fn rotary() {
    let golden = golden();
    let cases = golden.cases("rotary");
    assert_eq!(cases.len(), 12);
    for mut case in cases {
        let shape = [BATCH, 3, LENGTH, count(&case, "dim")];
        let x = case.leaf("x", shape);
        let rotary = rotary_config(&case).init().unwrap();
        let rotation = rotary.rotation(count(&case, "first"), LENGTH, &device(), DType::F32);
        let y = rotation.apply(x.clone()).unwrap();
        case.output("x", &y);
        let loss = y * case.constant("loss", shape);
        case.gradient("x", &x, &loss.sum().backward());
        case.close();
    }
}

#[test]
fn alibi() {
    let golden = golden();
    let cases = golden.cases("alibi");
    assert_eq!(cases.len(), 5);
    for mut case in cases {
        let heads = count(&case, "heads");
        let scores = case.leaf("scores", [1, heads, 3, KEYS]);
        let positions = Positions::lower_right(3, KEYS);
        let bias = Alibi::new(heads)
            .unwrap()
            .bias(&positions, &device(), DType::F32);
        let biased = scores.clone() + bias;
        case.output("scores", &biased);
        let loss = biased * case.constant("loss", [1, heads, 3, KEYS]);
        case.gradient("scores", &scores, &loss.sum().backward());
        case.close();
    }
}

#[test]
fn relative_buckets() {
    let golden = golden();
    let cases = golden.cases("buckets");
    assert_eq!(cases.len(), 6);
    for mut case in cases {
        let config = RelativeBucketsConfig {
            buckets: count(&case, "buckets"),
            max_distance: count(&case, "maximum"),
            bidirectional: flag(&case, "bidirectional"),
        };
        let steps: Vec<(i64, usize)> =
            serde_json::from_value(case.description["steps"].clone()).unwrap();
        let reach = case.number("reach") as i64;
        for distance in -reach..=reach {
            let (_, expected) = steps
                .iter()
                .rev()
                .find(|(first, _)| *first <= distance)
                .unwrap();
            assert_eq!(
                config.bucket(distance),
                *expected,
                "{config:?} at {distance}"
            );
        }
        let module = case.fill(RelativeBuckets::new(&config, 3, &mut initializer()).unwrap());
        let bias = module.bias(&Positions::lower_right(4, 9));
        case.output("bias", &bias);
        let loss = bias * case.constant("loss", [1, 3, 4, 9]);
        case.gradients(&module, &loss.sum().backward());
        case.close();
    }
}

#[test]
fn relative() {
    let golden = golden();
    let cases = golden.cases("relative");
    assert_eq!(cases.len(), 3);
    for mut case in cases {
        let reach = count(&case, "reach");
        let module = case.fill(Relative::new(reach, 3, Some(3), &mut initializer()).unwrap());
        assert_eq!(module.max_distance(), reach);
        let query = case.leaf("query", [BATCH, 2, 4, 3]);
        let weights = case.leaf("weights", [BATCH, 2, 4, KEYS]);
        let positions = Positions::lower_right(4, KEYS);
        let scores = module.scores(query.clone(), &positions).unwrap();
        let context = module
            .context(weights.clone(), &positions)
            .unwrap()
            .unwrap();
        case.output("scores", &scores);
        case.output("context", &context);
        let loss = (scores * case.constant("loss", [BATCH, 2, 4, KEYS])).sum()
            + (context * case.constant("loss.c", [BATCH, 2, 4, 3])).sum();
        let gradients = loss.backward();
        case.gradients(&module, &gradients);
        case.gradient("query", &query, &gradients);
        case.gradient("weights", &weights, &gradients);
        case.close();
    }
}

#[test]
fn learned_positions_add_their_rows() {
    let learned = Learned::new(9, 4, &mut initializer()).unwrap();
    let x = drawn("x", [2, 3, 4], 1.0);
    let y = learned.forward(x.clone(), 5).unwrap();
    let rows = learned.table.weight.val().narrow(0, 5, 3).unsqueeze::<3>();
    assert_eq!(numbers(&y), numbers(&(x + rows)));

    let inputs = [doubles(&values("x", 24, 1.0), [2, 3, 4])];
    let weights = doubles(&values("w", 24, 1.0), [2, 3, 4]);
    let checked = check_gradients("learned", &double(learned), &inputs, |module, inputs| {
        let y = module.forward(inputs[0].clone(), 5).unwrap();
        (y.powi_scalar(2) * weights.clone()).sum()
    });
    assert_eq!(checked, 9 * 4 + 24);
}

#[test]
fn gradients_equal_finite_differences() {
    let positions = Positions {
        queries: 2..5,
        keys: 1..7,
    };
    let config = RelativeBucketsConfig {
        buckets: 6,
        max_distance: 9,
        bidirectional: true,
    };
    let buckets = double(RelativeBuckets::new(&config, 2, &mut initializer()).unwrap());
    let upstream = doubles(&values("u", 2 * 3 * 6, 1.0), [1, 2, 3, 6]);
    let checked = check_gradients::<_, 4>("buckets", &buckets, &[], |module, _| {
        (module.bias(&positions).tanh() * upstream.clone()).sum()
    });
    assert_eq!(checked, 12);

    let relative = double(Relative::new(2, 3, Some(4), &mut initializer()).unwrap());
    let inputs = [
        doubles(&values("q", 18, 1.0), [1, 2, 3, 3]),
        doubles(&values("w", 36, 1.0), [1, 2, 3, 6]),
    ];
    let checked = check_gradients("relative", &relative, &inputs, |module, inputs| {
        let scores = module.scores(inputs[0].clone(), &positions).unwrap();
        let context = module
            .context(inputs[1].clone(), &positions)
            .unwrap()
            .unwrap();
        (scores.tanh() * upstream.clone()).sum() + context.tanh().sum()
    });
    assert_eq!(checked, 5 * 3 + 5 * 4 + 18 + 36);

    for layout in [Layout::HalfSplit, Layout::Interleaved] {
        let rotary = RotaryConfig {
            layout,
            ..RotaryConfig::new(4)
        }
        .init()
        .unwrap();
        let inputs = [doubles(&values("x", 2 * 3 * 5, 1.0), [1, 2, 3, 5])];
        let weights = doubles(&values("w", 30, 1.0), [1, 2, 3, 5]);
        let checked = check_gradients("rotary", &rotary, &inputs, |rotary, inputs| {
            let rotation = rotary.rotation(7, 3, &device(), DType::F64);
            (rotation.apply(inputs[0].clone()).unwrap().tanh() * weights.clone()).sum()
        });
        assert_eq!(checked, 30);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() })]

    /// The product of a rotated query and a rotated key depends only on their distance, and rotation keeps
    /// every length. In f64, where the rounding of angles is far below the tolerance.
    #[test]
    fn rotary_products_know_the_distance_alone(
        size in prop::sample::select(vec![2usize, 6, 40, 58, 64, 110]),
        rest in 0usize..3,
        first in 0usize..500,
        shift in 0usize..5000,
        interleaved in any::<bool>(),
        linear in any::<bool>(),
    ) {
        let config = RotaryConfig {
            layout: if interleaved { Layout::Interleaved } else { Layout::HalfSplit },
            scaling: if linear { Scaling::Linear { factor: 3.0 } } else { Scaling::None },
            ..RotaryConfig::new(size)
        };
        let rotary = config.init().unwrap();
        let shape = [1, 1, 4, size + rest];
        let count = shape.iter().product();
        let query = doubles(&values("q", count, 1.0), shape);
        let key = doubles(&values("k", count, 1.0), shape);
        let products = |first: usize| {
            let rotation = rotary.rotation(first, 4, &device(), DType::F64);
            let turned = rotation.apply(query.clone()).unwrap();
            let keys = rotation.apply(key.clone()).unwrap();
            let length = |x: Tensor<4>| x.powi_scalar(2).sum_dim(3);
            let kept = (length(turned.clone()) - length(query.clone())).abs().max();
            let scores: Vec<f64> =
                regard_nn::bridge::matmul(turned, keys.swap_dims(2, 3)).into_data().iter::<f64>().collect();
            (scores, kept.into_scalar::<f64>())
        };
        let ((here, kept), (there, _)) = (products(first), products(first + shift));
        // An angle of up to 5500 is known to 5500 ulps; a score is a sum of at most 112 products below 1.
        let tolerance = 112.0 * 5500.0 * f64::EPSILON;
        prop_assert!(kept <= 112.0 * 8.0 * f64::EPSILON, "{kept}");
        for (a, b) in here.iter().zip(&there) {
            prop_assert!((a - b).abs() <= tolerance, "{a} {b}");
        }
    }

    /// Shaw's vectors, pair by pair: `q_i · a^K` and `Σ_j α_ij a^V`, at any positions of queries and keys.
    #[test]
    fn relative_vectors_are_their_definition(
        queries in 1usize..7,
        keys in 1usize..9,
        first_query in 0usize..9,
        first_key in 0usize..9,
        reach in 1usize..5,
    ) {
        let positions = Positions {
            queries: first_query..first_query + queries,
            keys: first_key..first_key + keys,
        };
        let relative = Relative::new(reach, 3, Some(2), &mut initializer()).unwrap();
        let query = drawn("q", [1, 1, queries, 3], 1.0);
        let weights = drawn("w", [1, 1, queries, keys], 1.0);
        let scores = numbers(&relative.scores(query.clone(), &positions).unwrap());
        let context = numbers(&relative.context(weights.clone(), &positions).unwrap().unwrap());
        let (query, weights) = (numbers(&query), numbers(&weights));
        let vectors = numbers(&relative.keys.val());
        let values = numbers(&relative.values.as_ref().unwrap().val());
        let row = |i: usize, j: usize| {
            let distance = (first_key + j) as i64 - (first_query + i) as i64;
            (distance.clamp(-(reach as i64), reach as i64) + reach as i64) as usize
        };
        // Sums of at most 8 products below 1.
        let close = |a: f32, b: f32| (a - b).abs() <= 8.0 * f32::EPSILON;
        for i in 0..queries {
            let mut read = [0.0; 2];
            for j in 0..keys {
                let score: f32 = (0..3).map(|d| query[i * 3 + d] * vectors[row(i, j) * 3 + d]).sum();
                prop_assert!(close(scores[i * keys + j], score), "{i} {j}");
                for (d, read) in read.iter_mut().enumerate() {
                    *read += weights[i * keys + j] * values[row(i, j) * 2 + d];
                }
            }
            prop_assert!(close(context[i * 2], read[0]) && close(context[i * 2 + 1], read[1]));
        }
    }

    /// Biases depend on distances alone, to the bit, and are the same for a part as for the whole.
    #[test]
    fn biases_know_the_distance_alone(
        queries in 1usize..6,
        keys in 1usize..9,
        shift in 0usize..1000,
        heads in prop::sample::select(vec![1usize, 2, 3, 8]),
        bidirectional in any::<bool>(),
    ) {
        let here = Positions::lower_right(queries, keys);
        let there = Positions {
            queries: here.queries.start + shift..here.queries.end + shift,
            keys: here.keys.start + shift..here.keys.end + shift,
        };
        let config = RelativeBucketsConfig { buckets: 8, max_distance: 20, bidirectional };
        let alibi = Alibi::new(heads).unwrap();
        let buckets = RelativeBuckets::new(&config, heads, &mut initializer()).unwrap();
        let relative = Relative::new(3, 4, Some(2), &mut initializer()).unwrap();
        let query = drawn("q", [1, heads, queries, 4], 1.0);
        let weights = drawn("w", [1, heads, queries, keys], 1.0);
        let all = |positions: &Positions| {
            [
                numbers(&alibi.bias(positions, &device(), DType::F32)),
                numbers(&buckets.bias(positions)),
                numbers(&relative.scores(query.clone(), positions).unwrap()),
                numbers(&relative.context(weights.clone(), positions).unwrap().unwrap()),
            ]
        };
        prop_assert_eq!(all(&here), all(&there));

        // The last query alone gets the same bias as among the others.
        let last = Positions { queries: here.queries.end - 1..here.queries.end, ..here.clone() };
        let whole = buckets.bias(&here).narrow(2, queries - 1, 1);
        prop_assert_eq!(numbers(&whole), numbers(&buckets.bias(&last)));
        let whole = alibi.bias(&here, &device(), DType::F32).narrow(2, queries - 1, 1);
        prop_assert_eq!(numbers(&whole), numbers(&alibi.bias(&last, &device(), DType::F32)));
    }
}

/// Positions inside a layer depend on distances alone, however far from the beginning.
#[test]
fn positions_beyond_any_sequence() {
    let far = usize::MAX - 10;
    let at = |first| Positions {
        queries: first + 3..first + 5,
        keys: first..first + 4,
    };
    assert!(at(far).distances().eq(at(0).distances()));
    assert!(at(far).distances().eq([-3, -2, -1, 0, -4, -3, -2, -1]));
    let relative = Relative::new(2, 4, None, &mut initializer()).unwrap();
    let query = drawn("query", [1, 1, 2, 4], 1.0);
    let scores = |first| numbers(&relative.scores(query.clone(), &at(first)).unwrap());
    assert_eq!(scores(far), scores(0));

    let x = || drawn("x", [1, 2, 4], 1.0);
    let learned = Learned::new(8, 4, &mut initializer()).unwrap();
    let refused = learned.forward(x(), usize::MAX).unwrap_err().to_string();
    assert!(
        refused.contains(&format!("`first + length` is {}", usize::MAX)),
        "{refused}"
    );
    let placed = Sinusoidal::new(4)
        .unwrap()
        .forward(x(), usize::MAX)
        .unwrap();
    assert!(numbers(&placed).iter().all(|x| x.is_finite()));
    let rotary = RotaryConfig::new(4).init().unwrap();
    let rotation = rotary.rotation(usize::MAX, 2, &device(), DType::F32);
    let turned = rotation.apply(x().unsqueeze::<4>()).unwrap();
    assert!(numbers(&turned).iter().all(|x| x.is_finite()));
}

#[test]
fn positions_of_more_queries_than_keys() {
    let positions = Positions::lower_right(3, 1);
    assert_eq!(positions.distances().collect::<Vec<_>>(), [2, 1, 0]);
    assert_eq!(Positions::lower_right(0, 0).distances().count(), 0);
}

#[test]
fn empty_inputs_stay_empty() {
    let init = &mut initializer();
    let empty = Tensor::<3>::zeros([2, 0, 4], &device());
    let learned = Learned::new(3, 4, init).unwrap();
    assert_eq!(learned.forward(empty.clone(), 3).unwrap().dims(), [2, 0, 4]);
    let sinusoidal = Sinusoidal::new(4).unwrap();
    assert_eq!(sinusoidal.forward(empty, 3).unwrap().dims(), [2, 0, 4]);
    let rotation = RotaryConfig::new(4)
        .init()
        .unwrap()
        .rotation(0, 0, &device(), DType::F32);
    let empty = Tensor::<4>::zeros([2, 3, 0, 4], &device());
    assert_eq!(rotation.apply(empty).unwrap().dims(), [2, 3, 0, 4]);
}
