//! The fused operations of the bridge against the same formulas in plain Burn operations, outputs
//! and gradients of every input.
#![allow(
    clippy::disallowed_methods,
    reason = "definitions in Burn's own products; nothing is empty here"
)]

use burn::module::{Module, Param};
use burn::tensor::{
    Bool, Device, Distribution, Gradients, Int, Tensor, TensorData,
    activation::{log_softmax, sigmoid, softmax},
};
use regard_nn::bridge::{
    ActivationKind, activate, additive_attention, additive_attention_plain, cross_entropy,
    cross_entropy_mean, embed, gated_scores, gated_scores_plain, gru_reset, gru_step, gru_update,
    lstm_step, sum, without_kernels,
};
use regard_nn::dropout::DropoutRng;
use regard_nn::initialize::Initializer;
use regard_nn::record::recorded;
use regard_nn::transformer::{Activation, FeedForward};

fn device() -> Device {
    Device::flex().autodiff()
}

/// Seeded numbers in `[-1, 1)`.
fn random<const D: usize>(seed: u64, shape: [usize; D]) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let numbers: Vec<f32> = (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::from_data(TensorData::new(numbers, shape), &device())
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap()
}

#[track_caller]
fn assert_close<const D: usize>(name: &str, fused: Tensor<D>, plain: Tensor<D>) {
    assert_eq!(fused.dims(), plain.dims(), "{name}: shape");
    let (fused, plain) = (numbers(fused), numbers(plain));
    let largest = plain.iter().fold(1.0f32, |m, x| m.max(x.abs()));
    for (i, (a, b)) in fused.iter().zip(&plain).enumerate() {
        // Two computations in f32 may differ by their rounding: a few units of the largest number.
        assert!(
            (a - b).abs() <= 2e-6 * largest,
            "{name}[{i}]: fused {a}, plain {b}"
        );
    }
}

#[track_caller]
fn assert_gradient<const D: usize>(
    name: &str,
    fused: (&Tensor<D>, &Gradients),
    plain: (&Tensor<D>, &Gradients),
) {
    let gradient = |(tensor, gradients): (&Tensor<D>, &Gradients)| tensor.grad(gradients).unwrap();
    assert_close(name, gradient(fused), gradient(plain));
}

/// A sum in which every output has a different weight.
fn probe<const D: usize>(output: Tensor<D>, seed: u64) -> Tensor<1> {
    let weights = random(seed, output.dims());
    (output * weights).sum()
}

fn mask<const D: usize>(flags: &[bool], shape: [usize; D]) -> Tensor<D, Bool> {
    Tensor::from_data(TensorData::new(flags.to_vec(), shape), &device())
}

struct Inputs {
    query: Tensor<3>,
    key: Tensor<3>,
    v: Tensor<1>,
    value: Tensor<3>,
    bias: Option<Tensor<3>>,
}

impl Inputs {
    fn new([batch, queries, keys, dim, value_dim]: [usize; 5], bias: bool) -> Self {
        Inputs {
            query: random(1, [batch, queries, dim]).require_grad(),
            key: random(2, [batch, keys, dim]).require_grad(),
            v: random(3, [dim]).require_grad(),
            value: random(4, [batch, keys, value_dim]).require_grad(),
            bias: bias.then(|| random(5, [batch, queries, keys]).require_grad()),
        }
    }
}

