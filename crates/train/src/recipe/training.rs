//! `[training]`: how long, and with which regularisation.

use std::fmt;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::section::{plain_fields, section};

section! {
    /// The run itself. It ends at the first limit that is reached; one must be set.
    pub struct Training {
        /// Seed of parameters, order, dropout and synthetic data.
        seed: u64 = 1;
        /// Most passes over the data.
        epochs: Option<u64> = None, example "20";
        /// Most updates.
        steps: Option<u64> = None, example "10000";
        /// Most minutes of training, validation included.
        minutes: Option<f64> = None, example "60.0";
        /// Most target tokens trained on; of labelled sentences, their own tokens.
        tokens: Option<u64> = None, example "5000000";
        /// Share of the target's probability spread over the vocabulary, in [0, 1).
        label_smoothing: f64 = 0.0;
        /// When to validate and save: a number of updates, or "epoch" for the end of each pass.
        validate_every: Every = Every::Epoch;
        /// Validations without improvement before training stops early.
        patience: Option<u64> = None, example "5";
        /// How many of the last checkpoints are averaged into the final model; 1 takes the best.
        average: usize = 1;
        /// Updates between two lines of progress.
        log_every: u64 = 50;
        /// Threads; all that the machine has if left out.
        threads: Option<usize> = None, example "2";
        /// Feeding the decoder its own words; teacher forcing if left out.
        scheduled_sampling: Option<ScheduledSampling> = None;
    }
}

section! {
    /// Scheduled sampling (Bengio et al. 2015): with a probability that rises in a straight line
    /// from 0, the decoder's input is its own last prediction in place of the true word.
    pub struct ScheduledSampling {
        /// The probability at the end, in [0, 1].
        final_probability: f64 = 0.25;
        /// Updates until then, at least 1.
        decay_steps: u64 = 5_000;
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

plain_fields!(Every);

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
