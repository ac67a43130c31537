//! Arrows in space and pictures of masks: snapshots, and what holds for any numbers and names.

mod common;

use common::snapshot;
use proptest::collection::vec;
use proptest::prelude::*;
use regard_view::mask::MaskPicture;
use regard_view::png::{PngOptions, from_svg};
use regard_view::vectors::{Arrow, Vectors};
use resvg::usvg::roxmltree::Document;

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

#[test]
fn pictures_are_as_reviewed() {
    for (name, picture) in [
        ("vectors.svg", words().svg()),
        ("mask.svg", causal_window().svg()),
    ] {
        well_formed(&picture);
        snapshot(name, &picture);
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
    let large = MaskPicture::new("large", vec![vec![true; 300]; 300]);
    assert_eq!(large.share(), (90_000, 90_000));
    well_formed(&large.svg());
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
}
