//! One case: make a call, perhaps damage it, and judge what came of it.

use regard_kernels::{
    KernelError,
    dot::{self, Cache, Unmodified, reference},
};

use crate::{
    additive,
    damage::{Results, damage},
    dice::Dice,
    problem::{Problem, Tensor, tensor},
    stored,
};

/// What a case came to.
pub struct Verdict {
    pub what: &'static str,
    /// Whether the result was compared with the definition.
    pub compared: bool,
}

/// What outputs hold before the call.
pub const UNTOUCHED: f32 = -7.625e30;

/// Runs the case of a seed.
pub fn case(seed: u64) -> Result<Verdict, String> {
    let dice = &mut Dice::new(seed);
    let mut problem = Problem::new(dice);
    let sizes = problem.sizes;
    let shape = sizes.shape(sizes.heads, sizes.queries, sizes.value_dim);
    let rows = shape[..3].iter().product();
    let mut results = Results {
        output: tensor(dice, shape, false, |_| UNTOUCHED),
        lse: dice.once_in(2).then(|| vec![UNTOUCHED; rows].into()),
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
            if compared {
                compare(&problem, &results, 0.0)?;
            }
            backward(dice, &problem, &results, compared)?;
            decode(dice, &problem, compared)?;
            additive::case(dice, compared).map_err(|error| format!("additive: {error}"))?;
            stored::case(dice, problem, compared)
                .map_err(|error| format!("half the width: {error}"))?;
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

/// The gradients of the call, with one of their own arguments damaged at times.
fn backward(
    dice: &mut Dice,
    problem: &Problem,
    results: &Results,
    comparable: bool,
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
    let finite = |tensor: &Tensor<f32>| tensor.data.iter().all(|x| x.is_finite());
    if comparable
        && [&problem.query, &problem.key, &problem.value]
            .into_iter()
            .all(finite)
    {
        compare_gradients(problem, &d_output, all).map_err(|error| format!("backward: {error}"))?;
    }
    Ok(())
}

/// Gradients against the definition in f64, by the bound that rounding gives.
fn compare_gradients(
    problem: &Problem,
    d_output: &Tensor<f32>,
    found: [&Tensor<f32>; 3],
) -> Result<(), String> {
    let attention = problem.attention();
    let sizes = &problem.sizes;
    let shapes = [problem.query.shape, problem.key.shape, problem.value.shape];
    let [query, key, value, d] =
        [&problem.query, &problem.key, &problem.value, d_output].map(|tensor| {
            tensor
                .contiguous()
                .into_iter()
                .map(f64::from)
                .collect::<Vec<f64>>()
        });
    let forward = reference::forward(&attention, &Unmodified, shapes, &query, &key, &value);
    let truth = reference::backward(
        &attention,
        &Unmodified,
        shapes,
        &query,
        &key,
        &value,
        &forward.output,
        &forward.lse,
        &d,
    );

    let (from_query, from_key) = (largest(&query), largest(&key));
    let d_weight = sizes.value_dim as f64 * largest(&d) * largest(&value) * kept(problem);
    let d_score = 2.0 * scale(problem) * d_weight;
    // Queries whose gradients meet in one row of a key or value.
    let queries = (sizes.queries * sizes.heads / sizes.key_heads) as f64;
    // Products have errors of their own beside those of the weights.
    let relative = relative_error(problem, from_query, from_key)
        + f64::from(f32::EPSILON) * (sizes.value_dim as f64 + queries + 32.0);
    for (name, found, truth, size) in [
        ("query", found[0], &truth.query, d_score * from_key),
        ("key", found[1], &truth.key, d_score * from_query * queries),
        (
            "value",
            found[2],
            &truth.value,
            largest(&d) * kept(problem) * queries,
        ),
    ] {
        let bound = 4.0 * relative * size + 1e-30;
        for (index, place) in found.places().enumerate() {
            let (found, expected) = (f64::from(found.data[place]), truth[index]);
            let error = (found - expected).abs();
            if error.is_nan() || error > bound {
                return Err(format!(
                    "gradient of {name}, {index}: {found}, expected {expected} to within {bound:e}"
                ));
            }
        }
    }
    Ok(())
}

/// The same call as a step of decoding, where decoding has all of its options; from a cache side by side and
/// from one in pages.
fn decode(dice: &mut Dice, problem: &Problem, comparable: bool) -> Result<(), String> {
    let sizes = problem.sizes;
    if sizes.packed || problem.dropout.is_some() {
        return Ok(());
    }
    let shape = sizes.shape(sizes.heads, sizes.queries, sizes.value_dim);
    let mut results = Results {
        output: tensor(dice, shape, false, |_| UNTOUCHED),
        lse: Some(vec![UNTOUCHED; shape[..3].iter().product()].into()),
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
    if comparable {
        compare(problem, &results, 0.0).map_err(|error| format!("decode: {error}"))?;
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

/// Not a number or infinite, somewhere in keys or values.
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

/// Numbers between the rows stay as they were, and rows do not.
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

fn scale(problem: &Problem) -> f64 {
    problem
        .scale
        .map_or(1.0 / (problem.sizes.dim as f64).sqrt(), |scale| {
            f64::from(scale.abs())
        })
}

/// What dropout multiplies the weights that stay by.
fn kept(problem: &Problem) -> f64 {
    problem
        .dropout
        .map_or(1.0, |dropout| 1.0 / (1.0 - f64::from(dropout.probability)))
}

/// How far rounding may move a weight: of a score, of the sums over keys, and of the functions.
fn relative_error(problem: &Problem, query: f64, key: f64) -> f64 {
    let epsilon = f64::from(f32::EPSILON);
    let (sizes, dim) = (&problem.sizes, problem.sizes.dim as f64);
    let added = if problem.bias.is_some() { 3.0 } else { 0.0 }
        + if problem.alibi.is_some() {
            (sizes.queries + sizes.keys) as f64
        } else {
            0.0
        };
    let score = epsilon * ((dim + 8.0) * dim * scale(problem) * query * key + 8.0 * (added + 1.0));
    2.0 * score.exp_m1() + epsilon * (sizes.keys as f64 + 32.0)
}

/// Compares with the definition in f64, by the bound that rounding alone gives; `of_weights` is what weights
/// are rounded by beyond `f32`. Places where the definition itself is not finite say nothing.
pub fn compare(problem: &Problem, results: &Results, of_weights: f64) -> Result<(), String> {
    let attention = problem.attention();
    let wide = |x: Vec<f32>| -> Vec<f64> { x.into_iter().map(f64::from).collect() };
    let [query, key, value] =
        [&problem.query, &problem.key, &problem.value].map(|tensor| wide(tensor.contiguous()));
    let shapes = [problem.query.shape, problem.key.shape, problem.value.shape];
    let truth = reference::forward(&attention, &Unmodified, shapes, &query, &key, &value);

    let relative = relative_error(problem, largest(&query), largest(&key));
    let bound = (relative + of_weights) * (largest(&value) + 1.0) * kept(problem);

    for (index, place) in results.output.places().enumerate() {
        let (found, expected) = (f64::from(results.output.data[place]), truth.output[index]);
        let error = (found - expected).abs();
        if expected.is_finite() && (error.is_nan() || error > bound) {
            return Err(format!(
                "output {index} is {found}, expected {expected} to within {bound:e}"
            ));
        }
    }
    for (index, &found) in results.lse.iter().flatten().enumerate() {
        let (found, expected) = (f64::from(found), truth.lse[index]);
        let bound = relative + 4.0 * f64::from(f32::EPSILON) * expected.abs();
        let same = found == expected || (found - expected).abs() <= bound;
        if !expected.is_nan() && expected != f64::INFINITY && !same {
            return Err(format!(
                "lse {index} is {found}, expected {expected} to within {bound:e}"
            ));
        }
    }
    Ok(())
}
