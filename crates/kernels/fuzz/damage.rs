//! Makes one thing wrong in a valid call.

use regard_kernels::ViewMut;

use crate::{
    dice::Dice,
    problem::{Problem, Tensor},
};

/// The outputs of a call.
pub struct Results {
    pub output: Tensor<f32>,
    pub lse: Option<Box<[f32]>>,
}

impl Results {
    pub fn output(&mut self) -> ViewMut<'_> {
        self.output.view_mut()
    }
}

/// The arguments that the error may name.
pub type Blamed = &'static [&'static str];

const SHAPES: Blamed = &["query", "key", "value", "output"];

/// Damages one thing; returns `None` if the call does not have it.
pub fn damage(dice: &mut Dice, problem: &mut Problem, results: &mut Results) -> Option<Blamed> {
    match dice.below(14) {
        0 => shorten(dice.pick(&TENSORS), problem, results),
        1 => stretch(dice.pick(&TENSORS), dice, problem, results),
        2 => reshape(dice.pick(&TENSORS), dice, problem, results),
        3 => {
            problem.scale = Some(dice.pick(&NOT_FINITE));
            Some(&["scale"])
        }
        4 => {
            problem.softcap = Some(dice.pick(&[0.0, -1.0, f32::NAN, f32::INFINITY]));
            Some(&["softcap"])
        }
        5 => {
            let probability = dice.pick(&[1.0, -0.1, f32::NAN, 2.0]);
            problem.dropout = Some(regard_kernels::Dropout {
                probability,
                seed: 1,
                first_batch: 0,
            });
            Some(&["dropout"])
        }
        6 => per_head(dice, problem),
        7 => counts(dice, problem),
        8 => documents(dice, problem),
        9 => planes(dice, problem),
        10 => blocks(dice, problem),
        11 => offsets(dice, problem),
        12 => overlap(results),
        _ => {
            let lse = results.lse.as_mut()?;
            *lse = resized(lse, dice);
            Some(&["lse"])
        }
    }
}

const TENSORS: [&str; 4] = ["query", "key", "value", "output"];
const NOT_FINITE: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

fn named<'a>(
    name: &str,
    problem: &'a mut Problem,
    results: &'a mut Results,
) -> &'a mut Tensor<f32> {
    match name {
        "query" => &mut problem.query,
        "key" => &mut problem.key,
        "value" => &mut problem.value,
        _ => &mut results.output,
    }
}

fn blamed(name: &str) -> Blamed {
    match name {
        "query" => &["query"],
        "key" => &["key"],
        "value" => &["value"],
        _ => &["output"],
    }
}

/// Removes the last number.
fn shorten(name: &str, problem: &mut Problem, results: &mut Results) -> Option<Blamed> {
    let tensor = named(name, problem, results);
    let (_, rest) = tensor.data.split_last()?;
    tensor.data = rest.into();
    Some(blamed(name))
}

/// Sets a stride that reaches beyond the slice.
fn stretch(
    name: &str,
    dice: &mut Dice,
    problem: &mut Problem,
    results: &mut Results,
) -> Option<Blamed> {
    let tensor = named(name, problem, results);
    let axis = dice.below(3);
    if tensor.shape.contains(&0) || tensor.shape[axis] == 1 {
        return None;
    }
    tensor.strides[axis] = dice.pick(&[usize::MAX, usize::MAX / 2, 1 << 40, tensor.data.len()]);
    Some(blamed(name))
}

/// Sets a size that does not fit the others.
fn reshape(
    name: &str,
    dice: &mut Dice,
    problem: &mut Problem,
    results: &mut Results,
) -> Option<Blamed> {
    let tensor = named(name, problem, results);
    let axis = dice.below(4);
    // Some other numbers of heads and lengths of the key are valid too.
    let free = matches!((name, axis), ("query", 1 | 2) | ("key", 2));
    let more = dice.pick(&[1, 257, usize::MAX / 2]);
    if free && more == 1 || problem_is_empty(tensor) {
        return None;
    }
    let before = tensor.shape[axis];
    tensor.shape[axis] = before.saturating_add(more);
    if free && fits(tensor) {
        // With a stride of 0, any number of heads fits the slice; the options would no longer fit the
        // others.
        tensor.shape[axis] = before;
        return None;
    }
    Some(SHAPES)
}

