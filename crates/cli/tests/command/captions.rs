//! Captioners: trained, evaluated and used by the command.

use std::{fs, path::Path, sync::OnceLock};

use regard_images::scenes::{Kind, Scene, SceneConfig};
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::{
    expect_within, file, refused, refused_command, regard, run, stderr, stdout, text, trained,
};

/// Small scenes of one object.
const RECIPE: &str = r#"
[model]
kind = "captioner"
embedding = 16
hidden = 24
attention_dimension = 16
[model.backbone]
channels = 6
stages = 2
blocks = 1
[data.scenes]
train = 48
valid = 4
test = 3
size = 32
objects = 1
digits = false
[batch]
sentences = 8
[schedule]
learning_rate = 0.01
[training]
epochs = 2
[translate.max_length]
absolute = 8
"#;

/// The run folder of a captioner that has learned a little; trained once, by the program.
fn captioner() -> &'static str {
    static RUN: OnceLock<String> = OnceLock::new();
    RUN.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("regard-captions");
        // A former test's folder; on a first run there is none.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let recipe = file(&folder, "captions.toml", RECIPE);
        let run_folder = text(&folder.join("run"));
        let assert = run(["train", &recipe, "--folder", &run_folder]).success();
        let progress = stderr(&assert);
        for part in [
            "captioner: ",
            "48 captions, 4 for validation",
            "BLEU-4",
            "exact",
            "inside",
        ] {
            assert!(progress.contains(part), "{part:?} is not in: {progress}");
        }
        run_folder
    })
}

/// Files of `count` scenes.
fn scenes(folder: &Path, count: u64) -> Vec<String> {
    let config = SceneConfig {
        height: 32,
        width: 32,
        max_objects: 1,
        kinds: Kind::SHAPES.to_vec(),
        ..SceneConfig::default()
    };
    let scene = |index| {
        let path = folder.join(format!("{index}.png"));
        let scene = Scene::generate(9, index, &config).unwrap();
        scene.image.save_png(&path).unwrap();
        text(&path)
    };
    (0..count).map(scene).collect()
}

#[test]
fn images_are_captioned_by_file_and_by_folder() {
    let folder = tempdir().unwrap();
    let files = scenes(folder.path(), 3);
    let inside = text(folder.path());
    let found = stdout(&run(["caption", "--model", captioner(), &files[1], &inside]).success());
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(lines.len(), 4, "{found}");
    assert!(
        lines[0].ends_with("1.png") && lines[0] == lines[2],
        "{found}"
    );
    let json = [
        "caption",
        "--model",
        captioner(),
        "--beam",
        "2",
        "--json",
        "--attention",
    ];
    let json = stdout(&regard().args(json).arg(&files[0]).assert().success());
    let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    let words = first["caption"]
        .as_str()
        .unwrap()
        .split_whitespace()
        .count();
    let weights = first["maps"][0]["weights"][0].as_array().unwrap();
    let finished = usize::from(first["finished"].as_bool().unwrap());
    assert_eq!(weights.len(), words + finished, "{first}");
    assert_eq!(weights[0].as_array().unwrap().len(), 64);
}

#[test]
fn where_a_captioner_looked_is_drawn() {
    let folder = tempdir().unwrap();
    let path = |name: &str| text(&folder.path().join(name));
    let photo = &scenes(folder.path(), 1)[0];
    let files = ["look.svg", "look.png", "look.html", "look.safetensors"].map(path);
    let [svg, png, html, trace] = [0, 1, 2, 3].map(|file| files[file].as_str());
    let all = ["caption", "--model", captioner(), photo, "--attention"];
    let pictures = ["--svg", svg, "--png", png, "--html", html, "--trace", trace];
    let printed = stdout(&regard().args(all).args(pictures).assert().success());
    let read = &regard_trace::read(trace).unwrap()[0];
    // It may be empty: the model has learned little.
    let caption = read.target.as_str();
    let drawn = fs::read_to_string(svg).unwrap();
    for word in caption.split_whitespace() {
        assert!(
            printed.contains(word) && drawn.contains(word),
            "{word}: {printed}"
        );
    }
    assert!(fs::read(png).unwrap().starts_with(b"\x89PNG"));
    assert!(fs::read_to_string(html).unwrap().contains(caption));
    assert_eq!(read.source, *photo);
    assert_eq!(read.image.as_ref().unwrap().width(), 32);
}

