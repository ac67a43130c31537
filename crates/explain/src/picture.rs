//! The picture of an example: its steps from scores to weights, and arrows for dot products.

use regard_nn::{
    explain::{
        Example, Explanation, Normalizer, Quantity, Scorer, Step, Table, masks::Expression,
        topics::Lesson,
    },
    mask::Locality,
};
use regard_view::{
    label::number,
    steps::{Panel, Steps},
    vectors::{Arrow, Vectors},
};

/// The most numbers below a picture: more would not be read.
const MOST_CAPTIONS: usize = 6;

/// Points of a curve between two keys.
const POINTS: usize = 16;

/// Decimals of numbers in sentences.
const DIGITS: u8 = 3;

/// The steps of a layer or an algorithm.
pub fn lesson(lesson: &Lesson) -> Steps {
    let title = format!("{} ({})", lesson.mechanism, lesson.source);
    let mut picture = Steps::new(title)
        .about(lesson.summary.clone())
        .formula(lesson.formula.clone());
    for step in lesson.steps.iter().filter(|step| step.quantity.is_drawn()) {
        let Table { columns, rows } = &step.table;
        let panel = Panel::new(
            step.name.clone(),
            rows.iter().map(|row| row.name.clone()).collect(),
            columns.clone(),
            rows.iter().map(|row| row.cells.clone()).collect(),
        )
        .formula(step.formula.clone())
        .matrix();
        let panel = match step.begins_row {
            true => panel.begins_row(),
            false => panel,
        };
        picture = picture.with(match step.quantity {
            Quantity::Weights => panel.shares(),
            _ => panel,
        });
    }
    for remark in &lesson.remarks {
        picture = picture.remark(remark.clone());
    }
    picture
}

