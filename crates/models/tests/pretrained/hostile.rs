//! Damaged folders are read or refused: without a panic, and without memory for what is not there.

use regard_kernels::Kind;
use regard_models::{
    generate::BeamConfig,
    pretrained::{ChatTemplate, Folder, Message, Names, Seq2SeqModel, Tokenizer},
};
use serde_json::{Value, json};

use crate::common::{
    Files, Random, byte_fallback_document, byte_level_document, safetensors, write_shards,
};

const TEMPLATE: &str = "{% for message in messages %}{{ bos_token }}{% if message['role'] == 'user' %}{{ message.content | trim }}\
    {% else %}{{ message.content.split('a')[0] | tojson(indent=1) }}{% endif %}{% endfor %}{{ range(9)[::-1] | list }}";

/// The files of a whole model.
fn model(kind: u64) -> Vec<(&'static str, Vec<u8>)> {
    let files = Files::new();
    let mut model = vec![
        (
            "config.json",
            json!({"model_type": "gpt2", "n_embd": 8, "eos_token_id": [1, 2], "id2label": {"0": "a", "1": "b"}}).to_string().into_bytes(),
        ),
        ("generation_config.json", json!({"eos_token_id": 2}).to_string().into_bytes()),
        ("special_tokens_map.json", json!({"mask_token": {"content": "<mask>"}}).to_string().into_bytes()),
        (
            "tokenizer_config.json",
            json!({"bos_token": "<s>", "chat_template": TEMPLATE, "added_tokens_decoder": {"3": {"content": "x", "special": true}}})
                .to_string()
                .into_bytes(),
        ),
    ];
    let document = if kind.is_multiple_of(2) {
        byte_level_document()
    } else {
        byte_fallback_document()
    };
    match kind % 5 {
        0 => {
            model.push((
                "model.safetensors",
                safetensors(&[
                    ("a", "F32", &[2, 3]),
                    ("b", "BF16", &[4]),
                    ("c", "I64", &[]),
                ]),
            ));
            model.push(("tokenizer.json", document.to_string().into_bytes()));
        }
        1 => {
            write_shards(&files);
            for name in [
                "model.safetensors.index.json",
                "a.safetensors",
                "b.safetensors",
            ] {
                model.push((name, std::fs::read(files.file(name)).unwrap()));
            }
            let (vocabulary, merges) = crate::common::byte_level();
            model.push((
                "vocab.json",
                Value::from(vocabulary).to_string().into_bytes(),
            ));
            model.push(("merges.txt", merges.join("\n").into_bytes()));
        }
        2 => model.extend([
            ("model.safetensors", safetensors(&[("x", "F32", &[1])])),
            (
                "vocab.json",
                include_bytes!("../golden/tokenizers/marian-files/vocab.json").to_vec(),
            ),
            (
                "source.spm",
                include_bytes!("../golden/tokenizers/marian-files/source.spm").to_vec(),
            ),
        ]),
        3 => model.extend([
            ("model.safetensors", safetensors(&[("x", "F32", &[1])])),
            (
                "tokenizer.model",
                include_bytes!("../golden/tokenizers/llama-files/tokenizer.model").to_vec(),
            ),
        ]),
        _ => {
            model.push((
                "pytorch_model.bin",
                include_bytes!("../golden/pickle/pytorch_model.bin").to_vec(),
            ));
            model.push((
                "vocab.txt",
                b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n".to_vec(),
            ));
        }
    }
    model
}

/// Damages a file: cuts it, removes or repeats a part, changes bytes, or writes numbers and marks into it.
fn damage(file: &mut Vec<u8>, random: &mut Random) {
    let place = random.below(file.len());
    let end = (place + random.below(30)).min(file.len());
    match random.below(7) {
        0 => file.truncate(place),
        1 => drop(file.drain(place..end)),
        2 => {
            let part = file[place..end].to_vec();
            drop(file.splice(place..place, part));
        }
        3 => {
            let words = [
                "99999999999999999999",
                "-1",
                "null",
                "[]",
                "{}",
                "\"x\"",
                "1e400",
                "true",
                "{%",
                "}}",
                "(",
                "\\",
            ];
            drop(file.splice(place..end, words[random.below(words.len())].bytes()));
        }
        _ => {
            for _ in 0..1 + random.below(4) {
                let place = random.below(file.len());
                if let Some(byte) = file.get_mut(place) {
                    *byte = match random.below(3) {
                        0 => b"0123456789-\"{}[],:"[random.below(18)],
                        1 => random.below(256) as u8,
                        _ => *byte ^ 1 << random.below(8),
                    };
                }
            }
        }
    }
}

/// Opens all that a folder has and uses it. Gives how many of its parts could be used.
fn open_all(files: &Files) -> usize {
    let mut good = 0;
    if let Ok(folder) = Folder::open(files.path()) {
        let names: Vec<String> = folder
            .tensors()
            .map(|tensor| tensor.name.to_owned())
            .collect();
        good += usize::from(names.iter().all(|name| {
            folder.read(name).is_ok() || ["c", "i64", "wide"].contains(&name.as_str())
        }));
        let _ = folder.weights([("a".to_owned(), vec![2, 3])], &Names::default());
        let config = folder.config();
        let _ = (
            config.size("n_embd"),
            config.ids("eos_token_id"),
            config.labels(),
            config.one_of("model_type", &["gpt2"]),
        );
    }
    if let Ok(tokenizer) = Tokenizer::open(files.path()) {
        let text = "The man's naïve 人 bicycle, <s> 12.";
        if let Ok(found) = tokenizer.encode(text, true) {
            good += 1;
            assert!(found.ids.iter().all(|&id| (id as usize) < tokenizer.size()));
            let _ = (
                tokenizer.decode(&found.ids, true),
                tokenizer.pieces(&found.ids),
                tokenizer.expect_rows(100),
            );
            let mut stream = tokenizer.stream(&[], false).unwrap();
            found.ids.iter().for_each(|&id| drop(stream.push(id)));
        }
        let _ = tokenizer.encode_pair("the", "a");
    }
    if let Ok(template) = ChatTemplate::open(files.path()) {
        let messages = [
            Message::new("user", " a "),
            Message::new("assistant", "bab"),
        ];
        good += usize::from(template.render(&messages, true).is_ok());
    }
    good
}

