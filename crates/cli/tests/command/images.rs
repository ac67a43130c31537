//! Classifiers of images: trained, evaluated and used by the command.

use std::{collections::HashMap, fs, path::Path, sync::OnceLock};

use regard_images::{Image, Random};
use regard_nn::weights::{self, Arrays, Storage};
use serde_json::Value;
use tempfile::tempdir;

use crate::{file, refused, refused_command, regard, run, stderr, stdout, text};

/// A noisy image, light or dark.
fn image(light: bool, seed: u64) -> Image {
    let mut random = Random::new(seed, 2);
    let base = if light { 160 } else { 20 };
    let pixels = (0..3 * 8 * 8).map(|_| base + random.below(70) as u8);
    Image::new(8, 8, 3, pixels.collect()).unwrap()
}

fn classes(folder: &Path, count: u64, seed: u64) -> String {
    for (class, light) in [("day", true), ("night", false)] {
        fs::create_dir_all(folder.join(class)).unwrap();
        for index in 0..count {
            let path = folder.join(class).join(format!("{index:02}.png"));
            image(light, seed + index).save_png(path).unwrap();
        }
    }
    text(folder)
}

/// The run folder of a classifier that knows day from night; trained once, by the program.
fn classifier() -> &'static str {
    static RUN: OnceLock<String> = OnceLock::new();
    RUN.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("regard-images");
        // A former test's folder; on a first run there is none.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let train = classes(&folder.join("train"), 16, 0);
        let test = classes(&folder.join("test"), 3, 50);
        let recipe = format!(
            r#"
            [model]
            kind = "resnet"
            width = 0.125
            attention = "se"
            [data.images]
            train = {train:?}
            valid_share = 0.25
            test = {test:?}
            [batch]
            sentences = 8
            [schedule]
            learning_rate = 0.01
            [training]
            epochs = 6
            "#
        )
        .replace("\"se\"", "{ kind = \"se\", reduction = 2 }");
        let recipe = file(&folder, "images.toml", recipe);
        let run_folder = text(&folder.join("run"));
        let assert = run(["train", &recipe, "--folder", &run_folder]).success();
        let progress = stderr(&assert);
        for part in ["resnet: ", "24 images, 8 for validation", "accuracy"] {
            assert!(progress.contains(part), "{part:?} is not in: {progress}");
        }
        assert!(!progress.contains("vocabulary"), "{progress}");
        run_folder
    })
}

#[test]
fn images_are_classified_by_file_and_by_folder() {
    let folder = tempdir().unwrap();
    let path = |name: &str| text(&folder.path().join(name));
    let all = classes(&folder.path().join("all"), 2, 80);
    image(true, 90)
        .resize(30, 20)
        .unwrap()
        .save_png(path("large.png"))
        .unwrap();
    let night = format!("{all}/night");
    let found = stdout(
        &run([
            "classify",
            "--model",
            classifier(),
            &path("large.png"),
            &night,
        ])
        .success(),
    );
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(lines.len(), 3, "{found}");
    assert!(
        lines[0].starts_with("day (") && lines[0].ends_with("large.png"),
        "{found}"
    );
    assert!(
        lines[2].starts_with("night (") && lines[2].ends_with("01.png"),
        "{found}"
    );
    let json = stdout(&run(["classify", "--model", classifier(), "--json", &night]).success());
    let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(first["label"], "night");
    assert!(first["probabilities"]["night"].as_f64().unwrap() > 0.5);
}

#[test]
fn a_classifier_of_images_is_scored_by_its_accuracy() {
    let of_split = stdout(&run(["evaluate", "--model", classifier(), "--split", "test"]).success());
    assert!(
        of_split.starts_with("accuracy 100.00 % (6 of 6"),
        "{of_split}"
    );
    let folder = tempdir().unwrap();
    let other = classes(folder.path(), 2, 70);
    let of_folder =
        stdout(&run(["evaluate", "--model", classifier(), "--labelled", &other]).success());
    assert!(of_folder.contains("4 of 4"), "{of_folder}");
}

