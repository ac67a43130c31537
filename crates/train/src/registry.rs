//! The architectures that recipes and model files may name, and what can be done with them.
//!
//! [`Registry::default`] has those of `regard-models`. A program adds its own with one line:
//!
//! ```
//! use regard_models::LuongConfig;
//! use regard_train::{Architecture, Registry, tasks::Translation};
//!
//! // As if LuongConfig were a configuration of the program's own.
//! let mine = Architecture::new::<LuongConfig, Translation>("mine");
//! let registry = Registry::default().with(mine);
//! let text = registry.commented(&registry.example("mine").unwrap())?;
//! assert!(text.contains("kind = \"mine\""));
//! assert!(registry.parse(&text.replace("mine", "mime"), "my.toml", &[]).unwrap_err().to_string().contains("did you mean \"mine\"?"));
//! # Ok::<(), regard_config::ConfigError>(())
//! ```

use std::{any::Any, fmt::Debug, path::Path, sync::Arc};

use burn::tensor::Device;
use regard_config::{Check, ConfigError, Kind, Place, Source, commented, read_text};
use regard_models::{
    GnmtConfig, LstmnTranslationConfig, LuongConfig, ModelConfig, RnnSearchConfig, RoleOf,
    Seq2SeqConfig, TransformerConfig,
    image::{
        CaptionerConfig, DetrConfig, ResNetConfig, ResidualAttentionConfig,
        VisionTransformerConfig, VqaConfig,
    },
    language::{LstmLmConfig, LstmnLmConfig, TransformerLmConfig},
    sentence::{LstmConfig, LstmnConfig, SelfAttentiveConfig, TransformerClassifierConfig},
};
use regard_nn::weights::{self, Arrays, Storage, WeightsError};

use crate::{
    captioner::ImageCaptioner,
    detector::Detector,
    error::TrainError,
    image_classifier::ImageClassifier,
    learner::{self, Event, Run, Summary, folder::RunFolder, session::Session, start::Start},
    model_file::{self, Header, Metadata, ModelFileError},
    question_answerer::QuestionAnswerer,
    ranks::Ranks,
    recipe::{Model, Recipe},
    sentence_classifier::SentenceClassifier,
    tasks::{
        Captioning, Classification, Detection, ImageClassification, LanguageModelling, Task,
        Translation, VisualQuestions,
    },
    translator::Translator,
};

/// Declares `Registry::default()`: one line for each architecture.
macro_rules! architectures {
    ($($name:literal => $config:ty: $task:ident,)+) => {
        impl Default for Registry {
            fn default() -> Self {
                Self { architectures: vec![
                    $(Architecture::new::<$config, $task>($name),)+
                ] }
            }
        }
    };
}

architectures! {
    "rnnsearch" => RnnSearchConfig: Translation,
    "luong" => LuongConfig: Translation,
    "transformer" => TransformerConfig: Translation,
    "seq2seq" => Seq2SeqConfig: Translation,
    "lstmn" => LstmnConfig: Classification,
    "lstm" => LstmConfig: Classification,
    "self-attentive" => SelfAttentiveConfig: Classification,
    "gnmt" => GnmtConfig: Translation,
    "lstmn-translation" => LstmnTranslationConfig: Translation,
    "transformer-lm" => TransformerLmConfig: LanguageModelling,
    "lstm-lm" => LstmLmConfig: LanguageModelling,
    "lstmn-lm" => LstmnLmConfig: LanguageModelling,
    "transformer-classifier" => TransformerClassifierConfig: Classification,
    "resnet" => ResNetConfig: ImageClassification,
    "residual-attention" => ResidualAttentionConfig: ImageClassification,
    "vit" => VisionTransformerConfig: ImageClassification,
    "vqa" => VqaConfig: VisualQuestions,
    "detr" => DetrConfig: Detection,
    "captioner" => CaptionerConfig: Captioning,
}

/// An architecture, by its name: how its configuration is read, and what its models are trained for.
#[derive(Debug, Clone)]
pub struct Architecture {
    kind: Kind,
    task: Arc<dyn AnyTask>,
}

