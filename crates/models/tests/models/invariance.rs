//! What must not change the numbers: padding, other sentences in the batch, single steps, dropout of 0, the
//! number of threads, storage. And what must: the seed.

use std::{collections::HashMap, process::Command};

use crate::common::{
    AnyBox, MARKS, ROUNDING, VOCABULARIES, batch, configs, distance, model, numbers, sentences,
    with_dropout,
};
use burn::tensor::{Device, Int, Tensor, TensorData};
use regard_models::{
    AnyGenerator, GnmtConfig, LuongConfig, RnnSearchConfig, Seq2SeqConfig, SourceBatch,
    TargetBatch, TransformerConfig, Vocabularies,
    luong::{LuongScore, Reading},
    recurrent::StackDropout,
    rnnsearch::Initialisation,
    seq2seq::Cell,
    tables::Tie,
};
use regard_nn::{
    dropout::DropoutRng,
    weights::{self, Storage},
};

fn device() -> Device {
    Device::flex()
}

/// Logits by sentence and step, and weights by sentence and step, without the padding.
type Rows = Vec<(Vec<f32>, Vec<f32>)>;

fn rows(scored: &regard_models::Scored, source: &SourceBatch, target: &TargetBatch) -> Vec<Rows> {
    let [_, vocabulary] = scored.logits().dims();
    let (logits, batch) = (numbers(&scored.logits()), source.len());
    let steps = target.inputs.dims()[0];
    let weights = scored
        .weights
        .as_ref()
        .map(|weights| (weights.dims()[2], numbers(weights)));
    let sentence = |b: usize| {
        let step = |t: usize| {
            let at = (t * batch + b) * vocabulary;
            let seen = weights.as_ref().map_or_else(Vec::new, |(length, weights)| {
                let row = &weights[(b * steps + t) * length..][..*length];
                let (real, padded) = row.split_at(source.keep.lengths()[b]);
                assert!(
                    padded.iter().all(|&weight| weight == 0.0),
                    "padding was looked at"
                );
                real.to_vec()
            });
            (logits[at..at + vocabulary].to_vec(), seen)
        };
        (0..target.lengths[b]).map(step).collect()
    };
    (0..batch).map(sentence).collect()
}

#[test]
fn a_padded_batch_is_each_sentence_alone() {
    let (source, target) = batch(&device());
    for (name, config) in configs() {
        let model = model(&*config, 3, 2.0, &device());
        let scored = model.forward(&source, &target, &mut DropoutRng::none());
        let together = rows(&scored, &source, &target);
        let (sources, targets) = sentences();
        for (b, (s, t)) in sources.into_iter().zip(targets).enumerate() {
            let (s, t) = (
                SourceBatch::new(&[s], &VOCABULARIES.source, &device()),
                TargetBatch::new(&[t], &VOCABULARIES.target, &device()),
            );
            let alone = &rows(&model.forward(&s, &t, &mut DropoutRng::none()), &s, &t)[0];
            for ((logits, weights), (logits_together, weights_together)) in
                alone.iter().zip(&together[b])
            {
                assert!(distance(logits, logits_together) < ROUNDING, "{name}");
                assert!(distance(weights, weights_together) < ROUNDING, "{name}");
            }
        }
    }
}

/// The ids that fill up a batch are never looked at: bit for bit the same with others.
#[test]
fn what_fills_the_padding_does_not_matter() {
    let (source, target) = batch(&device());
    let refilled = |ids: Tensor<2, Int>, padding: Vec<bool>, other: i32| -> Tensor<2, Int> {
        let shape = ids.dims();
        let ids: Vec<i32> = ids.into_data().iter().collect();
        let ids = ids
            .iter()
            .zip(padding)
            .map(|(&id, padding)| if padding { other } else { id });
        Tensor::from_data(TensorData::new(ids.collect::<Vec<_>>(), shape), &device())
    };
    let padding = |lengths: &[usize], time: usize| -> Vec<bool> {
        (0..time)
            .flat_map(|t| lengths.iter().map(move |&length| t >= length))
            .collect()
    };
    let other_source = SourceBatch {
        ids: refilled(
            source.ids.clone(),
            padding(source.keep.lengths(), source.ids.dims()[0]),
            13,
        ),
        keep: source.keep.clone(),
    };
    let time = target.inputs.dims()[0];
    let inputs = refilled(target.inputs.clone(), padding(&target.lengths, time), 13);
    let other_target = target.clone().with_inputs(inputs);
    for (name, config) in configs() {
        let model = model(&*config, 3, 2.0, &device());
        let one = model.forward(&source, &target, &mut DropoutRng::none());
        let two = model.forward(&other_source, &other_target, &mut DropoutRng::none());
        assert!(
            rows(&one, &source, &target) == rows(&two, &source, &target),
            "{name}"
        );
    }
}

