//! The task of image classification: images with a class each, cross-entropy, accuracy.
//!
//! Images are decoded on all threads, brought to one size and kept as bytes as far as memory allows; what is random (crops, mirrors, RandAugment,
//! mixup) is drawn anew in every update from (seed, update, place in the batch). Mixup trains on `λ x_i + (1 - λ) x_j` with the loss
//! `λ` of the class of `i` and `1 - λ` of that of `j` (Zhang et al. 2018), `λ` from a Beta distribution, once an update.

use std::{borrow::Cow, path::PathBuf, sync::Arc};

use burn::tensor::{Device, Int, Tensor, TensorData};
use rayon::prelude::*;
use regard_config::Check;
use regard_evaluate::Accuracy;
use regard_images::{
    self as images, Augment, Image, Normalize,
    data::{Broken, Dataset, Pictures},
};
use regard_models::{AnyImageClassifier, ImageSizes, RoleOf};
use regard_nn::{bridge, dropout::DropoutRng};
use regard_trace::Trace;
use serde::{Deserialize, Serialize};

use super::{
    BatchLoss, Contents, Describe, Fingerprint, OF_TRANSLATION, Task, Term, Update, Verdict,
};
use crate::{
    corpus::{Batches, CorpusError, FilterReport, Random},
    error::TrainError,
    image_classifier::{Description, ImageClassifier, Preparation},
    learner::events::Quality,
    model_file::{Header, Metadata, ModelFileError, entry, json_entry},
    ranks::Ranks,
    recipe::{ImageData, Measure, Recipe, Split, read_images},
    tokenizer::TokenizerPair,
};

pub(super) const IMAGES: &str = "regard.images";

/// The class of padding, which no image has, so that every prediction counts.
const NO_CLASS: usize = usize::MAX;

/// Images that are judged together.
const JUDGED: usize = 100;

/// Models that give an image a class.
#[derive(Debug, Clone, Copy)]
pub struct ImageClassification(RoleOf<AnyImageClassifier>);

/// Images and their classes.
#[derive(Debug)]
pub struct Data {
    train: Labelled,
    batches: Batches,
    filtered: FilterReport,
    validation: Labelled,
    preparation: Preparation,
    augment: Augment,
}

/// Images of one size with a class each.
#[derive(Debug, Default)]
struct Labelled {
    images: Pictures,
    classes: Vec<usize>,
}

impl Labelled {
    /// Decodes a data set; `size` is that of the first image if it is not known yet.
    fn read(
        dataset: Dataset,
        settings: &ImageData,
        size: &mut Option<[usize; 2]>,
        filtered: &mut FilterReport,
    ) -> Result<Self, images::ImagesError> {
        filtered.broken += dataset.skipped.len();
        let examples = Arc::new(dataset.examples);
        let decoding = settings.decoding();
        if size.is_none() {
            let broken = settings.broken();
            let first = examples
                .iter()
                .find_map(|example| match example.image(&decoding) {
                    Err(error) if broken == Broken::Skip && error.is_broken_image() => None,
                    found => Some(found),
                });
            *size = match first {
                Some(image) => Some(image.map(|image| [image.height(), image.width()])?),
                None => None,
            };
        }
        let [height, width] = size.unwrap_or([1, 1]);
        let (count, broken) = (examples.len(), settings.broken());
        let memory = settings.memory;
        let (images, classes, left_out) = super::decoded(count, broken, memory, move |index| {
            let example = &examples[index];
            let image = example.image(&decoding)?;
            let image = match [image.height(), image.width()] == [height, width] {
                true => image,
                false => image.fitted(height, width)?,
            };
            Ok((image, example.label.unwrap_or_default()))
        })?;
        filtered.broken += left_out;
        Ok(Self { images, classes })
    }

    /// Takes the share of each class that comes last.
    fn split_off(&mut self, share: f64, classes: usize) -> Self {
        let mut counts = vec![0; classes];
        for &class in &self.classes {
            counts[class] += 1;
        }
        let mut left: Vec<usize> = counts
            .iter()
            .map(|&count| count - ((count as f64 * share).round() as usize).min(count))
            .collect();
        let is_taken = |class: &usize| {
            let taken = left[*class] == 0;
            left[*class] -= usize::from(!taken);
            taken
        };
        let taken: Vec<bool> = self.classes.iter().map(is_taken).collect();
        let images = self.images.split_off(|row| taken[row]);
        let mut row = 0..;
        let classes = self
            .classes
            .extract_if(.., |_| taken[row.next().unwrap_or_default()]);
        let classes = classes.collect();
        Self { images, classes }
    }

    fn fingerprint(&self) -> Result<u64, TrainError> {
        let mut hash = Fingerprint::new();
        self.images.each(|_, image| hash.bytes(image.pixels()))?;
        let classes = self.classes.iter().map(|&class| class as u32);
        hash.list(self.classes.len(), classes);
        Ok(hash.0)
    }

