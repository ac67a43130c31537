//! `regard view`: shows saved attention.

use regard_trace::{LongTrace, Opened};
use regard_view::label::visible;

use crate::{
    arguments::{Compute, View},
    failure::{CommandError, Failure},
    output::Output,
    pictures::{self, Entry, Screen, expect_apart, expect_figure},
};

/// Shows a trace file.
///
/// # Errors
/// A file that is not a trace, a trace without entries, an entry that does not exist, a picture that cannot be written.
pub fn run(options: &View) -> Result<(), Failure> {
    let pictures = &options.pictures;
    expect_apart(pictures, &None, [&options.file], false)?;
    expect_figure(pictures, options.over_image)?;
    let traces = match regard_trace::open(&options.file)? {
        Opened::Long(trace) => {
            return Compute::default().run(None, |_| long(options, &trace));
        }
        Opened::Traces(traces) => traces,
    };
    if options.queries.is_some() || options.keys.is_some() {
        let message = "--queries and --keys are for traces of `regard look --long`";
        return Err(Failure::Usage(message.to_owned()));
    }
    let drawn = !pictures.any() || options.terminal || pictures.draws_chosen();
    if pictures.choice().is_made() && !drawn {
        return Err(Failure::Usage(
            "a page of --html has all maps; --map, --layer and --head say what --png, --svg and the terminal show"
                .to_owned(),
        ));
    }
    if traces.is_empty() {
        let path = options.file.clone();
        return Err(CommandError::EmptyTrace { path }.into());
    }
    let count = traces.len();
    let mut entries: Vec<Entry> = traces
        .into_iter()
        .enumerate()
        .map(|(index, trace)| Entry::new(index + 1, 1, trace))
        .collect();
    if let Some(index) = options.index {
        entries.retain(|entry| entry.line == index);
        if entries.is_empty() {
            return Err(CommandError::NoEntry {
                path: options.file.clone(),
                index,
                entries: count,
            }
            .into());
        }
    }
    expect_apart(pictures, &None, [&options.file], entries.len() > 1)?;
    pictures::write(pictures, options.over_image, &entries)?;
    if pictures.any() && !options.terminal {
        return Ok(());
    }
    let screen = Screen::detect(pictures);
    let mut out = Output::standard();
    for (index, entry) in entries.iter().enumerate() {
        if index > 0 {
            out.line("")?;
        }
        out.line(&heading(entry, count))?;
        match entry.trace.maps.is_empty() {
            true => out.line("(this model looked at nothing)")?,
            false => out.text(&screen.draw(&entry.trace)?)?,
        }
    }
    out.flush()
}

/// Shows a trace of a long text.
fn long(options: &View, trace: &LongTrace) -> Result<(), Failure> {
    if let Some(option) = options.over_image.given() {
        return Err(Failure::Usage(format!(
            "{option} is for maps over an image, and this is a trace of a text; leave it out"
        )));
    }
    if options.index.is_some() || options.terminal {
        let message = "a trace of a long text has one entry, which --png, --svg and --html draw";
        return Err(Failure::Usage(message.to_owned()));
    }
    if options.pictures.any() {
        let [queries, keys] =
            [&options.queries, &options.keys].map(|part| part.clone().map(|part| part.0));
        return pictures::write_long(trace, &options.pictures, queries, keys, false);
    }
    let mut out = Output::standard();
    let (model, source) = (trace.model(), trace.source());
    let tokens = trace.tokens().len();
    out.line(&format!(
        "{}: {}, {tokens} tokens",
        visible(model),
        visible(source)
    ))?;
    for map in trace.maps() {
        let heads = map.heads().iter().map(|head| (head + 1).to_string());
        let heads = heads.collect::<Vec<_>>().join(", ");
        let kind = map.kind().name();
        out.line(&format!(
            "  {kind}, layer {}: heads {heads}",
            map.layer() + 1
        ))?;
    }
    out.line("draw them with --png, or explore them with `regard serve`")?;
    out.flush()
}

fn heading(entry: &Entry, count: usize) -> String {
    let trace = &entry.trace;
    let number = match count {
        1 => String::new(),
        _ => format!("[{}] ", entry.line),
    };
    let score = trace
        .score
        .map_or_else(String::new, |score| format!(" ({score:.3})"));
    format!(
        "{number}{}: {} → {}{score}",
        visible(&trace.model),
        visible(&trace.source),
        visible(&trace.target)
    )
}
