//! Models of text by a path or a name: folders of Hugging Face, and language models that were trained here, with their tokenizers.

use std::path::{Path, PathBuf};

use burn::{module::Module, tensor::Device};
use regard_kernels::{
    matmul::Storage,
    stack::{Observer, Stack},
};
use regard_models::{
    AnyTextModel, ModelError,
    generate::SampleConfig,
    language::PlainTextModel,
    pretrained::{
        Encoding, Folder, Input, InputError, LanguageModel, Look, LookedAt, PackedText,
        PretrainedError, TextEncoder, Tokenizer, Trainable, family, sampling,
    },
    scoring::CausalModel,
};
use regard_trace::{AttentionMap, Kind, Token, Tokens, Trace, TraceError};

use crate::{
    Registry, TrainError, model_file::ModelFileError, recipe::Texts, tasks::LanguageModelling,
    translator::LineError,
};

/// The most weights that are kept of one text: 0.96 GB. A trace file of them, with a header of up to 100 MB, can be read again.
pub const MOST_WEIGHTS: usize = 240_000_000;

const _: () = assert!(4 * MOST_WEIGHTS as u64 + 100_000_000 < regard_trace::file::MAX_BYTES);

/// Why a model cannot do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum OpenedError {
    /// What is wrong with the files of a model that others have trained.
    #[error(transparent)]
    Pretrained(#[from] PretrainedError),
    /// What is wrong with the file of a model that was trained here.
    #[error(transparent)]
    File(#[from] ModelFileError),
    /// Weights that do not fit together.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A tokenizer that does not fit its model.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A text that the model cannot read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A line that cannot be translated.
    #[error(transparent)]
    Line(#[from] LineError),
    /// Weights that no map can have.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The model is of another kind.
    #[error("{}: expected {expected}", folder.display())]
    Other {
        /// The model's folder.
        folder: PathBuf,
        /// What is needed.
        expected: String,
    },
    /// More weights were asked for than fit in memory.
    #[error(
        "{numbers} weights were asked for, at most {most} are kept; give a shorter text; where attention has a kernel, `regard look` can also choose some of them by --layer, --head or --query"
    )]
    TooManyWeights {
        /// How many.
        numbers: usize,
        /// The most.
        most: usize,
    },
    /// A prompt is longer than the model reads.
    #[error(
        "a text of {tokens} tokens does not fit the model's context of {context} with room to go on; give a shorter one"
    )]
    LongPrompt {
        /// Its tokens.
        tokens: usize,
        /// The most that the model reads.
        context: usize,
    },
    /// Something was asked for that no model, or not this one, can do: a layer that is not there, a text without tokens.
    #[error("{0}")]
    Asked(String),
}

/// A model and its tokenizer.
pub struct Opened {
    /// Its folder or file.
    pub path: PathBuf,
    files: Files,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// What it was asked for as.
    pub name: String,
    /// Whether it was trained on lines, each a text of its own.
    pub reads_lines: bool,
    /// The tokens of a training text, of a model that was trained here.
    pub trained_on: Option<usize>,
}

/// What a model is opened from.
enum Files {
    /// A folder as Hugging Face models have it.
    Folder(Box<Folder>),
    /// A model that was trained here.
    Run(Box<AnyTextModel>),
}

/// A model of text.
pub enum TextModel {
    /// A causal one, with packed weights.
    Writes(Box<LanguageModel>),
    /// One that reads a text as a whole.
    Reads(Box<TextEncoder>),
    /// A causal one that no kernel serves, or on a card.
    Plain(Box<PlainTextModel>),
}

impl TextModel {
    /// The blocks, if the model has packed ones.
    pub fn stack(&self) -> Option<&Stack> {
        match self {
            Self::Writes(model) => Some(model.stack()),
            Self::Reads(model) => Some(model.stack()),
            Self::Plain(_) => None,
        }
    }

    /// The same, to change heads.
    pub fn stack_mut(&mut self) -> Option<&mut Stack> {
        match self {
            Self::Writes(model) => Some(model.stack_mut()),
            Self::Reads(model) => Some(model.stack_mut()),
            Self::Plain(_) => None,
        }
    }

    /// Whether there is attention to look at.
    pub fn attends(&self) -> bool {
        match self {
            Self::Plain(model) => model.attends(),
            _ => true,
        }
    }

