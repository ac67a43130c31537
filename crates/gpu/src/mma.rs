//! What the kernels for tensor cores have in common: products of 16 x 16 by 16 x 8 numbers of f16 or bfloat16, added up in `f32`.
//!
//! A plane of 32 units multiplies. Unit `l` holds, with `g = l / 4` and `t = l % 4`, of
//!
//! | matrix | numbers | as |
//! |---|---|---|
//! | A `[16, 16]` | rows `g` and `g + 8`, columns `2t, 2t + 1` and `2t + 8, 2t + 9` | four pairs |
//! | B `[16, 8]` | rows `2t, 2t + 1` and `2t + 8, 2t + 9`, column `g` | two pairs |
//! | sums `[16, 8]` | rows `g` and `g + 8`, columns `2t, 2t + 1` | four `f32` |
//!
//! so that the sums of two products side by side are the matrix A of a third. A plane has the sums of `bands` times 16 rows:
//! number `4 (band columns / 8 + n) + i` is number `i` of band `band` and columns `8n .. 8n + 8`. Row `r` of a unit (of `2 bands`) is
//! `g + 8 r`.
//!
//! All is in registers only if every index is known when a kernel is compiled, so most loops here are unrolled.

mod backward;
mod forward;

pub(crate) use backward::{key_kernel, query_kernel};
pub(crate) use forward::forward_kernel;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::{
    cmma::{MatrixIdent, MmaDefinition},
    ir::features::MmaConfig,
    prelude::{
        barrier::{copy_async, copy_async_checked},
        *,
    },
};

use crate::{
    Inputs, Sizes,
    tile::{Band, Form, LOWEST, bent, biased},
};

/// Two numbers side by side.
pub(crate) type Pair<E> = Vector<E, Const<2>>;
/// Eight numbers side by side: what is moved at a time.
pub(crate) type Eight<E> = Vector<E, Const<8>>;

/// Units of a plane.
pub(crate) const PLANE: usize = 32;
/// Planes of a group.
const PLANES: usize = 4;
/// The largest size of a query, key or value here.
const MAX_SIZE: usize = 128;
const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// The sizes of tiles, and what they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tiles {
    /// Times 16, rows of a plane.
    pub(crate) bands: usize,
    /// Rows of what is passed over.
    pub(crate) steps: usize,
    /// The name of the type of numbers in PTX.
    number: &'static str,
}

impl Tiles {
    /// Rows of a group.
    pub(crate) const fn rows(&self) -> usize {
        PLANES * 16 * self.bands
    }

    /// Sums of a unit, for so many columns.
    const fn sums(&self, columns: usize) -> usize {
        self.bands * columns / 2
    }

    /// The units of a group.
    pub(crate) fn units(&self) -> CubeDim {
        CubeDim::new_2d(PLANE as u32, PLANES as u32)
    }

    /// The number of groups for `rows`, heads and batch entries.
    pub(crate) fn groups(&self, rows: usize, heads: usize, batch: usize) -> CubeCount {
        let tiles = rows.div_ceil(self.rows()) as u32;
        CubeCount::Static(tiles, heads as u32, batch as u32)
    }
}

/// The tiles of a forward pass, or with a `gradient` of a backward pass, if the card has tensor cores that take these inputs.
pub(crate) fn tiles(
    inputs: &Inputs,
    gradient: Option<&CubeTensor>,
    sizes: &Sizes,
) -> Option<Tiles> {
    let number = match inputs.query.dtype {
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        _ => return None,
    };
    let elem = crate::elem(&inputs.query);
    let card = inputs.query.client.properties();
    let product = MmaConfig {
        a_type: elem,
        b_type: elem,
        cd_type: f32::elem_type_native(),
        m: 16,
        n: 8,
        k: 16,
    };
    let able = card.features.matmul.mma.contains(&product)
        && card.features.matmul.ldmatrix.contains(&elem)
        && card.features.copy_async;
    let fit = |size: usize| size.is_multiple_of(16) && size <= MAX_SIZE;
    // Rows are moved eight numbers at a time, from addresses that are multiples of 16 bytes.
    let even = [&inputs.query, &inputs.key, &inputs.value]
        .into_iter()
        .chain(gradient)
        .all(|tensor| {
            let strides = tensor.meta.strides();
            let offset = tensor.handle.offset_start.unwrap_or(0);
            let whole = strides[..3].iter().all(|stride| stride.is_multiple_of(8));
            strides[3] == 1 && whole && offset.is_multiple_of(16)
        });
    let tiles = Tiles {
        bands: if gradient.is_none() && sizes.queries > 64 {
            2
        } else {
            1
        },
        steps: 64,
        number,
    };
    let (rows, steps) = (tiles.rows(), tiles.steps);
    let (of_size, of_value) = (pitch(sizes.size), pitch(sizes.value_size));
    let bytes = match gradient {
        None => 16 * ((rows + steps) * of_size + steps * of_value) + 4,
        Some(_) => 16 * (rows + 2 * steps) * (of_size + of_value) + 4 * (3 * steps + 2),
    };
    let room = bytes <= card.hardware.max_shared_memory_size;
    (able && even && room && fit(sizes.size) && fit(sizes.value_size)).then_some(tiles)
}

