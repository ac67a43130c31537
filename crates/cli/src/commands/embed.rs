//! `regard embed`.

use regard_models::pretrained::Pooling;
use regard_nn::weights::{self, Array, Arrays, Storage};
use serde_json::json;

use super::pretrained::{Encoder, texts};
use crate::{
    arguments::Embed,
    failure::Failure,
    output::{self, Output},
    pictures::Shown,
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
    let encoder = Encoder::open(
        &options.model.model,
        options.model.storage(),
        options.show.quiet,
    )?;
    let model = &encoder.model;
    let pooling = Pooling::open(&encoder.opened.path)?;
    let mut shown = Shown::new(&options.show)?;
    let mut out = Output::standard();
    let (mut all, mut count) = (vec![], 0);
    for texts in texts(&options.texts)?.chunks(BATCH) {
        let encoded = encoder.encode(texts)?;
        let read = encoder.read(texts, &encoded, shown.is_wanted())?;
        for (text, (states, trace)) in texts.iter().zip(read) {
            let vector = pooling.vector(model, &states);
            count += 1;
            let maps = trace.as_ref().and_then(|trace| shown.json(trace));
            let mut line = json!({"text": text});
            match options.output {
                Some(_) => all.extend(vector),
                None => line["vector"] = json!(vector),
            }
            if let Some(maps) = maps {
                line["maps"] = maps;
            }
            if options.output.is_none() || options.show.json {
                out.line(&line.to_string())?;
            }
            if let Some(trace) = &trace {
                shown.push(&mut out, count, trace)?;
            }
        }
    }
    out.flush()?;
    shown.write()?;
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
