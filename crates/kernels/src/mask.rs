//! Which keys a query may see, tile by tile.
//!
//! All masks of [`Attention`] are joined into one question: for 16 keys and the queries of one vector,
//! nothing, everything, or which of them. Tiles in which nothing may be seen are never computed.

use crate::{
    problem::{Alignment, Attention, Sequence, Sizes},
    view::View,
};

/// Keys in a tile: one question to the mask.
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
    /// Keys that are real.
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

/// Beyond every key, and far from overflow.
const FAR: i64 = 1 << 40;

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
        let side = |side: Option<usize>| side.map_or(FAR, |keys| (keys as i64).min(FAR));
        let window = attention.window;
        let left = window.map_or(FAR, |window| side(window.left));
        let right = window.map_or(FAR, |window| side(window.right));
        let count = |counts: Option<&[u32]>, otherwise| {
            counts.map_or(otherwise, |counts| {
                (counts[index] as usize).min(sequence.keys)
            })
        };
        Self {
            shift,
            left,
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

    /// Keys that all of the queries `first..first + count` see, as far as that can be told at once.
    pub(crate) fn seen_by_all(&self, first: usize, count: usize) -> std::ops::Range<usize> {
        if self.keep.is_some() || self.documents.is_some() || self.blocks.is_some() {
            return 0..0;
        }
        let low = self.interval(first + count - 1).0.max(0) as usize;
        let high = self.interval(first).1.max(0) as usize;
        if high <= low.max(self.prefix) {
            return 0..self.prefix.min(self.keys);
        }
        (if low <= self.prefix { 0 } else { low })..high
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
    pub(crate) fn tile(&self, query: usize, queries: usize, key: usize, keys: usize) -> Tile {
        debug_assert!(queries <= 16 && keys <= TILE_KEYS && queries > 0 && keys > 0);
        // Both ends of the interval rise with the query.
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
    fn interval_bits(
        &self,
        query: usize,
        queries: usize,
        key: usize,
        keys: usize,
    ) -> [u16; TILE_KEYS] {
        let mut bits = [0u16; TILE_KEYS];
        for (j, bits) in bits[..keys].iter_mut().enumerate() {
            let key = key + j;
            if key >= self.keys {
                break;
            }
            *bits = if key < self.prefix {
                ((1u32 << queries) - 1) as u16
            } else {
                // Query i sees key j when j - right - shift <= i <= j + left - shift.
                let first = key as i64 - self.right - self.shift - query as i64;
                let end = key as i64 + self.left - self.shift - query as i64 + 1;
                let first = first.clamp(0, queries as i64) as u32;
                let end = end.clamp(i64::from(first), queries as i64) as u32;
                (((1u32 << end) - 1) & !((1u32 << first) - 1)) as u16
            };
        }
        bits
    }
}

/// All of `queries` for each of `keys`.
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
    // A square of bytes, rows and columns beyond the edges 0.
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
mod tests {
    use super::*;
    use crate::problem::{Blocks, Documents, Window};

    /// Every tile of every mask says what `sees` says, one place at a time.
    #[test]
    #[cfg_attr(miri, ignore = "large")]
    fn tiles_agree_with_single_places() {
        let keep: Vec<u8> = (0..70 * 90).map(|x| u8::from(x % 7 != 3)).collect();
        let table: Vec<u8> = (0..7 * 6).map(|x| u8::from(x % 3 == 0)).collect();
        let (query_documents, key_documents): (Vec<u32>, Vec<u32>) = (
            (0..70).map(|i| i / 30).collect(),
            (0..90).map(|j| j / 33).collect(),
        );
        let window = |left, right| Some(Window { left, right });
        let none = Attention::default();
        let masks = [
            none,
            Attention {
                causal: true,
                ..none
            },
            Attention {
                causal: true,
                alignment: Alignment::UpperLeft,
                ..none
            },
            Attention {
                window: window(Some(9), Some(4)),
                ..none
            },
            Attention {
                window: window(None, Some(20)),
                ..none
            },
            Attention {
                causal: true,
                window: window(Some(5), None),
                prefix: Some(&[37]),
                ..none
            },
            Attention {
                lengths: Some(&[61]),
                causal: true,
                ..none
            },
            Attention {
                keep: Some(View::heads_first(&keep, [1, 1, 70, 90])),
                ..none
            },
            Attention {
                keep: Some(View::heads_first(&keep, [1, 1, 1, 90])),
                causal: true,
                ..none
            },
            Attention {
                keep: Some(View::heads_first(&keep, [1, 1, 70, 1])),
                ..none
            },
            Attention {
                documents: Some(Documents {
                    query: &query_documents,
                    key: &key_documents,
                }),
                ..none
            },
            Attention {
                blocks: Some(Blocks {
                    query_size: 10,
                    key_size: 15,
                    table: View::heads_first(&table, [1, 1, 7, 6]),
                }),
                ..none
            },
        ];
        let mut checked = 0;
        for attention in masks {
            let sizes = attention
                .check([1, 1, 70, 8], [1, 1, 90, 8], [1, 1, 90, 8])
                .unwrap();
            let visible = Visible::new(&attention, &sizes, &attention.sequence(&sizes, 0), 0, 0);
            for query in (0..70).step_by(16) {
                let queries = 16.min(70 - query);
                for key in (0..90).step_by(16) {
                    let keys = 16.min(90 - key);
                    let tile = visible.tile(query, queries, key, keys);
                    let seen = visible.seen_by_all(query, queries);
                    for i in 0..queries {
                        for j in 0..keys {
                            let expected = visible.sees(query + i, key + j);
                            let found = match tile {
                                Tile::Skip => false,
                                Tile::Full => true,
                                Tile::Partial(bits) => bits[j] >> i & 1 == 1,
                            };
                            assert_eq!(
                                found,
                                expected,
                                "{attention:?} at {}, {}",
                                query + i,
                                key + j
                            );
                            assert!(expected || !seen.contains(&(key + j)));
                            if expected {
                                assert!(visible.reach(query, queries).contains(&(key + j)));
                            }
                            checked += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(checked, 12 * 70 * 90);
    }
}
