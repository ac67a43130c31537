//! `regard classify`.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use regard_images::ImagesError;
use regard_models::pretrained::{
    ClassScores, Encoding, Entity, Folder, Heads, entities, holds_clip, holds_images,
};
use regard_trace::Trace;
use regard_train::{
    ClassifiedImage, ImageClassifier, Registry, SentenceClassifier, corpus::CorpusError,
    model_file::ModelFileError, tasks::ImageClassification,
};
use regard_view::label::visible;
use serde_json::{Value, json};

use super::{
    image_paths, open_images,
    pretrained::{Encoder, characters, expect_no_weights, no_tokens},
    reduced,
};
use crate::{
    arguments::Classify,
    failure::{CommandError, Failure},
    input::{self, Group, Groups},
    models::{self, folder, image_classifier},
    output::{self, Output},
    pictures::Shown,
};

/// Most sentences or images that are classified together.
const AT_ONCE: usize = 32;

/// Classifies arguments, a file or standard input.
///
/// # Errors
/// A model or a file that is wrong, a picture that cannot be written.
pub fn run(options: &Classify) -> Result<(), Failure> {
    options.compute.run(None, |device| work(options, device))
}

fn work(options: &Classify, device: &Device) -> Result<(), Failure> {
    let mut writer = Writer {
        options,
        classifier: Classifier::open(options, device)?,
        out: Output::standard(),
        shown: Shown::new(&options.show, options.model.as_ref())?,
        read: 0,
        line: 0,
    };
    if !options.texts.is_empty() {
        writer.classify(&options.texts)?;
        return writer.shown.write();
    }
    for group in Groups::read(options.input.as_deref(), AT_ONCE)? {
        let Group { lines, error } = group?;
        writer.classify(&lines)?;
        if let Some(error) = error {
            // The sentences classified before the error still get their pictures.
            writer.shown.write()?;
            return Err(error.into());
        }
    }
    if writer.line == 0 {
        match &options.input {
            Some(path) => return Err(CorpusError::Empty { path: path.clone() }.into()),
            None if !options.show.quiet => output::warn("standard input had no lines"),
            None => {}
        }
    }
    writer.shown.write()
}

const NEEDLESS_LABELS: &str = "--labels are for a model of images and texts (CLIP); this one has classes of its own, leave them out";

/// A model of ours, or one that others have trained.
enum Classifier {
    Own(Box<SentenceClassifier>),
    Images(Box<ImageClassifier>),
    Pretrained(Box<Encoder>),
}

/// What was found of a text.
struct Found {
    verdict: Verdict,
    /// Its length in tokens and those that are read, if it was cut.
    cut: Option<(usize, usize)>,
    trace: Option<Trace>,
}

enum Verdict {
    /// Labels of the whole text with their scores, in the order of the model; whether scores are probabilities.
    Labels(Vec<(String, f64)>, bool),
    /// Parts of the text.
    Entities(Vec<Entity>),
}

impl Verdict {
    fn is_finite(&self) -> bool {
        match self {
            Self::Labels(labels, _) => labels.iter().all(|(_, score)| score.is_finite()),
            Self::Entities(entities) => entities.iter().all(|one| one.probability.is_finite()),
        }
    }
}

