//! What the checks of a head can find, and how it is told.

use std::fmt;

/// Something that explains uniform, or useless, attention. Its `Display` is a sentence in words.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Finding {
    /// A query or key holds a NaN or an infinity.
    NotFinite {
        /// `query` or `key`.
        field: &'static str,
        /// The position of the first such vector.
        position: usize,
    },
    /// Queries that may see no key; their weights are 0.
    NothingVisible {
        /// How many queries.
        queries: usize,
    },
    /// Every query sees later keys and no others.
    InvertedMask,
    /// Queries that may see one key.
    OneVisible {
        /// How many queries.
        queries: usize,
        /// Of how many.
        of: usize,
    },
    /// Queries or keys have no length to speak of.
    DeadHead {
        /// `queries` or `keys`.
        field: &'static str,
        /// The length of the longest vector.
        longest: f64,
    },
    /// All keys are nearly the same vector.
    CollapsedKeys {
        /// How far keys differ, as a share of their length.
        spread: f64,
    },
    /// All queries are nearly the same vector.
    CollapsedQueries {
        /// How far queries differ, as a share of their length.
        spread: f64,
    },
    /// The scale flattens scores that differ.
    ScaleTooSmall {
        /// The scale.
        scale: f64,
        /// `1/√d`.
        usual: f64,
        /// Standard deviation of a row's scores, mean over rows.
        deviation: f64,
    },
    /// Nearly every row has a weight of nearly 1.
    Saturated {
        /// The share of such rows.
        share: f64,
        /// Standard deviation of a row's scores, mean over rows.
        deviation: f64,
    },
    /// Keys at different places are the same vector.
    MissingPositions {
        /// Two such places.
        pair: (usize, usize),
        /// How many keys have an equal at another place.
        keys: usize,
    },
    /// The weights are uniform, and nothing else explains it.
    Uniform {
        /// Mean entropy as a share of the largest possible.
        uniformity: f64,
        /// Standard deviation of a row's scores, mean over rows.
        deviation: f64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFinite { field, position } => write!(
                f,
                "{field} {position} holds a NaN or an infinity: look at the layer below, or lower the learning rate"
            ),
            Self::NothingVisible { queries } => write!(
                f,
                "mask: {queries} queries may see no key; their weights are 0. True means that a key may be seen: \
                 is the mask inverted?"
            ),
            Self::InvertedMask => write!(
                f,
                "mask: every query sees later keys only, which is a causal mask inverted; true means that a key \
                 may be seen"
            ),
            Self::OneVisible { queries, of } => write!(
                f,
                "mask: {queries} of {of} queries may see one key alone; it gets weight 1 whatever the query is"
            ),
            Self::DeadHead { field, longest } => write!(
                f,
                "dead head: the {field} are zero (the longest has length {longest:.1e}), so every score is 0; look \
                 at the projection's initial values and gradients"
            ),
            Self::CollapsedKeys { spread } => write!(
                f,
                "collapsed keys: they differ by {:.2} % of their length, so no query can tell them apart; look at \
                 what the keys are made of (a bias or a normalisation that drowns the content?)",
                100.0 * spread
            ),
            Self::CollapsedQueries { spread } => write!(
                f,
                "collapsed queries: they differ by {:.2} % of their length, so every row is the same; look at what \
                 the queries are made of",
                100.0 * spread
            ),
            Self::ScaleTooSmall {
                scale,
                usual,
                deviation,
            } => write!(
                f,
                "scale: {scale:.3e} flattens the scores (they deviate by {deviation:.1e}); 1/√d would be \
                 {usual:.3e}. Is the scale applied twice?"
            ),
            Self::Saturated { share, deviation } => write!(
                f,
                "saturated softmax: in {:.0} % of the rows one weight is above 0.999 (scores deviate by \
                 {deviation:.1}), so that hardly any gradient comes through; divide by √d, normalise queries and \
                 keys, or lower the learning rate",
                100.0 * share
            ),
            Self::MissingPositions { pair, keys } => write!(
                f,
                "missing positions: {keys} keys have an equal at another place (keys {} and {} are the same \
                 vector), so their order is invisible; add positions to queries and keys",
                pair.0, pair.1
            ),
            Self::Uniform {
                uniformity,
                deviation,
            } => write!(
                f,
                "uniform: entropy is {:.1} % of the largest possible, as scores deviate by {deviation:.1e} only; \
                 queries and keys are in order but orthogonal: the head has not learned yet",
                100.0 * uniformity
            ),
        }
    }
}
