//! Tokenizers for language models, learned from text, as documents of the library `tokenizers` (the content of a
//! `tokenizer.json`).
//!
//! | units | a token is | how many |
//! |---|---|---|
//! | [`Units::Characters`] | a character of the text | as many as the text has different ones |
//! | [`Units::Bytes`] | a byte of UTF-8 | 256 |
//! | [`Units::Subwords`] | bytes merged by their frequency (byte-pair encoding, Sennrich et al. 2016) | as many as are asked for |
//!
//! The ids of [`MARKS`] come first. A character that the text did not have is `<unk>`; bytes and sub-words lose nothing.
//!
//! ```
//! use regard_models::text::{Library, Units};
//!
//! let mut document = Units::Characters.learn(["to be"], 0, false)?;
//! let ids = Library::new(&mut document)?.encode("bet", false)?.get_ids().to_vec();
//! assert_eq!(ids, [6, 7, 9]); // after the marks: " ", "b", "e", "o", "t"
//! # Ok::<(), regard_models::text::LibraryError>(())
//! ```

use std::collections::{BTreeSet, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokenizers::{
    AddedToken, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, Trainer,
    models::bpe::{BPE, BpeTrainer},
    pre_tokenizers::byte_level::ByteLevel,
};

use super::library::LibraryError;

/// The special tokens of a learned tokenizer, in the order of their ids: padding, start, end, unknown, mask.
pub const MARKS: [&str; 5] = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"];

/// A mask takes the space before it, as the first token of a word does.
const MASK: &str = MARKS[4];

/// The fewest tokens of a vocabulary of sub-words: the marks and the bytes.
pub const FEWEST_SUBWORDS: usize = MARKS.len() + 256;

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Units {
    /// A character.
    Characters,
    /// A byte of UTF-8.
    Bytes,
    /// Bytes merged by their frequency.
    #[default]
    Subwords,
}

impl Units {
    /// Learns a tokenizer from `texts`, in lower case if `lowercase` says so; sub-words fill a vocabulary of `size`. The same texts
    /// give the same tokenizer.
    ///
    /// # Errors
    /// [`LibraryError::Failed`] if the library fails.
    pub fn learn<S: AsRef<str> + Send>(
        self,
        texts: impl IntoIterator<Item = S, IntoIter: Send>,
        size: usize,
        lowercase: bool,
    ) -> Result<Value, LibraryError> {
        let texts = texts.into_iter().map(|text| match lowercase {
            true => text.as_ref().chars().flat_map(char::to_lowercase).collect(),
            false => text.as_ref().to_owned(),
        });
        let mut document = match self {
            Self::Characters => {
                let mut characters = BTreeSet::new();
                texts.for_each(|text: String| characters.extend(text.chars()));
                let decoder = json!({ "type": "Fuse" });
                document(alphabet(characters), Value::Null, decoder)
            }
            Self::Bytes => bytes(alphabet(every_byte()), false),
            Self::Subwords => bytes(subwords(texts, size)?, true),
        };
        if lowercase {
            document["normalizer"] = json!({ "type": "Lowercase" });
        }
        Ok(document)
    }
}

/// The characters that stand for bytes, in order.
fn every_byte() -> BTreeSet<char> {
    ByteLevel::alphabet().into_iter().collect()
}

/// A model that merges nothing.
fn alphabet(characters: impl IntoIterator<Item = char>) -> Value {
    let marks = MARKS.iter().map(ToString::to_string);
    let tokens = marks.chain(characters.into_iter().map(String::from));
    let vocabulary: Map<String, Value> = tokens
        .zip(0..)
        .map(|(token, id)| (token, json!(id)))
        .collect();
    json!({ "type": "BPE", "unk_token": "<unk>", "vocab": vocabulary, "merges": [] })
}

/// Byte-pair encoding as the library learns it.
fn subwords(
    texts: impl Iterator<Item = String> + Send,
    size: usize,
) -> Result<Value, LibraryError> {
    let failed = |error: tokenizers::Error| LibraryError::Failed(error.to_string());
    let words = |text: &str| {
        let mut cut = PreTokenizedString::from(text);
        ByteLevel::new(false, true, true).pre_tokenize(&mut cut)?;
        let words = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        Ok(words
            .into_iter()
            .map(|(word, _, _)| word.to_owned())
            .collect())
    };
    let marks = MARKS.map(|mark| AddedToken::from(mark, true));
    let mut trainer = BpeTrainer::builder()
        .vocab_size(size)
        .min_frequency(2)
        .show_progress(false)
        .special_tokens(marks.into())
        .initial_alphabet(every_byte().into_iter().collect::<HashSet<_>>())
        .build();
    trainer.feed(texts, words).map_err(failed)?;
    let mut model = BPE::default();
    trainer.train(&mut model).map_err(failed)?;
    serde_json::to_value(&model).map_err(|error| LibraryError::Failed(error.to_string()))
}

/// The document of a model over bytes; `words` says whether words are cut apart before.
fn bytes(model: Value, words: bool) -> Value {
    let level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": words });
    document(model, level.clone(), level)
}

fn document(model: Value, pre_tokenizer: Value, decoder: Value) -> Value {
    let added: Vec<Value> = (0..)
        .zip(MARKS)
        .map(|(id, mark)| {
            json!({
                "id": id, "content": mark, "single_word": false, "lstrip": mark == MASK, "rstrip": false, "normalized": false,
                "special": true
            })
        })
        .collect();
    json!({
        "version": "1.0",
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": decoder,
        "model": model,
    })
}
