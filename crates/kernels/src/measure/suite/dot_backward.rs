//! The backward pass of dot-product attention. Work: `10 · dim` operations for each visible pair of query
//! and key.

use crate::{
    View, ViewMut,
    dot::{self, Gradients},
    measure::{
        case::{Call, Case},
        numbers,
    },
};

use super::dot::{MEMORY_LENGTHS, Options, Shape, causal_pairs, forward, variable_lengths};

pub(super) fn cases() -> Vec<Case> {
    let plain = Options::default();
    let causal = Options::causal();
    let mut cases = Vec::new();
    for (heads, length) in [(8, 512), (8, 2048), (1, 2048)] {
        let shape = Shape::new(1, heads, length, 64);
        let pairs = (length * length) as f64;
        cases.push(case("dot backward", shape, &plain, pairs, false));
        cases.push(case(
            "dot backward causal",
            shape,
            &causal,
            causal_pairs(length, length),
            false,
        ));
    }
    for dim in [32, 64] {
        cases.push(variable_lengths(dim, |shape, options, pairs| {
            case("dot forward + backward packed", shape, options, pairs, true)
        }));
    }
    cases
}

/// Four heads, one task each; and one head, which is split into parts that each have keys of their own.
pub(super) fn memory_cases() -> Vec<Case> {
    let causal = Options::causal();
    let mut cases = Vec::new();
    for heads in [4, 1] {
        for length in MEMORY_LENGTHS {
            let shape = Shape::new(1, heads, length, 64);
            let pairs = causal_pairs(length, length);
            cases.push(case("dot backward causal", shape, &causal, pairs, false));
        }
    }
    cases
}

fn case(kernel: &str, shape: Shape, options: &Options, pairs: f64, with_forward: bool) -> Case {
    let mut case = forward(kernel, shape, options, pairs);
    case.work *= if with_forward { 3.5 } else { 2.5 };
    let options = options.clone();
    case.prepare = Box::new(move || call(shape, options.clone(), with_forward));
    case
}

fn call(shape: Shape, options: Options, with_forward: bool) -> Call {
    let size = shape.query().iter().product();
    let [query, key, value, d_output] = [1, 2, 3, 4].map(|seed| numbers(seed, size, 1.0));
    let mut output = vec![0.0; size];
    let mut lse = vec![0.0; 3 * shape.query()[..3].iter().product::<usize>()];
    let [mut d_query, mut d_key, mut d_value] = [(); 3].map(|()| vec![0.0; size]);
    let mut ready = false;
    Box::new(move || {
        let attention = options.attention(shape);
        let view = |numbers| View::heads_first(numbers, shape.query());
        if with_forward || !ready {
            let to = ViewMut::heads_first(&mut output, shape.query());
            dot::forward(
                &attention,
                view(&query),
                view(&key),
                view(&value),
                to,
                Some(&mut lse),
            )?;
            ready = true;
        }
        let gradients = Gradients {
            query: ViewMut::heads_first(&mut d_query, shape.query()),
            key: ViewMut::heads_first(&mut d_key, shape.query()),
            value: ViewMut::heads_first(&mut d_value, shape.query()),
            bias: None,
            sink: None,
        };
        dot::backward(
            &attention,
            view(&query),
            view(&key),
            view(&value),
            view(&output),
            &lse,
            view(&d_output),
            gradients,
        )
    })
}
