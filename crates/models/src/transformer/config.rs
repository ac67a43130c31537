//! Sizes and choices of the Transformer.

use regard_config::{Check, Choice, FRACTION, LAYERS, POSITIVE, Range, SIZE, config};
use regard_nn::{
    AttentionError,
    heads::QueryKeyNormKind,
    initialize::Initializer,
    position::{Learned, PositionConfig, RelativeBucketsConfig, RotaryConfig, Scaling, Sinusoidal},
    score::{ScaledDot, Score},
    transformer::{
        Activation, LayerChoice, NormConfig, NormPlace, Stack, StackConfig, StackDropout,
    },
};
use serde::{Deserialize, Serialize};

use super::{model::Transformer, rotary::RotaryScalingConfig};
use crate::{
    AnyGenerator,
    attention::{NormalizerConfig, ScoreConfig, SelfMaskConfig},
    error::ModelError,
    role::{GeneratorProperties, ModelConfig},
    tables::{TablesConfig, Tie},
    vocabulary::Vocabularies,
};

/// The norms of a Transformer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Norm {
    /// Layer norm.
    #[default]
    Layer,
    /// RMS norm.
    Rms,
}

/// How a Transformer encodes the position of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Positions {
    /// Sines and cosines, added to embeddings.
    #[default]
    Sinusoidal,
    /// Trained vectors, added to embeddings.
    Learned,
    /// Queries and keys are turned by their positions.
    Rotary,
    /// Trained vectors for distances, compared with queries.
    Relative,
    /// A trained number for each head and bucket of distances (T5), added to scores.
    Buckets,
    /// A penalty that grows with the distance, added to scores.
    Alibi,
    /// Not at all: an encoder sees a set of tokens; a decoder under a causal mask can still tell where it is (Haviv 2022).
    None,
}

/// A factor that stays above 0 and finite in 32 bits, in which it is multiplied with.
pub(crate) const POSITIVE_F32: Range<f64> = Range {
    holds: |value| (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&value),
    expected: "1.2e-38 to 3.4e38",
};

config! {
    /// Shares of numbers set to zero in training, by place, of a Transformer.
    pub struct TransformerDropout {
        /// On the sums of word vectors and positions, in [0, 1).
        embedding: f64 = 0.1, in FRACTION;
        /// On the output of each block, before the residual sum, in [0, 1).
        residual: f64 = 0.1, in FRACTION;
        /// On attention weights, in [0, 1).
        attention: f64 = 0.0, in FRACTION;
        /// Between the products of the feed-forward network, in [0, 1).
        activation: f64 = 0.0, in FRACTION;
    }
}

