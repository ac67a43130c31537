//! A score by source length: the picture of Bahdanau et al. 2014, Fig. 2.
//!
//! Sentences are put into buckets by the number of words of their *source*; each bucket is scored
//! as a corpus of its own, for each system, with a bootstrap interval. In that paper BLEU falls
//! with length without attention, and hardly falls with it. Buckets with few sentences say little,
//! so a bucket below [`LengthBuckets::minimum`] is merged into its shorter neighbour, the first one
//! into the next.
//!
//! ```
//! use regard_evaluate::{Bleu, LengthBuckets};
//! let sources = ["ein Hund", "ein Hund und eine Katze", "zwei Hunde", "die Katze sieht den Hund"];
//! let references = [["a dog", "a dog and a cat", "two dogs", "the cat sees the dog"]];
//! let systems = [
//!     ("words", ["a dog", "a cat and a dog", "two dogs", "the cat the dog sees"]),
//!     ("exact", references[0]),
//! ];
//! let buckets = LengthBuckets { edges: vec![3, 6], minimum: 1 };
//! let table = buckets.table(&Bleu { order: 2, ..Bleu::default() }, &sources, &systems, &references, None)?;
//! assert_eq!(table.buckets.len(), 2); // nothing is longer than 6 words
//! assert_eq!((table.buckets[0].label(), table.buckets[0].sentences), ("≤3".to_owned(), 2));
//! assert!(table.buckets[1].scores[0].score < table.buckets[1].scores[1].score);
//! println!("{table}");
//! # Ok::<(), regard_evaluate::EvaluateError>(())
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tokenize::words;
use crate::{Bootstrap, Confidence, EvaluateError, Metric, SegmentCounts, Signature, lines};

/// Where one bucket of source lengths ends and the next begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthBuckets {
    /// The longest source, in words, of each bucket, rising; longer ones form the last bucket.
    /// 10, 20, 30, 40, 50, 60 by default.
    pub edges: Vec<usize>,
    /// A bucket with fewer sentences is merged into a neighbour; 20 by default.
    pub minimum: usize,
}

impl Default for LengthBuckets {
    fn default() -> Self {
        Self {
            edges: (10..=60).step_by(10).collect(),
            minimum: 20,
        }
    }
}

/// One system's score in one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BucketScore {
    /// The score of the bucket as a corpus.
    pub score: f64,
    /// Its interval, when a bootstrap was asked for.
    pub confidence: Option<Confidence>,
}

/// The sentences whose source has a length within some bounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LengthBucket {
    /// Fewest words of a source that belongs here.
    pub shortest: usize,
    /// Most words of a source that belongs here; `None` for no limit.
    pub longest: Option<usize>,
    /// Number of sentences.
    pub sentences: usize,
    /// Mean number of source words, where a chart puts the point.
    pub mean_length: f64,
    /// The score of each system, in the order of [`LengthTable::systems`].
    pub scores: Vec<BucketScore>,
}

impl LengthBucket {
    /// The bounds for people: `≤10`, `11–20`, `>60`, `all`.
    pub fn label(&self) -> String {
        match (self.shortest, self.longest) {
            (0, None) => "all".to_owned(),
            (0, Some(longest)) => format!("≤{longest}"),
            (shortest, None) => format!(">{}", shortest - 1),
            (shortest, Some(longest)) if shortest == longest => shortest.to_string(),
            (shortest, Some(longest)) => format!("{shortest}–{longest}"),
        }
    }
}

/// Scores by source length of one or several systems, for a table or a chart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LengthTable {
    /// The metric, such as `BLEU`.
    pub metric: String,
    /// Its settings.
    pub signature: Signature,
    /// The systems' names.
    pub systems: Vec<String>,
    /// The buckets, from short to long.
    pub buckets: Vec<LengthBucket>,
    /// All sentences together.
    pub overall: LengthBucket,
}

struct Group {
    shortest: usize,
    longest: Option<usize>,
    members: Vec<usize>,
}

impl LengthBuckets {
    /// Buckets of equal width: `width`, `2 width` ... up to `last`.
    ///
    /// # Errors
    /// [`EvaluateError::InvalidOption`] if `width` is 0 or above `last`.
    pub fn every(width: usize, last: usize) -> Result<Self, EvaluateError> {
        if width == 0 || width > last {
            return Err(EvaluateError::InvalidOption {
                option: "the width of a length bucket",
                given: width.to_string(),
                expected: format!("a number from 1 to {last}, the last edge"),
            });
        }
        Ok(Self {
            edges: (width..=last).step_by(width).collect(),
            ..Self::default()
        })
    }

