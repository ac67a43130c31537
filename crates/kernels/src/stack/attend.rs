//! The attention of a stack: to a row's own past, and to its source.

use std::sync::Mutex;

use super::changed::ChangedHead;
use super::helper::Helper;
use super::observer::{Observer, Observing, Positions, Seen, told, wanted};
use super::relative::Distances;
use super::rotation::Angles;
use super::state::{Past, Sources, State};
use super::{SelfAttention, Sizes, Stack};
use crate::dot::{self, Cache};
use crate::element::Element;
use crate::error::{KernelError, check_size};
use crate::simd::Level;
use crate::threads::{RowsMut, for_each_chunk, rows};
use crate::{Attention, Offsets, View, ViewMut, Window};

/// Keys are gathered from a multiple of this many on, a multiple of every tile, so that a window that begins inside the past has
/// its tiles, and bits, where the whole sequence has them.
pub(super) const ALIGNED: usize = 1024;

/// Which keys each row has: pages and how many positions of them there are.
struct Table {
    /// `[rows, pages of a row]`
    pages: Vec<u32>,
    /// `[rows]`
    filled: Vec<u32>,
}

/// What is the same for all blocks of a pass.
pub(super) struct Pass<'a> {
    pub(super) sizes: Sizes,
    pub(super) changed: &'a [ChangedHead],
    pub(super) counts: Vec<usize>,
    /// The global ones of its positions, ascending.
    pub(super) global: Vec<usize>,
    /// `[rows + 1]`: where each row's positions begin.
    pub(super) offsets: Vec<u32>,
    /// The states of each row, those of this pass included; empty without a cache.
    ancestors: Vec<Vec<u32>>,
    /// The source of each row.
    sources: Vec<usize>,
    /// Whether no row had positions before.
    fresh: bool,
    /// Whether this pass is a step: each row has one more position.
    step: bool,
    /// What distances add to the scores of self-attention.
    distances: &'a Distances,
    /// Of each rotation of the stack.
    angles: Vec<Angles<'a>>,
    /// For a step, the pages of each window in the stack.
    tables: Vec<(Option<usize>, Table)>,
}

impl<'a> Pass<'a> {
    /// Enters the new positions in `state`, in whose past every block then pushes its keys and values.
    pub(super) fn new(
        stack: &'a Stack,
        mut state: Option<&mut State>,
        counts: &[usize],
        global: &[usize],
    ) -> Result<Self, KernelError> {
        let total: usize = counts.iter().sum();
        let states = state.as_deref().map_or(0, |state| state.states);
        if total > (u32::MAX - states) as usize {
            let (argument, shape) = ("x", "[positions, model]");
            return Err(KernelError::TooLarge { argument, shape });
        }
        let mut offsets = vec![0u32];
        for &count in counts {
            offsets.push(offsets[offsets.len() - 1] + count as u32);
        }
        let mut positions = Vec::with_capacity(total);
        let (mut ancestors, mut sources, mut fresh) = (vec![], vec![], true);
        if let Some(state) = state.as_deref_mut() {
            let reason = "a count for each row of the state";
            check_size("counts", "rows", counts.len(), state.rows.len(), reason)?;
            for (row, &count) in state.rows.iter_mut().zip(counts) {
                let before = row.ancestors.len();
                fresh &= before == 0;
                positions.extend(before..before + count);
                let end = state.states + count as u32;
                row.ancestors.extend(state.states..end);
                state.states = end;
            }
            ancestors = state.rows.iter().map(|row| row.ancestors.clone()).collect();
            sources = state.rows.iter().map(|row| row.source).collect();
        } else {
            positions.extend(counts.iter().flat_map(|&count| 0..count));
        }
        let lengths = counts.iter().enumerate().flat_map(|(row, &count)| {
            let length = state.as_deref().map_or(count, |state| state.expected(row));
            std::iter::repeat_n(length, count)
        });
        let lengths: Vec<usize> = lengths.collect();
        let places = || positions.iter().copied().zip(lengths.iter().copied());
        let angles = stack.rotations.iter();
        let mut pass = Self {
            sizes: stack.sizes,
            changed: &stack.changed,
            counts: counts.to_vec(),
            global: global.to_vec(),
            offsets,
            ancestors,
            sources,
            fresh,
            step: state.is_some() && counts.iter().all(|&count| count == 1),
            distances: &stack.distances,
            angles: angles.map(|rotation| rotation.angles(places())).collect(),
            tables: vec![],
        };
        if pass.step {
            for block in &stack.blocks {
                let window = block.attention.window;
                if pass.tables.iter().all(|(known, _)| *known != window) {
                    pass.tables.push((window, pass.table(window)));
                }
            }
        }
        Ok(pass)
    }

