//! `generate`, `look`, `fill`, `embed` and `translate`, with tiny models of random weights.

mod encoder_decoders;
mod encoders;
mod generate;
mod look;
mod refusals;

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::text;

/// A copy of a golden checkpoint with a tokenizer of whole words, as many as the model has.
pub fn model(case: &str, folder: &Path) -> String {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden/pretrained");
    let to = folder.join(case);
    fs::create_dir(&to).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(golden.join(case).join(name), to.join(name)).unwrap();
    }
    let reads = case.starts_with("bert") || case.starts_with("longformer");
    let second = usize::from(case.starts_with("bert"));
    let translates = ["t5", "bart", "marian"].contains(&case);
    let special: &[&str] = match case {
        _ if reads => &["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        "t5" => &["<pad>", "</s>", "<unk>"],
        "bart" => &["<s>", "<pad>", "</s>", "<unk>"],
        "marian" => &["</s>", "<unk>"],
        _ => &["<unk>", "</s>"],
    };
    let unknown = if reads { "[UNK]" } else { "<unk>" };
    let rows = if reads { 51 } else { 53 };
    let words = special.iter().map(|name| (*name).to_owned());
    let words = words.chain((0..).map(|i| format!("w{i}"))).take(rows);
    let vocabulary: Value = words.zip(0..).map(|(word, id)| (word, json!(id))).collect();
    let added = special.iter().zip(0..).map(|(token, id)| {
        json!({"id": id, "content": token, "special": true, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false})
    });
    let around = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
        "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "[SEP]", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": second}},
                 {"SpecialToken": {"id": "[SEP]", "type_id": second}}],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                           "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}});
    let end = special.iter().position(|token| *token == "</s>");
    let ended = json!({"type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [end], "tokens": ["</s>"]}}});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": if reads { around } else if translates { ended } else { Value::Null }, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": unknown}
    });
    fs::write(to.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let marks = match reads {
        true => {
            json!({"mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"})
        }
        false => json!({"eos_token": "</s>", "unk_token": "<unk>"}),
    };
    fs::write(to.join("tokenizer_config.json"), marks.to_string()).unwrap();
    text(&to)
}