#[test]
fn stepping_equals_teacher_forcing() {
    let (source, target) = batch(&device());
    let [time, rows_] = target.inputs.dims();
    for (name, config) in configs() {
        let model = model(&*config, 4, 2.0, &device());
        let scored = model.forward(&source, &target, &mut DropoutRng::none());
        let mut state = model.encode(&source, &mut DropoutRng::none());
        let vocabulary = scored.logits().dims()[1];
        for t in 0..time {
            let inputs: Tensor<1, Int> = target.inputs.clone().narrow(0, t, 1).squeeze_dim(0);
            let (output, next) = model.step(inputs, state, true);
            state = next;
            let expected = scored.logits().narrow(0, t * rows_, rows_);
            assert_eq!(output.logits.dims(), [rows_, vocabulary]);
            let error = distance(&numbers(&output.logits), &numbers(&expected));
            assert!(error < ROUNDING, "{name}: step {t}: {error}");
            if let Some(weights) = &scored.weights {
                let expected = numbers(&weights.clone().narrow(1, t, 1));
                let error = distance(&numbers(&output.weights.unwrap()), &expected);
                assert!(error < ROUNDING, "{name}: step {t}: {error}");
            }
        }
    }
}

/// Rows of a decoder state can be taken in any order and more than once.
#[test]
fn selected_rows_go_on_as_they_were() {
    let (source, target) = batch(&device());
    let [_, rows_] = target.inputs.dims();
    let input = |t: usize, rows: &[usize]| -> Tensor<1, Int> {
        let ids: Vec<i32> = target
            .inputs
            .clone()
            .narrow(0, t, 1)
            .into_data()
            .iter()
            .collect();
        let ids: Vec<i32> = rows.iter().map(|&row| ids[row]).collect();
        Tensor::from_data(TensorData::new(ids, [rows.len()]), &device())
    };
    let all: Vec<usize> = (0..rows_).collect();
    for (name, config) in configs() {
        let model = model(&*config, 4, 2.0, &device());
        let (_, state) = model.step(
            input(0, &all),
            model.encode(&source, &mut DropoutRng::none()),
            true,
        );
        let (expected, _) = model.step(input(1, &all), state.clone(), true);
        let picked = [3, 0, 0, 2, 1];
        let selected = state.clone().select(&picked, false);
        let (found, _) = model.step(input(1, &picked), selected, true);
        for (i, &row) in picked.iter().enumerate() {
            let one = |tensor: &Tensor<2>, row| numbers(&tensor.clone().narrow(0, row, 1));
            assert!(
                distance(&one(&found.logits, i), &one(&expected.logits, row)) < ROUNDING,
                "{name}"
            );
            if let (Some(a), Some(b)) = (&found.weights, &expected.weights) {
                assert!(distance(&one(a, i), &one(b, row)) < ROUNDING, "{name}");
            }
        }
        let (kept, _) = model.step(input(1, &all), state.select(&all, true), true);
        assert_eq!(numbers(&kept.logits), numbers(&expected.logits), "{name}");
    }
}

#[test]
fn dropout_follows_its_seed_and_nothing_else() {
    let (source, target) = batch(&device());
    for (name, config) in configs() {
        let run = |p: f64, seed: Option<u64>| {
            let mut noise = seed.map_or_else(DropoutRng::none, DropoutRng::seeded);
            let model = model(&*with_dropout(&*config, p), 4, 1.0, &device());
            numbers(&model.forward(&source, &target, &mut noise).logits())
        };
        let nine = run(0.3, Some(9));
        assert!(nine == run(0.3, Some(9)), "{name}: not replayed");
        assert!(nine != run(0.3, Some(10)), "{name}: the seed does nothing");
        let inference = run(0.0, None);
        assert!(nine != inference, "{name}: dropout does nothing");
        assert!(run(0.3, None) == inference, "{name}: dropout without noise");
        assert!(
            run(0.0, Some(9)) == inference,
            "{name}: noise without dropout"
        );
    }
}

