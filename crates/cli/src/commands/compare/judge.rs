//! The finished models, scored as `regard evaluate` scores them.

use regard_evaluate::{LengthTable, PairedShares};
use regard_train::{Registry, compare::Contender, recipe::Split, tasks::Translation};

use super::folder;
use crate::{
    arguments::{Compare, Evaluate, Named, Part},
    commands::evaluate::{self, Comparison, Report, Scored},
    failure::Failure,
};

/// The scores of the models, in the order of the contenders.
pub enum Judgement {
    /// BLEU and chrF with everything that is printed beside them.
    Translations(Report),
    /// The scores of models for another task.
    Others(Vec<Scored>),
}

/// Lets every model do its task on the data by which all are judged.
///
/// # Errors
/// Models or data that are wrong.
pub fn judge(
    contenders: &[Contender],
    split: Split,
    options: &Compare,
) -> Result<Judgement, Failure> {
    let runs = contenders.iter().map(|contender| Named {
        name: contender.name.clone(),
        path: folder(options, contender),
    });
    let part = match split {
        Split::Test => Part::Test,
        Split::Train | Split::Valid => Part::Valid,
    };
    let recipe = &contenders[0].recipe;
    let validation = &recipe.validation;
    let asked = Evaluate {
        tokenizer: validation.tokenizer,
        lowercase: validation.lowercase,
        resamples: options.resamples,
        lengths: options.lengths.clone(),
        quiet: options.quiet,
        compute: options.compute.clone(),
        ..Evaluate::of_runs(runs.collect(), part)
    };
    Ok(match Registry::default().serves::<Translation>(recipe) {
        true => Judgement::Translations(evaluate::report(&asked)?),
        false => Judgement::Others(evaluate::scores(&asked)?),
    })
}

impl Judgement {
    /// BLEU by source length.
    pub fn by_length(&self) -> Option<&LengthTable> {
        match self {
            Self::Translations(report) => report.by_length.first(),
            Self::Others(_) => None,
        }
    }

    /// The first model against each other one on the same resamples.
    pub fn comparisons(&self) -> Vec<&Comparison> {
        match self {
            Self::Translations(report) => report.comparisons.iter().collect(),
            Self::Others(models) => models.iter().flat_map(|one| &one.comparisons).collect(),
        }
    }

    /// The first model against each other one, by its place, of models that get each example right or wrong.
    pub fn paired(&self) -> Vec<(usize, PairedShares)> {
        let Self::Others(models) = self else {
            return vec![];
        };
        let Some((first, others)) = models.split_first() else {
            return vec![];
        };
        let paired = (1..).zip(others).filter_map(|(place, model)| {
            let (first, right) = first.right.as_ref().zip(model.right.as_ref())?;
            Some((place, PairedShares::of(first, right)))
        });
        paired.collect()
    }

    /// The names of the scores of models for another task; not every model has all: one without attention points nowhere.
    pub fn columns(&self) -> Vec<&'static str> {
        let mut names = vec![];
        if let Self::Others(models) = self {
            for (name, _) in models.iter().flat_map(|model| &model.columns) {
                if !names.contains(name) {
                    names.push(*name);
                }
            }
        }
        names
    }
}
