//! Small models of every architecture, and what the tests compare.

use burn::tensor::{Device, Tensor};
use regard_models::{
    AnyGenerator, AnyModelConfig, GnmtConfig, LstmnTranslationConfig, LuongConfig, RnnSearchConfig,
    Seq2SeqConfig, SourceBatch, TargetBatch, TransformerConfig, Vocabularies, Vocabulary,
    attention::{
        BlockConfig, LocalConfig, LongformerConfig, MonotonicConfig, NormalizerConfig, ScoreConfig,
        SelfMaskConfig, SigmoidConfig, SinkConfig, SourceMaskConfig,
    },
    config::{AnyConfig, Config},
    lstmn_translation::Fusion,
    luong::{LuongAttention, LuongScore, Reading},
    seq2seq::Cell,
    transformer::{Norm, Positions, RotaryScalingConfig, StretchConfig},
};
use regard_nn::{
    transformer::{Activation, NormPlace},
    weights::{self, Arrays},
};

/// A configuration of any architecture.
pub type AnyBox = Box<dyn AnyModelConfig<AnyGenerator>>;

/// The vocabularies of the models of [`configs`].
pub const VOCABULARIES: Vocabularies = Vocabularies::new(16, 16);

/// The marks of either side.
pub const MARKS: Vocabulary = VOCABULARIES.target;

/// One of each kind of wiring, by a name for messages.
pub fn configs() -> Vec<(&'static str, AnyBox)> {
    let luong = || LuongConfig {
        window: 2,
        ..LuongConfig::tiny()
    };
    let transformer = TransformerConfig::tiny;
    let seq2seq = Seq2SeqConfig::tiny;
    vec![
        ("rnnsearch", Box::new(RnnSearchConfig::tiny())),
        ("luong general, feeding", Box::new(luong())),
        (
            "luong dot, at once, local-m",
            Box::new(LuongConfig {
                score: LuongScore::Dot,
                input_feeding: false,
                attention: LuongAttention::LocalM,
                ..luong()
            }),
        ),
        (
            "luong concat, feeding, local-m, bidirectional",
            Box::new(LuongConfig {
                score: LuongScore::Concat,
                attention: LuongAttention::LocalM,
                encoder: Reading::Bidirectional,
                ..luong()
            }),
        ),
        (
            "luong general, feeding, local-p, forward",
            Box::new(LuongConfig {
                attention: LuongAttention::LocalP,
                encoder: Reading::Forward,
                ..luong()
            }),
        ),
        (
            "luong location, at once",
            Box::new(LuongConfig {
                score: LuongScore::Location,
                input_feeding: false,
                max_source_length: 4,
                ..luong()
            }),
        ),
        ("transformer pre-norm", Box::new(transformer())),
        (
            "transformer post-norm, gelu, grouped queries, learned positions",
            Box::new(TransformerConfig {
                norm_place: NormPlace::Post,
                activation: Activation::Gelu,
                key_value_heads: Some(1),
                positions: Positions::Learned,
                max_length: 40,
                ..transformer()
            }),
        ),
        (
            "transformer rms, swiglu, rotary, window",
            Box::new(TransformerConfig {
                norm: Norm::Rms,
                activation: Activation::Swiglu,
                positions: Positions::Rotary,
                window: Some(3),
                bias: false,
                ..transformer()
            }),
        ),
        (
            "transformer gelu, query and key norms, softcap, stretched rotary positions",
            Box::new(TransformerConfig {
                positions: Positions::Rotary,
                activation: Activation::Gelu,
                rotary_scaling: RotaryScalingConfig::Linear(StretchConfig { factor: 4.0 }),
                query_key_norm: true,
                softcap: Some(1.5),
                ..transformer()
            }),
        ),
        ("seq2seq lstm", Box::new(seq2seq())),
        (
            "seq2seq gru",
            Box::new(Seq2SeqConfig {
                cell: Cell::GruContext,
                layers: 1,
                reverse_source: false,
                ..seq2seq()
            }),
        ),
        ("gnmt", Box::new(GnmtConfig::tiny())),
        ("lstmn deep", Box::new(LstmnTranslationConfig::tiny())),
        (
            "lstmn shallow",
            Box::new(LstmnTranslationConfig {
                fusion: Fusion::Shallow,
                ..LstmnTranslationConfig::tiny()
            }),
        ),
        (
            "rnnsearch general, sigmoid, local-p",
            Box::new(RnnSearchConfig {
                score: ScoreConfig::General,
                normalizer: NormalizerConfig::Sigmoid(SigmoidConfig { bias: -1.0 }),
                mask: SourceMaskConfig::LocalP(LocalConfig { window: 3 }),
                ..RnnSearchConfig::tiny()
            }),
        ),
        (
            "luong general, at once, monotonic",
            Box::new(LuongConfig {
                input_feeding: false,
                normalizer: NormalizerConfig::Monotonic(MonotonicConfig {
                    noise: 0.0,
                    hard_search: false,
                }),
                ..luong()
            }),
        ),
        (
            "gnmt cosine, entmax15, local-m",
            Box::new(GnmtConfig {
                score: ScoreConfig::Cosine,
                normalizer: NormalizerConfig::Entmax15,
                mask: SourceMaskConfig::LocalM(LocalConfig { window: 3 }),
                ..GnmtConfig::tiny()
            }),
        ),
        (
            "transformer distance, sink, longformer, block",
            Box::new(TransformerConfig {
                score: ScoreConfig::Distance,
                normalizer: NormalizerConfig::Sink(SinkConfig::default()),
                mask: SelfMaskConfig::Longformer(LongformerConfig {
                    window: 2,
                    ..LongformerConfig::default()
                }),
                decoder_mask: Some(SelfMaskConfig::Block(BlockConfig { size: 3 })),
                ..transformer()
            }),
        ),
    ]
}

