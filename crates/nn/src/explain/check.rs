//! Checks of an example before it is computed, as far as its modules do not check: every message names the field, what was
//! found and expected.

use super::{Example, ExplainError, Normalizer, Scorer};
use crate::{AttentionError, mask::Locality};

/// The most vectors on a side: larger tables would not be readable.
const MOST: usize = 64;

/// The longest vector, and the most rows of a matrix: without a matrix the identity of this size is used.
const LONGEST: usize = 256;

type Matrix = Vec<Vec<f64>>;

/// Checks everything; returns the values.
pub(super) fn check(example: &Example) -> Result<Matrix, ExplainError> {
    example.check_parameters()?;
    let parameters = &example.parameters;
    let sizes = (
        matrix("queries", &example.queries)?,
        matrix("keys", &example.keys)?,
    );
    let values = example.values.as_ref().unwrap_or(&example.keys);
    matrix("values", values)?;
    let (queries, keys) = (example.queries.len(), example.keys.len());
    for (field, found) in [("queries", queries), ("keys", keys)] {
        let advice = "a worked example is for reading; use Attention for more";
        let expected = format!("at most {MOST} vectors");
        ensure(found <= MOST, field, found, expected, advice)?;
    }
    count("values", values.len(), keys, "give one value for each key")?;
    for (field, names, of) in [
        ("query names", &example.query_names, queries),
        ("key names", &example.key_names, keys),
    ] {
        if !names.is_empty() {
            count(field, names.len(), of, "give one name for each vector")?;
        }
    }
    for (field, number) in [
        ("scale", parameters.scale),
        ("softcap", parameters.softcap),
        ("gain", parameters.gain),
        ("beta", parameters.beta),
        ("sink", parameters.sink),
        ("sigmoid bias", parameters.sigmoid_bias),
    ] {
        finite(field, number.as_slice())?;
    }
    scorer(example, sizes)?;
    normalizer(example)?;
    if let Locality::Predictive { .. } = example.locality {
        let hidden = weight("position weight", &parameters.position_weight, sizes.0)?;
        let hidden = hidden.unwrap_or(sizes.0);
        vector("position vector", &parameters.position_vector, hidden)?;
    }
    Ok(values.clone())
}

fn ensure(
    holds: bool,
    field: &'static str,
    found: impl ToString,
    expected: impl Into<String>,
    advice: &'static str,
) -> Result<(), ExplainError> {
    match holds {
        true => Ok(()),
        false => Err(AttentionError::value(field, found, expected, advice).into()),
    }
}

fn count(
    field: &'static str,
    found: usize,
    expected: usize,
    advice: &'static str,
) -> Result<(), ExplainError> {
    ensure(
        found == expected,
        field,
        found,
        expected.to_string(),
        advice,
    )
}

/// Checks a matrix whose rows must have one size; returns the size.
fn matrix(field: &'static str, rows: &[Vec<f64>]) -> Result<usize, ExplainError> {
    let expected = rows.first().map_or(0, Vec::len);
    ensure(
        expected > 0,
        field,
        "empty",
        "at least one vector of one number",
        "give vectors such as \"1,2;3,4\": numbers parted by commas, vectors by semicolons",
    )?;
    let advice = "a worked example is for reading; use Attention for more";
    for found in [rows.len(), expected] {
        let most = format!("at most {LONGEST} vectors of {LONGEST} numbers");
        ensure(found <= LONGEST, field, found, most, advice)?;
    }
    for (row, found) in rows.iter().map(Vec::len).enumerate() {
        if found != expected {
            let row = row + 1;
            return Err(ExplainError::Ragged {
                field,
                row,
                found,
                expected,
            });
        }
    }
    finite(field, &rows.concat())?;
    Ok(expected)
}

fn finite(field: &'static str, numbers: &[f64]) -> Result<(), ExplainError> {
    // Products of larger numbers would exceed the range of f64.
    const LARGEST: f64 = 1e100;
    let Some(x) = numbers.iter().find(|x| x.is_nan() || x.abs() > LARGEST) else {
        return Ok(());
    };
    // Written in full, a huge number would be a line of hundreds of zeros.
    let found = match x.is_finite() {
        true => format!("{x:e}"),
        false => x.to_string(),
    };
    ensure(
        false,
        field,
        found,
        "numbers up to 1e100",
        "give finite numbers",
    )
}

/// Checks an optional matrix whose rows must have `inputs` numbers; returns its number of rows.
fn weight(
    field: &'static str,
    weight: &Option<Matrix>,
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
    let advice = "give one number for each hidden entry";
    count(field, vector.len(), size, advice)
}

