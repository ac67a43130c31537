//! Tokens as they are shown: each with its text and the word it belongs to.

use regard_models::text::{Alone, Piece, pieces};

use super::error::TokenizerError;
use super::subword::{Model, SubwordTokenizer, UNKNOWN, position};

impl SubwordTokenizer {
    /// One [`Piece`] for each of `ids`, for the axes of an attention picture.
    ///
    /// Words are those of the decoded text (see [`split_words`](super::split_words)), not those of the tokens: what a
    /// model wrote as `ri` + `ding` is the one word `riding`.
    ///
    /// # Errors
    /// [`TokenizerError::Failed`] where a `tokenizer.json` is damaged.
    pub fn pieces(&self, ids: &[u32]) -> Result<Vec<Piece>, TokenizerError> {
        let alone = |id| {
            (self.is_word_level() || self.is_special(id)).then(|| Alone {
                name: self.token(id).unwrap_or_default().to_owned(),
                starts_text: id != UNKNOWN,
            })
        };
        pieces(ids, alone, |run| {
            Ok(match &self.model {
                Model::Bytes { bytes, .. } => run
                    .iter()
                    .map(|&id| bytes.get(position(id)).cloned().unwrap_or_default())
                    .collect(),
                Model::HuggingFace(file) => {
                    let parts = file.library.parts(run)?;
                    parts.into_iter().map(String::into_bytes).collect()
                }
                Model::Words { .. } => vec![],
            })
        })
    }
}
