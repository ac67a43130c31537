//! Descriptions in older model files, from before recipes and files shared one configuration.
//!
//! | then | now |
//! |---|---|
//! | `{"kind": "luong", "source_vocabulary": 8000, "attention": 256, "layer_dropout": 0.2, ..}` | kind, sizes, `{"attention_dimension": 256, "dropout": {"layers": 0.2}, ..}` |
//! | `{"vocabulary": 300, "classes": 2, "encoder": {"kind": "lstmn", "hidden": 168, ..}, ..}` | kind `lstmn`, sizes, `{"hidden": 168, ..}` |

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    classifier::ClassifierSizes,
    vocabulary::{Vocabularies, Vocabulary},
};

/// A description in today's form.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Described {
    /// The name of the architecture.
    pub kind: String,
    /// The model's [`Vocabularies`] or [`ClassifierSizes`].
    pub sizes: Value,
    /// Its configuration.
    pub config: Value,
}

/// The sizes and choices of a model that translates, from the former metadata `regard.model`; `None` if it is not of that form.
pub fn generator(former: &Value) -> Option<Described> {
    let mut keys = former.as_object()?.clone();
    let mut size = |name| Some(keys.remove(name)?.as_u64()? as usize);
    let vocabularies = Vocabularies::new(size("source_vocabulary")?, size("target_vocabulary")?);
    let kind = keys.remove("kind")?.as_str()?.to_owned();
    match kind.as_str() {
        "rnnsearch" => {
            let paper = keys.remove("paper_initialisation")? == true;
            let initialisation = if paper { "paper" } else { "default" };
            keys.insert("initialisation".to_owned(), json!(initialisation));
        }
        "luong" => {
            let locality = keys.remove("locality")?;
            rename(&mut keys, "reading", "encoder");
            rename(&mut keys, "positions", "max_source_length");
            rename(&mut keys, "attention", "attention_dimension");
            let (attention, window) = match (locality.get("monotonic"), locality.get("predictive"))
            {
                (Some(local), _) => ("local-m", local.get("half_width")),
                (_, Some(local)) => ("local-p", local.get("half_width")),
                _ => ("global", None),
            };
            keys.insert("attention".to_owned(), json!(attention));
            keys.extend(window.map(|window| ("window".to_owned(), window.clone())));
        }
        "seq2seq" if keys.get("cell")? == "gru" => {
            keys.insert("cell".to_owned(), json!("gru-context"));
        }
        "transformer" => transformer(&mut keys)?,
        _ => {}
    }
    if kind != "luong" {
        rename(&mut keys, "attention", "attention_dimension");
    }
    gather_dropout(&mut keys);
    Some(Described {
        kind,
        sizes: serde_json::to_value(vocabularies).ok()?,
        config: Value::Object(keys),
    })
}

/// The sizes and choices of a classifier of sentences, from the former metadata `regard.classifier`; `None` if it is not of
/// that form.
pub fn classifier(former: &Value) -> Option<Described> {
    let mut keys = former.as_object()?.clone();
    let mut size = |name| Some(keys.remove(name)?.as_u64()? as usize);
    let sizes = ClassifierSizes {
        vocabulary: Vocabulary::new(size("vocabulary")?),
        classes: size("classes")?,
    };
    let Value::Object(mut encoder) = keys.remove("encoder")? else {
        return None;
    };
    let kind = encoder.remove("kind")?.as_str()?.to_owned();
    rename(&mut encoder, "attention", "attention_dimension");
    keys.extend(encoder);
    gather_dropout(&mut keys);
    Some(Described {
        kind,
        sizes: serde_json::to_value(sizes).ok()?,
        config: Value::Object(keys),
    })
}

/// Sizes and choices of layers, dropout included, formerly stood in a table `layer`.
fn transformer(keys: &mut Map<String, Value>) -> Option<()> {
    let Value::Object(mut layer) = keys.remove("layer")? else {
        return None;
    };
    rename(&mut layer, "model_size", "d_model");
    // Keys that recipes never set.
    for key in ["head_size", "layers", "query_key_norm", "scale", "softcap"] {
        match layer.remove(key) {
            None | Some(Value::Null) => {}
            Some(Value::Array(none)) if none.is_empty() => {}
            Some(_) => return None,
        }
    }
    if let Some(biases) = layer.remove("biases") {
        let bias = biases.get("feed_forward").unwrap_or(&biases);
        layer.insert("bias".to_owned(), bias.clone());
    }
    let embedded = keys.remove("positions")?;
    let own = layer.remove("position")?;
    let norm = layer.remove("norm")?;
    let positions = match (own.as_str(), embedded.get("kind")?.as_str()?) {
        (Some("none"), kind @ ("sinusoidal" | "learned")) => kind,
        (Some("alibi"), "none") => "alibi",
        (None, "none") => own.as_object()?.keys().next()?.as_str(),
        _ => return None,
    };
    layer.insert("positions".to_owned(), json!(positions));
    for (key, value) in [
        ("max_length", embedded.get("positions")),
        (
            "max_distance",
            own.get("relative").and_then(|own| own.get("reach")),
        ),
        ("norm", norm.get("kind")),
        ("norm_epsilon", norm.get("epsilon")),
    ] {
        layer.extend(value.map(|value| (key.to_owned(), value.clone())));
    }
    let dropout = layer.remove("dropout")?;
    for (place, share) in dropout.as_object()? {
        layer.insert(format!("{place}_dropout"), share.clone());
    }
    keys.extend(layer);
    Some(())
}

fn rename(keys: &mut Map<String, Value>, from: &str, to: &str) {
    let value = keys.remove(from);
    keys.extend(value.map(|value| (to.to_owned(), value)));
}

/// `layer_dropout` and similar keys become a table `dropout`.
fn gather_dropout(keys: &mut Map<String, Value>) {
    let mut dropout = Map::new();
    keys.retain(|key, share| match key.strip_suffix("_dropout") {
        Some(place) => {
            let place = if place == "layer" { "layers" } else { place };
            dropout.insert(place.to_owned(), share.clone());
            false
        }
        None => true,
    });
    keys.insert("dropout".to_owned(), Value::Object(dropout));
}
