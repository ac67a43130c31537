//! Generation with real models: each hypothesis scored again under teacher forcing gives the same
//! log-probability and the same weights, and tiny vocabularies can be searched exhaustively.

use crate::common::{MARKS, ROUNDING, VOCABULARIES, configs, distance, model, model_of, numbers};
use burn::tensor::{Device, Tensor, activation::log_softmax};
use regard_kernels::stack::{ChangedHead, HeadChange};
use regard_models::{
    AnyGenerator, Packed, SourceBatch, TargetBatch, Vocabularies, Vocabulary,
    generate::{BeamConfig, Hypothesis, LengthLimit, Prepared, translate},
    pretrained::Look,
};
use regard_nn::{bridge::without_kernels, dropout::DropoutRng, weights};

const SHORT: LengthLimit = LengthLimit {
    factor: 1.0,
    constant: 2,
    most: 7,
};

fn device() -> Device {
    Device::flex()
}

/// Log-probabilities of each step and weights of `tokens`, teacher-forced. `</s>` is scored too.
fn teacher_forced(
    model: &AnyGenerator,
    source: &[u32],
    tokens: &[u32],
) -> (Vec<f64>, Vec<Vec<f32>>) {
    let device = device();
    let source = SourceBatch::new(&[source.to_vec()], &VOCABULARIES.source, &device);
    let target = TargetBatch::new(&[tokens.to_vec()], &VOCABULARIES.target, &device);
    let scored = model.forward(&source, &target, &mut DropoutRng::none());
    let [_, vocabulary] = scored.logits().dims();
    let scores = numbers(&log_softmax(scored.logits(), 1));
    let steps = tokens
        .iter()
        .copied()
        .chain([MARKS.end])
        .zip(scores.chunks(vocabulary));
    let weights = scored.weights.map_or_else(Vec::new, |weights| {
        let length = weights.dims()[2];
        numbers(&weights)
            .chunks(length)
            .map(<[f32]>::to_vec)
            .collect()
    });
    (
        steps
            .map(|(token, row)| f64::from(row[token as usize]))
            .collect(),
        weights,
    )
}

fn sources() -> Vec<Vec<u32>> {
    vec![
        vec![5, 6, 7, 8, 9],
        vec![4],
        vec![],
        vec![15, 4, 4],
        vec![9, 8, 7, 6, 5, 4, 10, 11],
    ]
}

#[test]
fn hypotheses_scored_again_under_teacher_forcing() {
    let (mut checked, mut cut) = (0, 0);
    for (name, config) in configs() {
        let model = model(&*config, 5, 2.0, &device());
        let beam = BeamConfig {
            size: 4,
            n_best: 4,
            limit: SHORT,
            ..Default::default()
        };
        for (source, found) in sources()
            .iter()
            .zip(translate(&model, &sources(), &beam, &device()))
        {
            if source.is_empty() {
                assert_eq!(found, [Hypothesis::empty()], "{name}");
                continue;
            }
            assert!(!found.is_empty() && found.len() <= 4);
            for hypothesis in found {
                let rows = hypothesis.tokens.len() + usize::from(hypothesis.finished);
                let (scores, weights) = teacher_forced(&model, source, &hypothesis.tokens);
                let expected: f64 = scores[..rows].iter().sum();
                let error = (hypothesis.log_probability - expected).abs();
                assert!(
                    error < f64::from(ROUNDING) * rows as f64 * 4.0,
                    "{name}: {error}"
                );
                let attends = ["rnnsearch", "luong", "gnmt", "lstmn"]
                    .iter()
                    .any(|kind| name.starts_with(kind));
                assert_eq!(
                    hypothesis.weights.len(),
                    if attends { rows } else { 0 },
                    "{name}"
                );
                for (found, expected) in hypothesis.weights.iter().zip(&weights) {
                    assert_eq!(found.len(), source.len() + 1, "{name}");
                    assert!(
                        distance(found, expected) < ROUNDING,
                        "{name}: {found:?} {expected:?}"
                    );
                }
                checked += 1;
                cut += usize::from(!hypothesis.finished);
            }
        }
    }
    assert!(checked > 60, "{checked}");
    assert!(
        0 < cut && cut < checked,
        "{cut} of {checked}: both kinds should occur"
    );
}

