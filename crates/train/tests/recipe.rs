//! Recipes as people write them, mistakes included.

use std::path::PathBuf;

use proptest::prelude::*;
use regard_models::{
    GnmtConfig, LuongConfig, RnnSearchConfig, Seq2SeqConfig, TransformerConfig,
    attention::{LocalConfig, NormalizerConfig, ScoreConfig, SigmoidConfig, SourceMaskConfig},
    config::{Config, ConfigError, Place, nearest},
    image::CaptionerConfig,
    language::{LstmnLmConfig, TransformerLmConfig},
    luong::LuongScore,
    sentence::{LstmConfig, LstmnConfig, SelfAttentiveConfig},
    tables::Tie,
};
use regard_train::Registry;
use regard_train::corpus::{LongLines, Task};
use regard_train::recipe::{Every, Model, Optimizer, Recipe, Schedule, Split};
use regard_train::tasks::{Captioning, Detection, Translation, VisualQuestions};

const RECIPE: &str = r#"# a comment
[model]
kind = "luong"
hidden = 128
score = "dot"
tie = "target"

[model.dropout]
output = 0.5

[data]
train_source = "train.en"
train_target = "train.de"
valid_source = "val.en"
valid_target = "val.de"
lowercase = true
vocabulary = { size = 4000, joint = false }

[batch]
tokens = 2048

[optimizer]
kind = "sgd"
momentum = 0.9

[schedule]
kind = "inverse-square-root"
warmup = 100

[training]
steps = 1000
minutes = 2
validate_every = 250
scheduled_sampling.final_probability = 0.1
"#;

/// Every kind of model.
fn kinds() -> Vec<&'static str> {
    Registry::default().kinds().map(|kind| kind.name).collect()
}

fn overridden(text: &str, overrides: &[&str]) -> Result<Recipe, ConfigError> {
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    Registry::default().parse(text, "r.toml", &overrides)
}

fn message(text: &str, overrides: &[&str]) -> String {
    overridden(text, overrides).unwrap_err().to_string()
}

/// The message for the recipe with `from` replaced by `to`.
fn with(from: &str, to: &str) -> String {
    assert!(RECIPE.contains(from), "{from}");
    message(&RECIPE.replacen(from, to, 1), &[])
}

#[test]
fn a_recipe_is_read_and_the_rest_is_default() {
    let recipe = overridden(RECIPE, &[]).unwrap();
    let model = recipe.model.config::<LuongConfig>().unwrap();
    assert_eq!((model.hidden, model.embedding), (128, 256));
    assert_eq!((model.score, model.tie), (LuongScore::Dot, Tie::Target));
    assert_eq!((model.dropout.output, model.dropout.embedding), (0.5, 0.2));
    assert_eq!(recipe.data.train_source, Some(PathBuf::from("train.en")));
    assert_eq!(recipe.data.vocabulary.size, 4000);
    assert_eq!(recipe.batch.budget().tokens, Some(2048));
    assert_eq!(recipe.batch.budget().sentences, None);
    assert!(matches!(&recipe.optimizer, Optimizer::Sgd(sgd) if sgd.momentum == 0.9));
    assert_eq!(recipe.optimizer.clip_norm(), Some(5.0));
    assert!(matches!(&recipe.schedule, Schedule::InverseSquareRoot(s) if s.warmup == 100));
    assert_eq!(recipe.training.minutes, Some(2.0));
    assert_eq!(recipe.training.validate_every, Every::Steps(250));
    let sampling = recipe.training.scheduled_sampling.as_ref().unwrap();
    assert_eq!(
        (sampling.final_probability, sampling.decay_steps),
        (0.1, 5_000)
    );
    assert_eq!(recipe.translate.beam, 5);
    Registry::default().check(&recipe).unwrap();
}

