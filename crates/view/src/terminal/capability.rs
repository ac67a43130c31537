//! What a terminal can show, by the conventions of its environment.

/// How colours are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Colour {
    /// 24-bit colours (`ESC [ 48 ; 2 ; r ; g ; b m`).
    TrueColour,
    /// The 240 fixed colours of xterm's palette (`ESC [ 48 ; 5 ; n m`).
    Palette256,
    /// No escape sequences at all: darkness by characters, ` .:-=+*#%@`.
    Ascii,
}

impl Colour {
    /// What can be used, from the environment and from whether the output is a terminal.
    ///
    /// In this order: `NO_COLOR` (not empty) means none; `CLICOLOR_FORCE` or `FORCE_COLOR` (neither
    /// empty nor 0) means colour even in a pipe; otherwise a pipe, `TERM=dumb` and `CLICOLOR=0`
    /// mean none. `COLORTERM=truecolor` or `24bit`, `TERM` ending in `-direct`, and Windows Terminal
    /// have 24 bits; every other terminal is taken to have 256 colours.
    ///
    /// ```
    /// use regard_view::terminal::Colour;
    ///
    /// let with = |pairs: &'static [(&str, &str)], is_tty| {
    ///     let get = |name: &str| pairs.iter().find(|p| p.0 == name).map(|p| p.1.to_owned());
    ///     Colour::detect(get, is_tty)
    /// };
    /// assert_eq!(with(&[("COLORTERM", "truecolor")], true), Colour::TrueColour);
    /// assert_eq!(with(&[("TERM", "xterm-256color")], true), Colour::Palette256);
    /// assert_eq!(with(&[("TERM", "dumb")], true), Colour::Ascii);
    /// assert_eq!(with(&[("COLORTERM", "truecolor"), ("NO_COLOR", "1")], true), Colour::Ascii);
    /// assert_eq!(with(&[("COLORTERM", "truecolor")], false), Colour::Ascii);
    /// assert_eq!(with(&[("CLICOLOR_FORCE", "1")], false), Colour::Palette256);
    /// ```
    pub fn detect(get: impl Fn(&str) -> Option<String>, is_tty: bool) -> Self {
        let value = |name: &str| get(name).unwrap_or_default();
        let forced = ["CLICOLOR_FORCE", "FORCE_COLOR"]
            .iter()
            .any(|name| !matches!(value(name).as_str(), "" | "0" | "false"));
        let term = value("TERM");
        let refused = !is_tty || term == "dumb" || value("CLICOLOR") == "0";
        if !value("NO_COLOR").is_empty() || (refused && !forced) {
            return Self::Ascii;
        }
        let many = matches!(value("COLORTERM").as_str(), "truecolor" | "24bit")
            || term.ends_with("-direct")
            || !value("WT_SESSION").is_empty();
        if many {
            Self::TrueColour
        } else {
            Self::Palette256
        }
    }
}

/// Who puts right-to-left text into its visual order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// This library does, because the terminal shows characters in the order in which they come:
    /// most terminals.
    Reorder,
    /// The terminal or editor does. Labels stay in logical order and are fenced with left-to-right
    /// marks, so that they keep to their columns.
    Leave,
}

impl Direction {
    /// [`Direction::Leave`] for terminals known to reorder by themselves (VTE: GNOME Terminal and
    /// others, Konsole, mlterm, Apple's Terminal), and for output into a file or a pipe.
    pub fn detect(get: impl Fn(&str) -> Option<String>, is_tty: bool) -> Self {
        let set = |name: &str| get(name).is_some_and(|value| !value.is_empty());
        let reorders = set("VTE_VERSION")
            || set("KONSOLE_VERSION")
            || set("MLTERM")
            || get("TERM_PROGRAM").is_some_and(|program| program == "Apple_Terminal");
        if reorders || !is_tty {
            Self::Leave
        } else {
            Self::Reorder
        }
    }
}
