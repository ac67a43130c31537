//! How rotary positions are slowed down, as a key of a configuration.

use regard_config::{Check, Range, SIZE, choice, config};
use regard_nn::position::Scaling;

const FACTOR: Range<f64> = Range {
    holds: |value| (1.0..=1e6).contains(&value),
    expected: "1 to 1000000",
};

const TURNS: Range<f64> = Range {
    holds: |value| (1e-6..=1e6).contains(&value),
    expected: "0.000001 to 1000000",
};

config! {
    /// Keys of the scalings "linear" and "ntk".
    pub struct StretchConfig {
        /// The length of the longest texts over that of the longest texts of training, at least 1.
        factor: f64 = 2.0, in FACTOR;
    }
}

config! {
    /// Keys of the scaling "llama3".
    pub struct Llama3Config {
        /// By what the angles of the slowest pairs are divided, at least 1.
        factor: f64 = 8.0, in FACTOR;
        /// Pairs with at most so many turns over a text of original_length are divided by factor.
        low_frequency_factor: f64 = 1.0, in TURNS;
        /// Pairs with at least so many turns stay as they are; above low_frequency_factor.
        high_frequency_factor: f64 = 4.0, in TURNS;
        /// Tokens of the longest texts of training.
        original_length: usize = 8_192, in SIZE;
    }
    check Llama3Config::agree
}

impl Llama3Config {
    fn agree(&self, check: &mut Check) {
        let low = self.low_frequency_factor;
        check.require(
            self.high_frequency_factor > low,
            "high_frequency_factor",
            self.high_frequency_factor,
            &format!("a number above low_frequency_factor ({low})"),
        );
    }
}

choice! {
    /// How rotary positions are slowed down for texts longer than those of training.
    pub enum RotaryScalingConfig {
        /// Not at all.
        "none" => None,
        /// All angles are divided by a factor (Chen 2023).
        "linear" => Linear(StretchConfig),
        /// The base grows, so that the slowest angle is divided by a factor and the fastest is not (Peng 2023).
        "ntk" => Ntk(StretchConfig),
        /// Slow angles are divided by a factor, fast ones are not, those between in part (Llama 3.1).
        "llama3" => Llama3(Llama3Config),
    }
}

impl RotaryScalingConfig {
    /// The choice as the type of `regard-nn`.
    pub(crate) fn scaling(&self) -> Scaling {
        match self {
            Self::None => Scaling::None,
            Self::Linear(config) => Scaling::Linear {
                factor: config.factor,
            },
            Self::Ntk(config) => Scaling::Ntk {
                factor: config.factor,
            },
            Self::Llama3(config) => Scaling::Llama3 {
                factor: config.factor,
                low_frequency_factor: config.low_frequency_factor,
                high_frequency_factor: config.high_frequency_factor,
                original_length: config.original_length,
            },
        }
    }
}

impl From<Scaling> for RotaryScalingConfig {
    fn from(scaling: Scaling) -> Self {
        match scaling {
            Scaling::None => Self::None,
            Scaling::Linear { factor } => Self::Linear(StretchConfig { factor }),
            Scaling::Ntk { factor } => Self::Ntk(StretchConfig { factor }),
            Scaling::Llama3 {
                factor,
                low_frequency_factor,
                high_frequency_factor,
                original_length,
            } => Self::Llama3(Llama3Config {
                factor,
                low_frequency_factor,
                high_frequency_factor,
                original_length,
            }),
        }
    }
}
