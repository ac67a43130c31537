//! Training as a whole: it learns, it stops and resumes exactly, and it refuses bad input.

use std::{
    fs,
    panic::{self, AssertUnwindSafe},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use burn::tensor::Device;
use regard_evaluate::{Aer, Alignment, Gold};
use regard_nn::weights;
use regard_train::ranks::Alone;
use regard_train::{
    Registry, TrainError,
    learner::{Event, Reason, Run, Summary},
    recipe::{Recipe, Split},
};

const TINY: &str = r#"
[model]
kind = "rnnsearch"
embedding = 32
hidden = 32
attention_dimension = 32
maxout = 32
dropout = { embedding = 0.1, annotation = 0.1, output = 0.1 }
[data.synthetic]
task = "reverse"
symbols = 6
min_length = 2
max_length = 5
sentences = 300
valid_sentences = 20
test_sentences = 60
[batch]
sentences = 32
[optimizer]
kind = "adam"
clip_norm = 1.0
[schedule]
kind = "plateau"
learning_rate = 0.01
[training]
epochs = 3
log_every = 1
average = 2
[validation]
tokenizer = "none"
"#;

fn recipe(overrides: &[&str]) -> Recipe {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    Registry::default()
        .parse(TINY, "tiny.toml", &overrides)
        .unwrap()
}

/// Trains in `folder`, and tells `report` what happens.
fn train_telling(
    recipe: &Recipe,
    folder: &Path,
    report: &mut dyn FnMut(&Event),
) -> Result<Summary, TrainError> {
    let run = Run {
        folder,
        device: &Device::flex(),
        stop: &AtomicBool::new(false),
        ranks: &Alone,
    };
    Registry::default().train(recipe, &run, report)
}

/// Trains in `folder`, asking to stop once update `stop_at` is reported.
fn train(
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
    let mut report = |event: &Event| {
        if let Event::Train(metrics) = event
            && Some(metrics.step) == stop_at
        {
            stop.store(true, Ordering::SeqCst);
        }
    };
    match resume {
        false => Registry::default().train(recipe, &run, &mut report),
        true => Registry::default().resume(&[], &run, &mut report),
    }
}

/// Goes on with the run in `folder` with other settings.
fn resume_with(folder: &Path, overrides: &[&str]) -> Result<Summary, TrainError> {
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    let run = Run {
        folder,
        device: &Device::flex(),
        stop: &AtomicBool::new(false),
        ranks: &Alone,
    };
    Registry::default().resume(&overrides, &run, &mut |_| {})
}

/// The lines of `metrics.jsonl` without what depends on the clock.
fn metrics(folder: &Path) -> Vec<serde_json::Value> {
    fs::read_to_string(folder.join("metrics.jsonl"))
        .unwrap()
        .lines()
        .map(|line| {
            let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
            let object = value.as_object_mut().unwrap();
            object.remove("seconds");
            object.remove("tokens_per_second");
            if let Some(validation) = object.get_mut("validation") {
                validation.as_object_mut().unwrap().remove("seconds");
            }
            value
        })
        .collect()
}

#[test]
fn an_interrupted_run_goes_on_exactly() {
    let folder = tempfile::tempdir().unwrap();
    for (name, extra) in [
        ("adam", vec![]),
        ("sgd", vec!["optimizer.kind=sgd", "optimizer.momentum=0.9"]),
        (
            "adadelta",
            vec!["optimizer.kind=adadelta", "schedule.learning_rate=1.0"],
        ),
        (
            "sampling",
            vec![
                "training.scheduled_sampling.final_probability=0.5",
                "training.scheduled_sampling.decay_steps=5",
            ],
        ),
        ("reinforce", vec!["model.normalizer=hard-reinforce"]),
    ] {
        let recipe = recipe(&extra);
        let whole = folder.path().join(format!("{name}-whole"));
        let parts = folder.path().join(format!("{name}-parts"));
        assert_eq!(
            train(&recipe, &whole, None, false).unwrap().reason,
            Reason::Limit
        );
        // In the middle of the first epoch, and again in the last one.
        let first = train(&recipe, &parts, Some(4), false).unwrap();
        assert_eq!((first.reason, first.step), (Reason::Interrupted, 4));
        let second = train(&recipe, &parts, Some(23), true).unwrap();
        assert_eq!((second.reason, second.step), (Reason::Interrupted, 23));
        let last = train(&recipe, &parts, None, true).unwrap();
        assert_eq!(last.reason, Reason::Limit);
        let (whole_metrics, parts_metrics) = (metrics(&whole), metrics(&parts));
        assert!(whole_metrics.len() > 30);
        assert_eq!(whole_metrics, parts_metrics, "{name}");
        for file in ["model.safetensors", "best.safetensors"] {
            let content =
                |run: &Path| weights::from_bytes(&fs::read(run.join(file)).unwrap()).unwrap();
            assert_eq!(content(&whole), content(&parts), "{name}: {file}");
        }
    }
}

#[test]
fn other_batches_are_refused_in_the_middle_of_an_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let [middle, end] = ["middle", "end"].map(|name| folder.path().join(name));
    // Ten batches an epoch.
    let recipe = recipe(&["training.epochs=2"]);
    train(&recipe, &middle, Some(4), false).unwrap();
    let (last, settings) = (middle.join("last.safetensors"), middle.join("recipe.toml"));
    let [saved, written] = [&last, &settings].map(|file| fs::read(file).unwrap());
    let refused = |overrides: &[&str]| {
        let error = resume_with(&middle, overrides).unwrap_err().to_string();
        for part in ["last.safetensors", "batches", "[batch]"] {
            assert!(error.contains(part), "{overrides:?}: {error}");
        }
        assert_eq!(fs::read(&settings).unwrap(), written, "{overrides:?}");
    };
    // Two batches, ten others, ten of which the sentences are put together in another way.
    for setting in ["batch.sentences=256", "batch.sentences=31", "batch.pool=10"] {
        refused(&[setting]);
    }
    // A damaged file.
    let (arrays, mut metadata) = weights::from_bytes(&saved).unwrap();
    let progress = metadata.get_mut("regard.training").unwrap();
    assert!(progress.contains("\"position\":4,"), "{progress}");
    *progress = progress.replace("\"position\":4,", "\"position\":4000,");
    let damaged = weights::to_bytes(&arrays, metadata, weights::Storage::F32).unwrap();
    fs::write(&last, damaged).unwrap();
    refused(&[]);
    fs::write(&last, saved).unwrap();
    assert_eq!(resume_with(&middle, &[]).unwrap().step, 20);

    // Where an epoch begins, others are as good.
    train(&recipe, &end, Some(10), false).unwrap();
    let ended = resume_with(&end, &["batch.sentences=256"]).unwrap();
    assert_eq!((ended.reason, ended.step), (Reason::Limit, 12));
}

