//! Batch norm: valid calls, by the moments of the batch and by given ones, forward and backward, against their definition in double
//! precision, and calls with a slice, a size or an `ε` that does not fit.
//!
//! What the ReLU passes is read from the result, which was compared before: a number near 0 may be on either side.

use regard_kernels::{
    KernelError,
    batch_norm::{BatchNorm, Gradients, Moments, Saved},
};

use crate::{check::argument, dice::Dice};

/// Rounding of a product or a sum.
const ROUNDING: f64 = 8.0 * f32::EPSILON as f64;
/// Rounding of a sum in blocks of 512 numbers, in eight chains at least.
const OF_SUM: f64 = 80.0 * f32::EPSILON as f64;
/// Numbers below this may become 0.
const TINY: f64 = 2.0 * f32::MIN_POSITIVE as f64;

/// Everything of one call, each of exactly its length.
struct Call {
    batch: usize,
    channels: usize,
    positions: usize,
    weight: Box<[f32]>,
    bias: Box<[f32]>,
    epsilon: f64,
    relu: bool,
    x: Box<[f32]>,
    residual: Option<Box<[f32]>>,
    /// Of a trained network; without them those of the batch.
    given: Option<Moments>,
    y: Box<[f32]>,
    /// `ẏ`, then `ẋ`.
    d: Box<[f32]>,
    d_residual: Option<Box<[f32]>>,
    d_weight: Box<[f32]>,
    d_bias: Box<[f32]>,
}

impl Call {
    fn random(dice: &mut Dice) -> Self {
        let (batch, channels) = (dice.below(6), dice.below(5));
        let positions = match dice.below(12) {
            0 => 500 + dice.below(600), // more than a block
            1 => dice.below(2),
            _ => 1 + dice.below(40),
        };
        let count = batch * channels * positions;
        let (spread, relu) = (
            dice.pick(&[1.0, 1e-3, 1e3, 1e-12, 1e12, 1e18]),
            dice.once_in(2),
        );
        let shift = spread * dice.pick(&[0.0, 3.0, 100.0]);
        let constant = dice.once_in(8);
        let mut numbers =
            |count: usize, scale: f32| -> Box<[f32]> { dice.numbers(count, scale).into() };
        let mut x = numbers(count, if constant { 0.0 } else { spread });
        x.iter_mut().for_each(|x| *x += shift);
        let residual = numbers(count, 1.0);
        let mut variance = numbers(channels, spread).into_vec();
        variance.iter_mut().for_each(|x| *x = x.abs() * spread);
        let mean = numbers(channels, spread).into_vec();
        let (weight, bias) = (numbers(channels, 2.0), numbers(channels, 1.0));
        let d = numbers(count, 1.0);
        let [with_residual, given] = [(); 2].map(|()| dice.once_in(2));
        let poison = |count: usize| -> Box<[f32]> { vec![f32::NAN; count].into() };
        Self {
            batch,
            channels,
            positions,
            weight,
            bias,
            epsilon: dice.pick(&[0.0, 1e-5, 1.0, 1e-30]),
            relu,
            x,
            residual: with_residual.then_some(residual),
            given: given.then_some(Moments { mean, variance }),
            y: poison(count),
            d,
            d_residual: with_residual.then(|| poison(count)),
            d_weight: poison(channels),
            d_bias: poison(channels),
        }
    }

