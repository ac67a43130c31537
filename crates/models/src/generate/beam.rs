//! Beam search over any [`Stepper`].

use std::{cmp::Ordering, rc::Rc};

use rayon::prelude::*;

use super::{BeamConfig, Stopping};
use crate::{generator::Stepper, vocabulary::Vocabulary};

/// One translation.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// The tokens, without `</s>`.
    pub tokens: Vec<u32>,
    /// The sum of log-probabilities, natural logarithm, `</s>` included.
    pub log_probability: f64,
    /// The score by which hypotheses are ranked.
    pub score: f64,
    /// One row of weights over the source per token, `</s>` included; empty without attention.
    pub weights: Vec<Vec<f32>>,
    /// False when the length limit cut it before `</s>`, or forced `</s>` upon it.
    pub finished: bool,
    /// The token that ended it, if one did.
    pub end: Option<u32>,
}

impl Hypothesis {
    /// The translation of an empty sentence.
    pub fn empty() -> Self {
        Self {
            tokens: vec![],
            log_probability: 0.0,
            score: 0.0,
            weights: vec![],
            finished: true,
            end: None,
        }
    }
}

/// A live hypothesis. It shares the list of its past tokens with the hypotheses that have the same beginning.
struct Beam {
    sentence: usize,
    log_probability: f64,
    history: Option<Rc<Node>>,
    /// The sum of the weights of each source position; empty without a coverage penalty.
    coverage: Vec<f32>,
}

struct Node {
    token: u32,
    weights: Vec<f32>,
    before: Option<Rc<Node>>,
}

impl Drop for Node {
    /// One node after the other: each within the last would take as many calls as the text has tokens.
    fn drop(&mut self) {
        let mut next = self.before.take();
        while let Some(node) = next {
            next = Rc::into_inner(node).and_then(|mut node| node.before.take());
        }
    }
}

struct Candidate {
    row: usize,
    token: u32,
    log_probability: f64,
}

