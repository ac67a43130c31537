//! The vision Transformer (Dosovitskiy et al. 2020): an image as a sequence of patches.
//!
//! ```text
//! z_0 = [x_class; x_1 E; ..; x_N E] + E_pos          patches x_i of the image, row by row
//! z   = stack(z_0)                                   every token sees every other
//! class scores = W z_class + b, or W mean_i z_i + b over the patches
//! ```
//! In place of learned positions `E_pos` patches may have sines of row and column, or queries and keys are rotated by them
//! ([`RotaryGrid`]); class and distillation token then have none.
//! With `stem = "convolutions"` a token is not linear in the pixels of its patch: 3x3 convolutions, each followed by ReLU and the
//! largest of every 3x3 cells, every second one, make a map of one cell a patch, and `x_i` is a cell of it (Hassani et al. 2021). The
//! channels double up to `d_model`. It is meant for small data.
//! With `embedding_norm` the tokens `z_0` are normed first (CLIP, Radford et al. 2021).
//!
//! With a distillation token (DeiT, Touvron et al. 2020) there is a second learned token, with scores of its own, and the class scores
//! are the mean of both. The stack is the one of all Transformers here, with norms before its parts and one after the last.

use std::iter;

use burn::{
    module::{Module, Param},
    nn::{Linear, conv::Conv2d},
    tensor::{Tensor, activation::relu},
};
use regard_config::{Check, FRACTION, LAYERS, POSITIVE, SIZE, config};
use regard_nn::{
    Observe, bridge,
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
    position::{PositionConfig, RotaryConfig, RotaryGrid, SinusoidalGrid},
    transformer::{Activation, Norm, NormConfig, Stack, StackConfig, StackDropout, StackOptions},
    vision::{PatchEmbedding, PatchEmbeddingConfig},
};
use serde::{Deserialize, Serialize};

use super::{
    ImageClassifier, ImageLook, ImageMap, ImageSizes, MapWeights,
    resnet::{convolution, halving_pool},
};
use crate::{
    AnyImageClassifier,
    role::ModelConfig,
    {error::ModelError, generator::expect_valid},
};

/// The standard deviation of the distillation token's initial values, as that of positions.
const TOKEN_DEVIATION: f32 = 0.02;

/// The tokens before the patches by name: a first one that is not read is a register (Darcet et al. 2023).
const CLASS: &str = "[CLS]";
const REGISTER: &str = "[REG]";
const DISTILLATION: &str = "[DIST]";

/// Which states the class scores are computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImagePooling {
    /// That of the class token (Dosovitskiy 2020).
    #[default]
    Class,
    /// The mean of the patches' (Zhai 2022).
    Mean,
}

/// What a token is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageStem {
    /// The pixels of a patch (Dosovitskiy 2020).
    #[default]
    Patches,
    /// What convolutions and poolings make of the patch and its surroundings (Hassani 2021).
    Convolutions,
}

/// How a model knows where a patch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImagePositions {
    /// A learned vector for each (Dosovitskiy 2020).
    #[default]
    Learned,
    /// Sines and cosines of row and column (Beyer 2022).
    Sinusoidal,
    /// Queries and keys are rotated by row and column (Heo 2024).
    Rotary,
}

config! {
    /// Vision Transformer: a classifier of images (Dosovitskiy et al. 2020).
    pub struct VisionTransformerConfig {
        /// Height and width of a patch, in pixels; a divisor of the images'.
        patch: usize = 4, in SIZE;
        /// What a token is made of: "patches", the pixels of its patch; or "convolutions", one for each time that a pooling halves the patch, until it is one cell.
        stem: ImageStem = ImageStem::Patches;
        /// Size of a token.
        d_model: usize = 192, in SIZE;
        /// Layers.
        layers: usize = 6, in LAYERS;
        /// Heads, a divisor of d_model.
        heads: usize = 3, in SIZE;
        /// Inner size of the feed-forward network; 4 d_model if left out.
        feed_forward: Option<usize> = None, in SIZE, example "768";
        /// Which states the class scores are computed from: that of the "class" token, or the "mean" of the patches'.
        pooling: ImagePooling = ImagePooling::Class;
        /// How the model knows where a patch is: "learned" vectors, "sinusoidal" ones, or "rotary": queries and keys are rotated.
        positions: ImagePositions = ImagePositions::Learned;
        /// The slowest pair of features turns by nearly 1 / rotary_base per patch; for positions "rotary".
        rotary_base: f64 = 100.0, in POSITIVE;
        /// Whether there is a second token with scores of its own, the distillation token (Touvron et al. 2020).
        distillation: bool = false;
        /// Activation of the feed-forward network, as that of a language model.
        activation: Activation = Activation::Gelu;
        /// Whether the tokens are normalised before the first layer (CLIP).
        embedding_norm: bool = false;
        /// What norms add to the variance.
        norm_epsilon: f64 = 1e-6, in POSITIVE;
        /// Share of the tokens' units and of each block's output that is set to zero in training, in [0, 1).
        dropout: f64 = 0.0, in FRACTION;
        /// Share of attention weights that is set to zero in training, in [0, 1).
        attention_dropout: f64 = 0.0, in FRACTION;
    }
    check VisionTransformerConfig::agree
}

