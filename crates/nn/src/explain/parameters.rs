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

/// The parts of a mechanism that read a parameter.
enum Readers {
    All,
    Scorers(&'static [Scorer]),
    Normalizers(&'static [Normalizer]),
    Local,
    Predictive,
}

/// Whether a parameter is given.
type IsGiven = fn(&Parameters) -> bool;

use Normalizer as N;
use Readers::{All, Local, Normalizers, Predictive, Scorers};
use Scorer as S;

/// All parameters. `D` of local attention is part of [`Example::locality`], which always has one.
#[rustfmt::skip]
static PARAMETERS: [(&str, Readers, IsGiven); 18] = [
    ("scale", Scorers(&[S::ScaledDot, S::Distance]), |p| p.scale.is_some()),
    ("softcap", All, |p| p.softcap.is_some()),
    (
        "query weight",
        Scorers(&[S::General, S::ScaledGeneral, S::Additive, S::WeightNormAdditive, S::Location]),
        |p| p.query_weight.is_some(),
    ),
    ("key weight", Scorers(&[S::Additive, S::WeightNormAdditive]), |p| p.key_weight.is_some()),
    ("vector", Scorers(&[S::Additive, S::WeightNormAdditive]), |p| p.vector.is_some()),
    ("bias", Scorers(&[S::Additive, S::WeightNormAdditive]), |p| p.bias.is_some()),
    ("gain", Scorers(&[S::ScaledGeneral, S::WeightNormAdditive]), |p| p.gain.is_some()),
    ("beta", Scorers(&[S::Cosine]), |p| p.beta.is_some()),
    ("half width", Local, |_| false),
    ("position weight", Predictive, |p| p.position_weight.is_some()),
    ("position vector", Predictive, |p| p.position_vector.is_some()),
    ("sink", Normalizers(&[N::Sink]), |p| p.sink.is_some()),
    ("sigmoid bias", Normalizers(&[N::Sigmoid]), |p| p.sigmoid_bias.is_some()),
    ("draw", Normalizers(&[N::HardSample]), |p| p.draw.is_some()),
    ("previous", Normalizers(&[N::Monotonic, N::Addressing]), |p| p.previous.is_some()),
    ("gate", Normalizers(&[N::Addressing]), |p| p.gate.is_some()),
    ("shift", Normalizers(&[N::Addressing]), |p| p.shift.is_some()),
    ("sharpening", Normalizers(&[N::Addressing]), |p| p.sharpening.is_some()),
];

impl Parameters {
    /// The names of the parameters that are given.
    pub fn given(&self) -> impl Iterator<Item = &'static str> {
        let given = PARAMETERS.iter().filter(|(.., is_given)| is_given(self));
        given.map(|(name, ..)| *name)
    }
}

impl Example {
    /// The names of the parameters that its score, normaliser and locality read.
    pub fn takes(&self) -> Vec<&'static str> {
        let reads = |readers: &Readers| match readers {
            All => true,
            Scorers(scorers) => scorers.contains(&self.scorer),
            Normalizers(normalizers) => normalizers.contains(&self.normalizer),
            Local => self.locality != Locality::Global,
            Predictive => matches!(self.locality, Locality::Predictive { .. }),
        };
        let taken = PARAMETERS.iter().filter(|(_, readers, _)| reads(readers));
        taken.map(|(name, ..)| *name).collect()
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
