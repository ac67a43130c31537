//! Detectors as a whole: they learn from scenes and from COCO's files, stop and resume exactly, can be opened again, and bad input
//! is refused.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use burn::tensor::Device;
use regard_evaluate::Resampled;
use regard_images::{Image, Random};
use regard_nn::weights;
use regard_train::ranks::Alone;
use regard_train::{
    Detector, Registry, TrainError,
    learner::{Event, Quality, Reason, Run, Summary},
    model_file,
    recipe::{Recipe, Split},
    tasks::{
        Detection, Task,
        detection::{Samples, judge},
    },
};
use serde_json::{Value, json};
use tempfile::tempdir;

const MODEL: &str = r#"
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
    [batch]
    sentences = 8
    [schedule]
    kind = "constant"
    learning_rate = 0.003
    [training]
    steps = 30
    log_every = 1
    validate_every = 15
"#;

const SCENES: &str = r#"
    [data.scenes]
    train = 200
    valid = 6
    test = 5
    size = 32
    objects = 2
    digits = false
"#;

fn parse(data: &str, overrides: &[&str]) -> Recipe {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    Registry::default()
        .parse(&format!("{MODEL}{data}"), "detr.toml", &overrides)
        .unwrap()
}

/// Trains, or goes on with what stopped; the losses of validations, and how it ended.
fn train(
    recipe: &Recipe,
    folder: &Path,
    stop_at: Option<u64>,
    resume: bool,
) -> Result<(Vec<f64>, Summary), TrainError> {
    let stop = AtomicBool::new(false);
    let run = Run {
        folder,
        device: &Device::flex(),
        stop: &stop,
        ranks: &Alone,
    };
    let mut losses = vec![];
    let mut report = |event: &Event| match event {
        Event::Train(metrics) if Some(metrics.step) == stop_at => {
            stop.store(true, Ordering::SeqCst);
        }
        Event::Validation(metrics) => {
            let Quality::Detection {
                average_precision,
                mean_iou,
                ..
            } = metrics.quality
            else {
                panic!("{:?}", metrics.quality);
            };
            for share in [average_precision, mean_iou.unwrap()] {
                assert!((0.0..=1.0).contains(&share));
            }
            losses.push(metrics.loss);
        }
        _ => {}
    };
    let registry = Registry::default();
    let summary = match resume {
        false => registry.train(recipe, &run, &mut report),
        true => registry.resume(&[], &run, &mut report),
    }?;
    Ok((losses, summary))
}

fn open(run: &Path) -> Detector {
    Registry::default().detector(run, &Device::flex()).unwrap()
}

