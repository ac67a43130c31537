//! One run: its data, its model, and the loop over updates.

mod judging;

use std::{
    collections::HashMap, fs, io::Write as _, path::PathBuf, sync::atomic::Ordering, time::Instant,
};

use burn::{module::Module, tensor::Device};
use regard_nn::weights::{self, Array, Arrays, Storage};

use self::judging::{by_loss, judged_by, refuse_without_validation};
use super::{
    LAST, METRICS, RECENT, RECIPE, Run, TOKENIZER, VALIDATION,
    checkpoint::{Checkpoint, Progress},
    events::{Event, Reason, Started, Summary, TrainMetrics, Vocabularies},
    optimizer::{Optimizer, OptimizerError},
    parallel::{self, Carrier, Joined, Outcome, Summing},
    start::{Start, freeze},
};
use crate::{
    error::TrainError,
    files::{self, FileError},
    model_file::{self, Metadata, ModelFileError},
    recipe::{Every, Recipe},
    tasks::{Contents, Task, Update, fingerprint},
};

const AWAY: &str = "the model is away only during an update, and a failed one ends the session";

pub(crate) struct Session<'a, T: Task> {
    recipe: Recipe,
    run: &'a Run<'a>,
    report: &'a mut dyn FnMut(&Event),
    training: Device,
    task: &'a T,
    data: T::Data,
    description: T::Description,
    /// Absent only during an update.
    model: Option<T::Model>,
    /// The weights that the model to begin with did not have.
    drawn: Vec<String>,
    optimizer: Optimizer,
    summing: Summing,
    progress: Progress,
    /// The updates whose kept models are no longer among the recent ones.
    outdated: Vec<u64>,
    /// Whether the folder held this run before.
    resumed: bool,
}

impl<'a, T: Task> Session<'a, T> {
    /// Starts a run at its first update; `resumed` says that an earlier session died before it could write any state.
    pub(crate) fn start(
        task: &'a T,
        recipe: Recipe,
        run: &'a Run<'a>,
        report: &'a mut dyn FnMut(&Event),
        start: Option<Start>,
        resumed: bool,
    ) -> Result<Self, TrainError> {
        let mut session = Self::new(task, recipe, run, report, None, start)?;
        session.resumed = resumed;
        session.agree()?;
        if run.ranks.is_first() {
            // First, as it tells another start that the other files are those of a run.
            files::write_atomically(&run.folder.join(METRICS), b"")?;
            session.write_recipe()?;
            if let Some(tokenizers) = session.contents().tokenizers {
                tokenizers.save(run.folder.join(TOKENIZER))?;
            }
        }
        Ok(session)
    }

    /// Goes on from the checkpoint in the run folder; `describe` reads the description in its metadata.
    pub(crate) fn resume(
        task: &'a T,
        recipe: Recipe,
        run: &'a Run<'a>,
        report: &'a mut dyn FnMut(&Event),
        describe: impl FnOnce(&Metadata, &str) -> Result<T::Description, ModelFileError>,
    ) -> Result<Self, TrainError> {
        let path = run.folder.join(LAST);
        let checkpoint = Checkpoint::load_by_first(&path, run.ranks)?;
        let name = path.display().to_string();
        let former = describe(&checkpoint.metadata, &name)?;
        let mut session = Self::new(task, recipe, run, report, Some(former), None)?;
        let model = session.model.take().expect(AWAY);
        // What is frozen stays so.
        session.model = Some(weights::apply(model, checkpoint.model)?);
        let (data, judged_by) = (session.progress.data, session.progress.validation);
        session.progress = checkpoint.progress;
        let former = session.progress.data;
        if former.is_some() && former != data {
            return Err(TrainError::OtherData(path));
        }
        session.progress.data = data;
        session.expect_batches(path)?;
        // Measures of two kinds, or by other data, cannot be compared: the best of before is forgotten.
        let by_loss = session.by_loss();
        let best = session.progress.best.and_then(|best| best.by_loss);
        let former = session.progress.validation;
        if best.is_some_and(|former| former != by_loss) || former.is_some() && former != judged_by {
            session.progress.best = None;
            session.progress.stale = 0;
        }
        session.progress.validation = judged_by;
        session.leave_out_oldest();
        let kind = session.recipe.optimizer.state_kind();
        let former = session.progress.optimizer.as_deref();
        if let Some(former) = former.filter(|former| *former != kind) {
            return Err(OptimizerError::State(format!(
                "it is that of {former}, and optimizer.kind needs that of {kind}; go on with the former kind, or begin a new run from the \
                 model with training.start"
            ))
            .into());
        }
        session.optimizer = Optimizer::restore(
            session.recipe.optimizer.clone(),
            session.model(),
            checkpoint.optimizer,
            session.progress.optimizer_step,
        )?;
        session.resumed = true;
        session.agree()?;
        if run.ranks.is_first() {
            session.write_recipe()?;
            keep_metrics(&run.folder.join(METRICS), &session.progress)?;
        }
        Ok(session)
    }

