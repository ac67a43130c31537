//! Recurrent attention: causality, padding, stepping, gradients by finite differences, refusals.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{Bool, DType, Int, Tensor, TensorData},
};
use proptest::prelude::*;
use regard_nn::{
    Attention, AttentionError, Memory,
    dropout::DropoutRng,
    initialize::Initializer,
    mask::PaddingMask,
    normalize::{Estimator, HardSample, Normalize, Reinforce},
    recurrent::{
        AttentiveDecoder, AttentivePooling, AttentiveState, Coverage, Gru, Lstm, LstmStack, Lstmn,
        PointerGenerator, RecurrentCell, Reset, SourceTape, Unrolled, WithAttention, WithPooling,
    },
    score::{Additive, Score},
    weights,
};

use crate::support::{device, gradients, numbers, values};

const INPUT: usize = 3;
const SIZE: usize = 5;
const ATTENTION: usize = 4;
const SOURCE: usize = 6;

fn drawn<const D: usize>(name: &str, shape: [usize; D], scale: f32) -> Tensor<D> {
    let data = TensorData::new(values(name, shape.iter().product(), scale), shape);
    Tensor::from_data(data, &device())
}

fn initializer() -> Initializer {
    Initializer::new(5, &device())
}

fn lstmn() -> Lstmn {
    Lstmn::new(INPUT, SIZE, ATTENTION, &mut initializer())
}

fn deep() -> Lstmn {
    lstmn().with_fusion(SOURCE, ATTENTION, &mut initializer())
}

fn source(batch: usize, positions: usize) -> SourceTape {
    SourceTape {
        hidden: drawn("source.hidden", [batch, positions, SOURCE], 1.0),
        cell: drawn("source.cell", [batch, positions, SIZE], 1.0),
        keep: PaddingMask::from_lengths(&vec![positions; batch], positions, &device()),
    }
}

fn distance<const D: usize>(a: &Tensor<D>, b: &Tensor<D>) -> f32 {
    (a.clone() - b.clone()).abs().max().into_scalar()
}

/// Rounding of a sum of a few dozen numbers of size 1.
const ROUNDING: f32 = 4e-6;

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..Default::default() })]

    /// The result of a step depends on the steps up to it alone, and row `t` of the weights lies before
    /// column `t` and sums to 1.
    #[test]
    fn an_lstmn_sees_only_the_past(time in 1usize..7, at in 0usize..7) {
        let at = at % time;
        let x = drawn("x", [time, 2, INPUT], 2.0);
        let later = drawn("later", [time, 2, INPUT], 2.0);
        let mut changed = vec![x.clone().narrow(0, 0, at + 1)];
        changed.extend((at + 1 < time).then(|| later.narrow(0, at + 1, time - at - 1)));
        let changed = Tensor::cat(changed, 0);
        let network = lstmn();
        let [a, b] = [x, changed].map(|x| network.sequence(x, None, None).unwrap());
        prop_assert_eq!(
            numbers(&a.hidden.narrow(0, 0, at + 1)),
            numbers(&b.hidden.narrow(0, 0, at + 1))
        );
        for row in 0..2 {
            for t in 0..time {
                let row: Vec<f32> = numbers(&a.weights.clone().narrow(0, row, 1).narrow(1, t, 1));
                prop_assert!(row[t..].iter().all(|&w| w == 0.0));
                let expected = if t == 0 { 0.0 } else { 1.0 };
                prop_assert!((row.iter().sum::<f32>() - expected).abs() < 1e-5);
            }
        }
    }

    /// A padded batch gives each sentence the same as alone; numbers in the padding (NaN) influence no
    /// result or gradient; a padded step repeats the state.
    #[test]
    fn an_lstmn_with_padding_is_each_sentence_alone(
        lengths in prop::collection::vec(1usize..6, 1..4),
    ) {
        let (time, batch) = (lengths.iter().copied().max().unwrap(), lengths.len());
        let (network, source) = (deep(), source(batch, 3));
        let keep = PaddingMask::from_lengths(&lengths, time, &device());
        let x = drawn("x", [time, batch, INPUT], 2.0);
        let padded = keep.time_major().bool_not().unsqueeze_dim::<3>(2).expand(x.dims());
        let poisoned = x.clone().mask_fill(padded, f32::NAN).require_grad();
        let read = network
            .sequence(poisoned.clone(), Some(&source), Some(keep.time_major()))
            .unwrap();
        for (row, &length) in lengths.iter().enumerate() {
            let one = x.clone().narrow(0, 0, length).narrow(1, row, 1);
            let own = SourceTape {
                hidden: source.hidden.clone().narrow(0, row, 1),
                cell: source.cell.clone().narrow(0, row, 1),
                keep: source.keep.select(&[row]),
            };
            let alone = network.sequence(one, Some(&own), None).unwrap();
            let hidden = read.hidden.clone().narrow(1, row, 1);
            let here = hidden.clone().narrow(0, 0, length);
            prop_assert!(distance(&here, &alone.hidden) <= ROUNDING);
            let weights = read.weights.clone().narrow(0, row, 1);
            let weights = weights.narrow(1, 0, length).narrow(2, 0, length);
            prop_assert!(distance(&weights, &alone.weights) <= ROUNDING);
            for t in length..time {
                let last = hidden.clone().narrow(0, length - 1, 1);
                prop_assert_eq!(numbers(&hidden.clone().narrow(0, t, 1)), numbers(&last));
            }
        }
        let gradients = read.hidden.sum().backward();
        let of_x = poisoned.grad(&gradients).unwrap();
        prop_assert!(numbers(&of_x).iter().all(|g| g.is_finite()));
    }
}

