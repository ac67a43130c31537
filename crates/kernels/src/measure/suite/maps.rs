//! The parts of a network that reads images: convolution and batch norm.
//!
//! Of a convolution the operations of the plain sum are counted, of which rows in pairs need fewer: its share of the peak may exceed 1.

use crate::{
    batch_norm::{self, BatchNorm, Saved},
    convolution::{self, Convolution},
    measure::{
        case::{Call, Case, Unit, Yardstick},
        numbers,
    },
};

/// Images of a batch.
const BATCH: usize = 64;

pub(super) fn cases() -> Vec<Case> {
    let convolution =
        |channels: [usize; 2], side: usize, kernel: usize, stride: usize| Convolution {
            kernel: [kernel; 2],
            stride: [stride; 2],
            padding: [kernel / 2; 2],
            ..Convolution::new(BATCH, channels, [side; 2])
        };
    let mut cases = vec![];
    for c in [
        convolution([64, 64], 32, 3, 1),
        convolution([128, 128], 16, 3, 1),
        convolution([16, 16], 32, 3, 1),
        convolution([16, 32], 32, 3, 2),
        convolution([64, 256], 28, 1, 1),
    ] {
        let [inputs, outputs] = [c.inputs, c.outputs];
        let ([side, _], [kernel, _], [stride, _]) = (c.size, c.kernel, c.stride);
        let shape = format!("b{BATCH} c{inputs}-{outputs} {side}x{side} k{kernel} s{stride}");
        let products = BATCH * inputs * outputs * (side / stride * kernel).pow(2);
        for (name, passes) in [("forward", 1), ("forward + backward", 3)] {
            cases.push(Case {
                kernel: format!("convolution {name}"),
                shape: shape.clone(),
                dtype: "f32",
                unit: Unit::Operations,
                yardstick: Yardstick::Fma,
                work: (2 * passes * products) as f64,
                scores: None,
                prepare: Box::new(move || convolve(c, passes > 1)),
            });
        }
    }
    let (channels, side) = (64, 32);
    let bytes = BATCH * channels * side * side * size_of::<f32>();
    // Forward reads x twice and a residual and writes y; backward reads x, y and the gradient twice and writes two.
    for (name, times) in [("forward", 4), ("forward + backward", 12)] {
        cases.push(Case {
            kernel: format!("batch norm with residual and relu {name}"),
            shape: format!("b{BATCH} c{channels} {side}x{side}"),
            dtype: "f32",
            unit: Unit::Bytes,
            yardstick: Yardstick::Stream,
            work: (times * bytes) as f64,
            scores: None,
            prepare: Box::new(move || normalise(channels, side * side, times > 4)),
        });
    }
    cases
}

fn convolve(c: Convolution, with_backward: bool) -> Call {
    let outputs = c.output_size().map(|[height, width]| height * width);
    let length = BATCH * c.outputs * outputs.as_ref().copied().unwrap_or_default();
    let x = numbers(1, BATCH * c.inputs * c.size[0] * c.size[1], 1.0);
    let weight = numbers(2, c.outputs * c.inputs * c.kernel[0] * c.kernel[1], 0.05);
    let d_y = numbers(3, length, 1.0);
    let (mut y, mut d_x) = (vec![0.0; length], vec![0.0; x.len()]);
    let mut d_weight = vec![0.0; weight.len()];
    Box::new(move || {
        c.forward(&x, &weight, None, &mut y)?;
        if !with_backward {
            return Ok(());
        }
        c.backward_input(&weight, &d_y, &mut d_x)?;
        let mut gradients = convolution::Gradients {
            weight: &mut d_weight,
            bias: None,
        };
        c.backward_weight(&x, &d_y, &mut gradients)
    })
}

fn normalise(channels: usize, positions: usize, with_backward: bool) -> Call {
    let length = BATCH * channels * positions;
    let (x, residual) = (numbers(1, length, 1.0), numbers(2, length, 1.0));
    let (weight, bias) = (vec![1.0; channels], vec![0.0; channels]);
    let d_y = numbers(3, length, 1.0);
    let [mut y, mut d_x, mut d_residual] = [(); 3].map(|()| vec![0.0; length]);
    let (mut d_weight, mut d_bias) = (vec![0.0; channels], vec![0.0; channels]);
    Box::new(move || {
        let norm = BatchNorm {
            batch: BATCH,
            channels,
            positions,
            weight: &weight,
            bias: &bias,
            epsilon: 1e-5,
            relu: true,
        };
        let moments = norm.train(&x, Some(&residual), &mut y)?;
        if !with_backward {
            return Ok(());
        }
        let saved = Saved {
            x: &x,
            y: &y,
            moments: &moments,
            of_batch: true,
        };
        // The gradient of the output, in whose place that of the input is written.
        d_x.copy_from_slice(&d_y);
        let mut gradients = batch_norm::Gradients {
            input: &mut d_x,
            residual: Some(&mut d_residual),
            weight: &mut d_weight,
            bias: &mut d_bias,
        };
        norm.backward(&saved, &mut gradients)
    })
}
