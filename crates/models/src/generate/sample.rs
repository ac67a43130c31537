//! Sampling over any [`Stepper`]: greedy, or drawn from the likeliest tokens.
//!
//! The scores of the next token pass these steps, in this order, each of which can be off:
//! 1. the repetition penalty θ (Keskar et al. 2019, CTRL): the score of a token that has occurred is divided by θ if it is positive
//!    and multiplied by θ if it is negative;
//! 2. the temperature T: scores are divided by T; with T = 0 the likeliest token is taken (greedy);
//! 3. top-k (Fan et al. 2018): the k likeliest tokens stay;
//! 4. top-p (Holtzman et al. 2020): the fewest of the likeliest tokens stay whose probabilities sum to at least p;
//! 5. min-p (Nguyen et al. 2024): tokens at least p times as likely as the likeliest one stay.
//!
//! Then one token is drawn. Of equally likely tokens the one with the smaller id counts as likelier. All but the penalty give the
//! same for logits as for log-probabilities, so a stepper may give either; the penalty of other libraries is defined over logits.
//!
//! Draws are those of ChaCha12 (Bernstein 2008) from a seed, with a stream for each row: a row draws the same tokens whatever other
//! rows are in the batch.

use std::{cmp::Ordering, ops::ControlFlow};

use rand_chacha::{
    ChaCha12Rng,
    rand_core::{RngCore, SeedableRng},
};

use crate::generator::Stepper;

/// How tokens are drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleConfig {
    /// Divides the scores: below 1 likely tokens become likelier; 0 takes the likeliest.
    pub temperature: f64,
    /// How many of the likeliest tokens stay; 0 keeps all.
    pub top_k: usize,
    /// The probability that the tokens that stay have at least in sum; 1 keeps all.
    pub top_p: f64,
    /// How likely a token must be at least, as a fraction of the likeliest; 0 keeps all.
    pub min_p: f64,
    /// Makes tokens of the prompt and of what was generated less likely if it is above 1, and likelier below.
    pub repetition_penalty: f64,
    /// Where the draws begin.
    pub seed: u64,
    /// Tokens that end a row. They are not part of it.
    pub stop: Vec<u32>,
    /// The most tokens of a row.
    pub limit: usize,
}

impl Default for SampleConfig {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            stop: vec![],
            limit: 256,
        }
    }
}

impl SampleConfig {
    /// Takes the likeliest token each time.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// Checks the ranges of all settings.
    ///
    /// # Errors
    /// [`SampleError::Setting`].
    pub fn check(&self) -> Result<(), SampleError> {
        let settings: [(_, f64, bool, _); 4] = [
            (
                "temperature",
                self.temperature,
                self.temperature >= 0.0,
                "at least 0",
            ),
            (
                "top_p",
                self.top_p,
                self.top_p > 0.0 && self.top_p <= 1.0,
                "above 0 and at most 1",
            ),
            (
                "min_p",
                self.min_p,
                (0.0..=1.0).contains(&self.min_p),
                "0 to 1",
            ),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0,
                "above 0",
            ),
        ];
        let wrong = settings
            .iter()
            .find(|(_, value, good, _)| !good || !value.is_finite());
        match wrong {
            None => Ok(()),
            Some(&(name, found, _, expected)) => Err(SampleError::Setting {
                name,
                found,
                expected,
            }),
        }
    }
}

/// Where a row begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Its tokens. The stepper has read all but the last of them.
    pub tokens: Vec<u32>,
    /// Which of the seed's streams of random numbers it draws from: rows with the same prompt and another stream differ.
    pub stream: u64,
}

/// A row that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The tokens after the prompt, without the one that ended the row.
    pub tokens: Vec<u32>,
    /// The sum of the stepper's scores of these tokens and of the one that ended the row: its log-probability, if the stepper
    /// gives log-probabilities, before any of the settings.
    pub log_probability: f64,
    /// What ended it.
    pub end: SampleEnd,
}

/// What ended a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleEnd {
    /// One of [`SampleConfig::stop`].
    Stop(u32),
    /// [`SampleConfig::limit`].
    Limit,
    /// Who was told of its tokens.
    Caller,
}

/// Why nothing can be drawn.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// A setting is outside of its range.
    #[error("{name}: found {found}; expected {expected}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// Its value.
        found: f64,
        /// Its range.
        expected: &'static str,
    },
    /// A prompt has no tokens.
    #[error(
        "prompt {row} is empty; expected at least one token, such as the one that starts a text"
    )]
    EmptyPrompt {
        /// Its place among the prompts.
        row: usize,
    },
    /// The model gave a score that is NaN or +∞.
    #[error(
        "row {row}: the model gives token {token} the score {score}; its weights may be damaged"
    )]
    Score {
        /// The row.
        row: usize,
        /// The token.
        token: usize,
        /// The score.
        score: f32,
    },
    /// The model gave every token the probability 0.
    #[error(
        "row {row}: the model gives no token a probability above 0; its weights may be damaged"
    )]
    NoToken {
        /// The row.
        row: usize,
    },
}

