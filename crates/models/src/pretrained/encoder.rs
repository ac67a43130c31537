//! Models that read a text as a whole, with the heads that people use: masked words, classes of texts and of tokens, the span of an
//! answer, and vectors of texts.

use std::sync::Arc;

use burn::tensor::Device;
use regard_kernels::{
    loss,
    matmul::Storage,
    simd,
    stack::{Activation, NormWeights, Observer, Product, Stack},
};

use super::{
    classify::ClassScores,
    embedding::{Embedding, EmbeddingSource},
    error::PretrainedError,
    folder::{Folder, Names},
    language_model::InputError,
    on_card::OnCard,
    source::{Expected, Matrix, Norm, StackSource},
};
use crate::{error::ModelError, generator::expect_valid};

/// What a head is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heads {
    /// The token at each position.
    MaskedTokens,
    /// The class of a text, with the names of the classes.
    Classes(Vec<String>),
    /// The class of each token.
    TokenClasses(Vec<String>),
    /// Where an answer begins and ends.
    Span,
}

/// The layers after the stack, `W_2 norm(φ(W_1 x))`, on the state of each position, or of the first one for classes of texts.
/// Of matrices and norms, or what they are made of.
#[derive(Debug, Clone)]
pub struct Head<P = Product, N = NormWeights> {
    /// What it is for.
    pub purpose: Heads,
    /// `W_1 [model, model]`
    pub dense: Option<P>,
    /// `φ`; `None` for tanh.
    pub activation: Option<Activation>,
    /// Its norm.
    pub norm: Option<N>,
    /// `W_2`; `None` for the table of tokens.
    pub output: Option<P>,
    /// The bias beside the table of tokens.
    pub bias: Option<String>,
}

/// Which tokens are global, in a model that has global ones (Longformer), unless [`Input::global`] says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GlobalTokens {
    /// None.
    None,
    /// The first one.
    First,
    /// All before the first one with this id; none in a text without it.
    Before(u32),
}

impl GlobalTokens {
    /// How many tokens at the beginning of a text these are.
    pub(super) fn count(self, ids: &[u32]) -> usize {
        match self {
            Self::None => 0,
            Self::First => ids.len().min(1),
            Self::Before(separator) => ids.iter().position(|&id| id == separator).unwrap_or(0),
        }
    }
}

/// At which token a text is read as a whole (CLIP).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndMark {
    /// The first one with the largest id.
    Largest,
    /// The first one with this id; the first token of a text without it.
    Id(u32),
}

impl EndMark {
    fn place(self, ids: &[u32]) -> usize {
        let mark = match self {
            Self::Largest => ids.iter().copied().max(),
            Self::Id(id) => Some(id),
        };
        let place = ids.iter().position(|&id| Some(id) == mark);
        place.unwrap_or(0)
    }
}

/// How a model itself makes one vector of a text: `W h_e` of the state of its end mark. Of a matrix, or what it is made of.
#[derive(Debug, Clone)]
pub struct EndVector<P = Product> {
    /// `W [model, size]`
    pub projection: P,
    /// `e`
    pub end: EndMark,
}

/// An encoder by the names of its weights; each family makes one from its configuration.
#[derive(Debug, Clone)]
pub struct TextEncoderSource {
    /// The embeddings.
    pub embedding: EmbeddingSource,
    /// The blocks.
    pub stack: StackSource,
    /// `tanh(W h_0)`
    pub pooler: Option<Matrix>,
    /// The head.
    pub head: Option<Head<Matrix, Norm>>,
    /// The vector of a text.
    pub vector: Option<EndVector<Matrix>>,
    /// The global tokens.
    pub global: GlobalTokens,
    /// How names may differ.
    pub names: Names<'static>,
}