    /// Refuses a look at more weights than fit in memory. Without packed blocks all are computed, whichever of them are wanted.
    ///
    /// # Errors
    /// [`OpenedError::TooManyWeights`].
    pub fn expect_room(&self, look: &Look) -> Result<(), OpenedError> {
        if let Some(stack) = self.stack() {
            return expect_room(look, stack.blocks().len(), stack.sizes().heads);
        }
        // Only a look says how many heads there are.
        let token = Encoding {
            ids: vec![0],
            ..Encoding::default()
        };
        let mut first = Look::new(1);
        self.look(&token, &mut first)?;
        let heads: usize = first.maps().map(|seen| seen.heads).sum();
        expect_room(&Look::new(look.length), 1, heads)
    }

    /// Reads a text and gives its weights to `look`.
    ///
    /// # Errors
    /// A text that is too long.
    pub fn look(&self, text: &Encoding, look: &mut Look) -> Result<(), InputError> {
        match self {
            Self::Plain(model) => model.look(&text.ids, look),
            _ => self.observe(text, look),
        }
    }

    /// Reads a text, of which `observer` sees every attention that it asks for; without packed blocks there is none to see.
    ///
    /// # Errors
    /// A text that is too long.
    pub fn observe(
        &self,
        text: &Encoding,
        observer: &mut (dyn Observer + Send),
    ) -> Result<(), InputError> {
        match self {
            Self::Writes(model) => model
                .begin(1, Default::default())
                .read(&[&text.ids], Some(observer)),
            Self::Reads(model) => {
                let states = model.states(&[input_of(text)], Some(observer));
                states.map(|_| ())
            }
            Self::Plain(_) => Ok(()),
        }
    }
}

impl Opened {
    /// Finds a model by a path or a name: a language model of `regard train`, or the folder of Hugging Face that `resolve` gives
    /// ([`regard_models::pretrained::resolve`], or a [`regard_models::pretrained::Hub`], which may download it).
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn find(
        name: &str,
        resolve: impl FnOnce(&str) -> Result<PathBuf, PretrainedError>,
    ) -> Result<Self, OpenedError> {
        let path = Path::new(name);
        let is_run = path.is_file() || path.join("recipe.toml").exists();
        if is_run || (path.exists() && Registry::default().holds_any(path)) {
            return Self::trained(path, name);
        }
        let path = resolve(name)?;
        Ok(Self {
            files: Files::Folder(Box::new(Folder::open(&path)?)),
            tokenizer: Tokenizer::open(&path)?,
            name: name.to_owned(),
            path,
            reads_lines: false,
            trained_on: None,
        })
    }

    fn trained(path: &Path, name: &str) -> Result<Self, OpenedError> {
        let device = Device::flex();
        let (model, described) = Registry::default().open::<LanguageModelling>(path, &device)?;
        let tokenizer = described.tokenizer(name)?;
        Ok(Self {
            path: path.to_owned(),
            files: Files::Run(Box::new(model)),
            tokenizer,
            name: name.to_owned(),
            reads_lines: described.texts.texts == Texts::Lines,
            trained_on: Some(described.texts.context),
        })
    }

    /// The folder of a model that others have trained.
    ///
    /// # Errors
    /// A model that was trained here.
    pub fn folder(&self) -> Result<&Folder, OpenedError> {
        match &self.files {
            Files::Folder(folder) => Ok(folder),
            Files::Run(_) => Err(self.other(
                "the folder of a pretrained model; this is a language model of `regard train`",
            )),
        }
    }

    /// How the model writes on where a person says nothing else: as its folder says ([`sampling`]), or else with a temperature of 0.8, of
    /// the 40 likeliest tokens the fewest whose probabilities sum to 0.95. Beside it the settings of the folder that are not obeyed.
    ///
    /// # Errors
    /// Those of [`sampling`].
    pub fn sampling(&self) -> Result<(SampleConfig, Vec<&'static str>), OpenedError> {
        let usual = SampleConfig {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            ..SampleConfig::default()
        };
        match &self.files {
            Files::Folder(folder) => Ok(sampling(folder.path(), usual)?),
            Files::Run(_) => Ok((usual, vec![])),
        }
    }

    /// Whether the model reads a text and writes another.
    ///
    /// # Errors
    /// A family that is not known.
    pub fn is_seq2seq(&self) -> Result<bool, OpenedError> {
        match &self.files {
            Files::Folder(folder) => Ok(family(folder)?.seq2seq.is_some()),
            Files::Run(_) => Ok(false),
        }
    }

