//! candle's side of `bench/peers/language_model.py`: Llama and BERT of candle-transformers, on the checkpoints of the PyTorch side.
//!
//! Questions and answers are those of `language_model_torch.py`: `decode` and `prompt` of `llama`, `encode` of `minilm` and `bert`.
//! candle-transformers has no GPT-2.

use std::{
    collections::HashSet,
    error::Error,
    fs,
    io::{self, BufRead, Write},
    path::{Path, PathBuf},
    time::Instant,
};

use candle_core::{DType, Device, IndexOp, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{
    bert::{self, BertModel},
    llama::{self, Cache, Llama, LlamaConfig},
};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = match (arguments.next().as_deref(), arguments.next()) {
        (Some("--folder"), Some(folder)) => PathBuf::from(folder),
        _ => return Err("expected --folder FOLDER".into()),
    };
    let mut side = Side::default();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let question: Value = serde_json::from_str(&line)?;
        if side.warm.insert(line) {
            side.answer(&folder, &question)?;
        }
        println!("{}", side.answer(&folder, &question)?);
        io::stdout().flush()?;
    }
    Ok(())
}

enum Model {
    Writes(Box<Llama>, llama::Config, DType),
    Reads(Box<BertModel>, usize),
}

#[derive(Default)]
struct Side {
    name: String,
    model: Option<Model>,
    warm: HashSet<String>,
}

/// Token ids of all sides' inputs.
fn ids(batch: usize, length: usize, vocabulary: usize) -> candle_core::Result<Tensor> {
    let id = |at: usize| {
        let (r, i) = (at / length, at % length);
        ((7919 * r + 104_729 * i + 1000) % vocabulary) as u32
    };
    let ids: Vec<u32> = (0..batch * length).map(id).collect();
    Tensor::from_vec(ids, (batch, length), &Device::Cpu)
}

fn open(folder: &Path, dtype: DType) -> Result<Model, Box<dyn Error>> {
    let config = fs::read_to_string(folder.join("config.json"))?;
    let weights = fs::read(folder.join("model.safetensors"))?;
    let weights = VarBuilder::from_buffered_safetensors(weights, dtype, &Device::Cpu)?;
    let kind: Value = serde_json::from_str(&config)?;
    if kind["model_type"] == "bert" {
        let config: bert::Config = serde_json::from_str(&config)?;
        let model = BertModel::load(weights, &config)?;
        return Ok(Model::Reads(Box::new(model), config.vocab_size));
    }
    let config: LlamaConfig = serde_json::from_str(&config)?;
    let config = config.into_config(false);
    let model = Llama::load(weights, &config)?;
    Ok(Model::Writes(Box::new(model), config, dtype))
}

impl Side {
    fn answer(&mut self, folder: &Path, question: &Value) -> Result<Value, Box<dyn Error>> {
        let text = |key: &str| question[key].as_str().unwrap_or_default();
        let number = |key: &str, usual: u64| question[key].as_u64().unwrap_or(usual) as usize;
        let name = format!("{}-{}", text("model"), text("dtype"));
        if name != self.name {
            let dtype = match text("dtype") {
                "bf16" => DType::BF16,
                _ => DType::F32,
            };
            self.model = Some(open(&folder.join(&name), dtype)?);
            self.name = name;
        }
        match self.model.as_ref().ok_or("no model")? {
            Model::Reads(model, vocabulary) => {
                let ids = ids(number("batch", 1), number("length", 32), *vocabulary)?;
                let types = ids.zeros_like()?;
                let begun = Instant::now();
                let states = model.forward(&ids, &types, None)?;
                let seconds = begun.elapsed().as_secs_f64();
                let (batch, length, _) = states.dims3()?;
                let probe: Vec<f32> = states.i((batch - 1, length - 1, ..4))?.to_vec1()?;
                Ok(json!({"seconds": seconds, "probe": probe}))
            }
            Model::Writes(model, config, dtype) => {
                let mut cache = Cache::new(true, *dtype, config, &Device::Cpu)?;
                let decodes = text("work") == "decode";
                let length = match decodes {
                    true => number("prompt", 16),
                    false => number("length", 512),
                };
                let best = |logits: &Tensor| logits.i(0)?.argmax(0)?.to_scalar::<u32>();
                let prompt = ids(1, length, config.vocab_size)?;
                let begun = Instant::now();
                let mut logits = model.forward(&prompt, 0, &mut cache)?;
                if !decodes {
                    let seconds = begun.elapsed().as_secs_f64();
                    return Ok(json!({"seconds": seconds, "best": best(&logits)?}));
                }
                let mut found = vec![];
                let begun = Instant::now();
                for at in 0..number("tokens", 64) {
                    let next = best(&logits)?;
                    found.push(next);
                    let next = Tensor::new(&[[next]], &Device::Cpu)?;
                    logits = model.forward(&next, length + at, &mut cache)?;
                }
                Ok(json!({"seconds": begun.elapsed().as_secs_f64(), "ids": found}))
            }
        }
    }
}
