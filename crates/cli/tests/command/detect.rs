//! Detectors: trained, evaluated and used by the command.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use regard_images::scenes::{Scene, SceneConfig};
use regard_nn::weights::{self, Storage};
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::{expect_within, file, refused, regard, run, stderr, stdout, text};

/// A drawn scene as a file.
fn scene(folder: &Path, name: &str, index: u64) -> String {
    let path = folder.join(name);
    let scene = Scene::generate(5, index, &SceneConfig::default()).unwrap();
    scene.image.save_png(&path).unwrap();
    text(&path)
}

/// The run folder of a detector that has seen little; trained once, by the program.
fn detector() -> &'static str {
    static RUN: OnceLock<String> = OnceLock::new();
    RUN.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("regard-detect");
        // A former test's folder; on a first run there is none.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let recipe = r#"
            [model]
            kind = "detr"
            d_model = 16
            encoder_layers = 1
            decoder_layers = 2
            heads = 2
            feed_forward = 16
            queries = 4
            masks = true
            [model.backbone]
            channels = 4
            [data.scenes]
            train = 100
            valid = 4
            test = 3
            size = 32
            [batch]
            sentences = 4
            [training]
            steps = 4
        "#;
        let recipe = file(&folder, "detr.toml", recipe);
        let run_folder = text(&folder.join("run"));
        let assert = run(["train", &recipe, "--folder", &run_folder]).success();
        let progress = stderr(&assert);
        for part in ["detr: ", "100 images, 4 for validation", "AP50", "mean IoU"] {
            assert!(progress.contains(part), "{part:?} is not in: {progress}");
        }
        run_folder
    })
}

#[test]
fn objects_are_found_by_file_and_by_folder() {
    let folder = tempdir().unwrap();
    scene(folder.path(), "a.png", 1);
    let one = scene(folder.path(), "b.png", 2);
    let all = [
        "detect",
        "--model",
        detector(),
        "--threshold",
        "0",
        &text(folder.path()),
    ];
    let found = stdout(&run(all).success());
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(lines.len(), 10, "{found}");
    assert!(lines[0].ends_with("a.png: 4 objects") && lines[5].ends_with("b.png: 4 objects"));
    assert!(
        lines[1].contains(" %): ") && lines[1].contains(" at ("),
        "{found}"
    );
    let nothing =
        stdout(&run(["detect", "--model", detector(), "--threshold", "1", &one]).success());
    assert!(nothing.ends_with("b.png: no object\n"), "{nothing}");

    let json = [
        "detect",
        "--model",
        detector(),
        "--threshold",
        "0",
        "--masks",
        "--json",
        &one,
    ];
    let found: Value = serde_json::from_str(&stdout(&run(json).success())).unwrap();
    assert_eq!(
        (&found["height"], &found["width"]),
        (&64.into(), &64.into())
    );
    let objects = found["objects"].as_array().unwrap();
    assert_eq!(objects.len(), 4);
    for object in objects {
        let numbers = |value: &Value| -> Vec<f64> {
            let all = value.as_array().unwrap().iter();
            all.map(|number| number.as_f64().unwrap()).collect()
        };
        let bounds = numbers(&object["box"]);
        assert!(bounds[0] >= 0.0 && bounds[0] + bounds[2] <= 64.001);
        assert_eq!(
            numbers(&object["mask"]["counts"]).iter().sum::<f64>(),
            64.0 * 64.0
        );
    }
}

