//! What must hold for any numbers and sizes: gates between 0 and 1, rows of weights, identities, orders,
//! padding, images alone as in a batch, and that asking for the weights or the gate changes no number.

use crate::support::{device, gradients, numbers, values};
use burn::tensor::{Tensor, TensorData};
use proptest::prelude::*;
use regard_nn::{
    initialize::Initializer,
    mask::PaddingMask,
    vision::{
        Affinity, AxialAttentionConfig, CaptionAttentionConfig, CbamConfig, MaskActivation,
        MaskBranchConfig, NonLocal, NonLocalConfig, PatchEmbedding, PatchEmbeddingConfig,
        QuestionAttentionConfig, RegionAttended, Regions, SpatialAttentionConfig,
        SqueezeExciteConfig,
    },
};

const AFFINITIES: [Affinity; 4] = [
    Affinity::Gaussian,
    Affinity::EmbeddedGaussian,
    Affinity::Dot,
    Affinity::Concatenation,
];

fn initializer() -> Initializer {
    Initializer::new(5, &device())
}

fn drawn<const D: usize>(name: &str, shape: [usize; D], scale: f32) -> Tensor<D> {
    let data = TensorData::new(values(name, shape.iter().product(), scale), shape);
    Tensor::from_data(data, &device())
}

fn largest<const D: usize>(tensor: Tensor<D>) -> f32 {
    tensor.abs().max().into_scalar::<f32>()
}

/// Equal up to the rounding of another order of sums.
fn close<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> bool {
    let size = largest(b.clone()).max(1.0);
    largest(a - b) <= 32.0 * f32::EPSILON * size
}

/// Sets `W_z`, which starts at 0, so that the block does something.
fn awake(mut block: NonLocal) -> NonLocal {
    let [inner, channels] = block.w_z.weight.dims();
    block.w_z = initializer().linear(inner, channels, false);
    block
}

type Layer = Box<dyn Fn(Tensor<4>) -> Tensor<4>>;

