//! Which heads use the operation with projections, and that it gives the numbers of plain operations, forward and backward:
//! with rotary positions, norms of queries and keys, and gates, too.

use regard_nn::{
    Attention, AttentionOptions, KernelPlan, Observe, Path, Unserved,
    dropout::DropoutRng,
    heads::{Gate, MultiHeadConfig, ProjectionLayout, QueryKeyNormKind},
    initialize::Initializer,
    mask::{Mask, PaddingMask},
    position::{Layout, PositionConfig, RotaryConfig},
    score::Score,
};

use crate::{
    finite_differences::double,
    mechanisms::{close, drawn, mechanisms, shaken},
    support::{device, gradients, numbers},
};

#[test]
fn plans_of_every_mechanism() {
    let x = drawn("x", [2, 5, 10], 1.0);
    let call = || AttentionOptions::new(Observe::Nothing).mask(Mask::causal());
    for (name, config) in mechanisms(4, 2, 4) {
        let plan = shaken(&config).plan(&x, None, &call());
        match name {
            // These add a bias to the scores.
            "buckets" | "relative keys" => {
                assert_eq!(plan, Ok(KernelPlan::Dot { scale: 0.5 }), "{name}");
            }
            // No kernel has this norm.
            "l2" => assert_eq!(plan, Ok(KernelPlan::Dot { scale: 1.0 }), "{name}"),
            "relative" | "talking" => assert_eq!(plan, Err(Unserved::BetweenWords), "{name}"),
            _ => assert_eq!(plan, Ok(KernelPlan::Projected { scale: 0.5 }), "{name}"),
        }
    }
}

fn call<'a>(mask: &Mask, noise: &'a mut DropoutRng) -> AttentionOptions<'a> {
    let call = AttentionOptions::new(Observe::Nothing);
    call.mask(mask.clone()).noise(noise)
}

/// Every choice with every other, fused, plain and plain in f64: `|fused - f64| <= 2 |plain - f64| + rounding`, 3 for
/// gradients.
#[test]
fn projected_heads_are_plain_heads() {
    let positions = [
        PositionConfig::None,
        PositionConfig::Alibi,
        PositionConfig::Rotary(RotaryConfig::new(6)),
        PositionConfig::Rotary(RotaryConfig {
            layout: Layout::Interleaved,
            ..RotaryConfig::new(4)
        }),
    ];
    let norms = [None, Some(QueryKeyNormKind::Rms { epsilon: 1e-5 })];
    let gates = [None, Some(Gate::Headwise), Some(Gate::Elementwise)];
    let mut checked = 0;
    for (case, (position, norm)) in positions
        .iter()
        .flat_map(|position| norms.map(|norm| (position.clone(), norm)))
        .enumerate()
    {
        for (of_gate, gate) in gates.into_iter().enumerate() {
            let odd = (case + of_gate) % 2 == 1;
            let config = MultiHeadConfig {
                projection: match odd {
                    true => ProjectionLayout::Fused,
                    false => ProjectionLayout::Separate,
                },
                input_bias: case % 3 != 1,
                position: position.clone(),
                query_key_norm: norm,
                gate,
                head_size: Some(6),
                value_size: Some(5),
                ..MultiHeadConfig::grouped_query(10, 4, if odd { 2 } else { 4 })
            };
            let name = format!("{config:?}");
            let attention = Attention::new(Score::scaled_dot()).with_dropout(0.3);
            let layer = config
                .init_with(attention, &mut Initializer::new(3, &device()))
                .unwrap();
            let padding = PaddingMask::from_lengths(&[7, 4], 7, &device());
            let mask = Mask::causal() & Mask::padding(padding);
            let x = drawn("x", [2, 7, 10], 1.0);
            let upstream = drawn("upstream", [2, 7, 10], 1.0);
            let plan = layer.plan(&x, None, &call(&mask, &mut DropoutRng::seeded(9)));
            assert!(matches!(plan, Ok(KernelPlan::Projected { .. })), "{name}");
            let exact = double(layer.clone());
            let run = |path: Path, wide: bool| {
                let layer = if wide { &exact } else { &layer };
                let dtype = layer.output.weight.val().dtype();
                let x = x.clone().cast(dtype).detach().require_grad();
                let noise = &mut DropoutRng::seeded(9);
                let call = call(&mask, noise).path(path);
                let output = layer.forward(x.clone(), call).unwrap().output;
                let loss = (output.clone() * upstream.clone().cast(dtype)).sum();
                let slopes = loss.backward();
                let mut found = vec![("output".to_owned(), numbers(&output))];
                found.push(("x".to_owned(), numbers(&x.grad(&slopes).unwrap())));
                let weights = gradients(layer, &slopes);
                found.extend(
                    weights
                        .into_iter()
                        .map(|(name, array)| (name, array.values)),
                );
                found
            };
            let (fused, plain) = (run(Path::Auto, false), run(Path::Plain, false));
            for ((fused, plain), exact) in fused.iter().zip(&plain).zip(&run(Path::Plain, true)) {
                let off = |found: &[f32]| {
                    let pairs = found.iter().zip(&exact.1);
                    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
                };
                let size = exact.1.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                let rounding = 4.0 * f32::EPSILON * (size + 1.0);
                let (found, allowed) = (off(&fused.1), 3.0 * off(&plain.1) + rounding);
                assert!(
                    found <= allowed,
                    "{name} {}: {found:e} above {allowed:e}",
                    exact.0
                );
                checked += 1;
            }
        }
    }
    assert!(checked > 24 * 6, "{checked}");
}

