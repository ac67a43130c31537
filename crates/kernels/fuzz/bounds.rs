//! The result by the definition, and how far rounding may lead away from it: row by row, so that it holds for scores of any
//! size.
//!
//! If each score `s_j` is known to within `e_j`, its weight is between
//! `e^{s_j - e_j} / (e^{s_j - e_j} + Σ_{i ≠ j} e^{s_i + e_i})` and the same with opposite signs of all `e`. From there on
//! errors are those of sums: `ε` times the number of terms times the sum of their magnitudes.
//!
//! In exact problems (see [`Magnitudes`]), every computation in `f32` has the same scores. The definition is then evaluated
//! in `f32` and `e_j` is 0: scores of 1e30 are as good a test as scores of 1.

use regard_kernels::{Attention, RelativeBias, View, dot::reference};

use crate::problem::{Magnitudes, Problem, Tensor};

const EPSILON: f64 = f32::EPSILON as f64;
/// Numbers below this may become 0.
const TINY: f64 = 2.0 * f32::MIN_POSITIVE as f64;

/// What a call should give.
pub struct Truth {
    pub output: Vec<f64>,
    pub output_error: Vec<f64>,
    /// `[batch, heads, queries]`
    pub lse: Vec<f64>,
    pub lse_error: Vec<f64>,
    /// `[batch, heads, queries, keys]`
    pub weights: Vec<f64>,
    pub weight_error: Vec<f64>,
    /// How far a score may be from that of the definition.
    score_error: Vec<f64>,
    /// Bounds of the sink's weight, `[batch, heads, queries]`.
    sink: Vec<[f64; 2]>,
    /// Whether `f32` can hold the scores of a row, in any computation.
    pub usable: Vec<bool>,
    pub keys: usize,
    exact: bool,
}

/// Gradients in the order query, key, value, bias, sink, and their bounds.
pub type Gradients = [(Vec<f64>, Vec<f64>); 5];

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

