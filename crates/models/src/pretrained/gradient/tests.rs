//! Gradients of each attention weight against finite differences in `f64`, on small models of every family, and against what the kernels
//! compute. The weights of the models are `f32` in both.

use std::path::PathBuf;

use regard_kernels::{loss, matmul::Storage};

use super::*;
use crate::pretrained::{Folder, Look};

/// How far a weight is moved to either side.
const STEP: f64 = 1e-4;

/// How many weights of a model are moved, one after another.
const MOVED: usize = 80;

fn open(case: &str) -> Folder {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pretrained");
    Folder::open(tests.join(case)).unwrap_or_else(|error| panic!("{case}: {error}"))
}

fn double() -> On {
    On {
        dtype: DType::F64,
        ..On::new(&Device::flex())
    }
}

fn near(found: f64, expected: f64, tolerance: f64, what: &str) {
    let error = (found - expected).abs();
    assert!(
        error <= tolerance * expected.abs().max(1.0),
        "{what}: {found}, expected {expected}"
    );
}

/// The maps in the order in which a model attends.
fn calls(found: &OutputGradients) -> Vec<&WeightGradients> {
    let decoder = found.own.iter().enumerate();
    let decoder = decoder.flat_map(|(layer, own)| [Some(own), found.cross.get(layer)]);
    found.source.iter().chain(decoder.flatten()).collect()
}

/// Moves single weights: the log probability must move as their gradients say, and the usual precision must give the same numbers.
fn moves(
    case: &str,
    run: &dyn Fn(On) -> Result<OutputGradients, GradientError>,
) -> OutputGradients {
    let exact = run(double()).unwrap();
    let maps = calls(&exact);
    let all: usize = maps.iter().map(|map| map.gradients.len()).sum();
    let (mut number, mut largest) = (0, 0.0f64);
    for (call, map) in maps.iter().enumerate() {
        for index in 0..map.gradients.len() {
            number += 1;
            if number % (all / MOVED).max(1) != 0 {
                continue;
            }
            let moved = |by: f64| {
                let mut on = double();
                let added = maps[..=call].iter().map(|one| {
                    let [heads, queries, keys] = one.shape;
                    vec![0.0f64; heads * queries * keys]
                });
                let mut added: Vec<Vec<f64>> = added.collect();
                added[call][index] = by;
                let tensors = added.into_iter().zip(&maps).map(|(values, one)| {
                    let [heads, queries, keys] = one.shape;
                    let data = TensorData::new(values, [1, heads, queries, keys]);
                    Tensor::from_data(data, (&on.device, on.dtype))
                });
                on.added = tensors.collect();
                run(on).unwrap().log_probability
            };
            let difference = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            let gradient = f64::from(map.gradients[index]);
            near(
                gradient,
                difference,
                1e-5,
                &format!("{case}: weight {index} of call {call}"),
            );
            largest = largest.max(difference.abs());
        }
    }
    assert!(largest > 1e-3, "{case}: no weight mattered");
    let usual = run(On::new(&Device::flex())).unwrap();
    near(usual.log_probability, exact.log_probability, 1e-4, case);
    for (a, b) in calls(&usual).iter().zip(maps) {
        assert_eq!(a.shape, b.shape, "{case}");
        for (a, b) in a.products().iter().zip(b.products()) {
            near((*a).into(), b.into(), 1e-3, case);
        }
    }
    exact
}

/// The weights are those that the kernels look at, and where there is none, nothing is lost.
fn looks(case: &str, maps: &[WeightGradients], seen: Look, cross: bool) {
    let seen: Vec<_> = seen.maps().filter(|seen| seen.cross == cross).collect();
    assert_eq!(seen.len(), maps.len(), "{case}");
    for (map, seen) in maps.iter().zip(seen) {
        assert_eq!(map.weights.len(), seen.weights.len(), "{case}");
        for ((a, b), product) in map.weights.iter().zip(seen.weights).zip(map.products()) {
            near((*a).into(), b.into(), 1e-4, case);
            assert!(*a != 0.0 || product == 0.0, "{case}");
        }
    }
}

#[test]
fn a_language_models_gradients_are_its_differences() {
    let text = [3, 7, 5, 9, 4];
    let wanted = [(1, 5), (4, 8)];
    for case in [
        "gpt2",
        "gpt2-scaled",
        "llama",
        "llama-yarn",
        "llama-dynamic",
        "mistral",
        "gemma2",
        "gemma3",
        "qwen2-window",
        "qwen3",
        "phi3",
    ] {
        let model = LanguageModel::open(&open(case), Some(Storage::F32)).unwrap();
        let found = moves(case, &|on| model.gradients_on(&text, &wanted, on));
        let mut logits = model.logits(&text).unwrap();
        let classes = model.vocabulary();
        loss::log_softmax(&mut logits, classes);
        let sum = wanted.map(|(place, token)| f64::from(logits[place * classes + token as usize]));
        near(found.log_probability, sum.iter().sum(), 1e-4, case);
        let mut look = Look::new(text.len());
        model
            .begin(1, Default::default())
            .read(&[&text], Some(&mut look))
            .unwrap();
        looks(case, &found.own, look, false);
    }
}

