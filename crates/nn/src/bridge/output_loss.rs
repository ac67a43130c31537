//! Output layer and softmax cross-entropy in one operation: `[rows, classes]` is never kept whole.
//!
//! `logits = H W + b`, then the loss of [`cross_entropy_mean`](super::cross_entropy_mean).
//! ```text
//! H:  | some rows | some rows | ..      for each: logits (16 MB at most), their losses, their gradient in
//! logits:   one buffer, reused          place, and from it the rows' part of dH and a term of dW and db
//! ```
//! Rows that do not count are left out of the products. The gradients are computed together with the loss, while the logits
//! are in memory: the backward pass only multiplies them by the gradient of the loss. As separate operations, a vocabulary
//! of 8,000 and 3,000 tokens take 96 MB for logits, whose pages the system has to clear again if the allocator had returned
//! them.

use std::sync::{Arc, OnceLock};

use burn::tensor::{Int, Tensor};
use regard_kernels::{
    KernelError,
    loss::{CrossEntropy as Spec, Losses, forward, forward_backward, scale},
    matmul::Write,
    pointwise::{self, Pointwise},
};

use super::{
    expect_dims,
    fused::{self, FlexTensor, Forward, Operation, dims, numbers, tensor},
    linear::linear,
    loss::{CrossEntropy, checked_targets, cross_entropy_mean, ignored_id},
    matmul, memory,
    product::{Matrix, MatrixMut, affine, weight_gradient_to},
};

/// The most logits in memory at once.
const LOGITS: usize = 1 << 22;

/// An output layer's weights.
#[derive(Debug, Clone)]
pub struct OutputWeights {
    /// `[inputs, classes]`; a tied one is its embedding table, `[classes, inputs]`.
    pub weight: Tensor<2>,
    /// Whether the weight is a table of embeddings.
    pub is_table: bool,
    /// `[classes]`
    pub bias: Option<Tensor<1>>,
}

impl OutputWeights {
    /// `H W + b`: `[rows, inputs]` -> `[rows, classes]`.
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        if !self.is_table {
            return linear(hidden, self.weight.clone(), self.bias.clone());
        }
        // A direct product: `linear` would copy the transpose of the table at every step of generation.
        let logits = matmul(hidden, self.weight.clone().transpose());
        match &self.bias {
            Some(bias) => logits + bias.clone().unsqueeze(),
            None => logits,
        }
    }
}

/// The smoothed cross-entropy of `output.logits(hidden)`, `hidden [rows, inputs]`, against `targets [rows]`, a mean over the
/// rows whose target is not `ignore`. Fused for `f32` on the Flex backend, in two steps elsewhere.
///
/// # Panics
/// If the shapes do not fit together, a kept target is not a class, or `smoothing` is not in `[0, 1]`.
pub fn output_cross_entropy_mean(
    hidden: Tensor<2>,
    output: OutputWeights,
    targets: Tensor<1, Int>,
    ignore: usize,
    smoothing: f32,
) -> CrossEntropy {
    if !fused::takes(&hidden) {
        return cross_entropy_mean(output.logits(hidden), targets, ignore, smoothing);
    }
    let [rows, inputs] = hidden.dims();
    let classes = output.weight.dims()[usize::from(!output.is_table)];
    let expected = match output.is_table {
        true => [classes, inputs],
        false => [inputs, classes],
    };
    expect_dims("output weight", output.weight.dims(), expected);
    if let Some(bias) = &output.bias {
        expect_dims("output bias", bias.dims(), [classes]);
    }
    let (targets, tokens) = checked_targets(targets, rows, classes, ignore, smoothing);
    let sums = Arc::new(OnceLock::new());
    let operation = Operator {
        targets,
        ignore,
        smoothing,
        scale: 1.0 / tokens.max(1) as f32,
        classes,
        is_table: output.is_table,
        sums: Arc::clone(&sums),
    };
    let mut all = vec![hidden.into_dispatch(), output.weight.into_dispatch()];
    all.extend(output.bias.map(Tensor::into_dispatch));
    let (loss, _) = fused::run(operation, all);
    CrossEntropy {
        loss: Tensor::from_dispatch(loss),
        nll: sums.get().map_or(0.0, |sums: &Losses| sums.nll),
        tokens,
    }
}

#[derive(Debug)]
struct Operator {
    targets: Vec<i64>,
    ignore: usize,
    smoothing: f32,
    scale: f32,
    classes: usize,
    is_table: bool,
    sums: Arc<OnceLock<Losses>>,
}

