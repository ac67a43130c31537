//! Captioners as a whole: drawn scenes and COCO's files are learned from, runs stop and resume exactly, looks are scored against the
//! objects, files can be opened again, and bad input is refused.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use burn::tensor::Device;
use regard_images::Image;
use regard_nn::weights;
use regard_train::ranks::Alone;
use regard_train::{
    ImageCaptioner, Registry, TrainError,
    captioner::CaptionedImages,
    learner::{Event, Quality, Reason, Run, Summary, ValidationMetrics},
    model_file,
    recipe::{Recipe, Split},
    tasks::Captioning,
};
use serde_json::json;
use tempfile::tempdir;

const MODEL: &str = r#"
    [model]
    kind = "captioner"
    embedding = 16
    hidden = 24
    attention_dimension = 16
    dropout = 0.1
    [model.backbone]
    channels = 6
    stages = 2
    blocks = 1
    [batch]
    sentences = 8
    [schedule]
    learning_rate = 0.01
    [training]
    log_every = 1
    steps = 24
    validate_every = 12
    [translate]
    beam = 2
    [translate.max_length]
    absolute = 12
"#;

const SCENES: &str = "
    [data.scenes]
    train = 64
    valid = 6
    test = 5
    size = 32
    objects = 1
    digits = false
    texture = 0.0
";

fn recipe(data: &str, overrides: &[&str]) -> Recipe {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    let text = format!("{MODEL}{data}");
    let parsed = Registry::default().parse(&text, "captions.toml", &overrides);
    parsed.unwrap()
}

/// Trains, or goes on with what stopped: the validations, and how it ended.
fn train(
    recipe: &Recipe,
    folder: &Path,
    stop_at: Option<u64>,
    resume: bool,
) -> Result<(Vec<ValidationMetrics>, Summary), TrainError> {
    let stop = AtomicBool::new(false);
    let run = Run {
        folder,
        device: &Device::flex(),
        stop: &stop,
        ranks: &Alone,
    };
    let mut judged = vec![];
    let mut report = |event: &Event| match event {
        Event::Validation(metrics) => judged.push(metrics.clone()),
        Event::Train(metrics) if Some(metrics.step) == stop_at => {
            stop.store(true, Ordering::SeqCst);
        }
        _ => {}
    };
    let registry = Registry::default();
    let summary = match resume {
        false => registry.train(recipe, &run, &mut report),
        true => registry.resume(&[], &run, &mut report),
    }?;
    Ok((judged, summary))
}

fn open(run: &Path) -> ImageCaptioner {
    Registry::default().captioner(run, &Device::flex()).unwrap()
}

#[test]
fn a_captioner_learns_scenes_and_shows_where_it_looked() {
    let folder = tempdir().unwrap();
    let recipe = recipe(SCENES, &["model.entropy=0.01"]);
    let (judged, _) = train(&recipe, folder.path(), None, false).unwrap();
    assert!(
        judged[1].loss < judged[0].loss,
        "{} {}",
        judged[0].loss,
        judged[1].loss
    );
    let Quality::Captions {
        inside, pointing, ..
    } = judged[1].quality
    else {
        panic!("{:?}", judged[1].quality)
    };
    for share in [inside, pointing] {
        assert!((0.0..=1.0).contains(&share.unwrap()));
    }
    let captioner = open(folder.path());
    let (images, _) = Captioning::part(&recipe, Split::Test).unwrap().unwrap();
    let found = captioner
        .judge(&images, usize::MAX, captioner.settings(), &Alone)
        .unwrap();
    assert_eq!((found.captions.len(), found.exact.lines), (5, 5));
    // Every scene has one object, of which two or three words speak.
    assert!(
        (10..=15).contains(&found.looking.looks),
        "{}",
        found.looking
    );
    // The same image by image.
    let looks: usize = found.looks.iter().map(|[pixels, _]| pixels.looks).sum();
    assert_eq!((found.looks.len(), looks), (5, found.looking.looks));
    assert_eq!(found.counts.scores(), found.scores);
    // The file alone knows its scenes.
    let (scenes, seed) = captioner.description().scenes.clone().unwrap();
    let again = CaptionedImages::Scenes(scenes.part(Split::Test, seed));
    let again = captioner
        .judge(&again, usize::MAX, captioner.settings(), &Alone)
        .unwrap();
    assert_eq!(again.captions, found.captions);

    let scene = scenes.part(Split::Test, seed).scene(0).unwrap();
    let larger = scene.image.resize(50, 70).unwrap();
    let shown = captioner
        .caption(&[scene.image, larger], captioner.settings())
        .unwrap();
    assert_eq!(
        (shown.len(), shown[0][0].text.clone()),
        (2, found.captions[0].clone())
    );
    let trace = &shown[0][0].trace;
    assert_eq!(trace.image.as_ref().unwrap().height(), 32);
    let [heads, words, cells] = trace.maps[0].shape();
    let written = shown[0][0].text.split(' ').count() + usize::from(shown[0][0].finished);
    assert_eq!((heads, words, cells), (1, written, 64));
}

