//! The tokenizer itself: learn, encode, decode.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use regard_models::{
    Vocabulary,
    text::{MAXIMUM_VOCABULARY_SIZE, split_words},
};
use tokenizers::models::bpe::{BPE, BpeTrainer, Vocab};
use tokenizers::{Model as _, Trainer as _};

use super::alphabet;
use super::dropout::Merges;
use super::error::TokenizerError;
use super::hugging_face::HuggingFace;

/// The reserved tokens of a vocabulary that is learned here, in the order of their ids: first the marks, in the order of
/// [`Vocabulary::new`], then the token for an unknown symbol.
pub const SPECIAL_TOKENS: [&str; 4] = ["<pad>", "<s>", "</s>", "<unk>"];
pub(crate) const UNKNOWN: u32 = 3;
/// The smallest sub-word vocabulary: the reserved tokens and the 256 bytes.
pub const MINIMUM_VOCABULARY_SIZE: usize = SPECIAL_TOKENS.len() + 256;

/// A pair of neighbours must be seen this often to become a token.
const MINIMUM_FREQUENCY: u64 = 2;

/// A text tokenizer: sub-words over bytes, whole symbols, or one of the Hugging Face library (see the [module](super)).
///
/// Cheap to share between threads by reference; [`Clone`] copies the vocabulary.
#[derive(Debug, Clone)]
pub struct SubwordTokenizer {
    pub(super) lowercase: bool,
    pub(super) vocabulary: Vec<String>,
    pub(super) marks: Vocabulary,
    pub(super) model: Model,
}

#[derive(Debug, Clone)]
pub(super) enum Model {
    /// Sub-words. `bytes[id]` are the bytes that token `id` stands for.
    Bytes {
        bpe: Box<BPE>,
        merges: Vec<(u32, u32)>,
        joins: Merges,
        bytes: Vec<Vec<u8>>,
    },
    /// White-space-delimited symbols.
    Words { ids: HashMap<String, u32> },
    /// Whatever a `tokenizer.json` says.
    HuggingFace(Box<HuggingFace>),
}

/// `text` in lower case, character by character (so that no character's form depends on its
/// neighbours, as Greek final sigma's would).
///
/// ```
/// use regard_train::tokenizer::lowercase;
/// assert_eq!(lowercase("Zwei MÄNNER"), "zwei männer");
/// ```
pub fn lowercase(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| c.to_lowercase().eq([c])) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.chars().flat_map(char::to_lowercase).collect())
    }
}