impl Classifier {
    fn open(options: &Classify, device: &Device) -> Result<Self, Failure> {
        let storage = options.stored.storage();
        let needless = || match options.labels.is_empty() {
            true => Ok(()),
            false => Err(Failure::Usage(NEEDLESS_LABELS.to_owned())),
        };
        let Some(name) = options.model.as_deref() else {
            let mut texts = options.texts.iter();
            if let Some(text) = texts.find(|text| !Path::new(text).exists()) {
                return Err(Failure::Usage(format!(
                    "{}: no such file; without --model digits in image files are read, with a classifier of texts as --model texts",
                    visible(text)
                )));
            }
            needless()?;
            expect_no_weights(storage)?;
            return Ok(Self::Images(Box::new(image_classifier(None, device)?)));
        };
        let path = Path::new(name);
        // A folder of others has a configuration; a name in their cache is no path.
        if path.is_file() || (path.is_dir() && !path.join("config.json").exists()) {
            needless()?;
            expect_no_weights(storage)?;
            let registry = Registry::default();
            if registry.holds::<ImageClassification>(path) {
                let classifier = image_classifier(Some(path), device)?;
                return Ok(Self::Images(Box::new(classifier)));
            }
            let classifier = registry.classifier(path, device);
            return Ok(Self::Own(Box::new(classifier.map_err(of_either)?)));
        }
        let folder = Folder::open(folder(name, options.show.quiet)?)?;
        if holds_clip(&folder) {
            let labels = labels(&options.labels)?;
            let classifier =
                ImageClassifier::zero_shot(&folder, labels, &options.prompt, storage, device)?;
            return Ok(Self::Images(Box::new(classifier)));
        }
        needless()?;
        if holds_images(&folder) {
            expect_no_weights(storage)?;
            let classifier = ImageClassifier::pretrained(&folder, device)?;
            return Ok(Self::Images(Box::new(classifier)));
        }
        let encoder = Encoder::open(name, device, storage, options.show.quiet)?;
        match encoder.model.purpose() {
            Some(Heads::Classes(_) | Heads::TokenClasses(_)) => {
                Ok(Self::Pretrained(Box::new(encoder)))
            }
            _ => Err(encoder.other_head("a head for classes")),
        }
    }

    /// What is found of `lines`; of images, whose `files` have these names, of those before the first that cannot be read, and what is
    /// wrong with that one.
    fn classify(
        &self,
        lines: &[String],
        files: &[PathBuf],
        looking: bool,
    ) -> Result<(Vec<Found>, Option<ImagesError>), Failure> {
        let found = match self {
            Self::Own(classifier) => {
                let description = classifier.description();
                let found = classifier.classify(lines)?.into_iter().map(|found| {
                    let scores = found.probabilities.iter().map(|&score| f64::from(score));
                    let labels = description.labels.iter().cloned().zip(scores);
                    Found {
                        verdict: Verdict::Labels(labels.collect(), true),
                        cut: found
                            .cut_from
                            .map(|length| (length, description.max_tokens)),
                        trace: looking.then_some(found.trace),
                    }
                });
                found.collect()
            }
            Self::Images(classifier) => return look_at(classifier, lines, files, looking),
            Self::Pretrained(encoder) => read(encoder, lines, looking)?,
        };
        Ok((found, None))
    }
}

/// The error for a model that is no classifier: one of sentences is expected, or one of images.
fn of_either(error: ModelFileError) -> ModelFileError {
    match error {
        ModelFileError::OtherTask { name, found, .. } => ModelFileError::OtherTask {
            name,
            found,
            expected: "a classifier of sentences or of images",
        },
        other => other,
    }
}

/// The classes of a model that has none of its own.
pub fn labels(given: &[String]) -> Result<Vec<String>, Failure> {
    let labels: Vec<String> = given.iter().map(|label| label.trim().to_owned()).collect();
    let problem = match labels.is_empty() {
        true => Some(
            "this model compares images with texts; give some, such as --labels \"a cat,a dog\""
                .to_owned(),
        ),
        false => labels.iter().enumerate().find_map(|(place, label)| {
            let found = || format!("found {label:?} at place {}", place + 1);
            if label.is_empty() {
                Some(format!("{}; expected a text", found()))
            } else if labels[..place].contains(label) {
                Some(format!("{}, for the second time", found()))
            } else {
                None
            }
        }),
    };
    match problem {
        None => Ok(labels),
        Some(problem) => Err(Failure::Usage(format!("--labels: {problem}"))),
    }
}

/// Classifies image files, up to the first that cannot be read; `names` are for messages.
fn look_at(
    classifier: &ImageClassifier,
    names: &[String],
    files: &[PathBuf],
    looking: bool,
) -> Result<(Vec<Found>, Option<ImagesError>), Failure> {
    let description = classifier.description();
    let preparation = &description.preparation;
    let (images, broken) = open_images(files, &preparation.decoding(), usize::MAX, |image| {
        reduced(image, preparation)
    });
    let found: Vec<(ClassifiedImage, Option<Trace>)> = match looking {
        true => {
            let seen = classifier.look(&images)?.into_iter();
            seen.map(|(found, trace)| (found, Some(trace))).collect()
        }
        false => {
            let found = classifier.classify(&images)?.into_iter();
            found.map(|found| (found, None)).collect()
        }
    };
    let probabilities = classifier.class_scores() != ClassScores::Numbers;
    let found = found.into_iter().zip(names).map(|((found, trace), name)| {
        let scores = found.probabilities.iter().map(|&score| f64::from(score));
        let labels = description.labels.iter().cloned().zip(scores);
        Found {
            verdict: Verdict::Labels(labels.collect(), probabilities),
            cut: None,
            trace: trace.map(|trace| Trace {
                source: name.clone(),
                ..trace
            }),
        }
    });
    Ok((found.collect(), broken))
}

