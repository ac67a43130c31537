//! Token texts made safe and visible, and fitted into a width.
//!
//! A token is whatever a tokeniser produced: half a character, a tab, an escape sequence, an
//! override of the writing direction. [`visible`] turns it into text that can be shown anywhere
//! and still says what the token was:
//!
//! ```
//! use regard_view::label::visible;
//!
//! assert_eq!(visible("Straße"), "Straße");
//! assert_eq!(visible(""), "∅");
//! assert_eq!(visible(" "), "␣");
//! assert_eq!(visible("a\tb\u{1b}[2J"), r"a\tb\x1b[2J");
//! assert_eq!(visible("\u{202e}abc"), r"\u{202e}abc");
//! assert_eq!(visible("\u{301}"), "◌\u{301}");
//! ```

use unicode_bidi::{BidiInfo, Level};
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The text of a token as it can be shown.
///
/// - Nothing at all is `∅`; spaces at either end are `␣`.
/// - Control characters and invisible format characters (directional overrides, zero-width spaces,
///   byte order marks, line separators) are written out: `\n`, `\x1b`, `\u{202e}`. The joiners
///   U+200C and U+200D stay where they stand between letters, as Persian, Hindi and emoji need them.
/// - A combining mark at the start, which would combine with whatever stands before the token, gets `◌`.
pub fn visible(text: &str) -> String {
    if text.is_empty() {
        return "∅".to_owned();
    }
    let start = text.len() - text.trim_start_matches(' ').len();
    let end = text.trim_end_matches(' ').len();
    let mut out = String::with_capacity(text.len());
    let mut previous: Option<char> = None;
    for (index, c) in text.char_indices() {
        match c {
            ' ' if index < start || index >= end => out.push('␣'),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{200c}' | '\u{200d}' => {
                let next = text[index + c.len_utf8()..].chars().next();
                if previous.is_some_and(is_plain) && next.is_some_and(is_plain) {
                    out.push(c);
                } else {
                    push_escaped(&mut out, c);
                }
            }
            c if is_plain(c) => {
                let joins_left = c.width() == Some(0) && !previous.is_some_and(is_plain);
                if joins_left {
                    out.push('◌');
                }
                out.push(c);
            }
            c => push_escaped(&mut out, c),
        }
        previous = Some(c);
    }
    out
}

/// The first `most` characters of a text, [`visible`], with an ellipsis if there are more.
///
/// ```
/// use regard_view::label::beginning;
/// assert_eq!(beginning("a\tb", 3), r"a\tb");
/// assert_eq!(beginning("attention", 3), "att…");
/// ```
pub fn beginning(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => visible(text),
        Some((end, _)) => format!("{}…", visible(&text[..end])),
    }
}

fn push_escaped(out: &mut String, c: char) {
    let code = u32::from(c);
    if code < 0x80 {
        out.push_str(&format!("\\x{code:02x}"));
    } else {
        out.push_str(&format!("\\u{{{code:x}}}"));
    }
}

/// Whether a character can be shown as it is.
fn is_plain(c: char) -> bool {
    let hidden = c.is_control()
        || matches!(u32::from(c),
            // Soft hyphen, Arabic letter mark, Hangul and Mongolian fillers and separators.
            0xad | 0x61c | 0x115f | 0x1160 | 0x17b4 | 0x17b5 | 0x180e | 0x3164 | 0xffa0
            // Zero-width spaces and joiners, directional marks, line separators, invisible operators.
            | 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x206f | 0xfeff
            // Interlinear annotation, musical format characters, tags.
            | 0xfff9..=0xfffb | 0x1d173..=0x1d17a | 0xe0000..=0xe007f)
        // Noncharacters, which XML refuses too.
        || matches!(u32::from(c) & 0xffff, 0xfffe | 0xffff)
        || matches!(u32::from(c), 0xfdd0..=0xfdef);
    let odd_space = c.is_whitespace() && c != ' ';
    !hidden && !odd_space
}

/// A number with at most `digits` decimals. A number that is not whole, but is rounded to one, has a `≈` before it.
///
/// ```
/// use regard_view::label::number;
///
/// assert_eq!(number(0.7557, 3), "0.756");
/// assert_eq!(number(15.0, 3), "15");
/// assert_eq!(number(2.9e-20, 3), "≈0");
/// ```
pub fn number(value: f64, digits: u8) -> String {
    if value.abs() >= 1e12 {
        return format!("{value:.6e}");
    }
    let digits = usize::from(digits);
    let fixed = format!("{value:.digits$}");
    let short = match fixed.contains('.') {
        true => fixed.trim_end_matches('0').trim_end_matches('.'),
        false => &fixed,
    };
    let short = if short == "-0" { "0" } else { short };
    let is_whole = !short.contains('.');
    let away = short
        .parse::<f64>()
        .map_or(0.0, |shown| (shown - value).abs());
    match is_whole && away > 1e-12 * value.abs() {
        true => format!("≈{short}"),
        false => short.to_owned(),
    }
}

/// Columns that a text takes on a terminal.
pub fn width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// Whether the text's own direction is right to left: that of its first strong character.
pub fn is_rtl(text: &str) -> bool {
    BidiInfo::new(text, None)
        .paragraphs
        .first()
        .is_some_and(|paragraph| paragraph.level.is_rtl())
}

/// Whether the text has any character written from right to left.
pub fn has_rtl(text: &str) -> bool {
    !text.is_ascii() && BidiInfo::new(text, Some(Level::ltr())).has_rtl()
}

