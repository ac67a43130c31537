//! Classifiers of images as a whole: class folders and binary files are read, they learn, they stop and resume exactly, their files
//! can be opened again, and bad input is refused.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use burn::tensor::Device;
use regard_images::{Image, MAX_PIXELS, Random};
use regard_models::{
    image::MapWeights,
    pretrained::{ClassScores, Folder},
};
use regard_nn::{
    dropout::DropoutRng,
    weights::{self, Arrays},
};
use regard_train::ranks::Alone;
use regard_train::{
    ImageClassifier, Registry, TrainError,
    image_classifier::LookError,
    learner::{Event, Reason, Run, Started, Summary},
    recipe::{Recipe, read_images},
};
use serde_json::Value;
use tempfile::tempdir;

/// A noisy image that is brighter above ("up") or below ("down").
fn image(class: &str, seed: u64) -> Image {
    let (side, mut random) = (10, Random::new(seed, 1));
    let pixels = (0..side * side).flat_map(|at| {
        let bright = (at < side * side / 2) == (class == "up");
        let base = if bright { 150 } else { 40 };
        let mut value = || base + random.below(80) as u8;
        [value(), value(), value()]
    });
    Image::new(side, side, 3, pixels.collect()).unwrap()
}

/// A folder for each class with `count` images.
fn classes(folder: &Path, count: u64, seed: u64) -> PathBuf {
    for class in ["up", "down"] {
        fs::create_dir_all(folder.join(class)).unwrap();
        for index in 0..count {
            let path = folder.join(class).join(format!("{index:02}.png"));
            image(class, seed + index).save_png(path).unwrap();
        }
    }
    folder.to_owned()
}

fn recipe(folder: &Path, overrides: &[&str]) -> Recipe {
    let train = classes(&folder.join("train"), 20, 0);
    let test = classes(&folder.join("test"), 5, 100);
    let text = format!(
        r#"
        [model]
        kind = "resnet"
        width = 0.25
        [data.images]
        train = {train:?}
        test = {test:?}
        valid_share = 0.2
        [data.images.augment]
        padding = 1
        flip = 0.5
        [batch]
        sentences = 8
        [optimizer]
        kind = "sgd"
        momentum = 0.9
        weight_decay = 1e-4
        [schedule]
        kind = "constant"
        learning_rate = 0.05
        [training]
        epochs = 8
        log_every = 1
        "#
    );
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    Registry::default()
        .parse(&text, "images.toml", &overrides)
        .unwrap()
}

/// Trains, or goes on with what stopped; what training began with, and how it ended.
fn train(
    recipe: &Recipe,
    folder: &Path,
    stop_at: Option<u64>,
    resume: bool,
) -> Result<(Started, Summary), TrainError> {
    let stop = AtomicBool::new(false);
    let run = Run {
        folder,
        device: &Device::flex(),
        stop: &stop,
        ranks: &Alone,
    };
    let mut began = None;
    let mut report = |event: &Event| match event {
        Event::Started(started) => began = Some(started.clone()),
        Event::Train(metrics) if Some(metrics.step) == stop_at => {
            stop.store(true, Ordering::SeqCst)
        }
        _ => {}
    };
    let registry = Registry::default();
    let summary = match resume {
        false => registry.train(recipe, &run, &mut report),
        true => registry.resume(&[], &run, &mut report),
    }?;
    Ok((began.unwrap(), summary))
}

#[test]
fn a_network_learns_and_can_be_opened_again() {
    let folder = tempdir().unwrap();
    let recipe = recipe(folder.path(), &[]);
    let run = folder.path().join("run");
    let (began, summary) = train(&recipe, &run, None, false).unwrap();
    assert_eq!((began.corpus.kept, began.validation_pairs), (32, 8));
    assert_eq!((began.examples, began.vocabulary), ("images", None));
    assert_eq!(summary.best.unwrap().1, 1.0, "the best accuracy");
    let classifier = Registry::default()
        .image_classifier(&run, &Device::flex())
        .unwrap();
    let description = classifier.description();
    assert_eq!(description.labels, ["down", "up"]);
    assert_eq!(description.preparation.size, [10, 10]);
    for (class, name) in ["down", "up"].iter().enumerate() {
        let images: Vec<Image> = (200..204).map(|seed| image(name, seed)).collect();
        for found in classifier.classify(&images).unwrap() {
            assert_eq!(found.class, class);
            let sum: f32 = found.probabilities.iter().sum();
            assert!((sum - 1.0).abs() < 1e-5);
        }
        // Another size is brought to the model's.
        let large = images[0].resize(31, 40).unwrap();
        assert_eq!(classifier.classify(&[large]).unwrap()[0].class, class);
        for (found, trace) in classifier.look(&images).unwrap() {
            assert_eq!((found.class, trace.maps.len()), (class, 0));
            assert_eq!(trace.image.unwrap().height(), 10);
        }
    }
}

