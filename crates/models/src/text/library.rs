//! A tokenizer of the Hugging Face library `tokenizers`, whose damaged files and panics are errors.

use serde_json::Value;
use tokenizers::{EncodeInput, Encoding, Tokenizer};

use crate::guard::guarded;

/// The most ids of a vocabulary.
pub const MAXIMUM_VOCABULARY_SIZE: usize = 1 << 20;

/// The steps of a tokenizer may make a text this many times longer. Those of published ones stay below 100.
const LARGEST_GROWTH: f64 = 65_536.0;

/// Why a tokenizer cannot be made or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The document is not a tokenizer, or one that cannot be used: what was found and what was expected.
    #[error("not a usable tokenizer: {0}")]
    Malformed(String),
    /// A text could not be encoded or tokens not decoded, which happens only if the document is damaged.
    #[error("the tokenizer fails: {0}; its file may be damaged")]
    Failed(String),
}

/// A tokenizer of the library `tokenizers`.
#[derive(Debug, Clone)]
pub struct Library {
    tokenizer: Tokenizer,
    size: usize,
    /// Whether decoded text loses the spaces in front of punctuation.
    cleans: bool,
}

impl Library {
    /// The tokenizer of a `tokenizer.json`. Padding, truncation and dropout, which are settings of a training, are removed from
    /// `document`.
    ///
    /// # Errors
    /// [`LibraryError::Malformed`] for a document that the library refuses, a vocabulary beyond [`MAXIMUM_VOCABULARY_SIZE`], or
    /// steps that could take any amount of memory for a short text.
    pub fn new(document: &mut Value) -> Result<Self, LibraryError> {
        check_steps(document)?;
        let Some(fields) = document.as_object_mut() else {
            return Err(malformed("expected a JSON object"));
        };
        fields.remove("padding");
        fields.remove("truncation");
        if let Some(model) = document["model"].as_object_mut() {
            model.remove("dropout");
        }
        let text = document.to_string();
        let tokenizer: Tokenizer = called(|| text.parse()).map_err(malformed)?;
        let largest = tokenizer.get_vocab(true).into_values().max();
        let size = largest.map_or(0, |id| id as usize + 1);
        if size > MAXIMUM_VOCABULARY_SIZE {
            return Err(malformed(format!(
                "a token has the id {}; at most {MAXIMUM_VOCABULARY_SIZE} tokens are supported",
                size - 1
            )));
        }
        Ok(Self {
            tokenizer,
            size,
            cleans: false,
        })
    }

    /// The same, of which decoded text loses the spaces in front of punctuation and English endings, or keeps them:
    /// `clean_up_tokenization_spaces` of transformers.
    #[must_use]
    pub fn cleaning(self, cleans: bool) -> Self {
        Self { cleans, ..self }
    }

    /// Whether it does so.
    pub fn cleans(&self) -> bool {
        self.cleans
    }

