//! Attention, products and sums on a graphics card, on the one that REGARD_TEST_DEVICE names, else on the first one that there is
//! (`bench/gpu/check`): beside plain operations in f64 on the CPU.

use std::ops::{Add, Mul};

use burn::tensor::{DType, Device, Tensor, TensorData};
use regard_nn::{
    Attention, AttentionOptions, KernelPlan, Observe, Path, Unserved,
    bridge::{ActivationKind, activate_plain, linear, matmul, mean, sigmoid, sum, without_kernels},
    devices,
    mask::{Mask, PaddingMask},
    normalize::Normalize,
    position::Alibi,
    score::Score,
};

fn card() -> Option<Device> {
    let mut cards = devices::cards().into_iter();
    let found = match std::env::var("REGARD_TEST_DEVICE") {
        Ok(wanted) => Some(
            cards
                .find(|(name, _)| *name == wanted)
                .expect("no such card"),
        ),
        Err(_) => cards.next(),
    };
    if found.is_none() {
        println!("skipped: there is no card");
    }
    Some(found?.1.autodiff())
}

fn leaf(seed: usize, shape: [usize; 4], device: &Device, dtype: DType) -> Tensor<4> {
    let count = shape.iter().product();
    let numbers: Vec<f32> = (0..count)
        .map(|i| ((i * 7 + seed * 13) as f32 * 0.7).sin())
        .collect();
    Tensor::from_data(TensorData::new(numbers, shape), (device, dtype)).require_grad()
}

fn numbers<const D: usize>(x: Tensor<D>) -> Vec<f64> {
    x.into_data().iter::<f64>().collect()
}

/// `max |fused - exact| <= 2 max |plain - exact| + a rounding of exact`.
fn close(fused: &[f64], plain: &[f64], exact: &[f64], what: &str) {
    assert_eq!([fused.len(), plain.len()], [exact.len(); 2]);
    let error = |found: &[f64]| {
        let pairs = found.iter().zip(exact).filter(|(a, b)| a != b);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
    };
    let largest = exact.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
    let bound = 2.0 * error(plain) + f64::from(f32::EPSILON) * largest;
    let error = error(fused);
    assert!(error <= bound, "{what}: {error:e}, at most {bound:e}");
}

#[test]
fn the_kernel_says_what_plain_operations_say() {
    let Some(device) = card() else { return };
    let dot = Attention::new(Score::scaled_dot());
    let cpu = Device::flex().autodiff();
    let padding = |lengths: [usize; 2], device: &Device| {
        Mask::padding(PaddingMask::from_lengths(&lengths, 45, device))
    };
    let masks = |device: &Device| {
        [
            ("all", Mask::all()),
            ("causal", Mask::causal()),
            ("window", Mask::window(5).unwrap()),
            ("padding", padding([40, 3], device)),
            ("both", Mask::causal() & padding([45, 20], device)),
        ]
    };
    for (which, (name, _)) in masks(&cpu).into_iter().enumerate() {
        for (softcap, bias) in [(false, false), (true, false), (false, true)] {
            let run = |path: Path, device: &Device, dtype: DType| {
                let mut attention = dot.clone().with_mask(masks(device)[which].1.clone());
                if softcap {
                    attention = attention.with_softcap(2.0);
                }
                let leaves = [
                    leaf(1, [2, 4, 45, 16], device, dtype),
                    leaf(2, [2, 2, 45, 16], device, dtype),
                    leaf(3, [2, 2, 45, 24], device, dtype),
                    leaf(4, [1, 4, 45, 45], device, dtype),
                ];
                let [q, k, v, b] = leaves.clone();
                let mut call = AttentionOptions::new(Observe::Nothing).path(path);
                call.bias = bias.then_some(b);
                if path == Path::Fused {
                    let plan = attention.plan(&q, &v, &call);
                    assert_eq!(plan, Ok(KernelPlan::Card { scale: 0.25 }));
                }
                let found = attention.forward_with(q, k, v, call).unwrap();
                let gradients = found.context.clone().powi_scalar(2).sum().backward();
                let mut all = vec![numbers(found.context)];
                let count = if bias { 4 } else { 3 };
                all.extend(
                    leaves[..count]
                        .iter()
                        .map(|x| numbers(x.grad(&gradients).unwrap())),
                );
                all
            };
            let fused = run(Path::Fused, &device, DType::F32);
            let plain = run(Path::Plain, &device, DType::F32);
            let exact = run(Path::Plain, &cpu, DType::F64);
            for (tensor, ((fused, plain), exact)) in
                fused.iter().zip(&plain).zip(&exact).enumerate()
            {
                let what = format!("{name}, softcap {softcap}, tensor {tensor}");
                close(fused, plain, exact, &what);
            }
        }
    }
}

