//! One case: makes a call, perhaps damages it, and judges the result.

use regard_kernels::{
    KernelError,
    dot::{self, Cache},
};

use crate::{
    additive, batch_norm,
    bounds::{Gradients, Truth},
    convolution,
    damage::{Results, damage},
    dice::Dice,
    pool,
    problem::{Problem, Tensor, tensor},
    rotary, stored,
};

/// The outcome of a case.
pub struct Verdict {
    pub what: &'static str,
    /// Whether the result was compared with the definition.
    pub compared: bool,
}

/// The value that fills outputs before the call.
pub const UNTOUCHED: f32 = -7.625e30;

/// Runs the case of a seed.
pub fn case(seed: u64) -> Result<Verdict, String> {
    let dice = &mut Dice::new(seed);
    let problem = Problem::new(dice);
    let options = problem.options();
    calls(seed, dice, problem).map_err(|error| format!("{error}\n{options}"))
}

/// All calls of a case.
fn calls(seed: u64, dice: &mut Dice, mut problem: Problem) -> Result<Verdict, String> {
    let sizes = problem.sizes;
    let shape = sizes.shape(sizes.heads, sizes.queries, sizes.value_dim);
    let rows: usize = shape[..3].iter().product();
    let mut results = Results {
        output: tensor(dice, shape, false, |_| UNTOUCHED),
        lse: dice.once_in(2).then(|| vec![UNTOUCHED; 3 * rows].into()),
    };
    if dice.once_in(6) {
        poison(dice, &mut problem);
    }
    let blamed = match dice.once_in(3) {
        true => damage(dice, &mut problem, &mut results),
        false => None,
    };
    let answer = forward(&problem, &mut results);
    match (blamed, answer) {
        (Some(blamed), Ok(())) => Err(format!("accepted a wrong {blamed:?}")),
        (Some(blamed), Err(error)) => {
            let name = argument(&error);
            if !blamed.iter().any(|blamed| name.starts_with(blamed))
                || !error.to_string().contains(name)
            {
                return Err(format!("blamed `{name}` instead of {blamed:?}: {error}"));
            }
            if results.output.data.iter().any(|&x| x != UNTOUCHED) {
                return Err(format!("wrote before it refused `{name}`"));
            }
            Ok(Verdict {
                what: "refused by name",
                compared: false,
            })
        }
        (None, Err(error)) => Err(format!("refused a right call: {error}")),
        (None, Ok(())) => {
            gaps_are_untouched(&results)?;
            let work = sizes.heads * sizes.sequences * sizes.longest.0 * sizes.longest.1;
            let compared =
                seed.is_multiple_of(4) && work * (sizes.dim + sizes.value_dim) < 1_000_000;
            let truth = compared.then(|| Truth::new(&problem));
            let truth = truth.as_ref();
            if let Some(truth) = truth {
                compare(truth, &results, 0.0)?;
            }
            backward(dice, &problem, &results, truth)?;
            observe(&problem, &results, truth).map_err(|error| format!("observe: {error}"))?;
            decode(dice, &problem, truth)?;
            additive::case(dice, compared).map_err(|error| format!("additive: {error}"))?;
            stored::case(dice, problem, compared)
                .map_err(|error| format!("half precision: {error}"))?;
            rotary::case(dice).map_err(|error| format!("rotary: {error}"))?;
            if compared {
                convolution::case(dice).map_err(|error| format!("convolution: {error}"))?;
                pool::case(dice).map_err(|error| format!("pooling: {error}"))?;
                batch_norm::case(dice).map_err(|error| format!("batch norm: {error}"))?;
            }
            Ok(Verdict {
                what: "computed",
                compared,
            })
        }
    }
}

fn forward(problem: &Problem, results: &mut Results) -> Result<(), KernelError> {
    let mut lse = results.lse.take();
    let answer = dot::forward(
        &problem.attention(),
        problem.query.view(),
        problem.key.view(),
        problem.value.view(),
        results.output(),
        lse.as_deref_mut(),
    );
    results.lse = lse;
    answer
}