/// The row length of a tile in shared memory, in eights: padded, so that no two of eight rows meet in a bank.
pub(crate) const fn pitch(size: usize) -> usize {
    size / 8 + 1
}

/// Starts to copy `rows` rows from `first` on of the head that begins at `start` (in eights) to `base` in `tile`; from row `end` on, zeros.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(crate) fn fetch<E: Float>(
    tensor: &Tensor<Eight<E>>,
    start: usize,
    first: usize,
    end: usize,
    tile: &mut Shared<[Eight<E>]>,
    base: usize,
    #[comptime] rows: usize,
    #[comptime] size: usize,
) {
    let eights = comptime!(size / 8);
    let units = comptime!(PLANES * PLANE);
    let stride = tensor.stride(2) / 8;
    // Every unit copies as many: a tile has a multiple of 64 rows, and a row two eights or more.
    #[unroll]
    for step in 0..comptime!(rows * eights / units) {
        let place = UNIT_POS as usize + comptime!(step * units);
        let (row, column) = (place / eights, place % eights);
        let to = base + row * comptime!(pitch(size)) + column;
        let inside = first + row < end;
        let from = select(inside, start + (first + row) * stride + column, 0usize);
        // The count of what is copied is taken in 32 bits alone.
        let address_bytes = usize::size().comptime();
        if comptime!(address_bytes == 4) {
            let count = select(inside, 1usize, 0usize);
            copy_async_checked(&tensor[from..from + count], &mut tile[to..to + 1], 8u32);
        } else if inside {
            copy_async(&tensor[from..from + 1], &mut tile[to..to + 1], 8u32);
        } else {
            tile[to] = Eight::<E>::zeroed();
        }
    }
}

/// Ends a set of copies.
#[cube]
pub(crate) fn commit() {
    gpu_asm!("cp.async.commit_group;");
}

/// Waits for all copies, and for all units.
#[cube]
pub(crate) fn arrived() {
    gpu_asm!("cp.async.wait_group 0;");
    sync_cube();
}

/// Where a head begins, in eights.
#[cube]
pub(crate) fn start<E: Float>(tensor: &Tensor<Eight<E>>, batch: usize, head: usize) -> usize {
    (batch * tensor.stride(0) + head * tensor.stride(1)) / 8
}

/// `e^x`, as the card estimates it: weights are rounded to half precision.
#[cube]
pub(crate) fn exp(x: f32) -> f32 {
    let power: f32;
    let x = x * LOG2_E;
    gpu_asm!("ex2.approx.ftz.f32 {}, {};", out(_) power, in(_) x, options(pure, nomem));
    power
}

#[cube]
pub(crate) fn zeros(#[comptime] count: usize) -> Array<f32> {
    let mut sums = Array::<f32>::new(count);
    #[unroll]
    for n in 0..count {
        sums[n] = 0.0f32;
    }
    sums
}

/// Adds to sums `at ..` the product of the matrices in `a` from `a_at` on and in `b` from `b_at` on.
#[cube]
fn multiply(
    a: &Array<u32>,
    #[comptime] a_at: usize,
    b: &Array<u32>,
    #[comptime] b_at: usize,
    sums: &mut Array<f32>,
    #[comptime] at: usize,
    #[comptime] number: &str,
) {
    let (a0, a1) = (a[a_at], a[comptime!(a_at + 1)]);
    let (a2, a3) = (a[comptime!(a_at + 2)], a[comptime!(a_at + 3)]);
    let (b0, b1) = (b[b_at], b[comptime!(b_at + 1)]);
    let (s0, s1) = (sums[at], sums[comptime!(at + 1)]);
    let (s2, s3) = (sums[comptime!(at + 2)], sums[comptime!(at + 3)]);
    let found: Vector<f32, Const<4>>;
    gpu_asm!(
        "mma.sync.aligned.m16n8k16.row.col.f32.{number}.{number}.f32 {found}, ",
        "{{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}}}, {{{s0}, {s1}, {s2}, {s3}}};",
        found = out(_) found,
        a0 = in(_) a0, a1 = in(_) a1, a2 = in(_) a2, a3 = in(_) a3,
        b0 = in(_) b0, b1 = in(_) b1,
        s0 = in(_) s0, s1 = in(_) s1, s2 = in(_) s2, s3 = in(_) s3,
        options(pure, nomem),
    );
    #[unroll]
    for i in 0..4usize {
        sums[comptime!(at + i)] = found.extract(i);
    }
}

