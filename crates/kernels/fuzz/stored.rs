//! The same call with operands stored in half precision, as attention over whole sequences and as
//! decoding.

use half::{bf16, f16};
use regard_kernels::{
    Element, Kind,
    dot::{self, Cache},
};

use crate::{
    bounds::Truth,
    check::{UNTOUCHED, compare, gaps_are_untouched, rows_alone},
    damage::Results,
    dice::Dice,
    problem::{Problem, Tensor, tensor},
};

/// The case in one of the two types, to which the operands are rounded first.
pub fn case(dice: &mut Dice, problem: Problem, comparable: bool) -> Result<(), String> {
    match dice.below(2) {
        0 => stored_as::<bf16>(dice, problem, comparable),
        _ => stored_as::<f16>(dice, problem, comparable),
    }
}

fn stored_as<T: Element>(
    dice: &mut Dice,
    mut problem: Problem,
    comparable: bool,
) -> Result<(), String> {
    fn round<T: Element>(tensor: &mut Tensor<f32>) -> Tensor<T> {
        let data: Box<[T]> = tensor.data.iter().map(|&x| T::narrow(x)).collect();
        tensor.data = data.iter().map(|x| x.widen()).collect();
        Tensor {
            data,
            shape: tensor.shape,
            strides: tensor.strides,
        }
    }
    let [query, key, value] =
        [&mut problem.query, &mut problem.key, &mut problem.value].map(round::<T>);
    let sizes = problem.sizes;
    let shape = sizes.shape(sizes.heads, sizes.queries, sizes.value_dim);
    let rows: usize = shape[..3].iter().product();
    let room = |dice: &mut Dice| Results {
        output: tensor(dice, shape, false, |_| UNTOUCHED),
        lse: Some(vec![UNTOUCHED; 3 * rows].into()),
    };
    // Where the machine multiplies pairs of bfloat16, weights are rounded to bfloat16.
    let of_weights = match T::KIND {
        Kind::Bf16 => f64::from(bf16::EPSILON),
        _ => 0.0,
    };

    let mut results = room(dice);
    let mut lse = results.lse.take();
    dot::forward_stored(
        &problem.attention(),
        query.view(),
        key.view(),
        value.view(),
        results.output(),
        lse.as_deref_mut(),
    )
    .map_err(|error| format!("refused a right call: {error}"))?;
    results.lse = lse;
    gaps_are_untouched(&results)?;
    let truth = comparable.then(|| Truth::new(&problem));
    if let Some(truth) = &truth {
        compare(truth, &results, of_weights)?;
    }

    let mut narrow = tensor(dice, shape, false, |_| T::narrow(UNTOUCHED));
    dot::forward_stored(
        &problem.attention(),
        query.view(),
        key.view(),
        value.view(),
        narrow.view_mut(),
        None,
    )
    .map_err(|error| format!("refused an output of its own type: {error}"))?;
    for (wide, place) in results.output.places().zip(narrow.places()) {
        let (expected, found) = (T::narrow(results.output.data[wide]), narrow.data[place]);
        let (expected, found) = (expected.widen(), found.widen());
        if expected.to_bits() != found.to_bits() && !(expected.is_nan() && found.is_nan()) {
            return Err(format!("{found} is stored for {expected}"));
        }
    }

    backward(dice, &problem, [&query, &key, &value], &results)
        .map_err(|error| format!("backward: {error}"))?;

    if sizes.packed || problem.dropout.is_some() {
        return Ok(());
    }
    let mut results = room(dice);
    let mut lse = results.lse.take();
    let cache = Cache::Contiguous {
        key: key.view(),
        value: value.view(),
        filled: None,
    };
    dot::decode(
        &problem.attention(),
        problem.query.view(),
        cache,
        results.output(),
        lse.as_deref_mut(),
    )
    .map_err(|error| format!("decode refused a right call: {error}"))?;
    results.lse = lse;
    gaps_are_untouched(&results).map_err(|error| format!("decode {error}"))?;
    if let Some(truth) = &truth {
        compare(truth, &results, 0.0).map_err(|error| format!("decode: {error}"))?;
    }
    Ok(())
}

/// Checks that the gradients have the same bits as those of the widened operands: widening is exact.
fn backward<T: Element>(
    dice: &mut Dice,
    problem: &Problem,
    [query, key, value]: [&Tensor<T>; 3],
    results: &Results,
) -> Result<(), String> {
    let attention = problem.attention();
    let d_output = tensor(dice, results.output.shape, true, |dice| dice.number(1.0));
    let lse = results.lse.as_deref().unwrap_or_default();
    let room = |dice: &mut Dice| {
        [query.shape, key.shape, value.shape].map(|shape| tensor(dice, shape, false, |_| UNTOUCHED))
    };
    let (mut stored, mut wide) = (room(dice), room(dice));
    dot::backward_stored(
        &attention,
        query.view(),
        key.view(),
        value.view(),
        results.output.view(),
        lse,
        d_output.view(),
        gradients(&mut stored),
    )
    .map_err(|error| format!("refused a right call: {error}"))?;
    dot::backward(
        &attention,
        problem.query.view(),
        problem.key.view(),
        problem.value.view(),
        results.output.view(),
        lse,
        d_output.view(),
        gradients(&mut wide),
    )
    .map_err(|error| format!("refused a right call: {error}"))?;
    for (name, (stored, wide)) in ["query", "key", "value"]
        .iter()
        .zip(stored.iter().zip(&wide))
    {
        rows_alone(stored).map_err(|error| format!("{error} of the gradient of {name}"))?;
        for (a, b) in stored.places().zip(wide.places()) {
            let (a, b) = (stored.data[a], wide.data[b]);
            if a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan()) {
                return Err(format!(
                    "gradient of {name}: {a} is {b} with `f32` operands"
                ));
            }
        }
    }
    Ok(())
}

/// The outputs of the backward pass.
fn gradients([query, key, value]: &mut [Tensor<f32>; 3]) -> dot::Gradients<'_> {
    dot::Gradients {
        query: query.view_mut(),
        key: key.view_mut(),
        value: value.view_mut(),
        bias: None,
        sink: None,
    }
}
