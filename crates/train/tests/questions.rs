//! Questions about images: trained on drawn scenes and on files, resumed, opened again.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use burn::tensor::Device;
use regard_images::Image;
use regard_nn::weights;
use regard_train::ranks::Alone;
use regard_train::{
    Registry, TrainError,
    learner::{Event, Reason, Run, Started, Summary, events::Quality},
    model_file,
    recipe::{Recipe, Split},
    tasks::{VisualQuestions, questions::Asked},
};
use serde_json::{Value, json};
use tempfile::tempdir;

/// Scenes of one size with at most one shape each.
fn recipe(text: &str, overrides: &[&str]) -> Recipe {
    let text = format!(
        r#"
        [model]
        kind = "vqa"
        embedding = 8
        hidden = 16
        [model.backbone]
        channels = 4
        {text}
        [batch]
        sentences = 8
        [schedule]
        kind = "constant"
        learning_rate = 0.01
        [training]
        steps = 12
        validate_every = 6
        log_every = 1
        "#
    );
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    let registry = Registry::default();
    registry.parse(&text, "vqa.toml", &overrides).unwrap()
}

const SCENES: &str = r"
        [data.scenes]
        train = 32
        valid = 6
        test = 4
        size = 32
        objects = 1
        digits = false
        questions = 5
";

struct Trained {
    began: Started,
    losses: Vec<f64>,
    quality: Quality,
    summary: Summary,
}

fn train(
    recipe: &Recipe,
    folder: &Path,
    stop_at: Option<u64>,
    resume: bool,
) -> Result<Trained, TrainError> {
    let stop = AtomicBool::new(false);
    let run = Run {
        folder,
        device: &Device::flex(),
        stop: &stop,
        ranks: &Alone,
    };
    let (mut began, mut losses, mut quality) = (None, vec![], None);
    let mut report = |event: &Event| match event {
        Event::Started(started) => began = Some(started.clone()),
        Event::Train(metrics) => {
            losses.push(metrics.loss);
            if Some(metrics.step) == stop_at {
                stop.store(true, Ordering::SeqCst);
            }
        }
        Event::Validation(metrics) => quality = Some(metrics.quality.clone()),
        _ => {}
    };
    let registry = Registry::default();
    let summary = match resume {
        false => registry.train(recipe, &run, &mut report),
        true => registry.resume(&[], &run, &mut report),
    }?;
    Ok(Trained {
        began: began.unwrap(),
        losses,
        quality: quality.unwrap_or(Quality::Likelihood {
            bits_per_byte: None,
        }),
        summary,
    })
}

#[test]
fn questions_about_scenes_are_learned_and_answered() {
    let folder = tempdir().unwrap();
    let recipe = recipe(SCENES, &[]);
    let run = folder.path().join("run");
    let trained = train(&recipe, &run, None, false).unwrap();
    assert_eq!(
        (trained.began.corpus.kept, trained.began.validation_pairs),
        (32, 6)
    );
    assert_eq!(trained.began.examples, "images with questions");
    // The loss is no mean over words.
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    assert!(metrics.contains("loss") && !metrics.contains("perplexity"));
    let (first, last) = (trained.losses[0], trained.losses[trained.losses.len() - 1]);
    assert!(last < 0.8 * first, "{first} {last}");
    let Quality::Answers {
        accuracy,
        questions,
        kinds,
        pointing,
    } = trained.quality
    else {
        panic!("{:?}", trained.quality);
    };
    assert!((0.0..=1.0).contains(&accuracy) && questions > 12 && pointing.is_some());
    assert!(kinds.contains_key("which colour"), "{kinds:?}");

    let registry = Registry::default();
    let answerer = registry.question_answerer(&run, &Device::flex()).unwrap();
    let description = answerer.description();
    let answers = recipe.data.scenes.as_ref().unwrap().config().answers();
    assert_eq!(description.answers, answers);
    // The file alone knows its scenes.
    let (scenes, seed) = description.scenes.clone().unwrap();
    assert_eq!(
        (Some(&scenes), seed),
        (recipe.data.scenes.as_ref(), recipe.training.seed)
    );
    assert_eq!(
        description.unknown_words("What COLOUR is the purpel square?"),
        ["purpel"]
    );
    let (asked, _) = Asked::read(&recipe, Split::Test).unwrap().unwrap();
    let images: Vec<Image> = (0..2)
        .map(|index| asked.get(index).unwrap().image)
        .collect();
    let text = "What colour is it?";
    let found = answerer
        .ask(&images, &[(1, text), (0, ""), (1, text)])
        .unwrap();
    assert_eq!(found.len(), 3);
    assert_eq!(found[0].0.scores, found[2].0.scores);
    for (answered, trace) in found {
        let best = answered.scores[answered.answer];
        assert!(
            answered
                .scores
                .iter()
                .all(|score| (0.0..=best).contains(score))
        );
        assert_eq!(trace.target, description.answers[answered.answer]);
        // Two looks over four rows and columns.
        assert_eq!(trace.maps[0].shape(), [1, 2, 16]);
        assert_eq!(trace.image.unwrap().height(), 32);
    }
    let judged = asked
        .judge(description, answerer.model(), &Device::flex(), &Alone)
        .unwrap();
    let of_kinds: usize = judged.scores.kinds.values().map(|of| of.questions).sum();
    assert_eq!(
        (of_kinds, judged.lines.len()),
        (judged.scores.all.questions, of_kinds)
    );
    // The same image by image.
    let of_images: usize = judged.images.iter().map(|of| of.all.questions).sum();
    assert_eq!((judged.images.len(), of_kinds), (asked.len(), of_images));
}