#[test]
fn the_last_update_of_an_epoch_is_one_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["training.epochs=2", "data.synthetic.sentences=64"]);
    train(&recipe, &folder.path().join("run"), None, false).unwrap();
    let epochs: Vec<u64> = metrics(&folder.path().join("run"))
        .iter()
        .filter(|line| line["kind"] == "train")
        .map(|line| line["epoch"].as_u64().unwrap())
        .collect();
    assert_eq!(epochs, [1, 1, 2, 2]);
}

#[test]
fn test_text_is_looked_at_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("text"), "a b\nb a\n").unwrap();
    let text = Some(path("text"));
    let mut recipe = recipe(&["training.epochs=1"]);
    let data = &mut recipe.data;
    data.synthetic = None;
    (data.train_source, data.train_target) = (text.clone(), text.clone());
    (data.valid_source, data.valid_target) = (text.clone(), text);
    (data.test_source, data.test_target) = (Some(path("none.en")), Some(path("none.de")));
    let error = train(&recipe, &path("run"), None, false).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("none.") && error.contains("cannot read"),
        "{error}"
    );
    assert!(!path("run").exists());
}

#[test]
fn reversal_is_learned_and_its_alignment_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&[
        "data.synthetic.sentences=2000",
        "training.epochs=6",
        "training.log_every=50",
        "model.dropout.embedding=0.0",
        "model.dropout.annotation=0.0",
        "model.dropout.output=0.0",
    ]);
    let run = folder.path().join("run");
    train(&recipe, &run, None, false).unwrap();
    let translator = Registry::default()
        .translator(&run, &Device::flex())
        .unwrap();
    let test = recipe
        .data
        .load(Split::Test, recipe.training.seed)
        .unwrap()
        .unwrap();
    let translated = translator
        .translate(test.text.source(), translator.settings())
        .unwrap();
    let exact = translated
        .iter()
        .zip(test.text.target())
        .filter(|(ours, reference)| ours.n_best[0].text == **reference)
        .count();
    assert!(
        exact * 100 >= 95 * test.text.len(),
        "{exact} of {} exact",
        test.text.len()
    );

    let (mut found, mut gold) = (vec![], vec![]);
    for (line, links) in translated.iter().zip(test.alignments.unwrap()) {
        let map = &line.n_best[0].trace.maps[0];
        found.push(
            map.align_argmax()
                .links()
                .iter()
                .map(|&(source, target)| regard_evaluate::Link {
                    source: source as u32,
                    target: target as u32,
                })
                .collect::<Alignment>(),
        );
        let sure = links
            .into_iter()
            .map(|(source, target)| regard_evaluate::Link {
                source: source as u32,
                target: target as u32,
            });
        gold.push(Gold::new(sure, []));
    }
    let aer = Aer::of(&found, &gold).unwrap();
    assert!(aer.error_rate() <= 0.1, "{aer}");
}

