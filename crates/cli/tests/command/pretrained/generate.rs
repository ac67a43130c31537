//! `generate`: text that is written, what ends it, and pictures that are refused before it.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::model;
use crate::{regard, stderr, stdout, text};

#[test]
fn text_is_written_the_same_every_time() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("gpt2", folder.path());
    let write = |more: &[&str]| {
        let arguments = [
            "generate",
            "--model",
            &model,
            "--max-tokens",
            "12",
            "w1 w2 w3",
        ];
        let done = regard().args(arguments).args(more).assert().success();
        (stdout(&done), stderr(&done))
    };
    let (written, told) = write(&[]);
    assert!(written.starts_with("w1 w2 w3"), "{written}");
    assert!(told.contains("a second"), "{told}");
    assert_eq!(write(&["--threads", "1"]).0, written);
    assert_ne!(write(&["--seed", "7"]).0, written);
    let (greedy, _) = write(&["--temperature", "0", "--quiet"]);
    // A beam of one hypothesis is greedy.
    assert_eq!(write(&["--beam", "1"]).0, greedy);
    let line: Value = serde_json::from_str(&write(&["--temperature", "0", "--json"]).0).unwrap();
    let written = line["text"].as_str().unwrap();
    assert_eq!(format!("w1 w2 w3{written}\n"), greedy);
    // A word of the text ends it.
    let word = written.split_whitespace().nth(3).unwrap();
    let (stopped, _) = write(&["--temperature", "0", "--stop", word]);
    assert!(
        greedy.starts_with(stopped.trim_end()) && stopped.len() < greedy.len(),
        "{stopped}"
    );
    for weights in ["bf16", "f16", "int8"] {
        assert!(
            write(&["--weights", weights, "--cache", "bf16"])
                .0
                .starts_with("w1 w2 w3")
        );
    }
    // The folder's own settings hold where no option says otherwise.
    let own = Path::new(&model).join("generation_config.json");
    fs::write(&own, r#"{"do_sample": true, "top_k": 1}"#).unwrap();
    let (greedy, _) = write(&["--temperature", "0"]);
    assert_eq!(write(&[]).0, greedy);
    assert_ne!(write(&["--top-k", "0", "--seed", "7"]).0, greedy);
    fs::write(&own, r#"{"do_sample": true, "top_p": 7}"#).unwrap();
    let refused = regard()
        .args(["generate", "--model", &model, "w1"])
        .assert()
        .code(1);
    let told = stderr(&refused);
    assert!(
        told.contains("generation_config.json") && told.contains("top_p"),
        "{told}"
    );
}

/// Any of several end tokens ends a text, in a search as in drawing.
#[test]
fn each_of_several_end_tokens_ends_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("gpt2", folder.path());
    let write = |more: &[&str]| {
        let arguments = [
            "generate",
            "--model",
            &model,
            "--max-tokens",
            "12",
            "--json",
            "w1 w2 w3",
        ];
        let done = regard().args(arguments).args(more).assert().success();
        serde_json::from_str::<Value>(&stdout(&done)).unwrap()
    };
    let greedy = write(&["--temperature", "0"]);
    let word = greedy["text"].as_str().unwrap().split_whitespace().nth(3);
    let number: usize = word.unwrap()[1..].parse().unwrap();
    // Words stand after two special tokens.
    let ends = json!({"eos_token_id": [0, number + 2]});
    let path = Path::new(&model).join("generation_config.json");
    fs::write(path, ends.to_string()).unwrap();
    let drawn = write(&["--temperature", "0"]);
    assert_eq!(drawn["ended"], "end", "{drawn}");
    assert_eq!(write(&["--beam", "1"])["text"], drawn["text"]);
    let searched = write(&["--beam", "4"]);
    let text = searched["text"].as_str().unwrap();
    assert!(
        text.split_whitespace().all(|other| Some(other) != word),
        "{text}"
    );
}

