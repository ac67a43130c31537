//! Models that write.

use std::ops::ControlFlow;

use regard_kernels::{Kind, matmul::Storage};
use regard_models::{
    Stepper,
    generate::{BeamConfig, Prompt, SampleConfig, beam_search, sample},
    pretrained::{Folder, LanguageModel, Searching, WritingRules},
    scoring::CausalModel,
};
use serde_json::{Map, Value, json};

use super::{Golden, Weights, close, copied, open};

/// All cases, and whether they have a longer text.
const CASES: [(&str, bool); 21] = [
    ("gpt2", false),
    ("gpt2-first", false),
    ("gpt2-own-head", false),
    ("gpt2-pickle", false),
    ("gpt2-scaled", false),
    ("llama", false),
    ("llama-biases", false),
    ("llama-dynamic", true),
    ("llama-head-alone", false),
    ("llama-linear", false),
    ("llama-llama3", false),
    ("llama-shards", false),
    ("llama-yarn", false),
    ("llama-yarn-options", false),
    ("mistral", false),
    ("phi3", false),
    ("phi3-longrope", true),
    ("phi3-longrope-written", false),
    ("qwen2", false),
    ("qwen2-window", false),
    ("qwen3", false),
];
const GEMMA: [(&str, bool); 2] = [("gemma2", false), ("gemma3", false)];

fn greedy(model: &LanguageModel, prompt: &[u32], count: usize, cache: Kind) -> Vec<u32> {
    let mut reading = model.begin(1, cache);
    let (_, before) = prompt.split_last().unwrap();
    reading.read(&[before], None).unwrap();
    let prompt = Prompt {
        tokens: prompt.to_vec(),
        stream: 0,
    };
    let config = SampleConfig {
        limit: count,
        ..SampleConfig::greedy()
    };
    let all = |_, _| ControlFlow::Continue(());
    let sampled = sample(&mut reading, &[prompt], &config, all).unwrap();
    sampled[0].tokens.clone()
}

#[test]
fn logits_weights_and_tokens_are_those_of_the_original() {
    for (case, long) in CASES.into_iter().chain(GEMMA) {
        let golden = Golden::of(case);
        let model = LanguageModel::open(&open(case), Some(Storage::F32))
            .unwrap_or_else(|error| panic!("{case}: {error}"));
        let tables = match long {
            true => &["", "long."][..],
            false => &[""],
        };
        for prefix in tables {
            let rows = golden.rows(&format!("{prefix}ids"));
            for (row, ids) in rows.iter().enumerate() {
                let what = |part: &str| format!("{case}: {prefix}{part} of row {row}");
                let logits = model.logits(ids).unwrap();
                let expected = golden.row(&format!("{prefix}logits"), row);
                close(&what("logits"), &logits, expected, 1e-4);
                let mut weights = Weights::default();
                let mut reading = model.begin(1, Kind::F32);
                reading.read(&[ids], Some(&mut weights)).unwrap();
                for ((layer, _), found) in &weights.0 {
                    let name = format!("{prefix}attention.{layer}");
                    close(&what(&name), found, golden.row(&name, row), 1e-5);
                }
                // In parts, and with the other row.
                let (one, two) = ids.split_at(ids.len() / 2);
                let mut reading = model.begin(1, Kind::F32);
                let mut parts = reading.logits(one).unwrap();
                parts.extend(reading.logits(two).unwrap());
                if !long {
                    close(&what("logits in parts"), &parts, expected, 1e-4);
                }
            }
        }
        let (from, tokens) = match (long, golden.ids.contains_key("greedy.cached")) {
            (_, true) => ("long.ids", "greedy.cached"),
            (true, false) => ("long.ids", "greedy"),
            _ => ("ids", "greedy"),
        };
        let expected = &golden.rows(tokens)[0];
        let found = greedy(&model, &golden.rows(from)[0], expected.len(), Kind::F32);
        assert_eq!(&found, expected, "{case}: greedy");
    }
}

/// The angles of a prompt are those of its whole length, however many passes it is read in.
#[test]
fn long_prompts_are_read_as_by_the_original() {
    for case in ["llama-dynamic-prompt", "phi3-longrope-prompt"] {
        let golden = Golden::of(case);
        let model = LanguageModel::open(&open(case), Some(Storage::F32)).unwrap();
        let (ids, expected) = (&golden.rows("ids")[0], golden.row("logits", 0));
        let all = model.logits(ids).unwrap();
        close(case, &all[all.len() - expected.len()..], expected, 1e-4);
        // All but its last token, and a step.
        let (last, before) = ids.split_last().unwrap();
        let mut steps = model.read(&[before], Kind::F32).unwrap();
        let mut logits = vec![];
        steps.step(&[*last], &mut logits);
        let expected = &expected[expected.len() - logits.len()..];
        close(case, &logits, expected, 1e-4);
    }
}