/// Every module from map to map of `channels` that treats the images of a batch separately, by name.
fn layers(channels: usize) -> Vec<(String, Layer)> {
    let init = &mut initializer();
    let squeeze_excite = SqueezeExciteConfig::new(channels)
        .with_reduction(2)
        .init(init)
        .unwrap();
    let spatial = SpatialAttentionConfig::new().init(init).unwrap();
    let cbam = CbamConfig::new(channels)
        .with_reduction(2)
        .init(init)
        .unwrap();
    let mut layers: Vec<(String, Layer)> = vec![
        (
            "squeeze-excite".into(),
            Box::new(move |map| squeeze_excite.forward(map).unwrap()),
        ),
        (
            "spatial".into(),
            Box::new(move |map| spatial.forward(map).unwrap()),
        ),
        (
            "cbam".into(),
            Box::new(move |map| cbam.forward(map).unwrap()),
        ),
    ];
    for affinity in AFFINITIES {
        for pool in [1, 2] {
            let config = NonLocalConfig::new(channels)
                .with_affinity(affinity)
                .with_pool(pool);
            let block = awake(config.init(init).unwrap());
            let name = format!("{affinity:?} {pool}");
            layers.push((name, Box::new(move |map| block.forward(map).unwrap())));
        }
    }
    for span in [None, Some(16)] {
        let config = AxialAttentionConfig::new(channels)
            .with_heads(2)
            .with_span(span);
        let axial = config.init(init).unwrap();
        let name = format!("axial {span:?}");
        layers.push((name, Box::new(move |map| axial.forward(map).unwrap())));
    }
    layers
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    /// Maps of any size keep it, stay finite forward and backward, and each image gives the same as alone.
    #[test]
    fn any_size(batch in 1usize..4, height in 1usize..10, width in 1usize..10) {
        for (name, layer) in layers(4) {
            let map = drawn("map", [batch, 4, height, width], 2.0).require_grad();
            let output = layer(map.clone());
            prop_assert_eq!(output.dims(), map.dims());
            let gradient = map.grad(&output.clone().sum().backward()).unwrap();
            prop_assert!(numbers(&output).iter().chain(&numbers(&gradient)).all(|x| x.is_finite()), "{}", name);
            for b in 0..batch {
                let alone = layer(map.clone().narrow(0, b, 1));
                prop_assert!(close(alone, output.clone().narrow(0, b, 1)), "{name}");
            }
        }
    }

    /// The mask branch in training, at any size and with every activation.
    #[test]
    fn any_size_of_the_mask(
        batch in 1usize..4,
        height in 1usize..12,
        width in 1usize..12,
        levels in 1usize..4,
        kind in 0usize..3,
    ) {
        let activation = [MaskActivation::Mixed, MaskActivation::Channel, MaskActivation::Spatial][kind];
        let config = MaskBranchConfig::new(4).with_levels(levels).with_activation(activation);
        let branch = config.init(&mut initializer()).unwrap();
        let map = drawn("map", [batch, 4, height, width], 2.0).require_grad();
        let trunk = drawn("trunk", map.dims(), 2.0);
        let attended = branch.attend(map.clone(), trunk.clone()).unwrap();
        prop_assert_eq!(attended.output.dims(), map.dims());
        prop_assert_eq!(attended.gate.dims(), map.dims());
        prop_assert_eq!(numbers(&attended.output), numbers(&((attended.gate.clone() + 1.0) * trunk)));
        let gradient = map.grad(&attended.output.sum().backward()).unwrap();
        prop_assert!(numbers(&gradient).iter().all(|slope| slope.is_finite()));
        for mask in numbers(&attended.gate) {
            match activation {
                MaskActivation::Channel => prop_assert!(mask.abs() <= 1.0 + f32::EPSILON),
                _ => prop_assert!((0.0..=1.0).contains(&mask)),
            }
        }
    }

    /// Gates lie between 0 and 1 and are the factors of the map.
    #[test]
    fn gates(height in 1usize..8, width in 1usize..8, scale in 0.1f32..4.0) {
        let init = &mut initializer();
        let map = drawn("map", [2, 6, height, width], scale);
        let between = |gate: &Tensor<4>| numbers(gate).into_iter().all(|gate| 0.0 < gate && gate < 1.0);

        let module = SqueezeExciteConfig::new(6).with_reduction(3).init(init).unwrap();
        let attended = module.attend(map.clone()).unwrap();
        prop_assert!(between(&attended.gate));
        prop_assert_eq!(numbers(&attended.output), numbers(&(map.clone() * attended.gate)));
        prop_assert_eq!(numbers(&attended.output), numbers(&module.forward(map.clone()).unwrap()));

        let module = SpatialAttentionConfig::new().init(init).unwrap();
        let attended = module.attend(map.clone()).unwrap();
        prop_assert!(between(&attended.gate));
        prop_assert_eq!(numbers(&attended.output), numbers(&(map.clone() * attended.gate)));
        prop_assert_eq!(numbers(&attended.output), numbers(&module.forward(map.clone()).unwrap()));

        let module = CbamConfig::new(6).with_reduction(3).init(init).unwrap();
        let attended = module.attend(map.clone()).unwrap();
        prop_assert!(between(&attended.channel_gate) && between(&attended.spatial_gate));
        let gated = map.clone() * attended.channel_gate * attended.spatial_gate;
        prop_assert_eq!(numbers(&attended.output), numbers(&gated));
        prop_assert_eq!(numbers(&attended.output), numbers(&module.forward(map).unwrap()));
    }

    /// Regions in another order change the order of the weights and not the context; padding, whatever it
    /// contains, changes nothing and gets no gradient; an image without regions gives zeros.
    #[test]
    fn regions(
        counts in prop::collection::vec(0usize..6, 1..4),
        poison in prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(-1e30f32)],
        caption in any::<bool>(),
    ) {
        let (batch, count) = (counts.len(), 6);
        let init = &mut initializer();
        let captions = CaptionAttentionConfig::new(5, 4, 3).init(init).unwrap();
        let questions = QuestionAttentionConfig::new(5, 4, 3).init(init).unwrap();
        let keep = PaddingMask::from_lengths(&counts, count, &device());
        let top_down = drawn("top-down", [batch, 4], 2.0).require_grad();
        let attend = |features: Tensor<3>| -> RegionAttended {
            let regions = Regions::new(features, keep.clone()).unwrap();
            match caption {
                true => {
                    let prepared = captions.prepare(&regions).unwrap();
                    captions.forward(top_down.clone(), &prepared).unwrap()
                }
                false => questions.forward(top_down.clone(), &regions).unwrap(),
            }
        };
        let run = |poison: f32| {
            let mut all = values("features", batch * count * 5, 2.0);
            for (i, value) in all.iter_mut().enumerate() {
                if i / 5 % count >= counts[i / 5 / count] {
                    *value = poison;
                }
            }
            let features = TensorData::new(all, [batch, count, 5]);
            let features = Tensor::<3>::from_data(features, &device()).require_grad();
            let attended = attend(features.clone());
            let slopes = attended.context.clone().sum().backward();
            let weights = match caption {
                true => gradients(&captions, &slopes),
                false => gradients(&questions, &slopes),
            };
            (attended, numbers(&features.grad(&slopes).unwrap()), weights)
        };
        let (clean, slopes, of_weights) = run(0.0);
        let (poisoned, poisoned_slopes, poisoned_of_weights) = run(poison);
        prop_assert_eq!(numbers(&clean.weights), numbers(&poisoned.weights));
        prop_assert_eq!(numbers(&clean.context), numbers(&poisoned.context));
        prop_assert_eq!(&slopes, &poisoned_slopes);
        prop_assert!(of_weights == poisoned_of_weights);
        prop_assert!(of_weights.values().all(|array| array.values.iter().all(|x| x.is_finite())));
        for (i, slope) in slopes.iter().enumerate() {
            let padded = i / 5 % count >= counts[i / 5 / count];
            prop_assert!(slope.is_finite() && (!padded || *slope == 0.0));
        }
        let (weights, context) = (numbers(&clean.weights), numbers(&clean.context));
        for (b, &n) in counts.iter().enumerate() {
            let row = &weights[b * count..(b + 1) * count];
            prop_assert!(row[n..].iter().all(|&weight| weight == 0.0));
            let sum: f32 = row.iter().sum();
            match n {
                0 => {
                    prop_assert_eq!(sum, 0.0);
                    prop_assert!(context[b * 5..(b + 1) * 5].iter().all(|&x| x == 0.0));
                }
                _ => prop_assert!((sum - 1.0).abs() <= 8.0 * f32::EPSILON),
            }
        }

        // Reversed within each image's own regions.
        let features = drawn("features", [batch, count, 5], 2.0);
        let rows = counts.iter().enumerate().map(|(b, &n)| {
            let row = features.clone().narrow(0, b, 1);
            if n == 0 {
                return row;
            }
            Tensor::cat(vec![row.clone().narrow(1, 0, n).flip([1]), row.narrow(1, n, count - n)], 1)
        });
        let reversed = attend(Tensor::cat(rows.collect(), 0));
        prop_assert!(close(reversed.context, clean.context));
        let reversed = numbers(&reversed.weights);
        for (b, &n) in counts.iter().enumerate() {
            for i in 0..n {
                let distance = reversed[b * count + i] - weights[b * count + n - 1 - i];
                prop_assert!(distance.abs() <= 8.0 * f32::EPSILON);
            }
        }
    }
}

