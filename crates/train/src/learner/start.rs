//! Training that begins with the weights of a trained model: further training, and fine-tuning.
//!
//! The tokenizers are taken, and every weight whose name and shape both models have: a classifier takes the Transformer of a language
//! model, and draws its own output layer. Which weights are drawn is told. The language model, or an encoder, may also be one that
//! others have trained.

use std::path::{Path, PathBuf};

use burn::{
    module::{Flag, Module, ModuleMapper, Param},
    tensor::Tensor,
};
use regard_models::{
    Objective,
    language::{TextTransformerConfig, TransformerLmConfig},
    pretrained::{Folder, Tokenizer, Trainable, resolve},
    sentence::TransformerClassifierConfig,
    transformer::Positions,
};
use regard_nn::weights::{self, Arrays};

use crate::{
    Registry,
    error::TrainError,
    model_file,
    recipe::{Model, Recipe},
    tokenizer::{SubwordTokenizer, TokenizerPair},
};

/// What the names of a Transformer's weights begin with.
const TRANSFORMER: &str = "transformer.";

/// A trained model to begin with.
#[derive(Debug)]
pub(crate) struct Start {
    /// Its file or folder.
    name: String,
    arrays: Arrays,
    /// Its tokenizers, if it reads text.
    pub(crate) tokenizers: Option<TokenizerPair>,
}

impl Start {
    /// Opens the model that `recipe` begins with, if it names one, and gives its sizes to the recipe's model.
    ///
    /// # Errors
    /// What is wrong with its files; one whose tokens see others than those of the recipe's model.
    pub(crate) fn open(
        registry: &Registry,
        recipe: &mut Recipe,
    ) -> Result<Option<Self>, TrainError> {
        let Some(path) = recipe.training.start.clone() else {
            return Ok(None);
        };
        let start = match pretrained(&path)? {
            Some(folder) => Self::pretrained(&folder, &mut recipe.model),
            None => Self::trained(&path, registry, recipe),
        };
        start.map(Some)
    }

    /// One that was trained here.
    fn trained(path: &Path, registry: &Registry, recipe: &mut Recipe) -> Result<Self, TrainError> {
        let path = model_file::locate(path)?;
        let name = path.display().to_string();
        let (mut arrays, metadata) = model_file::read(&path)?;
        model_file::expect_model(&metadata, &name)?;
        let tokenizers = model_file::tokenizers_if_any(&metadata, &name)?;
        let model = registry.header(&metadata, &name)?.model;
        if let (Some(own), Some((causal, _))) = (sight(&recipe.model), sight(&model)) {
            expect_sight(own, causal, &name)?;
        }
        let adopted = given(&model).is_some_and(|given| adopt(&mut recipe.model, &given));
        if model.kind != recipe.model.kind {
            // All that models of two kinds can share.
            arrays.retain(|name, _| adopted && name.starts_with(TRANSFORMER));
        }
        Ok(Self {
            name,
            arrays,
            tokenizers,
        })
    }

    /// One that others have trained, in `folder`.
    fn pretrained(folder: &Path, model: &mut Model) -> Result<Self, TrainError> {
        let name = folder.display().to_string();
        let Some(own) = sight(model) else {
            let kind = model.kind;
            return Err(TrainError::NotOfOthers { name, kind });
        };
        let found = Trainable::open(&Folder::open(folder)?)?;
        expect_sight(own, found.causal, &name)?;
        // Without a table of positions the recipe is free to read less.
        let learned = found.transformer.positions == Positions::Learned;
        let given = Given {
            transformer: &found.transformer,
            context: learned.then_some(found.context),
            tie: Some(!found.arrays.contains_key("output.weight")),
        };
        adopt(model, &given);
        let tokenizer = Tokenizer::open(folder)?;
        // The rows that some tokens lack are added, and learned.
        tokenizer.expect_most_rows(found.vocabulary())?;
        let tokenizer = SubwordTokenizer::of_pretrained(&tokenizer)?;
        let mut arrays = found.with_vocabulary(tokenizer.vocabulary_size()).arrays;
        if model.config::<TransformerLmConfig>().is_none() {
            arrays.retain(|name, _| name.starts_with(TRANSFORMER));
        }
        Ok(Self {
            name,
            arrays,
            tokenizers: Some(TokenizerPair::joint(tokenizer)),
        })
    }

    /// `model` with the weights that both have, and the names of its other weights, which stay as drawn.
    ///
    /// # Errors
    /// No weight that both have.
    pub(crate) fn apply<M: Module>(mut self, model: M) -> Result<(M, Vec<String>), TrainError> {
        let mut own = weights::collect(&model);
        let all = own.len();
        let mut drawn = vec![];
        for (name, own) in &mut own {
            match self.arrays.remove(name) {
                Some(array) if array.shape == own.shape => *own = array,
                _ => drawn.push(name.clone()),
            }
        }
        match drawn.len() == all {
            true => Err(TrainError::NothingTaken { name: self.name }),
            false => Ok((weights::apply(model, own)?, drawn)),
        }
    }
}

/// The folder of a pretrained model, if `path` means one: a folder with a `config.json`, or a name that no file has.
fn pretrained(path: &Path) -> Result<Option<PathBuf>, TrainError> {
    if path.exists() {
        return Ok(path.join("config.json").is_file().then(|| path.to_owned()));
    }
    let found = resolve(&path.to_string_lossy());
    found
        .map(Some)
        .map_err(|source| TrainError::NoStart { source })
}

