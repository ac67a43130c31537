//! `regard embed`.

use burn::tensor::Device;
use regard_images::Image;
use regard_models::pretrained::{Pooling, holds_clip};
use regard_nn::weights::{self, Array, Arrays, Storage};
use regard_trace::Trace;
use regard_train::ImageEncoder;
use serde_json::{Value, json};

use super::{
    image_files,
    pretrained::{Encoder, texts},
};
use crate::{
    arguments::Embed,
    failure::Failure,
    output::{self, Output},
    pictures::Shown,
};

/// How many texts or images are computed together.
const BATCH: usize = 32;

/// Turns texts and images into vectors.
///
/// # Errors
/// A model that is no encoder, or reads no images; a text that is too long; an image that is wrong.
pub fn run(options: &Embed) -> Result<(), Failure> {
    options.compute.run(None, |device| work(options, device))
}

fn work(options: &Embed, device: &Device) -> Result<(), Failure> {
    let encoder = Encoder::open(
        &options.model.model,
        options.model.storage(),
        options.show.quiet,
    )?;
    let mut writer = Writer {
        options,
        shown: Shown::new(&options.show)?,
        out: Output::standard(),
        all: vec![],
        count: 0,
    };
    if options.images.is_empty() || !options.texts.is_empty() {
        writer.texts(&encoder)?;
    }
    if !options.images.is_empty() {
        let folder = encoder.opened.folder()?;
        if !holds_clip(folder) {
            return Err(Failure::Usage(
                "--image is for a model of images and texts (CLIP); this one reads texts alone"
                    .to_owned(),
            ));
        }
        writer.images(&ImageEncoder::pretrained(folder, device)?)?;
    }
    writer.finish()
}

/// Writes vectors and pictures.
struct Writer<'a> {
    options: &'a Embed,
    shown: Shown<'a>,
    out: Output,
    /// All vectors, if they go to a file.
    all: Vec<f32>,
    count: usize,
}

impl Writer<'_> {
    fn texts(&mut self, encoder: &Encoder) -> Result<(), Failure> {
        let pooling = Pooling::open(&encoder.opened.path)?;
        for texts in texts(&self.options.texts)?.chunks(BATCH) {
            let encoded = encoder.encode(texts)?;
            let read = encoder.read(texts, &encoded, self.shown.is_wanted())?;
            for ((text, encoded), (states, trace)) in texts.iter().zip(&encoded).zip(read) {
                let vector = pooling.vector(&encoder.model, &encoded.ids, &states);
                self.write(json!({"text": text}), vector, trace)?;
            }
        }
        Ok(())
    }

    fn images(&mut self, encoder: &ImageEncoder) -> Result<(), Failure> {
        let decoding = encoder.preparation().decoding();
        for files in image_files(&self.options.images)?.chunks(BATCH) {
            let images = files.iter().map(|file| Image::open(file, &decoding));
            let images = images.collect::<Result<Vec<_>, _>>()?;
            let found: Vec<_> = match self.shown.is_wanted() {
                true => {
                    let seen = encoder.look(&images)?.into_iter();
                    seen.map(|(vector, trace)| (vector, Some(trace))).collect()
                }
                false => {
                    let vectors = encoder.vectors(&images)?.into_iter();
                    vectors.map(|vector| (vector, None)).collect()
                }
            };
            for (file, (vector, trace)) in files.iter().zip(found) {
                let trace = trace.map(|trace| Trace {
                    source: file.clone(),
                    ..trace
                });
                self.write(json!({"image": file}), vector, trace)?;
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        mut line: Value,
        vector: Vec<f32>,
        trace: Option<Trace>,
    ) -> Result<(), Failure> {
        self.count += 1;
        let maps = trace.as_ref().and_then(|trace| self.shown.json(trace));
        match self.options.output {
            Some(_) => self.all.extend(vector),
            None => line["vector"] = json!(vector),
        }
        if let Some(maps) = maps {
            line["maps"] = maps;
        }
        if self.options.output.is_none() || self.options.show.json {
            self.out.line(&line.to_string())?;
        }
        match &trace {
            Some(trace) => self.shown.push(&mut self.out, self.count, trace),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.out.flush()?;
        self.shown.write()?;
        if let Some(path) = &self.options.output {
            let array = Array {
                shape: vec![self.count, self.all.len() / self.count.max(1)],
                values: self.all,
            };
            let arrays = Arrays::from([("vectors".to_owned(), array)]);
            let bytes = weights::to_bytes(&arrays, Default::default(), Storage::F32)?;
            output::write_file(path, &bytes)?;
        }
        Ok(())
    }
}
