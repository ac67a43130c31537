//! The pointwise part of a recurrent step, each in one operation. Gates stand in the order `z r n` of a GRU, `i f g o` of an
//! LSTM.
//!
//! | functions | cell |
//! |---|---|
//! | [`gru_step`] | GRU, reset after the recurrent product: `u = U h` first, then this |
//! | [`gru_reset`], [`gru_update`] | GRU, reset before it: `U_zr h`, `r ∘ h`, `U_n (r ∘ h)`, the new state |
//! | [`lstm_step`] | LSTM |
//!
//! Formulas: [`regard_kernels::cell`].
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use regard_nn::bridge::{gru_reset, gru_update, lstm_step, matmul};
//!
//! let device = Device::flex();
//! let (x, h) = (Tensor::<2>::ones([2, 9], &device), Tensor::<2>::ones([2, 3], &device));
//! let (u_gates, u_candidate) = (Tensor::<2>::ones([3, 6], &device), Tensor::<2>::ones([3, 3], &device));
//! let product = matmul(h.clone(), u_gates);
//! let reset = gru_reset(x.clone(), product.clone(), h.clone(), None);
//! let next = gru_update(x, product, matmul(reset, u_candidate), h.clone(), None);
//! assert_eq!(next.dims(), [2, 3]);
//!
//! let (x, u) = (Tensor::<2>::ones([2, 12], &device), Tensor::<2>::ones([3, 12], &device));
//! let (h, c) = lstm_step(x, matmul(h.clone(), u), h.clone(), h, None);
//! assert_eq!((h.dims(), c.dims()), ([2, 3], [2, 3]));
//! ```

use burn::tensor::{Bool, Tensor};
use regard_kernels::cell::{
    Step,
    gru::{GruStep, GruStepFields},
    gru_reset_before::{ResetFields, ResetStep, UpdateFields, UpdateStep},
    lstm::{LstmStep, LstmStepFields},
};

use super::{
    expect_dims, fused, keep_old, kept_rows,
    recurrent::{flags, run},
    sigmoid,
};

/// Checks what is given as `(name, gates side by side, x)` against the state `h [batch, n]`.
#[track_caller]
fn check<const N: usize>(
    h: &Tensor<2>,
    keep: &Option<Tensor<1, Bool>>,
    given: [(&str, usize, &Tensor<2>); N],
) -> usize {
    let [batch, n] = h.dims();
    for (name, gates, x) in given {
        expect_dims(name, x.dims(), [batch, gates * n]);
    }
    if let Some(keep) = keep {
        expect_dims("keep", keep.dims(), [batch]);
    }
    n
}

fn step(h: &Tensor<2>, keep: Option<Tensor<1, Bool>>) -> Step {
    let [batch, units] = h.dims();
    let keep = flags(keep);
    Step { batch, units, keep }
}

/// One step with the reset after the product: `z, r = σ(x + u)`, `n = tanh(x_n + r ∘ u_n)`,
/// `h' = (1 - z) ∘ n + z ∘ h`.
///
/// `x` and `product [batch, 3n]`, `h [batch, n]`; a row where `keep [batch]` is false keeps its `h`,
/// passes the whole gradient to it, and nothing else of the row is read. Returns `h' [batch, n]`.
///
/// # Panics
/// If the shapes do not fit together.
pub fn gru_step(
    x: Tensor<2>,
    product: Tensor<2>,
    h: Tensor<2>,
    keep: Option<Tensor<1, Bool>>,
) -> Tensor<2> {
    let n = check(&h, &keep, [("x", 3, &x), ("product", 3, &product)]);
    if !fused::takes(&x) {
        let [x, product, old] = [x, product, h.clone()].map(|x| kept_rows(&keep, x));
        let gates = sigmoid(x.clone().narrow(1, 0, 2 * n) + product.clone().narrow(1, 0, 2 * n));
        let (z, r) = (gates.clone().narrow(1, 0, n), gates.narrow(1, n, n));
        let candidate = (x.narrow(1, 2 * n, n) + r * product.narrow(1, 2 * n, n)).tanh();
        let next = candidate.clone() + z * (old - candidate);
        return keep_old(&keep, next, h);
    }
    let operation = GruStep(step(&h, keep));
    let inputs = GruStepFields {
        x: x.into(),
        product: product.into(),
        state: h.into(),
    };
    Tensor::from_dispatch(run(operation, inputs).0)
}

