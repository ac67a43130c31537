//! The backward pass against its definition, and the definition against finite differences.

use super::{Gradients, Inputs, backward_at};
use crate::{
    Alignment, Attention, Blocks, Documents, Dropout, KernelError, Offsets, View, ViewMut, Window,
    dot::{
        forward_at,
        modify::{Modify, Place, Unmodified},
        reference,
    },
    simd::Level,
    testing::{assert_close, difference, probe, random, wide},
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

/// The kernels' gradients in the order of [`NAMES`], and the output and `lse` that they came from.
struct Run {
    gradients: Vec<Vec<f32>>,
    output: Vec<f32>,
    lse: Vec<f32>,
}

fn run<M: Modify>(
    level: Level,
    attention: &Attention,
    modify: &M,
    shape: Shape,
    inputs: &[Vec<f32>; 4],
) -> Run {
    let [query, key, value] = shape.views();
    let rows = shape.batch * shape.heads * shape.queries;
    let (mut output, mut lse) = (vec![f32::NAN; rows * shape.value_dim], vec![f32::NAN; rows]);
    let views = (
        View::heads_first(&inputs[0], query),
        View::heads_first(&inputs[1], key),
        View::heads_first(&inputs[2], value),
    );
    let to = ViewMut::heads_first(&mut output, shape.output());
    forward_at(
        level,
        attention,
        modify,
        views.0,
        views.1,
        views.2,
        to,
        Some(&mut lse),
    )
    .unwrap();
    let poisoned = |count: usize| vec![f32::NAN; count];
    let mut results: Vec<Vec<f32>> = inputs[..3].iter().map(|x| poisoned(x.len())).collect();
    let bias_shape = attention.bias.map_or([0; 4], |bias| bias.shape);
    results.push(poisoned(bias_shape.iter().product()));
    results.push(poisoned(attention.sink.map_or(0, <[f32]>::len)));
    let [d_query, d_key, d_value, d_bias, d_sink] = &mut results[..] else {
        unreachable!()
    };
    let gradients = Gradients {
        query: ViewMut::heads_first(d_query, query),
        key: ViewMut::heads_first(d_key, key),
        value: ViewMut::heads_first(d_value, value),
        bias: attention
            .bias
            .map(|_| ViewMut::heads_first(d_bias, bias_shape)),
        sink: attention.sink.map(|_| &mut d_sink[..]),
    };
    let inputs = Inputs {
        query: views.0,
        key: views.1,
        value: views.2,
        output: View::heads_first(&output, shape.output()),
        lse: &lse,
        d_output: View::heads_first(&inputs[3], shape.output()),
    };
    backward_at(level, attention, modify, inputs, gradients).unwrap();
    Run {
        gradients: results,
        output,
        lse,
    }
}

fn fast<M: Modify>(
    level: Level,
    attention: &Attention,
    modify: &M,
    shape: Shape,
    inputs: &[Vec<f32>; 4],
) -> Vec<Vec<f32>> {
    run(level, attention, modify, shape, inputs).gradients
}

const NAMES: [&str; 5] = ["query", "key", "value", "bias", "sink"];

fn all<T>(d: reference::Backward<T>) -> [Vec<T>; 5] {
    [d.query, d.key, d.value, d.bias, d.sink]
}

/// The definition in `f64`, from its own forward pass.
fn truth<M: Modify>(
    attention: &Attention,
    modify: &M,
    shape: Shape,
    inputs: &[Vec<f64>; 4],
) -> [Vec<f64>; 5] {
    let [query, key, value, d_output] = inputs;
    let views = shape.views();
    let passed = reference::forward(attention, modify, views, query, key, value);
    let (output, lse) = (&passed.output, &passed.lse);
    all(reference::backward(
        attention, modify, views, query, key, value, output, lse, d_output,
    ))
}

/// Runs backward on every level and compares with the definition, in bounds that a naive computation in
/// `f32` from the same arguments sets. Returns the number of comparisons.
fn check<M: Modify>(
    name: &str,
    attention: &Attention,
    modify: &M,
    shape: Shape,
    inputs: &[Vec<f32>; 4],
) -> usize {
    let truth = truth(
        attention,
        modify,
        shape,
        &inputs.each_ref().map(|x| wide(x)),
    );
    let [query, key, value, d_output] = inputs;
    for &level in Level::available() {
        let run = run(level, attention, modify, shape, inputs);
        let (output, lse) = (&run.output, &run.lse);
        let views = shape.views();
        let naive = all(reference::backward(
            attention, modify, views, query, key, value, output, lse, d_output,
        ));
        for (i, argument) in NAMES.iter().enumerate() {
            let name = format!("{name}, {level:?}, {shape:?}: gradient of {argument}");
            assert_close(&name, &run.gradients[i], &naive[i], &truth[i], 3.0);
        }
    }
    Level::available().len()
}

#[test]
fn plain_attention_of_every_shape() {
    let mut checked = 0;
    let dims = [
        (1, 3),
        (40, 40),
        (59, 64),
        (64, 111),
        (111, 8),
        (128, 128),
        (256, 250),
    ];
    for (queries, keys) in [(1, 1), (2, 5), (97, 97), (33, 200), (130, 50)] {
        for (dim, value_dim) in dims {
            let shape = Shape {
                batch: 1,
                heads: 2,
                key_heads: 1,
                queries,
                keys,
                dim,
                value_dim,
            };
            checked += check(
                "plain",
                &Attention::default(),
                &Unmodified,
                shape,
                &shape.inputs(2.0),
            );
        }
    }
    for (heads, key_heads) in [(1, 1), (2, 2), (8, 4), (8, 1)] {
        let (queries, keys) = (257, 257);
        let shape = Shape {
            batch: 2,
            heads,
            key_heads,
            queries,
            keys,
            dim: 16,
            value_dim: 24,
        };
        checked += check(
            "groups",
            &Attention::default(),
            &Unmodified,
            shape,
            &shape.inputs(2.0),
        );
    }
    let shape = Shape {
        batch: 1,
        heads: 1,
        key_heads: 1,
        queries: 1025,
        keys: 1025,
        dim: 40,
        value_dim: 40,
    };
    let causal = Attention {
        causal: true,
        ..Attention::default()
    };
    checked += check("long", &causal, &Unmodified, shape, &shape.inputs(2.0));
    assert_eq!(checked, 40 * Level::available().len());
}

/// What options refer to, for one shape.
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
    "change",
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
                    })
                }
                "change" => {}
                other => unreachable!("{other}"),
            }
        }
        a
    }

    fn check(&self, options: &[&str], inputs: &[Vec<f32>; 4]) -> usize {
        let name = format!("{options:?}, packed {}", self.offsets.is_some());
        let attention = self.attention(options);
        if options.contains(&"change") {
            check(&name, &attention, &Bent, self.shape, inputs)
        } else {
            check(&name, &attention, &Unmodified, self.shape, inputs)
        }
    }
}