#[test]
fn an_lstmn_step_by_step_equals_the_sequence() {
    let network = lstmn();
    let x = drawn("x", [6, 2, INPUT], 2.0);
    let read = network.sequence(x.clone(), None, None).unwrap();
    let mut tape = network.tape(2, &device());
    for t in 0..6 {
        let input: Tensor<2> = x.clone().narrow(0, t, 1).squeeze_dim(0);
        let step = network.step(input, tape, None).unwrap();
        tape = step.tape;
        assert_eq!(tape.steps(), t + 1);
        let hidden: Tensor<2> = read.hidden.clone().narrow(0, t, 1).squeeze_dim(0);
        assert!(distance(&tape.last().hidden, &hidden) <= ROUNDING);
        assert_eq!(step.weights.map(|w| w.dims()), (t > 0).then_some([2, t]));
        assert!(step.source_weights.is_none());
    }
    let swapped = tape.clone().select(Tensor::from_ints([1, 0], &device()));
    let expected = tape.last().hidden.clone().flip([0]);
    assert_eq!(numbers(&swapped.last().hidden), numbers(&expected));
    let empty = network
        .sequence(Tensor::zeros([0, 2, INPUT], &device()), None, None)
        .unwrap();
    assert_eq!(empty.hidden.dims(), [0, 2, SIZE]);
    assert_eq!(empty.weights.dims(), [2, 0, 0]);
}

