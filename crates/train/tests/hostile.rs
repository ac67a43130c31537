//! Model files that a bad disk or a bad person has changed: each is opened or refused. None causes a panic, nor an allocation by
//! a size that the file's weights do not confirm.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use burn::tensor::Device;
use regard_images::{Image, Normalize};
use regard_models::{
    GnmtConfig, LstmnTranslationConfig, LuongConfig, RnnSearchConfig, Seq2SeqConfig,
    TransformerConfig,
    config::AnyConfig,
    image::DetrConfig,
    lstmn_translation::Fusion,
    luong::{LuongAttention, LuongScore},
    sentence::{LstmConfig, LstmnConfig, SelfAttentiveConfig, TransformerClassifierConfig},
    seq2seq::Cell,
    transformer::Positions,
};
use regard_nn::weights::{self, Storage};
use regard_train::{
    Detector, Registry, SentenceClassifier, Translator,
    corpus::Random,
    detector,
    familiarity::Familiarity,
    image_classifier::Preparation,
    recipe::{self, Model},
    sentence_classifier,
    tasks::{Classification, Detection, Task, Translation},
    tokenizer::{SpecialTokens, SubwordTokenizer, TokenizerPair},
    translator::{Description, Languages},
};
use serde_json::Value;

/// Mutations of each model's file.
const WAYS: u64 = 1_000;

fn tokenizers() -> TokenizerPair {
    let text = ["a red shirt", "two dogs"];
    TokenizerPair::learn(&text, &text, true, 270, false).unwrap()
}

/// Tokenizers of the Hugging Face library, one for each side.
fn finished_tokenizers() -> TokenizerPair {
    let golden: Value = serde_json::from_str(include_str!("golden/hugging_face.json")).unwrap();
    let read = |family: &str| {
        let bytes = golden[family]["tokenizer"].to_string();
        SubwordTokenizer::from_hugging_face(bytes.as_bytes(), &SpecialTokens::default(), false)
    };
    TokenizerPair::separate(read("wordpiece").unwrap(), read("unigram").unwrap())
}

