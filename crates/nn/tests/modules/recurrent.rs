//! Recurrent sequences: step by step equals at once, padding changes nothing, dropout can be replayed.

use crate::support::{device, gradients, numbers, values};
use burn::tensor::{Bool, Tensor, TensorData};
use proptest::prelude::*;
use regard_nn::{
    AttentionError,
    bridge::{
        add_dropout, gru_reset, gru_step, gru_update, lstm_step, relu_dropout, without_kernels,
    },
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
    mask::PaddingMask,
    recurrent::{Direction, Gru, Lstm, LstmStack, LstmState, Reset},
};

const INPUT: usize = 3;

fn drawn<const D: usize>(name: &str, shape: [usize; D], scale: f32) -> Tensor<D> {
    let data = TensorData::new(values(name, shape.iter().product(), scale), shape);
    Tensor::from_data(data, &device())
}

fn step(sequence: &Tensor<3>, t: usize) -> Tensor<2> {
    sequence.clone().narrow(0, t, 1).squeeze_dim(0)
}

fn distance<const D: usize>(a: &Tensor<D>, b: &Tensor<D>) -> f32 {
    (a.clone() - b.clone()).abs().max().into_scalar()
}

/// A tensor's sentence `b`, cut to `length`: `[length, 1, size]`.
fn sentence(x: &Tensor<3>, b: usize, length: usize) -> Tensor<3> {
    x.clone().narrow(0, 0, length).narrow(1, b, 1)
}

fn keep(lengths: &[usize], length: usize) -> Tensor<2, Bool> {
    PaddingMask::from_lengths(lengths, length, &device()).time_major()
}

