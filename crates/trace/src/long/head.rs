//! One head of a long text.

use std::ops::Range;

use regard_kernels::{Attention, KernelError, View, dot, pool::Kind};

use crate::ROW_SUM_TOLERANCE;

/// The largest query or key that is read: no product of two rows overflows.
const LARGEST: f32 = 1e15;

/// Queries, keys and `lse` of one head, in memory.
#[derive(Debug, Clone)]
pub struct LongHead {
    /// `[length, dim]`
    pub(super) query: Vec<f32>,
    /// `[length, dim]`
    pub(super) key: Vec<f32>,
    /// `[length, 3]`
    pub(super) lse: Vec<f32>,
    pub(super) length: usize,
    pub(super) dim: usize,
    pub(super) attention: Attention<'static>,
}

impl LongHead {
    /// A sentence, if numbers are not those of a head: the sums of some rows tell.
    pub(super) fn check(&self) -> Result<(), String> {
        let large = |x: &&f32| x.is_nan() || x.abs() > LARGEST;
        if let Some(number) = self.query.iter().chain(&self.key).find(large) {
            return Err(format!("a query or key holds {number}"));
        }
        if let Some(number) = self.lse.iter().find(|x| x.is_nan() || **x == f32::INFINITY) {
            return Err(format!("an lse holds {number}"));
        }
        let last = self.length - 1;
        let some = [0, last / 3, last / 2, last];
        let rows = self.rows(&some).map_err(|error| error.to_string())?;
        for (row, weights) in some.iter().zip(rows.chunks_exact(self.length)) {
            let sum: f64 = weights.iter().map(|&w| f64::from(w)).sum();
            if sum != 0.0 && (sum - 1.0).abs() > ROW_SUM_TOLERANCE {
                return Err(format!(
                    "the weights of query {row} sum to {sum:.4}, not to 1"
                ));
            }
        }
        Ok(())
    }

    /// How many tokens there are.
    pub fn length(&self) -> usize {
        self.length
    }

    fn views(&self) -> [View<'_>; 2] {
        let shape = [1, 1, self.length, self.dim];
        [&self.query, &self.key].map(|numbers| View::heads_first(numbers, shape))
    }

    /// The weights of these queries, `[queries, length]`.
    ///
    /// # Errors
    /// [`KernelError`] for a query that is not there.
    pub fn rows(&self, queries: &[usize]) -> Result<Vec<f32>, KernelError> {
        let mut weights = vec![0.0; queries.len() * self.length];
        let observe = dot::Observe {
            rows: Some((queries, &mut weights)),
            ..dot::Observe::default()
        };
        self.observe(observe)?;
        Ok(weights)
    }

    /// Weights of these queries and keys in `rows` times `columns` cells, see [`dot::Pooled`].
    ///
    /// # Errors
    /// [`KernelError`] for a part that is not there, and more cells than there are weights.
    pub fn pooled(
        &self,
        queries: Range<usize>,
        keys: Range<usize>,
        rows: usize,
        columns: usize,
        kind: Kind,
    ) -> Result<Vec<f32>, KernelError> {
        let mut cells = vec![0.0; rows * columns];
        let [query, key] = self.views();
        let part = dot::Pooled {
            queries,
            keys,
            rows,
            columns,
            kind,
            cells: &mut cells,
        };
        dot::pool(&self.attention, query, key, &self.lse, part)?;
        Ok(cells)
    }

    /// Fills what `observe` asks for.
    ///
    /// # Errors
    /// As [`dot::observe()`].
    pub fn observe(&self, observe: dot::Observe) -> Result<(), KernelError> {
        let [query, key] = self.views();
        dot::observe(&self.attention, query, key, &self.lse, observe)
    }
}
