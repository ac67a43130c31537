//! A table of numbers with names for its rows and columns: what the terminal and SVG pictures draw.
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Tokens};
//! use regard_view::Heatmap;
//!
//! let (keys, queries) = (Tokens::from_words("a man"), Tokens::from_words("ein Mann"));
//! let map = AttentionMap::new(Kind::Cross, queries, keys, 1, vec![0.9, 0.1, 0.2, 0.8])?;
//! let heatmap = Heatmap::from_map(&map);
//! assert_eq!(heatmap.rows(), ["ein", "Mann"]);
//! assert_eq!(heatmap.value(1, 0), 0.2);
//! assert_eq!(heatmap.row_axis(), "target");
//! # Ok::<(), regard_trace::TraceError>(())
//! ```

use regard_trace::{AttentionMap, Trace};

use crate::svg::tick;

/// Numbers `[rows, columns]`, queries downwards and keys to the right.
#[derive(Clone, Debug, PartialEq)]
pub struct Heatmap {
    title: String,
    row_axis: String,
    column_axis: String,
    rows: Vec<String>,
    columns: Vec<String>,
    values: Vec<f32>,
    /// The number whose colour, and that of all below it, is the first, on a logarithmic scale; `None` is 0 on a linear one.
    lowest: Option<f32>,
    /// Whether colours run from the largest size below 0 to the same above 0.
    signed: bool,
}

impl Heatmap {
    /// The mean over the heads of a map.
    pub fn from_map(map: &AttentionMap) -> Self {
        let mean = map.mean_heads();
        let heads = match map.heads() {
            1 => String::new(),
            heads => format!(" · mean of {heads} heads"),
        };
        Self::single(&mean, format!("{}{}{heads}", map.name(), layer_title(map)))
    }

    /// One picture for every head of a map.
    pub fn heads_of(map: &AttentionMap) -> Vec<Self> {
        if map.heads() == 1 {
            return vec![Self::from_map(map)];
        }
        (0..map.heads())
            .filter_map(|head| Some((head, map.head(head).ok()?)))
            .map(|(head, of_head)| {
                let title = format!("{}{} · head {}", map.name(), layer_title(map), head + 1);
                Self::single(&of_head, title)
            })
            .collect()
    }

    /// One picture, the mean over heads, for every map of a trace.
    pub fn maps_of(trace: &Trace) -> Vec<Self> {
        trace.maps.iter().map(Self::from_map).collect()
    }

    fn single(map: &AttentionMap, title: String) -> Self {
        let (row_axis, column_axis) = map.axis_names();
        Self {
            title,
            row_axis: row_axis.to_owned(),
            column_axis: column_axis.to_owned(),
            rows: map.row_labels(),
            columns: map.keys().labels(),
            values: map.weights().to_vec(),
            lowest: None,
            signed: false,
        }
    }

    /// A table of any numbers, such as cosines: `values [rows, columns]`, row-major. Colours begin at 0; what is below has that of 0.
    /// Without a value for each cell there are 0s in the rest; values beyond the last cell are left out.
    pub fn table(rows: Vec<String>, columns: Vec<String>, mut values: Vec<f32>) -> Self {
        values.resize(rows.len() * columns.len(), 0.0);
        Self {
            title: String::new(),
            row_axis: String::new(),
            column_axis: String::new(),
            rows,
            columns,
            values,
            lowest: None,
            signed: false,
        }
    }

    /// The same picture with colours for numbers below and above 0, such as gradients: 0 has the colour in the middle, so that a ramp with
    /// two ends fits ([`Ramp::SIGNED`](crate::colour::Ramp::SIGNED)).
    pub fn signed(self) -> Self {
        Self {
            signed: true,
            lowest: None,
            ..self
        }
    }

    /// Whether colours are for numbers below and above 0.
    pub fn is_signed(&self) -> bool {
        self.signed
    }

    /// The same picture with colours by the logarithm of the numbers, from `lowest` on: for weights that differ by powers of ten.
    /// `lowest` is a number above 0.
    pub fn logarithmic(self, lowest: f32) -> Self {
        Self {
            lowest: Some(lowest).filter(|&lowest| lowest > 0.0 && lowest.is_finite()),
            ..self
        }
    }

    /// The same picture with these names of what the rows and the columns are, such as "target" and "source".
    pub fn with_axes(self, rows: impl Into<String>, columns: impl Into<String>) -> Self {
        Self {
            row_axis: rows.into(),
            column_axis: columns.into(),
            ..self
        }
    }