/// The gradients of the call; sometimes one of their own arguments is damaged.
fn backward(
    dice: &mut Dice,
    problem: &Problem,
    results: &Results,
    truth: Option<&Truth>,
) -> Result<(), String> {
    let Some(lse) = &results.lse else {
        return Ok(());
    };
    let like = |dice: &mut Dice, shape| tensor(dice, shape, false, |_| UNTOUCHED);
    let mut d_query = like(dice, problem.query.shape);
    let mut d_key = like(dice, problem.key.shape);
    let mut d_value = like(dice, problem.value.shape);
    let mut d_bias = problem.bias.as_ref().map(|bias| like(dice, bias.shape));
    let mut d_sink = problem
        .sink
        .as_ref()
        .map(|sink| vec![UNTOUCHED; sink.len()]);
    let d_output = tensor(dice, results.output.shape, true, |dice| dice.number(1.0));
    let mut blamed = "";
    if dice.once_in(4) {
        let (name, tensor) = match dice.below(3) {
            0 => ("gradients.query", &mut d_query),
            1 => ("gradients.key", &mut d_key),
            _ => ("gradients.value", &mut d_value),
        };
        if let Some((_, rest)) = tensor.data.split_last() {
            tensor.data = rest.into();
            blamed = name;
        }
    }
    let attention = problem.attention();
    let gradients = dot::Gradients {
        query: d_query.view_mut(),
        key: d_key.view_mut(),
        value: d_value.view_mut(),
        bias: d_bias.as_mut().map(Tensor::view_mut),
        sink: d_sink.as_deref_mut(),
    };
    let answer = dot::backward(
        &attention,
        problem.query.view(),
        problem.key.view(),
        problem.value.view(),
        results.output.view(),
        lse,
        d_output.view(),
        gradients,
    );
    let all = [&d_query, &d_key, &d_value];
    match answer {
        Ok(()) if !blamed.is_empty() => {
            return Err(format!("backward accepted a short `{blamed}`"));
        }
        Err(error) if argument(&error) == blamed => return Ok(()),
        Err(error) => return Err(format!("backward refused a right call: {error}")),
        Ok(()) => {}
    }
    for (name, tensor) in ["query", "key", "value"].iter().zip(all) {
        rows_alone(tensor)
            .map_err(|error| format!("backward {error} of the gradient of {name}"))?;
    }
    let Some(Some(truth)) = truth.map(|truth| truth.gradients(problem, &d_output)) else {
        return Ok(());
    };
    let found = [
        d_query.contiguous(),
        d_key.contiguous(),
        d_value.contiguous(),
        d_bias.map(|bias| bias.contiguous()).unwrap_or_default(),
        d_sink.unwrap_or_default(),
    ];
    compare_gradients(&found, &truth).map_err(|error| format!("backward: {error}"))?;
    // The weights of a row sum to 1 in the backward pass too, however the scores were rounded.
    if problem.dropout.is_none() && problem.sink.is_none() {
        let sum = |x: &[f32], column: usize, of: usize| {
            x.iter()
                .skip(column)
                .step_by(of)
                .copied()
                .map(f64::from)
                .sum::<f64>()
        };
        let d = d_output.contiguous();
        let dim = problem.sizes.value_dim;
        let seen = results.lse.iter().flat_map(|lse| lse.chunks_exact(3));
        let seen: Vec<bool> = seen.map(|lse| lse[0] > f32::NEG_INFINITY).collect();
        let d: Vec<f32> = (d.iter().zip(0..))
            .map(|(&d, at)| if seen[at / dim] { d } else { 0.0 })
            .collect();
        for column in 0..dim {
            let (found, expected) = (sum(&found[2], column, dim), sum(&d, column, dim));
            let bound = 1e-4 * (1.0 + seen.len() as f64);
            if beyond(found, expected, bound) {
                return Err(format!("backward: weights times {expected} sum to {found}"));
            }
        }
    }
    Ok(())
}

