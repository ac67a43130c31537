//! Outputs and gradients of the recurrent modules and the loss against PyTorch: `../golden/nn_golden.py` and its output.

use crate::support::{Case, GoldenFile, device};
use burn::tensor::{Bool, Int, Tensor};
use regard_nn::{
    bridge::{cross_entropy, cross_entropy_mean},
    dropout::DropoutRng,
    initialize::Initializer,
    mask::PaddingMask,
    recurrent::{Direction, Gru, LstmStack, LstmState, Reset},
};

const TIME: usize = 4;
const BATCH: usize = 3;
const INPUT: usize = 5;
const SIZE: usize = 7;
const LENGTHS: [usize; BATCH] = [4, 2, 3];

fn golden() -> GoldenFile {
    GoldenFile::read(include_bytes!("../golden/nn.safetensors"))
}

fn initializer() -> Initializer {
    Initializer::new(1, &device())
}

fn keep() -> Tensor<2, Bool> {
    PaddingMask::from_lengths(&LENGTHS, TIME, &device()).time_major()
}

/// `states [time, batch, size]` with zeros at padded steps, as in packed sequences.
fn real_steps(states: Tensor<3>) -> Tensor<3> {
    let shape = states.dims();
    let padded = keep().bool_not().unsqueeze_dim::<3>(2).expand(shape);
    states.mask_fill(padded, 0.0)
}

fn direction(case: &Case) -> Direction {
    match case.text("direction") {
        "forward" => Direction::Forward,
        "backward" => Direction::Backward,
        other => panic!("{other}"),
    }
}

fn reset(case: &Case) -> Reset {
    match case.text("reset") {
        "before-product" => Reset::BeforeProduct,
        "after-product" => Reset::AfterProduct,
        other => panic!("{other}"),
    }
}

/// Each case twice: by the fused operation where there is one, and by plain tensor operations.
fn twice<'a>(golden: &'a GoldenFile, kind: &str, expected: usize) -> Vec<(Case<'a>, bool)> {
    let cases = |plain| {
        golden
            .cases(kind)
            .into_iter()
            .map(move |case| (case, plain))
    };
    let cases: Vec<_> = cases(false).chain(cases(true)).collect();
    assert_eq!(cases.len(), 2 * expected);
    cases
}

#[test]
fn gru_sequences() {
    let golden = golden();
    for (mut case, plain) in twice(&golden, "gru", 4) {
        let gru = case.fill(Gru::new(INPUT, SIZE, reset(&case), &mut initializer()));
        let x = case.leaf("x", [TIME, BATCH, INPUT]);
        let h = case.leaf("h", [BATCH, SIZE]);
        let form = if plain {
            Gru::sequence_plain
        } else {
            Gru::sequence
        };
        let projected = gru.project(x.clone());
        let states = form(&gru, projected, h.clone(), Some(keep()), direction(&case));
        let states = real_steps(states);
        case.output("states", &states);
        let loss = states * case.constant("loss", [TIME, BATCH, SIZE]);
        let gradients = loss.sum().backward();
        case.gradients(&gru, &gradients);
        case.gradient("x", &x, &gradients);
        case.gradient("h", &h, &gradients);
        case.close();
    }
}

#[test]
fn gru_steps_with_context() {
    let golden = golden();
    let cases = golden.cases("gru-context");
    assert_eq!(cases.len(), 2);
    for mut case in cases {
        let gru = case.fill(Gru::new(INPUT, SIZE, reset(&case), &mut initializer()));
        let x = case.leaf("x", [3, BATCH, INPUT]);
        let start = case.leaf("h", [BATCH, SIZE]);
        let context = case.leaf("context", [3, BATCH, 3 * SIZE]);
        let step = |sequence: &Tensor<3>, t| sequence.clone().narrow(0, t, 1).squeeze_dim::<2>(0);
        let (mut h, mut states) = (start.clone(), vec![]);
        for t in 0..3 {
            h = gru.step(gru.project(step(&x, t)), h, Some(step(&context, t)));
            states.push(h.clone());
        }
        let states: Tensor<3> = Tensor::stack(states, 0);
        case.output("states", &states);
        let loss = states * case.constant("loss", [3, BATCH, SIZE]);
        let gradients = loss.sum().backward();
        case.gradients(&gru, &gradients);
        case.gradient("x", &x, &gradients);
        case.gradient("h", &start, &gradients);
        case.gradient("context", &context, &gradients);
        case.close();
    }
}

