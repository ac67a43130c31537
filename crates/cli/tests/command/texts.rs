//! `classify`, `answer`, `similar` and `evaluate --text`, with tiny models of random weights.

use std::{fs, path::Path};

use serde_json::Value;
use tempfile::tempdir;

use crate::{file, inside, pretrained, refused, refused_command, regard, run, stderr, stdout};

const CONTEXT: &str = "the old town on the river was green. she sat on the stone bridge and put her money in a bank \
                       by the hill. he went from town to town.";

/// A copy of a golden checkpoint with a tokenizer of sub-words, as many as BERT's checkpoints have.
fn model(case: &str, folder: &Path) -> String {
    let model = pretrained::model(case, folder);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden/scores");
    fs::copy(
        golden.join("tokenizer.json"),
        Path::new(&model).join("tokenizer.json"),
    )
    .unwrap();
    model
}

fn json(arguments: &[&str]) -> Value {
    let done = regard().args(arguments).arg("--json").assert().success();
    serde_json::from_str(&stdout(&done)).unwrap()
}

#[test]
fn texts_and_words_get_classes() {
    let folder = tempdir().unwrap();
    let texts = model("bert-classes", folder.path());
    let line = json(&["classify", "--model", &texts, "The bank of the river"]);
    // As the pipeline of transformers has it: `tests/golden/scores/scores.json` of regard-models.
    assert_eq!(line["label"], "GLAD");
    assert!((line["probabilities"]["GLAD"].as_f64().unwrap() - 0.57555).abs() < 1e-4);
    assert!(line.get("maps").is_none());
    let [svg, trace] = ["a.svg", "a.safetensors"].map(|name| inside(folder.path(), name).1);
    let mut command = regard();
    command.args([
        "classify", "--model", &texts, "--top", "3", "--svg", &svg, "--trace", &trace,
    ]);
    let shown = stdout(&command.args(["The bank", "a river"]).assert().success());
    assert_eq!(shown.lines().count(), 6, "{shown}");
    assert!(folder.path().join("a-2.svg").exists());
    let shown = stdout(&run(["inspect", &trace]).success());
    assert!(shown.contains("The bank → GLAD"), "{shown}");

    let tokens = model("bert-tokens", folder.path());
    let line = json(&[
        "classify",
        "--model",
        &tokens,
        "Bon put ü money in her town!",
    ]);
    let entity = &line["entities"][0];
    let (start, end) = (
        entity["start"].as_u64().unwrap(),
        entity["end"].as_u64().unwrap(),
    );
    let part: String = "Bon put ü money in her town!"
        .chars()
        .skip(start as usize)
        .take((end - start) as usize)
        .collect();
    assert_eq!(entity["text"], part);
    let shown = stdout(&run(["classify", "--model", &tokens, "The banks"]).success());
    assert!(
        shown.starts_with("The banks\n  ") && shown.contains("characters 0 to"),
        "{shown}"
    );

    // The model reads 16 tokens.
    let long = "river ".repeat(100);
    let done = run(["classify", "--model", &texts, &long]).success();
    assert!(
        stderr(&done).contains("102 tokens; only the first 16"),
        "{}",
        stderr(&done)
    );
    let done = regard()
        .args(["classify", "--model", &texts])
        .write_stdin("")
        .assert()
        .success();
    assert_eq!(stdout(&done), "");
}

