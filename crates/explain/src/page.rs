//! Worked examples as the viewer asks for them: the options of the command in, steps and sliders out.
//!
//! An option of the page is an option of `regard explain`, read by the same parser and computed by the same functions. Only [`OFFERED`]
//! ones are read: none that names a file.

use clap::{CommandFactory, Parser};
use regard_nn::explain::{
    Example, Normalizer, Parameters, Scorer, Step, catalogue, explain, masks, presets,
    topics::{self, Lesson, Topic},
};
use regard_serve::{
    Control, ControlKind, Explainable, Explained, ExplainedGroup, ExplainedStep, Explainer,
};
use regard_view::label::number;

use crate::{Explain, MASK, Refused, example, mask, named, picture, print, refused, topic};

/// Most decimals of a value that a slider shows at first.
const DIGITS: u8 = 4;

/// The most queries and keys of a mask on the page.
const LARGEST_MASK: usize = 64;

/// The mask that is drawn unless another is named.
const USUAL_MASK: &str = "window:3 & causal";

/// The mechanisms, layers, algorithms, presets and masks of `regard explain`.
pub struct Explanations;

/// The options of `regard explain` as the page gives them.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Line {
    #[command(flatten)]
    options: Explain,
}

type Given = [(String, String)];

impl Explainer for Explanations {
    fn list(&self) -> Vec<ExplainedGroup> {
        let entry = |name: &str, aliases: &[&str], about: &str| Explainable {
            name: name.to_owned(),
            aliases: aliases.iter().map(|&alias| alias.to_owned()).collect(),
            about: about.to_owned(),
        };
        let group = |name: &str, entries: Vec<Explainable>| ExplainedGroup {
            name: name.to_owned(),
            entries,
        };
        let mechanisms = catalogue::MECHANISMS.iter();
        let topics = topics::TOPICS.iter();
        let presets = presets::PRESETS.iter();
        vec![
            group(
                "Mechanisms",
                mechanisms
                    .map(|one| entry(one.name, one.aliases, one.summary))
                    .collect(),
            ),
            group(
                "Layers and algorithms",
                topics
                    .map(|one| entry(one.name, one.aliases, one.summary))
                    .collect(),
            ),
            group(
                "Presets",
                presets
                    .map(|one| entry(one.name, &[], one.summary))
                    .collect(),
            ),
            group(
                "Masks",
                vec![entry(
                    MASK,
                    &[],
                    "what each query may see, and what it costs",
                )],
            ),
        ]
    }

    fn explain(&self, name: &str, options: &Given) -> Result<Explained, String> {
        worked(name, options).map_err(|refused| refused.to_string())
    }
}

/// What this name stands for. A near miss is told the right one.
///
/// # Errors
/// A name that is not known.
pub fn known(name: &str) -> Result<(), Refused> {
    let is_known = name == MASK || topics::find(name).is_ok() || presets::find(name).is_ok();
    match is_known {
        true => Ok(()),
        false => named(name, Example::new).map(drop),
    }
}

fn worked(name: &str, given: &Given) -> Result<Explained, Refused> {
    known(name)?;
    let mut given = given.to_vec();
    if name == MASK && !given.iter().any(|(option, _)| option == "mask") {
        given.push(("mask".to_owned(), USUAL_MASK.to_owned()));
    }
    complete_vectors(name, &mut given)?;
    let options = parse(name, &given)?;
    let mut explained = if name == MASK {
        of_mask(&options)?
    } else if let Ok(found) = topics::find(name) {
        of_topic(found, &options)?
    } else {
        of_example(name, &options)?
    };
    let offered = |option: &str| {
        let names = ["query-names", "key-names"];
        names.contains(&option) || explained.controls.iter().any(|one| one.option == option)
    };
    if let Some((option, _)) = given.iter().find(|(option, _)| !offered(option)) {
        return Err(Refused::Usage(format!(
            "{name} has no {option:?} on this page"
        )));
    }
    explained.command = command(name, &given);
    Ok(explained)
}

