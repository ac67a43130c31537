//! The finished models, scored as `regard evaluate` scores them.

use regard_evaluate::{Accuracy, LengthTable};
use regard_train::{Registry, compare::Contender, recipe::Split, tasks::Classification};

use super::folder;
use crate::{
    arguments::{Compare, Evaluate, Named, Part},
    commands::evaluate::{self, Report},
    failure::Failure,
};

/// The scores of the models, in the order of the contenders.
pub enum Judgement {
    /// BLEU and chrF with everything that is printed beside them.
    Translations(Report),
    /// Accuracies.
    Labels(Vec<Accuracy>),
}

/// Lets every model translate (or label) the text by which all are judged.
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
        ..Evaluate::of_runs(runs.collect(), part)
    };
    Ok(match Registry::default().serves::<Classification>(recipe) {
        true => Judgement::Labels(evaluate::accuracies(&asked)?),
        false => Judgement::Translations(evaluate::report(&asked)?),
    })
}

impl Judgement {
    /// BLEU by source length.
    pub fn by_length(&self) -> Option<&LengthTable> {
        match self {
            Self::Translations(report) => report.by_length.first(),
            Self::Labels(_) => None,
        }
    }
}
