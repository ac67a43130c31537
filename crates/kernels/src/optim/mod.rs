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
//! ```text
//! gradients of all tensors --> squared_norm --> clip_factor --> step_all: parameters and states, in
//!                              read once                        chunks of 16,384 numbers, whatever
//!                                                               tensor they lie in
//! ```
//! Clipping costs no pass of its own: the factor is multiplied in where the gradient is read. One call
//! for all tensors wakes the threads once; tensor by tensor, the many small ones of a model (biases,
//! norms) would run on one thread while the other waits. A step is bound by memory (28 bytes a
//! parameter for Adam), so fusing matters and the cost of arithmetic does not: roots and divisions are
//! exact.
//!
//! ```
//! use regard_kernels::optim::Adam;
//! let (mut p, mut m, mut v) = ([1.0], [0.0], [0.0]);
//! Adam { learning_rate: 0.1, ..Adam::default() }.step(1, &mut p, &[3.0], &mut m, &mut v)?;
//! assert!((p[0] - 0.9f32).abs() < 1e-6);
//! # Ok::<(), regard_kernels::KernelError>(())
//! ```

mod adadelta;
mod adam;
mod clip;
mod sgd;

#[cfg(test)]
mod tests;

pub use adadelta::Adadelta;
pub use adam::{Adam, AdamTensor};
pub use clip::{clip_factor, squared_norm};
pub use sgd::Sgd;

use crate::error::{KernelError, check_length, check_value};
use crate::simd::{Kernel, Level, Simd, run};
use crate::threads::{RowsMut, for_each_chunk, rows};

/// Numbers in a chunk of work.
const CHUNK: usize = 16_384;

/// One tensor's slices, all of one length.
struct Slices<'a, const STATES: usize> {
    parameters: &'a mut [f32],
    gradients: &'a [f32],
    states: [(&'static str, &'a mut [f32]); STATES],
}

/// Updates tensors chunk by chunk, all of them in one parallel region.
fn over_chunks<'a, const STATES: usize, U: Update<STATES>>(
    level: Level,
    update: &U,
    tensors: Vec<Slices<'a, STATES>>,
) -> Result<(), KernelError> {
    for tensor in &tensors {
        let count = tensor.parameters.len();
        check_length(
            "gradients",
            "[parameters]",
            &[count],
            tensor.gradients.len(),
        )?;
        for (name, state) in &tensor.states {
            check_length(name, "[parameters]", &[count], state.len())?;
        }
    }
    let total: usize = tensors.iter().map(|tensor| tensor.parameters.len()).sum();
    let mut chunks: Vec<Option<Chunk<'_, U, STATES>>> = Vec::new();
    for Slices {
        parameters,
        gradients,
        states,
    } in tensors
    {
        let mut states = states.map(|(_, state)| state.chunks_mut(CHUNK));
        for (parameters, gradients) in parameters.chunks_mut(CHUNK).zip(gradients.chunks(CHUNK)) {
            let states = states
                .each_mut()
                .map(|state| state.next().expect("states are as long as the parameters"));
            chunks.push(Some(Chunk {
                update,
                parameters,
                gradients,
                states,
            }));
        }
    }
    let (count, nanoseconds) = (chunks.len(), total as f64 * 1.5);
    for_each_chunk(
        rows(&mut chunks, 1),
        count,
        1,
        nanoseconds,
        &|_, chunk: RowsMut<_>| {
            if let Some(chunk) = chunk.data[0].take() {
                run(level, chunk);
            }
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