#[test]
fn what_the_kernel_lacks_takes_plain_operations() {
    let Some(device) = card() else { return };
    let x = leaf(1, [1, 2, 9, 8], &device, DType::F32);
    let dot = Attention::new(Score::scaled_dot());
    let plan = |attention: &Attention, call: AttentionOptions<'_>| attention.plan(&x, &x, &call);
    let nothing = || AttentionOptions::new(Observe::Nothing);
    assert_eq!(
        plan(&dot, nothing()),
        Ok(KernelPlan::Card {
            scale: 8f64.sqrt().recip()
        })
    );
    let alibi = Alibi::new(2).unwrap();
    let mut sloped = nothing();
    sloped.alibi = Some(&alibi);
    let sparse = dot.clone().with_normalize(Normalize::sparsemax());
    let blocks = dot.clone().with_mask(Mask::block(3).unwrap());
    for (unserved, expected) in [
        (plan(&dot, sloped), "ALiBi"),
        (plan(&sparse, nothing()), "the sparsemax normaliser"),
        (
            plan(&blocks, nothing()),
            "a mask other than causal, window and padding on a card",
        ),
    ] {
        assert_eq!(unserved.unwrap_err().what(), expected);
    }
    assert_eq!(
        plan(&dot, nothing().path(Path::Plain)),
        Err(Unserved::Asked)
    );
    let suspended = without_kernels(|| plan(&dot, nothing()));
    assert_eq!(suspended, Err(Unserved::Tensors));
}

/// What is observed is what plain operations observe; more queries than are held at a time.
#[test]
fn observations_are_those_of_plain_operations() {
    let Some(device) = card() else { return };
    let cpu = Device::flex().autodiff();
    let rows = vec![3, 4, 5, 299, 0];
    for observe in [
        Observe::Weights,
        Observe::Rows(rows),
        Observe::Rows(vec![]),
        Observe::Entropy,
        Observe::ColumnSums,
        Observe::TopK(3),
    ] {
        let run = |path: Path, device: &Device, dtype: DType| {
            let lengths = PaddingMask::from_lengths(&[70, 9], 70, device);
            let attention =
                Attention::new(Score::scaled_dot()).with_mask(Mask::window(40).unwrap());
            let [q, k, v, b] = [
                leaf(1, [2, 4, 300, 16], device, dtype),
                leaf(2, [2, 2, 70, 16], device, dtype),
                leaf(3, [2, 2, 70, 24], device, dtype),
                leaf(4, [1, 1, 1, 70], device, dtype),
            ];
            let mut call = AttentionOptions::new(observe.clone()).path(path);
            call.bias = Some(b);
            call.mask = Mask::padding(lengths);
            let found = attention.forward_with(q, k, v, call).unwrap();
            let top = found
                .top
                .map(|top| (numbers(top.weights), top.keys.into_data()));
            let keys = top
                .as_ref()
                .map(|(_, keys)| keys.iter::<i64>().collect::<Vec<_>>());
            let all = [
                Some(numbers(found.context)),
                found.lse.map(numbers),
                found.weights.map(numbers),
                found.entropy.map(numbers),
                found.column_sums.map(numbers),
                top.map(|(weights, _)| weights),
            ];
            (all, keys)
        };
        let (fused, keys) = run(Path::Fused, &device, DType::F32);
        let (plain, _) = run(Path::Plain, &device, DType::F32);
        let (exact, expected) = run(Path::Plain, &cpu, DType::F64);
        assert_eq!(keys, expected, "{observe:?}");
        for (which, ((fused, plain), exact)) in fused.iter().zip(&plain).zip(&exact).enumerate() {
            let what = format!("{observe:?}, {which}");
            match (fused, plain, exact) {
                (Some(fused), Some(plain), Some(exact)) => close(fused, plain, exact, &what),
                (None, None, None) => {}
                other => panic!("{what}: {other:?}"),
            }
        }
    }
}

