//! How well a language model predicts a text.
//!
//! ```text
//! loss of token t = -ln p(x_t | x_b .. x_{t-1})     read from the text (teacher forcing), or from the model's own output (free running)
//! ```
//! A text longer than the model reads is scored in windows ([`Windows`]), each token once. What is summed of the losses, such as
//! the perplexity, is in `regard-evaluate`. Any model that gives logits can be scored: see [`CausalModel`].

use std::ops::Range;

use regard_kernels::{Kind, loss};

use crate::{generator::Stepper, pretrained::InputError};

/// A language model that reads from left to right.
pub trait CausalModel {
    /// The size of the vocabulary.
    fn vocabulary(&self) -> usize;

    /// The longest text, in tokens.
    fn context(&self) -> usize;

    /// Reads `text`, and gives the logits after each of its tokens from position `first` on, in several calls of
    /// `each(position, logits [positions, vocabulary])`.
    ///
    /// # Errors
    /// [`InputError`].
    fn predict(
        &self,
        text: &[u32],
        first: usize,
        each: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), InputError>;

    /// Reads texts, one a row, for steps after them, which give logits. Keys and values, if the model has any, are kept in `cache`.
    ///
    /// # Errors
    /// [`InputError`].
    fn read(&self, texts: &[&[u32]], cache: Kind) -> Result<Box<dyn Stepper + '_>, InputError>;

    /// As [`read`](Self::read); a model that takes its time for a long text tells how many tokens of all texts it has read.
    ///
    /// # Errors
    /// [`InputError`].
    fn read_telling(
        &self,
        texts: &[&[u32]],
        cache: Kind,
        _told: &mut dyn FnMut(usize),
    ) -> Result<Box<dyn Stepper + '_>, InputError> {
        self.read(texts, cache)
    }
}

/// How a token was predicted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// `-ln p`, in nats.
    pub loss: f64,
    /// Whether the token was the likeliest.
    pub correct: bool,
}

impl Prediction {
    /// Of `token`, by its `log_probabilities [vocabulary]`.
    fn of(token: u32, log_probabilities: &[f32]) -> Self {
        let loss = -f64::from(log_probabilities[token as usize]);
        Self {
            // Rounding can leave a certain token a little more than certain; what is not a number stays so.
            loss: if loss < 0.0 { 0.0 } else { loss },
            correct: likeliest(log_probabilities) == token,
        }
    }
}

/// The index of the largest number, the first of equals.
fn likeliest(numbers: &[f32]) -> u32 {
    let larger = |best: usize, at: usize| match numbers[at] > numbers[best] {
        true => at,
        false => best,
    };
    (1..numbers.len()).fold(0, larger) as u32
}

/// Windows of a long text: each reaches over at most `context` tokens, and begins `stride` tokens after the one before it. Each token
/// is scored once, by the first window that holds it, and so with at least `context - stride` tokens before it, or one; at the beginning
/// of the text with all that there are. The first token of the text is not scored.
///
/// With a stride below the context these are the windows of Hugging Face's "Perplexity of fixed-length models".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// The most tokens of a window, its last scored one included.
    pub context: usize,
    /// How far the next window moves, from 1 to `context`.
    pub stride: usize,
}

/// A part of a text: what is read, and what is scored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Positions that the model reads.
    pub read: Range<usize>,
    /// Positions that are scored: the last one stands after all that is read.
    pub scored: Range<usize>,
}

impl Windows {
    /// The windows of a text of `tokens` tokens; a stride outside its range counts as the nearest inside.
    pub fn of(self, tokens: usize) -> impl Iterator<Item = Window> {
        let context = self.context.max(1);
        let stride = self.stride.clamp(1, context);
        let mut done = 1.min(tokens);
        let begins = (0..tokens).step_by(stride);
        begins.filter_map(move |begin| {
            let end = begin.saturating_add(context).min(tokens);
            let scored = done..end;
            done = done.max(end);
            (!scored.is_empty()).then(|| Window {
                read: begin.min(scored.start - 1)..end - 1,
                scored,
            })
        })
    }
}

/// Scores every token of `text` but the first, in windows: `each(position, prediction)`, in order.
///
/// # Errors
/// [`InputError`] for a token outside the vocabulary, or windows that are longer than the model reads.
pub fn score(
    model: &dyn CausalModel,
    text: &[u32],
    windows: Windows,
    mut each: impl FnMut(usize, Prediction),
) -> Result<(), InputError> {
    for window in windows.of(text.len()) {
        window.score(model, text, &mut each)?;
    }
    Ok(())
}

