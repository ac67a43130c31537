//! `[batch]`, `[optimizer]` and `[schedule]`.

use serde::Serialize;

use super::section::section;
use crate::corpus::Budget;

section! {
    /// How pairs are put together: under one limit, or both.
    pub struct Batching {
        /// Most padded positions: pairs times the longest side, markers included.
        tokens: Option<usize> = None, example "4096";
        /// Most pairs; 64 if neither limit is given.
        sentences: Option<usize> = None, example "64";
        /// Pairs that are sorted by length together; larger wastes less on padding.
        pool: usize = 6_400;
    }
}

impl Batching {
    /// The budget of a batch.
    pub fn budget(&self) -> Budget {
        Budget {
            tokens: self.tokens,
            sentences: match (self.tokens, self.sentences) {
                (None, None) => Some(64),
                (_, sentences) => sentences,
            },
            pool: self.pool,
        }
    }
}

/// The optimizer, chosen by `kind`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Optimizer {
    /// Kingma and Ba 2015.
    Adam(Adam),
    /// Loshchilov and Hutter 2019.
    AdamW(AdamW),
    /// Zeiler 2012.
    Adadelta(Adadelta),
    /// Stochastic gradient descent.
    Sgd(Sgd),
}

impl Default for Optimizer {
    fn default() -> Self {
        Self::Adam(Adam::default())
    }
}

impl Optimizer {
    /// The name in `kind`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Adam(_) => "adam",
            Self::AdamW(_) => "adamw",
            Self::Adadelta(_) => "adadelta",
            Self::Sgd(_) => "sgd",
        }
    }

    /// The norm that gradients are clipped to, if they are.
    pub fn clip_norm(&self) -> Option<f64> {
        let norm = match self {
            Self::Adam(adam) => adam.clip_norm,
            Self::AdamW(adamw) => adamw.clip_norm,
            Self::Adadelta(adadelta) => adadelta.clip_norm,
            Self::Sgd(sgd) => sgd.clip_norm,
        };
        (norm != 0.0).then_some(norm)
    }
}

section! {
    /// Adam.
    pub struct Adam {
        /// Decay of the mean of gradients, in [0, 1).
        beta1: f64 = 0.9;
        /// Decay of the mean of squared gradients, in [0, 1).
        beta2: f64 = 0.999;
        /// Added to the root in the denominator, above 0.
        epsilon: f64 = 1e-8;
        /// Largest norm of the gradient of all parameters together; 0 does not clip.
        clip_norm: f64 = 1.0;
    }
}

section! {
    /// Adam with decoupled weight decay.
    pub struct AdamW {
        /// Decay of the mean of gradients, in [0, 1).
        beta1: f64 = 0.9;
        /// Decay of the mean of squared gradients, in [0, 1).
        beta2: f64 = 0.999;
        /// Added to the root in the denominator, above 0.
        epsilon: f64 = 1e-8;
        /// Weight decay, times the learning rate at each step, at least 0.
        weight_decay: f64 = 0.01;
        /// Largest norm of the gradient of all parameters together; 0 does not clip.
        clip_norm: f64 = 1.0;
    }
}

section! {
    /// Adadelta. Bahdanau's: rho 0.95, epsilon 1e-6, clip_norm 1, learning rate 1.
    pub struct Adadelta {
        /// Decay of the means of squares, in [0, 1).
        rho: f64 = 0.95;
        /// Added under both roots, above 0.
        epsilon: f64 = 1e-6;
        /// Largest norm of the gradient of all parameters together; 0 does not clip.
        clip_norm: f64 = 1.0;
    }
}

section! {
    /// Stochastic gradient descent. Luong's: learning rate 1, clip_norm 5.
    pub struct Sgd {
        /// Share of the former step that is kept, in [0, 1).
        momentum: f64 = 0.0;
        /// Whether the momentum looks ahead (Nesterov).
        nesterov: bool = false;
        /// Largest norm of the gradient of all parameters together; 0 does not clip.
        clip_norm: f64 = 5.0;
    }
}

/// The learning rate over time, chosen by `kind`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Schedule {
    /// Always the same.
    Constant(Constant),
    /// Up in a straight line, then down with the root of the step.
    InverseSquareRoot(InverseSquareRoot),
    /// Down when validation no longer improves.
    Plateau(Plateau),
}

impl Default for Schedule {
    fn default() -> Self {
        Self::Constant(Constant::default())
    }
}

impl Schedule {
    /// The name in `kind`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Constant(_) => "constant",
            Self::InverseSquareRoot(_) => "inverse-square-root",
            Self::Plateau(_) => "plateau",
        }
    }

    /// The learning rate that the others are multiples of.
    pub fn learning_rate(&self) -> f64 {
        match self {
            Self::Constant(schedule) => schedule.learning_rate,
            Self::InverseSquareRoot(schedule) => schedule.learning_rate,
            Self::Plateau(schedule) => schedule.learning_rate,
        }
    }
}

section! {
    /// A constant learning rate.
    pub struct Constant {
        /// The learning rate, above 0.
        learning_rate: f64 = 0.001;
    }
}

section! {
    /// At step t, counted from 1: learning_rate * min(t / warmup, sqrt(warmup / t)).
    pub struct InverseSquareRoot {
        /// The highest learning rate, reached at step warmup; above 0.
        learning_rate: f64 = 0.001;
        /// Steps of warm-up, at least 1.
        warmup: u64 = 2_000;
    }
}

section! {
    /// The learning rate is multiplied by factor when patience validations in a row were no
    /// better than the best one before.
    pub struct Plateau {
        /// The learning rate at the start, above 0.
        learning_rate: f64 = 0.001;
        /// What the learning rate is multiplied by, in (0, 1).
        factor: f64 = 0.5;
        /// Validations without improvement before it is, at least 1.
        patience: u64 = 2;
        /// The lowest learning rate, at least 0.
        min_learning_rate: f64 = 1e-6;
    }
}
