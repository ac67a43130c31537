//! Configurations whose type is chosen at run time.

use std::{any::Any, fmt::Debug};

use crate::{
    check::Check,
    config::{Config, Key},
    error::ConfigError,
    source::Source,
};

/// Any [`Config`], behind an object-safe trait.
pub trait AnyConfig: Any + Debug + Send + Sync {
    /// Its keys, in order.
    fn keys(&self) -> &'static [Key];

    /// Its values.
    ///
    /// # Errors
    /// A value that TOML cannot hold.
    fn values(&self) -> Result<toml::Table, toml::ser::Error>;

    /// As [`Config::check`].
    fn check(&self, check: &mut Check);

    /// A copy.
    fn boxed(&self) -> Box<dyn AnyConfig>;

    /// Whether the other is of the same type and equal.
    fn equals(&self, other: &dyn AnyConfig) -> bool;
}

impl<C: Config> AnyConfig for C {
    fn keys(&self) -> &'static [Key] {
        C::KEYS
    }

    fn values(&self) -> Result<toml::Table, toml::ser::Error> {
        toml::Table::try_from(self)
    }

    fn check(&self, check: &mut Check) {
        Config::check(self, check);
    }

    fn boxed(&self) -> Box<dyn AnyConfig> {
        Box::new(self.clone())
    }

    fn equals(&self, other: &dyn AnyConfig) -> bool {
        other.downcast_ref::<C>() == Some(self)
    }
}

impl dyn AnyConfig {
    /// The configuration, if it is a `C`.
    pub fn downcast_ref<C: Config>(&self) -> Option<&C> {
        (self as &dyn Any).downcast_ref()
    }

    /// The same as `downcast_ref`, for changing it.
    pub fn downcast_mut<C: Config>(&mut self) -> Option<&mut C> {
        (self as &mut dyn Any).downcast_mut()
    }
}

/// Reads a configuration from the section with this name.
pub type ReadSection = fn(&mut Source<'_>, &'static str) -> Result<Box<dyn AnyConfig>, ConfigError>;

/// A name that the key `kind` of a section may have, and the configuration that belongs to it. Such a list is open: a program
/// can add names of its own.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// The name.
    pub name: &'static str,
    /// The doc comment of the configuration, line by line.
    pub about: &'static [&'static str],
    /// The keys that belong to it.
    pub keys: &'static [Key],
    /// The configuration with all defaults.
    pub default: fn() -> Box<dyn AnyConfig>,
    /// Reads the configuration from a section.
    pub read: ReadSection,
    /// Reads the configuration from JSON, as a file stores it.
    pub from_json: fn(serde_json::Value) -> Result<Box<dyn AnyConfig>, serde_json::Error>,
}

impl Kind {
    /// The configuration `C` under this name.
    pub fn of<C: Config>(name: &'static str) -> Self {
        Self {
            name,
            about: C::ABOUT,
            keys: C::KEYS,
            default: || Box::new(C::default()),
            read: |source, section| Ok(Box::new(source.section::<C>(section)?)),
            from_json: |json| Ok(Box::new(serde_json::from_value::<C>(json)?)),
        }
    }
}