    fn norm(&self) -> BatchNorm<'_> {
        BatchNorm {
            batch: self.batch,
            channels: self.channels,
            positions: self.positions,
            weight: &self.weight,
            bias: &self.bias,
            epsilon: self.epsilon,
            relu: self.relu,
        }
    }

    /// The moments that it used, and what it wrote.
    fn forward(&self) -> (Result<Moments, KernelError>, Box<[f32]>) {
        let mut y = self.y.clone();
        let residual = self.residual.as_deref();
        let answer = match &self.given {
            None => self.norm().train(&self.x, residual, &mut y),
            Some(moments) => {
                let answer = self.norm().infer(moments, &self.x, residual, &mut y);
                answer.map(|()| moments.clone())
            }
        };
        (answer, y)
    }

    /// `[ẋ, residual', ẇ, ḃ]`
    fn backward(&self, moments: &Moments, y: &[f32]) -> Result<[Box<[f32]>; 4], KernelError> {
        let (mut d, mut d_residual) = (self.d.clone(), self.d_residual.clone());
        let (mut d_weight, mut d_bias) = (self.d_weight.clone(), self.d_bias.clone());
        let saved = Saved {
            x: &self.x,
            y,
            moments,
            of_batch: self.given.is_none(),
        };
        let mut gradients = Gradients {
            input: &mut d,
            residual: d_residual.as_deref_mut(),
            weight: &mut d_weight,
            bias: &mut d_bias,
        };
        self.norm().backward(&saved, &mut gradients)?;
        Ok([d, d_residual.unwrap_or_default(), d_weight, d_bias])
    }
}

/// One random call.
pub fn case(dice: &mut Dice) -> Result<(), String> {
    let mut call = Call::random(dice);
    let options = format!(
        "[{}, {}, {}], ε {}, relu {}, residual {}, given {}",
        call.batch,
        call.channels,
        call.positions,
        call.epsilon,
        call.relu,
        call.residual.is_some(),
        call.given.is_some()
    );
    let verdict = match dice.below(6) {
        0 | 1 => damaged(dice, &mut call),
        2 => absurd(dice, &mut call),
        _ => valid(dice, &call),
    };
    verdict.map_err(|error| format!("{error}: {options}"))
}

fn valid(dice: &mut Dice, call: &Call) -> Result<(), String> {
    let refused = |error| format!("refused a right call: {error}");
    let (answer, y) = call.forward();
    let moments = answer.map_err(refused)?;
    // Without a ReLU the output is not read; without a residual it may be left out.
    let kept: &[f32] = match !call.relu || call.residual.is_none() && dice.once_in(2) {
        true => &[],
        false => &y,
    };
    let [d_x, d_residual, d_weight, d_bias] = call.backward(&moments, kept).map_err(refused)?;
    let truth = definition(call, &y);
    for (name, found, exact) in [
        ("mean", &moments.mean[..], &truth.mean),
        ("variance", &moments.variance[..], &truth.variance),
        ("y", &y[..], &truth.y),
        ("d_x", &d_x[..], &truth.d_x),
        ("d_residual", &d_residual[..], &truth.d_residual),
        ("d_weight", &d_weight[..], &truth.d_weight),
        ("d_bias", &d_bias[..], &truth.d_bias),
    ] {
        for (at, (&found, &[sum, bound])) in found.iter().zip(exact).enumerate() {
            let error = (f64::from(found) - sum).abs();
            if bound < f64::INFINITY && (error.is_nan() || error > bound) {
                return Err(format!(
                    "{name}[{at}] is {found} in place of {sum} to within {bound:e}"
                ));
            }
        }
    }
    Ok(())
}

