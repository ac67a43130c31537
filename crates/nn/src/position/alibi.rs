//! ALiBi, attention with linear biases: every score is lowered in proportion to the distance between
//! query and key (Press, Smith, Lewis 2021, section 3).
//!
//! `score(i, j) = q_iᵀ k_j / √d - m_h |i - j|`, with a fixed slope `m_h` for each head: for `n` heads, a
//! power of two, `m_h = 2^{-8h/n}`, `h = 1..n`; otherwise the slopes of the power of two below `n`,
//! then every other slope of the one above it, as in the authors' code.
//!
//! Under a causal mask this is the paper's `m (j - i)`. Without one it is its symmetric form, which
//! the authors propose for encoders.
//!
//! - **Shapes**: the bias is `[1, heads, queries, keys]`.
//! - **When**: decoders for texts longer than those of training: the paper's models keep their perplexity at several times the
//!   length. **When not**: tasks that look up distant tokens, as every head prefers near ones.
//! - **Cost**: no parameters; in the fused path ([`AttentionOptions::alibi`](crate::AttentionOptions::alibi), which multi-head layers use) one
//!   multiplication a score and no memory; as a tensor of biases `heads · queries · keys` numbers.
//!
//! ```
//! use burn::tensor::{Device, DType, Tensor};
//! use regard_nn::{Attention, AttentionOptions, mask::Mask, position::{Alibi, Positions}, score::Score};
//!
//! let alibi = Alibi::new(8)?;
//! assert_eq!(alibi.slopes()[..3], [0.5, 0.25, 0.125]);
//! let bias = alibi.bias(&Positions::lower_right(1, 3), &Device::flex(), DType::F32); // [1, 8, 1, 3]
//! let bias = bias.into_data().into_vec::<f32>().unwrap();
//! assert_eq!(bias[..3], [-1.0, -0.5, 0.0]);
//!
//! // The same inside an attention, without the tensor.
//! let x = Tensor::<4>::ones([1, 8, 5, 4], &Device::flex());
//! let attention = Attention::new(Score::scaled_dot()).with_mask(Mask::causal());
//! let attended = attention.forward_with(x.clone(), x.clone(), x, AttentionOptions::default().alibi(&alibi))?;
//! assert_eq!(attended.context.dims(), [1, 8, 5, 4]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::{
    module::Module,
    tensor::{DType, Device, Tensor, TensorData},
};

use super::{Positions, expect_positive};
use crate::attention::AttentionError;

/// `-m_h |i - j|`.
#[derive(Module, Debug)]
pub struct Alibi {
    #[module(skip)]
    slopes: Vec<f64>,
}

impl Alibi {
    /// The paper's slopes for `heads` heads.
    ///
    /// # Errors
    /// If `heads` is 0.
    pub fn new(heads: usize) -> Result<Self, AttentionError> {
        expect_positive("heads", heads)?;
        let power = 1 << heads.ilog2();
        let of_twice = geometric(2 * power).step_by(2).take(heads - power);
        Ok(Self {
            slopes: geometric(power).chain(of_twice).collect(),
        })
    }

    /// `m_h` for every head.
    pub fn slopes(&self) -> &[f64] {
        &self.slopes
    }

    /// The term that is added to the scores, `[1, heads, queries, keys]`.
    pub fn bias(&self, positions: &Positions, device: &Device, dtype: DType) -> Tensor<4> {
        let [queries, keys] = positions.dims();
        let slopes = TensorData::new(self.slopes.clone(), [1, self.slopes.len(), 1, 1]);
        let distances: Vec<f64> = positions
            .distances()
            .map(|distance| -(distance.abs() as f64))
            .collect();
        let distances = TensorData::new(distances, [1, 1, queries, keys]);
        Tensor::from_data(slopes, (device, dtype)) * Tensor::from_data(distances, (device, dtype))
    }
}

/// `2^{-8h/n}` for `h = 1..n`.
fn geometric(n: usize) -> impl Iterator<Item = f64> {
    (1..=n).map(move |h| (-8.0 * h as f64 / n as f64).exp2())
}
