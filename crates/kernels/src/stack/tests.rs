mod global;
mod plain;
mod query;

use std::sync::{Arc, atomic::AtomicBool};

use half::bf16;

use super::*;
use crate::matmul::Storage;
use crate::norm::Kind as NormKind;
use crate::simd::Level;
use crate::testing::{assert_close, on_every_pool, random, unless_miri};
use crate::threads::stoppable;
use crate::{dot, loss};

fn product(seed: u64, storage: Storage, inner: usize, columns: usize) -> Product {
    let mut product = Product::zeros(storage, inner, columns).unwrap();
    let bound = 1.5 / (inner as f32).sqrt();
    for column in 0..columns {
        let values = random(seed * 1000 + column as u64, inner, bound);
        product.set_column(column, &values).unwrap();
    }
    let bias = random(seed + 7, columns, 0.3);
    Product::of(product.matrix, Some(bias)).unwrap()
}

fn norm(seed: u64, kind: NormKind, width: usize) -> NormWeights {
    let weight = random(seed, width, 0.3).iter().map(|x| 1.0 + x).collect();
    let bias = (kind == NormKind::Layer).then(|| random(seed + 1, width, 0.2));
    NormWeights {
        kind,
        weight,
        bias,
        epsilon: 1e-5,
    }
}

/// What a test chooses.
#[derive(Clone, Copy)]
struct Choice {
    sizes: Sizes,
    storage: Storage,
    scale: Option<f32>,
    window: Option<usize>,
    rotary: bool,
    relative: bool,
    alibi: bool,
    query_key_norm: bool,
    cross: bool,
    /// Whether it may have global positions.
    global: bool,
    activation: Activation,
    gated: bool,
    parallel: bool,
    /// Norms before, inside, after.
    places: [bool; 3],
}

const PLAIN: Choice = Choice {
    sizes: Sizes {
        model: 8,
        heads: 4,
        key_value_heads: 2,
        head: 6,
        softcap: None,
        causal: true,
    },
    storage: Storage::F32,
    scale: None,
    window: None,
    rotary: false,
    relative: false,
    alibi: false,
    query_key_norm: false,
    cross: false,
    global: false,
    activation: Activation::Relu,
    gated: false,
    parallel: false,
    places: [true, false, false],
};

fn choices() -> Vec<Choice> {
    let [gelu, silu] = [Activation::Gelu, Activation::Silu];
    vec![
        PLAIN,
        Choice {
            activation: gelu,
            places: [false, false, true],
            sizes: Sizes {
                causal: false,
                ..PLAIN.sizes
            },
            ..PLAIN
        },
        Choice {
            rotary: true,
            query_key_norm: true,
            activation: silu,
            gated: true,
            window: Some(3),
            ..PLAIN
        },
        Choice {
            sizes: Sizes {
                softcap: Some(2.0),
                ..PLAIN.sizes
            },
            places: [true; 3],
            scale: Some(0.3),
            activation: Activation::GeluTanh,
            gated: true,
            rotary: true,
            ..PLAIN
        },
        Choice {
            parallel: true,
            rotary: true,
            activation: gelu,
            ..PLAIN
        },
        Choice {
            cross: true,
            activation: silu,
            gated: true,
            ..PLAIN
        },
        Choice {
            relative: true,
            scale: Some(1.0),
            cross: true,
            ..PLAIN
        },
        Choice {
            alibi: true,
            rotary: true,
            window: Some(4),
            ..PLAIN
        },
        Choice {
            alibi: true,
            relative: true,
            sizes: Sizes {
                causal: false,
                ..PLAIN.sizes
            },
            ..PLAIN
        },
        Choice {
            relative: true,
            window: Some(3),
            sizes: Sizes {
                causal: false,
                ..PLAIN.sizes
            },
            ..PLAIN
        },
    ]
}

const SOURCE: usize = 5;

