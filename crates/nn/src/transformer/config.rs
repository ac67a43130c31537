//! Sizes and choices of a stack of Transformer blocks.

use serde::{Deserialize, Serialize};

use super::{Activation, Block, FeedForward, Norm, NormConfig, NormPlace, Residual, Stack};
use crate::{
    attention::{Attention, AttentionError},
    dropout::check_probability,
    heads::{MultiHead, MultiHeadConfig, ProjectionLayout, QueryKeyNormKind},
    initialize::Initializer,
    mask::Mask,
    position::PositionConfig,
    score::{ScaledDot, Score},
};

/// Where numbers are dropped in training, each with a probability in `[0, 1)`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StackDropout {
    /// The output of each block, before the residual sum (the paper's `P_drop`).
    pub residual: f64,
    /// Attention weights.
    pub attention: f64,
    /// The activations between the products of the feed-forward network.
    pub activation: f64,
}

/// Which products have biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Biases {
    /// The products of queries, keys and values.
    pub query_key_value: bool,
    /// The output product of attention.
    pub attention_output: bool,
    /// Both products of the feed-forward network.
    pub feed_forward: bool,
}

impl Biases {
    /// A bias for every product (the paper, BERT, GPT-2).
    pub const ALL: Self = Self {
        query_key_value: true,
        attention_output: true,
        feed_forward: true,
    };
    /// No bias (Llama, T5).
    pub const NONE: Self = Self {
        query_key_value: false,
        attention_output: false,
        feed_forward: false,
    };
}

impl From<bool> for Biases {
    fn from(all: bool) -> Self {
        if all { Self::ALL } else { Self::NONE }
    }
}

/// What may differ from block to block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerChoice {
    /// How many positions to either side self-attention sees (in a causal stack: back, including the position itself); `None`
    /// for all.
    pub window: Option<usize>,
    /// Positions that act inside self-attention.
    pub position: PositionConfig,
}

/// Sizes and choices of a [`Stack`]; [`StackConfig::new`] gives those of Vaswani 2017 with norms before the blocks.
///
/// ```
/// use burn::tensor::Device;
/// use regard_nn::{initialize::Initializer, position::{PositionConfig, RotaryConfig}};
/// use regard_nn::transformer::{Activation, Biases, LayerChoice, NormConfig, NormPlace, StackConfig};
///
/// // The blocks of Gemma 2, small: every other one sees a window.
/// let position = PositionConfig::Rotary(RotaryConfig::new(8));
/// let layer = |window| LayerChoice { window, position: position.clone() };
/// let config = StackConfig {
///     key_value_heads: 2,
///     head_size: Some(8),
///     activation: Activation::GegluTanh,
///     norm: NormConfig::Rms { epsilon: 1e-6 },
///     norm_place: NormPlace::Both,
///     layers: vec![layer(Some(4)), layer(None)],
///     biases: Biases::NONE,
///     softcap: Some(50.0),
///     ..StackConfig::new(16, 4)
/// };
/// let stack = config.decoder_only(4, &mut Initializer::new(1, &Device::flex()))?;
/// let windows: Vec<_> = stack.layers.iter().map(|block| block.window()).collect();
/// assert_eq!(windows, [Some(4), None, Some(4), None]);
/// # Ok::<(), regard_nn::AttentionError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StackConfig {
    /// `d`: the size of a state.
    pub d_model: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads, a divisor of `heads`.
    pub key_value_heads: usize,
    /// The features of a head; `None` for `d_model / heads`.
    #[serde(default)]
    pub head_size: Option<usize>,
    /// The inner size of the feed-forward network (the paper: `4 d`).
    pub feed_forward: usize,
    /// The activation between its products.
    pub activation: Activation,
    /// The kind of norm.
    pub norm: NormConfig,
    /// Where the norms are placed.
    pub norm_place: NormPlace,
    /// Positions that act inside self-attention.
    pub position: PositionConfig,
    /// How many positions to either side self-attention sees (in a causal stack: back, including the position itself); `None`
    /// for all.
    pub window: Option<usize>,
    /// For blocks that differ: block `i` has window and position of entry `i mod len`, in place of those above. Empty: all
    /// blocks are alike.
    #[serde(default)]
    pub layers: Vec<LayerChoice>,
    /// Which products have biases.
    pub biases: Biases,
    /// Normalises queries and keys of self-attention to one length (Qwen 3, Gemma 3).
    #[serde(default)]
    pub query_key_norm: Option<QueryKeyNormKind>,
    /// The factor of the products of queries and keys; `None` for `1 / √head size`.
    #[serde(default)]
    pub scale: Option<f64>,
    /// `c` of `c tanh(score / c)` (Gemma 2: 50).
    #[serde(default)]
    pub softcap: Option<f64>,
    /// Dropout.
    pub dropout: StackDropout,
}

/// What a stack is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Encoder,
    Decoder,
    ParallelDecoder,
    DecoderOnly,
}

impl Purpose {
    fn reads_source(self) -> bool {
        matches!(self, Self::Decoder | Self::ParallelDecoder)
    }
}

impl StackConfig {
    /// Blocks of `d_model` with `heads` heads, ReLU, layer norm before the blocks, no dropout.
    pub fn new(d_model: usize, heads: usize) -> Self {
        Self {
            d_model,
            heads,
            key_value_heads: heads,
            head_size: None,
            feed_forward: 4 * d_model,
            activation: Activation::Relu,
            norm: NormConfig::default(),
            norm_place: NormPlace::Pre,
            position: PositionConfig::None,
            window: None,
            layers: vec![],
            biases: Biases::ALL,
            query_key_norm: None,
            scale: None,
            softcap: None,
            dropout: StackDropout::default(),
        }
    }

