//! Adam, AdamW, Adadelta and SGD over all weights of a module at once, with the fused steps of
//! `regard_kernels::optim` and clipping by the global norm.
//!
//! State is kept by weight name (`decoder.recurrent`), so that a checkpoint restores it exactly. Weights on a graphics card are updated there
//! (`card.rs`), by the same formulas up to rounding.

mod card;

use std::collections::BTreeMap;

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{Gradients, Tensor, TensorData},
};
use regard_kernels::optim;
use regard_nn::weights::{self, Array, Arrays};

use super::parallel::{self, WeightGradients};
use crate::recipe::Optimizer as Settings;

/// An optimizer and its state.
#[derive(Debug, Clone)]
pub struct Optimizer {
    settings: Settings,
    step: u32,
    state: BTreeMap<String, State>,
    /// In the place of `state`, that of the weights that were last updated on a card.
    on_card: Option<card::OnCard>,
}

/// Per weight: two running averages (Adam: first and second moment; Adadelta: squared gradients and
/// squared updates) or one (SGD: the momentum buffer, then `second` is empty).
#[derive(Debug, Clone, PartialEq)]
struct State {
    shape: Vec<usize>,
    first: Vec<f32>,
    second: Vec<f32>,
}

/// Why training cannot go on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OptimizerError {
    /// The gradient is NaN or infinite.
    #[error(
        "the gradient's norm is {norm} at update {step}; lower the learning rate or set optimizer.clip_norm"
    )]
    Gradient {
        /// The norm.
        norm: f64,
        /// The update's number.
        step: u32,
    },
    /// State of another optimizer or model.
    #[error("the checkpoint's optimizer state does not fit: {0}")]
    State(String),
}

