//! Where and on how many threads to compute.

use std::num::NonZeroUsize;

use burn::tensor::Device;
use clap::Args;

use crate::failure::{CommandError, Failure};

/// Kinds of devices that Burn knows but that this build leaves out.
const ELSEWHERE: [&str; 7] = ["cuda", "rocm", "metal", "vulkan", "wgpu", "webgpu", "gpu"];

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
    /// Starts the threads and gives the device. `threads` counts where the command line is silent;
    /// without either, threads are started when they are first needed.
    ///
    /// # Errors
    /// A device that is not there, threads that cannot be had.
    pub fn set_up(&self, threads: Option<usize>) -> Result<Device, Failure> {
        if let DeviceName::Elsewhere(name) = &self.device {
            return Err(CommandError::NoDevice(name.clone()).into());
        }
        if let Some(threads) = self.threads.map(NonZeroUsize::get).or(threads) {
            rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build_global()
                .map_err(|error| CommandError::Threads {
                    threads,
                    reason: error.to_string(),
                })?;
        }
        Ok(Device::flex())
    }
}
