//! Prompts in parts, passes that fail or are not stopped, and hypotheses that fork have the numbers of whole passes.

use std::sync::{Arc, atomic::AtomicBool};

use super::*;
use crate::threads::stoppable;

/// In several calls of two or more positions, alone or with others, looked at or not: the same bits.
#[test]
fn a_prompt_in_parts_has_the_bits_of_the_whole() {
    #[derive(Default)]
    struct Nothing(Vec<(usize, Point, Vec<f32>)>);
    impl Observer for Nothing {
        fn wants(&self, layer: usize, cross: bool) -> bool {
            layer == 1 || cross
        }
        fn states(&mut self, seen: States<'_>) -> Result<(), KernelError> {
            self.0.push((seen.layer, seen.point, seen.states.to_vec()));
            Ok(())
        }
        fn see(&mut self, seen: Seen<'_>) -> Result<(), KernelError> {
            let [_, heads, queries, _] = seen.query.shape;
            let keys = seen.key.shape[2];
            let mut weights = vec![0.0; heads * queries * keys];
            let all: Vec<usize> = (0..queries).collect();
            let observe = dot::Observe {
                rows: Some((&all, &mut weights)),
                ..Default::default()
            };
            dot::observe(&seen.attention, seen.query, seen.key, seen.lse, observe)?;
            for row in weights.chunks_exact(keys) {
                assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            }
            Ok(())
        }
    }
    let length = unless_miri(1300, 9);
    let input = random(5, length * 8, 1.0);
    // Under a window the last panel of a call may sum in another order.
    let whole = |choice: &Choice| choice.sizes.causal && choice.window.is_none();
    for choice in choices().into_iter().filter(whole) {
        for cache in [Kind::F32, Kind::Bf16] {
            let stack = stack(&choice);
            let whole = |observer: Option<&mut (dyn Observer + Send)>| {
                let mut state = begin(&stack, &choice, cache);
                let counts = [length, 0];
                stack
                    .forward(Some(&mut state), &input, &counts, observer)
                    .unwrap()
            };
            let mut state = begin(&stack, &choice, cache);
            let mut parts = vec![];
            let edges = [0, length / 3, length / 2, length];
            for edge in edges.windows(2) {
                let x = &input[edge[0] * 8..edge[1] * 8];
                let counts = [edge[1] - edge[0], 0];
                parts.extend(stack.forward(Some(&mut state), x, &counts, None).unwrap());
            }
            let all = whole(None);
            same_bits(&all, &parts);
            let mut seen = Nothing::default();
            same_bits(&all, &whole(Some(&mut seen)));
            // What leaves a block enters the next one.
            let [first, .., last] = &seen.0[..] else {
                panic!("no states");
            };
            assert_eq!((first.0, first.1), (0, Point::Input));
            same_bits(&first.2, &input);
            let layers = stack.blocks.len();
            assert_eq!((last.0, last.1), (layers - 1, Point::FeedForward));
            let norm = stack.last_norm.as_ref();
            let left = norm.map_or(last.2.clone(), |norm| norm.apply(&last.2).unwrap());
            same_bits(&left, &all);
            let entered = |layer| {
                seen.0
                    .iter()
                    .find(|seen| (seen.0, seen.1) == layer)
                    .unwrap()
            };
            same_bits(
                &entered((0, Point::FeedForward)).2,
                &entered((1, Point::Input)).2,
            );
            let points = layers * (3 + usize::from(choice.cross));
            assert!(seen.0.is_sorted_by_key(|seen| (seen.0, seen.1)) && seen.0.len() == points);
            let step = |observer: Option<&mut (dyn Observer + Send)>, mut state: State| {
                state.select(&[0]).unwrap();
                stack
                    .forward(Some(&mut state), &input[..8], &[1], observer)
                    .unwrap()
            };
            let seen = step(Some(&mut Nothing::default()), state.clone());
            assert_eq!(step(None, state), seen);
        }
    }
}

/// Helpers share its products: a flag that stops other kernels does not end it on the way.
#[test]
fn a_pass_is_not_stopped() {
    let stack = stack(&PLAIN);
    let x = random(5, 3 * 8, 1.0);
    let pass = || stack.forward(None, &x, &[3], None).unwrap();
    let stop = &Arc::new(AtomicBool::new(true));
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(2)
        .build()
        .unwrap();
    assert_eq!(stoppable(stop, pass), Ok(pass()));
    assert_eq!(pool.install(|| stoppable(stop, pass)), Ok(pass()));
}

