//! Questions about images: a model trained, evaluated and asked by the command.

use std::{fs, path::Path, sync::OnceLock};

use regard_images::scenes::{Scene, SceneConfig};
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::{expect_within, file, refused, refused_command, regard, run, stderr, stdout, text};

/// The run folder of a model that has begun to learn; trained once, by the program.
fn answerer() -> &'static str {
    static RUN: OnceLock<String> = OnceLock::new();
    RUN.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("regard-questions");
        // A former test's folder; on a first run there is none.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let recipe = r#"
            [model]
            kind = "vqa"
            hidden = 16
            [model.backbone]
            channels = 4
            [data.scenes]
            train = 24
            valid = 4
            test = 4
            size = 32
            objects = 1
            [batch]
            sentences = 8
            [training]
            steps = 6
            log_every = 1
            "#;
        let recipe = file(&folder, "questions.toml", recipe);
        let run_folder = text(&folder.join("run"));
        let assert = run(["train", &recipe, "--folder", &run_folder]).success();
        let progress = stderr(&assert);
        for part in [
            "vqa: ",
            "24 images with questions, 4 for validation",
            "which colour",
            "pointing",
        ] {
            assert!(progress.contains(part), "{part:?} is not in: {progress}");
        }
        run_folder
    })
}

fn scene(folder: &Path, index: u64) -> String {
    let path = folder.join(format!("{index}.png"));
    let scene = Scene::generate(5, index, &SceneConfig::default()).unwrap();
    scene.image.save_png(&path).unwrap();
    text(&path)
}

#[test]
fn an_image_and_a_folder_are_asked() {
    let folder = tempdir().unwrap();
    let image = scene(folder.path(), 0);
    scene(folder.path(), 1);
    let asked = run([
        "ask",
        "--model",
        answerer(),
        &image,
        "What is it?",
        "Is it purpel?",
        "--top",
        "2",
    ]);
    let asked = asked.success();
    assert!(stderr(&asked).contains("the model has not learned \"it\" of \"What is it?\""));
    assert!(stderr(&asked).contains("\"purpel\""));
    let printed = stdout(&asked);
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 4, "{printed}");
    assert!(
        lines[0].ends_with(" %): What is it?") && lines[1].starts_with("  "),
        "{printed}"
    );

    let all = text(folder.path());
    let json = run([
        "ask",
        "--model",
        answerer(),
        &all,
        "What colour is the star?",
        "--json",
        "--attention",
    ]);
    let json = stdout(&json.success());
    let lines: Vec<Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[1]["image"].as_str().unwrap().ends_with("1.png"));
    assert_eq!(lines[0]["answer"], lines[0]["answers"][0]["answer"]);
    assert!(lines[0]["unknown_words"].as_array().unwrap().is_empty());
    let weights = &lines[0]["maps"][0]["weights"][0];
    for look in weights.as_array().unwrap() {
        let sum: f64 = look
            .as_array()
            .unwrap()
            .iter()
            .map(|weight| weight.as_f64().unwrap())
            .sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum}");
    }
}

