//! Heads that are changed: each change equals a stack with other weights, and one query with its keys gives its weights.

use burn::{
    module::Param,
    tensor::{Device, Tensor, TensorData},
};
use regard_kernels::stack::{ChangedHead, GivenWeights, HeadChange};
use regard_nn::{
    Attention, AttentionOptions, Observe, Unserved,
    bridge::without_kernels,
    changed::{Changes, Place, at, with_changed, with_query},
    dropout::DropoutRng,
    heads::{MultiHead, Projection},
    initialize::Initializer,
    position::{PositionConfig, RotaryConfig},
    score::Score,
    transformer::{Stack, StackConfig, StackOptions, StackOutput},
};

const HEADS: usize = 2;
const HEAD: usize = 4;
const LENGTH: usize = 5;
const SOURCE: usize = 3;

fn states(length: usize, seed: usize) -> Tensor<3> {
    let number = |i: usize| ((i * 37 + seed * 11) % 29) as f32 / 9.0 - 1.5;
    let numbers: Vec<f32> = (0..2 * length * HEADS * HEAD).map(number).collect();
    let data = TensorData::new(numbers, [2, length, HEADS * HEAD]);
    Tensor::from_data(data, &Device::flex())
}

/// A stack of two blocks; one that reads a source has positions that are added, as DETR's.
fn stack(decoder: bool) -> Stack {
    let init = &mut Initializer::new(7, &Device::flex());
    let mut config = StackConfig::new(HEADS * HEAD, HEADS);
    if decoder {
        return config.parallel_decoder(2, init).unwrap();
    }
    config.position = PositionConfig::Rotary(RotaryConfig::new(HEAD));
    config.encoder(2, init).unwrap()
}

fn read(stack: &Stack) -> StackOutput {
    let options = StackOptions::new(Observe::Weights);
    let (options, source) = match stack.has_source() {
        false => (options, None),
        true => {
            let options = options.positions(states(LENGTH, 3));
            let options = options.source_positions(states(SOURCE, 4));
            (options, Some(states(SOURCE, 2)))
        }
    };
    let read = stack.forward(states(LENGTH, 1), source, &options, &mut DropoutRng::none());
    read.unwrap()
}

fn numbers<const D: usize>(x: &Tensor<D>) -> Vec<f32> {
    x.clone().into_data().iter::<f32>().collect()
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 2e-5, "{found} for {expected}");
    }
}

fn place(decoder: bool, cross: bool) -> Place {
    Place {
        decoder,
        cross,
        layer: 1,
    }
}

fn changes(place: Place, change: HeadChange) -> Changes {
    let Place { cross, layer, .. } = place;
    let one = vec![ChangedHead {
        layer,
        cross,
        head: 1,
        change,
    }];
    match place.decoder {
        true => Changes {
            decoder: one,
            ..Changes::default()
        },
        false => Changes {
            encoder: one,
            ..Changes::default()
        },
    }
}

/// The attentions of the second block.
fn places() -> [Place; 3] {
    [(false, false), (true, false), (true, true)].map(|(decoder, cross)| place(decoder, cross))
}

fn weights(read: &StackOutput, place: Place) -> Vec<f32> {
    let read = match place.cross {
        true => &read.cross,
        false => &read.own,
    };
    let weights = read[place.layer].weights.clone().unwrap();
    numbers(&weights.slice([0..1, 1..2])) // of the second head
}

fn given(weights: Vec<f32>) -> HeadChange {
    let keys = weights.len() / LENGTH;
    HeadChange::Replace(GivenWeights::new(weights, LENGTH, keys).unwrap().into())
}

/// The first row of the batch: weights of another text are those of one.
fn first(read: &StackOutput) -> Vec<f32> {
    numbers(&read.states.clone().narrow(0, 0, 1))
}

