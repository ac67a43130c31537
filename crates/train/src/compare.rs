//! Several recipes under one budget: which of them learns most from the same time, or from the same text?
//!
//! A [`Budget`] takes the place of every limit in a recipe, so that all are trained equally long; early stopping
//! (`training.patience`) stays, as it is part of a recipe. Each recipe has a run folder of its own, which also records
//! what was spent. So a comparison that was interrupted goes on ([`standing`]), and a finished one can be extended by
//! a larger budget. [`judged_by`] finds the text by which all can be judged, [`outcome`] reads the results of training
//! from a folder.
//!
//! ```
//! use regard_train::{Registry, compare::Budget};
//!
//! let budget: Budget = "90s".parse()?;
//! assert_eq!(budget, Budget::Minutes(1.5));
//! let recipe = budget.limit(Registry::default().example("gnmt").unwrap());
//! assert_eq!((recipe.training.minutes, recipe.training.epochs), (Some(1.5), None));
//! assert_eq!("5Mtokens".parse(), Ok(Budget::Tokens(5_000_000)));
//! assert!("soon".parse::<Budget>().is_err());
//! # Ok::<(), regard_train::compare::BudgetError>(())
//! ```

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use regard_config::ConfigError;
use regard_trace::diagnose::log::{self, Validation};
use serde::{Deserialize, Serialize};

use crate::{
    corpus::{CorpusError, ParallelText},
    files::{self, FileError},
    learner::{
        self,
        checkpoint::{Checkpoint, CheckpointError, Progress},
        start::adopt_from_run,
    },
    recipe::{Recipe, SceneSet, Split},
    registry::Registry,
};

/// The file in which [`Measured`] is saved, beside the run's own files.
const MEASURED: &str = "measured.json";

/// How much each recipe may spend.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Budget {
    /// Minutes of training, validation included.
    Minutes(f64),
    /// Target tokens trained on; of labelled sentences, their own tokens.
    Tokens(u64),
}

/// A text that cannot be read as a budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a budget; expected a time such as 20m, 90s or 2h, or tokens such as 5Mtokens or 500ktokens"
)]
pub struct BudgetError(pub String);

impl FromStr for Budget {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let wrong = || BudgetError(text.to_owned());
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(wrong)?;
        let (number, unit) = text.split_at(end);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let tokens = |scale: f64| Self::Tokens((number * scale).round() as u64);
        let budget = match unit {
            "s" => Self::Minutes(number / 60.0),
            "m" | "min" => Self::Minutes(number),
            "h" => Self::Minutes(number * 60.0),
            "tokens" => tokens(1.0),
            "ktokens" => tokens(1e3),
            "Mtokens" => tokens(1e6),
            "Gtokens" => tokens(1e9),
            _ => return Err(wrong()),
        };
        // Larger numbers of tokens are no longer exact in f64, and larger numbers of minutes are of no use.
        let largest = (1u64 << 53) as f64;
        match budget {
            Self::Minutes(minutes) if minutes > 0.0 && minutes < largest => Ok(budget),
            Self::Tokens(tokens) if tokens > 0 && (tokens as f64) < largest => Ok(budget),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Minutes(minutes) if minutes < 2.0 => write!(f, "{} seconds", 60.0 * minutes),
            Self::Minutes(minutes) if minutes < 120.0 => write!(f, "{minutes} minutes"),
            Self::Minutes(minutes) => write!(f, "{} hours", minutes / 60.0),
            Self::Tokens(tokens) => write!(f, "{tokens} tokens"),
        }
    }
}

impl Budget {
    /// The recipe with this budget in place of its own limits.
    pub fn limit(&self, recipe: Recipe) -> Recipe {
        let mut recipe = without_limits(recipe);
        match *self {
            Self::Minutes(minutes) => recipe.training.minutes = Some(minutes),
            Self::Tokens(tokens) => recipe.training.tokens = Some(tokens),
        }
        recipe
    }