#[test]
fn what_the_queries_looked_at_is_drawn() {
    let folder = tempdir().unwrap();
    let path = |name: &str| text(&folder.path().join(name));
    let photo = scene(folder.path(), "scene.png", 3);
    let files = ["look.svg", "look.png", "look.html", "look.safetensors"].map(path);
    let [svg, png, html, trace] = [0, 1, 2, 3].map(|file| files[file].as_str());
    let all = [
        "detect",
        "--model",
        detector(),
        "--threshold",
        "0",
        "--masks",
        &photo,
        "--attention",
    ];
    let pictures = ["--svg", svg, "--png", png, "--html", html, "--trace", trace];
    let printed = stdout(&regard().args(all).args(pictures).assert().success());
    assert!(
        printed.contains("layer 2 of 2") || printed.contains("layer 1 of 2"),
        "{printed}"
    );
    assert!(fs::read_to_string(svg).unwrap().starts_with("<svg"));
    assert!(fs::read(png).unwrap().starts_with(b"\x89PNG"));
    assert!(fs::read_to_string(html).unwrap().contains("decoder.cross"));
    let read = &regard_trace::read(trace).unwrap()[0];
    assert_eq!((read.source.as_str(), read.maps.len()), (photo.as_str(), 2));
    assert_eq!(read.image.as_ref().unwrap().width(), 64);
    let again = stdout(&run(["view", trace]).success());
    assert!(again.contains("of 2"), "{again}");

    let none = [
        "detect",
        "--model",
        detector(),
        "--threshold",
        "1",
        &photo,
        "--svg",
        &path("none.svg"),
    ];
    let warned = stderr(&run(none).success());
    assert!(warned.contains("give a lower --threshold"), "{warned}");
    assert!(!folder.path().join("none.svg").exists());
}

#[test]
fn pictures_have_the_numbers_of_their_images() {
    let folder = tempdir().unwrap();
    let files = [("a.png", 1), ("b.png", 2)].map(|(name, seed)| scene(folder.path(), name, seed));
    let detect = ["detect", "--model", detector(), &files[0], &files[1]];
    let json = regard()
        .args(detect)
        .args(["--threshold=0", "--json"])
        .assert();
    let printed = stdout(&json.success());
    let most = printed.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let objects = line["objects"].as_array().unwrap().iter();
        let found = objects.map(|object| object["probability"].as_f64().unwrap());
        found.fold(0.0, f64::max)
    });
    let most: Vec<f64> = most.collect();
    // One of them has an object.
    let threshold = format!("--threshold={}", (most[0] + most[1]) / 2.0);
    let svg = text(&folder.path().join("found.svg"));
    let drawn = regard()
        .args(detect)
        .args(["--svg", &svg, &threshold])
        .assert();
    drawn.success();
    let first = most[0] > most[1];
    let is_there = |number: usize| folder.path().join(format!("found-{number}.svg")).is_file();
    assert_eq!([1, 2].map(is_there), [first, !first], "{most:?}");
    assert!(!folder.path().join("found.svg").exists());
}

#[test]
fn a_detector_is_scored_by_its_average_precision() {
    let scored = stdout(&run(["evaluate", "--model", detector(), "--split", "test"]).success());
    assert!(scored.starts_with("boxes of 3 images: AP 0."), "{scored}");
    assert!(scored.contains("mean IoU of masks"), "{scored}");
    // Of three average precisions and of the IoU.
    assert_eq!(scored.matches("95 % interval").count(), 4, "{scored}");
    let json = [
        "evaluate",
        "--model",
        detector(),
        "--split",
        "valid",
        "--json",
    ];
    let json: Value = serde_json::from_str(&stdout(&run(json).success())).unwrap();
    let found = &json["detectors"][0];
    assert_eq!(found["images"], 4);
    for key in ["average_precision", "average_precision_50", "mean_iou"] {
        expect_within(&found[key], &found["confidence_95"][key]);
    }
    refused(
        ["evaluate", "--model", detector()],
        2,
        ["give --split test"],
    );
}

#[test]
fn a_file_alone_knows_its_scenes() {
    let folder = tempdir().unwrap();
    let model = folder.path().join("model.safetensors");
    fs::copy(format!("{}/model.safetensors", detector()), &model).unwrap();
    let path = text(&model);
    for split in ["valid", "test"] {
        let [alone, beside] = [path.as_str(), detector()]
            .map(|model| stdout(&run(["evaluate", "--model", model, "--split", split]).success()));
        assert_eq!(alone, beside);
    }
    // Those of former versions do not.
    let mut bytes = fs::read(&model).unwrap();
    let at = bytes.windows(6).position(|part| part == b"scenes");
    bytes[at.unwrap()..][..6].copy_from_slice(b"former");
    fs::write(&model, bytes).unwrap();
    refused(
        ["evaluate", "--model", &path, "--split", "test"],
        1,
        ["model.safetensors: no recipe.toml is beside this model"],
    );
}

