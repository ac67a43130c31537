//! numpy arrays as the slices and views of the kernels.

use std::{fmt::Display, hint::black_box};

use numpy::{Element, PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::{
    exceptions::{PyOverflowError, PyTypeError, PyUnicodeEncodeError, PyValueError},
    prelude::*,
};
use regard_kernels::{KernelError, View};

/// What kernels say of arguments that is said in another way in Python.
const NAMES: [(&str, &str); 11] = [
    ("`keep`", "`mask`"),
    ("documents.query", "documents[0]"),
    ("documents.key", "documents[1]"),
    ("blocks.query_size", "blocks[0]"),
    ("blocks.key_size", "blocks[1]"),
    ("blocks.table", "blocks[2]"),
    ("relative.zero", "relative[1]"),
    ("dropout.probability", "dropout[0]"),
    ("offsets.query", "offsets[0]"),
    ("offsets.key", "offsets[1]"),
    // Advice for Rust.
    (": pass a contiguous slice of exactly that shape", ""),
];

/// An error that names the argument, as a `ValueError`.
pub fn refused(error: impl Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The argument `name`, of a type that messages call `expected`. What is extracted by PyO3 has no name in its message.
///
/// # Errors
/// TypeError for another type; ValueError for a text that UTF-8 cannot hold.
pub fn argument<'a, 'py, T: FromPyObject<'a, 'py>>(
    name: &str,
    given: &'a Bound<'py, PyAny>,
    expected: &str,
) -> PyResult<T> {
    given.extract::<T>().map_err(|error| {
        let error: PyErr = error.into();
        match error.is_instance_of::<PyUnicodeEncodeError>(given.py()) {
            true => refused(format!(
                "`{name}` has half of a surrogate pair: expected a text that UTF-8 can hold"
            )),
            false => PyTypeError::new_err(format!("`{name}` is no {expected}")),
        }
    })
}

/// The argument `name` as a number that counts from 0; none for one below 0, or that is larger than any number of things.
///
/// # Errors
/// TypeError for what is no whole number.
pub fn counted(name: &str, given: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    match given.extract::<usize>() {
        Ok(number) => Ok(Some(number)),
        Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => Ok(None),
        Err(_) => Err(PyTypeError::new_err(format!("`{name}` is no whole number"))),
    }
}

/// An error of a kernel as a `ValueError`, with the arguments' names of Python.
pub fn refused_by_kernel(error: KernelError) -> PyErr {
    let named = |message: String, (inner, name): (&str, &str)| message.replace(inner, name);
    refused(NAMES.into_iter().fold(error.to_string(), named))
}

/// An array as `[batch, heads, length, dim]`; where there are no numbers, its strides do not matter.
///
/// # Errors
/// Another number of axes; a last axis whose numbers do not follow each other; strides that are negative or no whole numbers.
pub fn view<'a, T: Element>(
    name: &str,
    array: &'a PyReadonlyArrayDyn<'_, T>,
) -> PyResult<View<'a, T>> {
    let found = array.shape();
    let shape: [usize; 4] = found.try_into().map_err(|_| {
        refused(format!(
            "`{name}` has the shape {found:?}, expected four axes: [batch, heads, length, dim]"
        ))
    })?;
    if shape.contains(&0) {
        return Ok(View {
            data: &[],
            shape,
            strides: [0; 3],
        });
    }
    let size = size_of::<T>() as isize;
    let strides = array.strides();
    let [batch, heads, length, dim] = [0, 1, 2, 3].map(|axis| match shape[axis] {
        1 => Some(0),
        _ => usize::try_from(strides[axis] / size)
            .ok()
            .filter(|_| strides[axis] >= 0 && strides[axis] % size == 0),
    });
    let (Some(batch), Some(heads), Some(length), Some(0 | 1)) = (batch, heads, length, dim) else {
        return Err(refused(format!(
            "`{name}` has strides of {strides:?} bytes, which a kernel cannot read: pass numpy.ascontiguousarray({name})"
        )));
    };
    if dim == Some(0) && shape[3] > 1 {
        return Err(refused(format!(
            "`{name}` repeats one number along its last axis: pass numpy.ascontiguousarray({name})"
        )));
    }
    let strides = [batch, heads, length];
    let steps = shape.iter().zip(&strides);
    let last: usize = steps.map(|(size, stride)| (size - 1) * stride).sum();
    // SAFETY: numpy gave the array memory for each number that its shape and strides reach; with no negative stride these lie
    // between the first one and this end. The borrow keeps the array alive, and other code of this crate from writing to it.
    let data: &[T] =
        unsafe { std::slice::from_raw_parts(array.as_array().as_ptr(), last + shape[3]) };
    Ok(View {
        data,
        shape,
        strides,
    })
}

/// The numbers of an array whose rows follow each other, the last axis the fastest.
///
/// # Errors
/// Any other array; one in Fortran's order, too.
pub fn slice<'a, T: Element>(
    name: &str,
    array: &'a PyReadonlyArrayDyn<'_, T>,
) -> PyResult<&'a [T]> {
    let numbers = array.as_slice().ok();
    numbers.filter(|_| array.is_c_contiguous()).ok_or_else(|| {
        refused(format!(
            "`{name}` is not contiguous: pass numpy.ascontiguousarray({name})"
        ))
    })
}

/// The numbers of an array of this shape, whose axes are `axes`.
///
/// # Errors
/// Another shape, or as [`slice`].
pub fn shaped<'a, T: Element>(
    name: &str,
    array: &'a PyReadonlyArrayDyn<'_, T>,
    axes: &str,
    shape: &[usize],
) -> PyResult<&'a [T]> {
    let found = array.shape();
    if found != shape {
        return Err(refused(format!(
            "`{name}` has the shape {found:?}, expected {shape:?}: {axes}"
        )));
    }
    slice(name, array)
}

/// `numbers` as an array.
pub fn array<'py, T: Element>(
    py: Python<'py>,
    numbers: Vec<T>,
    shape: &[usize],
) -> PyResult<Bound<'py, PyArrayDyn<T>>> {
    numpy::PyArray1::from_vec(py, numbers).reshape(shape)
}

/// Zeros for an array of this shape.
///
/// # Errors
/// More numbers than can be addressed, or than there is memory for.
pub fn zeros<T: Clone + Default>(shape: &[usize]) -> PyResult<Vec<T>> {
    let count = shape
        .iter()
        .try_fold(1usize, |all, &size| all.checked_mul(size));
    // Asked for and given back, as the allocation below ends the process where there is not so much; that one gets zeros from the system,
    // and touches no memory here. `black_box` keeps the two from becoming one.
    let room = |count| black_box(&mut Vec::<T>::new()).try_reserve_exact(count);
    match count.map(|count| (count, room(count))) {
        Some((count, Ok(()))) => Ok(vec![T::default(); count]),
        _ => Err(pyo3::exceptions::PyMemoryError::new_err(format!(
            "no memory for a result of the shape {shape:?}"
        ))),
    }
}
