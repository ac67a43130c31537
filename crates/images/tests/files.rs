//! Decoding: every stored form against Pillow's pixels, and files that are no images, cut short, or damaged.

use std::fs;
use std::path::PathBuf;

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};
use regard_images::{Channels, Decoding, Image, ImagesError, Random};

mod mutate;

use mutate::mutated;

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

/// The mean and the largest difference of two images of one shape.
fn difference(one: &Image, other: &Image) -> (f64, u8) {
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
    let differences = one
        .pixels()
        .iter()
        .zip(other.pixels())
        .map(|(a, b)| a.abs_diff(*b));
    let sum: f64 = differences.clone().map(f64::from).sum();
    (sum / one.pixels().len() as f64, differences.max().unwrap())
}

const FIXTURES: [&str; 13] = [
    "colour.png",
    "grey.png",
    "palette.png",
    "alpha.png",
    "grey-alpha.png",
    "grey-16.png",
    "colour.jpg",
    "progressive.jpg",
    "grey.jpg",
    "cmyk.jpg",
    "lossy.webp",
    "lossless.webp",
    "alpha.webp",
];

#[test]
fn every_form_gives_the_picture() {
    // As in make.py.
    let (height, width) = (24, 40);
    let mut pixels = vec![];
    for y in 0..height {
        for x in 0..width {
            let blue = if x + 2 * y > width { 200 } else { 40 };
            pixels.extend([
                (255 * x / (width - 1)) as u8,
                (255 * y / (height - 1)) as u8,
                blue,
            ]);
        }
    }
    let colour = Image::new(height, width, 3, pixels).unwrap();
    assert_eq!(stored("colour.png"), colour);
    assert_eq!(stored("lossless.webp"), colour);
    let grey = colour.clone().into_grey();
    assert_eq!(stored("grey.png"), grey, "the luma of Pillow");
    for (name, mean, largest) in [
        ("colour.jpg", 6.0, 140),
        ("progressive.jpg", 6.0, 140),
        ("cmyk.jpg", 8.0, 140),
        ("lossy.webp", 8.0, 140),
        ("palette.png", 20.0, 90),
    ] {
        let found = difference(&stored(name), &colour);
        assert!(found.0 < mean && found.1 <= largest, "{name}: {found:?}");
    }
    let found = difference(&stored("grey.jpg"), &grey);
    assert!(found.0 < 3.0, "{found:?}");

    // 16 bits: 257 g + 100 is g, or above the middle of two values never.
    let found = difference(&stored("grey-16.png"), &grey);
    assert_eq!(found.1, 0);

    // Opacity rises from 0 in the first pixel to 255 in the last.
    let over_white = |image: &Image| {
        let channels = image.channels();
        let pixels = image.pixels().iter().enumerate().map(|(i, &value)| {
            let opacity = (i / channels * 255 / 959) as f64;
            ((f64::from(value) * opacity + 255.0 * (255.0 - opacity)) / 255.0).round() as u8
        });
        Image::new(height, width, channels, pixels.collect()).unwrap()
    };
    assert_eq!(stored("alpha.png"), over_white(&colour));
    assert_eq!(stored("alpha.webp"), over_white(&colour));
    assert_eq!(stored("grey-alpha.png"), over_white(&grey));
}

#[test]
fn sixteen_bits_are_rounded_to_eight() {
    let values: Vec<u16> = vec![0, 128, 129, 385, 386, 32_767, 65_407, 65_535];
    let expected: Vec<u8> = values
        .iter()
        .map(|&v| (f64::from(v) / 257.0).round() as u8)
        .collect();
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| [value.to_ne_bytes(); 3].concat())
        .collect();
    let mut file = vec![];
    PngEncoder::new(&mut file)
        .write_image(&bytes, 8, 1, ExtendedColorType::Rgb16)
        .unwrap();
    let image = Image::decode(&file, "rgb-16.png", &Decoding::default()).unwrap();
    assert_eq!(image.into_grey().pixels(), expected);
}

