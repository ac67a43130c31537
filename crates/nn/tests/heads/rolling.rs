//! A cache changes no number, whatever the masks: every built-in mask and combinations of them, in chunks of any size.

use std::ops::Range;

use burn::tensor::{Bool, Tensor, TensorData};
use proptest::prelude::*;
use regard_nn::{
    Attention, AttentionOptions, Observe, Path,
    cache::KeyValueCache,
    heads::{MultiHead, MultiHeadConfig},
    initialize::Initializer,
    mask::{Alignment, Grid, Mask, PaddingMask, Place},
    normalize::Normalize,
    position::{PositionConfig, RotaryConfig},
    score::{Location, Score},
};

use crate::{
    mechanisms::{close, distance, drawn},
    support::{device, values},
};

const BATCH: usize = 2;
const HEADS: usize = 4;

/// A mask, with the numbers from which it is made.
#[derive(Debug, Clone)]
enum Tree {
    Leaf(Leaf, [usize; 3]),
    And(Box<Tree>, Box<Tree>),
    Or(Box<Tree>, Box<Tree>),
    Not(Box<Tree>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Leaf {
    All,
    Causal,
    UpperLeft,
    Padding,
    Flags,
    Window,
    Dilated,
    Global,
    Longformer,
    LocalMonotonic,
    LocalPredictive,
    Block,
    BlockSparse,
    Chunked,
    Document,
    Prefix,
    Function,
}

const LEAVES: [Leaf; 17] = [
    Leaf::All,
    Leaf::Causal,
    Leaf::UpperLeft,
    Leaf::Padding,
    Leaf::Flags,
    Leaf::Window,
    Leaf::Dilated,
    Leaf::Global,
    Leaf::Longformer,
    Leaf::LocalMonotonic,
    Leaf::LocalPredictive,
    Leaf::Block,
    Leaf::BlockSparse,
    Leaf::Chunked,
    Leaf::Document,
    Leaf::Prefix,
    Leaf::Function,
];

fn leaf() -> impl Strategy<Value = Tree> {
    let sizes = [1usize..6, 1usize..4, 0usize..15];
    (prop::sample::select(LEAVES.to_vec()), sizes).prop_map(|(leaf, sizes)| Tree::Leaf(leaf, sizes))
}

fn tree() -> impl Strategy<Value = Tree> {
    leaf().prop_recursive(3, 8, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| Tree::And(a.into(), b.into())),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| Tree::Or(a.into(), b.into())),
            inner.prop_map(|a| Tree::Not(a.into())),
        ]
    })
}

/// The mask of a leaf for a part of a sequence: lists with an entry for each position end with the part.
fn mask_of(leaf: Leaf, [a, b, c]: [usize; 3], queries: &Range<usize>, keys: usize) -> Mask {
    let named = |part: usize| (part + c) / (a + 1);
    let list = |end: usize| [0, 1].map(|row| (0..end).map(|i| named(i + row)).collect());
    match leaf {
        Leaf::All => Mask::all(),
        Leaf::Causal => Mask::causal(),
        Leaf::UpperLeft => Mask::causal_aligned(Alignment::UpperLeft),
        Leaf::Padding => Mask::padding(PaddingMask::from_lengths(&[c, c + a], keys, &device())),
        Leaf::Flags => {
            let flags = [0, 1].map(|row| (0..keys).map(|i| (i * a + row + c) % 3 > 0).collect());
            Mask::padding(PaddingMask::from_flags(&flags, &device()).unwrap())
        }
        Leaf::Window => Mask::window(a).unwrap(),
        Leaf::Dilated => Mask::dilated_window(a, b).unwrap(),
        Leaf::Global => Mask::global(&[c, c / 2]),
        Leaf::Longformer => Mask::longformer(a, b, &[c]).unwrap(),
        Leaf::LocalMonotonic => Mask::local_monotonic(a),
        Leaf::LocalPredictive => {
            let centres: Vec<f32> = values("centres", queries.end, 8.0)[queries.clone()].to_vec();
            let centres = TensorData::new(centres, [1, 1, queries.len(), 1]);
            Mask::local_predictive(Tensor::from_data(centres, &device()) + 8.0, a)
        }
        Leaf::Block => Mask::block(a).unwrap(),
        Leaf::BlockSparse => {
            let table: Vec<Vec<bool>> = (0..queries.end.div_ceil(a))
                .map(|i| (0..keys.div_ceil(b)).map(|j| (i + j + c) % 3 > 0).collect())
                .collect();
            Mask::block_sparse(a, b, &table).unwrap()
        }
        Leaf::Chunked => Mask::chunked(a, b).unwrap(),
        Leaf::Document => Mask::documents(&list(queries.end), &list(keys)),
        Leaf::Prefix => Mask::prefix(&[c, a]),
        Leaf::Function => Mask::function("mine", move |at| {
            (at.batch + at.head + at.query * a + at.key * b + c) % 3 > 0
        }),
    }
}

