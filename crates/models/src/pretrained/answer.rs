//! Answers that stand in a text, by the head for spans.
//!
//! ```text
//! p(i, j) = softmax(start)_i · softmax(end)_j       i <= j < i + longest, over the context's tokens and the first special token
//! ```
//! A long context is read in overlapping windows, each with the question before it. The score of an answer is the largest that a window
//! gives it; the score of there being no answer is the smallest that a window gives to its first special token (SQuAD 2, Rajpurkar et
//! al. 2018). As transformers' `QuestionAnsweringPipeline` had it until version 4, except that scores of one answer in several windows
//! are not added up, which made sums above 1.

use std::ops::Range;

use super::{
    encoder::Spans,
    error::PretrainedError,
    language_model::InputError,
    tokenizer::{Encoding, Tokenizer},
};
use crate::text::split_words;

/// A question and its context in windows that a model can read.
#[derive(Debug, Clone)]
pub struct ContextWindows {
    /// Question and context with the special tokens around them.
    whole: Encoding,
    /// The context's tokens in `whole`.
    context: Range<usize>,
    /// The most tokens of the context in a window.
    room: usize,
    step: usize,
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Its probability.
    pub score: f64,
    /// Its bytes in the context.
    pub range: Range<usize>,
    /// The window that found it.
    pub window: usize,
}

/// Answers from the windows read so far.
#[derive(Debug, Clone)]
pub struct Answers {
    longest: usize,
    top: usize,
    best: Vec<Answer>,
    no_answer: f64,
}

impl ContextWindows {
    /// Windows of at most `most` tokens, which share `overlap` tokens of the context with the one before.
    ///
    /// # Errors
    /// A question that leaves no room for the context, a tokenizer that fails.
    pub fn new(
        tokenizer: &Tokenizer,
        question: &str,
        context: &str,
        most: usize,
        overlap: usize,
    ) -> Result<Self, PretrainedError> {
        let whole = tokenizer.encode_pair(question, context)?;
        let tokens = whole.ids.len();
        let of_context = |text: &Option<usize>| *text == Some(1);
        let first = whole.texts.iter().position(of_context).unwrap_or(tokens);
        let last = whole.texts.iter().rposition(of_context);
        let end = last.map_or(first, |last| last + 1);
        let around = tokens - (end - first);
        if around >= most {
            return Err(InputError::Question {
                tokens: around,
                window: most,
            }
            .into());
        }
        let room = most - around;
        Ok(Self {
            whole,
            context: first..end,
            room,
            step: room.saturating_sub(overlap).max(1),
        })
    }

    /// How many there are: one at least, for an empty context too.
    pub fn count(&self) -> usize {
        let rest = self.context.len().saturating_sub(self.room);
        1 + rest.div_ceil(self.step)
    }

    /// One of them: question, a part of the context, special tokens.
    pub fn window(&self, number: usize) -> Encoding {
        let Range { start, end } = self.context;
        let first = (start + number * self.step).min(end);
        let part = first..first.saturating_add(self.room).min(end);
        self.whole
            .select((0..start).chain(part).chain(end..self.whole.ids.len()))
    }
}

impl Answers {
    /// None yet: at most `top`, of at most `longest` tokens each.
    pub fn new(top: usize, longest: usize) -> Self {
        Self {
            longest,
            top,
            best: vec![],
            no_answer: f64::INFINITY,
        }
    }

    /// Adds those of one window.
    pub fn add(&mut self, window: usize, encoding: &Encoding, spans: &Spans) {
        let tokens = encoding.ids.len();
        let first = encoding
            .texts
            .first()
            .is_some_and(Option::is_none)
            .then_some(0);
        let of_context = |at: &usize| encoding.texts[*at] == Some(1);
        let context: Vec<usize> = (0..tokens).filter(of_context).collect();
        let places: Vec<usize> = first.into_iter().chain(context).collect();
        let (start, end) = (softmax(&spans.start, &places), softmax(&spans.end, &places));
        let of = places.len() - usize::from(first.is_some());
        let before = places.len() - of;
        if before == 1 {
            self.no_answer = self.no_answer.min(start[0] * end[0]);
        }
        let mut found: Vec<Answer> = vec![];
        for i in before..places.len() {
            for j in i..places.len().min(i.saturating_add(self.longest)) {
                let score = start[i] * end[j];
                // Wider than asked for: several become one when they are extended to words.
                let enough = self.top.saturating_mul(2).saturating_add(10);
                if found.len() == enough && found[enough - 1].score >= score {
                    continue;
                }
                let at = found.partition_point(|answer| answer.score >= score);
                let range = words(encoding, places[i], places[j]);
                found.insert(
                    at,
                    Answer {
                        score,
                        range,
                        window,
                    },
                );
                found.truncate(enough);
            }
        }
        let mut merged: Vec<Answer> = vec![];
        for answer in found {
            match merged.iter_mut().find(|one| one.range == answer.range) {
                Some(one) => one.score += answer.score,
                None => merged.push(answer),
            }
        }
        for answer in merged {
            match self.best.iter_mut().find(|one| one.range == answer.range) {
                Some(one) if one.score < answer.score => *one = answer,
                Some(_) => {}
                None => self.best.push(answer),
            }
        }
        self.best.sort_by(|a, b| b.score.total_cmp(&a.score));
        self.best.truncate(self.top);
    }

