//! A model in training, step by step as the learner's session makes them.

use std::{fs, time::Instant};

use burn::{module::Module, tensor::Device};
use regard_models::{AnyGenerator, SourceBatch, TargetBatch, Vocabularies, Vocabulary};
use regard_nn::{
    bridge::CrossEntropy,
    dropout::DropoutRng,
    weights::{self, Array, Storage},
};
use regard_train::{
    Registry,
    learner::optimizer::Optimizer,
    recipe,
    tasks::{Task, Translation},
};
use serde_json::Value;

use crate::{
    Failure,
    batches::{BATCHES, RESERVED, Sentences, Shape, batches},
    language_model::{LanguageModel, LanguageModelConfig},
};

const LEARNING_RATE: f64 = 1e-3;
const LABEL_SMOOTHING: f64 = 0.1;
const LOST: &str = "an earlier update failed";

/// What can be trained on sentence pairs.
pub trait Trained: Module {
    /// The mean loss of a target token.
    fn loss(
        &self,
        sources: &[Vec<u32>],
        targets: &[Vec<u32>],
        device: &Device,
        noise: &mut DropoutRng,
    ) -> Result<CrossEntropy, Failure>;
}

impl Trained for AnyGenerator {
    fn loss(
        &self,
        sources: &[Vec<u32>],
        targets: &[Vec<u32>],
        device: &Device,
        noise: &mut DropoutRng,
    ) -> Result<CrossEntropy, Failure> {
        let Vocabularies { source, target } = self.vocabularies();
        let source = SourceBatch::new(sources, &source, device);
        let target = TargetBatch::new(targets, &target, device);
        let scored = self.forward(&source, &target, noise);
        Ok(scored.cross_entropy(target.outputs, LABEL_SMOOTHING))
    }
}

impl Trained for LanguageModel {
    fn loss(
        &self,
        _: &[Vec<u32>],
        targets: &[Vec<u32>],
        device: &Device,
        noise: &mut DropoutRng,
    ) -> Result<CrossEntropy, Failure> {
        // A batch needs only the marks of a vocabulary, not its size.
        let text = TargetBatch::new(targets, &Vocabulary::new(0), device);
        Ok(LanguageModel::loss(self, text, LABEL_SMOOTHING, noise)?)
    }
}

/// Any model in training.
pub trait Training {
    /// One update, with dropout if `noisy`; gives its seconds and the loss before it.
    fn update(&mut self, noisy: bool) -> Result<(f64, f64), Failure>;

    /// Writes weights and ids to `path`.
    fn export(&self, path: &str) -> Result<(), Failure>;
}

/// Draws the model that `config` describes.
pub fn training(config: Value, shape: Shape) -> Result<Box<dyn Training>, Failure> {
    let device = Device::flex().autodiff();
    if config["kind"] == "language-model" {
        let config: LanguageModelConfig = serde_json::from_value(config)?;
        let model = config.init(1, &device)?;
        return Ok(Box::new(InTraining::new(
            model,
            [config.vocabulary; 2],
            shape,
            device,
        )?));
    }
    let registry = Registry::default();
    let metadata = [("regard.model".to_owned(), config.to_string())];
    let header = registry.header(&metadata.into(), "--model")?;
    let sizes: Vocabularies = header.sizes("--model")?;
    let task = registry.task_of::<Translation>(&header.model);
    let task = task.ok_or("--model: expected a model that translates")?;
    let config = task.role().of(&*header.model.config);
    let model = config.build(&sizes, 1, &device)?;
    let vocabularies = [sizes.source.size, sizes.target.size];
    Ok(Box::new(InTraining::new(
        model,
        vocabularies,
        shape,
        device,
    )?))
}

/// A model, its optimizer and the batches it sees.
struct InTraining<M> {
    model: Option<M>,
    optimizer: Optimizer,
    batches: Vec<(Sentences, Sentences)>,
    device: Device,
    step: usize,
}

impl<M: Trained> InTraining<M> {
    fn new(
        model: M,
        [source, target]: [usize; 2],
        shape: Shape,
        device: Device,
    ) -> Result<Self, Failure> {
        let fewest = source.min(target);
        if fewest <= RESERVED as usize {
            return Err(format!(
                "a vocabulary has {fewest} entries; expected more than the {RESERVED} reserved ones"
            )
            .into());
        }
        let settings = recipe::Optimizer::Adam(recipe::Adam {
            clip_norm: 1.0,
            ..Default::default()
        });
        Ok(Self {
            model: Some(model),
            optimizer: Optimizer::new(settings),
            batches: batches(shape, source, target),
            device,
            step: 0,
        })
    }
}

impl<M: Trained> Training for InTraining<M> {
    fn update(&mut self, noisy: bool) -> Result<(f64, f64), Failure> {
        let (sources, targets) = &self.batches[self.step % BATCHES];
        self.step += 1;
        let started = Instant::now();
        let mut noise = match noisy {
            true => DropoutRng::seeded(self.step as u64),
            false => DropoutRng::none(),
        };
        let model = self.model.as_ref().ok_or(LOST)?;
        let batch = model.loss(sources, targets, &self.device, &mut noise)?;
        let value = f64::from(batch.loss.clone().into_scalar::<f32>());
        let gradients = batch.loss.backward();
        // Moved out, not cloned: weights with a single owner are updated in place.
        let model = self.model.take().ok_or(LOST)?;
        self.model = Some(self.optimizer.update(model, gradients, LEARNING_RATE)?.0);
        Ok((started.elapsed().as_secs_f64(), value))
    }

    fn export(&self, path: &str) -> Result<(), Failure> {
        let mut arrays = weights::collect(self.model.as_ref().ok_or(LOST)?);
        let (sources, targets): (Vec<_>, Vec<_>) = self.batches.iter().cloned().unzip();
        for (name, side) in [("ids.source", sources), ("ids.target", targets)] {
            let sizes = (side[0].len(), side[0][0].len());
            let array = Array {
                shape: vec![BATCHES, sizes.0, sizes.1],
                values: side
                    .iter()
                    .flatten()
                    .flatten()
                    .map(|&id| id as f32)
                    .collect(),
            };
            arrays.insert(name.to_owned(), array);
        }
        let bytes = weights::to_bytes(&arrays, Default::default(), Storage::F32)?;
        Ok(fs::write(path, bytes)?)
    }
}
