//! Stochastic gradient descent.
//!
//! ```text
//! g = scale · g + λ p      b = μ b + g      p -= η b,   Nesterov's: p -= η (g + μ b)
//!
//! p, g, b  | one vector each |  ->  p, b      12 bytes read and 8 written a parameter, nothing between
//! ```

use super::{Slices, Update, check_common, check_share, over_chunks};
use crate::error::KernelError;
use crate::simd::{self, Level, Simd};

/// Stochastic gradient descent with momentum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// `η`
    pub learning_rate: f64,
    /// `μ`
    pub momentum: f64,
    /// Whether to use Nesterov's momentum.
    pub nesterov: bool,
    /// `λ`
    pub weight_decay: f64,
    /// Multiplies every gradient.
    pub gradient_scale: f64,
}

impl Default for Sgd {
    /// `η` .01, no momentum, no decay, gradients as they are.
    fn default() -> Self {
        Sgd {
            learning_rate: 0.01,
            momentum: 0.0,
            nesterov: false,
            weight_decay: 0.0,
            gradient_scale: 1.0,
        }
    }
}

impl Sgd {
    /// Updates `parameters` and the momentum `buffer`, both of one length.
    ///
    /// # Errors
    /// [`KernelError`] if lengths differ or a setting is out of range.
    pub fn step(
        &self,
        parameters: &mut [f32],
        gradients: &[f32],
        buffer: &mut [f32],
    ) -> Result<(), KernelError> {
        self.step_at(Level::current(), parameters, gradients, buffer)
    }

    pub(super) fn step_at(
        &self,
        level: Level,
        parameters: &mut [f32],
        gradients: &[f32],
        buffer: &mut [f32],
    ) -> Result<(), KernelError> {
        check_common(self.learning_rate, self.weight_decay, self.gradient_scale)?;
        check_share("momentum", self.momentum)?;
        let states = [("buffer", buffer)];
        over_chunks(
            level,
            self,
            vec![Slices {
                parameters,
                gradients,
                states,
            }],
        )
    }
}

impl Update<1> for Sgd {
    #[inline(always)]
    fn apply<S: Simd>(
        &self,
        s: S,
        parameters: &mut [f32],
        gradients: &[f32],
        [buffer]: [&mut [f32]; 1],
    ) {
        let [rate, momentum, decay, scale] = [
            self.learning_rate,
            self.momentum,
            self.weight_decay,
            self.gradient_scale,
        ]
        .map(|x| s.splat(x as f32));
        let nesterov = self.nesterov;
        simd::zip_map(
            s,
            [gradients],
            [parameters, buffer],
            #[inline(always)]
            |[g], [p, b]| {
                let g = s.fma(decay, p, s.mul(g, scale));
                let b = s.fma(momentum, b, g);
                let direction = if nesterov { s.fma(momentum, b, g) } else { b };
                [s.fnma(rate, direction, p), b]
            },
        );
    }
}
