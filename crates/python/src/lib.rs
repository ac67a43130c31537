//! The part of the Python package `regard` that is written in Rust, `regard._regard`: kernels on numpy arrays, traces and pictures, scores
//! of translations, models. What users import is in `python/regard`; its functions bring arrays into the form that is asked for here.
//!
//! No number is copied on the way in: arrays are read where they are, with any strides whose last is 1. The interpreter is not held while
//! a kernel runs.

mod additive;
mod arrays;
mod dot;
mod models;
mod options;
mod scores;
mod threads;
mod trace;

use pyo3::prelude::*;
use regard::train::text_to_text::WIDEST_BEAM;

#[pymodule]
mod _regard {
    #[pymodule_export]
    use super::additive::{additive_backward, additive_forward};
    #[pymodule_export]
    use super::dot::{dot_backward, dot_forward, dot_observe, dot_pool};
    #[pymodule_export]
    use super::models::{Model, open_model};
    #[pymodule_export]
    use super::scores::{bleu, chrf};
    #[pymodule_export]
    use super::trace::{
        LongFile, Served, Trace, read_traces, serve_traces, traces_page, write_traces,
    };

    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        threads::at_home();
        module.add("WIDEST_BEAM", WIDEST_BEAM)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
