//! What models are trained for: one file for each task.
//!
//! A [`Task`] checks what it needs of a recipe, reads the data, makes models, gives the loss of a batch, judges a model, and
//! describes what a model file holds beside the weights. The [learner](crate::learner) and the [registry](crate::Registry) use
//! nothing else, so that a program can add its own task.

pub mod captioning;
pub mod classification;
pub mod detection;
pub mod image_classification;
pub mod language_modelling;
pub mod questions;
pub mod translation;

use std::{fmt::Debug, ops::Range};

use burn::tensor::{Device, Tensor};
use regard_config::Check;
use regard_images::{
    Image, ImagesError,
    data::{Broken, Loading, Pictures},
};
use regard_models::{ModelError, Role, RoleOf};
use regard_nn::{dropout::DropoutRng, weights::Arrays};
use regard_trace::Trace;

pub use captioning::Captioning;
pub use classification::Classification;
pub use detection::Detection;
pub use image_classification::ImageClassification;
pub use language_modelling::LanguageModelling;
pub use questions::VisualQuestions;
pub use translation::Translation;

use crate::{
    corpus::{Batches, CorpusError, FilterReport},
    error::TrainError,
    learner::events::Quality,
    model_file::{Header, Metadata, ModelFileError},
    ranks::Ranks,
    recipe::{Model, Recipe},
    tokenizer::TokenizerPair,
};

