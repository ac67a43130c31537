//! Which keys a query may see, tile by tile.
//!
//! All masks of [`Attention`] are combined into one answer for each tile of 16 keys and one vector of queries: nothing may be
//! seen, everything may, or one bit for each pair says which. Tiles in which nothing may be seen are never computed.

use crate::{
    position::SequencePosition,
    problem::{Alignment, Attention, Sequence, Sizes, Window},
    view::View,
};

/// Keys in a tile, for which the masks are evaluated at once.
pub(crate) const TILE_KEYS: usize = 16;

/// What the queries of one vector may see of up to [`TILE_KEYS`] keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tile {
    /// Nothing.
    Skip,
    /// Everything.
    Full,
    /// For each key, one bit for each query.
    Partial([u16; TILE_KEYS]),
}

/// What a block-sparse mask says about a group of queries and the keys that begin at a given one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockRun {
    /// All of these queries see all keys before this one. Without a block mask this is `usize::MAX`.
    Kept(usize),
    /// None of these queries sees a key before this one.
    Hidden(usize),
    /// The queries lie in different blocks, and some of these see the first key while others do not.
    Mixed,
}

/// The masks of one head of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct Visible<'a> {
    /// Position of query 0 among the keys.
    pub(crate) shift: i64,
    /// Keys a query sees before its position.
    left: i64,
    /// Keys a query sees after its position.
    right: i64,
    prefix: usize,
    /// Number of real keys; those after them are padding.
    pub(crate) keys: usize,
    keep: Option<Plane<'a, u8>>,
    documents: Option<(&'a [u32], &'a [u32])>,
    blocks: Option<(usize, usize, Plane<'a, u8>)>,
}

/// One head of a view that broadcasts.
#[derive(Clone, Copy)]
pub(crate) struct Plane<'a, T> {
    data: &'a [T],
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T: Copy> Plane<'a, T> {
    pub(crate) fn new(view: &View<'a, T>, batch: usize, head: usize) -> Self {
        let [batches, heads, rows, columns] = view.shape;
        let start = view.at(
            if batches == 1 { 0 } else { batch },
            if heads == 1 { 0 } else { head },
            0,
        );
        Self {
            data: view.data.get(start..).unwrap_or_default(),
            row_stride: if rows == 1 { 0 } else { view.strides[2] },
            column_stride: if columns == 1 { 0 } else { 1 },
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self, row: usize, column: usize) -> T {
        self.data[row * self.row_stride + column * self.column_stride]
    }

    /// `count` columns of a row, if they lie side by side.
    #[inline(always)]
    fn columns(&self, row: usize, first: usize, count: usize) -> Option<&'a [T]> {
        (self.column_stride == 1).then(|| &self.data[row * self.row_stride + first..][..count])
    }

    /// The slice from which `columns` of `rows` rows can be read, and the step from row to row, if the
    /// columns lie side by side.
    #[inline(always)]
    pub(crate) fn square(
        &self,
        row: usize,
        rows: usize,
        columns: std::ops::Range<usize>,
    ) -> Option<(&'a [T], usize)> {
        let length = (rows - 1) * self.row_stride + columns.len();
        let start = row * self.row_stride + columns.start;
        (self.column_stride == 1).then(|| (&self.data[start..][..length], self.row_stride))
    }

    /// True if all rows are the same.
    pub(crate) fn is_one_row(&self) -> bool {
        self.row_stride == 0
    }
}

impl<'a> Visible<'a> {
    /// The masks of `head` of sequence `index`.
    pub(crate) fn new(
        attention: &Attention<'a>,
        sizes: &Sizes,
        sequence: &Sequence,
        index: usize,
        head: usize,
    ) -> Self {
        let shift = match attention.alignment {
            Alignment::UpperLeft => 0,
            Alignment::LowerRight => sequence.keys as i64 - sequence.queries as i64,
        };
        let side = |side: fn(Window) -> Option<usize>| {
            let keys = attention.window.and_then(side);
            keys.map_or(SequencePosition::MAX, SequencePosition::saturating)
                .get()
        };
        let right = side(|window| window.right);
        let count = |counts: Option<&[u32]>, otherwise| {
            counts.map_or(otherwise, |counts| {
                (counts[index] as usize).min(sequence.keys)
            })
        };
        Self {
            shift,
            left: side(|window| window.left),
            right: if attention.causal {
                right.min(0)
            } else {
                right
            },
            prefix: count(attention.prefix, 0),
            keys: count(attention.lengths, sequence.keys),
            keep: attention
                .keep
                .as_ref()
                .map(|keep| Plane::new(keep, index, head)),
            documents: attention.documents.map(|documents| {
                let query = sequence.batch * sizes.queries + sequence.first_query;
                let key = sequence.batch * sizes.keys + sequence.first_key;
                (
                    &documents.query[query..][..sequence.queries],
                    &documents.key[key..][..sequence.keys],
                )
            }),
            blocks: attention.blocks.as_ref().map(|blocks| {
                let table = Plane::new(&blocks.table, index, head);
                (blocks.query_size, blocks.key_size, table)
            }),
        }
    }