impl VisionTransformerConfig {
    fn agree(&self, check: &mut Check) {
        if !self.d_model.is_multiple_of(self.heads) {
            let expected = format!("a divisor of d_model, {}", self.d_model);
            check.fail("heads", format!("found {}", self.heads), expected);
        }
        if self.stem == ImageStem::Convolutions {
            let halved = self.patch > 1 && self.patch.is_power_of_two();
            let expected = "a power of 2 above 1 for stem = \"convolutions\"";
            check.require(halved, "patch", self.patch, expected);
        }
        if self.positions == ImagePositions::Sinusoidal {
            let expected = "a multiple of 4 for positions = \"sinusoidal\"";
            check.require(
                self.d_model.is_multiple_of(4),
                "d_model",
                self.d_model,
                expected,
            );
        }
        if self.positions == ImagePositions::Rotary {
            let divides = self.d_model.is_multiple_of(4 * self.heads);
            let expected = "heads of a multiple of 4 features for positions = \"rotary\"";
            check.require(divides, "heads", self.heads, expected);
            check.require(
                self.rotary_base > 1.0,
                "rotary_base",
                self.rotary_base,
                "a number above 1",
            );
        }
        if self.distillation && self.pooling == ImagePooling::Mean {
            let expected = "pooling = \"class\" beside it";
            check.fail("distillation", "found true", expected);
        }
    }

    /// The convolutions before the tokens, for images of so many channels, and the channels of what they make.
    fn stem(&self, channels: usize, init: &mut Initializer) -> (Vec<Conv2d>, usize) {
        let halvings = match self.stem {
            ImageStem::Patches => 0,
            ImageStem::Convolutions => self.patch.ilog2(),
        };
        let doubled = (0..halvings).rev().map(|i| (self.d_model >> i).max(1));
        let widths: Vec<usize> = iter::once(channels).chain(doubled).collect();
        let stem = widths
            .windows(2)
            .map(|pair| convolution([pair[0], pair[1]], 3, 1, init));
        (stem.collect(), widths[widths.len() - 1])
    }

    /// Tokens before the patches.
    fn marks(&self) -> usize {
        1 + usize::from(self.distillation)
    }

    /// A network of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            d_model: 8,
            layers: 2,
            heads: 2,
            ..Self::default()
        }
    }
}

/// A vision Transformer (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct VisionTransformer {
    /// The convolutions before the tokens, none for patches of pixels.
    pub stem: Vec<Conv2d>,
    /// Patches, class token and positions.
    pub embedding: PatchEmbedding,
    /// The norm of the tokens before the first block.
    pub norm: Option<Norm>,
    /// The blocks.
    pub stack: Stack,
    /// Class scores.
    pub head: Linear,
    /// The distillation token and its scores.
    pub distillation: Option<Distillation>,
    /// Whether sines of row and column are added to the patches.
    #[module(skip)]
    sines: bool,
    #[module(skip)]
    pooling: ImagePooling,
    #[module(skip)]
    dropout: f64,
}

/// A second token with scores of its own.
#[derive(Module, Debug)]
pub struct Distillation {
    /// The token and its position, `[d]`.
    pub token: Param<Tensor<1>>,
    /// Class scores.
    pub head: Linear,
}

impl ModelConfig for VisionTransformerConfig {
    type Role = AnyImageClassifier;
    type Model = VisionTransformer;

