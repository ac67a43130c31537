//! Language models: what they learn, exact resumption, masks, and data that is wrong.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use burn::tensor::Device;
use regard_nn::weights;
use regard_train::ranks::Alone;
use regard_train::{
    Opened, Registry, TrainError,
    learner::{Event, Quality, Reason, Run, Summary},
    recipe::Recipe,
    tasks::{LanguageModelling, Translation},
};

const TRANSFORMER: &str = r#"kind = "transformer-lm"
    context = 16
    [model.transformer]
    d_model = 16
    layers = 2
    heads = 2
    dropout = { embedding = 0.1, residual = 0.1 }"#;
const LSTM: &str = r#"kind = "lstm-lm"
    embedding = 12
    hidden = 16
    context = 16"#;
const LSTMN: &str = r#"kind = "lstmn-lm"
    embedding = 12
    hidden = 16
    attention_dimension = 8
    context = 16"#;

/// A text in which every letter follows from the one before it.
fn alphabet(lines: usize) -> String {
    (0..lines)
        .map(|line| {
            let letters = (0..26).map(|i| char::from(b'a' + ((i + 3 * line) % 26) as u8));
            letters.chain(['\n']).collect::<String>()
        })
        .collect()
}

fn recipe(folder: &Path, model: &str, data: &str, overrides: &[&str]) -> Result<Recipe, String> {
    let train = folder.join("train.txt");
    if !train.exists() {
        fs::write(&train, alphabet(60)).unwrap();
    }
    let text = format!(
        r#"
        [model]
        {model}
        [data.text]
        train = {train:?}
        {data}
        [batch]
        sentences = 8
        [optimizer]
        kind = "adamw"
        [schedule]
        kind = "cosine"
        learning_rate = 0.02
        warmup = 4
        decay_steps = 60
        [training]
        steps = 60
        validate_every = 20
        log_every = 1
        "#
    );
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    let parsed = Registry::default().parse(&text, "lm.toml", &overrides);
    parsed.map_err(|error| error.to_string())
}

fn train(
    recipe: &Recipe,
    folder: &Path,
    stop_at: Option<u64>,
    resume: bool,
) -> Result<(Summary, Vec<Event>), TrainError> {
    let stop = AtomicBool::new(false);
    let run = Run {
        folder,
        device: &Device::flex(),
        stop: &stop,
        ranks: &Alone,
    };
    let mut events = vec![];
    let mut report = |event: &Event| {
        if let Event::Train(metrics) = event
            && Some(metrics.step) == stop_at
        {
            stop.store(true, Ordering::SeqCst);
        }
        events.push(event.clone());
    };
    let summary = match resume {
        false => Registry::default().train(recipe, &run, &mut report),
        true => Registry::default().resume(&[], &run, &mut report),
    };
    Ok((summary?, events))
}

#[test]
fn every_architecture_learns_what_follows() {
    let folder = tempfile::tempdir().unwrap();
    for (name, model) in [
        ("transformer", TRANSFORMER),
        ("lstm", LSTM),
        ("lstmn", LSTMN),
    ] {
        let steps = [
            "training.steps=150",
            "schedule.decay_steps=150",
            "training.validate_every=50",
        ];
        let recipe = recipe(folder.path(), model, "units = \"characters\"", &steps).unwrap();
        let run = folder.path().join(name);
        let (summary, events) = train(&recipe, &run, None, false).unwrap();
        assert_eq!(summary.reason, Reason::Limit);
        let losses: Vec<f64> = events
            .iter()
            .filter_map(|event| match event {
                Event::Validation(metrics) => {
                    let Quality::Likelihood {
                        bits_per_byte: Some(bits),
                    } = metrics.quality
                    else {
                        panic!("{:?}", metrics.quality)
                    };
                    // A token is a byte here.
                    assert!((bits - metrics.loss / std::f64::consts::LN_2).abs() < 1e-9);
                    Some(metrics.loss)
                }
                _ => None,
            })
            .collect();
        // After a line's end the next letter follows from the line before, which is out of sight.
        assert!(
            losses[2] < 1.0 && losses[2] < losses[0],
            "{name} {losses:?}"
        );
        assert_eq!(
            summary.best.unwrap().1,
            losses.iter().copied().fold(f64::MAX, f64::min)
        );
        let device = Device::flex();
        let registry = Registry::default();
        let (model, description) = registry.open::<LanguageModelling>(&run, &device).unwrap();
        assert_eq!(
            description.tokenizers.source().vocabulary(),
            model.vocabulary()
        );
        assert_eq!(model.vocabulary().size, 5 + 27);
        let ids = description.tokenizers.source().encode("abc").unwrap();
        assert_eq!(description.tokenizers.source().decode(&ids).unwrap(), "abc");
        let error = registry.open::<Translation>(&run, &device).unwrap_err();
        assert!(
            error.to_string().contains("holds a language model"),
            "{error}"
        );
    }
}

