//! `regard serve`: the viewer of `regard-serve`, with traces and a model.

use std::path::Path;

use burn::tensor::Device;
use rayon::{ThreadPool, ThreadPoolBuilder};
use regard_models::pretrained::{Folder, holds_clip, holds_detector, holds_images};
use regard_serve::{
    Ablation, Config, Contents, Gradients, Input, InputKind, Model, Opened, QueryKeys, QueryPlace,
    Running, Seen, ServeError,
    models::{self as asked, Texts},
    serve,
};
use regard_train::{
    Detector, ImageClassifier, Registry, Translator,
    tasks::{
        Captioning, Detection, ImageClassification, LanguageModelling, Translation, VisualQuestions,
    },
};

use super::{classify, explain, pretrained};
use crate::{arguments::Serve, failure::Failure, models, output};

/// Serves until Ctrl-C.
///
/// # Errors
/// A file that cannot be read, a model that cannot be asked, an address that cannot be listened on.
pub fn run(options: &Serve) -> Result<(), Failure> {
    let listen = options.listen;
    let mut config = Config {
        listen,
        token: options.token.clone(),
        ..Config::default()
    };
    if config.token.is_none() && !listen.ip().is_loopback() {
        config.token = Some(random_token()?);
    }
    config.check().map_err(failure)?;
    let mut traces = vec![];
    for path in &options.traces {
        traces.extend(Opened::read(path)?);
    }
    if let Some(name) = &options.explain {
        regard_explain::known(name).map_err(explain::refused)?;
    }
    let wanted = options.model.is_some() || traces.is_empty() && options.explain.is_none();
    options.compute.run(None, |device| {
        let model = match wanted {
            true => Some(Pooled::boxed(open(options, device)?)?),
            false => None,
        };
        let contents = Contents {
            traces,
            model,
            explainer: Some(Box::new(regard_explain::Explanations)),
        };
        serve(config, contents, |running| tell(options, &running)).map_err(failure)
    })
}

/// Says where the page is, and opens it.
fn tell(options: &Serve, running: &Running) {
    let warn = |message: String| {
        if !options.quiet {
            output::warn(&message);
        }
    };
    if !options.listen.ip().is_loopback() {
        let address = running.address;
        warn(format!(
            "whoever reaches {address} and knows the token can ask the model and see the traces"
        ));
    }
    let url = match &options.explain {
        Some(name) => format!("{}#view=explain&topic={name}", running.url),
        None => running.url.clone(),
    };
    // A closed standard output is no reason to end.
    let _ = output::print(&format!("{url}\n"));
    if !options.no_open
        && let Err(error) = open::that_detached(&url)
    {
        warn(format!(
            "no browser could be opened ({error}); open the address yourself"
        ));
    }
}

/// A model that computes on as many threads as the command was given: the server asks it from a thread of its own.
struct Pooled {
    model: Box<dyn Model>,
    pool: ThreadPool,
}

impl Pooled {
    fn boxed(model: Box<dyn Model>) -> Result<Box<dyn Model>, Failure> {
        let threads = rayon::current_num_threads();
        let pool = ThreadPoolBuilder::new().num_threads(threads).build()?;
        Ok(Box::new(Self { model, pool }))
    }
}

impl Model for Pooled {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn input(&self) -> InputKind {
        self.model.input()
    }

    fn changes_heads(&self) -> bool {
        self.model.changes_heads()
    }

    fn look(&mut self, input: &Input, ablation: &Ablation) -> Result<Seen, String> {
        self.pool.install(|| self.model.look(input, ablation))
    }

    fn continues(&self) -> bool {
        self.model.continues()
    }

    fn shows_queries(&self) -> bool {
        self.model.shows_queries()
    }

    fn query(
        &mut self,
        input: &Input,
        ablation: &Ablation,
        place: &QueryPlace,
    ) -> Result<QueryKeys, String> {
        self.pool
            .install(|| self.model.query(input, ablation, place))
    }

    fn gradients(&mut self, input: &Input, rank: usize) -> Result<Gradients, String> {
        self.pool.install(|| self.model.gradients(input, rank))
    }
}

fn failure(error: ServeError) -> Failure {
    match error {
        ServeError::NeedsToken { .. } | ServeError::Token { .. } => {
            Failure::Usage(error.to_string())
        }
        error => error.into(),
    }
}

