//! `regard evaluate`: scores of files and models.
//!
//! | file | what |
//! |---|---|
//! | [`data`] | source, references and gold alignment, from files or from a recipe |
//! | [`systems`] | the translations to score: read, or made by a model |
//! | [`report`] | all results, as text or JSON |
//! | [`captions`] | captioners, scored by their captions and by where they looked |
//! | [`intervals`] | intervals of scores of images, and comparisons by them |
//! | [`labels`] | classifiers of sentences, scored by their accuracy |
//! | [`objects`] | detectors, scored by their average precision |
//! | [`questions`] | models that answer questions about images |
//! | [`text`] | language models, scored on a text |
//! | [`lengths`] | the table of scores by length, and its picture |

mod captions;
mod data;
mod intervals;
mod labels;
mod lengths;
mod objects;
mod questions;
mod report;
mod systems;
mod text;

use std::path::{Path, PathBuf};

use regard_evaluate::{
    Aer, Alignment, Bleu, Bootstrap, Chrf, Indexing, Metric, SegmentCounts, lines,
};
use regard_train::{
    Registry, model_file,
    recipe::{Recipe, SceneData, SceneSet, Split, Translation as Settings, idx_labels},
    tasks::LanguageModelling,
};
use regard_view::label::visible;
use serde_json::Value;

use crate::{
    arguments::{Evaluate, MetricName, Named, Part},
    failure::{CommandError, Failure},
    input, output, ranks,
};
use data::Data;
use intervals::Unit;
pub use lengths::{chart as length_chart, draw as draw_lengths};
use report::Judged;
pub use report::{Comparison, Report};
use systems::System;

/// Scores the systems that the options name.
///
/// # Errors
/// Options that lack or contradict something, files that are wrong.
pub fn run(options: &Evaluate) -> Result<(), Failure> {
    expect_apart(options)?;
    written(options).try_for_each(|path| output::expect_writable(path))?;
    if let Some(path) = &options.text {
        return text::run(options, path);
    }
    for named in &options.model {
        if Registry::default().holds::<LanguageModelling>(&named.path) {
            return Err(Failure::Usage(format!(
                "{}: a language model is scored on a text; give --text FILE in place of --split, --source or --labelled",
                named.path.display()
            )));
        }
    }
    if options.language.stored.storage().is_some() {
        return Err(Failure::Usage(
            "--weights is for language models; give --text FILE, or leave it out".to_owned(),
        ));
    }
    if options.lengths.asked() && !options.by_length {
        return Err(Failure::Usage(
            "--buckets, --least-sentences, --svg, --png and --html show scores by length; give --by-length too"
                .to_owned(),
        ));
    }
    if captions::wanted(options) {
        return captions::run(options);
    }
    if objects::wanted(options) {
        return objects::run(options);
    }
    if questions::wanted(options) {
        return questions::run(options);
    }
    if labels::wanted(options) {
        return labels::run(options);
    }
    check(options)?;
    if let (Some(found), Some(gold)) = (&options.alignments, &options.gold) {
        let found = alignments(found, options.one_based)?;
        let gold = data::gold(gold, options.one_based)?;
        let aer = Aer::of(&found, &gold)?;
        return output::print(&report::alignment(&aer, options)?);
    }
    let report = options.compute.run(None, |_| report(options))?;
    let printed = output::print(&report.print(options)?);
    if let Some(table) = report.by_length.first() {
        lengths::draw(table, &options.lengths)?;
    }
    printed
}

/// Translates with the models, and scores all systems.
///
/// # Errors
/// Files that are wrong.
pub fn report(options: &Evaluate) -> Result<Report, Failure> {
    let data = Data::load(options)?;
    let others = compared(options, &data)?;
    let systems = systems::all(options, &data)?;
    score(options, &data, &systems, &others)
}

