//! `[batch]`, `[optimizer]` and `[schedule]`.

use regard_config::{COUNT, Check, FRACTION, NOT_NEGATIVE, POSITIVE, Range, SIZE, config, kinds};

use crate::corpus::Budget;

const POOL: Range<usize> = Range {
    holds: |pairs| pairs >= 1,
    expected: "at least 1",
};

/// What is not 0 as an `f32`: the division by the root of a gradient of 0 gives a number.
const EPSILON: Range<f64> = Range {
    holds: |epsilon| (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&epsilon),
    expected: "1.1754944e-38 to 3.4028235e38, which 32 bits can hold",
};

const FACTOR: Range<f64> = Range {
    holds: |factor| factor > 0.0 && factor < 1.0,
    expected: "above 0 and below 1",
};

config! {
    /// How pairs are put together: under one limit, or both.
    pub struct Batching {
        /// Most padded positions: pairs times the longest side, markers included.
        tokens: Option<usize> = None, in SIZE, example "4096";
        /// Most pairs; 64 if neither limit is given.
        sentences: Option<usize> = None, in SIZE, example "64";
        /// Pairs that are sorted by length together; larger wastes less on padding.
        pool: usize = 6_400, in POOL;
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

kinds! {
    /// The optimizer, chosen by `kind`.
    pub enum Optimizer {
        /// Kingma and Ba 2015.
        "adam" => Adam,
        /// Loshchilov and Hutter 2019.
        "adamw" => AdamW,
        /// Zeiler 2012.
        "adadelta" => Adadelta,
        /// Stochastic gradient descent.
        "sgd" => Sgd,
    }
}

impl Optimizer {
    /// What its state holds: optimizers of the same kind can go on from each other's.
    pub fn state_kind(&self) -> &'static str {
        match self {
            Self::Adam(_) | Self::AdamW(_) => "adam",
            Self::Adadelta(_) => "adadelta",
            Self::Sgd(_) => "sgd",
        }
    }
}

impl Optimizer {
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

config! {
    /// Adam.
    pub struct Adam {
        /// Decay of the mean of gradients, in [0, 1).
        beta1: f64 = 0.9, in FRACTION;
        /// Decay of the mean of squared gradients, in [0, 1).
        beta2: f64 = 0.999, in FRACTION;
        /// Added to the root in the denominator, above 0.
        epsilon: f64 = 1e-8, in EPSILON;
        /// Largest norm of the gradient of all parameters together; 0 does not clip.
        clip_norm: f64 = 1.0, in NOT_NEGATIVE;
    }
}

config! {
    /// Adam with decoupled weight decay.
    pub struct AdamW {
        /// Decay of the mean of gradients, in [0, 1).
        beta1: f64 = 0.9, in FRACTION;
        /// Decay of the mean of squared gradients, in [0, 1).
        beta2: f64 = 0.999, in FRACTION;
        /// Added to the root in the denominator, above 0.
        epsilon: f64 = 1e-8, in EPSILON;
        /// Weight decay, times the learning rate at each step, at least 0.
        weight_decay: f64 = 0.01, in NOT_NEGATIVE;
        /// Largest norm of the gradient of all parameters together; 0 does not clip.
        clip_norm: f64 = 1.0, in NOT_NEGATIVE;
    }
}

config! {
    /// Adadelta. Bahdanau's: rho 0.95, epsilon 1e-6, clip_norm 1, learning rate 1.
    pub struct Adadelta {
        /// Decay of the means of squares, in [0, 1).
        rho: f64 = 0.95, in FRACTION;
        /// Added under both roots, above 0.
        epsilon: f64 = 1e-6, in EPSILON;
        /// Largest norm of the gradient of all parameters together; 0 does not clip.
        clip_norm: f64 = 1.0, in NOT_NEGATIVE;
    }
}

config! {
    /// Stochastic gradient descent. Luong's: learning rate 1, clip_norm 5.
    pub struct Sgd {
        /// Share of the former step that is kept, in [0, 1).
        momentum: f64 = 0.0, in FRACTION;
        /// Whether the momentum looks ahead (Nesterov).
        nesterov: bool = false;
        /// Times the weights, added to their gradients.
        weight_decay: f64 = 0.0, in NOT_NEGATIVE;
        /// Largest norm of the gradient of all parameters together; 0 does not clip.
        clip_norm: f64 = 5.0, in NOT_NEGATIVE;
    }
    check Sgd::agree
}

impl Sgd {
    fn agree(&self, check: &mut Check) {
        if self.nesterov && self.momentum == 0.0 {
            check.fail(
                "nesterov",
                "found true with momentum = 0",
                "false, or a momentum above 0",
            );
        }
    }
}

kinds! {
    /// The learning rate over time, chosen by `kind`.
    pub enum Schedule {
        /// Always the same.
        "constant" => Constant,
        /// A linear rise, then a fall with the inverse square root of the step.
        "inverse-square-root" => InverseSquareRoot,
        /// Lower whenever validation no longer improves.
        "plateau" => Plateau,
        /// A linear rise, then a fall along half a cosine.
        "cosine" => Cosine,
    }
}

impl Schedule {
    /// The learning rate of the recipe, of which every update's is a multiple.
    pub fn learning_rate(&self) -> f64 {
        match self {
            Self::Constant(schedule) => schedule.learning_rate,
            Self::InverseSquareRoot(schedule) => schedule.learning_rate,
            Self::Plateau(schedule) => schedule.learning_rate,
            Self::Cosine(schedule) => schedule.learning_rate,
        }
    }
}

config! {
    /// A constant learning rate.
    pub struct Constant {
        /// The learning rate, above 0.
        learning_rate: f64 = 0.001, in POSITIVE;
    }
}

config! {
    /// At step t, counted from 1: learning_rate * min(t / warmup, sqrt(warmup / t)).
    pub struct InverseSquareRoot {
        /// The highest learning rate, reached at step warmup; above 0.
        learning_rate: f64 = 0.001, in POSITIVE;
        /// Steps of warm-up, at least 1.
        warmup: u64 = 2_000, in COUNT;
    }
}

config! {
    /// The learning rate is multiplied by factor when patience validations in a row were no
    /// better than the best one before.
    pub struct Plateau {
        /// The learning rate at the start, above 0.
        learning_rate: f64 = 0.001, in POSITIVE;
        /// What the learning rate is multiplied by, in (0, 1).
        factor: f64 = 0.5, in FACTOR;
        /// Validations without improvement before that, at least 1.
        patience: u64 = 2, in COUNT;
        /// The lowest learning rate, at least 0.
        min_learning_rate: f64 = 1e-6;
    }
    check Plateau::agree
}

config! {
    /// Loshchilov and Hutter 2017, without restarts: up to learning_rate in a straight line until step warmup, then down to
    /// min_learning_rate along half a cosine until step decay_steps, and there it stays.
    pub struct Cosine {
        /// The highest learning rate, above 0.
        learning_rate: f64 = 0.001, in POSITIVE;
        /// Steps of warm-up, at least 1.
        warmup: u64 = 100, in COUNT;
        /// The step of the lowest learning rate, beyond warmup.
        decay_steps: u64 = 5_000, in COUNT;
        /// The lowest learning rate, at least 0.
        min_learning_rate: f64 = 1e-4, in NOT_NEGATIVE;
    }
    check Cosine::agree
}

impl Cosine {
    fn agree(&self, check: &mut Check) {
        let holds = self.decay_steps > self.warmup;
        let expected = format!("more than warmup ({})", self.warmup);
        check.require(holds, "decay_steps", self.decay_steps, &expected);
        let least = self.min_learning_rate;
        let holds = least <= self.learning_rate;
        check.require(holds, "min_learning_rate", least, "at most learning_rate");
    }
}

impl Plateau {
    fn agree(&self, check: &mut Check) {
        let least = self.min_learning_rate;
        let holds = (0.0..=self.learning_rate).contains(&least);
        check.require(holds, "min_learning_rate", least, "0 to learning_rate");
    }
}
