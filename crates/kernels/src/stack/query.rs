//! One query of one head against every key: the numbers that its weights are computed from.

use super::observer::{Observer, Seen};
use crate::View;
use crate::dot::{self, reference};
use crate::error::{KernelError, check_size};

/// Records one query of the first row of a pass, after norms and rotary positions, with the keys and values of its head:
/// `s_j = cap(scale · Σ_i q_i k_ji) + bias_j`, `w_j = e^{s_j} / Σ_l e^{s_l}` over the keys that it sees. It may look at several
/// passes; one whose heads have another size ends with an error.
///
/// ```
/// # use regard_kernels::stack::{Observer, QueryObserver};
/// let observer = QueryObserver::new(1, false, 0, 3);
/// assert!(observer.wants(1, false) && !observer.wants(0, false));
/// assert!(observer.found().is_none()); // no pass has had the query
/// ```
#[derive(Debug)]
pub struct QueryObserver {
    layer: usize,
    cross: bool,
    head: usize,
    query: usize,
    found: QueryKeys,
    /// By position: whether the key is known, and whether it is the one that the query was multiplied with.
    known: Vec<(bool, bool)>,
}

/// A query and its keys.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueryKeys {
    /// `[head]`; zeros in a head that is uniform.
    pub query: Vec<f32>,
    /// The factor of the products.
    pub scale: f32,
    /// `c` of `cap(s) = c tanh(s / c)`; `None` leaves scores as they are.
    pub softcap: Option<f32>,
    /// The positions of the keys, ascending.
    pub positions: Vec<usize>,
    /// `[keys, head]`
    pub keys: Vec<f32>,
    /// `[keys, head]`
    pub values: Vec<f32>,
    /// `[keys]`: as they enter the softmax; `None` for a key that is hidden from the query.
    pub scores: Vec<Option<f64>>,
    /// `[keys]`: those of [`dot::observe`](crate::dot::observe()).
    pub weights: Vec<f32>,
}

impl QueryObserver {
    /// Records the query at position `query` of head `head` in block `layer`, to the own past or to the source (`cross`).
    pub fn new(layer: usize, cross: bool, head: usize, query: usize) -> Self {
        Self {
            layer,
            cross,
            head,
            query,
            found: QueryKeys::default(),
            known: vec![],
        }
    }

    /// What was recorded; `None` if no pass had this head and query.
    pub fn found(self) -> Option<QueryKeys> {
        let QueryKeys {
            query,
            keys,
            values,
            ..
        } = &self.found;
        if query.is_empty() {
            return None;
        }
        let size = query.len();
        let known = self.known.iter().enumerate();
        let positions: Vec<usize> = known
            .filter(|(_, known)| known.0)
            .map(|(at, _)| at)
            .collect();
        let kept = |all: &[f32]| {
            let rows = positions.iter().flat_map(|at| &all[at * size..][..size]);
            rows.copied().collect()
        };
        Some(QueryKeys {
            keys: kept(keys),
            values: kept(values),
            scores: positions.iter().map(|&at| self.found.scores[at]).collect(),
            weights: positions.iter().map(|&at| self.found.weights[at]).collect(),
            positions,
            ..self.found
        })
    }

    /// Makes room for the key at a position.
    fn reserve(&mut self, position: usize, size: usize) {
        if position >= self.known.len() {
            let length = position + 1;
            self.known.resize(length, (false, false));
            self.found.scores.resize(length, None);
            self.found.weights.resize(length, 0.0);
            self.found.keys.resize(length * size, 0.0);
            self.found.values.resize(length * size, 0.0);
        }
    }
}

impl Observer for QueryObserver {
    fn wants(&self, layer: usize, cross: bool) -> bool {
        (layer, cross) == (self.layer, self.cross)
    }

    fn see(&mut self, seen: Seen<'_>) -> Result<(), KernelError> {
        let [_, heads, queries, size] = seen.query.shape;
        let [_, groups, keys, _] = seen.key.shape;
        if seen.row != 0 || self.head >= heads {
            return Ok(());
        }
        if let Some(known) = self.found.keys.len().checked_div(self.known.len()) {
            let reason = "as in the passes before";
            check_size("query", "features of a head", size, known, reason)?;
        }
        let group = self.head / (heads / groups);
        let query = seen.query.of_head(self.head);
        let (key, value) = (seen.key.of_head(group), seen.value.of_head(group));
        let asked = (0..queries).find(|&row| seen.queries.of(row) == self.query);
        let (mut scores, mut weights) = (vec![None; keys], vec![0.0; keys]);
        if let Some(row) = asked {
            let attention = seen.attention.of_head(heads, self.head);
            let wide = |view: View<'_>| rows(view).flatten().map(|&x| f64::from(x)).collect();
            let (wide_query, wide_key): (Vec<f64>, Vec<f64>) = (wide(query), wide(key));
            let shapes = [query.shape, key.shape];
            scores = reference::scores(&attention, shapes, &wide_query, &wide_key, [0, 0, row]);
            let observe = dot::Observe {
                rows: Some((&[row], &mut weights)),
                ..dot::Observe::default()
            };
            let lse = &seen.lse[self.head * queries * 3..][..queries * 3];
            dot::observe(&attention, query, key, lse, observe)?;
            self.found.query = rows(query).nth(row).unwrap_or_default().to_vec();
            self.found.scale = attention.scale.unwrap_or(1.0 / (size as f32).sqrt());
            self.found.softcap = attention.softcap;
        }
        let each = rows(key)
            .zip(rows(value))
            .zip(scores.into_iter().zip(weights));
        for (index, ((key, value), (score, weight))) in each.enumerate() {
            let position = seen.keys.of(index);
            self.reserve(position, size);
            let score = score.filter(|&score| score > f64::NEG_INFINITY);
            // Global positions have their key in several calls: the one that the query was multiplied with counts.
            let (known, read) = &mut self.known[position];
            if *read || *known && score.is_none() {
                continue;
            }
            (*known, *read) = (true, score.is_some());
            self.found.keys[position * size..][..size].copy_from_slice(key);
            self.found.values[position * size..][..size].copy_from_slice(value);
            self.found.scores[position] = score;
            self.found.weights[position] = weight;
        }
        Ok(())
    }
}

/// The rows of a view of one head.
fn rows<'a>(view: View<'a>) -> impl Iterator<Item = &'a [f32]> {
    let [.., rows, columns] = view.shape;
    (0..rows).map(move |row| &view.data[row * view.strides[2]..][..columns])
}
