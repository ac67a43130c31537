//! From a recipe's `[model]` section and the vocabularies to an architecture.

use regard_models::{
    ClassifierConfig, GnmtConfig, LuongConfig, ModelConfig, RnnSearchConfig, Seq2SeqConfig,
    TransformerConfig,
    classifier::EncoderConfig,
    luong::{LuongScore, Reading},
    seq2seq,
    tables::Tie,
    transformer::EmbeddedPositions,
};
use regard_nn::{
    mask::Locality,
    position::{PositionConfig, RotaryConfig},
    transformer,
};

use super::TrainError;
use crate::{recipe, tokenizer::TokenizerPair};

/// The architecture that `model` describes, for the vocabularies of `tokenizers`.
///
/// # Errors
/// [`TrainError::Kind`] for a model that does not translate.
pub fn model_config(
    model: &recipe::Model,
    tokenizers: &TokenizerPair,
) -> Result<ModelConfig, TrainError> {
    let source_vocabulary = tokenizers.source().vocabulary_size();
    let target_vocabulary = tokenizers.target().vocabulary_size();
    Ok(match model {
        recipe::Model::Rnnsearch(m) => ModelConfig::RnnSearch(RnnSearchConfig {
            source_vocabulary,
            target_vocabulary,
            embedding: m.embedding,
            hidden: m.hidden,
            attention: m.attention_dimension,
            maxout: m.maxout,
            tie: tie(m.tie),
            embedding_dropout: m.dropout.embedding,
            annotation_dropout: m.dropout.annotation,
            output_dropout: m.dropout.output,
            paper_initialisation: m.initialisation == recipe::Initialisation::Paper,
        }),
        recipe::Model::Luong(m) => ModelConfig::Luong(LuongConfig {
            source_vocabulary,
            target_vocabulary,
            embedding: m.embedding,
            hidden: m.hidden,
            layers: m.layers,
            score: match m.score {
                recipe::Score::Dot => LuongScore::Dot,
                recipe::Score::General => LuongScore::General,
                recipe::Score::Concat => LuongScore::Concat,
                recipe::Score::Location => LuongScore::Location,
            },
            attention: m.attention_dimension,
            locality: match m.attention {
                recipe::AttentionKind::Global => Locality::Global,
                recipe::AttentionKind::LocalM => Locality::Monotonic {
                    half_width: m.window,
                },
                recipe::AttentionKind::LocalP => Locality::Predictive {
                    half_width: m.window,
                },
            },
            input_feeding: m.input_feeding,
            reading: match m.encoder {
                recipe::Encoder::Forward => Reading::Forward,
                recipe::Encoder::Reversed => Reading::Reversed,
                recipe::Encoder::Bidirectional => Reading::Bidirectional,
            },
            positions: m.max_source_length,
            tie: tie(m.tie),
            embedding_dropout: m.dropout.embedding,
            layer_dropout: m.dropout.layers,
            annotation_dropout: m.dropout.annotation,
            output_dropout: m.dropout.output,
        }),
        recipe::Model::Transformer(m) => ModelConfig::Transformer(TransformerConfig {
            source_vocabulary,
            target_vocabulary,
            encoder_layers: m.encoder_layers,
            decoder_layers: m.decoder_layers,
            layer: transformer_layer(m),
            positions: match m.positions {
                recipe::Positions::Sinusoidal => EmbeddedPositions::Sinusoidal,
                recipe::Positions::Learned => EmbeddedPositions::Learned {
                    positions: m.max_length,
                },
                recipe::Positions::Rotary | recipe::Positions::Relative => EmbeddedPositions::None,
            },
            tie: tie(m.tie),
            embedding_dropout: m.dropout.embedding,
        }),
        recipe::Model::Seq2seq(m) => ModelConfig::Seq2Seq(Seq2SeqConfig {
            source_vocabulary,
            target_vocabulary,
            embedding: m.embedding,
            hidden: m.hidden,
            layers: m.layers,
            maxout: m.maxout,
            cell: match m.cell {
                recipe::Cell::GruContext => seq2seq::Cell::Gru,
                recipe::Cell::Lstm => seq2seq::Cell::Lstm,
            },
            reverse_source: m.reverse_source,
            tie: tie(m.tie),
            embedding_dropout: m.dropout.embedding,
            layer_dropout: m.dropout.layers,
            output_dropout: m.dropout.output,
        }),
        recipe::Model::Gnmt(m) => ModelConfig::Gnmt(GnmtConfig {
            source_vocabulary,
            target_vocabulary,
            embedding: m.embedding,
            hidden: m.hidden,
            layers: m.layers,
            attention: m.attention_dimension,
            tie: tie(m.tie),
            embedding_dropout: m.dropout.embedding,
            layer_dropout: m.dropout.layers,
            annotation_dropout: m.dropout.annotation,
            output_dropout: m.dropout.output,
        }),
        recipe::Model::Lstmn(_) | recipe::Model::Lstm(_) | recipe::Model::SelfAttentive(_) => {
            return Err(TrainError::Kind {
                kind: model.kind(),
                task: "model that translates",
            });
        }
    })
}

