//! The translations that are scored.

use std::{
    fs,
    io::{self, IsTerminal},
    path::Path,
};

use burn::tensor::Device;
use regard_evaluate::{Alignment, Perplexity};
use regard_models::AnyGenerator;
use regard_trace::Trace;
use regard_train::{
    Translator,
    corpus::ParallelText,
    translator::{Description, LineError},
};
use serde::{Deserialize, Serialize};

use super::{
    data::{Data, link},
    expect_same, same_length,
};
use crate::{
    arguments::{Evaluate, Named},
    failure::{CommandError, Failure},
    input, models,
    output::{self, Output},
    progress::Counter,
    ranks,
};

/// Batches that are translated between two updates of the progress line.
const BATCHES_AT_ONCE: usize = 8;

/// One system's translations.
pub struct System {
    /// Its name in tables.
    pub name: String,
    /// The translations, line by line.
    pub lines: Vec<String>,
    /// For a model: its perplexity on the references.
    pub perplexity: Option<Perplexity>,
    /// For a model with attention: each target word's most attended source word.
    pub links: Option<Vec<Alignment>>,
    /// Whether a model made the translations.
    pub is_model: bool,
}

/// All systems: first the files, then the models.
///
/// # Errors
/// Files or models that are wrong.
pub fn all(options: &Evaluate, data: &Data) -> Result<Vec<System>, Failure> {
    let mut systems = vec![];
    for named in &options.hypotheses {
        systems.push(read(named, data)?);
    }
    let Some(source) = &data.source else {
        return Ok(systems);
    };
    let embedded = options.hypotheses.is_empty() && options.model.is_empty();
    if options.model.is_empty() && !embedded {
        return Ok(systems);
    }
    let models: Vec<(&str, Option<&Path>)> = match embedded {
        true => vec![(models::EMBEDDED_NAME, None)],
        false => {
            let named = options.model.iter();
            named
                .map(|named| (&*named.name, Some(&*named.path)))
                .collect()
        }
    };
    options.compute.run(None, |device| {
        for (index, (name, path)) in models.into_iter().enumerate() {
            let model = models::open(path, device)?;
            let texts = source.iter().chain(data.references.iter().flatten());
            let settings = options.search.over(&model.1.translate);
            expect_same(options, path, texts, Some(&settings))?;
            let output = options.output.get(index).map(|path| path.as_path());
            systems.push(translate(
                name, model, source, data, options, output, device,
            )?);
        }
        Ok(systems)
    })
}

/// Reads a system's translations.
///
/// # Errors
/// A file that is wrong, or of another length than the references.
pub fn read(named: &Named, data: &Data) -> Result<System, Failure> {
    let lines = input::segments(&named.path)?;
    let (standard, count) = &data.standard;
    same_length((standard, *count), (&input::name(&named.path), lines.len()))?;
    Ok(System {
        name: named.name.clone(),
        lines,
        perplexity: None,
        links: None,
        is_model: false,
    })
}

/// A translated line.
#[derive(Serialize, Deserialize)]
struct Line {
    text: String,
    /// Whether only its start was translated.
    cut: bool,
    /// Whether the model's words are not those of the source.
    respelt: bool,
    links: Option<Alignment>,
}

