//! Alignment error rate: do the attention weights point where people say the words belong?
//!
//! ```text
//! AER = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|),   S ⊆ P
//! precision = |A ∩ P| / |A|,   recall = |A ∩ S| / |S|
//! ```
//! `A` are the links found, `S` the sure and `P` the possible links of the gold standard, each
//! summed over all sentences (Och & Ney 2003). 0 is perfect. Text is in Pharaoh format: one
//! sentence pair a line, `source-target` a link, `source?target` a link that is possible but not
//! sure; positions count words from 0, or from 1 if asked.
//!
//! ```
//! use regard_evaluate::{Aer, Alignment, Gold, Indexing};
//! let gold = Gold::parse("gold", "0-0 1?1 2-1\n", Indexing::FromZero)?;
//! let found = Alignment::parse("found", "0-0 1-1 3-2\n", Indexing::FromZero)?;
//! let aer = Aer::of(&found, &gold)?;
//! assert_eq!((aer.error_rate(), aer.precision(), aer.recall()), (0.4, 2.0 / 3.0, 0.5));
//! # Ok::<(), regard_evaluate::EvaluateError>(())
//! ```

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{EvaluateError, lines};

/// The number of the first word in alignment text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Indexing {
    /// Words count from 0, the Pharaoh convention.
    #[default]
    FromZero,
    /// Words count from 1, as in several gold standards.
    FromOne,
}

/// A source word and a target word that belong together, both counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Link {
    /// Position in the source sentence.
    pub source: u32,
    /// Position in the target sentence.
    pub target: u32,
}

/// The links of one sentence pair, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alignment {
    /// The links in order of source, then target position.
    pub links: BTreeSet<Link>,
}

/// The gold standard of one sentence pair.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gold {
    /// `S`: links that must be found.
    sure: BTreeSet<Link>,
    /// `P`: links that may be found; every sure link is among them.
    possible: BTreeSet<Link>,
}

impl FromIterator<Link> for Alignment {
    fn from_iter<I: IntoIterator<Item = Link>>(links: I) -> Self {
        Self {
            links: links.into_iter().collect(),
        }
    }
}

impl Alignment {
    /// The most attended source word of each target word, as Luong et al. 2015 do for attention.
    ///
    /// `weights` is `[targets, sources]` row by row. Of equal weights the first counts. A row of
    /// zeros or NaN (nothing was attended to) gives no link.
    ///
    /// # Errors
    /// [`EvaluateError::WeightShape`] if `weights` does not hold `targets x sources` numbers.
    pub fn from_weights(
        weights: &[f32],
        targets: usize,
        sources: usize,
    ) -> Result<Self, EvaluateError> {
        if targets.checked_mul(sources) != Some(weights.len()) {
            return Err(EvaluateError::WeightShape {
                given: weights.len(),
                targets,
                sources,
            });
        }
        if sources == 0 {
            return Ok(Self::default());
        }
        let links = weights
            .chunks_exact(sources)
            .zip(0..)
            .filter_map(|(row, target)| {
                let mut best: Option<(u32, f32)> = None;
                for (&weight, source) in row.iter().zip(0..) {
                    if weight > best.map_or(0.0, |(_, highest)| highest) {
                        best = Some((source, weight));
                    }
                }
                best.map(|(source, _)| Link { source, target })
            });
        Ok(links.collect())
    }

    /// Parses links in Pharaoh format, one sentence pair a line; `name` says in errors where the
    /// text came from.
    ///
    /// # Errors
    /// [`EvaluateError::MalformedLink`], also for a possible link (`i?j`), which only a gold
    /// standard can hold.
    pub fn parse(name: &str, text: &str, indexing: Indexing) -> Result<Vec<Self>, EvaluateError> {
        parse_lines(name, text, "`source-target`, such as `0-2`", |token| {
            parse_link(token, '-', indexing)
        })
        .map(|sentences| {
            sentences
                .into_iter()
                .map(|links| links.into_iter().collect())
                .collect()
        })
    }
}

impl fmt::Display for Alignment {
    /// Pharaoh format, counted from 0.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, link) in self.links.iter().enumerate() {
            let space = if number > 0 { " " } else { "" };
            write!(formatter, "{space}{}-{}", link.source, link.target)?;
        }
        Ok(())
    }
}