    fn spent(&self, progress: &Progress) -> (bool, Self) {
        match *self {
            Self::Minutes(minutes) => {
                let spent = progress.seconds / 60.0;
                (spent >= minutes, Self::Minutes(spent))
            }
            Self::Tokens(tokens) => (progress.tokens >= tokens, Self::Tokens(progress.tokens)),
        }
    }
}

fn without_limits(mut recipe: Recipe) -> Recipe {
    let training = &mut recipe.training;
    (training.epochs, training.steps) = (None, None);
    (training.minutes, training.tokens) = (None, None);
    recipe
}

/// A recipe that takes part.
#[derive(Debug, Clone)]
pub struct Contender {
    /// Its name in tables.
    pub name: String,
    /// Where it came from.
    pub path: PathBuf,
    /// The recipe, limited by the budget.
    pub recipe: Recipe,
}

/// Why recipes cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// Two contenders with the same name.
    #[error("{} and {} are both called {name:?}; give one another name, NAME={}", first.display(), second.display(), second.display())]
    SameName {
        /// The name.
        name: String,
        /// One recipe.
        first: PathBuf,
        /// The other one.
        second: PathBuf,
    },
    /// The same recipe twice.
    #[error("{} and {} are the same recipe; give different ones", first.display(), second.display())]
    SameRecipe {
        /// One recipe.
        first: PathBuf,
        /// The other one.
        second: PathBuf,
    },
    /// A translator and a classifier.
    #[error("{} {}, {} {}; expected recipes for one task", first.display(), first_task, second.display(), second_task)]
    Tasks {
        /// One recipe.
        first: PathBuf,
        /// What its model does.
        first_task: &'static str,
        /// The other one.
        second: PathBuf,
        /// What its model does.
        second_task: &'static str,
    },
    /// A language model, whose loss depends on how its tokens cut the text.
    #[error("{}: trains a language model, and losses of tokens are not those of other tokens; train each, and compare their bits per byte: `regard evaluate --model RUN --text FILE`", .0.display())]
    LanguageModel(PathBuf),
    /// Questions about images of different sizes.
    #[error("{} has data.questions.size = {first_size}, {} {second_size}; expected the same, as the models are asked about the same images", first.display(), second.display())]
    Sizes {
        /// One recipe.
        first: PathBuf,
        /// Height and width of its images.
        first_size: usize,
        /// The other one.
        second: PathBuf,
        /// Height and width of its images.
        second_size: usize,
    },
    /// Different texts to judge by.
    #[error("{} and {} name different {part} data; expected the same, as scores on different text say nothing of each other", first.display(), second.display())]
    Texts {
        /// One recipe.
        first: PathBuf,
        /// The other one.
        second: PathBuf,
        /// "validation" or "test".
        part: &'static str,
    },
    /// Nothing to judge by.
    #[error("{}: the recipe names neither test nor validation data that all recipes have, so there is nothing to judge by", .0.display())]
    NoText(PathBuf),
    /// The folder holds a run of another recipe.
    #[error("{}: holds a run of another recipe; choose another --folder, or remove this one", .0.display())]
    OtherRecipe(PathBuf),
    /// The run has spent more than the budget already.
    #[error("{}: has trained for {spent} already, more than {budget}; give a larger --budget, or another --folder", folder.display())]
    Overspent {
        /// The run folder.
        folder: PathBuf,
        /// What was spent.
        spent: Budget,
        /// The budget.
        budget: Budget,
    },
    /// A recipe is wrong.
    #[error(transparent)]
    Recipe(#[from] ConfigError),
    /// The data is wrong.
    #[error(transparent)]
    Corpus(#[from] CorpusError),
    /// A checkpoint is damaged.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Refuses contenders that are the same, and finds the part of their data by which all can be judged: the test data
/// if every recipe names it, else the validation data.
///
/// # Errors
/// Whatever [`CompareError`] names.
pub fn judged_by(registry: &Registry, contenders: &[Contender]) -> Result<Split, CompareError> {
    let models_text = |contender: &&Contender| contender.recipe.data.text.is_some();
    if let Some(contender) = contenders.iter().find(models_text) {
        return Err(CompareError::LanguageModel(contender.path.clone()));
    }
    for (index, second) in contenders.iter().enumerate() {
        for first in &contenders[..index] {
            let (first_path, second_path) = (first.path.clone(), second.path.clone());
            if first.recipe == second.recipe {
                return Err(CompareError::SameRecipe {
                    first: first_path,
                    second: second_path,
                });
            }
            if first.name == second.name {
                return Err(CompareError::SameName {
                    name: first.name.clone(),
                    first: first_path,
                    second: second_path,
                });
            }
            let tasks = (registry.does(&first.recipe), registry.does(&second.recipe));
            if tasks.0 != tasks.1 {
                return Err(CompareError::Tasks {
                    first: first_path,
                    first_task: tasks.0,
                    second: second_path,
                    second_task: tasks.1,
                });
            }
            let questions =
                |of: &Contender| of.recipe.data.questions.as_ref().map(|data| data.size);
            if let (Some(first_size), Some(second_size)) = (questions(first), questions(second))
                && first_size != second_size
            {
                return Err(CompareError::Sizes {
                    first: first_path,
                    first_size,
                    second: second_path,
                    second_size,
                });
            }
        }
    }
    for (split, part) in [(Split::Test, "test"), (Split::Valid, "validation")] {
        let texts = contenders
            .iter()
            .map(|contender| yardstick(&contender.recipe, split))
            .collect::<Result<Vec<_>, _>>()?;
        if texts.iter().any(Option::is_none) {
            continue;
        }
        return match texts.iter().position(|text| *text != texts[0]) {
            None => Ok(split),
            Some(index) => Err(CompareError::Texts {
                first: contenders[0].path.clone(),
                second: contenders[index].path.clone(),
                part,
            }),
        };
    }
    let lacks = |contender: &&Contender| !names(&contender.recipe, Split::Valid);
    let first = contenders.iter().find(lacks).or(contenders.first());
    Err(CompareError::NoText(
        first
            .map(|contender| contender.path.clone())
            .unwrap_or_default(),
    ))
}

fn names(recipe: &Recipe, split: Split) -> bool {
    let data = &recipe.data;
    let labelled = data.labelled.as_ref().is_some_and(|labelled| match split {
        Split::Train => labelled.train.is_some(),
        Split::Valid => labelled.valid.is_some(),
        Split::Test => labelled.test.is_some(),
    });
    let images = images(recipe, split).is_some();
    labelled || images || data.synthetic.is_some() || data.files(split).is_some()
}

/// What models are judged by.
#[derive(PartialEq)]
enum Yardstick {
    /// Sources and their references, or sentences and their labels.
    Text(ParallelText),
    /// Files of images and of what is known of them.
    Files(Vec<PathBuf>),
    /// Drawn scenes.
    Scenes(SceneSet),
}

fn yardstick(recipe: &Recipe, split: Split) -> Result<Option<Yardstick>, CompareError> {
    if let Some(images) = images(recipe, split) {
        return Ok(Some(images));
    }
    let text = match &recipe.data.labelled {
        Some(labelled) => labelled.load(split)?.map(|text| text.pairs().clone()),
        None => recipe
            .data
            .load(split, recipe.training.seed)?
            .map(|loaded| loaded.text),
    };
    Ok(text.map(Yardstick::Text))
}

/// The images by which models are judged, if the recipe names them.
fn images(recipe: &Recipe, split: Split) -> Option<Yardstick> {
    let data = &recipe.data;
    if let Some(scenes) = &data.scenes {
        let scenes = scenes.part(split, recipe.training.seed);
        return (!scenes.is_empty()).then_some(Yardstick::Scenes(scenes));
    }
    let files: Vec<Option<&Path>> = if let Some(images) = &data.images {
        vec![images.path(split)]
    } else if let Some(captions) = &data.captions {
        let (captions, images) = captions.paths(split)?;
        vec![Some(captions), Some(images)]
    } else if let Some(objects) = &data.objects {
        objects.paths(split).into()
    } else if let Some(questions) = &data.questions {
        let files = questions.files(split)?;
        vec![
            files.images.as_deref(),
            files.questions.as_deref(),
            files.annotations.as_deref(),
        ]
    } else {
        return None;
    };
    let files = files.into_iter().map(|file| file.map(Path::to_owned));
    files.collect::<Option<_>>().map(Yardstick::Files)
}

/// How far the training of a contender is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nothing was trained yet.
    New,
    /// Training was begun, and is not finished.
    Begun,
    /// The budget is spent, or training stopped early.
    Done,
}

/// How far the run in `folder` is with `recipe`, which `budget` limits. A run that finished a smaller budget is made
/// ready to go on.
///
/// # Errors
/// [`CompareError::OtherRecipe`], [`CompareError::Overspent`], and files that are damaged.
pub fn standing(
    registry: &Registry,
    folder: &Path,
    recipe: &Recipe,
    budget: Budget,
) -> Result<Standing, CompareError> {
    let last = folder.join(learner::LAST);
    if !last.exists() {
        return Ok(Standing::New);
    }
    let path = folder.join(learner::RECIPE);
    let before = registry.load(&path, &[])?;
    let mut recipe = recipe.clone();
    adopt_from_run(&mut recipe, &before);
    if without_limits(before.clone()) != without_limits(recipe.clone()) {
        return Err(CompareError::OtherRecipe(folder.to_owned()));
    }
    let model = folder.join(learner::MODEL);
    if before == recipe {
        return Ok(match model.exists() {
            true => Standing::Done,
            false => Standing::Begun,
        });
    }
    let progress = Checkpoint::load(&last)?.progress;
    if let (true, spent) = budget.spent(&progress) {
        return Err(CompareError::Overspent {
            folder: folder.to_owned(),
            spent,
            budget,
        });
    }
    // The finished model is removed first: if this is interrupted before the recipe is written, the run still counts as begun.
    if model.exists() {
        fs::remove_file(&model).map_err(|source| FileError::new(&model, "remove", source))?;
    }
    files::write_atomically(&path, recipe.to_toml()?.as_bytes())?;
    Ok(Standing::Begun)
}

/// What a training cannot record itself, and is measured from outside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// The most bytes in use at any time, over all sessions.
    pub peak_memory: u64,
}

