//! SVG, PNG, charts and pages: snapshots, and properties for any token.

mod common;

use common::{samples, snapshot};
use proptest::collection::vec;
use proptest::prelude::*;
use regard_trace::{AttentionMap, Kind, Token, Tokens, Trace};
use regard_view::Heatmap;
use regard_view::chart::{Chart, Point, Series, stacked};
use regard_view::png::{PngError, PngOptions, from_svg};
use regard_view::svg::{self, SvgOptions};
use resvg::usvg::roxmltree::Document;

fn well_formed(svg: &str) {
    if let Err(error) = Document::parse(svg) {
        panic!("{error} in {svg}");
    }
}

/// Width and height in the header of a PNG.
fn size(png: &[u8]) -> (u32, u32) {
    let number = |at: usize| u32::from_be_bytes([png[at], png[at + 1], png[at + 2], png[at + 3]]);
    (number(16), number(20))
}

fn chart() -> Chart {
    let rising = vec![
        Point::new(1.0, 10.0).between(8.0, 12.0),
        Point::new(2.0, 20.0),
        Point::new(3.0, f64::NAN),
        Point::new(4.0, 25.0),
    ];
    Chart::new("BLEU by source length", "words", "BLEU")
        .with(Series::new("rnnsearch <1>", rising))
        .with(Series::new(
            "seq2seq",
            vec![Point::new(1.0, 9.0), Point::new(4.0, 3.5)],
        ))
        .x_names([
            (1.0, "1-10".into()),
            (2.0, "11-20".into()),
            (3.0, "21-30".into()),
            (4.0, "> 30".into()),
        ])
        .y_from_zero()
}

#[test]
fn svg_snapshots() {
    let options = SvgOptions::default();
    let german = samples::german().merge_words();
    let pictures = [
        ("heatmap", svg::trace(&german, &options)),
        ("hebrew", svg::trace(&samples::hebrew(), &options)),
        ("hostile", svg::trace(&samples::hostile(), &options)),
        ("one", svg::trace(&samples::one_token(), &options)),
        (
            "grid",
            svg::grid(&Heatmap::heads_of(&samples::sized(3, 4, 3)), &options),
        ),
        ("chart", chart().svg()),
    ];
    for (name, picture) in &pictures {
        well_formed(picture);
        snapshot(&format!("{name}.svg"), picture);
    }
}

/// Every word of a sentence of 60 tokens is named beside its row and above its column, alone and among eleven other maps.
#[test]
fn labels_stay_up_to_sixty_tokens_and_more() {
    let words = |length: usize| -> Tokens {
        (0..length)
            .map(|word| Token::new(format!("word{word}")))
            .collect()
    };
    let map = |length: usize| {
        let weights = samples::peaked(length, length, 0, |query| query as f32);
        let map = AttentionMap::new(Kind::Cross, words(length), words(length), 1, weights);
        Heatmap::from_map(&map.expect("normalised"))
    };
    let labels = |picture: &str| {
        let document = Document::parse(picture).expect("well formed");
        let texts = document
            .descendants()
            .filter(|node| node.has_tag_name("text"));
        texts
            .filter(|node| node.text().is_some_and(|text| text.starts_with("word")))
            .map(|node| {
                node.attribute("font-size")
                    .map_or(0.0, |size| size.parse().unwrap())
            })
            .collect::<Vec<f64>>()
    };
    let options = SvgOptions::default();
    for length in [23, 60, 80] {
        let single = labels(&svg::heatmap(&map(length), &options));
        assert_eq!(single.len(), 2 * length);
        assert!(single.iter().all(|&size| size >= 9.0), "{single:?}");
        let many = labels(&svg::grid(&vec![map(length); 12], &options));
        assert_eq!(many.len(), 12 * 2 * length);
    }
}

#[test]
fn predictions_are_named_beside_their_rows() {
    let read = samples::tokens("ein Mann");
    let written = samples::tokens("Mann fährt");
    let weights = samples::peaked(3, 3, 0, |query| query as f32);
    let map = AttentionMap::new(Kind::DecoderSelf, read.clone(), read, 1, weights)
        .and_then(|map| map.predicting(written))
        .expect("valid");
    let trace = Trace::new("m", "", "").with_map(map);
    let picture = svg::trace(&trace, &SvgOptions::default());
    for text in ["ein (Mann)", "Mann (fährt)", "read (then written)"] {
        assert!(picture.contains(text), "{text}");
    }
}

#[test]
fn axes_of_a_table_are_named_if_they_have_names() {
    let table = Heatmap::table(vec!["a".into()], vec!["b".into()], vec![0.5]);
    let plain = svg::heatmap(&table, &SvgOptions::default());
    assert!(!plain.contains('∅') && !plain.contains('↓'), "{plain}");
    let named = svg::heatmap(&table.with_axes("head", "layer"), &SvgOptions::default());
    assert!(named.contains("head ↓") && named.contains("layer →"));
}

