//! `regard compare`.

use std::{
    fs,
    path::Path,
    process::{self, Stdio},
    thread::sleep,
    time::Duration,
};

use assert_cmd::assert::Assert;
use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::{RECIPE, file, inside, refused, refused_command, regard, run, stderr, stdout};

/// The task of [`RECIPE`] without attention.
fn without_attention() -> String {
    let (_, data) = RECIPE.split_once("[data.synthetic]").unwrap();
    format!(
        "[model]\nkind = \"seq2seq\"\nembedding = 16\nhidden = 24\nmaxout = 16\n[data.synthetic]{data}"
    )
}

/// A folder with `att.toml` and `none.toml`, and the folder for their results.
fn recipes() -> (TempDir, [String; 2], String) {
    let folder = tempdir().unwrap();
    let files = [
        file(folder.path(), "att.toml", RECIPE),
        file(folder.path(), "none.toml", without_attention()),
    ];
    let (_, out) = inside(folder.path(), "out");
    (folder, files, out)
}

fn compare(recipes: &[String; 2], out: &str, budget: &str, more: &[&str]) -> Assert {
    regard()
        .arg("compare")
        .args(recipes)
        .args(["--budget", budget, "--folder", out])
        .args(["--set", "training.validate_every=10", "--resamples=50"])
        .args(more)
        .assert()
}

fn parsed(assert: &Assert) -> Value {
    serde_json::from_str(&stdout(assert)).unwrap()
}

#[test]
fn two_recipes_from_start_to_table() {
    let (folder, recipes, out) = recipes();
    let assert = compare(&recipes, &out, "6ktokens", &[]).success();
    let progress = stderr(&assert);
    for part in [
        "att (1 of 2), 6000 tokens",
        "none (2 of 2)",
        "rnnsearch: ",
        "seq2seq: ",
    ] {
        assert!(progress.contains(part), "{part:?} is not in: {progress}");
    }
    let text = stdout(&assert);
    let cells = |name: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name} is not in: {text}"));
        line.split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(
        cells("recipe"),
        [
            "recipe",
            "parameters",
            "updates",
            "time",
            "tokens/s",
            "peak memory",
            "loss",
            "BLEU",
            "chrF2",
            "AER"
        ]
    );
    let (att, none) = (cells("att"), cells("none"));
    assert_eq!((att.len(), none.len()), (10, 10));
    for row in [&att, &none] {
        assert!(row[1].parse::<usize>().unwrap() > 1000, "{row:?}");
        assert!(row[4].parse::<f64>().unwrap() > 0.0, "{row:?}");
        assert!(
            row[5].ends_with(" MiB") && row[7].contains(" ± "),
            "{row:?}"
        );
    }
    // Without attention there is no alignment.
    assert!(att[9].parse::<f64>().unwrap() <= 1.0 && none[9] == "-");
    for part in [
        "Each trained for 6000 tokens; judged on the test data.",
        "tok:13a",
        "BLEU by source length",
        "p = ",
        "Validation loss\n  o att\n  x none\n",
        "minutes of training",
    ] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    let out_folder = folder.path().join("out");
    for name in [
        "loss.svg",
        "loss.png",
        "length.svg",
        "length.png",
        "comparison.json",
        "att/model.safetensors",
        "none/model.safetensors",
        "none/recipe.toml",
    ] {
        assert!(out_folder.join(name).is_file(), "{name}");
    }
    let svg = fs::read_to_string(out_folder.join("loss.svg")).unwrap();
    assert!(svg.contains("att") && svg.contains("none"));

    // Nothing is trained again, and no file changes.
    let stamp = |name: &str| {
        let file = out_folder.join(name).join("model.safetensors");
        fs::metadata(file).unwrap().modified().unwrap()
    };
    let before = (stamp("att"), stamp("none"));
    let (picture, png) = inside(folder.path(), "length.png");
    let more = [
        "--json",
        "--buckets",
        "3",
        "--least-sentences=1",
        "--png",
        &png,
    ];
    let again = compare(&recipes, &out, "6ktokens", &more).success();
    assert!(picture.is_file());
    assert_eq!(stderr(&again).matches("trained already").count(), 2);
    assert_eq!((stamp("att"), stamp("none")), before);
    let saved = fs::read_to_string(out_folder.join("comparison.json")).unwrap();
    assert_eq!(stdout(&again), saved);
    let first = parsed(&again);
    assert_eq!(first["budget"]["tokens"], 6000);
    assert_eq!(first["bootstrap"].as_array().unwrap().len(), 2);
    let bounds: Vec<&Value> = first["by_length"][0]["buckets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|bucket| &bucket["longest"])
        .collect();
    assert_eq!(bounds, [&Value::from(3), &Value::Null]);
    let training = |all: &Value, index: usize, key: &str| {
        let found = all["recipes"][index]["training"][key].as_u64();
        found.unwrap_or_else(|| panic!("{key} of {index} in {all}"))
    };
    for index in [0, 1] {
        let tokens = training(&first, index, "tokens");
        // The last update may go beyond the budget, by one batch.
        assert!((6000..6000 + 32 * 6).contains(&tokens), "{tokens}");
        assert!(training(&first, index, "peak_memory") > 10_000);
        assert!(first["recipes"][index]["judged"]["scores"][0]["score"].is_f64());
    }

    // A larger budget continues the same runs; a budget below what was spent is refused.
    let longer = compare(&recipes, &out, "8ktokens", &["--json", "--quiet"]).success();
    assert_eq!(stderr(&longer), "");
    let longer = parsed(&longer);
    for index in [0, 1] {
        let (few, many) = (
            training(&first, index, "updates"),
            training(&longer, index, "updates"),
        );
        assert!(few < many && many < 2 * few, "{few} {many}");
        let curve = longer["recipes"][index]["training"]["curve"]
            .as_array()
            .unwrap();
        assert!(curve[0]["step"] == 10 && curve.len() > 3, "{curve:?}");
    }
    let less = compare(&recipes, &out, "5ktokens", &[]).code(1);
    assert!(
        stderr(&less).contains("has trained for 8"),
        "{}",
        stderr(&less)
    );
    assert!(stderr(&less).contains("more than 5000 tokens"));
    let other = compare(&recipes, &out, "9ktokens", &["--set", "model.hidden=20"]).code(1);
    assert!(
        stderr(&other).contains("a run of another recipe"),
        "{}",
        stderr(&other)
    );
}

