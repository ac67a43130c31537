//! Every recipe of `recipes/`, unchanged but for its data, makes two updates on a text of this test; and it makes twenty updates
//! with fused operations and twenty without, whose losses agree.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    sync::{Mutex, atomic::AtomicBool},
    thread,
    time::Instant,
};

use burn::tensor::Device;
use regard_images::{Image, Random};
use regard_models::text::Units;
use regard_nn::bridge::without_kernels;
use regard_train::{
    Registry,
    learner::{self, Event, Reason, Run},
    ranks::{Alone, Ranks, Threads},
    recipe::{Optimizer, Recipe},
    tasks::{
        Captioning, Classification, Detection, ImageClassification, LanguageModelling,
        VisualQuestions,
    },
};

/// A sentence, its translation word by word, and whether it is about an animal.
fn sentence(index: usize) -> (String, String, bool) {
    const WHO: [(&str, &str, bool); 4] = [
        ("a dog", "ein Hund", true),
        ("a man", "ein Mann", false),
        ("a horse", "ein Pferd", true),
        ("a child", "ein Kind", false),
    ];
    const DOES: [(&str, &str); 3] = [
        ("runs", "rennt"),
        ("sleeps", "schläft"),
        ("waits", "wartet"),
    ];
    const WHERE: [(&str, &str); 3] = [
        ("in the snow", "im Schnee"),
        ("on the beach", "am Strand"),
        ("in front of the house", "vor dem Haus"),
    ];
    let (who, does, place) = (WHO[index % 4], DOES[index % 3], WHERE[index / 3 % 3]);
    (
        format!("{} {} {}.", who.0, does.0, place.0),
        format!("{} {} {}.", who.1, does.1, place.1),
        who.2,
    )
}

/// Writes the three parts of the text; gives the overrides that put it in place of a recipe's data.
fn text(folder: &Path, labelled: bool) -> Vec<String> {
    let mut overrides = vec![];
    for (part, count) in [("train", 140), ("valid", 8), ("test", 8)] {
        let sentences: Vec<_> = (0..count).map(sentence).collect();
        let mut write = |key: String, lines: String| {
            let path = folder.join(format!("{key}.txt"));
            fs::write(&path, lines).unwrap();
            overrides.push(format!("data.{key}={path:?}"));
        };
        match labelled {
            false => {
                let lines = |side: fn(&(String, String, bool)) -> &String| {
                    sentences.iter().map(|s| side(s).clone() + "\n").collect()
                };
                write(format!("{part}_source"), lines(|s| &s.0));
                write(format!("{part}_target"), lines(|s| &s.1));
            }
            true => {
                let line = |s: &(String, String, bool)| format!("{}\t{}\n", s.0, u8::from(s.2));
                write(
                    format!("labelled.{part}"),
                    sentences.iter().map(line).collect(),
                );
            }
        }
    }
    overrides
}

/// An image of noise.
fn image(seed: u64) -> Image {
    let mut random = Random::new(seed, 0);
    let pixels = (0..28 * 28 * 3).map(|_| random.below(256) as u8);
    Image::new(28, 28, 3, pixels.collect()).unwrap()
}

/// Writes folders of images of two classes; gives the overrides that put them in place of a recipe's data.
fn images(folder: &Path) -> Vec<String> {
    let parts = [("train", 80), ("test", 4)].map(|(part, count)| {
        let root = folder.join(format!("images-{part}"));
        for class in ["a", "b"] {
            fs::create_dir_all(root.join(class)).unwrap();
            for index in 0..count / 2 {
                let path = root.join(class).join(format!("{index}.png"));
                image(index).save_png(path).unwrap();
            }
        }
        format!("data.images.{part}={root:?}")
    });
    parts.into()
}

fn recipes() -> BTreeSet<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect()
}

