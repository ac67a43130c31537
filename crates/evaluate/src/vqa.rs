//! Answers to questions about images, judged by the answers of people.
//!
//! ```text
//! accuracy = mean over the people i of min(people but i who gave this answer / 3, 1)      (Antol et al. 2015, Goyal et al. 2017)
//! ```
//!
//! As in the official evaluation (github.com/GT-Vision-Lab/VQA, `vqaEval.py` of `c4e6a0e`) the answer is compared after
//! [`normalize_answer`], those of people without punctuation where they disagree, and as they are where all said the same: the data set
//! has them in lower case, with digits and without articles. Of its list of contractions those of "not" are here.

use std::borrow::Cow;

/// So many people who gave an answer make it right.
const AGREED: f64 = 3.0;

const PUNCTUATION: [char; 21] = [
    ';', '/', '[', ']', '"', '{', '}', '(', ')', '=', '+', '\\', '_', '-', '>', '<', '@', '`', ',',
    '?', '!',
];

const ARTICLES: [&str; 3] = ["a", "an", "the"];

const NUMBERS: [(&str, &str); 12] = [
    ("none", "0"),
    ("zero", "0"),
    ("one", "1"),
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
    ("ten", "10"),
];

/// The accuracy of `answer` by the answers of `people`, 0 to 1; where there is only one, whether they are equal.
///
/// ```
/// use regard_evaluate::vqa_accuracy;
///
/// let people: Vec<String> = ["red"; 2].into_iter().chain(["pink"; 8]).map(str::to_owned).collect();
/// assert_eq!(vqa_accuracy("pink", &people), 1.0);
/// // Without one of the two, one is left of the three that are needed; without another, two.
/// assert!((vqa_accuracy("red", &people) - (2.0 * 1.0 / 3.0 + 8.0 * 2.0 / 3.0) / 10.0).abs() < 1e-12);
/// ```
pub fn vqa_accuracy(answer: &str, people: &[String]) -> f64 {
    let answer = normalize_answer(answer);
    let agree = people.windows(2).all(|pair| pair[0] == pair[1]);
    let given = people.iter().filter(|person| match agree {
        true => **person == answer,
        false => without_punctuation(person) == answer,
    });
    let (given, all) = (given.count(), people.len());
    if all < 2 {
        return given as f64;
    }
    let without = |left_out: usize| ((given - left_out) as f64 / AGREED).min(1.0);
    let mut sum = (all - given) as f64 * without(0);
    if given > 0 {
        sum += given as f64 * without(1);
    }
    sum / all as f64
}

/// What a model should say of an answer that `given` of `people` gave: `min(given / 3, 1)`, of fewer than three people their share.
pub fn vqa_target(given: usize, people: usize) -> f64 {
    (given as f64 / AGREED.min(people.max(1) as f64)).min(1.0)
}

/// An answer without what may differ between people who mean the same: in lower case, without punctuation and articles, numbers to ten as
/// digits, contractions with their apostrophe.
///
/// ```
/// use regard_evaluate::normalize_answer;
///
/// assert_eq!(normalize_answer("The Two dogs, (left)."), "2 dogs left");
/// ```
pub fn normalize_answer(answer: &str) -> String {
    let text = without_punctuation(answer.replace(['\n', '\t'], " ").trim());
    let words = text.split_whitespace().map(|word| {
        let word = word.to_lowercase();
        let number = NUMBERS.iter().find(|(name, _)| *name == word);
        number.map_or(word, |(_, digits)| (*digits).to_owned())
    });
    let words = words.filter(|word| !ARTICLES.contains(&word.as_str()));
    let words = words.map(|word| contraction(&word).into_owned());
    words.collect::<Vec<_>>().join(" ")
}

/// Punctuation at the edge of a word goes, so does all of it in a text with a comma between digits; elsewhere a space takes its place.
fn without_punctuation(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let digit = |place: Option<&char>| place.is_some_and(char::is_ascii_digit);
    let thousands = letters
        .windows(3)
        .any(|three| three[1] == ',' && digit(three.first()) && digit(three.last()));
    let mut out = text.to_owned();
    for mark in PUNCTUATION {
        let edge = text.contains(&format!("{mark} ")) || text.contains(&format!(" {mark}"));
        out = match edge || thousands {
            true => out.replace(mark, ""),
            false => out.replace(mark, " "),
        };
    }
    let letters: Vec<char> = out.chars().collect();
    let kept = letters.iter().enumerate();
    // A point before a digit is part of a number.
    let kept = kept.filter(|&(place, &letter)| letter != '.' || digit(letters.get(place + 1)));
    kept.map(|(_, letter)| letter).collect()
}

/// Verbs before "not", whose contraction is often written without its apostrophe.
const BEFORE_NOT: [&str; 18] = [
    "ai", "are", "ca", "could", "did", "does", "do", "had", "has", "have", "is", "might", "must",
    "need", "was", "were", "wo", "would",
];

/// "dont" as "don't".
fn contraction(word: &str) -> Cow<'_, str> {
    match word.strip_suffix("nt") {
        Some(verb) if BEFORE_NOT.contains(&verb) => Cow::Owned(format!("{verb}n't")),
        _ => Cow::Borrowed(word),
    }
}
