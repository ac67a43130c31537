//! Attention with global positions (Longformer; Beltagy et al. 2020), one softmax for each query:
//!
//! ```text
//! i ∈ G   over all positions, by the projections of global positions
//! i ∉ G   over i's window and G, by those of the others
//! ```
//! The window and `G` are one call of the kernel, in which the keys of `G` are there twice:
//!
//! ```text
//! keys:  | those of G | those of all positions |      a prefix that every query sees, and the window
//! ```
//! In the second part, the keys of `G` are hidden as those of another document, and so are the queries of `G`.

use super::attend::{Pass, Place};
use super::helper::Helper;
use super::observer::{Observing, Positions, told, wanted};
use super::{SelfAttention, Sizes, Stack};
use crate::error::{KernelError, check_value};
use crate::{Attention, Documents};

/// The document of positions that are not global.
const OTHERS: u32 = 0;
/// The document of queries that are global, without keys.
const GLOBAL_QUERY: u32 = 1;
/// The document of keys that are in the prefix, without queries.
const GLOBAL_KEY: u32 = 2;

impl Stack {
    /// Checks the global positions of a pass over `total` positions.
    pub(super) fn check_global(&self, global: &[usize], total: usize) -> Result<(), KernelError> {
        let mut least = 0;
        for (position, &found) in global.iter().enumerate() {
            if !(least..total).contains(&found) {
                return Err(KernelError::Entry {
                    argument: "global",
                    position,
                    expected: format!("ascending positions below {total}"),
                    found: found.to_string(),
                });
            }
            least = found + 1;
        }
        let mut blocks = self.blocks.iter();
        let all = global.is_empty() || blocks.all(|block| block.attention.global.is_some());
        let expected = "none, as a block has no projections for them";
        check_value("global", expected, global.len() as f64, all)
    }
}

impl Pass<'_> {
    /// The context of every position `[positions, heads · head]`, from what enters the attention, `entered [positions, model]`, and
    /// `joint [positions, q | k | v]`.
    pub(super) fn own_and_global<'a>(
        &self,
        layer: usize,
        own: &'a SelfAttention,
        entered: &[f32],
        joint: &[f32],
        observer: &mut Observing<'_>,
        helper: &Helper<'_, '_, 'a>,
    ) -> Result<Vec<f32>, KernelError> {
        let Sizes { model, .. } = self.sizes;
        let (query, key) = self.sizes.widths();
        let width = query + 2 * key;
        let wanted = wanted(observer, layer, false);
        if self.work(query) {
            helper.dismiss();
        }
        let mut read = vec![0.0; joint.len() / width * query];
        for (row, &count) in self.counts.iter().enumerate() {
            if count == 0 {
                continue;
            }
            let first = self.offsets[row] as usize;
            let of_row = |size: usize| first * size..(first + count) * size;
            let inside = self.global.iter().filter(|at| of_row(1).contains(at));
            let globals: Vec<usize> = inside.map(|at| at - first).collect();
            let context = &mut read[of_row(query)];

            let joint = &joint[of_row(width)];
            let keys: Vec<usize> = globals.iter().copied().chain(0..count).collect();
            let key_values = keys
                .iter()
                .flat_map(|at| &joint[at * width + query..][..2 * key]);
            let key_values: Vec<f32> = key_values.copied().collect(); // [globals + count, k | v]
            let prefix = [globals.len() as u32];
            let mut queries_from = vec![OTHERS; count];
            let mut keys_from = vec![OTHERS; keys.len()];
            for at in &globals {
                queries_from[*at] = GLOBAL_QUERY;
                keys_from[globals.len() + at] = GLOBAL_KEY;
            }
            let documents = Documents {
                query: &queries_from,
                key: &keys_from,
            };
            let some = !globals.is_empty();
            let attention = Attention {
                prefix: some.then_some(&prefix),
                documents: some.then_some(documents),
                ..self.attention(layer, own)
            };
            let place = |queries, keys| Place {
                layer,
                cross: false,
                row,
                queries,
                keys,
            };
            self.row(
                place(Positions::From(0), Positions::At(&keys)),
                attention,
                (joint, width),
                &key_values,
                context,
                told(observer, wanted),
            )?;
            let Some(to_all) = own.global.as_ref().filter(|_| some) else {
                continue;
            };

            let entered = &entered[of_row(model)];
            let chosen = globals
                .iter()
                .flat_map(|at| &entered[at * model..][..model]);
            let chosen: Vec<f32> = chosen.copied().collect();
            let queries = to_all.query.apply(&chosen, globals.len(), helper);
            let key_values = to_all.key_value.apply(entered, count, helper);
            let mut of_globals = vec![0.0; queries.len()];
            self.row(
                place(Positions::At(&globals), Positions::From(0)),
                self.unmasked(own.scale),
                (&queries, query),
                &key_values,
                &mut of_globals,
                told(observer, wanted),
            )?;
            for (at, from) in globals.iter().zip(of_globals.chunks_exact(query)) {
                context[at * query..][..query].copy_from_slice(from);
            }
        }
        Ok(read)
    }
}
