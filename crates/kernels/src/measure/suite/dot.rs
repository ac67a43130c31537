//! Dot-product attention. Work: `4 · dim` operations for each visible pair of query and key in the
//! forward pass.

use crate::{
    Attention, Blocks, Dropout, Offsets, View, ViewMut, Window, dot,
    measure::{
        case::{Call, Case, Unit, Yardstick},
        numbers,
    },
};

/// Sizes of one call.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    batch: usize,
    heads: usize,
    key_heads: usize,
    length: usize,
    dim: usize,
}

/// Options with data of their own.
#[derive(Clone, Default)]
pub(super) struct Options {
    causal: bool,
    window: Option<Window>,
    softcap: Option<f32>,
    dropout: Option<Dropout>,
    alibi: Option<Vec<f32>>,
    sink: Option<Vec<f32>>,
    /// `[length, length]`
    bias: Option<Vec<f32>>,
    /// `[length, length]`
    keep: Option<Vec<u8>>,
    lengths: Option<Vec<u32>>,
    /// The size of a block, and the table `[length / size, length / size]`.
    blocks: Option<(usize, Vec<u8>)>,
    offsets: Option<Vec<u32>>,
}

impl Shape {
    pub(super) const fn new(batch: usize, heads: usize, length: usize, dim: usize) -> Self {
        Self {
            batch,
            heads,
            key_heads: heads,
            length,
            dim,
        }
    }

    pub(super) fn query(&self) -> [usize; 4] {
        [self.batch, self.heads, self.length, self.dim]
    }

    fn key(&self) -> [usize; 4] {
        [self.batch, self.key_heads, self.length, self.dim]
    }

    fn words(&self) -> String {
        let Self {
            batch,
            heads,
            key_heads,
            length,
            dim,
        } = self;
        match key_heads == heads {
            true => format!("b{batch} h{heads} l{length} d{dim}"),
            false => format!("b{batch} h{heads}/{key_heads} l{length} d{dim}"),
        }
    }
}

impl Options {
    pub(super) fn causal() -> Self {
        Self {
            causal: true,
            ..Self::default()
        }
    }

    pub(super) fn attention(&self, shape: Shape) -> Attention<'_> {
        let plane = [1, 1, shape.length, shape.length];
        Attention {
            causal: self.causal,
            window: self.window,
            softcap: self.softcap,
            dropout: self.dropout,
            alibi: self.alibi.as_deref(),
            sink: self.sink.as_deref(),
            bias: self
                .bias
                .as_ref()
                .map(|bias| View::heads_first(bias, plane)),
            keep: self
                .keep
                .as_ref()
                .map(|keep| View::heads_first(keep, plane)),
            lengths: self.lengths.as_deref(),
            blocks: self.blocks.as_ref().map(|(size, table)| Blocks {
                query_size: *size,
                key_size: *size,
                table: View::heads_first(table, [1, 1, shape.length / size, shape.length / size]),
            }),
            offsets: self.offsets.as_ref().map(|offsets| Offsets {
                query: offsets,
                key: offsets,
            }),
            ..Attention::default()
        }
    }
}

/// Visible pairs of queries and keys under a causal mask of `length`, with at most `window` keys
/// before each query.
pub(super) fn causal_pairs(length: usize, window: usize) -> f64 {
    (0..length)
        .map(|query| (query + 1).min(window) as f64)
        .sum()
}

/// Lengths of 64 sentences from 5 to 80 tokens, as offsets.
fn sentences() -> Vec<u32> {
    let lengths = (0..64u32).map(|sentence| 5 + sentence * 29 % 76);
    std::iter::once(0)
        .chain(lengths.scan(0, |total, length| {
            *total += length;
            Some(*total)
        }))
        .collect()
}

pub(super) fn forward(kernel: &str, shape: Shape, options: &Options, pairs: f64) -> Case {
    let options = options.clone();
    Case {
        kernel: kernel.to_owned(),
        shape: shape.words(),
        dtype: "f32",
        unit: Unit::Operations,
        yardstick: Yardstick::Fma,
        work: 4.0 * shape.dim as f64 * pairs * (shape.batch * shape.heads) as f64,
        scores: Some(shape.batch * shape.heads * shape.length * shape.length),
        prepare: Box::new(move || forward_call(shape, options.clone())),
    }
}

fn forward_call(shape: Shape, options: Options) -> Call {
    let size = |shape: [usize; 4]| shape.iter().product::<usize>();
    let query = numbers(1, size(shape.query()), 1.7);
    let key = numbers(2, size(shape.key()), 1.7);
    let value = numbers(3, size(shape.key()), 1.0);
    let mut output = vec![0.0; query.len()];
    let mut lse = vec![0.0; 3 * shape.batch * shape.heads * shape.length];
    Box::new(move || {
        dot::forward(
            &options.attention(shape),
            View::heads_first(&query, shape.query()),
            View::heads_first(&key, shape.key()),
            View::heads_first(&value, shape.key()),
            ViewMut::heads_first(&mut output, shape.query()),
            Some(&mut lse),
        )
    })
}