/// The recipe at `path` for `steps` updates on the text of this test, its model as it stands, and `more` overrides.
fn recipe(path: &Path, folder: &Path, steps: usize, more: &[&str]) -> Recipe {
    let registry = Registry::default();
    let plain = registry
        .load(path, &[])
        .unwrap_or_else(|error| panic!("{error}"));
    let mut overrides = vec![format!("training.steps={steps}")];
    overrides.extend(more.iter().map(|&more| more.to_owned()));
    // Tokens of other kinds have no such size, nor have those of a model to begin with.
    let few_tokens = || "data.vocabulary.size=320".to_owned();
    match (&plain.data.synthetic, &plain.data.text) {
        (_, Some(of)) => {
            // More than a batch for validation, so that several processes share it.
            for (part, count) in [("train", 140), ("valid", 24)] {
                let lines: String = (0..count).map(|i| sentence(i).0 + "\n").collect();
                let path = folder.join(format!("plain-{part}.txt"));
                fs::write(&path, lines).unwrap();
                overrides.push(format!("data.text.{part}={path:?}"));
            }
            overrides.extend((of.units == Units::Subwords).then(few_tokens));
        }
        (Some(_), None) => {
            overrides.push("data.synthetic.sentences=200".to_owned());
            overrides.push("data.synthetic.valid_sentences=8".to_owned());
        }
        (None, None) if plain.data.images.is_some() => overrides.extend(images(folder)),
        (None, None) if plain.data.scenes.is_some() => {
            let few = ["train=200", "valid=4", "test=4"];
            overrides.extend(few.map(|part| format!("data.scenes.{part}")));
        }
        (None, None) => {
            overrides.extend(text(folder, registry.serves::<Classification>(&plain)));
            overrides.extend(plain.training.start.is_none().then(few_tokens));
        }
    }
    if let Some(start) = &plain.training.start {
        // A run is named after its recipe.
        let name = start.file_name().unwrap().to_str().unwrap();
        let run = folder.join(format!("start-{name}"));
        if !run.exists() {
            let first = recipe(&path.with_file_name(format!("{name}.toml")), folder, 2, &[]);
            train(&first, &run, &mut |_| {});
        }
        overrides.push(format!("training.start={run:?}"));
    }
    let recipe = registry
        .load(path, &overrides)
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(recipe.model, plain.model, "trained as it stands");
    recipe
}

fn train(recipe: &Recipe, folder: &Path, report: &mut dyn FnMut(&Event)) -> learner::Summary {
    train_as(&Alone, &Device::flex(), recipe, folder, report)
}

