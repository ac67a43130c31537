//! The other parts of a training step: functions, products, recurrent layers, loss and optimizer.

use crate::{
    loss::{self, CrossEntropy},
    matmul::Packed,
    measure::{
        case::{Call, Case, Unit, Yardstick},
        numbers,
    },
    norm::{self, Norm},
    operation::Operation,
    optim::{self, Adam},
    sequence::{self, Layer, LayerFields},
    simd,
};

/// Steps, rows and units of the recurrent layers.
const STEPS: usize = 20;
const BATCH: usize = 64;
const HIDDEN: usize = 256;
/// Rows and classes of the loss.
const ROWS: usize = 1280;
const CLASSES: usize = 8000;
/// Rows and numbers of a norm: more than fits the caches.
const NORM_ROWS: usize = 32_768;
const NORM_WIDTH: usize = 512;
/// Parameters of the optimizer.
const PARAMETERS: usize = 6_000_000;

pub(super) fn cases() -> Vec<Case> {
    // Forward reads and writes a row, backward reads two and writes one.
    let rows_of_norm = (NORM_ROWS * NORM_WIDTH * size_of::<f32>()) as f64;
    let logits = (ROWS * CLASSES * size_of::<f32>()) as f64;
    let cell = (STEPS * BATCH * HIDDEN * HIDDEN) as f64;
    let layer = format!("t{STEPS} b{BATCH} n{HIDDEN}");
    let (operations, bytes) = (Unit::Operations, Unit::Bytes);
    let mut cases = vec![
        case(
            "matmul",
            "64 x 256 x 768",
            operations,
            Yardstick::FmaOneThread,
            2.0 * (64 * 256 * 768) as f64,
            product,
        ),
        case(
            "gru forward",
            &layer,
            operations,
            Yardstick::Fma,
            6.0 * cell,
            || recurrent_layer(sequence::Unit::PyTorchGru, false),
        ),
        case(
            "gru forward + backward",
            &layer,
            operations,
            Yardstick::Fma,
            18.0 * cell,
            || recurrent_layer(sequence::Unit::PyTorchGru, true),
        ),
        case(
            "lstm forward",
            &layer,
            operations,
            Yardstick::Fma,
            8.0 * cell,
            || recurrent_layer(sequence::Unit::Lstm, false),
        ),
        case(
            "lstm forward + backward",
            &layer,
            operations,
            Yardstick::Fma,
            24.0 * cell,
            || recurrent_layer(sequence::Unit::Lstm, true),
        ),
        case(
            "cross-entropy forward",
            "1280 x 8000",
            bytes,
            Yardstick::Stream,
            logits,
            || cross_entropy(false),
        ),
        case(
            "cross-entropy forward + backward",
            "1280 x 8000",
            bytes,
            Yardstick::Stream,
            2.0 * logits,
            || cross_entropy(true),
        ),
        case(
            "layer norm forward",
            "32768 x 512",
            bytes,
            Yardstick::Stream,
            2.0 * rows_of_norm,
            || normalise(norm::Kind::Layer, false),
        ),
        case(
            "layer norm forward + backward",
            "32768 x 512",
            bytes,
            Yardstick::Stream,
            5.0 * rows_of_norm,
            || normalise(norm::Kind::Layer, true),
        ),
        case(
            "rms norm forward",
            "32768 x 512",
            bytes,
            Yardstick::Stream,
            2.0 * rows_of_norm,
            || normalise(norm::Kind::RootMeanSquare, false),
        ),
        case(
            "rms norm forward + backward",
            "32768 x 512",
            bytes,
            Yardstick::Stream,
            5.0 * rows_of_norm,
            || normalise(norm::Kind::RootMeanSquare, true),
        ),
        case(
            "adam",
            "6000000",
            bytes,
            Yardstick::Stream,
            28.0 * PARAMETERS as f64,
            adam,
        ),
        case(
            "squared norm",
            "6000000",
            bytes,
            Yardstick::Stream,
            4.0 * PARAMETERS as f64,
            squared_norm,
        ),
    ];
    type InPlace = fn(&mut [f32]);
    let functions: [(&str, InPlace); 3] = [
        ("exp", simd::exp_in_place),
        ("tanh", simd::tanh_in_place),
        ("sigmoid", simd::sigmoid_in_place),
    ];
    for (name, function) in functions {
        cases.push(case(
            name,
            "8192, one thread",
            Unit::Values,
            Yardstick::Nothing,
            8192.0,
            move || {
                let from = numbers(1, 8192, 3.0);
                let mut x = from.clone();
                Box::new(move || {
                    x.copy_from_slice(&from);
                    function(&mut x);
                    Ok(())
                })
            },
        ));
    }
    cases
}