fn transformer_layer(m: &recipe::Transformer) -> transformer::StackConfig {
    let epsilon = 1e-5;
    transformer::StackConfig {
        model_size: m.model_size,
        heads: m.heads,
        key_value_heads: m.key_value_heads.unwrap_or(m.heads),
        feed_forward: m.feed_forward,
        activation: match m.activation {
            recipe::Activation::Relu => transformer::Activation::Relu,
            recipe::Activation::Gelu => transformer::Activation::Gelu,
            recipe::Activation::Swiglu => transformer::Activation::Swiglu,
        },
        norm: match m.norm {
            recipe::Norm::Layer => transformer::NormConfig::Layer { epsilon },
            recipe::Norm::Rms => transformer::NormConfig::Rms { epsilon },
        },
        norm_place: match m.norm_place {
            recipe::NormPlace::Pre => transformer::NormPlace::Pre,
            recipe::NormPlace::Post => transformer::NormPlace::Post,
        },
        position: match m.positions {
            recipe::Positions::Sinusoidal | recipe::Positions::Learned => PositionConfig::None,
            recipe::Positions::Rotary => {
                PositionConfig::Rotary(RotaryConfig::new(m.model_size / m.heads.max(1)))
            }
            recipe::Positions::Relative => PositionConfig::Relative {
                reach: m.reach,
                values: true,
            },
        },
        window: m.window,
        biases: m.bias.into(),
        dropout: transformer::StackDropout {
            residual: m.dropout.residual,
            attention: m.dropout.attention,
            activation: m.dropout.activation,
        },
        ..transformer::StackConfig::new(m.model_size, m.heads)
    }
}

/// The classifier that `model` describes, for the vocabulary of `tokenizers` and so many `classes`.
///
/// # Errors
/// [`TrainError::Kind`] for a model that does not classify.
pub fn classifier_config(
    model: &recipe::Model,
    tokenizers: &TokenizerPair,
    classes: usize,
) -> Result<ClassifierConfig, TrainError> {
    let (embedding, readout, dropout, encoder) = match model {
        recipe::Model::Lstmn(m) => {
            let encoder = EncoderConfig::Lstmn {
                hidden: m.hidden,
                layers: m.layers,
                attention: m.attention_dimension,
            };
            (m.embedding, m.readout, &m.dropout, encoder)
        }
        recipe::Model::Lstm(m) => {
            let encoder = EncoderConfig::Lstm {
                hidden: m.hidden,
                layers: m.layers,
                bidirectional: m.bidirectional,
            };
            (m.embedding, m.readout, &m.dropout, encoder)
        }
        recipe::Model::SelfAttentive(m) => {
            let encoder = EncoderConfig::SelfAttentive {
                hidden: m.hidden,
                layers: m.layers,
                attention: m.attention_dimension,
                hops: m.hops,
                penalty: m.penalty,
            };
            (m.embedding, m.readout, &m.dropout, encoder)
        }
        recipe::Model::Rnnsearch(_)
        | recipe::Model::Luong(_)
        | recipe::Model::Transformer(_)
        | recipe::Model::Seq2seq(_)
        | recipe::Model::Gnmt(_) => {
            return Err(TrainError::Kind {
                kind: model.kind(),
                task: "classifier of sentences",
            });
        }
    };
    Ok(ClassifierConfig {
        vocabulary: tokenizers.source().vocabulary_size(),
        classes,
        embedding,
        encoder,
        readout,
        word_dropout: dropout.word,
        embedding_dropout: dropout.embedding,
        layer_dropout: dropout.layers,
        output_dropout: dropout.output,
    })
}

fn tie(tie: recipe::Tie) -> Tie {
    match tie {
        recipe::Tie::None => Tie::None,
        recipe::Tie::Target => Tie::Target,
        recipe::Tie::All => Tie::All,
    }
}
