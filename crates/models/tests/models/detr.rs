//! DETR: numbers against transformers and scipy (`../golden/detr_golden.py`), and what must hold for any detector.

use burn::tensor::{Tensor, TensorData};
use regard_models::{
    AnyDetector, AnyModelConfig, Detector, DetectorSizes, ModelConfig,
    image::{
        BackboneConfig, DetrConfig,
        detr::{
            assignment::{AssignmentError, assign},
            boxes::{Corners, from_corners, generalized_iou, to_corners},
            loss::{SetLoss, Target},
        },
    },
};
use regard_nn::{bridge::without_kernels, dropout::DropoutRng, initialize::Initializer, weights};
use serde::Deserialize;

use crate::support::{Case, GoldenFile, device, frozen, numbers, values};

fn sizes(case: &Case, field: &str) -> Vec<usize> {
    serde_json::from_value(case.description[field].clone()).unwrap()
}

/// The objects of a case, drawn as in the script.
fn targets(case: &Case, [height, width]: [usize; 2]) -> Vec<Vec<Target>> {
    let (name, classes) = (case.text("name"), case.number("classes"));
    let of_image = |(image, count): (usize, usize)| {
        let drawn =
            |what: &str, count, scale| values(&format!("{name}/{what}.{image}"), count, scale);
        let labels = drawn("labels", count, 1.0);
        let boxes = drawn("boxes", count * 4, 0.125);
        let masks = drawn("masks", count * height * width, 1.0);
        let target = |object: usize| Target {
            class: (f64::from(labels[object] + 1.0) / 2.0 * classes) as usize,
            bounds: std::array::from_fn(|i| boxes[4 * object + i] + [0.5, 0.5, 0.25, 0.25][i]),
            mask: Some(
                masks[object * height * width..][..height * width]
                    .iter()
                    .map(|&value| f32::from(u8::from(value > 0.5)))
                    .collect(),
            ),
        };
        (0..count).map(target).collect()
    };
    let counts = sizes(case, "counts").into_iter().enumerate();
    counts.map(of_image).collect()
}

#[test]
fn predictions_masks_and_losses_are_those_of_transformers() {
    let golden = GoldenFile::read(include_bytes!("../golden/detr.safetensors"));
    let cases = golden.cases("detr");
    assert_eq!(cases.len(), 2);
    for mut case in cases {
        let number = |field: &str| case.number(field) as usize;
        let config = DetrConfig {
            d_model: number("d"),
            encoder_layers: number("encoder_layers"),
            decoder_layers: number("decoder_layers"),
            heads: number("heads"),
            feed_forward: number("f"),
            queries: number("queries"),
            masks: true,
            dropout: 0.0,
            backbone: BackboneConfig {
                channels: number("channels"),
                stages: 4,
                blocks: 1,
                ..BackboneConfig::default()
            },
        };
        let size: [usize; 2] = sizes(&case, "size").try_into().unwrap();
        let of_images = DetectorSizes {
            channels: 3,
            size,
            classes: number("classes"),
        };
        let model = config.draw(&of_images, &mut Initializer::new(1, &device()));
        let model = frozen(case.fill(model.unwrap()));
        let targets = targets(&case, size);
        let images = case.leaf("images", [targets.len(), 3, size[0], size[1]]);

        let found = model.forward(images.clone(), &mut DropoutRng::none());
        for (layer, predicted) in found.layers.iter().enumerate() {
            case.output(&format!("logits.{layer}"), &predicted.logits);
            case.output(&format!("boxes.{layer}"), &predicted.boxes);
        }
        let look = model.look(images.clone());
        for (layer, weights) in look.cross.iter().enumerate() {
            case.output(&format!("cross.{layer}"), weights);
        }
        for (layer, weights) in look.encoder.iter().enumerate() {
            case.output(&format!("encoder.{layer}"), weights);
        }
        // Masks in the size of the largest map: the last step changes nothing.
        let [_, _, rows, columns] = found.maps[0].dims();
        let queries = config.queries;
        let all =
            (0..targets.len()).flat_map(|image| (0..queries).map(move |query| [image, query]));
        let all: Vec<[usize; 2]> = all.collect();
        let masks = model.masks(&found, &all, [rows, columns]).unwrap();
        case.output(
            "masks",
            &masks.reshape([targets.len(), queries, rows, columns]),
        );

        let drawn = |chosen: &[[usize; 2]]| Detector::masks(&model, &found, chosen, size);
        let losses = SetLoss::default().of(&found, &targets, drawn).unwrap();
        let [focal, dice] = losses.mask.clone().unwrap();
        for (name, loss) in [
            ("loss_ce", &losses.class),
            ("loss_bbox", &losses.l1),
            ("loss_giou", &losses.giou),
            ("loss_mask", &focal),
            ("loss_dice", &dice),
            ("total", &losses.total),
        ] {
            case.output(name, loss);
        }
        let gradients = losses.total.backward();
        case.gradients(&model, &gradients);
        case.gradient("images", &images, &gradients);
        case.close();
    }
}

