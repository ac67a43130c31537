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
        wilson(self.correct, self.sentences)
    }
}

/// The 95 % interval of the share `correct` of `all` (Wilson 1927).
fn wilson(correct: usize, all: usize) -> (f64, f64) {
    let n = all.max(1) as f64;
    let p = correct as f64 / n;
    let z2 = QUANTILE * QUANTILE;
    let centre = (p + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let width = QUANTILE * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt() / (1.0 + z2 / n);
    // Rounding can lead out of what a share can be.
    ((centre - width).max(0.0), (centre + width).min(1.0))
}

/// Two systems on the same examples, each of which a system gets right or wrong: which is better, and is that more than luck?
///
/// ```
/// use regard_evaluate::PairedShares;
///
/// // Both are right about two examples; the system alone about two, the baseline alone about none.
/// let paired = PairedShares::of(&[true, true, false, false], &[true; 4]);
/// assert_eq!(paired.difference(), 0.5);
/// let (low, high) = paired.interval();
/// assert!(low < 0.5 && 0.5 < high);
/// assert_eq!(paired.p_value(), 0.5);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PairedShares {
    /// Examples that both get right.
    pub both: usize,
    /// Examples that the system alone gets right.
    pub system: usize,
    /// Examples that the baseline alone gets right.
    pub baseline: usize,
    /// Examples that neither gets right.
    pub neither: usize,
}

impl PairedShares {
    /// Counts what the `baseline` and the `system` get right; of sequences of different lengths the shorter one counts.
    pub fn of(baseline: &[bool], system: &[bool]) -> Self {
        let mut paired = Self::default();
        for pair in baseline.iter().zip(system) {
            *match pair {
                (true, true) => &mut paired.both,
                (false, true) => &mut paired.system,
                (true, false) => &mut paired.baseline,
                (false, false) => &mut paired.neither,
            } += 1;
        }
        paired
    }

    fn examples(&self) -> usize {
        self.both + self.system + self.baseline + self.neither
    }

    /// The system's share minus the baseline's, -1 to 1; 0 if there is no example.
    pub fn difference(&self) -> f64 {
        (self.system as f64 - self.baseline as f64) / self.examples().max(1) as f64
    }

    /// The 95 % interval of the difference, from Wilson's intervals of the two shares and their correlation (Newcombe, *Improved
    /// confidence intervals for the difference between binomial proportions based on paired data*, 1998, method 10).
    pub fn interval(&self) -> (f64, f64) {
        let n = self.examples();
        let [system, baseline] = [self.both + self.system, self.both + self.baseline];
        let [a, b, c, d] =
            [self.both, self.system, self.baseline, self.neither].map(|count| count as f64);
        let margins = (a + b) * (c + d) * (a + c) * (b + d);
        let covariance = match a * d - b * c {
            positive if positive > 0.0 => (positive - n as f64 / 2.0).max(0.0),
            negative => negative,
        };
        let correlation = match margins > 0.0 {
            true => covariance / margins.sqrt(),
            false => 0.0,
        };
        let apart = |correct: usize| {
            let (low, high) = wilson(correct, n);
            let share = correct as f64 / n.max(1) as f64;
            (share - low, high - share)
        };
        let ((below, above), (below_other, above_other)) = (apart(system), apart(baseline));
        let joined = |x: f64, y: f64| {
            let square = x * x - 2.0 * correlation * x * y + y * y;
            square.max(0.0).sqrt()
        };
        let difference = self.difference();
        (
            difference - joined(below, above_other),
            difference + joined(above, below_other),
        )
    }

    /// The probability of a difference at least this large, in either direction, if the two were equally good: McNemar's exact test
    /// of the examples that one of them alone gets right.
    pub fn p_value(&self) -> f64 {
        let n = self.system + self.baseline;
        let fewer = self.system.min(self.baseline);
        // The logarithms of binomial coefficients: 2^-n would be 0 for a large n.
        let mut log_term = -(n as f64) * std::f64::consts::LN_2;
        let mut tail = 0.0;
        for k in 0..=fewer {
            tail += log_term.exp();
            log_term += ((n - k) as f64 / (k + 1) as f64).ln();
        }
        (2.0 * tail).min(1.0)
    }

