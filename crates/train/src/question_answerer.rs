//! A question about an image in, answers out, and the regions that the model read for them.

use std::collections::BTreeSet;

use burn::tensor::{Device, Tensor, activation::log_sigmoid};
use regard_images::Image;
use regard_models::{
    AnyQuestionAnswerer, QuestionBatch, QuestionSizes, SourceBatch,
    gradient::{WeightGradients, followable, of_maps},
};
use regard_nn::{bridge::sigmoid, dropout::DropoutRng};
use regard_trace::{AttentionMap, Axis, Kind, Token, Tokens, Trace};

use crate::{
    corpus::Limited,
    image_classifier::{LookError, Preparation},
    recipe::{Model, SceneData},
    tasks::Describe,
    tokenizer::{SubwordTokenizer, TokenizerPair, UNKNOWN, lowercase},
};

/// The content of a model file of [questions](crate::tasks::VisualQuestions) apart from the weights.
#[derive(Debug, Clone)]
pub struct Description {
    /// The architecture.
    pub model: Model,
    /// The words of questions.
    pub tokenizers: TokenizerPair,
    /// The answers that the model can give.
    pub answers: Vec<String>,
    /// How an image becomes numbers.
    pub preparation: Preparation,
    /// Most words of a question; of a longer one the first are read.
    pub max_tokens: usize,
    /// The scenes that it learned from, if it did, and their seed. Files of former versions do not tell.
    pub scenes: Option<(SceneData, u64)>,
}

impl Describe<AnyQuestionAnswerer> for Description {
    fn model(&self) -> &Model {
        &self.model
    }

    fn sizes(&self) -> QuestionSizes {
        QuestionSizes {
            channels: self.preparation.normalize.mean().len(),
            size: self.preparation.size,
            vocabulary: self.tokenizers.source().vocabulary(),
            answers: self.answers.len(),
        }
    }
}

impl Description {
    /// The ids of a question's words; of a question of more than [`max_tokens`](Self::max_tokens) words those of the first.
    pub fn encode(&self, question: &str) -> Limited {
        let mut ids = encode(self.tokenizers.source(), question);
        let length = ids.len();
        ids.truncate(self.max_tokens);
        Limited {
            ids,
            cut_from: (length > self.max_tokens).then_some(length),
        }
    }

    /// The words of a question that are read, but that the model has not learned, each once.
    pub fn unknown_words(&self, question: &str) -> Vec<String> {
        let words = words(question);
        let tokenizer = self.tokenizers.source();
        let read = words.split(' ').filter(|word| !word.is_empty());
        let unknown = read
            .take(self.max_tokens)
            .filter(|word| tokenizer.id(word).is_none());
        unknown
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }
}