#[test]
fn a_detector_learns_scenes_and_can_be_opened_again() {
    let folder = tempdir().unwrap();
    let run = folder.path().join("run");
    let recipe = parse(SCENES, &[]);
    let (losses, _) = train(&recipe, &run, None, false).unwrap();
    assert!(losses.len() == 2 && losses[1] < losses[0], "{losses:?}");
    // The loss is no mean over words.
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    assert!(metrics.contains("loss") && !metrics.contains("perplexity"));

    let detector = open(&run);
    let description = detector.description();
    assert_eq!(description.labels.len(), 7);
    assert_eq!(description.preparation.size, [32, 32]);
    // The file alone knows its scenes.
    let (scenes, seed) = description.scenes.clone().unwrap();
    assert_eq!(
        (Some(&scenes), seed),
        (recipe.data.scenes.as_ref(), recipe.training.seed)
    );
    let scene = recipe
        .data
        .scenes
        .as_ref()
        .unwrap()
        .part(Split::Test, 1)
        .scene(0)
        .unwrap();
    let large = scene.image.resize(20, 50).unwrap();
    for image in [scene.image, large] {
        let size = [image.height(), image.width()];
        let images = [image];
        let found = detector.detect(&images, 0.0, true).unwrap().remove(0);
        assert_eq!(found.len(), 4, "every query at a threshold of 0");
        assert!(found.is_sorted_by(|a, b| a.score >= b.score));
        for object in &found {
            let (right, below) = (
                object.bounds.x + object.bounds.width,
                object.bounds.y + object.bounds.height,
            );
            assert!(object.bounds.x >= 0.0 && right <= size[1] as f32 + 1e-3);
            assert!(object.bounds.y >= 0.0 && below <= size[0] as f32 + 1e-3);
            let mask = object.mask.as_ref().unwrap();
            assert_eq!([mask.height(), mask.width()], size);
        }
        let (looked, trace) = detector.look(&images, 0.0, true).unwrap().remove(0);
        assert_eq!(looked.len(), 4);
        assert_eq!(trace.maps.len(), 2, "a map for each layer of the decoder");
        for map in &trace.maps {
            // Queries: the objects; keys: the cells, rows of which sum to 1 as the map has checked.
            assert_eq!(map.shape(), [2, 4, 16]);
        }
        let shown = trace.image.unwrap();
        assert_eq!([shown.height(), shown.width()], size);
        assert!(detector.detect(&images, 1.0, false).unwrap()[0].is_empty());
    }

    let samples = Samples::part(&recipe, Split::Test, description);
    let (samples, _) = samples.unwrap().unwrap();
    let judged = judge(
        detector.model(),
        description,
        &samples,
        &Device::flex(),
        &Alone,
    )
    .unwrap();
    assert_eq!((samples.len(), judged.lines.len()), (5, 5));
    assert!(judged.loss.is_finite() && judged.mean_iou.is_some());
    // The same image by image.
    let overlaps = judged.overlaps.unwrap();
    assert_eq!(
        (judged.matches.ap().examples(), overlaps.examples()),
        (5, 5)
    );
    assert_eq!(overlaps.all(), judged.mean_iou);
}

/// A model without masks has no IoU of masks, though it finds nothing in an image.
#[test]
fn a_model_without_masks_has_no_iou() {
    for masks in [false, true] {
        let recipe = parse(SCENES, &[&format!("model.masks={masks}")]);
        let registry = Registry::default();
        let task = registry.task_of::<Detection>(&recipe.model).unwrap();
        let (_, description) = task.load(&recipe, None, None).unwrap();
        let model = task.init(&description, 1, &Device::flex()).unwrap();
        let samples = Samples::part(&recipe, Split::Valid, &description);
        let (samples, _) = samples.unwrap().unwrap();
        let judged = judge(&model, &description, &samples, &Device::flex(), &Alone);
        assert_eq!(judged.unwrap().mean_iou.is_some(), masks);
    }
}

/// Also where it begins with a model that has learned from others.
#[test]
fn a_file_names_the_scenes_of_its_own_training() {
    let registry = Registry::default();
    let load = |overrides: &[&str], former| {
        let recipe = parse(SCENES, overrides);
        let task = registry.task_of::<Detection>(&recipe.model).unwrap();
        task.load(&recipe, former, None).unwrap().1
    };
    let first = load(&[], None);
    let others = ["data.scenes.objects=1", "training.seed=5"];
    let second = load(&others, Some(first.clone()));
    let told = [first, second].map(|description| {
        let (scenes, seed) = description.scenes.unwrap();
        (scenes.objects, seed)
    });
    assert_eq!(told, [(2, 1), (1, 5)]);
}

