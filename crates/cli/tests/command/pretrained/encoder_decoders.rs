//! `translate` and `look` with T5, BART and Marian: translations, lengths, what is looked at, and what is not obeyed.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::model;
use crate::{regard, stderr, stdout, text};

#[test]
fn encoder_decoders_translate() {
    let folder = tempfile::tempdir().unwrap();
    for case in ["t5", "bart", "marian"] {
        let model = model(case, folder.path());
        let translate = |more: &[&str]| {
            let arguments = ["translate", "--model", &model, "--max-length", "12"];
            let done = regard().args(arguments).args(more).assert().success();
            (stdout(&done), stderr(&done))
        };
        let lines = ["w1 w2 w3 w4", "w5", "", "w6 w7"];
        let (all, told) = translate(&lines);
        assert!(
            all.lines().count() == 4 && all.lines().nth(2) == Some(""),
            "{case}: {all}"
        );
        assert!(told.contains("--max-length"), "{told}");
        for (line, expected) in lines.iter().zip(all.lines()) {
            assert_eq!(
                translate(&[line, "--quiet"]).0.trim_end(),
                expected,
                "{case}"
            );
        }
        assert_eq!(
            translate(&[&lines[..], &["--threads", "1", "--batch-sentences", "1"]].concat()).0,
            all
        );
        // The prefix is read.
        let (prefixed, _) = translate(&["--prefix", "w1 w2 ", "w3 w4"]);
        assert_eq!(prefixed.lines().next(), all.lines().next(), "{case}");
        for weights in ["bf16", "f16", "int8"] {
            let arguments = ["--weights", weights, "w1 w2 w3 w4"];
            assert!(!translate(&arguments).0.is_empty(), "{case} {weights}");
        }
        let (best, _) = translate(&["--beam", "3", "--n-best", "3", "w1 w2"]);
        assert_eq!(
            best.lines().filter(|line| line.contains(" ||| ")).count(),
            3,
            "{best}"
        );
        let [trace, page, figure] =
            ["trace", "html", "svg"].map(|end| text(&folder.path().join(format!("{case}.{end}"))));
        let files = ["--trace", &trace, "--html", &page, "--svg", &figure];
        let looks = ["--attention", "always", "--json", "--subwords", "w1 w2 w3"];
        let (line, _) = translate(&[&files[..], &looks].concat());
        let line: Value = serde_json::from_str(&line).unwrap();
        let map = &line["translations"][0]["attention"];
        assert_eq!(map["source"], json!(["w1", "w2", "w3", "</s>"]), "{case}");
        let written = line["translations"][0]["text"].as_str().unwrap();
        let rows = map["weights"].as_array().unwrap();
        assert!(rows.len() >= written.split_whitespace().count());
        for row in rows {
            let sum: f64 = row
                .as_array()
                .unwrap()
                .iter()
                .map(|x| x.as_f64().unwrap())
                .sum();
            assert!((sum - 1.0).abs() < 1e-5, "{case}: {sum}");
        }
        let seen = regard().args(["inspect", &trace]).assert().success();
        let seen = stdout(&seen);
        assert!(
            seen.contains("decoder.cross") && seen.contains("encoder.self"),
            "{seen}"
        );
        assert!(fs::read_to_string(page).unwrap().contains("w3"));
        assert!(fs::read_to_string(figure).unwrap().contains("w3"));
    }
}

/// Where the folder or the command line states a length, that of the source does not limit it.
#[test]
fn a_stated_length_holds_for_every_source() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("t5", folder.path());
    let settings = json!({"max_new_tokens": 30, "min_new_tokens": 60, "bad_words_ids": [[0], [2]], "do_sample": true});
    let path = Path::new(&model).join("generation_config.json");
    fs::write(path, settings.to_string()).unwrap();
    let written = |more: &[&str]| {
        let arguments = ["translate", "--model", &model, "w1 w2"];
        let done = regard().args(arguments).args(more).assert().success();
        (stdout(&done).split_whitespace().count(), stderr(&done))
    };
    let (words, told) = written(&[]);
    assert_eq!(words, 30);
    assert!(told.contains("do_sample"), "{told}");
    assert_eq!(written(&["--max-length", "45"]).0, 45);
    assert_eq!(written(&["--max-length", "12"]).0, 12);
}