#[test]
fn lstm_sequences() {
    let golden = golden();
    for (mut case, plain) in twice(&golden, "lstm", 4) {
        let layers = case.number("layers") as usize;
        let stack = case.fill(LstmStack::new(layers, INPUT, SIZE, &mut initializer()).unwrap());
        let x = case.leaf("x", [TIME, BATCH, INPUT]);
        let start: Vec<LstmState> = (0..layers)
            .map(|l| LstmState {
                hidden: case.leaf(&format!("h.{l}"), [BATCH, SIZE]),
                cell: case.leaf(&format!("c.{l}"), [BATCH, SIZE]),
            })
            .collect();
        let direction = direction(&case);
        let (states, last) = match plain {
            false => {
                let start = Some(start.clone());
                let noise = &mut DropoutRng::none();
                stack
                    .sequence(x.clone(), start, Some(keep()), direction, 0.0, noise)
                    .unwrap()
            }
            true => {
                let (mut below, mut last) = (x.clone(), vec![]);
                for (layer, state) in stack.layers.iter().zip(start.clone()) {
                    let x = layer.project(below);
                    let (states, state) = layer.sequence_plain(x, state, Some(keep()), direction);
                    below = states;
                    last.push(state);
                }
                (below, last)
            }
        };
        let states = real_steps(states);
        let stacked = |part: fn(&LstmState) -> Tensor<2>| -> Tensor<3> {
            Tensor::stack(last.iter().map(part).collect(), 0)
        };
        let hidden = stacked(|state| state.hidden.clone());
        let cell = stacked(|state| state.cell.clone());
        case.output("states", &states);
        case.output("hidden", &hidden);
        case.output("cell", &cell);
        let loss = (states * case.constant("loss", [TIME, BATCH, SIZE])).sum()
            + (hidden * case.constant("loss.h", [layers, BATCH, SIZE])).sum()
            + (cell * case.constant("loss.c", [layers, BATCH, SIZE])).sum();
        let gradients = loss.backward();
        case.gradients(&stack, &gradients);
        case.gradient("x", &x, &gradients);
        for (l, state) in start.iter().enumerate() {
            case.gradient(&format!("h.{l}"), &state.hidden, &gradients);
            case.gradient(&format!("c.{l}"), &state.cell, &gradients);
        }
        case.close();
    }
}

#[test]
fn smoothed_cross_entropy() {
    let golden = golden();
    let cases = golden.cases("cross-entropy");
    assert_eq!(cases.len(), 6);
    for mut case in cases {
        let logits = case.leaf("logits", [7, 11]);
        let targets: Vec<i32> =
            serde_json::from_value(case.description["targets"].clone()).unwrap();
        let kept = targets.iter().filter(|&&target| target != 0).count();
        let targets = Tensor::<1, Int>::from_ints(targets.as_slice(), &device());
        let smoothing = case.number("smoothing") as f32;
        let result = match case.description["mean"].as_bool().unwrap() {
            true => cross_entropy_mean(logits.clone(), targets, 0, smoothing),
            false => cross_entropy(logits.clone(), targets, 0, smoothing),
        };
        assert_eq!(result.tokens, kept);
        case.output("loss", &result.loss);
        case.output(
            "nll",
            &Tensor::<1>::from_floats([result.nll as f32], &device()),
        );
        let gradients = result.loss.backward();
        case.gradient("logits", &logits, &gradients);
        case.close();
    }
}