/// Whether every number of the shape lies inside the slice.
fn fits(tensor: &Tensor<f32>) -> bool {
    let last = (0..3).try_fold(tensor.shape[3], |last, axis| {
        tensor.strides[axis]
            .checked_mul(tensor.shape[axis] - 1)?
            .checked_add(last)
    });
    last.is_some_and(|last| last <= tensor.data.len())
}

fn problem_is_empty(tensor: &Tensor<f32>) -> bool {
    tensor.shape.contains(&0)
}

fn per_head(dice: &mut Dice, problem: &mut Problem) -> Option<Blamed> {
    let (field, name): (_, Blamed) = match dice.below(3) {
        0 => (problem.alibi.as_mut(), &["alibi"]),
        1 => (problem.sink.as_mut(), &["sink"]),
        _ => {
            let (values, zero) = problem.relative.as_mut()?;
            let first = values.first_mut()?;
            match dice.below(2) {
                0 => *zero = usize::MAX - dice.below(2),
                _ => *first = dice.pick(&NOT_FINITE),
            }
            return Some(&["relative", "relative.zero"]);
        }
    };
    let numbers = field?;
    match dice.below(2) {
        0 => *numbers = resized(numbers, dice),
        _ => numbers[0] = dice.pick(&NOT_FINITE),
    }
    Some(name)
}

fn counts(dice: &mut Dice, problem: &mut Problem) -> Option<Blamed> {
    let (field, name): (_, Blamed) = match dice.below(2) {
        0 => (&mut problem.prefix, &["prefix"]),
        _ => (&mut problem.lengths, &["lengths"]),
    };
    let counts = field.as_mut()?;
    *counts = resized(counts, dice);
    Some(name)
}

fn documents(dice: &mut Dice, problem: &mut Problem) -> Option<Blamed> {
    let documents = problem.documents.as_mut()?;
    let side = dice.below(2);
    documents[side] = resized(&documents[side], dice);
    Some(&["documents.query", "documents.key"])
}

fn planes(dice: &mut Dice, problem: &mut Problem) -> Option<Blamed> {
    fn wrong<T: Copy>(dice: &mut Dice, plane: &mut Tensor<T>) {
        // Two more than before is neither 1 nor the size that is expected.
        plane.shape[dice.below(4)] += 2;
    }
    match dice.below(2) {
        0 => wrong(
            dice,
            problem
                .keep
                .as_mut()
                .filter(|plane| !plane.shape.contains(&1))?,
        ),
        _ => {
            wrong(
                dice,
                problem
                    .bias
                    .as_mut()
                    .filter(|plane| !plane.shape.contains(&1))?,
            );
            return Some(&["bias"]);
        }
    }
    Some(&["keep"])
}

fn blocks(dice: &mut Dice, problem: &mut Problem) -> Option<Blamed> {
    let (query_size, key_size, table) = problem.blocks.as_mut()?;
    match dice.below(3) {
        0 => *query_size = 0,
        1 => *key_size = 0,
        _ => {
            table.shape[dice.pick(&[2, 3])] += 2;
            return Some(&["blocks.table"]);
        }
    }
    Some(&["blocks.query_size", "blocks.key_size"])
}

fn offsets(dice: &mut Dice, problem: &mut Problem) -> Option<Blamed> {
    let side = dice.below(2);
    let total = if side == 0 {
        problem.sizes.queries
    } else {
        problem.sizes.keys
    };
    let offsets = &mut problem.offsets.as_mut()?[side];
    let last = offsets.len() - 1;
    match dice.below(4) {
        0 => offsets[0] = 1,
        1 => offsets[last] = total as u32 + 1 + dice.below(1000) as u32,
        2 => *offsets = Box::new([]),
        _ => *offsets = offsets.iter().copied().chain([total as u32]).collect(),
    }
    Some(&["offsets.query", "offsets.key"])
}

/// Makes rows of the output overlap.
fn overlap(results: &mut Results) -> Option<Blamed> {
    let output = &mut results.output;
    if output.shape.contains(&0) {
        return None;
    }
    let axis = (0..3).find(|&axis| output.shape[axis] > 1)?;
    output.strides[axis] = output.shape[3] - 1;
    Some(&["output"])
}

/// The slice with one number more or one less.
fn resized<T: Copy + Default>(slice: &[T], dice: &mut Dice) -> Box<[T]> {
    match slice.split_last() {
        Some((_, rest)) if dice.once_in(2) => rest.into(),
        _ => slice.iter().copied().chain([T::default()]).collect(),
    }
}