fn case(
    kernel: &str,
    shape: &str,
    unit: Unit,
    yardstick: Yardstick,
    work: f64,
    prepare: impl Fn() -> Call + 'static,
) -> Case {
    Case {
        kernel: kernel.to_owned(),
        shape: shape.to_owned(),
        dtype: "f32",
        unit,
        yardstick,
        work,
        scores: None,
        prepare: Box::new(prepare),
    }
}

fn product() -> Call {
    let packed = Packed::new(&numbers(1, 256 * 768, 1.0), 256, 768);
    let a = numbers(2, 64 * 256, 1.0);
    let mut c = vec![0.0; 64 * 768];
    Box::new(move || {
        packed
            .as_ref()
            .map_err(Clone::clone)?
            .multiply(&a, &mut c, 64)
    })
}

fn recurrent_layer(unit: sequence::Unit, with_backward: bool) -> Call {
    let layer = Layer {
        steps: STEPS,
        batch: BATCH,
        hidden: HIDDEN,
        ..Layer::new(unit)
    };
    let (gates, states) = (unit.gates() * HIDDEN, unit.states() * HIDDEN);
    let inputs = LayerFields {
        x_projection: numbers(1, STEPS * BATCH * gates, 1.0),
        recurrent: numbers(2, HIDDEN * gates, 0.1),
        initial: numbers(3, BATCH * states, 1.0),
    };
    let d_states = numbers(4, STEPS * BATCH * states, 1.0);
    let mut rooms = layer
        .shapes()
        .and_then(|(of_inputs, of_written)| Ok((of_inputs.zeros()?, of_written.zeros()?)));
    Box::new(move || {
        let (gradients, written) = rooms.as_mut().map_err(|error| error.clone())?;
        layer.forward(inputs.slices(), written.slices_mut())?;
        if !with_backward {
            return Ok(());
        }
        let (read, to) = (written.slices(), gradients.slices_mut());
        layer.backward(inputs.slices(), read, &d_states, to)
    })
}

fn cross_entropy(with_gradient: bool) -> Call {
    let targets: Vec<u32> = (0..ROWS as u32)
        .map(|row| row * 37 % CLASSES as u32)
        .collect();
    let mut logits = numbers(1, ROWS * CLASSES, 3.0);
    Box::new(move || {
        let spec = CrossEntropy {
            rows: ROWS,
            classes: CLASSES,
            targets: &targets,
            ignore: Some(0),
            smoothing: 0.1,
        };
        match with_gradient {
            true => loss::forward_backward(&spec, &mut logits, 1.0, None)?,
            false => loss::forward(&spec, &logits, None)?,
        };
        Ok(())
    })
}

fn normalise(kind: norm::Kind, with_backward: bool) -> Call {
    let count = NORM_ROWS * NORM_WIDTH;
    let (input, d_output) = (numbers(1, count, 1.0), numbers(2, count, 1.0));
    let (weight, bias) = (numbers(3, NORM_WIDTH, 1.0), numbers(4, NORM_WIDTH, 1.0));
    let (mut output, mut d_input) = (vec![0.0; count], vec![0.0; count]);
    let (mut d_weight, mut d_bias) = (vec![0.0; NORM_WIDTH], vec![0.0; NORM_WIDTH]);
    Box::new(move || {
        let norm = Norm {
            kind,
            rows: NORM_ROWS,
            width: NORM_WIDTH,
            weight: Some(&weight),
            bias: Some(&bias),
            epsilon: 1e-5,
        };
        norm::forward(&norm, &input, &mut output)?;
        if !with_backward {
            return Ok(());
        }
        let mut gradients = norm::Gradients {
            input: &mut d_input,
            weight: Some(&mut d_weight),
            bias: Some(&mut d_bias),
        };
        norm::backward(&norm, &input, &d_output, &mut gradients)
    })
}

fn adam() -> Call {
    let (mut parameters, gradients) = (numbers(1, PARAMETERS, 1.0), numbers(2, PARAMETERS, 0.01));
    let (mut first, mut second) = (vec![0.0; PARAMETERS], vec![0.0; PARAMETERS]);
    let mut step = 0;
    Box::new(move || {
        step += 1;
        Adam::default().step(step, &mut parameters, &gradients, &mut first, &mut second)
    })
}

fn squared_norm() -> Call {
    let gradients = numbers(1, PARAMETERS, 0.01);
    Box::new(move || {
        std::hint::black_box(optim::squared_norm(&[&gradients]));
        Ok(())
    })
}
