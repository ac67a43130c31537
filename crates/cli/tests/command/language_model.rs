//! Language models that `regard train` made: they write, show what they look at, are scored, and fill in masks.

use std::{fs, path::Path};

use serde_json::Value;
use tempfile::tempdir;

use crate::{expect_long_as_looked, inside, refused, regard, stdout};

/// Trains a model on a text in which every letter follows from the one before it; gives the run folder.
fn trained(folder: &Path, name: &str, model: &str, more: &[&str]) -> String {
    let (path, text) = inside(folder, "alphabet.txt");
    let line = |i: u8| {
        (0..26)
            .map(|j| char::from(b'a' + (i + j) % 26))
            .collect::<String>()
    };
    let lines: String = (0..80).map(|i| line(i % 26) + "\n").collect();
    fs::write(path, lines).unwrap();
    let (path, recipe) = inside(folder, &format!("{name}.toml"));
    fs::write(
        path,
        format!(
            r#"
            [model]
            {model}
            [data.text]
            train = {text:?}
            [batch]
            sentences = 8
            [schedule]
            learning_rate = 0.01
            [training]
            steps = 200
            "#
        ),
    )
    .unwrap();
    let (_, run) = inside(folder, name);
    let arguments = ["train", &recipe, "--folder", &run, "--quiet"];
    let sets = more.iter().flat_map(|set| ["--set", set]);
    regard().args(arguments).args(sets).assert().success();
    run
}

const TRANSFORMER: &str = "kind = \"transformer-lm\"\ncontext = 24\n[model.transformer]\nd_model = 16\nlayers = 2\nheads = 2";
const LSTMN: &str =
    "kind = \"lstmn-lm\"\ncontext = 24\nembedding = 12\nhidden = 16\nattention_dimension = 8";
const LSTM: &str = "kind = \"lstm-lm\"\ncontext = 24\nembedding = 12\nhidden = 16";

#[test]
fn trained_models_write_look_and_are_scored() {
    let folder = tempdir().unwrap();
    let with = |positions: &str| format!("{TRANSFORMER}\npositions = {positions:?}");
    let (alibi, buckets) = (with("alibi"), with("buckets"));
    for (name, model, maps) in [
        ("transformer", TRANSFORMER, Some(2)),
        ("alibi", &alibi, Some(2)),
        ("buckets", &buckets, Some(2)),
        ("lstmn", LSTMN, Some(1)),
        ("lstm", LSTM, None),
    ] {
        let run = trained(folder.path(), name, model, &["data.text.units=characters"]);
        let write = |more: &[&str]| {
            let arguments = ["generate", "--model", &run, "--quiet"];
            let length: &[&str] = match more.contains(&"--max-tokens") {
                true => &[],
                false => &["--max-tokens", "8"],
            };
            let command = [&arguments, more, length].concat();
            stdout(&regard().args(command).assert().success())
        };
        assert_eq!(
            write(&["--temperature", "0", "abc"]),
            "abcdefghijk\n",
            "{name}"
        );
        assert_eq!(write(&["--beam", "3", "hij"]), "hijklmnopqr\n", "{name}");
        let both = write(&["--temperature", "0", "abc", "mn"]);
        assert_eq!(both, "abcdefghijk\nmnopqrstuv\n", "{name}");
        // Beyond the context; a line's end is no letter, and what follows it is out of sight.
        let far = write(&["--temperature", "0", "--slide", "--max-tokens", "60", "abc"]);
        assert!(
            far.len() > 60 && far.starts_with("abcdefghijk"),
            "{name} {far}"
        );
        let drawn = ["--seed", "3", "--top-p", "1", "abc"];
        assert_eq!(write(&drawn), write(&drawn), "{name}");

        let text = folder.path().join("alphabet.txt");
        let score = [
            "evaluate",
            "--model",
            &run,
            "--text",
            text.to_str().unwrap(),
            "--json",
        ];
        refused(
            ["evaluate", "--model", &run, "--split", "valid"],
            2,
            ["a language model is scored on a text", "--text FILE"],
        );
        if name == "transformer" {
            refused(
                [
                    "evaluate",
                    "--model",
                    &run,
                    "--text",
                    text.to_str().unwrap(),
                    "--context",
                    "25",
                ],
                2,
                ["--context 25", "at most 24 tokens", "leave it out"],
            );
        }
        let context = ["--context", "24", "--stride", "12"];
        let done = regard().args(score).args(context).assert().success();
        let line: Value = serde_json::from_str(&stdout(&done)).unwrap();
        assert!(line["perplexity"].as_f64().unwrap() < 2.5, "{name} {line}");

        if ["transformer", "alibi", "buckets"].contains(&name) {
            expect_long_as_looked(folder.path(), &run, "abcdefghijklmnop", &[]);
        }
        let look = ["look", "--model", &run, "abcd", "--json"];
        let done = regard().args(look).assert();
        match maps {
            Some(maps) => {
                let lines = stdout(&done.success());
                assert_eq!(lines.lines().count(), maps, "{name}");
                let map: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
                let last = &map["weights"][0][3];
                let sum: f64 = last
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|x| x.as_f64().unwrap())
                    .sum();
                assert!((sum - 1.0).abs() < 1e-5, "{name} {map}");
                let one = ["--layer", "1", "--head", "1", "--query", "last"];
                let done = regard().args(look).args(one).assert().success();
                let one: Value = serde_json::from_str(stdout(&done).trim()).unwrap();
                assert_eq!(&one["weights"][0][0], last, "{name}");
            }
            None => refused(
                ["look", "--model", &run, "abcd"],
                1,
                ["a model that attends"],
            ),
        }
        refused(
            ["look", "--model", &run, "abcd", "--layer", "9"],
            if ["transformer", "alibi", "buckets"].contains(&name) {
                2
            } else {
                1
            },
            ["layer"],
        );
        let (path, binary) = inside(folder.path(), "binary");
        fs::write(path, b"ab\nc\xff").unwrap();
        let score = ["evaluate", "--model", &run, "--text", &binary];
        refused(score, 1, ["not valid UTF-8: line 2, byte offset 4"]);
        refused(
            ["generate", "--model", &run, "--stop", "", "a"],
            2,
            ["--stop"],
        );
        let slide = ["generate", "--model", &run, "--slide", "--attention", "a"];
        refused(slide, 2, ["--slide"]);
        if !["transformer", "alibi", "buckets"].contains(&name) {
            let cached = ["generate", "--model", &run, "--cache", "bf16", "a"];
            refused(cached, 2, ["--cache", "leave it out"]);
        }
        if name == "lstmn" {
            // All weights are computed, whichever of them are wanted.
            let long = "abcd".repeat(4000);
            for arguments in [
                ["look", "--model", &run, "--query=last", &long],
                ["generate", "--model", &run, "--attention", &long],
            ] {
                refused(arguments, 1, ["weights were asked for", "a shorter text"]);
            }
        }
        if maps.is_none() {
            let draw = ["generate", "--model", &run, "--attention", "a"];
            refused(draw, 1, ["a model that attends"]);
        }
        let about = stdout(&regard().args(["model", &run]).assert().success());
        let told = "the next token, trained on parts of a file of 24";
        assert!(about.contains(told), "{about}");
        let done = regard().args(["model", &run, "--json"]).assert().success();
        let about: Value = serde_json::from_str(&stdout(&done)).unwrap();
        assert_eq!(about["texts"]["context"], 24);
        refused(
            ["fill", "--model", &run, "a"],
            1,
            ["read a text as a whole"],
        );
        refused(
            ["generate", "--model", &run, "--weights", "int8", "a"],
            2,
            ["--weights"],
        );
        refused(
            ["generate", "--model", &run, "--chat", "a"],
            1,
            ["the folder of a pretrained model"],
        );
    }
}

