//! The parts of an example.

use super::{ExplainError, catalogue, masks::Expression, presets};
use crate::mask::{Locality, Mask};

/// How well a query and a key match, see [`crate::score`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scorer {
    /// `qᵀ k`
    Dot,
    /// `scale · qᵀ k`
    ScaledDot,
    /// `qᵀ W k`
    General,
    /// `g · qᵀ W k`
    ScaledGeneral,
    /// `vᵀ tanh(W q + U k + b)`
    Additive,
    /// `g v/‖v‖ · tanh(W q + U k + b)`
    WeightNormAdditive,
    /// `β cos(q, k)`
    Cosine,
    /// `-scale · ‖q - k‖²`
    Distance,
    /// `(W q)_i`
    Location,
    /// `Σ_m a_m exp(-b_m (κ_m - i)²)`
    GaussianWindow,
}

/// From scores to weights, see [`crate::normalize`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalizer {
    /// `e^{s_i} / Σ_j e^{s_j}`
    Softmax,
    /// `e^{s_i} / (e^{sink} + Σ_j e^{s_j})`
    Sink,
    /// `max(s_i - τ, 0)`
    Sparsemax,
    /// `max(s_i/2 - τ, 0)²`
    Entmax15,
    /// `σ(s_i + b)`
    Sigmoid,
    /// 1 at the best key
    Hardmax,
    /// 1 at a drawn key
    HardSample,
    /// where a reader that moves right stops
    Monotonic,
    /// content, interpolation, shift, sharpening
    Addressing,
    /// `s_i`
    Identity,
}

impl Normalizer {
    /// All of them, by name.
    pub const NAMES: [(&'static str, Normalizer); 10] = [
        ("softmax", Self::Softmax),
        ("sink", Self::Sink),
        ("sparsemax", Self::Sparsemax),
        ("entmax15", Self::Entmax15),
        ("sigmoid", Self::Sigmoid),
        ("hardmax", Self::Hardmax),
        ("hard-sample", Self::HardSample),
        ("monotonic", Self::Monotonic),
        ("addressing", Self::Addressing),
        ("identity", Self::Identity),
    ];

    /// The normaliser of this name.
    ///
    /// # Errors
    /// A name that is not known.
    pub fn named(name: &str) -> Result<Self, ExplainError> {
        Self::NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|&(_, normalizer)| normalizer)
            .ok_or_else(|| {
                ExplainError::unknown("normaliser", name, Self::NAMES.map(|(name, _)| name))
            })
    }

    /// Its name in [`Normalizer::NAMES`].
    pub fn name(self) -> &'static str {
        let named = Self::NAMES
            .iter()
            .find(|(_, normalizer)| *normalizer == self);
        named.map_or("", |(name, _)| name)
    }

    /// The formula of a row's weights.
    pub fn formula(self) -> &'static str {
        match self {
            Self::Softmax => "α_i = e^{s_i} / Σ_j e^{s_j}",
            Self::Sink => "α_i = e^{s_i} / (e^{sink} + Σ_j e^{s_j})",
            Self::Sparsemax => "α_i = max(s_i - τ, 0)",
            Self::Entmax15 => "α_i = max(s_i/2 - τ, 0)²",
            Self::Sigmoid => "α_i = σ(s_i + b)",
            Self::Hardmax => "α = one-hot(argmax s)",
            Self::HardSample => "α = one-hot(a draw from softmax(s))",
            Self::Monotonic => "α_i = p_i r_i, r_i = (1 - p_{i-1}) r_{i-1} + α_{t-1,i}, p = σ(s)",
            Self::Addressing => "α = sharpen(shift(g · softmax(s) + (1 - g) · α_{t-1}))",
            Self::Identity => "α_i = s_i",
        }
    }
}

