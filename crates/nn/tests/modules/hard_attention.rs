//! Hard attention: draws follow the distribution, estimators give the gradients they promise, and REINFORCE is
//! unbiased: its mean over many draws is the exact gradient, by enumeration, within its standard error.

use burn::tensor::{DType, Tensor, TensorData};
use regard_nn::{
    Attention, AttentionOptions, Observe,
    attention::Sampled,
    dropout::DropoutRng,
    mask::{Mask, PaddingMask},
    normalize::{Estimator, HardSample, Normalize, Reinforce, masked_softmax},
    score::Score,
};

use crate::support::{device, numbers, values};

const KEYS: usize = 4;

fn hard(estimator: Estimator) -> Attention {
    Attention::new(Score::dot()).with_normalize(Normalize::HardSample(HardSample::new(estimator)))
}

const ESTIMATORS: [Estimator; 3] = [
    Estimator::StraightThrough,
    Estimator::Gumbel { temperature: 0.5 },
    Estimator::Reinforce { soften: false },
];

fn drawn(name: &str, shape: [usize; 4], scale: f32) -> Tensor<4> {
    let values = values(name, shape.iter().product(), scale);
    Tensor::from_data(TensorData::new(values, shape), &device())
}

/// Scores through a query of one number: `score_j = key_j`.
fn of_scores(scores: &[f32], draws: usize) -> [Tensor<4>; 2] {
    let keys = Tensor::<4>::from_data(TensorData::new(scores.to_vec(), [1, 1, KEYS, 1]), &device());
    [Tensor::ones([1, 1, draws, 1], &device()), keys]
}

/// Every draw is one-hot, at a visible key, with the frequencies of the softmax.
#[test]
fn draws_follow_the_softmax() {
    let draws = 20_000;
    let [query, key] = of_scores(&[0.3, -1.0, 9.0, 1.2], draws);
    let padding = Mask::padding(
        PaddingMask::from_flags(&[vec![true, true, false, true]], &device()).unwrap(),
    );
    let expected = {
        let e = [0.3f64, -1.0, 1.2].map(f64::exp);
        let sum: f64 = e.iter().sum();
        [e[0] / sum, e[1] / sum, 0.0, e[2] / sum]
    };
    for estimator in ESTIMATORS {
        let mut noise = DropoutRng::seeded(11);
        let call = AttentionOptions::new(Observe::Weights)
            .mask(padding.clone())
            .noise(&mut noise);
        let attended = hard(estimator)
            .forward_with(query.clone(), key.clone(), key.clone(), call)
            .unwrap();
        let mut counts = [0usize; KEYS];
        let sampled = attended.sampled.unwrap();
        let keys: Vec<i64> = sampled.keys.into_data().iter::<i64>().collect();
        for (row, &key) in numbers(&attended.weights.unwrap()).chunks(KEYS).zip(&keys) {
            // Straight-through adds and subtracts the softmax, which may leave a rounding error.
            let one_hot = |j: usize| if j == key as usize { 1.0 } else { 0.0 };
            assert!(
                row.iter()
                    .enumerate()
                    .all(|(j, w)| (w - one_hot(j)).abs() <= f32::EPSILON)
            );
            counts[key as usize] += 1;
        }
        for (count, p) in counts.iter().zip(expected) {
            let deviation = (draws as f64 * p * (1.0 - p)).sqrt();
            let off = (*count as f64 - draws as f64 * p).abs();
            assert!(
                off <= 4.0 * deviation,
                "{estimator:?}: {counts:?}, expected {expected:?}"
            );
        }
        let log_probability = numbers(&sampled.log_probability);
        for (key, found) in keys.iter().zip(log_probability) {
            assert!((f64::from(found) - expected[*key as usize].ln()).abs() < 1e-5);
        }
        let entropy: f64 = expected
            .iter()
            .filter(|p| **p > 0.0)
            .map(|p| -p * p.ln())
            .sum();
        assert!((f64::from(numbers(&sampled.entropy)[0]) - entropy).abs() < 1e-5);
    }
}

