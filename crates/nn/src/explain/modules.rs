//! The modules of an example: its parameters as weights in `f64`, and one call, whose steps they report.

use burn::{
    module::Param,
    nn::Linear,
    tensor::{DType, Device, Tensor, TensorData},
};

use super::{Example, ExplainError, Normalizer, Scorer};
use crate::{
    Attention, AttentionOptions, Observe, Path,
    attention::Between,
    initialize::Initializer,
    mask::{Locality, Mask, PositionPredictor},
    normalize::{Addressing, Estimator, Form, HardSample, Monotonic, Normalize, Sigmoid, Sink},
    record::{Record, recorded, report},
    score::{
        Additive, Cosine, Distance, Dot, GaussianWindow, General, Location, ScaledDot,
        ScaledGeneral, Score, WeightNormAdditive,
    },
};

/// Where examples are computed: on the CPU where its backend is compiled in.
pub(super) fn device() -> Device {
    #[cfg(feature = "kernels")]
    return Device::flex();
    #[cfg(not(feature = "kernels"))]
    Device::default()
}

type Matrix = Vec<Vec<f64>>;

/// Runs the modules of an example that has passed its checks on `values`, and returns what they report.
pub(super) fn read(example: &Example, values: &Matrix, mask: Mask) -> Result<Record, ExplainError> {
    let previous = example.parameters.previous.clone();
    let carried = previous.map(|weights| tensor(weights, [1, 1, 1, example.keys.len()]));
    let options = AttentionOptions::new(Observe::Nothing).path(Path::Plain);
    let mut attention = attention(example, mask);
    if example.normalizer == Normalizer::HardSample {
        // The distribution from which the example draws.
        attention = attention.with_normalize(Normalize::softmax());
    }
    let (attended, record) = recorded(|| {
        attention.forward_between(
            vectors(&example.queries),
            vectors(&example.keys),
            vectors(values),
            options.carried(carried),
            &Draw(example),
        )
    });
    attended?;
    Ok(record)
}

/// `qᵀ k` of all queries and keys, before a score scales it.
pub(super) fn products(queries: &Matrix, keys: &Matrix) -> Matrix {
    rows(Dot.forward(vectors(queries), vectors(keys)))
}

/// Draws for hard attention with the number that the example gives, in place of the noise that its module would use.
struct Draw<'a>(&'a Example);

impl Between for Draw<'_> {
    fn weights(&self, weights: Tensor<4>) -> Tensor<4> {
        if self.0.normalizer != Normalizer::HardSample {
            return weights;
        }
        let draw = self.0.parameters.draw.unwrap_or(0.5);
        let shape = weights.dims();
        let one_hot = |row: Vec<f64>| {
            let mut sum = 0.0;
            let passed = row.iter().position(|probability| {
                sum += probability;
                sum > draw
            });
            // With a draw of nearly 1, rounding can leave the sum of all probabilities below it.
            let key = passed.or_else(|| row.iter().rposition(|&probability| probability > 0.0));
            let keys = 0..row.len();
            keys.map(|i| f64::from(u8::from(Some(i) == key)))
                .collect::<Vec<_>>()
        };
        let drawn = tensor(rows(weights).into_iter().flat_map(one_hot).collect(), shape);
        report("drawn", || drawn.clone());
        drawn
    }
}

pub(super) fn attention(example: &Example, mask: Mask) -> Attention {
    let parameters = &example.parameters;
    let attention = Attention::new(score(example)).with_normalize(normalize(example));
    let attention = match parameters.softcap {
        None => attention,
        Some(softcap) => attention.with_softcap(softcap),
    };
    match example.locality {
        Locality::Global => attention.with_mask(mask),
        Locality::Monotonic { half_width } => {
            attention.with_mask(mask & Mask::local_monotonic(half_width))
        }
        Locality::Predictive { half_width } => {
            let size = example.queries[0].len();
            let mut initializer = Initializer::new(0, &device());
            let mut predictor = PositionPredictor::new(size, half_width, &mut initializer);
            predictor.hidden = linear(&parameters.position_weight, size);
            predictor.vector = vector(&parameters.position_vector, &predictor.hidden);
            attention.with_mask(mask).with_predictor(predictor)
        }
    }
}