/// Numbers that some mechanisms need beside queries and keys. `None` takes the default that is stated for each.
///
/// Matrices are lists of rows and act from the left: `W s` has one entry for each row of `W`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Parameters {
    /// The factor of scaled dot and L2 scores; default `1/√d`.
    pub scale: Option<f64>,
    /// `c` of `c · tanh(s / c)`; default none.
    pub softcap: Option<f64>,
    /// `W`: general `[query size, key size]`, additive `[hidden, query size]`, location `[keys, query size]`;
    /// default the identity.
    pub query_weight: Option<Vec<Vec<f64>>>,
    /// `U` of additive scores, `[hidden, key size]`; default the identity.
    pub key_weight: Option<Vec<Vec<f64>>>,
    /// `v` of additive scores, `[hidden]`; default ones.
    pub vector: Option<Vec<f64>>,
    /// `b` inside the tanh of additive scores, `[hidden]`; default zeros.
    pub bias: Option<Vec<f64>>,
    /// `g` of scaled general and weight-normed additive scores; default 1.
    pub gain: Option<f64>,
    /// `β` of the cosine; default 1.
    pub beta: Option<f64>,
    /// The score of the sink; default 0.
    pub sink: Option<f64>,
    /// `b` of sigmoid weights; default `-ln` of the keys that a query sees.
    pub sigmoid_bias: Option<f64>,
    /// The uniform number in `[0, 1)` by which hard attention draws; default 0.5.
    pub draw: Option<f64>,
    /// `α_{t-1}` before the first query, `[keys]`, of monotonic and NTM attention; default all on the first key that is seen.
    pub previous: Option<Vec<f64>>,
    /// `g` of NTM's interpolation; default 1: content alone.
    pub gate: Option<f64>,
    /// The weights of NTM's shifts `-R ..= R`, which are divided by their sum; default no shift.
    pub shift: Option<Vec<f64>>,
    /// `γ ≥ 1` of NTM's sharpening; default 1.
    pub sharpening: Option<f64>,
    /// `W_p` of local-p, `[n, query size]`; default the identity.
    pub position_weight: Option<Vec<Vec<f64>>>,
    /// `v_p` of local-p, `[n]`; default ones.
    pub position_vector: Option<Vec<f64>>,
}

/// The tokens of an example with a sparse mask.
const TOKENS: usize = 8;

/// A mechanism and the vectors to compute it on.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    pub(super) mechanism: &'static catalogue::Mechanism,
    /// How queries and keys are compared.
    pub scorer: Scorer,
    /// From scores to weights.
    pub normalizer: Normalizer,
    /// The part of the keys that local attention sees.
    pub locality: Locality,
    /// What may be seen, in the language of [`masks`](super::masks).
    pub mask: Option<String>,
    /// `[queries][query size]`.
    pub queries: Vec<Vec<f64>>,
    /// `[keys][key size]`.
    pub keys: Vec<Vec<f64>>,
    /// `[keys][value size]`; the keys themselves if there are none.
    pub values: Option<Vec<Vec<f64>>>,
    /// What the queries are called; `q1, q2, ..` if empty.
    pub query_names: Vec<String>,
    /// What the keys are called; `k1, k2, ..` if empty.
    pub key_names: Vec<String>,
    /// Everything else.
    pub parameters: Parameters,
}

impl Example {
    /// The mechanism of this name (see [`catalogue`]), without vectors.
    ///
    /// # Errors
    /// A name that is not known.
    pub fn new(mechanism: &str) -> Result<Self, ExplainError> {
        catalogue::find(mechanism).map(Self::of)
    }

    /// The mechanism of this name on the vectors of the preset `words`. Where these, or the defaults of the parameters,
    /// would not show what is special about it, others are used: Gaussian windows have queries of their own, sparse masks eight tokens, queries are
    /// longer where low scores get exactly 0, NTM interpolates, shifts and sharpens.
    ///
    /// # Errors
    /// A name that is not known.
    pub fn on_words(mechanism: &str) -> Result<Self, ExplainError> {
        let words = presets::find("words")?.example();
        let mut example = Self {
            queries: words.queries,
            keys: words.keys,
            query_names: words.query_names,
            key_names: words.key_names,
            ..Self::new(mechanism)?
        };
        if example.scorer == Scorer::GaussianWindow {
            example.queries = vec![
                vec![0.0, 0.0, -1.0],
                vec![0.0, 0.7, -0.4],
                vec![0.3, 0.0, -0.4],
            ];
            example.query_names = Vec::new();
        }
        if example.mechanism.is_sparse() {
            // Of three words hardly any would be hidden.
            example.read_tokens(TOKENS);
        }
        if let Normalizer::Sparsemax | Normalizer::Entmax15 = example.normalizer {
            let entries = example.queries.iter_mut().flatten();
            // Rounded, because 6 · 0.71 is 4.26 only in decimal arithmetic.
            entries.for_each(|x| *x = (600.0 * *x).round() / 100.0);
        }
        if example.normalizer == Normalizer::Addressing {
            let parameters = &mut example.parameters;
            parameters.gate = Some(0.5);
            parameters.shift = Some(vec![0.0, 0.2, 0.8]);
            parameters.sharpening = Some(2.0);
        }
        Ok(example)
    }

