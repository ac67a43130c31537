//! What the commands for pretrained models share.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use regard_kernels::{
    matmul::Storage,
    stack::{Observer, Stack},
};
use regard_models::{
    AnyTextModel,
    language::PlainTextModel,
    pretrained::{
        Encoding, Folder, Heads, Input, InputError, LanguageModel, Look, LookedAt, PackedText,
        PretrainedError, TextEncoder, Tokenizer, family,
    },
    scoring::CausalModel,
};
use regard_trace::{AttentionMap, Kind, Token, Tokens, Trace, TraceError};
use regard_train::{Registry, recipe::Texts, tasks::LanguageModelling};

use crate::{
    failure::{CommandError, Failure},
    input, models,
};

/// The most weights that are kept of one text: 1 GB.
pub const MOST_WEIGHTS: usize = 1 << 28;

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
    /// A causal one that no kernel serves.
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
    /// Finds a model by a path or a name: a folder of Hugging Face, or a language model of `regard train`. The progress of a download
    /// is shown unless `quiet`.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn find(name: &str, quiet: bool) -> Result<Self, Failure> {
        let path = Path::new(name);
        let is_run = path.is_file() || path.join("recipe.toml").exists();
        if is_run || (path.exists() && Registry::default().holds_any(path)) {
            return Self::trained(path, name);
        }
        let path = models::folder(name, quiet)?;
        Ok(Self {
            files: Files::Folder(Box::new(Folder::open(&path)?)),
            tokenizer: Tokenizer::open(&path)?,
            name: name.to_owned(),
            path,
            reads_lines: false,
            trained_on: None,
        })
    }

    fn trained(path: &Path, name: &str) -> Result<Self, Failure> {
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
    pub fn folder(&self) -> Result<&Folder, Failure> {
        match &self.files {
            Files::Folder(folder) => Ok(folder),
            Files::Run(_) => Err(self.other(
                "the folder of a pretrained model; this is a language model of `regard train`",
            )),
        }
    }

    /// Whether the model reads a text and writes another.
    ///
    /// # Errors
    /// A family that is not known.
    pub fn is_seq2seq(&self) -> Result<bool, Failure> {
        match &self.files {
            Files::Folder(folder) => Ok(family(folder)?.seq2seq.is_some()),
            Files::Run(_) => Ok(false),
        }
    }

    /// The model, with its weights kept as `storage` says.
    ///
    /// # Errors
    /// What is wrong with its files, or with `storage`.
    pub fn model(&self, storage: Option<Storage>) -> Result<TextModel, Failure> {
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
                    return Err(Failure::Usage(message.to_owned()));
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
        self.tokenizer.expect_rows(rows)?;
        Ok(model)
    }

    /// `model` as one that goes from left to right.
    ///
    /// # Errors
    /// A model that reads a text as a whole.
    pub fn causal<'m>(&self, model: &'m TextModel) -> Result<&'m dyn CausalModel, Failure> {
        match model {
            TextModel::Writes(model) => Ok(&**model),
            TextModel::Plain(model) => Ok(&**model),
            TextModel::Reads(_) => {
                Err(self
                    .other("one of the models that write text from left to right, such as GPT-2"))
            }
        }
    }

    /// The error for a model of another kind.
    pub fn other(&self, expected: &str) -> Failure {
        let folder = self.path.clone();
        let expected = expected.to_owned();
        CommandError::OtherModel { folder, expected }.into()
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
    ) -> Result<Trace, Failure> {
        let mut look = Look::new(encoded.ids.len());
        if let Some(stack) = model.stack() {
            expect_room(&look, stack.blocks().len(), stack.sizes().heads)?;
        }
        model.look(encoded, &mut look)?;
        self.trace(text, &encoded.ids, look)
    }

    /// The trace of a text from what was seen of it.
    ///
    /// # Errors
    /// Weights that no map can have.
    pub fn trace(&self, text: &str, ids: &[u32], look: Look) -> Result<Trace, Failure> {
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

/// The states of a text, `[tokens, model]`, and what the model looked at.
type ReadText = (Vec<f32>, Option<Trace>);

/// An encoder of texts with its tokenizer.
pub struct Encoder {
    /// Its folder and tokenizer.
    pub opened: Opened,
    /// The model.
    pub model: TextEncoder,
}

impl Encoder {
    /// Finds and opens a model, as [`Opened::find`] does.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn open(name: &str, storage: Option<Storage>, quiet: bool) -> Result<Self, Failure> {
        let opened = Opened::find(name, quiet)?;
        match opened.model(storage)? {
            TextModel::Reads(model) => Ok(Self {
                model: *model,
                opened,
            }),
            _ => {
                Err(opened.other("one of the encoders, which read a text as a whole, such as BERT"))
            }
        }
    }

    /// The error for a head of another kind.
    pub fn other_head(&self, expected: &'static str) -> Failure {
        let (found, command) = match self.model.purpose() {
            None => ("no head", "embed"),
            Some(Heads::MaskedTokens) => ("a head for masked words", "fill"),
            Some(Heads::Classes(_)) => ("a head for classes of texts", "classify"),
            Some(Heads::TokenClasses(_)) => ("a head for classes of tokens", "classify"),
            Some(Heads::Span) => ("a head for spans of answers", "answer"),
        };
        let folder = self.opened.path.clone();
        CommandError::OtherHead {
            folder,
            found,
            expected,
            command,
        }
        .into()
    }

    /// Texts as tokens, with the model's special tokens around each.
    ///
    /// # Errors
    /// A tokenizer that fails.
    pub fn encode(&self, texts: &[String]) -> Result<Vec<Encoding>, Failure> {
        let tokenizer = &self.opened.tokenizer;
        let each = texts.iter().map(|text| Ok(tokenizer.encode(text, true)?));
        each.collect()
    }

    /// The states of texts, `[tokens, model]` of each, and what the model looked at if `looking`: it reads them together, or one by
    /// one if it is looked at.
    ///
    /// # Errors
    /// As [`Encoder::batch`] and [`Encoder::states`].
    pub fn read(
        &self,
        texts: &[String],
        encoded: &[Encoding],
        looking: bool,
    ) -> Result<Vec<ReadText>, Failure> {
        if looking {
            let each = texts.iter().zip(encoded);
            return each
                .map(|(text, encoded)| self.states(text, encoded, true))
                .collect();
        }
        let states = self.batch(encoded)?.into_iter();
        Ok(states.map(|states| (states, None)).collect())
    }

    /// The states of texts, `[tokens, model]` of each.
    ///
    /// # Errors
    /// A text that is too long.
    pub fn batch(&self, encoded: &[Encoding]) -> Result<Vec<Vec<f32>>, Failure> {
        let inputs: Vec<Input> = encoded.iter().map(input_of).collect();
        Ok(self.model.states(&inputs, None)?)
    }

    /// The states of a text, and what the model looked at if `looking`.
    ///
    /// # Errors
    /// A text that is too long, or without tokens; more weights than are kept.
    pub fn states(
        &self,
        text: &str,
        encoded: &Encoding,
        looking: bool,
    ) -> Result<ReadText, Failure> {
        if encoded.ids.is_empty() {
            return Err(no_tokens(text));
        }
        let mut look = looking.then(|| Look::new(encoded.ids.len()));
        if let Some(look) = &look {
            let stack = self.model.stack();
            expect_room(look, stack.blocks().len(), stack.sizes().heads)?;
        }
        let observer = look.as_mut().map(|look| look as _);
        let states = self.model.states(&[input_of(encoded)], observer)?;
        let trace = look.map(|look| self.opened.trace(text, &encoded.ids, look));
        Ok((states.into_iter().flatten().collect(), trace.transpose()?))
    }
}

