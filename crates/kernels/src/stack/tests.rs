mod global;

use super::*;
use crate::matmul::Storage;
use crate::norm::Kind as NormKind;
use crate::testing::{on_every_pool, random, unless_miri};
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
    match choice.relative {
        // Distances from -4 to 2, so that some are beyond either end.
        true => stack.with_relative(RelativePositions {
            values: random(91, sizes.heads * 7, 2.0),
            zero: 4,
        }),
        false => Ok(stack),
    }
    .unwrap()
}

/// The definition, in double precision, for one sequence.
mod plain {
    use super::*;

    fn multiply(product: &Product, x: &[f64]) -> Vec<f64> {
        let [inner, columns] = product.sizes();
        let mut column = vec![0.0; inner];
        // The bias is what zeros give.
        let bias = product.forward(&vec![0.0; inner], 1).unwrap();
        let dot = |index: usize| {
            product.column(index, &mut column).unwrap();
            let sum: f64 = column.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
            sum + f64::from(bias[index])
        };
        (0..columns).map(dot).collect()
    }

    fn normalize(norm: Option<&NormWeights>, x: &[f64]) -> Vec<f64> {
        let Some(norm) = norm else { return x.to_vec() };
        let size = x.len() as f64;
        let mean = match norm.kind {
            NormKind::Layer => x.iter().sum::<f64>() / size,
            NormKind::RootMeanSquare => 0.0,
        };
        let square = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / size;
        let entry = |(i, x): (usize, &f64)| {
            let bias = norm.bias.as_ref().map_or(0.0, |bias| f64::from(bias[i]));
            f64::from(norm.weight[i]) * (x - mean) / (square + norm.epsilon).sqrt() + bias
        };
        x.iter().enumerate().map(entry).collect()
    }

