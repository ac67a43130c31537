//! Answers to questions about an image: attention over its regions, asked by the question.
//!
//! ```text
//! q   = LSTM(E w_1, .., E w_T)                       the state after the last word, [questions, hidden]
//! v_i = [backbone(image)_i; p_i]                     a region and its place, [images, regions, features + 10]
//! p_i = [x, y, sin and cos of πx/2, πy/2, πx, πy]    of its centre, -1 to 1 from left to right and from top to bottom
//! ```
//!
//! | attention | scores of the regions | answers |
//! |---|---|---|
//! | `bottom-up` | `a_i^k = w_kᵀ f_k([v_i; q; v̂^1; ..; v̂^{k-1}])` | `σ(W_o f_o(f_q(q) ∘ f_v([v̂^K; m^K])))` |
//! | `stacked` | `a_i^k = w_kᵀ tanh(W_k u_i + V_k u^{k-1} + b_k)`, `u_i = tanh(W v_i + b)`, `u^0 = q` | `σ(W_o u^K + b_o)`, `u^k = û^k + u^{k-1}` |
//! | `question-only` | none: it sees no image | `σ(W_o f_o(f_q(q)))` |
//!
//! `α^k = softmax(a^k)`, `v̂^k = Σ_i α_i^k v_i`, `û^k = Σ_i α_i^k u_i`, each `f(x) = tanh(W x + b) ∘ σ(W' x + b')`.
//!
//! `bottom-up` with one look and without counts is the attention of Anderson et al. 2018 and Teney et al. 2018 over the cells of a
//! grid, in place of the boxes of a detector. Three things go beyond it. A region knows its place, without which neither "where" nor
//! "left of" has an answer. A second look knows what the first one read (as in stacked attention, but beside it, not added to it), so
//! that "What is above the square?" can find the square first; the answer is read from the last look alone, so that this one has to be
//! at what is asked for. The last look also says how many regions it found, `m^K = Σ_i σ(a_i^K + b)`: a softmax takes a mean of what it
//! found and cannot count (Zhang, Hare and Prügel-Bennett 2018, arXiv:1802.05766, section 3).
//!
//! `stacked` is the attention of Yang et al. 2016, with the places of the regions. Both give each answer its own probability, as
//! Teney et al. do, where Yang et al. have a softmax.
//!
//! Sources: P. Anderson et al., arXiv:1707.07998, section 3.3; D. Teney et al., *Tips and Tricks for Visual Question Answering*,
//! arXiv:1708.02711, section 3; Z. Yang et al., *Stacked Attention Networks for Image Question Answering*, arXiv:1511.02274,
//! section 3.3.

use burn::{
    module::{Module, Param},
    nn::{Embedding, Linear},
    tensor::{Device, Int, Tensor, TensorData},
};
use regard_config::{FRACTION, Range, SIZE, choice, config};
use regard_nn::{
    bridge::{self, sigmoid},
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
    mask::PaddingMask,
    recurrent::{Direction, LstmStack, positions},
    score::Additive,
    vision::{
        AnswerHead, AnswerHeadConfig, GatedTanh, QuestionAttention, QuestionAttentionConfig,
        Regions,
    },
};

use super::{
    backbone::{Backbone, BackboneConfig},
    questions::{QuestionAnswerer, QuestionBatch, QuestionLook, QuestionSizes},
};
use crate::{
    AnyQuestionAnswerer,
    batch::SourceBatch,
    error::ModelError,
    generator::expect_valid,
    recurrent::index,
    role::{ModelConfig, QuestionProperties},
    vocabulary::Vocabulary,
};

const LOOKS: Range<usize> = Range {
    holds: |looks| (1..=8).contains(&looks),
    expected: "1 to 8",
};

/// Numbers of a region's place, which stand behind its features.
const PLACE: usize = 10;

/// The place of a region whose centre is at `x`, `y`: from the coordinates alone fields of an image would be learned slowly.
fn place(x: f32, y: f32) -> [f32; PLACE] {
    let wave = |at: f32| (std::f32::consts::PI * at).sin_cos();
    let [(a, b), (c, d), (e, f), (g, h)] = [x / 2.0, y / 2.0, x, y].map(wave);
    [x, y, a, b, c, d, e, f, g, h]
}