impl Operator {
    /// The weight as `[inputs, classes]`.
    fn weight<'a>(&self, numbers: &'a [f32], inputs: usize) -> Matrix<'a> {
        match self.is_table {
            true => Matrix::new(numbers, self.classes, inputs, inputs).transposed(),
            false => Matrix::new(numbers, inputs, self.classes, self.classes),
        }
    }

    /// `dW += Hᵀ dL`, in the weight's own layout.
    fn add_weight_gradient(
        &self,
        hidden: Matrix<'_>,
        d_logits: Matrix<'_>,
        to: &mut [f32],
        inputs: usize,
    ) -> Result<(), KernelError> {
        match self.is_table {
            true => weight_gradient_to(
                d_logits,
                hidden,
                MatrixMut::new(to, self.classes, inputs, inputs),
                Write::Add,
            ),
            false => weight_gradient_to(
                hidden,
                d_logits,
                MatrixMut::new(to, inputs, self.classes, self.classes),
                Write::Add,
            ),
        }
    }
}

impl Operation for Operator {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let [_, width] = dims(&inputs[0]);
        let (hidden, weight) = (numbers(&inputs[0]), numbers(&inputs[1]));
        let bias = inputs.get(2).map(numbers);
        let gradient = |of: &[f32]| memory::zeros(if tracked { of.len() } else { 0 });
        let (mut d_hidden, mut d_weight) = (gradient(hidden), gradient(weight));
        let mut d_bias = bias.map(gradient);
        let ignored = ignored_id(self.ignore);
        let counting = |&row: &usize| Some(self.targets[row]) != ignored;
        let rows: Vec<usize> = (0..self.targets.len()).filter(counting).collect();
        let at_once = (LOGITS / self.classes.max(1)).clamp(1, rows.len().max(1));
        let mut losses = Losses::default();
        for chunk in rows.chunks(at_once) {
            let row = |&row: &usize| &hidden[row * width..(row + 1) * width];
            let states: Vec<f32> = chunk.iter().flat_map(row).copied().collect();
            let states = Matrix::new(&states, chunk.len(), width, width);
            let mut logits = affine(states, self.weight(weight, width), bias)?;
            let targets: Vec<i64> = chunk.iter().map(|&row| self.targets[row]).collect();
            let spec = Spec {
                rows: chunk.len(),
                classes: self.classes,
                targets: &targets,
                ignore: Some(self.ignore),
                smoothing: self.smoothing,
            };
            let of_chunk = match tracked {
                true => forward_backward(&spec, &mut logits, self.scale, None)?,
                false => forward(&spec, &logits, None)?,
            };
            losses.smoothed += of_chunk.smoothed;
            losses.nll += of_chunk.nll;
            losses.tokens += of_chunk.tokens;
            if !tracked {
                continue;
            }
            if let Some(d_bias) = &mut d_bias {
                let spec = Pointwise {
                    rows: chunk.len(),
                    width: self.classes,
                    bias: None,
                    dropout: None,
                };
                let mut term = vec![0.0; self.classes];
                pointwise::column_sums(&spec, &logits, &mut term)?;
                d_bias
                    .iter_mut()
                    .zip(term)
                    .for_each(|(sum, term)| *sum += term);
            }
            let d_logits = Matrix::new(&logits, chunk.len(), self.classes, self.classes);
            let d_states = affine(d_logits, self.weight(weight, width).transposed(), None)?;
            for (&row, from) in chunk.iter().zip(d_states.chunks_exact(width.max(1))) {
                d_hidden[row * width..(row + 1) * width].copy_from_slice(from);
            }
            self.add_weight_gradient(states, d_logits, &mut d_weight, width)?;
        }
        let loss = (losses.smoothed * f64::from(self.scale)) as f32;
        // The function that made this operation reads the sums; the operation runs once.
        let _ = self.sums.set(losses);
        let mut saved = vec![];
        if tracked {
            let gradients = [d_hidden, d_weight].into_iter().chain(d_bias);
            let shaped = gradients.zip(&inputs);
            saved = shaped
                .map(|(gradient, input)| tensor(gradient, input.layout().shape().clone()))
                .collect();
        }
        Ok(Forward {
            output: tensor(vec![loss], [1]),
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
        let upstream = numbers(&gradient)[0];
        let scaled = saved.into_iter().map(|mut gradient| {
            if upstream != 1.0 {
                scale(gradient.storage_mut(), upstream);
            }
            Some(gradient)
        });
        Ok(scaled.collect())
    }
}
