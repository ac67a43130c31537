//! An image as a sequence: patches, a class token and learned positions, the input of the vision
//! transformer (Dosovitskiy et al. 2020).
//!
//! The image is cut into patches that do not overlap; each becomes a token by one linear map. Before
//! them is a token that belongs to no patch, the class token, from which the answer will be read; a learned vector
//! for each position is added to every token:
//!
//! `z_0 = [x_class; x_1 E; ..; x_N E] + E_pos`
//!
//! Without learned positions `E_pos` is left out, for models that add others or rotate queries and keys.
//!
//! | tensor | shape |
//! |---|---|
//! | image | `[batch, channels, height, width]`, height and width multiples of the patch's |
//! | tokens `z_0` | `[batch, 1 + N, size]`, N = `(height / patch height) · (width / patch width)`, row by row |
//! | `E`, its bias | `[channels · patch height · patch width, size]`, `[size]`; a patch is flattened in this order |
//! | `x_class`, `E_pos` | `[size]`, `[1 + N, size]` |
//!
//! Weights of a convolution whose window and stride are the patch (`[size, channels, patch height, patch
//! width]`, as other libraries store them) are `E` after flattening the last three dimensions and
//! transposing.
//!
//! **Use it** to feed an image to any attention over sequences. **Do not use it** on small data without
//! pretraining, where convolutions win, nor with large images and small patches: attention costs the
//! square of `N`. An image of another size than the trained one needs
//! [`PatchEmbedding::resized`].
//!
//! **Cost**: one matrix product; `size · (channels · patch area + N + 3)` weights.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, vision::PatchEmbeddingConfig};
//!
//! let device = Device::flex();
//! let embedding = PatchEmbeddingConfig::new([32, 48], [16, 16], 3, 64)
//!     .init(&mut Initializer::new(1, &device))?;
//! let tokens = embedding.forward(Tensor::<4>::ones([2, 3, 32, 48], &device))?;
//! assert_eq!(tokens.dims(), [2, 1 + 2 * 3, 64]);
//! // Weights over the tokens, as attention gives them, laid out on the image:
//! let weights = Tensor::<3>::ones([2, 7, 7], &device);
//! assert_eq!(embedding.on_image(weights)?.dims(), [2, 7, 2, 3]);
//! # Ok::<(), regard_nn::vision::VisionError>(())
//! ```
//!
//! Source: A. Dosovitskiy et al., *An Image is Worth 16x16 Words: Transformers for Image Recognition at
//! Scale*, arXiv:2010.11929, equation 1 and section 3.2.

use burn::{
    config::Config,
    module::{Module, Param},
    nn::Linear,
    tensor::Tensor,
};

use super::{
    VisionError,
    error::{Extent, check_positive, check_precision, check_shape, divide},
};
use crate::{
    bridge::{apply, resize},
    initialize::Initializer,
    record::report,
};

/// The standard deviation of the positions' initial values, as in the authors' code.
const POSITION_DEVIATION: f32 = 0.02;

/// How a [`PatchEmbedding`] is built.
#[derive(Config, Debug, PartialEq, Eq)]
pub struct PatchEmbeddingConfig {
    /// Height and width of the image.
    pub image: [usize; 2],
    /// Height and width of a patch; they divide the image's.
    pub patch: [usize; 2],
    /// Channels of the image.
    pub channels: usize,
    /// Size of a token.
    pub size: usize,
    /// Whether a learned vector is added to every token.
    #[config(default = true)]
    pub learned_positions: bool,
}

impl PatchEmbeddingConfig {
    /// The module: `E` from `U(-1/√inputs, 1/√inputs)`, the class token 0, positions from
    /// `N(0, 0.02²)`.
    ///
    /// # Errors
    /// A size of 0, or a patch that does not divide the image.
    pub fn init(&self, initializer: &mut Initializer) -> Result<PatchEmbedding, VisionError> {
        let Self {
            image,
            patch,
            channels,
            size,
            learned_positions,
        } = *self;
        let [rows, columns] = grid(image, patch)?;
        check_positive("channels", channels)?;
        check_positive("size", size)?;
        Ok(PatchEmbedding {
            projection: initializer.linear(channels * patch[0] * patch[1], size, true),
            class_token: initializer.zeros([size]),
            positions: learned_positions
                .then(|| initializer.normal([1 + rows * columns, size], POSITION_DEVIATION)),
            image,
            patch,
        })
    }
}

