//! What the tests of pictures of images share: small images, pictures of a trace, and what can be read off an SVG and a text.
#![allow(dead_code)]

use regard_trace::{Bounds, Image, Trace};
use regard_view::image::{ImageChoice, ImageOptions, ImagePanel, ImagePicture, Overlay};
use regard_view::png::{PngOptions, from_svg};
use regard_view::terminal::{Colour, TerminalOptions};
use resvg::tiny_skia::Pixmap;
use resvg::usvg::roxmltree::Document;
use unicode_width::UnicodeWidthStr;

pub fn grey(height: usize, width: usize) -> Image {
    let pixels: Vec<u8> = (0..height * width).map(|i| (i * 37 % 256) as u8).collect();
    Image::new(height, width, 1, pixels).expect("it fills its shape")
}

pub fn bounds(x: f32, y: f32, width: f32, height: f32) -> Bounds {
    Bounds {
        x,
        y,
        width,
        height,
    }
}

pub fn of(trace: &Trace, choice: &ImageChoice) -> ImagePicture {
    ImagePicture::of(trace, choice).expect("a picture")
}

pub fn usual(trace: &Trace) -> ImagePicture {
    of(trace, &ImageChoice::default())
}

pub fn single(panel: ImagePanel) -> ImagePicture {
    ImagePicture::new("", vec![panel]).expect("one panel")
}

pub fn by_cell() -> ImageOptions {
    ImageOptions {
        overlay: Overlay::ByCell,
        ..ImageOptions::default()
    }
}

pub fn titles(picture: &ImagePicture) -> Vec<&str> {
    picture.panels().iter().map(ImagePanel::title).collect()
}

pub fn pixels(svg: &str) -> Pixmap {
    let options = PngOptions {
        scale: 1.0,
        ..PngOptions::default()
    };
    Pixmap::decode_png(&from_svg(svg, &options).expect("drawn")).expect("a PNG")
}

/// How many elements there are of a name.
pub fn count(svg: &str, name: &str) -> usize {
    let document = Document::parse(svg).unwrap_or_else(|error| panic!("{error} in {svg}"));
    document
        .descendants()
        .filter(|node| node.has_tag_name(name))
        .count()
}

/// Whether all numbers are numbers. Pixels are left out: their digits may spell anything.
pub fn finite(svg: &str) -> bool {
    let mut parts = svg.split("base64,");
    let first = parts.next().unwrap_or_default();
    let rest = parts.map(|part| part.split_once('"').map_or("", |(_, rest)| rest));
    ([first].into_iter().chain(rest)).all(|part| !part.contains("NaN") && !part.contains("inf"))
}

pub fn terminal(width: usize, colour: Colour) -> TerminalOptions {
    TerminalOptions {
        width,
        colour,
        ..TerminalOptions::default()
    }
}

/// The text without its colours; fails on any other control character, and on lines wider than `width`.
pub fn plain(text: &str, width: usize) -> String {
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
