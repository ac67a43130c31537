//! The pointwise part of a GRU step, each in one operation. Gates stand in the order `z r n`.
//!
//! | functions | cell |
//! |---|---|
//! | [`gru_step`] | reset after the recurrent product: `u = U h` first, then this |
//! | [`gru_reset_before_gates`], [`gru_reset_before_output`] | reset before it: `U_zr h`, the gates, `U_n (r ∘ h)`, the output |
//!
//! Formulas: [`regard_kernels::cell::gru`] and [`regard_kernels::cell::gru_reset_before`].
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::bridge::{gru_reset_before_gates, gru_reset_before_output, matmul};
//!
//! let device = Device::flex();
//! let (x, h) = (Tensor::<2>::ones([2, 9], &device), Tensor::<2>::ones([2, 3], &device));
//! let (u_gates, u_candidate) = (Tensor::<2>::ones([3, 6], &device), Tensor::<2>::ones([3, 3], &device));
//! let product = matmul(h.clone(), u_gates);
//! let z_reset = gru_reset_before_gates(x.clone(), product, h.clone(), None);
//! let product = matmul(z_reset.clone().narrow(1, 3, 3), u_candidate); // (r ∘ h) U_n
//! let next = gru_reset_before_output(x, product, z_reset, h, None);
//! assert_eq!(next.dims(), [2, 3]);
//! ```

use burn::tensor::{Bool, Tensor, activation::sigmoid};
use regard_kernels::{
    KernelError,
    cell::{Step, gru, gru_reset_before},
};

use super::{
    bytes, expect_dims, expect_gates,
    fused::{self, FlexTensor, Forward, Operation, dims, numbers, tensor},
    keep_old, kept_rows,
};

/// One step with the reset after the product: `z, r = σ(x + u)`, `n = tanh(x_n + r ∘ u_n)`,
/// `h' = (1 - z) ∘ n + z ∘ h`.
///
/// `x` and `product [batch, 3n]`, `h [batch, n]`; a row where `keep [batch]` is false keeps its `h`,
/// gives it the whole gradient, and nothing else of the row is looked at. Gives `h' [batch, n]`.
///
/// # Panics
/// If the shapes do not fit together.
pub fn gru_step(
    x: Tensor<2>,
    product: Tensor<2>,
    h: Tensor<2>,
    keep: Option<Tensor<1, Bool>>,
) -> Tensor<2> {
    let [batch, n] = expect_gates("x", 3, &x, &h);
    expect_dims("product", product.dims(), [batch, 3 * n]);
    if let Some(keep) = &keep {
        expect_dims("keep", keep.dims(), [batch]);
    }
    if !fused::takes(&x) {
        let [x, product, old] = [x, product, h.clone()].map(|x| kept_rows(&keep, x));
        let gates = sigmoid(x.clone().narrow(1, 0, 2 * n) + product.clone().narrow(1, 0, 2 * n));
        let (z, r) = (gates.clone().narrow(1, 0, n), gates.narrow(1, n, n));
        let candidate = (x.narrow(1, 2 * n, n) + r * product.narrow(1, 2 * n, n)).tanh();
        let next = candidate.clone() + z * (old - candidate);
        return keep_old(&keep, next, h);
    }
    let inputs = vec![
        x.into_dispatch(),
        product.into_dispatch(),
        h.into_dispatch(),
    ];
    Tensor::from_dispatch(
        fused::run(
            After {
                keep: keep.map(bytes),
            },
            inputs,
        )
        .0,
    )
}