/// Searches every sentence of a batch; `source_lengths` are the sources' lengths. The stepper starts
/// with one row per sentence. Gives each sentence's hypotheses, best first.
pub fn beam_search<S: Stepper + ?Sized>(
    stepper: &mut S,
    source_lengths: &[usize],
    config: &BeamConfig,
) -> Vec<Vec<Hypothesis>> {
    let width = config.size.max(1);
    let stopping = match width {
        1 => Stopping::Shrinking,
        _ => config.stopping,
    };
    let marks = stepper.vocabulary();
    let ends = stepper.ends();
    // How many candidates a sentence needs of which so many hypotheses have ended. A beam that keeps its width is whole even if
    // each of its hypotheses can end.
    let needed = |ended: usize| match stopping {
        Stopping::Shrinking => width - ended,
        _ => width.saturating_mul(1 + ends.len().max(1)),
    };
    let sentences = source_lengths.len();
    let mut finished: Vec<Vec<Hypothesis>> = (0..sentences).map(|_| vec![]).collect();
    let penalized = config.coverage_penalty != 0.0;
    let mut live: Vec<Beam> = source_lengths
        .iter()
        .enumerate()
        .map(|(sentence, &length)| Beam {
            sentence,
            log_probability: 0.0,
            history: None,
            coverage: vec![0.0; if penalized { length } else { 0 }],
        })
        .collect();
    let mut length = 0;
    let mut log_probabilities = vec![];
    while !live.is_empty() {
        length += 1;
        let previous: Vec<u32> = live
            .iter()
            .map(|beam| beam.history.as_ref().map_or(marks.start, |node| node.token))
            .collect();
        let weights = stepper.step(&previous, &mut log_probabilities);
        let vocabulary = log_probabilities.len() / live.len();
        let row_weights = |row: usize, length: usize| -> Vec<f32> {
            weights.as_ref().map_or_else(Vec::new, |weights| {
                let source = weights.len() / live.len();
                weights[row * source..row * source + length].to_vec()
            })
        };

        let likely = likely_tokens(&log_probabilities, vocabulary, &marks, |row| {
            let beam = &live[row];
            let forbidden = forbidden_tokens(beam, config.no_repeat_ngram);
            (needed(finished[beam.sentence].len()), forbidden)
        });
        let mut next: Vec<Beam> = vec![];
        let mut rows: Vec<usize> = vec![];
        let mut start = 0;
        while start < live.len() {
            let sentence = live[start].sentence;
            let end = start
                + live[start..]
                    .iter()
                    .take_while(|b| b.sentence == sentence)
                    .count();
            let limit = config.limit.tokens(source_lengths[sentence]);
            let last = length >= limit;
            let forced = config.forced_end.filter(|_| last).map(|id| vec![(id, 0.0)]);
            let mut candidates: Vec<Candidate> = vec![];
            for row in start..end {
                let likely = forced.as_ref().unwrap_or(&likely[row]);
                if likely.is_empty() {
                    finished[sentence].push(finish(&live[row], length - 1, config, &ends));
                }
                candidates.extend(likely.iter().map(|&(token, score)| Candidate {
                    row,
                    token,
                    log_probability: live[row].log_probability + f64::from(score),
                }));
            }
            candidates.sort_by(better);
            candidates.truncate(needed(finished[sentence].len()));
            let first = next.len();
            for (place, candidate) in candidates.into_iter().enumerate() {
                let ends_here = last || ends.contains(&candidate.token);
                // Those behind the width of the beam are there to go on with; they do not end.
                let full = match ends_here {
                    true => place >= width,
                    false => next.len() - first == width,
                };
                if full {
                    continue;
                }
                let parent = &live[candidate.row];
                let weights = row_weights(candidate.row, source_lengths[sentence]);
                let mut coverage = parent.coverage.clone();
                coverage
                    .iter_mut()
                    .zip(&weights)
                    .for_each(|(sum, w)| *sum += w);
                let beam = Beam {
                    sentence,
                    log_probability: candidate.log_probability,
                    history: Some(Rc::new(Node {
                        token: candidate.token,
                        weights,
                        before: parent.history.clone(),
                    })),
                    coverage,
                };
                if ends_here {
                    let ended = finish(&beam, length, config, &ends);
                    finished[sentence].push(Hypothesis {
                        finished: ended.finished && forced.is_none(),
                        ..ended
                    });
                } else {
                    rows.push(candidate.row);
                    next.push(beam);
                }
            }
            if stopping != Stopping::Shrinking {
                let (ended, best) = (&mut finished[sentence], next.get(first));
                if is_over(ended, best, [length, limit], config) {
                    next.truncate(first);
                    rows.truncate(first);
                }
            }
            start = end;
        }
        let same_sources = next.len() == live.len()
            && next
                .iter()
                .zip(&live)
                .all(|(a, b)| a.sentence == b.sentence);
        if !next.is_empty() {
            stepper.select(&rows, same_sources);
        }
        live = next;
    }
    for hypotheses in &mut finished {
        // The sort is stable, so ties keep the order of the search.
        hypotheses.sort_by(|a, b| {
            let by_end = match stopping {
                Stopping::Shrinking => b.finished.cmp(&a.finished),
                _ => Ordering::Equal,
            };
            by_end.then(b.score.total_cmp(&a.score))
        });
        hypotheses.truncate(config.n_best.clamp(1, width));
    }
    finished
}

/// Keeps as many of the best hypotheses that have `ended` as the beam is wide, and says whether that ends the search; `best` is the
/// likeliest that has not ended, after `length` tokens of at most `limit`.
fn is_over(
    ended: &mut Vec<Hypothesis>,
    best: Option<&Beam>,
    [length, limit]: [usize; 2],
    config: &BeamConfig,
) -> bool {
    ended.sort_by(|a, b| b.score.total_cmp(&a.score));
    ended.truncate(config.size);
    let (Some(best), Some(worst)) = (best, ended.get(config.size - 1)) else {
        return best.is_none();
    };
    let length = match config.stopping {
        Stopping::Early => return true,
        Stopping::Never if config.length_penalty > 0.0 => limit,
        _ => length,
    };
    config.rank(best.log_probability, length, &best.coverage) <= worst.score
}

/// Higher probability first; ties by row and token, so that the order is always the same.
fn better(a: &Candidate, b: &Candidate) -> Ordering {
    b.log_probability
        .total_cmp(&a.log_probability)
        .then(a.row.cmp(&b.row))
        .then(a.token.cmp(&b.token))
}

