//! How a text is read, how the states of its tokens become one vector, and how near two vectors are.

use std::{collections::BTreeMap, path::Path};

use regard_kernels::{
    simd,
    stack::{Activation, Product},
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    config::Config,
    encoder::TextEncoder,
    error::PretrainedError,
    families,
    folder::{Folder, Names},
    json::{LARGEST_SETTINGS, json},
    source::{Expected, Matrix},
    tokenizer::{Encoding, Tokenizer},
};
use crate::generator::expect_valid;

/// How the states of a text's tokens become one vector, as sentence-transformers has it: they are pooled in one way or in several,
/// whose vectors are put side by side, and the vector goes through layers `φ(W x + b)` and is given the length 1, in the order of
/// `modules.json`. A model that makes a vector itself ([`TextEncoder::vector`]) is not pooled.
///
/// Texts are read as [`encode`](Self::encode) has them, perhaps behind a prompt and in lower case, and cut to
/// [`most_tokens`](Self::most_tokens) before the model reads them:
///
/// ```no_run
/// use regard_models::pretrained::{Folder, Input, Pooling, TextEncoder, Tokenizer};
///
/// let folder = Folder::open("all-MiniLM-L6-v2")?;
/// let (model, tokenizer) = (TextEncoder::open(&folder, None)?, Tokenizer::open(folder.path())?);
/// let pooling = Pooling::open(folder.path())?;
/// let text = pooling.encode(&tokenizer, "How are you?")?;
/// let text = text.truncated(pooling.most_tokens(&model), tokenizer.truncation_side());
/// let input = Input { ids: &text.ids, ..Default::default() };
/// let states = model.states(&[input], None)?;
/// let vector = pooling.vector(&model, &text.ids, &states[0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Pooling {
    ways: Vec<Way>,
    /// What the vector goes through, in this order.
    after: Vec<Step>,
    /// The most tokens of a text that a file states.
    most: Option<usize>,
    /// The model's tokenizer, where texts are read in lower case, or the tokens of a prompt have to be counted.
    tokenizer: Option<Tokenizer>,
    /// What can stand before a text, by name.
    prompts: BTreeMap<String, String>,
    /// What stands before each text.
    prompt: String,
    /// Whether its tokens are pooled, too.
    pools_prompt: bool,
    /// The tokens that are not pooled, at the beginning.
    skipped: usize,
    /// Of [`SIMILARITIES`].
    similarity: &'static str,
    /// The numbers of a vector that are kept, the first ones.
    kept: Option<usize>,
}

/// A file of sentence-transformers with what belongs to no module.
const SETTINGS: &str = "config_sentence_transformers.json";

/// The measures by which sentence-transformers compares vectors; the usual one is the first.
const SIMILARITIES: [&str; 4] = ["cosine", "dot", "euclidean", "manhattan"];

/// One vector of the states of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    First,
    Last,
    /// The largest number of each feature.
    Largest,
    Mean,
    /// The sum divided by the root of its length.
    Root,
    /// The mean in which token `i`, counted from 1, has the weight `i`.
    Weighted,
}

/// The value of `pooling_mode`, and the flag of older files: several of these are in this order.
const WAYS: [(&str, &str, Way); 6] = [
    ("cls", "pooling_mode_cls_token", Way::First),
    ("max", "pooling_mode_max_tokens", Way::Largest),
    ("mean", "pooling_mode_mean_tokens", Way::Mean),
    (
        "mean_sqrt_len_tokens",
        "pooling_mode_mean_sqrt_len_tokens",
        Way::Root,
    ),
    (
        "weightedmean",
        "pooling_mode_weightedmean_tokens",
        Way::Weighted,
    ),
    ("lasttoken", "pooling_mode_lasttoken", Way::Last),
];

/// What follows the pooling.
#[derive(Debug, Clone)]
enum Step {
    /// `φ(W x + b)`
    Dense(Product, InPlace),
    /// `x / |x|`
    Normalize,
}

/// `φ`, in place.
type InPlace = fn(&mut [f32]);

/// The activations of a dense module: the classes of PyTorch.
const ACTIVATIONS: [(&str, InPlace); 5] = [
    ("Identity", |_| ()),
    ("Tanh", simd::tanh_in_place),
    ("Sigmoid", simd::sigmoid_in_place),
    ("ReLU", |x| Activation::Relu.apply(x)),
    ("GELU", |x| Activation::Gelu.apply(x)),
];