pub(super) fn cases() -> Vec<Case> {
    let plain = Options::default();
    let causal = Options::causal();
    let mut cases = Vec::new();
    for shape in [
        Shape::new(8, 8, 128, 64),
        Shape::new(1, 8, 512, 64),
        Shape::new(1, 8, 1024, 64),
        Shape::new(1, 8, 4096, 64),
        Shape::new(1, 8, 512, 128),
        Shape::new(1, 8, 2048, 128),
        Shape {
            key_heads: 2,
            ..Shape::new(1, 8, 1024, 128)
        },
    ] {
        let length = shape.length;
        cases.push(forward(
            "dot forward",
            shape,
            &plain,
            (length * length) as f64,
        ));
        cases.push(forward(
            "dot forward causal",
            shape,
            &causal,
            causal_pairs(length, length),
        ));
    }
    let window = Options {
        window: Some(Window {
            left: Some(255),
            right: None,
        }),
        ..causal.clone()
    };
    let shape = Shape::new(1, 8, 8192, 64);
    cases.push(forward(
        "dot forward window 256",
        shape,
        &window,
        causal_pairs(8192, 256),
    ));
    cases.push(block_sparse());
    for dim in [32, 64] {
        let of = |shape, options: &_, pairs| forward("dot forward packed", shape, options, pairs);
        cases.push(variable_lengths(dim, of));
    }
    cases.extend(optional());
    cases
}

/// Lengths at which memory is measured.
pub(super) const MEMORY_LENGTHS: [usize; 4] = [1024, 4096, 16_384, 65_536];

pub(super) fn memory_cases() -> Vec<Case> {
    let causal = Options::causal();
    MEMORY_LENGTHS
        .into_iter()
        .map(|length| {
            let shape = Shape::new(1, 1, length, 64);
            forward(
                "dot forward causal",
                shape,
                &causal,
                causal_pairs(length, length),
            )
        })
        .collect()
}

/// A tenth of the 64 x 64 blocks.
fn block_sparse() -> Case {
    let shape = Shape::new(1, 8, 4096, 64);
    let blocks = shape.length / 64;
    let table: Vec<u8> = (0..blocks * blocks)
        .map(|block| u8::from((block * 7919 + block / blocks * 31).is_multiple_of(10)))
        .collect();
    let visible = table.iter().filter(|&&seen| seen != 0).count();
    let options = Options {
        blocks: Some((64, table)),
        ..Options::default()
    };
    forward(
        "dot forward blocks 10 %",
        shape,
        &options,
        (visible * 64 * 64) as f64,
    )
}

/// A case of sentences of different lengths one after the other.
pub(super) fn variable_lengths(
    dim: usize,
    case: impl FnOnce(Shape, &Options, f64) -> Case,
) -> Case {
    let offsets = sentences();
    let pairs = offsets
        .windows(2)
        .map(|pair| f64::from(pair[1] - pair[0]).powi(2))
        .sum();
    let shape = Shape::new(1, 8, offsets[offsets.len() - 1] as usize, dim);
    let options = Options {
        offsets: Some(offsets),
        ..Options::default()
    };
    let mut case = case(shape, &options, pairs);
    case.shape = format!("64 x 5-80 h8 d{dim}");
    case
}

/// Each option alone, and a call without options.
fn optional() -> Vec<Case> {
    let shape = Shape::new(1, 8, 2048, 64);
    let length = shape.length;
    let plane = length * length;
    let half = Window {
        left: Some(length / 4),
        right: Some(length / 4),
    };
    let mut cases = vec![];
    let mut case = |kernel: &str, pairs: f64, set: &dyn Fn(&mut Options)| {
        let mut options = Options::default();
        set(&mut options);
        cases.push(forward(kernel, shape, &options, pairs));
    };
    let all = plane as f64;
    case("dot forward", all, &|_| {});
    case("dot forward softcap", all, &|o| o.softcap = Some(20.0));
    case("dot forward bias", all, &|o| {
        o.bias = Some(numbers(4, plane, 1.0));
    });
    case("dot forward alibi", all, &|o| o.alibi = Some(vec![0.01; 8]));
    case("dot forward sink", all, &|o| o.sink = Some(vec![0.5; 8]));
    // This mask hides next to nothing, so that the work stays the same: what is measured is the cost of reading it.
    case("dot forward keep mask", all, &|o| {
        o.keep = Some((0..plane).map(|x| u8::from(x % 61 != 0)).collect());
    });
    let pairs = (2000 * length) as f64;
    case("dot forward lengths", pairs, &|o| {
        o.lengths = Some(vec![2000]);
    });
    let pairs = 2.0 * causal_pairs(length, length / 4 + 1) - length as f64;
    case("dot forward window ±512", pairs, &|o| {
        o.window = Some(half)
    });
    case("dot forward dropout", all, &|o| {
        o.dropout = Some(Dropout {
            probability: 0.1,
            seed: 1,
            first_batch: 0,
        });
    });
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted() {
        assert_eq!(causal_pairs(4, 4), 10.0);
        assert_eq!(causal_pairs(4, 2), 7.0);
        let offsets = sentences();
        assert_eq!(offsets.len(), 65);
        let lengths: Vec<u32> = offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(lengths.iter().all(|length| (5..=80).contains(length)));
    }
}