/// The keys and values of a cache may have half the precision of the query.
#[test]
fn half_keys_and_values_are_read() {
    let Some(device) = card() else { return };
    let dot = Attention::new(Score::scaled_dot());
    if !device.supports_dtype(DType::F16) {
        println!("skipped: the card has no f16");
        return;
    }
    let [q, k] = [1, 2].map(|seed| leaf(seed, [1, 2, 9, 8], &device, DType::F32));
    let half = k.cast(DType::F16);
    let run = |key: Tensor<4>| {
        let call = AttentionOptions::new(Observe::Nothing).path(Path::Fused);
        let found = dot.forward_with(q.clone(), key.clone(), key, call).unwrap();
        assert_eq!(found.context.dtype(), DType::F32);
        numbers(found.context)
    };
    assert_eq!(run(half.clone()), run(half.cast(DType::F32)));
}

/// `p = a b` of matrices in a batch of two axes, whose sizes may be 1 on one side, and the gradients of `Σ p²`: every sum term by term.
fn product_by_definition<T>(a: &[f32], of_a: [usize; 4], b: &[f32], of_b: [usize; 4]) -> Vec<Vec<T>>
where
    T: Copy + Default + From<f32> + Add<Output = T> + Mul<Output = T>,
{
    let [m, k, n] = [of_a[2], of_a[3], of_b[3]];
    let batch = [0, 1].map(|axis| of_a[axis].max(of_b[axis]));
    let at = |of: [usize; 4], i: usize, j: usize, row: usize, column: usize| {
        (((i % of[0]) * of[1] + j % of[1]) * of[2] + row) * of[3] + column
    };
    let of_p = [batch[0], batch[1], m, n];
    let mut p = vec![T::default(); of_p.iter().product()];
    let [mut of_first, mut of_second] = [a, b].map(|x| vec![T::default(); x.len()]);
    let places = || (0..batch[0]).flat_map(|i| (0..batch[1]).map(move |j| (i, j)));
    let numbers = || (0..m).flat_map(|r| (0..n).map(move |c| (r, c)));
    for (i, j) in places() {
        for (r, c) in numbers() {
            let sum = &mut p[at(of_p, i, j, r, c)];
            for l in 0..k {
                let [x, y] = [a[at(of_a, i, j, r, l)], b[at(of_b, i, j, l, c)]].map(T::from);
                *sum = *sum + x * y;
            }
        }
        for (r, c) in numbers() {
            let twice = p[at(of_p, i, j, r, c)] + p[at(of_p, i, j, r, c)];
            for l in 0..k {
                let [x, y] = [at(of_a, i, j, r, l), at(of_b, i, j, l, c)];
                of_first[x] = of_first[x] + twice * b[y].into();
                of_second[y] = of_second[y] + twice * a[x].into();
            }
        }
    }
    vec![p, of_first, of_second]
}