#[test]
fn a_large_map_is_a_small_file() {
    let map = Heatmap::from_map(&samples::sized(300, 300, 1));
    let picture = svg::heatmap(&map, &SvgOptions::default());
    well_formed(&picture);
    assert!(picture.len() < 60_000, "{}", picture.len());
    assert!(picture.contains("data:image/png;base64,"));
}

#[test]
fn pngs_have_ink_and_the_size_asked_for() {
    let svg = svg::trace(&samples::hebrew(), &SvgOptions::default());
    let (width, height) = size(
        &from_svg(
            &svg,
            &PngOptions {
                scale: 1.0,
                ..Default::default()
            },
        )
        .expect("drawn"),
    );
    let twice = from_svg(&svg, &PngOptions::default()).expect("drawn");
    assert_eq!(size(&twice), (2 * width, 2 * height));
    let small = from_svg(
        &svg,
        &PngOptions {
            max_pixels: 5000,
            ..Default::default()
        },
    )
    .expect("scaled down");
    let (w, h) = size(&small);
    assert!(w * h <= 5000 && w * h > 4000, "{w} x {h}");

    let pixmap = resvg::tiny_skia::Pixmap::decode_png(&twice).expect("a PNG");
    // The row names are Hebrew alone: dark pixels left of the cells are its letters.
    let dark = (0..180).flat_map(|x| (160..340).map(move |y| (x, y)));
    let dark = dark
        .filter(|&(x, y)| pixmap.pixel(x, y).is_some_and(|p| p.red() < 100))
        .count();
    assert!(dark > 300, "{dark} dark pixels");
}

#[test]
fn a_png_that_cannot_be_is_an_error() {
    let draw = |svg: &str, scale, max_pixels| from_svg(svg, &PngOptions { scale, max_pixels });
    assert!(matches!(draw("no", 1.0, 9), Err(PngError::Svg { .. })));
    let svg = r#"<svg xmlns="http://www.w3.org/2000/svg" width="40" height="30"/>"#;
    assert!(matches!(draw(svg, 0.0, 9), Err(PngError::Scale { .. })));
    assert!(matches!(
        draw(svg, f32::NAN, 9),
        Err(PngError::Scale { .. })
    ));
    assert!(matches!(draw(svg, 1.0, 0), Err(PngError::Size { .. })));
    assert_eq!(
        draw(svg, 1e30, 12)
            .map(|png| size(&png))
            .expect("scaled down"),
        (4, 3)
    );
    let thin = r#"<svg xmlns="http://www.w3.org/2000/svg" width="100000" height="1"/>"#;
    assert!(draw(thin, 1.0, 50).is_ok_and(|png| size(&png).0 <= 50));
}

#[test]
fn an_svg_reads_no_file() {
    let svg = r#"<svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"><image href="/etc/hostname.png" width="4" height="4"/></svg>"#;
    assert!(from_svg(svg, &PngOptions::default()).is_ok());
}

/// A chart of `count` lines, each with a point for each of `places`.
fn lines(count: usize, places: usize) -> Chart {
    let line = |index: usize| {
        let points = (0..places).map(|x| Point::new(x as f64, index as f64));
        Series::new(
            format!("encoder.self layer {}", index + 1),
            points.collect(),
        )
    };
    let chart = Chart::new("Entropy", "updates", "nats");
    (0..count).map(line).fold(chart, Chart::with)
}

/// A legend of many lines leaves the plot its room: nothing is drawn over the next chart or outside of the picture.
#[test]
fn a_chart_is_as_high_as_its_legend_needs() {
    let high = |svg: &str| -> f64 {
        let document = Document::parse(svg).expect("well formed");
        let height = document.root_element().attribute("height");
        height.unwrap().parse().unwrap()
    };
    let few = lines(8, 3);
    assert_eq!(high(&few.svg()), 460.0);
    let many = lines(96, 3);
    let height = high(&many.svg());
    assert!(height > 700.0, "{height}");
    let both = stacked(&[many, few]);
    assert_eq!(high(&both), height + 460.0);
    let document = Document::parse(&both).expect("well formed");
    let groups: Vec<_> = (document.descendants())
        .filter(|node| node.has_tag_name("g"))
        .collect();
    assert_eq!(
        groups[1].attribute("transform"),
        Some(format!("translate(0 {height})").as_str())
    );
    // Between legend and axis there are at least 230 pixels.
    let texts = groups[0]
        .children()
        .filter(|node| node.has_tag_name("text"));
    let places: Vec<(&str, f64)> = texts
        .map(|node| {
            let y = node.attribute("y").unwrap().parse().unwrap();
            (node.text().unwrap_or_default(), y)
        })
        .collect();
    assert!(places.iter().all(|&(_, y)| y < height));
    let last = places.iter().filter(|(text, _)| text.contains("layer"));
    let last = last.map(|&(_, y)| y).fold(0.0, f64::max);
    let axis = height - 56.0;
    assert!(axis - last >= 230.0, "{last} {axis}");
    // Nor in the smallest.
    let svg = lines(8, 3).sized(0, 0).svg();
    assert!(high(&svg) > 300.0, "{}", high(&svg));
}

