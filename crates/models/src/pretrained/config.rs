//! The configuration of a model, `config.json`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use regard_config::nearest;
use serde_json::{Map, Value};

use super::{
    error::PretrainedError,
    json::{LARGEST_SETTINGS, json},
};

/// The largest size that a configuration may state.
const LARGEST_SIZE: u64 = 1 << 24;

/// The most labels without names, so that a number alone takes no memory to speak of.
const MOST_UNNAMED: usize = 1 << 16;

/// A JSON object whose values are read by key and type, with errors that say where they are.
///
/// A key with the value `null` counts as missing. Each `name` of a type has a `name_or`, which gives a default for a missing key;
/// a key with a wrong value is an error in both.
///
/// ```
/// use regard_models::pretrained::Config;
/// use serde_json::json;
///
/// let config = Config::new("config.json", json!({"n_embd": 768, "n_inner": null, "rope_scaling": {"factor": "8"}}))?;
/// let width = config.size("n_embd")?;
/// assert_eq!((width, config.size_or("n_inner", 4 * width)?), (768, 3072));
/// let scaling = config.section("rope_scaling")?.unwrap();
/// let error = scaling.float("factor").unwrap_err().to_string();
/// assert_eq!(error, "config.json: rope_scaling.factor: found \"8\"; expected a number");
/// # Ok::<(), regard_models::pretrained::PretrainedError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    path: PathBuf,
    /// The keys around this section, each with a dot after it.
    section: String,
    fields: Map<String, Value>,
}

/// One type of value: `$name` for a key that must be there, `$name_or` for one that may be missing.
macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident, $name_or:ident -> $type:ty { $expected:literal, $read:expr })*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`PretrainedError::Key`].
            pub fn $name(&self, key: &str) -> Result<$type, PretrainedError> {
                self.read(key, $expected, $read)
            }

            #[doc = concat!("As [`", stringify!($name), "`](Self::", stringify!($name), "); `default` for a missing key.")]
            ///
            /// # Errors
            /// [`PretrainedError::Key`].
            pub fn $name_or(&self, key: &str, default: $type) -> Result<$type, PretrainedError> {
                match self.has(key) {
                    true => self.$name(key),
                    false => Ok(default),
                }
            }
        )*
    };
}

impl Config {
    /// A configuration from a JSON object; `path` is the file that errors name.
    ///
    /// # Errors
    /// [`PretrainedError::Malformed`] for a value that is no object.
    pub fn new(path: impl Into<PathBuf>, value: Value) -> Result<Self, PretrainedError> {
        let path = path.into();
        match value {
            Value::Object(fields) => Ok(Self {
                path,
                section: String::new(),
                fields,
            }),
            other => Err(PretrainedError::malformed(
                &path,
                format!("found {}; expected a JSON object", shown(&other)),
            )),
        }
    }

    /// Reads a file, of at most 16 MiB.
    ///
    /// # Errors
    /// [`PretrainedError::Read`] and [`PretrainedError::Malformed`].
    pub fn read_file(path: impl AsRef<Path>) -> Result<Self, PretrainedError> {
        let path = path.as_ref();
        Self::new(path, json(path, LARGEST_SETTINGS)?)
    }

    /// `generation_config.json` of a folder, if it has one. Where it has, transformers takes no setting of how a model writes from
    /// `config.json`.
    pub(super) fn of_generation(folder: &Path) -> Result<Option<Self>, PretrainedError> {
        let path = folder.join("generation_config.json");
        match path.exists() {
            true => Self::read_file(path).map(Some),
            false => Ok(None),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a key has a value other than `null`.
    pub fn has(&self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// The value of a key, whatever its type; `None` if it is missing or `null`.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }

    readers! {
        /// A size: 1 to 2^24.
        size, size_or -> usize { "a whole number from 1 to 16777216", |value| count(value).filter(|&count| count > 0) }
        /// A number of things: 0 to 2^24.
        count, count_or -> usize { "a whole number from 0 to 16777216", count }
        /// A finite number.
        float, float_or -> f64 { "a number", float }
        /// A number above 0, such as the ε of a norm or the base of rotary positions.
        positive, positive_or -> f64 { "a number above 0", |value| float(value).filter(|&number| number > 0.0) }
        /// True or false.
        flag, flag_or -> bool { "true or false", Value::as_bool }
        /// A list of sizes.
        sizes, sizes_or -> Vec<usize> { "a list of whole numbers from 1 to 16777216", |value| {
            list(value, |item| count(item).filter(|&count| count > 0))
        } }
        /// A list of finite numbers.
        floats, floats_or -> Vec<f64> { "a list of numbers", |value| list(value, float) }
        /// A list of texts.
        texts, texts_or -> Vec<String> { "a list of texts", |value| {
            list(value, |item| item.as_str().map(str::to_owned))
        } }
        /// One id of a token or a list of them.
        ids, ids_or -> Vec<u32> { "the id of a token or a list of them", |value| match value {
            Value::Array(_) => list(value, id),
            one => Some(vec![id(one)?]),
        } }
    }

    /// A text.
    ///
    /// # Errors
    /// [`PretrainedError::Key`].
    pub fn text(&self, key: &str) -> Result<&str, PretrainedError> {
        match self.value(key) {
            Some(Value::String(text)) => Ok(text),
            found => Err(self.unexpected(key, found, "a text")),
        }
    }

    /// As [`text`](Self::text); `default` for a missing key.
    ///
    /// # Errors
    /// [`PretrainedError::Key`].
    pub fn text_or<'a>(&'a self, key: &str, default: &'a str) -> Result<&'a str, PretrainedError> {
        match self.has(key) {
            true => self.text(key),
            false => Ok(default),
        }
    }

    /// One of `known` texts, as its place in them.
    ///
    /// # Errors
    /// [`PretrainedError::Key`] with the nearest of them.
    pub fn one_of(&self, key: &str, known: &[&str]) -> Result<usize, PretrainedError> {
        let found = self.text(key)?;
        known.iter().position(|name| *name == found).ok_or_else(|| {
            let near = nearest(found, known);
            let near = near.map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
            self.error(
                key,
                format!("{found:?}"),
                format!("one of {}{near}", known.join(", ")),
            )
        })
    }

    /// The object of a key.
    ///
    /// # Errors
    /// [`PretrainedError::Key`] if the key has another value.
    pub fn section(&self, key: &str) -> Result<Option<Self>, PretrainedError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(Self {
                path: self.path.clone(),
                section: format!("{}{key}.", self.section),
                fields: fields.clone(),
            })),
            found => Err(self.unexpected(key, found, "an object")),
        }
    }

