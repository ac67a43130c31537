//! Convolutions: valid calls, forward and backward, against their definition in double precision, and calls with a slice or a size
//! that does not fit.

use regard_kernels::convolution::{Convolution, Gradients};

use crate::{check::argument, dice::Dice};

/// Multiply-adds of a case at most.
const MOST_PRODUCTS: usize = 1 << 15;

/// Everything of one call, each of exactly its length.
struct Call {
    x: Box<[f32]>,
    weight: Box<[f32]>,
    bias: Box<[f32]>,
    d_y: Box<[f32]>,
}

/// One random call.
pub fn case(dice: &mut Dice) -> Result<(), String> {
    let groups = 1 + dice.below(3);
    let mut pair = |end: usize, from: usize| [(); 2].map(|()| from + dice.below(end));
    let channels = pair(5, 1).map(|of_group| groups * of_group);
    // Some windows lie in the padding alone.
    let (kernel, stride, padding, dilation) = (pair(5, 1), pair(4, 1), pair(6, 0), pair(3, 1));
    let size = pair(20, 1);
    // With many maps a task has all rows of some, otherwise some rows of one.
    let batch = match dice.once_in(3) {
        true => 8 + dice.below(24),
        false => dice.below(4),
    };
    let mut convolution = Convolution {
        kernel,
        stride,
        padding,
        dilation,
        groups,
        ..Convolution::new(batch, channels, size)
    };
    let Ok(output) = convolution.output_size() else {
        // A window larger than the map is blamed on the kernel.
        return expect_blame(&convolution, "kernel");
    };
    let of_output = channels[0] / groups * kernel[0] * kernel[1];
    let positions = output[0] * output[1];
    if convolution.batch * channels[1] * positions * of_output > MOST_PRODUCTS {
        return Ok(());
    }
    let mut numbers = |count: usize| -> Box<[f32]> { dice.numbers(count, 1.0).into() };
    let mut call = Call {
        x: numbers(convolution.batch * channels[0] * size[0] * size[1]),
        weight: numbers(channels[1] * of_output),
        bias: numbers(channels[1]),
        d_y: numbers(convolution.batch * channels[1] * positions),
    };
    let lengths = [
        call.x.len(),
        call.weight.len(),
        call.bias.len(),
        call.d_y.len(),
    ];
    if dice.once_in(3) {
        let blamed = match dice.below(5) {
            0 if !call.x.is_empty() => shorten(&mut call.x, "x"),
            1 => shorten(&mut call.weight, "weight"),
            2 => shorten(&mut call.bias, "bias"),
            3 => {
                convolution.stride[1] = 0;
                "stride"
            }
            _ => {
                convolution.groups = 0;
                "inputs"
            }
        };
        let mut y = vec![f32::NAN; lengths[3]];
        return match convolution.forward(&call.x, &call.weight, Some(&call.bias), &mut y) {
            Ok(()) => Err(format!("accepted a wrong `{blamed}`: {convolution:?}")),
            Err(error) if argument(&error) != blamed => Err(format!(
                "blamed `{}` instead of `{blamed}`",
                argument(&error)
            )),
            Err(_) if y.iter().any(|y| !y.is_nan()) => {
                Err(format!("wrote before it refused `{blamed}`"))
            }
            Err(_) => Ok(()),
        };
    }
    let poison = |count: usize| -> Box<[f32]> { vec![f32::NAN; count].into() };
    let (mut y, mut d_x) = (poison(lengths[3]), poison(lengths[0]));
    let (mut d_weight, mut d_bias) = (poison(lengths[1]), poison(lengths[2]));
    let refused = |error| format!("refused a right call: {error}: {convolution:?}");
    convolution
        .forward(&call.x, &call.weight, Some(&call.bias), &mut y)
        .map_err(refused)?;
    convolution
        .backward_input(&call.weight, &call.d_y, &mut d_x)
        .map_err(refused)?;
    let mut gradients = Gradients {
        weight: &mut d_weight,
        bias: Some(&mut d_bias),
    };
    convolution
        .backward_weight(&call.x, &call.d_y, &mut gradients)
        .map_err(refused)?;
    let truth = definition(&convolution, output, &call);
    for (name, found, exact) in [
        ("y", &y, &truth[0]),
        ("d_x", &d_x, &truth[1]),
        ("d_weight", &d_weight, &truth[2]),
        ("d_bias", &d_bias, &truth[3]),
    ] {
        for (at, (&found, &[sum, size])) in found.iter().zip(exact).enumerate() {
            // Rounded once for each term, of a size that is at most the sum of the terms' sizes.
            let bound = 64.0 * f64::from(f32::EPSILON) * (size + 1e-3);
            let error = (f64::from(found) - sum).abs();
            if error.is_nan() || error > bound {
                return Err(format!(
                    "{name}[{at}] is {found} in place of {sum}: {convolution:?}"
                ));
            }
        }
    }
    Ok(())
}

fn shorten(slice: &mut Box<[f32]>, name: &'static str) -> &'static str {
    let shorter = slice[..slice.len() - 1].into();
    *slice = shorter;
    name
}

fn expect_blame(convolution: &Convolution, name: &str) -> Result<(), String> {
    match convolution.output_size() {
        Err(error) if argument(&error) == name => Ok(()),
        other => Err(format!(
            "{other:?} instead of `{name}` being blamed: {convolution:?}"
        )),
    }
}

/// `[y, ẋ, ẇ, ḃ]`, each number with the sum of the sizes of its terms.
fn definition(
    c: &Convolution,
    [out_height, out_width]: [usize; 2],
    call: &Call,
) -> [Vec<[f64; 2]>; 4] {
    let zeros = |like: &[f32]| vec![[0.0; 2]; like.len()];
    let [mut y, mut d_x] = [zeros(&call.d_y), zeros(&call.x)];
    let [mut d_weight, mut d_bias] = [zeros(&call.weight), zeros(&call.bias)];
    let add = |to: &mut [f64; 2], term: f64| {
        to[0] += term;
        to[1] += term.abs();
    };
    let (inputs, [height, width]) = (c.inputs / c.groups, c.kernel);
    for (at, y) in y.iter_mut().enumerate() {
        let (u, rest) = (at % out_width, at / out_width);
        let (t, rest) = (rest % out_height, rest / out_height);
        let (o, n) = (rest % c.outputs, rest / c.outputs);
        add(y, f64::from(call.bias[o]));
        add(&mut d_bias[o], f64::from(call.d_y[at]));
        let group = o / (c.outputs / c.groups);
        for k in 0..inputs * height * width {
            let (channel, j, i) = (k / (height * width), k / width % height, k % width);
            let a = (t * c.stride[0] + j * c.dilation[0]).checked_sub(c.padding[0]);
            let b = (u * c.stride[1] + i * c.dilation[1]).checked_sub(c.padding[1]);
            let (Some(a), Some(b)) = (a, b) else { continue };
            if a >= c.size[0] || b >= c.size[1] {
                continue;
            }
            let from = ((n * c.inputs + group * inputs + channel) * c.size[0] + a) * c.size[1] + b;
            let of = o * inputs * height * width + k;
            let [x, w, d] = [call.x[from], call.weight[of], call.d_y[at]].map(f64::from);
            add(y, x * w);
            add(&mut d_x[from], w * d);
            add(&mut d_weight[of], x * d);
        }
    }
    [y, d_x, d_weight, d_bias]
}
