//! Bootstrap resampling: is a difference in score more than the luck of these sentences?
//!
//! ```text
//! resample k: segments drawn with replacement, as many as there are; score_k from summed counts
//! interval:   the 2.5 % and 97.5 % quantiles of score_k;  printed as mean ± half width
//! paired:     d_k = |system_k - baseline_k|;  p = (1 + #{ d_k - mean(d) > |d| }) / (K + 1)
//! ```
//! Both systems are scored on the *same* resamples (Koehn 2004; the p-value as in Moses' and
//! sacrebleu's `--paired-bs`, after Riezler & Maxwell 2005). On a test set of 1,000 sentences the
//! interval of one system is about ±1.7 BLEU, so comparing two intervals hides most differences
//! that the paired test finds.
//!
//! What is drawn are segments, or other examples such as images ([`Resampled`]): an image that is drawn twice brings all of its questions
//! or objects twice. Where some resamples have no score, as an average precision without objects, the interval is that of the others.
//!
//! Resamples are drawn as sacrebleu draws them, numpy's generator included: means, intervals and
//! p-values agree with `sacrebleu --paired-bs` and `--confidence`. Two things differ. sacrebleu
//! adds counts in 32-bit floats, exact up to 16.7 million, and rounds each precision to one; we
//! count in integers and divide in 64 bits, so single resamples differ in the seventh digit. And
//! where the two systems score the same on every resample, `p` is 1, where sacrebleu's strict
//! inequality gives `1 / (K + 1)` and calls a system different from itself.
//!
//! ```
//! use regard_evaluate::{Bleu, Bootstrap, SegmentCounts};
//! let references = [["a dog runs on the beach", "two men play chess", "a child eats an apple"]];
//! let bleu = Bleu::default();
//! let weak = SegmentCounts::collect(&bleu, &["a dog on beach", "men play the chess", "child eats"], &references)?;
//! let good = SegmentCounts::collect(&bleu, &["a dog runs on the beach", "two men play chess", "a child eats"], &references)?;
//! let result = Bootstrap::default().paired(&bleu, &weak, &good)?;
//! assert!(result.system > result.baseline && result.wins > 0.9);
//! # Ok::<(), regard_evaluate::EvaluateError>(())
//! ```

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::random::Pcg64;
use crate::{Confidence, EvaluateError, Metric, Resampled, SegmentCounts, lines};

/// How many resamples to draw, and from which seed; the defaults are sacrebleu's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bootstrap {
    /// Number of resamples, from 1 to 10,000,000; 1000 by default.
    pub resamples: usize,
    /// Seed of the generator; 12345 by default.
    pub seed: u64,
}

impl Default for Bootstrap {
    fn default() -> Self {
        Self {
            resamples: 1000,
            seed: 12345,
        }
    }
}

/// The most resamples that are drawn.
pub const MAX_RESAMPLES: usize = 10_000_000;

/// Below this p-value a difference is called significant.
pub const SIGNIFICANCE_LEVEL: f64 = 0.05;

/// A system compared with a baseline on the same resamples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PairedBootstrap {
    /// Score of the baseline on the whole corpus.
    pub baseline: f64,
    /// Score of the system on the whole corpus.
    pub system: f64,
    /// Probability of a difference at least this large in either direction if the two were equally
    /// good.
    pub p_value: f64,
    /// Share of the resamples in which the system scores strictly higher than the baseline.
    pub wins: f64,
    /// Interval of the baseline.
    pub baseline_confidence: Confidence,
    /// Interval of the system.
    pub system_confidence: Confidence,
    /// Interval of the signed difference, system minus baseline.
    pub difference_confidence: Confidence,
}

impl PairedBootstrap {
    /// System minus baseline on the whole corpus.
    pub fn difference(&self) -> f64 {
        self.system - self.baseline
    }

    /// Whether the difference is more than chance explains: its p-value is below
    /// [`SIGNIFICANCE_LEVEL`].
    pub fn is_significant(&self) -> bool {
        self.p_value < SIGNIFICANCE_LEVEL
    }
}