/// The words of a model to begin with are those that its embeddings stand for; more answers have a layer of their own.
#[test]
fn questions_begin_with_the_words_of_another_model() {
    let folder = tempdir().unwrap();
    let few = ["training.steps=1", "training.validate_every=1"];
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    train(&recipe(SCENES, &few), &first, None, false).unwrap();
    let start = format!("training.start={first:?}");
    let more = [few[0], few[1], &start, "data.scenes.digits=true"];
    let began = train(&recipe(SCENES, &more), &second, None, false);
    let began = began.unwrap().began;
    let [first, second] = [&first, &second].map(|run| {
        let registry = Registry::default();
        let answerer = registry.question_answerer(run, &Device::flex()).unwrap();
        let description = answerer.description();
        let (scenes, _) = description.scenes.clone().unwrap();
        (
            description.tokenizers.to_bytes(),
            description.answers.clone(),
            scenes.digits,
        )
    });
    assert_eq!(first.0, second.0);
    assert_ne!(first.1, second.1);
    // Each file names the scenes of its own training.
    assert_eq!((first.2, second.2), (false, true));
    assert!(!began.drawn.is_empty(), "the layer of the answers");
    assert!(
        began.drawn.iter().all(|name| !name.contains("embedding")),
        "{:?}",
        began.drawn
    );
}

#[test]
fn a_resumed_run_makes_the_same_updates() {
    let folder = tempdir().unwrap();
    let recipe = recipe(SCENES, &["model.dropout=0.1", "training.steps=6"]);
    let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
    train(&recipe, &whole, None, false).unwrap();
    let stopped = train(&recipe, &parts, Some(3), false).unwrap().summary;
    assert_eq!((stopped.reason, stopped.step), (Reason::Interrupted, 3));
    train(&recipe, &parts, None, true).unwrap();
    let arrays = |run: &Path| {
        let registry = Registry::default();
        let answerer = registry.question_answerer(run, &Device::flex()).unwrap();
        weights::collect(answerer.model())
    };
    let whole = arrays(&whole);
    for (name, array) in &arrays(&parts) {
        assert!(whole[name] == *array, "{name} differs");
    }
}