impl Optimizer {
    /// An optimizer that has taken no step.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            step: 0,
            state: BTreeMap::new(),
            on_card: None,
        }
    }

    /// One update of `module` with `gradients` at `learning_rate`; gives the module and the norm of the
    /// gradient before clipping.
    ///
    /// # Errors
    /// A gradient that is not finite; the module is then lost to the caller, who has a checkpoint.
    pub fn update<M: Module>(
        &mut self,
        module: M,
        gradients: Gradients,
        learning_rate: f64,
    ) -> Result<(M, f64), OptimizerError> {
        let gradients = parallel::gradients(&module, Some(gradients));
        self.step(module, gradients, learning_rate)
    }

    /// As [`update`](Self::update), with the gradient of each weight, summed over processes.
    pub(super) fn step<M: Module>(
        &mut self,
        module: M,
        gradients: WeightGradients,
        learning_rate: f64,
    ) -> Result<(M, f64), OptimizerError> {
        let gradients = match gradients {
            WeightGradients::Memory(gradients) => gradients,
            WeightGradients::Card { present, numbers } => {
                return self.step_on_card(module, present, numbers, learning_rate);
            }
        };
        let slices: Vec<&[f32]> = gradients.iter().flatten().map(slice).collect();
        let norm = optim::squared_norm(&slices).sqrt();
        let gradient_scale = self.begin(norm)?;
        let mut updater = Updater {
            optimizer: self,
            gradients: gradients.into_iter(),
            learning_rate,
            gradient_scale,
            path: vec![],
        };
        Ok((module.map(&mut updater), norm))
    }

    /// Counts an update by gradients of this norm, and gives what they are multiplied with.
    fn begin(&mut self, norm: f64) -> Result<f64, OptimizerError> {
        self.step = self.step.saturating_add(1);
        if !norm.is_finite() {
            return Err(OptimizerError::Gradient {
                norm,
                step: self.step,
            });
        }
        Ok(match self.settings.clip_norm() {
            Some(most) => optim::clip_factor(norm, most),
            None => 1.0,
        })
    }

    fn apply(
        &mut self,
        name: String,
        shape: &[usize],
        parameters: &mut [f32],
        gradients: &[f32],
        learning_rate: f64,
        gradient_scale: f64,
    ) {
        let single = matches!(self.settings, Settings::Sgd(_));
        let state = self.state.entry(name).or_insert_with(|| State {
            shape: shape.to_vec(),
            first: vec![0.0; parameters.len()],
            second: vec![0.0; if single { 0 } else { parameters.len() }],
        });
        let (first, second) = (&mut state.first, &mut state.second);
        let adam = |beta1, beta2, epsilon, weight_decay, decoupled| optim::Adam {
            learning_rate,
            beta1,
            beta2,
            epsilon,
            weight_decay,
            decoupled,
            gradient_scale,
        };
        let done = match &self.settings {
            Settings::Adam(s) => adam(s.beta1, s.beta2, s.epsilon, 0.0, false)
                .step(self.step, parameters, gradients, first, second),
            Settings::AdamW(s) => adam(s.beta1, s.beta2, s.epsilon, s.weight_decay, true)
                .step(self.step, parameters, gradients, first, second),
            Settings::Adadelta(s) => optim::Adadelta {
                learning_rate,
                rho: s.rho,
                epsilon: s.epsilon,
                weight_decay: 0.0,
                gradient_scale,
            }
            .step(parameters, gradients, first, second),
            Settings::Sgd(s) => optim::Sgd {
                learning_rate,
                momentum: s.momentum,
                nesterov: s.nesterov,
                weight_decay: s.weight_decay,
                gradient_scale,
            }
            .step(parameters, gradients, first),
        };
        done.expect("the recipe's checks cover every setting, and the lengths are one weight's");
    }

    /// The state as named arrays, `first.<weight>` and `second.<weight>`, and the number of updates.
    pub fn state(&self) -> (Arrays, u32) {
        let mut arrays = Arrays::new();
        let on_card = self.on_card.iter().flat_map(card::OnCard::read);
        let on_card: BTreeMap<_, _> = on_card.collect();
        for (name, state) in self.state.iter().chain(&on_card) {
            for (slot, values) in [("first", &state.first), ("second", &state.second)] {
                if !values.is_empty() {
                    let array = Array {
                        shape: state.shape.clone(),
                        values: values.clone(),
                    };
                    arrays.insert(format!("{slot}.{name}"), array);
                }
            }
        }
        (arrays, self.step)
    }

    /// An optimizer of `module` with the state of [`Optimizer::state`].
    ///
    /// # Errors
    /// Arrays that are not the state of such an optimizer, or not of the module's weights.
    pub fn restore<M: Module>(
        settings: Settings,
        module: &M,
        arrays: Arrays,
        step: u32,
    ) -> Result<Self, OptimizerError> {
        let two = !matches!(settings, Settings::Sgd(_));
        let mut state = BTreeMap::<String, State>::new();
        let mut seconds = vec![];
        for (name, array) in arrays {
            if let Some(name) = name.strip_prefix("first.") {
                let entry = State {
                    shape: array.shape,
                    first: array.values,
                    second: vec![],
                };
                state.insert(name.to_owned(), entry);
            } else if let Some(name) = name.strip_prefix("second.") {
                seconds.push((name.to_owned(), array.values));
            } else {
                return Err(OptimizerError::State(format!("unknown entry `{name}`")));
            }
        }
        for (name, values) in seconds {
            let entry = state
                .get_mut(&name)
                .filter(|entry| entry.first.len() == values.len());
            let Some(entry) = entry else {
                return Err(OptimizerError::State(format!(
                    "`second.{name}` has no fitting `first.{name}`"
                )));
            };
            entry.second = values;
        }
        if let Some((name, _)) = state
            .iter()
            .find(|(_, s)| s.second.is_empty() == two && !s.first.is_empty())
        {
            return Err(OptimizerError::State(format!(
                "`{name}` is the state of another kind of optimizer"
            )));
        }
        let weights = weights::collect(module);
        for (name, State { shape, .. }) in &state {
            let expected = match weights.get(name) {
                Some(weight) if weight.shape == *shape => continue,
                Some(weight) => format!("{:?}, as the weight has", weight.shape),
                None => "nothing, as the model has no such weight".to_owned(),
            };
            return Err(OptimizerError::State(format!(
                "`first.{name}` has the shape {shape:?}; expected {expected}; restore the file"
            )));
        }
        Ok(Self {
            settings,
            step,
            state,
            on_card: None,
        })
    }
}

/// The numbers of a gradient, or of a weight.
pub(super) fn slice(data: &TensorData) -> &[f32] {
    data.as_slice().expect("weights and gradients are f32")
}

struct Updater<'a> {
    optimizer: &'a mut Optimizer,
    gradients: std::vec::IntoIter<Option<TensorData>>,
    learning_rate: f64,
    gradient_scale: f64,
    path: Vec<String>,
}

impl ModuleMapper for Updater<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(gradient) = self.gradients.next().flatten() else {
            return param;
        };
        let name = self.path.join(".");
        param.map(|tensor| {
            let device = tensor.device();
            let shape = tensor.dims();
            let mut data = tensor.inner().into_data();
            let parameters = data.as_mut_slice().expect("weights are f32");
            self.optimizer.apply(
                name,
                &shape,
                parameters,
                slice(&gradient),
                self.learning_rate,
                self.gradient_scale,
            );
            Tensor::from_data(data, &device).require_grad()
        })
    }
}
