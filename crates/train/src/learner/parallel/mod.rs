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
//! moments are the mean of the ranks', by rows. Those of a frozen batch norm do not move.
//!
//! The sums begin while the backward pass still runs: a thread beside it takes the weights in buckets, and sums a bucket as soon as its
//! gradients are complete ([`EarlyGradients`]). The first update takes the weights from the last to the first, the others in the
//! order in which their gradients arrived on rank 0 then: a pass goes back through what is deepest in the graph first, so that a decoder's
//! first layer may come after the whole encoder. All ranks have the same buckets, and a sum is that of the ranks in their order, so
//! the order of the weights changes no bit.
//!
//! Gradients on a graphics card stay there and are summed at the end of the pass (`card.rs`).

mod card;

use std::{
    collections::BTreeSet,
    sync::mpsc::{self, Receiver, Sender},
    thread,
};

use burn::{
    module::{Flag, Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Device, Gradients, Shape, Tensor, TensorData},
};
use regard_nn::{bridge::EarlyGradients, devices::is_card};
use serde::{Deserialize, Serialize};

pub(super) use card::Carrier;
use card::OnCard;

use super::optimizer::slice;
use crate::{
    ranks::{BUCKET, Ranks, RanksError},
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

/// The gradient of each weight of a module, in the module's order.
#[derive(Debug)]
pub(super) enum WeightGradients {
    /// In memory; `None` for weights without one.
    Memory(Vec<Option<TensorData>>),
    /// On a card.
    Card {
        /// Whether each weight has one.
        present: Vec<bool>,
        /// The numbers of those that are present, one weight's after the other's.
        numbers: Tensor<1>,
    },
}

/// The gradient of each weight of `module`.
pub(super) fn gradients<M: Module>(module: &M, gradients: Option<Gradients>) -> WeightGradients {
    if module.devices().iter().any(is_card) {
        return OnCard::of(module, gradients).joined();
    }
    let mut collector = Collector {
        gradients,
        values: vec![],
    };
    module.visit(&mut collector);
    WeightGradients::Memory(collector.values)
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

/// What sums the gradients of all ranks.
#[derive(Debug)]
pub(super) struct Summing {
    /// What sums those on cards; `None` if there is nothing to sum, or nothing on a card.
    carrier: Option<Carrier>,
    /// Weights that operations without a count read too: their gradients are complete at the end only.
    late: BTreeSet<usize>,
    /// The weights in the order in which their gradients arrived on rank 0; empty until an update has told it.
    order: Vec<usize>,
}

/// Where the gradients of a backward pass arrive. To be made before the forward pass.
#[derive(Debug)]
pub(super) struct Arriving {
    early: EarlyGradients,
    sender: Sender<Arrival>,
    receiver: Receiver<Arrival>,
}

/// A weight's place in its module, and its gradient if it has one here.
type Arrival = (usize, Option<TensorData>);

/// A weight that is trained.
#[derive(Clone)]
struct Weight {
    /// Its place in the module.
    index: usize,
    shape: Shape,
}

impl Weight {
    /// How many numbers are sent of it: its gradient, and whether it has one.
    fn numbers(&self) -> usize {
        self.shape.num_elements() + 1
    }
}

impl Summing {
    /// Agrees with the other ranks on what carries the sums of gradients on `device`.
    pub(super) fn agree(ranks: &dyn Ranks, device: &Device) -> Result<Self, RanksError> {
        Ok(Self {
            carrier: Carrier::agree(ranks, device)?,
            late: BTreeSet::new(),
            order: vec![],
        })
    }

    /// What carries the sums of gradients on cards.
    pub(super) fn carrier(&self) -> Option<&Carrier> {
        self.carrier.as_ref()
    }

    /// Watches the forward pass that comes next; `None` if there is one process, or gradients are on a card.
    pub(super) fn watch<M: Module>(&self, ranks: &dyn Ranks, module: &M) -> Option<Arriving> {
        if ranks.is_alone() || self.carrier.is_some() {
            return None;
        }
        let (sender, receiver) = mpsc::channel();
        let complete = sender.clone();
        let early = EarlyGradients::watch(
            module,
            |index| !self.late.contains(&index),
            // A receiver that has failed tells why at the end.
            move |index, gradient| drop(complete.send((index, Some(gradient)))),
        );
        Some(Arriving {
            early,
            sender,
            receiver,
        })
    }

    /// Goes back through `loss`, which is `None` if this rank has nothing to predict, and gives the gradient of each weight of `module`,
    /// summed over the ranks.
    pub(super) fn backward<M: Module>(
        &mut self,
        ranks: &dyn Ranks,
        module: &M,
        loss: Option<Tensor<1>>,
        arriving: Option<Arriving>,
    ) -> Result<WeightGradients, RanksError> {
        if let Some(carrier) = &self.carrier {
            let own = loss.map(|loss| loss.backward());
            return OnCard::of(module, own).sum(ranks, carrier);
        }
        let Some(arriving) = arriving else {
            let own = loss.map(|loss| loss.backward());
            return Ok(gradients(module, own));
        };
        let Arriving {
            early,
            sender,
            receiver,
        } = arriving;
        let mut weights = Weights::default();
        module.visit(&mut weights);
        weights.arrange(&self.order);
        let sums = Sums::new(ranks, &weights);
        let summed = thread::scope(|scope| {
            let sums = scope.spawn(|| sums.run(receiver));
            module.visit(&mut Rest {
                gradients: loss.map(|loss| loss.backward()),
                early: &early,
                sender,
                index: 0,
            });
            // The last of the senders, so that the thread ends.
            drop(early);
            sums.join().expect("sums do not panic")
        })?;
        if !summed.late.is_empty() {
            // They will arrive at another time.
            self.order.clear();
            self.late.extend(summed.late);
        } else if self.order.is_empty() {
            let all = ranks.gather(&ranks.is_first().then_some(summed.arrived))?;
            self.order = all.into_iter().flatten().flatten().collect();
        }
        Ok(WeightGradients::Memory(summed.gradients))
    }
}

/// The weights of a module that are trained.
#[derive(Default)]
struct Weights {
    /// All weights, trained or not.
    count: usize,
    trained: Vec<Weight>,
}

impl Weights {
    /// Puts those that are trained into the order of `places`; from the last to the first if there are none.
    fn arrange(&mut self, places: &[usize]) {
        self.trained.reverse();
        let mut turns = vec![usize::MAX; self.count];
        for (turn, &place) in places.iter().enumerate() {
            turns[place] = turn;
        }
        self.trained.sort_by_key(|weight| turns[weight.index]);
    }
}

impl ModuleVisitor for Weights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        if tensor.is_require_grad() {
            self.trained.push(Weight {
                index: self.count,
                shape: tensor.shape(),
            });
        }
        self.count += 1;
    }
}

