//! Global positions against their definition.

use std::collections::BTreeMap;

use super::*;

const GLOBAL: Choice = Choice {
    sizes: Sizes {
        causal: false,
        ..PLAIN.sizes
    },
    window: Some(3),
    global: true,
    activation: Activation::Gelu,
    places: [true, false, true],
    ..PLAIN
};

/// The weights of the first block, `[heads, positions, positions]` by row.
#[derive(Default)]
struct Weights(BTreeMap<usize, Vec<f32>>, Vec<usize>);

impl Observer for Weights {
    fn wants(&self, layer: usize, _: bool) -> bool {
        layer == 0
    }

    fn see(&mut self, seen: Seen<'_>) -> Result<(), KernelError> {
        let [_, heads, queries, _] = seen.query.shape;
        let keys = seen.key.shape[2];
        let mut weights = vec![0.0; heads * queries * keys];
        let rows: Vec<usize> = (0..queries).collect();
        let observe = dot::Observe {
            rows: Some((&rows, &mut weights)),
            ..Default::default()
        };
        dot::observe(&seen.attention, seen.query, seen.key, seen.lse, observe)?;
        let count = self.1[seen.row];
        let all = self.0.entry(seen.row);
        let all = all.or_insert_with(|| vec![0.0; heads * count * count]);
        for (place, weights) in weights.chunks_exact(keys).enumerate() {
            let query = seen.queries.of(place % queries);
            for (key, weight) in weights.iter().enumerate() {
                let to = (place / queries * count + query) * count + seen.keys.of(key);
                all[to] += weight;
            }
        }
        Ok(())
    }
}

/// Positions of several texts, of which some have no global ones, some all.
fn texts() -> Vec<(usize, Vec<usize>)> {
    let long = unless_miri(150, 20);
    vec![
        (9, vec![0, 5]),
        (7, vec![]),
        (0, vec![]),
        (long, vec![0, 1, 2, 17, long - 1]),
        (3, vec![0, 1, 2]),
        (1, vec![0]),
    ]
}

#[test]
fn global_positions_are_their_definition() {
    let windows = [None, Some(0), Some(3), Some(40)];
    for window in unless_miri(&windows[..], &windows[2..3]) {
        let choice = Choice {
            window: *window,
            ..GLOBAL
        };
        let stack = stack(&choice);
        let counts: Vec<usize> = texts().iter().map(|text| text.0).collect();
        let x = random(5, counts.iter().sum::<usize>() * 8, 1.0);
        let (mut global, mut first) = (vec![], 0);
        for (count, own) in texts() {
            global.extend(own.iter().map(|at| first + at));
            first += count;
        }
        let run = || stack.forward_with_global(&x, &counts, &global, None);
        let together = &on_every_pool(|| vec![run().unwrap()])[0];
        let mut weights = Weights(BTreeMap::new(), counts.clone());
        let looked = stack.forward_with_global(&x, &counts, &global, Some(&mut weights));
        same_bits(&looked.unwrap(), together);

        let mut first = 0;
        for (row, (count, own)) in texts().iter().enumerate() {
            let place = first * 8..(first + count) * 8;
            first += count;
            let (x, found) = (&x[place.clone()], &together[place]);
            close(found, &plain::forward(&stack, x, &[], own), 2e-5);
            let alone = stack.forward_with_global(x, &[*count], own, None).unwrap();
            same_bits(&alone, found);
            let Some(weights) = weights.0.get(&row) else {
                assert_eq!(*count, 0);
                continue;
            };
            for (place, keys) in weights.chunks_exact(*count).enumerate() {
                let query = place % count;
                assert!((keys.iter().sum::<f32>() - 1.0).abs() < 1e-5);
                for (key, weight) in keys.iter().enumerate() {
                    let near = window.is_none_or(|window| query.abs_diff(key) <= window);
                    let sees = near || own.contains(&query) || own.contains(&key);
                    assert_eq!(*weight > 0.0, sees, "{query} {key}");
                }
            }
        }
        // Without global positions it is the window alone.
        let none = stack.forward_with_global(&x, &counts, &[], None).unwrap();
        same_bits(&none, &stack.forward(None, &x, &counts, None).unwrap());
    }
}

#[test]
fn global_positions_that_do_not_fit_are_refused() {
    let ready = stack(&GLOBAL);
    let x = [0.5; 3 * 8];
    for global in [&[3][..], &[1, 1], &[2, 0], &[usize::MAX]] {
        let error = ready.forward_with_global(&x, &[3], global, None);
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("`global` holds"), "{error}");
    }
    let without = stack(&Choice {
        global: false,
        ..GLOBAL
    });
    let error = without.forward_with_global(&x, &[3], &[0], None);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("has no projections for them"), "{error}");
    let relative = RelativePositions {
        values: vec![0.0; 4],
        zero: 0,
    };
    let error = ready.clone().with_relative(vec![relative]).unwrap_err();
    assert!(error.to_string().contains("no global positions"), "{error}");
    let error = ready.clone().with_alibi(vec![0.5; 4]).unwrap_err();
    assert!(error.to_string().contains("no global positions"), "{error}");
    let causal = Stack::new(PLAIN.sizes, ready.blocks, None, vec![]).unwrap_err();
    assert!(causal.to_string().contains("no causality"), "{causal}");
}
