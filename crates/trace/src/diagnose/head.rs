//! Measures of one head: `α [queries, keys]`, one row a query.
//!
//! A key counts as *visible* to a query if any head of the map gave it weight there: a mask is the
//! same for all heads, and a softmax gives every visible key some weight. In cross-attention a key that any query
//! gave weight is visible to all, so that hard and sparse weights hide nothing; in self-attention a sparse normaliser
//! in a map of one head makes keys look masked. A row without a visible key counts in no measure; a row
//! with one visible key had no choice, and counts in coverage alone. The mean weight of a key is over all rows that count: where it
//! is masked, its weight is 0.
//!
//! | measure | formula, mean over rows | source |
//! |---|---|---|
//! | entropy | `H = -Σ_j α_ij ln α_ij`, nats | Ghader & Monz 2017; Clark 2019 |
//! | uniformity | `H / ln n_i`, `n_i` visible keys: 1 is uniform | normalised entropy |
//! | sink | `α_i0`; also the key with the largest mean weight | Vig & Belinkov 2019; Xiao 2024 |
//! | diagonality | `Σ_j α_ij (1 - \|i/(Q-1) - j/(K-1)\|)` | Shim 2022, see below |
//! | previous token | `α_{i,i-1}` over `i ≥ 1` | Voita 2019; Elhage 2021 |
//! | duplicate token | `Σ_{j<i, t_j=t_i} α_ij` over tokens seen before | Wang 2023 (IOI) |
//! | coverage | `(1/K) Σ_j min(Σ_i α_ij, 1)` | Tu 2016; Wu 2016 |
//! | effective keys | `e^H` | perplexity of a row |
//! | effective span | the shortest run of keys that holds 90 % of the row | ours, after Sukhbaatar 2019 |
//! | distance | `Σ_j α_ij \|i - j\|` | Vig & Belinkov 2019 |
//! | largest weight | `max_j α_ij` | "confidence", Voita 2019 |
//!
//! Diagonality is the cumulative attention diagonality of Shim, Choi and Sung, in closed form: the
//! weight within a share `r` of the length around the diagonal, integrated over `r` from 0 to 1. Here
//! `i` and `j` are taken relative to their lengths, so that it is defined for cross attention too. A
//! uniform square map has 2/3. Rows of an unnormalised map are divided by their sums, except for coverage.
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Tokens, diagnose::heads};
//!
//! let words = Tokens::from_words("a b a");
//! #[rustfmt::skip]
//! let weights = vec![1.0, 0.0, 0.0,
//!                    1.0, 0.0, 0.0,
//!                    0.5, 0.5, 0.0];
//! let map = AttentionMap::new(Kind::SelfAttention, words.clone(), words, 1, weights)?;
//! let head = &heads(&map)[0];
//! assert_eq!(head.previous_token, Some(0.5)); // of the one row with a choice
//! assert_eq!(head.duplicate_token, Some(0.5));
//! assert_eq!(head.entropy, Some(2f64.ln()));
//! assert_eq!(head.uniformity, Some(1.0));
//! # Ok::<(), regard_trace::TraceError>(())
//! ```

use serde::Serialize;

use crate::{AttentionMap, Kind};

/// The share of a row's weight that its effective span holds.
pub const SPAN_SHARE: f64 = 0.9;

/// What one head did, see the [module page](self). A measure is `None` if no row counts in it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HeadDiagnostics {
    /// The head, counted from 0.
    pub head: usize,
    /// Rows with a choice: at least two visible keys, and a weight above 0.
    pub rows: usize,
    /// Mean entropy of a row, in nats.
    pub entropy: Option<f64>,
    /// Entropy as a share of the largest possible, 0 to 1.
    pub uniformity: Option<f64>,
    /// Mean weight of the first key over all rows with a choice; it is 0 where the key is masked.
    pub first_token: Option<f64>,
    /// The key with the largest mean weight, and that weight.
    pub top_key: Option<(usize, f64)>,
    /// Weight near the diagonal, 0 to 1; 2/3 if uniform.
    pub diagonality: Option<f64>,
    /// Mean weight of the token before; for self-attention.
    pub previous_token: Option<f64>,
    /// Mean weight of earlier tokens of the same text; for self-attention over tokens that repeat.
    pub duplicate_token: Option<f64>,
    /// Share of the keys that were looked at, 0 to 1; special tokens do not count.
    pub coverage: Option<f64>,
    /// `e^H`: how many keys a row looks at.
    pub effective_keys: Option<f64>,
    /// How many neighbouring keys hold 90 % of a row.
    pub effective_span: Option<f64>,
    /// Mean distance between a query and what it looks at, in positions; for self-attention.
    pub distance: Option<f64>,
    /// Mean of each row's largest weight.
    pub largest_weight: Option<f64>,
    /// `Σ_i α_ij` of every key, `[keys]`.
    pub column_sums: Vec<f64>,
}

/// The diagnostics of every head of a map, in order.
pub fn heads(map: &AttentionMap) -> Vec<HeadDiagnostics> {
    let visible = visible_keys(map);
    (0..map.heads())
        .map(|head| measure(map, head, &visible))
        .collect()
}

/// The number of visible keys of each query, `[queries]`.
fn visible_keys(map: &AttentionMap) -> Vec<usize> {
    let [heads, queries, keys] = map.shape();
    let sees = |query, key| (0..heads).any(|head| map.weight(head, query, key) > 0.0);
    let count = |query| (0..keys).filter(|&key| sees(query, key)).count();
    let mut visible: Vec<usize> = (0..queries).map(count).collect();
    if map.kind() == Kind::Cross {
        // Every query sees the same source: a weight of exactly 0, as of hard attention or sparsemax, hides nothing.
        let seen = |&key: &usize| (0..queries).any(|query| sees(query, key));
        let source = (0..keys).filter(seen).count();
        visible
            .iter_mut()
            .filter(|count| **count > 0)
            .for_each(|count| *count = source);
    }
    visible
}

