//! `regard embed`.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

use burn::tensor::Device;
use regard_images::Image;
use regard_models::pretrained::{Encoding, PretrainedError, holds_clip};
use regard_nn::weights::{self, Array, Arrays, Storage};
use regard_trace::Trace;
use regard_train::ImageEncoder;
use regard_view::label::visible;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    image_files,
    pretrained::{Encoder, expect_finite, texts},
    reduced,
};
use crate::{
    arguments::Embed,
    failure::{CommandError, Failure},
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
        device,
        options.model.storage(),
        options.show.quiet,
    )?;
    let shown = Shown::new(&options.show, Some(&options.model.model))?;
    let images = image_files(&options.images)?;
    // Lines of standard input are read by rank 0 for all.
    let inputs = options.texts.iter().chain(&images);
    let asked = format!("{}\n--resume {}", settings(options), options.resume);
    ranks::expect_same([encoder.opened.path.clone()], inputs, &asked)?;
    let model = output::model_files(&options.model.model);
    let read = images.iter().map(Path::new);
    let read = read.chain(model.iter().map(PathBuf::as_path));
    output::expect_apart(read, options.output.iter().map(|path| (path, false)))?;
    if let Some(path) = options.output.as_ref().filter(|_| !options.resume) {
        // With --resume the vectors are in their own file, and stay there.
        output::expect_writable(path)?;
    }
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
    let of_images = match options.images.is_empty() {
        true => None,
        false => Some(image_encoder(options, &encoder, device)?),
    };
    ranks::expect_same_files(Path::new(""), &images)?;
    let (part, all, done) = match &options.output {
        Some(path) if options.resume => {
            let path = path.with_added_extension("part");
            let (part, all, done) = Part::open(path, options, &encoder, of_images.as_ref())?;
            (Some(part), all, done)
        }
        _ => (None, vec![], 0),
    };
    let mut writer = Writer {
        options,
        shown,
        out: Output::standard(),
        all,
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
    if let Some(of_images) = &of_images {
        writer.images(of_images, &images)?;
    }
    writer.finish()
}

/// What makes the vectors of images: as long as those of texts, if there are some.
fn image_encoder(
    options: &Embed,
    encoder: &Encoder,
    device: &Device,
) -> Result<ImageEncoder, Failure> {
    let folder = encoder.opened.folder()?;
    if !holds_clip(folder) {
        return Err(Failure::Usage(
            "--image is for a model of images and texts (CLIP); this one reads texts alone"
                .to_owned(),
        ));
    }
    let of_images = ImageEncoder::pretrained(folder, device)?;
    let found = match options.texts.is_empty() {
        true => of_images.size(),
        false => size(encoder)?,
    };
    match of_images.size() {
        expected if expected == found => Ok(of_images),
        expected => Err(PretrainedError::Malformed {
            path: folder.path().to_owned(),
            problem: format!(
                "texts have vectors of {found} numbers, by truncate_dim in config_sentence_transformers.json or by modules.json; expected {expected}, as images have: change the files, or leave the texts or the images out"
            ),
        }
        .into()),
    }
}

/// The options that change a vector, a line each.
fn settings(options: &Embed) -> String {
    let weights = ranks::option("--weights", options.model.typed());
    let prompt = ranks::option("--prompt", options.prompt.as_deref().map(visible));
    format!("{weights}\n{prompt}")
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
    /// All vectors, if they go to a file, which rank 0 alone writes.
    all: Vec<f32>,
    count: usize,
    part: Option<Part>,
    /// How many vectors it held before.
    done: usize,
}

/// The file of the vectors so far, for a command that goes on where this one was interrupted: a [`Head`], and then a vector a line.
struct Part {
    path: PathBuf,
    output: Output,
    /// The head, until it is written with the first vector.
    head: Option<String>,
}

/// What vectors are made with.
#[derive(Serialize, Deserialize)]
struct Head {
    /// The version of regard, the files of the model, and options, but not the machine: another one may go on.
    made_with: Vec<String>,
}

impl Part {
    /// Begins a file, or goes on with one that is made with the same; also its vectors, which rank 0 alone gets, and how many they are.
    ///
    /// # Errors
    /// Another file, or one of another model or other options; vectors of another length than the model's.
    fn open(
        path: PathBuf,
        options: &Embed,
        encoder: &Encoder,
        of_images: Option<&ImageEncoder>,
    ) -> Result<(Self, Vec<f32>, usize), Failure> {
        let (mut head, mut all) = (String::new(), vec![]);
        if ranks::is_first() {
            let made_with = Head::of(options, encoder)?;
            let size = match of_images {
                Some(of_images) => of_images.size(),
                None => size(encoder)?,
            };
            all = made_with.vectors(&path, size)?;
            head = serde_json::to_string(&made_with)?;
        }
        let (output, lines) = Output::resumed(&path)?;
        let part = Self {
            path,
            output,
            head: (lines == 0).then_some(head),
        };
        Ok((part, all, lines.saturating_sub(1)))
    }

    fn push(&mut self, vector: &[f32]) -> Result<(), Failure> {
        if let Some(head) = self.head.take() {
            self.output.line(&head)?;
        }
        self.output.line(&serde_json::to_string(vector)?)
    }
}