/// Without noise the most probable key is taken, the first of equal ones.
#[test]
fn inference_takes_the_best() {
    let [query, key] = of_scores(&[0.5, 2.0, -1.0, 2.0], 1);
    for estimator in ESTIMATORS {
        let attended = hard(estimator)
            .forward(query.clone(), key.clone(), key.clone(), Observe::Weights)
            .unwrap();
        let weights = numbers(&attended.weights.unwrap());
        for (found, expected) in weights.iter().zip([0.0, 1.0, 0.0, 0.0]) {
            assert!((found - expected).abs() <= f32::EPSILON, "{weights:?}");
        }
    }
}

/// The gradient of `Σ upstream · weights` with respect to the scores, under one seed.
fn slope_of(normalize: &Normalize, seed: u64) -> Vec<f32> {
    let scores = drawn("scores", [1, 1, 3, KEYS], 2.0).require_grad();
    let mut noise = DropoutRng::seeded(seed);
    let normalized = normalize.forward(scores.clone(), None, &scores, None, Some(&mut noise));
    let loss = normalized.weights * drawn("upstream", [1, 1, 3, KEYS], 1.0);
    let loss = loss.sum() + scores.clone().sum() * 0.0;
    numbers(&scores.grad(&loss.backward()).unwrap())
}

/// Straight-through has the gradient of the softmax; Gumbel that of the softmax with the noise of its draw; REINFORCE
/// none.
#[test]
fn slopes_of_the_estimators() {
    let normalize = |estimator| Normalize::HardSample(HardSample::new(estimator));
    let plain = slope_of(&Normalize::softmax(), 3);
    let close = |a: &[f32], b: &[f32]| {
        a.iter()
            .zip(b)
            .all(|(a, b)| (a - b).abs() <= 8.0 * f32::EPSILON)
    };
    assert!(close(&slope_of(&normalize(ESTIMATORS[0]), 3), &plain));
    assert!(
        slope_of(&normalize(ESTIMATORS[2]), 3)
            .iter()
            .all(|slope| *slope == 0.0)
    );

    let scores = drawn("scores", [1, 1, 3, KEYS], 2.0).require_grad();
    let uniform = DropoutRng::seeded(3)
        .uniform([1, 1, 3, KEYS], &device())
        .unwrap();
    let gumbel = uniform.log().neg().log().neg();
    let soft = masked_softmax((scores.clone() + gumbel) / 0.5, None);
    let all = (soft * drawn("upstream", [1, 1, 3, KEYS], 1.0))
        .sum()
        .backward();
    let relaxed = numbers(&scores.grad(&all).unwrap());
    assert!(close(&slope_of(&normalize(ESTIMATORS[1]), 3), &relaxed));
    assert!(!close(&relaxed, &plain));
}

/// At the lowest temperatures, the relaxed draw equals the draw, and its gradient is 0.
#[test]
fn the_lowest_temperature() {
    let lowest = Estimator::Gumbel {
        temperature: f32::MIN_POSITIVE.into(),
    };
    let normalize = Normalize::HardSample(HardSample::new(lowest));
    assert_eq!(slope_of(&normalize, 3), [0.0; 3 * KEYS]);
    // Divided by the temperature, these are infinite.
    let scores = drawn("scores", [1, 1, 3, KEYS], 2.0) + 100.0;
    let noise = &mut DropoutRng::seeded(3);
    let weights = normalize.forward(scores.clone(), None, &scores, None, Some(noise));
    for row in numbers(&weights.weights).chunks(KEYS) {
        assert_eq!(row.iter().filter(|&&weight| weight == 1.0).count(), 1);
        assert_eq!(row.iter().sum::<f32>(), 1.0);
    }
}

