//! An axis of an attention map: tokens, cells or boxes of an image, or bare positions.
//!
//! ```
//! use regard_trace::{Axis, Token, Tokens};
//!
//! let patches = Axis::Image {
//!     prefix: Tokens::from(vec![Token::special("[CLS]")]),
//!     rows: 2,
//!     columns: 2,
//! };
//! assert_eq!(patches.len(), 5);
//! assert_eq!(patches.labels(), ["[CLS]", "(0, 0)", "(0, 1)", "(1, 0)", "(1, 1)"]);
//! ```

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Regions, Token, Tokens};

/// The token whose state a classifier reads (Devlin et al. 2018; Dosovitskiy et al. 2020).
const CLASS_TOKEN: &str = "[CLS]";

/// One axis, queries or keys, of an [`AttentionMap`](crate::AttentionMap). Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Axis {
    /// A sequence of tokens.
    Tokens {
        /// The tokens in order.
        tokens: Tokens,
    },
    /// A grid of cells over an image (patches, places of a feature map) in row-major order, after optional tokens such as `[CLS]`.
    Image {
        /// Tokens in front of the first cell. If a classifier reads the state of the first one, that is `[CLS]`.
        #[serde(default)]
        prefix: Tokens,
        /// Cells from top to bottom.
        rows: usize,
        /// Cells from left to right.
        columns: usize,
    },
    /// Boxes of an image: what a model read the features of, or what its object queries found.
    Regions {
        /// The boxes in order.
        regions: Regions,
    },
    /// Positions without a text of their own (time steps, channels).
    Positions {
        /// How many there are.
        length: usize,
    },
}

impl Axis {
    /// The number of entries of the axis.
    pub fn len(&self) -> usize {
        match self {
            Self::Tokens { tokens } => tokens.len(),
            // A product that overflows matches no tensor, and so is refused when the weights are checked.
            Self::Image {
                prefix,
                rows,
                columns,
            } => rows.saturating_mul(*columns).saturating_add(prefix.len()),
            Self::Regions { regions } => regions.len(),
            Self::Positions { length } => *length,
        }
    }

    /// The queries whose states a classifier reads, of an axis of cells: the class token where the first token before the cells is
    /// `[CLS]`, else all cells. `None` for other axes.
    pub fn readout(&self) -> Option<Range<usize>> {
        let Self::Image { prefix, .. } = self else {
            return None;
        };
        Some(match prefix.first() {
            Some(token) if token.text == CLASS_TOKEN => 0..1,
            _ => prefix.len()..self.len(),
        })
    }

    /// Whether the axis has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The text of entry `index`: a token's text, `(row, column)` of a cell, a region's label, a position's number.
    /// Past the end it is the bare index.
    pub fn label(&self, index: usize) -> String {
        match self {
            Self::Tokens { tokens } => tokens.get(index).map(|token| token.text.clone()),
            Self::Image {
                prefix, columns, ..
            } => match prefix.get(index) {
                Some(token) => Some(token.text.clone()),
                None => {
                    let patch = index - prefix.len();
                    (*columns > 0).then(|| format!("({}, {})", patch / columns, patch % columns))
                }
            },
            Self::Regions { regions } => regions.get(index).map(|region| region.label().to_owned()),
            Self::Positions { .. } => None,
        }
        .unwrap_or_else(|| index.to_string())
    }

    /// The texts of all entries, see [`Axis::label`].
    pub fn labels(&self) -> Vec<String> {
        (0..self.len()).map(|index| self.label(index)).collect()
    }

    /// The tokens, if the axis is made of tokens alone.
    pub fn tokens(&self) -> Option<&Tokens> {
        match self {
            Self::Tokens { tokens } => Some(tokens),
            _ => None,
        }
    }

    /// Whether entry `index` is a special token such as `</s>`.
    pub fn is_special(&self, index: usize) -> bool {
        let tokens = match self {
            Self::Tokens { tokens } => tokens,
            Self::Image { prefix, .. } => prefix,
            Self::Regions { .. } | Self::Positions { .. } => return false,
        };
        tokens.get(index).is_some_and(|token: &Token| token.special)
    }

    /// The ranges of entries that make up words; an entry that is not a token is a word of its own.
    pub fn words(&self) -> Vec<Range<usize>> {
        match self {
            Self::Tokens { tokens } => tokens.words(),
            _ => (0..self.len()).map(|index| index..index + 1).collect(),
        }
    }

    /// The axis of words, see [`Tokens::merge_words`]; other axes stay as they are.
    pub fn merge_words(&self) -> Self {
        match self {
            Self::Tokens { tokens } => tokens.merge_words().into(),
            other => other.clone(),
        }
    }
}

impl From<Tokens> for Axis {
    fn from(tokens: Tokens) -> Self {
        Self::Tokens { tokens }
    }
}

impl From<Regions> for Axis {
    fn from(regions: Regions) -> Self {
        Self::Regions { regions }
    }
}