#[test]
fn every_kind_of_model_trains_and_translates() {
    let folder = tempfile::tempdir().unwrap();
    let common = [
        "training.epochs=1",
        "data.synthetic.sentences=64",
        "training.average=1",
    ];
    for (name, model) in [
        ("cho", "kind = \"seq2seq\"\ncell = \"gru-context\""),
        (
            "sutskever",
            "kind = \"seq2seq\"\ncell = \"lstm\"\nlayers = 2\nreverse_source = true",
        ),
        ("general", "kind = \"luong\"\nlayers = 2"),
        (
            "dot",
            "kind = \"luong\"\nscore = \"dot\"\nencoder = \"bidirectional\"",
        ),
        (
            "concat",
            "kind = \"luong\"\nscore = \"concat\"\nattention_dimension = 8",
        ),
        (
            "location",
            "kind = \"luong\"\nscore = \"location\"\ninput_feeding = false",
        ),
        (
            "local-m",
            "kind = \"luong\"\nattention = \"local-m\"\nwindow = 2",
        ),
        (
            "local-p",
            "kind = \"luong\"\nattention = \"local-p\"\nwindow = 2",
        ),
        ("paper", "kind = \"rnnsearch\"\ninitialisation = \"paper\""),
        ("tied", "kind = \"rnnsearch\"\ntie = \"all\""),
        ("gnmt", "kind = \"gnmt\"\nlayers = 3"),
        ("deep", "kind = \"lstmn-translation\""),
        (
            "shallow",
            "kind = \"lstmn-translation\"\nfusion = \"shallow\"",
        ),
        ("unnormalised", "kind = \"luong\"\nnormalizer = \"sigmoid\""),
        (
            "many heads, unnormalised",
            "kind = \"transformer\"\nd_model = 16\nheads = 2\nmask = \"block\"\ncross_normalizer = \"sink\"",
        ),
    ] {
        let start = TINY.find("[data.synthetic]").unwrap();
        let text = format!(
            "[model]\n{model}\n{}{}",
            if model.contains("transformer") {
                ""
            } else if model.contains("rnnsearch") {
                "embedding = 16\nhidden = 16\nmaxout = 16\n"
            } else {
                "embedding = 16\nhidden = 16\n"
            },
            &TINY[start..]
        );
        let overrides: Vec<String> = common.iter().map(ToString::to_string).collect();
        let recipe = Registry::default()
            .parse(&text, name, &overrides)
            .unwrap_or_else(|e| panic!("{e}"));
        let run = folder.path().join(name);
        train(&recipe, &run, None, false).unwrap_or_else(|e| panic!("{name}: {e}"));
        let translator = Registry::default()
            .translator(&run, &Device::flex())
            .unwrap();
        let lines = ["a b c", "", "c"];
        let translated = translator.translate(&lines, translator.settings()).unwrap();
        assert_eq!(translated.len(), 3);
        assert_eq!(translated[1].n_best[0].text, "");
        let attends = !model.contains("seq2seq");
        assert_eq!(
            !translated[0].n_best[0].trace.maps.is_empty(),
            attends,
            "{name}"
        );
    }
}