#[test]
fn deep_fusion_step_by_step_equals_the_sequence() {
    let network = deep();
    for positions in [1, 4] {
        let source = SourceTape {
            hidden: source(2, positions).hidden.require_grad(),
            ..source(2, positions)
        };
        let x = drawn("x", [6, 2, INPUT], 2.0).require_grad();
        let read = network.sequence(x.clone(), Some(&source), None).unwrap();
        let prepared = network.source(&source).unwrap();
        let mut tape = network.tape(2, &device());
        let (mut hidden, mut cell, mut looks) = (vec![], vec![], vec![]);
        for t in 0..6 {
            let input: Tensor<2> = x.clone().narrow(0, t, 1).squeeze_dim(0);
            let step = network.step(input, tape, Some(&prepared)).unwrap();
            assert_eq!(step.weights.is_some(), t > 0);
            if let Some(weights) = step.weights {
                let whole: Tensor<2> = read.weights.clone().narrow(1, t, 1).squeeze_dim(1);
                assert!(distance(&weights, &whole.narrow(1, 0, t)) <= ROUNDING);
            }
            tape = step.tape;
            hidden.push(tape.last().hidden.clone());
            cell.push(tape.last().cell.clone());
            looks.push(step.source_weights.unwrap());
        }
        let (hidden, cell): (Tensor<3>, Tensor<3>) =
            (Tensor::stack(hidden, 0), Tensor::stack(cell, 0));
        let looks: Tensor<3> = Tensor::stack(looks, 1);
        assert!(distance(&hidden, &read.hidden) <= ROUNDING);
        assert!(distance(&cell, &read.cell) <= ROUNDING);
        assert!(distance(&looks, &read.source_weights.unwrap()) <= ROUNDING);
        // The gradients are those of the sequence too.
        let loss = drawn("loss", [6, 2, SIZE], 1.0);
        let by_steps = (hidden * loss.clone()).sum().backward();
        let at_once = (read.hidden * loss).sum().backward();
        for leaf in [&x, &source.hidden] {
            let [a, b] = [&by_steps, &at_once].map(|all| leaf.grad(all).unwrap());
            assert!(distance(&a, &b) <= ROUNDING);
        }
        // When hypotheses of a beam are selected, their sources are too.
        let index = || Tensor::from_ints([1, 1, 0], &device());
        let next = drawn("next", [3, INPUT], 1.0);
        let forked = network
            .step(
                next.clone(),
                tape.clone().select(index()),
                Some(&prepared.select(index())),
            )
            .unwrap();
        for (row, of) in [1, 1, 0].into_iter().enumerate() {
            let one = Tensor::from_ints([of], &device());
            let own = next.clone().narrow(0, row, 1);
            let alone = network
                .step(
                    own,
                    tape.clone().select(one.clone()),
                    Some(&prepared.select(one)),
                )
                .unwrap();
            let here = forked.tape.last().hidden.clone().narrow(0, row, 1);
            assert!(distance(&here, &alone.tape.last().hidden) <= ROUNDING);
        }
    }
}

/// A module in double precision, by plain operations.
fn double<M: Module>(module: M) -> M {
    struct Double;
    impl ModuleMapper for Double {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|x| {
                let (shape, device) = (x.dims(), x.device());
                let numbers: Vec<f64> = x.into_data().iter().collect();
                let data = TensorData::new(numbers, shape);
                Tensor::from_data(data, (&device, DType::F64)).require_grad()
            })
        }
    }
    module.map(&mut Double)
}

/// Adds `step` to number `index` of the parameter `name`.
fn moved<M: Module>(module: &M, name: &str, index: usize, step: f64) -> M {
    struct Move<'a> {
        path: Vec<String>,
        name: &'a str,
        index: usize,
        step: f64,
    }
    impl ModuleMapper for Move<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if self.path.join(".") != self.name {
                return param;
            }
            param.map(|x| {
                let (shape, device) = (x.dims(), x.device());
                let mut numbers: Vec<f64> = x.into_data().iter().collect();
                numbers[self.index] += self.step;
                Tensor::from_data(TensorData::new(numbers, shape), (&device, DType::F64))
            })
        }
    }
    let mut mover = Move {
        path: vec![],
        name,
        index,
        step,
    };
    module.clone().map(&mut mover)
}

/// Compares every parameter's gradient of `loss` with central differences in f64, at a few places each.
fn differences<M: Module>(module: M, loss: impl Fn(&M) -> Tensor<1>) {
    let module = double(module);
    let found = gradients(&module, &loss(&module).backward());
    let value = |module: &M| loss(module).into_data().iter::<f64>().next().unwrap();
    assert!(!found.is_empty());
    for (name, array) in found {
        for index in [0, array.values.len() / 2, array.values.len() - 1] {
            let at = |step| value(&moved(&module, &name, index, step));
            let expected = (at(1e-5) - at(-1e-5)) / 2e-5;
            let error = (f64::from(array.values[index]) - expected).abs();
            // The gradient is read back in single precision.
            let allowed = 1e-8 + 2.0 * f64::from(f32::EPSILON) * expected.abs();
            assert!(
                error <= allowed,
                "{name}[{index}]: off by {error:.1e} of {expected:.3e}"
            );
        }
    }
}

fn f64s<const D: usize>(name: &str, shape: [usize; D]) -> Tensor<D> {
    drawn(name, shape, 1.0).cast(DType::F64)
}

