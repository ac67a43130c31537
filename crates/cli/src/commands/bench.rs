//! `regard bench`: what this machine can do, and which part of it each kernel reaches.

use regard_kernels::measure::{self, Case, Row, Settings};
use serde_json::json;

use crate::{allocator, arguments::Bench, devices, failure::Failure, output::Output};

/// Measures and prints, row by row.
///
/// # Errors
/// A pattern that no row contains, threads that cannot be had.
pub fn run(options: &Bench) -> Result<(), Failure> {
    options.compute.run(None, |_| measure(options))
}

fn measure(options: &Bench) -> Result<(), Failure> {
    devices::tell_cpu("bench");
    let mut settings = Settings::default();
    if options.quick {
        settings = Settings {
            rounds: settings.rounds / 3,
            seconds: settings.seconds / 3.0,
        };
    }
    let out = &mut Output::standard();
    match options.memory {
        true => memory(options, out),
        false => speed(options, &settings, out),
    }
}

fn speed(options: &Bench, settings: &Settings, out: &mut Output) -> Result<(), Failure> {
    let cases = chosen(measure::suite(), options)?;
    if !options.json {
        out.line(&format!(
            "{:<32} {:<22} {:<5} {:>19}  fraction",
            "kernel", "shape", "dtype", "rate"
        ))?;
    }
    for row in measure::machine(settings) {
        print_row(&row, options.json, out)?;
    }
    for case in cases {
        print_row(&case.run(settings)?, options.json, out)?;
    }
    Ok(())
}

fn print_row(row: &Row, as_json: bool, out: &mut Output) -> Result<(), Failure> {
    let text = match as_json {
        true => json!({
            "kernel": row.kernel,
            "shape": row.shape,
            "dtype": row.dtype,
            "value": row.value,
            "unit": row.unit.to_string(),
            "fraction": row.fraction,
        })
        .to_string(),
        false => {
            let fraction = match row.fraction {
                Some(fraction) => format!("{:>4.0} % of {}", fraction * 100.0, row.yardstick),
                None => String::new(),
            };
            let rate = format!("{:.1} {:<9}", row.value, row.unit.to_string());
            format!(
                "{:<32} {:<22} {:<5} {rate:>19}  {fraction}",
                row.kernel, row.shape, row.dtype
            )
            .trim_end()
            .to_owned()
        }
    };
    out.line(&text)?;
    out.flush()
}

fn memory(options: &Bench, out: &mut Output) -> Result<(), Failure> {
    let cases = chosen(measure::memory_suite(), options)?;
    if !options.json {
        out.line(&format!(
            "{:<32} {:<22} {:<5} {:>14} {:>20}",
            "kernel", "shape", "dtype", "extra memory", "the scores would be"
        ))?;
    }
    if let Some(smallest) = cases.first() {
        // The first work of the thread pool allocates memory that is not the kernel's.
        smallest.prepare()()?;
    }
    for case in cases {
        let mut call = case.prepare();
        let (result, extra) = allocator::extra_bytes(&mut call);
        result?;
        let scores = case.scores.map(|scores| scores * size_of::<f32>());
        let text = match options.json {
            true => json!({
                "kernel": case.kernel,
                "shape": case.shape,
                "dtype": case.dtype,
                "value": extra,
                "unit": "bytes",
                "fraction": scores.map(|scores| extra as f64 / scores as f64),
            })
            .to_string(),
            false => format!(
                "{:<32} {:<22} {:<5} {:>14} {:>20}",
                case.kernel,
                case.shape,
                case.dtype,
                kibibytes(extra),
                scores.map_or_else(String::new, kibibytes)
            ),
        };
        out.line(&text)?;
        out.flush()?;
    }
    Ok(())
}

fn kibibytes(bytes: usize) -> String {
    format!("{} KiB", bytes.div_ceil(1024))
}

/// The cases whose row contains the pattern.
fn chosen(cases: Vec<Case>, options: &Bench) -> Result<Vec<Case>, Failure> {
    let Some(pattern) = &options.only else {
        return Ok(cases);
    };
    let pattern = pattern.to_lowercase();
    let (chosen, others): (Vec<Case>, Vec<Case>) = cases
        .into_iter()
        .partition(|case| format!("{case:?}").to_lowercase().contains(&pattern));
    if chosen.is_empty() {
        let mut kernels: Vec<&str> = vec![];
        for case in &others {
            if !kernels.contains(&case.kernel.as_str()) {
                kernels.push(&case.kernel);
            }
        }
        return Err(Failure::Usage(format!(
            "no row contains `{pattern}`; the kernels are: {}",
            kernels.join(", ")
        )));
    }
    Ok(chosen)
}
