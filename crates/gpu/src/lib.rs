//! Scaled-dot-product attention for graphics cards, in [CubeCL](https://github.com/tracel-ai/cubecl), as one operation: the matrix of
//! scores is never stored, unless its weights are asked for. And products of matrices whose `f32` factors are not rounded (`multiply`), and an
//! exponential function that is the same on every card (`exp`).
//!
//! `softmax(softcap(scale · q kᵀ) + bias) v` with masks (`Options`), heads that share keys and values, and a bias of any broadcast
//! shape. Numbers are added up in `f32`, whatever the tensors hold.
//!
//! | kernel | a group of 256 units computes | in passes over |
//! |---|---|---|
//! | `forward` | the context and the two `Forward::stats` of a tile of queries of one head | tiles of keys |
//! | `weights` | the weights of a tile of queries, if somebody asks for them | tiles of keys |
//! | `backward`, `dq` | the gradient of a tile of queries | tiles of keys |
//! | `backward`, `dk`, `dv` | the gradients of a tile of keys and values | the heads that share them, and tiles of queries |
//!
//! A tile has 64 rows, or 32 where the card has little shared memory; 16 x 16 units share a tile of scores, 4 x 4 (2 x 2) scores each.
//! On tensor cores (`mma`), NVIDIA's from compute capability 8.0 on by the feature `cuda`, forward and backward have kernels of their own,
//! for f16 and bfloat16 with sizes that are multiples of 16 up to 128 and rows that lie whole in memory; weights, and the gradient of a
//! bias, are left to those above. Factors of the second product (weights, gradients of scores) are rounded to the type of the inputs there,
//! as in [FlashAttention](https://arxiv.org/abs/2307.08691). The backward pass computes the scores once more and adds nothing atomically, so
//! results are the same from call to call.
//!
//! A position that may not be seen has weight 0 and receives gradient 0, whatever its value (NaN included); a row in which nothing may be
//! seen gives context 0 and gradients 0.
//!
//! With the feature `cuda`, `Communicator` sums gradients over processes with a card each, by NCCL.
//!
//! Without the feature `cubecl` this crate is empty.
#![cfg(feature = "cubecl")]
#![deny(missing_docs)]

mod backward;
#[cfg(feature = "cuda")]
mod communicator;
mod exponential;
mod forward;
mod mma;
mod product;
mod tile;
mod weights;

pub use backward::{Gradients, backward};
#[cfg(feature = "cuda")]
pub use communicator::{Communicator, CommunicatorError};
/// A device of CubeCL's.
#[cfg(feature = "cuda")]
pub use cubecl::Device as Card;
pub use exponential::exp;
pub use forward::{Forward, forward};
pub use product::{multiply, multiply_backward};
pub use weights::weights;

use burn::tensor::{DType, Shape};
use burn_cubecl::{ops::numeric::empty_device_contiguous_dtype, tensor::CubeTensor};
use cubecl::prelude::*;

use crate::tile::BandLaunch;

/// The largest size of a query, key or value.
pub const MAX_SIZE: usize = 256;
/// A distance beyond all positions.
const FAR: usize = 1 << 29;
/// Units of a group along each side of a tile.
const SIDE: usize = 16;

/// What is done to the scores, beside the bias.
///
/// Query `i` sees key `j` if `j < lengths[b]` and `i + shift - left <= j <= i + shift + right`.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Factor of the products.
    pub scale: f32,
    /// `c > 0`: scores are bent into `(-c, c)` by `c tanh(s / c)`.
    pub softcap: Option<f32>,
    /// The position of query 0 among the keys.
    pub shift: i64,
    /// How many keys before its position a query sees; `None` for all.
    pub left: Option<usize>,
    /// How many keys after its position a query sees; `None` for all.
    pub right: Option<usize>,
    /// `[batch]`: real keys of each batch entry; later ones are padding.
    pub lengths: Option<Vec<u32>>,
}

impl Options {
    /// Scores times `scale`; every query sees every key.
    pub fn new(scale: f32) -> Self {
        Self {
            scale,
            softcap: None,
            shift: 0,
            left: None,
            right: None,
            lengths: None,
        }
    }

    fn band(&self) -> BandLaunch {
        let reach = |keys: Option<usize>| keys.map_or(FAR, |keys| keys.min(FAR)) as i32;
        let far = FAR as i64;
        BandLaunch::new(
            self.scale,
            self.softcap.unwrap_or(1.0),
            self.shift.clamp(-far, far) as i32,
            reach(self.left),
            reach(self.right),
        )
    }