#[test]
fn gradients_equal_finite_differences() {
    let keep = PaddingMask::from_lengths(&[4, 2], 4, &device());
    let probe = || f64s("probe", [4, 2, SIZE]);
    differences(deep(), |network| {
        let source = SourceTape {
            hidden: f64s("source.hidden", [2, 3, SOURCE]),
            cell: f64s("source.cell", [2, 3, SIZE]),
            keep: PaddingMask::from_lengths(&[3, 2], 3, &device()),
        };
        let x = f64s("x", [4, 2, INPUT]);
        let read = network.sequence(x, Some(&source), Some(keep.time_major()));
        (read.unwrap().hidden * probe()).sum()
    });
    differences(decoder(true), |decoder| {
        let annotations = f64s("annotations", [2, 3, SOURCE]);
        let keep = PaddingMask::from_lengths(&[3, 2], 3, &device());
        let memory = decoder.attention.memory(annotations, keep).unwrap();
        let mut start = decoder.start(&memory);
        start.cell = start.cell.cast(DType::F64);
        let x = f64s("x", [4, 2, INPUT]);
        let decoded = decoder
            .sequence(x, start, &memory, &mut DropoutRng::none())
            .unwrap();
        (decoded.output * probe()).sum() + decoded.coverage_loss.unwrap().sum()
    });
    let pooling = AttentivePooling::new(SIZE, ATTENTION, 3, &mut initializer());
    differences(pooling, |pooling| {
        let pooled = pooling
            .forward(f64s("annotations", [2, 4, SIZE]), &keep)
            .unwrap();
        let redundancy = AttentivePooling::redundancy(pooled.weights);
        (pooled.context * f64s("probe", [2, 3, SIZE])).sum() + redundancy.sum()
    });
    let pointer = PointerGenerator::new(SOURCE, SIZE, INPUT, &mut initializer());
    differences(pointer, |pointer| {
        let gate = pointer.generate(
            f64s("context", [2, SOURCE]),
            f64s("state", [2, SIZE]),
            f64s("x", [2, INPUT]),
        );
        let words = Tensor::<2, Int>::from_ints([[1, 4, 1], [0, 2, 2]], &device());
        let (said, looked) = (f64s("words", [2, 4]), f64s("weights", [2, 3]));
        let p = PointerGenerator::mix(said, looked, words, gate.unwrap(), 5).unwrap();
        (p * f64s("probe", [2, 5])).sum()
    });
}

/// A GRU in Bahdanau's wiring, with or without coverage.
fn decoder(coverage: bool) -> AttentiveDecoder<Gru> {
    let init = &mut initializer();
    let cell = Gru::new(INPUT + SOURCE, SIZE, Reset::BeforeProduct, init);
    let score = Additive::new(SIZE, SOURCE, ATTENTION, init);
    let attention = Attention::new(Score::Additive(score));
    let decoder = AttentiveDecoder::previous(cell, attention, SOURCE).unwrap();
    match coverage {
        true => decoder.with_coverage(init).unwrap(),
        false => decoder,
    }
}

fn memory<C: RecurrentCell>(decoder: &AttentiveDecoder<C>, lengths: &[usize]) -> Memory {
    let annotations = drawn("annotations", [lengths.len(), 4, SOURCE], 1.0);
    let keep = PaddingMask::from_lengths(lengths, 4, &device());
    decoder.attention.memory(annotations, keep).unwrap()
}

/// Rows of a batch are independent, whatever the cell: each gives the same as alone.
#[test]
fn a_decoder_treats_rows_alone_with_every_cell() {
    fn check<C: RecurrentCell>(cell: C) {
        let init = &mut initializer();
        let score = Additive::new(SIZE, SOURCE, ATTENTION, init);
        let attention = Attention::new(Score::Additive(score));
        let decoder = AttentiveDecoder::current(cell, attention, SOURCE, true, init).unwrap();
        assert_eq!(decoder.input_size(), INPUT);
        let together = memory(&decoder, &[4, 2]);
        let x = drawn("x", [3, 2, INPUT], 1.0);
        let noise = &mut DropoutRng::none();
        let start = decoder.start(&together);
        let both = decoder
            .sequence(x.clone(), start, &together, noise)
            .unwrap();
        for row in 0..2 {
            let own = together.select(&[row]).unwrap();
            let x = x.clone().narrow(1, row, 1);
            let start = decoder.start(&own);
            let alone = decoder.sequence(x, start, &own, noise).unwrap();
            let here = both.output.clone().narrow(1, row, 1);
            assert!(distance(&here, &alone.output) <= ROUNDING);
        }
        let swapped = decoder.select(both.state.clone(), Tensor::from_ints([1, 0], &device()));
        let expected = both.state.attentional.unwrap().flip([0]);
        assert_eq!(numbers(&swapped.attentional.unwrap()), numbers(&expected));
    }
    let (init, input) = (&mut initializer(), INPUT + SIZE);
    check(Gru::new(input, SIZE, Reset::AfterProduct, init));
    check(Lstm::new(input, SIZE, init));
    check(LstmStack::new(2, input, SIZE, init).unwrap());
    check(Lstmn::new(input, SIZE, ATTENTION, init));
}

