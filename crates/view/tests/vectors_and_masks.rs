//! Arrows, pictures of masks and of steps: snapshots, and properties for any numbers and names.

mod common;

use common::snapshot;
use proptest::collection::vec;
use proptest::prelude::*;
use regard_view::mask::MaskPicture;
use regard_view::png::{PngOptions, from_svg};
use regard_view::steps::{Panel, Steps};
use regard_view::vectors::{Arrow, Vectors};
use resvg::usvg::roxmltree::{self, Document};

fn well_formed(svg: &str) {
    if let Err(error) = Document::parse(svg) {
        panic!("{error} in {svg}");
    }
}

fn words() -> Vectors {
    Vectors::new("dot: hello, hi, tomato")
        .with(Arrow::new("hello", [0.71, 0.14, 0.51]))
        .with(Arrow::new("hi", [0.69, 0.15, 0.48]))
        .with(Arrow::new("tomato", [0.16, 0.59, 0.49]))
        .caption("hello · hi = 0.7557")
        .caption("hello · tomato = 0.4461")
        .caption("hi · tomato = 0.4341")
}

fn causal_window() -> MaskPicture {
    let seen = (0..8).map(|i: usize| (0..8).map(|j| j <= i && i - j < 3).collect());
    MaskPicture::new("window:3 & causal", seen.collect())
}

fn named(letter: char, count: usize) -> Vec<String> {
    (1..=count).map(|i| format!("{letter}{i}")).collect()
}

/// A masked map with a column beside it and curves, and bars with a threshold.
fn steps() -> Steps {
    let cells = vec![
        vec![Some(0.6), None, None, Some(0.4)],
        vec![Some(0.2), Some(0.7), None, Some(0.1)],
    ];
    let columns = ["k1", "k2", "k3", "sink"].map(str::to_owned).to_vec();
    let curve = |centre: f64| -> Vec<(f64, f64)> {
        let points = (0..=24).map(|i| f64::from(i) / 8.0 - 0.5);
        points.map(|x| (x, (-(x - centre).powi(2)).exp())).collect()
    };
    let map = Panel::new("weights", named('q', 2), columns, cells)
        .formula("α_i = e^{s_i} / (e^{sink} + Σ_j e^{s_j})")
        .shares()
        .beside(1)
        .curves(vec![curve(0.3), curve(1.0)])
        .marks(vec![vec![0.3], vec![1.0, 9.0]]);
    let scores = vec![vec![Some(1.5), Some(-0.5), None]];
    let bars = Panel::new("scores", named('q', 1), named('k', 3), scores).line(0.5);
    Steps::new("sink (Miller 2023)")
        .formula("score(q, k) = qᵀ k")
        .with(map)
        .with(bars)
        .remark("The sink takes weight and has no value.")
}

fn plane() -> Vectors {
    Vectors::new("a plane")
        .with(Arrow::flat("a", [1.0, 2.0]))
        .with(Arrow::flat("b", [-1.0, 0.5]))
}

#[test]
fn vectors_of_two_numbers_lie_in_a_plane() {
    let svg = plane().svg();
    assert!(svg.contains(">x</text>") && svg.contains(">y</text>") && !svg.contains(">z</text>"));
    // Right is x and up is y, in equal steps: from (0, 0) to (1, 2) and to (-1, 0.5).
    let document = Document::parse(&svg).unwrap();
    let tip = |name: &str| -> (f64, f64) {
        let titles = document
            .descendants()
            .filter(|node| node.has_tag_name("title"));
        let arrow = titles
            .filter(|title| title.text().unwrap().starts_with(name))
            .find_map(|title| title.parent());
        let head = arrow
            .unwrap()
            .descendants()
            .filter(|node| node.has_tag_name("path"))
            .nth(1)
            .unwrap();
        let way = head.attribute("d").unwrap()[1..].split('L').next().unwrap();
        let (x, y) = way.split_once(' ').unwrap();
        (x.parse().unwrap(), y.parse().unwrap())
    };
    let ((ax, ay), (bx, by)) = (tip("a ("), tip("b ("));
    assert!(
        ((ax - bx) / 2.0 - (by - ay) / 1.5).abs() < 0.02,
        "{ax} {ay} {bx} {by}"
    );
    assert!(ax > bx && ay < by);
}

#[test]
fn steps_hold_what_they_are_given() {
    let svg = steps().svg();
    let count = |class: &str| svg.matches(&format!("class=\"{class}\"")).count();
    let found = ["cell", "hidden", "bar", "curve", "mark", "line"].map(count);
    // Three of eight cells and one of three bars are hidden; a mark beyond the keys is left out.
    assert_eq!(found, [5, 4, 2, 2, 2, 1]);
    for part in [
        "q1 → k1: 0.6<",
        "q1 → k2: hidden",
        "q2 → sink: 0.1",
        "q1 → k2: -0.5",
        "no value",
    ] {
        assert!(svg.contains(part), "{part}");
    }
}

