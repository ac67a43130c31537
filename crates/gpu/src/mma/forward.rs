//! The forward pass on tensor cores, in the order of [FlashAttention-2](https://arxiv.org/abs/2307.08691): a plane keeps the softmax and
//! the sums of its queries in registers; while it computes with a tile of keys, that of values is on its way, and the other way round.

use cubecl::prelude::*;

use super::{
    Eight, Head, Limits, PLANE, Pair, Tiles, arrived, commit, edged, exp, fetch, limits, pack,
    pitch, place, products, purge, score, spread, start, write, zeros,
};
use crate::tile::{Band, Form, HIDDEN, LOWEST};

#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub(crate) fn forward_kernel<E: Float>(
    query: &Tensor<Eight<E>>,
    key: &Tensor<Eight<E>>,
    value: &Tensor<Eight<E>>,
    bias: &Tensor<f32>,
    lengths: &Tensor<u32>,
    context: &mut Tensor<Pair<E>>,
    stats: &mut Tensor<f32>,
    band: Band,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
    #[define(E)] _dtype: ElemType,
) {
    let (bands, steps) = comptime!((tiles.bands, tiles.steps));
    let lane = UNIT_POS_PLANE as usize;
    // The last queries come first: under a causal mask they see most.
    let (queries, rows) = (query.shape(2), comptime!(tiles.rows()));
    let first_query = ((queries - 1) / rows - CUBE_POS_X as usize) * rows;
    let row = UNIT_POS as usize / PLANE * comptime!(16 * bands);
    let plane_query = first_query + row;
    let (at_head, batch) = (CUBE_POS_Y as usize, CUBE_POS_Z as usize);
    let key_head = at_head / (query.shape(1) / key.shape(1));
    let (key_start, value_start) = (start(key, batch, key_head), start(value, batch, key_head));
    let length = lengths[batch] as usize;
    let head = Head {
        queries,
        length,
        bias_start: crate::tile::start(bias, batch, at_head),
        band,
    };

    let of_queries = comptime!(rows * pitch(form.size));
    let mut query_tile = Shared::<[Eight<E>]>::new_aligned_slice(of_queries, 16usize);
    let mut key_tile =
        Shared::<[Eight<E>]>::new_aligned_slice(comptime!(steps * pitch(form.size)), 16usize);
    let mut value_tile =
        Shared::<[Eight<E>]>::new_aligned_slice(comptime!(steps * pitch(form.value_size)), 16usize);

    let mut flag = Shared::<[u32]>::new_slice(1usize);

    let limits = limits(plane_query, &head, tiles, false);
    let mut largest = Array::<f32>::new(comptime!(2 * bands));
    let mut total = Array::<f32>::new(comptime!(2 * bands));
    #[unroll]
    for r in 0..2 * bands {
        largest[r] = LOWEST;
        total[r] = 0.0f32;
    }
    let mut sums = zeros(comptime!(tiles.sums(form.value_size)));

    // The keys that any query of the tile sees.
    let last_query = min(first_query + rows, queries) as i32 - 1;
    let end = min(
        last_query + head.band.shift + head.band.right + 1,
        length as i32,
    );
    let first = max(first_query as i32 + head.band.shift - head.band.left, 0);
    let mut at = first / steps as i32 * steps as i32;
    fetch(
        query,
        start(query, batch, at_head),
        first_query,
        queries,
        &mut query_tile,
        0usize,
        rows,
        form.size,
    );
    if at < end {
        fetch(
            key,
            key_start,
            at as usize,
            length,
            &mut key_tile,
            0usize,
            steps,
            form.size,
        );
    }
    commit();
    while at < end {
        let first_key = at as usize;
        // The keys are here, and nobody needs the values before.
        arrived();
        fetch(
            value,
            value_start,
            first_key,
            length,
            &mut value_tile,
            0usize,
            steps,
            form.value_size,
        );
        commit();
        let mut scores = products(&query_tile, row, &key_tile, 0usize, tiles, form.size);
        let edge = edged(first_query, rows, first_key, steps, &head, form, false);
        // The values are here, and nobody needs these keys any more.
        arrived();
        if at + (steps as i32) < end {
            fetch(
                key,
                key_start,
                first_key + steps,
                length,
                &mut key_tile,
                0usize,
                steps,
                form.size,
            );
        }
        commit();
        if edge {
            bend(
                &mut scores,
                first_key,
                &limits,
                &head,
                bias,
                form,
                tiles,
                true,
            );
        } else {
            bend(
                &mut scores,
                first_key,
                &limits,
                &head,
                bias,
                form,
                tiles,
                false,
            );
        }
        #[unroll]
        for r in 0..comptime!(2 * bands) {
            let mut most = largest[r];
            #[unroll]
            for n in 0..comptime!(steps / 4) {
                most = max(most, scores[comptime!(of_row(r, n, steps))]);
            }
            // The four units that share a row.
            most = max(most, plane_shuffle_xor(most, 1u32));
            most = max(most, plane_shuffle_xor(most, 2u32));
            let shrink = exp(largest[r] - most);
            largest[r] = most;
            // So that hidden keys weigh 0 where all are.
            let base = select(most <= HIDDEN, 0.0f32, most);
            let mut sum = total[r] * shrink;
            #[unroll]
            for n in 0..comptime!(steps / 4) {
                let weight = exp(scores[comptime!(of_row(r, n, steps))] - base);
                sum += weight;
                scores[comptime!(of_row(r, n, steps))] = weight;
            }
            total[r] = sum;
            #[unroll]
            for n in 0..comptime!(form.value_size / 4) {
                sums[comptime!(of_row(r, n, form.value_size))] *= shrink;
            }
        }
        let weights = pack(&scores, tiles);
        if edge {
            purge(
                &weights,
                &mut value_tile,
                0usize,
                &mut sums,
                &mut flag,
                0usize,
                tiles,
                form.value_size,
            );
        }
        spread(
            &weights,
            &value_tile,
            0usize,
            &mut sums,
            tiles,
            form.value_size,
        );
        at += steps as i32;
    }

    #[unroll]
    for r in 0..comptime!(2 * bands) {
        let mut sum = total[r];
        sum += plane_shuffle_xor(sum, 1u32);
        sum += plane_shuffle_xor(sum, 2u32);
        let empty = sum == 0.0f32;
        let factor = select(empty, 0.0f32, 1.0f32 / sum);
        let at = plane_query + lane / 4 + comptime!(8 * r);
        let unit_of_row = lane % 4;
        if unit_of_row == 0 && at < queries {
            let place = ((batch * query.shape(1) + at_head) * queries + at) * 2;
            stats[place] = select(empty, LOWEST, largest[r]);
            stats[place + 1] = sum;
        }
        #[unroll]
        for n in 0..comptime!(form.value_size / 4) {
            sums[comptime!(of_row(r, n, form.value_size))] *= factor;
        }
    }
    write(
        &sums,
        context,
        batch,
        at_head,
        plane_query,
        tiles,
        form.value_size,
    );
}

/// Number `n` of row `r` of a unit among its sums.
const fn of_row(r: usize, n: usize, columns: usize) -> usize {
    4 * (r / 2 * columns / 8 + n / 2) + r % 2 * 2 + n % 2
}

/// Makes scores of products.
#[cube]
#[allow(clippy::too_many_arguments)]
fn bend(
    products: &mut Array<f32>,
    first_key: usize,
    limits: &Limits,
    head: &Head,
    bias: &Tensor<f32>,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
    #[comptime] careful: bool,
) {
    let count = comptime!(tiles.steps / 4);
    #[unroll]
    for i in 0..comptime!(2 * tiles.bands * count) {
        let (r, n) = comptime!((i / count, i % count));
        let at = comptime!(of_row(r, n, tiles.steps));
        let column = comptime!(n / 2 * 8 + n % 2);
        let place = place(limits, first_key, r, column);
        products[at] = score(products[at], &place, head, bias, form, careful);
    }
}