/// What went wrong, for the person at the page.
pub(super) fn told(failure: Failure) -> String {
    match failure {
        Failure::Usage(message) | Failure::Interrupted(message) => message,
        Failure::Error(error) => error.to_string(),
        Failure::CommandLine(problem) => problem.to_string(),
        Failure::ClosedPipe => "the output was closed".to_owned(),
    }
}

/// Letters and digits that nobody guesses.
fn random_token() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The model that is asked.
fn open(options: &Serve, device: &Device) -> Result<Box<dyn Model>, Failure> {
    let name = options.model.as_deref().unwrap_or(models::EMBEDDED_NAME);
    let path = Path::new(name);
    let registry = Registry::default();
    let file = path.exists().then_some(path);
    let storage = options.stored.storage();
    // Whether it is one of these, of which there is one form only.
    let is = |embedded: &str, holds: bool| -> Result<bool, Failure> {
        let is = match file {
            Some(_) => holds,
            None => name == embedded,
        };
        match is {
            true => pretrained::expect_no_weights(storage).map(|()| true),
            false => Ok(false),
        }
    };
    if is(models::EMBEDDED_NAME, registry.holds::<Translation>(path))? {
        let (model, description) = models::open(file, device)?;
        let translator = Translator::new(model, description, device).looking(true);
        return Ok(Box::new(asked::Translations::new(name, translator)));
    }
    if is("scenes-vqa", registry.holds::<VisualQuestions>(path))? {
        let model = models::question_answerer(file, device)?;
        return Ok(asked::questions(name, model));
    }
    if is("scenes-captioner", registry.holds::<Captioning>(path))? {
        let model = models::captioner(file, device)?;
        return Ok(asked::captions(name, model));
    }
    if is("mnist-resnet", registry.holds::<ImageClassification>(path))? {
        let model = models::image_classifier(file, device)?;
        return Ok(asked::images(name, model));
    }
    if registry.holds::<Detection>(path) {
        pretrained::expect_no_weights(storage)?;
        return Ok(asked::objects(name, registry.detector(path, device)?));
    }
    if file.is_some() && registry.holds_any(path) && !registry.holds::<LanguageModelling>(path) {
        return Err(Failure::Usage(format!(
            "--model {name}: the viewer asks translators, language models, captioners, classifiers of images, detectors, and models that \
             answer questions about images; look at others by a trace: `regard classify --trace look.safetensors`, `regard serve look.safetensors`"
        )));
    }
    if let Some(model) = pretrained_of_images(name, options, device)? {
        return Ok(model);
    }
    let opened = pretrained::find(name, options.quiet)?;
    if opened.is_seq2seq()? {
        let model = pretrained::text_to_text(opened, storage, "", options.quiet)?;
        return Ok(Box::new(asked::Translations::pretrained(name, model)));
    }
    let model = pretrained::model(&opened, storage, options.quiet)?;
    Ok(Box::new(Texts::new(name, opened, model)))
}

/// A model of images that others have trained, if that is what `name` means.
fn pretrained_of_images(
    name: &str,
    options: &Serve,
    device: &Device,
) -> Result<Option<Box<dyn Model>>, Failure> {
    if models::pretrained(Path::new(name)).is_none() {
        return Ok(None);
    }
    let folder = Folder::open(models::folder(name, options.quiet)?)?;
    let storage = options.stored.storage();
    if holds_images(&folder) {
        pretrained::expect_no_weights(storage)?;
        let model = ImageClassifier::pretrained(&folder, device)?;
        return Ok(Some(asked::images(name, model)));
    }
    if holds_detector(&folder) {
        pretrained::expect_no_weights(storage)?;
        let model = Detector::pretrained(&folder, device)?;
        return Ok(Some(asked::objects(name, model)));
    }
    if !holds_clip(&folder) {
        return Ok(None);
    }
    let device = device.clone();
    let open = move |labels: &str| {
        let labels: Vec<String> = labels.split(',').map(str::to_owned).collect();
        let labels = classify::labels(&labels).map_err(told)?;
        let model = ImageClassifier::zero_shot(&folder, labels, "{}", storage, &device)?;
        Ok(model)
    };
    Ok(Some(asked::labelled(name, open)))
}
