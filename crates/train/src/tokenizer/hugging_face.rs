//! Any `tokenizer.json` of the Hugging Face library `tokenizers`, as the library itself reads it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use regard_models::Vocabulary;
use serde_json::Value;
use tokenizers::Tokenizer;

use super::error::TokenizerError;
use super::file::from_json;
use super::subword::{MAXIMUM_VOCABULARY_SIZE, Model, SubwordTokenizer};

/// The steps of a tokenizer may make a text this many times longer. Those of published ones stay below 100.
const LARGEST_GROWTH: f64 = 65_536.0;

/// Names of tokens that pad, start and end a sentence, most usual first.
const PADDING: [&str; 2] = ["<pad>", "[PAD]"];
const START: [&str; 4] = ["<s>", "[BOS]", "<bos>", "[CLS]"];
const END: [&str; 4] = ["</s>", "[EOS]", "<eos>", "[SEP]"];

/// The tokens with a special role, where a `tokenizer.json` does not name them itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct SpecialTokens<'a> {
    /// The padding token; if `None`, the file's own padding, `<pad>` or `[PAD]`.
    pub padding: Option<&'a str>,
    /// The token that starts a target; if `None`, `<s>`, `[BOS]`, `<bos>` or `[CLS]`.
    pub start: Option<&'a str>,
    /// The token that ends a sentence; if `None`, `</s>`, `[EOS]`, `<eos>` or `[SEP]`.
    pub end: Option<&'a str>,
    /// The token for a word or character that is not in the vocabulary; if `None`, the file's own.
    pub unknown: Option<&'a str>,
}

/// A tokenizer of the library.
#[derive(Debug, Clone)]
pub(super) struct HuggingFace {
    tokenizer: Tokenizer,
    /// The JSON document from which it was read.
    document: String,
}

impl SubwordTokenizer {
    /// A tokenizer from the bytes of a `tokenizer.json`: BPE, WordPiece, Unigram or whole words, with the file's own normaliser,
    /// pre-tokenizer and decoder. The file's template is left out, since the model adds start and end itself, and so are
    /// truncation, padding and dropout.
    ///
    /// # Errors
    /// [`TokenizerError::Malformed`] for bytes that the library refuses, a vocabulary beyond 1,048,576 ids, or tokens that
    /// `special` names or a model needs and the file lacks.
    ///
    /// ```
    /// use regard_train::tokenizer::SubwordTokenizer;
    /// let file = r#"{
    ///     "added_tokens": [], "decoder": {"type": "WordPiece", "prefix": "@", "cleanup": false},
    ///     "pre_tokenizer": {"type": "Whitespace"},
    ///     "model": {
    ///         "type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "@", "max_input_chars_per_word": 100,
    ///         "vocab": {"?": 0, "rid": 1, "@ing": 2, "<s>": 3, "</s>": 4, "<pad>": 5}
    ///     }
    /// }"#;
    /// let tokenizer = SubwordTokenizer::from_hugging_face(file.as_bytes(), &Default::default(), false)?;
    /// assert_eq!(tokenizer.vocabulary().end, 4);
    /// let ids = tokenizer.encode("riding rid!")?;
    /// assert_eq!(ids, [1, 2, 1, 0]);
    /// assert_eq!(tokenizer.pieces(&ids[..3])?.iter().map(|piece| piece.word).collect::<Vec<_>>(), [0, 0, 1]);
    /// assert_eq!(tokenizer.decode(&ids[..3])?, "riding rid");
    /// # Ok::<(), regard_train::tokenizer::TokenizerError>(())
    /// ```
    pub fn from_hugging_face(
        bytes: &[u8],
        special: &SpecialTokens<'_>,
        lowercase: bool,
    ) -> Result<Self, TokenizerError> {
        let mut document: Value = from_json(bytes)?;
        if let (Some(token), Some(model)) = (special.unknown, document.get_mut("model")) {
            name_unknown(model, token);
        }
        let padding = document["padding"]["pad_token"].as_str().map(str::to_owned);
        let (file, vocabulary) = HuggingFace::new(document)?;
        let find = |key, named: Option<&str>, usual: &[&str]| {
            let named = named.as_slice();
            let tried = if named.is_empty() { usual } else { named };
            let found = tried
                .iter()
                .find_map(|token| file.tokenizer.token_to_id(token));
            found.ok_or_else(|| file.lacks(key, &tried.join(", ")))
        };
        let marks = Vocabulary {
            size: vocabulary.len(),
            padding: find("padding", special.padding.or(padding.as_deref()), &PADDING)?,
            start: find("start", special.start, &START)?,
            end: find("end", special.end, &END)?,
        };
        Self::of_file(file, vocabulary, marks, lowercase)
    }