/// A model whose tables have their entries in another order gives the same translations: the vocabulary says where the marks are.
#[test]
fn marks_may_be_any_ids() {
    let size = VOCABULARIES.target.size;
    let moved = |id: u32| (5 * id + 3) % size as u32;
    let all_moved = |ids: &[u32]| ids.iter().map(|&id| moved(id)).collect::<Vec<_>>();
    let marks = Vocabulary {
        size,
        padding: moved(MARKS.padding),
        start: moved(MARKS.start),
        end: moved(MARKS.end),
    };
    let vocabularies = Vocabularies {
        source: marks,
        target: marks,
    };
    let beam = BeamConfig {
        size: 3,
        limit: SHORT,
        ..Default::default()
    };
    for (name, config) in configs() {
        let model = model(&*config, 5, 2.0, &device());
        let mut arrays = weights::collect(&model);
        let mut tables = 0;
        for (key, array) in &mut arrays {
            let entries_last = key.contains("output");
            if !key.contains("tables.") {
                continue;
            }
            tables += 1;
            let width = array.values.len() / size;
            let former = array.values.clone();
            for id in 0..size {
                let to = moved(id as u32) as usize;
                for i in 0..width {
                    let place = |id: usize| {
                        if entries_last {
                            i * size + id
                        } else {
                            id * width + i
                        }
                    };
                    array.values[place(to)] = former[place(id)];
                }
            }
        }
        assert!(tables > 1, "{name}");
        let other = config.build(&vocabularies, 1, &device()).unwrap();
        let other = weights::apply(other, arrays).unwrap();
        let others: Vec<_> = sources().iter().map(|ids| all_moved(ids)).collect();
        let expected = translate(&model, &sources(), &beam, &device());
        let found = translate(&other, &others, &beam, &device());
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(found[0].tokens, all_moved(&expected[0].tokens), "{name}");
            let error = (found[0].log_probability - expected[0].log_probability).abs();
            assert!(error < f64::from(ROUNDING) * 10.0, "{name}: {error}");
        }
    }
}

