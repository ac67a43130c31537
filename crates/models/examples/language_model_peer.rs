//! The side of regard in `bench/peers/language_model.py`: pretrained models of real size with random weights.
//!
//! Each line of standard input is a question in JSON, each line of output its answer: the seconds of one run, after one that warms
//! up when the question is new.
//!
//! ```text
//! {"work": "decode", "model": "gpt2", "dtype": "bf16", "tokens": 64}       greedy steps after a prompt of 16 ids
//! {"work": "prompt", "model": "llama", "dtype": "f32", "length": 512}      one pass, and the logits after it
//! {"work": "look", "model": "gpt2", "dtype": "f32", "length": 512}         the same, with the weights of the last layer's first head
//! {"work": "encode", "model": "minilm", "dtype": "f32", "batch": 32, "length": 64}
//! {"work": "best", "model": "gpt2", "dtype": "f32", "length": 512}        the likeliest token after each of a text's
//! {"work": "memory"}                                                       the most memory that the process has held
//! ```
//! `"weights": "int8"` packs weights in 8 bits, `"bf16"` in bfloat16.

use std::{
    collections::HashSet,
    error::Error,
    io::{self, BufRead, Write},
    path::PathBuf,
    time::Instant,
};

use mimalloc::MiMalloc;
use regard_kernels::{Kind, matmul::Storage};
use regard_models::{
    Stepper,
    pretrained::{Folder, Input, LanguageModel, Look, TextEncoder},
};
use serde_json::{Value, json};

// The allocator of the command `regard`.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = match (arguments.next().as_deref(), arguments.next()) {
        (Some("--folder"), Some(folder)) => PathBuf::from(folder),
        _ => return Err("expected --folder FOLDER".into()),
    };
    // On a thread of the pool, as the commands do.
    rayon::scope(|_| serve(folder).map_err(|error| error.to_string()))?;
    Ok(())
}

#[derive(Default)]
struct Models {
    name: String,
    writes: Option<LanguageModel>,
    reads: Option<TextEncoder>,
    warm: HashSet<String>,
}

fn serve(folder: PathBuf) -> Result<(), Box<dyn Error>> {
    let mut models = Models::default();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let question: Value = serde_json::from_str(&line)?;
        if models.warm.insert(line) {
            models.answer(&folder, &question)?;
        }
        let answer = models.answer(&folder, &question)?;
        println!("{answer}");
        io::stdout().flush()?;
    }
    Ok(())
}

/// Token ids of all sides' inputs.
fn ids(batch: usize, length: usize, vocabulary: usize) -> Vec<Vec<u32>> {
    let id = |r: usize, i: usize| ((7919 * r + 104_729 * i + 1000) % vocabulary) as u32;
    let row = |r| (0..length).map(|i| id(r, i)).collect();
    (0..batch).map(row).collect()
}

impl Models {
    fn answer(
        &mut self,
        folder: &std::path::Path,
        question: &Value,
    ) -> Result<Value, Box<dyn Error>> {
        let text = |key: &str| question[key].as_str().unwrap_or_default().to_owned();
        let number = |key: &str, usual: u64| question[key].as_u64().unwrap_or(usual) as usize;
        let work = text("work");
        if work == "memory" {
            return Ok(json!({"bytes": peak_bytes()?}));
        }
        let name = format!("{}-{}", text("model"), text("dtype"));
        let weights = text("weights");
        let full = format!("{name} {weights}");
        if full != self.name {
            *self = Self {
                warm: std::mem::take(&mut self.warm),
                ..Self::default()
            };
            let opened = Folder::open(folder.join(&name))?;
            let storage = match weights.as_str() {
                "int8" => Some(Storage::Int8),
                "bf16" => Some(Storage::Bf16),
                _ => None,
            };
            match work.as_str() {
                "encode" => self.reads = Some(TextEncoder::open(&opened, storage)?),
                _ => self.writes = Some(LanguageModel::open(&opened, storage)?),
            }
            self.name = full;
        }
        if let Some(model) = &self.reads {
            let ids = ids(number("batch", 1), number("length", 32), model.vocabulary());
            let inputs: Vec<Input> = ids
                .iter()
                .map(|ids| Input {
                    ids,
                    types: &[],
                    ..Default::default()
                })
                .collect();
            let begun = Instant::now();
            let states = model.states(&inputs, None)?;
            let seconds = begun.elapsed().as_secs_f64();
            let last = states.last().ok_or("no texts")?;
            let last = last.chunks(model.size()).next_back().ok_or("no tokens")?;
            return Ok(json!({"seconds": seconds, "probe": last[..4]}));
        }
        let Some(model) = &self.writes else {
            return Err("no model".into());
        };
        let best = |logits: &[f32]| {
            let places = 0..logits.len();
            places.max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)))
        };
        let mut logits = vec![];
        if work == "best" {
            let text = ids(1, number("length", 512), model.vocabulary());
            let logits = model.logits(&text[0])?;
            let rows = logits.chunks(model.vocabulary());
            return Ok(json!({"best": rows.map(best).collect::<Vec<_>>()}));
        }
        if work == "decode" {
            let prompt = ids(1, number("prompt", 16), model.vocabulary());
            let mut reading = model.begin(1, Kind::F32);
            let (last, before) = prompt[0].split_last().ok_or("an empty prompt")?;
            reading.read(&[before], None)?;
            reading.step(&[*last], &mut logits);
            let mut found = vec![];
            let begun = Instant::now();
            for _ in 0..number("tokens", 64) {
                let next = best(&logits).ok_or("no logits")? as u32;
                found.push(next);
                reading.step(&[next], &mut logits);
            }
            return Ok(json!({"seconds": begun.elapsed().as_secs_f64(), "ids": found}));
        }
        let length = number("length", 512);
        let prompt = ids(1, length, model.vocabulary());
        let mut reading = model.begin(1, Kind::F32);
        let (last, before) = prompt[0].split_last().ok_or("an empty prompt")?;
        let mut look = Look::new(length);
        look.layer = Some(model.stack().blocks().len() - 1);
        look.head = Some(0);
        look.query = Some(length - 2);
        let begun = Instant::now();
        match work.as_str() {
            "look" => reading.read(&[before], Some(&mut look))?,
            _ => reading.read(&[before], None)?,
        }
        reading.step(&[*last], &mut logits);
        let seconds = begun.elapsed().as_secs_f64();
        Ok(json!({"seconds": seconds, "best": best(&logits)}))
    }
}

/// `VmHWM` of this process.
fn peak_bytes() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(1024
        * kilobytes
            .ok_or("no VmHWM in /proc/self/status")?
            .parse::<u64>()?)
}