/// Gradients against the definition, by the bound that rounding gives.
fn compare_gradients(found: &[Vec<f32>; 5], truth: &Gradients) -> Result<(), String> {
    let names = ["query", "key", "value", "bias", "sink"];
    for ((name, found), (truth, bounds)) in names.iter().zip(found).zip(truth) {
        if found.len() != truth.len() {
            continue; // not asked for
        }
        for (index, (&found, (expected, bound))) in
            found.iter().zip(truth.iter().zip(bounds)).enumerate()
        {
            let holds = 2.0 * bound + expected.abs() < 1e38; // otherwise f32 may overflow
            if holds && beyond(found.into(), *expected, 2.0 * bound) {
                return Err(format!(
                    "gradient of {name}, {index}: {found}, expected {expected} to within {bound:e}"
                ));
            }
        }
    }
    Ok(())
}

/// Rows of weights against the definition, and sums, entropies and the largest weights against the rows.
fn observe(problem: &Problem, results: &Results, truth: Option<&Truth>) -> Result<(), String> {
    let (Some(lse), Some(truth)) = (&results.lse, truth) else {
        return Ok(());
    };
    let sizes = &problem.sizes;
    let (keys, queries, rows) = (sizes.keys, sizes.queries, truth.lse.len());
    let wanted: Vec<usize> = (0..queries).collect();
    let mut weights = vec![UNTOUCHED; rows * keys];
    let (mut entropy, mut largest) = (vec![UNTOUCHED; rows], vec![UNTOUCHED; rows]);
    let mut sums = vec![UNTOUCHED; sizes.batch() * sizes.heads * keys];
    let mut top_keys = vec![0; rows];
    let observe = dot::Observe {
        rows: Some((&wanted, &mut weights)),
        entropy: Some(&mut entropy),
        column_sums: Some(&mut sums),
        top: Some(dot::Top {
            k: 1,
            weights: &mut largest,
            keys: &mut top_keys,
        }),
    };
    let (query, key) = (problem.query.view(), problem.key.view());
    dot::observe(&problem.attention(), query, key, lse, observe)
        .map_err(|error| format!("refused a right call: {error}"))?;
    let mut columns = vec![0.0f64; sums.len()];
    for row in 0..rows {
        // In a packed batch, keys are numbered from the start of their sequence here, but across the pack in the
        // definition.
        let first = (0..keys).find_map(|key| {
            let place = problem.place(row, key)?;
            Some(key - place[3])
        });
        let first = first.unwrap_or(0);
        let found = |key: usize| f64::from(weights[row * keys + key - first]);
        let seen = |key: &usize| problem.place(row, *key).is_some();
        let (mut total, mut bits, mut most) = (0.0, 0.0, 0.0f64);
        for key in (0..keys).filter(seen) {
            let weight = found(key);
            let (expected, error) = (
                truth.weights[row * keys + key],
                truth.weight_error[row * keys + key],
            );
            if truth.usable[row] && beyond(weight, expected, error) {
                return Err(format!(
                    "weight {row} {key} is {weight}, expected {expected} to within {error:e}"
                ));
            }
            total += weight;
            bits -= if weight > 0.0 {
                weight * weight.ln()
            } else {
                0.0
            };
            most = most.max(weight);
            columns[row / queries * keys + key] += weight;
        }
        if !truth.usable[row] {
            continue;
        }
        let bound = 1e-5 * (1.0 + keys as f64).sqrt();
        if problem.sink.is_none() {
            let expected = if lse[3 * row] == f32::NEG_INFINITY {
                0.0
            } else {
                1.0
            };
            if beyond(total, expected, bound) {
                return Err(format!("weights of row {row} sum to {total}"));
            }
            if beyond(entropy[row].into(), bits, 20.0 * bound) {
                return Err(format!("entropy {row} is {}, not {bits}", entropy[row]));
            }
        }
        if f64::from(largest[row]) != most {
            return Err(format!(
                "the largest weight of row {row} is {}, not {most}",
                largest[row]
            ));
        }
    }
    let plane = |usable: &[bool]| usable.iter().all(|&usable| usable);
    for (index, (&found, expected)) in sums.iter().zip(columns).enumerate() {
        let usable = plane(&truth.usable[index / keys * queries..][..queries]);
        if usable && beyond(found.into(), expected, 1e-5 * (1.0 + queries as f64)) {
            return Err(format!("column sum {index} is {found}, not {expected}"));
        }
    }
    Ok(())
}

