//! `regard experiment`: experiments of [`regard_train::experiments`] as tables, figures and JSON.

use std::{fmt::Write, fs, io, path::Path, slice};

use burn::tensor::Device;
use regard_train::experiments::{
    ALL, Curves, Estimate, Experiment as Of, ExperimentError, Findings, Setting,
};
use regard_view::{
    chart::{Chart, Point, Series, stacked},
    html::Figure,
};
use serde_json::json;

use super::train::listen;
use crate::{
    allocator,
    arguments::Experiment,
    devices,
    failure::{CommandError, Failure},
    output,
    pictures::{expect_drawable, write_drawings},
    progress::Status,
};

/// Does one experiment, or all, or lists them.
///
/// # Errors
/// An experiment that does not exist, or fails; a file that cannot be written.
pub fn run(options: &Experiment) -> Result<(), Failure> {
    if options.list {
        return list(options.json);
    }
    let chosen = match &options.name {
        Some(name) => slice::from_ref(Of::find(name).map_err(failure)?),
        None => ALL,
    };
    expect_drawable(&options.drawing, None::<&Path>)?;
    allocator::keep_freed_memory();
    options
        .compute
        .run(None, |device| all(options, chosen, device))
}

fn failure(error: ExperimentError) -> Failure {
    match error {
        ExperimentError::Stopped => Failure::Interrupted(error.to_string()),
        ExperimentError::Unknown { .. } => Failure::Usage(error.to_string()),
        error => error.into(),
    }
}

fn list(as_json: bool) -> Result<(), Failure> {
    let mut text = String::new();
    for Of { name, question, .. } in ALL {
        let _ = match as_json {
            true => writeln!(text, "{}", json!({"name": name, "question": question})),
            false => writeln!(text, "{name:<12} {question}"),
        };
    }
    output::print(&text)
}

fn all(options: &Experiment, chosen: &[Of], device: &Device) -> Result<(), Failure> {
    let folder = tempfile::tempdir().map_err(|source: io::Error| CommandError::Write {
        name: "the folder of temporary files".to_owned(),
        source,
    })?;
    let runs = folder.path().to_owned();
    let said = (!options.quiet).then_some("ending; Ctrl-C again stops at once");
    let stop = listen(said, move || {
        output::say("stopped at once");
        // Nothing else removes it then; what a training still writes may stay.
        let _ = fs::remove_dir_all(&runs);
    })?;
    let (mut charts, mut shown) = (vec![], vec![]);
    let each = |experiment: &Of| -> Result<(), Failure> {
        let status = Status::new(experiment.name, !options.quiet);
        let setting = Setting {
            device,
            seeds: options.seeds,
            folder: folder.path(),
            stop: &stop,
            progress: &|what| status.set(what),
            extra_bytes: &|work| {
                devices::tell_cpu_as(experiment.name, "bytes are counted there alone");
                allocator::extra_bytes(work).1
            },
        };
        let found = experiment.run(&setting).map_err(failure)?;
        drop(status);
        let text = text(&found);
        match options.json {
            true => {
                let line = json!({
                    "name": experiment.name,
                    "question": experiment.question,
                    "seeds": options.seeds,
                    "table": found.table,
                    "figure": found.figure,
                    "words": found.words,
                });
                output::print(&format!("{line}\n"))?;
            }
            false => output::print(&format!("{}\n{text}", title(experiment)))?,
        }
        let figure: Vec<Chart> = found.figure.iter().map(chart).collect();
        shown.push((title(experiment), stacked(&figure), text));
        charts.extend(figure);
        Ok(())
    };
    let mut ended = chosen.iter().try_for_each(each);
    if !options.drawing.any() || shown.is_empty() {
        return ended;
    }
    if let Err(Failure::Interrupted(message)) = &mut ended {
        *message = "interrupted; the figures of what was done are written".to_owned();
    }
    let figures: Vec<Figure<'_>> = shown
        .iter()
        .map(|(title, svg, text)| Figure { title, svg, text })
        .collect();
    write_drawings(&options.drawing, "Experiments", &stacked(&charts), &figures)?;
    ended
}

fn title(experiment: &Of) -> String {
    format!("{}: {}", experiment.name, experiment.question)
}

/// Table and words.
fn text(found: &Findings) -> String {
    format!("{}\n{}\n", found.table, found.words.join("\n"))
}

fn chart(curves: &Curves) -> Chart {
    let chart = Chart::new(curves.title.clone(), curves.x.clone(), curves.y.clone());
    let chart = match curves.x_names.is_empty() {
        true => chart,
        false => chart.x_names(curves.x_names.iter().cloned()),
    };
    // Nothing lies below 0 or above 100 of these, whatever Student's distribution says of the mean of a few.
    let is_share = curves.y.ends_with('%') || curves.y == "BLEU";
    let points = || curves.lines.iter().flat_map(|(_, points)| points);
    let chart = match is_share && points().all(|(_, estimate)| estimate.mean == 100.0) {
        true => chart.y_from_zero(),
        false => chart,
    };
    curves.lines.iter().fold(chart, |chart, (name, points)| {
        let point = |&(x, estimate): &(f64, Estimate)| {
            let point = Point::new(x, estimate.mean);
            let (low, high) = estimate.interval();
            match (estimate.half > 0.0, is_share) {
                (true, true) => point.between(low.max(0.0), high.min(100.0)),
                (true, false) => point.between(low, high),
                (false, _) => point,
            }
        };
        let series = Series::new(name.clone(), points.iter().map(point).collect());
        chart.with(match curves.connected {
            true => series,
            false => series.apart(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_end_at_100_percent() {
        for (y, ends) in [
            ("%", true),
            ("right symbols, %", true),
            ("BLEU", true),
            ("ms", false),
        ] {
            let [low, high] = [[2.0, 0.0, 1.0], [97.0, 100.0, 99.0]].map(Estimate::of);
            let curves = Curves {
                title: "Shares".to_owned(),
                x: "model".to_owned(),
                y: y.to_owned(),
                x_names: vec![(0.0, "one".to_owned())],
                connected: false,
                lines: vec![("exact".to_owned(), vec![(0.0, low), (1.0, high)])],
            };
            let svg = chart(&curves).svg();
            assert!(svg.contains(">100</text>"), "{svg}");
            for beyond in [">-50</text>", ">150</text>"] {
                assert_eq!(svg.contains(beyond), !ends, "{y}: {svg}");
            }
            // All of them are right.
            let all = Estimate::of([100.0, 100.0]);
            let points = vec![(0.0, all), (1.0, all)];
            let lines = vec![("exact".to_owned(), points)];
            let svg = chart(&Curves { lines, ..curves }).svg();
            assert_eq!(svg.contains(">110</text>"), !ends, "{y}: {svg}");
        }
    }
}
