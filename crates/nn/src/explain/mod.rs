//! Worked examples: a mechanism on vectors small enough to read, step by step.
//!
//! [`explain`] computes in `f64`, by the plain definitions of the formula sheet, what
//! [`Attention`](crate::Attention) computes on tensors, and keeps every step on the way as a [`Table`]:
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
//! | [`masks`] | masks written as text: `window:3 & causal` |
//! | [`parameters`] | which mechanism reads which parameter |
//!
//! Cost: nothing is fused or vectorised; made for a dozen vectors.

pub mod catalogue;
mod check;
mod error;
mod example;
pub mod masks;
mod normalizers;
pub mod parameters;
mod plan;
pub mod presets;
mod scores;
mod table;

pub use error::ExplainError;
pub use example::{Example, Normalizer, Parameters, Scorer};
pub use table::{Bump, Explanation, Quantity, Step, Table};

use crate::mask::{Grid, Locality, Mask};
use table::Names;

/// Computes an example and keeps every step.
///
/// # Errors
/// Vectors of different sizes, numbers that are none, parameters that do not fit or are missing, a mask of
/// other sizes: each names the field, what was found and what was expected.
pub fn explain(example: &Example) -> Result<Explanation, ExplainError> {
    let values = check::check(example)?;
    let names = Names::of(example);
    let mut steps = names.given(example, &values);

    let mut scores = scores::scores(example, &names, &mut steps)?;
    if let Some(softcap) = example.parameters.softcap {
        scores = map(&scores, |s| softcap * (s / softcap).tanh());
        steps.push(
            Step::new(
                "capped scores",
                format!("s ← c · tanh(s / c), c = {}", table::number(softcap)),
                names.pairs(&scores),
            )
            .of(Quantity::Scores),
        );
    }
    let (seen, centres) = visible(example, &names, &mut steps)?;
    if let Some(seen) = &seen {
        let masked = scores.iter().zip(seen).map(|(scores, seen)| {
            let cell = |(&score, &seen): (&f64, &bool)| seen.then_some(score);
            scores.iter().zip(seen).map(cell).collect()
        });
        steps.push(
            Step::new(
                "masked scores",
                format!("the mask is {}; · is hidden", mask_words(example)?),
                names.table(masked.collect()),
            )
            .of(Quantity::Between),
        );
    }
    let mut weights = normalizers::normalize(example, &names, &scores, seen.as_deref(), &mut steps);
    let bumps = match (&example.scorer, &centres, example.half_width()) {
        (_, Some(centres), Some(half_width)) => {
            let bumps = near(centres, half_width);
            weights = gaussian(&names, &weights, &bumps, half_width, &mut steps);
            bumps.into_iter().map(|bump| vec![bump]).collect()
        }
        (Scorer::GaussianWindow, ..) => scores::bumps(&example.queries),
        _ => Vec::new(),
    };
    let context = read(&names, &weights, &values, &mut steps);
    let thresholds = normalizers::thresholds(example, &scores, seen.as_deref());
    let everything = || vec![vec![true; names.keys.len()]; names.queries.len()];
    Ok(Explanation {
        mechanism: example.name().to_owned(),
        formula: example.formula(),
        source: example.mechanism.source.to_owned(),
        scores,
        weights,
        context,
        steps,
        bumps,
        thresholds: thresholds.unwrap_or_default(),
        seen: seen.unwrap_or_else(everything),
        queries: names.queries,
        keys: names.keys,
    })
}

fn map(rows: &[Vec<f64>], f: impl Fn(f64) -> f64) -> Vec<Vec<f64>> {
    rows.iter()
        .map(|row| row.iter().map(|&x| f(x)).collect())
        .collect()
}

fn mask_words(example: &Example) -> Result<String, ExplainError> {
    let window = match example.locality {
        Locality::Global => None,
        Locality::Monotonic { half_width } => Some(format!("|i - t| ≤ {half_width}")),
        Locality::Predictive { half_width } => Some(format!("|i - p_t| ≤ {half_width}")),
    };
    let written = example.mask.clone();
    let words: Vec<String> = written.into_iter().chain(window).collect();
    let mut words = words.join(" and ");
    if let Some(text) = &example.mask
        && masks::Expression::parse(text)?.names_positions()
    {
        words.push_str(" (positions count from 0)");
    }
    Ok(words)
}