/// Rows that grow beyond the length where LongRoPE changes, one after the other and in a search, give what each gives alone.
#[test]
fn rows_that_are_read_again_are_those_of_the_original() {
    let case = "phi3-longrope-written";
    let model = LanguageModel::open(&open(case), None).unwrap();
    let texts = Golden::of(case).rows("ids");
    let texts = [&texts[0][..], &texts[1][..7]];
    let mut reading = model.begin(2, Kind::F32);
    reading.read(&texts, None).unwrap();
    let mut rows = texts.map(<[u32]>::to_vec);
    let mut logits = vec![];
    for step in 0..12 {
        let next = [5 + step, 40 - step];
        reading.step(&next, &mut logits);
        for (row, id) in rows.iter_mut().zip(next) {
            row.push(id);
        }
        reading.select(&[1, 0], false);
        rows.reverse();
        for (row, found) in rows.iter().zip(logits.chunks(model.vocabulary()).rev()) {
            let all = model.logits(row).unwrap();
            let expected = &all[all.len() - found.len()..];
            close(&format!("{case}, step {step}"), found, expected, 1e-4);
        }
    }
}

/// A beam of one hypothesis is greedy, also where the last token of the prompt comes again.
#[test]
fn a_beam_of_one_is_greedy() {
    let mut again = 0;
    for (case, _) in CASES.into_iter().chain(GEMMA) {
        let model = LanguageModel::open(&open(case), None).unwrap();
        for id in 5..model.vocabulary() as u32 {
            let expected = greedy(&model, &[id], 3, Kind::F32);
            let rules = WritingRules::default();
            let mut searching = Searching::new(model.begin(1, Kind::F32), &[], id, &[], rules);
            let mut config = BeamConfig::greedy();
            config.limit.most = 3;
            let found = beam_search(&mut searching, &[1], &config);
            assert_eq!(found[0][0].tokens, expected, "{case} {id}");
            again += usize::from(expected[0] == id);
        }
    }
    assert!(again > 0);
}

/// Rows of different lengths, together and alone, give the same bits.
#[test]
fn a_batch_gives_what_each_text_gives_alone() {
    for case in ["gpt2", "llama", "gemma3"] {
        let model = LanguageModel::open(&open(case), None).unwrap();
        let texts: [&[u32]; 3] = [&[3, 4, 5, 6, 7, 8, 9], &[10, 11], &[12, 13, 14, 15]];
        let config = SampleConfig {
            limit: 8,
            temperature: 0.8,
            seed: 3,
            ..SampleConfig::default()
        };
        let run = |texts: &[(u64, &[u32])]| {
            let mut reading = model.begin(texts.len(), Kind::F32);
            let before: Vec<&[u32]> = texts
                .iter()
                .map(|(_, text)| &text[..text.len() - 1])
                .collect();
            reading.read(&before, None).unwrap();
            let prompts: Vec<Prompt> = texts
                .iter()
                .map(|(stream, text)| Prompt {
                    tokens: text.to_vec(),
                    stream: *stream,
                })
                .collect();
            let all = |_, _| ControlFlow::Continue(());
            sample(&mut reading, &prompts, &config, all).unwrap()
        };
        let numbered: Vec<(u64, &[u32])> = (0..).zip(texts).collect();
        let together = run(&numbered);
        for (row, text) in numbered.iter().enumerate() {
            assert_eq!(run(&[*text])[0], together[row], "{case} {row}");
        }
    }
}

/// Eight bits and half-width caches change logits a little.
#[test]
fn small_storage_is_close() {
    for case in ["gpt2", "llama", "llama-shards"] {
        let golden = Golden::of(case);
        let ids = &golden.rows("ids")[0];
        for (storage, bound) in [
            (Some(Storage::Bf16), 0.05),
            (Some(Storage::F16), 0.01),
            // Rows of 24 and 36 numbers leave little to average over.
            (Some(Storage::Int8), 0.1),
        ] {
            let model = LanguageModel::open(&open(case), storage).unwrap();
            let logits = model.logits(ids).unwrap();
            close(case, &logits, golden.row("logits", 0), bound);
        }
        let model = LanguageModel::open(&open(case), None).unwrap();
        for cache in [Kind::Bf16, Kind::F16] {
            let logits = model.begin(1, cache).logits(ids).unwrap();
            close(case, &logits, golden.row("logits", 0), 0.05);
        }
    }
}

