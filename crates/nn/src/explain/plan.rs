//! What computes a mechanism on tensors: a kernel, or plain operations and why.

use burn::tensor::{Device, Tensor};

use super::{Example, ExplainError, Normalizer, Scorer, check, masks};
use crate::{
    Attention, AttentionOptions, KernelPlan, Unserved,
    initialize::Initializer,
    normalize::{
        Addressing, Entmax15, Estimator, HardSample, Hardmax, Identity, Monotonic, Normalize,
        Sigmoid, Sink, Softmax, Sparsemax,
    },
    score::{
        Additive, Cosine, Distance, GaussianWindow, General, Location, ScaledDot, ScaledGeneral,
        Score, WeightNormAdditive,
    },
};

impl Example {
    /// Which kernel serves the mechanism on `f32` tensors of the example's sizes on `device`, or why none does.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use regard_nn::explain::Example;
    ///
    /// let unserved = Example::on_words("sparsemax")?.plan(&Device::flex())?.unwrap_err();
    /// # if cfg!(feature = "kernels") {
    /// assert_eq!(unserved.to_string(), "no kernel serves the sparsemax normaliser: plain operations");
    /// # }
    /// # Ok::<(), regard_nn::explain::ExplainError>(())
    /// ```
    ///
    /// # Errors
    /// As [`explain`](super::explain).
    pub fn plan(&self, device: &Device) -> Result<Result<KernelPlan, Unserved>, ExplainError> {
        let values = check::check(self)?;
        let (queries, keys) = (self.queries.len(), self.keys.len());
        let [query_size, key_size] = [self.queries[0].len(), self.keys[0].len()];
        let init = &mut Initializer::new(0, device);
        let score = self.score(query_size, key_size, keys, init);
        let mut attention = Attention::new(score)
            .with_normalize(self.normalize(query_size, init))
            .with_locality(self.locality, query_size, init);
        if let Some(softcap) = self.parameters.softcap {
            attention = attention.with_softcap(softcap);
        }
        let mut call = AttentionOptions::default();
        if let Some(mask) = &self.mask {
            call = call.mask(masks::Expression::parse(mask)?.mask(queries, keys)?);
        }
        let zeros = |length, size| Tensor::<4>::zeros([1, 1, length, size], device);
        let (query, value) = (zeros(queries, query_size), zeros(keys, values[0].len()));
        Ok(attention.plan(&query, &value, &call))
    }

    fn score(&self, query: usize, key: usize, keys: usize, init: &mut Initializer) -> Score {
        match self.scorer {
            Scorer::Dot => Score::dot(),
            Scorer::ScaledDot => Score::ScaledDot(match self.parameters.scale {
                Some(scale) => ScaledDot::with_scale(scale),
                None => ScaledDot::default(),
            }),
            Scorer::General => Score::General(General::new(query, key, init)),
            Scorer::ScaledGeneral => Score::ScaledGeneral(ScaledGeneral::new(query, key, init)),
            Scorer::Additive => Score::Additive(Additive::new(query, key, key, init)),
            Scorer::WeightNormAdditive => {
                Score::WeightNormAdditive(WeightNormAdditive::new(query, key, key, init))
            }
            Scorer::Cosine => Score::Cosine(Cosine::fixed(1.0)),
            Scorer::Distance => Score::Distance(Distance::default()),
            Scorer::Location => Score::Location(Location::new(query, keys, init)),
            Scorer::GaussianWindow => Score::GaussianWindow(GaussianWindow::new(query, 1, init)),
        }
    }

    fn normalize(&self, query: usize, init: &mut Initializer) -> Normalize {
        match self.normalizer {
            Normalizer::Softmax => Normalize::Softmax(Softmax),
            Normalizer::Sink => Normalize::Sink(Sink::fixed(0.0)),
            Normalizer::Sparsemax => Normalize::Sparsemax(Sparsemax),
            Normalizer::Entmax15 => Normalize::Entmax15(Entmax15),
            Normalizer::Sigmoid => Normalize::Sigmoid(Sigmoid::default()),
            Normalizer::Hardmax => Normalize::Hardmax(Hardmax),
            Normalizer::HardSample => {
                Normalize::HardSample(HardSample::new(Estimator::StraightThrough))
            }
            Normalizer::Monotonic => Normalize::Monotonic(Monotonic::default()),
            Normalizer::Addressing => Normalize::Addressing(Addressing::new(query, 1, init)),
            Normalizer::Identity => Normalize::Identity(Identity),
        }
    }
}