/// With zeros in these columns of a matrix and its bias, or in these rows of a matrix.
fn zeroed(linear: &mut burn::nn::Linear, columns: bool) {
    let ([rows, of_row], last) = (linear.weight.dims(), HEAD..2 * HEAD);
    let cleared = match columns {
        true => linear.weight.val().slice_fill([0..rows, last.clone()], 0.0),
        false => linear
            .weight
            .val()
            .slice_fill([last.clone(), 0..of_row], 0.0),
    };
    linear.weight = Param::from_tensor(cleared);
    if let Some(bias) = linear.bias.as_mut().filter(|_| columns) {
        *bias = Param::from_tensor(bias.val().slice_fill([last], 0.0));
    }
}

fn heads(stack: &mut Stack, place: Place) -> &mut MultiHead {
    let block = &mut stack.layers[place.layer];
    match place.cross {
        true => block.cross_attention.as_mut().unwrap(),
        false => &mut block.attention,
    }
}

#[test]
fn a_changed_head_is_a_head_with_other_weights() {
    for place in places() {
        let stack = stack(place.decoder);
        let changed =
            |change: HeadChange| with_changed(&changes(place, change), || read(&stack)).unwrap();
        let plain = read(&stack);
        let of_plain = weights(&plain, place);
        let keys = of_plain.len() / LENGTH;

        // Off: its rows of the output matrix are 0.
        let mut other = stack.clone();
        zeroed(&mut heads(&mut other, place).output, false);
        let off = changed(HeadChange::Off);
        assert_close(&numbers(&off.states), &numbers(&read(&other).states));
        assert_close(&weights(&off, place), &of_plain);

        // Uniform: its queries are 0.
        let mut other = stack.clone();
        match &mut heads(&mut other, place).projection {
            Projection::Separate(separate) => zeroed(&mut separate.query, true),
            // Those of queries are the first columns.
            Projection::Fused(fused) => zeroed(&mut fused.query_key_value, true),
        }
        let uniform = changed(HeadChange::Uniform);
        assert_close(&numbers(&uniform.states), &numbers(&read(&other).states));
        assert_close(
            &weights(&uniform, place),
            &vec![1.0 / keys as f32; LENGTH * keys],
        );

        // Given weights: their own change nothing, equal ones are uniform, and the others keep their sum.
        assert_close(&first(&changed(given(of_plain.clone()))), &first(&plain));
        let equal = changed(given(vec![0.25; LENGTH * keys]));
        assert_close(&first(&equal), &first(&uniform));
        let doubled = of_plain.iter().map(|weight| 2.0 * weight).collect();
        assert_close(&first(&changed(given(doubled))), &first(&plain));
        let shorter = GivenWeights::new(of_plain[..keys].to_vec(), 1, keys).unwrap();
        let shorter = changed(HeadChange::Replace(shorter.into()));
        assert_close(&first(&shorter), &first(&plain));
        let nothing = changed(given(vec![0.0; LENGTH * keys]));
        assert_close(&first(&nothing), &first(&off));

        // A hidden weight is given weights without it.
        let hidden = changed(HeadChange::Hide { query: 2, key: 1 });
        let mut without = of_plain.clone();
        without[2 * keys + 1] = 0.0;
        assert_close(&first(&hidden), &first(&changed(given(without.clone()))));
        let sum: f32 = without[2 * keys..][..keys].iter().sum();
        without[2 * keys..][..keys]
            .iter_mut()
            .for_each(|weight| *weight /= sum);
        assert_close(&weights(&hidden, place), &without);
        let beyond = changed(HeadChange::Hide { query: 9, key: 1 });
        assert_close(&first(&beyond), &first(&plain));
    }
}

/// Vectors of distances are multiplied by queries, which are 0.
#[test]
fn a_uniform_head_is_uniform_with_vectors_of_distances() {
    let mut config = StackConfig::new(HEADS * HEAD, HEADS);
    config.position = PositionConfig::Relative {
        max_distance: 2,
        values: false,
    };
    let init = &mut Initializer::new(7, &Device::flex());
    let (stack, place) = (config.encoder(2, init).unwrap(), place(false, false));
    let uniform = changes(place, HeadChange::Uniform);
    let uniform = with_changed(&uniform, || read(&stack)).unwrap();
    assert_close(
        &weights(&uniform, place),
        &[1.0 / LENGTH as f32; LENGTH * LENGTH],
    );
}

