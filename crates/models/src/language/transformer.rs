//! Transformers over one sequence (Radford et al. 2018, Devlin et al. 2018).
//!
//! ```text
//! x_t = dropout(norm(a E w_t + P_t))         positions added, or acting in self-attention
//! s   = stack(x)                            causal, or every position sees every other
//! p_t ∝ exp(W_o s_t + b)                    W_o: Eᵀ if tied
//! ```

use burn::{
    module::{Module, Param},
    nn::{Embedding, Linear},
    tensor::{Device, Int, Tensor},
};
use regard_config::{Check, LAYERS, POSITIVE, SIZE, config};
use regard_nn::{
    AttentionError, Observe,
    bridge::{OutputWeights, embed, transposed},
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
    mask::{Mask, PaddingMask},
    position::{Learned, Sinusoidal},
    transformer::{Activation, NormPlace, Stack, StackCache, StackOptions, StackOutput},
};

use crate::{
    AnyTextModel,
    attention::{NormalizerConfig, ScoreConfig, SelfMaskConfig},
    error::ModelError,
    generator::{DecoderState, Output, Scored, expect_valid},
    pretrained::PackedText,
    role::{ModelConfig, TextProperties},
    text_model::{Objective, TextModel},
    transformer::{
        Norm, POSITIVE_F32, Positions, RotaryScalingConfig, TransformerConfig, TransformerDropout,
    },
    vocabulary::Vocabulary,
};

/// The deviation of initial embeddings (GPT-2, BERT).
const DEVIATION: f32 = 0.02;

config! {
    /// A Transformer over one sequence.
    pub struct TextTransformerConfig {
        /// Size of a word vector and of every state.
        d_model: usize = 256, in SIZE;
        /// Layers.
        layers: usize = 4, in LAYERS;
        /// Heads, a divisor of d_model.
        heads: usize = 4, in SIZE;
        /// Key/value heads, a divisor of heads; as many as heads if left out.
        key_value_heads: Option<usize> = None, in SIZE, example "2";
        /// Size of a head; d_model / heads if left out.
        head_size: Option<usize> = None, in SIZE, example "64";
        /// Inner size of the feed-forward network; 4 d_model if left out.
        feed_forward: Option<usize> = None, in SIZE, example "1024";
        /// Activation of the feed-forward network: "relu", "gelu", "gelu-tanh", "silu", "quick-gelu", or with a gate "reglu",
        /// "geglu", "geglu-tanh", "swiglu".
        activation: Activation = Activation::Gelu;
        /// Norms: "layer" or "rms".
        norm: Norm = Norm::Layer;
        /// Added to the variance under the root of a norm, above 0.
        norm_epsilon: f64 = 1e-5, in POSITIVE;
        /// Place of the norms: "pre" (GPT-2), "post" (BERT), "both" or "parallel".
        norm_place: NormPlace = NormPlace::Pre;
        /// The factor of word vectors before positions are added (Gemma: sqrt(d_model)).
        embedding_scale: f64 = 1.0, in POSITIVE_F32;
        /// Whether embeddings are normalised too (BERT).
        embedding_norm: bool = false;
        /// Encoding of positions: "sinusoidal", "learned", "rotary", "relative", "buckets", "alibi" or "none".
        positions: Positions = Positions::Learned;
        /// The slowest pair of features turns by nearly 1 / rotary_base per token; for positions "rotary".
        rotary_base: f64 = 10_000.0, in POSITIVE;
        /// How their angles are reduced for texts longer than those of training; for positions "rotary".
        [choice] rotary_scaling: RotaryScalingConfig = RotaryScalingConfig::None;
        /// The base in layers with a window, whose angles are not reduced; rotary_base if left out (Gemma 3).
        window_rotary_base: Option<f64> = None, in POSITIVE, example "10000.0";
        /// Largest distance with a vector of its own; for positions "relative".
        max_distance: usize = 16, in SIZE;
        /// How many tokens back (in a masked model: to either side) self-attention sees, the token itself among them; all if left
        /// out.
        window: Option<usize> = None, in SIZE, example "64";
        /// Every so many layers one sees all, and has no window (Gemma 2: 2, Gemma 3: 6); none if left out.
        full_every: Option<usize> = None, in LAYERS, example "6";
        /// Whether products have biases.
        bias: bool = true;
        /// Whether queries and keys are divided by their root mean square, with a trained factor for each feature of a head (Qwen 3).
        query_key_norm: bool = false;
        /// Scores s become softcap tanh(s / softcap) (Gemma 2); not limited if left out.
        softcap: Option<f64> = None, in POSITIVE_F32, example "50.0";
        /// How well a query and a key of a head match ("additive" of a head's size); not "location".
        [choice] score: ScoreConfig = ScoreConfig::ScaledDot;
        /// The factor of scaled dot products; 1 / sqrt(head size) if left out.
        score_scale: Option<f64> = None, in POSITIVE_F32, example "0.0625";
        /// From scores to weights; not "hard-reinforce", "monotonic" or "addressing".
        [choice] normalizer: NormalizerConfig = NormalizerConfig::Softmax;
        /// What a token sees of its sequence.
        [choice] mask: SelfMaskConfig = SelfMaskConfig::None;
        /// Dropout.
        [table] dropout: TransformerDropout = TransformerDropout::default();
    }
    check TextTransformerConfig::agree
}

