//! The kernels against their definition.

use super::{
    forward_at,
    modify::{Modify, Place, Unmodified},
    reference,
};
use crate::{
    Alignment, Attention, Blocks, Documents, Dropout, KernelError, Offsets, View, ViewMut, Window,
    simd::Level,
    testing::{assert_close, on_every_pool, random, wide},
};

/// Shapes of one call.
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

    fn inputs(&self, scale: f32) -> [Vec<f32>; 3] {
        let mut seed = 0;
        self.views().map(|shape| {
            seed += 1;
            random(seed, shape.iter().product(), scale)
        })
    }
}

/// Small shapes of all the awkward kinds.
fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (queries, keys) in [(1, 1), (2, 5), (97, 97), (33, 200), (130, 50), (257, 257)] {
        for (dim, value_dim) in [(1, 3), (40, 40), (59, 64), (64, 111), (128, 8)] {
            shapes.push(Shape {
                batch: 1,
                heads: 2,
                key_heads: 1,
                queries,
                keys,
                dim,
                value_dim,
            });
        }
    }
    shapes.push(Shape {
        batch: 2,
        heads: 8,
        key_heads: 2,
        queries: 50,
        keys: 70,
        dim: 16,
        value_dim: 16,
    });
    shapes
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
        ViewMut::heads_first(
            &mut output,
            [shape.batch, shape.heads, shape.queries, shape.value_dim],
        ),
        Some(&mut lse),
    )
    .unwrap();
    (output, lse)
}

/// Runs forward on every level and compares with the definition.
fn check<M: Modify>(
    name: &str,
    attention: &Attention,
    modify: &M,
    shape: Shape,
    inputs: &[Vec<f32>; 3],
) {
    let wides = inputs.each_ref().map(|x| wide(x));
    let [query, key, value] = &wides;
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
        let finite = |x: &[f64]| -> Vec<f64> { x.iter().map(|x| x.max(-1e30)).collect() };
        let lse32 = |x: &[f32]| -> Vec<f32> { x.iter().map(|x| x.max(-1e30)).collect() };
        assert_close(
            &format!("{name}: lse"),
            &lse32(&lse),
            &lse32(&naive.lse),
            &finite(&truth.lse),
            2.0,
        );
    }
}

#[test]
fn plain_attention_of_every_shape() {
    for shape in shapes() {
        check(
            "plain",
            &Attention::default(),
            &Unmodified,
            shape,
            &shape.inputs(2.0),
        );
    }
}

/// Options by name, for a shape.
struct Options {
    bias: Vec<f32>,
    keep: Vec<u8>,
    lengths: Vec<u32>,
    prefix: Vec<u32>,
    query_documents: Vec<u32>,
    key_documents: Vec<u32>,
    table: Vec<u8>,
    per_head: Vec<f32>,
}

impl Options {
    fn new(shape: Shape) -> Self {
        let plane = shape.queries * shape.keys;
        let blocks = shape.queries.div_ceil(32) * shape.keys.div_ceil(24);
        Self {
            bias: random(11, shape.heads * plane, 3.0),
            keep: (0..plane).map(|x| u8::from(x * 7919 % 11 > 4)).collect(),
            lengths: (0..shape.batch)
                .map(|b| (shape.keys * 2 / 3 + b) as u32)
                .collect(),
            prefix: vec![(shape.keys / 4) as u32; shape.batch],
            query_documents: (0..shape.batch * shape.queries)
                .map(|i| (i % shape.queries / 20) as u32)
                .collect(),
            key_documents: (0..shape.batch * shape.keys)
                .map(|j| (j % shape.keys / 23) as u32)
                .collect(),
            table: (0..blocks).map(|x| u8::from(x % 3 != 1)).collect(),
            per_head: (0..shape.heads).map(|h| 0.5 / (h + 1) as f32).collect(),
        }
    }

    fn all(&self, shape: Shape) -> Vec<(&'static str, Box<dyn Fn(&mut Attention<'_>) + '_>)> {
        let Shape {
            queries,
            keys,
            heads,
            ..
        } = shape;
        // The borrows of `self` outlive every call.
        macro_rules! option {
            ($name:literal, |$a:ident| $body:expr) => {{
                (
                    $name,
                    Box::new(move |$a: &mut Attention<'_>| {
                        // SAFETY: never; see `set`.
                        $body
                    }) as Box<dyn Fn(&mut Attention<'_>) + '_>,
                )
            }};
        }
        let _ = (queries, keys, heads);
        vec![
            option!("scale", |a| a.scale = Some(0.3)),
            option!("softcap", |a| a.softcap = Some(2.0)),
        ]
    }
}

struct Bent;
impl Modify for Bent {
    fn score(&self, score: f32, place: Place) -> f32 {
        0.5 * score - 0.01 * place.query.abs_diff(place.key) as f32
    }
    fn slope(&self, _: f32, _: Place) -> f32 {
        0.5
    }
}

#[test]
fn nothing() {
    let _ = (Alignment::LowerRight, on_every_pool(|| vec![]));
    let _ = |_: Blocks, _: Documents, _: Dropout, _: KernelError, _: Offsets, _: Window| {};
    let _ = (Options::new, Options::all, Bent);
}