#[test]
fn coverage_counts_what_was_looked_at() {
    let decoder = decoder(true);
    let memory = memory(&decoder, &[4, 2]);
    let x = drawn("x", [5, 2, INPUT], 1.0);
    let start = decoder.start(&memory);
    let decoded = decoder
        .sequence(x, start, &memory, &mut DropoutRng::none())
        .unwrap();
    let seen = decoded.state.seen.unwrap();
    let sums: Tensor<2> = decoded.weights.clone().sum_dim(1).squeeze_dim(1);
    assert!(distance(&seen, &sums) <= ROUNDING);
    let losses = numbers(&decoded.coverage_loss.unwrap());
    assert!(
        losses[..2].iter().all(|&loss| loss == 0.0),
        "nothing is seen before the first step"
    );
    assert!(
        losses[2..]
            .iter()
            .all(|&loss| loss > 0.0 && loss <= 1.0 + 1e-6)
    );
}

/// A batch of no sentences has an output of none, also over a memory that is stored in half precision.
#[test]
fn a_decoder_of_no_sentences() {
    let decoder = decoder(true);
    for dtype in [DType::F32, DType::BF16] {
        let plain = memory(&decoder, &[]);
        let memory = Memory {
            keys: plain.keys.cast(dtype),
            values: plain.values.cast(dtype),
            ..plain
        };
        let (x, start) = (drawn("x", [2, 0, INPUT], 1.0), decoder.start(&memory));
        let decoded = decoder.sequence(x, start, &memory, &mut DropoutRng::none());
        assert_eq!(decoded.unwrap().output.dims(), [2, 0, SIZE], "{dtype:?}");
    }
}

/// Where weights keep their gradient, the probability of copied words reaches the attention.
#[test]
fn what_is_copied_teaches_where_to_look() {
    let slopes = |decoder: AttentiveDecoder<Gru>| {
        let memory = memory(&decoder, &[4, 2]);
        let x = drawn("x", [2, INPUT], 1.0);
        let start = decoder.start(&memory);
        let step = decoder.step(x, start, &memory, &mut DropoutRng::none());
        let (step, _) = step.unwrap();
        let words = Tensor::<2, Int>::from_ints([[4, 1, 0, 2], [3, 3, 2, 2]], &device());
        let (said, gate) = (
            Tensor::zeros([2, 5], &device()),
            Tensor::zeros([2], &device()),
        );
        let p = PointerGenerator::mix(said, step.weights, words, gate, 5).unwrap();
        let copied = (p * drawn("probe", [2, 5], 1.0)).sum();
        // So that there is a gradient, if of zeros, in any case.
        let loss = copied + step.output.sum() * 0.0;
        let all = gradients(&decoder, &loss.backward());
        let vector = all.into_iter().find(|(name, _)| name.ends_with("vector"));
        vector.unwrap().1.values
    };
    assert!(slopes(decoder(false)).iter().all(|slope| *slope == 0.0));
    let differentiable = slopes(decoder(false).with_differentiable_weights());
    assert!(differentiable.iter().any(|slope| *slope != 0.0));
}

