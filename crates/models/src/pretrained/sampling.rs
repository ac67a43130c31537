//! How tokens are drawn where a folder says so.

use std::path::Path;

use super::{Config, PretrainedError};
use crate::generate::{SampleConfig, SampleError};

/// Keys that are not obeyed, each with the number with which it has no effect.
const IGNORED: [(&str, f64); 21] = [
    ("bad_words_ids", 0.0),
    ("begin_suppress_tokens", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("exponential_decay_length_penalty", 0.0),
    // Any id has an effect.
    ("forced_bos_token_id", -1.0),
    ("forced_eos_token_id", -1.0),
    ("guidance_scale", 1.0),
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beams", 1.0),
    ("penalty_alpha", 0.0),
    ("sequence_bias", 0.0),
    ("stop_strings", 0.0),
    ("suppress_tokens", 0.0),
    ("top_h", 0.0),
    ("typical_p", 1.0),
    ("watermarking_config", 0.0),
];

/// `usual`, unless `generation_config.json` in `folder`, or else its `config.json`, has other settings: with `"do_sample": true` its
/// temperature, `top_k`, `top_p` and `min_p`, by transformers' defaults (1, 50, 1 and 0) where it leaves one out; its
/// `repetition_penalty` in any case. Beside it the settings of that file that are not obeyed.
///
/// # Errors
/// A setting that is no number, or out of its range.
pub fn sampling(
    folder: &Path,
    usual: SampleConfig,
) -> Result<(SampleConfig, Vec<&'static str>), PretrainedError> {
    let model = folder.join("config.json");
    let own = match Config::of_generation(folder)? {
        Some(own) => own,
        None if model.exists() => Config::read_file(&model)?,
        None => return Ok((usual, vec![])),
    };
    let mut found = usual;
    if own.flag_or("do_sample", false)? {
        found.temperature = own.float_or("temperature", 1.0)?;
        found.top_k = own.count_or("top_k", 50)?;
        found.top_p = own.float_or("top_p", 1.0)?;
        found.min_p = own.float_or("min_p", 0.0)?;
    }
    let penalty = "repetition_penalty";
    found.repetition_penalty = own.float_or(penalty, found.repetition_penalty)?;
    match found.check() {
        Err(SampleError::Setting { name, expected, .. }) => Err(own.refuse(name, expected)),
        _ => {
            let ignored = IGNORED
                .iter()
                .filter(|(key, none)| own.has_effect(key, *none));
            Ok((found, ignored.map(|(key, _)| *key).collect()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_folder_has_settings_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let usual = SampleConfig {
            temperature: 0.8,
            top_k: 40,
            seed: 3,
            ..SampleConfig::default()
        };
        let of = |text: &str| {
            fs::write(folder.path().join("generation_config.json"), text).unwrap();
            sampling(folder.path(), usual.clone())
        };
        let without = sampling(folder.path(), usual.clone()).unwrap();
        assert_eq!(without, (usual.clone(), vec![]));
        let drawn = of(
            r#"{"do_sample": true, "top_p": 0.9, "min_p": null, "max_length": 20, "min_length": 0}"#,
        );
        let expected = SampleConfig {
            temperature: 1.0,
            top_k: 50,
            top_p: 0.9,
            ..usual.clone()
        };
        assert_eq!(drawn.unwrap(), (expected, vec![]));
        let greedy = of(
            r#"{"temperature": 0.1, "repetition_penalty": 1.3, "min_length": 2, "bad_words_ids": [[3]]}"#,
        );
        let expected = SampleConfig {
            repetition_penalty: 1.3,
            ..usual.clone()
        };
        assert_eq!(
            greedy.unwrap(),
            (expected, vec!["bad_words_ids", "min_length"])
        );
        // Where there is no such file, the model's own says so.
        fs::write(
            folder.path().join("config.json"),
            r#"{"model_type": "gpt2", "do_sample": true, "top_k": 7, "repetition_penalty": 1.2, "num_beams": 4}"#,
        )
        .unwrap();
        assert_eq!(of("{}").unwrap(), (usual.clone(), vec![]));
        fs::remove_file(folder.path().join("generation_config.json")).unwrap();
        let former = SampleConfig {
            temperature: 1.0,
            top_k: 7,
            repetition_penalty: 1.2,
            ..usual.clone()
        };
        let found = sampling(folder.path(), usual.clone()).unwrap();
        assert_eq!(found, (former, vec!["num_beams"]));
        for (key, value) in [
            ("top_h", json!(0.4)),
            ("encoder_repetition_penalty", json!(1.2)),
            ("encoder_no_repeat_ngram_size", json!(3)),
            ("forced_bos_token_id", json!(0)),
            ("forced_eos_token_id", json!(0)),
            ("watermarking_config", json!({"greenlist_ratio": 0.25})),
        ] {
            let ignored = of(&json!({key: value}).to_string()).unwrap().1;
            assert_eq!(ignored, [key]);
        }
        for (text, key) in [
            (r#"{"do_sample": true, "top_p": 2}"#, "top_p"),
            (r#"{"do_sample": true, "temperature": "x"}"#, "temperature"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
        ] {
            let error = of(text).unwrap_err().to_string();
            let named = error.contains(key) && error.contains("generation_config.json");
            assert!(named, "{error}");
        }
    }
}