#[test]
fn questions_are_answered_from_a_text() {
    let folder = tempdir().unwrap();
    let model = model("bert-answer", folder.path());
    let context = file(folder.path(), "context.txt", CONTEXT);
    let ask = [
        "answer",
        "--stride",
        "4",
        "--model",
        &model,
        "--context",
        &context,
    ];
    let line = json(&[&ask[..], &["--top", "3", "was she?"]].concat());
    let answers = line["answers"].as_array().unwrap();
    assert!(
        answers.len() == 3 && line["windows"].as_u64().unwrap() > 3,
        "{line}"
    );
    for answer in answers {
        let [start, end] = ["start", "end"].map(|key| answer[key].as_u64().unwrap() as usize);
        assert_eq!(answer["answer"], CONTEXT[start..end]);
        let sentence = answer["sentence"].as_str().unwrap();
        assert!(sentence.contains(&CONTEXT[start..end]) && CONTEXT.contains(sentence));
    }
    let answered = stdout(&regard().args(ask).arg("was she?").assert().success());
    let answer = answers[0]["answer"].as_str().unwrap();
    assert!(answered.contains(&format!("[{answer}]")), "{answered}");
    // Any score of no answer is more than 0 times that of the best answer.
    let mut command = regard();
    let shown = stdout(
        &command
            .args(ask)
            .args(["--no-answer", "0", "was she?"])
            .assert()
            .success(),
    );
    assert!(shown.starts_with("no answer ("), "{shown}");
    // Questions from standard input, the context from a file; and the other way round.
    let mut command = regard();
    let both = command
        .args(ask)
        .arg("--json")
        .write_stdin("was she?\nthe river?\n")
        .assert();
    assert_eq!(stdout(&both.success()).lines().count(), 2);
    let mut command = regard();
    command.args([
        "answer",
        "--stride",
        "4",
        "--model",
        &model,
        "--context",
        "-",
    ]);
    let piped = stdout(
        &command
            .arg("was she?")
            .write_stdin(CONTEXT)
            .assert()
            .success(),
    );
    assert_eq!(piped, answered);
    let (page, argument) = inside(folder.path(), "a.html");
    let mut command = regard();
    command
        .args(ask)
        .args(["--attention", "--html", &argument, "was she?"])
        .assert()
        .success();
    assert!(fs::read_to_string(page).unwrap().contains("she"));
    let long = "river ".repeat(20);
    refused(
        ["answer", "--model", &model, "--context", &context, &long],
        1,
        ["question of 23", "window of 16"],
    );
    let empty = file(folder.path(), "empty.txt", " \n");
    refused(
        ["answer", "--model", &model, "--context", &empty, "x"],
        2,
        ["has no text"],
    );
    refused(
        ["answer", "--model", &model, "--context", "-"],
        2,
        ["once only"],
    );
}

/// Looking changes no number, and comes with it.
#[test]
fn vectors_and_cosines_come_with_what_was_looked_at() {
    let folder = tempdir().unwrap();
    let sentences = model("bert-sentence", folder.path());
    let (_, trace) = inside(folder.path(), "texts.safetensors");
    let texts = ["--model", &sentences, "the bank", "a river"];
    for (command, rows) in [("embed", 2), ("similar", 1)] {
        let plain = [&[command, "--json"], &texts[..]].concat();
        let looking = [&["--attention", "--trace", &trace], &plain[1..]].concat();
        let [plain, looked] = [plain, [&[command], &looking[..]].concat()]
            .map(|arguments| stdout(&regard().args(arguments).assert().success()));
        assert_eq!(plain.lines().count(), rows, "{plain}");
        for (plain, looked) in plain.lines().zip(looked.lines()) {
            let plain: Value = serde_json::from_str(plain).unwrap();
            let mut looked: Value = serde_json::from_str(looked).unwrap();
            let maps = looked.as_object_mut().unwrap().remove("maps").unwrap();
            assert!(!maps.as_array().unwrap().is_empty());
            assert_eq!(looked, plain);
        }
        run(["view", &trace]).success();
    }
    refused(
        ["embed", "--model", &sentences, "--image", "cat.png"],
        2,
        ["--image is for a model of images and texts (CLIP)"],
    );
}

