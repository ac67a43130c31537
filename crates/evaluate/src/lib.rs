//! Scores of a model's output: BLEU and chrF equal to sacrebleu, with their bootstrap, alignment
//! error rate, accuracy, perplexity, and any score by the length of the source.
//!
//! ```text
//! BLEU   = 100 · min(1, exp(1 - r/c)) · exp( 1/4 Σ_n ln p_n )     p_n: clipped n-gram precision
//! chrF_β = 100 · (1 + β²) P R / (β² P + R)                        P, R: means over character n-grams
//! AER    = 1 - (|A ∩ S| + |A ∩ P|) / (|A| + |S|)                  A found, S sure, P possible links
//! ```
//!
//! No tensors, no model: text in, numbers out. A corpus metric is a function of integer counts summed
//! over segments ([`Metric`]), so counting once gives the score of the corpus, of every bootstrap
//! resample and of every bucket of lengths; a metric of your own gets these for free.
//!
//! | type | what it measures | range |
//! |---|---|---|
//! | [`Bleu`] | n-gram precision with a brevity penalty, equal to sacrebleu 2.6.0 | 0 to 100 |
//! | [`Chrf`] | character n-gram F-score (chrF2, chrF++), equal to sacrebleu 2.6.0 | 0 to 100 |
//! | [`Bootstrap`] | 95 % interval of a score; p-value of a difference | |
//! | [`Resampled`] | what has such an interval: metrics of segments, and scores of images ([`Ratio`], [`Matches`], [`CaptionCounts`]) | |
//! | [`LengthBuckets`] | any of these by the length of the source (Bahdanau 2014, Fig. 2) | |
//! | [`Aer`] | alignment error rate against sure and possible gold links | 0 is perfect, to 1 |
//! | [`ExactMatch`] | share of lines that equal their reference | 0 to 1 |
//! | [`Accuracy`] | share of sentences with their true label, with its 95 % interval | 0 to 1 |
//! | [`Looking`] | share of attention inside the object that is spoken of; pointing game | 0 to 1 |
//! | [`AveragePrecision`] | objects that were found, by class, box or mask, and score (COCO) | 0 to 1 |
//! | [`mean_iou`] | how much masks overlap with the true ones | 0 to 1 |
//! | [`vqa_accuracy`] | answers to questions about images, against those of several people (VQA) | 0 to 1 |
//! | [`CaptionScores`] | BLEU-1 to BLEU-4 and CIDEr-D of captions, as pycocoevalcap | 0 to 100, 0 to 10 |
//! | [`Perplexity`] | exp of the mean negative log-likelihood, teacher-forced or free-running | 1 and above |
//! | [`NextToken`], [`ByPosition`] | loss, accuracy and bits per byte of next tokens; by position in a continuation | |
//!
//! Every score carries its [`Signature`], because tokenisation and case move BLEU by points.
//!
//! ```
//! use regard_evaluate::{Bleu, Chrf};
//! let hypotheses = ["A man rides a bicycle.", "Two dogs run on the beach"];
//! let references = [["A man is riding a bicycle.", "Two dogs are running on the beach."]];
//! let bleu = Bleu { lowercase: true, ..Bleu::default() };
//! let score = bleu.corpus(&hypotheses, &references)?;
//! // As sacrebleu prints it: BLEU|nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:... = 24.9 83.3/...
//! println!("{}", score.report().line(1));
//! assert_eq!(format!("{:.2}", score.score), "24.88");
//! let score = Chrf::default().corpus(&hypotheses, &references)?;
//! assert_eq!(format!("{} {:.2}", score.name, score.score), "chrF2 52.04");
//! # Ok::<(), regard_evaluate::EvaluateError>(())
//! ```
//!
//! `lower-cased tokenised BLEU`, as papers on Multi30k print it, is `Tokenizer::None` on text that
//! is tokenised and lower-cased already; the comparable number is `13a` on detokenised text.
//!
//! The crate `sacrebleu-rs` is not used for these reasons. Of our golden cases (`tests/golden/`),
//! version 0.1.0 gets 97 of 425 BLEU and 45 of 250 chrF scores wrong, because Python splits at some
//! white space at which Rust does not (U+001C to U+001F), and because it cuts smoothing values to
//! integers. It panics on streams of unequal length, has no bootstrap, and took 4.1 s where this
//! crate takes 0.5 s (100,000 lines, BLEU).

mod accuracy;
mod alignment;
mod bleu;
mod bootstrap;
mod by_length;
mod captions;
mod chrf;
mod detection;
mod error;
mod exact;
pub mod lines;
mod looking;
mod metric;
mod next_token;
mod ngrams;
mod perplexity;
mod random;
mod resampled;
mod score;
mod tokenize;
mod vqa;

pub use accuracy::{Accuracy, PairedShares};
pub use alignment::{Aer, Alignment, Gold, Indexing, Link};
pub use bleu::{Bleu, BleuScore, Smoothing};
pub use bootstrap::{Bootstrap, MAX_RESAMPLES, PairedBootstrap, SIGNIFICANCE_LEVEL};
pub use by_length::{BucketScore, LengthBucket, LengthBuckets, LengthTable};
pub use captions::{CaptionCounts, CaptionScores};
pub use chrf::{Chrf, ChrfScore};
pub use detection::{
    AveragePrecision, DetectedImage, FoundObject, Matches, MatchesAt, TrueObject, box_iou,
    mask_iou, mean_iou, mean_iou_of,
};
pub use error::EvaluateError;
pub use exact::ExactMatch;
pub use looking::{CellMask, Looking};
pub use metric::{Metric, SegmentCounts};
pub use next_token::{ByPosition, NextToken};
pub use perplexity::{Conditioning, Perplexity};
pub use resampled::{Ratio, Resampled};
pub use score::{Confidence, Score, Signature, VERSION};
pub use tokenize::Tokenizer;
pub use vqa::{normalize_answer, vqa_accuracy, vqa_target};

/// The example of the README runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
