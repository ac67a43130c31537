//! Compares the fused sequence operations with the same computed step by step with plain Burn
//! operations, values and gradients.
#![allow(
    clippy::disallowed_methods,
    reason = "definitions in Burn's own products; nothing is empty here"
)]

use burn::tensor::activation::{sigmoid, softmax};
use burn::tensor::{Bool, DType, Device, Distribution, Tensor, Tolerance};
use regard_nn::bridge::sequence::{
    AdditiveFields, InputFeedingFields, InputFeedingMasks, LayerFields, Operand, Unit,
    additive_decoder, input_feeding_decoder, is_fused, layer,
};
use regard_nn::bridge::without_kernels;

const STEPS: usize = 6;
const BATCH: usize = 3;
const SOURCES: usize = 5;
const HIDDEN: usize = 10;

fn device() -> Device {
    Device::flex().autodiff()
}

fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Uniform(-0.8, 0.8), &device()).require_grad()
}

/// Row `r` of the batch has `[full, full - 2, 1]` real positions.
fn mask(rows: usize, length: usize) -> Tensor<2, Bool> {
    let lengths = [length, length - 2, 1];
    let flags: Vec<bool> = (0..rows * length)
        .map(|at| at % length < lengths[at / length % 3])
        .collect();
    Tensor::<1, Bool>::from_bool(flags.as_slice(), &device()).reshape([rows, length])
}

/// `new` where the step is real, else `old`.
fn carry(keep: &Option<Tensor<2, Bool>>, step: usize, new: Tensor<2>, old: Tensor<2>) -> Tensor<2> {
    match keep {
        None => new,
        Some(keep) => {
            let real = keep
                .clone()
                .slice([step..step + 1, 0..BATCH])
                .swap_dims(0, 1);
            old.mask_where(real.expand(new.dims()), new)
        }
    }
}

fn at_step(x: &Tensor<3>, step: usize) -> Tensor<2> {
    let [_, batch, width] = x.dims();
    x.clone()
        .slice([step..step + 1, 0..batch, 0..width])
        .reshape([batch, width])
}

fn columns(x: &Tensor<2>, index: usize) -> Tensor<2> {
    let [rows, _] = x.dims();
    x.clone()
        .slice([0..rows, index * HIDDEN..(index + 1) * HIDDEN])
}

/// One step of Cho's unit; `input` is the whole input part of the pre-activations.
fn cho(input: &Tensor<2>, u: &Tensor<2>, h: &Tensor<2>) -> Tensor<2> {
    let z = sigmoid(columns(input, 0) + h.clone().matmul(columns(u, 0)));
    let r = sigmoid(columns(input, 1) + h.clone().matmul(columns(u, 1)));
    let new = (columns(input, 2) + (r * h.clone()).matmul(columns(u, 2))).tanh();
    (z.clone().neg() + 1.0) * h.clone() + z * new
}

/// Compares outputs, then the gradients of `Σ output · probe` with respect to every input.
fn compare<const D: usize>(fused: Tensor<D>, plain: Tensor<D>, gradients: &[&dyn Gradient]) {
    let tolerance = Tolerance::<f32>::absolute(2e-6);
    fused
        .clone()
        .into_data()
        .assert_approx_eq::<f32>(&plain.clone().into_data(), tolerance);
    let probe = Tensor::<D>::random(fused.dims(), Distribution::Uniform(-1.0, 1.0), &device());
    let of_fused = (fused * probe.clone()).sum().backward();
    let of_plain = (plain * probe).sum().backward();
    for (index, gradient) in gradients.iter().enumerate() {
        gradient.compare(index, &of_fused, &of_plain);
    }
}

trait Gradient {
    fn compare(&self, index: usize, a: &burn::tensor::Gradients, b: &burn::tensor::Gradients);
}

impl<const D: usize> Gradient for Tensor<D> {
    fn compare(&self, index: usize, a: &burn::tensor::Gradients, b: &burn::tensor::Gradients) {
        let [a, b] = [a, b].map(|all| {
            self.grad(all)
                .unwrap_or_else(|| panic!("gradient of input {index}"))
        });
        let scale: f32 = b.clone().abs().max().into_scalar();
        assert!(scale > 1e-4, "input {index} has a gradient worth comparing");
        a.into_data()
            .assert_approx_eq::<f32>(&b.into_data(), Tolerance::absolute(5e-6 * scale.max(1.0)));
    }
}

fn fields(x: &Tensor<3>, recurrent: &Tensor<2>, initial: &Tensor<2>) -> LayerFields<Operand> {
    LayerFields {
        x_projection: x.clone().into(),
        recurrent: recurrent.clone().into(),
        initial: initial.clone().into(),
    }
}