#[test]
fn a_resumed_run_makes_the_same_updates() {
    let folder = tempdir().unwrap();
    let mixed = [
        "data.images.augment.mixup=0.4",
        "data.images.augment.operations=1",
    ];
    let recipe = recipe(folder.path(), &mixed);
    let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
    train(&recipe, &whole, None, false).unwrap();
    let (_, stopped) = train(&recipe, &parts, Some(7), false).unwrap();
    assert_eq!((stopped.reason, stopped.step), (Reason::Interrupted, 7));
    train(&recipe, &parts, None, true).unwrap();
    let found = arrays(&parts);
    assert!(found.keys().any(|name| name.contains("running_var")));
    assert_eq!(found, arrays(&whole));
}

fn arrays(run: &Path) -> Arrays {
    let registry = Registry::default();
    let classifier = registry.image_classifier(run, &Device::flex()).unwrap();
    weights::collect(classifier.model())
}

/// Images that memory does not keep are read again; one that is gone by then ends the run, without losing its work.
#[test]
fn little_memory_changes_nothing() {
    let folder = tempdir().unwrap();
    let mixed = "data.images.augment.mixup=0.4";
    let recipe = recipe(folder.path(), &[mixed, "training.epochs=3"]);
    let whole = folder.path().join("whole");
    train(&recipe, &whole, None, false).unwrap();
    let whole = arrays(&whole);
    let mut little = recipe.clone();
    // One image has 300 bytes.
    little.data.images.as_mut().unwrap().memory = 0;
    let again = folder.path().join("again");
    train(&little, &again, None, false).unwrap();
    assert_eq!(whole, arrays(&again));

    let lost = folder.path().join("lost");
    let stop = AtomicBool::new(false);
    let run = Run {
        folder: &lost,
        device: &Device::flex(),
        stop: &stop,
        ranks: &Alone,
    };
    let train_images = folder.path().join("train");
    let mut report = |event: &Event| match event {
        Event::Train(metrics) if metrics.step == 5 => fs::remove_dir_all(&train_images).unwrap(),
        _ => {}
    };
    let registry = Registry::default();
    let error = registry.train(&little, &run, &mut report).unwrap_err();
    assert!(error.to_string().contains(".png"), "{error}");
    classes(&train_images, 20, 0);
    let mut steps = vec![];
    let mut report = |event: &Event| {
        if let Event::Train(metrics) = event {
            steps.push(metrics.step);
        }
    };
    // More memory is no other data.
    let more = ["data.images.memory=1".to_owned()];
    registry.resume(&more, &run, &mut report).unwrap();
    assert!(steps[0] > 5, "the updates before were kept: {steps:?}");
    assert_eq!(whole, arrays(&lost));
}

/// A frozen trunk keeps the running moments of its batch norms too, also after an interruption.
#[test]
fn a_frozen_trunk_stays_as_it_is() {
    let folder = tempdir().unwrap();
    let [first, run, refused] = ["first", "run", "refused"].map(|name| folder.path().join(name));
    train(
        &recipe(folder.path(), &["training.epochs=1"]),
        &first,
        None,
        false,
    )
    .unwrap();
    let start = format!("training.start={}", first.display());
    let of = |frozen: &str| {
        let frozen = format!("training.frozen={frozen}");
        recipe(folder.path(), &[&start, &frozen, "training.epochs=1"])
    };
    train(&of("stages"), &run, Some(2), false).unwrap();
    train(&of("stages"), &run, None, true).unwrap();
    let after = arrays(&run);
    for (name, before) in arrays(&first) {
        assert_eq!(
            after[&name] == before,
            name.starts_with("stages."),
            "{name}"
        );
    }
    // No weights, so that freezing them would say nothing.
    let error = train(&of("bn1.running_mean"), &refused, None, false).unwrap_err();
    let message = error.to_string();
    for part in [
        "training.frozen",
        "\"bn1.running_mean\"",
        "bn1.gamma, bn1.beta",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!message.contains("running_var"), "{message}");
}

