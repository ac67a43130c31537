//! Worked examples: the numbers of the formula sheet, the definitions in `f64`, and the modules in `f32`.

mod definitions;
mod topics;

use burn::{
    module::Param,
    nn::Linear,
    tensor::{Device, Tensor, TensorData},
};
use proptest::prelude::*;
use regard_nn::{
    Attention, Observe,
    explain::{
        Example, ExplainError, Normalizer, Parameters, Quantity, catalogue, explain, masks, presets,
    },
    initialize::Initializer,
    mask::{Locality, PositionPredictor},
    normalize::{
        Addressing, Entmax15, Form, Hardmax, Identity, Monotonic, Normalize, Sigmoid, Sink,
        Softmax, Sparsemax,
    },
    score::{
        Additive, Cosine, Distance, Dot, GaussianWindow, General, Location, ScaledDot,
        ScaledGeneral, Score, WeightNormAdditive,
    },
};

type Matrix = Vec<Vec<f64>>;

const QUERIES: usize = 3;
const KEYS: usize = 4;
const SIZE: usize = 3;

/// Pseudorandom numbers, the same on every machine.
fn numbers(rows: usize, columns: usize, seed: usize) -> Matrix {
    let number = |place: usize| ((place * 7919 + seed * 104_729 + 13) % 997) as f64 / 498.5 - 1.0;
    let row = |row: usize| {
        (0..columns)
            .map(|column| number(row * columns + column))
            .collect()
    };
    (0..rows).map(row).collect()
}

