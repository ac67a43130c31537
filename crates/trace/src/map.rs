//! One table of attention weights, with names for its rows and columns.
//!
//! `α [heads, queries, keys]`, row-major; every row is finite, not negative, and sums to 1, or to 0
//! when the query was allowed no key. Weights that are not meant to sum to 1 (a sigmoid, Luong's
//! local-p times its Gaussian) come in through [`AttentionMap::unnormalized`].
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Tokens};
//!
//! let keys = Tokens::from_words("a man");
//! let queries = Tokens::from_words("ein Mann");
//! let map = AttentionMap::new(Kind::Cross, queries, keys, 1, vec![0.9, 0.1, 0.2, 0.8])?;
//! assert_eq!(map.weight(0, 1, 1), 0.8);
//!
//! let keys = Tokens::from_words("a man");
//! let queries = Tokens::from_words("ein");
//! let error = AttentionMap::new(Kind::Cross, queries, keys, 1, vec![0.9, 0.5]).unwrap_err();
//! assert!(error.to_string().contains("sum to 1.4"));
//! # Ok::<(), regard_trace::TraceError>(())
//! ```

use serde::{Deserialize, Serialize};

use crate::{Axis, TraceError};

/// How far the sum of a normalised row may be from 1: half-precision weights (bf16 keeps 8 bits)
/// stay well inside, scores and wrong axes do not.
pub const ROW_SUM_TOLERANCE: f64 = 5e-3;

/// The most that the lengths of a map with an empty axis may multiply to.
const EMPTY_LIMIT: usize = 1 << 16;

/// Which sequence attends to which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// A decoder to its encoder: queries are target entries, keys are source entries.
    Cross,
    /// An encoder to its own sequence.
    EncoderSelf,
    /// A decoder to what it has written so far.
    DecoderSelf,
    /// A model with a single sequence to that sequence.
    SelfAttention,
    /// Anything else; the map's name says what.
    Other,
}

impl Kind {
    /// What the queries and the keys are called, for titles: `("target", "source")` for cross.
    pub fn axis_names(self) -> (&'static str, &'static str) {
        match self {
            Self::Cross => ("target", "source"),
            Self::EncoderSelf => ("source (query)", "source (key)"),
            Self::DecoderSelf => ("target (query)", "target (key)"),
            Self::SelfAttention | Self::Other => ("query", "key"),
        }
    }

    /// The usual name of its maps.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cross => "decoder.cross",
            Self::EncoderSelf => "encoder.self",
            Self::DecoderSelf => "decoder.self",
            Self::SelfAttention => "self",
            Self::Other => "attention",
        }
    }
}

/// Attention weights `[heads, queries, keys]` and what their axes mean. A value of this type has
/// passed its checks, so the accessors cannot disagree with each other.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionMap {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) layer: usize,
    pub(crate) heads: usize,
    pub(crate) normalized: bool,
    pub(crate) queries: Axis,
    pub(crate) keys: Axis,
    /// As long as the queries.
    pub(crate) predictions: Option<Axis>,
    pub(crate) weights: Vec<f32>,
}

impl AttentionMap {
    /// A map whose rows sum to 1, or to 0 where every key was masked.
    ///
    /// `weights` is `[heads, queries, keys]`, row-major. The name is the kind's usual one and the
    /// layer 0, until [`named`](Self::named) and [`at_layer`](Self::at_layer) say otherwise.
    ///
    /// # Errors
    /// [`TraceError::Shape`], [`TraceError::NoHeads`], [`TraceError::Empty`], [`TraceError::Weight`]
    /// (NaN, infinite, negative) and [`TraceError::RowSum`].
    pub fn new(
        kind: Kind,
        queries: impl Into<Axis>,
        keys: impl Into<Axis>,
        heads: usize,
        weights: Vec<f32>,
    ) -> Result<Self, TraceError> {
        Self::from_parts(kind, true, queries.into(), keys.into(), heads, weights)
    }

    /// A map whose rows may sum to anything; the other checks of [`new`](Self::new) hold.
    ///
    /// # Errors
    /// As [`new`](Self::new), except that no row sum is refused.
    pub fn unnormalized(
        kind: Kind,
        queries: impl Into<Axis>,
        keys: impl Into<Axis>,
        heads: usize,
        weights: Vec<f32>,
    ) -> Result<Self, TraceError> {
        Self::from_parts(kind, false, queries.into(), keys.into(), heads, weights)
    }