/// Something is given another length, or `ε` is none.
fn damaged(dice: &mut Dice, call: &mut Call) -> Result<(), String> {
    let right = Moments {
        mean: vec![0.0; call.channels],
        variance: vec![1.0; call.channels],
    };
    let mut moments = call.given.clone().unwrap_or(right);
    let mut saved_y: Box<[f32]> = vec![1.0; call.x.len()].into();
    let (longer, wrong) = (dice.once_in(2), dice.below(16));
    let resized = |slice: &[f32]| {
        let length = match longer || slice.is_empty() {
            true => slice.len() + 1,
            false => slice.len() - 1,
        };
        let mut slice = slice.to_vec();
        slice.resize(length, f32::NAN);
        slice
    };
    let resize = |slice: &mut Box<[f32]>, name: &'static str| {
        *slice = resized(slice).into();
        name
    };
    let backward = wrong >= 7;
    let blamed = match wrong {
        0 => resize(&mut call.x, "x"),
        1 => resize(&mut call.y, "y"),
        2 | 7 => resize(&mut call.weight, "weight"),
        3 | 8 => resize(&mut call.bias, "bias"),
        4 | 9 => {
            call.epsilon = dice.pick(&[-1.0, f64::NAN, f64::INFINITY]);
            "epsilon"
        }
        5 if let Some(residual) = &mut call.residual => resize(residual, "residual"),
        6 if let Some(given) = &mut call.given => {
            given.variance = resized(&given.variance);
            "moments.variance"
        }
        10 => resize(&mut call.x, "saved.x"),
        11 => resize(&mut call.d, "gradients.input"),
        12 => resize(&mut call.d_weight, "gradients.weight"),
        13 => {
            moments.mean = resized(&moments.mean);
            "moments.mean"
        }
        14 if call.relu => {
            // None at all may be left out.
            saved_y = vec![1.0; saved_y.len() + 1].into();
            "saved.y"
        }
        _ => match &mut call.d_residual {
            Some(d_residual) if backward => resize(d_residual, "gradients.residual"),
            _ => return Ok(()),
        },
    };
    if backward {
        return match call.backward(&moments, &saved_y) {
            Err(error) => blames(&[blamed], &error),
            Ok(_) => Err(format!("accepted a wrong `{blamed}`")),
        };
    }
    match call.forward() {
        (Ok(_), _) => Err(format!("accepted a wrong `{blamed}`")),
        (Err(_), y) if y.iter().any(|y| !y.is_nan()) => {
            Err(format!("wrote before it refused `{blamed}`"))
        }
        (Err(error), _) => blames(&[blamed], &error),
    }
}

/// A size that the slices do not have. If they hold nothing, it may be the size of nothing.
fn absurd(dice: &mut Dice, call: &mut Call) -> Result<(), String> {
    let huge = dice.pick(&[7000, 1 << 40, usize::MAX / 2, usize::MAX]);
    let axis = dice.below(3);
    let sizes = [&mut call.channels, &mut call.batch, &mut call.positions];
    *sizes[axis] = huge;
    let of_channels = axis == 0;
    let nothing = [call.batch, call.channels, call.positions].contains(&0);
    let blamed: &[&str] = match of_channels {
        true => &["weight", "moments.mean"],
        false => &["x", "saved.x"],
    };
    let moments = Moments {
        mean: vec![0.0; call.channels.min(4)],
        variance: vec![1.0; call.channels.min(4)],
    };
    let answers = [
        call.forward().0.map(|_| ()),
        call.backward(&moments, &call.y).map(|_| ()),
    ];
    answers.into_iter().try_for_each(|answer| match answer {
        Ok(()) if nothing && !of_channels => Ok(()),
        Ok(()) => Err(format!("accepted {huge} in place of a size")),
        Err(error) => blames(blamed, &error),
    })
}

fn blames(names: &[&str], error: &KernelError) -> Result<(), String> {
    match names.contains(&argument(error)) {
        true => Ok(()),
        false => Err(format!("{error} instead of blame for {names:?}")),
    }
}

/// What a call should give: each number, and how far rounding may lead away from it; infinitely far where a variance may be 0, and
/// there is no `ε`.
struct Truth {
    mean: Vec<[f64; 2]>,
    variance: Vec<[f64; 2]>,
    y: Vec<[f64; 2]>,
    d_x: Vec<[f64; 2]>,
    d_residual: Vec<[f64; 2]>,
    d_weight: Vec<[f64; 2]>,
    d_bias: Vec<[f64; 2]>,
}

