//! Recurrent networks: at once and step by step, fused and plain, padded and alone.

use burn::tensor::{Bool, DType, Device, Int, Tensor};
use regard_nn::{
    Attention, AttentionError, Memory,
    bridge::without_kernels,
    dropout::DropoutRng,
    initialize::Initializer,
    mask::PaddingMask,
    recurrent::{
        AttentiveDecoder, AttentivePooling, Direction, Gru, Lstm, LstmStack, Lstmn,
        PointerGenerator, RecurrentCell, Reset, SourceTape,
    },
    score::{Additive, General, Score},
};

use crate::{
    Outcome,
    compare::{close, dims, finite},
    dice::Dice,
    mechanism,
    tensors::{Input, Spread, numbers},
};

pub fn case(dice: &mut Dice) -> Outcome {
    let device = match dice.once_in(3) {
        true => Device::flex(),
        false => Device::flex().autodiff(),
    };
    match dice.below(8) {
        0..3 => cells(dice, &device),
        3 => stack(dice, &device),
        4 => memory_network(dice, &device),
        5 => decoder(dice, &device),
        6 => pooling(dice, &device),
        _ => copying(dice, &device),
    }
}

fn time(dice: &mut Dice) -> usize {
    if dice.once_in(20) {
        0
    } else {
        1 + dice.below(6)
    }
}

fn batch(dice: &mut Dice) -> usize {
    if dice.once_in(20) {
        0
    } else {
        1 + dice.below(3)
    }
}

/// Which steps are real, `[time, batch]`, sentences first.
fn keep(
    dice: &mut Dice,
    time: usize,
    batch: usize,
    device: &Device,
) -> (Option<Tensor<2, Bool>>, Vec<usize>) {
    if dice.once_in(3) {
        return (None, vec![time; batch]);
    }
    let lengths: Vec<usize> = (0..batch).map(|_| dice.below(time + 1)).collect();
    let keep = PaddingMask::from_lengths(&lengths, time, device);
    (Some(keep.time_major()), lengths)
}

/// `x [time, batch, size]` with NaN at padded steps.
fn poisoned(x: &Tensor<3>, keep: &Option<Tensor<2, Bool>>) -> Tensor<3> {
    match keep {
        None => x.clone(),
        Some(keep) => {
            let padded = keep.clone().bool_not().unsqueeze_dim::<3>(2);
            match x.dims().contains(&0) {
                true => x.clone(),
                false => x.clone().mask_fill(padded.expand(x.dims()), f32::NAN),
            }
        }
    }
}

/// Numbers that saturate the gates at once, or not at all: between them, rounding may flip a gate.
fn spread(dice: &mut Dice) -> Spread {
    dice.pick(&[
        Spread::Moderate,
        Spread::Moderate,
        Spread::Exact,
        Spread::Wild,
    ])
}

/// The gradients of an input and of the first state.
fn slopes(output: &Tensor<3>, x: &Tensor<3>, state: &Tensor<2>, device: &Device) -> [Vec<f64>; 2] {
    if !device.is_autodiff() {
        return [vec![], vec![]];
    }
    let all = output.clone().sum().backward();
    let of_x = x.grad(&all).map(|slope| numbers(&slope));
    let of_state = state.grad(&all).map(|slope| numbers(&slope));
    [of_x, of_state].map(Option::unwrap_or_default)
}

