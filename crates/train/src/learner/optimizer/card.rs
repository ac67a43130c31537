//! The optimizers' steps on a graphics card: all weights as one list of numbers, so that an update takes few operations however many weights
//! there are, and nothing but the norm of the gradient leaves the card.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Device, Tensor, TensorData},
};
use regard_nn::bridge::sum;

use super::{Optimizer, OptimizerError, State, slice};
use crate::recipe::Optimizer as Settings;

/// The state of the weights that have a gradient, one weight's numbers after the other's.
#[derive(Debug, Clone)]
pub(super) struct OnCard {
    /// Which weights of the module those are.
    present: Vec<bool>,
    /// Their names and shapes.
    weights: Vec<(String, Vec<usize>)>,
    moments: Moments,
}

/// The numbers of [`State`]: `first` and, but for SGD, `second`.
#[derive(Debug, Clone)]
struct Moments {
    first: Tensor<1>,
    second: Option<Tensor<1>>,
}

impl OnCard {
    /// Brings `state` to the card, from which it is taken away; zeros for weights that have none.
    fn new(
        present: Vec<bool>,
        weights: Vec<(String, Vec<usize>)>,
        optimizer: &mut Optimizer,
        device: &Device,
    ) -> Self {
        let single = matches!(optimizer.settings, Settings::Sgd(_));
        let (mut first, mut second) = (vec![], vec![]);
        for (name, shape) in &weights {
            let numbers = shape.iter().product();
            let state = optimizer.state.remove(name).unwrap_or_else(|| State {
                shape: shape.clone(),
                first: vec![0.0; numbers],
                second: vec![0.0; if single { 0 } else { numbers }],
            });
            first.extend(state.first);
            second.extend(state.second);
        }
        let tensor = |numbers: Vec<f32>| {
            let length = numbers.len();
            Tensor::from_data(TensorData::new::<f32, _>(numbers, [length]), device)
        };
        let second = (!single).then(|| tensor(second));
        Self {
            present,
            weights,
            moments: Moments {
                first: tensor(first),
                second,
            },
        }
    }

    /// The state of each weight, by its name.
    pub(super) fn read(&self) -> Vec<(String, State)> {
        let data = |tensor: &Tensor<1>| tensor.clone().into_data();
        let first = data(&self.moments.first);
        let second = self.moments.second.as_ref().map(data);
        let mut from = 0;
        let states = self.weights.iter().map(|(name, shape)| {
            let range = from..from + shape.iter().product::<usize>();
            from = range.end;
            let part = |data: &TensorData| slice(data)[range.clone()].to_vec();
            let state = State {
                shape: shape.clone(),
                first: part(&first),
                second: second.as_ref().map(part).unwrap_or_default(),
            };
            (name.clone(), state)
        });
        states.collect()
    }
}

impl Optimizer {
    /// As `step`, of the weights that are `present`, with the `numbers` of their gradients.
    pub(super) fn step_on_card<M: Module>(
        &mut self,
        module: M,
        present: Vec<bool>,
        numbers: Tensor<1>,
        learning_rate: f64,
    ) -> Result<(M, f64), OptimizerError> {
        let squares = numbers.clone() * numbers.clone();
        let norm = f64::from(sum(squares).into_scalar::<f32>()).sqrt();
        let scale = self.begin(norm)?;
        let mut list = List {
            present: present.iter(),
            ..List::default()
        };
        module.visit(&mut list);
        let List {
            weights: named,
            numbers: weights,
            ..
        } = list;
        let device = numbers.device();
        let same = |state: &OnCard| state.present == present;
        let mut state = match self.on_card.take() {
            Some(state) if same(&state) => state,
            other => {
                self.state.extend(other.iter().flat_map(OnCard::read));
                OnCard::new(present, named, self, &device)
            }
        };
        let weights = Tensor::cat(weights, 0);
        let gradients = numbers * scale;
        let weights = self.formula(weights, gradients, &mut state.moments, learning_rate);
        let module = module.map(&mut Replacement {
            present: state.present.iter(),
            weights,
            from: 0,
        });
        self.on_card = Some(state);
        Ok((module, norm))
    }

