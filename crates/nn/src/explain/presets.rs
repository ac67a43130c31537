//! Ready examples: the worked numbers of the formula sheet.
//!
//! ```
//! use regard_nn::explain::{explain, presets};
//!
//! let words = explain(&presets::find("words")?.example())?;
//! let shown = |score: f64| format!("{score:.4}");
//! assert_eq!(shown(words.scores[0][1]), "0.7557"); // hello, hi
//! assert_eq!(shown(words.scores[0][2]), "0.4461"); // hello, tomato
//! assert_eq!(shown(words.scores[1][2]), "0.4341"); // hi, tomato
//! # Ok::<(), regard_nn::explain::ExplainError>(())
//! ```

use serde::Serialize;

use super::{
    Example, ExplainError,
    catalogue::{MECHANISMS, Mechanism},
};

/// A ready example.
#[derive(Debug, PartialEq, Serialize)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// What it shows.
    pub summary: &'static str,
    #[serde(skip)]
    mechanism: &'static Mechanism,
    #[serde(skip)]
    queries: &'static [&'static [f64]],
    #[serde(skip)]
    keys: &'static [&'static [f64]],
    /// The keys themselves if there are none.
    #[serde(skip)]
    values: &'static [&'static [f64]],
    #[serde(skip)]
    query_names: &'static [&'static str],
    #[serde(skip)]
    key_names: &'static [&'static str],
}

const WORDS: [&[f64]; 3] = [
    &[0.71, 0.14, 0.51],
    &[0.69, 0.15, 0.48],
    &[0.16, 0.59, 0.49],
];

/// All presets.
pub static PRESETS: [Preset; 4] = [
    Preset {
        name: "words",
        summary: "word vectors: hello is nearer to hi than to tomato",
        mechanism: &MECHANISMS[0],
        queries: &WORDS,
        keys: &WORDS,
        values: &[],
        query_names: &["hello", "hi", "tomato"],
        key_names: &["hello", "hi", "tomato"],
    },
    Preset {
        name: "lookup",
        summary: "a query that finds one of four keys: weights near 0 1 0 0",
        mechanism: &MECHANISMS[0],
        queries: &[&[10.0, 5.0, 10.0]],
        keys: &[
            &[0.0, 1.0, 1.0],
            &[5.0, 0.0, 1.0],
            &[1.0, 1.0, 0.0],
            &[0.0, 5.0, 1.0],
        ],
        values: &[],
        query_names: &[],
        key_names: &[],
    },
    Preset {
        name: "softmax",
        summary: "scores 2, 1 and 0.1 as weights",
        mechanism: &MECHANISMS[0],
        queries: &[&[1.0]],
        keys: &[&[2.0], &[1.0], &[0.1]],
        values: &[],
        query_names: &[],
        key_names: &[],
    },
    Preset {
        name: "awareness",
        summary: "Awareness is power, in five steps: query and keys, scores 3 1 2, exponentials, weights, the sum of the values 10.1",
        mechanism: &MECHANISMS[0],
        queries: &[&[1.0, 1.0]],
        keys: &[&[2.0, 1.0], &[0.0, 1.0], &[1.0, 1.0]],
        values: &[&[12.0], &[2.0], &[8.0]],
        query_names: &["power"],
        key_names: &["Awareness", "is", "power"],
    },
];

/// The preset of this name.
///
/// # Errors
/// A name that is not known.
pub fn find(name: &str) -> Result<&'static Preset, ExplainError> {
    PRESETS
        .iter()
        .find(|preset| preset.name == name)
        .ok_or_else(|| {
            ExplainError::unknown("preset", name, PRESETS.iter().map(|preset| preset.name))
        })
}

impl Preset {
    /// The example itself, to compute or to change.
    pub fn example(&self) -> Example {
        let rows = |rows: &[&[f64]]| rows.iter().map(|row| row.to_vec()).collect();
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Example {
            queries: rows(self.queries),
            keys: rows(self.keys),
            values: (!self.values.is_empty()).then(|| rows(self.values)),
            query_names: names(self.query_names),
            key_names: names(self.key_names),
            ..Example::of(self.mechanism)
        }
    }
}