#[test]
fn images_without_objects_have_no_average_precision() {
    let folder = tempdir().unwrap();
    for index in 0..2 {
        scene(folder.path(), &format!("{index}.png"), index);
    }
    file(folder.path(), "2.png", "no image");
    let objects = |name: &str, ids: &[u64], boxed: bool| {
        let images = ids.iter().map(
            |id| json!({"id": id, "file_name": format!("{id}.png"), "height": 64, "width": 64}),
        );
        let boxes = ids.iter().filter(|_| boxed);
        let boxes =
            boxes.map(|id| json!({"image_id": id, "category_id": 1, "bbox": [8, 8, 16, 16]}));
        let all = json!({
            "images": images.collect::<Value>(),
            "annotations": boxes.collect::<Value>(),
            "categories": [{"id": 1, "name": "square"}],
        });
        file(folder.path(), name, all.to_string())
    };
    let train = objects("train.json", &[0, 1], true);
    let test = objects("test.json", &[1, 2], false);
    let images = text(folder.path());
    let recipe = format!(
        r#"
        [model]
        kind = "detr"
        d_model = 16
        encoder_layers = 1
        decoder_layers = 1
        heads = 2
        feed_forward = 16
        queries = 2
        [model.backbone]
        channels = 4
        [data.objects]
        train = {images:?}
        train_objects = {train:?}
        valid = {images:?}
        valid_objects = {train:?}
        test = {images:?}
        test_objects = {test:?}
        size = 32
        broken = "skip"
        [batch]
        sentences = 2
        [training]
        steps = 1
        "#
    );
    let recipe = file(folder.path(), "detr.toml", recipe);
    let trained = text(&folder.path().join("run"));
    run(["train", &recipe, "--folder", &trained]).success();
    let split = ["evaluate", "--model", &trained, "--split", "test"];
    let scored = stdout(&run(split).success());
    let said =
        "boxes of 1 images (left out, as images or objects cannot be read: 1): nothing to find\n";
    assert_eq!(scored, said);
    let json = stdout(&regard().args(split).arg("--json").assert().success());
    let json: Value = serde_json::from_str(&json).unwrap();
    let found = &json["detectors"][0];
    assert_eq!(found["left_out"], 1);
    for key in ["average_precision", "average_precision_50"] {
        assert!(found[key].is_null(), "{json}");
        assert!(found["confidence_95"][key].is_null(), "{json}");
    }
    let score = regard().args(split).arg("--score-only").assert();
    assert_eq!(stdout(&score.success()), "nan\n");
}

#[test]
fn what_cannot_be_detected_is_refused() {
    let folder = tempdir().unwrap();
    let fake = file(folder.path(), "fake.png", "no image");
    refused(
        ["detect", "--model", detector(), &fake],
        1,
        ["fake.png: not an image"],
    );
    let missing = text(&folder.path().join("missing.png"));
    refused(
        ["detect", "--model", detector(), &missing],
        1,
        ["missing.png"],
    );
    refused(["detect", "--model", &missing, &fake], 1, ["missing.png"]);
    refused(
        ["detect", "--model", crate::trained(), &fake],
        1,
        ["expected a detector of objects"],
    );
    for threshold in ["2", "NaN", "much"] {
        let arguments = [
            "detect",
            "--model",
            detector(),
            "--threshold",
            threshold,
            &fake,
        ];
        refused(arguments, 2, ["expected a number from 0 to 1"]);
    }
    refused(["detect", "--model", detector()], 2, ["<IMAGE>"]);
}

#[test]
fn weights_that_overflow_find_nothing_that_is_told() {
    let folder = tempdir().unwrap();
    let photo = scene(folder.path(), "scene.png", 3);
    let bytes = fs::read(format!("{}/model.safetensors", detector())).unwrap();
    let (mut arrays, metadata) = weights::from_bytes(&bytes).unwrap();
    for value in arrays.values_mut().flat_map(|array| &mut array.values) {
        *value = value.signum() * 1e38;
    }
    let bytes = weights::to_bytes(&arrays, metadata, Storage::F32).unwrap();
    let model = file(folder.path(), "large.safetensors", bytes);
    let detect = ["detect", "--model", &model, &photo];
    refused(detect, 1, ["large.safetensors", "its weights overflow"]);
}

/// The folder of a tiny DETR that others made.
fn pretrained(case: &str) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden/pretrained");
    golden.join(case)
}

