//! Images and their objects: read from files or drawn, brought to the model's size, and made tensors and targets.

use burn::tensor::{Device, Tensor};
use rayon::prelude::*;
use regard_images::{
    Decoding, Image, ImagesError, Mask,
    data::{Dataset, Example, Pictures, Source},
};
use regard_models::image::{DetrConfig, detr::loss::Target};
use std::{borrow::Cow, path::PathBuf};

use super::super::Fingerprint;
use crate::{
    corpus::FilterReport,
    detector::Description,
    error::TrainError,
    image_classifier::{Form, Preparation},
    recipe::{Model, ObjectData, Recipe, SceneSet, Split},
};

/// A part of the data.
#[derive(Debug)]
pub enum Samples {
    /// Drawn when they are asked for.
    Scenes(SceneSet),
    /// Of files.
    Images {
        /// The images, in the model's size.
        images: Pictures,
        /// What each shows.
        objects: Vec<Vec<Sought>>,
    },
}

/// An image of the model's size and its objects.
#[derive(Debug, Clone)]
pub struct Sample {
    pub(super) image: Image,
    pub(super) objects: Vec<Sought>,
}

/// An object of an image.
#[derive(Debug, Clone)]
pub struct Sought {
    pub(super) class: usize,
    /// Centre and size as shares of the image's width and height.
    pub(super) bounds: [f32; 4],
    /// Its pixels, `[height, width]` as the image.
    pub(super) mask: Option<Mask>,
    pub(super) crowd: bool,
}

impl Samples {
    /// No image.
    pub(super) fn none() -> Self {
        Self::Images {
            images: Pictures::default(),
            objects: vec![],
        }
    }

    /// The images of a part of the data that the recipe names, as `description` wants them, and how many images and objects were left
    /// out; `None` if it names none.
    ///
    /// # Errors
    /// Files that are wrong; other classes than those of the description; [`TrainError::NoImages`].
    pub fn part(
        recipe: &Recipe,
        split: Split,
        description: &Description,
    ) -> Result<Option<(Self, FilterReport)>, TrainError> {
        let (scenes, objects) = (&recipe.data.scenes, &recipe.data.objects);
        if let Some(scenes) = scenes {
            let classes = scenes.config().classes();
            expect_classes("[data.scenes]".into(), &classes, &description.labels)?;
            let set = scenes.part(split, recipe.training.seed);
            let filtered = FilterReport {
                kept: set.len(),
                ..FilterReport::default()
            };
            return Ok(Some((Self::Scenes(set), filtered)));
        }
        let Some(objects) = objects else {
            return Ok(None);
        };
        let labels = Some(description.labels.as_slice());
        let Some(dataset) = listed(objects, split, labels)? else {
            return Ok(None);
        };
        let mut filtered = FilterReport::default();
        let size = description.preparation.size;
        let read = decoded(dataset, objects, split, size, &mut filtered)?;
        filtered.kept = read.len();
        Ok(Some((read, filtered)))
    }

