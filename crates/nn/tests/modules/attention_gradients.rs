//! Gradients by finite differences in f64, of every input and every weight of every mechanism.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{DType, Gradients, Tensor, TensorData},
};
use regard_nn::{
    Attention, AttentionOptions, Observe,
    dropout::DropoutRng,
    initialize::Initializer,
    mask::{Mask, PaddingMask, PositionPredictor},
    normalize::{Form, Normalize},
    score::Score,
};

use crate::{
    mechanisms::{SIZE, is_impossible, normalisers, scores},
    support::{device, values},
};

const SHAPES: [[usize; 4]; 3] = [[2, 2, 3, SIZE], [2, 1, 4, SIZE], [2, 1, 4, 3]];

/// Every weight as f64, drawn from its place; `nudge` moves one number of one weight.
struct Weights {
    next: usize,
    nudge: Option<(usize, usize, f64)>,
    sizes: Vec<usize>,
}

impl ModuleMapper for Weights {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let shape = tensor.dims();
        let count: usize = shape.iter().product();
        let name = format!("weight {}", self.next);
        let mut drawn: Vec<f64> = values(&name, count, 0.5)
            .into_iter()
            .map(f64::from)
            .collect();
        if let Some((weight, at, by)) = self.nudge
            && weight == self.next
        {
            drawn[at] += by;
        }
        self.next += 1;
        self.sizes.push(count);
        let data = TensorData::new(drawn, shape);
        let tensor = Tensor::from_data(data, (&tensor.device(), DType::F64)).require_grad();
        Param::from_mapped_value(id, tensor, mapper)
    }
}

fn double(attention: &Attention, nudge: Option<(usize, usize, f64)>) -> (Attention, Vec<usize>) {
    let mut weights = Weights {
        next: 0,
        nudge,
        sizes: vec![],
    };
    let attention = attention.clone().map(&mut weights);
    (attention, weights.sizes)
}

fn input(i: usize, nudge: Option<(usize, f64)>) -> Tensor<4> {
    let count = SHAPES[i].iter().product();
    let mut drawn: Vec<f64> = values(&format!("input {i}"), count, 1.0)
        .into_iter()
        .map(f64::from)
        .collect();
    if let Some((at, by)) = nudge {
        drawn[at] += by;
    }
    let data = TensorData::new(drawn, SHAPES[i]);
    Tensor::from_data(data, (&device(), DType::F64)).require_grad()
}

/// The loss, with the weights observed with their gradient where asked.
fn loss(attention: &Attention, x: &[Tensor<4>; 3], seed: Option<u64>) -> Tensor<1> {
    let [query, key, value] = x.clone();
    let mut noise = seed.map(DropoutRng::seeded);
    let mask =
        Mask::padding(PaddingMask::from_lengths(&[4, 3], 4, &device())) & !Mask::global(&[9]);
    let mut call = AttentionOptions::new(Observe::Entropy)
        .mask(mask)
        .differentiable();
    call.noise = noise.as_mut();
    let attended = attention.forward_with(query, key, value, call).unwrap();
    let upstream = |shape: [usize; 4]| {
        let drawn = values("upstream", shape.iter().product(), 1.0);
        Tensor::<4>::from_data(TensorData::new(drawn, shape), &device()).cast(DType::F64)
    };
    let context = attended.context;
    let read = (context.clone() * upstream(context.dims())).sum();
    read + attended.entropy.unwrap().sum() * 0.3
}

/// The gradient of every weight, in the order of the module; zeros where none arrived.
fn slopes(attention: &Attention, gradients: &Gradients) -> Vec<Vec<f64>> {
    struct Visitor<'a>(&'a Gradients, Vec<Vec<f64>>);
    impl ModuleVisitor for Visitor<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            self.1.push(match tensor.grad(self.0) {
                Some(slope) => slope.into_data().iter::<f64>().collect(),
                None => vec![0.0; tensor.dims().iter().product()],
            });
        }
    }
    let mut visitor = Visitor(gradients, vec![]);
    attention.visit(&mut visitor);
    visitor.1
}

