//! `regard explain`: a mechanism at work, step by step.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | from options to an example, and what to do with its steps |
//! | [`mask`] | `regard explain mask` |
//! | [`print`] | steps and lists as text |
//! | [`picture`] | arrows and heat maps |

mod mask;
mod picture;
mod print;

pub(super) use print::columns;

use regard_models::config::nearest;
use regard_nn::{
    explain::{
        Example, ExplainError, Explanation, Normalizer, Scorer, catalogue, explain, masks, presets,
    },
    mask::Locality,
};
use regard_trace::diagnose::{Problem, check};
use serde_json::{Value, json};

use crate::{arguments::Explain, failure::Failure, output};

/// What is drawn in place of a mechanism.
const MASK: &str = "mask";

/// Explains.
///
/// # Errors
/// A name that is not known, vectors and parameters that do not fit, a picture that cannot be written.
pub fn run(options: &Explain) -> Result<(), Failure> {
    if options.list {
        return list(options);
    }
    let name = options.name.as_deref().unwrap_or_default();
    if name == MASK {
        return mask::run(options);
    }
    if let Some(extra) = &options.mask_to_draw {
        return Err(Failure::Usage(format!(
            "unexpected argument {extra:?} after {name:?}; a mask of its own is drawn by \
             `regard explain mask {extra:?}`, one on a mechanism is given by --mask"
        )));
    }
    if options.size.is_some() {
        return Err(Failure::Usage(
            "--size is for `regard explain mask`; a mechanism has as many queries and keys as are given"
                .to_owned(),
        ));
    }
    let example = example(name, options)?;
    let explanation = explain(&example).map_err(refused)?;
    let findings = match options.check {
        true => Some(findings(&example, &explanation)?),
        false => None,
    };
    picture::write(options, &example, &explanation)?;
    let text = match options.json {
        true => {
            let mut value = serde_json::to_value(&explanation)?;
            if let (Some(findings), Value::Object(object)) = (findings, &mut value) {
                object.insert("findings".to_owned(), json!(findings));
            }
            format!("{}\n", serde_json::to_string_pretty(&value)?)
        }
        false => {
            let mut text = print::explanation(&explanation, options.digits, options.quiet);
            if let Some(findings) = findings {
                text.push_str(&print::findings(&findings));
            }
            text
        }
    };
    output::print(&text)
}

/// The example of a preset or mechanism, with everything that the options say of it.
fn example(name: &str, options: &Explain) -> Result<Example, Failure> {
    let preset = presets::find(name).ok();
    let mut example = match preset {
        Some(preset) => preset.example(),
        None => named(name)?,
    };
    match (&options.query, &options.keys) {
        (Some(queries), Some(keys)) => {
            example.queries = queries.0.clone();
            example.keys = keys.0.clone();
            (example.query_names, example.key_names) = (Vec::new(), Vec::new());
        }
        (None, None) => {
            if preset.is_none() {
                let words = presets::find("words").map_err(refused)?.example();
                example.queries = words.queries;
                example.keys = words.keys;
                example.query_names = words.query_names;
                example.key_names = words.key_names;
            }
        }
        (given, _) => {
            let missing = if given.is_some() { "--keys" } else { "--query" };
            return Err(Failure::Usage(format!(
                "{missing} is missing: give both --query and --keys, or neither for an example"
            )));
        }
    }
    example.values = options.values.as_ref().map(|values| values.0.clone());
    if !options.query_names.is_empty() {
        example.query_names = options.query_names.clone();
    }
    if !options.key_names.is_empty() {
        example.key_names = options.key_names.clone();
    }
    if let Some(normalizer) = &options.normalizer {
        example.normalizer = Normalizer::named(normalizer).map_err(refused)?;
    }
    let own = example.mask.take();
    let given = options.mask.clone();
    let causal = options.causal.then(|| "causal".to_owned());
    example.mask = own
        .into_iter()
        .chain(given)
        .chain(causal)
        .reduce(|a, b| format!("({a}) & ({b})"));
    if let Some(width) = options.half_width {
        example.locality = match example.locality {
            Locality::Monotonic { .. } => Locality::Monotonic { half_width: width },
            Locality::Predictive { .. } => Locality::Predictive { half_width: width },
            Locality::Global => {
                return Err(Failure::Usage(format!(
                    "--half-width is for local-m and local-p, not for {}; give --mask window:{} instead",
                    example.name(),
                    width.saturating_add(1)
                )));
            }
        };
    }
    let matrix = |matrix: &Option<crate::arguments::Matrix>| matrix.as_ref().map(|m| m.0.clone());
    let vector = |vector: &Option<crate::arguments::Vector>| vector.as_ref().map(|v| v.0.clone());
    let parameters = &mut example.parameters;
    parameters.scale = options.scale;
    parameters.softcap = options.softcap;
    parameters.query_weight = matrix(&options.query_weight);
    parameters.key_weight = matrix(&options.key_weight);
    parameters.vector = vector(&options.vector);
    parameters.bias = vector(&options.bias);
    parameters.gain = options.gain;
    parameters.beta = options.beta;
    parameters.sink = options.sink;
    parameters.sigmoid_bias = options.sigmoid_bias;
    parameters.draw = options.draw;
    parameters.previous = vector(&options.previous);
    parameters.gate = options.gate;
    parameters.shift = vector(&options.shift);
    parameters.sharpening = options.sharpening;
    parameters.position_weight = matrix(&options.position_weight);
    parameters.position_vector = vector(&options.position_vector);
    Ok(example)
}

