//! Layer norm and RMS norm of one row.

use super::Real;
use crate::norm::Kind;

/// What [`norm`] returns for one row.
pub struct NormRow<T> {
    /// The normalised row times the weight, plus the bias.
    pub output: Vec<T>,
    /// Gradient of the row.
    pub input: Vec<T>,
    /// The row's part of the weight's gradient; that of the bias is the output's gradient itself.
    pub weight: Vec<T>,
}

/// One row of [`crate::norm`], forward and backward from the gradient `d_output` of the output.
pub fn norm<T: Real>(
    kind: Kind,
    epsilon: T,
    input: &[T],
    weight: &[T],
    bias: &[T],
    d_output: &[T],
) -> NormRow<T> {
    let (zero, one, count) = (T::of(0.0), T::of(1.0), T::of(input.len() as f64));
    let mean_of = |x: &dyn Fn(usize) -> T| (0..input.len()).fold(zero, |sum, i| sum + x(i)) / count;
    let mean = match kind {
        Kind::Layer => mean_of(&|i| input[i]),
        Kind::RootMeanSquare => zero,
    };
    let square = mean_of(&|i| (input[i] - mean) * (input[i] - mean));
    let factor = one / (square + epsilon).sqrt();
    let normal: Vec<T> = input.iter().map(|&x| (x - mean) * factor).collect();
    let through = |i: usize| d_output[i] * weight[i];
    let along = mean_of(&|i| through(i) * normal[i]);
    let level = match kind {
        Kind::Layer => mean_of(&through),
        Kind::RootMeanSquare => zero,
    };
    let each = |f: &dyn Fn(usize) -> T| (0..input.len()).map(f).collect();
    NormRow {
        output: each(&|i| normal[i] * weight[i] + bias[i]),
        input: each(&|i| factor * (through(i) - level - normal[i] * along)),
        weight: each(&|i| d_output[i] * normal[i]),
    }
}
