//! The long short-term memory-network as a classifier (Cheng, Dong and Lapata 2016).

use regard_config::{LAYERS, SIZE, config};
use regard_nn::initialize::Initializer;

use super::{
    encoders::SentenceEncoder,
    model::{SentenceClassifier, SentenceDropout},
};
use crate::{
    AnyClassifier, classifier::ClassifierSizes, error::ModelError, lstmn::LstmnEncoder,
    role::ModelConfig,
};

config! {
    /// Long short-term memory-network: a sentence classifier that reads word by word and searches
    /// everything read so far by attention (Cheng, Dong and Lapata 2016).
    pub struct LstmnConfig {
        /// Size of a word vector (there 300, trained before).
        embedding: usize = 128, in SIZE;
        /// Size of a layer's state (there 168).
        hidden: usize = 168, in SIZE;
        /// Number of stacked layers (there 1 and 2).
        layers: usize = 1, in LAYERS;
        /// Size in which a word and the states read so far are compared.
        attention_dimension: usize = 64, in SIZE;
        /// Size of the classifier's hidden layer.
        readout: usize = 64, in SIZE;
        /// Dropout.
        [table] dropout: SentenceDropout = SentenceDropout::default();
    }
}

impl LstmnConfig {
    /// A model of a few hundred weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            embedding: 8,
            hidden: 6,
            attention_dimension: 5,
            readout: 7,
            dropout: SentenceDropout::none(),
            ..Self::default()
        }
    }
}

impl ModelConfig for LstmnConfig {
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
                let (n, a) = (self.hidden, self.attention_dimension);
                let encoder = LstmnEncoder::new(self.layers, self.embedding, n, a, init);
                (SentenceEncoder::Lstmn(encoder), n)
            },
        ))
    }
}
