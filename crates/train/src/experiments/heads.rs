//! `heads`: one layer of self-attention with 1 to 8 heads on sequences whose next symbol needs three looks at once. A head has one
//! distribution over positions; more heads are smaller ones, with the same number of weights (Vaswani 2017, section 3.2.2).
//!
//! ```text
//! head size = d_model / h        W_Q, W_K, W_V, W_O of d_model² weights each, whatever h
//! ```

use regard_evaluate::{Conditioning, NextToken};
use regard_models::scoring;

use super::{
    Curves, Estimate, ExperimentError, Findings, Setting, Table,
    looks::{self, DRAWN},
};

pub(super) const HEADS: [usize; 6] = [1, 2, 3, 4, 6, 8];
pub(super) const STEPS: u32 = 1000;

pub(super) fn run(setting: &Setting<'_>) -> Result<Findings, ExperimentError> {
    let mut found: Vec<[Estimate; 3]> = vec![];
    for heads in HEADS {
        found.push(setting.repeat(|seed| {
            looks::train(setting, heads, STEPS, seed, |model, weights, test| {
                let mut score = NextToken::new(Conditioning::TeacherForced);
                let mut checked = Ok(());
                for text in test {
                    // After the mark at the beginning and what was drawn.
                    scoring::teacher_forced(model, text, 1 + DRAWN, |_, found| {
                        let added = score.add(found.loss, found.correct);
                        checked = std::mem::replace(&mut checked, Ok(())).and(added);
                    })?;
                }
                checked?;
                let loss = score.perplexity().mean().unwrap_or(f64::NAN);
                let right = score.accuracy().unwrap_or(f64::NAN);
                Ok([100.0 * right, loss, weights as f64])
            })
        })?);
    }
    let best = (0..HEADS.len())
        .max_by(|&a, &b| found[a][0].mean.total_cmp(&found[b][0].mean))
        .unwrap_or_default();
    let right = |at: usize| found[at][0];
    let enough = (0..HEADS.len()).find(|&at| right(at).overlaps(&right(best)));
    let weights = found.iter().map(|of| of[2].mean);
    let [least, most] = [
        weights.clone().fold(f64::INFINITY, f64::min),
        weights.fold(0.0, f64::max),
    ];
    let words = vec![
        format!(
            "One head predicts {} % of the symbols that follow from earlier ones, {} heads {} %, the best of all; {}.",
            right(0),
            HEADS[best],
            right(best),
            match right(0).overlaps(&right(best)) {
                true => "the intervals overlap, so they are not told apart",
                false => "the intervals are apart",
            }
        ),
        match enough.map(|at| HEADS[at]) {
            Some(1) => "No count of heads is better than one beyond the interval.".to_owned(),
            Some(heads) => format!(
                "{heads} is the smallest number whose interval overlaps that of the best: each symbol needs looks at three places, and a head's \
                 weights blend what it reads at several."
            ),
            None => "No interval overlaps that of the best.".to_owned(),
        },
        match least == most {
            true => format!("All have {least:.0} weights."),
            false => format!("They have {least:.0} to {most:.0} weights."),
        },
    ];
    let rows = HEADS.iter().zip(&found);
    let rows = rows.map(|(heads, of)| (heads.to_string(), of.map(Some).to_vec()));
    let line = |at: usize, name: &str| {
        let points = HEADS.iter().zip(&found);
        let points = points.map(|(&heads, of)| (heads as f64, of[at]));
        (name.to_owned(), points.collect())
    };
    Ok(Findings {
        table: Table {
            columns: ["heads", "right, %", "loss, nats", "weights"]
                .map(str::to_owned)
                .to_vec(),
            rows: rows.collect(),
        },
        figure: vec![Curves {
            title: "Three looks at once, by the number of heads".to_owned(),
            x: "heads, together of one size".to_owned(),
            y: "right symbols, %".to_owned(),
            x_names: HEADS
                .map(|heads| (heads as f64, heads.to_string()))
                .to_vec(),
            connected: true,
            lines: vec![line(0, "right symbols")],
        }],
        words,
    })
}