#[derive(Deserialize)]
struct Assignment {
    rows: usize,
    columns: usize,
    costs: Vec<f64>,
    least: f64,
    pairs: Option<Vec<[usize; 2]>>,
}

#[test]
fn assignments_are_those_of_scipy() {
    let cases: Vec<Assignment> =
        serde_json::from_str(include_str!("../golden/assignment.json")).unwrap();
    assert_eq!(cases.len(), 30);
    for Assignment {
        rows,
        columns,
        costs,
        least,
        pairs,
    } in cases
    {
        let found = assign(&costs, rows, columns).unwrap();
        assert_eq!(found.len(), rows.min(columns));
        for side in [0, 1] {
            let mut places: Vec<usize> = found.iter().map(|pair| pair[side]).collect();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), found.len(), "{found:?}");
        }
        let sum: f64 = found
            .iter()
            .map(|&[row, column]| costs[row * columns + column])
            .sum();
        assert!(
            (sum - least).abs() < 1e-9,
            "{rows} x {columns}: {sum}, scipy {least}"
        );
        if let Some(pairs) = pairs {
            assert_eq!(found, pairs, "{rows} x {columns}");
        }
    }
}

#[test]
fn impossible_costs_are_refused() {
    let shape = assign(&[1.0, 2.0], 1, 3).unwrap_err();
    assert_eq!(
        shape.to_string(),
        "2 costs for 1 rows and 3 columns; expected one for each pair"
    );
    assert!(assign(&[], usize::MAX, 2).is_err());
    for cost in [f64::NAN, f64::INFINITY, -1e200] {
        let refused = assign(&[0.0, 1.0, cost, 3.0], 2, 2).unwrap_err();
        assert!(matches!(
            refused,
            AssignmentError::Cost {
                row: 1,
                column: 0,
                ..
            }
        ));
    }
    assert_eq!(
        assign(&[1e100, -1e100, -1e100, 1e100], 2, 2).unwrap(),
        [[0, 1], [1, 0]]
    );
}

