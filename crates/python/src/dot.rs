//! Dot-product attention on numpy arrays: forward, backward, and weights after the fact.

use half::{bf16, f16, slice::HalfBitsSliceExt, vec::HalfFloatVecExt};
use numpy::{PyArrayDyn, PyReadonlyArrayDyn};
use pyo3::{prelude::*, types::PyDict};
use regard_kernels::{Attention, Element, View, ViewMut, dot, pool::Kind};

use crate::{
    arrays::{array, refused, slice, view, zeros},
    options::Options,
    threads::kernel,
};

/// Queries, keys, values or an output; half precision as its bits.
#[derive(FromPyObject)]
pub enum Numbers<'py> {
    /// `float32`
    Single(PyReadonlyArrayDyn<'py, f32>),
    /// `bfloat16` or `float16`
    Half(PyReadonlyArrayDyn<'py, u16>),
}

/// What is asked for is stored as `T`.
trait Stored: Element + Default {
    fn view<'a>(name: &str, numbers: &'a Numbers<'_>) -> PyResult<View<'a, Self>>;

    fn array<'py>(
        py: Python<'py>,
        numbers: Vec<Self>,
        shape: &[usize],
    ) -> PyResult<Bound<'py, PyAny>>;
}

impl Stored for f32 {
    fn view<'a>(name: &str, numbers: &'a Numbers<'_>) -> PyResult<View<'a, Self>> {
        match numbers {
            Numbers::Single(array) => view(name, array),
            Numbers::Half(_) => Err(refused(format!("`{name}` is not of float32"))),
        }
    }

    fn array<'py>(
        py: Python<'py>,
        numbers: Vec<Self>,
        shape: &[usize],
    ) -> PyResult<Bound<'py, PyAny>> {
        Ok(array(py, numbers, shape)?.into_any())
    }
}

macro_rules! stored_as_bits {
    ($($half:ty),*) => {$(
        impl Stored for $half {
            fn view<'a>(name: &str, numbers: &'a Numbers<'_>) -> PyResult<View<'a, Self>> {
                match numbers {
                    Numbers::Half(array) => {
                        let View { data, shape, strides } = view(name, array)?;
                        Ok(View { data: data.reinterpret_cast(), shape, strides })
                    }
                    Numbers::Single(_) => Err(refused(format!("`{name}` is not of the same type as `query`"))),
                }
            }

            fn array<'py>(py: Python<'py>, numbers: Vec<Self>, shape: &[usize]) -> PyResult<Bound<'py, PyAny>> {
                Ok(array(py, numbers.reinterpret_into(), shape)?.into_any())
            }
        }
    )*};
}
stored_as_bits!(bf16, f16);

/// `function::<T>(arguments)` for the type of this name.
macro_rules! with_type {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            "float32" => $function::<f32>($($argument),*),
            "bfloat16" => $function::<bf16>($($argument),*),
            "float16" => $function::<f16>($($argument),*),
            other => Err(refused(format!("arrays are of {other}; expected float32, bfloat16 or float16"))),
        }
    };
}

type Arrays<'py> = (Bound<'py, PyAny>, Bound<'py, PyArrayDyn<f32>>);

/// Output `[batch, heads, queries, value_dim]`, stored as the query, and `lse [batch, heads, queries, 3]`.
#[pyfunction]
pub fn dot_forward<'py>(
    py: Python<'py>,
    query: Numbers<'py>,
    key: Numbers<'py>,
    value: Numbers<'py>,
    options: &Bound<'py, PyDict>,
    dtype: &str,
) -> PyResult<Arrays<'py>> {
    with_type!(dtype, forward(py, [&query, &key, &value], options))
}

fn forward<'py, T: Stored>(
    py: Python<'py>,
    [query, key, value]: [&Numbers<'py>; 3],
    options: &Bound<'py, PyDict>,
) -> PyResult<Arrays<'py>> {
    let options = Options::read(options)?;
    let attention = options.attention()?;
    let query = T::view("query", query)?;
    let (key, value) = (T::view("key", key)?, T::view("value", value)?);
    let [batch, heads, queries, _] = query.shape;
    let shape = [batch, heads, queries, value.shape[3]];
    let of_lse = [batch, heads, queries, 3];
    let (mut output, mut lse) = (zeros::<T>(&shape)?, zeros::<f32>(&of_lse)?);
    kernel(py, products(query.shape, key.shape), || {
        let output = ViewMut::heads_first(&mut output, shape);
        dot::forward_stored(&attention, query, key, value, output, Some(&mut lse))
    })?;
    Ok((T::array(py, output, &shape)?, array(py, lse, &of_lse)?))
}