    /// A range of keys that all of the queries `first..first + count` see. Empty where that cannot be told from positions
    /// alone: under a `keep` mask, documents or blocks.
    pub(crate) fn seen_by_all(&self, first: usize, count: usize) -> std::ops::Range<usize> {
        if self.blocks.is_some() {
            return 0..0;
        }
        self.near_all(first, count)
    }

    /// As [`Self::seen_by_all`], but without regard to a block mask, for which [`Self::blocks_from`] answers.
    pub(crate) fn near_all(&self, first: usize, count: usize) -> std::ops::Range<usize> {
        if self.keep.is_some() || self.documents.is_some() {
            return 0..0;
        }
        let low = self.interval(first + count - 1).0.max(0) as usize;
        let high = self.interval(first).1.max(0) as usize;
        if high <= low.max(self.prefix) {
            return 0..self.prefix.min(self.keys);
        }
        (if low <= self.prefix { 0 } else { low })..high
    }

    /// What the block mask says about the keys from `key` on and the queries `first..first + count`.
    #[inline]
    pub(crate) fn blocks_from(&self, first: usize, count: usize, key: usize) -> BlockRun {
        let Some((rows, columns, table)) = self.blocks else {
            return BlockRun::Kept(usize::MAX);
        };
        let rows = first / rows..=(first + count - 1) / rows;
        let of_column = |column: usize| {
            let mut kept = rows.clone().map(|row| table.get(row, column) != 0);
            let one = kept.next();
            kept.all(|other| Some(other) == one)
                .then_some(one)
                .flatten()
        };
        let mut column = key / columns;
        let kept = of_column(column);
        while kept.is_some() && column * columns < self.keys && of_column(column) == kept {
            column += 1;
        }
        match kept {
            Some(true) => BlockRun::Kept(column * columns),
            Some(false) => BlockRun::Hidden(column * columns),
            None => BlockRun::Mixed,
        }
    }

    /// The keys that `query` sees by window and causality: `low..high`.
    #[inline(always)]
    fn interval(&self, query: usize) -> (i64, i64) {
        let position = query as i64 + self.shift;
        (
            (position - self.left).max(0),
            (position + self.right + 1).min(self.keys as i64),
        )
    }

    /// A range of keys outside which queries `first..first + count` see nothing.
    pub(crate) fn reach(&self, first: usize, count: usize) -> std::ops::Range<usize> {
        let low = self.interval(first).0;
        let high = self.interval(first + count - 1).1.max(0) as usize;
        if self.prefix > 0 {
            return 0..high.max(self.prefix.min(self.keys));
        }
        (low.min(high as i64) as usize)..high
    }

    /// True if `query` may see `key`.
    #[inline(always)]
    pub(crate) fn sees(&self, query: usize, key: usize) -> bool {
        let (low, high) = self.interval(query);
        let near = (low..high).contains(&(key as i64)) || key < self.prefix;
        near && key < self.keys
            && self.keep.is_none_or(|keep| keep.get(query, key) != 0)
            && self
                .documents
                .is_none_or(|(queries, keys)| queries[query] == keys[key])
            && self
                .blocks
                .is_none_or(|(rows, columns, table)| table.get(query / rows, key / columns) != 0)
    }

