//! What `regard --version` says: this build, and what it computes with on this machine.

use std::{
    env::{self, consts},
    sync::LazyLock,
};

use regard_kernels::simd::Level;

use crate::devices;

/// The features that a build may have or leave out.
const FEATURES: [(&str, bool); 4] = [
    ("cuda", cfg!(feature = "cuda")),
    ("hub", cfg!(feature = "hub")),
    ("mpi", cfg!(feature = "mpi")),
    ("wgpu", cfg!(feature = "wgpu")),
];

/// The version, the instruction set of the kernels, the features, the devices and the platform, a line each.
pub fn long() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let available: Vec<_> = Level::available()
            .iter()
            .map(|level| level.name())
            .collect();
        let built: Vec<_> = FEATURES
            .iter()
            .filter(|(_, on)| *on)
            .map(|(name, _)| *name)
            .collect();
        let features = match built.is_empty() {
            true => "none".to_owned(),
            false => built.join(", "),
        };
        // Every command line is read with this text at hand: cards are looked for only where it will be printed.
        let devices = match env::args_os().any(|argument| argument == "--version") {
            true => devices::list(),
            false => vec![],
        };
        let pairs = match Level::current().has_pairs() {
            true => ", with products of bfloat16",
            false => "",
        };
        format!(
            "{}\nkernels:  {}{pairs} (of {}; the environment variable REGARD_SIMD chooses)\nfeatures: {features}\ndevices:  {}\nplatform: {} {}",
            env!("CARGO_PKG_VERSION"),
            Level::current().name(),
            available.join(", "),
            devices.join(", "),
            consts::OS,
            consts::ARCH,
        )
    });
    &TEXT
}