fn score(example: &Example) -> Score {
    let parameters = &example.parameters;
    let (query_size, key_size) = (example.queries[0].len(), example.keys[0].len());
    let of_query = || linear(&parameters.query_weight, query_size);
    let of_key = || Linear {
        bias: parameters.bias.clone().map(param),
        ..linear(&parameters.key_weight, key_size)
    };
    let gain = || param(vec![parameters.gain.unwrap_or(1.0)]);
    match example.scorer {
        Scorer::Dot => Score::dot(),
        Scorer::ScaledDot => Score::ScaledDot(match parameters.scale {
            None => ScaledDot::default(),
            Some(scale) => ScaledDot::with_scale(scale),
        }),
        Scorer::General => Score::General(General {
            key: linear(&parameters.query_weight, key_size),
        }),
        Scorer::ScaledGeneral => Score::ScaledGeneral(ScaledGeneral {
            key: linear(&parameters.query_weight, key_size),
            gain: gain(),
        }),
        Scorer::Additive => Score::Additive(Additive {
            query: of_query(),
            key: of_key(),
            vector: vector(&parameters.vector, &of_query()),
        }),
        Scorer::WeightNormAdditive => Score::WeightNormAdditive(WeightNormAdditive {
            query: of_query(),
            key: of_key(),
            vector: vector(&parameters.vector, &of_query()),
            gain: gain(),
        }),
        Scorer::Cosine => Score::Cosine(Cosine::fixed(parameters.beta.unwrap_or(1.0))),
        Scorer::Distance => Score::Distance(match parameters.scale {
            None => Distance::default(),
            Some(scale) => Distance::with_scale(scale),
        }),
        Scorer::Location => Score::Location(Location { weight: of_query() }),
        Scorer::GaussianWindow => Score::GaussianWindow(GaussianWindow {
            parameters: of_query(),
        }),
    }
}

fn normalize(example: &Example) -> Normalize {
    let parameters = &example.parameters;
    match example.normalizer {
        Normalizer::Softmax => Normalize::softmax(),
        Normalizer::Sink => Normalize::Sink(Sink::fixed(parameters.sink.unwrap_or(0.0))),
        Normalizer::Sparsemax => Normalize::sparsemax(),
        Normalizer::Entmax15 => Normalize::entmax15(),
        Normalizer::Sigmoid => Normalize::Sigmoid(match parameters.sigmoid_bias {
            None => Sigmoid::default(),
            Some(bias) => Sigmoid::with_bias(bias),
        }),
        Normalizer::Hardmax => Normalize::hardmax(),
        Normalizer::HardSample => {
            Normalize::HardSample(HardSample::new(Estimator::StraightThrough))
        }
        Normalizer::Monotonic => Normalize::Monotonic(Monotonic::new(Form::Recursive)),
        Normalizer::Addressing => Normalize::Addressing(addressing(example)),
        Normalizer::Identity => Normalize::identity(),
    }
}

/// Gate, shift and sharpening that do not depend on the query: the weights are 0, and from the biases sigmoid, softmax and
/// softplus compute the numbers of the example.
fn addressing(example: &Example) -> Addressing {
    // Above this, Burn's softplus is the identity.
    const LINEAR: f64 = 20.0;
    let parameters = &example.parameters;
    let gate = parameters.gate.unwrap_or(1.0);
    let shift = parameters.shift.as_deref().unwrap_or(&[1.0]);
    let above = parameters.sharpening.unwrap_or(1.0) - 1.0;
    let size = example.queries[0].len();
    let constant = |biases: Vec<f64>| Linear {
        weight: Param::from_tensor(tensor(vec![0.0; size * biases.len()], [size, biases.len()])),
        bias: Some(param(biases)),
    };
    Addressing {
        gate: constant(vec![(gate / (1.0 - gate)).ln()]),
        shift: constant(shift.iter().map(|share| share.ln()).collect()),
        sharpening: constant(vec![match above > LINEAR {
            true => above,
            false => above.exp_m1().ln(),
        }]),
    }
}

/// `W x` for vectors of `size`; the identity where no matrix is given. Burn's matrices act from the right.
fn linear(weight: &Option<Matrix>, size: usize) -> Linear {
    let weight = match weight {
        None => Tensor::<2>::eye(size, &device()).cast(DType::F64),
        Some(rows) => tensor(rows.concat(), [rows.len(), rows[0].len()]).transpose(),
    };
    Linear {
        weight: Param::from_tensor(weight),
        bias: None,
    }
}

/// A vector over the outputs of `linear`; ones where none is given.
fn vector(given: &Option<Vec<f64>>, linear: &Linear) -> Param<Tensor<1>> {
    let ones = || vec![1.0; linear.weight.dims()[1]];
    param(given.clone().unwrap_or_else(ones))
}

fn param(numbers: Vec<f64>) -> Param<Tensor<1>> {
    let shape = [numbers.len()];
    Param::from_tensor(tensor(numbers, shape))
}

/// `[1, 1, vectors, size]`
pub(super) fn vectors(rows: &Matrix) -> Tensor<4> {
    tensor(rows.concat(), [1, 1, rows.len(), rows[0].len()])
}

/// Rows along the last axis.
pub(super) fn rows<const D: usize>(x: Tensor<D>) -> Matrix {
    let width = x.dims()[D - 1].max(1);
    let numbers: Vec<f64> = x.into_data().iter::<f64>().collect();
    numbers.chunks(width).map(<[f64]>::to_vec).collect()
}

pub(super) fn tensor<const D: usize>(numbers: Vec<f64>, shape: [usize; D]) -> Tensor<D> {
    let options = (&device(), DType::F64);
    Tensor::from_data(TensorData::new(numbers, shape), options)
}
