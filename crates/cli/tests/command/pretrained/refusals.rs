//! What is refused: no text, damaged tokenizers, outputs in the model's place, and what a model cannot do.

use std::{fs, path::Path};

use regard_nn::weights::{self, Storage};
use serde_json::{Value, json};

use super::model;
use crate::{refused, refused_command, regard, stderr, stdout, text};

/// The same words for no text, whatever the command.
#[test]
fn a_lack_of_text_is_told_in_the_same_words() {
    let folder = tempfile::tempdir().unwrap();
    let [writes, reads, answers] =
        ["gpt2", "bert", "bert-answer"].map(|case| model(case, folder.path()));
    let context = text(&folder.path().join("context.txt"));
    fs::write(&context, "w1 w2").unwrap();
    let commands: [&[&str]; 6] = [
        &["generate", "--model", &writes],
        &["look", "--model", &writes, "-"],
        &["fill", "--model", &reads],
        &["embed", "--model", &reads],
        &["similar", "--model", &reads],
        &["answer", "--model", &answers, "--context", &context],
    ];
    for command in commands {
        for input in ["", " \n\n"] {
            let done = regard().args(command).write_stdin(input).assert().code(2);
            let told = stderr(&done);
            let expected = "error: standard input has no text; give some text";
            assert!(told.starts_with(expected), "{command:?}: {told}");
        }
    }
    let question = ["answer", "--model", &answers, "--context", &context, ""];
    let done = regard().args(question).assert().code(2);
    assert!(stderr(&done).contains("\"\" has no tokens; give some text"));
}

/// The library panics on these, which is reported as what is wrong with the file, and as nothing else.
#[test]
fn a_damaged_tokenizer_is_named_alone() {
    let folder = tempfile::tempdir().unwrap();
    let writes = model("gpt2", folder.path());
    let file = Path::new(&writes).join("tokenizer.json");
    let whole: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let expression = json!({"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": false});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let token = json!({"SpecialToken": {"id": "</s>", "type_id": 0}});
    let around = json!({"type": "TemplateProcessing", "single": [token, text], "pair": [text, text], "special_tokens": {}});
    for (key, damage) in [("pre_tokenizer", expression), ("post_processor", around)] {
        let mut damaged = whole.clone();
        damaged[key] = damage;
        fs::write(&file, damaged.to_string()).unwrap();
        let prompt = format!("{}!", "a".repeat(45));
        refused(
            ["generate", "--model", &writes, &prompt],
            1,
            ["tokenizer.json: ", "the library `tokenizers` panicked"],
        );
    }
}

/// What is written does not take the place of the model that is read, whose folder is named.
#[test]
fn outputs_spare_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let (reads, writes) = (model("bert", folder.path()), model("gpt2", folder.path()));
    let module = Path::new(&reads).join("1_Pooling");
    fs::create_dir(&module).unwrap();
    fs::write(module.join("config.json"), "{}").unwrap();
    let text = folder.path().join("text.txt");
    fs::write(&text, "w1 w2 w3").unwrap();
    let text = text.to_str().unwrap();
    for (command, folder, file, more) in [
        (
            "generate",
            &writes,
            "model.safetensors",
            ["w1", "--trace"].as_slice(),
        ),
        ("look", &writes, "config.json", &["w1", "--html"]),
        (
            "look",
            &writes,
            "model.safetensors",
            &["--long", text, "--trace"],
        ),
        ("embed", &reads, "tokenizer.json", &["w1", "--output"]),
        ("similar", &reads, "config.json", &["w1", "w2", "--svg"]),
        (
            "similar",
            &reads,
            "model.safetensors",
            &["w1", "w2", "--html"],
        ),
        (
            "embed",
            &reads,
            "1_Pooling/config.json",
            &["w1", "--output"],
        ),
        ("fill", &reads, "config.json", &["w1 [MASK]", "--svg"]),
    ] {
        let file = Path::new(folder).join(file);
        let whole = fs::read(&file).unwrap();
        let mut regard = regard();
        regard
            .args([command, "--model", folder])
            .args(more)
            .arg(&file);
        refused_command(&mut regard, 2, ["would be lost"]);
        assert!(fs::read(&file).unwrap() == whole, "{command}");
    }
}

/// Files without a place are refused before any text is read.
#[test]
fn outputs_need_a_place() {
    let folder = tempfile::tempdir().unwrap();
    let reads = model("bert", folder.path());
    let nowhere = text(&folder.path().join("nowhere/file"));
    for (command, option) in [("embed", "--output"), ("similar", "--svg")] {
        let arguments = [command, "--json", "--model", &reads, option, &nowhere];
        let mut regard = regard();
        let done = regard.args(arguments).args(["w1", "w2"]).assert().code(1);
        assert_eq!(stdout(&done), "");
        assert!(stderr(&done).contains("cannot write"), "{}", stderr(&done));
    }
    let twice = text(&folder.path().join("file"));
    let similar = ["similar", "--model", &reads, "w1", "w2", "--svg", &twice];
    let mut regard = regard();
    regard.args(similar).args(["--trace", &twice]);
    refused_command(&mut regard, 2, ["would be lost"]);
}