/// A run folder like that of [`classifier`], with another recipe.
fn with_recipe(folder: &Path, change: impl FnOnce(String) -> String) -> String {
    let run = Path::new(classifier());
    let recipe = fs::read_to_string(run.join("recipe.toml")).unwrap();
    file(folder, "recipe.toml", change(recipe));
    let model = folder.join("model.safetensors");
    fs::copy(run.join("model.safetensors"), &model).unwrap();
    text(&model)
}

#[test]
fn broken_test_images_are_left_out_as_the_recipe_says() {
    let folder = tempdir().unwrap();
    let test = folder.path().join("test");
    classes(&test, 3, 50);
    let damaged = test.join("day/01.png");
    let whole = fs::read(&damaged).unwrap();
    fs::write(&damaged, &whole[..whole.len() / 2]).unwrap();
    let of_these = |recipe: String| {
        let lines = recipe.lines().map(|line| match line.split_once(" = ") {
            Some(("test", _)) => format!("test = {:?}\n", text(&test)),
            _ => format!("{line}\n"),
        });
        lines.collect::<String>()
    };
    let model = with_recipe(folder.path(), of_these);
    let split = ["evaluate", "--model", &model, "--split", "test"];
    refused(split, 1, ["01.png"]);
    with_recipe(folder.path(), |recipe| {
        of_these(recipe).replace("broken = \"error\"", "broken = \"skip\"")
    });
    let scored = stdout(&run(split).success());
    assert!(scored.contains("5 of 5 images"), "{scored}");
    assert!(scored.contains("of label day: 2 as day"), "{scored}");
    let said = "(left out, as images or objects cannot be read: 1)\n";
    assert!(scored.contains(said), "{scored}");
    let json = stdout(&regard().args(split).arg("--json").assert().success());
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["classifiers"][0]["left_out"], 1);
    // Of none there is no accuracy.
    for class in ["day", "night"] {
        for index in 0..3 {
            file(&test.join(class), &format!("{index:02}.png"), "no image");
        }
    }
    let none = "data.images.test: no image is left, 6 that cannot be read";
    refused(split, 1, [none]);
}

/// A file of the model of [`classifier`] with other weights or metadata.
fn changed(
    folder: &Path,
    change: impl FnOnce(&mut Arrays, &mut HashMap<String, String>),
) -> String {
    let bytes = fs::read(format!("{}/model.safetensors", classifier())).unwrap();
    let (mut arrays, mut metadata) = weights::from_bytes(&bytes).unwrap();
    change(&mut arrays, &mut metadata);
    let bytes = weights::to_bytes(&arrays, metadata, Storage::F32).unwrap();
    file(folder, "changed.safetensors", bytes)
}

#[test]
fn an_evaluation_keeps_what_it_reads() {
    let folder = tempdir().unwrap();
    let test = classes(&folder.path().join("test"), 2, 50);
    let model = with_recipe(folder.path(), |recipe| {
        let lines = recipe.lines().map(|line| match line.split_once(" = ") {
            Some(("test", _)) => format!("test = {test:?}\n"),
            _ => format!("{line}\n"),
        });
        lines.collect()
    });
    let image = format!("{test}/day/00.png");
    let before = fs::read(&image).unwrap();
    let evaluate = ["evaluate", "--model", &model, "--output", &image];
    for data in [["--labelled", &test], ["--split", "test"]] {
        refused_command(
            regard().args(evaluate).args(data),
            2,
            [image.as_str(), "would be lost"],
        );
    }
    assert_eq!(fs::read(&image).unwrap(), before);
    // MNIST's labels lie beside the images, in gzip or not.
    for (images, name) in [
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        ("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte"),
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte.gz"),
        ("t10k-images.idx3-ubyte.gz", "t10k-labels.idx1-ubyte"),
        ("t10k-images.idx3-ubyte.gz", "t10k-labels.idx1-ubyte.gz"),
    ] {
        let images = file(folder.path(), images, "");
        let labels = file(folder.path(), name, "kept");
        let evaluate = ["evaluate", "--model", &model, "--labelled", &images];
        refused_command(
            regard().args(evaluate).args(["--output", &labels]),
            2,
            [name, "would be lost"],
        );
        assert_eq!(fs::read_to_string(&labels).unwrap(), "kept");
    }
}