#[test]
fn unknown_keys_name_the_nearest() {
    for (from, to, expected) in [
        (
            "hidden",
            "hiden",
            "r.toml:4:1: unknown key model.hiden; did you mean hidden?",
        ),
        (
            "output",
            "outptu",
            "r.toml:9:1: unknown key model.dropout.outptu; did you mean output?",
        ),
        (
            "[batch]",
            "[bacth]",
            "r.toml:19:2: unknown key bacth; did you mean batch?",
        ),
        (
            "vocabulary = { size",
            "vocabulary = { sise",
            "r.toml:17:16: unknown key data.vocabulary.sise; did you mean size?",
        ),
        (
            "momentum = 0.9",
            "label_smoothing = 0.1",
            "r.toml:24:1: unknown key optimizer.label_smoothing; did you mean \
             training.label_smoothing?",
        ),
        (
            "momentum = 0.9",
            "beta1 = 0.9",
            "r.toml:24:1: unknown key optimizer.beta1; did you mean kind = \"adam\"?",
        ),
        (
            "momentum = 0.9",
            "xyzzy = 0.9",
            "r.toml:24:1: unknown key optimizer.xyzzy; known here: kind, momentum, nesterov, \
             weight_decay, clip_norm",
        ),
    ] {
        assert_eq!(with(from, to), expected);
    }
}

#[test]
fn the_first_unknown_key_of_the_text_is_named() {
    let text = RECIPE.replacen("hidden = 128", "zzz = 1\naaa = 2", 1);
    assert!(message(&text, &[]).starts_with("r.toml:4:1: unknown key model.zzz"));
}

#[test]
fn wrong_types_say_what_was_expected() {
    for (from, to, expected) in [
        (
            "128",
            "\"128\"",
            "r.toml:4:10: model.hidden: found \"128\", expected a whole number of at least 0",
        ),
        (
            "128",
            "-3",
            "r.toml:4:10: model.hidden: found -3, expected a whole number of at least 0",
        ),
        (
            "128",
            "1.5",
            "r.toml:4:10: model.hidden: found 1.5, expected a whole number of at least 0",
        ),
        (
            "128",
            "[1]",
            "r.toml:4:10: model.hidden: found a list, expected a whole number of at least 0",
        ),
        (
            "0.5",
            "true",
            "r.toml:9:10: model.dropout.output: found true, expected a number",
        ),
        (
            "true",
            "1",
            "r.toml:16:13: data.lowercase: found 1, expected true or false",
        ),
        (
            "{ size = 4000, joint = false }",
            "4000",
            "r.toml:17:14: data.vocabulary: found 4000, expected a table",
        ),
        (
            "\"train.en\"",
            "1",
            "r.toml:12:16: data.train_source: found 1, expected a path (a string)",
        ),
        (
            "\"dot\"",
            "\"dott\"",
            "r.toml:5:9: model.score: found \"dott\" (did you mean \"dot\"?), expected one of \
             \"dot\", \"general\", \"concat\", \"location\"",
        ),
        (
            "250",
            "\"epok\"",
            "r.toml:33:18: training.validate_every: found \"epok\", expected a number of updates \
             or \"epoch\"",
        ),
        (
            "250",
            "-1",
            "r.toml:33:18: training.validate_every: found -1, expected a number of updates or \"epoch\"",
        ),
        (
            "\"sgd\"",
            "3",
            "r.toml:23:8: optimizer.kind: found a whole number, expected one of \"adam\", \"adamw\", \"adadelta\", \"sgd\"",
        ),
    ] {
        assert_eq!(with(from, to), expected);
    }
    assert_eq!(
        message("batch = 3\n[model]\nkind = \"luong\"", &[]),
        "r.toml:1:9: batch: found a whole number, expected a section [batch]"
    );
    assert!(matches!(
        overridden("model = 3", &[]),
        Err(ConfigError::WrongType { .. }) | Err(ConfigError::Value { .. })
    ));
}

#[test]
fn kinds_are_checked() {
    assert_eq!(
        with("\"luong\"", "\"loung\""),
        "r.toml:3:8: model.kind: found \"loung\" (did you mean \"luong\"?); expected one of \
         \"rnnsearch\", \"luong\", \"transformer\", \"seq2seq\", \"lstmn\", \"lstm\", \"self-attentive\", \"gnmt\", \"lstmn-translation\", \"transformer-lm\", \"lstm-lm\", \"lstmn-lm\", \"transformer-classifier\", \"resnet\", \"residual-attention\", \"vit\", \"vqa\", \"detr\", \"captioner\""
    );
    assert!(with("kind = \"luong\"\n", "").starts_with("r.toml:2:2: model.kind: missing"));
    assert!(message("", &[]).starts_with("r.toml: model.kind: missing"));
}