/// Halves a score and bends it where it is large; hides every seventh key.
struct Bent;
impl Modify for Bent {
    fn score(&self, score: f32, place: Place) -> f32 {
        if place.key % 7 == 3 {
            return f32::NEG_INFINITY;
        }
        score * (0.5 + 0.125 * score) - 0.01 * place.query.abs_diff(place.key) as f32
    }
    fn slope(&self, score: f32, _: Place) -> f32 {
        0.5 + 0.25 * score
    }
}

#[test]
fn options_alone_and_in_pairs() {
    let shape = Shape {
        batch: 2,
        heads: 4,
        key_heads: 2,
        queries: 50,
        keys: 70,
        dim: 12,
        value_dim: 20,
    };
    let data = Data::new(shape, false);
    let inputs = shape.inputs(2.0);
    let mut checked = 0;
    for (i, first) in OPTIONS.iter().enumerate() {
        checked += data.check(&[first], &inputs);
        for second in &OPTIONS[i + 1..] {
            checked += data.check(&[first, second], &inputs);
        }
    }
    assert_eq!(checked, (18 + 18 * 17 / 2) * Level::available().len());
}

#[test]
fn options_of_a_packed_batch() {
    let shape = Shape {
        batch: 1,
        heads: 4,
        key_heads: 2,
        queries: 101,
        keys: 160,
        dim: 12,
        value_dim: 20,
    };
    let data = Data::new(shape, true);
    let inputs = shape.inputs(2.0);
    let mut checked = data.check(&[], &inputs);
    for first in OPTIONS {
        checked += data.check(&[first], &inputs);
        checked += data.check(&[first, "causal"], &inputs);
    }
    assert_eq!(checked, (1 + 2 * 18) * Level::available().len());
}