#[test]
fn an_interrupted_language_model_goes_on_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let masked = format!("objective = \"masked\"\n{TRANSFORMER}");
    for (name, model) in [("causal", TRANSFORMER), ("masked", &masked)] {
        let steps = ["training.steps=12", "training.validate_every=6"];
        let recipe = recipe(folder.path(), model, "texts = \"lines\"", &steps).unwrap();
        let [whole, parts] = ["whole", "parts"].map(|part| folder.path().join(name).join(part));
        train(&recipe, &whole, None, false).unwrap();
        let (summary, _) = train(&recipe, &parts, Some(7), false).unwrap();
        assert_eq!(summary.reason, Reason::Interrupted);
        train(&recipe, &parts, None, true).unwrap();
        for file in ["model.safetensors", "best.safetensors"] {
            let content =
                |run: &Path| weights::from_bytes(&fs::read(run.join(file)).unwrap()).unwrap();
            assert_eq!(content(&whole), content(&parts), "{name} {file}");
        }
    }
}

/// Losses of parts of another length, or of other masks, are not compared with each other: the best model is looked for anew.
#[test]
fn other_parts_and_masks_have_another_best() {
    let folder = tempfile::tempdir().unwrap();
    let masked = format!("objective = \"masked\"\n{TRANSFORMER}");
    for (number, (model, change, is_kept)) in [
        (LSTM, "training.log_every=5", true),
        (LSTM, "model.context=8", false),
        (&masked, "training.log_every=5", true),
        (&masked, "data.text.masked=0.3", false),
        (&masked, "training.seed=2", false),
    ]
    .into_iter()
    .enumerate()
    {
        // An epoch has one batch, so that another context begins with an epoch.
        let short = ["training.steps=1", "batch.sentences=1000"];
        let recipe = recipe(folder.path(), model, "units = \"bytes\"", &short).unwrap();
        let path = folder.path().join(number.to_string());
        assert!(train(&recipe, &path, None, false).unwrap().0.best.is_some());
        let run = Run {
            folder: &path,
            device: &Device::flex(),
            stop: &AtomicBool::new(false),
            ranks: &Alone,
        };
        let resumed = Registry::default().resume(&[change.to_owned()], &run, &mut |_| {});
        let best = resumed.unwrap().best;
        assert_eq!(best.is_some(), is_kept, "{model} {change}: {best:?}");
    }
}

#[test]
fn a_masked_model_learns_from_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    // What stood behind a mask stands to its left and right.
    let line = |i: usize| {
        format!(
            "{}\n",
            String::from(char::from(b'a' + (i % 26) as u8)).repeat(9)
        )
    };
    let text: String = (0..400).map(line).collect();
    fs::write(folder.path().join("train.txt"), text).unwrap();
    let model = format!("objective = \"masked\"\n{TRANSFORMER}");
    let data = "units = \"bytes\"\ntexts = \"lines\"";
    let steps = [
        "training.steps=400",
        "training.validate_every=80",
        "schedule.decay_steps=400",
        "schedule.learning_rate=0.005",
        "model.context=32",
    ];
    let recipe = recipe(folder.path(), &model, data, &steps).unwrap();
    let (_, events) = train(&recipe, &folder.path().join("run"), None, false).unwrap();
    let losses: Vec<f64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Validation(metrics) => {
                let none = Quality::Likelihood {
                    bits_per_byte: None,
                };
                assert_eq!(format!("{:?}", metrics.quality), format!("{none:?}"));
                Some(metrics.loss)
            }
            _ => None,
        })
        .collect();
    assert!(losses[4] < 1.5 && losses[4] < losses[0] - 1.0, "{losses:?}");
}

