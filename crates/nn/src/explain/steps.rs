//! The steps as a person would write them down, with the numbers that the modules reported.

use super::{
    Example, ExplainError, Explanation, Normalizer, Quantity, Scorer, Step, masks, modules,
    table::{Names, Table, number},
};
use crate::{mask::Locality, record::Record};

type Matrix = Vec<Vec<f64>>;

/// The size of a usual head.
const HEAD: f64 = 64.0;

/// The most pairs of a query and a key whose weighted values are listed one by one.
const MOST_PAIRS: usize = 32;

/// The steps from the given vectors to the context, as far as they have been made.
pub(super) struct Steps<'a> {
    pub(super) example: &'a Example,
    pub(super) names: &'a Names,
    pub(super) record: &'a Record,
    pub(super) steps: Vec<Step>,
}

impl Steps<'_> {
    fn push(&mut self, quantity: Quantity, name: &str, formula: impl Into<String>, table: Table) {
        self.steps.push(Step {
            name: name.to_owned(),
            formula: formula.into(),
            quantity,
            table,
            begins_row: false,
        });
    }

    /// A number for each query and key.
    fn pairs(&mut self, quantity: Quantity, name: &str, formula: impl Into<String>, rows: &Matrix) {
        self.push(quantity, name, formula, self.names.pairs(rows));
    }

    /// The same, with the numbers reported under the name of the step.
    fn reported(&mut self, quantity: Quantity, name: &str, formula: impl Into<String>) {
        self.pairs(quantity, name, formula, &self.record.rows(name));
    }

    /// A vector for each query; its entries are named `entry` and a number.
    fn by_query(&mut self, name: &str, formula: impl Into<String>, entry: &str, rows: &Matrix) {
        let table = Table::vectors(entry, &self.names.queries, rows);
        self.push(Quantity::Vectors, name, formula, table);
    }

    /// A vector for each key.
    fn by_key(&mut self, name: &str, formula: impl Into<String>, rows: &Matrix) {
        let table = Table::vectors("", &self.names.keys, rows);
        self.push(Quantity::Vectors, name, formula, table);
    }

    /// A vector for each query and key.
    fn by_pair(&mut self, name: &str, formula: &str, rows: &Matrix) {
        let table = Table::vectors("", &self.names.each_pair(), rows);
        self.push(Quantity::Vectors, name, formula, table);
    }

    /// A number for each of `names`.
    fn column(&mut self, name: &str, formula: &str, column: &str, names: &[String], of: &[f64]) {
        let table = Table::column(column, names, of);
        self.push(Quantity::Vectors, name, formula, table);
    }

    /// The given vectors.
    pub(super) fn given(&mut self, values: &Matrix) {
        let (example, names) = (self.example, self.names);
        let shared = example.values.is_none();
        if shared && example.queries == example.keys && names.queries == names.keys {
            let formula = "each is a query, a key and a value: q = k = v";
            return self.by_key("vectors", formula, &example.keys);
        }
        let formula = match example.scorer {
            Scorer::GaussianWindow => {
                "q = (â, b̂, κ̂), as given: logarithms of heights, sharpnesses and steps"
            }
            _ => "q, as given",
        };
        self.by_query("queries", formula, "", &example.queries);
        let formula = match shared {
            true => "k, as given; they are the values too, v = k",
            false => "k, as given",
        };
        self.by_key("keys", formula, &example.keys);
        if !shared {
            self.by_key("values", "v, as given", values);
        }
    }

    /// Scores, and the steps to them.
    pub(super) fn scores(&mut self) {
        const SCORES: Quantity = Quantity::Scores;
        let (example, names, record) = (self.example, self.names, self.record);
        let (queries, keys) = (&example.queries, &example.keys);
        let parameters = &example.parameters;
        let size = queries[0].len();
        let projected = record.rows("keys");
        let w = identity("W", &parameters.query_weight);
        match example.scorer {
            Scorer::Dot => self.reported(SCORES, "scores", "s_i = qᵀ k_i"),
            Scorer::ScaledDot => {
                let products = modules::products(queries, keys);
                self.pairs(SCORES, "scores", "s_i = qᵀ k_i", &products);
                let formula = match parameters.scale {
                    None => format!("s_i ← s_i / √d, d = {size}"),
                    Some(scale) => format!("s_i ← {} · s_i", number(scale)),
                };
                self.pairs(SCORES, "scaled scores", formula, &record.rows("scores"));
            }
            Scorer::General => {
                self.by_key("projected keys", format!("W k_i{w}"), &projected);
                self.reported(SCORES, "scores", "s_i = qᵀ (W k_i)");
            }
            Scorer::ScaledGeneral => {
                self.by_key("projected keys", format!("W k_i{w}"), &projected);
                let products = modules::products(queries, &projected);
                self.pairs(SCORES, "scores", "s_i = qᵀ (W k_i)", &products);
                let formula = format!("s_i ← g · s_i, g = {}", or_1(parameters.gain));
                self.pairs(SCORES, "scaled scores", formula, &record.rows("scores"));
            }
            Scorer::Additive | Scorer::WeightNormAdditive => {
                let of_queries = record.rows("projected queries");
                self.by_query("projected queries", format!("W q{w}"), "", &of_queries);
                let u = identity("U", &parameters.key_weight);
                let b = parameters.bias.as_ref().map_or("", |_| " + b");
                self.by_key("projected keys", format!("U k_i{b}{u}"), &projected);
                let formula = "h_i = tanh(W q + U k_i + b)";
                self.by_pair("hidden", formula, &record.rows("hidden"));
                let formula = match example.scorer {
                    Scorer::Additive => "s_i = vᵀ h_i".to_owned(),
                    _ => {
                        let ones = || vec![1.0; of_queries[0].len()];
                        let vector = parameters.vector.clone().unwrap_or_else(ones);
                        let length = vector.iter().map(|v| v * v).sum::<f64>().sqrt();
                        let gain = or_1(parameters.gain);
                        format!("s_i = g v/‖v‖ · h_i, g = {gain}, ‖v‖ = {}", number(length))
                    }
                };
                self.reported(SCORES, "scores", formula);
            }
            Scorer::Cosine => {
                let products = modules::products(queries, keys);
                self.pairs(SCORES, "products", "qᵀ k_i", &products);
                let lengths = record.rows("lengths").concat();
                let (of_keys, of_queries) = lengths.split_at(keys.len().min(lengths.len()));
                self.column("query lengths", "‖q‖", "‖q‖", &names.queries, of_queries);
                self.column("key lengths", "‖k_i‖", "‖k‖", &names.keys, of_keys);
                let beta = or_1(parameters.beta);
                let formula = format!("s_i = β · qᵀ k_i / (‖q‖ ‖k_i‖), β = {beta}");
                self.reported(SCORES, "scores", formula);
            }
            Scorer::Distance => {
                let square = |query: &Vec<f64>, key: &Vec<f64>| {
                    let differences = query.iter().zip(key).map(|(q, k)| q - k);
                    differences.map(|difference| difference.powi(2)).sum()
                };
                let squares = queries
                    .iter()
                    .map(|query| keys.iter().map(|key| square(query, key)).collect());
                let squares = squares.collect();
                self.pairs(SCORES, "squared distances", "‖q - k_i‖²", &squares);
                let scale = parameters.scale.unwrap_or((size as f64).sqrt().recip());
                let formula = format!("s_i = -scale · ‖q - k_i‖², scale = {}", number(scale));
                self.reported(SCORES, "scores", formula);
            }
            Scorer::Location => self.reported(SCORES, "scores", format!("s_i = (W q)_i{w}")),
            Scorer::GaussianWindow => {
                for (name, formula, entry) in [
                    ("heights", "a = e^{â}", "a"),
                    ("sharpnesses", "b = e^{b̂}", "b"),
                    ("centres", "κ_t = κ_{t-1} + e^{κ̂}, starting from 0", "κ"),
                ] {
                    self.by_query(name, formula, entry, &record.rows(name));
                }
                let formula = "φ_i = Σ_m a_m exp(-b_m (κ_m - i)²), positions i counted from 0";
                self.pairs(SCORES, "window", formula, &record.rows("scores"));
            }
        }
        if let Some(softcap) = parameters.softcap {
            let formula = format!("s ← c · tanh(s / c), c = {}", number(softcap));
            self.reported(SCORES, "capped scores", formula);
        }
    }

    /// What is seen: by the mask as text, `words`, and in local-p near a position predicted among `length`
    /// keys.
    pub(super) fn mask(&mut self, words: &str, length: usize, explanation: &Explanation) {
        if let Locality::Predictive { .. } = self.example.locality {
            let positions = self.record.rows("predicted positions").concat();
            let formula =
                format!("p_t = S · σ(v_pᵀ tanh(W_p q)), S = {length} keys; positions count from 0");
            let names = &self.names.queries;
            self.column("predicted position", &formula, "p_t", names, &positions);
        }
        if self.record.get("seen").next().is_none() {
            return;
        }
        let masked = explanation.scores.iter().zip(&explanation.seen);
        let masked = masked.map(|(scores, seen)| {
            let cells = scores.iter().zip(seen);
            cells.map(|(&score, &seen)| seen.then_some(score)).collect()
        });
        let table = self.names.table(masked.collect());
        let formula = format!("the mask is {words}; · is hidden");
        self.push(Quantity::Between, "masked scores", formula, table);
    }

    /// What a mechanism's own mask leaves to be computed, here and for longer texts.
    pub(super) fn cost(&mut self) -> Result<(), ExplainError> {
        let Some(text) = self.example.mask.as_deref() else {
            return Ok(());
        };
        if self.example.mechanism.mask != Some(text) {
            return Ok(());
        }
        let mask = masks::Expression::parse(text)?;
        let mut names = Vec::new();
        let mut costs = Vec::new();
        for length in [self.names.keys.len(), 128, 1024] {
            let seen = mask.table(length, length)?;
            let pairs = seen.iter().flatten().filter(|&&seen| seen).count() as f64;
            let share = 100.0 * pairs / (length * length) as f64;
            names.push(format!("{length} tokens"));
            costs.push(vec![pairs, share, 4.0 * HEAD * pairs, 4.0 * pairs]);
        }
        let formula = format!(
            "visible pairs; FLOPs 2 (d + d_v) a pair, d = d_v = {HEAD}; bytes: 4 a weight, if weights are stored"
        );
        let columns = ["pairs", "% of all", "FLOPs", "bytes"];
        let table = Table::of(&names, &columns, &costs);
        self.push(Quantity::Vectors, "cost", formula, table);
        Ok(())
    }

    /// Weights, and the steps to them.
    pub(super) fn weights(&mut self, explanation: &Explanation) {
        const WEIGHTS: Quantity = Quantity::Weights;
        let (example, names, record) = (self.example, self.names, self.record);
        let parameters = &example.parameters;
        let mut weights = record.rows("normalized");
        let mut formula = example.normalizer.formula().to_owned();
        // The weight that goes to no key: the name of its column, and the sum of a row that includes it.
        let mut rest = None;
        match example.normalizer {
            Normalizer::Softmax => {
                self.reported(Quantity::Between, "exponentials", "e^{s_i - max s}");
            }
            Normalizer::Sink => {
                self.reported(Quantity::Between, "exponentials", "e^{s_i - max(s, sink)}");
                let sink = number(parameters.sink.unwrap_or(0.0));
                formula.push_str(&format!(", sink = {sink}"));
                rest = Some(("sink", 1.0));
            }
            Normalizer::Sparsemax => {
                let formula = "τ such that Σ_i max(s_i - τ, 0) = 1";
                let thresholds = &explanation.thresholds;
                self.column("threshold", formula, "τ", &names.queries, thresholds);
            }
            Normalizer::Entmax15 => {
                let formula = "τ such that Σ_i max(s_i/2 - τ, 0)² = 1";
                let thresholds = explanation.thresholds.iter().map(|twice| twice / 2.0);
                let thresholds: Vec<f64> = thresholds.collect();
                self.column("threshold", formula, "τ", &names.queries, &thresholds);
            }
            Normalizer::Sigmoid => {
                let keys = names.keys.len();
                let hides = record.get("seen").next().is_some();
                let bias = match parameters.sigmoid_bias {
                    Some(bias) => number(bias),
                    None if hides => "-ln(keys that the query sees)".to_owned(),
                    None => format!("-ln({keys} keys) = {}", number(-(keys as f64).ln())),
                };
                formula.push_str(&format!(", b = {bias}"));
            }
            Normalizer::Hardmax => {}
            Normalizer::HardSample => {
                self.pairs(WEIGHTS, "probabilities", "π = softmax(s)", &weights);
                weights = record.rows("drawn");
                let draw = number(parameters.draw.unwrap_or(0.5));
                formula =
                    format!("α = one-hot(i), i the first with π_1 + .. + π_i > u, u = {draw}");
            }
            Normalizer::Monotonic => {
                self.reported(WEIGHTS, "stopping probabilities", "p_i = σ(s_i)");
                formula = "α_i = p_i r_i, r_i = (1 - p_{i-1}) r_{i-1} + α_{t-1,i}; r_i: it comes to key i, none: it \
                           passes all keys"
                    .to_owned();
                let start = parameters.previous.as_ref();
                rest = Some(("none", start.map_or(1.0, |start| start.iter().sum())));
            }
            Normalizer::Addressing => {
                self.reported(WEIGHTS, "content", "w_c = softmax(s)");
                let gate = or_1(parameters.gate);
                let mixed = format!("w_g = g w_c + (1 - g) w_{{t-1}}, g = {gate}");
                self.reported(WEIGHTS, "interpolated", mixed);
                self.reported(
                    WEIGHTS,
                    "shifted",
                    "w̃_i = Σ_j w_g(j) shift(i - j mod N), over the N seen keys",
                );
                let sharpening = or_1(parameters.sharpening);
                formula = format!("α_i = w̃_i^γ / Σ_j w̃_j^γ, γ = {sharpening}");
            }
            Normalizer::Identity => {
                if example.scorer == Scorer::GaussianWindow && parameters.softcap.is_none() {
                    formula = "α_i = φ_i".to_owned();
                }
            }
        }
        let mut table = names.pairs(&weights);
        if let Some((column, sum)) = rest {
            table.columns.push(column.to_owned());
            for (row, weights) in table.rows.iter_mut().zip(&weights) {
                row.cells.push(Some(sum - weights.iter().sum::<f64>()));
            }
        }
        self.push(WEIGHTS, "weights", formula, table);
        if let Locality::Predictive { half_width } = example.locality {
            let deviation = number(half_width as f64 / 2.0);
            let formula = format!("exp(-(i - p_t)² / 2σ²), σ = D/2 = {deviation}");
            self.reported(WEIGHTS, "Gaussian", formula);
            let formula = "α_i ← α_i · exp(-(i - p_t)² / 2σ²), without normalising again";
            self.pairs(WEIGHTS, "weights near p_t", formula, &explanation.weights);
        }
    }

    /// The weighted values and the context.
    pub(super) fn context(&mut self, values: &Matrix, explanation: &Explanation) {
        let weighted = explanation.weights.iter().flat_map(|weights| {
            let products = weights.iter().zip(values);
            products.map(|(weight, value)| value.iter().map(|v| weight * v).collect())
        });
        let weighted: Matrix = weighted.collect();
        if weighted.len() <= MOST_PAIRS {
            self.by_pair("weighted values", "α_i v_i", &weighted);
        }
        self.by_query("context", "c = Σ_i α_i v_i", "", &explanation.context);
    }
}

/// The name of a matrix in a formula where none is given.
fn identity(name: &str, weight: &Option<Matrix>) -> String {
    match weight {
        None => format!(" ({name} = identity, as none is given)"),
        Some(_) => String::new(),
    }
}

fn or_1(factor: Option<f64>) -> String {
    number(factor.unwrap_or(1.0))
}
