//! In half precision, numbers are those of `f32` up to the rounding of what goes in and of what comes out.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{DType, Tensor},
};
use regard_nn::{
    Attention, AttentionOptions, Observe, Path,
    bridge::{NormKind, norm},
    initialize::Initializer,
    mask::{Mask, PositionPredictor},
    normalize::{Addressing, Form, Monotonic, Normalize},
    score::{Cosine, Distance, Score},
};

use crate::{
    mechanisms::{SIZE, attend, drawn, inputs, named},
    support::{device, numbers},
};

/// Weights in another precision.
struct Precision(DType);

impl ModuleMapper for Precision {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let tensor = tensor.cast(self.0).detach().require_grad();
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// A number that is bounded from below, so that its logarithm is finite, is bounded by a number of its own precision: in
/// half precision, weights are those of `f32`, to within the rounding of the scores.
#[test]
fn half_precision() {
    let init = &mut Initializer::new(7, &device());
    let addressing = Addressing::new(SIZE, 1, init);
    // So large that some weights are 0 in half precision, and some are 1.
    let scores = drawn("scores", [2, 2, 3, 6], 24.0).cast(DType::F16);
    let query = drawn("query", [2, 2, 3, SIZE], 2.0).cast(DType::F16);
    for normalize in [
        Normalize::Addressing(addressing),
        Normalize::Monotonic(Monotonic::new(Form::Recursive)),
        Normalize::Monotonic(Monotonic::new(Form::Parallel)),
    ] {
        let run = |dtype| {
            let normalize = normalize.clone().map(&mut Precision(dtype));
            let (scores, query) = (scores.clone().cast(dtype), query.clone().cast(dtype));
            let scores = scores.detach().require_grad();
            let weights = normalize.forward(scores.clone(), None, &query, None, None);
            let slope = weights.weights.clone().sum().backward();
            let slope = numbers(&scores.grad(&slope).unwrap());
            assert!(
                slope.iter().all(|x| x.is_finite()),
                "{}: {slope:?}",
                normalize.name()
            );
            numbers(&weights.weights)
        };
        for (half, single) in run(DType::F16).iter().zip(run(DType::F32)) {
            let name = normalize.name();
            assert!((half - single).abs() <= 0.02, "{name}: {half} {single}");
        }
    }
    // Keys and queries of length 0, and a window of width 0.
    for attention in [
        Attention::new(Score::Cosine(Cosine::fixed(2.0))),
        Attention::new(Score::dot()).with_predictor(PositionPredictor::new(SIZE, 0, init)),
    ] {
        let attention = attention.map(&mut Precision(DType::F16));
        let leaves = inputs(1, 1, 2, 3).map(|x| {
            let x = x.slice_fill([0..1, 0..1, 0..1, 0..SIZE], 0.0);
            x.cast(DType::F16).detach().require_grad()
        });
        let attended = attend(&attention, &leaves, AttentionOptions::default());
        assert!(numbers(&attended.context).iter().all(|x| x.is_finite()));
        let slopes = attended.context.sum().backward();
        for leaf in &leaves {
            let slope = numbers(&leaf.grad(&slopes).unwrap());
            let name = named(&attention);
            assert!(slope.iter().all(|x| x.is_finite()), "{name}: {slope:?}");
        }
    }
}

/// More keys than `bf16` counts: above 256 it skips numbers.
#[test]
fn many_keys() {
    let place = [0..1, 0..1, 0..1, 0..1];
    let one_above = Tensor::<4>::zeros([1, 1, 1, 300], &device()).slice_fill(place, 10.0);
    for scores in [one_above, drawn("scores", [1, 1, 2, 300], 3.0)] {
        for dtype in [DType::BF16, DType::F16] {
            let scores = scores.clone().cast(dtype);
            for normalize in [Normalize::sparsemax(), Normalize::entmax15()] {
                let run = |dtype| {
                    let scores = scores.clone().cast(dtype);
                    let weights = normalize.forward(scores.clone(), None, &scores, None, None);
                    numbers(&weights.weights)
                };
                for (half, single) in run(dtype).iter().zip(run(DType::F32)) {
                    let name = normalize.name();
                    assert!((half - single).abs() <= 0.01, "{name}: {half} {single}");
                }
            }
        }
    }
}

/// `0 ln 0` is 0, whatever the smallest number is.
#[test]
fn entropies() {
    let attention = Attention::new(Score::scaled_dot());
    for dtype in [DType::BF16, DType::F16] {
        let x = inputs(2, 2, 3, 5).map(|x| x.cast(dtype));
        let run = |dtype| {
            let call = AttentionOptions::new(Observe::Entropy).path(Path::Plain);
            let x = x.clone().map(|x| x.cast(dtype));
            let attended = attend(&attention, &x, call.mask(Mask::causal()));
            numbers(&attended.entropy.unwrap())
        };
        for (half, single) in run(dtype).iter().zip(run(DType::F32)) {
            assert!((half - single).abs() <= 0.1, "{dtype:?}: {half} {single}");
        }
    }
}

/// The square of 300 and an epsilon of 1e-12 are no numbers of `f16`.
#[test]
fn norms() {
    for (kind, row, epsilon) in [
        (NormKind::Layer, [300.0, -300.0], 1e-5),
        (NormKind::RootMeanSquare, [300.0, -300.0], 1e-5),
        (NormKind::Layer, [0.5, 0.5], 1e-12),
        (NormKind::RootMeanSquare, [0.0, 0.0], 1e-12),
    ] {
        let row = Tensor::<2>::from_floats([row], &device()).cast(DType::F16);
        let run = |dtype| {
            let gain = Tensor::<1>::ones([2], (&device(), dtype));
            numbers(&norm(kind, row.clone().cast(dtype), gain, None, epsilon))
        };
        for (half, single) in run(DType::F16).iter().zip(run(DType::F32)) {
            assert!((half - single).abs() <= 1e-3, "{kind:?}: {half} {single}");
        }
    }
}

/// The square of a long vector is no number of `f16`, that of a difference is.
#[test]
fn distances() {
    let of_rows = |first: f32, second: f32| {
        let rows = [[first; SIZE], [second; SIZE]];
        Tensor::<4>::from_floats([[rows]], &device()).cast(DType::F16)
    };
    let (query, keys) = (of_rows(200.0, -200.0), of_rows(200.0, 204.0));
    let score = Score::Distance(Distance::default());
    let run = |dtype| {
        let (query, keys) = (query.clone().cast(dtype), keys.clone().cast(dtype));
        numbers(&score.forward(query, keys).narrow(2, 0, 1))
    };
    for (half, single) in run(DType::F16).iter().zip(run(DType::F32)) {
        assert!((half - single).abs() <= 0.1, "{half} {single}");
    }
}