fn translate(
    name: &str,
    (model, description): (AnyGenerator, Description),
    source: &[String],
    data: &Data,
    options: &Evaluate,
    output: Option<&Path>,
    device: &Device,
) -> Result<System, Failure> {
    let settings = options.search.over(&description.translate);
    models::expect_search(&description.model, &options.search, &settings)?;
    let mut lines = vec![];
    let mut output = match output {
        Some(path) if options.resume => {
            if path.exists() && ranks::is_first() {
                let made = whole_lines(path).map_err(|source| CommandError::Read {
                    name: path.display().to_string(),
                    source,
                })?;
                let made = made.split_inclusive('\n');
                lines.extend(made.map(|line| line.trim_end().to_owned()));
            }
            lines = ranks::all().gather(&lines)?.swap_remove(0);
            if lines.len() > source.len() {
                return Err(Failure::Usage(format!(
                    "--resume: {} has {} lines, the source only {}; give the same source as before, or leave --resume out",
                    path.display(),
                    lines.len(),
                    source.len()
                )));
            }
            Some(Output::resumed(path)?.0)
        }
        path => path.map(Output::file).transpose()?,
    };
    let resumed = lines.len();
    let translator = Translator::new(model, description, device).looking(data.gold.is_some());
    let text = ParallelText::new(source.to_vec(), data.references[0].clone())?;
    let perplexity = translator.perplexity(&text, ranks::all())?;
    let shown = !options.quiet && io::stderr().is_terminal();
    let counter = Counter::up_to(source.len(), &format!("lines by {name}"), shown);
    let mut links = vec![];
    let mut cut = 0;
    let mut respelt = 0;
    let at_once = settings.batch_sentences.max(1) * BATCHES_AT_ONCE * ranks::all().count();
    while lines.len() < source.len() {
        let chunk = &source[lines.len()..source.len().min(lines.len() + at_once)];
        let translated = ranks::all().spread(chunk, |begin, own| -> Result<_, Failure> {
            let translated = translator
                .translate(own, &settings)
                .map_err(|error| numbered(error, &data.source_name, lines.len() + begin))?;
            let aligned = data.gold.is_some();
            let lines = own.iter().zip(translated).map(|(source, mut translated)| {
                let best = translated.n_best.swap_remove(0);
                Line {
                    text: best.text.replace(['\n', '\r'], " "),
                    cut: translated.cut_from.is_some(),
                    respelt: aligned && !counts_alike(&best.trace, source),
                    links: aligned.then(|| alignment(&best.trace)),
                }
            });
            Ok(lines.collect())
        })?;
        for line in translated {
            cut += usize::from(line.cut);
            respelt += usize::from(line.respelt);
            links.extend(line.links);
            if let Some(output) = &mut output {
                output.line(&line.text)?;
            }
            lines.push(line.text.trim_end().to_owned());
        }
        counter.set(lines.len());
    }
    counter.finish();
    if let Some(output) = &mut output {
        output.flush()?;
    }
    if cut > 0 && !options.quiet {
        output::warn(&format!(
            "{name}: {cut} lines have more than {} tokens; only their start is translated (--max-source-tokens)",
            settings.max_source_tokens
        ));
    }
    if respelt > 0 && !options.quiet {
        output::warn(&format!(
            "{name}: {respelt} source lines have other words for the model, which takes punctuation apart, than white space separates; \
             the gold alignment must count the model's words"
        ));
    }
    if resumed > 0 && data.gold.is_some() && !options.quiet {
        output::warn(&format!(
            "{name}: {resumed} lines were translated before (--resume), of which no attention was kept: no alignment error rate is given"
        ));
    }
    let attends = links.iter().any(|alignment| !alignment.links.is_empty());
    Ok(System {
        name: name.to_owned(),
        lines,
        perplexity,
        links: (attends && resumed == 0).then_some(links),
        is_model: true,
    })
}

/// The whole lines of a file. What follows the last of them may end inside a character, as a full disk leaves it.
fn whole_lines(path: &Path) -> io::Result<String> {
    let mut made = fs::read(path)?;
    let last = made.iter().rposition(|&byte| byte == b'\n');
    made.truncate(last.map_or(0, |last| last + 1));
    String::from_utf8(made).map_err(io::Error::other)
}

/// The error with the line's number in the whole text in place of that in the chunk.
fn numbered(error: LineError, name: &str, before: usize) -> Failure {
    match error.line() {
        Some(_) => CommandError::Line {
            name: name.to_owned(),
            source: Box::new(error.after(before)),
        }
        .into(),
        None => error.into(),
    }
}

/// Each target word's most attended source word, both counted among words.
fn alignment(trace: &Trace) -> Alignment {
    let Some(map) = trace.maps.first() else {
        return Alignment::default();
    };
    let links = map.merge_words().align_argmax();
    links.links().iter().copied().map(link).collect()
}

/// Whether the source words of the trace are those that white space separates.
fn counts_alike(trace: &Trace, source: &str) -> bool {
    let Some(map) = trace.maps.first() else {
        return true;
    };
    let merged = map.keys().merge_words();
    let words = (0..merged.len())
        .filter(|&index| !merged.is_special(index))
        .count();
    words == source.split_whitespace().count()
}