impl Architecture {
    /// The architecture that `C` describes, called `name` in recipes and files, whose models are trained for `T`.
    pub fn new<C: ModelConfig, T: Task<Model = C::Role>>(name: &'static str) -> Self {
        Self {
            kind: Kind::of::<C>(name),
            task: Arc::new(T::of(RoleOf::config::<C>())),
        }
    }
}

/// The known architectures.
#[derive(Debug, Clone)]
pub struct Registry {
    architectures: Vec<Architecture>,
}

impl Registry {
    /// The same registry with one more architecture, which replaces one of the same name.
    pub fn with(mut self, architecture: Architecture) -> Self {
        let name = architecture.kind.name;
        self.architectures.retain(|known| known.kind.name != name);
        self.architectures.push(architecture);
        self
    }

    /// The values that `kind` may have.
    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.architectures.iter().map(|known| &known.kind)
    }

    fn find(&self, name: &str) -> Option<&Architecture> {
        let mut known = self.architectures.iter();
        known.find(|known| known.kind.name == name)
    }

    fn task(&self, model: &Model) -> &dyn AnyTask {
        match self.find(model.kind) {
            Some(architecture) => &*architecture.task,
            None => panic!("a recipe of another registry: it has no {:?}", model.kind),
        }
    }

    /// Reads the recipe at `path`, with `overrides` (`section.key=value`) applied to it.
    ///
    /// # Errors
    /// [`ConfigError::Read`], and those of [`parse`](Self::parse).
    pub fn load(
        &self,
        path: impl AsRef<Path>,
        overrides: &[String],
    ) -> Result<Recipe, ConfigError> {
        let path = path.as_ref();
        self.parse(&read_text(path)?, &path.display().to_string(), overrides)
    }

    /// A recipe from TOML; errors call the text `name`.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`], [`ConfigError::UnknownKey`], [`ConfigError::WrongType`],
    /// [`ConfigError::Value`] or [`ConfigError::Override`], each with its place.
    pub fn parse(
        &self,
        text: &str,
        name: &str,
        overrides: &[String],
    ) -> Result<Recipe, ConfigError> {
        let sections = Recipe::sections(self.kinds());
        let mut source = Source::read(text, name, overrides, &sections)?;
        let kind = source.kind("model", None)?;
        let known = self
            .find(kind)
            .expect("the kinds are those of the registry");
        let config = (known.kind.read)(&mut source, "model")?;
        let recipe = Recipe::read(&mut source, Model { kind, config })?;
        source.check(|check| self.problems(&recipe, check))?;
        Ok(recipe)
    }

    fn problems(&self, recipe: &Recipe, check: &mut Check) {
        recipe.check(check);
        if check.problems() == 0 {
            let task = self.task(&recipe.model);
            recipe.refuse_unread(&task.unread(), task.model(), check);
            task.check(recipe, check);
        }
    }

    /// Checks every range and every contradiction, as [`parse`](Self::parse) does.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for the first key that does not fit.
    ///
    /// # Panics
    /// If the recipe's architecture is not of this registry.
    pub fn check(&self, recipe: &Recipe) -> Result<(), ConfigError> {
        let mut check = Check::default();
        self.problems(recipe, &mut check);
        match check.into_first() {
            None => Ok(()),
            Some(problem) => Err(problem.at(Place::Program)),
        }
    }

    /// A complete recipe to start from, for an architecture; `None` if there is none of this name.
    ///
    /// ```
    /// use regard_train::Registry;
    ///
    /// let registry = Registry::default();
    /// let recipe = registry.example("luong").unwrap();
    /// let text = registry.commented(&recipe)?;
    /// assert!(text.contains("# Half width D of the window of local attention, in tokens."));
    /// assert_eq!(registry.parse(&text, "luong.toml", &[])?, recipe);
    /// # Ok::<(), regard_config::ConfigError>(())
    /// ```
    pub fn example(&self, name: &str) -> Option<Recipe> {
        let Architecture { kind, task } = self.find(name)?;
        let mut recipe = Recipe::new(Model {
            kind: kind.name,
            config: (kind.default)(),
        });
        task.example(&mut recipe);
        recipe.training.epochs = Some(20);
        Some(recipe)
    }

    /// The recipe as TOML with every key explained; keys that are off stand in comments.
    ///
    /// # Errors
    /// As for [`Recipe::to_toml`].
    pub fn commented(&self, recipe: &Recipe) -> Result<String, ConfigError> {
        let values = toml::Table::try_from(recipe).map_err(|error| ConfigError::Write {
            message: error.to_string(),
        })?;
        let task = self.task(&recipe.model);
        let mut unread = task.unread();
        if !task.asks() {
            unread.push("data.scenes.questions");
        }
        Ok(commented(&Recipe::sections(self.kinds()), &values, &unread))
    }

    /// What models of the recipe do, as a verb after a name: "translates".
    ///
    /// # Panics
    /// If the recipe's architecture is not of this registry.
    pub fn does(&self, recipe: &Recipe) -> &'static str {
        self.task(&recipe.model).does()
    }

    /// Whether the recipe's architecture is trained for the task `T`.
    ///
    /// # Panics
    /// If the recipe's architecture is not of this registry.
    pub fn serves<T: Task>(&self, recipe: &Recipe) -> bool {
        self.task_of::<T>(&recipe.model).is_some()
    }

    /// The task of a model, if it is a `T`.
    ///
    /// # Panics
    /// If the model's architecture is not of this registry.
    pub fn task_of<T: Task>(&self, model: &Model) -> Option<&T> {
        self.task(model).any().downcast_ref()
    }

    /// Trains the model of `recipe` from the start; `report` is called for every event.
    ///
    /// # Errors
    /// Whatever [`TrainError`] names. What was saved after an update stays; a folder that was made for a run without any is removed.
    ///
    /// # Panics
    /// If the recipe's architecture is not of this registry.
    pub fn train(
        &self,
        recipe: &Recipe,
        run: &Run<'_>,
        report: &mut dyn FnMut(&Event),
    ) -> Result<Summary, TrainError> {
        let folder = match run.ranks.is_first() {
            true => Some(RunFolder::lock(run.folder)?),
            false => None,
        };
        if folder.is_some() {
            let models = [learner::LAST, learner::BEST, learner::MODEL];
            if models.iter().any(|file| run.folder.join(file).exists()) {
                return Err(TrainError::Occupied(run.folder.to_owned()));
            }
            self.expect_no_other_files(recipe, run.folder)?;
        }
        let trained = self.begin(recipe.clone(), run, report, false);
        if let (Some(folder), true) = (folder, trained.is_err()) {
            folder.abandon();
        }
        trained
    }

    /// Refuses a folder with files that no run has written, where a run of `recipe` would replace them. A run that ended without any
    /// state leaves its own, of which `metrics.jsonl` is the first.
    fn expect_no_other_files(&self, recipe: &Recipe, folder: &Path) -> Result<(), TrainError> {
        let begun = folder.join(learner::METRICS).exists();
        let path = folder.join(learner::RECIPE);
        if path.exists() {
            let text = read_text(&path)?;
            let is_written = |recipe: &Recipe| recipe.to_toml().is_ok_and(|own| own == text);
            // As it would be written: without comments, with every key.
            let by_a_run = || {
                self.parse(&text, learner::RECIPE, &[])
                    .is_ok_and(|own| is_written(&own))
            };
            if !(is_written(recipe) || begun && by_a_run()) {
                return Err(TrainError::OtherFile(path));
            }
        }
        let path = folder.join(learner::TOKENIZER);
        match path.exists() && !begun {
            true => Err(TrainError::OtherFile(path)),
            false => Ok(()),
        }
    }

    /// Goes on with the run in `run.folder`, with `overrides` (`section.key=value`) applied to its recipe. A run that died before
    /// it wrote any state starts again with that recipe, and makes the updates that it would have made. A folder with a recipe alone
    /// holds no run: [`train`](Self::train) begins one.
    ///
    /// # Errors
    /// Whatever [`TrainError`] names.
    pub fn resume(
        &self,
        overrides: &[String],
        run: &Run<'_>,
        report: &mut dyn FnMut(&Event),
    ) -> Result<Summary, TrainError> {
        let mut _locked = None;
        let mut saved = false;
        if run.ranks.is_first() {
            let holds = |file: &str| run.folder.join(file).exists();
            saved = holds(learner::LAST);
            // A folder with a model but without its state must not be trained in: the model would be overwritten.
            let lost = holds(learner::BEST) || holds(learner::MODEL);
            let begun = holds(learner::RECIPE) && holds(learner::METRICS);
            if !saved && (!begun || lost) {
                return Err(TrainError::NothingToResume(run.folder.to_owned()));
            }
            _locked = Some(RunFolder::lock(run.folder)?);
        }
        let saved = run.ranks.gather(&saved)?[0];
        if saved {
            expect_none_read_once(overrides)?;
        }
        let recipe = self.recipe_of(run.folder, overrides, run.ranks)?;
        if saved {
            return self.task(&recipe.model).resume(self, recipe, run, report);
        }
        if run.ranks.is_first() {
            self.expect_no_other_files(&recipe, run.folder)?;
        }
        self.begin(recipe, run, report, true)
    }

    /// The recipe of the run in `folder`, as [`load`](Self::load) reads it. Rank 0 alone reads the folder.
    ///
    /// # Errors
    /// As [`load`](Self::load); [`TrainError::NoRecipe`] or [`TrainError::NothingToResume`] without a recipe.
    pub fn recipe_of(
        &self,
        folder: &Path,
        overrides: &[String],
        ranks: &dyn Ranks,
    ) -> Result<Recipe, TrainError> {
        let path = folder.join(learner::RECIPE);
        let text = match ranks.is_first() {
            true if !path.exists() => {
                return Err(match folder.join(learner::LAST).exists() {
                    true => TrainError::NoRecipe(folder.to_owned()),
                    false => TrainError::NothingToResume(folder.to_owned()),
                });
            }
            true => read_text(&path)?,
            false => String::new(),
        };
        let text = ranks.broadcast(text.into_bytes())?;
        let text = String::from_utf8_lossy(&text);
        Ok(self.parse(&text, &path.display().to_string(), overrides)?)
    }

    fn begin(
        &self,
        mut recipe: Recipe,
        run: &Run<'_>,
        report: &mut dyn FnMut(&Event),
        resumed: bool,
    ) -> Result<Summary, TrainError> {
        let task = self.task(&recipe.model);
        if !resumed {
            recipe.expect_to_begin(task.asks())?;
        }
        let start = Start::open(self, &mut recipe)?;
        self.check(&recipe)?;
        task.train(recipe, start, run, report, resumed)
    }

    /// Opens a model file or a run folder.
    ///
    /// # Errors
    /// Whatever [`ModelFileError`] names, such as a model of another task than `T`.
    pub fn open<T: Task>(
        &self,
        path: &Path,
        device: &Device,
    ) -> Result<(T::Model, T::Description), ModelFileError> {
        let path = model_file::locate(path)?;
        self.model::<T>(
            model_file::read(&path)?,
            &path.display().to_string(),
            device,
        )
    }

    /// Reads a model file's bytes; `name` stands for the file in errors.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub fn from_bytes<T: Task>(
        &self,
        bytes: &[u8],
        name: &str,
        device: &Device,
    ) -> Result<(T::Model, T::Description), ModelFileError> {
        let read = weights::from_bytes(bytes);
        let read = read.map_err(|source| model_file::wrong_weights(name, source))?;
        self.model::<T>(read, name, device)
    }

    fn model<T: Task>(
        &self,
        (arrays, metadata): (Arrays, Metadata),
        name: &str,
        device: &Device,
    ) -> Result<(T::Model, T::Description), ModelFileError> {
        model_file::expect_model(&metadata, name)?;
        let (task, description) = self.describe::<T>(&metadata, name)?;
        filled(task, description, arrays, name, device)
    }

    /// A model file as bytes.
    ///
    /// # Errors
    /// A weight's name that safetensors cannot hold.
    ///
    /// # Panics
    /// If `model` is not of this registry, or not of task `T`.
    pub fn to_bytes<T: Task>(
        &self,
        model: &Model,
        arrays: &Arrays,
        description: &T::Description,
        storage: Storage,
    ) -> Result<Vec<u8>, WeightsError> {
        let task = self.task_of::<T>(model);
        let task = task.expect("a model is written as one of its own task");
        weights::to_bytes(arrays, task.metadata(description), storage)
    }

    /// Whether the file or run folder at `path` holds a model of the task `T`; false for anything else, for which opening it
    /// gives the error.
    pub fn holds<T: Task>(&self, path: &Path) -> bool {
        let model = self.stored(path);
        model.is_some_and(|model| self.task_of::<T>(&model).is_some())
    }

    /// Whether the file or run folder at `path` holds a model of an architecture of this registry, for whatever task.
    pub fn holds_any(&self, path: &Path) -> bool {
        self.stored(path).is_some()
    }

    /// The model that the file or run folder at `path` describes, if it does.
    fn stored(&self, path: &Path) -> Option<Model> {
        let path = model_file::locate(path).ok()?;
        let metadata = model_file::metadata(&path).ok()?;
        Some(self.header(&metadata, "").ok()?.model)
    }

    /// Opens a model file or a run folder to translate with.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub fn translator(&self, path: &Path, device: &Device) -> Result<Translator, ModelFileError> {
        let (model, description) = self.open::<Translation>(path, device)?;
        Ok(Translator::new(model, description, device))
    }

    /// Opens a model file or a run folder to classify with.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub fn classifier(
        &self,
        path: &Path,
        device: &Device,
    ) -> Result<SentenceClassifier, ModelFileError> {
        let (model, description) = self.open::<Classification>(path, device)?;
        Ok(SentenceClassifier::new(model, description, device))
    }

    /// Opens a model file or a run folder to classify images with.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub fn image_classifier(
        &self,
        path: &Path,
        device: &Device,
    ) -> Result<ImageClassifier, ModelFileError> {
        let (model, description) = self.open::<ImageClassification>(path, device)?;
        Ok(ImageClassifier::new(model, description, device))
    }

    /// Opens a model file or a run folder to ask questions about images.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub fn question_answerer(
        &self,
        path: &Path,
        device: &Device,
    ) -> Result<QuestionAnswerer, ModelFileError> {
        let (model, description) = self.open::<VisualQuestions>(path, device)?;
        Ok(QuestionAnswerer::new(model, description, device))
    }

    /// Opens a model file or a run folder to find objects with.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub fn detector(&self, path: &Path, device: &Device) -> Result<Detector, ModelFileError> {
        let (model, description) = self.open::<Detection>(path, device)?;
        Ok(Detector::new(model, description, device))
    }

    /// Opens a model file or a run folder to write captions with.
    ///
    /// # Errors
    /// As [`Registry::open`].
    pub fn captioner(
        &self,
        path: &Path,
        device: &Device,
    ) -> Result<ImageCaptioner, ModelFileError> {
        let (model, description) = self.open::<Captioning>(path, device)?;
        Ok(ImageCaptioner::new(model, description, device))
    }

    /// The description of the model in the metadata of the file called `name`.
    ///
    /// # Errors
    /// An entry that is missing or does not parse, or an architecture that is not known.
    pub fn header(&self, metadata: &Metadata, name: &str) -> Result<Header, ModelFileError> {
        Header::read(metadata, name, |kind| Some(&self.find(kind)?.kind))
    }

    /// The task `T` of the model that `metadata` describes, and the description.
    fn describe<T: Task>(
        &self,
        metadata: &Metadata,
        name: &str,
    ) -> Result<(&T, T::Description), ModelFileError> {
        let header = self.header(metadata, name)?;
        let Some(wanted) = self.task_of::<T>(&header.model) else {
            return Err(ModelFileError::OtherTask {
                name: name.to_owned(),
                found: self.task(&header.model).model(),
                expected: T::MODEL,
            });
        };
        let description = wanted.describe(header, metadata, name)?;
        Ok((wanted, description))
    }
}