#[test]
fn what_was_read_for_an_answer_is_drawn() {
    let folder = tempdir().unwrap();
    let image = scene(folder.path(), 2);
    let path = |name: &str| text(&folder.path().join(name));
    let files = ["look.svg", "look.png", "look.html", "look.safetensors"].map(path);
    let [svg, png, html, trace] = [0, 1, 2, 3].map(|file| files[file].as_str());
    let asked = [
        "ask",
        "--model",
        answerer(),
        &image,
        "Where is the star?",
        "--attention",
    ];
    let pictures = ["--svg", svg, "--png", png, "--html", html, "--trace", trace];
    let printed = stdout(&regard().args(asked).args(pictures).assert().success());
    assert!(
        printed.contains("look 1") && printed.contains("look 2"),
        "{printed}"
    );
    let drawn = fs::read_to_string(svg).unwrap();
    for part in ["Where is the star?", "look 1", "look 2"] {
        assert!(drawn.contains(part), "{part}");
    }
    assert!(fs::read(png).unwrap().starts_with(b"\x89PNG"));
    assert!(
        fs::read_to_string(html)
            .unwrap()
            .contains("Where is the star?")
    );
    assert!(stdout(&run(["view", trace]).success()).contains("look 2"));

    let cells = path("cells.svg");
    let by_cell = ["ask", "--model", answerer(), &image, "Where is the star?"];
    let by_cell = regard()
        .args(by_cell)
        .args(["--by-cell", "--svg", &cells])
        .assert();
    by_cell.success();
    assert_ne!(fs::read_to_string(&cells).unwrap(), drawn);
    let viewed = path("viewed.svg");
    run(["view", trace, "--by-cell", "--svg", &viewed]).success();
    assert_ne!(fs::read_to_string(&viewed).unwrap(), drawn);
    refused(["view", trace, "--by-cell"], 2, ["add one of them"]);

    let own = path("own.svg");
    run(["view", trace, "--own-scale", "--svg", &own]).success();
    let own = fs::read_to_string(&own).unwrap();
    assert!(own.contains("of each") && !drawn.contains("of each"));
    let alone = ["view", trace, "--own-scale"];
    refused(alone, 2, ["--own-scale says how", "add one of them"]);
}

#[test]
fn answers_are_scored_by_kind_of_question() {
    let scored = stdout(&run(["evaluate", "--model", answerer(), "--split", "test"]).success());
    for part in [
        "accuracy ",
        " questions\n",
        "  where: ",
        "the last look: weight inside the object",
        " % (95 % interval ",
    ] {
        assert!(scored.contains(part), "{part:?} is not in: {scored}");
    }
    let json = run([
        "evaluate",
        "--model",
        answerer(),
        "--split",
        "valid",
        "--json",
    ]);
    let json: Value = serde_json::from_str(&stdout(&json.success())).unwrap();
    let found = &json["question_answerers"][0];
    assert!(found["looking"]["looks"].as_u64().unwrap() > 0);
    let pointing = &found["looking"]["pointing"];
    expect_within(pointing, &found["confidence_95"]["pointing"]);
    let kinds = found["kinds"].as_object().unwrap();
    for scores in kinds.values().chain([found]) {
        expect_within(&scores["accuracy"], &scores["confidence_95"]["accuracy"]);
    }
    let labelled = ["evaluate", "--model", answerer(), "--labelled", "x.tsv"];
    refused(labelled, 2, ["give --split test"]);
    // A recipe without test data.
    let folder = tempdir().unwrap();
    let train = "images = \"a\"\nquestions = \"b\"\nannotations = \"c\"\n";
    let recipe = "[model]\nkind = \"vqa\"\n[training]\nsteps = 1\n[data.questions.train]\n";
    let recipe = format!("{recipe}{train}");
    file(folder.path(), "recipe.toml", recipe);
    let model = folder.path().join("model.safetensors");
    fs::copy(format!("{}/model.safetensors", answerer()), &model).unwrap();
    refused(
        ["evaluate", "--model", &text(&model), "--split", "test"],
        1,
        ["recipe.toml", "names no test data of questions"],
    );
    fs::remove_file(folder.path().join("recipe.toml")).unwrap();
    // The file alone knows its scenes; those of former versions do not.
    let path = text(&model);
    let alone = ["evaluate", "--model", &path, "--split", "test"];
    assert_eq!(stdout(&run(alone).success()), scored);
    let mut bytes = fs::read(&model).unwrap();
    let at = bytes.windows(6).position(|part| part == b"scenes");
    bytes[at.unwrap()..][..6].copy_from_slice(b"former");
    fs::write(&model, bytes).unwrap();
    refused(
        alone,
        1,
        ["model.safetensors: no recipe.toml is beside this model"],
    );
}

