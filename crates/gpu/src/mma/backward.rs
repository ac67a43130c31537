//! The backward pass on tensor cores: two kernels, which compute the weights once more, one for the gradients of a tile of queries, one for
//! those of a tile of keys and values. What they pass over has two places in shared memory, so that the next tile is on its way.

use cubecl::prelude::*;

use super::{
    Eight, Head, Limits, PLANE, Pair, Place, Tiles, arrived, commit, edged, exp, fetch, limits,
    pack, pitch, place, products, purge, score, spread, start, write, zeros,
};
use crate::tile::{Band, Form, HIDDEN, slope};

#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub(crate) fn query_kernel<E: Float>(
    query: &Tensor<Eight<E>>,
    key: &Tensor<Eight<E>>,
    value: &Tensor<Eight<E>>,
    bias: &Tensor<f32>,
    lengths: &Tensor<u32>,
    gradient: &Tensor<Eight<E>>,
    stats: &Tensor<f32>,
    delta: &Tensor<f32>,
    query_gradient: &mut Tensor<Pair<E>>,
    band: Band,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
    #[define(E)] _dtype: ElemType,
) {
    let (bands, steps) = comptime!((tiles.bands, tiles.steps));
    let lane = UNIT_POS_PLANE as usize;
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

    let (of_keys, of_values) =
        comptime!((steps * pitch(form.size), steps * pitch(form.value_size)));
    let mut query_tile =
        Shared::<[Eight<E>]>::new_aligned_slice(comptime!(rows * pitch(form.size)), 16usize);
    let mut gradient_tile =
        Shared::<[Eight<E>]>::new_aligned_slice(comptime!(rows * pitch(form.value_size)), 16usize);
    let mut key_tile = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(2 * of_keys), 16usize);
    let mut value_tile = Shared::<[Eight<E>]>::new_aligned_slice(comptime!(2 * of_values), 16usize);

    let mut flag = Shared::<[u32]>::new_slice(1usize);

    let limits = limits(plane_query, &head, tiles, false);
    let mut of_rows = Sequence::<Row>::new();
    #[unroll]
    for i in 0..comptime!(2 * bands) {
        let at = plane_query + lane / 4 + comptime!(8 * i);
        let place = (batch * query.shape(1) + at_head) * queries + min(at, queries - 1);
        of_rows.push(row_of(stats, delta, place));
    }
    let mut sums = zeros(comptime!(tiles.sums(form.size)));

    let last_query = min(first_query + rows, queries) as i32 - 1;
    let end = min(
        last_query + head.band.shift + head.band.right + 1,
        length as i32,
    );
    let mut at =
        max(first_query as i32 + head.band.shift - head.band.left, 0) / steps as i32 * steps as i32;
    fetch_both(
        query,
        start(query, batch, at_head),
        gradient,
        start(gradient, batch, at_head),
        first_query,
        queries,
        &mut query_tile,
        &mut gradient_tile,
        0usize,
        rows,
        form,
    );
    if at < end {
        let first_key = at as usize;
        fetch_both(
            key,
            key_start,
            value,
            value_start,
            first_key,
            length,
            &mut key_tile,
            &mut value_tile,
            0usize,
            steps,
            form,
        );
    }
    commit();
    let mut side = 0usize;
    while at < end {
        let first_key = at as usize;
        let (key_base, value_base) = (side * of_keys, side * of_values);
        side = 1 - side;
        // The tiles are here, and nobody needs those before.
        arrived();
        if at + (steps as i32) < end {
            fetch_both(
                key,
                key_start,
                value,
                value_start,
                first_key + steps,
                length,
                &mut key_tile,
                &mut value_tile,
                side,
                steps,
                form,
            );
        }
        commit();
        let mut scores = products(&query_tile, row, &key_tile, key_base, tiles, form.size);
        let of_weights = products(
            &gradient_tile,
            row,
            &value_tile,
            value_base,
            tiles,
            form.value_size,
        );
        let edge = edged(first_query, rows, first_key, steps, &head, form, false);
        if edge {
            of_queries(
                &mut scores,
                &of_weights,
                &of_rows,
                first_key,
                &limits,
                &head,
                bias,
                form,
                tiles,
                true,
            );
        } else {
            of_queries(
                &mut scores,
                &of_weights,
                &of_rows,
                first_key,
                &limits,
                &head,
                bias,
                form,
                tiles,
                false,
            );
        }
        let of_products = pack(&scores, tiles);
        if edge {
            purge(
                &of_products,
                &mut key_tile,
                key_base,
                &mut sums,
                &mut flag,
                0usize,
                tiles,
                form.size,
            );
        }
        spread(
            &of_products,
            &key_tile,
            key_base,
            &mut sums,
            tiles,
            form.size,
        );
        at += steps as i32;
    }
    write(
        &sums,
        query_gradient,
        batch,
        at_head,
        plane_query,
        tiles,
        form.size,
    );
}

