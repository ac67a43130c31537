//! Gradients that stay on a graphics card, where the optimizer's step is taken: one list of numbers, which processes sum by NCCL where they
//! can, and else through their memory.

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Gradients, Tensor, TensorData},
};
use regard_nn::devices::{Communicator, is_card};

use super::{WeightGradients, slice};
use crate::ranks::{Ranks, RanksError};

/// What carries sums from card to card.
#[derive(Debug)]
pub(in crate::learner) enum Carrier {
    /// NCCL.
    Communicator(Communicator),
    /// The processes' memory, and why it has to.
    Memory(String),
}

impl Carrier {
    /// Agrees on one with the other ranks; `None` if there is nothing to sum, or nothing on a card.
    pub(in crate::learner) fn agree(
        ranks: &dyn Ranks,
        device: &Device,
    ) -> Result<Option<Self>, RanksError> {
        if ranks.is_alone() || !is_card(device) {
            return Ok(None);
        }
        // Before any rank joins and waits for all, all must be able to.
        if let Some(reason) = refusal(ranks, &Communicator::check(device))? {
            return Ok(Some(Self::Memory(reason)));
        }
        let own = match ranks.is_first() {
            true => Communicator::identity(),
            false => Ok(vec![]),
        };
        if let Some(reason) = refusal(ranks, &own)? {
            return Ok(Some(Self::Memory(reason)));
        }
        let identity = ranks.broadcast(own.unwrap_or_default())?;
        let joined = Communicator::join(device, &identity, ranks.rank(), ranks.count());
        Ok(Some(match (refusal(ranks, &joined)?, joined) {
            (None, Ok(communicator)) => Self::Communicator(communicator),
            (reason, _) => Self::Memory(reason.unwrap_or_default()),
        }))
    }

    /// The sum of all ranks' `numbers` `[n]`.
    fn sum(&self, ranks: &dyn Ranks, numbers: Tensor<1>) -> Result<Tensor<1>, RanksError> {
        match self {
            Self::Communicator(communicator) => {
                communicator.sum(numbers).map_err(RanksError::Carrier)
            }
            Self::Memory(_) => {
                let (device, shape) = (numbers.device(), numbers.shape());
                let mut values = slice(&numbers.into_data()).to_vec();
                ranks.sum(&mut values)?;
                let sums = TensorData::new::<f32, _>(values, shape);
                Ok(Tensor::from_data(sums, &device))
            }
        }
    }
}

/// Why the first of the ranks that could not do something could not.
fn refusal<T>(ranks: &dyn Ranks, own: &Result<T, String>) -> Result<Option<String>, RanksError> {
    let all = ranks.gather(&own.as_ref().err().cloned())?;
    Ok(all.into_iter().flatten().next())
}

/// A weight, trained or not.
struct Weight {
    device: Device,
    numbers: usize,
    /// `[numbers]`
    gradient: Option<Tensor<1>>,
}

/// The gradients of a module, whose weights are on a card.
pub(super) struct OnCard {
    weights: Vec<Weight>,
    gradients: Option<Gradients>,
}

impl OnCard {
    pub(super) fn of<M: Module>(module: &M, gradients: Option<Gradients>) -> Self {
        let mut found = Self {
            weights: vec![],
            gradients,
        };
        module.visit(&mut found);
        found
    }

    fn present(&self) -> Vec<bool> {
        let weights = self.weights.iter();
        weights.map(|weight| weight.gradient.is_some()).collect()
    }

    /// The gradients of this rank, one after the other.
    pub(super) fn joined(self) -> WeightGradients {
        let present = self.present();
        self.of_present(present)
    }

    /// The gradients, summed over the ranks; a weight has one if it has on any rank.
    pub(super) fn sum(
        self,
        ranks: &dyn Ranks,
        carrier: &Carrier,
    ) -> Result<WeightGradients, RanksError> {
        let all = ranks.gather(&self.present())?;
        let any = |at: usize| all.iter().any(|present| present[at]);
        let present = (0..self.weights.len()).map(any).collect();
        Ok(match self.of_present(present) {
            WeightGradients::Card { present, numbers } => WeightGradients::Card {
                present,
                numbers: carrier.sum(ranks, numbers)?,
            },
            none => none,
        })
    }

    /// The gradients of the weights that are `present` somewhere, zeros where they have none here.
    fn of_present(self, present: Vec<bool>) -> WeightGradients {
        let weights = self.weights.into_iter().zip(&present);
        let parts: Vec<Tensor<1>> = weights
            .filter(|(_, present)| **present)
            .map(|(weight, _)| {
                let zeros = || Tensor::zeros([weight.numbers], &weight.device);
                weight.gradient.unwrap_or_else(zeros)
            })
            .collect();
        match parts.is_empty() {
            true => WeightGradients::Memory(vec![None; present.len()]),
            false => WeightGradients::Card {
                present,
                numbers: Tensor::cat(parts, 0),
            },
        }
    }
}

impl ModuleVisitor for OnCard {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        let numbers = tensor.shape().num_elements();
        let gradients = self.gradients.as_mut();
        let gradient = gradients.and_then(|all| tensor.grad_remove(all));
        self.weights.push(Weight {
            device: tensor.device().inner(),
            numbers,
            gradient: gradient.map(|gradient| gradient.reshape([numbers])),
        });
    }
}
