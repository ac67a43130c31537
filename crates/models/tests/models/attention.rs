//! Scores, normalisers and masks chosen by keys: in every model, each gives the same numbers step by step and under teacher
//! forcing, learns, and is refused by a model that cannot have it.

use std::slice;

use crate::{
    common::{AnyBox, ROUNDING, VOCABULARIES, batch, distance, model, numbers, sentences},
    support::gradients,
};
use burn::tensor::{Device, Int, Tensor};
use regard_models::{
    AnyGenerator, GnmtConfig, LstmnTranslationConfig, LuongConfig, RnnSearchConfig, Scored,
    SourceBatch, TargetBatch, TransformerConfig,
    attention::{
        AddressingConfig, BlockConfig, ChunkedConfig, GumbelConfig, LocalConfig, LocationConfig,
        LongformerConfig, MonotonicConfig, NormalizerConfig, ReinforceConfig, ScoreConfig,
        SelfMaskConfig, SigmoidConfig, SinkConfig, SourceMaskConfig,
    },
    config::Choice,
    lstmn_translation::Fusion,
};
use regard_nn::{bridge::cross_entropy_mean, dropout::DropoutRng};

fn normalizers() -> Vec<NormalizerConfig> {
    vec![
        NormalizerConfig::Softmax,
        NormalizerConfig::Sink(SinkConfig { learned: true }),
        NormalizerConfig::Sink(SinkConfig { learned: false }),
        NormalizerConfig::Sparsemax,
        NormalizerConfig::Entmax15,
        NormalizerConfig::Sigmoid(SigmoidConfig { bias: -1.0 }),
        NormalizerConfig::HardStraightThrough,
        NormalizerConfig::HardGumbel(GumbelConfig { temperature: 0.5 }),
        NormalizerConfig::HardReinforce(ReinforceConfig::default()),
        NormalizerConfig::Monotonic(MonotonicConfig::default()),
        NormalizerConfig::Addressing(AddressingConfig { range: 2 }),
    ]
}

fn scores() -> Vec<ScoreConfig> {
    vec![
        ScoreConfig::Additive,
        ScoreConfig::WeightNormAdditive,
        ScoreConfig::General,
        ScoreConfig::ScaledGeneral,
        ScoreConfig::Dot,
        ScoreConfig::ScaledDot,
        ScoreConfig::Cosine,
        ScoreConfig::Distance,
        ScoreConfig::Location(LocationConfig { positions: 5 }),
    ]
}

fn local(window: usize) -> LocalConfig {
    LocalConfig { window }
}

/// Every model that takes this normaliser, by its name.
fn with_normalizer(normalizer: &NormalizerConfig) -> Vec<(&'static str, AnyBox)> {
    let normalizer = || normalizer.clone();
    let mut all: Vec<(&str, AnyBox)> = vec![
        (
            "rnnsearch",
            Box::new(RnnSearchConfig {
                normalizer: normalizer(),
                ..RnnSearchConfig::tiny()
            }),
        ),
        (
            "luong, feeding",
            Box::new(LuongConfig {
                normalizer: normalizer(),
                ..LuongConfig::tiny()
            }),
        ),
        (
            "luong, at once",
            Box::new(LuongConfig {
                normalizer: normalizer(),
                input_feeding: false,
                ..LuongConfig::tiny()
            }),
        ),
        (
            "gnmt",
            Box::new(GnmtConfig {
                normalizer: normalizer(),
                mask: SourceMaskConfig::LocalM(local(3)),
                ..GnmtConfig::tiny()
            }),
        ),
        (
            "lstmn",
            Box::new(LstmnTranslationConfig {
                normalizer: normalizer(),
                fusion: Fusion::Shallow,
                ..LstmnTranslationConfig::tiny()
            }),
        ),
    ];
    let transformer = TransformerConfig {
        normalizer: normalizer(),
        mask: SelfMaskConfig::Chunked(ChunkedConfig { size: 2, left: 1 }),
        ..TransformerConfig::tiny()
    };
    if !["monotonic", "addressing", "hard-reinforce"].contains(&normalizer().kind()) {
        all.push(("transformer", Box::new(transformer)));
    }
    all
}