#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub(crate) fn key_kernel<E: Float>(
    query: &Tensor<Eight<E>>,
    key: &Tensor<Eight<E>>,
    value: &Tensor<Eight<E>>,
    bias: &Tensor<f32>,
    lengths: &Tensor<u32>,
    gradient: &Tensor<Eight<E>>,
    stats: &Tensor<f32>,
    delta: &Tensor<f32>,
    key_gradient: &mut Tensor<Pair<E>>,
    value_gradient: &mut Tensor<Pair<E>>,
    band: Band,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
    #[define(E)] _dtype: ElemType,
) {
    let (bands, steps) = comptime!((tiles.bands, tiles.steps));
    let rows = comptime!(tiles.rows());
    let first_key = CUBE_POS_X as usize * rows;
    let row = UNIT_POS as usize / PLANE * comptime!(16 * bands);
    let plane_key = first_key + row;
    let (key_head, batch) = (CUBE_POS_Y as usize, CUBE_POS_Z as usize);
    let (queries, length) = (query.shape(2), lengths[batch] as usize);
    let shared_by = query.shape(1) / key.shape(1);
    let mut head = Head {
        queries,
        length,
        bias_start: 0usize,
        band,
    };

    let (of_queries, of_gradients) =
        comptime!((steps * pitch(form.size), steps * pitch(form.value_size)));
    let mut key_tile =
        Shared::<[Eight<E>]>::new_aligned_slice(comptime!(rows * pitch(form.size)), 16usize);
    let mut value_tile =
        Shared::<[Eight<E>]>::new_aligned_slice(comptime!(rows * pitch(form.value_size)), 16usize);
    let mut query_tile =
        Shared::<[Eight<E>]>::new_aligned_slice(comptime!(2 * of_queries), 16usize);
    let mut gradient_tile =
        Shared::<[Eight<E>]>::new_aligned_slice(comptime!(2 * of_gradients), 16usize);
    // Of each query of a tile: what `Row` has.
    let mut of_columns = Shared::<[f32]>::new_slice(comptime!(3 * steps));

    let mut flag = Shared::<[u32]>::new_slice(2usize);

    let limits = limits(plane_key, &head, tiles, true);
    let mut key_sums = zeros(comptime!(tiles.sums(form.size)));
    let mut value_sums = zeros(comptime!(tiles.sums(form.value_size)));

    // The queries that see any key of the tile.
    let last_key = min(first_key + rows, length) as i32 - 1;
    let mut end = min(
        last_key + head.band.left - head.band.shift + 1,
        queries as i32,
    );
    if first_key >= length {
        end = 0i32;
    }
    let begin =
        max(first_key as i32 - head.band.right - head.band.shift, 0) / steps as i32 * steps as i32;
    fetch_both(
        key,
        start(key, batch, key_head),
        value,
        start(value, batch, key_head),
        first_key,
        length,
        &mut key_tile,
        &mut value_tile,
        0usize,
        rows,
        form,
    );
    for at_head in key_head * shared_by..(key_head + 1) * shared_by {
        let (query_start, gradient_start) = (
            start(query, batch, at_head),
            start(gradient, batch, at_head),
        );
        let row_start = (batch * query.shape(1) + at_head) * queries;
        head.bias_start = crate::tile::start(bias, batch, at_head);
        let mut at = begin;
        // Nobody needs the tiles of the head before.
        sync_cube();
        if at < end {
            fetch_both(
                query,
                query_start,
                gradient,
                gradient_start,
                at as usize,
                queries,
                &mut query_tile,
                &mut gradient_tile,
                0usize,
                steps,
                form,
            );
        }
        commit();
        let mut side = 0usize;
        while at < end {
            let first_query = at as usize;
            let (query_base, gradient_base) = (side * of_queries, side * of_gradients);
            side = 1 - side;
            // The tiles are here, and nobody needs those before.
            arrived();
            if at + (steps as i32) < end {
                fetch_both(
                    query,
                    query_start,
                    gradient,
                    gradient_start,
                    first_query + steps,
                    queries,
                    &mut query_tile,
                    &mut gradient_tile,
                    side,
                    steps,
                    form,
                );
            }
            commit();
            let unit = UNIT_POS as usize;
            if unit < steps {
                let place = row_start + min(first_query + unit, queries - 1);
                let found = row_of(stats, delta, place);
                of_columns[unit] = found.largest;
                of_columns[unit + steps] = found.factor;
                of_columns[unit + comptime!(2 * steps)] = found.delta;
            }
            let mut scores = products(&key_tile, row, &query_tile, query_base, tiles, form.size);
            let mut of_weights = products(
                &value_tile,
                row,
                &gradient_tile,
                gradient_base,
                tiles,
                form.value_size,
            );
            let edge = edged(first_query, steps, first_key, rows, &head, form, true);
            sync_cube();
            if edge {
                of_keys(
                    &mut scores,
                    &mut of_weights,
                    &of_columns,
                    first_query,
                    &limits,
                    &head,
                    bias,
                    form,
                    tiles,
                    true,
                );
            } else {
                of_keys(
                    &mut scores,
                    &mut of_weights,
                    &of_columns,
                    first_query,
                    &limits,
                    &head,
                    bias,
                    form,
                    tiles,
                    false,
                );
            }
            let (weights, of_products) = (pack(&scores, tiles), pack(&of_weights, tiles));
            if edge {
                purge(
                    &weights,
                    &mut gradient_tile,
                    gradient_base,
                    &mut value_sums,
                    &mut flag,
                    0usize,
                    tiles,
                    form.value_size,
                );
                purge(
                    &of_products,
                    &mut query_tile,
                    query_base,
                    &mut key_sums,
                    &mut flag,
                    1usize,
                    tiles,
                    form.size,
                );
            }
            spread(
                &weights,
                &gradient_tile,
                gradient_base,
                &mut value_sums,
                tiles,
                form.value_size,
            );
            spread(
                &of_products,
                &query_tile,
                query_base,
                &mut key_sums,
                tiles,
                form.size,
            );
            at += steps as i32;
        }
    }
    write(
        &key_sums,
        key_gradient,
        batch,
        key_head,
        plane_key,
        tiles,
        form.size,
    );
    write(
        &value_sums,
        value_gradient,
        batch,
        key_head,
        plane_key,
        tiles,
        form.value_size,
    );
}

