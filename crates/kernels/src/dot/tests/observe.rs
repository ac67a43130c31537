//! Observed weights.

use super::*;

/// Two texts of 77 queries and 100 keys, two heads of each with one head of keys.
fn shape() -> Shape {
    Shape {
        batch: 2,
        heads: 2,
        key_heads: 1,
        ..Shape::one_head(77, 100, unless_miri(24, 3), unless_miri(20, 2))
    }
}

#[test]
fn what_is_observed_is_what_the_definition_says() {
    let shape = shape();
    let inputs = shape.inputs(2.0);
    let options = Options::new(shape);
    let wides = inputs.each_ref().map(|x| wide(x));
    let (rows, wanted, k) = (4 * 77, [0usize, 30, 76, 30], 3);
    let mut checked = 0;
    for option in unless_miri(0..OPTIONS, 2..3) {
        let mut attention = Attention::default();
        let name = options.set(option, &mut attention);
        let [query, key, value] = &wides;
        let truth = reference::forward(&attention, shape.views(), query, key, value);
        for &level in Level::available() {
            let (_, lse) = forward(level, &attention, shape, &inputs);
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
            observe_at(level, &attention, query, key, &lse, observe).unwrap();
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
    assert_eq!(
        checked,
        unless_miri(OPTIONS, 1) * Level::available().len() * rows
    );
}

#[test]
fn pooled_maps_are_pools_of_the_definition() {
    let shape = shape();
    let inputs = shape.inputs(2.0);
    let options = Options::new(shape);
    let wides = inputs.each_ref().map(|x| wide(x));
    let parts = [
        (0..77, 0..100, 77, 100),
        (0..77, 0..100, 7, 9),
        (13..70, 21..97, 11, 5),
        (50..51, 17..99, 1, 1),
    ];
    for option in unless_miri(0..OPTIONS, 2..3) {
        let mut attention = Attention::default();
        let name = options.set(option, &mut attention);
        if attention.offsets.is_some() {
            continue;
        }
        let [query, key, value] = &wides;
        let truth = reference::forward(&attention, shape.views(), query, key, value);
        for &level in Level::available() {
            let (_, lse) = forward(level, &attention, shape, &inputs);
            let query = View::heads_first(&inputs[0], shape.views()[0]);
            let key = View::heads_first(&inputs[1], shape.views()[1]);
            for ((queries, keys, rows, columns), kind) in parts
                .iter()
                .flat_map(|part| [(part.clone(), Kind::Max), (part.clone(), Kind::Mean)])
            {
                let part = |range: &std::ops::Range<usize>, cell: usize, cells: usize| {
                    let n = range.len();
                    range.start + cell * n / cells..range.start + (cell + 1) * n / cells
                };
                let mut cells = vec![f32::NAN; 4 * rows * columns];
                let pooled = Pooled {
                    queries: queries.clone(),
                    keys: keys.clone(),
                    rows,
                    columns,
                    kind,
                    cells: &mut cells,
                };
                pool_at(level, &attention, query, key, &lse, pooled).unwrap();
                for (place, &cell) in cells.iter().enumerate() {
                    let (head, row) = (place / rows / columns, place / columns % rows);
                    let columns_of = part(&keys, place % columns, columns);
                    let weights = part(&queries, row, rows)
                        .flat_map(|i| columns_of.clone().map(move |j| (head * 77 + i) * 100 + j))
                        .map(|at| truth.weights[at]);
                    let expected = match kind {
                        Kind::Max => weights.fold(0.0, f64::max),
                        Kind::Mean => {
                            let count = weights.clone().count() as f64;
                            weights.sum::<f64>() / count
                        }
                    };
                    let error = (f64::from(cell) - expected).abs();
                    assert!(
                        error < 3e-5,
                        "{name} {level:?} {kind:?} {place}: {cell} is not {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn pooled_maps_are_the_same_bits_on_any_pool() {
    let shape = shape();
    let inputs = shape.inputs(2.0);
    let attention = Attention::default();
    let (_, lse) = forward(Level::current(), &attention, shape, &inputs);
    on_every_pool(|| {
        let pooled = [Kind::Max, Kind::Mean].map(|kind| {
            let mut cells = vec![f32::NAN; 4 * 13 * 9];
            let pooled = Pooled {
                queries: 0..77,
                keys: 3..100,
                rows: 13,
                columns: 9,
                kind,
                cells: &mut cells,
            };
            let query = View::heads_first(&inputs[0], shape.views()[0]);
            let key = View::heads_first(&inputs[1], shape.views()[1]);
            pool(&attention, query, key, &lse, pooled).unwrap();
            cells
        });
        pooled.into()
    });
}

/// A query of NaN is seen in each of its cells, whichever way weights become one.
#[test]
fn nan_shows_in_pooled_maps() {
    let shape = Shape::one_head(40, 50, 8, 8);
    let mut inputs = shape.inputs(2.0);
    inputs[0][20 * 8] = f32::NAN;
    let attention = Attention::default();
    for &level in Level::available() {
        let (_, lse) = forward(level, &attention, shape, &inputs);
        for kind in [Kind::Max, Kind::Mean] {
            let mut cells = vec![0.0; 4 * 5];
            let pooled = Pooled {
                queries: 0..40,
                keys: 0..50,
                rows: 4,
                columns: 5,
                kind,
                cells: &mut cells,
            };
            let query = View::heads_first(&inputs[0], shape.views()[0]);
            let key = View::heads_first(&inputs[1], shape.views()[1]);
            pool_at(level, &attention, query, key, &lse, pooled).unwrap();
            for (row, cells) in cells.chunks_exact(5).enumerate() {
                let shows = cells.iter().all(|cell| cell.is_nan() == (row == 2));
                assert!(shows, "{level:?} {kind:?} {row}: {cells:?}");
            }
        }
    }
}

#[test]
fn parts_that_are_not_there_are_refused() {
    let numbers = [0.5f32; 12];
    let view = View::heads_first(&numbers, [1, 1, 6, 2]);
    let lse = [0.0f32; 18];
    let refused = |queries, keys, rows, columns, size: usize| {
        let mut cells = vec![0.0; size];
        let pooled = Pooled {
            queries,
            keys,
            rows,
            columns,
            kind: Kind::Max,
            cells: &mut cells,
        };
        let attention = Attention::default();
        pool(&attention, view, view, &lse, pooled)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(0..7, 0..6, 2, 2, 4).contains("queries"));
    assert!(refused(0..6, 5..7, 2, 2, 4).contains("keys"));
    assert!(refused(0..6, 0..6, 7, 2, 14).contains("one cell for each position"));
    assert!(refused(0..6, 0..6, 2, 0, 0).contains("one cell for each position"));
    assert!(refused(0..6, 0..6, 2, 2, 5).contains("cells"));
    let mut none = [];
    let pooled = Pooled {
        queries: 3..3,
        keys: 0..6,
        rows: 0,
        columns: 6,
        kind: Kind::Mean,
        cells: &mut none,
    };
    assert!(pool(&Attention::default(), view, view, &lse, pooled).is_ok());
}

/// In a pack, what is observed of a sequence is what is observed of it alone, on any number of threads.
#[test]
fn sequences_of_a_pack_are_observed_as_if_alone() {
    let dim = 8;
    let (of_queries, of_keys) = unless_miri(
        (&[0, 140, 140, 240, 500][..], &[0, 170, 173, 300, 541][..]),
        (&[0, 3, 3, 5][..], &[0, 4, 6, 11][..]),
    );
    let length = |offsets: &[u32]| offsets[offsets.len() - 1] as usize;
    let (queries, keys) = (length(of_queries), length(of_keys));
    let (q, k) = (random(1, queries * dim, 2.0), random(2, keys * dim, 2.0));
    let observed = |attention: &Attention, q: &[f32], k: &[f32]| {
        let [query, key] = [q, k].map(|x| View::heads_first(x, [1, 1, x.len() / dim, dim]));
        let rows = q.len() / dim;
        let (mut output, mut lse) = (vec![0.0; q.len()], vec![0.0; 3 * rows]);
        let to = ViewMut::heads_first(&mut output, query.shape);
        forward_at(
            Level::current(),
            attention,
            query,
            key,
            key,
            to,
            Some(&mut lse),
        )
        .unwrap();
        let (mut entropy, mut sums) = (vec![f32::NAN; rows], vec![f32::NAN; k.len() / dim]);
        let observe = Observe {
            entropy: Some(&mut entropy),
            column_sums: Some(&mut sums),
            ..Observe::default()
        };
        observe_at(Level::current(), attention, query, key, &lse, observe).unwrap();
        vec![entropy, sums]
    };
    let together = on_every_pool(|| {
        let offsets = Some(Offsets {
            query: of_queries,
            key: of_keys,
        });
        let attention = Attention {
            offsets,
            ..Attention::default()
        };
        observed(&attention, &q, &k)
    });
    let mut alone = [vec![], vec![]];
    for (of_query, of_key) in of_queries.windows(2).zip(of_keys.windows(2)) {
        let part = |of: &[u32]| of[0] as usize * dim..of[1] as usize * dim;
        let found = observed(&Attention::default(), &q[part(of_query)], &k[part(of_key)]);
        alone
            .iter_mut()
            .zip(found)
            .for_each(|(all, of)| all.extend(of));
    }
    assert_eq!(together, alone);
}

#[test]
fn what_is_refused_is_not_written() {
    let numbers = [0.5f32; 12];
    let view = View::heads_first(&numbers, [1, 1, 6, 2]);
    let (mut weights, mut sums) = ([7.0; 6], [7.0; 6]);
    for wrong in ["entropy", "column_sums", "top.weights", "top.keys"] {
        let length = |name: &str, right: usize| right - usize::from(name == wrong);
        let observe = Observe {
            rows: Some((&[2], &mut weights)),
            entropy: Some(&mut [7.0; 6][..length("entropy", 6)]),
            column_sums: Some(&mut sums[..length("column_sums", 6)]),
            top: Some(Top {
                k: 1,
                weights: &mut [7.0; 6][..length("top.weights", 6)],
                keys: &mut [7; 6][..length("top.keys", 6)],
            }),
        };
        let found = observe_at(
            Level::current(),
            &Attention::default(),
            view,
            view,
            &[0.0; 18],
            observe,
        );
        assert!(found.unwrap_err().to_string().contains(wrong), "{wrong}");
        assert_eq!((weights, sums), ([7.0; 6], [7.0; 6]), "{wrong}");
    }
}

#[test]
fn a_position_outside_of_the_cells_panics() {
    for (position, cells) in [(9, 4), (20, 4), (15, 0)] {
        let found = std::panic::catch_unwind(|| crate::dot::cell_of(&(10..20), position, cells));
        assert!(found.is_err(), "{position} {cells}");
    }
}
