//! What a model looks at while it reads a text: chosen weights, computed from the queries and keys of the pass itself.

use std::collections::BTreeMap;

use regard_kernels::{
    KernelError,
    dot::{self, Observe},
    stack::{Observer, Seen},
};

/// Which weights are wanted, and those that were seen. The first row of a batch is looked at.
///
/// A layer that nobody asks for costs nothing; one that is asked for costs its rows.
#[derive(Debug)]
pub struct Look {
    /// The only layer; `None` for all.
    pub layer: Option<usize>,
    /// The only head; `None` for all.
    pub head: Option<usize>,
    /// The only query, a position of the text; `None` for all.
    pub query: Option<usize>,
    /// Whether attention to the text itself is wanted.
    pub own: bool,
    /// The tokens of the source, if attention to it is wanted.
    pub source: Option<usize>,
    /// The tokens of the text.
    pub length: usize,
    /// By whether to the source, and by layer.
    maps: BTreeMap<(bool, usize), LookedAt>,
}

/// The weights of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LookedAt {
    /// Whether to the source.
    pub cross: bool,
    /// Which layer.
    pub layer: usize,
    /// How many heads.
    pub heads: usize,
    /// `[heads, queries, keys]`
    pub weights: Vec<f32>,
    /// Whether a row sums to 1.
    pub normalized: bool,
}

impl Look {
    /// All weights of a text of `length` tokens to itself.
    pub fn new(length: usize) -> Self {
        Self {
            layer: None,
            head: None,
            query: None,
            own: true,
            source: None,
            length,
            maps: BTreeMap::new(),
        }
    }

    /// How many numbers will be kept of a model with `layers` layers of `heads` heads.
    pub fn numbers(&self, layers: usize, heads: usize) -> usize {
        let of = |one: Option<usize>, all| one.map_or(all, |_| 1);
        let own = if self.own { self.length } else { 0 };
        of(self.layer, layers)
            .saturating_mul(of(self.head, heads))
            .saturating_mul(of(self.query, self.length))
            .saturating_mul(own.saturating_add(self.source.unwrap_or(0)))
    }

    /// Keeps what is wanted of the weights `[heads, length, length]` of a layer's attention to the text itself.
    pub fn insert(&mut self, layer: usize, heads: usize, weights: &[f32], normalized: bool) {
        if !self.wants(layer, false) {
            return;
        }
        let range = |one: Option<usize>, all| one.map_or(0..all, |one| one..(one + 1).min(all));
        let (shown, length) = (range(self.head, heads), self.length);
        let mut kept = vec![];
        for head in shown.clone() {
            for query in range(self.query, length) {
                kept.extend_from_slice(&weights[(head * length + query) * length..][..length]);
            }
        }
        let seen = LookedAt {
            cross: false,
            layer,
            heads: shown.len(),
            weights: kept,
            normalized,
        };
        self.maps.insert((false, layer), seen);
    }

    /// What was seen: attention to the text before that to the source, by layer.
    pub fn maps(self) -> impl Iterator<Item = LookedAt> {
        self.maps.into_values()
    }
}

impl Observer for Look {
    fn wants(&self, layer: usize, cross: bool) -> bool {
        let kind = if cross {
            self.source.is_some()
        } else {
            self.own
        };
        kind && self.layer.is_none_or(|wanted| wanted == layer)
    }

    fn see(&mut self, seen: Seen<'_>) -> Result<(), KernelError> {
        let [_, heads, queries, _] = seen.query.shape;
        let [_, groups, keys, _] = seen.key.shape;
        if seen.row != 0 {
            return Ok(());
        }
        let rows = (0..queries).filter(|&row| {
            let query = seen.queries.of(row);
            self.query.is_none_or(|wanted| wanted == query)
        });
        let rows: Vec<usize> = rows.collect();
        if rows.is_empty() {
            return Ok(());
        }
        let (mut query, mut key, mut lse, mut shown) = (seen.query, seen.key, seen.lse, heads);
        let mut attention = seen.attention;
        if let Some(head) = self.head.filter(|&head| head < heads) {
            query = query.of_head(head);
            key = key.of_head(head / (heads / groups));
            lse = &lse[head * queries * 3..][..queries * 3];
            attention = attention.of_head(heads, head);
            shown = 1;
        }
        let mut weights = vec![0.0; shown * rows.len() * keys];
        let observe = Observe {
            rows: Some((&rows, &mut weights)),
            ..Observe::default()
        };
        dot::observe(&attention, query, key, lse, observe)?;
        let (length, query) = (self.length, self.query);
        let all = query.map_or(length, |_| 1);
        let (cross, layer) = (seen.cross, seen.layer);
        let width = match self.source.filter(|_| cross) {
            Some(source) => source,
            None => length,
        };
        let map = self.maps.entry((cross, layer)).or_insert_with(|| LookedAt {
            cross,
            layer,
            heads: shown,
            weights: vec![0.0; shown * all * width],
            normalized: true,
        });
        for (head, rows_of_head) in weights.chunks_exact(rows.len() * keys).enumerate() {
            for (row, from) in rows.iter().zip(rows_of_head.chunks_exact(keys)) {
                let row = query.map_or(seen.queries.of(*row), |_| 0);
                let to = &mut map.weights[(head * all + row) * width..][..width];
                for (key, weight) in from.iter().enumerate() {
                    to[seen.keys.of(key)] += weight;
                }
            }
        }
        Ok(())
    }
}