config! {
    /// Keys of "bottom-up".
    pub struct BottomUpConfig {
        /// Hidden units in which a region and the question are compared (there 512).
        dimension: usize = 64, in SIZE;
        /// Looks, each of which knows what those before it read; the last one is what the answer is read from (there 1).
        looks: usize = 2, in LOOKS;
        /// Whether the last look also says how many regions it found, which a softmax cannot (there false).
        counts: bool = true;
    }
}

config! {
    /// Keys of "stacked".
    pub struct StackedConfig {
        /// Hidden units in which a region and the question are compared (there 512).
        dimension: usize = 64, in SIZE;
        /// Looks, each of which is asked by the sum of the question and what those before it read (there 2).
        looks: usize = 2, in LOOKS;
    }
}

choice! {
    /// How a question reads the regions of an image.
    pub enum RegionAttention {
        /// Gated scores of each region beside the question (Anderson 2018, Teney 2018).
        "bottom-up" => BottomUp(BottomUpConfig),
        /// Several looks, each refining the question (Yang 2016).
        "stacked" => Stacked(StackedConfig),
        /// Not at all: the baseline, which knows what is often answered.
        "question-only" => QuestionOnly,
    }
}

config! {
    /// Answers questions about an image, by attention over its regions (Anderson et al. 2018, Yang et al. 2016).
    pub struct VqaConfig {
        /// How the question reads the regions.
        [choice] attention: RegionAttention = RegionAttention::BottomUp(BottomUpConfig::default());
        /// Size of a word vector (there 300, trained before).
        embedding: usize = 64, in SIZE;
        /// Size of the question's vector and of the joint one (there 512).
        hidden: usize = 128, in SIZE;
        /// Share of the units of the question's vector that is set to zero in training, in [0, 1).
        dropout: f64 = 0.0, in FRACTION;
        /// The network that turns an image into regions.
        [table] backbone: BackboneConfig = BackboneConfig::default();
    }
}

impl VqaConfig {
    /// A model of a few thousand weights, for tests and examples.
    pub fn tiny(attention: RegionAttention) -> Self {
        Self {
            attention,
            embedding: 5,
            hidden: 6,
            dropout: 0.0,
            backbone: BackboneConfig::tiny(),
        }
    }
}

/// Scores of each region beside the question (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct BottomUp {
    /// From an image to its regions.
    pub backbone: Backbone,
    /// `f_k`, `w_k`.
    pub looks: Vec<QuestionAttention>,
    /// `b`, `[1]`, of models that count.
    pub counts: Option<Param<Tensor<1>>>,
    /// `f_q`, `f_v`, `f_o`, `W_o`.
    pub head: AnswerHead,
}

/// Several looks, each refining the question (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct Stacked {
    /// From an image to its regions.
    pub backbone: Backbone,
    /// `W`, `b`: a region in the size of the question's vector.
    pub region: Linear,
    /// `W_k`, `V_k`, `b_k`, `w_k`.
    pub looks: Vec<Additive>,
    /// `W_o`, `b_o`.
    pub output: Linear,
}

/// Answers without the image.
#[derive(Module, Debug)]
pub struct QuestionOnly {
    /// `f_q`.
    pub question: GatedTanh,
    /// `f_o`.
    pub joint: GatedTanh,
    /// `W_o`.
    pub output: Linear,
}

/// What follows the question's vector.
#[derive(Module, Debug)]
pub enum Answering {
    /// Scores of each region beside the question.
    BottomUp(BottomUp),
    /// Several looks, each refining the question.
    Stacked(Stacked),
    /// No image.
    QuestionOnly(QuestionOnly),
}

/// A model that answers questions about images (see the [module's page](self)).
#[derive(Module, Debug)]
pub struct Vqa {
    /// `E [vocabulary, embedding]`.
    pub embedding: Embedding,
    /// From word vectors to `q`.
    pub question: LstmStack,
    /// From `q` and the image to the answers.
    pub answering: Answering,
    #[module(skip)]
    vocabulary: Vocabulary,
    #[module(skip)]
    dropout: f64,
}

impl ModelConfig for VqaConfig {
    type Role = AnyQuestionAnswerer;
    type Model = Vqa;