    /// Data and a model as drawn; `former` is the description of an earlier session.
    fn new(
        task: &'a T,
        recipe: Recipe,
        run: &'a Run<'a>,
        report: &'a mut dyn FnMut(&Event),
        former: Option<T::Description>,
        start: Option<Start>,
    ) -> Result<Self, TrainError> {
        let tokenizers = start.as_ref().and_then(|start| start.tokenizers.clone());
        let begins = former.is_none();
        let (data, description) = task.load(&recipe, former, tokenizers)?;
        // A run that began before this was refused goes on.
        if begins && task.contents(&data, &description).validation == 0 {
            refuse_without_validation(&recipe)?;
        }
        let training = run.device.clone().autodiff();
        let model = task.init(&description, recipe.training.seed, &training)?;
        let (model, drawn) = match start {
            Some(start) => start.apply(model)?,
            None => (model, vec![]),
        };
        let model = frozen(&recipe, model)?;
        let examples = task.validation_fingerprint(&data)?;
        Ok(Self {
            optimizer: Optimizer::new(recipe.optimizer.clone()),
            summing: Summing::agree(run.ranks, run.device)?,
            progress: Progress {
                data: Some(task.fingerprint(&data)?),
                validation: Some(judged_by(examples, &recipe, by_loss::<T>(&recipe))),
                ..Progress::default()
            },
            recipe,
            run,
            report,
            training,
            task,
            data,
            description,
            model: Some(model),
            drawn,
            outdated: vec![],
            resumed: false,
        })
    }

    /// Checks that an epoch that the checkpoint at `path` is in the middle of has the batches that it began with, and some are left.
    fn expect_batches(&self, path: PathBuf) -> Result<(), TrainError> {
        let (position, former) = (self.progress.position, self.progress.batches);
        let order = self.order();
        let same = former.is_none_or(|former| former == batches_fingerprint(&order));
        match position == 0 || (same && position < order.len()) {
            true => Ok(()),
            false => Err(TrainError::OtherBatches { path, position }),
        }
    }

    /// Checks that all processes were given the same.
    fn agree(&self) -> Result<(), TrainError> {
        let ranks = self.run.ranks;
        if ranks.is_alone() {
            return Ok(());
        }
        let weights = weights::collect(self.model());
        let bits = |array: &Array| array.values.iter().map(|x| x.to_bits()).collect();
        let weights: Vec<Vec<u32>> = weights.values().map(bits).collect();
        let hash = |hash: u64| format!("{hash:016x}");
        ranks.expect_same(&[
            ("the recipe", self.recipe.to_toml()?),
            ("the training data", hash(self.progress.data.unwrap_or(0))),
            (
                "the validation data",
                hash(self.progress.validation.unwrap_or(0)),
            ),
            (
                "the weights to begin with",
                hash(fingerprint(weights.iter().map(Vec::as_slice))),
            ),
        ])?;
        Ok(())
    }

    fn write_recipe(&self) -> Result<(), TrainError> {
        let (path, text) = (self.run.folder.join(RECIPE), self.recipe.to_toml()?);
        Ok(files::write_atomically(&path, text.as_bytes())?)
    }

    /// Trains until a limit, an early stop or a request to stop.
    pub(crate) fn run(mut self) -> Result<Summary, TrainError> {
        self.tell_start();
        if self.progress.step == 0 {
            // From here on the run can be resumed however it ends: the state before the first update is saved too.
            self.save()?;
        }
        let mut order = self.begin_epoch();
        let reason = loop {
            if self.is_due() {
                self.judge_and_save()?;
            }
            let stopped = self.is_stopped()?;
            if let Some(reason) = self.finished() {
                break reason;
            }
            if stopped {
                self.save()?;
                return Ok(self.summary(Reason::Interrupted, None));
            }
            let position = self.progress.position;
            self.update(&order[position], order.get(position + 1))?;
            if self.progress.window.updates >= self.recipe.training.log_every {
                self.tell_window()?;
            }
            self.progress.position += 1;
            if self.progress.position == order.len() {
                self.progress.epoch += 1;
                self.progress.position = 0;
                order = self.begin_epoch();
            }
        };
        match self.progress.validated == self.progress.step {
            true => self.save()?,
            false => self.judge_and_save()?,
        }
        let model = self.finish()?;
        Ok(self.summary(reason, Some(model)))
    }

