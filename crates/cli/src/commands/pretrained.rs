//! What the commands for pretrained models share.

use std::path::PathBuf;

use regard_kernels::matmul::Storage;
use regard_models::pretrained::{
    Encoding, Folder, Heads, Input, Look, LookedAt, PretrainedError, TextEncoder, Tokenizer,
    resolve,
};
use regard_trace::{AttentionMap, Kind, Token, Tokens, Trace, TraceError};

use crate::{
    failure::{CommandError, Failure},
    input,
};

/// The most weights that are kept of one text: 1 GB.
pub const MOST_WEIGHTS: usize = 1 << 28;

/// A model's folder and tokenizer.
pub struct Opened {
    /// Its folder.
    pub folder: Folder,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// What it was asked for as.
    pub name: String,
}

impl Opened {
    /// Finds a model by a path or a name.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn find(name: &str) -> Result<Self, Failure> {
        let path = resolve(name)?;
        Ok(Self {
            folder: Folder::open(&path)?,
            tokenizer: Tokenizer::open(&path)?,
            name: name.to_owned(),
        })
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

/// An encoder of texts with its tokenizer.
pub struct Encoder {
    /// Its folder and tokenizer.
    pub opened: Opened,
    /// The model.
    pub model: TextEncoder,
}

impl Encoder {
    /// Finds and opens a model.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn open(name: &str, storage: Option<Storage>) -> Result<Self, Failure> {
        let opened = Opened::find(name)?;
        let model = TextEncoder::open(&opened.folder, storage)?;
        opened.tokenizer.expect_rows(model.vocabulary())?;
        Ok(Self { opened, model })
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
        let folder = self.opened.folder.path().to_owned();
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
    ) -> Result<(Vec<f32>, Option<Trace>), Failure> {
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
    let map = AttentionMap::new(kind, queries, keys.clone(), seen.heads, seen.weights)?;
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
    let mut lines = input::segments(&PathBuf::from("-"))?;
    lines.retain(|line| !line.trim().is_empty());
    match lines.is_empty() {
        true => Err(Failure::Usage("standard input has no text".to_owned())),
        false => Ok(lines),
    }
}
