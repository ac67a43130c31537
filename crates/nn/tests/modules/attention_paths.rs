//! The fused path against the plain one: every combination that a kernel serves, both ways, forward and backward;
//! and every other one is refused by name, never computed by something else in silence.
//!
//! The reference is the plain path in f64. `max|fused - ref| <= 2 max|plain f32 - ref| + rounding`, 3 for gradients.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{DType, Gradients, Tensor, TensorData},
};
use regard_nn::{
    Attention, Call, Observe, Path,
    dropout::Noise,
    initialize::Initializer,
    mask::{Alignment, Keep, Mask, PositionPredictor},
    normalize::{Normalize, Sink},
    score::Score,
};

use crate::{
    attention_properties::{SIZE, is_impossible, normalisers, scores},
    support::{device, values},
};

const BATCH: usize = 2;
const HEADS: usize = 4;
const VALUE: usize = 3;

/// Masks of every kind and some combinations, for `queries` and `keys` of which the kernel knows some by name, some
/// by their parts, and some only as a table.
fn masks(queries: usize, keys: usize) -> Vec<(&'static str, Mask)> {
    let padding = || Mask::padding(Keep::from_lengths(&[keys, keys / 2], keys, &device()));
    let flags = [0, 1].map(|b| (0..keys).map(|j| !(j + b).is_multiple_of(3)).collect());
    let scattered = Mask::padding(Keep::from_flags(&flags, &device()).unwrap());
    let window = |width| Mask::window(width).unwrap();
    let upper_left = || Mask::causal_aligned(Alignment::UpperLeft);
    let of = |length: usize| [0, 1].map(|b| (0..length).map(|i| i / (2 + b)).collect());
    let documents = Mask::documents(&of(queries), &of(keys));
    let table: Vec<Vec<bool>> = (0..queries.div_ceil(2))
        .map(|a| (0..keys.div_ceil(3)).map(|b| (a + b) % 2 == 0).collect())
        .collect();
    let blocks = Mask::block_sparse(2, 3, &table).unwrap();
    let by_head = Mask::function("by head", |at| !(at.head + at.key).is_multiple_of(3));
    vec![
        ("all", Mask::all()),
        ("nothing", !Mask::all()),
        ("causal", Mask::causal()),
        ("causal upper left", upper_left()),
        ("padding", padding()),
        ("scattered padding", scattered.clone()),
        ("padding and causal", padding() & Mask::causal()),
        ("two paddings", padding() & scattered),
        ("window", window(2)),
        ("two windows", window(3) & window(2)),
        (
            "sliding and padding",
            window(3) & Mask::causal() & padding(),
        ),
        ("two alignments", window(2) & upper_left()),
        ("dilated", Mask::dilated_window(2, 2).unwrap()),
        ("longformer", Mask::longformer(2, 1, &[1]).unwrap()),
        ("local-m", Mask::local_monotonic(1)),
        ("chunked", Mask::chunked(2, 1).unwrap() & Mask::causal()),
        ("block-sparse", blocks),
        ("document", documents & Mask::causal()),
        ("prefix", Mask::prefix(&[2, 1]) & padding()),
        ("prefix and window", Mask::prefix(&[2, 1]) & window(2)),
        ("by head", by_head | Mask::causal()),
        ("not causal", !Mask::causal()),
    ]
}

/// The weights of a module in another precision.
struct Precision(DType);

impl ModuleMapper for Precision {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let (shape, device) = (tensor.dims(), tensor.device());
        let data = TensorData::new(numbers(tensor), shape);
        let tensor = Tensor::from_data(data, (&device, self.0)).require_grad();
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// Everything of one run: outputs first, then gradients, each a list of numbers.
struct Run {
    outputs: Vec<Vec<f64>>,
    gradients: Vec<Vec<f64>>,
}

struct Setting<'a> {
    attention: &'a Attention,
    mask: &'a Mask,
    sizes: [usize; 3], // key heads, queries, keys
    bias: Option<[usize; 4]>,
    seed: Option<u64>,
    observe: Observe,
}

fn numbers<const D: usize>(x: Tensor<D>) -> Vec<f64> {
    x.into_data().iter::<f64>().collect()
}

