//! The kernels against their definition.

use super::{Observe, Top, forward_at, forward_modified, observe::observe_at, reference};
use crate::{
    Alignment, Attention, Blocks, Documents, Dropout, KernelError, Offsets, View, ViewMut, Window,
    dot::{Modify, Place, Unmodified},
    simd::Level,
    testing::{assert_close, on_every_pool, random, wide},
};

/// Sizes of one call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) key_heads: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) dim: usize,
    pub(super) value_dim: usize,
}

impl Shape {
    pub(super) fn one_head(queries: usize, keys: usize, dim: usize, value_dim: usize) -> Self {
        Self {
            batch: 1,
            heads: 1,
            key_heads: 1,
            queries,
            keys,
            dim,
            value_dim,
        }
    }

    /// Shapes of query, key and value.
    pub(super) fn views(&self) -> [[usize; 4]; 3] {
        [
            [self.batch, self.heads, self.queries, self.dim],
            [self.batch, self.key_heads, self.keys, self.dim],
            [self.batch, self.key_heads, self.keys, self.value_dim],
        ]
    }

    pub(super) fn output(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.value_dim]
    }

    /// Seeded query, key and value.
    pub(super) fn inputs(&self, scale: f32) -> [Vec<f32>; 3] {
        let mut seed = 0;
        self.views().map(|shape| {
            seed += 1;
            random(seed, shape.iter().product(), scale)
        })
    }
}

/// What the options of a shape borrow from.
pub(super) struct Options {
    shape: Shape,
    bias: Vec<f32>,
    keep: Vec<u8>,
    padding: Vec<u8>,
    lengths: Vec<u32>,
    prefix: Vec<u32>,
    documents: [Vec<u32>; 2],
    table: Vec<u8>,
    per_head: Vec<f32>,
}

/// The number of options that [`Options::set`] knows.
pub(super) const OPTIONS: usize = 17;

impl Options {
    pub(super) fn new(shape: Shape) -> Self {
        let plane = shape.queries * shape.keys;
        let blocks = shape.queries.div_ceil(32) * shape.keys.div_ceil(24);
        let documents = |length: usize, size: usize| {
            (0..shape.batch * length)
                .map(|i| (i % length / size) as u32)
                .collect()
        };
        Self {
            shape,
            bias: random(11, shape.heads * plane, 3.0),
            keep: (0..plane).map(|x| u8::from(x * 7919 % 11 > 4)).collect(),
            padding: (0..shape.batch * shape.keys)
                .map(|x| u8::from(x % 5 != 2))
                .collect(),
            lengths: (0..shape.batch)
                .map(|b| (shape.keys * 2 / 3 + b) as u32)
                .collect(),
            prefix: vec![(shape.keys / 4) as u32; shape.batch],
            documents: [documents(shape.queries, 20), documents(shape.keys, 23)],
            table: (0..blocks).map(|x| u8::from(x % 3 != 1)).collect(),
            per_head: (0..shape.heads)
                .map(|head| 0.25 / (head + 1) as f32)
                .collect(),
        }
    }

