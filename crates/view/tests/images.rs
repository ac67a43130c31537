//! Pictures of image traces: their structure, their pixels, and properties for any name and size.

#[path = "common/mod.rs"]
mod common;
#[path = "common/scenes.rs"]
mod scenes;

use common::snapshot;
use proptest::collection::vec;
use proptest::prelude::*;
use regard_trace::diagnose::{rollout, stacks};
use regard_trace::{
    AttentionMap, Axis, Bounds, Image, Kind, Mask, Region, Regions, Token, Tokens, Trace,
    from_bytes, to_bytes,
};
use regard_view::choice::{Choice, Pick};
use regard_view::gates::{self, Gates, GatesError};
use regard_view::image::{
    ImageChoice, ImageError, ImageOptions, ImagePanel, ImagePicture, Overlay,
};
use regard_view::png::{PngOptions, from_svg};
use regard_view::terminal::{Colour, TerminalOptions};
use resvg::tiny_skia::Pixmap;
use resvg::usvg::roxmltree::Document;
use unicode_width::UnicodeWidthStr;

fn grey(height: usize, width: usize) -> Image {
    let pixels: Vec<u8> = (0..height * width).map(|i| (i * 37 % 256) as u8).collect();
    Image::new(height, width, 1, pixels).expect("it fills its shape")
}

fn bounds(x: f32, y: f32, width: f32, height: f32) -> Bounds {
    Bounds {
        x,
        y,
        width,
        height,
    }
}

fn of(trace: &Trace, choice: &ImageChoice) -> ImagePicture {
    ImagePicture::of(trace, choice).expect("a picture")
}

fn usual(trace: &Trace) -> ImagePicture {
    of(trace, &ImageChoice::default())
}

fn single(panel: ImagePanel) -> ImagePicture {
    ImagePicture::new("", vec![panel]).expect("one panel")
}

fn by_cell() -> ImageOptions {
    ImageOptions {
        overlay: Overlay::ByCell,
        ..ImageOptions::default()
    }
}

fn titles(picture: &ImagePicture) -> Vec<&str> {
    picture.panels().iter().map(ImagePanel::title).collect()
}

fn pixels(svg: &str) -> Pixmap {
    let options = PngOptions {
        scale: 1.0,
        ..PngOptions::default()
    };
    Pixmap::decode_png(&from_svg(svg, &options).expect("drawn")).expect("a PNG")
}

/// How many elements there are of a name.
fn count(svg: &str, name: &str) -> usize {
    let document = Document::parse(svg).unwrap_or_else(|error| panic!("{error} in {svg}"));
    document
        .descendants()
        .filter(|node| node.has_tag_name(name))
        .count()
}

/// Whether all numbers are numbers. Pixels are left out: their digits may spell anything.
fn finite(svg: &str) -> bool {
    let mut parts = svg.split("base64,");
    let first = parts.next().unwrap_or_default();
    let rest = parts.map(|part| part.split_once('"').map_or("", |(_, rest)| rest));
    ([first].into_iter().chain(rest)).all(|part| !part.contains("NaN") && !part.contains("inf"))
}

fn terminal(width: usize, colour: Colour) -> TerminalOptions {
    TerminalOptions {
        width,
        colour,
        ..TerminalOptions::default()
    }
}

/// The text without its colours; fails on any other control character, and on lines wider than `width`.
fn plain(text: &str, width: usize) -> String {
    let mut out = String::new();
    for (index, part) in text.split('\u{1b}').enumerate() {
        let rest = match index {
            0 => part,
            _ => {
                let (codes, rest) = part.split_once('m').expect("a colour ends with m");
                assert!(
                    codes
                        .chars()
                        .all(|c| c.is_ascii_digit() || matches!(c, '[' | ';'))
                );
                rest
            }
        };
        out.push_str(rest);
    }
    assert!(out.chars().all(|c| c == '\n' || !c.is_control()), "{out:?}");
    for line in out.lines() {
        assert!(line.width() <= width, "{} columns: {line}", line.width());
    }
    out
}

#[test]
fn a_caption_is_a_panel_for_each_word() {
    let trace = scenes::caption(64, 64, 8, 8);
    let words = trace.maps[0].queries().labels();
    let picture = usual(&trace);
    assert_eq!(titles(&picture)[0], "image");
    assert_eq!(titles(&picture)[1..], words);
    assert_eq!(picture.title(), "");
    let svg = picture.svg(&ImageOptions::default());
    // The pixels once, a panel each, and a layer over every panel but the first.
    assert_eq!(count(&svg, "use"), words.len() + 1);
    assert_eq!(count(&svg, "image"), 1 + words.len());
    assert!(
        svg.contains("<title>(4, 1): 0.22</title>"),
        "a cell to hover"
    );
    assert!(svg.contains(">0.22 at (4, 1)<"), "the strongest cell");
    assert!(svg.contains("url(#weights)"), "a colour bar");
    let none = ImageOptions {
        hover_cells: 0,
        ..ImageOptions::default()
    };
    assert!(!picture.svg(&none).contains("<title>(4, 1)"));
}