impl Measured {
    /// Adds a session of the run in `folder`.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn add(folder: &Path, peak_memory: u64) -> Result<(), CompareError> {
        let before = Self::of(folder).map_or(0, |measured| measured.peak_memory);
        let measured = Self {
            peak_memory: peak_memory.max(before),
        };
        let text = serde_json::to_string(&measured).expect("plain data serialises");
        files::create_folder(folder)?;
        Ok(files::write_atomically(
            &folder.join(MEASURED),
            text.as_bytes(),
        )?)
    }

    /// The measurements of the run in `folder`, if there are any.
    pub fn of(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(folder.join(MEASURED)).ok()?).ok()
    }
}

/// The results of training in a run folder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Weights of the model.
    pub parameters: usize,
    /// Updates done.
    pub updates: u64,
    /// Target tokens trained on.
    pub tokens: u64,
    /// Seconds of training, validation included.
    pub seconds: f64,
    /// Target tokens per second of updates.
    pub tokens_per_second: f64,
    /// The most bytes in use at any time, if it was measured.
    pub peak_memory: Option<u64>,
    /// The finished model's loss on the validation data.
    pub validation_loss: Option<f64>,
    /// Whether it stopped before the budget was spent.
    pub stopped_early: bool,
    /// The validations during training: losses, and measures of attention if the recipe asks for them.
    pub curve: Vec<Validation>,
}

