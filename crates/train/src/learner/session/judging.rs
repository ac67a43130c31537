//! Which model of a run is its best: validations, and the average of the last ones.

use std::{cmp::Ordering as Order, path::PathBuf, time::Instant};

use burn::module::Module;
use regard_nn::weights::{self, Arrays};
use regard_trace::diagnose::{LayerMeasures, Layers};

use super::{
    super::{
        BEST, MODEL, RECENT,
        checkpoint::Best,
        events::{Event, ValidationMetrics},
    },
    Session, perplexity, recent,
};
use crate::{
    corpus::CorpusError,
    error::TrainError,
    files,
    recipe::{Measure, Recipe},
    tasks::{Task, Verdict, fingerprint},
};

impl<T: Task> Session<'_, T> {
    /// Judges the model, remembers it if it is the best so far, and keeps it for averaging.
    pub(super) fn judge(&mut self) -> Result<(), TrainError> {
        self.progress.validated = self.progress.step;
        let arrays = self.is_first().then(|| weights::collect(self.model()));
        let started = Instant::now();
        let mut metrics = None;
        if let Some((verdict, attention)) = self.validate(self.model())? {
            self.progress.seconds += started.elapsed().as_secs_f64();
            let (measure, step) = (self.measure(&verdict), self.progress.step);
            // Before the state of such a model takes the place of a good one.
            if verdict.loss.is_nan() {
                let loss = verdict.loss;
                return Err(TrainError::Loss { loss, step });
            }
            let best = self.progress.best;
            let improved = measure.is_finite()
                && best.is_none_or(|best| self.against(best, &verdict) == Some(Order::Greater));
            self.progress.stale = if improved { 0 } else { self.progress.stale + 1 };
            self.progress
                .schedule
                .validated(&self.recipe.schedule, improved);
            if improved {
                self.progress.best = Some(self.as_best(&verdict));
                if let Some(arrays) = &arrays {
                    self.write_model(BEST, arrays)?;
                }
            }
            if !verdict.lines.is_empty() {
                let file = format!("step-{}.txt", self.progress.step);
                self.write_lines(&file, &verdict.lines)?;
            }
            metrics = Some(self.metrics(&verdict, attention, improved));
        }
        self.keep_recent(arrays.as_ref())?;
        // Last, as what fails is done again.
        match metrics {
            Some(metrics) => self.tell(Event::Validation(metrics)),
            None => Ok(()),
        }
    }

    /// Judges `model`, and measures what it looks at.
    fn validate(
        &self,
        model: &T::Model,
    ) -> Result<Option<(Verdict, Vec<LayerMeasures>)>, TrainError> {
        let model = model.valid();
        let verdict = self.task.validate(
            &self.data,
            &self.description,
            &model,
            &self.recipe,
            self.run.device,
            self.run.ranks,
        )?;
        let Some(verdict) = verdict else {
            return Ok(None);
        };
        // One example after the other: the maps of all together could be large. Only rank 0 tells what it measures. Of a model that
        // computes no numbers the loss tells.
        let examples = match self.is_first() && !verdict.loss.is_nan() {
            true => self.recipe.validation.diagnose.unwrap_or(0),
            false => 0,
        };
        let mut layers = Layers::default();
        for row in 0..examples {
            let seen =
                self.task
                    .look(&self.data, &self.description, &model, row, self.run.device)?;
            let Some(trace) = seen else { break };
            layers.add(&trace);
        }
        Ok(Some((verdict, layers.measures())))
    }

    pub(super) fn by_loss(&self) -> bool {
        by_loss::<T>(&self.recipe)
    }

    fn measure(&self, verdict: &Verdict) -> f64 {
        match verdict.quality.score() {
            Some(score) if !self.by_loss() => score,
            _ => verdict.loss,
        }
    }

    /// The validation of the present update as the best one.
    fn as_best(&self, verdict: &Verdict) -> Best {
        Best {
            step: self.progress.step,
            measure: self.measure(verdict),
            by_loss: Some(self.by_loss()),
            loss: Some(verdict.loss).filter(|loss| loss.is_finite()),
        }
    }

    /// How good a validation is beside the best one.
    fn against(&self, best: Best, verdict: &Verdict) -> Option<Order> {
        best.order_of(self.measure(verdict), verdict.loss, self.by_loss())
    }

    fn metrics(
        &self,
        verdict: &Verdict,
        attention: Vec<LayerMeasures>,
        improved: bool,
    ) -> ValidationMetrics {
        let epoch = self.progress.epoch as f64;
        let within = self.progress.position as f64 / self.order().len().max(1) as f64;
        ValidationMetrics {
            step: self.progress.step,
            epoch: epoch + within,
            loss: verdict.loss,
            perplexity: perplexity::<T>(verdict.loss),
            quality: verdict.quality.clone(),
            attention,
            improved,
            seconds: self.progress.seconds,
        }
    }

    /// Keeps the model of this validation.
    fn keep_recent(&mut self, arrays: Option<&Arrays>) -> Result<(), TrainError> {
        let keep = self.recipe.training.average;
        if keep > 1 {
            if let Some(arrays) = arrays {
                files::create_folder(&self.run.folder.join(RECENT))?;
                self.write_model(&recent(self.progress.step), arrays)?;
            }
            self.progress.recent.push(self.progress.step);
        }
        self.leave_out_oldest();
        Ok(())
    }

    /// The oldest of the kept models beyond `training.average` are no longer needed once this is saved.
    pub(super) fn leave_out_oldest(&mut self) {
        let recent = &mut self.progress.recent;
        let surplus = recent.len().saturating_sub(self.recipe.training.average);
        self.outdated.extend(recent.drain(..surplus));
    }

    /// Writes the finished model: the average of the kept ones if it is no worse than the best.
    pub(super) fn finish(&mut self) -> Result<PathBuf, TrainError> {
        let mut chosen = self.arrays_of_first(|| match self.run.folder.join(BEST).is_file() {
            true => self.read_model(BEST),
            false => Ok(weights::collect(self.model())),
        })?;
        if self.progress.recent.len() > 1 {
            let average = self.arrays_of_first(|| self.average())?;
            let with = |arrays: &Arrays| weights::apply(self.model().clone(), arrays.clone());
            let best = match self.progress.best {
                Some(best) => Some(best),
                // The one that was found by other settings is forgotten, but it is the model that the average is to be compared with.
                None => {
                    let judged = self.validate(&with(&chosen)?)?;
                    let best = judged.map(|(verdict, _)| self.as_best(&verdict));
                    best.filter(|best| best.measure.is_finite())
                }
            };
            let (mut taken, mut validation) = (true, None);
            if let Some((verdict, attention)) = self.validate(&with(&average)?)? {
                let is_worse =
                    |best| matches!(self.against(best, &verdict), None | Some(Order::Less));
                taken = verdict.loss.is_finite() && !best.is_some_and(is_worse);
                validation = Some(self.metrics(&verdict, attention, taken));
                if !verdict.lines.is_empty() {
                    self.write_lines("average.txt", &verdict.lines)?;
                }
            }
            if taken {
                chosen = average;
            }
            self.tell(Event::Averaged {
                checkpoints: self.progress.recent.len(),
                taken,
                validation,
            })?;
        }
        if self.is_first() {
            self.write_model(MODEL, &chosen)?;
        }
        Ok(self.run.folder.join(MODEL))
    }

    fn average(&self) -> Result<Arrays, TrainError> {
        let mut sum = Arrays::new();
        let share = 1.0 / self.progress.recent.len() as f32;
        for &step in &self.progress.recent {
            for (name, mut array) in self.read_model(&recent(step))? {
                array.values.iter_mut().for_each(|value| *value *= share);
                match sum.get_mut(&name) {
                    Some(total) => total
                        .values
                        .iter_mut()
                        .zip(&array.values)
                        .for_each(|(total, value)| *total += value),
                    None => {
                        sum.insert(name, array);
                    }
                }
            }
        }
        Ok(sum)
    }
}

