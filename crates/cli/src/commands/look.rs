//! `regard look`.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use burn::tensor::Device;
use regard_kernels::stack::Stack;
use regard_models::pretrained::Look;
use regard_trace::{
    Kind, LongMap, LongWriter, Tokens, Trace,
    diagnose::{self, report},
    long::{self, Watch},
};
use regard_train::{
    Registry,
    opened::{OpenedError, axis},
    tasks::Translation,
    text_to_text::{Query, Wanted},
};
use regard_view::{choice::Pick, label::visible};
use serde_json::json;

use super::pretrained;
use crate::{
    arguments::LookText,
    devices,
    failure::Failure,
    input,
    output::{self, Output},
    pictures::{self, Kept, Screen, expect_apart, expect_writable},
    progress::Status,
};

/// Reads a text and shows what the model looked at.
///
/// # Errors
/// A model that cannot be read, a text that is too long, a layer or a head that is not there.
pub fn run(options: &LookText) -> Result<(), Failure> {
    options.compute.run(None, |device| work(options, device))
}

fn work(options: &LookText, device: &Device) -> Result<(), Failure> {
    expect_writable(&options.pictures, &options.trace)?;
    expect_apart(&options.pictures, &options.trace, &options.long, false)?;
    if let Some(path) = &options.long {
        return read_long(options, path);
    }
    let opened = pretrained::find(&options.model.model, options.quiet)?;
    let storage = options.model.storage();
    let text = match options.text.as_deref().unwrap_or("-") {
        "-" => match input::text("-".as_ref())? {
            text if text.trim().is_empty() => return Err(input::no_text("-".as_ref())),
            text => text,
        },
        text => text.to_owned(),
    };
    let choice = options.pictures.choice();
    if opened.is_seq2seq()? {
        let there = [Kind::EncoderSelf, Kind::DecoderSelf, Kind::Cross];
        expect_kind(choice.kind, &there)?;
        // What is given is not searched for.
        let quiet = options.quiet || options.target.is_some();
        let model = pretrained::text_to_text(opened, storage, "", quiet)?;
        let wanted = Wanted {
            kind: match choice.kind {
                Pick::One(kind) => Some(kind),
                _ => None,
            },
            layer: number(choice.layer),
            head: number(choice.head),
            query: options.query,
        };
        let trace = model.look(&text, options.target.as_deref(), &wanted)?;
        return show(options, &trace, wanted.head);
    }
    expect_no_target(options)?;
    expect_kind(choice.kind, &[Kind::SelfAttention])?;
    let model = match opened.reads_whole()? {
        true => {
            devices::tell_cpu_as(&opened.name, pretrained::SEEN);
            pretrained::model(&opened, storage, options.quiet)?
        }
        false => pretrained::model_on(device, &opened, storage, options.quiet)?,
    };
    let encoded = opened.tokenizer.encode(&text, true)?;
    let tokens = encoded.ids.len();
    if tokens == 0 {
        return Err(Failure::Usage(
            "the text has no tokens; give some text".to_owned(),
        ));
    }
    let sizes = model
        .stack()
        .map(|stack| (stack.blocks().len(), stack.sizes().heads));
    // A model without packed weights says how many it has only by looking.
    let (layers, heads) = sizes.unwrap_or((usize::MAX, usize::MAX));
    let query = match options.query {
        None => None,
        Some(Query::Last) => Some(tokens - 1),
        Some(Query::At(position)) if position < tokens => Some(position),
        Some(Query::At(position)) => {
            return Err(Failure::Usage(format!(
                "--query {}: the text has {tokens} tokens",
                position + 1
            )));
        }
    };
    let mut look = Look::new(tokens);
    look.layer = below(choice.layer, "layer", layers)?;
    look.head = below(choice.head, "head", heads)?;
    look.query = query;
    let shown_head = look.head;
    model.expect_room(&look)?;
    model.look(&encoded, &mut look)?;
    let trace = opened.trace(&text, &encoded.ids, look)?;
    if trace.maps.iter().all(|map| map.weights().is_empty()) {
        let chosen = "a model that attends, and a layer and a head that it has";
        return Err(opened.other(chosen).into());
    }
    show(options, &trace, shown_head)
}

/// Refuses an attention that the model does not have.
fn expect_kind(wanted: Pick<Kind>, there: &[Kind]) -> Result<(), Failure> {
    match wanted {
        Pick::One(kind) if !there.contains(&kind) => {
            let there: Vec<&str> = there.iter().map(|kind| kind.name()).collect();
            let there = there.join(", ");
            let wanted = kind.name();
            Err(Failure::Usage(format!(
                "--map: the model has no {wanted}; it has {there}"
            )))
        }
        _ => Ok(()),
    }
}

fn number(pick: Pick<usize>) -> Option<usize> {
    match pick {
        Pick::One(number) => Some(number),
        _ => None,
    }
}

/// The number that is picked, if it is below `count`.
fn below(pick: Pick<usize>, name: &str, count: usize) -> Result<Option<usize>, Failure> {
    match number(pick) {
        Some(number) if number >= count => Err(Failure::Usage(format!(
            "--{name} {}: the model has {count}",
            number + 1
        ))),
        number => Ok(number),
    }
}

