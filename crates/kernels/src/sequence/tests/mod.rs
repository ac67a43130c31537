//! Every sequence operation against its definition.
//!
//! An operation is described once ([`Described`]); [`check`] then compares values and gradients with those of the
//! definition on every instruction set; the definition's gradients come from differentiating it on a [`tape`].

mod definitions;
mod operations;
mod properties;
mod tape;

use self::tape::Var;
use super::{AdditiveDecoder, InputFeedingDecoder, Layer, Score, Unit};
use crate::KernelError;
use crate::operation::{Fields, Operation, Shape, backward_at, forward_at};
use crate::reference::Real;
use crate::simd::Level;
use crate::testing::{
    assert_close, bits, difference, on_every_pool, probe, random, unless_miri, wide,
};

/// Which dimension of a tensor is the batch row.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rows {
    /// `[steps, batch, width]`
    TimeMajor,
    /// `[batch, width]`
    First,
    /// `[layers, batch, width]`
    Layers(usize),
    /// A weight: shared by all rows.
    None,
}

/// An operation with its sizes and masks.
trait Described: Operation + Clone {
    fn steps(&self) -> usize;
    fn batch(&self) -> usize;
    /// The inputs named `name` are drawn from `[-scale, scale)`.
    fn scale(&self, name: &str) -> f32;
    /// The same operation on row `row` alone.
    fn alone(&self, row: usize) -> Self;
    /// All results of the definition, one after the other.
    fn define<T: Real>(&self, inputs: &[Vec<T>]) -> Vec<T>;

    /// Name, number of elements and arrangement of every input.
    fn inputs(&self) -> Vec<(&'static str, usize, Rows)> {
        let (shapes, _) = self.shapes().unwrap();
        let names = Self::Inputs::<()>::NAMES.iter();
        let described = names.zip(shapes.into_vec()).map(|(&name, shape)| {
            let rows = match &shape.words[1..].split(", ").collect::<Vec<_>>()[..] {
                ["steps", "batch", ..] => Rows::TimeMajor,
                ["layers", "batch", ..] => Rows::Layers(shape.sizes[0]),
                ["batch", ..] => Rows::First,
                _ => Rows::None,
            };
            (name, shape.len().unwrap(), rows)
        });
        described.collect()
    }

    /// Numbers of the differentiable result, which comes first.
    fn tracked(&self) -> usize {
        let (_, shapes) = self.shapes().unwrap();
        shapes.each()[0].len().unwrap()
    }

    /// Everything that is written; without `save`, the outputs for the backward pass are empty. The buffers start as
    /// NaN, so that anything not overwritten is detected.
    fn write(&self, level: Level, inputs: &[Vec<f32>], save: bool) -> Vec<Vec<f32>> {
        let (_, shapes) = self.shapes().unwrap();
        let all = shapes.into_vec().into_iter().enumerate();
        let poison = |(at, shape): (usize, Shape)| match save || at < Self::RESULTS {
            true => vec![f32::NAN; shape.len().unwrap()],
            false => vec![],
        };
        let mut written: Vec<Vec<f32>> = all.map(poison).collect();
        let to = Self::Written::collect(written.iter_mut().map(|x| &mut x[..]));
        forward_at(self, level, slices_of(inputs), to).unwrap();
        written
    }

    /// All results, one after the other.
    fn results(&self, level: Level, inputs: &[Vec<f32>], save: bool) -> Vec<f32> {
        self.write(level, inputs, save)[..Self::RESULTS].concat()
    }

    /// The gradient of every input.
    fn gradients(&self, level: Level, inputs: &[Vec<f32>], d_result: &[f32]) -> Vec<Vec<f32>> {
        let written = self.write(level, inputs, true);
        let mut gradients: Vec<_> = inputs.iter().map(|x| vec![f32::NAN; x.len()]).collect();
        let to = Self::Inputs::collect(gradients.iter_mut().map(|x| &mut x[..]));
        let (inputs, written) = (slices_of(inputs), slices_of(&written));
        backward_at(self, level, inputs, written, d_result, to).unwrap();
        gradients
    }
}

fn slices_of<'a, F: Fields<&'a [f32]>>(all: &'a [Vec<f32>]) -> F {
    F::collect(all.iter().map(|x| &x[..]))
}

fn draw<D: Described>(case: &D, seed: u64) -> Vec<Vec<f32>> {
    let inputs = case.inputs().into_iter().zip(seed * 100..);
    inputs
        .map(|((name, count, _), seed)| random(seed + 1, count, case.scale(name)))
        .collect()
}

/// The definition's gradient of `Σ outputs · seeds`, in double or single precision.
fn slopes<D: Described, const SINGLE: bool>(
    case: &D,
    inputs: &[Vec<f32>],
    seeds: &[f32],
) -> Vec<Vec<f64>> {
    tape::clear();
    let inputs: Vec<Vec<Var<SINGLE>>> = inputs
        .iter()
        .map(|of| of.iter().map(|&x| Var::input(x)).collect())
        .collect();
    let outputs = case.define(&inputs);
    tape::gradient(&outputs[..case.tracked()], seeds, &inputs)
}

