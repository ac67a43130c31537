//! `regard inspect`: what the heads of saved attention do.

use regard_trace::{
    AttentionMap, Axis, Kind, Trace,
    diagnose::{HeadDiagnostics, flow, heads, report, rollout, stacks},
};
use regard_view::{
    Heatmap,
    choice::Choice,
    label::{columns, visible},
    svg::{self, SvgOptions},
};
use serde_json::{Value, json};

use crate::{
    arguments::Inspect,
    failure::{CommandError, Failure},
    output::{self, Output},
    pictures::{self, Entry, Screen, expect_apart, expect_figure},
};

/// Inspects a trace file.
///
/// # Errors
/// A file that is not a trace, a trace without entries, an entry that does not exist.
pub fn run(options: &Inspect) -> Result<(), Failure> {
    let (file, pictures) = (options.file.as_path(), &options.pictures);
    let stacks = options.rollout || options.flow;
    if pictures.html.is_some() || (pictures.any() && !stacks) || pictures.choice().is_made() {
        return Err(Failure::Usage(
            "of a trace, --svg and --png draw what --rollout or --flow finds; draw its maps with `regard view`"
                .to_owned(),
        ));
    }
    expect_figure(pictures, options.over_image)?;
    if pictures.subwords {
        let message = "--subwords: subwords are described unless --words merges them; leave it out";
        return Err(Failure::Usage(message.to_owned()));
    }
    let traces = regard_trace::read(file)?;
    let count = traces.len();
    if count == 0 {
        let path = file.to_owned();
        return Err(CommandError::EmptyTrace { path }.into());
    }
    if let Some(index) = options.index.filter(|index| !(1..=count).contains(index)) {
        return Err(CommandError::NoEntry {
            path: file.to_owned(),
            index,
            entries: count,
        }
        .into());
    }
    let several = options.index.is_none() && count > 1;
    expect_apart(pictures, &None, [file], several)?;
    let mut out = Output::standard();
    let mut first = true;
    let mut figures = vec![];
    for (index, trace) in (1..).zip(traces) {
        if options.index.is_some_and(|wanted| wanted != index) {
            continue;
        }
        let trace = match options.words {
            true => trace.merge_words(),
            false => trace,
        };
        let stacked = stacked(options, &trace)?;
        let shown = Trace {
            maps: stacked.clone(),
            image: trace.image.clone(),
            ..Trace::new(&trace.model, &trace.source, &trace.target)
        };
        figures.push(Entry::new(index, 1, shown));
        if options.json {
            out.line(&serde_json::to_string(&entry_json(
                index, &trace, &stacked,
            ))?)?;
            continue;
        }
        if !std::mem::take(&mut first) {
            out.line("")?;
        }
        let number = if count > 1 {
            format!("[{index}] ")
        } else {
            String::new()
        };
        let Trace {
            model,
            source,
            target,
            ..
        } = &trace;
        out.line(&format!(
            "{number}{}: {} → {}",
            visible(model),
            visible(source),
            visible(target)
        ))?;
        if trace.maps.is_empty() {
            out.line("(this model looked at nothing)")?;
        }
        if options.all || options.quiet {
            for map in &trace.maps {
                out.text(&described(map, options.quiet))?;
            }
        } else {
            for line in report::summary(&trace) {
                let told = line.trim_start();
                let indent = &line[..line.len() - told.len()];
                out.line(&format!("{indent}{}", visible(told)))?;
            }
            if !trace.maps.is_empty() {
                out.line("(--all: every head with its measures)")?;
            }
        }
        for map in &stacked {
            let shown = Trace::new(model.clone(), "", "").with_map(map.clone());
            out.line(&stack_title(map))?;
            out.text(&Screen::plain().draw(&shown)?)?;
        }
    }
    out.flush()?;
    pictures::write_figures(
        pictures,
        &figures,
        "there is no self-attention to follow",
        |entry| {
            // Options of maps over an image are refused there for maps between words.
            if entry.trace.image.is_some() || options.over_image.given().is_some() {
                return pictures::svg_of(&entry.trace, Choice::default(), options.over_image);
            }
            let maps = entry.trace.maps.iter();
            let titled = maps.map(|map| Heatmap::from_map(map).titled(stack_title(map)));
            let titled: Vec<Heatmap> = titled.collect();
            Ok(svg::grid(&titled, &SvgOptions::default()))
        },
    )
}

/// `rollout over the encoder's 4 layers`.
fn stack_title(map: &AttentionMap) -> String {
    let (name, count) = (visible(map.name()), map.layer() + 1);
    let plural = if count == 1 { "" } else { "s" };
    match map.kind() {
        Kind::EncoderSelf => format!("{name} over the encoder's {count} layer{plural}"),
        Kind::DecoderSelf => format!("{name} over the decoder's {count} layer{plural}"),
        _ => format!("{name} over {count} layer{plural}"),
    }
}