/// The dropout of annotations acts on the summary of a model that has one in their place.
#[test]
fn parts_of_a_summary_are_dropped() {
    let (source, target) = batch(&device());
    let config = Seq2SeqConfig {
        cell: Cell::GruContext,
        layers: 1,
        dropout: StackDropout {
            annotation: 0.5,
            ..StackDropout::none()
        },
        ..Seq2SeqConfig::tiny()
    };
    let model = model(&config, 4, 1.0, &device());
    let run = |noise: &mut DropoutRng| numbers(&model.forward(&source, &target, noise).logits());
    let inference = run(&mut DropoutRng::none());
    assert!(inference != run(&mut DropoutRng::seeded(9)));
}

/// Scheduled sampling that replaces no input changes nothing.
#[test]
fn inputs_put_back_change_nothing() {
    let (source, target) = batch(&device());
    for (name, config) in configs() {
        let model = model(&*config, 4, 1.0, &device());
        let again = target.clone().with_inputs(target.inputs.clone());
        let one = model.forward(&source, &target, &mut DropoutRng::none());
        let two = model.forward(&source, &again, &mut DropoutRng::none());
        assert_eq!(numbers(&one.logits()), numbers(&two.logits()), "{name}");
        assert_eq!(again.tokens, target.tokens);
    }
}

const CHILD: &str = "REGARD_TEST_FINGERPRINT";