fn check<D: Described>(case: &D, inputs: &[Vec<f32>]) {
    let wider: Vec<Vec<f64>> = inputs.iter().map(|x| wide(x)).collect();
    let truth = case.define(&wider);
    let naive = case.define(inputs);
    let seeds = random(77, case.tracked(), 1.0);
    let gradient = slopes::<D, false>(case, inputs, &seeds);
    let naive_gradient = slopes::<D, true>(case, inputs, &seeds);
    for &level in Level::available() {
        let fast = case.results(level, inputs, true);
        assert_close(&format!("{level:?} output"), &fast, &naive, &truth, 2.0);
        let unsaved = case.results(level, inputs, false);
        assert_eq!(bits(&fast), bits(&unsaved), "saving changes no number");
        let gradients = case.gradients(level, inputs, &seeds);
        for (((fast, truth), naive), (name, ..)) in gradients
            .iter()
            .zip(&gradient)
            .zip(&naive_gradient)
            .zip(case.inputs())
        {
            let naive: Vec<f32> = naive.iter().map(|&x| x as f32).collect();
            // The number 1 at the end raises the allowed rounding to that of the incoming gradient, which is larger
            // than the small gradients of a saturated gate.
            let [fast, naive] = [fast, &naive].map(|x| [&x[..], &[1.0]].concat());
            let truth = [&truth[..], &[1.0]].concat();
            assert_close(
                &format!("{level:?} gradient of {name}"),
                &fast,
                &naive,
                &truth,
                3.0,
            );
        }
    }
}

/// Compares the tape with central differences, at a few places of every input.
fn check_differences<D: Described>(case: &D) {
    let inputs = draw(case, 5);
    let seeds = random(78, case.tracked(), 1.0);
    let gradient = slopes::<D, false>(case, &inputs, &seeds);
    let wider: Vec<Vec<f64>> = inputs.iter().map(|x| wide(x)).collect();
    for (which, (name, count, _)) in case.inputs().into_iter().enumerate() {
        for at in (0..count).step_by(count / 3 + 1) {
            let numeric = difference(&wider[which], at, |moved| {
                let mut inputs = wider.clone();
                inputs[which] = moved.to_vec();
                probe(&case.define(&inputs)[..case.tracked()], &wide(&seeds))
            });
            let exact = gradient[which][at];
            assert!(
                (numeric - exact).abs() < 1e-7 * exact.abs().max(1.0),
                "{name}[{at}]: {numeric} {exact}"
            );
        }
    }
}

/// The part of `x` that belongs to `row`.
fn row_of(x: &[f32], rows: Rows, steps: usize, batch: usize, row: usize) -> Vec<f32> {
    match rows {
        Rows::None => x.to_vec(),
        Rows::First => x[x.len() / batch * row..][..x.len() / batch].to_vec(),
        Rows::TimeMajor => row_of(x, Rows::Layers(steps), steps, batch, row),
        Rows::Layers(layers) => {
            let width = x.len() / (layers * batch);
            (0..layers)
                .flat_map(|at| &x[(at * batch + row) * width..][..width])
                .copied()
                .collect()
        }
    }
}

/// A row alone gives the same bits as in the batch, forward and backward.
fn check_rows_alone<D: Described>(case: &D, outputs: &[(usize, Rows)]) {
    let inputs = draw(case, 6);
    let (steps, batch) = (case.steps(), case.batch());
    let d_output = random(79, case.tracked(), 1.0);
    for &level in Level::available() {
        let together = case.results(level, &inputs, true);
        let gradients = case.gradients(level, &inputs, &d_output);
        for row in 0..batch {
            let alone = case.alone(row);
            let kinds = case.inputs();
            let of_row: Vec<Vec<f32>> = inputs
                .iter()
                .zip(&kinds)
                .map(|(x, &(_, _, rows))| row_of(x, rows, steps, batch, row))
                .collect();
            let result = alone.results(level, &of_row, true);
            let (mut at, mut at_alone) = (0, 0);
            for &(count, rows) in outputs {
                let expected = row_of(&together[at..at + count], rows, steps, batch, row);
                let found = &result[at_alone..at_alone + expected.len()];
                assert_eq!(bits(found), bits(&expected), "{level:?} row {row}");
                at += count;
                at_alone += expected.len();
            }
            let d_row = row_of(&d_output, Rows::TimeMajor, steps, batch, row);
            let of_row = alone.gradients(level, &of_row, &d_row);
            for ((found, all), (name, _, rows)) in of_row.iter().zip(&gradients).zip(kinds) {
                if rows != Rows::None {
                    let expected = row_of(all, rows, steps, batch, row);
                    assert_eq!(
                        bits(found),
                        bits(&expected),
                        "{level:?} row {row} gradient of {name}"
                    );
                }
            }
        }
    }
}

fn check_threads<D: Described>(case: &D) {
    let inputs = draw(case, 7);
    let d_output = random(80, case.tracked(), 1.0);
    for &level in Level::available() {
        on_every_pool(|| {
            let mut all = case.gradients(level, &inputs, &d_output);
            all.push(case.results(level, &inputs, true));
            all
        });
    }
}
