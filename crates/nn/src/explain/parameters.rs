//! Which mechanism reads which parameter.
//!
//! ```
//! use regard_nn::explain::Example;
//!
//! assert_eq!(Example::new("cosine")?.takes(), ["softcap", "beta"]);
//! # Ok::<(), regard_nn::explain::ExplainError>(())
//! ```

use super::{Example, ExplainError, Normalizer, Parameters, Scorer};
use crate::mask::Locality;

/// A parameter and who reads it.
struct Parameter {
    name: &'static str,
    readers: Readers,
    is_given: fn(&Parameters) -> bool,
}

/// The parts of a mechanism that read a parameter.
enum Readers {
    All,
    Scorers(&'static [Scorer]),
    Normalizers(&'static [Normalizer]),
    Local,
    Predictive,
}

const fn parameter(
    name: &'static str,
    readers: Readers,
    is_given: fn(&Parameters) -> bool,
) -> Parameter {
    Parameter {
        name,
        readers,
        is_given,
    }
}

use Normalizer as N;
use Readers::{All, Local, Normalizers, Predictive, Scorers};
use Scorer as S;

/// All parameters. `D` of local attention is part of [`Example::locality`], which always has one.
#[rustfmt::skip]
static PARAMETERS: [Parameter; 18] = [
    parameter("scale", Scorers(&[S::ScaledDot, S::Distance]), |p| p.scale.is_some()),
    parameter("softcap", All, |p| p.softcap.is_some()),
    parameter(
        "query weight",
        Scorers(&[S::General, S::ScaledGeneral, S::Additive, S::WeightNormAdditive, S::Location]),
        |p| p.query_weight.is_some(),
    ),
    parameter("key weight", Scorers(&[S::Additive, S::WeightNormAdditive]), |p| p.key_weight.is_some()),
    parameter("vector", Scorers(&[S::Additive, S::WeightNormAdditive]), |p| p.vector.is_some()),
    parameter("bias", Scorers(&[S::Additive, S::WeightNormAdditive]), |p| p.bias.is_some()),
    parameter("gain", Scorers(&[S::ScaledGeneral, S::WeightNormAdditive]), |p| p.gain.is_some()),
    parameter("beta", Scorers(&[S::Cosine]), |p| p.beta.is_some()),
    parameter("half width", Local, |_| false),
    parameter("position weight", Predictive, |p| p.position_weight.is_some()),
    parameter("position vector", Predictive, |p| p.position_vector.is_some()),
    parameter("sink", Normalizers(&[N::Sink]), |p| p.sink.is_some()),
    parameter("sigmoid bias", Normalizers(&[N::Sigmoid]), |p| p.sigmoid_bias.is_some()),
    parameter("draw", Normalizers(&[N::HardSample]), |p| p.draw.is_some()),
    parameter("previous", Normalizers(&[N::Monotonic, N::Addressing]), |p| p.previous.is_some()),
    parameter("gate", Normalizers(&[N::Addressing]), |p| p.gate.is_some()),
    parameter("shift", Normalizers(&[N::Addressing]), |p| p.shift.is_some()),
    parameter("sharpening", Normalizers(&[N::Addressing]), |p| p.sharpening.is_some()),
];

impl Parameters {
    /// The names of those that are given.
    pub fn given(&self) -> impl Iterator<Item = &'static str> {
        PARAMETERS
            .iter()
            .filter(|parameter| (parameter.is_given)(self))
            .map(|parameter| parameter.name)
    }
}

impl Example {
    /// The names of the parameters that its score, normaliser and locality read.
    pub fn takes(&self) -> Vec<&'static str> {
        let reads = |parameter: &&Parameter| match parameter.readers {
            All => true,
            Scorers(scorers) => scorers.contains(&self.scorer),
            Normalizers(normalizers) => normalizers.contains(&self.normalizer),
            Local => self.half_width().is_some(),
            Predictive => matches!(self.locality, Locality::Predictive { .. }),
        };
        PARAMETERS.iter().filter(reads).map(|p| p.name).collect()
    }

    /// The error for a parameter that nothing here reads.
    pub fn not_taken(&self, parameter: &'static str) -> ExplainError {
        let own = self.mechanism.normalizer == self.normalizer;
        ExplainError::NotTaken {
            parameter,
            mechanism: match own {
                true => self.name().to_owned(),
                false => format!("{} with {} weights", self.name(), self.normalizer.name()),
            },
            taken: self.takes(),
        }
    }

    /// Refuses parameters that nothing here reads.
    pub(super) fn check_parameters(&self) -> Result<(), ExplainError> {
        let taken = self.takes();
        match self.parameters.given().find(|name| !taken.contains(name)) {
            None => Ok(()),
            Some(name) => Err(self.not_taken(name)),
        }
    }
}