    /// Whether the recipe wants a validation after the last update, which was not made yet.
    fn is_due(&self) -> bool {
        let Progress {
            step,
            position,
            validated,
            ..
        } = self.progress;
        let wanted = match self.recipe.training.validate_every {
            Every::Epoch => position == 0,
            Every::Steps(steps) => step.is_multiple_of(steps.max(1)),
        };
        wanted && validated != step
    }

    /// Judges the model and saves the state. An error of the validation ends the run without losing its work: a run that goes on judges
    /// the model again. Only a model that computes no numbers does not take the place of a good one.
    fn judge_and_save(&mut self) -> Result<(), TrainError> {
        let before = self.progress.clone();
        let judged = self.judge();
        match judged {
            Ok(()) => {}
            Err(TrainError::Loss { .. }) => return judged,
            Err(_) => {
                // The models that the former progress names are still kept.
                self.outdated.retain(|step| !before.recent.contains(step));
                self.progress = before;
            }
        }
        let saved = self.save();
        judged.and(saved)
    }

    fn model(&self) -> &T::Model {
        self.model.as_ref().expect(AWAY)
    }

    fn contents(&self) -> Contents<'_> {
        self.task.contents(&self.data, &self.description)
    }

    fn order(&self) -> Vec<Vec<usize>> {
        self.contents()
            .batches
            .epoch(self.recipe.training.seed, self.progress.epoch)
    }

    /// The batches of the current epoch, by which a resumed run finds out that they have changed.
    fn begin_epoch(&mut self) -> Vec<Vec<usize>> {
        let order = self.order();
        self.progress.batches = Some(batches_fingerprint(&order));
        order
    }

    /// Whether any process was asked to stop. The time is that of rank 0's clock, so that all come to the same limit at once.
    fn is_stopped(&mut self) -> Result<bool, TrainError> {
        let stopped = self.run.stop.load(Ordering::SeqCst);
        let Progress {
            seconds,
            update_seconds,
            ..
        } = self.progress;
        let all = self.run.ranks.gather(&(stopped, seconds, update_seconds))?;
        (_, self.progress.seconds, self.progress.update_seconds) = all[0];
        Ok(all.iter().any(|(stopped, ..)| *stopped))
    }

    fn finished(&self) -> Option<Reason> {
        let limits = &self.recipe.training;
        let progress = &self.progress;
        let over = limits.epochs.is_some_and(|most| progress.epoch >= most)
            || limits.steps.is_some_and(|most| progress.step >= most)
            || limits
                .minutes
                .is_some_and(|most| progress.seconds >= most * 60.0)
            || limits.tokens.is_some_and(|most| progress.tokens >= most);
        let stale = limits.patience.is_some_and(|most| progress.stale >= most);
        match (over, stale) {
            (true, _) => Some(Reason::Limit),
            (_, true) => Some(Reason::EarlyStop),
            _ => None,
        }
    }

    /// One update on the training examples at `rows`; those of the `next` one are read meanwhile.
    fn update(&mut self, rows: &[usize], next: Option<&Vec<usize>>) -> Result<(), TrainError> {
        let started = Instant::now();
        let step = self.progress.step + 1;
        let ranks = self.run.ranks;
        let share = ranks.part(rows.len());
        let own = share.len();
        let mut update = Update {
            recipe: &self.recipe,
            rows,
            share,
            step,
            training: &self.training,
            device: self.run.device,
            baseline: self.progress.baseline,
        };
        let (batch, joined, arriving) = loop {
            let arriving = self.summing.watch(ranks, self.model());
            let loss = || self.task.loss(&self.data, self.model(), &update);
            let batch = match (own > 0).then(loss).transpose() {
                Ok(batch) => batch,
                // The state before this update, from which a run can go on.
                Err(error) if ranks.is_alone() => {
                    drop(arriving);
                    return self.save().and(Err(error));
                }
                Err(error) => return Err(error),
            };
            let joined = Joined::of(&ranks.gather(&Outcome::of(batch.as_ref(), own))?);
            if ranks.is_alone() || update.baseline.is_some() || joined.baseline.is_none() {
                break (batch, joined, arriving);
            }
            // The first baseline is the mean reward of the whole batch, which no rank has known.
            update.baseline = joined.baseline;
        };
        if let Some(next) = next {
            self.task.ahead(&self.data, &next[ranks.part(next.len())])?;
        }
        let mean = joined.loss;
        if !mean.is_finite() {
            return Err(TrainError::Loss { loss: mean, step });
        }
        let share = batch.and_then(|batch| joined.share_of(batch));
        let rate = self
            .progress
            .schedule
            .learning_rate(&self.recipe.schedule, step);
        // Moved out, not cloned: weights with a single owner are updated in place.
        let model = self.model.take().expect(AWAY);
        let gradients = self.summing.backward(ranks, &model, share, arriving)?;
        let model = parallel::join_moments(ranks, model, &joined, own)?;
        let (model, norm) = self.optimizer.step(model, gradients, rate)?;
        self.model = Some(model);
        let seconds = started.elapsed().as_secs_f64();
        let progress = &mut self.progress;
        progress.step = step;
        progress.seconds += seconds;
        progress.update_seconds += seconds;
        progress.tokens += joined.tokens as u64;
        progress.baseline = joined.baseline;
        let window = &mut progress.window;
        window.loss += mean * joined.predictions as f64;
        window.negative_log_likelihood += joined.negative_log_likelihood;
        window.gradient_norm += norm;
        window.predictions += joined.predictions as u64;
        window.tokens += joined.tokens as u64;
        window.updates += 1;
        window.seconds += seconds;
        Ok(())
    }

    /// The arrays that `make` gives on rank 0, which has the run folder, for all.
    fn arrays_of_first(
        &self,
        make: impl FnOnce() -> Result<Arrays, TrainError>,
    ) -> Result<Arrays, TrainError> {
        let ranks = self.run.ranks;
        if ranks.is_alone() {
            return make();
        }
        let bytes = match ranks.is_first() {
            true => weights::to_bytes(&make()?, HashMap::new(), Storage::F32)?,
            false => vec![],
        };
        Ok(weights::from_bytes(&ranks.broadcast(bytes)?)?.0)
    }

    fn read_model(&self, file: &str) -> Result<Arrays, TrainError> {
        Ok(model_file::read(&self.run.folder.join(file))?.0)
    }

    fn write_model(&self, file: &str, arrays: &Arrays) -> Result<(), TrainError> {
        let metadata = self.task.metadata(&self.description);
        Ok(model_file::write(
            &self.run.folder.join(file),
            arrays,
            metadata,
        )?)
    }

    fn write_lines(&self, file: &str, lines: &[String]) -> Result<(), TrainError> {
        if !self.is_first() {
            return Ok(());
        }
        let folder = self.run.folder.join(VALIDATION);
        files::create_folder(&folder)?;
        let text: String = lines
            .iter()
            .flat_map(|line| [line.as_str(), "\n"])
            .collect();
        Ok(files::write_atomically(
            &folder.join(file),
            text.as_bytes(),
        )?)
    }

    /// Writes the full state.
    fn save(&mut self) -> Result<(), TrainError> {
        let (optimizer, optimizer_step) = self.optimizer.state();
        self.progress.optimizer_step = optimizer_step;
        self.progress.optimizer = Some(self.recipe.optimizer.state_kind().to_owned());
        if !self.is_first() {
            return Ok(());
        }
        let path = self.run.folder.join(LAST);
        let checkpoint = Checkpoint {
            progress: self.progress.clone(),
            metadata: self.task.metadata(&self.description),
            model: weights::collect(self.model()),
            optimizer,
        };
        checkpoint.save(&path)?;
        // Only now: a checkpoint that could not be replaced names them. An error is ignored, as a file may be gone already.
        for step in self.outdated.drain(..) {
            let _ = fs::remove_file(self.run.folder.join(recent(step)));
        }
        let step = self.progress.step;
        self.report(&Event::Saved { step, path });
        Ok(())
    }

    fn tell_start(&mut self) {
        let order = self.order();
        let limits = &self.recipe.training;
        let updates = |epochs: u64| epochs.saturating_mul(order.len() as u64);
        let epochs = limits.epochs.map(updates);
        let contents = self.contents();
        let event = Event::Started(Started {
            model: self.recipe.model.kind.to_owned(),
            parameters: self.model().num_params(),
            drawn: self.drawn.clone(),
            examples: contents.examples,
            counted: T::COUNTED,
            of_words: T::PERPLEXITY,
            corpus: contents.filtered.into(),
            validation_pairs: contents.validation,
            vocabulary: contents.tokenizers.map(|tokenizers| Vocabularies {
                source: tokenizers.source().vocabulary_size(),
                target: tokenizers.target().vocabulary_size(),
                shared: tokenizers.is_joint(),
            }),
            updates_per_epoch: order.len(),
            padding: contents.batches.padding(&order),
            resumed_at: self.resumed.then_some(self.progress.step),
            last_update: [epochs, limits.steps].into_iter().flatten().min(),
            folder: self.run.folder.to_owned(),
            sums: self.summing.carrier().map(|carrier| match carrier {
                Carrier::Communicator(_) => "from card to card, by NCCL".to_owned(),
                Carrier::Memory(reason) => {
                    format!("through memory, as cards cannot send to each other: {reason}")
                }
            }),
        });
        self.report(&event);
    }

    fn tell_window(&mut self) -> Result<(), TrainError> {
        let window = std::mem::take(&mut self.progress.window);
        let [predictions, tokens, updates] =
            [window.predictions, window.tokens, window.updates].map(|count| count as f64);
        let step = self.progress.step;
        let event = Event::Train(TrainMetrics {
            step,
            epoch: self.progress.epoch + 1,
            loss: window.loss / predictions,
            perplexity: perplexity::<T>(window.negative_log_likelihood / predictions),
            learning_rate: self
                .progress
                .schedule
                .learning_rate(&self.recipe.schedule, step),
            gradient_norm: window.gradient_norm / updates,
            tokens_per_second: tokens / window.seconds,
            seconds: self.progress.seconds,
        });
        self.tell(event)
    }

    /// Reports an event to the caller and adds a line to `metrics.jsonl`.
    fn tell(&mut self, event: Event) -> Result<(), TrainError> {
        if !self.is_first() {
            return Ok(());
        }
        let path = self.run.folder.join(METRICS);
        let mut line = serde_json::to_string(&event).expect("plain data serialises");
        line.push('\n');
        fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(|source| FileError::new(&path, "write", source))?;
        self.report(&event);
        Ok(())
    }

    fn is_first(&self) -> bool {
        self.run.ranks.is_first()
    }

    fn report(&mut self, event: &Event) {
        if self.is_first() {
            (self.report)(event);
        }
    }

    fn summary(mut self, reason: Reason, model: Option<PathBuf>) -> Summary {
        let summary = Summary {
            step: self.progress.step,
            reason,
            seconds: self.progress.seconds,
            best: self.progress.best.map(|best| (best.step, best.measure)),
            model,
        };
        self.report(&Event::Finished(summary.clone()));
        summary
    }
}

