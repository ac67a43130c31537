//! The definition of dot-product attention: plain loops, one number after the other.
//!
//! Generic over [`Real`]: in `f64` this is what the kernels are tested against, and a plain path for users who need
//! double precision; in `f32` it is the naive computation, whose error sets the bound for the kernels' errors.

use crate::{
    mask::{Plane, Visible},
    problem::{Alignment, Attention, Sequence, Sizes},
    reference::Real,
};

/// What [`forward`] returns.
#[derive(Debug, Clone, PartialEq)]
pub struct Forward<T> {
    /// `[batch, heads, queries, value_dim]`
    pub output: Vec<T>,
    /// `[batch, heads, queries]`
    pub lse: Vec<T>,
    /// `[batch, heads, queries, keys]`, with all options applied, as they enter the softmax; `-∞` where a query does
    /// not see a key. In a packed batch, keys are numbered across the pack.
    pub scores: Vec<T>,
    /// Of the same shape, before dropout.
    pub weights: Vec<T>,
}

/// Attention of contiguous `query [batch, heads, queries, dim]`, `key [batch, key_heads, keys, dim]` and
/// `value [batch, key_heads, keys, value_dim]`, whose shapes are given.
///
/// # Panics
/// Where options and shapes do not fit.
pub fn forward<T: Real>(
    attention: &Attention,
    shapes: [[usize; 4]; 3],
    query: &[T],
    key: &[T],
    value: &[T],
) -> Forward<T> {
    let sizes = attention
        .check(shapes[0], shapes[1], shapes[2])
        .expect("options that fit");
    let mut result = Forward {
        output: vec![T::of(0.0); query.len() / sizes.dim * sizes.value_dim],
        lse: vec![T::of(f64::NEG_INFINITY); query.len() / sizes.dim],
        scores: vec![T::of(f64::NEG_INFINITY); query.len() / sizes.dim * sizes.keys],
        weights: vec![T::of(0.0); query.len() / sizes.dim * sizes.keys],
    };
    for_each_row(attention, &sizes, |row| {
        let scores = row_scores(attention, &sizes, &row, query, key);
        let sink = attention.sink.map(|sinks| T::of(sinks[row.head].into()));
        let softmax = Softmax::new(&scores, sink);
        result.lse[row.query_row] = softmax.lse;
        for (j, (&score, &weight)) in scores.iter().zip(&softmax.weights).enumerate() {
            let (Some(score), Some(weight)) = (score, weight) else {
                continue;
            };
            let at = row.query_row * sizes.keys + row.sequence.first_key + j;
            (result.scores[at], result.weights[at]) = (score, weight);
            let weight = weight * row.dropout(attention, j);
            for c in 0..sizes.value_dim {
                let at = row.query_row * sizes.value_dim + c;
                let value = value[(row.first_key_row + j) * sizes.value_dim + c];
                result.output[at] = result.output[at] + weight * value;
            }
        }
    });
    result
}

/// The scores of one query as they enter the softmax, `[keys]`: `None` where it may not see the key. `place` is its batch entry (or
/// packed sequence), its head, and its number there; the other arguments are those of [`forward`].
///
/// # Panics
/// Where options and shapes do not fit.
pub fn scores<T: Real>(
    attention: &Attention,
    [query_shape, key_shape]: [[usize; 4]; 2],
    query: &[T],
    key: &[T],
    place: [usize; 3],
) -> Vec<Option<T>> {
    let sizes = attention
        .check(query_shape, key_shape, key_shape)
        .expect("options that fit");
    let mut scores = vec![];
    for_each_row(attention, &sizes, |row| {
        if [row.index, row.head, row.query] == place {
            scores = row_scores(attention, &sizes, &row, query, key);
        }
    });
    scores
}

/// What [`backward`] returns.
#[derive(Debug, Clone, PartialEq)]
pub struct Backward<T> {
    /// `[batch, heads, queries, dim]`
    pub query: Vec<T>,
    /// `[batch, key_heads, keys, dim]`
    pub key: Vec<T>,
    /// `[batch, key_heads, keys, value_dim]`
    pub value: Vec<T>,
    /// Of the shape of the attention's bias; empty without one.
    pub bias: Vec<T>,
    /// `[heads]`; empty without a sink.
    pub sink: Vec<T>,
}

