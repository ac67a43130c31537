//! The description of a configuration: its keys with their doc comments, defaults and ranges.

use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};

use crate::{check::Check, choice::Alternative};

/// A key of a configuration.
#[derive(Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The doc comment, line by line, as written (with its leading space).
    pub documentation: &'static [&'static str],
    /// For a key that is off by default: a value to show, as TOML.
    pub example: Option<&'static str>,
    /// The keys of the table that this key holds.
    pub table: Option<&'static [Key]>,
    /// That table with its defaults.
    pub defaults: fn() -> Option<toml::Table>,
    /// The alternatives, where this key holds a choice.
    pub choice: Option<&'static [Alternative]>,
}

/// A documented configuration: a struct that [`config!`](crate::config!) declares, whose keys are its fields.
pub trait Config:
    Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The doc comment, line by line, as written (with its leading space).
    const ABOUT: &'static [&'static str];

    /// Its keys, in order.
    const KEYS: &'static [Key];

    /// Checks every range, and the conditions between keys.
    fn check(&self, check: &mut Check);
}

/// The type of a key that holds a table: a [`Config`] or an `Option` of it.
pub trait Table {
    /// The keys inside.
    const KEYS: &'static [Key];

    /// The table with its defaults.
    fn defaults() -> Option<toml::Table>;

    /// Checks the table that stands at key `name`.
    fn check(&self, name: &str, check: &mut Check);
}

impl<C: Config> Table for C {
    const KEYS: &'static [Key] = C::KEYS;

    fn defaults() -> Option<toml::Table> {
        toml::Table::try_from(Self::default()).ok()
    }

    fn check(&self, name: &str, check: &mut Check) {
        check.table(name, self);
    }
}

impl<C: Config> Table for Option<C> {
    const KEYS: &'static [Key] = C::KEYS;

    fn defaults() -> Option<toml::Table> {
        C::defaults()
    }

    fn check(&self, name: &str, check: &mut Check) {
        if let Some(config) = self {
            check.table(name, config);
        }
    }
}

impl Check {
    /// Checks a configuration that stands at key `name`.
    pub fn table(&mut self, name: &str, config: &impl Config) {
        self.within(name, |check| Config::check(config, check));
    }
}