/// The modules beside a model, and the most tokens of a text, against numbers of sentence-transformers.
#[test]
fn vectors_are_those_of_sentence_transformers() {
    let folder = tempdir().unwrap();
    let model = model("bert-sentence", folder.path());
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden/sentence");
    for name in ["1_Pooling", "2_Dense"] {
        fs::create_dir(Path::new(&model).join(name)).unwrap();
    }
    for name in [
        "modules.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/pytorch_model.bin",
    ] {
        let to = Path::new(&model).join(name);
        fs::copy(golden.join("labse").join(name), to).unwrap();
    }
    let golden: Value =
        serde_json::from_slice(&fs::read(golden.join("vectors.json")).unwrap()).unwrap();
    let texts = golden["texts"].as_array().unwrap().iter();
    let texts: Vec<&str> = texts.map(|text| text.as_str().unwrap()).collect();
    let vectors = &golden["cases"]["labse"]["vectors"];
    let numbers = |vector: &Value| -> Vec<f64> {
        let numbers = vector.as_array().unwrap().iter();
        numbers.map(|x| x.as_f64().unwrap()).collect()
    };
    let told = "3 of 4 texts have more than 6 tokens; only the first 6 are read";
    let done = regard()
        .args(["embed", "--model", &model])
        .args(&texts)
        .assert()
        .success();
    assert_eq!(stderr(&done).matches(told).count(), 1, "{}", stderr(&done));
    for (line, expected) in stdout(&done).lines().zip(vectors.as_array().unwrap()) {
        let line: Value = serde_json::from_str(line).unwrap();
        let (found, expected) = (numbers(&line["vector"]), numbers(expected));
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-4, "{found} {expected}");
        }
    }
    let done = regard()
        .args(["similar", "--json", "--model", &model])
        .args(&texts)
        .assert()
        .success();
    assert_eq!(stderr(&done).matches(told).count(), 1, "{}", stderr(&done));
    let line: Value = serde_json::from_str(&stdout(&done)).unwrap();
    let [a, b] = [0usize, 3].map(|text| numbers(&vectors[text]));
    // They have the length 1.
    let product: f64 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
    let cosine = line["cosines"][0][3].as_f64().unwrap();
    assert!((cosine - product).abs() < 1e-4, "{cosine} {product}");
    for command in ["embed", "similar"] {
        let quiet = [command, "--quiet", "--model", &model];
        let done = regard().args(quiet).args(&texts).assert().success();
        assert!(!stderr(&done).contains("tokens"), "{}", stderr(&done));
    }
}

/// The prompts beside a model, against numbers of sentence-transformers.
#[test]
fn texts_stand_behind_a_prompt() {
    let folder = tempdir().unwrap();
    let model = model("bert-sentence", folder.path());
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden/sentence");
    fs::create_dir(Path::new(&model).join("1_Pooling")).unwrap();
    for name in [
        "modules.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "tokenizer_config.json",
        "tokenizer.json",
        "1_Pooling/config.json",
    ] {
        let to = Path::new(&model).join(name);
        fs::copy(golden.join("left-out").join(name), to).unwrap();
    }
    let golden: Value =
        serde_json::from_slice(&fs::read(golden.join("reading.json")).unwrap()).unwrap();
    let texts = golden["texts"].as_array().unwrap().iter();
    let texts: Vec<&str> = texts.map(|text| text.as_str().unwrap()).collect();
    let vectors = golden["cases"]["left-out"]["vectors"].as_object().unwrap();
    for (prompt, vectors) in vectors {
        let mut command = regard();
        command.args(["embed", "--quiet", "--model", &model]);
        if !prompt.is_empty() {
            command.args(["--prompt", prompt]);
        }
        let done = command.args(&texts).assert().success();
        for (line, expected) in stdout(&done).lines().zip(vectors.as_array().unwrap()) {
            let line: Value = serde_json::from_str(line).unwrap();
            let (found, expected) = (&line["vector"], expected.as_array().unwrap());
            assert_eq!(found.as_array().unwrap().len(), expected.len());
            for (place, expected) in expected.iter().enumerate() {
                let (found, expected) = (found[place].as_f64(), expected.as_f64());
                let difference = (found.unwrap() - expected.unwrap()).abs();
                assert!(difference < 1e-3, "{prompt}: {found:?} {expected:?}");
            }
        }
    }
    let done = run(["similar", "--model", &model, "a bank", "the bank"]).success();
    let told = "compares vectors by manhattan";
    assert!(stderr(&done).contains(told), "{}", stderr(&done));
    let done = run(["similar", "--quiet", "--model", &model, "a", "the"]).success();
    assert!(!stderr(&done).contains(told), "{}", stderr(&done));
    for command in ["embed", "similar"] {
        refused(
            [command, "--model", &model, "--prompt", "other", "a", "b"],
            2,
            ["--prompt other", "expected one of document, passage, query"],
        );
    }
    fs::remove_file(Path::new(&model).join("config_sentence_transformers.json")).unwrap();
    refused(
        ["embed", "--model", &model, "--prompt", "query", "a"],
        2,
        ["the model has no prompts"],
    );
    refused(
        [
            "similar", "--model", &model, "--prompt", "query", "--word", "a", "a", "a b",
        ],
        2,
        ["--word"],
    );
}