    /// The tokenizer that [`to_bytes`](Self::to_bytes) wrote.
    pub(super) fn from_document(
        document: Value,
        marks: Vocabulary,
        lowercase: bool,
    ) -> Result<Self, TokenizerError> {
        let (file, vocabulary) = HuggingFace::new(document)?;
        Self::of_file(file, vocabulary, marks, lowercase)
    }

    fn of_file(
        file: HuggingFace,
        vocabulary: Vec<String>,
        marks: Vocabulary,
        lowercase: bool,
    ) -> Result<Self, TokenizerError> {
        let size = vocabulary.len();
        let outside = [marks.padding, marks.start, marks.end]
            .into_iter()
            .any(|id| id as usize >= size);
        if outside || marks.size != size {
            return Err(TokenizerError::malformed(format!(
                "it has {size} tokens; expected {marks}"
            )));
        }
        if marks.padding == marks.end {
            return Err(TokenizerError::malformed(format!(
                "{:?} both pads and ends a sentence, so that no end could be learned; name another token of the \
                 vocabulary with the key `padding`",
                vocabulary[marks.end as usize]
            )));
        }
        Ok(Self {
            lowercase,
            vocabulary,
            marks,
            model: Model::HuggingFace(Box::new(file)),
        })
    }
}

impl HuggingFace {
    /// The tokenizer of a document, and its tokens by id; an id that no token has is empty.
    fn new(mut document: Value) -> Result<(Self, Vec<String>), TokenizerError> {
        check_steps(&document)?;
        let Some(fields) = document.as_object_mut() else {
            return Err(TokenizerError::malformed("expected a JSON object"));
        };
        for field in ["padding", "truncation", "post_processor"] {
            fields.remove(field);
        }
        if let Some(model) = document["model"].as_object_mut() {
            model.remove("dropout");
        }
        let text = document.to_string();
        let tokenizer: Tokenizer = guarded(|| text.parse())
            .map_err(|error| TokenizerError::malformed(error.to_string()))?;
        let ids = tokenizer.get_vocab(true);
        let size = ids.values().max().map_or(0, |&id| id as usize + 1);
        if size > MAXIMUM_VOCABULARY_SIZE {
            return Err(TokenizerError::malformed(format!(
                "a token has the id {}; at most {MAXIMUM_VOCABULARY_SIZE} tokens are supported",
                size - 1
            )));
        }
        let mut vocabulary = vec![String::new(); size];
        for (token, id) in ids {
            vocabulary[id as usize] = token;
        }
        let file = Self {
            tokenizer,
            document: text,
        };
        match has_unknown(&document["model"]) {
            true => Ok((file, vocabulary)),
            false => {
                let tried = document["model"]["unk_token"].as_str().unwrap_or("none");
                Err(file.lacks("unknown", tried))
            }
        }
    }

    /// The document, as it is stored.
    pub(super) fn document(&self) -> Value {
        serde_json::from_str(&self.document).expect("it was written as JSON")
    }

