//! Maps of long texts: windows computed from queries and keys when the page asks for them.
//!
//! A window is pooled to cells of a power of two tokens, counted from the first token, so that windows of one size share cells. The
//! first window of large cells computes the whole map in *base* cells, small enough for any zoom that would take long otherwise;
//! later windows of large cells are pooled from it, and those of small cells are computed at once.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use regard_kernels::pool::Kind;
use regard_trace::{LongHead, LongTrace};

use crate::data::{HeadOverview, MOST_SIDE, MapOverview, Pool, SMALL, Window, shown};

/// The most tokens that the page shows.
pub const MOST_TOKENS: usize = 1 << 20;

/// The most base cells on a side of a map.
const BASE: usize = 8192;

/// Base maps that are kept, of up to 256 MB each, and heads, of up to 50 MB at 100,000 tokens.
const KEPT: usize = 3;

/// The most pairs of all heads for which the overview is computed: some seconds.
const MOST_PAIRS: f64 = 3e10;

/// The most tokens for which the overview has entropies.
const MEASURED: usize = 16_384;

/// What the request wants, or that nobody waits for it any more.
pub enum Late {
    /// A sentence.
    Wrong(String),
    /// The page has moved on.
    Cancelled,
}

/// A head, by map and index.
pub type Place = (usize, usize);

/// A part of a head's map.
pub struct Part {
    pub place: Place,
    pub queries: Range<usize>,
    pub keys: Range<usize>,
}

/// Values that were used last, the latest at the end.
type Kept<K, V> = Mutex<Vec<(K, V)>>;

/// A base map, by head.
type Pooled = (Place, Pool);

/// A whole map in base cells, `[rows, columns]`.
struct Base {
    cell: usize,
    columns: usize,
    cells: Vec<f32>,
}

/// A long trace on the server.
pub struct Long {
    pub trace: Arc<LongTrace>,
    heads: Kept<Place, Arc<LongHead>>,
    bases: Kept<Pooled, Arc<Base>>,
    /// The first rows of a base map that nobody waited for any more.
    begun: Mutex<Option<(Pooled, Vec<f32>)>>,
    overview: OnceLock<Vec<MapOverview>>,
}

/// The value of a key, moved to the end of the list; a new one drops the first if there are too many.
fn kept<K: PartialEq, V: Clone, E>(
    list: &Kept<K, V>,
    key: K,
    make: impl FnOnce() -> Result<V, E>,
) -> Result<V, E> {
    let lock = || list.lock().unwrap_or_else(PoisonError::into_inner);
    let found = {
        let mut list = lock();
        let place = list.iter().position(|(one, _)| *one == key);
        place.map(|place| {
            let entry = list.remove(place);
            let value = entry.1.clone();
            list.push(entry);
            value
        })
    };
    if let Some(value) = found {
        return Ok(value);
    }
    let value = make()?;
    let mut list = lock();
    list.push((key, value.clone()));
    if list.len() > KEPT {
        list.remove(0);
    }
    Ok(value)
}

impl Long {
    pub fn new(trace: Arc<LongTrace>) -> Self {
        Self {
            trace,
            heads: Mutex::default(),
            bases: Mutex::default(),
            begun: Mutex::default(),
            overview: OnceLock::new(),
        }
    }

    /// How many queries and keys a map has.
    fn shape(&self, map: usize) -> [usize; 2] {
        [self.trace.queries(map), self.trace.keys(map)].map(|axis| axis.len())
    }

    /// The longer side of a map.
    fn longest(&self, map: usize) -> usize {
        self.shape(map).into_iter().max().unwrap_or(0)
    }

    fn head(&self, (map, index): Place) -> Result<Arc<LongHead>, Late> {
        kept(&self.heads, (map, index), || {
            let head = self.trace.head(map, index);
            head.map(Arc::new)
                .map_err(|error| Late::Wrong(error.to_string()))
        })
    }

    /// The weights of these queries and keys, in cells of at least `cell` tokens, and so large that there are at most [`MOST_SIDE`] of
    /// them. Queries and keys that begin inside a cell are those of the whole cell.
    ///
    /// # Errors
    /// A file that cannot be read, or `cancelled`.
    pub fn window(
        &self,
        part: Part,
        cell: usize,
        pool: Pool,
        cancelled: &AtomicBool,
    ) -> Result<Window, Late> {
        let Part {
            place,
            queries,
            keys,
        } = part;
        let longest = queries.len().max(keys.len());
        let most = cell.min(self.longest(place.0));
        let least = longest.div_ceil(MOST_SIDE).max(most);
        let cell = least.max(1).next_power_of_two();
        let whole = |part: Range<usize>| part.start / cell * cell..part.end;
        let (queries, keys) = (whole(queries), whole(keys));
        let base = self.base_cell(place.0);
        let values = match cell >= base {
            false => aligned(&*self.head(place)?, &queries, &keys, cell, pool)?,
            true => {
                let map = self.base(place, pool, cancelled)?;
                map.pooled(&queries, &keys, cell, self.shape(place.0), pool)
            }
        };
        Ok(Window {
            rows: queries.len().div_ceil(cell),
            columns: keys.len().div_ceil(cell),
            values,
        })
    }

    fn base_cell(&self, map: usize) -> usize {
        self.longest(map).div_ceil(BASE).next_power_of_two()
    }

