//! Gradients that are handed out while the backward pass still runs are those of its end.

use std::sync::mpsc;

use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Gradients, Tensor, TensorData},
};
use regard_nn::{
    Observe,
    bridge::{EarlyGradients, apply, without_kernels},
    dropout::DropoutRng,
    initialize::Initializer,
    transformer::{StackConfig, StackOptions},
};

use crate::support::device;

struct Finals<'a> {
    gradients: Gradients,
    early: &'a EarlyGradients,
    all: Vec<Final>,
}

impl ModuleVisitor for Finals<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad_remove(&mut self.gradients).unwrap();
        let sent = self.early.has_sent(self.all.len(), &gradient);
        self.all.push((gradient.into_data(), sent));
    }
}

/// A gradient that was handed out, after the weight's place.
type Early = (usize, TensorData);
/// A gradient at the end, and whether it is what was handed out.
type Final = (TensorData, bool);

/// The gradients that were handed out, in their order, and all at the end.
fn both<M: Module>(module: &M, forward: impl FnOnce(&M) -> Tensor<3>) -> (Vec<Early>, Vec<Final>) {
    let (sender, receiver) = mpsc::channel();
    let early = EarlyGradients::watch(
        module,
        |_| true,
        move |index, gradient| {
            sender.send((index, gradient)).unwrap();
        },
    );
    let output = forward(module);
    let mut finals = Finals {
        gradients: (output.clone() * output).sum().backward(),
        early: &early,
        all: vec![],
    };
    module.visit(&mut finals);
    let all = finals.all;
    drop(early);
    (receiver.into_iter().collect(), all)
}

fn input(size: usize) -> Tensor<3> {
    let mut init = Initializer::new(5, &device());
    init.normal([2, 3 * size], 1.0)
        .val()
        .reshape([2, 3, size])
        .detach()
}

#[test]
fn of_a_stack_they_come_from_the_last_layer_to_the_first() {
    let mut init = Initializer::new(3, &device());
    let stack = StackConfig::new(8, 2).encoder(3, &mut init).unwrap();
    let (early, all) = both(&stack, |stack| {
        let options = StackOptions::new(Observe::Nothing);
        let read = stack.forward(input(8), None, &options, &mut DropoutRng::none());
        read.unwrap().states
    });
    assert_eq!(early.len(), all.len(), "every weight, once");
    for (index, gradient) in &early {
        assert_eq!(
            (gradient, true),
            (&all[*index].0, all[*index].1),
            "weight {index}"
        );
    }
    // Each of the three layers has 12 weights; after them comes a norm with 2.
    assert_eq!(all.len(), 3 * 12 + 2);
    let layers: Vec<usize> = early.iter().map(|(index, _)| index / 12).collect();
    assert!(layers.is_sorted_by(|a, b| a >= b), "{layers:?}");
}

/// A weight that is read twice is complete when both operations have been gone back through.
#[test]
fn a_weight_that_is_read_twice() {
    let linear = Initializer::new(3, &device()).linear(4, 4, true);
    let (early, all) = both(&linear, |linear| apply(linear, apply(linear, input(4))));
    assert_eq!(early.len(), 2);
    for (index, gradient) in early {
        assert_eq!((gradient, true), all[index].clone());
    }
}

/// What Burn's own operations read is not counted, and the end tells.
#[test]
fn a_weight_that_other_operations_read_too() {
    let linear = Initializer::new(3, &device()).linear(4, 4, false);
    let (early, all) = both(&linear, |linear| {
        // Burn's product is the first to read the weight, so the last to be gone back through.
        let first = without_kernels(|| apply(linear, input(4)));
        apply(linear, first)
    });
    let [(0, early)] = &early[..] else {
        panic!("{early:?}")
    };
    let (gradient, sent) = &all[0];
    assert!(!sent && early != gradient);
}
