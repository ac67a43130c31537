//! Views and tables that become files, and files of traces that are opened.

use regard_serve::{Config, Opened};
use regard_trace::{AttentionMap, Axis, Image, Kind, Tokens, Trace, from_bytes, to_bytes};

use crate::common::{Numbers, Server, caption, opened, translation};
use crate::server;

#[test]
fn views_become_files() {
    let server = server();
    for (trace, view) in [
        (0, "overview"),
        (0, "head&map=5&heads=1"),
        (0, "text&map=5&chosen=1,2"),
        (0, "text&map=5&chosen=0&direction=to"),
        (1, "image&map=1&chosen=2,3"),
        (1, "image&map=0"),
        (0, "compare&map=0&trace2=0&map2=3"),
        (2, "head"),
        (2, "text&chosen=0"),
        (2, "overview"),
    ] {
        for (format, start) in [
            ("svg", "<svg"),
            ("png", "\u{fffd}PNG"),
            ("html", "<!DOCTYPE html>"),
        ] {
            let answer = server.get(&format!(
                "/api/trace/{trace}/picture?view={view}&format={format}"
            ));
            assert_eq!(answer.status, 200, "{view} {format}: {}", answer.text());
            assert!(answer.text().starts_with(start), "{view} {format}");
            assert!(
                answer
                    .header("content-disposition")
                    .unwrap()
                    .starts_with("attachment")
            );
            if format != "png" {
                assert!(
                    !answer.text().contains("<script>window") && !answer.text().contains("<img"),
                    "{view} {format}"
                );
            }
        }
    }
}

