use super::*;
use crate::norm::Kind;
use crate::testing::{on_every_pool, random, unless_miri, wide};

fn naive(x: &[f32], matrix: &[f32], bias: &[f32], [rows, inner, columns]: [usize; 3]) -> Vec<f64> {
    let (x, matrix) = (wide(x), wide(matrix));
    let entry = |at: usize| {
        let (row, column) = (at / columns, at % columns);
        let sum: f64 = (0..inner)
            .map(|k| x[row * inner + k] * matrix[k * columns + column])
            .sum();
        sum + bias.get(column).map_or(0.0, |&b| f64::from(b))
    };
    (0..rows * columns).map(entry).collect()
}

#[test]
fn products_of_few_and_of_many_rows_are_the_same_products() {
    let sizes = [[1, 1], [7, 100], [256, 1030], [300, 48], [5, 0]];
    for &[inner, columns] in unless_miri(&sizes[..], &[[2, 35], [5, 0]]) {
        let matrix = random(1, inner * columns, 1.0);
        let bias = random(2, columns, 1.0);
        let table: Vec<f32> = (0..columns * inner)
            .map(|at| matrix[at % inner * columns + at / inner])
            .collect();
        let product = Product::new(&matrix, inner, columns, Some(bias.clone())).unwrap();
        let tied = Product::transposed(&table, inner, columns, Some(bias.clone())).unwrap();
        let x = random(3, 170 * inner, 1.0);
        let alone = Helper::default();
        let all =
            on_every_pool(|| vec![product.apply(&x, 170, &alone), tied.apply(&x, 170, &alone)]);
        assert_eq!(all[0], all[1]);
        let truth = naive(&x, &matrix, &bias, [170, inner, columns]);
        for (found, truth) in all[0].iter().zip(&truth) {
            assert!((f64::from(*found) - truth).abs() <= 3e-7 * inner as f64);
        }
        for rows in [0, 1, 5, 15, 16, 40] {
            let few = on_every_pool(|| {
                let product = |helper: &Helper| product.apply(&x[..rows * inner], rows, helper);
                vec![Helper::beside(product)]
            });
            assert_eq!(few[0], all[0][..rows * columns], "{rows} rows");
        }
    }
}

#[test]
fn log_probabilities_sum_to_one() {
    for &classes in unless_miri(&[1, 15, 16, 17, 1000][..], &[15, 17]) {
        let mut logits = random(4, 3 * classes, 20.0);
        let before = logits.clone();
        loss::log_softmax(&mut logits, classes);
        for (row, before) in logits
            .chunks_exact(classes)
            .zip(before.chunks_exact(classes))
        {
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            assert!((sum - 1.0).abs() < 1e-5, "{sum}");
            let shift = row[0] - before[0];
            assert!(
                row.iter()
                    .zip(before)
                    .all(|(a, b)| (a - b - shift).abs() < 1e-4)
            );
        }
    }
}

fn step(decoder: &Decoder, state: &mut State, x: &[f32]) -> Vec<f32> {
    let mut to = vec![f32::NAN; 3];
    decoder.step(state, x, &mut to).unwrap();
    to
}

fn decoder(sizes: Sizes) -> Result<Decoder, KernelError> {
    let Sizes {
        model,
        heads,
        key_value_heads,
        head,
        ..
    } = sizes;
    let (query, both) = (heads * head, 2 * key_value_heads * head);
    let product = |seed, inner, columns| {
        let matrix = random(seed, inner * columns, 0.5);
        Product::new(
            &matrix,
            inner,
            columns,
            Some(random(seed + 1, columns, 0.5)),
        )
    };
    let norm = || NormWeights {
        kind: Kind::Layer,
        weight: vec![1.0; model],
        bias: Some(vec![0.0; model]),
        epsilon: 1e-5,
    };
    let layer = Layer {
        own: product(1, model, query + both)?,
        own_output: product(3, query, model)?,
        own_norm: norm(),
        cross_query: product(5, model, query)?,
        cross_source: product(7, 6, both)?,
        cross_output: product(9, query, model)?,
        cross_norm: norm(),
        inner: product(11, model, 20)?,
        activation: Activation::Swiglu,
        outer: product(13, 10, model)?,
        outer_norm: norm(),
    };
    Decoder::new(sizes, vec![layer; 2], Some(norm()), product(15, model, 9)?)
}

const SIZES: Sizes = Sizes {
    model: 8,
    heads: 4,
    key_value_heads: 2,
    head: 3,
    window: None,
    post_norm: false,
};

/// Hypotheses that fork, change places and end get the same numbers as those that are computed
/// alone.
#[test]
fn ancestors_are_followed() {
    for &window in unless_miri(&[None, Some(2)][..], &[Some(2)]) {
        let decoder = decoder(Sizes { window, ..SIZES }).unwrap();
        let encoded = random(20, 2 * 5 * 6, 1.0);
        let lengths = [5, 3];
        let input = |token: usize| random(30 + token as u64, 8, 1.0);
        // For a sentence and the tokens that a hypothesis was fed: its last log-probabilities.
        let alone = |sentence: usize, tokens: &[usize]| {
            let states = &encoded[sentence * 30..][..30];
            let mut state = decoder.begin(states, 5, &lengths[sentence..][..1]).unwrap();
            let steps = tokens
                .iter()
                .map(|&token| step(&decoder, &mut state, &input(token)));
            steps.last().unwrap()
        };
        let mut state = decoder.begin(&encoded, 5, &lengths).unwrap();
        let mut pasts: Vec<(usize, Vec<usize>)> = vec![(0, vec![]), (1, vec![])];
        let mut token = 0;
        for rows in [&[0, 0, 1, 1][..], &[3, 0, 2, 0, 1], &[4, 1], &[0]] {
            for (_, past) in &mut pasts {
                past.push(token);
                token += 1;
            }
            let x: Vec<f32> = pasts
                .iter()
                .flat_map(|(_, past)| input(*past.last().unwrap()))
                .collect();
            let found = step(&decoder, &mut state, &x);
            for (row, (sentence, past)) in found.chunks_exact(9).zip(&pasts) {
                assert_eq!(row, alone(*sentence, past), "{past:?}");
            }
            state.select(rows).unwrap();
            pasts = rows.iter().map(|&row| pasts[row].clone()).collect();
        }
        assert_eq!(state.steps(), 4);
        assert!(
            state
                .select(&[1])
                .unwrap_err()
                .to_string()
                .contains("`rows`")
        );
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let message = |sizes| decoder(sizes).unwrap_err().to_string();
    assert!(
        message(Sizes {
            key_value_heads: 3,
            ..SIZES
        })
        .contains("key_value_heads")
    );
    for head in [0, 257] {
        let error = message(Sizes { head, ..SIZES });
        assert!(
            error.contains("`head`") && error.contains("1 to 256"),
            "{error}"
        );
    }
    let ready = decoder(SIZES).unwrap();
    let error = ready.begin(&[0.0; 59], 5, &[5, 3]).unwrap_err().to_string();
    assert!(error.starts_with("`encoded` holds 59"), "{error}");
    let error = ready.begin(&[0.0; 60], 5, &[6, 3]).unwrap_err().to_string();
    assert!(error.contains("`lengths`"), "{error}");
    let mut state = ready.begin(&[0.0; 60], 5, &[5, 0]).unwrap();
    let error = ready
        .step(&mut state, &[0.0; 8], &mut vec![])
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("`x` holds 8"), "{error}");
    // A source without words adds nothing, and no NaN.
    let found = step(&ready, &mut state, &random(1, 16, 1.0));
    assert!(found.iter().all(|x| x.is_finite()));
}
