//! Models that read a text and write another.

use std::ops::ControlFlow;

use regard_kernels::{Kind, matmul::Storage};
use regard_models::{
    generate::{BeamConfig, Prompt, SampleConfig, sample},
    pretrained::{Folder, LanguageModel, Look, Seq2SeqModel, WritingRules},
};
use safetensors::{SafeTensors, tensor::TensorView};
use serde_json::{Value, json};

use super::{Golden, Weights, close, copied, open, real};

const CASES: [&str; 5] = ["t5", "t5-gated", "bart", "marian", "marian-two"];
/// BART whose tables are not all the same one.
const TABLES: [&str; 2] = ["bart-own-head", "bart-untied"];

fn model(case: &str, storage: Option<Storage>) -> Seq2SeqModel {
    Seq2SeqModel::open(&open(case), storage).unwrap_or_else(|error| panic!("{case}: {error}"))
}

/// The sources without their padding.
fn sources(golden: &Golden) -> Vec<Vec<u32>> {
    let rows = golden
        .rows("ids")
        .into_iter()
        .zip(golden.rows("attention_mask"));
    rows.map(|(row, mask)| {
        let kept = row.iter().zip(mask).filter(|(_, mask)| *mask == 1);
        kept.map(|(id, _)| *id).collect()
    })
    .collect()
}

#[test]
fn an_empty_list_of_tokens_is_refused_where_it_stands() {
    let copy = copied("marian");
    for key in ["eos_token_id", "decoder_start_token_id"] {
        let settings = json!({key: []}).to_string();
        std::fs::write(copy.path().join("generation_config.json"), settings).unwrap();
        let folder = Folder::open(copy.path()).unwrap();
        let error = Seq2SeqModel::open(&folder, None).unwrap_err().to_string();
        let expected =
            format!("generation_config.json: {key}: found []; expected the id of a token");
        assert!(error.ends_with(&expected), "{error}");
    }
}

fn slices(rows: &[Vec<u32>]) -> Vec<&[u32]> {
    rows.iter().map(Vec::as_slice).collect()
}

#[test]
fn states_weights_and_logits_are_those_of_the_original() {
    for case in CASES.into_iter().chain(TABLES) {
        let golden = Golden::of(case);
        let model = model(case, Some(Storage::F32));
        let (sources, masks) = (sources(&golden), golden.rows("attention_mask"));
        let targets = golden.rows("decoder_ids");
        let mut read = Weights::default();
        let encoded = model.encode(&slices(&sources), Some(&mut read)).unwrap();
        assert_eq!(encoded, model.encode(&slices(&sources), None).unwrap());
        let mut written = Weights::default();
        let mut reading = model.begin(&encoded, Kind::F32);
        reading.read(&slices(&targets), Some(&mut written)).unwrap();
        let layers = model.encoder().blocks().len();
        for row in 0..sources.len() {
            let what = |part: &str| format!("{case}: {part} of row {row}");
            let (mask, width) = (&masks[row], masks[row].len());
            let name = format!("encoder.hidden.{layers}");
            let states = real(
                golden.row(&name, row),
                mask,
                encoded[row].len() / sources[row].len(),
            );
            close(&what(&name), &encoded[row], &states, 1e-4);
            for layer in 0..layers {
                let name = format!("encoder.attention.{layer}");
                let heads = golden.row(&name, row).chunks(width * width);
                let expected: Vec<f32> = heads.flat_map(|head| real(head, mask, width)).collect();
                let expected: Vec<f32> = expected
                    .chunks(width)
                    .flat_map(|keys| real(keys, mask, 1))
                    .collect();
                close(&what(&name), &read.0[&(layer, row)], &expected, 1e-5);
            }
            for layer in 0..model.decoder().stack().blocks().len() {
                let name = format!("attention.{layer}");
                let expected = golden.row(&name, row);
                close(&what(&name), &written.0[&(layer, row)], expected, 1e-5);
                let name = format!("cross.{layer}");
                let rows = golden.row(&name, row).chunks(width);
                let expected: Vec<f32> = rows.flat_map(|keys| real(keys, mask, 1)).collect();
                close(&what(&name), &written.1[&(layer, row)], &expected, 1e-5);
            }
            let alone = model.encode(&[&sources[row]], None).unwrap();
            assert_eq!(alone[0], encoded[row], "{}", what("states"));
            let logits = model
                .begin(&alone, Kind::F32)
                .logits(&targets[row])
                .unwrap();
            close(&what("logits"), &logits, golden.row("logits", row), 1e-4);
        }
    }
}