/// Finite weights of which no finite state comes: nothing is printed in place of a number.
#[test]
fn weights_that_overflow_give_no_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let large = |case: &str| {
        let model = model(case, folder.path());
        let file = Path::new(&model).join("model.safetensors");
        let (mut arrays, metadata) = weights::from_bytes(&fs::read(&file).unwrap()).unwrap();
        for value in arrays.values_mut().flat_map(|array| &mut array.values) {
            *value = value.signum() * 1e38;
        }
        let bytes = weights::to_bytes(&arrays, metadata, Storage::F32).unwrap();
        fs::write(file, bytes).unwrap();
        model
    };
    let [masked, answers, writes] = ["bert", "bert-answer", "gpt2"].map(large);
    let context = text(&folder.path().join("context.txt"));
    fs::write(&context, "w1 w2").unwrap();
    let commands: [&[&str]; 5] = [
        &["embed", "--model", &masked, "w1 w2"],
        &["similar", "--model", &masked, "w1 w2", "w3"],
        &[
            "similar", "--model", &writes, "--word", "w1", "w1 w2", "w3 w1",
        ],
        &["fill", "--model", &masked, "w1 [MASK]"],
        &["answer", "--model", &answers, "--context", &context, "w1"],
    ];
    for command in commands {
        let done = regard().args(command).assert().code(1);
        let told = stderr(&done);
        assert!(told.contains("no finite numbers"), "{command:?}: {told}");
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let (writes, reads) = (model("gpt2", folder.path()), model("bert", folder.path()));
    let said = |arguments: &[&str], code: i32| {
        let done = regard().args(arguments).assert().code(code);
        stderr(&done)
    };
    let error = said(&["generate", "--model", &reads, "w1"], 1);
    assert!(
        error.contains("write text from left to right") && error.contains("bert"),
        "{error}"
    );
    let error = said(&["fill", "--model", &writes, "w1"], 1);
    assert!(error.contains("encoders"), "{error}");
    let error = said(&["fill", "--model", &reads, "w1"], 2);
    assert!(error.contains("[MASK]"), "{error}");
    let settings = Path::new(&reads).join("tokenizer_config.json");
    let marks = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, "{}").unwrap();
    let error = said(&["fill", "--model", &reads, "w1 [MASK]"], 1);
    assert!(error.contains("a tokenizer with a mask token"), "{error}");
    fs::write(&settings, marks).unwrap();
    let long = "w1 ".repeat(97);
    let error = said(&["generate", "--model", &writes, &long], 1);
    assert!(error.contains("97") && error.contains("96"), "{error}");
    let error = said(&["look", "--model", &writes, "--layer", "4", "w1"], 2);
    assert!(
        error.contains("--layer 4") && error.contains('3'),
        "{error}"
    );
    let translates = model("marian", folder.path());
    let error = said(&["generate", "--model", &translates, "w1"], 1);
    assert!(error.contains("regard translate"), "{error}");
    let error = said(&["translate", "--model", &writes, "w1"], 1);
    assert!(error.contains("encoder-decoders"), "{error}");
    let error = said(
        &[
            "translate",
            "--prefix",
            "x",
            "--model",
            "no-such-file",
            "w1",
        ],
        2,
    );
    assert!(error.contains("--prefix"), "{error}");
    let error = said(&["translate", "--weights", "int8", "w1"], 2);
    assert!(error.contains("--weights"), "{error}");
    let error = said(
        &[
            "translate",
            "--coverage-penalty",
            "1",
            "--model",
            &translates,
            "w1",
        ],
        2,
    );
    assert!(error.contains("--coverage-penalty"), "{error}");
    let error = said(
        &[
            "translate",
            "--long-lines",
            "error",
            "--model",
            &translates,
            &"w1 ".repeat(80),
        ],
        1,
    );
    assert!(error.contains("line 1") && error.contains("81"), "{error}");
    let error = said(&["look", "--model", &translates, &"w1 ".repeat(80)], 1);
    assert!(error.contains("81") && error.contains("80"), "{error}");
    let error = said(&["look", "--model", &translates, "--head", "5", "w1"], 2);
    assert!(error.contains("--head 5") && error.contains('4'), "{error}");
    let error = said(
        &[
            "look",
            "--model",
            &translates,
            "--query",
            "9",
            "--target",
            "w1",
            "w1",
        ],
        2,
    );
    assert!(error.contains("--query 9"), "{error}");
    for (model, map, told) in [
        (&writes, "cross", "no decoder.cross; it has self\n"),
        (&reads, "decoder", "no decoder.self; it has self\n"),
        (
            &translates,
            "self",
            "no self; it has encoder.self, decoder.self, decoder.cross\n",
        ),
    ] {
        for more in [&["--quiet"][..], &["--json"], &[]] {
            let look = ["look", "--model", model, "--map", map, "w1"];
            let done = regard().args(look).args(more).assert().code(2);
            assert!(stderr(&done).contains(told), "{}", stderr(&done));
            assert_eq!(stdout(&done), "");
        }
    }
    let error = said(&["look", "--model", &writes, "--target", "w1", "w1"], 2);
    assert!(error.contains("--target"), "{error}");
    let error = said(&["generate", "--model", "no/such-model", "w1"], 1);
    assert!(error.contains("no/such-model"), "{error}");
    let error = said(&["generate", "--model", &writes, "--top-p", "2", "w1"], 2);
    assert!(error.contains("top_p"), "{error}");
}