/// Files in the form of VQA version 2: two images, three questions, ten people.
fn files(folder: &Path) -> String {
    let names = ["000000000001.jpg", "000000000002.jpg"];
    for (name, value) in names.iter().zip([40, 200]) {
        let image = Image::filled(24, 30, &[value; 3]).unwrap();
        image.save_png(folder.join(name)).unwrap();
    }
    let question = |id: u64, image: u64, text: &str| {
        format!(r#"{{"question_id": {id}, "image_id": {image}, "question": "{text}"}}"#)
    };
    let questions = [
        question(10, 1, "Is it dark?"),
        question(11, 1, "What's this?"),
        question(20, 2, "Is it dark?"),
    ];
    let annotation = |id: u64, image: u64, kind: &str, answers: [&str; 2]| {
        let people = (0..10).map(|person| {
            let answer = answers[usize::from(person >= 8)];
            format!(r#"{{"answer": "{answer}", "answer_id": {person}}}"#)
        });
        let people: Vec<String> = people.collect();
        format!(
            r#"{{"question_id": {id}, "image_id": {image}, "question_type": "{kind}", "answer_type": "other",
            "multiple_choice_answer": "{}", "answers": [{}]}}"#,
            answers[0],
            people.join(",")
        )
    };
    let annotations = [
        annotation(10, 1, "is it", ["yes", "no"]),
        annotation(11, 1, "what", ["a wall", "sky"]),
        annotation(20, 2, "is it", ["no", "no"]),
    ];
    let write = |name: &str, key: &str, entries: &[String]| {
        let text = format!(r#"{{"{key}": [{}]}}"#, entries.join(","));
        fs::write(folder.join(name), text).unwrap();
    };
    write("questions.json", "questions", &questions);
    write("annotations.json", "annotations", &annotations);
    let part = |part: &str| {
        format!(
            "[data.questions.{part}]\nimages = {0:?}\nquestions = {1:?}\nannotations = {2:?}\n",
            folder,
            folder.join("questions.json"),
            folder.join("annotations.json")
        )
    };
    format!(
        "[data.questions]\nsize = 16\nmin_answers = 7\n{}{}",
        part("train"),
        part("valid")
    )
}

#[test]
fn questions_of_files_are_learned_by_heart() {
    let folder = tempdir().unwrap();
    let recipe = recipe(
        &files(folder.path()),
        &["training.steps=60", "training.validate_every=60"],
    );
    let run = folder.path().join("run");
    let trained = train(&recipe, &run, None, false).unwrap();
    assert_eq!(
        (trained.began.corpus.kept, trained.began.validation_pairs),
        (2, 2)
    );
    // Images that are not kept are read again.
    let mut again = recipe.clone();
    again.data.questions.as_mut().unwrap().memory = 0;
    let again = train(&again, &folder.path().join("again"), None, false).unwrap();
    assert_eq!(trained.losses, again.losses);
    let registry = Registry::default();
    let answerer = registry.question_answerer(&run, &Device::flex()).unwrap();
    // By frequency; "sky" was said twice only, an article says nothing.
    assert_eq!(answerer.description().answers, ["no", "wall", "yes"]);
    let Quality::Answers {
        accuracy,
        kinds,
        pointing,
        ..
    } = trained.quality
    else {
        panic!("{:?}", trained.quality);
    };
    // What eight of ten said is right; "a wall" of people is not "wall", as in the official evaluation.
    let expected = BTreeMap::from([("is it".to_owned(), 1.0), ("what".to_owned(), 0.0)]);
    assert_eq!((kinds, pointing), (expected, None));
    assert!((accuracy - 2.0 / 3.0).abs() < 1e-9);
}

/// Those of training are left out and counted. Of those of validation the first words are read: all are judged.
#[test]
fn questions_that_are_too_long_are_left_out() {
    let folder = tempdir().unwrap();
    let text = files(folder.path());
    let path = folder.path().join("questions.json");
    let written = fs::read_to_string(&path).unwrap();
    let long = format!("What's {}this?", "so, ".repeat(100_000));
    fs::write(&path, written.replace("What's this?", &long)).unwrap();
    let start = |most: usize, run: &str| {
        let most = format!("data.filter.max_tokens={most}");
        let recipe = recipe(&text, &[&most, "training.steps=1"]);
        train(&recipe, &folder.path().join(run), None, false).map(|trained| (trained, recipe))
    };
    // "Is it dark" has three words.
    let (trained, recipe) = start(3, "run").unwrap();
    let corpus = trained.began.corpus;
    assert_eq!((corpus.kept, corpus.too_long), (2, 1));
    let run = folder.path().join("run");
    let answerer = Registry::default().question_answerer(&run, &Device::flex());
    let answerer = answerer.unwrap();
    let description = answerer.description();
    assert_eq!((description.max_tokens, &description.scenes), (3, &None));
    let Quality::Answers { questions, .. } = trained.quality else {
        panic!("{:?}", trained.quality);
    };
    assert_eq!(questions, 3);
    let texts = |split| {
        let (asked, left_out) = Asked::read(&recipe, split).unwrap().unwrap();
        assert_eq!(left_out, 0, "images");
        let questions = asked.get(0).unwrap().questions.into_iter();
        questions.map(|one| one.phrase.text).collect::<Vec<_>>()
    };
    assert_eq!(texts(Split::Train), ["Is it dark?"]);
    assert_eq!(texts(Split::Valid), ["Is it dark?", "what's so so"]);
    let message = start(1, "none").map(|_| ()).unwrap_err().to_string();
    assert!(
        message.contains("data.filter.max_tokens: found 1, but all 3 questions are longer"),
        "{message}"
    );
}

#[test]
fn the_first_words_of_a_long_question_are_read() {
    let folder = tempdir().unwrap();
    let recipe = recipe(SCENES, &["training.steps=1"]);
    train(&recipe, folder.path(), None, false).unwrap();
    let answerer = Registry::default().question_answerer(folder.path(), &Device::flex());
    let answerer = answerer.unwrap();
    let description = answerer.description();
    let short = format!("What is{}?", " red".repeat(98));
    let long = format!("{short}{} purpel", " blue".repeat(100_000));
    assert_eq!(description.encode(&short).cut_from, None);
    assert_eq!(description.encode(&long).cut_from, Some(100_101));
    let unknown = description.unknown_words(&long);
    assert_eq!(unknown, description.unknown_words(&short));
    let image = Image::filled(32, 32, &[90; 3]).unwrap();
    let asked = [(0, short.as_str()), (0, long.as_str())];
    let found = answerer.ask(std::slice::from_ref(&image), &asked).unwrap();
    assert_eq!(found[0].0.scores, found[1].0.scores);
    let [first, second] = [&short, &long].map(|question| {
        let found = answerer.gradients(&image, question).unwrap();
        let (answer, weights, _) = found.unwrap();
        (answer, weights.gradients)
    });
    assert_eq!(first, second);
}

/// Files of former versions say neither how long a question may be nor which scenes were learned from.
#[test]
fn former_files_are_read_and_damaged_ones_refused() {
    let folder = tempdir().unwrap();
    let recipe = recipe(SCENES, &["training.steps=1"]);
    train(&recipe, folder.path(), None, false).unwrap();
    let path = model_file::locate(folder.path()).unwrap();
    let (arrays, metadata) = weights::from_bytes(&fs::read(path).unwrap()).unwrap();
    let opened = |change: &dyn Fn(&mut Value)| {
        let mut metadata = metadata.clone();
        let entry = metadata.get_mut("regard.questions").unwrap();
        let mut stored: Value = serde_json::from_str(entry).unwrap();
        change(&mut stored);
        *entry = stored.to_string();
        let bytes = weights::to_bytes(&arrays, metadata, weights::Storage::F32).unwrap();
        let registry = Registry::default();
        let opened = registry.from_bytes::<VisualQuestions>(&bytes, "it", &Device::flex());
        opened.map(|(_, description)| description)
    };
    let former = opened(&|stored| {
        let stored = stored.as_object_mut().unwrap();
        for key in ["max_tokens", "scenes", "seed"] {
            assert!(stored.remove(key).is_some(), "{key}");
        }
    });
    let former = former.unwrap();
    assert_eq!((former.max_tokens, former.scenes), (100, None));
    let small = opened(&|stored| stored["scenes"]["size"] = json!(9));
    let none = opened(&|stored| stored["max_tokens"] = json!(0));
    for (found, expected) in [
        (small, "it: data.scenes.size: found 9; expected 32 to 2048"),
        (
            none,
            "it: regard.questions.max_tokens: found 0; expected 1 to 1048576",
        ),
    ] {
        assert_eq!(found.unwrap_err().to_string(), expected);
    }
}

/// A run that began with it before that was refused goes on.
#[test]
fn a_backbone_that_sees_no_image_is_refused_where_a_run_begins() {
    let folder = tempdir().unwrap();
    let run = folder.path().join("run");
    let steps = "training.steps=2";
    let blind = [steps, "model.attention=question-only"];
    let message = train(&recipe(SCENES, &blind), &run, None, false)
        .map(|_| ())
        .unwrap_err()
        .to_string();
    let expected = "model.backbone: set, but model.attention is \"question-only\", which sees no image, so that this has no effect";
    assert!(message.starts_with(expected), "{message}");
    assert!(!run.exists(), "a failed start leaves no run");
    let usual = [steps, blind[1], "model.backbone.channels=32"];
    let usual = recipe(SCENES, &usual);
    let stopped = train(&usual, &run, Some(1), false).unwrap().summary;
    assert_eq!((stopped.reason, stopped.step), (Reason::Interrupted, 1));
    let path = run.join("recipe.toml");
    let written = fs::read_to_string(&path).unwrap();
    assert_eq!(written.matches("channels = 32").count(), 1, "{written}");
    fs::write(&path, written.replace("channels = 32", "channels = 4")).unwrap();
    let resumed = train(&usual, &run, None, true).unwrap().summary;
    assert_eq!(resumed.step, 2);
}

#[test]
fn wrong_data_are_refused() {
    let refused = |text: &str| {
        let text = format!("[model]\nkind = \"vqa\"\n[training]\nsteps = 1\n{text}");
        Registry::default()
            .parse(&text, "vqa.toml", &[])
            .unwrap_err()
            .to_string()
    };
    assert!(refused("").contains("[data.scenes] or [data.questions]"));
    let both = "[data.scenes]\n[data.questions.train]\nimages = \"a\"\nquestions = \"b\"\nannotations = \"c\"";
    assert!(refused(both).contains("set beside [data.scenes]"));
    let lacking = refused("[data.questions.train]\nimages = \"a\"");
    assert!(
        lacking.contains("data.questions.train.questions"),
        "{lacking}"
    );
    assert!(refused("[data.questions]\nsize = 8").contains("data.questions.train"));
    let large = refused("[data.questions]\nsize = 8193");
    assert!(
        large.contains("data.questions.size: found 8193; expected 1 to 8192"),
        "{large}"
    );
    let few = refused("[data.scenes]\n[data.filter]\nmax_tokens = 5");
    assert!(
        few.contains("data.filter.max_tokens: found 5; expected 100 with [data.scenes]"),
        "{few}"
    );
    assert!(
        refused("[data.scenes]\n[validation]\nmeasure = \"bleu\"").contains("validation.measure")
    );

    let folder = tempdir().unwrap();
    let text = files(folder.path());
    let train = |overrides: &[&str]| {
        let run = folder.path().join("run");
        let error = train(&recipe(&text, overrides), &run, None, false)
            .map(|_| ())
            .unwrap_err();
        assert!(!run.exists(), "a failed start leaves no run");
        error.to_string()
    };
    let rare = train(&["data.questions.min_answers=100"]);
    assert!(rare.contains("the number of answers is 0"), "{rare}");
    let test = "data.questions.test={images=\"x\", questions=\"nowhere.json\", annotations=\"y\"}";
    let unread = train(&[test]);
    assert!(unread.contains("nowhere.json: cannot read"), "{unread}");
    fs::write(folder.path().join("000000000002.jpg"), b"no image").unwrap();
    assert!(train(&[]).contains("000000000002.jpg"));
    fs::write(folder.path().join("000000000001.jpg"), b"no image").unwrap();
    let none = train(&["data.questions.broken=skip"]);
    assert!(
        none.contains("data.questions.train: no image is left, 2 that cannot be read"),
        "{none}"
    );
    fs::write(folder.path().join("questions.json"), b"{\"questions\": 3}").unwrap();
    assert!(train(&[]).contains("questions.json"));
}

#[test]
fn images_of_another_size_than_the_models_are_refused() {
    let folder = tempdir().unwrap();
    let recipe = |overrides: &[&str]| recipe(SCENES, overrides);
    let run = folder.path().join("run");
    train(&recipe(&["training.steps=1"]), &run, None, false).unwrap();
    let answerer = Registry::default().question_answerer(&run, &Device::flex());
    let answerer = answerer.unwrap();
    let larger = recipe(&["data.scenes.size=40"]);
    let (asked, _) = Asked::read(&larger, Split::Test).unwrap().unwrap();
    let judged = asked.judge(
        answerer.description(),
        answerer.model(),
        &Device::flex(),
        &Alone,
    );
    let message = judged.unwrap_err().to_string();
    assert!(
        message.contains("data.scenes.size")
            && message.contains("40 x 40")
            && message.contains("32 x 32"),
        "{message}"
    );
}

/// A training that diverges before a validation has to stop with its loss, and the last model that was good.
#[test]
fn a_model_that_computes_no_numbers_is_judged_by_its_loss() {
    let folder = tempdir().unwrap();
    let recipe = recipe(SCENES, &["training.steps=1"]);
    train(&recipe, folder.path(), None, false).unwrap();
    let device = Device::flex();
    let answerer = Registry::default().question_answerer(folder.path(), &device);
    let answerer = answerer.unwrap();
    let mut arrays = weights::collect(answerer.model());
    let mut changed = 0;
    for (name, array) in &mut arrays {
        // The gated units of a look are 1, and their weighted sum overflows.
        let ends = [("vector", 3e38), ("bias", 100.0)];
        let number = ends.iter().find(|(end, _)| name.ends_with(end));
        if let Some((_, number)) = number.filter(|_| name.contains("looks")) {
            array.values.fill(*number);
            changed += 1;
        }
    }
    assert_eq!(changed, 6, "two looks with two biases each");
    let model = weights::apply(answerer.model().clone(), arrays).unwrap();
    let (asked, _) = Asked::read(&recipe, Split::Test).unwrap().unwrap();
    let judged = asked.judge(answerer.description(), &model, &device, &Alone);
    let judged = judged.unwrap();
    assert!(judged.loss.is_nan(), "{}", judged.loss);
    let all = judged.scores.all;
    assert_eq!((all.questions, all.looking.looks), (judged.lines.len(), 0));
}

#[test]
fn guided_attention_moves_the_last_look_onto_the_objects() {
    let folder = tempdir().unwrap();
    let inside = |name: &str, weight: &str| {
        let recipe = recipe(SCENES, &[weight]);
        let run = folder.path().join(name);
        train(&recipe, &run, None, false).unwrap();
        let answerer = Registry::default().question_answerer(&run, &Device::flex());
        let answerer = answerer.unwrap();
        let (asked, _) = Asked::read(&recipe, Split::Train).unwrap().unwrap();
        let judged = asked.judge(
            answerer.description(),
            answerer.model(),
            &Device::flex(),
            &Alone,
        );
        judged.unwrap().scores.all.looking.inside()
    };
    let [alone, guided] = [("alone", "0.0"), ("guided", "1.0")]
        .map(|(name, weight)| inside(name, &format!("training.guided_attention={weight}")));
    assert!(guided > 1.5 * alone, "{alone} {guided}");
}

#[test]
fn guided_attention_is_refused_where_nothing_is_known_of_objects() {
    let refused = |text: &str, data: &str| {
        let text = format!(
            "[model]\nkind = \"vqa\"\n{text}[training]\nsteps = 1\nguided_attention = 0.5\n{data}"
        );
        let parsed = Registry::default().parse(&text, "vqa.toml", &[]);
        parsed.unwrap_err().to_string()
    };
    let blind = refused("attention = \"question-only\"\n", "[data.scenes]");
    assert!(blind.contains("training.guided_attention"), "{blind}");
    assert!(blind.contains("sees no image"), "{blind}");
    let files = "[data.questions.train]\nimages = \"a\"\nquestions = \"b\"\nannotations = \"c\"";
    let unknown = refused("", files);
    assert!(unknown.contains("0 without [data.scenes]"), "{unknown}");
}
