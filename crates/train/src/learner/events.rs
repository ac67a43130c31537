//! The events that training reports, to its caller and as lines of `metrics.jsonl`.

use std::{collections::BTreeMap, path::PathBuf};

use regard_trace::diagnose::LayerMeasures;
use serde::Serialize;

use crate::corpus::FilterReport;

/// An event of training.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Event {
    /// The data is read and the model is drawn (or restored).
    Started(Started),
    /// Some updates are done.
    Train(TrainMetrics),
    /// The model was judged on the validation set.
    Validation(ValidationMetrics),
    /// A checkpoint was written.
    Saved {
        /// The update.
        step: u64,
        /// The file.
        path: PathBuf,
    },
    /// The weights of several checkpoints were averaged, and judged.
    Averaged {
        /// How many checkpoints.
        checkpoints: usize,
        /// Whether the average is the final model (it was no worse than the best checkpoint).
        taken: bool,
        /// The average's validation, if there is a validation set.
        validation: Option<ValidationMetrics>,
    },
    /// Training is over.
    Finished(Summary),
}

/// What training works on.
#[derive(Debug, Clone, Serialize)]
pub struct Started {
    /// The architecture.
    pub model: String,
    /// The number of weights.
    pub parameters: usize,
    /// The weights that a new run draws although it begins with a trained model (`training.start`), which has none of that name and
    /// shape.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drawn: Vec<String>,
    /// What is trained on: "sentence pairs", "labelled sentences", "texts", "images", "captions" or "images with questions".
    pub examples: &'static str,
    /// What [`TrainMetrics::tokens_per_second`] counts: "tokens" or "images".
    pub counted: &'static str,
    /// Whether [`TrainMetrics::perplexity`] says something: the loss is a mean over words.
    pub of_words: bool,
    /// How many of them are trained on, and what was left out.
    pub corpus: FilterReportSummary,
    /// How many of them the validation set has.
    pub validation_pairs: usize,
    /// The vocabularies, where there is text.
    pub vocabulary: Option<Vocabularies>,
    /// Updates of one epoch.
    pub updates_per_epoch: usize,
    /// The share of padding in the first epoch's batches, 0 to 1.
    pub padding: f64,
    /// The update after which a resumed run goes on; `None` for a new run.
    pub resumed_at: Option<u64>,
    /// The update at which training will end at the latest, if that is known.
    pub last_update: Option<u64>,
    /// The run folder.
    pub folder: PathBuf,
    /// How gradients on cards are summed over several processes, in words.
    pub sums: Option<String>,
}

/// The sizes of vocabularies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Vocabularies {
    /// Entries of the source's.
    pub source: usize,
    /// Entries of the target's.
    pub target: usize,
    /// Whether the two are one (always so for a classifier, which has one side).
    pub shared: bool,
}

/// How much of the corpus was kept and dropped.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct FilterReportSummary {
    /// Pairs kept.
    pub kept: usize,
    /// Dropped: an empty side.
    pub empty: usize,
    /// Dropped: too long.
    pub too_long: usize,
    /// Dropped: the lengths differ too much.
    pub ratio: usize,
    /// Kept, but cut.
    pub cut: usize,
    /// Dropped: an image could not be read, or an object of one.
    pub broken: usize,
}

impl From<&FilterReport> for FilterReportSummary {
    fn from(report: &FilterReport) -> Self {
        Self {
            kept: report.kept,
            empty: report.empty,
            too_long: report.too_long,
            ratio: report.ratio,
            cut: report.cut,
            broken: report.broken,
        }
    }
}

/// Averages over the updates since the last such event.
#[derive(Debug, Clone, Serialize)]
pub struct TrainMetrics {
    /// Updates done so far.
    pub step: u64,
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// The loss that is minimised, nats per predicted token or labelled sentence (with label smoothing).
    pub loss: f64,
    /// `exp` of the mean negative log-likelihood of the same, teacher-forced, with dropout. NaN where the loss is no mean over words
    /// ([`Started::of_words`]): the line has no perplexity then.
    #[serde(skip_serializing_if = "is_nan")]
    pub perplexity: f64,
    /// The learning rate of the last update.
    pub learning_rate: f64,
    /// The mean norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Target tokens per second; of labelled sentences, their own tokens; of images without text, images.
    pub tokens_per_second: f64,
    /// Seconds of training so far, resumed ones included.
    pub seconds: f64,
}

