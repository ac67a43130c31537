//! The backward pass, from the `stats` of the forward pass:
//! `P = exp(S - m) / Σ`, `dV = Pᵀ dO`, `dS = P (dO Vᵀ - δ)` with `δ = Σ dO · O`, `dQ = dS K`, `dK = dSᵀ Q`.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::{
    Forward, Inputs, Options, SIDE, Sizes, addresses, elem,
    exponential::exponential,
    mma,
    tile::{BLOCK, Band, Form, HIDDEN, products, score, slope, spread, start, write},
};

/// What [`backward`] returns, in the types of the inputs.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// `[batch, heads, queries, size]`
    pub query: CubeTensor,
    /// `[batch, key heads, keys, size]`
    pub key: CubeTensor,
    /// `[batch, key heads, keys, value size]`
    pub value: CubeTensor,
    /// `[batch, heads, queries, keys]` in `f32`, if it was asked for: that of a bias before it is summed where the bias is broadcast.
    pub bias: Option<CubeTensor>,
}

/// The gradients of [`forward`](crate::forward()) for its inputs, from `forward`, what it returned, and the `gradient` of the context.
///
/// # Panics
/// As the forward pass.
pub fn backward(
    inputs: Inputs,
    options: &Options,
    forward: &Forward,
    gradient: CubeTensor,
    wants_bias: bool,
) -> Gradients {
    let sizes = Sizes::of(&inputs);
    let Sizes {
        batch,
        heads,
        queries,
        ..
    } = sizes;
    let number = inputs.query.dtype;
    let of_keys = |size| [batch, sizes.key_heads, sizes.keys, size];
    let found = Gradients {
        query: inputs.empty([batch, heads, queries, sizes.size], number),
        key: inputs.empty(of_keys(sizes.size), number),
        value: inputs.empty(of_keys(sizes.value_size), number),
        bias: wants_bias.then(|| inputs.empty([batch, heads, queries, sizes.keys], DType::F32)),
    };
    let form = Form::new(&inputs, &sizes, options);
    // What each score contributes to a bias is written by the other kernel.
    let tiles = mma::tiles(&inputs, Some(&gradient), &sizes).filter(|_| !wants_bias);
    let lengths = options.lengths_on(&inputs, &sizes);
    let bias = inputs.bound_bias();
    let delta = inputs.empty([batch, heads, queries, 1], DType::F32);
    let written = match &found.bias {
        Some(bias) => bias.clone(),
        None => inputs.empty([1; 4], DType::F32),
    };
    let Inputs {
        query, key, value, ..
    } = inputs;
    let (client, dtype) = (query.client.clone(), elem(&query));
    let units = CubeDim::new_2d(SIDE as u32, SIDE as u32);
    let addresses = addresses([
        &query,
        &key,
        &value,
        &bias,
        &forward.context,
        &gradient,
        &written,
        &found.query,
        &found.key,
        &found.value,
    ]);
    delta_kernel::launch(
        &client,
        CubeCount::Static(
            queries.div_ceil(SIDE * SIDE) as u32,
            heads as u32,
            batch as u32,
        ),
        CubeDim::new_1d((SIDE * SIDE) as u32),
        addresses,
        forward.context.clone().into_tensor_arg(),
        gradient.clone().into_tensor_arg(),
        delta.clone().into_tensor_arg(),
        dtype,
    );
    if let Some(tiles) = tiles {
        mma::query_kernel::launch(
            &client,
            tiles.groups(queries, heads, batch),
            tiles.units(),
            addresses,
            query.clone().into_tensor_arg(),
            key.clone().into_tensor_arg(),
            value.clone().into_tensor_arg(),
            bias.clone().into_tensor_arg(),
            lengths.clone().into_tensor_arg(),
            gradient.clone().into_tensor_arg(),
            forward.stats.clone().into_tensor_arg(),
            delta.clone().into_tensor_arg(),
            found.query.clone().into_tensor_arg(),
            options.band(),
            form,
            tiles,
            dtype,
        );
        mma::key_kernel::launch(
            &client,
            tiles.groups(sizes.keys, sizes.key_heads, batch),
            tiles.units(),
            addresses,
            query.into_tensor_arg(),
            key.into_tensor_arg(),
            value.into_tensor_arg(),
            bias.into_tensor_arg(),
            lengths.into_tensor_arg(),
            gradient.into_tensor_arg(),
            forward.stats.clone().into_tensor_arg(),
            delta.into_tensor_arg(),
            found.key.clone().into_tensor_arg(),
            found.value.clone().into_tensor_arg(),
            options.band(),
            form,
            tiles,
            dtype,
        );
        return found;
    }
    query_kernel::launch(
        &client,
        form.groups(queries, heads, batch),
        units,
        addresses,
        query.clone().into_tensor_arg(),
        key.clone().into_tensor_arg(),
        value.clone().into_tensor_arg(),
        bias.clone().into_tensor_arg(),
        lengths.clone().into_tensor_arg(),
        gradient.clone().into_tensor_arg(),
        forward.stats.clone().into_tensor_arg(),
        delta.clone().into_tensor_arg(),
        found.query.clone().into_tensor_arg(),
        written.into_tensor_arg(),
        options.band(),
        Form {
            written: wants_bias,
            ..form
        },
        dtype,
    );
    key_kernel::launch(
        &client,
        form.groups(sizes.keys, sizes.key_heads, batch),
        units,
        addresses,
        query.into_tensor_arg(),
        key.into_tensor_arg(),
        value.into_tensor_arg(),
        bias.into_tensor_arg(),
        lengths.into_tensor_arg(),
        gradient.into_tensor_arg(),
        forward.stats.clone().into_tensor_arg(),
        delta.into_tensor_arg(),
        found.key.clone().into_tensor_arg(),
        found.value.clone().into_tensor_arg(),
        options.band(),
        form,
        dtype,
    );
    found
}

