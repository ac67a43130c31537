//! `regard embed`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use regard_images::Image;
use regard_models::pretrained::{Encoding, holds_clip};
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
    input,
    output::{self, Output},
    pictures::Shown,
    ranks,
};

/// How many texts or images are computed together.
const BATCH: usize = 32;

/// Turns texts and images into vectors.
///
/// # Errors
/// A model that is no encoder, or reads no images; an image that is wrong.
pub fn run(options: &Embed) -> Result<(), Failure> {
    options.compute.run(None, |device| work(options, device))
}

fn work(options: &Embed, device: &Device) -> Result<(), Failure> {
    let encoder = Encoder::open(
        &options.model.model,
        options.model.storage(),
        options.show.quiet,
    )?;
    let shown = Shown::new(&options.show, Some(&options.model.model))?;
    let images = image_files(&options.images)?;
    // Lines of standard input are read by rank 0 for all.
    let inputs = options.texts.iter().chain(&images);
    ranks::expect_same([encoder.opened.path.clone()], inputs)?;
    let model = output::model_files(&options.model.model);
    let read = images.iter().map(Path::new);
    let read = read.chain(model.iter().map(PathBuf::as_path));
    output::expect_apart(read, options.output.iter().map(|path| (path, false)))?;
    let several = options.texts.len() + images.len() != 1;
    let used = images
        .iter()
        .map(Path::new)
        .chain(options.output.as_deref());
    shown.expect_apart(used, several)?;
    if shown.is_wanted() && (options.resume || !ranks::all().is_alone()) {
        let message = "attention is shown, and written to files, by one process from the beginning on; leave --resume out, and start this without mpirun";
        return Err(Failure::Usage(message.to_owned()));
    }
    let part = options.output.as_ref().filter(|_| options.resume);
    let part = part.map(|path| path.with_added_extension("part"));
    let (part, done) = match part {
        Some(path) => {
            let (output, done) = Output::resumed(&path)?;
            (Some((path, output)), done)
        }
        None => (None, 0),
    };
    let mut writer = Writer {
        options,
        shown,
        out: Output::standard(),
        all: vec![],
        count: 0,
        part,
        done,
    };
    if options.images.is_empty() || !options.texts.is_empty() {
        writer.texts(&encoder)?;
    } else if options.prompt.is_some() {
        let message = "--prompt stands before texts, and there are only images; leave it out";
        return Err(Failure::Usage(message.to_owned()));
    }
    if !options.images.is_empty() {
        let folder = encoder.opened.folder()?;
        if !holds_clip(folder) {
            return Err(Failure::Usage(
                "--image is for a model of images and texts (CLIP); this one reads texts alone"
                    .to_owned(),
            ));
        }
        writer.images(&ImageEncoder::pretrained(folder, device)?, &images)?;
    }
    writer.finish()
}

/// Warns if some of several texts have more than `most` tokens.
pub fn warn_of_longer(longer: usize, texts: usize, most: usize) {
    if longer > 0 {
        let (texts, have) = (
            output::counted(texts, "texts"),
            if longer == 1 { "has" } else { "have" },
        );
        output::warn(&format!(
            "{longer} of {texts} {have} more than {most} tokens; only the first {most} are read"
        ));
    }
}

/// Writes vectors and pictures.
struct Writer<'a> {
    options: &'a Embed,
    shown: Shown<'a>,
    out: Output,
    /// All vectors, if they go to a file.
    all: Vec<f32>,
    count: usize,
    /// The vectors so far, one a line, for a command that goes on where this one was interrupted.
    part: Option<(PathBuf, Output)>,
    /// How many of them there were before.
    done: usize,
}