#[test]
fn texts_and_words_are_compared() {
    let folder = tempdir().unwrap();
    let sentences = model("bert-sentence", folder.path());
    let (svg, argument) = inside(folder.path(), "a.svg");
    let found = json(&[
        "similar",
        "--model",
        &sentences,
        "--svg",
        &argument,
        "the bank",
        "the river",
        "the bank",
    ]);
    let cosine = |a: usize, b: usize| found["cosines"][a][b].as_f64().unwrap();
    assert!((cosine(0, 2) - 1.0).abs() < 1e-6 && cosine(0, 1) < 0.999);
    assert_eq!(cosine(0, 1), cosine(1, 0));
    assert!(fs::read_to_string(svg).unwrap().contains("the river"));
    let shown = stdout(&run(["similar", "--model", &sentences, "the bank", "a river"]).success());
    assert_eq!(shown.lines().count(), 3, "{shown}");

    let (first, second) = (
        "He sat on the bank of the river.",
        "She put money in the banks, the bank",
    );
    for case in ["bert", "gpt2"] {
        let model = model(case, folder.path());
        let compare = ["similar", "--model", &model, "--word", "bank"];
        let found = json(&[&compare[..], &[first, second, first]].concat());
        assert_eq!(found["texts"][0]["start"], 14);
        assert_eq!(found["pairs"].as_array().unwrap().len(), 3);
        // The same text, and so the same state everywhere.
        let same = found["pairs"][1]["layers"].as_array().unwrap();
        let near = |x: &Value| (x.as_f64().unwrap() - 1.0).abs() < 1e-6;
        assert!(
            same.iter()
                .all(|layer| layer.as_object().unwrap().values().all(near))
        );
        let layers = found["pairs"][0]["layers"].as_array().unwrap();
        for next in layers.windows(2) {
            assert_eq!(next[0]["feed_forward"], next[1]["input"]);
        }
        let [svg, png, html] =
            ["w.svg", "w.png", "w.html"].map(|name| inside(folder.path(), name).1);
        let mut command = regard();
        command
            .args(compare)
            .args(["--svg", &svg, "--png", &png, "--html", &html]);
        let shown = stdout(&command.args([first, second]).assert().success());
        assert!(shown.contains("after attention"), "{shown}");
        assert_eq!(shown.lines().count(), 2 + layers.len(), "{shown}");
        assert!(
            fs::read_to_string(&html)
                .unwrap()
                .contains("after attention")
        );
        refused(
            [
                "similar", "--model", &model, "--word", "town", first, second,
            ],
            2,
            ["text 1", "\"town\""],
        );
        let done = run(["similar", "--model", &model, "--word", "the", first, second]).success();
        assert!(
            stderr(&done).contains("text 1 has \"the\" 2 times"),
            "{}",
            stderr(&done)
        );
    }
    refused(
        ["similar", "--model", &sentences, "alone"],
        2,
        ["1 text to compare", "from 2"],
    );
}

