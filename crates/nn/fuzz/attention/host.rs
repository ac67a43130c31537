//! Weights, context and observations of both paths against a softmax in `f64` on the host.

use burn::tensor::{DType, Device, Tensor};
use regard_nn::{AttentionOptions, Observe, mask::Grid, normalize::Normalize};

use super::{Problem, Run};
use crate::{
    compare::{close, distance, finite},
    mechanism,
    tensors::{Spread, largest, numbers},
};

impl Problem {
    /// Scores, by the plain path.
    fn scores(&self, dtype: DType) -> Result<Vec<f64>, String> {
        let attention = mechanism::in_precision(&self.attention, dtype, &self.device);
        let mut call = AttentionOptions::default()
            .mask(self.mask.clone())
            .first_query(self.grid.first_query);
        call.bias = self
            .bias
            .as_ref()
            .map(|bias| bias.leaf(dtype, &self.device));
        call.alibi = self.alibi.as_ref();
        let [query, key] = [&self.query, &self.key].map(|input| input.leaf(dtype, &self.device));
        let scores = attention
            .scores(query, key, call)
            .map_err(|error| error.to_string())?;
        Ok(numbers(&scores))
    }

    /// Compares both paths with a softmax on the host.
    pub(super) fn compare(
        &self,
        seen: &[bool],
        weights: &[Vec<f64>; 2],
        runs: [&Run; 2],
        observe: &Observe,
    ) -> Result<(), String> {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        let single = self.scores(DType::F32)?;
        let (scores, error) = match self.spread {
            // The sum with a bias is rounded once, in the same way on all paths.
            Spread::Exact => (single, 1e-5),
            _ => {
                let exact = self.scores(DType::F64)?;
                let visible = |x: &[f64]| -> Vec<f64> {
                    x.iter()
                        .zip(seen)
                        .filter(|(_, seen)| **seen)
                        .map(|(x, _)| *x)
                        .collect()
                };
                let (a, b) = (visible(&single), visible(&exact));
                let error = 8.0 * distance(&a, &b) + 4e-6 * (1.0 + largest(b.iter().copied()));
                (exact, error)
            }
        };
        if error > 0.05 {
            return Ok(()); // any weights are valid
        }
        let sinks = match &self.attention.normalize {
            Normalize::Sink(sink) => match &sink.logits {
                Some(logits) => Some(numbers(&logits.val())),
                None => Some(vec![self.fixed_sink()?; heads]),
            },
            _ => None,
        };
        let mut host = vec![0.0; scores.len()];
        let mut lse = vec![];
        for (i, row) in host.chunks_mut(keys).enumerate() {
            let scores = &scores[i * keys..][..keys];
            let seen = &seen[i * keys..][..keys];
            let sink = sinks.as_ref().map(|sinks| sinks[i / queries % heads]);
            let top = scores
                .iter()
                .zip(seen)
                .filter(|(_, seen)| **seen)
                .map(|(s, _)| *s);
            let top = top.chain(sink).fold(f64::NEG_INFINITY, f64::max);
            for ((weight, score), seen) in row.iter_mut().zip(scores).zip(seen) {
                *weight = if *seen { (score - top).exp() } else { 0.0 };
            }
            let sum = row.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - top).exp());
            if sum > 0.0 {
                row.iter_mut().for_each(|weight| *weight /= sum);
            }
            lse.push(if sum > 0.0 {
                top + sum.ln()
            } else {
                f64::NEG_INFINITY
            });
        }
        let of_weight = (2.0 * error).exp_m1() + 4e-6;
        let values = numbers(&self.value.leaf(DType::F32, &self.device));
        let group = heads / self.key_heads;
        let value = |row: usize, key: usize, e: usize| {
            let (b, h) = (row / queries / heads, row / queries % heads);
            values[((b * self.key_heads + h / group) * keys + key) * self.value_size + e]
        };
        let most = self.value.largest();
        let of_context = (keys as f64 * of_weight + 1e-6 * (keys as f64).sqrt())
            * most.max(1e-30)
            * self.raise();
        let mut context = vec![0.0; batch * heads * queries * self.value_size];
        for (i, to) in context.iter_mut().enumerate() {
            let (row, e) = (i / self.value_size, i % self.value_size);
            *to = (0..keys)
                .map(|key| host[row * keys + key] * value(row, key, e))
                .sum();
        }
        for (path, (weights, run)) in ["auto", "plain"].iter().zip(weights.iter().zip(runs)) {
            close(&format!("{path}: weights"), weights, &host, of_weight)?;
            if !self.drops() {
                close(
                    &format!("{path}: context"),
                    &run.context,
                    &context,
                    of_context,
                )?;
            }
            if let Some(found) = &run.attended.lse {
                for (i, (found, expected)) in numbers(found).into_iter().zip(&lse).enumerate() {
                    let tolerance = error + 4e-6 * (1.0 + expected.abs());
                    close(
                        &format!("{path}: lse of row {i},"),
                        &[found],
                        &[*expected],
                        tolerance,
                    )?;
                }
            }
            self.observed(path, run, observe, &host, of_weight, sinks.is_some())?;
        }
        close(
            "context by both paths",
            &runs[0].context,
            &runs[1].context,
            2.0 * of_context,
        )?;
        if !self.device.is_autodiff() {
            return Ok(());
        }
        self.slopes(&host, runs, of_weight)
    }

    /// The score of a fixed sink as a call in `f32` rounds it: the `lse` of a row without keys.
    fn fixed_sink(&self) -> Result<f64, String> {
        let Normalize::Sink(sink) = &self.attention.normalize else {
            return Err("no sink".to_owned());
        };
        let lse = sink
            .forward(
                Tensor::<4>::zeros([1, 1, 1, 0], (&Device::flex(), DType::F32)),
                None,
            )
            .lse;
        lse.map(|lse| lse.into_scalar::<f64>())
            .ok_or_else(|| "a sink without lse".to_owned())
    }

    fn observed(
        &self,
        path: &str,
        run: &Run,
        observe: &Observe,
        host: &[f64],
        tolerance: f64,
        sink: bool,
    ) -> Result<(), String> {
        let Grid {
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        let attended = &run.attended;
        let name = |what: &str| format!("{path}: {what}");
        match observe {
            Observe::Nothing | Observe::Weights => Ok(()),
            Observe::Rows(rows) => {
                let found = attended.weights.as_ref().map(numbers).unwrap_or_default();
                let mut expected = vec![];
                for head in 0..self.grid.batch * heads {
                    for &row in rows {
                        expected.extend_from_slice(&host[(head * queries + row) * keys..][..keys]);
                    }
                }
                close(&name("rows"), &found, &expected, tolerance)
            }
            Observe::Entropy => {
                let found = attended.entropy.as_ref().map(numbers).unwrap_or_default();
                finite(&name("entropy"), &found)?;
                if sink {
                    return Ok(());
                }
                let of = |row: &[f64]| {
                    -row.iter()
                        .filter(|w| **w > 0.0)
                        .map(|w| w * w.ln())
                        .sum::<f64>()
                };
                let expected: Vec<f64> = host.chunks(keys).map(of).collect();
                close(
                    &name("entropy"),
                    &found,
                    &expected,
                    40.0 * keys as f64 * tolerance + 1e-4,
                )
            }
            Observe::ColumnSums => {
                let found = attended
                    .column_sums
                    .as_ref()
                    .map(numbers)
                    .unwrap_or_default();
                let mut expected = vec![0.0; found.len()];
                for (i, weight) in host.iter().enumerate() {
                    expected[i / keys / queries * keys + i % keys] += weight;
                }
                close(
                    &name("column sums"),
                    &found,
                    &expected,
                    (queries + 1) as f64 * tolerance,
                )
            }
            Observe::TopK(k) => {
                let top = attended.top.as_ref().ok_or("no top")?;
                let found = numbers(&top.weights);
                let at: Vec<i64> = top.keys.clone().into_data().iter::<i64>().collect();
                for (i, row) in host.chunks(keys).enumerate() {
                    let mut sorted = row.to_vec();
                    sorted.sort_by(|a, b| b.total_cmp(a));
                    let (found, at) = (&found[i * k..][..*k], &at[i * k..][..*k]);
                    close(&name("top weights"), found, &sorted[..*k], tolerance)?;
                    for (weight, &key) in found.iter().zip(at) {
                        let right = match key {
                            -1 => *weight == 0.0,
                            _ => (row[key as usize] - weight).abs() <= tolerance,
                        };
                        if !right {
                            return Err(format!("{path}: row {i} has {weight} at key {key}"));
                        }
                    }
                }
                Ok(())
            }
        }
    }
}
