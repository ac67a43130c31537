//! Language models of sequences whose next symbol follows from three earlier ones, for experiments.
//!
//! ```text
//! x_t = (x_{t-4} + 1) mod n   if x_{t-2} < n/2,   (x_{t-7} + 1) mod n   otherwise        x_1 .. x_7 drawn
//! ```
//! Where to look follows from a symbol that is not the last one, so a layer has to look at three places at once.

use std::path::Path;

use burn::{module::Module, tensor::Device};
use regard_models::{
    AnyTextModel, language::PlainTextModel, pretrained::PackedText, scoring::CausalModel,
};

use super::{ExperimentError, Setting, trained};
use crate::{corpus::Random, files, tasks::LanguageModelling};

const SYMBOLS: usize = 8;
const SWITCH: usize = 2;
const NEAR: usize = 4;
const FAR: usize = 7;
const TRAINING: usize = 20_000;
const VALIDATION: usize = 100;
const TEST: usize = 400;

/// Symbols at the beginning of a sequence that follow from none before.
pub(super) const DRAWN: usize = FAR;

/// Symbols of a sequence.
pub(super) const LENGTH: usize = 24;

/// What is trained: a Transformer of one layer with so many heads, for so many updates, on the text in `folder`.
pub(super) fn recipe(heads: usize, steps: u32, folder: &Path) -> String {
    let [train, valid] = ["train.txt", "valid.txt"].map(|name| folder.join(name));
    let model = format!(
        r#"kind = "transformer-lm"
context = {}

[model.transformer]
d_model = 48
layers = 1
heads = {heads}
feed_forward = 96
bias = false
dropout = {{ embedding = 0.0, residual = 0.0 }}

[data.text]
train = {train:?}
valid = {valid:?}
texts = "lines"
units = "characters"
"#,
        LENGTH + 1
    );
    trained::language_recipe(&model, 50, steps)
}

/// Trains a model and gives it, with its number of weights and the test sequences as ids, to `judge`. An id stands before the
/// first symbol of each sequence.
pub(super) fn train<T>(
    setting: &Setting<'_>,
    heads: usize,
    steps: u32,
    seed: u64,
    judge: impl FnOnce(&dyn CausalModel, usize, &[Vec<u32>]) -> Result<T, ExperimentError>,
) -> Result<T, ExperimentError> {
    for (name, count, part) in [("train.txt", TRAINING, 0), ("valid.txt", VALIDATION, 1)] {
        let text = sequences(count, &[seed, part]).join("\n") + "\n";
        files::write_atomically(&setting.folder.join(name), text.as_bytes())?;
    }
    let name = format!("{heads} heads");
    let recipe = recipe(heads, steps, setting.folder);
    trained::train(setting, &name, &recipe, seed, |registry, _, folder| {
        let (model, described) = registry.open::<LanguageModelling>(folder, setting.device)?;
        let tokenizer = described.tokenizer(&name);
        let tokenizer = tokenizer.map_err(|source| ExperimentError::Train {
            name: name.clone(),
            source: Box::new(source),
        })?;
        let encode = |text: &String| Ok(tokenizer.encode(text, true)?.ids);
        let test = sequences(TEST, &[seed, 2]);
        let test = test
            .iter()
            .map(encode)
            .collect::<Result<Vec<_>, ExperimentError>>()?;
        let weights = model.num_params();
        judge(&*causal(model, setting.device), weights, &test)
    })
}

/// The model as one that reads from left to right.
fn causal(model: AnyTextModel, device: &Device) -> Box<dyn CausalModel> {
    match model.pack() {
        Some(PackedText::Writes(packed)) => packed,
        _ => Box::new(PlainTextModel::new(model, device).expect("the recipe's model is causal")),
    }
}

fn sequences(count: usize, keys: &[u64]) -> Vec<String> {
    let mut random = Random::new(keys);
    let one = |_| {
        let mut x: Vec<usize> = (0..DRAWN).map(|_| random.below(SYMBOLS)).collect();
        for t in DRAWN..LENGTH {
            let back = if x[t - SWITCH] < SYMBOLS / 2 {
                NEAR
            } else {
                FAR
            };
            x.push((x[t - back] + 1) % SYMBOLS);
        }
        let names = x.iter().map(|&symbol| char::from(b'a' + symbol as u8));
        names.collect()
    };
    (0..count).map(one).collect()
}