/// Four 8 x 8 matrices of a tile, into `to` from `at` on; the unit names the row of one of them.
#[cube]
fn load<E: Float>(
    tile: &Shared<[Eight<E>]>,
    row: usize,
    to: &mut Array<u32>,
    #[comptime] at: usize,
    #[comptime] transposed: bool,
) {
    let mma = MmaDefinition::<E, E, f32>::new(16usize, 8usize, 16usize);
    let row = &tile[row..row + 1];
    let found = mma.load_matrix::<Eight<E>, Const<2>>(row, MatrixIdent::A, 4usize, transposed);
    #[unroll]
    for i in 0..4usize {
        to[comptime!(at + i)] = u32::reinterpret(found[i]);
    }
}

/// The products of the rows of a plane in `a` (from `row` on) with the rows of the tile of `b` at `base`.
#[cube]
pub(crate) fn products<E: Float>(
    a: &Shared<[Eight<E>]>,
    row: usize,
    b: &Shared<[Eight<E>]>,
    base: usize,
    #[comptime] tiles: Tiles,
    #[comptime] size: usize,
) -> Array<f32> {
    let lane = UNIT_POS_PLANE as usize;
    let (bands, columns, pitch) = comptime!((tiles.bands, tiles.steps / 8, pitch(size)));
    let mut sums = zeros(comptime!(tiles.sums(tiles.steps)));
    let a_row = (row + lane % 16) * pitch + lane / 16;
    // Rows 0 .. 8 and 8 .. 16, each with columns 0 .. 8 and 8 .. 16.
    let b_row = base + (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2;
    let mut of_a = Array::<u32>::new(comptime!(4 * bands));
    let mut of_b = Array::<u32>::new(4usize);
    #[unroll]
    for k in 0..comptime!(size / 16) {
        #[unroll]
        for band in 0..bands {
            let at = a_row + comptime!(16 * band * pitch + 2 * k);
            load(a, at, &mut of_a, comptime!(4 * band), false);
        }
        #[unroll]
        for n in 0..comptime!(columns / 2) {
            let at = b_row + comptime!(16 * n * pitch + 2 * k);
            load(b, at, &mut of_b, 0usize, false);
            #[unroll]
            for i in 0..comptime!(2 * bands) {
                let (band, which) = comptime!((i % bands, i / bands));
                multiply(
                    &of_a,
                    comptime!(4 * band),
                    &of_b,
                    comptime!(2 * which),
                    &mut sums,
                    comptime!(4 * (band * columns + 2 * n + which)),
                    tiles.number,
                );
            }
        }
    }
    sums
}

/// Sums as matrices A: `4 (band steps / 16 + k)` and on are those of band `band` and columns `16k .. 16k + 16`.
#[cube]
pub(crate) fn pack(sums: &Array<f32>, #[comptime] tiles: Tiles) -> Array<u32> {
    let count = comptime!(tiles.sums(tiles.steps) / 2);
    let number = comptime!(tiles.number);
    let mut packed = Array::<u32>::new(count);
    #[unroll]
    for n in 0..count {
        let (first, second) = (sums[comptime!(2 * n)], sums[comptime!(2 * n + 1)]);
        let both: u32;
        gpu_asm!(
            "cvt.rn.{number}x2.f32 {both}, {second}, {first};",
            both = out(_) both, second = in(_) second, first = in(_) first,
            options(pure, nomem),
        );
        packed[n] = both;
    }
    packed
}

/// Adds `weights` times the tile at `base` to `sums`.
#[cube]
pub(crate) fn spread<E: Float>(
    weights: &Array<u32>,
    tile: &Shared<[Eight<E>]>,
    base: usize,
    sums: &mut Array<f32>,
    #[comptime] tiles: Tiles,
    #[comptime] size: usize,
) {
    let lane = UNIT_POS_PLANE as usize;
    let (bands, columns, pitch) = comptime!((tiles.bands, size / 8, pitch(size)));
    let row = base + lane % 16 * pitch + lane / 16;
    let mut of_b = Array::<u32>::new(4usize);
    #[unroll]
    for k in 0..comptime!(tiles.steps / 16) {
        #[unroll]
        for n in 0..comptime!(columns / 2) {
            let at = row + comptime!(16 * k * pitch + 2 * n);
            load(tile, at, &mut of_b, 0usize, true);
            #[unroll]
            for i in 0..comptime!(2 * bands) {
                let (band, which) = comptime!((i % bands, i / bands));
                multiply(
                    weights,
                    comptime!(4 * (band * tiles.steps / 16 + k)),
                    &of_b,
                    comptime!(2 * which),
                    sums,
                    comptime!(4 * (band * columns + 2 * n + which)),
                    tiles.number,
                );
            }
        }
    }
}

/// Before [`spread`], where something may be hidden: what has weight 0 is to add 0, also if it is not finite. Such numbers are taken out of
/// the tile; where their weight is not 0, they are added here. `slot` is a number of `flag` that no other purge of the same tile takes.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(crate) fn purge<E: Float>(
    weights: &Array<u32>,
    tile: &mut Shared<[Eight<E>]>,
    base: usize,
    sums: &mut Array<f32>,
    flag: &mut Shared<[u32]>,
    #[comptime] slot: usize,
    #[comptime] tiles: Tiles,
    #[comptime] size: usize,
) {
    let eights = comptime!(size / 8);
    let units = comptime!(PLANES * PLANE);
    let count = comptime!(tiles.steps * eights / units);
    if UNIT_POS == 0 {
        flag[slot] = 0u32;
    }
    sync_cube();
    for step in 0..count {
        let place = UNIT_POS as usize + step * units;
        let eight = tile[base + place / eights * comptime!(pitch(size)) + place % eights];
        #[unroll]
        for e in 0..8usize {
            if odd(f32::cast_from(eight.extract(e))) {
                flag[slot] = 1u32;
            }
        }
    }
    sync_cube();
    if flag[slot] == 1u32 {
        let mut kept = Array::<Eight<E>>::new(count);
        #[unroll]
        for step in 0..count {
            let place = UNIT_POS as usize + comptime!(step * units);
            kept[step] = tile[base + place / eights * comptime!(pitch(size)) + place % eights];
        }
        // 1 where a number is ∞ or NaN, then 1 where it is -∞ or NaN, then the finite ones.
        for pass in 0..3u32 {
            // The infinity that does not count.
            let bits = select(pass == 0, 0xff80_0000u32, 0x7f80_0000u32);
            #[unroll]
            for step in 0..count {
                let place = UNIT_POS as usize + comptime!(step * units);
                let mut eight = Eight::<E>::zeroed();
                #[unroll]
                for e in 0..8usize {
                    let number = f32::cast_from(kept[step].extract(e));
                    let (other, is_odd) = (u32::reinterpret(number) != bits, odd(number));
                    let counts = select(is_odd && other, 1.0f32, 0.0f32);
                    let finite = select(is_odd, 0.0f32, number);
                    eight.insert(e, E::cast_from(select(pass == 2, finite, counts)));
                }
                tile[base + place / eights * comptime!(pitch(size)) + place % eights] = eight;
            }
            sync_cube();
            if pass < 2 {
                let mut found = zeros(comptime!(tiles.sums(size)));
                spread::<E>(weights, &*tile, base, &mut found, tiles, size);
                let infinity = f32::reinterpret(0x7f80_0000u32 + pass * 0x8000_0000u32);
                #[unroll]
                for n in 0..comptime!(tiles.sums(size)) {
                    sums[n] += select(found[n] == 0.0f32, 0.0f32, infinity);
                }
                sync_cube();
            }
        }
    }
}

