//! Tokenizers in the files that were usual before `tokenizer.json`, as the `tokenizer.json` that they make.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{
    Roles, content, convert,
    sentence_piece::{SentencePieces, metaspace, template, token},
    stated::entry,
};
use crate::pretrained::{
    error::PretrainedError,
    json::{LARGEST_LIST, json as read_json, settings, text},
};

type Object = Map<String, Value>;

/// Classes whose byte-level BPE puts no tokens around a text, and those that put `<s>` and `</s>` around it.
const GPT: [&str; 1] = ["GPT2"];
const ROBERTA: [&str; 4] = ["Roberta", "Bart", "Longformer", "LED"];
/// Classes that are BERT's.
const BERT: [&str; 5] = ["Bert", "DistilBert", "Electra", "MobileBert", "Lxmert"];

/// Classes with a model of SentencePiece alone.
const PIECES: [&str; 3] = ["T5", "MT5", "Llama"];

/// `vocab.json` and `merges.txt`.
pub(super) fn byte_level(
    folder: &Path,
    config: &Object,
    model: &Object,
    special: &mut Roles,
) -> Result<Value, PretrainedError> {
    let vocabulary: Object = read_json(&folder.join("vocab.json"), LARGEST_LIST)?;
    let merges = folder.join("merges.txt");
    let merges = text(&merges, LARGEST_LIST)?;
    let merges: Vec<&str> = merges
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("#version"))
        .collect();
    let class = class(
        folder,
        config,
        model,
        &[&GPT[..], &ROBERTA].concat(),
        "GPT2",
    )?;
    let usual = if ROBERTA.contains(&class) {
        &[
            ("bos", "<s>"),
            ("eos", "</s>"),
            ("unk", "<unk>"),
            ("sep", "</s>"),
            ("pad", "<pad>"),
            ("cls", "<s>"),
            ("mask", "<mask>"),
        ][..]
    } else {
        &[
            ("bos", "<|endoftext|>"),
            ("eos", "<|endoftext|>"),
            ("unk", "<|endoftext|>"),
        ]
    };
    let added = added(folder, config, &vocabulary, special, usual)?;
    let prefix = config
        .get("add_prefix_space")
        .and_then(Value::as_bool)
        .unwrap_or(false);
    let bytes = |trim| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": true});
    let around = if ROBERTA.contains(&class) {
        let [cls, sep] = ["cls", "sep"].map(|role| added.token(role));
        json!({"type": "RobertaProcessing", "sep": sep?, "cls": cls?, "trim_offsets": true, "add_prefix_space": prefix})
    } else {
        bytes(false)
    };
    Ok(json!({
        "added_tokens": added.tokens,
        "pre_tokenizer": bytes(true),
        "post_processor": around,
        "decoder": bytes(true),
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }))
}

/// `vocab.txt`.
pub(super) fn word_piece(
    folder: &Path,
    config: &Object,
    model: &Object,
    special: &mut Roles,
) -> Result<Value, PretrainedError> {
    let tokens = text(&folder.join("vocab.txt"), LARGEST_LIST)?;
    let ids = tokens.lines().enumerate();
    let vocabulary: Object = ids
        .map(|(id, token)| (token.to_owned(), id.into()))
        .collect();
    class(folder, config, model, &BERT, "Bert")?;
    let usual = [
        ("unk", "[UNK]"),
        ("sep", "[SEP]"),
        ("pad", "[PAD]"),
        ("cls", "[CLS]"),
        ("mask", "[MASK]"),
    ];
    let added = added(folder, config, &vocabulary, special, &usual)?;
    let flag = |key: &str| config.get(key).and_then(Value::as_bool);
    let (cls, sep) = (added.token("cls")?, added.token("sep")?);
    let special = |token: &Value, of| json!({"SpecialToken": {"id": token[0], "type_id": of}});
    let text = |name, of| json!({"Sequence": {"id": name, "type_id": of}});
    let single = [special(&cls, 0), text("A", 0), special(&sep, 0)];
    let pair = [&single[..], &[text("B", 1), special(&sep, 1)]].concat();
    let entry = |token: &Value| json!({"id": token[0], "ids": [token[1]], "tokens": [token[0]]});
    let entries: Object = [&cls, &sep]
        .into_iter()
        .filter_map(|token| Some((token[0].as_str()?.to_owned(), entry(token))))
        .collect();
    Ok(json!({
        "added_tokens": added.tokens,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": flag("tokenize_chinese_chars").unwrap_or(true),
            "strip_accents": flag("strip_accents"),
            "lowercase": flag("do_lower_case").unwrap_or(true),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": entries},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece",
            "unk_token": added.token("unk")?[0],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    }))
}

