//! Attention rollout: what a stack of layers looked at (Abnar & Zuidema 2020, section 3).
//!
//! `Ã_l = ½(Ā_l + I)`, rows renormalised, `Ā_l` the mean over heads; `R_l = Ã_l R_{l-1}`, `R_0 = I`.
//! The half of `I` stands for the residual connection, by which a position keeps what it had.
//!
//! Row `i` of the result says what position `i` of the top layer took from every input. For a model
//! with a class token, read the row of that token; for one that pools all positions by their mean, the
//! mean of the rows ([`AttentionMap::mean_queries`], or [`AttentionMap::mean_of_queries`] where some
//! positions are not pooled); for a language model, the last row.
//!
//! Shapes: maps `[heads, length, length]`, lowest layer first, to one map `[1, length, length]`.
//! Cost: `layers · length³`.
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Tokens, diagnose::rollout};
//!
//! let words = Tokens::from_words("a b");
//! let layer = |weights| AttentionMap::new(Kind::EncoderSelf, words.clone(), words.clone(), 1, weights);
//! let (low, high) = (layer(vec![1.0, 0.0, 1.0, 0.0])?, layer(vec![0.0, 1.0, 0.0, 1.0])?);
//! let both = rollout(&[&low, &high])?;
//! assert_eq!(both.weights(), [0.75, 0.25, 0.5, 0.5]);
//! assert_eq!(both.mean_queries(), [0.625, 0.375]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use super::stack::{Stack, StackError};
use crate::AttentionMap;
use crate::map::as_weight;

/// What every position of the top layer took from every input: a map `rollout`, `[1, length, length]`.
///
/// # Errors
/// No layers, a layer that is not self-attention, or layers of different lengths.
pub fn rollout(layers: &[&AttentionMap]) -> Result<AttentionMap, StackError> {
    let stack = Stack::new(layers)?;
    let length = stack.length;
    let mut joint: Vec<f64> = (0..length * length)
        .map(|place| f64::from(u8::from(place / length.max(1) == place % length.max(1))))
        .collect();
    for layer in &stack.layers {
        joint = product(layer, &joint, length);
    }
    let weights = joint.into_iter().map(as_weight).collect();
    Ok(stack.map("rollout", weights))
}

fn product(a: &[f64], b: &[f64], length: usize) -> Vec<f64> {
    let mut out = vec![0.0; length * length];
    if length == 0 {
        return out;
    }
    for (out, a) in out.chunks_exact_mut(length).zip(a.chunks_exact(length)) {
        for (weight, b) in a.iter().zip(b.chunks_exact(length)) {
            for (out, b) in out.iter_mut().zip(b) {
                *out += weight * b;
            }
        }
    }
    out
}

impl Stack<'_> {
    /// The map of this stack's sequence with these weights.
    pub(super) fn map(&self, name: &str, weights: Vec<f32>) -> AttentionMap {
        AttentionMap {
            name: name.to_owned(),
            kind: self.kind(),
            layer: self.layers.len() - 1,
            heads: 1,
            normalized: true,
            queries: self.axis().clone(),
            keys: self.axis().clone(),
            predictions: self.predictions().cloned(),
            weights,
        }
    }
}

impl AttentionMap {
    /// The mean over queries and heads, `[keys]`: what a model that pools all positions looked at.
    pub fn mean_queries(&self) -> Vec<f64> {
        let [_, queries, _] = self.shape();
        self.mean_of_queries(0..queries)
    }

    /// The mean over some queries and all heads, `[keys]`; zeros if there are none. Queries past the end are left out.
    pub fn mean_of_queries(&self, wanted: Range<usize>) -> Vec<f64> {
        let [heads, queries, keys] = self.shape();
        let wanted = wanted.start..wanted.end.min(queries);
        let mut sums = vec![0.0; keys];
        for head in 0..heads {
            for query in wanted.clone() {
                for (sum, &weight) in sums.iter_mut().zip(self.row(head, query)) {
                    *sum += f64::from(weight);
                }
            }
        }
        let rows = (heads * wanted.len()).max(1) as f64;
        sums.iter().map(|sum| sum / rows).collect()
    }
}