impl Tree {
    /// The mask of queries that end where the keys do, from `queries.start` on.
    fn mask(&self, queries: &Range<usize>, globals: bool) -> Mask {
        let of = |tree: &Self| tree.mask(queries, globals);
        match self {
            Self::Leaf(Leaf::Global, _) if !globals => !Mask::all(),
            Self::Leaf(Leaf::Longformer, [a, b, _]) if !globals => {
                Mask::dilated_window(*a, *b).unwrap()
            }
            Self::Leaf(leaf, sizes) => mask_of(*leaf, *sizes, queries, queries.end),
            Self::And(a, b) => of(a) & of(b),
            Self::Or(a, b) => of(a) | of(b),
            Self::Not(a) => !of(a),
        }
    }
}

fn grid(queries: Range<usize>, keys: Range<usize>) -> Grid {
    Grid {
        batch: BATCH,
        heads: HEADS,
        queries: queries.len(),
        keys: keys.len(),
        first_query: queries.start,
        first_key: keys.start,
    }
}

/// The mask over all of `grid`.
fn seen(mask: &Mask, grid: &Grid) -> Tensor<4, Bool> {
    let shape = [grid.batch, grid.heads, grid.queries, grid.keys];
    mask.tensor(grid, &device()).unwrap().expand(shape)
}

fn flags(seen: Tensor<4, Bool>) -> Vec<bool> {
    seen.into_data().iter::<bool>().collect()
}

fn layer(attention: Attention) -> MultiHead {
    let config = MultiHeadConfig {
        position: PositionConfig::Rotary(RotaryConfig::new(4)),
        head_size: Some(4),
        ..MultiHeadConfig::grouped_query(10, HEADS, 2)
    };
    let init = &mut Initializer::new(3, &device());
    config.init_with(attention, init).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..Default::default() })]

    /// The mask of a part is that part of the mask.
    #[test]
    fn parts_of_masks(tree in tree(), length in 1usize..14, first in (0usize..14, 0usize..14)) {
        let (first_query, first_key) = (first.0 % length, first.1 % length);
        let whole = seen(&tree.mask(&(0..length), true), &grid(0..length, 0..length));
        let expected = whole
            .narrow(2, first_query, length - first_query)
            .narrow(3, first_key, length - first_key);
        let queries = first_query..length;
        let mask = tree.mask(&queries, true);
        let part = grid(queries, first_key..length);
        let found = flags(seen(&mask, &part));
        prop_assert_eq!(&found, &flags(expected), "{:?}", part);
        let mut found = found.into_iter();
        for (batch, head) in (0..BATCH).flat_map(|batch| (0..HEADS).map(move |head| (batch, head))) {
            for (query, key) in (first_query..length).flat_map(|i| (first_key..length).map(move |j| (i, j))) {
                let place = Place { batch, head, query, key };
                prop_assert_eq!(mask.sees(&part, place), Ok(found.next().unwrap()), "{:?}", place);
            }
        }
    }

    /// Grouped heads and rotary positions; fused or plain; growing or rolling: in chunks the numbers are those of the whole
    /// pass. Only masks that need a global position that the cache has dropped are refused.
    #[test]
    fn chunks_are_the_whole_pass(
        tree in tree(),
        chunks in prop::collection::vec(1usize..6, 1..7),
        window in prop::option::of(1usize..7),
        plain in any::<bool>(),
    ) {
        let path = if plain { Path::Plain } else { Path::Auto };
        let layer = layer(Attention::new(Score::scaled_dot()));
        let length = chunks.iter().sum();
        let x = drawn("x", [BATCH, length, 10], 1.0);
        let all = tree.mask(&(0..length), true);
        let within = window.map_or(Mask::all(), |window| Mask::window(window).unwrap());
        let call = |mask| AttentionOptions::new(Observe::Nothing).mask(mask).path(path);
        let whole = layer.forward(x.clone(), call(all.clone() & Mask::causal() & within)).unwrap().output;
        let grid = grid(0..length, 0..length);
        let lost = seen(&all, &grid).bool_and(seen(&tree.mask(&(0..length), false), &grid).bool_not());
        let mut cache = match window {
            Some(window) => KeyValueCache::rolling(window).unwrap(),
            None => KeyValueCache::growing(),
        };
        let mut first = 0;
        for chunk in chunks {
            let queries = first..first + chunk;
            let dropped = first - cache.visible();
            let needed = dropped > 0
                && lost.clone().narrow(2, first, chunk).narrow(3, 0, dropped).any().into_scalar::<bool>();
            let new = x.clone().narrow(1, first, chunk);
            let read = layer.forward_cached(new, &mut cache, call(tree.mask(&queries, true)));
            if needed {
                let error = read.unwrap_err().to_string();
                prop_assert!(error.starts_with("`mask` is global over position "), "{error}");
                prop_assert_eq!(cache.next_position(), first, "a refused step leaves the cache as it was");
                return Ok(());
            }
            let (found, expected) = (read.unwrap().output, whole.clone().narrow(1, first, chunk));
            prop_assert!(close(&found, &expected), "at {first}: off by {}", distance(&found, &expected));
            first += chunk;
        }
    }
}