/// Reads texts with a pretrained model.
fn read(encoder: &Encoder, texts: &[String], looking: bool) -> Result<Vec<Found>, Failure> {
    let most = encoder.model.context();
    let mut all = vec![];
    let whole = encoder.encode(texts)?;
    let side = encoder.opened.tokenizer.truncation_side();
    let cut = whole.iter().map(|text| text.truncated(most, side));
    let cut: Vec<Encoding> = cut.collect();
    let read = encoder.read(texts, &cut, looking)?;
    for (((text, whole), encoded), (states, mut trace)) in
        texts.iter().zip(&whole).zip(&cut).zip(read)
    {
        let verdict = judge(encoder, text, encoded, &states)?;
        if let (Some(trace), Verdict::Labels(labels, _)) = (&mut trace, &verdict) {
            let best = best_first(labels).into_iter().next();
            trace.target = best.map_or_else(String::new, |best| best.0.clone());
        }
        let length = whole.ids.len();
        all.push(Found {
            verdict,
            cut: (length > most).then_some((length, most)),
            trace,
        });
    }
    Ok(all)
}

/// What the head says of a text by its states.
fn judge(
    encoder: &Encoder,
    text: &str,
    encoded: &Encoding,
    states: &[f32],
) -> Result<Verdict, Failure> {
    let model = &encoder.model;
    if states.is_empty() {
        return Err(no_tokens(text));
    }
    let refused = || encoder.other_head("a head for classes");
    match model.purpose() {
        Some(Heads::TokenClasses(labels)) => {
            let probabilities = model.token_classes(states).ok_or_else(refused)?;
            Ok(Verdict::Entities(entities(encoded, &probabilities, labels)))
        }
        Some(Heads::Classes(labels)) => {
            let scores = model.classes(states).ok_or_else(refused)?;
            let labels = labels
                .iter()
                .cloned()
                .zip(scores.into_iter().map(f64::from));
            let probabilities = model.class_scores() != ClassScores::Numbers;
            Ok(Verdict::Labels(labels.collect(), probabilities))
        }
        _ => Err(refused()),
    }
}

fn best_first(labels: &[(String, f64)]) -> Vec<&(String, f64)> {
    let mut order: Vec<&(String, f64)> = labels.iter().collect();
    // A stable sort: of equal ones the first.
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order
}

/// Writes answers and pictures.
struct Writer<'a> {
    options: &'a Classify,
    classifier: Classifier,
    out: Output,
    shown: Shown<'a>,
    /// Arguments or lines that were read, which may be folders of several images.
    read: usize,
    line: usize,
}