/// An encoder of texts with packed weights.
#[derive(Debug, Clone)]
pub struct TextEncoder {
    pub(super) embedding: Embedding,
    pub(super) stack: Stack,
    pub(super) pooler: Option<Product>,
    pub(super) head: Option<Head>,
    pub(super) output_bias: Option<Vec<f32>>,
    pub(super) vector: Option<EndVector>,
    pub(super) scores: ClassScores,
    pub(super) global: GlobalTokens,
    pub(super) on_card: Option<OnCard>,
}

/// A text as an encoder reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Input<'a> {
    /// Its tokens, special ones included.
    pub ids: &'a [u32],
    /// The type of each token: 0 for the first text, 1 for the second; empty for all 0.
    pub types: &'a [u32],
    /// The global tokens, ascending positions, for a model that has global ones ([`TextEncoder::has_global`]); `None` for those
    /// that its head asks for.
    pub global: Option<&'a [usize]>,
}

/// Where an answer may begin and end: a score for each token.
#[derive(Debug, Clone, PartialEq)]
pub struct Spans {
    /// `[tokens]`
    pub start: Vec<f32>,
    /// `[tokens]`
    pub end: Vec<f32>,
}

impl TextEncoderSource {
    /// Reads the weights of `folder` into `storage`, or as they are stored.
    ///
    /// # Errors
    /// [`PretrainedError`] that lists every weight that is missing, left over or of another shape; weights that are not finite.
    pub fn read(
        self,
        folder: &Folder,
        storage: Option<Storage>,
    ) -> Result<TextEncoder, PretrainedError> {
        let head = self.head.as_ref();
        let dense = head.and_then(|head| head.dense.as_ref());
        let output = head.and_then(|head| head.output.as_ref());
        let tokens = &self.embedding.tokens;
        let mut expected = self
            .embedding
            .expect(Expected::default().matrix(Some(tokens)))
            .stack(&self.stack)
            .matrix(self.pooler.as_ref())
            .matrix(dense)
            .norm(head.and_then(|head| head.norm.as_ref()))
            .matrix(output)
            .matrix(self.vector.as_ref().map(|vector| &vector.projection));
        let bias = head.and_then(|head| head.bias.clone());
        if let Some(bias) = &bias {
            expected.0.push((bias.clone(), vec![tokens.outputs()]));
        }
        let weights = expected.weights(folder, &self.names)?;
        let read = |matrix: &Matrix| matrix.read(&weights, storage);
        let tokens = Arc::new(read(tokens)?);
        let head = match self.head {
            None => None,
            Some(head) => Some(Head {
                purpose: head.purpose,
                dense: head.dense.as_ref().map(read).transpose()?,
                activation: head.activation,
                norm: head.norm.map(|norm| norm.read(&weights)).transpose()?,
                output: head.output.as_ref().map(read).transpose()?,
                bias: head.bias,
            }),
        };
        let vector = match self.vector {
            None => None,
            Some(EndVector { projection, end }) => Some(EndVector {
                projection: read(&projection)?,
                end,
            }),
        };
        let scores = match head.as_ref().map(|head| &head.purpose) {
            Some(Heads::Classes(labels)) => ClassScores::of(folder.config(), labels.len())?,
            _ => ClassScores::Softmax,
        };
        let output_bias = match &bias {
            Some(bias) => Some(weights.read(bias)?.values.into_f32()),
            None => None,
        };
        Ok(TextEncoder {
            embedding: self.embedding.read(tokens, &weights, storage)?,
            pooler: self.pooler.as_ref().map(read).transpose()?,
            head,
            output_bias,
            vector,
            scores,
            global: self.global,
            stack: self.stack.read(&weights, storage)?,
            on_card: None,
        })
    }
}

impl TextEncoder {
    /// Reads a model's folder with any of the known [`FAMILIES`](super::FAMILIES).
    ///
    /// # Errors
    /// [`PretrainedError`].
    pub fn open(folder: &Folder, storage: Option<Storage>) -> Result<Self, PretrainedError> {
        let family = super::families::of(folder)?;
        match family.encoder {
            Some(source) => source(folder)?.read(folder, storage),
            None => {
                let expected = "a family of encoders, such as bert";
                Err(folder.config().refuse("model_type", expected))
            }
        }
    }