/// Step by step the model gives the logits and the weights that it gives under teacher forcing.
fn expect_steps(name: &str, model: &AnyGenerator, device: &Device) {
    let (source, target) = batch(device);
    let [time, rows] = target.inputs.dims();
    let scored = model.forward(&source, &target, &mut DropoutRng::none());
    let mut state = model.encode(&source, &mut DropoutRng::none());
    for t in 0..time {
        let inputs: Tensor<1, Int> = target.inputs.clone().narrow(0, t, 1).squeeze_dim(0);
        let (output, next) = model.step(inputs, state, true);
        // Rows are selected as for a beam of one; the carried state is selected too.
        state = next.select(&(0..rows).collect::<Vec<_>>(), t % 2 == 0);
        let expected = numbers(&scored.logits().narrow(0, t * rows, rows));
        let error = distance(&numbers(&output.logits), &expected);
        assert!(error < ROUNDING, "{name}: step {t}: {error}");
        if let Some(weights) = &scored.weights {
            let expected = numbers(&weights.clone().narrow(1, t, 1));
            let error = distance(&numbers(&output.weights.unwrap()), &expected);
            assert!(error < ROUNDING, "{name}: step {t}: {error}");
        }
    }
}

/// A sentence has the logits in a batch that it has alone.
fn expect_alone(name: &str, model: &AnyGenerator, device: &Device) {
    let (sources, targets) = sentences();
    let (source, target) = batch(device);
    let together = model.forward(&source, &target, &mut DropoutRng::none());
    for (row, (source, target)) in sources.iter().zip(&targets).enumerate() {
        let source = SourceBatch::new(slice::from_ref(source), &VOCABULARIES.source, device);
        let target = TargetBatch::new(slice::from_ref(target), &VOCABULARIES.target, device);
        let alone = model.forward(&source, &target, &mut DropoutRng::none());
        let [steps, _] = target.inputs.dims(); // logits [time · batch, vocabulary]
        let end = (steps * sources.len()) as i64;
        let rows = Tensor::arange_step(row as i64..end, sources.len(), device);
        let here = numbers(&together.logits().select(0, rows));
        let error = distance(&here, &numbers(&alone.logits()));
        assert!(error < ROUNDING, "{name}: sentence {row}: {error}");
    }
}

/// The loss that training minimises, with every random number drawn from `seed`.
fn loss(model: &AnyGenerator, device: &Device, seed: u64) -> Tensor<1> {
    let (source, target) = batch(device);
    let scored = model.forward(&source, &target, &mut DropoutRng::seeded(seed));
    let term = scored.reinforced(&target, None).map(|(term, _)| term);
    let outputs = target.outputs.clone();
    let loss = cross_entropy_mean(scored.logits(), outputs, 0, 0.0).loss;
    match term {
        Some(term) => loss + term,
        None => loss,
    }
}

/// Every weight of the attention to the source has a gradient, and all are finite.
fn expect_gradients(name: &str, config: &AnyBox) {
    let device = Device::flex().autodiff();
    let model = model(&**config, 5, 2.0, &device);
    // The gradient of a single draw may miss a weight; those of four seeds together do not.
    let loss = (0..4).map(|seed| loss(&model, &device, seed));
    let loss = loss.reduce(|a, b| a + b).unwrap();
    let found = gradients(&model, &loss.backward());
    let mut checked = 0;
    for (weight, gradient) in &found {
        assert!(
            gradient.values.iter().all(|g| g.is_finite()),
            "{name}: {weight}"
        );
        if weight.contains("attention.") && !weight.contains("projection") {
            assert!(
                gradient.values.iter().any(|&g| g != 0.0),
                "{name}: {weight}"
            );
            checked += 1;
        }
    }
    assert!(checked > 0 || name.contains("transformer"), "{name}");
}

/// The rows of weights: those of a model with one row a step, or of all heads.
fn rows_of(model: &AnyGenerator, device: &Device) -> Vec<Vec<f32>> {
    let (sources, targets) = sentences();
    let mut rows = vec![];
    for (source, target) in sources.into_iter().zip(targets) {
        let source = SourceBatch::new(&[source], &VOCABULARIES.source, device);
        let target = TargetBatch::new(&[target], &VOCABULARIES.target, device);
        let scored = model.forward(&source, &target, &mut DropoutRng::none());
        let mut add = |length: usize, weights: Vec<f32>| {
            rows.extend(weights.chunks(length).map(<[f32]>::to_vec));
        };
        match (scored.weights, model.look(&source, &target)) {
            (Some(weights), _) => add(weights.dims()[2], numbers(&weights)),
            (None, Some(maps)) => {
                for map in [maps.encoder, maps.decoder, maps.cross].concat() {
                    add(map.dims()[3], numbers(&map));
                }
            }
            _ => panic!("every model attends"),
        }
    }
    rows
}