/// The results of training in `folder`.
///
/// # Errors
/// Files that are missing or damaged.
pub fn outcome(folder: &Path, budget: Budget) -> Result<Outcome, CompareError> {
    let checkpoint = Checkpoint::load(&folder.join(learner::LAST))?;
    let progress = checkpoint.progress;
    let metrics = files::read(&folder.join(learner::METRICS))?;
    let metrics = String::from_utf8_lossy(&metrics);
    let curve = log::validations(&metrics);
    let best = progress.best.map(|best| best.step);
    let of_best = curve.iter().find(|stop| Some(stop.step) == best);
    Ok(Outcome {
        parameters: checkpoint
            .model
            .values()
            .map(|array| array.values.len())
            .sum(),
        updates: progress.step,
        tokens: progress.tokens,
        seconds: progress.seconds,
        tokens_per_second: progress.tokens as f64 / progress.update_seconds,
        peak_memory: Measured::of(folder).map(|measured| measured.peak_memory),
        validation_loss: averaged(&metrics).or(of_best.map(|stop| stop.loss)),
        stopped_early: !budget.spent(&progress).0,
        curve,
    })
}

/// The loss of the averaged model in the lines of `metrics.jsonl`, if it became the finished model.
fn averaged(text: &str) -> Option<f64> {
    // A line that a crash cut short is ignored.
    let mut lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let last = lines.rfind(|line| line["kind"] == "averaged")?;
    match last["taken"] == true {
        true => last["validation"]["loss"].as_f64(),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_as_people_write_them() {
        for (text, expected) in [
            ("20m", Budget::Minutes(20.0)),
            ("20min", Budget::Minutes(20.0)),
            ("90s", Budget::Minutes(1.5)),
            ("1.5h", Budget::Minutes(90.0)),
            ("5Mtokens", Budget::Tokens(5_000_000)),
            ("2.5ktokens", Budget::Tokens(2_500)),
            ("7tokens", Budget::Tokens(7)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in [
            "",
            "20",
            "m",
            "-5m",
            "0m",
            "0tokens",
            "0.1tokens",
            "5 m",
            "5M",
            "1.2.3h",
            "5mtokens",
            "99999999999999999999h",
            "∞m",
        ] {
            let error = text.parse::<Budget>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
        assert_eq!(Budget::Minutes(1.5).to_string(), "90 seconds");
        assert_eq!(Budget::Minutes(150.0).to_string(), "2.5 hours");
    }

    #[test]
    fn questions_about_images_of_different_sizes_are_not_compared() {
        let registry = Registry::default();
        let contender = |size: usize| {
            let files = "images = \"a\"\nquestions = \"b\"\nannotations = \"c\"\n";
            let text = format!(
                "[model]\nkind = \"vqa\"\n[training]\nsteps = 1\n[data.questions]\nsize = {size}\n[data.questions.train]\n{files}[data.questions.test]\n{files}"
            );
            Contender {
                name: size.to_string(),
                path: PathBuf::from(format!("{size}.toml")),
                recipe: registry.parse(&text, "vqa.toml", &[]).unwrap(),
            }
        };
        let refused = judged_by(&registry, &[contender(32), contender(40)]);
        let message = refused.unwrap_err().to_string();
        assert!(
            message.contains("32.toml has data.questions.size = 32, 40.toml 40"),
            "{message}"
        );
    }

    #[test]
    fn the_finished_models_loss_is_the_averages_only_where_that_was_taken() {
        let validation = |step: u64, loss: f64| {
            format!("{{\"kind\":\"validation\",\"step\":{step},\"seconds\":1.0,\"loss\":{loss}}}\n")
        };
        let averaged = |taken: bool| {
            format!("{{\"kind\":\"averaged\",\"taken\":{taken},\"validation\":{{\"loss\":0.5}}}}\n")
        };
        let text = validation(1, 2.0) + &validation(2, 1.0) + &averaged(true) + "{\"kind\":\"val";
        assert_eq!(log::validations(&text).len(), 2);
        assert_eq!(super::averaged(&text), Some(0.5));
        let text = text.replace("{\"kind\":\"val", "") + &averaged(false);
        assert_eq!(super::averaged(&text), None);
    }
}
