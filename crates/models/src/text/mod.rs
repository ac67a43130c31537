//! Text as words and tokens: what every tokenizer has in common, and the Hugging Face library `tokenizers` behind a guard.

mod learn;
mod library;
mod pieces;
mod words;

pub use learn::{FEWEST_SUBWORDS, MARKS, Units};
pub use library::{Library, LibraryError, MAXIMUM_VOCABULARY_SIZE, Stream};
pub use pieces::{Alone, Piece, pieces};
pub use words::split_words;