/// An observer that refuses in the middle of a pass leaves the state as it was.
#[test]
fn a_pass_that_fails_leaves_the_state() {
    struct Refuses(usize);
    impl Observer for Refuses {
        fn wants(&self, layer: usize, _: bool) -> bool {
            layer == self.0
        }
        fn see(&mut self, _: Seen<'_>) -> Result<(), KernelError> {
            let (argument, shape) = ("seen", "[]");
            Err(KernelError::TooLarge { argument, shape })
        }
    }
    fn forward(
        stack: &Stack,
        state: &mut State,
        x: &[f32],
        observer: Option<&mut (dyn Observer + Send)>,
    ) -> Result<Vec<f32>, KernelError> {
        stack.forward(Some(state), x, &[x.len() / 8], observer)
    }
    let stack = stack(&PLAIN);
    let x = random(5, 3 * 8, 1.0);
    for cache in [Kind::F32, Kind::Bf16, Kind::F16] {
        let mut state = stack.begin(1, cache);
        forward(&stack, &mut state, &x[..16], None).unwrap();
        let mut other = state.clone();
        for layer in [0, 1] {
            for x in [&x[..], &x[..8]] {
                let mut refuses = Refuses(layer);
                forward(&stack, &mut other, x, Some(&mut refuses)).unwrap_err();
                assert_eq!(other.length(0), 2);
            }
        }
        let expected = forward(&stack, &mut state, &x[16..], None).unwrap();
        let found = forward(&stack, &mut other, &x[16..], None).unwrap();
        same_bits(&expected, &found);
    }
}

/// Parts of a text whose length is told have the angles of one call; so has a row that is read again.
#[test]
fn a_text_of_known_length_in_parts_has_the_numbers_of_the_whole() {
    let choice = Choice {
        rotary: true,
        ..PLAIN
    };
    let x = random(5, 9 * 8, 1.0);
    let fixed = LongTexts::Fixed {
        beyond: 6,
        frequencies: vec![0.5, 0.02],
    };
    let dynamic = LongTexts::Dynamic {
        beyond: 6,
        base: 100.0,
        factor: 2.0,
    };
    for long in [fixed, dynamic] {
        let mut stack = stack(&choice);
        stack.rotations[0].long = Some(long);
        let read = |state: &mut State, x: &[f32]| {
            let count = x.len() / 8;
            stack.forward(Some(state), x, &[count], None).unwrap()
        };
        let in_parts = |state: &mut State| {
            let first = read(state, &x[..4 * 8]);
            [first, read(state, &x[4 * 8..])].concat()
        };
        let whole = read(&mut stack.begin(1, Kind::F32), &x);
        let mut state = stack.begin(1, Kind::F32);
        assert_ne!(in_parts(&mut state), whole);
        state.restart(0);
        assert_eq!((state.length(0), state.expected(0)), (0, 0));
        state.expect(&[9]);
        assert_eq!((state.length(0), state.expected(0)), (0, 9));
        same_bits(&in_parts(&mut state), &whole);
        // A length that no text has.
        state.restart(0);
        state.expect(&[usize::MAX]);
        assert!(in_parts(&mut state).iter().all(|x| x.is_finite()));
    }
}

/// Hypotheses that fork, change places and end get the same numbers as those that are computed alone.
#[test]
fn ancestors_are_followed() {
    for &window in unless_miri(&[None, Some(2)][..], &[Some(2)]) {
        let choice = Choice {
            window,
            cross: true,
            ..PLAIN
        };
        let stack = stack(&choice);
        let encoded = sources();
        let input = |token: usize| random(30 + token as u64, 8, 1.0);
        // For a source and the tokens that a hypothesis was fed: its last log-probabilities.
        let alone = |source: usize, tokens: &[usize]| {
            let states = &encoded[source * 4 * SOURCE..][..4 * SOURCE];
            let lengths = &SOURCES[source..][..1];
            let mut state = stack
                .begin_with_sources(states, 4, lengths, Kind::F32)
                .unwrap();
            let steps = tokens
                .iter()
                .map(|&token| step(&stack, &mut state, &input(token)));
            steps.last().unwrap()
        };
        let mut state = begin(&stack, &choice, Kind::F32);
        let mut pasts: Vec<(usize, Vec<usize>)> = vec![(0, vec![]), (1, vec![])];
        let mut token = 0;
        for rows in [&[0, 0, 1, 1][..], &[3, 0, 2, 0, 1], &[4, 1], &[0]] {
            for (_, past) in &mut pasts {
                past.push(token);
                token += 1;
            }
            let x: Vec<f32> = pasts
                .iter()
                .flat_map(|(_, past)| input(*past.last().unwrap()))
                .collect();
            let found = step(&stack, &mut state, &x);
            for (row, (source, past)) in found.chunks_exact(9).zip(&pasts) {
                assert_eq!(row, alone(*source, past), "{past:?}");
            }
            state.select(rows).unwrap();
            pasts = rows.iter().map(|&row| pasts[row].clone()).collect();
        }
        assert_eq!(state.length(0), 4);
        let error = state.select(&[1]).unwrap_err().to_string();
        assert!(error.contains("`rows`"), "{error}");
    }
}
