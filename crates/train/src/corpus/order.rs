//! Which pairs go into which batch, and in what order.
//!
//! Pairs are shuffled and cut into pools. Each pool is sorted by length, in turn upwards and
//! downwards, so that lengths are alike across the border of two pools too. The whole list is cut into
//! batches, and these are shuffled. With one pool for the corpus the batches need least padding;
//! with small pools their composition is more random, and a pool of 1 does not sort at all.

use super::error::CorpusError;
use super::filter::EncodedPair;
use super::random::Random;

/// How large a batch may be. At least one of the two limits must be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Most padded positions: pairs times the longer of the longest source and the longest
    /// target, markers included. A pair that is longer than the budget is a batch by itself.
    pub tokens: Option<usize>,
    /// Most pairs.
    pub sentences: Option<usize>,
    /// Pairs that are sorted by length together.
    pub pool: usize,
}

impl Default for Budget {
    /// No limit yet, pools of 6,400 pairs.
    fn default() -> Self {
        Self {
            tokens: None,
            sentences: None,
            pool: 6_400,
        }
    }
}

/// The batches of a corpus, epoch after epoch.
#[derive(Debug, Clone)]
pub struct Batches {
    /// The lengths of source and target of each pair, their markers included.
    lengths: Vec<(usize, usize)>,
    budget: Budget,
}

impl Batches {
    /// Plans batches of `pairs`.
    ///
    /// # Errors
    /// [`CorpusError::Setting`] if the budget has no limit, or one of 0.
    pub fn new(pairs: &[EncodedPair], budget: Budget) -> Result<Self, CorpusError> {
        let lengths = pairs
            .iter()
            .map(|pair| (pair.source.len() + 1, pair.target.len() + 1));
        Self::of_lengths(lengths.collect(), budget)
    }

    /// Plans batches for which only the sources' lengths count.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_sources(pairs: &[EncodedPair], budget: Budget) -> Result<Self, CorpusError> {
        let lengths = pairs.iter().map(|pair| (pair.source.len() + 1, 0));
        Self::of_lengths(lengths.collect(), budget)
    }

    /// Plans batches of examples by the lengths of their sources and targets.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_lengths(lengths: Vec<(usize, usize)>, budget: Budget) -> Result<Self, CorpusError> {
        let refuse = |field, problem: &str| CorpusError::Setting {
            field,
            problem: problem.to_owned(),
        };
        if budget.tokens.is_none() && budget.sentences.is_none() {
            return Err(refuse(
                "batch",
                "neither tokens nor sentences is set; set one of them",
            ));
        }
        if budget.tokens == Some(0) {
            return Err(refuse("batch.tokens", "0 found, expected at least 1"));
        }
        if budget.sentences == Some(0) {
            return Err(refuse("batch.sentences", "0 found, expected at least 1"));
        }
        if budget.pool == 0 {
            return Err(refuse("batch.pool", "0 found, expected at least 1"));
        }
        Ok(Self { lengths, budget })
    }

    /// How many pairs there are.
    pub fn len(&self) -> usize {
        self.lengths.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    /// The batches of an epoch, each as indices of pairs; every pair is in exactly one.
    ///
    /// Depends on nothing but the pairs' lengths, the budget, `seed` and `epoch`.
    pub fn epoch(&self, seed: u64, epoch: u64) -> Vec<Vec<usize>> {
        let mut random = Random::new(&[seed, epoch]);
        let mut order: Vec<usize> = (0..self.lengths.len()).collect();
        random.shuffle(&mut order);
        for (nth, pool) in order.chunks_mut(self.budget.pool).enumerate() {
            // A stable sort: equal lengths stay in shuffled order.
            pool.sort_by_key(|&pair| {
                let (source, target) = self.lengths[pair];
                (source.max(target), source, target)
            });
            if nth % 2 == 1 {
                pool.reverse();
            }
        }
        let mut batches = self.cut(&order);
        random.shuffle(&mut batches);
        batches
    }

    /// Batches of the pairs in order of length, for validation: the same every time, with the least padding.
    pub fn sorted(&self) -> Vec<Vec<usize>> {
        let mut order: Vec<usize> = (0..self.lengths.len()).collect();
        order.sort_by_key(|&pair| self.lengths[pair]);
        self.cut(&order)
    }

    /// The share of padding when `batches` (of [`epoch`](Self::epoch) or [`sorted`](Self::sorted)) are
    /// filled up to their longest source and target, from 0 to 1.
    pub fn padding(&self, batches: &[Vec<usize>]) -> f64 {
        let (mut real, mut places) = (0, 0);
        for rows in batches {
            let lengths = || rows.iter().map(|&pair| self.lengths[pair]);
            let (source, target) = lengths().fold((0, 0), |(s, t), (a, b)| (s.max(a), t.max(b)));
            real += lengths().map(|(a, b)| a + b).sum::<usize>();
            places += rows.len() * (source + target);
        }
        1.0 - real as f64 / places.max(1) as f64
    }

    fn cut(&self, order: &[usize]) -> Vec<Vec<usize>> {
        let mut batches = Vec::new();
        let mut batch: Vec<usize> = Vec::new();
        let mut longest = 0;
        for &pair in order {
            let (source, target) = self.lengths[pair];
            let longest_with = longest.max(source).max(target);
            let size = batch.len() + 1;
            let fits = self.budget.sentences.is_none_or(|most| size <= most)
                && self
                    .budget
                    .tokens
                    .is_none_or(|most| size * longest_with <= most);
            if !fits && !batch.is_empty() {
                batches.push(std::mem::take(&mut batch));
                longest = source.max(target);
            } else {
                longest = longest_with;
            }
            batch.push(pair);
        }
        if !batch.is_empty() {
            batches.push(batch);
        }
        batches
    }
}
