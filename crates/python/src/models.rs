//! Models: those of `regard train`, the embedded ones, and folders of Hugging Face.

use std::{
    error::Error,
    ffi::CString,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use numpy::{PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::{
    exceptions::{PyTypeError, PyUserWarning},
    prelude::*,
};
use regard::{
    images::Image,
    models::{
        generate::{Prompt, SampleConfig, SampleEnd, sample},
        pretrained::resolve,
    },
    nn::burn::tensor::Device,
    train::{
        ImageCaptioner, Opened, Registry, TextModel, TextToText, Translator,
        opened::OpenedError,
        tasks::{
            Captioning, Classification, Detection, ImageClassification, Task, Translation,
            VisualQuestions,
        },
        text_to_text::Wanted,
    },
};

use crate::{
    arrays::{refused, slice},
    threads::{abandonable, interruptible},
    trace::Trace,
};

/// The models that are in the package, by the names of their folders.
const TRANSLATOR: (&str, &[u8]) = (
    "multi30k-en-de",
    include_bytes!("../../cli/models/multi30k-en-de/model.safetensors"),
);
const CAPTIONER: (&str, &[u8]) = (
    "scenes-captioner",
    include_bytes!("../../cli/models/scenes-captioner/model.safetensors"),
);

/// Sentences that are translated between two looks at whether someone asked to stop.
const AT_ONCE: usize = 64;

/// What is said of a text that is longer than its model reads.
fn cut(name: &str, tokens: usize, most: usize) -> String {
    format!("{name} has {tokens} tokens, of which only the first {most} are read: split it")
}

/// Warns whoever called the package of what is missing in an answer.
///
/// # Errors
/// The warnings, where Python makes errors of them.
fn warn(py: Python<'_>, missing: impl IntoIterator<Item = String>) -> PyResult<()> {
    let category = py.get_type::<PyUserWarning>();
    for message in missing {
        // The caller is behind the function of `python/regard` that called this one.
        PyErr::warn(py, &category, &CString::new(message)?, 2)?;
    }
    Ok(())
}

/// A model, ready for use.
#[pyclass(frozen)]
pub struct Model {
    name: String,
    role: Role,
}

/// What a model does.
enum Role {
    Translates(Box<Translator>),
    Rewrites(Box<TextToText>),
    Reads(Box<Opened>, TextModel),
    Captions(Box<ImageCaptioner>),
}

/// Why a model did not do what it was asked for.
enum Refusal {
    /// It is of another kind.
    Role(&'static str),
    Error(Box<dyn Error + Send + Sync>),
}

impl<E: Error + Send + Sync + 'static> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Error(Box::new(error))
    }
}

/// An image: the path of a file, or pixels `[height, width, 3]` or `[height, width, 1]`.
#[derive(FromPyObject)]
pub enum Picture<'py> {
    Pixels(PyReadonlyArrayDyn<'py, u8>),
    File(PathBuf),
}

/// How a text goes on; what is left out is the model's own setting.
#[derive(FromPyObject)]
pub struct Writing {
    max_tokens: usize,
    temperature: Option<f64>,
    top_k: Option<usize>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    repetition_penalty: Option<f64>,
    seed: u64,
    stop: Vec<String>,
}

/// Opens a model: a file or a run folder of `regard train`, a folder of Hugging Face, a name in its cache (`hf:NAME` is downloaded), or
/// one that is in the package.
#[pyfunction]
pub fn open_model(py: Python<'_>, name: String) -> PyResult<Model> {
    let of = name.clone();
    let opened = abandonable(py, move || open(&of).map_err(|error| error.to_string()))?;
    let role = opened.map_err(refused)?;
    Ok(Model { name, role })
}

fn open(name: &str) -> Result<Role, Box<dyn Error>> {
    let (path, registry) = (Path::new(name), Registry::default());
    let device = Device::flex();
    if !path.exists() && name == TRANSLATOR.0 {
        let (model, described) = registry.from_bytes::<Translation>(TRANSLATOR.1, name, &device)?;
        let model = Translator::new(model, described, &device).looking(false);
        return Ok(Role::Translates(Box::new(model)));
    }
    if !path.exists() && name == CAPTIONER.0 {
        let (model, described) = registry.from_bytes::<Captioning>(CAPTIONER.1, name, &device)?;
        let model = ImageCaptioner::new(model, described, &device);
        return Ok(Role::Captions(Box::new(model)));
    }
    if registry.holds::<Translation>(path) {
        let model = registry.translator(path, &device)?.looking(false);
        return Ok(Role::Translates(Box::new(model)));
    }
    if registry.holds::<Captioning>(path) {
        return Ok(Role::Captions(Box::new(registry.captioner(path, &device)?)));
    }
    if let Some((kind, command)) = used_elsewhere(&registry, name) {
        return Err(format!(
            "{name:?} is {kind}, which the command `regard {command}` uses; `load` opens translators, captioners and language models"
        )
        .into());
    }
    let opened = Opened::find(name, resolve)?;
    if opened.is_seq2seq()? {
        let model = TextToText::read(opened, None, "")?;
        return Ok(Role::Rewrites(Box::new(model)));
    }
    let model = opened.model(None)?;
    Ok(Role::Reads(Box::new(opened), model))
}

/// What a model is that is not opened here, and the command that uses it: of `regard train`, or embedded in the command.
fn used_elsewhere(registry: &Registry, name: &str) -> Option<(&'static str, &'static str)> {
    let path = Path::new(name);
    let embedded = |known: &str| !path.exists() && name == known;
    if embedded("mnist-resnet") || registry.holds::<ImageClassification>(path) {
        return Some((ImageClassification::MODEL, "classify"));
    }
    if registry.holds::<Classification>(path) {
        return Some((Classification::MODEL, "classify"));
    }
    if embedded("scenes-vqa") || registry.holds::<VisualQuestions>(path) {
        return Some((VisualQuestions::MODEL, "ask"));
    }
    let detects = registry.holds::<Detection>(path);
    detects.then_some((Detection::MODEL, "detect"))
}

#[pymethods]
impl Model {
    /// What it was opened as.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// translator, encoder-decoder, language model, encoder or captioner.
    #[getter]
    fn kind(&self) -> &'static str {
        match &self.role {
            Role::Translates(_) => "translator",
            Role::Rewrites(_) => "encoder-decoder",
            Role::Reads(_, TextModel::Reads(_)) => "encoder",
            Role::Reads(..) => "language model",
            Role::Captions(_) => "captioner",
        }
    }

    fn translate(
        &self,
        py: Python<'_>,
        texts: Vec<String>,
        beam: Option<usize>,
        prefix: String,
    ) -> PyResult<Vec<String>> {
        let name = |at: usize| match texts.len() {
            1 => "`texts`".to_owned(),
            _ => format!("`texts[{at}]`"),
        };
        let (written, missing) = self.answer(py, "translate", |stopped| {
            let (mut written, mut missing) = (vec![], vec![]);
            for lines in texts.chunks(AT_ONCE) {
                if stopped.load(Relaxed) {
                    break;
                }
                let (translated, most) = match &self.role {
                    Role::Translates(model) if prefix.is_empty() => {
                        let mut settings = model.settings().clone();
                        settings.beam = beam.unwrap_or(settings.beam);
                        settings.n_best = 1;
                        let translated = model.translate(lines, &settings);
                        // Its number counts all texts.
                        let translated = translated.map_err(|error| error.after(written.len()))?;
                        (translated, settings.max_source_tokens)
                    }
                    Role::Rewrites(model) => {
                        let mut settings = model.settings();
                        settings.beam = beam.unwrap_or(settings.beam);
                        let lines: Vec<String> =
                            lines.iter().map(|line| format!("{prefix}{line}")).collect();
                        let translated = model.translate(&lines, &settings, false);
                        let translated = translated.map_err(|error| error.after(written.len()))?;
                        (translated, settings.max_source_tokens)
                    }
                    Role::Translates(_) => {
                        return Err(Refusal::Role("an encoder-decoder that reads a `prefix`"));
                    }
                    _ => return Err(Refusal::Role("a translator")),
                };
                for line in translated {
                    let name = name(written.len());
                    missing.extend(line.cut_from.map(|tokens| cut(&name, tokens, most)));
                    let best = line.n_best.into_iter().next();
                    if let Some(best) = best.as_ref().filter(|best| !best.finished) {
                        missing.push(format!(
                            "the translation of {name} was ended by the length limit, {} tokens: split the text",
                            best.tokens
                        ));
                    }
                    written.push(best.map_or_else(String::new, |best| best.text));
                }
            }
            Ok((written, missing))
        })?;
        warn(py, missing)?;
        Ok(written)
    }

    /// The text after a prompt, and what ended it: end, stop, limit.
    fn generate(
        &self,
        py: Python<'_>,
        prompt: String,
        writing: Writing,
    ) -> PyResult<(String, &'static str)> {
        if writing.stop.iter().any(String::is_empty) {
            return Err(refused(
                "`stop` has an empty text, which would end every text at once",
            ));
        }
        let (text, ended, ignored) = self.answer(py, "generate", |stopped| {
            let Role::Reads(opened, model @ (TextModel::Writes(_) | TextModel::Plain(_))) =
                &self.role
            else {
                return Err(Refusal::Role("a language model"));
            };
            let (usual, ignored) = opened.sampling()?;
            let model = opened.causal(model)?;
            let ids = opened.prompt(&prompt)?;
            let context = model.context();
            let before = &ids[..ids.len() - 1];
            let tokens = ids.len();
            if tokens >= context {
                return Err(OpenedError::LongPrompt { tokens, context }.into());
            }
            let config = SampleConfig {
                temperature: writing.temperature.unwrap_or(usual.temperature),
                top_k: writing.top_k.unwrap_or(usual.top_k),
                top_p: writing.top_p.unwrap_or(usual.top_p),
                min_p: writing.min_p.unwrap_or(usual.min_p),
                repetition_penalty: (writing.repetition_penalty)
                    .unwrap_or(usual.repetition_penalty),
                seed: writing.seed,
                stop: opened.tokenizer.special().eos.clone(),
                limit: writing.max_tokens.min(context - tokens),
            };
            config.check()?;
            let mut steps = model.read(&[before], regard::kernels::Kind::F32)?;
            let mut stream = opened.tokenizer.stream(&ids, true)?;
            let (mut text, mut ended, mut failed) = (String::new(), "limit", None);
            let prompts = [Prompt {
                tokens: ids.clone(),
                stream: 0,
            }];
            let found = sample(&mut *steps, &prompts, &config, |_, id| {
                match stream.push(id) {
                    Ok(added) => text += &added,
                    Err(error) => failed = Some(error),
                }
                let stop = writing.stop.iter().filter_map(|stop| text.find(stop)).min();
                if let Some(at) = stop {
                    text.truncate(at);
                    ended = "stop";
                }
                match failed.is_some() || stop.is_some() || stopped.load(Relaxed) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            })?;
            if let Some(error) = failed {
                return Err(error.into());
            }
            if ended != "stop" {
                text += &stream.finish()?;
                if let Some(at) = writing.stop.iter().filter_map(|stop| text.find(stop)).min() {
                    text.truncate(at);
                    ended = "stop";
                } else if found
                    .iter()
                    .any(|row| matches!(row.end, SampleEnd::Stop(_)))
                {
                    ended = "end";
                }
            }
            Ok((text, ended, ignored))
        })?;
        let ignored = (!ignored.is_empty()).then(|| {
            format!(
                "{} of the files of {:?} are not obeyed; what transformers writes may differ",
                ignored.join(", "),
                self.name
            )
        });
        warn(py, ignored)?;
        Ok((text, ended))
    }

    fn caption(
        &self,
        py: Python<'_>,
        image: Picture<'_>,
        beam: Option<usize>,
    ) -> PyResult<(String, Trace)> {
        let Role::Captions(model) = &self.role else {
            return Err(self.other_kind("caption", "a captioner"));
        };
        let image = image.read(model)?;
        self.answer(py, "caption", |_| {
            let mut settings = model.settings().clone();
            (settings.n_best, settings.beam) = (1, beam.unwrap_or(settings.beam));
            let found = model.caption(&[image], &settings)?;
            let best = found.into_iter().flatten().next();
            Ok(best.map_or_else(
                || (String::new(), Trace::empty()),
                |best| (best.text, Trace::of(best.trace)),
            ))
        })
    }

    fn look(&self, py: Python<'_>, text: String, target: Option<String>) -> PyResult<Trace> {
        let (trace, missing) = self.answer(py, "look", |_| {
            let mut missing = None;
            let trace = match &self.role {
                Role::Translates(model) if target.is_none() => {
                    let settings = model.settings();
                    let tokenizer = model.description().tokenizers.source();
                    let read = settings.length_filter().limit(0, &text, tokenizer)?;
                    let most = settings.max_source_tokens;
                    missing = read.cut_from.map(|tokens| cut("`text`", tokens, most));
                    model.look(&text, settings)?.map(|best| best.trace)
                }
                Role::Rewrites(model) => {
                    Some(model.look(&text, target.as_deref(), &Wanted::default())?)
                }
                Role::Reads(opened, model) if target.is_none() => {
                    let encoded = opened.tokenizer.encode(&text, true)?;
                    Some(opened.look(model, &text, &encoded)?)
                }
                Role::Captions(_) => return Err(Refusal::Role("a model that reads text")),
                _ => {
                    return Err(Refusal::Role(
                        "an encoder-decoder that is given its `target`",
                    ));
                }
            };
            Ok((trace.map_or_else(Trace::empty, Trace::of), missing))
        })?;
        warn(py, missing)?;
        Ok(trace)
    }

    fn __repr__(&self) -> String {
        format!("<regard.Model {:?}, {}>", self.name, self.kind())
    }
}

