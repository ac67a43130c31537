//! Masks written as text: `window:3 & causal`.
//!
//! A mask is its name and its arguments, separated by colons; the entries of lists are separated by commas. Masks combine
//! with `&` (both), `|` (either), `!` (not) and parentheses; `&` binds more tightly than `|`.
//!
//! ```
//! use regard_nn::explain::masks::Expression;
//!
//! let mask = Expression::parse("window:2 & causal")?;
//! assert_eq!(mask.picture(4, 4)?, "■···\n■■··\n·■■·\n··■■\n");
//! # Ok::<(), regard_nn::explain::ExplainError>(())
//! ```

use burn::tensor::{Tensor, TensorData};
use serde::Serialize;

use super::ExplainError;
use crate::mask::{Alignment, Grid, Mask, PaddingMask};

/// One kind of mask.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// How it is written.
    pub usage: &'static str,
    /// What query `i` sees.
    pub summary: &'static str,
}

const fn kind(name: &'static str, usage: &'static str, summary: &'static str) -> Kind {
    Kind {
        name,
        usage,
        summary,
    }
}

/// All kinds.
pub static KINDS: [Kind; 14] = [
    kind("all", "all", "every key"),
    kind(
        "causal",
        "causal[:lower-right|upper-left]",
        "keys up to its own position; the last query stands at the last key, or (upper-left) the first at the first",
    ),
    kind("padding", "padding:LENGTH", "the first LENGTH keys"),
    kind("keep", "keep:1,1,0,..", "keys marked 1"),
    kind(
        "window",
        "window:WIDTH[:DILATION]",
        "keys less than WIDTH positions away, every DILATION-th",
    ),
    kind(
        "global",
        "global:POSITION,..",
        "these positions, counted from 0; a query at one of them sees every key",
    ),
    kind(
        "longformer",
        "longformer:WIDTH:POSITION,..[:DILATION]",
        "a window, and global positions as in `global`",
    ),
    kind(
        "local-m",
        "local-m:D",
        "keys at most D away from its own position",
    ),
    kind(
        "local-p",
        "local-p:D:PLACE,..",
        "keys at most D away from its PLACE, one for each query, counted from 0",
    ),
    kind("block", "block:SIZE", "keys of its own block of SIZE"),
    kind(
        "block-sparse",
        "block-sparse:SIZE:10/11",
        "blocks of keys marked 1, one row of marks for each block of queries",
    ),
    kind(
        "chunked",
        "chunked:SIZE[:LEFT]",
        "keys of its own chunk of SIZE, and of LEFT chunks before it",
    ),
    kind(
        "document",
        "document:0,0,1,..",
        "keys of its own document, given by a number for each position",
    ),
    kind(
        "prefix",
        "prefix:LENGTH",
        "the first LENGTH keys, and keys up to its own position",
    ),
];

/// A mask as it is written, before its sizes are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    text: String,
    tree: Tree,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Tree {
    Kind {
        kind: &'static Kind,
        arguments: Vec<String>,
    },
    And(Box<Tree>, Box<Tree>),
    Or(Box<Tree>, Box<Tree>),
    Not(Box<Tree>),
}

/// The most names, negations and parentheses in one text: they nest, and so do the calls that parse them.
const MOST: usize = 64;

impl Expression {
    /// Reads a mask.
    ///
    /// # Errors
    /// A name that is not known, arguments that are missing, parentheses that do not close.
    pub fn parse(text: &str) -> Result<Self, ExplainError> {
        let mut parser = Parser {
            text,
            rest: text,
            count: 0,
        };
        let tree = parser.either()?;
        match parser.rest.trim_start() {
            "" => Ok(Self {
                text: text.to_owned(),
                tree,
            }),
            rest => Err(parser.error(format!(
                "{rest:?} is left over; combine masks with &, | and !"
            ))),
        }
    }

    /// The length that a list in it requires, `(queries, keys)`: a list of documents, of keep flags, of places, of
    /// blocks.
    pub fn natural_size(&self) -> (Option<usize>, Option<usize>) {
        self.tree.natural_size()
    }

    /// Whether it names positions, which count from 0.
    pub fn names_positions(&self) -> bool {
        self.tree.names_positions()
    }

    /// The mask over so many queries and keys.
    ///
    /// # Errors
    /// Arguments that are no numbers or out of range, lists of another length.
    pub fn mask(&self, queries: usize, keys: usize) -> Result<Mask, ExplainError> {
        let mask = self.tree.build(&self.text, queries, keys)?;
        mask.check(&grid(queries, keys))?;
        Ok(mask)
    }

    /// What each query sees, `[queries][keys]`.
    ///
    /// # Errors
    /// As for [`Expression::mask`].
    pub fn table(&self, queries: usize, keys: usize) -> Result<Vec<Vec<bool>>, ExplainError> {
        let mask = self.mask(queries, keys)?;
        let grid = grid(queries, keys);
        Ok((0..queries)
            .map(|query| mask.row(&grid, 0, 0, query))
            .collect())
    }