/// `spiece.model` of T5, or `tokenizer.model` of Llama.
pub(super) fn sentence_pieces(
    path: &Path,
    config: &Object,
    model: &Object,
    special: &mut Roles,
) -> Result<Value, PretrainedError> {
    let folder = path.parent().unwrap_or(path);
    class(folder, config, model, &PIECES, "T5")?;
    let model = SentencePieces::read(path)?;
    let place = |role: &str, special: &Roles| {
        let text = special.get(role).and_then(content)?.to_owned();
        let id = model.pieces.iter().position(|piece| piece.text == text)?;
        Some((text, id))
    };
    let flag = |key: &str, usual| config.get(key).and_then(Value::as_bool).unwrap_or(usual);
    for (role, text) in [("eos", "</s>"), ("unk", "<unk>")] {
        special.entry(role).or_insert_with(|| text.into());
    }
    if model.merges() {
        special.entry("bos").or_insert_with(|| "<s>".into());
        let bos = place("bos", special).filter(|_| flag("add_bos_token", true));
        let eos = place("eos", special).filter(|_| flag("add_eos_token", false));
        let [bos, eos] =
            [&bos, &eos].map(|token| token.as_ref().map(|(text, id)| (text.as_str(), *id)));
        let around = |text| -> Vec<&str> {
            let parts = [
                bos.map(|token| token.0),
                Some(text),
                eos.map(|token| token.0),
            ];
            parts.into_iter().flatten().collect()
        };
        let ids: Vec<_> = [bos, eos].into_iter().flatten().collect();
        let pair = [around("$A"), around("$B")].concat();
        let around = template(&around("$A"), &pair, &ids);
        return model.byte_pairs(path, &around, flag("legacy", false));
    }
    special.entry("pad").or_insert_with(|| "<pad>".into());
    let Some((eos, id)) = place("eos", special) else {
        return Err(PretrainedError::malformed(
            path,
            "it lacks </s>, the end of a text",
        ));
    };
    let extra = config
        .get("extra_ids")
        .and_then(Value::as_u64)
        .unwrap_or(100)
        .min(10_000);
    let extra: Vec<String> = (0..extra)
        .rev()
        .map(|number| format!("<extra_id_{number}>"))
        .collect();
    let eos = eos.as_str();
    let around = template(&["$A", eos], &["$A", eos, "$B", eos], &[(eos, id)]);
    Ok(model.unigram(&extra, &around))
}

/// Marian's `source.spm` or `target.spm` at `pieces`, which have the ids of a `vocab.json` at `path`: the document of the pieces, and
/// that of the vocabulary, which decodes.
pub(super) fn marian(
    pieces: &Path,
    path: &Path,
    special: &mut Roles,
) -> Result<(Value, Value), PretrainedError> {
    let vocabulary: Object = read_json(path, LARGEST_LIST)?;
    for (role, text) in [("eos", "</s>"), ("unk", "<unk>"), ("pad", "<pad>")] {
        special.entry(role).or_insert_with(|| text.into());
    }
    let mut added = vec![];
    for (role, text) in special.iter() {
        let text = content(text).unwrap_or_default();
        let id = vocabulary.get(text).and_then(Value::as_u64);
        match id.and_then(|id| usize::try_from(id).ok()) {
            Some(id) => added.push(token(id, text, true)),
            None if ["eos", "unk"].contains(role) => {
                let problem = format!("it lacks {text}, the {role} token");
                return Err(PretrainedError::malformed(path, problem));
            }
            None => {}
        }
    }
    // A model of several languages is told by such a token which of them to write.
    let languages = vocabulary
        .keys()
        .filter(|text| text.starts_with(">>") && text.ends_with("<<"));
    let whole = special
        .values()
        .filter_map(content)
        .chain(languages.map(String::as_str));
    let pieces = SentencePieces::read(pieces)?;
    let known = |text: &&str| !pieces.pieces.iter().any(|piece| piece.text == *text);
    let whole: Vec<String> = whole.filter(known).map(str::to_owned).collect();
    let unknown = special.get("unk").and_then(content);
    let decoder = json!({
        "added_tokens": added,
        "decoder": {"type": "Sequence", "decoders": [
            metaspace("always"), {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1000, "stop": 0},
        ]},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": unknown},
    });
    let mut encoder = pieces.unigram(&whole, &Value::Null);
    // No other white space than spaces separates words.
    let replace = |pattern: &str, content: &str| json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": content});
    let first = json!({"type": "Prepend", "prepend": "▁"});
    let mut steps = vec![replace(" {2,}", " "), replace(r"\A | \z", ""), first];
    if !encoder["normalizer"].is_null() {
        steps.insert(0, encoder["normalizer"].take());
    }
    encoder["normalizer"] = json!({"type": "Sequence", "normalizers": steps});
    encoder["pre_tokenizer"] = metaspace("never");
    Ok((encoder, decoder))
}