impl Setting<'_> {
    fn run(&self, path: Path, dtype: DType) -> Result<Run, String> {
        let attention = self.attention.clone().map(&mut Precision(dtype));
        let [key_heads, queries, keys] = self.sizes;
        let leaf = |name: &str, shape: [usize; 4]| {
            let data = TensorData::new(values(name, shape.iter().product(), 1.0), shape);
            Tensor::<4>::from_data(data, (&device(), dtype)).require_grad()
        };
        let leaves = [
            leaf("query", [BATCH, HEADS, queries, SIZE]),
            leaf("key", [BATCH, key_heads, keys, SIZE]),
            leaf("value", [BATCH, key_heads, keys, VALUE]),
        ];
        let bias = self.bias.map(|shape| leaf("bias", shape));
        let mut noise = self.seed.map(Noise::seeded);
        let mut call = Call::new(self.observe.clone())
            .mask(self.mask.clone())
            .path(path);
        call.bias = bias.clone();
        call.noise = noise.as_mut();
        let [query, key, value] = leaves.clone();
        let attended = attention
            .forward_with(query, key, value, call)
            .map_err(|error| error.to_string())?;
        let upstream = values("upstream", BATCH * HEADS * queries * VALUE, 1.0);
        let upstream = TensorData::new(upstream, attended.context.dims());
        let upstream = Tensor::<4>::from_data(upstream, &device()).cast(dtype);
        let tied = leaves
            .iter()
            .fold((attended.context.clone() * upstream).sum(), |sum, leaf| {
                sum + leaf.clone().sum() * 0.0
            });
        let all = tied.backward();
        let mut outputs = vec![numbers(attended.context)];
        // Rows of nothing have an lse of -∞ on both paths.
        outputs.extend(attended.lse.map(|lse| numbers(lse.clamp_min(-1e4))));
        outputs.extend(attended.weights.map(numbers));
        outputs.extend(attended.entropy.map(numbers));
        outputs.extend(attended.column_sums.map(numbers));
        outputs.extend(attended.top.map(|top| numbers(top.weights)));
        let mut gradients: Vec<Vec<f64>> = leaves
            .iter()
            .map(|leaf| numbers(leaf.grad(&all).unwrap()))
            .collect();
        gradients.extend(
            bias.map(|bias| numbers(bias.grad(&all).unwrap_or_else(|| bias.zeros_like().inner()))),
        );
        gradients.extend(slopes(&attention, &all));
        Ok(Run { outputs, gradients })
    }

    /// Compares fused and plain; gives how many tensors were compared.
    fn compare(&self, name: &str) -> usize {
        let [fused, plain] = [Path::Fused, Path::Plain].map(|path| self.run(path, DType::F32));
        let (fused, plain) = (
            fused.unwrap_or_else(|error| panic!("{name}: {error}")),
            plain.unwrap(),
        );
        let exact = self.run(Path::Plain, DType::F64).unwrap();
        let outputs = within(name, 2.0, &fused.outputs, &plain.outputs, &exact.outputs);
        outputs
            + within(
                name,
                3.0,
                &fused.gradients,
                &plain.gradients,
                &exact.gradients,
            )
    }
}

/// The largest distance of all numbers from `exact`.
fn distance(found: &[f64], exact: &[f64]) -> f64 {
    assert_eq!(found.len(), exact.len());
    found
        .iter()
        .zip(exact)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max)
}

fn within(name: &str, k: f64, fused: &[Vec<f64>], plain: &[Vec<f64>], exact: &[Vec<f64>]) -> usize {
    assert_eq!([fused.len(), plain.len()], [exact.len(); 2], "{name}");
    for (i, exact) in exact.iter().enumerate() {
        let size = exact.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        // A small case may be lucky and be exact in f32, such as a row of one key, whose weight is 1: roundings of
        // the tensor's size and of the inputs' (1) are always allowed.
        let rounding = 2.0 * f64::from(f32::EPSILON) * (size + 1.0);
        let tolerance = k * distance(&plain[i], exact) + rounding;
        let found = distance(&fused[i], exact);
        assert!(
            found <= tolerance,
            "{name}, tensor {i}: off by {found:e}, allowed {tolerance:e}"
        );
    }
    exact.len()
}

