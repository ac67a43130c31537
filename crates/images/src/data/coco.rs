//! COCO's annotations (Lin 2014): captions and instances.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use super::json::{image_path, read, unless_skipped};
use super::{Broken, Dataset, Example, Object, Phrase, Source, field};
use crate::image::{MAX_PIXELS, check_pixels};
use crate::{Bounds, ImagesError, Region};

#[derive(Deserialize)]
struct ImageEntry {
    id: u64,
    file_name: String,
    height: Option<u32>,
    width: Option<u32>,
}

#[derive(Deserialize)]
struct Captions {
    images: Vec<ImageEntry>,
    annotations: Vec<Caption>,
}

#[derive(Deserialize)]
struct Caption {
    image_id: u64,
    caption: String,
}

#[derive(Deserialize)]
struct Instances {
    images: Vec<ImageEntry>,
    annotations: Vec<Instance>,
    categories: Vec<Category>,
}

#[derive(Deserialize)]
struct Category {
    id: u64,
    name: String,
}

#[derive(Deserialize)]
struct Instance {
    image_id: u64,
    category_id: u64,
    bbox: Vec<f64>,
    segmentation: Option<Segmentation>,
    #[serde(default)]
    iscrowd: u8,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "neither polygons (lists of x1, y1, x2, y2, ..) nor runs (size: height and width; \
                 counts: packed text, or whole numbers from 0 to 4294967295)"
)]
enum Segmentation {
    Polygons(Vec<Vec<f64>>),
    Runs { counts: Counts, size: [u32; 2] },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Counts {
    Plain(Vec<u32>),
    Packed(String),
}

/// The images that COCO's captions file names, in its order, with their captions; `images` is the folder of the images.
///
/// # Errors
/// [`ImagesError::Read`], [`ImagesError::Json`]; [`ImagesError::Field`] for an image number that occurs twice or belongs to no
/// image, and for an image file that is missing, unless it is to be skipped.
pub fn coco_captions(
    annotations: &Path,
    images: &Path,
    broken: Broken,
) -> Result<Dataset, ImagesError> {
    let file: Captions = read(
        annotations,
        "COCO captions: images with id and file_name, annotations with image_id and caption",
    )?;
    let (mut dataset, places) = listed(annotations, images, broken, &file.images)?;
    for (i, Caption { image_id, caption }) in file.annotations.into_iter().enumerate() {
        let place = place(annotations, i, &places, image_id)?;
        if let Some(place) = place {
            dataset.examples[place]
                .captions
                .push(Phrase::plain(caption));
        }
    }
    Ok(dataset)
}

/// The images that COCO's instances file names, in its order, with the boxes, classes and masks of their objects; `images` is the
/// folder of the images. The classes are the categories in the order of their numbers.
///
/// Boxes may reach a pixel beyond the image, from rounding, and are cut at its border.
///
/// # Errors
/// As of [`coco_captions`]; [`ImagesError::Field`] for a file without categories, a category that is not listed, two of one name, an
/// image without sizes, a box outside the image or without area, and a mask that does not fit the image. A broken object is skipped
/// alone.
pub fn coco_instances(
    annotations: &Path,
    images: &Path,
    broken: Broken,
) -> Result<Dataset, ImagesError> {
    let file: Instances = read(
        annotations,
        "COCO instances: images with id, file_name, height and width, annotations with image_id, category_id and bbox, categories with id and name",
    )?;
    let mut categories = file.categories;
    categories.sort_by_key(|category| category.id);
    let (mut dataset, places) = listed(annotations, images, broken, &file.images)?;
    check_categories(annotations, &categories)?;
    for (i, instance) in file.annotations.into_iter().enumerate() {
        let Some(place) = place(annotations, i, &places, instance.image_id)? else {
            continue;
        };
        let category =
            categories.binary_search_by_key(&instance.category_id, |category| category.id);
        let class = category.map_err(|_| {
            let name = format!("annotations[{i}].category_id");
            field(
                annotations,
                name,
                instance.category_id.to_string(),
                "an id of categories",
            )
        })?;
        let example = &mut dataset.examples[place];
        let object = object(annotations, i, instance, class, example.size);
        if let Some(object) = unless_skipped(object, broken, &mut dataset.skipped)? {
            example.objects.push(object);
        }
    }
    dataset.classes = categories
        .into_iter()
        .map(|category| category.name)
        .collect();
    Ok(dataset)
}

/// Refuses a list without any, and a number or a name that occurs twice; the categories are sorted by their numbers.
fn check_categories(annotations: &Path, categories: &[Category]) -> Result<(), ImagesError> {
    if categories.is_empty() {
        let expected = "at least one, with id and name";
        return Err(field(annotations, "categories", "an empty list", expected));
    }
    if let Some(twice) = categories.windows(2).find(|pair| pair[0].id == pair[1].id) {
        let given = format!("{} twice", twice[0].id);
        return Err(field(
            annotations,
            "categories: id",
            given,
            "each number once",
        ));
    }
    let mut ids: HashMap<&str, u64> = HashMap::new();
    for Category { id, name } in categories {
        if let Some(other) = ids.insert(name, *id) {
            let given = format!("{name:?} of both {other} and {id}");
            let expected = "each name once; rename or remove one of them";
            return Err(field(annotations, "categories: name", given, expected));
        }
    }
    Ok(())
}

/// Examples for the images, and the place of each image's number; no place for those that were skipped.
type Places = HashMap<u64, Option<usize>>;

fn listed(
    annotations: &Path,
    folder: &Path,
    broken: Broken,
    images: &[ImageEntry],
) -> Result<(Dataset, Places), ImagesError> {
    let (mut dataset, mut places) = (Dataset::default(), Places::new());
    for (i, image) in images.iter().enumerate() {
        let path = image_path(
            annotations,
            &format!("images[{i}].file_name"),
            folder,
            &image.file_name,
        );
        let path = unless_skipped(path, broken, &mut dataset.skipped)?;
        let place = path.is_some().then_some(dataset.examples.len());
        if places.insert(image.id, place).is_some() {
            let given = format!("{}, as of an image before it", image.id);
            return Err(field(
                annotations,
                format!("images[{i}].id"),
                given,
                "a number of its own",
            ));
        }
        let size = match (image.height, image.width) {
            (Some(height), Some(width)) => {
                let sides = height > 0 && width > 0;
                let allowed = check_pixels("", width.into(), height.into(), MAX_PIXELS).is_ok();
                if !sides || !allowed {
                    let name = format!("images[{i}].height and width");
                    let expected = format!("at least 1, together at most {MAX_PIXELS} pixels");
                    return Err(field(
                        annotations,
                        name,
                        format!("{height} and {width}"),
                        expected,
                    ));
                }
                Some([height as usize, width as usize])
            }
            _ => None,
        };
        if let Some(path) = path {
            dataset.examples.push(Example {
                size,
                ..Example::new(Source::File(path))
            });
        }
    }
    if images.is_empty() {
        return Err(ImagesError::Empty {
            path: annotations.to_owned(),
            what: "image",
            expected: "at least one entry in images".to_owned(),
        });
    }
    Ok((dataset, places))
}

fn place(
    annotations: &Path,
    i: usize,
    places: &Places,
    image: u64,
) -> Result<Option<usize>, ImagesError> {
    places.get(&image).copied().ok_or_else(|| {
        let name = format!("annotations[{i}].image_id");
        field(annotations, name, image.to_string(), "an id of images")
    })
}

fn object(
    path: &Path,
    i: usize,
    instance: Instance,
    class: usize,
    size: Option<[usize; 2]>,
) -> Result<Object, ImagesError> {
    let name = |field: &str| format!("annotations[{i}].{field}");
    let [height, width] = size.ok_or_else(|| {
        let given = format!(
            "of image {}, which has no height and width",
            instance.image_id
        );
        field(
            path,
            name("image_id"),
            given,
            "an image with height and width",
        )
    })?;
    let bounds = bounds(&instance.bbox, height, width).ok_or_else(|| {
        let expected =
            format!("x, y, width, height of a box inside the image of {width} x {height} pixels");
        field(path, name("bbox"), format!("{:?}", instance.bbox), expected)
    })?;
    let region = match instance.segmentation {
        None => None,
        Some(Segmentation::Polygons(polygons)) if polygons.is_empty() => None,
        Some(Segmentation::Polygons(polygons)) => Some(Region::Polygons(polygons)),
        Some(Segmentation::Runs { size, .. }) if size != [height as u32, width as u32] => {
            let expected = format!("{:?}, height and width of the image", [height, width]);
            return Err(field(
                path,
                name("segmentation.size"),
                format!("{size:?}"),
                expected,
            ));
        }
        Some(Segmentation::Runs { counts, .. }) => Some(match counts {
            Counts::Plain(runs) => Region::Runs(runs),
            Counts::Packed(text) => Region::unpack(&text).map_err(|reason| {
                let expected = "lengths of runs, packed as pycocotools does";
                field(
                    path,
                    name("segmentation.counts"),
                    format!("damaged: {reason}"),
                    expected,
                )
            })?,
        }),
    };
    if let Some(region) = &region {
        region
            .check(height, width)
            .map_err(|(given, expected)| field(path, name("segmentation"), given, expected))?;
    }
    Ok(Object {
        class,
        bounds,
        region,
        crowd: instance.iscrowd != 0,
    })
}

/// The box cut at the border; `None` if it is more than a pixel outside or has no area.
fn bounds(numbers: &[f64], height: usize, width: usize) -> Option<Bounds> {
    let &[x, y, across, down] = numbers else {
        return None;
    };
    let interval = |start: f64, length: f64, side: usize| {
        let side = side as f64;
        let inside = start >= -1.0 && length > 0.0 && start + length <= side + 1.0;
        let (from, to) = (start.max(0.0) as f32, (start + length).min(side) as f32);
        (inside && to > from).then_some((from, to - from))
    };
    let ((x, across), (y, down)) = (interval(x, across, width)?, interval(y, down, height)?);
    Some(Bounds {
        x,
        y,
        width: across,
        height: down,
    })
}
