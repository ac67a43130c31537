//! How pictures of images are drawn: their pixels, scales and texts, and properties for any name and size.

#[path = "common/mod.rs"]
mod common;
#[path = "common/panels.rs"]
mod panels;
#[path = "common/scenes.rs"]
mod scenes;

use common::snapshot;
use panels::{bounds, by_cell, count, finite, grey, of, pixels, plain, single, terminal, usual};
use proptest::collection::vec;
use proptest::prelude::*;
use regard_trace::{Image, Region};
use regard_view::choice::{Choice, Pick};
use regard_view::gates::Gates;
use regard_view::image::{
    ImageChoice, ImageError, ImageOptions, ImagePanel, ImagePicture, Overlay,
};
use regard_view::png::{PngOptions, from_svg};
use regard_view::terminal::{Colour, TerminalOptions};
use resvg::usvg::roxmltree::{Document, Node};

/// A white image of 2 x 2 cells: the colours of weights can be read off the PNG.
#[test]
fn colours_are_those_of_the_weights() {
    let white = Image::new(4, 4, 1, vec![255; 16]).expect("valid");
    let panel = ImagePanel::new(white)
        .map(2, 2, &[0.0, 0.2, 0.3, 0.5])
        .expect("valid");
    let picture = single(panel);
    for options in [by_cell(), ImageOptions::default()] {
        let drawn = pixels(&picture.svg(&options));
        // 420 pixels wide; below the note.
        let at = |x: u32, y: u32| {
            let pixel = drawn.pixel(20 + x, 40 + y).expect("inside");
            [pixel.red(), pixel.green(), pixel.blue()].map(f32::from)
        };
        // The first colour of the ramp, 42 % of it over white, in the middle of the first cell.
        let near = |found: [f32; 3], expected: [f32; 3]| {
            found
                .iter()
                .zip(expected)
                .all(|(a, b)| (a - b).abs() <= 3.0)
        };
        let over_white = |c: [f32; 3], part: f32| c.map(|v| 255.0 + (v - 255.0) * part);
        let first = over_white([68.0, 1.0, 84.0], 0.42);
        assert!(near(at(50, 50), first), "{:?} {first:?}", at(50, 50));
        let last = over_white([253.0, 231.0, 37.0], 0.66);
        assert!(near(at(400, 400), last), "{:?} {last:?}", at(400, 400));
        // In the middle the cells meet abruptly, or smoothly.
        let step: f32 = (at(207, 100).iter().zip(at(213, 100)))
            .map(|(a, b)| (a - b).abs())
            .sum();
        match options.overlay {
            Overlay::ByCell => assert!(step > 30.0, "{step}"),
            Overlay::Bilinear => assert!(step < 12.0, "{step}"),
        }
    }
}

#[test]
fn small_images_keep_crisp_pixels_and_large_ones_are_reduced() {
    let image = Image::new(1, 2, 3, vec![255, 0, 0, 0, 0, 255]).expect("valid");
    let drawn = pixels(&single(ImagePanel::new(image)).svg(&ImageOptions::default()));
    let blue = |x: u32| {
        drawn
            .pixel(20 + x, 100)
            .is_some_and(|p| p.blue() == 255 && p.red() == 0)
    };
    assert!(!blue(208) && blue(212), "the edge between the two pixels");
    let large = usual(&scenes::caption(1024, 1024, 14, 14)).svg(&by_cell());
    assert!(large.len() < 700_000, "{} bytes", large.len());
}

#[test]
fn texts_beside_a_tall_image_are_wrapped() {
    let panel = ImagePanel::new(grey(400, 8))
        .titled("stage 1, module 1 · mean of 8 channels")
        .noted("score 0.10, 0.36 at (12, 0)");
    let svg = single(panel).svg(&ImageOptions::default());
    assert!(!svg.contains('…'), "{svg}");
    for part in ["stage 1,", "channels</text>", "score 0.10,", "0)</text>"] {
        assert!(svg.contains(part), "{part:?} is not in: {svg}");
    }
    // What has no room in three lines is cut, and is there to hover.
    let panel = ImagePanel::new(grey(400, 8)).titled("module ".repeat(40));
    assert!(single(panel).svg(&ImageOptions::default()).contains('…'));
}

