//! Effective approaches to attention-based translation (Luong, Pham, Manning 2015).
//!
//! Stacked LSTM encoder and decoder; attention on the decoder's *current* top state `h_t`:
//!
//! ```text
//! h_t  = LSTM([x_t; h̃_{t-1}])                     input feeding; without it LSTM(x_t)
//! α_t  = align(h_t, h̄_s)                          dot, general, concat or location; global or local
//! c_t  = Σ_s α_ts h̄_s
//! h̃_t  = tanh(W_c [c_t; h_t])
//! p    = softmax(W_s h̃_t)
//! ```
//!
//! A key of the configuration chooses another normaliser in place of the softmax ([`crate::attention`]).
//!
//! The decoder starts from the encoder's last states, layer by layer. The encoder may read the source
//! reversed (as in the paper) or in both directions (each of half the size), as later systems do.
//! Dropout acts on the embeddings, between layers, on the annotations and on `h̃_t`; input feeding feeds
//! `h̃_t` after this dropout (paper: 0.2 between layers).
//!
//! ```
//! use burn::tensor::Device;
//! use regard_models::{
//!     Generator, ModelConfig, LuongConfig, SourceBatch, TargetBatch, Vocabularies,
//! };
//! use regard_nn::dropout::DropoutRng;
//!
//! let (device, vocabularies) = (Device::flex(), Vocabularies::new(16, 16));
//! let model = LuongConfig::tiny().init(&vocabularies, 1, &device)?;
//! let source = SourceBatch::new(&[vec![5, 6, 7]], &vocabularies.source, &device);
//! let target = TargetBatch::new(&[vec![8, 9]], &vocabularies.target, &device);
//! let scored = model.forward(&source, &target, &mut DropoutRng::none());
//! assert_eq!(scored.logits().dims(), [3, 16]);
//! # Ok::<(), regard_models::ModelError>(())
//! ```

use burn::{
    module::Module,
    nn::Linear,
    tensor::{Device, Int, Tensor},
};
use regard_config::{Check, LAYERS, SIZE, config};
use regard_nn::{
    Attention,
    attention::Sampled,
    bridge::{
        self,
        sequence::{self, InputFeedingFields, InputFeedingMasks},
    },
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
    mask::Locality,
    recurrent::{Direction, Lstm, LstmStack, LstmState},
    score::{Additive, General, Location, Score},
};
use serde::{Deserialize, Serialize};

use crate::{
    AnyGenerator,
    attention::{NormalizerConfig, SourceReader},
    batch::{SourceBatch, TargetBatch},
    error::ModelError,
    generator::{DecoderState, Generator, Output, Scored, expect_valid},
    recurrent::{LstmEncoder, StackDropout, ask, check_halves, index, select_layers},
    role::{GeneratorProperties, ModelConfig},
    tables::{Tables, TablesConfig, Tie},
    vocabulary::Vocabularies,
};

/// The score functions of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LuongScore {
    /// `h_tᵀ h̄_s`
    Dot,
    /// `h_tᵀ W_a h̄_s`
    #[default]
    General,
    /// `vᵀ tanh(W_a [h_t; h̄_s])`
    Concat,
    /// `softmax(W_a h_t)`: a score for each source position, whatever the state there.
    Location,
}

/// Where attention may look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LuongAttention {
    /// Everywhere.
    #[default]
    Global,
    /// In a window around the target's own position.
    LocalM,
    /// In a window around a position that the decoder predicts.
    LocalP,
}

/// How the encoder reads the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reading {
    /// First word first.
    Forward,
    /// Last word first, as in the paper.
    #[default]
    Reversed,
    /// Both ways, each with half of the units.
    Bidirectional,
}

