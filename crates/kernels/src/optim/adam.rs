//! Adam and AdamW.
//!
//! ```text
//! g = scale · g  (+ λ p for Adam)      m += (1 - β1) (g - m)      v = β2 v + (1 - β2) g²
//! p = p · (1 - η λ for AdamW)  -  η / (1 - β1^t) · m / (√v / √(1 - β2^t) + ε)
//!
//! p, g, m, v  | one vector each |  ->  p, m, v      16 bytes read and 12 written a parameter, nothing between
//! ```
//! Factors that depend on the step alone are computed once, in `f64`.

use super::{Slices, Update, check_common, check_share, over_chunks};
use crate::error::{KernelError, check_value};
use crate::simd::{self, Level, Simd};

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

/// One tensor of [`Adam::step_all`]; all slices are of one length.
#[derive(Debug)]
pub struct AdamTensor<'a> {
    /// What is updated.
    pub parameters: &'a mut [f32],
    /// The loss's gradient.
    pub gradients: &'a [f32],
    /// First moment `m`.
    pub first: &'a mut [f32],
    /// Second moment `v`.
    pub second: &'a mut [f32],
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
        let tensor = AdamTensor {
            parameters,
            gradients,
            first,
            second,
        };
        self.step_all(step, [tensor])
    }

    /// [`step`](Self::step) for all tensors of a model at once: each chunk is one pass over its four
    /// slices, and the threads are woken once.
    ///
    /// ```
    /// use regard_kernels::optim::{Adam, AdamTensor, clip_factor, squared_norm};
    /// let (mut weight, mut bias) = ([1.0, 2.0], [0.5]);
    /// let (d_weight, d_bias) = ([3.0, 0.0], [4.0]);
    /// let mut moments = [[0.0; 3]; 2];
    /// let [first, second] = &mut moments;
    /// let ((w1, b1), (w2, b2)) = (first.split_at_mut(2), second.split_at_mut(2));
    ///
    /// let norm = squared_norm(&[&d_weight, &d_bias]).sqrt(); // 5
    /// let adam = Adam { gradient_scale: clip_factor(norm, 1.0), ..Adam::default() };
    /// let tensors = [
    ///     AdamTensor { parameters: &mut weight, gradients: &d_weight, first: w1, second: w2 },
    ///     AdamTensor { parameters: &mut bias, gradients: &d_bias, first: b1, second: b2 },
    /// ];
    /// adam.step_all(1, tensors)?;
    /// assert_eq!(weight[1], 2.0);
    /// assert!((bias[0] - 0.499f32).abs() < 1e-6);
    /// # Ok::<(), regard_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError`] if the lengths of a tensor differ, a setting is out of range, or `step` is 0; no
    /// tensor has then been touched.
    pub fn step_all<'a>(
        &self,
        step: u32,
        tensors: impl IntoIterator<Item = AdamTensor<'a>>,
    ) -> Result<(), KernelError> {
        self.step_all_at(Level::current(), step, tensors)
    }

    pub(super) fn step_all_at<'a>(
        &self,
        level: Level,
        step: u32,
        tensors: impl IntoIterator<Item = AdamTensor<'a>>,
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
        let slices = tensors.into_iter().map(|tensor| Slices {
            parameters: tensor.parameters,
            gradients: tensor.gradients,
            states: [("first", tensor.first), ("second", tensor.second)],
        });
        over_chunks(level, &update, slices.collect())
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
