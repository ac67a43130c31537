//! Tasks whose correct output and true alignment are known: copy, reverse, sort.
//!
//! A source is a random string of symbols, and every target symbol comes from exactly one source
//! position, so a trained model's attention can be checked against the truth.
//!
//! | task | target | `j` is aligned to |
//! |---|---|---|
//! | copy | `x_1 .. x_n` | `j` |
//! | reverse | `x_n .. x_1` | `n + 1 - j` |
//! | sort | `x` in increasing order | its place; equal symbols in the order of the source |
//!
//! ```
//! use regard_train::corpus::{Synthetic, Task, pharaoh};
//! let corpus = Synthetic { task: Task::Sort, symbols: 4, min_length: 5, max_length: 5, sentences: 1 }
//!     .generate(1)?;
//! let (source, target) = corpus.text.iter().next().unwrap();
//! let symbols: Vec<&str> = source.split(' ').collect();
//! for (&(i, j), symbol) in corpus.alignments[0].iter().zip(target.split(' ')) {
//!     assert_eq!((symbols[i], symbol), (symbol, target.split(' ').nth(j).unwrap()));
//! }
//! assert_eq!(pharaoh(&[(2, 0), (0, 1)]), "2-0 0-1");
//! # Ok::<(), regard_train::corpus::CorpusError>(())
//! ```

use serde::{Deserialize, Serialize};

use super::error::CorpusError;
use super::parallel::ParallelText;
use super::random::Random;

/// How the target follows from the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// The same symbols.
    Copy,
    /// The symbols in reverse.
    #[default]
    Reverse,
    /// The symbols in increasing order.
    Sort,
}

/// The description of a synthetic corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Synthetic {
    /// The task.
    pub task: Task,
    /// The number of different symbols: letters if there are at most 26, else numbers of equal width.
    pub symbols: usize,
    /// Fewest symbols in a source.
    pub min_length: usize,
    /// Most symbols in a source; every length between is equally likely.
    pub max_length: usize,
    /// The number of pairs.
    pub sentences: usize,
}

impl Default for Synthetic {
    /// Reverse 2 to 12 of 26 symbols, 10,000 pairs.
    fn default() -> Self {
        Self {
            task: Task::Reverse,
            symbols: 26,
            min_length: 2,
            max_length: 12,
            sentences: 10_000,
        }
    }
}

/// Sentence pairs with their true alignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntheticCorpus {
    /// The pairs; symbols are separated by one space.
    pub text: ParallelText,
    /// For each pair the links (source position, target position), counted from 0, in the order
    /// of the target.
    pub alignments: Vec<Vec<(usize, usize)>>,
}

impl Synthetic {
    /// Makes the corpus; it follows from the seed.
    ///
    /// There are few different short sequences of few symbols, so corpora of different seeds can share some.
    ///
    /// # Errors
    /// [`CorpusError::Setting`] if there are no symbols or sentences, a length is 0, or the
    /// lengths are the wrong way round.
    pub fn generate(&self, seed: u64) -> Result<SyntheticCorpus, CorpusError> {
        self.check()?;
        let mut random = Random::new(&[seed, 0x5e9_0e4ce]);
        let names = self.names();
        let mut corpus = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.sentences {
            let length = self.min_length + random.below(self.max_length - self.min_length + 1);
            let source: Vec<usize> = (0..length).map(|_| random.below(self.symbols)).collect();
            let places = self.task.places(&source);
            let spell = |symbols: &mut dyn Iterator<Item = usize>| {
                let symbols: Vec<&str> = symbols.map(|symbol| names[symbol].as_str()).collect();
                symbols.join(" ")
            };
            corpus.0.push(spell(&mut source.iter().copied()));
            corpus
                .1
                .push(spell(&mut places.iter().map(|&place| source[place])));
            corpus.2.push(places.into_iter().zip(0..).collect());
        }
        Ok(SyntheticCorpus {
            text: ParallelText::new(corpus.0, corpus.1)?,
            alignments: corpus.2,
        })
    }

    /// The symbols' names, in their order.
    pub fn names(&self) -> Vec<String> {
        if self.symbols <= 26 {
            ('a'..='z').take(self.symbols).map(String::from).collect()
        } else {
            let width = (self.symbols - 1).to_string().len();
            (0..self.symbols)
                .map(|symbol| format!("{symbol:0width$}"))
                .collect()
        }
    }

    fn check(&self) -> Result<(), CorpusError> {
        let refuse = |field, problem: String| Err(CorpusError::Setting { field, problem });
        if self.symbols == 0 {
            return refuse("synthetic.symbols", "0 found, expected at least 1".into());
        }
        if self.sentences == 0 {
            return refuse("synthetic.sentences", "0 found, expected at least 1".into());
        }
        if self.min_length == 0 {
            return refuse(
                "synthetic.min_length",
                "0 found, expected at least 1".into(),
            );
        }
        if self.max_length < self.min_length {
            return refuse(
                "synthetic.max_length",
                format!(
                    "{} found, expected at least min_length, {}",
                    self.max_length, self.min_length
                ),
            );
        }
        Ok(())
    }
}

impl Task {
    /// For each target position the source position its symbol comes from.
    fn places(self, source: &[usize]) -> Vec<usize> {
        let mut places: Vec<usize> = (0..source.len()).collect();
        match self {
            Self::Copy => {}
            Self::Reverse => places.reverse(),
            // A stable sort: equal symbols keep the order of the source.
            Self::Sort => places.sort_by_key(|&place| source[place]),
        }
        places
    }
}

/// Links in Pharaoh's format, `source-target`, counted from 0.
pub fn pharaoh(alignment: &[(usize, usize)]) -> String {
    let links: Vec<String> = alignment
        .iter()
        .map(|(source, target)| format!("{source}-{target}"))
        .collect();
    links.join(" ")
}