/// A model with each of the normalisers learns from a recipe.
#[test]
fn every_normalizer_learns() {
    let folder = tempfile::tempdir().unwrap();
    for normalizer in [
        "sparsemax",
        "entmax15",
        "{kind=\"sigmoid\", bias=-1.5}",
        "sink",
        "monotonic",
        "hard-straight-through",
        "{kind=\"hard-gumbel\", temperature=0.5}",
        "{kind=\"hard-reinforce\", entropy=0.02}",
    ] {
        let setting = format!("model.normalizer={normalizer}");
        let recipe = recipe(&[&setting, "training.average=1"]);
        let run = folder.path().join(normalizer.replace(['{', '"'], ""));
        train(&recipe, &run, None, false).unwrap_or_else(|e| panic!("{normalizer}: {e}"));
        let lines = metrics(&run);
        let perplexities: Vec<f64> = lines
            .iter()
            .filter_map(|line| line["perplexity"].as_f64())
            .collect();
        let (first, last) = (perplexities[0], perplexities[perplexities.len() - 1]);
        assert!(perplexities.iter().all(|p| p.is_finite()), "{normalizer}");
        assert!(last < 0.8 * first, "{normalizer}: {first} to {last}");
    }
}

/// Trains in `folder` until update `dies_at` is reported; then the session dies without saving anything more.
fn train_and_die(recipe: &Recipe, folder: &Path, dies_at: Option<u64>) {
    let mut report = |event: &Event| match event {
        Event::Started(_) if dies_at.is_none() => panic!("killed"),
        Event::Train(metrics) if Some(metrics.step) == dies_at => panic!("killed"),
        _ => {}
    };
    let died = panic::catch_unwind(AssertUnwindSafe(|| {
        train_telling(recipe, folder, &mut report)
    }));
    assert!(died.is_err());
    // What a process that is killed while it writes leaves.
    fs::write(folder.join(".regard-left.tmp"), "half").unwrap();
}

#[test]
fn a_run_that_was_killed_before_its_first_validation_goes_on_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let recipe = recipe(&["training.epochs=1"]);
    train(&recipe, &whole, None, false).unwrap();
    let content = |run: &Path| {
        let bytes = fs::read(run.join("model.safetensors")).unwrap();
        weights::from_bytes(&bytes).unwrap()
    };
    // The first dies before it could write any state.
    for (name, dies_at) in [("started", None), ("trained", Some(5))] {
        let run = folder.path().join(name);
        train_and_die(&recipe, &run, dies_at);
        assert_eq!(run.join("last.safetensors").exists(), dies_at.is_some());
        // The recipe given here is ignored: the run has its own.
        let resumed = train(&self::recipe(&["training.seed=99"]), &run, None, true).unwrap();
        assert_eq!(resumed.reason, Reason::Limit, "{name}");
        assert!(!run.join(".regard-left.tmp").exists(), "{name}");
        assert_eq!(content(&whole), content(&run), "{name}");
        assert_eq!(metrics(&whole), metrics(&run), "{name}");
    }
    // A model whose state is gone is not trained over.
    fs::remove_file(whole.join("last.safetensors")).unwrap();
    assert!(matches!(
        train(&recipe, &whole, None, true),
        Err(TrainError::NothingToResume(_))
    ));
}

#[test]
fn a_folder_that_holds_a_run_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["training.epochs=1", "data.synthetic.sentences=64"]);
    let run = folder.path().join("run");
    train(&recipe, &run, None, false).unwrap();
    assert!(matches!(
        train(&recipe, &run, None, false),
        Err(TrainError::Occupied(_))
    ));
    let empty = folder.path().join("empty");
    assert!(matches!(
        train(&recipe, &empty, None, true),
        Err(TrainError::NothingToResume(_))
    ));
    fs::remove_file(run.join("recipe.toml")).unwrap();
    let error = train(&recipe, &run, None, true).unwrap_err().to_string();
    assert!(error.contains("no recipe.toml"), "{error}");
}