/// A decoder hands on what hard attention drew, so that REINFORCE can train it.
#[test]
fn what_a_decoder_has_drawn() {
    let init = &mut initializer();
    let cell = Gru::new(INPUT + SOURCE, SIZE, Reset::BeforeProduct, init);
    let score = Score::Additive(Additive::new(SIZE, SOURCE, ATTENTION, init));
    let sample = HardSample::new(Estimator::Reinforce { soften: false });
    let attention = Attention::new(score).with_normalize(Normalize::HardSample(sample));
    let decoder = AttentiveDecoder::previous(cell, attention, SOURCE).unwrap();
    let memory = memory(&decoder, &[4, 2]);
    let start = decoder.start(&memory);
    let noise = &mut DropoutRng::seeded(3);
    let decoded = decoder.sequence(drawn("x", [3, 2, INPUT], 1.0), start, &memory, noise);
    let decoded = decoded.unwrap();
    let sampled = decoded.sampled.unwrap();
    assert_eq!(sampled.keys.dims(), [2, 1, 3]);
    let keys: Vec<i64> = sampled.keys.clone().into_data().iter::<i64>().collect();
    for (row, key) in numbers(&decoded.weights).chunks(4).zip(keys) {
        assert_eq!(row[key as usize], 1.0);
    }
    let rewards = Tensor::<1>::from_floats([-1.0, -2.0], &device());
    let loss = Reinforce::default().loss(rewards, &sampled);
    let all = gradients(&decoder, &loss.backward());
    let vector = all.into_iter().find(|(name, _)| name.ends_with("vector"));
    assert!(vector.unwrap().1.values.iter().any(|slope| *slope != 0.0));
}

/// Attending to the same position at every step costs a coverage loss of 1 in each step after the first.
#[test]
fn coverage_loss_of_looking_at_one_place() {
    let one = Tensor::<2>::from_floats([[0.0, 1.0, 0.0]], &device());
    let seen = one.clone() * 3.0;
    assert_eq!(numbers(&Coverage::loss(one.clone(), seen)), [1.0]);
    assert_eq!(
        numbers(&Coverage::loss(one.clone(), one.zeros_like())),
        [0.0]
    );
}

/// The mixture of generated and copied words is a distribution over the extended vocabulary.
#[test]
fn a_pointer_generator_gives_a_distribution() {
    let said = Tensor::<2>::from_floats([[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]], &device());
    let weights = Tensor::<2>::from_floats([[0.5, 0.5, 0.0], [0.125, 0.375, 0.5]], &device());
    let source = Tensor::<2, Int>::from_ints([[4, 1, 0], [3, 3, 2]], &device());
    let generate = Tensor::<1>::from_floats([0.75, 0.0], &device());
    let p = PointerGenerator::mix(said, weights, source, generate, 5).unwrap();
    let expected = [
        [0.1875, 0.375 + 0.125, 0.1875, 0.0, 0.125],
        [0.0, 0.0, 0.5, 0.5, 0.0],
    ];
    assert_eq!(numbers(&p), expected.concat());
}

/// A user's cell and a user's features, wrapped.
#[test]
fn any_network_can_be_given_attention() {
    let init = &mut initializer();
    let cell = Unrolled {
        cell: Lstm::new(INPUT, SIZE, init),
    };
    let pooling = AttentivePooling::new(SIZE, ATTENTION, 2, init);
    let network = WithPooling::new(cell.clone(), pooling);
    let x = drawn("x", [4, 2, INPUT], 1.0);
    let keep = PaddingMask::from_lengths(&[4, 3], 4, &device());
    let pooled = network.forward(x.clone(), Some(keep.clone())).unwrap();
    assert_eq!(pooled.context.dims(), [2, 2, SIZE]);
    let score = Additive::new(SIZE, SIZE, ATTENTION, init);
    let network = WithAttention::new(cell, Attention::new(Score::Additive(score)));
    let memory = network.memory(x.clone(), Some(keep)).unwrap();
    assert_eq!(memory.values.dims(), [2, 4, SIZE]);
    let short = PaddingMask::from_lengths(&[3, 3], 3, &device());
    let refused = network.memory(x, Some(short)).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("`keep` has shape [2, 3], expected [2, 4]")
    );
}