    /// The tokenizer as a `tokenizer.json`.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub fn document(&self) -> Result<String, LibraryError> {
        called(|| self.tokenizer.to_string(false)).map_err(LibraryError::Failed)
    }

    /// The number of ids: all are below it.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The tokens by id; an id that no token has is empty.
    pub fn tokens(&self) -> Vec<String> {
        let mut tokens = vec![String::new(); self.size];
        for (token, id) in self.tokenizer.get_vocab(true) {
            tokens[id as usize] = token;
        }
        tokens
    }

    /// The id of a token, written as in the vocabulary.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.tokenizer.token_to_id(token)
    }

    /// The token of an id, as the vocabulary writes it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// Whether a token stands for no text.
    pub fn is_special(&self, token: &str) -> bool {
        self.tokenizer
            .get_added_vocabulary()
            .is_special_token(token)
    }

    /// The special tokens in the order of their ids.
    pub fn special_tokens(&self) -> Vec<String> {
        let added = self.tokenizer.get_added_tokens_decoder().into_iter();
        let special = added.filter(|(_, token)| token.special);
        let mut special: Vec<_> = special.map(|(id, token)| (id, token.content)).collect();
        special.sort_unstable();
        special.into_iter().map(|(_, token)| token).collect()
    }

    /// The tokens of a text, or of a pair of texts, with offsets in bytes. `special` says whether the tokens that the document's
    /// post-processor puts around a text are added.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub fn encode<'s>(
        &self,
        text: impl Into<EncodeInput<'s>>,
        special: bool,
    ) -> Result<Encoding, LibraryError> {
        let encoding = called(|| self.tokenizer.encode(text, special));
        let encoding = encoding.map_err(LibraryError::Failed)?;
        match encoding
            .get_ids()
            .iter()
            .find(|&&id| id as usize >= self.size)
        {
            None => Ok(encoding),
            Some(id) => Err(LibraryError::Failed(format!(
                "it makes the id {id}; expected one below {}, the size of its vocabulary",
                self.size
            ))),
        }
    }

    /// The text of `ids`; ids outside the vocabulary have none. `skip_special` leaves special tokens out.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, LibraryError> {
        self.decode_as(ids, skip_special, self.cleans)
    }

    fn decode_as(
        &self,
        ids: &[u32],
        skip_special: bool,
        cleans: bool,
    ) -> Result<String, LibraryError> {
        let text = called(|| self.tokenizer.decode(ids, skip_special));
        let text = text.map_err(LibraryError::Failed)?;
        Ok(match cleans {
            true => cleaned(text),
            false => text,
        })
    }

    /// Decodes token by token.
    pub fn stream(&self, skip_special: bool) -> Stream<'_> {
        Stream {
            library: self,
            skip_special,
            cleans: self.cleans,
            window: vec![],
            boundary: 0,
            given: String::new(),
            waits: false,
        }
    }

    /// The same of what follows `context`, whose text is not given again.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub fn stream_after(
        &self,
        context: &[u32],
        skip_special: bool,
    ) -> Result<Stream<'_>, LibraryError> {
        // Enough for the text of the next token to be that of the whole.
        const LONGEST: usize = 32;
        let mut stream = self.stream(skip_special);
        for &id in &context[context.len().saturating_sub(LONGEST)..] {
            stream.push(id)?;
        }
        Ok(stream)
    }

    /// The text that each of `tokens` adds if it follows `context`: alone, many a decoder would take its space away. One that adds no
    /// text, such as a part of a character, is called by its name.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub fn following(&self, context: &[u32], tokens: &[u32]) -> Result<Vec<String>, LibraryError> {
        let stream = self.stream_after(context, false)?;
        let texts = tokens.iter().map(|&id| {
            let text = stream.clone().push(id)?;
            Ok(match text.is_empty() {
                true => self.token(id).unwrap_or_default(),
                false => text,
            })
        });
        texts.collect()
    }

    /// The text that each of `ids` adds to the text of those before it, special tokens left out and spaces as they are. A character
    /// whose bytes are spread over several tokens belongs to the first of them.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub fn parts(&self, ids: &[u32]) -> Result<Vec<String>, LibraryError> {
        let mut parts = vec![String::new(); ids.len()];
        let mut stream = Stream {
            cleans: false,
            ..self.stream(true)
        };
        let mut begun = None;
        for (place, &id) in ids.iter().enumerate() {
            let added = stream.push(id)?;
            if let Some(first) = added.chars().next() {
                let (first, rest) = added.split_at(first.len_utf8());
                parts[begun.take().unwrap_or(place)].push_str(first);
                parts[place].push_str(rest);
            }
            if stream.waits {
                begun.get_or_insert(place);
            }
        }
        if let Some(begun) = begun {
            parts[begun].push_str(&stream.finish()?);
        }
        Ok(parts)
    }
}

/// Decodes token by token: [`push`](Self::push) gives the text that a token adds, never half a character.
///
/// What a token adds may depend on the tokens before it, so a window of the last tokens is decoded again with each one. Joined,
/// the texts are the text of all tokens. (A decoder that changes the text of earlier tokens is the exception: bytes that are not
/// UTF-8 in some byte-fallback decoders. What was given stays.)
#[derive(Debug, Clone)]
pub struct Stream<'a> {
    library: &'a Library,
    skip_special: bool,
    cleans: bool,
    /// The last tokens.
    window: Vec<u32>,
    /// The place in the window up to which the text was complete before the last token.
    boundary: usize,
    /// The text of the window that was given.
    given: String,
    /// Whether the window ends in the middle of a character, or of what cleaning may change.
    waits: bool,
}

impl Stream<'_> {
    /// The window is cut when it is longer than this.
    const LONG: usize = 12;
    /// No character waits for so many tokens: the window is cut wherever it ends.
    const TOO_LONG: usize = 64;

    /// The text that token `id` adds; empty while the bytes of a character are incomplete.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub fn push(&mut self, id: u32) -> Result<String, LibraryError> {
        self.window.push(id);
        let mut text = self.decoded(0)?;
        if !text.starts_with(&self.given) {
            // The token changed the text before it: only its own text can be given.
            self.keep_from(self.window.len() - 1, String::new());
            text = self.decoded(0)?;
        }
        let too_long = self.window.len() > Self::TOO_LONG;
        let end = if too_long {
            text.len()
        } else if self.cleans {
            let end = unchanging(complete(&text)).len();
            match self.may_get_back_its_space(&text)? {
                true => end.min(text.len() - 1),
                false => end,
            }
        } else {
            complete(&text).len()
        };
        self.waits = end < text.len();
        let added = text
            .get(self.given.len()..end)
            .unwrap_or_default()
            .to_owned();
        if !added.is_empty() {
            text.truncate(end);
            self.given = text;
        }
        if self.waits {
            return Ok(added);
        }
        if added.is_empty() && !self.given.is_empty() {
            // A token without text changes none after it.
            self.window.pop();
        }
        if self.window.len() > Self::LONG {
            let from = match too_long {
                true => self.window.len() - 1,
                false => self.boundary,
            };
            let context = self.decoded(from)?;
            // A context without text would leave the next token at the start of a text.
            if too_long || !context.is_empty() {
                self.keep_from(from, context);
            }
        }
        self.boundary = self.window.len();
        Ok(added)
    }

    /// Whether `text`, that of the window, ends with an apostrophe that has lost the spaces around it, of which the second one may be
    /// that of a punctuation mark: then the first one stays.
    fn may_get_back_its_space(&self, text: &str) -> Result<bool, LibraryError> {
        if !text.ends_with('\'') {
            return Ok(false);
        }
        let ids = &self.window[..];
        let plain = self.library.decode_as(ids, self.skip_special, false)?;
        Ok(plain.ends_with(" ' "))
    }

    /// Cuts the window to its tokens from place `from`, whose text was `given`.
    fn keep_from(&mut self, from: usize, given: String) {
        self.window.drain(..from);
        self.given = given;
        self.boundary = 0;
    }

    /// The text that is left: bytes that no token has completed, as U+FFFD.
    ///
    /// # Errors
    /// [`LibraryError::Failed`].
    pub fn finish(self) -> Result<String, LibraryError> {
        let text = self.decoded(0)?;
        Ok(text.get(self.given.len()..).unwrap_or_default().to_owned())
    }

    fn decoded(&self, from: usize) -> Result<String, LibraryError> {
        let ids = &self.window[from..];
        self.library.decode_as(ids, self.skip_special, self.cleans)
    }
}