/// Continues `prompts`, one row of the stepper each, until every row has ended. `each` is told of every new token with the place of
/// its prompt, and may end the row; the token that it was told of stays part of it.
///
/// # Errors
/// [`SampleError`].
pub fn sample<S: Stepper + ?Sized>(
    stepper: &mut S,
    prompts: &[Prompt],
    config: &SampleConfig,
    mut each: impl FnMut(usize, u32) -> ControlFlow<()>,
) -> Result<Vec<Sampled>, SampleError> {
    config.check()?;
    let begin = |(row, prompt): (usize, &Prompt)| match prompt.tokens.last() {
        Some(&last) => Ok(Row::new(row, last, prompt, config)),
        None => Err(SampleError::EmptyPrompt { row }),
    };
    let mut live: Vec<Row> = prompts
        .iter()
        .enumerate()
        .map(begin)
        .collect::<Result<_, _>>()?;
    let mut ended: Vec<Option<Sampled>> = vec![None; prompts.len()];
    let (mut scores, mut candidates) = (vec![], vec![]);
    if config.limit == 0 {
        for row in live.drain(..) {
            row.end(SampleEnd::Limit, &mut ended);
        }
    }
    while !live.is_empty() {
        let previous: Vec<u32> = live.iter().map(|row| row.last).collect();
        stepper.step(&previous, &mut scores);
        if scores.len() < live.len() {
            return Err(SampleError::NoToken { row: live[0].place });
        }
        let vocabulary = scores.len() / live.len();
        let (rows, mut next) = (live.len(), vec![]);
        let (mut kept, each_scores) = (vec![], scores.chunks_exact_mut(vocabulary));
        for (place, (mut row, scores)) in live.into_iter().zip(each_scores).enumerate() {
            let end = row.advance(scores, config, &mut candidates, &mut each)?;
            match end {
                Some(end) => row.end(end, &mut ended),
                None => {
                    kept.push(place);
                    next.push(row);
                }
            }
        }
        live = next;
        if !live.is_empty() && kept.len() < rows {
            stepper.select(&kept, false);
        }
    }
    Ok(ended.into_iter().flatten().collect())
}

/// A row that has not ended.
struct Row {
    place: usize,
    last: u32,
    random: ChaCha12Rng,
    /// The tokens that have occurred, each once, if there is a penalty on them.
    seen: Vec<u32>,
    tokens: Vec<u32>,
    log_probability: f64,
}

impl Row {
    fn new(place: usize, last: u32, prompt: &Prompt, config: &SampleConfig) -> Self {
        let mut random = ChaCha12Rng::seed_from_u64(config.seed);
        random.set_stream(prompt.stream);
        let mut seen = prompt.tokens.clone();
        seen.sort_unstable();
        seen.dedup();
        Self {
            place,
            last,
            random,
            seen,
            tokens: vec![],
            log_probability: 0.0,
        }
    }

    /// Draws a token; gives what ends the row, if it ends.
    fn advance(
        &mut self,
        scores: &mut [f32],
        config: &SampleConfig,
        candidates: &mut Vec<Candidate>,
        each: &mut impl FnMut(usize, u32) -> ControlFlow<()>,
    ) -> Result<Option<SampleEnd>, SampleError> {
        let row = self.place;
        if let Some(token) = scores
            .iter()
            .position(|&score| score.is_nan() || score == f32::INFINITY)
        {
            let score = scores[token];
            return Err(SampleError::Score { row, token, score });
        }
        // The stepper's own scores of the tokens that the penalty changes.
        let own: Vec<f32> = match config.repetition_penalty == 1.0 {
            true => vec![],
            false => penalize(scores, &self.seen, config.repetition_penalty),
        };
        let drawn = if config.temperature == 0.0 {
            likeliest(scores)
        } else {
            let uniform = uniform(&mut self.random);
            draw(scores, config, candidates, uniform)
        };
        let token = drawn.ok_or(SampleError::NoToken { row })?;
        let seen = self.seen.binary_search(&token);
        let changed = seen.ok().and_then(|place| own.get(place));
        self.log_probability += f64::from(*changed.unwrap_or(&scores[token as usize]));
        if config.stop.contains(&token) {
            return Ok(Some(SampleEnd::Stop(token)));
        }
        if let Err(place) = seen {
            self.seen.insert(place, token);
        }
        self.last = token;
        self.tokens.push(token);
        if each(self.place, token).is_break() {
            return Ok(Some(SampleEnd::Caller));
        }
        Ok((self.tokens.len() >= config.limit).then_some(SampleEnd::Limit))
    }

    fn end(self, end: SampleEnd, ended: &mut [Option<Sampled>]) {
        ended[self.place] = Some(Sampled {
            tokens: self.tokens,
            log_probability: self.log_probability,
            end,
        });
    }
}

/// A token that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    token: u32,
    score: f64,
}

