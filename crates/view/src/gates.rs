//! The factors of channels (squeeze-and-excitation, Hu 2018) as bars.
//!
//! A bar for each channel, from the largest factor to the smallest. For several images, or the means of several classes, a row of
//! bars each, all in the order of the mean over rows, which a line shows: bars off the line are what the class makes of the
//! channel. Where there are more channels than pixels for them, a bar is the mean of neighbours in that order.
//!
//! ```
//! use regard_view::gates::Gates;
//!
//! let gates = Gates::new("stage 1, block 2", vec![
//!     ("cat".to_owned(), vec![0.2, 0.9, 0.5]),
//!     ("dog".to_owned(), vec![0.3, 0.7, 0.4]),
//! ])?;
//! assert_eq!(gates.order(), [1, 2, 0]);
//! assert!(gates.svg().contains("channel 1: 0.90"));
//! let wrong = Gates::new("block 1", vec![("cat".to_owned(), vec![f32::NAN])]).unwrap_err();
//! assert_eq!(wrong.to_string(), "gates \"block 1\", \"cat\": channel 0 is NaN; expected finite factors of at least 0");
//! # Ok::<(), regard_view::gates::GatesError>(())
//! ```

use std::collections::HashMap;
use std::fmt::Write;

use regard_trace::{AttentionMap, Axis, Trace};

use crate::chart::ticks::Axis as Ticks;
use crate::choice::{Choice, ChoiceError, Chosen, Pick};
use crate::colour::category;
use crate::label::visible;
use crate::svg::weight;
use crate::svg::xml::{
    Anchor, Face, coordinate, escape, open, open_group, shown, text, text_width, words,
};
use crate::terminal::{Colour, Line, Style, TerminalOptions, dark, fitted};

/// Why there are no gates to draw.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GatesError {
    /// No row, or a row without channels.
    #[error("gates {title:?}: no channels; expected at least one row of at least one factor")]
    Empty {
        /// The title.
        title: String,
    },
    /// Rows are of different lengths.
    #[error("gates {title:?}, {row:?}: {found} channels, expected {expected} as in the first row")]
    Channels {
        /// The title.
        title: String,
        /// Name of the row.
        row: String,
        /// Its channels.
        found: usize,
        /// Those of the first row.
        expected: usize,
    },
    /// A factor is NaN, infinite or negative.
    #[error(
        "gates {title:?}, {row:?}: channel {channel} is {value}; expected finite factors of at least 0"
    )]
    Factor {
        /// The title.
        title: String,
        /// Name of the row.
        row: String,
        /// The channel, counted from 0.
        channel: usize,
        /// Its factor.
        value: f32,
    },
    /// The keys of a map are cells, boxes or tokens.
    #[error(
        "attention map {map:?}: its keys are no channels; expected positions, a factor for each"
    )]
    Keys {
        /// Name of the map.
        map: String,
    },
    /// More rows of bars than a picture can have.
    #[error(
        "gates: {found} rows of bars; expected at most {limit}: choose a layer, or fewer images"
    )]
    Rows {
        /// How many there would be.
        found: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The chosen kind, layer or head is not there.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
}

/// Rows of factors, `[rows, channels]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Gates {
    title: String,
    rows: Vec<(String, Vec<f32>)>,
    mean: Vec<f32>,
    order: Vec<usize>,
}

/// The most rows of a picture.
const MOST_ROWS: usize = 400;

const MARGIN: f64 = 20.0;
const WIDE: f64 = 680.0;

/// Height of the bars of an only row, and of one of several.
const TALL: (f64, f64) = (130.0, 56.0);

/// Between rows.
const GAP: f64 = 16.0;

/// Room for names beside the rows, at most.
const NAME_ROOM: f64 = 140.0;

/// Bars are at least this wide.
const LEAST_BAR: f64 = 2.0;

impl Gates {
    /// Factors of the channels of one place in a network; a row for each image or class, with its name (empty for none).
    ///
    /// # Errors
    /// [`GatesError::Empty`], [`GatesError::Channels`], [`GatesError::Factor`].
    pub fn new(
        title: impl Into<String>,
        rows: Vec<(String, Vec<f32>)>,
    ) -> Result<Self, GatesError> {
        let title = title.into();
        let channels = rows.first().map_or(0, |(_, row)| row.len());
        if channels == 0 {
            return Err(GatesError::Empty { title });
        }
        for (name, row) in &rows {
            if row.len() != channels {
                return Err(GatesError::Channels {
                    title,
                    row: name.clone(),
                    found: row.len(),
                    expected: channels,
                });
            }
            if let Some(channel) = row.iter().position(|v| !(v.is_finite() && *v >= 0.0)) {
                return Err(GatesError::Factor {
                    title,
                    row: name.clone(),
                    channel,
                    value: row[channel],
                });
            }
        }
        let mean = |channel: usize| {
            let sum: f64 = rows.iter().map(|(_, row)| f64::from(row[channel])).sum();
            (sum / rows.len() as f64) as f32
        };
        let mean: Vec<f32> = (0..channels).map(mean).collect();
        let mut order: Vec<usize> = (0..channels).collect();
        order.sort_by(|&a, &b| mean[b].total_cmp(&mean[a]));
        Ok(Self {
            title,
            rows,
            mean,
            order,
        })
    }