#[test]
fn every_normalizer_in_every_model() {
    let device = Device::flex();
    for normalizer in normalizers() {
        for (name, config) in with_normalizer(&normalizer) {
            let name = format!("{name}, {}", normalizer.kind());
            let model = model(&*config, 4, 2.0, &device);
            expect_steps(&name, &model, &device);
            expect_alone(&name, &model, &device);
            assert_eq!(model.is_normalized(), normalizer.sums_to_one(), "{name}");
            for row in rows_of(&model, &device) {
                let sum: f32 = row.iter().sum();
                assert!(
                    row.iter()
                        .all(|&weight| (0.0..=1.0 + 1e-6).contains(&weight)),
                    "{name}"
                );
                let holds = match normalizer {
                    NormalizerConfig::Sigmoid(_) => sum > 0.0 || name.starts_with("gnmt"),
                    NormalizerConfig::Sink(_) | NormalizerConfig::Monotonic(_) => sum < 1.0 + 1e-5,
                    // local-m of GNMT may lie beyond the source.
                    _ => (sum - 1.0).abs() < 1e-5 || (sum == 0.0 && name.starts_with("gnmt")),
                };
                assert!(holds, "{name}: {row:?}");
            }
            expect_gradients(&name, &config);
        }
    }
}

#[test]
fn every_score_in_every_model() {
    let device = Device::flex();
    for score in scores() {
        let mut configs: Vec<(&str, AnyBox)> = vec![
            (
                "gnmt",
                Box::new(GnmtConfig {
                    score: score.clone(),
                    mask: SourceMaskConfig::LocalP(local(2)),
                    ..GnmtConfig::tiny()
                }),
            ),
            (
                "lstmn",
                Box::new(LstmnTranslationConfig {
                    score: score.clone(),
                    fusion: Fusion::Shallow,
                    mask: SourceMaskConfig::LocalM(local(4)),
                    ..LstmnTranslationConfig::tiny()
                }),
            ),
        ];
        if score.kind().contains("additive") || score.kind().contains("general") {
            let rnnsearch = RnnSearchConfig {
                score: score.clone(),
                normalizer: NormalizerConfig::Entmax15,
                mask: SourceMaskConfig::LocalP(local(3)),
                ..RnnSearchConfig::tiny()
            };
            configs.push(("rnnsearch", Box::new(rnnsearch)));
        }
        if score.kind() != "location" {
            let transformer = TransformerConfig {
                score: score.clone(),
                ..TransformerConfig::tiny()
            };
            configs.push(("transformer", Box::new(transformer)));
        }
        for (name, config) in configs {
            let name = format!("{name}, {}", score.kind());
            let model = model(&*config, 4, 2.0, &device);
            expect_steps(&name, &model, &device);
            let of_own_weights = ["dot", "scaled-dot", "distance"];
            if !of_own_weights.contains(&score.kind()) {
                expect_gradients(&name, &config);
            }
        }
    }
}

/// A model is the same whether its default choices are written or left out.
#[test]
fn the_usual_choices_change_no_number() {
    let device = Device::flex();
    let (source, target) = batch(&device);
    let logits = |config: AnyBox| {
        let model = model(&*config, 4, 2.0, &device);
        numbers(
            &model
                .forward(&source, &target, &mut DropoutRng::none())
                .logits(),
        )
    };
    let dressed = LuongConfig {
        normalizer: NormalizerConfig::Softmax,
        ..LuongConfig::tiny()
    };
    assert_eq!(
        logits(Box::new(LuongConfig::tiny())),
        logits(Box::new(dressed))
    );
    // A mask that hides nothing takes another path through the kernels.
    let wide = TransformerConfig {
        mask: SelfMaskConfig::Block(BlockConfig { size: 100 }),
        cross_normalizer: Some(NormalizerConfig::Softmax),
        ..TransformerConfig::tiny()
    };
    let plain = logits(Box::new(TransformerConfig::tiny()));
    assert!(distance(&logits(Box::new(wide)), &plain) < ROUNDING);
}