/// `W_z` starts at 0, so a new block is the identity, bit for bit, whatever its affinity.
#[test]
fn a_new_non_local_block_is_the_identity() {
    for affinity in AFFINITIES {
        for pool in [1, 2] {
            let config = NonLocalConfig::new(6)
                .with_affinity(affinity)
                .with_pool(pool);
            let block = config.init(&mut initializer()).unwrap();
            let map = drawn("map", [2, 6, 5, 4], 2.0);
            assert_eq!(
                numbers(&block.forward(map.clone()).unwrap()),
                numbers(&map),
                "{affinity:?}"
            );
            let video = drawn("video", [2, 6, 3, 5, 4], 2.0);
            assert_eq!(
                numbers(&block.forward(video.clone()).unwrap()),
                numbers(&video),
                "{affinity:?}"
            );
        }
    }
}

/// Positions in another order give the same outputs in that order; rows of weights sum to 1 where a softmax
/// makes them; the inner size is half the channels, but at least 1.
#[test]
fn non_local_blocks_treat_positions_as_a_set() {
    let order = [5i32, 2, 0, 11, 7, 1, 3, 10, 4, 9, 8, 6];
    let order = Tensor::<1, burn::tensor::Int>::from_ints(order, &device());
    for affinity in AFFINITIES {
        let config = NonLocalConfig::new(6).with_affinity(affinity);
        let block = awake(config.init(&mut initializer()).unwrap());
        assert_eq!(block.g.weight.dims(), [6, 3]);
        let map = drawn("map", [2, 6, 3, 4], 1.0);
        let permute = |map: Tensor<4>| {
            map.reshape([2, 6, 12])
                .select(2, order.clone())
                .reshape([2, 6, 3, 4])
        };
        let attended = block.attend(map.clone()).unwrap();
        let permuted = block.attend(permute(map.clone())).unwrap();
        assert!(
            close(permuted.output, permute(attended.output.clone())),
            "{affinity:?}"
        );
        let weights = attended
            .weights
            .clone()
            .select(1, order.clone())
            .select(2, order.clone());
        assert!(close(permuted.weights, weights), "{affinity:?}");
        assert_eq!(
            numbers(&attended.output),
            numbers(&block.forward(map).unwrap()),
            "{affinity:?}"
        );
        if matches!(affinity, Affinity::Gaussian | Affinity::EmbeddedGaussian) {
            let sums = numbers(&attended.weights.sum_dim(2));
            assert!(
                sums.iter()
                    .all(|sum| (sum - 1.0).abs() <= 8.0 * f32::EPSILON)
            );
        }
    }
    let block = NonLocalConfig::new(1).init(&mut initializer()).unwrap();
    assert_eq!(block.g.weight.dims(), [1, 1]);
}

