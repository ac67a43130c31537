//! `regard train`.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{self, Stdio},
};

use serde_json::Value;
use tempfile::tempdir;

use crate::{RECIPE, file, inside, refused, regard, run, stderr, stdout, text, trained};

/// The lines of a run's metrics without those values that depend on time and folder.
fn metrics(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    text.lines()
        .map(|line| {
            let mut value: Value = serde_json::from_str(line).unwrap();
            let fields = value.as_object_mut().unwrap();
            fields.remove("seconds");
            fields.remove("tokens_per_second");
            value
        })
        .collect()
}

#[test]
fn a_run_folder_holds_everything() {
    let folder = tempdir().unwrap();
    let recipe = file(folder.path(), "small.toml", RECIPE);
    let mut command = regard();
    command
        .current_dir(folder.path())
        .args(["train", &recipe, "--set", "training.steps=20"]);
    let assert = command
        .args(["--set", "training.validate_every=10"])
        .assert()
        .success();
    assert_eq!(stdout(&assert), "runs/small/model.safetensors\n");
    let progress = stderr(&assert);
    for part in [
        "rnnsearch: ",
        "320 sentence pairs",
        "update 5/20",
        "perplexity",
        "tokens/s",
        "validation at update 10",
        "(teacher-forced)",
        "tok:13a",
        "done after 20 updates",
    ] {
        assert!(progress.contains(part), "{part:?} is not in: {progress}");
    }
    assert!(
        !progress.contains('\u{1b}'),
        "no escape sequences in a pipe: {progress:?}"
    );
    let run = folder.path().join("runs/small");
    for name in [
        "recipe.toml",
        "tokenizer.json",
        "last.safetensors",
        "best.safetensors",
        "model.safetensors",
        "metrics.jsonl",
        "validation/step-20.txt",
    ] {
        assert!(run.join(name).is_file(), "{name}");
    }
    let losses = metrics(&run)
        .iter()
        .filter(|line| line["kind"] == "train")
        .count();
    assert_eq!(losses, 4);
}

#[test]
fn events_are_json_lines_and_quiet_is_quiet() {
    let folder = tempdir().unwrap();
    let recipe = file(folder.path(), "r.toml", RECIPE);
    let (_, run_folder) = inside(folder.path(), "run");
    let steps = ["--set", "training.steps=10"];
    let mut command = regard();
    let assert = command
        .args(["train", &recipe, "--json", "--folder", &run_folder])
        .args(steps)
        .assert();
    let assert = assert.success();
    let events: Vec<Value> = stdout(&assert)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(events[0]["kind"], "started");
    assert_eq!(events[0]["last_update"], 10);
    assert!(
        events
            .iter()
            .any(|event| event["kind"] == "train" && event["loss"].is_f64())
    );
    assert_eq!(events.last().unwrap()["reason"], "limit");
    assert_eq!(stderr(&assert), "");

    let mut command = regard();
    let assert = command
        .args([
            "train",
            "--resume",
            &run_folder,
            "--quiet",
            "--set",
            "training.steps=15",
        ])
        .assert()
        .success();
    assert_eq!(stderr(&assert), "");
    assert!(stdout(&assert).ends_with("model.safetensors\n"));
}

