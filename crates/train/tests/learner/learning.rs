//! Models of every kind are trained, and translate.

use std::{fs, path::Path};

use burn::tensor::Device;
use regard_evaluate::{Aer, Alignment, Gold};
use regard_train::{
    Registry,
    learner::{Event, Started},
    recipe::{Recipe, Split},
};

use super::{TINY, metrics, recipe, train, train_telling};

/// What a training in `folder` works on.
fn started(recipe: &Recipe, folder: &Path) -> Started {
    let mut found = None;
    let mut report = |event: &Event| {
        if let Event::Started(started) = event {
            found = Some(started.clone());
        }
    };
    train_telling(recipe, folder, &mut report).unwrap();
    found.unwrap()
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

/// A model to begin with that has other sizes gives the weights whose shapes are the same; which are drawn is told.
#[test]
fn weights_that_a_start_lacks_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str| folder.path().join(name);
    let few = ["training.steps=1", "data.synthetic.sentences=64"];
    let first = started(&recipe(&few), &run("first"));
    assert!(first.drawn.is_empty(), "{:?}", first.drawn);
    let start = format!("training.start={:?}", run("first"));
    let same = started(&recipe(&[few[0], few[1], &start]), &run("same"));
    assert!(same.drawn.is_empty(), "{:?}", same.drawn);
    let wide = [few[0], few[1], &start, "model.hidden=24"];
    let wide = started(&recipe(&wide), &run("wide"));
    assert!(!wide.drawn.is_empty());
    let tables = wide.drawn.iter().find(|name| name.starts_with("tables."));
    assert_eq!(tables, None, "embeddings have the same shape");
}

/// What a recipe says of tokens where something else says what they are would have no effect, and no run begins with it.
#[test]
fn keys_of_tokens_without_effect_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str| folder.path().join(name);
    let few = ["training.steps=1", "data.synthetic.sentences=64"];
    train(&recipe(&few), &run("first"), None, false).unwrap();
    let start = format!("training.start={:?}", run("first"));
    let refused = |recipe: &Recipe, expected: &str| {
        let error = train(recipe, &run("refused"), None, false).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(expected), "{message}");
        assert!(!run("refused").exists());
    };
    for (more, expected) in [
        (
            &["data.vocabulary.size=300"][..],
            "data.vocabulary.size: set, but data.synthetic says",
        ),
        (
            &["data.vocabulary.joint=false"][..],
            "data.vocabulary.joint: set, but data.synthetic says",
        ),
        (
            &["data.lowercase=true", &start][..],
            "data.lowercase: set, but training.start says",
        ),
    ] {
        refused(&recipe(&[&few[..], more].concat()), expected);
    }
    // The first run's tokens are whole symbols: no merge can be left out.
    let path = run("text.txt");
    fs::write(&path, "a b c\n".repeat(40)).unwrap();
    let file = |key: &str| format!("{key}_source = {path:?}\n{key}_target = {path:?}\n");
    let files = ["train", "valid"].map(file).concat();
    let synthetic = TINY.find("[data.synthetic]").unwrap();
    let batch = TINY.find("[batch]").unwrap();
    let text = format!("{}[data]\n{files}{}", &TINY[..synthetic], &TINY[batch..]);
    let begun = |dropout: &str| {
        let dropout = format!("data.vocabulary.dropout={dropout}");
        let overrides = [few[0].to_owned(), start.clone(), dropout];
        let parsed = Registry::default().parse(&text, "begun.toml", &overrides);
        parsed.unwrap()
    };
    refused(&begun("0.1"), "data.vocabulary.dropout: found 0.1, but");
    train(&begun("0.0"), &run("begun"), None, false).unwrap();
}

/// As many epochs as a recipe may name are no update beyond all numbers.
#[test]
fn the_nearer_limit_is_the_last_update() {
    let folder = tempfile::tempdir().unwrap();
    let epochs = format!("training.epochs={}", i64::MAX);
    let recipe = recipe(&[&epochs, "training.steps=1", "data.synthetic.sentences=64"]);
    assert_eq!(started(&recipe, folder.path()).last_update, Some(1));
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