/// Configurations in the words of transformers 4 describe the same models.
#[test]
fn former_configurations_describe_the_same_models() {
    for (case, _) in CASES.into_iter().chain(GEMMA) {
        let copy = copied(case);
        let former = copy.path().join("config.v4.json");
        std::fs::rename(former, copy.path().join("config.json")).unwrap();
        let folder = Folder::open(copy.path()).unwrap();
        let former = LanguageModel::open(&folder, None).unwrap();
        let today = LanguageModel::open(&open(case), None).unwrap();
        let ids = &Golden::of(case).rows("ids")[0];
        assert_eq!(former.logits(ids), today.logits(ids), "{case}");
    }
}

/// The model of a case with a changed configuration, from `file`, or why it is refused.
fn changed(
    case: &str,
    file: &str,
    change: impl FnOnce(&mut Map<String, Value>),
) -> Result<LanguageModel, String> {
    let copy = copied(case);
    let config = std::fs::read(copy.path().join(file)).unwrap();
    let mut config: Map<String, Value> = serde_json::from_slice(&config).unwrap();
    change(&mut config);
    let config = Value::Object(config).to_string();
    std::fs::write(copy.path().join("config.json"), config).unwrap();
    let folder = Folder::open(copy.path()).map_err(|error| error.to_string())?;
    LanguageModel::open(&folder, None).map_err(|error| error.to_string())
}

/// A missing key means what it means to the family's class in transformers 5.24, and `null` does not.
#[test]
fn missing_keys_mean_what_they_mean_to_the_family() {
    let without = |case: &str, keys: &[&str]| {
        changed(case, "config.v4.json", |config| {
            config.retain(|key, _| !keys.contains(&key.as_str()));
        })
    };
    let with = |case: &str, key: &str, value: Value| {
        let change = |config: &mut Map<String, Value>| drop(config.insert(key.to_owned(), value));
        changed(case, "config.v4.json", change)
    };
    let windows = |model: &LanguageModel| -> Vec<Option<usize>> {
        let blocks = model.stack().blocks().iter();
        blocks.map(|block| block.attention.window).collect()
    };
    let wide = Some(4096);
    let mistral = without("mistral", &["sliding_window"]).unwrap();
    assert_eq!(windows(&mistral), [wide, wide]);
    let mistral = with("mistral", "sliding_window", Value::Null).unwrap();
    assert_eq!(windows(&mistral), [None, None]);
    let groups = without("mistral", &["num_key_value_heads"]).unwrap_err();
    assert!(groups.contains("num_key_value_heads: found 8"), "{groups}");
    let qwen = without("qwen2-window", &["max_window_layers", "layer_types"]).unwrap();
    assert_eq!(windows(&qwen), [None; 3]);
    let head = without("qwen3", &["head_dim"]).unwrap_err();
    assert!(head.contains("[768, 24]"), "{head}");
    let phi = without("phi3", &["rms_norm_eps"]).unwrap();
    assert_eq!(phi.stack().last_norm().unwrap().epsilon, 1e-5);

    let keys = [
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "sliding_window",
    ];
    let gemma = without("gemma2", &keys).unwrap();
    assert_eq!(windows(&gemma), [wide, None, wide]);
    assert_eq!(gemma.stack().sizes().softcap, Some(50.0));
    assert_eq!(gemma.stack().blocks()[0].attention.scale, Some(1.0 / 16.0));
    let key = "final_logit_softcapping";
    let logits = |model: Result<LanguageModel, String>| model.unwrap().logits(&[5, 6, 7]).unwrap();
    let missing = logits(without("gemma2", &[key]));
    assert_eq!(missing, logits(with("gemma2", key, json!(30.0))));
    assert_ne!(missing, logits(with("gemma2", key, Value::Null)));

    let gemma = without("gemma3", &["rope_theta", "rope_local_base_freq"]).unwrap();
    let second = |layer: usize| {
        let rotation = gemma.stack().blocks()[layer].attention.rotation.unwrap();
        gemma.stack().rotations()[rotation].frequencies[1]
    };
    // Of 4 pairs; positions of the layer that sees all are divided by 2.
    assert!((second(0) - 1e4f64.powf(-0.25)).abs() < 1e-9);
    assert!((second(2) - 1e6f64.powf(-0.25) / 2.0).abs() < 1e-9);
}

