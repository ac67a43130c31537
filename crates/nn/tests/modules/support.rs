//! Golden files (see `../golden/golden_file.py`): drawing the inputs that they do not hold, and comparing with the outputs
//! that they do hold.
//!
//! `|found - expected| <= k · e · max|expected| + ε · max|expected|` for each tensor, where `e` is the largest
//! relative error of PyTorch in f32 over the cases of the same kind, `k` is 2 for outputs and 3 for gradients, and `ε` is the
//! rounding of the stored value itself.

use std::{collections::BTreeMap, env};

use burn::{
    module::{Flag, Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Device, Gradients, Tensor, TensorData},
};
use regard_nn::{
    devices,
    weights::{self, Array, Arrays},
};
use serde_json::Value;

/// A device that records gradients: the CPU, or the card that the environment variable REGARD_TEST_DEVICE names (`bench/gpu/check`).
pub fn device() -> Device {
    let device = match env::var("REGARD_TEST_DEVICE") {
        Err(_) => Device::flex(),
        Ok(name) => {
            let found = devices::cards().into_iter().find(|(card, _)| *card == name);
            found.unwrap_or_else(|| panic!("there is no {name}")).1
        }
    };
    device.autodiff()
}

/// Numbers from `U(-scale, scale)` that follow from `name`: the formula of `golden_file.py`, bit for bit.
pub fn values(name: &str, count: usize, scale: f32) -> Vec<f32> {
    let key = name.bytes().fold(0x811c_9dc5u32, |key, byte| {
        (key ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    (0..count as u32)
        .map(|i| {
            let x = key.wrapping_add(i.wrapping_mul(0x9e37_79b1));
            let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
            let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
            let x = x ^ (x >> 16);
            ((x >> 8) as f32 / 8_388_608.0 - 1.0) * scale
        })
        .collect()
}

/// The numbers of a tensor, row-major.
pub fn numbers<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.clone().into_data().iter::<f32>().collect()
}

/// The gradient of every weight of `module`, by name; zeros where none arrived.
pub fn gradients<M: Module>(module: &M, gradients: &Gradients) -> Arrays {
    struct Visitor<'a> {
        path: Vec<String>,
        gradients: &'a Gradients,
        arrays: Arrays,
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
            let shape = tensor.dims().to_vec();
            let values = match tensor.grad(self.gradients) {
                Some(gradient) => gradient.into_data().iter::<f32>().collect(),
                None => vec![0.0; shape.iter().product()],
            };
            self.arrays
                .insert(self.path.join("."), Array { shape, values });
        }
    }
    let mut visitor = Visitor {
        path: vec![],
        gradients,
        arrays: Arrays::new(),
    };
    module.visit(&mut visitor);
    visitor.arrays
}

/// All cases of a golden file.
pub struct GoldenFile {
    arrays: Arrays,
    cases: Vec<Value>,
}

impl GoldenFile {
    /// Reads the bytes of a golden file.
    pub fn read(bytes: &[u8]) -> Self {
        let (arrays, metadata) = weights::from_bytes(bytes).unwrap();
        let cases = serde_json::from_str(&metadata["cases"]).unwrap();
        Self { arrays, cases }
    }

    /// The cases of a kind.
    pub fn cases(&self, kind: &str) -> Vec<Case<'_>> {
        let cases = self.cases.iter().filter(|case| case["kind"] == kind);
        cases
            .map(|description| Case::new(self, description))
            .collect()
    }
}

/// One case: its description, and the values that are still to be compared.
pub struct Case<'a> {
    /// The description by the script.
    pub description: &'a Value,
    name: &'a str,
    outputs: Arrays,
    gradients: Arrays,
    scales: BTreeMap<&'a str, f64>,
}