/// Rounded to half precision, some uniform numbers would be 1 (1 in 512 in `bf16`, 1 in 4,096 in `f16`), and their noise
/// infinite.
#[test]
fn draws_in_half_precision() {
    for dtype in [DType::BF16, DType::F16] {
        let scores = Tensor::<4>::zeros([8, 8, 128, KEYS], (&device(), dtype));
        let noise = &mut DropoutRng::seeded(3);
        let normalize = Normalize::HardSample(HardSample::new(ESTIMATORS[1]));
        let drawn = normalize.forward(scores.clone(), None, &scores, None, Some(noise));
        for row in numbers(&drawn.weights).chunks(KEYS) {
            let drawn = row.iter().filter(|&&weight| (weight - 1.0).abs() < 0.01);
            assert!(
                drawn.count() == 1 && row.iter().sum::<f32>() < 1.01,
                "{row:?}"
            );
        }
    }
}

/// Half of the calls use the softmax itself, in all positions of a batch row together.
#[test]
fn softened_readings() {
    let batch = 400;
    let scores = Tensor::<4>::from_floats([[[[0.3, -1.0, 0.8, 1.2]]]], &device());
    let scores = scores.expand([batch, 1, 2, KEYS]);
    let sample = HardSample::new(Estimator::Reinforce { soften: true });
    let weights = sample
        .forward(scores, None, Some(&mut DropoutRng::seeded(2)))
        .weights;
    let is_hard = |row: &[f32]| row.contains(&1.0);
    let mut hard = 0;
    for pair in numbers(&weights).chunks(2 * KEYS) {
        assert_eq!(is_hard(&pair[..KEYS]), is_hard(&pair[KEYS..]));
        hard += usize::from(is_hard(pair));
    }
    assert!(hard.abs_diff(batch / 2) < 40, "{hard}");
}

/// A draw in whose place the softmax was read trains nothing.
#[test]
fn softened_readings_learn_nothing_from_draws() {
    let rows = 64;
    let scores = drawn("scores", [1, 1, 2, KEYS], 2.0);
    let scores = scores.repeat_dim(0, rows).require_grad();
    let sample = HardSample::new(Estimator::Reinforce { soften: true });
    let normalized = sample.forward(scores.clone(), None, Some(&mut DropoutRng::seeded(2)));
    let mut rule = Reinforce {
        entropy: 0.0,
        ..Reinforce::default()
    };
    let rewards = Tensor::<1>::full([rows], -1.0, &device());
    let loss = rule.loss(rewards, &normalized.sampled.unwrap());
    let slope = numbers(&scores.grad(&loss.backward()).unwrap());
    let read = numbers(&normalized.weights);
    let mut hard = 0;
    for (read, slope) in read.chunks(2 * KEYS).zip(slope.chunks(2 * KEYS)) {
        let is_hard = read.contains(&1.0);
        assert_eq!(slope.iter().any(|slope| *slope != 0.0), is_hard);
        hard += usize::from(is_hard);
    }
    assert!(0 < hard && hard < rows);
}

/// Where nothing may be seen, no key is named.
#[test]
fn there_is_nothing_to_draw_from() {
    let padding = Mask::padding(PaddingMask::from_lengths(&[KEYS, 0], KEYS, &device()));
    let (query, key) = (
        Tensor::<4>::ones([2, 1, 1, 1], &device()),
        drawn("key", [2, 1, KEYS, 1], 1.0),
    );
    for estimator in ESTIMATORS {
        for mut noise in [None, Some(DropoutRng::seeded(1))] {
            let mut call = AttentionOptions::default().mask(padding.clone());
            call.noise = noise.as_mut();
            let attended = hard(estimator)
                .forward_with(query.clone(), key.clone(), key.clone(), call)
                .unwrap();
            let keys = attended.sampled.unwrap().keys.into_data();
            let keys: Vec<i64> = keys.iter::<i64>().collect();
            assert!(keys[0] >= 0 && keys[1] == -1, "{estimator:?}: {keys:?}");
        }
    }
}

