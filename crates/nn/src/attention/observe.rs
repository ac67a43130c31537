//! Computes what [`Observe`] asks for from the weights.

use burn::tensor::{Int, Tensor, TensorData};

use super::{Observe, Top};
use crate::precision::wide;

/// What was observed of the weights of some queries.
#[derive(Debug, Clone, Default)]
pub(crate) struct Observed {
    pub(crate) weights: Option<Tensor<4>>,
    pub(crate) entropy: Option<Tensor<3>>,
    pub(crate) column_sums: Option<Tensor<3>>,
    pub(crate) top: Option<Top>,
}

impl Observed {
    /// What `observe` asks for of `weights [batch, heads, queries, keys]`.
    pub(crate) fn new(weights: Tensor<4>, observe: &Observe) -> Self {
        let mut observed = Self::default();
        match observe {
            Observe::Nothing => {}
            Observe::Weights => observed.weights = Some(weights),
            Observe::Rows(rows) => observed.weights = Some(select_rows(weights, rows)),
            Observe::Entropy => observed.entropy = Some(entropy(weights)),
            Observe::ColumnSums => observed.column_sums = Some(weights.sum_dim(2).squeeze_dim(2)),
            Observe::TopK(k) => observed.top = Some(top(weights, *k)),
        }
        observed
    }

    /// What was observed of all queries, from that of some after others: one part or more.
    #[cfg(feature = "gpu")]
    pub(crate) fn join(parts: &[Self]) -> Self {
        fn all<T>(parts: &[Observed], of: impl Fn(&Observed) -> Option<T>) -> Option<Vec<T>> {
            parts.iter().map(of).collect()
        }
        let weights = all(parts, |part| part.weights.clone());
        let entropy = all(parts, |part| part.entropy.clone());
        let sums = all(parts, |part| part.column_sums.clone());
        let top = all(parts, |part| part.top.clone());
        Self {
            weights: weights.map(|parts| Tensor::cat(parts, 2)),
            entropy: entropy.map(|parts| Tensor::cat(parts, 2)),
            column_sums: sums.and_then(|parts| parts.into_iter().reduce(|a, b| a + b)),
            top: top.map(|parts| Top {
                keys: Tensor::cat(parts.iter().map(|top| top.keys.clone()).collect(), 2),
                weights: Tensor::cat(parts.into_iter().map(|top| top.weights).collect(), 2),
            }),
        }
    }

    /// The same numbers without a gradient.
    pub(super) fn detach(self) -> Self {
        Self {
            weights: self.weights.map(Tensor::detach),
            entropy: self.entropy.map(Tensor::detach),
            column_sums: self.column_sums.map(Tensor::detach),
            top: self.top.map(|top| Top {
                weights: top.weights.detach(),
                ..top
            }),
        }
    }
}

/// `x [batch, heads, queries, keys]` at `rows`, in that order.
fn select_rows(x: Tensor<4>, rows: &[usize]) -> Tensor<4> {
    if rows.is_empty() {
        let [batch, heads, _, keys] = x.dims();
        return Tensor::zeros([batch, heads, 0, keys], (&x.device(), x.dtype()));
    }
    let index: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
    let index = TensorData::new(index, [rows.len()]);
    let index = Tensor::<1, Int>::from_data(index, &x.device());
    x.select(2, index)
}

/// `-Σ α ln α`, with `0 ln 0 = 0`.
fn entropy(weights: Tensor<4>) -> Tensor<3> {
    let dtype = weights.dtype();
    let weights = weights.cast(wide(dtype));
    let logarithms = weights.clone().clamp_min(f32::MIN_POSITIVE).log();
    let sums = (weights * logarithms).sum_dim(3).squeeze_dim::<3>(3);
    sums.neg().cast(dtype)
}

/// Sorted on the host, as Burn's sort does not promise an order of equal weights. NaN comes before all numbers, so that
/// it cannot be missed.
fn top(weights: Tensor<4>, k: usize) -> Top {
    let [batch, heads, queries, keys] = weights.dims();
    let values: Vec<f32> = weights.clone().into_data().iter::<f32>().collect();
    let mut order: Vec<usize> = Vec::with_capacity(keys);
    let mut best = Vec::with_capacity(batch * heads * queries * k);
    for row in values.chunks_exact(keys) {
        order.clear();
        order.extend(0..keys);
        let size = |key: usize| {
            if row[key].is_nan() {
                f32::NAN
            } else {
                row[key]
            }
        };
        let better = |a: &usize, b: &usize| size(*b).total_cmp(&size(*a)).then(a.cmp(b));
        if k < keys {
            order.select_nth_unstable_by(k, better);
        }
        order[..k].sort_unstable_by(better);
        best.extend(order[..k].iter().map(|&key| key as i32));
    }
    let best = TensorData::new(best, [batch, heads, queries, k]);
    let keys = Tensor::<4, Int>::from_data(best, &weights.device());
    let weights = weights.gather(3, keys.clone());
    let nothing = weights.clone().equal_elem(0.0);
    Top {
        weights,
        keys: keys.mask_fill(nothing, -1),
    }
}