#[test]
fn any_size_of_image_and_grid() {
    let sides = [
        (1, 1),
        (1, 9),
        (9, 1),
        (1, 700),
        (700, 1),
        (37, 53),
        (420, 420),
        (421, 300),
    ];
    for (height, width) in sides {
        for (rows, columns) in [(1, 1), (1, 3), (5, 7), (64, 2)] {
            let weights: Vec<f32> = (0..rows * columns).map(|i| (i % 5) as f32).collect();
            let panel = ImagePanel::new(grey(height, width)).map(rows, columns, &weights);
            let panel = panel.and_then(|panel| panel.query(rows - 1, columns - 1, rows, columns));
            let picture = single(panel.expect("valid"));
            for options in [ImageOptions::default(), by_cell()] {
                let svg = picture.svg(&options);
                assert_eq!(count(&svg, "image"), 2);
                from_svg(
                    &svg,
                    &PngOptions {
                        scale: 0.5,
                        ..PngOptions::default()
                    },
                )
                .expect("drawn");
            }
            for colour in [Colour::TrueColour, Colour::Palette256, Colour::Ascii] {
                for columns in [0, 1, 7, 80, 500] {
                    plain(&picture.text(&terminal(columns, colour)), columns);
                }
            }
        }
    }
    // Weights of 0 have no strongest cell and no scale to speak of.
    let zero = ImagePanel::new(grey(2, 2))
        .map(2, 2, &[0.0; 4])
        .expect("valid");
    assert_eq!(
        count(&single(zero).svg(&ImageOptions::default()), "circle"),
        0
    );
    let none = ImagePicture::new("", vec![]).expect("no panels");
    assert!(
        count(&none.svg(&ImageOptions::default()), "svg") == 1
            && none.text(&terminal(9, Colour::Ascii)).is_empty()
    );
    for room in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300] {
        let options = ImageOptions {
            room,
            width: room,
            ..by_cell()
        };
        let panel = ImagePanel::new(grey(3, 5))
            .map(1, 2, &[0.5, 0.25])
            .expect("valid");
        let svg = single(panel).svg(&options);
        assert!(count(&svg, "svg") == 1 && finite(&svg));
    }
}

#[test]
fn a_scale_for_each_panel() {
    let trace = scenes::caption(64, 64, 8, 8);
    let own = ImageOptions {
        own_scale: true,
        ..ImageOptions::default()
    };
    let picture = usual(&trace);
    let (shared, own) = (picture.svg(&ImageOptions::default()), picture.svg(&own));
    assert!(own.contains(">of each</text>") && !shared.contains(">of each</text>"));
    assert_ne!(shared, own);
}

/// The number that an element has under a name.
fn attribute(node: Node<'_, '_>, name: &str) -> f64 {
    let number = node.attribute(name).and_then(|value| value.parse().ok());
    number.unwrap_or_else(|| panic!("no number {name:?} in {node:?}"))
}

#[test]
fn a_scale_of_ones_own_says_from_where_to_where() {
    let trace = scenes::masks(64);
    let choice = |layer| ImageChoice {
        maps: Choice {
            layer,
            ..Choice::default()
        },
        ..ImageChoice::default()
    };
    let options = ImageOptions {
        own_scale: true,
        ..ImageOptions::default()
    };
    let stages = of(&trace, &choice(Pick::All)).svg(&options);
    for words in ["from each", "least to its", "largest"] {
        assert!(stages.contains(&format!(">{words}</text>")), "{stages}");
    }
    assert!(!stages.contains(">of each</text>"));
    assert_eq!(stages.matches(", least 0.").count(), 3, "{stages}");
    let shared = of(&trace, &choice(Pick::All)).svg(&ImageOptions::default());
    assert!(!shared.contains("least"), "{shared}");

    // A single map has the numbers of its weights at the bar.
    let one = of(&trace, &choice(Pick::One(0)));
    assert_eq!(one.svg(&options), one.svg(&ImageOptions::default()));

    // The words below the bar are in the picture, also where the images are low.
    let flat = || ImagePanel::new(grey(4, 300)).map(1, 2, &[0.25, 0.5]);
    let flat = vec![flat().expect("valid"), flat().expect("valid")];
    let flat = ImagePicture::new("", flat).expect("two").from_least();
    let svg = flat.svg(&options);
    let document = Document::parse(&svg).expect("well formed");
    let root = document.root_element();
    let texts = root.children().filter(|node| node.has_tag_name("text"));
    let lowest = texts.map(|node| attribute(node, "y")).fold(0.0, f64::max);
    assert!(svg.contains(">largest</text>") && lowest + 8.0 < attribute(root, "height"));
}