#[test]
fn a_resumed_run_makes_the_same_updates_with_hard_attention_too() {
    for normalizer in ["softmax", "hard-reinforce"] {
        let folder = tempdir().unwrap();
        let normalizer = format!("model.normalizer={normalizer}");
        let recipe = recipe(
            SCENES,
            &[&normalizer, "training.steps=8", "training.validate_every=8"],
        );
        let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
        train(&recipe, &whole, None, false).unwrap();
        let (_, stopped) = train(&recipe, &parts, Some(5), false).unwrap();
        assert_eq!((stopped.reason, stopped.step), (Reason::Interrupted, 5));
        train(&recipe, &parts, None, true).unwrap();
        let arrays = |run: &Path| {
            let path = model_file::locate(run).unwrap();
            weights::from_bytes(&fs::read(path).unwrap()).unwrap().0
        };
        let (whole, parts) = (arrays(&whole), arrays(&parts));
        assert_eq!(whole.len(), parts.len());
        for (name, array) in &parts {
            assert!(whole[name] == *array, "{normalizer}: {name} differs");
        }
    }
}

/// Six images of one colour with two captions each, as COCO has them; the path of the captions' file.
fn coco(folder: &Path) -> String {
    let (mut images, mut annotations) = (vec![], vec![]);
    for id in 0..6_u64 {
        let (name, pixel) = match id % 2 {
            0 => ("red", [220, 20, 20]),
            _ => ("blue", [20, 20, 220]),
        };
        let file = format!("{id}.png");
        let image = Image::filled(20, 16 + id as usize, &pixel).unwrap();
        image.save_png(folder.join(&file)).unwrap();
        images.push(json!({"id": id, "file_name": file}));
        for caption in [
            format!("A {name} picture on paper."),
            format!("It's all {name}, and bright!"),
        ] {
            annotations.push(json!({"image_id": id, "caption": caption}));
        }
    }
    let path = folder.join("captions.json");
    let file = json!({"images": images, "annotations": annotations});
    fs::write(&path, file.to_string()).unwrap();
    path.display().to_string()
}

#[test]
fn captions_of_files_are_learned() {
    let folder = tempdir().unwrap();
    let captions = coco(folder.path());
    let images = folder.path().display().to_string();
    let data = format!(
        "[data.captions]\ntrain = {captions:?}\ntrain_images = {images:?}\nvalid = {captions:?}\nvalid_images = {images:?}\nsize = 16\n[data.vocabulary]\nsize = 300\n"
    );
    let recipe = recipe(&data, &["training.steps=60", "training.validate_every=30"]);
    let run = folder.path().join("run");
    let (judged, _) = train(&recipe, &run, None, false).unwrap();
    assert!(judged[1].loss < judged[0].loss);
    let Quality::Captions { exact, inside, .. } = judged[1].quality else {
        panic!("{:?}", judged[1].quality)
    };
    assert_eq!(
        (exact, inside),
        (1.0, None),
        "two colours are learned quickly: {judged:?}"
    );
    // Images that are not kept are read again.
    let mut again = recipe.clone();
    again.data.captions.as_mut().unwrap().memory = 0;
    let (reread, _) = train(&again, &folder.path().join("again"), None, false).unwrap();
    let losses =
        |judged: &[ValidationMetrics]| judged.iter().map(|one| one.loss).collect::<Vec<_>>();
    assert_eq!(losses(&judged), losses(&reread));
    // The words of a model to begin with are taken.
    let mut begun = recipe.clone();
    begun.training.start = Some(run.clone());
    let error = train(&begun, &folder.path().join("begun"), None, false).unwrap_err();
    let expected = "data.vocabulary.size: set, but training.start says";
    assert!(error.to_string().contains(expected), "{error}");
    let captioner = open(&run);
    let red = Image::filled(40, 40, &[220, 20, 20]).unwrap();
    let found = captioner.caption(&[red], captioner.settings()).unwrap();
    assert!(
        ["a red picture on paper", "it's all red and bright"].contains(&found[0][0].text.as_str())
    );
    // A file that is no image.
    fs::write(folder.path().join("3.png"), "no image").unwrap();
    let error = train(&recipe, &folder.path().join("broken"), None, false).unwrap_err();
    assert!(error.to_string().contains("3.png"), "{error}");
    let mut lenient = recipe.clone();
    let settings = lenient.data.captions.as_mut().unwrap();
    settings.broken = regard_train::recipe::OnBroken::Skip;
    let (read, filtered) = Captioning::part(&lenient, Split::Train).unwrap().unwrap();
    assert_eq!((read.len(), filtered.broken), (5, 1));
    // Those of validation are counted too, here the same.
    lenient.training.steps = Some(1);
    let run = folder.path().join("lenient");
    let run = Run {
        folder: &run,
        device: &Device::flex(),
        stop: &AtomicBool::new(false),
        ranks: &Alone,
    };
    let mut counted = None;
    let mut report = |event: &Event| {
        if let Event::Started(started) = event {
            counted = Some((started.corpus.kept, started.corpus.broken));
        }
    };
    let trained = Registry::default().train(&lenient, &run, &mut report);
    assert_eq!((trained.unwrap().step, counted), (1, Some((10, 2))));
    // Where none is left, nothing is judged.
    for index in 0..6 {
        fs::write(folder.path().join(format!("{index}.png")), "no image").unwrap();
    }
    let message = Captioning::part(&lenient, Split::Valid);
    let message = message.unwrap_err().to_string();
    assert!(
        message.contains("data.captions.valid: no image is left, 6 that cannot be read"),
        "{message}"
    );
}