/// The scores of a model that does not translate, for a table.
pub struct Scored {
    /// Names of scores, and what stands below them.
    pub columns: Vec<(&'static str, String)>,
    /// The same as keys.
    pub json: Value,
    /// Which examples it got right, where each is right or wrong.
    pub right: Option<Vec<bool>>,
    /// Scores of its images compared with those of the first model.
    pub comparisons: Vec<Comparison>,
}

/// The scores of models that do not translate, in the order of the options.
///
/// # Errors
/// Files that are wrong.
pub fn scores(options: &Evaluate) -> Result<Vec<Scored>, Failure> {
    if captions::wanted(options) {
        captions::scores(options)
    } else if objects::wanted(options) {
        objects::scores(options)
    } else if questions::wanted(options) {
        questions::scores(options)
    } else {
        labels::scores(options)
    }
}

/// Refuses files to write that would take the place of files that are read, or of each other.
fn expect_apart(options: &Evaluate) -> Result<(), Failure> {
    let named = options.hypotheses.iter().chain(&options.model);
    let named = named.chain(options.bootstrap.iter().flatten());
    let single = [&options.source, &options.labelled, &options.text];
    let aligned = [&options.alignments, &options.gold];
    let read = named.map(|named| &named.path).chain(&options.references);
    let read = read.chain(single.into_iter().chain(aligned).flatten());
    let models = options.model.iter();
    let models: Vec<PathBuf> = models
        .flat_map(|named| output::model_files(&named.path))
        .collect();
    let data = data_paths(options);
    let read = read.chain(&models).chain(&data);
    output::expect_apart(read, written(options).map(|path| (path, false)))?;
    output::expect_outside(&data, written(options))
}

/// The files that are written.
fn written(options: &Evaluate) -> impl Iterator<Item = &PathBuf> {
    options.output.iter().chain(options.lengths.drawing.files())
}

/// The files and folders of `--labelled`, and with `--split` those that the models' recipes name. A recipe that cannot be read names none.
fn data_paths(options: &Evaluate) -> Vec<PathBuf> {
    let mut paths = with_labels(options.labelled.iter().cloned().collect());
    if options.split.is_some() {
        for named in &options.model {
            if let Ok((_, recipe)) = read_recipe(&named.path) {
                paths.extend(recipe_data(&recipe));
            }
        }
    }
    paths
}

/// The files and folders that a recipe names as data.
pub fn recipe_data(recipe: &Recipe) -> Vec<PathBuf> {
    let mut paths = vec![];
    if let Ok(data) = serde_json::to_value(&recipe.data) {
        add_paths(&data, &mut paths);
    }
    with_labels(paths)
}

/// Data, and the file of labels beside MNIST's images.
fn with_labels(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    let labels = paths.iter().filter_map(|path| idx_labels(path));
    let labels: Vec<PathBuf> = labels.flatten().collect();
    paths.extend(labels);
    paths
}

/// Adds the texts of settings that are paths of something, but for names of languages.
fn add_paths(settings: &Value, paths: &mut Vec<PathBuf>) {
    match settings {
        Value::String(text) => paths.extend(Some(PathBuf::from(text)).filter(|path| path.exists())),
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields = fields.filter(|(name, _)| !name.ends_with("_language"));
            fields.for_each(|(_, value)| add_paths(value, paths));
        }
        _ => {}
    }
}

/// Refuses options for translations, which would not be heeded where something else is scored; `why` says what.
fn expect_no_translation(options: &Evaluate, why: &str) -> Result<(), Failure> {
    let given = [
        ("--hypotheses", !options.hypotheses.is_empty()),
        ("--references", !options.references.is_empty()),
        ("--source", options.source.is_some()),
        ("--resume", options.resume),
        ("--by-length", options.by_length),
        (
            "--gold",
            options.gold.is_some() && options.alignments.is_none(),
        ),
        ("--bootstrap", options.bootstrap.is_some()),
        ("--confidence", options.confidence),
        ("--metric", options.metric[..] != [MetricName::Bleu]),
        ("--lowercase", options.lowercase),
    ];
    match first_given(given.into_iter().chain(of_bleu(options))) {
        None => Ok(()),
        Some(option) => Err(Failure::Usage(format!(
            "{option} is for scores of translations; {why}: leave it out"
        ))),
    }
}

