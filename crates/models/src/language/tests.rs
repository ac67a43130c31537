use burn::tensor::{Device, Int, Tensor, TensorData};
use regard_kernels::Kind;
use regard_nn::{dropout::DropoutRng, transformer::NormPlace};

use super::*;
use crate::{
    AnyTextModel, Objective, Stepper, TextBatch, Vocabulary,
    pretrained::{Input, PackedText},
    role::AnyModelConfig,
    scoring::{CausalModel, teacher_forced},
    transformer::{Norm, Positions},
};

const VOCABULARY: Vocabulary = Vocabulary::new(20);

fn transformer(change: impl FnOnce(&mut TransformerLmConfig)) -> TransformerLmConfig {
    let mut config = TransformerLmConfig::tiny();
    change(&mut config);
    config
}

fn configs() -> Vec<(&'static str, Box<dyn AnyModelConfig<AnyTextModel>>)> {
    vec![
        ("transformer", Box::new(TransformerLmConfig::tiny())),
        (
            "llama-like",
            Box::new(transformer(|config| {
                config.tie = false;
                config.transformer.norm = Norm::Rms;
                config.transformer.positions = Positions::Rotary;
                config.transformer.key_value_heads = Some(1);
                config.transformer.activation = regard_nn::transformer::Activation::Swiglu;
                config.transformer.bias = false;
                config.transformer.window = Some(4);
            })),
        ),
        (
            "sinusoidal, post-norm",
            Box::new(transformer(|config| {
                config.transformer.positions = Positions::Sinusoidal;
                config.transformer.norm_place = NormPlace::Post;
                config.transformer.embedding_norm = true;
            })),
        ),
        (
            "alibi",
            Box::new(transformer(|config| {
                config.transformer.positions = Positions::Alibi;
            })),
        ),
        (
            "buckets",
            Box::new(transformer(|config| {
                config.transformer.positions = Positions::Buckets;
            })),
        ),
        ("lstm", Box::new(LstmLmConfig::tiny())),
        ("lstmn", Box::new(LstmnLmConfig::tiny())),
    ]
}

fn built(config: &dyn AnyModelConfig<AnyTextModel>) -> AnyTextModel {
    config.build(&VOCABULARY, 3, &Device::flex()).unwrap()
}

/// The logits of every position of a text, `[time][vocabulary]`.
fn logits(model: &AnyTextModel, text: &[u32]) -> Vec<Vec<f32>> {
    let batch = TextBatch::new(
        &[(text.to_vec(), text.to_vec())],
        &VOCABULARY,
        &Device::flex(),
    );
    let scored = model.forward(batch.inputs, &batch.keep, &mut DropoutRng::none());
    let all: Vec<f32> = scored.logits().into_data().iter().collect();
    all.chunks(VOCABULARY.size).map(<[f32]>::to_vec).collect()
}

fn expect_near(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        let error = (found - expected).abs();
        assert!(
            error <= 2e-5 * (1.0 + expected.abs()),
            "{what}: {found} {expected}"
        );
    }
}

const TEXT: [u32; 9] = [5, 9, 13, 7, 7, 19, 6, 11, 5];

#[test]
fn steps_and_packed_weights_give_the_logits_of_a_whole_pass() {
    for (name, config) in configs() {
        let model = built(&*config);
        let whole = logits(&model, &TEXT);
        let mut state = model.begin(2, &Device::flex()).unwrap();
        for (t, &id) in TEXT.iter().enumerate() {
            let other = TEXT[TEXT.len() - 1 - t];
            let ids = TensorData::new(vec![other as i32, id as i32], [2]);
            let ids = Tensor::<1, Int>::from_data(ids, &Device::flex());
            let (output, next) = model.step(ids, state);
            state = next;
            let rows: Vec<f32> = output.logits.into_data().iter().collect();
            expect_near(&rows[VOCABULARY.size..], &whole[t], name);
        }
        match (model.pack(), name) {
            (
                Some(PackedText::Writes(packed)),
                "transformer" | "llama-like" | "sinusoidal, post-norm" | "alibi" | "buckets",
            ) => {
                expect_near(&packed.logits(&TEXT).unwrap(), &whole.concat(), name);
                let mut reading = packed.begin(1, Kind::F32);
                reading.read(&[&TEXT[..4]], None).unwrap();
                expect_near(
                    &reading.logits(&TEXT[4..]).unwrap(),
                    &whole[4..].concat(),
                    name,
                );
            }
            (None, "lstm" | "lstmn") => {}
            (packed, _) => panic!("{name}: {packed:?}"),
        }
    }
}

/// A text that is read in parts gives the state of its steps, and tells how far it is.
#[test]
fn a_text_is_read_in_parts() {
    let device = Device::flex();
    for (name, config) in configs() {
        let model = built(&*config);
        let whole = logits(&model, &TEXT);
        let mut state = model.begin(2, &device).unwrap();
        for part in [0..3, 3..8] {
            let pairs = part.clone().map(|t| [TEXT[TEXT.len() - 1 - t], TEXT[t]]);
            let ids: Vec<i32> = pairs.flatten().map(|id| id as i32).collect();
            let ids = Tensor::from_data(TensorData::new(ids, [part.len(), 2]), &device);
            state = model.read(ids, state);
        }
        let last = Tensor::<1, Int>::from_ints([TEXT[0] as i32, TEXT[8] as i32], &device);
        let rows: Vec<f32> = model
            .step(last, state)
            .0
            .logits
            .into_data()
            .iter()
            .collect();
        expect_near(&rows[VOCABULARY.size..], &whole[8], name);
    }
    let plain = PlainTextModel::new(built(&LstmLmConfig::tiny()), &device).unwrap();
    let (long, mut told) = (vec![7; 600], vec![]);
    let texts: [&[u32]; 2] = [&long, &TEXT];
    let read = plain.read_telling(&texts, Kind::F32, &mut |done| told.push(done));
    let mut logits = vec![];
    read.unwrap().step(&[5, 5], &mut logits);
    assert_eq!(logits.len(), 2 * VOCABULARY.size);
    assert_eq!(told, [256, 512, 600, 609]);
}