    /// Scores every system in every bucket.
    ///
    /// `systems` pairs a name with the system's hypotheses; `references[r][i]` is reference `r`
    /// of source `i`. Source words are what white space separates.
    ///
    /// # Errors
    /// [`EvaluateError::InvalidOption`] for edges that do not rise or no system, those of
    /// [`SegmentCounts::collect`], [`EvaluateError::LineCounts`] for a system or source of another
    /// length.
    pub fn table<T, N, H, U, R, S>(
        &self,
        metric: &dyn Metric,
        sources: &[T],
        systems: &[(N, H)],
        references: &[R],
        bootstrap: Option<Bootstrap>,
    ) -> Result<LengthTable, EvaluateError>
    where
        T: AsRef<str>,
        N: AsRef<str>,
        H: AsRef<[U]>,
        U: AsRef<str> + Sync,
        R: AsRef<[S]>,
        S: AsRef<str> + Sync,
    {
        self.check()?;
        let mut counts = Vec::with_capacity(systems.len());
        for (name, hypotheses) in systems {
            let hypotheses = hypotheses.as_ref();
            lines::check_aligned(
                ("sources", sources.len()),
                (name.as_ref(), hypotheses.len()),
            )?;
            counts.push(SegmentCounts::collect(metric, hypotheses, references)?);
        }
        let references = counts
            .first()
            .map(SegmentCounts::references)
            .ok_or_else(|| EvaluateError::InvalidOption {
                option: "the number of systems to compare by length",
                given: "0".to_owned(),
                expected: "at least 1".to_owned(),
            })?;

        let lengths: Vec<usize> = sources
            .iter()
            .map(|source| words(source.as_ref()).count())
            .collect();
        let bucket = |group: &Group| -> Result<LengthBucket, EvaluateError> {
            let words: usize = group.members.iter().map(|&member| lengths[member]).sum();
            let score = |counts: &SegmentCounts| {
                let counts = counts.select(&group.members);
                let confidence = bootstrap
                    .map(|bootstrap| bootstrap.confidence(metric, &counts))
                    .transpose()?;
                Ok(BucketScore {
                    score: metric.score(&counts.total()),
                    confidence,
                })
            };
            Ok(LengthBucket {
                shortest: group.shortest,
                longest: group.longest,
                sentences: group.members.len(),
                mean_length: words as f64 / group.members.len() as f64,
                scores: counts
                    .iter()
                    .map(score)
                    .collect::<Result<_, EvaluateError>>()?,
            })
        };
        let everything = Group {
            shortest: 0,
            longest: None,
            members: (0..lengths.len()).collect(),
        };
        let signature = metric.signature(references);
        Ok(LengthTable {
            metric: metric.name(),
            signature: match bootstrap {
                Some(Bootstrap { resamples, seed }) => signature.with_bootstrap(resamples, seed),
                None => signature,
            },
            systems: systems
                .iter()
                .map(|(name, _)| name.as_ref().to_owned())
                .collect(),
            buckets: self
                .group(&lengths)
                .iter()
                .map(bucket)
                .collect::<Result<_, _>>()?,
            overall: bucket(&everything)?,
        })
    }

    /// Members of each bucket, none empty, small ones merged.
    fn group(&self, lengths: &[usize]) -> Vec<Group> {
        let after = self.edges.iter().map(|edge| edge.saturating_add(1));
        let starts = std::iter::once(0).chain(after);
        let ends = self.edges.iter().copied().map(Some).chain([None]);
        let mut groups: Vec<Group> = starts
            .zip(ends)
            .map(|(shortest, longest)| Group {
                shortest,
                longest,
                members: Vec::new(),
            })
            .collect();
        for (member, length) in lengths.iter().enumerate() {
            groups[self.edges.partition_point(|edge| edge < length)]
                .members
                .push(member);
        }
        // Empty buckets at the end are dropped, or the last label would name lengths that no sentence has.
        while groups.len() > 1 && groups.last().is_some_and(|group| group.members.is_empty()) {
            groups.pop();
        }
        let minimum = self.minimum.max(1);
        for index in (1..groups.len()).rev() {
            if groups[index].members.len() < minimum {
                let longer = groups.remove(index);
                let shorter = &mut groups[index - 1];
                shorter.longest = longer.longest;
                shorter.members.extend(longer.members);
            }
        }
        if groups.len() > 1 && groups[0].members.len() < minimum {
            let shorter = groups.remove(0);
            groups[0].shortest = shorter.shortest;
            groups[0].members.extend(shorter.members);
        }
        groups
    }

    fn check(&self) -> Result<(), EvaluateError> {
        if self.edges.is_sorted_by(|left, right| left < right) && self.edges.first() != Some(&0) {
            return Ok(());
        }
        Err(EvaluateError::InvalidOption {
            option: "the edges of the length buckets",
            given: format!("{:?}", self.edges),
            expected: "numbers above 0, each larger than the one before".to_owned(),
        })
    }
}