/// Queries and keys are given together: what is missing is taken from the example.
fn complete_vectors(name: &str, given: &mut Vec<(String, String)>) -> Result<(), Refused> {
    let has = |given: &Given, option: &str| given.iter().any(|(known, _)| known == option);
    if !has(given, "query") && !has(given, "keys") {
        return Ok(());
    }
    let base: Vec<_> = given
        .iter()
        .filter(|(option, _)| option == "length")
        .cloned()
        .collect();
    let base = example(name, &parse(name, &base)?)?;
    given.retain(|(option, _)| option != "length");
    for (option, value) in [
        ("query", text_of(&base.queries)),
        ("keys", text_of(&base.keys)),
        ("query-names", base.query_names.join(",")),
        ("key-names", base.key_names.join(",")),
    ] {
        if !value.is_empty() && !has(given, option) {
            given.push((option.to_owned(), value));
        }
    }
    Ok(())
}

/// Reads the options. Names that name files, or that are no options, do not come this far.
fn parse(name: &str, given: &Given) -> Result<Explain, Refused> {
    let takes = |option: &str| OFFERED.contains(&option);
    if let Some((option, _)) = given.iter().find(|(option, _)| !takes(option)) {
        return Err(Refused::Usage(format!(
            "there is no option {option:?} on this page"
        )));
    }
    let options = given
        .iter()
        .map(|(option, value)| format!("--{option}={value}"));
    let words = options.chain(["--".to_owned(), name.to_owned()]);
    let line = Line::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        let first = text.split("\n\n").next().unwrap_or_default();
        Refused::Usage(first.trim_start_matches("error: ").to_owned())
    })?;
    Ok(line.options)
}

/// The options that the page may give.
const OFFERED: [&str; 34] = [
    "normalizer",
    "mask",
    "size",
    "length",
    "dimension",
    "base",
    "heads",
    "tile",
    "buckets",
    "max-distance",
    "kernel",
    "patch",
    "scale",
    "softcap",
    "half-width",
    "gain",
    "beta",
    "sink",
    "sigmoid-bias",
    "draw",
    "previous",
    "gate",
    "shift",
    "sharpening",
    "query-weight",
    "key-weight",
    "vector",
    "bias",
    "position-weight",
    "position-vector",
    "query",
    "keys",
    "query-names",
    "key-names",
];

/// The command line that prints the same.
fn command(name: &str, given: &Given) -> String {
    let plain = |text: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.,:".contains(c);
        match !text.is_empty() && text.chars().all(is_plain) {
            true => text.to_owned(),
            false => format!("'{}'", text.replace('\'', "'\\''")),
        }
    };
    let mut words = vec!["regard explain".to_owned(), name.to_owned()];
    for (option, value) in given {
        words.push(match option.as_str() {
            "mask" if name == MASK => plain(value),
            _ if value.starts_with('-') => format!("--{option}={}", plain(value)),
            _ => format!("--{option} {}", plain(value)),
        });
    }
    words.join(" ")
}

fn steps(steps: &[Step]) -> Vec<ExplainedStep> {
    let step = |step: &Step| ExplainedStep {
        name: step.name.clone(),
        formula: step.formula.clone(),
        columns: step.table.columns.clone(),
        rows: (step.table.rows.iter())
            .map(|row| (row.name.clone(), row.cells.clone()))
            .collect(),
    };
    steps.iter().map(step).collect()
}

fn of_mask(options: &Explain) -> Result<Explained, Refused> {
    let mask::Drawn {
        text,
        seen,
        told,
        picture,
        ..
    } = mask::draw(options, LARGEST_MASK)?;
    let (queries, keys) = (seen.len(), seen.first().map_or(0, Vec::len));
    let head = told.lines().next().unwrap_or_default();
    let foot = told.lines().last().unwrap_or_default();
    let size = match queries == keys {
        true => queries.to_string(),
        false => format!("{queries}x{keys}"),
    };
    Ok(Explained {
        name: MASK.to_owned(),
        summary: "what each query may see".to_owned(),
        formula: text.clone(),
        remarks: vec![head.to_owned(), foot.to_owned()],
        svg: picture.svg(),
        controls: vec![
            mask_control(&text),
            slider("size", size, 1.0, LARGEST_MASK as f64, 1.0),
        ],
        text: told,
        ..Explained::default()
    })
}

fn of_topic(found: &Topic, options: &Explain) -> Result<Explained, Refused> {
    let lesson = topic::work(found, options)?;
    let control = |setting: &topics::Setting| {
        let values = setting.values.iter().map(usize::to_string).collect();
        let numbers = lesson.numbers.iter();
        let mut now = numbers.filter(|(name, _)| *name == setting.name);
        let now = now.next().map_or(setting.default, |(_, value)| *value);
        Control::new(
            setting.name,
            about(setting.name),
            ControlKind::Values(values),
            now.to_string(),
        )
    };
    let controls = found.settings.iter().map(control).collect();
    let text = topic::text(found, &lesson, options);
    let svg = picture::lesson(&lesson).svg();
    let Lesson {
        mechanism,
        summary,
        formula,
        source,
        remarks,
        ..
    } = lesson;
    Ok(Explained {
        name: mechanism,
        summary,
        formula,
        source,
        command: String::new(),
        steps: steps(&lesson.steps),
        remarks,
        svg,
        text,
        controls,
    })
}

