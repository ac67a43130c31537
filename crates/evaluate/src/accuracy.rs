//! The share of sentences that were given their true label.

use std::fmt;

use serde::Serialize;

/// 97.5 % of a normal distribution lie below this many standard deviations.
const QUANTILE: f64 = 1.959_963_984_540_054;

/// How many sentences of each true class got which label: a confusion matrix.
///
/// ```
/// use regard_evaluate::Accuracy;
///
/// let accuracy = Accuracy::of(&[1, 0, 1, 1], &[1, 0, 0, 1], 2);
/// assert_eq!(accuracy.share(), 0.75);
/// assert_eq!(accuracy.confusion(0), [1, 1]); // of two sentences of class 0 one was taken for 1
/// let (low, high) = accuracy.interval();
/// assert!(low < 0.75 && 0.75 < high);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Accuracy {
    /// Sentences that got their true label.
    pub correct: usize,
    /// All sentences.
    pub sentences: usize,
    /// `counts[true][found]`.
    counts: Vec<Vec<usize>>,
}

impl Accuracy {
    /// Counts `found` classes against the `truth`, both below `classes`; of sequences of different
    /// lengths the shorter one counts.
    pub fn of(found: &[usize], truth: &[usize], classes: usize) -> Self {
        let mut counts = vec![vec![0; classes]; classes];
        for (&found, &truth) in found.iter().zip(truth) {
            counts[truth][found] += 1;
        }
        Self {
            correct: (0..classes).map(|class| counts[class][class]).sum(),
            sentences: counts.iter().flatten().sum(),
            counts,
        }
    }

    /// The accuracy, 0 to 1; 0 if there is no sentence.
    pub fn share(&self) -> f64 {
        self.correct as f64 / self.sentences.max(1) as f64
    }

    /// How the sentences of class `truth` were classified, by class.
    ///
    /// # Panics
    /// If there is no such class, as slice indexing does.
    pub fn confusion(&self, truth: usize) -> &[usize] {
        &self.counts[truth]
    }

    /// The 95 % interval of the share (Wilson 1927).
    pub fn interval(&self) -> (f64, f64) {
        let (n, p) = (self.sentences.max(1) as f64, self.share());
        let z2 = QUANTILE * QUANTILE;
        let centre = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
        let width = QUANTILE * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt() / (1.0 + z2 / n);
        (centre - width, centre + width)
    }
}

impl Accuracy {
    /// The accuracy in words, of what `noun` names in the plural.
    pub fn describe(&self, noun: &str) -> String {
        let (low, high) = self.interval();
        format!(
            "accuracy {:.2} % ({} of {} {noun}; 95 % interval {:.2} to {:.2})",
            100.0 * self.share(),
            self.correct,
            self.sentences,
            100.0 * low,
            100.0 * high
        )
    }
}

impl fmt::Display for Accuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe("sentences"))
    }
}
