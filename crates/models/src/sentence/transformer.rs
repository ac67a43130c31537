//! A Transformer as a classifier (Devlin et al. 2018, section 4.1).

use burn::{
    module::Module,
    nn::Linear,
    tensor::{Tensor, activation::tanh},
};
use regard_config::{Check, FRACTION, SIZE, config};
use regard_nn::{
    Observe, bridge,
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
    mask::PaddingMask,
};
use serde::{Deserialize, Serialize};

use super::encoders::mean;
use crate::{
    AnyClassifier,
    batch::SourceBatch,
    classifier::{Classified, Classifier, ClassifierMap, ClassifierSizes},
    error::ModelError,
    language::{TextTransformer, TextTransformerConfig},
    recurrent::index,
    role::{ClassifierProperties, ModelConfig},
    text_model::Objective,
    transformer::Positions,
    vocabulary::Vocabulary,
};

/// Which states become the vector of a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PooledStates {
    /// The mean of all.
    #[default]
    Mean,
    /// That of the mark of start (BERT).
    First,
    /// That of the mark of end (GPT).
    Last,
}

config! {
    /// Transformer: a sentence classifier (Devlin et al. 2018). With `training.start` it begins with the Transformer of a trained
    /// language model or a pretrained BERT, whose sizes take the place of those in `transformer`.
    pub struct TransformerClassifierConfig {
        /// Most tokens of a sentence with its two marks; for positions "learned".
        context: usize = 256, in SIZE;
        /// Whether a token sees only itself and those before it.
        causal: bool = false;
        /// Which states become the vector of a sentence: their "mean", the "first" or the "last".
        pooling: PooledStates = PooledStates::Mean;
        /// Size of a hidden layer (with tanh) on this vector; none if left out.
        readout: Option<usize> = None, in SIZE, example "256";
        /// Share of the vector's units that are set to zero in training, in [0, 1).
        pooled_dropout: f64 = 0.1, in FRACTION;
        /// Sizes and choices of the Transformer.
        [table] transformer: TextTransformerConfig = TextTransformerConfig::default();
    }
    check TransformerClassifierConfig::agree
}

impl TransformerClassifierConfig {
    /// A model of a few thousand weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            context: 16,
            pooled_dropout: 0.0,
            transformer: TextTransformerConfig::tiny(),
            ..Self::default()
        }
    }

    fn agree(&self, check: &mut Check) {
        if self.causal && self.pooling == PooledStates::First {
            let expected =
                "\"mean\" or \"last\": with causal = true the first state has seen no word";
            check.fail("pooling", "found \"first\"", expected);
        }
    }
}

/// A Transformer that classifies sentences.
#[derive(Module, Debug)]
pub struct TransformerClassifier {
    /// Embeddings and blocks.
    pub transformer: TextTransformer,
    /// `U, b`: pooled vector to hidden layer.
    pub hidden: Option<Linear>,
    /// `W, c`: to classes.
    pub output: Linear,
    #[module(skip)]
    vocabulary: Vocabulary,
    #[module(skip)]
    pooling: PooledStates,
    #[module(skip)]
    dropout: f64,
}

impl ModelConfig for TransformerClassifierConfig {
    type Role = AnyClassifier;
    type Model = TransformerClassifier;

    fn draw(
        &self,
        sizes: &ClassifierSizes,
        init: &mut Initializer,
    ) -> Result<TransformerClassifier, ModelError> {
        let size = self.transformer.d_model;
        let objective = match self.causal {
            true => Objective::Causal,
            false => Objective::Masked,
        };
        let read = self.readout.unwrap_or(size);
        Ok(TransformerClassifier {
            transformer: self
                .transformer
                .draw(&sizes.vocabulary, self.context, objective, init)?,
            hidden: self.readout.map(|readout| init.linear(size, readout, true)),
            output: init.linear(read, sizes.classes, true),
            vocabulary: sizes.vocabulary,
            pooling: self.pooling,
            dropout: self.pooled_dropout,
        })
    }

    fn layers(&self) -> usize {
        self.transformer.layers
    }

    fn properties(&self) -> ClassifierProperties {
        // A mark of start and one of end.
        let words = self.context.saturating_sub(2);
        ClassifierProperties {
            longest: (self.transformer.positions == Positions::Learned).then_some(words),
        }
    }
}

impl TransformerClassifier {
    /// `[batch, d]` of `states [batch, time, d]`.
    fn pool(&self, states: Tensor<3>, keep: &PaddingMask) -> Tensor<2> {
        let [batch, time, size] = states.dims();
        match self.pooling {
            PooledStates::Mean => mean(states.swap_dims(0, 1), keep),
            PooledStates::First => states.narrow(1, 0, 1).squeeze_dim(1),
            PooledStates::Last => {
                let rows = keep.lengths().iter().enumerate();
                let last = rows.map(|(row, length)| row * time + length.saturating_sub(1));
                let last: Vec<usize> = last.collect();
                let flat: Tensor<2> = states.reshape([batch * time, size]);
                let last = index(&last, &flat.device());
                flat.select(0, last)
            }
        }
    }
}

impl Classifier for TransformerClassifier {
    fn vocabulary(&self) -> Vocabulary {
        self.vocabulary
    }

    fn reads_start(&self) -> bool {
        true
    }

    fn forward(&self, source: &SourceBatch, noise: &mut DropoutRng) -> Classified {
        let ids = source.ids.clone();
        let read = self
            .transformer
            .forward(ids, &source.keep, Observe::Nothing, noise);
        let mut vector = dropout(self.pool(read.states, &source.keep), self.dropout, noise);
        if let Some(hidden) = &self.hidden {
            vector = dropout(tanh(bridge::apply(hidden, vector)), self.dropout, noise);
        }
        Classified {
            logits: bridge::apply(&self.output, vector),
            penalty: None,
            maps: vec![],
        }
    }

    fn look(&self, source: &SourceBatch) -> Option<Vec<ClassifierMap>> {
        let (ids, noise) = (source.ids.clone(), &mut DropoutRng::none());
        let read = self
            .transformer
            .forward(ids, &source.keep, Observe::Weights, noise);
        let weights = read.own.into_iter().filter_map(|layer| layer.weights);
        let maps = weights.map(|weights| ClassifierMap {
            name: "self",
            by_words: true,
            weights,
            is_normalized: self.transformer.normalized,
        });
        Some(maps.collect())
    }
}
