//! The definition of every kernel: plain loops, one number after the other.
//!
//! Generic over [`Real`]: in `f64` these are what the kernels are tested against; in `f32` they are
//! the naive computation, whose error sets the bound for the kernels' errors. They are not fast,
//! check nothing beyond the slices' bounds, and panic where a slice is too short.
//!
//! ```
//! use regard_kernels::reference;
//! let weights = reference::softmax(&[2.0f64, 1.0, 0.1]);
//! assert!((weights[0] - 0.65900114).abs() < 1e-8);
//! ```

mod norm;

use std::ops::{Add, Div, Mul, Sub};

pub use norm::{NormRow, norm};

use crate::additive::Shape;

/// A floating-point number: `f32` or `f64`.
pub trait Real:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
{
    /// The nearest number to `x`.
    fn of(x: f64) -> Self;
    /// The same number in double precision.
    fn to_f64(self) -> f64;
    /// `e^x`
    fn exp(self) -> Self;
    /// `ln x`
    fn ln(self) -> Self;
    /// `tanh x`
    fn tanh(self) -> Self;
    /// `√x`
    fn sqrt(self) -> Self;
}

macro_rules! real {
    ($float:ty) => {
        impl Real for $float {
            fn of(x: f64) -> Self {
                x as $float
            }
            fn to_f64(self) -> f64 {
                self as f64
            }
            fn exp(self) -> Self {
                self.exp()
            }
            fn ln(self) -> Self {
                self.ln()
            }
            fn tanh(self) -> Self {
                self.tanh()
            }
            fn sqrt(self) -> Self {
                self.sqrt()
            }
        }
    };
}
real!(f32);
real!(f64);

/// `1 / (1 + e^{-x})`
pub fn sigmoid<T: Real>(x: T) -> T {
    T::of(1.0) / (T::of(1.0) + (T::of(0.0) - x).exp())
}

/// Softmax of a row; zeros if every score is `-∞` or there is none.
pub fn softmax<T: Real>(scores: &[T]) -> Vec<T> {
    let lowest = T::of(f64::NEG_INFINITY);
    let largest = scores
        .iter()
        .fold(lowest, |m, &x| if x > m { x } else { m });
    if largest == lowest {
        return vec![T::of(0.0); scores.len()];
    }
    let powers: Vec<T> = scores.iter().map(|&x| (x - largest).exp()).collect();
    let total = powers.iter().fold(T::of(0.0), |sum, &x| sum + x);
    powers.iter().map(|&x| x / total).collect()
}

/// The inputs of additive attention, `kept(row, key)` telling what may be seen.
pub struct Additive<'a, T> {
    /// Sizes.
    pub shape: Shape,
    /// `[batch, queries, dim]`
    pub query: &'a [T],
    /// `[batch, keys, dim]`
    pub key: &'a [T],
    /// `[dim]`, or `[heads, dim]` with the head the inner part of the batch.
    pub v: &'a [T],
    /// `[batch, keys, value_dim]`
    pub value: &'a [T],
    /// Whether batch row `row` may see key `key`.
    pub kept: &'a dyn Fn(usize, usize) -> bool,
    /// `[batch, queries, keys]`
    pub bias: Option<&'a [T]>,
}

/// Gradients of additive attention, each in the shape of its input.
pub struct AdditiveGradients<T> {
    /// `[batch, queries, dim]`
    pub query: Vec<T>,
    /// `[batch, keys, dim]`
    pub key: Vec<T>,
    /// `[dim]` or `[heads, dim]`, as `v`.
    pub v: Vec<T>,
    /// `[batch, keys, value_dim]`
    pub value: Vec<T>,
    /// `[batch, queries, keys]`
    pub bias: Vec<T>,
}