#[test]
fn an_encoders_gradients_are_its_differences() {
    let ids = [2, 7, 5, 9, 4, 3];
    let class = EncoderOutput::Class(1);
    let token = EncoderOutput::Token { place: 2, token: 6 };
    for (case, output) in [
        ("bert", token),
        ("roberta", token),
        ("distilbert", token),
        ("bert-classes", class),
        ("distilbert-classes", class),
    ] {
        let text = Input {
            ids: &ids,
            types: match case.starts_with("bert") {
                true => &[0, 0, 0, 1, 1, 1],
                false => &[0; 6], // there is one type, or none
            },
            global: None,
        };
        let model = TextEncoder::open(&open(case), Some(Storage::F32)).unwrap();
        let found = moves(case, &|on| model.gradients_on(text, output, on));
        let mut look = Look::new(ids.len());
        let states = model.states(&[text], Some(&mut look)).unwrap();
        let (place, wanted) = match output {
            EncoderOutput::Token { place, token } => (place, token as usize),
            EncoderOutput::Class(class) => (0, class),
        };
        let mut scores = model
            .outputs(&states[0][place * model.size()..][..model.size()])
            .unwrap();
        let count = scores.len();
        loss::log_softmax(&mut scores, count);
        near(found.log_probability, scores[wanted].into(), 1e-4, case);
        looks(case, &found.own, look, false);
    }
}

#[test]
fn an_encoder_decoders_gradients_are_its_differences() {
    let (source, written) = ([5, 7, 9, 3], [4, 6, 5]);
    for case in ["t5", "t5-gated", "bart", "marian"] {
        let model = Seq2SeqModel::open(&open(case), Some(Storage::F32)).unwrap();
        let found = moves(case, &|on| model.gradients_on(&source, &written, on));
        let (mut reads, mut writes) = (Look::new(source.len()), Look::new(written.len()));
        writes.source = Some(source.len());
        let encoded = model.encode(&[&source], Some(&mut reads)).unwrap();
        let inputs = [model.writing().start, written[0], written[1]];
        let mut logits = model
            .begin(&encoded, Default::default())
            .logits(&inputs)
            .unwrap();
        let classes = model.decoder().vocabulary();
        loss::log_softmax(&mut logits, classes);
        let each = (0..)
            .zip(written)
            .map(|(row, token): (usize, u32)| f64::from(logits[row * classes + token as usize]));
        near(found.log_probability, each.sum(), 1e-4, case);
        let mut reading = model.begin(&encoded, Default::default());
        reading.read(&[&inputs], Some(&mut writes)).unwrap();
        looks(case, &found.source, reads, false);
        let mut again = Look::new(written.len());
        model
            .begin(&encoded, Default::default())
            .read(&[&inputs], Some(&mut again))
            .unwrap();
        looks(case, &found.own, again, false);
        looks(case, &found.cross, writes, true);
    }
}

#[test]
fn what_has_no_gradients_says_why() {
    let device = Device::flex();
    let model = LanguageModel::open(&open("llama"), Some(Storage::F32)).unwrap();
    let long = vec![3; crate::gradient::MOST_TOKENS + 1];
    let found = model.gradients(&long, &[(0, 3)], &device).unwrap_err();
    assert!(
        found.to_string().contains("expected a shorter one"),
        "{found}"
    );
    let is_token =
        |found: &GradientError| matches!(found, GradientError::Input(InputError::Token { .. }));
    let found = model.gradients(&[3], &[(0, u32::MAX)], &device);
    assert!(is_token(&found.unwrap_err()));
    let found = model.gradients(&[3], &[(1, 3)], &device).unwrap_err();
    assert!(
        found.to_string().contains("a place beyond the text"),
        "{found}"
    );
    let ids = [2, 7, 5];
    let text = Input {
        ids: &ids,
        ..Input::default()
    };
    for (case, output, said) in [
        (
            "longformer-classes",
            EncoderOutput::Class(0),
            "global tokens",
        ),
        ("bert-tokens", EncoderOutput::Class(0), "no probability"),
        (
            "bert",
            EncoderOutput::Token { place: 9, token: 1 },
            "a place beyond the text",
        ),
    ] {
        let model = TextEncoder::open(&open(case), Some(Storage::F32)).unwrap();
        let found = model.gradients(text, output, &device).unwrap_err();
        assert!(found.to_string().contains(said), "{case}: {found}");
    }
    let model = TextEncoder::open(&open("bert"), Some(Storage::F32)).unwrap();
    let token = model.vocabulary() as u32;
    let output = EncoderOutput::Token { place: 1, token };
    let found = model.gradients(text, output, &device).unwrap_err();
    assert!(is_token(&found));
}