#[test]
fn boxes_overlap_as_their_formulas_say() {
    let device = device();
    let boxes = Tensor::<2>::from_floats(
        [
            [0.5, 0.5, 0.2, 0.4],
            [0.25, 0.75, 0.5, 0.5],
            [0.1, 0.1, 0.0, 0.0],
        ],
        &device,
    );
    let corners = to_corners(boxes.clone());
    let expected = [0.4, 0.3, 0.6, 0.7, 0.0, 0.5, 0.5, 1.0, 0.1, 0.1, 0.1, 0.1];
    for (a, b) in numbers(&corners).into_iter().zip(expected) {
        assert!((a - b).abs() < 1e-6);
    }
    for (a, b) in numbers(&from_corners(corners.clone()))
        .into_iter()
        .zip(numbers(&boxes))
    {
        assert!((a - b).abs() < 1e-6);
    }
    // A third of two halves that overlap; two that touch nothing; one with itself.
    let a = Tensor::<2>::from_floats(
        [
            [0.0, 0.0, 2.0, 1.0],
            [0.0, 0.0, 1.0, 1.0],
            [0.0, 0.0, 1.0, 1.0],
        ],
        &device,
    );
    let b = Tensor::<2>::from_floats(
        [
            [1.0, 0.0, 3.0, 1.0],
            [2.0, 0.0, 3.0, 1.0],
            [0.0, 0.0, 1.0, 1.0],
        ],
        &device,
    );
    let found = numbers(&generalized_iou(a.clone(), b.clone()));
    for ((found, expected), row) in found.into_iter().zip([1.0 / 3.0, -1.0 / 3.0, 1.0]).zip(0..) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        let corners = |boxes: &Tensor<2>| {
            let row = numbers(&boxes.clone().narrow(0, row, 1));
            Corners(row.try_into().unwrap())
        };
        let plain = corners(&a).generalized_iou(corners(&b));
        assert!((plain - expected).abs() < 1e-6);
        assert!((corners(&a).iou(corners(&b)) - expected.max(0.0)).abs() < 1e-6);
    }
    let point = Corners::of([0.5, 0.5, 0.0, 0.0]);
    assert!(point.generalized_iou(point).is_finite() && point.iou(point) == 0.0);
}

const SIZES: DetectorSizes = DetectorSizes {
    channels: 3,
    size: [24, 20],
    classes: 4,
};

fn config(masks: bool) -> DetrConfig {
    DetrConfig {
        masks,
        ..DetrConfig::tiny()
    }
}

fn model(masks: bool) -> AnyDetector {
    AnyModelConfig::build(&config(masks), &SIZES, 3, &device().inner()).unwrap()
}

fn images(count: usize) -> Tensor<4> {
    let drawn = values("images", count * 3 * 24 * 20, 1.0);
    Tensor::from_data(
        TensorData::new(drawn, [count, 3, 24, 20]),
        &device().inner(),
    )
}

fn close(a: &[f32], b: &[f32], most: f32) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= most * (1.0 + b.abs()), "{a} {b}");
    }
}