#[cfg(unix)]
#[test]
fn an_interrupted_comparison_goes_on() {
    let (folder, recipes, out) = recipes();
    let mut child = process::Command::new(env!("CARGO_BIN_EXE_regard"))
        .arg("compare")
        .args(&recipes)
        .args(["--budget", "2h", "--folder", &out, "--quiet"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let metrics = folder.path().join("out/att/metrics.jsonl");
    while fs::read_to_string(&metrics)
        .unwrap_or_default()
        .lines()
        .count()
        < 2
    {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        sleep(Duration::from_millis(20));
    }
    process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(message.contains("the same command goes on"), "{message}");
    let run = folder.path().join("out/att");
    assert!(run.join("last.safetensors").is_file() && !run.join("model.safetensors").exists());
    assert!(!folder.path().join("out/none").exists());

    // The time spent is recorded, so that the budget holds over several sessions.
    let validated = ["--set", "training.validate_every=100"];
    let refusal = stderr(&compare(&recipes, &out, "1tokens", &validated).code(1));
    let (_, tokens) = refusal.split_once("has trained for ").unwrap();
    let spent: u64 = tokens.split(' ').next().unwrap().parse().unwrap();
    let budget = format!("{}tokens", spent + 1000);
    let more = ["--json", validated[0], validated[1]];
    let assert = compare(&recipes, &out, &budget, &more).success();
    assert!(
        stderr(&assert).contains("resumed after update"),
        "{}",
        stderr(&assert)
    );
    let all = parsed(&assert);
    for index in [0, 1] {
        let tokens = all["recipes"][index]["training"]["tokens"]
            .as_u64()
            .unwrap();
        assert!(
            (spent + 1000..spent + 1000 + 32 * 6).contains(&tokens),
            "{tokens} {spent}"
        );
    }
}

#[test]
fn classifiers_are_compared_by_accuracy() {
    let folder = tempdir().unwrap();
    let sentences = |count: usize| -> String {
        let of = |i: usize| match i % 3 {
            0 => "a very good film\t1\n",
            1 => "the story was bad\t0\n",
            _ => "good actors and a fine story\t1\n",
        };
        (0..count).map(of).collect()
    };
    let train = file(folder.path(), "train.tsv", sentences(96));
    let valid = file(folder.path(), "valid.tsv", sentences(24));
    let recipe = |kind: &str| {
        format!(
            "[model]\nkind = \"{kind}\"\nembedding = 8\nhidden = 8\n[data]\nvocabulary = {{ size = 300 }}\n\
             [data.labelled]\ntrain = {train:?}\nvalid = {valid:?}\n[batch]\nsentences = 16\n[training]\nepochs = 1\n"
        )
    };
    let recipes = [
        file(folder.path(), "lstm.toml", recipe("lstm")),
        file(folder.path(), "lstmn.toml", recipe("lstmn")),
    ];
    let (_, out) = inside(folder.path(), "out");
    let text = stdout(&compare(&recipes, &out, "2ktokens", &["--quiet"]).success());
    assert!(
        text.contains("accuracy") && text.contains("judged on the validation data"),
        "{text}"
    );
    assert!(!text.contains("BLEU") && !Path::new(&out).join("length.svg").exists());
    let json = stdout(&compare(&recipes, &out, "2ktokens", &["--quiet", "--json"]).success());
    let all: Value = serde_json::from_str(&json).unwrap();
    assert!(all["recipes"][1]["judged"]["accuracy"].is_f64(), "{json}");
    // Both saw the same sentences: the difference is of pairs.
    assert!(text.contains("lstmn minus lstm: "), "{text}");
    assert!(all["paired"][0]["difference"].is_f64(), "{json}");

    refused(
        [
            "compare",
            &recipes[0],
            &recipes[1],
            "--budget=1s",
            "--png=x",
        ],
        2,
        ["--png", "classifies"],
    );
    let translator = file(folder.path(), "t.toml", RECIPE);
    refused(
        ["compare", &recipes[0], &translator, "--budget=1s"],
        1,
        ["lstm.toml classifies", "t.toml translates"],
    );
}

#[test]
fn models_of_images_are_compared_by_their_own_scores() {
    let folder = tempdir().unwrap();
    for (name, models, scores) in [
        (
            "captions",
            [
                "kind = \"captioner\"\nembedding = 8\nhidden = 8",
                "kind = \"captioner\"\nembedding = 8\nhidden = 8\ndecoder = \"top-down\"",
            ],
            &["exact", "BLEU-4", "CIDEr-D", "inside"][..],
        ),
        (
            "questions",
            [
                "kind = \"vqa\"\nhidden = 8",
                "kind = \"vqa\"\nhidden = 8\nattention = \"question-only\"",
            ],
            &["accuracy", "pointing"],
        ),
        (
            "objects",
            [
                "kind = \"detr\"\nd_model = 16\nheads = 2\nqueries = 2",
                "kind = \"detr\"\nd_model = 16\nheads = 2\nqueries = 3",
            ],
            &["AP50", "AP75"],
        ),
    ] {
        let recipes = [0, 1].map(|index| {
            // A model that sees no image has none.
            let backbone = match models[index].contains("question-only") {
                true => "",
                false => "[model.backbone]\nchannels = 4\nstages = 2\n",
            };
            let recipe = format!(
                "[model]\n{}\n{backbone}[data.scenes]\ntrain = 16\nvalid = 4\ntest = 4\n\
                 size = 32\nobjects = 1\ndigits = false\n[batch]\nsentences = 8\n[training]\nepochs = 1\n",
                models[index]
            );
            file(folder.path(), &format!("{name}-{index}.toml"), recipe)
        });
        let (_, out) = inside(folder.path(), name);
        let text = stdout(&compare(&recipes, &out, "100tokens", &["--quiet"]).success());
        let header = text.lines().next().unwrap_or_default();
        for score in scores {
            assert!(header.contains(score), "{score:?} is not in: {text}");
        }
        let json = stdout(&compare(&recipes, &out, "100tokens", &["--quiet", "--json"]).success());
        let all: Value = serde_json::from_str(&json).unwrap();
        assert!(all["recipes"][1]["judged"].is_object(), "{json}");
        // Differences are of the same images.
        let (metric, result) = (
            &all["bootstrap"][0]["metric"],
            &all["bootstrap"][0]["result"],
        );
        let line = format!("\n{}: {name}-0 = ", metric.as_str().unwrap());
        assert!(text.contains(&line), "{line:?} is not in: {text}");
        let interval = &result["difference_confidence"];
        assert!(interval["lower"].as_f64() <= interval["upper"].as_f64());
        assert!(interval["lower"].is_f64(), "{json}");
        let changed = fs::read_to_string(&recipes[1]).unwrap();
        let changed = changed.replace("test = 4", "test = 5");
        let changed = file(folder.path(), "changed.toml", changed);
        let pair = [recipes[0].clone(), changed];
        let refusal = stderr(&compare(&pair, &out, "100tokens", &[]).code(1));
        assert!(refusal.contains("different test data"), "{refusal}");
    }
}

#[test]
fn what_cannot_be_compared() {
    let (folder, [att, none], out) = recipes();
    let with = |recipes: [&str; 2], budget: &str, code: i32, parts: &[&str]| {
        let mut command = regard();
        command.arg("compare").args(recipes).args([
            "--folder",
            &out,
            &format!("--budget={budget}"),
        ]);
        let assert = command.assert().code(code);
        let message = stderr(&assert);
        assert!(message.contains("error: "), "{message}");
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in: {message}");
        }
    };
    for budget in ["soon", "20", "0m", "-5m", "5M"] {
        with([&att, &none], budget, 2, &[budget, "20m"]);
    }
    let (_, missing) = inside(folder.path(), "missing.toml");
    with([&att, &missing], "1s", 1, &["missing.toml"]);
    with([&att, &att], "1s", 1, &["att.toml", "the same recipe"]);
    fs::create_dir(folder.path().join("b")).unwrap();
    let namesake = file(&folder.path().join("b"), "att.toml", without_attention());
    with(
        [&att, &namesake],
        "1s",
        1,
        &["both called \"att\"", "NAME="],
    );
    let named = format!("a/b={none}");
    with([&att, &named], "1s", 2, &["\"a/b\"", "folder"]);
    let other = without_attention().replace("symbols = 6", "symbols = 7");
    let other = file(folder.path(), "other.toml", other);
    with(
        [&att, &other],
        "1s",
        1,
        &["other.toml", "different test data"],
    );
    for buckets in ["8,5", "0", "a", ""] {
        let buckets = format!("--buckets={buckets}");
        refused(
            ["compare", &att, &none, "--budget=1s", &buckets],
            2,
            ["rising", "8,14,20"],
        );
    }
    // A former name of --folder.
    refused(
        ["compare", &att, &att, "--budget=1s", "--out", &out],
        1,
        ["the same recipe"],
    );
    run(["compare", &att, "--budget", "1s"]).code(2);
    run(["compare", &att, &none]).code(2);
    let of_text =
        "[model]\nkind = \"lstm-lm\"\n[data.text]\ntrain = \"x.txt\"\n[training]\nsteps = 1\n";
    let model = file(folder.path(), "lm.toml", of_text);
    let twin = file(folder.path(), "lm2.toml", format!("{of_text}seed = 2\n"));
    with(
        [&model, &twin],
        "1s",
        1,
        &["lm.toml", "language model", "evaluate --model RUN --text"],
    );
    // No training was begun.
    assert!(!Path::new(&out).exists());
    // Nor where the picture has no place.
    let (_, nowhere) = inside(folder.path(), "none/length.svg");
    for (picture, code, part) in [(&att, 2, "would be lost"), (&nowhere, 1, "cannot write")] {
        let compare = ["compare", &att, &none, "--budget=1s", "--folder", &out];
        refused_command(
            regard().args(compare).args(["--svg", picture]),
            code,
            [picture.as_str(), part],
        );
        assert!(!Path::new(&out).join("att").exists());
    }
    assert_eq!(fs::read_to_string(&att).unwrap(), RECIPE);
    // Nor where it would take the place of a text that a recipe reads.
    let [source, target] = ["source", "target"].map(|name| file(folder.path(), name, "a b\nb a\n"));
    let of_files = ["rnnsearch", "seq2seq"].map(|kind| {
        let recipe = format!(
            "[model]\nkind = \"{kind}\"\n[data]\ntrain_source = {source:?}\ntrain_target = {target:?}\n\
             valid_source = {source:?}\nvalid_target = {target:?}\n[training]\nsteps = 1\n"
        );
        file(folder.path(), &format!("{kind}.toml"), recipe)
    });
    for drawing in ["--svg", "--png", "--html"] {
        let refusal = stderr(&compare(&of_files, &out, "1s", &[drawing, &target]).code(2));
        let parts = [target.as_str(), "would be lost"];
        assert!(parts.iter().all(|part| refusal.contains(part)), "{refusal}");
    }
    assert_eq!(fs::read_to_string(&target).unwrap(), "a b\nb a\n");
    refused_command(
        regard().args([
            "compare",
            &att,
            &none,
            "--budget=1s",
            "--set",
            "model.hiden=2",
        ]),
        1,
        ["hiden"],
    );
}
