//! One head of a long text.

use std::ops::Range;

use regard_kernels::{Attention, Documents, KernelError, RelativeBias, View, dot, pool::Kind};

use crate::ROW_SUM_TOLERANCE;

/// The largest number of a query or key, or that is added to scores: no product of two rows overflows.
const LARGEST: f32 = 1e15;

/// Global positions that are pooled at a time.
const CHUNK: usize = 64;

/// Queries, keys and `lse` of one head, in memory.
#[derive(Debug, Clone)]
pub struct LongHead {
    /// `[queries, dim]`
    pub(super) query: Vec<f32>,
    /// `[globals + keys, dim]`: in front, once more, the keys of global positions.
    pub(super) key: Vec<f32>,
    /// `[queries, 3]`
    pub(super) lse: Vec<f32>,
    /// How many queries and keys there are.
    pub(super) shape: [usize; 2],
    pub(super) dim: usize,
    /// What its attention has besides the numbers below.
    pub(super) options: Attention<'static>,
    /// Added to scores by distance, and the place of distance 0.
    pub(super) relative: Option<(Vec<f32>, usize)>,
    /// The slope of ALiBi.
    pub(super) alibi: Option<Vec<f32>>,
    pub(super) global: Option<Global>,
}

/// Global positions, which see all and are seen by all, by projections of their own.
#[derive(Debug, Clone)]
pub(super) struct Global {
    /// Ascending.
    positions: Vec<usize>,
    /// `[globals, dim]`
    query: Vec<f32>,
    /// `[keys, dim]`
    key: Vec<f32>,
    /// `[globals, 3]`
    lse: Vec<f32>,
    /// The documents of queries, and of keys as [`LongHead::key`] has them: a global query sees none of them, and a global key is seen
    /// in front.
    documents: [Vec<u32>; 2],
    prefix: [u32; 1],
}

impl Global {
    /// Those of a text of `length` positions, which must hold `positions`.
    pub(super) fn new(
        positions: Vec<usize>,
        length: usize,
        [query, key, lse]: [Vec<f32>; 3],
    ) -> Self {
        let (mut queries, mut keys) = (vec![0; length], vec![0; positions.len() + length]);
        for at in &positions {
            queries[*at] = 1;
            keys[positions.len() + at] = 2;
        }
        Self {
            prefix: [positions.len() as u32],
            documents: [queries, keys],
            positions,
            query,
            key,
            lse,
        }
    }

    /// The global positions in `range`: from which on, and how many, in pieces that are pooled at a time.
    fn inside(&self, range: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let place = |at: usize| self.positions.partition_point(|position| *position < at);
        let (first, end) = (place(range.start), place(range.end));
        let starts = (first..end).step_by(CHUNK);
        starts.map(move |start| start..(start + CHUNK).min(end))
    }
}

/// What a row and a column tell.
#[derive(Debug, Clone, PartialEq)]
pub struct LongMeasures {
    /// `-Σ_j w_ij ln w_ij` of each query, in nats.
    pub entropy: Vec<f32>,
    /// `Σ_i w_ij` of each key.
    pub column_sums: Vec<f32>,
}

impl LongHead {
    /// A sentence, if numbers are not those of a head: the sums of some rows tell.
    pub(super) fn check(&self) -> Result<(), String> {
        let large = |x: &&f32| x.is_nan() || x.abs() > LARGEST;
        let of_global = self.global.iter();
        let of_global = of_global.flat_map(|global| global.query.iter().chain(&global.key));
        let added = self.relative.iter().flat_map(|(values, _)| values);
        let numbers = self.query.iter().chain(&self.key).chain(of_global);
        let mut numbers = numbers.chain(added).chain(self.alibi.iter().flatten());
        if let Some(number) = numbers.find(large) {
            return Err(format!("a query, key or bias holds {number}"));
        }
        let of_global = self.global.iter().flat_map(|global| &global.lse);
        let mut lse = self.lse.iter().chain(of_global);
        if let Some(number) = lse.find(|x| x.is_nan() || **x == f32::INFINITY) {
            return Err(format!("an lse holds {number}"));
        }
        let [queries, keys] = self.shape;
        let last = queries - 1;
        let mut some = vec![0, last / 3, last / 2, last];
        let global = self.global.iter();
        some.extend(global.filter_map(|global| global.positions.last()));
        let rows = self.rows(&some).map_err(|error| error.to_string())?;
        for (row, weights) in some.iter().zip(rows.chunks_exact(keys)) {
            let sum: f64 = weights.iter().map(|&w| f64::from(w)).sum();
            if sum != 0.0 && (sum - 1.0).abs() > ROW_SUM_TOLERANCE {
                return Err(format!(
                    "the weights of query {row} sum to {sum:.4}, not to 1"
                ));
            }
        }
        Ok(())
    }