/// After both axes every position has seen every other, and after one only its own line; rows of weights
/// sum to 1.
#[test]
fn axial_attention_reaches_every_position() {
    for span in [None, Some(7)] {
        let config = AxialAttentionConfig::new(4).with_heads(2).with_span(span);
        let axial = config.init(&mut initializer()).unwrap();
        let map = drawn("map", [1, 4, 3, 4], 2.0);
        let mut moved = numbers(&map);
        moved[0] += 1.0; // row 0, column 0
        let moved = Tensor::from_data(TensorData::new(moved, [1, 4, 3, 4]), &device());
        let (a, b) = (
            axial.attend(map.clone()).unwrap(),
            axial.attend(moved).unwrap(),
        );
        assert_eq!(numbers(&a.output), numbers(&axial.forward(map).unwrap()));
        let changed = (a.output - b.output).abs().max_dim(1);
        assert!(
            numbers(&changed).iter().all(|&change| change > 0.0),
            "{span:?}"
        );
        let changed = (a.column_weights.clone() - b.column_weights).abs();
        let by_column = numbers(&changed.max_dims(&[2, 3, 4]));
        assert!(by_column[0] > 0.0 && by_column[1..].iter().all(|&change| change == 0.0));
        for sums in [
            numbers(&a.column_weights.sum_dim(4)),
            numbers(&a.row_weights.sum_dim(4)),
        ] {
            assert!(
                sums.iter()
                    .all(|sum| (sum - 1.0).abs() <= 8.0 * f32::EPSILON)
            );
        }
    }
}

/// With distances, a line is not a set: the same content in another order gives another output.
#[test]
fn distances_tell_places_apart() {
    for (span, equal) in [(None, true), (Some(4), false)] {
        let config = AxialAttentionConfig::new(4).with_heads(2).with_span(span);
        let axial = config.init(&mut initializer()).unwrap();
        let map = drawn("map", [1, 4, 1, 4], 2.0);
        let order = [2, 0, 3, 1];
        let permute =
            |map: Tensor<4>| Tensor::cat(order.map(|i| map.clone().narrow(3, i, 1)).to_vec(), 3);
        let permuted = axial.forward(permute(map.clone())).unwrap();
        let expected = permute(axial.forward(map).unwrap());
        assert_eq!(close(permuted, expected), equal, "{span:?}");
    }
}

/// `x / ‖x‖` has length 1, and is 0 with a finite gradient where all channels are 0; a map that is the same
/// everywhere, or has one position, gives σ(0).
#[test]
fn mask_activations_at_their_edges() {
    let scores = drawn("scores", [2, 3, 4, 5], 2.0);
    let mask = MaskActivation::Channel.forward(scores.clone());
    let lengths = numbers(&mask.square().sum_dim(1));
    assert!(
        lengths
            .iter()
            .all(|length| (length - 1.0).abs() <= 4.0 * f32::EPSILON)
    );

    let zeros = Tensor::<4>::zeros([1, 3, 2, 2], &device()).require_grad();
    let mask = MaskActivation::Channel.forward(zeros.clone());
    assert_eq!(numbers(&mask), [0.0; 12]);
    let slopes = numbers(&zeros.grad(&mask.sum().backward()).unwrap());
    assert!(slopes.iter().all(|slope| slope.is_finite()));

    for shape in [[1, 3, 4, 5], [2, 3, 1, 1]] {
        let same = Tensor::<4>::full(shape, 0.5, &device()).require_grad();
        let mask = MaskActivation::Spatial.forward(same.clone());
        assert!(numbers(&mask).iter().all(|&mask| mask == 0.5));
        let slopes = numbers(&same.grad(&mask.sum().backward()).unwrap());
        assert!(slopes.iter().all(|slope| slope.is_finite()));
    }
}

