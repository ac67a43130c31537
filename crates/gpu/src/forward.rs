//! The forward pass: softmax online, tile by tile of keys.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::{
    Inputs, Options, SIDE, Sizes, addresses, elem,
    exponential::exponential,
    mma,
    tile::{Band, Form, HIDDEN, LOWEST, products, score, spread, start, write},
};

/// What [`forward`] returns.
#[derive(Debug, Clone)]
pub struct Forward {
    /// `[batch, heads, queries, value size]`
    pub context: CubeTensor,
    /// `[batch, heads, queries, 2]` in `f32`: the largest score `m` of each row and `Σ exp(s - m)`, so that `lse = m + ln Σ`. Two
    /// numbers, from which the backward pass has the weights of the forward pass: a sum of both would be rounded. In a row that sees
    /// nothing the first is less than -3e38 and the second is 0.
    pub stats: CubeTensor,
}

/// Attention, as the head of this crate defines it.
///
/// # Panics
/// If shapes or types do not fit, something is empty, or a size exceeds [`MAX_SIZE`](crate::MAX_SIZE).
pub fn forward(inputs: Inputs, options: &Options) -> Forward {
    let sizes = Sizes::of(&inputs);
    let Sizes {
        batch,
        heads,
        queries,
        ..
    } = sizes;
    let context = inputs.empty(
        [batch, heads, queries, sizes.value_size],
        inputs.query.dtype,
    );
    let stats = inputs.empty([batch, heads, queries, 2], DType::F32);
    let form = Form::new(&inputs, &sizes, options);
    let tiles = mma::tiles(&inputs, None, &sizes);
    let lengths = options.lengths_on(&inputs, &sizes);
    let bias = inputs.bound_bias();
    let Inputs {
        query, key, value, ..
    } = inputs;
    let (client, dtype) = (query.client.clone(), elem(&query));
    let addresses = addresses([&query, &key, &value, &bias, &context, &stats]);
    if let Some(tiles) = tiles {
        mma::forward_kernel::launch(
            &client,
            tiles.groups(queries, heads, batch),
            tiles.units(),
            addresses,
            query.into_tensor_arg(),
            key.into_tensor_arg(),
            value.into_tensor_arg(),
            bias.into_tensor_arg(),
            lengths.into_tensor_arg(),
            context.clone().into_tensor_arg(),
            stats.clone().into_tensor_arg(),
            options.band(),
            form,
            tiles,
            dtype,
        );
        return Forward { context, stats };
    }
    forward_kernel::launch(
        &client,
        form.groups(queries, heads, batch),
        CubeDim::new_2d(SIDE as u32, SIDE as u32),
        addresses,
        query.into_tensor_arg(),
        key.into_tensor_arg(),
        value.into_tensor_arg(),
        bias.into_tensor_arg(),
        lengths.into_tensor_arg(),
        context.clone().into_tensor_arg(),
        stats.clone().into_tensor_arg(),
        options.band(),
        form,
        dtype,
    );
    Forward { context, stats }
}

#[cube(launch, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
fn forward_kernel<E: Float>(
    query: &Tensor<E>,
    key: &Tensor<E>,
    value: &Tensor<E>,
    bias: &Tensor<f32>,
    lengths: &Tensor<u32>,
    context: &mut Tensor<E>,
    stats: &mut Tensor<f32>,
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
    let bias_start = start(bias, batch, head);
    let (queries, length) = (query.shape(2), lengths[batch] as usize);

    let mut panels = Shared::<[f32]>::new_slice(comptime!(2 * SIDE * pitch));
    let mut weights = Shared::<[f32]>::new_slice(comptime!(tile * pitch));
    let mut staged = Shared::<[f32]>::new_slice(comptime!(tile * tile));
    let mut partial = Shared::<[f32]>::new_slice(comptime!(tile * SIDE));
    let mut poison = Shared::<[u32]>::new_slice(1usize);
    if UNIT_POS == 0 {
        poison[0] = 0u32;
    }
    let mut largest = Array::<f32>::new(r);
    let mut total = Array::<f32>::new(r);
    #[unroll]
    for i in 0..r {
        largest[i] = LOWEST;
        total[i] = 0.0f32;
    }
    let count = comptime!(r * r * form.value_size.div_ceil(tile));
    let mut sums = Array::<f32>::new(count);
    #[unroll]
    for n in 0..count {
        sums[n] = 0.0f32;
    }

    // The keys that any query of the tile sees.
    let last_query = min(first_query + tile, queries) as i32 - 1;
    let end = min(last_query + band.shift + band.right + 1, length as i32);
    let mut at = max(first_query as i32 + band.shift - band.left, 0) / tile as i32 * tile as i32;
    while at < end {
        let first_key = at as usize;
        let mut scores = products::<E>(
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
            let mut most = LOWEST.runtime();
            #[unroll]
            for j in 0..r {
                let column = x + comptime!(j * SIDE);
                let n = comptime!(i * r + j);
                scores[n] = score(
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
                most = max(most, scores[n]);
            }
            partial[row * SIDE + x] = most;
        }
        sync_cube();
        #[unroll]
        for i in 0..r {
            let row = y + comptime!(i * SIDE);
            let mut most = largest[i];
            #[unroll]
            for n in 0..SIDE {
                most = max(most, partial[row * SIDE + n]);
            }
            let shrink = exponential(largest[i] - most);
            largest[i] = most;
            total[i] *= shrink;
            #[unroll]
            for n in 0..count {
                if comptime!(n / r % r == i) {
                    sums[n] *= shrink;
                }
            }
            #[unroll]
            for j in 0..r {
                let n = comptime!(i * r + j);
                let weight = exponential(scores[n] - most);
                scores[n] = select(scores[n] <= HIDDEN, 0.0f32, weight);
                weights[row * pitch + x + comptime!(j * SIDE)] = scores[n];
            }
        }
        sync_cube();
        #[unroll]
        for i in 0..r {
            let mut sum = 0.0f32;
            #[unroll]
            for j in 0..r {
                sum += scores[comptime!(i * r + j)];
            }
            partial[(y + comptime!(i * SIDE)) * SIDE + x] = sum;
        }
        sync_cube();
        #[unroll]
        for i in 0..r {
            #[unroll]
            for n in 0..SIDE {
                total[i] += partial[(y + comptime!(i * SIDE)) * SIDE + n];
            }
        }
        spread::<E>(
            &weights,
            value,
            value_start,
            first_key,
            &mut staged,
            &mut poison,
            &mut sums,
            r,
            form.value_size,
        );
        at += tile as i32;
    }

    #[unroll]
    for i in 0..r {
        let empty = total[i] == 0.0f32;
        let factor = select(empty, 0.0f32, 1.0f32 / total[i]);
        #[unroll]
        for n in 0..count {
            if comptime!(n / r % r == i) {
                sums[n] *= factor;
            }
        }
        let row = first_query + y + comptime!(i * SIDE);
        if x == 0 && row < queries {
            let place = ((batch * query.shape(1) + head) * queries + row) * 2;
            stats[place] = largest[i];
            stats[place + 1] = total[i];
        }
    }
    write::<E>(&sums, context, batch, head, first_query, r, form.value_size);
}