/// What a run reads where it begins, and has afterwards: keys, or tables with all of theirs.
const READ_ONCE: [&str; 10] = [
    "training.start",
    "data.lowercase",
    "data.tokenizer",
    "data.target_tokenizer",
    "data.vocabulary.joint",
    "data.vocabulary.size",
    "data.text.units",
    "data.images.size",
    "data.objects.size",
    "data.questions.min_answers",
];

/// Refuses what a run that goes on would write into its recipe without effect.
fn expect_none_read_once(overrides: &[String]) -> Result<(), ConfigError> {
    for text in overrides {
        let path = text.split_once('=').map_or("", |(path, _)| path);
        let path: Vec<&str> = path.split('.').map(str::trim).collect();
        // A key, what is in it, or a whole table that has it.
        let named = |key: &&str| key.split('.').zip(&path).all(|(key, &part)| key == part);
        if let Some(key) = READ_ONCE.into_iter().find(named) {
            return Err(ConfigError::Value {
                place: Place::Override { text: text.clone() },
                key: key.to_owned(),
                found: "given for a run that has begun already".to_owned(),
                expected: "a new run, in another folder".to_owned(),
            });
        }
    }
    Ok(())
}

/// Reads the bytes of a model file of the architecture that `C` describes, which is called `kind`; `name` stands for the file in
/// errors. A program with one model needs no [`Registry`]: it is smaller by all that trains.
///
/// # Errors
/// As [`Registry::open`].
pub fn model_from_bytes<C: ModelConfig, T: Task<Model = C::Role>>(
    kind: &'static str,
    bytes: &[u8],
    name: &str,
    device: &Device,
) -> Result<(T::Model, T::Description), ModelFileError> {
    let read = weights::from_bytes(bytes);
    let (arrays, metadata) = read.map_err(|source| model_file::wrong_weights(name, source))?;
    let known = Kind::of::<C>(kind);
    let header = Header::read(&metadata, name, |found| (found == kind).then_some(&known))?;
    let task = T::of(RoleOf::config::<C>());
    let description = task.describe(header, &metadata, name)?;
    filled(&task, description, arrays, name, device)
}