fn stack(choice: &Choice) -> Stack {
    let Choice { sizes, storage, .. } = *choice;
    let (query, key) = sizes.widths();
    let model = sizes.model;
    let norms = |seed| {
        let [before, inside, after] = choice.places;
        let place = |there: bool, seed| there.then(|| norm(seed, NormKind::Layer, model));
        Norms {
            before: place(before, seed),
            inside: place(inside, seed + 2),
            after: place(after, seed + 4),
        }
    };
    let block = |layer: u64| {
        let seed = 100 * layer;
        let product = |at: u64, inner, columns| product(seed + at, storage, inner, columns);
        let of_head = |at: u64| {
            let rms = NormKind::RootMeanSquare;
            choice
                .query_key_norm
                .then(|| norm(seed + at, rms, sizes.head))
        };
        let inner = if choice.gated { 22 } else { 11 };
        Block {
            attention: SelfAttention {
                query_key_value: product(1, model, query + 2 * key),
                output: product(2, query, model),
                query_norm: of_head(30),
                key_norm: of_head(31),
                scale: choice.scale,
                // Every other block sees everything, as in Gemma 2.
                window: choice.window.filter(|_| layer.is_multiple_of(2)),
                rotation: choice.rotary.then_some(0),
                global: choice.global.then(|| GlobalAttention {
                    query: product(8, model, query),
                    key_value: product(9, model, 2 * key),
                }),
                norms: norms(seed + 40),
            },
            cross: choice.cross.then(|| CrossAttention {
                query: product(3, model, query),
                key_value: product(4, SOURCE, 2 * key),
                output: product(5, query, model),
                scale: choice.scale,
                norms: norms(seed + 50),
            }),
            feed_forward: FeedForward {
                inner: product(6, model, inner),
                activation: choice.activation,
                gated: choice.gated,
                outer: product(7, 11, model),
                norms: norms(seed + 60),
                parallel: choice.parallel,
            },
        }
    };
    let rotations = vec![Rotation {
        frequencies: vec![1.0, 0.1],
        factor: 1.1,
        interleaved: false,
        long: None,
    }];
    let rotations = if choice.rotary { rotations } else { vec![] };
    let last = norm(90, NormKind::Layer, model);
    let stack = Stack::new(sizes, (0..3).map(block).collect(), Some(last), rotations).unwrap();
    let stack = match choice.relative {
        // Distances from -4 to 2, so that some are beyond either end; in each block others.
        true => stack.with_relative(
            (0..3)
                .map(|block| RelativePositions {
                    values: random(91 + block, sizes.heads * 7, 2.0),
                    zero: 4,
                })
                .collect(),
        ),
        false => Ok(stack),
    };
    let stack = stack.unwrap();
    match choice.alibi {
        true => stack.with_alibi((1..=sizes.heads).map(|head| 0.5 / head as f32).collect()),
        false => Ok(stack),
    }
    .unwrap()
}

fn close(found: &[f32], truth: &[f64], bound: f64) {
    assert_eq!(found.len(), truth.len());
    for (found, truth) in found.iter().zip(truth) {
        let error = (f64::from(*found) - truth).abs();
        assert!(error <= bound * truth.abs().max(1.0), "{found} {truth}");
    }
}

#[track_caller]
fn same_bits(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    let other = a
        .iter()
        .zip(b)
        .position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(other, None, "the first number that differs");
}

const SOURCES: [usize; 2] = [4, 2];

/// The state that a choice needs: rows 0 and 1 read source 0 and 1.
fn begin(stack: &Stack, choice: &Choice, cache: Kind) -> State {
    match choice.cross {
        true => {
            let encoded = sources();
            stack
                .begin_with_sources(&encoded, 4, &SOURCES, cache)
                .unwrap()
        }
        false => stack.begin(2, cache),
    }
}

/// `[2, 4, SOURCE]`
fn sources() -> Vec<f32> {
    random(77, 2 * 4 * SOURCE, 1.0)
}

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

/// An observer that refuses in the middle of a pass leaves the state as it was.
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

/// `x [rows, inner]` times the stored weights, plus the bias, where `x` is rounded to bfloat16 first.
fn of_rounded<T: From<f32> + Copy + std::ops::Mul<Output = T> + std::ops::AddAssign>(
    product: &Product,
    x: &[f32],
) -> Vec<T> {
    let [inner, columns] = product.sizes();
    let mut column = vec![0.0; inner];
    let mut sums = vec![T::from(0.0); x.len() / inner * columns];
    for index in 0..columns {
        product.column(index, &mut column).unwrap();
        for (x, sums) in x.chunks_exact(inner).zip(sums.chunks_exact_mut(columns)) {
            for (x, &w) in x.iter().zip(&column) {
                sums[index] += T::from(bf16::from_f32(*x).to_f32()) * T::from(w);
            }
            sums[index] += T::from(product.bias().unwrap()[index]);
        }
    }
    sums
}

