//! Scores of captions of images with several references each: BLEU-1 to BLEU-4, and CIDEr-D (Vedantam et al. 2015).
//!
//! ```text
//! g_n(s)[w] = count_s(w) · (ln N - ln max(1, df(w)))            w: n-gram; N images, in df(w) of which a reference has w
//! sim_n     = Σ_w min(g_n(c)[w], g_n(r)[w]) g_n(r)[w] / (|g_n(c)| |g_n(r)|) · exp(-(l_c - l_r)² / (2 · 6²))
//! CIDEr-D   = 10 · mean over images, their references r, and n = 1..4 of sim_n
//! ```
//!
//! `l` counts the bigrams of a caption. All captions are words between white space, lower-cased and without punctuation by the caller.
//! The definitions are those of `pycocoevalcap`, whose numbers these are on such text, also where no n-gram of some length has a match
//! ([`Smoothing::Tiny`]). As its tokenizer does (that of the Penn Treebank), contractions are split: `there's` is `there 's`, `don't` is
//! `do n't`, `cannot` is `can not`. Two things differ: words with other apostrophes, which that tokenizer splits by lists of words and
//! letters (`y'all`, `rock'n'roll`, `b'day`), or whose apostrophe it keeps at the edge (`'em`, `'90s`, `ol'`); and words with a hyphen,
//! which stay whole there. With a single image every inverse frequency, and so CIDEr-D, is 0.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::{
    Bleu, EvaluateError, Metric, Ratio, Resampled, SegmentCounts, Smoothing, Tokenizer, lines,
};

/// The highest order of n-grams.
const ORDER: usize = 4;

/// Deviation of the Gaussian on differences of length.
const DEVIATION: f64 = 6.0;

/// Ends of contractions, which are words of their own.
const CLITICS: [&str; 7] = ["n't", "'s", "'m", "'d", "'re", "'ve", "'ll"];

/// Words that are two, of which the first has three letters.
const FUSED: [&str; 6] = ["cannot", "gimme", "gonna", "gotta", "lemme", "wanna"];

/// BLEU and CIDEr-D of captions.
///
/// ```
/// use regard_evaluate::CaptionScores;
/// let captions = ["a red ball", "two dogs run"];
/// let references = [vec!["a red ball", "the ball is red"], vec!["two dogs run fast"]];
/// let scores = CaptionScores::of(&captions, &references)?;
/// assert_eq!(format!("{:.2} {:.2}", scores.bleu[0], scores.cider_d), "84.65 5.18");
/// # Ok::<(), regard_evaluate::EvaluateError>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CaptionScores {
    /// BLEU with n-grams of up to 1, 2, 3 and 4 words, 0 to 100. Where an order has no match it is a small number
    /// ([`Smoothing::Tiny`]): as BLEU-4 up to 3.2 if no caption has four words, otherwise below 0.02.
    pub bleu: [f64; ORDER],
    /// CIDEr-D, 0 to 10.
    pub cider_d: f64,
}

impl CaptionScores {
    /// Scores each of `captions` against the `references` with the same number, at least one each.
    ///
    /// # Errors
    /// [`EvaluateError::LineCounts`], [`EvaluateError::Empty`], [`EvaluateError::NoReferences`].
    pub fn of<C, R, S>(captions: &[C], references: &[R]) -> Result<Self, EvaluateError>
    where
        C: AsRef<str> + Sync,
        R: AsRef<[S]> + Sync,
        S: AsRef<str> + Sync,
    {
        Ok(CaptionCounts::collect(captions, references)?.scores())
    }
}

