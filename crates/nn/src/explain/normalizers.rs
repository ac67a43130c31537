//! Normalisers by their definitions, in `f64`, with the steps that a person would write down.

use super::{
    Example, Normalizer, Quantity, Scorer, Step,
    table::{Names, number},
};

type Matrix = Vec<Vec<f64>>;

/// Weights `[queries][keys]` of scores; what is not seen gets 0, and so does a row that sees nothing. The example
/// has passed its checks.
pub(super) fn normalize(
    example: &Example,
    names: &Names,
    scores: &[Vec<f64>],
    seen: Option<&[Vec<bool>]>,
    steps: &mut Vec<Step>,
) -> Matrix {
    let parameters = &example.parameters;
    let keys = example.keys.len();
    let rows = rows(scores, seen);
    let each = |weights: fn(&Row<'_>) -> Vec<f64>| -> Matrix { rows.iter().map(weights).collect() };
    let mut push = |name: &str, formula: String, rows: &Matrix| {
        let quantity = match name {
            "exponentials" => Quantity::Between,
            _ => Quantity::Weights,
        };
        steps.push(Step::new(name, formula, names.pairs(rows)).of(quantity));
    };
    match example.normalizer {
        Normalizer::Softmax => {
            let exponentials = each(|row| row.exponentials(f64::NEG_INFINITY));
            push("exponentials", "e^{s_i - max s}".to_owned(), &exponentials);
            let weights = divided(&exponentials, |_| 0.0);
            push(
                "weights",
                "α_i = e^{s_i} / Σ_j e^{s_j}".to_owned(),
                &weights,
            );
            weights
        }
        Normalizer::Sink => {
            let sink = parameters.sink.unwrap_or(0.0);
            let exponentials: Matrix = rows.iter().map(|row| row.exponentials(sink)).collect();
            push(
                "exponentials",
                "e^{s_i - max(s, sink)}".to_owned(),
                &exponentials,
            );
            let weights = divided(&exponentials, |row| (sink - rows[row].maximum(sink)).exp());
            let formula = format!(
                "α_i = e^{{s_i}} / (e^{{sink}} + Σ_j e^{{s_j}}), sink = {}",
                number(sink)
            );
            let sinks: Vec<f64> = weights
                .iter()
                .map(|row| 1.0 - row.iter().sum::<f64>())
                .collect();
            let table = names.pairs_and(&weights, "sink", &sinks);
            steps.push(Step::new("weights", formula, table).of(Quantity::Weights));
            weights
        }
        Normalizer::Sparsemax | Normalizer::Entmax15 => {
            let is_sparsemax = example.normalizer == Normalizer::Sparsemax;
            let threshold = if is_sparsemax {
                sparsemax_threshold
            } else {
                entmax_threshold
            };
            let thresholds: Vec<f64> = rows.iter().map(|row| threshold(&row.visible())).collect();
            let formula = match is_sparsemax {
                true => "τ such that Σ_i max(s_i - τ, 0) = 1",
                false => "τ such that Σ_i max(s_i/2 - τ, 0)² = 1",
            };
            let table = names.each_query("τ", &thresholds);
            let weights: Matrix = rows
                .iter()
                .zip(&thresholds)
                .map(|(row, threshold)| {
                    row.weights(|s| match is_sparsemax {
                        true => (s - threshold).max(0.0),
                        false => (s / 2.0 - threshold).max(0.0).powi(2),
                    })
                })
                .collect();
            steps.push(Step::new("threshold", formula, table));
            let formula = example.normalizer.formula();
            steps.push(Step::new("weights", formula, names.pairs(&weights)).of(Quantity::Weights));
            weights
        }
        Normalizer::Sigmoid => {
            let bias = parameters.sigmoid_bias.unwrap_or(-(keys as f64).ln());
            let weights: Matrix = rows
                .iter()
                .map(|row| row.weights(|s| sigmoid(s + bias)))
                .collect();
            push(
                "weights",
                match parameters.sigmoid_bias {
                    Some(_) => format!("α_i = σ(s_i + b), b = {}", number(bias)),
                    None => format!("α_i = σ(s_i + b), b = -ln({keys} keys) = {}", number(bias)),
                },
                &weights,
            );
            weights
        }
        Normalizer::Hardmax => {
            let weights = each(|row| row.one_hot(row.best()));
            push("weights", "α = one-hot(argmax s)".to_owned(), &weights);
            weights
        }
        Normalizer::HardSample => {
            let draw = parameters.draw.unwrap_or(0.5);
            let probabilities = divided(&each(|row| row.exponentials(f64::NEG_INFINITY)), |_| 0.0);
            push("probabilities", "π = softmax(s)".to_owned(), &probabilities);
            let weights: Matrix = rows
                .iter()
                .zip(&probabilities)
                .map(|(row, probabilities)| row.one_hot(drawn(probabilities, draw)))
                .collect();
            let formula = format!(
                "α = one-hot(i), i the first with π_1 + .. + π_i > u, u = {}",
                number(draw)
            );
            push("weights", formula, &weights);
            weights
        }
        Normalizer::Monotonic => {
            let stops: Matrix = rows.iter().map(|row| row.weights(sigmoid)).collect();
            push("stopping probabilities", "p_i = σ(s_i)".to_owned(), &stops);
            let mut before = first(example);
            let mut weights = Vec::new();
            for stops in &stops {
                before = monotonic(stops, &before);
                weights.push(before.clone());
            }
            let total: f64 = first(example).iter().sum();
            let passed: Vec<f64> = weights
                .iter()
                .map(|row| total - row.iter().sum::<f64>())
                .collect();
            let formula = "α_i = p_i r_i, r_i = (1 - p_{i-1}) r_{i-1} + α_{t-1,i}; r_i: it comes to key i, none: it \
                           passes all keys"
                .to_owned();
            let table = names.pairs_and(&weights, "none", &passed);
            steps.push(Step::new("weights", formula, table).of(Quantity::Weights));
            weights
        }
        Normalizer::Addressing => {
            let content = divided(&each(|row| row.exponentials(f64::NEG_INFINITY)), |_| 0.0);
            push("content", "w_c = softmax(s)".to_owned(), &content);
            let (gate, sharpening) = (
                parameters.gate.unwrap_or(1.0),
                parameters.sharpening.unwrap_or(1.0),
            );
            let shift = parameters.shift.clone().unwrap_or_else(|| vec![1.0]);
            let mut before = first(example);
            let [mut mixed_rows, mut shifted_rows, mut weights] = <[Matrix; 3]>::default();
            for (content, row) in content.iter().zip(&rows) {
                let mix = |(c, b): (&f64, &f64)| gate * c + (1.0 - gate) * b;
                let mixed: Vec<f64> = content.iter().zip(&before).map(mix).collect();
                let shifted = row.hide(shifted(&mixed, &shift));
                before = sharpened(&shifted, sharpening);
                mixed_rows.push(mixed);
                shifted_rows.push(shifted);
                weights.push(before.clone());
            }
            push(
                "interpolated",
                format!("w_g = g w_c + (1 - g) w_{{t-1}}, g = {}", number(gate)),
                &mixed_rows,
            );
            push(
                "shifted",
                "w̃_i = Σ_j w_g(j) shift(i - j mod N)".to_owned(),
                &shifted_rows,
            );
            let formula = format!("α_i = w̃_i^γ / Σ_j w̃_j^γ, γ = {}", number(sharpening));
            push("weights", formula, &weights);
            weights
        }
        Normalizer::Identity => {
            let weights = each(|row| row.weights(|s| s));
            let formula = match example.scorer {
                Scorer::GaussianWindow if parameters.softcap.is_none() => "α_i = φ_i",
                _ => "α_i = s_i",
            };
            push("weights", formula.to_owned(), &weights);
            weights
        }
    }
}

fn rows<'a>(scores: &'a [Vec<f64>], seen: Option<&'a [Vec<bool>]>) -> Vec<Row<'a>> {
    let rows = scores.iter().enumerate();
    rows.map(|(query, scores)| Row {
        scores,
        seen: seen.map(|seen| seen[query].as_slice()),
    })
    .collect()
}

/// The scores at and below which the weights of sparsemax and 1.5-entmax are 0.
pub(super) fn thresholds(
    example: &Example,
    scores: &[Vec<f64>],
    seen: Option<&[Vec<bool>]>,
) -> Option<Vec<f64>> {
    let threshold: fn(&[f64]) -> f64 = match example.normalizer {
        Normalizer::Sparsemax => sparsemax_threshold,
        Normalizer::Entmax15 => |scores| 2.0 * entmax_threshold(scores),
        _ => return None,
    };
    let rows = rows(scores, seen);
    Some(rows.iter().map(|row| threshold(&row.visible())).collect())
}

/// The scores of one query, and which of them count.
struct Row<'a> {
    scores: &'a [f64],
    seen: Option<&'a [bool]>,
}