/// Weights at half width and in 8 bits are widened exactly, or bfloat16 multiplied in pairs, so that few rows and many give the same
/// bits, and those of the definition for the rounded weights.
#[test]
fn stored_weights_are_used_as_they_are() {
    for storage in [Storage::F32, Storage::Bf16, Storage::F16, Storage::Int8] {
        let choice = Choice { storage, ..PLAIN };
        let stack = stack(&choice);
        let input = random(5, 40 * 8, 1.0);
        let all = stack.forward(None, &input, &[40], None).unwrap();
        let definition = || plain::forward(&stack, &input, &[], &[]);
        let truth = definition();
        if storage == Storage::Bf16 && Level::current().has_pairs() {
            let naive = plain::rounding(definition);
            let naive: Vec<f32> = naive.into_iter().map(|x| x as f32).collect();
            assert_close("a stack of pairs", &all, &naive, &truth, 2.0);
        } else {
            close(&all, &truth, 2e-5);
        }
        let first = stack.forward(None, &input[..3 * 8], &[3], None).unwrap();
        assert_eq!(all[..3 * 8], first, "{storage:?}");

        let wide = product(3, storage, 100, 70);
        let exact = product(3, Storage::F32, 100, 70);
        let (mut a, mut b) = (vec![0.0; 100], vec![0.0; 100]);
        for column in 0..70 {
            wide.column(column, &mut a).unwrap();
            exact.column(column, &mut b).unwrap();
            let largest = b.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            let step = match storage {
                Storage::F32 => 0.0,
                Storage::Bf16 => largest / 256.0,
                Storage::F16 => largest / 2048.0,
                Storage::Int8 => largest / 127.0 * 0.51,
            };
            for (a, b) in a.iter().zip(&b) {
                assert!((a - b).abs() <= step, "{storage:?} {a} {b}");
            }
        }
        let x = random(8, 50 * 100, 1.0);
        let many = on_every_pool(|| vec![wide.forward(&x, 50).unwrap()]);
        for rows in [1, 2, 5, 8, 15, 16, 17] {
            let few = on_every_pool(|| vec![wide.forward(&x[..rows * 100], rows).unwrap()]);
            assert_eq!(few[0], many[0][..rows * 70], "{storage:?} {rows}");
        }
    }
}

