//! Lines of styled text, written with as few escape sequences as they need.

use unicode_segmentation::UnicodeSegmentation;

use super::Colour;
use crate::colour::Rgb;
use crate::label::width;

/// How a piece of a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Style {
    pub ground: Option<Rgb>,
    /// The colour of the characters; without one, on a `ground` black or white, whichever reads better.
    pub ink: Option<Rgb>,
    pub bold: bool,
    /// Less contrast: by the terminal's own attribute on its own background, by a paler ink on a given one.
    pub faint: bool,
}

impl Style {
    pub const PLAIN: Style = Style {
        ground: None,
        ink: None,
        bold: false,
        faint: false,
    };
    pub const FAINT: Style = Style {
        faint: true,
        ..Style::PLAIN
    };
    pub const BOLD: Style = Style {
        bold: true,
        ..Style::PLAIN
    };

    pub fn on(ground: Rgb) -> Self {
        Style {
            ground: Some(ground),
            ..Self::PLAIN
        }
    }

    fn sequence(self, colour: Colour) -> String {
        let mut codes: Vec<String> = Vec::new();
        if self.bold {
            codes.push("1".into());
        }
        if let (Some(ink), None) = (self.ink, self.ground) {
            codes.push(match colour {
                Colour::TrueColour => format!("38;2;{};{};{}", ink.0, ink.1, ink.2),
                _ => format!("38;5;{}", ink.nearest_256()),
            });
        }
        if self.faint && self.ground.is_none() {
            codes.push("2".into());
        }
        if let Some(ground) = self.ground {
            let ink = match (self.ink, self.faint) {
                (Some(ink), _) => ink,
                (None, true) => ground.mix(ground.ink(), 0.5),
                (None, false) => ground.ink(),
            };
            codes.push(match colour {
                Colour::TrueColour => format!(
                    "38;2;{};{};{};48;2;{};{};{}",
                    ink.0, ink.1, ink.2, ground.0, ground.1, ground.2
                ),
                _ => format!("38;5;{};48;5;{}", ink.nearest_256(), ground.nearest_256()),
            });
        }
        format!("\x1b[{}m", codes.join(";"))
    }
}

/// A line under construction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    spans: Vec<(Style, String)>,
    width: usize,
}

impl Line {
    pub fn push(&mut self, style: Style, text: &str) {
        self.width += width(text);
        match self.spans.last_mut() {
            Some((last, existing)) if *last == style => existing.push_str(text),
            _ => self.spans.push((style, text.to_owned())),
        }
    }

    pub fn plain(&mut self, text: &str) {
        self.push(Style::PLAIN, text);
    }

    /// The spans of another line.
    pub fn append(&mut self, other: &Line) {
        for (style, text) in &other.spans {
            self.push(*style, text);
        }
    }

    /// Spaces up to column `column`.
    pub fn pad_to(&mut self, column: usize) {
        let missing = column.saturating_sub(self.width);
        self.push(Style::PLAIN, &" ".repeat(missing));
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// The line as written to the terminal: at most `limit` columns, nothing invisible at its end.
    pub fn finish(mut self, colour: Colour, limit: usize) -> String {
        self.clip(limit);
        while let Some((style, text)) = self.spans.last_mut() {
            if style.ground.is_some() {
                break;
            }
            text.truncate(text.trim_end_matches(' ').len());
            if !text.is_empty() {
                break;
            }
            self.spans.pop();
        }
        let mut out = String::new();
        for (style, text) in self.spans {
            if colour == Colour::Ascii || style == Style::PLAIN {
                out.push_str(&text);
            } else {
                out.push_str(&style.sequence(colour));
                out.push_str(&text);
                out.push_str("\x1b[0m");
            }
        }
        out
    }

    fn clip(&mut self, limit: usize) {
        let whole: String = self.spans.iter().map(|(_, text)| text.as_str()).collect();
        if width(&whole) <= limit {
            return;
        }
        let mut kept = String::new();
        let mut spans = Vec::new();
        'spans: for (style, text) in self.spans.drain(..) {
            let mut part = String::new();
            for grapheme in text.graphemes(true) {
                kept.push_str(grapheme);
                if width(&kept) > limit {
                    spans.push((style, part));
                    break 'spans;
                }
                part.push_str(grapheme);
            }
            spans.push((style, part));
        }
        self.spans = spans;
    }
}