/// The same call as a step of decoding, if decoding has all of its options; from a contiguous cache and from one in pages.
fn decode(dice: &mut Dice, problem: &Problem, truth: Option<&Truth>) -> Result<(), String> {
    let sizes = problem.sizes;
    if sizes.packed || problem.dropout.is_some() {
        return Ok(());
    }
    let shape = sizes.shape(sizes.heads, sizes.queries, sizes.value_dim);
    let mut results = Results {
        output: tensor(dice, shape, false, |_| UNTOUCHED),
        lse: Some(vec![UNTOUCHED; 3 * shape[..3].iter().product::<usize>()].into()),
    };
    let mut lse = results.lse.take();
    let cache = Cache::Contiguous {
        key: problem.key.view(),
        value: problem.value.view(),
        filled: None,
    };
    let attention = problem.attention();
    let answer = dot::decode(
        &attention,
        problem.query.view(),
        cache,
        results.output(),
        lse.as_deref_mut(),
    );
    results.lse = lse;
    answer.map_err(|error| format!("decode refused a right call: {error}"))?;
    gaps_are_untouched(&results).map_err(|error| format!("decode {error}"))?;
    if let Some(truth) = truth {
        compare(truth, &results, 0.0).map_err(|error| format!("decode: {error}"))?;
    }
    paged(dice, problem)
}

/// Random pages of random sizes, sometimes with a page that is not there.
fn paged(dice: &mut Dice, problem: &Problem) -> Result<(), String> {
    let sizes = problem.sizes;
    let (pages, page_size, of_each) = (1 + dice.below(4), 1 + dice.below(20), 1 + dice.below(3));
    let page = |dice: &mut Dice, dim| {
        tensor(
            dice,
            [pages, sizes.key_heads, page_size, dim],
            true,
            |dice: &mut Dice| dice.number(1.0),
        )
    };
    let (key, value): (Tensor<f32>, Tensor<f32>) =
        (page(dice, sizes.dim), page(dice, sizes.value_dim));
    let table: Box<[u32]> = (0..sizes.sequences * of_each)
        .map(|_| dice.below(pages) as u32)
        .collect();
    let filled: Box<[u32]> = (0..sizes.sequences)
        .map(|_| dice.below(of_each * page_size + 1) as u32)
        .collect();
    let damaged = filled.first().is_some_and(|&length| length > 0) && dice.once_in(3);
    let table = match damaged {
        true => [&[pages as u32 + dice.below(9) as u32][..], &table[1..]]
            .concat()
            .into(),
        false => table,
    };
    let attention = regard_kernels::Attention {
        causal: problem.causal,
        softcap: problem.softcap,
        sink: problem.sink.as_deref(),
        ..Default::default()
    };
    let shape = sizes.shape(sizes.heads, sizes.queries, sizes.value_dim);
    let mut results = Results {
        output: tensor(dice, shape, false, |_| UNTOUCHED),
        lse: None,
    };
    let cache = Cache::Paged {
        key: key.view(),
        value: value.view(),
        table: &table,
        filled: &filled,
    };
    match dot::decode(
        &attention,
        problem.query.view(),
        cache,
        results.output(),
        None,
    ) {
        Ok(()) if damaged => Err("decode accepted a page that is not there".to_owned()),
        Ok(()) => gaps_are_untouched(&results).map_err(|error| format!("paged decode {error}")),
        Err(error) if damaged && argument(&error).contains("table") => Ok(()),
        Err(error) => Err(format!("paged decode: {error}")),
    }
}