#[test]
fn tokens_are_those_of_the_original_with_a_cache_and_without() {
    for case in CASES.into_iter().chain(TABLES) {
        let golden = Golden::of(case);
        let model = model(case, None);
        let expected = golden.ids["greedy"].1.iter().map(|&id| id as u32);
        let expected: Vec<u32> = expected.collect();
        let encoded = model.encode(&[&sources(&golden)[0]], None).unwrap();
        let prompt = Prompt {
            tokens: vec![model.writing().start],
            stream: 0,
        };
        let config = SampleConfig {
            limit: expected.len(),
            ..SampleConfig::greedy()
        };
        let mut reading = model.begin(&encoded, Kind::F32);
        let all = |_, _| ControlFlow::Continue(());
        let sampled = sample(&mut reading, std::slice::from_ref(&prompt), &config, all).unwrap();
        assert_eq!(sampled[0].tokens, expected, "{case}");
        let read = [&prompt.tokens[..], &expected[..expected.len() - 1]].concat();
        let logits = model.begin(&encoded, Kind::F32).logits(&read).unwrap();
        let best = logits.chunks(model.decoder().vocabulary()).map(|row| {
            let order = |a: &(usize, &f32), b: &(usize, &f32)| a.1.total_cmp(b.1);
            row.iter().enumerate().max_by(order).unwrap().0 as u32
        });
        assert_eq!(best.collect::<Vec<_>>(), expected, "{case}");
    }
}

/// A search gives each source what it gives it alone, on any number of threads.
#[test]
fn a_batch_gives_what_each_source_gives_alone() {
    let config = BeamConfig {
        size: 3,
        n_best: 3,
        ..BeamConfig::default()
    };
    let sources: [&[u32]; 4] = [&[7, 8, 9, 10, 11, 2], &[12, 2], &[], &[13, 14, 15, 2]];
    for case in CASES {
        let model = model(case, None);
        let run = |threads, sources: &[&[u32]]| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
            let write = || model.write(sources, &config).unwrap();
            pool.build().unwrap().install(write)
        };
        let together = run(1, &sources);
        assert_eq!(together, run(2, &sources), "{case}");
        for (row, source) in sources.iter().enumerate() {
            assert_eq!(run(2, &[source])[0], together[row], "{case} {row}");
        }
    }
}

/// What `generation_config.json` says of the tokens that are written.
#[test]
fn rules_of_writing_are_followed() {
    for case in CASES {
        let copy = copied(case);
        let path = copy.path().join("generation_config.json");
        let usual = model(case, None);
        let source: &[u32] = &[7, 8, 9, 10, 11, 2];
        let config = BeamConfig {
            size: 2,
            ..BeamConfig::default()
        };
        let before = usual.write(&[source], &config).unwrap().remove(0);
        let banned = before[0].tokens.first().copied().unwrap_or(20);
        let bytes = std::fs::read(&path).unwrap();
        let mut file: Value = serde_json::from_slice(&bytes).unwrap();
        file["forced_bos_token_id"] = json!(17);
        file["bad_words_ids"] = json!([[banned], [1, 2]]);
        file["min_length"] = json!(15);
        file["num_beams"] = json!(4);
        file["max_length"] = json!(40);
        std::fs::write(&path, file.to_string()).unwrap();
        let folder = Folder::open(copy.path()).unwrap();
        let model = Seq2SeqModel::open(&folder, None).unwrap();
        let writing = model.writing();
        assert_eq!((writing.search.size, writing.longest), (4, Some(39)));
        let after = model.write(&[source], &config).unwrap().remove(0);
        let tokens = &after[0].tokens;
        assert_eq!(tokens[0], 17, "{case}");
        assert!(
            tokens.len() >= 13 && !tokens[1..].contains(&banned),
            "{case}: {tokens:?}"
        );
        file["forced_bos_token_id"] = json!(53);
        std::fs::write(&path, file.to_string()).unwrap();
        let error = Seq2SeqModel::open(&folder, None).unwrap_err().to_string();
        let said = "generation_config.json: forced_bos_token_id: found 53";
        assert!(error.contains(said), "{error}");
    }
}

