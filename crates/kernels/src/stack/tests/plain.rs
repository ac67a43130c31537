//! The definition of a stack, in double precision, for one sequence.

use std::cell::Cell;

use super::*;

thread_local! {
    static ROUNDS: Cell<bool> = const { Cell::new(false) };
}

/// What `definition` gives where the inputs of its products are rounded to bfloat16, naively.
pub(super) fn rounding<T>(definition: impl FnOnce() -> T) -> T {
    ROUNDS.set(true);
    let found = definition();
    ROUNDS.set(false);
    found
}

fn multiply(product: &Product, x: &[f64]) -> Vec<f64> {
    let rounded: Vec<f64> = x.iter().map(|&x| bf16::from_f64(x).to_f64()).collect();
    let x = if ROUNDS.get() { &rounded } else { x };
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
        Activation::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
    }
}

fn attend(
    sizes: &Sizes,
    scale: Option<f32>,
    query: &[f64],
    key_values: &[Vec<f64>],
    bias: impl Fn(usize, usize) -> f64,
    sees: impl Fn(usize, usize) -> bool,
    given: impl Fn(usize, usize) -> Option<f64>,
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
            match (sees(h, at), given(h, at)) {
                (true, Some(weight)) => weight,
                (true, None) => (capped + bias(h, at)).exp(),
                (false, _) => 0.0,
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

/// Zeros in the heads that are changed so.
fn clear(stack: &Stack, layer: usize, cross: bool, change: HeadChange, numbers: &mut [f64]) {
    for one in &stack.changed {
        if (one.layer, one.cross, &one.change) == (layer, cross, &change) {
            numbers[one.head * stack.sizes.head..][..stack.sizes.head].fill(0.0);
        }
    }
}

/// Whether a head, a query and a key are hidden from each other.
fn hides(
    stack: &Stack,
    layer: usize,
    cross: bool,
    (head, query, key): (usize, usize, usize),
) -> bool {
    let hidden = ChangedHead {
        layer,
        cross,
        head,
        change: HeadChange::Hide { query, key },
    };
    stack.changed.contains(&hidden)
}

/// The weight that a head, a query and a key are given; 0 for a key beyond those that are.
fn given(stack: &Stack, layer: usize, cross: bool, place: (usize, usize, usize)) -> Option<f64> {
    let (head, query, key) = place;
    stack.changed.iter().find_map(|one| match &one.change {
        HeadChange::Replace(given) if (one.layer, one.cross, one.head) == (layer, cross, head) => {
            let weights = given.row(query)?;
            Some(weights.get(key).map_or(0.0, |&weight| f64::from(weight)))
        }
        _ => None,
    })
}

pub(super) fn forward(stack: &Stack, x: &[f32], source: &[f32], globals: &[usize]) -> Vec<f64> {
    let sizes = &stack.sizes;
    let (query, key) = sizes.widths();
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let mut states: Vec<Vec<f64>> = x.chunks_exact(sizes.model).map(wide).collect();
    for (layer, block) in stack.blocks.iter().enumerate() {
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
                let (none, all) = (|_, _| 0.0, |_, _| true);
                let read = attend(
                    sizes,
                    own.scale,
                    &queries,
                    &key_values,
                    none,
                    all,
                    |_, _| None,
                );
                leave(&own.norms, x, &multiply(&own.output, &read));
                continue;
            }
            let sees = |h: usize, j: usize| {
                let near = match (sizes.causal, own.window) {
                    (true, Some(window)) => i - j.min(i) < window,
                    (false, Some(window)) => i.abs_diff(j) <= window,
                    _ => true,
                };
                !hides(stack, layer, false, (h, i, j))
                    && (globals.contains(&j) || near && (j <= i || !sizes.causal))
            };
            let bias = |h: usize, j: usize| {
                let Distances { relative, alibi } = &stack.distances;
                let slope = alibi.as_ref().map_or(0.0, |slopes| f64::from(slopes[h]));
                let relative = relative.get(layer).or(relative.first());
                let bias = relative.map_or(0.0, |relative| {
                    let distances = relative.values.len() / sizes.heads;
                    let place = (relative.zero + j).saturating_sub(i).min(distances - 1);
                    f64::from(relative.values[h * distances + place])
                });
                bias - slope * i.abs_diff(j) as f64
            };
            let mut queries = joint[i][..query].to_vec();
            clear(stack, layer, false, HeadChange::Uniform, &mut queries);
            let given = |h, j| given(stack, layer, false, (h, i, j));
            let mut read = attend(sizes, own.scale, &queries, &key_values, bias, sees, given);
            clear(stack, layer, false, HeadChange::Off, &mut read);
            leave(&own.norms, x, &multiply(&own.output, &read));
        }
        if let Some(cross) = &block.cross {
            let key_values: Vec<_> = source
                .chunks_exact(SOURCE)
                .map(|state| multiply(&cross.key_value, &wide(state)))
                .collect();
            for (i, x) in states.iter_mut().enumerate() {
                let entered = normalize(cross.norms.before.as_ref(), x);
                let mut queries = multiply(&cross.query, &entered);
                clear(stack, layer, true, HeadChange::Uniform, &mut queries);
                let none = |_, _| 0.0;
                let sees = |h, j| !hides(stack, layer, true, (h, i, j));
                let given = |h, j| given(stack, layer, true, (h, i, j));
                let mut read = attend(sizes, cross.scale, &queries, &key_values, none, sees, given);
                clear(stack, layer, true, HeadChange::Off, &mut read);
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