impl<T: Real> Additive<'_, T> {
    fn tanh(&self, b: usize, i: usize, j: usize, d: usize) -> T {
        let Shape {
            queries, keys, dim, ..
        } = self.shape;
        (self.query[(b * queries + i) * dim + d] + self.key[(b * keys + j) * dim + d]).tanh()
    }

    /// Where the score vector of batch row `b` starts.
    fn v_at(&self, b: usize) -> usize {
        let dim = self.shape.dim;
        b % self.v.len().checked_div(dim).unwrap_or(1).max(1) * dim
    }

    /// The scores of query `i` of batch row `b` against the kept keys.
    fn scores(&self, b: usize, i: usize, kept: &[usize]) -> Vec<T> {
        let Shape {
            queries, keys, dim, ..
        } = self.shape;
        let (zero, v) = (T::of(0.0), &self.v[self.v_at(b)..]);
        let score = |&j: &usize| {
            let score = (0..dim).fold(zero, |sum, d| sum + v[d] * self.tanh(b, i, j, d));
            let at = (b * queries + i) * keys + j;
            self.bias.map_or(score, |bias| score + bias[at])
        };
        kept.iter().map(score).collect()
    }

    /// `ln Σ e^score` of every query, `-∞` where nothing is kept: `[batch, queries]`.
    pub fn lse(&self) -> Vec<T> {
        let mut all = Vec::new();
        for b in 0..self.shape.batch {
            let kept: Vec<usize> = (0..self.shape.keys)
                .filter(|&j| (self.kept)(b, j))
                .collect();
            for i in 0..self.shape.queries {
                let scores = self.scores(b, i, &kept);
                let lowest = T::of(f64::NEG_INFINITY);
                let largest = scores
                    .iter()
                    .fold(lowest, |m, &x| if x > m { x } else { m });
                let total = scores
                    .iter()
                    .fold(T::of(0.0), |sum, &x| sum + (x - largest).exp());
                all.push(if largest > lowest {
                    largest + total.ln()
                } else {
                    lowest
                });
            }
        }
        all
    }

    /// `(context, weights)` as [`crate::additive`] defines them.
    pub fn forward(&self) -> (Vec<T>, Vec<T>) {
        let Shape {
            batch,
            queries,
            keys,
            value_dim,
            ..
        } = self.shape;
        let zero = T::of(0.0);
        let mut context = vec![zero; batch * queries * value_dim];
        let mut weights = vec![zero; batch * queries * keys];
        for b in 0..batch {
            let kept: Vec<usize> = (0..keys).filter(|&j| (self.kept)(b, j)).collect();
            for i in 0..queries {
                let at = b * queries + i;
                let scores = self.scores(b, i, &kept);
                for (weight, &j) in softmax(&scores).into_iter().zip(&kept) {
                    weights[at * keys + j] = weight;
                    for e in 0..value_dim {
                        let c = &mut context[at * value_dim + e];
                        *c = *c + weight * self.value[(b * keys + j) * value_dim + e];
                    }
                }
            }
        }
        (context, weights)
    }

    /// All gradients, from those of the context and of the weights.
    pub fn backward(&self, d_context: &[T], d_weights: Option<&[T]>) -> AdditiveGradients<T> {
        let Shape {
            batch,
            queries,
            keys,
            dim,
            value_dim,
        } = self.shape;
        let zero = T::of(0.0);
        let (_, weights) = self.forward();
        let mut gradients = AdditiveGradients {
            query: vec![zero; batch * queries * dim],
            key: vec![zero; batch * keys * dim],
            v: vec![zero; self.v.len()],
            value: vec![zero; batch * keys * value_dim],
            bias: vec![zero; batch * queries * keys],
        };
        for b in 0..batch {
            let kept: Vec<usize> = (0..keys).filter(|&j| (self.kept)(b, j)).collect();
            for i in 0..queries {
                let at = b * queries + i;
                let mut d_weight = vec![zero; keys];
                let mut expected = zero;
                for &j in &kept {
                    let weight = weights[at * keys + j];
                    d_weight[j] = d_weights.map_or(zero, |d| d[at * keys + j]);
                    for e in 0..value_dim {
                        let from = (b * keys + j) * value_dim + e;
                        let d = d_context[at * value_dim + e];
                        d_weight[j] = d_weight[j] + d * self.value[from];
                        gradients.value[from] = gradients.value[from] + weight * d;
                    }
                    expected = expected + weight * d_weight[j];
                }
                for &j in &kept {
                    let d_score = weights[at * keys + j] * (d_weight[j] - expected);
                    gradients.bias[at * keys + j] = d_score;
                    for d in 0..dim {
                        let t = self.tanh(b, i, j, d);
                        let v = self.v_at(b) + d;
                        let slope = d_score * self.v[v] * (T::of(1.0) - t * t);
                        gradients.v[v] = gradients.v[v] + d_score * t;
                        let q = &mut gradients.query[at * dim + d];
                        *q = *q + slope;
                        let k = &mut gradients.key[(b * keys + j) * dim + d];
                        *k = *k + slope;
                    }
                }
            }
        }
        gradients
    }
}