impl Model {
    /// The answer of `work`, which looks now and then whether it has been stopped.
    fn answer<T: Send>(
        &self,
        py: Python<'_>,
        what: &str,
        work: impl FnOnce(&Arc<AtomicBool>) -> Result<T, Refusal> + Send,
    ) -> PyResult<T> {
        interruptible(py, work)?.map_err(|refusal| match refusal {
            Refusal::Error(error) => refused(error),
            Refusal::Role(expected) => self.other_kind(what, expected),
        })
    }

    /// That a model of this kind cannot do `what`.
    fn other_kind(&self, what: &str, expected: &str) -> PyErr {
        PyTypeError::new_err(format!(
            "{:?} is a model of the kind {}: `{what}` needs {expected}",
            self.name,
            self.kind()
        ))
    }
}

impl Picture<'_> {
    /// The image as `model` reads it.
    fn read(&self, model: &ImageCaptioner) -> PyResult<Image> {
        match self {
            Self::File(path) => {
                let decoding = model.description().preparation.decoding();
                Image::open(path, &decoding).map_err(refused)
            }
            Self::Pixels(pixels) => {
                let &[height, width, channels] = pixels.shape() else {
                    return Err(refused(format!(
                        "`image` has the shape {:?}, expected [height, width, channels]",
                        pixels.shape()
                    )));
                };
                let numbers = slice("image", pixels)?.to_vec();
                Image::new(height, width, channels, numbers).map_err(refused)
            }
        }
    }
}