impl Row<'_> {
    fn sees(&self, key: usize) -> bool {
        self.seen.is_none_or(|seen| seen[key])
    }

    fn visible(&self) -> Vec<f64> {
        let keys = (0..self.scores.len()).filter(|&key| self.sees(key));
        keys.map(|key| self.scores[key]).collect()
    }

    fn weights(&self, weight: impl Fn(f64) -> f64) -> Vec<f64> {
        let keys = 0..self.scores.len();
        keys.map(|key| {
            if self.sees(key) {
                weight(self.scores[key])
            } else {
                0.0
            }
        })
        .collect()
    }

    fn hide(&self, mut weights: Vec<f64>) -> Vec<f64> {
        for (key, weight) in weights.iter_mut().enumerate() {
            if !self.sees(key) {
                *weight = 0.0;
            }
        }
        weights
    }

    fn maximum(&self, at_least: f64) -> f64 {
        self.visible().into_iter().fold(at_least, f64::max)
    }

    /// `e^{s_i - max}`; the largest of `at_least` and the visible scores is taken off.
    fn exponentials(&self, at_least: f64) -> Vec<f64> {
        let maximum = self.maximum(at_least);
        self.weights(|s| (s - maximum).exp())
    }

    /// The first of the best keys, if any is seen.
    fn best(&self) -> Option<usize> {
        (0..self.scores.len())
            .filter(|&key| self.sees(key))
            .reduce(|best, key| match self.scores[key] > self.scores[best] {
                true => key,
                false => best,
            })
    }

    fn one_hot(&self, chosen: Option<usize>) -> Vec<f64> {
        let keys = 0..self.scores.len();
        keys.map(|key| f64::from(u8::from(Some(key) == chosen)))
            .collect()
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Each row by its sum and what `beside` adds to it; a row of zeros stays zeros.
fn divided(rows: &[Vec<f64>], beside: impl Fn(usize) -> f64) -> Matrix {
    rows.iter()
        .enumerate()
        .map(|(index, row)| {
            let total = row.iter().sum::<f64>() + beside(index);
            row.iter()
                .map(|x| if total > 0.0 { x / total } else { 0.0 })
                .collect()
        })
        .collect()
}

fn descending(scores: &[f64]) -> Vec<f64> {
    let mut sorted = scores.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted
}

/// Martins & Astudillo 2016, algorithm 1.
fn sparsemax_threshold(scores: &[f64]) -> f64 {
    let (mut sum, mut threshold) = (0.0, 0.0);
    for (index, score) in descending(scores).into_iter().enumerate() {
        let count = (index + 1) as f64;
        sum += score;
        if 1.0 + count * score > sum {
            threshold = (sum - 1.0) / count;
        }
    }
    threshold
}

/// Peters 2019, algorithm 2, over half the scores, lowered so that squares do not cancel.
fn entmax_threshold(scores: &[f64]) -> f64 {
    let sorted = descending(scores);
    let Some(&maximum) = sorted.first() else {
        return 0.0;
    };
    let (mut sum, mut squares, mut threshold) = (0.0, 0.0, 0.0);
    for (index, score) in sorted.into_iter().enumerate() {
        let count = (index + 1) as f64;
        let half = (score - maximum) / 2.0;
        sum += half;
        squares += half * half;
        let mean = sum / count;
        let rest = (1.0 - (squares - count * mean * mean)) / count;
        let candidate = mean - rest.max(0.0).sqrt();
        if candidate <= half {
            threshold = candidate;
        }
    }
    threshold + maximum / 2.0
}

/// The first key at which the probabilities add up to more than `draw`; the last likely one for a draw of
/// nearly 1; nothing where nothing is likely.
fn drawn(probabilities: &[f64], draw: f64) -> Option<usize> {
    let mut sum = 0.0;
    let mut last = None;
    for (key, &probability) in probabilities.iter().enumerate() {
        sum += probability;
        if probability > 0.0 {
            last = Some(key);
        }
        if sum > draw {
            return Some(key);
        }
    }
    last
}

/// The weights before the first query: all on the first key, unless given.
fn first(example: &Example) -> Vec<f64> {
    match &example.parameters.previous {
        Some(previous) => previous.clone(),
        None => (0..example.keys.len())
            .map(|key| f64::from(u8::from(key == 0)))
            .collect(),
    }
}

/// Raffel 2017, equation 8, key by key.
fn monotonic(stops: &[f64], before: &[f64]) -> Vec<f64> {
    let mut passed = 0.0;
    stops
        .iter()
        .zip(before)
        .map(|(stop, arriving)| {
            let here = passed + arriving;
            passed = (1.0 - stop) * here;
            stop * here
        })
        .collect()
}

/// Graves 2014, equation 8: shifts `-R ..= R` around the circle.
fn shifted(weights: &[f64], shift: &[f64]) -> Vec<f64> {
    let (keys, range) = (weights.len() as isize, (shift.len() / 2) as isize);
    let at =
        |key: isize, by: usize| weights[(key - (by as isize - range)).rem_euclid(keys) as usize];
    (0..keys)
        .map(|key| {
            shift
                .iter()
                .enumerate()
                .map(|(by, share)| share * at(key, by))
                .sum()
        })
        .collect()
}

fn sharpened(weights: &[f64], sharpening: f64) -> Vec<f64> {
    let powers: Vec<f64> = weights
        .iter()
        .map(|w| if *w > 0.0 { w.powf(sharpening) } else { 0.0 })
        .collect();
    let sum: f64 = powers.iter().sum();
    powers
        .iter()
        .map(|p| if sum > 0.0 { p / sum } else { 0.0 })
        .collect()
}
