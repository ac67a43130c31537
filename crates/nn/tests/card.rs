//! Attention on a graphics card: the kernel beside the plain operations, on the card that REGARD_TEST_DEVICE names, else on the first
//! one that there is (`bench/gpu/check`).

use burn::tensor::{Device, Tensor, TensorData};
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

fn leaf(seed: usize, shape: [usize; 4], device: &Device) -> Tensor<4> {
    let count = shape.iter().product();
    let numbers: Vec<f32> = (0..count)
        .map(|i| ((i * 7 + seed * 13) as f32 * 0.7).sin())
        .collect();
    Tensor::from_data(TensorData::new(numbers, shape), device).require_grad()
}

fn numbers<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter::<f32>().collect()
}

fn close(fused: &[f32], plain: &[f32], what: &str) {
    assert_eq!(fused.len(), plain.len());
    let pairs = fused.iter().zip(plain).filter(|(a, b)| a != b);
    let error = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let largest = plain.iter().fold(0.0, |a: f32, x| a.max(x.abs()));
    let bound = 16.0 * f32::EPSILON * largest;
    assert!(error <= bound, "{what}: {error:e}, at most {bound:e}");
}

#[test]
fn the_kernel_says_what_plain_operations_say() {
    let Some(device) = card() else { return };
    let dot = Attention::new(Score::scaled_dot());
    let padding =
        |lengths: [usize; 2]| Mask::padding(PaddingMask::from_lengths(&lengths, 45, &device));
    let masks = [
        ("all", Mask::all()),
        ("causal", Mask::causal()),
        ("window", Mask::window(5).unwrap()),
        ("padding", padding([40, 3])),
        ("both", Mask::causal() & padding([45, 20])),
    ];
    for (name, mask) in masks {
        for (softcap, bias) in [(false, false), (true, false), (false, true)] {
            let mut attention = dot.clone().with_mask(mask.clone());
            if softcap {
                attention = attention.with_softcap(2.0);
            }
            let run = |path: Path| {
                let leaves = [
                    leaf(1, [2, 4, 45, 16], &device),
                    leaf(2, [2, 2, 45, 16], &device),
                    leaf(3, [2, 2, 45, 24], &device),
                    leaf(4, [1, 4, 45, 45], &device),
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
            let (fused, plain) = (run(Path::Fused), run(Path::Plain));
            for (which, (fused, plain)) in fused.iter().zip(&plain).enumerate() {
                close(
                    fused,
                    plain,
                    &format!("{name}, softcap {softcap}, tensor {which}"),
                );
            }
        }
    }
}

#[test]
fn what_the_kernel_lacks_takes_plain_operations() {
    let Some(device) = card() else { return };
    let x = leaf(1, [1, 2, 9, 8], &device);
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
        (
            plan(&dot, AttentionOptions::new(Observe::Weights)),
            "observing on a card",
        ),
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
    let weights = dot.forward_with(
        x.clone(),
        x.clone(),
        x.clone(),
        AttentionOptions::new(Observe::Weights),
    );
    let rows = numbers(weights.unwrap().weights.unwrap().sum_dim(3));
    assert!(rows.iter().all(|sum| (sum - 1.0).abs() < 1e-5), "{rows:?}");
}
