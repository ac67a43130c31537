//! The learning rate over time.
//!
//! - constant: `η`
//! - inverse square root with warm-up (Vaswani 2017): rises linearly to `η` over `w` updates, then
//!   falls as `η · √(w / step)`
//! - cosine (Loshchilov & Hutter 2017): rises linearly to `η` over `w` updates, then falls as
//!   `m + (η - m) (1 + cos(π (step - w) / (d - w))) / 2` to `m` at update `d`
//! - plateau: `η` times `factor` each time the validation measure has not improved for `patience`
//!   validations, down to a minimum

use serde::{Deserialize, Serialize};

use crate::recipe::Schedule as Settings;

/// The state of a schedule between validations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScheduleState {
    /// The product of the reductions so far.
    pub reduction: f64,
    /// Validations in a row without improvement.
    pub stale: u64,
}

impl Default for ScheduleState {
    fn default() -> Self {
        Self {
            reduction: 1.0,
            stale: 0,
        }
    }
}

impl ScheduleState {
    /// The learning rate of update `step`, counted from 1.
    pub fn learning_rate(&self, settings: &Settings, step: u64) -> f64 {
        match settings {
            Settings::Constant(s) => s.learning_rate,
            Settings::InverseSquareRoot(s) => {
                let warmup = s.warmup.max(1) as f64;
                let step = step.max(1) as f64;
                s.learning_rate * (step / warmup).min((warmup / step).sqrt())
            }
            Settings::Cosine(s) if step <= s.warmup => {
                s.learning_rate * step.max(1) as f64 / s.warmup.max(1) as f64
            }
            Settings::Cosine(s) => {
                let done = (step - s.warmup) as f64 / s.decay_steps.saturating_sub(s.warmup) as f64;
                let fall = 0.5 * (1.0 + (std::f64::consts::PI * done.min(1.0)).cos());
                s.min_learning_rate + (s.learning_rate - s.min_learning_rate) * fall
            }
            Settings::Plateau(s) => (s.learning_rate * self.reduction).max(s.min_learning_rate),
        }
    }

    /// Updates the state after a validation.
    pub fn validated(&mut self, settings: &Settings, improved: bool) {
        let Settings::Plateau(s) = settings else {
            return;
        };
        if improved {
            self.stale = 0;
            return;
        }
        self.stale += 1;
        if self.stale >= s.patience {
            self.reduction *= s.factor;
            self.stale = 0;
        }
    }
}
