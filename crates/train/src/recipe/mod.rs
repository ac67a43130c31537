//! Recipes: everything that a training depends on, in one TOML file.
//!
//! **What it is.** Sections `[model]`, `[data]`, `[batch]`, `[optimizer]`, `[schedule]`,
//! `[training]`, `[validation]` and `[translate]`; a key that is left out has the default that
//! [`Registry::commented`](crate::Registry::commented) prints, with every key explained. In `[model]`, `[optimizer]` and
//! `[schedule]` the key `kind` decides which other keys there are.
//!
//! **What is refused.** An unknown key (the error names file, line and the nearest known key), a
//! value of the wrong type, a value out of range, keys that contradict each other.
//!
//! **Paths** are relative to the working directory, not to the recipe.
//!
//! **Overrides** of the form `section.key=value` replace values of the file before it is checked; the
//! value is read as TOML, or as a string if it is not TOML (`data.target_language=fr`).
//!
//! ```
//! use regard_models::RnnSearchConfig;
//! use regard_train::Registry;
//!
//! let text = "
//!     [model]
//!     kind = \"rnnsearch\"
//!     hidden = 128
//!     [data.synthetic]
//!     task = \"reverse\"
//! ";
//! let registry = Registry::default();
//! let recipe = registry.parse(text, "reverse.toml", &["training.epochs=3".to_owned()])?;
//! assert_eq!(recipe.model.config::<RnnSearchConfig>().unwrap().hidden, 128);
//! assert_eq!(recipe.training.epochs, Some(3));
//! assert_eq!(registry.parse(&recipe.to_toml()?, "run", &[])?, recipe);
//!
//! let wrong = text.replace("hidden", "hiden");
//! let message = registry.parse(&wrong, "reverse.toml", &[]).unwrap_err().to_string();
//! assert_eq!(message, "reverse.toml:4:5: unknown key model.hiden; did you mean hidden?");
//! # Ok::<(), regard_config::ConfigError>(())
//! ```

mod beginning;
mod captions;
mod data;
mod images;
mod model;
mod objects;
mod optimization;
mod questions;
mod scenes;
mod training;
mod translation;

use regard_config::{Check, ConfigError, Keys, Kind, Section, Source};
use serde::Serialize;

pub use captions::CaptionData;
pub use data::{
    Data, Filter, LabelledData, Loaded, Split, SyntheticData, TextData, Texts, TokenizerFile,
    Vocabulary,
};
pub use images::{AugmentConfig, ImageData, OnBroken, idx_labels, read_images};
pub use model::Model;
pub use objects::ObjectData;
pub use optimization::{
    Adadelta, Adam, AdamW, Batching, Constant, Cosine, InverseSquareRoot, Optimizer, Plateau,
    Schedule, Sgd,
};
pub use questions::{QuestionData, QuestionFiles};
pub use scenes::{SceneData, SceneSet};
pub use training::{Every, ScheduledSampling, Training};
pub use translation::{LongSource, MaxLength, Measure, Translation, Validation};

/// Everything that a training depends on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recipe {
    /// The architecture and its sizes.
    pub model: Model,
    /// The text to train on.
    pub data: Data,
    /// How the text is cut into batches.
    pub batch: Batching,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The learning rate over time.
    pub schedule: Schedule,
    /// How long to train, and with which regularisation.
    pub training: Training,
    /// How the model is judged during training.
    pub validation: Validation,
    /// How the trained model translates.
    pub translate: Translation,
}

impl Recipe {
    /// A recipe for `model` with the default of every other key. Its data still has to be set.
    pub fn new(model: Model) -> Self {
        Self {
            model,
            data: Data::default(),
            batch: Batching::default(),
            optimizer: Optimizer::default(),
            schedule: Schedule::default(),
            training: Training::default(),
            validation: Validation::default(),
            translate: Translation::default(),
        }
    }