/// `δ = Σ dO · O` of each row.
#[cube(launch, address_type = "dynamic")]
fn delta_kernel<E: Float>(
    context: &Tensor<E>,
    gradient: &Tensor<E>,
    delta: &mut Tensor<f32>,
    #[define(E)] _dtype: ElemType,
) {
    let row = CUBE_POS_X as usize * comptime!(SIDE * SIDE) + UNIT_POS as usize;
    let (head, batch) = (CUBE_POS_Y as usize, CUBE_POS_Z as usize);
    if row < context.shape(2) {
        let of_context = start(context, batch, head) + row * context.stride(2);
        let of_gradient = start(gradient, batch, head) + row * gradient.stride(2);
        let size = context.shape(3);
        let mut sum = 0.0f32;
        // In the order of `products`: where one key has all of the weight, their difference is 0.
        for block in 0..size.div_ceil(BLOCK) {
            let mut part = 0.0f32;
            for column in block * BLOCK..min((block + 1) * BLOCK, size) {
                let there = f32::cast_from(context[of_context + column * context.stride(3)]);
                part += there * f32::cast_from(gradient[of_gradient + column * gradient.stride(3)]);
            }
            sum += part;
        }
        delta[(batch * context.shape(1) + head) * context.shape(2) + row] = sum;
    }
}

