//! What the kernels have in common: products of two tiles, and weights times a tile.
//!
//! Unit `(x, y)` of 16 x 16 has the rows `y + 16 i` and the columns `x + 16 j` of a tile, `i, j < r`.

use cubecl::prelude::*;

use crate::{Inputs, Options, SIDE, Sizes};

/// A score that is at most this is hidden. Infinities are avoided, as WGSL knows none.
pub(crate) const HIDDEN: f32 = -3.0e38;
/// The least score of a key that is seen, under a bias.
const LEAST: f32 = -2.9e38;
/// The score of a hidden key.
pub(crate) const LOWEST: f32 = -3.2e38;

/// What is known when a kernel is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    /// Rows and columns of a unit: a tile has 16 times as many.
    pub(crate) r: usize,
    pub(crate) size: usize,
    pub(crate) value_size: usize,
    pub(crate) capped: bool,
    pub(crate) biased: bool,
    /// Whether the gradient of the scores is written.
    pub(crate) written: bool,
}

impl Form {
    /// The form for a card: the larger tile if its shared memory takes it.
    pub(crate) fn new(inputs: &Inputs, sizes: &Sizes, options: &Options) -> Self {
        let card = &inputs.query.client.properties().hardware;
        let available = card.max_shared_memory_size;
        Self {
            r: if shared_bytes(4) <= available { 4 } else { 2 },
            size: sizes.size,
            value_size: sizes.value_size,
            capped: options.softcap.is_some(),
            biased: inputs.bias.is_some(),
            written: false,
        }
    }

    /// The number of groups for `rows`, heads and batch entries.
    pub(crate) fn groups(&self, rows: usize, heads: usize, batch: usize) -> CubeCount {
        let tiles = rows.div_ceil(SIDE * self.r) as u32;
        CubeCount::Static(tiles, heads as u32, batch as u32)
    }
}

/// The shared memory of the forward kernel, which has the most.
const fn shared_bytes(r: usize) -> usize {
    let tile = SIDE * r;
    4 * (2 * SIDE * (tile + 1) + tile * (tile + 1) + tile * tile + tile * SIDE + 1)
}

/// Which keys queries see.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Band {
    pub(crate) scale: f32,
    pub(crate) softcap: f32,
    pub(crate) shift: i32,
    pub(crate) left: i32,
    pub(crate) right: i32,
}

/// Number `column` of row `row` of the head that begins at `start`, 0 outside.
#[cube]
fn number<E: Float>(
    tensor: &Tensor<E>,
    start: usize,
    row: usize,
    column: usize,
    #[comptime] size: usize,
) -> f32 {
    let inside = row < tensor.shape(2) && column < size;
    let place = start + row * tensor.stride(2) + column * tensor.stride(3);
    let place = select(inside, place, 0usize);
    select(inside, f32::cast_from(tensor[place]), 0.0f32)
}

/// Where a head begins.
#[cube]
pub(crate) fn start<E: Numeric>(tensor: &Tensor<E>, batch: usize, head: usize) -> usize {
    batch * tensor.stride(0) + head * tensor.stride(1)
}

/// Numbers of a product that are added up before their sum is added to the others'. In the backward pass, where what remains of `dO Vᵀ - δ` is
/// smaller than both, gradients have about half the error that they have with one sum (`docs/book/src/cards.md`).
pub(crate) const BLOCK: usize = 8;

/// The products of the rows of a tile of `a` with those of a tile of `b`.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(crate) fn products<E: Float>(
    a: &Tensor<E>,
    a_start: usize,
    a_first: usize,
    b: &Tensor<E>,
    b_start: usize,
    b_first: usize,
    panels: &mut Shared<[f32]>,
    #[comptime] r: usize,
    #[comptime] size: usize,
) -> Array<f32> {
    let pitch = comptime!(SIDE * r + 1);
    let (x, y) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let mut sums = Array::<f32>::new(comptime!(r * r));
    #[unroll]
    for n in 0..r * r {
        sums[n] = 0.0f32;
    }
    let mut left = Array::<f32>::new(r);
    let mut part = Array::<f32>::new(comptime!(r * r));
    for chunk in 0..comptime!(size.div_ceil(SIDE)) {
        let column = chunk * SIDE + x;
        sync_cube();
        #[unroll]
        for i in 0..r {
            let row = y + comptime!(i * SIDE);
            panels[x * pitch + row] = number::<E>(a, a_start, a_first + row, column, size);
            let other = number::<E>(b, b_start, b_first + row, column, size);
            panels[(x + SIDE) * pitch + row] = other;
        }
        sync_cube();
        #[unroll]
        for block in 0..SIDE / BLOCK {
            #[unroll]
            for n in 0..r * r {
                part[n] = 0.0f32;
            }
            #[unroll]
            for c in 0..BLOCK {
                let c = comptime!(block * BLOCK + c);
                #[unroll]
                for i in 0..r {
                    left[i] = panels[comptime!(c * pitch + i * SIDE) + y];
                }
                #[unroll]
                for j in 0..r {
                    let right = panels[comptime!((c + SIDE) * pitch + j * SIDE) + x];
                    #[unroll]
                    for i in 0..r {
                        part[i * r + j] += left[i] * right;
                    }
                }
            }
            #[unroll]
            for n in 0..r * r {
                sums[n] += part[n];
            }
        }
    }
    sums
}

