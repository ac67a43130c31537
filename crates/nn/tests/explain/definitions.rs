//! The definition of every mechanism, in `f64` and in plain loops: the modules that `explain` reads are compared with it.

use regard_nn::{
    explain::{Example, Normalizer, Scorer},
    mask::Locality,
};

type Matrix = Vec<Vec<f64>>;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `W x` for every vector; without a matrix, the vectors themselves.
fn apply(weight: &Option<Matrix>, vectors: &Matrix) -> Matrix {
    match weight {
        None => vectors.clone(),
        Some(weight) => vectors
            .iter()
            .map(|x| weight.iter().map(|row| dot(row, x)).collect())
            .collect(),
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Scores after the softcap, `[queries][keys]`.
pub fn scores(example: &Example) -> Matrix {
    let p = &example.parameters;
    let size = example.queries[0].len() as f64;
    let scale = p.scale.unwrap_or(1.0 / size.sqrt());
    let gain = p.gain.unwrap_or(1.0);
    let of_queries = apply(&p.query_weight, &example.queries);
    let hidden = of_queries[0].len();
    let vector = p.vector.clone().unwrap_or_else(|| vec![1.0; hidden]);
    let bias = p.bias.clone().unwrap_or_else(|| vec![0.0; hidden]);
    let length = |x: &[f64]| dot(x, x).sqrt();
    let additive = |query: usize, key: &Vec<f64>| -> f64 {
        let key = &apply(&p.key_weight, &vec![key.clone()])[0];
        let tanh = |i: usize| (of_queries[query][i] + key[i] + bias[i]).tanh();
        (0..hidden).map(|i| vector[i] * tanh(i)).sum()
    };
    let general =
        |q: &[f64], key: &Vec<f64>| dot(q, &apply(&p.query_weight, &vec![key.clone()])[0]);
    let components = example.queries[0].len() / 3;
    let mut centres = vec![0.0; components];
    let mut row = |(t, q): (usize, &Vec<f64>)| -> Vec<f64> {
        for (m, centre) in centres.iter_mut().enumerate() {
            *centre += q[2 * components + m].exp();
        }
        let score = |(i, k): (usize, &Vec<f64>)| match example.scorer {
            Scorer::Dot => dot(q, k),
            Scorer::ScaledDot => scale * dot(q, k),
            Scorer::General => general(q, k),
            Scorer::ScaledGeneral => gain * general(q, k),
            Scorer::Additive => additive(t, k),
            Scorer::WeightNormAdditive => gain * additive(t, k) / length(&vector),
            Scorer::Cosine => p.beta.unwrap_or(1.0) * dot(q, k) / (length(q) * length(k)),
            Scorer::Distance => {
                let squares = q.iter().zip(k).map(|(q, k)| (q - k).powi(2));
                -scale * squares.sum::<f64>()
            }
            Scorer::Location => of_queries[t][i],
            Scorer::GaussianWindow => (0..components)
                .map(|m| {
                    let (height, sharpness) = (q[m].exp(), q[components + m].exp());
                    height * (-sharpness * (centres[m] - i as f64).powi(2)).exp()
                })
                .sum(),
        };
        let capped = |s: f64| p.softcap.map_or(s, |c| c * (s / c).tanh());
        let scores = example.keys.iter().enumerate().map(score);
        scores.map(capped).collect()
    };
    example.queries.iter().enumerate().map(&mut row).collect()
}

/// Weights of `scores` where a key is `seen`, local-p's Gaussian included.
pub fn weights(example: &Example, scores: &Matrix, seen: &[Vec<bool>]) -> Matrix {
    let p = &example.parameters;
    let keys = example.keys.len();
    let mut before = p.previous.clone().unwrap_or_else(|| {
        let start = seen
            .first()
            .and_then(|row| row.iter().position(|&seen| seen));
        let first = |i: usize| f64::from(u8::from(i == start.unwrap_or(0)));
        (0..keys).map(first).collect()
    });
    let mut rows = Vec::new();
    for ((t, scores), seen) in scores.iter().enumerate().zip(seen) {
        let visible: Vec<f64> = (0..keys).filter(|&i| seen[i]).map(|i| scores[i]).collect();
        let each = |weight: &dyn Fn(f64) -> f64| -> Vec<f64> {
            let weight = |i: usize| if seen[i] { weight(scores[i]) } else { 0.0 };
            (0..keys).map(weight).collect()
        };
        let maximum = visible.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = visible.iter().map(|s| (s - maximum).exp()).sum();
        let softmax = each(&|s| (s - maximum).exp() / sum);
        let one_hot = |key: Option<usize>| -> Vec<f64> {
            let weight = |i: usize| f64::from(u8::from(Some(i) == key));
            (0..keys).map(weight).collect()
        };
        let mut row = match example.normalizer {
            Normalizer::Softmax => softmax,
            Normalizer::Sink => {
                let sink = (p.sink.unwrap_or(0.0) - maximum).exp();
                each(&|s| (s - maximum).exp() / (sum + sink))
            }
            Normalizer::Sparsemax => {
                let threshold = bisect(&visible, |s, t| (s - t).max(0.0));
                each(&|s| (s - threshold).max(0.0))
            }
            Normalizer::Entmax15 => {
                let threshold = bisect(&visible, |s, t| ((s - t) / 2.0).max(0.0).powi(2));
                each(&|s| ((s - threshold) / 2.0).max(0.0).powi(2))
            }
            Normalizer::Sigmoid => {
                let bias = p.sigmoid_bias.unwrap_or(-(visible.len() as f64).ln());
                each(&|s| sigmoid(s + bias))
            }
            Normalizer::Hardmax => one_hot((0..keys).find(|&i| seen[i] && scores[i] == maximum)),
            Normalizer::HardSample => {
                let draw = p.draw.unwrap_or(0.5);
                let sum_to = |i: usize| softmax[..=i].iter().sum::<f64>();
                one_hot((0..keys).find(|&i| sum_to(i) > draw))
            }
            Normalizer::Monotonic => {
                let stops = each(&sigmoid);
                let mut passed = 0.0;
                let weight = |i: usize| {
                    let here = passed + before[i];
                    passed = (1.0 - stops[i]) * here;
                    stops[i] * here
                };
                (0..keys).map(weight).collect()
            }
            Normalizer::Addressing => {
                let gate = p.gate.unwrap_or(1.0);
                let shift = p.shift.clone().unwrap_or_else(|| vec![1.0]);
                let sharpening = p.sharpening.unwrap_or(1.0);
                let mixed = |i: usize| gate * softmax[i] + (1.0 - gate) * before[i];
                let range = shift.len() as isize / 2;
                let circle: Vec<usize> = (0..keys).filter(|&i| seen[i]).collect();
                let shifted = |i: usize| -> f64 {
                    let rank = circle.iter().position(|&key| key == i).unwrap() as isize;
                    let from =
                        |by: isize| circle[(rank - by).rem_euclid(circle.len() as isize) as usize];
                    let parts = shift.iter().zip(-range..);
                    parts.map(|(share, by)| share * mixed(from(by))).sum()
                };
                let power = |i: usize| {
                    if seen[i] {
                        shifted(i).powf(sharpening)
                    } else {
                        0.0
                    }
                };
                let powers: Vec<f64> = (0..keys).map(power).collect();
                let sum: f64 = powers.iter().sum();
                powers
                    .iter()
                    .map(|x| if sum > 0.0 { x / sum } else { 0.0 })
                    .collect()
            }
            Normalizer::Identity => each(&|s| s),
        };
        before.clone_from(&row);
        if let Locality::Predictive { half_width } = example.locality {
            let hidden = &apply(&p.position_weight, &example.queries)[t];
            let ones = vec![1.0; hidden.len()];
            let vector = p.position_vector.as_ref().unwrap_or(&ones);
            let hidden: Vec<f64> = hidden.iter().map(|x| x.tanh()).collect();
            let centre = keys as f64 * sigmoid(dot(&hidden, vector));
            let deviation = half_width as f64 / 2.0;
            for (i, weight) in row.iter_mut().enumerate() {
                *weight *= (-0.5 * ((i as f64 - centre) / deviation).powi(2)).exp();
            }
        }
        rows.push(row);
    }
    rows
}

/// The `t` at which the weights of the scores sum to 1.
fn bisect(scores: &[f64], weight: impl Fn(f64, f64) -> f64) -> f64 {
    let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut low, mut high) = (maximum - 2.0, maximum);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        match scores.iter().map(|&s| weight(s, middle)).sum::<f64>() > 1.0 {
            true => low = middle,
            false => high = middle,
        }
    }
    (low + high) / 2.0
}