fn number(x: Tensor<1>) -> f64 {
    x.into_scalar::<f64>()
}

/// Compares the gradient of every third number of all inputs and weights; returns how many.
fn check(name: &str, attention: &Attention, seed: Option<u64>) -> usize {
    const STEP: f64 = 1e-5;
    let (double_attention, sizes) = double(attention, None);
    let x = [0, 1, 2].map(|i| input(i, None));
    // Some mechanisms do not use some inputs; this adds all of them to the loss.
    let tie = (x[0].clone().sum() + x[1].clone().sum()) * 0.0;
    let gradients = (loss(&double_attention, &x, seed) + tie).backward();
    let mut checked = 0;
    let mut compare = |what: String, found: f64, lower: f64, upper: f64| {
        let expected = (upper - lower) / (2.0 * STEP);
        let tolerance = 1e-7 * (1.0 + expected.abs());
        assert!(
            (found - expected).abs() <= tolerance,
            "{name}: {what} {found}, expected {expected}"
        );
        checked += 1;
    };
    for (i, leaf) in x.iter().enumerate() {
        let slope: Vec<f64> = leaf
            .grad(&gradients)
            .unwrap()
            .into_data()
            .iter::<f64>()
            .collect();
        for at in (0..slope.len()).step_by(3) {
            let moved = |by| {
                let mut x = x.clone();
                x[i] = input(i, Some((at, by)));
                number(loss(&double_attention, &x, seed))
            };
            compare(
                format!("input {i}[{at}]"),
                slope[at],
                moved(-STEP),
                moved(STEP),
            );
        }
    }
    let slopes = slopes(&double_attention, &gradients);
    assert_eq!(slopes.len(), sizes.len(), "{name}");
    for (weight, slope) in slopes.iter().enumerate() {
        for at in (0..slope.len()).step_by(3) {
            let moved = |by| {
                let (attention, _) = double(attention, Some((weight, at, by)));
                number(loss(&attention, &x, seed))
            };
            compare(
                format!("weight {weight}[{at}]"),
                slope[at],
                moved(-STEP),
                moved(STEP),
            );
        }
    }
    checked
}

/// Whether the gradient of a mechanism is that of its forward pass (hard attention's is not, by design).
fn is_smooth(normalize: &Normalize) -> bool {
    match normalize {
        Normalize::Hardmax(_) | Normalize::HardSample(_) => false,
        Normalize::Monotonic(monotonic) => monotonic.form() != Form::Hard,
        _ => true,
    }
}

#[test]
fn every_score_and_every_normaliser() {
    let (mut mechanisms, mut checked) = (0, 0);
    let all = scores();
    for (s, score) in all.iter().enumerate() {
        for (n, normalize) in normalisers(2).into_iter().enumerate() {
            // All scores with softmax and the identity; all normalisers with one score.
            let chosen = s == 2 || n == 0 || matches!(normalize, Normalize::Identity(_));
            if !chosen || is_impossible(score, &normalize) || !is_smooth(&normalize) {
                continue;
            }
            let attention = Attention::new(score.clone()).with_normalize(normalize);
            let name = format!("{} {}", score.name(), attention.normalize.name());
            checked += check(&name, &attention, None);
            mechanisms += 1;
        }
    }
    // 10 scores with softmax, 11 with the identity, and 8 more normalisers.
    assert_eq!(mechanisms, 29);
    assert!(checked > 29 * 20, "{checked}");
}

#[test]
fn what_stands_around_the_words() {
    let init = &mut Initializer::new(1, &device());
    let dot = || Attention::new(Score::dot());
    for (name, attention, seed) in [
        ("softcap", dot().with_softcap(0.7), None),
        ("causal", dot().with_mask(Mask::causal()), None),
        ("dropout", dot().with_dropout(0.3), Some(4)),
        (
            "local-p",
            dot().with_predictor(PositionPredictor::new(SIZE, 2, init)),
            None,
        ),
    ] {
        assert!(check(name, &attention, seed) >= 20);
    }
}
