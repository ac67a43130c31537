//! The picture of an example: its steps from scores to weights, and arrows for dot products.

use regard_nn::{
    explain::{Example, Explanation, Normalizer, Quantity, Scorer, Step},
    mask::Locality,
};
use regard_view::{
    label::number,
    png::{self, PngOptions},
    steps::{Panel, Steps},
    vectors::{Arrow, Vectors},
};

use crate::{arguments::Explain, failure::Failure, output};

/// With more numbers below a picture nobody reads them.
const MOST_CAPTIONS: usize = 6;

/// Points of a curve between two keys.
const POINTS: usize = 16;

/// Decimals of numbers in sentences.
const DIGITS: u8 = 3;

/// Writes the pictures that were asked for.
///
/// # Errors
/// A file that cannot be written.
pub fn write(
    options: &Explain,
    example: &Example,
    explanation: &Explanation,
) -> Result<(), Failure> {
    if options.svg.is_none() && options.png.is_none() {
        return Ok(());
    }
    let picture = draw(example, explanation).svg();
    if let Some(path) = &options.svg {
        output::write_file(path, picture.as_bytes())?;
    }
    if let Some(path) = &options.png {
        let bytes = png::from_svg(&picture, &PngOptions::default())?;
        output::write_file(path, &bytes)?;
    }
    Ok(())
}

fn draw(example: &Example, explanation: &Explanation) -> Steps {
    let title = format!("{} ({})", explanation.mechanism, explanation.source);
    let mut picture = Steps::new(title).formula(explanation.formula.clone());
    if let Some(vectors) = arrows(example, explanation) {
        picture = picture.vectors(vectors);
    }
    let drawn = |step: &&Step| matches!(step.quantity, Quantity::Scores | Quantity::Weights);
    let steps: Vec<&Step> = explanation.steps.iter().filter(drawn).collect();
    for (index, step) in steps.iter().enumerate() {
        // Scores that are the weights are drawn once.
        let next = steps.get(index + 1);
        let is_same = next.is_some_and(|next| {
            step.quantity != next.quantity && step.table.rows == next.table.rows
        });
        if !is_same {
            let is_last = index + 1 == steps.len();
            let is_before_weights = next.is_some_and(|next| next.quantity == Quantity::Weights);
            picture = picture.with(panel(explanation, step, is_last, is_before_weights));
        }
    }
    for remark in remarks(example, explanation) {
        picture = picture.remark(remark);
    }
    picture
}

fn panel(explanation: &Explanation, step: &Step, is_last: bool, is_before_weights: bool) -> Panel {
    let keys = explanation.keys.len();
    let rows = step.table.rows.iter().zip(&explanation.seen);
    let cells = rows.map(|(row, seen)| {
        // What is hidden has no number, in whatever step.
        let visible = |(column, cell): (usize, &Option<f64>)| match seen.get(column) {
            Some(false) => None,
            _ => *cell,
        };
        row.cells.iter().enumerate().map(visible).collect()
    });
    let columns = &step.table.columns;
    let mut panel = Panel::new(
        step.name.clone(),
        explanation.queries.clone(),
        columns.clone(),
        cells.collect(),
    )
    .formula(step.formula.clone())
    .beside(columns.len() - keys);
    if step.quantity == Quantity::Weights {
        panel = panel.shares();
    }
    if let ([threshold], true) = (explanation.thresholds.as_slice(), is_before_weights) {
        panel = panel.line(*threshold);
    }
    // local-p's curve is the factor before its weights; Graves's is the weights themselves.
    if !explanation.bumps.is_empty() && (step.name == "Gaussian" || is_last) {
        let centres = explanation.bumps.iter();
        panel = panel.marks(
            centres
                .map(|row| row.iter().map(|bump| bump.centre).collect())
                .collect(),
        );
        if step.name == "Gaussian" || explanation.steps.iter().all(|step| step.name != "Gaussian") {
            panel = panel.curves(curves(explanation));
        }
    }
    panel
}

/// The sum of a query's Gaussians over the keys' positions.
fn curves(explanation: &Explanation) -> Vec<Vec<(f64, f64)>> {
    let points = explanation.keys.len() * POINTS;
    let curve = |bumps: &Vec<_>| {
        let point = |index: usize| {
            let position = index as f64 / POINTS as f64 - 0.5;
            let value = bumps
                .iter()
                .map(|bump: &regard_nn::explain::Bump| bump.at(position))
                .sum();
            (position, value)
        };
        (0..=points).map(point).collect()
    };
    explanation.bumps.iter().map(curve).collect()
}

/// The vectors of the plain dot product; other mechanisms are not seen in them.
fn arrows(example: &Example, explanation: &Explanation) -> Option<Vectors> {
    let is_plain = example.scorer == Scorer::Dot
        && example.normalizer == Normalizer::Softmax
        && example.locality == Locality::Global
        && example.mask.is_none()
        && example.parameters.softcap.is_none();
    if !is_plain {
        return None;
    }
    let arrow = |name: &str, vector: &[f64]| match *vector {
        [x, y] => Some(Arrow::flat(name, [x, y])),
        [x, y, z] => Some(Arrow::new(name, [x, y, z])),
        _ => None,
    };
    let (queries, keys) = (&example.queries, &example.keys);
    let (query_names, key_names) = (&explanation.queries, &explanation.keys);
    let one_set = queries == keys && query_names == key_names;
    let mut picture = Vectors::new("");
    for (name, vector) in key_names.iter().zip(keys) {
        picture = picture.with(arrow(name, vector)?);
    }
    if !one_set {
        for (name, vector) in query_names.iter().zip(queries) {
            picture = picture.with(arrow(name, vector)?.emphasized());
        }
    }
    let mut captions = Vec::new();
    for (i, query) in query_names.iter().enumerate() {
        for (j, key) in key_names.iter().enumerate() {
            // In one set each pair of different vectors is said once.
            if !one_set || j > i {
                let score = number(explanation.scores[i][j], 4);
                captions.push(format!("{query} · {key} = {score}"));
            }
        }
    }
    if captions.len() <= MOST_CAPTIONS {
        for caption in captions {
            picture = picture.caption(caption);
        }
    }
    Some(picture)
}