impl Bootstrap {
    /// The interval of one system's score.
    ///
    /// # Errors
    /// [`EvaluateError::InvalidOption`] for no resamples, more than 10,000,000 of them or more than
    /// 4,294,967,295 segments, [`EvaluateError::Empty`] for no segments.
    pub fn confidence(
        &self,
        metric: &dyn Metric,
        counts: &SegmentCounts,
    ) -> Result<Confidence, EvaluateError> {
        self.confidence_of(&(metric, counts))?.ok_or_else(nothing)
    }

    /// The interval of a score of examples; `None` if no resample has a score.
    ///
    /// # Errors
    /// [`EvaluateError::InvalidOption`] as [`confidence`](Self::confidence).
    pub fn confidence_of(
        &self,
        score: &dyn Resampled,
    ) -> Result<Option<Confidence>, EvaluateError> {
        let [scores] = self.scores([score])?;
        Ok(self.interval(scores.into_iter().flatten().collect()))
    }

    /// Compares a system with a baseline that was scored by the same metric on the same segments.
    ///
    /// # Errors
    /// Those of [`confidence`](Self::confidence), and [`EvaluateError::LineCounts`] if the two
    /// differ in their number of segments.
    pub fn paired(
        &self,
        metric: &dyn Metric,
        baseline: &SegmentCounts,
        system: &SegmentCounts,
    ) -> Result<PairedBootstrap, EvaluateError> {
        let paired = self.paired_of(&(metric, baseline), &(metric, system))?;
        paired.ok_or_else(nothing)
    }

    /// Compares a system with a baseline that has the same score of the same examples; `None` if either has no score, or no resample
    /// has both.
    ///
    /// # Errors
    /// [`EvaluateError::InvalidOption`] as [`confidence`](Self::confidence), and [`EvaluateError::LineCounts`] if the two differ in
    /// their number of examples.
    pub fn paired_of(
        &self,
        baseline: &dyn Resampled,
        system: &dyn Resampled,
    ) -> Result<Option<PairedBootstrap>, EvaluateError> {
        lines::check_aligned(
            ("baseline", baseline.examples()),
            ("system", system.examples()),
        )?;
        let [baseline_scores, system_scores] = self.scores([baseline, system])?;
        let pairs = baseline_scores.into_iter().zip(system_scores);
        let pairs = pairs.filter_map(|(baseline, system)| baseline.zip(system));
        let (baseline_scores, system_scores): (Vec<f64>, Vec<f64>) = pairs.unzip();
        let differences: Vec<f64> = system_scores
            .iter()
            .zip(&baseline_scores)
            .map(|(system, baseline)| system - baseline)
            .collect();
        let wins = differences
            .iter()
            .filter(|&&difference| difference > 0.0)
            .count();
        let compared = || {
            let (baseline, system) = (baseline.all()?, system.all()?);
            Some(PairedBootstrap {
                baseline,
                system,
                p_value: p_value(&differences, system - baseline),
                wins: wins as f64 / differences.len() as f64,
                baseline_confidence: self.interval(baseline_scores)?,
                system_confidence: self.interval(system_scores)?,
                difference_confidence: self.interval(differences)?,
            })
        };
        Ok(compared())
    }

    /// Each system's score on every resample; all systems, of as many examples each, see the same resamples.
    fn scores<const N: usize>(
        &self,
        systems: [&dyn Resampled; N],
    ) -> Result<[Vec<Option<f64>>; N], EvaluateError> {
        let refuse = |option, given: usize, expected: &str| EvaluateError::InvalidOption {
            option,
            given: given.to_string(),
            expected: expected.to_owned(),
        };
        if !(1..=MAX_RESAMPLES).contains(&self.resamples) {
            return Err(refuse(
                "the number of resamples",
                self.resamples,
                &format!("a number from 1 to {MAX_RESAMPLES}"),
            ));
        }
        let examples = systems[0].examples();
        let mut scores: [Vec<Option<f64>>; N] = std::array::from_fn(|_| vec![]);
        if examples == 0 {
            return Ok(scores);
        }
        let bound = u32::try_from(examples)
            .map_err(|_| refuse("the number of segments", examples, "at most 4294967295"))?;

        // The generator is one stream; drawing some resamples at a time lets the sums run in
        // parallel without holding all resamples x examples indices.
        let at_once = (1 << 20) / examples + 1;
        let mut generator = Pcg64::new(self.seed);
        let mut remaining = self.resamples;
        while remaining > 0 {
            let drawn = remaining.min(at_once);
            let indices: Vec<u32> = (0..drawn * examples)
                .map(|_| generator.below(bound))
                .collect();
            for (scores, system) in scores.iter_mut().zip(systems) {
                let resamples = indices.par_chunks_exact(examples);
                scores.par_extend(resamples.map(|drawn| system.score(drawn)));
            }
            remaining -= drawn;
        }
        Ok(scores)
    }

