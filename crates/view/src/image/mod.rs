//! Pictures of what a model looked at in an image: maps laid over it, boxes, masks, drawn cells.
//!
//! ```text
//! cell (r, c) of a grid covers   y in [r, r + 1) height / rows,   x in [c, c + 1) width / columns
//! bilinear                       between the centres of cells; beyond the outermost, their weight
//! ```
//!
//! An [`ImagePicture`] is a list of panels, each an image with something over it. [`ImagePicture::of`] makes them from a
//! [`Trace`](regard_trace::Trace) that has an image: a panel for each word, query, head or layer. Its maps may be over cells
//! ([`Axis::Image`](regard_trace::Axis::Image)) or boxes ([`Axis::Regions`](regard_trace::Axis::Regions)). [`ImagePicture::svg`]
//! draws it, [`png`](crate::png) makes pixels of that, [`ImagePicture::text`] prints it on a terminal, and
//! [`html`](crate::html) shows the same traces to be explored.
//!
//! Below a map the image has pale colours, so that those of the map can be told from its own. Colours begin at a weight of 0; in
//! a picture of factors, which need not sum to 1 (masks of residual attention), at the least factor.
//!
//! A row of weights of which one is 1 and the others 0 is a drawn cell (hard attention, Xu 2015): it is outlined, and the rest
//! darkened. All other maps have one scale of colours, so that panels can be compared, unless
//! [`ImageOptions::own_scale`] says otherwise.
//!
//! ```
//! use regard_trace::{AttentionMap, Axis, Image, Kind, Tokens, Trace};
//! use regard_view::image::{ImageChoice, ImageOptions, ImagePicture};
//!
//! let image = Image::new(2, 2, 1, vec![0, 80, 160, 240])?;
//! let cells = Axis::Image { prefix: Tokens::default(), rows: 2, columns: 2 };
//! let map = AttentionMap::new(Kind::Cross, Tokens::from_words("bright corner"), cells, 1,
//!     vec![0.1, 0.1, 0.2, 0.6, 0.7, 0.1, 0.1, 0.1])?;
//! let trace = Trace::new("captioner", "corner.png", "bright corner").with_image(image).with_map(map);
//!
//! let picture = ImagePicture::of(&trace, &ImageChoice::default())?;
//! let svg = picture.svg(&ImageOptions::default());
//! assert!(svg.contains("bright") && svg.contains("0.60 at (1, 1)"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod choice;
mod outline;
pub(crate) mod raster;
mod svg;
mod text;

use regard_trace::diagnose::StackError;
use regard_trace::{Image, Region};

use crate::choice::ChoiceError;
use crate::colour::Ramp;

pub use choice::ImageChoice;
pub use outline::Outline;

/// How a map lies over its image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlay {
    /// Smooth, bilinear between the centres of cells.
    #[default]
    Bilinear,
    /// Each cell in one colour.
    ByCell,
}

/// How an [`ImagePicture`] is drawn as SVG.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageOptions {
    /// How maps lie over images. Default [`Overlay::Bilinear`].
    pub overlay: Overlay,
    /// The colours of weights. Default [`Ramp::VIRIDIS`].
    pub ramp: Ramp,
    /// Whether the strongest cell of each panel has the last colour of the ramp, so that weak maps are seen as well, and panels
    /// cannot be compared; the note of a panel says its weight. Default false: the strongest cell of all panels has it.
    pub own_scale: bool,
    /// The pixels that the longer side of a single image takes at most; of several it is less. Small images are enlarged by a
    /// whole factor. Default 420.
    pub room: f64,
    /// The pixels that a row of panels takes at most. Default 1120.
    pub width: f64,
    /// Up to this many cells in all panels together have a text to hover. Default 6000.
    pub hover_cells: usize,
}

impl Default for ImageOptions {
    fn default() -> Self {
        Self {
            overlay: Overlay::default(),
            ramp: Ramp::VIRIDIS,
            own_scale: false,
            room: 420.0,
            width: 1120.0,
            hover_cells: 6000,
        }
    }
}