/// First half of a step with the reset before the product: `z, r = σ(x + product)`; gives
/// `[z | r ∘ h] [batch, 2n]`.
///
/// `x [batch, 3n]` (its last third belongs to the second half), `product = h U_zr [batch, 2n]`,
/// `h [batch, n]`; rows where `keep [batch]` is false give zeros and take no gradient.
///
/// # Panics
/// If the shapes do not fit together.
pub fn gru_reset_before_gates(
    x: Tensor<2>,
    product: Tensor<2>,
    h: Tensor<2>,
    keep: Option<Tensor<1, Bool>>,
) -> Tensor<2> {
    let [batch, n] = expect_gates("x", 3, &x, &h);
    expect_dims("product", product.dims(), [batch, 2 * n]);
    if let Some(keep) = &keep {
        expect_dims("keep", keep.dims(), [batch]);
    }
    if !fused::takes(&x) {
        let [x, product, h] = [x, product, h].map(|x| kept_rows(&keep, x));
        let gates = sigmoid(x.narrow(1, 0, 2 * n) + product);
        let (z, r) = (gates.clone().narrow(1, 0, n), gates.narrow(1, n, n));
        return kept_rows(&keep, Tensor::cat(vec![z, r * h], 1));
    }
    let inputs = vec![
        x.into_dispatch(),
        product.into_dispatch(),
        h.into_dispatch(),
    ];
    Tensor::from_dispatch(
        fused::run(
            BeforeGates {
                keep: keep.map(bytes),
            },
            inputs,
        )
        .0,
    )
}

/// Second half: `ñ = tanh(x_n + product)`, `h' = (1 - z) ∘ h + z ∘ ñ`, `[batch, n]`.
///
/// `x [batch, 3n]` (its last third), `product = (r ∘ h) U_n [batch, n]`, `z_reset [batch, 2n]` from
/// the first half (`z` of it), `h [batch, n]`; rows where `keep [batch]` is false keep their `h`.
///
/// # Panics
/// If the shapes do not fit together.
pub fn gru_reset_before_output(
    x: Tensor<2>,
    product: Tensor<2>,
    z_reset: Tensor<2>,
    h: Tensor<2>,
    keep: Option<Tensor<1, Bool>>,
) -> Tensor<2> {
    let [batch, n] = expect_gates("x", 3, &x, &h);
    expect_dims("product", product.dims(), [batch, n]);
    expect_dims("z_reset", z_reset.dims(), [batch, 2 * n]);
    if let Some(keep) = &keep {
        expect_dims("keep", keep.dims(), [batch]);
    }
    if !fused::takes(&x) {
        let [x, product, z_reset, old] =
            [x, product, z_reset, h.clone()].map(|x| kept_rows(&keep, x));
        let candidate = (x.narrow(1, 2 * n, n) + product).tanh();
        let next = old.clone() + z_reset.narrow(1, 0, n) * (candidate - old);
        return keep_old(&keep, next, h);
    }
    let inputs = vec![
        x.into_dispatch(),
        product.into_dispatch(),
        z_reset.into_dispatch(),
        h.into_dispatch(),
    ];
    Tensor::from_dispatch(
        fused::run(
            BeforeOutput {
                keep: keep.map(bytes),
            },
            inputs,
        )
        .0,
    )
}

fn step<'a>(keep: &'a Option<Vec<u8>>, h: &FlexTensor) -> Step<'a> {
    let [batch, units] = dims(h);
    Step {
        batch,
        units,
        keep: keep.as_deref(),
    }
}

#[derive(Debug)]
struct After {
    keep: Option<Vec<u8>>,
}

impl Operation for After {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let [x, u, h]: [FlexTensor; 3] = inputs.try_into().expect("three inputs were given");
        let step = step(&self.keep, &h);
        let mut next = vec![0.0; step.batch * step.units];
        let mut gates = vec![0.0; 3 * next.len()];
        gru::forward(
            step,
            numbers(&x),
            numbers(&u),
            numbers(&h),
            &mut next,
            &mut gates,
        )?;
        let output = tensor(next, [step.batch, step.units]);
        let gates = tensor(gates, [step.batch, 3 * step.units]);
        let saved = if tracked {
            vec![u, h, gates]
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
        let [u, h, gates] = &saved[..] else {
            unreachable!("forward saved three tensors")
        };
        let step = step(&self.keep, h);
        let size = step.batch * step.units;
        let (mut d_x, mut d_u, mut d_h) =
            (vec![0.0; 3 * size], vec![0.0; 3 * size], vec![0.0; size]);
        let saved = gru::Saved {
            u: numbers(u),
            state: numbers(h),
            gates: numbers(gates),
        };
        gru::backward(
            step,
            saved,
            numbers(&gradient),
            &mut d_x,
            &mut d_u,
            &mut d_h,
        )?;
        Ok(vec![
            Some(tensor(d_x, [step.batch, 3 * step.units])),
            Some(tensor(d_u, [step.batch, 3 * step.units])),
            Some(tensor(d_h, [step.batch, step.units])),
        ])
    }
}