#[test]
fn broken_images_are_an_error_or_left_out() {
    let folder = tempdir().unwrap();
    let strict = recipe(folder.path(), &[]);
    let broken = folder.path().join("train/up/03.png");
    let bytes = fs::read(&broken).unwrap();
    fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    let run = folder.path().join("run");
    let message = train(&strict, &run, None, false).unwrap_err().to_string();
    assert!(
        message.contains("03.png") && message.contains("truncated"),
        "{message}"
    );
    assert!(!run.exists(), "a failed start leaves no run");
    let mut lenient = strict;
    let images = lenient.data.images.as_mut().unwrap();
    images.broken = regard_train::recipe::OnBroken::Skip;
    let (began, _) = train(&lenient, &run, Some(1), false).unwrap();
    assert_eq!((began.corpus.broken, began.corpus.kept), (1, 31));
}

/// Whether the weights of the only map have a negative one, image by image.
fn signed(classifier: &ImageClassifier, images: &[Image]) -> Vec<bool> {
    let tensor = (classifier.description().preparation).tensor(images, &Device::flex());
    let maps = classifier.model().look(tensor).maps;
    let [map] = &maps[..] else {
        panic!("{} maps", maps.len())
    };
    let MapWeights::Pairs { weights, .. } = &map.weights else {
        panic!("{map:?}")
    };
    let weights: Vec<f32> = weights.clone().into_data().iter::<f32>().collect();
    let of_image = weights.chunks_exact(weights.len() / images.len());
    of_image
        .map(|weights| weights.iter().any(|&weight| weight < 0.0))
        .collect()
}

/// Weights of the affinity "dot" may be negative: such maps are left out, and nothing else is lost.
#[test]
fn a_network_whose_weights_have_signs_is_trained_and_classifies() {
    let folder = tempdir().unwrap();
    let overrides = [
        "model.attention={kind=\"non-local\", affinity=\"dot\"}",
        "validation.diagnose=2",
        "training.epochs=1",
    ];
    let run = folder.path().join("run");
    train(&recipe(folder.path(), &overrides), &run, None, false).unwrap();
    let registry = Registry::default();
    let classifier = registry.image_classifier(&run, &Device::flex()).unwrap();
    let all: Vec<Image> = (0..8).map(|seed| image("up", seed)).collect();
    // Alone, and with others, of which some may have their map.
    for images in all.chunks(1).chain([&all[..]]) {
        assert_eq!(classifier.classify(images).unwrap().len(), images.len());
        let signed = signed(&classifier, images);
        match classifier.look(images) {
            Ok(looked) => {
                let maps = looked.iter().map(|(_, trace)| trace.maps.len());
                let left = signed.iter().map(|signed| usize::from(!signed));
                assert_eq!(maps.collect::<Vec<_>>(), left.collect::<Vec<_>>());
                assert!(signed.contains(&false));
            }
            Err(error) => {
                assert!(matches!(error, LookError::Signed), "{error}");
                assert!(!signed.contains(&false));
            }
        }
    }
}

#[test]
fn what_is_wrong_with_the_images_is_told_before_training() {
    let folder = tempdir().unwrap();
    let run = folder.path().join("run");
    let refused = |recipe: &Recipe| {
        let message = train(recipe, &run, None, false).unwrap_err().to_string();
        assert!(!run.exists(), "a failed start leaves no run");
        message
    };
    recipe(folder.path(), &[]);
    let one = folder.path().join("one");
    fs::create_dir_all(one.join("up")).unwrap();
    fs::copy(folder.path().join("train/up/03.png"), one.join("up/0.png")).unwrap();
    let of_one = format!("data.images.train={}", one.display());
    let message = refused(&recipe(folder.path(), &[&of_one]));
    assert!(
        message.contains("data.images.train: all images are of the class \"up\""),
        "{message}"
    );
    let message = refused(&recipe(folder.path(), &["data.images.valid_share=0.99"]));
    assert!(
        message.contains("data.images.valid_share: 0.99 leaves none of 40 images"),
        "{message}"
    );
    // One in a hundred of twenty images is none.
    let none = ["data.images.valid_share=0.01", "training.patience=2"];
    let message = refused(&recipe(folder.path(), &none));
    assert!(
        message.contains("training.patience: set, but there is no validation example"),
        "{message}"
    );
    let message = refused(&recipe(folder.path(), &["data.images.test=nowhere"]));
    assert!(message.contains("nowhere: cannot read"), "{message}");
    let broken = recipe(folder.path(), &["data.images.broken=skip"]);
    for class in ["up", "down"] {
        for file in fs::read_dir(folder.path().join("train").join(class)).unwrap() {
            fs::write(file.unwrap().path(), "no image").unwrap();
        }
    }
    let message = refused(&broken);
    assert!(
        message.contains("no image is left, 40 that cannot be read"),
        "{message}"
    );
    let other = recipe(folder.path(), &[]);
    fs::create_dir(folder.path().join("test/left")).unwrap();
    let message = refused(&other);
    assert!(message.contains("\"left\""), "{message}");
}