/// The gradients of query, key and value, of the bias if it is asked for, and of the sink if there is one, all of `float32`.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "those of the kernel")]
pub fn dot_backward<'py>(
    py: Python<'py>,
    query: Numbers<'py>,
    key: Numbers<'py>,
    value: Numbers<'py>,
    output: Numbers<'py>,
    lse: PyReadonlyArrayDyn<'py, f32>,
    d_output: Numbers<'py>,
    options: &Bound<'py, PyDict>,
    dtype: &str,
    of_bias: bool,
) -> PyResult<Gradients<'py>> {
    let numbers = [&query, &key, &value, &output, &d_output];
    with_type!(dtype, backward(py, numbers, &lse, options, of_bias))
}

type Gradients<'py> = (
    [Bound<'py, PyArrayDyn<f32>>; 3],
    Option<Bound<'py, PyArrayDyn<f32>>>,
    Option<Bound<'py, PyArrayDyn<f32>>>,
);

fn backward<'py, T: Stored>(
    py: Python<'py>,
    [query, key, value, output, d_output]: [&Numbers<'py>; 5],
    lse: &PyReadonlyArrayDyn<'py, f32>,
    options: &Bound<'py, PyDict>,
    of_bias: bool,
) -> PyResult<Gradients<'py>> {
    let options = Options::read(options)?;
    let attention = options.attention()?;
    let query = T::view("query", query)?;
    let (key, value) = (T::view("key", key)?, T::view("value", value)?);
    let (output, d_output) = (T::view("output", output)?, T::view("d_output", d_output)?);
    let lse = slice("lse", lse)?;
    let shapes = [query.shape, key.shape, value.shape];
    let [mut d_query, mut d_key, mut d_value] =
        [zeros(&shapes[0])?, zeros(&shapes[1])?, zeros(&shapes[2])?];
    let of_bias = attention.bias.filter(|_| of_bias).map(|bias| bias.shape);
    let mut d_bias = of_bias.map(|shape| zeros(&shape)).transpose()?;
    let mut d_sink = attention.sink.map(|sink| vec![0.0; sink.len()]);
    kernel(py, products(query.shape, key.shape), || {
        let gradients = dot::Gradients {
            query: ViewMut::heads_first(&mut d_query, shapes[0]),
            key: ViewMut::heads_first(&mut d_key, shapes[1]),
            value: ViewMut::heads_first(&mut d_value, shapes[2]),
            bias: (d_bias.as_mut().zip(of_bias))
                .map(|(numbers, shape)| ViewMut::heads_first(numbers, shape)),
            sink: d_sink.as_deref_mut(),
        };
        dot::backward_stored(
            &attention, query, key, value, output, lse, d_output, gradients,
        )
    })?;
    let d_bias = d_bias
        .zip(of_bias)
        .map(|(numbers, shape)| array(py, numbers, &shape));
    let d_sink = d_sink.map(|numbers| {
        let heads = numbers.len();
        array(py, numbers, &[heads])
    });
    let of_inputs = [
        array(py, d_query, &shapes[0])?,
        array(py, d_key, &shapes[1])?,
        array(py, d_value, &shapes[2])?,
    ];
    Ok((of_inputs, d_bias.transpose()?, d_sink.transpose()?))
}

/// Multiply-adds of all scores.
fn products([batch, heads, queries, dim]: [usize; 4], key: [usize; 4]) -> f64 {
    [batch, heads, queries, dim, key[2]]
        .map(|size| size as f64)
        .iter()
        .product()
}

/// The arguments of what is computed after the fact, in `float32`.
struct Seen<'a> {
    attention: Attention<'a>,
    query: View<'a>,
    key: View<'a>,
    lse: &'a [f32],
}

impl<'a> Seen<'a> {
    fn new(
        query: &'a PyReadonlyArrayDyn<'_, f32>,
        key: &'a PyReadonlyArrayDyn<'_, f32>,
        lse: &'a PyReadonlyArrayDyn<'_, f32>,
        options: &'a Options<'_>,
    ) -> PyResult<Self> {
        Ok(Self {
            attention: options.attention()?,
            query: view("query", query)?,
            key: view("key", key)?,
            lse: slice("lse", lse)?,
        })
    }

    fn products(&self) -> f64 {
        products(self.query.shape, self.key.shape)
    }
}