/// Factors are not rounded: within the bound of every kernel, products of single rows and columns, of tiles and what is left over, of one
/// matrix for all of the batch, of broadcast batches and of transposed factors, and their gradients.
#[test]
fn products_are_those_of_whole_factors() {
    let Some(device) = card() else { return };
    let shapes = [
        ([1, 1, 1, 1], [1, 1, 1, 1]),
        ([1, 1, 1, 300], [1, 1, 300, 70]),
        ([1, 1, 129, 1], [1, 1, 1, 65]),
        ([2, 3, 37, 65], [2, 3, 65, 41]),
        ([2, 3, 64, 128], [1, 1, 128, 96]),
        ([1, 3, 20, 33], [2, 1, 33, 17]),
        ([1, 1, 200, 1000], [1, 1, 1000, 130]),
    ];
    for (of_a, of_b) in shapes {
        let [a, b] = [(1, of_a), (2, of_b)].map(|(seed, of)| leaf(seed, of, &device, DType::F32));
        let [first, second] = [&a, &b].map(|x| x.to_data().iter::<f32>().collect::<Vec<_>>());
        let exact = product_by_definition::<f64>(&first, of_a, &second, of_b);
        let plain = product_by_definition::<f32>(&first, of_a, &second, of_b);
        for transposed in [false, true] {
            let stored = [&a, &b].map(|x| match transposed {
                // The same numbers, in columns.
                true => Tensor::from_data(x.clone().swap_dims(2, 3).to_data(), &device),
                false => x.clone().detach(),
            });
            let leaves = stored.map(Tensor::require_grad);
            let [a, b] = leaves.clone().map(|x| match transposed {
                true => x.swap_dims(2, 3),
                false => x,
            });
            let product = matmul(a, b);
            let gradients = product.clone().powi_scalar(2).sum().backward();
            let gradients = leaves.map(|x| {
                let gradient = x.grad(&gradients).unwrap();
                numbers(match transposed {
                    true => gradient.swap_dims(2, 3),
                    false => gradient,
                })
            });
            let found = [vec![numbers(product)], gradients.into()].concat();
            for (tensor, ((found, plain), exact)) in
                found.iter().zip(&plain).zip(&exact).enumerate()
            {
                let plain: Vec<f64> = plain.iter().map(|&x| x.into()).collect();
                let what = format!("{of_a:?} {of_b:?}, transposed {transposed}, tensor {tensor}");
                close(found, &plain, exact, &what);
            }
        }
    }
}

/// What is not a number stays in its row or column, and the largest numbers do not overflow before they have to.
#[test]
fn products_of_extremes_stay_where_they_are() {
    let Some(device) = card() else { return };
    let (rows, inner, columns) = (70, 33, 41);
    let tensor = |count: usize, shape: [usize; 2], extreme: f32| {
        let mut numbers = vec![1.0; count];
        numbers[0] = extreme;
        Tensor::<2>::from_data(TensorData::new(numbers, shape), &device)
    };
    for extreme in [f32::NAN, f32::INFINITY, f32::MAX, -1e30, f32::MIN_POSITIVE] {
        let a = tensor(rows * inner, [rows, inner], extreme);
        let b = tensor(inner * columns, [inner, columns], 1.0);
        let found = numbers(matmul(a, b));
        let expected = f64::from(extreme + (inner - 1) as f32);
        for (at, x) in found.into_iter().enumerate() {
            let expected = if at < columns { expected } else { inner as f64 };
            let same = x == expected || (x.is_nan() && expected.is_nan());
            assert!(same, "{extreme}, number {at}: {x}, expected {expected}");
        }
    }
}

#[test]
fn a_layer_is_the_product_with_its_bias() {
    let Some(device) = card() else { return };
    let run = |device: &Device| {
        let x = leaf(1, [2, 3, 5, 33], device, DType::F32);
        let weight = leaf(2, [1, 1, 33, 20], device, DType::F32);
        let bias = leaf(3, [1, 1, 1, 20], device, DType::F32);
        let of_layer = weight.clone().reshape([33, 20]);
        let y = linear(x.clone(), of_layer, Some(bias.clone().reshape([20])));
        let gradients = y.clone().powi_scalar(2).sum().backward();
        let gradients = [x, weight, bias].map(|x| numbers(x.grad(&gradients).unwrap()));
        [vec![numbers(y)], gradients.into()].concat()
    };
    let (card, cpu) = (run(&device), run(&Device::flex().autodiff()));
    for (card, cpu) in card.iter().flatten().zip(cpu.iter().flatten()) {
        let bound = 1e-5 * (1.0 + cpu.abs());
        assert!((card - cpu).abs() <= bound, "{card} and {cpu}");
    }
}