#[test]
fn binary_files_are_read_and_other_classes_refused() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut images = [0x0803_u32, 2, 3, 4].map(u32::to_be_bytes).concat();
    images.extend((0..24).collect::<Vec<u8>>());
    fs::write(path("train-images-idx3-ubyte"), &images).unwrap();
    let mut labels = [0x0801_u32, 2].map(u32::to_be_bytes).concat();
    labels.extend([7, 1]);
    fs::write(path("train-labels-idx1-ubyte"), &labels).unwrap();
    let dataset = read_images(&path("train-images-idx3-ubyte"), false, None).unwrap();
    assert_eq!(dataset.classes.len(), 10);
    let found: Vec<_> = dataset
        .examples
        .iter()
        .map(|example| example.label)
        .collect();
    assert_eq!(found, [Some(7), Some(1)]);

    // The other spelling, and labels that are packed; their file is not, which changes nothing.
    fs::write(path("t10k-images.idx3-ubyte"), &images).unwrap();
    fs::write(path("t10k-labels.idx1-ubyte.gz"), &labels).unwrap();
    let dataset = read_images(&path("t10k-images.idx3-ubyte"), true, None).unwrap();
    assert_eq!(dataset.examples.len(), 2);
    fs::write(path("train.idx"), &images).unwrap();
    let message = read_images(&path("train.idx"), false, None);
    let message = message.unwrap_err().to_string();
    assert!(message.contains("images.idx3"), "{message}");

    let cifar = path("cifar");
    fs::create_dir(&cifar).unwrap();
    let record = |class: u8| [vec![class], vec![9; 3072]].concat();
    let write = |batch: u8, class: u8| {
        let name = format!("data_batch_{batch}.bin");
        fs::write(cifar.join(name), record(class)).unwrap();
    };
    let refused = || read_images(&cifar, false, None).unwrap_err().to_string();
    fs::write(cifar.join("test_batch.bin"), record(9)).unwrap();
    let message = refused();
    assert!(message.contains("data_batch_1.bin"), "{message}");
    write(4, 4);
    write(2, 3);
    let message = refused();
    assert!(
        message.contains("without data_batch_1.bin, data_batch_3.bin;"),
        "{message}"
    );
    // A run that has learned the classes goes on with them.
    let learned = read_images(&cifar, true, None).unwrap().classes;
    let going_on = read_images(&cifar, false, Some(&learned)).unwrap();
    assert_eq!(going_on.examples.len(), 2);
    write(1, 2);
    write(3, 3);
    // The last one may be elsewhere, for validation.
    let four = read_images(&cifar, false, None).unwrap();
    assert_eq!(four.examples.len(), 4);
    write(5, 5);
    let labels = |test: bool| {
        let dataset = read_images(&cifar, test, None).unwrap();
        let labels = dataset
            .examples
            .iter()
            .map(|example| example.label.unwrap());
        labels.collect::<Vec<_>>()
    };
    assert_eq!(
        (labels(false), labels(true)),
        (vec![2, 3, 3, 4, 5], vec![9])
    );
    let other = ["up".to_owned(), "down".to_owned()];
    let message = read_images(&cifar, true, Some(&other))
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("the list of classes is airplane"),
        "{message}"
    );
    let [valid, test] = ["valid", "test"].map(|part| format!("data.images.{part}={cifar:?}"));
    let message = train(
        &recipe(folder.path(), &[&valid, &test]),
        &path("run"),
        None,
        false,
    );
    let message = message.unwrap_err().to_string();
    assert!(
        message.contains("data.images.valid: the test batch of CIFAR"),
        "{message}"
    );
    let folders = classes(&path("folders"), 1, 0);
    let message = read_images(&folders, true, Some(&other[..1]))
        .unwrap_err()
        .to_string();
    assert!(message.contains("\"down\""), "{message}");
}