config! {
    /// Luong's model: stacked LSTMs, attention from the current top state.
    pub struct LuongConfig {
        /// Size of a word vector.
        embedding: usize = 256, in SIZE;
        /// Size of a layer's state.
        hidden: usize = 256, in SIZE;
        /// Number of stacked layers in encoder and decoder.
        layers: usize = 1, in LAYERS;
        /// Score function: "dot", "general", "concat" or "location".
        score: LuongScore = LuongScore::General;
        /// Where to look: "global", "local-m" (monotonic) or "local-p" (predicted).
        attention: LuongAttention = LuongAttention::Global;
        /// Half width D of the window of local attention, in tokens.
        window: usize = 10, in SIZE;
        /// Whether the attentional state h~ is part of the next input.
        input_feeding: bool = true;
        /// Size of the alignment model's hidden layer; for score "concat".
        attention_dimension: usize = 256, in SIZE;
        /// Longest source in tokens, the end marker included; for score "location".
        max_source_length: usize = 100, in SIZE;
        /// How the encoder reads the source: "forward", "reversed" (as in the paper) or
        /// "bidirectional" (each direction with half of the units).
        encoder: Reading = Reading::Reversed;
        /// Shared word vectors: "none", "target" or "all".
        tie: Tie = Tie::None;
        /// From scores to weights (in the paper "softmax").
        [choice] normalizer: NormalizerConfig = NormalizerConfig::Softmax;
        /// Dropout.
        [table] dropout: StackDropout = StackDropout::default();
    }
    check LuongConfig::agree
}

impl LuongConfig {
    /// A model of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            embedding: 8,
            hidden: 12,
            layers: 2,
            attention_dimension: 10,
            max_source_length: 50,
            dropout: StackDropout::none(),
            ..Self::default()
        }
    }

    fn agree(&self, check: &mut Check) {
        if self.encoder == Reading::Bidirectional {
            check_halves(self.hidden, check);
        }
        if self.score == LuongScore::Location && self.attention != LuongAttention::Global {
            check.fail(
                "score",
                "found \"location\" with local attention",
                "\"dot\", \"general\" or \"concat\", or attention = \"global\"",
            );
        }
    }

    fn locality(&self) -> Locality {
        let half_width = self.window;
        match self.attention {
            LuongAttention::Global => Locality::Global,
            LuongAttention::LocalM => Locality::Monotonic { half_width },
            LuongAttention::LocalP => Locality::Predictive { half_width },
        }
    }
}

impl ModelConfig for LuongConfig {
    type Role = AnyGenerator;
    type Model = Luong;

    fn draw(
        &self,
        vocabularies: &Vocabularies,
        init: &mut Initializer,
    ) -> Result<Luong, ModelError> {
        let (m, n) = (self.embedding, self.hidden);
        let score = match self.score {
            LuongScore::Dot => Score::dot(),
            LuongScore::General => Score::General(General::new(n, n, init)),
            LuongScore::Concat => {
                Score::Additive(Additive::new(n, n, self.attention_dimension, init))
            }
            LuongScore::Location => Score::Location(Location::new(n, self.max_source_length, init)),
        };
        let directions = match self.encoder {
            Reading::Bidirectional => 2,
            _ => 1,
        };
        let fed = if self.input_feeding { n } else { 0 };
        Ok(Luong {
            tables: TablesConfig::new(vocabularies, [m, n], self.tie).init(init)?,
            encoder: (0..self.layers)
                .map(|layer| {
                    LstmEncoder::new(directions, [if layer == 0 { m } else { n }, n, 1], init)
                })
                .collect(),
            attention: Attention::new(score)
                .with_normalize(self.normalizer.init(1, n, init))
                .with_locality(self.locality(), n, init),
            decoder: expect_valid(LstmStack::new(self.layers, m + fed, n, init)),
            combine: init.linear(2 * n, n, false),
            input_feeding: self.input_feeding,
            reading: self.encoder,
            normalizer: self.normalizer.clone(),
            dropout: self.dropout.clone(),
        })
    }

    fn layers(&self) -> usize {
        self.layers
    }

    fn properties(&self) -> GeneratorProperties {
        GeneratorProperties {
            needs_joint_vocabulary: self.tie == Tie::All,
            ..GeneratorProperties::default()
        }
    }
}

