//! One HTML page with pictures and their numbers: a single file that loads nothing from anywhere.
//!
//! The page in which traces are explored is `regard_serve::page`.

use std::fmt::Write as _;

use crate::label::visible;
use crate::svg::xml::escape;

/// A picture on a page, with its numbers.
#[derive(Debug, Clone, Copy)]
pub struct Figure<'a> {
    /// What it shows; empty where the page's title says so.
    pub title: &'a str,
    /// An SVG that [`chart`](crate::chart) or [`svg`](mod@crate::svg) made.
    pub svg: &'a str,
    /// Its numbers, as plain text.
    pub text: &'a str,
}

/// A page with pictures below each other, and the numbers of each below it.
///
/// ```
/// use regard_view::{chart::Chart, html};
///
/// let svg = Chart::new("", "", "").svg();
/// let figure = html::Figure { title: "", svg: &svg, text: "position  loss" };
/// let page = html::figures("Losses <1>", &[figure]);
/// assert!(page.starts_with("<!DOCTYPE html>") && page.contains("Losses &lt;1&gt;") && page.contains("position  loss"));
/// assert!(!page.contains('∅'));
/// ```
pub fn figures(title: &str, figures: &[Figure<'_>]) -> String {
    let title = escape(&visible(title));
    let mut sections = String::new();
    for figure in figures {
        if !figure.title.is_empty() {
            let title = escape(&visible(figure.title));
            let _ = writeln!(sections, "<h2>{title}</h2>");
        }
        let text = figure.text.lines().map(|line| match line {
            "" => "\n".to_owned(),
            // The columns of a table stand below each other; sentences are broken where the page ends.
            line if line.trim_start().contains("  ") => {
                format!("<span>{}</span>\n", escape(&visible(line)))
            }
            line => escape(&visible(line)) + "\n",
        });
        let text: String = text.collect();
        let _ = writeln!(sections, "{}<pre>{text}</pre>", figure.svg);
    }
    format!(
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="generator" content="regard {version}">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{title}</h1></header>
<main>
{sections}</main>
</body>
</html>
"#,
        version = env!("CARGO_PKG_VERSION"),
        style = include_str!("html.css"),
    )
}