/// Captions counted image by image, from which the scores of any choice of the images follow.
///
/// ```
/// use regard_evaluate::{Bootstrap, CaptionCounts};
/// let captions = ["a red ball", "two dogs run", "a blue ball"];
/// let references = [["a red ball"], ["two dogs run fast"], ["a small blue ball"]];
/// let counts = CaptionCounts::collect(&captions, &references)?;
/// let interval = Bootstrap::default().confidence_of(counts.cider_d())?.unwrap();
/// let score = counts.scores().cider_d;
/// assert!(interval.lower < score && score < interval.upper);
/// # Ok::<(), regard_evaluate::EvaluateError>(())
/// ```
#[derive(Debug, Clone)]
pub struct CaptionCounts {
    /// BLEU with n-grams of up to 1, 2, 3 and 4 words, and what it counts.
    bleu: [(Bleu, SegmentCounts); ORDER],
    cider_d: Ratio,
}

impl CaptionCounts {
    /// Counts each of `captions` against the `references` with the same number, at least one each.
    ///
    /// # Errors
    /// [`EvaluateError::LineCounts`], [`EvaluateError::Empty`], [`EvaluateError::NoReferences`].
    pub fn collect<C, R, S>(captions: &[C], references: &[R]) -> Result<Self, EvaluateError>
    where
        C: AsRef<str> + Sync,
        R: AsRef<[S]> + Sync,
        S: AsRef<str> + Sync,
    {
        lines::check_aligned(
            ("captions", captions.len()),
            ("references", references.len()),
        )?;
        let captions: Vec<String> = captions.iter().map(|one| treebank(one.as_ref())).collect();
        let of_image = |refs: &R| {
            let refs = refs.as_ref().iter();
            refs.map(|one| treebank(one.as_ref())).collect()
        };
        let references: Vec<Vec<String>> = references.iter().map(of_image).collect();
        let most = references.iter().map(Vec::len).max().unwrap_or(0);
        if references.iter().any(Vec::is_empty) {
            return Err(EvaluateError::NoReferences);
        }
        // Streams of one length: to an image with fewer references its first is given again, which changes neither clipping nor the
        // closest length.
        let stream = |nth: usize| {
            let nth = references
                .iter()
                .map(move |refs| &refs[if nth < refs.len() { nth } else { 0 }]);
            nth.collect::<Vec<_>>()
        };
        let streams: Vec<Vec<&String>> = (0..most).map(stream).collect();
        let counted = |order: usize| -> Result<(Bleu, SegmentCounts), EvaluateError> {
            let metric = Bleu {
                tokenizer: Tokenizer::None,
                smoothing: Smoothing::Tiny,
                order,
                ..Bleu::default()
            };
            let counts = SegmentCounts::collect(&metric, &captions, &streams)?;
            Ok((metric, counts))
        };
        Ok(Self {
            bleu: [counted(1)?, counted(2)?, counted(3)?, counted(4)?],
            cider_d: cider_d(&captions, &references),
        })
    }

    /// The scores of all images.
    pub fn scores(&self) -> CaptionScores {
        let bleu = self.bleu.each_ref();
        CaptionScores {
            bleu: bleu.map(|(metric, counts)| metric.score(&counts.total())),
            cider_d: self.cider_d.all().unwrap_or_default(),
        }
    }

    /// BLEU-4 of any choice of the images.
    pub fn bleu_4(&self) -> (&dyn Metric, &SegmentCounts) {
        let (metric, counts) = &self.bleu[ORDER - 1];
        (metric, counts)
    }

    /// CIDEr-D of any choice of the images; how frequent an n-gram is, is counted in the references of all.
    pub fn cider_d(&self) -> &Ratio {
        &self.cider_d
    }
}

impl fmt::Display for CaptionScores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, two, three, four] = self.bleu;
        let cider = self.cider_d;
        write!(
            f,
            "BLEU-1 to 4 {one:.2} {two:.2} {three:.2} {four:.2}, CIDEr-D {cider:.3}"
        )
    }
}