/// An entry of `modules.json`.
#[derive(Debug, Deserialize)]
pub(super) struct Module {
    /// The name of its class.
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    path: String,
}

impl Module {
    /// Its class, of those of sentence-transformers.
    pub(super) fn kind(&self) -> Option<&str> {
        let name = self.kind.strip_prefix("sentence_transformers.")?;
        name.rsplit('.').next()
    }

    /// The name of its folder, empty for that of the model. `None` for a name that could lead elsewhere.
    pub(super) fn folder(&self) -> Option<&str> {
        let path = self.path.as_str();
        let plain = Path::new(path).file_name().is_some_and(|it| it == path);
        (path.is_empty() || (plain && !path.contains('\\'))).then_some(path)
    }
}

impl Pooling {
    /// Of a model's folder, with the modules of `modules.json` and what their folders have. Without this file: as
    /// `1_Pooling/config.json` says, or else the mean, of length 1. Texts are read as `sentence_bert_config.json` says, and behind the
    /// prompt that `config_sentence_transformers.json` calls the default.
    ///
    /// # Errors
    /// [`PretrainedError`] for a module other than `Transformer`, `Pooling`, `Dense` and `Normalize`, or in another order, for a way of
    /// pooling or an activation that is not known, for a default prompt that is not among the prompts, and for files that cannot be
    /// read.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, PretrainedError> {
        let folder = folder.as_ref();
        let mut pooling = Self::of_modules(folder)?;
        let lower_case = match reading(folder)? {
            Some(config) => config.flag_or("do_lower_case", false)?,
            None => false,
        };
        if lower_case || !pooling.pools_prompt {
            let tokenizer = Tokenizer::open(folder)?;
            pooling.tokenizer = Some(match lower_case {
                true => tokenizer.lower_cased()?,
                false => tokenizer,
            });
        }
        let file = folder.join(SETTINGS);
        if !file.exists() {
            return Ok(pooling);
        }
        let config = Config::read_file(file)?;
        pooling.prompts = config.texts_by_name("prompts")?;
        let similarity = config.text_or("similarity_fn_name", SIMILARITIES[0])?;
        // As sentence-transformers has it: those of other kinds of models are not this one's.
        let known = SIMILARITIES.into_iter().find(|name| *name == similarity);
        pooling.similarity = known.unwrap_or(SIMILARITIES[0]);
        const KEPT: &str = "truncate_dim";
        if config.has(KEPT) {
            pooling.kept = Some(config.size(KEPT)?);
        }
        const DEFAULT: &str = "default_prompt_name";
        if !config.has(DEFAULT) {
            return Ok(pooling);
        }
        let name = config.text(DEFAULT)?;
        match pooling.prompt_of(name).map(str::to_owned) {
            Some(prompt) => pooling.behind(prompt),
            None => {
                let names: Vec<&str> = pooling.prompts().collect();
                let expected = format!("one of the prompts ({})", names.join(", "));
                Err(config.refuse(DEFAULT, expected))
            }
        }
    }

    /// What `modules.json` says, and how long texts may be.
    fn of_modules(folder: &Path) -> Result<Self, PretrainedError> {
        let list = folder.join("modules.json");
        let mut pooling = Self {
            ways: vec![Way::Mean],
            after: vec![],
            most: most_tokens(folder)?,
            tokenizer: None,
            prompts: BTreeMap::new(),
            prompt: String::new(),
            pools_prompt: true,
            skipped: 0,
            similarity: SIMILARITIES[0],
            kept: None,
        };
        if !list.exists() {
            let file = folder.join("1_Pooling/config.json");
            if file.exists() {
                pooling.pool(&Config::read_file(file)?)?;
            }
            pooling.after.push(Step::Normalize);
            return Ok(pooling);
        }
        let modules: Vec<Module> = json(&list, LARGEST_SETTINGS)?;
        let mut width = None;
        for (place, module) in modules.iter().enumerate() {
            let refused = |found: &str, expected: &str| {
                let problem = format!("module {place}: found {found}; expected {expected}");
                PretrainedError::malformed(&list, problem)
            };
            let Some(path) = module.folder() else {
                let found = format!("path {:?}", module.path);
                return Err(refused(&found, "the name of a folder beside this file"));
            };
            let at = folder.join(path);
            match (place, module.kind()) {
                (0, Some("Transformer")) if path.is_empty() => {}
                (0, Some("Transformer")) => {
                    let found = format!("path {path:?}");
                    return Err(refused(&found, "\"\", the model's own folder"));
                }
                (1, Some("Pooling")) => {
                    pooling.pool(&Config::read_file(at.join("config.json"))?)?;
                }
                (1.., Some("Dense")) => {
                    let inputs = match width {
                        Some(width) => width,
                        None => vector_size(folder, pooling.ways.len())?,
                    };
                    let (step, outputs) = dense(&at, inputs)?;
                    width = Some(outputs);
                    pooling.after.push(step);
                }
                (1.., Some("Normalize")) => {
                    let file = at.join("config.json");
                    // The model's own configuration is none of a module.
                    if !path.is_empty() && file.exists() {
                        expect_vectors(&Config::read_file(file)?)?;
                    }
                    pooling.after.push(Step::Normalize);
                }
                _ => {
                    let found = format!("type {:?}", module.kind);
                    let expected = "Transformer, Pooling, and then Dense and Normalize in any order, \
                                    of sentence_transformers; others are not supported";
                    return Err(refused(&found, expected));
                }
            }
        }
        Ok(pooling)
    }

    /// Pools as the configuration of such a module says.
    fn pool(&mut self, config: &Config) -> Result<(), PretrainedError> {
        self.ways = ways(config)?;
        self.pools_prompt = config.flag_or("include_prompt", true)?;
        Ok(())
    }

    /// The names of the folder's prompts: texts that stand before another and say what its vector is for.
    pub fn prompts(&self) -> impl Iterator<Item = &str> {
        self.prompts.keys().map(String::as_str)
    }

    /// The same with another prompt before each text than the default one; `None` if the folder has no prompt of this name.
    ///
    /// # Errors
    /// A tokenizer that fails.
    pub fn with_prompt(self, name: &str) -> Result<Option<Self>, PretrainedError> {
        match self.prompt_of(name).map(str::to_owned) {
            Some(prompt) if !self.prompts.is_empty() => self.behind(prompt).map(Some),
            _ => Ok(None),
        }
    }

    /// The prompt of a name. A query and a document have one in any case, which can be empty, as sentence-transformers has it.
    fn prompt_of(&self, name: &str) -> Option<&str> {
        let usual = ["query", "document"].contains(&name).then_some("");
        self.prompts.get(name).map(String::as_str).or(usual)
    }

    /// The same with `prompt` before each text.
    fn behind(mut self, prompt: String) -> Result<Self, PretrainedError> {
        self.skipped = match &self.tokenizer {
            Some(tokenizer) if !self.pools_prompt && !prompt.is_empty() => {
                let prompt = tokenizer.encode(&prompt, true)?;
                // The special token that ends the prompt alone stands behind the text.
                let ends = prompt.special.last() == Some(&true);
                prompt.ids.len() - usize::from(ends)
            }
            _ => 0,
        };
        self.prompt = prompt;
        Ok(self)
    }

    /// The tokens of a text as the model is to read it, by its `tokenizer`: behind the prompt, and in lower case where
    /// `sentence_bert_config.json` says `do_lower_case`. They are not cut.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`]'s.
    pub fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Result<Encoding, PretrainedError> {
        let own = self.tokenizer.as_ref().unwrap_or(tokenizer);
        let encoded = own.encode(&format!("{}{text}", self.prompt), true)?;
        tokenizer.expect_embedded(&encoded.ids)?;
        Ok(encoded)
    }

    /// The measure by which the folder says that its vectors are compared, of `cosine`, `dot`, `euclidean` and `manhattan`. The dot
    /// product of vectors of length 1 is their cosine.
    pub fn similarity(&self) -> &str {
        match (self.similarity, self.after.last()) {
            ("dot", Some(Step::Normalize)) if self.kept.is_none() => SIMILARITIES[0],
            (similarity, _) => similarity,
        }
    }

    /// The most tokens of a text, special ones included: what is beyond them sentence-transformers leaves out
    /// ([`Encoding::truncated`](super::Encoding::truncated)). It is the `max_seq_length` of `sentence_bert_config.json`, or else the
    /// `model_max_length` of `tokenizer_config.json`, and never more than the model's context.
    pub fn most_tokens(&self, model: &TextEncoder) -> usize {
        let context = model.context();
        self.most.map_or(context, |most| most.min(context))
    }

    /// The vector of a text from its tokens and their states `[tokens, model]`. Where a prompt is not pooled, the states of its tokens
    /// are left out, but for the last state of all. What is pooled of no tokens is zeros. Only the first numbers are kept where the folder
    /// has a `truncate_dim`.
    ///
    /// # Panics
    /// If the `model` is another than that of the folder, and its vectors are of another size than a dense module expects.
    pub fn vector(&self, model: &TextEncoder, ids: &[u32], states: &[f32]) -> Vec<f32> {
        let own = model.vector_size().map(|size| {
            let vector = model.vector(ids, states);
            vector.unwrap_or_else(|| vec![0.0; size])
        });
        let mut vector = own.unwrap_or_else(|| {
            let last = (states.len() / model.size()).saturating_sub(1);
            let skipped = self.skipped.min(last);
            let ways = self.ways.iter();
            ways.flat_map(|way| way.pool(model.size(), states, skipped))
                .collect()
        });
        for step in &self.after {
            match step {
                Step::Normalize => normalize(&mut vector),
                Step::Dense(product, activation) => {
                    vector = expect_valid(product.forward(&vector, 1));
                    activation(&mut vector);
                }
            }
        }
        vector.truncate(self.kept.unwrap_or(usize::MAX));
        vector
    }
}

