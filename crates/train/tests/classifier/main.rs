//! Classifiers of sentences as a whole: labelled text is read, they learn, they stop and resume exactly,
//! their files can be opened again, and bad input is refused.

mod pretrained;

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use burn::tensor::Device;
use regard_evaluate::Accuracy;
use regard_nn::weights;
use regard_train::ranks::Alone;
use regard_train::{
    Registry, SentenceClassifier, TrainError,
    compare::{self, Budget, CompareError, Standing},
    corpus::LabelledText,
    learner::{Event, Quality, Reason, Run, Summary},
    recipe::Recipe,
    tasks::{Classification, Translation},
};

/// Sentences whose label follows from one word among others: `good` is 1, `bad` is 0.
fn sentences(count: usize, seed: usize) -> String {
    const FILL: [&str; 6] = ["the", "film", "was", "a", "very", "story"];
    (0..count)
        .map(|i| {
            let draw = |k: usize| (i * 7919 + seed * 104_729 + k * 613 + i / 3 * k) % 97;
            let mut words: Vec<&str> = (0..2 + draw(0) % 5)
                .map(|k| FILL[draw(k + 1) % 6])
                .collect();
            let good = draw(9) % 2;
            let at = draw(11) % (words.len() + 1);
            words.insert(at, ["bad", "good"][good]);
            format!("{}\t{good}\n", words.join(" "))
        })
        .collect()
}

fn data(folder: &Path) -> [PathBuf; 3] {
    [("train", 240, 1), ("valid", 40, 2), ("test", 60, 3)].map(|(name, count, seed)| {
        let path = folder.join(format!("{name}.tsv"));
        fs::write(&path, sentences(count, seed)).unwrap();
        path
    })
}

fn recipe(folder: &Path, model: &str, overrides: &[&str]) -> Recipe {
    let [train, valid, test] = data(folder);
    let text = format!(
        r#"
        [model]
        {model}
        embedding = 12
        hidden = 12
        readout = 8
        dropout = {{ word = 0.05, embedding = 0.1, layers = 0.1, output = 0.1 }}
        [data]
        vocabulary = {{ size = 300 }}
        [data.labelled]
        train = {train:?}
        valid = {valid:?}
        test = {test:?}
        [batch]
        sentences = 16
        [optimizer]
        kind = "adam"
        [schedule]
        kind = "constant"
        learning_rate = 0.02
        [training]
        epochs = 4
        log_every = 1
        average = 2
        "#
    );
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    Registry::default()
        .parse(&text, "classifier.toml", &overrides)
        .unwrap()
}

const LSTMN: &str = "kind = \"lstmn\"\nattention_dimension = 8";
const LSTM: &str = "kind = \"lstm\"\nbidirectional = true\nlayers = 2";
const SELF_ATTENTIVE: &str =
    "kind = \"self-attentive\"\nattention_dimension = 8\nhops = 2\npenalty = 0.01";

fn train_any(
    recipe: &Recipe,
    folder: &Path,
    stop_at: Option<u64>,
    resume: bool,
) -> Result<Summary, TrainError> {
    let stop = AtomicBool::new(false);
    let run = Run {
        folder,
        device: &Device::flex(),
        stop: &stop,
        ranks: &Alone,
    };
    let mut report = |event: &Event| match event {
        Event::Train(metrics) if Some(metrics.step) == stop_at => {
            stop.store(true, Ordering::SeqCst);
        }
        Event::Validation(metrics) => {
            let classifies = Registry::default().serves::<Classification>(recipe);
            let accuracy = matches!(metrics.quality, Quality::Accuracy { .. });
            assert_eq!(accuracy, classifies);
        }
        _ => {}
    };
    match resume {
        false => Registry::default().train(recipe, &run, &mut report),
        true => Registry::default().resume(&[], &run, &mut report),
    }
}

fn train(recipe: &Recipe, folder: &Path, stop_at: Option<u64>, resume: bool) -> Summary {
    train_any(recipe, folder, stop_at, resume).unwrap()
}