    /// The sections of a recipe, in order, for these architectures.
    pub(crate) fn sections<'a>(architectures: impl Iterator<Item = &'a Kind>) -> Vec<Section> {
        let architectures = architectures.map(|kind| (kind.name, kind.keys)).collect();
        [
            ("model", Keys::Kinds(architectures)),
            ("data", Keys::of::<Data>()),
            ("batch", Keys::of::<Batching>()),
            ("optimizer", Optimizer::keys()),
            ("schedule", Schedule::keys()),
            ("training", Keys::of::<Training>()),
            ("validation", Keys::of::<Validation>()),
            ("translate", Keys::of::<Translation>()),
        ]
        .map(|(name, keys)| Section { name, keys })
        .into()
    }

    /// Reads every section but `[model]`, which is read already.
    pub(crate) fn read(source: &mut Source<'_>, model: Model) -> Result<Self, ConfigError> {
        Ok(Self {
            model,
            data: source.section("data")?,
            batch: source.section("batch")?,
            optimizer: Optimizer::read(source, "optimizer")?,
            schedule: Schedule::read(source, "schedule")?,
            training: source.section("training")?,
            validation: source.section("validation")?,
            translate: source.section("translate")?,
        })
    }

    /// Checks every range of every section.
    pub(crate) fn check(&self, check: &mut Check) {
        check.within("model", |check| self.model.config.check(check));
        check.table("data", &self.data);
        check.table("batch", &self.batch);
        self.optimizer.check("optimizer", check);
        self.schedule.check("schedule", check);
        check.table("training", &self.training);
        if !self.training.is_limited() {
            let expected = "epochs, steps, minutes or tokens (or several)";
            check.fail("training", "found no limit", expected);
        }
        check.table("validation", &self.validation);
        check.table("translate", &self.translate);
    }

    /// Refuses another value than the default for what a task does not read; `model` is the task's noun for a model.
    pub(crate) fn refuse_unread(&self, unread: &[&str], model: &str, check: &mut Check) {
        let table = |recipe: &Self| toml::Value::try_from(recipe).ok();
        // What cannot be written as TOML is refused when the run's recipe is written.
        let values = table(self).zip(table(&Self::new(self.model.clone())));
        let Some((found, default)) = values else {
            return;
        };
        let at = |value: &toml::Value, path: &str| {
            let mut keys = path.split('.');
            keys.try_fold(value.clone(), |value, key| value.get(key).cloned())
        };
        for path in unread {
            let (found, default) = (at(&found, path), at(&default, path));
            if let Some(key) = difference(path, found.as_ref(), default.as_ref()) {
                let expected = "nothing: no such model reads this key";
                check.fail(&key, format!("set for {model}"), expected);
            }
        }
    }

    /// The first key that is set and takes effect by validations alone, and what was found there.
    pub(crate) fn decided_by_validation(&self) -> Option<(&'static str, &'static str)> {
        let plateau = matches!(self.schedule, Schedule::Plateau(_));
        let set = [
            (self.training.patience.is_some(), "training.patience", "set"),
            (plateau, "schedule.kind", "found \"plateau\""),
            (
                self.validation.measure.is_some(),
                "validation.measure",
                "set",
            ),
        ];
        let found = set.into_iter().find(|(is_set, ..)| *is_set);
        found.map(|(_, key, found)| (key, found))
    }

    /// The recipe as TOML with all keys, defaults included: reading it gives this recipe again.
    ///
    /// # Errors
    /// [`ConfigError::Write`] if a path is not Unicode, which TOML must be.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        toml::to_string(self).map_err(|error| ConfigError::Write {
            message: error.to_string(),
        })
    }
}

/// The first key at or below `path` whose value is not the default.
fn difference(
    path: &str,
    found: Option<&toml::Value>,
    default: Option<&toml::Value>,
) -> Option<String> {
    match (found, default) {
        (Some(toml::Value::Table(found)), Some(toml::Value::Table(default))) => {
            found.iter().find_map(|(key, value)| {
                difference(&format!("{path}.{key}"), Some(value), default.get(key))
            })
        }
        _ => (found != default).then(|| path.to_owned()),
    }
}
