//! The backward pass against its definition, and the definition against finite differences.

mod definition;
mod interleaved;
mod options;
mod properties;
mod stored;

use super::{Gradients, Inputs, backward_at};
use crate::{
    Alignment, Attention, Blocks, Documents, Dropout, Element, KernelError, Offsets, RelativeBias,
    View, ViewMut, Window,
    dot::{forward_at, reference},
    simd::Level,
    testing::{assert_close, difference, probe, random, unless_miri, wide},
};

/// Sizes of one call.
#[derive(Debug, Clone, Copy)]
struct Shape {
    batch: usize,
    heads: usize,
    key_heads: usize,
    queries: usize,
    keys: usize,
    dim: usize,
    value_dim: usize,
}

impl Shape {
    fn views(&self) -> [[usize; 4]; 3] {
        [
            [self.batch, self.heads, self.queries, self.dim],
            [self.batch, self.key_heads, self.keys, self.dim],
            [self.batch, self.key_heads, self.keys, self.value_dim],
        ]
    }

    fn output(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.value_dim]
    }

    /// Query, key, value and the output's gradient.
    fn inputs(&self, scale: f32) -> [Vec<f32>; 4] {
        let [query, key, value] = self.views();
        let mut seed = 0;
        [query, key, value, self.output()].map(|shape| {
            seed += 1;
            random(seed, shape.iter().product(), scale)
        })
    }
}

/// The kernels' gradients in the order of [`NAMES`], and the output and `lse` that they were computed
/// from.
struct Run {
    gradients: Vec<Vec<f32>>,
    output: Vec<f32>,
    lse: Vec<f32>,
}

fn narrow<T: Element>(x: &[f32]) -> Vec<T> {
    x.iter().map(|&x| T::narrow(x)).collect()
}

fn widen<T: Element>(x: &[T]) -> Vec<f32> {
    x.iter().map(|x| x.widen()).collect()
}

/// Forward and backward of operands stored as `T`, with an output and its gradient stored as `O`.
fn run<T: Element, O: Element>(
    level: Level,
    attention: &Attention,
    shape: Shape,
    inputs: &[Vec<f32>; 4],
) -> Run {
    let views = shape.views();
    let rows = shape.batch * shape.heads * shape.queries;
    let mut output = vec![O::narrow(f32::NAN); rows * shape.value_dim];
    let mut lse = vec![f32::NAN; 3 * rows];
    let [query, key, value, _] = &inputs.each_ref().map(|x| narrow::<T>(x));
    forward_at(
        level,
        attention,
        View::heads_first(query, views[0]),
        View::heads_first(key, views[1]),
        View::heads_first(value, views[2]),
        ViewMut::heads_first(&mut output, shape.output()),
        Some(&mut lse),
    )
    .unwrap();
    let gradients = gradients_of::<T, O>(level, attention, shape, inputs, &output, &lse);
    Run {
        gradients,
        output: widen(&output),
        lse,
    }
}

/// The gradients in the order of [`NAMES`].
fn gradients_of<T: Element, O: Element>(
    level: Level,
    attention: &Attention,
    shape: Shape,
    inputs: &[Vec<f32>; 4],
    output: &[O],
    lse: &[f32],
) -> Vec<Vec<f32>> {
    let views = shape.views();
    let [query, key, value, _] = &inputs.each_ref().map(|x| narrow::<T>(x));
    let d_output = narrow::<O>(&inputs[3]);
    let poisoned = |count: usize| vec![f32::NAN; count];
    let mut results: Vec<Vec<f32>> = inputs[..3].iter().map(|x| poisoned(x.len())).collect();
    let bias_shape = attention.bias.map_or([0; 4], |bias| bias.shape);
    results.push(poisoned(bias_shape.iter().product()));
    results.push(poisoned(attention.sink.map_or(0, <[f32]>::len)));
    let [d_query, d_key, d_value, d_bias, d_sink] = &mut results[..] else {
        unreachable!()
    };
    let gradients = Gradients {
        query: ViewMut::heads_first(d_query, views[0]),
        key: ViewMut::heads_first(d_key, views[1]),
        value: ViewMut::heads_first(d_value, views[2]),
        bias: attention
            .bias
            .map(|_| ViewMut::heads_first(d_bias, bias_shape)),
        sink: attention.sink.map(|_| &mut d_sink[..]),
    };
    let inputs = Inputs {
        query: View::heads_first(query, views[0]),
        key: View::heads_first(key, views[1]),
        value: View::heads_first(value, views[2]),
        output: View::heads_first(output, shape.output()),
        lse,
        d_output: View::heads_first(&d_output, shape.output()),
    };
    backward_at(level, attention, inputs, gradients).unwrap();
    results
}