    /// The number of keys that each batch entry has.
    fn lengths_on(&self, inputs: &Inputs, sizes: &Sizes) -> CubeTensor {
        let (batch, keys) = (sizes.batch, sizes.keys as u32);
        let lengths = match &self.lengths {
            Some(lengths) => lengths.iter().map(|&length| length.min(keys)).collect(),
            None => vec![keys; batch],
        };
        assert_eq!(
            lengths.len(),
            batch,
            "`lengths` has an entry for each of the batch"
        );
        let handle = inputs
            .query
            .client
            .create_from_slice(u32::as_bytes(&lengths));
        let (client, device) = (inputs.query.client.clone(), inputs.query.device.clone());
        CubeTensor::new_contiguous(client, device, [batch].into(), handle, DType::U32)
    }
}

/// What attention reads, with any strides.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// `[batch, heads, queries, size]`; `heads` is a multiple of `key heads`.
    pub query: CubeTensor,
    /// `[batch, key heads, keys, size]`, of the query's type.
    pub key: CubeTensor,
    /// `[batch, key heads, keys, value size]`, of the query's type.
    pub value: CubeTensor,
    /// `[batch, heads, queries, keys]` in `f32`, with strides of 0 where it is broadcast: added to the scores; -∞ hides a key.
    pub bias: Option<CubeTensor>,
}

impl Inputs {
    /// A new tensor beside them.
    fn empty(&self, shape: [usize; 4], dtype: DType) -> CubeTensor {
        let (client, device) = (self.query.client.clone(), self.query.device.clone());
        empty_device_contiguous_dtype(client, device, Shape::from(shape), dtype)
    }

    /// The bias, or something to bind in its place.
    fn bound_bias(&self) -> CubeTensor {
        let bias = self.bias.clone();
        bias.unwrap_or_else(|| self.empty([1; 4], DType::F32))
    }
}

/// The width of addresses that reaches every number of `tensors`.
fn addresses<'a>(tensors: impl IntoIterator<Item = &'a CubeTensor>) -> AddressType {
    let each = tensors.into_iter().map(CubeTensor::required_address_type);
    each.max().unwrap_or_default()
}

/// The type of a tensor's numbers, for a kernel.
fn elem(tensor: &CubeTensor) -> ElemType {
    match tensor.dtype {
        DType::F32 => f32::elem_type_native(),
        DType::F16 => half::f16::elem_type_native(),
        DType::BF16 => half::bf16::elem_type_native(),
        other => panic!("numbers of {other:?}, expected f32, f16 or bf16"),
    }
}

/// The sizes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    batch: usize,
    heads: usize,
    key_heads: usize,
    queries: usize,
    keys: usize,
    size: usize,
    value_size: usize,
}

impl Sizes {
    fn of(inputs: &Inputs) -> Self {
        let Inputs {
            query,
            key,
            value,
            bias,
        } = inputs;
        let dims = |tensor: &CubeTensor| <[usize; 4]>::try_from(tensor.meta.shape().to_vec());
        let (Ok(q), Ok(k), Ok(v)) = (dims(query), dims(key), dims(value)) else {
            panic!("query, key and value have four dimensions");
        };
        let sizes = Self {
            batch: q[0],
            heads: q[1],
            key_heads: k[1],
            queries: q[2],
            keys: k[2],
            size: q[3],
            value_size: v[3],
        };
        let fit =
            k == [q[0], k[1], k[2], q[3]] && v[..3] == k[..3] && q[1].is_multiple_of(k[1].max(1));
        let types = [query.dtype, key.dtype, value.dtype] == [query.dtype; 3];
        assert!(
            fit && types,
            "query {q:?}, key {k:?} and value {v:?} do not fit"
        );
        if let Some(bias) = bias {
            let expected = [q[0], q[1], q[2], k[2]];
            assert!(
                dims(bias) == Ok(expected) && bias.dtype == DType::F32,
                "a bias {:?} of {:?}, expected {expected:?} of f32",
                bias.meta.shape(),
                bias.dtype
            );
        }
        let full = [q, k, v].iter().flatten().all(|&size| size > 0);
        let small = sizes.size <= MAX_SIZE && sizes.value_size <= MAX_SIZE;
        assert!(
            full && small,
            "query {q:?}, key {k:?}, value {v:?}: empty, or too large a size"
        );
        sizes
    }
}