fn directions() -> impl Strategy<Value = Direction> {
    prop::sample::select(vec![Direction::Forward, Direction::Backward])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    /// A padded batch gives each sentence the states it has alone; a padded step passes the state on
    /// unchanged; the gradients add up; numbers in the padding have no influence.
    #[test]
    fn gru_with_padding_is_each_sentence_alone(
        lengths in prop::collection::vec(1usize..6, 1..5),
        size in prop::sample::select(vec![1usize, 3, 8, 17, 40]),
        reset in prop::sample::select(vec![Reset::BeforeProduct, Reset::AfterProduct]),
        direction in directions(),
    ) {
        let (time, batch) = (lengths.iter().copied().max().unwrap(), lengths.len());
        let gru = Gru::new(INPUT, size, reset, &mut Initializer::new(3, &device()));
        let x = drawn("x", [time, batch, INPUT], 2.0);
        let h = drawn("h", [batch, size], 1.0);
        let weights = drawn("loss", [time, batch, size], 1.0);
        let states = gru.sequence(gru.project(x.clone()), h.clone(), Some(keep(&lengths, time)), direction);

        let mut total: Option<Tensor<1>> = None;
        for (b, &length) in lengths.iter().enumerate() {
            let start = h.clone().narrow(0, b, 1);
            let alone =
                gru.sequence(gru.project(sentence(&x, b, length)), start.clone(), None, direction);
            let within = sentence(&states, b, length);
            prop_assert!(distance(&alone, &within) <= 16.0 * f32::EPSILON);
            let carried = match direction {
                Direction::Forward => alone.clone().narrow(0, length - 1, 1).reshape([1, size]),
                Direction::Backward => start,
            };
            for t in length..time {
                let padded = step(&states, t).narrow(0, b, 1);
                prop_assert!(distance(&padded, &carried) <= 16.0 * f32::EPSILON);
            }
            let loss = (alone * sentence(&weights, b, length)).sum();
            total = Some(match total { Some(total) => total + loss, None => loss });
        }
        let alone = gradients(&gru, &total.unwrap().backward());

        let real = keep(&lengths, time).unsqueeze_dim::<3>(2).expand([time, batch, size]);
        let within = |x: Tensor<3>| {
            let states = gru.sequence(gru.project(x), h.clone(), Some(keep(&lengths, time)), direction);
            let loss = states * weights.clone().mask_fill(real.clone().bool_not(), 0.0);
            gradients(&gru, &loss.sum().backward())
        };
        let together = within(x.clone());
        for (name, a) in &alone {
            let most = a.values.iter().fold(1.0f32, |most, v| most.max(v.abs()));
            for (a, b) in a.values.iter().zip(&together[name].values) {
                prop_assert!((a - b).abs() <= 32.0 * f32::EPSILON * most, "{name}: {a} {b}");
            }
        }
        let garbage = real.clone().narrow(2, 0, 1).expand([time, batch, INPUT]).bool_not();
        prop_assert!(within(x.mask_fill(garbage, 1e4)) == together);
    }

    /// The LSTM likewise, its last state included.
    #[test]
    fn lstm_with_padding_is_each_sentence_alone(
        lengths in prop::collection::vec(1usize..6, 1..5),
        size in prop::sample::select(vec![1usize, 3, 8, 17, 40]),
        direction in directions(),
    ) {
        let (time, batch) = (lengths.iter().copied().max().unwrap(), lengths.len());
        let lstm = Lstm::new(INPUT, size, &mut Initializer::new(3, &device()));
        let x = drawn("x", [time, batch, INPUT], 2.0);
        let start = LstmState {
            hidden: drawn("h", [batch, size], 1.0),
            cell: drawn("c", [batch, size], 1.0),
        };
        let (states, last) = lstm.sequence(
            lstm.project(x.clone()), start.clone(), Some(keep(&lengths, time)), direction,
        );
        for (b, &length) in lengths.iter().enumerate() {
            let own = LstmState {
                hidden: start.hidden.clone().narrow(0, b, 1),
                cell: start.cell.clone().narrow(0, b, 1),
            };
            let (alone, end) =
                lstm.sequence(lstm.project(sentence(&x, b, length)), own, None, direction);
            let tolerance = 16.0 * f32::EPSILON;
            prop_assert!(distance(&alone, &sentence(&states, b, length)) <= tolerance);
            prop_assert!(distance(&end.hidden, &last.hidden.clone().narrow(0, b, 1)) <= tolerance);
            prop_assert!(distance(&end.cell, &last.cell.clone().narrow(0, b, 1)) <= tolerance);
        }
    }

    /// A whole sequence equals its steps one by one, forward and in the gradients.
    #[test]
    fn sequence_equals_steps(
        time in 1usize..6,
        batch in 1usize..4,
        size in prop::sample::select(vec![1usize, 5, 16, 33]),
        layers in 1usize..4,
        reset in prop::sample::select(vec![Reset::BeforeProduct, Reset::AfterProduct]),
    ) {
        let init = &mut Initializer::new(4, &device());
        let x = drawn("x", [time, batch, INPUT], 2.0);
        let weights = drawn("loss", [time, batch, size], 1.0);
        let loss = |states: &Tensor<3>| (states.clone() * weights.clone()).sum().backward();

        let gru = Gru::new(INPUT, size, reset, init);
        let h = drawn("h", [batch, size], 1.0);
        let at_once = gru.sequence(gru.project(x.clone()), h.clone(), None, Direction::Forward);
        let mut state = h;
        let mut states = vec![];
        for t in 0..time {
            state = gru.step(gru.project(step(&x, t)), state, None);
            states.push(state.clone());
        }
        let stepped: Tensor<3> = Tensor::stack(states, 0);
        prop_assert!(distance(&at_once, &stepped) <= 16.0 * f32::EPSILON);
        let (a, b) = (gradients(&gru, &loss(&at_once)), gradients(&gru, &loss(&stepped)));
        for (name, a) in &a {
            let most = a.values.iter().fold(1.0f32, |most, v| most.max(v.abs()));
            for (a, b) in a.values.iter().zip(&b[name].values) {
                prop_assert!((a - b).abs() <= 32.0 * f32::EPSILON * most, "gru {name}: {a} {b}");
            }
        }

        let stack = LstmStack::new(layers, INPUT, size, init).unwrap();
        let noise = &mut DropoutRng::none();
        let (at_once, last) = stack.sequence(x.clone(), None, None, Direction::Forward, 0.0, noise).unwrap();
        let mut state = stack.zeros(batch, &device());
        let mut states = vec![];
        for t in 0..time {
            let (top, next) = stack.step(step(&x, t), state, &[]).unwrap();
            states.push(top);
            state = next;
        }
        let stepped: Tensor<3> = Tensor::stack(states, 0);
        prop_assert!(distance(&at_once, &stepped) <= 16.0 * f32::EPSILON);
        for (a, b) in last.iter().zip(&state) {
            prop_assert!(distance(&a.hidden, &b.hidden) <= 16.0 * f32::EPSILON);
            prop_assert!(distance(&a.cell, &b.cell) <= 16.0 * f32::EPSILON);
        }
        let (a, b) = (gradients(&stack, &loss(&at_once)), gradients(&stack, &loss(&stepped)));
        for (name, a) in &a {
            let most = a.values.iter().fold(1.0f32, |most, v| most.max(v.abs()));
            for (a, b) in a.values.iter().zip(&b[name].values) {
                prop_assert!((a - b).abs() <= 32.0 * f32::EPSILON * most, "lstm {name}: {a} {b}");
            }
        }
    }

    /// Dropout keeps or zeroes, never anything else, and the same seed drops the same values.
    #[test]
    fn dropout_is_replayed_by_its_seed(seed: u64, probability in 0.05f64..0.95, rows in 1usize..9) {
        let x = drawn("x", [rows, 64], 1.0);
        let run = |seed| numbers(&dropout(x.clone(), probability, &mut DropoutRng::seeded(seed)));
        let dropped = run(seed);
        prop_assert_eq!(&dropped, &run(seed));
        let scale = (1.0 / (1.0 - probability)) as f32;
        for (found, x) in dropped.iter().zip(numbers(&x)) {
            prop_assert!(*found == 0.0 || *found == x * scale);
        }
        let none = dropout(x.clone(), 0.0, &mut DropoutRng::seeded(seed));
        prop_assert_eq!(numbers(&none), numbers(&x));
    }

    /// Some rows of a batch, wherever the batch's axis is, have the noise that they have in the whole batch: of every operation.
    #[test]
    fn rows_of_a_batch_keep_their_noise(seed: u64, batch in 2usize..7, first in 0usize..6, rows in 1usize..6) {
        let first = first.min(batch - 1);
        let rows = first..(first + rows).min(batch);
        let noise = || DropoutRng::seeded(seed);
        let own = || noise().of_rows(rows.clone(), batch);
        let x = drawn("x", [batch, 3, 8], 1.0);
        let cut = |x: Tensor<3>, axis| x.narrow(axis, rows.start, rows.len());
        let part = cut(x.clone(), 0);
        prop_assert_eq!(
            numbers(&dropout(part.clone(), 0.5, &mut own())),
            numbers(&cut(dropout(x.clone(), 0.5, &mut noise()), 0))
        );
        prop_assert_eq!(
            numbers(&relu_dropout(part.clone(), None, 0.5, &mut own())),
            numbers(&cut(relu_dropout(x.clone(), None, 0.5, &mut noise()), 0))
        );
        prop_assert_eq!(
            numbers(&add_dropout(part.clone(), part, None, 0.5, &mut own())),
            numbers(&cut(add_dropout(x.clone(), x.clone(), None, 0.5, &mut noise()), 0))
        );
        let shape = [rows.len(), 3, 8];
        prop_assert_eq!(
            numbers(&own().normal(shape, &device()).unwrap()),
            numbers(&cut(noise().normal([batch, 3, 8], &device()).unwrap(), 0))
        );
        // Time-major; the axis is that of one draw, so that the second one is batch-first again.
        let (mut own, mut noise) = (own(), noise());
        let timed = x.clone().swap_dims(0, 1); // [3, batch, 8]
        let dropped = dropout(cut(timed.clone(), 1), 0.5, own.batch_axis(1));
        let whole = dropout(timed, 0.5, noise.batch_axis(1));
        prop_assert_eq!(numbers(&dropped), numbers(&cut(whole, 1)));
        let dropped = dropout(cut(x.clone(), 0), 0.5, &mut own);
        prop_assert_eq!(numbers(&dropped), numbers(&cut(dropout(x, 0.5, &mut noise), 0)));
    }
}