#[cube(launch, address_type = "dynamic")]
// What is known when a kernel is compiled is a branch of its own.
#[allow(clippy::too_many_arguments, clippy::collapsible_if)]
fn query_kernel<E: Float>(
    query: &Tensor<E>,
    key: &Tensor<E>,
    value: &Tensor<E>,
    bias: &Tensor<f32>,
    lengths: &Tensor<u32>,
    gradient: &Tensor<E>,
    stats: &Tensor<f32>,
    delta: &mut Tensor<f32>,
    query_gradient: &mut Tensor<E>,
    written: &mut Tensor<f32>,
    band: Band,
    #[comptime] form: Form,
    #[define(E)] _dtype: ElemType,
) {
    let r = comptime!(form.r);
    let tile = comptime!(SIDE * r);
    let pitch = comptime!(tile + 1);
    let (x, y) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let first_query = CUBE_POS_X as usize * tile;
    let (head, batch) = (CUBE_POS_Y as usize, CUBE_POS_Z as usize);
    let key_head = head / (query.shape(1) / key.shape(1));
    let (query_start, key_start) = (start(query, batch, head), start(key, batch, key_head));
    let value_start = start(value, batch, key_head);
    let (bias_start, gradient_start) = (start(bias, batch, head), start(gradient, batch, head));
    let (queries, length) = (query.shape(2), lengths[batch] as usize);
    let row_start = (batch * query.shape(1) + head) * queries;

    let mut panels = Shared::<[f32]>::new_slice(comptime!(2 * SIDE * pitch));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(tile * pitch));
    let mut staged = Shared::<[f32]>::new_slice(comptime!(tile * tile));
    let mut poison = Shared::<[u32]>::new_slice(1usize);
    if UNIT_POS == 0 {
        poison[0] = 0u32;
    }
    let count = comptime!(r * r * form.size.div_ceil(tile));
    let mut sums = Array::<f32>::new(count);
    #[unroll]
    for n in 0..count {
        sums[n] = 0.0f32;
    }

    let mut residual = Array::<f32>::new(r);
    #[unroll]
    for i in 0..r {
        residual[i] = 0.0f32;
    }

    let last_query = min(first_query + tile, queries) as i32 - 1;
    let mut end = min(last_query + band.shift + band.right + 1, length as i32);
    let mut at = max(first_query as i32 + band.shift - band.left, 0) / tile as i32 * tile as i32;
    if comptime!(form.written) {
        // Every number has to be written, 0 where nothing is seen.
        at = 0i32;
        end = key.shape(2) as i32;
    }
    while at < end {
        let first_key = at as usize;
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
        let of_weights = products::<E>(
            gradient,
            gradient_start,
            first_query,
            value,
            value_start,
            first_key,
            &mut panels,
            r,
            form.value_size,
        );
        #[unroll]
        for i in 0..r {
            let row = y + comptime!(i * SIDE);
            let place = row_start + min(first_query + row, queries - 1);
            let (largest, factor) = (stats[place * 2], 1.0f32 / stats[place * 2 + 1]);
            #[unroll]
            for j in 0..r {
                let column = x + comptime!(j * SIDE);
                let n = comptime!(i * r + j);
                let score = score(
                    scores[n],
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
                let of_score = weight * (of_weights[n] - delta[place]);
                let of_score = select(score <= HIDDEN, 0.0f32, of_score);
                residual[i] += of_score;
                if comptime!(form.written) {
                    if first_query + row < queries && first_key + column < key.shape(2) {
                        let to = (row_start + first_query + row) * key.shape(2);
                        written[to + first_key + column] = of_score;
                    }
                }
                let of_product = of_score * slope(scores[n], &band, form);
                weights[row * pitch + column] = select(score <= HIDDEN, 0.0f32, of_product);
            }
        }
        spread::<E>(
            &weights,
            key,
            key_start,
            first_key,
            &mut staged,
            &mut poison,
            &mut sums,
            r,
            form.size,
        );
        at += tile as i32;
    }
    // The gradients of a row's scores add up to 0. What they add up to instead is the error of `δ`: without it, those of the keys are better.
    sync_cube();
    #[unroll]
    for i in 0..r {
        weights[(y + comptime!(i * SIDE)) * pitch + x] = residual[i];
    }
    sync_cube();
    #[unroll]
    for i in 0..r {
        let row = y + comptime!(i * SIDE);
        if x == 0 && first_query + row < queries {
            let mut sum = 0.0f32;
            for n in 0..SIDE {
                sum += weights[row * pitch + n];
            }
            delta[row_start + first_query + row] += sum;
        }
    }
    write::<E>(
        &sums,
        query_gradient,
        batch,
        head,
        first_query,
        r,
        form.size,
    );
}

