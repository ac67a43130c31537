//! The task of detection: images whose objects are known by class, box and mask; the loss of a set of predictions
//! ([`regard_models::image::detr::loss`]), COCO's average precision.
//!
//! Scenes are drawn when they are asked for, on all threads. Images of files are decoded once, brought to one size with their boxes
//! and masks, and kept as bytes; they are mirrored at random, with their boxes and masks, by (seed, update, place in the batch).
//! Crowds are no objects to be found, and no mistake where something is found in them.

use burn::tensor::{Device, Tensor};
use rayon::prelude::*;
use regard_config::Check;
use regard_evaluate::{
    AveragePrecision, DetectedImage, FoundObject, TrueObject, box_iou, mask_iou, mean_iou,
};
use regard_images::{
    Decoding, Image, ImagesError, Mask, Normalize,
    data::{Dataset, Example, Source},
    {self as images},
};
use regard_models::{
    AnyDetector, DetectorSizes, RoleOf,
    image::{
        Detected,
        detr::loss::{Losses, SetLoss, Target},
    },
};
use regard_nn::dropout::DropoutRng;
use regard_trace::Trace;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

use super::{
    BatchLoss, Contents, Describe, OF_TRANSLATION, Task, Term, Update, Verdict, fingerprint,
    image_classification::{IMAGES, Stored},
};
use crate::{
    corpus::{Batches, FilterReport, Random},
    detector::{Description, Detector, Guess, masks_of},
    error::TrainError,
    image_classifier::Preparation,
    learner::events::Quality,
    model_file::{Header, Metadata, ModelFileError, entry, json_entry},
    ranks::Ranks,
    recipe::{Measure, ObjectData, Recipe, SceneData, SceneSet, Split},
    tokenizer::TokenizerPair,
};

/// Images that are judged together.
const JUDGED: usize = 50;

/// Scenes whose pixels say how all are normalised.
const NORMALIZED: usize = 200;

/// The least score of an object whose mask is judged.
const SURE: f32 = 0.5;

/// Models that find objects.
#[derive(Debug, Clone, Copy)]
pub struct Detection(RoleOf<AnyDetector>);

/// Images and their objects.
#[derive(Debug)]
pub struct Data {
    train: Samples,
    batches: Batches,
    filtered: FilterReport,
    validation: Samples,
    preparation: Preparation,
    /// Probability that a training image is mirrored.
    flip: f64,
}

/// A part of the data.
#[derive(Debug)]
pub enum Samples {
    /// Drawn when they are asked for.
    Scenes(SceneSet),
    /// Decoded.
    Images(Vec<Sample>),
}

/// An image of the model's size and its objects.
#[derive(Debug, Clone)]
pub struct Sample {
    image: Image,
    objects: Vec<Sought>,
}

/// An object of an image.
#[derive(Debug, Clone)]
struct Sought {
    class: usize,
    /// Centre and size as shares of the image's width and height.
    bounds: [f32; 4],
    /// Its pixels, `[height, width]` as the image.
    mask: Option<Mask>,
    crowd: bool,
}