/// Sends the gradients that were not sent while the backward pass ran.
struct Rest<'a> {
    gradients: Option<Gradients>,
    early: &'a EarlyGradients,
    sender: Sender<Arrival>,
    index: usize,
}

impl ModuleVisitor for Rest<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        let index = self.index;
        self.index += 1;
        if !tensor.is_require_grad() {
            return;
        }
        let all = self.gradients.as_mut();
        let gradient = all.and_then(|all| tensor.grad_remove(all));
        let sent = gradient
            .as_ref()
            .is_some_and(|gradient| self.early.has_sent(index, gradient));
        if !sent {
            let arrival = (index, gradient.map(Tensor::into_data));
            // A receiver that has failed tells why at the end.
            drop(self.sender.send(arrival));
        }
    }
}

/// What [`Sums`] gives.
struct Summed {
    /// The sum for each weight.
    gradients: Vec<Option<TensorData>>,
    /// The weights in the order in which their gradients arrived here.
    arrived: Vec<usize>,
    /// The weights whose gradients were late on any rank.
    late: BTreeSet<usize>,
}

/// Sums what arrives, over all ranks.
struct Sums<'a> {
    ranks: &'a dyn Ranks,
    weights: &'a Weights,
    /// The gradient of each weight here, once it has arrived.
    own: Vec<Option<Option<TensorData>>>,
    summed: Vec<Option<TensorData>>,
    /// The weights in the order in which their gradients arrived here.
    arrived: Vec<usize>,
    /// Weights whose gradients changed after they had arrived.
    late: BTreeSet<usize>,
}

impl<'a> Sums<'a> {
    fn new(ranks: &'a dyn Ranks, weights: &'a Weights) -> Self {
        Self {
            ranks,
            weights,
            own: vec![None; weights.count],
            summed: vec![None; weights.count],
            arrived: vec![],
            late: BTreeSet::new(),
        }
    }