    /// The model, with its weights kept as `storage` says. [`Tokenizer::without_rows`] then says what to warn of.
    ///
    /// # Errors
    /// What is wrong with its files, or with `storage`.
    pub fn model(&self, storage: Option<Storage>) -> Result<TextModel, OpenedError> {
        let (model, rows) = match &self.files {
            Files::Folder(folder) => match family(folder)?.encoder {
                Some(_) => {
                    let model = TextEncoder::open(folder, storage)?;
                    let rows = model.vocabulary();
                    (TextModel::Reads(Box::new(model)), rows)
                }
                None => {
                    let model = LanguageModel::open(folder, storage)?;
                    let rows = model.vocabulary();
                    (TextModel::Writes(Box::new(model)), rows)
                }
            },
            Files::Run(model) => {
                if storage.is_some_and(|storage| storage != Storage::F32) {
                    let message = "--weights is for folders of pretrained models; a trained model has 32 bits";
                    return Err(OpenedError::Asked(message.to_owned()));
                }
                let rows = model.vocabulary().size;
                let device = Device::flex();
                let packed = match model.pack() {
                    Some(PackedText::Writes(packed)) => TextModel::Writes(packed),
                    Some(PackedText::Reads(packed)) => TextModel::Reads(packed),
                    None => {
                        let plain = PlainTextModel::new((**model).clone(), &device);
                        let expected = "a model whose attention has a kernel (scaled dot products, softmax, no mask of its own)";
                        TextModel::Plain(Box::new(plain.ok_or_else(|| self.other(expected))?))
                    }
                };
                (packed, rows)
            }
        };
        self.tokenizer.expect_most_rows(rows)?;
        Ok(model)
    }

    /// Whether it reads a text as a whole, as encoders do, and not from left to right.
    ///
    /// # Errors
    /// A family that is not known.
    pub fn reads_whole(&self) -> Result<bool, OpenedError> {
        Ok(match &self.files {
            Files::Folder(folder) => family(folder)?.encoder.is_some(),
            Files::Run(model) => model.begin(0, &Device::flex()).is_none(),
        })
    }

    /// The model on `device`, a card, with weights of 32 bits: one that goes from left to right by plain operations, one that reads a text
    /// as a whole as [`TextEncoder::compute_on`] does.
    ///
    /// # Errors
    /// A model with a part that no model has that is trained here; what is wrong with its files.
    pub fn on_card(&self, device: &Device) -> Result<TextModel, OpenedError> {
        if self.reads_whole()? {
            let mut model = self.model(Some(Storage::F32))?;
            if let TextModel::Reads(encoder) = &mut model {
                encoder.compute_on(device)?;
            }
            return Ok(model);
        }
        let (model, context) = match &self.files {
            Files::Folder(folder) => {
                let found = Trainable::open(folder)?;
                let context = found.context;
                (found.language_model(device)?.into(), context)
            }
            Files::Run(model) => ((**model).clone().to_device(device), usize::MAX),
        };
        self.tokenizer.expect_most_rows(model.vocabulary().size)?;
        let expected = "one of the models that write text from left to right, such as GPT-2";
        let plain = PlainTextModel::new(model, device).ok_or_else(|| self.other(expected))?;
        Ok(TextModel::Plain(Box::new(plain.with_context(context))))
    }

