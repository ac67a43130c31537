//! Long short-term memory-networks as encoder and decoder (Cheng, Dong, Lapata 2016, section 4).
//!
//! Both sides are an [`Lstmn`]: every word is linked by attention to the words before it in its own sentence (intra-attention).
//! The decoder also attends to the source (inter-attention), in one of two ways:
//!
//! ```text
//! encoder   γ_j, α_j = LSTMN(E x)_j                              hidden and cell states, the source's tape
//!
//! shallow   β_tj = softmax_j vᵀ tanh(W_a h_{t-1} + U_a γ_j),  a_t = Σ_j β_tj γ_j
//!           h_t  = LSTMN([E y_{t-1}; a_t])_t                     as RNNsearch, with another cell
//! deep      p_tj = softmax_j uᵀ tanh(W_γ γ_j + W_x E y_{t-1} + W_γ̃ γ̃_{t-1})
//!           γ̃_t, α̃_t = Σ_j p_tj γ_j, Σ_j p_tj α_j
//!           r_t  = σ(W_r [γ̃_t, E y_{t-1}])
//!           c_t  = r_t ∘ α̃_t + f_t ∘ c̃_t + i_t ∘ ĉ_t             the source enters the cell
//!
//! p         ∝ exp(W_o tanh(R h_t))
//! ```
//!
//! The paper does not say how the decoder starts and what the output layer reads. Here the decoder's tape is empty at first, and
//! one layer of the size of a word vector stands before the output, so that tables can be tied. Dropout acts on word vectors, on
//! the source's hidden states and on the input of the output layer.
//!
//! ```
//! use burn::tensor::Device;
//! use regard_models::{
//!     Generator, ModelConfig, LstmnTranslationConfig, SourceBatch, TargetBatch, Vocabularies,
//! };
//! use regard_nn::dropout::DropoutRng;
//!
//! let (device, vocabularies) = (Device::flex(), Vocabularies::new(16, 16));
//! let model = LstmnTranslationConfig::tiny().init(&vocabularies, 1, &device)?;
//! let source = SourceBatch::new(&[vec![5, 6, 7]], &vocabularies.source, &device);
//! let target = TargetBatch::new(&[vec![8, 9]], &vocabularies.target, &device);
//! let scored = model.forward(&source, &target, &mut DropoutRng::none());
//! assert_eq!(scored.logits().dims(), [3, 16]); // [time · batch, vocabulary]
//! let maps = model.look(&source, &target).unwrap();
//! assert_eq!(maps.decoder[0].dims(), [1, 1, 3, 3]); // [batch, heads, target, target]: row t links to words before t
//! assert_eq!(maps.cross[0].dims(), [1, 1, 3, 4]); // [batch, heads, target, source]
//! # Ok::<(), regard_models::ModelError>(())
//! ```

use burn::{
    module::Module,
    nn::Linear,
    tensor::{Int, Tensor},
};
use regard_config::{Check, Choice, SIZE, config};
use regard_nn::{
    Attention,
    attention::Sampled,
    bridge::apply,
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
    recurrent::{Lstmn, PreparedSource, SourceTape, Tape},
};
use serde::{Deserialize, Serialize};

use crate::{
    AnyGenerator,
    attention::{NormalizerConfig, ScoreConfig, SourceMaskConfig, SourceReader},
    batch::{SourceBatch, TargetBatch},
    error::ModelError,
    generator::{AttentionMaps, DecoderState, Generator, Output, Scored, expect_valid},
    recurrent::{LayerDropout, ask, index},
    role::{GeneratorProperties, ModelConfig},
    tables::{Tables, TablesConfig, Tie},
    vocabulary::Vocabularies,
};

/// How the decoder sees the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fusion {
    /// The context is part of the decoder's input.
    Shallow,
    /// The source's tape is read into the decoder's cell through a gate of its own.
    #[default]
    Deep,
}

