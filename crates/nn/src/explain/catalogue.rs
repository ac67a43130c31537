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

const fn of_mask(
    name: &'static str,
    aliases: &'static [&'static str],
    summary: &'static str,
    source: &'static str,
    mask: &'static str,
) -> Mechanism {
    Mechanism {
        mask: Some(mask),
        ..of_score(name, aliases, summary, source, Scorer::ScaledDot)
    }
}

/// All mechanisms: scores and masks first, then local attention, then normalisers.
pub static MECHANISMS: [Mechanism; 28] = [
    of_score(
        "dot",
        &["luong-dot"],
        "the dot product of query and key",
        "Luong 2015",
        Scorer::Dot,
    ),
    of_score(
        "scaled-dot",
        &["scaled", "transformer", "vaswani"],
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
        "bidirectional",
        &["encoder", "bert"],
        "scaled dot where every query sees the keys before and after it",
        "Vaswani 2017; Devlin 2018",
        Scorer::ScaledDot,
    ),
    of_mask(
        "sliding-window",
        &["window", "mistral"],
        "causal, and keys less than three positions back: the cost grows with the length alone",
        "Beltagy 2020; Jiang 2023",
        "window:3 & causal",
    ),
    of_mask(
        "longformer",
        &["window-and-global"],
        "neighbours on both sides, and a global position that sees all and is seen by all",
        "Beltagy 2020",
        "longformer:2:0",
    ),
    of_mask(
        "block-sparse",
        &["bigbird", "sparse"],
        "blocks of two: a query sees its own block and the one before it; the first block sees all and is seen by all",
        "Child 2019; Zaheer 2020, without random blocks",
        "chunked:2:1 | global:0,1",
    ),
    of_score(
        "general",
        &["luong-general"],
        "the dot product with a learned matrix W between query and key",
        "Luong 2015",
        Scorer::General,
    ),
    of_score(
        "scaled-general",
        &["scaled-luong"],
        "general times a learned factor g",
        "TensorFlow's scaled Luong",
        Scorer::ScaledGeneral,
    ),
    of_score(
        "additive",
        &["bahdanau", "concat", "luong-concat"],
        "a small network over query and key, with one tanh layer",
        "Bahdanau 2014",
        Scorer::Additive,
    ),
    of_score(
        "soft",
        &["soft-attention", "deterministic"],
        "every key gets a share, by a softmax of additive scores; its counterpart is hard",
        "Xu 2015",
        Scorer::Additive,
    ),
    of_score(
        "weight-norm-additive",
        &["normed-bahdanau"],
        "additive whose v is a direction times a learned length g",
        "Salimans & Kingma 2016",
        Scorer::WeightNormAdditive,
    ),
    of_score(
        "cosine",
        &["content", "content-base"],
        "the cosine of the angle between query and key, times β",
        "Graves 2014",
        Scorer::Cosine,
    ),
    of_score(
        "distance",
        &["l2"],
        "minus the squared distance between query and key: near keys score high",
        "Kim 2021",
        Scorer::Distance,
    ),
    of_score(
        "location",
        &["location-base"],
        "W q, a score for each position from the query alone",
        "Luong 2015",
        Scorer::Location,
    ),
    Mechanism {
        normalizer: Normalizer::Identity,
        ..of_score(
            "gaussian-window",
            &["graves", "soft-window"],
            "Gaussians that move to the right over key positions; a query holds logarithms of their heights, sharpnesses and steps",
            "Graves 2013",
            Scorer::GaussianWindow,
        )
    },
    of_score(
        "global",
        &["global-attention", "luong-global"],
        "every source position is seen; its counterparts are local-m and local-p",
        "Luong 2015",
        Scorer::General,
    ),
    Mechanism {
        locality: Locality::Monotonic { half_width: 1 },
        ..of_score(
            "local-m",
            &["local-monotonic"],
            "keys at most D away from the query's own position",
            "Luong 2015",
            Scorer::Dot,
        )
    },
    Mechanism {
        locality: Locality::Predictive { half_width: 2 },
        ..of_score(
            "local-p",
            &["local", "local-attention", "local-predictive"],
            "keys at most D away from a predicted position, weighted by a Gaussian around it",
            "Luong 2015",
            Scorer::Dot,
        )
    },
    of_normalizer(
        "sink",
        &["softmax-one", "off-by-one"],
        "softmax with one more score, the sink, that takes weight and has no value",
        "Miller 2023; Xiao 2024",
        Normalizer::Sink,
    ),
    of_normalizer(
        "sparsemax",
        &[],
        "the nearest weights to the scores that sum to 1: low scores get exactly 0",
        "Martins & Astudillo 2016",
        Normalizer::Sparsemax,
    ),
    of_normalizer(
        "entmax15",
        &["entmax", "1.5-entmax"],
        "between softmax and sparsemax, with exact zeros",
        "Peters 2019",
        Normalizer::Entmax15,
    ),
    of_normalizer(
        "sigmoid",
        &[],
        "each key's weight from its own score alone; a row need not sum to 1",
        "Ramapuram 2024",
        Normalizer::Sigmoid,
    ),
    of_normalizer(
        "hard",
        &["hard-attention", "hardmax"],
        "weight 1 on the best key",
        "Xu 2015",
        Normalizer::Hardmax,
    ),
    of_normalizer(
        "hard-sample",
        &["stochastic"],
        "weight 1 on a key drawn with the softmax's probabilities",
        "Xu 2015",
        Normalizer::HardSample,
    ),
    of_normalizer(
        "monotonic",
        &["raffel"],
        "a reader moves right over the keys and stops; the next query goes on from there",
        "Raffel 2017",
        Normalizer::Monotonic,
    ),
    Mechanism {
        scorer: Scorer::Cosine,
        ..of_normalizer(
            "ntm",
            &["addressing", "neural-turing-machine"],
            "content, interpolation with the weights of the query before, shift, sharpening",
            "Graves 2014",
            Normalizer::Addressing,
        )
    },
    of_normalizer(
        "identity",
        &["unnormalized"],
        "the scores themselves are the weights",
        "Katharopoulos 2020, without its feature map",
        Normalizer::Identity,
    ),
];

impl Mechanism {
    /// Whether it is one because it leaves out most of a long text.
    pub(super) fn is_sparse(&self) -> bool {
        self.mask.is_some_and(|mask| mask != "causal")
    }
}

/// The mechanism of this name or alias.
///
/// # Errors
/// A name that is not known.
pub fn find(name: &str) -> Result<&'static Mechanism, ExplainError> {
    MECHANISMS
        .iter()
        .find(|mechanism| mechanism.name == name || mechanism.aliases.contains(&name))
        .ok_or_else(|| ExplainError::unknown("mechanism", name, names()))
}

/// All names and aliases.
pub fn names() -> Vec<&'static str> {
    let of = |mechanism: &'static Mechanism| {
        std::iter::once(mechanism.name).chain(mechanism.aliases.iter().copied())
    };
    MECHANISMS.iter().flat_map(of).collect()
}