#[test]
fn subwords_and_lower_case_come_from_the_training_text() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("train.txt"),
        "The cat. THE CAT sat.\n".repeat(40),
    )
    .unwrap();
    let steps = [
        "training.steps=1",
        "data.lowercase=true",
        "data.vocabulary.size=300",
    ];
    let recipe = recipe(folder.path(), LSTM, "", &steps).unwrap();
    let run = folder.path().join("run");
    train(&recipe, &run, None, false).unwrap();
    let opened = Registry::default().open::<LanguageModelling>(&run, &Device::flex());
    let tokenizer = opened.unwrap().1.tokenizers;
    let ids = tokenizer.source().encode("The CAT sat. ¿Ünknown?").unwrap();
    assert!(ids.len() < 30, "{ids:?}");
    assert_eq!(
        tokenizer.source().decode(&ids).unwrap(),
        "the cat sat. ¿ünknown?"
    );
}

#[test]
fn wrong_recipes_and_texts_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |model: &str, data: &str, overrides: &[&str], parts: &[&str]| {
        let error = match recipe(folder.path(), model, data, overrides) {
            Err(error) => error,
            Ok(recipe) => {
                let run = folder.path().join("refused");
                let _ = fs::remove_dir_all(&run);
                train(&recipe, &run, None, false).unwrap_err().to_string()
            }
        };
        for part in parts {
            assert!(error.contains(part), "{error}: lacks {part:?}");
        }
    };
    refused(
        LSTM,
        "unit = \"bytes\"",
        &[],
        &["data.text.unit", "did you mean units?"],
    );
    refused(
        LSTM,
        "",
        &["data.text.units=words"],
        &["data.text.units", "characters"],
    );
    refused(
        LSTM,
        "",
        &["data.train_source=a"],
        &["data.train_source: set for a language model"],
    );
    for (key, value) in [
        ("data.filter.max_tokens", "7"),
        ("data.vocabulary.dropout", "0.1"),
        ("translate.beam", "3"),
        ("translate.max_length.extra", "3"),
    ] {
        let message = format!("{key}: set for a language model");
        refused(LSTM, "", &[&format!("{key}={value}")], &[&message]);
    }
    refused(
        LSTM,
        "",
        &["data.text.masked=0.3"],
        &["data.text.masked: found 0.3", "causal"],
    );
    refused(
        LSTM,
        "",
        &["data.text.units=bytes", "training.start=x"],
        &["data.text.units: set", "training.start"],
    );
    refused(
        LSTM,
        "",
        &["validation.measure=bleu"],
        &["validation.measure", "\"loss\""],
    );
    refused(
        LSTM,
        "",
        &["model.context=1"],
        &["model.context", "at least 2"],
    );
    refused(
        TRANSFORMER,
        "texts = \"lines\"",
        &["model.objective=masked", "model.context=2"],
        &["model.context", "at least 3"],
    );
    refused(
        LSTM,
        "",
        &["data.text.valid_share=1.0"],
        &["valid_share", "below 1"],
    );
    refused(
        TRANSFORMER,
        "",
        &["model.transformer.heads=3"],
        &["heads", "divisor"],
    );
    // Keys without effect.
    for (overrides, why) in [
        (
            &["rotary_base=500.0"][..],
            "rotary_base: set, but positions are not \"rotary\"",
        ),
        (
            &["rotary_scaling=linear"],
            "rotary_scaling: set, but positions are not \"rotary\"",
        ),
        (
            &["window_rotary_base=50.0", "window=4"],
            "window_rotary_base: set, but positions are not \"rotary\"",
        ),
        (
            &["window_rotary_base=50.0", "positions=rotary"],
            "window_rotary_base: set, but there is no window",
        ),
        (&["full_every=2"], "full_every: set, but there is no window"),
        (
            &["score_scale=0.5", "score=cosine"],
            "score_scale: set, but the score is not \"scaled-dot\"",
        ),
    ] {
        let overrides: Vec<String> = overrides
            .iter()
            .map(|key| format!("model.transformer.{key}"))
            .collect();
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let message = format!("model.transformer.{why}");
        refused(TRANSFORMER, "", &overrides, &[&message]);
    }
    refused(
        LSTM,
        "",
        &["schedule.decay_steps=3"],
        &["schedule.decay_steps", "warmup (4)"],
    );
    refused(
        LSTM,
        "",
        &["data.text.train=/nowhere.txt"],
        &["/nowhere.txt"],
    );
    // A tokenizer that knows one letter, and a text without it.
    let path = |name: &str| folder.path().join(name);
    let one = r#"{"added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": {"type": "BPE",
        "vocab": {"a": 0, "<s>": 1, "</s>": 2, "<pad>": 3}, "merges": []}}"#;
    fs::write(path("one.json"), one).unwrap();
    fs::write(path("without.txt"), "b b\n").unwrap();
    let tokenizer = format!("data.tokenizer.path={}", path("one.json").display());
    for (part, name) in [
        ("train", "the training text"),
        ("valid", "the validation text"),
    ] {
        let without = format!("data.text.{part}={}", path("without.txt").display());
        let expected = [name, "nothing is left"];
        refused(LSTM, "", &[&tokenizer, &without], &expected);
    }
    // The size of a vocabulary that is not learned, or is not one of sub-words.
    let size = "data.vocabulary.size=300";
    let expected = ["data.vocabulary.size: set", "data.tokenizer"];
    refused(LSTM, "", &[&tokenizer, size], &expected);
    let expected = ["data.vocabulary.size: set", "data.text.units"];
    refused(LSTM, "units = \"characters\"", &[size], &expected);
    let nothing = ["training.frozen", "nothing would be trained"];
    refused(LSTM, "", &["training.frozen="], &nothing);
    let blank = folder.path().join("blank.txt");
    fs::write(&blank, "\n  \n").unwrap();
    let train = format!("data.text.train={}", blank.display());
    refused(LSTM, "", &[&train], &["blank.txt", "empty"]);
    let valid = format!("data.text.valid={}", blank.display());
    refused(LSTM, "", &[&valid], &["blank.txt"]);
    let tokenizer = folder.path().join("tokenizer.json");
    let document = r#"{"added_tokens": [], "model": {"type": "WordLevel", "unk_token": "?",
        "vocab": {"?": 0, "<s>": 1, "</s>": 2, "<pad>": 3}}}"#;
    fs::write(&tokenizer, document).unwrap();
    let tokenizer = format!("data.tokenizer.path={}", tokenizer.display());
    let masked = ["model.objective=masked", &tokenizer];
    refused(TRANSFORMER, "", &masked, &["<mask>", "data.tokenizer"]);
}