#[test]
fn without_changes_every_bit_is_the_same() {
    for decoder in [false, true] {
        let stack = stack(decoder);
        let plain = numbers(&read(&stack).states);
        let read = || numbers(&read(&stack).states);
        assert_eq!(with_changed(&Changes::default(), read).unwrap(), plain);
        let _ = with_changed(&changes(place(decoder, false), HeadChange::Off), read).unwrap();
        assert_eq!(read(), plain, "changes end with their work");
        let elsewhere = Place {
            layer: 9,
            ..place(decoder, false)
        };
        let (found, query) = with_query(elsewhere, 0, 0, read);
        assert!(query.is_none());
        assert_eq!(found, plain);
    }
}

#[test]
fn a_head_that_is_not_computed_is_named() {
    let stack = stack(false);
    let one = |layer: usize, head: usize| ChangedHead {
        layer,
        cross: false,
        head,
        change: HeadChange::Off,
    };
    for wrong in [one(2, 0), one(0, 2)] {
        let changes = Changes {
            encoder: vec![wrong],
            decoder: vec![],
        };
        let error = with_changed(&changes, || read(&stack)).unwrap_err();
        assert!(error.to_string().contains("changed head"), "{error}");
    }
}

#[test]
fn no_kernel_serves_an_attention_that_is_recorded() {
    let here = place(true, true);
    let x = Tensor::<4>::ones([1, HEADS, LENGTH, HEAD], &Device::flex());
    let attention = Attention::new(Score::scaled_dot());
    let plan = |at_work: Place| {
        let plan = || attention.plan(&x, &x, &AttentionOptions::default());
        with_query(here, 0, 0, || at(at_work, plan)).0
    };
    assert_eq!(plan(here), Err(Unserved::Changed));
    let elsewhere = plan(place(true, false));
    assert_eq!(
        elsewhere,
        attention.plan(&x, &x, &AttentionOptions::default())
    );
}

#[test]
fn a_query_gives_the_weights_of_its_head() {
    for place in places() {
        let stack = stack(place.decoder);
        for change in [
            None,
            Some(HeadChange::Uniform),
            Some(HeadChange::Hide { query: 3, key: 0 }),
        ] {
            let changes = change.map_or_else(Changes::default, |change| changes(place, change));
            let work = || with_query(place, 1, 3, || read(&stack));
            let (found, query) = with_changed(&changes, work).unwrap();
            let query = query.unwrap();
            let expected = weights(&found, place);
            let keys = expected.len() / LENGTH;
            assert_close(&query.weights, &expected[3 * keys..][..keys]);
            assert_eq!(query.positions, (0..keys).collect::<Vec<_>>());
            let products = query.keys.chunks(HEAD).map(|key| {
                let sum: f32 = key.iter().zip(&query.query).map(|(k, q)| k * q).sum();
                f64::from(sum * query.scale)
            });
            let mut sum = 0.0;
            for (product, score) in products.zip(&query.scores) {
                let Some(score) = score else { continue };
                assert!((product - score).abs() < 1e-4, "{product} for {score}");
                sum += score.exp();
            }
            for (score, &weight) in query.scores.iter().zip(&query.weights) {
                let expected = score.map_or(0.0, |score| score.exp() / sum);
                assert!((expected - f64::from(weight)).abs() < 1e-5);
            }
            // Recording changes no number beyond rounding, and the values are those that were read.
            let plain = with_changed(&changes, || without_kernels(|| read(&stack))).unwrap();
            assert_close(&numbers(&found.states), &numbers(&plain.states));
            assert_eq!(query.values.len(), keys * HEAD);
        }
    }
}