/// Why there is no picture.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The trace has no image.
    #[error(
        "the trace of {model:?} has no image; make it anew from the image, or draw its maps as heat maps"
    )]
    NoImage {
        /// The model of the trace.
        model: String,
    },
    /// No map has cells or boxes of an image as keys.
    #[error("no map is over an image; expected keys that are cells or boxes, found the maps {}", there.join(", "))]
    NoMap {
        /// The names of the maps that there are.
        there: Vec<String>,
    },
    /// The chosen kind, layer or head is not there.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// Rollout is not possible.
    #[error(transparent)]
    Stack(#[from] StackError),
    /// The map has no such query.
    #[error("{map} has no query {wanted}; its queries are 0 to {last}")]
    Query {
        /// The name of the map.
        map: String,
        /// What was asked for, counted from 0.
        wanted: usize,
        /// The last one.
        last: usize,
    },
    /// More panels than a picture can have.
    #[error(
        "a picture of {found} panels; expected at most {limit}: choose a layer, a head or a query"
    )]
    Panels {
        /// How many were asked for.
        found: usize,
        /// The most.
        limit: usize,
    },
    /// The weights do not fill the grid.
    #[error(
        "map {title:?}: {found} weights for {rows} x {columns} cells; expected one for each, and at least one"
    )]
    Cells {
        /// Title of the panel.
        title: String,
        /// Rows of the grid.
        rows: usize,
        /// Columns of the grid.
        columns: usize,
        /// Number of weights.
        found: usize,
    },
    /// There are not as many weights as regions.
    #[error("map {title:?}: {found} weights for {regions} regions; expected one for each")]
    Regions {
        /// Title of the panel.
        title: String,
        /// Number of regions.
        regions: usize,
        /// Number of weights.
        found: usize,
    },
    /// A weight is NaN, infinite or negative.
    #[error("map {title:?}: weight {index} is {value}; expected finite weights of at least 0")]
    Weight {
        /// Title of the panel.
        title: String,
        /// Its place in the map.
        index: usize,
        /// The weight.
        value: f32,
    },
    /// A cell that the grid does not have.
    #[error(
        "map {title:?}: cell ({row}, {column}) is outside its grid of {rows} x {columns} cells"
    )]
    Cell {
        /// Title of the panel.
        title: String,
        /// Row of the cell.
        row: usize,
        /// Column of the cell.
        column: usize,
        /// Rows of the grid.
        rows: usize,
        /// Columns of the grid.
        columns: usize,
    },
    /// A mask is of another size than the image.
    #[error(
        "region {label:?}: its mask is of {} x {} pixels, the image of {} x {}; expected the same size",
        mask[0], mask[1], image[0], image[1]
    )]
    Mask {
        /// Label of the region.
        label: String,
        /// Height and width of the mask.
        mask: [usize; 2],
        /// Height and width of the image.
        image: [usize; 2],
    },
}

/// The most panels of a picture.
const MOST_PANELS: usize = 400;

/// Panels side by side, under one title.
#[derive(Clone, Debug, PartialEq)]
pub struct ImagePicture {
    title: String,
    panels: Vec<ImagePanel>,
    from_least: bool,
}

impl ImagePicture {
    /// A picture of these panels; an empty title is left out.
    ///
    /// # Errors
    /// [`ImageError::Panels`] for more than 400.
    pub fn new(title: impl Into<String>, panels: Vec<ImagePanel>) -> Result<Self, ImageError> {
        if panels.len() > MOST_PANELS {
            return Err(ImageError::Panels {
                found: panels.len(),
                limit: MOST_PANELS,
            });
        }
        Ok(Self {
            title: title.into(),
            panels,
            from_least: false,
        })
    }

    /// The same picture under another title; an empty one is left out.
    pub fn titled(self, title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..self
        }
    }

    /// The same picture with colours that begin at the least weight instead of 0: for factors that are all far from 0.
    pub fn from_least(self) -> Self {
        Self {
            from_least: true,
            ..self
        }
    }

    /// The same picture with colours that begin at 0, as those of weights that sum to 1 do.
    pub fn from_zero(self) -> Self {
        Self {
            from_least: false,
            ..self
        }
    }

    /// Its panels.
    pub fn panels(&self) -> &[ImagePanel] {
        &self.panels
    }

    /// The title, empty for none.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The weights of the first and the last colour for these panels, if they have a map that is not a drawn cell.
    fn range(&self, panels: &[ImagePanel]) -> Option<Scale> {
        let weights = || panels.iter().flat_map(ImagePanel::weights);
        let high = weights().reduce(f32::max)?;
        let low = match self.from_least {
            true => weights().fold(high, f32::min),
            false => 0.0,
        };
        // Equal factors are all shown as the largest.
        let low = if low < high { low } else { 0.0 };
        Some(Scale { low, high })
    }
}