#[test]
fn every_kind_learns_and_its_file_says_the_same_again() {
    let folder = tempfile::tempdir().unwrap();
    for (name, model) in [
        ("lstmn", LSTMN),
        ("lstm", LSTM),
        ("self-attentive", SELF_ATTENTIVE),
    ] {
        let run = folder.path().join(name);
        let recipe = recipe(folder.path(), model, &[]);
        let summary = train(&recipe, &run, None, false);
        assert_eq!(summary.reason, Reason::Limit);
        assert!(Registry::default().holds::<Classification>(&run), "{name}");
        let device = Device::flex();
        let classifier = Registry::default().classifier(&run, &device).unwrap();
        assert_eq!(classifier.description().labels, ["0", "1"]);
        let test = LabelledText::read(folder.path().join("test.tsv")).unwrap();
        let found = classifier.classify(test.sentences()).unwrap();
        let classes: Vec<usize> = found.iter().map(|one| one.class).collect();
        let truth = test.classes(&classifier.description().labels).unwrap();
        let accuracy = Accuracy::of(&classes, &truth, 2);
        assert!(accuracy.share() > 0.95, "{name}: {accuracy}");

        // In half precision the answers are the same.
        let arrays = weights::collect(classifier.model());
        let half = weights::Storage::F16;
        let registry = Registry::default();
        let description = classifier.description();
        let kind = &description.model;
        let bytes = registry.to_bytes::<Classification>(kind, &arrays, description, half);
        let (model, description) = registry
            .from_bytes::<Classification>(&bytes.unwrap(), "half", &device)
            .unwrap();
        let half = SentenceClassifier::new(model, description, &device);
        for (whole, half) in found.iter().zip(half.classify(test.sentences()).unwrap()) {
            assert!((whole.probability() - half.probabilities[whole.class]).abs() < 0.02);
        }
        // A file of one task is refused by the other.
        let error = registry.open::<Translation>(&run, &device).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("holds a classifier of sentences"), "{error}");
    }
}

/// The run of a masked language model, and the labelled sentences whose words it has read.
fn masked(folder: &Path) -> [PathBuf; 2] {
    let [labelled, _, _] = data(folder);
    let text = folder.join("text.txt");
    let lines = fs::read_to_string(&labelled).unwrap();
    fs::write(&text, lines.replace('\t', " ")).unwrap();
    let masked = format!(
        r#"
        [model]
        kind = "transformer-lm"
        objective = "masked"
        context = 32
        [model.transformer]
        d_model = 16
        layers = 1
        heads = 2
        [data]
        vocabulary = {{ size = 300 }}
        [data.text]
        train = {text:?}
        texts = "lines"
        [training]
        steps = 4
        "#
    );
    let first = folder.join("masked");
    let masked = Registry::default().parse(&masked, "masked.toml", &[]);
    train_any(&masked.unwrap(), &first, None, false).unwrap();
    [first, labelled]
}

/// A classifier that begins with the run `first`.
fn begun([first, labelled]: &[PathBuf; 2], more: &[&str]) -> Recipe {
    let text = format!(
        r#"
        [model]
        kind = "transformer-classifier"
        [data.filter]
        max_tokens = 30
        [data.labelled]
        train = {labelled:?}
        valid = {labelled:?}
        [training]
        steps = 6
        log_every = 1
        start = {first:?}
        "#
    );
    let more: Vec<String> = more.iter().map(ToString::to_string).collect();
    let parsed = Registry::default().parse(&text, "begun.toml", &more);
    parsed.unwrap()
}

