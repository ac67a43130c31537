//! sacrebleu's tokenisers, which decide what BLEU calls a word.
//!
//! | name | words are | where |
//! |---|---|---|
//! | `13a` | western words; punctuation split off except `.` and `,` inside numbers, entities decoded | mteval-v13a.pl, WMT; the default |
//! | `intl` | as mteval-v14.pl: every `\p{P}` split off unless between digits, every `\p{S}` split off | many scripts |
//! | `char` | every character that is not white space | Chinese, Japanese, any script |
//! | `none` | what white space separates | text that is tokenised already |
//!
//! All give one line in which white space separates the words, equal to sacrebleu 2.6.0's
//! (`intl` with the Unicode 18 categories of the `regex` package of 2026).
//!
//! ```
//! use regard_evaluate::Tokenizer;
//! assert_eq!(Tokenizer::Mteval13a.apply("It's 3,5 km, isn't it?"), "It's 3,5 km , isn't it ?");
//! assert_eq!(Tokenizer::International.apply("„Ja“, 3,5€"), "„ Ja “ , 3,5 €");
//! assert_eq!(Tokenizer::Character.apply("猫は。"), "猫 は 。");
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

use crate::EvaluateError;

/// A tokeniser of sacrebleu, by its name there (`13a`, `intl`, `char`, `none`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Tokenizer {
    /// `13a`: the tokenisation of mteval-v13a.pl, the default of sacrebleu and of WMT.
    #[default]
    #[serde(rename = "13a")]
    Mteval13a,
    /// `none`: the text is split at white space only.
    #[serde(rename = "none")]
    None,
    /// `intl`: the international tokenisation of mteval-v14.pl, by Unicode category.
    #[serde(rename = "intl")]
    International,
    /// `char`: every character is a word.
    #[serde(rename = "char")]
    Character,
}

impl Tokenizer {
    /// All tokenisers, the default first.
    pub const ALL: [Self; 4] = [
        Self::Mteval13a,
        Self::None,
        Self::International,
        Self::Character,
    ];

    /// The name in sacrebleu's options and signatures.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mteval13a => "13a",
            Self::None => "none",
            Self::International => "intl",
            Self::Character => "char",
        }
    }

    /// Tokenises one line: the words, separated by spaces (for `none` the line as it is).
    pub fn apply(self, line: &str) -> String {
        match self {
            Self::Mteval13a => join(&separate_western(&normalize_13a(line))),
            Self::None => line.to_owned(),
            Self::International => join(&separate_by_category(line)),
            Self::Character => {
                let mut spaced = String::with_capacity(2 * line.len());
                for (position, character) in line.chars().enumerate() {
                    if position > 0 {
                        spaced.push(' ');
                    }
                    spaced.push(character);
                }
                spaced
            }
        }
    }
}

impl fmt::Display for Tokenizer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Tokenizer {
    type Err = EvaluateError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|tokenizer| tokenizer.name() == name)
            .ok_or_else(|| EvaluateError::InvalidOption {
                option: "the tokeniser",
                given: name.to_owned(),
                expected: "one of `13a`, `none`, `intl`, `char`".to_owned(),
            })
    }
}

/// White space as Python's `str.split()` sees it: Unicode's, and the four information separators
/// U+001C to U+001F, which Unicode leaves out.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// The words of a line: what Python's `line.split()` returns.
pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(is_space).filter(|word| !word.is_empty())
}

fn join(line: &str) -> String {
    let mut joined = String::with_capacity(line.len());
    for word in words(line) {
        if !joined.is_empty() {
            joined.push(' ');
        }
        joined.push_str(word);
    }
    joined
}

/// The language-independent part of mteval-v13a.pl, and a space on both sides.
fn normalize_13a(line: &str) -> String {
    let mut line = format!(" {line} ");
    let mut replace = |from: &str, to: &str| {
        if line.contains(from) {
            line = line.replace(from, to);
        }
    };
    replace("<skipped>", "");
    replace("-\n", "");
    replace("\n", " ");
    // The order matters: `&amp;lt;` ends as `<`, as it does in sacrebleu.
    replace("&quot;", "\"");
    replace("&amp;", "&");
    replace("&lt;", "<");
    replace("&gt;", ">");
    line
}

