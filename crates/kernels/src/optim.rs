//! Optimiser steps, each one pass over parameter, gradient and state.
//!
//! With `g` the gradient times [`gradient_scale`](Adam::gradient_scale) (the factor that clips by
//! the global norm, see [`clip_factor`]), `η` the learning rate and `λ` the weight decay:
//! ```text
//! Adam      g += λ p;  m = β1 m + (1-β1) g;  v = β2 v + (1-β2) g²
//!           p -= η (m / (1-β1^t)) / (√(v / (1-β2^t)) + ε)                 Kingma & Ba 2015
//! AdamW     p *= 1 - η λ in place of g += λ p                             Loshchilov & Hutter 2019
//! Adadelta  g += λ p;  a = ρ a + (1-ρ) g²;  δ = √(d + ε) / √(a + ε) g
//!           d = ρ d + (1-ρ) δ²;  p -= η δ                                 Zeiler 2012
//! SGD       g += λ p;  b = μ b + g;  p -= η b   (Nesterov: p -= η (g + μ b))
//! ```
//! The formulas and defaults are PyTorch's. State slices start at zero.
//!
//! ```
//! use regard_kernels::optim::Adam;
//! let (mut p, mut m, mut v) = ([1.0], [0.0], [0.0]);
//! Adam { learning_rate: 0.1, ..Adam::default() }.step(1, &mut p, &[3.0], &mut m, &mut v)?;
//! assert!((p[0] - 0.9f32).abs() < 1e-6);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