config! {
    /// Transformer: self-attention in every layer of encoder and decoder, and attention from the
    /// decoder's layers to the encoder's last states (Vaswani et al. 2017).
    pub struct TransformerConfig {
        /// Size of a word vector and of every state (there 512).
        d_model: usize = 256, in SIZE;
        /// Layers of the encoder (there 6).
        encoder_layers: usize = 3, in LAYERS;
        /// Layers of the decoder (there 6).
        decoder_layers: usize = 3, in LAYERS;
        /// Heads, a divisor of d_model (there 8).
        heads: usize = 8, in SIZE;
        /// Key/value heads, a divisor of heads; as many as heads if left out.
        key_value_heads: Option<usize> = None, in SIZE, example "2";
        /// Size of a head; d_model / heads if left out.
        head_size: Option<usize> = None, in SIZE, example "64";
        /// Inner size of the feed-forward network (there 2048).
        feed_forward: usize = 1_024, in SIZE;
        /// Activation of the feed-forward network: "relu", "gelu" or "swiglu".
        activation: Activation = Activation::Relu;
        /// Norms: "layer" or "rms".
        norm: Norm = Norm::Layer;
        /// Added to the variance under the root of a norm, above 0.
        norm_epsilon: f64 = 1e-5, in POSITIVE;
        /// Place of the norms: "pre" (before each block) or "post" (after it, as in the paper).
        norm_place: NormPlace = NormPlace::Pre;
        /// Encoding of positions: "sinusoidal", "learned", "rotary", "relative", "buckets",
        /// "alibi" or "none".
        positions: Positions = Positions::Sinusoidal;
        /// The slowest pair of features turns by nearly 1 / rotary_base per token; for positions "rotary".
        rotary_base: f64 = 10_000.0, in POSITIVE;
        /// How their angles are reduced for texts longer than those of training; for positions "rotary".
        [choice] rotary_scaling: RotaryScalingConfig = RotaryScalingConfig::None;
        /// The base in layers with a window, whose angles are not reduced; rotary_base if left out (Gemma 3).
        window_rotary_base: Option<f64> = None, in POSITIVE, example "10000.0";
        /// Longest sentence in tokens, its marks included; for positions "learned".
        max_length: usize = 256, in SIZE;
        /// Largest distance with a vector of its own; for positions "relative".
        max_distance: usize = 16, in SIZE;
        /// How many tokens back (in the encoder: to either side) self-attention sees, the token
        /// itself among them; all if left out.
        window: Option<usize> = None, in SIZE, example "64";
        /// Every so many layers one sees all, and has no window (Gemma 2: 2, Gemma 3: 6); none if left out.
        full_every: Option<usize> = None, in LAYERS, example "6";
        /// Whether products have biases.
        bias: bool = true;
        /// Whether self-attention divides queries and keys by their root mean square, with a trained factor for each feature of a
        /// head (Qwen 3).
        query_key_norm: bool = false;
        /// Scores s become softcap tanh(s / softcap) (Gemma 2); not limited if left out.
        softcap: Option<f64> = None, in POSITIVE_F32, example "50.0";
        /// Shared word vectors: "none", "target" or "all".
        tie: Tie = Tie::None;
        /// How well a query and a key of a head match ("additive" of a head's size); not "location".
        [choice] score: ScoreConfig = ScoreConfig::ScaledDot;
        /// The factor of scaled dot products; 1 / sqrt(head size) if left out.
        score_scale: Option<f64> = None, in POSITIVE_F32, example "0.0625";
        /// From scores to weights; not "hard-reinforce", "monotonic" or "addressing".
        [choice] normalizer: NormalizerConfig = NormalizerConfig::Softmax;
        /// Normaliser of the attention to the source, if it is a different one.
        [choice] cross_normalizer: Option<NormalizerConfig> = None, example "\"sparsemax\"";
        /// What a token sees of its own sequence, in the encoder and in the decoder.
        [choice] mask: SelfMaskConfig = SelfMaskConfig::None;
        /// The same in the decoder, if it is a different one.
        [choice] decoder_mask: Option<SelfMaskConfig> = None, example "\"none\"";
        /// Dropout.
        [table] dropout: TransformerDropout = TransformerDropout::default();
    }
    check TransformerConfig::agree
}

