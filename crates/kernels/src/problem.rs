//! What attention computes: sizes, scale, mask, and what is added to the scores.
//!
//! For query `i` and key `j` of one head, with `p_i` the query's position among the keys:
//! ```text
//! s_ij = cap(scale · q_iᵀ k_j) + bias_ij + relative_(j - p_i) - slope · |p_i - j|     cap(s) = c tanh(s / c)
//! w_ij = e^{s_ij} / (e^{sink} + Σ_l e^{s_il})                    over the keys l that i may see
//! o_i  = Σ_j dropout(w_ij) v_j                                   lse_i = ln(e^{sink} + Σ_l e^{s_il})
//! ```
//! Query head `h` reads key/value head `h / (heads / key_heads)` (grouped-query attention). A query that
//! may see nothing gets `o = 0`, `lse = -∞` (the sink's logit if there is one) and gradients of 0.
//!
//! ```
//! use regard_kernels::{Alignment, Attention, Window};
//!
//! let mistral = Attention {
//!     causal: true,
//!     window: Some(Window { left: Some(4095), right: None }),
//!     ..Attention::default()
//! };
//! assert_eq!(mistral.alignment, Alignment::LowerRight);
//! ```

use crate::{
    error::{KernelError, check_length, check_size, check_value},
    view::View,
};

/// Which positions the queries have among the keys when there are more keys than queries, or fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Alignment {
    /// The last query stands at the last key: `p_i = i + keys - queries`. A decoder with a cache needs this; it is also
    /// FlashAttention's convention since version 2.1.
    #[default]
    LowerRight,
    /// The first query stands at the first key: `p_i = i`.
    UpperLeft,
}

/// How far a query sees to both sides of its own position; `None` sets no bound, as does a distance of
/// [`SequencePosition::MAX`](crate::SequencePosition::MAX) or more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Keys before its own position.
    pub left: Option<usize>,
    /// Keys after its own position.
    pub right: Option<usize>,
}

/// Several documents in one sequence: a query sees the keys of its own document only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Documents<'a> {
    /// `[batch, queries]`: the document of each query.
    pub query: &'a [u32],
    /// `[batch, keys]`: the document of each key.
    pub key: &'a [u32],
}

/// A block-sparse mask: which blocks of keys a block of queries may see.
#[derive(Debug, Clone, Copy)]
pub struct Blocks<'a> {
    /// Queries in a block, at least 1.
    pub query_size: usize,
    /// Keys in a block, at least 1.
    pub key_size: usize,
    /// `[batch or 1, heads or 1, blocks of queries, blocks of keys]`: not 0 where they may be seen.
    pub table: View<'a, u8>,
}

/// A number for each distance of a key from a query, added to the scores (Raffel et al. 2020).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RelativeBias<'a> {
    /// `[heads, distances]`, in the order of `j - p_i`. Distances beyond either end count as the last one there.
    pub values: &'a [f32],
    /// The place of distance 0 among the distances.
    pub zero: usize,
}

impl RelativeBias<'_> {
    /// That of head `head` of `heads`, alone.
    pub fn of_head(self, heads: usize, head: usize) -> Self {
        let distances = self.values.len().checked_div(heads).unwrap_or(0);
        let values = self.values.get(head * distances..).unwrap_or_default();
        Self {
            values: values.get(..distances).unwrap_or_default(),
            ..self
        }
    }

    /// The number at `distance`, of a single head that was checked.
    #[inline(always)]
    pub(crate) fn at(&self, distance: i64) -> f32 {
        let last = self.values.len() as i64 - 1;
        self.values[(self.zero as i64 + distance).clamp(0, last) as usize]
    }
}

/// Weights set to 0 at random, the rest scaled by `1 / (1 - probability)`.
///
/// Whether the weight at (batch, head, query, key) is dropped follows from the seed and that place
/// alone, so the backward pass and any other tiling replay it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// Probability that a weight is dropped, in `[0, 1)`.
    pub probability: f32,
    /// The seed.
    pub seed: u64,
    /// The place of the first batch entry: above 0 where the batch is a part of a larger one, whose weights it drops.
    pub first_batch: usize,
}

/// Where the sequences of a packed batch begin: sequence `b` has the positions
/// `offsets[b]..offsets[b + 1]` of views whose batch is 1.
///
/// In masks and biases, `b` is then the index of the batch, and positions count from the sequence's start; `lse` and
/// `documents` stay packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offsets<'a> {
    /// `[sequences + 1]`, from 0 to the number of queries, non-decreasing.
    pub query: &'a [u32],
    /// `[sequences + 1]`, from 0 to the number of keys, non-decreasing.
    pub key: &'a [u32],
}

