//! One query with its keys against the weights of the whole pass, and against their formula.

use super::*;

/// Sees the weights of every query of one block and kind, `[heads, queries, keys]`, in one row.
struct All(bool, Vec<f32>);

impl Observer for All {
    fn wants(&self, layer: usize, cross: bool) -> bool {
        (layer, cross) == (1, self.0)
    }

    fn see(&mut self, seen: Seen<'_>) -> Result<(), KernelError> {
        let ([_, heads, queries, _], keys) = (seen.query.shape, seen.key.shape[2]);
        self.1 = vec![0.0; heads * queries * keys];
        let rows: Vec<usize> = (0..queries).collect();
        let observe = dot::Observe {
            rows: Some((&rows, &mut self.1)),
            ..Default::default()
        };
        dot::observe(&seen.attention, seen.query, seen.key, seen.lse, observe)
    }
}

#[test]
fn a_query_has_the_weights_of_the_pass_and_their_formula() {
    for choice in choices() {
        let stack = stack(&choice);
        let x = random(5, 9 * 8, 1.0);
        let run = |observer: Option<&mut (dyn Observer + Send)>| {
            let mut state = match (choice.cross, choice.sizes.causal) {
                (true, _) => Some(
                    stack
                        .begin_with_sources(&sources()[..4 * SOURCE], 4, &[4], Kind::F32)
                        .unwrap(),
                ),
                (false, causal) => causal.then(|| stack.begin(1, Kind::F32)),
            };
            stack.forward(state.as_mut(), &x, &[9], observer).unwrap()
        };
        let plain = run(None);
        for cross in [false, true] {
            let mut all = All(cross, vec![]);
            same_bits(&run(Some(&mut all)), &plain);
            for (head, query) in [(0, 0), (3, 8), (2, 5)] {
                let mut one = QueryObserver::new(1, cross, head, query);
                same_bits(&run(Some(&mut one)), &plain);
                let Some(found) = one.found() else {
                    assert!(cross && !choice.cross);
                    continue;
                };
                let keys = if cross { 4 } else { 9 };
                assert_eq!(found.positions, (0..keys).collect::<Vec<_>>());
                same_bits(&found.weights, &all.1[(head * 9 + query) * keys..][..keys]);
                let sum: f64 = found.scores.iter().flatten().map(|s| s.exp()).sum();
                for key in 0..keys {
                    let weight = found.scores[key].map_or(0.0, |score| score.exp() / sum);
                    assert!((weight - f64::from(found.weights[key])).abs() < 1e-5);
                    let Some(score) = found.scores[key] else {
                        continue;
                    };
                    let products = found.query.iter().zip(&found.keys[key * 6..][..6]);
                    let product: f64 = products.map(|(q, k)| f64::from(q * k)).sum();
                    let product = product * f64::from(found.scale);
                    let cap = |s: f64| {
                        found
                            .softcap
                            .map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
                    };
                    if !(choice.relative || choice.alibi) || cross {
                        assert!((cap(product) - score).abs() < 1e-5, "{product} {score}");
                    }
                }
                if choice.sizes.causal && !cross {
                    assert!(found.scores[query + 1..].iter().all(Option::is_none));
                }
                assert!(!found.values.iter().all(|&x| x == 0.0));
            }
        }
        assert!({
            let mut beyond = QueryObserver::new(1, false, 0, 9);
            run(Some(&mut beyond));
            beyond.found().is_none()
        });
    }
}

/// Where positions are global, keys occur in two calls: the query's own weights are the sum of what is seen.
#[test]
fn a_query_beside_global_positions() {
    let choice = Choice {
        sizes: Sizes {
            causal: false,
            ..PLAIN.sizes
        },
        window: Some(3),
        global: true,
        ..PLAIN
    };
    let stack = stack(&choice);
    let x = random(5, 9 * 8, 1.0);
    for (query, seen) in [(0, 9), (4, 8), (8, 5)] {
        let mut one = QueryObserver::new(0, false, 1, query);
        stack
            .forward_with_global(&x, &[9], &[0], Some(&mut one))
            .unwrap();
        let found = one.found().unwrap();
        assert_eq!(found.scores.iter().flatten().count(), seen, "{query}");
        let sum: f32 = found.weights.iter().sum();
        assert!((sum - 1.0).abs() < 1e-5, "{query}: {sum}");
    }
}

#[test]
fn heads_of_another_size_are_refused() {
    let sizes = Sizes {
        head: 9,
        ..PLAIN.sizes
    };
    let stacks = [PLAIN, Choice { sizes, ..PLAIN }].map(|choice| stack(&choice));
    for (first, second) in [(0, 1), (1, 0)] {
        let mut one = QueryObserver::new(0, false, 0, 2);
        let mut pass = |at: usize| stacks[at].forward(None, &[0.5; 24], &[3], Some(&mut one));
        pass(first).unwrap();
        let error = pass(second).unwrap_err().to_string();
        assert!(
            error.starts_with("`query` has features of a head"),
            "{error}"
        );
        let size = stacks[first].sizes.head;
        assert_eq!(one.found().unwrap().keys.len(), 3 * size);
    }
}
