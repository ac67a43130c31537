//! The LSTM as a classifier: the baseline.

use regard_config::{Check, LAYERS, SIZE, config};
use regard_nn::initialize::Initializer;

use super::{
    encoders::{LstmEncoder, SentenceEncoder, check_halves},
    model::{SentenceClassifier, SentenceDropout},
};
use crate::{AnyClassifier, classifier::ClassifierSizes, error::ModelError, role::ModelConfig};

config! {
    /// LSTM: a sentence classifier without attention, the baseline.
    pub struct LstmConfig {
        /// Size of a word vector.
        embedding: usize = 128, in SIZE;
        /// Size of a layer's state, of both directions together.
        hidden: usize = 168, in SIZE;
        /// Number of stacked layers.
        layers: usize = 1, in LAYERS;
        /// Whether it reads in both directions, each with half of the units.
        bidirectional: bool = false;
        /// Size of the classifier's hidden layer.
        readout: usize = 64, in SIZE;
        /// Dropout.
        [table] dropout: SentenceDropout = SentenceDropout::default();
    }
    check LstmConfig::agree
}

impl LstmConfig {
    /// A model of a few hundred weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            embedding: 8,
            hidden: 6,
            readout: 7,
            dropout: SentenceDropout::none(),
            ..Self::default()
        }
    }

    fn agree(&self, check: &mut Check) {
        if self.bidirectional {
            check_halves(self.hidden, check);
        }
    }
}

impl ModelConfig for LstmConfig {
    type Role = AnyClassifier;
    type Model = SentenceClassifier;

    fn layers(&self) -> usize {
        self.layers
    }

    fn draw(
        &self,
        sizes: &ClassifierSizes,
        init: &mut Initializer,
    ) -> Result<SentenceClassifier, ModelError> {
        let around = [self.embedding, self.readout];
        Ok(SentenceClassifier::draw(
            sizes,
            around,
            &self.dropout,
            init,
            |init| {
                let directions = if self.bidirectional { 2 } else { 1 };
                let sizes = [self.embedding, self.hidden, self.layers];
                let encoder = LstmEncoder::new(directions, sizes, init);
                (SentenceEncoder::Lstm(encoder), self.hidden)
            },
        ))
    }
}
