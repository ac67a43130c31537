//! Checks of one reading, before anything is computed.

use burn::tensor::{DType, Tensor};

use super::{Attention, AttentionError, AttentionOptions, Observe, Path};
use crate::{
    mask::{Grid, Mask},
    normalize::{Estimator, Normalize},
    precision::{as_read, check_precision, check_weights},
    score::{Additive, Score, WeightNormAdditive},
};

/// A reading whose shapes and settings fit together.
pub(super) struct Problem<'a> {
    pub(super) query: Tensor<4>, // [batch, heads, queries, query size]
    // Perhaps stored at half the width of the query: `Problem::widen`.
    pub(super) key: Tensor<4>, // [batch, key heads, keys, annotation or key size]
    pub(super) value: Tensor<4>, // [batch, key heads, keys, value size]
    /// Whether `key` went through [`Score::keys`] already.
    pub(super) prepared: bool,
    /// All that hides keys, but for the window of local-p.
    pub(super) mask: Mask,
    pub(super) grid: Grid,
    pub(super) call: AttentionOptions<'a>,
}

const SIZES: &str =
    "query is [batch, heads, queries, size], key and value are [batch, key heads, keys, size]";

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
        for (field, found) in [
            ("key", Some(as_read(key.dtype(), dtype))),
            ("value", Some(as_read(value.dtype(), dtype))),
            ("bias", call.bias.as_ref().map(Tensor::dtype)),
            ("carried", call.carried.as_ref().map(Tensor::dtype)),
        ] {
            check_precision(field, found.unwrap_or(dtype), dtype, "the query")?;
        }
        self.check_settings(heads, dtype, &call)?;
        self.check_first_key(&call)?;
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
        mask.check(&grid)?;
        check_bias(&call, &grid)?;
        check_alibi(&call, heads)?;
        check_observe(&call.observe, &grid)?;
        self.check_carried(&call, &grid)?;
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

    /// What counts the source's positions itself needs the source from its beginning.
    fn check_first_key(&self, call: &AttentionOptions<'_>) -> Result<(), AttentionError> {
        let counts = match &self.score {
            Score::Location(_) | Score::GaussianWindow(_) => {
                format!("the {} score", self.score.name())
            }
            _ if self.predictor.is_some() => "local-p".to_owned(),
            _ => return Ok(()),
        };
        if call.first_key == 0 {
            return Ok(());
        }
        Err(AttentionError::combination(
            "first_key",
            call.first_key,
            format!("{counts}, which counts from the first position"),
            "read all keys, such as from `KeyValueCache::growing`",
        ))
    }

    fn check_sizes(
        &self,
        query: &Tensor<4>,
        key: &Tensor<4>,
        prepared: bool,
    ) -> Result<(), AttentionError> {
        let [query_size, key_size] = [query.dims()[3], key.dims()[3]];
        let of_query = |expected: usize| match query_size == expected {
            true => Ok(()),
            false => Err(AttentionError::shape(
                "query",
                &query.dims(),
                format!(
                    "size {expected}, which the {} score was made for",
                    self.score.name()
                ),
                "make the score for queries of this size",
            )),
        };
        let of_key = |raw: usize, ready: usize, advice| {
            let expected = if prepared { ready } else { raw };
            match key_size == expected {
                true => Ok(()),
                false => Err(AttentionError::shape(
                    "key",
                    &key.dims(),
                    format!("size {expected} for the {} score", self.score.name()),
                    advice,
                )),
            }
        };
        const MADE: &str = "make the score for keys of this size";
        if let Score::Additive(Additive { vector, .. })
        | Score::WeightNormAdditive(WeightNormAdditive { vector, .. }) = &self.score
            && vector.dims() == [0]
        {
            let advice = "queries and keys are compared in at least one dimension";
            return Err(AttentionError::value(
                "attention size",
                0,
                "at least 1",
                advice,
            ));
        }
        match &self.score {
            Score::Dot(_) | Score::ScaledDot(_) | Score::Distance(_) => of_key(
                query_size,
                query_size,
                "query and key have one size; use the general or additive score for different ones",
            )?,
            Score::Cosine(score) => {
                if let Some(sharpening) = &score.sharpening {
                    of_query(sharpening.weight.dims()[0])?;
                }
                of_key(query_size, query_size, "query and key have one size")?;
            }
            Score::General(score) => {
                let [annotation, size] = score.key.weight.dims();
                of_query(size)?;
                of_key(annotation, size, MADE)?;
            }
            Score::ScaledGeneral(score) => {
                let [annotation, size] = score.key.weight.dims();
                of_query(size)?;
                of_key(annotation, size, MADE)?;
            }
            Score::Additive(score) => {
                let [annotation, size] = score.key.weight.dims();
                of_query(score.query.weight.dims()[0])?;
                of_key(annotation, size, MADE)?;
            }
            Score::WeightNormAdditive(score) => {
                let [annotation, size] = score.key.weight.dims();
                of_query(score.query.weight.dims()[0])?;
                of_key(annotation, size, MADE)?;
            }
            Score::Location(score) => of_query(score.weight.weight.dims()[0])?,
            Score::GaussianWindow(score) => of_query(score.parameters.weight.dims()[0])?,
        }
        if let Some(predictor) = &self.predictor {
            of_query(predictor.hidden.weight.dims()[0])?;
        }
        if let Normalize::Addressing(addressing) = &self.normalize {
            of_query(addressing.gate.weight.dims()[0])?;
        }
        Ok(())
    }

    pub(super) fn check_settings(
        &self,
        heads: usize,
        dtype: DType,
        call: &AttentionOptions<'_>,
    ) -> Result<(), AttentionError> {
        let (field, number) = match &self.score {
            Score::ScaledDot(score) => ("scale", score.scale(1)),
            Score::Distance(score) => ("scale", score.scale(1)),
            Score::Cosine(score) => ("sharpening", score.fixed_sharpening()),
            _ => ("scale", 1.0),
        };
        let of_normalizer = match &self.normalize {
            Normalize::Sink(sink) => ("sink", sink.fixed_score()),
            Normalize::Sigmoid(sigmoid) => ("sigmoid bias", sigmoid.bias(1)),
            Normalize::Monotonic(monotonic) => ("monotonic noise", monotonic.noise()),
            _ => ("sink", 0.0),
        };
        let Range { largest, smallest } = Range::of(dtype);
        for (field, found) in [(field, number), of_normalizer] {
            if found.is_nan() || found.abs() > largest {
                let expected = format!("a finite number in {}", dtype.name());
                let advice = "give a number that is neither infinite nor NaN";
                return Err(AttentionError::value(field, found, expected, advice));
            }
        }
        if let Normalize::Monotonic(monotonic) = &self.normalize
            && monotonic.noise() < 0.0
        {
            return Err(AttentionError::value(
                "monotonic noise",
                monotonic.noise(),
                "at least 0",
                "it is a standard deviation; 0 adds none",
            ));
        }
        // Divisors, so that one that rounds to 0 would give NaN.
        let divisor = |field, found: f64, most, advice| match (smallest..=most).contains(&found) {
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
        };
        if let Some(softcap) = self.softcap {
            // Gradients are multiplied by it before they are divided by it.
            let advice = "leave it out to cap nothing";
            divisor("softcap", softcap, largest.sqrt(), advice)?;
        }
        // The kernels take it as f32.
        if !(0.0..1.0).contains(&(self.dropout as f32)) {
            return Err(AttentionError::value(
                "dropout",
                self.dropout,
                "a probability from 0 to less than 1 in f32",
                "0 drops nothing",
            ));
        }
        if let Normalize::Sink(sink) = &self.normalize
            && let Some(found) = sink.heads()
            && found != heads
            && found != 1
        {
            return Err(AttentionError::value(
                "sink heads",
                found,
                format!("{heads} (the query's heads) or 1"),
                "make one sink a head",
            ));
        }
        if let Normalize::HardSample(sample) = &self.normalize
            && let Estimator::Gumbel { temperature } = sample.estimator()
        {
            let advice = "1 is usual; lower is nearer to the draw";
            divisor("Gumbel temperature", temperature, largest, advice)?;
        }
        if call.path == Path::Fused && call.differentiable {
            return Err(AttentionError::combination(
                "path",
                "Fused",
                "differentiable observations",
                "kernels give no gradient to what is observed; use Path::Auto",
            ));
        }
        let carries = |name: &str| {
            AttentionError::combination(
                "score",
                "Gaussian window",
                format!("the {name} normaliser"),
                "its weights are final; use Normalize::identity",
            )
        };
        if matches!(self.score, Score::GaussianWindow(_))
            && !matches!(self.normalize, Normalize::Identity(_))
        {
            return Err(carries(self.normalize.name()));
        }
        Ok(())
    }

    /// What mechanisms with a memory go on from; the others do not look at it.
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

    /// The size of what is carried from query to query over so many keys, if anything is.
    pub(super) fn carried_size(&self, keys: usize) -> Option<usize> {
        match (&self.score, &self.normalize) {
            (Score::GaussianWindow(window), _) => Some(window.components()),
            (_, Normalize::Monotonic(_) | Normalize::Addressing(_)) => Some(keys),
            _ => None,
        }
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

/// The numbers of a precision.
struct Range {
    /// The largest finite one.
    largest: f64,
    /// The smallest positive one that loses no digits.
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

fn check_alibi(call: &AttentionOptions<'_>, heads: usize) -> Result<(), AttentionError> {
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