/// One key is drawn for each of two queries; `log p(y|s)` depends on both draws together, so that nothing
/// factorises. The exact gradient of `E[log p] + λ_e H` by enumeration is compared with the mean of the estimates. Where half of the
/// rows read the softmax in place of the draws, the first term is half as large.
#[test]
fn reinforce_is_unbiased() {
    const QUERIES: usize = 2;
    const ENTROPY: f64 = 0.4;
    let rows = 20_000;
    let scores = [[0.3f64, -0.7, 0.9, 0.1], [1.1, 0.2, -0.4, 0.0]];
    let log_likelihood = |a: usize, b: usize| -1.0 - (a as f64 - 2.0 * b as f64).powi(2) / 5.0;

    let softmax = |row: [f64; KEYS]| {
        let sum: f64 = row.iter().map(|s| s.exp()).sum();
        row.map(|s| s.exp() / sum)
    };
    let p = scores.map(softmax);
    let entropy = |row: [f64; KEYS]| row.iter().map(|p| -p * p.ln()).sum::<f64>();
    let mut of_draws = [[0.0; KEYS]; QUERIES];
    for a in 0..KEYS {
        for b in 0..KEYS {
            let weight = p[0][a] * p[1][b] * log_likelihood(a, b);
            for j in 0..KEYS {
                // ∂ ln p(a) / ∂ s_j = [a = j] - p_j
                of_draws[0][j] += weight * (f64::from(u8::from(a == j)) - p[0][j]);
                of_draws[1][j] += weight * (f64::from(u8::from(b == j)) - p[1][j]);
            }
        }
    }
    let exact = |share: f64| {
        let mut exact = of_draws.map(|row| row.map(|x| share * x));
        for (exact, p) in exact.iter_mut().zip(p) {
            for (exact, p_j) in exact.iter_mut().zip(p) {
                *exact -= ENTROPY * p_j * (p_j.ln() + entropy(p));
            }
        }
        exact
    };

    let flat: Vec<f32> = scores.as_flattened().iter().map(|s| *s as f32).collect();
    let scores = Tensor::<4>::from_data(TensorData::new(flat, [1, 1, QUERIES, KEYS]), &device())
        .repeat_dim(0, rows)
        .require_grad();
    for (soften, baseline) in [(false, 0.0), (false, -1.9), (true, -1.9)] {
        let exact = exact(if soften { 0.5 } else { 1.0 });
        let sample = HardSample::new(Estimator::Reinforce { soften });
        let normalized = sample.forward(scores.clone(), None, Some(&mut DropoutRng::seeded(7)));
        let sampled: Sampled = normalized.sampled.unwrap();
        let keys: Vec<i64> = sampled.keys.clone().into_data().iter::<i64>().collect();
        let observed: Vec<f32> = keys
            .chunks(QUERIES)
            .map(|pair| log_likelihood(pair[0] as usize, pair[1] as usize) as f32)
            .collect();
        let mean = observed.iter().map(|x| f64::from(*x)).sum::<f64>() / rows as f64;
        let mut rule = Reinforce {
            baseline,
            entropy: ENTROPY,
            ..Reinforce::default()
        };
        let observed = Tensor::<1>::from_floats(observed.as_slice(), &device());
        let loss = rule.loss(observed, &sampled);
        assert!((rule.baseline - (0.9 * baseline + 0.1 * mean)).abs() < 1e-5);

        // The loss is the negative mean over rows, so each row's estimate is -rows times its gradient.
        let slope = numbers(&scores.grad(&loss.backward()).unwrap());
        for (place, exact) in exact.as_flattened().iter().enumerate() {
            let estimates = || {
                let of_place = slope.iter().skip(place).step_by(QUERIES * KEYS);
                of_place.map(|slope| -f64::from(*slope) * rows as f64)
            };
            let mean = estimates().sum::<f64>() / rows as f64;
            let squares = estimates().map(|x| (x - mean).powi(2)).sum::<f64>();
            let standard_error = (squares / (rows - 1) as f64 / rows as f64).sqrt();
            assert!(standard_error < 0.03, "{standard_error} would prove little");
            assert!(
                (mean - exact).abs() <= 3.0 * standard_error,
                "place {place}: {mean}, expected {exact} within {standard_error}"
            );
        }
    }
}
