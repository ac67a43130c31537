//! Softmax cross-entropy with label smoothing in one operation: one pass over the logits gives the
//! loss and its gradient, which overwrites the logits in memory unless something else holds them.
//!
//! `loss = Σ_kept (1 - ε) (-ln p_t) + ε/classes Σ_j -ln p_j`; see [`regard_kernels::loss`].
//!
//! ```
//! use burn::tensor::{Device, Int, Tensor};
//! use regard_nn::bridge::cross_entropy;
//!
//! let device = Device::flex();
//! let logits = Tensor::<2>::zeros([3, 4], &device);
//! let targets = Tensor::<1, Int>::from_ints([1, 2, 0], &device);
//! let result = cross_entropy(logits, targets, 0, 0.1);
//! assert_eq!(result.tokens, 2);
//! assert!((result.nll - 2.0 * 4.0f64.ln()).abs() < 1e-6);
//! ```

use std::sync::{Arc, OnceLock};

use burn::tensor::{Int, Tensor, activation::log_softmax};
use regard_kernels::{
    KernelError,
    loss::{CrossEntropy as Spec, Losses, forward, forward_backward},
};

use super::{
    expect_dims,
    fused::{self, FlexTensor, Forward, Operation, dims, numbers, tensor},
    sum,
};

/// What [`cross_entropy`] gives.
#[derive(Debug, Clone)]
pub struct CrossEntropy {
    /// `[1]`: the smoothed loss, summed or averaged over the kept rows; gradients flow from here.
    pub loss: Tensor<1>,
    /// The sum of `-ln p_t` over the kept rows, whatever the smoothing: perplexity is
    /// `exp(nll / tokens)`.
    pub nll: f64,
    /// Kept rows.
    pub tokens: usize,
}

/// The smoothed cross-entropy of `logits [rows, classes]` against `targets [rows]`, summed over the
/// rows whose target is not `ignore`.
///
/// If no other clone of the logits exists, their storage is reused for the gradient. Fused for `f32`
/// on the Flex backend, plain operations elsewhere.
///
/// # Panics
/// If the shapes do not fit together, a kept target is not a class, or `smoothing` is not in
/// `[0, 1]`.
pub fn cross_entropy(
    logits: Tensor<2>,
    targets: Tensor<1, Int>,
    ignore: usize,
    smoothing: f32,
) -> CrossEntropy {
    reduce(logits, targets, ignore, smoothing, false)
}

/// As [`cross_entropy`], but `loss` is divided by the number of kept rows (0 if there is none).
/// Faster than dividing afterwards: the factor goes into the one pass over the logits.
///
/// # Panics
/// As [`cross_entropy`].
pub fn cross_entropy_mean(
    logits: Tensor<2>,
    targets: Tensor<1, Int>,
    ignore: usize,
    smoothing: f32,
) -> CrossEntropy {
    reduce(logits, targets, ignore, smoothing, true)
}

fn reduce(
    logits: Tensor<2>,
    targets: Tensor<1, Int>,
    ignore: usize,
    smoothing: f32,
    mean: bool,
) -> CrossEntropy {
    let [rows, classes] = logits.dims();
    let (ids, tokens) = checked_targets(targets.clone(), rows, classes, ignore, smoothing);
    let scale = if mean {
        1.0 / tokens.max(1) as f32
    } else {
        1.0
    };
    if !fused::takes(&logits) {
        return plain(logits, targets, ignore, smoothing, scale, tokens);
    }
    let sums = Arc::new(OnceLock::new());
    let operation = Operator {
        targets: ids,
        ignore,
        smoothing,
        scale,
        sums: Arc::clone(&sums),
    };
    let (loss, _) = fused::run(operation, vec![logits.into_dispatch()]);
    let nll = sums.get().map_or(0.0, |sums: &Losses| sums.nll);
    CrossEntropy {
        loss: Tensor::from_dispatch(loss),
        nll,
        tokens,
    }
}

/// The targets as numbers, and how many of them are not `ignore`.
#[track_caller]
pub(super) fn checked_targets(
    targets: Tensor<1, Int>,
    rows: usize,
    classes: usize,
    ignore: usize,
    smoothing: f32,
) -> (Vec<i64>, usize) {
    expect_dims("targets", targets.dims(), [rows]);
    assert!(
        (0.0..=1.0).contains(&smoothing),
        "smoothing is {smoothing}, expected 0 to 1"
    );
    let ids: Vec<i64> = targets.into_data().iter::<i64>().collect();
    let ignored = ignored_id(ignore);
    let kept = |&id: &i64| Some(id) != ignored;
    let tokens = ids.iter().filter(|id| kept(id)).count();
    for (row, id) in ids.iter().enumerate().filter(|(_, id)| kept(id)) {
        assert!(
            (0..classes as i64).contains(id),
            "target {row} is {id}, expected a class from 0 to below {classes}"
        );
    }
    (ids, tokens)
}