/// Whether letters of the text change or join with their neighbours, so that they cannot be stacked
/// one above the other: right-to-left scripts, Indic and South-East Asian scripts, Mongolian.
pub fn is_joined(text: &str) -> bool {
    has_rtl(text)
        || text
            .chars()
            .any(|c| matches!(u32::from(c), 0x900..=0x109f | 0x1780..=0x18af))
}

/// The characters in their order from left to right on a device that ignores writing directions
/// (Unicode's bidirectional algorithm, with its mirrored brackets).
pub fn visual_order(text: &str) -> String {
    if !has_rtl(text) {
        return text.to_owned();
    }
    let info = BidiInfo::new(text, None);
    let mut out = String::with_capacity(text.len());
    for paragraph in &info.paragraphs {
        let (levels, runs) = info.visual_runs(paragraph, paragraph.range.clone());
        for run in runs {
            let piece = &text[run.clone()];
            if levels[run.start].is_rtl() {
                // Marks stay behind the letter they belong to.
                for grapheme in piece.graphemes(true).rev() {
                    out.extend(grapheme.chars().map(mirrored));
                }
            } else {
                out.push_str(piece);
            }
        }
    }
    out
}

fn mirrored(c: char) -> char {
    const PAIRS: [(char, char); 6] = [
        ('(', ')'),
        ('[', ']'),
        ('{', '}'),
        ('<', '>'),
        ('«', '»'),
        ('‹', '›'),
    ];
    PAIRS
        .iter()
        .find_map(|&(open, close)| match c {
            c if c == open => Some(close),
            c if c == close => Some(open),
            _ => None,
        })
        .unwrap_or(c)
}

/// The longest beginning of `text`, in whole graphemes, that takes at most
/// `limit` columns together with `ellipsis`; the whole text if it fits by itself. `order` is applied
/// before measuring, as a reordered text can be wider. Empty if not even the ellipsis fits.
pub(crate) fn fit(
    text: &str,
    limit: usize,
    ellipsis: &str,
    order: impl Fn(&str) -> String,
) -> String {
    let whole = order(text);
    if width(&whole) <= limit {
        return whole;
    }
    let mut cut = text;
    while let Some((last, _)) = cut.grapheme_indices(true).next_back() {
        cut = &cut[..last];
        // A long text is shortened at once: measuring it again for every character would be quadratic.
        if cut.len() > 8 * limit + 64 {
            let mut end = 8 * limit + 64;
            while !cut.is_char_boundary(end) {
                end -= 1;
            }
            cut = &cut[..end];
        }
        let candidate = order(&format!("{cut}{ellipsis}"));
        if width(&candidate) <= limit {
            return candidate;
        }
    }
    String::new()
}

/// Lines of cells: the first column aligned to the left, the others to the right.
pub fn columns(lines: &[Vec<String>]) -> String {
    let count = lines.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count)
        .map(|column| {
            lines
                .iter()
                .filter_map(|line| line.get(column))
                .map(|cell| width(cell))
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for line in lines {
        let mut out = String::new();
        for (column, cell) in line.iter().enumerate() {
            let space = " ".repeat(widths[column] - width(cell));
            match column {
                0 => out.push_str(&format!("  {cell}{space}")),
                _ => out.push_str(&format!("  {space}{cell}")),
            }
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_say_when_they_are_rounded_to_whole_ones() {
        let shown = |value| number(value, 8);
        assert_eq!(shown(15.0), "15");
        assert_eq!(shown(0.71 * 0.69 + 0.14 * 0.15 + 0.51 * 0.48), "0.7557");
        assert_eq!(shown(0.659_001_138_9), "0.65900114");
        assert_eq!(shown(2.9e-20), "≈0");
        assert_eq!(shown(1.0 - 1e-11), "≈1");
        assert_eq!(shown(-0.0), "0");
        assert_eq!(shown(15.000_000_000_000_002), "15");
        assert_eq!(shown(1e100), "1.000000e100");
        assert_eq!(number(0.5, 0), "≈0");
    }

    #[test]
    fn right_to_left_is_reordered_for_devices_that_do_not() {
        assert_eq!(visual_order("abc"), "abc");
        assert_eq!(visual_order("שלום"), "םולש");
        assert_eq!(visual_order("(שלום) 12"), "12 (םולש)");
        assert!(is_rtl("שלום abc") && !is_rtl("abc שלום") && has_rtl("abc שלום"));
    }

    #[test]
    fn fitting_counts_columns() {
        let same = str::to_owned;
        assert_eq!(fit("日本語", 6, "…", same), "日本語");
        assert_eq!(fit("日本語", 5, "…", same), "日本…");
        assert_eq!(fit("日本語", 4, "…", same), "日…");
        assert_eq!(fit("e\u{301}e\u{301}e\u{301}", 2, "…", same), "e\u{301}…");
        assert_eq!(fit("abc", 0, "…", same), "");
        assert_eq!(fit(&"x".repeat(100_000), 3, "…", same), "xx…");
    }

    proptest! {
        #[test]
        fn nothing_visible_drives_a_device(text in any::<String>()) {
            let shown = visible(&text);
            prop_assert!(!shown.is_empty());
            let joiner = |c| matches!(c, '\u{200c}' | '\u{200d}');
            prop_assert!(shown.chars().all(|c| is_plain(c) || joiner(c)));
            prop_assert_eq!(shown.trim(), &shown);
        }

        #[test]
        fn fitted_text_fits(text in any::<String>(), limit in 0usize..12) {
            prop_assert!(width(&fit(&visible(&text), limit, "…", visual_order)) <= limit);
        }
    }
}
