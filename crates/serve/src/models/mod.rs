//! The models of regard, as the viewer asks them: those that were trained here and those of others, each as a [`Model`](crate::Model).
//!
//! | model | input | made by |
//! |---|---|---|
//! | translators, encoder-decoders | a text | [`Translations`] |
//! | encoders, language models | a text | [`Texts`] |
//! | captioners | an image | [`captions`] |
//! | classifiers of images | an image, or an image and labels | [`images`], [`labelled`] |
//! | detectors | an image | [`objects`] |
//! | models that answer questions | an image and a question | [`questions`] |

mod images;
mod texts;
mod translations;

use std::error::Error;
use std::fmt::Display;

use regard_models::{
    generate::SearchTree,
    gradient::{OutputGradients, WeightGradients},
    pretrained::ClassScores,
};
use regard_trace::{Kind, Trace};
use regard_train::recipe::Translation as Settings;

use crate::{Alternative, Generation, GradientMap, Gradients, Hypothesis, Proposed, Seen};

pub use self::images::{captions, images, labelled, objects, questions};
pub use texts::Texts;
pub use translations::Translations;

/// What went wrong, for the person at the page.
pub type Told = Box<dyn Error + Send + Sync>;

/// Alternatives that the page lists.
const LISTED: usize = 8;

/// Why there is no answer, for the person at the page.
fn sentence(error: impl Display) -> String {
    error.to_string()
}

/// The best of `all`, largest first.
fn best_of(all: impl Iterator<Item = (String, f64)>) -> Vec<Alternative> {
    let mut all: Vec<Alternative> = all
        .map(|(text, probability)| Alternative { text, probability })
        .collect();
    all.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    all.truncate(LISTED);
    all
}

/// An answer of which there are several, the best first.
fn answered(trace: Trace, alternatives: Vec<Alternative>) -> Seen {
    let output = alternatives
        .first()
        .map_or(String::new(), |best| best.text.clone());
    Seen {
        alternatives,
        ..Seen::new(trace, output)
    }
}

/// What a head for classes says: the best class of several, or numbers, which are no probabilities.
fn classified(
    trace: Trace,
    kind: ClassScores,
    scores: impl Iterator<Item = (String, f64)>,
) -> Seen {
    match kind {
        ClassScores::Softmax | ClassScores::Sigmoid => answered(trace, best_of(scores)),
        ClassScores::Numbers => {
            let shown = scores.map(|(label, score)| format!("{label} {score:.4}"));
            Seen::new(trace, shown.collect::<Vec<_>>().join(", "))
        }
    }
}

/// The hypotheses of a search in its order, whose length penalty may prefer a less likely one, with the trace of the best.
fn hypotheses(
    all: impl IntoIterator<Item = (String, f64, Trace)>,
    none: &str,
) -> Result<Seen, String> {
    let mut best = None;
    let mut alternatives = vec![];
    for (text, log_probability, trace) in all {
        best.get_or_insert(trace);
        let probability = log_probability.exp();
        alternatives.push(Alternative { text, probability });
    }
    Ok(answered(best.ok_or(none)?, alternatives))
}

/// Gradient times attention, whose maps of a text to itself are of kind `own`.
fn products(output: String, found: OutputGradients, own: Kind) -> Gradients {
    let kinds = [
        (Kind::EncoderSelf, found.source),
        (own, found.own),
        (Kind::Cross, found.cross),
    ];
    let maps = kinds.into_iter().flat_map(|(kind, layers)| {
        let layers = layers.into_iter().enumerate();
        layers.map(move |(layer, weights)| product(kind.name(), layer, &weights))
    });
    Gradients {
        output,
        log_probability: found.log_probability,
        maps: maps.collect(),
    }
}

/// Gradient times attention of a layer of the map `map`.
fn product(map: &str, layer: usize, weights: &WeightGradients) -> GradientMap {
    GradientMap {
        map: map.to_owned(),
        layer,
        shape: weights.shape,
        products: weights.products(),
    }
}

/// Which of the kinds `there` the map of this name is.
fn kind_of(map: &str, there: &[Kind]) -> Result<Kind, String> {
    let found = there.iter().find(|kind| kind.name() == map);
    found.copied().ok_or_else(|| {
        let known: Vec<&str> = there.iter().map(|kind| kind.name()).collect();
        match known.is_empty() {
            true => "this model has no heads that can be changed or looked into".to_owned(),
            false => format!(
                "there is no attention {map:?}; expected one of {}",
                known.join(", ")
            ),
        }
    })
}

fn no_query() -> String {
    "the model has no such query".to_owned()
}

/// Proposals of each step that a page lists.
pub fn listed(settings: &Settings) -> usize {
    settings.beam.max(5)
}