/// Asking for weights, which separates the projections from attention, changes no bit.
#[test]
fn observing_changes_no_bit() {
    for projection in [ProjectionLayout::Separate, ProjectionLayout::Fused] {
        for layout in [Layout::HalfSplit, Layout::Interleaved] {
            let config = MultiHeadConfig {
                projection,
                position: PositionConfig::Rotary(RotaryConfig {
                    layout,
                    ..RotaryConfig::new(40)
                }),
                query_key_norm: Some(QueryKeyNormKind::Rms { epsilon: 1e-6 }),
                input_bias: true,
                gate: Some(Gate::Headwise),
                head_size: Some(48),
                ..MultiHeadConfig::grouped_query(70, 4, 2)
            };
            let layer = shaken(&config);
            let x = drawn("x", [2, 37, 70], 1.0);
            let read = |observe| {
                let call = AttentionOptions::new(observe).mask(Mask::causal());
                numbers(&layer.forward(x.clone(), call).unwrap().output)
            };
            assert!(
                read(Observe::Nothing) == read(Observe::Entropy),
                "{config:?}"
            );
        }
    }
}

/// A separate source is projected in the same operation, with its keys normalised.
#[test]
fn projected_cross_attention_is_plain() {
    let config = MultiHeadConfig {
        source_size: Some(6),
        query_key_norm: Some(QueryKeyNormKind::Rms { epsilon: 1e-5 }),
        gate: Some(Gate::Elementwise),
        ..MultiHeadConfig::new(8, 2)
    };
    let layer = shaken(&config);
    let (x, source) = (drawn("x", [2, 3, 8], 1.0), drawn("source", [2, 5, 6], 1.0));
    let plan = layer.plan(&x, Some(&source), &AttentionOptions::default());
    assert_eq!(plan, Ok(KernelPlan::Projected { scale: 0.5 }));
    let run = |path| {
        let call = AttentionOptions::default().path(path);
        let read = layer
            .forward_cross(x.clone(), source.clone(), call)
            .unwrap();
        let slopes = read.output.clone().powi_scalar(2).sum().backward();
        (read.output, gradients(&layer, &slopes))
    };
    let (fused, plain) = (run(Path::Auto), run(Path::Plain));
    assert!(close(&fused.0, &plain.0));
    assert_eq!(fused.1.len(), plain.1.len());
    for (name, slope) in &fused.1 {
        let pairs = slope.values.iter().zip(&plain.1[name].values);
        let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-5, "{name}: {off:e}");
    }
}