fn tensor<const D: usize>(rows: &Matrix, shape: [usize; D]) -> Tensor<D> {
    let values: Vec<f32> = rows.iter().flatten().map(|&x| x as f32).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

/// `y = W x` of the formulas: Burn stores `Wᵀ`.
fn linear(weight: &Matrix, bias: Option<&[f64]>) -> Linear {
    let shape = [weight.len(), weight[0].len()];
    Linear {
        weight: Param::from_tensor(tensor::<2>(weight, shape).transpose()),
        bias: bias.map(vector),
    }
}

fn vector(values: &[f64]) -> Param<Tensor<1>> {
    Param::from_tensor(tensor::<1>(&vec![values.to_vec()], [values.len()]))
}

/// A mechanism with every parameter set, and the score module with the same ones.
fn scored(name: &str) -> (Example, Score) {
    let mut example = Example::new(name).unwrap();
    example.queries = numbers(QUERIES, SIZE, 1);
    example.keys = numbers(KEYS, SIZE, 2);
    example.values = Some(numbers(KEYS, 2, 3));
    let parameters = &mut example.parameters;
    let (w, u, v, b) = (
        numbers(SIZE, SIZE, 4),
        numbers(SIZE, SIZE, 5),
        numbers(1, SIZE, 6),
        numbers(1, SIZE, 7),
    );
    let general = linear(&w, None);
    let (query, key) = (linear(&w, None), linear(&u, Some(&b[0])));
    if name.contains("general") || name.contains("additive") {
        parameters.query_weight = Some(w);
    }
    if name.contains("additive") {
        parameters.key_weight = Some(u);
        parameters.vector = Some(v[0].clone());
        parameters.bias = Some(b[0].clone());
    }
    let score = match name {
        "dot" => Score::Dot(Dot),
        "scaled-dot" => Score::ScaledDot(ScaledDot::default()),
        "general" => Score::General(General { key: general }),
        "scaled-general" => {
            parameters.gain = Some(1.5);
            Score::ScaledGeneral(ScaledGeneral {
                key: general,
                gain: vector(&[1.5]),
            })
        }
        "additive" => Score::Additive(Additive {
            query,
            key,
            vector: vector(&v[0]),
        }),
        "weight-norm-additive" => {
            parameters.gain = Some(0.7);
            Score::WeightNormAdditive(WeightNormAdditive {
                query,
                key,
                vector: vector(&v[0]),
                gain: vector(&[0.7]),
            })
        }
        "cosine" => {
            parameters.beta = Some(3.0);
            Score::Cosine(Cosine::fixed(3.0))
        }
        "distance" => Score::Distance(Distance::default()),
        "location" => {
            let weight = numbers(KEYS, SIZE, 8);
            let module = linear(&weight, None);
            parameters.query_weight = Some(weight);
            Score::Location(Location { weight: module })
        }
        "gaussian-window" => {
            let identity = (0..SIZE)
                .map(|i| (0..SIZE).map(|j| f64::from(u8::from(i == j))).collect())
                .collect();
            Score::GaussianWindow(GaussianWindow {
                parameters: linear(&identity, None),
            })
        }
        other => panic!("no module for {other}"),
    };
    (example, score)
}

const SCORES: [&str; 10] = [
    "dot",
    "scaled-dot",
    "general",
    "scaled-general",
    "additive",
    "weight-norm-additive",
    "cosine",
    "distance",
    "location",
    "gaussian-window",
];

/// The module of a normaliser, with the parameters set in `example`.
fn normalizer(kind: Normalizer, example: &mut Example) -> Normalize {
    example.normalizer = kind;
    let parameters = &mut example.parameters;
    match kind {
        Normalizer::Softmax => Normalize::Softmax(Softmax),
        Normalizer::Sink => {
            parameters.sink = Some(0.3);
            Normalize::Sink(Sink::fixed(0.3))
        }
        Normalizer::Sparsemax => Normalize::Sparsemax(Sparsemax),
        Normalizer::Entmax15 => Normalize::Entmax15(Entmax15),
        Normalizer::Sigmoid => Normalize::Sigmoid(Sigmoid::default()),
        Normalizer::Hardmax | Normalizer::HardSample => Normalize::Hardmax(Hardmax),
        Normalizer::Monotonic => Normalize::Monotonic(Monotonic::new(Form::Recursive)),
        Normalizer::Identity => Normalize::Identity(Identity),
        Normalizer::Addressing => {
            let (gate, shift, sharpening) = (0.6, [0.2, 0.7, 0.1], 2.5);
            parameters.gate = Some(gate);
            parameters.shift = Some(shift.to_vec());
            parameters.sharpening = Some(sharpening);
            // The weights are 0, so the query has no influence, and the biases give exactly these
            // numbers.
            let constant =
                |biases: &[f64]| linear(&vec![vec![0.0; SIZE]; biases.len()], Some(biases));
            let mut module = Addressing::new(SIZE, 1, &mut Initializer::new(1, &Device::flex()));
            module.gate = constant(&[(gate / (1.0 - gate)).ln()]);
            module.shift = constant(&shift.map(f64::ln));
            module.sharpening = constant(&[(sharpening - 1.0_f64).exp_m1().ln()]);
            Normalize::Addressing(module)
        }
    }
}

/// The module's weights and contexts.
fn computed(attention: &Attention, example: &Example) -> (Matrix, Matrix) {
    let values = example.values.as_ref().unwrap();
    let attended = attention
        .forward(
            tensor(&example.queries, [1, 1, QUERIES, SIZE]),
            tensor(&example.keys, [1, 1, KEYS, SIZE]),
            tensor(values, [1, 1, KEYS, values[0].len()]),
            Observe::Weights,
        )
        .unwrap();
    let rows = |tensor: Tensor<4>| -> Matrix {
        let width = tensor.dims()[3];
        let values = tensor.into_data().try_into_vec::<f32>().unwrap();
        values
            .chunks(width)
            .map(|row| row.iter().map(|&x| f64::from(x)).collect())
            .collect()
    };
    (rows(attended.weights.unwrap()), rows(attended.context))
}

/// The module computes in `f32`: a score of some twenty roundings at most, an exponential, a sum.
fn near(found: &Matrix, expected: &Matrix, what: &str) {
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        let tolerance = 32.0 * f64::from(f32::EPSILON) * expected.abs().max(1.0);
        assert!(
            (found - expected).abs() <= tolerance,
            "{what}: {found}, expected {expected}"
        );
    }
}

