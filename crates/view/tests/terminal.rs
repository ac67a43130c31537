//! Terminal pictures: snapshots, and properties for any token and any width.

mod common;

use common::{samples, snapshot};
use proptest::collection::vec;
use proptest::prelude::*;
use regard_trace::{AttentionMap, Kind, Token, Tokens};
use regard_view::Heatmap;
use regard_view::terminal::{self, Colour, Direction, TerminalOptions};
use unicode_width::UnicodeWidthStr;

fn options(width: usize, colour: Colour) -> TerminalOptions {
    TerminalOptions {
        width,
        colour,
        ..Default::default()
    }
}

/// The text without its colours; fails on any other control character.
fn plain(picture: &str) -> String {
    let mut out = String::new();
    let mut rest = picture;
    while let Some(start) = rest.find('\u{1b}') {
        out.push_str(&rest[..start]);
        let end = start + rest[start..].find('m').expect("a colour ends with m");
        let inner = &rest[start + 1..end];
        assert!(
            inner.starts_with('[') && inner[1..].chars().all(|c| c.is_ascii_digit() || c == ';')
        );
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    assert!(out.chars().all(|c| c == '\n' || !c.is_control()), "{out:?}");
    out
}

#[test]
fn all_colour_modes() {
    let trace = samples::german().merge_words();
    for (mode, colour) in [
        ("truecolour", Colour::TrueColour),
        ("256", Colour::Palette256),
        ("ascii", Colour::Ascii),
    ] {
        snapshot(
            &format!("terminal-{mode}.txt"),
            &terminal::trace(&trace, &options(80, colour)),
        );
    }
    let strip = |colour| plain(&terminal::trace(&trace, &options(80, colour)));
    assert_eq!(strip(Colour::TrueColour), strip(Colour::Palette256));
}

#[test]
fn every_layout() {
    let ascii = |width| options(width, Colour::Ascii);
    let german = samples::german().merge_words();
    snapshot(
        "terminal-words-60.txt",
        &terminal::trace(&german, &ascii(60)),
    );
    snapshot(
        "terminal-staircase-40.txt",
        &terminal::trace(&german, &ascii(40)),
    );
    let sized = |q, k| Heatmap::from_map(&samples::sized(q, k, 1));
    snapshot(
        "terminal-stacked-60.txt",
        &terminal::heatmap(&sized(9, 23), &ascii(60)),
    );
    snapshot(
        "terminal-narrow-60.txt",
        &terminal::heatmap(&sized(9, 46), &ascii(60)),
    );
    snapshot(
        "terminal-blocks-40.txt",
        &terminal::heatmap(&sized(9, 46), &ascii(40)),
    );
    snapshot(
        "terminal-numbers-24.txt",
        &terminal::trace(&samples::arabic(), &ascii(24)),
    );
    let afar = TerminalOptions {
        height: Some(40),
        title: true,
        ..ascii(60)
    };
    snapshot(
        "terminal-afar-60.txt",
        &terminal::heatmap(&sized(300, 300), &afar),
    );
}

#[test]
fn every_script() {
    let ascii = options(90, Colour::Ascii);
    snapshot(
        "terminal-hebrew.txt",
        &terminal::trace(&samples::hebrew(), &ascii),
    );
    let left = TerminalOptions {
        direction: Direction::Leave,
        ..ascii.clone()
    };
    snapshot(
        "terminal-hebrew-left.txt",
        &terminal::trace(&samples::hebrew(), &left),
    );
    snapshot(
        "terminal-chinese.txt",
        &terminal::trace(&samples::chinese(), &ascii),
    );
    snapshot(
        "terminal-hostile.txt",
        &terminal::trace(&samples::hostile(), &ascii),
    );
    snapshot(
        "terminal-one.txt",
        &terminal::trace(&samples::one_token(), &ascii),
    );
}

#[test]
fn several_maps_have_titles() {
    let picture = terminal::trace(&samples::transformer(), &options(80, Colour::Ascii));
    assert_eq!(picture.matches("· mean of 4 heads").count(), 4);
}

#[test]
fn nothing_to_show_is_said() {
    let none = Tokens::default();
    let map = AttentionMap::new(Kind::Cross, none, Tokens::from_words("a b"), 1, vec![]);
    let picture = terminal::heatmap(
        &Heatmap::from_map(&map.expect("valid")),
        &Default::default(),
    );
    assert_eq!(picture, "(no weights: 0 rows, 2 columns)\n");
}

#[test]
fn a_height_is_kept() {
    for height in [24, 40, 60, 100] {
        for (queries, keys) in [(300, 300), (60, 70), (200, 5), (3, 200), (26, 20)] {
            let map = Heatmap::from_map(&samples::sized(queries, keys, 1));
            let options = TerminalOptions {
                height: Some(height),
                ..options(80, Colour::Ascii)
            };
            let lines = terminal::heatmap(&map, &options).lines().count();
            assert!(lines <= height, "{queries} x {keys} in {height}: {lines}");
        }
    }
}

fn names(letter: char, count: usize) -> Vec<String> {
    (1..=count).map(|i| format!("{letter}{i}")).collect()
}

#[test]
fn a_signed_picture_shows_both_signs() {
    let values = vec![-0.8, 0.4, 0.0, 0.1];
    let table = Heatmap::table(names('q', 2), names('k', 2), values).signed();
    let picture = terminal::heatmap(&table, &options(40, Colour::Ascii));
    for part in ["-.80", ".40", ".10", "-0.80 [", "] 0.80"] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
    // Without a sign 0 is the end of the scale, and what is below it looks the same.
    let unsigned = Heatmap::table(names('q', 1), names('k', 2), vec![-0.8, 0.4]);
    let picture = terminal::heatmap(&unsigned, &options(40, Colour::Ascii));
    assert!(
        !picture.contains("-.80") && picture.contains("0.00 ["),
        "{picture}"
    );
}

/// Of a tile the number of the largest size stays, below 0 too.
#[test]
fn a_signed_picture_is_reduced_on_both_sides() {
    let mut values = vec![0.0; 400];
    (values[57 * 4 + 2], values[57 * 4 + 3], values[10 * 4 + 1]) = (-2.5, 1.5, 0.5);
    let table = Heatmap::table(names('q', 100), names('k', 4), values).signed();
    let options = TerminalOptions {
        height: Some(12),
        ..options(60, Colour::Ascii)
    };
    let picture = terminal::heatmap(&table, &options);
    assert!(picture.lines().count() <= 12, "{picture}");
    for part in [
        "-2.5",
        "1.5",
        ".50",
        "-2.50 [",
        "] 2.50",
        "above or below 0",
    ] {
        assert!(picture.contains(part), "{part}: {picture}");
    }
}

#[test]
fn a_logarithmic_picture_names_its_ends() {
    let table = Heatmap::table(names('q', 1), names('k', 2), vec![0.001, 0.5]).logarithmic(0.01);
    let picture = terminal::heatmap(&table, &options(60, Colour::Ascii));
    assert!(
        picture.contains("1.0e-2 [") && picture.contains("] 5.0e-1"),
        "{picture}"
    );
}

fn colour() -> impl Strategy<Value = Colour> {
    prop_oneof![
        Just(Colour::TrueColour),
        Just(Colour::Palette256),
        Just(Colour::Ascii)
    ]
}

fn any_map() -> impl Strategy<Value = AttentionMap> {
    let tokens = || vec(any::<String>().prop_map(Token::new), 0..30);
    (tokens(), tokens())
        .prop_flat_map(|(queries, keys)| {
            let size = queries.len() * keys.len();
            let weight = prop_oneof![3 => 0.0f32..1.0, 1 => Just(0.0), 1 => 0.0f32..f32::MAX];
            (Just((queries, keys)), vec(weight, size))
        })
        .prop_map(|((queries, keys), weights)| {
            AttentionMap::unnormalized(
                Kind::Cross,
                Tokens::from(queries),
                Tokens::from(keys),
                1,
                weights,
            )
            .expect("finite")
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_line_is_wider_than_asked(map in any_map(), width in 0usize..120, colour in colour(),
                                   leave: bool, signed: bool, height in proptest::option::of(0usize..60)) {
        let direction = if leave { Direction::Leave } else { Direction::Reorder };
        let options = TerminalOptions { width, colour, direction, height, title: true, ..Default::default() };
        let mut table = Heatmap::from_map(&map);
        if signed {
            let values = map.weights().iter().zip([1.0f32, -1.0].into_iter().cycle());
            let values = values.map(|(weight, sign)| sign * weight).collect();
            table = Heatmap::table(table.rows().to_vec(), table.columns().to_vec(), values).signed();
        }
        let picture = terminal::heatmap(&table, &options);
        for line in plain(&picture).lines() {
            prop_assert!(line.width() <= width, "{} > {}: {:?}", line.width(), width, line);
        }
    }
}