#[test]
fn classes_of_one_name_have_their_numbers() {
    let folder = tempdir().unwrap();
    let photo = text(&folder.path().join("photo.png"));
    image(false, 95).save_png(&photo).unwrap();
    let model = changed(folder.path(), |_, metadata| {
        for value in metadata.values_mut() {
            *value = value.replace("\"night\"", "\"day\"");
        }
    });
    let json = stdout(&run(["classify", "--model", &model, "--json", &photo]).success());
    let found: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(found["label"], "day (1)", "{json}");
    let probabilities = found["probabilities"].as_object().unwrap();
    let sum: f64 = probabilities
        .values()
        .map(|one| one.as_f64().unwrap())
        .sum();
    assert!(
        probabilities.len() == 2 && (sum - 1.0).abs() < 1e-5,
        "{json}"
    );
}

#[test]
fn weights_that_overflow_give_no_class() {
    let folder = tempdir().unwrap();
    let photo = text(&folder.path().join("photo.png"));
    image(true, 95).save_png(&photo).unwrap();
    let model = changed(folder.path(), |arrays, _| {
        for value in arrays.values_mut().flat_map(|array| &mut array.values) {
            *value = value.signum() * 1e38;
        }
    });
    let classify = ["classify", "--model", &model, &photo];
    refused(classify, 1, ["changed.safetensors", "its weights overflow"]);
}

/// A file may have any name.
#[cfg(target_os = "linux")]
#[test]
fn names_that_are_no_text_are_opened() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

    let folder = tempdir().unwrap();
    let path = folder.path().join(OsStr::from_bytes(b"bad\xff.png"));
    image(true, 95).save_png(&path).unwrap();
    let all = text(folder.path());
    let json = stdout(&run(["classify", "--model", classifier(), "--json", &all]).success());
    let found: Value = serde_json::from_str(&json).unwrap();
    assert!(
        found["text"].as_str().unwrap().ends_with("bad\u{fffd}.png"),
        "{json}"
    );
    let captioned = stdout(&run(["caption", "--json", &all]).success());
    assert!(captioned.contains("bad\u{fffd}.png"), "{captioned}");
    let mut argument = regard();
    argument.arg("caption").arg(&path).assert().success();
    let asked = stdout(&run(["ask", &all, "What is it?", "--json"]).success());
    assert!(asked.contains("bad\u{fffd}.png"), "{asked}");
}

#[test]
fn a_name_without_letters_is_told_by_its_place() {
    let folder = tempdir().unwrap();
    let photo = text(&folder.path().join("photo.png"));
    image(true, 95).save_png(&photo).unwrap();
    let mut classify = regard();
    classify.args(["classify", "--model", classifier()]);
    let done = classify
        .write_stdin(format!("{photo}\n\n{photo}\n"))
        .assert()
        .code(2);
    assert_eq!(stdout(&done).lines().count(), 1);
    let error = stderr(&done);
    assert!(error.contains("standard input: line 2 is empty"), "{error}");
    refused(
        ["classify", "--model", classifier(), &photo, ""],
        2,
        ["argument 2 is empty"],
    );
    refused(["caption", ""], 2, ["<IMAGE>"]);
}

/// A folder may have any name.
#[cfg(unix)]
#[test]
fn names_of_classes_are_escaped() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut bytes = fs::read(format!("{}/model.safetensors", classifier())).unwrap();
    let at = bytes.windows(5).position(|part| part == b"night").unwrap();
    bytes[at..at + 5].copy_from_slice(br"h\\nt");
    let model = file(folder.path(), "model.safetensors", bytes);
    let labelled = classes(&path("labelled"), 2, 70);
    fs::rename(path("labelled/night"), path("labelled/h\nt")).unwrap();
    let output = text(&path("labels.txt"));
    let evaluate = ["evaluate", "--model", &model, "--labelled", &labelled];
    let scored = regard().args(evaluate).args(["--output", &output]).assert();
    let scored = stdout(&scored.success());
    assert!(
        scored.contains(r"of label h\nt: 0 as day, 2 as h\nt"),
        "{scored}"
    );
    let written = fs::read_to_string(&output).unwrap();
    assert_eq!(written, "day\nday\nh\\nt\nh\\nt\n");
    let about = stdout(&run(["model", &model]).success());
    assert!(about.contains(r"day, h\nt"), "{about}");
}