impl TextTransformerConfig {
    /// A model of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            d_model: 8,
            layers: 2,
            heads: 2,
            dropout: TransformerConfig::tiny().dropout,
            ..Self::default()
        }
    }

    fn agree(&self, check: &mut Check) {
        self.blocks().agree(check);
    }

    /// The keys of the blocks, as the Transformer with a source has them.
    pub fn blocks(&self) -> TransformerConfig {
        TransformerConfig {
            d_model: self.d_model,
            heads: self.heads,
            key_value_heads: self.key_value_heads,
            head_size: self.head_size,
            feed_forward: self.feed_forward.unwrap_or(4 * self.d_model),
            activation: self.activation,
            norm: self.norm,
            norm_epsilon: self.norm_epsilon,
            norm_place: self.norm_place,
            positions: self.positions,
            rotary_base: self.rotary_base,
            rotary_scaling: self.rotary_scaling.clone(),
            window_rotary_base: self.window_rotary_base,
            max_distance: self.max_distance,
            window: self.window,
            full_every: self.full_every,
            bias: self.bias,
            query_key_norm: self.query_key_norm,
            softcap: self.softcap,
            score: self.score.clone(),
            score_scale: self.score_scale,
            normalizer: self.normalizer.clone(),
            mask: self.mask.clone(),
            dropout: self.dropout.clone(),
            ..TransformerConfig::default()
        }
    }

    /// Draws the blocks, with the norm after them.
    pub(crate) fn draw_stack(
        &self,
        objective: Objective,
        init: &mut Initializer,
    ) -> Result<Stack, ModelError> {
        let blocks = self.blocks();
        let layer = blocks.layer();
        let stack = match objective {
            Objective::Causal => layer.decoder_only(self.layers, init),
            Objective::Masked => layer.encoder(self.layers, init),
        };
        let mut stack = stack.map_err(refused)?;
        blocks
            .equip(&mut stack, &self.mask, init)
            .map_err(refused)?;
        Ok(stack)
    }

    /// Draws the Transformer for texts of at most `context` tokens.
    pub(crate) fn draw(
        &self,
        vocabulary: &Vocabulary,
        context: usize,
        objective: Objective,
        init: &mut Initializer,
    ) -> Result<TextTransformer, ModelError> {
        let size = self.d_model;
        let layer = self.blocks().layer();
        let tokens = init.embedding(vocabulary.size, size, DEVIATION);
        let positions = match self.positions {
            Positions::Learned => Some(Learned::new(context, size, init).map_err(refused)?),
            _ => None,
        };
        let norm = match self.embedding_norm {
            true => Some(layer.norm.init(size, init).map_err(refused)?),
            false => None,
        };
        Ok(TextTransformer {
            tokens,
            positions,
            norm,
            stack: self.draw_stack(objective, init)?,
            sinusoidal: match self.positions {
                Positions::Sinusoidal => Some(Sinusoidal::new(size).map_err(refused)?),
                _ => None,
            },
            embedding_scale: self.embedding_scale,
            embedding_dropout: self.dropout.embedding,
            normalized: self.normalizer.sums_to_one(),
        })
    }
}

