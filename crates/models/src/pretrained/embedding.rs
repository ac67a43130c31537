//! Tokens as vectors: `norm(scale · table[token] + position + type)`.

use std::sync::Arc;

use regard_kernels::{
    matmul::Storage,
    stack::{NormWeights, Product},
};

use super::{
    error::PretrainedError,
    folder::Weights,
    language_model::InputError,
    source::{Expected, Matrix, Norm},
};
use crate::generator::expect_valid;

/// How the place of a token in its text is added to its vector.
#[derive(Debug, Clone, PartialEq)]
pub enum Positions<T> {
    /// Not at all: attention knows of it.
    None,
    /// A row of a table `[positions, model]`, the first token's being row `first`.
    Table {
        /// The table.
        table: T,
        /// The row of the first token.
        first: usize,
    },
    /// `sin(p / 10000^(2 k / model))` for each `k` below `model / 2`, and the cosines: after all sines (Marian), or each after its sine
    /// (Vaswani 2017).
    Sines {
        /// Whether each cosine stands after its sine.
        interleaved: bool,
    },
}

/// The embeddings of a model, by the names of their weights.
#[derive(Debug, Clone)]
pub struct EmbeddingSource {
    /// `[vocabulary, model]`
    pub tokens: Matrix,
    /// The factor of the tokens' vectors (Gemma, Marian: `√model`).
    pub scale: f32,
    /// Positions.
    pub positions: Positions<Matrix>,
    /// A token that takes no place in a text: it has the row of the table before that of the first token (RoBERTa's padding).
    pub padding: Option<u32>,
    /// `[types, model]`
    pub types: Option<Matrix>,
    /// The norm of the sum.
    pub norm: Option<Norm>,
    /// The longest text, in tokens.
    pub context: usize,
}

/// The embeddings of a model.
#[derive(Debug, Clone)]
pub(super) struct Embedding {
    pub(super) tokens: Arc<Product>,
    pub(super) scale: f32,
    pub(super) positions: Positions<Product>,
    pub(super) padding: Option<u32>,
    pub(super) types: Option<Product>,
    pub(super) norm: Option<NormWeights>,
    pub(super) context: usize,
}

impl EmbeddingSource {
    /// Those of `tokens` alone.
    pub fn new(tokens: Matrix, context: usize) -> Self {
        Self {
            tokens,
            scale: 1.0,
            positions: Positions::None,
            padding: None,
            types: None,
            norm: None,
            context,
        }
    }

    /// Adds its weights but the table of tokens to `expected`.
    pub(super) fn expect(&self, expected: Expected) -> Expected {
        let table = match &self.positions {
            Positions::Table { table, .. } => Some(table),
            _ => None,
        };
        let expected = expected.matrix(table).matrix(self.types.as_ref());
        expected.norm(self.norm.as_ref())
    }

    pub(super) fn read(
        self,
        tokens: Arc<Product>,
        weights: &Weights<'_>,
        storage: Option<Storage>,
    ) -> Result<Embedding, PretrainedError> {
        let read = |matrix: &Matrix| matrix.read(weights, storage);
        Ok(Embedding {
            tokens,
            scale: self.scale,
            positions: match &self.positions {
                Positions::None => Positions::None,
                Positions::Sines { interleaved } => Positions::Sines {
                    interleaved: *interleaved,
                },
                Positions::Table { table, first } => Positions::Table {
                    table: read(table)?,
                    first: *first,
                },
            },
            padding: self.padding,
            types: self.types.as_ref().map(read).transpose()?,
            norm: self.norm.map(|norm| norm.read(weights)).transpose()?,
            context: self.context,
        })
    }
}

impl Embedding {
    /// The size of the vocabulary.
    pub(super) fn vocabulary(&self) -> usize {
        let [_, rows] = self.tokens.sizes();
        rows
    }

    /// The bytes of memory that the tables take.
    pub(super) fn bytes(&self) -> usize {
        let positions = match &self.positions {
            Positions::Table { table, .. } => table.bytes(),
            _ => 0,
        };
        let types = self.types.as_ref().map_or(0, Product::bytes);
        self.tokens.bytes() + positions + types
    }

    /// Checks that `ids` are tokens, and in the context after `before` others.
    pub(super) fn check(&self, ids: &[u32], before: usize) -> Result<(), InputError> {
        let (tokens, context) = (before + ids.len(), self.context);
        if tokens > context {
            return Err(InputError::Long { tokens, context });
        }
        let vocabulary = self.vocabulary();
        match ids.iter().find(|&&id| id as usize >= vocabulary) {
            None => Ok(()),
            Some(&id) => Err(InputError::Token { id, vocabulary }),
        }
    }

    /// Appends the vectors of `ids`, the first of which stands at `first`, with their `types` (0 where there are fewer), to
    /// `to`. Only a table of positions limits the length.
    pub(super) fn embed(
        &self,
        ids: &[u32],
        types: &[u32],
        first: usize,
        to: &mut Vec<f32>,
    ) -> Result<(), InputError> {
        let [size, vocabulary] = self.tokens.sizes();
        let start = to.len();
        to.resize(start + ids.len() * size, 0.0);
        let mut other = vec![0.0; size];
        let mut skipped = 0;
        let rows = to[start..].chunks_exact_mut(size.max(1));
        for ((at, &id), row) in ids.iter().enumerate().zip(rows) {
            if self.tokens.column(id as usize, row).is_err() {
                return Err(InputError::Token { id, vocabulary });
            }
            if self.scale != 1.0 {
                row.iter_mut().for_each(|x| *x *= self.scale);
            }
            if let Some(table) = &self.types {
                let id = types.get(at).copied().unwrap_or(0);
                let [_, vocabulary] = table.sizes();
                if table.column(id as usize, &mut other).is_err() {
                    return Err(InputError::Token { id, vocabulary });
                }
                add(row, &other);
            }
            match &self.positions {
                Positions::None => {}
                Positions::Table {
                    table,
                    first: row_0,
                } => {
                    let place = match self.padding == Some(id) {
                        true => {
                            skipped += 1;
                            row_0.saturating_sub(1)
                        }
                        false => row_0 + first + at - skipped,
                    };
                    if table.column(place, &mut other).is_err() {
                        let (tokens, context) = (first + ids.len(), self.context);
                        return Err(InputError::Long { tokens, context });
                    }
                    add(row, &other);
                }
                Positions::Sines { interleaved } => {
                    sines(first + at, *interleaved, &mut other);
                    add(row, &other);
                }
            }
        }
        if let Some(norm) = &self.norm {
            let normed = expect_valid(norm.apply(&to[start..]));
            to[start..].copy_from_slice(&normed);
        }
        Ok(())
    }
}

fn add(row: &mut [f32], other: &[f32]) {
    row.iter_mut().zip(other).for_each(|(x, y)| *x += y);
}

/// The sines of `position` and its cosines.
fn sines(position: usize, interleaved: bool, to: &mut [f32]) {
    let size = to.len() as f64;
    let angle = |k: usize| position as f64 / 10000f64.powf(2.0 * k as f64 / size);
    let half = to.len().div_ceil(2);
    for (place, x) in to.iter_mut().enumerate() {
        let (k, is_sine) = match interleaved {
            true => (place / 2, place % 2 == 0),
            false => (place % half, place < half),
        };
        let angle = angle(k);
        *x = if is_sine { angle.sin() } else { angle.cos() } as f32;
    }
}