#[test]
fn panels_of_a_row_begin_at_one_height() {
    let weights = Panel::new(
        "weights",
        named('q', 2),
        named('k', 2),
        vec![vec![Some(0.5); 2]; 2],
    );
    let long = weights
        .clone()
        .formula("a formula of many words ".repeat(6));
    let svg = Steps::new("").with(weights).with(long).svg();
    let first_cells: Vec<&str> = svg
        .split("class=\"cell\"")
        .skip(1)
        .step_by(4)
        .map(|cell| {
            cell.split("y=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
        })
        .collect();
    assert_eq!(first_cells.len(), 2);
    assert_eq!(first_cells[0], first_cells[1]);
}

#[test]
fn panels_begin_rows_where_they_say_so() {
    let panel = |rows| {
        let cells = vec![vec![Some(1.0); 2]; rows];
        Panel::new("panel", named('q', rows), named('k', 2), cells).matrix()
    };
    let svg = Steps::new("rows")
        .about("what it does")
        .with(panel(1).begins_row())
        .with(panel(2))
        .with(panel(1).begins_row())
        .with(panel(2))
        .with(panel(2))
        .svg();
    // A matrix has cells, also of one row.
    assert_eq!(svg.matches("class=\"cell\"").count(), 2 + 4 + 2 + 4 + 4);
    assert!(!svg.contains("class=\"bar\"") && svg.contains("what it does"));
    let places = svg.split("<g transform=\"translate(").skip(1);
    let heights = places.map(|rest| rest.split([' ', ',', ')']).nth(1).unwrap());
    let heights: Vec<&str> = heights.collect();
    assert_eq!(heights.len(), 5);
    assert!(heights[0] == heights[1] && heights[1] != heights[2]);
    assert!(heights[2..].iter().all(|height| *height == heights[2]));
}

#[test]
fn slanted_names_stay_in_their_panel() {
    let names = ["Donaudampfschifffahrt", "b", "c"]
        .map(str::to_owned)
        .to_vec();
    let bars = Panel::new("weights", named('q', 1), names, vec![vec![Some(0.5); 3]]);
    let svg = Steps::new("").with(bars).svg();
    let name = svg.find("rotate(-50").unwrap();
    let start = svg[name..].split_once(' ').unwrap().1;
    let x: f64 = start.split(' ').next().unwrap().parse().unwrap();
    // It ends at x, is up to 110 pixels long and stands at 50 degrees.
    assert!(x >= 110.0 * 0.64, "{x}: {svg}");
}

#[test]
fn a_mask_is_named_in_full() {
    let text = "window:3 & causal | global:0,3 & prefix:2 | document:0,0,1,1 & !causal";
    let svg = MaskPicture::new(text, vec![vec![true; 4]; 4]).svg();
    let title: Vec<&str> = svg
        .split("font-weight=\"bold\">")
        .skip(1)
        .map(|rest| rest.split('<').next().unwrap())
        .collect();
    assert_eq!(title.join(" ").replace("&amp;", "&"), text);
}

#[test]
fn pictures_are_as_reviewed() {
    let (words, causal) = (words().svg(), causal_window().svg());
    snapshot("vectors.svg", &words);
    snapshot("mask.svg", &causal);
    for picture in [words, causal, steps().svg(), plane().svg()] {
        well_formed(&picture);
        assert!(
            from_svg(&picture, &PngOptions::default())
                .unwrap()
                .starts_with(b"\x89PNG")
        );
    }
}

#[test]
fn names_of_near_tips_do_not_overlap() {
    let svg = words().svg();
    let document = Document::parse(&svg).unwrap();
    let place = |name: &str| -> (f64, f64) {
        let span = document
            .descendants()
            .find(|node| node.text() == Some(name))
            .unwrap();
        let text = span
            .ancestors()
            .find(|node| node.has_tag_name("text"))
            .unwrap();
        let number = |key| text.attribute(key).unwrap().parse().unwrap();
        (number("x"), number("y"))
    };
    assert!((place("hello").1 - place("hi").1).abs() >= 16.0);
}

#[test]
fn nothing_and_far_too_much_can_be_drawn() {
    well_formed(&Vectors::new("").svg());
    let far = Vectors::new("far")
        .with(Arrow::new("nan", [f64::NAN, 0.0, 0.0]))
        .with(Arrow::new("far", [1e300, 0.0, 0.0]))
        .with(Arrow::new("zero", [0.0; 3]).emphasized());
    let svg = far.svg();
    well_formed(&svg);
    assert!(!svg.contains("NaN") && !svg.contains("inf") && svg.contains(">zero<"));
    well_formed(&MaskPicture::new("", Vec::new()).svg());
    well_formed(&Steps::new("").svg());
    well_formed(
        &Steps::new("")
            .with(Panel::new("", Vec::new(), Vec::new(), Vec::new()))
            .svg(),
    );
    let large = MaskPicture::new("large", vec![vec![true; 300]; 300]);
    assert_eq!(large.share(), (90_000, 90_000));
    well_formed(&large.svg());
}

/// A square for each pair of a large mask would take some 100 bytes of text; a pixel does.
#[test]
fn a_large_mask_is_a_small_file() {
    let mask = |length: usize| {
        let seen = (0..length).map(|i| (0..length).map(|j| j <= i && i - j < 3).collect());
        MaskPicture::new("window:3 & causal", seen.collect()).svg()
    };
    let squares = mask(77);
    assert_eq!(squares.matches("<title>query ").count(), 77 * 77);
    let pixels = mask(512);
    well_formed(&pixels);
    assert!(pixels.len() < 100_000, "{}", pixels.len());
    assert!(pixels.contains("data:image/png;base64,") && !pixels.contains("<title>query "));
    let png = from_svg(
        &pixels,
        &PngOptions {
            scale: 1.0,
            ..Default::default()
        },
    )
    .unwrap();
    let drawn = resvg::tiny_skia::Pixmap::decode_png(&png).unwrap();
    let colour = |x: usize, y: usize| {
        // Each pair has two pixels; the squares begin below the one line of the title.
        let pixel = drawn.pixel(74 + 2 * x as u32, 96 + 2 * y as u32).unwrap();
        [pixel.red(), pixel.green(), pixel.blue()]
    };
    let (seen, hidden) = ([0x1f, 0x6b, 0xa6], [0xe9, 0xed, 0xf2]);
    for (query, key, is_seen) in [
        (0, 0, true),
        (0, 1, false),
        (300, 300, true),
        (300, 298, true),
        (300, 297, false),
        (300, 301, false),
        (511, 511, true),
        (511, 0, false),
    ] {
        let expected = if is_seen { seen } else { hidden };
        assert_eq!(colour(key, query), expected, "{query} {key}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_arrows_stay_on_the_paper(
        arrows in vec((any::<String>(), [-1e3f64..1e3, -1e3f64..1e3, -1e3f64..1e3]), 0..7),
    ) {
        let mut picture = Vectors::new("any");
        for (name, vector) in &arrows {
            picture = picture.with(Arrow::new(name, *vector));
        }
        let svg = picture.svg();
        well_formed(&svg);
        let document = Document::parse(&svg).unwrap();
        let width: f64 = document.root_element().attribute("width").unwrap().parse().unwrap();
        for circle in document.descendants().filter(|node| node.has_tag_name("circle")) {
            let x: f64 = circle.attribute("cx").unwrap().parse().unwrap();
            prop_assert!((0.0..=width).contains(&x), "{x} of {width}");
        }
    }

    #[test]
    fn any_steps_stay_on_the_paper(
        title in any::<String>(), names in vec(any::<String>(), 1..70),
        queries in 1usize..5, values in vec(proptest::option::of(any::<f64>()), 280),
        shares: bool, beside in 0usize..3,
    ) {
        let rows: Vec<_> = values.chunks(70).take(queries).map(|row| row[..names.len()].to_vec()).collect();
        let curve = vec![(0.0, f64::NAN), (1.0, f64::INFINITY), (2.0, 0.5)];
        let mut panel = Panel::new(title.clone(), named('q', queries), names.clone(), rows)
            .beside(beside)
            .line(1.0)
            .marks(vec![vec![0.4, f64::NAN]])
            .curves(vec![curve]);
        if shares {
            panel = panel.shares();
        }
        let svg = Steps::new(title.clone()).formula(title).with(panel).svg();
        well_formed(&svg);
        let document = Document::parse(&svg).unwrap();
        let size = |key| document.root_element().attribute(key).unwrap().parse::<f64>().unwrap();
        let number = |node: &roxmltree::Node<'_, '_>, key| node.attribute(key).unwrap().parse::<f64>().unwrap();
        let drawn = document.descendants().filter(|node| node.attribute("class").is_some());
        let squares: Vec<_> = drawn.filter(|node| node.has_tag_name("rect")).collect();
        prop_assert_eq!(squares.len(), queries * names.len());
        for square in squares {
            for (place, length, room) in [("x", "width", size("width")), ("y", "height", size("height"))] {
                let (from, far) = (number(&square, place), number(&square, length));
                prop_assert!(from >= 0.0 && far >= 0.0 && from + far <= room, "{} {}", from, far);
            }
        }
    }
}