impl Window {
    /// Scores the window's tokens of `text`: `each(position, prediction)`, in order.
    ///
    /// # Errors
    /// As [`score`].
    ///
    /// # Panics
    /// If the window is not one of the text.
    pub fn score(
        &self,
        model: &dyn CausalModel,
        text: &[u32],
        mut each: impl FnMut(usize, Prediction),
    ) -> Result<(), InputError> {
        let Self { read, scored } = self;
        let first = scored.start - read.start;
        teacher_forced(model, &text[read.start..scored.end], first, |at, found| {
            each(scored.start + at, found);
        })
    }
}

/// Scores the tokens of `text` from position `first` on, at least 1, each given the true ones before it: `each(position, prediction)`,
/// positions counted from `first`.
///
/// # Errors
/// [`InputError`].
pub fn teacher_forced(
    model: &dyn CausalModel,
    text: &[u32],
    first: usize,
    mut each: impl FnMut(usize, Prediction),
) -> Result<(), InputError> {
    let vocabulary = model.vocabulary();
    expect_known(text, vocabulary)?;
    let Some((_, read)) = text.split_last() else {
        return Ok(());
    };
    let before = first.max(1) - 1;
    model.predict(read, before, &mut |at, logits| {
        loss::log_softmax(logits, vocabulary);
        for (at, row) in (at..).zip(logits.chunks_exact(vocabulary)) {
            each(at - before, Prediction::of(text[at + 1], row));
        }
    })
}

/// Scores the tokens of `texts` from position `first` on, at least 1, while the model goes on from the tokens before them by its own
/// likeliest token at each step: `each(row, position, prediction)`, positions counted from `first`. The texts, one a row, are
/// scored as far as the shortest of them goes.
///
/// # Errors
/// [`InputError`].
pub fn free_running(
    model: &dyn CausalModel,
    texts: &[&[u32]],
    first: usize,
    mut each: impl FnMut(usize, usize, Prediction),
) -> Result<(), InputError> {
    let (vocabulary, context) = (model.vocabulary(), model.context());
    let length = texts.iter().map(|text| text.len()).min().unwrap_or(0);
    let first = first.max(1);
    for text in texts {
        expect_known(text, vocabulary)?;
    }
    if length <= first {
        return Ok(());
    }
    if length - 1 > context {
        let tokens = length - 1;
        return Err(InputError::Long { tokens, context });
    }
    let prompts: Vec<&[u32]> = texts.iter().map(|text| &text[..first - 1]).collect();
    let mut steps = model.read(&prompts, Kind::F32)?;
    let mut previous: Vec<u32> = texts.iter().map(|text| text[first - 1]).collect();
    let mut rows = vec![];
    for (position, at) in (first..length).enumerate() {
        steps.step(&previous, &mut rows);
        loss::log_softmax(&mut rows, vocabulary);
        for (row, log_probabilities) in rows.chunks_exact(vocabulary).enumerate() {
            previous[row] = likeliest(log_probabilities);
            let found = Prediction::of(texts[row][at], log_probabilities);
            each(row, position, found);
        }
    }
    Ok(())
}

fn expect_known(text: &[u32], vocabulary: usize) -> Result<(), InputError> {
    match text.iter().find(|&&id| id as usize >= vocabulary) {
        Some(&id) => Err(InputError::Token { id, vocabulary }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Window, Windows};

    #[test]
    fn every_token_but_the_first_is_scored_once() {
        for context in 1..9 {
            for stride in 1..=context {
                for tokens in 0..30 {
                    let mut next = 1;
                    for Window { read, scored } in (Windows { context, stride }).of(tokens) {
                        let case = format!("{context} {stride} {tokens} {read:?} {scored:?}");
                        assert_eq!(scored.start, next, "{case}");
                        assert!(
                            read.len() <= context && read.end + 1 == scored.end,
                            "{case}"
                        );
                        let least = (context - stride).max(1).min(scored.start);
                        assert!(scored.start - read.start >= least, "{case}");
                        next = scored.end;
                    }
                    assert_eq!(next, tokens.max(1), "{context} {stride} {tokens}");
                }
            }
        }
    }
}
