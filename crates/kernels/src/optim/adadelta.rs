//! Adadelta.
//!
//! ```text
//! g = scale · g + λ p      a = ρ a + (1 - ρ) g²      δ = √(d + ε) / √(a + ε) · g      d = ρ d + (1 - ρ) δ²
//! p -= η δ
//!
//! p, g, a, d  | one vector each |  ->  p, a, d      16 bytes read and 12 written a parameter, nothing between
//! ```

use super::{Slices, Update, check_common, check_share, over_chunks};
use crate::error::{KernelError, check_value};
use crate::simd::{self, Level, Simd};

/// Adadelta.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adadelta {
    /// `η`; 1 in the paper.
    pub learning_rate: f64,
    /// `ρ`
    pub rho: f64,
    /// `ε`, inside both roots.
    pub epsilon: f64,
    /// `λ`
    pub weight_decay: f64,
    /// Multiplies every gradient.
    pub gradient_scale: f64,
}

impl Default for Adadelta {
    /// `η` 1, `ρ` .95, `ε` 1e-6 (Bahdanau 2014), no decay, gradients as they are.
    fn default() -> Self {
        Adadelta {
            learning_rate: 1.0,
            rho: 0.95,
            epsilon: 1e-6,
            weight_decay: 0.0,
            gradient_scale: 1.0,
        }
    }
}

impl Adadelta {
    /// Updates `parameters` and the running means of squared gradients and squared updates, all of
    /// one length.
    ///
    /// # Errors
    /// [`KernelError`] if lengths differ or a setting is out of range.
    pub fn step(
        &self,
        parameters: &mut [f32],
        gradients: &[f32],
        squared_gradients: &mut [f32],
        squared_updates: &mut [f32],
    ) -> Result<(), KernelError> {
        self.step_at(
            Level::current(),
            parameters,
            gradients,
            squared_gradients,
            squared_updates,
        )
    }

    pub(super) fn step_at(
        &self,
        level: Level,
        parameters: &mut [f32],
        gradients: &[f32],
        squared_gradients: &mut [f32],
        squared_updates: &mut [f32],
    ) -> Result<(), KernelError> {
        check_common(self.learning_rate, self.weight_decay, self.gradient_scale)?;
        check_share("rho", self.rho)?;
        check_value(
            "epsilon",
            "a number above 0",
            self.epsilon,
            self.epsilon > 0.0,
        )?;
        let states = [
            ("squared_gradients", squared_gradients),
            ("squared_updates", squared_updates),
        ];
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

impl Update<2> for Adadelta {
    #[inline(always)]
    fn apply<S: Simd>(
        &self,
        s: S,
        parameters: &mut [f32],
        gradients: &[f32],
        [a, d]: [&mut [f32]; 2],
    ) {
        let [rate, rho, rest, epsilon, decay, scale] = [
            self.learning_rate,
            self.rho,
            1.0 - self.rho,
            self.epsilon,
            self.weight_decay,
            self.gradient_scale,
        ]
        .map(|x| s.splat(x as f32));
        simd::zip_map(
            s,
            [gradients],
            [parameters, a, d],
            #[inline(always)]
            |[g], [p, a, d]| {
                let g = s.fma(decay, p, s.mul(g, scale));
                let a = s.fma(s.mul(rest, g), g, s.mul(rho, a));
                let ratio = s.div(s.sqrt(s.add(d, epsilon)), s.sqrt(s.add(a, epsilon)));
                let update = s.mul(ratio, g);
                let d = s.fma(s.mul(rest, update), update, s.mul(rho, d));
                [s.fnma(rate, update, p), a, d]
            },
        );
    }
}