/// The model of `description`, with the weights `arrays` of the file called `name`.
fn filled<T: Task>(
    task: &T,
    description: T::Description,
    arrays: Arrays,
    name: &str,
    device: &Device,
) -> Result<(T::Model, T::Description), ModelFileError> {
    let model = task
        .without_values(&description, &arrays, device)
        .map_err(|source| ModelFileError::Model {
            name: name.to_owned(),
            source,
        })?;
    let model =
        weights::apply(model, arrays).map_err(|source| model_file::wrong_weights(name, source))?;
    Ok((model, description))
}

/// Any [`Task`].
trait AnyTask: Debug + Send + Sync {
    fn any(&self) -> &dyn Any;
    fn model(&self) -> &'static str;
    fn does(&self) -> &'static str;
    fn unread(&self) -> Vec<&'static str>;
    fn asks(&self) -> bool;
    fn example(&self, recipe: &mut Recipe);
    fn check(&self, recipe: &Recipe, check: &mut Check);
    fn train(
        &self,
        recipe: Recipe,
        start: Option<Start>,
        run: &Run<'_>,
        report: &mut dyn FnMut(&Event),
        resumed: bool,
    ) -> Result<Summary, TrainError>;
    fn resume(
        &self,
        registry: &Registry,
        recipe: Recipe,
        run: &Run<'_>,
        report: &mut dyn FnMut(&Event),
    ) -> Result<Summary, TrainError>;
}