    /// The formulas of `regard_kernels::optim`: the weights `p` after an update by the gradients `g`.
    fn formula(
        &self,
        p: Tensor<1>,
        g: Tensor<1>,
        moments: &mut Moments,
        learning_rate: f64,
    ) -> Tensor<1> {
        let first = moments.first.clone();
        let mut adam = |beta1: f64, beta2: f64, epsilon: f64, decay: f64| {
            let step = f64::from(self.step);
            let second = moments.second.take().expect("Adam has two moments");
            let m = first.clone() + (g.clone() - first.clone()) * (1.0 - beta1);
            let v = second * beta2 + g.clone() * g.clone() * (1.0 - beta2);
            let size = learning_rate / (1.0 - beta1.powf(step));
            let root = 1.0 / (1.0 - beta2.powf(step)).sqrt();
            let direction = m.clone() / (v.clone().sqrt() * root + epsilon);
            (moments.first, moments.second) = (m, Some(v));
            p.clone() * (1.0 - learning_rate * decay) - direction * size
        };
        match &self.settings {
            Settings::Adam(s) => adam(s.beta1, s.beta2, s.epsilon, 0.0),
            Settings::AdamW(s) => adam(s.beta1, s.beta2, s.epsilon, s.weight_decay),
            Settings::Adadelta(s) => {
                let updates = moments.second.take().expect("Adadelta has two means");
                let a = g.clone() * g.clone() * (1.0 - s.rho) + first * s.rho;
                let ratio = (updates.clone() + s.epsilon).sqrt() / (a.clone() + s.epsilon).sqrt();
                let update = ratio * g;
                let d = update.clone() * update.clone() * (1.0 - s.rho) + updates * s.rho;
                (moments.first, moments.second) = (a, Some(d));
                p - update * learning_rate
            }
            Settings::Sgd(s) => {
                let g = g + p.clone() * s.weight_decay;
                let b = first * s.momentum + g.clone();
                moments.first = b.clone();
                let direction = if s.nesterov { g + b * s.momentum } else { b };
                p - direction * learning_rate
            }
        }
    }
}

/// The weights that are present, with their names, shapes and numbers.
#[derive(Default)]
struct List<'a> {
    present: std::slice::Iter<'a, bool>,
    path: Vec<String>,
    weights: Vec<(String, Vec<usize>)>,
    numbers: Vec<Tensor<1>>,
}

impl ModuleVisitor for List<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.present.next() == Some(&true) {
            let tensor = param.val().inner();
            let shape = tensor.dims();
            let numbers: usize = shape.iter().product();
            self.weights.push((self.path.join("."), shape.to_vec()));
            self.numbers.push(tensor.reshape([numbers]));
        }
    }
}

/// Puts the numbers of `weights` in the place of the weights that are present.
struct Replacement<'a> {
    present: std::slice::Iter<'a, bool>,
    weights: Tensor<1>,
    from: usize,
}

impl ModuleMapper for Replacement<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.present.next() != Some(&true) {
            return param;
        }
        param.map(|tensor| {
            let device = tensor.device();
            let shape = tensor.dims();
            let range = self.from..self.from + shape.iter().product::<usize>();
            self.from = range.end;
            let numbers = self.weights.clone().slice([range]);
            Tensor::from_inner(numbers.reshape(shape))
                .to_device(&device)
                .require_grad()
        })
    }
}

#[cfg(test)]
mod tests {
    use regard_nn::{initialize::Initializer, weights::Arrays};

    use super::*;
    use crate::{
        learner::parallel::WeightGradients,
        recipe::{Adadelta, Adam, AdamW, Sgd},
    };