/// Writes NaN or infinity somewhere in keys or values.
fn poison(dice: &mut Dice, problem: &mut Problem) {
    let tensor = match dice.below(2) {
        0 => &mut problem.key,
        _ => &mut problem.value,
    };
    for _ in 0..1 + dice.below(3) {
        if !tensor.data.is_empty() {
            tensor.data[dice.below(tensor.data.len())] =
                dice.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        }
    }
}

pub fn argument(error: &KernelError) -> &'static str {
    match error {
        KernelError::Length { argument, .. }
        | KernelError::TooLarge { argument, .. }
        | KernelError::Entry { argument, .. }
        | KernelError::Extent { argument, .. }
        | KernelError::Overlap { argument, .. }
        | KernelError::Size { argument, .. }
        | KernelError::Value { argument, .. } => argument,
        _ => "an unknown variant",
    }
}

/// Checks that numbers between the rows stayed as they were, and that all numbers of the rows were written.
pub fn rows_alone(tensor: &Tensor<f32>) -> Result<(), String> {
    let mut own = vec![false; tensor.data.len()];
    for place in tensor.places() {
        own[place] = true;
    }
    for (place, (&x, &own)) in tensor.data.iter().zip(&own).enumerate() {
        if (x == UNTOUCHED) == own {
            let what = if own { "left out" } else { "wrote over" };
            return Err(format!("{what} number {place}"));
        }
    }
    Ok(())
}

pub fn gaps_are_untouched(results: &Results) -> Result<(), String> {
    rows_alone(&results.output).map_err(|error| format!("{error} of the output"))?;
    match results.lse.iter().flatten().any(|&x| x == UNTOUCHED) {
        true => Err("left out a number of `lse`".to_owned()),
        false => Ok(()),
    }
}

/// The largest finite magnitude.
pub fn largest(x: &[f64]) -> f64 {
    x.iter()
        .filter(|x| x.is_finite())
        .fold(0.0, |m, x| m.max(x.abs()))
}

/// Whether `found` is farther from `expected` than `bound`; NaN always is.
fn beyond(found: f64, expected: f64, bound: f64) -> bool {
    let error = (found - expected).abs();
    error.is_nan() || error > bound
}

/// Compares with the definition, within the bound that rounding alone gives; `of_weights` is the rounding of weights beyond
/// that of `f32`. Where the definition itself is not finite, nothing is checked.
pub fn compare(truth: &Truth, results: &Results, of_weights: f64) -> Result<(), String> {
    let dim = results.output.shape[3];
    for (index, place) in results.output.places().enumerate() {
        let (found, expected) = (f64::from(results.output.data[place]), truth.output[index]);
        let bound = truth.output_error[index] * (1.0 + of_weights / f64::from(f32::EPSILON));
        if truth.usable[index / dim] && expected.is_finite() && beyond(found, expected, bound) {
            return Err(format!(
                "output {index} is {found}, expected {expected} to within {bound:e}"
            ));
        }
    }
    let addends = results.lse.iter().flat_map(|lse| lse.chunks_exact(3));
    for (index, addends) in addends.enumerate() {
        let found: f64 = addends.iter().copied().map(f64::from).sum();
        let (expected, bound) = (truth.lse[index], truth.lse_error[index]);
        let same = found == expected || (found - expected).abs() <= bound;
        if truth.usable[index] && !same {
            return Err(format!(
                "lse {index} is {found}, expected {expected} to within {bound:e}"
            ));
        }
    }
    Ok(())
}
