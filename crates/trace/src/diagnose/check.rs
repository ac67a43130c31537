//! "My attention is uniform over all tokens, why?": checks of queries, keys, scale and mask.
//!
//! The weights are those of a scaled-dot head, `α = softmax(mask(scale · q kᵀ))`; from a map alone one
//! cannot tell a head that has nothing to say from one that is wired wrongly, so the checks look at what
//! went in. [`check`] returns what it found, worst first, each with a sentence that says what to do.
//!
//! | finding | what it means |
//! |---|---|
//! | [`Finding::NotFinite`] | a NaN or an infinity came in |
//! | [`Finding::NothingVisible`] | the mask hides every key from some queries |
//! | [`Finding::InvertedMask`] | every query sees the future and nothing else: true means *may be seen* here |
//! | [`Finding::OneVisible`] | a query with one visible key gives it weight 1, whatever it asks |
//! | [`Finding::DeadHead`] | queries or keys are zero: every score is 0 |
//! | [`Finding::CollapsedKeys`] | keys are all the same vector: no query can tell them apart |
//! | [`Finding::CollapsedQueries`] | queries are all the same vector: every row is the same |
//! | [`Finding::ScaleTooSmall`] | scores would differ at `1/√d`, but not at this scale |
//! | [`Finding::Saturated`] | one weight is 1 almost everywhere: no gradient comes through |
//! | [`Finding::MissingPositions`] | equal keys at different places: content alone, no position |
//! | [`Finding::Uniform`] | the symptom itself, when nothing above explains it |
//!
//! ```
//! use regard_trace::diagnose::{Finding, Problem, check};
//!
//! // Three tokens whose keys differ, and a scale that forgot that dividing twice is once too often.
//! let query = [4.0, 0.0, 0.0, 4.0, -4.0, 4.0];
//! let findings = check(&Problem::new(&query, &query, 2).scale(1e-4))?;
//! assert!(matches!(findings[0], Finding::ScaleTooSmall { .. }));
//! assert!(findings[0].to_string().contains("1/√d"));
//! # Ok::<(), regard_trace::diagnose::check::ProblemError>(())
//! ```

use super::{Finding, head::row_entropy};

/// One head's queries and keys, and how they are compared.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    query: &'a [f32],
    key: &'a [f32],
    dimension: usize,
    scale: Option<f64>,
    mask: Option<&'a [bool]>,
}

impl<'a> Problem<'a> {
    /// Queries `[queries, dimension]` and keys `[keys, dimension]`, row-major; scale `1/√dimension`, no mask.
    pub fn new(query: &'a [f32], key: &'a [f32], dimension: usize) -> Self {
        Self {
            query,
            key,
            dimension,
            scale: None,
            mask: None,
        }
    }

    /// Scores are multiplied by `scale`.
    pub fn scale(self, scale: f64) -> Self {
        Self {
            scale: Some(scale),
            ..self
        }
    }

    /// `mask [queries, keys]`, true where a key may be seen.
    pub fn mask(self, mask: &'a [bool]) -> Self {
        Self {
            mask: Some(mask),
            ..self
        }
    }
}

/// Why a problem cannot be checked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` has {found} values, expected {expected}: {advice}")]
pub struct ProblemError {
    /// What does not fit.
    pub field: &'static str,
    /// Its length.
    pub found: usize,
    /// The length that fits.
    pub expected: String,
    /// What to do.
    pub advice: &'static str,
}

/// Vectors shorter than this are zero: no score can come of them in `f32`.
const ZERO: f64 = 1e-6;

/// Vectors that differ by a smaller share of their length are the same.
const COLLAPSED: f64 = 0.01;

/// Rows whose scores deviate by less are uniform to about a hundredth.
const FLAT: f64 = 0.1;

/// Entropy from this share of the largest possible on is uniform.
const UNIFORM: f64 = 0.98;

/// A row with a larger weight is saturated.
const SATURATED: f64 = 0.999;