/// Rotary scaling in other words, as transformers 5.24 reads them.
#[test]
fn other_words_for_a_scaling_describe_the_same_model() {
    type Change = fn(&mut Map<String, Value>);
    let cases: [(&str, &str, Change); 6] = [
        ("phi3-longrope", "config.v4.json", |config| {
            config["rope_scaling"]["type"] = json!("yarn");
        }),
        // `rope_scaling` holds, where both are.
        ("llama-linear", "config.v4.json", |config| {
            let unscaled = json!({"rope_type": "default", "rope_theta": 10000.0});
            config.insert("rope_parameters".to_owned(), unscaled);
        }),
        ("gemma3", "config.json", |config| {
            let full = &mut config["rope_parameters"]["full_attention"];
            *full = json!({"rope_type": "default", "rope_theta": full["rope_theta"]});
            let scaling = json!({"rope_type": "linear", "factor": 2.0});
            config.insert("rope_scaling".to_owned(), scaling);
        }),
        ("llama-llama3", "config.json", |config| {
            let parameters = config["rope_parameters"].as_object_mut().unwrap();
            let trained = parameters.remove("original_max_position_embeddings");
            config["max_position_embeddings"] = trained.unwrap();
        }),
        // The length of training that stands beside the section holds.
        ("llama-llama3", "config.json", |config| {
            let key = "original_max_position_embeddings";
            let section = &mut config["rope_parameters"][key];
            let trained = std::mem::replace(section, json!(7));
            config.insert(key.to_owned(), trained);
        }),
        ("phi3-longrope", "config.json", |config| {
            config["rope_parameters"]["original_max_position_embeddings"] = json!(7);
        }),
    ];
    for (case, file, change) in cases {
        let usual = LanguageModel::open(&open(case), None).unwrap();
        let found = changed(case, file, change).unwrap();
        let golden = Golden::of(case);
        for rows in ["ids", "long.ids"]
            .into_iter()
            .filter(|rows| golden.ids.contains_key(*rows))
        {
            let ids = &golden.rows(rows)[0];
            assert_eq!(found.logits(ids), usual.logits(ids), "{case}: {rows}");
        }
    }
}

/// A text may be as long as YaRN stretches the length of training.
#[test]
fn yarn_lengthens_the_context() {
    let usual = LanguageModel::open(&open("llama-yarn"), None).unwrap();
    let of = |length: usize| {
        let change = |config: &mut Map<String, Value>| {
            config["max_position_embeddings"] = json!(length);
        };
        changed("llama-yarn", "config.json", change).unwrap()
    };
    assert_eq!(usual.context(), 4096);
    let short = of(16);
    assert_eq!(short.context(), 4096);
    assert_eq!(of(5000).context(), 5000);
    let ids = &Golden::of("llama-yarn").rows("ids")[0];
    let long = ids.repeat(2);
    assert_eq!(short.logits(&long), usual.logits(&long));
}

#[test]
fn what_no_model_here_does_is_refused() {
    let with = |case: &str, key: &str, value: Value| {
        let change = |config: &mut Map<String, Value>| drop(config.insert(key.to_owned(), value));
        changed(case, "config.json", change).unwrap_err()
    };
    for case in ["gemma2", "gemma3"] {
        let error = with(case, "use_bidirectional_attention", json!(true));
        let named = error.contains("use_bidirectional_attention: found true");
        assert!(named && error.contains("EmbeddingGemma"), "{error}");
    }
    // Cosines and sines would be multiplied by a number without end.
    let key = "original_max_position_embeddings";
    let error = with("phi3-longrope", key, json!(1));
    let expected = format!("{key}: found 1; expected at least 2");
    assert!(error.contains(&expected), "{error}");
    // Before frequencies are made for each of its features.
    let error = with("llama", "head_dim", json!(16_777_216));
    assert!(
        error.ends_with(
            "head_dim: found 16777216; expected heads of at most 256 features, not 16777216"
        ),
        "{error}"
    );
}

#[test]
fn what_files_lack_is_said() {
    let opened = |copy: &tempfile::TempDir| {
        let folder = Folder::open(copy.path()).unwrap();
        LanguageModel::open(&folder, None).unwrap_err().to_string()
    };
    let copy = copied("llama");
    let file = copy.path().join("config.json");
    let config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let mut turned = config.clone();
    turned["rope_parameters"]["rope_theta"] = json!(1e-300);
    std::fs::write(&file, turned.to_string()).unwrap();
    let error = opened(&copy);
    assert!(
        error.ends_with("rope_theta: found 1e-300; expected a number above 1"),
        "{error}"
    );
    std::fs::write(&file, config.to_string()).unwrap();
    // A file of no tensors.
    let empty = [&2u64.to_le_bytes()[..], b"{}"].concat();
    std::fs::write(copy.path().join("model.safetensors"), empty).unwrap();
    let error = opened(&copy);
    assert!(
        error.ends_with("its files of weights hold no tensors; download them again"),
        "{error}"
    );
}

#[test]
fn what_cannot_be_read_is_refused() {
    let model = LanguageModel::open(&open("gpt2-first"), None).unwrap();
    let error = model.logits(&[53]).unwrap_err().to_string();
    assert!(
        error.contains("53") && error.contains("vocabulary"),
        "{error}"
    );
    let error = model.logits(&[1; 29]).unwrap_err().to_string();
    assert!(error.contains("29") && error.contains("28"), "{error}");
    let error = LanguageModel::open(&open("bert"), None)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("model_type") && error.contains("bert"),
        "{error}"
    );
}
