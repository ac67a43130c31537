//! What the checks of a head can find, and the sentences that report it.

use std::fmt;

/// Something that explains uniform, or useless, attention. Its `Display` is a sentence in which queries are called
/// `q1, q2, ..` and keys `k1, k2, ..`; [`Finding::told`] takes other names for them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Finding {
    /// A query or key holds a NaN or an infinity.
    NotFinite {
        /// Queries or keys.
        side: Side,
        /// The position of the first such vector.
        position: usize,
    },
    /// Queries that may see no key; their weights are 0.
    NothingVisible {
        /// Which queries.
        queries: Vec<usize>,
    },
    /// Every query sees later keys and no others.
    InvertedMask,
    /// Queries that may see one key.
    OneVisible {
        /// Which queries.
        queries: Vec<usize>,
        /// How many queries there are.
        of: usize,
        /// How many keys there are.
        keys: usize,
    },
    /// Queries or keys are all about zero.
    DeadHead {
        /// Queries or keys.
        side: Side,
        /// The length of the longest vector.
        longest: f64,
    },
    /// The last keys are the same vector, and earlier queries see them.
    Padding {
        /// The first of these keys.
        from: usize,
        /// How many there are.
        keys: usize,
    },
    /// All keys are nearly the same vector, and so are the weights.
    CollapsedKeys {
        /// How far keys differ, as a share of their length.
        spread: f64,
    },
    /// All queries are nearly the same vector.
    CollapsedQueries {
        /// How far queries differ, as a share of their length.
        spread: f64,
    },
    /// Nearly every row has a weight of nearly 1.
    Saturated {
        /// The share of such rows.
        share: f64,
        /// Standard deviation of a row's scores, mean over rows.
        deviation: f64,
        /// What makes the scores so large, largest factor first.
        causes: Vec<Cause>,
    },
    /// Keys at different places are the same vector.
    MissingPositions {
        /// Two such places.
        pair: (usize, usize),
        /// How many keys equal a key at another position.
        keys: usize,
    },
    /// The weights are uniform.
    Uniform {
        /// Mean entropy as a share of the largest possible.
        uniformity: f64,
        /// Standard deviation of a row's scores, mean over rows.
        deviation: f64,
        /// What makes the scores so even, smallest factor first; none if each factor is a little small.
        causes: Vec<Cause>,
    },
}

/// Which vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The queries.
    Queries,
    /// The keys.
    Keys,
}

/// Why scores are too even, or too far apart.
///
/// A score is `scale · |q| |k| · cos(q, k)`. Vectors of unit variance have length `√d` and cosines that deviate by
/// `1/√d`; with the scale `1/√d` their scores deviate by 1. A cause is a factor that is less than a third
/// ([`Finding::Uniform`]) or more than three times ([`Finding::Saturated`]) of that.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Cause {
    /// The scale is far from `1/√d`.
    Scale {
        /// The scale.
        scale: f64,
        /// `1/√d`.
        usual: f64,
    },
    /// Queries and keys are far from length `√d`.
    Lengths {
        /// Mean length of the queries.
        queries: f64,
        /// Mean length of the keys.
        keys: f64,
        /// `√d`.
        usual: f64,
    },
    /// No query points along, or against, any key that it sees.
    Orthogonal {
        /// The largest `|cos(q, k)|`.
        largest: f64,
    },
    /// As seen from each query, all keys lie in about the same direction.
    Alike {
        /// The query whose cosines differ most.
        query: usize,
        /// Its smallest cosine.
        low: f64,
        /// Its largest.
        high: f64,
    },
    /// The softcap presses scores together that differ without it.
    Softcap {
        /// The cap.
        softcap: f64,
        /// Standard deviation of a row's scores before it, mean over rows.
        before: f64,
    },
}

/// What queries and keys are called; those without a name are `q1, q2, ..` and `k1, k2, ..`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Names<'a> {
    /// The queries.
    pub queries: &'a [String],
    /// The keys.
    pub keys: &'a [String],
}

impl Names<'_> {
    fn one(&self, side: Side, position: usize) -> String {
        let (names, letter) = match side {
            Side::Queries => (self.queries, 'q'),
            Side::Keys => (self.keys, 'k'),
        };
        match names.get(position) {
            Some(name) => name.clone(),
            None => format!("{letter}{}", position + 1),
        }
    }

    /// `q1`, `q1 and q2`, `q1, q2, q3 and 4 more`.
    fn queries(&self, positions: &[usize]) -> String {
        const MOST: usize = 3;
        let mut names: Vec<String> = positions
            .iter()
            .take(MOST)
            .map(|&position| self.one(Side::Queries, position))
            .collect();
        let last = match positions.len().saturating_sub(MOST) {
            0 => names.pop(),
            more => Some(format!("{more} more")),
        };
        match (names.is_empty(), last) {
            (false, Some(last)) => format!("{} and {last}", names.join(", ")),
            (_, last) => last.unwrap_or_default(),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queries => "queries",
            Self::Keys => "keys",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told(Names::default()))
    }
}

