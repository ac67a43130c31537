//! One worker's memory: the tiles for a panel of queries and its keys.

use crate::{
    element::{Element, Kind},
    mask::TILE_KEYS,
    prefetch::Prefetch,
    problem::{Attention, Sizes},
    simd::{Buffer, Simd},
};

use super::{
    super::{panel::width, plan::Tile},
    options::Slopes,
};

/// Keys whose weights and gradients are held at once.
pub(super) const TILE: usize = 128;
/// Segments in a tile.
const SEGMENTS: usize = TILE / TILE_KEYS;

/// One worker's memory.
pub(super) struct Scratch {
    /// Qᵀ, Oᵀ and dOᵀ, `[dim, width]`.
    pub(super) query: Buffer,
    pub(super) output: Buffer,
    pub(super) d_output: Buffer,
    /// scale Q and dO, `[width, dim]`, the dims rounded up to whole vectors.
    pub(super) query_rows: Buffer,
    pub(super) d_output_rows: Buffer,
    /// Pᵀ and dSᵀ, `[TILE, width]`.
    pub(super) weights: Buffer,
    pub(super) gradients: Buffer,
    pub(super) slopes: Slopes,
    /// dQᵀ, `[dim, width]`.
    pub(super) d_query: Buffer,
    /// What a tile of keys contributes to it.
    pub(super) totals: Buffer,
    /// The `lse` as base and `-log₂` of the sum ([`Job::lse_to_base`](super::super::Job)), and `-δ`: `[width]`.
    pub(super) base: Buffer,
    pub(super) minus_log: Buffer,
    pub(super) minus_delta: Buffer,
    /// The queries' part of dropout's hashes.
    pub(super) hashes: [u32; 48],
    /// Whether Q, dO and, for each 16 rows of the tile, K hold finite numbers only.
    pub(super) finite_query: bool,
    pub(super) finite_d_output: bool,
    pub(super) finite_key: Vec<bool>,
    pub(super) tile: Tile<SEGMENTS>,
    /// Where operands are not stored as `f32`: copies of the keys and the values of a tile, `[TILE, dim]` each,
    /// and of one operand of the panel, `[width, dim]`.
    pub(super) keys: Buffer,
    pub(super) values: Buffer,
    pub(super) wide: Buffer,
    pub(super) prefetch: Prefetch,
}

impl Scratch {
    #[inline(always)]
    pub(super) fn new<S: Simd, T: Element, O: Element>(
        attention: &Attention,
        sizes: &Sizes,
    ) -> Self {
        let width = width::<S>();
        let rounded = |dim: usize| dim.next_multiple_of(S::LANES);
        let copies = |stored: bool, rows: usize, dim: usize| if stored { rows * dim } else { 0 };
        let (stored, any) = (
            T::KIND != Kind::F32,
            (T::KIND, O::KIND) != (Kind::F32, Kind::F32),
        );
        Self {
            query: Buffer::new(sizes.dim * width),
            output: Buffer::new(sizes.value_dim * width),
            d_output: Buffer::new(sizes.value_dim * width),
            query_rows: Buffer::new(rounded(sizes.dim) * width),
            d_output_rows: Buffer::new(rounded(sizes.value_dim) * width),
            weights: Buffer::new(TILE * width),
            gradients: Buffer::new(TILE * width),
            slopes: Slopes::new(attention, TILE, width),
            d_query: Buffer::new(sizes.dim * width),
            totals: Buffer::new(sizes.dim * width),
            base: Buffer::new(width),
            minus_log: Buffer::new(width),
            minus_delta: Buffer::new(width),
            hashes: [0; 48],
            finite_query: true,
            finite_d_output: true,
            finite_key: Vec::new(),
            tile: Tile::EMPTY,
            keys: Buffer::new(copies(stored, TILE, sizes.dim)),
            values: Buffer::new(copies(stored, TILE, sizes.value_dim)),
            wide: Buffer::new(copies(any, width, sizes.dim.max(sizes.value_dim))),
            prefetch: Prefetch::default(),
        }
    }
}
