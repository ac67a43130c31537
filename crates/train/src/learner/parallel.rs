//! One update by several processes, each on its rows of the batch.
//!
//! With `m_r` the mean of a term of the loss over the `c_r` things that rank `r` has, the loss of the batch is
//!
//! ```text
//! Σ_terms Σ_r m_r c_r / c          c = Σ_r c_r
//! ```
//!
//! so each rank minimises its terms times `c_r / c`, and the gradient of the batch is the sum of theirs
//! (`sum` of [`Ranks`]). Every rank makes the same update with it: weights and the optimizer's state stay the same
//! on all, bit by bit, and are never sent.
//!
//! Running moments of batch norm are no weights. Each rank normalises by the moments of its own rows, as is usual, and the running
//! moments are the mean of the ranks', by rows.
//!
//! The gradients are summed after the backward pass: Burn hands them out when it is over. Its hook for gradients that are complete
//! earlier (`DistributedOps`) belongs to a backend, the CPU's has none, and it cannot be set from outside.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Gradients, Tensor, TensorData},
};
use serde::{Deserialize, Serialize};

use super::optimizer::slice;
use crate::{
    ranks::{Ranks, RanksError},
    tasks::BatchLoss,
};

/// What a rank tells the others of its rows of a batch; zero where it has none.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// The mean and the count of each term of the loss.
    terms: Vec<(f64, f64)>,
    rows: usize,
    negative_log_likelihood: f64,
    predictions: usize,
    tokens: usize,
    baseline: Option<f32>,
}

impl Outcome {
    pub(super) fn of(batch: Option<&BatchLoss>, rows: usize) -> Self {
        let Some(batch) = batch else {
            return Self::default();
        };
        let value = |mean: &Tensor<1>| f64::from(mean.clone().into_scalar::<f32>());
        let terms = batch.terms.iter();
        Self {
            terms: terms.map(|term| (value(&term.mean), term.count)).collect(),
            rows,
            negative_log_likelihood: batch.negative_log_likelihood,
            predictions: batch.predictions,
            tokens: batch.tokens,
            baseline: batch.baseline,
        }
    }
}

/// The outcome of a whole batch.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) loss: f64,
    pub(super) negative_log_likelihood: f64,
    pub(super) predictions: usize,
    pub(super) tokens: usize,
    pub(super) baseline: Option<f32>,
    rows: usize,
    /// The count of each term.
    counts: Vec<f64>,
}

impl Joined {
    /// Of what all ranks told, in their order.
    pub(super) fn of(outcomes: &[Outcome]) -> Self {
        let terms = outcomes.iter().map(|one| one.terms.len()).max();
        let of_term = |at: usize| outcomes.iter().filter_map(move |one| one.terms.get(at));
        let counts: Vec<f64> = (0..terms.unwrap_or(0))
            .map(|at| of_term(at).map(|(_, count)| count).sum())
            .collect();
        let mean = |(at, &all): (usize, &f64)| -> f64 {
            let counted = of_term(at).filter(|(_, count)| *count > 0.0);
            counted.map(|(mean, count)| mean * (count / all)).sum()
        };
        let rows = outcomes.iter().map(|one| one.rows).sum();
        // A running mean is linear in the batch's mean, so the batch's is the mean of its parts'.
        let baselines = outcomes.iter().filter_map(|one| {
            let share = one.rows as f64 / rows as f64;
            Some(f64::from(one.baseline?) * share)
        });
        let some = outcomes.iter().any(|one| one.baseline.is_some());
        let baseline = some.then(|| baselines.sum::<f64>() as f32);
        Self {
            loss: counts.iter().enumerate().map(mean).sum(),
            negative_log_likelihood: outcomes.iter().map(|one| one.negative_log_likelihood).sum(),
            predictions: outcomes.iter().map(|one| one.predictions).sum(),
            tokens: outcomes.iter().map(|one| one.tokens).sum(),
            baseline,
            rows,
            counts,
        }
    }

    /// What this rank minimises of the loss of the whole batch; `None` if its rows have nothing to predict.
    pub(super) fn share_of(&self, batch: BatchLoss) -> Option<Tensor<1>> {
        let counted = batch.terms.into_iter().zip(&self.counts);
        let counted = counted.filter(|(term, _)| term.count > 0.0);
        let shares = counted.map(|(term, all)| match term.count == *all {
            true => term.mean,
            false => term.mean * (term.count / all),
        });
        shares.reduce(|sum, term| sum + term)
    }
}