#[test]
fn masks_of_a_transformer_hide_what_they_say() {
    let device = Device::flex();
    let config = TransformerConfig {
        mask: SelfMaskConfig::Longformer(LongformerConfig {
            window: 1,
            dilation: 1,
            global: vec![2],
        }),
        decoder_mask: Some(SelfMaskConfig::Block(BlockConfig { size: 2 })),
        ..TransformerConfig::tiny()
    };
    let model = model(&config, 4, 2.0, &device);
    expect_steps("masks", &model, &device);
    let source = SourceBatch::new(&[vec![5, 6, 7, 8]], &VOCABULARIES.source, &device);
    let target = TargetBatch::new(&[vec![9, 8, 5]], &VOCABULARIES.target, &device);
    let maps = model.look(&source, &target).unwrap();
    let seen = |map: &Tensor<4>| -> Vec<String> {
        let [_, heads, queries, keys] = map.dims();
        let weights = numbers(map);
        let rows = weights[..queries * keys].chunks(keys);
        assert_eq!((heads, weights.len()), (2, 2 * queries * keys));
        let row = |row: &[f32]| {
            row.iter()
                .map(|&w| if w > 0.0 { '#' } else { '.' })
                .collect()
        };
        rows.map(row).collect()
    };
    assert_eq!(
        seen(&maps.encoder[0]),
        ["#.#..", ".##..", "#####", "..##.", "..#.#"]
    );
    assert_eq!(seen(&maps.decoder[1]), ["#...", "##..", "..#.", "..##"]);
    assert_eq!(seen(&maps.cross[0]), ["#####"; 4]);
}

/// The search may read a single key of a model that was trained with soft weights.
#[test]
fn a_monotonic_reader_decides_in_the_search() {
    let device = Device::flex();
    let config = RnnSearchConfig {
        normalizer: NormalizerConfig::Monotonic(MonotonicConfig {
            noise: 1.0,
            hard_search: true,
        }),
        ..RnnSearchConfig::tiny()
    };
    let model = model(&config, 4, 4.0, &device);
    let (source, target) = batch(&device);
    let scored = model.forward(&source, &target, &mut DropoutRng::none());
    assert!(
        numbers(&scored.weights.unwrap())
            .iter()
            .any(|&w| 0.0 < w && w < 1.0)
    );
    let mut state = model.encode(&source, &mut DropoutRng::none());
    let mut places = vec![0; source.len()];
    for inputs in target.inputs.clone().iter_dim(0) {
        let (output, next) = model.step(inputs.squeeze_dim(0), state, true);
        state = next;
        let weights = output.weights.unwrap();
        let length = weights.dims()[1];
        for (row, place) in numbers(&weights).chunks(length).zip(&mut places) {
            assert!(row.iter().all(|&w| w == 0.0 || w == 1.0), "{row:?}");
            let found = row.iter().position(|&w| w == 1.0).unwrap_or(length);
            assert!(found >= *place, "a reader does not go back");
            *place = found;
        }
    }
}

fn reinforced() -> (AnyGenerator, Device) {
    let device = Device::flex().autodiff();
    let config = RnnSearchConfig {
        normalizer: NormalizerConfig::HardReinforce(ReinforceConfig {
            soften: false,
            memory: 0.75,
            ..ReinforceConfig::default()
        }),
        ..RnnSearchConfig::tiny()
    };
    (model(&config, 4, 2.0, &device), device)
}

/// Draws at padding do not count, and the baseline starts at the mean reward.
#[test]
fn the_term_of_reinforce_is_the_mean_over_sentences() {
    let (model, device) = reinforced();
    let score = |sources: &[Vec<u32>], targets: &[Vec<u32>]| -> (Scored, TargetBatch) {
        let source = SourceBatch::new(sources, &VOCABULARIES.source, &device);
        let target = TargetBatch::new(targets, &VOCABULARIES.target, &device);
        // The likeliest key in place of a draw.
        let scored = model.forward(&source, &target, &mut DropoutRng::none());
        (scored, target)
    };
    let (sources, targets) = sentences();
    let alone: Vec<(f32, f32)> = sources
        .iter()
        .zip(&targets)
        .map(|(source, target)| {
            let (scored, target) = score(slice::from_ref(source), slice::from_ref(target));
            let (term, baseline) = scored.reinforced(&target, Some(-2.0)).unwrap();
            let outputs = target.outputs.clone();
            let mean = cross_entropy_mean(scored.logits(), outputs, 0, 0.0).loss;
            let reward = -mean.into_scalar::<f32>();
            assert!((baseline - (0.75 * -2.0 + 0.25 * reward)).abs() < 1e-5);
            let (_, first) = scored.reinforced(&target, None).unwrap();
            assert!(
                (first - reward).abs() < 1e-5,
                "it begins at the mean reward"
            );
            (term.into_scalar(), reward)
        })
        .collect();
    let (scored, target) = score(&sources, &targets);
    let (term, baseline) = scored.reinforced(&target, Some(-2.0)).unwrap();
    let count = alone.len() as f32;
    let terms: f32 = alone.iter().map(|(term, _)| term).sum();
    let rewards: f32 = alone.iter().map(|(_, reward)| reward).sum();
    assert!((term.into_scalar::<f32>() - terms / count).abs() < 1e-4);
    assert!((baseline - (0.75 * -2.0 + 0.25 * rewards / count)).abs() < 1e-5);
}

