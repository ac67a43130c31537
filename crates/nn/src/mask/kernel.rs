//! A mask as options of the dot-product kernel: by name where the kernel knows the mask, tile by tile; the rest as a
//! table.

use regard_kernels::{self as kernels, SequencePosition};

use super::{Alignment, Grid, Mask, Rule};

/// Owned options of [`kernels::Attention`].
#[derive(Debug, Clone, Default)]
pub(crate) struct KernelMask {
    pub(crate) alignment: kernels::Alignment,
    pub(crate) causal: bool,
    pub(crate) window: Option<kernels::Window>,
    pub(crate) prefix: Option<Vec<u32>>,
    pub(crate) lengths: Option<Vec<u32>>,
    pub(crate) documents: Option<[Vec<u32>; 2]>,
    pub(crate) blocks: Option<Blocks>,
    /// `[batch or 1, heads or 1, queries or 1, keys]`, 1 where a key may be seen.
    pub(crate) keep: Option<(Vec<u8>, [usize; 4])>,
}

/// Which block of queries sees which block of keys.
#[derive(Debug, Clone)]
pub(crate) struct Blocks {
    pub(crate) query_size: usize,
    pub(crate) key_size: usize,
    pub(crate) table: Vec<u8>,
    pub(crate) shape: [usize; 4],
}

impl Mask {
    /// The mask of a checked grid for the kernel, which has one alignment for everything: that of `aligned`, if something
    /// beside the mask needs one.
    pub(crate) fn for_kernel(&self, grid: &Grid, aligned: Option<Alignment>) -> KernelMask {
        let mut shift = aligned.map(|alignment| shift_of(grid, alignment));
        let mut leaves = vec![];
        conjuncts(&self.0, &mut leaves);
        // A prefix overrides the kernel's causality and window, so it is passed by name only where there is no other
        // rule.
        let positional = |rule: &&&Rule| {
            matches!(
                rule,
                Rule::Causal(_) | Rule::Window(_) | Rule::Local(_) | Rule::Prefix(..)
            )
        };
        let alone = leaves.iter().filter(positional).count() == 1;
        let mut kernel = KernelMask::default();
        let rest: Vec<&Rule> = leaves
            .into_iter()
            .filter(|rule| !kernel.takes(rule, grid, alone, &mut shift))
            .collect();
        let lower_right = shift_of(grid, Alignment::LowerRight);
        kernel.alignment = match shift.is_none_or(|shift| shift == lower_right) {
            true => kernels::Alignment::LowerRight,
            false => kernels::Alignment::UpperLeft,
        };
        let rest = rest.into_iter().cloned();
        kernel.keep = rest
            .reduce(|a, b| Rule::And(Box::new(a), Box::new(b)))
            .map(|rule| {
                let (seen, shape) = rule.table(grid);
                (seen.into_iter().map(u8::from).collect(), shape)
            });
        kernel
    }
}

/// The position of the first query, counted from the first key of the call. The kernel knows two: that of the lower right
/// alignment, and 0.
fn shift_of(grid: &Grid, alignment: Alignment) -> SequencePosition {
    grid.position(alignment, 0) - SequencePosition::saturating(grid.first_key)
}

/// The rules of which all must hold.
fn conjuncts<'a>(rule: &'a Rule, leaves: &mut Vec<&'a Rule>) {
    match rule {
        Rule::All => {}
        Rule::And(a, b) => {
            conjuncts(a, leaves);
            conjuncts(b, leaves);
        }
        rule => leaves.push(rule),
    }
}

impl KernelMask {
    /// Whether it is causality, a window and lengths alone.
    pub(crate) fn is_band(&self) -> bool {
        let known = self.prefix.is_none() && self.documents.is_none();
        known && self.blocks.is_none() && self.keep.is_none()
    }

    /// Sets the option for `rule`, if the kernel has one that is still free. `shift` is the position of the first query,
    /// once it is decided.
    fn takes(
        &mut self,
        rule: &Rule,
        grid: &Grid,
        alone: bool,
        shift: &mut Option<SequencePosition>,
    ) -> bool {
        let mut aligns = |alignment: Alignment| {
            let own = shift_of(grid, alignment);
            let known = [
                shift_of(grid, Alignment::LowerRight),
                SequencePosition::ZERO,
            ];
            known.contains(&own) && *shift.get_or_insert(own) == own
        };
        // The number of keys before a position, counted from the first key of the call.
        let per_batch = |ends: &[usize]| -> Vec<u32> {
            let of = |b: usize| {
                let keys = ends[b.min(ends.len() - 1)].saturating_sub(grid.first_key);
                keys.min(grid.keys) as u32
            };
            (0..grid.batch).map(of).collect()
        };
        match rule {
            Rule::Causal(alignment) if aligns(*alignment) => self.causal = true,
            Rule::Window(window)
                if window.dilation == 1 && self.window.is_none() && aligns(window.alignment) =>
            {
                let reach = Some(window.width - 1);
                self.window = Some(kernels::Window {
                    left: reach,
                    right: reach,
                });
            }
            Rule::Local(centres)
                if centres.predicted.is_none()
                    && self.window.is_none()
                    && aligns(Alignment::UpperLeft) =>
            {
                let reach = Some(centres.half_width);
                self.window = Some(kernels::Window {
                    left: reach,
                    right: reach,
                });
            }
            Rule::Prefix(lengths, alignment) if alone && aligns(*alignment) => {
                self.causal = true;
                self.prefix = Some(per_batch(lengths));
            }
            Rule::Padding(keep) if keep.is_left_aligned() && self.lengths.is_none() => {
                self.lengths = Some(per_batch(keep.lengths()));
            }
            Rule::Reach(reach) if self.lengths.is_none() => {
                self.lengths = Some(per_batch(&[*reach]));
            }
            Rule::Documents(documents) if self.documents.is_none() => {
                let of = |rows: &[Vec<usize>], first: usize| -> Option<Vec<u32>> {
                    let row = |b: usize| &rows[b.min(rows.len() - 1)][first..];
                    let names = (0..grid.batch).flat_map(row);
                    names.map(|&name| u32::try_from(name).ok()).collect()
                };
                let queries = of(&documents.queries, grid.first_query);
                let keys = of(&documents.keys, grid.first_key);
                let (Some(queries), Some(keys)) = (queries, keys) else {
                    return false;
                };
                self.documents = Some([queries, keys]);
            }
            Rule::Blocks(blocks)
                if self.blocks.is_none() && grid.first_query == 0 && grid.first_key == 0 =>
            {
                let width = blocks.table.first().map_or(0, Vec::len);
                self.blocks = Some(Blocks {
                    query_size: blocks.query_size,
                    key_size: blocks.key_size,
                    table: blocks
                        .table
                        .iter()
                        .flatten()
                        .map(|&sees| sees.into())
                        .collect(),
                    shape: [1, 1, blocks.table.len(), width],
                });
            }
            _ => return false,
        }
        true
    }
}