/// What `generate` of transformers writes by the same settings (`tests/golden/searches_golden.py`), alone and in a batch.
#[test]
fn searches_are_those_of_the_original() {
    let bytes = std::fs::read(super::folder("../searches.json")).unwrap();
    let golden: Value = serde_json::from_slice(&bytes).unwrap();
    let ids = |list: &Value| -> Vec<u32> { serde_json::from_value(list.clone()).unwrap() };
    let searches = golden["searches"].as_array().unwrap();
    assert_eq!(searches.len(), 200);
    for search in searches {
        let (case, settings) = (search["case"].as_str().unwrap(), &search["settings"]);
        let what = format!("{case} {settings} {}", search["source"]);
        let copy = copied(case);
        let path = copy.path().join("generation_config.json");
        let bytes = std::fs::read(&path).unwrap();
        let mut file: Value = serde_json::from_slice(&bytes).unwrap();
        for (key, value) in settings.as_object().unwrap() {
            file[key.as_str()] = value.clone();
        }
        std::fs::write(&path, file.to_string()).unwrap();
        let model = Seq2SeqModel::open(&Folder::open(copy.path()).unwrap(), None).unwrap();
        let own = &model.writing().search;
        let config = BeamConfig {
            n_best: own.size,
            ..own.clone()
        };
        let source = ids(&search["source"]);
        let found = model.write(&[&source, &[12, 2]], &config).unwrap();
        let alone = model.write(&[&source], &config).unwrap();
        assert_eq!(found[0], alone[0], "{what}");
        let expected = search["found"].as_array().unwrap();
        let texts: Vec<Vec<u32>> = found[0].iter().map(|one| one.with_end()).collect();
        let originals: Vec<Vec<u32>> = expected.iter().map(|one| ids(&one["tokens"])).collect();
        assert_eq!(texts, originals, "{what}");
        for ((one, text), expected) in found[0].iter().zip(&texts).zip(expected) {
            if let Some(score) = expected["score"].as_f64() {
                let apart = (one.score - score).abs();
                assert!(apart < 1e-5 * score.abs().max(1.0), "{what}: {apart}");
            }
            let forced = config.forced_end.is_some() && text.len() == config.limit.most;
            assert_eq!(one.finished, one.end.is_some() && !forced, "{what}");
        }
    }
}

