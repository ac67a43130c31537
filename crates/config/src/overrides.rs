//! Overrides: `section.key=value` replaces a value of a parsed configuration.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::ConfigError;

/// The most parts that the key of an override may have; no real key has as many.
const DEEPEST: usize = 8;

/// Applies the override `text` to `root`. The value, and every table that is created for it, gets
/// the span `span..span`, from which an error finds the override.
pub(super) fn apply<'i>(
    root: &mut DeTable<'i>,
    text: &'i str,
    span: usize,
) -> Result<(), ConfigError> {
    let refuse = |problem: &str| ConfigError::Override {
        text: text.to_owned(),
        problem: problem.to_owned(),
    };
    let (path, value) = text
        .split_once('=')
        .ok_or_else(|| refuse("there is no \"=\""))?;
    let parts: Vec<&str> = path.split('.').map(str::trim).collect();
    if !(2..=DEEPEST).contains(&parts.len()) || parts.iter().any(|part| part.is_empty()) {
        return Err(refuse("the key is not of the form section.key"));
    }
    let spanned = |value| Spanned::new(span..span, value);
    let mut table = root;
    let (last, sections) = parts.split_last().unwrap_or((&"", &[]));
    for part in sections {
        let entry = table
            .entry(Spanned::new(span..span, Cow::Borrowed(*part)))
            .or_insert_with(|| spanned(DeValue::Table(DeTable::new())));
        table = match entry.get_mut() {
            DeValue::Table(inner) => inner,
            _ => return Err(refuse(&format!("{part} is a value, not a section"))),
        };
    }
    let key = Spanned::new(span..span, Cow::Borrowed(*last));
    // Removed first: inserting alone would keep the old key, whose span points into the file.
    table.remove(&key);
    table.insert(key, spanned(respanned(value_of(value.trim()), span)));
    Ok(())
}

/// `value` with the span `span..span` on everything inside it.
fn respanned(value: DeValue<'_>, span: usize) -> DeValue<'_> {
    match value {
        DeValue::Table(table) => DeValue::Table(
            table
                .into_iter()
                .map(|(key, value)| {
                    let key = Spanned::new(span..span, key.into_inner());
                    let value = respanned(value.into_inner(), span);
                    (key, Spanned::new(span..span, value))
                })
                .collect(),
        ),
        other => other,
    }
}

/// The value as TOML reads it, or as a string.
fn value_of(text: &str) -> DeValue<'_> {
    match DeValue::parse(text) {
        Ok(value) => value.into_inner(),
        Err(_) => DeValue::String(Cow::Borrowed(text)),
    }
}