impl Truth {
    pub fn new(problem: &Problem) -> Self {
        let attention = problem.attention();
        let exact = problem.magnitudes == Magnitudes::Exact;
        let shapes = [problem.query.shape, problem.key.shape, problem.value.shape];
        let [q, k, v] = [&problem.query, &problem.key, &problem.value].map(Tensor::contiguous);
        let [query, key, value] = [&q, &k, &v].map(|x| wide(x));
        let (output, lse, scores, weights) = if exact {
            let f = reference::forward(&attention, shapes, &q, &k, &v);
            (
                wide(&f.output),
                wide(&f.lse),
                wide(&f.scores),
                wide(&f.weights),
            )
        } else {
            let f = reference::forward(&attention, shapes, &query, &key, &value);
            (f.output, f.lse, f.scores, f.weights)
        };
        let sizes = &problem.sizes;
        let (keys, dim) = (sizes.keys, sizes.dim as f64);
        let (products, magnitudes) = magnitudes(problem, &query, &key);
        let scale = scale(problem).abs();
        let score_error: Vec<f64> = (magnitudes.iter())
            .map(|magnitude| match exact {
                true => 0.0,
                false => (dim + 8.0) * EPSILON * magnitude + dim * TINY * (scale + 1.0),
            })
            .collect();
        let mut truth = Self {
            output_error: vec![0.0; output.len()],
            lse_error: vec![0.0; lse.len()],
            weight_error: vec![0.0; weights.len()],
            usable: vec![true; lse.len()],
            sink: vec![[0.0; 2]; lse.len()],
            output,
            lse,
            weights,
            score_error,
            keys,
            exact,
        };
        let of_functions = EPSILON * (keys as f64 + 32.0);
        for row in 0..truth.lse.len() {
            let own = row * keys..(row + 1) * keys;
            let fits = |at: usize| {
                let limit = f64::from(f32::MAX) / 4.0;
                let score = scores[at];
                score == f64::NEG_INFINITY
                    || score.is_finite() && products[at] < limit && magnitudes[at] < limit
            };
            truth.usable[row] = own.clone().all(fits) && truth.lse[row] < f64::INFINITY;
            if !truth.usable[row] {
                continue;
            }
            let head = row / sizes.queries.max(1) % sizes.heads;
            let sink = attention.sink.map(|sinks| f64::from(sinks[head]));
            let all = scores[own.clone()]
                .iter()
                .zip(&truth.score_error[own.clone()]);
            let all = all
                .map(|(&score, &error)| (score, error))
                .chain(sink.map(|sink| (sink, 0.0)));
            let intervals = intervals(&all.collect::<Vec<_>>());
            for (j, &[least, most]) in intervals.weights[..keys].iter().enumerate() {
                let weight = truth.weights[own.start + j];
                // A weight of `e^-70` is computed from a score near 70 below the `lse`, which has a rounding of its own.
                let of_logarithm = match weight > 0.0 {
                    true => 2.0 * EPSILON * weight.ln().abs(),
                    false => 0.0,
                };
                truth.weight_error[own.start + j] = (most - weight).max(weight - least).max(0.0)
                    + weight * (of_functions + of_logarithm)
                    + TINY;
                if scores[own.start + j] == f64::NEG_INFINITY {
                    truth.weight_error[own.start + j] = 0.0;
                }
            }
            if let (Some(sink), Some([least, most])) = (sink, intervals.weights.get(keys)) {
                let weight = (sink - truth.lse[row]).exp();
                let error = (most - weight).max(weight - least).max(0.0);
                truth.sink[row] = [weight, error + weight * of_functions + TINY];
            }
            let lse = truth.lse[row];
            if lse > f64::NEG_INFINITY {
                let [least, most] = intervals.lse;
                truth.lse_error[row] = (most - lse).max(lse - least).max(0.0)
                    + 2.0 * of_functions
                    + 4.0 * EPSILON * lse.abs();
            }
        }
        let kept = kept(problem);
        for (row, own) in rows(problem) {
            let output = row * sizes.value_dim;
            for j in 0..keys {
                let (weight, error) = (
                    truth.weights[row * keys + j],
                    truth.weight_error[row * keys + j],
                );
                if error == 0.0 {
                    continue; // hidden
                }
                let error = error + weight * of_functions;
                for c in 0..sizes.value_dim {
                    let value = value[(own + j) * sizes.value_dim + c].abs();
                    truth.output_error[output + c] += kept * (error * value + TINY);
                }
            }
        }
        truth
    }