/// Heads few enough to be split, so that parts and copies are met.
#[test]
fn options_of_split_heads() {
    let shape = Shape {
        batch: 1,
        heads: 2,
        key_heads: 1,
        queries: 500,
        keys: 300,
        dim: 8,
        value_dim: 8,
    };
    let data = Data::new(shape, false);
    let inputs = shape.inputs(2.0);
    let mut checked = data.check(&[], &inputs);
    for first in OPTIONS {
        checked += data.check(&[first, "dropout"], &inputs);
    }
    assert_eq!(checked, 19 * Level::available().len());
}

#[test]
fn all_at_once() {
    let shape = Shape {
        batch: 1,
        heads: 6,
        key_heads: 3,
        queries: 120,
        keys: 170,
        dim: 33,
        value_dim: 47,
    };
    for packed in [false, true] {
        let data = Data::new(shape, packed);
        let options = [
            "scale", "softcap", "causal", "window", "prefix", "lengths", "keep", "bias", "alibi",
            "sink", "dropout", "change",
        ];
        data.check(&options, &shape.inputs(2.0));
    }
}

/// Logits of ±1e4: one key has all the weight, or a few share it.
#[test]
fn large_logits() {
    let shape = Shape {
        batch: 1,
        heads: 2,
        key_heads: 1,
        queries: 60,
        keys: 80,
        dim: 16,
        value_dim: 16,
    };
    let mut inputs = shape.inputs(1.0);
    for x in inputs[..2].iter_mut().flatten() {
        *x *= 100.0;
    }
    let none = Attention::default();
    check("large", &none, &Unmodified, shape, &inputs);
    check(
        "large",
        &Attention {
            causal: true,
            ..none
        },
        &Unmodified,
        shape,
        &inputs,
    );
}