impl Gold {
    /// A gold standard of sure links and of links that are only possible.
    pub fn new(
        sure: impl IntoIterator<Item = Link>,
        possible: impl IntoIterator<Item = Link>,
    ) -> Self {
        let sure: BTreeSet<Link> = sure.into_iter().collect();
        let possible = possible.into_iter().chain(sure.iter().copied()).collect();
        Self { sure, possible }
    }

    /// The links that must be found.
    pub fn sure(&self) -> &BTreeSet<Link> {
        &self.sure
    }

    /// The links that may be found, the sure ones included.
    pub fn possible(&self) -> &BTreeSet<Link> {
        &self.possible
    }

    /// Parses sure (`i-j`) and possible (`i?j`) links, one sentence pair a line.
    ///
    /// # Errors
    /// [`EvaluateError::MalformedLink`].
    pub fn parse(name: &str, text: &str, indexing: Indexing) -> Result<Vec<Self>, EvaluateError> {
        let expected =
            "`source-target` for a sure link or `source?target` for a possible one, such as `0-2`";
        let sentences = parse_lines(name, text, expected, |token| {
            let is_sure = !token.contains('?');
            parse_link(token, if is_sure { '-' } else { '?' }, indexing).map(|link| (is_sure, link))
        })?;
        let gold = |links: Vec<(bool, Link)>| {
            let sure = links
                .iter()
                .filter(|(is_sure, _)| *is_sure)
                .map(|(_, link)| *link);
            Self::new(sure, links.iter().map(|(_, link)| *link))
        };
        Ok(sentences.into_iter().map(gold).collect())
    }
}

/// Parses each white-space separated token of each line.
fn parse_lines<T>(
    name: &str,
    text: &str,
    expected: &'static str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<Vec<T>>, EvaluateError> {
    let sentences = lines::parse(name, text.as_bytes())?;
    sentences
        .iter()
        .enumerate()
        .map(|(line, links)| {
            let tokens = links.split_ascii_whitespace().enumerate();
            tokens
                .map(|(position, token)| {
                    parse(token).map_err(|reason| EvaluateError::MalformedLink {
                        name: name.to_owned(),
                        line: line + 1,
                        position: position + 1,
                        token: token.to_owned(),
                        reason,
                        expected,
                    })
                })
                .collect()
        })
        .collect()
}

fn parse_link(token: &str, separator: char, indexing: Indexing) -> Result<Link, String> {
    let (source, target) = token
        .split_once(separator)
        .ok_or_else(|| format!("no `{separator}` between two positions"))?;
    let position = |side: &str, digits: &str| {
        // `u32::from_str` would also take a sign.
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!(
                "the {side} position `{digits}` is not a whole number"
            ));
        }
        let written: u32 = digits
            .parse()
            .map_err(|_| format!("the {side} position `{digits}` is too large"))?;
        match indexing {
            Indexing::FromZero => Ok(written),
            Indexing::FromOne => written
                .checked_sub(1)
                .ok_or_else(|| format!("the {side} position is 0 although words count from 1")),
        }
    };
    Ok(Link {
        source: position("source", source)?,
        target: position("target", target)?,
    })
}

/// The counts behind an alignment error rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aer {
    /// `|A|`: links found.
    pub found: u64,
    /// `|S|`: sure links of the gold standard.
    pub sure: u64,
    /// `|A ∩ S|`.
    pub found_sure: u64,
    /// `|A ∩ P|`.
    pub found_possible: u64,
}

impl Aer {
    /// Counts the links of aligned sentence pairs.
    ///
    /// # Errors
    /// [`EvaluateError::LineCounts`] if the two differ in their number of sentence pairs.
    pub fn of(found: &[Alignment], gold: &[Gold]) -> Result<Self, EvaluateError> {
        lines::check_aligned(
            ("alignments found", found.len()),
            ("gold alignments", gold.len()),
        )?;
        let mut counts = Self::default();
        for (found, gold) in found.iter().zip(gold) {
            counts.found += found.links.len() as u64;
            counts.sure += gold.sure.len() as u64;
            counts.found_sure += found.links.intersection(&gold.sure).count() as u64;
            counts.found_possible += found.links.intersection(&gold.possible).count() as u64;
        }
        Ok(counts)
    }

    /// From 0, perfect, to 1; 0 if there was nothing to find and nothing was found.
    pub fn error_rate(&self) -> f64 {
        if self.found + self.sure == 0 {
            return 0.0;
        }
        let right = (self.found_sure + self.found_possible) as f64;
        1.0 - right / (self.found + self.sure) as f64
    }

