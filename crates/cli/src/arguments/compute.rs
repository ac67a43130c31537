//! Where and on how many threads to compute.

use std::num::NonZeroUsize;

use burn::tensor::Device;
use clap::Args;

use crate::failure::{CommandError, Failure};

/// Kinds of devices that Burn knows but that this build leaves out.
const ELSEWHERE: [&str; 7] = ["cuda", "rocm", "metal", "vulkan", "wgpu", "webgpu", "gpu"];

/// More than any machine serves.
const MOST_THREADS: usize = 1024;
/// Bytes of a thread's stack: what a main thread has.
const STACK: usize = 8 << 20;

/// Device and threads.
#[derive(Debug, Default, Args)]
pub struct Compute {
    /// Where to compute: `cpu`
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = device_name, help_heading = "Computing")]
    device: DeviceName,
    /// Number of threads [default: all that the machine has]
    #[arg(long, value_name = "N", help_heading = "Computing")]
    threads: Option<NonZeroUsize>,
}

/// A device as it is named.
#[derive(Debug, Clone, Default)]
enum DeviceName {
    #[default]
    Cpu,
    Elsewhere(String),
}

fn device_name(text: &str) -> Result<DeviceName, String> {
    let (kind, index) = text.split_once(':').unwrap_or((text, "0"));
    if text == "cpu" {
        Ok(DeviceName::Cpu)
    } else if ELSEWHERE.contains(&kind) && index.parse::<usize>().is_ok() {
        Ok(DeviceName::Elsewhere(text.to_owned()))
    } else {
        Err("there is no such kind of device; expected cpu".to_owned())
    }
}

impl Compute {
    /// Starts the threads and does `work` on one of them, with the device. `threads` counts where the command line is
    /// silent; without either there is one for each core.
    ///
    /// Work that is on a thread of the pool shares its parts out without sleeping and waking: from outside,
    /// each of some hundred operations of an update, or of a word, would switch threads twice. Work within work goes on where
    /// it is.
    ///
    /// # Errors
    /// A device that is not there, threads that cannot be had, and those of `work`.
    pub fn run<T: Send>(
        &self,
        threads: Option<usize>,
        work: impl FnOnce(&Device) -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        if let DeviceName::Elsewhere(name) = &self.device {
            return Err(CommandError::NoDevice(name.clone()).into());
        }
        let threads = self.threads.map(NonZeroUsize::get).or(threads);
        if let Some(threads) = threads.filter(|&threads| threads > MOST_THREADS) {
            return Err(Failure::Usage(format!(
                "{threads} threads were asked for; give at most {MOST_THREADS}, best as many as the machine has cores"
            )));
        }
        if rayon::current_thread_index().is_none() {
            let built = rayon::ThreadPoolBuilder::new()
                .num_threads(threads.unwrap_or(0)) // 0 is rayon's word for all that there are
                .stack_size(STACK)
                .build_global();
            if let (Err(error), Some(threads)) = (built, threads) {
                let reason = error.to_string();
                return Err(CommandError::Threads { threads, reason }.into());
            }
        }
        rayon::scope(|_| work(&Device::flex()))
    }
}
