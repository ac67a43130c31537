//! What an example must be before it is worked: every message names the field, what was found and expected.

use super::{Example, ExplainError, Normalizer, Scorer};
use crate::AttentionError;
use crate::mask::Locality;

/// Most vectors on a side: beyond, nobody reads the tables.
const MOST: usize = 64;

/// Checks everything; gives the values.
pub(super) fn check(example: &Example) -> Result<Vec<Vec<f64>>, ExplainError> {
    example.check_parameters()?;
    let (query_size, key_size) = (
        matrix("queries", &example.queries)?,
        matrix("keys", &example.keys)?,
    );
    for (field, rows) in [("queries", &example.queries), ("keys", &example.keys)] {
        if rows.len() > MOST {
            let advice = "a worked example is for reading; use Attention for more";
            return Err(AttentionError::value(
                field,
                rows.len(),
                format!("at most {MOST} vectors"),
                advice,
            )
            .into());
        }
    }
    let keys = example.keys.len();
    let values = example.values.as_ref().unwrap_or(&example.keys);
    matrix("values", values)?;
    count("values", values.len(), keys, "give one value for each key")?;
    for (field, names, of) in [
        ("query names", &example.query_names, example.queries.len()),
        ("key names", &example.key_names, keys),
    ] {
        if !names.is_empty() {
            count(field, names.len(), of, "give one name for each vector")?;
        }
    }
    scorer(example, query_size, key_size)?;
    normalizer(example)?;
    if let Locality::Predictive { .. } = example.locality {
        let hidden = weight(
            "position weight",
            &example.parameters.position_weight,
            query_size,
        )?;
        vector(
            "position vector",
            &example.parameters.position_vector,
            hidden.unwrap_or(query_size),
        )?;
    }
    Ok(values.clone())
}

/// A matrix with rows of one size: the size.
fn matrix(field: &'static str, rows: &[Vec<f64>]) -> Result<usize, ExplainError> {
    let size = rows.first().map_or(0, Vec::len);
    if size == 0 {
        let advice =
            "give vectors such as \"1,2;3,4\": numbers parted by commas, vectors by semicolons";
        return Err(AttentionError::value(
            field,
            "empty",
            "at least one vector of one number",
            advice,
        )
        .into());
    }
    for (index, row) in rows.iter().enumerate() {
        if row.len() != size {
            return Err(ExplainError::Ragged {
                field,
                row: index + 1,
                found: row.len(),
                expected: size,
            });
        }
        finite(field, row)?;
    }
    Ok(size)
}

fn finite(field: &'static str, row: &[f64]) -> Result<(), ExplainError> {
    // Products of larger numbers leave f64.
    const LARGEST: f64 = 1e100;
    match row.iter().find(|x| x.is_nan() || x.abs() > LARGEST) {
        None => Ok(()),
        Some(x) => {
            // A huge number in full would be a line of hundreds of zeros.
            let found = match x.is_finite() {
                true => format!("{x:e}"),
                false => x.to_string(),
            };
            Err(
                AttentionError::value(field, found, "numbers up to 1e100", "give finite numbers")
                    .into(),
            )
        }
    }
}

fn count(
    field: &'static str,
    found: usize,
    expected: usize,
    advice: &'static str,
) -> Result<(), ExplainError> {
    match found == expected {
        true => Ok(()),
        false => Err(AttentionError::value(field, found, expected.to_string(), advice).into()),
    }
}

/// An optional matrix whose rows have `inputs` numbers: its number of rows.
fn weight(
    field: &'static str,
    weight: &Option<Vec<Vec<f64>>>,
    inputs: usize,
) -> Result<Option<usize>, ExplainError> {
    let Some(rows) = weight else { return Ok(None) };
    let found = matrix(field, rows)?;
    if found != inputs {
        return Err(AttentionError::shape(
            field,
            &[rows.len(), found],
            format!("[.., {inputs}]"),
            "matrices act from the left: a row has one number for each entry of the vector",
        )
        .into());
    }
    Ok(Some(rows.len()))
}

fn vector(field: &'static str, vector: &Option<Vec<f64>>, size: usize) -> Result<(), ExplainError> {
    let Some(vector) = vector else { return Ok(()) };
    finite(field, vector)?;
    count(
        field,
        vector.len(),
        size,
        "give one number for each hidden entry",
    )
}

fn same_size(query_size: usize, key_size: usize, advice: &'static str) -> Result<(), ExplainError> {
    match query_size == key_size {
        true => Ok(()),
        false => Err(AttentionError::value(
            "key size",
            key_size,
            format!("{query_size}, the size of the queries"),
            advice,
        )
        .into()),
    }
}