impl SubwordTokenizer {
    /// Learns a byte-level BPE of at most `vocabulary_size` tokens from `lines`.
    ///
    /// Text too small to fill the vocabulary gives a smaller one: see
    /// [`vocabulary_size`](Self::vocabulary_size). Ties between equal frequencies are broken by the
    /// order of the tokens' ids, so the same lines give the same tokenizer, in any order and on any
    /// number of threads.
    ///
    /// # Errors
    /// [`TokenizerError::VocabularyTooSmall`] below [`MINIMUM_VOCABULARY_SIZE`];
    /// [`TokenizerError::NoText`] when all lines are empty.
    pub fn learn<I, S>(
        lines: I,
        vocabulary_size: usize,
        lowercase: bool,
    ) -> Result<Self, TokenizerError>
    where
        I: Iterator<Item = S> + Send,
        S: AsRef<str> + Send,
    {
        if vocabulary_size < MINIMUM_VOCABULARY_SIZE {
            return Err(TokenizerError::VocabularyTooSmall {
                size: vocabulary_size,
                minimum: MINIMUM_VOCABULARY_SIZE,
            });
        }
        if vocabulary_size > MAXIMUM_VOCABULARY_SIZE {
            return Err(TokenizerError::VocabularyTooLarge {
                size: vocabulary_size,
                maximum: MAXIMUM_VOCABULARY_SIZE,
            });
        }
        let mut trainer = BpeTrainer::builder()
            .show_progress(false)
            .min_frequency(MINIMUM_FREQUENCY)
            // The reserved tokens are put in front afterwards: the library would take any text
            // that spells one of them for the token itself.
            .vocab_size(vocabulary_size - SPECIAL_TOKENS.len())
            .initial_alphabet((0..=255).map(alphabet::char_of_byte).collect())
            .build();
        let any_text = std::sync::atomic::AtomicBool::new(false);
        trainer
            .feed(lines, |line| {
                if !line.is_empty() {
                    any_text.store(true, std::sync::atomic::Ordering::Relaxed);
                }
                Ok(prepared(line, lowercase)
                    .map(|text| split_words(&text).map(alphabet::to_alphabet).collect())
                    .unwrap_or_default())
            })
            .map_err(trainer_error)?;
        if !any_text.into_inner() {
            return Err(TokenizerError::NoText);
        }
        let mut bpe = BPE::default();
        trainer.train(&mut bpe).map_err(trainer_error)?;
        let learned: Learned = serde_json::to_value(&bpe)
            .and_then(serde_json::from_value)
            .map_err(|error| TokenizerError::Trainer {
                message: error.to_string(),
            })?;
        let mut tokens: Vec<(String, u32)> = learned.vocab.into_iter().collect();
        tokens.sort_unstable_by_key(|&(_, id)| id);
        let vocabulary: Vec<String> = SPECIAL_TOKENS
            .into_iter()
            .map(str::to_owned)
            .chain(tokens.into_iter().map(|(token, _)| token))
            .collect();
        let ids: HashMap<&str, u32> = index(&vocabulary);
        let merges = learned
            .merges
            .iter()
            .map(|(left, right)| Some((*ids.get(left.as_str())?, *ids.get(right.as_str())?)))
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| TokenizerError::Trainer {
                message: "a merge of tokens outside the vocabulary".to_owned(),
            })?;
        Self::from_merges(vocabulary, merges, lowercase)
    }

    /// Takes every white-space-delimited symbol of `lines` as a token, in sorted order.
    ///
    /// For the synthetic tasks. White space is not kept, and a symbol that was not in `lines`
    /// encodes to `<unk>`.
    ///
    /// # Errors
    /// [`TokenizerError::NoText`] when there is no symbol.
    ///
    /// ```
    /// use regard_train::tokenizer::SubwordTokenizer;
    /// let tokenizer = SubwordTokenizer::learn_words(["b a", "c"].iter(), false)?;
    /// let ids = tokenizer.encode("a b x")?;
    /// assert_eq!(ids, ["a", "b", "<unk>"].map(|token| tokenizer.id(token).unwrap()));
    /// assert_eq!(tokenizer.decode(&ids)?, "a b <unk>");
    /// # Ok::<(), regard_train::tokenizer::TokenizerError>(())
    /// ```
    pub fn learn_words<I, S>(lines: I, lowercase: bool) -> Result<Self, TokenizerError>
    where
        I: Iterator<Item = S>,
        S: AsRef<str>,
    {
        let mut symbols = BTreeSet::new();
        for line in lines {
            let line = fold(line.as_ref(), lowercase);
            for symbol in line.split_whitespace() {
                if !SPECIAL_TOKENS.contains(&symbol) && !symbols.contains(symbol) {
                    symbols.insert(symbol.to_owned());
                }
            }
        }
        if symbols.is_empty() {
            return Err(TokenizerError::NoText);
        }
        let vocabulary = SPECIAL_TOKENS
            .into_iter()
            .map(str::to_owned)
            .chain(symbols)
            .collect();
        Self::from_words(vocabulary, lowercase)
    }

    pub(super) fn from_words(
        vocabulary: Vec<String>,
        lowercase: bool,
    ) -> Result<Self, TokenizerError> {
        if vocabulary.len() > MAXIMUM_VOCABULARY_SIZE {
            return Err(TokenizerError::VocabularyTooLarge {
                size: vocabulary.len(),
                maximum: MAXIMUM_VOCABULARY_SIZE,
            });
        }
        let ids = vocabulary
            .iter()
            .zip(0u32..)
            .skip(SPECIAL_TOKENS.len())
            .map(|(symbol, id)| (symbol.clone(), id))
            .collect();
        Ok(Self {
            lowercase,
            marks: Vocabulary::new(vocabulary.len()),
            vocabulary,
            model: Model::Words { ids },
        })
    }

    /// Builds the sub-word model; `vocabulary` starts with the reserved tokens, the rest is
    /// checked here.
    pub(super) fn from_merges(
        vocabulary: Vec<String>,
        merges: Vec<(u32, u32)>,
        lowercase: bool,
    ) -> Result<Self, TokenizerError> {
        let mut bytes = vec![Vec::new(); SPECIAL_TOKENS.len()];
        for token in &vocabulary[SPECIAL_TOKENS.len()..] {
            let token_bytes = alphabet::to_bytes(token).filter(|bytes| !bytes.is_empty());
            bytes.push(token_bytes.ok_or_else(|| {
                TokenizerError::malformed(format!(
                    "token {token:?} of the vocabulary is empty or has characters that stand for \
                     no byte"
                ))
            })?);
        }
        let ids = index(&vocabulary);
        for byte in 0..=255u8 {
            let character = alphabet::char_of_byte(byte);
            if !ids.contains_key(character.to_string().as_str()) {
                return Err(TokenizerError::malformed(format!(
                    "byte {byte:#04x} ({character:?}) is not in the vocabulary; all 256 must be"
                )));
            }
        }
        let mut strings = Vec::with_capacity(merges.len());
        for &(left, right) in &merges {
            let part = |id: u32| {
                let position = usize::try_from(id).unwrap_or(usize::MAX);
                if position < SPECIAL_TOKENS.len() {
                    return None;
                }
                vocabulary.get(position).cloned()
            };
            let parts = part(left).zip(part(right));
            let known = parts.filter(|(a, b)| ids.contains_key(format!("{a}{b}").as_str()));
            strings.push(known.ok_or_else(|| {
                TokenizerError::malformed(format!(
                    "merge [{left}, {right}] does not join two tokens of the vocabulary into a \
                     third"
                ))
            })?);
        }
        let vocab: Vocab = vocabulary
            .iter()
            .cloned()
            .zip(0u32..)
            .skip(SPECIAL_TOKENS.len())
            .collect();
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, strings)
            .build()
            .map_err(|error| TokenizerError::malformed(error.to_string()))?;
        Ok(Self {
            lowercase,
            marks: Vocabulary::new(vocabulary.len()),
            vocabulary,
            model: Model::Bytes {
                bpe: Box::new(bpe),
                joins: Merges::new(&merges, &bytes),
                merges,
                bytes,
            },
        })
    }

    /// The ids of `text`, without start and end. Empty text has no ids.
    ///
    /// # Errors
    /// [`TokenizerError::Failed`] if a `tokenizer.json` is damaged; other tokenizers encode every text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        Ok(match &self.model {
            Model::HuggingFace(_) if text.is_empty() => vec![],
            Model::HuggingFace(file) => file.encode(&fold(text, self.lowercase))?,
            Model::Bytes { bpe, .. } => {
                let Some(text) = prepared(text, self.lowercase) else {
                    return Ok(vec![]);
                };
                let mut ids = Vec::with_capacity(text.len() / 3);
                for word in split_words(&text) {
                    let word = alphabet::to_alphabet(word);
                    let tokens = bpe
                        .tokenize(&word)
                        .map_err(|error| TokenizerError::Failed {
                            message: error.to_string(),
                        })?;
                    ids.extend(tokens.into_iter().map(|token| token.id));
                }
                ids
            }
            Model::Words { ids } => fold(text, self.lowercase)
                .split_whitespace()
                .map(|symbol| ids.get(symbol).copied().unwrap_or(UNKNOWN))
                .collect(),
        })
    }

    /// The text of `ids`: reserved tokens and ids outside the vocabulary stand for no text,
    /// except an unknown symbol, shown as `<unk>` (a `tokenizer.json` decides that for itself). Bytes that are not UTF-8,
    /// which a model can produce but [`encode`](Self::encode) cannot, come out as U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::Failed`] where a `tokenizer.json` is damaged.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        Ok(match &self.model {
            Model::HuggingFace(file) => {
                let text = ids.iter().copied().filter(|&id| !self.is_mark(id));
                file.library.decode(&text.collect::<Vec<_>>(), true)?
            }
            Model::Bytes { bytes, .. } => {
                let mut joined = Vec::with_capacity(ids.len() * 4);
                for &id in ids {
                    if id == UNKNOWN {
                        joined.extend_from_slice(b" <unk>");
                    } else if let Some(token) = bytes.get(position(id)) {
                        joined.extend_from_slice(token);
                    }
                }
                let text = joined.strip_prefix(b" ").unwrap_or(&joined);
                String::from_utf8_lossy(text).into_owned()
            }
            Model::Words { .. } => {
                let symbols: Vec<&str> = ids
                    .iter()
                    .filter(|&&id| !self.is_mark(id))
                    .filter_map(|&id| self.vocabulary.get(position(id)))
                    .map(String::as_str)
                    .collect();
                symbols.join(" ")
            }
        })
    }

    /// The size of the vocabulary and the ids of its marks, which a model needs.
    pub fn vocabulary(&self) -> Vocabulary {
        self.marks
    }

    /// Whether a token stands for no text: a mark, or another reserved or special token.
    pub fn is_special(&self, id: u32) -> bool {
        match &self.model {
            Model::HuggingFace(file) => {
                self.is_mark(id)
                    || self
                        .token(id)
                        .is_some_and(|token| file.library.is_special(token))
            }
            _ => position(id) < SPECIAL_TOKENS.len(),
        }
    }

    fn is_mark(&self, id: u32) -> bool {
        [self.marks.padding, self.marks.start, self.marks.end].contains(&id)
    }

    /// The number of tokens, reserved ones included: ids are below it.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary.len()
    }

    /// Whether text is lower-cased before encoding.
    pub fn lowercases(&self) -> bool {
        self.lowercase
    }

    /// Whether tokens are whole white-space-delimited symbols instead of sub-words.
    pub fn is_word_level(&self) -> bool {
        matches!(self.model, Model::Words { .. })
    }

    /// The id of a token, written as in the vocabulary, if it is there.
    pub fn id(&self, token: &str) -> Option<u32> {
        let place = self.vocabulary.iter().position(|known| known == token)?;
        u32::try_from(place).ok()
    }

    /// Token `id` as the vocabulary writes it (a space is `Ġ`), if there is such an id.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.vocabulary.get(position(id)).map(String::as_str)
    }
}

#[derive(serde::Deserialize)]
struct Learned {
    vocab: HashMap<String, u32>,
    merges: Vec<(String, String)>,
}

pub(super) fn position(id: u32) -> usize {
    usize::try_from(id).unwrap_or(usize::MAX)
}

fn index(vocabulary: &[String]) -> HashMap<&str, u32> {
    vocabulary.iter().map(String::as_str).zip(0u32..).collect()
}

fn fold(text: &str, lower: bool) -> Cow<'_, str> {
    if lower {
        lowercase(text)
    } else {
        Cow::Borrowed(text)
    }
}

/// The text to which merges are applied: in lower case if asked for, one space in front; `None` if there is no text.
fn prepared(text: &str, lower: bool) -> Option<String> {
    (!text.is_empty()).then(|| format!(" {}", fold(text, lower)))
}

fn trainer_error(error: tokenizers::Error) -> TokenizerError {
    TokenizerError::Trainer {
        message: error.to_string(),
    }
}