/// NaN at padded steps reaches neither a state nor a gradient, at once or step by step.
#[test]
fn what_stands_in_the_padding_reaches_nothing() {
    let init = &mut Initializer::new(3, &device());
    let (time, batch, size) = (4, 2, 5);
    let lengths = [4, 2];
    let keep = || Some(keep(&lengths, time));
    let padded = keep().unwrap().bool_not().unsqueeze_dim::<3>(2);
    let run = |x: Tensor<3>, sequence: &dyn Fn(Tensor<3>) -> Tensor<3>| {
        let x = x.require_grad();
        let states = sequence(x.clone());
        let gradients = states.clone().sum().backward();
        [numbers(&states), numbers(&x.grad(&gradients).unwrap())]
    };
    let check = |width: usize, sequence: &dyn Fn(Tensor<3>) -> Tensor<3>| {
        let x = drawn("x", [time, batch, width], 2.0);
        let poisoned = x
            .clone()
            .mask_fill(padded.clone().expand(x.dims()), f32::NAN);
        assert_eq!(run(poisoned, sequence), run(x, sequence));
    };
    for direction in [Direction::Forward, Direction::Backward] {
        for reset in [Reset::BeforeProduct, Reset::AfterProduct] {
            let gru = Gru::new(INPUT, size, reset, init);
            let h = || drawn("h", [batch, size], 1.0);
            check(3 * size, &|x| gru.sequence(x, h(), keep(), direction));
            check(3 * size, &|x| gru.sequence_plain(x, h(), keep(), direction));
            check(3 * size, &|x| {
                without_kernels(|| gru.sequence(x, h(), keep(), direction))
            });
        }
        let lstm = Lstm::new(INPUT, size, init);
        let start = || lstm.zeros(batch, &device());
        check(4 * size, &|x| {
            lstm.sequence(x, start(), keep(), direction).0
        });
        check(4 * size, &|x| {
            lstm.sequence_plain(x, start(), keep(), direction).0
        });
        check(4 * size, &|x| {
            without_kernels(|| lstm.sequence(x, start(), keep(), direction)).0
        });
    }
}