    /// Whether a setting is there and does something: it is neither `false`, nor an empty list, nor the number `none`.
    pub(super) fn has_effect(&self, key: &str, none: f64) -> bool {
        match self.value(key) {
            None | Some(Value::Bool(false)) => false,
            Some(Value::Array(list)) => !list.is_empty(),
            Some(value) => value.as_f64() != Some(none),
        }
    }

    /// The texts of an object, by key; none for a missing key. A text that is `null` is empty.
    ///
    /// # Errors
    /// [`PretrainedError::Key`].
    pub(super) fn texts_by_name(
        &self,
        key: &str,
    ) -> Result<BTreeMap<String, String>, PretrainedError> {
        let Some(texts) = self.section(key)? else {
            return Ok(BTreeMap::new());
        };
        let text = |name: &String| Ok((name.clone(), texts.text_or(name, "")?.to_owned()));
        texts.fields.keys().map(text).collect()
    }

    /// The labels of a classifier, `id2label`, in the order of their numbers; without this key `LABEL_0`, `LABEL_1` and so on, as
    /// many as `num_labels`, which is 2 where it is missing.
    ///
    /// # Errors
    /// [`PretrainedError::Key`] if a number is missing or a label is no text, and for more than 65536 labels without names.
    pub fn labels(&self) -> Result<Vec<String>, PretrainedError> {
        const KEY: &str = "id2label";
        let Some(labels) = self.section(KEY)? else {
            let count = self.size_or("num_labels", 2)?;
            if count > MOST_UNNAMED {
                let expected = format!("at most {MOST_UNNAMED} without their names in {KEY}");
                return Err(self.refuse("num_labels", expected));
            }
            return Ok((0..count).map(|label| format!("LABEL_{label}")).collect());
        };
        let label = |number: usize| match labels.value(&number.to_string()) {
            Some(Value::String(label)) => Ok(label.clone()),
            found => Err(labels.unexpected(&number.to_string(), found, "a text")),
        };
        match labels.fields.len() {
            0 => Err(self.unexpected(KEY, self.value(KEY), "at least one label")),
            count => (0..count).map(label).collect(),
        }
    }

    /// Whether it is a section of another section, such as `rope_parameters.full_attention`.
    pub(super) fn is_nested(&self) -> bool {
        self.section.matches('.').count() > 1
    }

    /// Whether it has no keys.
    pub(super) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The same with the values of `other` in place of its own.
    pub(super) fn updated(mut self, other: Self) -> Self {
        self.fields.extend(other.fields);
        self
    }

    /// The same with the values of the object `defaults` for keys that are missing; a key with the value `null` keeps it.
    pub(super) fn completed(&self, defaults: &Value) -> Self {
        let mut completed = self.clone();
        for (key, value) in defaults.as_object().into_iter().flatten() {
            let field = completed.fields.entry(key.clone());
            field.or_insert_with(|| value.clone());
        }
        completed
    }

    /// An error about the value of a key, for conditions of a family of models: `expected` completes "expected".
    pub fn refuse(&self, key: &str, expected: impl Into<String>) -> PretrainedError {
        self.unexpected(key, self.value(key), expected)
    }

    fn read<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, PretrainedError> {
        let found = self.value(key);
        found
            .and_then(read)
            .ok_or_else(|| self.unexpected(key, found, expected))
    }

    fn unexpected(
        &self,
        key: &str,
        found: Option<&Value>,
        expected: impl Into<String>,
    ) -> PretrainedError {
        let found = found.map_or_else(|| "nothing".to_owned(), shown);
        self.error(key, found, expected.into())
    }

    fn error(&self, key: &str, found: String, expected: String) -> PretrainedError {
        PretrainedError::Key {
            path: self.path.clone(),
            key: format!("{}{key}", self.section),
            found,
            expected,
        }
    }
}

fn count(value: &Value) -> Option<usize> {
    let count = value.as_u64().filter(|&count| count <= LARGEST_SIZE)?;
    usize::try_from(count).ok()
}

fn float(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite())
}

fn id(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

fn list<T>(value: &Value, item: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(item).collect()
}

/// A value as an error shows it.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        None => text,
        Some((end, _)) => format!("{} ..", &text[..end]),
    }
}