impl Samples {
    /// The images of a part of the data that the recipe names, as `description` wants them; `None` if it names none.
    ///
    /// # Errors
    /// Files that are wrong; other classes than those of the description.
    pub fn read(
        recipe: &Recipe,
        split: Split,
        description: &Description,
    ) -> Result<Option<Self>, ImagesError> {
        let (scenes, objects) = (&recipe.data.scenes, &recipe.data.objects);
        if let Some(scenes) = scenes {
            let classes = scenes.config().classes();
            expect_classes("[data.scenes]".into(), &classes, &description.labels)?;
            return Ok(Some(Self::Scenes(scenes.part(split, recipe.training.seed))));
        }
        let Some(objects) = objects else {
            return Ok(None);
        };
        let Some(dataset) = listed(objects, split, Some(&description.labels))? else {
            return Ok(None);
        };
        let size = description.preparation.size;
        let filtered = &mut FilterReport::default();
        decoded(dataset, objects, size, filtered).map(|read| Some(Self::Images(read)))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Scenes(scenes) => scenes.len(),
            Self::Images(images) => images.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn get(&self, index: usize) -> Sample {
        match self {
            Self::Scenes(scenes) => {
                let drawn = scenes.scene(index).and_then(|scene| {
                    let example = scene.example(scenes.config());
                    let [height, width] = [scenes.config().height, scenes.config().width];
                    sample(&example, &Decoding::default(), [height, width])
                });
                drawn.expect("the recipe's checks cover every setting of scenes")
            }
            Self::Images(images) => images[index].clone(),
        }
    }

    /// Those of these numbers, made on all threads.
    fn all(&self, rows: &[usize]) -> Vec<Sample> {
        rows.par_iter().map(|&row| self.get(row)).collect()
    }
}

/// Checks that data have the classes of a model.
fn expect_classes(path: PathBuf, found: &[String], labels: &[String]) -> Result<(), ImagesError> {
    match found == labels {
        true => Ok(()),
        false => Err(ImagesError::Field {
            path,
            field: "the list of classes".to_owned(),
            given: found.join(", "),
            expected: labels.join(", "),
        }),
    }
}

/// The examples of a part that the recipe names, which must have the classes `labels` if there are such; no image is opened.
fn listed(
    objects: &ObjectData,
    split: Split,
    labels: Option<&[String]>,
) -> Result<Option<Dataset>, ImagesError> {
    let dataset = objects.read(split)?;
    if let (Some(dataset), Some(labels)) = (&dataset, labels) {
        expect_classes(objects_path(objects, split), &dataset.classes, labels)?;
    }
    Ok(dataset)
}

/// The file of the objects of a part.
fn objects_path(objects: &ObjectData, split: Split) -> PathBuf {
    let [_, path] = objects.paths(split);
    path.map_or_else(PathBuf::new, PathBuf::from)
}

/// Checks that no image of the training data has more objects than a model finds.
fn expect_room(dataset: &Dataset, objects: &ObjectData, most: usize) -> Result<(), ImagesError> {
    for example in &dataset.examples {
        let count = example.objects.iter().filter(|one| !one.crowd).count();
        if count > most {
            let image = match &example.source {
                Source::File(path) => path.display().to_string(),
                Source::Pixels(_) => "an image".to_owned(),
            };
            return Err(ImagesError::Field {
                path: objects_path(objects, Split::Train),
                field: format!("the number of objects in {image}"),
                given: count.to_string(),
                expected: format!("at most {most}, model.queries"),
            });
        }
    }
    Ok(())
}

/// An example in the model's size.
fn sample(
    example: &Example,
    decoding: &Decoding,
    [height, width]: [usize; 2],
) -> Result<Sample, ImagesError> {
    let image = example.image(decoding)?;
    let [rows, columns] = [image.height(), image.width()];
    let objects = example.objects.iter().map(|object| {
        let mask = object
            .region
            .as_ref()
            .map(|region| region.mask(rows, columns));
        let mask = mask.transpose()?.map(|mask| mask.resized(height, width));
        Ok(Sought {
            class: object.class,
            bounds: object.bounds.relative(rows, columns),
            mask: mask.transpose()?,
            crowd: object.crowd,
        })
    });
    let objects = objects.collect::<Result<_, ImagesError>>()?;
    let image = match [rows, columns] == [height, width] {
        true => image,
        false => image.resize(height, width)?,
    };
    Ok(Sample { image, objects })
}

/// Decodes a data set.
fn decoded(
    dataset: Dataset,
    settings: &ObjectData,
    size: [usize; 2],
    filtered: &mut FilterReport,
) -> Result<Vec<Sample>, ImagesError> {
    filtered.broken += dataset.skipped.len();
    let examples = dataset.examples;
    let (count, decoding) = (examples.len(), settings.decoding());
    let broken = settings.broken.policy();
    let read = move |index: usize| sample(&examples[index], &decoding, size);
    let (all, left_out) = super::decoded(count, broken, read)?;
    filtered.broken += left_out;
    Ok(all)
}

impl Sample {
    /// Left becomes right.
    fn flipped(&self) -> Self {
        let objects = self.objects.iter().map(|object| {
            let [x, y, width, height] = object.bounds;
            Sought {
                bounds: [1.0 - x, y, width, height],
                mask: object.mask.as_ref().map(Mask::flipped),
                ..*object
            }
        });
        Self {
            objects: objects.collect(),
            image: self.image.flipped(),
        }
    }