    /// `[4, 3]` and `[3]`: gradients that differ from update to update.
    fn drawn(update: usize) -> [TensorData; 2] {
        [vec![4, 3], vec![3]].map(|shape| {
            let values = (0..shape.iter().product()).map(|at: usize| ((at + update) as f32).sin());
            TensorData::new::<f32, _>(values.collect(), shape)
        })
    }

    /// Both have the same names, and numbers that differ by rounding.
    fn assert_alike(what: &str, memory: &Arrays, card: &Arrays) {
        assert!(memory.keys().eq(card.keys()), "{what}");
        for (name, array) in memory {
            assert_eq!(array.shape, card[name].shape, "{what} {name}");
            for (a, b) in array.values.iter().zip(&card[name].values) {
                let close = (a - b).abs() <= 2e-6 * (1.0 + a.abs());
                assert!(close, "{what} {name}: {a} and {b}");
            }
        }
    }

    /// Three updates, of one weight, of both, of the other.
    #[test]
    fn an_update_as_one_list_is_that_in_memory() {
        let device = Device::flex();
        let clip_norm = 0.5;
        let sgd = Sgd {
            clip_norm,
            momentum: 0.9,
            ..Sgd::default()
        };
        let adam = Adam::default();
        let adamw = AdamW::default();
        let adadelta = Adadelta::default();
        let nesterov = Sgd {
            nesterov: true,
            weight_decay: 0.1,
            ..sgd.clone()
        };
        for settings in [
            Settings::Adam(Adam { clip_norm, ..adam }),
            Settings::AdamW(AdamW { clip_norm, ..adamw }),
            Settings::Adadelta(Adadelta {
                clip_norm,
                ..adadelta
            }),
            Settings::Sgd(sgd),
            Settings::Sgd(nesterov),
        ] {
            let module = Initializer::new(3, &device.clone().autodiff()).linear(4, 3, true);
            let mut in_memory = (Optimizer::new(settings.clone()), module.clone());
            let mut on_card = (Optimizer::new(settings), module);
            let steps = [[true, false], [true, true], [false, true]];
            for (update, present) in steps.into_iter().enumerate() {
                let gradients = drawn(update).into_iter().zip(present);
                let gradients: Vec<_> = gradients.map(|(one, is)| is.then_some(one)).collect();
                let some = gradients.iter().flatten();
                let list: Vec<f32> = some.flat_map(|one| slice(one).to_vec()).collect();
                let (module, norm) = in_memory
                    .0
                    .step(in_memory.1, WeightGradients::Memory(gradients), 0.01)
                    .unwrap();
                in_memory.1 = module;
                let numbers = Tensor::from_floats(&list[..], &device);
                let present = present.to_vec();
                let gradients = WeightGradients::Card { present, numbers };
                let (module, also) = on_card.0.step(on_card.1, gradients, 0.01).unwrap();
                on_card.1 = module;
                assert!((norm - also).abs() < 1e-6 * norm, "{norm} and {also}");
            }
            let weights = [&in_memory.1, &on_card.1].map(regard_nn::weights::collect);
            assert_alike("weights", &weights[0], &weights[1]);
            let [memory, card] = [in_memory.0, on_card.0].map(|optimizer| optimizer.state());
            assert_eq!((memory.1, card.1), (3, 3));
            assert_alike("state", &memory.0, &card.0);
        }
    }

    #[test]
    fn a_gradient_on_a_card_that_is_not_finite_is_refused() {
        let device = Device::flex();
        let module = Initializer::new(3, &device.clone().autodiff()).linear(1, 1, false);
        let gradients = WeightGradients::Card {
            present: vec![true],
            numbers: Tensor::from_floats([f32::NAN], &device),
        };
        let mut optimizer = Optimizer::new(Settings::Sgd(Sgd::default()));
        let refused = optimizer.step(module, gradients, 0.1).unwrap_err();
        assert!(matches!(refused, OptimizerError::Gradient { step: 1, .. }));
    }
}