#[test]
fn a_resumed_run_equals_an_uninterrupted_one() {
    let folder = tempdir().unwrap();
    // With dropout and an average, so that everything random is part of the comparison.
    let recipe = RECIPE.replace(
        "embedding = 0.0, annotation = 0.0",
        "embedding = 0.2, annotation = 0.1",
    );
    let recipe = file(folder.path(), "r.toml", recipe);
    let (whole, whole_argument) = inside(folder.path(), "whole");
    let (halves, halves_argument) = inside(folder.path(), "halves");
    let common = [
        "--quiet",
        "--set",
        "training.validate_every=7",
        "--set",
        "training.average=2",
    ];
    let train = |arguments: [&str; 5]| {
        regard()
            .arg("train")
            .args(arguments)
            .args(common)
            .assert()
            .success();
    };
    train([
        &recipe,
        "--folder",
        &whole_argument,
        "--set",
        "training.steps=28",
    ]);
    train([
        &recipe,
        "--folder",
        &halves_argument,
        "--set",
        "training.steps=14",
    ]);
    train([
        "--resume",
        &halves_argument,
        "--set",
        "training.steps=28",
        "--threads=1",
    ]);
    let once: Vec<Value> = metrics(&whole);
    let twice: Vec<Value> = metrics(&halves);
    // The first half ended with a final average of its own.
    let comparable = |lines: &[Value]| -> Vec<Value> {
        let lines = lines.iter().filter(|line| line["kind"] != "averaged");
        lines.cloned().collect()
    };
    assert_eq!(comparable(&once), comparable(&twice));
    assert!(comparable(&once).len() > 8);
    let translate = |model: &str| {
        stdout(&run(["translate", "-m", model, "--n-best=2", "a b c", "f e"]).success())
    };
    assert_eq!(translate(&whole_argument), translate(&halves_argument));
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_and_resuming_goes_on_as_if_nothing_had_been() {
    let folder = tempdir().unwrap();
    let recipe = file(folder.path(), "r.toml", RECIPE);
    let (stopped, stopped_argument) = inside(folder.path(), "stopped");
    let mut child = process::Command::new(env!("CARGO_BIN_EXE_regard"))
        .args(["train", &recipe, "--json", "--folder", &stopped_argument])
        .args([
            "--set",
            "training.steps=1000000",
            "--set",
            "training.validate_every=1000000",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut events = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_training = |line: &String| line.contains("\"kind\":\"train\"");
    events
        .by_ref()
        .map(Result::unwrap)
        .find(is_training)
        .unwrap();
    process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    let last = events.map(Result::unwrap).last().unwrap();
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(
        message.contains(&format!("regard train --resume {stopped_argument}")),
        "{message}"
    );
    let last: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(last["reason"], "interrupted");
    assert!(!stopped.join("model.safetensors").exists());

    let steps = format!("training.steps={}", last["step"].as_u64().unwrap() + 20);
    let (whole, whole_argument) = inside(folder.path(), "whole");
    let mut resume = regard();
    resume
        .args([
            "train",
            "--resume",
            &stopped_argument,
            "--quiet",
            "--set",
            &steps,
        ])
        .assert()
        .success();
    let mut command = regard();
    command
        .args([
            "train",
            &recipe,
            "--quiet",
            "--folder",
            &whole_argument,
            "--set",
            &steps,
        ])
        .args(["--set", "training.validate_every=1000000"])
        .assert()
        .success();
    assert_eq!(metrics(&stopped), metrics(&whole));
}

#[test]
fn the_examples_are_recipes() {
    let folder = tempdir().unwrap();
    for (kind, data) in [
        ("rnnsearch", "data/train.en.gz"),
        ("luong", "data/train.en.gz"),
        ("seq2seq", "data/train.en.gz"),
        ("gnmt", "data/train.en.gz"),
        ("lstmn-translation", "data/train.en.gz"),
        ("lstmn", "data/train.tsv"),
        ("lstm", "data/train.tsv"),
        ("self-attentive", "data/train.tsv"),
    ] {
        let example = stdout(&run(["train", "--example", kind]).success());
        assert!(example.contains(&format!("kind = \"{kind}\"")) && example.contains('#'));
        let name = format!("{kind}.toml");
        file(folder.path(), &name, example);
        // It can be read, but lacks its data.
        let mut command = regard();
        crate::refused_command(
            command.current_dir(folder.path()).args(["train", &name]),
            1,
            [data, "cannot read"],
        );
    }
}

#[test]
fn a_folder_is_not_overwritten_and_nothing_is_not_resumed() {
    let folder = tempdir().unwrap();
    let recipe = file(folder.path(), "r.toml", RECIPE);
    refused(
        ["train", &recipe, "--folder", trained()],
        1,
        ["holds a run already", "--resume"],
    );
    let nowhere = text(folder.path());
    refused(
        ["train", "--resume", &nowhere],
        1,
        ["last.safetensors", &nowhere],
    );
    let (_, nothing) = inside(folder.path(), "nothing");
    refused(["train", "--resume", &nothing], 1, ["last.safetensors"]);
    refused(
        ["train", "--resume", trained(), "--folder", "x"],
        2,
        ["--folder"],
    );
}

/// A recipe of one's own in the folder of the run is not lost, not even the one that is trained.
#[test]
fn a_recipe_in_the_folder_is_not_replaced() {
    let folder = tempdir().unwrap();
    let own = format!("# Mine.\n{RECIPE}");
    let recipe = file(folder.path(), "recipe.toml", &own);
    let folder_argument = text(folder.path());
    refused(
        ["train", &recipe, "--folder", &folder_argument],
        1,
        ["would be replaced", "another folder", &recipe],
    );
    assert_eq!(fs::read_to_string(&recipe).unwrap(), own);
    assert!(!folder.path().join("metrics.jsonl").exists());
}

#[test]
fn every_model_trains_and_translates() {
    let folder = tempdir().unwrap();
    let small = "embedding = 8\nhidden = 8\n";
    let models = [
        ("cho", format!("kind = \"seq2seq\"\nmaxout = 8\n{small}")),
        (
            "sutskever",
            format!(
                "kind = \"seq2seq\"\ncell = \"lstm\"\nlayers = 2\nreverse_source = true\n{small}"
            ),
        ),
        (
            "local",
            format!(
                "kind = \"luong\"\nscore = \"dot\"\nattention = \"local-p\"\nwindow = 2\n{small}"
            ),
        ),
        ("gnmt", format!("kind = \"gnmt\"\nlayers = 3\n{small}")),
        ("lstmn", format!("kind = \"lstmn-translation\"\n{small}")),
    ];
    let (_, rest) = RECIPE.split_once("[data.synthetic]").unwrap();
    let attending = ["local", "gnmt", "lstmn"];
    for (name, model) in models {
        let recipe = format!("[model]\n{model}[data.synthetic]{rest}");
        let recipe = file(folder.path(), &format!("{name}.toml"), recipe);
        let (_, run_folder) = inside(folder.path(), name);
        let mut command = regard();
        command
            .args([
                "train",
                &recipe,
                "--folder",
                &run_folder,
                "--set",
                "training.steps=10",
            ])
            .args(["--set", "training.validate_every=10"])
            .assert()
            .success();
        let assert = run([
            "translate",
            "-m",
            &run_folder,
            "--attention",
            "always",
            "a b c",
        ])
        .success();
        let attends = stdout(&assert).contains("columns source");
        let should = attending.contains(&name);
        assert_eq!(attends, should, "{}", stdout(&assert));
        assert_eq!(stderr(&assert).contains("without attention"), !should);
        if !should {
            let (_, picture) = inside(folder.path(), "none.svg");
            refused(
                ["translate", "-m", &run_folder, "--svg", &picture, "a b"],
                1,
                [&picture, "without attention"],
            );
        }
    }
}