impl Writer<'_> {
    fn classify(&mut self, lines: &[String]) -> Result<(), Failure> {
        let of_images = matches!(self.classifier, Classifier::Images(_));
        let nameless = lines.iter().position(|line| line.trim().is_empty());
        let nameless = nameless.filter(|_| of_images);
        let lines = &lines[..nameless.unwrap_or(lines.len())];
        self.read += lines.len();
        let files = match of_images {
            true => image_paths(lines)?,
            false => vec![],
        };
        let names = files.iter().map(|file| file.display().to_string());
        let names: Vec<String> = names.collect();
        let lines = if of_images { &names[..] } else { lines };
        let used = files.iter().map(PathBuf::as_path);
        let used = used.chain(self.options.input.as_deref());
        let several = self.options.texts.is_empty() || lines.len() > 1;
        self.shown.expect_apart(used, several)?;
        for (group, lines) in lines.chunks(AT_ONCE).enumerate() {
            let files = files.chunks(AT_ONCE).nth(group).unwrap_or_default();
            self.classify_together(lines, files)?;
        }
        match nameless {
            Some(_) => self.shown.end(self.no_name()),
            None => Ok(()),
        }
    }

    /// The error for a name without letters, after those that were read.
    fn no_name(&self) -> Failure {
        let number = self.read + 1;
        let place = match &self.options.input {
            _ if !self.options.texts.is_empty() => format!("argument {number}"),
            Some(path) => format!("{}: line {number}", input::name(path)),
            None => format!("standard input: line {number}"),
        };
        Failure::Usage(format!(
            "{place} is empty; expected the name of an image or of a folder of images"
        ))
    }

    fn classify_together(&mut self, lines: &[String], files: &[PathBuf]) -> Result<(), Failure> {
        let looking = self.shown.is_wanted();
        let (found, broken) = self.classifier.classify(lines, files, looking)?;
        if !found.iter().all(|found| found.verdict.is_finite()) {
            let model = models::name(self.options.model.as_deref().map(Path::new));
            return Err(CommandError::NotFinite { model }.into());
        }
        for (text, found) in lines.iter().zip(found) {
            self.line += 1;
            if let Some((length, most)) = found.cut.filter(|_| !self.options.show.quiet) {
                output::warn(&format!(
                    "sentence {} has {length} tokens; only the first {most} are read",
                    self.line
                ));
            }
            match self.options.show.json {
                true => self.out.line(&self.json(text, &found).to_string())?,
                false => self.text(text, &found.verdict)?,
            }
            if let Some(trace) = &found.trace {
                self.shown.push(&mut self.out, self.line, trace)?;
            }
        }
        self.out.flush()?;
        match broken {
            Some(error) => self.shown.end(error),
            None => Ok(()),
        }
    }

    fn text(&mut self, text: &str, verdict: &Verdict) -> Result<(), Failure> {
        match verdict {
            Verdict::Labels(labels, probabilities) => {
                let score = |score: f64| match probabilities {
                    true => format!("{:.1} %", 100.0 * score),
                    false => format!("{score:.4}"),
                };
                for (rank, (label, value)) in best_first(labels).into_iter().enumerate() {
                    let (label, score) = (visible(label), score(*value));
                    match rank {
                        0 => self
                            .out
                            .line(&format!("{label} ({score}): {}", visible(text)))?,
                        rank if rank < self.options.top => {
                            self.out.line(&format!("  {label} ({score})"))?;
                        }
                        _ => break,
                    }
                }
            }
            Verdict::Entities(entities) => {
                self.out.line(&visible(text))?;
                for Entity {
                    label,
                    probability,
                    range,
                } in entities
                {
                    let place = [range.start, range.end].map(|byte| characters(text, byte));
                    self.out.line(&format!(
                        "  {} ({:.1} %): {}, characters {} to {}",
                        visible(label),
                        100.0 * probability,
                        visible(&text[range.clone()]),
                        place[0],
                        place[1],
                    ))?;
                }
                if entities.is_empty() {
                    self.out.line("  (no part of it has a class)")?;
                }
            }
        }
        Ok(())
    }

    fn json(&self, text: &str, found: &Found) -> Value {
        let mut line = json!({"line": self.line, "text": text});
        match &found.verdict {
            Verdict::Labels(labels, probabilities) => {
                let keys = output::keys(labels.iter().map(|(label, _)| label.as_str()));
                let keyed = keys.into_iter().zip(labels);
                let keyed: Vec<(String, f64)> =
                    keyed.map(|(key, (_, score))| (key, *score)).collect();
                let all = keyed.iter();
                let all = all.map(|(key, score)| (key.clone(), json!(*score as f32)));
                let all: serde_json::Map<String, Value> = all.collect();
                let best = best_first(&keyed);
                line["label"] = json!(best.first().map(|best| &best.0));
                line[if *probabilities {
                    "probabilities"
                } else {
                    "scores"
                }] = all.into();
            }
            Verdict::Entities(entities) => {
                let entities = entities.iter().map(
                    |Entity {
                         label,
                         probability,
                         range,
                     }| {
                        json!({
                            "label": label,
                            "probability": probability,
                            "text": &text[range.clone()],
                            "start": characters(text, range.start),
                            "end": characters(text, range.end),
                        })
                    },
                );
                line["entities"] = entities.collect();
            }
        }
        if let Some(maps) = found
            .trace
            .as_ref()
            .and_then(|trace| self.shown.json(trace))
        {
            line["maps"] = maps;
        }
        line
    }
}