/// A recipe or tokenizer of the user's own is not lost in a run that is given their folder.
#[test]
fn a_file_that_no_run_has_written_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["training.steps=1", "data.synthetic.sentences=64"]);
    let refused = |run: &Path, file: &str| {
        let path = run.join(file);
        let before = fs::read(&path).unwrap();
        let error = train(&recipe, run, None, false).unwrap_err();
        assert!(
            matches!(&error, TrainError::OtherFile(named) if *named == path),
            "{error}"
        );
        assert_eq!(fs::read(&path).unwrap(), before);
    };
    let with = |name: &str, file: &str, text: &str| {
        let run = folder.path().join(name);
        fs::create_dir_all(&run).unwrap();
        fs::write(run.join(file), text).unwrap();
        run
    };
    let own = "# Mine.\n".to_owned() + TINY;
    refused(&with("recipe", "recipe.toml", &own), "recipe.toml");
    refused(&with("tokenizer", "tokenizer.json", "{}"), "tokenizer.json");
    // One that stays as it is.
    let same = with("same", "recipe.toml", &recipe.to_toml().unwrap());
    train(&recipe, &same, None, false).unwrap();
    // What a start left that died before it could save is replaced, unless it was changed since.
    let died = folder.path().join("died");
    train_and_die(&self::recipe(&[]), &died, None);
    let written = fs::read_to_string(died.join("recipe.toml")).unwrap();
    with("died", "recipe.toml", &format!("# Mine.\n{written}"));
    refused(&died, "recipe.toml");
    with("died", "recipe.toml", &written);
    train(&recipe, &died, None, false).unwrap();
    // A model whose state is gone is not lost either.
    let best = with("best", "best.safetensors", "mine");
    let error = train(&recipe, &best, None, false).unwrap_err();
    assert!(matches!(error, TrainError::Occupied(_)), "{error}");
}

/// A run that goes on has its weights and its tokenizer: others to begin with would be written into its recipe, and change nothing.
#[test]
fn a_run_that_goes_on_takes_no_other_start() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let recipe = recipe(&["training.steps=1", "data.synthetic.sentences=64"]);
    train(&recipe, &run, None, false).unwrap();
    let written = fs::read(run.join("recipe.toml")).unwrap();
    for (start, key) in [
        ("training.start=other", "training.start"),
        (" training . start = \"other\"", "training.start"),
        ("data.vocabulary.size=100", "data.vocabulary.size"),
        ("data.tokenizer.path=other", "data.tokenizer"),
        ("data.vocabulary={size=100}", "data.vocabulary.joint"),
    ] {
        let error = resume_with(&run, &["training.steps=2", start]).unwrap_err();
        let error = error.to_string();
        let expected = format!("{key}: given for a run that has begun already");
        assert!(error.contains(&expected), "{error}");
        assert_eq!(fs::read(run.join("recipe.toml")).unwrap(), written);
    }
    assert_eq!(resume_with(&run, &["training.steps=2"]).unwrap().step, 2);
}

/// What a start that fails leaves: nothing in a folder that it made, and a folder that was there free for another start.
#[test]
fn a_start_that_fails_leaves_no_run() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("runs/made");
    let there = folder.path().join("there");
    fs::create_dir(&there).unwrap();
    fs::write(there.join("notes.txt"), "mine").unwrap();
    let good = recipe(&["training.epochs=1", "data.synthetic.sentences=64"]);
    let mut no_data = good.clone();
    no_data.data.synthetic = None;
    no_data.data.train_source = Some(folder.path().join("none.en"));
    no_data.data.train_target = Some(folder.path().join("none.de"));
    let diverging = recipe(&[
        "schedule.learning_rate=1e30",
        "optimizer.clip_norm=0",
        "training.log_every=100",
    ]);
    for bad in [&no_data, &diverging] {
        for run in [&made, &there] {
            let error = train(bad, run, None, false).unwrap_err();
            assert!(!matches!(error, TrainError::Occupied(_)), "{error}");
        }
        assert!(!folder.path().join("runs").exists());
        assert!(there.join("notes.txt").exists());
    }
    train(&good, &there, None, false).unwrap();
}