/// The error for a text without tokens.
pub fn no_tokens(text: &str) -> Failure {
    Failure::Usage(format!("{text:?} has no tokens; give some text"))
}

/// A text as an encoder reads it.
pub fn input_of(encoded: &Encoding) -> Input<'_> {
    Input {
        ids: &encoded.ids,
        types: &encoded.types,
        ..Default::default()
    }
}

/// How many characters stand before a byte of a text.
pub fn characters(text: &str, byte: usize) -> usize {
    text[..byte].chars().count()
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
pub fn expect_room(look: &Look, layers: usize, heads: usize) -> Result<(), Failure> {
    let numbers = look.numbers(layers, heads);
    match numbers <= MOST_WEIGHTS {
        true => Ok(()),
        false => Err(CommandError::TooManyWeights {
            numbers,
            most: MOST_WEIGHTS,
        }
        .into()),
    }
}

/// The texts of the command line, or else the lines of standard input, without empty ones.
///
/// # Errors
/// Standard input that cannot be read, or has no text.
pub fn texts(given: &[String]) -> Result<Vec<String>, Failure> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let input = Path::new("-");
    let text = input::text(input)?;
    let lines = text.lines().map(str::trim_end);
    let lines: Vec<String> = lines
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    match lines.is_empty() {
        true => Err(input::no_text(input)),
        false => Ok(lines),
    }
}
