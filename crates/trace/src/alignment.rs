//! Word alignments read off an attention map, in Pharaoh format.
//!
//! A link `i-j` says that source word `i` and target word `j` belong together, both counted from 0.
//! Special tokens take no place in the count and no part in a link. Heads are averaged first.
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Token, Tokens};
//!
//! let source = Tokens::from(vec![Token::new("a"), Token::new("b"), Token::special("</s>")]);
//! let target = Tokens::from(vec![Token::new("B"), Token::new("A"), Token::special("</s>")]);
//! #[rustfmt::skip]
//! let weights = vec![0.25, 0.75, 0.0,
//!                    0.5, 0.25, 0.25,
//!                    0.0, 0.0, 1.0];
//! let map = AttentionMap::new(Kind::Cross, target, source, 1, weights)?;
//! assert_eq!(map.align_argmax().to_string(), "0-1 1-0");
//! assert_eq!(map.align_threshold(0.25).to_string(), "0-0 0-1 1-0 1-1");
//! # Ok::<(), regard_trace::TraceError>(())
//! ```

use std::fmt;

use crate::{AttentionMap, Axis, Kind, Trace};

/// Links between source (keys) and target (queries), sorted. Its `Display` is a line in Pharaoh
/// format: `0-0 1-2 2-1`, empty when there are no links.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Alignment {
    links: Vec<(usize, usize)>,
}

impl Alignment {
    /// The links as (source, target), sorted and without repeats.
    pub fn links(&self) -> &[(usize, usize)] {
        &self.links
    }
}

impl FromIterator<(usize, usize)> for Alignment {
    fn from_iter<I: IntoIterator<Item = (usize, usize)>>(links: I) -> Self {
        let mut links: Vec<_> = links.into_iter().collect();
        links.sort_unstable();
        links.dedup();
        Self { links }
    }
}

impl fmt::Display for Alignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (source, target)) in self.links.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{source}-{target}")?;
        }
        Ok(())
    }
}

impl AttentionMap {
    /// For every query the key with the largest weight, the first of equals:
    /// `{(argmax_k α_qk, q)}`. A query whose largest weight lies on a special token, or that was
    /// allowed no key, has no link.
    pub fn align_argmax(&self) -> Alignment {
        self.align(|row| {
            let mut best = None;
            for (key, &weight) in row.iter().enumerate() {
                if weight > best.map_or(0.0, |(_, w)| w) {
                    best = Some((key, weight));
                }
            }
            best.into_iter().map(|(key, _)| key).collect()
        })
    }

    /// All pairs whose weight is at least `threshold` and above zero:
    /// `{(k, q) : α_qk ≥ threshold}`.
    pub fn align_threshold(&self, threshold: f32) -> Alignment {
        self.align(|row| {
            (0..row.len())
                .filter(|&key| row[key] > 0.0 && row[key] >= threshold)
                .collect()
        })
    }

    /// How much the map is like an alignment of words, from 0 to 1: `2 P R / (P + R)`, where `P = (1/Q) Σ_q max_k α_qk` is the
    /// mean over queries of their largest weight, and `R = (1/K) Σ_k max_q α_qk` the mean over keys of theirs. Heads are
    /// averaged and subwords merged first. Special tokens do not count, so weight on `</s>` lowers the result.
    pub fn alignedness(&self) -> f64 {
        let map = self.mean_heads().merge_words();
        let plain = |axis: &Axis| -> Vec<usize> {
            (0..axis.len())
                .filter(|&index| !axis.is_special(index))
                .collect()
        };
        let (queries, keys) = (plain(map.queries()), plain(map.keys()));
        let weight = |query: usize, key: usize| f64::from(map.weight(0, query, key));
        let mean = |of: &mut dyn Iterator<Item = f64>| {
            let (sum, count) = of.fold((0.0, 0), |(sum, count), x| (sum + x, count + 1));
            sum / f64::from(count.max(1))
        };
        let by_query = mean(&mut queries.iter().map(|&query| {
            keys.iter()
                .map(|&key| weight(query, key))
                .fold(0.0, f64::max)
        }));
        let by_key = mean(&mut keys.iter().map(|&key| {
            queries
                .iter()
                .map(|&query| weight(query, key))
                .fold(0.0, f64::max)
        }));
        match by_query + by_key > 0.0 {
            true => 2.0 * by_query * by_key / (by_query + by_key),
            false => 0.0,
        }
    }

    fn align(&self, chosen: impl Fn(&[f32]) -> Vec<usize>) -> Alignment {
        let map = self.mean_heads();
        let (sources, targets) = (places(map.keys()), places(map.queries()));
        let mut links = Vec::new();
        for (query, target) in targets.iter().enumerate() {
            let Some(target) = *target else { continue };
            for key in chosen(map.row(0, query)) {
                links.extend(sources[key].map(|source| (source, target)));
            }
        }
        links.into_iter().collect()
    }
}

impl Trace {
    /// The cross-attention map that is most like an alignment ([`AttentionMap::alignedness`]), the first of equals. In a
    /// Transformer this is often not the last layer: that layer prepares the next prediction, and its weights lie on later
    /// words or on `</s>`.
    pub fn most_aligned(&self) -> Option<&AttentionMap> {
        let cross = self.maps.iter().filter(|map| map.kind() == Kind::Cross);
        let measured = cross.map(|map| (map, map.alignedness()));
        measured
            .reduce(|best, other| if other.1 > best.1 { other } else { best })
            .map(|(map, _)| map)
    }
}

/// The place of every entry in the text, counting no special tokens.
fn places(axis: &Axis) -> Vec<Option<usize>> {
    let mut next = 0;
    (0..axis.len())
        .map(|index| {
            let place = (!axis.is_special(index)).then_some(next);
            next += usize::from(place.is_some());
            place
        })
        .collect()
}