/// Colours come again after the eighth line, the looks of lines much later.
#[test]
fn lines_beyond_the_eighth_look_different() {
    for (chart, different) in [
        (lines(100, 3), 100),
        (lines(100, 100), 48),
        (lines(192, 3), 192),
    ] {
        let svg = chart.svg();
        let document = Document::parse(&svg).expect("well formed");
        let paths: Vec<_> = (document.descendants())
            .filter(|node| node.has_tag_name("path"))
            .collect();
        let mut looks = std::collections::BTreeSet::new();
        for (path, next) in paths.iter().zip(&paths[1..]) {
            let is_entry = path.attribute("d").unwrap().ends_with("h22");
            if !is_entry {
                continue;
            }
            // Without numbers the shape of the marker is left; without a marker another line follows.
            let shape: String = (next.attribute("d").unwrap().chars())
                .filter(char::is_ascii_alphabetic)
                .collect();
            let is_hollow = next.attribute("fill") == Some("#ffffff");
            let marker = shape.ends_with('z').then_some((shape, is_hollow));
            looks.insert((
                path.attribute("stroke"),
                path.attribute("stroke-dasharray"),
                marker,
            ));
        }
        assert_eq!(looks.len(), different);
    }
    let text = lines(40, 3).text(60, 60);
    let entries = text
        .lines()
        .filter_map(|line| line.strip_prefix("  ")?.split_once(" encoder.self"));
    let marks: std::collections::BTreeSet<&str> = entries.map(|(mark, _)| mark).collect();
    assert_eq!(marks.len(), 40);
}

/// The same chart in characters.
#[test]
fn a_chart_in_a_terminal() {
    let text = chart().text(60, 16);
    snapshot("chart.txt", &text);
    assert!(
        text.lines().all(|line| line.chars().count() <= 60),
        "{text}"
    );
}

#[test]
fn charts_take_any_number() {
    let odd = [
        f64::NAN,
        f64::INFINITY,
        f64::MAX,
        f64::MIN_POSITIVE,
        0.0,
        -1e149,
        1e149,
    ];
    for points in [
        vec![],
        vec![Point::new(1.0, 1.0)],
        odd.map(|v| Point::new(v, v).between(v, v)).to_vec(),
    ] {
        let svg = Chart::new("", "", "")
            .with(Series::new("", points))
            .sized(0, 0)
            .svg();
        well_formed(&svg);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
    assert!(Chart::new("", "", "").text(0, 0).lines().count() >= 5);
    assert!(Chart::new("a", "b", "c").svg().contains("no data"));
}

fn any_trace() -> impl Strategy<Value = Trace> {
    let tokens = || {
        vec((any::<String>(), 0usize..5), 0..9).prop_map(|parts| {
            parts
                .into_iter()
                .map(|(text, word)| Token::new(text).in_word(word))
                .collect::<Tokens>()
        })
    };
    (tokens(), tokens(), 1usize..3, any::<[String; 4]>())
        .prop_flat_map(|(queries, keys, heads, texts)| {
            let size = heads * queries.len() * keys.len();
            (
                Just((queries, keys, heads, texts)),
                vec(0.0f32..f32::MAX, size),
            )
        })
        .prop_map(
            |((queries, keys, heads, [name, model, source, target]), weights)| {
                let map = AttentionMap::unnormalized(Kind::Cross, queries, keys, heads, weights);
                Trace::new(model, source, target).with_map(map.expect("finite").named(name))
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_token_gives_a_well_formed_svg(trace in any_trace()) {
        let maps = Heatmap::heads_of(&trace.maps[0]);
        let few = SvgOptions { hover_cells: 4, ..Default::default() };
        for picture in [svg::trace(&trace, &SvgOptions::default()), svg::grid(&maps, &few)] {
            well_formed(&picture);
        }
    }

    #[test]
    fn any_chart_is_well_formed(name: String, points in vec((any::<f64>(), any::<f64>(), any::<f64>()), 0..9),
                                width: u16, height: u16) {
        let points = points.into_iter().map(|(x, y, z)| Point::new(x, y).between(z, y)).collect();
        let chart = Chart::new(name.clone(), name.clone(), name.clone()).with(Series::new(name, points));
        let text = chart.text(usize::from(width) % 300, usize::from(height) % 100);
        prop_assert!(text.lines().count() >= 8 && text.chars().all(|c| c == '\n' || !c.is_control()));
        well_formed(&chart.sized(width.into(), height.into()).svg());
    }
}