/// Whether `path` means a pretrained model, as far as can be told without a download.
fn is_of_others(path: &Path) -> bool {
    path.to_string_lossy().starts_with("hf:") || matches!(pretrained(path), Ok(Some(_)))
}

/// Whether a token of `model` sees only itself and those before it, and what a recipe says for no and for yes; `None` for a model without
/// a Transformer of tokens.
fn sight(model: &Model) -> Option<(bool, [&'static str; 2])> {
    if let Some(config) = model.config::<TransformerLmConfig>() {
        let causal = config.objective == Objective::Causal;
        let said = [
            "model.objective = \"masked\"",
            "model.objective = \"causal\"",
        ];
        return Some((causal, said));
    }
    let config = model.config::<TransformerClassifierConfig>()?;
    Some((
        config.causal,
        ["model.causal = false", "model.causal = true"],
    ))
}

/// Refuses a model to begin with, called `name`, whose tokens see others than those of the recipe's model, of which `own` is the [`sight`].
fn expect_sight(
    (own, said): (bool, [&'static str; 2]),
    causal: bool,
    name: &str,
) -> Result<(), TrainError> {
    match own == causal {
        true => Ok(()),
        false => Err(TrainError::Sight {
            name: name.to_owned(),
            expected: said[usize::from(causal)],
        }),
    }
}

/// What a model to begin with says of a recipe's model that has a Transformer of tokens; of what is `None` the recipe says it.
struct Given<'a> {
    /// Sizes and choices; dropout stays the recipe's.
    transformer: &'a TextTransformerConfig,
    /// The most tokens that are read.
    context: Option<usize>,
    /// Whether a language model's output layer is its table of tokens.
    tie: Option<bool>,
}

/// What `model` gives, if it has a Transformer of tokens.
fn given(model: &Model) -> Option<Given<'_>> {
    if let Some(config) = model.config::<TransformerLmConfig>() {
        return Some(Given {
            transformer: &config.transformer,
            context: Some(config.context),
            tie: Some(config.tie),
        });
    }
    let config = model.config::<TransformerClassifierConfig>()?;
    Some(Given {
        transformer: &config.transformer,
        context: Some(config.context),
        tie: None,
    })
}

/// Gives `model`, if it has a Transformer of tokens, what is `given`; whether it has one.
fn adopt(model: &mut Model, given: &Given<'_>) -> bool {
    let adopted = |own: &TextTransformerConfig| TextTransformerConfig {
        dropout: own.dropout.clone(),
        ..given.transformer.clone()
    };
    if let Some(config) = model.config_mut::<TransformerClassifierConfig>() {
        config.transformer = adopted(&config.transformer);
        config.context = given.context.unwrap_or(config.context);
        return true;
    }
    let config = model.config_mut::<TransformerLmConfig>();
    config.is_some_and(|config| {
        config.transformer = adopted(&config.transformer);
        config.context = given.context.unwrap_or(config.context);
        config.tie = given.tie.unwrap_or(config.tie);
        true
    })
}

/// Gives `recipe` what [`Start::open`] gave `begun`, the recipe of a run that began with the same trained model: the model itself need not
/// be there any more. How much is read stays the recipe's own where a pretrained model left it so.
pub(crate) fn adopt_from_run(recipe: &mut Recipe, begun: &Recipe) {
    let Some(start) = recipe.training.start.as_deref() else {
        return;
    };
    if begun.training.start.as_deref() != Some(start) || recipe.model.kind != begun.model.kind {
        return;
    }
    if let Some(mut given) = given(&begun.model) {
        let is_given = given.transformer.positions == Positions::Learned || !is_of_others(start);
        given.context = given.context.filter(|_| is_given);
        adopt(&mut recipe.model, &given);
    }
}

/// `model` with the weights whose names begin with `frozen` without gradients: they are not trained. A batch norm of which all weights are
/// frozen works as after training: by its running moments, which stay as they are.
///
/// # Errors
/// No weight of such a name, or no other. Running moments are no weights.
pub(crate) fn freeze<M: Module>(model: M, frozen: &str) -> Result<M, TrainError> {
    let mut freezer = Freezer {
        frozen,
        path: vec![],
        any: false,
        trained: vec![],
    };
    let model = model.map(&mut freezer);
    match (freezer.any, freezer.trained.is_empty()) {
        (true, false) => Ok(model),
        (true, true) => Err(TrainError::AllFrozen(frozen.to_owned())),
        (false, _) => Err(TrainError::NothingFrozen {
            frozen: frozen.to_owned(),
            names: freezer.trained,
        }),
    }
}

struct Freezer<'a> {
    frozen: &'a str,
    path: Vec<String>,
    /// Whether a weight was frozen.
    any: bool,
    /// The names of the others.
    trained: Vec<String>,
}

impl ModuleMapper for Freezer<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        // Running moments are never trained.
        if !param.val().is_require_grad() {
            return param;
        }
        let name = self.path.join(".");
        if !name.starts_with(self.frozen) {
            self.trained.push(name);
            return param;
        }
        self.any = true;
        param.set_require_grad(false)
    }

    /// What the names of both weights of a batch norm begin with, that of its flag begins with too.
    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        match self.path.join(".").starts_with(self.frozen) {
            true => flag.with_value(false),
            false => flag,
        }
    }
}