    /// The classes of `rows`, `[batch]`.
    fn classes(&self, rows: &[usize], device: &Device) -> Tensor<1, Int> {
        let classes: Vec<i32> = rows.iter().map(|&row| self.classes[row] as i32).collect();
        Tensor::from_data(TensorData::new(classes, [rows.len()]), device)
    }
}

/// What the metadata of a file say of its images.
#[derive(Serialize, Deserialize)]
pub(super) struct Stored {
    labels: Vec<String>,
    mean: Vec<f32>,
    deviation: Vec<f32>,
}

impl Stored {
    pub(super) fn of(labels: &[String], normalize: &Normalize) -> Self {
        Self {
            labels: labels.to_vec(),
            mean: normalize.mean().to_vec(),
            deviation: normalize.deviation().to_vec(),
        }
    }

    /// The labels and how images become numbers, for a model of these sizes in the file called `name`.
    pub(super) fn checked(
        self,
        channels: usize,
        size: [usize; 2],
        classes: usize,
        name: &str,
    ) -> Result<(Vec<String>, Preparation), ModelFileError> {
        if self.labels.len() != classes {
            return Err(ModelFileError::Labels {
                name: name.to_owned(),
                labels: self.labels.len(),
                classes,
            });
        }
        let numbers = [self.mean, self.deviation];
        let preparation = Preparation::stored(IMAGES, size, channels, numbers, name)?;
        Ok((self.labels, preparation))
    }
}

impl Task for ImageClassification {
    const MODEL: &'static str = "a classifier of images";
    const DOES: &'static str = "classifies images";
    const UNREAD: &'static [&'static [&'static str]] = &[
        OF_TRANSLATION,
        &[
            "data.lowercase",
            "data.vocabulary",
            "data.tokenizer",
            "data.filter",
            "data.labelled",
            "data.text",
            "data.scenes",
            "data.questions",
            "data.objects",
            "data.captions",
            "batch.tokens",
            "batch.pool",
            "training.guided_attention",
        ],
    ];
    const COUNTED: &'static str = "images";
    type Model = AnyImageClassifier;
    type Description = Description;
    type Data = Data;

    fn of(role: RoleOf<AnyImageClassifier>) -> Self {
        Self(role)
    }

    fn role(&self) -> RoleOf<AnyImageClassifier> {
        self.0
    }

    fn example(&self, recipe: &mut Recipe) {
        recipe.data.images = Some(ImageData {
            train: Some(PathBuf::from("data/cifar10/train")),
            test: Some(PathBuf::from("data/cifar10/test")),
            ..ImageData::default()
        });
    }

    fn check(&self, recipe: &Recipe, check: &mut Check) {
        match &recipe.data.images {
            None => check.fail(
                "data.images",
                "missing",
                "a section [data.images] with train, which an image classifier learns from",
            ),
            Some(ImageData { train: None, .. }) => {
                check.fail("data.images.train", "missing", "a folder or file of images");
            }
            Some(_) => {}
        }
        if recipe.validation.measure == Some(Measure::Bleu) {
            let expected = "\"accuracy\" or \"loss\" for this kind of model";
            check.fail("validation.measure", "found \"bleu\"", expected);
        }
    }

    fn load(
        &self,
        recipe: &Recipe,
        former: Option<Description>,
        _tokenizers: Option<TokenizerPair>,
    ) -> Result<(Data, Description), TrainError> {
        let settings = recipe.data.images.as_ref().ok_or(TrainError::NoData)?;
        let path = settings.path(Split::Train).ok_or(TrainError::NoData)?;
        let known = former.as_ref().map(|former| former.labels.as_slice());
        let dataset = read_images(path, false, known)?;
        let labels = dataset.classes.clone();
        if let [only] = &labels[..] {
            let problem =
                format!("all images are of the class {only:?}; expected at least 2 classes");
            let field = "data.images.train";
            return Err(CorpusError::Setting { field, problem }.into());
        }
        if let Some(test) = settings.path(Split::Test) {
            // What is wrong with its names and classes is told now, not after training.
            read_images(test, true, Some(&labels))?;
        }
        let mut size = match (&former, settings.size) {
            (Some(former), _) => Some(former.preparation.size),
            (None, side) => side.map(|side| [side; 2]),
        };
        let mut filtered = FilterReport::default();
        let mut train = Labelled::read(dataset, settings, &mut size, &mut filtered)?;
        let read = train.images.len();
        if read == 0 {
            return Err(TrainError::NoImages {
                key: "data.images.train",
                broken: filtered.broken,
                expected: "images that can be read",
            });
        }
        let validation = match settings.path(Split::Valid) {
            Some(path) => {
                let dataset = read_images(path, true, Some(&labels))?;
                let before = filtered.broken;
                let validation = Labelled::read(dataset, settings, &mut size, &mut filtered)?;
                if validation.images.is_empty() {
                    return Err(TrainError::NoImages {
                        key: "data.images.valid",
                        broken: filtered.broken - before,
                        expected: "images that can be read",
                    });
                }
                validation
            }
            None => train.split_off(settings.valid_share, labels.len()),
        };
        filtered.kept = train.images.len();
        if train.images.is_empty() {
            let share = settings.valid_share;
            let problem =
                format!("{share} leaves none of {read} images to train on; expected less");
            let field = "data.images.valid_share";
            return Err(CorpusError::Setting { field, problem }.into());
        }
        let preparation = match former {
            Some(former) => former.preparation,
            None => {
                let [_, height, width] = train.images.form().ok_or(TrainError::NoData)?;
                Preparation::new([height, width], train.images.normalize(usize::MAX)?)
            }
        };
        let lengths = vec![(1, 0); train.images.len()];
        let description = Description {
            model: recipe.model.clone(),
            labels,
            preparation: preparation.clone(),
        };
        let data = Data {
            batches: Batches::of_lengths(lengths, recipe.batch.budget())?,
            augment: settings.augment.of_image(),
            train,
            filtered,
            validation,
            preparation,
        };
        Ok((data, description))
    }

