//! Attention in tiles: the recurrence of FlashAttention, written out, beside plain attention.
//!
//! ```text
//! m' = max(m, max_j s_j)          l' = e^{m - m'} l + Σ_j e^{s_j - m'}          o' = e^{m - m'} o + Σ_j e^{s_j - m'} v_j
//! ```
//!
//! The kernels work so, but keep none of these numbers; here they are computed from the definition. The first step begins with
//! `m = -∞`, `l = 0`, `o = 0`.

use super::{Lesson, Matrix, named, numbered, sentence};
use crate::explain::{Example, ExplainError, Quantity, explain};

pub(super) fn flash(lesson: &mut Lesson) -> Result<(), ExplainError> {
    let (query_names, x) = sentence();
    let (length, tile_size) = (lesson.number("length"), lesson.number("tile"));
    let key_names = numbered("k", length);
    let key = |i: usize| {
        vec![
            (i % 3) as f64,
            (i % 2) as f64 * 2.0,
            1.0 - (i / 2) as f64,
            (i / 3) as f64,
        ]
    };
    let value = |i: usize| vec![i as f64, 5.0 - i as f64];
    let mut example = Example::new("scaled-dot")?;
    example.queries = x;
    example.keys = (0..length).map(key).collect();
    example.values = Some((0..length).map(value).collect());
    let plain = explain(&example)?;
    let values: Matrix = (0..length).map(value).collect();

    for (name, formula, names, rows) in [
        ("queries", "q, as given", &query_names, &example.queries),
        ("keys", "k_j, as given", &key_names, &example.keys),
    ] {
        let columns = numbered("", rows[0].len());
        lesson.step(Quantity::Vectors, name, formula, [names, &columns], rows);
    }
    lesson.matrix("values", "v_j, as given", &key_names, &values);
    let formula = "qᵀ k / √d, which plain attention holds all at once";
    lesson.step(
        Quantity::Scores,
        "all scores",
        formula,
        [&query_names, &key_names],
        &plain.scores,
    );
    let mut running = vec![Running::default(); query_names.len()];
    let columns = named(&["factor", "m", "l", "o₁", "o₂"]);
    for (tile, keys) in key_names.chunks(tile_size).enumerate() {
        let first = tile * tile_size;
        let scores: Matrix = plain
            .scores
            .iter()
            .map(|row| row[first..][..keys.len()].to_vec())
            .collect();
        let factors: Vec<f64> = running
            .iter_mut()
            .zip(&scores)
            .map(|(running, scores)| running.read(scores, &values[first..]))
            .collect();
        lesson.row();
        let name = |what: &str| format!("tile {}: {what}", tile + 1);
        lesson.step(
            Quantity::Scores,
            name("scores"),
            "s = qᵀ k / √d of these keys",
            [&query_names, keys],
            &scores,
        );
        let after: Matrix = running
            .iter()
            .zip(factors)
            .map(|(r, factor)| [&[factor, r.maximum, r.sum][..], &r.output].concat())
            .collect();
        let formula = "e^{m-m'}, and the running maximum, sum and output";
        lesson.step(
            Quantity::Matrix,
            name("running"),
            formula,
            [&query_names, &columns],
            &after,
        );
    }
    let output: Matrix = running
        .iter()
        .map(|r| r.output.iter().map(|o| o / r.sum).collect())
        .collect();
    lesson.row();
    lesson.matrix("output", "o / l", &query_names, &output);
    let logs: Matrix = running
        .iter()
        .map(|r| vec![r.maximum + r.sum.ln()])
        .collect();
    let formula = "m + ln l: all that the backward pass needs to compute the weights again";
    lesson.step(
        Quantity::Vectors,
        "log of the sum",
        formula,
        [&query_names, &named(&["lse"])],
        &logs,
    );
    lesson.matrix(
        "plain attention",
        "softmax(Q Kᵀ / √d) V of all keys at once",
        &query_names,
        &plain.context,
    );
    let difference = output.iter().flatten().zip(plain.context.iter().flatten());
    let largest = difference.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    let equal = match largest < 1e-12 {
        true => "Both results are equal up to rounding.".to_owned(),
        false => format!("The largest difference of both results is {largest:e}."),
    };
    lesson.remark(equal + " Only one tile of scores is held at a time, however long the text is.");
    lesson.remark(
        "The factor is below 1 where a tile has a larger score than all before: sum and output so far are then scaled down.",
    );
    Ok(())
}

/// What one query carries from tile to tile.
#[derive(Clone)]
struct Running {
    maximum: f64,
    sum: f64,
    output: Vec<f64>,
}

impl Default for Running {
    fn default() -> Self {
        Self {
            maximum: f64::NEG_INFINITY,
            sum: 0.0,
            output: vec![0.0; 2],
        }
    }
}

impl Running {
    /// Reads a tile; returns `e^{m - m'}`.
    fn read(&mut self, scores: &[f64], values: &[Vec<f64>]) -> f64 {
        let maximum = scores.iter().copied().fold(self.maximum, f64::max);
        let factor = (self.maximum - maximum).exp();
        self.maximum = maximum;
        self.sum *= factor;
        self.output.iter_mut().for_each(|o| *o *= factor);
        for (score, value) in scores.iter().zip(values) {
            let share = (score - maximum).exp();
            self.sum += share;
            for (o, v) in self.output.iter_mut().zip(value) {
                *o += share * v;
            }
        }
        factor
    }
}