/// Reads a text of any length, and keeps queries and keys.
fn read_long(options: &LookText, path: &Path) -> Result<(), Failure> {
    let (name, storage) = (&options.model.model, options.model.storage());
    let text = input::text(path)?;
    if text.trim().is_empty() {
        return Err(input::no_text(path));
    }
    let registry = Registry::default();
    if registry.holds::<Translation>(name.as_ref()) {
        if storage.is_some() {
            let message =
                "--weights is for folders of pretrained models; this is one of `regard train`";
            return Err(Failure::Usage(message.to_owned()));
        }
        devices::tell_cpu(name);
        let mut model = registry.translator(name.as_ref(), &Device::flex())?;
        model.open_heads();
        let Some(stacks) = model.stacks() else {
            let (folder, expected) = (name.into(), WITH_KERNEL.to_owned());
            return Err(OpenedError::Other { folder, expected }.into());
        };
        let target = options.target.as_deref();
        let read = model.read_and_written(&text, target, model.settings())?;
        let kept = KeptLong::of_both(options, path, name, stacks, read.texts.clone())?;
        return kept.write(|encoder, decoder| Ok(model.watch(&read, encoder, decoder)?));
    }
    let opened = pretrained::find(name, options.quiet)?;
    if opened.is_seq2seq()? {
        // What is given is not searched for.
        let quiet = options.quiet || options.target.is_some();
        let model = pretrained::text_to_text(opened, storage, "", quiet)?;
        let [source, written] = model.read_and_written(&text, options.target.as_deref())?;
        let texts = model.texts(&source, &written)?;
        let kept = KeptLong::of_both(options, path, name, model.stacks(), texts)?;
        return kept
            .write(|encoder, decoder| Ok(model.watch([&source, &written], encoder, decoder)?));
    }
    expect_no_target(options)?;
    let model = pretrained::model(&opened, storage, options.quiet)?;
    let Some(stack) = model.stack() else {
        return Err(opened.other(WITH_KERNEL).into());
    };
    let encoded = opened.tokenizer.encode(&text, true)?;
    let tokens = axis(&opened.tokenizer, &encoded.ids)?;
    let own = [(stack, false, Kind::SelfAttention, [0, 0])];
    let kept = KeptLong::of(options, path, name, &own, tokens.into())?;
    kept.write(|own, _| Ok(model.observe(&encoded, own)?))
}

/// The models that `--long` reads.
const WITH_KERNEL: &str = "a model of which a kernel computes the attention (--long): scaled dot products and softmax, with rotary positions, \
     biases by distance or none";

fn expect_no_target(options: &LookText) -> Result<(), Failure> {
    match options.target {
        None => Ok(()),
        Some(_) => {
            let message = "--target is for encoder-decoders; this model reads one text";
            Err(Failure::Usage(message.to_owned()))
        }
    }
}

/// A trace of a long text that is being written.
struct KeptLong<'a> {
    options: &'a LookText,
    to: PathBuf,
    tokens: usize,
    own: [Kind; 2],
    writer: Mutex<LongWriter>,
}

/// Attention of a stack that is kept: whether to its source, its kind, and the numbers of the texts of queries and keys.
type Attends<'m> = (&'m Stack, bool, Kind, [usize; 2]);

impl<'a> KeptLong<'a> {
    /// Encoder, decoder and what is between them, of what the encoder reads, what the decoder reads, and what it writes.
    fn of_both(
        options: &'a LookText,
        path: &Path,
        name: &str,
        [encoder, decoder]: [&Stack; 2],
        [read, inputs, written]: [Tokens; 3],
    ) -> Result<Self, Failure> {
        let attends = [
            (encoder, false, Kind::EncoderSelf, [0, 0]),
            (decoder, false, Kind::DecoderSelf, [1, 1]),
            (decoder, true, Kind::Cross, [2, 0]),
        ];
        let others = vec![inputs, written];
        let texts = long::Texts {
            tokens: read,
            others,
        };
        Self::of(options, path, name, &attends, texts)
    }