/// One GRU unit with the reset before the recurrent product, first half: `(z, r, r s)` from the
/// pre-activations of the two gates and the state.
pub fn gru_reset_before_gates<T: Real>(z: T, r: T, state: T) -> (T, T, T) {
    let (z, r) = (sigmoid(z), sigmoid(r));
    (z, r, r * state)
}

/// The second half: `(1 - z) s + z tanh(candidate)`.
pub fn gru_reset_before_output<T: Real>(z: T, candidate: T, state: T) -> T {
    (T::of(1.0) - z) * state + z * candidate.tanh()
}

/// One GRU unit with the reset after the recurrent product (PyTorch):
/// `n = tanh(x_n + r u_n)`, `(1 - z) n + z h`; `x` and `u` are `[z, r, n]`.
pub fn gru_reset_after<T: Real>(x: [T; 3], u: [T; 3], state: T) -> T {
    let (z, r) = (sigmoid(x[0] + u[0]), sigmoid(x[1] + u[1]));
    let n = (x[2] + r * u[2]).tanh();
    (T::of(1.0) - z) * n + z * state
}

/// One LSTM unit: `(h, c)` from the pre-activations `[i, f, g, o]` and the previous cell.
pub fn lstm<T: Real>(gates: [T; 4], cell: T) -> (T, T) {
    let [i, f, g, o] = gates;
    let cell = sigmoid(f) * cell + sigmoid(i) * g.tanh();
    (sigmoid(o) * cell.tanh(), cell)
}

/// Cross-entropy of one row of logits: `(smoothed loss, negative log-likelihood, gradient of the
/// smoothed loss)`. See [`crate::loss`].
pub fn cross_entropy<T: Real>(logits: &[T], target: usize, smoothing: T) -> (T, T, Vec<T>) {
    let largest = logits
        .iter()
        .fold(logits[0], |m, &x| if x > m { x } else { m });
    let total = logits
        .iter()
        .fold(T::of(0.0), |sum, &x| sum + (x - largest).exp());
    let log_total = largest + total.ln();
    let count = T::of(logits.len() as f64);
    let nll = log_total - logits[target];
    let uniform = logits
        .iter()
        .fold(T::of(0.0), |sum, &x| sum + (log_total - x))
        / count;
    let loss = (T::of(1.0) - smoothing) * nll + smoothing * uniform;
    let gradient = softmax(logits)
        .into_iter()
        .enumerate()
        .map(|(j, p)| {
            let hit = if j == target {
                T::of(1.0) - smoothing
            } else {
                T::of(0.0)
            };
            p - hit - smoothing / count
        })
        .collect();
    (loss, nll, gradient)
}

/// One number under Adam (or AdamW, where the decay does not pass through the moments): the new
/// `(parameter, first moment, second moment)`. See [`crate::optim`].
pub fn adam(
    config: &crate::optim::Adam,
    step: u32,
    parameter: f64,
    gradient: f64,
    moments: (f64, f64),
) -> (f64, f64, f64) {
    let [b1, b2, epsilon, rate, decay] = [
        config.beta1,
        config.beta2,
        config.epsilon,
        config.learning_rate,
        config.weight_decay,
    ];
    let gradient = gradient * config.gradient_scale;
    let coupled = if config.decoupled {
        0.0
    } else {
        decay * parameter
    };
    let shrunk = if config.decoupled {
        parameter * (1.0 - rate * decay)
    } else {
        parameter
    };
    let g = gradient + coupled;
    let m = b1 * moments.0 + (1.0 - b1) * g;
    let v = b2 * moments.1 + (1.0 - b2) * g * g;
    let m_hat = m / (1.0 - b1.powi(step as i32));
    let v_hat = v / (1.0 - b2.powi(step as i32));
    (shrunk - rate * m_hat / (v_hat.sqrt() + epsilon), m, v)
}