#[test]
fn additive_attention_equals_plain_operations() {
    let mut checked = 0;
    for shape in [[3, 1, 5, 16, 8], [2, 4, 17, 7, 59], [1, 2, 1, 1, 1]] {
        let [batch, _, keys, ..] = shape;
        let flags: Vec<bool> = (0..batch * keys)
            .map(|i| i % 4 != 3 && i >= keys / 2)
            .collect();
        for keep in [None, Some(mask(&flags, [batch, keys]))] {
            for bias in [false, true] {
                let run = |fused: bool| {
                    let i = Inputs::new(shape, bias);
                    let f = if fused {
                        additive_attention
                    } else {
                        additive_attention_plain
                    };
                    let (context, weights) = f(
                        i.query.clone(),
                        i.key.clone(),
                        i.v.clone(),
                        i.value.clone(),
                        keep.clone(),
                        i.bias.clone(),
                    );
                    let gradients = probe(context.clone(), 9).backward();
                    (i, context, weights, gradients)
                };
                let (a, context_a, weights_a, ga) = run(true);
                let (b, context_b, weights_b, gb) = run(false);
                assert_close("context", context_a, context_b);
                assert_close("weights", weights_a, weights_b);
                assert_gradient("query", (&a.query, &ga), (&b.query, &gb));
                assert_gradient("key", (&a.key, &ga), (&b.key, &gb));
                assert_gradient("v", (&a.v, &ga), (&b.v, &gb));
                assert_gradient("value", (&a.value, &ga), (&b.value, &gb));
                if let (Some(a), Some(b)) = (&a.bias, &b.bias) {
                    assert_gradient("bias", (a, &ga), (b, &gb));
                }
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 12);
}

#[test]
fn gated_scores_equal_plain_operations() {
    for [batch, queries, keys, dim] in [[2, 3, 5, 9], [1, 1, 4, 32], [3, 2, 1, 1]] {
        let inputs = || {
            let query = random(11, [batch, queries, 2 * dim]).require_grad();
            let key = random(12, [batch, keys, 2 * dim]).require_grad();
            (query, key, random(13, [dim]).require_grad())
        };
        let (a, b) = (inputs(), inputs());
        let fused = gated_scores(a.0.clone(), a.1.clone(), a.2.clone());
        let plain = gated_scores_plain(b.0.clone(), b.1.clone(), b.2.clone());
        assert_close("scores", fused.clone(), plain.clone());
        let (left, right) = (probe(fused, 14).backward(), probe(plain, 14).backward());
        assert_gradient("query", (&a.0, &left), (&b.0, &right));
        assert_gradient("key", (&a.1, &left), (&b.1, &right));
        assert_gradient("vector", (&a.2, &left), (&b.2, &right));
    }
}

#[test]
fn a_memory_read_many_times_sums_its_gradients() {
    let run = |fused: bool| {
        let key = random(2, [2, 5, 8]).require_grad();
        let value = random(4, [2, 5, 6]).require_grad();
        let v = random(3, [8]).require_grad();
        let f = if fused {
            additive_attention
        } else {
            additive_attention_plain
        };
        let mut query = random(1, [2, 1, 8]).require_grad();
        let mut total = Tensor::<1>::zeros([1], &device());
        for step in 0..4 {
            let (context, _) = f(
                query.clone(),
                key.clone(),
                v.clone(),
                value.clone(),
                None,
                None,
            );
            total = total + probe(context.clone(), 20 + step);
            query = context.repeat_dim(2, 2).narrow(2, 0, 8);
        }
        (key, value, v, total.backward())
    };
    let (key_a, value_a, v_a, ga) = run(true);
    let (key_b, value_b, v_b, gb) = run(false);
    assert_gradient("key", (&key_a, &ga), (&key_b, &gb));
    assert_gradient("value", (&value_a, &ga), (&value_b, &gb));
    assert_gradient("v", (&v_a, &ga), (&v_b, &gb));
}

#[test]
fn untracked_and_mixed_inputs_are_taken() {
    let plain_device = Device::flex();
    let query = Tensor::<3>::ones([1, 1, 4], &plain_device);
    let key = Tensor::<3>::ones([1, 3, 4], &plain_device);
    let v = Tensor::<1>::ones([4], &plain_device);
    let value = Tensor::<3>::ones([1, 3, 2], &plain_device);
    let (context, _) = additive_attention(
        query.clone(),
        key.clone(),
        v.clone(),
        value.clone(),
        None,
        None,
    );
    assert!(!context.device().is_autodiff());
    assert_eq!(numbers(context), [1.0, 1.0]);

    let tracked = random(1, [1, 1, 4]).require_grad();
    let (context, weights) = additive_attention(tracked.clone(), key, v, value, None, None);
    let gradients = context.sum().backward();
    assert_eq!(tracked.grad(&gradients).unwrap().dims(), [1, 1, 4]);
    assert!(!weights.is_require_grad());
}

#[test]
fn strided_inputs_are_taken() {
    let query = random(1, [1, 3, 8]).swap_dims(0, 1); // [3, 1, 8]
    let key = random(2, [5, 3, 8]).swap_dims(0, 1); // [3, 5, 8], not contiguous
    let value = random(3, [3, 9, 6]).narrow(1, 2, 5);
    let v = random(4, [16]).narrow(0, 8, 8);
    let fused = additive_attention(
        query.clone(),
        key.clone(),
        v.clone(),
        value.clone(),
        None,
        None,
    );
    let plain = additive_attention_plain(query, key, v, value, None, None);
    assert_close("context", fused.0, plain.0);
}

#[test]
fn poison_behind_the_mask_reaches_nothing() {
    let keep = mask(&[true, true, false, false, false, false], [2, 3]);
    let mut key = vec![0.5f32; 12];
    let mut value = vec![2.0f32; 6];
    key[4..].fill(f32::NAN);
    value[2..].fill(f32::INFINITY);
    let key = Tensor::<3>::from_data(TensorData::new(key, [2, 3, 2]), &device()).require_grad();
    let value = Tensor::<3>::from_data(TensorData::new(value, [2, 3, 1]), &device()).require_grad();
    let query = random(1, [2, 1, 2]).require_grad();
    let v = random(2, [2]).require_grad();
    let (context, weights) = additive_attention(
        query.clone(),
        key.clone(),
        v.clone(),
        value.clone(),
        Some(keep),
        None,
    );
    assert_eq!(numbers(context.clone()), [2.0, 0.0]);
    assert_eq!(numbers(weights), [0.5, 0.5, 0.0, 0.0, 0.0, 0.0]);
    let gradients = context.sum().backward();
    for gradient in [
        key.grad(&gradients).unwrap(),
        value.grad(&gradients).unwrap(),
    ] {
        assert!(numbers(gradient).iter().all(|x| x.is_finite()));
    }
    assert!(
        numbers(query.grad(&gradients).unwrap())
            .iter()
            .all(|x| x.is_finite())
    );
    assert!(
        numbers(v.grad(&gradients).unwrap())
            .iter()
            .all(|x| x.is_finite())
    );
}

fn carry(keep: &Option<Tensor<1, Bool>>, new: Tensor<2>, old: Tensor<2>) -> Tensor<2> {
    match keep {
        None => new,
        Some(keep) => {
            let shape = new.dims();
            old.mask_where(keep.clone().unsqueeze_dim::<2>(1).expand(shape), new)
        }
    }
}

#[test]
fn gru_step_equals_plain_operations() {
    for (batch, n) in [(1, 1), (3, 7), (5, 40)] {
        let flags: Vec<bool> = (0..batch).map(|row| row % 2 == 0).collect();
        for keep in [None, Some(mask(&flags, [batch]))] {
            let run = |fused: bool| {
                let x = random(1, [batch, 3 * n]).require_grad();
                let product = random(2, [batch, 3 * n]).require_grad();
                let h = random(3, [batch, n]).require_grad();
                let next = if fused {
                    gru_step(x.clone(), product.clone(), h.clone(), keep.clone())
                } else {
                    let part = |t: &Tensor<2>, k| t.clone().narrow(1, k * n, n);
                    let z = sigmoid(part(&x, 0) + part(&product, 0));
                    let r = sigmoid(part(&x, 1) + part(&product, 1));
                    let c = (part(&x, 2) + r * part(&product, 2)).tanh();
                    let next = (-z.clone() + 1.0) * c + z * h.clone();
                    carry(&keep, next, h.clone())
                };
                let gradients = probe(next.clone(), 9).backward();
                (x, product, h, next, gradients)
            };
            let (xa, pa, ha, a, ga) = run(true);
            let (xb, pb, hb, b, gb) = run(false);
            assert_close("next", a, b);
            assert_gradient("x", (&xa, &ga), (&xb, &gb));
            assert_gradient("product", (&pa, &ga), (&pb, &gb));
            assert_gradient("h", (&ha, &ga), (&hb, &gb));
        }
    }
}

#[test]
fn gru_reset_before_equals_plain_operations() {
    for (batch, n) in [(1, 1), (3, 7), (5, 40)] {
        let flags: Vec<bool> = (0..batch).map(|row| row % 2 == 0).collect();
        for keep in [None, Some(mask(&flags, [batch]))] {
            let run = |fused: bool| {
                let x = random(1, [batch, 3 * n]).require_grad();
                let h = random(3, [batch, n]).require_grad();
                let u = random(4, [n, 3 * n]).require_grad();
                let gates_u = u.clone().narrow(1, 0, 2 * n);
                let candidate_u = u.clone().narrow(1, 2 * n, n);
                let product = h.clone().matmul(gates_u);
                let next = if fused {
                    let reset = gru_reset(x.clone(), product.clone(), h.clone(), keep.clone());
                    let candidate = reset.matmul(candidate_u);
                    gru_update(x.clone(), product, candidate, h.clone(), keep.clone())
                } else {
                    let gates = sigmoid(x.clone().narrow(1, 0, 2 * n) + product);
                    let (z, r) = (gates.clone().narrow(1, 0, n), gates.narrow(1, n, n));
                    let c = (x.clone().narrow(1, 2 * n, n) + (r * h.clone()).matmul(candidate_u))
                        .tanh();
                    let next = (-z.clone() + 1.0) * h.clone() + z * c;
                    carry(&keep, next, h.clone())
                };
                let gradients = probe(next.clone(), 9).backward();
                (x, h, u, next, gradients)
            };
            let (xa, ha, ua, a, ga) = run(true);
            let (xb, hb, ub, b, gb) = run(false);
            assert_close("next", a, b);
            assert_gradient("x", (&xa, &ga), (&xb, &gb));
            assert_gradient("h", (&ha, &ga), (&hb, &gb));
            assert_gradient("u", (&ua, &ga), (&ub, &gb));
        }
    }
}

#[test]
fn lstm_step_equals_plain_operations() {
    for (batch, n) in [(1, 1), (3, 7), (5, 40)] {
        let flags: Vec<bool> = (0..batch).map(|row| row % 2 == 0).collect();
        for keep in [None, Some(mask(&flags, [batch]))] {
            let run = |fused: bool| {
                let x = random(1, [batch, 4 * n]).require_grad();
                let product = random(2, [batch, 4 * n]).require_grad();
                let h = random(3, [batch, n]).require_grad();
                let c = random(4, [batch, n]).require_grad();
                let (h_new, c_new) = if fused {
                    lstm_step(
                        x.clone(),
                        product.clone(),
                        h.clone(),
                        c.clone(),
                        keep.clone(),
                    )
                } else {
                    let gates = x.clone() + product.clone();
                    let gate = |k| gates.clone().narrow(1, k * n, n);
                    let c_new = sigmoid(gate(1)) * c.clone() + sigmoid(gate(0)) * gate(2).tanh();
                    let h_new = sigmoid(gate(3)) * c_new.clone().tanh();
                    (
                        carry(&keep, h_new, h.clone()),
                        carry(&keep, c_new, c.clone()),
                    )
                };
                let total = probe(h_new.clone(), 9) + probe(c_new.clone(), 10);
                (x, product, h, c, h_new, c_new, total.backward())
            };
            let (xa, pa, ha, ca, h_a, c_a, ga) = run(true);
            let (xb, pb, hb, cb, h_b, c_b, gb) = run(false);
            assert_close("h'", h_a, h_b);
            assert_close("c'", c_a, c_b);
            assert_gradient("x", (&xa, &ga), (&xb, &gb));
            assert_gradient("product", (&pa, &ga), (&pb, &gb));
            assert_gradient("c", (&ca, &ga), (&cb, &gb));
            if keep.is_some() {
                assert_gradient("h", (&ha, &ga), (&hb, &gb));
            }
        }
    }
}

#[test]
fn cross_entropy_equals_plain_operations() {
    let (rows, classes, ignore) = (7, 41, 0usize);
    let ids: [i64; 7] = [3, 40, 0, 17, 0, 5, 1];
    let targets = Tensor::<1, Int>::from_data(TensorData::new(ids.to_vec(), [7]), &device());
    for smoothing in [0.0f32, 0.1] {
        for mean in [false, true] {
            for shared in [false, true] {
                let logits = random(1, [rows, classes]).require_grad();
                let given = logits.clone() * 3.0;
                let held = shared.then(|| given.clone());
                let f = if mean {
                    cross_entropy_mean
                } else {
                    cross_entropy
                };
                let result = f(given, targets.clone(), ignore, smoothing);
                let gradients = (result.loss.clone() * 2.0).backward();
                drop(held);

                let plain_logits = random(1, [rows, classes]).require_grad();
                let log_p = log_softmax(plain_logits.clone() * 3.0, 1);
                let mut plain = Tensor::<1>::zeros([1], &device());
                let mut nll = 0.0;
                for (row, &id) in ids.iter().enumerate().filter(|(_, id)| **id != 0) {
                    let row = log_p.clone().narrow(0, row, 1);
                    let hit = -row.clone().narrow(1, id as usize, 1).reshape([1]);
                    nll += f64::from(hit.clone().into_scalar::<f32>());
                    let uniform = -row.sum().reshape([1]) / classes as f32;
                    plain = plain + hit * (1.0 - smoothing) + uniform * smoothing;
                }
                let plain = if mean { plain / 5.0 } else { plain };
                let plain_gradients = (plain.clone() * 2.0).backward();
                assert_close("loss", result.loss, plain);
                assert_gradient(
                    "logits",
                    (&logits, &gradients),
                    (&plain_logits, &plain_gradients),
                );
                assert_eq!(result.tokens, 5);
                assert!((result.nll - nll).abs() < 1e-5, "{} {nll}", result.nll);
            }
        }
    }
}

#[test]
fn cross_entropy_without_gradient_and_without_tokens() {
    let logits = Tensor::<2>::random([3, 5], Distribution::Default, &Device::flex());
    let targets = Tensor::<1, Int>::from_ints([9, 9, 9], &Device::flex());
    let result = cross_entropy_mean(logits.clone(), targets, 9, 0.1);
    assert_eq!(
        (numbers(result.loss), result.nll, result.tokens),
        (vec![0.0], 0.0, 0)
    );
    let targets = Tensor::<1, Int>::from_ints([1, 2, 3], &Device::flex());
    let before = numbers(logits.clone());
    let result = cross_entropy(logits.clone(), targets, 9, 0.0);
    let p = softmax(logits.clone(), 1);
    let expected: f32 = (0..3)
        .map(|i| -numbers(p.clone())[i * 5 + i + 1].ln())
        .sum();
    assert!((result.nll - f64::from(expected)).abs() < 1e-5);
    assert_eq!(
        numbers(logits),
        before,
        "logits that somebody holds are left alone"
    );
}

/// Without smoothing, a class that a logit of -∞ rules out costs nothing.
#[test]
fn cross_entropy_of_a_class_that_is_ruled_out() {
    let targets = Tensor::<1, Int>::from_ints([0, 2], &device());
    let run = || {
        let logits = random(1, [2, 3]).slice_fill([0..2, 1..2], f32::NEG_INFINITY);
        let logits = logits.require_grad();
        let result = cross_entropy(logits.clone(), targets.clone(), 9, 0.0);
        let slope = logits.grad(&result.loss.clone().backward()).unwrap();
        [numbers(result.loss), numbers(slope)].concat()
    };
    let (fused, plain) = (run(), without_kernels(run));
    for (fused, plain) in fused.iter().zip(&plain) {
        assert!((fused - plain).abs() < 1e-6, "{fused} {plain}");
    }
}

#[test]
#[should_panic(expected = "`key` has shape [1, 3, 5], expected [1, 3, 4]")]
fn a_wrong_shape_is_named() {
    let query = random(1, [1, 1, 4]);
    let key = random(2, [1, 3, 5]);
    additive_attention(query, key, random(3, [4]), random(4, [1, 3, 2]), None, None);
}

#[test]
#[should_panic(expected = "target 1 is 7, expected a class from 0 to below 5")]
fn a_wrong_target_is_named() {
    let targets = Tensor::<1, Int>::from_ints([1, 7], &device());
    cross_entropy(random(1, [2, 5]), targets, 0, 0.0);
}

/// No target is as high as this `ignore`, so that none is ignored: not even -1, whose bits are the same.
#[test]
#[should_panic(expected = "target 1 is -1, expected a class from 0 to below 5")]
fn what_no_target_can_be_ignores_nothing() {
    let targets = Tensor::<1, Int>::from_ints([1, -1], &device());
    without_kernels(|| cross_entropy(random(1, [2, 5]), targets, usize::MAX, 0.0));
}

#[test]
fn activations_with_a_bias_equal_plain_operations() {
    for gated in [false, true] {
        for bias in [None, Some(5)] {
            let run = || {
                let x = random::<3>(1, [2, 3, 34]).require_grad();
                let bias = bias.map(|seed| random::<1>(seed, [34]).require_grad());
                let noise = &mut DropoutRng::none();
                let y = activate(
                    ActivationKind::Gelu,
                    gated,
                    x.clone(),
                    bias.clone(),
                    0.0,
                    noise,
                );
                let gradients = probe(y.clone(), 2).backward();
                (y, x, bias, gradients)
            };
            let (y, x, b, g) = run();
            let (plain_y, plain_x, plain_b, plain_g) = without_kernels(run);
            assert_close("y", y, plain_y);
            assert_gradient("x", (&x, &g), (&plain_x, &plain_g));
            if let (Some(b), Some(plain)) = (&b, &plain_b) {
                assert_gradient("bias", (b, &g), (plain, &plain_g));
            }
        }
    }
}

/// Layers of so many rows are one operation, those that are recorded three.
#[test]
fn feed_forward_layers_equal_plain_operations() {
    use Activation::*;
    let activations = [
        Relu, Gelu, GeluTanh, Silu, QuickGelu, Reglu, Geglu, GegluTanh, Swiglu,
    ];
    for (index, activation) in activations.into_iter().enumerate() {
        let (bias, dropout) = (index % 2 == 0, [0.0, 0.25, 0.4][index % 3]);
        let initializer = &mut Initializer::new(1, &device());
        let mut layer = FeedForward::new(activation, [12, 20], bias, dropout, initializer);
        let inner = layer.inner.weight.dims()[1];
        layer.inner.bias = bias.then(|| Param::from_tensor(random(4, [inner])));
        let run = || {
            let x = random::<3>(1, [2, 520, 12]).require_grad();
            let y = layer.forward(x.clone(), &mut DropoutRng::seeded(7));
            let gradients = (probe(y.clone(), 2) / 100.0).backward();
            (y, x, gradients)
        };
        let (y, x, g) = run();
        let (plain_y, plain_x, plain_g) = without_kernels(run);
        assert_close("y", y.clone(), plain_y);
        assert_gradient("x", (&x, &g), (&plain_x, &plain_g));
        for of in [&layer.inner, &layer.outer] {
            let weight = of.weight.val();
            assert_gradient("weight", (&weight, &g), (&weight, &plain_g));
            if let Some(bias) = of.bias.as_ref().map(Param::val) {
                assert_gradient("bias", (&bias, &g), (&bias, &plain_g));
            }
        }
        // What is not asked for changes nothing else.
        let alone = layer.forward(random(1, [2, 520, 12]), &mut DropoutRng::seeded(7));
        let alone = (probe(alone, 2) / 100.0).backward();
        let of_weight = |gradients| numbers(layer.inner.weight.val().grad(gradients).unwrap());
        assert_eq!(of_weight(&alone), of_weight(&g));
        let frozen = layer.clone().no_grad();
        let again = random::<3>(1, [2, 520, 12]).require_grad();
        let passed = frozen.forward(again.clone(), &mut DropoutRng::seeded(7));
        let passed = (probe(passed, 2) / 100.0).backward();
        assert_eq!(
            numbers(again.grad(&passed).unwrap()),
            numbers(x.grad(&g).unwrap())
        );
        assert!(frozen.inner.weight.val().grad(&passed).is_none());
        let ((looked, ..), record) = recorded(run);
        assert_eq!(record.get("activations").count(), 1);
        assert_close("looked at", looked, y.clone());
        let untracked = layer.clone().valid();
        let y_of = |x| untracked.forward(x, &mut DropoutRng::seeded(7));
        assert_eq!(numbers(y_of(x.inner())), numbers(y), "without gradients");
    }
}

#[test]
#[should_panic(expected = "`first` has shape [12, 21], expected [12, 20]")]
fn a_layer_whose_products_do_not_fit_is_named() {
    let initializer = &mut Initializer::new(1, &device());
    let mut layer = FeedForward::new(Activation::Gelu, [12, 20], true, 0.0, initializer);
    layer.inner = initializer.linear(12, 21, true);
    layer.forward(random(1, [2, 520, 12]), &mut DropoutRng::none());
}

#[test]
fn sums_equal_plain_operations() {
    for shape in [[2, 3, 34], [70, 40, 50], [1, 1, 1]] {
        let run = || {
            let x = random::<3>(1, shape).require_grad();
            let total = sum(x.clone());
            let gradients = (total.clone() * 3.0).backward();
            (total, x, gradients)
        };
        let (total, x, g) = run();
        let (plain_total, plain_x, plain_g) = without_kernels(run);
        assert_close("sum", total, plain_total);
        assert_gradient("x", (&x, &g), (&plain_x, &plain_g));
    }
    assert_eq!(numbers(sum(random::<2>(1, [0, 3]))), [0.0]);
}

#[test]
fn rows_of_a_table_equal_burns_bit_by_bit() {
    for [entries, size, rows, columns] in [[5, 7, 3, 11], [1, 1, 1, 1], [65, 128, 64, 12]] {
        let ids: Vec<i64> = (0..rows * columns)
            .map(|i| (i * i % entries) as i64)
            .collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [rows, columns]), &device());
        let run = || {
            let layer = Initializer::new(1, &device()).embedding(entries, size, 1.0);
            let vectors = embed(&layer, ids.clone());
            let gradients = probe(vectors.clone(), 2).backward();
            let table = layer.weight.val().grad(&gradients).unwrap();
            assert_eq!(vectors.dims(), [rows, columns, size]);
            (numbers(vectors), numbers(table))
        };
        assert_eq!(run(), without_kernels(run));
    }
    let layer = Initializer::new(1, &device()).embedding(5, 3, 1.0);
    let none = Tensor::<2, Int>::from_data(TensorData::new(Vec::<i64>::new(), [2, 0]), &device());
    assert_eq!(embed(&layer, none).dims(), [2, 0, 3]);
    let layer = Initializer::new(1, &device()).embedding(5, 0, 1.0);
    let vectors = embed(&layer, Tensor::from_ints([[2, 4]], &device()));
    assert_eq!(vectors.dims(), [1, 2, 0], "of no numbers");
}

#[test]
#[should_panic(expected = "the id -1 is not an entry, expected 0 to below 5")]
fn an_id_outside_the_table_is_named() {
    let layer = Initializer::new(1, &device()).embedding(5, 3, 1.0);
    embed(&layer, Tensor::from_ints([[2, -1]], &device()));
}

#[test]
fn other_dtypes_take_the_plain_path() {
    use burn::tensor::DType;
    let cast = |tensor: Tensor<3>| tensor.cast(DType::F64);
    let (query, key, value) = (
        random(1, [1, 1, 4]),
        random(2, [1, 3, 4]),
        random(3, [1, 3, 2]),
    );
    let v = random(4, [4]);
    let wide = additive_attention(
        cast(query.clone()),
        cast(key.clone()),
        v.clone().cast(DType::F64),
        cast(value.clone()),
        None,
        None,
    );
    assert_eq!(wide.0.dtype(), DType::F64);
    let narrow = additive_attention(query, key, v, value, None, None);
    assert_close("context", wide.0.cast(DType::F32), narrow.0);
}