/// A language model begins with all weights of one that was trained here, also with an output layer of its own, and sees what that one sees.
#[test]
fn a_language_model_begins_with_one_that_was_trained_here() {
    let folder = tempfile::tempdir().unwrap();
    for tie in [true, false] {
        let run = |name: &str| folder.path().join(format!("{name}-{tie}"));
        let of = |data: &str, more: &[String]| {
            let more: Vec<&str> = more.iter().map(String::as_str).collect();
            let overrides = [&["training.steps=1"][..], &more[..]].concat();
            recipe(folder.path(), TRANSFORMER, data, &overrides).unwrap()
        };
        let first = of("units = \"characters\"", &[format!("model.tie={tie}")]);
        train(&first, &run("first"), None, false).unwrap();
        let start = format!("training.start={:?}", run("first"));
        let further = of("", &[start.clone(), format!("model.tie={}", !tie)]);
        let (_, events) = train(&further, &run("further"), None, false).unwrap();
        let Event::Started(started) = &events[0] else {
            panic!("{:?}", events[0])
        };
        assert!(started.drawn.is_empty(), "{:?}", started.drawn);
        let masked = of("", &[start, "model.objective=masked".to_owned()]);
        let error = train(&masked, &run("masked"), None, false).unwrap_err();
        let message = error.to_string();
        for part in ["training.start", "model.objective = \"causal\""] {
            assert!(message.contains(part), "{message}");
        }
    }
}

/// A text without line ends is divided too, and a run goes on only with the text that it began with.
#[test]
fn one_line_is_a_text_and_other_data_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let train_text = folder.path().join("train.txt");
    let text = alphabet(60).replace('\n', "");
    fs::write(&train_text, &text).unwrap();
    let steps = ["training.steps=8", "training.validate_every=4"];
    let recipe = recipe(folder.path(), LSTM, "units = \"characters\"", &steps).unwrap();
    let run = folder.path().join("run");
    let (summary, events) = train(&recipe, &run, Some(3), false).unwrap();
    assert_eq!(summary.reason, Reason::Interrupted);
    let Event::Started(started) = &events[0] else {
        panic!("{:?}", events[0])
    };
    assert!(started.validation_pairs >= 9, "{started:?}");
    for other in [text.replace('a', "b"), text[..400].to_owned()] {
        fs::write(&train_text, other).unwrap();
        let error = train(&recipe, &run, None, true).unwrap_err().to_string();
        assert!(error.contains("training data have changed"), "{error}");
    }
    fs::write(&train_text, &text).unwrap();
    assert_eq!(
        train(&recipe, &run, None, true).unwrap().0.reason,
        Reason::Limit
    );
}