/// The gradient of each weight of `module`, in the module's order; `None` for weights without one.
pub(super) fn gradients<M: Module>(
    module: &M,
    gradients: Option<Gradients>,
) -> Vec<Option<TensorData>> {
    let mut collector = Collector {
        gradients,
        values: vec![],
    };
    module.visit(&mut collector);
    collector.values
}

struct Collector {
    gradients: Option<Gradients>,
    values: Vec<Option<TensorData>>,
}

impl ModuleVisitor for Collector {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradients = self.gradients.as_mut();
        let gradient = gradients.and_then(|all| param.val().grad_remove(all));
        self.values.push(gradient.map(Tensor::into_data));
    }
}

/// Sums the gradients of all ranks, and joins the running moments of `module`; `rows` is how many this rank has had of the batch.
pub(super) fn sum<M: Module>(
    ranks: &dyn Ranks,
    module: M,
    gradients: Vec<Option<TensorData>>,
    joined: &Joined,
    rows: usize,
) -> Result<(M, Vec<Option<TensorData>>), RanksError> {
    if ranks.is_alone() {
        return Ok((module, gradients));
    }
    let share = rows as f32 / joined.rows as f32;
    let mut packer = Packer {
        gradients: gradients.into_iter(),
        share,
        name: vec![],
        numbers: vec![],
        present: vec![],
        moments: vec![],
    };
    module.visit(&mut packer);
    let Packer {
        mut numbers,
        present,
        moments,
        ..
    } = packer;
    // A weight has a gradient if it has one on any rank.
    let (weights, flags) = (numbers.len(), present.len());
    numbers.extend(present);
    numbers.extend(moments);
    ranks.sum(&mut numbers)?;
    let mut present = numbers.split_off(weights);
    let moments = present.split_off(flags);
    let mut unpacker = Unpacker {
        values: vec![],
        weights: numbers,
        present,
        at: 0,
        nth: 0,
    };
    module.visit(&mut unpacker);
    let summed = unpacker.values;
    let module = match moments.is_empty() {
        true => module,
        false => module.map(&mut Means {
            numbers: moments.into_iter(),
            name: vec![],
        }),
    };
    Ok((module, summed))
}

/// Whether the last part of a name is that of a running moment of batch norm.
fn is_moment(name: &[String]) -> bool {
    matches!(
        name.last().map(String::as_str),
        Some("running_mean" | "running_var")
    )
}

/// Writes gradients one behind the other, zeros where a trained weight has none, and running moments apart from them.
struct Packer<I> {
    gradients: I,
    share: f32,
    name: Vec<String>,
    numbers: Vec<f32>,
    /// Of each trained weight 1 if it has a gradient here, or 0.
    present: Vec<f32>,
    moments: Vec<f32>,
}

impl<I: Iterator<Item = Option<TensorData>>> ModuleVisitor for Packer<I> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.name.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.name.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = self.gradients.next().flatten();
        let tensor = param.val();
        if tensor.is_require_grad() {
            self.present.push(f32::from(u8::from(gradient.is_some())));
            match gradient {
                Some(data) => self.numbers.extend_from_slice(slice(&data)),
                None => {
                    let more = tensor.shape().num_elements();
                    self.numbers.resize(self.numbers.len() + more, 0.0);
                }
            }
        } else if is_moment(&self.name) {
            let values = tensor.into_data();
            let shares = slice(&values).iter().map(|value| value * self.share);
            self.moments.extend(shares);
        }
    }
}

/// Takes the sums apart again, weight by weight.
struct Unpacker {
    values: Vec<Option<TensorData>>,
    weights: Vec<f32>,
    present: Vec<f32>,
    /// The first number, and the first weight, not taken yet.
    at: usize,
    nth: usize,
}

impl ModuleVisitor for Unpacker {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        if !tensor.is_require_grad() {
            self.values.push(None);
            return;
        }
        let shape = tensor.shape();
        let end = self.at + shape.num_elements();
        let present = self.present[self.nth] > 0.0;
        let sum = present.then(|| TensorData::new(self.weights[self.at..end].to_vec(), shape));
        self.values.push(sum);
        self.at = end;
        self.nth += 1;
    }
}

/// Replaces running moments.
struct Means {
    numbers: std::vec::IntoIter<f32>,
    name: Vec<String>,
}

impl ModuleMapper for Means {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.name.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.name.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !is_moment(&self.name) || param.val().is_require_grad() {
            return param;
        }
        param.map(|tensor| {
            let shape = tensor.shape();
            let values = self.numbers.by_ref().take(shape.num_elements()).collect();
            Tensor::from_data(TensorData::new::<f32, _>(values, shape), &tensor.device())
        })
    }
}
