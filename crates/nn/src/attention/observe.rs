//! What was asked of the weights, from the weights.

use burn::tensor::{Int, Tensor, TensorData};

use super::{Attended, Observe, Top};

/// The context with what `observe` asks for.
pub(super) fn report(context: Tensor<4>, weights: Tensor<4>, observe: &Observe) -> Attended {
    let mut attended = Attended::of(context);
    match observe {
        Observe::Nothing => {}
        Observe::Weights => attended.weights = Some(weights),
        Observe::Rows(rows) => {
            let index: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
            let index = TensorData::new(index, [rows.len()]);
            let index = Tensor::<1, Int>::from_data(index, &weights.device());
            attended.weights = Some(weights.select(2, index));
        }
        Observe::Entropy => attended.entropy = Some(entropy(weights)),
        Observe::ColumnSums => attended.column_sums = Some(weights.sum_dim(2).squeeze_dim(2)),
        Observe::TopK(k) => attended.top = Some(top(weights, *k)),
    }
    attended
}

/// `-Σ α ln α`, with `0 ln 0 = 0`.
fn entropy(weights: Tensor<4>) -> Tensor<3> {
    let logarithms = weights.clone().clamp_min(f32::MIN_POSITIVE).log();
    (weights * logarithms).sum_dim(3).squeeze_dim::<3>(3).neg()
}

/// The order is made on the host: Burn's sort promises no order of equal weights.
fn top(weights: Tensor<4>, k: usize) -> Top {
    let [batch, heads, queries, keys] = weights.dims();
    let values: Vec<f32> = weights.clone().into_data().iter::<f32>().collect();
    let mut order: Vec<usize> = Vec::with_capacity(keys);
    let mut best = Vec::with_capacity(batch * heads * queries * k);
    for row in values.chunks_exact(keys) {
        order.clear();
        order.extend(0..keys);
        let better = |a: &usize, b: &usize| row[*b].total_cmp(&row[*a]).then(a.cmp(b));
        if k < keys {
            order.select_nth_unstable_by(k, better);
        }
        order[..k].sort_unstable_by(better);
        best.extend(order[..k].iter().map(|&key| key as i32));
    }
    let best = TensorData::new(best, [batch, heads, queries, k]);
    let keys = Tensor::<4, Int>::from_data(best, &weights.device());
    Top {
        weights: weights.gather(3, keys.clone()),
        keys,
    }
}
