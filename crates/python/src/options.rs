//! The options of dot-product attention, as Python passes them: a dictionary with the names of [`Attention`]'s fields.

use numpy::PyReadonlyArrayDyn;
use pyo3::{prelude::*, types::PyDict};
use regard_kernels::{
    Alignment, Attention, Blocks, Documents, Dropout, Offsets, RelativeBias, Window,
};

use crate::arrays::{refused, slice, view};

/// What is borrowed from Python for one call. Whole numbers in lists are copied, arrays are not.
#[derive(FromPyObject)]
pub struct Options<'py> {
    #[pyo3(item)]
    scale: Option<f32>,
    #[pyo3(item)]
    softcap: Option<f32>,
    #[pyo3(item)]
    upper_left: bool,
    #[pyo3(item)]
    causal: bool,
    #[pyo3(item)]
    window: Option<(Option<usize>, Option<usize>)>,
    #[pyo3(item)]
    prefix: Option<Vec<u32>>,
    #[pyo3(item)]
    lengths: Option<Vec<u32>>,
    #[pyo3(item)]
    mask: Option<PyReadonlyArrayDyn<'py, u8>>,
    #[pyo3(item)]
    documents: Option<(Vec<u32>, Vec<u32>)>,
    #[pyo3(item)]
    blocks: Option<(usize, usize, PyReadonlyArrayDyn<'py, u8>)>,
    #[pyo3(item)]
    bias: Option<PyReadonlyArrayDyn<'py, f32>>,
    #[pyo3(item)]
    relative: Option<(PyReadonlyArrayDyn<'py, f32>, usize)>,
    #[pyo3(item)]
    alibi: Option<PyReadonlyArrayDyn<'py, f32>>,
    #[pyo3(item)]
    sink: Option<PyReadonlyArrayDyn<'py, f32>>,
    #[pyo3(item)]
    dropout: Option<(f32, u64)>,
    #[pyo3(item)]
    offsets: Option<(Vec<u32>, Vec<u32>)>,
}

impl<'py> Options<'py> {
    /// Reads the dictionary.
    ///
    /// # Errors
    /// An option of another type, by name.
    pub fn read(options: &Bound<'py, PyDict>) -> PyResult<Self> {
        options.extract().map_err(|error: PyErr| {
            let cause = error.cause(options.py());
            let cause = cause.map_or_else(String::new, |cause| {
                format!(": {}", cause.value(options.py()))
            });
            refused(format!("{}{cause}", error.value(options.py())))
        })
    }

    /// The options of the kernels.
    ///
    /// # Errors
    /// Arrays that are no `[batch, heads, queries, keys]`; lists of numbers that do not follow each other.
    pub fn attention(&self) -> PyResult<Attention<'_>> {
        let keep = self.mask.as_ref().map(|mask| view("mask", mask));
        let bias = self.bias.as_ref().map(|bias| view("bias", bias));
        let blocks = self.blocks.as_ref().map(|(query_size, key_size, table)| {
            Ok::<_, PyErr>(Blocks {
                query_size: *query_size,
                key_size: *key_size,
                table: view("blocks", table)?,
            })
        });
        let relative = self.relative.as_ref().map(|(values, zero)| {
            Ok::<_, PyErr>(RelativeBias {
                values: slice("relative[0]", values)?,
                zero: *zero,
            })
        });
        let alibi = self.alibi.as_ref().map(|alibi| slice("alibi", alibi));
        let sink = self.sink.as_ref().map(|sink| slice("sink", sink));
        Ok(Attention {
            scale: self.scale,
            softcap: self.softcap,
            alignment: match self.upper_left {
                true => Alignment::UpperLeft,
                false => Alignment::LowerRight,
            },
            causal: self.causal,
            window: self.window.map(|(left, right)| Window { left, right }),
            prefix: self.prefix.as_deref(),
            lengths: self.lengths.as_deref(),
            keep: keep.transpose()?,
            documents: (self.documents.as_ref()).map(|(query, key)| Documents { query, key }),
            blocks: blocks.transpose()?,
            bias: bias.transpose()?,
            relative: relative.transpose()?,
            alibi: alibi.transpose()?,
            sink: sink.transpose()?,
            dropout: (self.dropout).map(|(probability, seed)| Dropout {
                probability,
                seed,
                first_batch: 0,
            }),
            offsets: (self.offsets.as_ref()).map(|(query, key)| Offsets { query, key }),
        })
    }
}