    /// What is to be found; crowds are not.
    fn targets(&self) -> Vec<Target> {
        let objects = self.objects.iter().filter(|object| !object.crowd);
        let target = |object: &Sought| Target {
            class: object.class,
            bounds: object.bounds,
            mask: object
                .mask
                .as_ref()
                .map(|mask| mask.iter().map(|set| f32::from(u8::from(set))).collect()),
        };
        objects.map(target).collect()
    }
}

/// The pixels and objects of images as tensors and targets.
fn batch(
    samples: &[Sample],
    preparation: &Preparation,
    device: &Device,
) -> (Tensor<4>, Vec<Vec<Target>>) {
    let images: Vec<Image> = samples.iter().map(|sample| sample.image.clone()).collect();
    let targets = samples.iter().map(Sample::targets).collect();
    (preparation.tensor(&images, device), targets)
}

/// The loss of what was found; NaN where the predictions are not finite.
fn loss_of(
    model: &AnyDetector,
    found: &Detected,
    targets: &[Vec<Target>],
    size: [usize; 2],
) -> Option<Losses> {
    let masks = |chosen: &[[usize; 2]]| model.masks(found, chosen, size);
    SetLoss::default().of(found, targets, masks).ok()
}

/// How well a model finds objects.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// The mean loss of an image.
    pub loss: f64,
    /// Of the boxes.
    pub precision: AveragePrecision,
    /// Of the masks of objects with a score of at least .5, of a model with masks.
    pub mean_iou: Option<f64>,
    /// What was found in each image, in words.
    pub lines: Vec<String>,
}

/// Judges `model`, which is on `device`, by `samples`, which the `ranks` share; IoUs of masks are those in the model's size.
///
/// # Errors
/// A mask that is too large; ranks that are gone.
pub fn judge(
    model: &AnyDetector,
    description: &Description,
    samples: &Samples,
    device: &Device,
    ranks: &dyn Ranks,
) -> Result<Judged, TrainError> {
    let rows: Vec<usize> = (0..samples.len()).collect();
    let batches: Vec<&[usize]> = rows.chunks(JUDGED).collect();
    let judged = ranks.spread(&batches, |_, own| {
        let judge = |rows: &&[usize]| judge_batch(model, description, &samples.all(rows), device);
        own.iter()
            .map(judge)
            .collect::<Result<Vec<_>, TrainError>>()
    })?;
    let (mut by_boxes, mut by_masks, mut lines) = (vec![], vec![], vec![]);
    let (mut sum, mut has_masks) = (0.0, true);
    for batch in judged {
        sum += batch.loss;
        by_boxes.extend(batch.by_boxes);
        has_masks &= batch.by_masks.is_some();
        by_masks.extend(batch.by_masks.into_iter().flatten());
        lines.extend(batch.lines);
    }
    Ok(Judged {
        loss: sum / samples.len().max(1) as f64,
        precision: AveragePrecision::of(&by_boxes, description.labels.len()),
        mean_iou: match has_masks {
            true => mean_iou(&by_masks, f64::from(SURE)),
            false => None,
        },
        lines,
    })
}

/// Some images, judged.
#[derive(Serialize, Deserialize)]
struct JudgedBatch {
    /// The sum of the losses.
    loss: f64,
    by_boxes: Vec<DetectedImage>,
    /// Of a model with masks.
    by_masks: Option<Vec<DetectedImage>>,
    lines: Vec<String>,
}