/// The gradients of a scalar whose gradient with respect to the output of [`forward`] is `d_output`, from that
/// output: `P = softmax(s)`, `δ = dO · O`, `dS = P (dP - δ)` (Dao 2022).
///
/// # Panics
/// Where options and shapes do not fit.
#[allow(clippy::too_many_arguments)]
pub fn backward<T: Real>(
    attention: &Attention,
    shapes: [[usize; 4]; 3],
    query: &[T],
    key: &[T],
    value: &[T],
    output: &[T],
    d_output: &[T],
) -> Backward<T> {
    let sizes = attention
        .check(shapes[0], shapes[1], shapes[2])
        .expect("options that fit");
    let zero = T::of(0.0);
    let scale = T::of(
        attention
            .scale
            .map_or(1.0 / (sizes.dim as f64).sqrt(), f64::from),
    );
    let bias_shape = attention.bias.map_or([0; 4], |bias| bias.shape);
    let mut d = Backward {
        query: vec![zero; query.len()],
        key: vec![zero; key.len()],
        value: vec![zero; value.len()],
        bias: vec![zero; bias_shape.iter().product()],
        sink: vec![zero; attention.sink.map_or(0, <[f32]>::len)],
    };
    for_each_row(attention, &sizes, |row| {
        let scores = row_scores(attention, &sizes, &row, query, key);
        let sink = attention.sink.map(|sinks| T::of(sinks[row.head].into()));
        let softmax = Softmax::new(&scores, sink);
        if softmax.lse.to_f64() == f64::NEG_INFINITY {
            return; // sees nothing
        }
        let values = row.query_row * sizes.value_dim..(row.query_row + 1) * sizes.value_dim;
        let (output, d_output) = (&output[values.clone()], &d_output[values]);
        let dot = |a: &[T], b: &[T]| a.iter().zip(b).fold(zero, |sum, (&a, &b)| sum + a * b);
        let delta = dot(d_output, output);
        if attention.sink.is_some() {
            d.sink[row.head] = d.sink[row.head] - softmax.sink * delta;
        }
        for (j, &weight) in softmax.weights.iter().enumerate() {
            let Some(weight) = weight else { continue };
            let keep = row.dropout::<T>(attention, j);
            let at = (row.first_key_row + j) * sizes.value_dim;
            for (c, &d_output) in d_output.iter().enumerate() {
                d.value[at + c] = d.value[at + c] + weight * keep * d_output;
            }
            let d_weight = keep * dot(d_output, &value[at..][..sizes.value_dim]);
            let mut gradient = weight * (d_weight - delta);
            let product = product(attention, &sizes, &row, query, key, j);
            if attention.bias.is_some() {
                let axes = [row.index, row.head, row.query, j];
                let at = axes.iter().zip(&bias_shape).fold(0, |at, (&index, &size)| {
                    at * size + if size == 1 { 0 } else { index }
                });
                d.bias[at] = d.bias[at] + gradient;
            }
            if let Some(cap) = attention.softcap {
                let bend = (product / T::of(cap.into())).tanh();
                gradient = gradient * (T::of(1.0) - bend * bend);
            }
            let query_at = row.query_row * sizes.dim;
            let key_at = (row.first_key_row + j) * sizes.dim;
            for c in 0..sizes.dim {
                let (i, j) = (query_at + c, key_at + c);
                d.query[i] = d.query[i] + gradient * scale * key[j];
                d.key[j] = d.key[j] + gradient * scale * query[i];
            }
        }
    });
    d
}

/// One query of one head.
pub(super) struct Row {
    pub(super) sequence: Sequence,
    pub(super) index: usize,
    pub(super) head: usize,
    /// Query, from the start of its sequence.
    pub(super) query: usize,
    /// Its row in `[batch, heads, queries]`.
    pub(super) query_row: usize,
    /// The row of its first key in `[batch, key_heads, keys]`.
    pub(super) first_key_row: usize,
}

impl Row {
    /// The factor that dropout gives the weight of `key`.
    pub(super) fn dropout<T: Real>(&self, attention: &Attention, key: usize) -> T {
        match &attention.dropout {
            None => T::of(1.0),
            Some(dropout) if dropout.keeps(self.index, self.head, self.query, key) => {
                T::of(1.0 / (1.0 - f64::from(dropout.probability)))
            }
            Some(_) => T::of(0.0),
        }
    }
}