    /// The mask as a picture of characters.
    ///
    /// # Errors
    /// As for [`Expression::mask`].
    pub fn picture(&self, queries: usize, keys: usize) -> Result<String, ExplainError> {
        Ok(self.mask(queries, keys)?.picture(queries, keys))
    }
}

pub(super) fn grid(queries: usize, keys: usize) -> Grid {
    Grid {
        batch: 1,
        heads: 1,
        queries,
        keys,
        ..Grid::default()
    }
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    count: usize,
}

impl Parser<'_> {
    fn error(&self, reason: impl Into<String>) -> ExplainError {
        ExplainError::Mask {
            text: self.text.to_owned(),
            reason: reason.into(),
        }
    }

    fn take(&mut self, sign: char) -> bool {
        let rest = self.rest.trim_start().strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn either(&mut self) -> Result<Tree, ExplainError> {
        let mut tree = self.both()?;
        while self.take('|') {
            tree = Tree::Or(Box::new(tree), Box::new(self.both()?));
        }
        Ok(tree)
    }

    fn both(&mut self) -> Result<Tree, ExplainError> {
        let mut tree = self.single()?;
        while self.take('&') {
            tree = Tree::And(Box::new(tree), Box::new(self.single()?));
        }
        Ok(tree)
    }

    fn single(&mut self) -> Result<Tree, ExplainError> {
        self.count += 1;
        if self.count > MOST {
            return Err(self.error(format!("more than {MOST} masks combined")));
        }
        let tree = if self.take('!') {
            Tree::Not(Box::new(self.single()?))
        } else if self.take('(') {
            let tree = self.either()?;
            if !self.take(')') {
                return Err(self.error("a parenthesis is not closed"));
            }
            tree
        } else {
            self.kind()?
        };
        Ok(tree)
    }

    fn kind(&mut self) -> Result<Tree, ExplainError> {
        let rest = self.rest.trim_start();
        let end = rest.find(['&', '|', '!', '(', ')']).unwrap_or(rest.len());
        let word = rest[..end].trim_end();
        if word.is_empty() {
            return Err(self.error("a mask is missing; write a name such as causal or window:3"));
        }
        self.rest = &rest[end..];
        let mut parts = word.split(':').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let kind = KINDS.iter().find(|kind| kind.name == name);
        let names = || KINDS.iter().map(|kind| kind.name);
        Ok(Tree::Kind {
            kind: kind.ok_or_else(|| ExplainError::unknown("mask", name, names()))?,
            arguments: parts.map(str::to_owned).collect(),
        })
    }
}

impl Tree {
    fn natural_size(&self) -> (Option<usize>, Option<usize>) {
        match self {
            Self::Kind { kind, arguments } => {
                let length =
                    |index: usize| arguments.get(index).map(|list| list.split(',').count());
                match kind.name {
                    "document" => (length(0), length(0)),
                    "keep" => {
                        let flags = arguments.first().and_then(|text| flags(text));
                        (None, flags.map(|flags| flags.len()))
                    }
                    "local-p" => (length(1), None),
                    "block-sparse" => Self::blocks(arguments),
                    _ => (None, None),
                }
            }
            Self::And(a, b) | Self::Or(a, b) => {
                let (a, b) = (a.natural_size(), b.natural_size());
                (a.0.or(b.0), a.1.or(b.1))
            }
            Self::Not(a) => a.natural_size(),
        }
    }

    /// The lengths that a table of whole blocks covers, as long as the blocks are small enough to draw.
    fn blocks(arguments: &[String]) -> (Option<usize>, Option<usize>) {
        const LARGEST: usize = 64;
        let [size, table] = arguments else {
            return (None, None);
        };
        let size: Option<usize> = size.parse().ok().filter(|size| *size <= LARGEST);
        let table: Option<Vec<_>> = table.split('/').map(flags).collect();
        let (rows, columns) = table.map_or((0, 0), |rows| (rows.len(), rows[0].len()));
        let length = |blocks: usize| size.map(|size| size * blocks).filter(|&n| n > 0);
        (length(rows), length(columns))
    }

    fn names_positions(&self) -> bool {
        match self {
            Self::Kind { kind, .. } => matches!(kind.name, "global" | "longformer" | "local-p"),
            Self::And(a, b) | Self::Or(a, b) => a.names_positions() || b.names_positions(),
            Self::Not(a) => a.names_positions(),
        }
    }