/// Refuses options of a bootstrap where there is none; `why` says so.
fn expect_no_resampling(options: &Evaluate, why: &str) -> Result<(), Failure> {
    match first_given(of_resampling(options)) {
        None => Ok(()),
        Some(option) => Err(Failure::Usage(format!(
            "{option} says how a bootstrap draws; {why}: leave it out"
        ))),
    }
}

/// Refuses options of a search where nothing is searched for; `why` says so.
fn expect_no_search(options: &Evaluate, why: &str) -> Result<(), Failure> {
    match options.search.given() {
        None => Ok(()),
        Some(option) => Err(Failure::Usage(format!(
            "{option} is for models that translate or describe images; {why}: leave it out"
        ))),
    }
}

/// An option, and whether it is given; one that repeats its default counts as not given.
type Given = (&'static str, bool);

/// The options of BLEU alone.
fn of_bleu(options: &Evaluate) -> [Given; 2] {
    let Bleu {
        tokenizer,
        smoothing,
        ..
    } = Bleu::default();
    [
        ("--tokenizer", options.tokenizer != tokenizer),
        ("--smoothing", options.smoothing != smoothing),
    ]
}

/// The options of intervals and comparisons.
fn of_resampling(options: &Evaluate) -> [Given; 2] {
    let Bootstrap { resamples, seed } = Bootstrap::default();
    [
        ("--resamples", options.resamples != resamples),
        ("--seed", options.seed != seed),
    ]
}

fn first_given(all: impl IntoIterator<Item = Given>) -> Option<&'static str> {
    let mut given = all.into_iter().filter(|(_, given)| *given);
    given.next().map(|(option, _)| option)
}

/// The recipe in the run folder that a model is, or lies in; `None` for a model's file without one beside it.
///
/// # Errors
/// A model that is not there.
fn recipe_of(model: &Path) -> Result<Option<PathBuf>, Failure> {
    let file = model_file::locate(model)?;
    let there = file.metadata().map_err(|source| CommandError::Read {
        name: file.display().to_string(),
        source,
    });
    there?;
    Ok(Some(file.with_file_name("recipe.toml")).filter(|recipe| recipe.is_file()))
}

/// The recipe that names the data by which a model is judged, and its file.
///
/// # Errors
/// A model that is not there or has no recipe beside it, a recipe that is wrong.
fn read_recipe(model: &Path) -> Result<(PathBuf, Recipe), Failure> {
    let path = recipe_of(model)?.ok_or_else(|| CommandError::NoRecipe {
        model: model.to_owned(),
    })?;
    let recipe = Registry::default().load(&path, &[])?;
    Ok((path, recipe))
}

/// A part of the drawn `scenes`, with their seed, that a model's file says it learned from; `None` if it says none, or has a recipe
/// beside it, which then names the data.
///
/// # Errors
/// A model that is not there.
fn own_scenes(
    model: &Path,
    scenes: Option<&(SceneData, u64)>,
    split: Split,
) -> Result<Option<SceneSet>, Failure> {
    let alone = recipe_of(model)?.is_none();
    let told = scenes.filter(|_| alone);
    Ok(told.map(|(scenes, seed)| scenes.part(split, *seed)))
}

/// Checks that all ranks have the same model at `path`, if it is no embedded one, the same `inputs` and options, and the same settings of a
/// `search`, if there is one; with `--split` the recipe, too, which says what the inputs are.
fn expect_same<T: AsRef<[u8]>>(
    options: &Evaluate,
    path: Option<&Path>,
    inputs: impl IntoIterator<Item = T>,
    search: Option<&Settings>,
) -> Result<(), Failure> {
    let recipe = match (path, options.split) {
        (Some(path), Some(_)) => recipe_of(path)?,
        _ => None,
    };
    let files = path.map(Path::to_owned).into_iter().chain(recipe);
    let split = options.split.map(|part| match part {
        Part::Valid => "valid",
        Part::Test => "test",
    });
    let asked = format!(
        "{}\n{}\n--gold {}\n--resume {}\n--model {}",
        serde_json::to_string_pretty(&search)?,
        ranks::option("--split", split),
        options.gold.is_some(),
        options.resume,
        options.model.len()
    );
    ranks::expect_same(files, inputs, &asked)
}