fn slopes(attention: &Attention, gradients: &Gradients) -> Vec<Vec<f64>> {
    struct Visitor<'a>(&'a Gradients, Vec<Vec<f64>>);
    impl ModuleVisitor for Visitor<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            self.1.push(match tensor.grad(self.0) {
                Some(slope) => numbers(slope),
                None => vec![0.0; tensor.dims().iter().product()],
            });
        }
    }
    let mut visitor = Visitor(gradients, vec![]);
    attention.visit(&mut visitor);
    visitor.1
}

const OBSERVATIONS: [fn() -> Observe; 5] = [
    || Observe::Nothing,
    || Observe::Weights,
    || Observe::Entropy,
    || Observe::ColumnSums,
    || Observe::TopK(2),
];

#[test]
fn every_combination_of_the_dot_kernel() {
    let init = &mut Initializer::new(2, &device());
    let normalisers = [
        Normalize::softmax(),
        Normalize::Sink(Sink::learned(HEADS, init)),
        Normalize::Sink(Sink::fixed(0.5)),
    ];
    let (mut combinations, mut tensors) = (0, 0);
    for score in scores() {
        let served = !matches!(
            score,
            Score::Additive(_)
                | Score::WeightNormAdditive(_)
                | Score::Distance(_)
                | Score::Location(_)
                | Score::GaussianWindow(_)
        );
        if !served {
            continue;
        }
        for normalize in &normalisers {
            for (m, sizes) in [[4, 3, 5], [2, 6, 6], [1, 5, 3]].into_iter().enumerate() {
                for (name, mask) in masks(sizes[1], sizes[2]) {
                    let around = combinations % 8;
                    let mut attention =
                        Attention::new(score.clone()).with_normalize(normalize.clone());
                    if around & 1 == 1 {
                        attention = attention.with_softcap(0.8);
                    }
                    if around & 2 == 2 {
                        attention = attention.with_dropout(0.25);
                    }
                    let shapes = [
                        [BATCH, HEADS, sizes[1], sizes[2]],
                        [1, HEADS, 1, sizes[2]],
                        [1, 1, sizes[1], sizes[2]],
                    ];
                    let setting = Setting {
                        attention: &attention,
                        mask: &mask,
                        sizes,
                        bias: (around & 4 == 4).then_some(shapes[m]),
                        seed: (around & 2 == 2).then_some(combinations as u64),
                        observe: OBSERVATIONS[combinations % 5](),
                    };
                    let name = format!("{} {} {name} {around}", score.name(), normalize.name());
                    tensors += setting.compare(&name);
                    combinations += 1;
                }
            }
        }
    }
    assert_eq!(combinations, 6 * 3 * 3 * 22);
    assert!(tensors > 6 * combinations, "{tensors}");
}

/// Softcap, bias and dropout in all their combinations with each mask.
#[test]
fn everything_around_the_scores() {
    let mut combinations = 0;
    for (name, mask) in masks(5, 7) {
        for around in 0..8 {
            let mut attention = Attention::new(Score::scaled_dot());
            if around & 1 == 1 {
                attention = attention.with_softcap(0.8);
            }
            if around & 2 == 2 {
                attention = attention.with_dropout(0.25);
            }
            let setting = Setting {
                attention: &attention,
                mask: &mask,
                sizes: [2, 5, 7],
                bias: (around & 4 == 4).then_some([1, HEADS, 5, 7]),
                seed: Some(around),
                observe: Observe::Rows(vec![4, 0]),
            };
            setting.compare(&format!("{name} {around}"));
            combinations += 1;
        }
    }
    assert_eq!(combinations, 22 * 8);
}

/// Sizes around the kernel's panels and tiles, and observations over several blocks of queries.
#[test]
fn awkward_sizes() {
    for (i, (queries, keys)) in [(1, 130), (97, 33), (130, 257), (65, 64)]
        .into_iter()
        .enumerate()
    {
        for mask in [
            Mask::all(),
            Mask::causal(),
            Mask::longformer(9, 1, &[1]).unwrap(),
        ] {
            let attention = Attention::new(Score::scaled_dot());
            let setting = Setting {
                attention: &attention,
                mask: &mask,
                sizes: [2, queries, keys],
                bias: None,
                seed: None,
                observe: OBSERVATIONS[1 + i](),
            };
            setting.compare(&format!("{queries} x {keys} {mask:?}"));
        }
    }
}

