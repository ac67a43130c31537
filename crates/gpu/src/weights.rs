//! The weights of some queries, for who wants to see them.

use std::ops::Range;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::{
    Inputs, Options, SIDE, Sizes, addresses, elem,
    exponential::exponential,
    tile::{Band, Form, HIDDEN, products, score, start},
};

/// The weights `[batch, heads, rows, keys]` in `f32` of the queries `rows`, from the `stats` of [`forward`](crate::forward()); the values
/// are not read.
///
/// # Panics
/// As the forward pass; if there are no `rows`, or there are rows beyond the queries.
pub fn weights(
    inputs: Inputs,
    options: &Options,
    stats: CubeTensor,
    rows: Range<usize>,
) -> CubeTensor {
    let sizes = Sizes::of(&inputs);
    assert!(
        !rows.is_empty() && rows.end <= sizes.queries,
        "the rows {rows:?} of {} queries",
        sizes.queries
    );
    let shape = [sizes.batch, sizes.heads, rows.len(), sizes.keys];
    let weights = inputs.empty(shape, DType::F32);
    let form = Form::new(&inputs, &sizes, options);
    let lengths = options.lengths_on(&inputs, &sizes);
    let bias = inputs.bound_bias();
    let Inputs { query, key, .. } = inputs;
    let (client, dtype) = (query.client.clone(), elem(&query));
    weights_kernel::launch(
        &client,
        form.groups(rows.len(), sizes.heads, sizes.batch),
        CubeDim::new_2d(SIDE as u32, SIDE as u32),
        addresses([&query, &key, &bias, &stats, &weights]),
        query.into_tensor_arg(),
        key.into_tensor_arg(),
        bias.into_tensor_arg(),
        lengths.into_tensor_arg(),
        stats.into_tensor_arg(),
        weights.clone().into_tensor_arg(),
        rows.start as u32,
        options.band(),
        form,
        dtype,
    );
    weights
}

#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
fn weights_kernel<E: Float>(
    query: &Tensor<E>,
    key: &Tensor<E>,
    bias: &Tensor<f32>,
    lengths: &Tensor<u32>,
    stats: &Tensor<f32>,
    weights: &mut Tensor<f32>,
    first_row: u32,
    band: Band,
    #[comptime] form: Form,
    #[define(E)] _dtype: ElemType,
) {
    let r = comptime!(form.r);
    let tile = comptime!(SIDE * r);
    let (x, y) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let first = CUBE_POS_X as usize * tile;
    let first_query = first + first_row as usize;
    let (head, batch) = (CUBE_POS_Y as usize, CUBE_POS_Z as usize);
    let key_head = head / (query.shape(1) / key.shape(1));
    let (query_start, key_start) = (start(query, batch, head), start(key, batch, key_head));
    let bias_start = start(bias, batch, head);
    let (queries, length) = (query.shape(2), lengths[batch] as usize);
    let (rows, keys) = (weights.shape(2), weights.shape(3));
    let of_head = batch * query.shape(1) + head;

    let mut panels = Shared::<[f32]>::new_slice(comptime!(2 * SIDE * (tile + 1)));
    for step in 0..keys.div_ceil(tile) {
        let first_key = step * tile;
        let scores = products::<E>(
            query,
            query_start,
            first_query,
            key,
            key_start,
            first_key,
            &mut panels,
            r,
            form.size,
        );
        #[unroll]
        for i in 0..r {
            let row = y + comptime!(i * SIDE);
            let place = (of_head * queries + min(first_query + row, queries - 1)) * 2;
            let (largest, factor) = (stats[place], 1.0f32 / stats[place + 1]);
            #[unroll]
            for j in 0..r {
                let column = x + comptime!(j * SIDE);
                let score = score(
                    scores[comptime!(i * r + j)],
                    first_query + row,
                    first_key + column,
                    queries,
                    length,
                    &band,
                    bias,
                    bias_start,
                    form,
                );
                let weight = exponential(score - largest) * factor;
                if first + row < rows && first_key + column < keys {
                    let to = (of_head * rows + first + row) * keys + first_key + column;
                    weights[to] = select(score <= HIDDEN, 0.0f32, weight);
                }
            }
        }
    }
}
