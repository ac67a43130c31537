//! The Rust side of `bench/peers/additive.py`: one JSON line out for every line in.
//!
//! `cargo run --release -p regard-kernels --example additive_peer -- BATCH QUERIES KEYS DIM VALUE_DIM`
//!
//! A line `COUNT` requests that many rounds, answered by `{"forward": [seconds], "both": [seconds]}`:
//! the forward pass alone, and forward and backward together. A line `check` requests the sum of
//! squares of the context and of each gradient.

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::time::Instant;

use regard_kernels::KernelError;
use regard_kernels::additive::{Gradients, Input, PaddingMask, Shape, backward, forward};

/// The same numbers as `numbers` in the script.
fn numbers(count: usize, seed: usize, scale: f32) -> Vec<f32> {
    let number = |i: usize| (i * 7919 + seed * 104_729) % 2003;
    (0..count)
        .map(|i| (number(i) as f32 / 1001.5 - 1.0) * scale)
        .collect()
}

/// Context, weights, and the gradients of query, key, v and value.
struct Results {
    context: Vec<f32>,
    weights: Vec<f32>,
    gradients: [Vec<f32>; 4],
}

fn both(input: &Input<'_>, d_context: &[f32], to: &mut Results) -> Result<(), KernelError> {
    forward(input, &mut to.context, &mut to.weights)?;
    let [query, key, v, value] = &mut to.gradients;
    let mut gradients = Gradients {
        query,
        key,
        v,
        value,
        bias: None,
        accumulate: false,
    };
    backward(input, &to.weights, d_context, None, &mut gradients)
}

fn main() -> Result<(), Box<dyn Error>> {
    let sizes: Vec<usize> = std::env::args()
        .skip(1)
        .map(|size| size.parse())
        .collect::<Result<_, _>>()?;
    let [batch, queries, keys, dim, value_dim] = sizes[..] else {
        return Err("five sizes: batch, queries, keys, dim, value dim".into());
    };
    let query = numbers(batch * queries * dim, 1, 2.0);
    let key = numbers(batch * keys * dim, 2, 2.0);
    let v = numbers(dim, 3, 0.3);
    let value = numbers(batch * keys * value_dim, 4, 1.0);
    let d_context = numbers(batch * queries * value_dim, 5, 1.0);
    let input = Input {
        shape: Shape {
            batch,
            queries,
            keys,
            dim,
            value_dim,
        },
        query: &query,
        key: &key,
        v: &v,
        value: &value,
        keep: PaddingMask::All,
        bias: None,
    };
    let mut results = Results {
        context: vec![0.0; d_context.len()],
        weights: vec![0.0; batch * queries * keys],
        gradients: [&query, &key, &v, &value].map(|like| vec![0.0; like.len()]),
    };
    let mut answers = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let line = line?;
        if line.trim() == "check" {
            both(&input, &d_context, &mut results)?;
            let squares = |x: &Vec<f32>| x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
            let all: Vec<f64> = std::iter::once(&results.context)
                .chain(&results.gradients)
                .map(squares)
                .collect();
            writeln!(answers, "{all:?}")?;
        } else {
            let (mut alone, mut together) = (vec![], vec![]);
            for _ in 0..line.trim().parse()? {
                let start = Instant::now();
                forward(&input, &mut results.context, &mut results.weights)?;
                alone.push(start.elapsed().as_secs_f64());
                let start = Instant::now();
                both(&input, &d_context, &mut results)?;
                together.push(start.elapsed().as_secs_f64());
            }
            writeln!(
                answers,
                "{{\"forward\": {alone:?}, \"both\": {together:?}}}"
            )?;
        }
        answers.flush()?;
    }
    Ok(())
}