/// A small model for each architecture and each choice that has sizes of its own.
fn models() -> Vec<(String, Vec<u8>)> {
    let mut configs: Vec<(&'static str, Box<dyn AnyConfig>)> = vec![];
    for (cell, layers) in [(Cell::GruContext, 1), (Cell::Lstm, 2)] {
        let config = Seq2SeqConfig {
            cell,
            layers,
            ..Seq2SeqConfig::tiny()
        };
        configs.push(("seq2seq", Box::new(config)));
    }
    configs.push(("rnnsearch", Box::new(RnnSearchConfig::tiny())));
    for (score, attention) in [
        (LuongScore::Concat, LuongAttention::LocalM),
        (LuongScore::Location, LuongAttention::Global),
        (LuongScore::General, LuongAttention::LocalP),
    ] {
        let config = LuongConfig {
            score,
            attention,
            window: 2,
            ..LuongConfig::tiny()
        };
        configs.push(("luong", Box::new(config)));
    }
    configs.push(("gnmt", Box::new(GnmtConfig::tiny())));
    for fusion in [Fusion::Shallow, Fusion::Deep] {
        let config = LstmnTranslationConfig {
            fusion,
            ..LstmnTranslationConfig::tiny()
        };
        configs.push(("lstmn-translation", Box::new(config)));
    }
    for positions in [
        Positions::Sinusoidal,
        Positions::Learned,
        Positions::Rotary,
        Positions::Relative,
        Positions::Buckets,
        Positions::Alibi,
        Positions::None,
    ] {
        let config = TransformerConfig {
            positions,
            max_length: 40,
            max_distance: 3,
            window: Some(4),
            ..TransformerConfig::tiny()
        };
        configs.push(("transformer", Box::new(config)));
    }
    configs
        .into_iter()
        .map(|(kind, config)| {
            let tokenizers = match kind {
                "gnmt" => finished_tokenizers(),
                _ => tokenizers(),
            };
            model(Model { kind, config }, tokenizers)
        })
        .collect()
}

/// The file of a model that translates.
fn model(model: Model, tokenizers: TokenizerPair) -> (String, Vec<u8>) {
    let (registry, device) = (Registry::default(), Device::flex());
    let mut translate = recipe::Translation::default();
    // One of the models has room for 40 tokens, one of them a mark.
    (translate.max_source_tokens, translate.max_length.absolute) = (39, 39);
    let mut description = Description {
        model,
        tokenizers,
        translate,
        languages: Languages {
            source: "en".into(),
            target: "de".into(),
        },
        familiarity: None,
    };
    let kind = description.model.clone();
    let task = registry.task_of::<Translation>(&kind).unwrap();
    let model = task.init(&description, 1, &device).unwrap();
    let arrays = weights::collect(&model);
    let mut quick = description.clone();
    quick.translate.max_length.absolute = 3;
    let translator = Translator::new(model, quick, &device);
    let familiarity = Familiarity::measure(&translator, &["a red shirt"], &["two dogs", "a"]);
    description.familiarity = Some(familiarity.unwrap());
    let bytes = registry.to_bytes::<Translation>(&kind, &arrays, &description, Storage::F16);
    (format!("{kind:?}"), bytes.unwrap())
}

/// The same for classifiers.
fn classifiers() -> Vec<(String, Vec<u8>)> {
    let (registry, device) = (Registry::default(), Device::flex());
    let lstm = LstmConfig {
        layers: 2,
        bidirectional: true,
        ..LstmConfig::tiny()
    };
    let configs: [(&'static str, Box<dyn AnyConfig>); 3] = [
        ("lstmn", Box::new(LstmnConfig::tiny())),
        ("lstm", Box::new(lstm)),
        ("self-attentive", Box::new(SelfAttentiveConfig::tiny())),
    ];
    configs
        .into_iter()
        .map(|(kind, config)| {
            let model = Model { kind, config };
            let description = sentence_classifier::Description {
                model: model.clone(),
                tokenizers: tokenizers(),
                labels: vec!["bad".into(), "good".into()],
                max_tokens: 40,
            };
            let task = registry.task_of::<Classification>(&model).unwrap();
            let arrays = weights::collect(&task.init(&description, 1, &device).unwrap());
            let half = Storage::F16;
            let bytes = registry.to_bytes::<Classification>(&model, &arrays, &description, half);
            (format!("{model:?}"), bytes.unwrap())
        })
        .collect()
}

/// The state of a large model is beyond any bound: its size is no reason to refuse a file, whose header says what is read of it.
#[cfg(unix)]
#[test]
fn a_large_file_is_refused_for_its_header_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("last.safetensors");
    // It takes no place on the disk.
    std::fs::File::create(&path)
        .unwrap()
        .set_len(9 << 30)
        .unwrap();
    let loaded = regard_train::learner::checkpoint::Checkpoint::load(&path);
    let message = loaded.unwrap_err().to_string();
    assert!(
        message.contains("last.safetensors: not a complete safetensors file"),
        "{message}"
    );
}

fn open(bytes: &[u8], name: &str) -> Result<Translator, regard_train::model_file::ModelFileError> {
    let device = Device::flex();
    let opened = Registry::default().from_bytes::<Translation>(bytes, name, &device);
    let (model, description) = opened?;
    Ok(Translator::new(model, description, &device))
}

/// The header of a safetensors file, entries in the order of their keys, how far the description goes in it, and the data.
fn parts(file: &[u8]) -> (String, usize, &[u8]) {
    const DESCRIPTION: &str = "__metadata__";
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let (header, data) = file[8..].split_at(length);
    let mut header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
    let description: BTreeMap<String, String> =
        serde_json::from_value(header.remove(DESCRIPTION).unwrap()).unwrap();
    let description = serde_json::to_string(&description).unwrap();
    let tensors = serde_json::to_string(&header).unwrap();
    let first = format!("{{\"{DESCRIPTION}\":{description}");
    (format!("{first},{}", &tensors[1..]), first.len(), data)
}

/// A file of this header and data.
fn joined(header: &[u8], data: &[u8]) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length, header, data].concat()
}

/// Where the text has numbers, up to `end`.
fn numbers(text: &str, end: usize) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = vec![];
    for (at, byte) in text.bytes().enumerate().take(end) {
        match found.last_mut() {
            _ if !byte.is_ascii_digit() => {}
            Some(last) if last.end == at => last.end += 1,
            _ => found.push(at..at + 1),
        }
    }
    found
}

