//! Models as training begins with them: what is trained here computes what they compute.

use burn::tensor::{Device, Int, Tensor};
use regard_kernels::Kind;
use regard_models::{
    Stepper, TextModel,
    language::{PlainTextModel, TransformerLm},
    pretrained::{Folder, Input, LanguageModel, TextEncoder, Trainable, WordStates},
    scoring::CausalModel,
};
use regard_nn::{Observe, dropout::DropoutRng, mask::PaddingMask};

use super::{Golden, close, copied, open};

fn built(case: &str, found: &Trainable) -> TransformerLm {
    let model = found.clone().language_model(&Device::flex());
    model.unwrap_or_else(|error| panic!("{case}: {error}"))
}

fn trainable(case: &str) -> Trainable {
    Trainable::open(&open(case)).unwrap_or_else(|error| panic!("{case}: {error}"))
}

/// `[1, tokens]` with a position of padding, which nothing sees.
fn batch(ids: &[u32]) -> (Tensor<2, Int>, PaddingMask) {
    let device = Device::flex();
    let (length, padded) = (ids.len(), ids.len() + 1);
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).chain([0]).collect();
    let ids: Tensor<1, Int> = Tensor::from_ints(ids.as_slice(), &device);
    let keep = PaddingMask::from_lengths(&[length], padded, &device);
    (ids.unsqueeze_dim(1), keep) // [time, 1]
}

fn numbers(tensor: Tensor<2>, tokens: usize) -> Vec<f32> {
    let [_, width] = tensor.dims();
    let mut numbers: Vec<f32> = tensor.into_data().iter().collect();
    numbers.truncate(tokens * width);
    numbers
}

#[test]
fn encoders_have_the_same_states() {
    for case in [
        "bert",
        "bert-first",
        "bert-classes",
        "distilbert",
        "roberta",
    ] {
        let found = trainable(case);
        let model = built(case, &found);
        let original = TextEncoder::open(&open(case), None).unwrap();
        assert_eq!((found.causal, found.context), (false, original.context()));
        let golden = Golden::of(case);
        for (ids, mask) in golden.rows("ids").iter().zip(golden.rows("attention_mask")) {
            // What is padding there is not read here.
            let kept = ids.iter().zip(mask).filter(|(_, mask)| *mask == 1);
            let ids: Vec<_> = kept.map(|(&id, _)| id).collect();
            let ids = &ids[..ids.len().min(found.context - 1)];
            let input = Input {
                ids,
                ..Input::default()
            };
            let (tensor, keep) = batch(ids);
            let noise = &mut DropoutRng::none();
            let read = model
                .transformer
                .forward(tensor, &keep, Observe::Nothing, noise);
            let states = numbers(read.states.squeeze_dim(0), ids.len());
            close(
                case,
                &states,
                &original.states(&[input], None).unwrap()[0],
                1e-4,
            );
        }
    }
}

/// As they read on a card, by plain operations: texts of any lengths together, and those that are observed by the kernels.
#[test]
fn encoders_read_by_plain_operations() {
    for case in ["bert", "distilbert", "roberta", "clip"] {
        let original = TextEncoder::open(&open(case), None).unwrap();
        let mut moved = original.clone();
        moved.compute_on(&Device::flex()).unwrap();
        let ids: Vec<u32> = (0..original.context() as u32)
            .map(|at| 3 + at % 7)
            .collect();
        let types: Vec<u32> = ids.iter().map(|id| id % 2).collect();
        let lengths = [3, 1, 0, ids.len(), 4, ids.len() - 1, 2];
        let texts = lengths.map(|length| Input {
            ids: &ids[..length],
            types: if case == "bert" {
                &types[..length]
            } else {
                &[]
            },
            global: None,
        });
        let expected = original.states(&texts, None).unwrap();
        let found = moved.states(&texts, None).unwrap();
        assert_eq!(moved.states(&[], None).unwrap(), Vec::<Vec<f32>>::new());
        for (found, expected) in found.iter().zip(&expected) {
            close(case, found, expected, 1e-4);
        }
        let mut observer = WordStates::new(vec![0]);
        let observed = moved.states(&texts[..1], Some(&mut observer)).unwrap();
        assert_eq!(observed, original.states(&texts[..1], None).unwrap());
        assert!(observer.points().count() > 0);
    }
    let mut other = TextEncoder::open(&open("longformer"), None).unwrap();
    let error = other.compute_on(&Device::flex()).unwrap_err();
    assert!(error.to_string().contains("global tokens"), "{error}");
}