#[test]
fn pictures_do_not_take_the_place_of_images() {
    let folder = tempdir().unwrap();
    let path = |name: &str| text(&folder.path().join(name));
    let [base, first, second] = ["p.png", "p-1.png", "p-2.png"].map(path);
    let image = fs::read(&scenes(folder.path(), 1)[0]).unwrap();
    for file in [&first, &second] {
        fs::write(file, &image).unwrap();
    }
    let lost = |more: &[&str]| {
        let mut command = regard();
        command.args(["caption", "--model", captioner(), "--png"]);
        refused_command(command.args(more), 2, ["would be lost"]);
    };
    lost(&[&base, &first, &second]);
    lost(&[&first, &first]);
    lost(&[&base, &first, "--svg", &base]);
    for file in [&first, &second] {
        assert_eq!(fs::read(file).unwrap(), image);
    }
    // The picture of a single image has no number in its name.
    let single = ["caption", "--model", captioner(), "--png", &base, &first];
    run(single).success();
}

#[test]
fn what_is_done_before_a_broken_image_is_not_lost() {
    let folder = tempdir().unwrap();
    let files = scenes(folder.path(), 3);
    let whole = fs::read(&files[2]).unwrap();
    fs::write(&files[2], &whole[..whole.len() / 2]).unwrap();
    let (all, svg) = (text(folder.path()), text(&folder.path().join("look.svg")));
    let done = run(["caption", "--model", captioner(), "--svg", &svg, &all]).code(1);
    assert_eq!(stdout(&done).lines().count(), 2);
    assert!(stderr(&done).contains("2.png"), "{}", stderr(&done));
    assert!(folder.path().join("look-2.svg").is_file());
}

#[test]
fn a_captioner_is_scored() {
    let found = stdout(&run(["evaluate", "--model", captioner(), "--split", "test"]).success());
    for part in [
        "3 images: exact",
        "BLEU-1 to 4",
        "CIDEr-D",
        "weight inside the object",
        "pointing",
        " lines; 95 % interval ",
        " (of BLEU-4: 95 % interval ",
    ] {
        assert!(found.contains(part), "{part:?} is not in: {found}");
    }
    // Of exact captions, BLEU-4 and CIDEr-D, and of looks at pixels and at boxes.
    assert_eq!(found.matches("95 % interval").count(), 7, "{found}");
    // The file alone knows its scenes.
    let alone = format!("{}/model.safetensors", captioner());
    let folder = tempdir().unwrap();
    let copy = text(&folder.path().join("copy.safetensors"));
    fs::copy(alone, &copy).unwrap();
    let json = stdout(&run(["evaluate", "--model", &copy, "--json"]).success());
    let json: Value = serde_json::from_str(&json).unwrap();
    let first = &json["captioners"][0];
    assert_eq!(
        (first["images"].as_u64(), first["name"].as_str()),
        (Some(3), Some("copy.safetensors"))
    );
    assert!(first["inside"].as_f64().unwrap() <= 1.0);
    for (key, score) in [
        ("exact", &first["exact"]),
        ("bleu_4", &first["bleu"][3]),
        ("cider_d", &first["cider_d"]),
        ("inside", &first["inside"]),
        ("pointing_box", &first["pointing_box"]),
    ] {
        expect_within(score, &first["confidence_95"][key]);
    }
    // Another number of resamples can be asked for.
    let few = ["evaluate", "--model", &copy, "--json", "--resamples=1"];
    let few: Value = serde_json::from_str(&stdout(&run(few).success())).unwrap();
    let ends = &few["captioners"][0]["confidence_95"]["inside"];
    assert_eq!(ends[0], ends[1], "{few}");
}

#[test]
fn broken_images_with_captions_are_counted() {
    let folder = tempdir().unwrap();
    let files = scenes(folder.path(), 4);
    fs::write(&files[1], "no image").unwrap();
    // Nothing is said of the last one.
    let images = (0..4).map(|id| json!({"id": id, "file_name": format!("{id}.png")}));
    let said = (0..3).map(|id| json!({"image_id": id, "caption": "a red circle"}));
    let captions =
        json!({"images": images.collect::<Value>(), "annotations": said.collect::<Value>()});
    let captions = file(folder.path(), "captions.json", captions.to_string());
    let images = text(folder.path());
    let (before, data) = RECIPE.split_once("[data.scenes]").unwrap();
    let (_, after) = data.split_once("[batch]").unwrap();
    let mut recipe =
        format!("{before}[batch]{after}[data.captions]\nsize = 32\nbroken = \"skip\"\n");
    for part in ["train", "test"] {
        recipe += &format!("{part} = {captions:?}\n{part}_images = {images:?}\n");
    }
    file(folder.path(), "recipe.toml", recipe);
    let model = text(&folder.path().join("model.safetensors"));
    fs::copy(format!("{}/model.safetensors", captioner()), &model).unwrap();
    let split = ["evaluate", "--model", &model, "--split", "test"];
    let assert = run(split).success();
    let (found, told) = (stdout(&assert), stderr(&assert));
    let said = "2 images (left out, as images or objects cannot be read: 1): exact";
    assert!(found.contains(said), "{found}");
    assert!(
        told.contains("images without a caption are left out: 1"),
        "{told}"
    );
    let json = stdout(&regard().args(split).arg("--json").assert().success());
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["captioners"][0]["left_out"], 1);
}