    /// Takes so many tokens, which are called by their positions, as queries and as keys.
    pub fn read_tokens(&mut self, count: usize) {
        let entry = |token: usize, by: usize| f64::from(((token % 5 * by + 1) % 5) as u8) / 2.0;
        let token = |token| vec![entry(token, 2), entry(token, 3)];
        self.queries = (0..count).map(token).collect();
        self.keys = self.queries.clone();
        self.query_names = (0..count).map(|token| token.to_string()).collect();
        self.key_names = self.query_names.clone();
    }

    /// `D` of local attention; `None` if all keys are seen.
    pub fn half_width(&self) -> Option<usize> {
        match self.locality {
            Locality::Global => None,
            Locality::Monotonic { half_width } | Locality::Predictive { half_width } => {
                Some(half_width)
            }
        }
    }

    /// Whether its mechanism is a mask of long texts: a window, global positions, blocks.
    pub fn is_sparse(&self) -> bool {
        self.mechanism.is_sparse()
    }

    pub(super) fn of(mechanism: &'static catalogue::Mechanism) -> Self {
        Self {
            mechanism,
            scorer: mechanism.scorer,
            normalizer: mechanism.normalizer,
            locality: mechanism.locality,
            mask: mechanism.mask.map(str::to_owned),
            queries: Vec::new(),
            keys: Vec::new(),
            values: None,
            query_names: Vec::new(),
            key_names: Vec::new(),
            parameters: Parameters::default(),
        }
    }

    /// The mechanism's name.
    pub fn name(&self) -> &'static str {
        self.mechanism.name
    }

    /// What it may see, without the window of local attention.
    pub(super) fn mask(&self) -> Result<Mask, ExplainError> {
        match &self.mask {
            None => Ok(Mask::all()),
            Some(text) => Expression::parse(text)?.mask(self.queries.len(), self.keys.len()),
        }
    }

    /// The formulas of score and weights in one line, with the chosen options.
    pub fn formula(&self) -> String {
        let (scorer, normalizer) = (self.scorer.formula(), self.normalizer.formula());
        let window = match self.locality {
            Locality::Global => ";",
            Locality::Monotonic { .. } => " over |i - t| ≤ D;",
            Locality::Predictive { .. } => {
                " over |i - p_t| ≤ D;  α_i ← α_i · exp(-(i - p_t)² / 2σ²);"
            }
        };
        format!("score(q, k) = {scorer};  {normalizer}{window}  c = Σ_i α_i v_i")
    }
}

impl Scorer {
    /// The formula of one score.
    pub fn formula(self) -> &'static str {
        match self {
            Self::Dot => "qᵀ k",
            Self::ScaledDot => "scale · qᵀ k, scale = 1/√d unless given",
            Self::General => "qᵀ W k",
            Self::ScaledGeneral => "g · qᵀ W k",
            Self::Additive => "vᵀ tanh(W q + U k + b)",
            Self::WeightNormAdditive => "g v/‖v‖ · tanh(W q + U k + b)",
            Self::Cosine => "β · qᵀ k / (‖q‖ ‖k‖)",
            Self::Distance => "-scale · ‖q - k‖², scale = 1/√d unless given",
            Self::Location => "(W q)_i",
            Self::GaussianWindow => "φ_i = Σ_m a_m exp(-b_m (κ_m - i)²)",
        }
    }
}