/// Sizes around those of tiles and panels, odd inner sizes among them; the sums of rounded numbers as exact as plain ones.
#[test]
fn pairs_of_bfloat16_are_their_definition() {
    if !Level::current().has_pairs() {
        return;
    }
    for (inner, columns, rows) in [
        (1, 1, 1),
        (2, 17, 3),
        (7, 48, 9),
        (101, 70, 21),
        (64, 130, 40),
    ] {
        let product = product(3, Storage::Bf16, inner, columns);
        let x = random(8, rows * inner, 1.0);
        let found = on_every_pool(|| vec![product.forward(&x, rows).unwrap()]);
        let (truth, naive) = (of_rounded::<f64>(&product, &x), of_rounded(&product, &x));
        let name = format!("{inner} {columns} {rows}");
        assert_close(&name, &found[0], &naive, &truth, 2.0);
    }
    // What is not finite stays so, in its row alone.
    let product = product(3, Storage::Bf16, 3, 2);
    let found = product
        .forward(
            &[1.0, f32::NAN, 1.0, f32::INFINITY, 0.0, 0.0, 1.0, 1.0, 1.0],
            3,
        )
        .unwrap();
    assert!(found[..2].iter().all(|x| x.is_nan()) && found[2..4].iter().all(|x| x.is_infinite()));
    assert!(found[4..].iter().all(|x| x.is_finite()));
    // The largest number of bfloat16, the smallest of f32 (rounded to 0), and one that bfloat16 cannot hold.
    let mut product = Product::zeros(Storage::Bf16, 1, 1).unwrap();
    product.set_column(0, &[1.0]).unwrap();
    let x = [bf16::MAX.to_f32(), f32::from_bits(1), f32::MAX, -f32::MAX];
    let found = product.forward(&x, 4).unwrap();
    assert_eq!(found, [x[0], 0.0, f32::INFINITY, f32::NEG_INFINITY]);
    for (inner, columns, rows) in [(0, 3, 2), (3, 0, 2), (3, 2, 0)] {
        let product = Product::zeros(Storage::Bf16, inner, columns).unwrap();
        let found = product.forward(&vec![1.0; rows * inner], rows).unwrap();
        assert_eq!(found, vec![0.0; rows * columns]);
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

fn step(stack: &Stack, state: &mut State, x: &[f32]) -> Vec<f32> {
    let output = product(9, Storage::F32, 8, 9);
    let mut to = vec![f32::NAN; 3];
    let counts = vec![1; x.len() / 8];
    stack
        .last_outputs(state, x, &counts, &output, &mut to, None)
        .unwrap();
    loss::log_softmax(&mut to, 9);
    to
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

#[test]
fn what_does_not_fit_is_refused() {
    let block = stack(&PLAIN).blocks[0].clone();
    let message = |sizes| {
        let made = Stack::new(sizes, vec![block.clone()], None, vec![]);
        made.unwrap_err().to_string()
    };
    let sizes = PLAIN.sizes;
    let three = Sizes {
        key_value_heads: 3,
        ..sizes
    };
    assert!(message(three).contains("key_value_heads"));
    for count in [0, 1 << 60] {
        let heads = Sizes {
            heads: count,
            key_value_heads: count,
            ..sizes
        };
        assert!(message(heads).contains("heads"), "{count}");
    }
    let mut narrow = block.clone();
    narrow.attention.window = Some(0);
    let error = Stack::new(sizes, vec![narrow], None, vec![]).unwrap_err();
    assert!(error.to_string().contains("window"), "{error}");
    for head in [0, 257] {
        let error = message(Sizes { head, ..sizes });
        assert!(
            error.contains("`head`") && error.contains("1 to 256"),
            "{error}"
        );
    }
    let wide = Sizes { model: 9, ..sizes };
    assert!(message(wide).contains("`query_key_value` holds 8"));
    let values = vec![0.0; 10];
    let relative = RelativePositions { values, zero: 0 };
    let error = stack(&PLAIN).with_relative(vec![relative]).unwrap_err();
    assert!(
        error.to_string().starts_with("`relative` holds 10"),
        "{error}"
    );
    let values = vec![0.0; 4];
    let relative = RelativePositions { values, zero: 0 };
    let error = stack(&PLAIN).with_relative(vec![relative; 2]).unwrap_err();
    assert!(error.to_string().contains("one for each block"), "{error}");
    let error = stack(&PLAIN).with_alibi(vec![0.5; 3]).unwrap_err();
    assert!(error.to_string().starts_with("`alibi` holds 3"), "{error}");
    let error = stack(&PLAIN).with_alibi(vec![f32::NAN; 4]).unwrap_err();
    assert!(error.to_string().contains("alibi"), "{error}");
    let ready = stack(&Choice {
        cross: true,
        ..PLAIN
    });
    let begin = |count: usize, lengths: &[usize]| {
        ready.begin_with_sources(&vec![0.5; count], 4, lengths, Kind::F32)
    };
    let error = begin(39, &[4, 2]).unwrap_err().to_string();
    assert!(error.starts_with("`encoded` holds 39"), "{error}");
    let error = begin(40, &[5, 2]).unwrap_err().to_string();
    assert!(error.contains("`lengths`"), "{error}");
    let mut state = begin(40, &[4, 0]).unwrap();
    let error = ready.forward(Some(&mut state), &[0.0; 8], &[1, 1], None);
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("`x` holds 8"), "{error}");
    let error = ready.forward(Some(&mut state), &[0.0; 8], &[1], None);
    assert!(error.unwrap_err().to_string().contains("`counts`"));
    let error = ready
        .forward(None, &[0.0; 8], &[1], None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("sources"), "{error}");
    // Sizes that cannot be, and a state that a refusal leaves as it was.
    let mut plain = stack(&PLAIN).begin(2, Kind::F32);
    for counts in [[usize::MAX, 2], [1 << 63, 1 << 63]] {
        let error = stack(&PLAIN).forward(Some(&mut plain), &[0.0; 8], &counts, None);
        assert!(error.unwrap_err().to_string().contains("`x`"));
    }
    assert_eq!([plain.length(0), plain.length(1)], [0, 0]);
    let error = ready.begin_with_sources(&[], 1 << 63, &[0, 0], Kind::F32);
    assert!(error.unwrap_err().to_string().contains("`encoded`"));
    let mut without = ready.begin(1, Kind::F32);
    let error = ready.forward(Some(&mut without), &[0.0; 8], &[1], None);
    assert!(error.unwrap_err().to_string().contains("sources"));
    assert_eq!(without.length(0), 0);
    assert!(Product::zeros(Storage::Int8, usize::MAX, usize::MAX).is_err());
    for (storage, largest) in [
        (Storage::F16, 65504.0),
        (Storage::Bf16, 3.38e38),
        (Storage::Int8, 127.0 * 65504.0),
    ] {
        let mut product = Product::zeros(storage, 1, 1).unwrap();
        product.set_column(0, &[largest]).unwrap();
        let found = product.forward(&[1.0], 1).unwrap()[0];
        assert!((found / largest - 1.0).abs() < 0.01, "{storage:?} {found}");
        let error = product.set_column(0, &[f32::MAX]).unwrap_err().to_string();
        assert!(error.contains("`values`"), "{error}");
    }
    // A source without words adds nothing, and no NaN.
    let found = step(&ready, &mut state, &random(1, 16, 1.0));
    assert!(found.iter().all(|x| x.is_finite()));
}
