//! Gradients of any module against finite differences in f64, weight by weight and input by input.
//!
//! The derivative is `(4 D(h/2) - D(h)) / 3` with the central difference `D` (Richardson): its error is
//! below `|D(h/2) - D(h)|`, the change that halving the step makes, plus the rounding of the loss over the
//! step. Autodiff must lie within that.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{DType, Gradients, Tensor, TensorData},
};

use crate::support::device;

const STEP: f64 = 1e-3;

/// A module with its weights in f64.
pub fn double<M: Module>(module: M) -> M {
    struct Double;
    impl ModuleMapper for Double {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| {
                let data = tensor.into_data().convert::<f64>();
                Tensor::from_data(data, (&device(), DType::F64)).require_grad()
            })
        }
    }
    module.map(&mut Double)
}

/// A tensor in f64 that records gradients.
pub fn doubles<const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<D> {
    let values: Vec<f64> = values.iter().map(|&value| f64::from(value)).collect();
    Tensor::from_data(TensorData::new(values, shape), (&device(), DType::F64)).require_grad()
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// `tensor` with `by` added to the number at `index`.
fn nudged<const D: usize>(tensor: &Tensor<D>, index: usize, by: f64) -> Tensor<D> {
    let shape = tensor.dims();
    let mut values = numbers(tensor.clone());
    values[index] += by;
    Tensor::from_data(TensorData::new(values, shape), (&device(), DType::F64)).require_grad()
}

/// Names, sizes and gradients of all weights.
pub fn weights<M: Module>(module: &M, gradients: &Gradients) -> Vec<(String, Vec<f64>)> {
    struct Visitor<'a> {
        path: Vec<String>,
        gradients: &'a Gradients,
        found: Vec<(String, Vec<f64>)>,
    }
    impl ModuleVisitor for Visitor<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            let gradient = match tensor.grad(self.gradients) {
                Some(gradient) => numbers(gradient),
                None => vec![0.0; tensor.shape().num_elements()],
            };
            self.found.push((self.path.join("."), gradient));
        }
    }
    let mut visitor = Visitor {
        path: vec![],
        gradients,
        found: vec![],
    };
    module.visit(&mut visitor);
    visitor.found
}

struct Nudge {
    /// How many weights to skip before the one to change.
    skip: usize,
    index: usize,
    by: f64,
}

impl ModuleMapper for Nudge {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let here = self.skip == 0;
        self.skip = self.skip.wrapping_sub(1);
        match here {
            true => param.map(|tensor| nudged(&tensor, self.index, self.by)),
            false => param,
        }
    }
}

fn check(name: &str, loss: f64, gradient: &[f64], mut at: impl FnMut(usize, f64) -> f64) {
    for (index, &found) in gradient.iter().enumerate() {
        let mut central = |h: f64| (at(index, h) - at(index, -h)) / (2.0 * h);
        let (coarse, fine) = (central(STEP), central(STEP / 2.0));
        let derivative = (4.0 * fine - coarse) / 3.0;
        let rounding = 64.0 * f64::EPSILON * (1.0 + loss.abs()) / STEP;
        let tolerance = (fine - coarse).abs() + rounding;
        assert!(
            (found - derivative).abs() <= tolerance,
            "{name}[{index}]: gradient {found:e}, differences {derivative:e}, allowed {tolerance:.1e}"
        );
    }
}

/// Checks the gradients of every weight of `module` (in f64, see [`double`]) and of every input. Returns
/// how many numbers were checked.
pub fn check_gradients<M: Module, const D: usize>(
    name: &str,
    module: &M,
    inputs: &[Tensor<D>],
    loss: impl Fn(&M, &[Tensor<D>]) -> Tensor<1>,
) -> usize {
    let value = loss(module, inputs);
    let number = |loss: Tensor<1>| loss.into_scalar::<f64>();
    let gradients = value.clone().backward();
    let at_rest = number(value);
    let mut checked = 0;
    for (i, (weight, gradient)) in weights(module, &gradients).iter().enumerate() {
        check(
            &format!("{name}: {weight}"),
            at_rest,
            gradient,
            |index, by| {
                let nudge = &mut Nudge { skip: i, index, by };
                number(loss(&module.clone().map(nudge), inputs))
            },
        );
        checked += gradient.len();
    }
    for (i, input) in inputs.iter().enumerate() {
        let gradient = input.grad(&gradients).map(numbers);
        let gradient = gradient.unwrap_or_else(|| vec![0.0; input.shape().num_elements()]);
        check(
            &format!("{name}: input {i}"),
            at_rest,
            &gradient,
            |index, by| {
                let mut inputs = inputs.to_vec();
                inputs[i] = nudged(&inputs[i], index, by);
                number(loss(module, &inputs))
            },
        );
        checked += gradient.len();
    }
    checked
}
