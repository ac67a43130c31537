//! The task of detection: images whose objects are known by class, box and mask; the loss of a set of predictions
//! ([`regard_models::image::detr::loss`]), COCO's average precision.
//!
//! Scenes are drawn when they are asked for, on all threads. Images of files are decoded once, brought to one size with their boxes
//! and masks, and kept as bytes; they are mirrored at random, with their boxes and masks, by (seed, update, place in the batch).
//! Crowds are no objects to be found, and no mistake where something is found in them.

mod judge;
mod samples;

use burn::tensor::{Device, Tensor};
use rayon::prelude::*;
use regard_config::Check;
use regard_images::{self as images, Image, ImagesError, Normalize};
use regard_models::{AnyDetector, DetectorSizes, RoleOf};
use regard_trace::Trace;
use serde::{Deserialize, Serialize};

pub use judge::{Judged, judge};
pub use samples::{Sample, Samples};

use super::{
    BatchLoss, Contents, Describe, OF_TRANSLATION, Task, Term, Update, Verdict,
    image_classification::{IMAGES, Stored as StoredImages},
};
use crate::{
    corpus::{Batches, FilterReport, Random},
    detector::{Description, Detector},
    error::TrainError,
    image_classifier::Preparation,
    learner::events::Quality,
    model_file::{Header, Metadata, ModelFileError, entry, expect_no_problem, json_entry},
    ranks::Ranks,
    recipe::{Measure, Recipe, SceneData, Split},
    tokenizer::TokenizerPair,
};
use judge::loss_of;
use samples::{
    batch, decoded, expect_classes, expect_masks, expect_room, listed, samples_fingerprint,
};

/// Scenes whose pixels say how all are normalised.
const NORMALIZED: usize = 200;

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

/// What the metadata of a file say of its images, and of their data.
#[derive(Serialize, Deserialize)]
struct Stored {
    #[serde(flatten)]
    images: StoredImages,
    /// Former files lack this and what follows.
    scenes: Option<SceneData>,
    #[serde(default)]
    seed: u64,
}

/// Checks that a model finds as many objects as a scene has.
fn expect_queries(most: usize, scenes: &SceneData, check: &mut Check) {
    let expected = format!("at least {}, the objects of a scene", scenes.objects);
    check.require(most >= scenes.objects, "model.queries", most, &expected);
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
            (Some(scenes), None) => expect_queries(most, scenes, check),
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
        let scenes = recipe.data.scenes.clone();
        let scenes = scenes.map(|scenes| (scenes, recipe.training.seed));
        let former = former.map(|former| Description {
            model: model.clone(),
            scenes: scenes.clone(),
            ..former
        });
        let described = |labels, size, normalize| Description {
            model: model.clone(),
            labels,
            preparation: Preparation::new(size, normalize),
            scenes: scenes.clone(),
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
                let dataset = listed(objects, Split::Train, known)?;
                let dataset = dataset.ok_or(TrainError::NoData)?;
                let labels = dataset.classes.clone();
                let config = self.0.of(&*recipe.model.config);
                expect_room(&dataset, objects, config.properties().most_objects)?;
                if former.is_none() {
                    expect_masks(&dataset, objects, &model)?;
                }
                listed(objects, Split::Test, Some(&labels))?;
                let size = match &former {
                    Some(former) => former.preparation.size,
                    None => [objects.size; 2],
                };
                let all = decoded(dataset, objects, Split::Train, size, &mut filtered)?;
                let description = match (former, &all) {
                    (Some(former), _) => former,
                    (None, Samples::Images { images, .. }) => {
                        described(labels, size, images.normalize(usize::MAX)?)
                    }
                    (None, Samples::Scenes(_)) => return Err(TrainError::NoData),
                };
                (all, description, objects.flip)
            }
            (None, None) => return Err(TrainError::NoData),
        };
        description.preparation.expect_form(train.form())?;
        filtered.kept = train.len();
        let validation = match Samples::part(recipe, Split::Valid, &description)? {
            Some((validation, read)) => {
                filtered.broken += read.broken;
                validation
            }
            None => Samples::none(),
        };
        let data = Data {
            batches: Batches::of_lengths(vec![(1, 0); train.len()], recipe.batch.budget())?,
            train,
            filtered,
            validation,
            preparation: description.preparation.clone(),
            flip,
        };
        Ok((data, description))
    }

    fn metadata(&self, description: &Description) -> Metadata {
        let (scenes, seed) = description.scenes.clone().unzip();
        let stored = Stored {
            images: StoredImages::of(&description.labels, &description.preparation.normalize),
            scenes,
            seed: seed.unwrap_or_default(),
        };
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
        let Stored {
            images,
            scenes,
            seed,
        } = json_entry(metadata, IMAGES, name)?;
        let (labels, preparation) = images.checked(channels, size, classes, name)?;
        let mut check = Check::default();
        if let Some(scenes) = &scenes {
            check.table("data.scenes", scenes);
            let config = self.0.of(&*header.model.config);
            expect_queries(config.properties().most_objects, scenes, &mut check);
            check.require(
                scenes.config().classes() == labels,
                "data.scenes.digits",
                scenes.digits,
                "scenes with the model's classes",
            );
        }
        expect_no_problem(check, name)?;
        Ok(Description {
            model: header.model,
            labels,
            preparation,
            scenes: scenes.map(|scenes| (scenes, seed)),
        })
    }

    fn fingerprint(&self, data: &Data) -> Result<u64, TrainError> {
        samples_fingerprint(&data.train)
    }

    fn validation_fingerprint(&self, data: &Data) -> Result<u64, TrainError> {
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

    fn ahead(&self, data: &Data, rows: &[usize]) -> Result<(), TrainError> {
        match &data.train {
            Samples::Scenes(_) => Ok(()),
            Samples::Images { images, .. } => Ok(images.ahead(rows)?),
        }
    }

    fn loss(
        &self,
        data: &Data,
        model: &AnyDetector,
        update: &Update<'_>,
    ) -> Result<BatchLoss, TrainError> {
        let mut random = Random::new(&[update.recipe.training.seed, update.step]);
        let mut noise = update.noise(random.next_u64());
        let seed = random.next_u64();
        let device = update.training;
        let made = |(place, sample): (usize, Sample)| {
            let mut random = images::Random::new(seed, place as u64);
            match random.chance(data.flip) {
                true => sample.flipped(),
                false => sample,
            }
        };
        let samples = data.train.all(update.own_rows())?.into_par_iter();
        let places = update.share.clone().into_par_iter();
        let samples: Vec<Sample> = places.zip(samples).map(made).collect();
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
        Ok(BatchLoss {
            terms,
            negative_log_likelihood: class * predictions as f64,
            predictions,
            tokens: predictions,
            baseline: None,
        })
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
            ..
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
        let image = data.validation.all(&[row])?.swap_remove(0).image;
        // All queries, also those that find nothing yet.
        let seen = detector.look(&[image], 0.0, false);
        Ok(Some(seen.map_err(TrainError::look)?.swap_remove(0).1))
    }
}