#[test]
fn what_is_done_before_a_broken_image_is_not_lost() {
    let folder = tempdir().unwrap();
    classes(folder.path(), 3, 50);
    let night = folder.path().join("night");
    fs::write(night.join("02.png"), "no image").unwrap();
    let done = run(["classify", "--model", classifier(), &text(&night)]).code(1);
    assert_eq!(stdout(&done).lines().count(), 2);
    assert!(stderr(&done).contains("02.png"), "{}", stderr(&done));
}

#[test]
fn what_a_network_looked_at_is_drawn() {
    let folder = tempdir().unwrap();
    let path = |name: &str| text(&folder.path().join(name));
    let photo = path("photo.png");
    image(true, 95).save_png(&photo).unwrap();
    let files = ["look.svg", "look.png", "look.html", "look.safetensors"].map(path);
    let [svg, png, html, trace] = [0, 1, 2, 3].map(|file| files[file].as_str());
    let all = ["classify", "--model", classifier(), &photo, "--attention"];
    let pictures = ["--svg", svg, "--png", png, "--html", html, "--trace", trace];
    let printed = stdout(&regard().args(all).args(pictures).assert().success());
    // Squeeze-and-excitation: a factor for each channel of each of nine blocks.
    assert!(printed.contains("stage 3, block 3"), "{printed}");
    assert_eq!(printed.matches("channels, largest first").count(), 9);
    let drawn = fs::read_to_string(svg).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("stage 1, block 1"));
    assert!(fs::read(png).unwrap().starts_with(b"\x89PNG"));
    assert!(
        fs::read_to_string(html)
            .unwrap()
            .contains("stage 2, block 2")
    );
    let read = &regard_trace::read(trace).unwrap()[0];
    assert_eq!((read.source.as_str(), read.maps.len()), (photo.as_str(), 9));
    assert_eq!(read.image.as_ref().unwrap().width(), 8);
    let again = stdout(&run(["view", trace]).success());
    assert!(again.contains("stage 3, block 3"), "{again}");
}

#[test]
fn gates_are_chosen_by_layer_and_drawn_by_class() {
    let folder = tempdir().unwrap();
    let svg = text(&folder.path().join("look.svg"));
    let all = classes(&folder.path().join("all"), 2, 80);
    let [day, night] = ["day", "night"].map(|class| format!("{all}/{class}"));
    let photo = format!("{day}/00.png");
    let draw = ["classify", "--model", classifier(), "--svg", &svg];
    for (choice, part) in [
        (["--layer", "99"], "the model has no layer 99"),
        (["--head", "3"], "the model has no head 3"),
        (["--map", "cross"], "there is no cross-attention"),
        (
            ["--by-cell", "--quiet"],
            "--by-cell is for maps over an image",
        ),
    ] {
        refused_command(regard().args(draw).args(choice).arg(&photo), 2, [part]);
    }
    let mut second = regard();
    second
        .args(draw)
        .args(["--layer", "2", &photo])
        .assert()
        .success();
    let drawn = fs::read_to_string(&svg).unwrap();
    assert!(drawn.contains("stage 1, block 2") && !drawn.contains("stage 1, block 1"));

    fs::remove_file(&svg).unwrap();
    regard().args(draw).args([&day, &night]).assert().success();
    let drawn = fs::read_to_string(&svg).unwrap();
    assert!(drawn.contains(">day</text>") && drawn.contains(">night</text>"));
    assert_eq!(drawn.matches("line: the mean of the rows").count(), 9);
    assert!(!folder.path().join("look-1.svg").exists());
}