/// Losses and accuracies are not compared with each other: with another measure the best model is looked for anew.
#[test]
fn another_measure_has_another_best() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let by_loss = recipe(&["training.epochs=1", "validation.measure=loss"]);
    let former = train(&by_loss, &run, None, false).unwrap().best.unwrap();
    let by_bleu = ["training.epochs=2", "validation.measure=bleu"];
    let best = resume_with(&run, &by_bleu).unwrap().best.unwrap();
    assert!(former.0 < best.0, "{former:?} {best:?}");
}

/// Of validations with the same measure the one with the lower loss is better: a BLEU of 0 is no reason to stop or to learn slower.
#[test]
fn equal_measures_are_told_apart_by_the_loss() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let recipe = recipe(&[
        "training.validate_every=1",
        "training.steps=6",
        "training.average=1",
        "validation.measure=bleu",
    ]);
    let best = train(&recipe, &run, None, false).unwrap().best.unwrap();
    let validations: Vec<(u64, f64, f64)> = metrics(&run)
        .iter()
        .filter_map(|line| {
            let bleu = line["bleu"].as_f64()?;
            Some((line["step"].as_u64()?, bleu, line["loss"].as_f64()?))
        })
        .collect();
    assert_eq!(validations.len(), 6);
    let highest = validations.iter().map(|one| one.1).fold(0.0, f64::max);
    let equal = validations.iter().filter(|one| one.1 == highest);
    let lowest = equal.min_by(|a, b| a.2.total_cmp(&b.2)).unwrap();
    assert_eq!(best.0, lowest.0, "{validations:?}");
}

/// Filters leave out training pairs alone: validation is by the same pairs whatever they are.
#[test]
fn filters_leave_validation_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let loss = |name: &str, filter: &str| {
        let run = folder.path().join(name);
        let recipe = recipe(&[
            "training.steps=1",
            "training.validate_every=1",
            "schedule.learning_rate=1e-30",
            "schedule.min_learning_rate=0",
            filter,
        ]);
        let mut found = None;
        let mut report = |event: &Event| {
            if let Event::Validation(metrics) = event {
                found = Some(metrics.loss);
            }
        };
        train_telling(&recipe, &run, &mut report).unwrap();
        found.unwrap()
    };
    let all = loss("all", "data.filter.max_words=100");
    // Sentences have 2 to 5 words.
    assert_eq!(all, loss("few", "data.filter.max_words=2"));
}

/// The state of one kind of optimizer is no state of another.
#[test]
fn another_optimizer_does_not_go_on_from_its_state() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    train(&recipe(&["training.epochs=1"]), &run, None, false).unwrap();
    let file = run.join("recipe.toml");
    let text = fs::read_to_string(&file).unwrap();
    let start = text.find("[optimizer]").unwrap();
    let end = start + text[start..].find("\n\n").unwrap();
    let other = |kind: &str| {
        let section = format!("[optimizer]\nkind = \"{kind}\"");
        fs::write(&file, [&text[..start], &section, &text[end..]].concat()).unwrap();
        resume_with(&run, &["training.epochs=2"])
    };
    let error = other("adadelta").unwrap_err().to_string();
    assert!(
        error.contains("that of adam") && error.contains("optimizer.kind"),
        "{error}"
    );
    other("adamw").unwrap();
}

/// A validation that is no number is no best one, and what was saved before can be read.
#[test]
fn a_validation_of_nan_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let diverging = recipe(&[
        "schedule.learning_rate=1e30",
        "optimizer.clip_norm=0",
        "training.log_every=100",
        "training.validate_every=1",
        "validation.measure=loss",
    ]);
    let error = train(&diverging, &run, None, false).unwrap_err();
    assert!(matches!(error, TrainError::Loss { .. }), "{error}");
    if run.exists() {
        let error = train(&diverging, &run, None, true).unwrap_err();
        assert!(matches!(error, TrainError::Loss { .. }), "{error}");
    }
}