/// Whether a number is infinite or none.
#[cube]
fn odd(number: f32) -> bool {
    u32::reinterpret(number) & 0x7f80_0000u32 == 0x7f80_0000u32
}

/// Writes the `sums` of a plane: rows of a head from `first` on.
#[cube]
pub(crate) fn write<E: Float>(
    sums: &Array<f32>,
    tensor: &mut Tensor<Pair<E>>,
    batch: usize,
    head: usize,
    first: usize,
    #[comptime] tiles: Tiles,
    #[comptime] size: usize,
) {
    let lane = UNIT_POS_PLANE as usize;
    let start = (batch * tensor.stride(0) + head * tensor.stride(1)) / 2;
    #[unroll]
    for r in 0..comptime!(2 * tiles.bands) {
        let row = first + lane / 4 + comptime!(8 * r);
        if row < tensor.shape(2) {
            let to = start + row * (tensor.stride(2) / 2) + lane % 4;
            #[unroll]
            for n in 0..comptime!(size / 8) {
                let at = comptime!(4 * (r / 2 * size / 8 + n) + r % 2 * 2);
                let mut pair = Pair::<E>::zeroed();
                pair.insert(0usize, E::cast_from(sums[at]));
                pair.insert(1usize, E::cast_from(sums[comptime!(at + 1)]));
                tensor[to + comptime!(4 * n)] = pair;
            }
        }
    }
}

