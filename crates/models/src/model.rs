//! One interface to every translation architecture.

use burn::{
    module::Module,
    tensor::{Device, Int, Tensor, TensorData},
};
use regard_nn::{
    Attention, AttentionError, Call, Memory, Reading,
    bridge::{CrossEntropy, OutputWeights, output_cross_entropy_mean},
    dropout::Noise,
    initialize::Initializer,
    position::PositionConfig,
    weights::Arrays,
};
use serde::{Deserialize, Serialize};

use crate::{
    Gnmt, GnmtConfig, Luong, LuongConfig, RnnSearch, RnnSearchConfig, Seq2Seq, Seq2SeqConfig,
    SourceBatch, TargetBatch, Transformer, TransformerConfig,
    gnmt::GnmtState,
    luong::{LuongScore, LuongState},
    rnnsearch::RnnSearchState,
    seq2seq::{Cell, Seq2SeqState},
    tables::TablesConfig,
    transformer::{EmbeddedPositions, Looks, TransformerState},
};

/// A configuration that no model can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("model: {0}")]
pub struct ModelError(pub String);

/// The result of scoring a target under teacher forcing.
#[derive(Debug, Clone)]
pub struct Scored {
    /// What the output layer reads: `[time · batch, readout]`, time-major.
    pub readout: Tensor<2>,
    /// The output layer.
    pub output: OutputWeights,
    /// What each step looked at, `[batch, target, source]`; nothing without attention, and of models with many heads (see
    /// [`TranslationModel::look`]).
    pub weights: Option<Tensor<3>>,
}

impl Scored {
    /// Before the softmax: `[time · batch, target vocabulary]`, time-major.
    pub fn logits(&self) -> Tensor<2> {
        self.output.logits(self.readout.clone())
    }

    /// The mean loss per token against `outputs [time · batch]` ([`TargetBatch::outputs`]), padding left out, with label
    /// `smoothing`; the logits are never kept whole.
    ///
    /// # Panics
    /// If `outputs` are of another batch or vocabulary, or `smoothing` is not in `[0, 1]`.
    pub fn cross_entropy(self, outputs: Tensor<1, Int>, smoothing: f64) -> CrossEntropy {
        let padding = crate::tokens::PADDING as usize;
        output_cross_entropy_mean(
            self.readout,
            self.output,
            outputs,
            padding,
            smoothing as f32,
        )
    }
}

/// The result of one step of generation.
#[derive(Debug, Clone)]
pub struct Output {
    /// Before the softmax: `[rows, target vocabulary]`.
    pub logits: Tensor<2>,
    /// What the step looked at, `[rows, source]`; nothing without attention.
    pub weights: Option<Tensor<2>>,
}

/// The configuration of any architecture.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum ModelConfig {
    /// No attention.
    Seq2Seq(Seq2SeqConfig),
    /// Bahdanau 2014.
    RnnSearch(RnnSearchConfig),
    /// Luong 2015.
    Luong(LuongConfig),
    /// Wu et al. 2016.
    Gnmt(GnmtConfig),
    /// Vaswani 2017.
    Transformer(TransformerConfig),
}

/// Any architecture.
#[derive(Module, Debug)]
pub enum TranslationModel {
    /// No attention.
    Seq2Seq(Seq2Seq),
    /// Bahdanau 2014.
    RnnSearch(RnnSearch),
    /// Luong 2015.
    Luong(Luong),
    /// Wu et al. 2016.
    Gnmt(Gnmt),
    /// Vaswani 2017.
    Transformer(Transformer),
}

/// The decoder's state in any architecture.
#[derive(Debug, Clone)]
pub enum DecoderState {
    /// No attention.
    Seq2Seq(Seq2SeqState),
    /// Bahdanau 2014.
    RnnSearch(RnnSearchState),
    /// Luong 2015.
    Luong(LuongState),
    /// Wu et al. 2016.
    Gnmt(GnmtState),
    /// Vaswani 2017.
    Transformer(TransformerState),
}

