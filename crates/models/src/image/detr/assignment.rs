//! The cheapest way to give each of `n` things one of `m` others: the assignment problem, solved by the Hungarian method.
//!
//! ```text
//! minimise Σ_i cost(i, a(i))   over all a that give each row a column of its own (rows ≤ columns; else each column a row)
//! ```
//! Rows are added one by one. For each, a shortest path of exchanges ends in a free column (Jonker & Volgenant 1987), along
//! costs reduced by potentials, `cost(i, j) - u_i - v_j ≥ 0`, which are 0 along all chosen pairs; so the choice is the cheapest
//! after each row. **Cost**: `O(rows² · columns)` for rows ≤ columns.
//!
//! Of several cheapest assignments one is given, always the same.
//!
//! ```
//! use regard_models::image::detr::assignment::assign;
//!
//! let cost = [4.0, 1.0, 3.0, 2.0, 0.0, 5.0, 3.0, 2.0, 2.0];
//! assert_eq!(assign(&cost, 3, 3)?, [[0, 1], [1, 0], [2, 2]]); // 1 + 2 + 2
//! assert_eq!(assign(&cost[..6], 3, 2)?, [[0, 1], [2, 0]]); // two columns for three rows: 1 + 0
//! # Ok::<(), regard_models::image::detr::assignment::AssignmentError>(())
//! ```

/// Costs that no assignment can be found for.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AssignmentError {
    /// The costs do not fill the table.
    #[error("{found} costs for {rows} rows and {columns} columns; expected one for each pair")]
    Shape {
        /// Number of costs.
        found: usize,
        /// Rows of the table.
        rows: usize,
        /// Columns of the table.
        columns: usize,
    },
    /// A cost is NaN, infinite, or so large that sums of costs could be.
    #[error(
        "the cost of row {row} and column {column} is {cost}; expected a number from -1e100 to 1e100"
    )]
    Cost {
        /// Its row.
        row: usize,
        /// Its column.
        column: usize,
        /// The cost.
        cost: f64,
    },
}

/// The largest cost: beyond it, differences of sums of costs could become infinite.
const LARGEST: f64 = 1e100;

/// The cheapest pairs `[row, column]` for `costs [rows, columns]`, as many as the smaller side has, in the order of rows.
///
/// # Errors
/// [`AssignmentError`]: costs that do not fill the table or are not finite.
pub fn assign(
    costs: &[f64],
    rows: usize,
    columns: usize,
) -> Result<Vec<[usize; 2]>, AssignmentError> {
    if rows.checked_mul(columns) != Some(costs.len()) {
        return Err(AssignmentError::Shape {
            found: costs.len(),
            rows,
            columns,
        });
    }
    if let Some(place) = costs
        .iter()
        .position(|cost| !(-LARGEST..=LARGEST).contains(cost))
    {
        return Err(AssignmentError::Cost {
            row: place / columns,
            column: place % columns,
            cost: costs[place],
        });
    }
    let cost = |row: usize, column: usize| costs[row * columns + column];
    let mut pairs: Vec<[usize; 2]> = match rows <= columns {
        true => columns_of_rows(rows, columns, cost),
        false => {
            let pairs = columns_of_rows(columns, rows, |row, column| cost(column, row));
            pairs
                .into_iter()
                .map(|[row, column]| [column, row])
                .collect()
        }
    };
    pairs.sort_unstable();
    Ok(pairs)
}

/// The pairs for `rows <= columns`.
fn columns_of_rows(
    rows: usize,
    columns: usize,
    cost: impl Fn(usize, usize) -> f64,
) -> Vec<[usize; 2]> {
    // Column `columns` stands for "none": the row that is being added is paired with it at first.
    let none = columns;
    let mut row_of: Vec<Option<usize>> = vec![None; columns + 1];
    let (mut u, mut v) = (vec![0.0; rows], vec![0.0; columns + 1]);
    for added in 0..rows {
        row_of[none] = Some(added);
        // The reduced cost of the shortest path to each column, and the column before it on that path.
        let mut shortest = vec![f64::INFINITY; columns];
        let mut before = vec![none; columns];
        let mut reached = vec![false; columns + 1];
        let mut at = none;
        while let Some(row) = row_of[at] {
            reached[at] = true;
            let mut next = none;
            let mut least = f64::INFINITY;
            for column in 0..columns {
                if reached[column] {
                    continue;
                }
                let reduced = cost(row, column) - u[row] - v[column];
                if reduced < shortest[column] {
                    (shortest[column], before[column]) = (reduced, at);
                }
                if shortest[column] < least {
                    (least, next) = (shortest[column], column);
                }
            }
            for column in 0..=columns {
                match row_of[column] {
                    Some(row) if reached[column] => {
                        u[row] += least;
                        v[column] -= least;
                    }
                    _ if column < columns => shortest[column] -= least,
                    _ => {}
                }
            }
            at = next;
        }
        // Every row on the path takes the column after it.
        while at != none {
            row_of[at] = row_of[before[at]];
            at = before[at];
        }
    }
    let pairs = row_of[..columns].iter().enumerate();
    pairs
        .filter_map(|(column, row)| Some([(*row)?, column]))
        .collect()
}
