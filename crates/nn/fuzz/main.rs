//! Random calls of the public functions of `regard-nn`: mechanisms, layers, caches, recurrent networks and vision, with random
//! sizes (0 and absurd ones too), layouts, precisions, masks and magnitudes.
//!
//! ```text
//! cd crates/nn/fuzz
//! cargo run --release -- --cases 100000
//! cargo run --release -- --cases 2000000 --minutes 120 --seed 1
//! ```
//! Every batch of cases runs in its own process, so that a crash can be reported with its seed. A case fails by a panic, a
//! signal, by taking longer than a minute, or by numbers that contradict each other, where there are two ways to compute the
//! same:
//!
//! | ways | compared |
//! |---|---|
//! | fused, plain, plain in `f64`, a softmax in `f64` on the host | outputs, observations, gradients |
//! | whole, step by step, from a growing or rolling cache | outputs |
//! | a padded batch, each of its rows alone | outputs |
//! | observed, not observed | the same bits |
//! | what may not be seen: as it is, NaN | outputs and gradients |
//!
//! and by violating what must hold in any precision: rows sum to 1, hidden keys have weight 0, contexts lie between the values.
//! An error of the promised type is a valid answer. `--seed N --cases 1` repeats a case that failed; `--keep-going` looks for
//! more.

mod attention;
mod compare;
#[allow(dead_code, reason = "the fuzzer of the kernels needs more of it")]
#[path = "../../kernels/fuzz/dice.rs"]
mod dice;
mod layers;
mod mechanism;
mod recurrent;
mod tensors;
mod vision;

use std::{
    backtrace::Backtrace,
    cell::RefCell,
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    panic::{self, AssertUnwindSafe},
    process::{Command, ExitCode, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use dice::Dice;

/// Cases of one process.
const BATCH: u64 = 2_000;
/// The most time that one case may take.
const PATIENCE: Duration = Duration::from_secs(60);

thread_local! {
    /// The places in `regard-nn` from which the last panic came.
    static PLACES: RefCell<Vec<String>> = const { RefCell::new(vec![]) };
}

/// The outcome of a case: what was done, or why it failed.
type Outcome = Result<&'static str, String>;

fn case(seed: u64) -> Outcome {
    let dice = &mut Dice::new(seed);
    match dice.below(16) {
        0..7 => attention::case(dice),
        7..10 => layers::case(dice),
        10..13 => recurrent::case(dice),
        13 => vision::case(dice),
        _ => layers::cached(dice),
    }
}

struct Options {
    cases: u64,
    seed: u64,
    minutes: u64,
    keep_going: bool,
    /// Whether this process is one of those that run cases.
    child: bool,
}

impl Options {
    fn read() -> Option<Self> {
        let mut options = Self {
            cases: 100_000,
            seed: 1,
            minutes: u64::MAX,
            keep_going: false,
            child: false,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut number = || arguments.next()?.parse().ok();
            match argument.as_str() {
                "--cases" => options.cases = number()?,
                "--seed" => options.seed = number()?,
                "--minutes" => options.minutes = number()?,
                "--keep-going" => options.keep_going = true,
                "--child" => options.child = true,
                _ => return None,
            }
        }
        Some(options)
    }
}

fn main() -> ExitCode {
    match Options::read() {
        None => {
            eprintln!("usage: fuzz [--cases N] [--minutes N] [--seed N] [--keep-going]");
            ExitCode::from(2)
        }
        Some(options) if options.child => child(&options),
        Some(options) => parent(&options),
    }
}

/// Runs cases one after the other, and writes to standard output which one begins and its outcome.
fn child(options: &Options) -> ExitCode {
    panic::set_hook(Box::new(|_| {
        let trace = Backtrace::force_capture().to_string();
        let ours = trace
            .lines()
            .filter_map(|line| line.split_once("crates/nn/src/"));
        PLACES.set(ours.map(|(_, place)| place.to_owned()).take(3).collect());
    }));
    let mut out = std::io::stdout().lock();
    for seed in options.seed..options.seed.saturating_add(options.cases) {
        let _ = writeln!(out, "begin {seed}").and_then(|()| out.flush());
        let outcome = caught(|| case(seed));
        let line = match outcome {
            Ok(what) => format!("ok {what}"),
            Err(message) => format!("fail {}", message.replace('\n', " ")),
        };
        let _ = writeln!(out, "{line}");
    }
    ExitCode::SUCCESS
}

/// Turns a panic into a failure.
fn caught(run: impl FnOnce() -> Outcome) -> Outcome {
    panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        let (message, places) = (message.unwrap_or("without a message"), PLACES.take());
        Err(format!("panic: {message} ({})", places.join(", ")))
    })
}

#[derive(Default)]
struct Tally {
    done: u64,
    verdicts: BTreeMap<String, u64>,
    failures: u64,
}

fn parent(options: &Options) -> ExitCode {
    let start = Instant::now();
    let mut tally = Tally::default();
    let (mut next, end) = (options.seed, options.seed.saturating_add(options.cases));
    let mut told = 0;
    while next < end {
        let count = BATCH.min(end - next);
        match batch(next, count, &mut tally) {
            Ok(()) => next += count,
            Err((seed, why)) => {
                eprintln!("seed {seed}: {why}");
                tally.failures += 1;
                next = seed + 1;
            }
        }
        if tally.failures > 0 && !options.keep_going {
            break;
        }
        let minutes = start.elapsed().as_secs() / 60;
        if minutes > told {
            told = minutes;
            let rate = tally.done as f64 / start.elapsed().as_secs_f64();
            eprintln!(
                "{minutes:>4} min {:>10} cases {rate:>7.0} a second",
                tally.done
            );
        }
        if minutes >= options.minutes {
            break;
        }
    }
    println!(
        "{} cases from seed {} in {:.1} s, {} failures",
        tally.done,
        options.seed,
        start.elapsed().as_secs_f64(),
        tally.failures
    );
    for (what, count) in tally.verdicts {
        println!("{count:>12} {what}");
    }
    match tally.failures {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Runs `count` cases in a separate process. The error is what ended it early, and at which seed.
fn batch(seed: u64, count: u64, tally: &mut Tally) -> Result<(), (u64, String)> {
    let here = |error: std::io::Error| (seed, format!("cannot run myself: {error}"));
    let mut child = Command::new(std::env::current_exe().map_err(here)?)
        .args([
            "--child",
            "--seed",
            &seed.to_string(),
            "--cases",
            &count.to_string(),
        ])
        // The number of threads must not influence the numbers.
        .env("RAYON_NUM_THREADS", (1 + seed / BATCH % 2).to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(here)?;
    let output = child.stdout.take().ok_or((seed, "no output".to_owned()))?;
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = send.send(line);
        }
    });
    let mut current = seed;
    loop {
        match lines.recv_timeout(PATIENCE) {
            Ok(line) => match line.split_once(' ') {
                Some(("begin", begun)) => current = begun.parse().unwrap_or(current),
                Some(("ok", what)) => {
                    tally.done += 1;
                    *tally.verdicts.entry(what.to_owned()).or_default() += 1;
                }
                Some(("fail", why)) => {
                    tally.done += 1;
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err((current, why.to_owned()));
                }
                _ => {}
            },
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err((current, format!("no end after {} s", PATIENCE.as_secs())));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err((current, format!("the process ended with {status}"))),
        Err(error) => Err((current, error.to_string())),
    }
}