fn train_as(
    ranks: &dyn Ranks,
    device: &Device,
    recipe: &Recipe,
    folder: &Path,
    report: &mut dyn FnMut(&Event),
) -> learner::Summary {
    let run = Run {
        folder,
        device,
        stop: &AtomicBool::new(false),
        ranks,
    };
    Registry::default()
        .train(recipe, &run, report)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

#[test]
fn every_recipe_file_makes_two_updates() {
    let folder = tempfile::tempdir().unwrap();
    let mut kinds = BTreeSet::new();
    for path in recipes() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let recipe = recipe(&path, folder.path(), 2, &[]);
        let run_folder = folder.path().join(name);
        let (mut losses, mut parameters) = (vec![], 0);
        let summary = train(&recipe, &run_folder, &mut |event| match event {
            Event::Started(started) => parameters = started.parameters,
            Event::Validation(metrics) => losses.push(metrics.loss),
            _ => {}
        });
        assert_eq!((summary.step, summary.reason), (2, Reason::Limit), "{name}");
        assert!(parameters > 10_000, "{name}: {parameters}");
        assert!(
            !losses.is_empty() && losses.iter().all(|loss| loss.is_finite()),
            "{name}: {losses:?}"
        );
        let registry = Registry::default();
        let device = Device::flex();
        if registry.serves::<Classification>(&recipe) {
            let classifier = registry.classifier(&run_folder, &device).unwrap();
            let found = classifier.classify(&["a dog runs."]).unwrap();
            assert_eq!(found.len(), 1, "{name}");
        } else if registry.serves::<ImageClassification>(&recipe) {
            let classifier = registry.image_classifier(&run_folder, &device).unwrap();
            assert_eq!(classifier.classify(&[image(9)]).unwrap().len(), 1, "{name}");
        } else if registry.serves::<Detection>(&recipe) {
            let detector = registry.detector(&run_folder, &device).unwrap();
            let found = detector.detect(&[image(9)], 0.0, true).unwrap();
            assert!(!found[0].is_empty(), "{name}");
        } else if registry.serves::<VisualQuestions>(&recipe) {
            let answerer = registry.question_answerer(&run_folder, &device).unwrap();
            let found = answerer.ask(&[image(9)], &[(0, "what is there?")]).unwrap();
            assert_eq!(found.len(), 1, "{name}");
        } else if registry.serves::<Captioning>(&recipe) {
            let captioner = registry.captioner(&run_folder, &device).unwrap();
            let found = captioner.caption(&[image(9)], captioner.settings());
            assert_eq!(found.unwrap().len(), 1, "{name}");
        } else if registry.serves::<LanguageModelling>(&recipe) {
            let (_, opened) = registry
                .open::<LanguageModelling>(&run_folder, &device)
                .unwrap();
            let ids = opened.tokenizers.source().encode("a dog runs.").unwrap();
            assert!(!ids.is_empty(), "{name}");
        } else {
            let translator = registry.translator(&run_folder, &device).unwrap();
            let translated = translator.translate(&["a dog runs."], translator.settings());
            assert_eq!(translated.unwrap().len(), 1, "{name}");
        }
        kinds.insert(recipe.model.kind);
    }
    for kind in Registry::default().kinds() {
        assert!(kinds.contains(kind.name), "no recipe of kind {}", kind.name);
    }
}

/// The recipe at `path` for twenty updates of batches of `sentences`, whose losses, computed in two ways, can be compared.
///
/// Two computations of a loss differ by rounding, and each update passes the difference on. Adam divides a gradient by its own size, so that
/// one of rounding errors alone moves a weight as far as any other: with an epsilon of 1e-8 losses of transformer-tiny are 8 units apart after twenty updates where
/// they are 1 apart with the 1e-4 that is set here.
///
/// Networks of images learn at a small rate here. At that of their recipes eight images are a chaotic system: two runs without kernels
/// whose first weights differ in the last place are 0.02 apart after twenty updates.
fn calm(path: &Path, folder: &Path, sentences: impl Fn(&Recipe) -> usize) -> Recipe {
    let plain = Registry::default().load(path, &[]).unwrap();
    let batch = format!("batch.sentences={}", sentences(&plain));
    let mut more = vec!["training.log_every=1", &batch];
    if of_images(&plain) {
        more.extend([
            "schedule.learning_rate=1e-5",
            "schedule.min_learning_rate=1e-5",
        ]);
    }
    if let Optimizer::Adam(_) | Optimizer::AdamW(_) = plain.optimizer {
        more.push("optimizer.epsilon=1e-4");
    }
    recipe(path, folder, 20, &more)
}

fn of_images(recipe: &Recipe) -> bool {
    recipe.data.images.is_some() || recipe.data.scenes.is_some()
}

/// The losses of the updates of a training on `device`.
fn losses(recipe: &Recipe, folder: &Path, device: &Device) -> Vec<f64> {
    losses_as(&Alone, recipe, folder, device)
}

fn losses_as(ranks: &dyn Ranks, recipe: &Recipe, folder: &Path, device: &Device) -> Vec<f64> {
    let mut losses = vec![];
    train_as(ranks, device, recipe, folder, &mut |event| {
        if let Event::Train(metrics) = event {
            losses.push(metrics.loss);
        }
    });
    losses
}

/// The card REGARD_TEST_DEVICE.
fn card() -> Device {
    let wanted = env::var("REGARD_TEST_DEVICE").expect("REGARD_TEST_DEVICE names a card");
    let cards = regard_nn::devices::cards();
    let found = cards.into_iter().find(|(name, _)| *name == wanted);
    found.expect("no such card").1
}

