//! Tokens: the pieces of text that a model reads and writes, as a person should see them.
//!
//! A [`Token`] holds decoded text ("ing", not "##ing" or "Ġing") and the index of the word it is a
//! part of. Neighbours with the same index are one word; merging them is
//! [`AttentionMap::merge_words`](crate::AttentionMap::merge_words).
//!
//! ```
//! use regard_trace::{Token, Tokens};
//!
//! let tokens = Tokens::from(vec![
//!     Token::new("rid").in_word(0),
//!     Token::new("ing").in_word(0),
//!     Token::special("</s>"),
//! ]);
//! assert_eq!(tokens.words(), [0..2, 2..3]);
//! assert_eq!(tokens.merge_words().texts(), ["riding", "</s>"]);
//! ```

use std::ops::{Deref, Range};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// One token as shown to a person.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Token {
    /// The decoded text. It may hold anything, control characters included: code that shows it
    /// must escape it.
    pub text: String,
    /// Index of the word that this token is a part of; `None` makes it a word of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub word: Option<usize>,
    /// Whether the token is not part of the text (`<s>`, `</s>`, `[CLS]`, padding). A special token
    /// is its own word and takes no place in an alignment.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub special: bool,
}

impl Token {
    /// A token that is a word of its own.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            word: None,
            special: false,
        }
    }

    /// A token that is not part of the text, such as `</s>`.
    pub fn special(text: impl Into<String>) -> Self {
        Self {
            special: true,
            ..Self::new(text)
        }
    }

    /// The same token as a part of word number `word`.
    pub fn in_word(self, word: usize) -> Self {
        Self {
            word: Some(word),
            ..self
        }
    }

    fn continues(&self, previous: &Token) -> bool {
        !self.special && !previous.special && self.word.is_some() && self.word == previous.word
    }
}

/// A sequence of tokens. Cloning shares the storage, so the maps of a deep model can all hold the
/// same sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Vec<Token>", into = "Vec<Token>")]
pub struct Tokens(Arc<[Token]>);

impl Tokens {
    /// One token per whitespace-separated word of `text`.
    pub fn from_words(text: &str) -> Self {
        text.split_whitespace()
            .enumerate()
            .map(|(word, text)| Token::new(text).in_word(word))
            .collect()
    }

    /// The text of every token.
    pub fn texts(&self) -> Vec<&str> {
        self.iter().map(|token| token.text.as_str()).collect()
    }

    /// The ranges of tokens that make up the words, in order; together they cover the sequence.
    pub fn words(&self) -> Vec<Range<usize>> {
        let mut words: Vec<Range<usize>> = Vec::new();
        for (index, token) in self.iter().enumerate() {
            match words.last_mut() {
                Some(last) if token.continues(&self[index - 1]) => last.end = index + 1,
                _ => words.push(index..index + 1),
            }
        }
        words
    }

    /// The sequence of words: the texts of each word's tokens joined without a space.
    pub fn merge_words(&self) -> Self {
        self.words()
            .into_iter()
            .map(|range| Token {
                text: self[range.clone()]
                    .iter()
                    .map(|t| t.text.as_str())
                    .collect(),
                ..self[range.start].clone()
            })
            .collect()
    }
}

impl Deref for Tokens {
    type Target = [Token];

    fn deref(&self) -> &[Token] {
        &self.0
    }
}

impl From<Vec<Token>> for Tokens {
    fn from(tokens: Vec<Token>) -> Self {
        Self(tokens.into())
    }
}

impl From<Tokens> for Vec<Token> {
    fn from(tokens: Tokens) -> Self {
        tokens.to_vec()
    }
}

impl FromIterator<Token> for Tokens {
    fn from_iter<I: IntoIterator<Item = Token>>(tokens: I) -> Self {
        Self(tokens.into_iter().collect())
    }
}