#[test]
fn tags_of_boxes_are_no_wider_than_their_panel() {
    let region = |label| Region::new(label, bounds(60.0, 40.0, 50.0, 50.0)).expect("finite");
    let regions = ["a very long label of a thing", "dog"].map(region);
    let panel = ImagePanel::new(grey(100, 120)).weighted(&regions, &[0.6, 0.4]);
    let picture = ImagePicture::new("", vec![panel.expect("valid"); 4]).expect("four");
    let svg = picture.svg(&ImageOptions::default());
    assert!(svg.contains("… 0.60</text>") && svg.contains(">dog 0.40</text>"));
    let document = Document::parse(&svg).expect("well formed");
    let tags = |node: &Node<'_, '_>| node.attribute("rx") == Some("1.5");
    let tags: Vec<_> = document.descendants().filter(tags).collect();
    assert!(tags.len() >= 8, "{svg}");
    for tag in tags {
        // Panels of 120 pixels are 138 from each other.
        let right = attribute(tag, "x") + attribute(tag, "width");
        assert!(right < 130.0, "{right}: {svg}");
    }
}

#[test]
fn pictures_in_a_terminal() {
    let image = Image::new(
        4,
        8,
        3,
        (0..96).map(|i| (i * 5 % 256) as u8).collect::<Vec<_>>(),
    )
    .expect("valid");
    let weights = [0.05, 0.1, 0.25, 0.6];
    let region = |label, x, score| {
        let region = Region::new(label, bounds(x, 0.0, 4.0, 3.0)).and_then(|r| r.scored(score));
        region.expect("valid")
    };
    let panels = vec![
        ImagePanel::new(image.clone())
            .titled("image")
            .regions(&[region("square", 0.0, 0.9), region("7", 4.0, 0.5)], 0),
        ImagePanel::new(image.clone())
            .titled("word")
            .map(2, 2, &weights),
        ImagePanel::new(image)
            .titled("drawn")
            .map(2, 2, &[0.0, 1.0, 0.0, 0.0]),
    ];
    let panels: Result<Vec<ImagePanel>, ImageError> = panels.into_iter().collect();
    let picture = ImagePicture::new("a picture", panels.expect("valid")).expect("three");
    let text = |colour| picture.text(&terminal(80, colour));
    snapshot("image-ascii.txt", &text(Colour::Ascii));
    snapshot("image-truecolour.txt", &text(Colour::TrueColour));
    let (true_colour, palette) = (text(Colour::TrueColour), text(Colour::Palette256));
    assert_eq!(plain(&true_colour, 80), plain(&palette, 80));
    let low = TerminalOptions {
        height: Some(6),
        ..terminal(80, Colour::Ascii)
    };
    let tall = |options: &TerminalOptions| {
        usual(&scenes::hard_caption(64, 8))
            .text(options)
            .lines()
            .count()
    };
    assert!(tall(&low) < tall(&terminal(80, Colour::Ascii)) / 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_panel_is_well_formed(title: String, note: String, label: String, height in 1usize..40, width in 1usize..40,
                                rows in 1usize..9, columns in 1usize..9, weights in vec(0.0f32..f32::MAX, 64),
                                place in proptest::array::uniform4(-1e9f32..1e9), columns_of in 0usize..90) {
        let [x, y, w, h] = place;
        let region = Region::new(label, bounds(x, y, w.abs(), h.abs())).unwrap();
        let panel = ImagePanel::new(grey(height, width)).titled(title.clone()).noted(note)
            .map(rows, columns, &weights[..rows * columns]).unwrap()
            .regions(std::slice::from_ref(&region), 0).unwrap();
        let boxes = ImagePanel::new(grey(height, width)).weighted(&[region], &weights[..1]).unwrap();
        let picture = ImagePicture::new(title.clone(), vec![panel, boxes]).unwrap();
        for options in [ImageOptions::default(), by_cell()] {
            let svg = picture.svg(&options);
            prop_assert!(count(&svg, "use") == 2);
        }
        for colour in [Colour::TrueColour, Colour::Ascii] {
            plain(&picture.text(&terminal(columns_of, colour)), columns_of);
        }
        let gates = Gates::new(title.clone(), vec![(title, weights)]).unwrap();
        prop_assert_eq!(count(&gates.svg(), "svg"), 1);
        plain(&gates.text(&terminal(columns_of, Colour::TrueColour)), columns_of);
    }
}