    /// Draws `layers` blocks in which every position sees every other.
    ///
    /// # Errors
    /// If a size is 0, heads do not divide, or choices contradict each other.
    pub fn encoder(
        &self,
        layers: usize,
        initializer: &mut Initializer,
    ) -> Result<Stack, AttentionError> {
        self.init(Purpose::Encoder, layers, initializer)
    }

    /// Draws `layers` blocks in which every position sees itself, those before it, and a source.
    ///
    /// # Errors
    /// As [`StackConfig::encoder`].
    pub fn decoder(
        &self,
        layers: usize,
        initializer: &mut Initializer,
    ) -> Result<Stack, AttentionError> {
        self.init(Purpose::Decoder, layers, initializer)
    }

    /// Draws `layers` blocks in which every position sees every other, and a source: a decoder that gives all its outputs at once
    /// (the object queries of DETR).
    ///
    /// # Errors
    /// As [`StackConfig::encoder`].
    pub fn parallel_decoder(
        &self,
        layers: usize,
        initializer: &mut Initializer,
    ) -> Result<Stack, AttentionError> {
        self.init(Purpose::ParallelDecoder, layers, initializer)
    }

    /// Draws `layers` blocks in which every position sees itself and those before it.
    ///
    /// # Errors
    /// As [`StackConfig::encoder`].
    pub fn decoder_only(
        &self,
        layers: usize,
        initializer: &mut Initializer,
    ) -> Result<Stack, AttentionError> {
        self.init(Purpose::DecoderOnly, layers, initializer)
    }

    fn init(
        &self,
        purpose: Purpose,
        layers: usize,
        initializer: &mut Initializer,
    ) -> Result<Stack, AttentionError> {
        self.check(purpose)?;
        let block = |layer: usize| {
            let choice = self.layers.get(layer % self.layers.len().max(1));
            let (window, position) = match choice {
                Some(choice) => (choice.window, &choice.position),
                None => (self.window, &self.position),
            };
            let reads_source = purpose.reads_source();
            Ok(Block {
                attention: self.self_attention(position.clone(), initializer)?,
                attention_block: self.residual(true, initializer)?,
                cross_attention: match reads_source {
                    true => Some(self.heads().init_with(self.attention(None), initializer)?),
                    false => None,
                },
                cross_block: match reads_source {
                    true => Some(self.residual(true, initializer)?),
                    false => None,
                },
                feed_forward: FeedForward::new(
                    self.activation,
                    [self.d_model, self.feed_forward],
                    self.biases.feed_forward,
                    self.dropout.activation,
                    initializer,
                ),
                feed_forward_block: self
                    .residual(self.norm_place != NormPlace::Parallel, initializer)?,
                window,
            })
        };
        let layers = (0..layers)
            .map(block)
            .collect::<Result<_, AttentionError>>()?;
        Ok(Stack {
            layers,
            norm: match self.norm_place {
                NormPlace::Post => None,
                _ => Some(self.new_norm(initializer)?),
            },
            causal: matches!(purpose, Purpose::Decoder | Purpose::DecoderOnly),
        })
    }

    fn check(&self, purpose: Purpose) -> Result<(), AttentionError> {
        if self.feed_forward == 0 {
            let advice = "the paper has four times `d_model`";
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
        for window in self
            .layers
            .iter()
            .map(|layer| layer.window)
            .chain([self.window])
            .flatten()
        {
            Mask::window(window)?;
        }
        if self.norm_place == NormPlace::Parallel && purpose.reads_source() {
            return Err(AttentionError::combination(
                "norm_place",
                "Parallel",
                "blocks with cross-attention",
                "no model has all three side by side; let the norms stand before, after or on both sides",
            ));
        }
        Ok(())
    }

    fn heads(&self) -> MultiHeadConfig {
        MultiHeadConfig {
            key_value_heads: self.key_value_heads,
            head_size: self.head_size,
            input_bias: self.biases.query_key_value,
            output_bias: self.biases.attention_output,
            ..MultiHeadConfig::new(self.d_model, self.heads)
        }
    }

    fn attention(&self, norm: Option<QueryKeyNormKind>) -> Attention {
        let score = match (norm, self.scale) {
            (_, Some(scale)) => Score::ScaledDot(ScaledDot::with_scale(scale)),
            // This norm has its own scale.
            (Some(QueryKeyNormKind::L2 { .. }), None) => Score::dot(),
            _ => Score::scaled_dot(),
        };
        let attention = Attention::new(score).with_dropout(self.dropout.attention);
        match self.softcap {
            Some(softcap) => attention.with_softcap(softcap),
            None => attention,
        }
    }

    fn self_attention(
        &self,
        position: PositionConfig,
        initializer: &mut Initializer,
    ) -> Result<MultiHead, AttentionError> {
        let config = MultiHeadConfig {
            projection: ProjectionLayout::Fused,
            position,
            query_key_norm: self.query_key_norm,
            ..self.heads()
        };
        config.init_with(self.attention(self.query_key_norm), initializer)
    }

    fn residual(
        &self,
        norm: bool,
        initializer: &mut Initializer,
    ) -> Result<Residual, AttentionError> {
        let mut draw = |wanted: bool| match wanted {
            true => self.new_norm(initializer).map(Some),
            false => Ok(None),
        };
        Ok(Residual {
            norm: draw(norm)?,
            after: draw(self.norm_place == NormPlace::Both)?,
            place: self.norm_place,
            dropout: self.dropout.residual,
        })
    }

    fn new_norm(&self, initializer: &mut Initializer) -> Result<Norm, AttentionError> {
        self.norm.init(self.d_model, initializer)
    }
}