    /// The best ones, best first.
    pub fn best(&self) -> &[Answer] {
        &self.best
    }

    /// The score of there being no answer; `None` for a tokenizer without a special token in front.
    pub fn no_answer(&self) -> Option<f64> {
        self.no_answer.is_finite().then_some(self.no_answer)
    }
}

/// The softmax of the numbers at `places`.
fn softmax(numbers: &[f32], places: &[usize]) -> Vec<f64> {
    let numbers = places.iter().map(|&at| f64::from(numbers[at]));
    let largest = numbers.clone().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = numbers.map(|x| (x - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// The bytes of the tokens from `first` to `last`, extended to whole words.
fn words(encoding: &Encoding, first: usize, last: usize) -> Range<usize> {
    let of = |word: usize, at: &usize| encoding.words[*at] == encoding.words[word];
    let start = (0..=first).rev().take_while(|at| of(first, at)).last();
    let end = (last..encoding.ids.len())
        .take_while(|at| of(last, at))
        .last();
    let start = encoding.offsets[start.unwrap_or(first)].start;
    start..encoding.offsets[end.unwrap_or(last)].end.max(start)
}

/// The bytes of the sentence around `range`: from behind a `.`, `!` or `?` with white space after it, or a blank line, to the next one; of a
/// longer one at most some hundred characters on either side.
///
/// ```
/// use regard_models::pretrained::sentence_around;
///
/// let text = "It was late. She sat on the bank of the river. Nobody came.";
/// let bank = text.find("bank").unwrap();
/// assert_eq!(&text[sentence_around(text, &(bank..bank + 4))], "She sat on the bank of the river.");
/// ```
pub fn sentence_around(text: &str, range: &Range<usize>) -> Range<usize> {
    let ends = |(at, word): (usize, &str)| {
        let after = &text[at + word.len()..];
        let spaced = after.is_empty() || after.starts_with(char::is_whitespace);
        let mark = word.trim_end_matches(['"', '\'', '”', '’', '»', ')', ']']);
        let closes =
            mark.ends_with(['.', '!', '?']) && spaced || mark.ends_with(['。', '！', '？']);
        (closes || word.matches('\n').count() > 1).then_some(at + word.len())
    };
    let (low, high) = reach(text, range);
    let mut at = low;
    let boundaries = split_words(&text[low..high]).filter_map(|word| {
        let place = at;
        at += word.len();
        ends((place, word))
    });
    let (mut start, mut end) = (low, high);
    for boundary in boundaries {
        match boundary {
            before if before <= range.start => start = before,
            after if after >= range.end => {
                end = after;
                break;
            }
            _ => {}
        }
    }
    let sentence = &text[start..end];
    let lead = sentence.len() - sentence.trim_start().len();
    start + lead.min(range.start - start)..end.min(start + sentence.trim_end().len()).max(range.end)
}

/// The bytes around `range` in which its sentence is looked for: whole words, as far as there are any.
fn reach(text: &str, range: &Range<usize>) -> (usize, usize) {
    const REACH: usize = 400;
    let low = text.floor_char_boundary(range.start.saturating_sub(REACH));
    let high = text.ceil_char_boundary(range.end.saturating_add(REACH).min(text.len()));
    let (before, after) = (&text[low..range.start], &text[range.end..high]);
    let skipped = match low {
        0 => None,
        _ => before.find(char::is_whitespace),
    };
    let kept = match high == text.len() {
        true => None,
        false => after.rfind(char::is_whitespace),
    };
    (
        low + skipped.unwrap_or(0),
        range.end + kept.unwrap_or(after.len()),
    )
}
