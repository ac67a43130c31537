//! The full state of a training run in one file, so that an interrupted run can be resumed exactly.
//!
//! `last.safetensors` holds the weights (`model.*`), the optimizer's state (`optimizer.first.*`,
//! `optimizer.second.*`) and, as metadata, the [`Progress`] and the model's description. It replaces
//! the former one atomically.

use std::{cmp::Ordering, collections::HashMap, fs, path::Path};

use regard_nn::weights::{self, Arrays, Difference, WeightsError};
use serde::{Deserialize, Serialize};

use super::schedule::ScheduleState;
use crate::{
    error::TrainError,
    files::FileError,
    model_file::{self, Metadata, ModelFileError},
    ranks::Ranks,
};

/// The entry of metadata that tells a checkpoint from a model.
pub(crate) const PROGRESS: &str = "regard.training";

/// How far a run is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Updates done.
    pub step: u64,
    /// Epochs finished.
    pub epoch: u64,
    /// Batches of the current epoch done.
    pub position: usize,
    /// Updates of the optimizer (equal to `step` unless the optimizer was changed on resuming).
    pub optimizer_step: u32,
    /// What the optimizer's state is, [`Optimizer::state_kind`](crate::recipe::Optimizer::state_kind); `None` in files of before.
    #[serde(default)]
    pub optimizer: Option<String>,
    /// The sums since the last report.
    pub window: Window,
    /// The best validation so far.
    pub best: Option<Best>,
    /// Validations in a row without improvement.
    pub stale: u64,
    /// The state of the learning rate's schedule.
    pub schedule: ScheduleState,
    /// Seconds of training.
    pub seconds: f64,
    /// Seconds of its updates alone, without validation.
    #[serde(default)]
    pub update_seconds: f64,
    /// Target tokens trained on; of labelled sentences, their own tokens.
    #[serde(default)]
    pub tokens: u64,
    /// The running mean of the reward, if the model learns by reward.
    #[serde(default)]
    pub baseline: Option<f32>,
    /// The updates whose models are kept for averaging.
    pub recent: Vec<u64>,
    /// The update of the last validation.
    pub validated: u64,
    /// A hash of the training examples; `None` in files of before.
    #[serde(default)]
    pub data: Option<u64>,
    /// A hash of the validation examples and of how models are judged by them; `None` in files of before.
    #[serde(default)]
    pub validation: Option<u64>,
    /// A hash of the batches of the current epoch, in their order; `None` in files of before.
    #[serde(default)]
    pub batches: Option<u64>,
}

/// The best validation of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Its update.
    pub step: u64,
    /// Its measure: BLEU, the accuracy, or the loss.
    pub measure: f64,
    /// Whether the measure is the loss; `None` in files of before.
    #[serde(default)]
    pub by_loss: Option<bool>,
    /// The loss, by which equal measures are told apart; `None` in files of before.
    #[serde(default)]
    pub loss: Option<f64>,
}

impl Best {
    /// How good a validation is beside this one: by its measure, which is better lower if it is the loss (`by_loss`), and where the two
    /// are equal, such as a BLEU of 0 in the beginning, by the loss. `None` where a number is NaN.
    pub fn order_of(&self, measure: f64, loss: f64, by_loss: bool) -> Option<Ordering> {
        let measures = match by_loss {
            true => self.measure.partial_cmp(&measure)?,
            false => measure.partial_cmp(&self.measure)?,
        };
        let losses = match self.loss {
            Some(best) => best.partial_cmp(&loss)?,
            None => Ordering::Equal,
        };
        Some(measures.then(losses))
    }
}

/// Sums over the updates since the last report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Sum of the smoothed loss.
    pub loss: f64,
    /// Sum of the negative log-likelihood.
    pub negative_log_likelihood: f64,
    /// Sum of the gradient norms.
    pub gradient_norm: f64,
    /// Number of predictions: target tokens, or labelled sentences.
    pub predictions: u64,
    /// Number of tokens.
    pub tokens: u64,
    /// Number of updates.
    pub updates: u64,
    /// Seconds of the updates.
    pub seconds: f64,
}