#[test]
fn images_without_captions_are_counted() {
    let folder = tempdir().unwrap();
    let captions = coco(folder.path());
    let text = fs::read_to_string(&captions).unwrap();
    let mut file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let annotations = file["annotations"].as_array_mut().unwrap();
    annotations.retain(|one| one["image_id"] != 2 && one["image_id"] != 3);
    // One image has no caption, another one without a word.
    annotations.push(json!({"image_id": 3, "caption": "..."}));
    fs::write(&captions, file.to_string()).unwrap();
    let images = folder.path().display().to_string();
    let data = format!(
        "[data.captions]\ntrain = {captions:?}\ntrain_images = {images:?}\nvalid = {captions:?}\nvalid_images = {images:?}\nsize = 16\n[data.vocabulary]\nsize = 300\n"
    );
    let recipe = recipe(&data, &["training.steps=1"]);
    let (read, filtered) = Captioning::part(&recipe, Split::Train).unwrap().unwrap();
    assert_eq!((read.len(), filtered.empty, filtered.broken), (4, 2, 0));
    let run = folder.path().join("run");
    let run = Run {
        folder: &run,
        device: &Device::flex(),
        stop: &AtomicBool::new(false),
        ranks: &Alone,
    };
    let mut counted = None;
    let mut report = |event: &Event| {
        if let Event::Started(started) = event {
            counted = Some((started.corpus.kept, started.corpus.empty));
        }
    };
    let trained = Registry::default().train(&recipe, &run, &mut report);
    // Those of validation too, here the same.
    assert_eq!((trained.unwrap().step, counted), (1, Some((8, 4))));
    // The loss is a mean over words.
    let metrics = fs::read_to_string(run.folder.join("metrics.jsonl")).unwrap();
    assert!(metrics.lines().all(|line| line.contains("perplexity")));
}

#[test]
fn captions_that_cannot_be_learned_from_are_refused() {
    let folder = tempdir().unwrap();
    let captions = coco(folder.path());
    let images = folder.path().display().to_string();
    let data = format!(
        "[data.captions]\ntrain = {captions:?}\ntrain_images = {images:?}\nsize = 16\n[data.vocabulary]\nsize = 300\n"
    );
    let run = folder.path().join("run");
    let refused = |overrides: &[&str]| {
        let started = train(&recipe(&data, overrides), &run, None, false);
        assert!(!run.exists(), "a failed start leaves no run");
        started.unwrap_err().to_string()
    };
    let message = refused(&["data.filter.max_tokens=1"]);
    assert!(
        message.contains("data.filter.max_tokens: found 1, but all 12 captions are longer"),
        "{message}"
    );
    for set in ["training.patience=3", "validation.measure=loss"] {
        let (key, _) = set.split_once('=').unwrap();
        let message = refused(&[set]);
        let expected = format!("{key}: set, but there is no validation example");
        assert!(message.contains(&expected), "{message}");
    }
    let message = refused(&[
        "data.captions.test=nowhere.json",
        "data.captions.test_images=nowhere",
    ]);
    assert!(message.contains("nowhere.json: cannot read"), "{message}");
    let text = fs::read_to_string(&captions).unwrap();
    let mut file: serde_json::Value = serde_json::from_str(&text).unwrap();
    file["annotations"] = json!([]);
    fs::write(&captions, file.to_string()).unwrap();
    let message = refused(&[]);
    assert!(
        message.contains("data.captions.train: no image is left") && message.contains("captions"),
        "{message}"
    );
}

