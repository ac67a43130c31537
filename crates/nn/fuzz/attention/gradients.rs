//! Gradients of both paths: computed by hand, or in `f64`.

use burn::tensor::DType;
use regard_nn::{Observe, Path, mask::Grid, score::Score};

use super::{Problem, Run};
use crate::{
    compare::{close, distance, finite},
    tensors::{Input, Spread, numbers},
};

/// The gradients of a full call.
const GRADIENTS: [&str; 4] = [
    "gradient of query",
    "gradient of key",
    "gradient of value",
    "gradient of bias",
];

impl Problem {
    /// Gradients must be finite if their precision can hold them: those of keys of 1e30 and values of 1e30 are 1e60.
    pub(super) fn gradients_are_finite(&self, which: &str, run: &Run) -> Result<(), String> {
        let most = self.dtype.finfo().map_or(0.0, |info| info.max);
        for ((name, slope), largest) in GRADIENTS
            .iter()
            .zip(&run.gradients)
            .zip(self.largest_gradients())
        {
            if largest < most {
                finite(&format!("{which}: {name}"), slope)?;
            }
        }
        Ok(())
    }

    /// Upper bounds of the gradients.
    fn largest_gradients(&self) -> [f64; 4] {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        let most = self.value.largest() * self.value_size as f64 * self.raise();
        let scale = match &self.attention.score {
            Score::ScaledDot(score) => score.scale(self.size).abs(),
            // The derivative at a vector is β over its length.
            Score::Cosine(_) if self.spread == Spread::Wild => f64::INFINITY,
            _ => 4.0,
        };
        let (of_query, of_key) = (self.query.largest().max(1.0), self.key.largest().max(1.0));
        let rows = (queries * heads / self.key_heads) as f64;
        [
            most * scale * of_key * keys as f64,
            most * scale * of_query * rows,
            rows * self.raise(),
            most * (batch * heads * queries * keys) as f64,
        ]
    }

    /// Gradients: computed by hand where scores are products alone; else both paths are compared with the plain one
    /// in `f64`.
    pub(super) fn slopes(
        &self,
        host: &[f64],
        runs: [&Run; 2],
        of_weight: f64,
    ) -> Result<(), String> {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        let group = heads / self.key_heads;
        let natural = self.largest_gradients();
        if self.spread != Spread::Exact || self.drops() || self.attention.softcap().is_some() {
            if self.spread != Spread::Moderate {
                return Ok(());
            }
            let exact = self.run(Path::Plain, &Observe::Nothing, DType::F64, true);
            let exact = exact.map_err(|error| format!("in f64: {error}"))?.gradients;
            for (i, exact) in exact.iter().enumerate() {
                let plain = &runs[1].gradients[i];
                let tolerance = 8.0 * distance(plain, exact) + 1e-4 * natural[i];
                close(GRADIENTS[i], &runs[0].gradients[i], exact, tolerance)?;
            }
            return Ok(());
        }
        let Score::ScaledDot(score) = &self.attention.score else {
            return Ok(());
        };
        let scale = score.scale(self.size);
        let data = |input: &Input<4>| numbers(&input.leaf(DType::F32, &self.device));
        let (query, key, value) = (data(&self.query), data(&self.key), data(&self.value));
        let (size, value_size) = (self.size, self.value_size);
        let upstream: Vec<f64> = self
            .upstream([batch, heads, queries, value_size])
            .iter::<f64>()
            .collect();
        let mut slopes = [
            vec![0.0; query.len()],
            vec![0.0; key.len()],
            vec![0.0; value.len()],
        ];
        for row in 0..batch * heads * queries {
            let (b, h) = (row / queries / heads, row / queries % heads);
            let head = (b * self.key_heads + h / group) * keys;
            let up = &upstream[row * value_size..][..value_size];
            let weights = &host[row * keys..][..keys];
            let of_weight: Vec<f64> = (0..keys)
                .map(|key| {
                    (0..value_size)
                        .map(|e| up[e] * value[(head + key) * value_size + e])
                        .sum()
                })
                .collect();
            let mean: f64 = weights.iter().zip(&of_weight).map(|(w, d)| w * d).sum();
            for j in 0..keys {
                let of_score = weights[j] * (of_weight[j] - mean) * scale;
                for d in 0..size {
                    slopes[0][row * size + d] += of_score * key[(head + j) * size + d];
                    slopes[1][(head + j) * size + d] += of_score * query[row * size + d];
                }
                for e in 0..value_size {
                    slopes[2][(head + j) * value_size + e] += weights[j] * up[e];
                }
            }
        }
        for (path, run) in ["auto", "plain"].iter().zip(runs) {
            for (i, expected) in slopes.iter().enumerate() {
                let tolerance = 4.0 * (of_weight + 1e-6) * natural[i];
                close(
                    &format!("{path}: {}", GRADIENTS[i]),
                    &run.gradients[i],
                    expected,
                    tolerance,
                )?;
            }
        }
        Ok(())
    }
}
