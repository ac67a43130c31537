//! Small models of every architecture, and what the tests compare.

use burn::tensor::{Device, Tensor};
use regard_models::{
    GnmtConfig, LuongConfig, ModelConfig, RnnSearchConfig, Seq2SeqConfig, SourceBatch, TargetBatch,
    TransformerConfig, TranslationModel,
    luong::{LuongScore, Reading},
    seq2seq::Cell,
    tokens::END,
    transformer::EmbeddedPositions,
};
use regard_nn::{
    mask::Locality,
    position::{PositionConfig, RotaryConfig},
    transformer::{self, Activation, Biases, NormConfig, NormPlace, StackDropout},
    weights::{self, Arrays},
};

/// One of each kind of wiring, by a name for messages.
pub fn configs() -> Vec<(&'static str, ModelConfig)> {
    let luong = LuongConfig::tiny;
    let seq2seq = Seq2SeqConfig::tiny;
    let (monotonic, predictive) = (
        Locality::Monotonic { half_width: 2 },
        Locality::Predictive { half_width: 2 },
    );
    vec![
        ("rnnsearch", ModelConfig::RnnSearch(RnnSearchConfig::tiny())),
        ("luong general, feeding", ModelConfig::Luong(luong())),
        (
            "luong dot, at once, local-m",
            ModelConfig::Luong(LuongConfig {
                score: LuongScore::Dot,
                input_feeding: false,
                locality: monotonic,
                ..luong()
            }),
        ),
        (
            "luong concat, feeding, local-m, bidirectional",
            ModelConfig::Luong(LuongConfig {
                score: LuongScore::Concat,
                locality: monotonic,
                reading: Reading::Bidirectional,
                ..luong()
            }),
        ),
        (
            "luong general, feeding, local-p, forward",
            ModelConfig::Luong(LuongConfig {
                locality: predictive,
                reading: Reading::Forward,
                ..luong()
            }),
        ),
        (
            "luong location, at once",
            ModelConfig::Luong(LuongConfig {
                score: LuongScore::Location,
                input_feeding: false,
                positions: 4,
                ..luong()
            }),
        ),
        (
            "transformer pre-norm",
            ModelConfig::Transformer(TransformerConfig::tiny()),
        ),
        (
            "transformer post-norm, gelu, grouped queries, learned positions",
            ModelConfig::Transformer(TransformerConfig {
                layer: transformer::StackConfig {
                    norm_place: NormPlace::Post,
                    activation: Activation::Gelu,
                    key_value_heads: 1,
                    ..TransformerConfig::tiny().layer
                },
                positions: EmbeddedPositions::Learned { positions: 40 },
                ..TransformerConfig::tiny()
            }),
        ),
        (
            "transformer rms, swiglu, rotary, window",
            ModelConfig::Transformer(TransformerConfig {
                layer: transformer::StackConfig {
                    norm: NormConfig::Rms { epsilon: 1e-5 },
                    activation: Activation::Swiglu,
                    position: PositionConfig::Rotary(RotaryConfig::new(4)),
                    window: Some(3),
                    biases: Biases::NONE,
                    ..TransformerConfig::tiny().layer
                },
                positions: EmbeddedPositions::None,
                ..TransformerConfig::tiny()
            }),
        ),
        ("seq2seq lstm", ModelConfig::Seq2Seq(seq2seq())),
        (
            "seq2seq gru",
            ModelConfig::Seq2Seq(Seq2SeqConfig {
                cell: Cell::Gru,
                reverse_source: false,
                ..seq2seq()
            }),
        ),
        ("gnmt", ModelConfig::Gnmt(GnmtConfig::tiny())),
    ]
}

/// The configuration with every dropout it has set to `p`.
pub fn transformer_dropout(config: TransformerConfig, p: f64) -> TransformerConfig {
    TransformerConfig {
        embedding_dropout: p,
        layer: transformer::StackConfig {
            dropout: StackDropout {
                residual: p,
                attention: p,
                activation: p,
            },
            ..config.layer
        },
        ..config
    }
}

/// A model whose weights are `factor` times the drawn ones: the larger, the surer it is. It likes to end.
pub fn model(config: &ModelConfig, seed: u64, factor: f32, device: &Device) -> TranslationModel {
    let model = config.init(seed, device).unwrap();
    let mut arrays: Arrays = weights::collect(&model);
    for array in arrays.values_mut() {
        array.values.iter_mut().for_each(|value| *value *= factor);
    }
    for (_, bias) in arrays
        .iter_mut()
        .filter(|(name, _)| name.ends_with("output.bias"))
    {
        bias.values[END as usize] += 1.5;
    }
    weights::apply(model, arrays).unwrap()
}

/// Source and target sentences of unequal lengths.
pub fn sentences() -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    (
        vec![vec![5, 6, 7, 8, 9, 10], vec![8], vec![], vec![15, 4, 4, 12]],
        vec![vec![9, 8], vec![5, 5, 6, 14, 7], vec![11], vec![]],
    )
}

/// The batch of [`sentences`].
pub fn batch(device: &Device) -> (SourceBatch, TargetBatch) {
    let (sources, targets) = sentences();
    (
        SourceBatch::new(&sources, device),
        TargetBatch::new(&targets, device),
    )
}

/// The numbers of a tensor, row-major.
pub fn numbers<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.clone().into_data().iter::<f32>().collect()
}

/// The largest difference, as a share of the largest number (at least 1).
pub fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let size = a.iter().fold(1.0f32, |most, v| most.max(v.abs()));
    let worst = a
        .iter()
        .zip(b)
        .fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(a.iter().chain(b).all(|v| v.is_finite()));
    worst / size
}

/// What two orders of the same f32 arithmetic may differ by in these models: sums of at most a few
/// dozen terms, over at most seven recurrent steps.
pub const ROUNDING: f32 = 64.0 * f32::EPSILON;
