//! `fill`, `embed` and other commands of encoders: words, vectors, Longformers, and texts that are too long.

use std::{fs, path::Path};

use serde_json::Value;

use super::model;
use crate::{refused_command, regard, stderr, stdout, text};

#[test]
fn masked_words_are_filled_and_texts_become_vectors() {
    let folder = tempfile::tempdir().unwrap();
    let masked = model("bert", folder.path());
    let fill = [
        "fill",
        "--model",
        &masked,
        "--top",
        "51",
        "--json",
        "w1 [MASK] w3",
    ];
    let done = regard().args(fill).assert().success();
    let line: Value = serde_json::from_str(&stdout(&done)).unwrap();
    let tokens = line["places"][0]["tokens"].as_array().unwrap();
    let sum: f64 = tokens
        .iter()
        .map(|token| token["probability"].as_f64().unwrap())
        .sum();
    assert!((sum - 1.0).abs() < 1e-5, "{sum}");
    let mut ids: Vec<u64> = tokens
        .iter()
        .map(|token| token["id"].as_u64().unwrap())
        .collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..51));
    let sentences = model("bert-sentence", folder.path());
    let done = regard()
        .args(["embed", "--model", &sentences, "w1 w2", "w3"])
        .assert()
        .success();
    let lines = stdout(&done);
    assert_eq!(lines.lines().count(), 2);
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let vector = line["vector"].as_array().unwrap();
        let square: f64 = vector.iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
        assert!(
            (square - 1.0).abs() < 1e-5 && vector.len() == 18,
            "{square}"
        );
    }
}

/// Vectors that are done are gone on with by the model and the options that made them, and by no others.
#[test]
fn vectors_that_are_done_stay_with_their_model() {
    let folder = tempfile::tempdir().unwrap();
    let [masked, sentences] = ["bert", "bert-sentence"].map(|case| model(case, folder.path()));
    let output = folder.path().join("vectors.safetensors");
    let part = folder.path().join("vectors.safetensors.part");
    let embed = |model: &str, more: &[&str]| {
        let mut command = regard();
        command.args(["embed", "--quiet", "--resume", "--model", model]);
        command.arg("--output").arg(&output).args(more);
        command.args(["w1 w2", "w3", "w4 w5"]);
        command
    };
    embed(&sentences, &[]).assert().success();
    let whole = fs::read(&output).unwrap();
    assert!(!part.exists());
    // A folder in the place of the output leaves what an interrupted command leaves.
    fs::remove_file(&output).unwrap();
    fs::create_dir(&output).unwrap();
    embed(&sentences, &[]).assert().code(1);
    fs::remove_dir(&output).unwrap();
    let done = fs::read_to_string(&part).unwrap();
    assert_eq!(done.lines().count(), 4);

    let expect_refused = |model: &str, more: &[&str], held: &str, told: [&str; 2]| {
        fs::write(&part, held).unwrap();
        refused_command(&mut embed(model, more), 1, told);
        assert_eq!(fs::read_to_string(&part).unwrap(), held);
        assert!(!output.exists());
    };
    let others = "vectors.safetensors.part: line 1: its vectors are made with ";
    expect_refused(&masked, &[], &done, [others, "expected `"]);
    let int8 = ["--weights", "int8"];
    let told = "`no --weights`; expected `--weights int8`";
    expect_refused(&sentences, &int8, &done, [others, told]);
    let (head, vectors) = done.split_once('\n').unwrap();
    let headless = ["part: line 1: found nothing that says", "remove the file"];
    expect_refused(&sentences, &[], vectors, headless);
    let short = format!("{done}[0.5,1]\n");
    let told = [
        "part: line 5: found a vector of 2 numbers",
        "expected 18 numbers",
    ];
    expect_refused(&sentences, &[], &short, told);
    let none = format!("{head}\nno vector\n");
    let told = ["part: line 2: found no vector", "leave --resume out"];
    expect_refused(&sentences, &[], &none, told);

    // The model may read a file that has come into its folder, or that is gone.
    let notes = Path::new(&sentences).join("notes.txt");
    fs::write(&notes, "none").unwrap();
    let told = ["without `notes.txt, 4 bytes", "move it away to go on"];
    expect_refused(&sentences, &[], &done, told);
    fs::remove_file(&notes).unwrap();
    let with_notes = done.replacen('[', "[\"notes.txt, 4 bytes of hash 0\",", 1);
    let told = ["`notes.txt, 4 bytes of hash 0`", "put it back to go on"];
    expect_refused(&sentences, &[], &with_notes, told);

    // A line that was cut off is made anew, the first one, too.
    for held in [&done[..done.len() - 9], &done[..9], ""] {
        fs::write(&part, held).unwrap();
        embed(&sentences, &[]).assert().success();
        assert!(fs::read(&output).unwrap() == whole, "{held}");
        assert!(!part.exists());
    }
}

