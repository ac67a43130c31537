//! Tokens as they are shown: each with its text and the word it belongs to.

use super::words::split_words;

/// One token as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The token's text, without the space in front of a word. A character whose bytes are spread
    /// over several tokens is shown with the first of them, and the others have no text; so the
    /// texts of a word's pieces join to the word.
    pub text: String,
    /// Index of the word, counted from 0 without gaps. A reserved token such as `</s>` is a word
    /// of its own, and so is a run of punctuation.
    pub word: usize,
}

/// A token that is a word of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alone {
    /// How it is shown.
    pub name: String,
    /// Whether the text after it begins anew, so that a space in front of it belongs to no word.
    pub starts_text: bool,
}

/// One [`Piece`] for each of `ids`. `alone` says which tokens are words of their own, and `texts` gives the bytes that each token
/// of a run of others adds to the text.
///
/// # Errors
/// Those of `texts`.
pub fn pieces<E>(
    ids: &[u32],
    alone: impl Fn(u32) -> Option<Alone>,
    texts: impl Fn(&[u32]) -> Result<Vec<Vec<u8>>, E>,
) -> Result<Vec<Piece>, E> {
    let mut pieces = Vec::with_capacity(ids.len());
    let mut next_word = 0;
    let mut at_start = true;
    for run in ids.chunk_by(|&a, &b| alone(a).is_none() && alone(b).is_none()) {
        if let [id] = run
            && let Some(Alone { name, starts_text }) = alone(*id)
        {
            at_start |= starts_text;
            pieces.push(Piece {
                text: name,
                word: next_word,
            });
            next_word += 1;
            continue;
        }
        next_word = text_pieces(&texts(run)?, at_start, next_word, &mut pieces);
        at_start = false;
    }
    Ok(pieces)
}

/// The pieces of a run of ordinary tokens; returns the index after its last word.
fn text_pieces(
    tokens: &[Vec<u8>],
    at_start: bool,
    first_word: usize,
    pieces: &mut Vec<Piece>,
) -> usize {
    let joined = tokens.concat();
    // Each character of the text with the place of its first byte in `joined`.
    let mut places = Vec::with_capacity(joined.len());
    let mut text = String::with_capacity(joined.len());
    let mut place = 0;
    for chunk in joined.utf8_chunks() {
        for (offset, character) in chunk.valid().char_indices() {
            places.push(place + offset);
            text.push(character);
        }
        place += chunk.valid().len();
        if !chunk.invalid().is_empty() {
            places.push(place);
            text.push(char::REPLACEMENT_CHARACTER);
            place += chunk.invalid().len();
        }
    }
    let mut characters = Vec::with_capacity(places.len());
    let mut place = places.iter();
    for (index, word) in split_words(&text).enumerate() {
        let blank = word.chars().all(char::is_whitespace);
        for (nth, character) in word.chars().enumerate() {
            let added = index == 0 && at_start;
            let hidden = nth == 0 && character == ' ' && (!blank || added);
            let start = place.next().copied().unwrap_or(joined.len());
            characters.push((start, (!hidden).then_some(character), index));
        }
    }
    let mut end = 0;
    let mut next = 0;
    let mut current = 0;
    // The word of the last token: its number in the text, and its number without words that begin inside a token.
    let (mut former, mut counted) = (0, first_word);
    for token in tokens {
        let start = end;
        end += token.len();
        let mut text = String::new();
        let mut of_first = current;
        while let Some(&(begin, shown, word)) = characters.get(next)
            && begin < end
        {
            // The word of a token is that of its first byte.
            if begin == start {
                of_first = word;
            }
            // Inside a token of several words a space is part of its text.
            text.extend(shown.or((begin > start).then_some(' ')));
            current = word;
            next += 1;
        }
        counted += usize::from(of_first != former);
        former = of_first;
        let word = counted;
        pieces.push(Piece { text, word });
    }
    counted + 1
}