/// Weights over an image are saved as they are shown: by cell or smooth, or not at all, in colours from 0 on whatever is chosen.
#[test]
fn pictures_over_an_image_are_those_that_are_shown() {
    let cells = Axis::Image {
        prefix: Tokens::default(),
        rows: 2,
        columns: 2,
    };
    let weights = [0.24, 0.25, 0.26, 0.25].repeat(2);
    let word = Tokens::from_words("a");
    let map = AttentionMap::new(Kind::Cross, word.clone(), cells.clone(), 2, weights).unwrap();
    let factors = AttentionMap::unnormalized(Kind::Cross, word, cells, 1, vec![0.6, 0.7, 0.8, 0.9]);
    let image = Image::new(600, 600, 1, vec![9; 360_000]).unwrap();
    let trace = Trace::new("m", "", "").with_image(image).with_map(map);
    let trace = trace.with_map(factors.unwrap());
    let server = Server::start(Config::default(), vec![opened("image", trace)], None);
    let saved = |asked: &str| {
        let answer = server.get(&format!("/api/trace/0/picture?view=image{asked}"));
        assert_eq!(answer.status, 200, "{asked}: {}", answer.text());
        answer.text()
    };
    for chosen in ["", "&chosen=0", "&chosen=0&by=max", "&by=max"] {
        let svg = saved(chosen);
        assert!(
            svg.contains(">0.00</text>") && svg.contains(">0.26</text>"),
            "{chosen}: {svg}"
        );
    }
    let [smooth, cells, none] =
        ["smooth", "cells", "none"].map(|overlay| saved(&format!("&overlay={overlay}")));
    let is_crisp = |svg: &str| svg.contains("image-rendering: pixelated");
    assert!(!is_crisp(&smooth) && is_crisp(&cells));
    assert_eq!(smooth, saved(""));
    assert_eq!(none.matches("<image").count(), 1, "{none}");
    assert!(smooth.matches("<image").count() == 2 && !none.contains(">0.26</text>"));
    let refused = server.get("/api/trace/0/picture?view=image&overlay=rough");
    assert_eq!(refused.status, 400);
    // So are those that are a page, and weights that are no shares.
    for (overlay, chosen) in [("cells", "0"), ("none", ""), ("smooth", "0")] {
        let page = saved(&format!("&format=html&overlay={overlay}&chosen={chosen}"));
        let address =
            format!(r#""address":"view=image&chosen={chosen}&overlay={overlay}&words=0""#);
        assert!(page.contains(&address), "{address}");
    }
    let factors = saved("&map=1");
    assert!(
        factors.contains(">0.00</text>") && factors.contains(">0.90</text>"),
        "{factors}"
    );
}

/// A page merges pieces into words by itself, unless it is of the pieces.
#[test]
fn a_page_of_pieces_shows_pieces() {
    let server = server();
    for (asked, words) in [("", 0), ("&words=true", 1)] {
        let page = server
            .get(&format!(
                "/api/trace/0/picture?view=head&map=5&format=html{asked}"
            ))
            .text();
        let address = format!(r#""address":"view=head&words={words}""#);
        assert!(page.contains(&address), "{address}");
    }
}

#[test]
fn a_zoomed_map_becomes_a_file_of_what_is_shown() {
    let server = server();
    let path = "/api/trace/0/picture?map=5&heads=1&q0=2&q1=5&k0=3&k1=7";
    let svg = server.get(path).text();
    assert_eq!(svg.matches("<title>").count(), 3 * 4 + 1, "{svg}");
    assert!(svg.contains(">shirt<") && !svg.contains(">man<"));
    assert_eq!(server.get(&format!("{path}&format=html")).status, 200);
}

/// A window is the same part of both maps.
#[test]
fn a_zoomed_comparison_is_of_one_part() {
    let path = "/api/trace/0/picture?view=compare&map=0&trace2=0&map2=0&q0=2&q1=5&k0=3&k1=7&heads=1&heads2=1";
    let svg = server().get(path).text();
    let cells = svg.split("<title>").filter_map(|part| {
        let (cell, _) = part.split_once("</title>")?;
        cell.contains(" → ").then_some(cell)
    });
    let cells: Vec<&str> = cells.collect();
    assert_eq!(cells.len(), 3 * 12, "{svg}");
    assert_eq!(cells[..12], cells[12..24]);
    assert!(cells[24..].iter().all(|cell| cell.ends_with(": 0.00")));
}

#[test]
fn a_table_of_the_page_becomes_a_file() {
    let server = server();
    let file = |body: &str| server.ask("POST", "/api/table", &[], body.as_bytes());
    let table = |format: &str| {
        format!(
            r#"{{"title":"<b>","rows":["a","b"],"columns":["c"],"values":[0.25,0],"format":"{format}"}}"#
        )
    };
    for (format, start) in [
        ("svg", "<svg"),
        ("png", "\u{fffd}PNG"),
        ("html", "<!DOCTYPE html>"),
    ] {
        let answer = file(&table(format));
        assert!(answer.text().starts_with(start), "{}", answer.text());
        assert!(!answer.text().contains("<b>"));
    }
    let wrong = file(r#"{"title":"","rows":["a"],"columns":[],"values":[1],"format":"svg"}"#);
    assert_eq!(wrong.status, 400);
    assert!(
        wrong.text().contains("1 values for 1 rows and 0 columns"),
        "{}",
        wrong.text()
    );
    assert_eq!(file("{}").status, 400);
    // Neither many names without numbers nor a long one beside many make a large file.
    let columns = |count: usize| vec![r#""c""#; count].join(",");
    let wide = format!(
        r#"{{"title":"","rows":[],"columns":[{}],"values":[],"format":"svg"}}"#,
        columns(2000)
    );
    let refused = file(&wide);
    assert_eq!(refused.status, 400);
    assert!(
        refused.text().contains("at most 1024"),
        "{}",
        refused.text()
    );
    let long = format!(
        r#"{{"title":"","rows":["{}"],"columns":[{}],"values":[{}],"format":"svg"}}"#,
        "x".repeat(100_000),
        columns(1000),
        vec!["0.5"; 1000].join(",")
    );
    let drawn = file(&long);
    assert_eq!(drawn.status, 200);
    assert!(drawn.text().len() < 1_000_000, "{}", drawn.text().len());
}

#[test]
fn a_file_of_traces_is_opened_under_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("look.safetensors");
    regard_trace::write(&path, &[translation(1), caption()]).unwrap();
    let names: Vec<String> = Opened::read(&path)
        .unwrap()
        .into_iter()
        .map(|one| one.name)
        .collect();
    assert_eq!(names, ["look.safetensors 1", "look.safetensors 2"]);
    assert!(Opened::read(folder.path().join("none")).is_err());
}

/// A copy of a file with bits turned, cut short, or with numbers of its header replaced by extreme ones.
fn mutated(file: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    const EXTREMES: [&str; 8] = [
        "0",
        "1",
        "2",
        "5",
        "65536",
        "4294967296",
        "18446744073709551615",
        "-1",
    ];
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    match numbers.below(8) {
        0 => return file[..numbers.below(file.len())].to_vec(),
        1..=3 => {
            let mut file = file.to_vec();
            for _ in 0..1 + numbers.below(4) {
                let at = numbers.below(file.len());
                file[at] ^= 1 << numbers.below(8);
            }
            return file;
        }
        _ => {}
    }
    let mut header = String::from_utf8(file[8..8 + length].to_vec()).unwrap();
    let digit = |header: &str, at: usize| header.as_bytes()[at].is_ascii_digit();
    let starts: Vec<usize> = (1..header.len())
        .filter(|&at| digit(&header, at) && !digit(&header, at - 1))
        .collect();
    let start = starts[numbers.below(starts.len())];
    let end = start
        + header[start..]
            .bytes()
            .take_while(u8::is_ascii_digit)
            .count();
    header.replace_range(start..end, EXTREMES[numbers.below(EXTREMES.len())]);
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        &file[8 + length..],
    ]
    .concat()
}

#[test]
fn mutated_traces_are_shown_or_refused() {
    let small = translation(1);
    let cut = Trace {
        maps: small.maps[2..4].to_vec(),
        ..small
    };
    let file = to_bytes(&[cut, caption()]).unwrap();
    let mut numbers = Numbers(7);
    let mut traces = vec![];
    let mut refused = 0;
    for _ in 0..1000 {
        match from_bytes(&mutated(&file, &mut numbers)) {
            Ok(read) => traces.extend(read.into_iter().map(|trace| opened("mutated", trace))),
            Err(_) => refused += 1,
        }
    }
    assert!(
        refused > 100 && traces.len() > 100,
        "{refused} {}",
        traces.len()
    );
    let count = traces.len();
    let server = Server::start(Config::default(), traces, None);
    assert_eq!(server.get("/api/traces").status, 200);
    let parts = [
        "overview?words=true",
        "axes?map=1",
        "window?map=1&words=true",
        "sums?map=0&chosen=0",
        "image",
        "picture?view=head",
        "picture?view=image&format=html",
        "rollout?words=true",
        "flow?map=1",
        "query?map=0&head=0&query=0",
        "generation",
    ];
    for id in 0..count {
        // Every view of some, and one view of each.
        let views = if id % 40 == 0 {
            &parts[..]
        } else {
            std::slice::from_ref(&parts[id % parts.len()])
        };
        for part in views {
            let status = server.get(&format!("/api/trace/{id}/{part}")).status;
            assert!([200, 400, 404].contains(&status), "{id} {part}: {status}");
        }
    }
}