impl TransformerConfig {
    /// A model of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            d_model: 8,
            encoder_layers: 2,
            decoder_layers: 2,
            heads: 2,
            feed_forward: 16,
            dropout: TransformerDropout {
                embedding: 0.0,
                residual: 0.0,
                attention: 0.0,
                activation: 0.0,
            },
            ..Self::default()
        }
    }

    pub(crate) fn agree(&self, check: &mut Check) {
        let size = self.d_model;
        let expected = format!("a divisor of model.d_model ({size})");
        let divides = self.head_size.is_some() || size.is_multiple_of(self.heads);
        check.require(divides, "heads", self.heads, &expected);
        if let Some(heads) = self.key_value_heads {
            let expected = format!("a divisor of model.heads ({})", self.heads);
            let divides = self.heads.is_multiple_of(heads);
            check.require(divides, "key_value_heads", heads, &expected);
        }
        if self.positions == Positions::Rotary && divides {
            let head = self.head();
            check.require(
                head.is_multiple_of(2),
                "heads",
                format!("heads of {head}"),
                "heads of an even size (d_model / heads, or head_size) for positions = \"rotary\"",
            );
            let expected = "a number above 1";
            check.require(
                self.rotary_base > 1.0,
                "rotary_base",
                self.rotary_base,
                expected,
            );
            check.require(
                head > 2 || !matches!(self.rotary_scaling, RotaryScalingConfig::Ntk(_)),
                "rotary_scaling",
                "\"ntk\" with heads of 2",
                "heads of at least 4 features: it leaves the first pair as it is",
            );
            if let Some(base) = self.window_rotary_base {
                check.require(base > 1.0, "window_rotary_base", base, expected);
            }
        }
        if let ScoreConfig::Location(_) = self.score {
            check.fail(
                "score",
                "found \"location\"",
                "a score that looks at keys: a head has no other way to tell tokens apart",
            );
        }
        for (key, normalizer) in [
            ("normalizer", Some(&self.normalizer)),
            ("cross_normalizer", self.cross_normalizer.as_ref()),
        ] {
            let Some(normalizer) = normalizer else {
                continue;
            };
            let why = match normalizer {
                NormalizerConfig::HardReinforce(_) => {
                    "\"hard-straight-through\" or \"hard-gumbel\": this one rewards the draws of a single attention"
                }
                NormalizerConfig::Monotonic(_) | NormalizerConfig::Addressing(_) => {
                    "one whose rows do not follow from each other: the queries of a Transformer are computed at once"
                }
                _ => continue,
            };
            check.fail(key, format!("found {:?}", normalizer.kind()), why);
        }
        let (mask, decoder_mask) = (("mask", Some(&self.mask)), self.decoder_mask.as_ref());
        for (key, mask) in [mask, ("decoder_mask", decoder_mask)] {
            if let (Some(SelfMaskConfig::Longformer(_)), Some(window)) = (mask, self.window) {
                check.fail(
                    key,
                    format!("found \"longformer\" with window = {window}"),
                    "no key window: this mask has its own, and a window would hide the global positions",
                );
            }
        }
    }

    /// The value of `cross_normalizer`, or that of `normalizer` if it is left out.
    fn cross_normalizer(&self) -> &NormalizerConfig {
        self.cross_normalizer.as_ref().unwrap_or(&self.normalizer)
    }

    /// The size of a head.
    fn head(&self) -> usize {
        self.head_size.unwrap_or(self.d_model / self.heads)
    }

    /// Gives the heads of `stack` their score, normalisers and mask.
    pub(crate) fn equip(
        &self,
        stack: &mut Stack,
        mask: &SelfMaskConfig,
        init: &mut Initializer,
    ) -> Result<(), AttentionError> {
        let size = self.head();
        for block in &mut stack.layers {
            let own = (&mut block.attention, &self.normalizer);
            let cross = block.cross_attention.as_mut();
            let cross = cross.map(|cross| (cross, self.cross_normalizer()));
            for (heads, normalizer) in [own].into_iter().chain(cross) {
                heads.attention.score = match (&self.score, self.score_scale) {
                    (ScoreConfig::ScaledDot, Some(scale)) => {
                        Score::ScaledDot(ScaledDot::with_scale(scale))
                    }
                    (score, _) => score.init([size, size], size, init),
                };
                heads.attention.normalize = normalizer.init(self.heads, size, init);
            }
            let own = &mut block.attention.attention;
            *own = own.clone().with_mask(mask.mask()?);
        }
        Ok(())
    }

    /// The positions that act in self-attention of layers with this window.
    fn position(&self, window: Option<usize>) -> PositionConfig {
        match self.positions {
            Positions::Sinusoidal | Positions::Learned | Positions::None => PositionConfig::None,
            Positions::Rotary => {
                let own = self.window_rotary_base.filter(|_| window.is_some());
                PositionConfig::Rotary(RotaryConfig {
                    base: own.unwrap_or(self.rotary_base),
                    scaling: match own {
                        Some(_) => Scaling::None,
                        None => self.rotary_scaling.scaling(),
                    },
                    ..RotaryConfig::new(self.head())
                })
            }
            Positions::Relative => PositionConfig::Relative {
                max_distance: self.max_distance,
                values: true,
            },
            Positions::Buckets => PositionConfig::Buckets(RelativeBucketsConfig::default()),
            Positions::Alibi => PositionConfig::Alibi,
        }
    }

    /// Sizes and choices of every layer.
    pub(crate) fn layer(&self) -> StackConfig {
        let epsilon = self.norm_epsilon;
        StackConfig {
            d_model: self.d_model,
            heads: self.heads,
            key_value_heads: self.key_value_heads.unwrap_or(self.heads),
            head_size: self.head_size,
            feed_forward: self.feed_forward,
            activation: self.activation,
            norm: match self.norm {
                Norm::Layer => NormConfig::Layer { epsilon },
                Norm::Rms => NormConfig::Rms { epsilon },
            },
            norm_place: self.norm_place,
            position: self.position(self.window),
            window: self.window,
            layers: (1..=self.full_every.unwrap_or(0))
                .map(|layer| {
                    let window = self.window.filter(|_| Some(layer) != self.full_every);
                    let position = self.position(window);
                    LayerChoice { window, position }
                })
                .collect(),
            biases: self.bias.into(),
            query_key_norm: self
                .query_key_norm
                .then_some(QueryKeyNormKind::Rms { epsilon }),
            softcap: self.softcap,
            dropout: StackDropout {
                residual: self.dropout.residual,
                attention: self.dropout.attention,
                activation: self.dropout.activation,
            },
            ..StackConfig::new(self.d_model, self.heads)
        }
    }
}

