//! What holds of any call: shapes, which keys a query may see, finite numbers, sums of weights.

use burn::tensor::{DType, Device, Tensor};
use regard_nn::{Observe, mask::Grid, normalize::Normalize, score::Score};

use super::{Problem, Run};
use crate::{
    compare::{dims, finite},
    tensors::{Spread, largest, numbers},
};

impl Problem {
    /// Whether no intermediate score or result can exceed the range of the precision.
    pub(super) fn is_bounded(&self) -> bool {
        let most = self.dtype.finfo().map_or(0.0, |info| info.max);
        let scale = match &self.attention.score {
            Score::Dot(_) => 1.0,
            Score::ScaledDot(score) => score.scale(self.size.max(1)),
            // The scale is applied after squaring.
            Score::Distance(score) => {
                score.scale(self.size.max(1)).abs().max(1.0)
                    * 4.0
                    * (self.query.largest() + self.key.largest())
            }
            Score::Cosine(score) => match &score.sharpening {
                Some(_) => 10.0 * (1.0 + self.query.largest() * self.size as f64),
                // The score of two equal vectors.
                None => {
                    let one = Tensor::ones([1, 1, 1, 1], (&Device::flex(), DType::F64));
                    largest(numbers(&score.forward(one.clone(), score.keys(one))))
                }
            },
            _ if self.spread == Spread::Wild => return false,
            _ => 10.0,
        };
        let of_bias = self.bias.as_ref().map_or(0.0, |bias| {
            let data = numbers(&bias.leaf(DType::F32, &Device::flex()));
            largest(data.into_iter().filter(|x| x.is_finite()))
        });
        let kernel = matches!(
            self.attention.normalize,
            Normalize::Softmax(_) | Normalize::Sink(_)
        );
        if !kernel && (self.spread == Spread::Wild || of_bias > 1e6 || scale > 1e6) {
            return false;
        }
        let product =
            scale.abs().max(1.0) * self.query.largest().max(1.0) * self.key.largest().max(1.0);
        let score = product * self.size as f64;
        score.is_finite()
            && score < most / 32.0
            && of_bias + score < 0.9 * most
            && self.value.largest() < most / 32.0 / self.raise()
    }

    /// Which keys a query may see, `[batch, heads, queries, keys]`.
    pub(super) fn seen(&self) -> Result<Vec<bool>, String> {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        let mask = self.attention.mask().clone() & self.mask.clone();
        let shape = [batch, heads, queries, keys];
        let seen = mask
            .tensor(&self.grid, &Device::flex())
            .map_err(|error| error.to_string())?;
        let mut seen: Vec<bool> = seen.expand(shape).into_data().iter::<bool>().collect();
        if let Some(bias) = &self.bias {
            let bias = numbers(&bias.leaf(DType::F32, &Device::flex()).expand(shape));
            seen.iter_mut()
                .zip(bias)
                .for_each(|(seen, bias)| *seen &= bias != f64::NEG_INFINITY);
        }
        if let Some(reach) = self.attention.score.reach() {
            seen.iter_mut()
                .enumerate()
                .for_each(|(i, seen)| *seen &= i % keys < reach);
        }
        Ok(seen)
    }

    pub(super) fn shapes(&self, run: &Run, observe: &Observe) -> Result<(), String> {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        let attended = &run.attended;
        dims(
            "context",
            attended.context.dims(),
            [batch, heads, queries, self.value_size],
        )?;
        if let Some(lse) = &attended.lse {
            dims("lse", lse.dims(), [batch, heads, queries])?;
        }
        let missing = || format!("{observe:?} was asked for and is not there");
        match observe {
            Observe::Nothing => Ok(()),
            Observe::Weights => {
                let found = attended.weights.as_ref().ok_or_else(missing)?.dims();
                dims("weights", found, [batch, heads, queries, keys])
            }
            Observe::Rows(rows) => {
                let found = attended.weights.as_ref().ok_or_else(missing)?.dims();
                dims("rows", found, [batch, heads, rows.len(), keys])
            }
            Observe::Entropy => {
                let found = attended.entropy.as_ref().ok_or_else(missing)?.dims();
                dims("entropy", found, [batch, heads, queries])
            }
            Observe::ColumnSums => {
                let found = attended.column_sums.as_ref().ok_or_else(missing)?.dims();
                dims("column sums", found, [batch, heads, keys])
            }
            Observe::TopK(k) => {
                let top = attended.top.as_ref().ok_or_else(missing)?;
                dims(
                    "top weights",
                    top.weights.dims(),
                    [batch, heads, queries, *k],
                )?;
                dims("top keys", top.keys.dims(), [batch, heads, queries, *k])
            }
        }
    }

    /// Checks what must hold of any weights that were computed from finite scores.
    pub(super) fn invariants(
        &self,
        path: &str,
        weights: &[f64],
        seen: &[bool],
        run: &Run,
    ) -> Result<(), String> {
        finite(&format!("{path}: weights"), weights)?;
        finite(&format!("{path}: context"), &run.context)?;
        self.gradients_are_finite(path, run)?;
        // Local-p multiplies weights by a Gaussian. (Scores that are used as weights may be negative, with local-p
        // too.)
        let whole = match &self.attention.normalize {
            Normalize::Softmax(_)
            | Normalize::Sparsemax(_)
            | Normalize::Entmax15(_)
            | Normalize::Hardmax(_) => self.attention.predictor.is_none(),
            Normalize::Sink(_) => false,
            _ => return Ok(()),
        };
        // Each weight is rounded, and so is each addend of its denominator.
        let rounding = match self.dtype.finfo() {
            Some(info) => 1e-4 + (self.grid.keys + 4) as f64 * info.epsilon,
            None => 1e-4,
        };
        for (i, (row, seen)) in weights
            .chunks(self.grid.keys)
            .zip(seen.chunks(self.grid.keys))
            .enumerate()
        {
            let sum: f64 = row.iter().sum();
            if let Some(weight) = row.iter().find(|&&weight| weight < 0.0) {
                return Err(format!("{path}: row {i} has a weight {weight}"));
            }
            let expected = if seen.contains(&true) { 1.0 } else { 0.0 };
            if whole && (sum - expected).abs() > rounding || sum > expected + rounding {
                return Err(format!(
                    "{path}: row {i} sums to {sum}, expected {expected}"
                ));
            }
        }
        Ok(())
    }
}
