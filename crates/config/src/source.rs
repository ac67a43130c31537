//! Reading a configuration's text: where each key stands, and which keys are known.

use std::{collections::BTreeMap, fs, ops::Range, path::Path};

use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue, ValueDeserializer},
};

use crate::{
    check::Check,
    choice::Alternative,
    config::{Config, Key},
    error::{ConfigError, Place},
    nearest::nearest,
    overrides,
};

/// The text of the file at `path`.
///
/// # Errors
/// [`ConfigError::Read`]; [`ConfigError::Syntax`] for a text that is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, ConfigError> {
    let name = path.display().to_string();
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(source) => return Err(ConfigError::Read { name, source }),
    };
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let start = String::from_utf8_lossy(&error.as_bytes()[..at]);
        ConfigError::Syntax {
            place: place(&start, &name, at),
            message: format!("byte offset {at} is not UTF-8"),
        }
    })
}

/// Where byte `at` of the text of a file stands.
fn place(text: &str, name: &str, at: usize) -> Place {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Place::File {
        name: name.to_owned(),
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
    }
}

/// A section of a file.
#[derive(Debug)]
pub struct Section {
    /// Its name.
    pub name: &'static str,
    /// What may stand in it.
    pub keys: Keys,
}

/// What may stand in a section.
#[derive(Debug)]
pub enum Keys {
    /// These keys.
    Plain(&'static [Key]),
    /// The key `kind`, and the keys that go with each of its names.
    Kinds(Vec<(&'static str, &'static [Key])>),
}

impl Keys {
    /// The keys of a configuration.
    pub fn of<C: Config>() -> Self {
        Self::Plain(C::KEYS)
    }

    fn kinds(&self) -> &[(&'static str, &'static [Key])] {
        match self {
            Self::Plain(_) => &[],
            Self::Kinds(kinds) => kinds,
        }
    }
}

/// A text with its overrides applied, and the place of each key. Sections are taken out of it one by one.
pub struct Source<'a> {
    text: &'a str,
    name: &'a str,
    overrides: &'a [String],
    sections: &'a [Section],
    root: DeTable<'a>,
    /// Each key's full name, with the spans of its name and of its value.
    seen: BTreeMap<String, (Range<usize>, Range<usize>)>,
}

impl<'a> Source<'a> {
    /// Reads TOML that may have these `sections`. Errors call the text `name`. Each of `overrides` (`section.key=value`)
    /// replaces a value of the text.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`], [`ConfigError::Override`], or [`ConfigError::UnknownKey`] for a section.
    pub fn read(
        text: &'a str,
        name: &'a str,
        overrides: &'a [String],
        sections: &'a [Section],
    ) -> Result<Self, ConfigError> {
        let mut source = Self {
            text,
            name,
            overrides,
            sections,
            root: DeTable::new(),
            seen: BTreeMap::new(),
        };
        let mut root = DeTable::parse(text)
            .map_err(|error| ConfigError::Syntax {
                place: source.place(&error.span().unwrap_or(0..0)),
                message: error.message().replace('\n', "; "),
            })?
            .into_inner();
        for (index, text) in overrides.iter().enumerate() {
            // The spans of overrides lie beyond the end of the text.
            overrides::apply(&mut root, text, source.text.len() + 1 + index)?;
        }
        source.note("", &root);
        let names: Vec<&str> = sections.iter().map(|section| section.name).collect();
        source.refuse_unknown("", &root, &names, &|source, name| source.home_of("", name))?;
        source.root = root;
        Ok(source)
    }

