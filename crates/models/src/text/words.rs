//! Splits text into words: tokens are learned inside words, and merged into words for display.
//!
//! A word is a run of letters (with their combining marks), a run of digits, or a run of other
//! visible characters, together with one space in front of it; an apostrophe before a short
//! ending (`'s`, `'re`, `'ll`) goes with the ending. White space that no word takes is a word of
//! its own. The pieces always join to the text they were cut from.

/// Words are cut at this many characters, so that a line without any space costs linear time.
const LONGEST_WORD: usize = 100;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Space,
    Letter,
    Digit,
    Other,
}

fn class(character: char) -> Class {
    use unicode_properties::{GeneralCategory as G, UnicodeGeneralCategory as _};
    if character.is_ascii_alphabetic() {
        return Class::Letter;
    }
    if character.is_whitespace() {
        return Class::Space;
    }
    if character.is_ascii() && !character.is_ascii_digit() {
        return Class::Other;
    }
    match character.general_category() {
        G::NonspacingMark | G::SpacingMark | G::EnclosingMark | G::Format => Class::Letter,
        _ if character.is_numeric() => Class::Digit,
        _ if character.is_alphabetic() => Class::Letter,
        _ => Class::Other,
    }
}

/// The words of `text`, in order; joined they are `text` again.
///
/// ```
/// use regard_models::text::split_words;
/// let words: Vec<&str> = split_words("It's 12 o'clock,  Zoë!").collect();
/// assert_eq!(words, ["It", "'s", " 12", " o", "'", "clock", ",", " ", " Zoë", "!"]);
/// ```
pub fn split_words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (word, tail) = rest.split_at(first_word_length(rest));
        rest = tail;
        Some(word)
    })
}

fn first_word_length(text: &str) -> usize {
    let body = text.strip_prefix(' ').unwrap_or(text);
    let lead = text.len() - body.len();
    match body.chars().next() {
        None => text.len(),
        Some(first) if class(first) == Class::Space => space_length(text),
        Some(first) => {
            let kind = class(first);
            let apostrophe = matches!(first, '\'' | '’') && lead == 0;
            if apostrophe && let Some(ending) = short_ending(&body[first.len_utf8()..]) {
                return first.len_utf8() + ending;
            }
            lead + run_length(body, kind)
        }
    }
}

/// White space up to the last space, which belongs to the word that follows.
fn space_length(text: &str) -> usize {
    let run = run_length(text, Class::Space);
    let cut_short = text[run..]
        .chars()
        .next()
        .is_none_or(|next| class(next) == Class::Space);
    if !cut_short && run > 1 && text[..run].ends_with(' ') {
        run - 1
    } else {
        run
    }
}

fn run_length(text: &str, kind: Class) -> usize {
    text.char_indices()
        .enumerate()
        .find(|&(count, (_, character))| count == LONGEST_WORD || class(character) != kind)
        .map_or(text.len(), |(_, (offset, _))| offset)
}

/// The length of an ending of one or two letters, if no further letter follows it.
fn short_ending(text: &str) -> Option<usize> {
    let end = text
        .char_indices()
        .take(3)
        .find(|&(_, character)| class(character) != Class::Letter)
        .map_or(text.len(), |(offset, _)| offset);
    let letters = text[..end].chars().count();
    (1..=2).contains(&letters).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<&str> {
        split_words(text).collect()
    }

    #[test]
    fn spaces_go_with_the_word_that_follows() {
        assert_eq!(words("A man"), ["A", " man"]);
        assert_eq!(words(" A   man \n"), [" A", "  ", " man", " \n"]);
        assert_eq!(words("a\n b"), ["a", "\n", " b"]);
        assert_eq!(words("a\u{a0}b\tc"), ["a", "\u{a0}", "b", "\t", "c"]);
        assert_eq!(words("  "), ["  "]);
        assert!(words("").is_empty());
    }

    #[test]
    fn classes_separate() {
        assert_eq!(words("T-Shirt 3x."), ["T", "-", "Shirt", " 3", "x", "."]);
        assert_eq!(
            words("we’re dogs' 'em"),
            ["we", "’re", " dogs", "'", " '", "em"]
        );
        assert_eq!(words("हिन्दी में"), ["हिन्दी", " में"]);
        assert_eq!(words("骑自行车。"), ["骑自行车", "。"]);
    }

    #[test]
    fn a_line_without_spaces_is_cut() {
        let line = "x".repeat(1_000);
        assert_eq!(words(&line).len(), 10);
        let blank = " ".repeat(1_000);
        assert_eq!(words(&blank).concat(), blank);
    }

    proptest! {
        #[test]
        fn pieces_join_to_the_text(text in "\\PC*|(?s:.*)") {
            let pieces = words(&text);
            prop_assert!(pieces.iter().all(|piece| !piece.is_empty()));
            prop_assert_eq!(pieces.concat(), text);
        }
    }
}
