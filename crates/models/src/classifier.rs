//! Classifiers of sentences: word vectors, an encoder, one pooled vector, a small network.
//!
//! ```text
//! h_1 .. h_T = encoder(E w_1 .. E w_T)
//! s          = mean of the h_t, or the hops of self-attention (Lin et al. 2017)
//! p          = softmax(W ReLU(U s + b) + c)
//! ```
//!
//! | encoder | what it reads with | what it can show |
//! |---|---|---|
//! | [`EncoderConfig::Lstmn`] | a tape searched by attention (Cheng et al. 2016) | which earlier words each word was linked to |
//! | [`EncoderConfig::Lstm`] | an LSTM, in one direction or both | nothing: the baseline |
//! | [`EncoderConfig::SelfAttentive`] | an LSTM in both directions, pooled by attention (Lin et al. 2017) | which words the verdict was taken from |
//!
//! ```
//! use burn::tensor::Device;
//! use regard_models::{ClassifierConfig, SourceBatch};
//! use regard_nn::dropout::Noise;
//!
//! let device = Device::flex();
//! let classifier = ClassifierConfig::tiny().init(1, &device)?;
//! let batch = SourceBatch::new(&[vec![5, 6, 7], vec![8]], &device);
//! let classified = classifier.forward(&batch, &mut Noise::none());
//! assert_eq!(classified.logits.dims(), [2, 2]); // [batch, classes]
//! assert_eq!(classified.maps[0].dims(), [2, 1, 4, 4]); // [batch, heads, queries, keys]
//! # Ok::<(), regard_models::ModelError>(())
//! ```

use burn::{
    module::Module,
    nn::{Embedding, Linear},
    tensor::{Device, Tensor, activation::relu},
};
use regard_nn::{
    bridge,
    dropout::{Noise, dropout},
    initialize::Initializer,
    mask::Keep,
    recurrent::{AttentivePooling, Direction, LstmStack},
};
use serde::{Deserialize, Serialize};

use crate::{ModelError, SourceBatch, lstmn::LstmnEncoder, model::sure};

/// Which encoder, and its sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum EncoderConfig {
    /// A long short-term memory-network; the mean of its states is classified.
    Lstmn {
        /// Units of a layer (paper: 168).
        hidden: usize,
        /// Layers (paper: 1 and 2).
        layers: usize,
        /// The size in which a word and the tape are compared (paper: that of a layer).
        attention: usize,
    },
    /// An LSTM; the mean of its states is classified.
    Lstm {
        /// Units of a layer, of both directions together.
        hidden: usize,
        /// Layers.
        layers: usize,
        /// Whether it reads in both directions, each with half of the units.
        bidirectional: bool,
    },
    /// An LSTM in both directions, pooled by attention.
    SelfAttentive {
        /// Units of a layer, of both directions together.
        hidden: usize,
        /// Layers.
        layers: usize,
        /// `a`, the size in which words are scored (paper: 350).
        attention: usize,
        /// The number of pooled means (paper: 30).
        hops: usize,
        /// The weight of the penalty `‖A Aᵀ - I‖²` in the loss.
        penalty: f64,
    },
}

/// Sizes and choices of [`Classifier`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClassifierConfig {
    /// Entries of the vocabulary.
    pub vocabulary: usize,
    /// The number of classes.
    pub classes: usize,
    /// The size of a word vector.
    pub embedding: usize,
    /// The encoder.
    pub encoder: EncoderConfig,
    /// Units of the classifier's hidden layer.
    pub readout: usize,
    /// Share of words whose vector is dropped whole.
    pub word_dropout: f64,
    /// Dropout on word vectors.
    pub embedding_dropout: f64,
    /// Dropout between layers of the encoder.
    pub layer_dropout: f64,
    /// Dropout on the pooled vector and on the hidden layer.
    pub output_dropout: f64,
}

