//! Every recipe of `recipes/`, as it stands there, makes two updates, on a text of this test's own.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use burn::tensor::Device;
use regard_train::{
    SentenceClassifier, Translator,
    learner::{self, Event, Reason, Run},
    recipe::{Recipe, Task},
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

/// Writes the three parts of the text; gives the overrides that put it in the place of a recipe's data.
fn text(folder: &Path, task: Task) -> Vec<String> {
    let mut overrides = vec![];
    for (part, count) in [("train", 140), ("valid", 8), ("test", 8)] {
        let sentences: Vec<_> = (0..count).map(sentence).collect();
        let mut write = |key: String, lines: String| {
            let path = folder.join(format!("{key}.txt"));
            fs::write(&path, lines).unwrap();
            overrides.push(format!("data.{key}={path:?}"));
        };
        match task {
            Task::Translation => {
                let lines = |side: fn(&(String, String, bool)) -> &String| {
                    sentences.iter().map(|s| side(s).clone() + "\n").collect()
                };
                write(format!("{part}_source"), lines(|s| &s.0));
                write(format!("{part}_target"), lines(|s| &s.1));
            }
            Task::Classification => {
                let line = |s: &(String, String, bool)| format!("{}\t{}\n", s.0, u8::from(s.2));
                write(
                    format!("labelled.{part}"),
                    sentences.iter().map(line).collect(),
                );
            }
        }
    }
    overrides.push("data.vocabulary.size=320".to_owned());
    overrides
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

#[test]
fn every_recipe_file_makes_two_updates() {
    let folder = tempfile::tempdir().unwrap();
    let mut kinds = BTreeSet::new();
    for path in recipes() {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let plain = Recipe::load(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
        let mut overrides = vec!["training.steps=2".to_owned()];
        match plain.data.synthetic {
            Some(_) => {
                overrides.push("data.synthetic.sentences=200".to_owned());
                overrides.push("data.synthetic.valid_sentences=8".to_owned());
            }
            None => overrides.extend(text(folder.path(), plain.model.task())),
        }
        let recipe = Recipe::load(&path, &overrides).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(recipe.model, plain.model, "{name} is trained as it stands");

        let run_folder = folder.path().join(name);
        let (mut losses, mut parameters) = (vec![], 0);
        let mut report = |event: &Event| match event {
            Event::Started(started) => parameters = started.parameters,
            Event::Validation(metrics) => losses.push(metrics.loss),
            _ => {}
        };
        let run = Run {
            folder: &run_folder,
            device: &Device::flex(),
            stop: &AtomicBool::new(false),
        };
        let summary = learner::train(&recipe, &run, &mut report)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((summary.step, summary.reason), (2, Reason::Limit), "{name}");
        assert!(parameters > 10_000, "{name}: {parameters}");
        assert!(
            !losses.is_empty() && losses.iter().all(|loss| loss.is_finite()),
            "{name}: {losses:?}"
        );
        match recipe.model.task() {
            Task::Translation => {
                let translator = Translator::open(&run_folder, &Device::flex()).unwrap();
                let translated = translator.translate(&["a dog runs."], translator.settings());
                assert_eq!(translated.unwrap().len(), 1, "{name}");
            }
            Task::Classification => {
                let classifier = SentenceClassifier::open(&run_folder, &Device::flex()).unwrap();
                assert_eq!(
                    classifier.classify(&["a dog runs."]).unwrap().len(),
                    1,
                    "{name}"
                );
            }
        }
        kinds.insert(recipe.model.kind());
    }
    let expected = [
        "rnnsearch",
        "luong",
        "seq2seq",
        "gnmt",
        "transformer",
        "lstmn",
        "lstm",
        "self-attentive",
    ];
    for kind in expected {
        assert!(kinds.contains(kind), "no recipe of kind {kind}");
    }
}