#[test]
fn a_language_model_is_scored_on_a_text() {
    let folder = tempdir().unwrap();
    let model = model("gpt2", folder.path());
    let book = file(folder.path(), "book.txt", CONTEXT.repeat(20));
    let score = ["evaluate", "--model", &model, "--text", &book];
    let of = |more: &[&str]| json(&[&score[..], more].concat());
    let all = of(&["--context", "32", "--stride", "8"]);
    assert_eq!(
        (all["context"].as_u64(), all["stride"].as_u64()),
        (Some(32), Some(8))
    );
    let [loss, tokens, bytes] = ["loss", "tokens", "bytes"].map(|key| all[key].as_f64().unwrap());
    let bits = loss * tokens / bytes / std::f64::consts::LN_2;
    assert!((all["bits_per_byte"].as_f64().unwrap() - bits).abs() < 1e-9);
    assert!((all["perplexity"].as_f64().unwrap() - loss.exp()).abs() < 1e-6);
    // The tokenizer puts [CLS] in front: all of the text is scored.
    assert_eq!(bytes as usize, CONTEXT.len() * 20);
    for other in [
        &["--context", "32", "--stride", "32"][..],
        &["--context", "5", "--stride", "1"],
        &[],
    ] {
        assert_eq!(of(other)["tokens"].as_f64(), Some(tokens), "{other:?}");
    }
    let shown = run([
        "evaluate",
        "--model",
        &model,
        "--text",
        &book,
        "--context",
        "32",
    ])
    .success();
    assert!(
        stdout(&shown).contains("context 32, stride 16") && stderr(&shown).contains("a second")
    );

    let [svg, png, html] = ["r.svg", "r.png", "r.html"].map(|name| inside(folder.path(), name).1);
    let both = of(&[
        "--free-running",
        "12",
        "--prompt-tokens",
        "5",
        "--prompts",
        "30",
        "--svg",
        &svg,
        "--png",
        &png,
        "--html",
        &html,
    ]);
    let positions = both["positions"].as_array().unwrap();
    assert_eq!((both["prompts"].as_u64(), positions.len()), (Some(30), 12));
    let loss = |at: usize, way: &str| positions[at][way]["loss"].as_f64().unwrap();
    // The first token follows the same prompt both ways.
    assert!((loss(0, "teacher_forced") - loss(0, "free_running")).abs() < 1e-4);
    assert!((loss(11, "teacher_forced") - loss(11, "free_running")).abs() > 1e-3);
    assert!(fs::read_to_string(svg).unwrap().contains("accuracy"));
    assert!(fs::read_to_string(html).unwrap().contains("5 to 8"));

    let wrong = |more: &[&str], said: [&str; 2]| {
        refused_command(regard().args(score).args(more), 2, said);
    };
    wrong(&["--context", "200"], ["--context 200", "96"]);
    wrong(&["--context", "8", "--stride", "9"], ["--stride 9", "8"]);
    wrong(
        &["--free-running", "90"],
        ["122", "96"].map(|_| "at most 96"),
    );
    wrong(&["--svg", &png], ["--free-running", "picture"]);
    wrong(&["--source", &book], ["--source", "--text"]);
    wrong(&["--metric", "chrf"], ["--metric is for", "perplexity"]);
    wrong(&["--beam", "2"], ["--beam is for", "perplexity"]);
    wrong(
        &["--free-running", "4", "--score-only"],
        ["--free-running", "--score-only"],
    );
    // Without a token in front the first one of the text is not scored, and its bytes do not count.
    let elsewhere = tempdir().unwrap();
    let words = pretrained::model("gpt2", elsewhere.path());
    let four = file(folder.path(), "four.txt", "w1 w2 w3 w4");
    let all = json(&["evaluate", "--model", &words, "--text", &four]);
    let [tokens, bytes] = ["tokens", "bytes"].map(|key| all[key].as_u64());
    assert_eq!((tokens, bytes), (Some(3), Some(9)));
    let tiny = file(folder.path(), "tiny.txt", "w1");
    refused(
        ["evaluate", "--model", &words, "--text", &tiny],
        2,
        ["tiny.txt has 1 tokens", "at least 2"],
    );
    let empty = file(folder.path(), "empty.txt", "");
    refused(
        ["evaluate", "--model", &model, "--text", &empty],
        2,
        ["has no text"],
    );
    refused(["evaluate", "--text", &book], 2, ["--model"]);
    refused(
        ["evaluate", "--model", &model, "--context", "8"],
        2,
        ["--text"],
    );
}