/// The language-dependent part of mteval-v13a.pl: four substitutions, each over the whole line. As
/// with a regular expression's `sub`, none is applied again to the text that it has just written.
fn separate_western(line: &str) -> String {
    let is_stop = |character: &char| matches!(character, '.' | ',');

    let mut symbols = String::with_capacity(line.len() + 16);
    for character in line.chars() {
        if matches!(character,
            '{'..='~' | '['..='`' | ' '..='&' | '('..='+' | ':'..='@' | '/')
        {
            symbols.extend([' ', character, ' ']);
        } else {
            symbols.push(character);
        }
    }

    let mut after_non_digit = String::with_capacity(symbols.len() + 16);
    let mut characters = symbols.chars().peekable();
    while let Some(character) = characters.next() {
        after_non_digit.push(character);
        if !character.is_ascii_digit()
            && let Some(stop) = characters.next_if(is_stop)
        {
            after_non_digit.extend([' ', stop, ' ']);
        }
    }

    let mut before_non_digit = String::with_capacity(after_non_digit.len() + 16);
    let mut characters = after_non_digit.chars().peekable();
    while let Some(character) = characters.next() {
        if is_stop(&character)
            && let Some(next) = characters.next_if(|next| !next.is_ascii_digit())
        {
            before_non_digit.extend([' ', character, ' ', next]);
        } else {
            before_non_digit.push(character);
        }
    }

    let mut dashes = String::with_capacity(before_non_digit.len() + 16);
    let mut characters = before_non_digit.chars().peekable();
    while let Some(character) = characters.next() {
        dashes.push(character);
        if character.is_ascii_digit()
            && let Some(dash) = characters.next_if_eq(&'-')
        {
            dashes.extend([' ', dash, ' ']);
        }
    }
    dashes
}

/// The Unicode category. ASCII, which is most of a usual text, needs no table.
fn category(character: char) -> GeneralCategoryGroup {
    match character {
        'a'..='z' | 'A'..='Z' => GeneralCategoryGroup::Letter,
        '0'..='9' => GeneralCategoryGroup::Number,
        ' ' => GeneralCategoryGroup::Separator,
        '$' | '+' | '<' | '=' | '>' | '^' | '`' | '|' | '~' => GeneralCategoryGroup::Symbol,
        '!'..='~' => GeneralCategoryGroup::Punctuation,
        other => other.general_category_group(),
    }
}

/// The three substitutions of mteval-v14.pl's international tokenisation.
fn separate_by_category(line: &str) -> String {
    let is_number = |character: char| category(character) == GeneralCategoryGroup::Number;
    let is_punctuation = |character: char| category(character) == GeneralCategoryGroup::Punctuation;
    let is_symbol = |character: char| category(character) == GeneralCategoryGroup::Symbol;

    let mut after_non_number = String::with_capacity(line.len() + 16);
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        after_non_number.push(character);
        if !is_number(character)
            && let Some(mark) = characters.next_if(|&next| is_punctuation(next))
        {
            after_non_number.extend([' ', mark, ' ']);
        }
    }

    let mut before_non_number = String::with_capacity(after_non_number.len() + 16);
    let mut characters = after_non_number.chars().peekable();
    while let Some(character) = characters.next() {
        if is_punctuation(character)
            && let Some(next) = characters.next_if(|&next| !is_number(next))
        {
            before_non_number.extend([' ', character, ' ', next]);
        } else {
            before_non_number.push(character);
        }
    }

    let mut symbols = String::with_capacity(before_non_number.len() + 16);
    for character in before_non_number.chars() {
        if is_symbol(character) {
            symbols.extend([' ', character, ' ']);
        } else {
            symbols.push(character);
        }
    }
    symbols
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused() {
        for tokenizer in Tokenizer::ALL {
            assert_eq!(tokenizer.name().parse::<Tokenizer>().unwrap(), tokenizer);
            let json = serde_json::to_string(&tokenizer).unwrap();
            assert_eq!(json, format!("\"{tokenizer}\""));
        }
        let error = "moses".parse::<Tokenizer>().unwrap_err().to_string();
        assert!(error.contains("moses") && error.contains("intl"), "{error}");
    }

    #[test]
    fn entities_and_control_separators() {
        assert_eq!(
            Tokenizer::Mteval13a.apply("&amp;lt; &quot;a&quot;<skipped>"),
            "< \" a \""
        );
        assert_eq!(Tokenizer::Mteval13a.apply("a\u{1d}b\u{85}c"), "a b c");
        assert_eq!(
            Tokenizer::Mteval13a.apply("1.5, 10-12 ... U.S."),
            "1.5 , 10 - 12 . . . U . S ."
        );
    }

    #[test]
    fn ascii_categories_are_those_of_unicode() {
        for character in '\0'..='\u{ff}' {
            assert_eq!(
                category(character),
                character.general_category_group(),
                "{character:?}"
            );
        }
    }

    #[test]
    fn a_year_before_a_full_stop_keeps_it_in_intl() {
        assert_eq!(
            Tokenizer::International.apply("Im Jahr 1999."),
            "Im Jahr 1999."
        );
        assert_eq!(
            Tokenizer::Mteval13a.apply("Im Jahr 1999."),
            "Im Jahr 1999 ."
        );
    }
}