impl ModelConfig {
    /// The architecture's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Seq2Seq(_) => "seq2seq",
            Self::RnnSearch(_) => "rnnsearch",
            Self::Luong(_) => "luong",
            Self::Gnmt(_) => "gnmt",
            Self::Transformer(_) => "transformer",
        }
    }

    /// The sizes of the embedding tables and the output layer.
    pub fn tables(&self) -> TablesConfig {
        match self {
            Self::Seq2Seq(config) => config.tables(),
            Self::RnnSearch(config) => config.tables(),
            Self::Luong(config) => config.tables(),
            Self::Gnmt(config) => config.tables(),
            Self::Transformer(config) => config.tables(),
        }
    }

    /// Checks what the sizes must satisfy together.
    ///
    /// # Errors
    /// A sentence that names the fields and both sizes.
    pub fn check(&self) -> Result<(), ModelError> {
        self.tables().check().map_err(ModelError)?;
        let positive = |name: &str, value: usize| match value {
            0 => Err(ModelError(format!("{name} is 0; expected at least 1"))),
            _ => Ok(()),
        };
        match self {
            Self::Seq2Seq(config) => {
                positive("embedding", config.embedding)?;
                positive("hidden", config.hidden)?;
                positive("layers", config.layers)?;
                positive("maxout", config.maxout)
            }
            Self::RnnSearch(config) => {
                positive("embedding", config.embedding)?;
                positive("hidden", config.hidden)?;
                positive("attention size", config.attention)?;
                positive("maxout", config.maxout)
            }
            Self::Luong(config) => {
                positive("embedding", config.embedding)?;
                positive("hidden", config.hidden)?;
                positive("layers", config.layers)?;
                positive("attention size", config.attention)?;
                positive("positions", config.positions)?;
                if config.reading == crate::luong::Reading::Bidirectional && config.hidden % 2 == 1
                {
                    return Err(ModelError(format!(
                        "a bidirectional encoder gives each direction half of the units; hidden is {}, expected an even number",
                        config.hidden
                    )));
                }
                Ok(())
            }
            Self::Gnmt(config) => {
                positive("embedding", config.embedding)?;
                positive("hidden", config.hidden)?;
                positive("attention size", config.attention)?;
                match config.layers {
                    0 | 1 => Err(ModelError(format!(
                        "layers is {}; expected at least 2: one that reads both ways and one above it",
                        config.layers
                    ))),
                    _ => Ok(()),
                }
            }
            Self::Transformer(config) => config.check().map_err(ModelError),
        }
    }

    /// The longest source or target, in tokens with its marks, if there is a longest.
    pub fn longest(&self) -> Option<usize> {
        match self {
            Self::Transformer(config) => config.longest(),
            _ => None,
        }
    }

    /// Draws a model from `seed`.
    ///
    /// # Errors
    /// What [`ModelConfig::check`] finds.
    pub fn init(&self, seed: u64, device: &Device) -> Result<TranslationModel, ModelError> {
        self.check()?;
        Ok(match self {
            Self::Seq2Seq(config) => TranslationModel::Seq2Seq(config.init(seed, device)),
            Self::RnnSearch(config) => TranslationModel::RnnSearch(config.init(seed, device)),
            Self::Luong(config) => TranslationModel::Luong(config.init(seed, device)),
            Self::Gnmt(config) => TranslationModel::Gnmt(config.init(seed, device)),
            Self::Transformer(config) => TranslationModel::Transformer(config.init(seed, device)?),
        })
    }

    /// A model without values, for the weights `arrays` of a file: [`weights::apply`](regard_nn::weights::apply) gives them to
    /// it. No weight is drawn, and no size of this configuration, which may have come with the file, is believed unless the
    /// arrays bear it out.
    ///
    /// # Errors
    /// What [`ModelConfig::check`] finds, and sizes that no model of these arrays has.
    pub fn without_values(
        &self,
        arrays: &Arrays,
        device: &Device,
    ) -> Result<TranslationModel, ModelError> {
        self.check()?;
        let (sizes, layers) = self.sizes();
        expect_borne_out(&sizes, &layers, arrays)?;
        let init = &mut Initializer::deferred(device);
        Ok(match self {
            Self::Seq2Seq(config) => TranslationModel::Seq2Seq(config.draw(init)),
            Self::RnnSearch(config) => TranslationModel::RnnSearch(config.draw(init)),
            Self::Luong(config) => TranslationModel::Luong(config.draw(init)),
            Self::Gnmt(config) => TranslationModel::Gnmt(config.draw(init)),
            Self::Transformer(config) => TranslationModel::Transformer(config.draw(init)?),
        })
    }

    /// The sizes that some weight has as a dimension, and the numbers of layers, each of which has some weights.
    fn sizes(&self) -> (Vec<Size>, Vec<Size>) {
        let tables = self.tables();
        let mut sizes = vec![
            ("the source vocabulary", tables.source_vocabulary),
            ("the target vocabulary", tables.target_vocabulary),
            ("embedding", tables.embedding),
            ("readout", tables.readout),
        ];
        let layers = match self {
            Self::Seq2Seq(config) => {
                sizes.push(("hidden", config.hidden));
                match config.cell {
                    Cell::Gru => vec![],
                    Cell::Lstm => vec![("layers", config.layers)],
                }
            }
            Self::RnnSearch(config) => {
                sizes.extend([
                    ("hidden", config.hidden),
                    ("attention size", config.attention),
                ]);
                vec![]
            }
            Self::Luong(config) => {
                match config.score {
                    LuongScore::Concat => sizes.push(("attention size", config.attention)),
                    LuongScore::Location => sizes.push(("positions", config.positions)),
                    LuongScore::Dot | LuongScore::General => {}
                }
                vec![("layers", config.layers)]
            }
            Self::Gnmt(config) => {
                sizes.push(("attention size", config.attention));
                vec![("layers", config.layers)]
            }
            Self::Transformer(config) => {
                sizes.extend([
                    ("feed_forward", config.layer.feed_forward),
                    ("heads", config.layer.heads),
                ]);
                sizes.extend(config.layer.head_size.map(|size| ("head_size", size)));
                if let EmbeddedPositions::Learned { positions } = config.positions {
                    sizes.push(("positions", positions));
                }
                let of_layers = config.layer.layers.iter().map(|layer| &layer.position);
                for position in of_layers.chain([&config.layer.position]) {
                    match position {
                        PositionConfig::Buckets(buckets) => {
                            sizes.push(("buckets", buckets.buckets));
                        }
                        PositionConfig::Relative { reach, .. } => sizes.push(("reach", *reach)),
                        _ => {}
                    }
                }
                vec![
                    ("encoder_layers", config.encoder_layers),
                    ("decoder_layers", config.decoder_layers),
                ]
            }
        };
        (sizes, layers)
    }
}

