//! The definition against finite differences in `f64`.

use super::*;

/// Every differentiable input of the definition, in `f64`.
#[test]
#[cfg_attr(miri, ignore = "computes nothing but definitions")]
fn the_definition_agrees_with_finite_differences() {
    let shape = Shape {
        batch: 2,
        heads: 4,
        key_heads: 2,
        queries: 5,
        keys: 6,
        dim: 3,
        value_dim: 4,
    };
    let mut data = Data::new(shape, false);
    data.sinks = vec![0.5, -0.25, 0.0, 1.0];
    let views = shape.views();
    let inputs = shape.inputs(1.0).map(|x| wide(&x));
    let mut checked = 0;
    let option_sets: [&[&str]; 6] = [
        &[],
        &["causal", "bias", "sink"],
        &["softcap", "bias of keys", "dropout", "sink"],
        &["lengths", "bias of queries", "alibi", "softcap"],
        &["softcap", "bias", "window"],
        &["documents", "keep", "sink", "dropout"],
    ];
    for options in option_sets {
        let loss = |attention: &Attention, [query, key, value]: [&[f64]; 3]| {
            let output = reference::forward(attention, views, query, key, value).output;
            probe(&output, &inputs[3])
        };
        let [query, key, value, _] = &inputs;
        let attention = data.attention(options);
        let found = truth(&attention, shape, &inputs);
        for argument in 0..3 {
            for (index, &found) in found[argument].iter().enumerate() {
                let expected = difference(&inputs[argument], index, |x| {
                    let mut arguments = [&query[..], key, value];
                    arguments[argument] = x;
                    loss(&attention, arguments)
                });
                let error = (found - expected).abs();
                assert!(
                    error < 1e-7,
                    "{options:?} {} {index}: {error:e}",
                    NAMES[argument]
                );
                checked += 1;
            }
        }
        // Biases and sinks are f32, so the step is one that they hold exactly.
        let step = 1.0 / 512.0;
        for (argument, count) in [(3, found[3].len()), (4, found[4].len())] {
            for index in 0..count {
                let at = |offset: f32| {
                    let (mut bias, mut sinks) = (data.bias.clone(), data.sinks.clone());
                    let moved = if argument == 3 { &mut bias } else { &mut sinks };
                    moved[index] += offset;
                    let attention = Attention {
                        bias: attention.bias.map(|view| View {
                            data: &bias,
                            ..view
                        }),
                        sink: attention.sink.map(|_| &sinks[..]),
                        ..attention
                    };
                    let moved = if argument == 3 {
                        bias[index]
                    } else {
                        sinks[index]
                    };
                    (loss(&attention, [query, key, value]), f64::from(moved))
                };
                let ((up, high), (down, low)) = (at(step), at(-step));
                let error = (found[argument][index] - (up - down) / (high - low)).abs();
                assert!(
                    error < 2e-5,
                    "{options:?} {} {index}: {error:e}",
                    NAMES[argument]
                );
                checked += 1;
            }
        }
    }
    let inputs = 2 * 4 * 5 * 3 + 2 * 2 * 6 * (3 + 4);
    let biases = (2 + 2) * 4 * 5 * 6 / 2 * 2 + 4 * 6 + 2 * 5;
    assert_eq!(checked, 6 * inputs + biases + 3 * 4);
}