/// A caption with its contractions split as in the Penn Treebank, and without the apostrophes around a word.
fn treebank(caption: &str) -> String {
    let mut words = vec![];
    for word in caption.split_whitespace() {
        let (mut stem, mut ends) = (word.trim_end_matches('\''), vec![]);
        let clitic = |word: &str| CLITICS.into_iter().find(|&end| word.ends_with(end));
        while let Some(end) = clitic(stem).filter(|end| end.len() < stem.len()) {
            stem = &stem[..stem.len() - end.len()];
            ends.push(end);
        }
        // An end that stands alone is such a word already.
        if !CLITICS.contains(&stem) {
            stem = stem.trim_start_matches('\'');
        }
        let (first, second) = match FUSED.contains(&stem) {
            true => stem.split_at(3),
            false => (stem, ""),
        };
        let parts = [first, second].into_iter().chain(ends.into_iter().rev());
        words.extend(parts.filter(|part| !part.is_empty()));
    }
    words.join(" ")
}

/// A number for each n-gram, which is words side by side.
type NGrams<'a> = BTreeMap<Vec<&'a str>, f64>;

fn ngrams(caption: &str) -> NGrams<'_> {
    let words: Vec<&str> = caption.split_whitespace().collect();
    let mut counts = NGrams::new();
    for order in 1..=ORDER {
        for ngram in words.windows(order) {
            *counts.entry(ngram.to_vec()).or_default() += 1.0;
        }
    }
    counts
}

/// Weights of a caption's n-grams, their norms by order, and its number of bigrams.
struct Weighted<'a> {
    weights: NGrams<'a>,
    norms: [f64; ORDER],
    bigrams: f64,
}

impl<'a> Weighted<'a> {
    fn new(caption: &'a str, frequency: &NGrams<'_>, images: usize) -> Self {
        let mut weighted = Self {
            weights: ngrams(caption),
            norms: [0.0; ORDER],
            bigrams: 0.0,
        };
        for (ngram, weight) in &mut weighted.weights {
            if ngram.len() == 2 {
                weighted.bigrams += *weight;
            }
            let known: f64 = frequency.get(ngram).copied().unwrap_or(1.0);
            *weight *= (images as f64).ln() - known.ln();
            weighted.norms[ngram.len() - 1] += weight.powi(2);
        }
        weighted.norms = weighted.norms.map(f64::sqrt);
        weighted
    }
}

/// CIDEr-D as a mean over the images.
fn cider_d(captions: &[String], references: &[Vec<String>]) -> Ratio {
    let mut frequency = NGrams::new();
    for refs in references {
        let seen: BTreeSet<Vec<&str>> = refs
            .iter()
            .flat_map(|one| ngrams(one).into_keys())
            .collect();
        for ngram in seen {
            *frequency.entry(ngram).or_default() += 1.0;
        }
    }
    let images = references.len().max(1);
    let of_image = |(caption, refs): (&String, &Vec<String>)| {
        let caption = Weighted::new(caption, &frequency, images);
        let similar = refs.iter().map(|one| {
            let reference = Weighted::new(one, &frequency, images);
            let mut sums = [0.0; ORDER];
            for (ngram, &own) in &caption.weights {
                let other = reference.weights.get(ngram).copied().unwrap_or(0.0);
                sums[ngram.len() - 1] += own.min(other) * other;
            }
            let difference = caption.bigrams - reference.bigrams;
            let alike = (-difference.powi(2) / (2.0 * DEVIATION.powi(2))).exp();
            let norms = caption.norms.iter().zip(&reference.norms);
            let cosines = sums
                .iter()
                .zip(norms)
                .map(|(sum, (a, b))| match a * b > 0.0 {
                    true => sum / (a * b),
                    false => *sum,
                });
            cosines.sum::<f64>() * alike / ORDER as f64
        });
        (10.0 * similar.sum::<f64>() / refs.len() as f64, 1.0)
    };
    let scores: Vec<(f64, f64)> = captions.par_iter().zip(references).map(of_image).collect();
    scores.into_iter().collect()
}