#[test]
fn f32_on_flex_is_fused_with_and_without_autodiff() {
    let x = Tensor::<1>::zeros([3], &Device::flex());
    assert!(is_fused(&x));
    assert!(is_fused(&Tensor::<1>::zeros([3], &device())));
    assert!(!is_fused(&x.clone().cast(DType::F64)));
    assert!(!without_kernels(|| is_fused(&x)));
    let unwound = std::panic::catch_unwind(|| without_kernels(|| panic!("a mistake of the work")));
    assert!(
        unwound.is_err() && is_fused(&x),
        "they are back after a panic"
    );
}

#[test]
fn gru_equals_plain_operations() {
    for unit in [Unit::ChoGru, Unit::PyTorchGru] {
        for reverse in [false, true] {
            for keep in [None, Some(mask(BATCH, STEPS).swap_dims(0, 1))] {
                let x = random([STEPS, BATCH, 3 * HIDDEN]);
                let u = random([HIDDEN, 3 * HIDDEN]);
                let h0 = random([BATCH, HIDDEN]);
                let fused = layer(unit, fields(&x, &u, &h0), keep.clone(), reverse);

                let mut states = vec![h0.clone(); STEPS];
                let mut h = h0.clone();
                for at in 0..STEPS {
                    let step = if reverse { STEPS - 1 - at } else { at };
                    let input = at_step(&x, step);
                    let new = match unit {
                        Unit::ChoGru => cho(&input, &u, &h),
                        _ => {
                            let hidden = h.clone().matmul(u.clone());
                            let z = sigmoid(columns(&input, 0) + columns(&hidden, 0));
                            let r = sigmoid(columns(&input, 1) + columns(&hidden, 1));
                            let new = (columns(&input, 2) + r * columns(&hidden, 2)).tanh();
                            (z.clone().neg() + 1.0) * new + z * h.clone()
                        }
                    };
                    h = carry(&keep, step, new, h);
                    states[step] = h.clone();
                }
                let plain = Tensor::stack::<3>(states, 0);
                compare(fused, plain, &[&x, &u, &h0]);
            }
        }
    }
}

#[test]
fn lstm_equals_plain_operations() {
    for reverse in [false, true] {
        for keep in [None, Some(mask(BATCH, STEPS).swap_dims(0, 1))] {
            let x = random([STEPS, BATCH, 4 * HIDDEN]);
            let u = random([HIDDEN, 4 * HIDDEN]);
            let h0 = random([BATCH, HIDDEN]);
            let c0 = random([BATCH, HIDDEN]);
            let initial = Tensor::cat(vec![h0.clone(), c0.clone()], 1);
            let fused = layer(Unit::Lstm, fields(&x, &u, &initial), keep.clone(), reverse);

            let mut states = vec![Tensor::cat(vec![h0.clone(), c0.clone()], 1); STEPS];
            let (mut h, mut c) = (h0.clone(), c0.clone());
            for at in 0..STEPS {
                let step = if reverse { STEPS - 1 - at } else { at };
                let gates = at_step(&x, step) + h.clone().matmul(u.clone());
                let [i, f, o] = [0, 1, 3].map(|index| sigmoid(columns(&gates, index)));
                let new_c = f * c.clone() + i * columns(&gates, 2).tanh();
                let new_h = o * new_c.clone().tanh();
                h = carry(&keep, step, new_h, h);
                c = carry(&keep, step, new_c, c);
                states[step] = Tensor::cat(vec![h.clone(), c.clone()], 1);
            }
            compare(fused, Tensor::stack(states, 0), &[&x, &u, &h0, &c0]);
        }
    }
}