/// Bits per byte are those of the tokens that are scored, also where lines are cut.
#[test]
fn bytes_of_cut_lines_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let data = "units = \"bytes\"\ntexts = \"lines\"";
    let steps = [
        "training.steps=2",
        "training.validate_every=2",
        "model.context=9",
    ];
    let recipe = recipe(folder.path(), LSTM, data, &steps).unwrap();
    let (_, events) = train(&recipe, &folder.path().join("run"), None, false).unwrap();
    let validated = events.iter().find_map(|event| match event {
        Event::Validation(metrics) => Some(metrics.clone()),
        _ => None,
    });
    let metrics = validated.unwrap();
    let Quality::Likelihood {
        bits_per_byte: Some(bits),
    } = metrics.quality
    else {
        panic!("{:?}", metrics.quality)
    };
    // A token is a byte, and the end of a line is one.
    assert!(
        (bits - metrics.loss / std::f64::consts::LN_2).abs() < 1e-9,
        "{bits} {metrics:?}"
    );
}

/// Often a token for padding was added, and the model left as it was.
#[test]
fn a_tokenizer_may_have_a_few_tokens_more_than_the_model() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden/pretrained");
    let opened = |tokens: usize| {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(golden.join("llama").join(file), folder.path().join(file)).unwrap();
        }
        let words = (0..tokens).map(|id| (format!("w{id}"), id.into()));
        let vocabulary: serde_json::Map<String, serde_json::Value> = words.collect();
        let tokenizer = serde_json::json!({
            "version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"},
        });
        let file = folder.path().join("tokenizer.json");
        fs::write(file, tokenizer.to_string()).unwrap();
        let name = folder.path().display().to_string();
        let opened = Opened::find(&name, |name| Ok(name.into())).unwrap();
        let model = opened.model(None).map(|_| ());
        (opened, model.map_err(|error| error.to_string()))
    };
    let (same, model) = opened(53);
    assert_eq!((model, same.tokenizer.without_rows()), (Ok(()), None));
    let (more, model) = opened(54);
    assert_eq!(model, Ok(()));
    let warning = more.tokenizer.without_rows().unwrap();
    assert!(warning.contains("from \"w53\" on"), "{warning}");
    assert_eq!(more.prompt("w5 w52").unwrap(), [5, 52]);
    let error = more.prompt("w5 w53").unwrap_err().to_string();
    assert!(error.contains("the token \"w53\" (53)"), "{error}");
    let (_, model) = opened(53 + 65);
    let error = model.unwrap_err();
    assert!(error.contains("tokenizer of another model"), "{error}");
}

/// A prompt goes on behind an end that it spells itself; the one that a tokenizer puts behind a text is left out.
#[test]
fn the_end_of_a_prompt_stays_where_it_was_written() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden/pretrained");
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(golden.join("gpt2").join(file), folder.path().join(file)).unwrap();
    }
    let end = "<|endoftext|>";
    let prompt = |around: serde_json::Value, text: &str| {
        let tokenizer = serde_json::json!({
            "version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"},
            "added_tokens": [{"id": 0, "content": end, "special": true, "single_word": false, "lstrip": false,
                              "rstrip": false, "normalized": false}],
            "post_processor": around,
            "model": {"type": "WordLevel", "vocab": {end: 0, "w1": 1}, "unk_token": end},
        });
        let file = folder.path().join("tokenizer.json");
        fs::write(file, tokenizer.to_string()).unwrap();
        let name = folder.path().display().to_string();
        let opened = Opened::find(&name, |name| Ok(name.into())).unwrap();
        opened.prompt(text).unwrap()
    };
    let none = || serde_json::Value::Null;
    assert_eq!(prompt(none(), "w1<|endoftext|>"), [1, 0]);
    assert_eq!(prompt(none(), "w1"), [1]);
    let text = serde_json::json!({"Sequence": {"id": "A", "type_id": 0}});
    let second = serde_json::json!({"Sequence": {"id": "B", "type_id": 1}});
    let mark = serde_json::json!({"SpecialToken": {"id": end, "type_id": 0}});
    let ended = || {
        serde_json::json!({"type": "TemplateProcessing", "single": [text, mark], "pair": [text, mark, second],
            "special_tokens": {end: {"id": end, "ids": [0], "tokens": [end]}}})
    };
    assert_eq!(prompt(ended(), "w1"), [1]);
    assert_eq!(prompt(ended(), "w1<|endoftext|>"), [1, 0]);
}