/// `config.json` says how a model writes where there is no `generation_config.json`; marks may stand in either.
#[test]
fn settings_of_writing_come_from_one_file() {
    let copy = copied("bart");
    let file = |name: &str| copy.path().join(name);
    let bytes = std::fs::read(file("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&bytes).unwrap();
    for (key, value) in [
        ("num_beams", json!(4)),
        ("min_length", json!(9)),
        ("no_repeat_ngram_size", json!(3)),
        ("force_bos_token_to_be_generated", json!(true)),
        ("encoder_repetition_penalty", json!(1.2)),
    ] {
        config[key] = value;
    }
    std::fs::write(file("config.json"), config.to_string()).unwrap();
    std::fs::write(file("generation_config.json"), "{}").unwrap();
    let writing = || {
        let model = Seq2SeqModel::open(&Folder::open(copy.path()).unwrap(), None).unwrap();
        model.writing().clone()
    };
    let own = writing();
    assert_eq!((own.start, &own.ends[..]), (2, &[2][..]));
    assert_eq!(own.rules, WritingRules::default());
    let usual = BeamConfig::default();
    let search = &own.search;
    assert_eq!((search.size, search.no_repeat_ngram), (1, 0));
    assert_eq!((search.forced_end, search.limit), (None, usual.limit));
    assert!(own.ignored.is_empty());
    std::fs::remove_file(file("generation_config.json")).unwrap();
    let former = writing();
    assert_eq!((former.rules.shortest, former.rules.first), (9, Some(0)));
    let search = &former.search;
    assert_eq!((search.size, search.no_repeat_ngram), (4, 3));
    assert_eq!(search.forced_end, Some(2));
    assert_eq!(former.ignored, ["encoder_repetition_penalty"]);
    // The former key alone names no token.
    config.as_object_mut().unwrap().remove("bos_token_id");
    config["forced_bos_token_id"] = json!(5);
    std::fs::write(file("config.json"), config.to_string()).unwrap();
    assert_eq!(writing().rules.first, Some(5));
}

#[test]
fn settings_of_writing_that_are_not_obeyed_are_named() {
    let copy = copied("t5");
    let open = |settings: Value| {
        let path = copy.path().join("generation_config.json");
        std::fs::write(path, settings.to_string()).unwrap();
        Seq2SeqModel::open(&Folder::open(copy.path()).unwrap(), None)
    };
    let idle = json!({"do_sample": false, "encoder_no_repeat_ngram_size": 0, "guidance_scale": 1.0,
        "num_beam_groups": 1, "sequence_bias": null, "stop_strings": []});
    let ignored = |settings| open(settings).unwrap().writing().ignored.clone();
    assert!(ignored(idle).is_empty());
    let busy = json!({"do_sample": true, "encoder_no_repeat_ngram_size": 2,
        "exponential_decay_length_penalty": [5, 1.2], "num_beams": 2});
    let named = [
        "do_sample",
        "encoder_no_repeat_ngram_size",
        "exponential_decay_length_penalty",
    ];
    assert_eq!(ignored(busy), named);
    for (settings, said) in [
        (
            json!({"early_stopping": "always"}),
            r#"early_stopping: found "always"; expected true, false or "never""#,
        ),
        (
            json!({"bad_words_ids": [7]}),
            "bad_words_ids: found [7]; expected a list of lists of ids of tokens",
        ),
        (
            json!({"bad_words_ids": [[7, 53]]}),
            "expected a token of the vocabulary of 53",
        ),
        (
            json!({"eos_token_id": [1, 53]}),
            "expected a token of the vocabulary of 53",
        ),
        (
            json!({"repetition_penalty": 0}),
            "repetition_penalty: found 0; expected a number above 0",
        ),
    ] {
        let error = open(settings).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
}

/// A look at one head or one query gives that part of all weights.
#[test]
fn parts_of_the_weights_are_those_of_the_whole() {
    for case in ["t5", "bart"] {
        let model = model(case, None);
        let (source, target): (&[u32], &[u32]) = (&[7, 8, 9, 10, 2], &[2, 20, 21, 22]);
        let seen = |head, query| {
            let mut look = Look::new(target.len());
            (look.head, look.query, look.source) = (head, query, Some(source.len()));
            let encoded = model.encode(&[source], None).unwrap();
            let mut reading = model.begin(&encoded, Kind::F32);
            reading.read(&[&target[..1]], Some(&mut look)).unwrap();
            reading.read(&[&target[1..]], Some(&mut look)).unwrap();
            look.maps().collect::<Vec<_>>()
        };
        let whole = seen(None, None);
        let layers = model.decoder().stack().blocks().len();
        assert_eq!(whole.len(), 2 * layers);
        for (map, part) in whole.iter().zip(seen(Some(1), Some(2))) {
            let width = map.weights.len() / map.heads / target.len();
            assert_eq!(
                width,
                if map.cross {
                    source.len()
                } else {
                    target.len()
                }
            );
            let row = (target.len() + 2) * width;
            assert_eq!(part.weights, map.weights[row..row + width], "{case}");
        }
    }
}

#[test]
fn small_storage_is_close() {
    for case in CASES {
        let golden = Golden::of(case);
        let source = &sources(&golden)[0];
        for (storage, cache, bound) in [
            (Storage::Bf16, Kind::F32, 0.05),
            (Storage::F16, Kind::F16, 0.01),
            // Rows of 20 numbers leave little to average over, and T5's scores are not scaled.
            (Storage::Int8, Kind::F32, 0.2),
        ] {
            let model = model(case, Some(storage));
            let encoded = model.encode(&[source], None).unwrap();
            let mut reading = model.begin(&encoded, cache);
            let logits = reading.logits(&golden.rows("decoder_ids")[0]).unwrap();
            close(
                &format!("{case} {storage:?}"),
                &logits,
                golden.row("logits", 0),
                bound,
            );
        }
    }
}

/// Configurations in the words of transformers 4 describe the same models.
#[test]
fn former_configurations_describe_the_same_models() {
    for case in CASES.into_iter().chain(TABLES) {
        let copy = copied(case);
        let former = copy.path().join("config.v4.json");
        std::fs::rename(former, copy.path().join("config.json")).unwrap();
        let former = Seq2SeqModel::open(&Folder::open(copy.path()).unwrap(), None).unwrap();
        let logits = |model: &Seq2SeqModel| {
            let encoded = model.encode(&[&[5, 6, 7]], None).unwrap();
            model.begin(&encoded, Kind::F32).logits(&[2, 8, 9]).unwrap()
        };
        assert_eq!(logits(&former), logits(&model(case, None)), "{case}");
    }
}

/// Files of former programs have tied tables several times, and what follows from the configuration.
#[test]
fn copies_of_tables_are_left_alone() {
    for (case, table, copies) in [
        (
            "t5",
            "shared",
            &["encoder.embed_tokens", "decoder.embed_tokens"][..],
        ),
        (
            "bart",
            "model.shared",
            &[
                "model.encoder.embed_tokens",
                "model.decoder.embed_tokens",
                "lm_head",
            ],
        ),
        (
            "marian",
            "model.shared",
            &[
                "model.encoder.embed_tokens",
                "model.decoder.embed_positions",
                "lm_head",
            ],
        ),
    ] {
        let copy = copied(case);
        let path = copy.path().join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut tensors = file.tensors();
        let view = file.tensor(&format!("{table}.weight")).unwrap();
        tensors.extend(
            copies
                .iter()
                .map(|name| (format!("{name}.weight"), view.clone())),
        );
        std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
        let model = Seq2SeqModel::open(&Folder::open(copy.path()).unwrap(), None);
        let (found, usual) = (model.unwrap(), self::model(case, None));
        let logits = |model: &Seq2SeqModel| {
            let encoded = model.encode(&[&[5, 6, 7]], None).unwrap();
            model.begin(&encoded, Kind::F32).logits(&[2, 8, 9]).unwrap()
        };
        assert_eq!(logits(&found), logits(&usual), "{case}");
    }
}

/// Where tied tables differ, or `shared` is left out, transformers 5.24 reads each as `expected` says.
#[test]
fn tied_tables_that_differ_are_read_each() {
    let bytes = std::fs::read(copied("bart").path().join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let table = file.tensor("model.shared.weight").unwrap();
    // Tables of the same rows in another order.
    let turned = |rows: usize| {
        let mut data = table.data().to_vec();
        data.rotate_left(rows * 4 * table.shape()[1]);
        data
    };
    let names = [
        "model.encoder.embed_tokens",
        "model.decoder.embed_tokens",
        "lm_head",
    ];
    let [shared, encoder, decoder, head] = [0, 1, 2, 3].map(turned);
    let logits = |tied: bool, tables: &[(&str, &Vec<u8>)]| {
        let copy = copied("bart");
        let path = copy.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        config["tie_word_embeddings"] = tied.into();
        std::fs::write(path, config.to_string()).unwrap();
        let mut tensors = file.tensors();
        tensors.retain(|(name, _)| name != "model.shared.weight");
        tensors.extend(tables.iter().map(|(name, data)| {
            let view = TensorView::new(table.dtype(), table.shape().to_vec(), data);
            (format!("{name}.weight"), view.unwrap())
        }));
        let bytes = safetensors::serialize(tensors, None).unwrap();
        std::fs::write(copy.path().join("model.safetensors"), bytes).unwrap();
        let model = Seq2SeqModel::open(&Folder::open(copy.path()).unwrap(), None).unwrap();
        let encoded = model.encode(&[&[5, 6, 7]], None).unwrap();
        model.begin(&encoded, Kind::F32).logits(&[2, 8, 9]).unwrap()
    };
    let [of_encoder, of_decoder, of_head] = names;
    let common = ("model.shared", &shared);
    let own = [
        (of_encoder, &encoder),
        (of_decoder, &decoder),
        (of_head, &head),
    ];
    for (tables, expected) in [
        (vec![common], [&shared; 3]),
        (vec![common, own[0]], [&encoder, &shared, &shared]),
        (vec![common, own[1]], [&shared, &decoder, &shared]),
        (vec![common, own[2]], [&shared, &shared, &head]),
        (
            vec![common, own[0], own[1], own[2]],
            [&encoder, &decoder, &head],
        ),
        (vec![own[0], own[1]], [&encoder, &decoder, &decoder]),
        (vec![own[0]], [&encoder; 3]),
    ] {
        let untied: Vec<(&str, &Vec<u8>)> = names.into_iter().zip(expected).collect();
        let given: Vec<&str> = tables.iter().map(|(name, _)| *name).collect();
        assert_eq!(logits(true, &tables), logits(false, &untied), "{given:?}");
    }
}

#[test]
fn what_cannot_be_read_is_refused() {
    let bart = model("bart", None);
    let error = bart.encode(&[&[53]], None).unwrap_err().to_string();
    assert!(
        error.contains("53") && error.contains("vocabulary"),
        "{error}"
    );
    let error = bart.encode(&[&[1; 81]], None).unwrap_err().to_string();
    assert!(error.contains("81") && error.contains("80"), "{error}");
    let encoded = bart.encode(&[&[1; 80]], None).unwrap();
    let error = bart
        .begin(&encoded, Kind::F32)
        .logits(&[1; 81])
        .unwrap_err();
    assert!(error.to_string().contains("80"), "{error}");
    // No search writes more than the context.
    let endless = BeamConfig {
        limit: regard_models::generate::LengthLimit {
            factor: 1e9,
            constant: 1_000,
            most: usize::MAX,
        },
        ..BeamConfig::greedy()
    };
    assert!(bart.write(&[&[7, 8]], &endless).unwrap()[0][0].tokens.len() <= 80);
    let error = LanguageModel::open(&open("t5"), None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("model_type") && error.contains("t5"),
        "{error}"
    );
    let error = Seq2SeqModel::open(&open("gpt2"), None).unwrap_err();
    assert!(error.to_string().contains("encoder-decoders"), "{error}");
}