impl fmt::Display for LengthTable {
    /// A plain table: bounds, sentences, and each system's score with one decimal.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![vec!["source words".to_owned(), "sentences".to_owned()]];
        rows[0].extend(self.systems.iter().cloned());
        for bucket in self.buckets.iter().chain([&self.overall]) {
            let mut row = vec![bucket.label(), bucket.sentences.to_string()];
            row.extend(bucket.scores.iter().map(|cell| match cell.confidence {
                Some(confidence) => {
                    format!("{:.1} ± {:.1}", cell.score, confidence.half_width)
                }
                None => format!("{:.1}", cell.score),
            }));
            rows.push(row);
        }
        let widths: Vec<usize> = (0..rows[0].len())
            .map(|column| {
                rows.iter()
                    .map(|row| row[column].chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        writeln!(
            formatter,
            "{} by source length ({})",
            self.metric, self.signature
        )?;
        for row in &rows {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .map(|(cell, &width)| format!("{cell:>width$}"))
                .collect();
            writeln!(formatter, "{}", cells.join("  "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Bleu;

    fn shape(buckets: &LengthBuckets, lengths: &[usize]) -> Vec<(usize, Option<usize>, usize)> {
        let groups = buckets.group(lengths);
        groups
            .iter()
            .map(|group| (group.shortest, group.longest, group.members.len()))
            .collect()
    }

    #[test]
    fn edges_are_inclusive_and_small_buckets_merge_downwards() {
        let buckets = LengthBuckets {
            edges: vec![2, 4, 6],
            minimum: 2,
        };
        let kept = shape(&buckets, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(
            kept,
            [
                (0, Some(2), 2),
                (3, Some(4), 2),
                (5, Some(6), 2),
                (7, None, 2)
            ]
        );
        let merged = shape(&buckets, &[1, 2, 3, 4, 5, 9]);
        assert_eq!(merged, [(0, Some(2), 2), (3, Some(4), 2), (5, None, 2)]);
        assert_eq!(shape(&buckets, &[1, 3, 4]), [(0, Some(4), 3)]);
        assert_eq!(shape(&buckets, &[9]), [(0, None, 1)]);
        let endless = LengthBuckets {
            edges: vec![2, usize::MAX],
            minimum: 1,
        };
        let kept = shape(&endless, &[1, 9]);
        assert_eq!(kept, [(0, Some(2), 1), (3, Some(usize::MAX), 1)]);
        assert_eq!(
            shape(
                &LengthBuckets {
                    edges: vec![],
                    minimum: 0
                },
                &[9, 1]
            ),
            [(0, None, 2)]
        );
    }

    #[test]
    fn meaningless_buckets_are_refused() {
        let bleu = Bleu::default();
        for edges in [vec![0, 5], vec![5, 5], vec![9, 3]] {
            let buckets = LengthBuckets { edges, minimum: 1 };
            let table = buckets.table(&bleu, &["a"], &[("x", ["a"])], &[["a"]], None);
            assert!(matches!(table, Err(EvaluateError::InvalidOption { .. })));
        }
        assert!(LengthBuckets::every(0, 10).is_err() && LengthBuckets::every(11, 10).is_err());
        assert_eq!(LengthBuckets::every(5, 15).unwrap().edges, [5, 10, 15]);
        let none: [(&str, [&str; 1]); 0] = [];
        assert!(
            LengthBuckets::default()
                .table(&bleu, &["a"], &none, &[["a"]], None)
                .is_err()
        );
        let uneven =
            LengthBuckets::default().table(&bleu, &["a", "b"], &[("x", ["a"])], &[["a"]], None);
        assert!(
            uneven
                .unwrap_err()
                .to_string()
                .contains("`sources` and `x`")
        );
    }

    #[test]
    fn the_table_prints_and_serialises() {
        let sources = ["a b", "a b c d", "a", "a b c d e"];
        let references = [["w x y z", "w x y z q", "w x y z", "q r s t"]];
        let systems = [
            ("first", references[0].to_vec()),
            ("second", vec!["w x y", "w", "z", "q"]),
        ];
        let buckets = LengthBuckets {
            edges: vec![3],
            minimum: 1,
        };
        let bootstrap = Some(Bootstrap {
            resamples: 40,
            seed: 1,
        });
        let table = buckets
            .table(&Bleu::default(), &sources, &systems, &references, bootstrap)
            .unwrap();
        let text = table.to_string();
        assert!(
            text.contains("≤3") && text.contains(">3") && text.contains("100.0 ± 0.0"),
            "{text}"
        );
        assert!(
            text.starts_with("BLEU by source length (nrefs:1|bs:40|seed:1|case:mixed"),
            "{text}"
        );
        let json = serde_json::to_string(&table).unwrap();
        assert_eq!(
            serde_json::from_str::<LengthTable>(&json)
                .unwrap()
                .to_string(),
            text
        );
    }

    proptest! {
        #[test]
        fn every_sentence_is_in_one_bucket(
            lengths in proptest::collection::vec(0usize..80, 1..60),
            minimum in 0usize..30,
        ) {
            let buckets = LengthBuckets { minimum, ..LengthBuckets::default() };
            let groups = buckets.group(&lengths);
            let mut members: Vec<usize> = groups.iter().flat_map(|g| g.members.clone()).collect();
            members.sort_unstable();
            prop_assert_eq!(members, (0..lengths.len()).collect::<Vec<_>>());
            for group in &groups {
                prop_assert!(group.members.len() >= minimum.max(1) || groups.len() == 1);
                for &member in &group.members {
                    prop_assert!(lengths[member] >= group.shortest);
                    prop_assert!(group.longest.is_none_or(|longest| lengths[member] <= longest));
                }
            }
        }
    }
}
