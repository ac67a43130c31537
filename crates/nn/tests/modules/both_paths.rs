//! One call by the fused path, by the plain one and by the plain one in f64, compared forward and backward.
//!
//! `max|fused - ref| <= 2 max|plain f32 - ref| + rounding`, 3 for gradients; the reference is the plain path in f64.

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{DType, Gradients, Tensor, TensorData},
};
use regard_nn::{
    Attention, AttentionOptions, Observe, Path,
    dropout::DropoutRng,
    mask::{Alignment, Mask, PaddingMask},
    position::Alibi,
};

use crate::{
    mechanisms::SIZE,
    support::{device, values},
};

pub const BATCH: usize = 2;
pub const HEADS: usize = 4;
const VALUE: usize = 3;

/// Masks of every kind and some combinations, for `queries` and `keys` of which the kernel knows some by name, some
/// by their parts, and some only as a table.
pub fn masks(queries: usize, keys: usize) -> Vec<(&'static str, Mask)> {
    let padding = || {
        Mask::padding(PaddingMask::from_lengths(
            &[keys, keys / 2],
            keys,
            &device(),
        ))
    };
    let flags = [0, 1].map(|b| (0..keys).map(|j| !(j + b).is_multiple_of(3)).collect());
    let scattered = Mask::padding(PaddingMask::from_flags(&flags, &device()).unwrap());
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

/// One call, to be computed by both paths.
pub struct Setting<'a> {
    pub attention: &'a Attention,
    pub mask: &'a Mask,
    pub sizes: [usize; 3], // key heads, queries, keys
    pub bias: Option<[usize; 4]>,
    pub alibi: Option<&'a Alibi>,
    pub seed: Option<u64>,
    pub observe: Observe,
    /// Whether both paths report the log-sum-exp, so that it can be compared.
    pub lse: bool,
}

pub fn numbers<const D: usize>(x: Tensor<D>) -> Vec<f64> {
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
        let mut noise = self.seed.map(DropoutRng::seeded);
        let mut call = AttentionOptions::new(self.observe.clone())
            .mask(self.mask.clone())
            .path(path);
        call.bias = bias.clone();
        call.alibi = self.alibi;
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
        // Rows in which nothing is seen have an lse of -∞ on both paths.
        let lse = attended.lse.filter(|_| self.lse);
        outputs.extend(lse.map(|lse| numbers(lse.clamp_min(-1e4))));
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

    /// Compares fused and plain; returns how many tensors were compared.
    pub fn compare(&self, name: &str) -> usize {
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
pub fn distance(found: &[f64], exact: &[f64]) -> f64 {
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
        // A small case may be exact in f32 by chance, such as a row of one key, whose weight is 1: roundings of the
        // size of the tensor and of the inputs (1) are always allowed.
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
