//! `regard experiment`: experiments of [`regard_train::experiments`] as tables, figures and JSON.

use std::{fmt::Write, io, slice};

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
    failure::{CommandError, Failure},
    output,
    pictures::write_drawings,
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
    let stop = listen((!options.quiet).then_some("ending; Ctrl-C again stops at once"))?;
    let folder = tempfile::tempdir().map_err(|source: io::Error| CommandError::Write {
        name: "the folder of temporary files".to_owned(),
        source,
    })?;
    let (mut charts, mut shown) = (vec![], vec![]);
    for experiment in chosen {
        let status = Status::new(experiment.name, !options.quiet);
        let setting = Setting {
            device,
            seeds: options.seeds,
            folder: folder.path(),
            stop: &stop,
            progress: &|what| status.set(what),
            extra_bytes: &|work| allocator::extra_bytes(work).1,
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
    }
    if !options.drawing.any() {
        return Ok(());
    }
    let figures: Vec<Figure<'_>> = shown
        .iter()
        .map(|(title, svg, text)| Figure { title, svg, text })
        .collect();
    write_drawings(&options.drawing, "Experiments", &stacked(&charts), &figures)
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
    curves.lines.iter().fold(chart, |chart, (name, points)| {
        let point = |&(x, estimate): &(f64, Estimate)| {
            let point = Point::new(x, estimate.mean);
            match estimate.half > 0.0 {
                true => point.between(estimate.interval().0, estimate.interval().1),
                false => point,
            }
        };
        let series = Series::new(name.clone(), points.iter().map(point).collect());
        chart.with(match curves.connected {
            true => series,
            false => series.apart(),
        })
    })
}