impl Head {
    fn of(options: &Embed, encoder: &Encoder) -> Result<Self, Failure> {
        let mut made_with = vec![format!("regard {}", env!("CARGO_PKG_VERSION"))];
        // A command that is gone on with may write into the model's folder.
        let written = options.output.iter();
        let written = written.flat_map(|path| [path.clone(), path.with_added_extension("part")]);
        let written: Vec<PathBuf> = written.flat_map(fs::canonicalize).collect();
        made_with.extend(ranks::contents(&encoder.opened.path, &written)?);
        made_with.extend(settings(options).lines().map(str::to_owned));
        Ok(Self { made_with })
    }

    /// The vectors of the file at `path`, if there is one: it must have this head, and `size` numbers in each further line. What follows
    /// the last whole line is left out.
    fn vectors(&self, path: &Path, size: usize) -> Result<Vec<f32>, Failure> {
        let unread = |source| CommandError::Read {
            name: path.display().to_string(),
            source,
        };
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
            file => file.map_err(unread)?,
        };
        let begun = serde_json::to_string(self)?;
        let (mut file, mut bytes, mut all) = (BufReader::new(file), vec![], vec![]);
        let mut line = 1;
        loop {
            bytes.clear();
            file.read_until(b'\n', &mut bytes).map_err(unread)?;
            let is_whole = bytes.ends_with(b"\n");
            if !is_whole && (line > 1 || begun.as_bytes().starts_with(&bytes)) {
                return Ok(all);
            }
            let problem = match line {
                1 => self.problem(&bytes),
                _ => match serde_json::from_slice::<Vec<f32>>(&bytes) {
                    Ok(vector) if vector.len() == size => {
                        all.extend(vector);
                        None
                    }
                    Ok(vector) => Some(format!("found a vector of {} numbers", vector.len())),
                    Err(_) => Some("found no vector".to_owned()),
                }
                .map(|found| format!("{found}; expected {size} numbers, as the model gives")),
            };
            if let Some(problem) = problem {
                let path = path.to_owned();
                return Err(CommandError::NotResumed {
                    path,
                    line,
                    problem,
                }
                .into());
            }
            line += 1;
        }
    }

    /// What is wrong with the first line of a file, if it is not this head.
    fn problem(&self, line: &[u8]) -> Option<String> {
        let Ok(found) = serde_json::from_slice::<Self>(line) else {
            return Some("found nothing that says what its vectors are made with; expected the first line of a file of `embed --resume`".to_owned());
        };
        let (found, expected) = (&found.made_with, &self.made_with);
        let extra = found.iter().filter(|one| !expected.contains(one));
        let extra: Vec<&String> = extra.collect();
        let mut missing = expected.iter().filter(|one| !found.contains(one));
        let of_name = |entry: &str| extra.iter().find(|one| named(one) == named(entry));
        let changed = missing.clone().find_map(|one| Some((of_name(one)?, one)));
        if let Some((found, expected)) = changed {
            return Some(format!(
                "its vectors are made with `{found}`; expected `{expected}`"
            ));
        }
        // Options are always said: what only one of the two has is a file, which the model may read or not.
        if let Some(gone) = extra.first() {
            return Some(format!(
                "its vectors are made with `{gone}`, which is gone (put it back to go on)"
            ));
        }
        missing.next().map(|new| {
            format!(
                "its vectors are made without `{new}`, which has come to the model's files since (move it away to go on)"
            )
        })
    }
}

/// The file or the option that an entry of a [`Head`] is about.
fn named(entry: &str) -> &str {
    let entry = entry.strip_prefix("no ").unwrap_or(entry);
    entry.split([',', ' ']).next().unwrap_or(entry)
}

/// How many numbers the vector of a text has.
fn size(encoder: &Encoder) -> Result<usize, Failure> {
    let pooling = encoder.pooling(None)?;
    // That of a single token: only its length matters.
    let state = vec![0.0; encoder.model.size()];
    Ok(pooling.vector(&encoder.model, &[0], &state).len())
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
        let preparation = encoder.preparation();
        let decoding = preparation.decoding();
        let wanted = self.shown.is_wanted();
        let embed = |files: &[String]| -> Result<Vec<_>, Failure> {
            let images = files.iter().map(|file| {
                let image = Image::open(file, &decoding);
                image.map(|image| reduced(image, preparation))
            });
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
            if let Some(part) = &mut self.part {
                part.output.flush()?;
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
        expect_finite(&self.options.model.model, vector.iter().copied())?;
        self.count += 1;
        let maps = trace.as_ref().and_then(|trace| self.shown.json(trace));
        if let Some(part) = &mut self.part {
            part.push(&vector)?;
        }
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
        if self.count < self.done {
            return Err(Failure::Usage(format!(
                "--resume: {} vectors are done already, of only {} texts and images; give the same as before, or leave --resume out",
                self.done, self.count
            )));
        }
        if !ranks::is_first() {
            return Ok(());
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
        if let Some(Part { path, output, .. }) = self.part {
            drop(output);
            // It may stay: the next command would find it whole.
            let _ = fs::remove_file(path);
        }
        Ok(())
    }
}
