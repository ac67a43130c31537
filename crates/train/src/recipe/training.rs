//! `[training]`: how long, and with which regularisation.

use std::{fmt, path::PathBuf};

use regard_config::{COUNT, Check, FRACTION, NOT_NEGATIVE, POSITIVE, PROBABILITY, Range, config};
use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

const SEED: Range<u64> = Range {
    holds: |seed| seed <= i64::MAX as u64,
    expected: "0 to 9223372036854775807",
};

const AVERAGE: Range<usize> = Range {
    holds: |checkpoints| (1..=100).contains(&checkpoints),
    expected: "1 to 100",
};

const THREADS: Range<usize> = Range {
    holds: |threads| (1..=1024).contains(&threads),
    expected: "1 to 1024",
};

config! {
    /// The run itself. It ends at the first limit that is reached; one must be set.
    pub struct Training {
        /// Seed of parameters, order, dropout and synthetic data.
        seed: u64 = 1, in SEED;
        /// Most passes over the data.
        epochs: Option<u64> = None, in COUNT, example "20";
        /// Most updates.
        steps: Option<u64> = None, in COUNT, example "10000";
        /// Most minutes of training, validation included.
        minutes: Option<f64> = None, in POSITIVE, example "60.0";
        /// Most target tokens trained on; of labelled sentences, their own tokens.
        tokens: Option<u64> = None, in COUNT, example "5000000";
        /// Share of the target's probability spread over the vocabulary, in [0, 1).
        label_smoothing: f64 = 0.0, in FRACTION;
        /// When to validate and save: a number of updates, or "epoch" for the end of each pass.
        validate_every: Every = Every::Epoch;
        /// Validations without improvement before training stops early.
        patience: Option<u64> = None, in COUNT, example "5";
        /// How many of the last checkpoints are averaged into the final model; 1 takes the best.
        average: usize = 1, in AVERAGE;
        /// Updates between two lines of progress.
        log_every: u64 = 50, in COUNT;
        /// Threads; all that the machine has if left out.
        threads: Option<usize> = None, in THREADS, example "2";
        /// A model to begin with: a file or run folder; for a "transformer-lm" or "transformer-classifier" also a pretrained one (BERT,
        /// RoBERTa, DistilBERT, GPT-2, Llama): its folder, its name in the cache, or "hf:organisation/name". Its tokenizers are taken, so
        /// that [data] may say nothing of tokens, of a Transformer of tokens also its sizes, and all weights whose name and shape both
        /// models have; the others are drawn, which training tells.
        start: Option<PathBuf> = None, example "\"runs/language-model\"";
        /// Weights that are not trained: those whose names begin so. A batch norm of which all weights are among them keeps its running mean
        /// and variance, and uses them as after training.
        frozen: Option<String> = None, example "\"transformer\"";
        /// Weight of the loss that pulls the last look to what a question asks for, 0 for none; for drawn scenes, whose objects are
        /// known (Liu et al. 2017, arXiv:1605.09553).
        guided_attention: f64 = 0.0, in NOT_NEGATIVE;
        /// Feeding the decoder its own words; teacher forcing if left out.
        [table] scheduled_sampling: Option<ScheduledSampling> = None;
    }
    check Training::agree
}

impl Training {
    fn agree(&self, check: &mut Check) {
        if let Every::Steps(steps) = self.validate_every {
            check.range("validate_every", &steps, COUNT);
        }
    }

    /// Whether there is a limit at which training ends.
    pub(super) fn is_limited(&self) -> bool {
        let counts = [self.epochs, self.steps, self.tokens];
        self.minutes.is_some() || counts.iter().any(Option::is_some)
    }
}

config! {
    /// Scheduled sampling (Bengio et al. 2015): with a probability that rises in a straight line
    /// from 0, the decoder's input is its own last prediction in place of the true word.
    pub struct ScheduledSampling {
        /// The probability at the end, in [0, 1].
        final_probability: f64 = 0.25, in PROBABILITY;
        /// Updates until then, at least 1.
        decay_steps: u64 = 5_000, in COUNT;
    }
}

/// How often something happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Every {
    /// At the end of each pass over the data.
    Epoch,
    /// After this many updates.
    Steps(u64),
}

impl Serialize for Every {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Epoch => serializer.serialize_str("epoch"),
            Self::Steps(steps) => serializer.serialize_u64(*steps),
        }
    }
}

impl<'de> Deserialize<'de> for Every {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EveryVisitor;
        impl Visitor<'_> for EveryVisitor {
            type Value = Every;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of updates or \"epoch\"")
            }
            fn visit_i64<E: serde::de::Error>(self, steps: i64) -> Result<Every, E> {
                let unexpected = serde::de::Unexpected::Signed(steps);
                u64::try_from(steps)
                    .map(Every::Steps)
                    .map_err(|_| E::invalid_value(unexpected, &self))
            }
            fn visit_u64<E: serde::de::Error>(self, steps: u64) -> Result<Every, E> {
                Ok(Every::Steps(steps))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Every, E> {
                if text == "epoch" {
                    Ok(Every::Epoch)
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Str(text), &self))
                }
            }
        }
        deserializer.deserialize_any(EveryVisitor)
    }
}