/// `text` without the replacement characters at its end, which may stand for the first bytes of a character: decoders write one for
/// each of these bytes, for all of them, or for all bytes of a run that is not complete.
fn complete(text: &str) -> &str {
    text.trim_end_matches(char::REPLACEMENT_CHARACTER)
}

/// What cleaning replaces, in this order, and by what: transformers' `clean_up_tokenization`.
const CLEANED: [(&str, &str); 10] = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
];

fn cleaned(text: String) -> String {
    let replaced = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
    CLEANED.iter().fold(text, replaced)
}

/// `text` without what may be the beginning of something that cleaning replaces.
fn unchanging(text: &str) -> &str {
    let begins = |start: &usize| {
        let rest = &text[*start..];
        CLEANED.iter().any(|(from, _)| from.starts_with(rest))
    };
    let start = text.rfind(' ').filter(begins);
    &text[..start.unwrap_or(text.len())]
}

fn malformed(problem: impl Into<String>) -> LibraryError {
    LibraryError::Malformed(problem.into())
}

/// The result of a call of the library, with its panics as errors: it panics on some damaged files, and on regular expressions
/// that run without end.
fn called<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match guarded(call) {
        Some(result) => result.map_err(|error| error.to_string()),
        None => Err("the library `tokenizers` panicked".to_owned()),
    }
}

/// Refuses steps that could take any amount of memory for a short text: replacements that replace each other's results, templates
/// that repeat the text, and a table of characters whose stated length exceeds its bytes.
fn check_steps(document: &Value) -> Result<(), LibraryError> {
    for key in ["normalizer", "pre_tokenizer", "post_processor", "decoder"] {
        let growth = growth(&document[key])?;
        if growth > LARGEST_GROWTH {
            return Err(malformed(format!(
                "its {key} can make a text {growth:.0} times longer; expected at most {LARGEST_GROWTH}"
            )));
        }
    }
    Ok(())
}

/// How many times longer a step can make a text.
fn growth(step: &Value) -> Result<f64, LibraryError> {
    let (own, parts): (f64, Vec<&Value>) = match step {
        Value::Array(parts) => (1.0, parts.iter().collect()),
        Value::Object(fields) => {
            if let Some(table) = fields.get("precompiled_charsmap").and_then(Value::as_str)
                && stated_bytes(table).is_some_and(|stated| stated as usize > table.len())
            {
                return Err(malformed(
                    "the table of its precompiled normalizer is longer than its bytes",
                ));
            }
            let content = fields.get("content").and_then(Value::as_str);
            let own = match (fields.get("type").and_then(Value::as_str), content) {
                // A byte is a character of up to two bytes.
                (Some("ByteLevel"), _) => 2.0,
                (Some("TemplateProcessing"), _) => {
                    let length = |key| step[key].as_array().map_or(1, Vec::len);
                    length("single").max(length("pair")) as f64
                }
                (_, Some(content)) if fields.contains_key("pattern") => content.len().max(1) as f64,
                _ => 1.0,
            };
            (own, fields.values().collect())
        }
        _ => (1.0, vec![]),
    };
    parts
        .into_iter()
        .try_fold(own, |product, part| Ok(product * growth(part)?))
}

/// The first four bytes of base64 text, a little-endian number.
fn stated_bytes(base64: &str) -> Option<u32> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = base64.as_bytes().get(..6)?;
    let bits = digits.iter().try_fold(0u64, |bits, digit| {
        let value = DIGITS.iter().position(|known| known == digit)?;
        Some(bits << 6 | value as u64)
    })?;
    // 36 bits, of which 32 are the number's, first byte first.
    Some(((bits >> 4) as u32).swap_bytes())
}