    /// What the images are like.
    pub(super) fn form(&self) -> Form {
        match self {
            Self::Scenes(scenes) => Form::of_scenes(scenes),
            Self::Images { images, .. } => Form::of("data.objects", images),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Scenes(scenes) => scenes.len(),
            Self::Images { images, .. } => images.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those of these numbers, made on all threads.
    ///
    /// # Errors
    /// An image that cannot be read any more.
    pub(super) fn all(&self, rows: &[usize]) -> Result<Vec<Sample>, ImagesError> {
        match self {
            Self::Scenes(scenes) => {
                let drawn = rows.par_iter().map(|&row| {
                    let example = scenes.scene(row)?.example(scenes.config());
                    let [height, width] = [scenes.config().height, scenes.config().width];
                    let (image, objects) = sample(&example, &Decoding::default(), [height, width])?;
                    Ok(Sample { image, objects })
                });
                drawn.collect()
            }
            Self::Images { images, objects } => {
                let of = |(image, &row): (Cow<'_, Image>, &usize)| Sample {
                    image: image.into_owned(),
                    objects: objects[row].clone(),
                };
                Ok(images.all(rows)?.into_iter().zip(rows).map(of).collect())
            }
        }
    }
}

/// Checks that data have the classes of a model.
pub(super) fn expect_classes(
    path: PathBuf,
    found: &[String],
    labels: &[String],
) -> Result<(), ImagesError> {
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
pub(super) fn listed(
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

/// Checks that the training data have objects, and none of their images more than a model finds.
pub(super) fn expect_room(
    dataset: &Dataset,
    objects: &ObjectData,
    most: usize,
) -> Result<(), ImagesError> {
    let mut all = 0;
    for example in &dataset.examples {
        let count = example.objects.iter().filter(|one| !one.crowd).count();
        all += count;
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
    match all {
        0 => Err(ImagesError::Empty {
            path: objects_path(objects, Split::Train),
            what: "object",
            expected: "at least one entry in annotations that is no crowd, and not left out"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}

/// Checks that a `model` with masks has some to learn from.
pub(super) fn expect_masks(
    dataset: &Dataset,
    objects: &ObjectData,
    model: &Model,
) -> Result<(), ImagesError> {
    let config = model.config::<DetrConfig>();
    let mut all = dataset.examples.iter().flat_map(|one| &one.objects);
    if !config.is_some_and(|config| config.masks) || all.any(|one| one.region.is_some()) {
        return Ok(());
    }
    Err(ImagesError::Field {
        path: objects_path(objects, Split::Train),
        field: "annotations[0].segmentation".to_owned(),
        given: "missing or empty, as of every object".to_owned(),
        expected: "polygons or runs of the pixels of some objects, which a model with masks learns; without them, model.masks = false"
            .to_owned(),
    })
}

/// An example in the model's size.
fn sample(
    example: &Example,
    decoding: &Decoding,
    [height, width]: [usize; 2],
) -> Result<(Image, Vec<Sought>), ImagesError> {
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
    Ok((image, objects))
}

/// Decodes a part of the data, of which images must be left.
pub(super) fn decoded(
    dataset: Dataset,
    settings: &ObjectData,
    split: Split,
    size: [usize; 2],
    filtered: &mut FilterReport,
) -> Result<Samples, TrainError> {
    filtered.broken += dataset.skipped.len();
    // Of what was left out, images that are missing; the rest are objects.
    let missing = dataset.skipped.iter().filter(
        |error| matches!(error, ImagesError::Field { field, .. } if field.starts_with("images[")),
    );
    let missing = missing.count();
    let examples = dataset.examples;
    let (count, decoding) = (examples.len(), settings.decoding());
    let broken = settings.broken.policy();
    let read = move |index: usize| sample(&examples[index], &decoding, size);
    let (images, objects, left_out) = super::super::decoded(count, broken, settings.memory, read)?;
    filtered.broken += left_out;
    match images.is_empty() {
        true => Err(TrainError::NoImages {
            key: match split {
                Split::Train => "data.objects.train_objects",
                Split::Valid => "data.objects.valid_objects",
                Split::Test => "data.objects.test_objects",
            },
            broken: missing + left_out,
            expected: "images that can be read",
        }),
        false => Ok(Samples::Images { images, objects }),
    }
}

impl Sample {
    /// Left becomes right.
    pub(super) fn flipped(&self) -> Self {
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
pub(super) fn batch(
    samples: &[Sample],
    preparation: &Preparation,
    device: &Device,
) -> (Tensor<4>, Vec<Vec<Target>>) {
    let images: Vec<&Image> = samples.iter().map(|sample| &sample.image).collect();
    let targets = samples.iter().map(Sample::targets).collect();
    (preparation.tensor(&images, device), targets)
}

/// A hash of images and objects.
pub(super) fn samples_fingerprint(samples: &Samples) -> Result<u64, TrainError> {
    // Big-endian, unlike that of other data.
    let word = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0_u32, |word, &byte| word << 8 | u32::from(byte))
    };
    let mut hash = Fingerprint::new();
    let mut add = |bytes: &[u8], more: &[u32]| {
        let words = bytes.chunks(4).map(word).chain(more.iter().copied());
        hash.list(bytes.len().div_ceil(4) + more.len(), words);
    };
    match samples {
        Samples::Scenes(scenes) => add(format!("{scenes:?}").as_bytes(), &[]),
        Samples::Images { images, objects } => {
            images.each(|row, image| {
                let objects = objects[row].iter().flat_map(|object| {
                    let class = [object.class as u32].into_iter();
                    let bounds = object.bounds.map(f32::to_bits).into_iter();
                    let mask = object.mask.iter().flat_map(Mask::runs);
                    let crowd = object.crowd.then_some(u32::MAX);
                    bounds.chain(class).chain(mask).chain(crowd)
                });
                add(image.pixels(), &objects.collect::<Vec<u32>>());
            })?;
        }
    }
    Ok(hash.0)
}

#[cfg(test)]
mod tests {
    use super::super::judge::compared_by_boxes;
    use super::*;
    use crate::detector::Guess;
    use regard_evaluate::AveragePrecision;
    use regard_images::scenes::{Scene, SceneConfig};

    fn drawn(size: [usize; 2]) -> Sample {
        let config = SceneConfig::default();
        let scene = Scene::generate(3, 1, &config).unwrap();
        let sample = sample(&scene.example(&config), &Decoding::default(), size);
        let (image, objects) = sample.unwrap();
        Sample { image, objects }
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
