//! Attention mechanisms worked out step by step on vectors small enough to read: what `regard explain` prints and draws, and the pages with
//! sliders of the viewer. The numbers are those of [`regard_nn::explain`].
//!
//! ```
//! use clap::Parser;
//! use regard_explain::{Explain, tell};
//!
//! #[derive(Parser)]
//! struct Line {
//!     #[command(flatten)]
//!     options: Explain,
//! }
//!
//! let line = Line::parse_from(["explain", "dot", "--query", "1,0", "--keys", "1,0;0,1", "--quiet"]);
//! let told = tell(&line.options)?;
//! assert!(told.printed.contains("0.731"));
//! # Ok::<(), regard_explain::Refused>(())
//! ```
//!
//! | file | what |
//! |---|---|
//! | `lib.rs` | from options to an example, and what to do with its steps |
//! | `options.rs`, `vectors.rs` | the options |
//! | `mask.rs` | `regard explain mask` |
//! | `topic.rs` | whole layers and algorithms |
//! | `print.rs` | steps and lists as text |
//! | `picture.rs` | bars, maps and arrows |
//! | `page.rs` | the same for the viewer: what the options can change, as sliders |
#![deny(missing_docs)]

mod mask;
mod options;
mod page;
mod picture;
mod print;
mod topic;
mod vectors;

pub use options::{Explain, Mechanism, Output, ParameterOptions, SettingOptions, Vectors};
pub use page::{Explanations, known};
pub use vectors::{Matrix, Vector};

use burn::tensor::Device;
use regard_config::nearest;
use regard_nn::{
    Unserved,
    explain::{
        Example, ExplainError, Explanation, Normalizer, Parameters, Scorer, catalogue, explain,
        masks, presets, topics,
    },
    mask::Locality,
};
use regard_trace::diagnose::{Names, Problem, check, check::ProblemError};
use serde_json::{Value, json};

/// The name that asks for a mask in place of a mechanism.
const MASK: &str = "mask";

/// The most tokens of `--length`.
const MOST_TOKENS: usize = 64;

/// What `regard explain` prints, and what it draws.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// For standard output.
    pub printed: String,
    /// The picture with its numbers, if one is asked for.
    pub page: Option<Page>,
}

/// A picture with its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The title.
    pub title: String,
    /// The numbers.
    pub text: String,
    /// The picture.
    pub svg: String,
}