/// Runs of one sequence: fused, plain, without kernels, with NaN in the padding.
fn cells(dice: &mut Dice, device: &Device) -> Outcome {
    let (time, batch) = (time(dice), batch(dice));
    let size = match dice.below(30) {
        0 => 0,
        1 => 17 + dice.below(20),
        _ => 1 + dice.below(6),
    };
    let init = &mut Initializer::new(dice.next(), device);
    let direction = dice.pick(&[Direction::Forward, Direction::Backward]);
    let (keep, _) = keep(dice, time, batch, device);
    let spread = spread(dice);
    let gates = if dice.once_in(2) { 3 } else { 4 };
    let x = Input::new(dice, [time, batch, gates * size], |dice| {
        spread.number(dice)
    });
    let h = Input::new(dice, [batch, size], |dice| dice.number(1.0));
    let reset = dice.pick(&[Reset::BeforeProduct, Reset::AfterProduct]);
    let gru = Gru::new(3, size, reset, init);
    let lstm = Lstm::new(3, size, init);
    let run = |plain: bool, poison: bool| {
        let leaf = x.leaf(DType::F32, device);
        let state = h.leaf(DType::F32, device);
        let input = if poison {
            poisoned(&leaf, &keep)
        } else {
            leaf.clone()
        };
        let states = match (gates, plain) {
            (3, false) => gru.sequence(input, state.clone(), keep.clone(), direction),
            (3, true) => gru.sequence_plain(input, state.clone(), keep.clone(), direction),
            _ => {
                let start = regard_nn::recurrent::LstmState {
                    hidden: state.clone(),
                    cell: state.clone(),
                };
                match plain {
                    false => lstm.sequence(input, start, keep.clone(), direction).0,
                    true => lstm.sequence_plain(input, start, keep.clone(), direction).0,
                }
            }
        };
        let slopes = slopes(&states, &leaf, &state, device);
        (states, slopes)
    };
    let (states, slopes) = run(false, false);
    dims("states", states.dims(), [time, batch, size])?;
    let found = numbers(&states);
    finite("states", &found)?;
    let wide = spread == Spread::Wild;
    for (name, (other, others)) in [
        ("plain", run(true, false)),
        ("without kernels", without_kernels(|| run(false, false))),
        ("beside poison", run(false, true)),
        ("plain beside poison", run(true, true)),
    ] {
        close(&format!("states {name}"), &found, &numbers(&other), 1e-4)?;
        for (slope, other) in slopes.iter().zip(&others) {
            finite(&format!("slope {name}"), other)?;
            if !wide {
                let most = crate::tensors::largest(other.iter().copied());
                close(&format!("slope {name}"), slope, other, 1e-3 * (1.0 + most))?;
            }
        }
    }
    Ok("cells compared")
}

fn stack(dice: &mut Dice, device: &Device) -> Outcome {
    let (time, batch, input, size) = (time(dice), batch(dice), dice.below(4), dice.below(6));
    let init = &mut Initializer::new(dice.next(), device);
    let Ok(stack) = LstmStack::new(dice.below(4), input, size, init) else {
        return Ok("stack of cells refused");
    };
    let (keep, lengths) = keep(dice, time, batch, device);
    let width = input + usize::from(dice.once_in(30));
    let dtype = if dice.once_in(40) {
        DType::F64
    } else {
        DType::F32
    };
    let x = Input::new(dice, [time, batch, width], |dice| dice.number(2.0)).leaf(dtype, device);
    let mut states = stack.zeros(batch + usize::from(dice.once_in(30)), device);
    if dice.once_in(20) {
        states.pop();
    }
    let dropout = dice.pick(&[0.0, 0.0, 0.0, 0.5, 1.0, -1.0, f64::NAN]);
    let seeded = dice.once_in(2) && dropout > 0.0;
    let noise = || {
        if seeded {
            DropoutRng::seeded(3)
        } else {
            DropoutRng::none()
        }
    };
    let whole = stack.sequence(
        poisoned(&x, &keep),
        Some(states.clone()),
        keep.clone(),
        Direction::Forward,
        dropout,
        &mut noise(),
    );
    let Ok((top, _)) = whole else {
        return Ok("stack's input refused");
    };
    dims("top states", top.dims(), [time, batch, size])?;
    let found = numbers(&top);
    finite("top states", &found)?;
    if seeded {
        return Ok("stack of cells with dropout");
    }
    for row in 0..batch {
        let one = |state: &regard_nn::recurrent::LstmState| regard_nn::recurrent::LstmState {
            hidden: state.hidden.clone().narrow(0, row, 1),
            cell: state.cell.clone().narrow(0, row, 1),
        };
        let mut state: Vec<_> = states.iter().map(one).collect();
        for t in 0..lengths[row] {
            let x = x
                .clone()
                .narrow(0, t, 1)
                .narrow(1, row, 1)
                .squeeze_dim::<2>(0);
            let (top, next) = stack
                .step(x, state, &[])
                .map_err(|error| error.to_string())?;
            state = next;
            let expected = &found[(t * batch + row) * size..][..size];
            close(
                &format!("row {row} alone at {t}"),
                &numbers(&top),
                expected,
                1e-4,
            )?;
        }
    }
    Ok("stack of cells compared")
}

