//! Attentive pooling: a sequence (or the positions of an image) as a few weighted means
//! (Lin et al. 2017, "A structured self-attentive sentence embedding").
//!
//! ```text
//! A = softmax(W_2 tanh(W_1 Hᵀ))      [hops, positions], each row over the positions
//! M = A H                            [hops, size]
//! P = ‖A Aᵀ - I‖²_F                  small when hops look at different places
//! ```
//!
//! It is attention whose queries are learned and belong to no input: the score is additive, and row `r`
//! of `W_2` is the vector of hop `r`. Another normaliser may take the place of the softmax, see
//! [`with_normalize`](AttentivePooling::with_normalize). **Use it** on top of any encoder that gives annotations, to get one
//! vector of fixed size and to see what it was made of; one hop is the pooling of Yang et al. 2016. It
//! does not relate positions to each other. Cost: `O(positions (size · a + hops))`.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{initialize::Initializer, mask::PaddingMask, recurrent::AttentivePooling};
//!
//! let device = Device::flex();
//! let pooling = AttentivePooling::new(6, 5, 2, &mut Initializer::new(1, &device));
//! let annotations = Tensor::<3>::ones([3, 7, 6], &device); // [batch, positions, size]
//! let pooled = pooling.forward(annotations, &PaddingMask::from_lengths(&[7, 2, 4], 7, &device))?;
//! assert_eq!(pooled.context.dims(), [3, 2, 6]); // [batch, hops, size]
//! assert_eq!(pooled.weights.dims(), [3, 2, 7]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::{
    module::{Module, Param},
    nn::Linear,
    tensor::Tensor,
};

use super::check_shape;
use crate::{
    AttentionError,
    bridge::{apply, linear, matmul, reshaped, zeros_of},
    dropout::DropoutRng,
    initialize::Initializer,
    mask::PaddingMask,
    normalize::Normalize,
    precision::check_weights,
};

/// The results of pooling.
#[derive(Debug, Clone)]
pub struct Pooled {
    /// `M`, `[batch, hops, size]`.
    pub context: Tensor<3>,
    /// `A`, `[batch, hops, positions]`, with gradient.
    pub weights: Tensor<3>,
}

/// `softmax(W_2 tanh(W_1 Hᵀ))`, and the means that it weights.
#[derive(Module, Debug)]
pub struct AttentivePooling {
    /// `W_1`, `[size, a]`, no bias.
    pub hidden: Linear,
    /// `W_2`, `[a, hops]`.
    pub hops: Param<Tensor<2>>,
    /// From scores to weights; a hop is a head.
    pub normalize: Normalize,
}

impl AttentivePooling {
    /// A pooling of annotations of `size` into `hops` means, with a hidden layer of size `attention`.
    pub fn new(size: usize, attention: usize, hops: usize, initializer: &mut Initializer) -> Self {
        let bound = 1.0 / (attention.max(1) as f32).sqrt();
        Self {
            hidden: initializer.linear(size, attention, false),
            hops: initializer.uniform([attention, hops], bound),
            normalize: Normalize::softmax(),
        }
    }

    /// With another normaliser, which has a head for each hop.
    pub fn with_normalize(mut self, normalize: Normalize) -> Self {
        self.normalize = normalize;
        self
    }

    /// Pools `annotations [batch, positions, size]`; the mean over no positions is 0. Normalisers that draw take the most probable
    /// position.
    ///
    /// # Errors
    /// Annotations of another size or precision, a mask of another batch or length, a setting of the normaliser outside its range,
    /// or a normaliser that looks at queries, of which there are none.
    pub fn forward(
        &self,
        annotations: Tensor<3>,
        keep: &PaddingMask,
    ) -> Result<Pooled, AttentionError> {
        self.forward_with(annotations, keep, &mut DropoutRng::none())
    }

    /// As [`forward`](Self::forward), for training: normalisers that draw do so from `noise`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_with(
        &self,
        annotations: Tensor<3>,
        keep: &PaddingMask,
        noise: &mut DropoutRng,
    ) -> Result<Pooled, AttentionError> {
        let [batch, positions, _] = annotations.dims();
        let [size, _] = self.hidden.weight.dims();
        let meaning = "[batch, positions, size]";
        check_shape(
            "annotations",
            annotations.dims(),
            [batch, positions, size],
            meaning,
        )?;
        let meaning = "[batch, positions]";
        check_shape("keep", keep.tensor().dims(), [batch, positions], meaning)?;
        check_weights("annotations", annotations.dtype(), self)?;
        let hops = self.hops.dims()[1];
        self.normalize.check(hops, annotations.dtype())?;
        if self.normalize.query_size().is_some() {
            return Err(AttentionError::value(
                "normaliser",
                self.normalize.name(),
                "one that looks at scores alone: a pooling has no queries",
                "take another one",
            ));
        }
        let values = keep.zero_padding(annotations);
        let hidden = apply(&self.hidden, values.clone()).tanh(); // [batch, positions, a]
        let scores = linear(hidden, self.hops.val(), None).swap_dims(1, 2);
        let scores = reshaped(scores, [batch, hops, 1, positions]);
        let seen = (!keep.is_full()).then(|| keep.tensor().unsqueeze_dims(&[1, 1]));
        // The scores stand in for queries, which no normaliser that comes this far looks at.
        let normalized = self
            .normalize
            .forward(scores.clone(), seen, &scores, None, Some(noise));
        let weights = reshaped(normalized.weights, [batch, hops, positions]);
        Ok(Pooled {
            context: matmul(weights.clone(), values),
            weights,
        })
    }

    /// `P = ‖A Aᵀ - I‖²_F` of each sentence, `[batch]`, for the `weights [batch, hops, positions]` of
    /// [`forward`](Self::forward): a penalty to be added to a loss, times a small number.
    pub fn redundancy(weights: Tensor<3>) -> Tensor<1> {
        let [batch, hops, _] = weights.dims();
        if batch * hops == 0 {
            let none = Tensor::zeros([batch], (&weights.device(), weights.dtype()));
            return zeros_of(none, &weights);
        }
        let identity = Tensor::<2>::eye(hops, &weights.device()).cast(weights.dtype());
        let overlap = matmul(weights.clone(), weights.swap_dims(1, 2)) - identity.unsqueeze();
        let squares = overlap.clone() * overlap;
        squares
            .reshape([batch, hops * hops])
            .sum_dim(1)
            .squeeze_dim(1)
    }
}