/// Every differentiable input of the definition, in `f64`.
#[test]
fn the_definition_agrees_with_finite_differences() {
    let shape = Shape {
        batch: 2,
        heads: 4,
        key_heads: 2,
        queries: 5,
        keys: 6,
        dim: 3,
        value_dim: 4,
    };
    let mut data = Data::new(shape, false);
    data.sinks = vec![0.5, -0.25, 0.0, 1.0];
    let views = shape.views();
    let inputs = shape.inputs(1.0).map(|x| wide(&x));
    let mut checked = 0;
    let option_sets: [&[&str]; 6] = [
        &[],
        &["causal", "bias", "sink"],
        &["softcap", "bias of keys", "dropout", "sink"],
        &["lengths", "bias of queries", "alibi", "softcap"],
        &["change", "softcap", "bias", "window"],
        &["documents", "keep", "sink", "dropout"],
    ];
    for options in option_sets {
        let loss = |attention: &Attention, [query, key, value]: [&[f64]; 3]| {
            let output = if options.contains(&"change") {
                reference::forward(attention, &Bent, views, query, key, value).output
            } else {
                reference::forward(attention, &Unmodified, views, query, key, value).output
            };
            probe(&output, &inputs[3])
        };
        let [query, key, value, _] = &inputs;
        let attention = data.attention(options);
        let found = if options.contains(&"change") {
            truth(&attention, &Bent, shape, &inputs)
        } else {
            truth(&attention, &Unmodified, shape, &inputs)
        };
        for argument in 0..3 {
            for (index, &found) in found[argument].iter().enumerate() {
                let expected = difference(&inputs[argument], index, |x| {
                    let mut arguments = [&query[..], key, value];
                    arguments[argument] = x;
                    loss(&attention, arguments)
                });
                // `Bent` works in f32, so that the difference of its scores is rounded.
                let tolerance = if options.contains(&"change") {
                    2e-2
                } else {
                    1e-7
                };
                let error = (found - expected).abs();
                assert!(
                    error < tolerance,
                    "{options:?} {} {index}: {error:e}",
                    NAMES[argument]
                );
                checked += 1;
            }
        }
        // Biases and sinks are f32: a step that they hold exactly.
        let step = 1.0 / 512.0;
        for (argument, count) in [(3, found[3].len()), (4, found[4].len())] {
            for index in 0..count {
                let at = |offset: f32| {
                    let (mut bias, mut sinks) = (data.bias.clone(), data.sinks.clone());
                    let moved = if argument == 3 { &mut bias } else { &mut sinks };
                    moved[index] += offset;
                    let attention = Attention {
                        bias: attention.bias.map(|view| View {
                            data: &bias,
                            ..view
                        }),
                        sink: attention.sink.map(|_| &sinks[..]),
                        ..attention
                    };
                    let moved = if argument == 3 {
                        bias[index]
                    } else {
                        sinks[index]
                    };
                    (loss(&attention, [query, key, value]), f64::from(moved))
                };
                let ((up, high), (down, low)) = (at(step), at(-step));
                let error = (found[argument][index] - (up - down) / (high - low)).abs();
                assert!(
                    error < 2e-5,
                    "{options:?} {} {index}: {error:e}",
                    NAMES[argument]
                );
                checked += 1;
            }
        }
    }
    let inputs = 2 * 4 * 5 * 3 + 2 * 2 * 6 * (3 + 4);
    let biases = (2 + 2) * 4 * 5 * 6 / 2 * 2 + 4 * 6 + 2 * 5;
    assert_eq!(checked, 6 * inputs + biases + 3 * 4);
}

fn bits(all: &[Vec<f32>]) -> Vec<Vec<u32>> {
    all.iter()
        .map(|x| x.iter().map(|x| x.to_bits()).collect())
        .collect()
}

#[test]
fn same_bits_on_any_number_of_threads() {
    for (heads, key_heads, queries) in [(8, 4, 400), (2, 1, 600), (1, 1, 1000)] {
        let (keys, dim) = (300, 40);
        let shape = Shape {
            batch: 1,
            heads,
            key_heads,
            queries,
            keys,
            dim,
            value_dim: dim,
        };
        let data = Data::new(shape, false);
        let inputs = shape.inputs(1.0);
        for options in [
            &["causal", "bias of keys", "sink"][..],
            &["dropout", "bias"],
            &[],
        ] {
            let attention = data.attention(options);
            let level = Level::current();
            let on = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .unwrap();
                bits(&pool.install(|| fast(level, &attention, &Unmodified, shape, &inputs)))
            };
            let alone = on(1);
            for threads in [1, 2, 3, 8] {
                assert_eq!(
                    alone,
                    on(threads),
                    "{threads} threads, {shape:?}, {options:?}"
                );
            }
        }
    }
}