/// A kind of data, a kind of model, and how the one is judged on the other.
pub trait Task: Debug + Send + Sync + 'static {
    /// A noun for a model of this task, in messages.
    const MODEL: &'static str;

    /// A verb for what a model does, in messages: it follows the name.
    const DOES: &'static str;

    /// Lists of the sections and keys of a recipe that no model of this task reads ("translate", "data.labelled"). They are refused, so
    /// that nobody believes that they work.
    const UNREAD: &'static [&'static [&'static str]] = &[];

    /// Whether models of this task read the questions about drawn scenes. Where they do not, `data.scenes.questions` is not shown, and
    /// refused for a new run.
    const ASKS: bool = false;

    /// Whether the loss decides which model is the best, whatever the recipe says.
    const BY_LOSS: bool = false;

    /// What the speed of training counts ([`BatchLoss::tokens`]).
    const COUNTED: &'static str = "tokens";

    /// Whether the loss is a mean over words, so that its exponential is a perplexity.
    const PERPLEXITY: bool = false;

    /// The models that are trained.
    type Model: Role;

    /// The content of a model file apart from the weights.
    type Description: Describe<Self::Model>;

    /// The data to train on.
    type Data;

    /// The task for the models of one architecture, whose configurations `role` finds.
    fn of(role: RoleOf<Self::Model>) -> Self
    where
        Self: Sized;

    /// What finds the configurations of the architecture.
    fn role(&self) -> RoleOf<Self::Model>;

    /// Fills in the keys that this task needs in an example of a recipe.
    fn example(&self, recipe: &mut Recipe);

    /// Checks what this task needs of a recipe. Its ranges have been checked already.
    fn check(&self, recipe: &Recipe, check: &mut Check);

    /// Reads the data. What was learned from it before (tokenizers, labels) is taken from the `former` description, if there
    /// is one; `tokenizers` are those of a model that training begins with.
    ///
    /// # Errors
    /// Data that is wrong.
    fn load(
        &self,
        recipe: &Recipe,
        former: Option<Self::Description>,
        tokenizers: Option<TokenizerPair>,
    ) -> Result<(Self::Data, Self::Description), TrainError>;

    /// Draws a model.
    ///
    /// # Errors
    /// Sizes that do not go together.
    fn init(
        &self,
        description: &Self::Description,
        seed: u64,
        device: &Device,
    ) -> Result<Self::Model, ModelError> {
        let config = self.role().of(&*description.model().config);
        config.build(&description.sizes(), seed, device)
    }

    /// A model for the weights `arrays` of a file, which will be given to it: no weight needs to be drawn. The sizes of the
    /// description come from the file too, so nothing is allocated by them before the arrays confirm them.
    ///
    /// # Errors
    /// Sizes that do not fit together, or that do not fit the arrays.
    fn without_values(
        &self,
        description: &Self::Description,
        arrays: &Arrays,
        device: &Device,
    ) -> Result<Self::Model, ModelError> {
        let config = self.role().of(&*description.model().config);
        config.build_without_values(&description.sizes(), arrays, device)
    }

    /// The description as the metadata of a file.
    fn metadata(&self, description: &Self::Description) -> Metadata;

    /// The description from the metadata of the file called `name`, whose `header` is read already.
    ///
    /// # Errors
    /// An entry that is missing, does not parse, or does not fit the others.
    fn describe(
        &self,
        header: Header,
        metadata: &Metadata,
        name: &str,
    ) -> Result<Self::Description, ModelFileError>;

    /// A hash of the training examples, by which a resumed run finds out that they have changed.
    ///
    /// # Errors
    /// An image that cannot be read any more.
    fn fingerprint(&self, data: &Self::Data) -> Result<u64, TrainError>;

    /// A hash of the validation examples, and of what changes their loss beside the model; by it several processes find out that they
    /// differ, and a resumed run that its best model was judged otherwise.
    ///
    /// # Errors
    /// As [`fingerprint`](Self::fingerprint).
    fn validation_fingerprint(&self, data: &Self::Data) -> Result<u64, TrainError>;

    /// The examples to train on.
    fn contents<'a>(
        &self,
        data: &'a Self::Data,
        description: &'a Self::Description,
    ) -> Contents<'a>;

    /// Begins to read what an update on the training examples `rows` will need, on other threads.
    ///
    /// # Errors
    /// [`TrainError::Images`] if the system has no thread.
    fn ahead(&self, _data: &Self::Data, _rows: &[usize]) -> Result<(), TrainError> {
        Ok(())
    }

    /// The loss of the training examples of `update`; everything random follows from the seed, the number of the update and the row's
    /// place in the batch, so that a row's share of the loss does not depend on the process that computes it.
    ///
    /// # Errors
    /// An image that cannot be read any more.
    fn loss(
        &self,
        data: &Self::Data,
        model: &Self::Model,
        update: &Update<'_>,
    ) -> Result<BatchLoss, TrainError>;

    /// Judges `model`, which is on `device` without autodiff; `None` without validation data. The `ranks` share the examples
    /// (`spread` of [`Ranks`]), and all come to the same verdict.
    ///
    /// # Errors
    /// A model that cannot be judged.
    fn validate(
        &self,
        data: &Self::Data,
        description: &Self::Description,
        model: &Self::Model,
        recipe: &Recipe,
        device: &Device,
        ranks: &dyn Ranks,
    ) -> Result<Option<Verdict>, TrainError>;

    /// What `model`, which is on `device` without autodiff, looks at in the validation example at `row`; `None` beyond the last one, and
    /// for a task whose models have no attention. A validation takes its measures of attention from the first examples. Of
    /// translators, one whose weights do not fit in memory has no maps.
    ///
    /// # Errors
    /// Numbers that are no weights.
    fn look(
        &self,
        _data: &Self::Data,
        _description: &Self::Description,
        _model: &Self::Model,
        _row: usize,
        _device: &Device,
    ) -> Result<Option<Trace>, TrainError> {
        Ok(None)
    }
}

/// What only translation reads of a recipe.
const OF_TRANSLATION: &[&str] = &[
    "data.source_language",
    "data.target_language",
    "data.train_source",
    "data.train_target",
    "data.valid_source",
    "data.valid_target",
    "data.test_source",
    "data.test_target",
    "data.vocabulary.joint",
    "data.vocabulary.dropout",
    "data.target_tokenizer",
    "data.synthetic",
    "training.scheduled_sampling",
    "validation.beam",
    "validation.max_sentences",
    "validation.batch_sentences",
    "validation.tokenizer",
    "validation.lowercase",
    "translate",
];

