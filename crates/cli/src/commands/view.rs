//! `regard view`: shows saved attention.

use crate::{
    arguments::View,
    failure::{CommandError, Failure},
    output::Output,
    pictures::{self, Entry, Screen},
};

/// Shows a trace file.
///
/// # Errors
/// A file that is not a trace, an entry that does not exist, a picture that cannot be written.
pub fn run(options: &View) -> Result<(), Failure> {
    let pictures = &options.pictures;
    let drawn = !pictures.any() || options.terminal || pictures.draws_chosen();
    if pictures.choice().is_made() && !drawn {
        return Err(Failure::Usage(
            "a page of --html has all maps; --map, --layer and --head say what --png, --svg and the terminal show"
                .to_owned(),
        ));
    }
    let traces = regard_trace::read(&options.file)?;
    let count = traces.len();
    let mut entries: Vec<Entry> = traces
        .into_iter()
        .enumerate()
        .map(|(index, trace)| Entry {
            line: index + 1,
            rank: 1,
            trace,
        })
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
    pictures::write(&options.pictures, &entries)?;
    if options.pictures.any() && !options.terminal {
        return Ok(());
    }
    let screen = Screen::detect(&options.pictures);
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

fn heading(entry: &Entry, count: usize) -> String {
    use regard_view::label::visible;
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
