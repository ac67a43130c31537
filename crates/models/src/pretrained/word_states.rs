//! The states of one word between the parts of a stack: what its vector is before and after each attention.

use std::{collections::BTreeMap, ops::Range};

use regard_kernels::{
    KernelError,
    stack::{Observer, Point, Seen, States},
};

/// Collects, at every point of every block, the mean of the states of a word's tokens. The first row of a batch is read.
#[derive(Debug, Clone, Default)]
pub struct WordStates {
    /// The word's tokens, as positions of the text.
    tokens: Vec<usize>,
    points: BTreeMap<(usize, Point), Mean>,
}

#[derive(Debug, Clone, Default)]
struct Mean {
    /// The positions that were seen so far: a long text comes in several passes.
    seen: usize,
    vector: Vec<f32>,
}

impl WordStates {
    /// Of the word at these positions.
    pub fn new(tokens: Vec<usize>) -> Self {
        Self {
            tokens,
            points: BTreeMap::new(),
        }
    }

    /// The vector at each point, by block and point.
    pub fn points(&self) -> impl Iterator<Item = (usize, Point, &[f32])> {
        let points = self.points.iter();
        points.map(|(&(layer, point), mean)| (layer, point, &mean.vector[..]))
    }
}

impl Observer for WordStates {
    fn wants(&self, _: usize, _: bool) -> bool {
        false
    }

    fn see(&mut self, _: Seen<'_>) -> Result<(), KernelError> {
        Ok(())
    }

    fn states(&mut self, states: States<'_>) -> Result<(), KernelError> {
        let count = states.counts.first().copied().unwrap_or(0);
        let total: usize = states.counts.iter().sum();
        let size = states.states.len() / total.max(1);
        let mean = self.points.entry((states.layer, states.point)).or_default();
        mean.vector.resize(size, 0.0);
        let here = mean.seen..mean.seen + count;
        mean.seen = here.end;
        let share = 1.0 / self.tokens.len() as f32;
        for token in self.tokens.iter().filter(|token| here.contains(token)) {
            let state = &states.states[(token - here.start) * size..][..size];
            let sum = mean.vector.iter_mut().zip(state);
            sum.for_each(|(sum, x)| *sum += x * share);
        }
        Ok(())
    }
}

/// Where `word` stands in `text` as a whole word, by bytes; whatever its case if it stands nowhere as it is written.
///
/// ```
/// use regard_models::pretrained::occurrences;
///
/// assert_eq!(occurrences("Embankment, bank", "bank"), [12..16]);
/// assert_eq!(occurrences("Bank or bench", "bank"), [0..4]);
/// ```
pub fn occurrences(text: &str, word: &str) -> Vec<Range<usize>> {
    let found = |same: &dyn Fn(&str) -> bool| -> Vec<Range<usize>> {
        let mut found: Vec<Range<usize>> = vec![];
        let starts = text.char_indices().map(|(at, _)| at);
        for start in starts {
            if found.last().is_some_and(|last| start < last.end) {
                continue;
            }
            let part = text.get(start..start.saturating_add(word.len()));
            let Some(part) = part.filter(|part| !part.is_empty() && same(part)) else {
                continue;
            };
            let letter = |c: char| c.is_alphanumeric() || c == '_';
            let end = start + part.len();
            let inside = |edge: Option<char>, next: Option<char>| {
                edge.is_some_and(letter) && next.is_some_and(letter)
            };
            let joined = inside(part.chars().next(), text[..start].chars().next_back())
                || inside(part.chars().next_back(), text[end..].chars().next());
            if !joined {
                found.push(start..end);
            }
        }
        found
    };
    let exact = found(&|part| part == word);
    match exact.is_empty() {
        true => {
            let lower = word.to_lowercase();
            found(&|part| part.to_lowercase() == lower)
        }
        false => exact,
    }
}
