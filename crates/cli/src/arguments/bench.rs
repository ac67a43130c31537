//! `regard bench`.

use clap::Args;

use super::Compute;

const EXAMPLES: &str = "\
Examples:
  regard bench                         every kernel: rate and fraction of the peak
  regard bench --only \"dot forward\"    those of that name
  regard bench --quick --json          one JSON object a row
  regard bench --memory                what a call takes beyond its arguments

The peak is measured beside each kernel, in turns, and the median counts. Close what else is running. \
REGARD_SIMD=avx2 or REGARD_SIMD=scalar measures those kernels, against the peak of those instructions.";

/// Measure the kernels on this machine
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Bench {
    /// Measure only rows that contain PATTERN, such as `causal`, `l1024` or `bf16`; capitals do not count
    #[arg(long, value_name = "PATTERN")]
    pub only: Option<String>,
    /// Measure for a third of the rounds, a third as long
    #[arg(long, conflicts_with = "memory")]
    pub quick: bool,
    /// Show memory instead of speed
    #[arg(long)]
    pub memory: bool,
    /// Print JSON, one object a row
    #[arg(long)]
    pub json: bool,
    /// Device and threads.
    #[command(flatten)]
    pub compute: Compute,
}