/// [`fetch`] of rows that go together, queries and gradients of the context or keys and values, to place `side` of their tiles.
#[cube]
#[allow(clippy::too_many_arguments)]
fn fetch_both<E: Float>(
    one: &Tensor<Eight<E>>,
    one_start: usize,
    other: &Tensor<Eight<E>>,
    other_start: usize,
    first: usize,
    end: usize,
    one_tile: &mut Shared<[Eight<E>]>,
    other_tile: &mut Shared<[Eight<E>]>,
    side: usize,
    #[comptime] rows: usize,
    #[comptime] form: Form,
) {
    fetch(
        one,
        one_start,
        first,
        end,
        one_tile,
        side * comptime!(rows * pitch(form.size)),
        rows,
        form.size,
    );
    fetch(
        other,
        other_start,
        first,
        end,
        other_tile,
        side * comptime!(rows * pitch(form.value_size)),
        rows,
        form.value_size,
    );
}

/// What the backward pass knows of a query: a weight is `factor · exp(score - largest)`.
#[derive(CubeType, Clone, Copy)]
struct Row {
    largest: f32,
    factor: f32,
    delta: f32,
}

/// The row `place`; one that sees nothing has the factor 0.
#[cube]
fn row_of(stats: &Tensor<f32>, delta: &Tensor<f32>, place: usize) -> Row {
    let (largest, total) = (stats[place * 2], stats[place * 2 + 1]);
    Row {
        largest: select(largest <= HIDDEN, 0.0f32, largest),
        factor: select(total == 0.0f32, 0.0f32, 1.0f32 / total),
        delta: delta[place],
    }
}