    /// Runs `checks`; the first problem that they find is returned as an error, with its place.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn check(&self, checks: impl FnOnce(&mut Check)) -> Result<(), ConfigError> {
        let mut check = Check::default();
        checks(&mut check);
        match check.into_first() {
            None => Ok(()),
            Some(problem) => {
                let place = self.place_of_key(&problem.key);
                Err(problem.at(place))
            }
        }
    }

    fn place(&self, span: &Range<usize>) -> Place {
        if let Some(index) = span.start.checked_sub(self.text.len() + 1)
            && let Some(text) = self.overrides.get(index)
        {
            return Place::Override { text: text.clone() };
        }
        place(self.text, self.name, span.start)
    }

    /// Where a key stands, or else its section, or at least the file.
    fn place_of_key(&self, key: &str) -> Place {
        let mut path = key;
        loop {
            if let Some((name, _)) = self.seen.get(path) {
                return self.place(name);
            }
            match path.rsplit_once('.') {
                Some((section, _)) => path = section,
                None => {
                    return Place::Name {
                        name: self.name.to_owned(),
                    };
                }
            }
        }
    }

    /// Takes `kind` out of a section: one of its kinds, or `default` if it is not there.
    ///
    /// # Errors
    /// [`ConfigError::Value`] or [`ConfigError::WrongType`] for any other value.
    pub fn kind(
        &mut self,
        section: &'static str,
        default: Option<&'static str>,
    ) -> Result<&'static str, ConfigError> {
        let names: Vec<&'static str> = self.kinds(section).iter().map(|&(name, _)| name).collect();
        // A section that is not a table is refused when it is read.
        let found = match self.root.get_mut(section).map(Spanned::get_mut) {
            Some(DeValue::Table(table)) => table.remove("kind"),
            _ => None,
        };
        match (&found, default) {
            (None, Some(default)) => Ok(default),
            _ => self.named(joined(section, "kind"), found.as_ref(), &names),
        }
    }

    /// Which of `names` stands at `key`.
    fn named(
        &self,
        key: String,
        found: Option<&Spanned<DeValue<'_>>>,
        names: &[&'static str],
    ) -> Result<&'static str, ConfigError> {
        let expected = format!("one of {}", quoted(names));
        let Some(found) = found else {
            return Err(ConfigError::Value {
                place: self.place_of_key(&key),
                key,
                found: "missing".to_owned(),
                expected,
            });
        };
        let place = self.place(&found.span());
        match found.get_ref() {
            DeValue::String(name) => match names.iter().find(|known| *known == name) {
                Some(known) => Ok(known),
                None => Err(ConfigError::Value {
                    place,
                    key,
                    found: format!("found {name:?}{}", meant(name, names)),
                    expected,
                }),
            },
            other => Err(ConfigError::WrongType {
                place,
                key,
                problem: format!("found {}, expected {expected}", type_name(other)),
            }),
        }
    }

    /// Takes a section out of the text and reads it; one that is not there has its defaults.
    ///
    /// # Errors
    /// [`ConfigError::UnknownKey`] or [`ConfigError::WrongType`].
    pub fn section<C: Config>(&mut self, section: &'static str) -> Result<C, ConfigError> {
        let Some(value) = self.root.remove(section) else {
            return Ok(C::default());
        };
        let span = value.span();
        let DeValue::Table(table) = value.get_ref() else {
            return Err(ConfigError::WrongType {
                place: self.place(&span),
                key: section.to_owned(),
                problem: format!(
                    "found {}, expected a section [{section}]",
                    type_name(value.get_ref())
                ),
            });
        };
        let has_kind = !self.kinds(section).is_empty();
        let home = |source: &Self, name: &str| source.home_of(section, name);
        self.check_keys(section, table, C::KEYS, has_kind, &home)?;
        C::deserialize(ValueDeserializer::from(value))
            .map_err(|error| self.wrong_type(section, &error, span))
    }

    /// The parser's `error` as a [`ConfigError`]; `span` is that of the section, for an error that has none.
    fn wrong_type(
        &self,
        section: &str,
        error: &toml::de::Error,
        span: Range<usize>,
    ) -> ConfigError {
        let span = error.span().unwrap_or(span);
        ConfigError::WrongType {
            place: self.place(&span),
            key: self.key_at(section, &span),
            problem: readable(error.message()),
        }
    }

    /// Checks names and types of the choice at `key`.
    fn check_choice(
        &mut self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        alternatives: &'static [Alternative],
    ) -> Result<(), ConfigError> {
        let names: Vec<&'static str> = alternatives.iter().map(|known| known.name).collect();
        let DeValue::Table(table) = value.get_ref() else {
            return self.named(key.to_owned(), Some(value), &names).map(drop);
        };
        let name = self.named(joined(key, "kind"), table.get("kind"), &names)?;
        let has = |known: &&Alternative, key: &str| known.keys.iter().any(|own| own.name == key);
        let home = |_: &Self, key: &str| {
            let other = alternatives.iter().find(|known| has(known, key))?;
            Some(format!("kind = {:?}", other.name))
        };
        for known in alternatives.iter().filter(|known| known.name == name) {
            self.check_keys(key, table, known.keys, true, &home)?;
            let mut values = table.clone();
            values.remove("kind");
            let values = Spanned::new(value.span(), DeValue::Table(values));
            (known.expect_types)(ValueDeserializer::from(values))
                .map_err(|error| self.wrong_type(key, &error, value.span()))?;
        }
        Ok(())
    }

    fn check_keys(
        &mut self,
        section: &str,
        table: &DeTable<'_>,
        keys: &[Key],
        has_kind: bool,
        home: &dyn Fn(&Self, &str) -> Option<String>,
    ) -> Result<(), ConfigError> {
        self.note(section, table);
        let kind = has_kind.then_some("kind");
        let names: Vec<&str> = kind
            .into_iter()
            .chain(keys.iter().map(|key| key.name))
            .collect();
        self.refuse_unknown(section, table, &names, home)?;
        for (name, value) in table {
            let Some(key) = keys.iter().find(|key| key.name == name.get_ref()) else {
                continue;
            };
            let path = joined(section, key.name);
            if let (Some(inner), DeValue::Table(table)) = (key.table, value.get_ref()) {
                let home = |source: &Self, name: &str| source.home_of(&path, name);
                self.check_keys(&path, table, inner, false, &home)?;
            }
            if let Some(alternatives) = key.choice {
                self.check_choice(&path, value, alternatives)?;
            }
        }
        Ok(())
    }

    fn note(&mut self, section: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let spans = (name.span(), value.span());
            self.seen.insert(joined(section, name.get_ref()), spans);
        }
    }

    fn refuse_unknown(
        &self,
        section: &str,
        table: &DeTable<'_>,
        known: &[&str],
        home: &dyn Fn(&Self, &str) -> Option<String>,
    ) -> Result<(), ConfigError> {
        let is_unknown = |key: &&Spanned<DeString<'_>>| !known.contains(&key.get_ref().as_ref());
        // The table is sorted by name; the first in the text is reported.
        let unknown = table
            .keys()
            .filter(is_unknown)
            .min_by_key(|key| key.span().start);
        let Some(key) = unknown else {
            return Ok(());
        };
        let name = key.get_ref().as_ref();
        let near = || nearest(name, known).map(str::to_owned);
        Err(ConfigError::UnknownKey {
            place: self.place(&key.span()),
            key: joined(section, name),
            nearest: home(self, name).or_else(near),
            known: known.iter().map(|&name| name.to_owned()).collect(),
        })
    }

    /// The values that `kind` may have in a section, with the keys of each.
    fn kinds(&self, section: &str) -> &'a [(&'static str, &'static [Key])] {
        let section = self.sections.iter().find(|known| known.name == section);
        section.map_or(&[], |section| section.keys.kinds())
    }

    /// Where a key of exactly this name is known: the kind of the section that has it (`kind = ".."`), or the key's full name
    /// in another section.
    fn home_of(&self, section: &str, name: &str) -> Option<String> {
        fn search(section: &str, keys: &[Key], name: &str) -> Option<String> {
            keys.iter().find_map(|key| {
                if key.name == name {
                    return Some(joined(section, name));
                }
                search(&joined(section, key.name), key.table?, name)
            })
        }
        let other_kind = self
            .kinds(section)
            .iter()
            .find(|(_, keys)| keys.iter().any(|key| key.name == name))
            .map(|(kind, _)| format!("kind = {kind:?}"));
        let other_section = || {
            self.sections
                .iter()
                .find_map(|section| match &section.keys {
                    Keys::Plain(keys) => search(section.name, keys, name),
                    Keys::Kinds(kinds) => kinds
                        .iter()
                        .find_map(|(_, keys)| search(section.name, keys, name)),
                })
        };
        other_kind.or_else(other_section)
    }

    /// The key whose value is at `span`.
    fn key_at(&self, section: &str, span: &Range<usize>) -> String {
        let inside = |value: &Range<usize>| value.start <= span.start && span.end <= value.end;
        self.seen
            .iter()
            .filter(|(key, (_, value))| key.starts_with(section) && inside(value))
            // A key is preferred to the table that holds it; among the keys of one override, the longest path.
            .min_by_key(|(key, (_, value))| (value.len(), std::cmp::Reverse(key.len())))
            .map_or_else(|| section.to_owned(), |(key, _)| key.clone())
    }
}

