//! `regard experiment`.

use std::fs;

use serde_json::Value;
use tempfile::tempdir;

use crate::{inside, refused, run, stdout};

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