    /// The gradients for `d_output`, and their bounds; `None` if a score is too large for `f32`. A gradient with an infinite
    /// addend is infinite here.
    pub fn gradients(&self, problem: &Problem, d_output: &Tensor<f32>) -> Option<Gradients> {
        let finite = |tensor: &Tensor<f32>| tensor.data.iter().all(|x| x.is_finite());
        let operands = [&problem.query, &problem.key, &problem.value];
        if !operands.into_iter().all(finite) || self.usable.contains(&false) {
            return None;
        }
        let attention = problem.attention();
        let shapes = operands.map(|tensor| tensor.shape);
        let [q, k, v] = operands.map(Tensor::contiguous);
        let d = d_output.contiguous();
        let [query, key, value, d_wide] = [&q, &k, &v, &d].map(|x| wide(x));
        let all = |d: reference::Backward<f64>| [d.query, d.key, d.value, d.bias, d.sink];
        let mut truth = if self.exact {
            let f = reference::forward(&attention, shapes, &q, &k, &v);
            let d = reference::backward(&attention, shapes, &q, &k, &v, &f.output, &d);
            [d.query, d.key, d.value, d.bias, d.sink].map(|x| wide(&x))
        } else {
            all(reference::backward(
                &attention,
                shapes,
                &query,
                &key,
                &value,
                &self.output,
                &d_wide,
            ))
        };
        let sizes = &problem.sizes;
        let (keys, dim, value_dim) = (self.keys, sizes.dim, sizes.value_dim);
        let (scale, kept) = (scale(problem).abs(), kept(problem));
        let of_value = EPSILON * (value_dim as f64 + 8.0);
        let of_sums = EPSILON * ((sizes.queries * sizes.heads + keys) as f64 + 32.0);
        let mut errors = truth.each_ref().map(|x| vec![TINY; x.len()]);
        let mut addends = truth.each_ref().map(|x| vec![0.0; x.len()]); // summed without their signs
        let bias_shape = attention.bias.map_or([0; 4], |bias| bias.shape);
        for (row, own) in rows(problem) {
            let d = &d_wide[row * value_dim..][..value_dim];
            let output = row * value_dim..(row + 1) * value_dim;
            let of_delta = d
                .iter()
                .zip(&self.output[output.clone()])
                .zip(&self.output_error[output]);
            let (mut delta, mut delta_error) = (0.0, 0.0);
            for ((d, output), error) in of_delta {
                delta += (d * output).abs();
                delta_error += d.abs() * (error + of_value * output.abs());
            }
            let head = row / sizes.queries.max(1) % sizes.heads;
            if attention.sink.is_some() {
                let [weight, error] = self.sink[row];
                errors[4][head] += weight * delta_error + error * (delta + delta_error);
            }
            for j in 0..keys {
                let at = row * keys + j;
                let (weight, error) = (self.weights[at], self.weight_error[at]);
                if error == 0.0 {
                    continue; // hidden
                }
                let v = &value[(own + j) * value_dim..][..value_dim];
                let d_weight: f64 = d.iter().zip(v).map(|(d, v)| (d * v).abs() * kept).sum();
                let difference = d_weight + delta; // of either sign
                let d_score = weight * difference;
                let off = error * (difference + delta_error)
                    + (weight + error) * (delta_error + of_value * d_weight);
                // The slope of a softcap is at most 1, and the derivative of the slope at most 0.77 / cap.
                let slope = attention.softcap.map_or(0.0, |cap| {
                    (8.0 * EPSILON + self.score_error[at] / f64::from(cap)).min(1.0)
                });
                let off_product = off + d_score * (slope + of_sums);
                for c in 0..dim {
                    let (q_at, k_at) = (row * dim + c, (own + j) * dim + c);
                    // In `f32`, the definition rounds the product of a gradient and a small scale to a multiple of the
                    // smallest subnormal.
                    addends[0][q_at] += scale * d_score * key[k_at].abs();
                    addends[1][k_at] += scale * d_score * query[q_at].abs();
                    let [of_query, of_key] =
                        [key[k_at], query[q_at]].map(|x| f64::from(f32::from_bits(1)) * x.abs());
                    errors[0][q_at] +=
                        scale * (off_product * key[k_at].abs() + TINY) + TINY + of_query;
                    errors[1][k_at] += scale * (off_product * query[q_at].abs() + TINY)
                        + of_key
                        + TINY * (1.0 + d_score + off_product);
                }
                for (c, d) in d.iter().enumerate() {
                    errors[2][(own + j) * value_dim + c] +=
                        kept * d.abs() * (error + weight * of_sums) + TINY;
                }
                if attention.bias.is_some() {
                    let place = problem.place(row, j)?;
                    let at = place
                        .iter()
                        .zip(&bias_shape)
                        .fold(0, |at, (&index, &size)| {
                            at * size + if size == 1 { 0 } else { index }
                        });
                    errors[3][at] += off + d_score * of_sums;
                }
            }
        }
        for (x, addends) in truth.iter_mut().zip(&addends) {
            for (x, &addends) in x.iter_mut().zip(addends) {
                if addends > f64::from(f32::MAX) / 4.0 {
                    *x = f64::INFINITY;
                }
            }
        }
        let mut errors = errors.into_iter();
        Some(truth.map(|truth| (truth, errors.next().unwrap_or_default())))
    }
}

/// Bounds of weights and `lse`, where scores are known to within their errors.
struct Intervals {
    weights: Vec<[f64; 2]>,
    lse: [f64; 2],
}

fn intervals(scores: &[(f64, f64)]) -> Intervals {
    let ends = |sign: f64| {
        scores
            .iter()
            .map(|(s, e)| s + sign * e)
            .collect::<Vec<f64>>()
    };
    let (low, high) = (ends(-1.0), ends(1.0));
    let ((of_low, low_others), (of_high, high_others)) = (log_sums(&low), log_sums(&high));
    // e^own / (e^own + e^others), from the difference of the two: relative to a common base, all powers may be 0.
    let fraction = |own: f64, others: f64| match own == f64::NEG_INFINITY {
        true => 0.0,
        false => 1.0 / (1.0 + (others - own).exp()),
    };
    let weight = |j: usize| {
        [
            fraction(low[j], high_others[j]),
            fraction(high[j], low_others[j]),
        ]
    };
    Intervals {
        weights: (0..scores.len()).map(weight).collect(),
        lse: [of_low, of_high],
    }
}