#[test]
fn of_a_long_question_the_first_words_are_read() {
    let folder = tempdir().unwrap();
    let image = scene(folder.path(), 6);
    let long = format!("What{}", " is".repeat(20_000));
    let ask = ["ask", "--model", answerer(), &image, "What?", &long];
    let said = "question 2 has 20001 words; only the first 100 are read";
    let told = stderr(&run(ask).success());
    assert_eq!(told.matches(said).count(), 1, "{told}");
    let quiet = stderr(&regard().args(ask).arg("--quiet").assert().success());
    assert!(!quiet.contains(said), "{quiet}");
}

#[test]
fn a_model_that_sees_no_image_has_nothing_to_show() {
    let folder = tempdir().unwrap();
    let recipe = r#"
        [model]
        kind = "vqa"
        hidden = 8
        attention = "question-only"
        [data.scenes]
        train = 8
        valid = 2
        size = 32
        objects = 1
        [training]
        steps = 1
        "#;
    let recipe = file(folder.path(), "blind.toml", recipe);
    let model = text(&folder.path().join("run"));
    run(["train", &recipe, "--folder", &model, "--quiet"]).success();
    let image = scene(folder.path(), 0);
    let ask = ["ask", "--model", &model, &image, "What?", "--attention"];
    let told = stderr(&run(ask).success());
    let said = "vqa is a model without attention: there is nothing to show";
    assert!(told.contains(said), "{told}");
}

#[test]
fn broken_images_with_questions_are_counted() {
    let folder = tempdir().unwrap();
    let image = scene(folder.path(), 4);
    fs::rename(image, folder.path().join("000000000001.jpg")).unwrap();
    file(folder.path(), "000000000002.jpg", "no image");
    let asked = [1, 2].map(|id| json!({"question_id": id, "image_id": id, "question": "Why?"}));
    let answered = [1, 2].map(|id| {
        json!({"question_id": id, "image_id": id, "question_type": "why", "multiple_choice_answer": "red",
               "answers": [{"answer": "red"}]})
    });
    let [asked, answered] = [
        json!({"questions": asked}),
        json!({"annotations": answered}),
    ]
    .map(|all| all.to_string());
    let asked = file(folder.path(), "questions.json", asked);
    let answered = file(folder.path(), "annotations.json", answered);
    let mut recipe = "[model]\nkind = \"vqa\"\n[training]\nsteps = 1\n[data.questions]\nsize = 32\nbroken = \"skip\"\n"
        .to_owned();
    for part in ["train", "test"] {
        let images = text(folder.path());
        recipe += &format!(
            "[data.questions.{part}]\nimages = {images:?}\nquestions = {asked:?}\nannotations = {answered:?}\n"
        );
    }
    file(folder.path(), "recipe.toml", recipe);
    let model = text(&folder.path().join("model.safetensors"));
    fs::copy(format!("{}/model.safetensors", answerer()), &model).unwrap();
    let split = ["evaluate", "--model", &model, "--split", "test"];
    let scored = stdout(&run(split).success());
    let said = "of 1 questions (left out, as images or objects cannot be read: 1)\n";
    assert!(scored.contains(said), "{scored}");
    let json = stdout(&regard().args(split).arg("--json").assert().success());
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["question_answerers"][0]["left_out"], 1);
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let folder = tempdir().unwrap();
    let image = scene(folder.path(), 3);
    let broken = file(folder.path(), "broken.png", "no image");
    let model = answerer();
    refused(["ask", "--model", model, &image], 2, ["<QUESTION>"]);
    refused(
        ["ask", "--model", model, "absent.png", "Why?"],
        1,
        ["absent.png"],
    );
    refused(
        ["ask", "--model", model, &broken, "Why?"],
        1,
        ["broken.png"],
    );
    refused(["ask", "--model", &image, &image, "Why?"], 1, ["3.png"]);
    for question in ["", "?!"] {
        let asked = ["ask", "--model", model, &image, "Why?", question];
        refused(asked, 2, ["a question without words"]);
    }
    let svg = text(&folder.path().join("look.svg"));
    let layer = ["ask", "--model", model, "--layer", "9", "--svg", &svg];
    refused_command(
        regard().args(layer).args([image.as_str(), "Why?"]),
        2,
        ["the model has no layer 9"],
    );
}
