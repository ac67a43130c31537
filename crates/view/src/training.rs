//! How attention changes in a training, as charts: entropy, diagonality, dead heads and sinks at each validation.
//!
//! ```
//! use regard_trace::diagnose::{LayerMeasures, log::Validation};
//! use regard_view::training::{Along, plots};
//!
//! let at = |step: u64, entropy: f64| Validation {
//!     step,
//!     seconds: 60.0 * step as f64,
//!     loss: 2.0,
//!     attention: vec![LayerMeasures {
//!         map: "encoder.self".into(), layer: 0, heads: 4, entropy: Some(entropy), diagonality: None, dead: 0, sinks: 1,
//!     }],
//! };
//! let run = [at(1, 2.0), at(2, 1.5)];
//! let plots = plots(&[("small", &run)], Along::Minutes, false);
//! let names: Vec<&str> = plots.iter().map(|plot| plot.name).collect();
//! assert_eq!(names, ["entropy", "dead", "sinks"]); // there is no diagonality
//! assert!(plots[0].chart().svg().contains("minutes of training"));
//! ```

use regard_trace::diagnose::{LayerMeasures, layer::by_kind, log::Validation};

use crate::chart::{Chart, Point, Series};

/// What the horizontal axis counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Along {
    /// Updates.
    Updates,
    /// Minutes of training.
    Minutes,
}

impl Along {
    /// The label of the axis.
    pub fn name(self) -> &'static str {
        match self {
            Self::Updates => "updates",
            Self::Minutes => "minutes of training",
        }
    }
}

/// A measure of a layer: name, title, unit, value.
type Measure = (
    &'static str,
    &'static str,
    &'static str,
    fn(&LayerMeasures) -> Option<f64>,
);

const MEASURES: [Measure; 4] = [
    (
        "entropy",
        "Entropy of attention, mean of heads",
        "nats",
        |of| of.entropy,
    ),
    (
        "diagonality",
        "Diagonality of attention, mean of heads",
        "0 to 1",
        |of| of.diagonality,
    ),
    ("dead", "Dead heads: no key is preferred", "heads", |of| {
        Some(of.dead as f64)
    }),
    (
        "sinks",
        "Sinks: most weight on the first or a special token",
        "heads",
        |of| Some(of.sinks as f64),
    ),
];

/// How one measure changes.
#[derive(Clone, Debug)]
pub struct Plot {
    /// The measure in one word, as files are named: `entropy`.
    pub name: &'static str,
    /// What it says.
    pub title: &'static str,
    /// What its values count.
    pub unit: &'static str,
    /// What the horizontal axis counts.
    pub along: Along,
    /// A line for each kind of attention, or for each layer, of each run.
    pub lines: Vec<Series>,
}

impl Plot {
    /// The plot as a chart.
    pub fn chart(&self) -> Chart {
        let chart = Chart::new(self.title, self.along.name(), self.unit).y_from_zero();
        self.lines.iter().cloned().fold(chart, Chart::with)
    }
}

/// Lines of a plot; further ones are left out.
const MOST_LINES: usize = 100;

/// A plot for each measure that some run has. Each run has a line for each kind of attention, or with `layers` for each layer of each
/// kind.
pub fn plots(runs: &[(&str, &[Validation])], along: Along, layers: bool) -> Vec<Plot> {
    let drawn = MEASURES.map(|(name, title, unit, value)| {
        let mut lines: Vec<Series> = vec![];
        for &(run, validations) in runs {
            let first = lines.len();
            for validation in validations {
                let x = match along {
                    Along::Updates => validation.step as f64,
                    Along::Minutes => validation.seconds / 60.0,
                };
                for (line, measures) in rows(&validation.attention, layers) {
                    let Some(y) = value(&measures) else { continue };
                    let line = match runs.len() {
                        1 => line,
                        _ => format!("{run}: {line}"),
                    };
                    let point = Point::new(x, y);
                    let room = lines.len() < MOST_LINES;
                    match lines[first..].iter_mut().find(|series| series.name == line) {
                        Some(series) => series.points.push(point),
                        None if room => {
                            lines.push(Series::new(line, vec![point]));
                        }
                        None => {}
                    }
                }
            }
        }
        Plot {
            name,
            title,
            unit,
            along,
            lines,
        }
    });
    let drawn = drawn.into_iter();
    drawn.filter(|plot| !plot.lines.is_empty()).collect()
}

/// The lines to which a validation adds a point, with its measures.
fn rows(attention: &[LayerMeasures], layers: bool) -> Vec<(String, LayerMeasures)> {
    match layers {
        true => {
            let name = |of: &LayerMeasures| format!("{} layer {}", of.map, of.layer + 1);
            attention.iter().map(|of| (name(of), of.clone())).collect()
        }
        false => {
            let kinds = by_kind(attention).into_iter();
            kinds.map(|of| (of.map.clone(), of)).collect()
        }
    }
}
