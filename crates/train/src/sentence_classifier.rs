//! A sentence in, a label out, and what the model looked at.

use burn::tensor::{Device, activation::softmax};
use regard_models::{AnyClassifier, ClassifierMap, ClassifierSizes};
use regard_nn::dropout::DropoutRng;
use regard_trace::{AttentionMap, Kind, Token, Tokens, Trace};

use crate::{
    corpus::{LengthFilter, LongLines},
    recipe::Model,
    tasks::{Describe, classification::batch},
    tokenizer::{SubwordTokenizer, TokenizerPair},
    translator::{LineError, axis},
};

/// Sentences classified together.
const BATCH: usize = 32;

/// The content of a classifier's file apart from the weights.
#[derive(Debug, Clone)]
pub struct Description {
    /// The architecture.
    pub model: Model,
    /// Text to ids; a classifier has one tokenizer, which stands for both sides.
    pub tokenizers: TokenizerPair,
    /// The name of each class.
    pub labels: Vec<String>,
    /// Most tokens of a sentence; a longer one is cut.
    pub max_tokens: usize,
}

impl Describe<AnyClassifier> for Description {
    fn model(&self) -> &Model {
        &self.model
    }

    fn sizes(&self) -> ClassifierSizes {
        ClassifierSizes {
            vocabulary: self.tokenizers.source().vocabulary(),
            classes: self.labels.len(),
        }
    }
}

/// A classifier with its tokenizer and labels, ready for use.
#[derive(Debug)]
pub struct SentenceClassifier {
    model: AnyClassifier,
    description: Description,
    device: Device,
}

/// The classification of one sentence.
#[derive(Debug, Clone)]
pub struct Classification {
    /// The class of the highest probability.
    pub class: usize,
    /// Its label.
    pub label: String,
    /// The probability of every class.
    pub probabilities: Vec<f32>,
    /// The sentence's length in tokens, if it was cut to the limit.
    pub cut_from: Option<usize>,
    /// What the model looked at; no maps for a model without attention. The target is the label.
    pub trace: Trace,
}

impl SentenceClassifier {
    /// A classifier from its parts.
    pub fn new(model: AnyClassifier, description: Description, device: &Device) -> Self {
        Self {
            model,
            description,
            device: device.clone(),
        }
    }

    /// Architecture, tokenizer, labels.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The model.
    pub fn model(&self) -> &AnyClassifier {
        &self.model
    }

    /// Classifies `lines`, giving one result a line in the same order. Lines are batched by length
    /// within the call; batching changes no result.
    ///
    /// # Errors
    /// A model whose numbers are not attention weights, or a tokenizer that fails.
    pub fn classify<S: AsRef<str>>(&self, lines: &[S]) -> Result<Vec<Classification>, LineError> {
        let tokenizer = self.description.tokenizers.source();
        let filter = LengthFilter {
            max_tokens: Some(self.description.max_tokens),
            long_lines: LongLines::Cut,
            ..LengthFilter::default()
        };
        let (limited, order) = filter.limit_all(lines, tokenizer)?;
        let mut results: Vec<Option<Classification>> = lines.iter().map(|_| None).collect();
        for rows in order.chunks(BATCH) {
            let sentences: Vec<Vec<u32>> = rows.iter().map(|&i| limited[i].ids.clone()).collect();
            let texts: Vec<&str> = rows.iter().map(|&i| lines[i].as_ref()).collect();
            let found = self.classify_ids(&sentences, &texts)?;
            for (&i, found) in rows.iter().zip(found) {
                results[i] = Some(Classification {
                    cut_from: limited[i].cut_from,
                    ..found
                });
            }
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// Classifies one batch of sentences, which are called `texts` in their traces.
    pub(crate) fn classify_ids(
        &self,
        sentences: &[Vec<u32>],
        texts: &[&str],
    ) -> Result<Vec<Classification>, LineError> {
        let tokenizer = self.description.tokenizers.source();
        let batch = batch(sentences, &self.model, &self.device);
        let classified = self.model.forward(&batch, &mut DropoutRng::none());
        let maps = self.model.look(&batch).unwrap_or(classified.maps);
        let start = self
            .model
            .reads_start()
            .then_some(self.model.vocabulary().start);
        let classes = self.description.labels.len();
        let probabilities: Vec<f32> = softmax(classified.logits, 1).into_data().iter().collect();
        let rows = sentences.iter().zip(texts).enumerate();
        let results = rows.map(|(row, (ids, text))| {
            let probabilities = probabilities[row * classes..][..classes].to_vec();
            let class = best(&probabilities);
            let label = self.description.labels[class].clone();
            let mut trace = Trace::new(self.description.model.kind, *text, &label);
            let read: Vec<u32> = start.iter().chain(ids).copied().collect();
            for (layer, map) in maps.iter().enumerate() {
                let map = drawn(map, row, &read, &label, tokenizer)?;
                trace = trace.with_map(map.at_layer(layer));
            }
            Ok(Classification {
                class,
                label,
                probabilities,
                cut_from: None,
                trace,
            })
        });
        results.collect()
    }
}

/// The part of `map` that belongs to the sentence at `row`, without padding.
fn drawn(
    map: &ClassifierMap,
    row: usize,
    ids: &[u32],
    label: &str,
    tokenizer: &SubwordTokenizer,
) -> Result<AttentionMap, LineError> {
    let [_, heads, queries, _] = map.weights.dims();
    let keys = axis(tokenizer, ids, true)?;
    let length = keys.len();
    let (queries, rows, kind) = match map.by_words {
        true => (keys.clone(), length, Kind::SelfAttention),
        false => {
            let verdict = Tokens::from(vec![Token::special(label)]);
            (verdict, queries, Kind::Other)
        }
    };
    let weights = map.weights.clone().narrow(0, row, 1);
    let weights = weights.narrow(2, 0, rows).narrow(3, 0, length);
    let weights = weights.into_data().iter().collect();
    let attention = match map.is_normalized {
        true => AttentionMap::new(kind, queries, keys, heads, weights),
        false => AttentionMap::unnormalized(kind, queries, keys, heads, weights),
    };
    Ok(attention?.named(map.name))
}

/// The index of the largest number, the first of equals.
fn best(numbers: &[f32]) -> usize {
    (0..numbers.len()).fold(0, |best, i| match numbers[i] > numbers[best] {
        true => i,
        false => best,
    })
}

impl Classification {
    /// The probability of the label.
    pub fn probability(&self) -> f32 {
        self.probabilities[self.class]
    }
}