/// Why a checkpoint could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file could not be read or written, or its weights are damaged.
    #[error(transparent)]
    File(#[from] ModelFileError),
    /// The progress is damaged or missing.
    #[error(
        "{name}: metadata `regard.training` is {problem}; expected the last.safetensors of a `regard train` run"
    )]
    Progress {
        /// The file.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

/// A checkpoint's content.
#[derive(Debug)]
pub struct Checkpoint {
    /// How far the run is.
    pub progress: Progress,
    /// The metadata of a model file.
    pub metadata: HashMap<String, String>,
    /// The weights.
    pub model: Arrays,
    /// The optimizer's state.
    pub optimizer: Arrays,
}

impl Checkpoint {
    /// Writes the checkpoint to `path`; whatever goes wrong, a former one stays whole.
    ///
    /// # Errors
    /// A full disk, above all.
    pub fn save(self, path: &Path) -> Result<(), CheckpointError> {
        let mut metadata = self.metadata;
        let progress = serde_json::to_string(&self.progress).expect("plain data serialises");
        metadata.insert(PROGRESS.to_owned(), progress);
        let mut arrays = Arrays::new();
        for (prefix, part) in [("model", self.model), ("optimizer", self.optimizer)] {
            arrays.extend(
                part.into_iter()
                    .map(|(name, array)| (format!("{prefix}.{name}"), array)),
            );
        }
        Ok(model_file::write(path, &arrays, metadata)?)
    }

    /// The number of updates of the checkpoint at `path`, without its weights; `None` if it cannot be read.
    pub(crate) fn step(path: &Path) -> Option<u64> {
        let metadata = model_file::metadata(path).ok()?;
        Some(progress(&metadata).ok()?.step)
    }

    /// Reads a checkpoint.
    ///
    /// # Errors
    /// A file that is missing, cut short, of another program or damaged.
    pub fn load(path: &Path) -> Result<Self, CheckpointError> {
        Self::of(path, model_file::read(path)?)
    }

    /// As [`load`](Self::load) on rank 0, which hands the file to the others.
    pub(crate) fn load_by_first(path: &Path, ranks: &dyn Ranks) -> Result<Self, TrainError> {
        if ranks.is_alone() {
            return Ok(Self::load(path)?);
        }
        let read = || fs::read(path).map_err(|source| FileError::new(path, "read", source));
        let bytes = if ranks.is_first() { read()? } else { vec![] };
        let read = weights::from_bytes(&ranks.broadcast(bytes)?);
        let read = read.map_err(|source| model_file::wrong_weights(path.display(), source))?;
        Ok(Self::of(path, read)?)
    }

    fn of(
        path: &Path,
        (arrays, mut metadata): (Arrays, Metadata),
    ) -> Result<Self, CheckpointError> {
        let progress = progress(&metadata).map_err(|problem| CheckpointError::Progress {
            name: path.display().to_string(),
            problem,
        })?;
        metadata.remove(PROGRESS);
        let (mut model, mut optimizer) = (Arrays::new(), Arrays::new());
        for (key, array) in arrays {
            match key.split_once('.') {
                Some(("model", rest)) => model.insert(rest.to_owned(), array),
                Some(("optimizer", rest)) => optimizer.insert(rest.to_owned(), array),
                _ => {
                    let (name, shape) = (key, array.shape);
                    let left_over = Difference::Unexpected { name, shape };
                    let left_over = WeightsError::Different(vec![left_over]);
                    return Err(model_file::wrong_weights(path.display(), left_over).into());
                }
            };
        }
        Ok(Self {
            progress,
            metadata,
            model,
            optimizer,
        })
    }
}

fn progress(metadata: &HashMap<String, String>) -> Result<Progress, String> {
    let text = metadata.get(PROGRESS).ok_or("missing")?;
    serde_json::from_str(text).map_err(|error| format!("malformed ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_measures_are_ordered_by_the_loss() {
        use Ordering::{Equal, Greater, Less};
        let best = Best {
            step: 1,
            measure: 20.0,
            by_loss: Some(false),
            loss: Some(2.0),
        };
        for (measure, loss, expected) in [
            (21.0, 3.0, Some(Greater)),
            (19.0, 1.0, Some(Less)),
            (20.0, 1.9, Some(Greater)),
            (20.0, 2.0, Some(Equal)),
            (20.0, 2.1, Some(Less)),
            (21.0, f64::NAN, None),
            (f64::NAN, 1.0, None),
        ] {
            assert_eq!(
                best.order_of(measure, loss, false),
                expected,
                "{measure} {loss}"
            );
        }
        let by_loss = Best {
            measure: 2.0,
            ..best
        };
        assert_eq!(by_loss.order_of(1.5, 1.5, true), Some(Greater));
        assert_eq!(by_loss.order_of(2.5, 2.5, true), Some(Less));
        assert_eq!(by_loss.order_of(f64::NAN, f64::NAN, true), None);
        let unknown = Best { loss: None, ..best };
        assert_eq!(unknown.order_of(20.0, 9.0, false), Some(Equal));
    }
}