/// The definition; what the ReLU passes follows from the `y` that was found.
fn definition(call: &Call, found: &[f32]) -> Truth {
    let [of_maps, of_channels] =
        [call.x.len(), call.channels].map(|count| vec![[0.0, f64::INFINITY]; count]);
    let mut truth = Truth {
        mean: of_channels.clone(),
        variance: of_channels.clone(),
        y: of_maps.clone(),
        d_x: of_maps.clone(),
        d_residual: of_maps,
        d_weight: of_channels.clone(),
        d_bias: of_channels,
    };
    for c in 0..call.channels {
        let map = |n: usize| (n * call.channels + c) * call.positions;
        let places: Vec<usize> = (0..call.batch)
            .flat_map(|n| map(n)..map(n) + call.positions)
            .collect();
        channel(call, found, c, &places, &mut truth);
    }
    truth
}

/// The numbers of channel `c`, which lie at `places`.
fn channel(call: &Call, found: &[f32], c: usize, places: &[usize], truth: &mut Truth) {
    let count = places.len().max(1) as f64;
    let x = |at: usize| f64::from(call.x[at]);
    let mean_of = |f: &dyn Fn(usize) -> f64| places.iter().map(|&at| f(at)).sum::<f64>() / count;
    let [mean, off_mean, variance, off_variance] = match &call.given {
        Some(given) => {
            let [mean, variance] = [given.mean[c], given.variance[c]].map(f64::from);
            [mean, 0.0, variance, 0.0]
        }
        None => {
            let mean = mean_of(&x);
            let off = OF_SUM * mean_of(&|at| x(at).abs()) + TINY;
            let variance = mean_of(&|at| (x(at) - mean).powi(2));
            let off_variance = off * off + OF_SUM * (variance + off * off) + TINY;
            [mean, off, variance, off_variance]
        }
    };
    truth.mean[c] = [mean, off_mean];
    truth.variance[c] = [variance, off_variance];
    let root = |variance: f64| (variance + call.epsilon).sqrt().recip();
    let r = root(variance);
    let off_r = root((variance - off_variance).max(0.0)) - r + ROUNDING * r;
    if !off_r.is_finite() {
        return;
    }
    let passed = |at: usize| match !call.relu || found[at] > 0.0 {
        true => f64::from(call.d[at]),
        false => 0.0,
    };
    let (level, size) = (mean_of(&passed), mean_of(&|at| passed(at).abs()));
    let off_level = OF_SUM * size;
    truth.d_bias[c] = [level * count, off_level * count + TINY];
    places
        .iter()
        .for_each(|&at| truth.d_residual[at] = [passed(at), 0.0]);

    let [weight, bias] = [call.weight[c], call.bias[c]].map(f64::from);
    let normal = |at: usize| {
        let difference = x(at) - mean;
        let off = off_mean + ROUNDING * difference.abs();
        let off_normal = difference.abs() * off_r + off * (r + off_r);
        [difference * r, off_normal]
    };
    for &at in places {
        let [normal, off] = normal(at);
        let residual = call.residual.as_ref().map_or(0.0, |x| f64::from(x[at]));
        let value = normal * weight + bias + residual;
        let size = (normal * weight).abs() + bias.abs() + residual.abs();
        let bound = weight.abs() * off + ROUNDING * (size + weight.abs() * off) + TINY;
        truth.y[at] = [if call.relu { value.max(0.0) } else { value }, bound];
    }
    let along = mean_of(&|at| passed(at) * normal(at)[0]);
    let off_normals = mean_of(&|at| passed(at).abs() * normal(at)[1]);
    let size = mean_of(&|at| (passed(at) * normal(at)[0]).abs());
    let off_along = off_normals + OF_SUM * (size + off_normals);
    truth.d_weight[c] = [along * count, off_along * count + TINY];
    for &at in places {
        let ([normal, off_normal], g) = (normal(at), passed(at));
        let (mut slope, mut size, mut off) = (g, g.abs(), 0.0);
        if call.given.is_none() {
            slope -= level + normal * along;
            size += level.abs() + (normal * along).abs();
            off = off_level + normal.abs() * off_along + off_normal * (along.abs() + off_along);
        }
        let bound = off_r * (size + off) + r * off + ROUNDING * (r + off_r) * (size + off);
        truth.d_x[at] = [weight * r * slope, weight.abs() * bound + TINY];
    }
}