#[test]
fn values_out_of_range_are_refused() {
    for (from, to, expected) in [
        (
            "0.5",
            "1.0",
            "r.toml:9:1: model.dropout.output: found 1; expected at least 0 and below 1",
        ),
        (
            "0.5",
            "nan",
            "r.toml:9:1: model.dropout.output: found NaN; expected",
        ),
        (
            "128",
            "0",
            "r.toml:4:1: model.hidden: found 0; expected 1 to",
        ),
        (
            "size = 4000",
            "size = 100",
            "r.toml:17:16: data.vocabulary.size: found 100; expected 260",
        ),
        (
            "tokens = 2048",
            "tokens = 0",
            "r.toml:20:1: batch.tokens: found 0",
        ),
        (
            "momentum = 0.9",
            "nesterov = true",
            "r.toml:24:1: optimizer.nesterov: found true with",
        ),
        (
            "momentum = 0.9",
            "clip_norm = -1",
            "r.toml:24:1: optimizer.clip_norm: found -1",
        ),
        (
            "\"sgd\"\nmomentum = 0.9",
            "\"adam\"\nepsilon = 1e-50",
            "r.toml:24:1: optimizer.epsilon: found 0.0",
        ),
        (
            "\"sgd\"\nmomentum = 0.9",
            "\"adadelta\"\nepsilon = 1e39",
            "r.toml:24:1: optimizer.epsilon: found 1000",
        ),
        (
            "warmup = 100",
            "warmup = 0",
            "r.toml:28:1: schedule.warmup: found 0; expected at least 1",
        ),
        (
            "warmup = 100",
            "learning_rate = 0",
            "r.toml:28:1: schedule.learning_rate: found 0",
        ),
        (
            "warmup = 100",
            "learning_rate = inf",
            "r.toml:28:1: schedule.learning_rate: found inf",
        ),
        (
            "steps = 1000\nminutes = 2",
            "",
            "r.toml:30:2: training: found no limit",
        ),
        (
            "minutes = 2",
            "minutes = 0",
            "r.toml:32:1: training.minutes: found 0",
        ),
        ("250", "0", "r.toml:33:1: training.validate_every: found 0"),
        (
            "= 0.1",
            "= 1.1",
            "r.toml:34:20: training.scheduled_sampling.final_probability: found 1.1",
        ),
        (
            "valid_target = \"val.de\"\n",
            "",
            "r.toml:11:2: data.valid_target: missing, though data.valid_source is set",
        ),
        (
            "train_source = \"train.en\"\ntrain_target = \"train.de\"\n",
            "",
            "r.toml:11:2: data.train_source: missing",
        ),
        (
            "tie = \"target\"",
            "tie = \"all\"",
            "r.toml:6:1: model.tie: found \"all\" with data.vocabulary.joint = false",
        ),
        (
            "score = \"dot\"",
            "score = \"location\"\nattention = \"local-p\"",
            "r.toml:5:1: model.score: found \"location\" with local",
        ),
        (
            "[batch]",
            "[data.synthetic]\n[batch]",
            "r.toml:12:1: data.train_source: set together with data.synthetic",
        ),
        (
            "[batch]",
            "[validation]\nbeam = 0\n[batch]",
            "r.toml:20:1: validation.beam: found 0; expected 1 to 1000",
        ),
        (
            "[batch]",
            "[translate]\nn_best = 6\n[batch]",
            "r.toml:20:1: translate.n_best: found 6; expected 1 to translate.beam",
        ),
        (
            "[batch]",
            "[translate.max_length]\nfactor = 0\n[batch]",
            "r.toml:20:1: translate.max_length.factor: found 0",
        ),
    ] {
        let message = with(from, to);
        assert!(message.starts_with(expected), "{message}\n{expected}");
    }
    let seq2seq = RECIPE
        .replace("\"luong\"", "\"seq2seq\"\nlayers = 2")
        .replace("score = \"dot\"", "");
    assert!(message(&seq2seq, &[]).starts_with("r.toml:4:1: model.layers: found 2 with cell"));
    let seed = format!("training.seed={}", u64::MAX);
    assert!(message(RECIPE, &[&seed]).contains("training.seed"));
}

