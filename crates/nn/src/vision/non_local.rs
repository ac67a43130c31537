//! The non-local block: the response at a position is a weighted sum over all positions, in space and in time (Wang et al.
//! 2018).
//!
//! `y_i = (1 / C) Σ_j f(x_i, x̂_j) g(x̂_j)`, `z_i = W_z y_i + x_i`
//!
//! | affinity | `f(x_i, x̂_j)` | `C` |
//! |---|---|---|
//! | [`Gaussian`](Affinity::Gaussian) | `e^{x_iᵀ x̂_j}` | `Σ_j f`: a softmax |
//! | [`EmbeddedGaussian`](Affinity::EmbeddedGaussian) | `e^{θ(x_i)ᵀ φ(x̂_j)}` | `Σ_j f`: a softmax, as in self-attention |
//! | [`Dot`](Affinity::Dot) | `θ(x_i)ᵀ φ(x̂_j)` | number of keys |
//! | [`Concatenation`](Affinity::Concatenation) | `ReLU(w_fᵀ [θ(x_i); φ(x̂_j)])` | number of keys |
//!
//! `θ`, `φ` and `g` are linear maps to half the channels. `W_z` starts at 0, so that a block put into a
//! trained network changes nothing before it has learned. `x̂` is `x`, or its maximum over
//! `pool × pool` windows (cut at the border, so that no position is lost): `pool²` times fewer keys.
//!
//! | tensor | shape |
//! |---|---|
//! | `x`, `z` | `[batch, channels, height, width]`, or a video's `[batch, channels, time, height, width]` |
//! | weights `f / C` | `[batch, positions, keys]`, positions in row-major order |
//! | `θ`, `φ`, `g`; `W_z`; `w_f` | `[channels, inner]`; `[inner, channels]`; `[2 inner]`, all without bias |
//!
//! **Use it** late in a network, where maps are small (14 × 14) and distant things must be related. The
//! four affinities differ little (paper, section 5.1); embedded Gaussian is the usual choice. With hundreds of
//! channels make it [`scaled`](NonLocalConfig::scaled), as the authors' code does, or the softmax saturates. **Do not use
//! it** on large maps, or where positions matter: it treats them as a set. [`AxialAttention`](super::AxialAttention) costs
//! less, and can use distances.
//!
//! **Cost**: with `N` positions, `M = N / pool²` keys, `C` channels and `C / 2` inner ones: `2 C²` weights,
//! `N · M · C` multiplications beside the projections (dot products: `N · C² / 4`). The matrix of `N · M` weights is kept for the
//! concatenation only, or if it is asked for: the Gaussian forms are dot-product attention, by its kernel.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, vision::{Affinity, NonLocalConfig}};
//!
//! let device = Device::flex();
//! let block = NonLocalConfig::new(8)
//!     .with_affinity(Affinity::EmbeddedGaussian)
//!     .with_pool(2)
//!     .init(&mut Initializer::new(1, &device))?;
//! let video = Tensor::<5>::ones([2, 8, 3, 6, 4], &device);
//! let attended = block.attend(video)?;
//! assert_eq!(attended.output.dims(), [2, 8, 3, 6, 4]);
//! assert_eq!(attended.weights.dims(), [2, 3 * 6 * 4, 3 * 3 * 2]);
//! # Ok::<(), regard_nn::vision::VisionError>(())
//! ```
//!
//! Source: X. Wang, R. Girshick, A. Gupta, K. He, *Non-local Neural Networks*, arXiv:1711.07971; pooling
//! before `φ` and `g` and the scale from the authors' code (github.com/facebookresearch/video-nonlocal-net,
//! `lib/models/nonlocal_helper.py`, `4b5d2dd`). Their batch normalisation after `W_z` is left to the caller.

use burn::{
    config::Config,
    module::{Module, Param},
    nn::Linear,
    tensor::{Tensor, activation::relu},
};
use serde::{Deserialize, Serialize};

use super::{
    VisionError,
    convolution::max_pool,
    error::{Extent, check_positive, check_precision, check_shape},
};
use crate::{
    attention::{Attention, Observe},
    bridge::{apply, matmul, reshaped, transposed},
    initialize::Initializer,
    score::Score,
};

