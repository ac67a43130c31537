//! Models that an experiment trains and judges: on sequences of symbols, where what is right is known.
//!
//! A `recipe` is that of `regard train`, with a seed of its own for each repetition.

use std::{fs, path::Path};

use super::{Curves, Estimate, ExperimentError, Setting, Table};
use crate::{
    Registry,
    files::FileError,
    learner::{Event, Run},
    ranks::Alone,
    recipe::{Recipe, Split},
};

/// A recipe of translation: what stands in its section of the model, with the sections of data after it, and how long it is trained.
pub(super) fn recipe(model: &str, warmup: u32, steps: u32) -> String {
    language_recipe(model, warmup, steps) + "\n[validation]\ntokenizer = \"none\"\n"
}

/// The section of a recipe: sequences of 16 symbols of these lengths, both included, to learn `task` from; so many of them, and so many
/// tests.
pub(super) fn sequences(
    task: &str,
    [shortest, longest]: [usize; 2],
    [sentences, tests]: [usize; 2],
) -> String {
    format!(
        r#"
[data.synthetic]
task = "{task}"
symbols = 16
min_length = {shortest}
max_length = {longest}
sentences = {sentences}
valid_sentences = 100
test_sentences = {tests}
"#
    )
}

/// A recipe of a language model.
pub(super) fn language_recipe(model: &str, warmup: u32, steps: u32) -> String {
    format!(
        r#"[model]
{model}
[batch]
sentences = 64

[optimizer]
kind = "adam"
clip_norm = 1.0

[schedule]
kind = "cosine"
learning_rate = 0.004
min_learning_rate = 1e-4
warmup = {warmup}
decay_steps = {steps}

[training]
steps = {steps}
validate_every = {steps}
"#
    )
}

/// A test sequence: what the model made of it, and what is right.
pub(super) struct Judged {
    pub made: String,
    pub wanted: String,
}

impl Judged {
    /// Symbols that should come out.
    pub fn length(&self) -> usize {
        self.wanted.split_whitespace().count()
    }

    /// The share of places with the right symbol, 0 to 1.
    pub fn right(&self) -> f64 {
        let pairs = self
            .made
            .split_whitespace()
            .zip(self.wanted.split_whitespace());
        pairs.filter(|(made, wanted)| made == wanted).count() as f64 / self.length().max(1) as f64
    }
}

/// Trains `recipe`, a TOML text, with `seed` and judges the best model on the test sequences, greedily.
pub(super) fn translate(
    setting: &Setting<'_>,
    name: &str,
    recipe: &str,
    seed: u64,
) -> Result<Vec<Judged>, ExperimentError> {
    train(setting, name, recipe, seed, |registry, recipe, folder| {
        let translator = registry.translator(folder, setting.device)?;
        let test = recipe.data.load(Split::Test, recipe.training.seed)?;
        let test = test.expect("a synthetic task has test sequences").text;
        let mut settings = translator.settings().clone();
        settings.beam = 1;
        let found = translator.translate(test.source(), &settings)?;
        let judged = found
            .iter()
            .zip(test.target())
            .map(|(found, wanted)| Judged {
                made: found
                    .n_best
                    .first()
                    .map_or(String::new(), |best| best.text.clone()),
                wanted: wanted.clone(),
            });
        Ok(judged.collect())
    })
}

/// Trains `recipe`, a TOML text, with `seed`, and gives the run's folder to `judge` before it is removed.
pub(super) fn train<T>(
    setting: &Setting<'_>,
    name: &str,
    recipe: &str,
    seed: u64,
    judge: impl FnOnce(&Registry, &Recipe, &Path) -> Result<T, ExperimentError>,
) -> Result<T, ExperimentError> {
    let registry = Registry::default();
    let seed = format!("training.seed={}", seed + 1);
    let recipe = registry.parse(recipe, name, &[seed])?;
    let folder = setting
        .folder
        .join(format!("{name}-{}", recipe.training.seed));
    remove(&folder)?;
    let run = Run {
        folder: &folder,
        device: setting.device,
        stop: setting.stop,
        ranks: &Alone,
    };
    let label = format!("{name}, seed {}", recipe.training.seed);
    setting.step(&label)?;
    let trained = registry.train(&recipe, &run, &mut |event| {
        if let Event::Train(metrics) = event {
            (setting.progress)(&format!(
                "{label}, update {}, loss {:.3}",
                metrics.step, metrics.loss
            ));
        }
    });
    trained.map_err(|source| ExperimentError::Train {
        name: label.clone(),
        source: Box::new(source),
    })?;
    // An interrupted training has saved itself, but is no result.
    setting.step(&label)?;
    let judged = judge(&registry, &recipe, &folder)?;
    remove(&folder)?;
    Ok(judged)
}

fn remove(folder: &Path) -> Result<(), FileError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(FileError::new(folder, "remove", error))
        }
        _ => Ok(()),
    }
}

/// Several models on one task.
pub(super) struct Contest {
    /// Of each: the share of sequences that are right as a whole, and of symbols in the right place, in percent.
    pub scores: Vec<[Estimate; 2]>,
    pub table: Table,
    pub figure: Curves,
}

impl Contest {
    /// Trains all `contenders`, which are names and recipes. `of` says what the names are, `title` what is learned.
    pub fn hold(
        setting: &Setting<'_>,
        title: &str,
        of: &str,
        contenders: &[(String, String)],
    ) -> Result<Self, ExperimentError> {
        let scores = contenders.iter().map(|(name, recipe)| {
            setting.repeat(|seed| {
                let judged = translate(setting, name, recipe, seed)?;
                let mean = |of: &dyn Fn(&Judged) -> f64| {
                    100.0 * judged.iter().map(of).sum::<f64>() / judged.len().max(1) as f64
                };
                let exact = |judged: &Judged| f64::from(judged.made == judged.wanted);
                Ok([mean(&exact), mean(&Judged::right)])
            })
        });
        let scores: Vec<[Estimate; 2]> = scores.collect::<Result<_, _>>()?;
        let rows = contenders.iter().zip(&scores);
        let rows = rows.map(|((name, _), scores)| (name.clone(), scores.map(Some).to_vec()));
        let line = |at: usize, name: &str| {
            let points = scores.iter().enumerate().map(|(x, of)| (x as f64, of[at]));
            (name.to_owned(), points.collect())
        };
        Ok(Self {
            table: Table {
                columns: [of, "exact, %", "right symbols, %"]
                    .map(str::to_owned)
                    .to_vec(),
                rows: rows.collect(),
            },
            figure: Curves {
                title: title.to_owned(),
                x: of.to_owned(),
                y: "%".to_owned(),
                x_names: (0..)
                    .map(f64::from)
                    .zip(contenders.iter().map(|(name, _)| name.clone()))
                    .collect(),
                connected: false,
                lines: vec![line(0, "exact"), line(1, "right symbols")],
            },
            scores,
        })
    }

    /// How the exact share of `one` stands to that of `other`, which `name` names: a sentence without its full stop.
    pub fn beside(&self, one: usize, other: usize, name: &str) -> String {
        let [first, second] = [self.scores[one][0], self.scores[other][0]];
        let sure = match first.overlaps(&second) {
            true => "; the intervals overlap",
            false => "",
        };
        format!("{first} % exact, beside {second} % {name}{sure}")
    }
}
