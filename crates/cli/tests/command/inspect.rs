//! `regard inspect`: what the heads of saved attention do.

use std::path::Path;

use regard_trace::{AttentionMap, Axis, Image, Kind, Token, Tokens, Trace};
use serde_json::Value;
use tempfile::tempdir;

use crate::{inside, refused, regard, run, snapshot, stderr, stdout, text, trained};

/// Two layers of two heads over `<s> a b a`, and a cross map that leaves a word out.
fn traces() -> Vec<Trace> {
    let tokens: Tokens = std::iter::once(Token::special("<s>"))
        .chain(["a", "b", "a"].map(Token::new))
        .collect();
    let pointing = |at: [usize; 4]| {
        let mut weights = vec![0.02f32; 16];
        for (query, key) in at.into_iter().enumerate() {
            weights[4 * query + key] = 0.94;
        }
        weights
    };
    let layer = |number: usize, heads: [[usize; 4]; 2]| {
        let weights = heads.into_iter().flat_map(pointing).collect();
        AttentionMap::new(
            Kind::EncoderSelf,
            tokens.clone(),
            tokens.clone(),
            2,
            weights,
        )
        .unwrap()
        .at_layer(number)
    };
    let cross = AttentionMap::new(
        Kind::Cross,
        Tokens::from_words("eins zwei"),
        Tokens::from_words("one \u{1b}[2J two"),
        1,
        vec![0.96, 0.02, 0.02, 0.02, 0.02, 0.96],
    );
    let first = Trace::new("toy", "a b a", "eins zwei")
        .with_map(layer(0, [[0; 4], [3, 0, 1, 2]]))
        .with_map(layer(1, [[3, 2, 0, 1], [0, 1, 2, 3]]))
        .with_map(cross.unwrap());
    vec![first, Trace::new("none", "x", "y")]
}

fn written(folder: &Path) -> String {
    let path = folder.join("look.safetensors");
    regard_trace::write(&path, &traces()).unwrap();
    text(&path)
}

#[test]
fn heads_are_told_in_numbers_and_words() {
    let folder = tempdir().unwrap();
    let file = written(folder.path());
    let found = stdout(&run(["inspect", &file, "--all"]).success());
    snapshot("inspect.txt", &found);
    assert!(
        found.contains("layer 1 head 1: 94 % on `<s>`, a sink"),
        "{found}"
    );
    assert!(!found.contains('\u{1b}'), "an escape sequence got through");
    let quiet = stdout(&run(["inspect", &file, "--quiet", "--index", "1"]).success());
    assert!(
        !quiet.contains("entropy") && quiet.contains("a sink"),
        "{quiet}"
    );
    // Each line says which map it is about.
    for part in [
        "encoder.self layer 1 head 1: 94 % on `<s>`, a sink",
        "encoder.self layer 2 head 1: ",
        "decoder.cross layer 1: hardly looked at: ",
    ] {
        assert!(quiet.contains(part), "{part:?} is not in: {quiet}");
    }
}

#[test]
fn what_is_remarkable_comes_first() {
    let folder = tempdir().unwrap();
    let file = written(folder.path());
    let found = stdout(&run(["inspect", &file]).success());
    snapshot("inspect-summary.txt", &found);
    for part in [
        "duplicate-token heads",
        "encoder.self layer 2 head 1: 94 %",
        "encoder.self layer 1 head 1: 94 % on `<s>`",
        "hardly looked at by the decoder: `\\x1b[2J`",
    ] {
        assert!(found.contains(part), "{part} is not in: {found}");
    }
    assert!(!found.contains("entropy"), "{found}");
    refused(["inspect", &file, "--all", "--quiet"], 2, ["--quiet"]);
}

#[test]
fn rollout_and_flow_are_pictures_too() {
    let folder = tempdir().unwrap();
    let file = written(folder.path());
    let (svg, svg_argument) = inside(folder.path(), "rollout.svg");
    let (png, png_argument) = inside(folder.path(), "rollout.png");
    run([
        "inspect",
        &file,
        "--index",
        "1",
        "--rollout",
        "--flow",
        "--svg",
        &svg_argument,
        "--png",
        &png_argument,
    ])
    .success();
    let picture = std::fs::read_to_string(svg).unwrap();
    for title in [
        "rollout over the encoder's 2 layers",
        "flow over the encoder's 2 layers",
    ] {
        assert!(picture.contains(&title.replace('\'', "&#39;")) || picture.contains(title));
    }
    assert!(std::fs::read(png).unwrap().starts_with(b"\x89PNG"));
    refused(
        [
            "inspect",
            &file,
            "--index",
            "2",
            "--rollout",
            "--svg",
            &svg_argument,
        ],
        1,
        ["no self-attention"],
    );
    refused(
        ["inspect", &file, "--svg", &svg_argument],
        2,
        ["--rollout", "regard view"],
    );
}

