//! Scores of translations, to the last digit those of sacrebleu.

use pyo3::prelude::*;
use regard_evaluate::{Bleu, Chrf};

use crate::{arrays::refused, threads::detached};

/// The score and its signature; `references[r][i]` is reference `r` of `hypotheses[i]`.
#[pyfunction]
pub fn bleu(
    py: Python<'_>,
    hypotheses: Vec<String>,
    references: Vec<Vec<String>>,
    lowercase: bool,
) -> PyResult<(f64, String)> {
    let metric = Bleu {
        lowercase,
        ..Bleu::default()
    };
    let score = detached(py, || metric.corpus(&hypotheses, &references))?;
    let score = score.map_err(refused)?;
    Ok((score.score, score.signature.to_string()))
}

/// The score and its signature, as [`bleu`]; `word_order` 2 is chrF++.
#[pyfunction]
pub fn chrf(
    py: Python<'_>,
    hypotheses: Vec<String>,
    references: Vec<Vec<String>>,
    word_order: usize,
    lowercase: bool,
) -> PyResult<(f64, String)> {
    let metric = Chrf {
        word_order,
        lowercase,
        ..Chrf::default()
    };
    let score = detached(py, || metric.corpus(&hypotheses, &references))?;
    let score = score.map_err(refused)?;
    Ok((score.score, score.signature.to_string()))
}