/// The steps of an example.
pub fn draw(example: &Example, explanation: &Explanation) -> Steps {
    let title = format!("{} ({})", explanation.mechanism, explanation.source);
    let mut picture = Steps::new(title)
        .about(explanation.summary.clone())
        .formula(explanation.formula.clone());
    if let Some(vectors) = arrows(example, explanation) {
        picture = picture.vectors(vectors);
    }
    let drawn = |step: &&Step| matches!(step.quantity, Quantity::Scores | Quantity::Weights);
    let steps: Vec<&Step> = explanation.steps.iter().filter(drawn).collect();
    for (index, step) in steps.iter().enumerate() {
        // If the scores are the weights themselves, they are drawn only once.
        let next = steps.get(index + 1);
        let is_same = next.is_some_and(|next| {
            step.quantity != next.quantity && cells(explanation, step) == cells(explanation, next)
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

/// The numbers of a step; a hidden key has none, in any step.
fn cells(explanation: &Explanation, step: &Step) -> Vec<Vec<Option<f64>>> {
    let rows = step.table.rows.iter().zip(&explanation.seen);
    let cells = rows.map(|(row, seen)| {
        let visible = |(column, cell): (usize, &Option<f64>)| match seen.get(column) {
            Some(false) => None,
            _ => *cell,
        };
        row.cells.iter().enumerate().map(visible).collect()
    });
    cells.collect()
}

fn panel(explanation: &Explanation, step: &Step, is_last: bool, is_before_weights: bool) -> Panel {
    let keys = explanation.keys.len();
    let columns = &step.table.columns;
    let mut panel = Panel::new(
        step.name.clone(),
        explanation.queries.clone(),
        columns.clone(),
        cells(explanation, step),
    )
    .formula(step.formula.clone())
    .beside(columns.len() - keys);
    if step.quantity == Quantity::Weights {
        panel = panel.shares();
    }
    if let ([threshold], true) = (explanation.thresholds.as_slice(), is_before_weights) {
        panel = panel.line(*threshold);
    }
    // The curve of local-p is a factor of its weights, drawn in the panel before them; that of Graves's window is the weights.
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

/// The vectors as arrows, for the plain dot product only: arrows do not show other mechanisms.
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
            // If queries and keys are the same vectors, each pair of different ones is listed once.
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

/// The special properties of the mechanism, in sentences with its numbers.
pub fn remarks(example: &Example, explanation: &Explanation) -> Vec<String> {
    let parameters = &example.parameters;
    let short = |value: f64| number(value, DIGITS);
    let each = |of: &dyn Fn(usize) -> f64| each_query(explanation, |query| short(of(query)));
    let sum = |query: usize| explanation.weights[query].iter().sum::<f64>();
    let mut remarks = Vec::new();
    let mut say = |text: String| remarks.push(text);
    if let ([query], [_]) = (&explanation.queries[..], &example.query_names[..]) {
        say(format!("The query is called {query}."));
    }
    if let Some(mask) = &example.mask {
        let positions = match Expression::parse(mask).is_ok_and(|mask| mask.names_positions()) {
            true => "; its positions count from 0",
            false => "",
        };
        say(format!("The mask is {mask}{positions}."));
    }
    if let Some(last) = explanation
        .steps
        .iter()
        .find(|step| step.name == "cost")
        .and_then(|step| step.table.rows.last())
        && let [Some(pairs), Some(share), ..] = last.cells[..]
    {
        say(format!(
            "At {} it sees {pairs} pairs, {} % of all.",
            last.name,
            short(share)
        ));
    }
    match example.scorer {
        Scorer::General if parameters.query_weight.is_none() => say(
            "No W is given (--query-weight): with the identity the score is the dot product."
                .to_owned(),
        ),
        Scorer::ScaledGeneral if parameters.query_weight.is_none() => say(format!(
            "No W is given (--query-weight): with the identity the score is the dot product times g = {}.",
            short(parameters.gain.unwrap_or(1.0))
        )),
        Scorer::Additive | Scorer::WeightNormAdditive => say(format!(
            "Entries of tanh lie within ±1, so scores lie within ±{}, however long queries and keys are.",
            short(largest_additive(example))
        )),
        Scorer::Cosine => say(format!(
            "Directions count and lengths do not: scores lie within ±|β| = ±{}.",
            short(parameters.beta.unwrap_or(1.0).abs())
        )),
        Scorer::Distance => {
            let sentence = match parameters.scale {
                Some(scale) if scale < 0.0 => {
                    "The scale is negative: no score is below 0, and the farthest key has the largest."
                }
                Some(0.0) => "The scale is 0, and so is every score.",
                _ => "No score is above 0; the nearest key has the largest.",
            };
            say(sentence.to_owned());
        }
        Scorer::Location => say(
            "No key is looked at: a query has the same weights whatever the keys are.".to_owned(),
        ),
        Scorer::GaussianWindow => {
            let centres = each_query(explanation, |query| {
                let bumps = explanation.bumps[query].iter();
                let centres: Vec<String> = bumps.map(|bump| short(bump.centre)).collect();
                centres.join(" and ")
            });
            say(format!(
                "The curve is φ over the positions of the keys, counted from 0; a triangle marks its centre κ \
                 ({centres}) where that lies among the keys. From query to query it moves to the right."
            ));
        }
        _ => {}
    }
    match example.locality {
        Locality::Global => {}
        Locality::Monotonic { half_width } => say(format!(
            "Query t sees the keys at most D = {half_width} away from key t."
        )),
        Locality::Predictive { half_width } => say(format!(
            "A triangle marks the predicted position p_t, counted from 0 ({}). Keys more than D = {half_width} away from \
             it are hidden; the Gaussian lowers the weights of the others.",
            each(&|query| explanation.bumps[query][0].centre)
        )),
    }
    // Bars, which are drawn for a single query, have a line at the threshold.
    let line = match explanation.queries.len() {
        1 => ", the dashed line,",
        _ => "",
    };
    match example.normalizer {
        Normalizer::Softmax | Normalizer::Hardmax => {}
        Normalizer::Sink => say(format!(
            "The sink's score is {}. It takes a share of each row ({}) and adds nothing to the context.",
            short(parameters.sink.unwrap_or(0.0)),
            each(&|query| 1.0 - sum(query))
        )),
        Normalizer::Sparsemax => say(format!(
            "A score up to τ ({}){line} gets weight 0 exactly.",
            each(&|query| explanation.thresholds[query])
        )),
        Normalizer::Entmax15 => say(format!(
            "A score up to 2τ ({}){line} gets weight 0 exactly.",
            each(&|query| explanation.thresholds[query])
        )),
        Normalizer::Sigmoid => say(format!(
            "Each key is weighed by itself, so a row need not sum to 1 (its sum: {}).",
            each(&sum)
        )),
        Normalizer::HardSample => say(format!(
            "The probabilities are added up from the left; the first key whose sum passes u = {} is drawn.",
            short(parameters.draw.unwrap_or(0.5))
        )),
        Normalizer::Monotonic => {
            let before: f64 = parameters.previous.as_ref().map_or(1.0, |p| p.iter().sum());
            say(format!(
                "A reader goes right from where it stopped for the query before, and stops at a key with its stopping \
                 probability. In a share of the cases ({}) it passes all keys and reads none.",
                each(&|query| before - sum(query))
            ));
        }
        Normalizer::Addressing => say(format!(
            "Each query takes the share g = {} from its content and the rest from the weights before it, then shifts \
             around the circle of keys by the weights {}, then sharpens with γ = {}.",
            short(parameters.gate.unwrap_or(1.0)),
            shifts(parameters.shift.as_deref().unwrap_or(&[1.0])),
            short(parameters.sharpening.unwrap_or(1.0))
        )),
        Normalizer::Identity if example.scorer == Scorer::GaussianWindow => {}
        Normalizer::Identity => say(format!(
            "Nothing is normalised: a weight may be negative or above 1, and a row may have any sum ({}).",
            each(&sum)
        )),
    }
    remarks
}

/// The largest score that a hidden layer of ±1 can give: `Σ|v|`, and `g Σ|v| / ‖v‖` with weight normalisation.
fn largest_additive(example: &Example) -> f64 {
    let parameters = &example.parameters;
    let hidden = match (&parameters.query_weight, example.queries.first()) {
        (Some(weight), _) => weight.len(),
        (None, query) => query.map_or(0, Vec::len),
    };
    let ones = vec![1.0; hidden];
    let vector = parameters.vector.as_ref().unwrap_or(&ones);
    let sum: f64 = vector.iter().map(|x| x.abs()).sum();
    let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    match example.scorer {
        Scorer::WeightNormAdditive => parameters.gain.unwrap_or(1.0).abs() * sum / length,
        _ => sum,
    }
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

/// `0.2 (stay), 0.8 (by +1)`: the shares of shifts, without those of 0.
fn shifts(weights: &[f64]) -> String {
    let sum: f64 = weights.iter().sum();
    let range = weights.len() as isize / 2;
    let shares = weights.iter().zip(-range..);
    let shares = shares.filter(|(weight, _)| **weight != 0.0);
    let each = shares.map(|(weight, by)| match (number(weight / sum, DIGITS), by) {
        (share, 0) => format!("{share} (stay)"),
        (share, by) => format!("{share} (by {by:+})"),
    });
    each.collect::<Vec<_>>().join(", ")
}