/// A classifier begins with the Transformer of a masked language model, in its sizes, and with its tokenizer; frozen, only what
/// follows it is trained, also after an interruption.
#[test]
fn a_classifier_begins_with_a_language_model() {
    let folder = tempfile::tempdir().unwrap();
    let files = masked(folder.path());
    let registry = Registry::default();
    let of = |more: &[&str]| begun(&files, more);
    let arrays = |run: &Path| {
        let bytes = fs::read(run.join("model.safetensors")).unwrap();
        weights::from_bytes(&bytes).unwrap().0
    };
    let before = arrays(&files[0]);
    let same = |run: &Path| {
        let after = arrays(run);
        let names = before
            .keys()
            .filter(|name| name.starts_with("transformer."));
        names
            .map(|name| before[name] == after[name])
            .collect::<Vec<bool>>()
    };
    let (tuned, frozen) = (folder.path().join("tuned"), folder.path().join("frozen"));
    train_any(&of(&[]), &tuned, None, false).unwrap();
    assert!(same(&tuned).iter().all(|same| !same));
    let recipe = of(&["training.frozen=transformer"]);
    train_any(&recipe, &frozen, Some(3), false).unwrap();
    // A size of the vocabulary, which has no effect, is refused where a run begins, but one that has begun with it goes on.
    let path = frozen.join("recipe.toml");
    let [usual, other] = ["size = 8000", "size = 300"];
    let written = fs::read_to_string(&path).unwrap();
    assert_eq!(written.matches(usual).count(), 1, "{written}");
    fs::write(&path, written.replace(usual, other)).unwrap();
    train_any(&recipe, &frozen, None, true).unwrap();
    assert!(same(&frozen).iter().all(|same| *same));
    let classifier = registry.classifier(&frozen, &Device::flex()).unwrap();
    let found = classifier.classify(&["the film was good"]).unwrap();
    let map = &found[0].trace.maps[0];
    assert_eq!((map.heads(), map.keys().labels()[0].as_str()), (2, "<s>"));

    let message = |more: &[&str]| {
        let run = folder.path().join("refused");
        let error = train_any(&of(more), &run, None, false).unwrap_err();
        error.to_string()
    };
    assert!(message(&["training.start=/nowhere"]).contains("/nowhere"));
    let unknown = message(&["training.frozen=encoder"]);
    assert!(
        unknown.contains("\"encoder\"") && unknown.contains("transformer.tokens.weight"),
        "{unknown}"
    );
    let other = folder.path().join("lstm");
    let lstm = recipe_of_lstm(folder.path());
    train_any(&lstm, &other, None, false).unwrap();
    let none = message(&[&format!("training.start={}", other.display())]);
    assert!(none.contains("none of its weights"), "{none}");
    // It sees both ways, as the model that it begins with does.
    let blind = message(&["model.causal=true"]);
    for part in ["training.start", "masked", "model.causal = false"] {
        assert!(blind.contains(part), "{blind}");
    }
    let last = files[0].join("last.safetensors");
    let checkpoint = message(&[&format!("training.start={last:?}")]);
    for part in ["last.safetensors", "a checkpoint", "model.safetensors"] {
        assert!(checkpoint.contains(part), "{checkpoint}");
    }
    for set in [
        "data.tokenizer.path=nowhere.json",
        "data.lowercase=true",
        "data.vocabulary.size=300",
    ] {
        let unread = message(&[set]);
        let (key, _) = set.split_once('=').unwrap();
        let key = key.trim_end_matches(".path");
        let expected = format!("{key}: set, but training.start says");
        assert!(unread.contains(&expected), "{unread}");
    }
    let long = message(&["data.filter.max_tokens=31"]);
    assert!(
        long.contains("data.filter.max_tokens") && long.contains("at most 30"),
        "{long}"
    );
}

/// A run has the sizes of the model that it began with, which are not those of the recipe; a comparison goes on with it all the same.
#[test]
fn a_comparison_goes_on_with_a_recipe_that_begins_with_a_model() {
    let folder = tempfile::tempdir().unwrap();
    let files = masked(folder.path());
    let registry = Registry::default();
    let run = folder.path().join("run");
    let [few, many] = [Budget::Tokens(1), Budget::Tokens(1_000_000)];
    let of = |budget: Budget, more: &[&str]| budget.limit(begun(&files, more));
    let standing = |budget: Budget, more: &[&str]| {
        compare::standing(&registry, &run, &of(budget, more), budget)
    };
    let written = || registry.load(run.join("recipe.toml"), &[]).unwrap();
    train_any(&of(few, &[]), &run, None, false).unwrap();
    let before = written();
    assert_ne!(before.model, of(few, &[]).model);
    // The model that it began with is not needed any more.
    fs::remove_dir_all(&files[0]).unwrap();
    assert_eq!(standing(few, &[]).unwrap(), Standing::Done);
    assert_eq!(standing(many, &[]).unwrap(), Standing::Begun);
    assert_eq!(written(), many.limit(before));
    for other in ["model.pooling=first", "training.start=other"] {
        let refused = standing(many, &[other]);
        assert!(
            matches!(refused, Err(CompareError::OtherRecipe(_))),
            "{other}: {refused:?}"
        );
    }
}

fn recipe_of_lstm(folder: &Path) -> Recipe {
    recipe(folder, LSTM, &["training.epochs=1", "training.steps=1"])
}

#[test]
fn an_interrupted_classifier_goes_on_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(folder.path(), LSTMN, &[]);
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    train(&recipe, &whole, None, false);
    assert_eq!(
        train(&recipe, &parts, Some(5), false).reason,
        Reason::Interrupted
    );
    assert_eq!(train(&recipe, &parts, None, true).reason, Reason::Limit);
    for file in ["model.safetensors", "best.safetensors"] {
        let content = |run: &Path| weights::from_bytes(&fs::read(run.join(file)).unwrap()).unwrap();
        assert_eq!(content(&whole), content(&parts), "{file}");
    }
}