/// What is known of a head.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) queries: usize,
    /// Keys that are not padding.
    pub(crate) length: usize,
    /// Where its bias begins.
    pub(crate) bias_start: usize,
    pub(crate) band: Band,
}

/// The first and the last column that each row of a unit sees.
#[derive(CubeType)]
pub(crate) struct Limits {
    /// The first row of the plane.
    first: usize,
    low: Array<i32>,
    high: Array<i32>,
    /// Whether rows are keys and columns queries, or the other way round.
    #[cube(comptime)]
    rows_are_keys: bool,
}

/// The limits of a plane whose rows begin at `first`.
#[cube]
pub(crate) fn limits(
    first: usize,
    head: &Head,
    #[comptime] tiles: Tiles,
    #[comptime] rows_are_keys: bool,
) -> Limits {
    let lane = UNIT_POS_PLANE as usize;
    let rows = comptime!(2 * tiles.bands);
    let (mut low, mut high) = (Array::<i32>::new(rows), Array::<i32>::new(rows));
    let band = &head.band;
    #[unroll]
    for r in 0..rows {
        let row = (first + lane / 4 + comptime!(8 * r)) as i32;
        if comptime!(rows_are_keys) {
            low[r] = row - band.shift - band.right;
            let last = min(row - band.shift + band.left, head.queries as i32 - 1);
            high[r] = select(row < head.length as i32, last, -1i32);
        } else {
            low[r] = row + band.shift - band.left;
            high[r] = min(row + band.shift + band.right, head.length as i32 - 1);
        }
    }
    Limits {
        first,
        low,
        high,
        rows_are_keys,
    }
}

/// Whether something is hidden in a tile of `queries` queries from `first_query` on and `keys` keys from `first_key` on.
#[cube]
pub(crate) fn edged(
    first_query: usize,
    #[comptime] queries: usize,
    first_key: usize,
    #[comptime] keys: usize,
    head: &Head,
    #[comptime] form: Form,
    #[comptime] rows_are_keys: bool,
) -> bool {
    // The distances of the last key from the first query, and of the first key from the last query.
    let from = first_key as i32 - first_query as i32 - head.band.shift;
    let most = from + comptime!(keys as i32 - 1);
    let least = from - comptime!(queries as i32 - 1);
    let mut edge = most > head.band.right || least < 0 - head.band.left;
    edge = edge || first_key + keys > head.length;
    if comptime!(rows_are_keys) {
        edge = edge || first_query + queries > head.queries;
    }
    edge || comptime!(form.biased)
}

/// A query and a key, and whether it sees that.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) query: usize,
    pub(crate) key: usize,
    pub(crate) seen: bool,
}

/// The place of row `r` of a unit and of column `column + 2t` (`column` is `8n` or `8n + 1`) of those from `first_column` on.
#[cube]
pub(crate) fn place(
    limits: &Limits,
    first_column: usize,
    #[comptime] r: usize,
    #[comptime] column: usize,
) -> Place {
    let lane = UNIT_POS_PLANE as usize;
    let row = limits.first + lane / 4 + comptime!(8 * r);
    let column = first_column + lane % 4 * 2 + column;
    let seen = column as i32 >= limits.low[r] && column as i32 <= limits.high[r];
    if comptime!(limits.rows_are_keys) {
        Place {
            query: column,
            key: row,
            seen,
        }
    } else {
        Place {
            query: row,
            key: column,
            seen,
        }
    }
}

/// The score of a product; with `careful`, [`LOWEST`] where it is hidden.
#[cube]
pub(crate) fn score(
    product: f32,
    place: &Place,
    head: &Head,
    bias: &Tensor<f32>,
    #[comptime] form: Form,
    #[comptime] careful: bool,
) -> f32 {
    let mut score = bent(product, &head.band, form);
    if comptime!(careful) {
        if comptime!(form.biased) {
            score = biased(
                score,
                place.query,
                place.key,
                place.seen,
                bias,
                head.bias_start,
            );
        }
        score = select(place.seen, score, LOWEST);
    }
    score
}
