//! Prints a configuration with every key explained.

use std::fmt::Write as _;

use toml::{Table, Value};

use crate::{
    choice::Alternative,
    config::Key,
    source::{Keys, Section},
};

/// `values` as TOML with every key explained, section by section; keys that are off stand in comments. The sections and keys
/// named in `hidden` ("section", "section.key") are left out.
pub fn commented(sections: &[Section], values: &Table, hidden: &[&str]) -> String {
    let mut text = String::new();
    let empty = Table::new();
    for section in sections {
        if hidden.contains(&section.name) {
            continue;
        }
        let name = section.name;
        let table = values.get(name).and_then(Value::as_table);
        let table = table.unwrap_or(&empty);
        if !text.is_empty() {
            text.push('\n');
        }
        // Writing to a string cannot fail.
        let _ = writeln!(text, "[{name}]");
        let keys = match &section.keys {
            Keys::Plain(keys) => keys,
            Keys::Kinds(kinds) => {
                let kind = table.get("kind").and_then(Value::as_str);
                let Some(&(kind, keys)) = kinds.iter().find(|(name, _)| Some(*name) == kind) else {
                    continue;
                };
                let names: Vec<String> =
                    kinds.iter().map(|(name, _)| format!("{name:?}")).collect();
                let _ = writeln!(text, "# One of {}.\nkind = {kind:?}", names.join(", "));
                keys
            }
        };
        write_keys(&mut text, name, keys, table, hidden, "");
    }
    text
}

/// Writes plain keys, then tables; `off` is `"# "` inside a table that is left out, so that its keys become comments.
fn write_keys(
    text: &mut String,
    section: &str,
    keys: &[Key],
    values: &Table,
    hidden: &[&str],
    off: &str,
) {
    let shown = |key: &&Key| !hidden.contains(&format!("{section}.{}", key.name).as_str());
    for key in keys.iter().filter(shown).filter(|key| key.table.is_none()) {
        document(text, key);
        let names = |key: &Key| -> Vec<&str> {
            let alternatives = key.choice.unwrap_or_default().iter();
            alternatives.map(|known| known.name).collect()
        };
        let mut earlier = keys.iter().take_while(|earlier| earlier.name != key.name);
        // Where several keys have the same alternatives, only the first of them lists these.
        if !earlier.any(|earlier| names(earlier) == names(key)) {
            write_alternatives(text, key.choice.unwrap_or_default());
        }
        let _ = match (values.get(key.name), key.example) {
            (Some(Value::Table(choice)), _) => {
                writeln!(text, "{off}{} = {}", key.name, inline(key, choice))
            }
            (Some(value), _) => writeln!(text, "{off}{} = {value}", key.name),
            (None, Some(example)) => writeln!(text, "# {} = {example}", key.name),
            (None, None) => writeln!(text, "# {} =", key.name),
        };
    }
    for key in keys.iter().filter(shown) {
        let Some(inner) = key.table else { continue };
        let path = format!("{section}.{}", key.name);
        text.push('\n');
        document(text, key);
        let present = values.get(key.name).and_then(Value::as_table);
        let off = if present.is_some() { off } else { "# " };
        let _ = writeln!(text, "{off}[{path}]");
        let defaults = (key.defaults)().unwrap_or_default();
        write_keys(
            text,
            &path,
            inner,
            present.unwrap_or(&defaults),
            hidden,
            off,
        );
    }
}

/// A choice as an inline table, its keys in the order of their declaration.
fn inline(key: &Key, choice: &Table) -> String {
    let kind = choice.get("kind").and_then(Value::as_str);
    let mut alternatives = key.choice.unwrap_or_default().iter();
    let chosen = alternatives.find(|known| Some(known.name) == kind);
    let keys = chosen.map_or(&[][..], |known| known.keys);
    let names = keys.iter().map(|key| key.name);
    let values = ["kind"].into_iter().chain(names);
    let values = values.filter_map(|name| Some(format!("{name} = {}", choice.get(name)?)));
    format!("{{ {} }}", values.collect::<Vec<_>>().join(", "))
}

/// Writes the alternatives of a choice, and the keys of each.
fn write_alternatives(text: &mut String, alternatives: &[Alternative]) {
    for known in alternatives {
        let _ = writeln!(
            text,
            "#  {:?}:{}",
            known.name,
            known.documentation.join("\n#   ")
        );
        let defaults = (known.defaults)().unwrap_or_default();
        for key in known.keys {
            let default = defaults.get(key.name).map(|value| format!(" ({value})"));
            let default = default.unwrap_or_default();
            let documentation = key.documentation.join("\n#     ");
            let _ = writeln!(text, "#    {}{default}:{documentation}", key.name);
        }
    }
}

fn document(text: &mut String, key: &Key) {
    for line in key.documentation {
        let _ = writeln!(text, "#{line}");
    }
}