#[test]
fn a_masked_model_fills_and_looks() {
    let folder = tempdir().unwrap();
    let model = format!("objective = \"masked\"\n{TRANSFORMER}");
    let more = [
        "data.text.texts=lines",
        "data.vocabulary.size=280",
        "training.steps=20",
    ];
    let run = trained(folder.path(), "masked", &model, &more);
    let done = regard()
        .args(["fill", "--model", &run, "--json", "ab<mask>d"])
        .assert()
        .success();
    let line: Value = serde_json::from_str(stdout(&done).trim()).unwrap();
    assert_eq!(
        line["places"][0]["tokens"].as_array().unwrap().len(),
        5,
        "{line}"
    );
    let done = regard()
        .args(["look", "--model", &run, "--json", "abcd"])
        .assert()
        .success();
    let map = stdout(&done);
    let map: Value = serde_json::from_str(map.lines().next().unwrap()).unwrap();
    let keys = map["keys"].as_array().unwrap();
    assert!(keys[0] == "<s>" && keys[keys.len() - 1] == "</s>", "{map}");
    let done = regard()
        .args(["embed", "--model", &run, "abcd"])
        .assert()
        .success();
    let line: Value = serde_json::from_str(stdout(&done).trim()).unwrap();
    assert_eq!(line["vector"].as_array().unwrap().len(), 16);
    refused(
        ["generate", "--model", &run, "ab"],
        1,
        ["write text from left to right"],
    );
    refused(
        ["translate", "--model", &run, "ab"],
        1,
        ["holds a language model"],
    );
}

/// Lines are scored as validation scores them, whatever stands before them.
#[test]
fn a_model_of_lines_is_scored_line_by_line() {
    let folder = tempdir().unwrap();
    let text = folder.path().join("alphabet.txt");
    let valid = format!("data.text.valid={}", text.display());
    let more = [
        "data.text.texts=lines",
        "data.text.units=bytes",
        "model.context=32",
        &valid,
    ];
    let run = trained(folder.path(), "lines", LSTM, &more);
    let log = fs::read_to_string(Path::new(&run).join("metrics.jsonl")).unwrap();
    let last = log
        .lines()
        .rfind(|line| line.contains("\"validation\""))
        .unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    let score = [
        "evaluate",
        "--model",
        &run,
        "--text",
        text.to_str().unwrap(),
        "--json",
    ];
    let done = regard().args(score).assert().success();
    let line: Value = serde_json::from_str(&stdout(&done)).unwrap();
    for (key, validated) in [("loss", "loss"), ("bits_per_byte", "bits_per_byte")] {
        let (found, expected) = (
            line[key].as_f64().unwrap(),
            last[validated].as_f64().unwrap(),
        );
        assert!((found - expected).abs() < 1e-4, "{key}: {found} {expected}");
    }
}