/// What is said of images that were left out, as where training begins; nothing if there are none.
fn left_out(count: usize) -> String {
    match count {
        0 => String::new(),
        _ => format!(" (left out, as images or objects cannot be read: {count})"),
    }
}

/// Writes what a model found, a line for each example. Labels and questions are data: what would break a line is written out.
fn write_lines(path: &Path, lines: &[String]) -> Result<(), Failure> {
    let line = |line: &String| match line.is_empty() {
        true => String::new(),
        false => visible(line),
    };
    output::write_lines(path, lines.iter().map(line))
}

/// Checks the options for contradictions that the declaration of the command line cannot express.
fn check(options: &Evaluate) -> Result<(), Failure> {
    let usage = |message: &str| Err(Failure::Usage(message.to_owned()));
    let inputs = options.hypotheses.iter();
    let inputs = inputs.chain(options.bootstrap.iter().flatten());
    let inputs = inputs.map(|named| &named.path).chain(&options.references);
    let single = [&options.source, &options.alignments, &options.gold];
    let inputs = inputs.chain(single.into_iter().flatten());
    if inputs.filter(|path| path.as_os_str() == "-").count() > 1 {
        return usage("standard input (`-`) can be read once only");
    }
    if options.alignments.is_some() {
        if !options.output.is_empty() {
            return usage("--output holds what models write; with --alignments leave it out");
        }
        let why = "--alignments FILE is scored by its error rate";
        expect_no_translation(options, why)?;
        expect_no_resampling(options, why)?;
        return expect_no_search(options, why);
    }
    let files = !options.hypotheses.is_empty();
    let sourced = options.source.is_some() || options.split.is_some();
    if options.references.is_empty() && options.split.is_none() {
        return usage("there is nothing to compare with; give --references FILE");
    }
    if !files && !sourced {
        return usage(
            "there is nothing to score; give --hypotheses FILE, or --source FILE to translate it first",
        );
    }
    if !options.model.is_empty() && !sourced {
        return usage("--model needs a text to translate; give --source FILE or --split test");
    }
    if options.by_length && !sourced {
        return usage("--by-length needs the source text; give --source FILE");
    }
    let models = match options.model.len() {
        0 if files => 0,
        given => given.max(1),
    };
    if !options.output.is_empty() && options.output.len() != models {
        return Err(Failure::Usage(format!(
            "{} --output files for {models} models; give one for each",
            options.output.len()
        )));
    }
    if options.gold.is_some() && models == 0 {
        return usage(
            "--gold needs --alignments FILE, or --model PATH whose attention is compared",
        );
    }
    if models == 0 {
        expect_no_search(options, "--hypotheses are there already")?;
    }
    let resampled = options.confidence || options.bootstrap.is_some();
    if let Some(option) = first_given(of_resampling(options)).filter(|_| !resampled) {
        return Err(Failure::Usage(format!(
            "{option} says how --confidence and --bootstrap are computed; give one of them, or leave it out"
        )));
    }
    let by_bleu = options.metric.contains(&MetricName::Bleu);
    if let Some(option) = first_given(of_bleu(options)).filter(|_| !by_bleu) {
        return Err(Failure::Usage(format!(
            "{option} is an option of BLEU; add it to --metric, or leave it out"
        )));
    }
    if options.lengths.drawing.any() && options.metric.len() > 1 {
        return usage("a picture shows one metric; give one --metric with --svg and --png");
    }
    if let Some(others) = &options.bootstrap
        && others.len() + options.hypotheses.len() + models < 2
    {
        return usage("--bootstrap compares two systems; give a second one, --bootstrap FILE");
    }
    Ok(())
}

fn alignments(path: &Path, one_based: bool) -> Result<Vec<Alignment>, Failure> {
    let text = input::segments(path)?.join("\n") + "\n";
    let name = input::name(path);
    Ok(Alignment::parse(&name, &text, indexing(one_based))?)
}