/// Why nothing is explained.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The options contradict themselves, lack something, or name what is not known.
    #[error("{0}")]
    Usage(String),
    /// The numbers cannot be checked.
    #[error(transparent)]
    Check(#[from] ProblemError),
    /// JSON cannot be written.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Works out what the options name.
///
/// # Errors
/// A name that is not known, vectors and parameters that do not fit.
pub fn tell(options: &Explain) -> Result<Told, Refused> {
    if options.list {
        return list(options).map(Told::printed);
    }
    let name = options.name.as_deref().unwrap_or_default();
    if name == MASK {
        return mask::tell(options);
    }
    if let Ok(found) = topics::find(name) {
        return topic::tell(found, options);
    }
    let example = example(name, options)?;
    if options.output.path {
        return path(&example, options).map(Told::printed);
    }
    let explanation = explain(&example).map_err(refused)?;
    let findings = match options.output.check {
        true => Some(findings(&example, &explanation)?),
        false => None,
    };
    let Explanation {
        mechanism,
        summary,
        formula,
        source,
        steps,
        ..
    } = &explanation;
    let head = print::head(mechanism, source, &[summary, formula]);
    let text = print::text(&head, steps, print::DIGITS, options);
    let page = options.output.draws().then(|| Page {
        title: mechanism.clone(),
        text: text.clone(),
        svg: picture::draw(&example, &explanation).svg(),
    });
    let printed = match options.output.json {
        true => {
            let mut value = serde_json::to_value(&explanation)?;
            if let (Some(findings), Value::Object(object)) = (findings, &mut value) {
                object.insert("findings".to_owned(), json!(findings));
            }
            format!("{}\n", serde_json::to_string_pretty(&value)?)
        }
        false => match findings {
            Some(findings) => text + &print::findings(&findings, example.locality),
            None => text,
        },
    };
    Ok(Told { printed, page })
}

impl Told {
    fn printed(printed: String) -> Self {
        Self {
            printed,
            page: None,
        }
    }
}

/// Which kernel serves the mechanism, or why none does.
fn path(example: &Example, options: &Explain) -> Result<String, Refused> {
    let name = example.name();
    let plan = example.plan(&Device::flex()).map_err(refused)?;
    let text = match (options.output.json, &plan) {
        (true, plan) => {
            let kernel = plan.as_ref().ok().map(ToString::to_string);
            let unserved = plan.as_ref().err().map(Unserved::what);
            let value = json!({ "mechanism": name, "kernel": kernel, "unserved": unserved });
            serde_json::to_string_pretty(&value)?
        }
        (false, Ok(plan)) => format!("{name}: {plan}"),
        (false, Err(unserved)) => format!("{name}: {unserved}"),
    };
    Ok(format!("{text}\n"))
}

/// The example of a preset or mechanism, with the options applied to it.
fn example(name: &str, options: &Explain) -> Result<Example, Refused> {
    if let Some(extra) = &options.mask_to_draw {
        return Err(Refused::Usage(format!(
            "unexpected argument {extra:?} after {name:?}; a mask of its own is drawn by \
             `regard explain mask {extra:?}`, one on a mechanism is given by --mask"
        )));
    }
    if options.output.size.is_some() {
        return Err(Refused::Usage(
            "--size is for `regard explain mask`; a mechanism has as many queries and keys as are given"
                .to_owned(),
        ));
    }
    let given = options.parameters();
    let (vectors, mechanism) = (&options.vectors, &options.mechanism);
    let preset = presets::find(name).ok();
    let mut example = match (preset, &vectors.query) {
        (Some(preset), _) => preset.example(),
        (None, None) => named(name, Example::on_words)?,
        (None, Some(_)) => named(name, Example::new)?,
    };
    for (setting, count) in options.settings() {
        if setting != "length" {
            return Err(refused(example.not_taken(setting)));
        }
        if preset.is_some() || vectors.query.is_some() {
            return Err(Refused::Usage(
                "--length is for mechanisms without vectors: it gives them tokens as queries and keys".to_owned(),
            ));
        }
        if !(1..=MOST_TOKENS).contains(&count) {
            return Err(Refused::Usage(format!(
                "--length {count}: expected 1 to {MOST_TOKENS}"
            )));
        }
        example.read_tokens(count);
    }
    match (&vectors.query, &vectors.keys) {
        (Some(queries), Some(keys)) => {
            example.queries = queries.0.clone();
            example.keys = keys.0.clone();
            example.values = None;
            (example.query_names, example.key_names) = (Vec::new(), Vec::new());
        }
        (None, None) => {}
        (given, _) => {
            let missing = if given.is_some() { "--keys" } else { "--query" };
            return Err(Refused::Usage(format!(
                "{missing} is missing: give both --query and --keys, or neither for an example"
            )));
        }
    }
    if let Some(values) = &vectors.values {
        example.values = Some(values.0.clone());
    }
    if !vectors.query_names.is_empty() {
        example.query_names = vectors.query_names.clone();
    }
    if !vectors.key_names.is_empty() {
        example.key_names = vectors.key_names.clone();
    }
    if let Some(normalizer) = &mechanism.normalizer {
        example.normalizer = Normalizer::named(normalizer).map_err(refused)?;
    }
    let own = example.mask.take();
    let in_place = example.is_sparse() && mechanism.mask.is_some();
    example.mask = masked(own.filter(|_| !in_place), options);
    if let Some(half_width) = mechanism.half_width {
        example.locality = match example.locality {
            Locality::Monotonic { .. } => Locality::Monotonic { half_width },
            Locality::Predictive { .. } => Locality::Predictive { half_width },
            Locality::Global => {
                let message = refusal(example.not_taken("half width"));
                let width = half_width.saturating_add(1);
                return Err(Refused::Usage(format!(
                    "{message}; --mask window:{width} shows as many keys"
                )));
            }
        };
    }
    // NTM's example has parameters of its own, which stay unless the options give others.
    let own = std::mem::take(&mut example.parameters);
    example.parameters = match example.normalizer {
        Normalizer::Addressing => Parameters {
            gate: given.gate.or(own.gate),
            shift: given.shift.or(own.shift),
            sharpening: given.sharpening.or(own.sharpening),
            ..given
        },
        _ => given,
    };
    Ok(example)
}

/// The mask `own` combined with --mask and --causal.
fn masked(own: Option<String>, options: &Explain) -> Option<String> {
    let causal = options.mechanism.causal.then(|| "causal".to_owned());
    let masks = [own, options.mechanism.mask.clone(), causal];
    masks.into_iter().flatten().reduce(both)
}

/// The text of a mask that shows a key only where both do; `&` binds before `|`.
fn both(a: String, b: String) -> String {
    let whole = |mask: String| match mask.contains('|') {
        true => format!("({mask})"),
        false => mask,
    };
    format!("{} & {}", whole(a), whole(b))
}

fn named(
    name: &str,
    example: impl Fn(&str) -> Result<Example, ExplainError>,
) -> Result<Example, Refused> {
    example(name).map_err(|error| match error {
        ExplainError::Unknown {
            what,
            name,
            mut known,
        } => {
            known.extend(presets::PRESETS.iter().map(|preset| preset.name));
            known.extend(topics::names());
            known.push(MASK);
            refused(ExplainError::Unknown { what, name, known })
        }
        error => refused(error),
    })
}

/// An error of the example, reported as an error of the command line.
fn refused(error: ExplainError) -> Refused {
    Refused::Usage(refusal(error))
}

fn refusal(error: ExplainError) -> String {
    match &error {
        ExplainError::Unknown { name, known, .. } => match nearest(name, known) {
            Some(near) => format!("{error}; did you mean {near:?}?"),
            None => format!("{error}; `regard explain --list` names them all"),
        },
        ExplainError::NotTaken {
            parameter,
            mechanism,
            taken,
        } => {
            let taken: Vec<String> = taken.iter().map(|name| option(name)).collect();
            format!(
                "{} is no option of {mechanism}, which has {}; every mechanism also has --mask, --causal, --normalizer \
                 and --length",
                option(parameter),
                taken.join(", ")
            )
        }
        error => error.to_string(),
    }
}

/// The option of a parameter: `--query-weight`.
fn option(parameter: &str) -> String {
    format!("--{}", parameter.replace(' ', "-"))
}

/// Explains uniform or saturated weights.
fn findings(example: &Example, explanation: &Explanation) -> Result<Vec<String>, Refused> {
    let scale = match (example.scorer, example.normalizer) {
        (Scorer::Dot, Normalizer::Softmax) => Some(1.0),
        (Scorer::ScaledDot, Normalizer::Softmax) => example.parameters.scale,
        (scorer, normalizer) => {
            return Err(Refused::Usage(format!(
                "--check looks at the softmax of dot products; the weights of {} are made otherwise (score {}, \
                 weights {}). Use it with dot, scaled-dot, causal, local-m, local-p or a preset",
                example.name(),
                scorer.formula(),
                normalizer.formula()
            )));
        }
    };
    let size = example.queries.first().map_or(0, Vec::len);
    let mut problem = Problem::new(&example.queries.concat(), &example.keys.concat(), size)
        .mask(&explanation.seen.concat());
    if let Some(scale) = scale {
        problem = problem.scale(scale);
    }
    if let Some(softcap) = example.parameters.softcap {
        problem = problem.softcap(softcap);
    }
    let names = Names {
        queries: &explanation.queries,
        keys: &explanation.keys,
    };
    let findings = check(&problem)?;
    Ok(findings.iter().map(|finding| finding.told(names)).collect())
}

fn list(options: &Explain) -> Result<String, Refused> {
    Ok(match options.output.json {
        true => {
            let value = json!({
                "mechanisms": &catalogue::MECHANISMS[..],
                "topics": &topics::TOPICS[..],
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
    })
}