/// The recipes whose names contain REGARD_TEST_RECIPES.
fn chosen() -> impl Iterator<Item = PathBuf> {
    let only = env::var("REGARD_TEST_RECIPES").unwrap_or_default();
    let name = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    recipes()
        .into_iter()
        .filter(move |path| name(path).contains(&only))
}

/// The losses of every recipe (or of those whose names contain REGARD_TEST_RECIPES) on the card REGARD_TEST_DEVICE and on the CPU.
#[test]
#[ignore = "needs a card, or a program that plays one, and up to an hour: see bench/gpu/check"]
fn every_recipe_trains_alike_on_a_card() {
    let card = card();
    let folder = tempfile::tempdir().unwrap();
    let mut apart = vec![];
    println!(
        "{:<40} {:>8} {:>10} {:>9}",
        "recipe", "loss", "apart", "seconds"
    );
    for path in chosen() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let recipe = calm(&path, folder.path(), |_| 8);
        let run = |kind: &str| folder.path().join(format!("{name}-{kind}"));
        let cpu = losses(&recipe, &run("cpu"), &Device::flex());
        let started = Instant::now();
        let there = losses(&recipe, &run("card"), &card);
        assert_eq!((cpu.len(), there.len()), (20, 20), "{name}");
        let differences = cpu.iter().zip(&there).map(|(a, b)| (a - b).abs() / a);
        let most = differences.clone().fold(0.0, f64::max);
        let seconds = started.elapsed().as_secs();
        println!("{name:<40} {:>8.4} {most:>10.1e} {seconds:>9}", there[19]);
        // A difference that is no number is none that is small.
        let mut differences = differences;
        if !differences.all(|difference| difference <= 1e-5) {
            apart.push(name.to_owned());
        }
    }
    assert!(apart.is_empty(), "more than 1e-5 apart: {apart:?}");
}

/// Two processes (threads stand for them) on the card REGARD_TEST_DEVICE make the same bits from run to run: losses and weights of every
/// recipe, or of those whose names contain REGARD_TEST_RECIPES.
#[test]
#[ignore = "needs a card, or a program that plays one, and up to an hour: see bench/gpu/check"]
fn two_processes_on_a_card_make_the_same_bits_from_run_to_run() {
    let card = &card();
    let folder = &tempfile::tempdir().unwrap();
    let mut apart = vec![];
    for path in chosen() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let more = ["training.log_every=1", "batch.sentences=8"];
        let recipe = &recipe(&path, folder.path(), 8, &more);
        let run = |kind: &str| {
            let run = &folder.path().join(format!("{name}-{kind}"));
            let losses = thread::scope(|scope| {
                let train = |ranks: Threads| move || losses_as(&ranks, recipe, run, card);
                let ranks = Threads::new(2).into_iter();
                let running: Vec<_> = ranks.map(|ranks| scope.spawn(train(ranks))).collect();
                let ended = running.into_iter().map(|thread| thread.join().unwrap());
                ended.collect::<Vec<_>>().swap_remove(0)
            });
            let saved = fs::read(run.join("last.safetensors")).unwrap();
            // Behind the header, which has the times of the run.
            let header = u64::from_le_bytes(saved[..8].try_into().unwrap()) as usize;
            (losses, saved[8 + header..].to_vec())
        };
        let (first, again) = (run("first"), run("again"));
        assert!(first.0.len() == 8, "{name}");
        println!("{name:<40} {:>8.4} {}", first.0[7], first == again);
        if first != again {
            apart.push(name.to_owned());
        }
    }
    assert!(apart.is_empty(), "other bits in the second run: {apart:?}");
}