config! {
    /// LSTMN encoder-decoder: both sides link every word to the words before it by attention, and the
    /// decoder reads the source's memory (Cheng, Dong and Lapata 2016, section 4).
    pub struct LstmnTranslationConfig {
        /// Size of a word vector.
        embedding: usize = 256, in SIZE;
        /// Size of a state of encoder and decoder.
        hidden: usize = 256, in SIZE;
        /// Size in which words and states are compared, in either attention.
        attention_dimension: usize = 128, in SIZE;
        /// How the decoder sees the source: "shallow" (part of its input) or "deep" (read into its
        /// cell).
        fusion: Fusion = Fusion::Deep;
        /// Shared word vectors: "none", "target" or "all".
        tie: Tie = Tie::None;
        /// How well the decoder's state and the source's match; for shallow fusion.
        [choice] score: ScoreConfig = ScoreConfig::Additive;
        /// From scores to weights, of attention to the source; for shallow fusion.
        [choice] normalizer: NormalizerConfig = NormalizerConfig::Softmax;
        /// What the decoder sees of the source; for shallow fusion.
        [choice] mask: SourceMaskConfig = SourceMaskConfig::None;
        /// Dropout.
        [table] dropout: LayerDropout = LayerDropout::default();
    }
    check LstmnTranslationConfig::agree
}

impl LstmnTranslationConfig {
    /// A model of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            embedding: 8,
            hidden: 12,
            attention_dimension: 10,
            dropout: LayerDropout::none(),
            ..Self::default()
        }
    }

    fn agree(&self, check: &mut Check) {
        if self.fusion == Fusion::Shallow {
            return;
        }
        let kinds = [
            ("score", self.score.kind(), ScoreConfig::Additive.kind()),
            (
                "normalizer",
                self.normalizer.kind(),
                NormalizerConfig::Softmax.kind(),
            ),
            ("mask", self.mask.kind(), SourceMaskConfig::None.kind()),
        ];
        for (key, found, usual) in kinds.into_iter().filter(|(_, found, usual)| found != usual) {
            let expected =
                format!("{usual:?}, as the cell reads the source itself, or fusion = \"shallow\"");
            check.fail(
                key,
                format!("found {found:?} with fusion = \"deep\""),
                expected,
            );
        }
    }
}

impl ModelConfig for LstmnTranslationConfig {
    type Role = AnyGenerator;
    type Model = LstmnTranslation;

    fn draw(
        &self,
        vocabularies: &Vocabularies,
        init: &mut Initializer,
    ) -> Result<LstmnTranslation, ModelError> {
        let (m, n, a) = (self.embedding, self.hidden, self.attention_dimension);
        let tables = TablesConfig::new(vocabularies, [m, m], self.tie).init(init)?;
        let encoder = Lstmn::new(m, n, a, init);
        let (attention, decoder) = match self.fusion {
            Fusion::Shallow => {
                let attention = Attention::new(self.score.init([n, n], a, init))
                    .with_normalize(self.normalizer.init(1, n, init))
                    .with_locality(self.mask.locality(), n, init);
                (Some(attention), Lstmn::new(m + n, n, a, init))
            }
            Fusion::Deep => (None, Lstmn::new(m, n, a, init).with_fusion(n, a, init)),
        };
        Ok(LstmnTranslation {
            tables,
            encoder,
            attention,
            decoder,
            readout: init.linear(n, m, true),
            normalizer: self.normalizer.clone(),
            dropout: self.dropout.clone(),
        })
    }

    fn layers(&self) -> usize {
        1
    }

    fn properties(&self) -> GeneratorProperties {
        GeneratorProperties {
            needs_joint_vocabulary: self.tie == Tie::All,
            ..GeneratorProperties::default()
        }
    }
}

/// An encoder-decoder of long short-term memory-networks.
#[derive(Module, Debug)]
pub struct LstmnTranslation {
    /// Embeddings and output layer.
    pub tables: Tables,
    /// Reads the source from its first word to its last.
    pub encoder: Lstmn,
    /// How the source is read with shallow fusion.
    pub attention: Option<Attention>,
    /// Writes the target; with deep fusion it reads the source itself, with shallow fusion its input is `[E y; a]`.
    pub decoder: Lstmn,
    /// `R [n, m]`
    pub readout: Linear,
    #[module(skip)]
    normalizer: NormalizerConfig,
    #[module(skip)]
    dropout: LayerDropout,
}