fn scorer(example: &Example, (query_size, key_size): (usize, usize)) -> Result<(), ExplainError> {
    let parameters = &example.parameters;
    let of_query = |inputs| weight("query weight", &parameters.query_weight, inputs);
    let same_size = |advice| {
        let expected = format!("{query_size}, the size of the queries");
        ensure(
            query_size == key_size,
            "key size",
            key_size,
            expected,
            advice,
        )
    };
    match example.scorer {
        Scorer::Dot | Scorer::ScaledDot | Scorer::Cosine | Scorer::Distance => same_size(
            "this score compares entry by entry; `general` or `additive` take different sizes",
        ),
        Scorer::General | Scorer::ScaledGeneral => match of_query(key_size)? {
            Some(rows) => {
                let advice = "W has one row for each entry of the query";
                count("query weight", rows, query_size, advice)
            }
            None => same_size("give W, [query size, key size]"),
        },
        Scorer::Additive | Scorer::WeightNormAdditive => {
            let hidden = of_query(query_size)?.unwrap_or(query_size);
            let of_key = weight("key weight", &parameters.key_weight, key_size)?;
            let advice = "W q and U k are added, so W and U have as many rows; without a matrix it is the identity";
            count("key weight", of_key.unwrap_or(key_size), hidden, advice)?;
            vector("bias", &parameters.bias, hidden)?;
            vector("vector", &parameters.vector, hidden)?;
            let given = parameters.vector.as_ref();
            let has_direction = given.is_none_or(|v| v.iter().any(|x| *x != 0.0));
            let holds = has_direction || example.scorer == Scorer::Additive;
            ensure(holds, "vector", "0", "not 0", "v/‖v‖ needs a direction")
        }
        Scorer::Location => {
            let rows = of_query(query_size)?.unwrap_or(query_size);
            let advice = "W has one row for each key";
            count("query weight", rows, example.keys.len(), advice)
        }
        Scorer::GaussianWindow => ensure(
            query_size % 3 == 0,
            "query size",
            query_size,
            "a multiple of 3",
            "a query holds K heights, K sharpnesses and K steps before their exponentials",
        ),
    }
}

fn normalizer(example: &Example) -> Result<(), ExplainError> {
    let parameters = &example.parameters;
    if let Some(draw) = parameters.draw {
        let expected = "from 0 to 1, and below 1";
        let holds = (0.0..1.0).contains(&draw);
        ensure(
            holds,
            "draw",
            draw,
            expected,
            "a uniform number picks the key",
        )?;
    }
    if let Some(gate) = parameters.gate {
        let advice = "0 keeps the weights before, 1 takes content alone";
        ensure(
            (0.0..=1.0).contains(&gate),
            "gate",
            gate,
            "from 0 to 1",
            advice,
        )?;
    }
    if let Some(sharpening) = parameters.sharpening {
        finite("sharpening", &[sharpening])?;
        let advice = "1 leaves the weights as they are";
        ensure(
            sharpening >= 1.0,
            "sharpening",
            sharpening,
            "at least 1",
            advice,
        )?;
    }
    if let Some(previous) = &parameters.previous {
        finite("previous", previous)?;
        let advice = "give the weight of each key";
        count("previous", previous.len(), example.keys.len(), advice)?;
        let sum: f64 = previous.iter().sum();
        ensure(
            previous.iter().all(|&weight| weight >= 0.0) && sum <= 1.0 + 1e-6,
            "previous",
            format!("{previous:?}"),
            "weights of at least 0 that sum to at most 1",
            advice,
        )?;
        ensure(
            example.normalizer != Normalizer::Addressing || sum > 0.0,
            "previous",
            format!("{previous:?}"),
            "weights of which one is above 0",
            advice,
        )?;
    }
    if let Some(shift) = &parameters.shift {
        finite("shift", shift)?;
        let advice = "give the weights of the shifts -R ..= R, such as 0,0,1 for one to the right";
        let found = shift.len();
        let expected = format!("an odd number of weights, at most {LONGEST}");
        ensure(
            found % 2 == 1 && found <= LONGEST,
            "shift",
            found,
            expected,
            advice,
        )?;
        let lowest = shift.iter().copied().fold(0.0, f64::min);
        ensure(
            lowest == 0.0,
            "shift",
            lowest,
            "weights of at least 0",
            advice,
        )?;
        let sum: f64 = shift.iter().sum();
        ensure(sum > 0.0, "shift", sum, "a sum above 0", advice)?;
    }
    Ok(())
}