/// Tokens that differ by their white space alone are told apart.
#[test]
fn white_space_of_a_filled_token_stays() {
    let folder = tempfile::tempdir().unwrap();
    let masked = model("bert", folder.path());
    let file = Path::new(&masked).join("tokenizer.json");
    let tokenizer = fs::read_to_string(&file).unwrap();
    let tokenizer = tokenizer.replace("\"w1\"", "\" w2\"");
    fs::write(&file, tokenizer.replace("\"w3\"", "\"\\n\"")).unwrap();
    let fill = ["fill", "--model", &masked, "--top", "51", "w2 [MASK]"];
    let done = regard().args(fill).assert().success();
    let shown = stdout(&done);
    for token in ["%  w2\n", "%  ␣w2\n", "%  \\n\n"] {
        assert!(shown.contains(token), "{token:?} is not in: {shown}");
    }
    let done = regard().args(fill).arg("--json").assert().success();
    let line: Value = serde_json::from_str(&stdout(&done)).unwrap();
    let tokens = line["places"][0]["tokens"].as_array().unwrap();
    for token in ["w2", " w2", "\n"] {
        assert!(
            tokens.iter().any(|found| found["token"] == token),
            "{token:?}"
        );
    }
}

#[test]
fn longformers_read() {
    let folder = tempfile::tempdir().unwrap();
    let of = |case: &str| model(case, folder.path());
    let json = |arguments: &[&str]| -> Value {
        let done = regard().args(arguments).arg("--json").assert().success();
        serde_json::from_str(stdout(&done).lines().next().unwrap()).unwrap()
    };
    let words = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10";
    let masked = of("longformer");
    let line = json(&["fill", "--model", &masked, "--top", "51", "w1 [MASK] w3"]);
    let tokens = line["places"][0]["tokens"].as_array().unwrap().iter();
    let sum: f64 = tokens.map(|t| t["probability"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-5, "{sum}");
    let done = regard()
        .args(["embed", "--model", &masked, words])
        .assert()
        .success();
    assert!(stdout(&done).contains("vector"));

    // [CLS] sees all and is seen by all; others see 2 tokens to either side.
    let classes = of("longformer-classes");
    let line = json(&["look", "--model", &classes, "--layer", "1", words]);
    let head = line["weights"][0].as_array().unwrap();
    assert_eq!(head.len(), 12);
    for (query, row) in head.iter().enumerate() {
        for (key, weight) in row.as_array().unwrap().iter().enumerate() {
            let sees = query == 0 || key == 0 || query.abs_diff(key) <= 2;
            assert_eq!(weight.as_f64().unwrap() > 0.0, sees, "{query} {key}");
        }
    }
    let line = json(&["classify", "--model", &classes, words]);
    assert!(line["probabilities"]["GLAD"].is_number(), "{line}");
    let line = json(&["classify", "--model", &of("longformer-tokens"), words]);
    assert!(line["entities"].is_array(), "{line}");

    let context = folder.path().join("context.txt");
    fs::write(&context, format!("{words} ").repeat(5)).unwrap();
    let context = text(&context);
    let answer = of("longformer-answer");
    let asked = ["answer", "--model", &answer, "--context", &context];
    let line = json(&[&asked[..], &["--stride", "4", "w3 w4"]].concat());
    assert!(line["windows"].as_u64().unwrap() > 1, "{line}");
}

#[test]
fn a_long_text_of_several_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (reads, writes) = (model("bert", folder.path()), model("gpt2", folder.path()));
    let long = "w7 ".repeat(200);
    for (command, model) in [("fill", &reads), ("generate", &writes)] {
        let texts = ["w1 [MASK]", "w2 [MASK]", &long, "w3 [MASK]"];
        let mut regard = regard();
        regard.args([command, "--model", model]).args(texts);
        refused_command(&mut regard, 1, ["text 3", "w7 w7", "has 20"]);
    }
    for command in ["embed", "similar"] {
        let done = regard()
            .args([command, "--model", &reads, "w1", &long])
            .assert()
            .success();
        let told = "1 of 2 texts has more than 16 tokens; only the first 16 are read";
        assert!(stderr(&done).contains(told), "{}", stderr(&done));
    }
    let texts = ["w1 [MASK]", &long];
    let page = folder.path().join("page.html");
    let done = regard()
        .args(["fill", "--model", &reads, "--html", &text(&page)])
        .args(texts)
        .assert()
        .code(1);
    assert!(
        stdout(&done).contains("w1 [MASK]"),
        "what is done is printed"
    );
    assert!(page.is_file(), "and drawn");
}
