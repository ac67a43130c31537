//! Shaw's relative positions: a trained vector for each distance, which is added to the key for scoring and to the value
//! for reading (Shaw, Uszkoreit, Vaswani 2018, sections 3.1-3.3).
//!
//! `score(i, j) = q_iᵀ (k_j + a^K_{j-i}) / √d`, `context_i = Σ_j α_ij (v_j + a^V_{j-i})`,
//! distances clipped to `[-max_distance, max_distance]`, tables `a^K, a^V [2 · max_distance + 1, d]` shared by all heads.
//!
//! Queries are multiplied by the vectors of all `queries + keys - 1` distances in one product, whose rows are then
//! shifted into place by a change of shape ("skewing", Huang et al. 2018, section 3.4.1); weights are shifted the
//! opposite way before they are multiplied by `a^V`. No `[queries, keys, d]` tensor arises and nothing is gathered.
//!
//! - **Shapes**: queries `[batch, heads, queries, d]`, weights `[batch, heads, queries, keys]`.
//! - **When**: small encoders and music or graph models that need more than one number for each
//!   distance. **When not**: long sequences, as the scores cannot stay inside a fused kernel.
//! - **Cost**: `2 (2 · max_distance + 1) d` parameters; for scoring and for reading, up to twice as many multiplications
//!   in addition, and `batch · heads · queries · (queries + keys)` numbers of memory.
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
    tensor::{Int, Tensor, TensorData},
};

use super::{Positions, distance, expect_last, expect_positive};
use crate::{attention::AttentionError, bridge::matmul, initialize::Initializer};

/// A trained vector for each distance.
#[derive(Module, Debug)]
pub struct Relative {
    /// `a^K`, `[2 · max_distance + 1, d]`.
    pub keys: Param<Tensor<2>>,
    /// `a^V`, `[2 · max_distance + 1, d_v]`, unless only scores depend on the distance.
    pub values: Option<Param<Tensor<2>>>,
}

impl Relative {
    /// Vectors for distances up to `max_distance` tokens in both directions and queries of `size`, from
    /// `U(-1/√size, 1/√size)`, and for values of `value_size` if given.
    ///
    /// # Errors
    /// If a size is 0.
    pub fn new(
        max_distance: usize,
        size: usize,
        value_size: Option<usize>,
        initializer: &mut Initializer,
    ) -> Result<Self, AttentionError> {
        expect_positive("max_distance", max_distance)?;
        expect_positive("size", size)?;
        expect_positive("value_size", value_size.unwrap_or(size))?;
        let mut table = |size: usize| {
            initializer.uniform([2 * max_distance + 1, size], 1.0 / (size as f32).sqrt())
        };
        Ok(Self {
            keys: table(size),
            values: value_size.map(table),
        })
    }

    /// The largest distance, in tokens, that has a vector of its own.
    pub fn max_distance(&self) -> usize {
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
        if queries == 0 || keys == 0 {
            let options = (&query.device(), query.dtype());
            return Ok(Tensor::zeros([batch, heads, queries, keys], options));
        }
        let table = self.by_distance(&self.keys, positions);
        Ok(skew(matmul(query, table.swap_dims(2, 3)), keys))
    }

    /// `Σ_j α_ij a^V_{j-i}`, to be added to the context: `weights [batch, heads, queries, keys]` gives
    /// `[batch, heads, queries, d_v]`, or `None` when values have no vectors.
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
        let [batch, heads, queries, _] = weights.dims();
        let [expected, keys] = positions.dims();
        expect_last("weights", &weights.dims(), keys)?;
        expect_queries("weights", &weights.dims(), expected)?;
        if queries == 0 || keys == 0 {
            let options = (&weights.device(), weights.dtype());
            let shape = [batch, heads, queries, values.dims()[1]];
            return Ok(Some(Tensor::zeros(shape, options)));
        }
        let table = self.by_distance(values, positions);
        Ok(Some(matmul(unskew(weights), table)))
    }

    /// The vector of every distance that occurs, from that of the first key to the last query to that of
    /// the last key to the first query: `[1, 1, queries + keys - 1, d]`.
    fn by_distance(&self, table: &Param<Tensor<2>>, positions: &Positions) -> Tensor<4> {
        let max_distance = self.max_distance() as i64;
        let [queries, keys] = positions.dims();
        let first = distance(positions.queries.end, positions.keys.start) + 1;
        let rows: Vec<i32> = (first..first + (queries + keys) as i64 - 1)
            .map(|distance| (distance.clamp(-max_distance, max_distance) + max_distance) as i32)
            .collect();
        let table = table.val();
        let rows = TensorData::new(rows, [queries + keys - 1]);
        let rows = Tensor::<1, Int>::from_data(rows, &table.device());
        table.select(0, rows).unsqueeze::<4>()
    }
}

/// From a column for each distance to a column for each key: row `i` of `x [.., queries, distances]`
/// starts at column `queries - 1 - i`. In memory, each row then starts one number earlier than a row of `distances`
/// numbers would, that is, rows lie `distances - 1` apart.
fn skew(x: Tensor<4>, keys: usize) -> Tensor<4> {
    let [batch, heads, queries, distances] = x.dims();
    if queries == 1 {
        return x;
    }
    x.reshape([batch, heads, queries * distances])
        .narrow(2, queries - 1, queries * (distances - 1))
        .reshape([batch, heads, queries, distances - 1])
        .narrow(3, 0, keys)
}

/// The opposite of [`skew`], with 0 where no key has the distance.
fn unskew(x: Tensor<4>) -> Tensor<4> {
    let [batch, heads, queries, keys] = x.dims();
    if queries == 1 {
        return x;
    }
    let distances = queries + keys - 1;
    let device = x.device();
    let options = (&device, x.dtype());
    let x = match queries {
        2 => x,
        _ => {
            let rest = Tensor::zeros([batch, heads, queries, queries - 2], options);
            Tensor::cat(vec![x, rest], 3)
        }
    };
    let x = x.reshape([batch, heads, queries * (distances - 1)]);
    let before = Tensor::zeros([batch, heads, queries - 1], options);
    let after = Tensor::zeros([batch, heads, 1], options);
    Tensor::cat(vec![before, x, after], 2).reshape([batch, heads, queries, distances])
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