    /// What queries `query..query + queries` (at most 16) see of keys `key..key + keys` (at most 16).
    #[inline(always)]
    pub(crate) fn tile(&self, query: usize, queries: usize, key: usize, keys: usize) -> Tile {
        debug_assert!(queries <= 16 && keys <= TILE_KEYS && queries > 0 && keys > 0);
        // Both ends of the interval grow with the query.
        let (low_first, high_first) = self.interval(query);
        let (low_last, high_last) = self.interval(query + queries - 1);
        let (start, end) = (key as i64, (key + keys) as i64);
        let in_prefix = key + keys <= self.prefix && key + keys <= self.keys;
        let near = in_prefix || (low_last <= start && end <= high_first);
        let mut full = near;
        let reached = (low_first < end && start < high_last) || key < self.prefix.min(self.keys);
        if !reached {
            return Tile::Skip;
        }
        if let Some((query_documents, key_documents)) = self.documents {
            let (lowest, highest) = range(&query_documents[query..query + queries]);
            let (key_lowest, key_highest) = range(&key_documents[key..key + keys]);
            if highest < key_lowest || key_highest < lowest {
                return Tile::Skip;
            }
            full &= lowest == highest && key_lowest == key_highest && lowest == key_lowest;
        }
        if let Some((rows, columns, table)) = self.blocks {
            let (mut any, mut all) = (false, true);
            for row in query / rows..=(query + queries - 1) / rows {
                for column in key / columns..=(key + keys - 1) / columns {
                    let kept = table.get(row, column) != 0;
                    any |= kept;
                    all &= kept;
                }
            }
            if !any {
                return Tile::Skip;
            }
            full &= all;
        }
        let mut kept = [!0u16; TILE_KEYS];
        if let Some(keep) = &self.keep {
            kept = kept_bits(keep, query, queries, key, keys);
            let all = ((1u32 << queries) - 1) as u16;
            if kept[..keys].iter().all(|&bits| bits == 0) {
                return Tile::Skip;
            }
            full &= kept[..keys].iter().all(|&bits| bits == all);
        }
        if full {
            return Tile::Full;
        }
        let mut bits = match near {
            true => whole_bits(queries, keys),
            false => self.interval_bits(query, queries, key, keys),
        };
        for (bits, kept) in bits.iter_mut().zip(kept) {
            *bits &= kept;
        }
        if let Some((query_documents, key_documents)) = self.documents {
            for (bits, key_document) in bits.iter_mut().zip(&key_documents[key..key + keys]) {
                for (i, query_document) in
                    query_documents[query..query + queries].iter().enumerate()
                {
                    *bits &= !(u16::from(query_document != key_document) << i);
                }
            }
        }
        if let Some((rows, columns, table)) = self.blocks {
            for (j, bits) in bits[..keys].iter_mut().enumerate() {
                for i in 0..queries {
                    let hidden = table.get((query + i) / rows, (key + j) / columns) == 0;
                    *bits &= !(u16::from(hidden) << i);
                }
            }
        }
        if bits == [0; TILE_KEYS] {
            Tile::Skip
        } else {
            Tile::Partial(bits)
        }
    }

    /// The bits of window, causality, prefix and lengths.
    #[inline(always)]
    fn interval_bits(
        &self,
        query: usize,
        queries: usize,
        key: usize,
        keys: usize,
    ) -> [u16; TILE_KEYS] {
        // Query i sees key j when j - right - shift <= i <= j + left - shift: a band that moves up by one query with each key.
        // It lies in the middle of 64 bits, so that neither end is lost.
        const MIDDLE: i64 = 32;
        let below = |end: i64| (1u64 << (end.clamp(-MIDDLE, MIDDLE - 1) + MIDDLE)) - 1;
        let (key_position, position) = (key as i64 - self.shift, query as i64);
        let first = below(key_position - self.right - position);
        let band = below(key_position + self.left + 1 - position) & !first;
        let all = ((1u32 << queries) - 1) as u16;
        let in_prefix = self.prefix.saturating_sub(key);
        let real = self.keys.saturating_sub(key).min(keys);
        std::array::from_fn(|j| match j {
            _ if j >= real => 0,
            _ if j < in_prefix => all,
            _ => ((band << j) >> MIDDLE) as u16 & all,
        })
    }
}

/// All of `queries` for each of `keys`.
#[inline(always)]
fn whole_bits(queries: usize, keys: usize) -> [u16; TILE_KEYS] {
    let all = ((1u32 << queries) - 1) as u16;
    std::array::from_fn(|j| if j < keys { all } else { 0 })
}

fn range(documents: &[u32]) -> (u32, u32) {
    documents
        .iter()
        .fold((u32::MAX, 0), |(low, high), &x| (low.min(x), high.max(x)))
}

/// For each key, the bits of the queries that keep it.
#[inline(always)]
fn kept_bits(
    keep: &Plane<u8>,
    query: usize,
    queries: usize,
    key: usize,
    keys: usize,
) -> [u16; TILE_KEYS] {
    let all = ((1u32 << queries) - 1) as u16;
    if keep.is_one_row() {
        return std::array::from_fn(|j| {
            if j < keys && keep.get(query, key + j) != 0 {
                all
            } else {
                0
            }
        });
    }
    // A square of 16 x 16 bytes; rows and columns beyond the edges stay 0.
    let mut square = [[0u8; 16]; 16];
    for (i, row) in square[..queries].iter_mut().enumerate() {
        match keep.columns(query + i, key, keys) {
            Some(bytes) => match <&[u8; 16]>::try_from(bytes) {
                Ok(bytes) => *row = *bytes,
                Err(_) => row[..keys].copy_from_slice(bytes),
            },
            None => row[..keys].fill(keep.get(query + i, key)),
        }
    }
    crate::simd::column_bits(&square)
}

#[cfg(test)]
#[path = "mask_tests.rs"]
mod tests;