    /// How many queries and keys there are.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Attention to the keys, without those that stand in front.
    fn attention(&self) -> Attention<'_> {
        Attention {
            relative: (self.relative.as_ref()).map(|(values, zero)| RelativeBias {
                values,
                zero: *zero,
            }),
            alibi: self.alibi.as_deref(),
            documents: self.global.as_ref().map(|global| Documents {
                query: &global.documents[0],
                key: &global.documents[1][global.positions.len()..],
            }),
            ..self.options
        }
    }

    /// Attention that sees all, as that of global positions.
    fn unmasked(&self) -> Attention<'static> {
        Attention {
            causal: false,
            window: None,
            ..self.options
        }
    }

    /// As the model attended: to all keys, with those that stand in front.
    fn whole(&self) -> Attention<'_> {
        Attention {
            prefix: self.global.as_ref().map(|global| &global.prefix[..]),
            documents: self.global.as_ref().map(|global| Documents {
                query: &global.documents[0],
                key: &global.documents[1],
            }),
            ..self.attention()
        }
    }

    fn copies(&self) -> usize {
        (self.global.as_ref()).map_or(0, |global| global.positions.len())
    }

    /// `numbers [rows, dim]`.
    fn view<'a>(&self, numbers: &'a [f32]) -> View<'a> {
        View::heads_first(numbers, [1, 1, numbers.len() / self.dim, self.dim])
    }

    /// The weights of these queries, `[queries, keys]`.
    ///
    /// # Errors
    /// [`KernelError`] for a query that is not there.
    pub fn rows(&self, queries: &[usize]) -> Result<Vec<f32>, KernelError> {
        let ([_, keys], copies) = (self.shape, self.copies());
        let mut weights = vec![0.0; queries.len() * (copies + keys)];
        let observe = dot::Observe {
            rows: Some((queries, &mut weights)),
            ..dot::Observe::default()
        };
        let [query, key] = [&self.query, &self.key].map(|numbers| self.view(numbers));
        dot::observe(&self.whole(), query, key, &self.lse, observe)?;
        let Some(global) = &self.global else {
            return Ok(weights);
        };
        let mut rows = Vec::with_capacity(queries.len() * keys);
        for (&query, weights) in queries.iter().zip(weights.chunks_exact(copies + keys)) {
            let (front, own) = weights.split_at(copies);
            let row = rows.len();
            match global.positions.binary_search(&query) {
                Err(_) => {
                    rows.extend_from_slice(own);
                    for (at, weight) in global.positions.iter().zip(front) {
                        rows[row + at] += weight;
                    }
                }
                Ok(place) => {
                    rows.resize(row + keys, 0.0);
                    let observe = dot::Observe {
                        rows: Some((&[place], &mut rows[row..])),
                        ..dot::Observe::default()
                    };
                    self.observe_global(global, observe)?;
                }
            }
        }
        Ok(rows)
    }

    fn observe_global(&self, global: &Global, observe: dot::Observe) -> Result<(), KernelError> {
        let [query, key] = [&global.query, &global.key].map(|numbers| self.view(numbers));
        dot::observe(&self.unmasked(), query, key, &global.lse, observe)
    }

    /// Entropies and sums of columns.
    ///
    /// # Errors
    /// [`KernelError`] for numbers that are not those of a head.
    pub fn measures(&self) -> Result<LongMeasures, KernelError> {
        let ([queries, keys], copies) = (self.shape, self.copies());
        let (mut entropy, mut sums) = (vec![0.0; queries], vec![0.0; copies + keys]);
        let observe = dot::Observe {
            entropy: Some(&mut entropy),
            column_sums: Some(&mut sums),
            ..dot::Observe::default()
        };
        let [query, key] = [&self.query, &self.key].map(|numbers| self.view(numbers));
        dot::observe(&self.whole(), query, key, &self.lse, observe)?;
        let mut column_sums = sums.split_off(copies);
        if let Some(global) = &self.global {
            let (mut of_globals, mut to_all) = (vec![0.0; copies], vec![0.0; keys]);
            let observe = dot::Observe {
                entropy: Some(&mut of_globals),
                column_sums: Some(&mut to_all),
                ..dot::Observe::default()
            };
            self.observe_global(global, observe)?;
            for (all, sum) in column_sums.iter_mut().zip(to_all) {
                *all += sum;
            }
            for (place, &at) in global.positions.iter().enumerate() {
                column_sums[at] += sums[place];
                entropy[at] = of_globals[place];
            }
        }
        Ok(LongMeasures {
            entropy,
            column_sums,
        })
    }

    /// Weights of these queries and keys in `rows` times `columns` cells, see [`dot::Pooled`].
    ///
    /// # Errors
    /// [`KernelError`] for a part that is not there, and more cells than there are weights.
    pub fn pooled(
        &self,
        queries: Range<usize>,
        keys: Range<usize>,
        rows: usize,
        columns: usize,
        kind: Kind,
    ) -> Result<Vec<f32>, KernelError> {
        let mut cells = vec![0.0; rows * columns];
        let query = self.view(&self.query);
        let (front, key) = self.key.split_at(self.copies() * self.dim);
        let part = dot::Pooled {
            queries: queries.clone(),
            keys: keys.clone(),
            rows,
            columns,
            kind,
            cells: &mut cells,
        };
        dot::pool(&self.attention(), query, self.view(key), &self.lse, part)?;
        let Some(global) = &self.global else {
            return Ok(cells);
        };
        // A cell takes part of a line of weights that is one high, or one wide, of a cell of `of`.
        let merge = |cell: &mut f32, weight: f32, of: usize| match kind {
            Kind::Max if weight.is_nan() || weight > *cell => *cell = weight,
            Kind::Max => {}
            Kind::Mean => *cell += weight / of as f32,
        };
        let size =
            |range: &Range<usize>, index: usize, cells: usize| dot::cell(range, index, cells).len();
        for globals in global.inside(&keys) {
            // Columns: what the others give to global positions.
            let count = globals.len();
            let mut part = vec![0.0; rows * count];
            let attention = Attention {
                documents: Some(Documents {
                    query: &global.documents[0],
                    key: &global.documents[1][globals.clone()],
                }),
                ..self.unmasked()
            };
            let key = &front[globals.start * self.dim..globals.end * self.dim];
            let pooled = dot::Pooled {
                queries: queries.clone(),
                keys: 0..count,
                rows,
                columns: count,
                kind,
                cells: &mut part,
            };
            dot::pool(&attention, query, self.view(key), &self.lse, pooled)?;
            for (place, at) in global.positions[globals].iter().enumerate() {
                let column = dot::cell_of(&keys, *at, columns);
                let wide = size(&keys, column, columns);
                for row in 0..rows {
                    merge(
                        &mut cells[row * columns + column],
                        part[row * count + place],
                        wide,
                    );
                }
            }
        }
        for globals in global.inside(&queries) {
            // Rows: what global positions give to all.
            let count = globals.len();
            let mut part = vec![0.0; count * columns];
            let of = |size: usize| globals.start * size..globals.end * size;
            let query = &global.query[of(self.dim)];
            let pooled = dot::Pooled {
                queries: 0..count,
                keys: keys.clone(),
                rows: count,
                columns,
                kind,
                cells: &mut part,
            };
            let [query, key] = [query, &global.key].map(|numbers| self.view(numbers));
            dot::pool(&self.unmasked(), query, key, &global.lse[of(3)], pooled)?;
            let lines = part.chunks_exact(columns.max(1));
            for (line, at) in lines.zip(&global.positions[globals.clone()]) {
                let row = dot::cell_of(&queries, *at, rows);
                let high = size(&queries, row, rows);
                let cells = &mut cells[row * columns..][..columns];
                for (cell, weight) in cells.iter_mut().zip(line) {
                    merge(cell, *weight, high);
                }
            }
        }
        Ok(cells)
    }
}