    fn draw(&self, sizes: &QuestionSizes, init: &mut Initializer) -> Result<Vqa, ModelError> {
        let refused = |error: regard_nn::vision::VisionError| ModelError(error.to_string());
        let features = self.backbone.features() + PLACE;
        let hidden = self.hidden;
        let embedding = init.embedding(sizes.vocabulary.size, self.embedding, 0.1);
        let question = LstmStack::new(1, self.embedding, hidden, init);
        let question = question.map_err(|error| ModelError(error.to_string()))?;
        let answering = match &self.attention {
            RegionAttention::BottomUp(BottomUpConfig {
                dimension,
                looks,
                counts,
            }) => {
                let backbone = self.backbone.draw(sizes.channels, init);
                let look = |look: usize| {
                    let asked = hidden + look * features;
                    QuestionAttentionConfig::new(features, asked, *dimension).init(init)
                };
                let attentions: Result<Vec<_>, _> = (0..*looks).map(look).collect();
                let [rows, columns] = self.backbone.grid(sizes.size);
                // Before training all regions together count as about one.
                let bias = -((rows * columns) as f32).ln();
                let read = features + usize::from(*counts);
                let head = AnswerHeadConfig::new(hidden, read, hidden, sizes.answers);
                Answering::BottomUp(BottomUp {
                    backbone,
                    looks: attentions.map_err(refused)?,
                    counts: counts.then(|| init.constant([1], bias)),
                    head: head.init(init).map_err(refused)?,
                })
            }
            RegionAttention::Stacked(StackedConfig { dimension, looks }) => {
                let backbone = self.backbone.draw(sizes.channels, init);
                let region = init.linear(features, hidden, true);
                let look = |_| Additive {
                    query: init.linear(hidden, *dimension, true),
                    key: init.linear(hidden, *dimension, false),
                    vector: init.uniform([*dimension], 1.0 / (*dimension as f32).sqrt()),
                };
                Answering::Stacked(Stacked {
                    backbone,
                    region,
                    looks: (0..*looks).map(look).collect(),
                    output: init.linear(hidden, sizes.answers, true),
                })
            }
            RegionAttention::QuestionOnly => Answering::QuestionOnly(QuestionOnly {
                question: GatedTanh::new(hidden, hidden, init),
                joint: GatedTanh::new(hidden, hidden, init),
                output: init.linear(hidden, sizes.answers, false),
            }),
        };
        Ok(Vqa {
            embedding,
            question,
            answering,
            vocabulary: sizes.vocabulary,
            dropout: self.dropout,
        })
    }

    fn layers(&self) -> usize {
        match self.attention {
            RegionAttention::QuestionOnly => 1,
            _ => self.backbone.layers(),
        }
    }

    fn properties(&self) -> QuestionProperties {
        QuestionProperties {
            looks: !matches!(self.attention, RegionAttention::QuestionOnly),
        }
    }
}

/// Regions with their place, `[images, rows · columns, features + 10]`, and the grid.
fn regions(backbone: &Backbone, images: Tensor<4>) -> (Regions, [usize; 2]) {
    let map = backbone.forward(images);
    let [batch, _, rows, columns] = map.dims();
    let device = map.device();
    let at = |place: usize, places: usize| (2 * place + 1) as f32 / places as f32 - 1.0;
    let centre = |cell: usize| place(at(cell % columns, columns), at(cell / columns, rows));
    let places: Vec<f32> = (0..rows * columns).flat_map(centre).collect();
    let places = TensorData::new(places, [1, rows * columns, PLACE]);
    let places = Tensor::<3>::from_data(places, &device).expand([batch, rows * columns, PLACE]);
    let features = positions(map); // [images, regions, features]
    let keep = PaddingMask::from_lengths(&vec![rows * columns; batch], rows * columns, &device);
    let features = Tensor::cat(vec![features, places], 2);
    (expect_valid(Regions::new(features, keep)), [rows, columns])
}

/// Where each question stands when those about an image stand side by side, with padding where an image has fewer.
struct Places {
    /// `[images · most]`: the question at each place; the first where there is none.
    questions: Tensor<1, Int>,
    /// `[questions]`: the place of each question.
    places: Tensor<1, Int>,
    images: usize,
    /// Questions about the image that has most.
    most: usize,
}

impl Places {
    fn new(of: &[usize], images: usize, device: &Device) -> Self {
        let mut counts = vec![0; images];
        let nth = of.iter().map(|&image| {
            counts[image] += 1;
            counts[image] - 1
        });
        let nth: Vec<usize> = nth.collect();
        let most = counts.into_iter().max().unwrap_or(0).max(1);
        let places: Vec<usize> = of
            .iter()
            .zip(nth)
            .map(|(image, nth)| image * most + nth)
            .collect();
        let mut questions = vec![0; images * most];
        for (question, &place) in places.iter().enumerate() {
            questions[place] = question;
        }
        Self {
            questions: index(&questions, device),
            places: index(&places, device),
            images,
            most,
        }
    }

