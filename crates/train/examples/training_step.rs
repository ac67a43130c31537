//! Times training steps of the `rnnsearch` shape: embedding 256, BiGRU 256, GRU 256, additive attention 256,
//! maxout 256, vocabulary 8,000, batch 64 x 20, label smoothing 0.1, clipping at 1, Adam.
//!
//! `cargo run --release -p regard-train --example training_step -- [--rounds N] [--steps N] [--json]`
//! prints milliseconds a step. `bench/peers/training_step.py` drives it beside PyTorch:
//!
//! - `--export FILE` first writes the drawn weights (by their names) and the ids of all batches
//!   (`ids.source`, `ids.target`: `[batches, 64, 19]`, markers left out) to FILE as safetensors;
//! - `--serve` reads a number of steps from each line of standard input, makes them, and answers with one
//!   line of JSON: `{"seconds": [..], "losses": [..]}`.

use std::{
    fs,
    io::{self, BufRead, Write},
    process::ExitCode,
    time::Instant,
};

use burn::tensor::Device;
use mimalloc::MiMalloc;
use regard_models::{
    ModelConfig, RnnSearchConfig, SourceBatch, TargetBatch, TranslationModel, tables::Tie,
};
use regard_nn::{
    dropout::Noise,
    weights::{self, Array, Storage},
};
use regard_train::{learner::optimizer::Optimizer, recipe};
use serde_json::json;

// As in the command `regard`.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const VOCABULARY: usize = 8_000;
const SIZE: usize = 256;
const BATCH: usize = 64;
/// Tokens of a sentence; with the end marker 20 positions.
const TOKENS: usize = 19;
/// Different batches, taken in turn.
const BATCHES: usize = 8;
const LEARNING_RATE: f64 = 1e-3;

type Failure = Box<dyn std::error::Error>;
type Sentences = Vec<Vec<u32>>;

struct Arguments {
    rounds: usize,
    steps: usize,
    json: bool,
    serve: bool,
    export: Option<String>,
}

fn arguments() -> Result<Arguments, Failure> {
    let mut parsed = Arguments {
        rounds: 5,
        steps: 5,
        json: false,
        serve: false,
        export: None,
    };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let mut value = || given.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--rounds" => parsed.rounds = value()?.parse()?,
            "--steps" => parsed.steps = value()?.parse()?,
            "--export" => parsed.export = Some(value()?),
            "--json" => parsed.json = true,
            "--serve" => parsed.serve = true,
            _ => {
                let known = "--rounds N, --steps N, --json, --serve, --export FILE";
                return Err(format!("unknown argument {argument}; expected {known}").into());
            }
        }
    }
    Ok(parsed)
}

/// A model in training, and the batches it sees.
struct Training {
    model: Option<TranslationModel>,
    optimizer: Optimizer,
    batches: Vec<(Sentences, Sentences)>,
    device: Device,
    step: usize,
}

impl Training {
    fn new() -> Result<Self, Failure> {
        let device = Device::flex().autodiff();
        let config = ModelConfig::RnnSearch(RnnSearchConfig {
            source_vocabulary: VOCABULARY,
            target_vocabulary: VOCABULARY,
            embedding: SIZE,
            hidden: SIZE,
            attention: SIZE,
            maxout: SIZE,
            tie: Tie::None,
            embedding_dropout: 0.0,
            annotation_dropout: 0.0,
            output_dropout: 0.0,
            paper_initialisation: false,
        });
        let settings = recipe::Optimizer::Adam(recipe::Adam {
            clip_norm: 1.0,
            ..Default::default()
        });
        Ok(Self {
            model: Some(config.init(1, &device)?),
            optimizer: Optimizer::new(settings),
            batches: batches(),
            device,
            step: 0,
        })
    }

    /// One update; gives its seconds and the loss before it.
    fn update(&mut self) -> Result<(f64, f64), Failure> {
        let (sources, targets) = &self.batches[self.step % BATCHES];
        self.step += 1;
        let started = Instant::now();
        let source = SourceBatch::new(sources, &self.device);
        let target = TargetBatch::new(targets, &self.device);
        let model = self.model.as_ref().ok_or("an earlier update failed")?;
        let scored = model.forward(&source, &target, &mut Noise::seeded(1));
        let batch = scored.cross_entropy(target.outputs, 0.1);
        let value = f64::from(batch.loss.clone().into_scalar::<f32>());
        let gradients = batch.loss.backward();
        let model = self.model.take().ok_or("an earlier update failed")?;
        self.model = Some(self.optimizer.update(model, gradients, LEARNING_RATE)?.0);
        Ok((started.elapsed().as_secs_f64(), value))
    }

    fn export(&self, path: &str) -> Result<(), Failure> {
        let mut arrays = weights::collect(self.model.as_ref().ok_or("an earlier update failed")?);
        let (sources, targets): (Vec<_>, Vec<_>) = self.batches.iter().cloned().unzip();
        for (name, side) in [("ids.source", sources), ("ids.target", targets)] {
            let ids = side.iter().flatten().flatten();
            let array = Array {
                shape: vec![BATCHES, BATCH, TOKENS],
                values: ids.map(|&id| id as f32).collect(),
            };
            arrays.insert(name.to_owned(), array);
        }
        fs::write(
            path,
            weights::to_bytes(&arrays, Default::default(), Storage::F32)?,
        )?;
        Ok(())
    }
}

/// Random ids beyond the reserved ones, from a fixed seed.
fn batches() -> Vec<(Sentences, Sentences)> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut id = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        4 + (state >> 20) as u32 % (VOCABULARY as u32 - 4)
    };
    let mut sentences = || {
        (0..BATCH)
            .map(|_| (0..TOKENS).map(|_| id()).collect())
            .collect()
    };
    (0..BATCHES).map(|_| (sentences(), sentences())).collect()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

fn run() -> Result<(), Failure> {
    let arguments = arguments()?;
    let mut training = Training::new()?;
    if let Some(path) = &arguments.export {
        training.export(path)?;
    }
    let mut output = io::stdout();
    if arguments.serve {
        for line in io::stdin().lock().lines() {
            let steps: usize = line?.trim().parse()?;
            let done: Vec<(f64, f64)> = (0..steps)
                .map(|_| training.update())
                .collect::<Result<_, _>>()?;
            let (seconds, losses): (Vec<f64>, Vec<f64>) = done.into_iter().unzip();
            writeln!(
                output,
                "{}",
                json!({ "seconds": seconds, "losses": losses })
            )?;
            output.flush()?;
        }
        return Ok(());
    }
    for _ in 0..3 {
        training.update()?;
    }
    let mut all = vec![];
    for round in 1..=arguments.rounds {
        let done: Vec<(f64, f64)> = (0..arguments.steps)
            .map(|_| training.update())
            .collect::<Result<_, _>>()?;
        let mut seconds: Vec<f64> = done.iter().map(|step| step.0).collect();
        all.extend(&seconds);
        let milliseconds = 1e3 * median(&mut seconds);
        if !arguments.json {
            writeln!(
                output,
                "round {round}: {milliseconds:.1} ms a step (median)"
            )?;
        }
    }
    let milliseconds = 1e3 * median(&mut all);
    match arguments.json {
        true => writeln!(
            output,
            "{}",
            json!({ "milliseconds": milliseconds, "steps": all.len() })
        )?,
        false => {
            let tokens = (BATCH * (TOKENS + 1)) as f64 / milliseconds * 1e3;
            writeln!(
                output,
                "median {milliseconds:.1} ms a step, {tokens:.0} target tokens a second"
            )?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("training_step: {error}");
            ExitCode::FAILURE
        }
    }
}