/// The source as the decoder reads it.
#[derive(Debug, Clone)]
enum Source {
    Shallow(SourceReader),
    Deep(PreparedSource),
}

/// The state that the decoder carries from step to step.
#[derive(Debug, Clone)]
pub struct LstmnTranslationState {
    /// The states of all steps so far.
    pub tape: Tape,
    source: Source,
}

impl DecoderState for LstmnTranslationState {
    fn select(self, rows: &[usize], same_sources: bool) -> Self {
        let index = index(rows, &self.tape.last().hidden.device());
        Self {
            tape: self.tape.select(index.clone()),
            source: match self.source {
                Source::Shallow(source) => Source::Shallow(source.select(rows, same_sources)),
                Source::Deep(source) if same_sources => Source::Deep(source),
                Source::Deep(source) => Source::Deep(source.select(index)),
            },
        }
    }
}

impl Generator for LstmnTranslation {
    const NAME: &'static str = "LstmnTranslation";
    type State = LstmnTranslationState;

    fn vocabularies(&self) -> Vocabularies {
        self.tables.vocabularies
    }

    fn encode(&self, source: &SourceBatch, noise: &mut DropoutRng) -> LstmnTranslationState {
        self.read_source(source, noise).0
    }

    fn forward(
        &self,
        source: &SourceBatch,
        target: &TargetBatch,
        noise: &mut DropoutRng,
    ) -> Scored {
        let state = self.encode(source, noise);
        let mut steps = self.write(target, state, noise);
        let sampled = steps.iter_mut().map(|step| step.sampled.take());
        let draws = self.normalizer.draws(Sampled::all_steps(sampled));
        let weights = steps.iter().map(|step| step.source_weights.clone());
        let weights = Tensor::stack(weights.collect(), 1); // [batch, target, source]
        let hidden = steps.into_iter().map(|step| step.hidden).collect();
        let readout = self.read_out(Tensor::cat(hidden, 0)); // [time · batch, m]
        let readout = dropout(readout, self.dropout.output, noise);
        Scored {
            draws,
            ..self.tables.scored(readout, Some(weights))
        }
    }

    fn step(
        &self,
        previous: Tensor<1, Int>,
        state: LstmnTranslationState,
        _observe: bool,
    ) -> (Output, LstmnTranslationState) {
        let embedded = self.tables.embed_previous(previous);
        let attention = self.attention.as_ref();
        let attention = attention.map(|attention| self.normalizer.searching(attention));
        let noise = &mut DropoutRng::none();
        let (step, state) = self.advance(attention.as_deref(), embedded, state, noise);
        let output = Output {
            logits: self.tables.logits(self.read_out(step.hidden)),
            weights: Some(step.source_weights),
        };
        (output, state)
    }

    fn is_normalized(&self) -> bool {
        let shallow = self.attention.as_ref();
        shallow.is_none_or(|attention| self.normalizer.is_normalized(attention))
    }

    fn look(&self, source: &SourceBatch, target: &TargetBatch) -> Option<AttentionMaps> {
        let noise = &mut DropoutRng::none();
        let (state, encoder) = self.read_source(source, noise);
        let steps = self.write(target, state, noise);
        let length = steps.len();
        // The row of step `t` has `t` weights.
        let links = steps.iter().map(|step| {
            let [batch, _] = step.source_weights.dims();
            let options = (&step.source_weights.device(), step.source_weights.dtype());
            let seen = step.weights.as_ref().map_or(0, |seen| seen.dims()[1]);
            let hidden = Tensor::zeros([batch, length - seen], options);
            Tensor::cat(step.weights.iter().cloned().chain([hidden]).collect(), 1)
        });
        let decoder: Tensor<3> = Tensor::stack(links.collect(), 1);
        let cross = steps.iter().map(|step| step.source_weights.clone());
        let cross: Tensor<3> = Tensor::stack(cross.collect(), 1);
        let one_head = |weights: Tensor<3>| vec![weights.unsqueeze_dim::<4>(1)];
        Some(AttentionMaps {
            encoder: one_head(encoder),
            decoder: one_head(decoder),
            cross: one_head(cross),
        })
    }
}

