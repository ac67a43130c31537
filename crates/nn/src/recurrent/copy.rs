//! The pointer-generator (See, Liu & Manning 2017, section 2.2): a decoder that at each step mixes generating words of
//! its vocabulary with copying words of the source.
//!
//! ```text
//! p_gen = σ(w_cᵀ c_t + w_sᵀ s_t + w_xᵀ x_t + b)
//! P(w)  = p_gen P_vocabulary(w) + (1 - p_gen) Σ_{i: w_i = w} a_ti
//! ```
//!
//! The sum runs over the source positions that hold `w`, so that a word of the source that is not in the vocabulary has
//! a probability too: such words get numbers after those of the vocabulary, for each sentence (the *extended*
//! vocabulary). The weights learn where to copy from by this sum: they need their gradient, which a decoder keeps if
//! [asked to](super::AttentiveDecoder::with_differentiable_weights). **Use it** for names, numbers and quotations. Not where
//! source and target share no words. Cost: one `[batch, extended]` per step.
//!
//! ```
//! use burn::tensor::{Device, Int, Tensor};
//! use regard_nn::recurrent::PointerGenerator;
//!
//! let device = Device::flex();
//! // A vocabulary of 3; the source reads: word 1, an unknown word (number 3), word 1.
//! let vocabulary = Tensor::<2>::from_floats([[0.5, 0.3, 0.2]], &device);
//! let weights = Tensor::<2>::from_floats([[0.2, 0.7, 0.1]], &device);
//! let source = Tensor::<2, Int>::from_ints([[1, 3, 1]], &device);
//! let generate = Tensor::<1>::from_floats([0.6], &device);
//! let p = PointerGenerator::mix(vocabulary, weights, source, generate, 4)?;
//! let p = p.into_data().into_vec::<f32>().unwrap();
//! for (found, expected) in p.iter().zip([0.3, 0.18 + 0.4 * 0.3, 0.12, 0.4 * 0.7]) {
//!     assert!((found - expected).abs() < 1e-6);
//! }
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```

use burn::{
    module::Module,
    nn::Linear,
    tensor::{IndexingUpdateOp, Int, Tensor},
};

use super::check_shape;
use crate::{
    AttentionError,
    bridge::{apply, sigmoid},
    initialize::Initializer,
    precision::{check_precision, check_weights},
};

/// The gate between generating and copying.
#[derive(Module, Debug)]
pub struct PointerGenerator {
    /// `w_c`, `[context size, 1]`.
    pub context: Linear,
    /// `w_s`, `[state size, 1]`.
    pub state: Linear,
    /// `w_x`, `[input size, 1]`, and the one bias.
    pub input: Linear,
}

impl PointerGenerator {
    /// A gate for a context, a decoder state and a decoder input of these sizes.
    pub fn new(
        context_size: usize,
        state_size: usize,
        input_size: usize,
        initializer: &mut Initializer,
    ) -> Self {
        Self {
            context: initializer.linear(context_size, 1, false),
            state: initializer.linear(state_size, 1, false),
            input: initializer.linear(input_size, 1, true),
        }
    }

    /// `p_gen`, `[rows]`, of `context [rows, context size]`, `state [rows, state size]` and
    /// `x [rows, input size]`.
    ///
    /// # Errors
    /// Sizes, rows or precisions that do not fit.
    pub fn generate(
        &self,
        context: Tensor<2>,
        state: Tensor<2>,
        x: Tensor<2>,
    ) -> Result<Tensor<1>, AttentionError> {
        let [rows, _] = context.dims();
        let size = |linear: &Linear| [rows, linear.weight.dims()[0]];
        check_shape(
            "context",
            context.dims(),
            size(&self.context),
            "[rows, context size]",
        )?;
        check_shape(
            "state",
            state.dims(),
            size(&self.state),
            "[rows, state size]",
        )?;
        check_shape("x", x.dims(), size(&self.input), "[rows, input size]")?;
        for (field, dtype) in [
            ("context", context.dtype()),
            ("state", state.dtype()),
            ("x", x.dtype()),
        ] {
            check_weights(field, dtype, self)?;
        }
        let sum = apply(&self.context, context) + apply(&self.state, state) + apply(&self.input, x);
        Ok(sigmoid(sum).squeeze_dim(1))
    }

    /// The final distribution `[rows, extended]` from that of the `vocabulary [rows, words]`, the
    /// attention `weights [rows, positions]` with their gradient, the number of the word at every `source` position
    /// (`[rows, positions]`, below `extended`; at padding any such number) and `p_gen [rows]`.
    ///
    /// # Errors
    /// Shapes or precisions that do not fit, an extended vocabulary smaller than the vocabulary, or a number beyond it.
    pub fn mix(
        vocabulary: Tensor<2>,
        weights: Tensor<2>,
        source: Tensor<2, Int>,
        generate: Tensor<1>,
        extended: usize,
    ) -> Result<Tensor<2>, AttentionError> {
        let [rows, words] = vocabulary.dims();
        let [_, positions] = weights.dims();
        check_shape(
            "weights",
            weights.dims(),
            [rows, positions],
            "[rows, positions]",
        )?;
        check_shape(
            "source",
            source.dims(),
            [rows, positions],
            "[rows, positions]",
        )?;
        check_shape("generate", generate.dims(), [rows], "[rows]")?;
        for (field, dtype) in [("weights", weights.dtype()), ("generate", generate.dtype())] {
            check_precision(field, dtype, vocabulary.dtype(), "the vocabulary")?;
        }
        if extended < words {
            return Err(AttentionError::value(
                "extended",
                extended,
                format!("at least {words}, the size of the vocabulary"),
                "count the vocabulary and the source's words that it lacks",
            ));
        }
        let beyond = |&word: &i64| word < 0 || word >= extended as i64;
        if let Some(word) = source.to_data().iter::<i64>().find(beyond) {
            return Err(AttentionError::value(
                "source",
                word,
                format!("0 to {}", extended as i64 - 1),
                "number the words that the vocabulary lacks on behind it",
            ));
        }
        let generate = generate.unsqueeze_dim::<2>(1); // [rows, 1]
        let said = vocabulary * generate.clone();
        let said = match extended - words {
            0 => said,
            more => {
                let options = (&said.device(), said.dtype());
                let unsaid = Tensor::zeros([rows, more], options);
                Tensor::cat(vec![said, unsaid], 1)
            }
        };
        let copied = weights * (generate.neg() + 1.0);
        Ok(said.scatter(1, source, copied, IndexingUpdateOp::Add))
    }
}