/// One validation.
#[derive(Debug, Clone, Serialize)]
pub struct ValidationMetrics {
    /// Updates done so far.
    pub step: u64,
    /// Epochs finished so far, as a fraction.
    pub epoch: f64,
    /// Mean negative log-likelihood per target token (teacher-forced) or sentence (classified), nats,
    /// without smoothing.
    pub loss: f64,
    /// `exp` of the loss: for translation the teacher-forced perplexity. NaN where the loss is no mean over words
    /// ([`Started::of_words`]): the line has no perplexity then.
    #[serde(skip_serializing_if = "is_nan")]
    pub perplexity: f64,
    /// How good the model's output for the validation set is.
    #[serde(flatten)]
    pub quality: Quality,
    /// What the heads of each layer do in the first validation examples, if the recipe asks for it (`validation.diagnose`) and the model
    /// has attention.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attention: Vec<LayerMeasures>,
    /// Whether this is the best so far.
    pub improved: bool,
    /// Seconds of training so far.
    pub seconds: f64,
}

fn is_nan(number: &f64) -> bool {
    number.is_nan()
}

/// How good translations, labels or predictions are.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Quality {
    /// Of translations.
    Bleu {
        /// Corpus BLEU, 0 to 100.
        bleu: f64,
        /// How it was computed.
        signature: String,
    },
    /// Of labels.
    Accuracy {
        /// The share of sentences with their true label, 0 to 1.
        accuracy: f64,
        /// Sentences with their true label.
        correct: usize,
        /// All sentences.
        sentences: usize,
    },
    /// Of answers to questions about images.
    Answers {
        /// The mean accuracy of the answers, 0 to 1; where people answered, that of the VQA evaluation.
        accuracy: f64,
        /// Questions.
        questions: usize,
        /// The same by kind of question.
        kinds: BTreeMap<String, f64>,
        /// The share of questions for which the largest weight of the last look is on the object that is asked for, where that is
        /// known, 0 to 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        pointing: Option<f64>,
    },
    /// Of objects that were found in images.
    Detection {
        /// COCO's average precision of the boxes, 0 to 1.
        average_precision: f64,
        /// The same where an IoU of .5 is enough.
        average_precision_50: f64,
        /// The mean IoU of the masks, of a model with masks.
        #[serde(skip_serializing_if = "Option::is_none")]
        mean_iou: Option<f64>,
    },
    /// Of captions of images.
    Captions {
        /// BLEU-4 of the captions, 0 to 100.
        bleu: f64,
        /// CIDEr-D, 0 to 10.
        cider_d: f64,
        /// The share of captions that equal a reference, 0 to 1.
        exact: f64,
        /// The mean share of attention inside the object that a word speaks of, 0 to 1, where that is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        inside: Option<f64>,
        /// The share of such words whose largest weight is in the object, 0 to 1.
        #[serde(skip_serializing_if = "Option::is_none")]
        pointing: Option<f64>,
    },
    /// Of a language model's predictions; the loss says all about those of masked words.
    Likelihood {
        /// Bits per byte of the text, of a causal model.
        #[serde(skip_serializing_if = "Option::is_none")]
        bits_per_byte: Option<f64>,
    },
}

impl Quality {
    /// BLEU, accuracy or average precision, the higher the better; `None` where the loss decides.
    pub fn score(&self) -> Option<f64> {
        match self {
            Self::Accuracy { accuracy, .. } | Self::Answers { accuracy, .. } => Some(*accuracy),
            Self::Bleu { bleu, .. } | Self::Captions { bleu, .. } => Some(*bleu),
            Self::Detection {
                average_precision, ..
            } => Some(*average_precision),
            Self::Likelihood { .. } => None,
        }
    }
}

/// How training ended.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    /// Updates done.
    pub step: u64,
    /// Why it ended.
    pub reason: Reason,
    /// Seconds of training, resumed ones included.
    pub seconds: f64,
    /// The best validation's update and measure.
    pub best: Option<(u64, f64)>,
    /// The model file; none when training was interrupted.
    pub model: Option<PathBuf>,
}

/// Why training ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// The recipe's last epoch, update or minute.
    Limit,
    /// Validation did not improve any more.
    EarlyStop,
    /// Someone asked it to stop; `--resume` goes on.
    Interrupted,
}