impl ClassifierConfig {
    /// An LSTMN of a few hundred weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            vocabulary: 16,
            classes: 2,
            embedding: 8,
            encoder: EncoderConfig::Lstmn {
                hidden: 6,
                layers: 1,
                attention: 5,
            },
            readout: 7,
            word_dropout: 0.0,
            embedding_dropout: 0.0,
            layer_dropout: 0.0,
            output_dropout: 0.0,
        }
    }

    /// The model's name in recipes and traces.
    pub fn name(&self) -> &'static str {
        match self.encoder {
            EncoderConfig::Lstmn { .. } => "lstmn",
            EncoderConfig::Lstm { .. } => "lstm",
            EncoderConfig::SelfAttentive { .. } => "self-attentive",
        }
    }

    /// Checks what the sizes must satisfy together.
    ///
    /// # Errors
    /// A sentence that names the fields and both sizes.
    pub fn check(&self) -> Result<(), ModelError> {
        let at_least = |name: &str, value: usize, least: usize| match value >= least {
            true => Ok(()),
            false => Err(ModelError(format!(
                "{name} is {value}; expected at least {least}"
            ))),
        };
        at_least("the number of classes", self.classes, 2)?;
        at_least("embedding", self.embedding, 1)?;
        at_least("readout", self.readout, 1)?;
        let (hidden, layers, both) = match self.encoder {
            EncoderConfig::Lstmn {
                hidden,
                layers,
                attention,
            } => {
                at_least("attention size", attention, 1)?;
                (hidden, layers, false)
            }
            EncoderConfig::Lstm {
                hidden,
                layers,
                bidirectional,
            } => (hidden, layers, bidirectional),
            EncoderConfig::SelfAttentive {
                hidden,
                layers,
                attention,
                hops,
                ..
            } => {
                at_least("attention size", attention, 1)?;
                at_least("hops", hops, 1)?;
                (hidden, layers, true)
            }
        };
        at_least("hidden", hidden, 1)?;
        at_least("layers", layers, 1)?;
        if both && hidden % 2 == 1 {
            return Err(ModelError(format!(
                "a bidirectional encoder gives each direction half of the units; hidden is {hidden}, expected an even number"
            )));
        }
        Ok(())
    }

    /// Draws a model from `seed`.
    ///
    /// # Errors
    /// What [`check`](Self::check) finds.
    pub fn init(&self, seed: u64, device: &Device) -> Result<Classifier, ModelError> {
        self.check()?;
        let mut initializer = Initializer::new(seed, device);
        let init = &mut initializer;
        let embedding = init.embedding(self.vocabulary, self.embedding, 0.1);
        let stacks = |directions: usize, hidden: usize, layers: usize, init: &mut Initializer| {
            (0..directions)
                .map(|_| {
                    sure(LstmStack::new(
                        layers,
                        self.embedding,
                        hidden / directions,
                        init,
                    ))
                })
                .collect()
        };
        let (encoder, pooled) = match self.encoder {
            EncoderConfig::Lstmn {
                hidden,
                layers,
                attention,
            } => {
                let encoder = LstmnEncoder::new(layers, self.embedding, hidden, attention, init);
                (SentenceEncoder::Lstmn(encoder), hidden)
            }
            EncoderConfig::Lstm {
                hidden,
                layers,
                bidirectional,
            } => {
                let directions = if bidirectional { 2 } else { 1 };
                let directions = stacks(directions, hidden, layers, init);
                (SentenceEncoder::Lstm(LstmEncoder { directions }), hidden)
            }
            EncoderConfig::SelfAttentive {
                hidden,
                layers,
                attention,
                hops,
                ..
            } => {
                let encoder = SelfAttentiveEncoder {
                    lstm: LstmEncoder {
                        directions: stacks(2, hidden, layers, init),
                    },
                    pooling: AttentivePooling::new(hidden, attention, hops, init),
                };
                (SentenceEncoder::SelfAttentive(encoder), hops * hidden)
            }
        };
        Ok(Classifier {
            embedding,
            encoder,
            hidden: init.linear(pooled, self.readout, true),
            output: init.linear(self.readout, self.classes, true),
            choices: Choices {
                penalty: match self.encoder {
                    EncoderConfig::SelfAttentive { penalty, .. } => penalty,
                    _ => 0.0,
                },
                word_dropout: self.word_dropout,
                embedding_dropout: self.embedding_dropout,
                layer_dropout: self.layer_dropout,
                output_dropout: self.output_dropout,
            },
        })
    }
}

#[derive(Debug, Clone, Copy)]
struct Choices {
    penalty: f64,
    word_dropout: f64,
    embedding_dropout: f64,
    layer_dropout: f64,
    output_dropout: f64,
}

/// An LSTM in one direction or both.
#[derive(Module, Debug)]
pub struct LstmEncoder {
    /// Forward, then backward.
    pub directions: Vec<LstmStack>,
}

/// An LSTM in both directions with attentive pooling.
#[derive(Module, Debug)]
pub struct SelfAttentiveEncoder {
    /// The annotations.
    pub lstm: LstmEncoder,
    /// What is made of them.
    pub pooling: AttentivePooling,
}

/// From word vectors to annotations.
#[derive(Module, Debug)]
pub enum SentenceEncoder {
    /// See [`EncoderConfig::Lstmn`].
    Lstmn(LstmnEncoder),
    /// See [`EncoderConfig::Lstm`].
    Lstm(LstmEncoder),
    /// See [`EncoderConfig::SelfAttentive`].
    SelfAttentive(SelfAttentiveEncoder),
}