    fn metadata(&self, description: &Description) -> Metadata {
        let stored = Stored::of(&description.labels, &description.preparation.normalize);
        Metadata::from([
            Header::entry(&description.model, &description.sizes()),
            entry(IMAGES, &stored),
        ])
    }

    fn describe(
        &self,
        header: Header,
        metadata: &Metadata,
        name: &str,
    ) -> Result<Description, ModelFileError> {
        let sizes: ImageSizes = header.sizes(name)?;
        let stored: Stored = json_entry(metadata, IMAGES, name)?;
        let ImageSizes {
            channels,
            size,
            classes,
        } = sizes;
        let (labels, preparation) = stored.checked(channels, size, classes, name)?;
        Ok(Description {
            model: header.model,
            labels,
            preparation,
        })
    }

    fn fingerprint(&self, data: &Data) -> Result<u64, TrainError> {
        data.train.fingerprint()
    }

    fn validation_fingerprint(&self, data: &Data) -> Result<u64, TrainError> {
        data.validation.fingerprint()
    }

    fn contents<'a>(&self, data: &'a Data, _description: &'a Description) -> Contents<'a> {
        Contents {
            examples: "images",
            tokenizers: None,
            batches: &data.batches,
            filtered: &data.filtered,
            validation: data.validation.images.len(),
        }
    }

    fn ahead(&self, data: &Data, rows: &[usize]) -> Result<(), TrainError> {
        Ok(data.train.images.ahead(rows)?)
    }

    fn loss(
        &self,
        data: &Data,
        model: &AnyImageClassifier,
        update: &Update<'_>,
    ) -> Result<BatchLoss, TrainError> {
        let settings = &update.recipe.training;
        let mut random = Random::new(&[settings.seed, update.step]);
        let mut noise = update.noise(random.next_u64());
        let seed = random.next_u64();
        let (device, rows) = (update.training, update.rows);
        // The images at some places of the batch, and their classes.
        let at = |places: Vec<usize>| {
            let rows: Vec<usize> = places.iter().map(|&place| rows[place]).collect();
            let images = data.train.images.all(&rows)?;
            let changed = |(image, &place): (&Cow<'_, Image>, &usize)| {
                let mut random = images::Random::new(seed, place as u64);
                let changed = data.augment.apply(image, &mut random);
                changed.expect("the images of a data set have one size")
            };
            let changed: Vec<Image> = images.par_iter().zip(&places).map(changed).collect();
            let classes = data.train.classes(&rows, device);
            Ok::<_, TrainError>((data.preparation.tensor(&changed, device), classes))
        };
        let (x, classes) = at(update.share.clone().collect())?;
        let smoothing = settings.label_smoothing as f32;
        let loss_of = |logits: Tensor<2>, classes| {
            bridge::cross_entropy_mean(logits, classes, NO_CLASS, smoothing)
        };
        let mixup = update.recipe.data.images.as_ref();
        let mixup = mixup.map_or(0.0, |images| images.augment.mixup);
        let (loss, nll) = if mixup > 0.0 {
            let share = beta(mixup, &mut images::Random::new(seed, u64::MAX));
            // Each image with its counterpart from the other end of the batch.
            let (other, other_classes) = match update.share.len() == rows.len() {
                true => (x.clone().flip([0]), classes.clone().flip([0])),
                false => at(update
                    .share
                    .clone()
                    .map(|place| rows.len() - 1 - place)
                    .collect())?,
            };
            let logits = model.forward(x * share + other * (1.0 - share), &mut noise);
            let own = loss_of(logits.clone(), classes);
            let other = loss_of(logits, other_classes);
            (
                own.loss * share + other.loss * (1.0 - share),
                own.nll * share + other.nll * (1.0 - share),
            )
        } else {
            let batch = loss_of(model.forward(x, &mut noise), classes);
            (batch.loss, batch.nll)
        };
        let predictions = update.share.len();
        Ok(BatchLoss {
            terms: vec![Term::new(loss, predictions)],
            negative_log_likelihood: nll,
            predictions,
            tokens: predictions,
            baseline: None,
        })
    }

