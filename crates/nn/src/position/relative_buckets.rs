//! T5's relative positions: one trained number for each head and each bucket of distances, added to
//! the scores (Raffel et al. 2019, section 2.1; the buckets are those of the authors' code).
//!
//! `score(i, j) = q_iᵀ k_j + B[bucket(j - i), h]`, `B [buckets, heads]`
//!
//! Of the `n` buckets for one direction, the first `n/2` hold one distance each, the others hold ranges of
//! distances that grow by a constant factor up to `max_distance`, and the last one also everything
//! beyond. A bidirectional layer gives half of its buckets to the keys after the query; a causal one puts
//! all of those into bucket 0. T5 does not divide the score by `√d`, and shares one table among all layers
//! of a stack.
//!
//! - **Shapes**: the bias is `[1, heads, queries, keys]`.
//! - **When**: encoders and encoder-decoders; where a model should learn for itself which distances
//!   matter. **When not**: where distances beyond `max_distance` must be told apart.
//! - **Cost**: `buckets · heads` parameters; `heads · queries · keys` numbers of memory for the bias.
//!
//! ```
//! use burn::tensor::Device;
//! use regard_nn::{initialize::Initializer, position::{Positions, RelativeBuckets, RelativeBucketsConfig}};
//!
//! let device = Device::flex();
//! let config = RelativeBucketsConfig::default(); // T5: 32 buckets up to 128, bidirectional
//! assert_eq!([0, -1, -8, -9, -500, 1].map(|distance| config.bucket(distance)), [0, 1, 8, 8, 15, 17]);
//! let buckets = RelativeBuckets::new(&config, 4, &mut Initializer::new(1, &device))?;
//! assert_eq!(buckets.bias(&Positions::lower_right(3, 7)).dims(), [1, 4, 3, 7]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::{
    module::{Module, Param},
    tensor::{Int, Tensor, TensorData},
};
use serde::{Deserialize, Serialize};

use super::{Positions, expect_positive};
use crate::{attention::AttentionError, bridge::zeros_of, initialize::Initializer};

/// The standard deviation of the initial numbers.
const DEVIATION: f32 = 0.02;

/// How distances are assigned to buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelativeBucketsConfig {
    /// How many buckets there are (T5: 32).
    pub buckets: usize,
    /// The distance, in tokens, from which on all fall into the last bucket (T5: 128).
    pub max_distance: usize,
    /// Whether keys after the query have buckets of their own (an encoder) or not (a causal decoder).
    pub bidirectional: bool,
}

impl Default for RelativeBucketsConfig {
    fn default() -> Self {
        Self {
            buckets: 32,
            max_distance: 128,
            bidirectional: true,
        }
    }
}

impl RelativeBucketsConfig {
    /// The buckets of one direction.
    fn one_way(&self) -> usize {
        self.buckets / if self.bidirectional { 2 } else { 1 }
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// If there are fewer buckets than one for a single distance and one for the rest, if a bidirectional
    /// table has an odd number of them, or if `max_distance` is one of the distances that have their
    /// own bucket.
    pub fn check(&self) -> Result<(), AttentionError> {
        let ways = if self.bidirectional { 2 } else { 1 };
        if self.buckets < 2 * ways || !self.buckets.is_multiple_of(ways) {
            let expected = match self.bidirectional {
                true => "an even number of at least 4, half of them for each direction",
                false => "at least 2",
            };
            return Err(AttentionError::value(
                "buckets",
                self.buckets,
                expected,
                "T5 has 32",
            ));
        }
        let exact = self.one_way() / 2;
        if self.max_distance <= exact {
            return Err(AttentionError::value(
                "max_distance",
                self.max_distance,
                format!("more than the {exact} distances that have a bucket each"),
                "T5 has 128; with fewer buckets a smaller one will do",
            ));
        }
        Ok(())
    }

    /// The bucket of a distance (key position minus query position).
    pub fn bucket(&self, distance: i64) -> usize {
        let one_way = self.one_way();
        let (first, distance) = match self.bidirectional {
            true if distance > 0 => (one_way, distance.unsigned_abs()),
            true => (0, distance.unsigned_abs()),
            false => (0, distance.min(0).unsigned_abs()),
        };
        let exact = one_way / 2;
        if distance < exact as u64 {
            return first + distance as usize;
        }
        // In f32, as the authors compute it, so that distances on an edge get the same bucket.
        let share = (distance as f32 / exact as f32).ln()
            / (self.max_distance as f64 / exact as f64).ln() as f32;
        let bucket = exact + (share * (one_way - exact) as f32) as usize;
        first + bucket.min(one_way - 1)
    }
}

/// `B[bucket(j - i), h]`.
#[derive(Module, Debug)]
pub struct RelativeBuckets {
    /// `B`, `[buckets, heads]`.
    pub table: Param<Tensor<2>>,
    #[module(skip)]
    config: RelativeBucketsConfig,
}

impl RelativeBuckets {
    /// A table for `heads` heads, from `N(0, 0.02²)`.
    ///
    /// # Errors
    /// If `heads` is 0 or [`RelativeBucketsConfig::check`] fails.
    pub fn new(
        config: &RelativeBucketsConfig,
        heads: usize,
        initializer: &mut Initializer,
    ) -> Result<Self, AttentionError> {
        expect_positive("heads", heads)?;
        config.check()?;
        Ok(Self {
            table: initializer.normal([config.buckets, heads], DEVIATION),
            config: *config,
        })
    }

    /// How distances are assigned to buckets.
    pub fn config(&self) -> &RelativeBucketsConfig {
        &self.config
    }

    /// The term that is added to the scores, `[1, heads, queries, keys]`.
    pub fn bias(&self, positions: &Positions) -> Tensor<4> {
        let [queries, keys] = positions.dims();
        if positions.dims().contains(&0) {
            let (device, dtype) = (self.table.device(), self.table.dtype());
            let heads = self.table.dims()[1];
            let none = Tensor::zeros([1, heads, queries, keys], (&device, dtype));
            return zeros_of(none, &self.table.val());
        }
        let buckets: Vec<i32> = positions
            .distances()
            .map(|distance| self.config.bucket(distance) as i32)
            .collect();
        let table = self.table.val();
        let heads = table.dims()[1];
        let buckets: Tensor<1, Int> =
            Tensor::from_data(TensorData::new(buckets, [queries * keys]), &table.device());
        table
            .swap_dims(0, 1)
            .select(1, buckets) // [heads, queries · keys]
            .reshape([1, heads, queries, keys])
    }
}