/// What is peculiar to the mechanism, in sentences with its numbers.
fn remarks(example: &Example, explanation: &Explanation) -> Vec<String> {
    let parameters = &example.parameters;
    let mut remarks = Vec::new();
    let mut say = |text: String| remarks.push(text);
    match example.scorer {
        Scorer::General | Scorer::ScaledGeneral if parameters.query_weight.is_none() => say(
            "No W is given (--query-weight): the identity is taken, so that the score is the dot product.".to_owned(),
        ),
        Scorer::Additive | Scorer::WeightNormAdditive => say(
            "Each entry of tanh lies within ±1, so that a score lies within ± the sum of |v|: no scaling by √d is needed."
                .to_owned(),
        ),
        Scorer::Cosine => say("Lengths do not count: a score lies within ±β.".to_owned()),
        Scorer::Distance => {
            say("A score is never above 0; the nearest key has the largest.".to_owned());
        }
        Scorer::Location => say(
            "No key is looked at: a query gives the same weights whatever stands at the positions.".to_owned(),
        ),
        Scorer::GaussianWindow => {
            let centres = each_query(explanation, |query| {
                let bumps = explanation.bumps[query].iter();
                let centres: Vec<String> = bumps.map(|bump| number(bump.centre, DIGITS)).collect();
                centres.join(" and ")
            });
            say(format!(
                "The curve is φ over positions (from 0), a triangle its centre κ: {centres}. Each query moves it to \
                 the right."
            ));
        }
        _ => {}
    }
    match example.locality {
        Locality::Global => {}
        Locality::Monotonic { half_width } => say(format!(
            "Query t sees the keys at most D = {half_width} away from key t."
        )),
        Locality::Predictive { half_width } => {
            let places = each_query(explanation, |query| {
                number(explanation.bumps[query][0].centre, DIGITS)
            });
            say(format!(
                "A triangle stands at the predicted position p (from 0): {places}. Keys more than D = {half_width} away \
                 are hidden; the curve lowers the weights of the others."
            ));
        }
    }
    let sum = |query: usize| explanation.weights[query].iter().sum::<f64>();
    match example.normalizer {
        Normalizer::Softmax | Normalizer::Hardmax => {}
        Normalizer::Sink => say(format!(
            "The sink's score is {}. It takes a share of each row and adds nothing to the context: {}.",
            number(parameters.sink.unwrap_or(0.0), DIGITS),
            each_query(explanation, |query| number(1.0 - sum(query), DIGITS))
        )),
        Normalizer::Sparsemax | Normalizer::Entmax15 => say(format!(
            "A score at or below the threshold gets weight 0 exactly: {}.",
            each_query(explanation, |query| number(
                explanation.thresholds[query],
                DIGITS
            ))
        )),
        Normalizer::Sigmoid => say(format!(
            "Rows are not normalised; they sum to {}.",
            each_query(explanation, |query| number(sum(query), DIGITS))
        )),
        Normalizer::HardSample => say(format!(
            "The probabilities are added up from the left; the first key whose sum passes u = {} is drawn.",
            number(parameters.draw.unwrap_or(0.5), DIGITS)
        )),
        Normalizer::Monotonic => say(format!(
            "A reader goes right from where the query before stopped, and stops at a key with its stopping \
             probability. \"none\" is the share that passes all keys: {}.",
            each_query(explanation, |query| {
                let stopped = sum(query);
                let before: f64 = parameters.previous.as_ref().map_or(1.0, |p| p.iter().sum());
                number(before - stopped, DIGITS)
            })
        )),
        Normalizer::Addressing => say(format!(
            "Each query takes g = {} of its content and the rest from the weights before it, then shifts by the weights \
             {} around the circle of keys, then sharpens with γ = {}.",
            number(parameters.gate.unwrap_or(1.0), DIGITS),
            shift(parameters.shift.as_deref().unwrap_or(&[1.0])),
            number(parameters.sharpening.unwrap_or(1.0), DIGITS)
        )),
        Normalizer::Identity if example.scorer == Scorer::GaussianWindow => {}
        Normalizer::Identity => say(format!(
            "Nothing is normalised: a weight may be negative or above 1, and rows sum to {}.",
            each_query(explanation, |query| number(sum(query), DIGITS))
        )),
    }
    remarks
}

/// `hello 0.18, hi 0.17`, or the number alone where there is one query.
fn each_query(explanation: &Explanation, of: impl Fn(usize) -> String) -> String {
    match explanation.queries.as_slice() {
        [_] => of(0),
        names => {
            let each = names
                .iter()
                .enumerate()
                .map(|(query, name)| format!("{name} {}", of(query)));
            each.collect::<Vec<_>>().join(", ")
        }
    }
}

/// `0.2 (by 0), 0.8 (by +1)`: the weights of shifts, without those of weight 0.
fn shift(weights: &[f64]) -> String {
    let range = weights.len() as isize / 2;
    let weights = weights
        .iter()
        .zip(-range..)
        .filter(|(weight, _)| **weight != 0.0);
    let each = weights.map(|(weight, by)| match by {
        0 => format!("{} (stay)", number(*weight, DIGITS)),
        by => format!("{} (by {by:+})", number(*weight, DIGITS)),
    });
    each.collect::<Vec<_>>().join(", ")
}
