//! `regard look`.

use std::path::{Path, PathBuf};

use regard_models::pretrained::Look;
use regard_trace::{
    Kind, LongMap, LongWriter, Trace,
    diagnose::{self, report},
};
use regard_train::{
    opened::{Opened, axis, expect_room},
    text_to_text::{Query, TextToText, Wanted},
};
use regard_view::{choice::Pick, label::visible};
use serde_json::json;

use super::pretrained;
use crate::{
    arguments::LookText,
    failure::Failure,
    input,
    output::{self, Output},
    pictures::{self, Kept, Screen, expect_writable},
    progress::Status,
};

/// Reads a text and shows what the model looked at.
///
/// # Errors
/// A model that cannot be read, a text that is too long, a layer or a head that is not there.
pub fn run(options: &LookText) -> Result<(), Failure> {
    options.compute.run(None, |_| work(options))
}

fn work(options: &LookText) -> Result<(), Failure> {
    expect_writable(&options.pictures, &options.trace)?;
    let opened = pretrained::find(&options.model.model, options.quiet)?;
    let storage = options.model.storage();
    if let Some(path) = &options.long {
        return long(options, path, &opened);
    }
    let text = match options.text.as_deref().unwrap_or("-") {
        "-" => match input::text("-".as_ref())? {
            text if text.trim().is_empty() => return Err(input::no_text("-".as_ref())),
            text => text,
        },
        text => text.to_owned(),
    };
    let choice = options.pictures.choice();
    if opened.is_seq2seq()? {
        let model = TextToText::read(opened, storage, "")?;
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
    if options.target.is_some() {
        let message = "--target is for encoder-decoders; this model reads one text";
        return Err(Failure::Usage(message.to_owned()));
    }
    let model = opened.model(storage)?;
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
    if sizes.is_some() {
        expect_room(&look, layers, heads)?;
    }
    model.look(&encoded, &mut look)?;
    let trace = opened.trace(&text, &encoded.ids, look)?;
    if trace.maps.iter().all(|map| map.weights().is_empty()) {
        let chosen = "a model that attends, and a layer and a head that it has";
        return Err(opened.other(chosen).into());
    }
    show(options, &trace, shown_head)
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
fn long(options: &LookText, path: &Path, opened: &Opened) -> Result<(), Failure> {
    if opened.is_seq2seq()? {
        return Err(opened
            .other("a model with a single sequence (--long)")
            .into());
    }
    let model = opened.model(options.model.storage())?;
    let Some(stack) = model.stack() else {
        return Err(opened
            .other("a model of which a kernel computes the attention (--long)")
            .into());
    };
    let sizes = stack.sizes();
    let choice = options.pictures.choice();
    let layer = below(choice.layer, "layer", stack.blocks().len())?;
    let head = below(choice.head, "head", sizes.heads)?;
    let text = input::text(path)?;
    if text.trim().is_empty() {
        return Err(input::no_text(path));
    }
    let encoded = opened.tokenizer.encode(&text, true)?;
    let tokens = axis(&opened.tokenizer, &encoded.ids)?;
    let source = (path.file_name()).map_or_else(String::new, |name| name.display().to_string());
    let trace = match &options.trace {
        Some(trace) => trace.clone(),
        None => {
            PathBuf::from(path.file_name().unwrap_or_default()).with_extension("trace.safetensors")
        }
    };
    output::expect_writable(&trace)?;
    let heads = head.map_or((0..sizes.heads).collect(), |head| vec![head]);
    let group = sizes.heads / sizes.key_value_heads;
    let first = heads[0] / group;
    let keys_of: Vec<usize> = heads.iter().map(|head| head / group - first).collect();
    let layers = layer.map_or(0..stack.blocks().len(), |layer| layer..layer + 1);
    let maps = layers.map(|layer| LongMap::new(layer, heads.clone(), keys_of.clone(), sizes.head));
    let maps: Vec<LongMap> = maps.collect();
    let count = tokens.len();
    let mut writer = LongWriter::create(&trace, &opened.name, source, tokens, maps)?;
    let status = Status::new(&trace.display().to_string(), !options.quiet);
    status.set(&format!("{count} tokens are read"));
    model.observe(&encoded, &mut writer)?;
    writer.finish()?;
    drop(status);
    if !options.quiet {
        let bytes = std::fs::metadata(&trace).map_or(0, |file| file.len());
        eprintln!(
            "{}: {count} tokens, {:.1} MB",
            trace.display(),
            bytes as f64 / 1e6
        );
    }
    if !options.pictures.any() {
        return Ok(());
    }
    match regard_trace::open(&trace)? {
        regard_trace::Opened::Long(trace) => {
            pictures::write_long(&trace, &options.pictures, None, None, options.quiet)
        }
        regard_trace::Opened::Traces(_) => Ok(()),
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
    let mut kept = Kept::new(&pictures, &options.trace)?;
    kept.push(1, 1, trace)?;
    kept.write()
}