#[test]
fn keys_without_effect_are_refused_where_a_run_begins() {
    let folder = tempdir().unwrap();
    let run = folder.path().join("run");
    let refused = |recipe: &Recipe, expected: &str| {
        let message = train(recipe, &run, None, false).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}");
        assert!(!run.exists(), "a failed start leaves no run");
    };
    let valid = format!("data.images.valid={}", folder.path().join("test").display());
    refused(
        &recipe(folder.path(), &[&valid]),
        "data.images.valid_share: set, but data.images.valid names the images for validation",
    );
    refused(
        &recipe(folder.path(), &["data.images.augment.strength=0.5"]),
        "data.images.augment.strength: set, but data.images.augment.operations is 0",
    );
    let text = "[model]\nkind = \"vit\"\nrotary_base = 50.0\n[data.images]\ntrain = \"x\"\n[training]\nepochs = 1";
    let vit = Registry::default().parse(text, "vit.toml", &[]).unwrap();
    refused(
        &vit,
        "model.rotary_base: set, but positions are not \"rotary\"",
    );
    // A run that has begun with one goes on.
    train(&recipe(folder.path(), &[]), &run, Some(2), false).unwrap();
    let path = run.join("recipe.toml");
    let [usual, other] = ["strength = 0.3", "strength = 0.5"];
    let written = fs::read_to_string(&path).unwrap();
    assert_eq!(written.matches(usual).count(), 1, "{written}");
    fs::write(&path, written.replace(usual, other)).unwrap();
    let resumed = ["training.steps=3".to_owned()];
    let going_on = Run {
        folder: &run,
        device: &Device::flex(),
        stop: &AtomicBool::new(false),
        ranks: &Alone,
    };
    let ended = Registry::default().resume(&resumed, &going_on, &mut |_| {});
    assert_eq!(ended.unwrap().step, 3);
}

#[test]
fn keys_that_do_not_fit_are_refused() {
    let refused = |text: &str| {
        let text = format!("[model]\nkind = \"vit\"\n[training]\nepochs = 1\n{text}");
        let parsed = Registry::default().parse(&text, "images.toml", &[]);
        parsed.unwrap_err().to_string()
    };
    assert!(refused("").contains("data.images: missing"));
    assert!(refused("[data.images]\nvalid = \"x\"").contains("data.images.train: missing"));
    let images = "[data.images]\ntrain = \"x\"\n";
    let words = refused(&format!("{images}[data.vocabulary]\nsize = 300"));
    assert!(words.contains("data.vocabulary.size") && words.contains("a classifier of images"));
    let bleu = refused(&format!("{images}[validation]\nmeasure = \"bleu\""));
    assert!(bleu.contains("validation.measure"), "{bleu}");
    assert_eq!(8192 * 8192, MAX_PIXELS);
    let large = refused(&format!("{images}size = 8193"));
    assert!(
        large.contains("data.images.size: found 8193; expected 1 to 8192"),
        "{large}"
    );
    let flip = refused(&format!("{images}[data.images.augment]\nflip = 1.5"));
    assert!(
        flip.contains("data.images.augment.flip: found 1.5; expected 0 to 1"),
        "{flip}"
    );
}

/// The folder of a tiny classifier that others have trained (`../models/tests/golden/pretrained_images_golden.py`).
fn others(case: &str) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden/pretrained");
    golden.join(case)
}

fn opened(path: &Path) -> (ImageClassifier, Image) {
    let folder = Folder::open(path).unwrap();
    let classifier = ImageClassifier::pretrained(&folder, &Device::flex()).unwrap();
    let decoding = classifier.description().preparation.decoding();
    let photo = Image::open(path.join("photo.png"), &decoding).unwrap();
    (classifier, photo)
}

#[test]
fn photos_have_the_scores_that_transformers_gives_them() {
    for case in [
        "vit",
        "vit-lists",
        "deit",
        "deit-classes",
        "resnet",
        "resnet-bottleneck",
    ] {
        let (classifier, photo) = opened(&others(case));
        let expected = fs::read(others(case).join("labels.json")).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let description = classifier.description();
        let fitted = description.preparation.fit(&photo).unwrap();
        let pixels = (description.preparation).tensor(&[fitted], &Device::flex());
        let logits = classifier.model().forward(pixels, &mut DropoutRng::none());
        let logits: Vec<f32> = logits.into_data().iter::<f32>().collect();
        let golden: Vec<f32> = serde_json::from_value(expected["logits"].clone()).unwrap();
        assert_eq!(logits.len(), golden.len(), "{case}");
        let largest = golden.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        for (found, golden) in logits.iter().zip(&golden) {
            let difference = (found - golden).abs();
            assert!(difference <= 1e-4 * largest, "{case}: {found} {golden}");
        }
        let found = &classifier.classify(&[photo]).unwrap()[0];
        for (label, &score) in description.labels.iter().zip(&found.probabilities) {
            let golden = expected["scores"][label].as_f64().unwrap();
            let difference = (f64::from(score) - golden).abs();
            assert!(difference < 1e-4, "{case} {label}: {score} {golden}");
        }
    }
}