/// What each query sees, `[queries][keys]` (nothing where all do), and local-p's `p_t`.
type Visible = (Option<Vec<Vec<bool>>>, Option<Vec<f64>>);

/// The mask and the window of local attention together.
fn visible(
    example: &Example,
    names: &Names,
    steps: &mut Vec<Step>,
) -> Result<Visible, ExplainError> {
    let (queries, keys) = (example.queries.len(), example.keys.len());
    let mask = match &example.mask {
        None => Mask::all(),
        Some(text) => masks::Expression::parse(text)?.mask(queries, keys)?,
    };
    let grid = Grid {
        batch: 1,
        heads: 1,
        queries,
        keys,
        ..Grid::default()
    };
    mask.check(&grid)?;
    let centres = match example.locality {
        Locality::Global => None,
        Locality::Monotonic { .. } => Some((0..queries).map(|t| t as f64).collect()),
        Locality::Predictive { .. } => Some(scores::predict(example, names, steps)),
    };
    if mask.is_all() && centres.is_none() {
        return Ok((None, None));
    }
    let half_width = example.half_width().unwrap_or(0) as f64;
    let seen = (0..queries)
        .map(|query| {
            let mut row = mask.row(&grid, 0, 0, query);
            if let Some(centres) = &centres {
                let centre: f64 = centres[query];
                for (key, seen) in row.iter_mut().enumerate() {
                    *seen &= (key as f64 - centre).abs() <= half_width;
                }
            }
            row
        })
        .collect();
    let predicted = matches!(example.locality, Locality::Predictive { .. });
    Ok((Some(seen), centres.filter(|_| predicted)))
}

/// local-p's factors `exp(-(i - p_t)² / 2σ²)`, `σ = D/2`.
fn near(centres: &[f64], half_width: usize) -> Vec<Bump> {
    // A window of no width has no deviation; this one leaves the centre alone.
    let deviation = (half_width as f64 / 2.0).max(1e-3);
    let bump = |&centre: &f64| Bump {
        height: 1.0,
        sharpness: 0.5 / (deviation * deviation),
        centre,
    };
    centres.iter().map(bump).collect()
}

fn gaussian(
    names: &Names,
    weights: &[Vec<f64>],
    bumps: &[Bump],
    half_width: usize,
    steps: &mut Vec<Step>,
) -> Vec<Vec<f64>> {
    let factors: Vec<Vec<f64>> = weights
        .iter()
        .zip(bumps)
        .map(|(row, bump)| (0..row.len()).map(|key| bump.at(key as f64)).collect())
        .collect();
    let factor = Step::new(
        "Gaussian",
        format!(
            "exp(-(i - p_t)² / 2σ²), σ = D/2 = {}",
            table::number(half_width as f64 / 2.0)
        ),
        names.pairs(&factors),
    );
    let product: Vec<Vec<f64>> = weights
        .iter()
        .zip(&factors)
        .map(|(weights, factors)| weights.iter().zip(factors).map(|(w, f)| w * f).collect())
        .collect();
    let result = Step::new(
        "weights near p_t",
        "α_i ← α_i · exp(-(i - p_t)² / 2σ²), without normalising again",
        names.pairs(&product),
    );
    steps.extend([factor, result].map(|step| step.of(Quantity::Weights)));
    product
}

/// `α_i v_i` and their sum.
fn read(
    names: &Names,
    weights: &[Vec<f64>],
    values: &[Vec<f64>],
    steps: &mut Vec<Step>,
) -> Vec<Vec<f64>> {
    let mut contexts = Vec::with_capacity(weights.len());
    let mut products = Vec::new();
    for (query, row) in weights.iter().enumerate() {
        let weighted: Vec<Vec<f64>> = row
            .iter()
            .zip(values)
            .map(|(&weight, value)| value.iter().map(|v| weight * v).collect())
            .collect();
        let sum = |place: usize| weighted.iter().map(|row| row[place]).sum();
        contexts.push((0..values[0].len()).map(sum).collect());
        for (key, weighted) in weighted.into_iter().enumerate() {
            products.push((names.pair(query, key), weighted));
        }
    }
    steps.push(Step::new(
        "weighted values",
        "α_i v_i",
        Table::vectors("", products),
    ));
    steps.push(Step::new(
        "context",
        "c = Σ_i α_i v_i",
        Table::vectors(
            "",
            names.queries.iter().cloned().zip(contexts.iter().cloned()),
        ),
    ));
    contexts
}
