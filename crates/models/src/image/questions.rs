//! The role of models that answer questions about an image.

use burn::{
    module::Module,
    tensor::{Tensor, activation::relu},
};
use regard_nn::{bridge::sum, dropout::DropoutRng};
use serde::{Deserialize, Serialize};

use super::ImageSizes;
use crate::{batch::SourceBatch, error::ModelError, role::Sizes, vocabulary::Vocabulary};

/// The images and questions that a model reads, and its number of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuestionSizes {
    /// Channels of an image: 1 or 3.
    pub channels: usize,
    /// Height and width of an image.
    pub size: [usize; 2],
    /// The vocabulary of the questions.
    pub vocabulary: Vocabulary,
    /// The number of answers that it can give.
    pub answers: usize,
}

impl Sizes for QuestionSizes {
    fn check(&self) -> Result<(), ModelError> {
        let Self {
            channels,
            size,
            answers,
            ..
        } = *self;
        if answers < 2 {
            return Err(ModelError(format!(
                "the number of answers is {answers}; expected at least 2"
            )));
        }
        let images = ImageSizes {
            channels,
            size,
            classes: answers,
        };
        images.check()
    }
}

/// Questions, each about an image of a batch.
#[derive(Debug, Clone)]
pub struct QuestionBatch {
    /// The words of the questions.
    pub words: SourceBatch,
    /// Which image of the batch each question is about.
    pub images: Vec<usize>,
}

/// The answers of a model, and what it looked at for them.
#[derive(Debug, Clone)]
pub struct QuestionLook {
    /// `[questions, answers]`, before the `σ`.
    pub logits: Tensor<2>,
    /// For each look the weights of the regions, `[questions, regions]`, row by row of the grid; rows sum to 1. A model that sees no
    /// image has none.
    pub looks: Vec<Tensor<2>>,
    /// Rows and columns of the regions.
    pub grid: [usize; 2],
}

/// A model that answers questions about images.
pub trait QuestionAnswerer: Module + Sync + 'static {
    /// The vocabulary of its questions.
    fn vocabulary(&self) -> Vocabulary;

    /// The scores of the answers to questions about `images [batch, channels, height, width]`, and what was looked at for them. An
    /// image is read once for all of its questions.
    fn forward(
        &self,
        images: Tensor<4>,
        questions: &QuestionBatch,
        noise: &mut DropoutRng,
    ) -> QuestionLook;

    /// The same without dropout.
    fn look(&self, images: Tensor<4>, questions: &QuestionBatch) -> QuestionLook {
        self.forward(images, questions, &mut DropoutRng::none())
    }
}

/// Added to the weight inside an object, so that its logarithm is finite where there is none.
const LEAST_INSIDE: f32 = 1e-6;

/// The loss of weights that were to lie inside an object: `-Σ ln(Σ_i c_i α_i + 10^-6)`, summed over looks, `[1]`. `weights α` and
/// `cover c`, the share of each region that is the object's, are `[looks, regions]`.
///
/// Liu, Mao, Sha and Yuille, *Attention Correctness in Neural Image Captioning*, AAAI 2017 (arXiv:1605.09553), who measure attention by
/// `Σ_i c_i α_i` and supervise it; their loss is the cross-entropy with an even share for each region of the object, which asks for
/// all of it. Here the weights may choose among its regions.
///
/// # Panics
/// If the two have different shapes.
pub fn guided_attention(weights: Tensor<2>, cover: Tensor<2>) -> Tensor<1> {
    let inside = (weights * cover).sum_dim(1);
    -sum((inside + LEAST_INSIDE).log())
}

/// The loss of answers that are given independently of each other: `-Σ_a (s_a ln σ(x_a) + (1 - s_a) ln(1 - σ(x_a)))`, summed over
/// questions, `[1]`; `logits x` and `targets s` are `[questions, answers]`, targets between 0 and 1.
pub fn binary_cross_entropy(logits: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    // max(x, 0) - x s + ln(1 + e^{-|x|}), which overflows nowhere.
    let rest = (-logits.clone().abs()).exp().log1p();
    sum(relu(logits.clone()) - logits * targets + rest)
}