    fn from_parts(
        kind: Kind,
        normalized: bool,
        queries: Axis,
        keys: Axis,
        heads: usize,
        weights: Vec<f32>,
    ) -> Result<Self, TraceError> {
        let map = Self {
            name: kind.name().to_owned(),
            kind,
            layer: 0,
            heads,
            normalized,
            queries,
            keys,
            predictions: None,
            weights,
        };
        map.check()?;
        Ok(map)
    }

    pub(crate) fn check(&self) -> Result<(), TraceError> {
        let (queries, keys) = (self.queries.len(), self.keys.len());
        let map = || self.name.clone();
        if let Some(predictions) = &self.predictions
            && predictions.len() != queries
        {
            return Err(TraceError::Predictions {
                map: map(),
                queries,
                found: predictions.len(),
            });
        }
        if self.heads == 0 {
            return Err(TraceError::NoHeads { map: map() });
        }
        let expected = self
            .heads
            .checked_mul(queries)
            .and_then(|n| n.checked_mul(keys));
        if expected != Some(self.weights.len()) {
            return Err(TraceError::Shape {
                map: map(),
                heads: self.heads,
                queries,
                keys,
                found: self.weights.len(),
            });
        }
        if self.weights.is_empty() {
            return self.check_empty();
        }
        for (index, row) in self.weights.chunks_exact(keys).enumerate() {
            let (head, query) = (index / queries, index % queries);
            if let Some(key) = row.iter().position(|w| !(w.is_finite() && *w >= 0.0)) {
                return Err(TraceError::Weight {
                    map: map(),
                    head,
                    query,
                    key,
                    value: row[key],
                });
            }
            let sum: f64 = row.iter().map(|&w| f64::from(w)).sum();
            if self.normalized && sum != 0.0 && (sum - 1.0).abs() > ROW_SUM_TOLERANCE {
                return Err(TraceError::RowSum {
                    map: map(),
                    head,
                    query,
                    sum,
                });
            }
        }
        Ok(())
    }

    /// Bounds the lengths of a map with an empty axis: it has no weights, so a damaged file could claim any lengths.
    fn check_empty(&self) -> Result<(), TraceError> {
        let size = self
            .shape()
            .iter()
            .fold(1usize, |size, &length| size.saturating_mul(length.max(1)));
        if size <= EMPTY_LIMIT {
            return Ok(());
        }
        Err(TraceError::Empty {
            map: self.name.clone(),
            heads: self.heads,
            queries: self.queries.len(),
            keys: self.keys.len(),
            limit: EMPTY_LIMIT,
        })
    }