/// Masks set on the layer, once for all steps.
#[test]
fn masks_of_the_layer_count_from_the_beginning() {
    let by_place = || Mask::function("by place", |at| at.key * 2 != at.query);
    let masks = [
        Mask::chunked(3, 1).unwrap(),
        Mask::block(4).unwrap(),
        Mask::local_monotonic(2),
        Mask::dilated_window(2, 2).unwrap(),
        Mask::prefix(&[3]),
        !Mask::global(&[0, 5]),
        Mask::global(&[0]) & Mask::window(2).unwrap(),
        Mask::global(&[0]) | Mask::causal(),
        by_place(),
        !Mask::chunked(2, 0).unwrap() | by_place(),
    ];
    let x = drawn("x", [BATCH, 19, 10], 1.0);
    let mut checked = 0;
    for mask in masks {
        let layer = layer(Attention::new(Score::scaled_dot()).with_mask(mask.clone()));
        for path in [Path::Auto, Path::Plain] {
            let window = Mask::window(6).unwrap();
            let call = AttentionOptions::default()
                .mask(Mask::causal() & window)
                .path(path);
            let whole = layer.forward(x.clone(), call).unwrap().output;
            for chunks in [vec![1; 19], vec![7, 1, 5, 6]] {
                let mut cache = KeyValueCache::rolling(6).unwrap();
                let mut first = 0;
                for chunk in chunks {
                    let new = x.clone().narrow(1, first, chunk);
                    let call = AttentionOptions::default().path(path);
                    let read = layer.forward_cached(new, &mut cache, call).unwrap();
                    let expected = whole.clone().narrow(1, first, chunk);
                    assert!(
                        close(&read.output, &expected),
                        "{mask:?} at {first}: off by {}",
                        distance(&read.output, &expected)
                    );
                    first += chunk;
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, 10 * 2 * (19 + 4));
}

/// What needs a dropped key is refused by name: a global key, a global query, a score that counts the keys itself.
#[test]
fn what_a_rolling_cache_has_dropped() {
    let x = |length| drawn("x", [1, length, 10], 1.0);
    let refused = |attention: Attention, steps: usize| {
        let layer = layer(attention);
        let mut cache = KeyValueCache::rolling(4).unwrap();
        for _ in 0..steps {
            layer
                .forward_cached(x(1), &mut cache, AttentionOptions::default())
                .unwrap();
        }
        let read = layer.forward_cached(x(1), &mut cache, AttentionOptions::default());
        read.unwrap_err().to_string()
    };
    let of_mask = |mask| Attention::new(Score::scaled_dot()).with_mask(mask);
    assert_eq!(
        refused(of_mask(Mask::longformer(2, 1, &[1]).unwrap()), 5),
        "`mask` is global over position 1, which cannot be combined with a cache that keeps positions from 2 on: \
         keep all positions with `KeyValueCache::growing`"
    );
    let error = refused(of_mask(Mask::longformer(2, 1, &[6]).unwrap()), 6);
    assert!(error.contains("global over position 0"), "{error}");
    let location = Score::Location(Location::new(4, 9, &mut Initializer::new(1, &device())));
    let error = refused(
        Attention::new(location).with_normalize(Normalize::softmax()),
        4,
    );
    assert!(
        error.contains("`first_key` is 1") && error.contains("the location score"),
        "{error}"
    );
}