    /// sacrebleu's interval: the sorted scores less one fortieth at each end. `None` of no scores.
    fn interval(&self, mut scores: Vec<f64>) -> Option<Confidence> {
        scores.sort_unstable_by(f64::total_cmp);
        let cut = scores.len() / 40;
        let (lower, upper) = (*scores.get(cut)?, scores[scores.len() - cut - 1]);
        Some(Confidence {
            mean: scores.iter().sum::<f64>() / scores.len() as f64,
            half_width: 0.5 * (upper - lower),
            lower,
            upper,
            resamples: self.resamples,
            seed: self.seed,
        })
    }
}

fn nothing() -> EvaluateError {
    EvaluateError::Empty {
        name: "the segments to resample".to_owned(),
    }
}

fn p_value(differences: &[f64], observed: f64) -> f64 {
    if differences.iter().all(|&difference| difference == 0.0) {
        return 1.0;
    }
    let trials = differences.len() as f64;
    let mean = differences
        .iter()
        .map(|difference| difference.abs())
        .sum::<f64>()
        / trials;
    let beyond = differences
        .iter()
        .filter(|difference| difference.abs() - mean > observed.abs())
        .count();
    (beyond as f64 + 1.0) / (trials + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bleu;

    fn counts(hypotheses: &[&str]) -> SegmentCounts {
        let references = [["a b c d e f", "g h i j k", "l m n o p q"]];
        SegmentCounts::collect(&Bleu::default(), hypotheses, &references).unwrap()
    }

    #[test]
    fn a_system_does_not_differ_from_itself() {
        let same = counts(&["a b c d e x", "g h i j x", "l m n o p x"]);
        let result = Bootstrap::default()
            .paired(&Bleu::default(), &same, &same)
            .unwrap();
        assert_eq!(
            (result.p_value, result.wins, result.difference()),
            (1.0, 0.0, 0.0)
        );
        assert_eq!(result.baseline_confidence, result.system_confidence);
    }

    #[test]
    fn settings_without_meaning_are_refused() {
        let some = counts(&["a b", "g h", "l m"]);
        for resamples in [0, MAX_RESAMPLES + 1, usize::MAX] {
            let wrong = Bootstrap { resamples, seed: 1 };
            assert!(matches!(
                wrong.confidence(&Bleu::default(), &some),
                Err(EvaluateError::InvalidOption { .. })
            ));
        }
        assert!(matches!(
            Bootstrap::default().confidence(&Bleu::default(), &some.select(&[])),
            Err(EvaluateError::Empty { .. })
        ));
        assert!(matches!(
            Bootstrap::default().paired(&Bleu::default(), &some, &some.select(&[0])),
            Err(EvaluateError::LineCounts { .. })
        ));
    }

    #[test]
    fn batches_of_resamples_are_one_stream() {
        let some = counts(&["a b c d e x", "g x i j k", "l m n o p q"]);
        let few = Bootstrap {
            resamples: 10,
            seed: 7,
        };
        let many = Bootstrap {
            resamples: 40,
            seed: 7,
        };
        let metric = Bleu::default();
        let score: (&dyn Metric, &SegmentCounts) = (&metric, &some);
        let [few] = few.scores([&score]).unwrap();
        let [many] = many.scores([&score]).unwrap();
        assert_eq!(few[..], many[..10]);
    }
}