#[test]
fn what_is_no_image_is_refused_by_name() {
    let folder = tempdir().unwrap();
    let fake = file(folder.path(), "fake.png", "no image");
    refused(
        ["classify", "--model", classifier(), &fake],
        1,
        ["fake.png: not an image"],
    );
    // The embedded model reads images alone.
    refused(
        ["classify", "a good film"],
        2,
        ["a good film", "no such file", "--model"],
    );
    let missing = text(&folder.path().join("missing.png"));
    refused(
        ["classify", "--model", classifier(), &missing],
        1,
        ["missing.png"],
    );
    let empty = text(folder.path());
    fs::remove_file(&fake).unwrap();
    refused(
        ["classify", "--model", classifier(), &empty],
        1,
        ["holds no image"],
    );
    refused(
        ["evaluate", "--model", classifier(), "--labelled", &empty],
        1,
        ["one folder with images for each class"],
    );
    refused(
        ["evaluate", "--model", "runs/nowhere", "--split", "test"],
        1,
        ["runs/nowhere: cannot read"],
    );
    let bootstrap = [
        "evaluate",
        "--model",
        classifier(),
        "--split=test",
        "--bootstrap",
    ];
    refused(bootstrap, 2, ["--bootstrap is for scores of translations"]);
}

/// The folder of a tiny CLIP with its photo, and what the original library says of the photo.
fn clip(case: &str) -> (String, String, Value) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../models/tests/golden/pretrained")
        .join(case);
    let labels = fs::read_to_string(folder.join("labels.json")).unwrap();
    let photo = text(&folder.join("photo.png"));
    (text(&folder), photo, serde_json::from_str(&labels).unwrap())
}

#[test]
fn any_labels_classify_with_a_model_of_images_and_texts() {
    for case in ["clip", "clip-first"] {
        let (model, photo, expected) = clip(case);
        let prompt = expected["prompt"].as_str().unwrap();
        let done = run([
            "classify",
            "--model",
            &model,
            "--labels",
            "cat, dog",
            "--labels",
            "12 things",
            "--prompt",
            prompt,
            "--json",
            &photo,
        ]);
        let line: Value = serde_json::from_str(&stdout(&done.success())).unwrap();
        let probabilities = expected["probabilities"].as_object().unwrap();
        for (label, probability) in probabilities {
            let found = line["probabilities"][label].as_f64().unwrap();
            let probability = probability.as_f64().unwrap();
            assert!((found - probability).abs() < 1e-4, "{case}: {line}");
        }
        assert_eq!(
            line["probabilities"].as_object().unwrap().len(),
            probabilities.len()
        );
    }
}

#[test]
fn a_model_of_images_and_texts_shows_where_it_looked() {
    let folder = tempdir().unwrap();
    let (model, photo, _) = clip("clip");
    let [png, trace] = ["look.png", "look.safetensors"].map(|name| text(&folder.path().join(name)));
    run([
        "classify",
        "--model",
        &model,
        "--labels",
        "cat,dog",
        "--attention",
        "--png",
        &png,
        "--trace",
        &trace,
        &photo,
    ])
    .success();
    assert!(fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    let read = &regard_trace::read(&trace).unwrap()[0];
    assert_eq!((read.source.as_str(), read.maps.len()), (photo.as_str(), 3));
    assert_eq!(read.image.as_ref().unwrap().width(), 21);
    // The other tower reads as other encoders do.
    run(["look", "--model", &model, "a cat"]).success();
    run(["similar", "--model", &model, "a cat", "a dog"]).success();
}

#[test]
fn texts_and_images_become_vectors_of_one_space() {
    let folder = tempdir().unwrap();
    let (model, photo, expected) = clip("clip");
    let prompt = expected["prompt"].as_str().unwrap();
    let texts = ["cat", "dog"].map(|label| prompt.replace("{}", label));
    let arguments = ["--model", &model, &texts[0], &texts[1], "--image", &photo];
    let printed = stdout(&regard().arg("embed").args(arguments).assert().success());
    let lines: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["text"], texts[0]);
    assert_eq!(lines[2]["image"], photo);
    let vectors: Vec<Vec<f64>> = lines
        .iter()
        .map(|line| {
            line["vector"]
                .as_array()
                .unwrap()
                .iter()
                .map(|x| x.as_f64().unwrap())
                .collect()
        })
        .collect();
    let dot = |a: usize, b: usize| -> f64 {
        vectors[a].iter().zip(&vectors[b]).map(|(a, b)| a * b).sum()
    };
    assert!((dot(2, 2) - 1.0).abs() < 1e-5);
    // The difference of the scores is that of the logarithms of the probabilities: `s` is e^1.7.
    let chance = |label: &str| expected["probabilities"][label].as_f64().unwrap().ln();
    let difference = 1.7f64.exp() * (dot(0, 2) - dot(1, 2));
    assert!((difference - (chance("cat") - chance("dog"))).abs() < 1e-3);

    let file = text(&folder.path().join("vectors.safetensors"));
    run([
        "embed", "--model", &model, "--image", &photo, "--output", &file,
    ])
    .success();
    let bytes = fs::read(&file).unwrap();
    let (read, _) = regard_nn::weights::from_bytes(&bytes).unwrap();
    assert_eq!(read["vectors"].shape, [1, 12]);
    let looked = run([
        "embed",
        "--model",
        &model,
        "--image",
        &photo,
        "--attention",
        "--json",
    ]);
    let looked: Value = serde_json::from_str(&stdout(&looked.success())).unwrap();
    assert_eq!(looked["vector"], lines[2]["vector"]);
    assert_eq!(looked["maps"].as_array().unwrap().len(), 3);
}

