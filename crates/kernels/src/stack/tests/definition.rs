//! Stacks, changed heads and activations against their definitions.

use std::sync::Arc;

use super::*;

#[test]
fn prompts_and_steps_are_their_definition() {
    for choice in choices() {
        let stack = stack(&choice);
        let inputs = [random(5, 9 * 8, 1.0), random(6, 7 * 8, 1.0)];
        let truth: Vec<Vec<f64>> = (0..2)
            .map(|row| {
                let source = &sources()[row * 4 * SOURCE..][..SOURCES[row] * SOURCE];
                plain::forward(&stack, &inputs[row], source, &[])
            })
            .collect();
        let part = |row: usize, from: usize, to: usize| &inputs[row][from * 8..to * 8];
        if !choice.sizes.causal {
            let both = [&inputs[0][..], &inputs[1]].concat();
            let found = on_every_pool(|| vec![stack.forward(None, &both, &[9, 7], None).unwrap()]);
            close(&found[0][..9 * 8], &truth[0], 2e-5);
            close(&found[0][9 * 8..], &truth[1], 2e-5);
            continue;
        }
        let run = || {
            let mut state = begin(&stack, &choice, Kind::F32);
            let mut found = [vec![], vec![]];
            let mut feed = |counts: [usize; 2], from: [usize; 2]| {
                let ends = [from[0] + counts[0], from[1] + counts[1]];
                let x = [part(0, from[0], ends[0]), part(1, from[1], ends[1])].concat();
                let all = stack.forward(Some(&mut state), &x, &counts, None).unwrap();
                let (one, two) = all.split_at(counts[0] * 8);
                found[0].extend_from_slice(one);
                found[1].extend_from_slice(two);
            };
            feed([5, 3], [0, 0]); // prompts
            feed([2, 0], [5, 3]); // one goes on
            feed([1, 1], [7, 3]); // a step
            feed([1, 3], [8, 4]);
            found.to_vec()
        };
        let found = on_every_pool(run);
        close(&found[0], &truth[0], 2e-5);
        close(&found[1], &truth[1], 2e-5);
    }
}

/// In prompts and single steps, and restored to the bit.
#[test]
fn changed_heads_are_their_definition() {
    for choice in choices() {
        let mut stack = stack(&choice);
        let x = random(5, 6 * 8, 1.0);
        let run = |stack: &Stack| {
            if !choice.sizes.causal {
                return stack.forward(None, &x, &[6], None).unwrap();
            }
            let mut state = match choice.cross {
                true => stack.begin_with_sources(&sources()[..4 * SOURCE], 4, &[4], Kind::F32),
                false => Ok(stack.begin(1, Kind::F32)),
            }
            .unwrap();
            let mut feed = |x: &[f32]| stack.forward(Some(&mut state), x, &[x.len() / 8], None);
            let prompt = feed(&x[..4 * 8]).unwrap();
            let steps = x[4 * 8..].chunks(8).map(|x| feed(x).unwrap());
            std::iter::once(prompt)
                .chain(steps.collect::<Vec<_>>())
                .flatten()
                .collect()
        };
        let before = run(&stack);
        let head = |layer, cross, head, change| ChangedHead {
            layer,
            cross,
            head,
            change,
        };
        let mut changed = vec![
            head(0, false, 1, HeadChange::Off),
            head(1, false, 0, HeadChange::Uniform),
            head(1, false, 3, HeadChange::Uniform),
        ];
        // In the prompt, in a step, and hidden from no query.
        for (query, key) in [(2, 1), (3, 0), (5, 4), (5, 5), (1, 77)] {
            changed.push(head(0, false, 3, HeadChange::Hide { query, key }));
        }
        if choice.cross {
            changed.push(head(1, true, 1, HeadChange::Hide { query: 1, key: 2 }));
            changed.push(head(1, true, 1, HeadChange::Hide { query: 4, key: 0 }));
            changed.push(head(0, true, 2, HeadChange::Uniform));
            changed.push(head(1, true, 0, HeadChange::Off));
        }
        // Weights of a text of other lengths: five queries of six have some, and three or all keys; those after a query stay hidden.
        let weights = |queries: usize, keys: usize, seed| {
            let weights = random(seed, queries * keys, 1.0).into_iter().map(f32::abs);
            let given = GivenWeights::new(weights.collect(), queries, keys);
            HeadChange::Replace(Arc::new(given.unwrap()))
        };
        changed.push(head(0, false, 2, weights(5, 3, 11)));
        changed.push(head(1, false, 2, weights(9, 9, 12)));
        if choice.cross {
            changed.push(head(0, true, 3, weights(6, 3, 13)));
        }
        if choice.global {
            assert!(stack.change_heads(changed.clone()).is_err());
            changed.retain(|one| one.change == HeadChange::Off);
        }
        stack.change_heads(changed).unwrap();
        let found = run(&stack);
        close(
            &found,
            &plain::forward(&stack, &x, &sources()[..4 * SOURCE], &[]),
            2e-5,
        );
        assert!(found.iter().zip(&before).any(|(a, b)| (a - b).abs() > 1e-3));
        stack.change_heads(vec![]).unwrap();
        same_bits(&run(&stack), &before);
        for wrong in [
            head(9, false, 0, HeadChange::Off),
            head(0, false, 4, HeadChange::Off),
        ] {
            assert!(stack.change_heads(vec![wrong]).is_err());
        }
        let cross = stack.change_heads(vec![head(0, true, 0, HeadChange::Off)]);
        assert_eq!(cross.is_ok(), choice.cross);
    }
}

#[test]
fn activations_are_their_definitions() {
    let x: Vec<f32> = (-500..=500).map(|i| i as f32 * 0.012).collect();
    for activation in [
        Activation::Relu,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Silu,
        Activation::QuickGelu,
    ] {
        let mut found = x.clone();
        activation.apply(&mut found);
        for (&x, found) in x.iter().zip(found) {
            let truth = plain::activate(activation, f64::from(x));
            let error = (f64::from(found) - truth).abs();
            assert!(
                error <= 2e-6 * truth.abs().max(1e-3),
                "{activation:?} {x} {found} {truth}"
            );
        }
    }
    let mut ends = [f32::NEG_INFINITY, -200.0, 200.0, f32::INFINITY];
    Activation::Gelu.apply(&mut ends);
    assert_eq!(ends[1..], [0.0, 200.0, f32::INFINITY]);
}
