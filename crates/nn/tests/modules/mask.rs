//! Masks against their definitions, place by place; combinations, pictures, errors.

use burn::tensor::Tensor;
use proptest::prelude::*;
use regard_nn::mask::{Alignment, Grid, Mask, PaddingMask, Place};

use crate::support::device;

fn grid(batch: usize, heads: usize, queries: usize, keys: usize) -> Grid {
    Grid {
        batch,
        heads,
        queries,
        keys,
        ..Grid::default()
    }
}

/// Compares the tensor and `sees` with `expected(place, pos)`, where `pos` is the query's position among the keys,
/// the last query standing at the last key.
fn compare(mask: &Mask, grid: Grid, expected: impl Fn(Place, isize) -> bool) {
    let tensor = mask.tensor(&grid, &device()).unwrap();
    let full = tensor.expand([grid.batch, grid.heads, grid.queries, grid.keys]);
    let seen: Vec<bool> = full.into_data().iter::<bool>().collect();
    let mut at = seen.iter();
    for batch in 0..grid.batch {
        for head in 0..grid.heads {
            for query in 0..grid.queries {
                for key in 0..grid.keys {
                    let place = Place {
                        batch,
                        head,
                        query,
                        key,
                    };
                    let position = query as isize + grid.keys as isize - grid.queries as isize;
                    let expected = expected(place, position);
                    assert_eq!(*at.next().unwrap(), expected, "{mask:?} {place:?}");
                    assert_eq!(mask.sees(&grid, place), Ok(expected), "{mask:?} {place:?}");
                }
            }
        }
    }
}

const SIZES: [(usize, usize); 9] = [
    (1, 1),
    (1, 7),
    (7, 1),
    (5, 5),
    (3, 8),
    (8, 3),
    (2, 13),
    (17, 17),
    (4, 33),
];

#[test]
fn every_kind_is_its_definition() {
    let mut checked = 0;
    for (queries, keys) in SIZES {
        let grid = grid(2, 2, queries, keys);
        let mut check = |mask: Mask, expected: &dyn Fn(Place, isize) -> bool| {
            compare(&mask, grid, expected);
            checked += 1;
        };
        check(Mask::all(), &|_, _| true);
        check(Mask::causal(), &|at, pos| at.key as isize <= pos);
        check(Mask::causal_aligned(Alignment::UpperLeft), &|at, _| {
            at.key <= at.query
        });
        let lengths = [keys, keys / 2];
        let padding = Mask::padding(PaddingMask::from_lengths(&lengths, keys, &device()));
        check(padding, &|at, _| at.key < lengths[at.batch]);
        let real = |b: usize, key: usize| !(key + b).is_multiple_of(3);
        let flags = [0, 1].map(|b| (0..keys).map(|key| real(b, key)).collect());
        let keep = PaddingMask::from_flags(&flags, &device()).unwrap();
        check(Mask::padding(keep), &|at, _| real(at.batch, at.key));
        for (width, dilation) in [(1, 1), (2, 1), (3, 1), (2, 3), (100, 1), (3, 2)] {
            let mask = Mask::dilated_window(width, dilation).unwrap();
            check(mask, &|at, pos| {
                let distance = (at.key as isize - pos).unsigned_abs();
                distance < width * dilation && distance.is_multiple_of(dilation)
            });
        }
        let positions = [0, 4];
        let global = |at: Place, pos: isize| {
            positions.contains(&at.key) || positions.iter().any(|&p| p as isize == pos)
        };
        check(Mask::global(&positions), &global);
        check(Mask::longformer(2, 1, &positions).unwrap(), &|at, pos| {
            global(at, pos) || (at.key as isize - pos).abs() < 2
        });
        check(Mask::local_monotonic(2), &|at, _| {
            at.key.abs_diff(at.query) <= 2
        });
        for (size, left) in [(1, 0), (2, 0), (3, 1), (4, 2), (100, 0)] {
            check(Mask::chunked(size, left).unwrap(), &|at, pos| {
                let own = pos.div_euclid(size as isize);
                let other = (at.key / size) as isize;
                own - left as isize <= other && other <= own
            });
        }
        let table: Vec<Vec<bool>> = (0..queries.div_ceil(2))
            .map(|a| (0..keys.div_ceil(3)).map(|b| (a + b) % 2 == 0).collect())
            .collect();
        check(Mask::block_sparse(2, 3, &table).unwrap(), &|at, _| {
            table[at.query / 2][at.key / 3]
        });
        let document = |b: usize, i: usize| i / (2 + b);
        let of = |length: usize| [0, 1].map(|b| (0..length).map(|i| document(b, i)).collect());
        check(Mask::documents(&of(queries), &of(keys)), &|at, _| {
            document(at.batch, at.query) == document(at.batch, at.key)
        });
        check(Mask::prefix(&[1, 6]), &|at, pos| {
            at.key < [1, 6][at.batch] || at.key as isize <= pos
        });
        let mine = |at: Place| (at.batch + at.head + at.query * at.key).is_multiple_of(3);
        check(Mask::function("mine", mine), &|at, _| mine(at));
    }
    assert_eq!(checked, 9 * 23);
}