#[test]
fn every_combination_equals_its_module() {
    let masks = [
        None,
        Some("causal"),
        Some("window:2 & causal"),
        Some("padding:2"),
    ];
    let mut checked = 0;
    for name in SCORES {
        for (normalizer_name, kind) in Normalizer::NAMES {
            if name == "gaussian-window" && kind != Normalizer::Identity {
                // The weights of this score are final, so the combination is refused by both.
                continue;
            }
            if kind == Normalizer::HardSample {
                // Hard attention depends on the draw; it has its own test.
                continue;
            }
            for mask in masks {
                let (mut example, score) = scored(name);
                let normalize = normalizer(kind, &mut example);
                let mut attention = Attention::new(score).with_normalize(normalize);
                if let Some(text) = mask {
                    example.mask = Some(text.to_owned());
                    let parsed = masks::Expression::parse(text).unwrap();
                    attention = attention.with_mask(parsed.mask(QUERIES, KEYS).unwrap());
                }
                let worked = explain(&example).unwrap();
                let (weights, context) = computed(&attention, &example);
                let what = format!("{name}, {normalizer_name}, {mask:?}");
                near(&weights, &worked.weights, &what);
                near(&context, &worked.context, &what);
                checked += 1;
            }
        }
    }
    assert_eq!(checked, (9 * 9 + 1) * 4);
}

/// Compares to within some roundings of `f64`, more where a score is large.
fn exact(found: &Matrix, expected: &Matrix, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        let tolerance = 1e-12 * expected.abs().max(1.0);
        assert!(
            (found - expected).abs() <= tolerance,
            "{what}: {found}, expected {expected}"
        );
    }
}

#[test]
fn every_combination_equals_its_definition() {
    let masks = [
        None,
        Some("causal"),
        Some("window:2 & causal"),
        Some("padding:2"),
        Some("global:1"),
    ];
    let localities = [
        Locality::Global,
        Locality::Monotonic { half_width: 1 },
        Locality::Predictive { half_width: 2 },
    ];
    for name in SCORES {
        for (normalizer_name, kind) in Normalizer::NAMES {
            if name == "gaussian-window" && kind != Normalizer::Identity {
                continue;
            }
            for (index, mask) in masks.iter().enumerate() {
                let (mut example, _) = scored(name);
                normalizer(kind, &mut example);
                example.mask = mask.map(str::to_owned);
                // With padding, local-p predicts a position among the remaining words.
                example.locality = match mask {
                    Some("padding:2") => Locality::Global,
                    _ => localities[index % 3],
                };
                example.parameters.softcap = [None, Some(0.7)][index % 2];
                if let Normalizer::Monotonic | Normalizer::Addressing = kind {
                    example.parameters.previous = Some(vec![0.1, 0.2, 0.3, 0.4]);
                }
                let worked = explain(&example).unwrap();
                let what = format!("{name}, {normalizer_name}, {mask:?}");
                let scores = definitions::scores(&example);
                exact(&worked.scores, &scores, &what);
                let weights = definitions::weights(&example, &scores, &worked.seen);
                exact(&worked.weights, &weights, &what);
                let values = example.values.as_ref().unwrap();
                let read = |row: &Vec<f64>, place: usize| -> f64 {
                    row.iter().zip(values).map(|(w, v)| w * v[place]).sum()
                };
                let context = weights.iter().map(|row| vec![read(row, 0), read(row, 1)]);
                exact(&worked.context, &context.collect(), &what);
            }
        }
    }
}

#[test]
fn a_predicted_position_is_one_of_the_words_that_padding_leaves() {
    let (mut example, _) = scored("dot");
    example.locality = Locality::Predictive { half_width: 2 };
    let centre = |mask: &str| {
        let mut example = example.clone();
        example.mask = Some(mask.to_owned());
        explain(&example).unwrap().bumps[0][0].centre
    };
    let whole = centre("all");
    assert!((centre("padding:2") - whole / 2.0).abs() < 1e-12);
    assert!((centre("keep:0,1,1,0") - whole / 2.0 - 1.0).abs() < 1e-12);
}