#[test]
fn a_program_is_held_to_the_same_ranges() {
    let mut recipe = Registry::default().example("seq2seq").unwrap();
    Registry::default().check(&recipe).unwrap();
    recipe.translate.beam = 0;
    let error = Registry::default().check(&recipe).unwrap_err();
    assert!(matches!(
        &error,
        ConfigError::Value {
            place: Place::Program,
            ..
        }
    ));
    assert!(
        error
            .to_string()
            .starts_with("recipe: translate.beam: found 0"),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn a_path_that_is_not_unicode_cannot_be_written() {
    use std::os::unix::ffi::OsStrExt as _;
    let mut recipe = Registry::default().example("seq2seq").unwrap();
    recipe.data.train_source = Some(std::ffi::OsStr::from_bytes(b"\xff").into());
    assert!(matches!(recipe.to_toml(), Err(ConfigError::Write { .. })));
    assert!(matches!(
        Registry::default().commented(&recipe),
        Err(ConfigError::Write { .. })
    ));
}

#[test]
fn what_is_not_toml_is_named_with_its_place() {
    assert!(with("[batch]", "[batch").starts_with("r.toml:19:7: not valid TOML"));
    let junk = with("128", "128 !");
    assert!(junk.starts_with("r.toml:4:10: not valid TOML"), "{junk}");
    let twice = with("score = \"dot\"", "hidden = 5");
    assert!(
        twice.starts_with("r.toml:5:1: not valid TOML: duplicate key"),
        "{twice}"
    );

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("latin1.toml");
    std::fs::write(&path, b"[model]\n# Fl\xfcgel\n").unwrap();
    let error = Registry::default()
        .load(&path, &[])
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("latin1.toml:2:5: not valid TOML: byte offset 12 is not UTF-8"),
        "{error}"
    );
    let error = Registry::default()
        .load(folder.path().join("none.toml"), &[])
        .unwrap_err();
    assert!(matches!(error, ConfigError::Read { .. }));
    assert!(error.to_string().contains("none.toml"), "{error}");
}

#[test]
fn overrides_are_laid_over_the_file() {
    let recipe = overridden(
        RECIPE,
        &[
            "model.hidden=64",
            "model.dropout.output = 0.25",
            "data.target_language=fr",
            "data.test_source=a=b.en",
            "data.test_target=\"7\"",
            "data.filter={max_ratio=3, long_lines=\"cut\"}",
            "training.validate_every=epoch",
            "validation.tokenizer=intl",
            "model.hidden=65",
        ],
    )
    .unwrap();
    let model = recipe.model.config::<LuongConfig>().unwrap();
    assert_eq!((model.hidden, model.dropout.output), (65, 0.25));
    assert_eq!(recipe.data.target_language, "fr");
    assert_eq!(recipe.data.test_source, Some(PathBuf::from("a=b.en")));
    assert_eq!(recipe.data.test_target, Some(PathBuf::from("7")));
    assert_eq!(recipe.data.filter.max_ratio, Some(3.0));
    assert_eq!(recipe.data.filter.long_lines, LongLines::Cut);
    assert_eq!(recipe.training.validate_every, Every::Epoch);

    let changed = overridden(RECIPE, &["model.kind=seq2seq"]);
    assert!(matches!(changed, Err(ConfigError::UnknownKey { key, .. }) if key == "model.score"));
}

#[test]
fn score_normalizer_and_mask_are_keys() {
    const START: &str = "[model]\nkind = \"rnnsearch\"\n";
    const REST: &str = "\n[data.synthetic]\ntask = \"copy\"\n[training]\nepochs = 1";
    let read = |model: &str, overrides: &[&str]| {
        let kind = |kind| START.replace("rnnsearch", kind);
        let text = match model.split_once('!') {
            Some((name, model)) => kind(name) + model + REST,
            None => format!("{START}{model}{REST}"),
        };
        overridden(&text, overrides)
    };
    let recipe = read(
        "score = \"general\"\nmask.kind = \"local-m\"",
        &["model.normalizer=sparsemax"],
    );
    let recipe = recipe.unwrap();
    let model = recipe.model.config::<RnnSearchConfig>().unwrap();
    assert_eq!(model.score, ScoreConfig::General);
    assert_eq!(model.normalizer, NormalizerConfig::Sparsemax);
    assert_eq!(
        model.mask,
        SourceMaskConfig::LocalM(LocalConfig { window: 10 })
    );
    let changed = read(
        "normalizer = \"softmax\"",
        &["model.normalizer={kind=\"sigmoid\", bias=-1}"],
    );
    // A whole number is accepted where a float is expected.
    let changed = changed.unwrap();
    let model = changed.model.config::<RnnSearchConfig>().unwrap();
    assert_eq!(
        model.normalizer,
        NormalizerConfig::Sigmoid(SigmoidConfig { bias: -1.0 })
    );
    for recipe in [recipe, changed] {
        assert_eq!(overridden(&recipe.to_toml().unwrap(), &[]).unwrap(), recipe);
        let commented = Registry::default().commented(&recipe).unwrap();
        assert_eq!(overridden(&commented, &[]).unwrap(), recipe);
    }
    for (model, expected) in [
        (
            "normalizer = \"hard\"",
            "r.toml:3:14: model.normalizer: found \"hard\" (did you mean \"hard-straight-through\"?); expected one of \"softmax\", \"sink\"",
        ),
        (
            "normalizer = { kind = \"sparsemax\", bias = 1.0 }",
            "r.toml:3:36: unknown key model.normalizer.bias; did you mean kind = \"sigmoid\"?",
        ),
        (
            "score = \"dot\"",
            "r.toml:3:1: model.score: found \"dot\", which compares vectors of one size: this decoder's states have 256 numbers, its annotations 512; expected \"additive\" or \"general\"",
        ),
        (
            "transformer!mask = { kind = \"block\", size = 0 }",
            "r.toml:3:26: model.mask.size: found 0; expected 1 to 1048576",
        ),
        (
            "transformer!mask = \"local-m\"",
            "r.toml:3:8: model.mask: found \"local-m\"; expected one of \"none\", \"longformer\", \"block\", \"chunked\"",
        ),
        (
            "transformer!cross_normalizer = \"monotonic\"",
            "r.toml:3:1: model.cross_normalizer: found \"monotonic\"; expected one whose rows",
        ),
    ] {
        let error = read(model, &[]).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}\n{expected}");
    }
    for (kind, key) in [
        ("rnnsearch", "normalizer = \"softmax\""),
        ("luong", "normalizer = \"softmax\""),
        ("gnmt", "score = \"additive\""),
        ("lstmn-translation", "mask = \"none\""),
        ("transformer", "# decoder_mask = \"none\""),
    ] {
        let registry = Registry::default();
        let text = registry
            .commented(&registry.example(kind).unwrap())
            .unwrap();
        assert!(text.contains(&format!("\n{key}\n")), "{text}");
        assert!(
            text.contains("\n#  \"sparsemax\": The nearest weights that sum to 1"),
            "{text}"
        );
        assert!(
            text.contains("\n#    bias (-3.0): Added to every score"),
            "{text}"
        );
    }
}