    /// The size of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.embedding.vocabulary()
    }

    /// The longest text, in tokens.
    pub fn context(&self) -> usize {
        self.embedding.context
    }

    /// The size of a state.
    pub fn size(&self) -> usize {
        self.stack.sizes().model
    }

    /// The blocks.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The blocks, to change heads ([`Stack::change_heads`]); from then on they are computed by the kernels of the CPU.
    pub fn stack_mut(&mut self) -> &mut Stack {
        self.on_card = None;
        &mut self.stack
    }

    /// Has `device`, a card, compute the blocks from now on, with weights of 32 bits, where nothing is observed; embeddings, heads and what is
    /// observed stay with the kernels of the CPU.
    ///
    /// # Errors
    /// [`ModelError`] for blocks with a part that no model has that is trained here, as [`Trainable::open`](super::Trainable::open).
    pub fn compute_on(&mut self, device: &Device) -> Result<(), ModelError> {
        let on_card = OnCard::new(&self.stack, device);
        self.on_card = Some(on_card.map_err(ModelError)?);
        Ok(())
    }

    /// What its head is for, if it has one.
    pub fn purpose(&self) -> Option<&Heads> {
        self.head.as_ref().map(|head| &head.purpose)
    }

    /// Whether it has global tokens (Longformer).
    pub fn has_global(&self) -> bool {
        let mut blocks = self.stack.blocks().iter();
        blocks.any(|block| block.attention.global.is_some())
    }

    /// The states of each text, `[tokens, model]`. Texts are computed together, without padding.
    ///
    /// # Errors
    /// [`InputError`].
    pub fn states(
        &self,
        texts: &[Input<'_>],
        observer: Option<&mut (dyn Observer + Send)>,
    ) -> Result<Vec<Vec<f32>>, InputError> {
        let size = self.size();
        let (mut embedded, mut global, mut first) = (vec![], vec![], 0);
        for text in texts {
            self.embedding.check(text.ids, 0)?;
            self.embedding
                .embed(text.ids, text.types, 0, &mut embedded)?;
            let tokens = text.ids.len();
            match text.global {
                Some(positions) => {
                    let below = if self.has_global() { tokens } else { 0 };
                    let end = positions.last().is_none_or(|&last| last < below);
                    if !end || !positions.is_sorted_by(|a, b| a < b) {
                        return Err(InputError::Global { tokens: below });
                    }
                    global.extend(positions.iter().map(|at| first + at));
                }
                None => global.extend(first..first + self.global.count(text.ids)),
            }
            first += tokens;
        }
        let counts: Vec<usize> = texts.iter().map(|text| text.ids.len()).collect();
        let states = match &self.on_card {
            Some(card) if observer.is_none() => card.forward(&embedded, &counts),
            _ => expect_valid(
                self.stack
                    .forward_with_global(&embedded, &counts, &global, observer),
            ),
        };
        let mut rest = &states[..];
        let parts = counts.iter().map(|count| {
            let (part, after) = rest.split_at(count * size);
            rest = after;
            part.to_vec()
        });
        Ok(parts.collect())
    }

    /// The vector that the model itself makes of a text, from its tokens and their states: `W h_e`, `e` the end mark (CLIP). `None` for a
    /// model that makes none, or a text without tokens.
    pub fn vector(&self, ids: &[u32], states: &[f32]) -> Option<Vec<f32>> {
        let vector = self.vector.as_ref()?;
        let first = vector.end.place(ids) * self.size();
        let state = states.get(first..first + self.size())?;
        Some(expect_valid(vector.projection.forward(state, 1)))
    }

    /// How many numbers [`vector`](Self::vector) has, of a model that makes one.
    pub(super) fn vector_size(&self) -> Option<usize> {
        let vector = self.vector.as_ref()?;
        let [_, size] = vector.projection.sizes();
        Some(size)
    }

    /// The pooled vector of a text from its states: `tanh(W h_0)`, if the model has a pooler.
    pub fn pooled(&self, states: &[f32]) -> Option<Vec<f32>> {
        let first = states.get(..self.size())?;
        let mut pooled = expect_valid(self.pooler.as_ref()?.forward(first, 1));
        simd::tanh_in_place(&mut pooled);
        Some(pooled)
    }

    /// The output of the head, `[positions, outputs]`: of every position of `states [tokens, model]`, or of the first one if the
    /// head is for classes of texts. `None` without a head.
    pub fn outputs(&self, states: &[f32]) -> Option<Vec<f32>> {
        let head = self.head.as_ref()?;
        let size = self.size();
        let mut x = match head.purpose {
            Heads::Classes(_) => states.get(..size)?.to_vec(),
            _ => states.to_vec(),
        };
        let count = x.len() / size;
        if let Some(dense) = &head.dense {
            x = expect_valid(dense.forward(&x, count));
            match head.activation {
                Some(activation) => activation.apply(&mut x),
                None => simd::tanh_in_place(&mut x),
            }
        }
        if let Some(norm) = &head.norm {
            x = expect_valid(norm.apply(&x));
        }
        let output = head.output.as_ref().unwrap_or(&self.embedding.tokens);
        let mut y = expect_valid(output.forward(&x, count));
        if let Some(bias) = &self.output_bias {
            for row in y.chunks_exact_mut(bias.len()) {
                row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
        }
        Some(y)
    }

    /// What the outputs of a head for classes of texts are.
    pub fn class_scores(&self) -> ClassScores {
        self.scores
    }

    /// The score of each class of a text from its states, if that is what the head is for: see [`ClassScores`]. `None` for a text
    /// without tokens, too.
    pub fn classes(&self, states: &[f32]) -> Option<Vec<f32>> {
        match self.purpose() {
            Some(Heads::Classes(_)) => {
                let mut scores = self.outputs(states)?;
                self.scores.apply(&mut scores);
                Some(scores)
            }
            _ => None,
        }
    }

    /// The probability of each class at each token, `[tokens, classes]`, if that is what the head is for.
    pub fn token_classes(&self, states: &[f32]) -> Option<Vec<f32>> {
        match self.purpose() {
            Some(Heads::TokenClasses(labels)) => {
                let mut scores = self.outputs(states)?;
                for row in scores.chunks_exact_mut(labels.len()) {
                    ClassScores::Softmax.apply(row);
                }
                Some(scores)
            }
            _ => None,
        }
    }

    /// The likeliest tokens at a masked position with their probabilities, from its `state [model]`, at most `count`, likeliest first;
    /// `None` if the head is not for masked tokens.
    pub fn likeliest(&self, state: &[f32], count: usize) -> Option<Vec<(u32, f64)>> {
        if self.purpose() != Some(&Heads::MaskedTokens) {
            return None;
        }
        let mut scores = self.outputs(state)?;
        let classes = scores.len();
        loss::log_softmax(&mut scores, classes);
        let mut order: Vec<(u32, f32)> = (0..).zip(scores).collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        order.truncate(count);
        let likely = order.into_iter();
        Some(
            likely
                .map(|(id, score)| (id, f64::from(score).exp()))
                .collect(),
        )
    }

    /// The scores of each token to begin and to end an answer, if that is what the head is for.
    pub fn spans(&self, states: &[f32]) -> Option<Spans> {
        if self.purpose() != Some(&Heads::Span) {
            return None;
        }
        let both = self.outputs(states)?;
        let (start, end) = both.chunks_exact(2).map(|row| (row[0], row[1])).unzip();
        Some(Spans { start, end })
    }
}
