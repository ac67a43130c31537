//! Why training could not start or go on.

use std::{error::Error, path::PathBuf};

use regard_config::ConfigError;
use regard_evaluate::EvaluateError;
use regard_images::ImagesError;
use regard_models::{ModelError, pretrained::PretrainedError};
use regard_nn::weights::WeightsError;

use crate::{
    corpus::CorpusError,
    files::FileError,
    learner::{checkpoint::CheckpointError, optimizer::OptimizerError},
    model_file::ModelFileError,
    ranks::RanksError,
    tokenizer::TokenizerError,
    translator::LineError,
};

/// Why training could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The recipe is wrong.
    #[error(transparent)]
    Recipe(#[from] ConfigError),
    /// The data is wrong.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// Images are wrong.
    #[error(transparent)]
    Images(Box<ImagesError>),
    /// No training data is named.
    #[error(
        "the recipe names no training data; set data.train_source and data.train_target, [data.synthetic], for a classifier [data.labelled], for a language model [data.text], for a classifier of images [data.images], for captions, questions and boxes [data.scenes], or [data.captions], [data.questions], [data.objects]"
    )]
    NoData,
    /// A masked language model's tokenizer has no token for masks.
    #[error(
        "the tokenizer has no token <mask> or [MASK], which a masked language model needs; leave out [data.tokenizer], or name another file"
    )]
    NoMask,
    /// A language model's tokenizer is one of sub-words that was learned for translation.
    #[error(
        "its tokenizer was learned for translation; expected one of a language model, or a tokenizer.json"
    )]
    OwnTokenizer,
    /// The model to begin with has no weight of the recipe's model.
    #[error(
        "{name}: none of its weights has the name and shape of one of the recipe's model; training.start expects a model of the same kind, or a language model or a pretrained one for a \"transformer-classifier\" or \"transformer-lm\""
    )]
    NothingTaken {
        /// Its file.
        name: String,
    },
    /// A pretrained model, with which the recipe's model cannot begin.
    #[error(
        "training.start: {name} is a pretrained model of others, with which a \"transformer-classifier\" or \"transformer-lm\" may begin; expected, for model.kind = {kind:?}, a file or run folder of `regard train` with a model of the same kind"
    )]
    NotOfOthers {
        /// Its folder.
        name: String,
        /// The kind of the recipe's model.
        kind: &'static str,
    },
    /// There is no model to begin with.
    #[error(
        "training.start: {source}; expected a file or run folder of `regard train`, or a pretrained model"
    )]
    NoStart {
        /// Where a pretrained model was looked for.
        source: PretrainedError,
    },
    /// The pretrained model to begin with cannot be read, or not be trained.
    #[error("training.start: {0}")]
    Pretrained(#[from] PretrainedError),
    /// The tokens of the model to begin with see others than those of the recipe's model.
    #[error(
        "training.start: {name} was trained as a model with {expected}; expected the same in the recipe"
    )]
    Sight {
        /// Its file or folder.
        name: String,
        /// The key and its value.
        expected: &'static str,
    },
    /// Every weight's name begins as `training.frozen` says.
    #[error(
        "training.frozen: every weight's name begins with {0:?}, so that nothing would be trained; expected the beginning of some names, such as \"transformer\""
    )]
    AllFrozen(String),
    /// No weight's name begins as `training.frozen` says.
    #[error(
        "training.frozen: no weight's name begins with {frozen:?}; their names are {}",
        names.join(", ")
    )]
    NothingFrozen {
        /// The beginning.
        frozen: String,
        /// All names.
        names: Vec<String>,
    },
    /// There is no image of a part of the data, or none that can be read.
    #[error(
        "{key}: no image is left, {broken} that cannot be read were left out; expected {expected}"
    )]
    NoImages {
        /// The key that names the images.
        key: &'static str,
        /// How many were left out.
        broken: usize,
        /// What is needed.
        expected: &'static str,
    },
    /// The recipe's images do not have the size that a model reads.
    #[error(
        "{section}.size: the recipe brings images to {} x {} pixels (height x width), but the model reads images of {} x {}; set this key to the model's size, and compare models of other sizes each with a recipe of its own",
        found[0], found[1], expected[0], expected[1]
    )]
    ImageSize {
        /// The section that names the images.
        section: &'static str,
        /// Height and width of the images.
        found: [usize; 2],
        /// Those that the model reads.
        expected: [usize; 2],
    },
    /// The recipe's images are grey and the model reads colours, or the other way round.
    #[error(
        "[{section}] of the recipe gives images of {found} channels (1 for grey, 3 for colour), but the model reads images of {expected}; expected data.objects.grey as when the model was trained"
    )]
    ImageChannels {
        /// The section that names the images.
        section: &'static str,
        /// The channels of the images.
        found: usize,
        /// Those that the model reads.
        expected: usize,
    },
    /// The tokenizers could not be learned.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The model's sizes do not fit.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file could not be written or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A model file is damaged.
    #[error(transparent)]
    ModelFile(#[from] ModelFileError),
    /// The weights do not fit the recipe's model.
    #[error("the checkpoint does not fit the recipe: {0}")]
    Weights(#[from] WeightsError),
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The update failed.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// The loss is NaN or infinite.
    #[error(
        "the loss is {loss} at update {step}; lower the learning rate or set optimizer.clip_norm"
    )]
    Loss {
        /// The loss.
        loss: f64,
        /// The update.
        step: u64,
    },
    /// The validation text could not be translated.
    #[error(transparent)]
    Translate(#[from] LineError),
    /// What the model looked at cannot be measured.
    #[error("validation.diagnose: what the model looked at cannot be measured: {0}")]
    Look(Box<dyn Error + Send + Sync>),
    /// The metric refused its input.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
    /// An error of a task from another crate.
    #[error(transparent)]
    Task(Box<dyn Error + Send + Sync>),
    /// The folder holds a run already.
    #[error("{}: holds a run already; go on with `regard train --resume {}`, or choose another folder", .0.display(), .0.display())]
    Occupied(PathBuf),
    /// The folder holds a recipe or tokenizer that no run has written.
    #[error(
        "{}: would be replaced, and is not as a run writes it; move it, or choose another folder with --folder", .0.display()
    )]
    OtherFile(PathBuf),
    /// Another process trains in the folder.
    #[error("{}: another process is training in this folder; wait for its end, or choose another folder", .0.display())]
    Busy(PathBuf),
    /// The data of a run are not those that it began with.
    #[error(
        "{}: its training data have changed since the run began; restore them, or begin a new run with training.start", .0.display()
    )]
    OtherData(PathBuf),
    /// The epoch of a checkpoint has other batches now, or no more than were done.
    #[error(
        "{}: was saved after {position} batches of an epoch, which has other batches now; expected [batch], data.filter, training.seed and model.context as they were: change them where an epoch begins, or begin a new run with training.start", path.display()
    )]
    OtherBatches {
        /// The checkpoint.
        path: PathBuf,
        /// Batches done.
        position: usize,
    },
    /// The processes cannot work together.
    #[error(transparent)]
    Ranks(#[from] RanksError),
    /// A run whose recipe is gone.
    #[error(
        "{}: holds last.safetensors but no recipe.toml, without which the run cannot go on; restore the recipe, or begin a new run in another folder", .0.display()
    )]
    NoRecipe(PathBuf),
    /// There is nothing to resume.
    #[error("{}: no last.safetensors to resume from; expected the folder of a `regard train` run", .0.display())]
    NothingToResume(PathBuf),
}

impl From<ImagesError> for TrainError {
    fn from(error: ImagesError) -> Self {
        Self::Images(Box::new(error))
    }
}

impl TrainError {
    /// The attention of a validation example cannot be measured.
    pub(crate) fn look(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Look(error.into())
    }
}
