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
//!    every decoder step), what can be observed, which path computes.
//! 2. [`score`], [`mask`], [`normalize`]: the words, one page each.
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
//!
//! ## Heads
//!
//! | mechanism | what | source |
//! |---|---|---|
//! | [`heads::MultiHeadConfig::new`] | multi-head attention: self, causal or bidirectional, and cross | Vaswani 2017 |
//! | [`heads::MultiHeadConfig::grouped_query`] | several query heads share keys and values | Ainslie 2023 |
//! | [`heads::MultiHeadConfig::multi_query`] | all share them | Shazeer 2019 |
//! | [`heads::ProjectionLayout`] | one matrix for queries, keys and values, or three | |
//! | [`heads::QueryKeyNorm`] | queries and keys of one length | Henry 2020; Dehghani 2023 |
//! | [`heads::TalkingHeads`] | heads mix scores and weights | Shazeer 2020 |
//! | [`heads::OutputGate`] | a gate on what was read | Qiu 2025 |
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
//! | [`recurrent::Lstmn`] | a cell that reads its former states by attention; deep fusion with a source | Cheng 2016 |
//! | [`recurrent::AttentiveDecoder`] | any cell, any score; attention before or after the cell, input feeding | Bahdanau 2014, Luong 2015 |
//! | [`recurrent::Coverage`] | what was looked at before enters the score, and a loss | See 2017 |
//! | [`recurrent::PointerGenerator`] | copies words of the source | See 2017 |
//! | [`recurrent::AttentivePooling`] | a sequence as a few weighted means | Lin 2017 |
//! | [`recurrent::WithAttention`], [`recurrent::WithPooling`] | any RNN or CNN of yours, given attention | |
//!
//! ## Transformer layers
//!
//! | layer | what | source |
//! |---|---|---|
//! | [`transformer::Encoder`] | self-attention and feed-forward, pre- or post-norm; causal under a mask | Vaswani 2017 |
//! | [`transformer::Decoder`] | causal self-attention, cross-attention, feed-forward; cached | Vaswani 2017 |
//! | [`transformer::FeedForward`] | ReLU, GELU, SwiGLU | Vaswani 2017; Shazeer 2020 |
//! | [`transformer::Norm`] | layer norm, RMS norm | Ba 2016; Zhang & Sennrich 2019 |
//!
//! ## Vision
//!
//! # What always holds
//!
//! - A key that may not be seen has weight 0 and gets gradient 0, whatever stands there, NaN included. A query that may
//!   see nothing gets weights 0, context 0, gradient 0.
//! - Asking for weights changes no number, nor does which path computes, beyond rounding.
//! - Bad shapes and impossible combinations are an [`AttentionError`] that names the field, what was found and what was
//!   expected; never a panic inside Burn.
//! - Nothing random is hidden: noise is an argument ([`dropout::Noise`]), initial values come from one seeded generator.
#![deny(missing_docs)]

pub mod attention;
pub mod bridge;
pub mod cache;
pub mod dropout;
pub mod explain;
pub mod heads;
pub mod initialize;
pub mod mask;
pub mod normalize;
pub mod position;
pub mod recurrent;
pub mod score;
pub mod transformer;
pub mod vision;
pub mod weights;

pub use attention::{Attended, Attention, AttentionError, Call, Memory, Observe, Path, Reading};
