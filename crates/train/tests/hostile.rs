//! Model files that a bad disk or a bad person has changed: each is opened or refused, and never ends in a panic or an
//! allocation by a size that the file does not bear out.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use burn::tensor::Device;
use regard_models::{
    Classifier, ClassifierConfig, GnmtConfig, LuongConfig, ModelConfig, RnnSearchConfig,
    Seq2SeqConfig, TransformerConfig, classifier::EncoderConfig, luong::LuongScore, seq2seq::Cell,
    transformer::EmbeddedPositions,
};
use regard_nn::{
    mask::Locality,
    position::{PositionConfig, RelativeBucketsConfig, RotaryConfig},
    transformer,
    weights::{self, Storage},
};
use regard_train::{
    SentenceClassifier, Translator, classifier_file,
    corpus::Random,
    familiarity::Familiarity,
    model_file::{self, Description, Languages},
    recipe::Translation,
    tokenizer::TokenizerPair,
};
use serde_json::{Value, json};

/// Mutations of each model's file.
const WAYS: u64 = 1_000;

fn tokenizers() -> TokenizerPair {
    let text = ["a red shirt", "two dogs"];
    TokenizerPair::learn(&text, &text, true, 270, false).unwrap()
}

/// The file of a small model for each architecture and each choice that has sizes of its own.
fn models() -> Vec<(String, Vec<u8>)> {
    let tokenizers = tokenizers();
    let vocabulary = tokenizers.source().vocabulary_size();
    let mut configs = vec![];
    for cell in [Cell::Gru, Cell::Lstm] {
        configs.push(ModelConfig::Seq2Seq(Seq2SeqConfig {
            source_vocabulary: vocabulary,
            target_vocabulary: vocabulary,
            cell,
            ..Seq2SeqConfig::tiny()
        }));
    }
    configs.push(ModelConfig::RnnSearch(RnnSearchConfig {
        source_vocabulary: vocabulary,
        target_vocabulary: vocabulary,
        ..RnnSearchConfig::tiny()
    }));
    for (score, locality) in [
        (LuongScore::Concat, Locality::Monotonic { half_width: 2 }),
        (LuongScore::Location, Locality::Global),
        (LuongScore::General, Locality::Predictive { half_width: 2 }),
    ] {
        configs.push(ModelConfig::Luong(LuongConfig {
            source_vocabulary: vocabulary,
            target_vocabulary: vocabulary,
            score,
            locality,
            ..LuongConfig::tiny()
        }));
    }
    configs.push(ModelConfig::Gnmt(GnmtConfig {
        source_vocabulary: vocabulary,
        target_vocabulary: vocabulary,
        ..GnmtConfig::tiny()
    }));
    let none = EmbeddedPositions::None;
    for (position, positions) in [
        (PositionConfig::None, EmbeddedPositions::Sinusoidal),
        (
            PositionConfig::Alibi,
            EmbeddedPositions::Learned { positions: 40 },
        ),
        (PositionConfig::Rotary(RotaryConfig::new(4)), none),
        (
            PositionConfig::Buckets(RelativeBucketsConfig::default()),
            none,
        ),
        (
            PositionConfig::Relative {
                reach: 3,
                values: true,
            },
            none,
        ),
    ] {
        let tiny = TransformerConfig::tiny();
        configs.push(ModelConfig::Transformer(TransformerConfig {
            source_vocabulary: vocabulary,
            target_vocabulary: vocabulary,
            layer: transformer::StackConfig {
                position,
                window: Some(4),
                ..tiny.layer
            },
            positions,
            ..tiny
        }));
    }
    configs
        .into_iter()
        .map(|model| {
            let mut description = Description {
                model,
                tokenizers: tokenizers.clone(),
                translate: Translation::default(),
                languages: Languages {
                    source: "en".into(),
                    target: "de".into(),
                },
                familiarity: None,
            };
            let device = Device::flex();
            let model = description.model.init(1, &device).unwrap();
            let arrays = weights::collect(&model);
            let mut quick = description.clone();
            quick.translate.max_length.absolute = 3;
            let translator = Translator::new(model, quick, &device);
            description.familiarity = Some(
                Familiarity::measure(&translator, &["a red shirt"], &["two dogs", "a"]).unwrap(),
            );
            let bytes = model_file::to_bytes(&arrays, &description, Storage::F16).unwrap();
            (format!("{:?}", description.model), bytes)
        })
        .collect()
}

