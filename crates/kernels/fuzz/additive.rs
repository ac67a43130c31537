//! Additive attention: valid calls against the definition, forward and backward, and calls with a slice of a wrong
//! length.

use regard_kernels::{
    additive::{self, Gradients, Input, PaddingMask, Shape},
    reference,
};

use crate::{
    check::{UNTOUCHED, argument, largest},
    dice::Dice,
    problem::huge,
};

/// The slices of a call.
const NAMES: [&str; 5] = ["query", "key", "v", "value", "bias"];

/// One random call.
pub fn case(dice: &mut Dice, comparable: bool) -> Result<(), String> {
    let shape = Shape {
        batch: dice.below(4),
        queries: dice.below(20),
        keys: dice.below(24),
        dim: dice.below(40),
        value_dim: dice.below(40),
    };
    let Shape {
        batch,
        queries,
        keys,
        dim,
        value_dim,
    } = shape;
    // Beyond 43, terms are not computed as fractions of exponentials.
    let spread = dice.pick(&[0.1, 1.0, 3.0, 60.0]);
    let mut inputs = [
        dice.numbers(batch * queries * dim, spread),
        dice.numbers(batch * keys * dim, spread),
        dice.numbers(dim, 1.0),
        dice.numbers(batch * keys * value_dim, 1.0),
        dice.numbers(batch * queries * keys, 2.0),
    ]
    .map(Vec::into_boxed_slice);
    let biased = dice.once_in(3);
    let huge_biases = biased && dice.once_in(2);
    let lengths: Box<[u32]> = (0..batch).map(|_| dice.below(keys + 1) as u32).collect();
    let mask: Box<[u8]> = (0..batch * keys).map(|_| dice.below(3) as u8).collect();
    let choice = dice.below(3);
    let keep = match choice {
        0 => PaddingMask::All,
        1 => PaddingMask::Lengths(&lengths),
        _ => PaddingMask::Mask(&mask),
    };
    let kept = |row: usize, key: usize| match choice {
        0 => true,
        1 => key < lengths[row] as usize,
        _ => mask[row * keys + key] != 0,
    };
    for row in 0..batch {
        for key in (0..keys).filter(|&key| !kept(row, key)) {
            inputs[1][(row * keys + key) * dim..][..dim].fill(f32::NAN);
            inputs[3][(row * keys + key) * value_dim..][..value_dim].fill(f32::INFINITY);
        }
    }
    if huge_biases {
        // Either the scores are the biases alone, of any size, or the biases hide all keys but the first that is kept: in
        // both cases a large bias does not round another term of a score.
        let alone = dice.once_in(2);
        if alone {
            inputs[2].fill(0.0);
        }
        for (at, bias) in inputs[4].iter_mut().enumerate() {
            let (row, key) = (at / keys / queries, at % keys);
            let first = (0..keys).find(|&key| kept(row, key));
            if alone {
                *bias = huge(dice);
            } else if dice.once_in(2) && first != Some(key) {
                *bias = -huge(dice).abs();
            }
        }
    }
    let truth = inputs.clone();
    let mut blamed = None;
    if dice.once_in(4) {
        let which = dice.below(if biased { 5 } else { 4 });
        if let Some((_, rest)) = inputs[which].split_last() {
            inputs[which] = rest.into();
            blamed = Some(NAMES[which]);
        }
    }
    let [query, key, v, value, bias] = &inputs;
    let input = Input {
        shape,
        query,
        key,
        v,
        value,
        keep,
        bias: biased.then_some(bias),
    };
    let untouched = |count: usize| vec![UNTOUCHED; count].into_boxed_slice();
    let mut context = untouched(batch * queries * value_dim);
    let mut weights = untouched(batch * queries * keys);
    match (
        blamed,
        additive::forward(&input, &mut context, &mut weights),
    ) {
        (Some(name), Ok(())) => return Err(format!("accepted a short `{name}`")),
        (Some(name), Err(error)) if argument(&error) == name => {
            return match context.iter().chain(&weights).all(|&x| x == UNTOUCHED) {
                true => Ok(()),
                false => Err(format!("wrote before it refused `{name}`")),
            };
        }
        (_, Err(error)) => return Err(format!("refused a right call: {error}")),
        (None, Ok(())) => {}
    }
    let d_context: Box<[f32]> = dice.numbers(context.len(), 1.0).into();
    let mut slopes = truth.each_ref().map(|like| untouched(like.len()));
    let [d_query, d_key, d_v, d_value, d_bias] = &mut slopes;
    let mut gradients = Gradients {
        query: d_query,
        key: d_key,
        v: d_v,
        value: d_value,
        bias: biased.then_some(d_bias),
        accumulate: false,
    };
    additive::backward(&input, &weights, &d_context, None, &mut gradients)
        .map_err(|error| format!("backward refused a right call: {error}"))?;
    if !biased {
        slopes[4].fill(0.0);
    }
    for (name, all) in ["context", "weights"].iter().zip([&context, &weights]) {
        if all.iter().any(|&x| x == UNTOUCHED || !x.is_finite()) {
            return Err(format!("{name} is left out or not finite"));
        }
    }
    for (name, all) in NAMES.iter().zip(&slopes) {
        if all.iter().any(|&x| x == UNTOUCHED || !x.is_finite()) {
            return Err(format!("the gradient of {name} is left out or not finite"));
        }
    }
    if !comparable {
        return Ok(());
    }
    let [query, key, v, value, bias] = truth
        .each_ref()
        .map(|x| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>());
    let definition = reference::Additive {
        shape,
        query: &query,
        key: &key,
        v: &v,
        value: &value,
        kept: &kept,
        bias: biased.then_some(&bias),
    };
    let (of_context, of_weights) = definition.forward();
    let d_context: Vec<f64> = d_context.iter().map(|&x| f64::from(x)).collect();
    let slope = definition.backward(&d_context, None);
    // A score's rounding is that of `dim` terms of at most 1 and their sum; the rounding of what follows is that of sums
    // over keys.
    let epsilon = f64::from(f32::EPSILON);
    let score = epsilon * (dim as f64 * 8.0 + dim as f64 * spread as f64 + 16.0);
    let relative = 2.0 * score.exp_m1() + epsilon * (keys as f64 + value_dim as f64 + 64.0);
    let close = |name: &str, found: &[f32], expected: &[f64], size: f64| {
        let bound = 8.0 * relative * size + 1e-30;
        for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
            let error = (f64::from(found) - expected).abs();
            if error.is_nan() || error > bound {
                return Err(format!(
                    "{name} {index} is {found}, expected {expected} to within {bound:e}"
                ));
            }
        }
        Ok(())
    };
    let of_score = value_dim as f64 * largest(&d_context) * 2.0;
    let pairs = (queries * keys) as f64;
    close("context", &context, &of_context, 1.0)?;
    close("weight", &weights, &of_weights, 1.0)?;
    close("gradient of query", &slopes[0], &slope.query, of_score)?;
    close(
        "gradient of key",
        &slopes[1],
        &slope.key,
        of_score * queries as f64,
    )?;
    close(
        "gradient of v",
        &slopes[2],
        &slope.v,
        of_score * pairs * batch as f64,
    )?;
    close(
        "gradient of value",
        &slopes[3],
        &slope.value,
        largest(&d_context) * queries as f64,
    )?;
    if biased {
        close("gradient of bias", &slopes[4], &slope.bias, of_score)?;
    }
    Ok(())
}
