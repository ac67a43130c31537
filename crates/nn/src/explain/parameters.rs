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

    /// The parameters that are read, with the default of each that is not given. There is no default of `softcap`; that of the sigmoid's
    /// bias is the one of queries that see all keys.
    ///
    /// ```
    /// use regard_nn::explain::Example;
    ///
    /// let filled = Example::on_words("scaled-dot")?.filled();
    /// assert_eq!(filled.scale, Some(1.0 / 3f64.sqrt()));
    /// assert_eq!(filled.beta, None);
    /// # Ok::<(), regard_nn::explain::ExplainError>(())
    /// ```
    pub fn filled(&self) -> Parameters {
        let given = self.parameters.clone();
        let taken = self.takes();
        let size = |rows: &[Vec<f64>]| rows.first().map_or(0, Vec::len);
        let (query, key) = (size(&self.queries), size(&self.keys));
        let keys = self.keys.len();
        // A default of `name`, if it is read.
        fn or<T>(given: Option<T>, taken: bool, default: T) -> Option<T> {
            given.or(taken.then_some(default))
        }
        let reads = |name: &str| taken.contains(&name);
        let identity = |size: usize| -> Vec<Vec<f64>> {
            let one = |row: usize| (0..size).map(move |column| f64::from(u8::from(row == column)));
            (0..size).map(|row| one(row).collect()).collect()
        };
        let query_weight = or(given.query_weight, reads("query weight"), identity(query));
        let hidden = query_weight.as_ref().map_or(0, Vec::len);
        let position_weight = or(
            given.position_weight,
            reads("position weight"),
            identity(query),
        );
        let places = position_weight.as_ref().map_or(0, Vec::len);
        let first = (0..keys).map(|key| f64::from(u8::from(key == 0))).collect();
        Parameters {
            scale: or(given.scale, reads("scale"), 1.0 / (query as f64).sqrt()),
            softcap: given.softcap,
            query_weight,
            key_weight: or(given.key_weight, reads("key weight"), identity(key)),
            vector: or(given.vector, reads("vector"), vec![1.0; hidden]),
            bias: or(given.bias, reads("bias"), vec![0.0; hidden]),
            gain: or(given.gain, reads("gain"), 1.0),
            beta: or(given.beta, reads("beta"), 1.0),
            sink: or(given.sink, reads("sink"), 0.0),
            sigmoid_bias: or(
                given.sigmoid_bias,
                reads("sigmoid bias"),
                -(keys as f64).ln(),
            ),
            draw: or(given.draw, reads("draw"), 0.5),
            previous: or(given.previous, reads("previous"), first),
            gate: or(given.gate, reads("gate"), 1.0),
            shift: or(given.shift, reads("shift"), vec![0.0, 1.0, 0.0]),
            sharpening: or(given.sharpening, reads("sharpening"), 1.0),
            position_weight,
            position_vector: or(
                given.position_vector,
                reads("position vector"),
                vec![1.0; places],
            ),
        }
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