/// The options of dot-product attention. All may be combined. The default is `softmax(q kᵀ / √dim) v`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Attention<'a> {
    /// Factor of the scores; `None` is `1 / √dim`.
    pub scale: Option<f32>,
    /// `c > 0`: scores are bent into `(-c, c)` by `c tanh(s / c)`.
    pub softcap: Option<f32>,
    /// Where queries stand among the keys, for `causal`, `window`, `relative` and `alibi`.
    pub alignment: Alignment,
    /// A query sees no key after its own position.
    pub causal: bool,
    /// A query sees keys near its own position.
    pub window: Option<Window>,
    /// `[batch]`: keys before `prefix` are seen by every query, whatever `causal` and `window` say.
    pub prefix: Option<&'a [u32]>,
    /// `[batch]`: real keys of each batch entry; later ones are padding. Padding still counts among the keys, so it shifts
    /// no position, neither in [`forward`](crate::dot::forward) nor in [`decode`](crate::dot::decode). How far a cache is
    /// filled does shift positions, and is given with the [`Cache`](crate::dot::Cache).
    pub lengths: Option<&'a [u32]>,
    /// `[batch or 1, heads or 1, queries or 1, keys or 1]`: not 0 where a key may be seen.
    pub keep: Option<View<'a, u8>>,
    /// Documents.
    pub documents: Option<Documents<'a>>,
    /// Blocks that may be seen.
    pub blocks: Option<Blocks<'a>>,
    /// `[batch or 1, heads or 1, queries or 1, keys or 1]`, added to the scores; `-∞` hides a key.
    pub bias: Option<View<'a>>,
    /// Added to the scores by distance; the backward pass gives it no gradient.
    pub relative: Option<RelativeBias<'a>>,
    /// `[heads]`: `slope · |p_i - j|` is subtracted from the scores (Press 2022).
    pub alibi: Option<&'a [f32]>,
    /// `[heads]`: a logit that takes part in the softmax and has no value.
    pub sink: Option<&'a [f32]>,
    /// Dropout of the weights.
    pub dropout: Option<Dropout>,
    /// A packed batch of sequences of different lengths.
    pub offsets: Option<Offsets<'a>>,
}

impl<'a> Attention<'a> {
    /// What head `head` of `heads` has of these options, for views of this head alone.
    pub fn of_head(self, heads: usize, head: usize) -> Self {
        let of = |all: &'a [f32]| all.get(head..=head).unwrap_or_default();
        Self {
            keep: self.keep.map(|keep| keep.of_head(head)),
            blocks: self.blocks.map(|blocks| Blocks {
                table: blocks.table.of_head(head),
                ..blocks
            }),
            bias: self.bias.map(|bias| bias.of_head(head)),
            relative: self.relative.map(|all| all.of_head(heads, head)),
            alibi: self.alibi.map(of),
            sink: self.sink.map(of),
            ..self
        }
    }
}

/// The sizes that follow from checked arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Batch entries, or packed sequences.
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) key_heads: usize,
    /// Query rows of the views (of all sequences, if packed).
    pub(crate) queries: usize,
    /// Key rows of the views.
    pub(crate) keys: usize,
    pub(crate) dim: usize,
    pub(crate) value_dim: usize,
}

/// One batch entry or packed sequence: where its rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sequence {
    /// Batch index in the views.
    pub(crate) batch: usize,
    /// Its first query row in the views.
    pub(crate) first_query: usize,
    pub(crate) queries: usize,
    /// Its first key row in the views.
    pub(crate) first_key: usize,
    pub(crate) keys: usize,
}

/// The largest width of a query, key or value.
pub const MAX_DIM: usize = 256;

