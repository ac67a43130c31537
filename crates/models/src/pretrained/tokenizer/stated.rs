//! What `tokenizer_config.json` and the files beside it state of a tokenizer, in its document, as transformers 5.24 obeys it.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

use serde_json::{Map, Value, json};

use super::{ROLES, Roles, Side, content};
use crate::pretrained::{error::PretrainedError, json::settings};

type Object = Map<String, Value>;

/// Classes whose steps are those of `tokenizer.json` whatever else is stated.
const AS_THEY_ARE: [&str; 2] = ["PreTrainedTokenizerFast", "TokenizersBackend"];

/// Steps of a document by name and type, and for each key that is stated the field that it sets.
type Step = (
    &'static str,
    &'static str,
    &'static [(&'static str, &'static str)],
);
const STEPS: [Step; 3] = [
    (
        "normalizer",
        "BertNormalizer",
        &[
            ("do_lower_case", "lowercase"),
            ("strip_accents", "strip_accents"),
            ("tokenize_chinese_chars", "handle_chinese_chars"),
        ],
    ),
    (
        "pre_tokenizer",
        "ByteLevel",
        &[("add_prefix_space", "add_prefix_space")],
    ),
    (
        "post_processor",
        "RobertaProcessing",
        &[("add_prefix_space", "add_prefix_space")],
    ),
];

/// Where a text is cut: what `tokenizer_config.json` says, or else the file of the library `tokenizers`.
pub(super) fn truncation_side(
    folder: &Path,
    config: &Map<String, Value>,
    document: &Value,
) -> Result<Side, PretrainedError> {
    let of_config = ("tokenizer_config.json", "truncation_side");
    let of_document = ("tokenizer.json", "truncation.direction");
    let said = [
        (of_config, config.get("truncation_side")),
        (of_document, document.pointer("/truncation/direction")),
    ];
    for ((file, key), said) in said {
        let Some(said) = said.filter(|said| !said.is_null()) else {
            continue;
        };
        return match said.as_str().map(str::to_lowercase).as_deref() {
            Some("left") => Ok(Side::Left),
            Some("right") => Ok(Side::Right),
            _ => Err(PretrainedError::malformed(
                &folder.join(file),
                format!("{key} is {said}; expected \"left\" or \"right\""),
            )),
        };
    }
    Ok(Side::Right)
}

/// An entry of a document's `added_tokens`.
pub(super) fn entry(id: &Value, token: &Value, special: bool) -> Value {
    let flag = |key: &str| token[key].as_bool();
    json!({
        "id": id,
        "content": content(token),
        "single_word": flag("single_word").unwrap_or(false),
        "lstrip": flag("lstrip").unwrap_or(false),
        "rstrip": flag("rstrip").unwrap_or(false),
        "normalized": flag("normalized").unwrap_or(!special),
        "special": flag("special").unwrap_or(special),
    })
}

/// The steps of BERT's, GPT-2's and RoBERTa's tokenizers with the flags that are stated.
///
/// # Errors
/// A flag that is not supported.
pub(super) fn steps(
    folder: &Path,
    config: &Object,
    document: &mut Value,
) -> Result<(), PretrainedError> {
    const SPLIT: &str = "split_special_tokens";
    let flag = |key: &str| config.get(key).and_then(Value::as_bool);
    if flag(SPLIT) == Some(true) {
        return Err(PretrainedError::malformed(
            &folder.join("tokenizer_config.json"),
            format!(
                "{SPLIT}: found true; expected false: text that spells a special token is that token"
            ),
        ));
    }
    let class = config.get("tokenizer_class").and_then(Value::as_str);
    if class.is_some_and(|class| AS_THEY_ARE.contains(&class)) {
        return Ok(());
    }
    for (step, kind, flags) in STEPS {
        if document[step]["type"] != kind {
            continue;
        }
        for (key, field) in flags {
            if let Some(stated) = flag(key) {
                document[step][*field] = stated.into();
            }
        }
    }
    Ok(())
}

/// Whether decoded text loses the spaces in front of punctuation: never that of byte pairs, which have spaces of their own.
pub(super) fn cleans(config: &Object, document: &Value) -> bool {
    let stated = config.get("clean_up_tokenization_spaces");
    stated.and_then(Value::as_bool) == Some(true) && document["model"]["merges"].is_null()
}