fn judge_batch(
    model: &AnyDetector,
    description: &Description,
    samples: &[Sample],
    device: &Device,
) -> Result<JudgedBatch, TrainError> {
    let Description {
        labels,
        preparation,
        ..
    } = description;
    let (images, targets) = batch(samples, preparation, device);
    let found = model.forward(images, &mut DropoutRng::none());
    let loss = loss_of(model, &found, &targets, preparation.size);
    let loss = loss.map_or(f32::NAN, |losses| losses.total.into_scalar::<f32>());
    let (mut by_boxes, mut by_masks, mut lines) = (vec![], Some(vec![]), vec![]);
    let guesses = Guess::all(found.last());
    for (row, (sample, guesses)) in samples.iter().zip(guesses).enumerate() {
        by_boxes.push(compared_by_boxes(sample, &guesses));
        let sure: Vec<Guess> = guesses
            .into_iter()
            .filter(|guess| guess.score >= SURE)
            .collect();
        lines.push(in_words(&sure, labels));
        let chosen: Vec<[usize; 2]> = sure.iter().map(|guess| [row, guess.query]).collect();
        let masks = masks_of(model, &found, &chosen, preparation.size)?;
        match (masks, &mut by_masks) {
            (Some(masks), Some(by_masks)) => {
                by_masks.push(compared_by_masks(sample, &sure, &masks));
            }
            _ => by_masks = None,
        }
    }
    Ok(JudgedBatch {
        loss: f64::from(loss) * samples.len() as f64,
        by_boxes,
        by_masks,
        lines,
    })
}

/// What was found and what is there, with an overlap for each pair.
fn compared(
    sample: &Sample,
    guesses: &[Guess],
    overlap: impl Fn(usize, &Sought) -> f64,
) -> DetectedImage {
    let found = guesses.iter().map(|guess| FoundObject {
        class: guess.class,
        score: f64::from(guess.score),
    });
    let truth = sample.objects.iter().map(|object| TrueObject {
        class: object.class,
        crowd: object.crowd,
    });
    let pairs = (0..guesses.len()).flat_map(|guess| {
        let overlap = &overlap;
        sample
            .objects
            .iter()
            .map(move |object| overlap(guess, object))
    });
    DetectedImage {
        found: found.collect(),
        truth: truth.collect(),
        overlap: pairs.collect(),
    }
}

fn compared_by_boxes(sample: &Sample, guesses: &[Guess]) -> DetectedImage {
    compared(sample, guesses, |guess, object| {
        let [x, y, width, height] = object.bounds;
        let truth = [x - width / 2.0, y - height / 2.0, width, height];
        box_iou(
            guesses[guess].bounds.map(f64::from),
            truth.map(f64::from),
            object.crowd,
        )
    })
}

fn compared_by_masks(sample: &Sample, guesses: &[Guess], masks: &[Mask]) -> DetectedImage {
    compared(sample, guesses, |guess, object| {
        let Some(truth) = &object.mask else {
            return 0.0;
        };
        let found = &masks[guess];
        let shared = found
            .iter()
            .zip(truth.iter())
            .filter(|pair| *pair == (true, true));
        mask_iou(shared.count(), found.area(), truth.area(), object.crowd)
    })
}

/// "circle .98 (10 12 20 20)" for each, with left, top, width and height in percent.
fn in_words(guesses: &[Guess], labels: &[String]) -> String {
    let words = guesses.iter().map(|guess| {
        let [x, y, width, height] = guess.bounds.map(|share| (100.0 * share).round());
        let (label, score) = (&labels[guess.class], guess.score);
        format!("{label} {score:.2} ({x} {y} {width} {height})")
    });
    words.collect::<Vec<_>>().join(", ")
}

impl Task for Detection {
    const MODEL: &'static str = "a detector of objects";
    const DOES: &'static str = "finds objects";
    const UNREAD: &'static [&'static [&'static str]] = &[
        OF_TRANSLATION,
        &[
            "data.lowercase",
            "data.vocabulary",
            "data.tokenizer",
            "data.filter",
            "data.labelled",
            "data.text",
            "data.images",
            "data.captions",
            "data.questions",
            "batch.tokens",
            "batch.pool",
            "training.label_smoothing",
            "training.guided_attention",
        ],
    ];
    const COUNTED: &'static str = "images";
    type Model = AnyDetector;
    type Description = Description;
    type Data = Data;