#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
fn key_kernel<E: Float>(
    query: &Tensor<E>,
    key: &Tensor<E>,
    value: &Tensor<E>,
    bias: &Tensor<f32>,
    lengths: &Tensor<u32>,
    gradient: &Tensor<E>,
    stats: &Tensor<f32>,
    delta: &Tensor<f32>,
    key_gradient: &mut Tensor<E>,
    value_gradient: &mut Tensor<E>,
    band: Band,
    #[comptime] form: Form,
    #[define(E)] _dtype: ElemType,
) {
    let r = comptime!(form.r);
    let tile = comptime!(SIDE * r);
    let pitch = comptime!(tile + 1);
    let (x, y) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let first_key = CUBE_POS_X as usize * tile;
    let (key_head, batch) = (CUBE_POS_Y as usize, CUBE_POS_Z as usize);
    let (key_start, value_start) = (start(key, batch, key_head), start(value, batch, key_head));
    let (queries, length) = (query.shape(2), lengths[batch] as usize);
    let shared_by = query.shape(1) / key.shape(1);

    let mut panels = Shared::<[f32]>::new_slice(comptime!(2 * SIDE * pitch));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(tile * pitch));
    let mut staged = Shared::<[f32]>::new_slice(comptime!(tile * tile));
    let mut poison = Shared::<[u32]>::new_slice(1usize);
    if UNIT_POS == 0 {
        poison[0] = 0u32;
    }
    let key_count = comptime!(r * r * form.size.div_ceil(tile));
    let mut key_sums = Array::<f32>::new(key_count);
    #[unroll]
    for n in 0..key_count {
        key_sums[n] = 0.0f32;
    }
    let value_count = comptime!(r * r * form.value_size.div_ceil(tile));
    let mut value_sums = Array::<f32>::new(value_count);
    #[unroll]
    for n in 0..value_count {
        value_sums[n] = 0.0f32;
    }

    // The queries that see any key of the tile.
    let last_key = min(first_key + tile, length) as i32 - 1;
    let mut end = min(last_key + band.left - band.shift + 1, queries as i32);
    if first_key >= length {
        end = 0i32;
    }
    let begin = max(first_key as i32 - band.right - band.shift, 0) / tile as i32 * tile as i32;
    for head in key_head * shared_by..(key_head + 1) * shared_by {
        let (query_start, bias_start) = (start(query, batch, head), start(bias, batch, head));
        let gradient_start = start(gradient, batch, head);
        let row_start = (batch * query.shape(1) + head) * queries;
        let mut at = begin;
        while at < end {
            let first_query = at as usize;
            let scores = products::<E>(
                key,
                key_start,
                first_key,
                query,
                query_start,
                first_query,
                &mut panels,
                r,
                form.size,
            );
            let mut of_weights = products::<E>(
                value,
                value_start,
                first_key,
                gradient,
                gradient_start,
                first_query,
                &mut panels,
                r,
                form.value_size,
            );
            #[unroll]
            for j in 0..r {
                let column = x + comptime!(j * SIDE);
                let place = row_start + min(first_query + column, queries - 1);
                let (largest, factor) = (stats[place * 2], 1.0f32 / stats[place * 2 + 1]);
                #[unroll]
                for i in 0..r {
                    let row = y + comptime!(i * SIDE);
                    let n = comptime!(i * r + j);
                    let score = score(
                        scores[n],
                        first_query + column,
                        first_key + row,
                        queries,
                        length,
                        &band,
                        bias,
                        bias_start,
                        form,
                    );
                    let hidden = score <= HIDDEN;
                    let weight = exponential(score - largest) * factor;
                    let of_product =
                        weight * (of_weights[n] - delta[place]) * slope(scores[n], &band, form);
                    of_weights[n] = select(hidden, 0.0f32, of_product);
                    weights[row * pitch + column] = select(hidden, 0.0f32, weight);
                }
            }
            spread::<E>(
                &weights,
                gradient,
                gradient_start,
                first_query,
                &mut staged,
                &mut poison,
                &mut value_sums,
                r,
                form.value_size,
            );
            sync_cube();
            #[unroll]
            for i in 0..r {
                #[unroll]
                for j in 0..r {
                    let place = (y + comptime!(i * SIDE)) * pitch + x + comptime!(j * SIDE);
                    weights[place] = of_weights[comptime!(i * r + j)];
                }
            }
            spread::<E>(
                &weights,
                query,
                query_start,
                first_query,
                &mut staged,
                &mut poison,
                &mut key_sums,
                r,
                form.size,
            );
            at += tile as i32;
        }
    }
    write::<E>(
        &key_sums,
        key_gradient,
        batch,
        key_head,
        first_key,
        r,
        form.size,
    );
    write::<E>(
        &value_sums,
        value_gradient,
        batch,
        key_head,
        first_key,
        r,
        form.value_size,
    );
}