/// The trace of an LSTMN has weights from words to earlier words, that of a self-attentive classifier from the label to
/// words, and that of an LSTM has no map.
#[test]
fn traces_show_what_was_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let steps = ["training.epochs=1"];
    let of = |name: &str, model: &str| {
        let run = folder.path().join(name);
        train(&recipe(folder.path(), model, &steps), &run, None, false);
        let classifier = Registry::default()
            .classifier(&run, &Device::flex())
            .unwrap();
        // A short sentence beside a longer one has padding to be cut off; an empty sentence is not an error.
        let lines = [
            "the film was good",
            "the very very very bad story was a film",
            "",
        ];
        classifier.classify(&lines).unwrap()
    };
    let found = of("lstmn", LSTMN);
    assert_eq!(found.len(), 3);
    let words = found[0].trace.merge_words();
    let map = &words.maps[0];
    assert_eq!(map.keys().labels(), ["the", "film", "was", "good", "</s>"]);
    assert_eq!(map.queries().labels(), map.keys().labels());
    assert!(map.row(0, 0).iter().all(|&weight| weight == 0.0));
    assert!((map.row(0, 3).iter().sum::<f32>() - 1.0).abs() < 1e-5);
    assert!(map.row(0, 3)[4] == 0.0, "later words are not seen");
    assert_eq!(words.target, found[0].label);

    let found = of("self-attentive", SELF_ATTENTIVE);
    let map = &found[1].trace.maps[0];
    assert_eq!(map.heads(), 2);
    assert_eq!(map.queries().labels(), [found[1].label.clone()]);
    assert!(of("lstm", LSTM).iter().all(|one| one.trace.maps.is_empty()));
}

#[test]
fn labelled_text_is_read_or_refused_by_line() {
    let read = |text: &str| LabelledText::read_from(text.as_bytes(), "text");
    let text = read("\u{feff}a\tfilm\tyes \r\nb\tno\n").unwrap();
    assert_eq!(text.sentences(), ["a\tfilm", "b"]);
    assert_eq!(text.labels(), ["no", "yes"]);
    assert_eq!(text.classes(["no", "yes"]).unwrap(), [1, 0]);
    let error = read("a\t1\nb\n").unwrap_err().to_string();
    assert!(error.contains("text: line 2 has no tab"), "{error}");
    let error = read("a\t \n").unwrap_err().to_string();
    assert!(error.contains("line 1 has nothing after"), "{error}");
    let error = text.classes(["yes"]).unwrap_err().to_string();
    for part in ["line 2", "\"no\"", "expected one of yes"] {
        assert!(error.contains(part), "{error}");
    }
    assert!(read("").unwrap().sentences().is_empty());
}

#[test]
fn a_recipe_of_the_wrong_task_is_refused() {
    let parse = |model: &str, rest: &str| {
        let text = format!("[model]\n{model}\n[training]\nepochs = 1\n{rest}");
        Registry::default()
            .parse(&text, "r.toml", &[])
            .unwrap_err()
            .to_string()
    };
    let labelled = "[data.labelled]\ntrain = \"a\"\nvalid = \"b\"\n";
    let files = |rest: &str| {
        let names = [
            "train_source",
            "train_target",
            "valid_source",
            "valid_target",
        ];
        let files: String = names
            .iter()
            .map(|name| format!("{name} = \"x\"\n"))
            .collect();
        format!("[data]\n{files}{rest}")
    };
    for (model, rest, expected) in [
        (LSTMN, "", "data.labelled: missing"),
        (
            LSTMN,
            "[data.labelled]\ntrain = \"a\"",
            "data.labelled.valid: missing",
        ),
        (
            "kind = \"rnnsearch\"",
            &files(labelled),
            "data.labelled: set for a model that translates",
        ),
        (
            LSTM,
            &files(labelled),
            "data.train_source: set for a classifier",
        ),
        (
            "kind = \"lstm\"\nbidirectional = true\nhidden = 7",
            labelled,
            "model.hidden: found 7; expected an even",
        ),
        (
            LSTM,
            &format!("{labelled}[validation]\nmeasure = \"bleu\""),
            "validation.measure: found \"bleu\"",
        ),
        (
            LSTM,
            &format!("{labelled}[training.scheduled_sampling]"),
            "training.scheduled_sampling: set for a classifier",
        ),
        (
            LSTM,
            &format!("{labelled}[data.filter]\nmax_ratio = 2.0"),
            "data.filter.max_ratio: set for a classifier",
        ),
        (
            LSTM,
            "[data.labeled]\n",
            "unknown key data.labeled; did you mean labelled?",
        ),
        (
            "kind = \"lstmn\"\nhops = 3",
            labelled,
            "kind = \"self-attentive\"",
        ),
    ] {
        let message = parse(model, rest);
        assert!(
            message.contains(expected),
            "{expected:?} is not in: {message}"
        );
    }
    for kind in ["lstmn", "lstm", "self-attentive"] {
        let registry = Registry::default();
        let example = registry.example(kind).unwrap();
        let text = registry.commented(&example).unwrap();
        assert_eq!(
            Registry::default().parse(&text, kind, &[]).unwrap(),
            example
        );
        assert_eq!(
            Registry::default()
                .parse(&example.to_toml().unwrap(), kind, &[])
                .unwrap(),
            example
        );
    }
}