/// First half of a step with the reset before the product: `r = σ(x_r + u_r)`; gives `r ∘ h [batch, n]`.
///
/// `x [batch, 3n]`, `product = h U_zr [batch, 2n]` (only the parts for `r` are used here, the others in the second half),
/// `h [batch, n]`; rows where `keep [batch]` is false give zeros and take no gradient.
///
/// # Panics
/// If the shapes do not fit together.
pub fn gru_reset(
    x: Tensor<2>,
    product: Tensor<2>,
    h: Tensor<2>,
    keep: Option<Tensor<1, Bool>>,
) -> Tensor<2> {
    let n = check(&h, &keep, [("x", 3, &x), ("product", 2, &product)]);
    if !fused::takes(&x) {
        let [x, product, h] = [x, product, h].map(|x| kept_rows(&keep, x));
        let r = sigmoid(x.narrow(1, n, n) + product.narrow(1, n, n));
        return kept_rows(&keep, r * h);
    }
    let operation = ResetStep(step(&h, keep));
    let inputs = ResetFields {
        x: x.into(),
        product: product.into(),
        state: h.into(),
    };
    Tensor::from_dispatch(run(operation, inputs).0)
}

/// Second half: `z = σ(x_z + u_z)`, `ñ = tanh(x_n + candidate)`, `h' = (1 - z) ∘ h + z ∘ ñ`, `[batch, n]`.
///
/// `x [batch, 3n]`, `product = h U_zr [batch, 2n]`, `candidate = (r ∘ h) U_n [batch, n]`, `h [batch, n]`; rows where
/// `keep [batch]` is false keep their `h`.
///
/// # Panics
/// If the shapes do not fit together.
pub fn gru_update(
    x: Tensor<2>,
    product: Tensor<2>,
    candidate: Tensor<2>,
    h: Tensor<2>,
    keep: Option<Tensor<1, Bool>>,
) -> Tensor<2> {
    let given = [
        ("x", 3, &x),
        ("product", 2, &product),
        ("candidate", 1, &candidate),
    ];
    let n = check(&h, &keep, given);
    if !fused::takes(&x) {
        let [x, product, candidate, old] =
            [x, product, candidate, h.clone()].map(|x| kept_rows(&keep, x));
        let z = sigmoid(x.clone().narrow(1, 0, n) + product.narrow(1, 0, n));
        let candidate = (x.narrow(1, 2 * n, n) + candidate).tanh();
        let next = old.clone() + z * (candidate - old);
        return keep_old(&keep, next, h);
    }
    let operation = UpdateStep(step(&h, keep));
    let inputs = UpdateFields {
        x: x.into(),
        product: product.into(),
        candidate: candidate.into(),
        state: h.into(),
    };
    Tensor::from_dispatch(run(operation, inputs).0)
}

/// One step: `i, f, o = σ(x + u)`, `g = tanh(x_g + u_g)`, `c' = f ∘ c + i ∘ g`, `h' = o ∘ tanh c'`.
///
/// `x` and `product = h U` are `[batch, 4n]`, `h` and `c` `[batch, n]`; a row where `keep [batch]` is
/// false keeps its `h` and `c`, passes the whole gradient to them, and nothing else of it is read. Returns `(h', c')`,
/// `[batch, n]` each.
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
    let n = check(
        &h,
        &keep,
        [("x", 4, &x), ("product", 4, &product), ("c", 1, &c)],
    );
    if !fused::takes(&x) {
        let [x, product, old] = [x, product, c.clone()].map(|x| kept_rows(&keep, x));
        let gates = x + product;
        let gate = |k: usize| gates.clone().narrow(1, k * n, n);
        let cell = sigmoid(gate(1)) * old + sigmoid(gate(0)) * gate(2).tanh();
        let hidden = sigmoid(gate(3)) * cell.clone().tanh();
        return (keep_old(&keep, hidden, h), keep_old(&keep, cell, c));
    }
    let operation = LstmStep(step(&h, keep));
    let batch = operation.0.batch;
    let inputs = LstmStepFields {
        x: x.into(),
        product: product.into(),
        hidden: h.into(),
        cell: c.into(),
    };
    // `h'` and `c'` are stored one after the other in one tensor, because Burn tracks one output; both results are views of
    // it. Burn cannot narrow to size 0.
    let both = Tensor::<2>::from_dispatch(run(operation, inputs).0);
    let half = |k: usize| match batch {
        0 => both.clone(),
        _ => both.clone().narrow(0, k * batch, batch),
    };
    (half(0), half(1))
}