    fn run(mut self, arrivals: Receiver<Arrival>) -> Result<Summed, RanksError> {
        let mut left = &self.weights.trained[..];
        while !left.is_empty() {
            // As many of the next as fit, or one that is larger than a bucket.
            let mut room = BUCKET;
            let fits = |weight: &&Weight| {
                let rest = room.checked_sub(weight.numbers());
                room = rest.unwrap_or(0);
                rest.is_some()
            };
            let fit = left.iter().take_while(fits).count().max(1);
            let (bucket, rest) = left.split_at(fit);
            while bucket.iter().any(|weight| self.own[weight.index].is_none()) {
                // Nobody sends any more: the backward pass has panicked.
                let arrival = arrivals.recv().map_err(|_| RanksError::Gone)?;
                self.take(arrival);
            }
            self.sum(bucket)?;
            left = rest;
        }
        for arrival in arrivals {
            self.take(arrival);
        }
        let late = self.ranks.gather(&self.late)?;
        let late: BTreeSet<usize> = late.into_iter().flatten().collect();
        if !late.is_empty() {
            let trained = self.weights.trained.iter();
            let again = trained
                .filter(|weight| late.contains(&weight.index))
                .cloned();
            let again: Vec<Weight> = again.collect();
            self.sum(&again)?;
        }
        Ok(Summed {
            gradients: self.summed,
            arrived: self.arrived,
            late,
        })
    }

    fn take(&mut self, (index, gradient): Arrival) {
        match self.own[index].replace(gradient) {
            None => self.arrived.push(index),
            Some(_) => _ = self.late.insert(index),
        }
    }

    /// Sums the gradients of `weights`, of which one is there if it is on any rank.
    fn sum(&mut self, weights: &[Weight]) -> Result<(), RanksError> {
        let mut numbers: Vec<f32> = vec![];
        for weight in weights {
            match self.own[weight.index].iter().flatten().next() {
                Some(gradient) => numbers.extend_from_slice(slice(gradient)),
                None => numbers.resize(numbers.len() + weight.numbers() - 1, 0.0),
            }
        }
        let present = |weight: &Weight| match self.own[weight.index] {
            Some(Some(_)) => 1.0,
            _ => 0.0,
        };
        numbers.extend(weights.iter().map(present));
        self.ranks.sum(&mut numbers)?;
        let present = numbers.split_off(numbers.len() - weights.len());
        let mut numbers = numbers.into_iter();
        for (weight, present) in weights.iter().zip(present) {
            let own = numbers.by_ref().take(weight.numbers() - 1).collect();
            let sum = TensorData::new::<f32, _>(own, weight.shape.clone());
            self.summed[weight.index] = (present > 0.0).then_some(sum);
        }
        Ok(())
    }
}

/// Joins the running moments of `module`; `rows` is how many this rank has had of the batch.
pub(super) fn join_moments<M: Module>(
    ranks: &dyn Ranks,
    module: M,
    joined: &Joined,
    rows: usize,
) -> Result<M, RanksError> {
    if ranks.is_alone() {
        return Ok(module);
    }
    let mut moments = Moments {
        share: rows as f32 / joined.rows as f32,
        place: Place::default(),
        numbers: vec![],
    };
    module.visit(&mut moments);
    let mut numbers = moments.numbers;
    if numbers.is_empty() {
        return Ok(module);
    }
    ranks.sum(&mut numbers)?;
    Ok(module.map(&mut Means {
        numbers: numbers.into_iter(),
        place: Place::default(),
    }))
}

/// Where one is in a module.
#[derive(Default)]
struct Place {
    name: Vec<String>,
    /// The last batch norm that is frozen.
    frozen: Option<Vec<String>>,
}

impl Place {
    fn enter(&mut self, name: &str) {
        self.name.push(name.to_owned());
    }

    fn exit(&mut self) {
        self.name.pop();
    }

    /// A batch norm says whether it is trained before its moments come.
    fn meet(&mut self, flag: &Param<Flag>) {
        if let (false, [module @ .., _]) = (flag.is_enabled(), &self.name[..]) {
            self.frozen = Some(module.to_vec());
        }
    }

    /// Whether this is a running moment that training moves.
    fn is_moment(&self) -> bool {
        let [module @ .., last] = &self.name[..] else {
            return false;
        };
        matches!(last.as_str(), "running_mean" | "running_var")
            && self.frozen.as_deref() != Some(module)
    }
}

/// Collects running moments, times this rank's share of the rows.
struct Moments {
    share: f32,
    place: Place,
    numbers: Vec<f32>,
}

impl ModuleVisitor for Moments {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.place.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.exit();
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        self.place.meet(flag);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = param.val();
        if self.place.is_moment() && !tensor.is_require_grad() {
            let values = tensor.into_data();
            let shares = slice(&values).iter().map(|value| value * self.share);
            self.numbers.extend(shares);
        }
    }
}

