//! Seeded initial values of parameters.
//!
//! Burn draws initial values lazily, in the order in which parameters are first used. Here they are
//! drawn at once and from one seeded generator, ChaCha12 (Bernstein 2008), whose definition fixes the numbers, so that a
//! seed gives the same model on every machine and with every version.
//!
//! ```
//! use burn::tensor::Device;
//! use regard_nn::initialize::Initializer;
//!
//! let mut a = Initializer::new(7, &Device::flex());
//! let mut b = Initializer::new(7, &Device::flex());
//! let same = a.uniform([2, 3], 0.1).val().equal(b.uniform([2, 3], 0.1).val());
//! assert!(same.all().into_scalar::<bool>());
//! ```

use burn::{
    module::{Param, ParamId},
    nn::{Embedding, Linear},
    tensor::{Device, Shape, Tensor, TensorData},
};
use rand_chacha::{
    ChaCha12Rng,
    rand_core::{RngCore, SeedableRng},
};

/// Draws initial parameter values from one seeded generator.
#[derive(Debug)]
pub struct Initializer {
    /// Absent where values will come from elsewhere.
    generator: Option<ChaCha12Rng>,
    device: Device,
}

impl Initializer {
    /// A generator for `seed`; parameters are placed on `device`.
    pub fn new(seed: u64, device: &Device) -> Self {
        Self {
            generator: Some(ChaCha12Rng::seed_from_u64(seed)),
            device: device.clone(),
        }
    }

    /// Makes parameters that know their shape and have no values yet: [`weights::apply`](crate::weights::apply) gives them
    /// the values of a file. Nothing is drawn, and no memory is allocated for values. A parameter that is used before it
    /// gets its values is all zeros.
    pub fn deferred(device: &Device) -> Self {
        Self {
            generator: None,
            device: device.clone(),
        }
    }

    /// The device on which parameters are placed.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// A parameter of `shape` with as many values as `draw` gives.
    fn parameter<const D: usize>(
        &mut self,
        shape: [usize; D],
        draw: impl FnOnce(&mut ChaCha12Rng, usize) -> Vec<f32>,
    ) -> Param<Tensor<D>> {
        let Some(generator) = &mut self.generator else {
            let zeros = move |device: &Device, tracked| {
                Tensor::zeros(shape, device).set_require_grad(tracked)
            };
            let device = self.device.clone();
            return Param::uninitialized(ParamId::new(), zeros, device, true, shape.into());
        };
        let values = draw(generator, shape.iter().product());
        let data = TensorData::new(values, Shape::from(shape));
        Param::from_tensor(Tensor::from_data(data, &self.device))
    }

    /// Values from `U(-bound, bound)`.
    pub fn uniform<const D: usize>(&mut self, shape: [usize; D], bound: f32) -> Param<Tensor<D>> {
        self.parameter(shape, |generator, count| {
            (0..count)
                .map(|_| (unit(generator) * 2.0 - 1.0) * bound)
                .collect()
        })
    }

    /// Values from the normal distribution `N(0, deviation²)`.
    pub fn normal<const D: usize>(
        &mut self,
        shape: [usize; D],
        deviation: f32,
    ) -> Param<Tensor<D>> {
        self.parameter(shape, |generator, count| {
            gaussians(generator, count, deviation)
        })
    }

    /// All zeros.
    pub fn zeros<const D: usize>(&mut self, shape: [usize; D]) -> Param<Tensor<D>> {
        self.constant(shape, 0.0)
    }

    /// The same value everywhere.
    pub fn constant<const D: usize>(&mut self, shape: [usize; D], value: f32) -> Param<Tensor<D>> {
        self.parameter(shape, |_, count| vec![value; count])
    }

    /// `blocks` random orthogonal matrices side by side, `[size, blocks · size]`: the recurrent
    /// initialisation of Bahdanau 2014, App. B (one block per gate).
    pub fn orthogonal(&mut self, size: usize, blocks: usize) -> Param<Tensor<2>> {
        let width = size * blocks;
        self.parameter([size, width], |generator, count| {
            let mut values = vec![0.0; count];
            for block in 0..blocks {
                let matrix = orthogonal_matrix(generator, size);
                for row in 0..size {
                    for column in 0..size {
                        values[row * width + block * size + column] =
                            matrix[row * size + column] as f32;
                    }
                }
            }
            values
        })
    }

    /// A layer `y = x W + b`, `W [inputs, outputs]`, with `W` and `b` from `U(-1/√inputs, 1/√inputs)`.
    pub fn linear(&mut self, inputs: usize, outputs: usize, bias: bool) -> Linear {
        let bound = 1.0 / (inputs.max(1) as f32).sqrt();
        Linear {
            weight: self.uniform([inputs, outputs], bound),
            bias: bias.then(|| self.uniform([outputs], bound)),
        }
    }

