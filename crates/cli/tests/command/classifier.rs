//! Classifiers of sentences: trained, evaluated and used by the command.

use std::{fs, path::Path, sync::OnceLock};

use serde_json::Value;
use tempfile::tempdir;

use crate::{file, inside, refused, refused_command, regard, run, stderr, stdout, text, trained};

/// Sentences whose label follows from one word.
fn sentences(count: usize) -> String {
    const FILL: [&str; 5] = ["the", "film", "was", "very", "story"];
    (0..count)
        .map(|i| {
            let word = |k: usize| FILL[(i * 13 + k * 7 + i / 5) % 5];
            let good = i * 7 % 11 % 2;
            let told = ["bad", "good"][good];
            format!("{} {} {told} {}\t{good}\n", word(0), word(1), word(2))
        })
        .collect()
}

/// The run folder of a classifier that knows `good` from `bad`; trained once, by the program.
fn classifier() -> &'static str {
    static RUN: OnceLock<String> = OnceLock::new();
    RUN.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("regard-classifier");
        // A former test's folder; on a first run there is none.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let train = file(&folder, "train.tsv", sentences(160));
        let valid = file(&folder, "valid.tsv", sentences(30));
        let recipe = format!(
            r#"
            [model]
            kind = "lstmn"
            embedding = 12
            hidden = 12
            attention_dimension = 8
            readout = 8
            [data]
            vocabulary = {{ size = 400 }}
            [data.labelled]
            train = {train:?}
            valid = {valid:?}
            test = {valid:?}
            [batch]
            sentences = 16
            [schedule]
            learning_rate = 0.02
            [training]
            epochs = 6
            "#
        );
        let recipe = file(&folder, "classifier.toml", recipe);
        let run_folder = text(&folder.join("run"));
        let assert = run(["train", &recipe, "--folder", &run_folder]).success();
        let progress = stderr(&assert);
        for part in [
            "lstmn: ",
            "160 labelled sentences",
            "accuracy",
            "the best so far",
        ] {
            assert!(progress.contains(part), "{part:?} is not in: {progress}");
        }
        assert!(!progress.contains("BLEU"), "{progress}");
        run_folder
    })
}

#[test]
fn a_classifier_is_scored_by_its_accuracy() {
    let folder = tempdir().unwrap();
    let model = classifier();
    let of_split = stdout(&run(["evaluate", "--model", model, "--split", "test"]).success());
    assert!(
        of_split.starts_with("accuracy 100.00 % (30 of 30 sentences;"),
        "{of_split}"
    );
    assert!(of_split.contains("of label 0: "), "{of_split}");
    let labelled = file(folder.path(), "labelled.tsv", "very good film\t0\nbad\t0\n");
    let (output, argument) = inside(folder.path(), "labels.txt");
    let mut command = regard();
    command.args([
        "evaluate",
        "--model",
        model,
        "--labelled",
        &labelled,
        "--json",
    ]);
    let assert = command.args(["--output", &argument]).assert().success();
    let report: Value = serde_json::from_str(&stdout(&assert)).unwrap();
    let judged = &report["classifiers"][0];
    assert_eq!(
        (judged["correct"].as_u64(), judged["sentences"].as_u64()),
        (Some(1), Some(2))
    );
    assert_eq!(judged["confusion"][0], serde_json::json!([1, 1]));
    assert_eq!(fs::read_to_string(output).unwrap(), "1\n0\n");
    let score =
        stdout(&run(["evaluate", "--model", model, "--labelled", &labelled, "-b"]).success());
    assert_eq!(score, "50.0\n");
}

#[test]
fn classify_shows_the_label_and_the_links() {
    let model = classifier();
    let shown = stdout(
        &run([
            "classify",
            "--model",
            model,
            "--attention",
            "the film was good",
        ])
        .success(),
    );
    assert!(shown.starts_with("1 ("), "{shown}");
    for part in ["film", "good", "</s>", "rows"] {
        assert!(shown.contains(part), "{part:?} is not in: {shown}");
    }
    let mut command = regard();
    command
        .args(["classify", "--model", model, "--json", "--attention"])
        .write_stdin("the good film\nthe bad film\n");
    let lines: Vec<Value> = stdout(&command.assert().success())
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(
        (&lines[0]["label"], &lines[1]["label"]),
        (&"1".into(), &"0".into())
    );
    let map = &lines[0]["maps"][0];
    assert_eq!(
        map["keys"],
        serde_json::json!(["the", "good", "film", "</s>"])
    );
    assert_eq!(
        map["weights"][0][0],
        serde_json::json!([0.0, 0.0, 0.0, 0.0])
    );
    assert_eq!(map["weights"][0][1][0], 1.0);
}