use crate::error::{KernelError, check_length, check_value};
use crate::simd::{self, Kernel, Level, Simd, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

/// Numbers in a chunk of work.
const CHUNK: usize = 16_384;

/// The slices of one step, one after the other in every chunk.
fn over_chunks<const STATES: usize, U: Update<STATES>>(
    level: Level,
    update: &U,
    parameters: &mut [f32],
    gradients: &[f32],
    states: [(&'static str, &mut [f32]); STATES],
) -> Result<(), KernelError> {
    let count = parameters.len();
    check_length("gradients", "[parameters]", &[count], gradients.len())?;
    for (name, state) in &states {
        check_length(name, "[parameters]", &[count], state.len())?;
    }
    let states = states.map(|(_, state)| rows(state, 1));
    let nanoseconds = count as f64 * 1.5;
    for_each_chunk(
        (rows(parameters, 1), states),
        count,
        CHUNK,
        nanoseconds,
        &|first, (parameters, states): (RowsMut<f32>, [RowsMut<f32>; STATES])| {
            let gradients = &gradients[first..first + parameters.data.len()];
            let states = states.map(|state| state.data);
            run(
                level,
                Chunk {
                    update,
                    parameters: parameters.data,
                    gradients,
                    states,
                },
            );
        },
    );
    Ok(())
}

/// One optimiser's update of a vector of parameters.
trait Update<const STATES: usize>: Sync {
    /// Calls `zip_map` with the update's formula.
    fn apply<S: Simd>(
        &self,
        s: S,
        parameters: &mut [f32],
        gradients: &[f32],
        states: [&mut [f32]; STATES],
    );
}

struct Chunk<'a, U, const STATES: usize> {
    update: &'a U,
    parameters: &'a mut [f32],
    gradients: &'a [f32],
    states: [&'a mut [f32]; STATES],
}

impl<U: Update<STATES>, const STATES: usize> Kernel for Chunk<'_, U, STATES> {
    type Output = ();
    #[inline(always)]
    fn call<S: Simd>(self, s: S) {
        self.update
            .apply(s, self.parameters, self.gradients, self.states);
    }
}

fn check_common(
    learning_rate: f64,
    weight_decay: f64,
    gradient_scale: f64,
) -> Result<(), KernelError> {
    let finite = "a finite number of at least 0";
    for (name, value) in [
        ("learning_rate", learning_rate),
        ("weight_decay", weight_decay),
        ("gradient_scale", gradient_scale),
    ] {
        check_value(name, finite, value, value.is_finite() && value >= 0.0)?;
    }
    Ok(())
}

fn check_share(name: &'static str, value: f64) -> Result<(), KernelError> {
    check_value(
        name,
        "a number from 0 to below 1",
        value,
        (0.0..1.0).contains(&value),
    )
}

/// Adam and AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam {
    /// `η`
    pub learning_rate: f64,
    /// `β1`
    pub beta1: f64,
    /// `β2`
    pub beta2: f64,
    /// `ε`, added to the root.
    pub epsilon: f64,
    /// `λ`
    pub weight_decay: f64,
    /// Decays the parameter itself (AdamW) instead of adding `λ p` to the gradient.
    pub decoupled: bool,
    /// Multiplies every gradient.
    pub gradient_scale: f64,
}

impl Default for Adam {
    /// `η` .001, `β` .9 and .999, `ε` 1e-8, no decay, gradients as they are.
    fn default() -> Self {
        Adam {
            learning_rate: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            decoupled: false,
            gradient_scale: 1.0,
        }
    }
}

impl Adam {
    /// Step number `step` (from 1): updates `parameters` and the moments `first` and `second`, all
    /// of one length.
    ///
    /// # Errors
    /// [`KernelError`] if lengths differ, a setting is out of range, or `step` is 0.
    pub fn step(
        &self,
        step: u32,
        parameters: &mut [f32],
        gradients: &[f32],
        first: &mut [f32],
        second: &mut [f32],
    ) -> Result<(), KernelError> {
        self.step_at(Level::current(), step, parameters, gradients, first, second)
    }

    fn step_at(
        &self,
        level: Level,
        step: u32,
        parameters: &mut [f32],
        gradients: &[f32],
        first: &mut [f32],
        second: &mut [f32],
    ) -> Result<(), KernelError> {
        check_common(self.learning_rate, self.weight_decay, self.gradient_scale)?;
        check_share("beta1", self.beta1)?;
        check_share("beta2", self.beta2)?;
        check_value(
            "epsilon",
            "a number of at least 0",
            self.epsilon,
            self.epsilon >= 0.0,
        )?;
        check_value("step", "a number from 1 on", f64::from(step), step > 0)?;
        let power = f64::from(step);
        let update = AdamUpdate {
            rest1: (1.0 - self.beta1) as f32,
            beta2: self.beta2 as f32,
            rest2: (1.0 - self.beta2) as f32,
            epsilon: self.epsilon as f32,
            size: (self.learning_rate / (1.0 - self.beta1.powf(power))) as f32,
            root: (1.0 / (1.0 - self.beta2.powf(power)).sqrt()) as f32,
            coupled: if self.decoupled {
                0.0
            } else {
                self.weight_decay as f32
            },
            shrink: if self.decoupled {
                (1.0 - self.learning_rate * self.weight_decay) as f32
            } else {
                1.0
            },
            scale: self.gradient_scale as f32,
        };
        over_chunks(
            level,
            &update,
            parameters,
            gradients,
            [("first", first), ("second", second)],
        )
    }
}

struct AdamUpdate {
    rest1: f32,
    beta2: f32,
    rest2: f32,
    epsilon: f32,
    size: f32,
    root: f32,
    coupled: f32,
    shrink: f32,
    scale: f32,
}

impl Update<2> for AdamUpdate {
    #[inline(always)]
    fn apply<S: Simd>(
        &self,
        s: S,
        parameters: &mut [f32],
        gradients: &[f32],
        [m, v]: [&mut [f32]; 2],
    ) {
        let [
            rest1,
            beta2,
            rest2,
            epsilon,
            size,
            root,
            coupled,
            shrink,
            scale,
        ] = [
            self.rest1,
            self.beta2,
            self.rest2,
            self.epsilon,
            self.size,
            self.root,
            self.coupled,
            self.shrink,
            self.scale,
        ]
        .map(|x| s.splat(x));
        simd::zip_map(
            s,
            [gradients],
            [parameters, m, v],
            #[inline(always)]
            |[g], [p, m, v]| {
                let g = s.fma(coupled, p, s.mul(g, scale));
                let m = s.fma(rest1, s.sub(g, m), m);
                let v = s.fma(s.mul(rest2, g), g, s.mul(beta2, v));
                let denominator = s.fma(s.sqrt(v), root, epsilon);
                [s.fnma(size, s.div(m, denominator), s.mul(p, shrink)), m, v]
            },
        );
    }
}

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

    fn step_at(
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
        over_chunks(level, self, parameters, gradients, states)
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

/// Stochastic gradient descent with momentum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// `η`
    pub learning_rate: f64,
    /// `μ`
    pub momentum: f64,
    /// Looks one step ahead.
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

    fn step_at(
        &self,
        level: Level,
        parameters: &mut [f32],
        gradients: &[f32],
        buffer: &mut [f32],
    ) -> Result<(), KernelError> {
        check_common(self.learning_rate, self.weight_decay, self.gradient_scale)?;
        check_share("momentum", self.momentum)?;
        over_chunks(level, self, parameters, gradients, [("buffer", buffer)])
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

/// `Σ x²` over all slices, in `f64` across blocks of `f32`; the same bits for any number of
/// threads.
///
/// ```
/// assert_eq!(regard_kernels::optim::squared_norm(&[&[3.0], &[4.0]]), 25.0);
/// ```
pub fn squared_norm(slices: &[&[f32]]) -> f64 {
    squared_norm_at(Level::current(), slices)
}

fn squared_norm_at(level: Level, slices: &[&[f32]]) -> f64 {
    let chunks: Vec<&[f32]> = slices
        .iter()
        .flat_map(|slice| slice.chunks(CHUNK))
        .collect();
    let count: usize = slices.iter().map(|slice| slice.len()).sum();
    let mut parts = vec![0.0f64; chunks.len()];
    for_each_chunk(
        rows(&mut parts, 1),
        chunks.len(),
        1,
        count as f64 * 0.3,
        &|first, part: RowsMut<f64>| part.data[0] = run(level, Squares(chunks[first])),
    );
    parts.iter().sum()
}

struct Squares<'a>(&'a [f32]);

impl Kernel for Squares<'_> {
    type Output = f64;
    #[inline(always)]
    fn call<S: Simd>(self, s: S) -> f64 {
        simd::sum_f64(s, self.0, |x| s.mul(x, x))
    }
}

/// The factor that brings gradients of global norm `norm` down to `max_norm`: 1 if they are within
/// it, NaN if the norm is.
///
/// ```
/// use regard_kernels::optim::clip_factor;
/// assert_eq!((clip_factor(0.5, 1.0), clip_factor(4.0, 1.0)), (1.0, 0.25));
/// ```
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    if norm <= max_norm {
        1.0
    } else {
        max_norm / norm
    }
}

#[cfg(test)]
#[path = "optim_tests.rs"]
mod tests;