/// The weights that have the first and the last colour.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Scale {
    low: f32,
    high: f32,
}

impl Scale {
    /// The place of a weight between them, 0 to 1.
    fn share(self, weight: f32) -> f32 {
        match self.high > self.low {
            true => ((weight - self.low) / (self.high - self.low)).clamp(0.0, 1.0),
            false => 0.0,
        }
    }
}

/// Weights of cells, `[rows, columns]`, at least one.
#[derive(Clone, Debug, PartialEq)]
struct Grid {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

/// A region as it is drawn.
#[derive(Clone, Debug, PartialEq)]
struct Drawn {
    region: Region,
    paint: Paint,
}

/// What the colour of a region says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Paint {
    /// Which one it is.
    Category(usize),
    /// How much weight it has.
    Weight(f32),
}

/// One image with what is drawn over it. What is added later lies above.
#[derive(Clone, Debug, PartialEq)]
pub struct ImagePanel {
    image: Image,
    title: String,
    note: String,
    grid: Option<Grid>,
    /// The drawn cell of hard attention: row, column and the grid's rows and columns.
    drawn: Option<[usize; 4]>,
    /// The cell that asks.
    query: Option<[usize; 4]>,
    regions: Vec<Drawn>,
}

impl ImagePanel {
    /// The image alone.
    pub fn new(image: Image) -> Self {
        Self {
            image,
            title: String::new(),
            note: String::new(),
            grid: None,
            drawn: None,
            query: None,
            regions: vec![],
        }
    }

