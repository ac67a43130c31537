//! Measures of attention at each validation (`validation.diagnose`): every task has them, they are those of the kinds of attention that
//! its model has, and they change nothing else, also in a run that was stopped and resumed.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use burn::tensor::Device;
use regard_images::Image;
use regard_nn::weights;
use regard_trace::diagnose::log;
use regard_train::ranks::Alone;
use regard_train::{
    Registry,
    learner::{Event, Reason, Run},
};
use serde_json::Value;
use tempfile::tempdir;

/// Trains in `folder`; asks to stop once update `stop_at` is reported.
fn train(
    recipe: &str,
    diagnose: bool,
    folder: &Path,
    stop_at: Option<u64>,
    resume: bool,
) -> Reason {
    let overrides: &[&str] = if diagnose {
        &["validation.diagnose=3"]
    } else {
        &[]
    };
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    let recipe = Registry::default().parse(recipe, "recipe.toml", &overrides);
    let stop = AtomicBool::new(false);
    let device = Device::flex();
    let run = Run {
        folder,
        device: &device,
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
    let summary = match resume {
        false => Registry::default().train(&recipe.unwrap(), &run, &mut report),
        true => Registry::default().resume(&[], &run, &mut report),
    };
    summary.unwrap().reason
}

/// The lines of the log without what depends on the clock, and without the measures.
fn others(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let line = |line: &str| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        let object = value.as_object_mut().unwrap();
        for key in ["seconds", "tokens_per_second", "attention"] {
            object.remove(key);
        }
        value
    };
    text.lines().map(line).collect()
}

/// Trains `recipe` as it is, and with measures in two parts: all else must be the same. Each kind of attention is named in `expected` with
/// its layers and its heads.
fn check(name: &str, recipe: &str, expected: &[(&str, usize, usize)]) {
    let folder = tempdir().unwrap();
    let recipe = format!(
        "{recipe}\n[batch]\nsentences = 8\n[training]\nsteps = 6\nlog_every = 1\nvalidate_every = 3\n"
    );
    let [plain, measured] = ["plain", "measured"].map(|part| folder.path().join(part));
    assert_eq!(train(&recipe, false, &plain, None, false), Reason::Limit);
    let stopped = train(&recipe, true, &measured, Some(4), false);
    assert_eq!(stopped, Reason::Interrupted, "{name}");
    assert_eq!(train(&recipe, true, &measured, None, true), Reason::Limit);
    assert_eq!(others(&plain), others(&measured), "{name}");
    let content = |run: &Path| {
        let file = fs::read(run.join("model.safetensors")).unwrap();
        weights::from_bytes(&file).unwrap()
    };
    assert_eq!(content(&plain), content(&measured), "{name}");

    let found = log::read(&measured.join(log::FILE));
    if expected.is_empty() {
        let error = found.unwrap_err().to_string();
        assert!(error.contains("validation.diagnose"), "{name}: {error}");
        return;
    }
    let found = found.unwrap();
    assert_eq!(found.len(), 2, "{name}");
    for validation in found {
        let layers: Vec<(&str, usize, usize)> = expected
            .iter()
            .flat_map(|&(map, layers, heads)| (0..layers).map(move |layer| (map, layer, heads)))
            .collect();
        let measured: Vec<_> = (validation.attention.iter())
            .map(|of| (of.map.as_str(), of.layer, of.heads))
            .collect();
        assert_eq!(measured, layers, "{name}");
        for of in &validation.attention {
            assert!(of.entropy.is_some_and(|nats| nats >= 0.0), "{name}: {of:?}");
            let diagonality = of
                .diagonality
                .is_none_or(|share| (0.0..=1.0).contains(&share));
            assert!(
                diagonality && of.dead + of.sinks <= of.heads,
                "{name}: {of:?}"
            );
        }
    }
}

#[test]
fn translators() {
    let data = "[data.synthetic]\ntask = \"reverse\"\nsymbols = 6\nmin_length = 2\nmax_length = 5\nsentences = 100\nvalid_sentences = 5\n";
    let transformer = "[model]\nkind = \"transformer\"\nd_model = 16\nheads = 2\nencoder_layers = 2\ndecoder_layers = 2\nfeed_forward = 16\n";
    let kinds = [
        ("decoder.cross", 2, 2),
        ("decoder.self", 2, 2),
        ("encoder.self", 2, 2),
    ];
    check("transformer", &format!("{transformer}{data}"), &kinds);
    let small = "embedding = 8\nhidden = 8\n";
    for (kind, expected) in [
        ("rnnsearch", &[("decoder.cross", 1, 1)][..]),
        ("seq2seq", &[]),
    ] {
        check(
            kind,
            &format!("[model]\nkind = \"{kind}\"\n{small}{data}"),
            expected,
        );
    }
}