impl Way {
    /// The vector of `states [tokens, size]` without the first `skipped`; zeros if there are none.
    fn pool(self, size: usize, states: &[f32], skipped: usize) -> Vec<f32> {
        let rows: Vec<&[f32]> = states.chunks_exact(size).skip(skipped).collect();
        let used = match self {
            Self::First => &rows[..rows.len().min(1)],
            Self::Last => &rows[rows.len().saturating_sub(1)..],
            _ => &rows[..],
        };
        let mut vector = vec![0.0f32; size];
        if let (Self::Largest, [first, others @ ..]) = (self, used) {
            vector.copy_from_slice(first);
            for row in others {
                let both = vector.iter_mut().zip(*row);
                both.for_each(|(largest, x)| *largest = largest.max(*x));
            }
            return vector;
        }
        let mut weights = 0.0f32;
        for (place, row) in (skipped + 1..).zip(used) {
            let weight = if self == Self::Weighted {
                place as f32
            } else {
                1.0
            };
            weights += weight;
            let both = vector.iter_mut().zip(*row);
            both.for_each(|(sum, x)| *sum += weight * x);
        }
        if self == Self::Root {
            weights = weights.sqrt();
        }
        let factor = 1.0 / weights.max(1.0);
        vector.iter_mut().for_each(|x| *x *= factor);
        vector
    }
}