fn refused<T>(result: Result<T, AttentionError>, parts: &[&str]) {
    let Err(error) = result else {
        panic!("expected an error with {parts:?}")
    };
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let x = |time, batch, size| drawn("x", [time, batch, size], 1.0);
    let (plain, deep) = (lstmn(), deep());
    refused(
        plain.sequence(x(3, 2, 4), None, None),
        &["`x`", "[3, 2, 4]", "[3, 2, 3]"],
    );
    let keep = Tensor::<2, Bool>::full([2, 2], true, &device());
    refused(
        plain.sequence(x(3, 2, INPUT), None, Some(keep)),
        &["`keep`", "[2, 2]", "[3, 2]"],
    );
    refused(
        plain.sequence(x(3, 2, INPUT), Some(&source(2, 3)), None),
        &["with_fusion"],
    );
    refused(
        deep.sequence(x(3, 2, INPUT), None, None),
        &["no source", "SourceTape"],
    );
    refused(
        deep.sequence(x(3, 2, INPUT), Some(&source(1, 3)), None),
        &["`source.hidden`", "[1, 3, 6]", "[2, 3, 6]"],
    );
    let other = SourceTape {
        cell: drawn("cell", [2, 3, 4], 1.0),
        ..source(2, 3)
    };
    refused(
        deep.sequence(x(3, 2, INPUT), Some(&other), None),
        &["`source.cell`", "[2, 3, 4]", "[2, 3, 5]"],
    );
    let step = |network: &Lstmn, size| {
        network.step(drawn("x", [2, size], 1.0), network.tape(2, &device()), None)
    };
    refused(step(&plain, 4), &["`x`", "[2, 4]", "[2, 3]"]);
    refused(
        step(&deep, INPUT),
        &["deep", "no source", "`Lstmn::source`"],
    );
    refused(plain.source(&source(2, 3)), &["with_fusion"]);
    let of_three = deep.source(&source(3, 3)).unwrap();
    let one = || drawn("x", [2, INPUT], 1.0);
    refused(
        deep.step(one(), deep.tape(2, &device()), Some(&of_three)),
        &["`source`", "[3, 3, 11]", "[2, 3, 11]"],
    );
    let of_two = deep.source(&source(2, 3)).unwrap();
    refused(
        deep.step(one(), plain.tape(2, &device()), Some(&of_two)),
        &["a tape of a network without"],
    );
    refused(
        plain.step(one(), plain.tape(2, &device()), Some(&of_two)),
        &["absent", "with_fusion"],
    );

    refused(
        plain.step(one(), plain.tape(3, &device()), None),
        &["`x`", "[2, 3]", "[3, 3]"],
    );
    let other = Lstmn::new(INPUT, SIZE, ATTENTION + 1, &mut initializer());
    let written = other.step(one(), other.tape(2, &device()), None).unwrap();
    refused(
        plain.step(one(), written.tape, None),
        &["`tape`", "[2, 1, 5]", "[2, 1, 4]"],
    );
    let wide = |x: Tensor<2>| x.cast(DType::F64);
    refused(
        plain.step(wide(one()), plain.tape(2, &device()), None),
        &["`x` is f64", "f32, as the weights"],
    );
    refused(
        plain.step(one(), double(lstmn()).tape(2, &device()), None),
        &["`tape` is f64", "f32, as the weights"],
    );
    let wide_source = SourceTape {
        hidden: source(2, 3).hidden.cast(DType::F64),
        cell: source(2, 3).cell.cast(DType::F64),
        ..source(2, 3)
    };
    let wide_source = double(deep.clone()).source(&wide_source).unwrap();
    refused(
        deep.step(one(), deep.tape(2, &device()), Some(&wide_source)),
        &["`source` is f64", "f32, as the weights"],
    );

    let init = &mut initializer();
    let attention = || Attention::new(Score::dot());
    let cell = Lstm::new(SOURCE, SIZE, init);
    refused(
        AttentiveDecoder::previous(cell.clone(), attention(), SOURCE),
        &["cell input size", "6", "more than 6"],
    );
    refused(
        AttentiveDecoder::current(Lstm::new(SIZE, SIZE, init), attention(), SOURCE, true, init),
        &["cell input size", "5"],
    );
    let fed = Lstm::new(INPUT + SIZE, SIZE, init);
    let fed = AttentiveDecoder::current(fed, attention(), SIZE, true, init).unwrap();
    let annotations = drawn("annotations", [2, 4, SIZE], 1.0).cast(DType::F64);
    let keep = PaddingMask::from_lengths(&[4, 2], 4, &device());
    let of_wide = fed.attention.memory(annotations, keep).unwrap();
    refused(
        fed.step(
            one(),
            fed.start(&of_wide),
            &of_wide,
            &mut DropoutRng::none(),
        ),
        &["`memory.values` is f64", "f32"],
    );
    let dot = AttentiveDecoder::current(cell, attention(), SOURCE, false, init).unwrap();
    refused(
        dot.with_coverage(init),
        &["coverage", "dot score", "additive"],
    );
    let decoder = decoder(false);
    let memory = memory(&decoder, &[4, 2]);
    let noise = &mut DropoutRng::none();
    let start = || decoder.start(&memory);
    refused(
        decoder.sequence(x(3, 2, 4), start(), &memory, noise),
        &["`x`", "[2, 4]", "[2, 3]"],
    );
    refused(
        decoder.sequence(x(0, 2, INPUT), start(), &memory, noise),
        &["at least one step"],
    );
    let wide = Memory {
        values: drawn("values", [2, 4, 7], 1.0),
        ..memory.clone()
    };
    refused(
        decoder.sequence(x(3, 2, INPUT), start(), &wide, noise),
        &["memory.values", "[7]"],
    );

    let step = |x: Tensor<2>, state| decoder.step(x, state, &memory, &mut DropoutRng::none());
    refused(
        step(one().cast(DType::F64), start()),
        &["`x` is f64", "f32, as the weights"],
    );
    let wide = AttentiveState {
        cell: start().cell.cast(DType::F64),
        ..start()
    };
    refused(
        step(one(), wide),
        &["`state` is f64", "f32, as the weights"],
    );
    let of_one = decoder.start(&memory.select(&[0]).unwrap());
    refused(step(one(), of_one), &["`state", "[1, 5]", "[2, 5]"]);
    let counted = AttentiveState {
        seen: Some(drawn("seen", [2, 4], 1.0)),
        ..start()
    };
    refused(
        step(one(), counted),
        &["`state.seen` is there", "expected absent"],
    );

    let coverage = Coverage::new(ATTENTION, init);
    refused(
        coverage.apply(&memory, drawn("seen", [2, 3], 1.0)),
        &["`seen`", "[2, 3]", "[2, 4]"],
    );
    refused(
        Coverage::new(3, init).apply(&memory, drawn("seen", [2, 4], 1.0)),
        &["`weight`", "[3]", "[4]"],
    );
    let pooling = AttentivePooling::new(SIZE, ATTENTION, 2, init);
    let keep = PaddingMask::from_lengths(&[4, 2], 4, &device());
    refused(
        pooling.forward(drawn("h", [2, 4, 3], 1.0), &keep),
        &["annotations", "[2, 4, 5]"],
    );
    refused(
        pooling.forward(drawn("h", [2, 3, SIZE], 1.0), &keep),
        &["keep", "[2, 3]"],
    );

    let pointer = PointerGenerator::new(SOURCE, SIZE, INPUT, init);
    let row = |name: &str, size| drawn(name, [2, size], 1.0);
    refused(
        pointer.generate(row("c", SOURCE), row("s", 4), row("x", INPUT)),
        &["`state`", "[2, 4]", "[2, 5]"],
    );
    let mix = |source: [[i32; 3]; 2], extended| {
        let source = Tensor::<2, Int>::from_ints(source, &device());
        let gate = Tensor::<1>::ones([2], &device());
        PointerGenerator::mix(row("words", 4), row("weights", 3), source, gate, extended)
    };
    refused(mix([[0; 3]; 2], 3), &["extended", "at least 4"]);
    refused(mix([[0, 5, 0], [0; 3]], 5), &["source", "5", "0 to 4"]);
    refused(mix([[0, -1, 0], [0; 3]], 5), &["source", "-1"]);
}

/// Every part of the networks is a named weight that a file can hold.
#[test]
fn weights_have_names() {
    let names: Vec<String> = weights::collect(&deep()).into_keys().collect();
    for name in ["cell.recurrent", "attention.vector", "fusion.recurrent"] {
        assert!(
            names.iter().any(|known| known == name),
            "{name} is not in {names:?}"
        );
    }
    let decoder = decoder(true);
    let arrays = weights::collect(&decoder);
    assert!(arrays.contains_key("coverage.weight"));
    let again = weights::apply(decoder, arrays.clone()).unwrap();
    assert_eq!(weights::collect(&again), arrays);
}
