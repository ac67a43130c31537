//! Where and on how many threads to compute.

use burn::tensor::Device;
use clap::Args;

use super::search::at_least_one;
use crate::{
    devices::DeviceName,
    failure::{CommandError, Failure},
};

/// The most threads that may be asked for.
const MOST_THREADS: usize = 1024;
/// Bytes of a thread's stack: what a main thread has.
const STACK: usize = 8 << 20;

/// Device and threads.
#[derive(Debug, Default, Args)]
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
    /// number; without either there is one thread for each core.
    ///
    /// On a thread of the pool, operations are split among threads without putting the caller to sleep and waking it. From
    /// outside the pool, each of some hundred operations of an update, or of a word, would switch threads twice. A call of
    /// `run` inside `work` stays on the same pool.
    ///
    /// # Errors
    /// A device that is not there or fails, threads that cannot be had, and those of `work`.
    pub fn run<T: Send>(
        &self,
        threads: Option<usize>,
        work: impl FnOnce(&Device) -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        let threads = self.threads.or(threads);
        if let Some(threads) = threads.filter(|&threads| threads > MOST_THREADS) {
            return Err(Failure::Usage(format!(
                "{threads} threads were asked for; give at most {MOST_THREADS}, best as many as the machine has cores"
            )));
        }
        if rayon::current_thread_index().is_none() {
            let built = rayon::ThreadPoolBuilder::new()
                .num_threads(threads.unwrap_or(0)) // rayon takes 0 for one thread per core
                .stack_size(STACK)
                .build_global();
            if let (Err(error), Some(threads)) = (built, threads) {
                let reason = error.to_string();
                return Err(CommandError::Threads { threads, reason }.into());
            }
        }
        rayon::scope(|_| self.device.with(work))
    }
}
