//! What corpus metrics share: counts per segment, a score of their sums, a signature.
//!
//! A corpus metric is a function of *sums* of integer counts over segments, never a mean of
//! segment scores. Keeping the counts of each segment (`[segments, width]`) therefore gives every
//! sub-corpus for the price of an addition: that is what the bootstrap and the length table use.
//!
//! ```
//! use regard_evaluate::{Bleu, Metric, SegmentCounts};
//! let bleu = Bleu::default();
//! let counts = SegmentCounts::collect(&bleu, &["a b c d e", "f"], &[["a b c d e", "g"]])?;
//! assert_eq!(counts.segments(), 2);
//! assert!((bleu.score(&counts.sum([0])) - 100.0).abs() < 1e-9);
//! # Ok::<(), regard_evaluate::EvaluateError>(())
//! ```

use rayon::prelude::*;

use crate::{EvaluateError, Score, Signature, lines};

/// A metric of a corpus that is computed from summed integer counts.
///
/// [`crate::Bleu`] and [`crate::Chrf`] are the two that exist; the trait can be a `&dyn Metric`.
pub trait Metric: Sync {
    /// The name that is printed, such as `BLEU` or `chrF2++`.
    fn name(&self) -> String;

    /// How many counts a segment has.
    fn width(&self) -> usize;

    /// The counts of one segment against its references, `width` of them.
    fn segment(&self, hypothesis: &str, references: &[&str]) -> Vec<u64>;

    /// The score, from 0 to 100, of summed counts (`width` of them).
    fn score(&self, sums: &[u64]) -> f64;

    /// The score of a system's counts, with everything that is printed beside it.
    fn report(&self, counts: &SegmentCounts) -> Score;

    /// The string of settings to print beside the score.
    fn signature(&self, references: usize) -> Signature;

    /// Refuses settings that make no sense.
    ///
    /// # Errors
    /// [`EvaluateError::InvalidOption`].
    fn check(&self) -> Result<(), EvaluateError>;
}

/// The counts of every segment of one system, `[segments, width]` row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentCounts {
    width: usize,
    references: usize,
    values: Vec<u64>,
}

impl SegmentCounts {
    /// Counts each hypothesis against its references, in parallel; the result does not depend on
    /// the number of threads.
    ///
    /// `references` holds streams, not segments: `references[r][i]` is reference `r` of
    /// `hypotheses[i]`.
    ///
    /// # Errors
    /// [`EvaluateError::InvalidOption`], [`EvaluateError::NoReferences`],
    /// [`EvaluateError::Empty`], [`EvaluateError::LineCounts`].
    pub fn collect<H, R, S>(
        metric: &dyn Metric,
        hypotheses: &[H],
        references: &[R],
    ) -> Result<Self, EvaluateError>
    where
        H: AsRef<str> + Sync,
        R: AsRef<[S]>,
        S: AsRef<str> + Sync,
    {
        metric.check()?;
        let streams: Vec<&[S]> = references.iter().map(AsRef::as_ref).collect();
        if streams.is_empty() {
            return Err(EvaluateError::NoReferences);
        }
        for (number, stream) in streams.iter().enumerate() {
            let name = format!("reference {}", number + 1);
            lines::check_aligned(("hypotheses", hypotheses.len()), (&name, stream.len()))?;
        }
        if hypotheses.is_empty() {
            return Err(EvaluateError::Empty {
                name: "hypotheses".to_owned(),
            });
        }
        let width = metric.width();
        let mut values = vec![0; hypotheses.len() * width];
        values
            .par_chunks_exact_mut(width)
            .with_min_len(16)
            .enumerate()
            .for_each(|(row, counts)| {
                let references: Vec<&str> =
                    streams.iter().map(|stream| stream[row].as_ref()).collect();
                counts.copy_from_slice(&metric.segment(hypotheses[row].as_ref(), &references));
            });
        Ok(Self {
            width,
            references: streams.len(),
            values,
        })
    }

    /// Number of segments.
    pub fn segments(&self) -> usize {
        self.values.len() / self.width
    }

    /// Number of references each segment was counted against.
    pub fn references(&self) -> usize {
        self.references
    }

    /// The counts of one segment; `None` past the last.
    pub fn segment(&self, index: usize) -> Option<&[u64]> {
        self.values.chunks_exact(self.width).nth(index)
    }

    /// The summed counts of all segments.
    pub fn total(&self) -> Vec<u64> {
        self.sum(0..self.segments())
    }

    /// The summed counts of the segments listed, each as often as it is listed.
    ///
    /// # Panics
    /// If an index is not below [`segments`](Self::segments).
    pub fn sum(&self, indices: impl IntoIterator<Item = usize>) -> Vec<u64> {
        let mut sums = vec![0; self.width];
        for index in indices {
            let counts = &self.values[index * self.width..(index + 1) * self.width];
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        sums
    }

    /// The segments listed as a corpus of their own.
    ///
    /// # Panics
    /// If an index is not below [`segments`](Self::segments).
    pub fn select(&self, indices: &[usize]) -> Self {
        let values = indices
            .iter()
            .flat_map(|&index| &self.values[index * self.width..(index + 1) * self.width])
            .copied()
            .collect();
        Self {
            width: self.width,
            references: self.references,
            values,
        }
    }
}