#[test]
fn a_beam_of_one_is_greedy() {
    for (name, config) in configs() {
        let model = model(&*config, 6, 2.0, &device());
        let greedy = BeamConfig {
            limit: SHORT,
            ..BeamConfig::greedy()
        };
        for (source, found) in
            sources()
                .iter()
                .zip(translate(&model, &sources(), &greedy, &device()))
        {
            if source.is_empty() {
                continue;
            }
            let encoded = SourceBatch::new(
                std::slice::from_ref(source),
                &VOCABULARIES.source,
                &device(),
            );
            let mut state = model.encode(&encoded, &mut DropoutRng::none());
            let (mut tokens, mut previous) = (vec![], MARKS.start);
            while tokens.len() < SHORT.tokens(source.len() + 1) && previous != MARKS.end {
                let ids = Tensor::from_ints([previous as i32], &device());
                let (output, next) = model.step(ids, state, true);
                state = next;
                let logits = numbers(&output.logits);
                let likeliest = (2..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
                previous = likeliest.unwrap() as u32;
                tokens.push(previous);
            }
            tokens.retain(|&token| token != MARKS.end);
            assert_eq!(found[0].tokens, tokens, "{name}");
        }
    }
}

/// Sentences translated together give the same translations as each one alone.
#[test]
fn a_batch_is_each_sentence_alone() {
    for (name, config) in configs() {
        let model = model(&*config, 7, 2.0, &device());
        let beam = BeamConfig {
            size: 3,
            n_best: 3,
            limit: SHORT,
            ..Default::default()
        };
        let together = translate(&model, &sources(), &beam, &device());
        for (source, together) in sources().into_iter().zip(together) {
            let alone = translate(&model, &[source], &beam, &device()).remove(0);
            let tokens = |all: &[Hypothesis]| -> Vec<Vec<u32>> {
                all.iter()
                    .map(|hypothesis| hypothesis.tokens.clone())
                    .collect()
            };
            assert_eq!(tokens(&alone), tokens(&together), "{name}");
            for (a, b) in alone.iter().zip(&together) {
                assert!(
                    (a.score - b.score).abs() < 1e-5,
                    "{name}: {} {}",
                    a.score,
                    b.score
                );
                for (a, b) in a.weights.iter().zip(&b.weights) {
                    assert!(distance(a, b) < ROUNDING, "{name}");
                }
            }
        }
    }
}

/// All translations of at most four tokens over a vocabulary of three words.
#[test]
fn a_wide_beam_is_exhaustive_search() {
    let source = vec![5, 9, 12];
    let mut all: Vec<Vec<u32>> = vec![vec![]];
    for i in 0.. {
        let Some(tokens) = all.get(i).cloned().filter(|tokens| tokens.len() < 3) else {
            break;
        };
        all.extend((3..6).map(|token| [tokens.as_slice(), &[token]].concat()));
    }
    assert_eq!(all.len(), 1 + 3 + 9 + 27);
    for (name, config) in configs() {
        let model = model_of(&*config, &Vocabularies::new(16, 6), 8, 2.0, &device());
        let scores: Vec<f64> = all
            .iter()
            .map(|tokens| teacher_forced(&model, &source, tokens).0.iter().sum())
            .collect();
        // Weights of twice the usual size magnify rounding: by as much as plain operations differ from fused ones.
        let plain = |tokens: &Vec<u32>| -> f64 {
            without_kernels(|| teacher_forced(&model, &source, tokens).0.iter().sum())
        };
        let rounding = (all.iter().zip(&scores))
            .map(|(tokens, score)| (plain(tokens) - score).abs())
            .fold(5e-6, f64::max);
        for length_penalty in [0.0, 0.6, 1.5] {
            let beam = BeamConfig {
                size: 500,
                n_best: 500,
                length_penalty,
                limit: LengthLimit {
                    factor: 0.0,
                    constant: 4,
                    most: 4,
                },
                ..Default::default()
            };
            let found =
                translate(&model, std::slice::from_ref(&source), &beam, &device()).remove(0);
            let rank = |i: usize| {
                scores[i] / ((5.0 + (all[i].len() + 1) as f64) / 6.0).powf(length_penalty)
            };
            let mut order: Vec<usize> = (0..all.len()).collect();
            order.sort_by(|&a, &b| rank(b).total_cmp(&rank(a)));
            assert!(
                found.iter().skip(order.len()).all(|cut| !cut.finished),
                "{name}"
            );
            for (hypothesis, &i) in found.iter().zip(&order) {
                assert!(hypothesis.finished, "{name}");
                assert!(
                    (hypothesis.score - rank(i)).abs() < 2.0 * rounding,
                    "{name}"
                );
            }
            assert_eq!(found[0].tokens, all[order[0]], "{name}");
        }
    }
}

/// Weights packed for generation give the translations that the model gives, with the same probabilities.
#[test]
fn a_prepared_model_translates_alike() {
    let mut checked = 0;
    for (name, config) in configs() {
        for (seed, beam) in [(6, 1), (7, 3)] {
            let model = model(&*config, seed, 1.5, &device());
            let search = BeamConfig {
                size: beam,
                n_best: beam,
                limit: SHORT,
                ..BeamConfig::default()
            };
            let expected = translate(&model, &sources(), &search, &device());
            let found = Prepared::new(model).translate(&sources(), &search, &device());
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!(found.len(), expected.len(), "{name}");
                for (found, expected) in found.iter().zip(expected) {
                    assert_eq!(found.tokens, expected.tokens, "{name}");
                    let apart = (found.log_probability - expected.log_probability).abs();
                    assert!(apart < 1e-4, "{name}: {apart}");
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 60, "{checked}");
}

/// Heads of a model that is opened: unchanged, its maps are those of the modules and its search finds the same; a head that is off
/// or a weight that is hidden is so in maps and search, in the encoder and in the decoder.
#[test]
fn opened_models_are_those_that_were_packed() {
    let mut opened = 0;
    for (name, config) in configs() {
        let model = model(&*config, 5, 2.0, &device());
        let beam = BeamConfig {
            size: 3,
            n_best: 3,
            limit: SHORT,
            ..Default::default()
        };
        let mut prepared = Prepared::new(model.clone());
        let plain = prepared.translate(&sources(), &beam, &device());
        let Some(packed) = prepared.packed_mut() else {
            continue;
        };
        let head = |layer, cross, head, change| ChangedHead {
            layer,
            cross,
            head,
            change,
        };
        let closed = packed.change_heads(vec![head(0, false, 0, HeadChange::Off)], vec![]);
        assert!(closed.is_err(), "{name}");
        if !packed.open() {
            continue;
        }
        opened += 1;
        let source = SourceBatch::new(&[vec![5, 6, 7]], &VOCABULARIES.source, &device());
        let target = TargetBatch::new(&[vec![8, 9]], &VOCABULARIES.target, &device());
        let seen = |packed: &dyn Packed| {
            let (mut encoder, mut decoder) = (Look::new(4), Look::new(3));
            decoder.source = Some(4);
            let seen = packed.observe(&source, &target, &mut encoder, &mut decoder);
            seen.unwrap();
            let maps = encoder.maps().chain(decoder.maps());
            maps.map(|map| map.weights).collect::<Vec<_>>()
        };
        let looked = model.look(&source, &target).unwrap();
        let all = [looked.encoder, looked.decoder, looked.cross].concat();
        for (a, b) in seen(packed).iter().zip(&all) {
            let bound = distance(a, &numbers(b));
            assert!(bound < 1e-5, "{name}: {bound}");
        }
        let again = prepared.translate(&sources(), &beam, &device());
        for (a, b) in plain.iter().flatten().zip(again.iter().flatten()) {
            assert_eq!(a.tokens, b.tokens, "{name}");
            assert!((a.score - b.score).abs() < 1e-4, "{name}");
        }
        let hide = HeadChange::Hide { query: 1, key: 0 };
        for (encoder, decoder, map) in [
            (vec![head(0, false, 0, hide.clone())], vec![], 0),
            (vec![], vec![head(0, true, 0, hide)], all.len() * 2 / 3),
        ] {
            let packed = prepared.packed_mut().unwrap();
            packed.change_heads(encoder, decoder).unwrap();
            let row = &seen(packed)[map][4..8];
            let sum: f32 = row.iter().sum();
            assert!(row[0] == 0.0 && (sum - 1.0).abs() < 1e-5, "{name}: {row:?}");
            let changed = prepared.translate(&sources(), &beam, &device());
            assert_ne!(changed, again, "{name}");
        }
        let packed = prepared.packed_mut().unwrap();
        let beyond = packed.change_heads(vec![], vec![head(99, false, 0, HeadChange::Off)]);
        assert!(beyond.is_err(), "{name}");
        packed.change_heads(vec![], vec![]).unwrap();
        assert_eq!(prepared.translate(&sources(), &beam, &device()), again);
    }
    assert!(opened > 2, "{opened}");
}
