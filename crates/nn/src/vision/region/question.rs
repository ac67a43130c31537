//! Which region a question is about: `a_i = w_aᵀ f_a([v_i, q])`, `f_a` a [`GatedTanh`].

use burn::{
    config::Config,
    module::{Module, Param},
    tensor::Tensor,
};

use super::{GatedTanh, RegionAttended, Regions, VisionError};
use crate::{
    bridge::{linear, matmul},
    initialize::Initializer,
    normalize::masked_softmax,
    vision::error::{check_positive, check_precision},
};

/// How a [`QuestionAttention`] is built.
#[derive(Config, Debug, PartialEq, Eq)]
pub struct QuestionAttentionConfig {
    /// Size of a region's vector `v_i` (paper: 2048).
    pub feature_size: usize,
    /// Size of the question's vector `q` (paper: 512).
    pub question_size: usize,
    /// Size of the hidden layer (paper: 512).
    pub hidden: usize,
}

impl QuestionAttentionConfig {
    /// The module, with weights from `U(-1/√inputs, 1/√inputs)`.
    ///
    /// # Errors
    /// A size of 0.
    pub fn init(&self, initializer: &mut Initializer) -> Result<QuestionAttention, VisionError> {
        let Self {
            feature_size,
            question_size,
            hidden,
        } = *self;
        check_positive("feature_size", feature_size)?;
        check_positive("question_size", question_size)?;
        check_positive("hidden", hidden)?;
        Ok(QuestionAttention {
            joint: GatedTanh::new(feature_size + question_size, hidden, initializer),
            vector: initializer.uniform([hidden], 1.0 / (hidden as f32).sqrt()),
            feature_size,
        })
    }
}

/// Top-down attention of the question-answering model (see the [module's page](super)).
#[derive(Module, Debug)]
pub struct QuestionAttention {
    /// `f_a`, over the region's vector and the question's, in this order.
    pub joint: GatedTanh,
    /// `w_a`, `[hidden]`.
    pub vector: Param<Tensor<1>>,
    #[module(skip)]
    feature_size: usize,
}

impl QuestionAttention {
    /// Reads `regions` with `question [batch, question size]`.
    ///
    /// # Errors
    /// Regions of another feature size or precision, or a question of another size, precision or batch.
    pub fn forward(
        &self,
        question: Tensor<2>,
        regions: &Regions,
    ) -> Result<RegionAttended, VisionError> {
        let [inputs, hidden] = self.joint.value.weight.dims();
        let question_size = inputs - self.feature_size;
        regions.check_size(self.feature_size)?;
        regions.check_vector("question", &question, question_size)?;
        check_precision("features", regions.features.dtype(), self)?;
        check_precision("question", question.dtype(), self)?;
        let features = regions.features();
        let [batch, count, _] = features.dims();
        let question = question
            .unsqueeze_dim::<3>(1)
            .expand([batch, count, question_size]);
        let joint = Tensor::cat(vec![features.clone(), question], 2);
        let vector = self.vector.val().reshape([hidden, 1]);
        let scores = linear(self.joint.apply(joint), vector, None).swap_dims(1, 2); // [batch, 1, regions]
        let seen = (!regions.keep.is_full()).then(|| regions.keep.tensor().unsqueeze_dim(1));
        let weights = masked_softmax(scores, seen);
        Ok(RegionAttended {
            context: matmul(weights.clone(), features).squeeze_dim(1),
            weights: weights.squeeze_dim(1),
        })
    }
}