    /// The gates of a map whose keys are channels ([`Axis::Positions`]): a row for each query, the mean of its heads.
    ///
    /// # Errors
    /// [`GatesError::Keys`], and those of [`Gates::new`].
    pub fn of(map: &AttentionMap) -> Result<Self, GatesError> {
        if !matches!(map.keys(), Axis::Positions { .. }) {
            return Err(GatesError::Keys {
                map: map.name().to_owned(),
            });
        }
        let map = map.mean_heads();
        let names = match map.queries() {
            // The number of an only position says nothing.
            Axis::Positions { length: 1 } => vec![String::new()],
            _ => map.row_labels(),
        };
        let rows = names.into_iter().enumerate();
        let rows = rows.map(|(query, name)| (name, map.row(0, query).to_vec()));
        Self::new(map.name(), rows.collect())
    }

    /// The gates of those maps of a trace whose keys are channels, as `choice` says. Usual: of every layer.
    ///
    /// # Errors
    /// [`GatesError::Choice`], [`GatesError::Rows`] for more than 400 rows in all, and those of [`Gates::of`].
    pub fn chosen(trace: &Trace, choice: &Choice) -> Result<Vec<Self>, GatesError> {
        let of_channels = |map: &&AttentionMap| matches!(map.keys(), Axis::Positions { .. });
        let gates = Trace {
            maps: trace.maps.iter().filter(of_channels).cloned().collect(),
            ..Trace::default()
        };
        let choice = Choice {
            layer: match choice.layer {
                Pick::Usual => Pick::All,
                layer => layer,
            },
            ..*choice
        };
        let chosen = choice.chosen(&gates)?;
        let rows = chosen.iter().map(|chosen| chosen.map.queries().len());
        expect_rows(rows.sum())?;
        let of = |chosen: Chosen<'_>| match chosen.head.map(|head| chosen.map.head(head)) {
            Some(Ok(head)) => Self::of(&head),
            _ => Self::of(chosen.map),
        };
        chosen.into_iter().map(of).collect()
    }

    /// The gates of several images, each under the label of its class, as one for each place in the network: a row for each label, the mean
    /// over its images; classes of the same label share one. `None` if they are not of the same places.
    ///
    /// # Errors
    /// [`GatesError::Rows`] for more than 400 rows in all, and those of [`Gates::new`].
    pub fn by_class(images: &[(&str, Vec<Self>)]) -> Result<Option<Vec<Self>>, GatesError> {
        let Some((_, first)) = images.first() else {
            return Ok(None);
        };
        let is_alike = |(a, b): (&Self, &Self)| a.title == b.title && a.mean.len() == b.mean.len();
        let same_places =
            |gates: &[Self]| gates.len() == first.len() && gates.iter().zip(first).all(is_alike);
        if !images.iter().all(|(_, gates)| same_places(gates)) {
            return Ok(None);
        }
        let mut classes: Vec<(&str, Vec<usize>)> = vec![];
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (image, &(class, _)) in images.iter().enumerate() {
            let place = *places.entry(class).or_insert_with(|| {
                classes.push((class, vec![]));
                classes.len() - 1
            });
            classes[place].1.push(image);
        }
        expect_rows(classes.len() * first.len())?;
        let row = |(class, of_class): &(&str, Vec<usize>), place: usize| {
            let factors = of_class.iter();
            let factors = factors.map(|&image| images[image].1[place].mean.as_slice());
            let factors: Vec<&[f32]> = factors.collect();
            let mean = |channel: usize| {
                let sum: f64 = factors.iter().map(|row| f64::from(row[channel])).sum();
                (sum / factors.len() as f64) as f32
            };
            let means: Vec<f32> = (0..first[place].mean.len()).map(mean).collect();
            ((*class).to_owned(), means)
        };
        let of_place = |place: usize| {
            let rows = classes.iter().map(|class| row(class, place));
            Self::new(first[place].title.clone(), rows.collect())
        };
        let joined: Result<Vec<Self>, GatesError> = (0..first.len()).map(of_place).collect();
        joined.map(Some)
    }

    /// Channels from the largest mean factor to the smallest.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// The picture as a standalone SVG.
    pub fn svg(&self) -> String {
        stacked(std::slice::from_ref(self))
    }

    /// The picture in characters, a line for each row, none wider than [`TerminalOptions::width`]: a column is the mean of
    /// neighbours, taller (without Unicode darker) for larger factors.
    pub fn text(&self, options: &TerminalOptions) -> String {
        const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let names: Vec<String> = (self.rows.iter())
            .map(|(name, _)| {
                if name.is_empty() {
                    String::new()
                } else {
                    visible(name)
                }
            })
            .collect();
        let widest = names
            .iter()
            .map(|name| crate::label::width(name))
            .max()
            .unwrap_or(0);
        let widest = widest.min(options.width / 4);
        let room = options.width.saturating_sub(widest + 1).clamp(1, 64);
        let max = self.max();
        let mut lines = vec![];
        let mut line = Line::default();
        line.push(
            Style::BOLD,
            &fitted(&visible(&self.title), options.width, options),
        );
        lines.push(line);
        for (name, (_, row)) in names.iter().zip(&self.rows) {
            let mut line = Line::default();
            if widest > 0 {
                line.plain(&fitted(name, widest, options));
                line.pad_to(widest + 1);
            }
            let bars = self.pooled(row, room).into_iter().map(|(_, value)| {
                let share = if max > 0.0 { value / max } else { 0.0 };
                match options.colour {
                    Colour::Ascii => dark(share),
                    _ => HEIGHTS[((share * 8.0) as usize).min(7)],
                }
            });
            line.plain(&bars.collect::<String>());
            lines.push(line);
        }
        let mut line = Line::default();
        line.push(
            Style::FAINT,
            &fitted(&self.legend(), options.width, options),
        );
        lines.push(line);
        let lines = lines.into_iter();
        let lines = lines.map(|line| line.finish(options.colour, options.width) + "\n");
        lines.collect()
    }

    fn max(&self) -> f32 {
        let all = self.rows.iter().flat_map(|(_, row)| row.iter().copied());
        all.fold(0.0, f32::max)
    }

    /// `64 channels, largest first: 0.12 to 0.93, mean 0.51`
    fn legend(&self) -> String {
        let all = || self.rows.iter().flat_map(|(_, row)| row.iter().copied());
        let low = all().fold(f32::INFINITY, f32::min);
        let mean = all().map(f64::from).sum::<f64>() / all().count().max(1) as f64;
        format!(
            "{} channels, largest first: {} to {}, mean {}",
            self.order.len(),
            weight(low),
            weight(self.max()),
            weight(mean as f32)
        )
    }

    /// The factors in order, in at most `room` bars: the channels of each, and their mean.
    fn pooled(&self, row: &[f32], room: usize) -> Vec<(&[usize], f32)> {
        let each = self.order.len().div_ceil(room.max(1)).max(1);
        let bars = self.order.chunks(each).map(|channels| {
            let sum: f64 = channels
                .iter()
                .map(|&channel| f64::from(row[channel]))
                .sum();
            (channels, (sum / channels.len() as f64) as f32)
        });
        bars.collect()
    }

    fn tall(&self) -> f64 {
        if self.rows.len() == 1 { TALL.0 } else { TALL.1 }
    }

    fn height(&self) -> f64 {
        46.0 + self.rows.len() as f64 * (self.tall() + GAP) - GAP + 16.0
    }

    fn name_room(&self) -> f64 {
        let names = self.rows.iter().filter(|(name, _)| !name.is_empty());
        let widest = names.map(|(name, _)| text_width(&visible(name), 12.0));
        widest.fold(0.0, f64::max).min(NAME_ROOM) + 40.0
    }

    /// Draws the gates with their own corner at (0, 0).
    fn draw(&self, out: &mut String, left: f64) {
        let bold = Face::new(14.0, Anchor::Start).bold();
        if !self.title.is_empty() {
            text(out, 0.0, 14.0, bold, &shown(&self.title, 14.0, left + WIDE));
        }
        let faint = Face::new(11.0, Anchor::Start).faint();
        let line = match self.rows.len() {
            1 => "",
            _ => "; line: the mean of the rows",
        };
        words(out, 0.0, 31.0, faint, &format!("{}{line}", self.legend()));
        let axis = Ticks::around([f64::from(self.max())].into_iter(), true, 2);
        let tall = self.tall();
        let mean = self.pooled(&self.mean, (WIDE / LEAST_BAR) as usize);
        let wide = (WIDE / mean.len() as f64).min(34.0);
        let right = left + wide * mean.len() as f64;
        for (index, (name, row)) in self.rows.iter().enumerate() {
            let top = 46.0 + index as f64 * (tall + GAP);
            let at = |value: f32| top + tall * (1.0 - axis.place(f64::from(value)));
            for tick in axis.ticks() {
                let y = coordinate(at(tick as f32));
                let _ = writeln!(
                    out,
                    r##"<path d="M{} {y}H{}" stroke="#e3e8ef" stroke-width="1"/>"##,
                    coordinate(left),
                    coordinate(right)
                );
                let face = Face::new(10.0, Anchor::End).faint();
                words(
                    out,
                    left - 5.0,
                    at(tick as f32) + 3.4,
                    face,
                    &axis.name(tick),
                );
            }
            if !name.is_empty() {
                let face = Face::new(12.0, Anchor::Start);
                let label = shown(name, 12.0, left - 36.0);
                text(out, 0.0, top + tall / 2.0 + 4.0, face, &label);
            }
            let colour = category(index);
            let gap = if wide >= 6.0 { wide * 0.14 } else { 0.0 };
            let edges = if gap == 0.0 {
                r#" shape-rendering="crispEdges""#
            } else {
                ""
            };
            let _ = writeln!(out, r#"<g fill="{colour}"{edges}>"#);
            for (bar, (channels, value)) in self.pooled(row, mean.len()).into_iter().enumerate() {
                let numbers: Vec<String> = channels.iter().map(usize::to_string).collect();
                let plural = if channels.len() == 1 { "" } else { "s" };
                let hover = format!("channel{plural} {}: {}", numbers.join(", "), weight(value));
                let _ = writeln!(
                    out,
                    r#"<rect x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>"#,
                    coordinate(left + bar as f64 * wide + gap / 2.0),
                    coordinate(at(value)),
                    coordinate(wide - gap),
                    coordinate(at(0.0) - at(value)),
                    escape(&hover)
                );
            }
            out.push_str("</g>\n");
            if self.rows.len() > 1 {
                let mut path = format!("M{} {}", coordinate(left), coordinate(at(mean[0].1)));
                for (bar, (_, value)) in mean.iter().enumerate() {
                    let (y, x) = (at(*value), left + (bar + 1) as f64 * wide);
                    let _ = write!(path, "V{}H{}", coordinate(y), coordinate(x));
                }
                let _ = writeln!(
                    out,
                    r##"<path d="{path}" fill="none" stroke="#1f2933" stroke-width="1.2"/>"##
                );
            }
        }
    }
}

