//! A random call that owns its shapes, strides, data and options.

use regard_kernels::{
    Alignment, Attention, Blocks, Documents, Dropout, Offsets, RelativeBias, View, ViewMut, Window,
};

use crate::dice::Dice;

/// A strided array in an allocation of exactly its extent.
pub struct Tensor<T> {
    pub data: Box<[T]>,
    pub shape: [usize; 4],
    pub strides: [usize; 3],
}

impl<T: Copy> Tensor<T> {
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut {
            data: &mut self.data,
            shape: self.shape,
            strides: self.strides,
        }
    }

    pub fn view(&self) -> View<'_, T> {
        View {
            data: &self.data,
            shape: self.shape,
            strides: self.strides,
        }
    }

    /// Indices of all elements, in order.
    pub fn places(&self) -> impl Iterator<Item = usize> + use<T> {
        let ([batch, heads, length, dim], strides) = (self.shape, self.strides);
        (0..batch * heads * length * dim).map(move |index| {
            let (row, column) = (index / dim, index % dim);
            let (position, head) = (row % length, row / length % heads);
            row / length / heads * strides[0] + head * strides[1] + position * strides[2] + column
        })
    }

    /// The elements, contiguous.
    pub fn contiguous(&self) -> Vec<T> {
        self.places().map(|place| self.data[place]).collect()
    }
}

/// Strides under which no two rows share an element, or, if `shared`, any strides; and the extent.
fn layout(dice: &mut Dice, shape: [usize; 4], shared: bool) -> ([usize; 3], usize) {
    let mut strides = [0; 3];
    let order = dice.pick(&[[2, 1, 0], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
    let mut step = shape[3];
    for axis in order {
        step += if dice.once_in(3) { dice.below(5) } else { 0 };
        strides[axis] = step;
        step *= shape[axis].max(1);
    }
    if shared && dice.once_in(4) {
        strides[dice.below(3)] = dice.below(4);
    }
    let extent = match shape.contains(&0) {
        true => 0,
        false => {
            (0..3)
                .map(|axis| strides[axis] * (shape[axis] - 1))
                .sum::<usize>()
                + shape[3]
        }
    };
    (strides, extent)
}

pub fn tensor<T>(
    dice: &mut Dice,
    shape: [usize; 4],
    shared: bool,
    mut make: impl FnMut(&mut Dice) -> T,
) -> Tensor<T> {
    let (strides, extent) = layout(dice, shape, shared);
    let data = (0..extent).map(|_| make(dice)).collect();
    Tensor {
        data,
        shape,
        strides,
    }
}

/// The sizes of a call.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Batch entries, or packed sequences.
    pub sequences: usize,
    pub heads: usize,
    pub key_heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub dim: usize,
    pub value_dim: usize,
    /// The longest sequence.
    pub longest: (usize, usize),
    pub packed: bool,
}

impl Sizes {
    /// The batch of the views.
    pub fn batch(&self) -> usize {
        if self.packed { 1 } else { self.sequences }
    }

    pub fn shape(&self, heads: usize, length: usize, dim: usize) -> [usize; 4] {
        [self.batch(), heads, length, dim]
    }
}

/// The magnitudes of the numbers from which scores are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Magnitudes {
    /// As in a model.
    Moderate,
    /// Any, but such that products are exact in `f32`: multiples of 1/8 and powers of 2.
    Exact,
    /// Any.
    Wild,
}

/// A call with all the data that it borrows.
pub struct Problem {
    pub sizes: Sizes,
    pub magnitudes: Magnitudes,
    pub query: Tensor<f32>,
    pub key: Tensor<f32>,
    pub value: Tensor<f32>,
    pub scale: Option<f32>,
    pub softcap: Option<f32>,
    pub alignment: Alignment,
    pub causal: bool,
    pub window: Option<Window>,
    pub prefix: Option<Box<[u32]>>,
    pub lengths: Option<Box<[u32]>>,
    pub keep: Option<Tensor<u8>>,
    pub documents: Option<[Box<[u32]>; 2]>,
    pub blocks: Option<(usize, usize, Tensor<u8>)>,
    pub bias: Option<Tensor<f32>>,
    pub alibi: Option<Box<[f32]>>,
    pub sink: Option<Box<[f32]>>,
    pub dropout: Option<Dropout>,
    pub offsets: Option<[Box<[u32]>; 2]>,
    /// `[heads, distances]`, and the place of distance 0.
    pub relative: Option<(Box<[f32]>, usize)>,
}