/// What only models of images read.
const OF_IMAGES: &[&str] = &[
    "data.images",
    "data.scenes",
    "data.captions",
    "data.questions",
    "data.objects",
    "training.guided_attention",
];

/// Checks that a model has room for texts of as many tokens as settings allow, which are named by their keys: at most `most`, marks
/// aside, for the reason `why`.
fn check_lengths(settings: &[(&str, usize)], most: usize, why: &str, check: &mut Check) {
    let expected = format!("at most {most}{why}");
    for &(key, longest) in settings {
        check.require(longest <= most, key, longest, &expected);
    }
}

/// The tokenizers that need not be learned: those of the `former` session of a run, of the model that training begins with (`begun`), or
/// of the files that the recipe names.
///
/// # Errors
/// A file that is wrong. For a new run also what the recipe says of tokens without effect; one that began before this was refused goes on.
fn known_tokenizers(
    recipe: &Recipe,
    former: Option<TokenizerPair>,
    begun: Option<TokenizerPair>,
) -> Result<Option<TokenizerPair>, TrainError> {
    if former.is_some() {
        return Ok(former);
    }
    let data = &recipe.data;
    if let Some((field, deciding)) = data.token_key_without_effect(begun.is_some()) {
        let problem = format!(
            "set, but {deciding} says what a token is, so that this has no effect; expected no such key"
        );
        return Err(CorpusError::Setting { field, problem }.into());
    }
    let known = match begun {
        Some(begun) => Some(begun),
        None => data.finished_tokenizers()?,
    };
    let dropout = data.vocabulary.dropout;
    if let Some(known) = &known
        && dropout > 0.0
        && !(known.source().has_merges() && known.target().has_merges())
    {
        let field = "data.vocabulary.dropout";
        let problem = format!(
            "found {dropout}, but the tokenizers of training.start have no merges that could be left out; expected 0.0"
        );
        return Err(CorpusError::Setting { field, problem }.into());
    }
    Ok(known)
}

/// What `read` makes of examples by their numbers below `count`, images and what goes with them, on all threads; and how many were left
/// out as `broken` allows. Memory keeps so many mebibytes of images.
fn decoded<T: Send + 'static>(
    count: usize,
    broken: Broken,
    mebibytes: usize,
    read: impl Fn(usize) -> Result<(Image, T), ImagesError> + Send + Sync + 'static,
) -> Result<(Pictures, Vec<T>, usize), ImagesError> {
    let loading = Loading {
        threads: rayon::current_num_threads(),
        broken,
        ..Loading::default()
    };
    Pictures::read(count, &loading, mebibytes.saturating_mul(1 << 20), read)
}

/// A hash of lists of ids (FNV-1a), each list with its length.
pub fn fingerprint<'a>(lists: impl Iterator<Item = &'a [u32]>) -> u64 {
    let mut hash = Fingerprint::new();
    for ids in lists {
        hash.list(ids.len(), ids.iter().copied());
    }
    hash.0
}

/// The hash of [`fingerprint`], to which lists are added one by one: none must be in memory.
struct Fingerprint(u64);

impl Fingerprint {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds a list of so many words.
    fn list(&mut self, length: usize, words: impl Iterator<Item = u32>) {
        let step = |hash: u64, word: u32| (hash ^ u64::from(word)).wrapping_mul(0x100_0000_01b3);
        self.0 = words.fold(step(self.0, length as u32), step);
    }

    /// Adds bytes as a list of words, little-endian; the last one is filled with zeros.
    fn bytes(&mut self, bytes: &[u8]) {
        let word = |bytes: &[u8]| {
            let mut all = [0; 4];
            all[..bytes.len()].copy_from_slice(bytes);
            u32::from_le_bytes(all)
        };
        self.list(bytes.len().div_ceil(4), bytes.chunks(4).map(word));
    }
}

/// What a model file holds apart from the weights.
pub trait Describe<R: Role>: Clone + Debug {
    /// The architecture.
    fn model(&self) -> &Model;

    /// What the model is sized by, beside its configuration.
    fn sizes(&self) -> R::Sizes;
}