/// A copy of a safetensors file with something wrong.
fn mutated(file: &[u8], random: &mut Random) -> Vec<u8> {
    const EXTREMES: [&str; 16] = [
        "0",
        "1",
        "2",
        "3",
        "7",
        "1000000",
        "4294967296",
        "1000000000000",
        "4611686018427387912",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "-1",
        "1e308",
        "0.5",
    ];
    // Most numbers changed are those of the description; the places of tensors are checked by the container.
    let (mut header, mut end, data) = parts(file);
    match random.below(8) {
        0 => return file[..random.below(file.len())].to_vec(),
        1 => {
            let mut file = joined(header.as_bytes(), data);
            for _ in 0..1 + random.below(4) {
                let at = random.below(8 + header.len());
                file[at] ^= 1 << random.below(8);
            }
            return file;
        }
        2 => {
            // A piece of the header twice, or not at all.
            let start = random.below(header.len());
            let stop = (start + random.below(60)).min(header.len());
            if header.is_char_boundary(start) && header.is_char_boundary(stop) {
                let piece = header[start..stop].to_owned();
                match random.below(2) {
                    0 => header.replace_range(start..stop, ""),
                    _ => header.insert_str(stop, &piece),
                }
            }
        }
        kind => {
            if kind == 3 {
                end = header.len();
            }
            for _ in 0..1 + random.below(3) {
                let places = numbers(&header, end);
                let place = places[random.below(places.len())].clone();
                let by = EXTREMES[random.below(EXTREMES.len())];
                end = end + by.len() - place.len();
                header.replace_range(place, by);
            }
        }
    }
    joined(header.as_bytes(), data)
}