/// A hash of the bits of logits, weights and all gradients of models large enough for threads.
fn fingerprint() -> String {
    let device = Device::flex().autodiff();
    let sentences = |longest: usize| -> Vec<Vec<u32>> {
        (0..24)
            .map(|b| {
                (0..longest - b % 5)
                    .map(|t| 4 + ((7 * b + 3 * t) % 296) as u32)
                    .collect()
            })
            .collect()
    };
    let vocabularies = Vocabularies::new(300, 300);
    let source = SourceBatch::new(&sentences(14), &vocabularies.source, &device);
    let target = TargetBatch::new(&sentences(11), &vocabularies.target, &device);
    let (embedding, hidden) = (72, 104);
    let configs: [AnyBox; 6] = [
        Box::new(RnnSearchConfig {
            embedding,
            hidden,
            attention_dimension: 90,
            maxout: 64,
            ..RnnSearchConfig::tiny()
        }),
        Box::new(LuongConfig {
            embedding,
            hidden,
            ..LuongConfig::tiny()
        }),
        Box::new(LuongConfig {
            embedding,
            hidden,
            score: LuongScore::Concat,
            input_feeding: false,
            encoder: Reading::Bidirectional,
            ..LuongConfig::tiny()
        }),
        Box::new(TransformerConfig {
            d_model: embedding,
            heads: 3,
            feed_forward: 300,
            ..TransformerConfig::tiny()
        }),
        Box::new(Seq2SeqConfig {
            embedding,
            hidden,
            layers: 1,
            cell: Cell::GruContext,
            ..Seq2SeqConfig::tiny()
        }),
        Box::new(GnmtConfig {
            embedding,
            hidden,
            attention_dimension: 90,
            ..GnmtConfig::tiny()
        }),
    ];
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut count = 0;
    let mut add = |values: &[f32]| {
        count += values.len();
        for value in values {
            hash = (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for config in configs {
        let config = with_dropout(&*config, 0.2);
        let model = config.build(&vocabularies, 2, &device).unwrap();
        let scored = model.forward(&source, &target, &mut DropoutRng::seeded(5));
        add(&numbers(&scored.logits()));
        if let Some(weights) = &scored.weights {
            add(&numbers(weights));
        }
        let outputs = target.outputs.clone();
        let loss = regard_nn::bridge::cross_entropy_mean(
            scored.logits(),
            outputs,
            MARKS.padding as usize,
            0.1,
        );
        let all = loss.loss.backward();
        for array in crate::support::gradients(&model, &all).values() {
            add(&array.values);
        }
    }
    format!("{hash:016x} of {count} numbers")
}

/// The same bits on one, two and three threads. Each count has a process of its own, as a process has one thread pool.
#[test]
fn threads_do_not_change_bits() {
    if std::env::var_os(CHILD).is_some() {
        println!("fingerprint {}", fingerprint());
        return;
    }
    let found: Vec<String> = ["1", "2", "3", "3"]
        .iter()
        .map(|threads| {
            let output = Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "invariance::threads_do_not_change_bits",
                    "--nocapture",
                ])
                .env(CHILD, "1")
                .env("RAYON_NUM_THREADS", threads)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let at = text
                .find("fingerprint ")
                .unwrap_or_else(|| panic!("{text}"));
            text[at..].lines().next().unwrap().to_owned()
        })
        .collect();
    assert!(found.iter().all(|bits| bits == &found[0]), "{found:#?}");
}

#[test]
fn weights_survive_a_file() {
    let (source, target) = batch(&device());
    for (name, config) in configs() {
        let model_a = model(&*config, 4, 2.0, &device());
        let logits = |model: &AnyGenerator| {
            numbers(
                &model
                    .forward(&source, &target, &mut DropoutRng::none())
                    .logits(),
            )
        };
        let arrays = weights::collect(&model_a);
        let through = |storage| {
            let bytes = weights::to_bytes(&arrays, HashMap::new(), storage).unwrap();
            let (arrays, _) = weights::from_bytes(&bytes).unwrap();
            weights::apply(config.build(&VOCABULARIES, 99, &device()).unwrap(), arrays).unwrap()
        };
        assert_eq!(logits(&through(Storage::F32)), logits(&model_a), "{name}");
        // Each weight moves by at most 2^-11 of itself; what that does to a logit stays of that order.
        let exact = logits(&model_a);
        let size = exact
            .iter()
            .fold(1.0f32, |most, logit| most.max(logit.abs()));
        let error = distance(&logits(&through(Storage::F16)), &exact);
        assert!(
            0.0 < error && error < 0.01 * size,
            "{name}: {error} of {size}"
        );
    }
}

#[test]
fn a_seed_names_a_model() {
    for (name, config) in configs() {
        let drawn = |seed| weights::collect(&config.build(&VOCABULARIES, seed, &device()).unwrap());
        assert_eq!(drawn(1), drawn(1), "{name}");
        let (a, b) = (drawn(1), drawn(2));
        // Biases start at 0 and norms at 1, whatever the seed.
        let fixed = |values: &[f32]| {
            [0.0, 1.0].contains(&values[0]) && values.iter().all(|value| value == &values[0])
        };
        for (weight, array) in &a {
            assert!(
                fixed(&array.values) || array != &b[weight],
                "{name}: {weight}"
            );
        }
        // Written and read again; its dropout is 0 anyway.
        assert!(with_dropout(&*config, 0.0).equals(&*config), "{name}");
    }
}

/// Weights of one architecture do not go into another, nor into other sizes.
#[test]
fn foreign_weights_are_refused() {
    let all = configs();
    let mut refused = 0;
    for (i, (name, config)) in all.iter().enumerate() {
        let arrays = weights::collect(&config.build(&VOCABULARIES, 1, &device()).unwrap());
        for (j, (other_name, other)) in all.iter().enumerate().filter(|(j, _)| *j != i) {
            let other = other.build(&VOCABULARIES, 1, &device()).unwrap();
            let names = |arrays: &weights::Arrays| -> Vec<_> {
                arrays
                    .iter()
                    .map(|(name, array)| (name.clone(), array.shape.clone()))
                    .collect()
            };
            if names(&arrays) == names(&weights::collect(&other)) {
                continue; // two wirings of the same weights
            }
            let error = weights::apply(other, arrays.clone())
                .map(|_| ())
                .unwrap_err();
            assert!(
                error.to_string().contains('`'),
                "{name} into {other_name} ({j}): {error}"
            );
            refused += 1;
        }
    }
    assert!(refused > 40, "{refused}");
}

#[test]
fn configurations_no_model_can_have() {
    let rnnsearch = RnnSearchConfig::tiny;
    let luong = LuongConfig::tiny;
    let wrong: [(AnyBox, &str); 11] = [
        (
            Box::new(RnnSearchConfig {
                hidden: 0,
                ..rnnsearch()
            }),
            "hidden: found 0",
        ),
        (
            Box::new(RnnSearchConfig {
                attention_dimension: 0,
                ..rnnsearch()
            }),
            "attention_dimension: found 0",
        ),
        (
            Box::new(RnnSearchConfig {
                tie: Tie::Target,
                maxout: 9,
                ..rnnsearch()
            }),
            "reads 9",
        ),
        (
            Box::new(LuongConfig {
                layers: 0,
                ..luong()
            }),
            "layers: found 0",
        ),
        (
            Box::new(LuongConfig {
                max_source_length: 0,
                ..luong()
            }),
            "max_source_length: found 0",
        ),
        (
            Box::new(LuongConfig {
                hidden: 7,
                encoder: Reading::Bidirectional,
                ..luong()
            }),
            "hidden: found 7; expected an even number",
        ),
        (
            Box::new(LuongConfig {
                tie: Tie::Target,
                ..luong()
            }),
            "reads 12, the embedding has 8",
        ),
        (
            Box::new(Seq2SeqConfig {
                embedding: 0,
                ..Seq2SeqConfig::tiny()
            }),
            "embedding: found 0",
        ),
        (
            Box::new(Seq2SeqConfig {
                dropout: StackDropout {
                    annotation: 0.5,
                    ..StackDropout::none()
                },
                ..Seq2SeqConfig::tiny()
            }),
            "dropout.annotation: found 0.5; expected 0 with cell = \"lstm\"",
        ),
        (
            Box::new(GnmtConfig {
                layers: 1,
                ..GnmtConfig::tiny()
            }),
            "layers: found 1; expected at least 2",
        ),
        (
            Box::new(GnmtConfig {
                tie: Tie::Target,
                ..GnmtConfig::tiny()
            }),
            "reads 12, the embedding has 8",
        ),
    ];
    let error = |config: &AnyBox, vocabularies| {
        let built = config.build(&vocabularies, 1, &device());
        built.map(|_| ()).unwrap_err().to_string()
    };
    for (config, expected) in wrong {
        let error = error(&config, VOCABULARIES);
        assert!(error.contains(expected), "{error}");
    }
    let tied: AnyBox = Box::new(RnnSearchConfig {
        tie: Tie::All,
        ..rnnsearch()
    });
    let error = error(&tied, Vocabularies::new(9, 16));
    assert!(error.contains("source has 9 entries, target 16"), "{error}");
}

/// Bahdanau 2014, App. B.1: recurrent matrices orthogonal, the alignment model's matrices N(0, 0.001²) and
/// its vector 0, all other matrices N(0, 0.01²), biases 0.
#[test]
fn the_papers_initialisation() {
    let config: AnyBox = Box::new(RnnSearchConfig {
        embedding: 60,
        hidden: 64,
        attention_dimension: 50,
        maxout: 40,
        initialisation: Initialisation::Paper,
        ..RnnSearchConfig::tiny()
    });
    let model = config.build(&Vocabularies::new(200, 200), 1, &device());
    let arrays = weights::collect(&model.unwrap());
    let mut kinds = [0; 4];
    for (name, array) in &arrays {
        let values = &array.values;
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        if name.ends_with("bias") || name.ends_with("vector") {
            assert!(values.iter().all(|&value| value == 0.0), "{name}");
            kinds[0] += 1;
        } else if name.ends_with("recurrent") {
            let (n, width) = (array.shape[0], array.shape[1]);
            for block in 0..3 {
                for (i, j) in (0..n).flat_map(|i| (0..=i).map(move |j| (i, j))) {
                    let column = |c: usize| (0..n).map(move |r| values[r * width + block * n + c]);
                    let product: f32 = column(i).zip(column(j)).map(|(a, b)| a * b).sum();
                    let expected = if i == j { 1.0 } else { 0.0 };
                    assert!(
                        (product - expected).abs() < 1e-5,
                        "{name}: {i} {j}: {product}"
                    );
                }
            }
            kinds[1] += 1;
        } else {
            let deviation = if name.contains("attention") {
                0.001f32
            } else {
                0.01
            };
            let error = (square.sqrt() / deviation - 1.0).abs();
            // Five standard errors of a deviation and of a mean, from this many draws.
            let five = 5.0 / (values.len() as f32).sqrt();
            assert!(
                error < five && mean.abs() < five * deviation,
                "{name}: {error} {mean}"
            );
            kinds[if name.contains("attention") { 2 } else { 3 }] += 1;
        }
    }
    assert!(kinds.iter().all(|&count| count > 0), "{kinds:?}");
}