/// Where a checkpoint cannot be written, the former one and the models that it names stay.
#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_former_one() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let recipe = recipe(&["training.epochs=4"]);
    let last = run.join("last.safetensors");
    let mut former = None;
    let mut validations = 0;
    let mut report = |event: &Event| {
        validations += usize::from(matches!(event, Event::Validation(_)));
        if validations == 3 && former.is_none() {
            former = Some(fs::read(&last).unwrap());
            fs::remove_file(&last).unwrap();
            fs::create_dir(&last).unwrap();
        }
    };
    let error = train_telling(&recipe, &run, &mut report);
    assert!(error.unwrap_err().to_string().contains("last.safetensors"));
    fs::remove_dir(&last).unwrap();
    fs::write(&last, former.unwrap()).unwrap();
    // The models of both validations before are there to be averaged.
    resume_with(&run, &["training.epochs=2"]).unwrap();
}

/// A model that was validated is not lost, though the run dies before it can save more.
#[test]
fn a_validated_run_is_not_abandoned() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path();
    fs::write(run.join("recent"), "in the way of a folder").unwrap();
    let recipe = recipe(&["training.epochs=2", "training.log_every=100"]);
    train(&recipe, run, None, false).unwrap_err();
    assert!(run.join("best.safetensors").exists());
    fs::remove_file(run.join("recent")).unwrap();
    train(&recipe, run, None, true).unwrap();
}

#[test]
fn two_runs_in_one_folder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["training.epochs=1", "data.synthetic.sentences=64"]);
    let run = folder.path().join("run");
    let stop = AtomicBool::new(false);
    let of = Run {
        folder: &run,
        device: &Device::flex(),
        stop: &stop,
        ranks: &Alone,
    };
    let mut refused = 0;
    let mut report = |event: &Event| {
        if let Event::Started(_) = event {
            for resume in [false, true] {
                let error = train(&recipe, &run, None, resume).unwrap_err();
                assert!(matches!(error, TrainError::Busy(_)), "{error}");
                assert!(error.to_string().contains(&run.display().to_string()));
                refused += 1;
            }
        }
    };
    Registry::default()
        .train(&recipe, &of, &mut report)
        .unwrap();
    assert_eq!(refused, 2);
    // What died has left its file, but no lock.
    assert!(run.join(".lock").exists());
    train(&recipe, &run, None, true).unwrap();
}

#[test]
fn damaged_checkpoints_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = recipe(&["training.epochs=1", "data.synthetic.sentences=64"]);
    let run = folder.path().join("run");
    train(&recipe, &run, None, false).unwrap();
    let last = run.join("last.safetensors");
    let whole = fs::read(&last).unwrap();
    fs::write(&last, &whole[..whole.len() / 2]).unwrap();
    let error = train(&recipe, &run, None, true).unwrap_err().to_string();
    assert!(
        error.contains("last.safetensors") && error.contains("safetensors"),
        "{error}"
    );
    // The optimizer's numbers are those of a weight of another shape, or of none.
    let (arrays, metadata) = weights::from_bytes(&whole).unwrap();
    let mut names = arrays.keys();
    let name = names.find_map(|key| key.strip_prefix("optimizer.first."));
    let name = name.unwrap();
    let (mut reshaped, mut renamed) = (arrays.clone(), arrays.clone());
    for slot in ["first", "second"].map(|slot| format!("optimizer.{slot}.{name}")) {
        let array = renamed.remove(&slot).unwrap();
        renamed.insert(format!("{slot}.other"), array);
        let number = weights::Array {
            shape: vec![1; 4],
            values: vec![0.0],
        };
        reshaped.insert(slot, number);
    }
    for (arrays, expected) in [(reshaped, "as the weight has"), (renamed, "no such weight")] {
        let bytes = weights::to_bytes(&arrays, metadata.clone(), weights::Storage::F32).unwrap();
        fs::write(&last, bytes).unwrap();
        let error = train(&recipe, &run, None, true).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
    // A model file is not a checkpoint.
    fs::copy(run.join("model.safetensors"), &last).unwrap();
    let error = train(&recipe, &run, None, true).unwrap_err().to_string();
    assert!(error.contains("regard.training"), "{error}");
}

#[test]
fn every_recipe_of_the_repository_parses() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            Registry::default()
                .load(&path, &[])
                .unwrap_or_else(|error| panic!("{error}"));
            count += 1;
        }
    }
    assert!(count >= 4, "{count} recipes found");
}