#[test]
fn a_deep_backbone_has_the_maps_that_it_says() {
    let device = device();
    let images = Tensor::<4>::zeros([1, 3, 70, 33], &device);
    for (depth, dilation) in [
        (18, false),
        (34, false),
        (50, false),
        (50, true),
        (101, true),
    ] {
        let config = BackboneConfig {
            channels: 2,
            depth: Some(depth),
            dilation,
            ..BackboneConfig::default()
        };
        let backbone = config.draw(3, &mut Initializer::new(1, &device));
        let maps = backbone.maps(images.clone());
        let channels: Vec<usize> = maps.iter().map(|map| map.dims()[1]).collect();
        assert_eq!(channels, config.map_channels(), "{depth}");
        let [_, features, rows, columns] = maps[3].dims();
        assert_eq!(features, config.features(), "{depth}");
        assert_eq!(
            [rows, columns],
            config.grid([70, 33]),
            "{depth}, {dilation}"
        );
        assert_eq!([rows, columns], if dilation { [5, 3] } else { [3, 2] });
    }
    for (depth, dilation, message) in [
        (
            Some(20),
            false,
            "backbone.depth: found 20; expected 18, 34, 50 or 101",
        ),
        (
            Some(34),
            true,
            "backbone.dilation: found true; expected false, or depth 50 or 101",
        ),
        (
            None,
            true,
            "backbone.dilation: found true; expected false without depth",
        ),
    ] {
        let mut config = DetrConfig::tiny();
        config.backbone.depth = depth;
        config.backbone.dilation = dilation;
        let sizes = DetectorSizes {
            channels: 3,
            size: [16, 16],
            classes: 2,
        };
        let error = config.init(&sizes, 1, &device).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn looking_and_batching_change_no_prediction() {
    let model = model(true);
    let images = images(3);
    let found = model.forward(images.clone(), &mut DropoutRng::none());
    let look = model.look(images.clone());
    let [logits, boxes] = [&found.last().logits, &found.last().boxes].map(numbers);
    close(&numbers(&look.found.last().logits), &logits, 1e-5);
    close(&numbers(&look.found.last().boxes), &boxes, 1e-5);
    assert_eq!(look.grid, [3, 3]);
    for weights in look.cross.iter().chain(&look.encoder).chain(&look.decoder) {
        let sums = numbers(&weights.clone().sum_dim(3));
        assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-5));
    }
    assert_eq!(
        [look.encoder.len(), look.decoder.len(), look.cross.len()],
        [1, 2, 2]
    );
    let chosen = [[2, 1], [0, 3]];
    let masks = numbers(&model.masks(&found, &chosen, [24, 20]).unwrap());
    for (place, [row, query]) in chosen.into_iter().enumerate() {
        let alone = model.forward(images.clone().narrow(0, row, 1), &mut DropoutRng::none());
        let of_row = numbers(&found.last().logits.clone().narrow(0, row, 1));
        close(&numbers(&alone.last().logits), &of_row, 1e-5);
        let mask = numbers(&model.masks(&alone, &[[0, query]], [24, 20]).unwrap());
        close(&mask, &masks[place * 480..][..480], 1e-4);
    }
    let plain = without_kernels(|| model.forward(images, &mut DropoutRng::none()));
    close(&numbers(&plain.last().logits), &logits, 1e-4);
}

#[test]
fn stored_weights_make_the_same_detector() {
    let first = model(true);
    let arrays = weights::collect(&first);
    let empty =
        AnyModelConfig::build_without_values(&config(true), &SIZES, &arrays, &device().inner());
    let second = weights::apply(empty.unwrap(), arrays).unwrap();
    let [a, b] = [first, second].map(|model| {
        let found = model.forward(images(2), &mut DropoutRng::none());
        let masks = model.masks(&found, &[[1, 2]], [24, 20]).unwrap();
        (numbers(&found.last().boxes), numbers(&masks))
    });
    assert_eq!(a, b);
    assert!(!model(false).has_masks());
}

#[test]
fn a_batch_without_objects_has_a_loss() {
    let model = model(true);
    let found = model.forward(images(2), &mut DropoutRng::none());
    let none = |_: &[[usize; 2]]| -> Option<Tensor<3>> { panic!("there is no mask to draw") };
    let losses = SetLoss::default()
        .of(&found, &[vec![], vec![]], none)
        .unwrap();
    let [total, l1] = [&losses.total, &losses.l1].map(|loss| numbers(loss)[0]);
    assert!(total.is_finite() && total > 0.0 && l1 == 0.0);
    assert!(losses.mask.is_none());
}

#[test]
fn impossible_detectors_are_refused() {
    let message = |config: DetrConfig, sizes: DetectorSizes| {
        let refused = AnyModelConfig::build(&config, &sizes, 1, &device().inner());
        refused.map(|_| ()).unwrap_err().to_string()
    };
    let none = DetectorSizes {
        classes: 0,
        ..SIZES
    };
    assert!(message(config(false), none).contains("the number of classes is 0"));
    let flat = DetectorSizes {
        size: [0, 8],
        ..SIZES
    };
    assert!(message(config(false), flat).contains("images of 0 x 8 pixels"));
    let odd = DetrConfig {
        d_model: 6,
        ..config(false)
    };
    assert!(message(odd, SIZES).contains("d_model: found 6; expected a multiple of 4"));
    let heads = DetrConfig {
        heads: 3,
        ..config(false)
    };
    assert!(message(heads, SIZES).contains("heads: found 3; expected a divisor of d_model, 8"));
}