/// A question as words in lower case with a space between them: letters, digits and apostrophes; punctuation is left out.
///
/// ```
/// assert_eq!(regard_train::question_answerer::words("What's  this, a Star?"), "what's this a star");
/// ```
pub fn words(question: &str) -> String {
    let question = lowercase(question);
    let words = question.split(|letter: char| !letter.is_alphanumeric() && letter != '\'');
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// The ids of a question's words.
pub(crate) fn encode(tokenizer: &SubwordTokenizer, question: &str) -> Vec<u32> {
    let words = words(question);
    let words = words.split(' ').filter(|word| !word.is_empty());
    words
        .map(|word| tokenizer.id(word).unwrap_or(UNKNOWN))
        .collect()
}

/// A model that answers questions about images, ready for use.
#[derive(Debug)]
pub struct QuestionAnswerer {
    model: AnyQuestionAnswerer,
    description: Description,
    device: Device,
}

/// The answers to one question.
#[derive(Debug, Clone)]
pub struct Answered {
    /// The answer of the highest score.
    pub answer: usize,
    /// The probability of every answer, each independent of the others.
    pub scores: Vec<f32>,
}

impl QuestionAnswerer {
    /// An answerer from its parts.
    pub fn new(model: AnyQuestionAnswerer, description: Description, device: &Device) -> Self {
        Self {
            model,
            description,
            device: device.clone(),
        }
    }

    /// Architecture, words, answers, preparation.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The model.
    pub fn model(&self) -> &AnyQuestionAnswerer {
        &self.model
    }

    /// Answers `questions`, each about the image of its number among `images`, which are brought to the model's size first; and what
    /// the model looked at for each: a map over the image as the model read it, with a query for each look.
    ///
    /// # Errors
    /// Those of [`Preparation::fit`]; numbers that are no weights.
    ///
    /// # Panics
    /// If a question is about an image that is not there.
    pub fn ask(
        &self,
        images: &[Image],
        questions: &[(usize, &str)],
    ) -> Result<Vec<(Answered, Trace)>, LookError> {
        let Description {
            preparation,
            answers,
            model,
            ..
        } = &self.description;
        if questions.is_empty() {
            return Ok(vec![]);
        }
        let fitted = images.iter().map(|image| preparation.fit(image));
        let fitted = fitted.collect::<Result<Vec<_>, _>>()?;
        let ids = questions
            .iter()
            .map(|(_, text)| self.description.encode(text).ids);
        let ids: Vec<Vec<u32>> = ids.collect();
        let batch = QuestionBatch {
            words: SourceBatch::new(&ids, &self.model.vocabulary(), &self.device),
            images: questions.iter().map(|&(image, _)| image).collect(),
        };
        let look = self
            .model
            .look(preparation.tensor(&fitted, &self.device), &batch);
        let scores = numbers(sigmoid(look.logits));
        let looks: Vec<Vec<f32>> = look.looks.into_iter().map(numbers).collect();
        let [rows, columns] = look.grid;
        let found = questions.iter().zip(scores.chunks_exact(answers.len()));
        let found = found.enumerate().map(|(row, (&(image, text), scores))| {
            let answered = Answered {
                answer: best(scores),
                scores: scores.to_vec(),
            };
            let answer = &answers[answered.answer];
            let image = &fitted[image];
            let pixels = image.clone().into_pixels();
            let size = [image.height(), image.width()];
            let image = regard_trace::Image::new(size[0], size[1], image.channels(), pixels)?;
            let mut trace = Trace::new(model.kind, text, answer).with_image(image);
            if !looks.is_empty() {
                let cells = rows * columns;
                let keys = Axis::Image {
                    prefix: Tokens::default(),
                    rows,
                    columns,
                };
                let weights = looks.iter().flat_map(|all| &all[row * cells..][..cells]);
                let weights = weights.copied().collect();
                let names = (1..=looks.len()).map(|look| Token::new(format!("look {look}")));
                let names = Tokens::from(names.collect::<Vec<_>>());
                let map = AttentionMap::new(Kind::Other, names, keys, 1, weights)?;
                trace = trace.with_map(map.named(format!("{text} {answer}")));
            }
            Ok((answered, trace))
        });
        found.collect()
    }
}

impl QuestionAnswerer {
    /// The answer to a question about an image, and the gradients of its log probability with respect to each weight over the regions: of the
    /// map of its trace. `None` for a model that looks at nothing.
    ///
    /// # Errors
    /// Those of [`Preparation::fit`]; a model that is too large.
    pub fn gradients(
        &self,
        image: &Image,
        question: &str,
    ) -> Result<Option<(String, WeightGradients, f64)>, LookError> {
        let Description {
            preparation,
            answers,
            ..
        } = &self.description;
        let image = [preparation.fit(image)?];
        let ids = [self.description.encode(question).ids];
        let batch = |device: &Device| QuestionBatch {
            words: SourceBatch::new(&ids, &self.model.vocabulary(), device),
            images: vec![0],
        };
        let read = |device: &Device| preparation.tensor(&image, device);
        let look = (self.model).look(read(&self.device), &batch(&self.device));
        let answer = best(&numbers(look.logits));
        if look.looks.is_empty() {
            return Ok(None);
        }
        let cells = look.grid[0] * look.grid[1];
        let device = self.device.clone().autodiff();
        let model = followable(&self.model);
        let looks = vec![[1, 1, cells]; look.looks.len()];
        let (log_probability, calls) = of_maps(&model, &looks, || {
            let found = model.forward(read(&device), &batch(&device), &mut DropoutRng::none());
            // Each answer has its own probability.
            log_sigmoid(found.logits.narrow(1, answer, 1)).sum()
        })?;
        let found = WeightGradients::of_steps(&calls, 0, [looks.len(), cells]);
        Ok(Some((answers[answer].clone(), found, log_probability)))
    }
}

/// The place of the highest score; of equal ones the first.
pub(crate) fn best(scores: &[f32]) -> usize {
    let places = (0..scores.len()).rev();
    let best = places.max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
    best.unwrap_or_default()
}

fn numbers(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}