fn memory_network(dice: &mut Dice, device: &Device) -> Outcome {
    let (time, batch, input, size) = (
        time(dice),
        batch(dice),
        1 + dice.below(3),
        1 + dice.below(5),
    );
    let init = &mut Initializer::new(dice.next(), device);
    let mut network = Lstmn::new(input, size, 1 + dice.below(4), init);
    let fused = dice.once_in(2);
    let (positions, source_size) = (dice.below(5), 1 + dice.below(4));
    if fused {
        network = network.with_fusion(source_size, 1 + dice.below(4), init);
    }
    let (keep, lengths) = keep(dice, time, batch, device);
    let number = |dice: &mut Dice| dice.number(2.0);
    let width = input + usize::from(dice.once_in(30));
    let x = Input::new(dice, [time, batch, width], number).leaf(DType::F32, device);
    let source = (fused != dice.once_in(20)).then(|| SourceTape {
        hidden: Input::new(dice, [batch, positions, source_size], number).leaf(DType::F32, device),
        cell: Input::new(dice, [batch, positions, size], number).leaf(DType::F32, device),
        keep: mechanism::padding(dice, batch, positions, device),
    });
    let run = || network.sequence(poisoned(&x, &keep), source.as_ref(), keep.clone());
    let (whole, plain) = (run(), without_kernels(run));
    let (whole, plain) = match (whole, plain) {
        (Ok(whole), Ok(plain)) => (whole, plain),
        (Err(_), Err(_)) => return Ok("memory network refused"),
        _ => return Err("only one path of the memory network refuses".to_owned()),
    };
    dims("hidden", whole.hidden.dims(), [time, batch, size])?;
    dims("weights", whole.weights.dims(), [batch, time, time])?;
    let found = numbers(&whole.hidden);
    finite("hidden", &found)?;
    close(
        "hidden by both paths",
        &found,
        &numbers(&plain.hidden),
        1e-4,
    )?;
    let weights = numbers(&whole.weights);
    close(
        "weights by both paths",
        &weights,
        &numbers(&plain.weights),
        1e-4,
    )?;
    for (i, row) in weights.chunks(time.max(1)).enumerate() {
        let (b, t) = (i / time, i % time);
        let expected = if t > 0 && t < lengths[b] { 1.0 } else { 0.0 };
        close("a row's sum", &[row.iter().sum()], &[expected], 1e-4)?;
    }
    if keep.is_some() {
        return Ok("memory network compared");
    }
    let prepared = match &source {
        Some(source) => Some(network.source(source).map_err(|error| error.to_string())?),
        None => None,
    };
    let mut tape = network.tape(batch, device);
    for t in 0..time {
        let x = x.clone().narrow(0, t, 1).squeeze_dim::<2>(0);
        let step = network
            .step(x, tape, prepared.as_ref())
            .map_err(|error| error.to_string())?;
        tape = step.tape;
        let expected = &found[t * batch * size..][..batch * size];
        close(
            &format!("step {t}"),
            &numbers(&tape.last().hidden),
            expected,
            1e-4,
        )?;
    }
    Ok("memory network compared")
}

fn decoder(dice: &mut Dice, device: &Device) -> Outcome {
    let (input, size, source, compare) = (
        1 + dice.below(3),
        1 + dice.below(4),
        1 + dice.below(4),
        1 + dice.below(4),
    );
    let init = &mut Initializer::new(dice.next(), device);
    let current = dice.once_in(2);
    let feeding = current && dice.once_in(2);
    let added = match (current, feeding) {
        (false, _) => source,
        (true, true) => size,
        (true, false) => 0,
    };
    let score = match dice.once_in(3) {
        true => Score::General(General::new(size, source, init)),
        false => Score::Additive(Additive::new(size, source, compare, init)),
    };
    let mut attention = Attention::new(score);
    if dice.once_in(3) {
        attention = attention.with_normalize(mechanism::normalize(dice, 1, size, init));
    }
    macro_rules! with {
        ($cell:expr) => {{
            let cell = $cell;
            let decoder = match current {
                true => AttentiveDecoder::current(cell, attention, source, feeding, init),
                false => AttentiveDecoder::previous(cell, attention, source),
            };
            let decoder = match (decoder, dice.once_in(3)) {
                (Ok(decoder), true) => decoder.with_coverage(init),
                (decoder, _) => decoder,
            };
            match decoder {
                Ok(decoder) => decode(dice, decoder, [input, source], device),
                Err(_) => Ok("decoder refused"),
            }
        }};
    }
    match dice.below(4) {
        0 => with!(Gru::new(input + added, size, Reset::AfterProduct, init)),
        1 => with!(Lstm::new(input + added, size, init)),
        2 => with!(Lstmn::new(input + added, size, compare, init)),
        _ => match LstmStack::new(2, input + added, size, init) {
            Ok(stack) => with!(stack),
            Err(error) => Err(error.to_string()),
        },
    }
}

