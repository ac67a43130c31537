//! Which region the next word of a caption is about: `a_i = w_aᵀ tanh(W_v v_i + W_h h_t)`, the
//! [additive score](crate::score::Additive) without bias.

use burn::{config::Config, module::Module, tensor::Tensor};

use super::{PreparedRegions, RegionAttended, Regions, VisionError};
use crate::{
    bridge::{additive_attention, apply},
    initialize::Initializer,
    score::Additive,
    vision::error::{Extent, check_positive, check_precision, check_shape},
};

/// How a [`CaptionAttention`] is built.
#[derive(Config, Debug, PartialEq, Eq)]
pub struct CaptionAttentionConfig {
    /// Size of a region's vector `v_i` (paper: 2048).
    pub feature_size: usize,
    /// Size of the state `h_t` (paper: 1000).
    pub state_size: usize,
    /// Size of the hidden layer in which both are compared (paper: 512).
    pub hidden: usize,
}

impl CaptionAttentionConfig {
    /// The module, with weights from `U(-1/√inputs, 1/√inputs)`.
    ///
    /// # Errors
    /// A size of 0.
    pub fn init(&self, initializer: &mut Initializer) -> Result<CaptionAttention, VisionError> {
        let Self {
            feature_size,
            state_size,
            hidden,
        } = *self;
        check_positive("feature_size", feature_size)?;
        check_positive("state_size", state_size)?;
        check_positive("hidden", hidden)?;
        Ok(CaptionAttention {
            score: Additive {
                query: initializer.linear(state_size, hidden, false),
                key: initializer.linear(feature_size, hidden, false),
                vector: initializer.uniform([hidden], 1.0 / (hidden as f32).sqrt()),
            },
        })
    }
}

/// Top-down attention of the captioning model (see the [module's page](super)).
#[derive(Module, Debug)]
pub struct CaptionAttention {
    /// `w_aᵀ tanh(W_h h + W_v v)`: the query is the state, the keys are the regions.
    pub score: Additive,
}

impl CaptionAttention {
    /// Computes `W_v v_i`, for all words of the captions.
    ///
    /// # Errors
    /// Regions of another feature size or precision.
    pub fn prepare(&self, regions: &Regions) -> Result<PreparedRegions, VisionError> {
        let [feature_size, _] = self.score.key.weight.dims();
        regions.check_size(feature_size)?;
        check_precision("features", regions.features.dtype(), self)?;
        Ok(PreparedRegions {
            regions: regions.clone(),
            keys: self.score.keys(regions.features()),
        })
    }

    /// Reads the regions with `state [batch, state size]`. Fused where the kernel serves; the weights carry
    /// no gradient.
    ///
    /// # Errors
    /// A state of another size or precision, or of another batch than the regions; regions prepared by another module.
    pub fn forward(
        &self,
        state: Tensor<2>,
        prepared: &PreparedRegions,
    ) -> Result<RegionAttended, VisionError> {
        let PreparedRegions { regions, keys } = prepared;
        let [state_size, _] = self.score.query.weight.dims();
        regions.check_vector("state", &state, state_size)?;
        check_precision("state", state.dtype(), self)?;
        let [_, hidden] = self.score.query.weight.dims();
        let [batch, count, _] = regions.features.dims();
        let expected = [batch, count, hidden].map(|size| Extent::Exactly("as prepared", size));
        check_shape("keys", &keys.dims(), &expected)?;
        let query = apply(&self.score.query, state).unsqueeze_dim::<3>(1); // [batch, 1, hidden]
        let keep = (!regions.keep.is_full()).then(|| regions.keep.tensor());
        let (context, weights) = additive_attention(
            query,
            keys.clone(),
            self.score.vector.val(),
            regions.features(),
            keep,
            None,
        );
        Ok(RegionAttended {
            context: context.squeeze_dim(1),
            weights: weights.squeeze_dim(1),
        })
    }
}