/// Refuses what only validations give a meaning in a recipe, for a run that has none.
pub(super) fn refuse_without_validation(recipe: &Recipe) -> Result<(), CorpusError> {
    let Some((field, found)) = recipe.decided_by_validation() else {
        return Ok(());
    };
    let problem = format!(
        "{found}, but there is no validation example, without which it has no effect; expected validation data (of images with classes \
         perhaps a larger data.images.valid_share), or nothing here"
    );
    Err(CorpusError::Setting { field, problem })
}

/// Whether the loss decides which model is the best.
pub(super) fn by_loss<T: Task>(recipe: &Recipe) -> bool {
    T::BY_LOSS || recipe.validation.measure == Some(Measure::Loss)
}

/// A hash of what the measure that decides (the loss if `by_loss`) depends on, beside the model: the validation examples, of which it
/// takes the hash, and how they are judged.
pub(super) fn judged_by(examples: u64, recipe: &Recipe, by_loss: bool) -> u64 {
    let examples = vec![examples as u32, (examples >> 32) as u32];
    let scoring = recipe.validation.scoring(by_loss);
    let search = match by_loss {
        true => None,
        false => recipe.translate.scoring(),
    };
    let words = |text: String| text.bytes().map(u32::from).collect::<Vec<u32>>();
    let texts = [Some(scoring), search].into_iter().flatten().map(words);
    let lists: Vec<Vec<u32>> = std::iter::once(examples).chain(texts).collect();
    fingerprint(lists.iter().map(Vec::as_slice))
}