fn decode<C: RecurrentCell>(
    dice: &mut Dice,
    decoder: AttentiveDecoder<C>,
    [input, source]: [usize; 2],
    device: &Device,
) -> Outcome {
    let (time, batch, positions) = (time(dice), batch(dice), dice.below(5));
    let number = |dice: &mut Dice| dice.number(2.0);
    let width = source + usize::from(dice.once_in(40));
    let annotations = Input::new(dice, [batch, positions, width], number);
    let annotations = annotations.leaf(DType::F32, device);
    let keep = mechanism::padding(dice, batch, positions, device);
    let Ok(memory) = decoder.attention.memory(annotations, keep) else {
        return Ok("memory refused");
    };
    let width = input + usize::from(dice.once_in(40));
    let x = Input::new(dice, [time, batch, width], number);
    let x = x.leaf(
        if dice.once_in(40) {
            DType::F64
        } else {
            DType::F32
        },
        device,
    );
    // Sometimes a state of another memory.
    let other = match dice.once_in(20) {
        true => {
            let rows: Vec<usize> = (0..dice.below(4)).map(|_| dice.below(batch + 1)).collect();
            match memory.select(&rows) {
                Ok(other) => other,
                Err(_) => return Ok("selection refused"),
            }
        }
        false => memory.clone(),
    };
    let run = || {
        decoder.sequence(
            x.clone(),
            decoder.start(&other),
            &memory,
            &mut DropoutRng::none(),
        )
    };
    let (decoded, plain) = (run(), without_kernels(run));
    let (decoded, plain) = match (decoded, plain) {
        (Ok(decoded), Ok(plain)) => (decoded, plain),
        (Err(_), Err(_)) => return Ok("target refused"),
        _ => return Err("only one path of the decoder refuses".to_owned()),
    };
    dims("weights", decoded.weights.dims(), [batch, time, positions])?;
    let found = numbers(&decoded.output);
    if matches!(
        decoder.attention.normalize,
        regard_nn::normalize::Normalize::Softmax(_)
    ) {
        finite("decoded", &found)?;
        close(
            "decoded by both paths",
            &found,
            &numbers(&plain.output),
            1e-4,
        )?;
        let weights = numbers(&decoded.weights);
        let lengths = memory.keep.lengths();
        for (i, row) in weights.chunks(positions.max(1)).enumerate() {
            let expected = if lengths[i / time] > 0 { 1.0 } else { 0.0 };
            close("a row's sum", &[row.iter().sum()], &[expected], 1e-4)?;
        }
    }
    alone(dice, &decoder, &x, &memory, &found)?;
    Ok("decoder compared")
}

/// Compares one row of the batch with the same row alone.
fn alone<C: RecurrentCell>(
    dice: &mut Dice,
    decoder: &AttentiveDecoder<C>,
    x: &Tensor<3>,
    memory: &Memory,
    found: &[f64],
) -> Result<(), String> {
    let [time, batch, _] = x.dims();
    if batch == 0
        || matches!(
            decoder.attention.normalize,
            regard_nn::normalize::Normalize::HardSample(_)
                | regard_nn::normalize::Normalize::Hardmax(_)
        )
    {
        return Ok(());
    }
    let row = dice.below(batch);
    let run = || -> Result<Vec<f64>, AttentionError> {
        let memory = memory.select(&[row])?;
        let x = x.clone().narrow(1, row, 1);
        let start = decoder.start(&memory);
        Ok(numbers(
            &decoder
                .sequence(x, start, &memory, &mut DropoutRng::none())?
                .output,
        ))
    };
    let alone = run().map_err(|error| error.to_string())?;
    let size = found.len() / time / batch;
    let expected: Vec<f64> = (0..time)
        .flat_map(|t| found[(t * batch + row) * size..][..size].to_vec())
        .collect();
    close("row alone", &alone, &expected, 1e-3)
}