#[test]
fn softcap_and_local_attention_equal_their_modules() {
    let (mut example, score) = scored("dot");
    example.parameters.softcap = Some(0.5);
    let worked = explain(&example).unwrap();
    let (weights, _) = computed(&Attention::new(score).with_softcap(0.5), &example);
    near(&weights, &worked.weights, "softcap");

    let (mut example, score) = scored("dot");
    example.locality = Locality::Predictive { half_width: 2 };
    let (weight, v) = (numbers(2, SIZE, 9), numbers(1, 2, 10));
    example.parameters.position_weight = Some(weight.clone());
    example.parameters.position_vector = Some(v[0].clone());
    let mut predictor = PositionPredictor::new(SIZE, 2, &mut Initializer::new(1, &Device::flex()));
    predictor.hidden = linear(&weight, None);
    predictor.vector = vector(&v[0]);
    let worked = explain(&example).unwrap();
    let (weights, context) = computed(&Attention::new(score).with_predictor(predictor), &example);
    near(&weights, &worked.weights, "local-p");
    near(&context, &worked.context, "local-p");

    let (mut example, score) = scored("dot");
    example.locality = Locality::Monotonic { half_width: 1 };
    let mask = regard_nn::mask::Mask::local_monotonic(1);
    let worked = explain(&example).unwrap();
    let (weights, _) = computed(&Attention::new(score).with_mask(mask), &example);
    near(&weights, &worked.weights, "local-m");
}

#[test]
fn the_worked_numbers_come_out_exactly() {
    let shown = |row: &[f64], digits: usize| {
        row.iter()
            .map(|x| format!("{x:.digits$}"))
            .collect::<Vec<_>>()
    };
    let words = explain(&presets::find("words").unwrap().example()).unwrap();
    assert_eq!(shown(&words.scores[0][1..], 4), ["0.7557", "0.4461"]);
    assert_eq!(shown(&words.scores[1][2..], 4), ["0.4341"]);
    let lookup = explain(&presets::find("lookup").unwrap().example()).unwrap();
    assert_eq!(lookup.scores, [[15.0, 60.0, 15.0, 35.0]]);
    assert_eq!(
        shown(&lookup.weights[0], 9),
        ["0.000000000", "1.000000000", "0.000000000", "0.000000000"]
    );
    assert_eq!(
        shown(&lookup.context[0], 9),
        ["5.000000000", "0.000000000", "1.000000000"]
    );
    let awareness = explain(&presets::find("awareness").unwrap().example()).unwrap();
    assert_eq!(awareness.scores, [[3.0, 1.0, 2.0]]);
    assert_eq!(shown(&awareness.context[0], 1), ["10.1"]);
    let softmax = explain(&presets::find("softmax").unwrap().example()).unwrap();
    assert_eq!(softmax.scores, [[2.0, 1.0, 0.1]]);
    assert_eq!(
        shown(&softmax.weights[0], 8),
        ["0.65900114", "0.24243297", "0.09856589"]
    );
}

#[test]
fn every_mechanism_explains_itself_on_the_words() {
    let words = presets::find("words").unwrap().example();
    for mechanism in &catalogue::MECHANISMS {
        let mut example = Example::new(mechanism.name).unwrap();
        example.queries = words.queries.clone();
        example.keys = words.keys.clone();
        let worked =
            explain(&example).unwrap_or_else(|error| panic!("{}: {error}", mechanism.name));
        assert_eq!(worked.mechanism, mechanism.name);
        assert_eq!(worked.context.len(), 3);
        for step in &worked.steps {
            for row in &step.table.rows {
                assert_eq!(row.cells.len(), step.table.columns.len(), "{}", step.name);
                assert!(row.cells.iter().flatten().all(|cell| cell.is_finite()));
            }
        }
        for alias in mechanism.aliases {
            assert_eq!(catalogue::find(alias).unwrap().name, mechanism.name);
        }
    }
    let mut names = catalogue::names();
    names.sort_unstable();
    names.dedup();
    assert_eq!(
        names.len(),
        catalogue::names().len(),
        "a name means two mechanisms"
    );
}

#[test]
fn hard_attention_draws_by_the_number_given() {
    let mut example = presets::find("softmax").unwrap().example();
    example.normalizer = Normalizer::HardSample;
    // Cumulative probabilities: .659, .901, 1.
    for (draw, key) in [(0.0, 0), (0.65, 0), (0.66, 1), (0.91, 2), (0.999_999, 2)] {
        example.parameters.draw = Some(draw);
        let weights = explain(&example).unwrap().weights;
        assert_eq!(
            weights[0].iter().position(|&w| w == 1.0),
            Some(key),
            "draw {draw}"
        );
    }
}