/// Luong's encoder-decoder with attention.
#[derive(Module, Debug)]
pub struct Luong {
    /// Embeddings and output layer.
    pub tables: Tables,
    /// The encoder, bottom layer first: one direction, or two side by side.
    pub encoder: Vec<LstmEncoder>,
    /// Score and locality.
    pub attention: Attention,
    /// The decoder.
    pub decoder: LstmStack,
    /// `W_c [2n, n]`, rows in the order `[c; h]`.
    pub combine: Linear,
    #[module(skip)]
    input_feeding: bool,
    #[module(skip)]
    reading: Reading,
    #[module(skip)]
    normalizer: NormalizerConfig,
    #[module(skip)]
    dropout: StackDropout,
}

/// The state that the decoder carries from step to step.
#[derive(Debug, Clone)]
pub struct LuongState {
    /// One state per layer.
    pub layers: Vec<LstmState>,
    /// `h̃_{t-1} [rows, n]`, zeros at the start.
    pub attentional: Tensor<2>,
    /// The encoder's top states.
    pub source: SourceReader,
}

impl DecoderState for LuongState {
    fn select(self, rows: &[usize], same_sources: bool) -> Self {
        let index = index(rows, &self.attentional.device());
        Self {
            layers: select_layers(self.layers, &index),
            attentional: self.attentional.select(0, index),
            source: self.source.select(rows, same_sources),
        }
    }
}

impl Generator for Luong {
    const NAME: &'static str = "Luong";
    type State = LuongState;

    fn vocabularies(&self) -> Vocabularies {
        self.tables.vocabularies
    }

    /// The top states as memory, and the encoder's last states.
    fn encode(&self, source: &SourceBatch, noise: &mut DropoutRng) -> LuongState {
        let [_, batch] = source.ids.dims();
        let device = source.ids.device();
        let embedded = self.tables.embed_source(source.ids.clone());
        let mut below = dropout(embedded, self.dropout.embedding, noise.batch_axis(1));
        let keep = (!source.keep.is_full()).then(|| source.keep.time_major());
        let reading = match self.reading {
            Reading::Reversed => [Direction::Backward, Direction::Forward],
            _ => [Direction::Forward, Direction::Backward],
        };
        let mut layers = Vec::with_capacity(self.encoder.len());
        for (l, layer) in self.encoder.iter().enumerate() {
            if l > 0 {
                below = dropout(below, self.dropout.layers, noise.batch_axis(1));
            }
            let (states, last) = layer.sequence(below, keep.clone(), reading, 0.0, noise);
            below = states; // [time, batch, n]
            layers.push(last);
        }
        let annotations =
            dropout(below, self.dropout.annotation, noise.batch_axis(1)).swap_dims(0, 1);
        LuongState {
            layers,
            attentional: Tensor::zeros([batch, self.decoder.size()], &device),
            source: SourceReader::new(&self.attention, annotations, source.keep.clone()),
        }
    }

    fn forward(
        &self,
        source: &SourceBatch,
        target: &TargetBatch,
        noise: &mut DropoutRng,
    ) -> Scored {
        let state = self.encode(source, noise);
        let embedded = self.tables.embed_target(target.inputs.clone());
        let embedded = dropout(embedded, self.dropout.embedding, noise.batch_axis(1)); // [time, batch, m]
        let decoded = match self.input_feeding {
            true => self.decode_feeding(embedded, state, noise),
            false => self.decode_at_once(embedded, state, noise),
        };
        let readout = decoded.attentional.flatten(0, 1);
        Scored {
            draws: self.normalizer.draws(decoded.sampled),
            ..self.tables.scored(readout, Some(decoded.weights))
        }
    }

    fn step(
        &self,
        previous: Tensor<1, Int>,
        mut state: LuongState,
        _observe: bool,
    ) -> (Output, LuongState) {
        let embedded = self.tables.embed_previous(previous);
        let attention = self.normalizer.searching(&self.attention);
        let noise = &mut DropoutRng::none();
        let (weights, _) = self.advance(&attention, embedded, &mut state, &[], noise);
        let output = Output {
            logits: self.tables.logits(state.attentional.clone()),
            weights: Some(weights),
        };
        (output, state)
    }

    fn is_normalized(&self) -> bool {
        self.normalizer.is_normalized(&self.attention)
    }
}

