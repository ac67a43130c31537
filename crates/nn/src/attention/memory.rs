//! A source prepared once and read at every decoder step.

use burn::tensor::{Int, Tensor, TensorData};

use super::{Attention, AttentionError, Call, Observe, Sampled};
use crate::mask::{Keep, Mask};

/// A source prepared for attention.
#[derive(Debug, Clone)]
pub struct Memory {
    /// What queries are scored against: `[batch, keys, key size]`.
    pub keys: Tensor<3>,
    /// What is read: `[batch, keys, value size]`.
    pub values: Tensor<3>,
    /// Which positions are real.
    pub keep: Keep,
}

/// What a decoder gets from reading a [`Memory`].
#[derive(Debug, Clone)]
pub struct Reading {
    /// The weighted sum of the values: `[batch, queries, value size]`.
    pub context: Tensor<3>,
    /// One row a query: `[batch, queries, keys]`. Rows sum to 1 under softmax, except under local-p, whose Gaussian
    /// is not renormalised, and where nothing may be seen (0).
    pub weights: Tensor<3>,
    /// The keys that hard attention drew.
    pub sampled: Option<Sampled>,
    /// What the next step goes on from: pass it to [`Call::carried`].
    pub carried: Option<Tensor<4>>,
}

impl Memory {
    /// The sources at `rows`, in that order (rows may repeat).
    pub fn select(&self, rows: &[usize]) -> Self {
        let index: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
        let index: Tensor<1, Int> =
            Tensor::from_data(TensorData::new(index, [rows.len()]), &self.keys.device());
        Self {
            keys: self.keys.clone().select(0, index.clone()),
            values: self.values.clone().select(0, index),
            keep: self.keep.select(rows),
        }
    }
}

impl Attention {
    /// Prepares annotations `[batch, keys, annotation size]`: zeros the padding and computes the keys.
    pub fn memory(&self, annotations: Tensor<3>, keep: Keep) -> Memory {
        let values = keep.zero_padding(annotations);
        Memory {
            keys: self.score.keys(values.clone()),
            values,
            keep,
        }
    }

    /// Reads `memory` with `query [batch, queries, query size]`. The weights are always reported; the padding of the
    /// memory is masked beside what `call` says, and local-m counts from [`Call::first_query`].
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn read(
        &self,
        query: Tensor<3>,
        memory: &Memory,
        call: Call<'_>,
    ) -> Result<Reading, AttentionError> {
        let one_head = |x: Tensor<3>| x.unsqueeze_dim::<4>(1);
        let mut call = Call {
            observe: Observe::Weights,
            ..call
        };
        if !memory.keep.is_full() {
            call = call.mask(Mask::padding(memory.keep.clone()));
        }
        let (keys, values) = (memory.keys.clone(), memory.values.clone());
        let query = one_head(query);
        let problem = self.problem(query, one_head(keys), one_head(values), true, call)?;
        let attended = problem.solve(self)?;
        let weights = attended
            .weights
            .unwrap_or_else(|| unreachable!("weights were asked for"));
        Ok(Reading {
            context: attended.context.squeeze_dim(1),
            weights: weights.squeeze_dim(1),
            sampled: attended.sampled,
            carried: attended.carried,
        })
    }
}
