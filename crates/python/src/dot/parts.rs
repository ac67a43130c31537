//! A long call of dot-product attention in parts, between which Python hears of Ctrl-C.
//!
//! A part is some entries of the batch, or some key heads of one entry with their query heads: the bits of a head do not depend on those
//! that are computed with it.

use pyo3::Python;
use regard_kernels::{
    Attention, Blocks, Documents, Element, KernelError, RelativeBias, View, ViewMut, dot,
};

use crate::threads::detached;

/// Seconds of a part, roughly, where each thread has a fast core of its own; one key head may take longer.
const SECONDS: f64 = 0.05;

/// The most queries that one thread computes at once.
const PANEL: usize = 48;

/// The arguments of a call.
#[derive(Clone, Copy)]
pub struct Call<'a, T> {
    pub attention: Attention<'a>,
    pub query: View<'a, T>,
    pub key: View<'a, T>,
    pub value: View<'a, T>,
}

impl<'a, T: Element> Call<'a, T> {
    /// Writes `output [batch, heads, queries, value_dim]` and `lse [batch, heads, queries, 3]`.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn forward(&self, output: &mut [T], lse: &mut [f32]) -> Result<(), KernelError> {
        let [batch, heads, queries, _] = self.query.shape;
        let shape = [batch, heads, queries, self.value.shape[3]];
        let output = ViewMut::heads_first(output, shape);
        dot::forward_stored(
            &self.attention,
            self.query,
            self.key,
            self.value,
            output,
            Some(lse),
        )
    }

    /// Its parts, in the order of their results; the call itself if it is short, or has an argument that cannot be cut: dropout, which
    /// counts places in the whole, and what does not fit, which the kernel refuses.
    pub fn parts(&self, py: Python<'_>) -> Vec<Self> {
        self.cut(py).unwrap_or_else(|| vec![*self])
    }

    fn cut(&self, py: Python<'_>) -> Option<Vec<Self>> {
        let [batch, heads, queries, dim] = self.query.shape;
        let [key_batch, key_heads, keys, _] = self.key.shape;
        let [value_batch, value_heads, _, value_dim] = self.value.shape;
        let group = heads.checked_div(key_heads)?;
        let found = (key_batch, value_batch, value_heads, group * key_heads);
        // One key head on one thread, as the kernels estimate it.
        let sizes = [2, group, queries, keys, dim.max(value_dim)].map(|size| size as f64);
        let seconds = sizes.iter().product::<f64>() / 40e9;
        let is_short = seconds * batch as f64 * key_heads as f64 <= SECONDS;
        if found != (batch, batch, key_heads, heads) || self.attention.dropout.is_some() || is_short
        {
            return None;
        }
        let threads = detached(py, rayon::current_num_threads);
        // Key heads of a part: as many as the time allows, and enough for all threads.
        let panels = group * queries.div_ceil(PANEL);
        let together = (SECONDS * threads as f64 / seconds) as usize;
        let together = together.max(threads.div_ceil(panels));
        match together / key_heads {
            0 => Share::each(batch, 1)
                .flat_map(|entry| {
                    Share::each(key_heads, together).map(move |heads| self.part(entry, heads))
                })
                .collect(),
            entries => Share::each(batch, entries)
                .map(|entries| self.part(entries, Share::all(key_heads)))
                .collect(),
        }
    }

    /// Some entries and key heads alone; `None` if an option does not fit the whole.
    fn part(&self, batch: Share, key_heads: Share) -> Option<Self> {
        let attention = self.attention;
        let heads = key_heads.times(self.query.shape[1] / key_heads.size);
        // Of a packed batch, masks and lengths count the sequences.
        let entries = attention.offsets.map_or(batch, |offsets| {
            Share::all(offsets.query.len().saturating_sub(1))
        });
        let documents = |all: Documents<'a>| {
            let (query, key) = (batch.rows(all.query)?, batch.rows(all.key)?);
            Some(Documents { query, key })
        };
        let blocks = |all: Blocks<'a>| {
            let table = plane(all.table, entries, heads)?;
            Some(Blocks { table, ..all })
        };
        let relative = |all: RelativeBias<'a>| {
            let values = heads.rows(all.values)?;
            Some(RelativeBias { values, ..all })
        };
        Some(Self {
            attention: Attention {
                prefix: of(attention.prefix, |all| entries.rows(all))?,
                lengths: of(attention.lengths, |all| entries.rows(all))?,
                keep: of(attention.keep, |all| plane(all, entries, heads))?,
                documents: of(attention.documents, documents)?,
                blocks: of(attention.blocks, blocks)?,
                bias: of(attention.bias, |all| plane(all, entries, heads))?,
                relative: of(attention.relative, relative)?,
                alibi: of(attention.alibi, |all| heads.rows(all))?,
                sink: of(attention.sink, |all| heads.rows(all))?,
                ..attention
            },
            query: plane(self.query, batch, heads)?,
            key: plane(self.key, batch, key_heads)?,
            value: plane(self.value, batch, key_heads)?,
        })
    }
}

/// A part of an axis of `size`.
#[derive(Clone, Copy)]
struct Share {
    from: usize,
    to: usize,
    size: usize,
}

impl Share {
    fn all(size: usize) -> Self {
        let (from, to) = (0, size);
        Self { from, to, size }
    }

    /// The whole axis, `step` at a time.
    fn each(size: usize, step: usize) -> impl Iterator<Item = Self> {
        (0..size).step_by(step).map(move |from| Self {
            from,
            to: (from + step).min(size),
            size,
        })
    }

    /// The same share of an axis with `count` places for each of this one's.
    fn times(self, count: usize) -> Self {
        Self {
            from: self.from * count,
            to: self.to * count,
            size: self.size * count,
        }
    }

    /// The share of `numbers`, whose first axis this is; `None` if they do not fit.
    fn rows<T>(self, numbers: &[T]) -> Option<&[T]> {
        let width = numbers.len().checked_div(self.size)?;
        let fits = width * self.size == numbers.len();
        fits.then(|| &numbers[self.from * width..self.to * width])
    }
}

/// A part of an option that may be missing; `None` if it cannot be cut.
fn of<A, B>(option: Option<A>, cut: impl FnOnce(A) -> Option<B>) -> Option<Option<B>> {
    option.map_or(Some(None), |all| cut(all).map(Some))
}

/// Some entries and heads of a view; an axis of 1 serves all. `None` if it is of another size.
fn plane<T>(view: View<'_, T>, batch: Share, heads: Share) -> Option<View<'_, T>> {
    let (mut shape, mut first) = (view.shape, 0);
    for (axis, share) in [batch, heads].into_iter().enumerate() {
        if shape[axis] == share.size {
            shape[axis] = share.to - share.from;
            first += share.from * view.strides[axis];
        } else if shape[axis] != 1 {
            return None;
        }
    }
    let data = view.data.get(first..)?;
    Some(View {
        data,
        shape,
        ..view
    })
}
