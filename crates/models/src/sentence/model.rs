//! The parts that all classifiers of sentences share.

use burn::{
    module::Module,
    nn::{Embedding, Linear},
    tensor::activation::relu,
};
use regard_config::{FRACTION, config};
use regard_nn::{
    bridge,
    dropout::{DropoutRng, dropout},
    initialize::Initializer,
};

use super::encoders::SentenceEncoder;
use crate::{
    batch::SourceBatch,
    classifier::{Classified, Classifier, ClassifierSizes},
    vocabulary::Vocabulary,
};

config! {
    /// Shares of units set to zero in training, by place, of a sentence classifier.
    pub struct SentenceDropout {
        /// On whole words, in [0, 1).
        word: f64 = 0.1, in FRACTION;
        /// On word vectors, in [0, 1).
        embedding: f64 = 0.3, in FRACTION;
        /// Between stacked layers, in [0, 1); not on recurrent connections.
        layers: f64 = 0.3, in FRACTION;
        /// On the pooled vector and the classifier's hidden layer, in [0, 1).
        output: f64 = 0.5, in FRACTION;
    }
}

impl SentenceDropout {
    /// No dropout.
    pub fn none() -> Self {
        Self {
            word: 0.0,
            embedding: 0.0,
            layers: 0.0,
            output: 0.0,
        }
    }
}

/// A classifier of sentences.
#[derive(Module, Debug)]
pub struct SentenceClassifier {
    /// `E [vocabulary, embedding]`.
    pub embedding: Embedding,
    /// The encoder.
    pub encoder: SentenceEncoder,
    /// `U, b`: pooled vector to hidden layer.
    pub hidden: Linear,
    /// `W, c`: hidden layer to classes.
    pub output: Linear,
    #[module(skip)]
    vocabulary: Vocabulary,
    #[module(skip)]
    dropout: SentenceDropout,
}

impl SentenceClassifier {
    /// A classifier with word vectors of size `embedding` and a hidden layer of size `readout`. The function `encoder` draws the
    /// encoder and returns it with the size of its pooled vector.
    pub(super) fn draw(
        sizes: &ClassifierSizes,
        [embedding, readout]: [usize; 2],
        dropout: &SentenceDropout,
        init: &mut Initializer,
        encoder: impl FnOnce(&mut Initializer) -> (SentenceEncoder, usize),
    ) -> Self {
        let embedding = init.embedding(sizes.vocabulary.size, embedding, 0.1);
        let (encoder, pooled) = encoder(init);
        Self {
            embedding,
            encoder,
            hidden: init.linear(pooled, readout, true),
            output: init.linear(readout, sizes.classes, true),
            vocabulary: sizes.vocabulary,
            dropout: dropout.clone(),
        }
    }
}

impl Classifier for SentenceClassifier {
    fn vocabulary(&self) -> Vocabulary {
        self.vocabulary
    }

    fn forward(&self, source: &SourceBatch, noise: &mut DropoutRng) -> Classified {
        let [time, batch] = source.ids.dims();
        let shares = &self.dropout;
        let mut x = bridge::embed(&self.embedding, source.ids.clone()); // [time, batch, embedding]
        let words = noise.batch_axis(1);
        if let Some(words) = words.mask([time, batch, 1], shares.word, &x.device()) {
            let shape = x.dims();
            x = x * words.expand(shape);
        }
        let x = dropout(x, shares.embedding, noise.batch_axis(1));
        let pooled = self.encoder.forward(x, &source.keep, shares.layers, noise);
        let vector = dropout(pooled.vector, shares.output, noise);
        let hidden = relu(bridge::apply(&self.hidden, vector));
        let hidden = dropout(hidden, shares.output, noise);
        Classified {
            logits: bridge::apply(&self.output, hidden),
            penalty: pooled.penalty,
            maps: pooled.maps,
        }
    }
}
