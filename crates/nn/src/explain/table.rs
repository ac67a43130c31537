//! Steps as tables: names on both sides, numbers inside.

use serde::Serialize;

use super::{Example, Scorer};

/// A worked example: every step, and what came out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The mechanism's name.
    pub mechanism: String,
    /// The whole of it in one line.
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
    /// Shares of attention, `[queries, keys]`; a column behind those of the keys is what no key gets.
    Weights,
    /// Numbers between two of the former, `[queries, keys]`: masked scores, exponentials.
    Between,
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
}

impl Step {
    pub(super) fn new(name: impl Into<String>, formula: impl Into<String>, table: Table) -> Self {
        Self {
            name: name.into(),
            formula: formula.into(),
            quantity: Quantity::Vectors,
            table,
        }
    }

    pub(super) fn of(self, quantity: Quantity) -> Self {
        Self { quantity, ..self }
    }
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
    /// Vectors with names, their entries counted from 1 behind `entry`.
    pub(super) fn vectors(entry: &str, rows: impl IntoIterator<Item = (String, Vec<f64>)>) -> Self {
        let rows: Vec<Row> = rows
            .into_iter()
            .map(|(name, cells)| Row {
                name,
                cells: cells.into_iter().map(Some).collect(),
            })
            .collect();
        let width = rows.first().map_or(0, |row| row.cells.len());
        Self {
            columns: (1..=width).map(|i| format!("{entry}{i}")).collect(),
            rows,
        }
    }

    /// One column of numbers.
    pub(super) fn column(name: &str, rows: impl IntoIterator<Item = (String, f64)>) -> Self {
        let rows = rows.into_iter().map(|(name, value)| (name, vec![value]));
        Self {
            columns: vec![name.to_owned()],
            ..Self::vectors("", rows)
        }
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

    /// The steps before the first: what was given.
    pub(super) fn given(&self, example: &Example, values: &[Vec<f64>]) -> Vec<Step> {
        let named = |names: &[String], rows: &[Vec<f64>]| {
            Table::vectors("", names.iter().cloned().zip(rows.iter().cloned()))
        };
        let shared = example.values.is_none();
        let mut steps = Vec::new();
        if example.queries == example.keys && self.queries == self.keys && shared {
            let given = named(&self.keys, &example.keys);
            return vec![Step::new(
                "vectors",
                "each is a query, a key and a value: q = k = v",
                given,
            )];
        }
        let formula = match example.scorer {
            Scorer::GaussianWindow => {
                "q = (â, b̂, κ̂), as given: logarithms of heights, sharpnesses and steps"
            }
            _ => "q, as given",
        };
        steps.push(Step::new(
            "queries",
            formula,
            named(&self.queries, &example.queries),
        ));
        let formula = match shared {
            true => "k, as given; they are the values too, v = k",
            false => "k, as given",
        };
        steps.push(Step::new("keys", formula, named(&self.keys, &example.keys)));
        if !shared {
            steps.push(Step::new(
                "values",
                "v, as given",
                named(&self.keys, values),
            ));
        }
        steps
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
        self.table(
            rows.iter()
                .map(|row| row.iter().copied().map(Some).collect())
                .collect(),
        )
    }

    /// The same with one more column.
    pub(super) fn pairs_and(&self, rows: &[Vec<f64>], column: &str, numbers: &[f64]) -> Table {
        let mut table = self.pairs(rows);
        table.columns.push(column.to_owned());
        for (row, &number) in table.rows.iter_mut().zip(numbers) {
            row.cells.push(Some(number));
        }
        table
    }

    /// A table with one vector a query.
    pub(super) fn by_query(&self, entry: &str, rows: &[Vec<f64>]) -> Table {
        Table::vectors(
            entry,
            self.queries.iter().cloned().zip(rows.iter().cloned()),
        )
    }

    /// A table with one number a query.
    pub(super) fn each_query(&self, name: &str, values: &[f64]) -> Table {
        Table::column(
            name,
            self.queries.iter().cloned().zip(values.iter().copied()),
        )
    }

    /// A query and a key; the query goes without saying where there is one.
    pub(super) fn pair(&self, query: usize, key: usize) -> String {
        match self.queries.len() {
            1 => self.keys[key].clone(),
            _ => format!("{} → {}", self.queries[query], self.keys[key]),
        }
    }
}

/// A number in a formula: up to six decimals.
pub(super) fn number(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
