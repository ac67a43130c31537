//! Any `tokenizer.json` of the Hugging Face library `tokenizers`, as the library itself reads it.

use regard_models::{
    Vocabulary, pretrained,
    text::{Library, MAXIMUM_VOCABULARY_SIZE, Units},
};
use serde_json::{Value, json};

use super::error::TokenizerError;
use super::file::from_json;
use super::subword::{Model, SubwordTokenizer};

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
    pub(super) library: Library,
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
            let found = tried.iter().find_map(|token| file.library.id(token));
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

    /// The tokenizer of a pretrained model, with the marks that the model puts around a text: start is its `cls`, `bos` or `eos`
    /// token, end its `sep` or `eos` (GPT-2: `<|endoftext|>` for both). A token `<pad>` is added to one without padding.
    ///
    /// # Errors
    /// [`TokenizerError::Malformed`] for a tokenizer without end, or one that no `tokenizer.json` can say.
    pub fn of_pretrained(tokenizer: &pretrained::Tokenizer) -> Result<Self, TokenizerError> {
        let document = tokenizer.document();
        let document = document.map_err(|error| TokenizerError::malformed(error.to_string()))?;
        let mut document: Value = from_json(document.as_bytes())?;
        let roles = tokenizer.special();
        let last = roles.sep.or(roles.eos.first().copied());
        let first = roles.cls.or(roles.bos).or(last);
        let named = |id: Option<u32>| id.and_then(|id| tokenizer.token(id));
        let (start, end) = (named(first), named(last));
        let mut padding = named(roles.pad.filter(|&id| Some(id) != last));
        if padding.is_none() && PADDING.iter().all(|name| tokenizer.id(name).is_none()) {
            if let Some(added) = document["added_tokens"].as_array_mut() {
                added.push(json!({
                    "id": tokenizer.size(), "content": PADDING[0], "single_word": false, "lstrip": false,
                    "rstrip": false, "normalized": false, "special": true,
                }));
            }
            padding = Some(PADDING[0].to_owned());
        }
        let special = SpecialTokens {
            padding: padding.as_deref(),
            start: start.as_deref(),
            end: end.as_deref(),
            unknown: None,
        };
        Self::from_hugging_face(document.to_string().as_bytes(), &special, false)
    }

    /// Learns the tokenizer of a language model from `texts`: characters, bytes, or sub-words that fill a vocabulary of `size`. It
    /// has the marks of [`regard_models::text::MARKS`].
    ///
    /// # Errors
    /// [`TokenizerError::NoText`] if all texts are empty; [`TokenizerError::VocabularyTooLarge`].
    pub fn learn_units<S: AsRef<str> + Sync>(
        texts: &[S],
        units: Units,
        size: usize,
        lowercase: bool,
    ) -> Result<Self, TokenizerError> {
        let maximum = MAXIMUM_VOCABULARY_SIZE;
        if size > maximum {
            return Err(TokenizerError::VocabularyTooLarge { size, maximum });
        }
        if texts.iter().all(|text| text.as_ref().is_empty()) {
            return Err(TokenizerError::NoText);
        }
        let texts = texts.iter().map(AsRef::as_ref);
        let (file, vocabulary) = HuggingFace::new(units.learn(texts, size, lowercase)?)?;
        let marks = Vocabulary::new(vocabulary.len());
        Self::of_file(file, vocabulary, marks, false)
    }

    /// The document of the library from which it was made, if it was.
    pub fn document(&self) -> Option<Value> {
        match &self.model {
            Model::HuggingFace(file) => Some(file.document()),
            _ => None,
        }
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
        if let Some(fields) = document.as_object_mut() {
            fields.remove("post_processor");
        }
        let library = Library::new(&mut document)?;
        let vocabulary = library.tokens();
        let file = Self {
            library,
            document: document.to_string(),
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

    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.library.encode(text, false)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The error that no token has the role `key`; `tried` lists the names that were looked for.
    fn lacks(&self, key: &str, tried: &str) -> TokenizerError {
        const SHOWN: usize = 50;
        let special: Vec<String> = self.library.special_tokens();
        let special = &special[..special.len().min(SHOWN)];
        TokenizerError::malformed(format!(
            "no token of the vocabulary is its {key} ({tried}); name one with the key `{key}`; its special tokens are: {}",
            match special.is_empty() {
                true => "none".to_owned(),
                false => special.join(", "),
            }
        ))
    }
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
