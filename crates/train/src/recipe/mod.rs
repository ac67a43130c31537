//! A training, written down: one TOML file that says everything.
//!
//! **What it is.** Sections `[model]`, `[data]`, `[batch]`, `[optimizer]`, `[schedule]`,
//! `[training]`, `[validation]` and `[translate]`; a key that is left out has the default that
//! [`Recipe::commented`] prints, with every key explained. `kind` chooses what the other keys of
//! `[model]`, `[optimizer]` and `[schedule]` are.
//!
//! **What it refuses.** A key it does not know (naming file, line and the nearest key it knows),
//! a value of the wrong type, a value out of range, keys that contradict each other.
//!
//! **Paths** are relative to the working directory, not to the recipe.
//!
//! **Overrides** of the form `section.key=value` are laid over the file before it is checked; the
//! value is read as TOML, and as a string where it is none (`data.target_language=fr`).
//!
//! ```
//! use regard_train::recipe::{Model, Recipe};
//!
//! let text = "
//!     [model]
//!     kind = \"rnnsearch\"
//!     hidden = 128
//!     [data.synthetic]
//!     task = \"reverse\"
//! ";
//! let recipe = Recipe::parse(text, "reverse.toml", &["training.epochs=3".to_owned()])?;
//! assert!(matches!(&recipe.model, Model::Rnnsearch(model) if model.hidden == 128));
//! assert_eq!(recipe.training.epochs, Some(3));
//! assert_eq!(Recipe::parse(&recipe.to_toml()?, "run", &[])?, recipe);
//!
//! let wrong = text.replace("hidden", "hiden");
//! let message = Recipe::parse(&wrong, "reverse.toml", &[]).unwrap_err().to_string();
//! assert_eq!(message, "reverse.toml:4:5: unknown key model.hiden; did you mean hidden?");
//! # Ok::<(), regard_train::recipe::RecipeError>(())
//! ```

mod check;
mod commented;
mod data;
mod error;
mod model;
mod nearest;
mod optimization;
mod overrides;
mod parse;
mod section;
mod source;
mod training;
mod translation;

use std::path::Path;

use serde::Serialize;

pub use data::{Data, Filter, LabelledData, Loaded, Split, SyntheticData, Vocabulary};
pub use error::{Place, RecipeError};
pub use model::{
    Activation, AttentionKind, Cell, ClassifierDropout, Dropout, Encoder, Gnmt, Initialisation,
    Lstm, Lstmn, Luong, Model, Norm, NormPlace, Positions, Rnnsearch, Score, SelfAttentive,
    Seq2seq, StackDropout, Task, Tie, Transformer, TransformerDropout,
};
pub use nearest::nearest;
pub use optimization::{
    Adadelta, Adam, AdamW, Batching, Constant, InverseSquareRoot, Optimizer, Plateau, Schedule, Sgd,
};
pub use training::{Every, ScheduledSampling, Training};
pub use translation::{LongSource, MaxLength, Measure, Translation, Validation};

/// Everything that a training depends on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recipe {
    /// What is trained.
    pub model: Model,
    /// On which text.
    pub data: Data,
    /// How the text is cut into batches.
    pub batch: Batching,
    /// Who moves the parameters.
    pub optimizer: Optimizer,
    /// How fast, and when slower.
    pub schedule: Schedule,
    /// How long, and with which regularisation.
    pub training: Training,
    /// How it is judged on the way.
    pub validation: Validation,
    /// How it translates afterwards.
    pub translate: Translation,
}

impl Recipe {
    /// A recipe for `model` with the default of every other key. It lacks its data.
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

    /// Reads the recipe at `path`, with `overrides` (`section.key=value`) laid over it.
    ///
    /// # Errors
    /// [`RecipeError::Read`], and those of [`parse`](Self::parse).
    pub fn load(path: impl AsRef<Path>, overrides: &[String]) -> Result<Self, RecipeError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        match std::fs::read(path) {
            Ok(bytes) => Self::parse(&parse::utf8(bytes, &name)?, &name, overrides),
            Err(source) => Err(RecipeError::Read { name, source }),
        }
    }

    /// A recipe from TOML; `name` is what errors call the text.
    ///
    /// # Errors
    /// [`RecipeError::Syntax`], [`RecipeError::UnknownKey`], [`RecipeError::WrongType`],
    /// [`RecipeError::Value`] or [`RecipeError::Override`], each with its place.
    pub fn parse(text: &str, name: &str, overrides: &[String]) -> Result<Self, RecipeError> {
        parse::recipe(text, name, overrides)
    }

    /// Checks every range and every contradiction, as [`parse`](Self::parse) does.
    ///
    /// # Errors
    /// [`RecipeError::Value`] for the first key that does not fit.
    pub fn validate(&self) -> Result<(), RecipeError> {
        match check::problems(self).into_iter().next() {
            None => Ok(()),
            Some(problem) => Err(problem.at(Place::Program)),
        }
    }

    /// The recipe as TOML with all keys, defaults included: reading it gives this recipe again.
    ///
    /// # Errors
    /// [`RecipeError::Write`] if a path is not Unicode, which TOML must be.
    pub fn to_toml(&self) -> Result<String, RecipeError> {
        toml::to_string(self).map_err(|error| RecipeError::Write {
            message: error.to_string(),
        })
    }
}
