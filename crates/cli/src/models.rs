//! Opening a model: a file, a run folder, or the one that is compiled into the command; and which names are those of pretrained ones.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use regard_config::Place;
use regard_models::{
    AnyGenerator, Seq2SeqConfig,
    pretrained::{Hub, HubProgress, PretrainedError, resolve},
};
use regard_train::{
    ImageCaptioner, ImageClassifier, QuestionAnswerer, Registry, TrainError,
    model_file::ModelFileError,
    recipe::{Model, Translation as Settings},
    tasks::{Captioning, ImageClassification, Task, Translation, VisualQuestions},
    translator::Description,
};
use regard_view::label::visible;

use crate::{
    arguments::Search,
    failure::Failure,
    progress::{Counter, Status},
};

/// What stands in front of the name of a model that may be downloaded.
const DOWNLOADED: &str = "hf:";

/// What messages call an embedded model.
const EMBEDDED: &str = "the embedded model";

/// The name of the embedded model that translates.
pub const EMBEDDED_NAME: &str = "multi30k-en-de";

/// The models that are compiled into the command, each by the name of its folder: how they were trained stands there.
macro_rules! embedded {
    ($name:literal) => {
        include_bytes!(concat!("../models/", $name, "/model.safetensors"))
    };
}

/// Opens the model at `path`, or the embedded one if there is no path.
///
/// # Errors
/// Whatever is wrong with the file.
pub fn open(
    path: Option<&Path>,
    device: &Device,
) -> Result<(AnyGenerator, Description), ModelFileError> {
    of::<Translation>(path, embedded!("multi30k-en-de"), device)
}

/// Refuses a search for which a model of translation has no room, and options of `search` for attention that it does not have.
/// `settings` are those of the whole search.
///
/// # Errors
/// A usage error that says how much room it has, or which option to leave out.
pub fn expect_search(model: &Model, search: &Search, settings: &Settings) -> Result<(), Failure> {
    if let Some(penalty) = search.coverage_penalty().filter(|&penalty| penalty != 0.0)
        && model.config::<Seq2SeqConfig>().is_some()
    {
        return Err(Failure::Usage(format!(
            "--coverage-penalty {penalty}: a model of kind {} has no attention, by which covered words are counted; leave it out",
            model.kind
        )));
    }
    let registry = Registry::default();
    let Some(task) = registry.task_of::<Translation>(model) else {
        return Ok(());
    };
    // What the file of the model asks for was checked as it was read.
    let place = Place::Name {
        name: "--max-source-tokens and --max-length".to_owned(),
    };
    let checked = task.check_settings(model, settings, place);
    checked.map_err(|error| Failure::Usage(error.to_string()))
}

/// Opens the captioner at `path`, or the embedded one.
///
/// # Errors
/// Whatever is wrong with the file.
pub fn captioner(path: Option<&Path>, device: &Device) -> Result<ImageCaptioner, ModelFileError> {
    let (model, description) = of::<Captioning>(path, embedded!("scenes-captioner"), device)?;
    Ok(ImageCaptioner::new(model, description, device))
}

/// Opens the model that answers questions about images at `path`, or the embedded one.
///
/// # Errors
/// Whatever is wrong with the file.
pub fn question_answerer(
    path: Option<&Path>,
    device: &Device,
) -> Result<QuestionAnswerer, ModelFileError> {
    let (model, description) = of::<VisualQuestions>(path, embedded!("scenes-vqa"), device)?;
    Ok(QuestionAnswerer::new(model, description, device))
}

/// Opens the classifier of images at `path`, or the embedded one, which reads digits.
///
/// # Errors
/// Whatever is wrong with the file.
pub fn image_classifier(
    path: Option<&Path>,
    device: &Device,
) -> Result<ImageClassifier, ModelFileError> {
    let (model, description) = of::<ImageClassification>(path, embedded!("mnist-resnet"), device)?;
    Ok(ImageClassifier::new(model, description, device))
}

/// Opens a model of the task `T`.
fn of<T: Task>(
    path: Option<&Path>,
    embedded: &[u8],
    device: &Device,
) -> Result<(T::Model, T::Description), ModelFileError> {
    let registry = Registry::default();
    match path {
        Some(path) => registry.open::<T>(path, device),
        None => registry.from_bytes::<T>(embedded, EMBEDDED, device),
    }
}

/// What messages call the model at `path`, or the embedded one.
pub fn name(path: Option<&Path>) -> String {
    match path {
        Some(path) => path.display().to_string(),
        None => EMBEDDED.to_owned(),
    }
}

/// The name of a pretrained model, if that is what `model` means: `hf:NAME`, a folder with a `config.json`, or a name in the local
/// cache that no file has.
pub fn pretrained(model: &Path) -> Option<String> {
    let name = model.to_str()?;
    let found = match model.exists() {
        true => model.join("config.json").is_file(),
        false => name.starts_with(DOWNLOADED) || resolve(name).is_ok(),
    };
    found.then(|| name.to_owned())
}

/// The folder of a pretrained model, downloaded if its name asks for that, with the progress on a terminal unless `quiet`.
///
/// # Errors
/// A model that is not there, or cannot be downloaded.
pub fn folder(name: &str, quiet: bool) -> Result<PathBuf, PretrainedError> {
    let mut now: Option<(String, Counter)> = None;
    let mut waiting = None;
    Hub::from_env().resolve(name, |progress| {
        let HubProgress::Part { file, done, total } = progress else {
            let status = waiting.get_or_insert_with(|| Status::new(&visible(name), !quiet));
            status.set("another process downloads it");
            return;
        };
        waiting = None;
        if now.as_ref().is_none_or(|(known, _)| known != file) {
            let unit = format!("bytes of {}", visible(file));
            now = Some((
                file.to_owned(),
                Counter::up_to(total as usize, &unit, !quiet),
            ));
        }
        if let Some((_, counter)) = &now {
            counter.set(done as usize);
        }
    })
}

/// Downloads the model that training begins with, if `start` names one that is to be: later it is found in the cache.
///
/// # Errors
/// As [`folder`]'s.
pub fn fetch_start(start: Option<&Path>, quiet: bool) -> Result<(), TrainError> {
    match start.and_then(Path::to_str) {
        Some(name) if name.starts_with(DOWNLOADED) => match folder(name, quiet) {
            Ok(_) => Ok(()),
            Err(source) => Err(TrainError::NoStart { source }),
        },
        _ => Ok(()),
    }
}
