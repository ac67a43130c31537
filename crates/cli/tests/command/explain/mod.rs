//! `regard explain`: worked examples and masks.

mod checks;
mod mechanism_pictures;
mod options;
mod pictures;
mod printed;

use std::fs;

use serde_json::Value;
use tempfile::tempdir;

use crate::{inside, regard, run, stderr, stdout};

fn explained<const N: usize>(arguments: [&str; N]) -> String {
    let assert = run(arguments).success();
    assert_eq!(stderr(&assert), "");
    stdout(&assert)
}

fn json<const N: usize>(arguments: [&str; N]) -> Value {
    serde_json::from_str(&explained(arguments)).expect("JSON")
}

/// The SVG that these arguments draw.
fn drawn(arguments: &[&str]) -> String {
    let folder = tempdir().unwrap();
    let (svg, path) = inside(folder.path(), "picture.svg");
    let arguments = ["explain"].iter().chain(arguments).copied();
    let assert = regard()
        .args(arguments)
        .args(["--quiet", "--svg", &path])
        .assert();
    assert_eq!(stderr(&assert.success()), "");
    fs::read_to_string(svg).unwrap()
}

/// All that is written in a picture, lines joined.
fn text_of(picture: &str) -> String {
    let texts = picture.split("<text").skip(1).map(|text| {
        let inside = text.split("</text>").next().unwrap();
        inside.split_once('>').unwrap().1
    });
    texts
        .collect::<Vec<_>>()
        .join(" ")
        .replace("&#39;", "'")
        .replace("&quot;", "\"")
        .replace("&amp;", "&")
}

/// What a picture must hold: panels by title, how many cells or bars, hidden ones, curves, marks and lines, and texts.
#[derive(Default)]
struct Holds {
    panels: &'static [&'static str],
    cells: usize,
    bars: usize,
    hidden: usize,
    curves: usize,
    marks: usize,
    lines: usize,
    texts: &'static [&'static str],
}

fn holds(name: &str, picture: &str, expected: &Holds) {
    let count = |class: &str| picture.matches(&format!("class=\"{class}\"")).count();
    let found = ["cell", "bar", "hidden", "curve", "mark", "line"].map(count);
    let Holds {
        cells,
        bars,
        hidden,
        curves,
        marks,
        lines,
        ..
    } = *expected;
    assert_eq!(
        found,
        [cells, bars, hidden, curves, marks, lines],
        "{name}: cells, bars, hidden, curves, marks, lines"
    );
    let titles: Vec<&str> = picture
        .split("font-size=\"14\" font-weight=\"bold\">")
        .skip(1)
        .map(|rest| rest.split('<').next().unwrap())
        .collect();
    assert_eq!(titles, expected.panels, "{name}");
    let text = text_of(picture);
    for part in expected.texts {
        assert!(
            picture.contains(part) || text.contains(part),
            "{name}: {part:?} is not in {text}"
        );
    }
    // A hidden cell is called hidden and has no number.
    assert_eq!(
        hidden > 0,
        picture.contains("hidden from the query: weight 0"),
        "{name}"
    );
    assert_eq!(
        hidden,
        picture.matches(": hidden</title>").count(),
        "{name}"
    );
}