impl Finding {
    /// The finding in a sentence, with these names for queries and keys.
    pub fn told(&self, names: Names<'_>) -> String {
        match self {
            Self::NotFinite { side, position } => format!(
                "{} holds a NaN or an infinity: look at the layer below, or lower the learning rate",
                names.one(*side, *position)
            ),
            Self::NothingVisible { queries } => format!(
                "mask: {} {} no key, so all weights there are 0. True means that a key may be seen: is the mask \
                 inverted?",
                names.queries(queries),
                sees(queries)
            ),
            Self::InvertedMask => {
                "mask: every query sees later keys only, which is a causal mask inverted; true means that a key \
                 may be seen"
                    .to_owned()
            }
            Self::OneVisible { keys: 1, .. } => {
                "one key: there is nothing to choose from, so its weight is 1 whatever the query is".to_owned()
            }
            Self::OneVisible {
                queries, of, keys, ..
            } => format!(
                "mask: {} ({} of {of} queries) {} one of the {keys} keys, so that key's weight is 1 whatever the \
                 query is",
                names.queries(queries),
                queries.len(),
                sees(queries)
            ),
            Self::DeadHead { side, longest } => format!(
                "dead head: the {side} are zero (the longest has length {}), and so is every score; look at the \
                 projection's initial values and gradients",
                number(*longest)
            ),
            Self::Padding { from, keys } => format!(
                "padding: the last {keys} keys, from {} on, are one vector and are seen, so they share the weight \
                 evenly; mask them, or add positions if they are words",
                names.one(Side::Keys, *from)
            ),
            Self::CollapsedKeys { spread } => format!(
                "equal keys: they differ by {} % of their length, so no query can tell them apart and all weights \
                 are about equal; look at what the keys are made of (a bias or a normalisation that drowns the \
                 content?)",
                number(100.0 * spread)
            ),
            Self::CollapsedQueries { spread } => format!(
                "equal queries: they differ by {} % of their length, so all rows of weights are about the same; \
                 look at what the queries are made of",
                number(100.0 * spread)
            ),
            Self::Saturated {
                share,
                deviation,
                causes,
            } => format!(
                "saturated softmax: in {:.0} % of the rows one weight is above 0.999, because the scores of a row \
                 deviate by {} (about 1 is healthy); hardly any gradient comes through. {}",
                100.0 * share,
                number(*deviation),
                because(causes, names, false)
            ),
            Self::MissingPositions { pair, keys } => format!(
                "missing positions: {keys} keys have an equal at another place ({} and {} are the same vector), so \
                 their order is invisible; add positions to queries and keys",
                names.one(Side::Keys, pair.0),
                names.one(Side::Keys, pair.1)
            ),
            Self::Uniform {
                uniformity,
                deviation,
                causes,
            } => format!(
                "uniform weights: their entropy is {:.1} % of the largest possible, because the scores of a row \
                 deviate by only {} (about 1 is healthy). {}",
                100.0 * uniformity,
                number(*deviation),
                because(causes, names, true)
            ),
        }
    }
}

impl Cause {
    /// The cause as a clause with its numbers; `small` says that it makes scores too even.
    fn told(&self, names: Names<'_>, small: bool) -> String {
        match self {
            Self::Scale { scale, .. } if *scale == 0.0 => "the scale is 0".to_owned(),
            Self::Scale { scale, usual } => {
                let ratio = (scale / usual).abs();
                let (times, word, advice) = match small {
                    true => (
                        1.0 / ratio,
                        "smaller",
                        "is it applied twice, or the temperature too high?",
                    ),
                    false => (ratio, "larger", "divide by √d, or raise the temperature"),
                };
                format!(
                    "the scale {} is {} times {word} than 1/√d = {}: {advice}",
                    number(*scale),
                    number(times),
                    number(*usual)
                )
            }
            Self::Lengths {
                queries,
                keys,
                usual,
            } => {
                let (word, advice) = match small {
                    true => (
                        "short",
                        "longer vectors, or a larger scale, would part the scores",
                    ),
                    false => (
                        "long",
                        "normalise queries and keys, or lower the learning rate",
                    ),
                };
                format!(
                    "the vectors are {word}, queries {} and keys {} on average, where √d = {} is usual: {advice}",
                    number(*queries),
                    number(*keys),
                    number(*usual)
                )
            }
            Self::Orthogonal { largest } => format!(
                "queries and keys are nearly orthogonal (no cosine is beyond ±{}), so no key fits any query: is the head \
                 trained?",
                number(*largest)
            ),
            Self::Alike { query, low, high } => format!(
                "the keys lie in similar directions as seen from the queries (for {}, whose cosines differ most, they run \
                 from {low:.4} to {high:.4}): take off what all keys share, such as their mean",
                names.one(Side::Queries, *query)
            ),
            Self::Softcap { softcap, before } => format!(
                "the softcap {} is too low: without it the scores of a row deviate by {}",
                number(*softcap),
                number(*before)
            ),
        }
    }
}

fn because(causes: &[Cause], names: Names<'_>, small: bool) -> String {
    let told: Vec<String> = causes
        .iter()
        .map(|cause| cause.told(names, small))
        .collect();
    match (told.as_slice(), small) {
        ([], true) => {
            "No one cause: scale, lengths and directions are each a little too small".to_owned()
        }
        ([], false) => {
            "No one cause: scale, lengths and directions are each a little too large".to_owned()
        }
        ([one], _) => format!("Cause: {one}"),
        (several, _) => {
            let numbered = several.iter().zip(1..);
            let numbered: Vec<String> = numbered
                .map(|(cause, n)| format!("({n}) {cause}"))
                .collect();
            format!("Causes: {}", numbered.join("; "))
        }
    }
}

fn sees(queries: &[usize]) -> &'static str {
    match queries.len() {
        1 => "sees",
        _ => "see",
    }
}

/// Three significant digits: `0.0452`, `12.3`, `5774`, `1.00e-9`.
fn number(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if !(1e-4..1e6).contains(&size) {
        return format!("{value:.2e}");
    }
    let decimals = (2.0 - size.log10().floor()).max(0.0) as usize;
    let fixed = format!("{value:.decimals$}");
    match fixed.contains('.') {
        true => fixed.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => fixed,
    }
}