#[test]
fn later_queries_of_a_decoder_stand_further_on() {
    let step = Grid {
        first_query: 5,
        ..grid(1, 1, 1, 8)
    };
    assert_eq!(Mask::local_monotonic(1).picture_of(&step), "····■■■·\n");
    let upper_left = Mask::causal_aligned(Alignment::UpperLeft);
    assert_eq!(upper_left.picture_of(&step), "■■■■■■··\n");
    assert_eq!(Mask::causal().picture_of(&step), "■■■■■■■■\n");
}

/// `&`, `|` and `!` act place by place, however deeply they are nested.
#[derive(Debug, Clone)]
enum Tree {
    Leaf(usize),
    And(Box<Tree>, Box<Tree>),
    Or(Box<Tree>, Box<Tree>),
    Not(Box<Tree>),
}

fn tree() -> impl Strategy<Value = Tree> {
    (0usize..5)
        .prop_map(Tree::Leaf)
        .prop_recursive(4, 16, 2, |inner| {
            prop_oneof![
                (inner.clone(), inner.clone()).prop_map(|(a, b)| Tree::And(a.into(), b.into())),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| Tree::Or(a.into(), b.into())),
                inner.prop_map(|a| Tree::Not(a.into())),
            ]
        })
}

const LENGTHS: [usize; 2] = [4, 2];

impl Tree {
    fn mask(&self) -> Mask {
        match self {
            Self::Leaf(0) => Mask::all(),
            Self::Leaf(1) => Mask::causal(),
            Self::Leaf(2) => Mask::padding(PaddingMask::from_lengths(&LENGTHS, 4, &device())),
            Self::Leaf(3) => Mask::window(2).unwrap(),
            Self::Leaf(_) => Mask::function("head", |at| at.head == at.key),
            Self::And(a, b) => a.mask() & b.mask(),
            Self::Or(a, b) => a.mask() | b.mask(),
            Self::Not(a) => !a.mask(),
        }
    }