#[test]
fn a_rollout_over_an_image_is_drawn_by_cell_too() {
    let folder = tempdir().unwrap();
    let cells = Axis::Image {
        prefix: Tokens::default(),
        rows: 2,
        columns: 2,
    };
    let layer = |number| {
        let weights = [0.7, 0.1, 0.1, 0.1].repeat(4);
        let (queries, keys) = (cells.clone(), cells.clone());
        let map = AttentionMap::new(Kind::SelfAttention, queries, keys, 1, weights);
        map.unwrap().at_layer(number)
    };
    let image = Image::new(4, 4, 3, vec![127; 48]).unwrap();
    let trace = Trace::new("vit", "", "cat").with_image(image);
    let trace = trace.with_map(layer(0)).with_map(layer(1));
    let (path, file) = inside(folder.path(), "image.safetensors");
    regard_trace::write(&path, &[trace]).unwrap();
    let drawn = |name: &str, more: &[&str]| {
        let (path, svg) = inside(folder.path(), name);
        let rollout = ["inspect", &file, "--rollout", "--svg", &svg];
        regard().args(rollout).args(more).assert().success();
        std::fs::read_to_string(path).unwrap()
    };
    let smooth = drawn("smooth.svg", &[]);
    assert!(smooth.contains("<image"), "{smooth}");
    assert_ne!(drawn("cells.svg", &["--by-cell"]), smooth);
    let by_cell = ["inspect", &file, "--rollout", "--by-cell"];
    refused(by_cell, 2, ["add one of them"]);
    let words = written(folder.path());
    let (_, svg) = inside(folder.path(), "words.svg");
    let by_cell = [
        "inspect",
        &words,
        "--index=1",
        "--rollout",
        "--by-cell",
        "--svg",
        &svg,
    ];
    refused(by_cell, 2, ["--by-cell is for maps over an image"]);
}

#[test]
fn rollout_and_flow_are_drawn() {
    let folder = tempdir().unwrap();
    let file = written(folder.path());
    let assert = run(["inspect", &file, "--quiet", "--rollout", "--flow"]).success();
    let found = stdout(&assert);
    assert!(
        found.contains("rollout over the encoder's 2 layers")
            && found.contains("flow over the encoder's 2 layers"),
        "{found}"
    );
    let assert = run(["inspect", &file, "--index", "2", "--rollout"]).success();
    assert!(stderr(&assert).contains("no self-attention"));
    assert!(stdout(&assert).contains("looked at nothing"));

    let line = stdout(&run(["inspect", &file, "--index", "1", "--json", "--rollout"]).success());
    let value: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["index"], 1);
    assert_eq!(value["maps"][0]["heads"].as_array().unwrap().len(), 2);
    assert_eq!(
        value["maps"][0]["report"][0],
        "layer 1 head 1: 94 % on `<s>`, a sink"
    );
    assert_eq!(value["maps"][2]["uncovered"], serde_json::json!([1]));
    let mean: f64 = value["stacks"][0]["mean"]
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .sum();
    assert!((mean - 1.0).abs() < 1e-5);
}

#[test]
fn a_translation_can_be_inspected() {
    let folder = tempdir().unwrap();
    let (_, trace) = inside(folder.path(), "look.safetensors");
    run(["translate", "-m", trained(), "--trace", &trace, "a b c d"]).success();
    let found = stdout(&run(["inspect", &trace]).success());
    assert!(found.contains("1 head in 1 map: decoder.cross"), "{found}");
    let found = stdout(&run(["inspect", &trace, "--all"]).success());
    assert!(found.contains("decoder.cross: layer 1, 1 head"), "{found}");
    assert!(found.contains("layer 1 head 1: "), "{found}");
}

/// In a decoder's self-attention the queries are the tokens that it reads, not those that it writes.
#[test]
fn a_decoder_is_seen_at_what_it_reads() {
    let folder = tempdir().unwrap();
    let (path, trace) = inside(folder.path(), "look.safetensors");
    run(["translate", "--trace", &trace, "Two dogs play in the snow."]).success();
    let traces = regard_trace::read(&path).unwrap();
    let maps = traces[0].maps.iter();
    let decoders: Vec<&AttentionMap> = maps.filter(|map| map.kind() == Kind::DecoderSelf).collect();
    assert_eq!(decoders.len(), 4);
    for map in decoders {
        assert_eq!(map.queries(), map.keys());
        let (read, written) = (map.queries().labels(), map.predictions().unwrap().labels());
        assert_eq!(read[0], "<s>");
        assert_eq!(read[1..], written[..written.len() - 1]);
        assert_eq!(written.last().unwrap(), "</s>");
    }
}

#[test]
fn what_cannot_be_inspected_is_refused() {
    let folder = tempdir().unwrap();
    let file = written(folder.path());
    refused(
        ["inspect", &file, "--index", "3"],
        1,
        ["no entry 3", "it has 2"],
    );
    refused(["inspect", &file, "--index", "0"], 1, ["no entry 0"]);
    let (_, none) = inside(folder.path(), "none");
    refused(["inspect", &none], 1, [&none]);
    refused(["inspect"], 2, ["TRACE"]);
    refused(
        ["inspect", &file, "--subwords"],
        2,
        ["--subwords", "--words"],
    );
    // What a command writes that was given no text.
    let (path, empty) = inside(folder.path(), "empty.safetensors");
    regard_trace::write(&path, &[]).unwrap();
    let (_, html) = inside(folder.path(), "empty.html");
    refused(["inspect", &empty], 1, [&empty, "the trace is empty"]);
    refused(["view", &empty], 1, [&empty, "the trace is empty"]);
    refused(["view", &empty, "--html", &html], 1, ["the trace is empty"]);
}