#[test]
fn what_an_encoder_decoder_looks_at_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    for case in ["t5", "bart", "marian"] {
        let model = model(case, folder.path());
        let look = |more: &[&str]| {
            let arguments = ["look", "--model", &model, "w1 w2 w3 w4"];
            let done = regard().args(arguments).args(more).assert().success();
            stdout(&done)
        };
        let told = look(&["--target", "w5 w6"]);
        assert!(
            told.contains("decoder.cross") && told.contains("w6"),
            "{told}"
        );
        // Row by row, the weights of the target are those of the same target written out.
        let lines = look(&["--target", "w5 w6", "--json"]);
        let maps: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(maps.len(), 6, "{case}");
        for kind in ["cross", "decoder", "encoder"] {
            let part = look(&[
                "--target", "w5 w6", "--json", "--map", kind, "--layer", "2", "--head", "2",
                "--query", "2",
            ]);
            let part: Value = serde_json::from_str(&part).unwrap();
            let whole = maps
                .iter()
                .find(|map| map["map"] == part["map"] && map["layer"] == 1);
            assert!(part["map"].as_str().unwrap().contains(kind), "{part}");
            assert_eq!(
                part["weights"][0][0],
                whole.unwrap()["weights"][1][1],
                "{case} {kind}"
            );
        }
        // Without a target, what the model writes.
        let translate = ["translate", "--model", &model, "--quiet", "w1 w2 w3 w4"];
        let usual = stdout(&regard().args(translate).assert().success());
        let own = look(&["--json", "--map", "cross", "--layer", "1"]);
        let own: Value = serde_json::from_str(&own).unwrap();
        let rows: Vec<&str> = own["queries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row.as_str().unwrap())
            .collect();
        let words: Vec<&str> = usual.split_whitespace().collect();
        assert_eq!(rows[..words.len()], words, "{case}");
    }
}

/// What is not obeyed matters where a text is searched for, not where it is given.
#[test]
fn a_search_says_what_it_does_not_obey() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("marian", folder.path());
    let generation = Path::new(&model).join("generation_config.json");
    fs::write(generation, json!({"do_sample": true}).to_string()).unwrap();
    for (command, more, warned) in [
        ("translate", [].as_slice(), true),
        ("translate", &["--quiet"], false),
        ("look", &[], true),
        ("look", &["--target", "w2 w7"], false),
        ("look", &["--quiet"], false),
    ] {
        let mut regard = regard();
        regard.args([command, "--model", &model, "w1 w2"]);
        let told = stderr(&regard.args(more).assert().success());
        let found = told.contains("do_sample of its files are not obeyed");
        assert_eq!(found, warned, "{command} {more:?}: {told}");
    }
    let model = self::model("gpt2", folder.path());
    let generation = Path::new(&model).join("generation_config.json");
    fs::write(generation, json!({"typical_p": 0.9}).to_string()).unwrap();
    let mut regard = regard();
    regard.args(["generate", "--model", &model, "w1 w2", "--max-tokens", "2"]);
    let told = stderr(&regard.assert().success());
    assert!(
        told.contains("typical_p of its files are not obeyed"),
        "{told}"
    );
}

/// A tokenizer may have a few tokens more than its model has embeddings, as that of facebook/bart-large-cnn has.
#[test]
fn tokens_without_an_embedding_are_told_and_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("bart", folder.path());
    let path = Path::new(&model).join("tokenizer.json");
    let mut file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    file["model"]["vocab"]["<mask>"] = json!(53);
    fs::write(path, file.to_string()).unwrap();
    let told = |text: &str, more: &[&str], code| {
        let arguments = ["translate", "--model", &model, "--max-length", "5", text];
        stderr(&regard().args(arguments).args(more).assert().code(code))
    };
    let warning = "54 tokens, but the model has 53 embeddings; texts with one of the last 1, from \"<mask>\" on, are refused";
    let warned = told("w1 w2", &[], 0);
    assert!(warned.contains(warning), "{warned}");
    assert!(!told("w1 w2", &["--quiet"], 0).contains(warning));
    let refused = told("w1 <mask>", &[], 1);
    assert!(
        refused.contains("the text has the token \"<mask>\" (53)"),
        "{refused}"
    );
}
