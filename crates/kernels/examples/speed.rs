//! Speed of the kernels on this machine, in the shapes of a translation model's training step:
//! `cargo run --release -p regard-kernels --example speed`.

use std::time::Instant;

use regard_kernels::Operation;
use regard_kernels::additive::{self, Gradients, Input, PaddingMask, Shape};
use regard_kernels::cell::{
    Step,
    gru::{GruStep, GruStepFields},
};
use regard_kernels::loss::{self, CrossEntropy};
use regard_kernels::optim::{self, Adam};
use regard_kernels::simd::Level;

/// The fastest of many rounds, in seconds: the speed of a machine that does nothing else.
fn fastest<T>(mut f: impl FnMut() -> T) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed().as_secs_f64() < 1.0 {
        let round = Instant::now();
        std::hint::black_box(f());
        best = best.min(round.elapsed().as_secs_f64());
    }
    best
}

fn numbers(count: usize, scale: f32) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * 7919 % 2003) as f32 / 1001.5 - 1.0) * scale)
        .collect()
}

fn report(name: &str, seconds: f64, amount: f64, unit: &str) {
    println!(
        "{name:<52} {:>9.1} µs {:>8.2} {unit}",
        seconds * 1e6,
        amount / seconds / 1e9
    );
}

fn attention(queries: usize, keys: usize, dim: usize, value_dim: usize) {
    let shape = Shape {
        batch: 64,
        queries,
        keys,
        dim,
        value_dim,
    };
    let Shape { batch, .. } = shape;
    let query = numbers(batch * queries * dim, 1.0);
    let key = numbers(batch * keys * dim, 1.0);
    let v = numbers(dim, 0.1);
    let value = numbers(batch * keys * value_dim, 1.0);
    let input = Input {
        shape,
        query: &query,
        key: &key,
        v: &v,
        value: &value,
        keep: PaddingMask::All,
        bias: None,
    };
    let mut context = vec![0.0; batch * queries * value_dim];
    let mut weights = vec![0.0; batch * queries * keys];
    let tanhs = (batch * queries * keys * dim) as f64;
    let name = format!("additive b{batch} lq{queries} lk{keys} d{dim} dv{value_dim}");
    let forward = fastest(|| additive::forward(&input, &mut context, &mut weights).unwrap());
    report(&format!("{name} forward"), forward, tanhs, "Gtanh/s");
    let d_context = numbers(context.len(), 1.0);
    let (mut d_query, mut d_key) = (vec![0.0; query.len()], vec![0.0; key.len()]);
    let (mut d_v, mut d_value) = (vec![0.0; dim], vec![0.0; value.len()]);
    for accumulate in [false, true] {
        let backward = fastest(|| {
            let mut gradients = Gradients {
                query: &mut d_query,
                key: &mut d_key,
                v: &mut d_v,
                value: &mut d_value,
                bias: None,
                accumulate,
            };
            additive::backward(&input, &weights, &d_context, None, &mut gradients).unwrap();
        });
        let kind = if accumulate {
            "backward (+=)"
        } else {
            "backward"
        };
        report(&format!("{name} {kind}"), backward, tanhs, "Gtanh/s");
    }
}

fn main() {
    println!(
        "{:?}, {} threads",
        Level::current(),
        rayon::current_num_threads()
    );
    attention(1, 20, 256, 512);
    attention(20, 20, 256, 512);
    attention(20, 50, 256, 256);

    let (rows, classes) = (1280, 8000);
    let targets: Vec<u32> = (0..rows as u32)
        .map(|row| row * 37 % classes as u32)
        .collect();
    let spec = CrossEntropy {
        rows,
        classes,
        targets: &targets,
        ignore: Some(0),
        smoothing: 0.1,
    };
    let mut logits = numbers(rows * classes, 3.0);
    let bytes = (rows * classes * 4) as f64;
    let seconds = fastest(|| loss::forward(&spec, &logits, None).unwrap());
    report(
        "cross-entropy 1280 x 8000 forward",
        seconds,
        bytes,
        "GB/s read",
    );
    let seconds = fastest(|| loss::forward_backward(&spec, &mut logits, 1.0, None).unwrap());
    report(
        "cross-entropy 1280 x 8000 forward + backward",
        seconds,
        2.0 * bytes,
        "GB/s moved",
    );

    let count = 6_000_000;
    let (mut p, g) = (numbers(count, 1.0), numbers(count, 0.01));
    let (mut m, mut v) = (vec![0.0; count], vec![0.0; count]);
    let adam = Adam::default();
    let mut step = 0;
    let seconds = fastest(|| {
        step += 1;
        adam.step(step, &mut p, &g, &mut m, &mut v).unwrap();
    });
    report(
        "Adam, 6 million parameters",
        seconds,
        28.0 * count as f64,
        "GB/s moved",
    );
    let seconds = fastest(|| optim::squared_norm(&[&g]));
    report(
        "squared norm, 6 million gradients",
        seconds,
        4.0 * count as f64,
        "GB/s read",
    );

    let (batch, units, keep) = (64, 256, None);
    let step = GruStep(Step { batch, units, keep });
    let inputs = GruStepFields {
        x: numbers(batch * 3 * units, 2.0),
        product: numbers(batch * 3 * units, 2.0),
        state: numbers(batch * units, 1.0),
    };
    let (of_inputs, of_written) = step.shapes().unwrap();
    let (mut gradients, mut written) = (of_inputs.zeros().unwrap(), of_written.zeros().unwrap());
    let seconds = fastest(|| step.forward(inputs.slices(), written.slices_mut()).unwrap());
    report(
        "GRU step b64 n256 forward",
        seconds,
        (batch * units) as f64,
        "Gunits/s",
    );
    let seconds = fastest(|| {
        let to = gradients.slices_mut();
        step.backward(inputs.slices(), written.slices(), &written.next, to)
            .unwrap();
    });
    report(
        "GRU step b64 n256 backward",
        seconds,
        (batch * units) as f64,
        "Gunits/s",
    );
}