/// Mostly short, so that many cases fit into a second; a few so long (1,024 and more) that the backward pass divides keys,
/// not queries.
fn length(dice: &mut Dice) -> usize {
    match dice.below(512) {
        0 => 1_020 + dice.below(100),
        1..8 => 0,
        8..16 => 64 + dice.below(100),
        16..64 => 16 + dice.below(40),
        _ => 1 + dice.below(20),
    }
}

/// Query heads for each key head: sometimes so many that those with a common mask are computed together.
fn group(dice: &mut Dice) -> usize {
    match dice.below(16) {
        0 => 4 + dice.below(12),
        _ => 1 + dice.below(3),
    }
}

fn dim(dice: &mut Dice) -> usize {
    match dice.below(64) {
        0 => 1 + dice.below(256),
        1..8 => 1 + dice.below(70),
        _ => 1 + dice.below(18),
    }
}

impl Problem {
    /// A valid call.
    pub fn new(dice: &mut Dice) -> Self {
        let key_heads = 1 + dice.below(2);
        let mut sizes = Sizes {
            sequences: if dice.once_in(50) {
                0
            } else {
                1 + dice.below(2)
            },
            heads: key_heads * group(dice),
            key_heads,
            queries: length(dice),
            keys: length(dice),
            dim: dim(dice),
            value_dim: dim(dice),
            longest: (0, 0),
            packed: dice.once_in(5),
        };
        if sizes.keys > 1_000 {
            sizes.queries = sizes.queries.min(70); // the definition is slow
        }
        sizes.longest = (sizes.queries, sizes.keys);
        let offsets = sizes.packed.then(|| {
            sizes.sequences = 1 + dice.below(4);
            let query = offsets(dice, sizes.sequences, sizes.queries);
            let key = offsets(dice, sizes.sequences, sizes.keys);
            sizes.longest = (longest(&query), longest(&key));
            [query, key]
        });
        let magnitudes = dice.pick(&[
            Magnitudes::Moderate,
            Magnitudes::Moderate,
            Magnitudes::Exact,
            Magnitudes::Wild,
        ]);
        let shape = sizes.shape(sizes.heads, sizes.queries, sizes.dim);
        let number = operand(dice, magnitudes);
        let query = tensor(dice, shape, true, number);
        let shape = sizes.shape(sizes.key_heads, sizes.keys, sizes.dim);
        let number = operand(dice, magnitudes);
        let key = tensor(dice, shape, true, number);
        let shape = sizes.shape(sizes.key_heads, sizes.keys, sizes.value_dim);
        let spread = match magnitudes {
            Magnitudes::Moderate => dice.pick(&[1.0, 1.0, 1.0, 30.0]),
            _ => power_of_two(dice, 20),
        };
        let value = tensor(dice, shape, true, |dice: &mut Dice| dice.number(spread));
        let counts = |dice: &mut Dice| -> Box<[u32]> {
            (0..sizes.sequences)
                .map(|_| dice.below(sizes.keys + 3) as u32)
                .collect()
        };
        let slope = |dice: &mut Dice| match magnitudes {
            Magnitudes::Moderate => dice.number(1.0),
            Magnitudes::Exact => dice.pick(&[-1.0, 1.0]) * power_of_two(dice, 60),
            Magnitudes::Wild => dice.number(1.0) * power_of_two(dice, 60),
        };
        let sink = |dice: &mut Dice| match magnitudes == Magnitudes::Moderate || dice.once_in(2) {
            true => dice.number(1.0),
            false => huge(dice),
        };
        macro_rules! per_head {
            ($number:ident) => {
                (0..sizes.heads).map(|_| $number(dice)).collect()
            };
        }
        let document_rows = if sizes.packed { 1 } else { sizes.sequences };
        let documents = |dice: &mut Dice, length: usize| -> Box<[u32]> {
            (0..document_rows * length)
                .map(|_| dice.below(2) as u32)
                .collect()
        };
        macro_rules! sometimes {
            ($value:expr) => {
                if dice.once_in(5) { Some($value) } else { None }
            };
        }
        Self {
            sizes,
            magnitudes,
            query,
            key,
            value,
            scale: match magnitudes {
                Magnitudes::Moderate => sometimes!(dice.number(1.0)),
                Magnitudes::Exact => {
                    Some(dice.pick(&[-1.0, 1.0, 1.0, 0.0]) * power_of_two(dice, 36))
                }
                Magnitudes::Wild => Some(dice.number(1.0) * power_of_two(dice, 60)),
            },
            softcap: match magnitudes {
                Magnitudes::Moderate => sometimes!(0.1 + dice.number(1.0).abs() * 20.0),
                Magnitudes::Exact => None,
                Magnitudes::Wild => {
                    sometimes!((0.1 + dice.number(1.0).abs()) * power_of_two(dice, 30))
                }
            },
            alignment: dice.pick(&[Alignment::LowerRight, Alignment::UpperLeft]),
            causal: dice.once_in(3),
            window: sometimes!(Window {
                left: side(dice),
                right: side(dice),
            }),
            prefix: sometimes!(counts(dice)),
            lengths: sometimes!(counts(dice)),
            keep: sometimes!(plane(dice, &sizes, |dice| dice.below(4) as u8)),
            documents: sometimes!([documents(dice, sizes.queries), documents(dice, sizes.keys)]),
            blocks: sometimes!(blocks(dice, &sizes)),
            bias: match magnitudes == Magnitudes::Moderate && !dice.once_in(5) || dice.once_in(3) {
                true => None,
                false => {
                    let number = biases(dice, magnitudes);
                    Some(plane(dice, &sizes, number))
                }
            },
            alibi: sometimes!(per_head!(slope)),
            sink: sometimes!(per_head!(sink)),
            dropout: sometimes!(Dropout {
                probability: dice.number(0.999).abs(),
                seed: dice.next(),
                first_batch: 0,
            }),
            offsets,
            relative: match magnitudes {
                Magnitudes::Moderate => sometimes!({
                    let distances = 1 + dice.below(40);
                    let values = (0..sizes.heads * distances).map(|_| dice.number(4.0));
                    (values.collect(), dice.below(distances))
                }),
                _ => None,
            },
        }
    }