fn named(name: &str) -> Result<Example, Failure> {
    Example::new(name).map_err(|error| match error {
        ExplainError::Unknown {
            what,
            name,
            mut known,
        } => {
            known.extend(presets::PRESETS.iter().map(|preset| preset.name));
            known.push(MASK);
            refused(ExplainError::Unknown { what, name, known })
        }
        error => refused(error),
    })
}

/// Whatever is wrong with an example is wrong with the command line.
fn refused(error: ExplainError) -> Failure {
    let advice = match &error {
        ExplainError::Unknown { name, known, .. } => match nearest(name, known) {
            Some(near) => format!("; did you mean {near:?}?"),
            None => "; `regard explain --list` names them all".to_owned(),
        },
        _ => String::new(),
    };
    Failure::Usage(format!("{error}{advice}"))
}

/// Why the weights are as they are.
fn findings(example: &Example, explanation: &Explanation) -> Result<Vec<String>, Failure> {
    let scale = match example.scorer {
        Scorer::Dot => Some(1.0),
        Scorer::ScaledDot => example.parameters.scale,
        _ => {
            return Err(Failure::Usage(format!(
                "--check reads dot products; {} has none, leave --check out",
                example.name()
            )));
        }
    };
    let flat =
        |rows: &[Vec<f64>]| -> Vec<f32> { rows.iter().flatten().map(|&x| x as f32).collect() };
    let (query, key) = (flat(&example.queries), flat(&example.keys));
    let seen = match &example.mask {
        None => None,
        Some(text) => {
            let (queries, keys) = (example.queries.len(), example.keys.len());
            let mask = masks::Expression::parse(text).and_then(|mask| mask.table(queries, keys));
            Some(mask.map_err(refused)?.concat())
        }
    };
    let size = explanation
        .context
        .first()
        .map_or(0, |_| example.queries[0].len());
    let mut problem = Problem::new(&query, &key, size);
    if let Some(scale) = scale {
        problem = problem.scale(scale);
    }
    if let Some(seen) = &seen {
        problem = problem.mask(seen);
    }
    Ok(check(&problem)?.iter().map(ToString::to_string).collect())
}

fn list(options: &Explain) -> Result<(), Failure> {
    let text = match options.json {
        true => {
            let value = json!({
                "mechanisms": &catalogue::MECHANISMS[..],
                "presets": &presets::PRESETS[..],
                "normalizers": Normalizer::NAMES.map(|(name, kind)| json!({
                    "name": name,
                    "formula": kind.formula(),
                })),
                "masks": &masks::KINDS[..],
            });
            format!("{}\n", serde_json::to_string_pretty(&value)?)
        }
        false => print::list(),
    };
    output::print(&text)
}
