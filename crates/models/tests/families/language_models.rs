//! Models that write.

use std::ops::ControlFlow;

use regard_kernels::{Kind, matmul::Storage};
use regard_models::{
    generate::{BeamConfig, Prompt, SampleConfig, beam_search, sample},
    pretrained::{Folder, LanguageModel, Searching, WritingRules},
};
use serde_json::{Value, json};

use super::{Golden, Weights, close, copied, open};

/// All cases, and whether they have a longer text.
const CASES: [(&str, bool); 18] = [
    ("gpt2", false),
    ("gpt2-first", false),
    ("gpt2-pickle", false),
    ("gpt2-scaled", false),
    ("llama", false),
    ("llama-biases", false),
    ("llama-dynamic", true),
    ("llama-linear", false),
    ("llama-llama3", false),
    ("llama-shards", false),
    ("llama-yarn", false),
    ("llama-yarn-options", false),
    ("mistral", false),
    ("phi3", false),
    ("phi3-longrope", true),
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

/// A beam of one hypothesis is greedy, also where the last token of the prompt comes again.
#[test]
fn a_beam_of_one_is_greedy() {
    let mut again = 0;
    for (case, _) in CASES.into_iter().chain(GEMMA) {
        let model = LanguageModel::open(&open(case), None).unwrap();
        for id in 5..model.vocabulary() as u32 {
            let expected = greedy(&model, &[id], 3, Kind::F32);
            let rules = WritingRules::default();
            let mut searching = Searching::new(model.begin(1, Kind::F32), 0, id, &[], rules);
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