/// Files of former versions do not say which scenes were learned from.
#[test]
fn former_files_are_read_and_damaged_ones_refused() {
    let folder = tempdir().unwrap();
    let recipe = parse(SCENES, &["training.steps=1", "model.queries=2"]);
    train(&recipe, folder.path(), None, false).unwrap();
    let path = model_file::locate(folder.path()).unwrap();
    let (arrays, metadata) = weights::from_bytes(&fs::read(path).unwrap()).unwrap();
    let opened = |change: &dyn Fn(&mut Value)| {
        let mut metadata = metadata.clone();
        let entry = metadata.get_mut("regard.images").unwrap();
        let mut stored: Value = serde_json::from_str(entry).unwrap();
        change(&mut stored);
        *entry = stored.to_string();
        let bytes = weights::to_bytes(&arrays, metadata, weights::Storage::F32).unwrap();
        let registry = Registry::default();
        let opened = registry.from_bytes::<Detection>(&bytes, "it", &Device::flex());
        opened.map(|(_, description)| description)
    };
    let former = opened(&|stored| {
        let stored = stored.as_object_mut().unwrap();
        for key in ["scenes", "seed"] {
            assert!(stored.remove(key).is_some(), "{key}");
        }
    });
    let former = former.unwrap();
    assert_eq!((former.labels.len(), former.scenes), (7, None));
    for (key, value, expected) in [
        (
            "size",
            json!(9),
            "it: data.scenes.size: found 9; expected 32 to 2048",
        ),
        (
            "objects",
            json!(3),
            "it: model.queries: found 2; expected at least 3, the objects of a scene",
        ),
        (
            "digits",
            json!(true),
            "it: data.scenes.digits: found true; expected scenes with the model's classes",
        ),
    ] {
        let found = opened(&|stored| stored["scenes"][key] = value.clone());
        assert_eq!(found.unwrap_err().to_string(), expected);
    }
}

#[test]
fn a_resumed_run_makes_the_same_updates() {
    let folder = tempdir().unwrap();
    let recipe = parse(SCENES, &["training.steps=5", "model.dropout=0.1"]);
    let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
    train(&recipe, &whole, None, false).unwrap();
    let (_, stopped) = train(&recipe, &parts, Some(2), false).unwrap();
    assert_eq!((stopped.reason, stopped.step), (Reason::Interrupted, 2));
    train(&recipe, &parts, None, true).unwrap();
    let again = Run {
        folder: &parts,
        device: &Device::flex(),
        stop: &AtomicBool::new(false),
        ranks: &Alone,
    };
    let [found, whole] = [&parts, &whole].map(|run| weights::collect(open(run).model()));
    for (name, array) in &found {
        assert!(whole[name] == *array, "{name} differs");
    }
    // Keys of the model that are changed are those of the model that goes on.
    let overrides = ["model.queries=5".to_owned()];
    let refused = Registry::default().resume(&overrides, &again, &mut |_| {});
    assert!(matches!(refused, Err(TrainError::Weights(_))));
}

/// Images of noise with COCO's file of their objects, in `folder`.
fn coco(folder: &Path, part: &str, count: u64, change: impl FnOnce(&mut Value)) -> [PathBuf; 2] {
    let images = folder.join(part);
    fs::create_dir_all(&images).unwrap();
    let (mut listed, mut objects) = (vec![], vec![]);
    for index in 0..count {
        let mut random = Random::new(index, 3);
        let pixels = (0..3 * 20 * 30).map(|_| random.below(256) as u8);
        let name = format!("{index}.png");
        let image = Image::new(20, 30, 3, pixels.collect()).unwrap();
        image.save_png(images.join(&name)).unwrap();
        listed.push(json!({"id": index, "file_name": name, "height": 20, "width": 30}));
        let square = [5, 5, 15, 5, 15, 15, 5, 15];
        let object = |id: u64, crowd: u8| {
            json!({"id": id, "image_id": index, "category_id": 7, "bbox": [5, 5, 10, 10], "area": 100,
                   "iscrowd": crowd, "segmentation": [square]})
        };
        objects.extend([
            object(2 * index, 0),
            object(2 * index + 1, u8::from(index == 0)),
        ]);
    }
    let categories = json!([{"id": 7, "name": "square"}, {"id": 9, "name": "disc"}]);
    let mut file = json!({"images": listed, "annotations": objects, "categories": categories});
    change(&mut file);
    let path = folder.join(format!("{part}.json"));
    fs::write(&path, file.to_string()).unwrap();
    [images, path]
}