/// A dictionary of what was asked for, from the `lse` of [`dot_forward`] with the same arguments: `rows [batch, heads, rows, keys]`, the
/// weights of some queries; `entropy [batch, heads, queries]` in nats; `column_sums [batch, heads, keys]`; `top_weights` and `top_keys`
/// `[batch, heads, queries, k]`.
#[pyfunction]
#[pyo3(signature = (query, key, lse, options, *, rows=None, entropy=false, column_sums=false, top=None))]
#[allow(clippy::too_many_arguments, reason = "keywords of one call")]
pub fn dot_observe<'py>(
    py: Python<'py>,
    query: PyReadonlyArrayDyn<'py, f32>,
    key: PyReadonlyArrayDyn<'py, f32>,
    lse: PyReadonlyArrayDyn<'py, f32>,
    options: &Bound<'py, PyDict>,
    rows: Option<Vec<usize>>,
    entropy: bool,
    column_sums: bool,
    top: Option<usize>,
) -> PyResult<Bound<'py, PyDict>> {
    let options = Options::read(options)?;
    let seen = Seen::new(&query, &key, &lse, &options)?;
    let ([batch, heads, queries, _], keys) = (seen.query.shape, seen.key.shape[2]);
    let of_rows = [batch, heads, rows.as_ref().map_or(0, Vec::len), keys];
    let of_top = [batch, heads, queries, top.unwrap_or(0)];
    let mut weights = zeros(&of_rows)?;
    let some = |wanted: bool, last: usize| [batch, heads, if wanted { last } else { 0 }];
    let (of_entropy, of_sums) = (some(entropy, queries), some(column_sums, keys));
    let (mut nats, mut sums) = (zeros(&of_entropy)?, zeros(&of_sums)?);
    let (mut top_weights, mut top_keys) = (zeros(&of_top)?, zeros::<u32>(&of_top)?);
    kernel(py, seen.products(), || {
        let observe = dot::Observe {
            rows: rows.as_ref().map(|rows| (&rows[..], &mut weights[..])),
            entropy: entropy.then_some(&mut nats[..]),
            column_sums: column_sums.then_some(&mut sums[..]),
            top: top.map(|k| dot::Top {
                k,
                weights: &mut top_weights,
                keys: &mut top_keys,
            }),
        };
        dot::observe(&seen.attention, seen.query, seen.key, seen.lse, observe)
    })?;
    let found = PyDict::new(py);
    if rows.is_some() {
        found.set_item("rows", array(py, weights, &of_rows)?)?;
    }
    if entropy {
        found.set_item("entropy", array(py, nats, &of_entropy)?)?;
    }
    if column_sums {
        found.set_item("column_sums", array(py, sums, &of_sums)?)?;
    }
    if top.is_some() {
        found.set_item("top_weights", array(py, top_weights, &of_top)?)?;
        found.set_item("top_keys", array(py, top_keys, &of_top)?)?;
    }
    Ok(found)
}

/// Weights of some queries and keys as cells `[batch, heads, rows, columns]`, each the largest weight (`kind = "max"`) or their mean
/// (`"mean"`), without the map itself.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "those of the kernel")]
pub fn dot_pool<'py>(
    py: Python<'py>,
    query: PyReadonlyArrayDyn<'py, f32>,
    key: PyReadonlyArrayDyn<'py, f32>,
    lse: PyReadonlyArrayDyn<'py, f32>,
    options: &Bound<'py, PyDict>,
    queries: (usize, usize),
    keys: (usize, usize),
    cells: (usize, usize),
    kind: &str,
) -> PyResult<Bound<'py, PyArrayDyn<f32>>> {
    let options = Options::read(options)?;
    let seen = Seen::new(&query, &key, &lse, &options)?;
    let kind = match kind {
        "max" => Kind::Max,
        "mean" => Kind::Mean,
        other => {
            return Err(refused(format!(
                "`kind` is {other:?}, expected \"max\" or \"mean\""
            )));
        }
    };
    let [batch, heads, ..] = seen.query.shape;
    let (rows, columns) = cells;
    let shape = [batch, heads, rows, columns];
    let mut numbers = zeros(&shape)?;
    kernel(py, seen.products(), || {
        let pooled = dot::Pooled {
            queries: queries.0..queries.1,
            keys: keys.0..keys.1,
            rows,
            columns,
            kind,
            cells: &mut numbers,
        };
        dot::pool(&seen.attention, seen.query, seen.key, seen.lse, pooled)
    })?;
    array(py, numbers, &shape)
}