/// That of a mean negative log-likelihood of words; NaN for what is none.
fn perplexity<T: Task>(loss: f64) -> f64 {
    match T::PERPLEXITY {
        true => loss.exp(),
        false => f64::NAN,
    }
}

/// `model` with the weights that `recipe` does not train.
fn frozen<M: Module>(recipe: &Recipe, model: M) -> Result<M, TrainError> {
    match &recipe.training.frozen {
        Some(names) => freeze(model, names),
        None => Ok(model),
    }
}

/// A hash of the batches of an epoch.
fn batches_fingerprint(order: &[Vec<usize>]) -> u64 {
    let words = |rows: &Vec<usize>| rows.iter().map(|&row| row as u32).collect();
    let rows: Vec<Vec<u32>> = order.iter().map(words).collect();
    fingerprint(rows.iter().map(Vec::as_slice))
}

fn recent(step: u64) -> String {
    format!("{RECENT}/step-{step}.safetensors")
}

/// Drops the lines of `metrics.jsonl` that come after `progress`: they will be written again.
fn keep_metrics(path: &std::path::Path, progress: &Progress) -> Result<(), TrainError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => vec![],
        Err(error) => return Err(FileError::new(path, "read", error).into()),
    };
    // The last line may end inside a letter.
    let kept: String = String::from_utf8_lossy(&bytes)
        .split_inclusive('\n')
        .filter(|line| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
            let last = match value["kind"] == "validation" {
                true => progress.validated,
                false => progress.step,
            };
            value["step"].as_u64().is_some_and(|at| at <= last)
        })
        .collect();
    Ok(files::write_atomically(path, kept.as_bytes())?)
}
