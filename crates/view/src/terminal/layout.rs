//! Where the columns of a heat map go on a terminal of a given width.
//!
//! The widest layout that fits is taken, in this order: words above wide cells, with the weight inside;
//! words above wide cells; a staircase of words with leaders down to cells two columns wide; words
//! stacked letter by letter; numbers with a key beneath. Cells become as narrow as one column before
//! the columns are split into several blocks.

use std::ops::Range;

use crate::label::{is_joined, width};

/// The most columns that get a staircase, which needs one line for each.
const STAIRCASE_COLUMNS: usize = 20;

/// A wider word is cut to this width, so that one long word does not decide on the layout.
const WORD_WIDTH: usize = 14;

/// The most lines of a stacked word.
pub(super) const STACKED_LINES: usize = 12;

/// How the columns are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// Words side by side, each above its cell.
    Words,
    /// One word a line, each with a leader down to its cell.
    Staircase,
    /// Words from top to bottom.
    Stacked,
    /// Numbers from top to bottom, and a key beneath.
    Numbers,
}

/// One stretch of columns drawn side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub columns: Range<usize>,
    pub header: Header,
    /// The width of each cell.
    pub cells: Vec<usize>,
    /// Whether weights stand in the cells.
    pub values: bool,
}

impl Block {
    fn uniform(columns: Range<usize>, header: Header, cell: usize) -> Self {
        Self {
            cells: vec![cell; columns.len()],
            columns,
            header,
            values: false,
        }
    }
}

/// How many of `width` columns the row names get, given the width of the widest name.
pub(super) fn row_label_width(widest: usize, width: usize) -> usize {
    let share = (width / 3).max(width.min(12) / 2);
    widest.min(share.min(24))
}

/// The blocks in which keys of these names fit into `room` columns, with weights of up to `number` characters; `low` asks for a
/// header of few lines.
pub(super) fn blocks(names: &[String], number: usize, room: usize, low: bool) -> Vec<Block> {
    let count = names.len();
    let room = room.max(1);
    let widths: Vec<usize> = names.iter().map(|name| width(name)).collect();

    for (values, least, pad, limit) in [
        (true, number, 2, usize::MAX),
        (true, number, 1, usize::MAX),
        (true, number, 1, WORD_WIDTH),
        (false, 1, 1, WORD_WIDTH),
    ] {
        let cells: Vec<usize> = widths
            .iter()
            .map(|w| w.clamp(&least, &limit.max(least)) + pad)
            .collect();
        if cells.iter().sum::<usize>() <= room {
            return vec![Block {
                columns: 0..count,
                header: Header::Words,
                cells,
                values,
            }];
        }
    }

    let stair = widths
        .iter()
        .enumerate()
        .map(|(index, &w)| 2 * index + 2 + w.min(WORD_WIDTH))
        .max();
    if !low && count <= STAIRCASE_COLUMNS && stair.is_some_and(|needed| needed <= room) {
        return vec![Block::uniform(0..count, Header::Staircase, 2)];
    }

    let joined = names.iter().any(|name| is_joined(name));
    let wide = names.iter().any(|name| name.chars().any(is_wide));
    let header = |cell: usize| match joined || (cell == 1 && wide) {
        true => Header::Numbers,
        false => Header::Stacked,
    };
    for cell in [2, 1] {
        if cell * count <= room {
            return vec![Block::uniform(0..count, header(cell), cell)];
        }
    }

    let cell = room.min(2);
    let parts = count.div_ceil(room / cell);
    let size = count.div_ceil(parts.max(1)).max(1);
    (0..count)
        .step_by(size)
        .map(|start| Block::uniform(start..(start + size).min(count), header(cell), cell))
        .collect()
}

fn is_wide(c: char) -> bool {
    unicode_width::UnicodeWidthChar::width(c) == Some(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize, name: &str) -> Vec<String> {
        vec![name.to_owned(); count]
    }

    fn first(count: usize, name: &str, room: usize) -> (Header, usize, bool, usize) {
        let blocks = blocks(&names(count, name), 3, room, false);
        (
            blocks[0].header,
            blocks[0].cells[0],
            blocks[0].values,
            blocks.len(),
        )
    }

    #[test]
    fn layouts_tighten_as_room_shrinks() {
        assert_eq!(first(10, "word", 60), (Header::Words, 6, true, 1));
        assert_eq!(first(10, "word", 59), (Header::Words, 5, true, 1));
        assert_eq!(first(10, "word", 49), (Header::Staircase, 2, false, 1));
        assert_eq!(first(10, "w", 39), (Header::Words, 2, false, 1));
        assert_eq!(first(10, "word", 23), (Header::Stacked, 2, false, 1));
        assert_eq!(first(10, "שלום", 20), (Header::Numbers, 2, false, 1));
        assert_eq!(first(10, "word", 19), (Header::Stacked, 1, false, 1));
        assert_eq!(first(10, "日本", 19), (Header::Numbers, 1, false, 1));
        assert_eq!(first(10, "word", 9), (Header::Stacked, 2, false, 3));
        assert_eq!(first(10, "word", 1), (Header::Stacked, 1, false, 10));
        assert_eq!(first(10, "word", 0), (Header::Stacked, 1, false, 10));
    }

    #[test]
    fn numbers_with_a_sign_need_more_room() {
        let cell = |number, room| {
            let block = &blocks(&names(10, "w"), number, room, false)[0];
            (block.cells[0], block.values)
        };
        assert_eq!([cell(3, 49), cell(3, 50)], [(4, true), (5, true)]);
        assert_eq!([cell(4, 49), cell(4, 50)], [(2, false), (5, true)]);
    }

    #[test]
    fn blocks_cover_all_columns_in_room() {
        for count in 1..80 {
            for room in 1..90 {
                let blocks = blocks(&names(count, "Schiff"), 3, room, false);
                let mut next = 0;
                for block in &blocks {
                    assert_eq!(block.columns.start, next);
                    assert!(block.cells.iter().sum::<usize>() <= room);
                    next = block.columns.end;
                }
                assert_eq!(next, count);
            }
        }
    }
}