#[test]
fn channels_are_as_asked_for() {
    for name in FIXTURES {
        let open = |channels| {
            let decoding = Decoding {
                channels,
                ..Decoding::default()
            };
            Image::open(golden(name), &decoding).unwrap()
        };
        let stored = open(Channels::Stored);
        assert_eq!(
            stored.channels(),
            if name.starts_with("grey") { 1 } else { 3 },
            "{name}"
        );
        assert_eq!(
            open(Channels::Colour),
            stored.clone().into_colour(),
            "{name}"
        );
        assert_eq!(open(Channels::Grey), stored.into_grey(), "{name}");
    }
}

#[test]
fn orientations_of_exif_are_applied() {
    let upright = stored("upright.png");
    for orientation in 1..=8 {
        let found = difference(&stored(&format!("orientation-{orientation}.jpg")), &upright);
        assert!(found.0 < 8.0, "orientation {orientation}: {found:?}");
    }
}

#[test]
fn png_files_keep_every_pixel() {
    let folder = tempfile::tempdir().unwrap();
    for image in [stored("noise-colour.png"), stored("noise-grey.png")] {
        let path = folder.path().join("image.png");
        image.save_png(&path).unwrap();
        let decoding = Decoding {
            channels: Channels::Stored,
            ..Decoding::default()
        };
        assert_eq!(Image::open(&path, &decoding).unwrap(), image);
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }
    let error = stored("grey.png")
        .save_png(folder.path().join("none/image.png"))
        .unwrap_err();
    assert!(matches!(error, ImagesError::Write { .. }), "{error}");

    // What is not written leaves nothing, and what others wrote stays.
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("folder.png")).unwrap();
    fs::write(at("folder.png.tmp"), "of others").unwrap();
    let error = stored("grey.png").save_png(at("folder.png")).unwrap_err();
    assert!(matches!(error, ImagesError::Write { .. }), "{error}");
    assert_eq!(fs::read(at("folder.png.tmp")).unwrap(), b"of others");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn what_is_no_image_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let error = Image::open(&path, &Decoding::default()).unwrap_err();
        assert!(error.is_broken_image(), "{error}");
        let text = error.to_string();
        assert!(text.contains(name), "{text}");
        text
    };
    for (name, bytes) in [
        ("empty.png", &b""[..]),
        ("short.png", b"\x89P"),
        ("text.jpg", b"not an image"),
    ] {
        let text = open(name, bytes);
        assert!(
            text.contains("not an image; expected a PNG, JPEG or WebP file"),
            "{text}"
        );
    }
    let text = open("moving.gif", b"GIF89a\x01\0\x01\0\0\0\0;");
    assert!(
        text.contains("image/gif are not read; convert it to PNG, JPEG or WebP"),
        "{text}"
    );

    let missing = folder.path().join("missing.png");
    let error = Image::open(&missing, &Decoding::default()).unwrap_err();
    assert!(
        matches!(error, ImagesError::Read { .. }) && !error.is_broken_image(),
        "{error}"
    );
    assert!(error.to_string().contains("missing.png"), "{error}");
    assert!(
        Image::open(folder.path(), &Decoding::default()).is_err(),
        "a folder"
    );
}

/// Nobody writes to it: reading would never end.
#[cfg(unix)]
#[test]
fn a_pipe_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.png");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    for path in [&*pipe, folder.path()] {
        let error = Image::open(path, &Decoding::default()).unwrap_err();
        assert!(error.is_broken_image(), "{error}");
        let expected = format!("{}: no file (a folder, a pipe,", path.display());
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}