/// The longer side of such an image would be too long if it were resized whole.
#[test]
fn narrow_images_are_classified_by_their_middle() {
    let (classifier, _) = opened(&others("resnet-bottleneck"));
    let [narrow, square] = [4000, 2].map(|width| Image::filled(2, width, &[90, 160, 30]).unwrap());
    let fit = |image: &Image| classifier.description().preparation.fit(image);
    assert_eq!(fit(&narrow).unwrap(), fit(&square).unwrap());
    assert_eq!(classifier.classify(&[narrow]).unwrap().len(), 1);
}

#[test]
fn gradients_are_those_of_what_the_scores_are() {
    let (classifier, photo) = opened(&others("deit-classes"));
    let (class, layers, log_probability) = classifier.gradients(&photo).unwrap();
    let found = &classifier.classify(&[photo]).unwrap()[0];
    assert_eq!((class, layers.len()), (found.class, 2));
    let expected = f64::from(found.probabilities[class]).ln();
    assert!((log_probability - expected).abs() < 1e-4);

    // Numbers are no probabilities.
    let folder = tempdir().unwrap();
    for name in ["model.safetensors", "preprocessor_config.json", "photo.png"] {
        fs::copy(others("deit-classes").join(name), folder.path().join(name)).unwrap();
    }
    let config = fs::read_to_string(others("deit-classes").join("config.json")).unwrap();
    let config = config.replace("multi_label_classification", "regression");
    fs::write(folder.path().join("config.json"), config).unwrap();
    let (numbers, photo) = opened(folder.path());
    assert_eq!(numbers.class_scores(), ClassScores::Numbers);
    let error = numbers.gradients(&photo).unwrap_err().to_string();
    assert!(error.contains("gives no probabilities"), "{error}");
    let logits = &numbers.classify(&[photo]).unwrap()[0].probabilities;
    for (logit, probability) in logits.iter().zip(&found.probabilities) {
        assert!((1.0 / (1.0 + (-logit).exp()) - probability).abs() < 1e-6);
    }
}

/// What files of sentence-transformers make of texts is for vectors: `CLIPModel` of transformers does not read them.
#[test]
fn classes_that_are_texts_have_the_vectors_that_the_model_makes() {
    let folder = tempdir().unwrap();
    for entry in fs::read_dir(others("clip")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let at = |name: &str| folder.path().join(name);
    let zero_shot = |labels: [&str; 3], prompt: &str| {
        let (folder, device) = (Folder::open(folder.path()).unwrap(), Device::flex());
        let labels = labels.map(str::to_owned).to_vec();
        ImageClassifier::zero_shot(&folder, labels, prompt, None, &device)
    };
    let modules = r#"[{"type": "sentence_transformers.models.Transformer", "path": ""}]"#;
    fs::write(at("modules.json"), modules).unwrap();
    let settings = r#"{"truncate_dim": 5}"#;
    fs::write(at("config_sentence_transformers.json"), settings).unwrap();
    let expected: Value = serde_json::from_slice(&fs::read(at("labels.json")).unwrap()).unwrap();
    let labels = ["cat", "dog", "12 things"];
    let classifier = zero_shot(labels, expected["prompt"].as_str().unwrap()).unwrap();
    let decoding = classifier.description().preparation.decoding();
    let photo = Image::open(at("photo.png"), &decoding).unwrap();
    let found = &classifier.classify(&[photo]).unwrap()[0].probabilities;
    for (label, &probability) in labels.iter().zip(found) {
        let golden = expected["probabilities"][label].as_f64().unwrap();
        assert!((f64::from(probability) - golden).abs() < 1e-4, "{label}");
    }

    // Without marks around it an empty text is nothing.
    let document = fs::read(at("tokenizer.json")).unwrap();
    let mut document: Value = serde_json::from_slice(&document).unwrap();
    document["post_processor"] = Value::Null;
    fs::write(at("tokenizer.json"), document.to_string()).unwrap();
    let error = zero_shot(["cat", "", "dog"], "{}").unwrap_err().to_string();
    assert!(error.contains("label \"\" has no tokens"), "{error}");
}
