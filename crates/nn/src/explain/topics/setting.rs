//! Numbers that a topic's example is computed with.

use serde::Serialize;

use super::{Lesson, Topic};
use crate::{AttentionError, explain::ExplainError};

/// One number of a topic's example.
#[derive(Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// The value that it has unless another is given.
    pub default: usize,
    /// The values that it can have, smallest first.
    pub values: &'static [usize],
}

pub(super) const fn setting(
    name: &'static str,
    default: usize,
    values: &'static [usize],
) -> Setting {
    Setting {
        name,
        default,
        values,
    }
}

/// `N` numbers from `first` on, `step` apart.
pub(super) const fn range<const N: usize>(first: usize, step: usize) -> [usize; N] {
    let mut numbers = [first; N];
    let mut i = 1;
    while i < N {
        numbers[i] = numbers[i - 1] + step;
        i += 1;
    }
    numbers
}

/// Bases of wavelengths: the articles' 10000, Llama 3's 500000, and smaller ones, where slow dimensions visibly turn.
pub(super) static BASES: [usize; 6] = [2, 10, 100, 1_000, 10_000, 500_000];

impl Topic {
    /// The numbers of the example: those given, and the defaults of the others.
    pub(super) fn numbers(
        &self,
        given: &[(&'static str, usize)],
    ) -> Result<Vec<(&'static str, usize)>, ExplainError> {
        for &(name, value) in given {
            let Some(setting) = self.settings.iter().find(|setting| setting.name == name) else {
                return Err(ExplainError::NotTaken {
                    parameter: name,
                    mechanism: self.name.to_owned(),
                    taken: self.settings.iter().map(|setting| setting.name).collect(),
                });
            };
            if !setting.values.contains(&value) {
                let values: Vec<String> = setting.values.iter().map(usize::to_string).collect();
                let advice = "choose one of these";
                return Err(AttentionError::value(name, value, values.join(", "), advice).into());
            }
        }
        let number = |setting: &Setting| {
            let given = given.iter().find(|(name, _)| *name == setting.name);
            (setting.name, given.map_or(setting.default, |given| given.1))
        };
        Ok(self.settings.iter().map(number).collect())
    }
}

impl Lesson {
    /// The number of this setting, which the topic has.
    pub(super) fn number(&self, name: &str) -> usize {
        let found = self.numbers.iter().find(|(known, _)| *known == name);
        found.map_or(0, |found| found.1)
    }
}
