//! Attention over regions: a detector proposes the objects of an image (bottom-up), a sentence or a question
//! weights them (top-down) (Anderson et al. 2018).
//!
//! Each image has a set of regions with one vector each; their number differs from image to image
//! ([`Regions`]). The weights of the regions and the result are
//!
//! `α = softmax(a)`, `v̂ = Σ_i α_i v_i`, and for
//!
//! - captions, [`CaptionAttention`]: `a_i = w_aᵀ tanh(W_v v_i + W_h h_t)`, `h_t` the state of the first LSTM;
//! - questions, [`QuestionAttention`]: `a_i = w_aᵀ f_a([v_i, q])`, `q` the question's vector,
//!   `f(x) = tanh(W x + b) ∘ σ(W' x + b')` ([`GatedTanh`]).
//!
//! A question is answered from the attended vector and the question, each answer independently
//! ([`AnswerHead`]): `h = f_q(q) ∘ f_v(v̂)`, `p = σ(W_o f_o(h))`.
//!
//! | tensor | shape |
//! |---|---|
//! | regions `v` | `[batch, regions, feature size]`, the image's own first, then padding |
//! | state `h_t`, question `q` | `[batch, size]` |
//! | context `v̂`, weights `α` | `[batch, feature size]`, `[batch, regions]` |
//! | answers `p` | `[batch, answers]`, between 0 and 1, not summing to 1 |
//!
//! Padding has weight 0 and gradient 0, whatever it contains; an image without regions gives weights and
//! context 0.
//!
//! **Use it** where the question is about objects, not pixels, and a detector is available: the weight of a
//! region points to an object. The positions of a map can be used as regions too. **Do not use it** for
//! relations between regions, as each is scored independently. `CaptionAttention` is the [additive
//! score](crate::score::Additive); a scaled dot score costs less.
//!
//! **Cost**: with `R` regions of size `d` and `k` hidden units, for captions `R · d · k` multiplications once
//! an image ([`CaptionAttention::prepare`]) and `R · k` hyperbolic tangents a step; for questions twice as many of both
//! ([`QuestionAttention::prepare`]).
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{
//!     initialize::Initializer,
//!     mask::PaddingMask,
//!     vision::{AnswerHeadConfig, CaptionAttentionConfig, QuestionAttentionConfig, Regions},
//! };
//!
//! let device = Device::flex();
//! let mut initializer = Initializer::new(1, &device);
//! let features = Tensor::<3>::ones([2, 36, 16], &device);
//! let regions = Regions::new(features, PaddingMask::from_lengths(&[36, 10], 36, &device))?;
//!
//! let attention = CaptionAttentionConfig::new(16, 12, 8).init(&mut initializer)?;
//! let prepared = attention.prepare(&regions)?; // once an image
//! let attended = attention.forward(Tensor::ones([2, 12], &device), &prepared)?; // once a word
//! assert_eq!(attended.context.dims(), [2, 16]);
//! assert_eq!(attended.weights.dims(), [2, 36]);
//!
//! let attention = QuestionAttentionConfig::new(16, 12, 8).init(&mut initializer)?;
//! let head = AnswerHeadConfig::new(12, 16, 8, 100).init(&mut initializer)?;
//! let question = Tensor::<2>::ones([2, 12], &device);
//! let attended = attention.forward(question.clone(), &regions)?;
//! assert_eq!(head.forward(question, attended.context)?.dims(), [2, 100]);
//! # Ok::<(), regard_nn::vision::VisionError>(())
//! ```
//!
//! Source: P. Anderson, X. He, C. Buehler, D. Teney, M. Johnson, S. Gould, L. Zhang, *Bottom-Up and Top-Down
//! Attention for Image Captioning and Visual Question Answering*, arXiv:1707.07998, sections 3.2 and 3.3;
//! that the captioning score has no bias: the authors' `create_caption_lstm.py`
//! (github.com/peteanderson80/Up-Down-Captioner, `743eda7`).

mod answer;
mod caption;
mod question;

pub use answer::{AnswerHead, AnswerHeadConfig, GatedTanh};
pub use caption::{CaptionAttention, CaptionAttentionConfig};
pub use question::{QuestionAttention, QuestionAttentionConfig};

use burn::tensor::Tensor;

use super::{
    VisionError,
    error::{Extent, check_shape},
};
use crate::{bridge::matmul, mask::PaddingMask, normalize::masked_softmax, vary::vary_one};

/// The regions of a batch of images.
#[derive(Debug, Clone)]
pub struct Regions {
    features: Tensor<3>,
    keep: PaddingMask,
}

/// Regions with what an attention computes of them once for each image.
#[derive(Debug, Clone)]
pub struct PreparedRegions {
    regions: Regions,
    /// `W_v v_i`: `[batch, regions, hidden]`, or of a gated layer the value's, then the gate's.
    keys: Tensor<3>,
}

/// What attention over regions returns.
#[derive(Debug, Clone)]
pub struct RegionAttended {
    /// The weighted sum of the regions: `[batch, feature size]`.
    pub context: Tensor<2>,
    /// One row per image: `[batch, regions]`. Rows sum to 1, or are 0 where an image has no regions.
    pub weights: Tensor<2>,
}

impl Regions {
    /// `features [batch, regions, feature size]`, of which `keep [batch, regions]` are real. The others are
    /// set to 0.
    ///
    /// # Errors
    /// A size of 0, or a mask of another batch or another number of regions.
    pub fn new(features: Tensor<3>, keep: PaddingMask) -> Result<Self, VisionError> {
        let expected = ["batch", "regions", "feature size"].map(Extent::Any);
        check_shape("features", &features.dims(), &expected)?;
        let [batch, regions, _] = features.dims();
        let expected = [
            Extent::Exactly("batch", batch),
            Extent::Exactly("regions", regions),
        ];
        check_shape("keep", &keep.tensor().dims(), &expected)?;
        Ok(Self {
            features: keep.zero_padding(features),
            keep,
        })
    }

    /// `v`, with 0 in the padding: `[batch, regions, feature size]`.
    pub fn features(&self) -> Tensor<3> {
        self.features.clone()
    }

    /// Which regions are real.
    pub fn keep(&self) -> &PaddingMask {
        &self.keep
    }

    /// Reads the regions by the `scores [batch, questions, regions]` of several questions about each image: `α = softmax(a)`,
    /// `[batch, questions, regions]`, and `v̂ = Σ_i α_i v_i`, `[batch, questions, feature size]`.
    ///
    /// # Errors
    /// Scores of another batch, another number of regions or another precision.
    pub fn read(&self, scores: Tensor<3>) -> Result<(Tensor<3>, Tensor<3>), VisionError> {
        let [batch, count, _] = self.features.dims();
        let expected = [
            Extent::Exactly("batch", batch),
            Extent::Any("questions"),
            Extent::Exactly("regions", count),
        ];
        check_shape("scores", &scores.dims(), &expected)?;
        let [found, expected] = [scores.dtype(), self.features.dtype()];
        if found != expected {
            return Err(VisionError::Precision {
                field: "scores",
                found: found.name(),
                expected: expected.name(),
                owner: "the features",
            });
        }
        let seen = (!self.keep.is_full()).then(|| self.keep.tensor().unsqueeze_dim(1));
        let weights = vary_one(masked_softmax(scores, seen));
        Ok((weights.clone(), matmul(weights, self.features())))
    }

    /// Checks that the features have `size`.
    fn check_size(&self, size: usize) -> Result<(), VisionError> {
        let expected = [
            Extent::Any("batch"),
            Extent::Any("regions"),
            Extent::Exactly("feature size", size),
        ];
        check_shape("features", &self.features.dims(), &expected)
    }

    /// Checks that `vector` is one vector of `size` for each image.
    fn check_vector(
        &self,
        field: &'static str,
        vector: &Tensor<2>,
        size: usize,
    ) -> Result<(), VisionError> {
        let [batch, _, _] = self.features.dims();
        let expected = [
            Extent::Exactly("batch", batch),
            Extent::Exactly("size", size),
        ];
        check_shape(field, &vector.dims(), &expected)
    }
}