impl Attention<'_> {
    /// Checks all options against the shapes of query, key and value.
    pub(crate) fn check(
        &self,
        query: [usize; 4],
        key: [usize; 4],
        value: [usize; 4],
    ) -> Result<Sizes, KernelError> {
        let [batch, heads, queries, dim] = query;
        let [_, key_heads, keys, _] = key;
        let as_query = "as the query has";
        let as_key = "as the key has";
        check_size("key", "batch", key[0], batch, as_query)?;
        check_size("key", "dim", key[3], dim, as_query)?;
        check_size("value", "batch", value[0], batch, as_key)?;
        check_size("value", "heads", value[1], key_heads, as_key)?;
        check_size("value", "length", value[2], keys, as_key)?;
        for (argument, found) in [("query", dim), ("value", value[3])] {
            let nearest = found.clamp(1, MAX_DIM);
            check_size(argument, "dim", found, nearest, "a dim is 1 to 256")?;
        }
        if heads > 0 && (key_heads == 0 || !heads.is_multiple_of(key_heads)) {
            let as_query = "as the query has, or a number that divides it";
            check_size("key", "heads", key_heads, heads, as_query)?;
        }
        for (argument, length) in [("query", queries), ("key", keys)] {
            let nearest = length.min((1 << 31) - 1);
            check_size(argument, "length", length, nearest, "a length is below 2³¹")?;
        }
        let sequences = match self.offsets {
            None => batch,
            Some(offsets) => {
                check_size("query", "batch", batch, 1, "a packed batch counts as one")?;
                check_offsets("offsets.query", offsets.query, queries)?;
                check_offsets("offsets.key", offsets.key, keys)?;
                check_size(
                    "offsets.key",
                    "length",
                    offsets.key.len(),
                    offsets.query.len(),
                    "as offsets.query has",
                )?;
                offsets.query.len() - 1
            }
        };
        let sizes = Sizes {
            batch: sequences,
            heads,
            key_heads,
            queries,
            keys,
            dim,
            value_dim: value[3],
        };
        self.check_options(&sizes)?;
        Ok(sizes)
    }

    fn check_options(&self, sizes: &Sizes) -> Result<(), KernelError> {
        let finite = |argument, x: Option<f32>| match x {
            Some(x) => check_value(argument, "a finite number", x.into(), x.is_finite()),
            None => Ok(()),
        };
        finite("scale", self.scale)?;
        finite("softcap", self.softcap)?;
        if let Some(cap) = self.softcap {
            // The kernels multiply by the inverse.
            let expected = "a number above 0, from 1.2e-38 to 8.5e37";
            let fits = cap > 0.0 && cap.is_normal() && cap.recip().is_normal();
            check_value("softcap", expected, cap.into(), fits)?;
        }
        let (batch, heads) = (sizes.batch, sizes.heads);
        for (argument, counts) in [("prefix", self.prefix), ("lengths", self.lengths)] {
            if let Some(counts) = counts {
                check_length(argument, "[batch]", &[batch], counts.len())?;
            }
        }
        for (argument, per_head) in [("alibi", self.alibi), ("sink", self.sink)] {
            let Some(per_head) = per_head else { continue };
            check_length(argument, "[heads]", &[heads], per_head.len())?;
            check_finite(argument, per_head)?;
        }
        if let Some(relative) = self.relative {
            let (found, zero) = (relative.values.len(), relative.zero);
            let distances = found.checked_div(heads).unwrap_or(0);
            check_length("relative", "[heads, distances]", &[heads, distances], found)?;
            if heads > 0 {
                let inside = "below the number of distances";
                check_value("relative.zero", inside, zero as f64, zero < distances)?;
            }
            check_finite("relative", relative.values)?;
        }
        if let Some(documents) = self.documents {
            let batch = if self.offsets.is_some() { 1 } else { batch };
            let rows = [batch, sizes.queries];
            check_length(
                "documents.query",
                "[batch, queries]",
                &rows,
                documents.query.len(),
            )?;
            let rows = [batch, sizes.keys];
            check_length("documents.key", "[batch, keys]", &rows, documents.key.len())?;
        }
        let (queries, keys) = self.longest(sizes);
        if let Some(keep) = &self.keep {
            check_plane("keep", keep, [batch, heads, queries, keys])?;
        }
        if let Some(bias) = &self.bias {
            check_plane("bias", bias, [batch, heads, queries, keys])?;
        }
        if let Some(blocks) = &self.blocks {
            for (argument, size) in [
                ("blocks.query_size", blocks.query_size),
                ("blocks.key_size", blocks.key_size),
            ] {
                check_value(argument, "at least 1", size as f64, size > 0)?;
            }
            let query_blocks = queries.div_ceil(blocks.query_size);
            let key_blocks = keys.div_ceil(blocks.key_size);
            check_plane(
                "blocks.table",
                &blocks.table,
                [batch, heads, query_blocks, key_blocks],
            )?;
        }
        if let Some(dropout) = self.dropout {
            let p = dropout.probability;
            check_value(
                "dropout.probability",
                "in [0, 1)",
                p.into(),
                (0.0..1.0).contains(&p),
            )?;
        }
        Ok(())
    }

    /// Whether scores have a bias that is read from memory.
    pub(crate) fn has_bias(&self) -> bool {
        self.bias.is_some() || self.relative.is_some()
    }

    /// Queries and keys of the longest sequence.
    fn longest(&self, sizes: &Sizes) -> (usize, usize) {
        match self.offsets {
            None => (sizes.queries, sizes.keys),
            Some(_) => (0..sizes.batch).fold((0, 0), |(queries, keys), index| {
                let sequence = self.sequence(sizes, index);
                (queries.max(sequence.queries), keys.max(sequence.keys))
            }),
        }
    }

    /// Batch entry or packed sequence `index` of checked arguments.
    pub(crate) fn sequence(&self, sizes: &Sizes, index: usize) -> Sequence {
        match self.offsets {
            None => Sequence {
                batch: index,
                first_query: 0,
                queries: sizes.queries,
                first_key: 0,
                keys: sizes.keys,
            },
            Some(offsets) => {
                let span = |offsets: &[u32]| {
                    let (first, end) = (offsets[index] as usize, offsets[index + 1] as usize);
                    (first, end - first)
                };
                let (first_query, queries) = span(offsets.query);
                let (first_key, keys) = span(offsets.key);
                Sequence {
                    batch: 0,
                    first_query,
                    queries,
                    first_key,
                    keys,
                }
            }
        }
    }

    /// The factor of the scores.
    pub(crate) fn scale(&self, dim: usize) -> f32 {
        self.scale.unwrap_or((1.0 / (dim as f64).sqrt()) as f32)
    }
}