/// Adds `weights · tensor[first ..]` to `sums`, of which each unit has `r x r` for each tile of columns. What has weight 0 adds 0, also if
/// it is not finite: once `poison` says that there is such a number, every product is checked.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(crate) fn spread<E: Float>(
    weights: &Shared<[f32]>,
    tensor: &Tensor<E>,
    start: usize,
    first: usize,
    staged: &mut Shared<[f32]>,
    poison: &mut Shared<[u32]>,
    sums: &mut Array<f32>,
    #[comptime] r: usize,
    #[comptime] size: usize,
) {
    let tile = comptime!(SIDE * r);
    let (x, y) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    #[unroll]
    for chunk in 0..size.div_ceil(tile) {
        sync_cube();
        #[unroll]
        for i in 0..r {
            #[unroll]
            for j in 0..r {
                let (row, column) = (y + comptime!(i * SIDE), x + comptime!(j * SIDE));
                let from = column + comptime!(chunk * tile);
                let value = number::<E>(tensor, start, first + row, from, size);
                staged[row * tile + column] = value;
                if u32::reinterpret(value) & 0x7f80_0000u32 == 0x7f80_0000u32 {
                    poison[0] = 1u32;
                }
            }
        }
        sync_cube();
        if poison[0] == 0u32 {
            add(weights, staged, sums, r, chunk, false);
        } else {
            add(weights, staged, sums, r, chunk, true);
        }
    }
}

#[cube]
fn add(
    weights: &Shared<[f32]>,
    staged: &mut Shared<[f32]>,
    sums: &mut Array<f32>,
    #[comptime] r: usize,
    #[comptime] chunk: usize,
    #[comptime] careful: bool,
) {
    let tile = comptime!(SIDE * r);
    let (x, y) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let mut left = Array::<f32>::new(r);
    for k in 0..tile {
        #[unroll]
        for i in 0..r {
            left[i] = weights[(y + comptime!(i * SIDE)) * comptime!(tile + 1) + k];
        }
        #[unroll]
        for j in 0..r {
            let right = staged[k * tile + x + comptime!(j * SIDE)];
            #[unroll]
            for i in 0..r {
                let at = comptime!(chunk * r * r + i * r + j);
                // Rounded once in both, so that they have the same bits.
                let sum = fma(left[i], right, sums[at]);
                if comptime!(careful) {
                    sums[at] = select(left[i] == 0.0f32, sums[at], sum);
                } else {
                    sums[at] = sum;
                }
            }
        }
    }
}

/// Writes the `sums` of the tile of rows of a head that begins at `first`.
#[cube]
pub(crate) fn write<E: Float>(
    sums: &Array<f32>,
    tensor: &mut Tensor<E>,
    batch: usize,
    head: usize,
    first: usize,
    #[comptime] r: usize,
    #[comptime] size: usize,
) {
    let tile = comptime!(SIDE * r);
    let (x, y) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let start = batch * tensor.stride(0) + head * tensor.stride(1);
    #[unroll]
    for chunk in 0..size.div_ceil(tile) {
        #[unroll]
        for i in 0..r {
            #[unroll]
            for j in 0..r {
                let row = first + y + comptime!(i * SIDE);
                let column = x + comptime!(chunk * tile + j * SIDE);
                if row < tensor.shape(2) && column < size {
                    let place = start + row * tensor.stride(2) + column * tensor.stride(3);
                    tensor[place] = E::cast_from(sums[comptime!(chunk * r * r + i * r + j)]);
                }
            }
        }
    }
}

/// The score of a query and a key from their product: [`LOWEST`] if the key is hidden.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(crate) fn score(
    product: f32,
    query: usize,
    key: usize,
    queries: usize,
    length: usize,
    band: &Band,
    bias: &Tensor<f32>,
    bias_start: usize,
    #[comptime] form: Form,
) -> f32 {
    let distance = key as i32 - query as i32 - band.shift;
    let near = distance >= 0 - band.left && distance <= band.right;
    let seen = near && query < queries && key < length;
    let mut score = bent(product, band, form);
    if comptime!(form.biased) {
        score = biased(score, query, key, seen, bias, bias_start);
    }
    select(seen, score, LOWEST)
}

/// A score with its bias, [`LOWEST`] if that hides the key; the bias is read only if the key is `seen`.
#[cube]
pub(crate) fn biased(
    score: f32,
    query: usize,
    key: usize,
    seen: bool,
    bias: &Tensor<f32>,
    bias_start: usize,
) -> f32 {
    let place = bias_start + query * bias.stride(2) + key * bias.stride(3);
    let bias = bias[select(seen, place, 0usize)];
    let sum = score + bias;
    // The lowest number of all is a bias, too; -∞ alone hides. NaN is below nothing, and stays; `max` would lose it.
    select(bias < f32::MIN, LOWEST, select(sum < LEAST, LEAST, sum))
}

/// `scale · product`, bent by the softcap.
#[cube]
pub(crate) fn bent(product: f32, band: &Band, #[comptime] form: Form) -> f32 {
    let mut score = product * band.scale;
    if comptime!(form.capped) {
        score = band.softcap * tanh(score / band.softcap);
    }
    score
}

/// Some cards compute tanh from exponentials, which are infinite where it is 1 long since.
#[cube]
fn tanh(x: f32) -> f32 {
    select(
        x.abs() < 20.0f32,
        x.tanh(),
        select(x < 0.0f32, -1.0f32, select(x > 0.0f32, 1.0f32, x)),
    )
}

/// The derivative of [`bent`] with respect to the product.
#[cube]
pub(crate) fn slope(product: f32, band: &Band, #[comptime] form: Form) -> f32 {
    let mut slope = band.scale;
    if comptime!(form.capped) {
        let bent = tanh(product * band.scale / band.softcap);
        slope *= 1.0f32 - bent * bent;
    }
    slope
}