fn pooling(dice: &mut Dice, device: &Device) -> Outcome {
    let (batch, positions, size) = (batch(dice), dice.below(6), dice.below(5));
    let (inner, hops) = (dice.below(5), dice.below(4));
    let init = &mut Initializer::new(dice.next(), device);
    let pooling = AttentivePooling::new(size, inner, hops, init);
    let spread = dice.pick(&[Spread::Moderate, Spread::Wild]);
    let width = size + usize::from(dice.once_in(30));
    let x = Input::new(dice, [batch, positions, width], |dice| spread.number(dice));
    let keep = mechanism::padding(dice, batch, positions, device);
    let leaf = x.leaf(
        if dice.once_in(40) {
            DType::F64
        } else {
            DType::F32
        },
        device,
    );
    let padded = keep.tensor().bool_not();
    let fits = padded.dims() == [batch, positions] && !leaf.dims().contains(&0);
    let input = match fits {
        true => leaf
            .clone()
            .mask_fill(padded.unsqueeze_dim::<3>(2).expand(leaf.dims()), f32::NAN),
        false => leaf.clone(),
    };
    let Ok(pooled) = pooling.forward(input, &keep) else {
        return Ok("pooling refused");
    };
    dims("context", pooled.context.dims(), [batch, hops, size])?;
    let weights = numbers(&pooled.weights);
    for (i, row) in weights.chunks(positions.max(1)).enumerate() {
        let expected = if keep.lengths()[i / hops] > 0 {
            1.0
        } else {
            0.0
        };
        if spread != Spread::Wild {
            close("a row's sum", &[row.iter().sum()], &[expected], 1e-4)?;
        }
    }
    if spread != Spread::Wild {
        finite("context", &numbers(&pooled.context))?;
        if device.is_autodiff() {
            let all = pooled.context.clone().sum().backward();
            let slope = leaf.grad(&all).map(|slope| numbers(&slope));
            finite("slope", &slope.unwrap_or_default())?;
        }
    }
    dims(
        "redundancy",
        AttentivePooling::redundancy(pooled.weights).dims(),
        [batch],
    )?;
    Ok("pooling")
}

fn copying(dice: &mut Dice, device: &Device) -> Outcome {
    let (rows, words, positions) = (batch(dice), 1 + dice.below(5), dice.below(5));
    let extended = words + dice.below(3);
    let share = |dice: &mut Dice| dice.number(1.0).abs();
    let vocabulary = Input::new(dice, [rows, words], share).leaf(DType::F32, device);
    let others = rows + usize::from(dice.once_in(30));
    let weights = Input::new(dice, [others, positions], share);
    let weights = weights.leaf(DType::F32, device);
    let gate = Input::new(dice, [rows], share).leaf(DType::F32, device);
    let ids: Vec<i32> = (0..rows * positions)
        .map(|_| {
            let beyond = usize::from(dice.once_in(40));
            dice.below(extended + beyond) as i32
        })
        .collect();
    let source = Tensor::<1, Int>::from_ints(ids.as_slice(), device);
    let source = match rows * positions {
        0 => Tensor::<2, Int>::zeros([rows, positions], device),
        _ => source.reshape([rows, positions]),
    };
    let mixed = PointerGenerator::mix(
        vocabulary.clone(),
        weights.clone(),
        source,
        gate.clone(),
        extended,
    );
    let Ok(mixed) = mixed else {
        return Ok("copying refused");
    };
    dims("words", mixed.dims(), [rows, extended])?;
    let found = numbers(&mixed);
    let (vocabulary, weights, gate) = (numbers(&vocabulary), numbers(&weights), numbers(&gate));
    let mut expected = vec![0.0; rows * extended];
    for row in 0..rows {
        for word in 0..words {
            expected[row * extended + word] += gate[row] * vocabulary[row * words + word];
        }
        for i in 0..positions {
            let word = ids[row * positions + i] as usize;
            expected[row * extended + word] += (1.0 - gate[row]) * weights[row * positions + i];
        }
    }
    close("words", &found, &expected, 1e-4)?;
    Ok("copying compared")
}
