//! One call of an [`Attention`]: fused, plain, and a softmax in `f64` on the host.

mod gradients;
mod host;
mod invariants;
mod problem;

use burn::tensor::{Bool, DType, Device, Tensor};
use regard_nn::{
    Attended, Attention, Observe, Path,
    mask::{Grid, Mask},
    position::Alibi,
};

use crate::{
    Outcome,
    compare::{close, same},
    dice::Dice,
    tensors::{Input, Spread, numbers},
};

/// A call with all of its arguments.
struct Problem {
    device: Device,
    dtype: DType,
    spread: Spread,
    grid: Grid,
    key_heads: usize,
    size: usize,
    value_size: usize,
    attention: Attention,
    mask: Mask,
    query: Input<4>,
    key: Input<4>,
    value: Input<4>,
    bias: Option<Input<4>>,
    /// The input whose precision differs from that of the query.
    odd: Option<usize>,
    alibi: Option<Alibi>,
    carried: Option<Input<4>>,
    seed: Option<u64>,
    differentiable: bool,
    /// True where no query sees a key, so that the key may hold anything: `[batch, key heads, keys, 1]`.
    poison: Option<Tensor<4, Bool>>,
}

/// The results of one run, as numbers.
struct Run {
    context: Vec<f64>,
    attended: Attended,
    /// The gradients of query, key, value and bias.
    gradients: Vec<Vec<f64>>,
}

pub fn case(dice: &mut Dice) -> Outcome {
    let device = match dice.once_in(3) {
        true => Device::flex(),
        false => Device::flex().autodiff(),
    };
    let Some(problem) = Problem::new(dice, device) else {
        return Ok("no mask of such sizes");
    };
    let options = problem.options();
    calls(dice, problem).map_err(|error| format!("{error}; {options}"))
}

/// All calls of a case.
fn calls(dice: &mut Dice, mut problem: Problem) -> Outcome {
    let observe = observe(dice, &problem.grid);
    let auto = problem.run(Path::Auto, &observe, problem.dtype, true);
    let plain = problem.run(Path::Plain, &observe, problem.dtype, true);
    let (auto, plain) = match (auto, plain) {
        (Ok(auto), Ok(plain)) => (auto, plain),
        (Err(_), Err(_)) => return Ok("attention refused"),
        (auto, plain) => {
            let [auto, plain] = [auto, plain].map(|run| run.err().map(|error| error.to_string()));
            return Err(format!("one path refuses: auto {auto:?}, plain {plain:?}"));
        }
    };
    problem.shapes(&auto, &observe)?;
    problem.shapes(&plain, &observe)?;
    let unobserved = problem.run(Path::Auto, &Observe::Nothing, problem.dtype, false);
    let unobserved = unobserved.map_err(|error| format!("refused unobserved: {error}"))?;
    same(
        "context, observed and not,",
        &auto.context,
        &unobserved.context,
    )?;
    if problem.grid_is_empty() {
        return Ok("attention to nothing");
    }
    let seen = problem.seen()?;
    let weights = |path| {
        let run = problem.run(path, &Observe::Weights, problem.dtype, false);
        run.map(|run| numbers(&run.attended.weights.expect("weights were asked for")))
            .map_err(|error| error.to_string())
    };
    let weights = [weights(Path::Auto)?, weights(Path::Plain)?];
    for (path, weights) in ["auto", "plain"].iter().zip(&weights) {
        for (i, (&weight, &seen)) in weights.iter().zip(&seen).enumerate() {
            if !seen && weight != 0.0 {
                return Err(format!("{path}: hidden weight {i} is {weight}"));
            }
        }
    }
    if !problem.is_bounded() {
        return Ok("attention of any numbers");
    }
    for (path, (weights, run)) in ["auto", "plain"]
        .iter()
        .zip(weights.iter().zip([&auto, &plain]))
    {
        problem.invariants(path, weights, &seen, run)?;
    }
    if problem.dtype != DType::F32 {
        return Ok("attention in another precision");
    }
    if !problem.is_softmax() {
        same("weights by both paths", &weights[0], &weights[1])?;
        same("context by both paths", &auto.context, &plain.context)?;
        return Ok("attention without a kernel");
    }
    problem.compare(&seen, &weights, [&auto, &plain], &observe)?;
    if problem.spoil(dice, &seen) {
        let spoilt = problem.run(Path::Auto, &observe, problem.dtype, true);
        let spoilt = spoilt.map_err(|error| format!("poison refused: {error}"))?;
        let tolerance = 1e-4 * (1.0 + problem.value.largest()) * problem.raise();
        close(
            "context beside poison",
            &spoilt.context,
            &auto.context,
            tolerance,
        )?;
        problem.gradients_are_finite("beside poison", &spoilt)?;
    }
    Ok("attention compared")
}

fn observe(dice: &mut Dice, grid: &Grid) -> Observe {
    match dice.below(7) {
        0 => Observe::Weights,
        1 => {
            let beyond = usize::from(dice.once_in(40));
            Observe::Rows(
                (0..dice.below(4))
                    .map(|_| dice.below(grid.queries.max(1)) + beyond)
                    .collect(),
            )
        }
        2 => Observe::Entropy,
        3 => Observe::ColumnSums,
        4 | 5 => Observe::TopK(dice.below(grid.keys + 1) + usize::from(!dice.once_in(20))),
        _ => Observe::Nothing,
    }
}