#[test]
fn a_mutated_model_file_is_read_or_refused() {
    for (seed, (name, file)) in models().into_iter().enumerate() {
        assert!(open(&file, "whole").is_ok());
        let (mut opened, mut refused) = (0, 0);
        for way in 0..WAYS {
            let random = &mut Random::new(&[seed as u64, way]);
            match open(&mutated(&file, random), "file") {
                Ok(translator) => {
                    let mut settings = translator.settings().clone();
                    settings.max_length.absolute = settings.max_length.absolute.min(5);
                    // A model that was opened can be used without a panic.
                    let _ = translator.translate(&["two red dogs", ""], &settings);
                    opened += 1;
                }
                Err(error) => {
                    assert!(error.to_string().starts_with("file: "), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(opened > 10 && refused > 500, "{name}: {opened}, {refused}");
    }
}

#[test]
fn a_mutated_classifier_file_is_read_or_refused() {
    let device = Device::flex();
    for (seed, (name, file)) in classifiers().into_iter().enumerate() {
        let (mut opened, mut refused) = (0, 0);
        for way in 0..WAYS {
            let random = &mut Random::new(&[100 + seed as u64, way]);
            let file = mutated(&file, random);
            match Registry::default().from_bytes::<Classification>(&file, "file", &device) {
                Ok((model, description)) => {
                    let classifier = SentenceClassifier::new(model, description, &device);
                    let _ = classifier.classify(&["two red dogs", ""]);
                    opened += 1;
                }
                Err(error) => {
                    assert!(error.to_string().starts_with("file: "), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(opened > 10 && refused > 500, "{name}: {opened}, {refused}");
    }
}

#[test]
fn a_mutated_detector_file_is_read_or_refused() {
    let (registry, device) = (Registry::default(), Device::flex());
    let config = DetrConfig {
        masks: true,
        ..DetrConfig::tiny()
    };
    let model = Model {
        kind: "detr",
        config: Box::new(config),
    };
    let description = detector::Description {
        model: model.clone(),
        labels: vec!["square".into(), "disc".into()],
        preparation: Preparation::new([16, 16], Normalize::imagenet()),
        scenes: None,
    };
    let task = registry.task_of::<Detection>(&model).unwrap();
    let arrays = weights::collect(&task.init(&description, 1, &device).unwrap());
    let file = registry.to_bytes::<Detection>(&model, &arrays, &description, Storage::F16);
    let file = file.unwrap();
    let image = Image::filled(16, 16, &[90, 30, 200]).unwrap();
    let (mut opened, mut refused) = (0, 0);
    for way in 0..WAYS {
        let file = mutated(&file, &mut Random::new(&[200, way]));
        match registry.from_bytes::<Detection>(&file, "file", &device) {
            Ok((model, description)) => {
                opened += 1;
                // The size of its images is a choice that no weight bears out, and a large one only slow.
                if description.preparation.size.iter().product::<usize>() <= 1 << 12 {
                    let detector = Detector::new(model, description, &device);
                    let _ = detector.look(std::slice::from_ref(&image), 0.0, true);
                }
            }
            Err(error) => {
                assert!(error.to_string().starts_with("file: "), "{error}");
                refused += 1;
            }
        }
    }
    assert!(opened > 10 && refused > 300, "{opened}, {refused}");
}

/// A model with learned positions reads and writes no more tokens than it has positions for.
#[test]
fn lengths_beyond_the_positions_are_refused() {
    let config = TransformerConfig {
        positions: Positions::Learned,
        max_length: 40,
        ..TransformerConfig::tiny()
    };
    let kind = "transformer";
    let config = Box::new(config);
    let (_, file) = model(Model { kind, config }, tokenizers());
    let (arrays, metadata) = weights::from_bytes(&file).unwrap();
    for key in ["max_source_tokens", "absolute"] {
        let mut metadata = metadata.clone();
        let settings = metadata.get_mut("regard.translate").unwrap();
        *settings = settings.replace(&format!("\"{key}\":39"), &format!("\"{key}\":40"));
        let bytes = weights::to_bytes(&arrays, metadata, Storage::F32).unwrap();
        let message = open(&bytes, "file").map(|_| ()).unwrap_err().to_string();
        let expected = format!("{key}: found 40; expected at most 39");
        assert!(
            message.starts_with("file: ") && message.contains(&expected),
            "{message}"
        );
    }

    let (registry, device) = (Registry::default(), Device::flex());
    let model = Model {
        kind: "transformer-classifier",
        config: Box::new(TransformerClassifierConfig::tiny()),
    };
    // Positions for 16 tokens, two of them marks.
    for (max_tokens, fits) in [(14, true), (15, false)] {
        let description = sentence_classifier::Description {
            model: model.clone(),
            tokenizers: tokenizers(),
            labels: vec!["bad".into(), "good".into()],
            max_tokens,
        };
        let task = registry.task_of::<Classification>(&model).unwrap();
        let arrays = weights::collect(&task.init(&description, 1, &device).unwrap());
        let half = Storage::F16;
        let bytes = registry.to_bytes::<Classification>(&model, &arrays, &description, half);
        let opened = registry.from_bytes::<Classification>(&bytes.unwrap(), "file", &device);
        match opened {
            Ok(_) => assert!(fits, "{max_tokens}"),
            Err(error) => {
                let expected = "max_tokens: found 15; expected at most 14";
                assert!(!fits && error.to_string().contains(expected), "{error}");
            }
        }
    }
}

/// Each size of a description is made vast in turn: the error names the size, or the weight whose size differs, and nothing was
/// allocated by it.
#[test]
fn a_size_that_the_weights_do_not_bear_out_is_refused() {
    for (name, file) in models() {
        let (arrays, metadata) = weights::from_bytes(&file).unwrap();
        let described: Value = serde_json::from_str(&metadata["regard.model"]).unwrap();
        let mut sizes = 0;
        for key in [
            "hidden",
            "layers",
            "embedding",
            "encoder_layers",
            "max_length",
            "d_model",
            "feed_forward",
            "heads",
        ] {
            // The largest size that a recipe may have, and larger ones.
            for vast in [1u64 << 20, 1 << 40, u64::MAX] {
                let mut described = described.clone();
                let Some(size) = described["config"].get_mut(key) else {
                    continue;
                };
                *size = vast.into();
                sizes += 1;
                let changed = HashMap::from([("regard.model".to_owned(), described.to_string())]);
                let metadata = metadata.clone().into_iter().chain(changed).collect();
                let bytes = weights::to_bytes(&arrays, metadata, Storage::F32).unwrap();
                // Some choices do not use the size; then the weights do not depend on it.
                let Err(error) = open(&bytes, "file") else {
                    assert!(vast == 1 << 20, "{name}: {key}");
                    continue;
                };
                let message = error.to_string();
                let names = message.contains(&vast.to_string()) || message.contains("in the model");
                assert!(names, "{name}: {key}: {message}");
            }
        }
        assert!(sizes > 0, "{name}");
    }
}
