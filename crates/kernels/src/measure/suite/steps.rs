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
    let operations = (Unit::Operations, Yardstick::Fma);
    let one_thread = (Unit::Operations, Yardstick::FmaOneThread);
    let bytes = (Unit::Bytes, Yardstick::Stream);
    let name = |kernel: &str, with_backward| match with_backward {
        true => format!("{kernel} forward + backward"),
        false => format!("{kernel} forward"),
    };
    let work = 2.0 * (64 * 256 * 768) as f64;
    let mut cases = vec![case("matmul", "64 x 256 x 768", one_thread, work, product)];
    for (kernel, unit, forward) in [
        ("gru", sequence::Unit::PyTorchGru, 6.0),
        ("lstm", sequence::Unit::Lstm, 8.0),
    ] {
        for (with_backward, times) in [(false, 1.0), (true, 3.0)] {
            let (name, work) = (name(kernel, with_backward), times * forward * cell);
            let prepare = move || recurrent_layer(unit, with_backward);
            cases.push(case(&name, &layer, operations, work, prepare));
        }
    }
    for (with_backward, times) in [(false, 1.0), (true, 2.0)] {
        let (name, work) = (name("cross-entropy", with_backward), times * logits);
        let prepare = move || cross_entropy(with_backward);
        cases.push(case(&name, "1280 x 8000", bytes, work, prepare));
    }
    for (kernel, kind) in [
        ("layer norm", norm::Kind::Layer),
        ("rms norm", norm::Kind::RootMeanSquare),
    ] {
        for (with_backward, times) in [(false, 2.0), (true, 5.0)] {
            let (name, work) = (name(kernel, with_backward), times * rows_of_norm);
            let prepare = move || normalise(kind, with_backward);
            cases.push(case(&name, "32768 x 512", bytes, work, prepare));
        }
    }
    let parameters = PARAMETERS as f64;
    cases.push(case("adam", "6000000", bytes, 28.0 * parameters, adam));
    let work = 4.0 * parameters;
    cases.push(case("squared norm", "6000000", bytes, work, squared_norm));
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
            (Unit::Values, Yardstick::Nothing),
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
    (unit, yardstick): (Unit, Yardstick),
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
        // The gradient of the output, in whose place that of the input is written.
        d_input.copy_from_slice(&d_output);
        let mut gradients = norm::Gradients {
            input: &mut d_input,
            weight: Some(&mut d_weight),
            bias: Some(&mut d_bias),
        };
        norm::backward(&norm, &input, &mut gradients)
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