fn joined(section: &str, key: &str) -> String {
    if section.is_empty() {
        key.to_owned()
    } else {
        format!("{section}.{key}")
    }
}

fn quoted(names: &[&str]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    names.join(", ")
}

fn meant(name: &str, known: &[&str]) -> String {
    nearest(name, known).map_or_else(String::new, |near| format!(" (did you mean {near:?}?)"))
}

fn type_name(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Serde's message, reworded for people who write recipes.
fn readable(message: &str) -> String {
    let (found, expected) = match message.rsplit_once(", expected ") {
        Some(parts) => parts,
        None => return message.to_owned(),
    };
    let found = found
        .trim_start_matches("invalid type: ")
        .trim_start_matches("invalid value: ");
    if let Some(variant) = found.strip_prefix("unknown variant `") {
        let variant = variant.trim_end_matches('`');
        let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        return format!(
            "found {variant:?}{}, expected one of {}",
            meant(variant, &known),
            quoted(&known)
        );
    }
    let expected = match expected.trim_end() {
        "usize" | "u64" => "a whole number of at least 0",
        "f64" => "a number",
        "a boolean" => "true or false",
        "path string" => "a path (a string)",
        other if other.starts_with("struct ") => "a table",
        other => other,
    };
    // Serde's names for what it found, with the value between backticks where it has one.
    let found = match found {
        "sequence" => "a list".to_owned(),
        "map" => "a table".to_owned(),
        other => match other.split_once('`') {
            Some((_, value)) => value.split('`').next().unwrap_or(value).to_owned(),
            None => other.trim_start_matches("string ").to_owned(),
        },
    };
    format!("found {found}, expected {expected}")
}
