//! Tokens as they are shown: each with its text and the word it belongs to.

use super::subword::{EOS, Model, SPECIAL_TOKENS, SubwordTokenizer, UNK, position};
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

impl SubwordTokenizer {
    /// One [`Piece`] for each of `ids`, for the axes of an attention picture.
    ///
    /// Words are those of the decoded text (see [`split_words`]), not those of the tokens: what a
    /// model wrote as `ri` + `ding` is the one word `riding`.
    pub fn pieces(&self, ids: &[u32]) -> Vec<Piece> {
        match &self.model {
            Model::Bytes { bytes, .. } => byte_pieces(ids, bytes),
            Model::Words { .. } => ids
                .iter()
                .enumerate()
                .map(|(word, &id)| Piece {
                    text: self.token(id).unwrap_or_default().to_owned(),
                    word,
                })
                .collect(),
        }
    }
}

fn byte_pieces(ids: &[u32], bytes: &[Vec<u8>]) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(ids.len());
    let mut next_word = 0;
    let mut at_start = true;
    let is_special = |id: u32| position(id) < SPECIAL_TOKENS.len();
    for run in ids.chunk_by(|&a, &b| !is_special(a) && !is_special(b)) {
        if let [id] = run
            && is_special(*id)
        {
            let text = SPECIAL_TOKENS[position(*id)].to_owned();
            at_start |= *id <= EOS && *id != UNK;
            pieces.push(Piece {
                text,
                word: next_word,
            });
            next_word += 1;
            continue;
        }
        let tokens: Vec<&[u8]> = run
            .iter()
            .map(|&id| bytes.get(position(id)).map_or(&[][..], Vec::as_slice))
            .collect();
        next_word = text_pieces(&tokens, at_start, next_word, &mut pieces);
        at_start = false;
    }
    pieces
}

/// The pieces of a run of ordinary tokens; returns the index after its last word.
fn text_pieces(
    tokens: &[&[u8]],
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
    let mut words = 0;
    let mut place = places.iter();
    for (index, word) in split_words(&text).enumerate() {
        words = index + 1;
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
    for token in tokens {
        let start = end;
        end += token.len();
        let mut piece = Piece {
            text: String::new(),
            word: first_word + current,
        };
        while let Some(&(begin, shown, word)) = characters.get(next)
            && begin < end
        {
            // The word of a token is that of its first byte.
            if begin == start {
                piece.word = first_word + word;
            }
            piece.text.extend(shown);
            current = word;
            next += 1;
        }
        pieces.push(piece);
    }
    first_word + words.max(1)
}