/// The term of REINFORCE over `rows` sentences and its baseline ([`Scored::reinforced`](regard_models::Scored::reinforced)), if there is
/// one. Only the gradient of the term is wanted: its value is subtracted again, so that the reported loss stays as it is.
fn reward(reinforced: Option<(Tensor<1>, f32)>, rows: usize) -> (Option<Term>, Option<f32>) {
    match reinforced {
        Some((term, baseline)) => {
            let no_value = term.clone() - term.detach();
            (Some(Term::new(no_value, rows)), Some(baseline))
        }
        None => (None, None),
    }
}

/// The examples that a task trains on.
pub struct Contents<'a> {
    /// What one example is called, in the plural.
    pub examples: &'static str,
    /// Text to ids and back, where there is text.
    pub tokenizers: Option<&'a TokenizerPair>,
    /// The training examples by length.
    pub batches: &'a Batches,
    /// How much of the corpus was kept and dropped.
    pub filtered: &'a FilterReport,
    /// Examples of the validation set.
    pub validation: usize,
}

/// One update.
pub struct Update<'a> {
    /// The recipe of the run.
    pub recipe: &'a Recipe,
    /// The training examples of the batch.
    pub rows: &'a [usize],
    /// The places in `rows` that this process computes: all, unless there are several.
    pub share: Range<usize>,
    /// The update's number, counted from 1.
    pub step: u64,
    /// The device with autodiff.
    pub training: &'a Device,
    /// The same device without autodiff.
    pub device: &'a Device,
    /// The [`BatchLoss::baseline`] of the update before.
    pub baseline: Option<f32>,
}

impl Update<'_> {
    /// The examples that this process computes.
    pub fn own_rows(&self) -> &[usize] {
        &self.rows[self.share.clone()]
    }

    /// Noise for the rows that this process computes: what they have in a pass over the whole batch, padded alike.
    pub fn noise(&self, seed: u64) -> DropoutRng {
        DropoutRng::seeded(seed).of_rows(self.share.clone(), self.rows.len())
    }
}

/// A part of a loss: a mean.
#[derive(Debug, Clone)]
pub struct Term {
    /// The mean, `[1]`.
    pub mean: Tensor<1>,
    /// How many things it is the mean of, or the sum of their weights: by this number the shares of several processes are joined.
    pub count: f64,
}

impl Term {
    /// The mean of `count` things.
    pub fn new(mean: Tensor<1>, count: usize) -> Self {
        let count = count as f64;
        Self { mean, count }
    }
}

/// The loss of a batch, or of a process' share of it.
#[derive(Debug)]
pub struct BatchLoss {
    /// The loss that is minimised is the sum of these. They mean the same for every share.
    pub terms: Vec<Term>,
    /// The sum of the negative log-likelihoods, nats.
    pub negative_log_likelihood: f64,
    /// The number of predictions that the loss is a mean of: target tokens, or sentences.
    pub predictions: usize,
    /// Tokens (or images) that were processed, for the speed.
    pub tokens: usize,
    /// The running mean of the reward, if the model learns by reward; saved with the run.
    pub baseline: Option<f32>,
}

/// The result of a validation.
pub struct Verdict {
    /// Nats per prediction.
    pub loss: f64,
    /// BLEU, accuracy or likelihood.
    pub quality: Quality,
    /// The model's output for the validation set, line by line; empty if it has none.
    pub lines: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_bytes_is_that_of_their_words() {
        let mut hash = Fingerprint::new();
        hash.bytes(&[1, 2, 3, 4, 5, 6]);
        hash.bytes(&[]);
        hash.list(1, [7].into_iter());
        let lists: [&[u32]; 3] = [&[0x0403_0201, 0x0605], &[], &[7]];
        assert_eq!(hash.0, fingerprint(lists.into_iter()));
        // Runs that are resumed keep it from before.
        assert_eq!(hash.0, GOLDEN);
    }

    const GOLDEN: u64 = 0x9fd6_37c2_82b0_5a55;
}