/// Replaces running moments.
struct Means {
    numbers: std::vec::IntoIter<f32>,
    place: Place,
}

impl ModuleMapper for Means {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.place.enter(name);
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.exit();
    }

    fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
        self.place.meet(&flag);
        flag
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !self.place.is_moment() || param.val().is_require_grad() {
            return param;
        }
        param.map(|tensor| {
            let shape = tensor.shape();
            let values = self.numbers.by_ref().take(shape.num_elements()).collect();
            Tensor::from_data(TensorData::new::<f32, _>(values, shape), &tensor.device())
        })
    }
}

#[cfg(test)]
mod tests {
    use regard_nn::{
        bridge::{apply, linear, without_kernels},
        initialize::Initializer,
    };

    use super::*;
    use crate::ranks::Threads;

    fn in_memory(gradients: WeightGradients) -> Vec<Option<TensorData>> {
        match gradients {
            WeightGradients::Memory(all) => all,
            WeightGradients::Card { .. } => panic!("the processor is no card"),
        }
    }

    /// Expects each of two updates to sum the gradients of `loss` over two ranks; `also` is called after each, with its number.
    fn expect_sums<M: Module + Sync>(
        module: &M,
        loss: impl Fn(usize) -> Tensor<1> + Sync,
        also: impl Fn(&Summing, usize) + Sync,
    ) {
        let own = [0, 1].map(|rank| in_memory(gradients(module, Some(loss(rank).backward()))));
        let [first, second] = &own;
        let expected: Vec<Vec<f32>> = first
            .iter()
            .zip(second)
            .map(|(a, b)| [a, b].map(|one| slice(one.as_ref().expect("a gradient"))))
            .map(|[a, b]| a.iter().zip(b).map(|(a, b)| a + b).collect())
            .collect();
        thread::scope(|scope| {
            for ranks in Threads::new(2) {
                let (module, loss, also, expected) = (module.clone(), &loss, &also, &expected);
                scope.spawn(move || {
                    let mut summing = Summing::agree(&ranks, &Device::flex()).unwrap();
                    for update in 0..2 {
                        let arriving = summing.watch(&ranks, &module);
                        let loss = loss(ranks.rank());
                        let summed = summing.backward(&ranks, &module, Some(loss), arriving);
                        for (sum, expected) in in_memory(summed.unwrap()).iter().zip(expected) {
                            let sum = slice(sum.as_ref().expect("a gradient"));
                            assert_eq!(sum, expected, "update {update}");
                        }
                        also(&summing, update);
                    }
                });
            }
        });
    }

    /// The last weights of the module are read first, so their gradients are the last: from the second update on they are the last to be summed.
    #[test]
    fn gradients_are_summed_in_the_order_in_which_they_arrive() {
        let device = Device::flex().autodiff();
        let module = [3, 4].map(|seed| Initializer::new(seed, &device).linear(4, 4, false));
        let loss = |rank: usize| {
            let input = Tensor::<3>::full([2, 3, 4], 0.1 + rank as f32, &device);
            let output = apply(&module[0], apply(&module[1], input));
            (output.clone() * output).sum()
        };
        expect_sums(&module, loss, |summing, update| {
            assert_eq!(summing.order, [0, 1], "update {update}");
        });
        let mut weights = Weights::default();
        module.visit(&mut weights);
        for (places, expected) in [(&[][..], [1, 0]), (&[0, 1], [0, 1])] {
            weights.trained.sort_by_key(|weight| weight.index);
            weights.arrange(places);
            let arranged: Vec<usize> = weights.trained.iter().map(|one| one.index).collect();
            assert_eq!(arranged, expected);
        }
    }

    /// Two ranks with inputs of their own, and a weight that a fused operation and one of Burn's read: its gradient seems complete too
    /// early once, and is not sent before the end from then on. The bias, which the fused operation alone reads, stays early.
    #[test]
    fn a_gradient_that_was_sent_too_early_is_summed_again() {
        let device = Device::flex().autodiff();
        let module = Initializer::new(3, &device).linear(4, 4, true);
        let loss = |rank: usize| {
            let input = Tensor::<3>::full([2, 3, 4], 0.1 + rank as f32, &device);
            let first = without_kernels(|| linear(input, module.weight.val(), None));
            let output = apply(&module, first);
            (output.clone() * output).sum()
        };
        expect_sums(&module, loss, |summing, update| {
            assert_eq!(summing.late, BTreeSet::from([0]), "update {update}");
            // It arrives at another time from the second update on.
            assert_eq!(summing.order.is_empty(), update == 0);
        });
    }
}