    /// `Φ(x)` by its series, for moderate `x`.
    fn phi(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / (2.0 * f64::from(n));
            sum += term / f64::from(2 * n + 1);
        }
        0.5 + sum / std::f64::consts::TAU.sqrt()
    }

    pub(super) fn activate(activation: Activation, x: f64) -> f64 {
        match activation {
            Activation::Relu => x.max(0.0),
            Activation::Gelu => x * phi(x),
            Activation::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            }
            Activation::Silu => x / (1.0 + (-x).exp()),
        }
    }

    fn attend(
        sizes: &Sizes,
        scale: Option<f32>,
        query: &[f64],
        key_values: &[Vec<f64>],
        bias: impl Fn(usize, usize) -> f64,
        sees: impl Fn(usize) -> bool,
    ) -> Vec<f64> {
        let (_, key) = sizes.widths();
        let head = sizes.head;
        let scale = scale.map_or(1.0 / (head as f64).sqrt(), f64::from);
        let of_head = |h: usize| {
            let group = h / (sizes.heads / sizes.key_value_heads) * head;
            let scores = key_values.iter().enumerate().map(|(at, state)| {
                let products = (0..head).map(|i| query[h * head + i] * state[group + i]);
                let score = scale * products.sum::<f64>();
                let capped = sizes.softcap.map_or(score, |cap| {
                    f64::from(cap) * (score / f64::from(cap)).tanh()
                });
                match sees(at) {
                    true => (capped + bias(h, at)).exp(),
                    false => 0.0,
                }
            });
            let weights: Vec<f64> = scores.collect();
            let sum: f64 = weights.iter().sum();
            let read = |i: usize| {
                let products = weights.iter().zip(key_values);
                let read: f64 = products.map(|(w, state)| w * state[key + group + i]).sum();
                if sum > 0.0 { read / sum } else { 0.0 }
            };
            (0..head).map(read).collect::<Vec<_>>()
        };
        (0..sizes.heads).flat_map(of_head).collect()
    }

    fn leave(norms: &Norms, x: &mut Vec<f64>, y: &[f64]) {
        let y = normalize(norms.inside.as_ref(), y);
        x.iter_mut().zip(&y).for_each(|(x, y)| *x += y);
        *x = normalize(norms.after.as_ref(), x);
    }

    pub(super) fn forward(stack: &Stack, x: &[f32], source: &[f32], globals: &[usize]) -> Vec<f64> {
        let sizes = &stack.sizes;
        let (query, key) = sizes.widths();
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let mut states: Vec<Vec<f64>> = x.chunks_exact(sizes.model).map(wide).collect();
        for block in &stack.blocks {
            let own = &block.attention;
            let entered: Vec<_> = states
                .iter()
                .map(|x| normalize(own.norms.before.as_ref(), x))
                .collect();
            let mut joint: Vec<_> = entered
                .iter()
                .map(|x| multiply(&own.query_key_value, x))
                .collect();
            for (position, row) in joint.iter_mut().enumerate() {
                for (h, head) in row[..query + key].chunks_exact_mut(sizes.head).enumerate() {
                    let norm = if h < sizes.heads {
                        &own.query_norm
                    } else {
                        &own.key_norm
                    };
                    head.copy_from_slice(&normalize(norm.as_ref(), head));
                    let Some(rotation) = own.rotation else {
                        continue;
                    };
                    let Rotation {
                        frequencies,
                        factor,
                        ..
                    } = &stack.rotations[rotation];
                    let pairs = frequencies.len();
                    for (i, frequency) in frequencies.iter().enumerate() {
                        let (sine, cosine) = (position as f64 * frequency).sin_cos();
                        let (x, y) = (head[i], head[i + pairs]);
                        head[i] = factor * (x * cosine - y * sine);
                        head[i + pairs] = factor * (y * cosine + x * sine);
                    }
                }
            }
            let key_values: Vec<_> = joint.iter().map(|row| row[query..].to_vec()).collect();
            for (i, x) in states.iter_mut().enumerate() {
                if let (Some(global), true) = (&own.global, globals.contains(&i)) {
                    let queries = multiply(&global.query, &entered[i]);
                    let of = |x: &Vec<f64>| multiply(&global.key_value, x);
                    let key_values: Vec<_> = entered.iter().map(of).collect();
                    let (none, all) = (|_, _| 0.0, |_| true);
                    let read = attend(sizes, own.scale, &queries, &key_values, none, all);
                    leave(&own.norms, x, &multiply(&own.output, &read));
                    continue;
                }
                let sees = |j: usize| {
                    let near = match (sizes.causal, own.window) {
                        (true, Some(window)) => i - j.min(i) < window,
                        (false, Some(window)) => i.abs_diff(j) <= window,
                        _ => true,
                    };
                    globals.contains(&j) || near && (j <= i || !sizes.causal)
                };
                let bias = |h: usize, j: usize| {
                    stack.relative.as_ref().map_or(0.0, |relative| {
                        let distances = relative.values.len() / sizes.heads;
                        let place = (relative.zero + j).saturating_sub(i).min(distances - 1);
                        f64::from(relative.values[h * distances + place])
                    })
                };
                let read = attend(
                    sizes,
                    own.scale,
                    &joint[i][..query],
                    &key_values,
                    bias,
                    sees,
                );
                leave(&own.norms, x, &multiply(&own.output, &read));
            }
            if let Some(cross) = &block.cross {
                let key_values: Vec<_> = source
                    .chunks_exact(SOURCE)
                    .map(|state| multiply(&cross.key_value, &wide(state)))
                    .collect();
                for x in &mut states {
                    let entered = normalize(cross.norms.before.as_ref(), x);
                    let queries = multiply(&cross.query, &entered);
                    let (none, all) = (|_, _| 0.0, |_| true);
                    let read = attend(sizes, cross.scale, &queries, &key_values, none, all);
                    leave(&cross.norms, x, &multiply(&cross.output, &read));
                }
            }
            let part = &block.feed_forward;
            for (x, entered) in states.iter_mut().zip(&entered) {
                let entered = match part.parallel {
                    true => entered.clone(),
                    false => normalize(part.norms.before.as_ref(), x),
                };
                let inner = multiply(&part.inner, &entered);
                let phi = |&x: &f64| activate(part.activation, x);
                let inner: Vec<f64> = match part.gated {
                    true => {
                        let (gate, value) = inner.split_at(inner.len() / 2);
                        gate.iter()
                            .map(phi)
                            .zip(value)
                            .map(|(g, x)| g * x)
                            .collect()
                    }
                    false => inner.iter().map(phi).collect(),
                };
                leave(&part.norms, x, &multiply(&part.outer, &inner));
            }
        }
        let last = stack.last_norm.as_ref();
        states.iter().flat_map(|x| normalize(last, x)).collect()
    }
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

/// Weights at half width and in 8 bits are widened exactly, so that few rows and many give the same bits, and those of the
/// definition for the rounded weights.
#[test]
fn stored_weights_are_used_as_they_are() {
    for storage in [Storage::F32, Storage::Bf16, Storage::F16, Storage::Int8] {
        let choice = Choice { storage, ..PLAIN };
        let stack = stack(&choice);
        let input = random(5, 40 * 8, 1.0);
        let all = stack.forward(None, &input, &[40], None).unwrap();
        close(&all, &plain::forward(&stack, &input, &[], &[]), 2e-5);
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

#[test]
fn activations_are_their_definitions() {
    let x: Vec<f32> = (-500..=500).map(|i| i as f32 * 0.012).collect();
    for activation in [
        Activation::Relu,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Silu,
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
    let error = stack(&PLAIN).with_relative(relative).unwrap_err();
    assert!(
        error.to_string().starts_with("`relative` holds 10"),
        "{error}"
    );
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