fn of_example(name: &str, options: &Explain) -> Result<Explained, Refused> {
    let example = example(name, options)?;
    let explanation = explain(&example).map_err(refused)?;
    let head = print::head(
        &explanation.mechanism,
        &explanation.source,
        &[&explanation.summary, &explanation.formula],
    );
    Ok(Explained {
        command: String::new(),
        steps: steps(&explanation.steps),
        remarks: picture::remarks(&example, &explanation),
        svg: picture::draw(&example, &explanation).svg(),
        text: print::text(&head, &explanation.steps, print::DIGITS, options),
        controls: controls(
            name,
            &example,
            options,
            &explanation.queries,
            &explanation.keys,
        ),
        name: explanation.mechanism,
        summary: explanation.summary,
        formula: explanation.formula,
        source: explanation.source,
    })
}

/// What of an example can be changed.
fn controls(
    name: &str,
    example: &Example,
    options: &Explain,
    queries: &[String],
    keys: &[String],
) -> Vec<Control> {
    let normalizers = Normalizer::NAMES.map(|(name, _)| name.to_owned()).to_vec();
    let of_normalizers = [
        "sink",
        "sigmoid-bias",
        "draw",
        "previous",
        "gate",
        "shift",
        "sharpening",
    ];
    let mut all = vec![Control {
        replaces: of_normalizers.map(str::to_owned).to_vec(),
        ..Control::new(
            "normalizer",
            about("normalizer"),
            ControlKind::Choice(normalizers),
            example.normalizer.name(),
        )
    }];
    // Its own mask is combined with one that is given; that of a sparse mechanism is the one to change.
    let shown = match example.is_sparse() {
        true => example.mask.clone(),
        false => options.mechanism.mask.clone(),
    };
    all.push(mask_control(&shown.unwrap_or_default()));
    // The queries of these two have a size that tokens do not have.
    let fits = !matches!(example.scorer, Scorer::GaussianWindow | Scorer::Location);
    let has_tokens = presets::find(name).is_err() && fits;
    if has_tokens {
        let count = example.queries.len().to_string();
        all.push(Control {
            replaces: ["query", "keys", "query-names", "key-names", "previous"]
                .map(str::to_owned)
                .to_vec(),
            ..slider("length", count, 1.0, 16.0, 1.0)
        });
    }
    let filled = example.filled();
    all.extend(
        example
            .takes()
            .into_iter()
            .filter_map(|name| parameter(name, example, &filled, keys)),
    );
    for (option, vectors, names) in [
        ("query", &example.queries, queries),
        ("keys", &example.keys, keys),
    ] {
        all.push(matrix(option, vectors, names));
    }
    all
}

/// The control of a parameter that the example reads.
fn parameter(
    name: &str,
    example: &Example,
    filled: &Parameters,
    keys: &[String],
) -> Option<Control> {
    let option = name.replace(' ', "-");
    let scalar = |value: Option<f64>, least: f64, most: f64, step: f64| {
        let value = value.map_or(String::new(), |value| number(value, DIGITS));
        Some(slider(&option, value, least, most, step))
    };
    let rows =
        |value: &Option<Vec<Vec<f64>>>| value.as_ref().map(|rows| matrix(&option, rows, &[]));
    let row = |value: &Option<Vec<f64>>, name: &str| {
        let rows = [value.clone()?];
        Some(matrix(&option, &rows, &[name.to_owned()]))
    };
    match name {
        "scale" => scalar(filled.scale, 0.0, 5.0, 0.05),
        "softcap" => scalar(filled.softcap, 0.1, 10.0, 0.1),
        "query weight" => rows(&filled.query_weight),
        "key weight" => rows(&filled.key_weight),
        "vector" => row(&filled.vector, "v"),
        "bias" => row(&filled.bias, "b"),
        "gain" => scalar(filled.gain, -5.0, 5.0, 0.1),
        "beta" => scalar(filled.beta, 0.0, 20.0, 0.1),
        "half width" => {
            let width = example.half_width()?.to_string();
            Some(slider(&option, width, 1.0, keys.len().max(4) as f64, 1.0))
        }
        "position weight" => rows(&filled.position_weight),
        "position vector" => row(&filled.position_vector, "v_p"),
        "sink" => scalar(filled.sink, -5.0, 5.0, 0.1),
        "sigmoid bias" => scalar(filled.sigmoid_bias, -5.0, 5.0, 0.1),
        "draw" => scalar(filled.draw, 0.0, 0.99, 0.01),
        "previous" => shares(row(&filled.previous, "α")),
        "gate" => scalar(filled.gate, 0.0, 1.0, 0.01),
        "shift" => shares(row(&filled.shift, "shift")),
        "sharpening" => scalar(filled.sharpening, 1.0, 20.0, 0.1),
        _ => None,
    }
}

