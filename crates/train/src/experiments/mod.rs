//! Small experiments that show what a mechanism does: each trains or computes within minutes, and says what it found.
//!
//! | name | question | file |
//! |---|---|---|
//! | `why-scale` | why are scores divided by the root of their size? | `why_scale.rs` |
//! | `reach` | how far back does a gradient reach? | `reach.rs` |
//! | `memory` | what does the matrix of weights cost? | `memory.rs` |
//! | `length` | what does attention do for long sequences? | `length.rs` |
//! | `positions` | what does attention know of order? | `positions.rs` |
//! | `hard-soft` | what does it cost to read one word alone? | `hard_soft.rs` |
//! | `local-global` | when does a window do? | `local_global.rs` |
//! | `additive-dot` | what do additive and dot scores learn and cost? | `additive_dot.rs` |
//! | `teacher-forcing` | what does a model do with its own mistakes? | `teacher_forcing.rs` |
//! | `heads` | what are several heads for? | `heads.rs` |
//! | `uniform` | why is attention uniform, and which check finds it? | `uniform.rs` |
//!
//! `looks.rs` makes the sequences of `teacher-forcing` and `heads`; `trained.rs` trains.
//!
//! Every number is measured with several seeds and stands with the 95 % interval of its mean ([`Estimate`]). What is said in words is
//! computed from those numbers: where intervals overlap it says so.
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//! use burn::tensor::Device;
//! use regard_train::experiments::{Experiment, Setting};
//!
//! let folder = std::env::temp_dir();
//! let setting = Setting {
//!     device: &Device::flex(),
//!     seeds: 2,
//!     folder: &folder,
//!     stop: &AtomicBool::new(false),
//!     progress: &|_| {},
//!     extra_bytes: &|work| { work(); 0 },
//! };
//! let findings = Experiment::find("why-scale").unwrap().run(&setting)?;
//! assert_eq!(findings.table.columns[0], "size of a key");
//! # Ok::<(), regard_train::experiments::ExperimentError>(())
//! ```

mod additive_dot;
mod estimate;
mod hard_soft;
mod heads;
mod length;
mod local_global;
mod looks;
mod memory;
mod positions;
mod reach;
mod teacher_forcing;
mod trained;
mod uniform;
mod why_scale;

use std::{
    fmt,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use burn::tensor::Device;
use regard_config::{ConfigError, nearest};
use regard_evaluate::EvaluateError;
use regard_models::pretrained::{InputError, PretrainedError};
use regard_nn::AttentionError;
use regard_trace::TraceError;
use serde::Serialize;

use crate::{
    TrainError, corpus::CorpusError, files::FileError, model_file::ModelFileError,
    translator::LineError,
};

pub use estimate::Estimate;

/// What an experiment is given.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// Where to compute, without autodiff.
    pub device: &'a Device,
    /// How often to repeat everything that is drawn, at least 2.
    pub seeds: u64,
    /// Where models are trained, each in a folder of its own, which is removed when it has been judged.
    pub folder: &'a Path,
    /// Set from outside to end early.
    pub stop: &'a AtomicBool,
    /// Is told what is being done.
    pub progress: &'a dyn Fn(&str),
    /// Runs the work, which computes on the CPU, and says how many bytes it had in use at most beyond those in use before.
    pub extra_bytes: &'a dyn Fn(&mut dyn FnMut()) -> usize,
}

impl fmt::Debug for Setting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setting")
            .field("seeds", &self.seeds)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl Setting<'_> {
    /// Tells what is being done, unless it is to end.
    fn step(&self, what: &str) -> Result<(), ExperimentError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(ExperimentError::Stopped);
        }
        (self.progress)(what);
        Ok(())
    }

    /// `measure` with every seed: `[measured][seed]` becomes an estimate for each that is measured.
    fn repeat<const N: usize>(
        &self,
        mut measure: impl FnMut(u64) -> Result<[f64; N], ExperimentError>,
    ) -> Result<[Estimate; N], ExperimentError> {
        let mut found: [Vec<f64>; N] = std::array::from_fn(|_| vec![]);
        for seed in 0..self.seeds {
            let measured = measure(seed)?;
            found
                .iter_mut()
                .zip(measured)
                .for_each(|(all, x)| all.push(x));
        }
        Ok(found.map(Estimate::of))
    }
}

