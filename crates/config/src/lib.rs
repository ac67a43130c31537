//! Configuration structs that document themselves.
//!
//! [`config!`] declares a struct once: keys, defaults, ranges and doc comments. From it follow
//! - reading TOML ([`Source`]), with an error that has line, column and the nearest known name;
//! - writing TOML with every key explained ([`commented()`]);
//! - checking ranges and the conditions between keys ([`Config::check`]).
//!
//! [`kinds!`] declares a choice between such structs, made by the key `kind` of a section. [`choice!`] declares a choice that is
//! the value of a key: `"name"`, or `{ kind = "name", .. }` with the keys that belong to the name. Where programs can add
//! alternatives, as with architectures, a [`Kind`] describes one alternative and an [`AnyConfig`] holds its struct.
//!
//! ```
//! use regard_config::{Keys, SIZE, Section, Source, config};
//!
//! config! {
//!     /// A tower.
//!     pub struct Tower {
//!         /// Floors.
//!         floors: usize = 3, in SIZE;
//!         /// Whether there is a bell.
//!         bell: bool = false;
//!     }
//! }
//!
//! let layout = [Section { name: "tower", keys: Keys::of::<Tower>() }];
//! let mut source = Source::read("[tower]\nfloors = 7", "town.toml", &[], &layout)?;
//! assert_eq!(source.section::<Tower>("tower")?, Tower { floors: 7, bell: false });
//!
//! let wrong = |text| {
//!     let mut source = Source::read(text, "town.toml", &[], &layout)?;
//!     let tower: Tower = source.section("tower")?;
//!     source.check(|check| check.table("tower", &tower))
//! };
//! let message = wrong("[tower]\nflors = 7").unwrap_err().to_string();
//! assert_eq!(message, "town.toml:2:1: unknown key tower.flors; did you mean floors?");
//! let message = wrong("[tower]\nfloors = 0").unwrap_err().to_string();
//! assert_eq!(message, "town.toml:2:1: tower.floors: found 0; expected 1 to 1048576");
//! # Ok::<(), regard_config::ConfigError>(())
//! ```
#![deny(missing_docs)]

mod check;
#[doc(hidden)]
pub mod choice;
mod commented;
mod config;
mod error;
mod kind;
mod macros;
mod nearest;
mod overrides;
mod source;

pub use check::{
    Bounded, COUNT, Check, FRACTION, LARGEST_SIZE, LAYERS, NOT_NEGATIVE, POSITIVE, PROBABILITY,
    Problem, Range, SIZE,
};
pub use choice::{Alternative, Choice, ChoiceKey};
pub use commented::commented;
pub use config::{Config, Key, Table};
pub use error::{ConfigError, Place};
pub use kind::{AnyConfig, Kind, ReadSection};
pub use nearest::nearest;
pub use source::{Keys, Section, Source, read_text};

/// The example of the README runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[doc(hidden)]
pub use macros::first;
