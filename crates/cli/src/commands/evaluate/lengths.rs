//! Scores by source length, and their picture (Bahdanau et al. 2014, Fig. 2).

use regard_evaluate::{Bootstrap, LengthBuckets, LengthTable, Metric};
use regard_view::chart::{Chart, Point, Series};

use super::{data::Data, systems::System};
use crate::{
    arguments::{Evaluate, Lengths},
    failure::Failure,
    pictures::write_drawing,
};

/// Scores every system by length.
///
/// # Errors
/// Texts of different lengths.
pub fn table(
    options: &Evaluate,
    data: &Data,
    systems: &[System],
    metric: &dyn Metric,
    intervals: Option<Bootstrap>,
) -> Result<LengthTable, Failure> {
    let buckets = LengthBuckets {
        edges: match &options.lengths.buckets {
            Some(edges) => edges.0.clone(),
            None => LengthBuckets::default().edges,
        },
        minimum: options.lengths.least_sentences,
    };
    let named: Vec<(&str, &[String])> = systems
        .iter()
        .map(|system| (system.name.as_str(), system.lines.as_slice()))
        .collect();
    let source = data.source.as_deref().unwrap_or_default();
    Ok(buckets.table(metric, source, &named, &data.references, intervals)?)
}

/// Draws a table into the files that the options name.
///
/// # Errors
/// A file that cannot be written.
pub fn draw(table: &LengthTable, options: &Lengths) -> Result<(), Failure> {
    if !options.drawing.any() {
        return Ok(());
    }
    let title = format!("{} by source length", table.metric);
    write_drawing(
        &options.drawing,
        &title,
        &chart(table).svg(),
        &table.to_string(),
    )
}

/// A table as a picture.
pub fn chart(table: &LengthTable) -> Chart {
    let title = format!("{} by source length", table.metric);
    let chart = Chart::new(title, "words of the source", table.metric.clone());
    let names = table
        .buckets
        .iter()
        .map(|bucket| (bucket.mean_length, bucket.label()));
    let chart = table
        .systems
        .iter()
        .enumerate()
        .fold(chart, |chart, (index, name)| {
            let points = table.buckets.iter().map(|bucket| {
                let cell = &bucket.scores[index];
                let point = Point::new(bucket.mean_length, cell.score);
                match &cell.confidence {
                    Some(interval) => point.between(interval.lower, interval.upper),
                    None => point,
                }
            });
            chart.with(Series::new(name, points.collect()))
        });
    chart.x_names(names).y_from_zero()
}
