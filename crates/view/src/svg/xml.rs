//! Writing SVG: escaped text, short numbers, an estimate of how wide a text is.

use std::fmt::Write;

use unicode_segmentation::UnicodeSegmentation;

use crate::label::{is_rtl, visible, width};

/// The typefaces asked for: the one that [`png`](crate::png) has built in, then what systems have.
pub(crate) const FONTS: &str = "'Noto Sans', 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', \
    'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif";

/// Dark grey of titles and labels.
pub(crate) const INK: &str = "#1f2933";

/// Lighter grey of captions and ticks.
pub(crate) const FAINT: &str = "#697586";

/// Text for between tags or in a quoted attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A coordinate with at most two decimals.
pub(crate) fn coordinate(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" {
        "0".to_owned()
    } else {
        text.to_owned()
    }
}

/// About how wide a text is when set in `size` pixels. The estimate is rather too large for common
/// sans-serif fonts, as the fonts of the reader are not known.
pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    let em: f64 = text
        .graphemes(true)
        .map(|grapheme| match grapheme.chars().next() {
            Some('i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ') => 0.3,
            Some('f' | 't' | 'r' | '(' | ')' | '-' | '/' | '"') => 0.4,
            Some('m' | 'w' | 'M' | 'W' | '%' | '@' | '…') => 0.95,
            Some('A'..='Z') => 0.68,
            _ if width(grapheme) > 1 => 1.05,
            _ => 0.59,
        })
        .sum();
    em * size
}

/// A label as it is drawn, and the whole text if it had to be cut.
pub(crate) struct Shown {
    pub text: String,
    pub whole: Option<String>,
}

/// The label of a token: made visible, and cut to `limit` pixels in size `size`.
pub(crate) fn shown(label: &str, size: f64, limit: f64) -> Shown {
    let whole = visible(label);
    if text_width(&whole, size) <= limit {
        return Shown {
            text: isolated(&whole),
            whole: None,
        };
    }
    let mut text = String::new();
    // The mark of the cut takes `size`.
    let mut used = size;
    for grapheme in whole.graphemes(true) {
        used += text_width(grapheme, size);
        if used > limit {
            break;
        }
        text.push_str(grapheme);
    }
    text.push('…');
    Shown {
        text: isolated(&text),
        whole: Some(whole),
    }
}

/// The text made visible, in lines of at most `limit` pixels in size `size`, broken between words, but not
/// beside `=`; a longer word has a line to itself. No lines for an empty text.
pub(crate) fn wrapped(text: &str, size: f64, limit: f64) -> Vec<String> {
    // Both sides of `=` stay on one line.
    let mut parts: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        match parts.last_mut() {
            Some(part) if word == "=" || part.ends_with(" =") => {
                part.push(' ');
                part.push_str(word);
            }
            _ => parts.push(word.to_owned()),
        }
    }
    let mut lines: Vec<String> = Vec::new();
    for part in parts {
        let word = visible(&part);
        match lines.last_mut() {
            Some(line)
                if text_width(line, size) + text_width(&word, size) + 0.3 * size <= limit =>
            {
                line.push(' ');
                line.push_str(&word);
            }
            _ => lines.push(word),
        }
    }
    lines
}

/// A text that begins in a right-to-left script, marked as such if it also has punctuation, digits or
/// letters of another script, so that these stand where a reader of the script expects them. An SVG
/// text runs from left to right by default, and viewers disagree about other ways to change that.
fn isolated(text: &str) -> String {
    let letters_only = text.chars().all(|c| c.is_alphabetic() && !c.is_ascii());
    if is_rtl(text) && !letters_only {
        format!("\u{2067}{text}\u{2069}")
    } else {
        text.to_owned()
    }
}

/// Which part of a text lies at its point.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text is set.
#[derive(Clone, Copy)]
pub(crate) struct Face {
    pub size: f64,
    pub anchor: Anchor,
    pub fill: &'static str,
    pub bold: bool,
    /// Degrees around its point.
    pub turn: f64,
}

impl Face {
    pub fn new(size: f64, anchor: Anchor) -> Self {
        Self {
            size,
            anchor,
            fill: INK,
            bold: false,
            turn: 0.0,
        }
    }