fn refused(error: AttentionError) -> ModelError {
    ModelError(error.to_string())
}

/// Embeddings and blocks over one sequence.
#[derive(Module, Debug)]
pub struct TextTransformer {
    /// `E [vocabulary, d]`
    pub tokens: Embedding,
    /// `P [context, d]`
    pub positions: Option<Learned>,
    /// The norm of embeddings.
    pub norm: Option<regard_nn::transformer::Norm>,
    /// The blocks.
    pub stack: Stack,
    pub(crate) sinusoidal: Option<Sinusoidal>,
    #[module(skip)]
    pub(crate) embedding_scale: f64,
    #[module(skip)]
    embedding_dropout: f64,
    /// Whether weights sum to 1.
    #[module(skip)]
    pub(crate) normalized: bool,
}

impl TextTransformer {
    /// Reads `ids [time, batch]`, of which `keep` are real: states `[batch, time, d]`.
    pub fn forward(
        &self,
        ids: Tensor<2, Int>,
        keep: &PaddingMask,
        observe: Observe,
        noise: &mut DropoutRng,
    ) -> StackOutput {
        let x = self.embed(ids.swap_dims(0, 1), 0, noise);
        let options = StackOptions::new(observe);
        let options = match keep.is_full() {
            true => options,
            false => options.mask(Mask::padding(keep.clone())),
        };
        expect_valid(self.stack.forward(x, None, &options, noise))
    }

    /// `ids [batch, length]`, the first at position `first` -> `[batch, length, d]`.
    fn embed(&self, ids: Tensor<2, Int>, first: usize, noise: &mut DropoutRng) -> Tensor<3> {
        let mut x = embed(&self.tokens, ids);
        if self.embedding_scale != 1.0 {
            x = x * self.embedding_scale;
        }
        if let Some(sinusoidal) = &self.sinusoidal {
            x = expect_valid(sinusoidal.forward(x, first));
        }
        if let Some(learned) = &self.positions {
            x = expect_valid(learned.forward(x, first));
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(x);
        }
        dropout(x, self.embedding_dropout, noise)
    }
}

config! {
    /// Transformer language model: it predicts the next token (GPT), or masked ones (BERT).
    pub struct TransformerLmConfig {
        /// What is predicted: "causal" (the next token) or "masked" (tokens behind masks).
        objective: Objective = Objective::Causal;
        /// Tokens of a training text; with positions "learned" or "sinusoidal", the most that the model reads.
        context: usize = 256, in SIZE;
        /// Whether the output layer shares the word vectors.
        tie: bool = true;
        /// Sizes and choices of the Transformer.
        [table] transformer: TextTransformerConfig = TextTransformerConfig::default();
    }
}

impl TransformerLmConfig {
    /// A model of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            context: 16,
            transformer: TextTransformerConfig::tiny(),
            ..Self::default()
        }
    }
}

impl ModelConfig for TransformerLmConfig {
    type Role = AnyTextModel;
    type Model = TransformerLm;

    fn draw(
        &self,
        vocabulary: &Vocabulary,
        init: &mut Initializer,
    ) -> Result<TransformerLm, ModelError> {
        let size = self.transformer.d_model;
        let transformer = self
            .transformer
            .draw(vocabulary, self.context, self.objective, init)?;
        Ok(TransformerLm {
            transformer,
            output: (!self.tie).then(|| init.normal_linear(size, vocabulary.size, true, DEVIATION)),
            output_bias: self.tie.then(|| init.zeros([vocabulary.size])),
            vocabulary: *vocabulary,
            context: self.context,
        })
    }

    fn layers(&self) -> usize {
        self.transformer.layers
    }