pub(super) fn for_each_row(attention: &Attention, sizes: &Sizes, mut f: impl FnMut(Row)) {
    for index in 0..sizes.batch {
        let sequence = attention.sequence(sizes, index);
        for head in 0..sizes.heads {
            let key_head = head / (sizes.heads / sizes.key_heads);
            let first_key_row = (sequence.batch * sizes.key_heads + key_head) * sizes.keys;
            let first_row = (sequence.batch * sizes.heads + head) * sizes.queries;
            for query in 0..sequence.queries {
                f(Row {
                    sequence,
                    index,
                    head,
                    query,
                    query_row: first_row + sequence.first_query + query,
                    first_key_row: first_key_row + sequence.first_key,
                });
            }
        }
    }
}

/// The scores of one query; `None` where it may not see the key.
pub(super) fn row_scores<T: Real>(
    attention: &Attention,
    sizes: &Sizes,
    row: &Row,
    query: &[T],
    key: &[T],
) -> Vec<Option<T>> {
    let visible = Visible::new(attention, sizes, &row.sequence, row.index, row.head);
    (0..row.sequence.keys)
        .map(|j| {
            if !visible.sees(row.query, j) {
                return None;
            }
            let product = product(attention, sizes, row, query, key, j);
            Some(modified(attention, sizes, row, j, product))
        })
        .collect()
}

/// `scale · q k`
pub(super) fn product<T: Real>(
    attention: &Attention,
    sizes: &Sizes,
    row: &Row,
    query: &[T],
    key: &[T],
    j: usize,
) -> T {
    let scale = attention
        .scale
        .map_or(1.0 / (sizes.dim as f64).sqrt(), f64::from);
    let query = &query[row.query_row * sizes.dim..][..sizes.dim];
    let key = &key[(row.first_key_row + j) * sizes.dim..][..sizes.dim];
    let dot = query
        .iter()
        .zip(key)
        .fold(T::of(0.0), |sum, (&q, &k)| sum + q * k);
    dot * T::of(scale)
}

/// Softcap, bias and ALiBi.
pub(super) fn modified<T: Real>(
    attention: &Attention,
    sizes: &Sizes,
    row: &Row,
    j: usize,
    mut score: T,
) -> T {
    if let Some(cap) = attention.softcap {
        let cap = T::of(cap.into());
        score = cap * (score / cap).tanh();
    }
    if let Some(bias) = &attention.bias {
        let bias = Plane::new(bias, row.index, row.head).get(row.query, j);
        score = score + T::of(bias.into());
    }
    let shift = match attention.alignment {
        Alignment::UpperLeft => 0,
        Alignment::LowerRight => row.sequence.keys as i64 - row.sequence.queries as i64,
    };
    let distance = j as i64 - row.query as i64 - shift;
    if let Some(relative) = attention.relative {
        let relative = relative.of_head(sizes.heads, row.head);
        score = score + T::of(relative.at(distance).into());
    }
    if let Some(slopes) = attention.alibi {
        let distance = distance.unsigned_abs();
        score = score - T::of(slopes[row.head].into()) * T::of(distance as f64);
    }
    score
}

/// The softmax of a row.
struct Softmax<T> {
    /// `None` where the row does not see the key.
    weights: Vec<Option<T>>,
    /// The weight of the sink; 0 without one.
    sink: T,
    lse: T,
}

impl<T: Real> Softmax<T> {
    fn new(scores: &[Option<T>], sink: Option<T>) -> Self {
        let (zero, lowest) = (T::of(0.0), T::of(f64::NEG_INFINITY));
        let all = || scores.iter().flatten().copied().chain(sink);
        let largest = all().fold(lowest, |m, x| if x > m { x } else { m });
        if largest == lowest && !all().any(|x| x.to_f64().is_nan()) {
            let nothing = |score: &Option<T>| score.map(|_| zero);
            return Self {
                weights: scores.iter().map(nothing).collect(),
                sink: zero,
                lse: lowest,
            };
        }
        let total = all().fold(zero, |sum, x| sum + (x - largest).exp());
        let weight = |x: T| (x - largest).exp() / total;
        Self {
            weights: scores.iter().map(|score| score.map(weight)).collect(),
            sink: sink.map_or(zero, weight),
            lse: largest + total.ln(),
        }
    }
}