/// The tree of a search with the texts of its tokens, and what was looked at for each of its texts. `following` tells the texts of tokens
/// as they read behind others.
///
/// # Errors
/// Those of `following`.
pub fn generation(
    tree: SearchTree,
    traces: Vec<Trace>,
    following: impl Fn(&[u32], &[u32]) -> Result<Vec<String>, String>,
) -> Result<Generation, String> {
    let mut proposals = vec![];
    // Those that follow one token stand together.
    for siblings in tree.proposals.chunk_by(|a, b| a.parent == b.parent) {
        let context = tree.text(siblings[0].parent);
        let tokens: Vec<u32> = siblings.iter().map(|one| one.token).collect();
        let texts = following(&context, &tokens)?;
        proposals.extend(siblings.iter().zip(texts).map(|(one, text)| Proposed {
            parent: one.parent,
            text,
            probability: one.log_probability.exp(),
            taken: one.taken,
        }));
    }
    let hypotheses = tree.leaves.into_iter().zip(traces);
    Ok(Generation {
        proposals,
        hypotheses: hypotheses
            .map(|(leaf, trace)| Hypothesis { leaf, trace })
            .collect(),
    })
}

/// Tiny models that others have trained.
#[cfg(test)]
mod tests {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    use regard_models::generate::{Proposal, SearchTree};
    use regard_train::opened::Opened;
    use serde_json::{Map, Value, json};

    use super::generation;

    const GOLDEN: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../models/tests/golden/pretrained"
    );

    /// Each token is told as it reads behind those that lead to it.
    #[test]
    fn tokens_of_a_tree_follow_their_path() {
        let proposal = |parent, token| Proposal {
            parent,
            token,
            log_probability: 0.0,
            taken: true,
        };
        let first = [proposal(None, 1), proposal(None, 2)];
        let second = [(0, 3), (1, 3), (1, 4)].map(|(parent, token)| proposal(Some(parent), token));
        let tree = SearchTree {
            proposals: first.into_iter().chain(second).collect(),
            leaves: vec![],
        };
        let following = |context: &[u32], tokens: &[u32]| {
            let texts = tokens.iter().map(|token| format!("{context:?} {token}"));
            Ok(texts.collect())
        };
        let found = generation(tree, vec![], following).unwrap().proposals;
        let texts: Vec<&str> = found.iter().map(|one| &one.text[..]).collect();
        assert_eq!(texts, ["[] 1", "[] 2", "[1] 3", "[2] 3", "[2] 4"]);
    }

    /// A copy of one in `folder`, with these keys in its configuration.
    pub(super) fn copied(case: &str, folder: &Path, keys: &Value) -> PathBuf {
        let (from, to) = (Path::new(GOLDEN).join(case), folder.join(case));
        fs::create_dir(&to).unwrap();
        for name in [
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "photo.png",
            "preprocessor_config.json",
        ] {
            if from.join(name).exists() {
                fs::copy(from.join(name), to.join(name)).unwrap();
            }
        }
        write(&to.join("config.json"), keys);
        to
    }

    /// Puts these keys into a file.
    pub(super) fn write(path: &Path, keys: &Value) {
        let mut file: Value = match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap(),
            Err(_) => json!({}),
        };
        for (key, value) in keys.as_object().unwrap() {
            file[key] = value.clone();
        }
        fs::write(path, file.to_string()).unwrap();
    }

    /// The copy in `path` with a tokenizer of whole words, as many as the model has: `special` ones, of which the last stands for
    /// unknown words, then `words`, then `w0`, `w1` and so on. `steps` are parts of its document.
    pub(super) fn opened(path: &Path, [special, words]: [&[&str]; 2], steps: &Value) -> Opened {
        let config: Value =
            serde_json::from_slice(&fs::read(path.join("config.json")).unwrap()).unwrap();
        let size = config["vocab_size"].as_u64().unwrap() as usize;
        let named = special.iter().chain(words).map(|word| (*word).to_owned());
        let all = named.chain((0..).map(|i| format!("w{i}"))).take(size);
        let vocabulary: Map<String, Value> = (all.zip(0u32..))
            .map(|(word, id)| (word, id.into()))
            .collect();
        let added = special.iter().zip(0u32..).map(|(token, id)| {
            json!({
                "id": id, "content": token, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false,
            })
        });
        let document = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
            "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": special.last()},
        });
        write(&path.join("tokenizer.json"), &document);
        write(&path.join("tokenizer.json"), steps);
        if special.contains(&"[MASK]") {
            write(
                &path.join("tokenizer_config.json"),
                &json!({"mask_token": "[MASK]"}),
            );
        }
        let found = Opened::find(path.to_str().unwrap(), |_| Ok(path.to_owned()));
        found.unwrap()
    }
}