    /// Its title, empty for none.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The line below its title, empty for none.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// The panel under a title, such as a word.
    pub fn titled(self, title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..self
        }
    }

    /// The panel with a note below its title, instead of the one that says where the strongest cell is.
    pub fn noted(self, note: impl Into<String>) -> Self {
        Self {
            note: note.into(),
            ..self
        }
    }

    /// The panel with a map of weights over the image, `values [rows, columns]`. A map of one 1 and 0s is the drawn cell.
    ///
    /// # Errors
    /// [`ImageError::Cells`] if the values do not fill the grid; [`ImageError::Weight`] for NaN, infinite and negative ones.
    pub fn map(self, rows: usize, columns: usize, values: &[f32]) -> Result<Self, ImageError> {
        if rows.checked_mul(columns) != Some(values.len()) || values.is_empty() {
            return Err(ImageError::Cells {
                title: self.title,
                rows,
                columns,
                found: values.len(),
            });
        }
        self.check(values)?;
        let (cell, weight) = strongest(values);
        let (row, column) = (cell / columns, cell % columns);
        if weight == 1.0
            && values.iter().filter(|&&value| value != 0.0).count() == 1
            && values.len() > 1
        {
            return self.drawn(row, column, rows, columns);
        }
        let note = match self.note.is_empty() {
            true => format!("{} at ({row}, {column})", number(weight)),
            false => self.note,
        };
        Ok(Self {
            note,
            grid: Some(Grid {
                rows,
                columns,
                values: values.to_vec(),
            }),
            ..self
        })
    }

    /// The panel with one cell of a grid outlined and the rest darkened: the cell that hard attention drew.
    ///
    /// # Errors
    /// [`ImageError::Cell`] for a cell outside the grid.
    pub fn drawn(
        self,
        row: usize,
        column: usize,
        rows: usize,
        columns: usize,
    ) -> Result<Self, ImageError> {
        let cell = self.cell(row, column, rows, columns)?;
        let note = match self.note.is_empty() {
            true => format!("drawn: ({row}, {column})"),
            false => self.note,
        };
        Ok(Self {
            note,
            drawn: Some(cell),
            ..self
        })
    }

    /// The panel with one cell of a grid marked as the one that asks: the query of self-attention.
    ///
    /// # Errors
    /// [`ImageError::Cell`] for a cell outside the grid.
    pub fn query(
        self,
        row: usize,
        column: usize,
        rows: usize,
        columns: usize,
    ) -> Result<Self, ImageError> {
        let cell = self.cell(row, column, rows, columns)?;
        Ok(Self {
            query: Some(cell),
            ..self
        })
    }

    /// The panel with the boxes, masks, labels and scores of regions, each in its own colour: that of its place in the list,
    /// counted from `first`. Above a map, which they would hide, masks and labels are left out.
    ///
    /// # Errors
    /// [`ImageError::Mask`] for a mask of another size than the image.
    pub fn regions(mut self, regions: &[Region], first: usize) -> Result<Self, ImageError> {
        for (index, region) in regions.iter().enumerate() {
            self.push(region, Paint::Category(first + index))?;
        }
        Ok(self)
    }

    /// The panel with a map of weights over regions: each box is filled with the colour of its weight.
    ///
    /// # Errors
    /// [`ImageError::Regions`] unless there is a weight for each; [`ImageError::Weight`]; [`ImageError::Mask`].
    pub fn weighted(mut self, regions: &[Region], weights: &[f32]) -> Result<Self, ImageError> {
        if regions.len() != weights.len() {
            return Err(ImageError::Regions {
                title: self.title,
                regions: regions.len(),
                found: weights.len(),
            });
        }
        self.check(weights)?;
        if let Some(region) = regions.get(strongest(weights).0)
            && self.note.is_empty()
        {
            let weight = number(strongest(weights).1);
            self.note = match region.label() {
                "" => weight,
                label => format!("{weight} on {label}"),
            };
        }
        // The strongest come last, above the others.
        let mut order: Vec<usize> = (0..regions.len()).collect();
        order.sort_by(|&a, &b| weights[a].total_cmp(&weights[b]));
        for index in order {
            self.push(&regions[index], Paint::Weight(weights[index]))?;
        }
        Ok(self)
    }

    fn push(&mut self, region: &Region, paint: Paint) -> Result<(), ImageError> {
        let image = [self.image.height(), self.image.width()];
        if let Some(mask) = region.mask()
            && [mask.height(), mask.width()] != image
        {
            return Err(ImageError::Mask {
                label: region.label().to_owned(),
                mask: [mask.height(), mask.width()],
                image,
            });
        }
        self.regions.push(Drawn {
            region: region.clone(),
            paint,
        });
        Ok(())
    }

    fn check(&self, values: &[f32]) -> Result<(), ImageError> {
        let wrong = values.iter().position(|w| !(w.is_finite() && *w >= 0.0));
        match wrong {
            None => Ok(()),
            Some(index) => Err(ImageError::Weight {
                title: self.title.clone(),
                index,
                value: values[index],
            }),
        }
    }

    fn cell(
        &self,
        row: usize,
        column: usize,
        rows: usize,
        columns: usize,
    ) -> Result<[usize; 4], ImageError> {
        if row >= rows || column >= columns {
            return Err(ImageError::Cell {
                title: self.title.clone(),
                row,
                column,
                rows,
                columns,
            });
        }
        Ok([row, column, rows, columns])
    }

    /// Whether it has weights that are shown by colours.
    fn has_weights(&self) -> bool {
        self.weights().next().is_some()
    }

    /// The weights that are shown by colours.
    fn weights(&self) -> impl Iterator<Item = f32> {
        let cells = self
            .grid
            .iter()
            .flat_map(|grid| grid.values.iter().copied());
        let regions = self.regions.iter().filter_map(|drawn| match drawn.paint {
            Paint::Weight(weight) => Some(weight),
            Paint::Category(_) => None,
        });
        cells.chain(regions)
    }
}

/// The place of the largest weight, the first of equals, and the weight.
fn strongest(weights: &[f32]) -> (usize, f32) {
    let all = weights.iter().copied().enumerate();
    all.reduce(|best, other| if other.1 > best.1 { other } else { best })
        .unwrap_or((0, 0.0))
}

/// A weight beside a title: two decimals, more for small ones.
fn number(weight: f32) -> String {
    match weight {
        0.001..0.01 => format!("{weight:.3}"),
        _ => crate::svg::weight(weight),
    }
}
