//! Text to token ids and back, without loss.
//!
//! **What it computes.** Byte-pair encoding (Sennrich, Haddow and Birch 2016, arXiv:1508.07909)
//! over bytes: text is cut into words (a word takes the space in front of it), and each word starts
//! as its UTF-8 bytes. Then the pair of neighbours that is most frequent in the training text is
//! merged into a new token, again and again, until the vocabulary is full. All 256 bytes stay in the
//! vocabulary, so every text has an encoding and
//!
//! `decode(encode(x)) = x` for every string `x` (its lower-cased form with `lowercase`).
//!
//! One space is put in front of the text before encoding and removed after decoding, so that a word
//! at the start of a sentence gets the same tokens as inside it.
//!
//! **Shapes.** One string to a list of ids `[tokens]`, each in `0..vocabulary_size`. The first
//! four ids are reserved ([`SPECIAL_TOKENS`]); no text encodes to them, not even
//! the text `"</s>"`. (Only in the word-level mode of the synthetic tasks, where a symbol is a token,
//! an unknown symbol encodes to `<unk>`.) [`vocabulary`](SubwordTokenizer::vocabulary) says which ids
//! are marks.
//!
//! Learning is deterministic: the same lines give the same bytes of the saved file.
//!
//! A finished tokenizer, any `tokenizer.json` of the Hugging Face library, can take the place of a learned one
//! ([`from_hugging_face`](SubwordTokenizer::from_hugging_face)). Its properties are those of its file: it may lose parts of
//! a text, its marks may have any ids, and text that spells a special token becomes that token, as in the library.
//!
//! ```
//! use regard_train::tokenizer::SubwordTokenizer;
//!
//! let lines = ["a man rides a bicycle", "a man rides a horse", "the man sees the horse"];
//! let tokenizer = SubwordTokenizer::learn(lines.iter(), 280, false)?;
//! let ids = tokenizer.encode("a man rides the bicycle, 骑自行车 \u{7}")?;
//! assert_eq!(tokenizer.decode(&ids)?, "a man rides the bicycle, 骑自行车 \u{7}");
//!
//! let pieces = tokenizer.pieces(&tokenizer.encode("man rides")?)?;
//! assert_eq!(pieces[0].text, "man");
//! assert_eq!((pieces[0].word, pieces[1].word), (0, 1));
//! # Ok::<(), regard_train::tokenizer::TokenizerError>(())
//! ```

mod alphabet;
mod dropout;
mod error;
mod file;
mod hugging_face;
mod pair;
mod pieces;
mod subword;

pub use error::TokenizerError;
pub use hugging_face::SpecialTokens;
pub use pair::TokenizerPair;
pub use regard_models::text::{Piece, split_words};
pub(crate) use subword::UNKNOWN;
pub use subword::{MINIMUM_VOCABULARY_SIZE, SPECIAL_TOKENS, SubwordTokenizer, lowercase};
