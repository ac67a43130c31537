//! "My attention is uniform over all tokens, why?": checks of queries, keys, scale and mask.
//!
//! The weights are those of a scaled-dot head, `α = softmax(mask(scale · q kᵀ))`; from a map alone one
//! cannot tell a head without a preference from one that is wired wrongly, so the checks look at the
//! head's inputs. [`check`] returns what it found, worst first, each with a sentence that says what to do.
//!
//! | finding | what it means |
//! |---|---|
//! | [`Finding::NotFinite`] | a NaN or an infinity came in |
//! | [`Finding::NothingVisible`] | the mask hides every key from some queries |
//! | [`Finding::InvertedMask`] | every query sees the future and nothing else: true means *may be seen* here |
//! | [`Finding::OneVisible`] | a query with one visible key gives it weight 1, whatever the query is |
//! | [`Finding::DeadHead`] | queries or keys are zero: every score is 0 |
//! | [`Finding::Padding`] | the last keys are one vector, and are seen: padding takes the weight |
//! | [`Finding::CollapsedKeys`] | keys are all the same vector: no query can tell them apart |
//! | [`Finding::CollapsedQueries`] | queries are all the same vector: every row is the same |
//! | [`Finding::Saturated`] | one weight is 1 almost everywhere: no gradient comes through |
//! | [`Finding::MissingPositions`] | equal keys at different places: content alone, no position |
//! | [`Finding::Uniform`] | all weights are about equal |
//!
//! [`Finding::Uniform`] and [`Finding::Saturated`] list their [`Cause`]s: scale, lengths, directions, softcap.
//!
//! ```
//! use regard_trace::diagnose::{Cause, Finding, Problem, check};
//!
//! // Three tokens whose keys differ, and a scale that was applied twice.
//! let query = [4.0, 0.0, 0.0, 4.0, -4.0, 4.0];
//! let findings = check(&Problem::new(&query, &query, 2).scale(1e-4))?;
//! let Finding::Uniform { causes, .. } = &findings[0] else { panic!("{findings:?}") };
//! assert!(matches!(causes[..], [Cause::Scale { scale: 1e-4, .. }]));
//! assert!(findings[0].to_string().contains("7071 times smaller than 1/√d = 0.707"));
//! # Ok::<(), regard_trace::diagnose::check::ProblemError>(())
//! ```

use super::{Cause, Finding, Side, head::row_entropy};

/// One head's queries and keys, and how they are compared.
#[derive(Clone, Debug)]
pub struct Problem {
    query: Vec<f64>,
    key: Vec<f64>,
    dimension: usize,
    scale: Option<f64>,
    softcap: Option<f64>,
    mask: Option<Vec<bool>>,
}

