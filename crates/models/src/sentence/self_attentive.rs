//! The self-attentive encoder as a classifier (Lin et al. 2017).

use regard_config::{Check, Choice, LAYERS, NOT_NEGATIVE, SIZE, config};
use regard_nn::{initialize::Initializer, recurrent::AttentivePooling};

use super::{
    encoders::{LstmEncoder, SelfAttentiveEncoder, SentenceEncoder, check_halves},
    model::{SentenceClassifier, SentenceDropout},
};
use crate::{
    AnyClassifier, attention::NormalizerConfig, classifier::ClassifierSizes, error::ModelError,
    role::ModelConfig,
};

config! {
    /// Self-attentive encoder: a sentence classifier, an LSTM in both directions whose states are
    /// pooled by several hops of attention (Lin et al. 2017).
    pub struct SelfAttentiveConfig {
        /// Size of a word vector.
        embedding: usize = 128, in SIZE;
        /// Size of a layer's state, of both directions together (there 600).
        hidden: usize = 168, in SIZE;
        /// Number of stacked layers.
        layers: usize = 1, in LAYERS;
        /// Size of the alignment model's hidden layer (d_a, there 350).
        attention_dimension: usize = 64, in SIZE;
        /// Number of hops (r, there 30).
        hops: usize = 4, in SIZE;
        /// From scores to weights (in the paper "softmax"); not "hard-reinforce" or "addressing".
        [choice] normalizer: NormalizerConfig = NormalizerConfig::Softmax;
        /// Weight of the penalty on hops that look at the same words, at least 0.
        penalty: f64 = 0.1, in NOT_NEGATIVE;
        /// Size of the classifier's hidden layer.
        readout: usize = 64, in SIZE;
        /// Dropout.
        [table] dropout: SentenceDropout = SentenceDropout::default();
    }
    check SelfAttentiveConfig::agree
}

impl SelfAttentiveConfig {
    /// A model of a few hundred weights, for tests and examples.
    pub fn tiny() -> Self {
        Self {
            embedding: 8,
            hidden: 6,
            attention_dimension: 5,
            hops: 3,
            penalty: 0.5,
            readout: 7,
            dropout: SentenceDropout::none(),
            ..Self::default()
        }
    }

    fn agree(&self, check: &mut Check) {
        check_halves(self.hidden, check);
        let why = match &self.normalizer {
            NormalizerConfig::HardReinforce(_) => {
                "\"hard-straight-through\" or \"hard-gumbel\": this one rewards the draws of a decoder"
            }
            NormalizerConfig::Addressing(_) => {
                "one that looks at scores alone: a pooling has no queries"
            }
            _ => return,
        };
        check.fail(
            "normalizer",
            format!("found {:?}", self.normalizer.kind()),
            why,
        );
    }
}

impl ModelConfig for SelfAttentiveConfig {
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
                let sizes = [self.embedding, self.hidden, self.layers];
                let encoder = SelfAttentiveEncoder {
                    lstm: LstmEncoder::new(2, sizes, init),
                    pooling: AttentivePooling::new(
                        self.hidden,
                        self.attention_dimension,
                        self.hops,
                        init,
                    )
                    .with_normalize(self.normalizer.init(
                        self.hops,
                        self.hidden,
                        init,
                    )),
                    penalty: self.penalty,
                    is_normalized: self.normalizer.sums_to_one(),
                };
                let pooled = self.hops * self.hidden;
                (SentenceEncoder::SelfAttentive(encoder), pooled)
            },
        ))
    }
}
