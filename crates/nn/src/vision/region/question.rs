//! Which region a question is about: `a_i = w_aᵀ f_a([v_i, q])`, `f_a` a [`GatedTanh`].
//!
//! A product with `[v_i, q]` is one with `v_i`, which is made once an image, and one with `q`, made once a question.

use burn::{
    config::Config,
    module::{Module, Param},
    tensor::Tensor,
};

use super::{GatedTanh, PreparedRegions, RegionAttended, Regions, VisionError};
use crate::{
    bridge::{gated_scores, linear},
    initialize::Initializer,
    vision::error::{Extent, check_positive, check_precision, check_shape},
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
    /// Computes `W v_i` of both layers of `f_a`, for all questions about the images.
    ///
    /// # Errors
    /// Regions of another feature size or precision.
    pub fn prepare(&self, regions: &Regions) -> Result<PreparedRegions, VisionError> {
        regions.check_size(self.feature_size)?;
        check_precision("features", regions.features.dtype(), self)?;
        let weight = self.weight(0, self.feature_size);
        Ok(PreparedRegions {
            keys: linear(regions.features(), weight, None),
            regions: regions.clone(),
        })
    }

    /// The scores `a_i` for several questions about each image, `question [batch, questions, question size]`:
    /// `[batch, questions, regions]`; of padding they mean nothing. Fused where the kernel serves.
    ///
    /// # Errors
    /// Questions of another size or precision, or of another batch than the regions; regions prepared by another module.
    pub fn scores(
        &self,
        question: Tensor<3>,
        prepared: &PreparedRegions,
    ) -> Result<Tensor<3>, VisionError> {
        let PreparedRegions { regions, keys } = prepared;
        let [inputs, hidden] = self.joint.value.weight.dims();
        let question_size = inputs - self.feature_size;
        let [batch, count, _] = regions.features.dims();
        let expected = [
            Extent::Exactly("batch", batch),
            Extent::Any("questions"),
            Extent::Exactly("size", question_size),
        ];
        check_shape("question", &question.dims(), &expected)?;
        check_precision("question", question.dtype(), self)?;
        let expected = [batch, count, 2 * hidden].map(|size| Extent::Exactly("as prepared", size));
        check_shape("keys", &keys.dims(), &expected)?;
        let biases = [&self.joint.value, &self.joint.gate].map(|layer| layer.bias.as_ref());
        let bias = match biases {
            [Some(value), Some(gate)] => Some(Tensor::cat(vec![value.val(), gate.val()], 0)),
            _ => None,
        };
        let weight = self.weight(self.feature_size, question_size);
        let query = linear(question, weight, bias); // [batch, questions, 2 hidden]
        Ok(gated_scores(query, keys.clone(), self.vector.val()))
    }

    /// Reads `regions` with `question [batch, question size]`, one for each image.
    ///
    /// # Errors
    /// Regions of another feature size or precision, or a question of another size, precision or batch.
    pub fn forward(
        &self,
        question: Tensor<2>,
        regions: &Regions,
    ) -> Result<RegionAttended, VisionError> {
        let prepared = self.prepare(regions)?;
        let [inputs, _] = self.joint.value.weight.dims();
        regions.check_vector("question", &question, inputs - self.feature_size)?;
        let (weights, context) =
            regions.read(self.scores(question.unsqueeze_dim(1), &prepared)?)?;
        Ok(RegionAttended {
            context: context.squeeze_dim(1),
            weights: weights.squeeze_dim(1),
        })
    }

    /// Rows of both layers' weights side by side: `[rows, 2 hidden]`.
    fn weight(&self, start: usize, rows: usize) -> Tensor<2> {
        let layers = [&self.joint.value, &self.joint.gate];
        let parts = layers.map(|layer| layer.weight.val().narrow(0, start, rows));
        Tensor::cat(parts.into(), 1)
    }
}