    pub fn faint(self) -> Self {
        Self {
            fill: FAINT,
            ..self
        }
    }

    pub fn bold(self) -> Self {
        Self { bold: true, ..self }
    }
}

/// Appends a `<text>`; `label` must have gone through [`shown`] or be the caller's own words.
pub(crate) fn text(out: &mut String, x: f64, y: f64, face: Face, label: &Shown) {
    let _ = write!(
        out,
        r#"<text x="{}" y="{}" font-size="{}""#,
        coordinate(x),
        coordinate(y),
        coordinate(face.size)
    );
    match face.anchor {
        Anchor::Start => {}
        Anchor::Middle => out.push_str(r#" text-anchor="middle""#),
        Anchor::End => out.push_str(r#" text-anchor="end""#),
    }
    if face.fill != INK {
        let _ = write!(out, r#" fill="{}""#, face.fill);
    }
    if face.bold {
        out.push_str(r#" font-weight="bold""#);
    }
    if face.turn != 0.0 {
        let (x, y) = (coordinate(x), coordinate(y));
        let _ = write!(
            out,
            r#" transform="rotate({} {x} {y})""#,
            coordinate(face.turn)
        );
    }
    out.push('>');
    out.push_str(&escape(&label.text));
    if let Some(whole) = &label.whole {
        let _ = write!(out, "<title>{}</title>", escape(whole));
    }
    out.push_str("</text>\n");
}

/// A `<text>` of the library's own words.
pub(crate) fn words(out: &mut String, x: f64, y: f64, face: Face, text_of: &str) {
    let label = Shown {
        text: text_of.to_owned(),
        whole: None,
    };
    text(out, x, y, face, &label);
}

/// The opening of a group whose own corner is at `(x, y)`.
pub(crate) fn open_group(out: &mut String, x: f64, y: f64) {
    let (x, y) = (coordinate(x), coordinate(y));
    let _ = writeln!(out, r#"<g transform="translate({x} {y})">"#);
}

/// The opening of a document of this size on white ground; without a title it is called `untitled`.
pub(crate) fn open(out: &mut String, width: f64, height: f64, title: &str, untitled: &str) {
    let (w, h) = (coordinate(width.ceil()), coordinate(height.ceil()));
    let name = match title {
        "" => untitled.to_owned(),
        title => escape(&visible(title)),
    };
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w}\" height=\"{h}\" \
         viewBox=\"0 0 {w} {h}\" role=\"img\" aria-label=\"{name}\" \
         font-family=\"{FONTS}\" fill=\"{INK}\">\n<title>{name}</title>\n\
         <rect width=\"{w}\" height=\"{h}\" fill=\"#ffffff\"/>\n"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_tag() {
        assert_eq!(escape("</text>&\"'"), "&lt;/text&gt;&amp;&quot;&#39;");
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!(
            [1.0, 1.5, 1.256, -0.001, 100.0].map(coordinate),
            ["1", "1.5", "1.26", "0", "100"]
        );
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped("", 10.0, 50.0), Vec::<String>::new());
        assert_eq!(wrapped("ab  cd ef", 10.0, 28.0), ["ab cd", "ef"]);
        assert_eq!(
            wrapped("a Donaudampfschiff b", 10.0, 28.0),
            ["a", "Donaudampfschiff", "b"]
        );
        assert_eq!(wrapped("ab, c = 1", 10.0, 35.0), ["ab,", "c = 1"]);
    }

    #[test]
    fn long_labels_are_cut_and_kept_whole_for_hovering() {
        let label = shown("Donaudampfschiff", 10.0, 50.0);
        assert!(label.text.ends_with('…') && text_width(&label.text, 10.0) <= 50.0);
        assert_eq!(label.whole.as_deref(), Some("Donaudampfschiff"));
        assert!(shown("Donau", 10.0, 50.0).whole.is_none());
        let long = shown(&"x".repeat(400_000), 15.0, 3e6);
        assert!(long.text.ends_with('…') && long.text.len() > 300_000);
        assert_eq!(shown("שלום!", 10.0, 99.0).text, "\u{2067}שלום!\u{2069}");
    }
}