impl Luong {
    /// Without input feeding no step waits for attention: the LSTM runs over the whole target, then all
    /// steps attend at once.
    fn decode_at_once(
        &self,
        embedded: Tensor<3>,
        mut state: LuongState,
        noise: &mut DropoutRng,
    ) -> Decoded {
        let probability = self.dropout.layers;
        let (top, _) = expect_valid(self.decoder.sequence(
            embedded,
            Some(state.layers),
            None,
            Direction::Forward,
            probability,
            noise,
        ));
        let query = top.swap_dims(0, 1); // [batch, time, n]
        let attended = state.source.read(&self.attention, query.clone(), noise);
        let combined = Tensor::cat(vec![attended.context, query], 2);
        let attentional = bridge::apply(&self.combine, combined)
            .tanh()
            .swap_dims(0, 1);
        Decoded {
            attentional: dropout(attentional, self.dropout.output, noise.batch_axis(1)),
            weights: attended.weights,
            sampled: attended.sampled,
        }
    }

    /// With input feeding: every step waits for the one before.
    fn decode_feeding(
        &self,
        embedded: Tensor<3>,
        state: LuongState,
        noise: &mut DropoutRng,
    ) -> Decoded {
        let [length, batch, _] = embedded.dims();
        let masks = self.masks(length, batch, &embedded.device(), noise);
        let usual = self.normalizer == NormalizerConfig::Softmax
            && !matches!(self.attention.locality(), Locality::Predictive { .. });
        let fused = usual && sequence::is_fused(&embedded);
        match &self.attention.score {
            Score::Dot(_) | Score::General(_) if fused => {
                self.decode_fused(embedded, state, masks, None)
            }
            Score::Additive(score) if fused => {
                self.decode_fused(embedded, state, masks, Some(score))
            }
            _ => self.decode_plain(embedded, state, masks, noise),
        }
    }

    /// The dropout masks of every step, `[time, layers, batch, n]`: mask `l` is applied to the output of
    /// layer `l`, the last one to `h̃`.
    fn masks(
        &self,
        length: usize,
        batch: usize,
        device: &Device,
        noise: &mut DropoutRng,
    ) -> Option<Tensor<4>> {
        let layers = self.decoder.layers.len();
        let shape = [length, 1, batch, self.decoder.size()];
        let masks: Vec<_> = (0..layers)
            .map(|layer| {
                let probability = match layer + 1 == layers {
                    true => self.dropout.output,
                    false => self.dropout.layers,
                };
                noise.batch_axis(2).mask(shape, probability, device)
            })
            .collect();
        if masks.iter().all(Option::is_none) {
            return None;
        }
        let ones = || Tensor::ones(shape, device);
        let masks = masks.into_iter().map(|mask| mask.unwrap_or_else(ones));
        Some(Tensor::cat(masks.collect(), 1))
    }

    fn decode_fused(
        &self,
        embedded: Tensor<3>,
        state: LuongState,
        masks: Option<Tensor<4>>,
        score: Option<&Additive>,
    ) -> Decoded {
        let [length, batch, m] = embedded.dims();
        let n = self.decoder.size();
        let device = embedded.device();
        let layers = &self.decoder.layers;
        let input = layers[0].input.weight.val(); // [m + n, 4n]
        let bias = |layer: &Lstm| match &layer.input.bias {
            Some(bias) => bias.val(),
            None => Tensor::zeros([4 * n], &device),
        };
        let projected = bridge::linear(
            embedded,
            input.clone().narrow(0, 0, m),
            Some(bias(&layers[0])),
        );
        let (layer_weight, layer_bias) = match &layers[1..] {
            [] => (
                Tensor::zeros([0, n, 4 * n], &device),
                Tensor::zeros([0, 4 * n], &device),
            ),
            upper => (
                Tensor::stack::<3>(upper.iter().map(|l| l.input.weight.val()).collect(), 0),
                Tensor::stack::<2>(upper.iter().map(bias).collect(), 0),
            ),
        };
        let (query_weight, vector) = match score {
            Some(score) => (score.query.weight.val(), score.vector.val()),
            None => (Tensor::zeros([n, 0], &device), Tensor::zeros([0], &device)),
        };
        let memory = state.source.memory;
        let keep = &memory.keep;
        let windows = match self.attention.locality() {
            Locality::Monotonic { half_width } => {
                let window = |t: usize| {
                    let end = t
                        .saturating_add(half_width)
                        .saturating_add(1)
                        .min(keep.length());
                    [t.saturating_sub(half_width).min(end), end]
                };
                Some((0..length * batch).map(|i| window(i / batch)).collect())
            }
            _ => None,
        };
        let initial = state.layers.into_iter().map(LstmState::joined).collect();
        let recurrent = layers.iter().map(|l| l.recurrent.val()).collect();
        let inputs = InputFeedingFields {
            x_projection: projected.into(),
            feed: state.attentional.into(),
            feed_weight: input.narrow(0, m, n).into(),
            recurrent: Tensor::stack::<3>(recurrent, 0).into(),
            layer_weight: layer_weight.into(),
            layer_bias: layer_bias.into(),
            initial: Tensor::stack::<3>(initial, 0).into(),
            keys: memory.keys.into(),
            values: memory.values.into(),
            combine_weight: self.combine.weight.val().into(),
            combine_bias: Tensor::<1>::zeros([n], &device).into(),
            query_weight: query_weight.into(),
            score: vector.into(),
        };
        let masks = InputFeedingMasks {
            dropout: masks,
            windows,
            keep_source: (!keep.is_full()).then(|| keep.tensor()),
        };
        let output = sequence::input_feeding_decoder(inputs, masks);
        Decoded {
            attentional: output.output,
            weights: output.weights.swap_dims(0, 1),
            sampled: None,
        }
    }

