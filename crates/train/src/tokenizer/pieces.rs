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

    /// The text that each of `tokens` adds if it follows `context`: alone it would lose its space. One that adds no text, such as a part
    /// of a character, is called by its name in the vocabulary.
    ///
    /// # Errors
    /// [`TokenizerError::Failed`] where a `tokenizer.json` is damaged.
    pub fn following(
        &self,
        context: &[u32],
        tokens: &[u32],
    ) -> Result<Vec<String>, TokenizerError> {
        if let Model::HuggingFace(file) = &self.model {
            return Ok(file.library.following(context, tokens)?);
        }
        // The first bytes of a character are no text yet.
        let whole = |ids: &[u32]| -> Result<String, TokenizerError> {
            let text = self.decode(ids)?;
            Ok(text
                .trim_end_matches(char::REPLACEMENT_CHARACTER)
                .to_owned())
        };
        let before = whole(context)?.len();
        let texts = tokens.iter().map(|&id| {
            let text = whole(&[context, &[id]].concat())?;
            Ok(match text.get(before..).unwrap_or_default() {
                "" => self.token(id).unwrap_or_default().to_owned(),
                added => added.to_owned(),
            })
        });
        texts.collect()
    }
}
