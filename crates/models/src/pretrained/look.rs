//! What a model looks at while it reads a text: chosen weights, computed from the queries and keys of the pass itself.

use std::collections::BTreeMap;

use regard_kernels::{
    KernelError, View,
    dot::{self, Observe},
    stack::{Observer, Seen},
};

/// Which weights are wanted, and those that were seen. The first row of a batch is looked at.
///
/// A layer that nobody asks for costs nothing; one that is asked for costs its rows.
#[derive(Debug, Default)]
pub struct Look {
    /// The only layer; `None` for all.
    pub layer: Option<usize>,
    /// The only head; `None` for all.
    pub head: Option<usize>,
    /// The only query, a position of the text; `None` for all.
    pub query: Option<usize>,
    /// The tokens of the text.
    pub length: usize,
    maps: BTreeMap<usize, LookedAt>,
}

/// The weights of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LookedAt {
    /// How many heads.
    pub heads: usize,
    /// `[heads, queries, length]`
    pub weights: Vec<f32>,
}

impl Look {
    /// All weights of a text of `length` tokens.
    pub fn new(length: usize) -> Self {
        Self {
            length,
            ..Self::default()
        }
    }

    /// How many numbers will be kept of a model with `layers` layers of `heads` heads.
    pub fn numbers(&self, layers: usize, heads: usize) -> usize {
        let of = |one: Option<usize>, all| one.map_or(all, |_| 1);
        of(self.layer, layers)
            .saturating_mul(of(self.head, heads))
            .saturating_mul(of(self.query, self.length))
            .saturating_mul(self.length)
    }

    /// The weights by layer.
    pub fn maps(self) -> BTreeMap<usize, LookedAt> {
        self.maps
    }
}

impl Observer for Look {
    fn wants(&self, layer: usize, cross: bool) -> bool {
        !cross && self.layer.is_none_or(|wanted| wanted == layer)
    }

    fn see(&mut self, seen: Seen<'_>) -> Result<(), KernelError> {
        let [_, heads, queries, size] = seen.query.shape;
        let [_, groups, keys, _] = seen.key.shape;
        if seen.row != 0 {
            return Ok(());
        }
        let last = seen.first_key + keys;
        // The position of the pass's first query.
        let first = match seen.attention.causal {
            true => last - queries,
            false => 0,
        };
        let rows: Vec<usize> = match self.query {
            None => (0..queries).collect(),
            Some(query) if (first..first + queries).contains(&query) => vec![query - first],
            Some(_) => return Ok(()),
        };
        let (mut query, mut key, mut lse, mut shown) = (seen.query, seen.key, seen.lse, heads);
        if let Some(head) = self.head.filter(|&head| head < heads) {
            query = View {
                data: &query.data[head * query.strides[1]..],
                shape: [1, 1, queries, size],
                ..query
            };
            let group = head / (heads / groups);
            key = View {
                data: &key.data[group * key.strides[1]..],
                shape: [1, 1, keys, size],
                ..key
            };
            lse = &lse[head * queries * 3..][..queries * 3];
            shown = 1;
        }
        let mut weights = vec![0.0; shown * rows.len() * keys];
        let observe = Observe {
            rows: Some((&rows, &mut weights)),
            ..Observe::default()
        };
        dot::observe(&seen.attention, query, key, lse, observe)?;
        let (length, query) = (self.length, self.query);
        let all = query.map_or(length, |_| 1);
        let map = self.maps.entry(seen.layer).or_insert_with(|| LookedAt {
            heads: shown,
            weights: vec![0.0; shown * all * length],
        });
        for (head, rows_of_head) in weights.chunks_exact(rows.len() * keys).enumerate() {
            for (row, from) in rows.iter().zip(rows_of_head.chunks_exact(keys)) {
                let row = query.map_or(first + row, |_| 0);
                let to = (head * all + row) * length + seen.first_key;
                map.weights[to..to + keys].copy_from_slice(from);
            }
        }
        Ok(())
    }
}