/// How well two positions match, `f` of the [module's page](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Affinity {
    /// `e^{x_iᵀ x̂_j}`, over their sum.
    Gaussian,
    /// `e^{θ(x_i)ᵀ φ(x̂_j)}`, over their sum.
    #[default]
    EmbeddedGaussian,
    /// `θ(x_i)ᵀ φ(x̂_j)`, over the number of keys.
    Dot,
    /// `ReLU(w_fᵀ [θ(x_i); φ(x̂_j)])`, over the number of keys.
    Concatenation,
}

/// How a [`NonLocal`] is built.
#[derive(Config, Debug, PartialEq, Eq)]
pub struct NonLocalConfig {
    /// Channels of the map.
    pub channels: usize,
    /// Channels of `θ`, `φ` and `g`; `None` for half the channels, at least 1.
    pub inner: Option<usize>,
    /// `f`.
    #[config(default = "Affinity::EmbeddedGaussian")]
    pub affinity: Affinity,
    /// Height and width of the windows whose maxima are the keys; 1 takes every position.
    #[config(default = 1)]
    pub pool: usize,
    /// Whether the products of the two Gaussian forms are divided by the square root of their length (not
    /// in the paper's formula).
    #[config(default = false)]
    pub scaled: bool,
}

impl NonLocalConfig {
    /// The module, with `W_z` at 0 and the other weights from `U(-1/√inputs, 1/√inputs)`.
    ///
    /// # Errors
    /// A size of 0.
    pub fn init(&self, initializer: &mut Initializer) -> Result<NonLocal, VisionError> {
        let Self {
            channels,
            affinity,
            pool,
            scaled,
            ..
        } = *self;
        check_positive("channels", channels)?;
        let inner = self.inner.unwrap_or((channels / 2).max(1));
        check_positive("inner", inner)?;
        check_positive("pool", pool)?;
        let embedded = affinity != Affinity::Gaussian;
        let mut embedding = || initializer.linear(channels, inner, false);
        let (theta, phi) = (embedded.then(&mut embedding), embedded.then(&mut embedding));
        let g = embedding();
        let bound = 1.0 / (2.0 * inner as f32).sqrt();
        Ok(NonLocal {
            theta,
            phi,
            g,
            w_f: (affinity == Affinity::Concatenation)
                .then(|| initializer.uniform([2 * inner], bound)),
            w_z: Linear {
                weight: initializer.zeros([inner, channels]),
                bias: None,
            },
            affinity,
            pool,
            scaled,
        })
    }
}

/// What [`NonLocal`] returns.
#[derive(Debug, Clone)]
pub struct NonLocalAttended<const D: usize> {
    /// `z`, in the shape of the map.
    pub output: Tensor<D>,
    /// `f / C`: `[batch, positions, keys]`. Rows sum to 1 in the two Gaussian forms only.
    pub weights: Tensor<3>,
}

/// The non-local block (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct NonLocal {
    /// `θ`; absent for the Gaussian.
    pub theta: Option<Linear>,
    /// `φ`; absent for the Gaussian.
    pub phi: Option<Linear>,
    /// `g`.
    pub g: Linear,
    /// `w_f`, for the concatenation: first the part that reads `θ`, then the part that reads `φ`.
    pub w_f: Option<Param<Tensor<1>>>,
    /// `W_z`, at first 0.
    pub w_z: Linear,
    #[module(skip)]
    affinity: Affinity,
    #[module(skip)]
    pool: usize,
    #[module(skip)]
    scaled: bool,
}

impl NonLocal {
    /// `z` of a map `[batch, channels, height, width]` or `[batch, channels, time, height, width]`.
    ///
    /// # Errors
    /// A map of other channels, of another rank or precision, or with a size of 0.
    pub fn forward<const D: usize>(&self, map: Tensor<D>) -> Result<Tensor<D>, VisionError> {
        let (output, _) = self.run(map, Observe::Nothing)?;
        Ok(output)
    }

    /// The same, and the weights `[batch, positions, keys]`.
    ///
    /// # Errors
    /// A map of other channels, of another rank or precision, or with a size of 0.
    pub fn attend<const D: usize>(
        &self,
        map: Tensor<D>,
    ) -> Result<NonLocalAttended<D>, VisionError> {
        let (output, weights) = self.run(map, Observe::Weights)?;
        let weights = weights.expect("weights were asked for");
        Ok(NonLocalAttended { output, weights })
    }

