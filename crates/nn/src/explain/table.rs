//! Steps as tables: names on both sides, numbers inside.

use serde::Serialize;

use super::Example;

/// A worked example: every step, and the results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The mechanism's name.
    pub mechanism: String,
    /// What it does, in a line.
    pub summary: String,
    /// The whole formula in one line.
    pub formula: String,
    /// Where it is from.
    pub source: String,
    /// The steps in order, from what was given to the context.
    pub steps: Vec<Step>,
    /// What the queries are called.
    pub queries: Vec<String>,
    /// What the keys are called.
    pub keys: Vec<String>,
    /// The scores before masking, `[queries][keys]`.
    pub scores: Vec<Vec<f64>>,
    /// Whether each query sees each key, `[queries][keys]`.
    pub seen: Vec<Vec<bool>>,
    /// The weights by which values were read, `[queries][keys]`.
    pub weights: Vec<Vec<f64>>,
    /// The contexts, `[queries][value size]`.
    pub context: Vec<Vec<f64>>,
    /// The Gaussians over key positions that the weights follow, `[queries][components]`; no rows where there are none.
    pub bumps: Vec<Vec<Bump>>,
    /// For each query the score at and below which weights are 0; empty where there is none.
    pub thresholds: Vec<f64>,
}

/// `height · exp(-sharpness · (centre - i)²)` over key positions `i`, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bump {
    /// Its largest value.
    pub height: f64,
    /// How fast it falls.
    pub sharpness: f64,
    /// Where it is largest.
    pub centre: f64,
}

impl Bump {
    /// Its value at a position.
    pub fn at(&self, position: f64) -> f64 {
        self.height * (-self.sharpness * (self.centre - position).powi(2)).exp()
    }
}

/// What the numbers of a step are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// Vectors, or numbers of single queries or keys.
    Vectors,
    /// How well each key fits each query, `[queries, keys]`.
    Scores,
    /// Shares of attention, `[queries, keys]`; a column after those of the keys is the share that goes to no key.
    Weights,
    /// Vectors that a picture shows as a matrix, one a row.
    Matrix,
    /// Numbers between two of these, `[queries, keys]`: masked scores, exponentials.
    Between,
}

impl Quantity {
    /// Whether the picture of a [`Lesson`](super::topics::Lesson) shows such numbers.
    pub fn is_drawn(self) -> bool {
        !matches!(self, Self::Vectors | Self::Between)
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    /// What it is called, such as `scores`.
    pub name: String,
    /// How it is computed.
    pub formula: String,
    /// What its numbers are.
    pub quantity: Quantity,
    /// The numbers.
    pub table: Table,
    /// Whether a picture begins a new row with it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub begins_row: bool,
}

/// Numbers with names on both sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table {
    /// What the columns are called.
    pub columns: Vec<String>,
    /// The rows; a cell without a number is hidden by a mask.
    pub rows: Vec<Row>,
}

/// One row of a [`Table`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// What the row is called.
    pub name: String,
    /// One cell a column.
    pub cells: Vec<Option<f64>>,
}

impl Table {
    /// Vectors with names; their entries are named `entry` and a number from 1.
    pub(super) fn vectors(entry: &str, names: &[String], rows: &[Vec<f64>]) -> Self {
        let width = rows.first().map_or(0, Vec::len);
        Self {
            columns: (1..=width).map(|i| format!("{entry}{i}")).collect(),
            rows: Row::all(names, rows),
        }
    }

    /// Numbers with names on both sides.
    pub(super) fn of(names: &[String], columns: &[&str], rows: &[Vec<f64>]) -> Self {
        Self {
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            rows: Row::all(names, rows),
        }
    }

    /// One column of numbers.
    pub(super) fn column(column: &str, names: &[String], numbers: &[f64]) -> Self {
        let rows: Vec<Vec<f64>> = numbers.iter().map(|&number| vec![number]).collect();
        Self {
            columns: vec![column.to_owned()],
            rows: Row::all(names, &rows),
        }
    }
}

impl Row {
    fn all(names: &[String], rows: &[Vec<f64>]) -> Vec<Self> {
        let row = |(name, cells): (&String, &Vec<f64>)| Self {
            name: name.clone(),
            cells: cells.iter().copied().map(Some).collect(),
        };
        names.iter().zip(rows).map(row).collect()
    }
}

/// What queries and keys are called.
pub(super) struct Names {
    pub(super) queries: Vec<String>,
    pub(super) keys: Vec<String>,
}

impl Names {
    pub(super) fn of(example: &Example) -> Self {
        let names = |given: &[String], letter: char, count: usize| match given.is_empty() {
            true => (1..=count).map(|i| format!("{letter}{i}")).collect(),
            false => given.to_vec(),
        };
        Self {
            queries: names(&example.query_names, 'q', example.queries.len()),
            keys: names(&example.key_names, 'k', example.keys.len()),
        }
    }

    /// A table of queries by keys.
    pub(super) fn table(&self, cells: Vec<Vec<Option<f64>>>) -> Table {
        let rows = self.queries.iter().cloned().zip(cells);
        Table {
            columns: self.keys.clone(),
            rows: rows.map(|(name, cells)| Row { name, cells }).collect(),
        }
    }

    /// The same where no cell is hidden.
    pub(super) fn pairs(&self, rows: &[Vec<f64>]) -> Table {
        Table {
            columns: self.keys.clone(),
            rows: Row::all(&self.queries, rows),
        }
    }

    /// Each query with each key; with one query, its name is left out.
    pub(super) fn each_pair(&self) -> Vec<String> {
        let pair = |query: &String, key: &String| match self.queries.len() {
            1 => key.clone(),
            _ => format!("{query} → {key}"),
        };
        let of = |query| self.keys.iter().map(move |key| pair(query, key));
        self.queries.iter().flat_map(of).collect()
    }
}

/// A number in a formula: up to six decimals.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
