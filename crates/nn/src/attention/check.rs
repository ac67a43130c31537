//! Checks of one reading, before anything is computed.

use burn::tensor::{DType, Tensor};

use super::{Attention, AttentionError, AttentionOptions, Observe};
use crate::{
    mask::{Grid, Mask},
    precision::{as_read, check_precision, check_weights},
    score::{Score, Sizes},
};

/// A reading whose shapes and settings fit together.
pub(super) struct Problem<'a> {
    pub(super) query: Tensor<4>, // [batch, heads, queries, query size]
    // May be stored in half the precision of the query: see `Problem::widen`.
    pub(super) key: Tensor<4>, // [batch, key heads, keys, annotation or key size]
    pub(super) value: Tensor<4>, // [batch, key heads, keys, value size]
    /// Whether `key` went through [`ScoreFunction::prepared_keys`](crate::score::ScoreFunction::prepared_keys) already.
    pub(super) prepared: bool,
    /// All masks that hide keys, except the window of local-p.
    pub(super) mask: Mask,
    pub(super) grid: Grid,
    pub(super) call: AttentionOptions<'a>,
}

const SIZES: &str =
    "query is [batch, heads, queries, size], key and value are [batch, key heads, keys, size]";

const LOCAL_P: &str = "local-p";

impl Attention {
    pub(super) fn problem<'a>(
        &self,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        prepared: bool,
        mut call: AttentionOptions<'a>,
    ) -> Result<Problem<'a>, AttentionError> {
        let [batch, heads, queries, _] = query.dims();
        let [key_batch, key_heads, keys, _] = key.dims();
        let [_, _, _, value_size] = value.dims();
        if key_batch != batch {
            let expected = format!("batch {batch}, as the query");
            return Err(AttentionError::shape("key", &key.dims(), expected, SIZES));
        }
        if heads > 0 && (key_heads == 0 || heads % key_heads != 0) {
            return Err(AttentionError::shape(
                "key",
                &key.dims(),
                format!("a number of heads that divides the query's {heads}"),
                "each key head serves the same number of query heads",
            ));
        }
        if value.dims() != [batch, key_heads, keys, value_size] {
            let expected = format!("[{batch}, {key_heads}, {keys}, any], as the key");
            return Err(AttentionError::shape(
                "value",
                &value.dims(),
                expected,
                SIZES,
            ));
        }
        for (field, x) in [("query", &query), ("key", &key), ("value", &value)] {
            if x.dims()[3] == 0 {
                let expected = "a size of at least 1";
                return Err(AttentionError::shape(field, &x.dims(), expected, SIZES));
            }
        }
        self.check_sizes(&query, &key, prepared)?;
        let dtype = query.dtype();
        check_weights("query", dtype, self)?;
        for (field, found) in [("key", key.dtype()), ("value", value.dtype())] {
            check_precision(field, as_read(found, dtype), dtype, "the query")?;
        }
        let grid = Grid {
            batch,
            heads,
            queries,
            keys,
            first_query: call.first_query,
            first_key: call.first_key,
        };
        let mut mask = self.mask.clone() & std::mem::take(&mut call.mask);
        if let Some(reach) = self.score.reach().filter(|&reach| reach < keys) {
            mask = mask & Mask::reach(reach);
        }
        self.check_call(&call, &grid, dtype)?;
        self.check_mask(&mask, &grid)?;
        let mut problem = Problem {
            query,
            key,
            value,
            prepared,
            mask,
            grid,
            call,
        };
        if !matches!(self.score, Score::Dot(_) | Score::ScaledDot(_)) {
            problem.widen();
        }
        Ok(problem)
    }

    /// Checks what can be checked of a call without its query, key, value and mask: `dtype` is the precision of its query.
    pub(crate) fn check_call(
        &self,
        call: &AttentionOptions<'_>,
        grid: &Grid,
        dtype: DType,
    ) -> Result<(), AttentionError> {
        for (field, x) in [("bias", &call.bias), ("carried", &call.carried)] {
            let found = x.as_ref().map_or(dtype, Tensor::dtype);
            check_precision(field, found, dtype, "the query")?;
        }
        self.check_settings(grid.heads, dtype)?;
        self.check_first_key(call)?;
        check_bias(call, grid)?;
        check_alibi(call, grid.heads)?;
        check_observe(&call.observe, grid)?;
        self.check_carried(call, grid)
    }

    /// Checks that `mask`, all that hides keys, fits the sizes and the mechanism.
    pub(crate) fn check_mask(&self, mask: &Mask, grid: &Grid) -> Result<(), AttentionError> {
        mask.check(grid)?;
        match self.going_on().or_else(|| self.counting()) {
            Some(name) if mask.0.has_documents() => Err(AttentionError::combination(
                "mask",
                "one of documents",
                format!("{name}, which starts at the beginning of a row alone"),
                "give each document a row of its own",
            )),
            _ => Ok(()),
        }
    }

    /// Checks that the numbers of one call are those of several calls, each of which sees the keys so far, as from a cache.
    pub(crate) fn check_cached(&self) -> Result<(), AttentionError> {
        let of_length = || self.predictor.is_some().then(|| LOCAL_P.to_owned());
        match self.going_on().or_else(of_length) {
            None => Ok(()),
            Some(name) => Err(AttentionError::combination(
                "cache",
                "one of keys and values",
                format!("{name}, which needs all queries or all keys"),
                "compute all positions at once with `MultiHead::forward`",
            )),
        }
    }

    /// The part that goes on from query to query, if there is one.
    fn going_on(&self) -> Option<String> {
        match (self.score.carried_size(), self.normalize.carries()) {
            (Some(_), _) => Some(format!("the {} score", self.score.name())),
            (None, true) => Some(format!("the {} normaliser", self.normalize.name())),
            (None, false) => None,
        }
    }

    /// The part that counts the positions of keys, if there is one.
    fn counting(&self) -> Option<String> {
        match self.score.counts_positions() {
            true => Some(format!("the {} score", self.score.name())),
            false => self.predictor.is_some().then(|| LOCAL_P.to_owned()),
        }
    }

    /// What counts source positions needs the source from its beginning.
    fn check_first_key(&self, call: &AttentionOptions<'_>) -> Result<(), AttentionError> {
        match self.counting() {
            Some(counts) if call.first_key > 0 => Err(AttentionError::combination(
                "first_key",
                call.first_key,
                format!("{counts}, which counts from the first position"),
                "read all keys, such as from `KeyValueCache::growing`",
            )),
            _ => Ok(()),
        }
    }

    fn check_sizes(
        &self,
        query: &Tensor<4>,
        key: &Tensor<4>,
        prepared: bool,
    ) -> Result<(), AttentionError> {
        let name = self.score.name();
        let [query_size, key_size] = [query.dims()[3], key.dims()[3]];
        const MADE: &str = "make the score for keys of this size";
        const EQUAL: &str =
            "query and key have one size; use the general or additive score for different ones";
        let (of_query, of_key, advice) = match self.score.sizes() {
            Sizes::Equal => (None, Some(query_size), EQUAL),
            Sizes::Query(query) => (Some(query), None, MADE),
            Sizes::Made {
                query,
                annotation,
                key,
            } => (
                Some(query),
                Some(if prepared { key } else { annotation }),
                MADE,
            ),
        };
        let predictor = self.predictor.as_ref();
        let of_predictor = predictor.map(|predictor| predictor.hidden.weight.dims()[0]);
        let of_all = [of_query, of_predictor, self.normalize.query_size()];
        if let Some(expected) = of_all
            .into_iter()
            .flatten()
            .find(|&size| size != query_size)
        {
            return Err(AttentionError::shape(
                "query",
                &query.dims(),
                format!("size {expected}, which the {name} score was made for"),
                "make the score for queries of this size",
            ));
        }
        match of_key {
            Some(expected) if expected != key_size => Err(AttentionError::shape(
                "key",
                &key.dims(),
                format!("size {expected} for the {name} score"),
                advice,
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn check_settings(&self, heads: usize, dtype: DType) -> Result<(), AttentionError> {
        self.score.check(&self.normalize, dtype)?;
        self.normalize.check(heads, dtype)?;
        if let Some(softcap) = self.softcap {
            // Gradients are multiplied by it before they are divided by it.
            let advice = "leave it out to cap nothing";
            check_divisor("softcap", softcap, f64::sqrt, dtype, advice)?;
        }
        // The kernels use it as f32.
        if !(0.0..1.0).contains(&(self.dropout as f32)) {
            return Err(AttentionError::value(
                "dropout",
                self.dropout,
                "a probability from 0 to less than 1 in f32",
                "0 drops nothing",
            ));
        }
        Ok(())
    }

    /// Checks the state that mechanisms with a memory continue from; the others ignore it.
    fn check_carried(
        &self,
        call: &AttentionOptions<'_>,
        grid: &Grid,
    ) -> Result<(), AttentionError> {
        let (Some(carried), Some(size)) = (&call.carried, self.carried_size(grid.keys)) else {
            return Ok(());
        };
        let expected = [grid.batch, grid.heads, 1, size];
        match carried.dims() == expected {
            true => Ok(()),
            false => Err(AttentionError::shape(
                "carried",
                &carried.dims(),
                format!("{expected:?}"),
                "pass on what the reading before left in `Attended::carried`",
            )),
        }
    }

    /// The size of the state that is carried from query to query over so many keys, if there is any.
    pub(super) fn carried_size(&self, keys: usize) -> Option<usize> {
        let of_weights = self.normalize.carries().then_some(keys);
        self.score.carried_size().or(of_weights)
    }
}

impl Problem<'_> {
    /// Keys and values in the precision of the query, for all but the dot-product kernel, which reads them as they are stored.
    pub(super) fn widen(&mut self) {
        let dtype = self.query.dtype();
        self.key = self.key.clone().cast(dtype);
        self.value = self.value.clone().cast(dtype);
    }
}

/// The range of numbers of a precision.
struct Range {
    /// The largest finite number.
    largest: f64,
    /// The smallest positive number with full precision.
    smallest: f64,
}

impl Range {
    fn of(dtype: DType) -> Self {
        let (largest, smallest) = match dtype.finfo() {
            Some(info) => (info.max, info.min_positive),
            None => (f64::MAX, f64::MIN_POSITIVE),
        };
        Self { largest, smallest }
    }
}

/// Checks that a setting is finite in `dtype`.
pub(crate) fn check_finite(
    field: &'static str,
    found: f64,
    dtype: DType,
) -> Result<(), AttentionError> {
    if found.abs() <= Range::of(dtype).largest {
        return Ok(());
    }
    let expected = format!("a finite number in {}", dtype.name());
    let advice = "give a number that is neither infinite nor NaN";
    Err(AttentionError::value(field, found, expected, advice))
}

/// Checks a divisor: one that rounds to 0 in `dtype` would give NaN. `most` computes the largest one allowed from the largest
/// number of `dtype`.
pub(crate) fn check_divisor(
    field: &'static str,
    found: f64,
    most: impl Fn(f64) -> f64,
    dtype: DType,
    advice: &'static str,
) -> Result<(), AttentionError> {
    let Range { largest, smallest } = Range::of(dtype);
    let most = most(largest);
    match (smallest..=most).contains(&found) {
        true => Ok(()),
        false => Err(AttentionError::value(
            field,
            found,
            format!(
                "a finite number above 0 in {} ({smallest:.1e} to {most:.1e})",
                dtype.name()
            ),
            advice,
        )),
    }
}

fn check_bias(call: &AttentionOptions<'_>, grid: &Grid) -> Result<(), AttentionError> {
    let Some(bias) = &call.bias else {
        return Ok(());
    };
    let [batch, heads, queries, keys] = bias.dims();
    let fits = |found: usize, size: usize| found == 1 || found == size;
    let all = fits(batch, grid.batch) && fits(heads, grid.heads) && fits(queries, grid.queries);
    if all && fits(keys, grid.keys) {
        return Ok(());
    }
    let expected = [grid.batch, grid.heads, grid.queries, grid.keys];
    Err(AttentionError::shape(
        "bias",
        &bias.dims(),
        format!("{expected:?} (each may be 1)"),
        "give one number a score, or one for all scores along an axis",
    ))
}

pub(super) fn check_alibi(call: &AttentionOptions<'_>, heads: usize) -> Result<(), AttentionError> {
    match call.alibi.map(|alibi| alibi.slopes().len()) {
        Some(slopes) if slopes != heads => Err(AttentionError::value(
            "alibi heads",
            slopes,
            format!("{heads} (the query's heads)"),
            "make it with `Alibi::new` for this number of heads",
        )),
        _ => Ok(()),
    }
}

fn check_observe(observe: &Observe, grid: &Grid) -> Result<(), AttentionError> {
    match observe {
        Observe::Rows(rows) => match rows.iter().find(|&&row| row >= grid.queries) {
            Some(row) => Err(AttentionError::value(
                "observed row",
                row,
                format!("less than {} (the number of queries)", grid.queries),
                "rows count from 0",
            )),
            None => Ok(()),
        },
        Observe::TopK(k) if *k == 0 || *k > grid.keys => Err(AttentionError::value(
            "top k",
            k,
            format!("from 1 to {} (the number of keys)", grid.keys),
            "ask for no more keys than there are",
        )),
        _ => Ok(()),
    }
}
