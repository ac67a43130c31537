//! Folders made for a test.

use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

use rand_chacha::{
    ChaCha12Rng,
    rand_core::{RngCore, SeedableRng},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder that is removed at the end of the test.
pub struct Files(TempDir);

impl Files {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A folder with a configuration.
    pub fn with_config() -> Self {
        let files = Self::new();
        files.write("config.json", json!({"model_type": "gpt2"}).to_string());
        files
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> &Self {
        fs::write(self.file(name), content).unwrap();
        self
    }

    pub fn json(&self, name: &str, content: &Value) -> &Self {
        self.write(name, content.to_string())
    }

    pub fn remove(&self, name: &str) -> &Self {
        fs::remove_file(self.file(name)).unwrap();
        self
    }
}

/// A safetensors file with this header, followed by `values` bytes of values, which count up.
pub fn safetensors_of(header: &str, values: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..values).map(|value| value as u8 & 0x3f));
    file
}

/// A safetensors file of tensors with these names, types and shapes, one after the other.
pub fn safetensors(tensors: &[(&str, &str, &[usize])]) -> Vec<u8> {
    let (mut header, mut end) = (String::from("{"), 0);
    for (place, (name, dtype, shape)) in tensors.iter().enumerate() {
        let width = match *dtype {
            "F32" => 4,
            "F16" | "BF16" => 2,
            "I64" => 8,
            _ => 1,
        };
        let begin = end;
        end += shape.iter().product::<usize>() * width;
        let comma = if place == 0 { "" } else { "," };
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]});
        write!(header, "{comma}{}:{entry}", json!(name)).unwrap();
    }
    header.push('}');
    safetensors_of(&header, end)
}

/// Two shards and their index.
pub fn write_shards(files: &Files) {
    files
        .write(
            "a.safetensors",
            safetensors(&[("x", "F32", &[2, 3]), ("y", "BF16", &[4])]),
        )
        .write("b.safetensors", safetensors(&[("z", "F16", &[2])]))
        .json(
            "model.safetensors.index.json",
            &json!({"metadata": {"total_size": 36}, "weight_map": {
                "x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors",
            }}),
        );
}

/// Numbers for damaging files.
pub struct Random(ChaCha12Rng);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(ChaCha12Rng::seed_from_u64(seed))
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.0.next_u64() % end.max(1) as u64) as usize
    }
}

/// The characters that GPT-2 writes for bytes, in the order of the bytes.
fn alphabet() -> Vec<char> {
    let mut more = 0x100..;
    let shown = |byte: &u32| {
        (33..=126).contains(byte) || (161..=172).contains(byte) || (174..=255).contains(byte)
    };
    (0..256)
        .map(|byte| {
            if shown(&byte) {
                byte
            } else {
                more.next().unwrap()
            }
        })
        .map(|code| char::from_u32(code).unwrap())
        .collect()
}

/// The vocabulary and the merges of a byte-level BPE that knows a few words.
pub fn byte_level() -> (serde_json::Map<String, Value>, Vec<String>) {
    let mut tokens: Vec<String> = alphabet().into_iter().map(String::from).collect();
    let merges = [
        "t h", "th e", "Ġ the", "Ġ m", "Ġm a", "Ġma n", "Ġ a", "i n", "in g", "ä º", "äº º",
    ];
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    tokens.push("<|endoftext|>".to_owned());
    let vocabulary = tokens
        .into_iter()
        .enumerate()
        .map(|(id, token)| (token, id.into()));
    (vocabulary.collect(), merges.map(String::from).to_vec())
}

/// The tokenizer of [`byte_level`] as `tokenizer.json`.
pub fn byte_level_document() -> Value {
    let (vocabulary, merges) = byte_level();
    let id = vocabulary["<|endoftext|>"].clone();
    json!({
        "version": "1.0",
        "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "!"},
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "added_tokens": [{
            "id": id, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [id], "tokens": ["<|endoftext|>"]}},
        },
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": 0.5, "vocab": vocabulary, "merges": merges},
    })
}

/// A SentencePiece-like tokenizer as Llama 2 has it: spaces as `▁`, and bytes for what is not in the vocabulary.
pub fn byte_fallback_document() -> Value {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(String::from).to_vec();
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(
        "▁ a m n t h e r d o i g . , x y s"
            .split(' ')
            .map(String::from),
    );
    let merges = ["▁ a", "m a", "ma n", "▁ man", "t h", "th e", "▁ the"];
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let vocabulary: serde_json::Map<String, Value> = tokens
        .into_iter()
        .enumerate()
        .map(|(id, token)| (token, id.into()))
        .collect();
    let special = |id: u32, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    json!({
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocabulary, "merges": merges},
    })
}
