//! Classes of texts and of tokens, as transformers' pipelines read them off.

use std::ops::Range;

use regard_kernels::loss;

use super::{config::Config, error::PretrainedError, tokenizer::Encoding};

/// What the outputs of a head for classes of texts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassScores {
    /// One class is true: probabilities with the sum 1.
    Softmax,
    /// Each class is true or not (`multi_label_classification`, or a single class): a probability for each.
    Sigmoid,
    /// Numbers (`regression`).
    Numbers,
}

impl ClassScores {
    /// Of a head for `classes` classes: by the key `problem_type` of its configuration, or else by their number.
    pub(super) fn of(config: &Config, classes: usize) -> Result<Self, PretrainedError> {
        const KEY: &str = "problem_type";
        const NAMES: [&str; 3] = [
            "single_label_classification",
            "multi_label_classification",
            "regression",
        ];
        let name = match config.has(KEY) {
            true => Some(config.one_of(KEY, &NAMES)?),
            false => None,
        };
        Ok(match name {
            Some(2) => Self::Numbers,
            Some(1) => Self::Sigmoid,
            _ if classes == 1 => Self::Sigmoid,
            _ => Self::Softmax,
        })
    }

    /// Turns outputs into scores.
    pub(super) fn apply(self, outputs: &mut [f32]) {
        match self {
            Self::Softmax => {
                let classes = outputs.len();
                loss::log_softmax(outputs, classes);
                outputs.iter_mut().for_each(|x| *x = x.exp());
            }
            Self::Sigmoid => outputs
                .iter_mut()
                .for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
            Self::Numbers => {}
        }
    }
}

/// Neighbouring tokens of one class.
#[derive(Debug, Clone, PartialEq)]
pub struct Entity {
    /// The class, without `B-` or `I-`.
    pub label: String,
    /// The mean probability of its tokens' classes.
    pub probability: f64,
    /// Its bytes in the text.
    pub range: Range<usize>,
}

/// The entities of a text from the `probabilities [tokens, labels]` of its tokens: each token has its likeliest class; a token of the
/// class of the one before it goes on with it, unless its label begins with `B-`. Tokens of class `O` are left out, and so are tokens
/// that the tokenizer put around the text. (`aggregation_strategy="simple"` of transformers' `TokenClassificationPipeline`.)
pub fn entities(encoding: &Encoding, probabilities: &[f32], labels: &[String]) -> Vec<Entity> {
    let mut groups: Vec<(Entity, usize)> = vec![];
    let rows = probabilities.chunks_exact(labels.len().max(1));
    for ((row, offset), text) in rows.zip(&encoding.offsets).zip(&encoding.texts) {
        if text.is_none() {
            continue;
        }
        let larger = |best: usize, at: usize| if row[at] > row[best] { at } else { best };
        let class = (1..row.len()).fold(0, larger);
        let begins = labels[class].strip_prefix("B-");
        let label = begins.or_else(|| labels[class].strip_prefix("I-"));
        let label = label.unwrap_or(&labels[class]);
        let probability = f64::from(row[class]);
        match groups.last_mut() {
            Some((entity, tokens)) if entity.label == label && begins.is_none() => {
                entity.probability += probability;
                entity.range.end = entity.range.end.max(offset.end);
                *tokens += 1;
            }
            _ => {
                let label = label.to_owned();
                let range = offset.clone();
                groups.push((
                    Entity {
                        label,
                        probability,
                        range,
                    },
                    1,
                ));
            }
        }
    }
    let named = groups.into_iter().filter(|(entity, _)| entity.label != "O");
    named
        .map(|(entity, tokens)| Entity {
            probability: entity.probability / tokens as f64,
            ..entity
        })
        .collect()
}