/// `ignore` as a target; `None` where it is above all of them, so that nothing is ignored.
pub(super) fn ignored_id(ignore: usize) -> Option<i64> {
    i64::try_from(ignore).ok()
}

/// By plain tensor operations: the definition.
fn plain(
    logits: Tensor<2>,
    targets: Tensor<1, Int>,
    ignore: usize,
    smoothing: f32,
    scale: f32,
    tokens: usize,
) -> CrossEntropy {
    let [rows, classes] = logits.dims();
    let ignored = match ignored_id(ignore) {
        Some(id) => targets.clone().equal_elem(id),
        None => Tensor::full([rows], false, &targets.device()),
    };
    // The ignored id need not be a class, so it is replaced before the gather.
    let index = targets.mask_fill(ignored.clone(), 0).reshape([rows, 1]);
    let log_p = log_softmax(logits, 1);
    let nll = -log_p.clone().gather(1, index).reshape([rows]);
    let nll = nll.mask_fill(ignored.clone(), 0.0);
    // Without smoothing, a logit of -∞ would add ∞ · 0.
    let smoothed = match smoothing > 0.0 {
        false => nll.clone(),
        true => {
            let uniform = -log_p.sum_dim(1).reshape([rows]) / classes as f32;
            nll.clone() * (1.0 - smoothing) + uniform.mask_fill(ignored, 0.0) * smoothing
        }
    };
    let loss = sum(smoothed) * scale;
    let nll = nll.detach().into_data().iter::<f64>().sum();
    CrossEntropy { loss, nll, tokens }
}

#[derive(Debug)]
struct Operator {
    targets: Vec<i64>,
    ignore: usize,
    smoothing: f32,
    scale: f32,
    sums: Arc<OnceLock<Losses>>,
}

impl Operation for Operator {
    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let [mut logits]: [FlexTensor; 1] = inputs.try_into().expect("one input was given");
        let [rows, classes] = dims(&logits);
        let spec = Spec {
            rows,
            classes,
            targets: &self.targets,
            ignore: Some(self.ignore),
            smoothing: self.smoothing,
        };
        let (losses, saved) = if !tracked {
            (forward(&spec, numbers(&logits), None)?, Vec::new())
        } else if let Some(storage) = logits.try_storage_mut::<f32>() {
            (
                forward_backward(&spec, storage, self.scale, None)?,
                vec![logits],
            )
        } else {
            let mut gradient = numbers(&logits).to_vec();
            let losses = forward_backward(&spec, &mut gradient, self.scale, None)?;
            (losses, vec![tensor(gradient, [rows, classes])])
        };
        let loss = (losses.smoothed * f64::from(self.scale)) as f32;
        // The function that made this operation reads the sums; the operation runs once.
        let _ = self.sums.set(losses);
        Ok(Forward {
            output: tensor(vec![loss], [1]),
            beside: None,
            saved,
        })
    }

    fn backward(
        &self,
        mut saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let upstream = numbers(&gradient)[0];
        let mut d_logits = saved.pop().expect("the gradient was saved");
        if upstream != 1.0 {
            regard_kernels::loss::scale(d_logits.storage_mut(), upstream);
        }
        Ok(vec![Some(d_logits)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_takes_the_place_of_logits_that_nobody_else_holds() {
        let operation = Operator {
            targets: vec![1, 2],
            ignore: 9,
            smoothing: 0.1,
            scale: 1.0,
            sums: Arc::default(),
        };
        let logits = tensor(vec![0.5; 6], [2, 3]);
        let storage = numbers(&logits).as_ptr();
        let held = logits.clone();
        let copied = operation.forward(vec![logits], true).unwrap();
        assert_ne!(numbers(&copied.saved[0]).as_ptr(), storage);
        assert_eq!(numbers(&held), [0.5; 6]);
        let in_place = operation.forward(vec![held], true).unwrap();
        assert_eq!(numbers(&in_place.saved[0]).as_ptr(), storage);
        assert_eq!(numbers(&in_place.saved[0]), numbers(&copied.saved[0]));
    }
}
