//! Calls attention with random shapes, strides, options and damaged arguments: dot-product attention (forward, backward,
//! decoding; `f32` and half precision), additive attention, rotary positions, convolution, pooling and batch norm.
//!
//! ```text
//! cd crates/kernels/fuzz
//! cargo run --release -- --cases 1000000 --seed 1
//! cargo run --release -- --cases 10000000 --minutes 60
//! RUSTFLAGS=-Zsanitizer=address cargo +nightly run --release --target x86_64-unknown-linux-gnu -- --cases 1000000
//! REGARD_SIMD=scalar MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-tree-borrows -Zmiri-ignore-leaks" cargo +nightly miri run -- --cases 100
//! ```
//! Every case is a call that is valid by construction, or the same call with one thing damaged. A valid one must compute what
//! the definition computes and write nothing else; a damaged one must be refused by a typed error that names the damaged
//! argument, with nothing written. Every slice is a separate allocation of exactly the length that the call needs, so that the
//! address sanitizer detects any access outside it. A case that fails is reported with its seed: `--seed N --cases 1` repeats
//! it. `--minutes N` limits the time, whatever `--cases` is; progress is printed every minute.

mod additive;
mod batch_norm;
mod bounds;
mod check;
mod convolution;
mod damage;
mod dice;
mod pool;
mod problem;
mod rotary;
mod stored;

use std::{collections::BTreeMap, process::ExitCode, time::Instant};

use check::Verdict;

fn main() -> ExitCode {
    let (mut cases, mut seed, mut minutes) = (100_000u64, 1u64, u64::MAX);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse().ok());
        match (argument.as_str(), value) {
            ("--cases", Some(value)) => cases = value,
            ("--seed", Some(value)) => seed = value,
            ("--minutes", Some(value)) => minutes = value,
            _ => {
                eprintln!("usage: fuzz [--cases N] [--minutes N] [--seed N]");
                return ExitCode::from(2);
            }
        }
    }
    let start = Instant::now();
    let mut verdicts = BTreeMap::<&str, u64>::new();
    let (mut done, mut told) = (0u64, 0u64);
    for seed in seed..seed.saturating_add(cases) {
        let seconds = start.elapsed().as_secs();
        if seconds / 60 > told {
            told = seconds / 60;
            eprintln!(
                "{told:>4} min {done:>10} cases {:>7.0} a second",
                done as f64 / seconds as f64
            );
            if told >= minutes {
                break;
            }
        }
        match check::case(seed) {
            Ok(Verdict { what, compared }) => {
                *verdicts.entry(what).or_default() += 1;
                *verdicts.entry("compared with the definition").or_default() += u64::from(compared);
            }
            Err(message) => {
                eprintln!("seed {seed}: {message}");
                return ExitCode::FAILURE;
            }
        }
        done += 1;
    }
    println!(
        "{done} cases from seed {seed} in {:.1} s, {:?}",
        start.elapsed().as_secs_f64(),
        regard_kernels::simd::Level::current()
    );
    for (what, count) in verdicts {
        println!("{count:>12} {what}");
    }
    ExitCode::SUCCESS
}