fn of_files(parts: &[(&str, &[PathBuf; 2])]) -> String {
    let mut text = "[data.objects]\nsize = 16\nflip = 0.5\n".to_owned();
    for (part, [images, objects]) in parts {
        text.push_str(&format!(
            "{part} = {images:?}\n{part}_objects = {objects:?}\n"
        ));
    }
    text
}

/// Takes the masks away of all objects but the first `kept`.
fn without_masks(kept: usize) -> impl FnOnce(&mut Value) {
    move |file: &mut Value| {
        let objects = file["annotations"].as_array_mut().unwrap();
        for object in &mut objects[kept..] {
            object.as_object_mut().unwrap().remove("segmentation");
        }
    }
}

/// Some objects have no masks: they are learned and sought all the same.
#[test]
fn a_detector_learns_from_the_files_of_coco() {
    let folder = tempdir().unwrap();
    let train_files = coco(folder.path(), "train", 9, without_masks(5));
    let valid_files = coco(folder.path(), "valid", 3, without_masks(1));
    let text = of_files(&[("train", &train_files), ("valid", &valid_files)]);
    let recipe = parse(&text, &["training.steps=2"]);
    let run = folder.path().join("run");
    let (losses, summary) = train(&recipe, &run, None, false).unwrap();
    assert!(losses.iter().all(|loss| loss.is_finite()) && summary.step == 2);
    // Images that are not kept are read again.
    let again = parse(&text, &["training.steps=2", "data.objects.memory=0"]);
    let again = train(&again, &folder.path().join("again"), None, false);
    assert_eq!(losses, again.unwrap().0);
    let detector = open(&run);
    assert_eq!(detector.description().labels, ["square", "disc"]);
    assert_eq!(detector.description().preparation.size, [16, 16]);
    assert_eq!(detector.description().scenes, None);
    assert!(
        Samples::part(&recipe, Split::Test, detector.description())
            .unwrap()
            .is_none(),
        "the recipe names no test images"
    );
    let grey = parse(&text, &["data.objects.grey=true"]);
    let samples = Samples::part(&grey, Split::Valid, detector.description());
    let (samples, _) = samples.unwrap().unwrap();
    let refused = judge(
        detector.model(),
        detector.description(),
        &samples,
        &Device::flex(),
        &Alone,
    );
    let message = refused.unwrap_err().to_string();
    assert!(
        message.contains("images of 1 channels") && message.contains("data.objects.grey"),
        "{message}"
    );
}