#[test]
fn language_models_have_the_same_logits() {
    for case in [
        "gemma3",
        "gpt2",
        "gpt2-first",
        "llama",
        "llama-biases",
        "llama-linear",
        "llama-llama3",
        "mistral",
        "qwen2",
        "qwen3",
    ] {
        let found = trainable(case);
        assert!(found.causal);
        let rows = found.vocabulary();
        let models = [
            built(case, &found),
            // A token more: all others as before.
            built(case, &found.clone().with_vocabulary(rows + 1)),
        ];
        let original = LanguageModel::open(&open(case), None).unwrap();
        for ids in Golden::of(case).rows("ids") {
            let expected = original.logits(&ids).unwrap();
            for (more, model) in models.iter().enumerate() {
                let (tensor, keep) = batch(&ids);
                let scored = TextModel::forward(model, tensor, &keep, &mut DropoutRng::none());
                let logits = scored.output.logits(scored.readout);
                let logits = logits.narrow(1, 0, rows);
                let found = numbers(logits, ids.len());
                close(&format!("{case}, {more} more"), &found, &expected, 1e-4);
            }
        }
    }
}

/// As they write on a card: a prompt that is read at once, then token by token.
#[test]
fn language_models_write_by_plain_operations() {
    for case in [
        "gemma3",
        "gpt2",
        "llama",
        "llama-llama3",
        "mistral",
        "qwen2",
        "qwen3",
    ] {
        let found = trainable(case);
        let (context, model) = (found.context, built(case, &found));
        let plain = PlainTextModel::new(model.into(), &Device::flex()).unwrap();
        let plain = plain.with_context(context);
        let original = LanguageModel::open(&open(case), None).unwrap();
        assert_eq!(CausalModel::context(&plain), original.context());
        let (mut written, mut expected) = (vec![], vec![]);
        for ids in Golden::of(case).rows("ids") {
            let (before, last) = ids.split_at(ids.len() - 2);
            let mut steps = plain.read(&[before], Kind::F32).unwrap();
            let mut packed = CausalModel::read(&original, &[before], Kind::F32).unwrap();
            for &id in last {
                steps.step(&[id], &mut written);
                packed.step(&[id], &mut expected);
                close(case, &written, &expected, 1e-4);
            }
        }
    }
}

#[test]
fn a_smaller_vocabulary_leaves_rows_out() {
    let found = trainable("llama");
    let cut = found.clone().with_vocabulary(5).arrays;
    let width = found.transformer.d_model;
    assert_eq!(cut["transformer.tokens.weight"].shape, [5, width]);
    assert_eq!(cut["output.weight"].shape, [width, 5]);
    let (whole, cut) = (&found.arrays["output.weight"], &cut["output.weight"]);
    assert_eq!(whole.values[whole.shape[1]..][..5], cut.values[5..10]);
}

/// What a configuration cannot say is refused by name, not left out.
#[test]
fn other_parts_are_refused() {
    for (case, part) in [
        ("gemma2", "logits have a softcap"),
        ("gpt2-scaled", "blocks differ"),
        ("llama-dynamic", "rotary positions are scaled"),
        ("llama-yarn", "rotary positions are scaled"),
        ("qwen2-window", "blocks differ"),
        ("longformer", "global tokens"),
        ("t5", "a family of encoders or of language models"),
    ] {
        let error = Trainable::open(&open(case)).unwrap_err().to_string();
        assert!(
            error.contains(part) && error.contains("config.json"),
            "{case}: {error}"
        );
    }
}

/// Padding beyond the table of positions leaves no position for a token.
#[test]
fn a_table_without_positions_is_refused() {
    let copy = copied("roberta");
    let path = copy.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let changed = text.replace("\"pad_token_id\": 1", "\"pad_token_id\": 4000");
    assert_ne!(text, changed);
    std::fs::write(&path, changed).unwrap();
    let error = Trainable::open(&Folder::open(copy.path()).unwrap()).unwrap_err();
    assert!(error.to_string().contains("table of 16 rows"), "{error}");
}