/// The class of a tokenizer, of those that are `known`: the one that `tokenizer_config.json` names, or else that of the model.
fn class<'a>(
    folder: &Path,
    config: &Object,
    model: &Object,
    known: &[&'a str],
    usual: &'a str,
) -> Result<&'a str, PretrainedError> {
    let named = config.get("tokenizer_class").and_then(Value::as_str);
    if let Some(named) = named {
        let bare = named.trim_end_matches("Fast").trim_end_matches("Tokenizer");
        return known.iter().find(|class| **class == bare).copied().ok_or_else(|| {
            PretrainedError::malformed(
                &folder.join("tokenizer_config.json"),
                format!(
                    "tokenizer_class: found {named:?} without a tokenizer.json; expected one of {}; {}",
                    known.join(", "),
                    convert(folder)
                ),
            )
        });
    }
    let of_model = model
        .get("model_type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let found = known
        .iter()
        .find(|class| class.eq_ignore_ascii_case(of_model));
    Ok(found.copied().unwrap_or(usual))
}

/// The tokens that are found in a text before it is split.
struct Added<'a> {
    folder: &'a Path,
    /// The entries of the document.
    tokens: Vec<Value>,
    /// The text and the id of the token of each role.
    roles: Vec<(&'static str, Value)>,
}

impl Added<'_> {
    /// A token as `[text, id]`.
    fn token(&self, role: &str) -> Result<Value, PretrainedError> {
        let found = self.roles.iter().find(|(known, _)| *known == role);
        found.map(|(_, token)| token.clone()).ok_or_else(|| {
            PretrainedError::malformed(
                self.folder,
                format!(
                    "the vocabulary lacks the tokenizer's {role} token; name it with {role}_token in tokenizer_config.json"
                ),
            )
        })
    }
}

/// The added tokens of `tokenizer_config.json` and `added_tokens.json`, and the special tokens, which are `usual` where no file
/// names them.
fn added<'a>(
    folder: &'a Path,
    config: &Object,
    vocabulary: &Object,
    special: &mut Roles,
    usual: &[(&'static str, &str)],
) -> Result<Added<'a>, PretrainedError> {
    for &(role, token) in usual {
        special.entry(role).or_insert_with(|| token.into());
    }
    let more = settings(&folder.join("added_tokens.json"))?;
    let listed = config
        .get("added_tokens_decoder")
        .and_then(Value::as_object);
    // Each token with its settings, a later one in place of a former.
    let mut tokens = Object::new();
    for (token, id) in &more {
        tokens.insert(token.clone(), entry(id, &token.as_str().into(), false));
    }
    let mut roles = vec![];
    for (role, token) in special {
        let Some(text) = content(token) else { continue };
        if let Some(id) = vocabulary.get(text).or_else(|| more.get(text)) {
            tokens.insert(text.to_owned(), entry(id, token, true));
            roles.push((*role, json!([text, id])));
        }
    }
    for (id, token) in listed.into_iter().flatten() {
        if let (Ok(id), Some(text)) = (id.parse::<u32>(), content(token)) {
            tokens.insert(text.to_owned(), entry(&id.into(), token, false));
        }
    }
    let mut tokens: Vec<Value> = tokens.into_iter().map(|(_, token)| token).collect();
    tokens.sort_by_key(|token| token["id"].as_u64());
    Ok(Added {
        folder,
        tokens,
        roles,
    })
}
