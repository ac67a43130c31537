//! Shaw's relative positions: a trained vector for each distance, which the query sees as part of the
//! key and which is read as part of the value (Shaw, Uszkoreit, Vaswani 2018, sections 3.1-3.3).
//!
//! `score(i, j) = q_iᵀ (k_j + a^K_{j-i}) / √d`, `context_i = Σ_j α_ij (v_j + a^V_{j-i})`,
//! distances clipped to `[-reach, reach]`, tables `a^K, a^V [2 · reach + 1, d]` shared by all heads.
//!
//! The product with `a^K` is taken once for each query and distance and then laid out over the keys;
//! the weights are summed by distance before they meet `a^V`. No `[queries, keys, d]` tensor arises.
//!
//! - **Shapes**: queries `[batch, heads, queries, d]`, weights `[batch, heads, queries, keys]`.
//! - **When**: small encoders and music or graph models that need more than one number for each
//!   distance. **When not**: long sequences, as the scores cannot stay inside a fused kernel.
//! - **Cost**: `2 (2 · reach + 1) d` parameters; `batch · heads · queries · keys` numbers of memory,
//!   and time in proportion to `batch · heads · queries · (reach · d + keys)`.
//!
//! The paper finds the vectors for values of little use in translation; they can be left out.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, position::{Positions, Relative}};
//!
//! let device = Device::flex();
//! let relative = Relative::new(4, 8, Some(8), &mut Initializer::new(1, &device))?;
//! let positions = Positions::lower_right(3, 7);
//! let scores = relative.scores(Tensor::ones([2, 4, 3, 8], &device), &positions)?;
//! assert_eq!(scores.dims(), [2, 4, 3, 7]);
//! let context = relative.context(Tensor::ones([2, 4, 3, 7], &device), &positions)?;
//! assert_eq!(context.unwrap().dims(), [2, 4, 3, 8]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::{
    module::{Module, Param},
    tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData},
};

use super::{Positions, expect_last, expect_positive};
use crate::{attention::AttentionError, initialize::Initializer};

/// A trained vector for each distance.
#[derive(Module, Debug)]
pub struct Relative {
    /// `a^K`, `[2 · reach + 1, d]`.
    pub keys: Param<Tensor<2>>,
    /// `a^V`, `[2 · reach + 1, d_v]`, unless only scores are to know the distance.
    pub values: Option<Param<Tensor<2>>>,
}

impl Relative {
    /// Vectors for distances up to `reach` tokens in both directions and queries of `size`, from
    /// `U(-1/√size, 1/√size)`, and for values of `value_size` if these are to have some.
    ///
    /// # Errors
    /// If a size is 0.
    pub fn new(
        reach: usize,
        size: usize,
        value_size: Option<usize>,
        initializer: &mut Initializer,
    ) -> Result<Self, AttentionError> {
        expect_positive("reach", reach)?;
        expect_positive("size", size)?;
        expect_positive("value_size", value_size.unwrap_or(size))?;
        let mut table =
            |size: usize| initializer.uniform([2 * reach + 1, size], 1.0 / (size as f32).sqrt());
        Ok(Self {
            keys: table(size),
            values: value_size.map(table),
        })
    }

    /// The largest distance, in tokens, that has a vector of its own.
    pub fn reach(&self) -> usize {
        self.keys.dims()[0] / 2
    }

    /// `q_iᵀ a^K_{j-i}`, to be added to `q_iᵀ k_j` before scaling: `query [batch, heads, queries, d]`
    /// gives `[batch, heads, queries, keys]`.
    ///
    /// # Errors
    /// If the shape of `query` does not fit the table or `positions`.
    pub fn scores(
        &self,
        query: Tensor<4>,
        positions: &Positions,
    ) -> Result<Tensor<4>, AttentionError> {
        let [batch, heads, queries, _] = query.dims();
        let [expected, keys] = positions.dims();
        expect_last("query", &query.dims(), self.keys.dims()[1])?;
        expect_queries("query", &query.dims(), expected)?;
        let index = self.index(positions, &query.device());
        let by_distance = query.matmul(self.keys.val().transpose().unsqueeze::<4>());
        Ok(by_distance.gather(3, index.expand([batch, heads, queries, keys])))
    }

    /// `Σ_j α_ij a^V_{j-i}`, to be added to the context: `weights [batch, heads, queries, keys]` gives
    /// `[batch, heads, queries, d_v]`, or nothing when values have no vectors.
    ///
    /// # Errors
    /// If the shape of `weights` does not fit `positions`.
    pub fn context(
        &self,
        weights: Tensor<4>,
        positions: &Positions,
    ) -> Result<Option<Tensor<4>>, AttentionError> {
        let Some(values) = &self.values else {
            return Ok(None);
        };
        let [batch, heads, queries, keys] = weights.dims();
        let [expected, expected_keys] = positions.dims();
        expect_last("weights", &weights.dims(), expected_keys)?;
        expect_queries("weights", &weights.dims(), expected)?;
        let device = weights.device();
        let shape = [batch, heads, queries, values.dims()[0]];
        let index = self.index(positions, &device);
        let by_distance = Tensor::zeros(shape, (&device, weights.dtype())).scatter(
            3,
            index.expand([batch, heads, queries, keys]),
            weights,
            IndexingUpdateOp::Add,
        );
        Ok(Some(by_distance.matmul(values.val().unsqueeze::<4>())))
    }

    /// The row of the tables for every pair: `[1, 1, queries, keys]`.
    fn index(&self, positions: &Positions, device: &Device) -> Tensor<4, Int> {
        let reach = self.reach() as i64;
        let [queries, keys] = positions.dims();
        let rows: Vec<i32> = positions
            .distances()
            .map(|distance| (distance.clamp(-reach, reach) + reach) as i32)
            .collect();
        Tensor::from_data(TensorData::new(rows, [1, 1, queries, keys]), device)
    }
}

fn expect_queries(
    field: &'static str,
    found: &[usize; 4],
    queries: usize,
) -> Result<(), AttentionError> {
    if found[2] == queries {
        return Ok(());
    }
    Err(AttentionError::shape(
        field,
        found,
        format!("[_, _, {queries}, _]"),
        "`positions` must name one position for each query",
    ))
}