/// Whether queries and keys are the same sequence.
pub(super) fn is_self(map: &AttentionMap) -> bool {
    let by_kind = match map.kind() {
        Kind::EncoderSelf | Kind::DecoderSelf | Kind::SelfAttention => true,
        Kind::Cross => false,
        Kind::Other => map.queries() == map.keys(),
    };
    by_kind && map.queries().len() == map.keys().len()
}

/// A mean that is `None` if no value was added.
#[derive(Default)]
struct Mean {
    sum: f64,
    count: usize,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn get(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

fn measure(map: &AttentionMap, head: usize, visible: &[usize]) -> HeadDiagnostics {
    let [_, queries, keys] = map.shape();
    let own = is_self(map);
    let mut columns = vec![0.0; keys];
    let mut means = vec![0.0; keys];
    let [mut entropy, mut uniformity, mut first, mut diagonality] = <[Mean; 4]>::default();
    let [
        mut previous,
        mut duplicate,
        mut effective,
        mut span,
        mut distance,
        mut largest,
    ] = <[Mean; 6]>::default();
    for query in 0..queries {
        let row: Vec<f64> = map.row(head, query).iter().map(|&w| f64::from(w)).collect();
        for (column, weight) in columns.iter_mut().zip(&row) {
            *column += weight;
        }
        let total: f64 = row.iter().sum();
        if total <= 0.0 || visible[query] < 2 {
            continue;
        }
        let row: Vec<f64> = row.iter().map(|weight| weight / total).collect();
        for (mean, weight) in means.iter_mut().zip(&row) {
            *mean += weight;
        }
        let nats = row_entropy(&row);
        entropy.add(nats);
        uniformity.add((nats / (visible[query] as f64).ln()).min(1.0));
        effective.add(nats.exp());
        span.add(shortest_run(&row) as f64);
        largest.add(row.iter().copied().fold(0.0, f64::max));
        first.add(row[0]);
        let place = share(query, queries);
        diagonality.add(expectation(&row, |key| {
            1.0 - (place - share(key, keys)).abs()
        }));
        if own {
            distance.add(expectation(&row, |key| query.abs_diff(key) as f64));
            if query > 0 {
                previous.add(row[query - 1]);
            }
            if let Some(same) = earlier_same(map, query) {
                duplicate.add(same.iter().map(|&key| row[key]).sum());
            }
        }
    }
    let rows = entropy.count;
    let top_key = (rows > 0)
        .then(|| first_largest(&means))
        .flatten()
        .map(|key| (key, means[key] / rows as f64));
    HeadDiagnostics {
        head,
        rows,
        entropy: entropy.get(),
        uniformity: uniformity.get(),
        first_token: first.get(),
        top_key,
        diagonality: diagonality.get(),
        previous_token: previous.get(),
        duplicate_token: duplicate.get(),
        coverage: coverage(map, &columns),
        effective_keys: effective.get(),
        effective_span: span.get(),
        distance: distance.get(),
        largest_weight: largest.get(),
        column_sums: columns,
    }
}

/// `-Σ α ln α`, with `0 ln 0 = 0`.
pub(super) fn row_entropy(row: &[f64]) -> f64 {
    let sum: f64 = row
        .iter()
        .filter(|&&weight| weight > 0.0)
        .map(|weight| weight * weight.ln())
        .sum();
    (-sum).max(0.0)
}

fn expectation(row: &[f64], value: impl Fn(usize) -> f64) -> f64 {
    row.iter()
        .enumerate()
        .map(|(key, weight)| weight * value(key))
        .sum()
}

/// The place of an entry in its sequence, from 0 to 1.
fn share(index: usize, length: usize) -> f64 {
    index as f64 / (length.max(2) - 1) as f64
}

fn first_largest(values: &[f64]) -> Option<usize> {
    (0..values.len()).reduce(|best, index| match values[index] > values[best] {
        true => index,
        false => best,
    })
}

/// The length of the shortest run of neighbouring keys that holds [`SPAN_SHARE`] of the row.
fn shortest_run(row: &[f64]) -> usize {
    // The weights come from `f32`: a sum that is short by a rounding error counts as reached.
    const ROUNDING: f64 = 1e-6;
    let (mut start, mut sum, mut best) = (0, 0.0, row.len());
    for end in 0..row.len() {
        sum += row[end];
        while start < end && sum - row[start] >= SPAN_SHARE - ROUNDING {
            sum -= row[start];
            start += 1;
        }
        if sum >= SPAN_SHARE - ROUNDING {
            best = best.min(end + 1 - start);
        }
    }
    best
}

/// Earlier positions with the text of position `query`, if the axis has texts and there are any.
fn earlier_same(map: &AttentionMap, query: usize) -> Option<Vec<usize>> {
    let (queries, keys) = (map.queries().tokens()?, map.keys().tokens()?);
    let token = queries.get(query).filter(|token| !token.special)?;
    let same: Vec<usize> = (0..query)
        .filter(|&key| keys[key].text == token.text)
        .collect();
    (!same.is_empty()).then_some(same)
}

fn coverage(map: &AttentionMap, columns: &[f64]) -> Option<f64> {
    let mut mean = Mean::default();
    for (key, column) in columns.iter().enumerate() {
        if !map.keys().is_special(key) {
            mean.add(column.min(1.0));
        }
    }
    mean.get()
}