/// The weight of a key, and the gradient of its product with the query, from the gradient of the weight.
#[cube]
#[allow(clippy::too_many_arguments)]
fn weigh(
    product: f32,
    of_weight: f32,
    row: &Row,
    place: &Place,
    head: &Head,
    bias: &Tensor<f32>,
    #[comptime] form: Form,
    #[comptime] careful: bool,
) -> (f32, f32) {
    let score = score(product, place, head, bias, form, careful);
    let mut weight = exp(score - row.largest) * row.factor;
    let mut of_product = weight * (of_weight - row.delta) * slope(product, &head.band, form);
    if comptime!(careful) {
        let hidden = score <= HIDDEN;
        weight = select(hidden, 0.0f32, weight);
        of_product = select(hidden, 0.0f32, of_product);
    }
    (weight, of_product)
}

/// Puts the gradients of the products in their place; rows are queries.
#[cube]
#[allow(clippy::too_many_arguments)]
fn of_queries(
    products: &mut Array<f32>,
    of_weights: &Array<f32>,
    of_rows: &Sequence<Row>,
    first_key: usize,
    limits: &Limits,
    head: &Head,
    bias: &Tensor<f32>,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
    #[comptime] careful: bool,
) {
    let columns = comptime!(tiles.steps / 8);
    #[unroll]
    for n in 0..comptime!(tiles.sums(tiles.steps)) {
        let r = comptime!(n / 4 / columns * 2 + n % 4 / 2);
        let column = comptime!(n / 4 % columns * 8 + n % 2);
        let place = place(limits, first_key, r, column);
        let (_, of_product) = weigh(
            products[n],
            of_weights[n],
            &of_rows[r],
            &place,
            head,
            bias,
            form,
            careful,
        );
        products[n] = of_product;
    }
}

/// Puts the weights in the place of the products, and the gradients of the products in that of the gradients of the weights; rows are
/// keys.
#[cube]
#[allow(clippy::too_many_arguments)]
fn of_keys(
    products: &mut Array<f32>,
    of_weights: &mut Array<f32>,
    of_columns: &Shared<[f32]>,
    first_query: usize,
    limits: &Limits,
    head: &Head,
    bias: &Tensor<f32>,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
    #[comptime] careful: bool,
) {
    let lane = UNIT_POS_PLANE as usize;
    let (columns, steps) = comptime!((tiles.steps / 8, tiles.steps));
    #[unroll]
    for i in 0..comptime!(2 * columns) {
        let column = comptime!(i / 2 * 8 + i % 2);
        let at = lane % 4 * 2 + column;
        let row = Row {
            largest: of_columns[at],
            factor: of_columns[at + steps],
            delta: of_columns[at + comptime!(2 * steps)],
        };
        #[unroll]
        for r in 0..comptime!(2 * tiles.bands) {
            let n = comptime!(4 * (r / 2 * columns + i / 2) + r % 2 * 2 + i % 2);
            let place = place(limits, first_query, r, column);
            let (weight, of_product) = weigh(
                products[n],
                of_weights[n],
                &row,
                &place,
                head,
                bias,
                form,
                careful,
            );
            products[n] = weight;
            of_weights[n] = of_product;
        }
    }
}