    /// A layer with `W ~ N(0, deviation²)` and zero bias.
    pub fn normal_linear(
        &mut self,
        inputs: usize,
        outputs: usize,
        bias: bool,
        deviation: f32,
    ) -> Linear {
        Linear {
            weight: self.normal([inputs, outputs], deviation),
            bias: bias.then(|| self.zeros([outputs])),
        }
    }

    /// One layer with the columns of all `layers`, which replaces them.
    pub(crate) fn side_by_side(&mut self, layers: &[Linear]) -> Linear {
        let weights = layers.iter().map(|layer| &layer.weight);
        let biases: Option<Vec<_>> = layers.iter().map(|layer| layer.bias.as_ref()).collect();
        Linear {
            weight: self.joined(weights.collect(), 1),
            bias: biases.map(|biases| self.joined(biases, 0)),
        }
    }

    /// Several parameters as one, concatenated along `axis`.
    fn joined<const D: usize>(
        &mut self,
        parts: Vec<&Param<Tensor<D>>>,
        axis: usize,
    ) -> Param<Tensor<D>> {
        if self.generator.is_some() {
            let parts = parts.into_iter().map(Param::val).collect();
            // Detached, so that the new parameter does not depend on those it was made of.
            return Param::from_tensor(Tensor::cat(parts, axis).detach());
        }
        let mut shape = parts[0].lazy_shape().dims();
        shape[axis] = parts.iter().map(|part| part.lazy_shape()[axis]).sum();
        self.parameter(shape, |_, _| vec![])
    }

    /// A table of `entries` vectors of size `dimension` from `N(0, deviation²)`.
    pub fn embedding(&mut self, entries: usize, dimension: usize, deviation: f32) -> Embedding {
        Embedding {
            weight: self.normal([entries, dimension], deviation),
        }
    }
}

/// A number of `[0, 1)` from the upper 24 bits of one draw.
fn unit(generator: &mut ChaCha12Rng) -> f32 {
    (generator.next_u32() >> 8) as f32 * (1.0 / (1 << 24) as f32)
}

/// A number of `[0, 1)` from the upper 53 bits of one draw.
fn unit_f64(generator: &mut ChaCha12Rng) -> f64 {
    (generator.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

fn gaussians(generator: &mut ChaCha12Rng, count: usize, deviation: f32) -> Vec<f32> {
    // Box-Muller, both values of a pair used.
    let mut values = Vec::with_capacity(count + 1);
    while values.len() < count {
        let radius = (-2.0 * (1.0 - unit_f64(generator)).ln()).sqrt();
        let angle = std::f64::consts::TAU * unit_f64(generator);
        values.push((radius * angle.cos()) as f32 * deviation);
        values.push((radius * angle.sin()) as f32 * deviation);
    }
    values.truncate(count);
    values
}

fn orthogonal_matrix(generator: &mut ChaCha12Rng, size: usize) -> Vec<f64> {
    let mut rows: Vec<f64> = gaussians(generator, size * size, 1.0)
        .into_iter()
        .map(f64::from)
        .collect();
    for i in 0..size {
        let (done, rest) = rows.split_at_mut(i * size);
        let row = &mut rest[..size];
        for previous in done.chunks_exact(size) {
            let projection: f64 = row.iter().zip(previous).map(|(a, b)| a * b).sum();
            row.iter_mut()
                .zip(previous)
                .for_each(|(a, b)| *a -= projection * b);
        }
        let norm = row.iter().map(|a| a * a).sum::<f64>().sqrt();
        row.iter_mut().for_each(|a| *a /= norm);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orthogonal_blocks_are_orthogonal() {
        let size = 24;
        let weight = Initializer::new(3, &Device::flex())
            .orthogonal(size, 3)
            .val();
        for block in weight.split(size, 1) {
            let product = crate::bridge::matmul(block.clone(), block.transpose());
            let error = (product - Tensor::eye(size, &Device::flex())).abs().max();
            assert!(error.into_scalar::<f32>() < 1e-5);
        }
    }

    #[test]
    fn a_seed_names_these_numbers_forever() {
        let first = |values: Param<Tensor<1>>| values.val().into_data().iter::<f32>().collect();
        let initializer = || Initializer::new(7, &Device::flex());
        let uniform: Vec<f32> = first(initializer().uniform([4], 1.0));
        let normal: Vec<f32> = first(initializer().normal([4], 1.0));
        assert_eq!(
            uniform,
            [-0.166_718_13, -0.939_365_4, -0.714_893_46, -0.385_827_54]
        );
        assert_eq!(
            normal,
            [-0.087_107_15, 0.232_347_19, -0.535_117_8, -0.146_453_78]
        );
    }

    #[test]
    fn normal_has_the_asked_deviation() {
        let values = Initializer::new(1, &Device::flex())
            .normal([200, 200], 0.5)
            .val();
        let deviation = values.var(0).mean().sqrt().into_scalar::<f32>();
        assert!((deviation - 0.5).abs() < 0.01, "{deviation}");
    }
}