impl Writer<'_> {
    fn texts(&mut self, encoder: &Encoder) -> Result<(), Failure> {
        let pooling = encoder.pooling(self.options.prompt.as_deref())?;
        let wanted = self.shown.is_wanted();
        let texts = texts(&self.options.texts)?;
        let most = pooling.most_tokens(&encoder.model);
        if !self.options.show.quiet {
            // Each rank has only its own texts, and those of the next batches are not read yet.
            let mut longer = 0;
            for text in &texts {
                let tokens = pooling.encode(&encoder.opened.tokenizer, text)?.ids.len();
                longer += usize::from(tokens > most);
            }
            warn_of_longer(longer, texts.len(), most);
        }
        let embed = |texts: &[String]| -> Result<Vec<_>, Failure> {
            let whole = encoder.encode_by(&pooling, texts)?;
            let side = encoder.opened.tokenizer.truncation_side();
            let cut = whole.iter().map(|text| text.truncated(most, side));
            let encoded: Vec<Encoding> = cut.collect();
            let read = encoder.read(texts, &encoded, wanted)?;
            let read = encoded.iter().zip(read).map(|(encoded, (states, trace))| {
                let vector = pooling.vector(&encoder.model, &encoded.ids, &states);
                (vector, trace)
            });
            Ok(read.collect())
        };
        self.each("text", &texts, embed)
    }

    fn images(&mut self, encoder: &ImageEncoder, files: &[String]) -> Result<(), Failure> {
        let decoding = encoder.preparation().decoding();
        let wanted = self.shown.is_wanted();
        let embed = |files: &[String]| -> Result<Vec<_>, Failure> {
            let images = files.iter().map(|file| Image::open(file, &decoding));
            let images = images.collect::<Result<Vec<_>, _>>()?;
            if !wanted {
                let vectors = encoder.vectors(&images)?.into_iter();
                return Ok(vectors.map(|vector| (vector, None)).collect());
            }
            let seen = encoder.look(&images)?.into_iter().zip(files);
            let traced = seen.map(|((vector, trace), file)| {
                let source = file.clone();
                (vector, Some(Trace { source, ..trace }))
            });
            Ok(traced.collect())
        };
        self.each("image", files, embed)
    }

    /// Writes what `embed` makes of `items`, which are called `name`; the ranks share them.
    fn each(
        &mut self,
        name: &str,
        items: &[String],
        embed: impl Fn(&[String]) -> Result<Vec<(Vec<f32>, Option<Trace>)>, Failure>,
    ) -> Result<(), Failure> {
        let skipped = items.len().min(self.done.saturating_sub(self.count));
        self.count += skipped;
        for items in items[skipped..].chunks(BATCH * ranks::all().count()) {
            // Traces stay where they are: with several ranks none is wanted.
            let mut traces = vec![];
            let vectors = ranks::all().spread(items, |_, own| -> Result<_, Failure> {
                let (vectors, seen): (Vec<Vec<f32>>, Vec<_>) = embed(own)?.into_iter().unzip();
                traces = seen;
                Ok(vectors)
            })?;
            traces.resize(items.len(), None);
            for ((item, vector), trace) in items.iter().zip(vectors).zip(traces) {
                self.write(json!({ name: item }), vector, trace)?;
            }
            if let Some((_, part)) = &mut self.part {
                part.flush()?;
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
        match (&mut self.part, &self.options.output) {
            (Some((_, part)), _) => part.line(&serde_json::to_string(&vector)?)?,
            (None, Some(_)) => self.all.extend(vector),
            (None, None) => line["vector"] = json!(vector),
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
        let part = self.part.take().map(|(path, _)| path);
        if let Some(path) = part.as_ref().filter(|_| ranks::is_first()) {
            for line in input::text(path)?.lines() {
                self.all.extend(serde_json::from_str::<Vec<f32>>(line)?);
            }
        }
        if self.count < self.done {
            return Err(Failure::Usage(format!(
                "--resume: {} vectors are done already, of only {} texts and images; give the same as before, or leave --resume out",
                self.done, self.count
            )));
        }
        if let Some(path) = &self.options.output {
            let array = Array {
                shape: vec![self.count, self.all.len() / self.count.max(1)],
                values: self.all,
            };
            let arrays = Arrays::from([("vectors".to_owned(), array)]);
            let bytes = weights::to_bytes(&arrays, Default::default(), Storage::F32)?;
            output::write_file(path, &bytes)?;
        }
        if let Some(path) = part.filter(|_| ranks::is_first()) {
            // It may stay: the next command would find it whole.
            let _ = fs::remove_file(path);
        }
        Ok(())
    }
}