fn fast(
    level: Level,
    attention: &Attention,
    shape: Shape,
    inputs: &[Vec<f32>; 4],
) -> Vec<Vec<f32>> {
    run::<f32, f32>(level, attention, shape, inputs).gradients
}

const NAMES: [&str; 5] = ["query", "key", "value", "bias", "sink"];

fn all<T>(d: reference::Backward<T>) -> [Vec<T>; 5] {
    [d.query, d.key, d.value, d.bias, d.sink]
}

/// The definition in `f64`, from its own forward pass.
fn truth(attention: &Attention, shape: Shape, inputs: &[Vec<f64>; 4]) -> [Vec<f64>; 5] {
    let [query, key, value, d_output] = inputs;
    let views = shape.views();
    let passed = reference::forward(attention, views, query, key, value);
    let output = &passed.output;
    all(reference::backward(
        attention, views, query, key, value, output, d_output,
    ))
}

/// Runs the backward pass on every level and compares with the definition; the error of a naive
/// computation in `f32` from the same arguments sets the bounds. Returns the number of comparisons.
fn check(name: &str, attention: &Attention, shape: Shape, inputs: &[Vec<f32>; 4]) -> usize {
    check_stored::<f32, f32>(name, attention, shape, inputs)
}

/// [`check`] of `inputs` that their storage types hold exactly.
fn check_stored<T: Element, O: Element>(
    name: &str,
    attention: &Attention,
    shape: Shape,
    inputs: &[Vec<f32>; 4],
) -> usize {
    let truth = truth(attention, shape, &inputs.each_ref().map(|x| wide(x)));
    let [query, key, value, d_output] = inputs;
    for &level in Level::available() {
        let run = run::<T, O>(level, attention, shape, inputs);
        let (output, views) = (&run.output, shape.views());
        let naive = all(reference::backward(
            attention, views, query, key, value, output, d_output,
        ));
        for (i, argument) in NAMES.iter().enumerate() {
            let name = format!("{name}, {level:?}, {shape:?}: gradient of {argument}");
            assert_close(&name, &run.gradients[i], &naive[i], &truth[i], 3.0);
        }
    }
    Level::available().len()
}

/// The data that options borrow, for one shape.
struct Data {
    shape: Shape,
    /// Batch entries or packed sequences.
    sequences: usize,
    offsets: Option<(Vec<u32>, Vec<u32>)>,
    bias: Vec<f32>,
    keep: Vec<u8>,
    lengths: Vec<u32>,
    prefix: Vec<u32>,
    query_documents: Vec<u32>,
    key_documents: Vec<u32>,
    table: Vec<u8>,
    relative: Vec<f32>,
    per_head: Vec<f32>,
    sinks: Vec<f32>,
}

const OPTIONS: [&str; 18] = [
    "scale",
    "softcap",
    "upper left",
    "causal",
    "window",
    "prefix",
    "lengths",
    "keep",
    "keep keys",
    "documents",
    "blocks",
    "bias",
    "bias of keys",
    "bias of queries",
    "alibi",
    "sink",
    "dropout",
    "relative",
];

