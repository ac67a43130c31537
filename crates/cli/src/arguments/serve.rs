//! `regard serve`.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::{Compute, pretrained::Stored};

const EXAMPLES: &str = "\
Examples:
  regard serve                                    the embedded translator: type, and see what it looks at
  regard serve --model scenes-vqa                 drop docs/scene.png, ask \"What colour is the square?\"
  regard serve --model openai-community/gpt2      switch heads off, and see the next word change
  regard serve --explain multi-head               a mechanism step by step, with sliders; no model is loaded
  regard serve look.safetensors other.safetensors traces of `--trace`, to be looked at and compared
  regard serve runs/NAME                          how attention changed in a training with `validation.diagnose`

Only this machine can connect. With --listen and an address that others reach, a token is needed, which stands in the address that \
is printed.";

/// Look at attention in the browser: a model that answers as you type, saved traces, mechanisms with sliders
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Serve {
    /// Trace files, and run folders of `regard train` (or their `metrics.jsonl`)
    #[arg(value_name = "TRACE")]
    pub traces: Vec<PathBuf>,
    /// The model to ask: a file or run folder of `regard train`, a pretrained model of texts or images (a folder, a name in the local
    /// cache, `hf:NAME`), or one that the command has: multi30k-en-de, scenes-captioner, scenes-vqa, mnist-resnet [default: multi30k-en-de
    /// where neither a trace nor --explain is given]
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Open the page at a worked example: a mechanism, layer, algorithm or preset of `regard explain --list`
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "scaled-dot")]
    pub explain: Option<String>,
    /// How its weights are kept.
    #[command(flatten)]
    pub stored: Stored,
    /// Where to listen; port 0 is any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = address)]
    pub listen: SocketAddr,
    /// What a browser has to know to connect, at least 16 letters or digits [default: none on this machine alone, else a random one]
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// Print the address, and open no browser
    #[arg(long)]
    pub no_open: bool,
    /// Print no messages but the address
    #[arg(short, long)]
    pub quiet: bool,
    /// Where to compute.
    #[command(flatten)]
    pub compute: Compute,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    let expected = |_| "expected an address with a port, such as 127.0.0.1:8000".to_owned();
    text.parse::<SocketAddr>().map_err(expected)
}
