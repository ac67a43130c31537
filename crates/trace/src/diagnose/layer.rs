//! Measures of whole layers, over several examples: what a training logs at each validation.
//!
//! | measure | of the heads of a layer |
//! |---|---|
//! | entropy | mean of [`HeadDiagnostics::entropy`], nats |
//! | diagonality | mean of [`HeadDiagnostics::diagonality`]; between words and an image there is none |
//! | dead | heads that are [uniform](Role::Uniform): whatever the query, no key is preferred, and the head could as well be a mean |
//! | sinks | heads that are [sinks](Role::Sink): most weight on the first or a special token |
//!
//! Means are over the heads and examples in which a query had a choice between keys; a head is dead, or a sink, if it is so in at least
//! half of these examples. Layers are told apart by the kind of their maps and their number. Gates, such as those of channels, are no
//! weights that share 1 among keys, and do not count.
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Tokens, Trace, diagnose::Layers};
//!
//! let words = Tokens::from_words("one two");
//! let weights = vec![0.5, 0.5, 0.5, 0.5, // a dead head
//!                    0.9, 0.1, 0.8, 0.2]; // a sink
//! let map = AttentionMap::new(Kind::EncoderSelf, words.clone(), words, 2, weights)?;
//! let mut layers = Layers::default();
//! layers.add(&Trace::new("m", "one two", "").with_map(map));
//! let found = layers.measures();
//! assert_eq!((found[0].map.as_str(), found[0].layer), ("encoder.self", 0));
//! assert_eq!((found[0].heads, found[0].dead, found[0].sinks), (2, 1, 1));
//! # Ok::<(), regard_trace::TraceError>(())
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::HeadDiagnostics;
use super::{
    head::{heads, is_self},
    report::Role,
};
use crate::{AttentionMap, Axis, Kind, Trace};

/// Adds up what heads do in several examples.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// The heads of each layer, by the name of the kind and the number of the layer.
    layers: BTreeMap<(&'static str, usize), Vec<Head>>,
}

/// Sums over the examples in which a head had a choice.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    examples: usize,
    entropy: f64,
    diagonality: f64,
    /// Examples in which there is a diagonality.
    diagonals: usize,
    uniform: usize,
    sink: usize,
}

/// What the heads of one layer do, see the [module page](self).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerMeasures {
    /// The usual name of maps of this kind: `encoder.self`.
    pub map: String,
    /// The layer, counted from 0.
    pub layer: usize,
    /// How many heads it has.
    pub heads: usize,
    /// Mean entropy of a row, nats; `None` if no query had a choice.
    pub entropy: Option<f64>,
    /// Mean diagonality, 0 to 1; `None` where it has no meaning.
    pub diagonality: Option<f64>,
    /// Heads without a preference.
    pub dead: usize,
    /// Heads with most weight on the first or a special token.
    pub sinks: usize,
}

impl Layers {
    /// Adds the maps of an example.
    pub fn add(&mut self, trace: &Trace) {
        let gates = |map: &&AttentionMap| map.kind() == Kind::Other && !map.is_normalized();
        for map in trace.maps.iter().filter(|map| !gates(map)) {
            let layer = (map.kind().name(), map.layer());
            let sums = self.layers.entry(layer).or_default();
            sums.resize(sums.len().max(map.heads()), Head::default());
            let ordered = is_self(map) || !matches!(map.keys(), Axis::Image { .. });
            for (sum, head) in sums.iter_mut().zip(heads(map)) {
                let Some(entropy) = head.entropy else {
                    continue;
                };
                sum.examples += 1;
                sum.entropy += entropy;
                if let Some(diagonality) = head.diagonality.filter(|_| ordered) {
                    sum.diagonality += diagonality;
                    sum.diagonals += 1;
                }
                match Role::of(map, &head).0 {
                    Role::Uniform => sum.uniform += 1,
                    Role::Sink => sum.sink += 1,
                    _ => {}
                }
            }
        }
    }

    /// The measures of each layer, in the order of names and layers.
    pub fn measures(&self) -> Vec<LayerMeasures> {
        let all = self.layers.iter();
        let measured = all.map(|(&(map, layer), heads)| {
            let sum = |of: fn(&Head) -> f64| heads.iter().map(of).sum::<f64>();
            let count = |of: fn(&Head) -> usize| heads.iter().map(of).sum::<usize>();
            let mean = |sum: f64, count: usize| (count > 0).then(|| sum / count as f64);
            let mostly = |of: fn(&Head) -> usize| {
                let most = |head: &&Head| head.examples > 0 && 2 * of(head) >= head.examples;
                heads.iter().filter(most).count()
            };
            LayerMeasures {
                map: map.to_owned(),
                layer,
                heads: heads.len(),
                entropy: mean(sum(|head| head.entropy), count(|head| head.examples)),
                diagonality: mean(sum(|head| head.diagonality), count(|head| head.diagonals)),
                dead: mostly(|head| head.uniform),
                sinks: mostly(|head| head.sink),
            }
        });
        measured.collect()
    }
}

/// The measures of all layers of each kind together, each layer counting by its heads, in the order of the kinds' first layers. The
/// layer of the result is that of the first.
pub fn by_kind(layers: &[LayerMeasures]) -> Vec<LayerMeasures> {
    let mut kinds: Vec<Vec<&LayerMeasures>> = vec![];
    for layer in layers {
        match kinds.iter_mut().find(|kind| kind[0].map == layer.map) {
            Some(kind) => kind.push(layer),
            None => kinds.push(vec![layer]),
        }
    }
    let joined = kinds.into_iter().map(|kind| {
        let mean = |of: fn(&LayerMeasures) -> Option<f64>| {
            let known = || {
                kind.iter()
                    .filter_map(|layer| Some((layer.heads as f64, of(layer)?)))
            };
            let heads: f64 = known().map(|(heads, _)| heads).sum();
            let sum: f64 = known().map(|(heads, value)| heads * value).sum();
            (heads > 0.0).then(|| sum / heads)
        };
        LayerMeasures {
            heads: kind.iter().map(|layer| layer.heads).sum(),
            entropy: mean(|layer| layer.entropy),
            diagonality: mean(|layer| layer.diagonality),
            dead: kind.iter().map(|layer| layer.dead).sum(),
            sinks: kind.iter().map(|layer| layer.sinks).sum(),
            ..kind[0].clone()
        }
    });
    joined.collect()
}
