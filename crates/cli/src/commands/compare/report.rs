//! The results of a comparison: a table, plots, JSON.

use std::fmt::Write as _;

use regard_train::{
    compare::{Budget, Contender, Outcome},
    recipe::Split,
};
use regard_view::{
    chart::{Chart, Point, Series},
    png::{self, PngOptions},
    training::{self, Along},
};
use serde_json::{Value, json};

use super::{folder, judge::Judgement};
use crate::{
    arguments::Compare,
    commands::evaluate::{Comparison, draw_lengths, length_chart},
    failure::Failure,
    output,
};

/// Columns and rows of a plot in the terminal.
const PLOT: (usize, usize) = (78, 20);

/// Writes the plots and `comparison.json`, and prints tables and plots, or JSON.
///
/// # Errors
/// A file that cannot be written.
pub fn tell(
    contenders: &[Contender],
    outcomes: &[Outcome],
    split: Split,
    judgement: &Judgement,
    options: &Compare,
) -> Result<(), Failure> {
    let mut charts = vec![("loss", loss_chart(contenders, outcomes))];
    charts.extend(
        judgement
            .by_length()
            .map(|table| ("length", length_chart(table))),
    );
    let runs: Vec<(&str, &[_])> = contenders
        .iter()
        .zip(outcomes)
        .map(|(contender, outcome)| (contender.name.as_str(), outcome.curve.as_slice()))
        .collect();
    let plots = training::plots(&runs, Along::Minutes, false);
    charts.extend(plots.iter().map(|plot| (plot.name, plot.chart())));
    for (name, chart) in &charts {
        let svg = chart.svg();
        output::write_file(&options.folder.join(format!("{name}.svg")), svg.as_bytes())?;
        let png = png::from_svg(&svg, &PngOptions::default())?;
        output::write_file(&options.folder.join(format!("{name}.png")), &png)?;
    }
    let plots: Vec<String> = charts
        .iter()
        .map(|(name, _)| format!("{name}.svg"))
        .collect();
    let mut all = everything(contenders, outcomes, split, judgement, options)?;
    all["plots"] = plots.into();
    let all = serde_json::to_string_pretty(&all)? + "\n";
    output::write_file(&options.folder.join("comparison.json"), all.as_bytes())?;
    let printed = match options.json {
        true => output::print(&all),
        false => output::print(&words(
            contenders, outcomes, split, judgement, options, &charts,
        )),
    };
    if let Some(table) = judgement.by_length() {
        draw_lengths(table, &options.lengths)?;
    }
    printed
}

/// Tables and plots.
fn words(
    contenders: &[Contender],
    outcomes: &[Outcome],
    split: Split,
    judgement: &Judgement,
    options: &Compare,
    charts: &[(&str, Chart)],
) -> String {
    let mut text = table(contenders, outcomes, judgement);
    text.push_str(&notes(
        contenders,
        outcomes,
        split,
        judgement,
        options.budget,
    ));
    if let Some(table) = judgement.by_length() {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{table}");
    }
    for (_, chart) in charts {
        let _ = write!(text, "\n{}", chart.text(PLOT.0, PLOT.1));
    }
    text
}

/// One line a contender.
fn table(contenders: &[Contender], outcomes: &[Outcome], judgement: &Judgement) -> String {
    let mut rows = vec![];
    let mut header: Vec<String> = [
        "recipe",
        "parameters",
        "updates",
        "time",
        "tokens/s",
        "peak memory",
        "loss",
    ]
    .map(str::to_owned)
    .to_vec();
    let aligned = |index: usize| match judgement {
        Judgement::Translations(report) => report.systems[index].alignment.as_ref(),
        Judgement::Others(_) => None,
    };
    let any_aligned = (0..contenders.len()).any(|index| aligned(index).is_some());
    match judgement {
        Judgement::Translations(report) => {
            let scores = report.systems.iter().take(1).flat_map(|s| &s.scores);
            header.extend(scores.map(|score| score.name.clone()));
        }
        Judgement::Others(_) => header.extend(judgement.columns().into_iter().map(str::to_owned)),
    }
    if any_aligned {
        header.push("AER".to_owned());
    }
    rows.push(header);
    for (index, (contender, outcome)) in contenders.iter().zip(outcomes).enumerate() {
        let early = if outcome.stopped_early { "*" } else { "" };
        let mut row = vec![
            contender.name.clone(),
            outcome.parameters.to_string(),
            outcome.updates.to_string(),
            format!("{}{early}", time(outcome.seconds)),
            format!("{:.0}", outcome.tokens_per_second),
            outcome.peak_memory.map_or_else(dash, memory),
            outcome
                .validation_loss
                .map_or_else(dash, |loss| format!("{loss:.4}")),
        ];
        match judgement {
            Judgement::Translations(report) => {
                row.extend(report.systems[index].scores.iter().map(
                    |score| match &score.confidence {
                        Some(interval) => {
                            format!("{:.2} ± {:.2}", score.score, interval.half_width)
                        }
                        None => format!("{:.2}", score.score),
                    },
                ));
            }
            Judgement::Others(models) => {
                let of = |name: &str| {
                    let mut columns = models[index].columns.iter();
                    let found = columns.find(|(column, _)| *column == name);
                    found.map_or_else(dash, |(_, score)| score.clone())
                };
                row.extend(judgement.columns().into_iter().map(of));
            }
        }
        if any_aligned {
            row.push(aligned(index).map_or_else(dash, |aer| format!("{:.4}", aer.error_rate())));
        }
        rows.push(row);
    }
    columns(&rows)
}