#[test]
fn files_that_are_wrong_are_refused() {
    let folder = tempdir().unwrap();
    let train_files = coco(folder.path(), "train", 2, |_| {});
    let run = folder.path().join("run");
    let refused = |part: &str, files: &[PathBuf; 2]| {
        let text = match part {
            "train" => of_files(&[("train", files)]),
            _ => of_files(&[("train", &train_files), (part, files)]),
        };
        let recipe = parse(&text, &["training.steps=1"]);
        let message = train(&recipe, &run, None, false).unwrap_err().to_string();
        assert!(!run.exists(), "a failed start leaves no run");
        message
    };
    let other = coco(folder.path(), "other", 2, |file| {
        file["categories"][1]["name"] = json!("ring");
    });
    let message = refused("valid", &other);
    assert!(
        message.contains("other.json") && message.contains("the list of classes is square, ring"),
        "{message}"
    );
    let outside = coco(folder.path(), "outside", 2, |file| {
        file["annotations"][2]["bbox"] = json!([25, 5, 10, 10]);
    });
    let message = refused("train", &outside);
    assert!(message.contains("annotations[2].bbox"), "{message}");
    let size = coco(folder.path(), "size", 2, |file| {
        file["images"][1]["width"] = json!(40);
    });
    assert!(refused("train", &size).contains("1.png"));
    let unmasked = coco(folder.path(), "unmasked", 2, without_masks(0));
    let message = refused("train", &unmasked);
    assert!(
        message.contains("unmasked.json: annotations[0].segmentation is missing"),
        "{message}"
    );
    let nothing = coco(folder.path(), "nothing", 2, |file| {
        file["annotations"] = json!([]);
    });
    let message = refused("train", &nothing);
    assert!(
        message.contains("nothing.json: holds no object"),
        "{message}"
    );
    // Test images are looked at before training.
    let message = refused("test", &other);
    assert!(message.contains("the list of classes"), "{message}");
    let message = refused("test", &["nowhere", "nowhere.json"].map(PathBuf::from));
    assert!(message.contains("nowhere.json: cannot read"), "{message}");

    let refused = |overrides: &[&str]| {
        let text = of_files(&[("train", &train_files)]);
        let started = train(&parse(&text, overrides), &run, None, false);
        started.unwrap_err().to_string()
    };
    // Its first image has an object and a crowd.
    let message = refused(&["model.queries=1"]);
    assert!(
        message.contains("1.png is 2; expected at most 1, model.queries"),
        "{message}"
    );
    let message = refused(&["schedule.kind=plateau"]);
    assert!(
        message.contains("schedule.kind: found \"plateau\", but there is no validation example"),
        "{message}"
    );
    for name in ["0.png", "1.png"] {
        fs::write(train_files[0].join(name), "no image").unwrap();
    }
    let message = refused(&["data.objects.broken=skip"]);
    assert!(
        message.contains("no image is left, 2 that cannot be read"),
        "{message}"
    );
}

#[test]
fn keys_without_effect_are_refused_where_a_run_begins() {
    let folder = tempdir().unwrap();
    let run = folder.path().join("run");
    let of_depth = "decides on the stages and their blocks, so that this has no effect";
    for (set, key, why) in [
        (
            &["data.scenes.questions=5"][..],
            "data.scenes.questions",
            "a model of this kind reads no questions",
        ),
        (
            &["model.backbone.depth=18", "model.backbone.stages=2"],
            "model.backbone.stages",
            of_depth,
        ),
        (
            &["model.backbone.depth=18", "model.backbone.blocks=2"],
            "model.backbone.blocks",
            of_depth,
        ),
    ] {
        let error = train(&parse(SCENES, set), &run, None, false).unwrap_err();
        let message = error.to_string();
        assert!(
            message.starts_with(&format!("{key}: set, but")) && message.contains(why),
            "{message}"
        );
        assert!(!run.exists(), "a failed start leaves no run");
    }
}

#[test]
fn keys_that_do_not_fit_are_refused() {
    let refused = |text: &str| {
        let text = format!("{MODEL}{text}");
        let parsed = Registry::default().parse(&text, "detr.toml", &[]);
        parsed.unwrap_err().to_string()
    };
    assert!(refused("").contains("data.scenes: missing"));
    assert!(refused("[data.scenes]\n[data.objects]").contains("data.objects: found beside"));
    assert!(refused("[data.objects]\ntrain = \"x\"").contains("data.objects.train: missing"));
    let lonely = "[data.objects]\ntrain = \"x\"\ntrain_objects = \"y\"\nvalid = \"z\"";
    assert!(refused(lonely).contains("data.objects.valid: found one without the other"));
    let images = refused("[data.scenes]\n[data.images]\ntrain = \"x\"");
    assert!(images.contains("data.images") && images.contains("a detector of objects"));
    let bleu = refused("[data.scenes]\n[validation]\nmeasure = \"bleu\"");
    assert!(
        bleu.contains("validation.measure: found \"bleu\""),
        "{bleu}"
    );
    let few = MODEL.replace("queries = 4", "queries = 1");
    let few = Registry::default().parse(&format!("{few}{SCENES}"), "detr.toml", &[]);
    let message = few.unwrap_err().to_string();
    assert!(
        message.contains("model.queries: found 1; expected at least 2"),
        "{message}"
    );
}