    /// The same by plain tensor operations, step by step: the reference for the fused operation.
    fn decode_plain(
        &self,
        embedded: Tensor<3>,
        mut state: LuongState,
        masks: Option<Tensor<4>>,
        noise: &mut DropoutRng,
    ) -> Decoded {
        let [length, _, _] = embedded.dims();
        let (mut attentional, mut weights, mut sampled) = (vec![], vec![], vec![]);
        for t in 0..length {
            let x = embedded.clone().narrow(0, t, 1).squeeze_dim(0);
            let masks: Vec<Tensor<2>> = masks
                .iter()
                .flat_map(|masks| {
                    let step: Tensor<3> = masks.clone().narrow(0, t, 1).squeeze_dim(0);
                    step.iter_dim(0)
                        .map(|mask| mask.squeeze_dim(0))
                        .collect::<Vec<_>>()
                })
                .collect();
            let (row, drawn) = self.advance(&self.attention, x, &mut state, &masks, noise);
            attentional.push(state.attentional.clone());
            weights.push(row);
            sampled.push(drawn);
        }
        Decoded {
            attentional: Tensor::stack(attentional, 0),
            weights: Tensor::stack(weights, 1),
            sampled: Sampled::all_steps(sampled),
        }
    }

    /// One step: `x [rows, m]` embedded. Gives weights `[rows, source]` and what was drawn. `masks`
    /// holds one dropout mask a layer (see [`Luong::masks`]), or nothing.
    fn advance(
        &self,
        attention: &Attention,
        x: Tensor<2>,
        state: &mut LuongState,
        masks: &[Tensor<2>],
        noise: &mut DropoutRng,
    ) -> (Tensor<2>, Option<Sampled>) {
        let x = match self.input_feeding {
            true => Tensor::cat(vec![x, state.attentional.clone()], 1),
            false => x,
        };
        let last = self.decoder.layers.len() - 1;
        let between = &masks[..masks.len().min(last)];
        let layers = std::mem::take(&mut state.layers);
        let (top, layers) = expect_valid(self.decoder.step(x, layers, between));
        let asked = ask(attention, &top, &mut state.source, noise);
        let combined = Tensor::cat(vec![asked.context, top], 1);
        let attentional = bridge::apply(&self.combine, combined).tanh();
        state.layers = layers;
        state.attentional = match masks.get(last) {
            Some(mask) => attentional * mask.clone(),
            None => attentional,
        };
        (asked.weights, asked.sampled)
    }
}

struct Decoded {
    attentional: Tensor<3>, // [time, batch, n]
    weights: Tensor<3>,     // [batch, time, source]
    sampled: Option<Sampled>,
}

#[cfg(test)]
#[path = "luong_tests.rs"]
mod tests;