    /// `model` as one that goes from left to right.
    ///
    /// # Errors
    /// A model that reads a text as a whole.
    pub fn causal<'m>(&self, model: &'m TextModel) -> Result<&'m dyn CausalModel, OpenedError> {
        match model {
            TextModel::Writes(model) => Ok(&**model),
            TextModel::Plain(model) => Ok(&**model),
            TextModel::Reads(_) => {
                Err(self
                    .other("one of the models that write text from left to right, such as GPT-2"))
            }
        }
    }

    /// A text that the model is to go on with, as tokens: without the mark that the tokenizer puts behind it, and with the one that
    /// starts a text if there is nothing else.
    ///
    /// # Errors
    /// A tokenizer that fails, an empty text for a model without such marks, a token without an embedding.
    pub fn prompt(&self, text: &str) -> Result<Vec<u32>, OpenedError> {
        let Encoding { mut ids, texts, .. } = self.tokenizer.encode(text, true)?;
        let marks = self.tokenizer.special();
        // An encoder's tokenizer ends a text; here it goes on. An end that the text itself spells stays.
        let added = texts.last() == Some(&None);
        if added && ids.last().is_some_and(|id| marks.eos.contains(id)) && ids.len() > 1 {
            ids.pop();
        }
        self.started(ids)
    }

    /// `ids`, or the mark that starts a text if there are none.
    ///
    /// # Errors
    /// No tokens for a model without such a mark, a token without an embedding.
    pub fn started(&self, mut ids: Vec<u32>) -> Result<Vec<u32>, OpenedError> {
        if ids.is_empty() {
            let marks = self.tokenizer.special();
            let start = marks.bos.or(marks.eos.first().copied());
            ids.push(start.ok_or_else(|| {
                OpenedError::Asked(
                    "an empty prompt, and the model has no token that starts a text; give some text"
                        .to_owned(),
                )
            })?);
        }
        self.tokenizer.expect_embedded(&ids)?;
        Ok(ids)
    }

    /// The error for a model of another kind.
    pub fn other(&self, expected: &str) -> OpenedError {
        let folder = self.path.clone();
        let expected = expected.to_owned();
        OpenedError::Other { folder, expected }
    }

    /// What a model looks at while it reads a text, in all layers and heads.
    ///
    /// # Errors
    /// A text that is too long, more weights than are kept.
    pub fn look(
        &self,
        model: &TextModel,
        text: &str,
        encoded: &Encoding,
    ) -> Result<Trace, OpenedError> {
        let mut look = Look::new(encoded.ids.len());
        model.expect_room(&look)?;
        model.look(encoded, &mut look)?;
        self.trace(text, &encoded.ids, look)
    }

    /// The trace of a text from what was seen of it.
    ///
    /// # Errors
    /// Weights that no map can have.
    pub fn trace(&self, text: &str, ids: &[u32], look: Look) -> Result<Trace, OpenedError> {
        let tokens = axis(&self.tokenizer, ids)?;
        let mut trace = Trace::new(&self.name, text, "");
        let (query, head) = (look.query, look.head);
        for seen in look.maps() {
            let map = map_of(Kind::SelfAttention, &tokens, &tokens, query, head, seen)?;
            trace = trace.with_map(map);
        }
        Ok(trace)
    }
}

/// A text as an encoder reads it.
pub fn input_of(encoded: &Encoding) -> Input<'_> {
    Input {
        ids: &encoded.ids,
        types: &encoded.types,
        ..Default::default()
    }
}

/// `ids` as the tokens of a picture's axis.
///
/// # Errors
/// A tokenizer that cannot decode them.
pub fn axis(tokenizer: &Tokenizer, ids: &[u32]) -> Result<Tokens, PretrainedError> {
    let pieces = tokenizer.pieces(ids)?.into_iter();
    let tokens = pieces.zip(ids).map(|(piece, &id)| {
        let token = match tokenizer.is_special(id) {
            true => Token::special(piece.text),
            false => Token::new(piece.text),
        };
        token.in_word(piece.word)
    });
    Ok(tokens.collect())
}

/// The map of what was seen: all queries, or the only one; all heads, or the only one.
///
/// # Errors
/// Weights that no map can have.
pub fn map_of(
    kind: Kind,
    queries: &Tokens,
    keys: &Tokens,
    query: Option<usize>,
    head: Option<usize>,
    seen: LookedAt,
) -> Result<AttentionMap, TraceError> {
    let queries = match query {
        None => queries.clone(),
        Some(query) => queries.iter().skip(query).take(1).cloned().collect(),
    };
    let (heads, weights) = (seen.heads, seen.weights);
    let map = match seen.normalized {
        true => AttentionMap::new(kind, queries, keys.clone(), heads, weights),
        false => AttentionMap::unnormalized(kind, queries, keys.clone(), heads, weights),
    }?;
    let map = map.at_layer(seen.layer);
    Ok(match head {
        Some(head) => {
            let name = format!("{}, head {}", map.name(), head + 1);
            map.named(name)
        }
        None => map,
    })
}

/// Refuses a look at more weights than fit in memory.
///
/// # Errors
/// How many they are, and what to choose.
pub fn expect_room(look: &Look, layers: usize, heads: usize) -> Result<(), OpenedError> {
    let numbers = look.numbers(layers, heads);
    match numbers <= MOST_WEIGHTS {
        true => Ok(()),
        false => Err(OpenedError::TooManyWeights {
            numbers,
            most: MOST_WEIGHTS,
        }),
    }
}