fn scorer(example: &Example, query_size: usize, key_size: usize) -> Result<(), ExplainError> {
    let parameters = &example.parameters;
    let numbers = [
        ("scale", parameters.scale),
        ("softcap", parameters.softcap),
        ("gain", parameters.gain),
        ("beta", parameters.beta),
    ];
    for (field, number) in numbers {
        finite(field, &number.into_iter().collect::<Vec<_>>())?;
    }
    if let Some(softcap) = parameters.softcap.filter(|c| *c <= 0.0) {
        let advice = "scores are kept within ±softcap";
        return Err(AttentionError::value("softcap", softcap, "above 0", advice).into());
    }
    match example.scorer {
        Scorer::Dot | Scorer::ScaledDot | Scorer::Cosine | Scorer::Distance => same_size(
            query_size,
            key_size,
            "this score compares entry by entry; `general` or `additive` take different sizes",
        ),
        Scorer::General | Scorer::ScaledGeneral => {
            match weight("query weight", &parameters.query_weight, key_size)? {
                Some(rows) => count(
                    "query weight",
                    rows,
                    query_size,
                    "W has one row for each entry of the query",
                ),
                None => same_size(query_size, key_size, "give W, [query size, key size]"),
            }
        }
        Scorer::Additive | Scorer::WeightNormAdditive => {
            let of_query = weight("query weight", &parameters.query_weight, query_size)?;
            let of_key = weight("key weight", &parameters.key_weight, key_size)?;
            let hidden = of_query.unwrap_or(query_size);
            let advice = "W q and U k are added, so W and U have as many rows; without a matrix it is the identity";
            count("key weight", of_key.unwrap_or(key_size), hidden, advice)?;
            vector("bias", &parameters.bias, hidden)?;
            vector("vector", &parameters.vector, hidden)?;
            let zero = parameters
                .vector
                .as_ref()
                .is_some_and(|v| v.iter().all(|x| *x == 0.0));
            if zero && example.scorer == Scorer::WeightNormAdditive {
                let advice = "v/‖v‖ needs a direction";
                return Err(AttentionError::value("vector", "0", "not 0", advice).into());
            }
            Ok(())
        }
        Scorer::Location => {
            let rows =
                weight("query weight", &parameters.query_weight, query_size)?.unwrap_or(query_size);
            count(
                "query weight",
                rows,
                example.keys.len(),
                "W has one row for each key",
            )
        }
        Scorer::GaussianWindow => match query_size % 3 {
            0 => Ok(()),
            _ => Err(AttentionError::value(
                "query size",
                query_size,
                "a multiple of 3",
                "a query holds K heights, K sharpnesses and K steps before their exponentials",
            )
            .into()),
        },
    }
}

fn normalizer(example: &Example) -> Result<(), ExplainError> {
    let parameters = &example.parameters;
    let within =
        |field: &'static str, value: Option<f64>, low: f64, high: f64, advice: &'static str| {
            match value.filter(|x| !(low <= *x && *x <= high)) {
                None => Ok(()),
                Some(x) => {
                    let expected = match high.is_finite() {
                        true => format!("from {low} to {high}"),
                        false => format!("at least {low}"),
                    };
                    Err(ExplainError::from(AttentionError::value(
                        field, x, expected, advice,
                    )))
                }
            }
        };
    for (field, number) in [
        ("sink", parameters.sink),
        ("sigmoid bias", parameters.sigmoid_bias),
    ] {
        finite(field, &number.into_iter().collect::<Vec<_>>())?;
    }
    if example.scorer == Scorer::GaussianWindow && example.normalizer != Normalizer::Identity {
        return Err(AttentionError::combination(
            "score",
            "Gaussian window",
            format!("the normaliser {}", example.normalizer.name()),
            "its weights are final; use identity",
        )
        .into());
    }
    within(
        "draw",
        parameters.draw,
        0.0,
        1.0,
        "a uniform number picks the key",
    )?;
    within(
        "gate",
        parameters.gate,
        0.0,
        1.0,
        "0 keeps the weights before, 1 takes content alone",
    )?;
    within(
        "sharpening",
        parameters.sharpening,
        1.0,
        f64::INFINITY,
        "1 leaves the weights as they are",
    )?;
    if let Some(previous) = &parameters.previous {
        finite("previous", previous)?;
        count(
            "previous",
            previous.len(),
            example.keys.len(),
            "give the weight of each key",
        )?;
    }
    if let Some(shift) = &parameters.shift {
        finite("shift", shift)?;
        if shift.len() % 2 == 0 {
            let advice =
                "give the weights of the shifts -R ..= R, such as 0,0,1 for one to the right";
            return Err(AttentionError::value(
                "shift",
                shift.len(),
                "an odd number of weights",
                advice,
            )
            .into());
        }
    }
    Ok(())
}
