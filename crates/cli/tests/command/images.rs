//! Classifiers of images: trained, evaluated and used by the command.

use std::{fs, path::Path, sync::OnceLock};

use regard_images::{Image, Random};
use serde_json::Value;
use tempfile::tempdir;

use crate::{file, refused, regard, run, stderr, stdout, text};

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
fn what_is_no_image_is_refused_by_name() {
    let folder = tempdir().unwrap();
    let fake = file(folder.path(), "fake.png", "no image");
    refused(
        ["classify", "--model", classifier(), &fake],
        1,
        ["fake.png: not an image"],
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
}