/// A classifier of sentences.
#[derive(Module, Debug)]
pub struct Classifier {
    /// `E [vocabulary, embedding]`.
    pub embedding: Embedding,
    /// The encoder.
    pub encoder: SentenceEncoder,
    /// `U, b`: pooled vector to hidden layer.
    pub hidden: Linear,
    /// `W, c`: hidden layer to classes.
    pub output: Linear,
    #[module(skip)]
    choices: Choices,
}

/// What a classifier says of a batch.
#[derive(Debug, Clone)]
pub struct Classified {
    /// `[batch, classes]`.
    pub logits: Tensor<2>,
    /// What is to be added to the loss, `[1]`: of the self-attentive encoder alone.
    pub penalty: Option<Tensor<1>>,
    /// What was looked at, `[batch, heads, queries, keys]`. LSTMN: a map a layer, words at earlier
    /// words. Self-attentive: one map, a head a hop, one query.
    pub maps: Vec<Tensor<4>>,
}

impl LstmEncoder {
    /// The top states of every direction, `[time, batch, n]`.
    fn forward(
        &self,
        x: Tensor<3>,
        keep: &Keep,
        dropout_probability: f64,
        noise: &mut Noise,
    ) -> Tensor<3> {
        let mask = (!keep.is_full()).then(|| keep.time_major());
        let states = self
            .directions
            .iter()
            .zip([Direction::Forward, Direction::Backward])
            .map(|(stack, direction)| {
                let (states, _) = sure(stack.sequence(
                    x.clone(),
                    None,
                    mask.clone(),
                    direction,
                    dropout_probability,
                    noise,
                ));
                states
            })
            .collect();
        Tensor::cat(states, 2)
    }
}

impl Classifier {
    /// Classifies a batch.
    pub fn forward(&self, source: &SourceBatch, noise: &mut Noise) -> Classified {
        let [time, batch] = source.ids.dims();
        let choices = &self.choices;
        let mut x = self.embedding.forward(source.ids.clone()); // [time, batch, embedding]
        if let Some(words) = noise.mask([time, batch, 1], choices.word_dropout, &x.device()) {
            let shape = x.dims();
            x = x * words.expand(shape);
        }
        let x = dropout(x, choices.embedding_dropout, noise);
        let between = choices.layer_dropout;
        let (mut penalty, mut maps) = (None, vec![]);
        let pooled = match &self.encoder {
            SentenceEncoder::Lstmn(encoder) => {
                let read = encoder.forward(x, &source.keep, between, noise);
                maps.extend(read.weights.into_iter().map(|map| map.unsqueeze_dim(1)));
                mean(read.hidden, &source.keep)
            }
            SentenceEncoder::Lstm(encoder) => mean(
                encoder.forward(x, &source.keep, between, noise),
                &source.keep,
            ),
            SentenceEncoder::SelfAttentive(encoder) => {
                let states = encoder.lstm.forward(x, &source.keep, between, noise);
                let annotations = states.swap_dims(0, 1);
                let pooled = match encoder.pooling.forward(annotations, &source.keep) {
                    Ok(pooled) => pooled,
                    Err(error) => panic!("the self-attentive encoder: {error}"),
                };
                let [_, hops, size] = pooled.context.dims();
                if choices.penalty > 0.0 {
                    let redundancy = AttentivePooling::redundancy(pooled.weights.clone());
                    penalty = Some(redundancy.mean() * choices.penalty);
                }
                maps.push(pooled.weights.unsqueeze_dim(2));
                pooled.context.reshape([batch, hops * size])
            }
        };
        let pooled = dropout(pooled, choices.output_dropout, noise);
        let hidden = relu(bridge::apply(&self.hidden, pooled));
        let hidden = dropout(hidden, choices.output_dropout, noise);
        Classified {
            logits: bridge::apply(&self.output, hidden),
            penalty,
            maps,
        }
    }
}

/// The mean over real steps of `states [time, batch, n]`: `[batch, n]`.
fn mean(states: Tensor<3>, keep: &Keep) -> Tensor<2> {
    let [_, batch, _] = states.dims();
    let device = states.device();
    let shares: Vec<f32> = keep
        .lengths()
        .iter()
        .map(|&length| 1.0 / length.max(1) as f32)
        .collect();
    let shares = Tensor::<1>::from_floats(shares.as_slice(), &device).reshape([batch, 1]);
    let states = keep.zero_padding(states.swap_dims(0, 1)); // [batch, time, n]
    states.sum_dim(1).squeeze_dim::<2>(1) * shares
}