    fn of(role: RoleOf<AnyDetector>) -> Self {
        Self(role)
    }

    fn role(&self) -> RoleOf<AnyDetector> {
        self.0
    }

    fn example(&self, recipe: &mut Recipe) {
        recipe.data.scenes = Some(SceneData::default());
    }

    fn check(&self, recipe: &Recipe, check: &mut Check) {
        let config = self.0.of(&*recipe.model.config);
        let most = config.properties().most_objects;
        match (&recipe.data.scenes, &recipe.data.objects) {
            (None, None) => check.fail(
                "data.scenes",
                "missing",
                "a section [data.scenes] or [data.objects], which a detector learns from",
            ),
            (Some(_), Some(_)) => check.fail(
                "data.objects",
                "found beside [data.scenes]",
                "one of the two",
            ),
            (Some(scenes), None) if scenes.objects > most => {
                let expected = format!("at least {}, the objects of a scene", scenes.objects);
                check.fail("model.queries", format!("found {most}"), expected);
            }
            (Some(_), None) => {}
            (None, Some(objects)) => {
                let named = |split| objects.paths(split).map(|path| path.is_some());
                if named(Split::Train) != [true; 2] {
                    let expected = "a folder of images, and train_objects, a file of their objects";
                    check.fail("data.objects.train", "missing", expected);
                }
                for (split, key) in [
                    (Split::Valid, "data.objects.valid"),
                    (Split::Test, "data.objects.test"),
                ] {
                    if let [true, false] | [false, true] = named(split) {
                        let expected = "both a folder of images and a file of their objects";
                        check.fail(key, "found one without the other", expected);
                    }
                }
            }
        }
        if let Some(measure @ (Measure::Bleu | Measure::Accuracy)) = recipe.validation.measure {
            let found = format!("found \"{measure:?}\"").to_lowercase();
            let expected = "\"loss\", or nothing for average precision, for this kind of model";
            check.fail("validation.measure", found, expected);
        }
    }