/// The name of a size and its value.
pub(crate) type Size = (&'static str, usize);

/// Checks that the weights of a file can be those of a model with so many `layers` and with `sizes`, each of which is a
/// dimension of some weight: without this a damaged file could ask for any amount of memory.
///
/// # Errors
/// The first size that is larger than all weights together, or more layers than weights.
pub(crate) fn expect_borne_out(
    sizes: &[Size],
    layers: &[Size],
    arrays: &Arrays,
) -> Result<(), ModelError> {
    let values: usize = arrays.values().map(|array| array.values.len()).sum();
    for (sizes, most, what) in [
        (sizes, values, "numbers"),
        (layers, arrays.len(), "weights"),
    ] {
        if let Some((name, size)) = sizes.iter().find(|&&(_, size)| size > most) {
            return Err(ModelError(format!(
                "{name} is {size}, but the file has {most} {what} in all; it is damaged"
            )));
        }
    }
    Ok(())
}

impl TranslationModel {
    /// Scores `target` given `source`, teacher-forced.
    pub fn forward(&self, source: &SourceBatch, target: &TargetBatch, noise: &mut Noise) -> Scored {
        match self {
            Self::Seq2Seq(model) => model.forward(source, target, noise),
            Self::RnnSearch(model) => model.forward(source, target, noise),
            Self::Luong(model) => model.forward(source, target, noise),
            Self::Gnmt(model) => model.forward(source, target, noise),
            Self::Transformer(model) => model.forward(source, target, noise),
        }
    }

    /// Encodes a batch into the decoder's first state.
    pub fn encode(&self, source: &SourceBatch, noise: &mut Noise) -> DecoderState {
        match self {
            Self::Seq2Seq(model) => DecoderState::Seq2Seq(model.encode(source, noise)),
            Self::RnnSearch(model) => DecoderState::RnnSearch(model.encode(source, noise)),
            Self::Luong(model) => DecoderState::Luong(model.encode(source, noise)),
            Self::Gnmt(model) => DecoderState::Gnmt(model.encode(source, noise)),
            Self::Transformer(model) => DecoderState::Transformer(model.encode(source, noise)),
        }
    }

    /// Every weight of every head while the model reads `source` and writes `target`; nothing of models whose steps have one
    /// row of weights, which [`TranslationModel::step`] gives.
    pub fn look(&self, source: &SourceBatch, target: &TargetBatch) -> Option<Looks> {
        match self {
            Self::Transformer(model) => Some(model.look(source, target)),
            _ => None,
        }
    }

    /// One step of generation: what follows the `previous` token of each row (`[rows]`). The weights of a model with many
    /// heads are reported if `observe` asks for them, those of others always.
    ///
    /// # Panics
    /// When `state` is of another architecture.
    pub fn step(
        &self,
        previous: Tensor<1, Int>,
        state: DecoderState,
        observe: bool,
    ) -> (Output, DecoderState) {
        match (self, state) {
            (Self::Seq2Seq(model), DecoderState::Seq2Seq(state)) => {
                let (output, state) = model.step(previous, state);
                (output, DecoderState::Seq2Seq(state))
            }
            (Self::RnnSearch(model), DecoderState::RnnSearch(state)) => {
                let (output, state) = model.step(previous, state);
                (output, DecoderState::RnnSearch(state))
            }
            (Self::Luong(model), DecoderState::Luong(state)) => {
                let (output, state) = model.step(previous, state);
                (output, DecoderState::Luong(state))
            }
            (Self::Gnmt(model), DecoderState::Gnmt(state)) => {
                let (output, state) = model.step(previous, state);
                (output, DecoderState::Gnmt(state))
            }
            (Self::Transformer(model), DecoderState::Transformer(state)) => {
                let (output, state) = model.step(previous, state, observe);
                (output, DecoderState::Transformer(state))
            }
            _ => panic!("the decoder state is of another architecture than the model"),
        }
    }
}

impl DecoderState {
    /// The rows at `rows`, in that order (rows may repeat): hypotheses of a beam survive, fork and end.
    /// `same_sources` says that every row keeps the source it had, so that the memory can stay.
    pub fn select(self, rows: &[usize], same_sources: bool, device: &Device) -> Self {
        let values: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        let index = Tensor::<1, Int>::from_data(TensorData::new(values, [rows.len()]), device);
        match self {
            Self::Seq2Seq(Seq2SeqState::Gru { hidden, summary }) => {
                Self::Seq2Seq(Seq2SeqState::Gru {
                    hidden: hidden.select(0, index.clone()),
                    summary: summary.select(0, index),
                })
            }
            Self::Seq2Seq(Seq2SeqState::Lstm(layers)) => {
                Self::Seq2Seq(Seq2SeqState::Lstm(select_all(layers, index)))
            }
            Self::RnnSearch(state) => Self::RnnSearch(RnnSearchState {
                hidden: state.hidden.select(0, index),
                memory: match same_sources {
                    true => state.memory,
                    false => sure(state.memory.select(rows)),
                },
            }),
            Self::Luong(state) => Self::Luong(LuongState {
                layers: select_all(state.layers, index.clone()),
                attentional: state.attentional.select(0, index),
                memory: match same_sources {
                    true => state.memory,
                    false => sure(state.memory.select(rows)),
                },
                step: state.step,
            }),
            Self::Gnmt(state) => Self::Gnmt(GnmtState {
                layers: select_all(state.layers, index),
                memory: match same_sources {
                    true => state.memory,
                    false => sure(state.memory.select(rows)),
                },
            }),
            Self::Transformer(state) => Self::Transformer(state.select(rows, same_sources)),
        }
    }
}

/// The value of what cannot fail, as its sizes follow from one configuration.
///
/// # Panics
/// With the error, if it does fail.
#[track_caller]
pub(crate) fn sure<T>(result: Result<T, AttentionError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// Reads `memory` with the states of decoder steps `first_step..`.
///
/// # Panics
/// Never: the sizes of memory and states follow from one configuration.
pub(crate) fn read(
    attention: &Attention,
    query: Tensor<3>,
    memory: &Memory,
    first_step: usize,
) -> Reading {
    let call = Call::default().first_query(first_step);
    match attention.read(query, memory, call) {
        Ok(reading) => reading,
        Err(error) => unreachable!("{error}"),
    }
}

fn select_all(
    layers: Vec<regard_nn::recurrent::LstmState>,
    index: Tensor<1, Int>,
) -> Vec<regard_nn::recurrent::LstmState> {
    layers
        .into_iter()
        .map(|layer| layer.select(index.clone()))
        .collect()
}