impl Data {
    fn new(shape: Shape, packed: bool) -> Self {
        let Shape {
            queries,
            keys,
            heads,
            ..
        } = shape;
        let sequences = if packed { 3 } else { shape.batch };
        let plane = queries * keys;
        let blocks = queries.div_ceil(32) * keys.div_ceil(24);
        let at = |total: usize, part: usize| (total * part / 5) as u32;
        Self {
            shape,
            sequences,
            offsets: packed.then(|| {
                // The second sequence has no queries.
                let query = vec![0, at(queries, 2), at(queries, 2), queries as u32];
                (query, vec![0, at(keys, 1), at(keys, 2), keys as u32])
            }),
            bias: random(11, heads * plane * sequences, 3.0),
            keep: (0..plane).map(|x| u8::from(x * 7919 % 11 > 4)).collect(),
            lengths: (0..sequences).map(|b| (keys * 2 / 3 + b) as u32).collect(),
            prefix: vec![(keys / 4) as u32; sequences],
            query_documents: (0..shape.batch * queries)
                .map(|i| (i % queries / 20) as u32)
                .collect(),
            key_documents: (0..shape.batch * keys)
                .map(|j| (j % keys / 23) as u32)
                .collect(),
            table: (0..blocks).map(|x| u8::from(x % 3 != 1)).collect(),
            relative: random(13, heads * 40, 2.0),
            per_head: (0..heads).map(|h| 0.5 / (h + 1) as f32).collect(),
            sinks: random(12, heads, 2.0),
        }
    }

    /// Queries and keys of the longest sequence.
    fn longest(&self) -> [usize; 2] {
        match &self.offsets {
            None => [self.shape.queries, self.shape.keys],
            Some((query, key)) => [query, key].map(|offsets| {
                offsets
                    .windows(2)
                    .map(|pair| (pair[1] - pair[0]) as usize)
                    .max()
                    .unwrap()
            }),
        }
    }

    fn attention(&self, options: &[&str]) -> Attention<'_> {
        let mut a = Attention::default();
        let (heads, [queries, keys]) = (self.shape.heads, self.longest());
        if let Some((query, key)) = &self.offsets {
            a.offsets = Some(Offsets { query, key });
        }
        for &option in options {
            match option {
                "scale" => a.scale = Some(0.3),
                "softcap" => a.softcap = Some(2.0),
                "upper left" => a.alignment = Alignment::UpperLeft,
                "causal" => a.causal = true,
                "window" => {
                    a.window = Some(Window {
                        left: Some(30),
                        right: Some(17),
                    })
                }
                "prefix" => a.prefix = Some(&self.prefix),
                "lengths" => a.lengths = Some(&self.lengths),
                "keep" => a.keep = Some(View::heads_first(&self.keep, [1, 1, queries, keys])),
                "keep keys" => a.keep = Some(View::heads_first(&self.keep, [1, 1, 1, keys])),
                "documents" => {
                    a.documents = Some(Documents {
                        query: &self.query_documents,
                        key: &self.key_documents,
                    });
                }
                "blocks" => {
                    let shape = [1, 1, queries.div_ceil(32), keys.div_ceil(24)];
                    let table = View::heads_first(&self.table, shape);
                    a.blocks = Some(Blocks {
                        query_size: 32,
                        key_size: 24,
                        table,
                    });
                }
                "bias" => {
                    let shape = [self.sequences, heads, queries, keys];
                    a.bias = Some(View::heads_first(&self.bias, shape));
                }
                "bias of keys" => a.bias = Some(View::heads_first(&self.bias, [1, heads, 1, keys])),
                "bias of queries" => {
                    a.bias = Some(View::heads_first(
                        &self.bias,
                        [self.sequences, 1, queries, 1],
                    ));
                }
                "alibi" => a.alibi = Some(&self.per_head),
                "sink" => a.sink = Some(&self.sinks),
                "dropout" => {
                    a.dropout = Some(Dropout {
                        probability: 0.3,
                        seed: 5,
                        first_batch: 0,
                    })
                }
                "relative" => {
                    let (values, zero) = (&self.relative[..], 30);
                    a.relative = Some(RelativeBias { values, zero });
                }
                other => unreachable!("{other}"),
            }
        }
        a
    }

    fn check(&self, options: &[&str], inputs: &[Vec<f32>; 4]) -> usize {
        let name = format!("{options:?}, packed {}", self.offsets.is_some());
        let attention = self.attention(options);
        check(&name, &attention, self.shape, inputs)
    }
}