#[test]
fn test_labels_are_looked_at_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(folder.path(), LSTMN, &["training.epochs=1"]);
    fs::write(folder.path().join("test.tsv"), "a film\tfair\n").unwrap();
    let run = folder.path().join("run");
    let run = Run {
        folder: &run,
        device: &Device::flex(),
        stop: &AtomicBool::new(false),
        ranks: &Alone,
    };
    let error = Registry::default().train(&recipe, &run, &mut |_| {});
    let error = error.map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("test.tsv") && error.contains("\"fair\""),
        "{error}"
    );
}

/// The labels that a validation writes stand in the lines of their sentences.
#[test]
fn validated_labels_stand_in_the_lines_of_their_sentences() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(folder.path(), LSTM, &["training.steps=1"]);
    let valid = folder.path().join("valid.tsv");
    fs::write(&valid, "a good film\t1\n\t1\na bad film\t0\n").unwrap();
    let run = folder.path().join("run");
    train(&recipe, &run, None, false);
    let written = fs::read_to_string(run.join("validation/step-1.txt")).unwrap();
    let lines: Vec<bool> = written.lines().map(str::is_empty).collect();
    assert_eq!(lines, [false, true, false], "{written:?}");
}

#[test]
fn a_text_without_sentences_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |setting: &str, valid: &str, name: &str| {
        let recipe = recipe(folder.path(), LSTM, &[setting]);
        fs::write(folder.path().join("valid.tsv"), valid).unwrap();
        let error = train_any(&recipe, &folder.path().join("run"), None, false);
        let error = error.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("{name}: nothing is left")),
            "{error}"
        );
    };
    refused("training.steps=1", "\t1\n \t0\n", "the validation text");
    // All sentences are longer.
    refused(
        "data.filter.max_tokens=1",
        "a good film\t1\n",
        "the training text",
    );
}

#[test]
fn a_damaged_classifier_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    train(
        &recipe(folder.path(), LSTMN, &["training.epochs=1"]),
        &run,
        None,
        false,
    );
    let (arrays, metadata) =
        weights::from_bytes(&fs::read(run.join("model.safetensors")).unwrap()).unwrap();
    let open = |change: &dyn Fn(&mut std::collections::HashMap<String, String>)| {
        let mut metadata = metadata.clone();
        change(&mut metadata);
        let bytes = weights::to_bytes(&arrays, metadata, weights::Storage::F32).unwrap();
        let opened =
            Registry::default().from_bytes::<Classification>(&bytes, "file", &Device::flex());
        opened.unwrap_err().to_string()
    };
    let labels = r#"{"labels":["0","1","2"],"max_tokens":100}"#;
    let message = open(&|metadata| {
        metadata.insert("regard.labels".into(), labels.into());
    });
    assert!(message.contains("3 labels for 2 classes"), "{message}");
    let message = open(&|metadata| {
        metadata.remove("regard.labels");
    });
    assert!(message.contains("no `regard.labels`"), "{message}");
    let message = open(&|metadata| {
        let model = metadata["regard.model"].replace("lstmn", "rnnsearch");
        metadata.insert("regard.model".into(), model);
    });
    assert!(message.contains("unknown field"), "{message}");
    let message = open(&|metadata| {
        let model = r#"{"kind":"rnnsearch","sizes":{},"config":{}}"#;
        metadata.insert("regard.model".into(), model.into());
    });
    assert!(
        message.contains("holds a model that translates"),
        "{message}"
    );
    let message = open(&|metadata| {
        let model = r#"{"kind":"perceptron","sizes":{},"config":{}}"#;
        metadata.insert("regard.model".into(), model.into());
    });
    assert!(message.contains("kind \"perceptron\""), "{message}");
    let missing = folder.path().join("nothing");
    assert!(!Registry::default().holds::<Classification>(&missing));
    assert!(
        Registry::default()
            .classifier(&missing, &Device::flex())
            .is_err()
    );
}
