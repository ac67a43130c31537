//! Sizes and choices of multi-head attention.

use serde::{Deserialize, Serialize};

use super::{
    Gate, MultiHead, OutputGate, Projection, ProjectionLayout, QueryKeyNorm, QueryKeyNormKind,
    TalkingHeads,
    projection::{Sizes, glorot},
};
use crate::{
    attention::{Attention, AttentionError},
    initialize::Initializer,
    position::PositionConfig,
    score::Score,
};

/// Sizes and choices of [`MultiHead`]; [`MultiHeadConfig::new`] gives those of Vaswani 2017.
///
/// ```
/// use burn::tensor::Device;
/// use regard_nn::{heads::{MultiHeadConfig, QueryKeyNormKind}, initialize::Initializer};
/// use regard_nn::position::{PositionConfig, RotaryConfig};
///
/// // The attention of Qwen 3, small.
/// let config = MultiHeadConfig {
///     position: PositionConfig::Rotary(RotaryConfig::new(16)),
///     query_key_norm: Some(QueryKeyNormKind::Rms { epsilon: 1e-6 }),
///     ..MultiHeadConfig::grouped_query(64, 4, 2)
/// };
/// let layer = config.init(&mut Initializer::new(1, &Device::flex()))?;
/// assert_eq!(layer.head_size(), 16);
///
/// let error = MultiHeadConfig::new(64, 5).init(&mut Initializer::new(1, &Device::flex())).unwrap_err();
/// assert!(error.to_string().starts_with("`heads` is 5, expected a divisor of `d_model` (64)"));
/// # Ok::<(), regard_nn::AttentionError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MultiHeadConfig {
    /// The size of the states that queries are computed from, and of the output.
    pub d_model: usize,
    /// The size of the states that keys and values are computed from, if it is not `d_model`
    /// (cross-attention).
    pub source_size: Option<usize>,
    /// `h`: query heads.
    pub heads: usize,
    /// `g`: key/value heads, a divisor of `heads`.
    pub key_value_heads: usize,
    /// `d`: the features of a query and of a key; `None` for `d_model / heads`.
    pub head_size: Option<usize>,
    /// `d_v`: the features of a value; `None` for `head_size`.
    pub value_size: Option<usize>,
    /// Whether queries, keys and values come from one matrix or from three.
    pub projection: ProjectionLayout,
    /// Whether the matrices of queries, keys and values have a bias (the paper: no; PyTorch: yes).
    pub input_bias: bool,
    /// Whether the output matrix has a bias (the paper: no; PyTorch: yes).
    pub output_bias: bool,
    /// How the heads are told the positions of tokens.
    pub position: PositionConfig,
    /// Normalises queries and keys to one length.
    pub query_key_norm: Option<QueryKeyNormKind>,
    /// Whether heads mix their scores before the softmax and their weights after it.
    pub talking_heads: bool,
    /// A gate applied to the heads' output.
    pub gate: Option<Gate>,
}

impl MultiHeadConfig {
    /// Multi-head attention of `heads` heads of `d_model / heads` features.
    pub fn new(d_model: usize, heads: usize) -> Self {
        Self {
            d_model,
            source_size: None,
            heads,
            key_value_heads: heads,
            head_size: None,
            value_size: None,
            projection: ProjectionLayout::Separate,
            input_bias: false,
            output_bias: false,
            position: PositionConfig::None,
            query_key_norm: None,
            talking_heads: false,
            gate: None,
        }
    }

    /// Draws a layer that scores by scaled dot product (under [`QueryKeyNormKind::L2`] by the dot product,
    /// as that norm has its own scale) and normalises by softmax.
    ///
    /// # Errors
    /// If a size is 0, heads do not divide, or choices contradict each other.
    pub fn init(&self, initializer: &mut Initializer) -> Result<MultiHead, AttentionError> {
        let score = match self.query_key_norm {
            Some(QueryKeyNormKind::L2 { .. }) => Score::dot(),
            _ => Score::scaled_dot(),
        };
        self.init_with(Attention::new(score), initializer)
    }

    /// Draws a layer whose heads attend as `attention` does: another score, mask, normaliser, softcap or
    /// dropout. Weights of the score are shared by the heads.
    ///
    /// # Errors
    /// If a size is 0, heads do not divide, or choices contradict each other.
    pub fn init_with(
        &self,
        attention: Attention,
        initializer: &mut Initializer,
    ) -> Result<MultiHead, AttentionError> {
        let sizes = self.check()?;
        let source_size = self.source_size.unwrap_or(self.d_model);
        let projection = Projection::new(
            self.projection,
            [self.d_model, source_size],
            &sizes,
            self.input_bias,
            initializer,
        );
        let output = glorot(
            sizes.heads * sizes.value,
            self.d_model,
            self.output_bias,
            initializer,
        );
        let position = self
            .position
            .init(sizes.heads, sizes.head, sizes.value, initializer)?;
        let query_key_norm = self
            .query_key_norm
            .map(|kind| QueryKeyNorm::new(kind, sizes.head, initializer))
            .transpose()?;
        let talking_heads = self
            .talking_heads
            .then(|| TalkingHeads::new(sizes.heads, initializer));
        let gate = self
            .gate
            .map(|gate| OutputGate::new(gate, self.d_model, sizes.heads, sizes.value, initializer));
        Ok(MultiHead {
            attention,
            projection,
            output,
            position,
            query_key_norm,
            talking_heads,
            gate,
            sizes,
        })
    }

    fn check(&self) -> Result<Sizes, AttentionError> {
        let positive = [
            ("d_model", Some(self.d_model)),
            ("source_size", self.source_size),
            ("heads", Some(self.heads)),
            ("key_value_heads", Some(self.key_value_heads)),
            ("head_size", self.head_size),
            ("value_size", self.value_size),
        ];
        if let Some((field, _)) = positive.iter().find(|(_, size)| *size == Some(0)) {
            let advice = "sizes count features or heads";
            return Err(AttentionError::value(field, 0, "at least 1", advice));
        }
        if self.head_size.is_none() && !self.d_model.is_multiple_of(self.heads) {
            return Err(AttentionError::value(
                "heads",
                self.heads,
                format!("a divisor of `d_model` ({})", self.d_model),
                "choose another number of heads, or say the size of a head in `head_size`",
            ));
        }
        if !self.heads.is_multiple_of(self.key_value_heads) {
            return Err(AttentionError::value(
                "key_value_heads",
                self.key_value_heads,
                format!("a divisor of `heads` ({})", self.heads),
                "every key/value head serves the same number of query heads",
            ));
        }
        if let (ProjectionLayout::Fused, Some(source)) = (self.projection, self.source_size)
            && source != self.d_model
        {
            return Err(AttentionError::combination(
                "source_size",
                source,
                format!("a fused projection of `d_model` {}", self.d_model),
                "one matrix takes states of one size; use `ProjectionLayout::Separate`",
            ));
        }
        let head = self.head_size.unwrap_or(self.d_model / self.heads);
        Ok(Sizes {
            heads: self.heads,
            key_value_heads: self.key_value_heads,
            head,
            value: self.value_size.unwrap_or(head),
        })
    }
}