    fn of(
        options: &'a LookText,
        path: &Path,
        name: &str,
        attends: &[Attends<'_>],
        texts: long::Texts,
    ) -> Result<Self, Failure> {
        let choice = options.pictures.choice();
        let chosen = |kind| match choice.kind {
            Pick::One(wanted) => wanted == kind,
            _ => true,
        };
        let most = |count: fn(&Stack) -> usize| {
            let counts = attends.iter().map(|(stack, ..)| count(stack));
            counts.max().unwrap_or(0)
        };
        let layer = below(choice.layer, "layer", most(|stack| stack.blocks().len()))?;
        let head = below(choice.head, "head", most(|stack| stack.sizes().heads))?;
        let mut maps = vec![];
        for &(stack, cross, kind, texts) in attends.iter().filter(|(.., kind, _)| chosen(*kind)) {
            let sizes = stack.sizes();
            let heads: Vec<usize> = match head {
                None => (0..sizes.heads).collect(),
                Some(head) => (head..sizes.heads).take(1).collect(),
            };
            let blocks = stack.blocks().iter().enumerate();
            let blocks = blocks.filter(|(at, block)| {
                layer.is_none_or(|layer| layer == *at) && (!cross || block.cross.is_some())
            });
            let Some(first) = heads.first() else { continue };
            let group = sizes.heads / sizes.key_value_heads;
            let keys_of = heads.iter().map(|head| head / group - first / group);
            let keys_of: Vec<usize> = keys_of.collect();
            maps.extend(blocks.map(|(at, _)| {
                LongMap::new(at, heads.clone(), keys_of.clone(), sizes.head).between(kind, texts)
            }));
        }
        if maps.is_empty() {
            let kinds = attends.iter().map(|(.., kind, _)| kind.name());
            let kinds = kinds.collect::<Vec<_>>().join(", ");
            let message = format!("no such map, layer or head; the model has {kinds}");
            return Err(Failure::Usage(message));
        }
        let to = match &options.trace {
            Some(trace) => trace.clone(),
            None => {
                let file = PathBuf::from(path.file_name().unwrap_or_default());
                file.with_extension("trace.safetensors")
            }
        };
        output::expect_writable(&to)?;
        let model = output::model_files(&options.model.model);
        output::expect_apart(model.into_iter().chain([path.to_owned()]), [(&to, false)])?;
        let source = (path.file_name()).map_or_else(String::new, |name| name.display().to_string());
        let tokens = texts.tokens.len();
        let own = [0, attends.len().saturating_sub(2)].map(|at| attends[at].2);
        let writer = LongWriter::create(&to, name, source, texts, maps)?;
        Ok(Self {
            options,
            to,
            tokens,
            own,
            writer: Mutex::new(writer),
        })
    }

    /// Writes what the observers of the encoder, or of the only stack, and of the decoder see, and draws it.
    fn write(
        self,
        read: impl FnOnce(&mut Watch, &mut Watch) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (options, to) = (self.options, self.to);
        let status = Status::new(&to.display().to_string(), !options.quiet);
        status.set(&format!("{} tokens are read", self.tokens));
        let [mut encoder, mut decoder] = self.own.map(|own| Watch::new(&self.writer, own));
        read(&mut encoder, &mut decoder)?;
        let writer = self.writer.into_inner();
        writer.unwrap_or_else(PoisonError::into_inner).finish()?;
        drop(status);
        if !options.quiet {
            let bytes = std::fs::metadata(&to).map_or(0, |file| file.len());
            let megabytes = bytes as f64 / 1e6;
            output::say(&format!(
                "{}: {} tokens, {megabytes:.1} MB",
                to.display(),
                self.tokens
            ));
        }
        if !options.pictures.any() {
            return Ok(());
        }
        match regard_trace::open(&to)? {
            regard_trace::Opened::Long(trace) => {
                pictures::write_long(&trace, &options.pictures, None, None, options.quiet)
            }
            regard_trace::Opened::Traces(_) => Ok(()),
        }
    }
}

/// Prints and writes what was seen: of all heads, or of one.
fn show(options: &LookText, trace: &Trace, shown_head: Option<usize>) -> Result<(), Failure> {
    let mut out = Output::standard();
    let mut pictures = options.pictures.clone();
    if shown_head.is_some() {
        // The map has this head alone.
        pictures.only_head();
    }
    if options.json {
        for map in &trace.maps {
            let [heads, queries, keys] = map.shape();
            let weights: Vec<Vec<&[f32]>> = (0..heads)
                .map(|head| (0..queries).map(|query| map.row(head, query)).collect())
                .collect();
            let line = json!({
                "map": map.kind().name(),
                "layer": map.layer(),
                "head": shown_head,
                "queries": map.queries().labels(),
                "keys": map.keys().labels(),
                "weights": weights,
            });
            debug_assert_eq!(map.weights().len(), heads * queries * keys);
            out.line(&line.to_string())?;
        }
    } else {
        if options.query.is_none() {
            if let Some(head) = shown_head {
                for map in &trace.maps {
                    // The only head of its map, whatever its number in the model.
                    for found in diagnose::heads(map) {
                        let told = report::describe(map, &found);
                        let told = told.split_once(": ").map_or("", |(_, told)| told);
                        let (layer, head) = (map.layer() + 1, head + 1);
                        let kind = match map.kind() {
                            Kind::SelfAttention => String::new(),
                            kind => format!("{} ", kind.name()),
                        };
                        out.line(&format!(
                            "{kind}layer {layer} head {head}: {}",
                            visible(told)
                        ))?;
                    }
                }
            }
            let lines = match shown_head {
                Some(_) => vec![],
                None => report::summary(trace),
            };
            for line in lines {
                let told = line.trim_start();
                let indent = &line[..line.len() - told.len()];
                out.line(&format!("{indent}{}", visible(told)))?;
            }
        }
        if !options.quiet {
            out.text(&Screen::detect(&pictures).draw(trace)?)?;
        }
    }
    out.flush()?;
    let mut kept = Kept::new(&pictures, &options.trace, Some(&options.model.model))?;
    kept.push(1, 1, trace)?;
    kept.write()
}
