//! The mechanisms that can be explained, by name.
//!
//! Any of them takes another normaliser or a mask; the entries are the usual combinations.
//!
//! ```
//! use regard_nn::explain::catalogue;
//! assert_eq!(catalogue::find("bahdanau")?.name, "additive");
//! assert!(catalogue::find("dott").is_err());
//! # Ok::<(), regard_nn::explain::ExplainError>(())
//! ```

use serde::Serialize;

use super::{ExplainError, Normalizer, Scorer};
use crate::mask::Locality;

/// One mechanism.
#[derive(Debug, PartialEq, Serialize)]
pub struct Mechanism {
    /// Its usual name.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// What it does, in a line.
    pub summary: &'static str,
    /// Where it is from.
    pub source: &'static str,
    #[serde(skip)]
    pub(super) scorer: Scorer,
    #[serde(skip)]
    pub(super) normalizer: Normalizer,
    #[serde(skip)]
    pub(super) locality: Locality,
    #[serde(skip)]
    pub(super) mask: Option<&'static str>,
}

const fn of_score(
    name: &'static str,
    aliases: &'static [&'static str],
    summary: &'static str,
    source: &'static str,
    scorer: Scorer,
) -> Mechanism {
    Mechanism {
        name,
        aliases,
        summary,
        source,
        scorer,
        normalizer: Normalizer::Softmax,
        locality: Locality::Global,
        mask: None,
    }
}

const fn of_normalizer(
    name: &'static str,
    aliases: &'static [&'static str],
    summary: &'static str,
    source: &'static str,
    normalizer: Normalizer,
) -> Mechanism {
    Mechanism {
        normalizer,
        ..of_score(name, aliases, summary, source, Scorer::Dot)
    }
}

/// All mechanisms: scores first, then local attention, then normalisers.
pub static MECHANISMS: [Mechanism; 22] = [
    of_score(
        "dot",
        &["luong-dot"],
        "the dot product of query and key",
        "Luong 2015",
        Scorer::Dot,
    ),
    of_score(
        "scaled-dot",
        &["transformer", "vaswani"],
        "the dot product divided by √d",
        "Vaswani 2017",
        Scorer::ScaledDot,
    ),
    Mechanism {
        mask: Some("causal"),
        ..of_score(
            "causal",
            &["decoder", "gpt"],
            "scaled dot where no query sees a later key",
            "Vaswani 2017",
            Scorer::ScaledDot,
        )
    },
    of_score(
        "general",
        &["luong-general"],
        "a matrix between query and key",
        "Luong 2015",
        Scorer::General,
    ),
    of_score(
        "scaled-general",
        &["scaled-luong"],
        "general with a learned factor",
        "TensorFlow's scaled Luong",
        Scorer::ScaledGeneral,
    ),
    of_score(
        "additive",
        &["bahdanau", "concat", "luong-concat"],
        "a network with one hidden layer over query and key",
        "Bahdanau 2014",
        Scorer::Additive,
    ),
    of_score(
        "weight-norm-additive",
        &["normed-bahdanau"],
        "additive with the direction and length of v apart",
        "Salimans & Kingma 2016",
        Scorer::WeightNormAdditive,
    ),
    of_score(
        "cosine",
        &["content", "content-base"],
        "the angle between query and key, sharpened",
        "Graves 2014",
        Scorer::Cosine,
    ),
    of_score(
        "distance",
        &["l2"],
        "near keys score high",
        "Kim 2021",
        Scorer::Distance,
    ),
    of_score(
        "location",
        &["location-base"],
        "position alone: W q",
        "Luong 2015",
        Scorer::Location,
    ),
    Mechanism {
        normalizer: Normalizer::Identity,
        ..of_score(
            "gaussian-window",
            &["graves", "soft-window"],
            "Gaussians that move over the keys; the query is â | b̂ | κ̂",
            "Graves 2013",
            Scorer::GaussianWindow,
        )
    },
    Mechanism {
        locality: Locality::Monotonic { half_width: 1 },
        ..of_score(
            "local-m",
            &["local-monotonic"],
            "a window around the query's own number",
            "Luong 2015",
            Scorer::Dot,
        )
    },
    Mechanism {
        locality: Locality::Predictive { half_width: 1 },
        ..of_score(
            "local-p",
            &["local-predictive"],
            "a window and a Gaussian around a predicted place",
            "Luong 2015",
            Scorer::Dot,
        )
    },
    of_normalizer(
        "sink",
        &["softmax-one", "off-by-one"],
        "softmax with one more score that has no value",
        "Miller 2023; Xiao 2024",
        Normalizer::Sink,
    ),
    of_normalizer(
        "sparsemax",
        &[],
        "the nearest point of the simplex: exact zeros",
        "Martins & Astudillo 2016",
        Normalizer::Sparsemax,
    ),
    of_normalizer(
        "entmax15",
        &["entmax", "1.5-entmax"],
        "between softmax and sparsemax",
        "Peters 2019",
        Normalizer::Entmax15,
    ),
    of_normalizer(
        "sigmoid",
        &[],
        "each key judged for itself",
        "Ramapuram 2024",
        Normalizer::Sigmoid,
    ),
    of_normalizer(
        "hard",
        &["hardmax"],
        "the best key alone",
        "Xu 2015",
        Normalizer::Hardmax,
    ),
    of_normalizer(
        "hard-sample",
        &["stochastic"],
        "a key drawn from the softmax",
        "Xu 2015",
        Normalizer::HardSample,
    ),
    of_normalizer(
        "monotonic",
        &["raffel"],
        "where a reader that moves right stops; queries follow each other",
        "Raffel 2017",
        Normalizer::Monotonic,
    ),
    Mechanism {
        scorer: Scorer::Cosine,
        ..of_normalizer(
            "ntm",
            &["addressing", "neural-turing-machine"],
            "content, interpolation, shift, sharpening; queries follow each other",
            "Graves 2014",
            Normalizer::Addressing,
        )
    },
    of_normalizer(
        "identity",
        &["unnormalized"],
        "the scores as they are",
        "Katharopoulos 2020, without its feature map",
        Normalizer::Identity,
    ),
];

/// The mechanism of this name or alias.
///
/// # Errors
/// A name that is not known.
pub fn find(name: &str) -> Result<&'static Mechanism, ExplainError> {
    MECHANISMS
        .iter()
        .find(|mechanism| mechanism.name == name || mechanism.aliases.contains(&name))
        .ok_or_else(|| ExplainError::Unknown {
            what: "mechanism",
            name: name.to_owned(),
            known: names(),
        })
}

/// All names and aliases.
pub fn names() -> Vec<&'static str> {
    let of = |mechanism: &'static Mechanism| {
        std::iter::once(mechanism.name).chain(mechanism.aliases.iter().copied())
    };
    MECHANISMS.iter().flat_map(of).collect()
}
