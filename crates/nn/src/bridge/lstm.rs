//! The pointwise part of an LSTM step in one operation. Gates stand in the order `i f g o`.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::bridge::{lstm_step, matmul};
//!
//! let device = Device::flex();
//! let (x, u) = (Tensor::<2>::ones([2, 12], &device), Tensor::<2>::ones([3, 12], &device));
//! let (h, c) = (Tensor::<2>::ones([2, 3], &device), Tensor::<2>::ones([2, 3], &device));
//! let (h, c) = lstm_step(x, matmul(h.clone(), u), h, c, None);
//! assert_eq!((h.dims(), c.dims()), ([2, 3], [2, 3]));
//! ```

use burn::tensor::{
    Bool, Tensor,
    activation::{sigmoid, tanh},
};
use regard_kernels::{
    KernelError,
    cell::{
        Step,
        lstm::{Saved, State, backward, forward},
    },
};

use super::{
    bytes, expect_dims, expect_gates,
    fused::{self, FlexTensor, Forward, Operation, dims, numbers, tensor},
    keep_old, kept_rows,
};

/// One step: `i, f, o = σ(x + u)`, `g = tanh(x_g + u_g)`, `c' = f ∘ c + i ∘ g`, `h' = o ∘ tanh c'`.
///
/// `x` and `product = h U` are `[batch, 4n]`, `h` and `c` `[batch, n]`; a row where `keep [batch]` is
/// false keeps its `h` and `c`, gives them the whole gradient, and nothing else of it is looked at.
/// Gives `(h', c')`, `[batch, n]` each.
///
/// # Panics
/// If the shapes do not fit together.
pub fn lstm_step(
    x: Tensor<2>,
    product: Tensor<2>,
    h: Tensor<2>,
    c: Tensor<2>,
    keep: Option<Tensor<1, Bool>>,
) -> (Tensor<2>, Tensor<2>) {
    let [batch, n] = expect_gates("x", 4, &x, &h);
    expect_dims("product", product.dims(), [batch, 4 * n]);
    expect_dims("c", c.dims(), [batch, n]);
    if let Some(keep) = &keep {
        expect_dims("keep", keep.dims(), [batch]);
    }
    if !fused::takes(&x) {
        let [x, product, old] = [x, product, c.clone()].map(|x| kept_rows(&keep, x));
        let gates = x + product;
        let gate = |k: usize| gates.clone().narrow(1, k * n, n);
        let cell = sigmoid(gate(1)) * old + sigmoid(gate(0)) * tanh(gate(2));
        let hidden = sigmoid(gate(3)) * tanh(cell.clone());
        return (keep_old(&keep, hidden, h), keep_old(&keep, cell, c));
    }
    let inputs = vec![
        x.into_dispatch(),
        product.into_dispatch(),
        h.into_dispatch(),
        c.into_dispatch(),
    ];
    let (both, _) = fused::run(
        Lstm {
            keep: keep.map(bytes),
        },
        inputs,
    );
    let both = Tensor::<3>::from_dispatch(both);
    let half = |k: usize| both.clone().narrow(0, k, 1).squeeze_dim::<2>(0);
    (half(0), half(1))
}

#[derive(Debug)]
struct Lstm {
    keep: Option<Vec<u8>>,
}

impl Lstm {
    fn step(&self, c: &FlexTensor) -> Step<'_> {
        let [batch, units] = dims(c);
        Step {
            batch,
            units,
            keep: self.keep.as_deref(),
        }
    }
}

/// The output is `[2, batch, n]`, `h'` and `c'` one after the other, because Burn tracks one output;
/// the halves are views of it.
impl Operation for Lstm {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let [x, u, h, c]: [FlexTensor; 4] = inputs.try_into().expect("four inputs were given");
        let step = self.step(&c);
        let size = step.batch * step.units;
        let (mut both, mut gates) = (vec![0.0; 2 * size], vec![0.0; 4 * size]);
        let (h_new, c_new) = both.split_at_mut(size);
        let state = State {
            h: numbers(&h),
            c: numbers(&c),
        };
        forward(
            step,
            numbers(&x),
            numbers(&u),
            state,
            h_new,
            c_new,
            &mut gates,
        )?;
        let output = tensor(both, [2, step.batch, step.units]);
        let gates = tensor(gates, [step.batch, 4 * step.units]);
        let saved = if tracked {
            vec![c, output.clone(), gates]
        } else {
            Vec::new()
        };
        Ok(Forward {
            output,
            beside: None,
            saved,
        })
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let [c_old, both, gates] = &saved[..] else {
            unreachable!("forward saved three tensors")
        };
        let step = self.step(c_old);
        let (n, size) = (step.units, step.batch * step.units);
        let (mut d_pre, mut d_h, mut d_c) = (vec![0.0; 4 * size], vec![0.0; size], vec![0.0; size]);
        let saved = Saved {
            c_old: numbers(c_old),
            c: &numbers(both)[size..],
            gates: numbers(gates),
        };
        let (of_h, of_c) = numbers(&gradient).split_at(size);
        let d_new = State { h: of_h, c: of_c };
        backward(step, saved, d_new, &mut d_pre, &mut d_h, &mut d_c)?;
        let d_pre = tensor(d_pre, [step.batch, 4 * n]);
        Ok(vec![
            Some(d_pre.clone()),
            Some(d_pre),
            Some(tensor(d_h, [step.batch, n])),
            Some(tensor(d_c, [step.batch, n])),
        ])
    }
}