/// Two recipes at a time: Burn's own operations leave a core idle most of the time.
#[test]
fn every_recipe_trains_alike_with_and_without_kernels() {
    let folder = &tempfile::tempdir().unwrap();
    // They write the data of this test, so all before the first is trained.
    let recipes = recipes().into_iter().map(|path| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let sentences = |recipe: &Recipe| match recipe.data.text {
            // Each as long as the model's context.
            Some(_) => 2,
            None if of_images(recipe) => 4,
            None => 8,
        };
        (name, calm(&path, folder.path(), sentences))
    });
    let waiting = &Mutex::new(recipes.collect::<Vec<_>>());
    let take = || waiting.lock().unwrap().pop();
    let compare = move || {
        while let Some((name, recipe)) = take() {
            let run = |kind: &str| folder.path().join(format!("{name}-{kind}"));
            let fused = losses(&recipe, &run("fused"), &Device::flex());
            let plain = without_kernels(|| losses(&recipe, &run("plain"), &Device::flex()));
            assert_eq!((fused.len(), plain.len()), (20, 20), "{name}");
            for (index, (fused, plain)) in fused.iter().zip(&plain).enumerate() {
                // Measured: at most three units in the last place.
                let bound = 8.0 * f64::from(f32::EPSILON) * plain;
                assert!(
                    (fused - plain).abs() <= bound,
                    "{name}, update {}: {fused} with kernels, {plain} without",
                    index + 1
                );
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(compare);
        scope.spawn(compare);
    });
}

/// Losses of updates and validations of every recipe by one process and by three (threads stand for them), to rounding. Networks with
/// batch norm, whose moments are those of each process' rows, make the same bits from run to run.
#[test]
fn every_recipe_trains_alike_by_one_process_and_by_three() {
    let folder = tempfile::tempdir().unwrap();
    let (mut with_batch_norm, mut all) = (0, 0);
    for path in recipes() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let mut more = vec!["training.log_every=1", "batch.sentences=8"];
        let plain = Registry::default().load(&path, &[]).unwrap();
        if of_images(&plain) {
            more.extend([
                "schedule.learning_rate=1e-5",
                "schedule.min_learning_rate=1e-5",
            ]);
        }
        let recipe = recipe(&path, folder.path(), 2, &more);
        let losses = &|ranks: &dyn Ranks, kind: &str| {
            let mut losses = vec![];
            let folder = folder.path().join(format!("{name}-{kind}"));
            train_as(
                ranks,
                &Device::flex(),
                &recipe,
                &folder,
                &mut |event| match event {
                    Event::Train(metrics) => losses.push(metrics.loss),
                    Event::Validation(metrics) => losses.push(metrics.loss),
                    _ => {}
                },
            );
            losses
        };
        let by_three = |kind: &str| {
            thread::scope(|scope| {
                let ranks = Threads::new(3).into_iter();
                let running: Vec<_> = ranks
                    .map(|ranks| scope.spawn(move || losses(&ranks, kind)))
                    .collect();
                let ended = running.into_iter().map(|thread| thread.join().unwrap());
                ended.collect::<Vec<_>>().swap_remove(0)
            })
        };
        let three = by_three("three");
        all += 1;
        assert!(
            three.len() > 2 && three.iter().all(|loss| loss.is_finite()),
            "{name}"
        );
        let saved = fs::read(folder.path().join(format!("{name}-three/last.safetensors"))).unwrap();
        let normed = saved.windows(12).any(|bytes| bytes == b"running_mean");
        if normed {
            with_batch_norm += 1;
            assert_eq!(three, by_three("again"), "{name}");
            continue;
        }
        let one = losses(&Alone, "one");
        assert_eq!(one.len(), three.len(), "{name}");
        for (index, (one, three)) in one.iter().zip(&three).enumerate() {
            let bound = 16.0 * f64::from(f32::EPSILON) * one;
            assert!(
                (one - three).abs() <= bound,
                "{name}, {index}: {one} and {three}"
            );
        }
    }
    assert_eq!(all, recipes().len());
    assert!(
        0 < with_batch_norm && with_batch_norm < all / 3,
        "{with_batch_norm} of {all}"
    );
}