/// Rows and columns of patches in an image.
fn grid(image: [usize; 2], patch: [usize; 2]) -> Result<[usize; 2], VisionError> {
    Ok([
        divide(("image height", image[0]), ("patch height", patch[0]))?,
        divide(("image width", image[1]), ("patch width", patch[1]))?,
    ])
}

/// Patches, class token and positions (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct PatchEmbedding {
    /// `E` and its bias.
    pub projection: Linear,
    /// `x_class`.
    pub class_token: Param<Tensor<1>>,
    /// `E_pos`, the class token's first.
    pub positions: Option<Param<Tensor<2>>>,
    #[module(skip)]
    image: [usize; 2],
    #[module(skip)]
    patch: [usize; 2],
}

impl PatchEmbedding {
    /// Rows and columns of patches.
    pub fn grid(&self) -> [usize; 2] {
        [self.image[0] / self.patch[0], self.image[1] / self.patch[1]]
    }

    /// `image [batch, channels, height, width]` -> tokens `[batch, 1 + N, size]`.
    ///
    /// # Errors
    /// An image of other channels, another size or precision.
    pub fn forward(&self, image: Tensor<4>) -> Result<Tensor<3>, VisionError> {
        let [inputs, size] = self.projection.weight.dims();
        let [patch_height, patch_width] = self.patch;
        let channels = inputs / (patch_height * patch_width);
        let expected = [
            Extent::Any("batch"),
            Extent::Exactly("channels", channels),
            Extent::Exactly("height", self.image[0]),
            Extent::Exactly("width", self.image[1]),
        ];
        check_shape("image", &image.dims(), &expected)?;
        check_precision("image", image.dtype(), self)?;
        let batch = image.dims()[0];
        let [rows, columns] = self.grid();
        let patches = image
            .reshape([batch, channels, rows, patch_height, columns, patch_width])
            .permute([0, 2, 4, 1, 3, 5]) // [batch, rows, columns, channels, patch height, patch width]
            .reshape([batch, rows * columns, inputs]);
        report("patches", || patches.clone());
        let class_token = self.class_token.val().reshape([1, 1, size]);
        let tokens = vec![
            class_token.expand([batch, 1, size]),
            apply(&self.projection, patches),
        ];
        let tokens = Tensor::cat(tokens, 1);
        report("tokens", || tokens.clone());
        Ok(match &self.positions {
            Some(positions) => tokens + positions.val().unsqueeze_dim::<3>(0),
            None => tokens,
        })
    }

    /// The same weights for images of another size: the positions of the patches are interpolated over the image
    /// (bilinear, with aligned corners), that of the class token is unchanged.
    ///
    /// # Errors
    /// A size that the patch does not divide.
    pub fn resized(mut self, image: [usize; 2]) -> Result<Self, VisionError> {
        let [rows, columns] = grid(image, self.patch)?;
        let [old_rows, old_columns] = self.grid();
        let size = self.class_token.dims()[0];
        self.image = image;
        let interpolated = |positions: Tensor<2>| {
            let tracked = positions.is_require_grad();
            let class_token = positions.clone().narrow(0, 0, 1);
            let patches = positions
                .narrow(0, 1, old_rows * old_columns)
                .reshape([1, old_rows, old_columns, size])
                .permute([0, 3, 1, 2]); // [1, size, rows, columns]
            let patches = resize(patches, [rows, columns], true)
                .permute([0, 2, 3, 1])
                .reshape([rows * columns, size]);
            // A parameter must be a leaf of the graph.
            Tensor::cat(vec![class_token, patches], 0)
                .detach()
                .set_require_grad(tracked)
        };
        self.positions = self.positions.map(|positions| positions.map(interpolated));
        Ok(self)
    }

    /// Weights over the tokens, `[batch, queries, 1 + N]`, arranged as on the image:
    /// `[batch, queries, rows, columns]`. The weight of the class token is left out.
    ///
    /// # Errors
    /// Weights over another number of tokens.
    pub fn on_image(&self, weights: Tensor<3>) -> Result<Tensor<4>, VisionError> {
        let [rows, columns] = self.grid();
        let expected = [
            Extent::Any("batch"),
            Extent::Any("queries"),
            Extent::Exactly("tokens", 1 + rows * columns),
        ];
        check_shape("weights", &weights.dims(), &expected)?;
        let [batch, queries, _] = weights.dims();
        Ok(weights
            .narrow(2, 1, rows * columns)
            .reshape([batch, queries, rows, columns]))
    }
}