/// Scores of any size are divided by their length, forward and backward, though their squares are 0 or infinite.
#[test]
fn channels_of_any_size() {
    for size in [1e-23f32, 1.0, 1e20] {
        let scores = Tensor::<4>::full([1, 2, 1, 1], size, &device()).require_grad();
        let mask = MaskActivation::Channel.forward(scores.clone());
        for found in numbers(&mask) {
            assert!(
                (found - 0.5f32.sqrt()).abs() <= 4.0 * f32::EPSILON,
                "{found}"
            );
        }
        // Of x / √(x² + y²) by x and by y, where both are the size: 1 / (√8 size), and the opposite.
        let all = mask.narrow(1, 0, 1).sum().backward();
        let slopes = numbers(&scores.grad(&all).unwrap());
        for (slope, sign) in slopes.iter().zip([1.0, -1.0]) {
            let relative = slope * size * 8.0f32.sqrt();
            assert!((relative - sign).abs() <= 16.0 * f32::EPSILON, "{slope}");
        }
    }
}

/// Positions that grow evenly over the image still do after a change of its size; that of the class token is
/// unchanged.
#[test]
fn positions_are_interpolated_over_the_image() {
    let plane = |rows: usize, columns: usize| -> Vec<f32> {
        let place = |i: usize, n: usize| i as f32 / (n - 1) as f32;
        let patches = (0..rows * columns).flat_map(|i| {
            let (row, column) = (place(i / columns, rows), place(i % columns, columns));
            [row, column, 1.0 + row - 2.0 * column]
        });
        [7.0, 8.0, 9.0].into_iter().chain(patches).collect()
    };
    let mut embedding = PatchEmbeddingConfig::new([6, 10], [2, 2], 1, 3)
        .init(&mut initializer())
        .unwrap();
    let old = TensorData::new(plane(3, 5), [16, 3]);
    embedding.positions = embedding
        .positions
        .map(|positions| positions.map(|_| Tensor::from_data(old, &device()).require_grad()));

    let positions = |embedding: &PatchEmbedding| embedding.positions.as_ref().unwrap().val();
    let same = embedding.clone().resized([6, 10]).unwrap();
    assert!(close(positions(&same), positions(&embedding)));
    let resized = embedding.resized([14, 4]).unwrap();
    assert_eq!(resized.grid(), [7, 2]);
    assert!(positions(&resized).is_require_grad());
    let expected = TensorData::new(plane(7, 2), [15, 3]);
    assert!(close(
        positions(&resized),
        Tensor::from_data(expected, &device())
    ));
    let tokens = resized.forward(drawn("image", [2, 1, 14, 4], 1.0)).unwrap();
    assert_eq!(tokens.dims(), [2, 15, 3]);
}

/// Without learned positions equal patches give equal tokens, and the weights are of any size of image.
#[test]
fn patches_without_positions() {
    let config = PatchEmbeddingConfig::new([4, 6], [2, 2], 1, 3).with_learned_positions(false);
    let embedding = config.init(&mut initializer()).unwrap();
    let tokens = embedding.forward(Tensor::ones([1, 1, 4, 6], &device()));
    let tokens = tokens.unwrap().narrow(1, 1, 6);
    let first = tokens.clone().narrow(1, 0, 1).repeat_dim(1, 6);
    assert!(close(tokens, first));
    let larger = embedding.resized([8, 6]).unwrap();
    assert!(larger.positions.is_none() && larger.grid() == [4, 3]);
}

/// The weights over the tokens are arranged as on the image, row by row, without that of the class token.
#[test]
fn weights_on_the_image() {
    let config = PatchEmbeddingConfig::new([4, 6], [2, 2], 1, 3);
    let embedding = config.init(&mut initializer()).unwrap();
    let weights: Vec<f32> = (0..7).map(|i| i as f32).collect();
    let weights = Tensor::from_data(TensorData::new(weights, [1, 1, 7]), &device());
    let map = embedding.on_image(weights).unwrap();
    assert_eq!(map.dims(), [1, 1, 2, 3]);
    assert_eq!(numbers(&map), [1., 2., 3., 4., 5., 6.]);
}