/// The same for single steps, in which single rows may keep their state.
#[test]
fn what_stands_in_a_row_that_is_kept_back_reaches_nothing() {
    let kept = || Some(Tensor::<1, Bool>::from_data([true, false], &device()));
    let poisoned = |name: &str, size: usize| {
        let x = drawn(name, [2, size], 1.0).slice_fill([1..2, 0..size], f32::NAN);
        x.require_grad()
    };
    let check = |next: Tensor<2>, leaves: &[Tensor<2>]| {
        let gradients = next.narrow(0, 0, 1).sum().backward();
        for leaf in leaves {
            let slope = leaf.grad(&gradients).unwrap();
            assert!(numbers(&slope).iter().all(|x| x.is_finite()));
        }
    };
    let run = || {
        let [x, u, h, c] = [("x", 12), ("u", 12), ("h", 3), ("c", 3)].map(|(n, s)| poisoned(n, s));
        let (next, cell) = lstm_step(x.clone(), u.clone(), h, c.clone(), kept());
        check(next + cell, &[x, u, c]);
        let [x, u, h] = [("x", 9), ("u", 9), ("h", 3)].map(|(n, s)| poisoned(n, s));
        let next = gru_step(x.clone(), u.clone(), h.clone(), kept());
        check(next, &[x, u, h]);
        let [x, u, v, h] = [("x", 9), ("u", 6), ("v", 3), ("h", 3)].map(|(n, s)| poisoned(n, s));
        let reset = gru_reset(x.clone(), u.clone(), h.clone(), kept());
        check(reset, &[x.clone(), u.clone(), h.clone()]);
        let next = gru_update(x.clone(), u.clone(), v.clone(), h.clone(), kept());
        check(next, &[x, u, v, h]);
    };
    run();
    without_kernels(run);
}