/// Of all scores and normalisers, those a kernel serves run fused, and the others say what is not served.
#[test]
fn what_no_kernel_serves_is_refused() {
    let (mut served, mut refused, mut impossible) = (0, 0, 0);
    for score in scores() {
        for normalize in normalisers(1) {
            if is_impossible(&score, &normalize) {
                impossible += 1;
                continue;
            }
            let name = normalize.name();
            let attention = Attention::new(score.clone()).with_normalize(normalize);
            let x = Tensor::<4>::ones([1, 1, 3, SIZE], &device());
            let call = Call::default().path(Path::Fused);
            match attention.forward_with(x.clone(), x.clone(), x, call) {
                Ok(_) => served += 1,
                Err(error) => {
                    let message = error.to_string();
                    let by_name = message.contains(score.name()) || message.contains(name);
                    assert!(by_name && message.ends_with("use Path::Auto"), "{message}");
                    refused += 1;
                }
            }
        }
    }
    // Six products with three normalisers, two additive scores with softmax.
    assert_eq!((served, refused, impossible), (6 * 3 + 2, 131, 14));

    let init = &mut Initializer::new(2, &device());
    let x = |size| Tensor::<4>::ones([1, 1, 3, size], &device());
    let message = |attention: Attention, x: Tensor<4>, call: Call<'_>| {
        let call = call.path(Path::Fused);
        attention
            .forward_with(x.clone(), x.clone(), x, call)
            .unwrap_err()
            .to_string()
    };
    let dot = || Attention::new(Score::dot());
    let predictor = PositionPredictor::new(SIZE, 2, init);
    let found = message(dot().with_predictor(predictor), x(SIZE), Call::default());
    assert!(found.contains("local-p"), "{found}");
    let found = message(dot(), x(257), Call::default());
    assert!(
        found.contains("a size of 257 (the kernel takes up to 256)"),
        "{found}"
    );
    let found = message(dot(), x(SIZE).cast(DType::F64), Call::default());
    assert!(found.contains("tensors other than f32"), "{found}");
    let additive = Attention::new(scores().remove(4));
    let found = message(
        additive.clone(),
        x(SIZE),
        Call::default().mask(Mask::causal()),
    );
    assert!(found.contains("a mask other than padding"), "{found}");
    let found = message(additive.with_softcap(1.0), x(SIZE), Call::default());
    assert!(found.contains("a softcap"), "{found}");
}

/// The same bits on any number of threads, and with memory laid out `[batch, length, heads, size]`.
#[test]
fn layouts_and_threads_change_no_bit() {
    let drawn = |name: &str, shape: [usize; 4]| {
        let data = TensorData::new(values(name, shape.iter().product(), 1.0), shape);
        Tensor::<4>::from_data(data, &device())
    };
    let length_first = ["query", "key", "value"].map(|name| drawn(name, [2, 97, 3, 40]));
    let attention = Attention::new(Score::scaled_dot()).with_mask(Mask::causal());
    let run = |copy: bool, threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| {
            let leaves = length_first.clone().map(Tensor::require_grad);
            let [query, key, value] = leaves.clone().map(|x| {
                let x = x.swap_dims(1, 2);
                // Adding 0 writes a contiguous copy.
                if copy { x + 0.0 } else { x }
            });
            let attended = attention
                .forward(query, key, value, Observe::Nothing)
                .unwrap();
            let all = (attended.context.clone() * attended.context.clone())
                .sum()
                .backward();
            let mut bits = vec![numbers(attended.context)];
            bits.extend(leaves.iter().map(|leaf| numbers(leaf.grad(&all).unwrap())));
            bits
        })
    };
    let first = run(true, 1);
    for (copy, threads) in [(false, 1), (true, 2), (false, 3)] {
        assert!(run(copy, threads) == first, "{copy} {threads}");
    }
}