#[derive(Debug)]
struct BeforeGates {
    keep: Option<Vec<u8>>,
}

impl Operation for BeforeGates {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let [x, u, h]: [FlexTensor; 3] = inputs.try_into().expect("three inputs were given");
        let step = step(&self.keep, &h);
        let size = step.batch * step.units;
        let (mut z_reset, mut r) = (vec![0.0; 2 * size], vec![0.0; size]);
        gru_reset_before::gates(
            step,
            numbers(&x),
            numbers(&u),
            numbers(&h),
            &mut z_reset,
            &mut r,
        )?;
        let output = tensor(z_reset, [step.batch, 2 * step.units]);
        let r = tensor(r, [step.batch, step.units]);
        let saved = if tracked {
            vec![output.clone(), r, h]
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
        let [z_reset, r, h] = &saved[..] else {
            unreachable!("forward saved three tensors")
        };
        let step = step(&self.keep, h);
        let (n, size) = (step.units, step.batch * step.units);
        let (mut d_z, mut d_reset) = (Vec::with_capacity(size), Vec::with_capacity(size));
        for row in numbers(&gradient).chunks_exact(2 * n.max(1)) {
            d_z.extend_from_slice(&row[..n]);
            d_reset.extend_from_slice(&row[n..]);
        }
        let (mut d_x, mut d_u, mut d_h) =
            (vec![0.0; 3 * size], vec![0.0; 2 * size], vec![0.0; size]);
        gru_reset_before::gates_backward(
            step,
            numbers(z_reset),
            numbers(r),
            numbers(h),
            &d_z,
            &d_reset,
            &mut d_x,
            &mut d_u,
            &mut d_h,
        )?;
        Ok(vec![
            Some(tensor(d_x, [step.batch, 3 * n])),
            Some(tensor(d_u, [step.batch, 2 * n])),
            Some(tensor(d_h, [step.batch, n])),
        ])
    }
}

#[derive(Debug)]
struct BeforeOutput {
    keep: Option<Vec<u8>>,
}

impl Operation for BeforeOutput {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let [x, u, z_reset, h]: [FlexTensor; 4] =
            inputs.try_into().expect("four inputs were given");
        let step = step(&self.keep, &h);
        let size = step.batch * step.units;
        let (mut next, mut candidate) = (vec![0.0; size], vec![0.0; size]);
        gru_reset_before::output(
            step,
            numbers(&x),
            numbers(&u),
            numbers(&z_reset),
            numbers(&h),
            &mut next,
            &mut candidate,
        )?;
        let output = tensor(next, [step.batch, step.units]);
        let candidate = tensor(candidate, [step.batch, step.units]);
        let saved = if tracked {
            vec![z_reset, candidate, h]
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
        let [z_reset, candidate, h] = &saved[..] else {
            unreachable!("forward saved three tensors")
        };
        let step = step(&self.keep, h);
        let (n, size) = (step.units, step.batch * step.units);
        let (mut d_x, mut d_u) = (vec![0.0; 3 * size], vec![0.0; size]);
        let (mut d_z, mut d_h) = (vec![0.0; size], vec![0.0; size]);
        gru_reset_before::output_backward(
            step,
            numbers(z_reset),
            numbers(candidate),
            numbers(h),
            numbers(&gradient),
            &mut d_x,
            &mut d_u,
            &mut d_z,
            &mut d_h,
        )?;
        let mut d_z_reset = vec![0.0; 2 * size];
        if n > 0 {
            for (row, d_z) in d_z_reset.chunks_exact_mut(2 * n).zip(d_z.chunks_exact(n)) {
                row[..n].copy_from_slice(d_z);
            }
        }
        Ok(vec![
            Some(tensor(d_x, [step.batch, 3 * n])),
            Some(tensor(d_u, [step.batch, n])),
            Some(tensor(d_z_reset, [step.batch, 2 * n])),
            Some(tensor(d_h, [step.batch, n])),
        ])
    }
}