impl ModelConfig for TransformerConfig {
    type Role = AnyGenerator;
    type Model = Transformer;

    fn draw(
        &self,
        vocabularies: &Vocabularies,
        init: &mut Initializer,
    ) -> Result<Transformer, ModelError> {
        let (size, layer) = (self.d_model, self.layer());
        let refused = |error: AttentionError| ModelError(error.to_string());
        let sinusoidal = match self.positions {
            Positions::Sinusoidal => Some(Sinusoidal::new(size).map_err(refused)?),
            _ => None,
        };
        let learned = |init: &mut Initializer| match self.positions {
            Positions::Learned => Learned::new(self.max_length, size, init).map(Some),
            _ => Ok(None),
        };
        let tables = TablesConfig::new(vocabularies, [size, size], self.tie);
        let mut model = Transformer {
            source_positions: learned(init).map_err(refused)?,
            target_positions: learned(init).map_err(refused)?,
            tables: tables.unit_variance(init)?,
            encoder: layer.encoder(self.encoder_layers, init).map_err(refused)?,
            decoder: layer.decoder(self.decoder_layers, init).map_err(refused)?,
            sinusoidal,
            embedding_dropout: self.dropout.embedding,
            normalized: self.normalizer.sums_to_one() && self.cross_normalizer().sums_to_one(),
        };
        let decoder_mask = self.decoder_mask.as_ref().unwrap_or(&self.mask);
        for (stack, mask) in [
            (&mut model.encoder, &self.mask),
            (&mut model.decoder, decoder_mask),
        ] {
            self.equip(stack, mask, init).map_err(refused)?;
        }
        Ok(model)
    }

    fn layers(&self) -> usize {
        self.encoder_layers.max(self.decoder_layers)
    }

    fn properties(&self) -> GeneratorProperties {
        GeneratorProperties {
            needs_joint_vocabulary: self.tie == Tie::All,
            longest: (self.positions == Positions::Learned).then_some(self.max_length),
        }
    }
}