/// The ways of pooling of a configuration.
fn ways(config: &Config) -> Result<Vec<Way>, PretrainedError> {
    const KEY: &str = "pooling_mode";
    let names = match config.value(KEY) {
        Some(Value::Array(_)) => config.texts(KEY)?,
        Some(_) => vec![config.text(KEY)?.to_owned()],
        None => {
            let mut ways = vec![];
            for (_, flag, way) in WAYS {
                if config.flag_or(flag, false)? {
                    ways.push(way);
                }
            }
            // As sentence-transformers has it.
            if ways.is_empty() {
                ways.push(Way::Mean);
            }
            return Ok(ways);
        }
    };
    let known = |name: &String| WAYS.iter().find(|(known, ..)| known == name);
    let ways: Option<Vec<Way>> = names.iter().map(|name| Some(known(name)?.2)).collect();
    ways.filter(|ways| !ways.is_empty()).ok_or_else(|| {
        let known = WAYS.map(|(name, ..)| name).join(", ");
        config.refuse(KEY, format!("one of {known}, or a list of them"))
    })
}

/// The size of the vectors of a model's folder, of each of several `ways`; its weights are not read.
fn vector_size(folder: &Path, ways: usize) -> Result<usize, PretrainedError> {
    let folder = Folder::open(folder)?;
    match families::of(&folder)?.encoder {
        Some(source) => {
            let source = source(&folder)?;
            let own = source.vector.map(|vector| vector.projection.outputs());
            Ok(own.unwrap_or(ways * source.stack.sizes.model))
        }
        None => {
            let expected = "a family of encoders, such as bert";
            Err(folder.config().refuse("model_type", expected))
        }
    }
}