/// Adds the tokens that are named beside a document to those that it has: in the order of their ids those of `added_tokens_decoder`, or
/// else of `added_tokens.json` where the document is not `of_library`; those with a role; further special ones. Those that are not in the
/// vocabulary have the ids behind it. Flags of `added_tokens_decoder` are those of the document's own tokens, too.
///
/// # Errors
/// A damaged file.
pub(super) fn tokens(
    folder: &Path,
    config: &Object,
    of_library: bool,
    roles: &Roles,
    document: &mut Value,
) -> Result<(), PretrainedError> {
    let listed = config
        .get("added_tokens_decoder")
        .and_then(Value::as_object);
    let read = |name: &str, wanted: bool| match wanted && listed.is_none() {
        true => settings(&folder.join(name)),
        false => Ok(Object::new()),
    };
    let former = read("added_tokens.json", !of_library)?;
    let map = read("special_tokens_map.json", true)?;
    let mut further: Vec<&Value> = vec![];
    for file in [config, &map] {
        for key in ["additional_special_tokens", "extra_special_tokens"] {
            match file.get(key) {
                Some(Value::Array(list)) => further.extend(list),
                Some(Value::Object(named)) => further.extend(named.values()),
                _ => {}
            }
        }
    }
    let named: HashSet<&str> = roles.values().filter_map(content).collect();
    let special: HashSet<&str> = further
        .iter()
        .copied()
        .filter_map(content)
        .chain(named.iter().copied())
        .collect();
    // Such a step of a document of ours would put its mark in front of a token, too, which would then be found at the start alone.
    let prepends = !of_library && document["normalizer"]["normalizers"][0]["type"] == "Prepend";
    let with_flags = |id: &Value, token: &Value| {
        let text = content(token).unwrap_or_default();
        let mut made = entry(id, token, special.contains(text));
        // A token with a role is a special one, whatever its flags say.
        if named.contains(text) {
            made["special"] = true.into();
        }
        if prepends {
            made["normalized"] = false.into();
        }
        made
    };
    let mut numbered: Vec<(u64, Value)> = vec![];
    for (id, token) in listed.into_iter().flatten() {
        numbered.extend(id.parse().ok().map(|id| (id, token.clone())));
    }
    for (token, id) in &former {
        numbered.extend(id.as_u64().map(|id| (id, token.as_str().into())));
    }
    numbered.sort_by_key(|(id, _)| *id);

    let mut added = match document.get("added_tokens") {
        None | Some(Value::Null) => vec![],
        Some(Value::Array(added)) => added.clone(),
        // The library refuses it.
        Some(_) => return Ok(()),
    };
    let Some(vocabulary) = document.pointer_mut("/model/vocab").map(Value::take) else {
        return Ok(());
    };
    let (places, size): (HashMap<&str, u64>, usize) = match &vocabulary {
        Value::Object(ids) => {
            let places = ids
                .iter()
                .filter_map(|(text, id)| Some((text.as_str(), id.as_u64()?)));
            (places.collect(), ids.len())
        }
        Value::Array(pieces) => {
            // Backwards, as the first of two pieces with the same text counts.
            let numbered = pieces.iter().enumerate().rev();
            let places =
                numbered.filter_map(|(place, piece)| Some((piece[0].as_str()?, place as u64)));
            (places.collect(), pieces.len())
        }
        _ => Default::default(),
    };
    let stated: HashMap<&str, &Value> = listed
        .into_iter()
        .flatten()
        .filter(|(id, token)| id.parse::<u64>().is_ok() && token.is_object())
        .filter_map(|(_, token)| Some((content(token)?, token)))
        .collect();
    for old in &mut added {
        let token = content(old).and_then(|text| stated.get(text).copied());
        if let Some(token) = token {
            *old = with_flags(&old["id"], token);
        }
    }
    let ids = added.iter().filter_map(|token| token["id"].as_u64());
    let mut next = ids.fold(size as u64, |next, id| next.max(id.saturating_add(1)));
    let mut known: HashSet<String> = added
        .iter()
        .filter_map(content)
        .map(str::to_owned)
        .collect();
    let with_roles = ROLES.iter().filter_map(|role| roles.get(role));
    let numbered = numbered.iter().map(|(_, token)| token);
    for token in numbered.chain(with_roles).chain(further.iter().copied()) {
        let Some(text) = content(token).filter(|text| !known.contains(*text)) else {
            continue;
        };
        let id = places.get(text).copied().unwrap_or_else(|| {
            next = next.saturating_add(1);
            next - 1
        });
        known.insert(text.to_owned());
        added.push(with_flags(&id.into(), token));
    }
    document["added_tokens"] = added.into();
    document["model"]["vocab"] = vocabulary;
    Ok(())
}