/// There must be one state of the right size for each layer; a stack must have a layer.
#[test]
fn what_a_stack_refuses() {
    let init = &mut Initializer::new(3, &device());
    let refused = |result: Result<(), AttentionError>, parts: [&str; 2]| {
        let message = result.unwrap_err().to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    };
    let none = LstmStack::new(0, INPUT, 4, init).map(|_| ());
    refused(none, ["`layers` is 0", "at least 1"]);
    let stack = LstmStack::new(3, INPUT, 4, init).unwrap();
    let states = |layers: usize, batch: usize| {
        let mut states = stack.zeros(batch, &device());
        states.truncate(layers);
        states
    };
    let step = |size: usize, states| {
        let x = drawn("x", [2, size], 1.0);
        stack.step(x, states, &[]).map(|_| ())
    };
    refused(
        step(INPUT, states(1, 2)),
        ["`states` is 1", "3, one for each layer"],
    );
    refused(
        step(INPUT, states(3, 1)),
        ["`state.hidden` has shape [1, 4]", "[2, 4]"],
    );
    refused(step(4, states(3, 2)), ["`x` has shape [2, 4]", "[2, 3]"]);
    let sequence = |states, keep, probability: f64| {
        let x = drawn("x", [2, 2, INPUT], 1.0);
        let noise = &mut DropoutRng::none();
        let all = stack.sequence(x, states, keep, Direction::Forward, probability, noise);
        all.map(|_| ())
    };
    refused(
        sequence(Some(states(2, 2)), None, 0.0),
        ["`states` is 2", "3, one for each layer"],
    );
    let narrow = LstmState {
        cell: drawn("c", [2, 3], 1.0),
        ..states(1, 2).remove(0)
    };
    let narrow = vec![narrow; 3];
    refused(
        sequence(Some(narrow), None, 0.0),
        ["`state.cell` has shape [2, 3]", "[2, 4]"],
    );
    refused(
        sequence(None, Some(keep(&[2], 2)), 0.0),
        ["`keep` has shape [2, 1]", "[2, 2]"],
    );
    for probability in [1.0, -1.0, f64::NAN] {
        let found = format!("`dropout_probability` is {probability}");
        refused(
            sequence(None, None, probability),
            [&found, "at least 0 and below 1"],
        );
    }
}

/// A number that is no probability is refused, whether or not anything is dropped.
#[test]
fn what_dropout_refuses() {
    for probability in [1.0, -1.0, f64::NAN, f64::INFINITY] {
        for seeded in [true, false] {
            let noise = || {
                if seeded {
                    DropoutRng::seeded(1)
                } else {
                    DropoutRng::none()
                }
            };
            let x = || drawn("x", [2, 3], 1.0);
            let runs: [&dyn Fn(); 4] = [
                &|| drop(dropout(x(), probability, &mut noise())),
                &|| drop(relu_dropout(x(), None, probability, &mut noise())),
                &|| drop(add_dropout(x(), x(), None, probability, &mut noise())),
                &|| drop(noise().mask([2, 3], probability, &device())),
            ];
            for run in runs {
                let both = [false, true].map(|plain| {
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match plain {
                        true => without_kernels(run),
                        false => run(),
                    }))
                });
                for panic in both {
                    let panic = panic.unwrap_err();
                    let message = panic.downcast_ref::<String>().unwrap();
                    assert!(
                        message.contains(&format!("`probability` is {probability}")),
                        "{message}"
                    );
                }
            }
        }
    }
}