/// The dense module of a folder for vectors of `inputs` numbers, and the size of those that it makes.
fn dense(folder: &Path, inputs: usize) -> Result<(Step, usize), PretrainedError> {
    let folder = Folder::open(folder)?;
    let config = folder.config();
    expect_vectors(config)?;
    if config.size("in_features")? != inputs {
        let expected = format!("{inputs}, the size of the vectors before this module");
        return Err(config.refuse("in_features", expected));
    }
    if config.flag_or("use_residual", false)? {
        let expected = "false; a residual connection is not supported";
        return Err(config.refuse("use_residual", expected));
    }
    let name = config.text_or("activation_function", "torch.nn.Tanh")?;
    let class = name
        .strip_prefix("torch.nn.")
        .and_then(|name| name.rsplit('.').next());
    let found = ACTIVATIONS.iter().find(|(known, _)| class == Some(*known));
    let Some((_, activation)) = found else {
        let known = ACTIVATIONS.map(|(name, _)| name).join(", ");
        let expected = format!("one of {known} of torch.nn");
        return Err(config.refuse("activation_function", expected));
    };
    let outputs = config.size("out_features")?;
    let matrix = Matrix::linear("linear", [inputs, outputs], config.flag_or("bias", true)?);
    let expected = Expected::default().matrix(Some(&matrix));
    let weights = expected.weights(&folder, &Names::default())?;
    let product = matrix.read(&weights, None)?;
    Ok((Step::Dense(product, *activation), outputs))
}

/// Checks that a module is one of the vectors of texts, not of the states of tokens.
fn expect_vectors(config: &Config) -> Result<(), PretrainedError> {
    const USUAL: &str = "sentence_embedding";
    for key in ["module_input_name", "module_output_name"] {
        if config.text_or(key, USUAL)? != USUAL {
            let expected = format!("{USUAL:?}; others are not supported");
            return Err(config.refuse(key, expected));
        }
    }
    Ok(())
}

/// How sentence-transformers has the model read texts, where a folder states it.
fn reading(folder: &Path) -> Result<Option<Config>, PretrainedError> {
    // Older versions named the file by the family.
    const FAMILIES: [&str; 3] = ["bert", "roberta", "distilbert"];
    let files = FAMILIES.map(|name| folder.join(format!("sentence_{name}_config.json")));
    let file = files.iter().find(|file| file.exists());
    file.map(Config::read_file).transpose()
}

/// The most tokens of a text that a folder states. sentence-transformers has them in a file of its own, or from version 6 on in the
/// tokenizer's.
fn most_tokens(folder: &Path) -> Result<Option<usize>, PretrainedError> {
    const KEY: &str = "max_seq_length";
    if let Some(config) = reading(folder)?.filter(|config| config.has(KEY)) {
        return Ok(Some(config.size(KEY)?));
    }
    let file = folder.join("tokenizer_config.json");
    if !file.exists() {
        return Ok(None);
    }
    // Where there is no limit, 10^30 is written.
    let most = Config::read_file(file)?.positive_or("model_max_length", f64::INFINITY)?;
    Ok(Some(most.max(1.0) as usize))
}

/// Gives a vector the length 1; 0 stays as it is.
pub fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    let factor = 1.0 / length.max(1e-12);
    vector.iter_mut().for_each(|x| *x *= factor);
}

/// The cosine of the angle between two vectors of one length; 0 if one of them is 0, NaN if one of them holds a NaN.
///
/// ```
/// use regard_models::pretrained::cosine;
///
/// assert_eq!(cosine(&[3.0, 4.0], &[6.0, 8.0]), 1.0);
/// assert_eq!(cosine(&[1.0, 0.0], &[0.0, 2.0]), 0.0);
/// assert_eq!(cosine(&[1.0, 0.0], &[0.0, 0.0]), 0.0);
/// assert!(cosine(&[1.0, 0.0], &[f32::NAN, 2.0]).is_nan());
/// ```
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
        products.sum()
    };
    let lengths = (dot(a, a) * dot(b, b)).sqrt();
    match lengths == 0.0 {
        true => 0.0,
        false => (dot(a, b) / lengths).clamp(-1.0, 1.0),
    }
}
