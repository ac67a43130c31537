//! `regard experiment`.

use std::fs;

use serde_json::Value;
use tempfile::tempdir;

use crate::{inside, refused, run, stderr, stdout};

#[test]
fn they_are_listed_and_a_near_miss_names_the_right_one() {
    let list = stdout(&run(["experiment", "--list"]).success());
    let names = [
        "why-scale",
        "reach",
        "memory",
        "length",
        "positions",
        "hard-soft",
        "local-global",
        "additive-dot",
        "teacher-forcing",
        "heads",
        "uniform",
    ];
    for name in names {
        assert!(
            list.lines().any(|line| line.starts_with(name)),
            "{name} in {list}"
        );
    }
    refused(
        ["experiment", "why-scales"],
        2,
        ["did you mean \"why-scale\"?"],
    );
    refused(["experiment"], 2, ["<NAME>"]);
    refused(["experiment", "reach", "--all"], 2, ["--all"]);
    refused(["experiment", "reach", "--seeds", "1"], 2, ["--seeds"]);
}

#[test]
fn figures_without_a_place_are_refused_at_once() {
    let folder = tempdir().unwrap();
    let [(_, svg), (_, nowhere)] = ["x.svg", "none/x.png"].map(|name| inside(folder.path(), name));
    for (png, code, part) in [(&svg, 2, "would be lost"), (&nowhere, 1, "cannot write")] {
        let arguments = ["experiment", "uniform", "--svg", &svg, "--png", png];
        let assert = run(arguments).code(code);
        assert_eq!(stdout(&assert), "");
        assert!(stderr(&assert).contains(part), "{}", stderr(&assert));
    }
}

/// What was done before an interruption is drawn.
#[cfg(unix)]
#[test]
fn an_interruption_leaves_the_figures() {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };

    let folder = tempdir().unwrap();
    let (page, html) = inside(folder.path(), "all.html");
    let mut child = Command::new(env!("CARGO_BIN_EXE_regard"))
        .args([
            "experiment",
            "--all",
            "--seeds=2",
            "--quiet",
            "--html",
            &html,
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.starts_with("why-scale: "), "{first}");
    Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    // Its output is read to the end, so that it is not a closed pipe that ends it.
    lines.for_each(drop);
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(message.contains("figures of what was done"), "{message}");
    assert!(fs::read_to_string(page).unwrap().contains("why-scale"));
}

#[test]
fn one_is_a_table_words_a_figure_and_numbers() {
    let folder = tempdir().unwrap();
    let [(svg, to_svg), (png, to_png), (html, to_html)] =
        ["x.svg", "x.png", "x.html"].map(|name| inside(folder.path(), name));
    let told = run([
        "experiment",
        "why-scale",
        "--seeds",
        "2",
        "--quiet",
        "--svg",
        &to_svg,
        "--png",
        &to_png,
        "--html",
        &to_html,
    ]);
    let told = stdout(&told.success());
    assert!(
        told.contains("variance, scaled") && told.contains("divided by √d"),
        "{told}"
    );
    assert!(
        fs::read_to_string(&svg)
            .unwrap()
            .contains("Gradient of softmax")
    );
    assert!(fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    let page = fs::read_to_string(&html).unwrap();
    assert!(
        page.contains("why-scale: why are scores")
            && page.contains("<svg")
            && page.contains("divided by √d")
    );

    let json = stdout(&run(["experiment", "reach", "--seeds", "2", "--json", "--quiet"]).success());
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["name"], "reach");
    let rows = json["table"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 7);
    assert!(rows[6][1][0]["mean"].as_f64().unwrap() < -6.0, "{json}");
}
