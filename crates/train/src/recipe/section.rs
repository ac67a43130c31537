//! One place for a section's keys, defaults and explanations.
//!
//! `section!` declares a struct whose fields carry their default, and keeps the doc comments as
//! data: they are the comments of the printed recipe and the list that unknown keys are checked
//! against, so the three cannot drift apart.

use std::path::PathBuf;

/// A key of a section.
pub(super) struct Key {
    pub(super) name: &'static str,
    /// The doc comment, line by line, as written (with its leading space).
    pub(super) documentation: &'static [&'static str],
    /// For a key that is off by default: a value to show, as TOML.
    pub(super) example: Option<&'static str>,
    /// The keys of the table that this key holds.
    pub(super) table: Option<&'static [Key]>,
    /// That table with its defaults.
    pub(super) default_table: fn() -> Option<toml::Table>,
}

/// A type that a key may have.
pub(super) trait Field {
    /// The keys inside, if it is a table.
    const TABLE: Option<&'static [Key]> = None;
    /// The table with its defaults.
    fn default_table() -> Option<toml::Table> {
        None
    }
}

impl<T: Field> Field for Option<T> {
    const TABLE: Option<&'static [Key]> = T::TABLE;
    fn default_table() -> Option<toml::Table> {
        T::default_table()
    }
}

macro_rules! plain_fields {
    ($($type:ty),* $(,)?) => { $(impl $crate::recipe::section::Field for $type {})* };
}
plain_fields!(bool, usize, u64, f64, String, PathBuf);

/// A struct of a section: its keys are its fields.
pub(super) trait Section {
    const KEYS: &'static [Key];
}

macro_rules! section {
    (
        $(#[doc = $about:literal])*
        pub struct $name:ident {
            $(
                $(#[doc = $doc:literal])+
                $field:ident: $type:ty = $default:expr $(, example $example:literal)?;
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $(
                $(#[doc = $doc])+
                pub $field: $type,
            )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::recipe::section::Section for $name {
            const KEYS: &'static [$crate::recipe::section::Key] = &[
                $($crate::recipe::section::Key {
                    name: stringify!($field),
                    documentation: &[$($doc),+],
                    example: $crate::recipe::section::first(&[$($example)?]),
                    table: <$type as $crate::recipe::section::Field>::TABLE,
                    default_table: <$type as $crate::recipe::section::Field>::default_table,
                },)*
            ];
        }

        impl $crate::recipe::section::Field for $name {
            const TABLE: Option<&'static [$crate::recipe::section::Key]> =
                Some(<Self as $crate::recipe::section::Section>::KEYS);
            fn default_table() -> Option<toml::Table> {
                toml::Table::try_from(Self::default()).ok()
            }
        }
    };
}

pub(super) const fn first(examples: &[&'static str]) -> Option<&'static str> {
    match examples {
        [] => None,
        [first, ..] => Some(first),
    }
}

pub(super) use {plain_fields, section};