#[test]
fn vectors_of_two_sizes_are_not_put_together() {
    let folder = tempdir().unwrap();
    let (golden, photo, _) = clip("clip");
    let model = folder.path().join("clip");
    fs::create_dir(&model).unwrap();
    for entry in fs::read_dir(golden).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
    }
    let settings = r#"{"truncate_dim": 5}"#;
    file(&model, "config_sentence_transformers.json", settings);
    let output = folder.path().join("vectors.safetensors");
    let [model, output] = [model, output].map(|path| text(&path));
    let embed = ["embed", "--model", &model, "--resume", "--output", &output];
    let both = ["a cat", "--image", &photo];
    refused_command(
        regard().args(embed).args(both),
        1,
        ["texts have vectors of 5 numbers", "expected 12"],
    );
    // Images alone are one batch, and then one that cannot be read; the next command goes on behind the first.
    let images = ["--image", &photo].repeat(32);
    let missing = text(&folder.path().join("missing.png"));
    refused_command(
        regard()
            .args(embed)
            .args(&images)
            .args(["--image", &missing]),
        1,
        ["missing.png"],
    );
    let done = regard()
        .args(embed)
        .args(&images)
        .args(["--image", &photo])
        .assert();
    done.success();
    let (read, _) = weights::from_bytes(&fs::read(&output).unwrap()).unwrap();
    assert_eq!(read["vectors"].shape, [33, 12]);
}

#[test]
fn labels_that_do_not_fit_are_refused() {
    let (model, photo, _) = clip("clip");
    let of_clip = |labels: &str, part: &str| {
        let labels = ["classify", "--model", &model, "--labels", labels, &photo];
        refused(labels, 2, [part]);
    };
    refused(
        ["classify", "--model", &model, &photo],
        2,
        ["--labels", "\"a cat,a dog\""],
    );
    of_clip("cat,,dog", "found \"\" at place 2; expected a text");
    of_clip("cat, cat", "found \"cat\" at place 2, for the second time");
    let prompt = [
        "classify", "--model", &model, "--labels", "cat", "--prompt", "a cat", &photo,
    ];
    refused(prompt, 2, ["expected `{}` where the label stands"]);
    refused(
        ["classify", "--model", &model, "--prompt", "a {}", &photo],
        2,
        ["--labels"],
    );
    refused(
        [
            "classify",
            "--model",
            &model,
            "--labels",
            &"cat ".repeat(50),
            &photo,
        ],
        1,
        ["tokens"],
    );
    let vit = Path::new(&model).with_file_name("vit");
    for other in [classifier(), &text(&vit)] {
        refused(
            ["classify", "--model", other, "--labels", "cat,dog", &photo],
            2,
            ["--labels are for a model of images and texts"],
        );
    }
    let bert = text(&Path::new(&model).with_file_name("bert-classes"));
    refused(
        [
            "classify", "--model", &bert, "--labels", "cat,dog", "a text",
        ],
        2,
        ["--labels are for"],
    );
}