/// An example with more weights than fit in memory is left out of the measures, and ends no training.
#[test]
fn an_example_that_is_too_long_is_left_out() {
    let folder = tempdir().unwrap();
    let short = "a b\nb a c\n";
    let long = format!("{short}{}\n", "a b ".repeat(600));
    let files = [
        ("train", short.repeat(8)),
        ("short", short.to_owned()),
        ("long", long),
    ];
    let [text, short, long] = files.map(|(name, text)| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    });
    let attention = |name: &str, valid: &Path| {
        let recipe = format!(
            r#"
            [model]
            kind = "transformer"
            d_model = 32
            heads = 16
            encoder_layers = 16
            decoder_layers = 1
            feed_forward = 16
            [data]
            train_source = {text:?}
            train_target = {text:?}
            valid_source = {valid:?}
            valid_target = {valid:?}
            [batch]
            sentences = 8
            [training]
            steps = 1
            [validation]
            max_sentences = 2
            [translate]
            max_length = {{ absolute = 2 }}
            "#
        );
        let run = folder.path().join(name);
        assert_eq!(train(&recipe, true, &run, None, false), Reason::Limit);
        let mut found = log::read(&run.join(log::FILE)).unwrap();
        found.swap_remove(0).attention
    };
    assert_eq!(attention("with", &long), attention("without", &short));
}

#[test]
fn classifiers_of_sentences() {
    let folder = tempdir().unwrap();
    let lines = |count: usize| -> String {
        let line = |i: usize| ["a very good film\t1\n", "the story was bad\t0\n"][i % 2];
        (0..count).map(line).collect()
    };
    let [train, valid] = [("train.tsv", 40), ("valid.tsv", 6)].map(|(name, count)| {
        let path = folder.path().join(name);
        fs::write(&path, lines(count)).unwrap();
        path
    });
    let data = format!(
        "[data]\nvocabulary = {{ size = 300 }}\n[data.labelled]\ntrain = {train:?}\nvalid = {valid:?}\n"
    );
    let transformer = "[model]\nkind = \"transformer-classifier\"\n[model.transformer]\nd_model = 16\nheads = 2\nlayers = 2\n";
    check(
        "transformer",
        &format!("{transformer}{data}"),
        &[("self", 2, 2)],
    );
    let attentive = "[model]\nkind = \"self-attentive\"\nembedding = 8\nhidden = 8\nhops = 3\n";
    check(
        "self-attentive",
        &format!("{attentive}{data}"),
        &[("attention", 1, 3)],
    );
    let lstm = "[model]\nkind = \"lstm\"\nembedding = 8\nhidden = 8\n";
    check("lstm", &format!("{lstm}{data}"), &[]);
}

#[test]
fn language_models() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("train.txt");
    fs::write(
        &path,
        "to be or not to be, that is the question\n".repeat(40),
    )
    .unwrap();
    let data = format!("[data.text]\ntrain = {path:?}\nunits = \"characters\"\n");
    let transformer = |more: &str| {
        format!(
            "[model]\nkind = \"transformer-lm\"\ncontext = 16\n{more}[model.transformer]\nd_model = 16\nlayers = 2\nheads = 2\n{data}"
        )
    };
    check("causal", &transformer(""), &[("decoder.self", 2, 2)]);
    let masked = transformer("objective = \"masked\"\n");
    check("masked", &masked, &[("encoder.self", 2, 2)]);
    let lstmn = "[model]\nkind = \"lstmn-lm\"\nembedding = 8\nhidden = 8\nattention_dimension = 8\ncontext = 16\n";
    check(
        "lstmn",
        &format!("{lstmn}{data}"),
        &[("decoder.self", 1, 1)],
    );
}

#[test]
fn classifiers_of_images() {
    let folder = tempdir().unwrap();
    for (class, bright) in [("dark", 40), ("bright", 200)] {
        let images = folder.path().join(class);
        fs::create_dir_all(&images).unwrap();
        for index in 0..10u8 {
            let pixels = (0..8 * 8 * 3).map(|at| bright + (at % 7) as u8 + index);
            let image = Image::new(8, 8, 3, pixels.collect()).unwrap();
            image.save_png(images.join(format!("{index}.png"))).unwrap();
        }
    }
    let data = format!(
        "[data.images]\ntrain = {:?}\nvalid_share = 0.3\n",
        folder.path()
    );
    let vit = "[model]\nkind = \"vit\"\npatch = 4\nd_model = 16\nlayers = 2\nheads = 2\n";
    check("vit", &format!("{vit}{data}"), &[("self", 2, 2)]);
    // Gates of channels are no weights that share 1.
    let resnet =
        "[model]\nkind = \"resnet\"\nwidth = 0.25\nattention = { kind = \"se\", reduction = 4 }\n";
    check("resnet", &format!("{resnet}{data}"), &[]);
}

#[test]
fn models_of_scenes() {
    let data = "[data.scenes]\ntrain = 32\nvalid = 4\ntest = 4\nsize = 32\n";
    let backbone = "[model.backbone]\nchannels = 4\nstages = 2\n";
    for (kind, sizes, expected) in [
        (
            "captioner",
            "embedding = 8\nhidden = 8\n",
            ("decoder.cross", 1, 1),
        ),
        ("vqa", "hidden = 8\n", ("attention", 1, 1)),
        (
            "detr",
            "d_model = 16\nheads = 2\nencoder_layers = 1\ndecoder_layers = 2\nqueries = 9\n",
            ("decoder.cross", 2, 2),
        ),
    ] {
        let recipe = format!("[model]\nkind = \"{kind}\"\n{sizes}{backbone}{data}");
        check(kind, &recipe, &[expected]);
    }
}