#[test]
fn pixels_are_limited_before_they_are_read() {
    let error = Image::open(golden("lying.png"), &Decoding::default()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("lying.png: 40000 x 25000 pixels, more than the 67108864 allowed"),
        "{text}"
    );
    // A row of the largest PNG would already be too long for its decoder.
    let mut bytes = fs::read(golden("colour.png")).unwrap();
    bytes[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
    let text = Image::decode(&bytes, "largest.png", &Decoding::default())
        .unwrap_err()
        .to_string();
    assert_eq!(
        text,
        "largest.png: 2147483647 x 2147483647 pixels, more than the 67108864 allowed; make it smaller"
    );
    for name in FIXTURES {
        let decoding = |max_pixels| Decoding {
            max_pixels,
            ..Decoding::default()
        };
        assert!(
            Image::open(golden(name), &decoding(24 * 40)).is_ok(),
            "{name}"
        );
        let error = Image::open(golden(name), &decoding(24 * 40 - 1)).unwrap_err();
        assert!(
            matches!(
                error,
                ImagesError::TooManyPixels {
                    width: 40,
                    height: 24,
                    limit: 959,
                    ..
                }
            ),
            "{error}"
        );
    }
    // A long file is not read to its end.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.png");
    let bytes = fs::read(golden("colour.png")).unwrap();
    fs::write(&path, &bytes).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(1 << 26)
        .unwrap();
    let decoding = Decoding {
        max_pixels: 960,
        ..Decoding::default()
    };
    let error = Image::open(&path, &decoding).unwrap_err();
    assert!(
        matches!(error, ImagesError::TooLong { limit: 960, .. }),
        "{error}"
    );
    // Nor is one that is no image, however long.
    fs::write(&path, b"no image").unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    let error = Image::open(&path, &Decoding::default()).unwrap_err();
    assert!(matches!(error, ImagesError::NotAnImage { .. }), "{error}");
}

#[test]
fn a_truncated_file_is_an_error() {
    for name in FIXTURES {
        let bytes = fs::read(golden(name)).unwrap();
        // What is behind the pixels of a PNG (its last chunk, and the check sum of its pixels) may be absent.
        let needed = if name.ends_with("png") {
            bytes.len() - 20
        } else {
            bytes.len() - 1
        };
        let mut truncated = 0;
        for length in 0..=needed {
            match Image::decode(&bytes[..length], name, &Decoding::default()) {
                Ok(_) => panic!("{name}: {length} of {} bytes are enough", bytes.len()),
                Err(ImagesError::Truncated { .. }) => truncated += 1,
                Err(error) => assert!(error.is_broken_image(), "{name}: {error}"),
            }
        }
        assert!(
            truncated > needed / 2,
            "{name}: {truncated} of {needed} are said to be truncated"
        );
    }
}

#[test]
fn mutated_images_do_not_panic() {
    let mut random = Random::new(2000, 0);
    let (mut decoded, mut refused) = (0, 0);
    let decoding = Decoding {
        channels: Channels::Stored,
        max_pixels: 1 << 16,
    };
    for case in 0..2000 {
        let name = FIXTURES[case % FIXTURES.len()];
        let bytes = mutated(fs::read(golden(name)).unwrap(), &mut random);
        match Image::decode(&bytes, name, &decoding) {
            Ok(image) => {
                assert_eq!(
                    image.pixels().len(),
                    image.height() * image.width() * image.channels()
                );
                decoded += 1;
            }
            Err(error) => {
                assert!(error.is_broken_image(), "{error}");
                assert!(error.to_string().starts_with(name), "{error}");
                assert!(
                    !error.to_string().contains("panicked"),
                    "case {case}: {error}"
                );
                refused += 1;
            }
        }
    }
    assert!(
        decoded > 100 && refused > 500,
        "{decoded} decoded, {refused} refused"
    );
}

#[test]
fn shapes_are_checked() {
    assert!(Image::new(2, 2, 3, vec![0; 12]).is_ok());
    for (height, width, channels, length) in [
        (2, 2, 3, 11),
        (0, 2, 3, 0),
        (2, 2, 2, 8),
        (2, 2, 4, 16),
        (usize::MAX, usize::MAX, 3, 3),
    ] {
        let error = Image::new(height, width, channels, vec![0; length]).unwrap_err();
        assert!(matches!(error, ImagesError::Shape { .. }), "{error}");
    }
    assert!(Image::filled(1 << 20, 1 << 20, &[0]).is_err());
    assert!(Image::filled(2, 2, &[]).is_err());
    let image = Image::filled(2, 3, &[1, 2, 3]).unwrap();
    assert_eq!(image.pixel(1, 2), Some(&[1, 2, 3][..]));
    assert_eq!((image.pixel(2, 0), image.pixel(0, 3)), (None, None));
}