    fn validate(
        &self,
        data: &Data,
        description: &Description,
        model: &AnyImageClassifier,
        _recipe: &Recipe,
        device: &Device,
        ranks: &dyn Ranks,
    ) -> Result<Option<Verdict>, TrainError> {
        let set = &data.validation;
        if set.images.is_empty() {
            return Ok(None);
        }
        let labels = &description.labels;
        let judge = |rows: &&[usize]| {
            let images = description
                .preparation
                .tensor(&set.images.all(rows)?, device);
            let logits = model.forward(images, &mut DropoutRng::none());
            let classes = set.classes(rows, device);
            let sum = bridge::cross_entropy_mean(logits.clone(), classes, NO_CLASS, 0.0).nll;
            let best: Tensor<1, Int> = logits.argmax(1).squeeze_dim(1);
            let best = best.into_data();
            Ok((
                sum,
                best.iter::<i32>().map(|class| class as usize).collect(),
            ))
        };
        let rows: Vec<usize> = (0..set.images.len()).collect();
        let batches: Vec<&[usize]> = rows.chunks(JUDGED).collect();
        let judged: Vec<(f64, Vec<usize>)> = ranks.spread(&batches, |_, own| {
            own.iter()
                .map(judge)
                .collect::<Result<Vec<_>, TrainError>>()
        })?;
        let sum: f64 = judged.iter().map(|(sum, _)| sum).sum();
        let found: Vec<usize> = judged.into_iter().flat_map(|(_, found)| found).collect();
        let accuracy = Accuracy::of(&found, &set.classes, labels.len());
        Ok(Some(Verdict {
            loss: sum / found.len() as f64,
            quality: Quality::Accuracy {
                accuracy: accuracy.share(),
                correct: accuracy.correct,
                sentences: accuracy.sentences,
            },
            lines: found.iter().map(|&class| labels[class].clone()).collect(),
        }))
    }

    fn look(
        &self,
        data: &Data,
        description: &Description,
        model: &AnyImageClassifier,
        row: usize,
        device: &Device,
    ) -> Result<Option<Trace>, TrainError> {
        let images = &data.validation.images;
        if row >= images.len() {
            return Ok(None);
        }
        let image = images.get(row)?.into_owned();
        let classifier = ImageClassifier::new(model.clone(), description.clone(), device);
        let seen = classifier.looked(&[image]);
        let (mut seen, _) = seen.map_err(TrainError::look)?;
        Ok(Some(seen.swap_remove(0).1))
    }
}

/// A number from Beta(a, a), `a` in (0, 1], by Jöhnk's method.
fn beta(a: f64, random: &mut images::Random) -> f64 {
    loop {
        let drawn = [(); 2].map(|()| random.uniform());
        let [x, y] = drawn.map(|uniform| uniform.powf(1.0 / a));
        if x + y > 0.0 && x + y <= 1.0 {
            return x / (x + y);
        }
        if x + y == 0.0 {
            // Both powers are below the least number, as nearly always where `a` is near 0: x / (x + y) by their logarithms. Two
            // zeros, of which nothing can be told, are drawn anew.
            let [x, y] = drawn.map(f64::ln);
            let share = 1.0 / (1.0 + ((y - x) / a).exp());
            if !share.is_nan() {
                return share;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_mixup_end_for_any_parameter() {
        for a in [f64::from_bits(1), 1e-300, 1e-12, 1e-3, 0.2, 1.0] {
            let mut random = images::Random::new(1, 2);
            let shares: Vec<f64> = (0..2_000).map(|_| beta(a, &mut random)).collect();
            assert!(
                shares.iter().all(|share| (0.0..=1.0).contains(share)),
                "{a}"
            );
            let mean = shares.iter().sum::<f64>() / shares.len() as f64;
            assert!((mean - 0.5).abs() < 0.05, "{a}: {mean}");
            // The variance of Beta(a, a) is 1 / (4 (2 a + 1)).
            let squares = shares.iter().map(|share| (share - 0.5).powi(2));
            let variance = squares.sum::<f64>() / shares.len() as f64;
            let expected = 0.25 / (2.0 * a + 1.0);
            assert!((variance - expected).abs() < 0.02, "{a}: {variance}");
        }
    }
}
