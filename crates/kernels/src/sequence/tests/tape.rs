//! Reverse-mode differentiation of a plain definition, one number at a time.
//!
//! [`Var`] is a [`Real`] that writes every operation to a tape. With `SINGLE`, every result is
//! rounded to `f32`, and so is every step of the backward pass: that is the naive gradient in
//! single precision. (Rounding the `f64` result of one operation on `f32` numbers gives the `f32`
//! result exactly, because `f64` has more than twice the digits.)

use std::cell::RefCell;
use std::cmp::Ordering;
use std::ops::{Add, Div, Mul, Sub};

use crate::reference::Real;

thread_local! {
    /// Up to two inputs of each operation, with the derivative with respect to each.
    static TAPE: RefCell<Vec<[(u32, f64); 2]>> = const { RefCell::new(Vec::new()) };
}

const NOTHING: (u32, f64) = (u32::MAX, 0.0);

/// A number with its place on the tape.
#[derive(Debug, Clone, Copy)]
pub(super) struct Var<const SINGLE: bool> {
    value: f64,
    node: u32,
}

fn round<const SINGLE: bool>(x: f64) -> f64 {
    if SINGLE { f64::from(x as f32) } else { x }
}

impl<const SINGLE: bool> Var<SINGLE> {
    fn push(value: f64, from: [(u32, f64); 2]) -> Self {
        let node = TAPE.with_borrow_mut(|tape| {
            tape.push(from.map(|(node, slope)| (node, round::<SINGLE>(slope))));
            tape.len() as u32 - 1
        });
        Self {
            value: round::<SINGLE>(value),
            node,
        }
    }

    /// A new input.
    pub(super) fn input(x: f32) -> Self {
        Self::push(f64::from(x), [NOTHING; 2])
    }

    fn of_one(self, value: f64, slope: f64) -> Self {
        Self::push(value, [(self.node, slope), NOTHING])
    }
}

/// Empties the tape.
pub(super) fn clear() {
    TAPE.with_borrow_mut(Vec::clear);
}

/// The gradient of `Σ outputs · seeds` with respect to each of `inputs`.
pub(super) fn gradient<const SINGLE: bool>(
    outputs: &[Var<SINGLE>],
    seeds: &[f32],
    inputs: &[Vec<Var<SINGLE>>],
) -> Vec<Vec<f64>> {
    TAPE.with_borrow(|tape| {
        let mut slopes = vec![0.0; tape.len()];
        for (output, &seed) in outputs.iter().zip(seeds) {
            slopes[output.node as usize] += f64::from(seed);
        }
        for at in (0..tape.len()).rev() {
            if slopes[at] == 0.0 {
                continue;
            }
            for (node, slope) in tape[at] {
                if node != u32::MAX {
                    let term = round::<SINGLE>(slopes[at] * slope);
                    let sum = &mut slopes[node as usize];
                    *sum = round::<SINGLE>(*sum + term);
                }
            }
        }
        inputs
            .iter()
            .map(|of| of.iter().map(|x| slopes[x.node as usize]).collect())
            .collect()
    })
}

impl<const SINGLE: bool> PartialEq for Var<SINGLE> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<const SINGLE: bool> PartialOrd for Var<SINGLE> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.value.partial_cmp(&other.value)
    }
}

impl<const SINGLE: bool> Add for Var<SINGLE> {
    type Output = Self;
    fn add(self, b: Self) -> Self {
        Self::push(self.value + b.value, [(self.node, 1.0), (b.node, 1.0)])
    }
}

impl<const SINGLE: bool> Sub for Var<SINGLE> {
    type Output = Self;
    fn sub(self, b: Self) -> Self {
        Self::push(self.value - b.value, [(self.node, 1.0), (b.node, -1.0)])
    }
}

impl<const SINGLE: bool> Mul for Var<SINGLE> {
    type Output = Self;
    fn mul(self, b: Self) -> Self {
        Self::push(
            self.value * b.value,
            [(self.node, b.value), (b.node, self.value)],
        )
    }
}

impl<const SINGLE: bool> Div for Var<SINGLE> {
    type Output = Self;
    fn div(self, b: Self) -> Self {
        let value = round::<SINGLE>(self.value / b.value);
        Self::push(
            value,
            [(self.node, 1.0 / b.value), (b.node, -value / b.value)],
        )
    }
}

impl<const SINGLE: bool> Real for Var<SINGLE> {
    fn of(x: f64) -> Self {
        Self::push(x, [NOTHING; 2])
    }
    fn to_f64(self) -> f64 {
        self.value
    }
    fn exp(self) -> Self {
        let value = round::<SINGLE>(self.value.exp());
        self.of_one(value, value)
    }
    fn ln(self) -> Self {
        self.of_one(self.value.ln(), 1.0 / self.value)
    }
    fn tanh(self) -> Self {
        let value = round::<SINGLE>(self.value.tanh());
        self.of_one(value, 1.0 - round::<SINGLE>(value * value))
    }
    fn sqrt(self) -> Self {
        let value = round::<SINGLE>(self.value.sqrt());
        self.of_one(value, 0.5 / value)
    }
}
