//! Where and on how many threads to compute.

use std::{env, thread};

use burn::tensor::Device;
use clap::Args;
use regard_kernels::simd::Level;

use super::search::at_least_one;
use crate::{
    devices::DeviceName,
    failure::{CommandError, Failure},
};

/// The most threads that may be asked for.
const MOST_THREADS: usize = 1024;
/// The environment variable that says how many threads there are where nothing else does. rayon reads it.
const THREADS: &str = "RAYON_NUM_THREADS";
/// The environment variable that names the instructions of the kernels, which read it.
const INSTRUCTIONS: &str = "REGARD_SIMD";
/// Bytes of a thread's stack: what a main thread has.
const STACK: usize = 8 << 20;

/// Device and threads.
#[derive(Debug, Clone, Default, Args)]
pub struct Compute {
    /// Where to compute: `cpu`, `gpu` for the first graphics card (of several processes on a machine each takes another), or a card by its name, such as `cuda:0` or `wgpu:0` (`regard --version` lists those that are there)
    #[arg(
        long,
        value_name = "DEVICE",
        default_value_t,
        help_heading = "Computing"
    )]
    device: DeviceName,
    /// Number of threads [default: all that the machine has]
    #[arg(long, value_name = "N", value_parser = at_least_one, help_heading = "Computing")]
    threads: Option<usize>,
}

impl Compute {
    /// Starts the threads and does `work` on one of them, with the device. `threads` is used if the command line gives no
    /// number; without either there are as many as the environment variable `RAYON_NUM_THREADS` says, or one for each core.
    ///
    /// On a thread of the pool, operations are split among threads without putting the caller to sleep and waking it. From
    /// outside the pool, each of some hundred operations of an update, or of a word, would switch threads twice. A call of
    /// `run` inside `work` stays on the same pool.
    ///
    /// # Errors
    /// A device that is not there or fails, threads that cannot be had, environment variables that say nothing known, and those of
    /// `work`.
    pub fn run<T: Send>(
        &self,
        threads: Option<usize>,
        work: impl FnOnce(&Device) -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        expect_instructions(&variable(INSTRUCTIONS))?;
        let given = self.threads.or(threads);
        if let Some(threads) = given.filter(|&threads| threads > MOST_THREADS) {
            return Err(Failure::Usage(format!(
                "{threads} threads were asked for; give at most {MOST_THREADS}, best as many as the machine has cores"
            )));
        }
        let threads = match given {
            Some(threads) => threads,
            None => threads_of(&variable(THREADS))?,
        };
        if rayon::current_thread_index().is_none() {
            let built = rayon::ThreadPoolBuilder::new()
                .num_threads(threads) // rayon takes 0 for one thread per core
                .stack_size(STACK)
                .build_global();
            if let Err(error) = built {
                return Err(CommandError::Threads {
                    threads: match threads {
                        0 => thread::available_parallelism().map_or(1, usize::from),
                        asked => asked,
                    },
                    reason: error.to_string(),
                    advice: match given {
                        Some(_) => "a smaller --threads",
                        None => "a smaller number in the environment variable RAYON_NUM_THREADS",
                    },
                }
                .into());
            }
        }
        rayon::scope(|_| self.device.with(work))
    }

    /// Checks the environment variables, for a command that does not compute on all threads.
    ///
    /// # Errors
    /// A variable that says nothing known.
    pub fn expect_environment() -> Result<(), Failure> {
        expect_instructions(&variable(INSTRUCTIONS))?;
        threads_of(&variable(THREADS)).map(drop)
    }
}

/// The value of an environment variable, empty if there is none.
fn variable(name: &str) -> String {
    let value = env::var_os(name).unwrap_or_default();
    value.to_string_lossy().into_owned()
}

/// How many threads a `value` of `RAYON_NUM_THREADS` asks for; 0 for all that the machine has.
fn threads_of(value: &str) -> Result<usize, Failure> {
    match value.parse::<usize>() {
        Ok(threads) if threads <= MOST_THREADS => Ok(threads),
        Err(_) if value.is_empty() => Ok(0),
        _ => Err(Failure::Usage(format!(
            "the environment variable {THREADS} is {value:?}; expected a number of threads from 1 to {MOST_THREADS}, or 0 for all that the machine has"
        ))),
    }
}

/// Refuses a `value` of `REGARD_SIMD` that names no instructions: the kernels would take the best ones.
fn expect_instructions(value: &str) -> Result<(), Failure> {
    let known = Level::NAMED.map(Level::name);
    match value.is_empty() || known.contains(&value) {
        true => Ok(()),
        false => Err(Failure::Usage(format!(
            "the environment variable {INSTRUCTIONS} is {value:?}; expected one of {}",
            known.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<T: std::fmt::Debug>(result: Result<T, Failure>) -> String {
        match result.unwrap_err() {
            Failure::Usage(message) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn threads_of_the_environment_are_a_number() {
        for (value, threads) in [("", 0), ("0", 0), ("1", 1), ("1024", 1024)] {
            assert_eq!(threads_of(value).unwrap(), threads);
        }
        let long = "9".repeat(30);
        for value in ["1025", long.as_str(), "-1", "four", " 4", "1.5"] {
            let message = refused(threads_of(value));
            let told = format!("RAYON_NUM_THREADS is {value:?}; expected a number");
            assert!(message.contains(&told), "{message}");
        }
    }

    #[test]
    fn instructions_of_the_environment_are_known() {
        for value in ["", "scalar", "neon", "avx2", "avx512"] {
            expect_instructions(value).unwrap();
        }
        for value in ["AVX2", "avx", "avx2 "] {
            let message = refused(expect_instructions(value));
            let told =
                format!("REGARD_SIMD is {value:?}; expected one of scalar, neon, avx2, avx512");
            assert!(message.contains(&told), "{message}");
        }
    }
}