fn slider(option: &str, value: String, least: f64, most: f64, step: f64) -> Control {
    let kind = ControlKind::Slider { least, most, step };
    Control::new(option, about(option), kind, value)
}

/// Weights: from 0 to 1.
fn shares(control: Option<Control>) -> Option<Control> {
    control.map(|mut control| {
        if let ControlKind::Matrix { least, most, .. } = &mut control.kind {
            (*least, *most) = (0.0, 1.0);
        }
        control
    })
}

/// Sliders that reach a round number beyond the largest entry.
fn matrix(option: &str, rows: &[Vec<f64>], names: &[String]) -> Control {
    let largest = rows
        .iter()
        .flatten()
        .fold(1.0, |most: f64, x| most.max(x.abs()));
    let tens = 10f64.powi(largest.log10().floor() as i32);
    let most = [2.0, 5.0, 10.0, 20.0].map(|times| times * tens);
    let most = most
        .into_iter()
        .find(|most| *most > largest)
        .unwrap_or(largest);
    let names = match names.is_empty() {
        true => (1..=rows.len()).map(|row| row.to_string()).collect(),
        false => names.to_vec(),
    };
    let kind = ControlKind::Matrix {
        rows: names,
        least: -most,
        most,
        step: most / 200.0,
    };
    Control::new(option, about(option), kind, text_of(rows))
}

fn mask_control(text: &str) -> Control {
    let usages = masks::KINDS.iter().map(|kind| kind.usage.to_owned());
    let kind = ControlKind::Text {
        usages: usages.collect(),
    };
    Control::new("mask", about("mask"), kind, text)
}

/// `1,2;3,4`
fn text_of(rows: &[Vec<f64>]) -> String {
    let row = |row: &Vec<f64>| {
        let numbers: Vec<String> = row.iter().map(f64::to_string).collect();
        numbers.join(",")
    };
    let rows: Vec<String> = rows.iter().map(row).collect();
    rows.join(";")
}

/// What the command line says of an option.
fn about(option: &str) -> String {
    let line = Line::command();
    let mut known = line.get_arguments();
    let found = known.find(|argument| argument.get_long() == Some(option));
    let help = found.and_then(|argument| argument.get_help());
    help.map_or(String::new(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_drawn_if_a_picture_is_asked_for() {
        let told = |options: &[&str]| {
            let words = [&["mask", "window:3", "--size", "512"][..], options].concat();
            mask::tell(&Line::try_parse_from(words).unwrap().options).unwrap()
        };
        assert_eq!(told(&[]).page, None);
        // A rectangle for each of its 262,144 pairs would take 30 MB.
        let page = told(&["--svg", "mask.svg"]).page.unwrap();
        assert!(page.svg.len() < 100_000, "{}", page.svg.len());
        assert!(page.svg.contains("data:image/png;base64,"));
    }

    #[test]
    fn large_masks_are_refused_before_they_are_drawn() {
        for list in [
            format!("keep:{}", "1".repeat(20_000)),
            format!("document:{}", vec!["0"; 20_000].join(",")),
            format!("local-p:2:{}", vec!["0"; 20_000].join(",")),
        ] {
            let given = [("mask".to_owned(), list)];
            let error = Explanations.explain(MASK, &given).unwrap_err();
            assert!(
                error.contains("20000 queries") && error.contains("at most 64"),
                "{error}"
            );
            let error = mask::tell(&parse(MASK, &given).unwrap()).unwrap_err();
            assert!(error.to_string().contains("at most 512"), "{error}");
        }
    }
}