/// Without a model of one's own there is one in the command.
#[test]
fn the_embedded_models_read_the_images_of_the_documentation() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let [scene, digit] = ["scene.png", "digit.png"].map(|name| text(&docs.join(name)));
    let found = stdout(&run(["caption", &scene]).success());
    let caption = "a red square left of a small white 1 and above a small blue 4";
    assert!(found.starts_with(caption), "{found}");
    for (question, answer) in [
        ("What colour is the square?", "red"),
        ("How many digits are there?", "2"),
        ("What is the blue object?", "4"),
    ] {
        let found = stdout(&run(["ask", &scene, question]).success());
        assert!(found.starts_with(answer), "{question} {found}");
    }
    let found = stdout(&run(["classify", &digit]).success());
    assert!(found.starts_with("2 ("), "{found}");
    let embedded = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let sizes = ["scenes-captioner", "scenes-vqa", "mnist-resnet"].map(|name| {
        let file = embedded.join(name).join("model.safetensors");
        fs::metadata(file).unwrap().len()
    });
    assert!(sizes.iter().sum::<u64>() <= 3_000_000, "{sizes:?}");
    // The files alone name the scenes by which they are judged.
    for name in ["scenes-captioner", "scenes-vqa"] {
        let file = fs::read(embedded.join(name).join("model.safetensors")).unwrap();
        let named = br#"\"scenes\":{"#;
        assert!(
            file.windows(named.len()).any(|part| part == named),
            "{name}"
        );
    }
}

#[test]
fn a_model_without_attention_says_so() {
    let folder = tempdir().unwrap();
    let path = |name: &str| text(&folder.path().join(name));
    let (trace, svg) = (path("look.safetensors"), path("look.svg"));
    let digit = text(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/digit.png"));
    let said = "resnet is a model without attention: there is nothing to show";
    for shown in [
        vec!["--attention"],
        vec!["--attention", "--json"],
        vec!["--trace", trace.as_str()],
    ] {
        let mut classify = regard();
        classify.args(["classify", &digit]).args(&shown);
        let told = stderr(&classify.assert().success());
        assert_eq!(told.matches(said).count(), 1, "{shown:?}: {told}");
        let quiet = stderr(&classify.arg("--quiet").assert().success());
        assert!(!quiet.contains(said), "{quiet}");
    }
    let plain = stderr(&run(["classify", &digit]).success());
    assert!(!plain.contains(said), "{plain}");
    // A picture is refused with the same reason, once.
    let drawn = run(["classify", &digit, "--attention", "--svg", &svg]).code(1);
    let drawn = stderr(&drawn);
    assert!(
        drawn.contains("look.svg: nothing to draw") && !drawn.contains(said),
        "{drawn}"
    );
}

#[test]
fn what_cannot_be_captioned_is_refused() {
    let folder = tempdir().unwrap();
    let fake = file(folder.path(), "fake.png", "no image");
    refused(["caption", &fake], 1, ["fake.png: not an image"]);
    refused(["caption", "--model", captioner()], 2, ["<IMAGE>"]);
    refused(
        ["caption", "--model", captioner(), &fake],
        1,
        ["fake.png: not an image"],
    );
    refused(
        ["caption", "--model", trained(), &fake],
        1,
        ["a model that translates", "a captioner"],
    );
    refused(
        ["caption", "--model", captioner(), "--beam", "0", &fake],
        2,
        ["--beam"],
    );
    refused(
        ["translate", "--model", captioner(), "a"],
        1,
        ["a captioner"],
    );
    refused(
        ["classify", "--model", captioner(), "x.png"],
        1,
        ["expected a classifier of sentences or of images"],
    );
    refused(
        ["caption", "--model", captioner(), "--layer", "9", "x.png"],
        2,
        ["--layer", "nothing is drawn"],
    );
    for option in ["--confidence", "--bootstrap", "--metric=chrf"] {
        let (option_name, _) = option.split_once('=').unwrap_or((option, ""));
        refused(
            ["evaluate", "--model", captioner(), "--split=test", option],
            2,
            [option_name, "is for scores of translations"],
        );
    }
    for option in ["--max-source-tokens=9", "--long-lines=cut"] {
        let (option_name, _) = option.split_once('=').unwrap();
        refused(
            ["evaluate", "--model", captioner(), "--split=test", option],
            2,
            [option_name, "leave it out"],
        );
    }
    refused(
        [
            "evaluate",
            "--model",
            captioner(),
            "--source",
            &fake,
            "--references",
            &fake,
        ],
        2,
        ["--split test"],
    );
    refused(
        [
            "evaluate",
            "--model",
            captioner(),
            "--split",
            "test",
            "--by-length",
        ],
        2,
        ["--by-length"],
    );
}