    /// The whole map of a head; rows are computed a few at a time, so that it ends soon when nobody waits for it.
    fn base(&self, place: Place, pool: Pool, cancelled: &AtomicBool) -> Result<Arc<Base>, Late> {
        kept(&self.bases, (place, pool), || {
            let head = self.head(place)?;
            let (cell, [length, keys]) = (self.base_cell(place.0), self.shape(place.0));
            let [side, columns] = [length, keys].map(|length| length.div_ceil(cell));
            let begun = || self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            let mut cells = match begun().take() {
                Some((of, cells)) if of == (place, pool) => cells,
                _ => Vec::with_capacity(side * columns),
            };
            let step = side.div_ceil(64).max(1) * cell;
            for first in (cells.len() / columns * cell..length).step_by(step) {
                if cancelled.load(Ordering::Relaxed) {
                    *begun() = Some(((place, pool), cells));
                    return Err(Late::Cancelled);
                }
                let rows = first..(first + step).min(length);
                cells.append(&mut aligned(&head, &rows, &(0..keys), cell, pool)?);
            }
            Ok(Arc::new(Base {
                cell,
                columns,
                cells,
            }))
        })
    }

    /// Every head small, with what one pass tells of it. Computed once; of maps that would take long, names alone.
    pub fn overview(&self) -> &[MapOverview] {
        self.overview.get_or_init(|| {
            let maps = self.trace.maps();
            let pairs = maps.iter().enumerate().map(|(index, map)| {
                let [queries, keys] = self.shape(index).map(|length| length as f64);
                map.heads().len() as f64 * queries * keys
            });
            let pairs: f64 = pairs.sum();
            let maps = maps.iter().enumerate().map(|(map, of)| MapOverview {
                heads: (of.heads().iter().enumerate())
                    .map(|(index, number)| {
                        let name = format!("layer {} head {}", of.layer() + 1, number + 1);
                        match pairs <= MOST_PAIRS {
                            true => self.small((map, index), &name),
                            false => HeadOverview::named(&name, "open it to see its map"),
                        }
                    })
                    .collect(),
            });
            maps.collect()
        })
    }

    fn small(&self, place: Place, name: &str) -> HeadOverview {
        let head = match self.head(place) {
            Ok(head) => head,
            Err(Late::Wrong(error)) => return HeadOverview::named(name, &error),
            Err(Late::Cancelled) => return HeadOverview::named(name, ""),
        };
        let [queries, keys] = self.shape(place.0);
        let [rows, columns] = [queries, keys].map(|length| length.min(SMALL));
        let Ok(cells) = head.pooled(0..queries, 0..keys, rows, columns, Kind::Max) else {
            return HeadOverview::named(name, "");
        };
        let mut found = HeadOverview::named(name, "").with_small(rows, columns, &cells);
        if self.longest(place.0) <= MEASURED
            && let Ok(measures) = head.measures()
        {
            let (count, entropy) = (queries as f64, measures.entropy.iter());
            let mean = entropy.map(|&x| f64::from(x)).sum::<f64>() / count;
            let first = f64::from(measures.column_sums[0]) / count;
            found.entropy = Some(mean);
            found.effective_keys = Some(mean.exp());
            found.first_token = Some(first);
            found.text = shown(
                &format!(
                    "{name}: entropy {mean:.2} nats, {:.0} % of the weight on the first token",
                    100.0 * first
                ),
                400,
            );
        }
        found
    }
}

/// The weights of these queries and keys in cells of `cell` tokens; the last row and the last column may be smaller.
fn aligned(
    head: &LongHead,
    queries: &Range<usize>,
    keys: &Range<usize>,
    cell: usize,
    pool: Pool,
) -> Result<Vec<f32>, Late> {
    let kind = match pool {
        Pool::Mean => Kind::Mean,
        Pool::Max => Kind::Max,
    };
    // Whole cells, and what is left of a last one.
    let parts = |range: &Range<usize>| {
        let whole = range.len() / cell;
        let end = range.start + whole * cell;
        [
            (range.start..end, whole, 0),
            (end..range.end, usize::from(end < range.end), whole),
        ]
    };
    let (rows, columns) = (queries.len().div_ceil(cell), keys.len().div_ceil(cell));
    let mut values = vec![0.0; rows * columns];
    for (queries, high, top) in parts(queries) {
        for (keys, wide, left) in parts(keys) {
            let part = head
                .pooled(queries.clone(), keys, high, wide, kind)
                .map_err(|error| Late::Wrong(error.to_string()))?;
            for (row, part) in part.chunks_exact(wide.max(1)).enumerate() {
                values[(top + row) * columns + left..][..wide].copy_from_slice(part);
            }
        }
    }
    Ok(values)
}

impl Base {
    /// Cells of a multiple of the base cells.
    fn pooled(
        &self,
        queries: &Range<usize>,
        keys: &Range<usize>,
        cell: usize,
        shape: [usize; 2],
        pool: Pool,
    ) -> Vec<f32> {
        let bases = |range: &Range<usize>| -> Vec<Range<usize>> {
            let starts = range.clone().step_by(cell);
            let ends = starts.clone().map(|start| (start + cell).min(range.end));
            let bases = starts.zip(ends);
            bases
                .map(|(start, end)| start / self.cell..end.div_ceil(self.cell))
                .collect()
        };
        let tokens = |base: usize, length: usize| (length - base * self.cell).min(self.cell) as f64;
        let columns = bases(keys);
        let mut values = Vec::with_capacity(columns.len() * queries.len().div_ceil(cell));
        for rows in bases(queries) {
            for columns in &columns {
                let (mut most, mut sum, mut pairs) = (0.0f32, 0.0, 0.0);
                for row in rows.clone() {
                    for column in columns.clone() {
                        let value = self.cells[row * self.columns + column];
                        let count = tokens(row, shape[0]) * tokens(column, shape[1]);
                        most = most.max(value);
                        sum += f64::from(value) * count;
                        pairs += count;
                    }
                }
                values.push(match pool {
                    Pool::Max => most,
                    Pool::Mean => (sum / pairs) as f32,
                });
            }
        }
        values
    }
}