/// A search obeys what ends a text and the penalty of the folder, as drawing does.
#[test]
fn a_search_obeys_stop_texts_and_the_penalty() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("gpt2", folder.path());
    let write = |more: &[&str]| {
        let arguments = ["generate", "--model", &model, "--json", "w1 w2 w3"];
        let done = regard().args(arguments).args(more).assert().success();
        serde_json::from_str::<Value>(&stdout(&done)).unwrap()
    };
    let settings = Path::new(&model).join("generation_config.json");
    // No token of the vocabulary ends a text.
    let with = |penalty: f64| {
        let own = json!({"eos_token_id": 999, "repetition_penalty": penalty});
        fs::write(&settings, own.to_string()).unwrap();
    };
    with(1.0);
    let searched = write(&["--beam", "4", "--max-tokens", "12"]);
    let text = searched["text"].as_str().unwrap();
    let word = text.split_whitespace().nth(3).unwrap();
    let stopped = write(&["--beam", "4", "--max-tokens", "12", "--stop", word]);
    assert_eq!(stopped["ended"], "stop", "{stopped}");
    assert_eq!(stopped["text"], text[..text.find(word).unwrap()]);
    assert!(stopped["tokens"].as_u64() < searched["tokens"].as_u64());
    // More tokens than the vocabulary has, so that some come again.
    let plain = write(&["--beam", "1", "--max-tokens", "60"]);
    for penalty in [1.5, 20.0] {
        with(penalty);
        let searched = write(&["--beam", "1", "--max-tokens", "60"]);
        let drawn = write(&["--temperature", "0", "--max-tokens", "60"]);
        assert_eq!(searched["text"], drawn["text"], "{penalty}");
        assert!(penalty < 20.0 || searched["text"] != plain["text"]);
    }
    let own = ["--beam", "1", "--max-tokens", "60", "--repetition-penalty"];
    assert_eq!(write(&[&own[..], &["1"]].concat())["text"], plain["text"]);
}

/// A longer prompt beside it ends no text, and only texts that fill the context are told of.
#[test]
fn a_text_is_the_same_beside_a_longer_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("gpt2", folder.path());
    // No token of the vocabulary ends a text.
    let settings = json!({"eos_token_id": 999});
    let file = Path::new(&model).join("generation_config.json");
    fs::write(file, settings.to_string()).unwrap();
    let long = "w7 ".repeat(90);
    for way in ["--temperature=1", "--temperature=0", "--beam=2"] {
        let write = |prompts: &[&str]| {
            let arguments = ["generate", "--model", &model, "--json", way];
            let mut regard = regard();
            regard.args(arguments).args(["--max-tokens", "12"]);
            let done = regard.args(prompts).assert().success();
            let lines: Vec<Value> = (stdout(&done).lines())
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            (lines, stderr(&done))
        };
        let (alone, told) = write(&["w1 w2"]);
        assert!(!told.contains("context"), "{told}");
        let (both, told) = write(&["w1 w2", &long]);
        assert_eq!(both[0], alone[0], "{way}");
        // The model reads 96 tokens.
        let tokens = [&both[0], &both[1]].map(|line| line["tokens"].as_u64());
        assert_eq!(tokens, [Some(14), Some(96)], "{way}");
        let expected = "1 of 2 texts ended at the model's context of 96 tokens";
        assert!(told.contains(expected), "{told}");
    }
}

/// Pictures that cannot be drawn or written are refused before anything is written.
#[test]
fn pictures_are_refused_before_text_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("gpt2", folder.path());
    let picture = text(&folder.path().join("look.svg"));
    let nowhere = text(&folder.path().join("nowhere/look.svg"));
    let generate = [
        "generate",
        "--model",
        &model,
        "--max-tokens",
        "3",
        "w1",
        "w2",
    ];
    let cases: [(&[&str], i32, &str); 5] = [
        (
            &["--attention", "--layer", "99"],
            2,
            "no layer 99; its layers are 1",
        ),
        (
            &["--svg", &picture, "--layer", "99"],
            2,
            "no layer 99; its layers are 1",
        ),
        (
            &["--svg", &picture, "--head", "99"],
            2,
            "no head 99; its heads are 1 to",
        ),
        (
            &["--svg", &picture, "--map", "cross"],
            2,
            "no cross-attention",
        ),
        (&["--svg", &nowhere], 1, "look.svg: cannot write"),
    ];
    for (more, code, expected) in cases {
        let done = regard().args(generate).args(more).assert().code(code);
        assert_eq!(stdout(&done), "", "{more:?}");
        let told = stderr(&done);
        assert!(told.contains(expected), "{more:?}: {told}");
    }
    let files = ["--trace", "--html", "--png"];
    for command in ["look", "generate"] {
        for file in files {
            let arguments = [command, "--model", &model, "w1", file, &nowhere];
            let done = regard().args(arguments).assert().code(1);
            assert_eq!(stdout(&done), "", "{command} {file}");
        }
    }
}