/// Notes on the meaning of the table's numbers.
fn notes(
    contenders: &[Contender],
    outcomes: &[Outcome],
    split: Split,
    judgement: &Judgement,
    budget: Budget,
) -> String {
    let part = part(split);
    let mut text = format!("\nEach trained for {budget}; judged on the {part} data.\n");
    let mut say = |line: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    };
    match judgement {
        Judgement::Translations(report) => {
            for score in report.systems.iter().take(1).flat_map(|s| &s.scores) {
                say(&format!("{} is {}", score.name, score.signature));
            }
            say("Loss: nats per target token of the validation data, teacher-forced.");
            let first = &contenders[0].recipe.data;
            let differ = |contender: &Contender| {
                let data = &contender.recipe.data;
                data.vocabulary != first.vocabulary || data.lowercase != first.lowercase
            };
            if contenders.iter().any(differ) {
                say("Losses are not comparable: the vocabularies differ, and so do the tokens.");
            }
        }
        Judgement::Others(_) => {
            say("Loss: of the validation data, as the models are trained by it.");
            for (place, paired) in judgement.paired() {
                say(&paired.describe(&contenders[0].name, &contenders[place].name));
            }
        }
    }
    for comparison in judgement.comparisons() {
        say(comparison.text().trim_end());
    }
    if outcomes.iter().any(|outcome| outcome.stopped_early) {
        say("* stopped early: validation did not improve any more.");
    }
    text
}

fn everything(
    contenders: &[Contender],
    outcomes: &[Outcome],
    split: Split,
    judgement: &Judgement,
    options: &Compare,
) -> Result<Value, Failure> {
    let mut recipes = vec![];
    for (index, (contender, outcome)) in contenders.iter().zip(outcomes).enumerate() {
        let judged = match judgement {
            Judgement::Translations(report) => report.systems[index].json(2)?,
            Judgement::Others(models) => models[index].json.clone(),
        };
        recipes.push(json!({
            "name": contender.name,
            "recipe": contender.path.display().to_string(),
            "folder": folder(options, contender).display().to_string(),
            "training": serde_json::to_value(outcome)?,
            "judged": judged,
        }));
    }
    let comparisons = judgement.comparisons().into_iter();
    let comparisons = comparisons.map(Comparison::json);
    let comparisons = comparisons.collect::<Result<Vec<_>, _>>()?;
    let by_length = match judgement {
        Judgement::Translations(report) => serde_json::to_value(&report.by_length)?,
        Judgement::Others(_) => Value::Null,
    };
    let paired = judgement.paired().into_iter().map(|(place, paired)| {
        let (low, high) = paired.interval();
        json!({
            "baseline": contenders[0].name,
            "system": contenders[place].name,
            "difference": paired.difference(),
            "confidence_95": [low, high],
            "p_value": paired.p_value(),
        })
    });
    Ok(json!({
        "budget": serde_json::to_value(options.budget)?,
        "part": part(split),
        "recipes": recipes,
        "bootstrap": comparisons,
        "paired": paired.collect::<Value>(),
        "by_length": by_length,
    }))
}

fn loss_chart(contenders: &[Contender], outcomes: &[Outcome]) -> Chart {
    let chart = Chart::new("Validation loss", "minutes of training", "nats");
    contenders
        .iter()
        .zip(outcomes)
        .fold(chart, |chart, (contender, outcome)| {
            let points = outcome
                .curve
                .iter()
                .map(|stop| Point::new(stop.seconds / 60.0, stop.loss));
            chart.with(Series::new(&contender.name, points.collect()))
        })
}

fn part(split: Split) -> &'static str {
    match split {
        Split::Test => "test",
        Split::Train | Split::Valid => "validation",
    }
}

fn dash() -> String {
    "-".to_owned()
}

fn time(seconds: f64) -> String {
    if seconds < 120.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{:.1} min", seconds / 60.0)
    }
}

fn memory(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// Names to the left, numbers to the right, two spaces between.
fn columns(rows: &[Vec<String>]) -> String {
    let size = |cell: &String| cell.chars().count();
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| size(&row[column])).max().unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