/// Looks for what makes a head's attention uniform or useless, worst first; nothing if all is well.
///
/// # Errors
/// Lengths that do not fit together.
pub fn check(problem: &Problem<'_>) -> Result<Vec<Finding>, ProblemError> {
    let head = Head::new(problem)?;
    if let Some(finding) = head.not_finite() {
        return Ok(vec![finding]);
    }
    let mut findings = head.check_mask();
    let dead = head.check_length();
    let is_dead = !dead.is_empty();
    findings.extend(dead);
    if is_dead {
        return Ok(findings);
    }
    let collapsed = head.check_collapse();
    let keys_collapsed = collapsed
        .iter()
        .any(|finding| matches!(finding, Finding::CollapsedKeys { .. }));
    findings.extend(collapsed);
    findings.extend(head.check_softmax(keys_collapsed));
    if !keys_collapsed {
        findings.extend(head.check_positions());
    }
    Ok(findings)
}

struct Head {
    query: Vec<Vec<f64>>,
    key: Vec<Vec<f64>>,
    mask: Vec<bool>,
    scale: f64,
    usual_scale: f64,
}

impl Head {
    fn new(problem: &Problem<'_>) -> Result<Self, ProblemError> {
        let dimension = problem.dimension;
        if dimension == 0 {
            return Err(ProblemError {
                field: "dimension",
                found: 0,
                expected: "at least 1".to_owned(),
                advice: "give the size of one head's vectors",
            });
        }
        for (field, values) in [("query", problem.query), ("key", problem.key)] {
            if values.is_empty() || values.len() % dimension != 0 {
                return Err(ProblemError {
                    field,
                    found: values.len(),
                    expected: format!(
                        "a multiple of the dimension {dimension}, at least one vector"
                    ),
                    advice: "pass one head, [length, dimension], row-major",
                });
            }
        }
        let vectors = |values: &[f32]| -> Vec<Vec<f64>> {
            let rows = values.chunks_exact(dimension);
            rows.map(|row| row.iter().map(|&x| f64::from(x)).collect())
                .collect()
        };
        let (query, key) = (vectors(problem.query), vectors(problem.key));
        let size = query.len() * key.len();
        let mask = match problem.mask {
            None => vec![true; size],
            Some(mask) if mask.len() == size => mask.to_vec(),
            Some(mask) => {
                return Err(ProblemError {
                    field: "mask",
                    found: mask.len(),
                    expected: format!("{} queries x {} keys = {size}", query.len(), key.len()),
                    advice: "pass one entry for each query and key, row-major, true where it may be seen",
                });
            }
        };
        let usual_scale = (dimension as f64).sqrt().recip();
        Ok(Self {
            query,
            key,
            mask,
            scale: problem.scale.unwrap_or(usual_scale),
            usual_scale,
        })
    }

    fn not_finite(&self) -> Option<Finding> {
        [("query", &self.query), ("key", &self.key)]
            .into_iter()
            .find_map(|(field, vectors)| {
                let bad = |vector: &Vec<f64>| vector.iter().any(|x| !x.is_finite());
                let position = vectors.iter().position(bad)?;
                Some(Finding::NotFinite { field, position })
            })
    }

    fn rows(&self) -> impl Iterator<Item = &[bool]> {
        self.mask.chunks_exact(self.key.len())
    }

    fn check_mask(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let seeing = |count: usize| {
            self.rows()
                .filter(|row| row.iter().filter(|&&seen| seen).count() == count)
                .count()
        };
        let keys = self.key.len();
        // A causal mask inverted: row i sees i + 1 and on.
        let inverted = keys > 1
            && self.query.len() == keys
            && self
                .rows()
                .enumerate()
                .all(|(i, row)| row.iter().enumerate().all(|(j, &seen)| seen == (j > i)));
        if inverted {
            findings.push(Finding::InvertedMask);
        } else if seeing(0) > 0 {
            findings.push(Finding::NothingVisible { queries: seeing(0) });
        }
        // The first query of a causal mask has one key and that is as it should be.
        let single = seeing(1);
        if single > 1 && 2 * single >= self.query.len() {
            findings.push(Finding::OneVisible {
                queries: single,
                of: self.query.len(),
            });
        }
        findings
    }

    fn check_length(&self) -> Vec<Finding> {
        [("queries", &self.query), ("keys", &self.key)]
            .into_iter()
            .filter_map(|(field, vectors)| {
                let longest = vectors.iter().map(|v| length(v)).fold(0.0, f64::max);
                (longest < ZERO).then_some(Finding::DeadHead { field, longest })
            })
            .collect()
    }

