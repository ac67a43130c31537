//! Makes training steps of any model on random batches, for `bench/peers/training.py`, which drives it beside
//! PyTorch: forward, label-smoothed loss, backward, clipping at norm 1 and Adam, as `regard train` makes them.
//!
//! ```text
//! cargo run --release -p regard-train --example training_peer -- --model JSON [--batch 64] [--tokens 20] [--rounds 5]
//! ```
//!
//! JSON is the entry `regard.model` of a model file, in today's or a former form, or a language model's configuration. Prints
//! milliseconds a step.
//!
//! - `--export FILE` first writes the drawn weights (by their names) and the ids of all batches (`ids.source`,
//!   `ids.target`: `[batches, batch, tokens - 1]`, markers left out) to FILE as safetensors;
//! - `--serve` answers each line of standard input with a line of JSON: `N` makes N steps and gives
//!   `{"seconds": [..], "losses": [..]}`; `check N` the same with dropout off; `peak` gives
//!   `{"multiply_adds": operations a second}`, measured by multiply-adds alone on all threads; `product M K N` gives the
//!   same for a plain product `[M, K] x [K, N]`; `memory` gives `{"peak_bytes": ..}`, the most that the process has held.

mod allocator;
mod batches;
mod language_model;
mod memory;
mod training;

use std::{
    io::{self, BufRead, Write},
    process::ExitCode,
    time::Instant,
};

use burn::tensor::{Device, Tensor};
use regard_kernels::{measure::fma_peak, simd::Level};
use serde_json::{Value, json};

use batches::Shape;
use training::{Training, training};

type Failure = Box<dyn std::error::Error>;

struct Arguments {
    model: Value,
    shape: Shape,
    rounds: usize,
    serve: bool,
    export: Option<String>,
}

fn arguments() -> Result<Arguments, Failure> {
    let known = "--model JSON, --batch N, --tokens N, --rounds N, --serve, --export FILE";
    let (mut model, mut shape) = (None, Shape::default());
    let (mut rounds, mut serve, mut export) = (5, false, None);
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let mut value = || given.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--model" => model = Some(serde_json::from_str(&value()?)?),
            "--batch" => shape.batch = value()?.parse()?,
            "--tokens" => shape.tokens = value()?.parse()?,
            "--rounds" => rounds = value()?.parse()?,
            "--export" => export = Some(value()?),
            "--serve" => serve = true,
            _ => return Err(format!("unknown argument {argument}; expected {known}").into()),
        }
    }
    if shape.tokens < 2 {
        return Err(format!("--tokens is {}; expected at least 2", shape.tokens).into());
    }
    Ok(Arguments {
        model: model.ok_or(format!("--model is missing; expected {known}"))?,
        shape,
        rounds,
        serve,
        export,
    })
}

/// The answer to one line of standard input.
fn answer(training: &mut dyn Training, line: &str) -> Result<Value, Failure> {
    if let Some(sizes) = line.trim().strip_prefix("product ") {
        let sizes: Vec<usize> = sizes.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [rows, inner, columns] = sizes[..] else {
            return Err(format!("product of {} sizes; expected 3", sizes.len()).into());
        };
        return Ok(json!({ "multiply_adds": product(rows, inner, columns) }));
    }
    let (count, noisy) = match line.trim() {
        "memory" => return Ok(json!({ "peak_bytes": memory::peak_bytes() })),
        "peak" => {
            // The first call raises the processor's clock.
            let peak = || fma_peak(Level::current(), rayon::current_num_threads());
            return Ok(json!({ "multiply_adds": peak().max(peak()).max(peak()) }));
        }
        line => match line.strip_prefix("check ") {
            Some(count) => (count, false),
            None => (line, true),
        },
    };
    let done: Vec<(f64, f64)> = (0..count.parse()?)
        .map(|_| training.update(noisy))
        .collect::<Result<_, _>>()?;
    let (seconds, losses): (Vec<f64>, Vec<f64>) = done.into_iter().unzip();
    Ok(json!({ "seconds": seconds, "losses": losses }))
}

/// Operations a second of the product `[rows, inner] x [inner, columns]`: the median of eleven runs after one to warm up.
fn product(rows: usize, inner: usize, columns: usize) -> f64 {
    let device = Device::flex();
    let matrix = |shape| Tensor::<2>::full(shape, 0.5, &device);
    let (left, right) = (matrix([rows, inner]), matrix([inner, columns]));
    let mut seconds: Vec<f64> = (0..12)
        .map(|_| {
            let started = Instant::now();
            let product = regard_nn::bridge::linear(left.clone(), right.clone(), None);
            let seconds = started.elapsed().as_secs_f64();
            drop(product);
            seconds
        })
        .collect();
    2.0 * (rows * inner * columns) as f64 / median(&mut seconds[1..])
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

fn run() -> Result<(), Failure> {
    let arguments = arguments()?;
    let mut training = training(arguments.model, arguments.shape)?;
    if let Some(path) = &arguments.export {
        training.export(path)?;
    }
    let mut output = io::stdout();
    if arguments.serve {
        for line in io::stdin().lock().lines() {
            writeln!(output, "{}", answer(&mut *training, &line?)?)?;
            output.flush()?;
        }
        return Ok(());
    }
    for _ in 0..3 {
        training.update(true)?;
    }
    let mut all = vec![];
    for round in 1..=arguments.rounds {
        let mut seconds = vec![];
        for _ in 0..5 {
            seconds.push(training.update(true)?.0);
        }
        all.extend(&seconds);
        let milliseconds = 1e3 * median(&mut seconds);
        writeln!(
            output,
            "round {round}: {milliseconds:.1} ms a step (median)"
        )?;
    }
    writeln!(output, "median {:.1} ms a step", 1e3 * median(&mut all))?;
    Ok(())
}

fn main() -> ExitCode {
    allocator::keep_freed_memory();
    // Runs on a thread of the pool, as the command `regard` does.
    match rayon::scope(|_| run().map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("training_peer: {error}");
            ExitCode::FAILURE
        }
    }
}