/// Why an experiment has no result.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// There is none of that name.
    #[error("there is no experiment {name:?}{hint}; `regard experiment --list` names all")]
    Unknown {
        /// The name.
        name: String,
        /// The nearest one.
        hint: String,
    },
    /// Too few seeds for an interval.
    #[error("{0} seeds; expected at least 2, as one alone says nothing about how sure it is")]
    Seeds(u64),
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(String),
    /// Ended from outside.
    #[error("interrupted; nothing was written")]
    Stopped,
    /// A recipe of the experiment cannot be read.
    #[error(transparent)]
    Recipe(#[from] ConfigError),
    /// A training failed.
    #[error("{name}: {source}")]
    Train {
        /// Which one.
        name: String,
        /// Why.
        source: Box<TrainError>,
    },
    /// A trained model cannot be opened.
    #[error(transparent)]
    Model(#[from] ModelFileError),
    /// The text of a task.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// A line of a task is too long.
    #[error(transparent)]
    Line(#[from] LineError),
    /// A file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Attention refused its inputs.
    #[error(transparent)]
    Attention(#[from] AttentionError),
    /// A model refused its text.
    #[error(transparent)]
    Input(#[from] InputError),
    /// A tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] PretrainedError),
    /// Weights that are no map.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A score cannot be computed.
    #[error(transparent)]
    Evaluate(#[from] EvaluateError),
}

/// An experiment.
#[derive(Debug, Clone, Copy)]
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    /// The question that it answers.
    pub question: &'static str,
    run: fn(&Setting<'_>) -> Result<Findings, ExperimentError>,
}

/// All experiments.
pub const ALL: &[Experiment] = &[
    Experiment {
        name: "why-scale",
        question: "why are scores divided by the root of their size?",
        run: why_scale::run,
    },
    Experiment {
        name: "reach",
        question: "how far back does a gradient reach?",
        run: reach::run,
    },
    Experiment {
        name: "memory",
        question: "what does the matrix of weights cost?",
        run: memory::run,
    },
    Experiment {
        name: "length",
        question: "what does attention do for long sequences?",
        run: length::run,
    },
    Experiment {
        name: "positions",
        question: "what does attention know of order?",
        run: positions::run,
    },
    Experiment {
        name: "hard-soft",
        question: "what does it cost to read one word alone?",
        run: hard_soft::run,
    },
    Experiment {
        name: "local-global",
        question: "when does a window do?",
        run: local_global::run,
    },
    Experiment {
        name: "additive-dot",
        question: "what do additive and dot scores learn and cost?",
        run: additive_dot::run,
    },
    Experiment {
        name: "teacher-forcing",
        question: "what does a model do with its own mistakes?",
        run: teacher_forcing::run,
    },
    Experiment {
        name: "heads",
        question: "what are several heads for?",
        run: heads::run,
    },
    Experiment {
        name: "uniform",
        question: "why is attention uniform, and which check finds it?",
        run: uniform::run,
    },
];

impl Experiment {
    /// The experiment of this name.
    ///
    /// # Errors
    /// [`ExperimentError::Unknown`], with the nearest name.
    pub fn find(name: &str) -> Result<&'static Self, ExperimentError> {
        let found = ALL.iter().find(|experiment| experiment.name == name);
        found.ok_or_else(|| ExperimentError::Unknown {
            name: name.to_owned(),
            hint: nearest(
                name,
                &ALL.iter()
                    .map(|experiment| experiment.name)
                    .collect::<Vec<_>>(),
            )
            .map_or(String::new(), |near| format!("; did you mean {near:?}?")),
        })
    }

    /// Does it.
    ///
    /// # Errors
    /// [`ExperimentError`].
    pub fn run(&self, setting: &Setting<'_>) -> Result<Findings, ExperimentError> {
        if setting.seeds < 2 {
            return Err(ExperimentError::Seeds(setting.seeds));
        }
        (self.run)(setting)
    }
}

/// What an experiment found.
#[derive(Debug, Clone, Serialize)]
pub struct Findings {
    /// The numbers.
    pub table: Table,
    /// The figure: charts to be drawn below each other.
    pub figure: Vec<Curves>,
    /// What it shows, sentence by sentence.
    pub words: Vec<String>,
}

/// A table of estimates.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// The names of the columns; the first is that of the rows' names.
    pub columns: Vec<String>,
    /// A name, and an estimate for every further column; `None` where there is none.
    pub rows: Vec<(String, Vec<Option<Estimate>>)>,
}

/// Lines in a chart.
#[derive(Debug, Clone, Serialize)]
pub struct Curves {
    /// What is shown.
    pub title: String,
    /// What the horizontal axis is.
    pub x: String,
    /// What the vertical axis is.
    pub y: String,
    /// Places of the horizontal axis that have a name.
    pub x_names: Vec<(f64, String)>,
    /// Whether something lies between two points, so that lines may connect them.
    pub connected: bool,
    /// Name and points of each line.
    pub lines: Vec<(String, Vec<(f64, Estimate)>)>,
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = |estimate: &Option<Estimate>| match estimate {
            Some(estimate) => estimate.to_string(),
            None => "-".to_owned(),
        };
        let rows = self.rows.iter().map(|(name, cells)| {
            let mut row = vec![name.clone()];
            row.extend(cells.iter().map(cell));
            row
        });
        let all: Vec<Vec<String>> = std::iter::once(self.columns.clone()).chain(rows).collect();
        let width = |column: usize| {
            let cells = all.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        for row in &all {
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match at {
                    0 => write!(f, "{cell:<width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use regard_models::scoring::CausalModel;

    use super::*;
    use crate::Registry;

    #[test]
    fn every_recipe_is_one() {
        let all = [
            length::recipes(),
            positions::recipes(),
            hard_soft::recipes(),
            local_global::recipes(),
            additive_dot::recipes(),
            heads::HEADS
                .map(|heads| {
                    let folder = std::env::temp_dir();
                    (
                        format!("{heads} heads"),
                        looks::recipe(heads, heads::STEPS, &folder),
                    )
                })
                .to_vec(),
        ];
        for (name, recipe) in all.into_iter().flatten() {
            let registry = Registry::default();
            let recipe = registry.parse(&recipe, &name, &[]);
            let checked = recipe.and_then(|recipe| registry.check(&recipe));
            checked.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn scores_are_scaled_and_gradients_reach() {
        let folder = std::env::temp_dir();
        let setting = Setting {
            device: &Device::flex(),
            seeds: 3,
            folder: &folder,
            stop: &AtomicBool::new(false),
            progress: &|_| {},
            extra_bytes: &|work| {
                work();
                0
            },
        };
        let found = Experiment::find("why-scale")
            .unwrap()
            .run(&setting)
            .unwrap();
        for (size, cells) in &found.table.rows {
            let [plain, scaled] = [0, 1].map(|at| cells[at].unwrap());
            let size: f64 = size.parse().unwrap();
            assert!((plain.mean / size - 1.0).abs() < 0.5, "{size}: {plain}");
            assert!((scaled.mean - 1.0).abs() < 0.5, "{size}: {scaled}");
        }
        let found = Experiment::find("reach").unwrap().run(&setting).unwrap();
        let (_, farthest) = found.table.rows.last().unwrap();
        let [rnn, _, _, attention] = [0, 1, 2, 3].map(|at| farthest[at].unwrap());
        assert!(
            rnn.mean < -6.0 && attention.mean > -2.0,
            "{rnn}, {attention}"
        );
    }

    /// Models of a few updates: both ways of predicting give a number at every position, and all counts of heads have equal weights.
    #[test]
    fn a_model_of_drawn_sequences_is_trained_and_judged() {
        /// More than the schedule's warmup.
        const UPDATES: u32 = 51;
        let folder = tempfile::tempdir().unwrap();
        let setting = Setting {
            device: &Device::flex(),
            seeds: 2,
            folder: folder.path(),
            stop: &AtomicBool::new(false),
            progress: &|_| {},
            extra_bytes: &|_| 0,
        };
        let mut weights = vec![];
        for heads in [1, 8] {
            let judge = |_: &dyn CausalModel, count: usize, test: &[Vec<u32>]| {
                weights.push(count);
                assert!(test.iter().all(|ids| ids.len() == 1 + looks::LENGTH));
                Ok(())
            };
            looks::train(&setting, heads, UPDATES, 0, judge).unwrap();
        }
        assert_eq!(weights[0], weights[1]);
        let found = teacher_forcing::after(&setting, UPDATES).unwrap();
        let (_, first) = &found.table.rows[0];
        // The first position has the same symbols before it in both.
        let [forced, free] = [0, 1].map(|at| first[at].unwrap().mean);
        assert!((forced - free).abs() < 1e-5, "{forced}, {free}");
        assert!(found.table.rows.iter().all(|(_, cells)| {
            let [forced, free] = [0, 1].map(|at| cells[at].unwrap().mean);
            forced > 0.0 && free > 0.0
        }));
    }

    /// The checks of a head are right: each fault is named in every head, and nothing else is.
    #[test]
    fn every_cause_of_uniform_attention_is_named_and_a_healthy_layer_is_not() {
        let folder = std::env::temp_dir();
        let setting = Setting {
            device: &Device::flex(),
            seeds: 4,
            folder: &folder,
            stop: &AtomicBool::new(false),
            progress: &|_| {},
            extra_bytes: &|_| 0,
        };
        let found = Experiment::find("uniform").unwrap().run(&setting).unwrap();
        assert_eq!(found.table.rows.len(), 7);
        for (at, (fault, cells)) in found.table.rows.iter().enumerate() {
            let [entropy, right, wrong] = [0, 1, 2].map(|cell| cells[cell].unwrap().mean);
            let healthy = at == 0;
            assert_eq!(right, if healthy { 0.0 } else { 100.0 }, "{fault}");
            assert_eq!(wrong, 0.0, "{fault}");
            assert_eq!(entropy > 95.0, !healthy, "{fault}: {entropy}");
        }
    }

    #[test]
    fn one_seed_is_refused_and_a_stop_ends_it() {
        let folder = std::env::temp_dir();
        let stop = AtomicBool::new(true);
        let mut setting = Setting {
            device: &Device::flex(),
            seeds: 1,
            folder: &folder,
            stop: &stop,
            progress: &|_| {},
            extra_bytes: &|_| 0,
        };
        for experiment in ALL {
            setting.seeds = 1;
            assert!(matches!(
                experiment.run(&setting),
                Err(ExperimentError::Seeds(1))
            ));
            setting.seeds = 2;
            assert!(matches!(
                experiment.run(&setting),
                Err(ExperimentError::Stopped)
            ));
        }
    }
}