    fn check_collapse(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if let Some(spread) = spread(&self.key).filter(|&spread| spread < COLLAPSED) {
            findings.push(Finding::CollapsedKeys { spread });
        }
        if let Some(spread) = spread(&self.query).filter(|&spread| spread < COLLAPSED) {
            findings.push(Finding::CollapsedQueries { spread });
        }
        findings
    }

    /// The visible scores `q kᵀ` of each row with a choice, before any scale.
    fn scores(&self) -> Vec<Vec<f64>> {
        let mut scores = Vec::new();
        for (query, row) in self.query.iter().zip(self.rows()) {
            let visible = self.key.iter().zip(row).filter(|(_, seen)| **seen);
            let row: Vec<f64> = visible.map(|(key, _)| dot(query, key)).collect();
            if row.len() > 1 {
                scores.push(row);
            }
        }
        scores
    }

    fn check_softmax(&self, keys_collapsed: bool) -> Option<Finding> {
        let scores = self.scores();
        if scores.is_empty() {
            return None;
        }
        let rows = scores.len() as f64;
        let deviation: f64 = scores
            .iter()
            .map(|row| standard_deviation(row))
            .sum::<f64>()
            / rows;
        let (mut uniformity, mut saturated) = (0.0, 0.0);
        for row in &scores {
            let weights = softmax(row, self.scale);
            uniformity += row_entropy(&weights) / (row.len() as f64).ln() / rows;
            saturated += f64::from(u8::from(weights.iter().any(|&w| w > SATURATED))) / rows;
        }
        let scaled = deviation * self.scale.abs();
        if saturated >= 0.9 {
            return Some(Finding::Saturated {
                share: saturated,
                deviation: scaled,
            });
        }
        if uniformity < UNIFORM || keys_collapsed {
            return None;
        }
        match scaled < FLAT && deviation * self.usual_scale >= FLAT {
            true => Some(Finding::ScaleTooSmall {
                scale: self.scale,
                usual: self.usual_scale,
                deviation: scaled,
            }),
            false => Some(Finding::Uniform {
                uniformity,
                deviation: scaled,
            }),
        }
    }

    fn check_positions(&self) -> Option<Finding> {
        let mut order: Vec<usize> = (0..self.key.len()).collect();
        let compare = |a: &usize, b: &usize| {
            self.key[*a]
                .iter()
                .zip(&self.key[*b])
                .map(|(x, y)| x.total_cmp(y))
                .find(|order| order.is_ne())
                .unwrap_or(a.cmp(b))
        };
        order.sort_unstable_by(compare);
        let equal = |a: usize, b: usize| self.key[a] == self.key[b];
        let pair = order
            .windows(2)
            .filter(|w| equal(w[0], w[1]))
            .map(|w| (w[0], w[1]))
            .min()?;
        let keys = (0..order.len())
            .filter(|&i| {
                let before = i > 0 && equal(order[i - 1], order[i]);
                before || (i + 1 < order.len() && equal(order[i], order[i + 1]))
            })
            .count();
        Some(Finding::MissingPositions { pair, keys })
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn length(vector: &[f64]) -> f64 {
    dot(vector, vector).sqrt()
}

/// The root mean square distance from the mean vector, as a share of the root mean square length; nothing
/// for a single vector.
fn spread(vectors: &[Vec<f64>]) -> Option<f64> {
    if vectors.len() < 2 {
        return None;
    }
    let count = vectors.len() as f64;
    let mut mean = vec![0.0; vectors[0].len()];
    for vector in vectors {
        for (mean, x) in mean.iter_mut().zip(vector) {
            *mean += x / count;
        }
    }
    let away = |vector: &Vec<f64>| -> f64 {
        vector
            .iter()
            .zip(&mean)
            .map(|(x, mean)| (x - mean).powi(2))
            .sum()
    };
    let (apart, long): (f64, f64) = vectors.iter().fold((0.0, 0.0), |(apart, long), v| {
        (apart + away(v), long + dot(v, v))
    });
    Some((apart / long).sqrt())
}

fn standard_deviation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt()
}

fn softmax(scores: &[f64], scale: f64) -> Vec<f64> {
    let scaled: Vec<f64> = scores.iter().map(|s| scale * s).collect();
    let best = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = scaled.iter().map(|s| (s - best).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}