#[test]
fn a_query_that_sees_nothing_reads_nothing() {
    for (_, kind) in Normalizer::NAMES {
        let (mut example, _) = scored("dot");
        normalizer(kind, &mut example);
        example.mask = Some("!all".to_owned());
        let worked = explain(&example).unwrap();
        assert!(
            worked
                .weights
                .iter()
                .chain(&worked.context)
                .flatten()
                .all(|&x| x == 0.0),
            "{kind:?}"
        );
    }
}

#[test]
fn whatever_does_not_fit_is_named() {
    let refused = |change: fn(&mut Example), words: &str| {
        let (mut example, _) = scored("dot");
        change(&mut example);
        let error = explain(&example).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(
        |e| e.keys[2].push(1.0),
        "`keys`: row 3 is of size 4, expected 3",
    );
    refused(|e| e.queries.clear(), "`queries` is empty");
    refused(|e| e.queries[0][1] = f64::NAN, "`queries` is NaN");
    refused(
        |e| e.values = Some(vec![vec![1.0]]),
        "`values` is 1, expected 4",
    );
    refused(|e| e.keys = numbers(4, 2, 1), "`key size` is 2, expected 3");
    refused(
        |e| e.key_names = vec!["a".into()],
        "`key names` is 1, expected 4",
    );
    refused(|e| e.parameters.softcap = Some(0.0), "`softcap` is 0");
    refused(
        |e| {
            e.normalizer = Normalizer::HardSample;
            e.parameters.draw = Some(1.5);
        },
        "`draw` is 1.5, expected from 0 to 1",
    );
    refused(
        |e| {
            e.normalizer = Normalizer::HardSample;
            e.parameters.draw = Some(1.0);
        },
        "`draw` is 1, expected from 0 to 1, and below 1",
    );
    for shift in [[-0.1, 1.1, 0.0], [0.0; 3]] {
        let (mut example, _) = scored("dot");
        example.normalizer = Normalizer::Addressing;
        example.parameters.shift = Some(shift.to_vec());
        let error = explain(&example).unwrap_err().to_string();
        assert!(error.contains("`shift` is"), "{error}");
    }
    for (normalizer, previous) in [
        (Normalizer::Monotonic, vec![1.0; 4]),
        (Normalizer::Monotonic, vec![-0.5, 0.5, 0.5, 0.5]),
        (Normalizer::Addressing, vec![0.0; 4]),
    ] {
        let (mut example, _) = scored("dot");
        example.normalizer = normalizer;
        let keys = example.keys.len();
        example.parameters.previous = Some(previous[..keys].to_vec());
        let error = explain(&example).unwrap_err().to_string();
        assert!(error.contains("`previous` is"), "{error}");
    }
    refused(
        |e| e.parameters.previous = Some(vec![1.0; 4]),
        "`previous` is no parameter of dot",
    );
    refused(|e| e.mask = Some("window:0".into()), "`window width` is 0");
    refused(
        |e| e.mask = Some("document:0,1".into()),
        "expected 3 positions",
    );
    refused(|e| e.queries = numbers(65, 3, 1), "at most 64");
    let of = |name: &str, change: fn(&mut Example), words: &str| {
        let (mut example, _) = scored(name);
        change(&mut example);
        let error = explain(&example).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    of(
        "general",
        |e| e.parameters.query_weight = Some(numbers(2, 3, 1)),
        "`query weight` is 2, expected 3",
    );
    of(
        "general",
        |e| e.parameters.query_weight = Some(numbers(3, 2, 1)),
        "has shape [3, 2], expected [.., 3]",
    );
    of(
        "additive",
        |e| e.parameters.key_weight = Some(numbers(2, 3, 1)),
        "`key weight` is 2, expected 3",
    );
    of(
        "additive",
        |e| e.parameters.vector = Some(vec![1.0]),
        "`vector` is 1, expected 3",
    );
    of(
        "weight-norm-additive",
        |e| e.parameters.vector = Some(vec![0.0; 3]),
        "needs a direction",
    );
    of(
        "location",
        |e| e.parameters.query_weight = None,
        "`query weight` is 3, expected 4",
    );
    of(
        "gaussian-window",
        |e| e.queries = numbers(3, 4, 1),
        "a multiple of 3",
    );
    of(
        "gaussian-window",
        |e| e.normalizer = Normalizer::Softmax,
        "its weights are final",
    );
    of(
        "dot",
        |e| {
            e.normalizer = Normalizer::Addressing;
            e.parameters.shift = Some(vec![0.5; 2]);
        },
        "an odd number",
    );
    assert!(matches!(
        Example::new("dott"),
        Err(ExplainError::Unknown {
            what: "mechanism",
            ..
        })
    ));
    assert!(matches!(
        Normalizer::named("soft"),
        Err(ExplainError::Unknown {
            what: "normaliser",
            ..
        })
    ));
    assert!(matches!(
        presets::find("word"),
        Err(ExplainError::Unknown { what: "preset", .. })
    ));
}

#[test]
fn parameters_that_nothing_reads_are_refused() {
    let all = Parameters {
        scale: Some(1.0),
        softcap: Some(1.0),
        query_weight: Some(numbers(3, 3, 1)),
        key_weight: Some(numbers(3, 3, 1)),
        vector: Some(vec![1.0; 3]),
        bias: Some(vec![1.0; 3]),
        gain: Some(1.0),
        beta: Some(1.0),
        sink: Some(1.0),
        sigmoid_bias: Some(1.0),
        draw: Some(0.5),
        previous: Some(vec![1.0; 3]),
        gate: Some(0.5),
        shift: Some(vec![1.0; 3]),
        sharpening: Some(2.0),
        position_weight: Some(numbers(3, 3, 1)),
        position_vector: Some(vec![1.0; 3]),
    };
    assert_eq!(all.given().count(), 17);
    assert_eq!(Parameters::default().given().count(), 0);
    for mechanism in &catalogue::MECHANISMS {
        let mut example = Example::on_words(mechanism.name).unwrap();
        let taken = example.takes();
        assert!(taken.contains(&"softcap"), "{}", mechanism.name);
        example.parameters = all.clone();
        let Err(ExplainError::NotTaken {
            parameter,
            taken: named,
            ..
        }) = explain(&example)
        else {
            panic!("{} takes everything", mechanism.name);
        };
        assert!(
            !taken.contains(&parameter) && named == taken,
            "{}",
            mechanism.name
        );
    }
    let takes = |name: &str| Example::new(name).unwrap().takes();
    assert_eq!(takes("dot"), ["softcap"]);
    assert_eq!(takes("scaled-dot"), ["scale", "softcap"]);
    assert_eq!(takes("general"), ["softcap", "query weight"]);
    assert_eq!(
        takes("additive"),
        ["softcap", "query weight", "key weight", "vector", "bias"]
    );
    assert_eq!(takes("local-m"), ["softcap", "half width"]);
    assert_eq!(
        takes("local-p"),
        [
            "softcap",
            "half width",
            "position weight",
            "position vector"
        ]
    );
    assert_eq!(
        takes("ntm"),
        ["softcap", "beta", "previous", "gate", "shift", "sharpening"]
    );
    // A normaliser that was chosen adds its own parameters.
    let mut example = Example::on_words("dot").unwrap();
    example.parameters.sink = Some(1.0);
    let error = explain(&example).unwrap_err().to_string();
    assert_eq!(error, "`sink` is no parameter of dot, which has softcap");
    example.normalizer = Normalizer::Sink;
    assert!(explain(&example).is_ok());
    example.parameters.draw = Some(0.5);
    let error = explain(&example).unwrap_err().to_string();
    assert_eq!(
        error,
        "`draw` is no parameter of dot with sink weights, which has softcap, sink"
    );
}

#[test]
fn examples_on_the_words_show_what_is_peculiar() {
    let worked = |name: &str| explain(&Example::on_words(name).unwrap()).unwrap();
    // The window of local-p holds more than one key.
    let local = worked("local-p");
    for (seen, bumps) in local.seen.iter().zip(&local.bumps) {
        assert!(seen.iter().filter(|&&seen| seen).count() > 1, "{seen:?}");
        assert_eq!((bumps[0].height, bumps[0].sharpness), (1.0, 0.5));
    }
    // The weight that goes to no key has a column, and rows sum to 1 with it.
    for (name, column) in [("sink", "sink"), ("monotonic", "none")] {
        let worked = worked(name);
        let weights = worked
            .steps
            .iter()
            .find(|step| step.name == "weights")
            .unwrap();
        assert_eq!(weights.table.columns.last().unwrap(), column);
        for row in &weights.table.rows {
            let sum: f64 = row.cells.iter().flatten().sum();
            assert!(
                (sum - 1.0).abs() < 1e-12 && row.cells[3].unwrap() > 0.0,
                "{row:?}"
            );
        }
    }
    // Every stage of NTM's addressing changes the weights.
    let ntm = worked("ntm");
    let stages = ntm
        .steps
        .iter()
        .filter(|step| step.quantity == Quantity::Weights);
    let stages: Vec<_> = stages.map(|step| &step.table.rows).collect();
    assert_eq!(stages.len(), 4);
    assert!(stages.windows(2).all(|two| two[0] != two[1]));
    // The sum of Graves's Gaussians is the window.
    let graves = worked("gaussian-window");
    for (bumps, weights) in graves.bumps.iter().zip(&graves.weights) {
        for (key, weight) in weights.iter().enumerate() {
            let sum: f64 = bumps.iter().map(|bump| bump.at(key as f64)).sum();
            assert!((sum - weight).abs() < 1e-12);
        }
    }
    // Scores at or below the threshold have weight 0, others have more; both cases occur.
    for name in ["sparsemax", "entmax15"] {
        let worked = worked(name);
        for query in 0..3 {
            for key in 0..3 {
                let above = worked.scores[query][key] > worked.thresholds[query];
                assert_eq!(worked.weights[query][key] > 0.0, above, "{name}");
            }
        }
        assert!(worked.weights.concat().contains(&0.0), "{name}");
    }
    assert!(worked("dot").thresholds.is_empty() && worked("dot").bumps.is_empty());
}

#[test]
fn every_kind_of_mask_is_read_from_text() {
    let drawn = |text: &str| masks::Expression::parse(text).and_then(|mask| mask.picture(4, 4));
    let cases = [
        ("all", "■■■■ ■■■■ ■■■■ ■■■■"),
        ("causal", "■··· ■■·· ■■■· ■■■■"),
        ("causal:upper-left", "■··· ■■·· ■■■· ■■■■"),
        ("padding:3", "■■■· ■■■· ■■■· ■■■·"),
        ("keep:1,0,1,1", "■·■■ ■·■■ ■·■■ ■·■■"),
        ("window:2", "■■·· ■■■· ·■■■ ··■■"),
        ("window:2:2", "■·■· ·■·■ ■·■· ·■·■"),
        ("global:1", "·■·· ■■■■ ·■·· ·■··"),
        ("longformer:1:0", "■■■■ ■■·· ■·■· ■··■"),
        ("local-m:1", "■■·· ■■■· ·■■■ ··■■"),
        ("local-p:1:0,3,2.4,0.5", "■■·· ··■■ ··■■ ■■··"),
        ("block:2", "■■·· ■■·· ··■■ ··■■"),
        ("block-sparse:2:10/11", "■■·· ■■·· ■■■■ ■■■■"),
        ("chunked:2:1", "■■·· ■■·· ■■■■ ■■■■"),
        ("document:0,0,1,0", "■■·■ ■■·■ ··■· ■■·■"),
        ("prefix:2", "■■·· ■■·· ■■■· ■■■■"),
        ("window:2 & causal", "■··· ■■·· ·■■· ··■■"),
        ("!causal | block:1", "■■■■ ·■■■ ··■■ ···■"),
        ("!(causal & padding:2)", "·■■■ ··■■ ··■■ ··■■"),
    ];
    for (text, expected) in cases {
        let found = drawn(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(found.trim_end().replace('\n', " "), expected, "{text}");
    }
    let named: Vec<&str> = masks::KINDS.iter().map(|kind| kind.name).collect();
    assert!(
        named
            .iter()
            .all(|name| cases.iter().any(|(text, _)| text.starts_with(name)))
    );
    // The two alignments differ where the numbers of queries and keys differ.
    let aligned = |text: &str| {
        masks::Expression::parse(text)
            .unwrap()
            .picture(2, 4)
            .unwrap()
    };
    assert_eq!(aligned("causal"), "■■■·\n■■■■\n");
    assert_eq!(aligned("causal:upper-left"), "■···\n■■··\n");
    // Lists and tables of blocks determine the numbers of queries and keys.
    for (text, size) in [
        ("document:0,0,1", (Some(3), Some(3))),
        ("local-p:1:0,1", (Some(2), None)),
        ("keep:110", (None, Some(3))),
        ("block-sparse:2:101/111", (Some(4), Some(6))),
        ("causal & block-sparse:2:1", (Some(2), Some(2))),
        ("block-sparse:99999999:1", (None, None)),
        ("block-sparse:0:1", (None, None)),
        ("causal", (None, None)),
    ] {
        let mask = masks::Expression::parse(text).unwrap();
        assert_eq!(mask.natural_size(), size, "{text}");
    }
    for (text, names) in [
        ("window:2 & !longformer:2:0", true),
        ("causal", false),
        ("block:2 | global:1", true),
    ] {
        let mask = masks::Expression::parse(text).unwrap();
        assert_eq!(mask.names_positions(), names, "{text}");
    }

    for (text, words) in [
        ("", "a mask is missing"),
        ("causal &", "a mask is missing"),
        ("(causal", "not closed"),
        ("causal)", "left over"),
        ("windw:3", "there is no mask \"windw\""),
        ("window", "expected window:WIDTH[:DILATION]"),
        ("window:3:1:1", "expected window"),
        ("window:0", "`window width` is 0"),
        ("causal:middle", "expected causal[:lower-right|upper-left]"),
        ("padding:5", "a length of 5, but there are 4 keys"),
        ("keep:1,2", "expected keep"),
        ("local-p:1:0", "1 places for 4 queries"),
        ("local-p:1:nan,0,0,0", "expected local-p"),
        ("block-sparse:2:1x/11", "expected block-sparse"),
        ("block-sparse:2:1", "block table"),
        ("document:0,0", "expected 4 positions"),
        ("window:99999999999999999999", "expected window"),
    ] {
        let error = drawn(text).unwrap_err().to_string();
        assert!(error.contains(words), "{text:?}: {error}");
    }
    assert!(drawn(&"!".repeat(100_000)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_text_makes_a_mask_panic(text in "[a-z:,0-9&|!() -]{0,40}", queries in 1usize..6, keys in 1usize..6) {
        if let Ok(mask) = masks::Expression::parse(&text) {
            let _ = mask.picture(queries, keys);
        }
    }

    #[test]
    fn simplex_normalisers_sum_to_one(scores in proptest::collection::vec(-20f64..20.0, 1..8)) {
        for kind in [Normalizer::Softmax, Normalizer::Sparsemax, Normalizer::Entmax15, Normalizer::Hardmax,
            Normalizer::HardSample, Normalizer::Addressing] {
            let mut example = Example::new("dot").unwrap();
            example.normalizer = kind;
            example.queries = vec![vec![1.0]];
            example.keys = scores.iter().map(|&score| vec![score]).collect();
            let weights = explain(&example).unwrap().weights;
            let sum: f64 = weights[0].iter().sum();
            prop_assert!((sum - 1.0).abs() < 1e-9, "{kind:?}: {sum}");
            prop_assert!(weights[0].iter().all(|&w| w >= 0.0));
        }
    }
}

#[test]
fn filled_parameters_are_the_defaults() {
    for mechanism in &catalogue::MECHANISMS {
        let example = Example::on_words(mechanism.name).unwrap();
        let mut filled = example.clone();
        filled.parameters = example.filled();
        let (usual, filled) = (explain(&example).unwrap(), explain(&filled).unwrap());
        for (a, b) in usual.weights.concat().iter().zip(filled.weights.concat()) {
            assert!((a - b).abs() < 1e-12, "{}: {a} {b}", mechanism.name);
        }
    }
}