    /// The same picture under another title.
    pub fn titled(self, title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..self
        }
    }

    /// The title, empty for none.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// What the rows are, such as "target".
    pub fn row_axis(&self) -> &str {
        &self.row_axis
    }

    /// What the columns are, such as "source".
    pub fn column_axis(&self) -> &str {
        &self.column_axis
    }

    /// The names of the rows, as the trace has them.
    pub fn rows(&self) -> &[String] {
        &self.rows
    }

    /// The names of the columns, as the trace has them.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// All numbers, `[rows, columns]`, row-major.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// One number.
    ///
    /// # Panics
    /// If there is no such row or column, as slice indexing does.
    pub fn value(&self, row: usize, column: usize) -> f32 {
        assert!(
            column < self.columns.len(),
            "column {column} of {}",
            self.columns.len()
        );
        self.values[row * self.columns.len() + column]
    }

    /// The largest number, 0 if there is none; of a [signed](Self::signed) picture the largest size.
    pub fn max(&self) -> f32 {
        let values = self.values.iter();
        match self.signed {
            true => values.map(|value| value.abs()).fold(0.0, f32::max),
            false => values.copied().fold(0.0, f32::max),
        }
    }

    /// The smallest number, 0 if there is none.
    pub fn min(&self) -> f32 {
        self.values.iter().copied().reduce(f32::min).unwrap_or(0.0)
    }

    /// The number as a share of the largest, for a colour: 0 to 1.
    pub(crate) fn share(&self, row: usize, column: usize, max: f32) -> f32 {
        let value = self.value(row, column);
        match self.lowest {
            _ if self.signed => match max > 0.0 {
                true => 0.5 + 0.5 * value / max,
                false => 0.5,
            },
            _ if max <= 0.0 => 0.0,
            None => value / max,
            Some(lowest) if value > lowest && max > lowest => {
                (value / lowest).ln() / (max / lowest).ln()
            }
            Some(_) => 0.0,
        }
    }

    /// The number of which the colour is the `share` of the largest, as text.
    pub(crate) fn mark(&self, share: f64, max: f32) -> String {
        match self.lowest.filter(|&lowest| lowest < max) {
            None if self.signed => {
                let value = f64::from(max) * (2.0 * share - 1.0);
                let sign = if value < 0.0 { "-" } else { "" };
                format!("{sign}{}", tick(value.abs(), f64::from(max)))
            }
            None => tick(f64::from(max) * share, f64::from(max)),
            Some(lowest) => format!(
                "{:.1e}",
                f64::from(lowest) * f64::from(max / lowest).powf(share)
            ),
        }
    }

    /// The picture reduced in size: each cell shows the largest number of a tile of `tall` rows and
    /// `wide` columns, or if it is [signed](Self::signed) the one of the largest size. A row is named by the
    /// numbers of the first and last entry that it covers, a column by that of the first.
    pub(crate) fn pooled(&self, tall: usize, wide: usize) -> Self {
        let (tall, wide) = (tall.max(1), wide.max(1));
        let tiles = |labels: &[String], step: usize, name: fn(usize, usize) -> String| {
            if step == 1 {
                return labels.to_vec();
            }
            (0..labels.len())
                .step_by(step)
                .map(|start| name(start + 1, (start + step).min(labels.len())))
                .collect()
        };
        let rows: Vec<String> = tiles(&self.rows, tall, |first, last| format!("{first}-{last}"));
        let columns: Vec<String> = tiles(&self.columns, wide, |first, _| first.to_string());
        let mut values = vec![0.0f32; rows.len() * columns.len()];
        for row in 0..self.rows.len() {
            for column in 0..self.columns.len() {
                let tile = &mut values[row / tall * columns.len() + column / wide];
                let value = self.value(row, column);
                let is_larger = match self.signed {
                    true => value.abs() > tile.abs(),
                    false => value > *tile,
                };
                if is_larger {
                    *tile = value;
                }
            }
        }
        Self {
            rows,
            columns,
            values,
            ..self.clone()
        }
    }
}

fn layer_title(map: &AttentionMap) -> String {
    format!(" · layer {}", map.layer() + 1)
}

/// A number in at most three characters and its sign: `.83`, `-.83`, `1.0`, `7.2`, `120`; nothing where it would round
/// to zero or not fit.
pub(crate) fn short(value: f32) -> String {
    let sign = if value < 0.0 { "-" } else { "" };
    let size = value.abs();
    if size < 0.005 {
        String::new()
    } else if size < 0.995 {
        let digits = format!("{size:.2}");
        format!("{sign}{}", &digits[1..])
    } else if size < 9.95 {
        format!("{sign}{size:.1}")
    } else if size < 999.5 {
        format!("{sign}{size:.0}")
    } else {
        String::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers_are_short() {
        let shown: Vec<String> = [
            0.0, 0.004, 0.006, 0.256, 0.9949, 0.995, 1.0, 9.96, 250.0, 1e9,
        ]
        .map(short)
        .into();
        assert_eq!(
            shown,
            ["", "", ".01", ".26", ".99", "1.0", "1.0", "10", "250", ""]
        );
        assert!((0..20_000).all(|i| short(i as f32 / 10.0).len() <= 3));
        let below = [-0.004, -0.256, -1.0, -250.0, -1e9, f32::NAN].map(short);
        assert_eq!(below, ["", "-.26", "-1.0", "-250", "", ""]);
    }
}