impl<T: Task> AnyTask for T {
    fn any(&self) -> &dyn Any {
        self
    }
    fn model(&self) -> &'static str {
        T::MODEL
    }
    fn does(&self) -> &'static str {
        T::DOES
    }
    fn unread(&self) -> Vec<&'static str> {
        T::UNREAD.concat()
    }
    fn asks(&self) -> bool {
        T::ASKS
    }
    fn example(&self, recipe: &mut Recipe) {
        self.example(recipe);
    }
    fn check(&self, recipe: &Recipe, check: &mut Check) {
        self.check(recipe, check);
    }
    fn train(
        &self,
        recipe: Recipe,
        start: Option<Start>,
        run: &Run<'_>,
        report: &mut dyn FnMut(&Event),
        resumed: bool,
    ) -> Result<Summary, TrainError> {
        Session::start(self, recipe, run, report, start, resumed)?.run()
    }
    fn resume(
        &self,
        registry: &Registry,
        recipe: Recipe,
        run: &Run<'_>,
        report: &mut dyn FnMut(&Event),
    ) -> Result<Summary, TrainError> {
        let describe = |metadata: &Metadata, name: &str| {
            let (_, description) = registry.describe::<T>(metadata, name)?;
            Ok(description)
        };
        Session::resume(self, recipe, run, report, describe)?.run()
    }
}