/// What a mask hides may be anything: the gradients have the bits that they have with zeros there.
#[test]
fn hidden_rows_do_not_leak() {
    let shape = Shape {
        batch: 1,
        heads: 2,
        key_heads: 1,
        queries: 70,
        keys: 90,
        dim: 24,
        value_dim: 40,
    };
    let Shape {
        queries,
        keys,
        heads,
        dim,
        value_dim,
        ..
    } = shape;
    // Query 13 sees nothing; keys 7, 40 and those past 77 are seen by nobody.
    let hidden_key = |j: usize| j == 7 || j == 40 || j > 77;
    let keep: Vec<u8> = (0..queries * keys)
        .map(|x| u8::from(x / keys != 13 && !hidden_key(x % keys)))
        .collect();
    for causal in [false, true] {
        let attention = Attention {
            keep: Some(View::heads_first(&keep, [1, 1, queries, keys])),
            causal,
            ..Attention::default()
        };
        let filled = |with: f32| {
            let mut inputs = shape.inputs(1.0);
            for j in (0..keys).filter(|&j| hidden_key(j)) {
                inputs[1][j * dim..][..dim].fill(with);
                inputs[2][j * value_dim..][..value_dim].fill(with);
            }
            for head in 0..heads {
                let row = head * queries + 13;
                inputs[0][row * dim..][..dim].fill(with);
                inputs[3][row * value_dim..][..value_dim].fill(with);
            }
            inputs
        };
        for &level in Level::available() {
            let clean = fast(level, &attention, &Unmodified, shape, &filled(0.0));
            for poison in [f32::NAN, f32::INFINITY, f32::MAX] {
                let found = fast(level, &attention, &Unmodified, shape, &filled(poison));
                for (found, clean) in found.iter().zip(&clean) {
                    let close = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-5;
                    assert!(
                        found.iter().zip(clean).all(close),
                        "{poison} leaks, {level:?}"
                    );
                }
            }
            assert!(
                clean[0][13 * dim..][..dim].iter().all(|&x| x == 0.0),
                "gradient of a blind query"
            );
            for j in (0..keys).filter(|&j| hidden_key(j)) {
                assert!(
                    clean[1][j * dim..][..dim].iter().all(|&x| x == 0.0),
                    "gradient of a hidden key"
                );
                assert!(
                    clean[2][j * value_dim..][..value_dim]
                        .iter()
                        .all(|&x| x == 0.0)
                );
            }
        }
    }
}

#[test]
fn nothing_to_see_gives_zeros() {
    let shape = |batch, queries, keys| Shape {
        batch,
        heads: 2,
        key_heads: 1,
        queries,
        keys,
        dim: 4,
        value_dim: 5,
    };
    for shape in [
        shape(1, 3, 0),
        shape(1, 0, 3),
        shape(0, 3, 3),
        shape(1, 3, 3),
    ] {
        let lengths = vec![0; shape.batch];
        let attention = Attention {
            lengths: Some(&lengths),
            ..Attention::default()
        };
        let found = fast(
            Level::current(),
            &attention,
            &Unmodified,
            shape,
            &shape.inputs(1.0),
        );
        assert!(found.iter().flatten().all(|&x| x == 0.0), "{shape:?}");
    }
}

/// Rows stored as `[batch, length, heads, dim]`, some further apart than they must be.
#[test]
fn strides_change_nothing() {
    let shape = Shape {
        batch: 2,
        heads: 4,
        key_heads: 2,
        queries: 50,
        keys: 61,
        dim: 20,
        value_dim: 12,
    };
    let inputs = shape.inputs(1.0);
    let attention = Attention {
        causal: true,
        ..Attention::default()
    };
    let expected = fast(Level::current(), &attention, &Unmodified, shape, &inputs);

    let strides = |[_, heads, length, dim]: [usize; 4]| {
        let dim = dim + 3;
        [length * heads * dim, dim, heads * dim]
    };
    let scatter = |x: &[f32], shape: [usize; 4]| -> Vec<f32> {
        let [batch, heads, length, dim] = shape;
        let mut to = vec![f32::NAN; batch * heads * length * (dim + 3)];
        let strides = strides(shape);
        for (row, from) in x.chunks(dim).enumerate() {
            let (b, h, i) = (row / length / heads, row / length % heads, row % length);
            to[b * strides[0] + h * strides[1] + i * strides[2]..][..dim].copy_from_slice(from);
        }
        to
    };
    let [query, key, value] = shape.views();
    let shapes = [query, key, value, shape.output()];
    let spread: Vec<Vec<f32>> = inputs
        .iter()
        .zip(shapes)
        .map(|(x, shape)| scatter(x, shape))
        .collect();
    let view = |i: usize| View {
        data: &spread[i],
        shape: shapes[i],
        strides: strides(shapes[i]),
    };
    let mut output = scatter(&vec![0.0; shapes[3].iter().product()], shapes[3]);
    let mut lse = vec![0.0; 2 * 4 * 50];
    let to = ViewMut {
        data: &mut output,
        shape: shapes[3],
        strides: strides(shapes[3]),
    };
    let level = Level::current();
    forward_at(
        level,
        &attention,
        &Unmodified,
        view(0),
        view(1),
        view(2),
        to,
        Some(&mut lse),
    )
    .unwrap();
    let mut found: Vec<Vec<f32>> = spread[..3]
        .iter()
        .map(|x| vec![f32::NAN; x.len()])
        .collect();
    let [d_query, d_key, d_value] = &mut found[..] else {
        unreachable!()
    };
    let to = |data, i: usize| ViewMut {
        data,
        shape: shapes[i],
        strides: strides(shapes[i]),
    };
    let gradients = Gradients {
        query: to(d_query, 0),
        key: to(d_key, 1),
        value: to(d_value, 2),
        bias: None,
        sink: None,
    };
    let inputs = Inputs {
        query: view(0),
        key: view(1),
        value: view(2),
        output: View {
            data: &output,
            shape: shapes[3],
            strides: strides(shapes[3]),
        },
        lse: &lse,
        d_output: view(3),
    };
    backward_at(level, &attention, &Unmodified, inputs, gradients).unwrap();
    for i in 0..3 {
        assert_eq!(
            bits(&[scatter(&expected[i], shapes[i])]),
            bits(&found[i..=i]),
            "{}",
            NAMES[i]
        );
    }
}