/// Rollout and flow of every stack, where they are asked for.
fn stacked(options: &Inspect, trace: &Trace) -> Result<Vec<AttentionMap>, Failure> {
    let mut maps = Vec::new();
    if !options.rollout && !options.flow {
        return Ok(maps);
    }
    let stacks = stacks(trace);
    if stacks.is_empty() && !options.quiet {
        output::warn(&format!(
            "{} has no self-attention: rollout and flow have nothing to follow",
            visible(&trace.model)
        ));
    }
    for (_, layers) in &stacks {
        if options.rollout {
            maps.push(rollout(layers)?);
        }
        if options.flow {
            maps.push(flow(layers)?);
        }
    }
    Ok(maps)
}

fn described(map: &AttentionMap, quiet: bool) -> String {
    let heads = heads(map);
    let mut text = String::new();
    if !quiet {
        let [count, queries, keys] = map.shape();
        let plural = if count == 1 { "head" } else { "heads" };
        text.push_str(&format!(
            "{}: layer {}, {count} {plural}, {queries} queries, {keys} keys\n",
            visible(map.name()),
            map.layer() + 1
        ));
        text.push_str(&columns(&table(map, &heads)));
    }
    // Without the line and the table above them, sentences say themselves which map they are about.
    let [of_head, of_map] = match quiet {
        true => {
            let (name, layer) = (map.name(), map.layer() + 1);
            [format!("{name} "), format!("{name} layer {layer}: ")]
        }
        false => Default::default(),
    };
    let told = |head| format!("{of_head}{}", report::describe(map, head));
    let mut lines: Vec<String> = heads.iter().map(told).collect();
    let uncovered = report::uncovered(map, &heads);
    if !uncovered.is_empty() {
        let names = report::named(map, &uncovered);
        lines.push(format!("{of_map}hardly looked at: {names}"));
    }
    for line in lines {
        text.push_str(&visible(&line));
        text.push('\n');
    }
    text
}

/// A row of measures for each head; columns in which no head has a number are left out.
fn table(map: &AttentionMap, heads: &[HeadDiagnostics]) -> Vec<Vec<String>> {
    type Measure = (&'static str, fn(&HeadDiagnostics) -> Option<f64>);
    const MEASURES: [Measure; 11] = [
        ("entropy", |head| head.entropy),
        ("uniform", |head| head.uniformity),
        ("largest", |head| head.largest_weight),
        ("first", |head| head.first_token),
        ("diagonal", |head| head.diagonality),
        ("previous", |head| head.previous_token),
        ("duplicate", |head| head.duplicate_token),
        ("distance", |head| head.distance),
        ("covered", |head| head.coverage),
        ("keys", |head| head.effective_keys),
        ("span", |head| head.effective_span),
    ];
    let measures: Vec<&Measure> = MEASURES
        .iter()
        .filter(|(_, measure)| heads.iter().any(|head| measure(head).is_some()))
        .collect();
    let titles = measures.iter().map(|(name, _)| (*name).to_owned());
    let header = std::iter::once("head".to_owned())
        .chain(titles)
        .chain(["most on".to_owned()]);
    let rows = heads.iter().map(|head| {
        let cells = measures.iter().map(|(_, measure)| {
            measure(head).map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
        });
        let top = head.top_key.map_or_else(
            || "-".to_owned(),
            |(key, weight)| format!("{} {weight:.2}", visible(&map.keys().label(key))),
        );
        std::iter::once((head.head + 1).to_string())
            .chain(cells)
            .chain([top])
            .collect()
    });
    std::iter::once(header.collect()).chain(rows).collect()
}

fn entry_json(index: usize, trace: &Trace, stacked: &[AttentionMap]) -> Value {
    let maps = trace.maps.iter().map(|map| {
        let heads = heads(map);
        let sentences: Vec<String> = heads
            .iter()
            .map(|head| report::describe(map, head))
            .collect();
        json!({
            "name": map.name(),
            "kind": map.kind(),
            "layer": map.layer(),
            "queries": map.queries().labels(),
            "predictions": map.predictions().map(Axis::labels),
            "keys": map.keys().labels(),
            "uncovered": report::uncovered(map, &heads),
            "heads": heads,
            "report": sentences,
        })
    });
    let stacked = stacked.iter().map(|map| {
        let rows: Vec<&[f32]> = (0..map.queries().len())
            .map(|query| map.row(0, query))
            .collect();
        json!({
            "name": map.name(),
            "kind": map.kind(),
            "labels": map.keys().labels(),
            "weights": rows,
            "mean": map.mean_queries(),
        })
    });
    json!({
        "index": index,
        "summary": report::summary(trace),
        "model": trace.model,
        "source": trace.source,
        "target": trace.target,
        "maps": maps.collect::<Vec<_>>(),
        "stacks": stacked.collect::<Vec<_>>(),
    })
}