    fn sees(&self, at: Place, position: isize) -> bool {
        match self {
            Self::Leaf(0) => true,
            Self::Leaf(1) => at.key as isize <= position,
            Self::Leaf(2) => at.key < LENGTHS[at.batch],
            Self::Leaf(3) => (at.key as isize - position).abs() < 2,
            Self::Leaf(_) => at.head == at.key,
            Self::And(a, b) => a.sees(at, position) && b.sees(at, position),
            Self::Or(a, b) => a.sees(at, position) || b.sees(at, position),
            Self::Not(a) => !a.sees(at, position),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    #[test]
    fn combinations(tree in tree(), queries in 1usize..6) {
        compare(&tree.mask(), grid(2, 2, queries, 4), |at, position| tree.sees(at, position));
    }
}

#[test]
fn masks_of_nothing_and_of_one_place() {
    let empty = Mask::causal().tensor(&grid(2, 2, 0, 3), &device()).unwrap();
    assert_eq!(empty.dims(), [1, 1, 0, 3]);
    assert_eq!((!Mask::all()).picture(2, 3), "···\n···\n");
    assert_eq!(Mask::causal().to_string().lines().count(), 8);
    assert_eq!(Mask::all().to_string(), "■■■■■■■■\n".repeat(8));
    let none = PaddingMask::from_lengths(&[], 8, &device());
    for mask in [Mask::prefix(&[]), Mask::document(&[]), Mask::padding(none)] {
        assert_eq!(mask.to_string(), "a mask of no sentences or no heads\n");
    }
}

#[test]
fn what_no_mask_can_be() {
    let message = |mask: Result<Mask, regard_nn::AttentionError>| mask.unwrap_err().to_string();
    assert_eq!(
        message(Mask::window(0)),
        "`window width` is 0, expected at least 1: a window of 0 sees nothing; leave the window out to see everything"
    );
    assert!(message(Mask::dilated_window(1, 0)).contains("`window dilation` is 0"));
    assert!(message(Mask::longformer(0, 1, &[])).contains("`window width` is 0"));
    assert!(message(Mask::chunked(0, 1)).contains("`chunk size` is 0"));
    assert!(message(Mask::block(0)).contains("`chunk size` is 0"));
    assert!(message(Mask::block_sparse(0, 1, &[])).contains("`block query size` is 0"));
    let ragged = [vec![true], vec![true, false]];
    assert!(
        message(Mask::block_sparse(1, 1, &ragged)).contains("`block table row` is 2, expected 1")
    );
    assert!(PaddingMask::from_flags(&ragged, &device()).is_err());

    let of_grid = |mask: Mask| mask.check(&grid(2, 1, 3, 4)).unwrap_err().to_string();
    let keep = |batch: usize, length| PaddingMask::from_lengths(&vec![1; batch], length, &device());
    assert!(
        of_grid(Mask::padding(keep(3, 4)))
            .starts_with("`padding batch` is 3, expected 2 (the batch of the query) or 1")
    );
    assert!(
        of_grid(Mask::padding(keep(2, 5)))
            .starts_with("`padding length` is 5, expected 4 (the number of keys)")
    );
    assert!(of_grid(Mask::document(&[vec![0; 4]])).contains("`documents of the queries` is 4"));
    assert!(of_grid(Mask::prefix(&[1, 2, 3])).contains("`prefix lengths` is 3"));
    assert!(of_grid(Mask::prefix(&[])).contains("`prefix lengths` is 0"));
    let table = [vec![true]];
    let blocks = Mask::block_sparse(2, 2, &table).unwrap();
    assert!(
        of_grid(blocks & Mask::causal())
            .contains("`block table` has shape [1, 1], expected [2, 2]")
    );
    let place = Place {
        batch: 0,
        head: 0,
        query: 3,
        key: 0,
    };
    let outside = Mask::all().sees(&grid(2, 1, 3, 4), place).unwrap_err();
    assert!(
        outside
            .to_string()
            .starts_with("`place.query` is 3, expected less than 3")
    );
}

/// A distance or size beyond any sequence sets no bound; a position beyond is refused.
#[test]
fn sizes_beyond_any_sequence() {
    let grid = |queries, first_query| Grid {
        first_query,
        ..grid(1, 1, queries, 5)
    };
    let causal = Mask::causal_aligned(Alignment::UpperLeft);
    let upper_left = |width| Mask::window_aligned(width, 1, Alignment::UpperLeft).unwrap();
    let own = |queries: usize| -> String {
        let row = |i: usize| format!("{}■{}\n", "·".repeat(i), "·".repeat(4 - i));
        (0..queries).map(row).collect()
    };
    for huge in [1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, usize::MAX] {
        for queries in [5, 3] {
            let of = |mask: &Mask| mask.picture_of(&grid(queries, 0));
            let all = of(&Mask::all());
            for mask in [
                Mask::window(huge).unwrap(),
                upper_left(huge),
                Mask::local_monotonic(huge),
                Mask::chunked(huge, 0).unwrap(),
                Mask::chunked(huge, 1).unwrap(),
                Mask::chunked(huge, huge).unwrap(),
                Mask::block(huge).unwrap(),
                Mask::block_sparse(huge, huge, &[vec![true]]).unwrap(),
                Mask::prefix(&[huge]),
            ] {
                assert_eq!(of(&mask), all, "{huge}: {mask:?}");
            }
            assert_eq!(
                of(&(Mask::chunked(1, huge).unwrap() & causal.clone())),
                of(&(Mask::causal() & causal.clone()))
            );
            let dilated = Mask::window_aligned(3, huge, Alignment::UpperLeft).unwrap();
            assert_eq!(of(&dilated), own(queries), "{huge}");
            let every_second = Mask::window_aligned(huge, 2, Alignment::UpperLeft).unwrap();
            assert_eq!(
                of(&every_second),
                of(&Mask::function("", |at| (at.query + at.key).is_multiple_of(2)))
            );
            assert_eq!(of(&Mask::global(&[huge])), of(&!Mask::all()));
        }
        let last = grid(1, (1 << 40) - 1);
        assert_eq!(causal.picture_of(&last), "■■■■■\n");
        let refused = causal.check(&grid(1, huge)).unwrap_err().to_string();
        assert!(
            refused.starts_with(&format!(
                "`first_query` is {huge}, expected positions up to 1099511627776"
            )),
            "{refused}"
        );
        let keys = Grid {
            first_key: huge,
            ..grid(1, 0)
        };
        let refused = causal.check(&keys).unwrap_err().to_string();
        assert!(
            refused.starts_with(&format!("`first_key` is {huge}")),
            "{refused}"
        );
    }
}

/// Padding of no keys is a tensor without places, as what it does not see is.
#[test]
fn padding_of_no_keys() {
    let grid = grid(2, 1, 3, 0);
    let padding = Mask::padding(PaddingMask::from_lengths(&[0, 0], 0, &device()));
    for mask in [!padding.clone(), padding] {
        let seen = mask.tensor(&grid, &device()).unwrap();
        assert_eq!(seen.dims(), [2, 1, 1, 0], "{mask:?}");
    }
}

/// Lists with an entry for each position start at the beginning of the sequence, also where a call has only a part of
/// it.
#[test]
fn lists_reach_to_the_end_of_the_part() {
    let part = Grid {
        first_query: 6,
        first_key: 4,
        ..grid(1, 1, 2, 4)
    };
    let keep = |length| Mask::padding(PaddingMask::from_lengths(&[5], length, &device()));
    assert_eq!(keep(8).picture_of(&part), "■···\n■···\n");
    assert_eq!(
        keep(4).check(&part).unwrap_err().to_string(),
        "`padding length` is 4, expected 8 (the number of keys, the first of them at position 4): \
         make the padding mask of the keys that are read"
    );
    let documents = |length: usize| Mask::document(&[(0..length).map(|i| i / 5).collect()]);
    assert_eq!(documents(8).picture_of(&part), "·■■■\n·■■■\n");
    assert!(documents(4).check(&part).is_err());
    let blocks = |rows| Mask::block_sparse(3, 3, &vec![vec![true, false, true]; rows]).unwrap();
    assert_eq!(blocks(3).picture_of(&part), "··■■\n··■■\n");
    assert!(blocks(1).check(&part).is_err());
    let place = |query, key| Place {
        batch: 0,
        head: 0,
        query,
        key,
    };
    assert_eq!(keep(8).sees(&part, place(7, 4)), Ok(true));
    for outside in [place(5, 4), place(8, 4), place(7, 3), place(7, 8)] {
        let refused = keep(8).sees(&part, outside).unwrap_err().to_string();
        assert!(refused.contains("expected at least"), "{refused}");
    }
}

/// Centres are one number for each query.
#[test]
fn centres_of_another_shape() {
    let grid = grid(2, 2, 6, 4);
    let of = |shape: [usize; 4]| {
        let mask = Mask::local_predictive(Tensor::zeros(shape, &device()), 1);
        mask.check(&grid).map_err(|error| error.to_string())
    };
    for shape in [[1, 1, 6, 1], [2, 1, 6, 1], [1, 2, 6, 1], [2, 2, 6, 1]] {
        assert_eq!(of(shape), Ok(()));
    }
    for shape in [
        [1, 1, 6, 3],
        [1, 1, 6, 0],
        [1, 1, 5, 1],
        [3, 1, 6, 1],
        [1, 3, 6, 1],
    ] {
        let refused = of(shape).unwrap_err();
        assert!(
            refused.starts_with(&format!(
                "`local centres` has shape {shape:?}, expected [2, 2, 6, 1]"
            )),
            "{refused}"
        );
    }
}