#[test]
fn a_pretrained_detector_finds_what_the_original_library_finds() {
    for case in ["detr", "detr-timm", "detr-dilation"] {
        let folder = pretrained(case);
        let expected = fs::read_to_string(folder.join("objects.json")).unwrap();
        let expected: Value = serde_json::from_str(&expected).unwrap();
        let (model, photo) = (text(&folder), text(&folder.join("photo.png")));
        let threshold = expected["threshold"].to_string();
        let done = run([
            "detect",
            "--model",
            &model,
            "--threshold",
            &threshold,
            "--json",
            &photo,
            &photo,
        ]);
        let printed = stdout(&done.success());
        assert_eq!(printed.lines().count(), 2, "{printed}");
        for line in printed.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let mut found: Vec<Value> = line["objects"].as_array().unwrap().clone();
            let mut objects: Vec<Value> = expected["objects"].as_array().unwrap().clone();
            assert!(
                !objects.is_empty() && found.len() == objects.len(),
                "{case}: {line}"
            );
            let score = |object: &Value| object["probability"].as_f64().unwrap();
            for list in [&mut found, &mut objects] {
                list.sort_by(|a, b| score(a).total_cmp(&score(b)));
            }
            for (found, object) in found.iter().zip(&objects) {
                assert_eq!(found["label"], object["label"], "{case}");
                assert!(
                    (score(found) - score(object)).abs() < 1e-4,
                    "{case}: {found}"
                );
                let side = |value: &Value, at: usize| value[at].as_f64().unwrap();
                let (bounds, corners) = (&found["box"], &object["corners"]);
                // Ours lie inside the image.
                for (axis, most) in [(0, 71.0), (1, 43.0)] {
                    let ends = [
                        side(bounds, axis),
                        side(bounds, axis) + side(bounds, axis + 2),
                    ];
                    for (end, at) in ends.into_iter().zip([axis, axis + 2]) {
                        let corner = side(corners, at).clamp(0.0, most);
                        assert!((end - corner).abs() < 0.01, "{case}: {found}, {object}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_pretrained_detector_draws_masks_and_where_it_looked() {
    let folder = tempdir().unwrap();
    let found = pretrained("detr-timm");
    let (model, photo) = (text(&found), text(&found.join("photo.png")));
    let [png, trace] =
        ["found.png", "found.safetensors"].map(|name| text(&folder.path().join(name)));
    let all = [
        "detect",
        "--model",
        &model,
        "--threshold",
        "0.3",
        "--masks",
        "--json",
    ];
    let pictures = ["--png", &png, "--trace", &trace, &photo];
    let printed = stdout(&regard().args(all).args(pictures).assert().success());
    let line: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(
        line["objects"][0]["mask"]["size"],
        serde_json::json!([43, 71])
    );
    assert!(fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    let read = &regard_trace::read(&trace).unwrap()[0];
    assert_eq!((read.source.as_str(), read.maps.len()), (photo.as_str(), 2));
    let without = text(&pretrained("detr"));
    refused(
        ["detect", "--model", &without, "--masks", &photo],
        2,
        ["--masks"],
    );
    let other = text(&pretrained("vit"));
    refused(
        ["detect", "--model", &other, &photo],
        1,
        ["model_type: found \"vit\"; expected one of detr"],
    );
}

#[test]
fn a_model_of_images_names_the_command_that_reads_it() {
    for (case, command) in [
        ("vit", "classify"),
        ("resnet", "classify"),
        ("detr", "detect"),
    ] {
        let folder = pretrained(case);
        let (model, photo) = (text(&folder), text(&folder.join("photo.png")));
        let advice = format!("use `regard {command}`");
        let embed = ["embed", "--model", &model, "--image", &photo];
        refused(embed, 1, [advice.as_str()]);
        refused(["look", "--model", &model, "a"], 1, [advice.as_str()]);
        // It is none of ours, whatever its numbers are stored as.
        let foreign = "the metadata has no `regard.model`; expected a model file of `regard train`";
        refused(["caption", "--model", &model, &photo], 1, [foreign]);
        refused(["ask", "--model", &model, &photo, "Why?"], 1, [foreign]);
    }
    let detr = text(&pretrained("detr"));
    let classify = ["classify", "--model", &detr, "x.png"];
    refused(classify, 1, ["use `regard detect`"]);
}