fn check_finite(argument: &'static str, numbers: &[f32]) -> Result<(), KernelError> {
    match numbers.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(position) => Err(KernelError::Entry {
            argument,
            position,
            expected: "a finite number".into(),
            found: numbers[position].to_string(),
        }),
    }
}

fn check_offsets(argument: &'static str, offsets: &[u32], total: usize) -> Result<(), KernelError> {
    let entry = |position, expected: String, found: String| {
        Err(KernelError::Entry {
            argument,
            position,
            expected,
            found,
        })
    };
    let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
        return entry(0, "the offset 0".into(), "nothing".into());
    };
    if first != 0 {
        return entry(0, "the offset 0".into(), first.to_string());
    }
    if let Some(fall) = offsets.windows(2).position(|pair| pair[1] < pair[0]) {
        let expected = format!("an offset of at least {}", offsets[fall]);
        return entry(fall + 1, expected, offsets[fall + 1].to_string());
    }
    if last as usize != total {
        let expected = format!("the number of rows, {total}");
        return entry(offsets.len() - 1, expected, last.to_string());
    }
    Ok(())
}

/// Checks a view that broadcasts: each size as in `full`, or 1.
fn check_plane<T>(
    argument: &'static str,
    view: &View<T>,
    full: [usize; 4],
) -> Result<(), KernelError> {
    let axes = ["batch", "heads", "rows", "columns"];
    for axis in 0..4 {
        if view.shape[axis] != 1 {
            check_size(
                argument,
                axes[axis],
                view.shape[axis],
                full[axis],
                "as the scores have, or 1 to serve for all",
            )?;
        }
    }
    view.check(argument)
}

impl Dropout {
    /// Whether the weight at this place is kept.
    ///
    /// ```
    /// use regard_kernels::Dropout;
    /// let dropout = Dropout { probability: 0.25, seed: 7, first_batch: 0 };
    /// let kept = (0..10_000).filter(|&key| dropout.keeps(0, 1, 2, key)).count();
    /// assert!((7300..7700).contains(&kept));
    /// ```
    pub fn keeps(&self, batch: usize, head: usize, query: usize, key: usize) -> bool {
        self.hash(batch, head, query, key) >= self.threshold()
    }

    /// Hashes below this are dropped.
    pub(crate) fn threshold(&self) -> u32 {
        (f64::from(self.probability) * 4_294_967_296.0) as u32
    }

    /// The part of the hash that all keys of one query share.
    pub(crate) fn query_hash(&self, batch: usize, head: usize, query: usize) -> u32 {
        // SplitMix64's finalizer over the place and the seed.
        let place = ((batch.wrapping_add(self.first_batch) as u64) << 48)
            ^ ((head as u64) << 32)
            ^ query as u64;
        let mut x = self.seed ^ place.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) as u32
    }

    fn hash(&self, batch: usize, head: usize, query: usize, key: usize) -> u32 {
        mix(self.query_hash(batch, head, query) ^ key_hash(key))
    }
}

/// The part of the hash that depends on the key.
#[inline(always)]
pub(crate) fn key_hash(key: usize) -> u32 {
    (key as u32).wrapping_mul(0x9E37_79B1)
}

/// A 32-bit finalizer (Wellons' "lowbias32").
#[inline(always)]
pub(crate) fn mix(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7FEB_352D);
    x = (x ^ (x >> 15)).wrapping_mul(0x846C_A68B);
    x ^ (x >> 16)
}