    fn load(
        &self,
        recipe: &Recipe,
        former: Option<Description>,
        _tokenizers: Option<TokenizerPair>,
    ) -> Result<(Data, Description), TrainError> {
        let mut filtered = FilterReport::default();
        let model = recipe.model.clone();
        let former = former.map(|former| Description {
            model: model.clone(),
            ..former
        });
        let described = |labels, size, normalize| Description {
            model: model.clone(),
            labels,
            preparation: Preparation::new(size, normalize),
        };
        let (train, description, flip) = match (&recipe.data.scenes, &recipe.data.objects) {
            (Some(scenes), _) => {
                let set = scenes.part(Split::Train, recipe.training.seed);
                let labels = scenes.config().classes();
                let description = match former {
                    Some(former) => {
                        expect_classes("[data.scenes]".into(), &labels, &former.labels)?;
                        former
                    }
                    None => {
                        let some = (0..set.len().min(NORMALIZED)).map(|index| set.scene(index));
                        let some = some.map(|scene| Ok(scene?.image));
                        let some = some.collect::<Result<Vec<Image>, ImagesError>>()?;
                        described(labels, [scenes.size; 2], Normalize::of(&some)?)
                    }
                };
                (Samples::Scenes(set), description, 0.0)
            }
            (None, Some(objects)) => {
                let known = former.as_ref().map(|former| former.labels.as_slice());
                let dataset = listed(objects, Split::Train, known)?.ok_or(TrainError::NoData)?;
                let labels = dataset.classes.clone();
                let config = self.0.of(&*recipe.model.config);
                expect_room(&dataset, objects, config.properties().most_objects)?;
                listed(objects, Split::Test, Some(&labels))?;
                let size = match &former {
                    Some(former) => former.preparation.size,
                    None => [objects.size; 2],
                };
                let all = decoded(dataset, objects, size, &mut filtered)?;
                if all.is_empty() {
                    return Err(TrainError::NoImages {
                        key: "data.objects.train_objects",
                        broken: filtered.broken,
                        expected: "images that can be read",
                    });
                }
                let description = match former {
                    Some(former) => former,
                    None => {
                        let images = all.iter().map(|sample| &sample.image);
                        described(labels, size, Normalize::of(images)?)
                    }
                };
                (Samples::Images(all), description, objects.flip)
            }
            (None, None) => return Err(TrainError::NoData),
        };
        filtered.kept = train.len();
        let validation = Samples::read(recipe, Split::Valid, &description)?;
        let data = Data {
            batches: Batches::of_lengths(vec![(1, 0); train.len()], recipe.batch.budget())?,
            train,
            filtered,
            validation: validation.unwrap_or(Samples::Images(vec![])),
            preparation: description.preparation.clone(),
            flip,
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
        let DetectorSizes {
            channels,
            size,
            classes,
        } = header.sizes(name)?;
        let stored: Stored = json_entry(metadata, IMAGES, name)?;
        let (labels, preparation) = stored.checked(channels, size, classes, name)?;
        Ok(Description {
            model: header.model,
            labels,
            preparation,
        })
    }

    fn fingerprint(&self, data: &Data) -> u64 {
        samples_fingerprint(&data.train)
    }

    fn validation_fingerprint(&self, data: &Data) -> u64 {
        samples_fingerprint(&data.validation)
    }

    fn contents<'a>(&self, data: &'a Data, _description: &'a Description) -> Contents<'a> {
        Contents {
            examples: "images",
            tokenizers: None,
            batches: &data.batches,
            filtered: &data.filtered,
            validation: data.validation.len(),
        }
    }

    fn loss(&self, data: &Data, model: &AnyDetector, update: &Update<'_>) -> BatchLoss {
        let mut random = Random::new(&[update.recipe.training.seed, update.step]);
        let mut noise = update.noise(random.next_u64());
        let seed = random.next_u64();
        let (device, rows) = (update.training, update.rows);
        let made = |place: usize| {
            let sample = data.train.get(rows[place]);
            let mut random = images::Random::new(seed, place as u64);
            match random.chance(data.flip) {
                true => sample.flipped(),
                false => sample,
            }
        };
        let places = update.share.clone().into_par_iter();
        let samples: Vec<Sample> = places.map(made).collect();
        let (x, targets) = batch(&samples, &data.preparation, device);
        let found = model.forward(x, &mut noise);
        let losses = loss_of(model, &found, &targets, data.preparation.size);
        let (terms, class) = match losses {
            Some(losses) => {
                let class = f64::from(losses.class.into_scalar::<f32>());
                let terms = losses.terms.map(|(mean, count)| Term { mean, count });
                (terms.to_vec(), class)
            }
            // The learner stops with an error.
            None => (
                vec![Term::new(Tensor::full([1], f32::NAN, device), 1)],
                f64::NAN,
            ),
        };
        let predictions = update.share.len();
        BatchLoss {
            terms,
            negative_log_likelihood: class * predictions as f64,
            predictions,
            tokens: predictions,
            baseline: None,
        }
    }

    fn validate(
        &self,
        data: &Data,
        description: &Description,
        model: &AnyDetector,
        _recipe: &Recipe,
        device: &Device,
        ranks: &dyn Ranks,
    ) -> Result<Option<Verdict>, TrainError> {
        if data.validation.is_empty() {
            return Ok(None);
        }
        let Judged {
            loss,
            precision,
            mean_iou,
            lines,
        } = judge(model, description, &data.validation, device, ranks)?;
        Ok(Some(Verdict {
            loss,
            quality: Quality::Detection {
                average_precision: precision.ap,
                average_precision_50: precision.ap50,
                mean_iou,
            },
            lines,
        }))
    }

    fn look(
        &self,
        data: &Data,
        description: &Description,
        model: &AnyDetector,
        row: usize,
        device: &Device,
    ) -> Result<Option<Trace>, TrainError> {
        if row >= data.validation.len() {
            return Ok(None);
        }
        let detector = Detector::new(model.clone(), description.clone(), device);
        let image = data.validation.get(row).image;
        // All queries, also those that find nothing yet.
        let seen = detector.look(&[image], 0.0, false);
        Ok(Some(seen.map_err(TrainError::look)?.swap_remove(0).1))
    }
}

/// A hash of images and objects.
fn samples_fingerprint(samples: &Samples) -> u64 {
    let words = |bytes: &[u8]| -> Vec<u32> {
        let word = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |word, &byte| word << 8 | u32::from(byte))
        };
        bytes.chunks(4).map(word).collect()
    };
    let rows: Vec<Vec<u32>> = match samples {
        Samples::Scenes(scenes) => vec![words(format!("{scenes:?}").as_bytes())],
        Samples::Images(images) => {
            let row = |sample: &Sample| {
                let objects = sample.objects.iter().flat_map(|object| {
                    let class = [object.class as u32].into_iter();
                    let bounds = object.bounds.map(f32::to_bits).into_iter();
                    let mask = object.mask.iter().flat_map(Mask::runs);
                    let crowd = object.crowd.then_some(u32::MAX);
                    bounds.chain(class).chain(mask).chain(crowd)
                });
                let pixels = words(sample.image.pixels()).into_iter();
                pixels.chain(objects).collect()
            };
            images.iter().map(row).collect()
        }
    };
    fingerprint(rows.iter().map(Vec::as_slice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use regard_images::scenes::{Scene, SceneConfig};

    fn drawn(size: [usize; 2]) -> Sample {
        let config = SceneConfig::default();
        let scene = Scene::generate(3, 1, &config).unwrap();
        sample(&scene.example(&config), &Decoding::default(), size).unwrap()
    }

    #[test]
    fn boxes_and_masks_are_mirrored_with_their_image() {
        let before = drawn([64, 64]);
        let after = before.flipped();
        assert_eq!(after.image, before.image.flipped());
        for (a, b) in before.objects.iter().zip(&after.objects) {
            let (mask, mirrored) = (a.mask.as_ref().unwrap(), b.mask.as_ref().unwrap());
            assert!((0..64).all(|y| (0..64).all(|x| mask.get(y, x) == mirrored.get(y, 63 - x))));
            // The box is still the smallest around the mask.
            let around = mirrored.bounds().unwrap().relative(64, 64);
            assert!(
                around
                    .iter()
                    .zip(b.bounds)
                    .all(|(a, b)| (a - b).abs() < 1e-6)
            );
            assert_eq!(a.class, b.class);
        }
    }

    #[test]
    fn boxes_and_masks_keep_their_places_in_another_size() {
        let sample = drawn([40, 128]);
        assert_eq!([sample.image.height(), sample.image.width()], [40, 128]);
        for object in &sample.objects {
            let around = object.mask.as_ref().unwrap().bounds().unwrap();
            let around = around.relative(40, 128);
            // To a pixel of the smaller side.
            assert!(
                around
                    .iter()
                    .zip(object.bounds)
                    .all(|(a, b)| (a - b).abs() < 1.0 / 32.0)
            );
        }
    }

    #[test]
    fn crowds_are_not_to_be_found() {
        let mut sample = drawn([64, 64]);
        let all = sample.targets().len();
        sample.objects[0].crowd = true;
        assert_eq!(sample.targets().len(), all - 1);
        let guess = |object: &Sought| {
            let [x, y, width, height] = object.bounds;
            Guess {
                query: 0,
                class: object.class,
                score: 0.9,
                bounds: [x - width / 2.0, y - height / 2.0, width, height],
            }
        };
        let guesses: Vec<Guess> = sample.objects.iter().map(guess).collect();
        let compared = compared_by_boxes(&sample, &guesses);
        assert!((AveragePrecision::of(&[compared], 17).ap - 1.0).abs() < 1e-9);
    }
}
