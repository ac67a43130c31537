//! Windows in steps and in parts of a sequence, and distances that no sequence has.

use super::*;
use attend::ALIGNED;

/// The keys of each query that head 0 of the first block sees.
#[derive(Default)]
struct Keys(Vec<Vec<usize>>);

impl Observer for Keys {
    fn wants(&self, layer: usize, _: bool) -> bool {
        layer == 0
    }

    fn see(&mut self, seen: Seen<'_>) -> Result<(), KernelError> {
        let ([_, heads, queries, _], keys) = (seen.query.shape, seen.key.shape[2]);
        let mut weights = vec![0.0; heads * queries * keys];
        let rows: Vec<usize> = (0..queries).collect();
        let observe = dot::Observe {
            rows: Some((&rows, &mut weights)),
            ..Default::default()
        };
        dot::observe(&seen.attention, seen.query, seen.key, seen.lse, observe)?;
        for weights in weights.chunks_exact(keys).take(queries) {
            let read = (0..keys).filter(|&key| weights[key] > 0.0);
            self.0.push(read.map(|key| seen.keys.of(key)).collect());
        }
        Ok(())
    }
}

/// Both kinds of stack, with the window in all of their `blocks`.
fn with_window(causal: bool, window: Option<usize>, blocks: usize) -> Stack {
    let sizes = Sizes {
        causal,
        ..PLAIN.sizes
    };
    let mut stack = stack(&Choice { sizes, ..PLAIN });
    stack.blocks.truncate(blocks);
    for block in &mut stack.blocks {
        block.attention.window = window;
    }
    stack
}

/// The last position of every beginning, and what an observer sees of it. One block: outside causality, later positions enter the
/// states of earlier ones in the second.
#[test]
fn a_step_sees_the_keys_of_the_whole() {
    let x = random(5, 8 * 8, 1.0);
    for (causal, window) in [true, false]
        .into_iter()
        .flat_map(|causal| [0, 1, 3, 100, usize::MAX].map(|window| (causal, window)))
        .filter(|&(causal, window)| !causal || window > 0)
    {
        let stack = with_window(causal, Some(window), 1);
        let mut state = stack.begin(1, Kind::F32);
        for at in 0..8 {
            let whole = stack.forward(None, &x[..(at + 1) * 8], &[at + 1], None);
            let truth = plain::forward(&stack, &x[..(at + 1) * 8], &[], &[]);
            close(&whole.unwrap(), &truth, 2e-5);
            let mut keys = Keys::default();
            let step = |state: &mut State, observer| {
                let x = &x[at * 8..][..8];
                stack.forward(Some(state), x, &[1], observer).unwrap()
            };
            let looked = step(&mut state.clone(), Some(&mut keys as _));
            let found = step(&mut state, None);
            close(&found, &truth[at * 8..], 2e-5);
            same_bits(&looked, &found);
            let before = window - usize::from(causal);
            let seen = at.saturating_sub(before)..at + 1;
            assert_eq!(keys.0, [seen.collect::<Vec<_>>()], "{causal} {window}");
        }
    }
}

#[test]
fn a_window_beyond_every_distance_is_none() {
    let past = unless_miri(ALIGNED + 6, 9);
    let x = random(5, (past + 3) * 8, 1.0);
    for causal in [true, false] {
        let run = |window| {
            let stack = with_window(causal, window, 2);
            let (mut state, mut found) = (stack.begin(1, Kind::F32), vec![]);
            let mut keys = Keys::default();
            for part in [0..past, past..past + 2, past + 2..past + 3] {
                let (count, x) = (part.len(), &x[part.start * 8..part.end * 8]);
                let mut state = Some(&mut state);
                found.extend(
                    stack
                        .forward(state.as_deref_mut(), x, &[count], None)
                        .unwrap(),
                );
                if count < past {
                    let mut again = state.unwrap().clone();
                    stack
                        .forward(Some(&mut again), x, &[count], Some(&mut keys))
                        .unwrap();
                }
            }
            (found, keys.0)
        };
        let (truth, keys) = run(None);
        for window in [usize::MAX, usize::MAX - 1, 1 << 63, 1 << 62] {
            let found = run(Some(window));
            same_bits(&found.0, &truth);
            assert_eq!(found.1, keys, "{causal} {window}");
        }
    }
}

#[test]
fn distances_do_not_wrap() {
    let [relative, alibi] = [false, true].map(|alibi| {
        let stack = stack(&Choice {
            relative: !alibi,
            alibi,
            ..PLAIN
        });
        move |query, key| stack.added_by_distance(0, 1, query, key)
    });
    for far in [usize::MAX, 1 << 63, 1 << 62, 1 << 40] {
        assert_eq!(relative(0, far), relative(0, 100));
        assert_eq!(relative(far, 0), relative(100, 0));
        assert_eq!(relative(far, far - 1), relative(1, 0));
        assert!(alibi(0, far) < -1e9 && alibi(far, 0) < -1e9);
        assert_eq!(alibi(far - 3, far), alibi(0, 3));
    }
}