    /// The same map under another name, such as `decoder.layers.3.self`.
    pub fn named(self, name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..self
        }
    }

    /// The same map as belonging to layer `layer`, counted from 0.
    pub fn at_layer(self, layer: usize) -> Self {
        Self { layer, ..self }
    }

    /// The same map with the model's prediction at each query: entry `i` of `predictions` belongs to query `i`. In a decoder's
    /// self-attention the queries, like the keys, are the tokens that were read; a prediction is the token written after one.
    ///
    /// # Errors
    /// [`TraceError::Predictions`] if there are more or fewer predictions than queries.
    pub fn predicting(self, predictions: impl Into<Axis>) -> Result<Self, TraceError> {
        let map = Self {
            predictions: Some(predictions.into()),
            ..self
        };
        map.check()?;
        Ok(map)
    }

    /// The name, unique within a model by custom.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Which sequence attends to which.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The layer, counted from 0.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// The number of heads, at least 1.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Whether every row sums to 1 (or 0 where everything was masked).
    pub fn is_normalized(&self) -> bool {
        self.normalized
    }

    /// The axis of the queries: rows of the table.
    pub fn queries(&self) -> &Axis {
        &self.queries
    }

    /// The axis of the keys: columns of the table.
    pub fn keys(&self) -> &Axis {
        &self.keys
    }

    /// What the model predicted at each query, if the queries are what it read there.
    pub fn predictions(&self) -> Option<&Axis> {
        self.predictions.as_ref()
    }

    /// The names of the rows in a picture: each query, with what was predicted there in parentheses.
    pub fn row_labels(&self) -> Vec<String> {
        let queries = self.queries.labels();
        match &self.predictions {
            None => queries,
            Some(predictions) => queries
                .iter()
                .zip(predictions.labels())
                .map(|(query, prediction)| format!("{query} ({prediction})"))
                .collect(),
        }
    }

    /// What rows and columns are called in a picture: [`Kind::axis_names`], except that rows with predictions say so.
    pub fn axis_names(&self) -> (&'static str, &'static str) {
        match (&self.predictions, self.kind.axis_names()) {
            (Some(_), (_, keys)) => ("read (then written)", keys),
            (None, names) => names,
        }
    }

    /// `[heads, queries, keys]`.
    pub fn shape(&self) -> [usize; 3] {
        [self.heads, self.queries.len(), self.keys.len()]
    }

    /// All weights, `[heads, queries, keys]`, row-major.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// The weights of one query over all keys, `[keys]`.
    ///
    /// # Panics
    /// If there is no such head or query, as slice indexing does.
    pub fn row(&self, head: usize, query: usize) -> &[f32] {
        let [heads, queries, keys] = self.shape();
        assert!(
            head < heads && query < queries,
            "row ({head}, {query}) of a map with {heads} heads and {queries} queries"
        );
        let start = (head * queries + query) * keys;
        &self.weights[start..start + keys]
    }

    /// One weight.
    ///
    /// # Panics
    /// If there is no such head, query or key, as slice indexing does.
    pub fn weight(&self, head: usize, query: usize, key: usize) -> f32 {
        self.row(head, query)[key]
    }

    /// The map of one head, `[1, queries, keys]`.
    ///
    /// # Errors
    /// [`TraceError::Head`] if there is no such head.
    pub fn head(&self, head: usize) -> Result<Self, TraceError> {
        if head >= self.heads {
            return Err(TraceError::Head {
                map: self.name.clone(),
                head,
                last: self.heads - 1,
            });
        }
        let size = self.queries.len() * self.keys.len();
        Ok(self.with_weights(
            1,
            self.queries.clone(),
            self.keys.clone(),
            self.weights[head * size..(head + 1) * size].to_vec(),
        ))
    }

    /// The mean over heads, `ᾱ_qk = (1/H) Σ_h α_hqk`, `[1, queries, keys]`.
    ///
    /// Where some heads masked a row fully and others did not, the mean is over those that did not,
    /// so that a normalised map stays one.
    pub fn mean_heads(&self) -> Self {
        if self.heads == 1 {
            return self.clone();
        }
        let [heads, queries, keys] = self.shape();
        let mut weights = Vec::with_capacity(queries * keys);
        for query in 0..queries {
            weights.extend(self.mean_rows((0..heads).map(|head| self.row(head, query)), keys));
        }
        self.with_weights(1, self.queries.clone(), self.keys.clone(), weights)
    }

    /// The mean of several rows; in a normalised map, rows of zeros are left out.
    pub(crate) fn mean_rows<'a>(
        &self,
        rows: impl Iterator<Item = &'a [f32]>,
        keys: usize,
    ) -> Vec<f32> {
        let mut sums = vec![0.0f64; keys];
        let mut count = 0u32;
        for row in rows {
            if self.normalized && row.iter().all(|&w| w == 0.0) {
                continue;
            }
            count += 1;
            for (sum, &weight) in sums.iter_mut().zip(row) {
                *sum += f64::from(weight);
            }
        }
        let scale = f64::from(count.max(1)).recip();
        sums.iter().map(|sum| as_weight(sum * scale)).collect()
    }

    pub(crate) fn with_weights(
        &self,
        heads: usize,
        queries: Axis,
        keys: Axis,
        weights: Vec<f32>,
    ) -> Self {
        debug_assert_eq!(weights.len(), heads * queries.len() * keys.len());
        Self {
            name: self.name.clone(),
            kind: self.kind,
            layer: self.layer,
            normalized: self.normalized,
            heads,
            queries,
            keys,
            predictions: self.predictions.clone(),
            weights,
        }
    }
}

/// A sum of weights as a weight: finite, even if unnormalised weights add up beyond `f32`.
pub(crate) fn as_weight(sum: f64) -> f32 {
    (sum as f32).min(f32::MAX)
}
