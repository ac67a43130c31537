//! Steps and lists as text.

use std::fmt::Write as _;

use regard_nn::{
    explain::{Normalizer, Quantity, Step, Table, catalogue, masks, presets, topics},
    mask::Locality,
};
use regard_view::label::{columns, number, visible, width};

use crate::Explain;

/// What a masked cell shows.
const HIDDEN: &str = "·";

/// Decimals of a mechanism's numbers unless an option says how many.
pub const DIGITS: u8 = 8;

/// What is computed.
pub fn head(name: &str, source: &str, lines: &[&str]) -> String {
    format!("{name} ({source})\n{}\n\n", lines.join("\n"))
}

/// The head and all steps; the last weights and the last step alone if `quiet`. Numbers have `digits` decimals unless an option says how
/// many.
pub fn text(head: &str, steps: &[Step], digits: u8, options: &Explain) -> String {
    let digits = options.output.digits.unwrap_or(digits);
    let quiet = options.output.quiet;
    let mut text = match quiet {
        true => String::new(),
        false => head.to_owned(),
    };
    let last_weights = steps
        .iter()
        .rposition(|step| step.quantity == Quantity::Weights);
    for (index, step) in steps.iter().enumerate() {
        let is_result = Some(index) == last_weights || index + 1 == steps.len();
        if quiet && !is_result {
            continue;
        }
        self::step(&mut text, step, digits);
    }
    text
}

fn step(text: &mut String, step: &Step, digits: u8) {
    let _ = writeln!(text, "{}: {}", step.name, step.formula);
    text.push_str(&table(&step.table, digits));
    text.push('\n');
}

/// A table with its columns aligned to the right, two spaces apart.
fn table(table: &Table, digits: u8) -> String {
    let header =
        std::iter::once(String::new()).chain(table.columns.iter().map(|name| visible(name)));
    let rows = table.rows.iter().map(|row| {
        let cells = row.cells.iter().map(|cell| match cell {
            None => HIDDEN.to_owned(),
            Some(value) => number(*value, digits),
        });
        std::iter::once(visible(&row.name)).chain(cells).collect()
    });
    let lines: Vec<Vec<String>> = std::iter::once(header.collect()).chain(rows).collect();
    columns(&lines)
}

/// The findings of the checks, as text.
pub fn findings(findings: &[String], locality: Locality) -> String {
    let mut text = match locality {
        Locality::Predictive { .. } => "checks of the softmax, before the Gaussian:\n".to_owned(),
        _ => "checks:\n".to_owned(),
    };
    if findings.is_empty() {
        text.push_str("  nothing found: the weights are neither uniform nor saturated, and no keys are equal\n");
    }
    for finding in findings {
        let _ = writeln!(text, "  {finding}");
    }
    text
}

/// The list of everything that can be explained.
pub fn list() -> String {
    let mut text = String::new();
    let mut section = |title: &str, rows: Vec<(String, String)>| {
        let widest = rows.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
        let _ = writeln!(text, "{title}");
        for (name, about) in rows {
            let space = " ".repeat(widest - width(&name));
            let _ = writeln!(text, "  {name}{space}  {about}");
        }
        text.push('\n');
    };
    let entry = |name: &str, aliases: &[&str], summary: &str, source: &str| {
        let other = match aliases {
            [] => String::new(),
            aliases => format!("; also {}", aliases.join(", ")),
        };
        (name.to_owned(), format!("{summary} ({source}){other}"))
    };
    let mechanisms = catalogue::MECHANISMS
        .iter()
        .map(|m| entry(m.name, m.aliases, m.summary, m.source));
    section("Mechanisms", mechanisms.collect());
    let topics = topics::TOPICS
        .iter()
        .map(|t| entry(t.name, t.aliases, t.summary, t.source));
    section("Layers and algorithms", topics.collect());
    let presets = presets::PRESETS
        .iter()
        .map(|preset| (preset.name.to_owned(), preset.summary.to_owned()));
    section("Presets", presets.collect());
    let normalizers = Normalizer::NAMES
        .iter()
        .map(|(name, kind)| (format!("--normalizer {name}"), kind.formula().to_owned()));
    section("Normalisers", normalizers.collect());
    let masks = masks::KINDS
        .iter()
        .map(|kind| (kind.usage.to_owned(), format!("sees {}", kind.summary)));
    section(
        "Masks, for --mask and `regard explain mask`; combine with & (both), | (either), ! (not)",
        masks.collect(),
    );
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}