    fn properties(&self) -> TextProperties {
        TextProperties {
            objective: self.objective,
            context: self.context,
        }
    }
}

/// A Transformer language model.
#[derive(Module, Debug)]
pub struct TransformerLm {
    /// Embeddings and blocks.
    pub transformer: TextTransformer,
    /// `W_o, b`; absent when tied.
    pub output: Option<Linear>,
    /// The bias of a tied output layer, `[vocabulary]`.
    pub output_bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    vocabulary: Vocabulary,
    #[module(skip)]
    context: usize,
}

impl TransformerLm {
    fn output_weights(&self) -> OutputWeights {
        output_weights(
            &self.output,
            &self.transformer.tokens,
            self.output_bias.as_ref(),
        )
    }
}

/// The output layer, or the table of word vectors in its place.
pub(super) fn output_weights(
    output: &Option<Linear>,
    tokens: &Embedding,
    bias: Option<&Param<Tensor<1>>>,
) -> OutputWeights {
    match output {
        Some(output) => OutputWeights {
            weight: output.weight.val(),
            is_table: false,
            bias: output.bias.as_ref().map(Param::val),
        },
        None => OutputWeights {
            weight: tokens.weight.val(),
            is_table: true,
            bias: bias.map(Param::val),
        },
    }
}

impl TextModel for TransformerLm {
    type State = StackCache;

    fn vocabulary(&self) -> Vocabulary {
        self.vocabulary
    }

    fn longest(&self) -> Option<usize> {
        let added = &self.transformer;
        let limited = added.positions.is_some() || added.sinusoidal.is_some();
        limited.then_some(self.context)
    }

    fn forward(&self, ids: Tensor<2, Int>, keep: &PaddingMask, noise: &mut DropoutRng) -> Scored {
        let read = self.transformer.forward(ids, keep, Observe::Nothing, noise);
        Scored {
            readout: transposed(read.states, 0).flatten(0, 1), // [time · batch, d]
            output: self.output_weights(),
            weights: None,
            padding: self.vocabulary.padding,
            draws: None,
        }
    }

    fn begin(&self, _rows: usize, _device: &Device) -> Option<StackCache> {
        let stack = &self.transformer.stack;
        stack.is_causal().then(|| expect_valid(stack.cache(None)))
    }

    fn step(&self, ids: Tensor<1, Int>, mut state: StackCache) -> (Output, StackCache) {
        let noise = &mut DropoutRng::none();
        let x = self
            .transformer
            .embed(ids.unsqueeze_dim(1), state.length(), noise); // [rows, 1, d]
        let options = StackOptions::default();
        let stack = &self.transformer.stack;
        let read = expect_valid(stack.forward_cached(x, &mut state, &options));
        let output = Output {
            logits: self.output_weights().logits(read.states.squeeze_dim(1)),
            weights: None,
        };
        (output, state)
    }

    fn read(&self, ids: Tensor<2, Int>, mut state: StackCache) -> StackCache {
        let noise = &mut DropoutRng::none();
        let ids = ids.swap_dims(0, 1);
        let x = self.transformer.embed(ids, state.length(), noise); // [rows, time, d]
        let options = StackOptions::default();
        let stack = &self.transformer.stack;
        expect_valid(stack.forward_cached(x, &mut state, &options));
        state
    }

    fn look(&self, ids: Tensor<2, Int>, keep: &PaddingMask) -> Vec<Tensor<4>> {
        let noise = &mut DropoutRng::none();
        let read = self.transformer.forward(ids, keep, Observe::Weights, noise);
        read.own.into_iter().filter_map(|own| own.weights).collect()
    }

    fn is_normalized(&self) -> bool {
        self.transformer.normalized
    }

    fn pack(&self) -> Option<PackedText> {
        PackedText::of(&self.transformer, self.output_weights(), self.context)
    }
}

impl DecoderState for StackCache {
    fn select(mut self, rows: &[usize], same_sources: bool) -> Self {
        expect_valid(StackCache::select(&mut self, rows, same_sources));
        self
    }
}