    /// `[questions, size]` -> `[images, most, size]`
    fn by_image(&self, rows: Tensor<2>) -> Tensor<3> {
        let [_, size] = rows.dims();
        let placed = rows.select(0, self.questions.clone());
        placed.reshape([self.images, self.most, size])
    }

    /// `[images, most, size]` -> `[questions, size]`
    fn by_question(&self, placed: Tensor<3>) -> Tensor<2> {
        let [_, _, size] = placed.dims();
        let rows = placed.reshape([self.images * self.most, size]);
        rows.select(0, self.places.clone())
    }
}

impl BottomUp {
    fn answer(&self, q: Tensor<2>, images: Tensor<4>, of: &[usize]) -> QuestionLook {
        let places = Places::new(of, images.dims()[0], &images.device());
        let (regions, grid) = regions(&self.backbone, images);
        let (mut asked, mut looks, mut last) = (vec![places.by_image(q.clone())], vec![], None);
        for attention in &self.looks {
            let prepared = expect_valid(attention.prepare(&regions));
            let question = Tensor::cat(asked.clone(), 2);
            let scores = expect_valid(attention.scores(question, &prepared)); // [images, most, regions]
            let (weights, context) = expect_valid(regions.read(scores.clone()));
            asked.push(context.clone());
            looks.push(places.by_question(weights));
            last = Some((scores, context));
        }
        let (scores, mut read) = last.expect("a model has a look");
        if let Some(bias) = &self.counts {
            let found = sigmoid(scores + bias.val().unsqueeze::<3>()).sum_dim(2); // [images, most, 1]
            read = Tensor::cat(vec![read, found], 2);
        }
        let read = places.by_question(read);
        QuestionLook {
            logits: expect_valid(self.head.logits(q, read)),
            looks,
            grid,
        }
    }
}

impl Stacked {
    fn answer(&self, q: Tensor<2>, images: Tensor<4>, of: &[usize]) -> QuestionLook {
        let places = Places::new(of, images.dims()[0], &images.device());
        let (regions, grid) = regions(&self.backbone, images);
        let features = bridge::apply(&self.region, regions.features()).tanh();
        let (mut asked, mut looks) = (places.by_image(q), vec![]);
        for score in &self.looks {
            let query = bridge::apply(&score.query, asked.clone()); // [images, most, dimension]
            let keys = score.keys(features.clone());
            let vector = score.vector.val();
            let (context, weights) =
                bridge::additive_attention(query, keys, vector, features.clone(), None, None);
            asked = asked + context;
            looks.push(places.by_question(weights));
        }
        QuestionLook {
            logits: bridge::apply(&self.output, places.by_question(asked)),
            looks,
            grid,
        }
    }
}

impl QuestionOnly {
    fn answer(&self, q: Tensor<2>) -> QuestionLook {
        let joint = expect_valid(self.question.forward(q));
        let joint = expect_valid(self.joint.forward(joint));
        QuestionLook {
            logits: bridge::apply(&self.output, joint),
            looks: vec![],
            grid: [0, 0],
        }
    }
}

impl Vqa {
    /// `q [questions, hidden]`.
    fn read(&self, words: &SourceBatch, noise: &mut DropoutRng) -> Tensor<2> {
        let x = bridge::embed(&self.embedding, words.ids.clone()); // [time, questions, embedding]
        let keep = (!words.keep.is_full()).then(|| words.keep.time_major());
        let lstm = &self.question;
        let (_, last) = expect_valid(lstm.sequence(x, None, keep, Direction::Forward, 0.0, noise));
        let q = last.into_iter().next().expect("a stack has a layer").hidden;
        dropout(q, self.dropout, noise)
    }
}

impl QuestionAnswerer for Vqa {
    fn vocabulary(&self) -> Vocabulary {
        self.vocabulary
    }

    fn forward(
        &self,
        images: Tensor<4>,
        questions: &QuestionBatch,
        noise: &mut DropoutRng,
    ) -> QuestionLook {
        let q = self.read(&questions.words, noise);
        match &self.answering {
            Answering::BottomUp(answering) => answering.answer(q, images, &questions.images),
            Answering::Stacked(answering) => answering.answer(q, images, &questions.images),
            Answering::QuestionOnly(answering) => answering.answer(q),
        }
    }
}