    /// Sets option number `option` and names it.
    pub(super) fn set<'a>(&'a self, option: usize, attention: &mut Attention<'a>) -> &'static str {
        let Shape {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.shape;
        let window = |left, right| Some(Window { left, right });
        match option {
            0 => (attention.scale = Some(0.3), "scale").1,
            1 => (attention.softcap = Some(2.0), "softcap").1,
            2 => (attention.causal = true, "causal").1,
            3 => (attention.alignment = Alignment::UpperLeft, "upper-left").1,
            4 => (attention.window = window(Some(19), None), "left window").1,
            5 => (attention.window = window(Some(7), Some(30)), "window").1,
            6 => (attention.prefix = Some(&self.prefix), "prefix").1,
            7 => (attention.lengths = Some(&self.lengths), "lengths").1,
            8 => {
                (
                    attention.keep = Some(View::heads_first(&self.keep, [1, 1, queries, keys])),
                    "keep",
                )
                    .1
            }
            9 => {
                (
                    attention.keep = Some(View::heads_first(&self.padding, [batch, 1, 1, keys])),
                    "padding",
                )
                    .1
            }
            10 => {
                let [query, key] = &self.documents;
                (
                    attention.documents = Some(Documents { query, key }),
                    "documents",
                )
                    .1
            }
            11 => {
                let shape = [1, 1, queries.div_ceil(32), keys.div_ceil(24)];
                let table = View::heads_first(&self.table, shape);
                (
                    attention.blocks = Some(Blocks {
                        query_size: 32,
                        key_size: 24,
                        table,
                    }),
                    "blocks",
                )
                    .1
            }
            12 => {
                let bias = View::heads_first(&self.bias, [1, heads, queries, keys]);
                (attention.bias = Some(bias), "bias").1
            }
            13 => {
                let bias = View::heads_first(&self.bias[..heads * keys], [1, heads, 1, keys]);
                (attention.bias = Some(bias), "key bias").1
            }
            14 => (attention.alibi = Some(&self.per_head), "alibi").1,
            15 => (attention.sink = Some(&self.per_head), "sink").1,
            16 => {
                (
                    attention.dropout = Some(Dropout {
                        probability: 0.3,
                        seed: 5,
                    }),
                    "dropout",
                )
                    .1
            }
            _ => unreachable!("there are {OPTIONS} options"),
        }
    }
}

/// A change of scores with a slope that is not 1.
pub(super) struct Bent;

impl Modify for Bent {
    #[inline]
    fn score(&self, score: f32, place: Place) -> f32 {
        0.5 * score - 0.01 * place.query.abs_diff(place.key) as f32
    }
    #[inline]
    fn slope(&self, _: f32, _: Place) -> f32 {
        0.5
    }
}

fn forward<M: Modify>(
    level: Level,
    attention: &Attention,
    modify: &M,
    shape: Shape,
    inputs: &[Vec<f32>; 3],
) -> (Vec<f32>, Vec<f32>) {
    let [query, key, value] = shape.views();
    let rows = shape.batch * shape.heads * shape.queries;
    let mut output = vec![f32::NAN; rows * shape.value_dim];
    let mut lse = vec![f32::NAN; rows];
    forward_at(
        level,
        attention,
        modify,
        View::heads_first(&inputs[0], query),
        View::heads_first(&inputs[1], key),
        View::heads_first(&inputs[2], value),
        ViewMut::heads_first(&mut output, shape.output()),
        Some(&mut lse),
    )
    .unwrap();
    (output, lse)
}

/// Compares every level with the definition. Returns the number of comparisons.
fn check<M: Modify>(
    name: &str,
    attention: &Attention,
    modify: &M,
    shape: Shape,
    inputs: &[Vec<f32>; 3],
) -> usize {
    let [query, key, value] = &inputs.each_ref().map(|x| wide(x));
    let truth = reference::forward(attention, modify, shape.views(), query, key, value);
    let [query, key, value] = inputs;
    let naive = reference::forward(attention, modify, shape.views(), query, key, value);
    for &level in Level::available() {
        let name = format!("{name} {level:?} {shape:?}");
        let (output, lse) = forward(level, attention, modify, shape, inputs);
        assert_close(
            &format!("{name}: output"),
            &output,
            &naive.output,
            &truth.output,
            2.0,
        );
        // -∞ must be -∞; everything else is compared.
        for (fast, truth) in lse.iter().zip(&truth.lse) {
            assert_eq!(
                *fast == f32::NEG_INFINITY,
                *truth == f64::NEG_INFINITY,
                "{name}: lse"
            );
        }
        let finite = |x: &[f32]| x.iter().map(|x| x.max(f32::MIN)).collect::<Vec<_>>();
        let truths: Vec<f64> = truth.lse.iter().map(|x| x.max(f32::MIN.into())).collect();
        let largest = truth
            .lse
            .iter()
            .filter(|x| x.is_finite())
            .fold(0.0f64, |m, x| m.max(x.abs()));
        let rounding = largest * f64::from(f32::EPSILON);
        let worst = |x: &[f32]| {
            let errors = x
                .iter()
                .zip(&truths)
                .map(|(&x, t)| (f64::from(x) - t).abs());
            errors.fold(0.0, f64::max)
        };
        let bound = 2.0 * worst(&finite(&naive.lse)) + rounding + 0.3 * f64::from(f32::EPSILON);
        let error = worst(&finite(&lse));
        assert!(
            error <= bound,
            "{name}: lse error {error:e} above {bound:e}"
        );
    }
    Level::available().len()
}

#[test]
fn every_awkward_size() {
    let mut checked = 0;
    for (queries, keys) in [
        (1, 1),
        (2, 5),
        (97, 97),
        (33, 200),
        (130, 50),
        (257, 257),
        (20, 1025),
    ] {
        for (dim, value_dim) in [(1, 3), (40, 40), (59, 64), (64, 111), (128, 8), (256, 256)] {
            // Of a few rows a naive computation may be exact by chance, hence many heads.
            let heads = (256 / queries).clamp(2, 64);
            let shape = Shape {
                heads,
                ..Shape::one_head(queries, keys, dim, value_dim)
            };
            checked += check(
                "plain",
                &Attention::default(),
                &Unmodified,
                shape,
                &shape.inputs(2.0),
            );
            let causal = Attention {
                causal: true,
                ..Attention::default()
            };
            checked += check("causal", &causal, &Unmodified, shape, &shape.inputs(2.0));
        }
    }
    for key_heads in [1, 2, 8] {
        let heads = Shape {
            batch: 2,
            heads: 8,
            key_heads,
            ..Shape::one_head(50, 70, 16, 16)
        };
        checked += check(
            "groups",
            &Attention::default(),
            &Unmodified,
            heads,
            &heads.inputs(2.0),
        );
    }
    assert_eq!(checked, (7 * 6 * 2 + 3) * Level::available().len());
}

#[test]
fn every_option_alone_and_in_pairs() {
    let shape = Shape {
        batch: 2,
        heads: 2,
        key_heads: 1,
        ..Shape::one_head(77, 100, 24, 20)
    };
    let inputs = shape.inputs(2.0);
    let options = Options::new(shape);
    let mut checked = 0;
    for first in 0..OPTIONS {
        for second in first..OPTIONS {
            let mut attention = Attention::default();
            let names = [
                options.set(first, &mut attention),
                options.set(second, &mut attention),
            ];
            let name = names.join(" and ");
            checked += check(&name, &attention, &Unmodified, shape, &inputs);
            if first == second {
                checked += check(&format!("bent {name}"), &attention, &Bent, shape, &inputs);
            }
        }
    }
    let calls = OPTIONS * (OPTIONS + 1) / 2 + OPTIONS;
    assert_eq!(checked, calls * Level::available().len());
}

#[test]
fn all_options_at_once() {
    let shape = Shape {
        batch: 2,
        heads: 4,
        key_heads: 2,
        ..Shape::one_head(130, 190, 64, 64)
    };
    let options = Options::new(shape);
    let mut attention = Attention::default();
    for option in 0..OPTIONS {
        if ![3, 4, 9, 13].contains(&option) {
            options.set(option, &mut attention);
        }
    }
    check("all", &attention, &Bent, shape, &shape.inputs(3.0));
}

#[test]
fn large_logits_and_rising_scores() {
    let shape = Shape {
        heads: 8,
        ..Shape::one_head(60, 300, 32, 16)
    };
    let [query, mut key, value] = shape.inputs(1.0);
    // At 1e4 the rounding of a product decides between near ties, in any computation; so the inputs are
    // cut to eighths, whose products are exact.
    let eighths = |x: &[f32]| {
        x.iter()
            .map(|x| (x * 8.0).round() / 8.0)
            .collect::<Vec<_>>()
    };
    let cut = [eighths(&query), eighths(&key), value.clone()];
    for (scale, inputs) in [
        (1e2, [query.clone(), key.clone(), value.clone()]),
        (8192.0, cut),
    ] {
        let attention = Attention {
            scale: Some(scale),
            ..Attention::default()
        };
        check("large", &attention, &Unmodified, shape, &inputs);
        let causal = Attention {
            causal: true,
            ..attention
        };
        check("large causal", &causal, &Unmodified, shape, &inputs);
    }
    // Every key scores higher than the one before, so that the base is raised again and again.
    for (j, row) in key.chunks_exact_mut(32).enumerate() {
        for (x, q) in row.iter_mut().zip(&query) {
            *x = q * j as f32 * 0.1;
        }
    }
    let attention = Attention {
        scale: Some(3.0),
        ..Attention::default()
    };
    check(
        "rising",
        &attention,
        &Unmodified,
        shape,
        &[query, key, value],
    );
}

#[test]
fn what_is_hidden_does_not_leak() {
    let shape = Shape {
        heads: 2,
        key_heads: 2,
        ..Shape::one_head(90, 120, 24, 40)
    };
    let options = Options::new(shape);
    let clean = shape.inputs(2.0);
    for option in [2, 4, 5, 7, 8, 9, 10, 11] {
        let mut attention = Attention::default();
        let name = options.set(option, &mut attention);
        for &level in Level::available() {
            let expected = forward(level, &attention, &Unmodified, shape, &clean);
            for poison in [f32::NAN, f32::INFINITY] {
                for key in [0, 1, 17, 60, 118, 119] {
                    let mut inputs = clean.clone();
                    for head in 0..2 {
                        inputs[1][(head * 120 + key) * 24..][..24].fill(poison);
                        inputs[2][(head * 120 + key) * 40..][..40].fill(poison);
                    }
                    let found = forward(level, &attention, &Unmodified, shape, &inputs);
                    let sizes = attention
                        .check(shape.views()[0], shape.views()[1], shape.views()[2])
                        .unwrap();
                    for head in 0..2 {
                        let sequence = attention.sequence(&sizes, 0);
                        let visible =
                            crate::mask::Visible::new(&attention, &sizes, &sequence, 0, head);
                        for query in 0..90 {
                            if visible.sees(query, key) {
                                continue;
                            }
                            let row = head * 90 + query;
                            let span = row * 40..(row + 1) * 40;
                            assert_eq!(
                                found.0[span.clone()],
                                expected.0[span],
                                "{name} {level:?} {key} {query}"
                            );
                            assert_eq!(found.1[row].to_bits(), expected.1[row].to_bits(), "{name}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn rows_that_see_nothing_are_zero() {
    let shape = Shape {
        heads: 2,
        ..Shape::one_head(70, 40, 16, 8)
    };
    // Lower-right: the first 30 queries stand before the first key.
    let attention = Attention {
        causal: true,
        ..Attention::default()
    };
    for &level in Level::available() {
        let (output, lse) = forward(level, &attention, &Unmodified, shape, &shape.inputs(1.0));
        for row in [0, 29, 70, 99] {
            assert_eq!(output[row * 8..][..8], [0.0; 8]);
            assert_eq!(lse[row], f32::NEG_INFINITY);
        }
        assert!(lse[30].is_finite() && output[30 * 8] != 0.0);
        let sinks = [0.5, -1.0];
        let attention = Attention {
            sink: Some(&sinks),
            ..attention
        };
        let (output, lse) = forward(level, &attention, &Unmodified, shape, &shape.inputs(1.0));
        assert_eq!((output[0], lse[0], lse[70]), (0.0, 0.5, -1.0));
    }
    // A bias of -∞ everywhere.
    let bias = [f32::NEG_INFINITY; 40];
    let attention = Attention {
        bias: Some(View::heads_first(&bias, [1, 1, 1, 40])),
        ..Attention::default()
    };
    for &level in Level::available() {
        let (output, lse) = forward(level, &attention, &Unmodified, shape, &shape.inputs(1.0));
        assert!(output.iter().all(|&x| x == 0.0) && lse.iter().all(|&x| x == f32::NEG_INFINITY));
    }
}

#[test]
fn empty_sizes_are_no_error() {
    for shape in [
        Shape {
            batch: 0,
            ..Shape::one_head(3, 4, 5, 6)
        },
        Shape {
            heads: 0,
            key_heads: 0,
            ..Shape::one_head(3, 4, 5, 6)
        },
        Shape::one_head(0, 4, 5, 6),
        Shape::one_head(3, 0, 5, 6),
    ] {
        let (output, lse) = forward(
            Level::current(),
            &Attention::default(),
            &Unmodified,
            shape,
            &shape.inputs(1.0),
        );
        assert!(output.iter().all(|&x| x == 0.0) && lse.iter().all(|&x| x == f32::NEG_INFINITY));
    }
}

#[test]
fn layouts_and_strides_give_the_same_bits() {
    let (batch, heads, length, dim) = (2, 3, 50, 20);
    let shape = Shape {
        batch,
        heads,
        key_heads: heads,
        ..Shape::one_head(length, length, dim, dim)
    };
    let inputs = shape.inputs(2.0);
    let attention = Attention {
        causal: true,
        ..Attention::default()
    };
    let expected = forward(Level::current(), &attention, &Unmodified, shape, &inputs).0;
    // One fused [batch, length, 3, heads, dim] projection, as a model has it.
    let mut fused = vec![f32::NAN; 3 * batch * length * heads * dim];
    let at = |part: usize, b: usize, h: usize, i: usize| {
        (((b * length + i) * 3 + part) * heads + h) * dim
    };
    for (part, input) in inputs.iter().enumerate() {
        for b in 0..batch {
            for h in 0..heads {
                for i in 0..length {
                    let from = ((b * heads + h) * length + i) * dim;
                    fused[at(part, b, h, i)..][..dim].copy_from_slice(&input[from..][..dim]);
                }
            }
        }
    }
    let view = |part: usize| View {
        data: &fused[part * heads * dim..],
        shape: [batch, heads, length, dim],
        strides: [length * 3 * heads * dim, dim, 3 * heads * dim],
    };
    let mut output = vec![f32::NAN; batch * length * heads * dim];
    let to = ViewMut::length_first(&mut output, [batch, heads, length, dim]);
    super::forward(&attention, view(0), view(1), view(2), to, None).unwrap();
    for b in 0..batch {
        for h in 0..heads {
            for i in 0..length {
                let from = ((b * heads + h) * length + i) * dim;
                let found = &output[((b * length + i) * heads + h) * dim..][..dim];
                assert_eq!(found, &expected[from..][..dim]);
            }
        }
    }
}

#[test]
fn a_packed_batch_is_its_sequences() {
    let lengths = [
        (5usize, 9usize),
        (0, 3),
        (60, 33),
        (1, 1),
        (17, 0),
        (100, 100),
    ];
    let (heads, dim) = (2, 24);
    let (queries, keys) = lengths.iter().fold((0, 0), |(q, k), l| (q + l.0, k + l.1));
    let shape = Shape {
        heads,
        key_heads: heads,
        ..Shape::one_head(queries, keys, dim, dim)
    };
    let inputs = shape.inputs(2.0);
    let offsets = |side: fn(&(usize, usize)) -> usize| {
        let mut offsets = vec![0u32];
        for length in &lengths {
            offsets.push(offsets[offsets.len() - 1] + side(length) as u32);
        }
        offsets
    };
    let (query_offsets, key_offsets) = (offsets(|l| l.0), offsets(|l| l.1));
    let packed = Attention {
        causal: true,
        dropout: Some(Dropout {
            probability: 0.2,
            seed: 3,
        }),
        offsets: Some(Offsets {
            query: &query_offsets,
            key: &key_offsets,
        }),
        ..Attention::default()
    };
    check("packed", &packed, &Unmodified, shape, &inputs);
    let (output, lse) = forward(Level::current(), &packed, &Unmodified, shape, &inputs);
    for (index, &(queries_here, keys_here)) in lengths.iter().enumerate() {
        let (query, key) = (query_offsets[index] as usize, key_offsets[index] as usize);
        let cut = |input: &[f32], total: usize, first: usize, count: usize| -> Vec<f32> {
            let head = |h: usize| &input[(h * total + first) * dim..][..count * dim];
            [head(0), head(1)].concat()
        };
        let alone = Shape {
            heads,
            key_heads: heads,
            ..Shape::one_head(queries_here, keys_here, dim, dim)
        };
        let alone_inputs = [
            cut(&inputs[0], queries, query, queries_here),
            cut(&inputs[1], keys, key, keys_here),
            cut(&inputs[2], keys, key, keys_here),
        ];
        // Dropout counts the sequence as the batch, so it is left out of this comparison.
        let attention = Attention {
            dropout: None,
            ..packed
        };
        let together = forward(Level::current(), &attention, &Unmodified, shape, &inputs);
        let attention = Attention {
            offsets: None,
            ..attention
        };
        let expected = forward(
            Level::current(),
            &attention,
            &Unmodified,
            alone,
            &alone_inputs,
        );
        assert_eq!(
            cut(&together.0, queries, query, queries_here),
            expected.0,
            "sequence {index}"
        );
    }
    assert!(output.iter().chain(&lse).all(|x| !x.is_nan()));
}

#[test]
fn the_same_bits_on_any_pool_and_in_any_batch() {
    let shape = Shape {
        batch: 3,
        heads: 4,
        key_heads: 2,
        ..Shape::one_head(150, 150, 32, 32)
    };
    let inputs = shape.inputs(2.0);
    let causal = Attention {
        causal: true,
        ..Attention::default()
    };
    let run = || {
        let (output, lse) = forward(Level::current(), &causal, &Unmodified, shape, &inputs);
        vec![output, lse]
    };
    let all = on_every_pool(run);
    let one = Shape { batch: 1, ..shape };
    let part = |x: &[f32]| x[x.len() / 3..x.len() / 3 * 2].to_vec();
    let middle = inputs.each_ref().map(|x| part(x));
    let (output, lse) = forward(Level::current(), &causal, &Unmodified, one, &middle);
    assert_eq!((output, lse), (part(&all[0]), part(&all[1])));
}

/// The error of a call of [`super::forward`] whose arguments were spoiled.
fn refused(spoil: impl Fn(&mut Attention, &mut [View; 3])) -> String {
    let numbers = vec![0.0f32; 4096];
    let view = |shape| View::heads_first(&numbers, shape);
    let mut views = [view([2, 4, 6, 8]), view([2, 2, 5, 8]), view([2, 2, 5, 3])];
    let mut attention = Attention::default();
    spoil(&mut attention, &mut views);
    let mut output = vec![0.0f32; 2 * 4 * 6 * 3];
    let [query, key, value] = views;
    let to = ViewMut::heads_first(&mut output, [2, 4, 6, 3]);
    let error: KernelError =
        forward_modified(&attention, &Unmodified, query, key, value, to, None).unwrap_err();
    error.to_string()
}

#[test]
fn wrong_arguments_are_named() {
    let says = |message: String, words: &[&str]| {
        for word in words {
            assert!(message.contains(word), "{message:?} lacks {word:?}");
        }
    };
    says(
        refused(|_, v| v[1].shape[0] = 1),
        &["`key`", "batch", "1", "2"],
    );
    says(
        refused(|_, v| v[1].shape[3] = 7),
        &["`key`", "dim", "7", "8"],
    );
    says(
        refused(|_, v| v[2].shape[2] = 4),
        &["`value`", "length", "4", "5"],
    );
    says(
        refused(|_, v| (v[1].shape[1], v[2].shape[1]) = (3, 3)),
        &["`key`", "heads", "divides", "3"],
    );
    says(
        refused(|_, v| v[0].strides[2] = 100_000),
        &["`query`", "strides", "4096"],
    );
    says(
        refused(|_, v| (v[0].shape[3], v[1].shape[3]) = (0, 0)),
        &["`query`", "dim"],
    );
    says(
        refused(|a, _| a.scale = Some(f32::NAN)),
        &["`scale`", "finite"],
    );
    says(
        refused(|a, _| a.softcap = Some(0.0)),
        &["`softcap`", "above 0"],
    );
    says(
        refused(|a, _| a.lengths = Some(&[1])),
        &["`lengths`", "1", "2"],
    );
    says(
        refused(|a, _| a.alibi = Some(&[1.0; 3])),
        &["`alibi`", "3", "4"],
    );
    says(
        refused(|a, _| a.sink = Some(&[1.0, f32::NAN, 0.0, 0.0])),
        &["`sink`", "position 1", "NaN"],
    );
    static KEEP: [u8; 64] = [1; 64];
    says(
        refused(|a, _| a.keep = Some(View::heads_first(&KEEP, [1, 1, 6, 4]))),
        &["`keep`", "columns", "4", "5", "or 1"],
    );
    says(
        refused(|a, _| {
            a.dropout = Some(Dropout {
                probability: 1.0,
                seed: 0,
            })
        }),
        &["`dropout.probability`", "[0, 1)"],
    );
    says(
        refused(|a, _| {
            a.offsets = Some(Offsets {
                query: &[0, 6],
                key: &[0, 5],
            })
        }),
        &["`query`", "batch", "packed"],
    );
    let table = View::heads_first(&KEEP, [1, 1, 2, 2]);
    says(
        refused(|a, _| {
            a.blocks = Some(Blocks {
                query_size: 0,
                key_size: 4,
                table,
            })
        }),
        &["`blocks.query_size`", "at least 1"],
    );
    says(
        refused(|a, _| {
            a.documents = Some(Documents {
                query: &[0; 12],
                key: &[0; 9],
            })
        }),
        &["`documents.key`", "9", "10"],
    );
}

#[test]
fn what_is_observed_is_what_the_definition_says() {
    let shape = Shape {
        batch: 2,
        heads: 2,
        key_heads: 1,
        ..Shape::one_head(77, 100, 24, 20)
    };
    let inputs = shape.inputs(2.0);
    let options = Options::new(shape);
    let wides = inputs.each_ref().map(|x| wide(x));
    let (rows, wanted, k) = (4 * 77, [0usize, 30, 76, 30], 3);
    let mut checked = 0;
    for option in 0..OPTIONS {
        let mut attention = Attention::default();
        let name = options.set(option, &mut attention);
        let [query, key, value] = &wides;
        let truth = reference::forward(&attention, &Bent, shape.views(), query, key, value);
        for &level in Level::available() {
            let (_, lse) = forward(level, &attention, &Bent, shape, &inputs);
            let mut chosen = vec![f32::NAN; 4 * wanted.len() * 100];
            let (mut entropy, mut sums) = (vec![f32::NAN; rows], vec![f32::NAN; 400]);
            let (mut top_weights, mut top_keys) = (vec![f32::NAN; rows * k], vec![7; rows * k]);
            let observe = Observe {
                rows: Some((&wanted, &mut chosen)),
                entropy: Some(&mut entropy),
                column_sums: Some(&mut sums),
                top: Some(Top {
                    k,
                    weights: &mut top_weights,
                    keys: &mut top_keys,
                }),
            };
            let query = View::heads_first(&inputs[0], shape.views()[0]);
            let key = View::heads_first(&inputs[1], shape.views()[1]);
            observe_at(level, &attention, &Bent, query, key, &lse, observe).unwrap();
            let close = |x: f32, y: f64, what: &str| {
                let error = (f64::from(x) - y).abs();
                assert!(error < 3e-5, "{name} {level:?} {what}: {x} is not {y}");
            };
            for head in 0..4 {
                for (index, row) in wanted.iter().enumerate() {
                    for j in 0..100 {
                        let expected = truth.weights[(head * 77 + row) * 100 + j];
                        close(chosen[(head * 4 + index) * 100 + j], expected, "row");
                    }
                }
                for j in 0..100 {
                    let column = (0..77).map(|i| truth.weights[(head * 77 + i) * 100 + j]);
                    close(sums[head * 100 + j], column.sum(), "column sum");
                }
                for i in 0..77 {
                    let row = head * 77 + i;
                    let weights = &truth.weights[row * 100..][..100];
                    let mut expected: f64 = weights
                        .iter()
                        .filter(|&&w| w > 0.0)
                        .map(|w| -w * w.ln())
                        .sum();
                    if attention.sink.is_some() {
                        let share = 1.0 - weights.iter().sum::<f64>();
                        expected -= share * share.ln();
                    }
                    close(entropy[row], expected, "entropy");
                    let mut sorted = weights.to_vec();
                    sorted.sort_by(|a, b| b.total_cmp(a));
                    for place in 0..k {
                        close(top_weights[row * k + place], sorted[place], "top");
                        let key = top_keys[row * k + place];
                        if key != u32::MAX {
                            close(
                                top_weights[row * k + place],
                                weights[key as usize],
                                "top key",
                            );
                        }
                    }
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, OPTIONS * Level::available().len() * rows);
}