#[test]
fn a_trace_from_a_file_gives_the_same_picture() {
    let trace = scenes::detector(64, 8);
    let bytes = to_bytes(std::slice::from_ref(&trace)).expect("small");
    let read = from_bytes(&bytes).expect("own bytes");
    let svg = |trace: &Trace| usual(trace).svg(&ImageOptions::default());
    assert_eq!(svg(&read[0]), svg(&trace));
    let words = trace.merge_words();
    assert_eq!(svg(&words), svg(&trace));
}

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
fn hard_attention_outlines_the_drawn_cell() {
    let picture = usual(&scenes::hard_caption(64, 8));
    assert_eq!(picture.panels()[2].note(), "drawn: (4, 1)");
    let svg = picture.svg(&ImageOptions::default());
    assert!(
        !svg.contains("url(#weights)"),
        "no scale, as there is no map"
    );
    assert_eq!(
        svg.matches(r#"fill-rule="evenodd""#).count(),
        picture.panels().len() - 1
    );
    assert_eq!(count(&svg, "image"), 1);
    // A grid of one cell is no choice, and neither is a gate of 1.
    let one = ImagePanel::new(grey(3, 3))
        .map(1, 1, &[1.0])
        .expect("valid");
    assert_eq!(one.note(), "1.00 at (0, 0)");
}

#[test]
fn a_vision_transformer_head_by_head_layer_by_layer_and_rolled_out() {
    let trace = scenes::vit(64, 8, 3, 4);
    let usual_panels = usual(&trace);
    assert_eq!(usual_panels.panels().len(), 2);
    assert_eq!(
        usual_panels.title(),
        "[CLS] · self · layer 3 of 3 · mean of 4 heads"
    );
    let with = |maps: Choice, query, rollout| {
        of(
            &trace,
            &ImageChoice {
                maps,
                query,
                rollout,
            },
        )
    };
    let heads = Choice {
        head: Pick::All,
        ..Choice::default()
    };
    let picture = with(heads, Pick::Usual, false);
    assert_eq!(
        titles(&picture),
        [
            "image",
            "head 1 of 4",
            "head 2 of 4",
            "head 3 of 4",
            "head 4 of 4"
        ]
    );
    assert!(
        picture.panels()[1].note().ends_with(" on [CLS]"),
        "{}",
        picture.panels()[1].note()
    );
    let layers = Choice {
        layer: Pick::All,
        ..Choice::default()
    };
    let picture = with(layers, Pick::One(20), false);
    assert_eq!(
        titles(&picture),
        ["image", "layer 1 of 3", "layer 2 of 3", "layer 3 of 3"]
    );
    assert_eq!(picture.title(), "query (2, 3) · self · mean of 4 heads");

    let picture = with(Choice::default(), Pick::Usual, true);
    assert_eq!(picture.title(), "[CLS] · rollout of 3 layers");
    let (_, maps) = stacks(&trace).remove(0);
    let rolled = rollout(&maps).expect("a stack");
    let strongest = rolled.row(0, 0)[1..].iter().copied().fold(0.0, f32::max);
    let note = picture.panels()[1].note();
    assert!(note.starts_with(&format!("{strongest:.2} at (")), "{note}");

    // Without a class token the mean over all queries stands for them.
    let axis = scenes::grid(2, 2);
    let map = AttentionMap::new(Kind::SelfAttention, axis.clone(), axis, 1, vec![0.25; 16]);
    let trace = Trace::new("m", "", "")
        .with_image(grey(4, 4))
        .with_map(map.expect("valid"));
    assert_eq!(usual(&trace).title(), "mean of 4 queries");

    // A token before the cells that is no class token is not read: here it would see itself alone.
    let axis = Axis::Image {
        prefix: Tokens::from(vec![Token::special("[REG]")]),
        rows: 1,
        columns: 2,
    };
    let rows = vec![1.0, 0.0, 0.0, 0.2, 0.8, 0.0, 0.4, 0.0, 0.6];
    let map = AttentionMap::new(Kind::SelfAttention, axis.clone(), axis, 1, rows);
    let trace = Trace::new("m", "", "")
        .with_image(grey(4, 4))
        .with_map(map.expect("valid"));
    let picture = usual(&trace);
    assert_eq!(picture.title(), "mean of 2 queries");
    assert_eq!(picture.panels()[1].note(), "0.40 at (0, 0), 0.30 on [REG]");
}

#[test]
fn objects_have_boxes_masks_and_maps() {
    let picture = usual(&scenes::detector(64, 8));
    assert_eq!(
        titles(&picture),
        ["image", "small yellow 4", "small blue circle", "white 4"]
    );
    assert!(
        picture.panels()[1]
            .note()
            .starts_with("score 0.99, 0.32 at (4, 1)")
    );
    let svg = picture.svg(&ImageOptions::default());
    // In the first panel with masks and labels, above maps the box alone.
    assert_eq!(svg.matches(r#"class="mask""#).count(), 3);
    assert_eq!(svg.matches(">white 4 0.73</text>").count(), 1);
    assert_eq!(svg.matches("<title>white 4 0.73</title>").count(), 2);
}

#[test]
fn a_question_weights_boxes() {
    let picture = usual(&scenes::question(64));
    assert_eq!(picture.title(), "Is there a yellow 4 right of the white 4?");
    assert_eq!(picture.panels()[1].note(), "0.62 on 4");
    let svg = picture.svg(&ImageOptions::default());
    assert!(svg.contains(">4 0.62</text>") && svg.contains("url(#weights)"));
    // Boxes outside the image, and without a size, are drawn at its edge.
    let far = [
        bounds(-50.0, 3.0, 10.0, 2.0),
        bounds(1e30, -1e30, 1e30, 0.0),
        bounds(2.0, 2.0, 0.0, 0.0),
    ];
    let regions: Vec<Region> = far.map(|b| Region::new("", b).expect("finite")).into();
    let panel = ImagePanel::new(grey(4, 6))
        .regions(&regions, 7)
        .expect("no masks");
    let svg = single(panel.clone()).svg(&ImageOptions::default());
    assert!(finite(&svg) && !svg.contains("width=\"-"), "{svg}");
    plain(&single(panel).text(&terminal(30, Colour::Palette256)), 30);
}

#[test]
fn masks_of_stages_are_means_over_channels_from_the_least() {
    let trace = scenes::masks(64);
    let choice = ImageChoice {
        maps: Choice {
            layer: Pick::All,
            ..Choice::default()
        },
        ..ImageChoice::default()
    };
    let picture = of(&trace, &choice);
    assert_eq!(titles(&picture), ["image", "stage 1", "stage 2", "stage 3"]);
    assert_eq!(picture.title(), "mask · mean of 6 channels");
    let svg = picture.svg(&ImageOptions::default());
    let means = trace.maps.iter().flat_map(|map| {
        let [channels, _, cells] = map.shape();
        let of_cell = move |cell| {
            let all = map.weights().iter().skip(cell).step_by(cells);
            all.sum::<f32>() / channels as f32
        };
        (0..cells).map(of_cell)
    });
    let least = means.fold(f32::INFINITY, f32::min);
    assert!(
        svg.contains(&format!(">{least:.3}</text>")),
        "the scale begins at the least, {least}: {svg}"
    );
    assert!(!svg.contains(">0.00</text>"), "and not at 0");
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
fn what_cannot_be_drawn_is_an_error_by_name() {
    let panel = || ImagePanel::new(grey(4, 4)).titled("cat");
    let said = |result: Result<ImagePanel, ImageError>, words: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    said(
        panel().map(1, 2, &[f32::NAN, 0.1]),
        "map \"cat\": weight 0 is NaN",
    );
    said(panel().map(1, 2, &[0.1, f32::INFINITY]), "weight 1 is inf");
    said(panel().map(1, 2, &[0.1, -0.5]), "weight 1 is -0.5");
    said(panel().map(2, 2, &[0.1]), "1 weights for 2 x 2 cells");
    said(panel().map(0, 5, &[]), "0 weights for 0 x 5 cells");
    said(panel().map(usize::MAX, 2, &[0.1]), "1 weights for");
    said(
        panel().drawn(2, 0, 2, 2),
        "cell (2, 0) is outside its grid of 2 x 2",
    );
    said(panel().query(0, 3, 2, 2), "cell (0, 3)");
    let region = Region::new("dog", bounds(0.0, 0.0, 1.0, 1.0)).expect("valid");
    said(
        panel().weighted(std::slice::from_ref(&region), &[]),
        "0 weights for 1 regions",
    );
    said(
        panel().weighted(std::slice::from_ref(&region), &[f32::NAN]),
        "weight 0 is NaN",
    );
    let mask = Mask::new(2, 3, vec![6]).expect("full");
    said(
        panel().regions(&[region.masked(mask)], 0),
        "region \"dog\": its mask is of 2 x 3 pixels, the image of 4 x 4",
    );

    let trace = scenes::vit(64, 4, 2, 2);
    let refused = |trace: &Trace, choice: ImageChoice, words: &str| {
        let error = ImagePicture::of(trace, &choice).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let default = ImageChoice::default();
    let without = Trace {
        image: None,
        ..trace.clone()
    };
    refused(&without, default, "the trace of \"vit\" has no image");
    let query = ImageChoice {
        query: Pick::One(17),
        ..default
    };
    refused(
        &trace,
        query,
        "self has no query 17; its queries are 0 to 16",
    );
    let maps = Choice {
        layer: Pick::One(4),
        ..Choice::default()
    };
    refused(&trace, ImageChoice { maps, ..default }, "has no layer 5");
    let words = Tokens::from_words("a b");
    let text = AttentionMap::new(Kind::SelfAttention, words.clone(), words, 1, vec![0.5; 4]);
    let text = text.expect("valid").named("decoder.words");
    let only = Trace::new("m", "", "")
        .with_image(grey(2, 2))
        .with_map(text);
    refused(&only, default, "found the maps decoder.words");
    let crossed = ImageChoice {
        rollout: true,
        ..default
    };
    refused(&scenes::caption(32, 32, 4, 4), crossed, "no layers");
    let empty = AttentionMap::new(
        Kind::Cross,
        Tokens::from_words("a"),
        scenes::grid(0, 7),
        1,
        vec![],
    );
    let empty = Trace::new("m", "", "")
        .with_image(grey(2, 2))
        .with_map(empty.expect("valid"));
    refused(&empty, default, "0 weights for 0 x 7 cells");
    let many = ImagePicture::new("", vec![panel(); 401])
        .unwrap_err()
        .to_string();
    assert!(many.contains("401 panels"), "{many}");
    let all = ImageChoice {
        query: Pick::All,
        ..default
    };
    refused(
        &scenes::vit(32, 21, 1, 1),
        all,
        "choose a layer, a head or a query",
    );
}

/// Maps over text beside maps over the image are left out.
#[test]
fn maps_over_text_are_not_drawn_over_the_image() {
    let words = Tokens::from_words("a b");
    let text = AttentionMap::new(Kind::DecoderSelf, words.clone(), words, 1, vec![0.5; 4]);
    let trace = scenes::caption(32, 32, 4, 4).with_map(text.expect("valid"));
    let choice = ImageChoice {
        maps: Choice {
            kind: Pick::All,
            ..Choice::default()
        },
        ..ImageChoice::default()
    };
    assert_eq!(
        of(&trace, &choice).panels().len(),
        1 + trace.maps[0].queries().len()
    );
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

fn hostile() -> Trace {
    let strange = "</script><b>&\"'\u{1b}[31m\u{202e}";
    let image = grey(4, 4);
    let mask = Mask::new(4, 4, vec![5, 2, 9]).expect("full");
    let region = Region::new(strange, bounds(0.5, 0.5, 2.0, 2.0)).and_then(|r| r.scored(0.5));
    let region = region.expect("valid").masked(mask);
    let cells = Axis::Image {
        prefix: Tokens::from(vec![Token::special(strange)]),
        rows: 2,
        columns: 2,
    };
    let boxes = Axis::from(Regions::from(vec![region; 2]));
    let map = |queries: Axis, keys: Axis| {
        let weights = vec![0.25; queries.len() * keys.len()];
        AttentionMap::unnormalized(Kind::Cross, queries, keys, 1, weights)
            .expect("finite")
            .named(strange)
    };
    let words = Axis::from(Tokens::from(vec![Token::new(strange), Token::new("")]));
    Trace::new(strange, strange, strange)
        .with_image(image)
        .with_map(map(boxes.clone(), cells.clone()))
        .with_map(map(words, boxes).at_layer(1))
        .with_map(map(cells.clone(), cells).at_layer(2))
}

#[test]
fn hostile_names_stay_names() {
    let trace = hostile();
    let all = ImageChoice {
        maps: Choice {
            layer: Pick::All,
            ..Choice::default()
        },
        query: Pick::All,
        rollout: false,
    };
    let picture = of(&trace, &all).titled("</svg>\u{1b}");
    let svg = picture.svg(&ImageOptions::default());
    assert_eq!(count(&svg, "script"), 0);
    assert!(!svg.contains('\u{1b}') && !svg.contains('\u{202e}') && !svg.contains("<b>"));
    for colour in [Colour::TrueColour, Colour::Ascii] {
        assert!(!plain(&picture.text(&terminal(60, colour)), 60).contains('\u{202e}'));
    }
}

#[test]
fn gates_are_sorted_and_compared() {
    let rows = scenes::gates(512);
    let single = Gates::new("stage 1", rows[..1].to_vec()).expect("valid");
    let factors = &rows[0].1;
    assert!(
        single
            .order()
            .windows(2)
            .all(|pair| factors[pair[0]] >= factors[pair[1]])
    );
    let classes = Gates::new("stage 2", rows).expect("valid");
    let svg = gates::stacked(&[single.clone(), classes.clone()]);
    // 512 channels on 340 bars at most: two each.
    assert_eq!(svg.matches("<title>channels ").count(), 4 * 256);
    assert!(svg.contains("line: the mean of the rows") && svg.contains(">ship</text>"));
    assert_eq!(count(&single.svg(), "svg"), 1);
    let text = classes.text(&terminal(40, Colour::TrueColour));
    assert_eq!(plain(&text, 40).lines().count(), 5);

    let named = |name: &str, row: Vec<f32>| vec![(name.to_owned(), row)];
    let said = |rows: Vec<(String, Vec<f32>)>| Gates::new("block", rows).unwrap_err().to_string();
    assert!(said(vec![]).contains("gates \"block\": no channels"));
    assert!(said(named("cat", vec![])).contains("no channels"));
    assert!(said(named("cat", vec![0.5, f32::NAN])).contains("\"cat\": channel 1 is NaN"));
    let uneven = [named("cat", vec![0.5]), named("dog", vec![0.5; 2])].concat();
    assert!(said(uneven).contains("\"dog\": 2 channels, expected 1"));

    let channels = Axis::Positions { length: 3 };
    let image = Axis::Positions { length: 1 };
    let map = AttentionMap::unnormalized(Kind::Other, image, channels, 1, vec![0.1, 0.9, 0.4]);
    let of_map = Gates::of(&map.expect("finite").named("stage 3, block 1")).expect("channels");
    assert_eq!(of_map.order(), [1, 2, 0]);
    assert!(of_map.svg().contains("stage 3, block 1"));
    let error = Gates::of(&scenes::caption(32, 32, 2, 2).maps[0])
        .unwrap_err()
        .to_string();
    assert!(error.contains("its keys are no channels"), "{error}");
}

#[test]
fn gates_are_chosen_and_joined_by_class() {
    let map = |layer: usize, weights: [f32; 2]| {
        let (image, channels) = (Axis::Positions { length: 1 }, Axis::Positions { length: 2 });
        let map = AttentionMap::unnormalized(Kind::Other, image, channels, 1, weights.to_vec());
        map.expect("finite")
            .named(format!("block {}", layer + 1))
            .at_layer(layer)
    };
    let image = |first: f32| {
        let trace = Trace::new("resnet", "a.png", "cat").with_map(map(0, [first, 0.5]));
        trace.with_map(map(1, [0.25, first]))
    };
    let all = |first: f32| Gates::chosen(&image(first), &Choice::default()).expect("there are two");
    assert_eq!(all(0.1).len(), 2);
    let choose = |layer: usize, head: Pick<usize>| {
        let choice = Choice {
            layer: Pick::One(layer),
            head,
            ..Choice::default()
        };
        Gates::chosen(&image(0.1), &choice)
    };
    assert_eq!(choose(1, Pick::One(0)).expect("it is there"), all(0.1)[1..]);
    for wrong in [choose(2, Pick::Usual), choose(1, Pick::One(1))] {
        assert!(matches!(wrong, Err(GatesError::Choice(_))), "{wrong:?}");
    }

    let images = [("cat", all(0.5)), ("dog", all(0.75)), ("cat", all(1.0))];
    let joined = Gates::by_class(&images).expect("few rows");
    let joined = joined.expect("of the same places");
    let rows = |rows: [[f32; 2]; 2]| {
        let names = ["cat", "dog"].map(str::to_owned);
        names.into_iter().zip(rows.map(Vec::from)).collect()
    };
    let expected = [
        Gates::new("block 1", rows([[0.75, 0.5], [0.75, 0.5]])),
        Gates::new("block 2", rows([[0.25, 0.75], [0.25, 0.75]])),
    ];
    assert_eq!(joined, expected.map(|gates| gates.expect("valid")));
    let fewer = [("cat", all(0.5)), ("dog", all(0.5)[1..].to_vec())];
    assert_eq!(Gates::by_class(&fewer), Ok(None));
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