#[test]
fn mistakes_in_overrides_are_named_as_such() {
    for (text, expected) in [
        (
            "model.hiden=3",
            "--set model.hiden=3: unknown key model.hiden; did you mean hidden?",
        ),
        (
            "training.epochs=many",
            "--set training.epochs=many: training.epochs: found \"many\"",
        ),
        (
            "training.epochs=",
            "--set training.epochs=: training.epochs: found \"\"",
        ),
        (
            "training.threads=0",
            "--set training.threads=0: training.threads: found 0",
        ),
        (
            "model.dropout={output=2}",
            "--set model.dropout={output=2}: model.dropout.output: found 2",
        ),
        (
            "model.dropout={outptu=0}",
            "--set model.dropout={outptu=0}: unknown key model.dropout.outptu",
        ),
        (
            "modle.hidden=3",
            "--set modle.hidden=3: unknown key modle; did you mean model?",
        ),
        (
            "model.kind=x",
            "--set model.kind=x: model.kind: found \"x\"",
        ),
        (
            "data.lowercase=yes",
            "--set data.lowercase=yes: data.lowercase: found \"yes\"",
        ),
        ("training", "--set training: there is no \"=\""),
        (
            "seed=1",
            "--set seed=1: the key is not of the form section.key",
        ),
        (
            "training.=1",
            "--set training.=1: the key is not of the form section.key",
        ),
        (
            "data.lowercase.x=1",
            "--set data.lowercase.x=1: lowercase is a value, not a section",
        ),
    ] {
        let message = message(RECIPE, &[text]);
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn the_commented_recipe_explains_every_key() {
    for kind in kinds() {
        let recipe = Registry::default().example(kind).unwrap();
        let text = Registry::default().commented(&recipe).unwrap();
        assert_eq!(overridden(&text, &[]).unwrap(), recipe);
        // Every commented-out key is a real one: with all of them switched on, no key is unknown.
        let all_on: String = text
            .lines()
            .map(|line| {
                let bare = line.strip_prefix("# ").unwrap_or(line);
                let off = bare.split_once(" = ").is_some_and(|(key, _)| {
                    key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
                }) || bare.starts_with('[');
                format!("{}\n", if off { bare } else { line })
            })
            .collect();
        let on = overridden(&all_on, &[]);
        let registry = Registry::default();
        let both = match () {
            () if registry.serves::<Translation>(&recipe) => Some("data.train_source"),
            () if registry.serves::<Captioning>(&recipe) => Some("data.captions"),
            () if registry.serves::<VisualQuestions>(&recipe) => Some("data.questions"),
            () if registry.serves::<Detection>(&recipe) => Some("data.objects"),
            () => None,
        };
        match both {
            Some(files) => assert!(
                matches!(&on, Err(ConfigError::Value { key, .. }) if key == files),
                "files and a synthetic task or scenes at once are the only fault: {on:?}"
            ),
            // Keys that such a model does not read are not in its example.
            None => assert!(on.is_ok(), "{on:?}"),
        }
        let lines: Vec<&str> = text.lines().collect();
        for (index, line) in lines.iter().enumerate() {
            if line.contains(" = ") {
                assert!(
                    lines[index - 1].starts_with("# "),
                    "{line} is not explained"
                );
            }
        }
    }
    assert!(Registry::default().example("perceptron").is_none());
}

#[test]
fn examples_show_the_questions_of_scenes_where_they_are_read() {
    for (kind, asks) in [("vqa", true), ("captioner", false), ("detr", false)] {
        let registry = Registry::default();
        let example = registry.example(kind).unwrap();
        let text = registry.commented(&example).unwrap();
        assert_eq!(text.contains("\nquestions = 4\n"), asks, "{text}");
        assert!(text.contains("\n[data.scenes]\n"), "{text}");
    }
}

#[test]
fn synthetic_data_come_without_files() {
    let text = "[model]\nkind = \"rnnsearch\"\n[data.synthetic]\ntask = \"sort\"\nsentences = 30\n\
                valid_sentences = 20\n[training]\nepochs = 1";
    let recipe = overridden(text, &[]).unwrap();
    assert_eq!(recipe.data.synthetic.as_ref().unwrap().task, Task::Sort);
    let train = recipe.data.load(Split::Train, 1).unwrap().unwrap();
    let valid = recipe.data.load(Split::Valid, 1).unwrap().unwrap();
    assert_eq!((train.text.len(), valid.text.len()), (30, 20));
    assert_eq!(train.alignments.as_ref().unwrap().len(), 30);
    assert_ne!(train.text.source()[..20], *valid.text.source());
    assert_eq!(recipe.data.load(Split::Train, 1).unwrap().unwrap(), train);
    let tokenizers = recipe.data.tokenizers(&train.text).unwrap();
    assert!(tokenizers.is_joint() && tokenizers.source().is_word_level());
}

#[test]
fn files_are_read_as_the_recipe_says() {
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = Registry::default().example("rnnsearch").unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    recipe.data.train_source = write("train.en", "A dog\nTwo dogs\n");
    recipe.data.train_target = write("train.de", "Ein Hund\nZwei Hunde\n");
    recipe.data.vocabulary.joint = false;
    recipe.data.lowercase = true;
    let train = recipe.data.load(Split::Train, 1).unwrap().unwrap();
    assert_eq!(train.text.target(), ["Ein Hund", "Zwei Hunde"]);
    assert!(train.alignments.is_none());
    assert!(recipe.data.load(Split::Test, 1).unwrap().is_none());
    let tokenizers = recipe.data.tokenizers(&train.text).unwrap();
    assert!(!tokenizers.is_joint());
    let target = tokenizers.target();
    assert_eq!(
        target.decode(&target.encode("Ein HUND").unwrap()).unwrap(),
        "ein hund"
    );
    let error = recipe.data.load(Split::Valid, 1).unwrap_err().to_string();
    assert!(error.contains("val.en"), "{error}");
}

#[test]
fn translation_settings_reach_the_filter() {
    let text = format!("{RECIPE}\n[translate]\nlong_lines = \"error\"\nmax_source_tokens = 9\n");
    let filter = overridden(&text, &[]).unwrap().translate.length_filter();
    assert_eq!(
        (filter.max_tokens, filter.long_lines),
        (Some(9), LongLines::Error)
    );
}

proptest! {
    #[test]
    fn a_written_recipe_is_read_back_the_same(
        kind in prop::sample::select(kinds()),
        size in 1usize..5_000,
        fraction in 0.0f64..1.0,
        rate in 1e-12f64..1e3,
        seed in 0u64..=i64::MAX as u64,
        limits in (prop::option::of(1u64..1_000), prop::option::of(1u64..1_000), 1e-3f64..1e4),
        path in "\\PC{1,20}",
        every in prop::option::of(1u64..10_000),
    ) {
        let mut recipe = Registry::default().example(kind).unwrap();
        let model = &mut recipe.model;
        fn change<C: Config>(model: &mut Model, change: impl FnOnce(&mut C)) {
            if let Some(config) = model.config_mut::<C>() {
                change(config);
            }
        }
        change::<RnnSearchConfig>(model, |c| { c.hidden = size; c.dropout.output = fraction; });
        change::<LuongConfig>(model, |c| { c.window = size; c.dropout.layers = fraction; });
        change::<TransformerConfig>(model, |c| { c.feed_forward = size; c.dropout.residual = fraction; });
        change::<Seq2SeqConfig>(model, |c| { c.embedding = size; c.dropout.embedding = fraction; });
        change::<LstmnConfig>(model, |c| { c.hidden = size; c.dropout.word = fraction; });
        change::<LstmConfig>(model, |c| { c.readout = size; c.dropout.layers = fraction; });
        change::<SelfAttentiveConfig>(model, |c| { c.hops = size; c.penalty = fraction; });
        change::<LstmnLmConfig>(model, |c| { c.context = size + 1; c.dropout.output = fraction; });
        change::<TransformerLmConfig>(model, |c| { c.context = size + 1; c.transformer.dropout.residual = fraction; });
        change::<CaptionerConfig>(model, |c| { c.embedding = size; c.dropout = fraction; });
        change::<GnmtConfig>(model, |c| { c.layers = size % 1000 + 2; c.dropout.annotation = fraction; });
        let file = Some(PathBuf::from(&path));
        recipe.schedule = Schedule::Constant(regard_train::recipe::Constant { learning_rate: rate });
        recipe.optimizer = Optimizer::Adadelta(Default::default());
        recipe.training.seed = seed;
        recipe.training.epochs = limits.0;
        recipe.training.steps = limits.1;
        recipe.training.minutes = Some(limits.2);
        recipe.training.tokens = limits.1;
        recipe.training.validate_every = every.map_or(Every::Epoch, Every::Steps);
        let data = &mut recipe.data;
        match (&mut data.labelled, &mut data.text, &mut data.images, &mut data.scenes) {
            (Some(labelled), ..) => labelled.test = file,
            (_, Some(text), ..) => text.valid = file,
            (_, _, Some(images), _) => images.test = file,
            (.., Some(scenes)) => scenes.texture = fraction,
            _ => {
                recipe.training.scheduled_sampling = limits.0.map(|_| Default::default());
                recipe.data.test_source = file.clone();
                recipe.data.test_target = file;
            }
        }
        match recipe.data.images.is_some() || recipe.data.scenes.is_some() {
            true => recipe.batch.sentences = Some(size),
            false => recipe.batch.tokens = limits.1.map(|tokens| tokens as usize),
        }
        prop_assert_eq!(&overridden(&recipe.to_toml().unwrap(), &[]).unwrap(), &recipe);
        prop_assert_eq!(&overridden(&Registry::default().commented(&recipe).unwrap(), &[]).unwrap(), &recipe);
    }

    #[test]
    fn no_text_is_too_strange(
        text in "(\\[(model|data|batch|x)\\]\n|kind = \"luong\"\n|(hidden|size|é) = (1|\"a\"|\\{\\}|\\[\\])\n|\\PC{0,9}\n){0,9}",
        key in "\\PC{0,12}",
        value in "\\PC{0,12}",
    ) {
        let _ = overridden(&text, &[]);
        let _ = overridden(&text, &[&format!("{key}={value}"), &format!("data.{key}={value}")]);
        let _ = nearest(&key, &["hidden", "embedding"]);
    }
}
