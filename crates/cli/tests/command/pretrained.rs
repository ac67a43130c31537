//! `generate`, `look`, `fill`, `embed` and `translate`, with tiny models of random weights.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{expect_long_as_looked, refused, refused_command, regard, stderr, stdout, text};

/// A copy of a golden checkpoint with a tokenizer of whole words, as many as the model has.
pub fn model(case: &str, folder: &Path) -> String {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden/pretrained");
    let to = folder.join(case);
    fs::create_dir(&to).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(golden.join(case).join(name), to.join(name)).unwrap();
    }
    let reads = case.starts_with("bert") || case.starts_with("longformer");
    let second = usize::from(case.starts_with("bert"));
    let translates = ["t5", "bart", "marian"].contains(&case);
    let special: &[&str] = match case {
        _ if reads => &["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        "t5" => &["<pad>", "</s>", "<unk>"],
        "bart" => &["<s>", "<pad>", "</s>", "<unk>"],
        "marian" => &["</s>", "<unk>"],
        _ => &["<unk>", "</s>"],
    };
    let unknown = if reads { "[UNK]" } else { "<unk>" };
    let rows = if reads { 51 } else { 53 };
    let words = special.iter().map(|name| (*name).to_owned());
    let words = words.chain((0..).map(|i| format!("w{i}"))).take(rows);
    let vocabulary: Value = words.zip(0..).map(|(word, id)| (word, json!(id))).collect();
    let added = special.iter().zip(0..).map(|(token, id)| {
        json!({"id": id, "content": token, "special": true, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false})
    });
    let around = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
        "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "[SEP]", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": second}},
                 {"SpecialToken": {"id": "[SEP]", "type_id": second}}],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                           "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}});
    let end = special.iter().position(|token| *token == "</s>");
    let ended = json!({"type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [end], "tokens": ["</s>"]}}});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": if reads { around } else if translates { ended } else { Value::Null }, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": unknown}
    });
    fs::write(to.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let marks = match reads {
        true => {
            json!({"mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"})
        }
        false => json!({"eos_token": "</s>", "unk_token": "<unk>"}),
    };
    fs::write(to.join("tokenizer_config.json"), marks.to_string()).unwrap();
    text(&to)
}

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
    let done = regard()
        .args(["fill", "--model", &reads])
        .args(texts)
        .assert()
        .code(1);
    assert!(
        stdout(&done).contains("w1 [MASK]"),
        "what is done is printed"
    );
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
