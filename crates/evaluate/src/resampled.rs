//! Scores of any choice of examples, such as sentences or images: what a bootstrap resamples.
//!
//! ```text
//! score of a choice = Σ_i a_i / Σ_i b_i      i: the examples that were drawn, each as often as it was drawn      (Ratio)
//! ```
//! An example is what was drawn from the world: an image with all of its questions, words or objects, which are not independent of each
//! other.

use crate::{Metric, SegmentCounts};

/// A score that any choice of the examples has.
pub trait Resampled: Sync {
    /// How many examples there are.
    fn examples(&self) -> usize;

    /// The score of the examples of these numbers, each as often as it is named. `None` where they have none, as the share of right
    /// answers where nothing was asked.
    ///
    /// # Panics
    /// If a number is not below [`examples`](Self::examples).
    fn score(&self, drawn: &[u32]) -> Option<f64>;

    /// The score of all examples.
    fn all(&self) -> Option<f64> {
        let all: Vec<u32> = (0u32..).take(self.examples()).collect();
        self.score(&all)
    }
}

/// The score of a metric: the examples are segments.
impl Resampled for (&dyn Metric, &SegmentCounts) {
    fn examples(&self) -> usize {
        self.1.segments()
    }

    fn score(&self, drawn: &[u32]) -> Option<f64> {
        let (metric, counts) = self;
        Some(metric.score(&counts.sum(drawn.iter().map(|&segment| segment as usize))))
    }
}

/// A ratio of sums over examples: a mean of what the examples have some of, such as questions; collected from both parts of each example.
///
/// ```
/// use regard_evaluate::{Bootstrap, Ratio, Resampled};
///
/// // Right answers, and questions: of three images the second has none.
/// let accuracy: Ratio = [(2.0, 2.0), (0.0, 0.0), (1.0, 4.0)].into_iter().collect();
/// assert_eq!(accuracy.all(), Some(0.5));
/// assert_eq!(accuracy.score(&[0, 0, 2]), Some(5.0 / 8.0));
/// assert_eq!(accuracy.score(&[1]), None);
/// let interval = Bootstrap::default().confidence_of(&accuracy)?.unwrap();
/// assert_eq!((interval.lower, interval.upper), (0.25, 1.0));
/// # Ok::<(), regard_evaluate::EvaluateError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ratio {
    parts: Vec<(f64, f64)>,
}

impl FromIterator<(f64, f64)> for Ratio {
    fn from_iter<I: IntoIterator<Item = (f64, f64)>>(parts: I) -> Self {
        Self {
            parts: parts.into_iter().collect(),
        }
    }
}

impl Resampled for Ratio {
    fn examples(&self) -> usize {
        self.parts.len()
    }

    fn score(&self, drawn: &[u32]) -> Option<f64> {
        let (mut sum, mut count) = (0.0, 0.0);
        for &example in drawn {
            let (own, of) = self.parts[example as usize];
            sum += own;
            count += of;
        }
        (count > 0.0).then(|| sum / count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bleu, Bootstrap, Confidence, EvaluateError};

    /// Seven images, one without questions: right answers of a baseline and of a system, and questions.
    const COUNTS: [[f64; 3]; 7] = [
        [2.0, 3.0, 3.0],
        [0.0, 1.0, 2.0],
        [3.0, 3.0, 3.0],
        [1.0, 1.0, 4.0],
        [0.0, 0.0, 0.0],
        [4.0, 5.0, 5.0],
        [2.0, 1.0, 2.0],
    ];

    fn ratio(of: usize) -> Ratio {
        COUNTS
            .iter()
            .map(|counts| (counts[of], counts[2]))
            .collect()
    }

    const DRAWS: Bootstrap = Bootstrap {
        resamples: 80,
        seed: 12345,
    };

    /// `d = np.random.default_rng(12345).choice(7, size=(80, 7))`, then `a[d].sum(1) / b[d].sum(1)` sorted, of which the third and
    /// the third from last are taken, and their mean; numpy 2.4.6. The p-value likewise.
    #[test]
    fn intervals_of_ratios_equal_numpys() {
        let close = |found: Confidence, expected: [f64; 3]| {
            let found = [found.lower, found.upper, found.mean];
            for (found, expected) in found.into_iter().zip(expected) {
                assert!((found - expected).abs() < 1e-12, "{found} {expected}");
            }
        };
        let (baseline, system) = (ratio(0), ratio(1));
        let own = DRAWS.confidence_of(&baseline).unwrap().unwrap();
        close(own, [6.0 / 17.0, 15.0 / 17.0, 0.628001399925212]);
        let paired = DRAWS.paired_of(&baseline, &system).unwrap().unwrap();
        assert_eq!(paired.baseline_confidence, own);
        close(
            paired.system_confidence,
            [3.0 / 7.0, 25.0 / 26.0, 0.7274163890390755],
        );
        close(
            paired.difference_confidence,
            [-0.0625, 5.0 / 19.0, 0.09941498911386346],
        );
        assert_eq!((paired.baseline, paired.system), (12.0 / 19.0, 14.0 / 19.0));
        assert_eq!((paired.wins, paired.p_value), (0.75, 11.0 / 81.0));
    }

    #[test]
    fn a_metric_of_segments_has_the_interval_that_it_has_by_its_counts() {
        let references = [["a b c d e f", "g h i j k", "l m n o p q"]];
        let hypotheses = ["a b c d e x", "g x i j k", "l m n o p q"];
        let metric = Bleu::default();
        let counts = SegmentCounts::collect(&metric, &hypotheses, &references).unwrap();
        let score: (&dyn Metric, &SegmentCounts) = (&metric, &counts);
        assert_eq!(score.all(), Some(metric.score(&counts.total())));
        assert_eq!(
            DRAWS.confidence_of(&score).unwrap(),
            Some(DRAWS.confidence(&metric, &counts).unwrap())
        );
    }

    #[test]
    fn what_has_no_score_has_no_interval() {
        let nothing: Ratio = [(0.0, 0.0); 3].into_iter().collect();
        let something: Ratio = [(1.0, 1.0); 3].into_iter().collect();
        for score in [&nothing, &Ratio::default()] {
            assert_eq!((score.all(), score.score(&[])), (None, None));
            assert_eq!(DRAWS.confidence_of(score).unwrap(), None);
            assert_eq!(DRAWS.paired_of(score, score).unwrap(), None);
        }
        assert_eq!(DRAWS.paired_of(&something, &nothing).unwrap(), None);
        assert!(matches!(
            DRAWS.paired_of(&something, &ratio(0)),
            Err(EvaluateError::LineCounts { .. })
        ));
        let none = Bootstrap {
            resamples: 0,
            ..DRAWS
        };
        assert!(matches!(
            none.confidence_of(&something),
            Err(EvaluateError::InvalidOption { .. })
        ));
    }
}