#[test]
fn misfits_are_named() {
    let shape = [1, 1, 2, 4];
    let x = [0.0f32; 8];
    let view = View::heads_first(&x, shape);
    let attempt = |change: &dyn Fn(&mut Attention, &mut Inputs, &mut Gradients)| {
        let [mut a, mut b, mut c] = [[f32::NAN; 8]; 3];
        let mut attention = Attention::default();
        let mut inputs = Inputs {
            query: view,
            key: view,
            value: view,
            output: view,
            lse: &x[..2],
            d_output: view,
        };
        let mut gradients = Gradients {
            query: ViewMut::heads_first(&mut a, shape),
            key: ViewMut::heads_first(&mut b, shape),
            value: ViewMut::heads_first(&mut c, shape),
            bias: None,
            sink: None,
        };
        change(&mut attention, &mut inputs, &mut gradients);
        let result = backward_at(Level::current(), &attention, &Unmodified, inputs, gradients);
        if result.is_err() {
            assert!(
                [a, b, c].iter().flatten().all(|x| x.is_nan()),
                "nothing is written"
            );
        }
        result
    };
    assert_eq!(attempt(&|_, _, _| {}), Ok(()));
    let message = |change: &dyn Fn(&mut Attention, &mut Inputs, &mut Gradients)| {
        attempt(change).unwrap_err().to_string()
    };
    let found = message(&|_, inputs, _| inputs.lse = &[]);
    assert!(
        found.contains("`lse`") && found.contains('0') && found.contains('2'),
        "{found}"
    );
    let found = message(&|_, inputs, _| inputs.d_output.shape[3] = 3);
    assert!(
        found.contains("`d_output`") && found.contains('3') && found.contains('4'),
        "{found}"
    );
    let found = message(&|_, inputs, _| inputs.output.strides[2] = 40);
    assert!(
        found.contains("`output`") && found.contains("44"),
        "{found}"
    );
    let overlap = attempt(&|_, _, gradients| gradients.key.strides[2] = 2);
    assert!(matches!(
        overlap,
        Err(KernelError::Overlap {
            argument: "gradients.key",
            ..
        })
    ));
    let found = message(&|_, _, gradients| gradients.value.shape[2] = 1);
    assert!(found.contains("`gradients.value`"), "{found}");
    let found = message(&|_, _, gradients| gradients.sink = Some(&mut []));
    assert!(
        found.contains("`gradients.sink`") && found.contains("set `sink`"),
        "{found}"
    );
    let found = message(&|_, _, gradients| {
        gradients.bias = Some(ViewMut {
            data: &mut [],
            shape: [1; 4],
            strides: [0; 3],
        });
    });
    assert!(
        found.contains("`gradients.bias`") && found.contains("set `bias`"),
        "{found}"
    );
}