    pub(super) fn is_special(&self, token: &str) -> bool {
        let added = self.tokenizer.get_added_vocabulary();
        added.is_special_token(token)
    }

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = guarded(|| self.tokenizer.encode_fast(text, false))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `ids`, special tokens left out.
    pub(super) fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        guarded(|| self.tokenizer.decode(ids, true))
    }

    /// The text that each of `ids` adds to the text of those before it, by the file's decoder. A character whose bytes are spread
    /// over several tokens belongs to the first of them.
    pub(super) fn parts(&self, ids: &[u32]) -> Result<Vec<String>, TokenizerError> {
        let text = self.decode(ids)?;
        let mut parts = vec![String::new(); ids.len()];
        let (mut done, mut begun) = (0, None);
        for last in 0..ids.len() {
            let so_far = self.decode(&ids[..=last])?;
            let same = text.chars().zip(so_far.chars()).take_while(|(a, b)| a == b);
            let same = same.map(|(character, _)| character.len_utf8()).sum();
            if same > done {
                let (first, rest) = text[done..same].split_at(match begun {
                    Some(_) => text[done..].chars().next().map_or(0, char::len_utf8),
                    None => 0,
                });
                parts[begun.take().unwrap_or(last)].push_str(first);
                parts[last].push_str(rest);
                done = same;
            }
            if so_far[same..].starts_with(char::REPLACEMENT_CHARACTER) {
                begun.get_or_insert(last);
            }
        }
        Ok(parts)
    }

    /// The error that no token has the role `key`; `tried` lists the names that were looked for.
    fn lacks(&self, key: &str, tried: &str) -> TokenizerError {
        const SHOWN: usize = 50;
        let mut special: Vec<(u32, String)> = self
            .tokenizer
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special)
            .map(|(id, token)| (id, token.content))
            .collect();
        special.sort_unstable();
        let special: Vec<String> = special
            .into_iter()
            .take(SHOWN)
            .map(|(_, name)| name)
            .collect();
        TokenizerError::malformed(format!(
            "no token of the vocabulary is its {key} ({tried}); name one with the key `{key}`; its special tokens are: {}",
            match special.is_empty() {
                true => "none".to_owned(),
                false => special.join(", "),
            }
        ))
    }
}

/// The result of a call of the library, with its panics as errors: it panics on some damaged files, and on regular expressions
/// that run without end.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TokenizerError> {
    let result = catch_unwind(AssertUnwindSafe(call));
    let message = match result {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the library `tokenizers` panicked".to_owned(),
    };
    Err(TokenizerError::Failed { message })
}

/// Sets the token of a model that stands for unknown text.
fn name_unknown(model: &mut Value, token: &str) {
    let place = model["vocab"]
        .as_array()
        .map(|pieces| pieces.iter().position(|piece| piece[0] == token));
    if let Some(model) = model.as_object_mut() {
        match place {
            Some(place) => model.insert("unk_id".to_owned(), place.into()),
            None => model.insert("unk_token".to_owned(), token.into()),
        };
    }
}

/// Whether a model has the token for unknown text if it needs one: all but BPE, which may know every byte, need it.
fn has_unknown(model: &Value) -> bool {
    match (&model["vocab"], &model["unk_token"]) {
        _ if model["merges"].is_array() => true,
        (Value::Object(ids), Value::String(token)) => ids.contains_key(token),
        _ => model["unk_id"].is_u64(),
    }
}

/// Refuses steps that could take any amount of memory for a short text: replacements that replace each other's results, and a
/// table of characters whose stated length exceeds its bytes.
fn check_steps(document: &Value) -> Result<(), TokenizerError> {
    for key in ["normalizer", "pre_tokenizer", "decoder"] {
        let growth = growth(&document[key])?;
        if growth > LARGEST_GROWTH {
            return Err(TokenizerError::malformed(format!(
                "its {key} can make a text {growth:.0} times longer; expected at most {LARGEST_GROWTH}"
            )));
        }
    }
    Ok(())
}

/// How many times longer a step can make a text.
fn growth(step: &Value) -> Result<f64, TokenizerError> {
    let (own, parts): (f64, Vec<&Value>) = match step {
        Value::Array(parts) => (1.0, parts.iter().collect()),
        Value::Object(fields) => {
            if let Some(table) = fields.get("precompiled_charsmap").and_then(Value::as_str)
                && stated_bytes(table).is_some_and(|stated| stated as usize > table.len())
            {
                return Err(TokenizerError::malformed(
                    "the table of its precompiled normalizer is longer than its bytes",
                ));
            }
            let content = fields.get("content").and_then(Value::as_str);
            let own = match (fields.get("type").and_then(Value::as_str), content) {
                // A byte is a character of up to two bytes.
                (Some("ByteLevel"), _) => 2.0,
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
