//! Configurations: values by key and type, and errors that say where they are.

use regard_models::pretrained::{Config, PretrainedError};
use serde_json::{Value, json};

use crate::common::Files;

fn config(value: Value) -> Config {
    Config::new("m/config.json", value).unwrap()
}

fn message<T: std::fmt::Debug>(result: Result<T, PretrainedError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn values_are_read_by_type() {
    let config = config(json!({
        "n": 12, "zero": 0, "eps": 1e-5, "two": 2, "yes": true, "name": "gelu", "nothing": null, "eos": 7, "several": [7, 9],
        "sizes": [1, 2], "floats": [1.0, 2.5, 3], "kinds": ["a", "b"], "inner": {"deep": {"x": 3}},
    }));
    assert_eq!(config.size("n").unwrap(), 12);
    assert_eq!(config.size_or("none", 5).unwrap(), 5);
    assert_eq!(config.size_or("nothing", 5).unwrap(), 5);
    assert_eq!(config.size_or("n", 5).unwrap(), 12);
    assert_eq!(config.count("zero").unwrap(), 0);
    assert_eq!(config.float("two").unwrap(), 2.0);
    assert_eq!(config.positive("eps").unwrap(), 1e-5);
    assert_eq!(config.positive_or("nothing", 1.0).unwrap(), 1.0);
    assert!(config.flag("yes").unwrap() && !config.flag_or("no", false).unwrap());
    assert_eq!(config.text("name").unwrap(), "gelu");
    assert_eq!(config.text_or("nothing", "relu").unwrap(), "relu");
    assert_eq!(config.ids("eos").unwrap(), [7]);
    assert_eq!(config.ids_or("several", vec![]).unwrap(), [7, 9]);
    assert_eq!(config.sizes("sizes").unwrap(), [1, 2]);
    assert_eq!(config.floats("floats").unwrap(), [1.0, 2.5, 3.0]);
    assert_eq!(config.texts("kinds").unwrap(), ["a", "b"]);
    assert_eq!(config.one_of("name", &["relu", "gelu"]).unwrap(), 1);
    assert!(config.has("zero") && !config.has("nothing") && !config.has("none"));
    let deep = config
        .section("inner")
        .unwrap()
        .unwrap()
        .section("deep")
        .unwrap()
        .unwrap();
    assert_eq!(deep.size("x").unwrap(), 3);
    assert!(config.section("nothing").unwrap().is_none());
}

#[test]
fn errors_name_file_key_and_both_sides() {
    let config = config(json!({
        "text": "12", "negative": -1, "zero": 0, "half": 0.5, "large": 16_777_217, "huge": 1e300, "list": [1, "b"],
        "model_type": "gpt3", "far": "zzzzzz", "scaling": {"factor": "8", "kind": 5}, "long": "x".repeat(500),
    }));
    let size = "a whole number from 1 to 16777216";
    for (key, found) in [
        ("text", "\"12\""),
        ("negative", "-1"),
        ("zero", "0"),
        ("half", "0.5"),
        ("large", "16777217"),
        ("huge", "1e+300"),
        ("none", "nothing"),
    ] {
        let expected = format!("m/config.json: {key}: found {found}; expected {size}");
        assert_eq!(message(config.size(key)), expected);
        if key != "none" {
            assert_eq!(message(config.size_or(key, 3)), expected);
        }
    }
    assert_eq!(
        message(config.flag("zero")),
        "m/config.json: zero: found 0; expected true or false"
    );
    assert_eq!(
        message(config.float("text")),
        "m/config.json: text: found \"12\"; expected a number"
    );
    assert_eq!(
        message(config.positive("zero")),
        "m/config.json: zero: found 0; expected a number above 0"
    );
    assert_eq!(
        message(config.text("zero")),
        "m/config.json: zero: found 0; expected a text"
    );
    assert_eq!(
        message(config.sizes("list")),
        "m/config.json: list: found [1,\"b\"]; expected a list of whole numbers from 1 to 16777216"
    );
    assert_eq!(
        message(config.ids("negative")),
        "m/config.json: negative: found -1; expected the id of a token or a list of them"
    );
    let known = ["bert", "gpt2", "llama"];
    assert_eq!(
        message(config.one_of("model_type", &known)),
        "m/config.json: model_type: found \"gpt3\"; expected one of bert, gpt2, llama; did you mean \"gpt2\"?"
    );
    assert_eq!(
        message(config.one_of("far", &known)),
        "m/config.json: far: found \"zzzzzz\"; expected one of bert, gpt2, llama"
    );
    let scaling = config.section("scaling").unwrap().unwrap();
    assert_eq!(
        message(scaling.positive("factor")),
        "m/config.json: scaling.factor: found \"8\"; expected a number above 0"
    );
    assert_eq!(
        message(scaling.section("kind")),
        "m/config.json: scaling.kind: found 5; expected an object"
    );
    assert_eq!(
        scaling.refuse("kind", "a divisor of 8").to_string(),
        "m/config.json: scaling.kind: found 5; expected a divisor of 8"
    );
    assert!(message(config.size("long")).len() < 200);
}

#[test]
fn labels_have_their_numbers() {
    let labels = |value| config(value).labels();
    let names = labels(json!({"id2label": {"1": "GOOD", "0": "BAD"}})).unwrap();
    assert_eq!(names, ["BAD", "GOOD"]);
    assert_eq!(labels(json!({})).unwrap(), ["LABEL_0", "LABEL_1"]);
    assert_eq!(labels(json!({"num_labels": 3})).unwrap().len(), 3);
    assert_eq!(labels(json!({"num_labels": 65536})).unwrap().len(), 1 << 16);
    assert_eq!(
        message(labels(json!({"num_labels": 16_777_216}))),
        "m/config.json: num_labels: found 16777216; expected at most 65536 without their names in id2label"
    );
    assert!(
        message(labels(json!({"id2label": {"0": "BAD", "2": "GOOD"}})))
            .contains("id2label.1: found nothing")
    );
    assert!(
        message(labels(json!({"id2label": {"0": 5}})))
            .contains("id2label.0: found 5; expected a text")
    );
    assert!(message(labels(json!({"id2label": {}}))).contains("expected at least one label"));
}

#[test]
fn a_file_must_be_an_object_of_moderate_size() {
    let files = Files::new();
    let read = || Config::read_file(files.file("config.json"));
    assert!(matches!(read(), Err(PretrainedError::Read { .. })));
    files.write("config.json", "[1]");
    assert!(message(read()).ends_with("config.json: found [1]; expected a JSON object"));
    files.write("config.json", "{\"a\": ");
    assert!(message(read()).contains("unexpected JSON: EOF"));
    files.write("config.json", vec![b' '; (16 << 20) + 1]);
    assert!(message(read()).contains("at most 16777216"));
    files.write("config.json", "[".repeat(100_000));
    assert!(message(read()).contains("recursion limit"));
    files.remove("config.json");
    std::fs::create_dir(files.file("config.json")).unwrap();
    assert!(message(read()).contains("expected a file"));
}
