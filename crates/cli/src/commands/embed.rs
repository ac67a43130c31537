//! `regard embed`.

use regard_models::pretrained::Pooling;
use regard_nn::weights::{self, Array, Arrays, Storage};
use serde_json::json;

use super::pretrained::{Encoder, texts};
use crate::{
    arguments::Embed,
    failure::Failure,
    output::{self, Output},
};

/// How many texts are computed together.
const BATCH: usize = 32;

/// Turns texts into vectors.
///
/// # Errors
/// A model that is no encoder, a text that is too long.
pub fn run(options: &Embed) -> Result<(), Failure> {
    options.compute.run(None, |_| work(options))
}

fn work(options: &Embed) -> Result<(), Failure> {
    let encoder = Encoder::open(&options.model.model, options.model.storage(), false)?;
    let model = &encoder.model;
    let pooling = Pooling::open(&encoder.opened.path)?;
    let mut out = Output::standard();
    let (mut all, mut count) = (vec![], 0);
    for texts in texts(&options.texts)?.chunks(BATCH) {
        let states = encoder.batch(&encoder.encode(texts)?)?;
        for (text, states) in texts.iter().zip(&states) {
            let vector = pooling.vector(model, states);
            count += 1;
            match options.output {
                Some(_) => all.extend(vector),
                None => out.line(&json!({"text": text, "vector": vector}).to_string())?,
            }
        }
    }
    out.flush()?;
    if let Some(path) = &options.output {
        let array = Array {
            shape: vec![count, model.size()],
            values: all,
        };
        let arrays = Arrays::from([("vectors".to_owned(), array)]);
        let bytes = weights::to_bytes(&arrays, Default::default(), Storage::F32)?;
        output::write_file(path, &bytes)?;
    }
    Ok(())
}
