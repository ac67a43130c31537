//! Transforms: resizing against Pillow, crops, numbers, and random changes.

use std::path::PathBuf;

use proptest::prelude::*;
use regard_images::{
    Augment, Channels, Decoding, Filter, Image, ImagesError, Mask, Normalize, Operation, Random,
    Region,
};
use serde_json::Value;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

fn stored(name: &str) -> Image {
    let decoding = Decoding {
        channels: Channels::Stored,
        ..Decoding::default()
    };
    Image::open(golden(name), &decoding).unwrap()
}

fn numbers() -> Value {
    serde_json::from_slice(&std::fs::read(golden("golden.json")).unwrap()).unwrap()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let hex = hex.as_str().unwrap().as_bytes();
    let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
    hex.chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

fn size(case: &Value, key: &str) -> usize {
    case[key].as_u64().unwrap() as usize
}

/// An image in which every pixel differs.
fn distinct(height: usize, width: usize) -> Image {
    Image::new(height, width, 1, (1..=(height * width) as u8).collect()).unwrap()
}

#[test]
fn resizing_equals_pillow() {
    let mut checked = 0;
    for case in numbers()["resized"].as_array().unwrap() {
        let image = stored(case["from"].as_str().unwrap());
        let filter = match case["filter"].as_str() {
            Some("bicubic") => Filter::Bicubic,
            _ => Filter::Bilinear,
        };
        let resized = image
            .resized(size(case, "height"), size(case, "width"), filter)
            .unwrap();
        assert_eq!(
            resized.pixels(),
            bytes(&case["pixels"]),
            "{image:?} to {resized:?}"
        );
        checked += 1;
    }
    assert_eq!(checked, 32);
}

#[test]
fn operations_equal_pillow() {
    let rules = &numbers()["rules"];
    let random = &mut Random::new(0, 0);
    let noise = stored("noise-colour.png");
    assert_eq!(noise.clone().into_grey().pixels(), bytes(&rules["grey"]));
    assert_eq!(
        Operation::Posterize.apply(&noise, 1.0, random).pixels(),
        bytes(&rules["posterize"])
    );
    let equalized = Operation::Equalize.apply(&stored("noise-64.png"), 1.0, random);
    assert_eq!(equalized.pixels(), bytes(&rules["equalize"]));
}

#[test]
fn masks_equal_pycocotools() {
    let mut checked = 0;
    for case in numbers()["polygons"].as_array().unwrap() {
        let (height, width) = (size(case, "height"), size(case, "width"));
        let polygons: Vec<Vec<f64>> = serde_json::from_value(case["polygons"].clone()).unwrap();
        let runs: Vec<u32> = serde_json::from_value(case["runs"].clone()).unwrap();
        let mask = Region::Polygons(polygons).mask(height, width).unwrap();
        assert_eq!(mask.runs(), runs);
        assert_eq!(
            Region::Runs(runs.clone()).mask(height, width).unwrap(),
            mask
        );
        assert_eq!(Mask::from_runs(height, width, &runs).unwrap(), mask);
        checked += 1;
    }
    assert_eq!(checked, 40);
}

#[test]
fn long_outlines_are_refused() {
    let corners = |count: i32| -> Vec<f64> {
        (0..count)
            .flat_map(|i| [f64::from(i % 2) * 8192.0, f64::from(i)])
            .collect()
    };
    let mask = |polygons| Region::Polygons(polygons).mask(8192, 8192);
    assert!(mask(vec![corners(4)]).unwrap().area() > 0);
    for polygons in [vec![corners(4000)], vec![corners(40); 60]] {
        let error = mask(polygons).unwrap_err().to_string();
        assert!(
            error.contains("an outline of") && error.contains("at most 16777216 pixels"),
            "{error}"
        );
    }
}

#[test]
fn narrow_images_are_fitted() {
    // Wide and high ones, whose resized images would have too long a side, and too many pixels.
    for (height, width) in [
        (1, 5000),
        (5000, 1),
        (1, 1 << 20),
        (1 << 20, 1),
        (1 << 26, 1),
    ] {
        let image = Image::filled(height, width, &[7]).unwrap();
        let fitted = image.fitted(64, 64).unwrap();
        assert_eq!(fitted, Image::filled(64, 64, &[7]).unwrap(), "{image:?}");
        let whole = image.size_with_shorter(80);
        let middle = image.resized_middle(whole, [64, 64], Filter::Bicubic);
        assert_eq!(middle.unwrap(), fitted, "{image:?}");
    }
    // The middle is that of a shorter image, which can be resized whole.
    let pixels = (0..5000).map(|y| (y * 37 % 251) as u8).collect();
    let image = Image::new(5000, 1, 1, pixels).unwrap();
    let shorter = image.crop(2000, 0, 1000, 1).unwrap();
    assert_eq!(
        image.fitted(64, 64).unwrap(),
        shorter
            .resize(64_000, 64)
            .unwrap()
            .centre_crop(64, 64)
            .unwrap()
    );
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let image = distinct(3, 5);
    for result in [
        image.resize(0, 4),
        image.resize(4, 0),
        image.resize(1, 1 << 17),
        image.resize(1 << 16, 1 << 16),
        image.resize(usize::MAX, 1),
        image.resize_shorter(0, Filter::Bilinear),
        image.resize_shorter(usize::MAX, Filter::Bilinear),
        image.resize_within(0, 5, Filter::Bilinear),
        image.resize_within(usize::MAX, usize::MAX, Filter::Bilinear),
        image.resize_inside(5, 0, Filter::Bilinear),
        image.resize_inside(usize::MAX, usize::MAX, Filter::Bilinear),
        image.resized_middle([0, 5], [1, 1], Filter::Bilinear),
        image.resized_middle([3, 5], [1, 0], Filter::Bilinear),
        image.resized_middle([3, 5], [usize::MAX, 1], Filter::Bilinear),
        image.resized_middle([1 << 17, 5], [1 << 17, 1], Filter::Bilinear),
        image.fitted(0, 1),
        image.fitted(1, usize::MAX),
        image.centre_crop(0, 1),
        image.centre_crop(usize::MAX, usize::MAX),
        image.crop(isize::MIN, isize::MIN, usize::MAX, 1),
        image.random_crop(8, 5, 2, &mut Random::new(0, 0)),
        image.random_crop(4, 4, usize::MAX, &mut Random::new(0, 0)),
    ] {
        let error = result.unwrap_err();
        assert!(
            matches!(
                error,
                ImagesError::Option { .. } | ImagesError::TooManyPixels { .. }
            ),
            "{error}"
        );
    }
}

#[test]
fn shorter_side_keeps_the_shape() {
    let size = |image: Image| (image.height(), image.width());
    assert_eq!(
        size(distinct(3, 5).resize_shorter(6, Filter::Bilinear).unwrap()),
        (6, 10)
    );
    assert_eq!(
        size(distinct(5, 3).resize_shorter(2, Filter::Bilinear).unwrap()),
        (3, 2)
    );
    assert_eq!(
        size(distinct(1, 9).resize_shorter(1, Filter::Bilinear).unwrap()),
        (1, 9)
    );
    // As `get_size_with_aspect_ratio` of transformers 5.23 has it, but for the side of 0 that it gives the narrow image.
    for (of, [shorter, longer], expected) in [
        ((43, 71), [64, 88], (53, 87)),
        ((71, 43), [64, 88], (87, 53)),
        ((3, 5), [2, 9], (2, 3)),
        ((48, 64), [80, 133], (80, 106)),
        ((64, 43), [80, 133], (119, 80)),
        ((10, 100), [80, 133], (13, 133)),
        ((1, 200), [8, 13], (1, 13)),
        ((7, 7), [5, 9], (5, 5)),
        ((5, 9), [5, 9], (5, 9)),
        ((5, 10), [5, 9], (4, 9)),
        ((37, 61), [10, 15], (9, 15)),
    ] {
        let image = Image::new(of.0, of.1, 1, vec![0; of.0 * of.1]).unwrap();
        let found = image.resize_within(shorter, longer, Filter::Bilinear);
        assert_eq!(size(found.unwrap()), expected, "{of:?}");
    }
    // `DetrImageProcessor` of transformers 5.24; it refuses the last two, which have no pixel.
    for (of, most, expected) in [
        ((77, 33), [50, 60], (50, 21)),
        ((200, 100), [50, 60], (50, 25)),
        ((50, 60), [50, 60], (50, 60)),
        ((20, 24), [50, 60], (50, 60)),
        // 7 * (61 / 7) is below 61.
        ((7, 1), [61, 99], (60, 8)),
        ((1000, 7), [50, 60], (50, 1)),
        ((3, 1000), [50, 60], (1, 60)),
    ] {
        let image = Image::new(of.0, of.1, 1, vec![0; of.0 * of.1]).unwrap();
        let found = image.resize_inside(most[0], most[1], Filter::Bilinear);
        assert_eq!(size(found.unwrap()), expected, "{of:?}");
    }
    assert_eq!(size(distinct(9, 7).fitted(4, 4).unwrap()), (4, 4));
    assert_eq!(size(distinct(2, 9).fitted(7, 3).unwrap()), (7, 3));
}

#[test]
fn crops_are_where_torchvision_has_them() {
    let image = distinct(3, 4);
    assert_eq!(image.centre_crop(1, 2).unwrap().pixels(), [6, 7]);
    // Half of an odd difference: 0.5 to 0, 1.5 to 2.
    assert_eq!(image.centre_crop(2, 4).unwrap().pixels()[0], 1);
    assert_eq!(image.centre_crop(3, 1).unwrap().pixels(), [3, 7, 11]);
    // A larger one has zeros: half of the difference, rounded down, above and to the left.
    let larger = distinct(1, 1).centre_crop(4, 3).unwrap();
    assert_eq!(larger.pixels(), [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(
        image.crop(-1, 2, 2, 3).unwrap().pixels(),
        [0, 0, 0, 3, 4, 0]
    );
    assert_eq!(
        image.crop(2, -3, 2, 4).unwrap().pixels(),
        [0, 0, 0, 9, 0, 0, 0, 0]
    );
    assert_eq!(
        image.crop(isize::MAX, isize::MIN, 1, 2).unwrap().pixels(),
        [0, 0]
    );
    assert_eq!(image.flipped().pixels()[..5], [4, 3, 2, 1, 8]);
    let colour = Image::new(1, 2, 3, vec![1, 2, 3, 4, 5, 6]).unwrap();
    assert_eq!(colour.flipped().pixels(), [4, 5, 6, 1, 2, 3]);
}

#[test]
fn random_crops_reach_every_place() {
    let image = distinct(2, 2);
    let mut seen = std::collections::HashSet::new();
    let random = &mut Random::new(4, 0);
    for _ in 0..400 {
        seen.insert(
            image
                .random_crop(2, 2, 1, random)
                .unwrap()
                .pixels()
                .to_vec(),
        );
    }
    assert_eq!(seen.len(), 9);
    assert!(seen.contains(&vec![0, 0, 0, 1]) && seen.contains(&vec![4, 0, 0, 0]));
}

#[test]
fn numbers_are_by_channel() {
    let image = Image::new(1, 2, 3, vec![0, 51, 255, 255, 102, 0]).unwrap();
    let normalize = Normalize::new(vec![0.0, 0.2, 0.5], vec![1.0, 0.2, 0.5]).unwrap();
    let values = normalize.apply(&image).unwrap();
    let expected = [0.0, 1.0, 0.0, 1.0, 1.0, -1.0];
    assert!(
        values
            .iter()
            .zip(expected)
            .all(|(a, b): (&f32, f32)| (a - b).abs() < 1e-6),
        "{values:?}"
    );
    let found = Normalize::of([&image]).unwrap();
    assert!(
        (found.mean()[1] - 0.3).abs() < 1e-6 && (found.deviation()[1] - 0.1).abs() < 1e-6,
        "{found:?}"
    );
    let mut batch = vec![9.0];
    normalize.append(&image, &mut batch).unwrap();
    assert_eq!(batch[1..], values);

    assert!(normalize.append(&distinct(2, 2), &mut batch).is_err());
    assert_eq!(batch.len(), 7);
    assert!(Normalize::of([]).is_err());
    assert!(Normalize::of([&image, &distinct(2, 2)]).is_err());
    assert_eq!(
        Normalize::of([&Image::filled(2, 2, &[0]).unwrap()])
            .unwrap()
            .deviation(),
        [1.0]
    );
    for (mean, deviation) in [
        (vec![0.0], vec![0.0]),
        (vec![f32::NAN], vec![1.0]),
        (vec![0.0; 2], vec![1.0; 2]),
        (vec![0.0; 3], vec![1.0]),
    ] {
        assert!(Normalize::new(mean, deviation).is_err());
    }
    for image in [stored("noise-colour.png"), stored("colour.png")] {
        let values = Normalize::of([&image]).unwrap().apply(&image).unwrap();
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        assert!(
            mean.abs() < 1e-4 && (square - 1.0).abs() < 1e-3,
            "{mean} {square}"
        );
    }
}

#[test]
fn augmentation_depends_on_the_generator_alone() {
    let image = stored("colour.png");
    let augment = Augment {
        padding: 4,
        flip: 0.5,
        operations: 2,
        strength: 0.5,
        cutout: 6,
        ..Augment::default()
    };
    let mut unlike = std::collections::HashSet::new();
    let mut sum = 0_u64;
    for stream in 0..60 {
        let changed = augment.apply(&image, &mut Random::new(5, stream)).unwrap();
        assert_eq!(
            changed,
            augment.apply(&image, &mut Random::new(5, stream)).unwrap()
        );
        assert_eq!(format!("{changed:?}"), format!("{image:?}"));
        let weighted = changed
            .pixels()
            .iter()
            .zip(1_u64..)
            .map(|(&value, i)| u64::from(value) * i);
        sum = sum.wrapping_mul(31).wrapping_add(weighted.sum());
        unlike.insert(changed.pixels().to_vec());
    }
    assert!(unlike.len() > 55);
    // The same on every machine.
    assert_eq!(sum, AUGMENTED);
}

const AUGMENTED: u64 = 2356714083948953390;

#[test]
fn operations_do_what_they_say() {
    let image = stored("colour.png");
    let noise = stored("noise-grey.png");
    for operation in Operation::ALL {
        assert_eq!(Operation::named(operation.name()).unwrap(), operation);
        for image in [&image, &noise] {
            let random = &mut Random::new(1, 1);
            let changed = operation.apply(image, 1.0, random);
            assert_eq!(
                format!("{changed:?}"),
                format!("{image:?}"),
                "{operation:?}"
            );
            let weak = operation.apply(image, 0.0, random);
            let alone = matches!(
                operation,
                Operation::AutoContrast | Operation::Equalize | Operation::Solarize
            );
            assert!(alone || weak == *image, "{operation:?} of strength 0");
            let _ = operation.apply(image, f64::NAN, random);
        }
        let changes = operation.apply(&image, 1.0, &mut Random::new(1, 1)) != image;
        let full = matches!(operation, Operation::Identity | Operation::AutoContrast);
        assert!(changes || full, "{operation:?}");
    }
    let random = &mut Random::new(1, 1);
    let dull = Image::new(1, 3, 1, vec![100, 110, 120]).unwrap();
    assert_eq!(
        Operation::AutoContrast.apply(&dull, 0.0, random).pixels(),
        [0, 127, 255]
    );
    assert_eq!(
        Operation::Solarize
            .apply(&dull, 140.0 / 255.0, random)
            .pixels(),
        [100, 110, 120].map(|v| if v >= 115 { 255 - v } else { v })
    );
    let moved = Operation::TranslateX.apply(&distinct(1, 10), 1.0, random);
    let left = [4, 5, 6, 7, 8, 9, 10, 0, 0, 0];
    let right = [0, 0, 0, 1, 2, 3, 4, 5, 6, 7];
    assert!(
        moved.pixels() == left || moved.pixels() == right,
        "{:?}",
        moved.pixels()
    );
    let error = Operation::named("blur").unwrap_err().to_string();
    assert!(
        error.contains("blur") && error.contains("solarize"),
        "{error}"
    );

    let cut = Augment {
        cutout: usize::MAX / 4,
        ..Augment::default()
    };
    assert!(
        cut.apply(&image, random)
            .unwrap()
            .pixels()
            .iter()
            .all(|&value| value == 128)
    );
    for wrong in [
        Augment {
            flip: 1.5,
            ..Augment::default()
        },
        Augment {
            strength: f64::NAN,
            ..Augment::default()
        },
        Augment {
            operations: 1,
            choices: vec![],
            ..Augment::default()
        },
        Augment {
            padding: usize::MAX,
            ..Augment::default()
        },
    ] {
        assert!(matches!(
            wrong.apply(&image, random),
            Err(ImagesError::Option { .. })
        ));
    }
}

proptest! {
    #[test]
    fn resizing_keeps_one_colour(height in 1_usize..20, width in 1_usize..20, to in (1_usize..40, 1_usize..40), value: u8) {
        let image = Image::filled(height, width, &[value, 0, 255]).unwrap();
        let resized = image.resize(to.0, to.1).unwrap();
        prop_assert_eq!(resized, Image::filled(to.0, to.1, &[value, 0, 255]).unwrap());
    }

    #[test]
    fn a_fitted_image_is_the_middle_of_the_whole_one(size in (1_usize..20, 1_usize..20), to in (1_usize..40, 1_usize..40)) {
        let pixels = (0..size.0 * size.1).map(|i| (i * 37 % 251) as u8).collect();
        let image = Image::new(size.0, size.1, 1, pixels).unwrap();
        let whole = match to.0 * size.1 >= to.1 * size.0 {
            true => image.resize(to.0, (size.1 * to.0 / size.0).max(to.1)),
            false => image.resize((size.0 * to.1 / size.1).max(to.0), to.1),
        };
        prop_assert_eq!(image.fitted(to.0, to.1).unwrap(), whole.unwrap().centre_crop(to.0, to.1).unwrap());
    }

    #[test]
    fn the_middle_of_a_resized_image_is_that_of_the_whole_one(
        size in (1_usize..20, 1_usize..20),
        whole in (1_usize..40, 1_usize..40),
        part in (1_usize..40, 1_usize..40),
        bicubic: bool,
    ) {
        let pixels = (0..size.0 * size.1).map(|i| (i * 37 % 251) as u8).collect();
        let image = Image::new(size.0, size.1, 1, pixels).unwrap();
        let filter = if bicubic { Filter::Bicubic } else { Filter::Bilinear };
        let start = |whole: usize, part: usize| (whole as isize - part as isize) / 2;
        let resized = image.resized(whole.0, whole.1, filter).unwrap();
        let cut = resized.crop(start(whole.0, part.0), start(whole.1, part.1), part.0, part.1);
        let found = image.resized_middle([whole.0, whole.1], [part.0, part.1], filter);
        prop_assert_eq!(found.unwrap(), cut.unwrap());
    }

    #[test]
    fn a_crop_has_the_pixels_of_its_place(top in -5_isize..8, left in -5_isize..8, height in 1_usize..9, width in 1_usize..9) {
        let image = distinct(4, 6);
        let crop = image.crop(top, left, height, width).unwrap();
        for y in 0..height {
            for x in 0..width {
                let at = (usize::try_from(top + y as isize), usize::try_from(left + x as isize));
                let expected = if let (Ok(y), Ok(x)) = at { image.pixel(y, x) } else { None };
                prop_assert_eq!(crop.pixel(y, x), Some(expected.unwrap_or(&[0])));
            }
        }
    }

    #[test]
    fn masks_and_runs_are_two_forms_of_one(height in 1_usize..9, width in 1_usize..9, bits: u128) {
        let mut mask = Mask::new(height, width).unwrap();
        for place in (0..height * width).filter(|place| bits >> place & 1 == 1) {
            mask.set(place / width, place % width);
        }
        prop_assert_eq!(&Mask::from_runs(height, width, &mask.runs()).unwrap(), &mask);
        let set: Vec<(usize, usize)> = mask.iter().enumerate().filter(|(_, set)| *set).map(|(i, _)| (i / width, i % width)).collect();
        prop_assert_eq!(set.len(), mask.area());
        match mask.bounds() {
            None => prop_assert!(set.is_empty()),
            Some(bounds) => {
                prop_assert_eq!(bounds.x as usize, set.iter().map(|at| at.1).min().unwrap());
                prop_assert_eq!((bounds.y + bounds.height) as usize, set.iter().map(|at| at.0).max().unwrap() + 1);
            }
        }
    }

    #[test]
    fn any_polygon_or_runs_give_a_mask_or_an_error(
        polygon in prop::collection::vec(prop_oneof![-3.0..12.0, any::<f64>()], 0..12),
        near in prop::collection::vec(-1.0..10.0, 6..20),
        runs in prop::collection::vec(any::<u32>(), 0..6),
    ) {
        let _ = Region::Polygons(vec![polygon]).mask(8, 9);
        let _ = Region::Polygons(vec![near]).mask(8, 9);
        let _ = Region::Runs(runs).mask(8, 9);
    }
}
