//! Translates sentences of ids for `bench/peers/translation.py`, which drives it beside CTranslate2.
//!
//! ```text
//! cargo run --release -p regard-train --example translation_peer -- MODEL
//! ```
//!
//! Answers each line of standard input with a line of JSON:
//! - `{"sentences": [[ids], ..], "beam": n, "length_penalty": a}` translates the sentences as one batch:
//!   `{"seconds": s, "translations": [[ids], ..]}`;
//! - `{"sources": [[ids], ..], "targets": [[ids], ..]}` gives the model's log-probability of each target, `</s>` included,
//!   under teacher forcing: `{"log_probabilities": [..]}`;
//! - `{"encode": "text"}` gives `{"ids": [..]}`, `{"decode": [ids]}` gives `{"text": ".."}`;
//! - `{"memory": true}` gives `{"peak_bytes": ..}`, the most that the process has held.

use std::{
    io::{self, BufRead, Write},
    path::Path,
    process::ExitCode,
    time::Instant,
};

use burn::tensor::{Device, activation::log_softmax};
use mimalloc::MiMalloc;
use regard_models::{SourceBatch, TargetBatch, generate::Prepared};
use regard_nn::dropout::DropoutRng;
use regard_train::{
    Registry, recipe,
    tasks::Translation,
    translator::{Description, beam_config},
};
use serde::Deserialize;
use serde_json::{Value, json};

#[path = "training_peer/memory.rs"]
mod memory;

// The allocator of the command `regard`.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

type Failure = Box<dyn std::error::Error>;

#[derive(Deserialize)]
#[serde(rename_all = "lowercase", untagged)]
enum Question {
    Translate {
        sentences: Vec<Vec<u32>>,
        beam: usize,
        length_penalty: f64,
    },
    Score {
        sources: Vec<Vec<u32>>,
        targets: Vec<Vec<u32>>,
    },
    Encode {
        encode: String,
    },
    Decode {
        decode: Vec<u32>,
    },
    Memory {
        #[serde(rename = "memory")]
        _memory: bool,
    },
}

struct Peer {
    model: Prepared,
    description: Description,
    device: Device,
}

impl Peer {
    fn answer(&self, line: &str) -> Result<Value, Failure> {
        let tokenizers = &self.description.tokenizers;
        Ok(match serde_json::from_str(line)? {
            Question::Translate {
                sentences,
                beam,
                length_penalty,
            } => {
                let search = beam_config(&recipe::Translation {
                    beam,
                    length_penalty,
                    n_best: 1,
                    ..self.description.translate.clone()
                });
                let started = Instant::now();
                let found = self.model.translate(&sentences, &search, &self.device);
                let seconds = started.elapsed().as_secs_f64();
                let best = found.into_iter().map(|mut n_best| n_best.swap_remove(0));
                let translations: Vec<_> = best.map(|best| best.tokens).collect();
                json!({ "seconds": seconds, "translations": translations })
            }
            Question::Score { sources, targets } => {
                let scores: Vec<f64> = sources
                    .iter()
                    .zip(&targets)
                    .map(|(source, target)| self.log_probability(source, target))
                    .collect();
                json!({ "log_probabilities": scores })
            }
            Question::Encode { encode } => json!({ "ids": tokenizers.source().encode(&encode)? }),
            Question::Decode { decode } => json!({ "text": tokenizers.target().decode(&decode)? }),
            Question::Memory { .. } => json!({ "peak_bytes": memory::peak_bytes() }),
        })
    }
}

impl Peer {
    /// The log-probability of `target` and `</s>`, teacher-forced.
    fn log_probability(&self, source: &[u32], target: &[u32]) -> f64 {
        let model = self.model.model();
        let marks = model.vocabularies();
        let source = SourceBatch::new(&[source.to_vec()], &marks.source, &self.device);
        let batch = TargetBatch::new(&[target.to_vec()], &marks.target, &self.device);
        let scored = model.forward(&source, &batch, &mut DropoutRng::none());
        let scores = log_softmax(scored.logits(), 1);
        let [_, vocabulary] = scores.dims();
        let scores: Vec<f32> = scores.into_data().iter().collect();
        let outputs = target.iter().copied().chain([marks.target.end]);
        let steps = outputs.zip(scores.chunks(vocabulary));
        steps
            .map(|(token, row)| f64::from(row[token as usize]))
            .sum()
    }
}

fn run() -> Result<(), Failure> {
    let path = std::env::args().nth(1).ok_or("expected a model file")?;
    let device = Device::flex();
    let (model, description) =
        Registry::default().open::<Translation>(Path::new(&path), &device)?;
    let peer = Peer {
        model: Prepared::new(model),
        description,
        device,
    };
    let mut output = io::stdout();
    for line in io::stdin().lock().lines() {
        writeln!(output, "{}", peer.answer(&line?)?)?;
        output.flush()?;
    }
    Ok(())
}

fn main() -> ExitCode {
    // Runs on a thread of the pool, as the command `regard` does.
    match rayon::scope(|_| run().map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("translation_peer: {error}");
            ExitCode::FAILURE
        }
    }
}