/// The likeliest tokens of every row. `of_row` says how many, and which are forbidden. Rows are shared out among threads.
fn likely_tokens(
    log_probabilities: &[f32],
    vocabulary: usize,
    marks: &Vocabulary,
    of_row: impl Fn(usize) -> (usize, Vec<u32>),
) -> Vec<Vec<(u32, f32)>> {
    // Waking a thread takes longer than a few rows.
    const ROWS_AT_ONCE: usize = 16;
    let rows = log_probabilities.chunks_exact(vocabulary.max(1));
    let asked: Vec<(usize, Vec<u32>)> = (0..rows.len()).map(of_row).collect();
    let rows: Vec<_> = rows.zip(&asked).collect();
    rows.par_iter()
        .with_min_len(ROWS_AT_ONCE)
        .map(|(scores, (count, forbidden))| best_tokens(scores, *count, forbidden, marks))
        .collect()
}

/// The `count` likeliest tokens that may be generated, best first; fewer if the others have no probability. None is left where every
/// token is forbidden and none ends a text.
fn best_tokens(
    scores: &[f32],
    count: usize,
    forbidden: &[u32],
    marks: &Vocabulary,
) -> Vec<(u32, f32)> {
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(count.min(scores.len()) + 1);
    for (token, &score) in scores.iter().enumerate() {
        let token = token as u32;
        if best.len() == count && best.last().is_some_and(|&(_, least)| score <= least) {
            continue;
        }
        if token == marks.padding
            || token == marks.start
            || score.is_nan()
            || score == f32::NEG_INFINITY
            || forbidden.contains(&token)
        {
            continue;
        }
        let place = best.partition_point(|&(_, other)| other >= score);
        best.insert(place, (token, score));
        best.truncate(count);
    }
    // If every token is forbidden, the end marker is allowed.
    if best.is_empty() {
        let end = scores.get(marks.end as usize);
        best.extend(end.map(|&score| (marks.end, score)));
    }
    best
}

/// Tokens that would complete an n-gram that the hypothesis already has.
fn forbidden_tokens(beam: &Beam, n: usize) -> Vec<u32> {
    match n {
        0 => vec![],
        n => repeating(&past(beam).0, n),
    }
}

/// Tokens that would complete an n-gram that `tokens` already have; none for n-grams of 0.
pub(crate) fn repeating(tokens: &[u32], n: usize) -> Vec<u32> {
    if n == 0 || tokens.len() + 1 < n {
        return vec![];
    }
    let suffix = &tokens[tokens.len() + 1 - n..];
    tokens
        .windows(n)
        .filter(|window| &window[..n - 1] == suffix)
        .map(|window| window[n - 1])
        .collect()
}

/// The tokens and weights of a hypothesis, in order.
fn past(beam: &Beam) -> (Vec<u32>, Vec<Vec<f32>>) {
    let (mut tokens, mut weights) = (vec![], vec![]);
    let mut node = beam.history.as_ref();
    while let Some(current) = node {
        tokens.push(current.token);
        weights.push(current.weights.clone());
        node = current.before.as_ref();
    }
    tokens.reverse();
    weights.reverse();
    (tokens, weights)
}

fn finish(beam: &Beam, length: usize, config: &BeamConfig, ends: &[u32]) -> Hypothesis {
    let (mut tokens, mut weights) = past(beam);
    let end = tokens.pop_if(|last| ends.contains(last));
    if weights.iter().all(Vec::is_empty) {
        weights.clear();
    }
    Hypothesis {
        tokens,
        log_probability: beam.log_probability,
        score: config.rank(beam.log_probability, length.max(1), &beam.coverage),
        weights,
        finished: end.is_some(),
        end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call for each of its tokens would overflow the stack.
    #[test]
    fn a_long_history_is_dropped() {
        let after = |before: Option<Rc<Node>>, token: u32| {
            Some(Rc::new(Node {
                token,
                weights: vec![],
                before,
            }))
        };
        let shared = (0..1000).fold(None, after);
        drop((1000..200_000).fold(shared.clone(), after));
        let beam = Beam {
            sentence: 0,
            log_probability: 0.0,
            history: shared,
            coverage: vec![],
        };
        let tokens: Vec<u32> = (0..1000).collect();
        assert_eq!(past(&beam).0, tokens);
    }
}