    /// The comparison in words, of systems of these names.
    pub fn describe(&self, baseline: &str, system: &str) -> String {
        let (low, high) = self.interval();
        let p = self.p_value();
        let verdict = match p < crate::SIGNIFICANCE_LEVEL {
            true => "significant",
            false => "not significant",
        };
        format!(
            "{system} minus {baseline}: {:+.2} points (95 % {:+.2} to {:+.2}), p = {p:.4}: {verdict}; {system} alone is right {} times, \
             {baseline} alone {}",
            100.0 * self.difference(),
            100.0 * low,
            100.0 * high,
            self.system,
            self.baseline,
        )
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

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(both: usize, system: usize, baseline: usize, neither: usize) -> PairedShares {
        PairedShares {
            both,
            system,
            baseline,
            neither,
        }
    }

    #[test]
    fn intervals_of_shares_are_shares() {
        for n in 1..3000 {
            let ((low, _), (_, high)) = (wilson(0, n), wilson(n, n));
            assert!((0.0..1e-15).contains(&low) && low.is_sign_positive(), "{n}");
            assert!(1.0 - 1e-15 < high && high <= 1.0, "{n}");
        }
    }

    #[test]
    fn a_system_does_not_differ_from_itself() {
        for right in [
            vec![],
            vec![true; 7],
            vec![false; 7],
            vec![true, false, true],
        ] {
            let paired = PairedShares::of(&right, &right);
            assert_eq!((paired.difference(), paired.p_value()), (0.0, 1.0));
            let (low, high) = paired.interval();
            assert!(low <= 0.0 && 0.0 <= high, "{low} {high}");
        }
    }

    #[test]
    fn exchanging_the_systems_turns_the_difference_around() {
        let (one, other) = (counts(70, 12, 5, 13), counts(70, 5, 12, 13));
        assert_eq!(one.difference(), -other.difference());
        assert_eq!(one.p_value(), other.p_value());
        let ((low, high), (low_other, high_other)) = (one.interval(), other.interval());
        assert!((low + high_other).abs() < 1e-15 && (high + low_other).abs() < 1e-15);
    }

    /// The sums of the binomial distribution by hand; and no underflow for many examples.
    #[test]
    fn mcnemars_test_is_exact() {
        assert_eq!(counts(0, 5, 0, 0).p_value(), 2.0 / 32.0);
        let expected = 2.0 * (1.0 + 6.0) / 64.0;
        assert!((counts(9, 5, 1, 9).p_value() - expected).abs() < 1e-15);
        let p = counts(0, 2600, 2400, 0).p_value();
        // 200 / sqrt(5000) = 2.83 standard deviations.
        assert!((0.004..0.006).contains(&p), "{p}");
    }

    /// The interval covers the true difference about as often as it says.
    #[test]
    fn the_interval_covers_the_difference() {
        let mut random = crate::random::Pcg64::new(3);
        let mut draw = |share: f64| f64::from(random.below(1 << 20)) < share * f64::from(1 << 20);
        let rounds = 2000;
        let covered = (0..rounds).filter(|_| {
            // Both right with probability 0.7; where not, the system alone with 0.3, the baseline alone with 0.2.
            let pairs = (0..200).map(|_| match draw(0.7) {
                true => (true, true),
                false => match (draw(0.3), draw(0.2 / 0.7)) {
                    (true, _) => (false, true),
                    (false, baseline) => (baseline, false),
                },
            });
            let (baseline, system): (Vec<bool>, Vec<bool>) = pairs.unzip();
            let (low, high) = PairedShares::of(&baseline, &system).interval();
            let truth = 0.3 * (0.3 - 0.2);
            low <= truth && truth <= high
        });
        let share = covered.count() as f64 / f64::from(rounds);
        assert!((0.935..0.97).contains(&share), "{share}");
    }
}