    fn run<const D: usize>(
        &self,
        map: Tensor<D>,
        observe: Observe,
    ) -> Result<(Tensor<D>, Option<Tensor<3>>), VisionError> {
        self.check(&map.dims())?;
        check_precision("map", map.dtype(), self)?;
        let positions = sequence(map.clone()); // [batch, positions, channels]
        let keys = match self.pool {
            1 => positions.clone(),
            pool => sequence(pooled(map.clone(), pool)), // [batch, keys, channels]
        };
        let (read, weights) = self.read(positions, keys, observe);
        let residual = reshaped(transposed(apply(&self.w_z, read), 1), map.dims());
        Ok((map + residual, weights))
    }

    /// `y [batch, positions, inner]`, and `f / C` if it is asked for.
    fn read(
        &self,
        positions: Tensor<3>,
        keys: Tensor<3>,
        observe: Observe,
    ) -> (Tensor<3>, Option<Tensor<3>>) {
        let wanted = observe != Observe::Nothing;
        let share = (keys.dims()[1] as f64).recip();
        let value = apply(&self.g, keys.clone()); // [batch, keys, inner]
        let query = embed(&self.theta, positions);
        let key = embed(&self.phi, keys);
        match (self.affinity, &self.w_f) {
            (Affinity::Concatenation, Some(w_f)) => {
                let inner = query.dims()[2];
                let (of_query, of_key) = (
                    w_f.val().narrow(0, 0, inner).reshape([1, inner, 1]),
                    w_f.val().narrow(0, inner, inner).reshape([1, 1, inner]),
                );
                // For each pair a sum of two numbers, in place of the concatenation of two vectors.
                let of_key = matmul(of_key, key.swap_dims(1, 2));
                let weights = relu(matmul(query, of_query) + of_key) * share;
                (matmul(weights.clone(), value), Some(weights))
            }
            (Affinity::Dot, _) => {
                // (θ φᵀ) g = θ (φᵀ g): no pair of positions is looked at.
                let key = key.swap_dims(1, 2); // [batch, inner, keys]
                let summary = matmul(key.clone(), value) * share;
                let weights = wanted.then(|| matmul(query.clone(), key) * share);
                (matmul(query, summary), weights)
            }
            _ => {
                let score = match self.scaled {
                    true => Score::scaled_dot(),
                    false => Score::dot(),
                };
                let [query, key, value] = [query, key, value].map(|x| x.unsqueeze_dim::<4>(1));
                let attended = Attention::new(score).forward(query, key, value, observe);
                let attended = attended.expect("queries, keys and values of one map fit");
                let weights = attended.weights.map(|weights| weights.squeeze_dim(1));
                (attended.context.squeeze_dim(1), weights)
            }
        }
    }

    fn check(&self, found: &[usize]) -> Result<(), VisionError> {
        let [channels, _] = self.g.weight.dims();
        let channels = Extent::Exactly("channels", channels);
        let [batch, time, height, width] = ["batch", "time", "height", "width"].map(Extent::Any);
        match found.len() {
            5 => check_shape("map", found, &[batch, channels, time, height, width]),
            _ => check_shape("map", found, &[batch, channels, height, width]),
        }
    }
}

fn embed(embedding: &Option<Linear>, values: Tensor<3>) -> Tensor<3> {
    match embedding {
        Some(embedding) => apply(embedding, values),
        None => values,
    }
}

/// `[batch, channels, ..]` -> `[batch, positions, channels]`.
fn sequence<const D: usize>(map: Tensor<D>) -> Tensor<3> {
    let [batch, channels] = [map.dims()[0], map.dims()[1]];
    let positions = map.dims()[2..].iter().product();
    transposed(reshaped(map, [batch, channels, positions]), 1)
}

/// The maxima over windows of the last two dimensions: `[batch, channels, keys]`.
fn pooled<const D: usize>(map: Tensor<D>, window: usize) -> Tensor<3> {
    let dims = map.dims();
    let (batch, channels) = (dims[0], dims[1]);
    let planes = dims[1..D - 2].iter().product(); // channels and time
    let planes = map.reshape([batch, planes, dims[D - 2], dims[D - 1]]);
    let maxima = max_pool(planes, window, window);
    let keys = maxima.dims()[1..].iter().product::<usize>() / channels;
    maxima.reshape([batch, channels, keys])
}