/// Without softening, only REINFORCE's term gives the score a gradient.
#[test]
fn reward_alone_trains_the_score_of_a_hard_reader() {
    let (model, device) = reinforced();
    let (source, target) = batch(&device);
    let of_score = |loss: fn(&Scored, &TargetBatch) -> Tensor<1>| -> bool {
        let scored = model.forward(&source, &target, &mut DropoutRng::seeded(1));
        let all = gradients(&model, &loss(&scored, &target).backward());
        let mut of_score = all
            .iter()
            .filter(|(name, _)| name.contains("attention.score"));
        of_score.any(|(_, gradient)| gradient.values.iter().any(|&g| g != 0.0))
    };
    assert!(!of_score(|scored, target| {
        cross_entropy_mean(scored.logits(), target.outputs.clone(), 0, 0.0).loss
    }));
    assert!(of_score(|scored, target| {
        scored.reinforced(target, None).unwrap().0
    }));
}

#[test]
fn choices_that_no_model_has() {
    let transformer = TransformerConfig::tiny;
    let wrong: [(AnyBox, &str); 9] = [
        (
            Box::new(RnnSearchConfig {
                score: ScoreConfig::Dot,
                ..RnnSearchConfig::tiny()
            }),
            "score: found \"dot\", which compares vectors of one size: this decoder's states have 12 numbers, its annotations 24; expected \"additive\" or",
        ),
        (
            Box::new(RnnSearchConfig {
                mask: SourceMaskConfig::LocalM(local(0)),
                ..RnnSearchConfig::tiny()
            }),
            "mask.window: found 0; expected 1 to",
        ),
        (
            Box::new(LuongConfig {
                normalizer: NormalizerConfig::HardGumbel(GumbelConfig { temperature: 0.0 }),
                ..LuongConfig::tiny()
            }),
            "normalizer.temperature: found 0; expected 0.001 to 1000",
        ),
        (
            Box::new(LstmnTranslationConfig {
                normalizer: NormalizerConfig::Sparsemax,
                ..LstmnTranslationConfig::tiny()
            }),
            "normalizer: found \"sparsemax\" with fusion = \"deep\"; expected \"softmax\", as the cell reads",
        ),
        (
            Box::new(TransformerConfig {
                normalizer: NormalizerConfig::Monotonic(MonotonicConfig::default()),
                ..transformer()
            }),
            "normalizer: found \"monotonic\"; expected one whose rows do not follow from each other",
        ),
        (
            Box::new(TransformerConfig {
                cross_normalizer: Some(NormalizerConfig::HardReinforce(ReinforceConfig::default())),
                ..transformer()
            }),
            "cross_normalizer: found \"hard-reinforce\"; expected",
        ),
        (
            Box::new(TransformerConfig {
                score: ScoreConfig::Location(LocationConfig::default()),
                ..transformer()
            }),
            "score: found \"location\"",
        ),
        (
            Box::new(TransformerConfig {
                window: Some(3),
                mask: SelfMaskConfig::Longformer(LongformerConfig::default()),
                ..transformer()
            }),
            "mask: found \"longformer\" with window = 3; expected no key window",
        ),
        (
            Box::new(TransformerConfig {
                decoder_mask: Some(SelfMaskConfig::Longformer(LongformerConfig {
                    global: vec![0, usize::MAX],
                    ..LongformerConfig::default()
                })),
                ..transformer()
            }),
            "decoder_mask.global: found 18446744073709551615; expected positions below",
        ),
    ];
    for (config, expected) in wrong {
        let built = config.build(&VOCABULARIES, 1, &Device::flex());
        let error = built.map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}\n{expected}");
    }
}