impl Problem {
    /// Queries `[queries, dimension]` and keys `[keys, dimension]`, row-major; scale `1/√dimension`, no mask.
    pub fn new<T: Copy + Into<f64>>(query: &[T], key: &[T], dimension: usize) -> Self {
        let wide = |values: &[T]| values.iter().map(|&x| x.into()).collect();
        Self {
            query: wide(query),
            key: wide(key),
            dimension,
            scale: None,
            softcap: None,
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

    /// Scaled scores go through `softcap · tanh(s / softcap)`.
    pub fn softcap(self, softcap: f64) -> Self {
        Self {
            softcap: Some(softcap),
            ..self
        }
    }

    /// `mask [queries, keys]`, true where a key may be seen.
    pub fn mask(self, mask: &[bool]) -> Self {
        Self {
            mask: Some(mask.to_vec()),
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

/// Vectors shorter than this count as zero, unless those of the other side are so long that the scores are not.
const ZERO: f64 = 1e-6;

/// All scores of a dead head are smaller than this.
const NO_SCORE: f64 = 1e-3;

/// Vectors that differ by a smaller share of their length count as the same.
const COLLAPSED: f64 = 0.01;

/// Weights count as uniform if their entropy is at least this share of the largest possible.
const UNIFORM: f64 = 0.98;

/// A row with a weight above this counts as saturated.
const SATURATED: f64 = 0.999;

/// So many equal keys at the end count as padding.
const PADDING: usize = 3;

/// A factor of the scores counts as a cause if it is this many times larger or smaller than usual.
const OFF: f64 = 3.0;

/// Looks for what makes a head's attention uniform or useless, worst first; an empty list if all is well.
///
/// # Errors
/// Lengths that do not fit together.
pub fn check(problem: &Problem) -> Result<Vec<Finding>, ProblemError> {
    let head = Head::new(problem)?;
    if let Some(finding) = head.not_finite() {
        return Ok(vec![finding]);
    }
    let mut findings = head.check_mask();
    let dead = head.check_length();
    if !dead.is_empty() {
        findings.extend(dead);
        return Ok(findings);
    }
    // What else is found would be about the padding.
    if let Some(padding) = head.check_padding() {
        findings.push(padding);
        return Ok(findings);
    }
    let softmax = head.check_softmax();
    let uniform = matches!(softmax, Some(Finding::Uniform { .. }));
    let equal_keys = spread(&head.key).filter(|&spread| uniform && spread < COLLAPSED);
    findings.extend(equal_keys.map(|spread| Finding::CollapsedKeys { spread }));
    let equal_queries = spread(&head.query).filter(|&spread| spread < COLLAPSED);
    findings.extend(equal_queries.map(|spread| Finding::CollapsedQueries { spread }));
    // Equal keys explain uniform weights and equal positions, so these are not reported as well.
    if equal_keys.is_none() {
        findings.extend(softmax);
        findings.extend(head.check_positions());
    }
    Ok(findings)
}

struct Head {
    query: Vec<Vec<f64>>,
    key: Vec<Vec<f64>>,
    mask: Vec<bool>,
    scale: f64,
    softcap: Option<f64>,
}

impl Head {
    fn new(problem: &Problem) -> Result<Self, ProblemError> {
        let dimension = problem.dimension;
        if dimension == 0 {
            return Err(ProblemError {
                field: "dimension",
                found: 0,
                expected: "at least 1".to_owned(),
                advice: "give the size of one head's vectors",
            });
        }
        for (field, values) in [("query", &problem.query), ("key", &problem.key)] {
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
        let vectors = |values: &[f64]| -> Vec<Vec<f64>> {
            values
                .chunks_exact(dimension)
                .map(<[f64]>::to_vec)
                .collect()
        };
        let (query, key) = (vectors(&problem.query), vectors(&problem.key));
        let size = query.len() * key.len();
        let mask = match &problem.mask {
            None => vec![true; size],
            Some(mask) if mask.len() == size => mask.clone(),
            Some(mask) => {
                return Err(ProblemError {
                    field: "mask",
                    found: mask.len(),
                    expected: format!("{} queries x {} keys = {size}", query.len(), key.len()),
                    advice: "pass one entry for each query and key, row-major, true where it may be seen",
                });
            }
        };
        Ok(Self {
            query,
            key,
            mask,
            scale: problem
                .scale
                .unwrap_or_else(|| (dimension as f64).sqrt().recip()),
            softcap: problem.softcap,
        })
    }

    fn sides(&self) -> [(Side, &[Vec<f64>]); 2] {
        [(Side::Queries, &self.query), (Side::Keys, &self.key)]
    }

    fn not_finite(&self) -> Option<Finding> {
        self.sides().into_iter().find_map(|(side, vectors)| {
            let bad = |vector: &Vec<f64>| vector.iter().any(|x| !x.is_finite());
            let position = vectors.iter().position(bad)?;
            Some(Finding::NotFinite { side, position })
        })
    }

    fn rows(&self) -> impl Iterator<Item = &[bool]> {
        self.mask.chunks_exact(self.key.len())
    }

    fn check_mask(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let seeing = |count: usize| -> Vec<usize> {
            let rows = self.rows().enumerate();
            rows.filter(|(_, row)| row.iter().filter(|&&seen| seen).count() == count)
                .map(|(query, _)| query)
                .collect()
        };
        let (of, keys) = (self.query.len(), self.key.len());
        // A causal mask inverted: row i sees i + 1 and on.
        let inverted = keys > 1
            && of == keys
            && self
                .rows()
                .enumerate()
                .all(|(i, row)| row.iter().enumerate().all(|(j, &seen)| seen == (j > i)));
        let none = seeing(0);
        if inverted {
            findings.push(Finding::InvertedMask);
        } else if !none.is_empty() {
            findings.push(Finding::NothingVisible { queries: none });
        }
        // The first query of a causal mask has one key, as it should.
        let queries = seeing(1);
        let (single, is_first) = (queries.len(), of > 1 && queries == [0]);
        if single > 0 && !is_first && 2 * single >= of {
            findings.push(Finding::OneVisible { queries, of, keys });
        }
        findings
    }

    fn check_length(&self) -> Vec<Finding> {
        let longest = |vectors: &[Vec<f64>]| vectors.iter().map(|v| length(v)).fold(0.0, f64::max);
        let largest = self.scale.abs() * longest(&self.query) * longest(&self.key);
        self.sides()
            .into_iter()
            .filter_map(|(side, vectors)| {
                let longest = longest(vectors);
                (longest < ZERO && largest < NO_SCORE)
                    .then_some(Finding::DeadHead { side, longest })
            })
            .collect()
    }

    fn check_padding(&self) -> Option<Finding> {
        let last = self.key.last()?;
        let keys = self.key.iter().rev().take_while(|&key| key == last).count();
        let from = self.key.len() - keys;
        // Under a causal mask only padding sees padding, which does no harm.
        let seen = self
            .rows()
            .take(from)
            .any(|row| row[from..].contains(&true));
        (keys >= PADDING && seen).then_some(Finding::Padding { from, keys })
    }

    /// The queries that have a choice, with what they see.
    fn choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for (query, (vector, row)) in self.query.iter().zip(self.rows()).enumerate() {
            let visible = self.key.iter().zip(row).filter(|(_, seen)| **seen);
            let keys: Vec<(f64, f64)> = visible
                .map(|(key, _)| (dot(vector, key), length(vector) * length(key)))
                .collect();
            if keys.len() > 1 {
                choices.push(Choice {
                    query,
                    scores: keys
                        .iter()
                        .map(|(product, _)| self.scale * product)
                        .collect(),
                    cosines: keys
                        .iter()
                        .map(|&(product, lengths)| cosine(product, lengths))
                        .collect(),
                    lengths: keys.iter().map(|(_, lengths)| lengths).sum::<f64>()
                        / keys.len() as f64,
                });
            }
        }
        choices
    }

    fn check_softmax(&self) -> Option<Finding> {
        let choices = self.choices();
        if choices.is_empty() {
            return None;
        }
        let scores: Vec<&[f64]> = choices.iter().map(|row| row.scores.as_slice()).collect();
        let before = Symptoms::of(&scores);
        let capped: Option<(f64, Vec<Vec<f64>>)> = self.softcap.map(|softcap| {
            let cap = |s: &f64| softcap * (s / softcap).tanh();
            let rows = scores.iter().map(|row| row.iter().map(cap).collect());
            (softcap, rows.collect())
        });
        let symptoms = match &capped {
            None => before,
            Some((_, rows)) => Symptoms::of(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>()),
        };
        let deviation = symptoms.deviation;
        if symptoms.saturated >= 0.9 {
            return Some(Finding::Saturated {
                share: symptoms.saturated,
                deviation,
                causes: self.causes(&choices, false),
            });
        }
        if symptoms.uniformity < UNIFORM {
            return None;
        }
        let causes = match capped {
            Some((softcap, _)) if before.uniformity < UNIFORM => vec![Cause::Softcap {
                softcap,
                before: before.deviation,
            }],
            _ => self.causes(&choices, true),
        };
        Some(Finding::Uniform {
            uniformity: symptoms.uniformity,
            deviation,
            causes,
        })
    }

    /// The factors of `scale · |q| |k| · cos(q, k)` that are much smaller (`small`) or much larger than those of
    /// vectors of unit variance. The one that is furthest off comes first.
    fn causes(&self, choices: &[Choice], small: bool) -> Vec<Cause> {
        let size = self.query[0].len() as f64;
        let usual = size.sqrt(); // the usual length; the usual scale and deviation of cosines are 1/√d
        let mean = |of: &dyn Fn(&Choice) -> f64| {
            choices.iter().map(of).sum::<f64>() / choices.len() as f64
        };
        let mean_length = |vectors: &[Vec<f64>]| {
            vectors.iter().map(|v| length(v)).sum::<f64>() / vectors.len() as f64
        };
        let mut factors = vec![
            (
                self.scale.abs() * usual,
                Cause::Scale {
                    scale: self.scale,
                    usual: usual.recip(),
                },
            ),
            (
                mean(&|row| row.lengths) / size,
                Cause::Lengths {
                    queries: mean_length(&self.query),
                    keys: mean_length(&self.key),
                    usual,
                },
            ),
        ];
        // Cosines cannot be too far apart, and vectors of one number have no directions.
        if small && size > 1.0 {
            factors.push((
                mean(&|row| standard_deviation(&row.cosines)) * usual,
                directions(choices, usual),
            ));
        }
        let off = |factor: f64| match small {
            true => factor,
            false => factor.recip(),
        };
        factors.retain(|(factor, _)| off(*factor) < OFF.recip());
        factors.sort_by(|a, b| off(a.0).total_cmp(&off(b.0)));
        factors.into_iter().map(|(_, cause)| cause).collect()
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

/// A query that sees more than one key, and so has a choice.
struct Choice {
    query: usize,
    /// The scores of the visible keys, scaled, before the softcap.
    scores: Vec<f64>,
    cosines: Vec<f64>,
    /// Mean of `|q| |k|`.
    lengths: f64,
}

/// What the weights of scores look like.
#[derive(Clone, Copy)]
struct Symptoms {
    /// Mean entropy as a share of the largest possible.
    uniformity: f64,
    /// The share of rows with a weight of nearly 1.
    saturated: f64,
    /// Standard deviation of a row's scores, mean over rows.
    deviation: f64,
}

impl Symptoms {
    fn of(scores: &[&[f64]]) -> Self {
        let rows = scores.len() as f64;
        let (mut uniformity, mut saturated, mut deviation) = (0.0, 0.0, 0.0);
        for row in scores {
            let weights = softmax(row);
            uniformity += row_entropy(&weights) / (row.len() as f64).ln() / rows;
            saturated += f64::from(u8::from(weights.iter().any(|&w| w > SATURATED))) / rows;
            deviation += standard_deviation(row) / rows;
        }
        Self {
            uniformity,
            saturated,
            deviation,
        }
    }
}

/// Why the directions make scores even: queries are orthogonal to all keys, or see them all in about one direction.
fn directions(choices: &[Choice], usual: f64) -> Cause {
    let all = choices.iter().flat_map(|row| &row.cosines);
    let largest = all.map(|cosine| cosine.abs()).fold(0.0, f64::max);
    if largest * usual < OFF.recip() {
        return Cause::Orthogonal { largest };
    }
    let ends = |row: &Choice| {
        let ends = (f64::INFINITY, f64::NEG_INFINITY);
        let wider = |(low, high): (f64, f64), &cosine: &f64| (low.min(cosine), high.max(cosine));
        row.cosines.iter().fold(ends, wider)
    };
    let ranges = choices.iter().map(|row| (row.query, ends(row)));
    // The widest range; of ranges that are equal up to rounding, the first.
    let widest = ranges.reduce(|a, b| match b.1.1 - b.1.0 > a.1.1 - a.1.0 + 1e-9 {
        true => b,
        false => a,
    });
    let (query, (low, high)) = widest.unwrap_or_default();
    Cause::Alike { query, low, high }
}

/// `q·k / |q| |k|`, 0 where one of them is 0.
fn cosine(product: f64, lengths: f64) -> f64 {
    match lengths > 0.0 {
        true => (product / lengths).clamp(-1.0, 1.0),
        false => 0.0,
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
    let away = values.iter().map(|x| (x - mean).abs());
    // Squares of very large or very small numbers leave the range of f64.
    let largest = away.clone().fold(0.0, f64::max);
    match largest > 0.0 {
        true => (away.map(|x| (x / largest).powi(2)).sum::<f64>() / count).sqrt() * largest,
        false => 0.0,
    }
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = scores.iter().map(|s| (s - best).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|p| p / sum).collect()
}