fn indexing(one_based: bool) -> Indexing {
    match one_based {
        true => Indexing::FromOne,
        false => Indexing::FromZero,
    }
}

fn metrics(options: &Evaluate) -> Vec<Box<dyn Metric>> {
    let lowercase = options.lowercase;
    let metric = |name: &MetricName| -> Box<dyn Metric> {
        match name {
            MetricName::Bleu => Box::new(Bleu {
                tokenizer: options.tokenizer,
                lowercase,
                smoothing: options.smoothing,
                ..Bleu::default()
            }),
            MetricName::Chrf => Box::new(Chrf {
                lowercase,
                ..Chrf::default()
            }),
            MetricName::ChrfPlusPlus => Box::new(Chrf {
                lowercase,
                ..Chrf::plus_plus()
            }),
        }
    };
    options.metric.iter().map(metric).collect()
}

/// The bootstrap that the options describe.
fn bootstrap(options: &Evaluate) -> Bootstrap {
    Bootstrap {
        resamples: options.resamples,
        seed: options.seed,
    }
}

/// Scores `systems`; the first is compared with the rest and with `others`, if that is asked for.
fn score(
    options: &Evaluate,
    data: &Data,
    systems: &[System],
    others: &[System],
) -> Result<Report, Failure> {
    let metrics = metrics(options);
    let bootstrap = bootstrap(options);
    let intervals = options.confidence.then_some(bootstrap);
    let mut report = Report::new(
        systems
            .iter()
            .map(|system| Judged::new(system, data))
            .collect::<Result<_, _>>()?,
    );
    for metric in &metrics {
        let metric = metric.as_ref();
        let count =
            |system: &System| SegmentCounts::collect(metric, &system.lines, &data.references);
        let counts: Vec<SegmentCounts> = systems.iter().map(count).collect::<Result<_, _>>()?;
        for (judged, counts) in report.systems.iter_mut().zip(&counts) {
            let score = metric.report(counts);
            judged.scores.push(match intervals {
                Some(bootstrap) => score.with_confidence(bootstrap.confidence(metric, counts)?),
                None => score,
            });
        }
        if options.bootstrap.is_some() {
            let signature = metric.signature(data.references.len());
            let mut compare = |system: &str, counts_of: &SegmentCounts| -> Result<(), Failure> {
                report.comparisons.push(Comparison {
                    metric: metric.name(),
                    signature: Some(signature.with_bootstrap(options.resamples, options.seed)),
                    unit: Unit::plain(usize::from(options.digits)),
                    baseline: systems[0].name.clone(),
                    system: system.to_owned(),
                    result: bootstrap.paired(metric, &counts[0], counts_of)?,
                });
                Ok(())
            };
            for (system, counts) in systems.iter().zip(&counts).skip(1) {
                compare(&system.name, counts)?;
            }
            for system in others {
                compare(&system.name, &count(system)?)?;
            }
        }
        if options.by_length {
            report
                .by_length
                .push(lengths::table(options, data, systems, metric, intervals)?);
        }
    }
    Ok(report)
}

/// The files of `--bootstrap`.
fn compared(options: &Evaluate, data: &Data) -> Result<Vec<System>, Failure> {
    let files = options.bootstrap.iter().flatten();
    files
        .map(|named: &Named| systems::read(named, data))
        .collect()
}

/// Refuses two named texts of unequal length.
fn same_length(first: (&str, usize), second: (&str, usize)) -> Result<(), Failure> {
    Ok(lines::check_aligned(first, second)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_was_found_is_a_line_for_each_example() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("found.txt");
        let found = [
            "big\tdog 0.98 (1 2 3 4), cat\nfish 0.90 (1 2 3 4)",
            "",
            "what is it?\r\n dog",
        ];
        write_lines(&path, &found.map(str::to_owned)).unwrap();
        let expected =
            "big\\tdog 0.98 (1 2 3 4), cat\\nfish 0.90 (1 2 3 4)\n\nwhat is it?\\r\\n dog\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
    }
}