/// Refuses more rows than a picture can have.
fn expect_rows(found: usize) -> Result<(), GatesError> {
    match found <= MOST_ROWS {
        true => Ok(()),
        false => Err(GatesError::Rows {
            found,
            limit: MOST_ROWS,
        }),
    }
}

/// The gates of several places in a network, below each other, as one standalone SVG.
pub fn stacked(gates: &[Gates]) -> String {
    let left = gates.iter().map(Gates::name_room).fold(40.0, f64::max);
    let titles: Vec<&str> = gates.iter().map(|gates| gates.title.as_str()).collect();
    let height: f64 = gates.iter().map(|gates| gates.height() + MARGIN).sum();
    let mut out = String::new();
    let width = left + WIDE + 2.0 * MARGIN;
    open(
        &mut out,
        width,
        height + MARGIN,
        &titles.join(", "),
        "gates",
    );
    let mut y = MARGIN;
    for gates in gates {
        open_group(&mut out, MARGIN, y);
        gates.draw(&mut out, left);
        out.push_str("</g>\n");
        y += gates.height() + MARGIN;
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use regard_trace::Kind;

    #[test]
    fn rows_have_an_end() {
        let chosen = |rows: usize| {
            let (images, channels) = (
                Axis::Positions { length: rows },
                Axis::Positions { length: 1 },
            );
            let map = AttentionMap::unnormalized(Kind::Other, images, channels, 1, vec![0.5; rows]);
            let map = map.expect("finite");
            let trace = Trace::default()
                .with_map(map.clone())
                .with_map(map.at_layer(1));
            Gates::chosen(&trace, &Choice::default())
        };
        assert_eq!(chosen(200).expect("400 in all").len(), 2);
        let error = chosen(201).unwrap_err();
        assert!(matches!(error, GatesError::Rows { found: 402, .. }));

        let names: Vec<String> = (0..201).map(|class| format!("class {class}")).collect();
        let both = chosen(1).expect("2 in all");
        let joined = |classes: usize| {
            let labels = names[..classes].iter().cycle().take(3 * classes);
            let images: Vec<_> = labels.map(|name| (name.as_str(), both.clone())).collect();
            Gates::by_class(&images)
        };
        let gates = joined(200).expect("400 in all").expect("the same places");
        assert_eq!(gates[1].rows.len(), 200);
        let error = joined(201).unwrap_err();
        assert!(matches!(error, GatesError::Rows { found: 402, .. }));
    }
}