/// Rows of several lengths are each as alone, to the last bit, and nearly so where those of one length are read together, as on a card; also
/// after some are chosen, more than once or in another order.
#[test]
fn rows_are_as_each_alone() {
    for (name, config) in configs() {
        for together in [false, true] {
            let plain = PlainTextModel::new(built(&*config), &Device::flex());
            let mut plain = plain.unwrap();
            plain.together = together;
            let reversed: Vec<u32> = TEXT.iter().rev().copied().collect();
            let texts: [&[u32]; 4] = [&TEXT[..5], &TEXT, &reversed[..5], &reversed];
            let alone = |text| plain.read(&[text], Kind::F32).unwrap();
            let mut alone = texts.map(alone);
            let mut rows = plain.read(&texts, Kind::F32).unwrap();
            let mut logits = vec![];
            let mut expect = |rows: &mut dyn Stepper, from: &[usize], id: u32| {
                rows.step(&vec![id; from.len()], &mut logits);
                let expected = alone.each_mut().map(|steps| {
                    let mut logits = vec![];
                    steps.step(&[id], &mut logits);
                    logits
                });
                for (&row, found) in from.iter().zip(logits.chunks_exact(VOCABULARY.size)) {
                    match together {
                        true => expect_near(found, &expected[row], name),
                        false => assert_eq!(found, expected[row], "{name}, row {row}"),
                    }
                }
            };
            expect(&mut *rows, &[0, 1, 2, 3], 5);
            rows.select(&[3, 0, 0, 1], false);
            expect(&mut *rows, &[3, 0, 0, 1], 6);
            rows.select(&[2, 0], false);
            expect(&mut *rows, &[0, 3], 7);
        }
    }
}

/// Logits come in parts, of a text of any length, and are those of the whole.
#[test]
fn predictions_come_in_parts() {
    let plain = PlainTextModel::new(built(&LstmLmConfig::tiny()), &Device::flex()).unwrap();
    let text: Vec<u32> = (0..600).map(|t| 4 + t % 16).collect();
    let whole = logits(plain.model(), &text).concat();
    for first in [0, 300, 599, 600, 700] {
        let (mut next, mut found) = (first, vec![]);
        let read = plain.predict(&text, first, &mut |at, logits| {
            assert_eq!(at, next);
            assert!(logits.len() <= 256 * VOCABULARY.size);
            next += logits.len() / VOCABULARY.size;
            found.extend_from_slice(logits);
        });
        read.unwrap();
        let from = first.min(text.len()) * VOCABULARY.size;
        expect_near(&found, &whole[from..], &format!("from {first}"));
    }
    // A token with none before it.
    teacher_forced(&plain, &[7], 1, |_, _| panic!("nothing to predict")).unwrap();
}

#[test]
fn a_causal_model_does_not_see_what_comes_later_and_padding_changes_nothing() {
    for (name, config) in configs() {
        let model = built(&*config);
        let whole = logits(&model, &TEXT);
        let mut other = TEXT;
        other[6] = 17;
        let changed = logits(&model, &other);
        expect_near(&changed[..6].concat(), &whole[..6].concat(), name);
        assert_ne!(changed[6], whole[6], "{name}");
        let texts = [TEXT[..4].to_vec(), TEXT.to_vec()].map(|ids| (ids.clone(), ids));
        let batch = TextBatch::new(&texts, &VOCABULARY, &Device::flex());
        let scored = model.forward(batch.inputs, &batch.keep, &mut DropoutRng::none());
        let all: Vec<f32> = scored.logits().into_data().iter().collect();
        for (t, expected) in whole[..4].iter().enumerate() {
            expect_near(
                &all[2 * t * VOCABULARY.size..][..VOCABULARY.size],
                expected,
                name,
            );
        }
    }
}

#[test]
fn a_masked_model_sees_both_sides_and_packs_into_an_encoder() {
    for embedding_norm in [false, true] {
        let config = transformer(|config| {
            config.objective = Objective::Masked;
            config.transformer.embedding_norm = embedding_norm;
        });
        let model = built(&config);
        assert!(model.begin(1, &Device::flex()).is_none());
        let whole = logits(&model, &TEXT);
        let mut other = TEXT;
        other[6] = 17;
        assert_ne!(logits(&model, &other)[0], whole[0]);
        let Some(PackedText::Reads(packed)) = model.pack() else {
            panic!("an encoder");
        };
        let input = Input {
            ids: &TEXT,
            types: &[],
            ..Default::default()
        };
        let states = packed.states(&[input], None).unwrap();
        let found = packed.outputs(&states[0]).unwrap();
        expect_near(&found, &whole.concat(), "masked");
    }
}