/// The configuration with every dropout it has set to `p`.
pub fn with_dropout(config: &dyn AnyModelConfig<AnyGenerator>, p: f64) -> AnyBox {
    fn changed<C: Config + AnyModelConfig<AnyGenerator>>(
        config: &dyn AnyConfig,
        p: f64,
    ) -> Option<AnyBox> {
        config.downcast_ref::<C>()?;
        let mut values = config.values().unwrap();
        // Nothing to act on.
        let summarises = values.get("cell").and_then(|cell| cell.as_str()) != Some("lstm");
        let dropout = values["dropout"].as_table_mut().unwrap();
        let shares = dropout.iter_mut();
        let shares = shares.filter(|(place, _)| summarises || *place != "annotation");
        shares.for_each(|(_, share)| *share = p.into());
        Some(Box::new(values.try_into::<C>().unwrap()))
    }
    changed::<RnnSearchConfig>(config, p)
        .or_else(|| changed::<LuongConfig>(config, p))
        .or_else(|| changed::<TransformerConfig>(config, p))
        .or_else(|| changed::<Seq2SeqConfig>(config, p))
        .or_else(|| changed::<GnmtConfig>(config, p))
        .or_else(|| changed::<LstmnTranslationConfig>(config, p))
        .unwrap()
}

/// A model whose weights are `factor` times the drawn ones: with larger ones its probabilities are further from uniform. The end
/// marker is likely.
pub fn model(
    config: &dyn AnyModelConfig<AnyGenerator>,
    seed: u64,
    factor: f32,
    device: &Device,
) -> AnyGenerator {
    model_of(config, &VOCABULARIES, seed, factor, device)
}

/// The same for these `vocabularies`.
pub fn model_of(
    config: &dyn AnyModelConfig<AnyGenerator>,
    vocabularies: &Vocabularies,
    seed: u64,
    factor: f32,
    device: &Device,
) -> AnyGenerator {
    let model = config.build(vocabularies, seed, device).unwrap();
    let mut arrays: Arrays = weights::collect(&model);
    for array in arrays.values_mut() {
        array.values.iter_mut().for_each(|value| *value *= factor);
    }
    for (_, bias) in arrays
        .iter_mut()
        .filter(|(name, _)| name.ends_with("output.bias"))
    {
        bias.values[MARKS.end as usize] += 1.5;
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
        SourceBatch::new(&sources, &VOCABULARIES.source, device),
        TargetBatch::new(&targets, &VOCABULARIES.target, device),
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
