//! Speed of the sequence operations: `cargo run --release -p regard-kernels --example sequence_speed`.
//!
//! Prints the best of forty calls, and the arithmetic rate of the products with weights alone.

use std::time::Instant;

use regard_kernels::sequence::{AdditiveDecoder, InputFeedingDecoder, Layer, Score};
use regard_kernels::{Fields, KernelError, Operation, Unit};

const STEPS: usize = 20;
const BATCH: usize = 64;
const SOURCES: usize = 20;
const HIDDEN: usize = 256;
const ATTENTION: usize = 256;
const VALUE: usize = 512;
const LAYERS: usize = 2;

fn main() -> Result<(), KernelError> {
    println!(
        "steps {STEPS}, batch {BATCH}, sources {SOURCES}, hidden {HIDDEN}, attention {ATTENTION}, value {VALUE}"
    );
    println!(
        "{} threads, {:?}",
        rayon::current_num_threads(),
        regard_kernels::simd::Level::current()
    );
    let layer = |unit| Layer {
        steps: STEPS,
        batch: BATCH,
        hidden: HIDDEN,
        ..Layer::new(unit)
    };
    for unit in [Unit::ChoGru, Unit::PyTorchGru, Unit::Lstm] {
        let products = HIDDEN * unit.gates() * HIDDEN;
        report(&format!("{unit:?}"), products, &layer(unit))?;
    }
    let decoder = AdditiveDecoder {
        layer: layer(Unit::ChoGru),
        sources: SOURCES,
        attention: ATTENTION,
        value: VALUE,
        keep_source: None,
    };
    let products = HIDDEN * ATTENTION + (HIDDEN + VALUE) * 3 * HIDDEN;
    report("additive decoder", products, &decoder)?;
    let decoder = InputFeedingDecoder {
        steps: STEPS,
        batch: BATCH,
        sources: SOURCES,
        hidden: HIDDEN,
        layers: LAYERS,
        value: VALUE,
        score: Score::Dot,
        dropout: None,
        windows: None,
        keep_source: None,
    };
    let products = 8 * HIDDEN * HIDDEN * LAYERS + (VALUE + HIDDEN) * HIDDEN;
    report("input feeding (dot)", products, &decoder)
}

/// Pseudorandom numbers in `[-scale, scale)`.
fn numbers(count: usize, scale: f32) -> Vec<f32> {
    let mut state = 0x9e37_79b9_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 * scale - scale
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Times both passes; `products` is the number of multiply-adds for one row and step of the forward
/// pass.
fn report<O: Operation>(name: &str, products: usize, operation: &O) -> Result<(), KernelError> {
    let products = STEPS * BATCH * products;
    let (of_inputs, of_written) = operation.shapes()?;
    let mut inputs = Vec::new();
    for (name, shape) in O::Inputs::<()>::NAMES.iter().zip(of_inputs.into_vec()) {
        let weight = name.ends_with("weight") || ["recurrent", "score"].contains(name);
        inputs.push(numbers(shape.len()?, if weight { 0.1 } else { 1.0 }));
    }
    let mut written = Vec::new();
    for shape in of_written.into_vec() {
        written.push(vec![0.0; shape.len()?]);
    }
    let mut gradients: Vec<_> = inputs.iter().map(|x| vec![0.0; x.len()]).collect();
    let read = || O::Inputs::collect(inputs.iter().map(|x| &x[..]));
    time(&format!("{name} forward"), products, || {
        let to = O::Written::collect(written.iter_mut().map(|x| &mut x[..]));
        operation.forward(read(), to)
    })?;
    time(&format!("{name} backward"), 2 * products, || {
        let from = O::Written::collect(written.iter().map(|x| &x[..]));
        let to = O::Inputs::collect(gradients.iter_mut().map(|x| &mut x[..]));
        operation.backward(read(), from, &written[0], to)
    })
}

fn time(
    name: &str,
    products: usize,
    mut work: impl FnMut() -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    let mut best = f64::INFINITY;
    for _ in 0..40 {
        let start = Instant::now();
        work()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!(
        "{name:<28} {:7.2} ms  {:6.1} GFLOP/s",
        best * 1e3,
        2.0 * products as f64 / best / 1e9
    );
    Ok(())
}
