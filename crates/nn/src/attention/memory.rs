//! A source prepared once and read at every decoder step.

use burn::tensor::Tensor;

use super::{Attention, AttentionError, AttentionOptions, Observe, Sampled};
use crate::{
    bridge::with_axis,
    heads::row_index,
    mask::{Mask, PaddingMask},
    precision::check_weights,
    recurrent::check_shape,
    score::Sizes,
};

/// A source prepared for attention.
#[derive(Debug, Clone)]
pub struct Memory {
    /// The keys, which queries are scored against: `[batch, keys, key size]`.
    pub keys: Tensor<3>,
    /// The values, which are read: `[batch, keys, value size]`.
    pub values: Tensor<3>,
    /// Which positions are real.
    pub keep: PaddingMask,
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
    /// State for the next step: pass it to [`AttentionOptions::carried`].
    pub carried: Option<Tensor<4>>,
}

impl Memory {
    /// The sources at `rows`, in that order (rows may repeat).
    ///
    /// # Errors
    /// If a row is not there.
    pub fn select(&self, rows: &[usize]) -> Result<Self, AttentionError> {
        let batches = [
            self.keys.dims()[0],
            self.values.dims()[0],
            self.keep.batch(),
        ];
        let batch = batches.into_iter().min().unwrap_or(0);
        let index = row_index(rows, batch, &self.keys.device())?;
        Ok(Self {
            keys: self.keys.clone().select(0, index.clone()),
            values: self.values.clone().select(0, index),
            keep: self.keep.select(rows),
        })
    }
}

/// Checks that `keep` has the sentences and positions of `annotations [batch, keys, size]`.
fn check_keep(keep: &PaddingMask, annotations: &Tensor<3>) -> Result<(), AttentionError> {
    let [batch, keys, _] = annotations.dims();
    let meaning = "[batch, positions] of the annotations";
    check_shape(
        "keep",
        [keep.batch(), keep.length()],
        [batch, keys],
        meaning,
    )
}

impl Attention {
    /// Prepares annotations `[batch, keys, annotation size]`: zeros the padding and computes the keys.
    ///
    /// # Errors
    /// Annotations of another size or precision than the score was made for; a `keep` of another batch or length.
    pub fn memory(
        &self,
        annotations: Tensor<3>,
        keep: PaddingMask,
    ) -> Result<Memory, AttentionError> {
        let [_, _, size] = annotations.dims();
        if let Sizes::Made { annotation, .. } = self.score.sizes()
            && size != annotation
        {
            return Err(AttentionError::shape(
                "annotations",
                &annotations.dims(),
                format!("size {annotation} for the {} score", self.score.name()),
                "make the score for annotations of this size",
            ));
        }
        check_weights("annotations", annotations.dtype(), &self.score)?;
        check_keep(&keep, &annotations)?;
        let values = keep.zero_padding(annotations);
        Ok(Memory {
            keys: self.score.keys(values.clone()),
            values,
            keep,
        })
    }

    /// Reads `memory` with `query [batch, queries, query size]`. The weights are always returned; the padding of the
    /// memory is masked in addition to what `call` says, and local-m counts from [`AttentionOptions::first_query`].
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn read(
        &self,
        query: Tensor<3>,
        memory: &Memory,
        call: AttentionOptions<'_>,
    ) -> Result<Reading, AttentionError> {
        check_keep(&memory.keep, &memory.values)?;
        let one_head = |x: Tensor<3>| with_axis::<3, 4>(x, 1);
        let mut call = AttentionOptions {
            observe: Observe::Weights,
            ..call
        };
        if !memory.keep.is_full() {
            call = call.mask(Mask::padding(memory.keep.clone()));
        }
        let (keys, values) = (memory.keys.clone(), memory.values.clone());
        let query = one_head(query);
        let problem = self.problem(query, one_head(keys), one_head(values), true, call)?;
        let attended = problem.solve(self, None)?;
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