    /// How many keys before its own a position sees; `None` for all.
    fn left(&self, window: Option<usize>) -> Option<usize> {
        window.map(|window| window.saturating_sub(usize::from(self.sizes.causal)))
    }

    /// The states that the last position of each row sees, as pages of one position.
    fn table(&self, window: Option<usize>) -> Table {
        let most = self
            .left(window)
            .map_or(usize::MAX, |left| left.saturating_add(1));
        let kept = |row: &Vec<u32>| row.len().min(most);
        let width = self.ancestors.iter().map(kept).max().unwrap_or(0);
        let mut table = Table {
            pages: Vec::with_capacity(width * self.ancestors.len()),
            filled: vec![],
        };
        for row in &self.ancestors {
            let kept = kept(row);
            table.pages.extend_from_slice(&row[row.len() - kept..]);
            let padded = table.pages.len() + width - kept;
            table.pages.resize(padded, 0);
            table.filled.push(kept as u32);
        }
        table
    }

    /// How many positions a row has, those of this pass included.
    pub(super) fn length(&self, row: usize) -> usize {
        self.ancestors.get(row).map_or(self.counts[row], Vec::len)
    }

    fn total(&self) -> usize {
        self.offsets[self.counts.len()] as usize
    }

    /// The context of every position into `read [positions, heads · head]`, from `joint [positions, q | k | v]`, whose queries and
    /// keys are turned in place.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn own(
        &self,
        layer: usize,
        own: &SelfAttention,
        joint: &mut [f32],
        read: &mut Vec<f32>,
        past: Option<&mut Past>,
        observer: &mut Observing<'_>,
        helper: &Helper<'_, '_, '_>,
    ) -> Result<(), KernelError> {
        let Sizes { heads, head, .. } = self.sizes;
        let (query, key) = self.sizes.widths();
        let width = query + 2 * key;
        self.place(own, joint)?;
        self.flatten(layer, false, joint, width);
        let past = past.map(|past| {
            for row in joint.chunks_exact_mut(width) {
                past.push(&mut row[query..]);
            }
            &*past
        });
        let wanted = wanted(observer, layer, false);
        let changes = self.changes_pairs(layer, false);
        // Whatever was there is overwritten: each position has its queries in one of the ways below.
        read.resize(self.total() * heads * head, 0.0);
        if let (true, Some(past)) = (self.step, past) {
            let known = self.tables.iter().find(|(window, _)| *window == own.window);
            if let Some((_, table)) = known {
                let queries = (&*joint, width);
                let attention = self.by_distance(layer, own);
                match past {
                    Past::F32(past) => {
                        self.decode(queries, attention, past, 1, table, read, helper)
                    }
                    Past::Bf16(past) => {
                        self.decode(queries, attention, past, 1, table, read, helper)
                    }
                    Past::F16(past) => {
                        self.decode(queries, attention, past, 1, table, read, helper)
                    }
                }?;
            }
            if !wanted && !changes {
                return Ok(());
            }
        }
        if self.work(query) {
            helper.dismiss();
        }
        if self.fresh && !wanted && !changes {
            let part = |first, heads| View {
                data: joint.get(first..).unwrap_or_default(),
                shape: [1, heads, self.total(), head],
                strides: [0, head, width],
            };
            let offsets = Offsets {
                query: &self.offsets,
                key: &self.offsets,
            };
            let attention = Attention {
                offsets: Some(offsets),
                ..self.attention(layer, own)
            };
            let groups = self.sizes.key_value_heads;
            let (query_view, key_view, value_view) = (
                part(0, heads),
                part(query, groups),
                part(query + key, groups),
            );
            let to = ViewMut::length_first(read, [1, heads, self.total(), head]);
            return dot::forward(&attention, query_view, key_view, value_view, to, None);
        }
        for (row, &count) in self.counts.iter().enumerate() {
            if count == 0 {
                continue;
            }
            let first = self.offsets[row] as usize;
            let queries = &joint[first * width..(first + count) * width];
            let (key_values, start) = match past {
                Some(past) => {
                    let ancestors = &self.ancestors[row];
                    let reach = self
                        .left(own.window)
                        .map_or(usize::MAX, |left| left.saturating_add(count));
                    let start = ancestors.len().saturating_sub(reach) / ALIGNED * ALIGNED;
                    (past.gather(&ancestors[start..], 2 * key), start)
                }
                None => {
                    let states = queries.chunks_exact(width).flat_map(|row| &row[query..]);
                    (states.copied().collect(), 0)
                }
            };
            let to = &mut read[first * query..(first + count) * query];
            let context = match self.step && !changes {
                // The context is there already; only the lse is wanted.
                true => &mut vec![0.0; to.len()][..],
                false => to,
            };
            let seen = Place {
                layer,
                cross: false,
                row,
                queries: Positions::From(self.length(row) - count),
                keys: Positions::From(start),
            };
            let attention = self.attention(layer, own);
            let observer = told(observer, wanted);
            self.row(
                seen,
                attention,
                (queries, width),
                &key_values,
                context,
                observer,
            )?;
        }
        Ok(())
    }

    /// The context of every position `[positions, heads · head]`, from `queries` of the same shape.
    pub(super) fn cross(
        &self,
        layer: usize,
        mut queries: Vec<f32>,
        scale: Option<f32>,
        sources: Option<&Sources>,
        observer: &mut Observing<'_>,
        helper: &Helper<'_, '_, '_>,
    ) -> Result<Vec<f32>, KernelError> {
        let Some(sources) = sources else {
            let (argument, axis, reason) = ("state", "sources", "its blocks read a source");
            return Err(KernelError::Size {
                argument,
                axis,
                expected: self.counts.len(),
                found: 0,
                reason,
            });
        };
        let (query, key) = self.sizes.widths();
        self.flatten(layer, true, &mut queries, query);
        let states = &sources.key_values[layer];
        let wanted = wanted(observer, layer, true);
        let mut read = vec![0.0; queries.len()];
        let single =
            self.counts.iter().all(|&count| count == 1) && !self.changes_pairs(layer, true);
        if single {
            let filled = self.sources.iter().map(|&s| sources.lengths[s] as u32);
            let table = Table {
                pages: self.sources.iter().map(|&source| source as u32).collect(),
                filled: filled.collect(),
            };
            let page = sources.length;
            let attention = self.unmasked(scale);
            let queries = (&queries[..], query);
            self.decode(queries, attention, states, page, &table, &mut read, helper)?;
            if !wanted {
                return Ok(read);
            }
        }
        for (row, &count) in self.counts.iter().enumerate() {
            if count == 0 {
                continue;
            }
            let first = self.offsets[row] as usize * query;
            let place = first..first + count * query;
            let source = self.sources[row];
            let from = source * sources.length * 2 * key;
            let key_values = &states[from..from + sources.lengths[source] * 2 * key];
            let to = &mut read[place.clone()];
            let context = match single {
                true => &mut vec![0.0; to.len()][..],
                false => to,
            };
            let seen = Place {
                layer,
                cross: true,
                row,
                queries: Positions::From(self.length(row) - count),
                keys: Positions::From(0),
            };
            let attention = self.unmasked(scale);
            let observer = told(observer, wanted);
            self.row(
                seen,
                attention,
                (&queries[place], query),
                key_values,
                context,
                observer,
            )?;
        }
        Ok(read)
    }

    /// Norms and positions of queries and keys.
    fn place(&self, own: &SelfAttention, joint: &mut [f32]) -> Result<(), KernelError> {
        let angles = own.rotation.map(|rotation| &self.angles[rotation]);
        if angles.is_none() && own.query_norm.is_none() && own.key_norm.is_none() {
            return Ok(());
        }
        let (query, key) = self.sizes.widths();
        let width = query + 2 * key;
        let failed = Mutex::new(None);
        let place_row = |at: usize, row: &mut [f32]| {
            let (queries, rest) = row.split_at_mut(query);
            if let Some(norm) = &own.query_norm {
                queries.copy_from_slice(&norm.apply(queries)?);
            }
            if let Some(norm) = &own.key_norm {
                let keys = &mut rest[..key];
                keys.copy_from_slice(&norm.apply(keys)?);
            }
            match angles {
                Some(angles) => angles.turn(at, &mut row[..query + key], self.sizes.head),
                None => Ok(()),
            }
        };
        let work = joint.len() as f64;
        let items = rows(joint, width);
        for_each_chunk(
            items,
            self.total(),
            16,
            work,
            &|first, chunk: RowsMut<f32>| {
                for (at, row) in (first..).zip(chunk.data.chunks_exact_mut(width)) {
                    if let Err(error) = place_row(at, row)
                        && let Ok(mut failed) = failed.lock()
                    {
                        failed.get_or_insert(error);
                    }
                }
            },
        );
        match failed.into_inner() {
            Ok(Some(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// What self-attention may see.
    pub(super) fn attention(&self, layer: usize, own: &SelfAttention) -> Attention<'a> {
        let causal = self.sizes.causal;
        let window = own.window.map(|window| Window {
            left: self.left(own.window),
            right: (!causal).then_some(window),
        });
        Attention {
            causal,
            window,
            ..self.by_distance(layer, own)
        }
    }

    /// Self-attention that sees everything, as far as its distance says.
    fn by_distance(&self, layer: usize, own: &SelfAttention) -> Attention<'a> {
        let Attention {
            relative, alibi, ..
        } = self.distances.options(layer);
        Attention {
            relative,
            alibi,
            ..self.unmasked(own.scale)
        }
    }

    /// Attention that sees everything.
    pub(super) fn unmasked(&self, scale: Option<f32>) -> Attention<'a> {
        Attention {
            scale,
            softcap: self.sizes.softcap,
            ..Attention::default()
        }
    }

    /// Whether attention over the new positions is worth the threads of the helpers.
    pub(super) fn work(&self, query: usize) -> bool {
        let pairs = |(row, &count): (usize, &usize)| count * self.length(row);
        let pairs: usize = self.counts.iter().enumerate().map(pairs).sum();
        pairs * query > 1 << 20
    }

    /// One query of each row against pages of `page` states, `[pages, page, k | v]`. A row's query is at the beginning of `width`
    /// numbers.
    #[allow(clippy::too_many_arguments)]
    fn decode<T: Element>(
        &self,
        (queries, width): (&[f32], usize),
        attention: Attention<'_>,
        states: &[T],
        page: usize,
        table: &Table,
        read: &mut [f32],
        helper: &Helper<'_, '_, '_>,
    ) -> Result<(), KernelError> {
        let Sizes {
            heads,
            key_value_heads,
            head,
            ..
        } = self.sizes;
        let (rows, state) = (table.filled.len(), 2 * key_value_heads * head);
        let keys: u64 = table.filled.iter().map(|&keys| u64::from(keys)).sum();
        if keys * state as u64 > 1 << 18 {
            helper.dismiss();
        }
        let pages = states
            .len()
            .checked_div(page.saturating_mul(state))
            .unwrap_or(0);
        let part = |first: usize| View {
            data: states.get(first..).unwrap_or_default(),
            shape: [pages, key_value_heads, page, head],
            strides: [page.saturating_mul(state), head, state],
        };
        let cache = Cache::Paged {
            key: part(0),
            value: part(state / 2),
            table: &table.pages,
            filled: &table.filled,
        };
        let shape = [rows, heads, 1, head];
        let query = View {
            data: queries,
            shape,
            strides: [width, head, head],
        };
        let to = ViewMut::heads_first(read, shape);
        dot::decode(&attention, query, cache, to, None)
    }

    /// The queries of one row, at the beginning of `width` numbers each, against `key_values [keys, k | v]`.
    pub(super) fn row(
        &self,
        place: Place<'_>,
        attention: Attention<'_>,
        (queries, width): (&[f32], usize),
        key_values: &[f32],
        context: &mut [f32],
        observer: Option<&mut (dyn Observer + Send + '_)>,
    ) -> Result<(), KernelError> {
        let Sizes {
            heads,
            key_value_heads,
            head,
            ..
        } = self.sizes;
        let state = 2 * key_value_heads * head;
        let (count, keys) = (queries.len() / width, key_values.len() / state);
        // Rows of zeros in front put every query in the place of its panel where the whole sequence has it.
        let before = match attention.causal {
            true => place.queries.of(0),
            false => 0,
        };
        let padded = before % dot::panel_width(Level::current());
        let mut with_padding = vec![];
        let (mut in_place, mut to) = (queries, &mut *context);
        let mut padded_context = vec![];
        if padded > 0 {
            with_padding.resize(padded * width, 0.0);
            with_padding.extend_from_slice(queries);
            padded_context.resize((padded + count) * heads * head, 0.0);
            (in_place, to) = (&with_padding, &mut padded_context);
        }
        let all = padded + count;
        let keep = self.keep(&place, padded, [all, keys]);
        let bias = self.logarithms(&place, padded, [all, keys]);
        // The same from the first query on that is no padding.
        let seen_by = |first: usize| {
            let (shape, strides) = ([1, heads, all - first, keys], [0, all * keys, keys]);
            let data = keep.as_ref().map(|keep| &keep[first * keys..]);
            let keep = data.map(|data| View {
                data,
                shape,
                strides,
            });
            let data = bias.as_ref().map(|bias| &bias[first * keys..]);
            let bias = data.map(|data| View {
                data,
                shape,
                strides,
            });
            Attention {
                keep,
                bias,
                ..attention
            }
        };
        let view = |data, count| View {
            data,
            shape: [1, heads, count, head],
            strides: [0, head, width],
        };
        let part = |first: usize| View {
            data: key_values.get(first..).unwrap_or_default(),
            shape: [1, key_value_heads, keys, head],
            strides: [0, head, state],
        };
        let (key, value) = (part(0), part(state / 2));
        let mut lse = match observer {
            Some(_) => vec![0.0; heads * all * 3],
            None => vec![],
        };
        let asked = observer.is_some().then_some(&mut lse[..]);
        let to = ViewMut::length_first(to, [1, heads, all, head]);
        dot::forward(&seen_by(0), view(in_place, all), key, value, to, asked)?;
        if padded > 0 {
            context.copy_from_slice(&padded_context[padded * heads * head..]);
            let of_head = lse.chunks_exact(all * 3);
            lse = of_head
                .flat_map(|lse| &lse[padded * 3..])
                .copied()
                .collect();
        }
        match observer {
            None => Ok(()),
            Some(observer) => observer.see(Seen {
                layer: place.layer,
                cross: place.cross,
                row: place.row,
                queries: place.queries,
                keys: place.keys,
                attention: seen_by(padded),
                query: view(queries, count),
                key,
                value,
                lse: &lse,
            }),
        }
    }
}

impl Pass<'_> {
    /// What the distance of a key adds to its score.
    pub(super) fn added(&self, place: &Place<'_>, head: usize, pair: [usize; 2]) -> f32 {
        let heads = [head, self.sizes.heads];
        match place.cross {
            true => 0.0,
            false => self.distances.add(place.layer, heads, pair),
        }
    }

    /// Which keys each query may see, `[heads, queries, keys]`, if some are hidden here; `padded` queries stand in front.
    fn keep(
        &self,
        place: &Place<'_>,
        padded: usize,
        [queries, keys]: [usize; 2],
    ) -> Option<Vec<u8>> {
        let mut keep = None;
        for (head, query, key) in self.hidden(place.layer, place.cross) {
            let row = (padded..queries).find(|&row| place.queries.of(row - padded) == query);
            let column = (0..keys).find(|&column| place.keys.of(column) == key);
            if let (Some(row), Some(column)) = (row, column) {
                let keep = keep.get_or_insert_with(|| vec![1; self.sizes.heads * queries * keys]);
                keep[(head * queries + row) * keys + column] = 0;
            }
        }
        keep
    }
}

/// Where an attention is.
pub(super) struct Place<'a> {
    pub(super) layer: usize,
    pub(super) cross: bool,
    pub(super) row: usize,
    pub(super) queries: Positions<'a>,
    pub(super) keys: Positions<'a>,
}