#[test]
fn a_thousand_damaged_folders_are_read_or_refused() {
    let (mut whole, mut refused) = (0, 0);
    for seed in 0..1_000 {
        let random = &mut Random::new(seed);
        let mut model = model(seed);
        for _ in 0..1 + random.below(3) {
            let place = random.below(model.len());
            match random.below(20) {
                0 if model.len() > 1 => drop(model.remove(place)),
                _ => damage(&mut model[place].1, random),
            }
        }
        let files = Files::new();
        for (name, content) in &model {
            files.write(name, content);
        }
        match open_all(&files) {
            3 => whole += 1,
            _ => refused += 1,
        }
    }
    assert!(whole > 40 && refused > 300, "{whole} {refused}");
    for kind in 0..10 {
        let files = Files::new();
        for (name, content) in model(kind) {
            files.write(name, content);
        }
        assert_eq!(open_all(&files), 3, "{kind}");
    }
}

/// Encoder-decoders with damaged configurations and weights: opened and used, or refused.
#[test]
fn damaged_encoder_decoders_write_or_are_refused() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pretrained");
    let names = ["config.json", "generation_config.json", "model.safetensors"];
    let cases = ["t5", "t5-gated", "bart", "marian", "marian-two"]
        .map(|case| names.map(|name| std::fs::read(golden.join(case).join(name)).unwrap()));
    let (mut whole, mut refused) = (0, 0);
    for seed in 0..600 {
        let random = &mut Random::new(seed);
        let mut model = cases[seed as usize % cases.len()].clone();
        // Settings more often than weights.
        for _ in 0..1 + random.below(2) {
            damage(&mut model[random.below(7) / 3], random);
        }
        let files = Files::new();
        for (name, content) in names.iter().zip(&model) {
            files.write(name, content);
        }
        let opened = Folder::open(files.path());
        let Ok(model) = opened.and_then(|folder| Seq2SeqModel::open(&folder, None)) else {
            refused += 1;
            continue;
        };
        let mut config = BeamConfig {
            size: 2,
            ..BeamConfig::default()
        };
        config.limit.most = 8;
        let found = model.write(&[&[5, 6, 7], &[8]], &config);
        assert!(found.is_err() || found.unwrap().iter().all(|n_best| !n_best.is_empty()));
        if let Ok(encoded) = model.encode(&[&[5, 6, 7]], None) {
            let _ = model
                .begin(&encoded, Kind::F32)
                .logits(&[model.writing().start, 9]);
        }
        whole += 1;
    }
    assert!(whole > 60 && refused > 200, "{whole} {refused}");
}

/// What a configuration of an encoder-decoder states is checked before memory is taken for it.
#[test]
fn sizes_of_encoder_decoders_are_checked() {
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pretrained");
    for (case, key, value, said) in [
        (
            "t5",
            "relative_attention_max_distance",
            json!(16_000_000),
            "65536",
        ),
        (
            "t5",
            "relative_attention_num_buckets",
            json!(3),
            "relative_attention_num_buckets: found 3; expected an even number of at least 4, half of them for each direction",
        ),
        (
            "t5",
            "relative_attention_max_distance",
            json!(1),
            "relative_attention_max_distance: found 1; expected more than the",
        ),
        (
            "t5",
            "relative_attention_num_buckets",
            json!(16_000_000),
            "relative",
        ),
        ("t5", "num_decoder_layers", json!(1_000_000), "at most"),
        ("t5", "d_kv", json!(300), "300"),
        ("t5", "feed_forward_proj", json!("gated-swsh"), "swish"),
        (
            "bart",
            "decoder_attention_heads",
            json!(3),
            "divisor of d_model (20)",
        ),
        (
            "bart",
            "max_position_embeddings",
            json!(16_000_000),
            "embed_positions",
        ),
        (
            "marian",
            "decoder_start_token_id",
            json!(53),
            "vocabulary of 53",
        ),
        ("marian", "eos_token_id", json!([]), "eos_token_id"),
        ("marian", "vocab_size", json!(54), "shared.weight"),
        (
            "marian-two",
            "decoder_vocab_size",
            json!(54),
            "decoder.embed_tokens",
        ),
    ] {
        let files = Files::new();
        let from = golden.join(case);
        let config = std::fs::read(from.join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        config[key] = value;
        files.json("config.json", &config);
        files.write(
            "model.safetensors",
            std::fs::read(from.join("model.safetensors")).unwrap(),
        );
        let folder = Folder::open(files.path()).unwrap();
        let error = Seq2SeqModel::open(&folder, None).unwrap_err().to_string();
        assert!(error.contains(said), "{case} {key}: {error}");
    }
}