impl<'a> Case<'a> {
    fn new(file: &GoldenFile, description: &'a Value) -> Self {
        let name = description["name"].as_str().unwrap();
        let mut rest = file.arrays[name].values.as_slice();
        let mut next = |entry: &'a Value| {
            let shape: Vec<usize> = serde_json::from_value(entry[1].clone()).unwrap();
            let (values, after) = rest.split_at(shape.iter().product());
            rest = after;
            let values = values.to_vec();
            (entry[0].as_str().unwrap(), Array { shape, values })
        };
        let mut scales = BTreeMap::new();
        for (key, scale) in description["constants"].as_object().unwrap() {
            scales.insert(key.as_str(), scale.as_f64().unwrap());
        }
        let mut outputs = Arrays::new();
        for entry in description["outputs"].as_array().unwrap() {
            let (key, array) = next(entry);
            outputs.insert(key.to_owned(), array);
        }
        let mut gradients = Arrays::new();
        let drawn = description["scales"].as_array().unwrap();
        for (entry, scale) in description["gradients"]
            .as_array()
            .unwrap()
            .iter()
            .zip(drawn)
        {
            let (key, array) = next(entry);
            scales.insert(key, scale.as_f64().unwrap());
            gradients.insert(key.to_owned(), array);
        }
        assert!(rest.is_empty(), "{name}: values left over");
        Self {
            description,
            name,
            outputs,
            gradients,
            scales,
        }
    }

    /// A text field of the description.
    pub fn text(&self, field: &str) -> &'a str {
        self.description[field].as_str().unwrap()
    }

    /// A number field of the description.
    pub fn number(&self, field: &str) -> f64 {
        self.description[field].as_f64().unwrap()
    }

    fn drawn(&self, name: &str, count: usize) -> Vec<f32> {
        let Some(&scale) = self.scales.get(name) else {
            panic!("{}: the golden file knows no {name}", self.name);
        };
        values(&format!("{}/{name}", self.name), count, scale as f32)
    }

    /// The input `name`, without gradient.
    pub fn constant<const D: usize>(&self, name: &str, shape: [usize; D]) -> Tensor<D> {
        let values = self.drawn(name, shape.iter().product());
        Tensor::from_data(TensorData::new(values, shape), &device())
    }

    /// The input `name`, whose gradient is wanted.
    pub fn leaf<const D: usize>(&self, name: &str, shape: [usize; D]) -> Tensor<D> {
        self.constant(name, shape).require_grad()
    }

    /// `module` with the case's weights.
    pub fn fill<M: Module>(&self, module: M) -> M {
        let mut arrays = weights::collect(&module);
        for (name, array) in &mut arrays {
            array.values = self.drawn(name, array.values.len());
        }
        weights::apply(module, arrays).unwrap()
    }

    /// Compares an output.
    pub fn output<const D: usize>(&mut self, name: &str, found: &Tensor<D>) {
        let error = 2.0 * self.number("output_error");
        let expected = self.outputs.remove(name);
        self.compare(name, expected, &found.dims(), &numbers(found), error);
    }

    /// Compares the gradient of an input.
    pub fn gradient<const D: usize>(&mut self, name: &str, leaf: &Tensor<D>, all: &Gradients) {
        let found = leaf.grad(all).unwrap_or_else(|| leaf.zeros_like().inner());
        let error = 3.0 * self.number("gradient_error");
        let expected = self.gradients.remove(name);
        self.compare(name, expected, &found.dims(), &numbers(&found), error);
    }

    /// Compares the gradients of all weights of a module.
    pub fn gradients<M: Module>(&mut self, module: &M, all: &Gradients) {
        let error = 3.0 * self.number("gradient_error");
        for (name, found) in gradients(module, all) {
            let expected = self.gradients.remove(&name);
            self.compare(&name, expected, &found.shape, &found.values, error);
        }
    }

    fn compare(
        &self,
        key: &str,
        expected: Option<Array>,
        shape: &[usize],
        found: &[f32],
        error: f64,
    ) {
        let name = self.name;
        let expected = expected.unwrap_or_else(|| panic!("{name}: the golden file has no {key}"));
        assert_eq!(shape, expected.shape, "{name}: {key}");
        let size = expected
            .values
            .iter()
            .fold(0.0, |most: f32, v| most.max(v.abs()));
        // The rounding of a result, as in the tests of regard-kernels: that of a number of its size plus 0.3.
        let rounding = f64::from(f32::EPSILON) * (f64::from(size) + 0.3);
        let tolerance = error * f64::from(size) + rounding;
        for (i, (&found, &expected)) in found.iter().zip(&expected.values).enumerate() {
            let distance = (f64::from(found) - f64::from(expected)).abs();
            assert!(
                distance <= tolerance,
                "{name}: {key}[{i}] is {found}, expected {expected}: off by {distance:.1e}, allowed {tolerance:.1e}"
            );
        }
    }

    /// Checks that everything the file holds of this case has been compared.
    pub fn close(self) {
        let open: Vec<&String> = self.outputs.keys().chain(self.gradients.keys()).collect();
        assert!(open.is_empty(), "{}: not compared: {open:?}", self.name);
    }
}

/// Sets normalisations to their running statistics, whose variances are made positive as in the scripts.
pub fn frozen<M: Module>(module: M) -> M {
    #[derive(Default)]
    struct Freeze(Vec<String>);
    impl ModuleMapper for Freeze {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.pop();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            match self.0.last().is_some_and(|name| name == "running_var") {
                true => param.map(|variance| variance.abs() + 0.5),
                false => param,
            }
        }
        fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
            flag.with_value(false)
        }
    }
    module.map(&mut Freeze::default())
}
