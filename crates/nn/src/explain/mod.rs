//! Worked examples: a mechanism on vectors small enough to read, step by step.
//!
//! [`explain`] runs the modules themselves on the example in `f64`, and keeps every step that they report
//! ([`record`](crate::record)) as a [`Table`]:
//!
//! `queries, keys, values → scores → capped → masked → weights → weighted values → context`
//!
//! Matrices act from the left, as in the formulas: `W s` with one row of `W` for each output.
//!
//! ```
//! use regard_nn::explain::{Example, explain};
//!
//! // Formula sheet, worked numbers.
//! let mut example = Example::new("dot")?;
//! example.queries = vec![vec![10., 5., 10.]];
//! example.keys = vec![vec![0., 1., 1.], vec![5., 0., 1.], vec![1., 1., 0.], vec![0., 5., 1.]];
//! let explanation = explain(&example)?;
//! assert_eq!(explanation.scores, [[15., 60., 15., 35.]]);
//! assert_eq!(explanation.weights[0].iter().map(|w| w.round()).collect::<Vec<_>>(), [0., 1., 0., 0.]);
//! assert_eq!(explanation.context[0].iter().map(|c| c.round()).collect::<Vec<_>>(), [5., 0., 1.]);
//! assert_eq!(explanation.steps.last().unwrap().name, "context");
//! # Ok::<(), regard_nn::explain::ExplainError>(())
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`catalogue`] | the mechanisms by name, with formula and source |
//! | [`presets`] | ready examples: the worked numbers of the formula sheet |
//! | [`topics`] | whole layers and algorithms: heads, decoders, positions, tiles, images, a block |
//! | [`masks`] | masks written as text: `window:3 & causal` |
//! | [`parameters`] | which mechanism reads which parameter |
//!
//! Cost: nothing is fused; it is made for a dozen vectors.

pub mod catalogue;
mod check;
mod error;
mod example;
pub mod masks;
mod modules;
pub mod parameters;
mod plan;
pub mod presets;
mod steps;
mod table;
pub mod topics;

pub use error::ExplainError;
pub use example::{Example, Normalizer, Parameters, Scorer};
pub use table::{Bump, Explanation, Quantity, Step, Table};

use crate::{
    mask::{Locality, local},
    record::Record,
};
use steps::Steps;
use table::Names;

/// Computes an example and keeps every step.
///
/// # Errors
/// Vectors of different sizes, numbers that are not finite, parameters that do not fit or are missing, a mask of other sizes:
/// each names the field, what was found and what was expected.
pub fn explain(example: &Example) -> Result<Explanation, ExplainError> {
    let values = check::check(example)?;
    let (queries, keys) = (example.queries.len(), example.keys.len());
    let mask = example.mask()?;
    let length = mask.sentences(&masks::grid(queries, keys))[0].len();
    let record = modules::read(example, &values, mask)?;
    let names = Names::of(example);
    let scores = record.rows(match example.parameters.softcap {
        None => "scores",
        Some(_) => "capped scores",
    });
    // A mask that is the same for all queries has one row.
    let seen = record.rows("seen");
    let seen = (0..queries).map(|query| match seen.get(query).or(seen.first()) {
        None => vec![true; keys],
        Some(row) => row.iter().map(|&seen| seen == 1.0).collect(),
    });
    let mut explanation = Explanation {
        mechanism: example.name().to_owned(),
        summary: example.mechanism.summary.to_owned(),
        formula: example.formula(),
        source: example.mechanism.source.to_owned(),
        steps: Vec::new(),
        seen: seen.collect(),
        weights: record.rows("weights"),
        context: record.rows("context"),
        bumps: bumps(example, &record),
        thresholds: thresholds(example, &scores, &record.rows("normalized")),
        scores,
        queries: names.queries.clone(),
        keys: names.keys.clone(),
    };
    let mut steps = Steps {
        example,
        names: &names,
        record: &record,
        steps: Vec::new(),
    };
    steps.given(&values);
    steps.scores();
    steps.mask(&mask_words(example)?, length, &explanation);
    steps.cost()?;
    steps.weights(&explanation);
    steps.context(&values, &explanation);
    explanation.steps = steps.steps;
    Ok(explanation)
}

fn mask_words(example: &Example) -> Result<String, ExplainError> {
    let window = match example.locality {
        Locality::Global => None,
        Locality::Monotonic { half_width } => Some(format!("|i - t| ≤ {half_width}")),
        Locality::Predictive { half_width } => Some(format!("|i - p_t| ≤ {half_width}")),
    };
    let words: Vec<String> = example.mask.clone().into_iter().chain(window).collect();
    let mut words = words.join(" and ");
    if let Some(text) = &example.mask
        && masks::Expression::parse(text)?.names_positions()
    {
        words.push_str(" (positions count from 0)");
    }
    Ok(words)
}

/// local-p's factors `exp(-(i - p_t)² / 2σ²)`, or the Gaussians of a window.
fn bumps(example: &Example, record: &Record) -> Vec<Vec<Bump>> {
    if let Locality::Predictive { half_width } = example.locality {
        let bump = |position: Vec<f64>| {
            vec![Bump {
                height: 1.0,
                sharpness: 0.5 / f64::from(local::deviation(half_width)).powi(2),
                centre: position[0],
            }]
        };
        let positions = record.rows("predicted positions");
        return positions.into_iter().map(bump).collect();
    }
    let parts = ["heights", "sharpnesses", "centres"].map(|name| record.rows(name));
    let [heights, sharpnesses, centres] = &parts;
    let bump = |query: usize, component: usize| Bump {
        height: heights[query][component],
        sharpness: sharpnesses[query][component],
        centre: centres[query][component],
    };
    let row = |query: usize| {
        (0..heights[query].len())
            .map(move |m| bump(query, m))
            .collect()
    };
    (0..heights.len()).map(row).collect()
}

/// The scores at and below which the weights of sparsemax and 1.5-entmax are 0: the score of the best key minus its weight,
/// or minus twice the square root of its weight.
fn thresholds(example: &Example, scores: &[Vec<f64>], weights: &[Vec<f64>]) -> Vec<f64> {
    let above: fn(f64) -> f64 = match example.normalizer {
        Normalizer::Sparsemax => |weight| weight,
        Normalizer::Entmax15 => |weight| 2.0 * weight.sqrt(),
        _ => return Vec::new(),
    };
    let threshold = |(scores, weights): (&Vec<f64>, &Vec<f64>)| {
        let best = weights.iter().zip(scores).max_by(|a, b| a.0.total_cmp(b.0));
        let best = best.filter(|(weight, _)| **weight > 0.0);
        best.map_or(0.0, |(weight, score)| score - above(*weight))
    };
    scores.iter().zip(weights).map(threshold).collect()
}