impl Candidate {
    /// The likelier first; of equally likely ones the smaller id.
    fn order(&self, other: &Self) -> Ordering {
        let by_score = other.score.total_cmp(&self.score);
        by_score.then(self.token.cmp(&other.token))
    }
}

/// A number in [0, 1), of 53 bits.
fn uniform(random: &mut ChaCha12Rng) -> f64 {
    (random.next_u64() >> 11) as f64 * f64::powi(2.0, -53)
}

/// The token with the highest score above -∞; of several the first.
fn likeliest(scores: &[f32]) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (token, &score) in scores.iter().enumerate() {
        if score > best.map_or(f32::NEG_INFINITY, |(_, best)| best) {
            best = Some((token, score));
        }
    }
    best.map(|(token, _)| token as u32)
}

/// The token that `uniform` in [0, 1) draws, if any has a score above -∞.
fn draw(
    scores: &[f32],
    config: &SampleConfig,
    candidates: &mut Vec<Candidate>,
    uniform: f64,
) -> Option<u32> {
    candidates.clear();
    candidates.extend(temper(scores, config.temperature));
    if config.top_k > 0 {
        top_k(candidates, config.top_k);
    }
    if config.top_p < 1.0 {
        top_p(candidates, config.top_p);
    }
    if config.min_p > 0.0 {
        min_p(candidates, config.min_p);
    }
    pick(candidates, uniform)
}

/// CTRL's penalty on the tokens `seen`. Gives their scores before it.
pub(crate) fn penalize(scores: &mut [f32], seen: &[u32], penalty: f64) -> Vec<f32> {
    let mut own = Vec::with_capacity(seen.len());
    for &token in seen {
        // A prompt may have tokens that the model never writes.
        let mut none = f32::NEG_INFINITY;
        let score = scores.get_mut(token as usize).unwrap_or(&mut none);
        own.push(*score);
        if score.is_finite() {
            let value = f64::from(*score);
            let value = if value < 0.0 {
                value * penalty
            } else {
                value / penalty
            };
            *score = (value as f32).clamp(f32::MIN, f32::MAX);
        }
    }
    own
}

/// The tokens with a score above -∞, their scores divided by `temperature`.
fn temper(scores: &[f32], temperature: f64) -> impl Iterator<Item = Candidate> {
    // Differences from the highest stay finite at any temperature.
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let possible = scores
        .iter()
        .zip(0..)
        .filter(|(score, _)| **score > f32::NEG_INFINITY);
    possible.map(move |(score, token)| Candidate {
        token,
        score: (f64::from(*score) - f64::from(highest)) / temperature,
    })
}

/// Keeps the `k` likeliest, in order.
fn top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k, Candidate::order);
        candidates.truncate(k);
    }
    candidates.sort_unstable_by(Candidate::order);
}

/// Keeps the fewest of the likeliest whose probabilities sum to at least `p`, in order; one at least.
fn top_p(candidates: &mut Vec<Candidate>, p: f64) {
    let highest = highest(candidates);
    let weight = |candidate: &Candidate| libm::exp(candidate.score - highest);
    let total: f64 = candidates.iter().map(weight).sum();
    // All tokens below this have together less than 1 - p: they are behind those that stay and need no sorting. The factor leaves
    // room for rounding.
    let least = libm::log(0.5 * (1.0 - p) * total / candidates.len() as f64);
    candidates.retain(|candidate| candidate.score - highest >= least);
    candidates.sort_unstable_by(Candidate::order);
    let mut sum = 0.0;
    let enough = candidates.iter().position(|candidate| {
        sum += weight(candidate);
        sum >= p * total
    });
    candidates.truncate(enough.map_or(candidates.len(), |last| last + 1));
}

/// Keeps those at least `p` times as likely as the likeliest.
fn min_p(candidates: &mut Vec<Candidate>, p: f64) {
    let least = highest(candidates) + libm::log(p);
    candidates.retain(|candidate| candidate.score >= least);
}

/// The candidate on which `uniform` falls, if they are laid side by side, each as wide as it is likely.
fn pick(candidates: &mut [Candidate], uniform: f64) -> Option<u32> {
    let highest = highest(candidates);
    // From here on scores are widths.
    let mut total = 0.0;
    for candidate in &mut *candidates {
        candidate.score = libm::exp(candidate.score - highest);
        total += candidate.score;
    }
    let (target, mut sum) = (uniform * total, 0.0);
    let found = candidates.iter().find(|candidate| {
        sum += candidate.score;
        sum > target
    });
    // Rounding may leave the target at the end of the last.
    let last = || candidates.iter().rfind(|candidate| candidate.score > 0.0);
    found.or_else(last).map(|candidate| candidate.token)
}

fn highest(candidates: &[Candidate]) -> f64 {
    let scores = candidates.iter().map(|candidate| candidate.score);
    scores.fold(f64::NEG_INFINITY, f64::max)
}

#[cfg(test)]
#[path = "sample_tests.rs"]
mod tests;
