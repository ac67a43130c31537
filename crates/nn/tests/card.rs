//! Attention on a graphics card, on the one that REGARD_TEST_DEVICE names, else on the first one that there is (`bench/gpu/check`): the
//! kernel and plain operations there beside plain operations in f64 on the CPU.

use burn::tensor::{DType, Device, Tensor, TensorData};
use regard_nn::{
    Attention, AttentionOptions, KernelPlan, Observe, Path, Unserved, devices,
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
