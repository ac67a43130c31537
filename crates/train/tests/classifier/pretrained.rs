//! Classifiers that begin with a model that others have trained.

use std::{fs, path::Path};

use burn::tensor::Device;
use regard_evaluate::Accuracy;
use regard_models::pretrained::{Folder, Tokenizer, Trainable};
use regard_nn::weights;
use regard_train::{
    Registry,
    compare::{self, Budget, CompareError, Standing},
    corpus::LabelledText,
    tokenizer::SubwordTokenizer,
};

use super::{data, train_any};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/golden");

/// A small pretrained model with a tokenizer for these sentences.
fn copy(folder: &Path, case: &str, vocabulary: &dyn Fn(usize) -> [(&'static str, String); 2]) {
    fs::create_dir(folder).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(
            Path::new(GOLDEN).join("pretrained").join(case).join(file),
            folder.join(file),
        )
        .unwrap();
    }
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    for (file, text) in vocabulary(config["vocab_size"].as_u64().unwrap() as usize) {
        fs::write(folder.join(file), text).unwrap();
    }
}

/// Words as BERT lists them.
fn word_piece(size: usize) -> [(&'static str, String); 2] {
    let words = "[PAD] [UNK] [CLS] [SEP] [MASK] the film was a very story bad good";
    let words = words.split(' ').map(str::to_owned);
    let words: Vec<String> = words
        .chain((0..).map(|i| format!("[unused{i}]")))
        .take(size)
        .collect();
    [
        ("vocab.txt", words.join("\n")),
        ("tokenizer_config.json", "{}".to_owned()),
    ]
}

/// Letters and the labels' digits as GPT-2 lists them.
fn byte_level(size: usize) -> [(&'static str, String); 2] {
    let letters = ('a'..='z')
        .chain('0'..='1')
        .map(|letter| letter.to_string());
    let tokens = ["<|endoftext|>", "Ġ"]
        .map(str::to_owned)
        .into_iter()
        .chain(letters);
    let tokens = tokens.chain((0..).map(|i| format!("unused{i}"))).take(size);
    let ids: serde_json::Map<_, _> = tokens.zip((0..).map(|id| id.into())).collect();
    let ids = serde_json::Value::Object(ids);
    [
        ("vocab.json", ids.to_string()),
        ("merges.txt", "#version: 0.2\n".to_owned()),
    ]
}

/// A classifier begins with a model that others have trained: its sizes, its tokenizer with the marks it knows, its weights; the run
/// goes on without the model's folder.
#[test]
fn a_classifier_begins_with_a_pretrained_model() {
    let folder = tempfile::tempdir().unwrap();
    data(folder.path());
    let [train, valid] = ["train.tsv", "valid.tsv"].map(|name| folder.path().join(name));
    let of = |start: &Path, more: &[&str]| {
        let text = format!(
            r#"
            [model]
            kind = "transformer-classifier"
            pooling = "first"
            readout = 18
            [model.transformer]
            dropout = {{ embedding = 0.0, residual = 0.0 }}
            [data.filter]
            max_tokens = 14
            [data.labelled]
            train = {train:?}
            valid = {valid:?}
            [batch]
            sentences = 16
            [schedule]
            kind = "constant"
            learning_rate = 0.005
            [training]
            epochs = 4
            log_every = 1
            start = {start:?}
            "#
        );
        let more: Vec<String> = more.iter().map(ToString::to_string).collect();
        Registry::default()
            .parse(&text, "tuned.toml", &more)
            .unwrap()
    };
    let arrays = |run: &Path| {
        let bytes = fs::read(run.join("model.safetensors")).unwrap();
        weights::from_bytes(&bytes).unwrap().0
    };
    let original = |folder: &Path| Trainable::open(&Folder::open(folder).unwrap()).unwrap();

    let bert = folder.path().join("bert");
    copy(&bert, "bert", &word_piece);
    let before = original(&bert).arrays;
    let tuned = folder.path().join("tuned");
    train_any(&of(&bert, &[]), &tuned, None, false).unwrap();
    let after = arrays(&tuned);
    assert!(
        before
            .iter()
            .all(|(name, array)| after[name].shape == array.shape)
    );
    let embeddings = "transformer.tokens.weight";
    assert_ne!(before[embeddings], after[embeddings]);
    let classifier = Registry::default()
        .classifier(&tuned, &Device::flex())
        .unwrap();
    let valid_text = LabelledText::read(&valid).unwrap();
    let found = classifier.classify(valid_text.sentences()).unwrap();
    let classes: Vec<usize> = found.iter().map(|one| one.class).collect();
    let truth = valid_text
        .classes(&classifier.description().labels)
        .unwrap();
    assert!(Accuracy::of(&classes, &truth, 2).share() > 0.9);
    let labels = found[0].trace.maps[0].keys().labels();
    assert_eq!(
        (labels[0].as_str(), labels[labels.len() - 1].as_str()),
        ("[CLS]", "[SEP]")
    );
    let marks = classifier.description().tokenizers.source().vocabulary();
    assert_eq!(
        (marks.size, marks.padding, marks.start, marks.end),
        (51, 0, 2, 3)
    );

    // Frozen, interrupted, and resumed when its folder is gone.
    let frozen = folder.path().join("frozen");
    let recipe = of(&bert, &["training.frozen=transformer"]);
    train_any(&recipe, &frozen, Some(3), false).unwrap();
    fs::remove_dir_all(&bert).unwrap();
    train_any(&recipe, &frozen, None, true).unwrap();
    let after = arrays(&frozen);
    assert!(before.iter().all(|(name, array)| after[name] == *array));

    // GPT-2 has one mark, and gets a token for padding.
    let gpt2 = folder.path().join("gpt2");
    copy(&gpt2, "gpt2", &byte_level);
    let context = format!("data.filter.max_tokens={}", original(&gpt2).context - 2);
    let more = [
        "model.causal=true",
        "model.pooling=last",
        "training.steps=2",
        "data.filter.long_lines=cut",
        &context,
    ];
    let run = folder.path().join("causal");
    train_any(&of(&gpt2, &more), &run, None, false).unwrap();
    let classifier = Registry::default()
        .classifier(&run, &Device::flex())
        .unwrap();
    let marks = classifier.description().tokenizers.source().vocabulary();
    assert_eq!(
        (marks.size, marks.padding, marks.start, marks.end),
        (54, 53, 0, 0)
    );

    let message = |start: &Path, more: &[&str]| {
        let run = folder.path().join("refused");
        train_any(&of(start, more), &run, None, false)
            .unwrap_err()
            .to_string()
    };
    let blind = message(&gpt2, &[]);
    assert!(
        blind.contains("gpt2") && blind.contains("model.causal = true"),
        "{blind}"
    );
    let none = message(Path::new("organisation/no-such-model"), &[]);
    for part in [
        "training.start",
        "no-such-model",
        "run folder",
        "pretrained",
    ] {
        assert!(none.contains(part), "{none}");
    }
    // Weights of other sizes, a family that is not read, no tokenizer, a foreign one.
    let damaged = folder.path().join("damaged");
    copy(&damaged, "bert", &word_piece);
    let config = fs::read_to_string(damaged.join("config.json")).unwrap();
    let with = |from: &str, to: &str| {
        assert!(config.contains(from));
        fs::write(damaged.join("config.json"), config.replace(from, to)).unwrap();
        message(&damaged, &[])
    };
    let sizes = with("\"hidden_size\": 18", "\"hidden_size\": 1000002");
    assert!(
        sizes.contains("training.start") && sizes.contains("1000002"),
        "{sizes}"
    );
    let family = with("\"model_type\": \"bert\"", "\"model_type\": \"t5\"");
    assert!(
        family.contains("model_type") && family.contains("bert"),
        "{family}"
    );
    fs::write(damaged.join("config.json"), &config).unwrap();
    let words = fs::read_to_string(damaged.join("vocab.txt")).unwrap();
    let more = |count: usize| {
        let more: String = (0..count).map(|i| format!("\nmore{i}")).collect();
        fs::write(damaged.join("vocab.txt"), words.clone() + &more).unwrap();
    };
    // A few tokens without an embedding, which are common, get one.
    more(2);
    let run = folder.path().join("more");
    train_any(&of(&damaged, &["training.steps=1"]), &run, None, false).unwrap();
    assert_eq!(arrays(&run)[embeddings].shape[0], 53);
    more(65);
    let other = message(&damaged, &[]);
    assert!(other.contains("tokenizer of another model"), "{other}");
    fs::remove_file(damaged.join("vocab.txt")).unwrap();
    let missing = message(&damaged, &[]);
    assert!(missing.contains("no tokenizer"), "{missing}");
}

/// A model without a Transformer of tokens does not begin with a model that others have trained, of whichever kind.
#[test]
fn other_models_do_not_begin_with_pretrained_ones() {
    let folder = tempfile::tempdir().unwrap();
    for case in ["vit", "resnet", "detr", "bert"] {
        let start = Path::new(GOLDEN).join("pretrained").join(case);
        let text = format!(
            "[model]\nkind = \"resnet\"\n[data.images]\ntrain = \"x\"\n[training]\nsteps = 1\nstart = {start:?}\n"
        );
        let recipe = Registry::default().parse(&text, "begun.toml", &[]).unwrap();
        let error = train_any(&recipe, &folder.path().join("run"), None, false).unwrap_err();
        let message = error.to_string();
        for part in [
            "training.start",
            case,
            "expected, for model.kind = \"resnet\", a file or run folder",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
}

/// A pretrained model's tokenizer keeps its ids and the marks that the model knows; one without padding gets a token for it.
#[test]
fn pretrained_tokenizers_keep_their_marks() {
    let end_of_text = "<|endoftext|>";
    for (kind, padding, start, end, puts_both) in [
        ("bert", "[PAD]", "[CLS]", "[SEP]", true),
        ("bert-files", "[PAD]", "[CLS]", "[SEP]", true),
        ("roberta", "<pad>", "<s>", "</s>", true),
        ("roberta-files", "<pad>", "<s>", "</s>", true),
        ("gpt2", "<pad>", end_of_text, end_of_text, false),
        ("gpt2-files", "<pad>", end_of_text, end_of_text, false),
        ("llama", "<pad>", "<s>", "</s>", false),
        ("llama-files", "<pad>", "<s>", "</s>", false),
        ("chatml", end_of_text, "<|im_end|>", "<|im_end|>", false),
        ("gemma", "<pad>", "<bos>", "<eos>", false),
    ] {
        let original = Tokenizer::open(Path::new(GOLDEN).join("tokenizers").join(kind)).unwrap();
        let tokenizer = SubwordTokenizer::of_pretrained(&original).unwrap();
        let bytes = tokenizer.to_bytes();
        let marks = tokenizer.vocabulary();
        let id = |token| original.id(token).unwrap_or(original.size() as u32);
        let found = [marks.padding, marks.start, marks.end];
        assert_eq!(found, [padding, start, end].map(id), "{kind}");
        let added = usize::from(original.id(padding).is_none());
        assert_eq!(marks.size, original.size() + added, "{kind}");
        for text in ["A dog runs.", " two  spaces", "Straße [MASK] вет", ""] {
            let ids = tokenizer.encode(text).unwrap();
            assert_eq!(
                ids,
                original.encode(text, false).unwrap().ids,
                "{kind}: {text}"
            );
            if puts_both {
                let marked = [&[marks.start], &ids[..], &[marks.end]].concat();
                assert_eq!(
                    marked,
                    original.encode(text, true).unwrap().ids,
                    "{kind}: {text}"
                );
            }
            let stored = SubwordTokenizer::from_bytes(&bytes).unwrap();
            assert_eq!(stored.encode(text).unwrap(), ids);
        }
    }
}

/// A language model goes on from one that others have trained, with its output layer: at a rate of nothing it stays what it was.
#[test]
fn a_language_model_begins_with_a_pretrained_one() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text.txt");
    fs::write(&text, "the film was good\n".repeat(20)).unwrap();
    for (case, tied) in [("gpt2", true), ("llama", false)] {
        let start = folder.path().join(case);
        copy(&start, case, &byte_level);
        fs::write(
            start.join("tokenizer_config.json"),
            r#"{"tokenizer_class": "GPT2Tokenizer"}"#,
        )
        .unwrap();
        let recipe = format!(
            r#"
            [model]
            kind = "transformer-lm"
            context = 16
            tie = {}
            [data.text]
            train = {text:?}
            texts = "lines"
            [schedule]
            kind = "constant"
            learning_rate = 1e-30
            [training]
            steps = 2
            start = {start:?}
            "#,
            !tied
        );
        let registry = Registry::default();
        let with = |more: &[String]| registry.parse(&recipe, "further.toml", more).unwrap();
        let run = folder.path().join(format!("{case}-further"));
        train_any(&with(&[]), &run, None, false).unwrap();
        // Where positions are learned the model says how much is read, and otherwise the recipe.
        let shorter = with(&["model.context=8".to_owned()]);
        let standing = compare::standing(&registry, &run, &shorter, Budget::Tokens(1_000_000));
        match case {
            "gpt2" => assert_eq!(standing.unwrap(), Standing::Done),
            _ => assert!(
                matches!(standing, Err(CompareError::OtherRecipe(_))),
                "{standing:?}"
            ),
        }
        let bytes = fs::read(run.join("model.safetensors")).unwrap();
        let (after, _) = weights::from_bytes(&bytes).unwrap();
        let before = Trainable::open(&Folder::open(&start).unwrap()).unwrap();
        let more = before.vocabulary() + 1; // a token for padding
        let before = before.with_vocabulary(more).arrays;
        assert_eq!(before.contains_key("output.weight"), !tied);
        for (name, array) in &before {
            let found = &after[name];
            assert_eq!(found.shape, array.shape, "{case}: {name}");
            let mut pairs = found.values.iter().zip(&array.values);
            assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-20), "{case}: {name}");
        }
    }
}
