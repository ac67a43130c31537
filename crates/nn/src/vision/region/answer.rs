//! Answers from a question and the attended image: `h = f_q(q) ∘ f_v(v̂)`, `p = σ(W_o f_o(h))`, each `f` a
//! gated hyperbolic tangent, `f(x) = tanh(W x + b) ∘ σ(W' x + b')`.

use burn::{config::Config, module::Module, nn::Linear, tensor::Tensor};

use super::VisionError;
use crate::{
    bridge::{apply, sigmoid},
    initialize::Initializer,
    vision::error::{Extent, check_positive, check_precision, check_shape},
};

/// `f(x) = tanh(W x + b) ∘ σ(W' x + b')`: a layer whose every unit has its own gate.
#[derive(Module, Debug)]
pub struct GatedTanh {
    /// `W`, `b`.
    pub value: Linear,
    /// `W'`, `b'`.
    pub gate: Linear,
}

impl GatedTanh {
    /// A layer with weights from `U(-1/√inputs, 1/√inputs)`.
    pub fn new(inputs: usize, outputs: usize, initializer: &mut Initializer) -> Self {
        Self {
            value: initializer.linear(inputs, outputs, true),
            gate: initializer.linear(inputs, outputs, true),
        }
    }

    /// `x [batch, inputs]` -> `[batch, outputs]`.
    ///
    /// # Errors
    /// An input of another size or precision.
    pub fn forward(&self, x: Tensor<2>) -> Result<Tensor<2>, VisionError> {
        let [inputs, _] = self.value.weight.dims();
        let expected = [Extent::Any("batch"), Extent::Exactly("inputs", inputs)];
        check_shape("x", &x.dims(), &expected)?;
        check_precision("x", x.dtype(), self)?;
        Ok(self.apply(x))
    }

    pub(super) fn apply<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        apply(&self.value, x.clone()).tanh() * sigmoid(apply(&self.gate, x))
    }
}

/// How an [`AnswerHead`] is built.
#[derive(Config, Debug, PartialEq, Eq)]
pub struct AnswerHeadConfig {
    /// Size of the question's vector `q` (paper: 512).
    pub question_size: usize,
    /// Size of the attended vector `v̂` (paper: 2048).
    pub feature_size: usize,
    /// Size of the joint vector `h` (paper: 512).
    pub hidden: usize,
    /// Number of candidate answers (paper: 3129).
    pub answers: usize,
}

impl AnswerHeadConfig {
    /// The module, with weights from `U(-1/√inputs, 1/√inputs)`.
    ///
    /// # Errors
    /// A size of 0.
    pub fn init(&self, initializer: &mut Initializer) -> Result<AnswerHead, VisionError> {
        let Self {
            question_size,
            feature_size,
            hidden,
            answers,
        } = *self;
        check_positive("question_size", question_size)?;
        check_positive("feature_size", feature_size)?;
        check_positive("hidden", hidden)?;
        check_positive("answers", answers)?;
        Ok(AnswerHead {
            question: GatedTanh::new(question_size, hidden, initializer),
            image: GatedTanh::new(feature_size, hidden, initializer),
            joint: GatedTanh::new(hidden, hidden, initializer),
            output: initializer.linear(hidden, answers, false),
        })
    }
}

/// The answers of the question-answering model (see the [module's page](super)).
#[derive(Module, Debug)]
pub struct AnswerHead {
    /// `f_q`.
    pub question: GatedTanh,
    /// `f_v`.
    pub image: GatedTanh,
    /// `f_o`.
    pub joint: GatedTanh,
    /// `W_o`, no bias.
    pub output: Linear,
}

impl AnswerHead {
    /// The probability of each answer, independent of the others: `question [batch, question size]`,
    /// `context [batch, feature size]` -> `[batch, answers]`.
    ///
    /// # Errors
    /// A question or a context of another size or precision, or of two batches.
    pub fn forward(
        &self,
        question: Tensor<2>,
        context: Tensor<2>,
    ) -> Result<Tensor<2>, VisionError> {
        Ok(sigmoid(self.logits(question, context)?))
    }

    /// The same before the `σ`, as a loss needs it.
    ///
    /// # Errors
    /// A question or a context of another size or precision, or of two batches.
    pub fn logits(
        &self,
        question: Tensor<2>,
        context: Tensor<2>,
    ) -> Result<Tensor<2>, VisionError> {
        let [batch, _] = question.dims();
        let [question_size, _] = self.question.value.weight.dims();
        let [feature_size, _] = self.image.value.weight.dims();
        let expected = [Extent::Any("batch"), Extent::Exactly("size", question_size)];
        check_shape("question", &question.dims(), &expected)?;
        let expected = [
            Extent::Exactly("batch", batch),
            Extent::Exactly("size", feature_size),
        ];
        check_shape("context", &context.dims(), &expected)?;
        check_precision("question", question.dtype(), self)?;
        check_precision("context", context.dtype(), self)?;
        let joint = self.question.apply(question) * self.image.apply(context);
        Ok(apply(&self.output, self.joint.apply(joint)))
    }
}