    fn build(&self, text: &str, queries: usize, keys: usize) -> Result<Mask, ExplainError> {
        match self {
            Self::Kind { kind, arguments } => {
                let arguments = Arguments {
                    text,
                    kind,
                    arguments,
                };
                arguments.build(queries, keys)
            }
            Self::And(a, b) => Ok(a.build(text, queries, keys)? & b.build(text, queries, keys)?),
            Self::Or(a, b) => Ok(a.build(text, queries, keys)? | b.build(text, queries, keys)?),
            Self::Not(a) => Ok(!a.build(text, queries, keys)?),
        }
    }
}

struct Arguments<'a> {
    text: &'a str,
    kind: &'static Kind,
    arguments: &'a [String],
}

impl Arguments<'_> {
    fn build(&self, queries: usize, keys: usize) -> Result<Mask, ExplainError> {
        let device = super::modules::device();
        let mask = match self.kind.name {
            "causal" => match self.optional(0) {
                None | Some("lower-right") => Mask::causal(),
                Some("upper-left") => Mask::causal_aligned(Alignment::UpperLeft),
                Some(_) => return Err(self.error()),
            },
            "padding" => {
                let length = self.number(0)?;
                if length > keys {
                    return Err(
                        self.refused(format!("a length of {length}, but there are {keys} keys"))
                    );
                }
                Mask::padding(PaddingMask::from_lengths(&[length], keys, &device))
            }
            "keep" => Mask::padding(PaddingMask::from_flags(&[self.flags(0)?], &device)?),
            "window" => Mask::dilated_window(self.number(0)?, self.number_or(1, 1)?)?,
            "global" => Mask::global(&self.list(0)?),
            "longformer" => {
                Mask::longformer(self.number(0)?, self.number_or(2, 1)?, &self.list(1)?)?
            }
            "local-m" => Mask::local_monotonic(self.number(0)?),
            "local-p" => {
                let places: Vec<f32> = self.list(1)?;
                if places.len() != queries {
                    let found = places.len();
                    return Err(self.refused(format!(
                        "{found} places for {queries} queries; give one for each"
                    )));
                }
                if places.iter().any(|place| !place.is_finite()) {
                    return Err(self.error());
                }
                let places = TensorData::new(places, [1, 1, queries, 1]);
                Mask::local_predictive(Tensor::from_data(places, &device), self.number(0)?)
            }
            "block" => Mask::block(self.number(0)?)?,
            "block-sparse" => {
                let table = self.optional(1).ok_or_else(|| self.error())?;
                let table: Option<Vec<Vec<bool>>> = table.split('/').map(flags).collect();
                let size = self.number(0)?;
                Mask::block_sparse(size, size, &table.ok_or_else(|| self.error())?)?
            }
            "chunked" => Mask::chunked(self.number(0)?, self.number_or(1, 0)?)?,
            "document" => Mask::document(&[self.list(0)?]),
            "prefix" => Mask::prefix(&[self.number(0)?]),
            _ => Mask::all(),
        };
        // Its usage has a colon before each argument.
        match self.arguments.len() <= self.kind.usage.matches(':').count() {
            true => Ok(mask),
            false => Err(self.error()),
        }
    }

    fn error(&self) -> ExplainError {
        self.refused(format!("expected {}", self.kind.usage))
    }

    fn refused(&self, reason: String) -> ExplainError {
        ExplainError::Mask {
            text: self.text.to_owned(),
            reason: format!("{}: {reason}", self.kind.name),
        }
    }

    fn optional(&self, index: usize) -> Option<&str> {
        self.arguments.get(index).map(String::as_str)
    }

    fn number(&self, index: usize) -> Result<usize, ExplainError> {
        // Positions are computed with signed numbers.
        const LARGEST: usize = 1 << 30;
        self.optional(index)
            .and_then(|text| text.parse().ok())
            .filter(|&number| number <= LARGEST)
            .ok_or_else(|| self.error())
    }

    fn number_or(&self, index: usize, default: usize) -> Result<usize, ExplainError> {
        match self.optional(index) {
            None => Ok(default),
            Some(_) => self.number(index),
        }
    }

    fn list<T: std::str::FromStr>(&self, index: usize) -> Result<Vec<T>, ExplainError> {
        let text = self.optional(index).ok_or_else(|| self.error())?;
        let numbers: Result<Vec<T>, _> = text.split(',').map(|part| part.trim().parse()).collect();
        numbers.map_err(|_| self.error())
    }

    fn flags(&self, index: usize) -> Result<Vec<bool>, ExplainError> {
        self.optional(index)
            .and_then(flags)
            .ok_or_else(|| self.error())
    }
}

/// `1,1,0` or `110`, at least one.
fn flags(text: &str) -> Option<Vec<bool>> {
    let signs = text.chars().filter(|&sign| sign != ',' && sign != ' ');
    let flags = signs.map(|sign| match sign {
        '0' => Some(false),
        '1' => Some(true),
        _ => None,
    });
    let flags: Vec<bool> = flags.collect::<Option<_>>()?;
    (!flags.is_empty()).then_some(flags)
}