/// Sums have the same bits from call to call; Burn's own do not where a card adds atomically.
#[test]
fn sums_have_one_order() {
    let Some(device) = card() else { return };
    for count in [1, 3, 1024, 1025, 5000, 1_000_003] {
        let x = leaf(1, [1, 1, 1, count], &device, DType::F32);
        let exact: f64 = numbers(x.clone()).iter().sum();
        let first = numbers(sum(x.clone()))[0];
        let bound = 1e-6 * (1.0 + count as f64).sqrt();
        assert!((first - exact).abs() <= bound, "{count}: {first}, {exact}");
        for _ in 0..20 {
            assert_eq!(numbers(sum(x.clone())), [first], "{count}");
        }
        assert_eq!(numbers(mean(x.clone())).len(), 1);
        let gradient = x.grad(&sum(x.clone() * 2.0).backward()).unwrap();
        assert!(numbers(gradient).iter().all(|&g| g == 2.0), "{count}");
    }
}

/// The gradient is that of the exact function, and not of its approximation by tanh.
#[test]
fn gelu_has_its_own_gradient() {
    let Some(device) = card() else { return };
    let run = |device: &Device, dtype: DType| {
        let x = leaf(1, [1, 1, 1, 900], device, dtype);
        let y = activate_plain(ActivationKind::Gelu, false, x.clone() * 4.0);
        let gradient = x.grad(&y.clone().sum().backward()).unwrap();
        [numbers(y), numbers(gradient)].concat()
    };
    let (found, exact) = (
        run(&device, DType::F32),
        run(&Device::flex().autodiff(), DType::F64),
    );
    for (found, exact) in found.iter().zip(&exact) {
        // The erf of some cards is wrong by 1.5e-7.
        let bound = 2e-6 * (1.0 + exact.abs());
        assert!((found - exact).abs() <= bound, "{found} and {exact}");
    }
}

/// Small ones have few roundings' error, too, and no gradient is NaN where `exp(-x)` is infinite.
#[test]
fn sigmoids_are_within_few_roundings() {
    let Some(device) = card() else { return };
    let mut x: Vec<f32> = (-850..850).map(|i| i as f32 * 0.1).collect();
    x.extend([-1e30, -200.0, 200.0, 1e30]);
    let count = x.len();
    let x =
        Tensor::<1>::from_data(TensorData::new(x, [count]), (&device, DType::F32)).require_grad();
    let y = sigmoid(x.clone());
    let gradient = numbers(x.grad(&y.clone().sum().backward()).unwrap());
    for ((x, y), gradient) in numbers(x).into_iter().zip(numbers(y)).zip(gradient) {
        let exact = 1.0 / (1.0 + (-x).exp());
        let bound = 5.0 * f64::from(f32::EPSILON) * exact + f64::from(f32::MIN_POSITIVE);
        assert!(
            (y - exact).abs() <= bound,
            "σ({x}) is {y}, expected {exact}"
        );
        let slope = exact * (1.0 - exact);
        let bound = 1e-6 * slope + 1.2e-7 * exact + f64::from(f32::MIN_POSITIVE);
        assert!(
            (gradient - slope).abs() <= bound,
            "σ'({x}) is {gradient}, expected {slope}"
        );
    }
    if !device.supports_dtype(DType::F16) {
        return;
    }
    let x = Tensor::<1>::from_data([-9.0, 0.0, 20.0], (&device, DType::F16));
    let found = sigmoid(x);
    assert_eq!(found.dtype(), DType::F16);
    for (found, exact) in numbers(found).into_iter().zip([1.234e-4, 0.5, 1.0]) {
        assert!(
            (found - exact).abs() <= 1e-3 * exact,
            "f16: {found}, expected {exact}"
        );
    }
}