    fn draw(
        &self,
        sizes: &ImageSizes,
        init: &mut Initializer,
    ) -> Result<VisionTransformer, ModelError> {
        let [height, width] = sizes.size;
        if [height, width]
            .iter()
            .any(|side| !side.is_multiple_of(self.patch))
        {
            return Err(ModelError(format!(
                "patch is {}, images are {height} x {width} pixels; expected a patch that divides both sides",
                self.patch
            )));
        }
        let (stem, channels) = self.stem(sizes.channels, init);
        // Each pooling halves the image and the patch.
        let halved = |side: usize| side >> stem.len();
        let embedding = PatchEmbeddingConfig::new(
            sizes.size.map(halved),
            [halved(self.patch); 2],
            channels,
            self.d_model,
        )
        .with_learned_positions(self.positions == ImagePositions::Learned)
        .init(init)
        .map_err(|error| ModelError(error.to_string()))?;
        let position = match self.positions {
            ImagePositions::Rotary => PositionConfig::Rotary(RotaryConfig {
                base: self.rotary_base,
                grid: Some(RotaryGrid {
                    marks: self.marks(),
                    columns: width / self.patch,
                }),
                ..RotaryConfig::new(self.d_model / self.heads)
            }),
            ImagePositions::Learned | ImagePositions::Sinusoidal => PositionConfig::None,
        };
        let refused = |error: regard_nn::AttentionError| ModelError(error.to_string());
        let norm = NormConfig::Layer {
            epsilon: self.norm_epsilon,
        };
        let stack = StackConfig {
            feed_forward: self.feed_forward.unwrap_or(4 * self.d_model),
            activation: self.activation,
            norm,
            dropout: StackDropout {
                residual: self.dropout,
                attention: self.attention_dropout,
                activation: 0.0,
            },
            position,
            ..StackConfig::new(self.d_model, self.heads)
        };
        let embedding_norm = self.embedding_norm.then(|| norm.init(self.d_model, init));
        Ok(VisionTransformer {
            stem,
            embedding,
            norm: embedding_norm.transpose().map_err(refused)?,
            stack: stack.encoder(self.layers, init).map_err(refused)?,
            head: init.linear(self.d_model, sizes.classes, true),
            distillation: self.distillation.then(|| Distillation {
                token: init.normal([self.d_model], TOKEN_DEVIATION),
                head: init.linear(self.d_model, sizes.classes, true),
            }),
            sines: self.positions == ImagePositions::Sinusoidal,
            pooling: self.pooling,
            dropout: self.dropout,
        })
    }

    fn layers(&self) -> usize {
        self.layers
    }
}

impl VisionTransformer {
    fn run(&self, images: Tensor<4>, observe: Observe, noise: &mut DropoutRng) -> ImageLook {
        // The largest after ReLU is ReLU of the largest, which is a quarter of the work.
        let halved = |x, layer| relu(halving_pool(bridge::convolve(layer, x)));
        let cells = self.stem.iter().fold(images, halved);
        let mut tokens = expect_valid(self.embedding.forward(cells)); // [batch, 1 + patches, d]
        let mut marks = 1;
        if let Some(distillation) = &self.distillation {
            let [batch, length, size] = tokens.dims();
            let token = distillation.token.val().reshape([1, 1, size]);
            let class = tokens.clone().narrow(1, 0, 1);
            let patches = tokens.narrow(1, 1, length - 1);
            tokens = Tensor::cat(vec![class, token.expand([batch, 1, size]), patches], 1);
            marks = 2;
        }
        if self.sines {
            let ([_, _, size], device) = (tokens.dims(), tokens.device());
            let table = expect_valid(SinusoidalGrid::of_cells(size));
            let table = table.table(self.embedding.grid(), &device, tokens.dtype());
            let none = Tensor::zeros([marks, size], (&device, tokens.dtype()));
            tokens = tokens + Tensor::cat(vec![none, table], 0).unsqueeze_dim::<3>(0);
        }
        if let Some(norm) = &self.norm {
            tokens = norm.forward(tokens);
        }
        let tokens = dropout(tokens, self.dropout, noise);
        let options = StackOptions::new(observe);
        let read = expect_valid(self.stack.forward(tokens, None, &options, noise));
        let [_, length, _] = read.states.dims();
        let state = |place: usize| read.states.clone().narrow(1, place, 1).squeeze_dim::<2>(1);
        let vector = match self.pooling {
            ImagePooling::Class => state(0),
            ImagePooling::Mean => {
                let patches = read.states.clone().narrow(1, marks, length - marks);
                patches.mean_dim(1).squeeze_dim::<2>(1)
            }
        };
        let mut logits = bridge::apply(&self.head, vector);
        if let Some(distillation) = &self.distillation {
            logits = (logits + bridge::apply(&distillation.head, state(1))) * 0.5;
        }
        let grid = self.embedding.grid();
        let first = match self.pooling {
            ImagePooling::Class => CLASS,
            ImagePooling::Mean => REGISTER,
        };
        let names: Vec<_> = [first, DISTILLATION].into_iter().take(marks).collect();
        let weights = read.own.into_iter().map(|layer| layer.weights).enumerate();
        let maps = weights.filter_map(|(layer, weights)| {
            Some(ImageMap {
                place: format!("layer {}", layer + 1),
                weights: MapWeights::Pairs {
                    weights: weights?,
                    marks: names.clone(),
                    grid,
                    key_grid: grid,
                },
            })
        });
        ImageLook {
            maps: maps.collect(),
            logits,
        }
    }
}

impl ImageClassifier for VisionTransformer {
    fn forward(&self, images: Tensor<4>, noise: &mut DropoutRng) -> Tensor<2> {
        self.run(images, Observe::Nothing, noise).logits
    }

    fn look(&self, images: Tensor<4>) -> ImageLook {
        self.run(images, Observe::Weights, &mut DropoutRng::none())
    }

    fn has_stack(&self) -> bool {
        true
    }
}