    /// Share of the links found that are possible; 1 if none was found.
    pub fn precision(&self) -> f64 {
        if self.found == 0 {
            1.0
        } else {
            self.found_possible as f64 / self.found as f64
        }
    }

    /// Share of the sure links that were found; 1 if there is none.
    pub fn recall(&self) -> f64 {
        if self.sure == 0 {
            1.0
        } else {
            self.found_sure as f64 / self.sure as f64
        }
    }
}

/// With four decimals, or as many as the format asks for: `{aer:.6}`.
impl fmt::Display for Aer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = formatter.precision().unwrap_or(4);
        write!(
            formatter,
            "AER {:.digits$} (precision {:.digits$}, recall {:.digits$}, {} links found, {} sure)",
            self.error_rate(),
            self.precision(),
            self.recall(),
            self.found,
            self.sure
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gold(text: &str) -> Vec<Gold> {
        Gold::parse("gold.wa", text, Indexing::FromZero).unwrap()
    }

    fn found(text: &str) -> Vec<Alignment> {
        Alignment::parse("found.wa", text, Indexing::FromZero).unwrap()
    }

    #[test]
    fn perfect_and_hopeless() {
        let perfect = Aer::of(&found("0-0 1-2\n0-0\n"), &gold("0-0 1?1 1-2\n0-0\n")).unwrap();
        assert_eq!(
            (perfect.error_rate(), perfect.precision(), perfect.recall()),
            (0.0, 1.0, 1.0)
        );
        let hopeless = Aer::of(&found("5-5\n\n"), &gold("0-0 1-2\n0-0\n")).unwrap();
        assert_eq!(
            (
                hopeless.error_rate(),
                hopeless.precision(),
                hopeless.recall()
            ),
            (1.0, 0.0, 0.0)
        );
        assert_eq!(Aer::of(&[], &[]).unwrap().error_rate(), 0.0);
    }

    #[test]
    fn one_based_text_is_shifted_and_zero_is_refused_there() {
        let shifted = Gold::parse("g", "1-1 2?3\n", Indexing::FromOne).unwrap();
        assert_eq!(shifted, gold("0-0 1?2\n"));
        let error = Gold::parse("g", "1-1\n2-0\n", Indexing::FromOne)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("line 2, link 1 `2-0`") && error.contains("target"),
            "{error}"
        );
    }

    #[test]
    fn malformed_links_are_located() {
        for wrong in [
            "3",
            "3-",
            "-3",
            "a-1",
            "1--2",
            "1-+2",
            "1:2",
            "1-99999999999",
            "1-2-3",
            "1?2?3",
            "?",
            "１-2",
        ] {
            let text = format!("0-0\n0-0 {wrong} 1-1\n");
            let error = Gold::parse("gold.wa", &text, Indexing::FromZero).unwrap_err();
            let message = error.to_string();
            assert!(
                message.contains(&format!("`gold.wa`, line 2, link 2 `{wrong}`")),
                "{message}"
            );
        }
        assert!(Alignment::parse("a", "0?0\n", Indexing::FromZero).is_err());
        assert!(Aer::of(&found("0-0\n"), &gold("0-0\n0-0\n")).is_err());
    }

    #[test]
    fn the_most_attended_word_is_the_link() {
        let weights = [
            0.1,
            0.8,
            0.1,
            0.5,
            0.5,
            0.0,
            0.0,
            0.0,
            0.0,
            f32::NAN,
            0.2,
            0.3,
        ];
        let links = Alignment::from_weights(&weights, 4, 3).unwrap();
        assert_eq!(links.to_string(), "0-1 1-0 2-3");
        assert!(matches!(
            Alignment::from_weights(&weights, 4, 4),
            Err(EvaluateError::WeightShape { given: 12, .. })
        ));
        assert!(Alignment::from_weights(&[], usize::MAX, 2).is_err());
        assert_eq!(
            Alignment::from_weights(&[], 3, 0).unwrap(),
            Alignment::default()
        );
    }

    proptest! {
        #[test]
        fn text_round_trips(links in proptest::collection::btree_set((0u32..50, 0u32..50), 0..20)) {
            let alignment: Alignment =
                links.into_iter().map(|(source, target)| Link { source, target }).collect();
            let text = format!("{alignment}\n");
            prop_assert_eq!(found(&text), vec![alignment]);
        }

        #[test]
        fn any_text_parses_or_is_refused(text in ".*") {
            let _ = Gold::parse("t", &text, Indexing::FromOne);
            let _ = Alignment::parse("t", &text, Indexing::FromZero);
        }
    }
}
