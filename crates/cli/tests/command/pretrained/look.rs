//! `look` and `--attention`: what decoders and encoders look at, and maps of long texts.

use std::{
    fs,
    process::{Command, Stdio},
};

use serde_json::Value;

use super::model;
use crate::{expect_long_as_looked, refused, regard, stderr, stdout, text};

#[test]
fn what_a_model_looks_at_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    for case in ["gpt2", "bert", "gemma3"] {
        let model = model(case, folder.path());
        let trace = folder.path().join(format!("{case}.safetensors"));
        let page = folder.path().join(format!("{case}.html"));
        let files = ["--trace", &text(&trace), "--html", &text(&page)];
        let arguments = ["look", "--model", &model, "w1 w2 w3 w4 w5"];
        let done = regard().args(arguments).args(files).assert().success();
        assert!(stdout(&done).contains("layer"), "{}", stdout(&done));
        let seen = regard().args(["inspect", &text(&trace)]).assert().success();
        assert!(stdout(&seen).contains("w1 w2 w3 w4 w5"));
        assert!(fs::read_to_string(page).unwrap().contains("w5"));
        let one = ["--layer", "2", "--head", "1", "--query", "last", "--json"];
        let done = regard().args(arguments).args(one).assert().success();
        let line: Value = serde_json::from_str(&stdout(&done)).unwrap();
        assert_eq!(
            (line["layer"].as_u64(), line["head"].as_u64()),
            (Some(1), Some(0))
        );
        let weights = line["weights"][0][0].as_array().unwrap();
        let sum: f64 = weights.iter().map(|weight| weight.as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{case}: {sum}");
    }
}

#[test]
fn what_was_looked_at_stands_beside_texts() {
    let folder = tempfile::tempdir().unwrap();
    for (case, command, text) in [
        ("bert", "fill", "w1 [MASK] w3"),
        ("gpt2", "generate", "w1 w2"),
    ] {
        let model = model(case, folder.path());
        let command = [command, "--model", &model, "--attention", text];
        let shown = stdout(&regard().args(command).assert().success());
        assert!(shown.contains("w1") && shown.contains("rows"), "{shown}");
        let done = regard().args(command).arg("--json").assert().success();
        let line: Value = serde_json::from_str(&stdout(&done)).unwrap();
        let map = &line["maps"][0];
        let (queries, rows) = (map["queries"].as_array(), map["weights"][0].as_array());
        assert_eq!(queries.unwrap().len(), rows.unwrap().len());
    }
}

/// Queries and keys of a long text give the weights that a look gives, to the rounding of half precision.
#[test]
fn long_texts_are_looked_at_by_their_queries_and_keys() {
    let folder = tempfile::tempdir().unwrap();
    let words: Vec<String> = (0..24).map(|i| format!("w{}", i * 7 % 19)).collect();
    let book = text(&folder.path().join("book.txt"));
    let kept = text(&folder.path().join("book.safetensors"));
    for (case, words, more) in [
        ("bert", &words[..12], &[][..]),
        ("llama", &words, &[]),
        ("mistral", &words, &[]),
        ("gemma2", &words, &[]),
        ("longformer", &words[..18], &[]),
        ("longformer-classes", &words[..18], &[]),
        ("t5", &words, &["--target", "w3 w1 w4 w1 w5 w9 w2"]),
        ("bart", &words, &["--target", "w3 w1 w4"]),
        ("marian", &words, &["--target", "w2 w7"]),
        ("gpt2", &words, &[]),
    ] {
        let model = model(case, folder.path());
        expect_long_as_looked(folder.path(), &model, &words.join(" "), more);
    }
    let arguments = ["--long", &book, "--trace", &kept, "--quiet"];
    let t5 = text(&folder.path().join("t5"));
    let look = ["look", "--model", &t5, "--map", "cross", "--layer", "2"];
    regard().args(look).args(arguments).assert().success();
    let shown = stdout(&regard().args(["view", &kept]).assert().success());
    assert!(
        shown.contains("decoder.cross, layer 2: heads 1, 2"),
        "{shown}"
    );
    let drawn = folder.path().join("cross.svg");
    let part = ["--head", "2", "--queries", "1-1", "--keys", "3-9"];
    let view = ["view", &kept, "--svg", &text(&drawn)];
    regard().args(view).args(part).assert().success();
    let drawn = fs::read_to_string(drawn).unwrap();
    assert!(drawn.contains("decoder.cross layer 2 head 2"), "{drawn}");
    refused(
        ["look", "--model", &t5, "--long", &book, "--map", "self"],
        2,
        ["encoder.self, decoder.self, decoder.cross"],
    );
    fs::write(&book, words.join(" ")).unwrap();
    // One head of one layer, drawn at once, and a part of it later.
    let model = text(&folder.path().join("gpt2"));
    let png = text(&folder.path().join("head.png"));
    let one = ["--layer", "2", "--head", "3", "--png", &png];
    let long = ["look", "--model", &model, "--long", &book, "--trace", &kept];
    regard().args(long).args(one).assert().success();
    assert!(fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    let shown = stdout(&regard().args(["view", &kept]).assert().success());
    assert!(shown.contains("layer 2: heads 3"), "{shown}");
    let svg = text(&folder.path().join("part.svg"));
    let part = ["--queries", "5-8", "--keys", "1-24", "--svg", &svg];
    regard().args(["view", &kept]).args(part).assert().success();
    assert!(fs::read_to_string(&svg).unwrap().contains(">5 w"));
    // Nobody needs to read what is told of the file.
    let drawn = folder.path().join("unread.svg");
    let mut child = Command::new(env!("CARGO_BIN_EXE_regard"))
        .args(long)
        .args(one)
        .args(["--svg", &text(&drawn)])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    assert!(child.wait().unwrap().success() && drawn.is_file());
    for (arguments, code, told) in [
        (
            &["view", &kept, "--svg", &svg, "--head", "1"][..],
            2,
            "layer 2: heads 3",
        ),
        (
            &["view", &kept, "--svg", &svg, "--queries", "5-99"],
            2,
            "24 tokens",
        ),
        (
            &["view", &kept, "--svg", &svg, "--queries", "9-5"],
            2,
            "two positions",
        ),
        (&["view", &kept, "--terminal"], 2, "--png"),
        (&["inspect", &kept], 1, "long text"),
        (
            &["look", "--model", &model, "--long", "none.txt"],
            1,
            "none.txt",
        ),
        (
            &["look", "--model", &model, "--long", &book, "w1"],
            2,
            "cannot be used with",
        ),
        (&["look", "--model", &model], 2, "TEXT"),
    ] {
        let done = regard().args(arguments).assert().code(code);
        assert!(
            stderr(&done).contains(told),
            "{arguments:?}: {}",
            stderr(&done)
        );
    }
}