/// The same for classifiers.
fn classifiers() -> Vec<(String, Vec<u8>)> {
    let tokenizers = tokenizers();
    let vocabulary = tokenizers.source().vocabulary_size();
    [
        ClassifierConfig::tiny().encoder,
        EncoderConfig::Lstm {
            hidden: 6,
            layers: 2,
            bidirectional: true,
        },
        EncoderConfig::SelfAttentive {
            hidden: 6,
            layers: 1,
            attention: 5,
            hops: 2,
            penalty: 0.1,
        },
    ]
    .into_iter()
    .map(|encoder| {
        let description = classifier_file::Description {
            model: ClassifierConfig {
                vocabulary,
                encoder,
                ..ClassifierConfig::tiny()
            },
            tokenizers: tokenizers.clone(),
            labels: vec!["bad".into(), "good".into()],
            max_tokens: 40,
        };
        let model: Classifier = description.model.init(1, &Device::flex()).unwrap();
        let arrays = weights::collect(&model);
        let bytes = classifier_file::to_bytes(&arrays, &description, Storage::F16).unwrap();
        (format!("{:?}", description.model), bytes)
    })
    .collect()
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
    let device = Device::flex();
    for (seed, (name, file)) in models().into_iter().enumerate() {
        assert!(Translator::from_bytes(&file, "whole", &device).is_ok());
        let (mut opened, mut refused) = (0, 0);
        for way in 0..WAYS {
            let random = &mut Random::new(&[seed as u64, way]);
            match Translator::from_bytes(&mutated(&file, random), "file", &device) {
                Ok(translator) => {
                    let mut settings = translator.settings().clone();
                    settings.max_length.absolute = settings.max_length.absolute.min(5);
                    // What is opened can be used.
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
            match classifier_file::from_bytes(&mutated(&file, random), "file", &device) {
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

/// The sizes of a description, one after the other made vast: the error names the size, and nothing was allocated by it.
#[test]
fn a_size_that_the_weights_do_not_bear_out_is_refused() {
    let device = Device::flex();
    for (name, file) in models() {
        let (arrays, metadata) = weights::from_bytes(&file).unwrap();
        let described: Value = serde_json::from_str(&metadata["regard.model"]).unwrap();
        let mut sizes = 0;
        for path in [
            "hidden",
            "layers",
            "embedding",
            "encoder_layers",
            "positions/positions",
            "layer/model_size",
            "layer/feed_forward",
            "layer/heads",
            "layer/head_size",
            "layer/layers",
        ] {
            // A GRU has one layer whatever the description says.
            if path == "layers" && described["cell"] == "gru" {
                continue;
            }
            for vast in [1u64 << 40, u64::MAX] {
                let mut described = described.clone();
                let Some(size) = described.pointer_mut(&format!("/{path}")) else {
                    continue;
                };
                *size = match path {
                    // Of one layer, which is to have its own positions.
                    "layer/layers" => {
                        let position = json!({ "relative": { "reach": vast, "values": true } });
                        json!([{ "window": null, "position": position }])
                    }
                    _ => vast.into(),
                };
                sizes += 1;
                let changed = HashMap::from([("regard.model".to_owned(), described.to_string())]);
                let metadata = metadata.clone().into_iter().chain(changed).collect();
                let bytes = weights::to_bytes(&arrays, metadata, Storage::F32).unwrap();
                let error = model_file::from_bytes(&bytes, "file", &device).unwrap_err();
                let message = error.to_string();
                assert!(
                    message.contains(&vast.to_string()) && message.contains("damaged"),
                    "{name}: {path}: {message}"
                );
            }
        }
        assert!(sizes > 0, "{name}");
    }
}
