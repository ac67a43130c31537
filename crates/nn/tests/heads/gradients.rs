//! Gradients of whole layers against finite differences.

use crate::{
    finite_differences::{check_gradients, double, doubles},
    mechanisms::{causal, mechanisms, shaken},
    support::values,
};
use regard_nn::{AttentionOptions, Path, heads::MultiHeadConfig, position::PositionConfig};

/// Every weight and the input of every mechanism, against finite differences.
#[test]
fn gradients_equal_finite_differences() {
    let mut checked = 0;
    for (name, config) in mechanisms(2, 1, 4) {
        let config = MultiHeadConfig {
            d_model: 3,
            output_bias: true,
            ..config
        };
        let layer = double(shaken(&config));
        let inputs = [doubles(&values("x", 12, 1.0), [1, 4, 3])];
        let upstream = doubles(&values("u", 12, 1.0), [1, 4, 3]);
        checked += check_gradients(name, &layer, &inputs, |layer, inputs| {
            let read = layer
                .forward(inputs[0].clone(), causal().path(Path::Plain))
                .unwrap();
            (read.output * upstream.clone()).sum()
        });
        if matches!(config.position, PositionConfig::None) {
            let inputs = [
                doubles(&values("x", 6, 1.0), [1, 2, 3]),
                doubles(&values("y", 9, 1.0), [1, 3, 3]),
            ];
            let upstream = doubles(&values("u", 6, 1.0), [1, 2, 3]);
            checked += check_gradients(name, &layer, &inputs, |layer, inputs| {
                let source = layer.source(inputs[1].clone()).unwrap();
                let call = AttentionOptions::default().path(Path::Plain);
                let read = layer
                    .forward_source(inputs[0].clone(), &source, call)
                    .unwrap();
                (read.output * upstream.clone()).sum()
            });
        }
    }
    assert!(checked > 13 * 70, "{checked}");
}