    /// A description of the call, for messages.
    pub fn options(&self) -> String {
        let size = |tensor: &Tensor<f32>| tensor.data.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        let sizes = [&self.query, &self.key, &self.value].map(size);
        format!(
            "{:?}, {:?}, query, key and value up to {sizes:?}, scale {:?}, softcap {:?}, {:?}, causal {}, window {:?}, \
             prefix {:?}, lengths {:?}, keep {}, documents {}, blocks {}, bias {:?}, alibi {:?}, sink {:?}, dropout {:?}, \
             offsets {:?}, relative {:?}",
            self.magnitudes,
            self.sizes,
            self.scale,
            self.softcap,
            self.alignment,
            self.causal,
            self.window,
            self.prefix,
            self.lengths,
            self.keep.is_some(),
            self.documents.is_some(),
            self.blocks.is_some(),
            self.bias
                .as_ref()
                .map(|bias| (bias.shape, bias.data.iter().take(8).collect::<Vec<_>>())),
            self.alibi,
            self.sink,
            self.dropout,
            self.offsets,
            self.relative.as_ref().map(|(_, zero)| zero),
        )
    }

    /// Batch (or sequence), head, query and key of a score, given its row in `[batch, heads, queries]` and its key's
    /// number among all keys; `None` if the two are of different sequences.
    pub fn place(&self, row: usize, key: usize) -> Option<[usize; 4]> {
        let sizes = &self.sizes;
        let (plane, query) = (row / sizes.queries, row % sizes.queries);
        let (batch, head) = (plane / sizes.heads, plane % sizes.heads);
        let Some([queries, keys]) = &self.offsets else {
            return Some([batch, head, query, key]);
        };
        let sequence = (0..sizes.sequences).find(|&sequence| {
            let inside = |offsets: &[u32], at: usize| {
                (offsets[sequence] as usize..offsets[sequence + 1] as usize).contains(&at)
            };
            inside(queries, query) && inside(keys, key)
        })?;
        let first = |offsets: &[u32]| offsets[sequence] as usize;
        Some([sequence, head, query - first(queries), key - first(keys)])
    }

    pub fn attention(&self) -> Attention<'_> {
        Attention {
            scale: self.scale,
            softcap: self.softcap,
            alignment: self.alignment,
            causal: self.causal,
            window: self.window,
            prefix: self.prefix.as_deref(),
            lengths: self.lengths.as_deref(),
            keep: self.keep.as_ref().map(Tensor::view),
            documents: self
                .documents
                .as_ref()
                .map(|[query, key]| Documents { query, key }),
            blocks: self
                .blocks
                .as_ref()
                .map(|(query_size, key_size, table)| Blocks {
                    query_size: *query_size,
                    key_size: *key_size,
                    table: table.view(),
                }),
            bias: self.bias.as_ref().map(Tensor::view),
            alibi: self.alibi.as_deref(),
            sink: self.sink.as_deref(),
            dropout: self.dropout,
            offsets: self
                .offsets
                .as_ref()
                .map(|[query, key]| Offsets { query, key }),
            relative: self.relative.as_ref().map(|(values, zero)| RelativeBias {
                values,
                zero: *zero,
            }),
        }
    }
}

