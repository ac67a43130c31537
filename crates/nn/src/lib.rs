//! Attention mechanisms as Burn modules, in one vocabulary.
//!
//! # One sentence
//!
//! Every mechanism in this field is one sentence: **score** the query against the keys, **mask** what may not be
//! seen, **normalise** into weights, **read** the values.
//!
//! ```text
//! context = Σ_i α_i v_i          α = normalize(mask(score(q, k_i)))
//! ```
//!
//! Bahdanau's is additive · padding · softmax · sum. Luong's local-p is general · window `(p_t ± D)` and a Gaussian ·
//! softmax · sum. Causal self-attention is scaled dot · causal · softmax · sum. Hard attention is additive · padding ·
//! sample · pick. A Longformer layer is scaled dot · window or global · softmax · sum. So there is one type,
//! [`Attention`], made of those words, and one result, [`Attended`].
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::{Attention, Observe, mask::Mask, normalize::Normalize, score::Score};
//!
//! let device = Device::flex();
//! let x = Tensor::<4>::ones([1, 2, 6, 8], &device); // [batch, heads, length, size]
//! let attention = Attention::new(Score::scaled_dot()).with_mask(Mask::window(3)? & Mask::causal());
//! let attended = attention.forward(x.clone(), x.clone(), x.clone(), Observe::Weights)?;
//! assert_eq!(attended.weights.unwrap().dims(), [1, 2, 6, 6]);
//!
//! // One word exchanged: exact zeros in place of a softmax.
//! let sparse = attention.with_normalize(Normalize::sparsemax());
//! assert_eq!(sparse.forward(x.clone(), x.clone(), x, Observe::Nothing)?.context.dims(), [1, 2, 6, 8]);
//! # Ok::<(), regard_nn::AttentionError>(())
//! ```
//!
//! # How to read on
//!
//! 1. [`attention`]: the sentence as a type, its two forms (query, key, value; or a source prepared once and read at
//!    every decoder step), what can be observed, which path computes ([`KernelPlan`]).
//! 2. [`score`], [`mask`], [`normalize`]: the words, one page for each mechanism: what it does in the paper's terms,
//!    formula, shapes, when to use it and when not, cost, an example.
//! 3. What is built from them: the tables below.
//! 4. Around them: replayable [`dropout`], seeded [`initialize`]rs, the [`weights`] of any module as safetensors, and
//!    the [`bridge`] from Burn's autodiff to the fused kernels of `regard-kernels`.
//!
//! # All mechanisms
//!
//! ## Scores
//!
//! | score | formula | source |
//! |---|---|---|
//! | [`score::Dot`] | `sᵀ h` | Luong 2015 |
//! | [`score::ScaledDot`] | `scale · sᵀ h` | Vaswani 2017 |
//! | [`score::General`] | `sᵀ W h` | Luong 2015 |
//! | [`score::ScaledGeneral`] | `g · sᵀ W h` | TensorFlow's scaled Luong |
//! | [`score::Additive`] | `vᵀ tanh(W s + U h + b)` (concat) | Bahdanau 2014 |
//! | [`score::WeightNormAdditive`] | `g v/‖v‖ · tanh(W s + U h + b)` | Salimans & Kingma 2016 |
//! | [`score::Cosine`] | `β cos(s, h)` | Graves 2014 |
//! | [`score::Distance`] | `-scale · ‖s - h‖²` | Kim 2021 |
//! | [`score::Location`] | `(W s)_i` | Luong 2015 |
//! | [`score::GaussianWindow`] | `Σ_k a_k exp(-b_k (κ_k - u)²)` | Graves 2013 |
//! | [`score::Score::custom`] | your own, in any crate: [`score::ScoreFunction`] | |
//!
//! ## Masks
//!
//! | mask | a query sees | source |
//! |---|---|---|
//! | [`mask::Mask::causal`] | no future | Vaswani 2017 |
//! | [`mask::Mask::padding`] | real positions | |
//! | [`mask::Mask::window`], [`mask::Mask::dilated_window`] | keys near it | Child 2019; Jiang 2023 |
//! | [`mask::Mask::local_monotonic`], [`mask::Mask::local_predictive`] | a window around `t`, or around a predicted place | Luong 2015 |
//! | [`mask::Mask::global`], [`mask::Mask::longformer`] | window and global positions | Beltagy 2020 |
//! | [`mask::Mask::block`], [`mask::Mask::block_sparse`] | chosen blocks | Qiu 2019; Child 2019 |
//! | [`mask::Mask::chunked`] | its chunk and some before | Zhang 2020 |
//! | [`mask::Mask::document`] | its own document | packed batches |
//! | [`mask::Mask::prefix`] | the prefix and the past | Raffel 2020 |
//! | [`mask::Mask::function`] | what your function says | |
//!
//! ## Normalisers
//!
//! | normaliser | `α_i` | source |
//! |---|---|---|
//! | [`normalize::Softmax`] | `e^{s_i} / Σ e^{s_j}` | |
//! | [`normalize::Sink`] | `e^{s_i} / (e^{sink} + Σ e^{s_j})` | Miller 2023; Xiao 2024 |
//! | [`normalize::Sparsemax`] | `max(s_i - τ, 0)` | Martins & Astudillo 2016 |
//! | [`normalize::Entmax15`] | `max(s_i/2 - τ, 0)²` | Peters 2019 |
//! | [`normalize::Sigmoid`] | `σ(s_i + b)` | Ramapuram 2024 |
//! | [`normalize::Hardmax`] | 1 at the best key | |
//! | [`normalize::HardSample`], [`normalize::Reinforce`] | 1 at a drawn key | Xu 2015; Bengio 2013; Jang 2017 |
//! | [`normalize::Monotonic`] | where a reader moving right stops | Raffel 2017 |
//! | [`normalize::Addressing`] | content, interpolation, shift, sharpening | Graves 2014 |
//! | [`normalize::Identity`] | `s_i` | |
//! | [`normalize::Normalize::custom`] | your own, in any crate: [`normalize::NormalizeFunction`] | |
//!
//! ## Heads
//!
//! | mechanism | what | source |
//! |---|---|---|
//! | [`heads::MultiHeadConfig::new`] | multi-head attention: self, causal or bidirectional, and cross | Vaswani 2017 |
//! | [`heads::MultiHeadConfig::grouped_query`] | several query heads share keys and values | Ainslie 2023 |
//! | [`heads::MultiHeadConfig::multi_query`] | all share them | Shazeer 2019 |
//! | [`heads::ProjectionLayout`] | one matrix for queries, keys and values, or three | |
//! | [`heads::QueryKeyNorm`] | queries and keys normalised to one length | Henry 2020; Dehghani 2023 |
//! | [`heads::TalkingHeads`] | heads mix scores and weights | Shazeer 2020 |
//! | [`heads::OutputGate`] | a gate on the heads' output | Qiu 2025 |
//! | [`cache::KeyValueCache`] | keys and values of the past, growing or rolling | Jiang 2023 |
//!
//! ## Positions
//!
//! | mechanism | what | source |
//! |---|---|---|
//! | [`position::Sinusoidal`] | sines and cosines, added to embeddings | Vaswani 2017 |
//! | [`position::Learned`] | a vector for each position, added to embeddings | Gehring 2017 |
//! | [`position::Rotary`] | turns queries and keys | Su 2021 |
//! | [`position::Alibi`] | lowers scores with the distance | Press 2021 |
//! | [`position::RelativeBuckets`] | a number for each head and bucket of distances | Raffel 2019 (T5) |
//! | [`position::Relative`] | a vector for each distance | Shaw 2018 |
//!
//! ## Recurrent
//!
//! | module | what | source |
//! |---|---|---|
//! | [`recurrent::Gru`] | gated recurrent unit, reset before or after the product | Cho 2014 |
//! | [`recurrent::LstmStack`] | stacked long short-term memory | Hochreiter & Schmidhuber 1997 |
//! | [`recurrent::Lstmn`] | a cell that reads its earlier states by attention; shallow and deep fusion with a source | Cheng 2016 |
//! | [`recurrent::AttentiveDecoder`] | any cell, any score; attention before or after the cell, input feeding | Bahdanau 2014, Luong 2015 |
//! | [`recurrent::Coverage`] | past attention enters the score, and a loss | See 2017 |
//! | [`recurrent::PointerGenerator`] | copies words of the source | See 2017 |
//! | [`recurrent::AttentivePooling`] | a sequence as a few weighted means | Lin 2017 |
//! | [`recurrent::WithAttention`], [`recurrent::WithPooling`] | any RNN or CNN of yours, given attention | |
//!
//! ## Transformer layers
//!
//! | layer | what | source |
//! |---|---|---|
//! | [`transformer::Stack`] | blocks of self-attention, cross-attention, feed-forward: encoder, decoder, decoder-only; cached | Vaswani 2017 |
//! | [`transformer::FeedForward`] | ReLU, GELU, SiLU, plain or gated | Vaswani 2017; Shazeer 2020 |
//! | [`transformer::Norm`] | layer norm, RMS norm | Ba 2016; Zhang & Sennrich 2019 |
//!
//! ## Vision
//!
//! | mechanism | looks at | source |
//! |---|---|---|
//! | [`vision::SqueezeExcite`] | channels, by their mean | Hu 2017 |
//! | [`vision::SpatialAttention`] | positions, by their neighbourhood | Woo 2018 |
//! | [`vision::Cbam`] | channels, then positions | Woo 2018 |
//! | [`vision::MaskBranch`] | channels and positions, through an hourglass; mask mixed, by channel or by place | Wang 2017 |
//! | [`vision::NonLocal`] | all pairs of positions; four affinities | Wang 2018 |
//! | [`vision::AxialAttention`] | all positions of a column, then of a row | Ho 2019; Wang 2020 |
//! | [`vision::region`] | what a detector found: captions and questions | Anderson 2018 |
//! | [`vision::PatchEmbedding`] | the image as a sequence with a class token | Dosovitskiy 2020 |
//!
//! ## Around them
//!
//! | what | where |
//! |---|---|
//! | softcap, bias, ALiBi, dropout of weights; what to observe | [`Attention`], [`AttentionOptions`], [`Observe`] |
//! | which kernel serves a call, or why none does | [`KernelPlan`], [`Unserved`] |
//! | modules whose type is chosen at run time | [`erased`] |
//! | the steps of a call, as they are computed | [`record`] |
//! | every mechanism step by step in tables, in f64 | [`explain`] |
//! | what trained heads do: sinks, diagonals, rollout, flow, "why is it uniform?" | the crate `regard-trace`, `diagnose` |
//!
//! # What always holds
//!
//! - A key that may not be seen has weight 0 and gets gradient 0, whatever it holds, NaN included. A query that may see nothing
//!   gets weights 0, context 0, gradient 0.
//! - Asking for weights changes no number, and the choice of path changes none beyond rounding.
//! - Bad shapes, precisions and settings and impossible combinations are an [`AttentionError`] that names the field, what
//!   was found and what was expected; never a panic inside Burn. (The building blocks require tensors that fit and say under
//!   *Panics* what happens otherwise: the functions of [`bridge`], the single scores, normalisers, norms and cells.)
//! - There may be no sentences, queries, keys or steps: empty inputs give outputs of the usual shape, and gradients of 0.
//! - There is no hidden randomness: noise is an argument ([`dropout::DropoutRng`]), initial values come from one seeded
//!   generator.
//!
//! # Sources
//!
//! | short | paper |
//! |---|---|
//! | Ainslie 2023 | *GQA: Training Generalized Multi-Query Transformer Models*, arXiv:2305.13245 |
//! | Anderson 2018 | *Bottom-Up and Top-Down Attention for Image Captioning and Visual Question Answering*, arXiv:1707.07998 |
//! | Bahdanau 2014 | *Neural Machine Translation by Jointly Learning to Align and Translate*, arXiv:1409.0473 |
//! | Beltagy 2020 | *Longformer: The Long-Document Transformer*, arXiv:2004.05150 |
//! | Bengio 2013 | *Estimating or Propagating Gradients Through Stochastic Neurons*, arXiv:1308.3432 |
//! | Cheng 2016 | *Long Short-Term Memory-Networks for Machine Reading*, arXiv:1601.06733 |
//! | Child 2019 | *Generating Long Sequences with Sparse Transformers*, arXiv:1904.10509 |
//! | Cho 2014 | *Learning Phrase Representations using RNN Encoder-Decoder*, arXiv:1406.1078 |
//! | Dehghani 2023 | *Scaling Vision Transformers to 22 Billion Parameters*, arXiv:2302.05442 |
//! | Dosovitskiy 2020 | *An Image is Worth 16x16 Words*, arXiv:2010.11929 |
//! | Gehring 2017 | *Convolutional Sequence to Sequence Learning*, arXiv:1705.03122 |
//! | Graves 2013 | *Generating Sequences With Recurrent Neural Networks*, arXiv:1308.0850 |
//! | Graves 2014 | *Neural Turing Machines*, arXiv:1410.5401 |
//! | Henry 2020 | *Query-Key Normalization for Transformers*, arXiv:2010.04245 |
//! | Ho 2019 | *Axial Attention in Multidimensional Transformers*, arXiv:1912.12180 |
//! | Hochreiter & Schmidhuber 1997 | *Long Short-Term Memory*, Neural Computation 9(8) |
//! | Hu 2017 | *Squeeze-and-Excitation Networks*, arXiv:1709.01507 |
//! | Jang 2017 | *Categorical Reparameterization with Gumbel-Softmax*, arXiv:1611.01144 |
//! | Jiang 2023 | *Mistral 7B*, arXiv:2310.06825 |
//! | Kim 2021 | *The Lipschitz Constant of Self-Attention*, arXiv:2006.04710 |
//! | Lin 2017 | *A Structured Self-attentive Sentence Embedding*, arXiv:1703.03130 |
//! | Luong 2015 | *Effective Approaches to Attention-based Neural Machine Translation*, arXiv:1508.04025 |
//! | Martins & Astudillo 2016 | *From Softmax to Sparsemax*, arXiv:1602.02068 |
//! | Miller 2023 | *Attention Is Off By One*, evanmiller.org |
//! | Peters 2019 | *Sparse Sequence-to-Sequence Models*, arXiv:1905.05702 |
//! | Press 2021 | *Train Short, Test Long: Attention with Linear Biases*, arXiv:2108.12409 |
//! | Qiu 2019 | *Blockwise Self-Attention for Long Document Understanding*, arXiv:1911.02972 |
//! | Qiu 2025 | *Gated Attention for Large Language Models*, arXiv:2505.06708 |
//! | Raffel 2017 | *Online and Linear-Time Attention by Enforcing Monotonic Alignments*, arXiv:1704.00784 |
//! | Raffel 2019, 2020 | *Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer* (T5), arXiv:1910.10683 |
//! | Ramapuram 2024 | *Theory, Analysis, and Best Practices for Sigmoid Self-Attention*, arXiv:2409.04431 |
//! | Salimans & Kingma 2016 | *Weight Normalization*, arXiv:1602.07868 |
//! | See 2017 | *Get To The Point: Summarization with Pointer-Generator Networks*, arXiv:1704.04368 |
//! | Shaw 2018 | *Self-Attention with Relative Position Representations*, arXiv:1803.02155 |
//! | Shazeer 2019 | *Fast Transformer Decoding: One Write-Head is All You Need*, arXiv:1911.02150 |
//! | Shazeer 2020 | *Talking-Heads Attention*, arXiv:2003.02436 |
//! | Su 2021 | *RoFormer: Enhanced Transformer with Rotary Position Embedding*, arXiv:2104.09864 |
//! | Tu 2016 | *Modeling Coverage for Neural Machine Translation*, arXiv:1601.04811 |
//! | Vaswani 2017 | *Attention Is All You Need*, arXiv:1706.03762 |
//! | Wang 2017 | *Residual Attention Network for Image Classification*, arXiv:1704.06904 |
//! | Wang 2018 | *Non-local Neural Networks*, arXiv:1711.07971 |
//! | Wang 2020 | *Axial-DeepLab*, arXiv:2003.07853 |
//! | Woo 2018 | *CBAM: Convolutional Block Attention Module*, arXiv:1807.06521 |
//! | Xiao 2024 | *Efficient Streaming Language Models with Attention Sinks*, arXiv:2309.17453 |
//! | Xu 2015 | *Show, Attend and Tell*, arXiv:1502.03044 |
//! | Zaheer 2020 | *Big Bird: Transformers for Longer Sequences*, arXiv:2007.14062 |
//! | Zhang 2020 | *Unified Streaming and Non-streaming Two-pass End-to-end Model for Speech Recognition*, arXiv:2012.05481 |
#![deny(missing_docs)]

pub mod attention;
pub mod bridge;
pub mod cache;
pub mod changed;
pub mod devices;
pub mod dropout;
pub mod erased;
pub mod explain;
pub mod heads;
pub mod initialize;
pub mod mask;
pub mod normalize;
pub mod position;
mod precision;
pub mod record;
pub mod recurrent;
pub mod score;
pub mod transformer;
pub mod vary;
pub mod vision;
pub mod weights;

pub use burn;

pub use attention::{
    Attended, Attention, AttentionError, AttentionOptions, KernelPlan, Memory, Observe, Path,
    Reading, Unserved,
};

/// The example of the README runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