/// One step of the decoder.
struct Step {
    hidden: Tensor<2>,          // [rows, n]
    source_weights: Tensor<2>,  // [rows, source]
    weights: Option<Tensor<2>>, // [rows, steps before]
    sampled: Option<Sampled>,
}

impl LstmnTranslation {
    /// The decoder's first state, and the weights among the source's words, `[batch, source, source]`.
    fn read_source(
        &self,
        source: &SourceBatch,
        noise: &mut DropoutRng,
    ) -> (LstmnTranslationState, Tensor<3>) {
        let [_, batch] = source.ids.dims();
        let embedded = self.tables.embed_source(source.ids.clone());
        let embedded = dropout(embedded, self.dropout.embedding, noise.batch_axis(1)); // [time, batch, m]
        let real = (!source.keep.is_full()).then(|| source.keep.time_major());
        let read = expect_valid(self.encoder.sequence(embedded, None, real));
        let hidden =
            dropout(read.hidden, self.dropout.annotation, noise.batch_axis(1)).swap_dims(0, 1);
        let keep = source.keep.clone();
        let state = LstmnTranslationState {
            tape: self.decoder.tape(batch, &source.ids.device()),
            source: match &self.attention {
                Some(attention) => Source::Shallow(SourceReader::new(attention, hidden, keep)),
                None => Source::Deep(expect_valid(self.decoder.source(&SourceTape {
                    hidden,
                    cell: read.cell.swap_dims(0, 1),
                    keep,
                }))),
            },
        };
        (state, read.weights)
    }

    /// All steps of the decoder, teacher-forced.
    fn write(
        &self,
        target: &TargetBatch,
        mut state: LstmnTranslationState,
        noise: &mut DropoutRng,
    ) -> Vec<Step> {
        let embedded = self.tables.embed_target(target.inputs.clone());
        let embedded = dropout(embedded, self.dropout.embedding, noise.batch_axis(1)); // [time, batch, m]
        let mut steps = vec![];
        for embedded in embedded.iter_dim(0) {
            let attention = self.attention.as_ref();
            let (step, next) = self.advance(attention, embedded.squeeze_dim(0), state, noise);
            state = next;
            steps.push(step);
        }
        steps
    }

    /// One step from a word vector `embedded [rows, m]`.
    fn advance(
        &self,
        attention: Option<&Attention>,
        embedded: Tensor<2>,
        state: LstmnTranslationState,
        noise: &mut DropoutRng,
    ) -> (Step, LstmnTranslationState) {
        let LstmnTranslationState { tape, mut source } = state;
        let (read, weights, sampled) = match (&mut source, attention) {
            (Source::Shallow(source), Some(attention)) => {
                let asked = ask(attention, &tape.last().hidden, source, noise);
                let x = Tensor::cat(vec![embedded, asked.context], 1);
                let read = expect_valid(self.decoder.step(x, tape, None));
                (read, Some(asked.weights), asked.sampled)
            }
            (Source::Deep(source), None) => {
                let mut read = expect_valid(self.decoder.step(embedded, tape, Some(source)));
                let weights = read.source_weights.take();
                (read, weights, None)
            }
            _ => unreachable!("a state of this model"),
        };
        let step = Step {
            hidden: read.tape.last().hidden.clone(),
            source_weights: weights.expect("the source is read at every step"),
            weights: read.weights,
            sampled,
        };
        let tape = read.tape;
        (step, LstmnTranslationState { tape, source })
    }

    /// `tanh(R h)`: `[rows, m]`.
    fn read_out(&self, hidden: Tensor<2>) -> Tensor<2> {
        apply(&self.readout, hidden).tanh()
    }
}