#[test]
fn additive_gru_decoder_equals_plain_operations() {
    const ATTENTION: usize = 7;
    const VALUE: usize = 12;
    for keep_source in [None, Some(mask(BATCH, SOURCES))] {
        for keep in [None, Some(mask(BATCH, STEPS).swap_dims(0, 1))] {
            let x = random([STEPS, BATCH, 3 * HIDDEN]);
            let s0 = random([BATCH, HIDDEN]);
            let keys = random([BATCH, SOURCES, ATTENTION]);
            let values = random([BATCH, SOURCES, VALUE]);
            let w = random([HIDDEN, ATTENTION]);
            let v = random([ATTENTION]);
            let u = random([HIDDEN, 3 * HIDDEN]);
            let c = random([VALUE, 3 * HIDDEN]);
            let inputs = AdditiveFields {
                x_projection: x.clone().into(),
                initial: s0.clone().into(),
                keys: keys.clone().into(),
                values: values.clone().into(),
                query_weight: w.clone().into(),
                score: v.clone().into(),
                recurrent: u.clone().into(),
                context_weight: c.clone().into(),
            };
            let fused = additive_decoder(Unit::ChoGru, inputs, keep_source.clone(), keep.clone());

            let (mut rows, mut attention) = (Vec::new(), Vec::new());
            let mut s = s0.clone();
            for step in 0..STEPS {
                let query = s.clone().matmul(w.clone()).unsqueeze_dim::<3>(1);
                let scores = ((query + keys.clone()).tanh() * v.clone().reshape([1, 1, ATTENTION]))
                    .sum_dim(2)
                    .reshape([BATCH, SOURCES]);
                let scores = match &keep_source {
                    Some(keep) => scores.mask_fill(keep.clone().bool_not(), f32::NEG_INFINITY),
                    None => scores,
                };
                let weights = softmax(scores, 1);
                let context = weights
                    .clone()
                    .unsqueeze_dim::<3>(1)
                    .matmul(values.clone())
                    .reshape([BATCH, VALUE]);
                let input = at_step(&x, step) + context.clone().matmul(c.clone());
                s = carry(&keep, step, cho(&input, &u, &s), s.clone());
                rows.push(Tensor::cat(vec![s.clone(), context], 1));
                attention.push(weights);
            }
            let attention = Tensor::stack::<3>(attention, 0);
            let tolerance = Tolerance::<f32>::absolute(2e-6);
            fused
                .weights
                .into_data()
                .assert_approx_eq::<f32>(&attention.into_data(), tolerance);
            let plain = Tensor::stack(rows, 0);
            compare(
                fused.output,
                plain,
                &[&x, &s0, &keys, &values, &w, &v, &u, &c],
            );
        }
    }
}

#[test]
fn without_autodiff_the_numbers_are_the_same() {
    let x = random([STEPS, BATCH, 3 * HIDDEN]);
    let u = random([HIDDEN, 3 * HIDDEN]);
    let h0 = random([BATCH, HIDDEN]);
    let run = |inputs| layer(Unit::ChoGru, inputs, None, false);
    let tracked = run(fields(&x, &u, &h0));
    let plain = run(fields(&x.inner(), &u.inner(), &h0.inner()));
    assert_eq!(tracked.into_data(), plain.into_data());
}

#[test]
#[should_panic(expected = "`recurrent` has shape")]
fn a_wrong_shape_names_the_tensor() {
    let x = Tensor::<3>::zeros([2, 1, 9], &Device::flex());
    let u = Tensor::<2>::zeros([3, 8], &Device::flex());
    let h0 = Tensor::<2>::zeros([1, 3], &Device::flex());
    layer(Unit::ChoGru, fields(&x, &u, &h0), None, false);
}

