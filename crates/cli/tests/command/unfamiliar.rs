//! Sentences that are far from a model's training text, and those that are not.

use std::fs;

use serde_json::Value;
use tempfile::tempdir;

use crate::{RECIPE, file, inside, refused, regard, run, stderr, stdout, trained};

/// Sentences that people type first, and text of other kinds: the embedded model was trained on captions.
const STRANGE: [&str; 20] = [
    "Hello",
    "Hello.",
    "Hi there!",
    "Hello, how are you?",
    "Good morning.",
    "Goodbye!",
    "I love you",
    "I love you.",
    "Thank you very much!",
    "What is your name?",
    "See you tomorrow.",
    "Happy birthday!",
    "I do not understand.",
    "The stock market fell by three percent on Tuesday.",
    "She said that she would resign next week.",
    "Quantum mechanics describes nature at the smallest scales.",
    "The European Parliament adopted the resolution.",
    "I think therefore I am.",
    "Das ist ein deutscher Satz.",
    "asdfghjkl qwertyuiop",
];

const FAMILIAR: [&str; 8] = [
    "A man in a red shirt is riding a bicycle.",
    "Two dogs play in the snow.",
    "A woman is singing.",
    "Children are playing in the park.",
    "A black cat sits on a chair.",
    "Three people stand in front of a building.",
    "A group of tourists takes pictures of the old church.",
    "a little girl in a pink dress",
];

#[test]
fn a_sentence_that_the_model_does_not_know_is_warned_of() {
    let assert = run(["translate", "I love you"]).success();
    let warning = stderr(&assert);
    for part in [
        "warning: ",
        "\"I love you\" is far from what the model was trained on",
        "`I`, `love`, `you` are rare in its training text",
        "a probability of 0.",
    ] {
        assert!(warning.contains(part), "{part} is not in: {warning}");
    }
    let quiet = run(["translate", "--quiet", "I love you"]).success();
    assert_eq!(stderr(&quiet), "");
    assert_eq!(stdout(&quiet), stdout(&assert));
}

#[test]
fn json_tells_the_strange_from_the_familiar() {
    let mut command = regard();
    command
        .args(["translate", "--json"])
        .args(STRANGE)
        .args(FAMILIAR);
    let assert = command.assert().success();
    for line in stdout(&assert).lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        let strange = STRANGE.contains(&value["source"].as_str().unwrap());
        assert_eq!(value.get("unfamiliar").is_some(), strange, "{line}");
        if strange {
            let why = &value["unfamiliar"];
            assert!(why["score"].as_f64().unwrap() >= 5.0, "{line}");
            assert!(why["probability"].as_f64() < why["usual_probability"].as_f64());
        }
    }
    let warnings = stderr(&assert);
    assert_eq!(warnings.matches("is far from what").count(), 5);
    assert!(
        warnings.contains("20 of 28 sentences are far from what the model was trained on"),
        "{warnings}"
    );
}

/// Familiarity can be measured for any model that translates.
#[test]
fn familiarity_is_measured_on_the_data_of_a_recipe() {
    let folder = tempdir().unwrap();
    let recipe = file(folder.path(), "r.toml", RECIPE);
    let (path, model) = inside(folder.path(), "model.safetensors");
    let about = |model: &str| stdout(&run(["model", model]).success());
    assert!(about(trained()).contains("warns         never"));
    run([
        "model",
        trained(),
        "--familiarity",
        &recipe,
        "--f32",
        &model,
        "--device",
        "cpu",
        "--threads",
        "1",
    ])
    .success();
    assert!(about(&model).contains("warns         of sentences"));
    let warned = |text: &str| stderr(&run(["translate", "-m", &model, text]).success());
    assert_eq!(warned("a b c d"), "");
    let strange = warned("x y z");
    assert!(strange.contains("`<unk>` is rare"), "{strange}");

    // The measurement is kept when the model is written again, and damage to it is an error.
    let (_, again) = inside(folder.path(), "again.safetensors");
    run(["model", &model, "--f16", &again]).success();
    assert!(about(&again).contains("warns         of sentences"));
    let bytes = fs::read(&path).unwrap();
    let at = bytes
        .windows(10)
        .position(|window| window == b"deviation\\")
        .unwrap();
    let digit = at + bytes[at..].iter().position(u8::is_ascii_digit).unwrap();
    let mut damaged = bytes.clone();
    damaged[digit..=digit + 1].copy_from_slice(b"-1");
    let damaged = file(folder.path(), "damaged.safetensors", damaged);
    refused(
        ["translate", "-m", &damaged, "a"],
        1,
        ["regard.familiarity", "--familiarity"],
    );

    refused(["model", trained(), "--familiarity", &recipe], 2, ["--f16"]);
    let other = file(
        folder.path(),
        "none.toml",
        "[model]\nkind = \"rnnsearch\"\n",
    );
    let refusal = run(["model", trained(), "--familiarity", &other, "--f16", &again]).failure();
    assert!(stderr(&refusal).contains(&other), "{}", stderr(&refusal));
}