#[test]
fn another_head_is_named_with_its_command() {
    let folder = tempdir().unwrap();
    let context = file(folder.path(), "context.txt", CONTEXT);
    let [masked, classes, answer, sentences, writes] = [
        "bert",
        "bert-classes",
        "bert-answer",
        "bert-sentence",
        "gpt2",
    ]
    .map(|case| model(case, folder.path()));
    for (model, head) in [
        (&masked, ["masked words", "regard fill"]),
        (&classes, ["classes of texts", "regard classify"]),
        (&sentences, ["no head", "regard embed"]),
    ] {
        refused(
            ["answer", "--model", model, "--context", &context, "x"],
            1,
            head,
        );
    }
    refused(
        ["classify", "--model", &masked, "x"],
        1,
        ["masked words", "regard fill"],
    );
    refused(
        ["classify", "--model", &answer, "x"],
        1,
        ["spans of answers", "regard answer"],
    );
    refused(
        ["fill", "--model", &classes, "x"],
        1,
        ["classes of texts", "regard classify"],
    );
    refused(
        ["classify", "--model", &writes, "x"],
        1,
        ["gpt2", "encoders"],
    );
    refused(
        ["similar", "--model", &writes, "x", "y"],
        1,
        ["gpt2", "encoders"],
    );
    refused(
        ["evaluate", "--model", &masked, "--text", &context],
        1,
        ["bert", "write text"],
    );
    refused(
        ["classify", "--model", "no/such-model", "x"],
        1,
        ["no/such-model"],
    );
}

/// A million characters: read in windows, cut, or refused, and in any case answered.
#[test]
fn a_million_characters_are_read() {
    let folder = tempdir().unwrap();
    let [classes, tokens, answer, sentences, writes] = [
        "bert-classes",
        "bert-tokens",
        "bert-answer",
        "bert-sentence",
        "gpt2",
    ]
    .map(|case| model(case, folder.path()));
    let long = "river ".repeat(1 << 18) + "?";
    let context = file(folder.path(), "long.txt", &long[..1 << 20]);
    for model in [&classes, &tokens] {
        let done = run(["classify", "--model", model, "--input", &context]).success();
        assert!(
            stderr(&done).contains("only the first 16"),
            "{}",
            stderr(&done)
        );
    }
    let line = json(&[
        "answer",
        "--model",
        &answer,
        "--context",
        &context,
        "--stride",
        "0",
        "was?",
    ]);
    assert!(line["windows"].as_u64().unwrap() > 10_000, "{line}");
    for command in ["embed", "similar"] {
        let done = regard()
            .args([command, "--model", &sentences])
            .write_stdin(format!("{long}\nriver\n{long}\n"))
            .assert()
            .success();
        assert!(
            stderr(&done).contains("2 of 3 texts have more than 16 tokens"),
            "{}",
            stderr(&done)
        );
    }
    let all = json(&["evaluate", "--model", &writes, "--text", &context]);
    // The words, the last one cut off, and [SEP].
    assert_eq!(all["tokens"].as_u64(), Some((1u64 << 20).div_ceil(6) + 1));
}