/// `ln Σ_i e^{x_i}`, and the same without each of the numbers.
fn log_sums(x: &[f64]) -> (f64, Vec<f64>) {
    let add = |a: f64, b: f64| {
        let (most, least) = (a.max(b), a.min(b));
        match least == f64::NEG_INFINITY {
            true => most,
            false => most + (least - most).exp().ln_1p(),
        }
    };
    let mut others = vec![f64::NEG_INFINITY; x.len()];
    let mut before = f64::NEG_INFINITY;
    for (others, &x) in others.iter_mut().zip(x) {
        *others = before;
        before = add(before, x);
    }
    let mut after = f64::NEG_INFINITY;
    for (others, &x) in others.iter_mut().zip(x).rev() {
        *others = add(*others, after);
        after = add(after, x);
    }
    (before, others)
}

/// `Σ |q| |k|` and `scale · Σ |q| |k| + |bias| + |slope · distance|` of every score.
fn magnitudes(problem: &Problem, query: &[f64], key: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let abs = |x: &[f64]| x.iter().map(|x| x.abs()).collect::<Vec<f64>>();
    let (query, key) = (abs(query), abs(key));
    let finite = |x: &f32| if x.is_finite() { x.abs() } else { 0.0 };
    let bias = problem
        .bias
        .as_ref()
        .map(|bias| bias.data.iter().map(finite).collect::<Vec<f32>>());
    let slopes = (problem.alibi.as_ref())
        .map(|slopes| slopes.iter().map(|x| -x.abs()).collect::<Vec<f32>>());
    let relative = (problem.relative.as_ref())
        .map(|(values, _)| values.iter().map(|x| x.abs()).collect::<Vec<f32>>());
    let attention = problem.attention();
    let attention = Attention {
        relative: attention
            .relative
            .zip(relative.as_ref())
            .map(|(all, values)| RelativeBias { values, ..all }),
        scale: Some(scale(problem).abs() as f32),
        softcap: None,
        bias: attention
            .bias
            .zip(bias.as_ref())
            .map(|(view, bias)| View { data: bias, ..view }),
        alibi: slopes.as_deref(),
        ..attention
    };
    let shapes = [problem.query.shape, problem.key.shape, problem.value.shape];
    let value = vec![0.0f64; shapes[2].iter().product()];
    let plain = Attention {
        scale: Some(1.0),
        bias: None,
        relative: None,
        alibi: None,
        ..attention
    };
    let [products, scores] = [plain, attention]
        .map(|attention| reference::forward(&attention, shapes, &query, &key, &value).scores);
    (products, scores)
}

pub fn scale(problem: &Problem) -> f64 {
    let scale = problem
        .scale
        .unwrap_or((1.0 / (problem.sizes.dim as f64).sqrt()) as f32);
    scale.into()
}

/// The factor by which dropout multiplies the weights that it keeps.
fn kept(problem: &Problem) -> f64 {
    let kept = |dropout: regard_kernels::Dropout| 1.0 / (1.0 - f64::from(dropout.probability));
    problem.dropout.map_or(1.0, kept)
}

/// Every row of `[batch, heads, queries]`, and the first row of its keys in `[batch, key_heads, keys]`.
fn rows(problem: &Problem) -> impl Iterator<Item = (usize, usize)> + use<> {
    let sizes = problem.sizes;
    let rows = sizes.batch() * sizes.heads * sizes.queries;
    (0..rows).map(move |row| {
        let plane = row / sizes.queries;
        let (batch, head) = (plane / sizes.heads, plane % sizes.heads);
        let key_head = head / (sizes.heads / sizes.key_heads);
        (row, (batch * sizes.key_heads + key_head) * sizes.keys)
    })
}
