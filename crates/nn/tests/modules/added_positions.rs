//! Positions that a stack adds to queries and keys, and not to values (DETR); the decoder that gives all its outputs at once.

use burn::tensor::{Tensor, TensorData};
use regard_nn::{
    AttentionOptions, Observe,
    bridge::{matmul, without_kernels},
    dropout::DropoutRng,
    heads::{AddedPositions, MultiHeadConfig, ProjectionLayout},
    initialize::Initializer,
    position::SinusoidalGrid,
    transformer::{NormPlace, StackConfig, StackOptions},
};

use crate::support::{device, numbers, values};

fn drawn(name: &str, shape: [usize; 3]) -> Tensor<3> {
    let values = values(name, shape.iter().product(), 1.0);
    Tensor::from_data(TensorData::new(values, shape), &device())
}

fn close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 2e-5 * (1.0 + b.abs()), "{a} {b}");
    }
}

fn options(positions: &Tensor<3>, source: &Tensor<3>) -> StackOptions {
    let options = StackOptions::new(Observe::Weights).positions(positions.clone());
    options.source_positions(source.clone())
}

#[test]
fn positions_change_where_is_looked_and_not_what_is_read() {
    for projection in [ProjectionLayout::Fused, ProjectionLayout::Separate] {
        let config = MultiHeadConfig {
            projection,
            ..MultiHeadConfig::new(8, 2)
        };
        let layer = config.init(&mut Initializer::new(1, &device())).unwrap();
        let (x, p) = (drawn("x", [2, 5, 8]), drawn("p", [1, 5, 8]));
        let call = || AttentionOptions::new(Observe::Weights);
        let added = |query, key| AddedPositions { query, key };
        // Without positions the same as without this way.
        let plain = layer.forward(x.clone(), call()).unwrap();
        let none = added(None, None);
        let same = layer.forward_added(x.clone(), None, &none, call()).unwrap();
        close(&numbers(&same.output), &numbers(&plain.output));
        // Weights are those of x + p; what is read by them is x.
        let both = added(Some(p.clone()), Some(p.clone()));
        let placed = layer.forward_added(x.clone(), None, &both, call()).unwrap();
        let of_sum = layer.forward(x.clone() + p, call()).unwrap();
        let [weights, expected] =
            [&placed, &of_sum].map(|read| read.attended.weights.clone().unwrap());
        close(&numbers(&weights), &numbers(&expected));
        let values = layer.source(x).unwrap().values;
        let read = matmul(weights, values);
        close(&numbers(&placed.attended.context), &numbers(&read));
    }
}

#[test]
fn a_parallel_decoder_is_the_same_with_and_without_kernels() {
    let config = StackConfig {
        norm_place: NormPlace::Post,
        ..StackConfig::new(8, 2)
    };
    let decoder = config
        .parallel_decoder(2, &mut Initializer::new(2, &device()))
        .unwrap();
    assert!(decoder.has_source() && !decoder.is_causal());
    let (x, source) = (drawn("queries", [2, 3, 8]), drawn("memory", [2, 4, 8]));
    let (p, q) = (drawn("of queries", [1, 3, 8]), drawn("of cells", [1, 4, 8]));
    let run = || {
        let options = StackOptions {
            each_layer: true,
            ..options(&p, &q)
        };
        let none = &mut DropoutRng::none();
        decoder
            .forward(x.clone(), Some(source.clone()), &options, none)
            .unwrap()
    };
    let (fused, plain) = (run(), without_kernels(run));
    close(&numbers(&fused.states), &numbers(&plain.states));
    assert_eq!(fused.layers.len(), 2);
    assert_eq!(numbers(&fused.layers[1]), numbers(&fused.states));
    for (own, cross) in fused.own.iter().zip(&fused.cross) {
        let [own, cross] = [own, cross].map(|read| read.weights.clone().unwrap());
        // Every query sees every other one.
        assert!(numbers(&own).iter().all(|&weight| weight > 0.0));
        assert_eq!((own.dims(), cross.dims()), ([2, 2, 3, 3], [2, 2, 3, 4]));
    }
}

#[test]
fn positions_that_do_not_fit_are_refused() {
    let config = StackConfig::new(8, 2);
    let init = &mut Initializer::new(3, &device());
    let none = &mut DropoutRng::none();
    let encoder = config.encoder(1, init).unwrap();
    let x = drawn("x", [2, 3, 8]);
    for shape in [[3, 3, 8], [1, 4, 8], [1, 3, 4]] {
        let wrong = StackOptions::default().positions(drawn("p", shape));
        let message = encoder
            .forward(x.clone(), None, &wrong, none)
            .unwrap_err()
            .to_string();
        assert!(message.contains("positions of queries"), "{message}");
    }
    let decoder = config.decoder_only(1, init).unwrap();
    let mut cache = decoder.cache(None).unwrap();
    let placed = StackOptions::default().positions(drawn("p", [1, 3, 8]));
    let message = decoder
        .forward_cached(x, &mut cache, &placed)
        .unwrap_err()
        .to_string();
    assert!(message.contains("a cache"), "{message}");
    for size in [0, 6] {
        assert!(SinusoidalGrid::new(size).is_err());
    }
}