#[test]
fn input_feeding_decoder_equals_plain_operations() {
    const VALUE: usize = 12;
    const ATTENTION: usize = 7;
    for (layers, additive, varied) in [
        (1, false, false),
        (2, false, true),
        (1, true, true),
        (3, true, false),
    ] {
        let x = random([STEPS, BATCH, 4 * HIDDEN]);
        let feed0 = random([BATCH, HIDDEN]);
        let f = random([HIDDEN, 4 * HIDDEN]);
        let u = random([layers, HIDDEN, 4 * HIDDEN]);
        let w = random([layers - 1, HIDDEN, 4 * HIDDEN].map(|size| size.max(1)));
        let b = random([(layers - 1).max(1), 4 * HIDDEN]);
        let h0 = random([layers, BATCH, HIDDEN]);
        let c0 = random([layers, BATCH, HIDDEN]);
        let keys = random([BATCH, SOURCES, if additive { ATTENTION } else { HIDDEN }]);
        let values = random([BATCH, SOURCES, VALUE]);
        let wa = random([HIDDEN, ATTENTION]);
        let v = random([ATTENTION]);
        let wc = random([VALUE + HIDDEN, HIDDEN]);
        let bc = random([HIDDEN]);
        let keep = varied.then(|| mask(BATCH, SOURCES));
        let masks = varied.then(|| {
            let masks = Tensor::<4>::random(
                [STEPS, layers, BATCH, HIDDEN],
                Distribution::Bernoulli(0.75),
                &device(),
            );
            masks / 0.75
        });
        let windows = (varied && additive).then(|| {
            (0..STEPS * BATCH)
                .map(|at| [0, (at / BATCH + 1).min(SOURCES)])
                .collect::<Vec<_>>()
        });
        let upper = layers > 1;
        let inputs = InputFeedingFields {
            x_projection: x.clone().into(),
            feed: feed0.clone().into(),
            feed_weight: f.clone().into(),
            recurrent: u.clone().into(),
            layer_weight: match upper {
                true => w.clone().into(),
                false => Tensor::<3>::zeros([0, HIDDEN, 4 * HIDDEN], &device()).into(),
            },
            layer_bias: match upper {
                true => b.clone().into(),
                false => Tensor::<2>::zeros([0, 4 * HIDDEN], &device()).into(),
            },
            initial: Tensor::cat(vec![h0.clone(), c0.clone()], 2).into(),
            keys: keys.clone().into(),
            values: values.clone().into(),
            combine_weight: wc.clone().into(),
            combine_bias: bc.clone().into(),
            query_weight: match additive {
                true => wa.clone().into(),
                false => Tensor::<2>::zeros([HIDDEN, 0], &device()).into(),
            },
            score: match additive {
                true => v.clone().into(),
                false => Tensor::<1>::zeros([0], &device()).into(),
            },
        };
        let keeps = InputFeedingMasks {
            dropout: masks.clone(),
            windows: windows.clone(),
            keep_source: keep.clone(),
        };
        let fused = input_feeding_decoder(inputs, keeps);

        let drop = |x: Tensor<2>, step: usize, layer: usize| match &masks {
            None => x,
            Some(masks) => {
                let mask = masks.clone().slice([step..step + 1, layer..layer + 1]);
                x * mask.reshape([BATCH, HIDDEN])
            }
        };
        let mut feed = feed0.clone();
        let mut hidden: Vec<_> = (0..layers).map(|layer| at_step(&h0, layer)).collect();
        let mut cell: Vec<_> = (0..layers).map(|layer| at_step(&c0, layer)).collect();
        let (mut rows, mut attention) = (Vec::new(), Vec::new());
        for step in 0..STEPS {
            for layer in 0..layers {
                let input = if layer == 0 {
                    at_step(&x, step) + feed.clone().matmul(f.clone())
                } else {
                    let below = drop(hidden[layer - 1].clone(), step, layer - 1);
                    let bias = b.clone().narrow(0, layer - 1, 1);
                    below.matmul(at_step(&w, layer - 1)) + bias
                };
                let gates = input + hidden[layer].clone().matmul(at_step(&u, layer));
                let [i, f, o] = [0, 1, 3].map(|index| sigmoid(columns(&gates, index)));
                cell[layer] = f * cell[layer].clone() + i * columns(&gates, 2).tanh();
                hidden[layer] = o * cell[layer].clone().tanh();
            }
            let top = hidden[layers - 1].clone();
            let scores = if additive {
                let query = top.clone().matmul(wa.clone()).unsqueeze_dim::<3>(1);
                ((query + keys.clone()).tanh() * v.clone().reshape([1, 1, ATTENTION])).sum_dim(2)
            } else {
                keys.clone().matmul(top.clone().unsqueeze_dim::<3>(2))
            };
            let mut scores = scores.reshape([BATCH, SOURCES]);
            if let Some(keep) = &keep {
                scores = scores.mask_fill(keep.clone().bool_not(), f32::NEG_INFINITY);
            }
            if windows.is_some() {
                let open = (step + 1).min(SOURCES);
                if open < SOURCES {
                    let closed =
                        Tensor::full([BATCH, SOURCES - open], f32::NEG_INFINITY, &device());
                    scores = scores.slice_assign([0..BATCH, open..SOURCES], closed);
                }
            }
            let weights = softmax(scores, 1);
            let context = weights
                .clone()
                .unsqueeze_dim::<3>(1)
                .matmul(values.clone())
                .reshape([BATCH, VALUE]);
            let combined =
                Tensor::cat(vec![context, top], 1).matmul(wc.clone()) + bc.clone().unsqueeze();
            feed = drop(combined.tanh(), step, layers - 1);
            rows.push(feed.clone());
            attention.push(weights);
        }
        let attention = Tensor::stack::<3>(attention, 0);
        let tolerance = Tolerance::<f32>::absolute(2e-6);
        fused
            .weights
            .into_data()
            .assert_approx_eq::<f32>(&attention.into_data(), tolerance);
        let mut inputs: Vec<&dyn Gradient> =
            vec![&x, &feed0, &f, &u, &h0, &c0, &keys, &values, &wc, &bc];
        if layers > 1 {
            inputs.extend([&w as &dyn Gradient, &b]);
        }
        if additive {
            inputs.extend([&wa as &dyn Gradient, &v]);
        }
        compare(fused.output, Tensor::stack(rows, 0), &inputs);
    }
}