#[test]
fn classify_writes_pictures_and_traces() {
    let (folder, model) = (tempdir().unwrap(), classifier());
    let [svg, png, html, trace] =
        ["a.svg", "a.png", "a.html", "a.safetensors"].map(|name| inside(folder.path(), name).1);
    let mut command = regard();
    command.args(["classify", "--model", model, "the film was good"]);
    command.args([
        "--svg", &svg, "--png", &png, "--html", &html, "--trace", &trace,
    ]);
    command.assert().success();
    assert!(fs::read_to_string(svg).unwrap().contains("good"));
    assert!(fs::read(png).unwrap().starts_with(b"\x89PNG"));
    assert!(fs::read_to_string(html).unwrap().contains("good"));
    let shown = stdout(&run(["view", &trace]).success());
    assert!(shown.contains("lstmn: the film was good → 1"), "{shown}");
}

#[test]
fn the_tasks_are_not_mixed_up() {
    let (folder, model) = (tempdir().unwrap(), classifier());
    refused(
        ["translate", "--model", model, "a"],
        1,
        ["holds a classifier of sentences"],
    );
    refused(
        ["classify", "--model", trained(), "a"],
        1,
        ["holds a model that translates"],
    );
    refused(
        ["evaluate", "--model", model, "--source", "x"],
        2,
        ["--labelled PATH"],
    );
    let unknown = file(folder.path(), "unknown.tsv", "a film\tmaybe\n");
    refused(
        ["evaluate", "--model", model, "--labelled", &unknown],
        1,
        ["line 1", "\"maybe\"", "expected one of 0, 1"],
    );
    let about = stdout(&run(["model", model]).success());
    assert!(
        about.contains("lstmn, a classifier of sentences"),
        "{about}"
    );
    let (half, argument) = inside(folder.path(), "half.safetensors");
    run(["model", model, "--f16", &argument]).success();
    assert!(half.is_file());
    let shown = stdout(&run(["classify", "--model", &argument, "a good film"]).success());
    assert!(shown.starts_with("1 ("), "{shown}");
    // Without --attention there is the label alone, and another one if it is asked for.
    assert_eq!(shown.lines().count(), 1);
    let two = ["classify", "--model", model, "--top", "2", "a good film"];
    let shown = stdout(&run(two).success());
    assert_eq!(shown.lines().count(), 2, "{shown}");
    assert!(
        shown.lines().nth(1).unwrap().starts_with("  0 ("),
        "{shown}"
    );
}

#[test]
fn sentences_that_are_cut_are_counted() {
    let (folder, model) = (tempdir().unwrap(), classifier());
    let long = "very ".repeat(150);
    let labelled = format!("{long}good\t1\na good film\t1\n");
    let labelled = file(folder.path(), "long.tsv", labelled);
    let evaluate = ["evaluate", "--model", model, "--labelled", &labelled];
    let told = stderr(&run(evaluate).success());
    let expected = "1 of 2 sentences have more than 100 tokens; only their start is read";
    assert_eq!(told.matches(expected).count(), 1, "{told}");
    let mut quiet = regard();
    let quiet = quiet.args(evaluate).args(["--quiet", "--json"]);
    let quiet = quiet.assert().success();
    assert!(!stderr(&quiet).contains("warning"), "{}", stderr(&quiet));
    let report: Value = serde_json::from_str(&stdout(&quiet)).unwrap();
    assert_eq!(report["classifiers"][0]["cut"], 1);
}

#[test]
fn options_of_translations_are_not_for_classifiers() {
    let (folder, model) = (tempdir().unwrap(), classifier());
    let (output, argument) = inside(folder.path(), "labels.txt");
    fs::write(&output, "1\n").unwrap();
    for more in [
        ["--resume", "--output", &argument].as_slice(),
        &["--hypotheses", &argument],
        &["--tokenizer", "char"],
        &["--smoothing", "none"],
        &["--seed", "3"],
        &["--beam", "3"],
    ] {
        let mut command = regard();
        command.args(["evaluate", "--model", model, "--split", "test"]);
        refused_command(command.args(more), 2, [more[0], "leave it out"]);
    }
    assert_eq!(fs::read_to_string(&output).unwrap(), "1\n");
    refused(
        ["classify", "--model", model, "--weights", "f16", "good"],
        2,
        ["--weights", "leave it out"],
    );
}