#[test]
fn what_a_captioner_cannot_learn_from_is_refused() {
    let refused = |data: &str| {
        let text = format!("{MODEL}{data}");
        let parsed = Registry::default().parse(&text, "captions.toml", &[]);
        parsed.unwrap_err().to_string()
    };
    for (data, expected) in [
        ("", "data.scenes: missing"),
        ("[data.captions]\nsize = 32", "data.captions.train: missing"),
        ("[data.captions]\ntrain = \"x\"", "train_images"),
        ("[data.captions]\nsize = 7", "8 to 2048"),
        ("[data.scenes]\nsize = 8", "32 to 2048"),
        (
            "[data.scenes]\n[data.captions]\ntrain = \"x\"\ntrain_images = \"y\"",
            "not both",
        ),
        ("[data.scenes]\n[data.images]\ntrain = \"x\"", "data.images"),
        (
            "[data.scenes]\n[data.vocabulary]\nsize = 300",
            "data.vocabulary.size: found 300; expected 8000 with [data.scenes]",
        ),
        (
            "[data.scenes]\n[data.filter]\nmax_tokens = 5",
            "data.filter.max_tokens: found 5; expected 100 with [data.scenes]",
        ),
        (
            "[data.scenes]\n[validation]\nmeasure = \"accuracy\"",
            "\"bleu\" or \"loss\"",
        ),
    ] {
        let error = refused(data);
        assert!(error.contains(expected), "{data}: {error}");
    }
}

/// A training that diverges before a validation has to stop with its loss, and the last model that was good.
#[test]
fn a_captioner_that_computes_no_numbers_is_judged_by_its_loss() {
    let folder = tempdir().unwrap();
    let recipe = recipe(SCENES, &["training.steps=1", "data.scenes.valid=1"]);
    train(&recipe, folder.path(), None, false).unwrap();
    let device = Device::flex();
    let opened = Registry::default().open::<Captioning>(folder.path(), &device);
    let (model, description) = opened.unwrap();
    let mut arrays = weights::collect(&model);
    // The units of the attention are 1, and their weighted sum overflows.
    for (name, number) in [("key.bias", 100.0), ("vector", 3e38)] {
        let name = format!("attention.score.Additive.{name}");
        arrays.get_mut(&name).unwrap().values.fill(number);
    }
    let model = weights::apply(model, arrays).unwrap();
    let captioner = ImageCaptioner::new(model, description, &device);
    let (images, _) = Captioning::part(&recipe, Split::Test).unwrap().unwrap();
    let judged = captioner.judge(&images, usize::MAX, captioner.settings(), &Alone);
    let judged = judged.unwrap();
    assert!(judged.loss.is_nan(), "{}", judged.loss);
    assert_eq!((judged.captions.len(), judged.looking.looks), (5, 0));
}

#[test]
fn a_damaged_file_is_refused() {
    let folder = tempdir().unwrap();
    let recipe = recipe(SCENES, &["training.steps=1", "data.scenes.valid=1"]);
    train(&recipe, folder.path(), None, false).unwrap();
    let path = model_file::locate(folder.path()).unwrap();
    let (arrays, metadata) = weights::from_bytes(&fs::read(path).unwrap()).unwrap();
    let refused = |key: &str, from: &str, to: &str| {
        let mut metadata = metadata.clone();
        let entry = metadata.get_mut(key).unwrap();
        assert!(entry.contains(from), "{entry}");
        *entry = entry.replacen(from, to, 1);
        let bytes = weights::to_bytes(&arrays, metadata, weights::Storage::F32).unwrap();
        let device = Device::flex();
        let opened = Registry::default().from_bytes::<Captioning>(&bytes, "it", &device);
        opened.unwrap_err().to_string()
    };
    for (key, from, to, expected) in [
        ("regard.captions", "\"size\":32", "\"size\":9", "32 to 2048"),
        ("regard.captions", "\"mean\":[", "\"mean\":[0.5,", "mean"),
        ("regard.translate", "\"beam\":2", "\"beam\":0", "beam"),
        (
            "regard.model",
            "\"size\":[32,32]",
            "\"size\":[0,32]",
            "pixels",
        ),
        ("regard.model", "\"stages\":2", "\"stages\":3", "is missing"),
        (
            "regard.model",
            "\"channels\":6",
            "\"channels\":8",
            "in the model",
        ),
        (
            "regard.model",
            "\"hidden\":24",
            "\"hidden\":1048576",
            "in the model",
        ),
    ] {
        let error = refused(key, from, to);
        assert!(error.contains(expected), "{key} {to}: {error}");
    }
}