/// `2ⁿ` with `|n| ≤ most`.
fn power_of_two(dice: &mut Dice, most: usize) -> f32 {
    2.0f32.powi(dice.below(2 * most + 1) as i32 - most as i32)
}

/// A number that people use for "never", or one of any other size.
pub fn huge(dice: &mut Dice) -> f32 {
    match dice.below(16) {
        0 => f32::MIN,
        1 => dice.number(1.0) * power_of_two(dice, 126),
        _ => dice.pick(&[
            -1e5, -1e6, -1e9, -1e10, -1e12, -1e20, -1e30, 1e5, 1e9, 1e20, 1e30,
        ]),
    }
}

/// Makes numbers for queries or keys.
fn operand(dice: &mut Dice, magnitudes: Magnitudes) -> impl FnMut(&mut Dice) -> f32 + use<> {
    let size = match magnitudes {
        // Mostly moderate scores; sometimes such that one key takes all the weight.
        Magnitudes::Moderate => dice.pick(&[1.0, 1.0, 1.0, 30.0]),
        _ if dice.once_in(2) => 1.0,
        Magnitudes::Exact => power_of_two(dice, 36),
        Magnitudes::Wild => power_of_two(dice, 60),
    };
    let constant = (magnitudes != Magnitudes::Moderate && dice.once_in(6)).then(|| dice.below(3));
    move |dice| match (constant, magnitudes) {
        (Some(eighths), _) => eighths as f32 / 8.0 * size,
        (None, Magnitudes::Exact) => (dice.below(33) as f32 - 16.0) / 8.0 * size,
        (None, _) => dice.number(size),
    }
}

/// Makes numbers for a bias: the same for all keys, a mask, single keys far from the others, or neighbours that differ by
/// 1e-3 or 1e30.
fn biases(dice: &mut Dice, magnitudes: Magnitudes) -> impl FnMut(&mut Dice) -> f32 + use<> {
    let (plan, one) = match magnitudes {
        Magnitudes::Moderate => (0, 0.0),
        _ => (1 + dice.below(6), huge(dice)),
    };
    let hides = dice.once_in(2);
    move |dice| match plan {
        _ if hides && dice.once_in(9) => f32::NEG_INFINITY,
        1 => one,
        2 if dice.once_in(2) => one,
        3 if dice.once_in(20) => one,
        4 => one + 1e-3 * dice.below(9) as f32,
        5 => 1e30 * (dice.below(9) as f32 - 4.0),
        6 => huge(dice),
        _ => dice.number(3.0),
    }
}

fn offsets(dice: &mut Dice, sequences: usize, total: usize) -> Box<[u32]> {
    let mut all: Vec<u32> = (1..sequences)
        .map(|_| dice.below(total + 1) as u32)
        .collect();
    all.extend([0, total as u32]);
    all.sort_unstable();
    all.into()
}

fn longest(offsets: &[u32]) -> usize {
    offsets
        .windows(2)
        .map(|pair| (pair[1] - pair[0]) as usize)
        .max()
        .unwrap_or(0)
}

/// An array that broadcasts along some axes.
fn plane<T>(dice: &mut Dice, sizes: &Sizes, make: impl FnMut(&mut Dice) -> T) -> Tensor<T> {
    let full = [
        sizes.sequences,
        sizes.heads,
        sizes.longest.0,
        sizes.longest.1,
    ];
    let shape = full.map(|size| if dice.once_in(3) { 1 } else { size });
    tensor(dice, shape, true, make)
}

fn blocks(dice: &mut Dice, sizes: &Sizes) -> (usize, usize, Tensor<u8>) {
    let (query_size, key_size) = (1 + dice.below(40), 1 + dice.below(40));
    let mut shape =
        [sizes.sequences, sizes.heads, 0, 0].map(|size| if dice.once_in(2) { 1 } else { size });
    shape[2] = sizes.longest.0.div_ceil(query_size);
    shape[3] = sizes.longest.1.div_ceil(key_size);
    (
        query_size,
        key_size,
        tensor(dice, shape, true, |dice| dice.below(2) as u8),
    )
}

/// One side of a window.
fn side(dice: &mut Dice) -> Option<usize> {
    match dice.below(4) {
        0 => None,
        1 => Some(usize::MAX - dice.below(2)),
        _ => Some(dice.below(20)),
    }
}
