//! Sizes and choices of Transformer layers.

use serde::{Deserialize, Serialize};

use super::{
    Activation, Decoder, DecoderLayer, Encoder, EncoderLayer, FeedForward, NormConfig, NormPlace,
    block::Residual,
};
use crate::{
    attention::{Attention, AttentionError},
    dropout::check_probability,
    heads::{MultiHead, MultiHeadConfig, ProjectionLayout},
    initialize::Initializer,
    mask::Mask,
    position::PositionConfig,
    score::Score,
};

/// Where numbers are dropped in training, each share in `[0, 1)`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TransformerDropout {
    /// What each block gives, before the residual sum (the paper's `P_drop`).
    pub residual: f64,
    /// Attention weights.
    pub attention: f64,
    /// Between the products of the feed-forward network.
    pub activation: f64,
}

/// Sizes and choices of every layer of a stack; [`TransformerConfig::new`] gives those of Vaswani 2017 with norms before the
/// blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransformerConfig {
    /// `d`: the size of a state.
    pub model_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads, a divisor of `heads`.
    pub key_value_heads: usize,
    /// The inner size of the feed-forward network (the paper: `4 d`).
    pub feed_forward: usize,
    /// What stands between its products.
    pub activation: Activation,
    /// Which norm.
    pub norm: NormConfig,
    /// Where the norms stand.
    pub norm_place: NormPlace,
    /// Positions that act inside self-attention.
    pub position: PositionConfig,
    /// How many positions to either side self-attention sees (a decoder: back, the position itself among them); all if not
    /// said.
    pub window: Option<usize>,
    /// Whether products have biases.
    pub bias: bool,
    /// Dropout.
    pub dropout: TransformerDropout,
}

impl TransformerConfig {
    /// Layers of `model_size` with so many heads, ReLU, layer norm before the blocks, no dropout.
    pub fn new(model_size: usize, heads: usize) -> Self {
        Self {
            model_size,
            heads,
            key_value_heads: heads,
            feed_forward: 4 * model_size,
            activation: Activation::Relu,
            norm: NormConfig::default(),
            norm_place: NormPlace::Pre,
            position: PositionConfig::None,
            window: None,
            bias: true,
            dropout: TransformerDropout::default(),
        }
    }

    /// Draws a stack of `layers` encoder layers.
    ///
    /// # Errors
    /// If a size is 0, heads do not divide, or choices do not go together.
    pub fn encoder(
        &self,
        layers: usize,
        initializer: &mut Initializer,
    ) -> Result<Encoder, AttentionError> {
        self.check()?;
        let layer = |_| {
            Ok(EncoderLayer {
                attention: self.self_attention(initializer)?,
                attention_block: self.block(initializer)?,
                feed_forward: self.feed_forward(initializer),
                feed_forward_block: self.block(initializer)?,
            })
        };
        let layers = (0..layers)
            .map(layer)
            .collect::<Result<_, AttentionError>>()?;
        Ok(Encoder {
            layers,
            norm: self.last_norm(initializer)?,
            window: self.window,
        })
    }

    /// Draws a stack of `layers` decoder layers.
    ///
    /// # Errors
    /// As [`TransformerConfig::encoder`].
    pub fn decoder(
        &self,
        layers: usize,
        initializer: &mut Initializer,
    ) -> Result<Decoder, AttentionError> {
        self.check()?;
        let layer = |_| {
            Ok(DecoderLayer {
                attention: self.self_attention(initializer)?,
                attention_block: self.block(initializer)?,
                cross_attention: self.cross_attention(initializer)?,
                cross_block: self.block(initializer)?,
                feed_forward: self.feed_forward(initializer),
                feed_forward_block: self.block(initializer)?,
            })
        };
        let layers = (0..layers)
            .map(layer)
            .collect::<Result<_, AttentionError>>()?;
        Ok(Decoder {
            layers,
            norm: self.last_norm(initializer)?,
            window: self.window,
        })
    }

    fn check(&self) -> Result<(), AttentionError> {
        if self.feed_forward == 0 {
            let advice = "the paper has four times `model_size`";
            return Err(AttentionError::value(
                "feed_forward",
                0,
                "at least 1",
                advice,
            ));
        }
        for (field, share) in [
            ("dropout.residual", self.dropout.residual),
            ("dropout.attention", self.dropout.attention),
            ("dropout.activation", self.dropout.activation),
        ] {
            check_probability(field, share)?;
        }
        if let Some(window) = self.window {
            Mask::window(window)?;
        }
        Ok(())
    }

    fn heads(&self) -> MultiHeadConfig {
        MultiHeadConfig {
            key_value_heads: self.key_value_heads,
            input_bias: self.bias,
            output_bias: self.bias,
            ..MultiHeadConfig::new(self.model_size, self.heads)
        }
    }

    fn attention(&self) -> Attention {
        Attention::new(Score::scaled_dot()).with_dropout(self.dropout.attention)
    }

    fn self_attention(&self, initializer: &mut Initializer) -> Result<MultiHead, AttentionError> {
        let config = MultiHeadConfig {
            projection: ProjectionLayout::Fused,
            position: self.position.clone(),
            ..self.heads()
        };
        config.init_with(self.attention(), initializer)
    }

    fn cross_attention(&self, initializer: &mut Initializer) -> Result<MultiHead, AttentionError> {
        self.heads().init_with(self.attention(), initializer)
    }

    fn feed_forward(&self, initializer: &mut Initializer) -> FeedForward {
        let sizes = [self.model_size, self.feed_forward];
        FeedForward::new(
            self.activation,
            sizes,
            self.bias,
            self.dropout.activation,
            initializer,
        )
    }

    fn block(&self, initializer: &mut Initializer) -> Result<Residual, AttentionError> {
        Ok(Residual {
            norm: self.norm.init(self.model_size, initializer)?,
            place: self.norm_place,
            dropout: self.dropout.residual,
        })
    }

    fn last_norm(
        &self,
        initializer: &mut Initializer,
    ) -> Result<Option<super::Norm>, AttentionError> {
        match self.norm_place {
            NormPlace::Pre => Ok(Some(self.norm.init(self.model_size, initializer)?)),
            NormPlace::Post => Ok(None),
        }
    }
}
