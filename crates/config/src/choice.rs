//! Choices that are the value of a key: a name, or a table with the name as `kind` and the keys that belong to it.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
    ser::SerializeMap as _,
};
use serde_json::{Map, Value};
use toml::de::ValueDeserializer;

use crate::{
    check::Check,
    config::{Config, Key},
};

/// One of the names of a [`Choice`].
#[derive(Debug)]
pub struct Alternative {
    /// The name.
    pub name: &'static str,
    /// The doc comment, line by line, as written (with its leading space).
    pub documentation: &'static [&'static str],
    /// The keys that belong to it.
    pub keys: &'static [Key],
    /// Those keys with their defaults.
    pub defaults: fn() -> Option<toml::Table>,
    /// Checks that a table of those keys has the right types.
    #[doc(hidden)]
    pub expect_types: fn(ValueDeserializer<'_>) -> Result<(), toml::de::Error>,
}

/// A documented choice: an enum that [`choice!`](crate::choice!) declares.
pub trait Choice: Sized {
    /// The alternatives.
    const ALTERNATIVES: &'static [Alternative];

    /// The name of the chosen alternative.
    fn kind(&self) -> &'static str;

    /// Checks the ranges of the keys that belong to it.
    fn check(&self, check: &mut Check);

    /// The keys that belong to it, with their values; `None` if it has no keys.
    #[doc(hidden)]
    fn values(&self) -> Option<Values>;

    /// The alternative with the name `kind` and these keys; `None` if there is no such name.
    #[doc(hidden)]
    fn of(kind: &str, values: Json) -> Option<Result<Self, JsonError>>;
}

/// The type of a key that holds a choice: the [`Choice`] itself or an `Option` of it.
pub trait ChoiceKey {
    /// The alternatives.
    const ALTERNATIVES: &'static [Alternative];

    /// Checks the choice that stands at key `name`.
    fn check(&self, name: &str, check: &mut Check);
}

impl<C: Choice> ChoiceKey for C {
    const ALTERNATIVES: &'static [Alternative] = C::ALTERNATIVES;

    fn check(&self, name: &str, check: &mut Check) {
        check.within(name, |check| Choice::check(self, check));
    }
}

impl<C: Choice> ChoiceKey for Option<C> {
    const ALTERNATIVES: &'static [Alternative] = C::ALTERNATIVES;

    fn check(&self, name: &str, check: &mut Check) {
        if let Some(choice) = self {
            ChoiceKey::check(choice, name, check);
        }
    }
}

/// Keys with their values.
pub type Values = toml::Table;
/// Keys with their values, as JSON.
pub type Json = Value;
/// Why keys and values cannot be read as a choice.
pub type JsonError = serde_json::Error;

/// The keys of a configuration with their values.
pub fn values<C: Config>(config: &C) -> Option<Values> {
    Values::try_from(config).ok()
}

/// A configuration from its keys.
pub fn from_json<C: Config>(values: Json) -> Result<C, JsonError> {
    serde_json::from_value(values)
}

/// Refuses any key: for an alternative that has none.
pub fn without_keys(values: Json) -> Result<(), JsonError> {
    match values.as_object().and_then(|values| values.keys().next()) {
        Some(key) => Err(de::Error::custom(format!("unknown key {key}"))),
        None => Ok(()),
    }
}

/// Checks that the values in a table have the types of a `C`.
pub fn expect_types<C: Config>(table: ValueDeserializer<'_>) -> Result<(), toml::de::Error> {
    C::deserialize(table).map(drop)
}

/// Writes a choice: as its name if no keys belong to it, else as a table.
pub fn serialize<C: Choice, S: Serializer>(choice: &C, serializer: S) -> Result<S::Ok, S::Error> {
    let Some(values) = choice.values() else {
        return serializer.serialize_str(choice.kind());
    };
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry("kind", choice.kind())?;
    for (key, value) in &values {
        map.serialize_entry(key, value)?;
    }
    map.end()
}

/// Reads a choice from its name, or from a table with the key `kind`.
pub fn deserialize<'de, C: Choice, D: Deserializer<'de>>(deserializer: D) -> Result<C, D::Error> {
    deserializer.deserialize_any(NameOrTable(PhantomData))
}

struct NameOrTable<C>(PhantomData<C>);

impl<'de, C: Choice> Visitor<'de> for NameOrTable<C> {
    type Value = C;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name, or a table with the key kind")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<C, E> {
        chosen(name, Map::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<C, A::Error> {
        let mut values = Map::deserialize(MapAccessDeserializer::new(map))?;
        match values.remove("kind") {
            Some(Value::String(name)) => chosen(&name, values),
            _ => Err(de::Error::missing_field("kind")),
        }
    }
}

fn chosen<C: Choice, E: de::Error>(name: &str, values: Map<String, Value>) -> Result<C, E> {
    match C::of(name, Value::Object(values)) {
        Some(choice) => choice.map_err(E::custom),
        None => {
            let names: Vec<&str> = C::ALTERNATIVES.iter().map(|known| known.name).collect();
            let expected = names.join(", ");
            Err(E::custom(format!(
                "found {name:?}, expected one of {expected}"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Check, Keys, POSITIVE, Section, Source, choice, commented, config};

    config! {
        /// Keys of "power".
        pub struct Power {
            /// The exponent, above 0.
            exponent: f64 = 2.0, in POSITIVE;
            /// Whether
            /// to halve.
            halve: bool = false;
        }
    }
    choice! {
        /// How it grows.
        pub enum Growth {
            /// Not.
            "none" => None,
            /// As a power.
            "power" => Power(Power),
        }
    }
    config! {
        /// A plant.
        pub struct Plant {
            /// By day.
            [choice] day: Growth = Growth::Power(Power { exponent: 3.0, halve: true });
            /// By night, if otherwise.
            [choice] night: Option<Growth> = None, example "\"none\"";
            /// Leaves.
            leaves: usize = 3;
        }
    }

    fn sections() -> [Section; 1] {
        [Section {
            name: "plant",
            keys: Keys::of::<Plant>(),
        }]
    }

    fn read(text: &str) -> Result<Plant, String> {
        let text = format!("[plant]\n{text}");
        let sections = sections();
        let mut source =
            Source::read(&text, "p.toml", &[], &sections).map_err(|error| error.to_string())?;
        let plant: Plant = source.section("plant").map_err(|error| error.to_string())?;
        let checked = source.check(|check: &mut Check| check.table("plant", &plant));
        checked.map_err(|error| error.to_string())?;
        Ok(plant)
    }

    #[test]
    fn names_and_tables_are_read() {
        assert_eq!(read("").unwrap(), Plant::default());
        assert_eq!(read("day = \"none\"").unwrap().day, Growth::None);
        let power = |exponent, halve| Growth::Power(Power { exponent, halve });
        assert_eq!(read("day = \"power\"").unwrap().day, power(2.0, false));
        let plant =
            read("night = { kind = \"power\", halve = true }\nday.kind = \"none\"").unwrap();
        assert_eq!(
            (plant.day, plant.night),
            (Growth::None, Some(power(2.0, true)))
        );
        assert_eq!(
            read("[plant.day]\nkind = \"power\"\nexponent = 7.0")
                .unwrap()
                .day,
            power(7.0, false)
        );
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, expected) in [
            (
                "day = \"powr\"",
                "p.toml:2:7: plant.day: found \"powr\" (did you mean \"power\"?); expected one of \"none\", \"power\"",
            ),
            (
                "day = 3",
                "p.toml:2:7: plant.day: found a whole number, expected one of \"none\", \"power\"",
            ),
            (
                "night = {}",
                "p.toml:2:1: plant.night.kind: missing; expected one of \"none\", \"power\"",
            ),
            (
                "night = { kind = \"x\" }",
                "p.toml:2:18: plant.night.kind: found \"x\"; expected one of",
            ),
            (
                "day = { kind = \"power\", exponnent = 2.0 }",
                "p.toml:2:25: unknown key plant.day.exponnent; did you mean exponent?",
            ),
            (
                "day = { kind = \"none\", exponent = 2.0 }",
                "p.toml:2:24: unknown key plant.day.exponent; did you mean kind = \"power\"?",
            ),
            (
                "day = { kind = \"power\", exponent = \"a\" }",
                "p.toml:2:36: plant.day.exponent: found \"a\", expected a number",
            ),
            (
                "day = { kind = \"power\", exponent = -1.0 }",
                "p.toml:2:25: plant.day.exponent: found -1; expected a number above 0",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}\n{expected}");
        }
        let json = |text| serde_json::from_str::<Growth>(text).map_err(|error| error.to_string());
        assert!(
            json("\"powr\"")
                .unwrap_err()
                .starts_with("found \"powr\", expected one of none, power")
        );
        assert!(
            json("{\"kind\": \"none\", \"exponent\": 1}")
                .unwrap_err()
                .starts_with("unknown key exponent")
        );
        assert!(
            json("{\"exponent\": 1}")
                .unwrap_err()
                .starts_with("missing field `kind`")
        );
        assert!(
            json("3")
                .unwrap_err()
                .contains("expected a name, or a table with the key kind")
        );
    }

    #[test]
    fn what_there_is_to_choose_is_printed() {
        let values = toml::Table::from_iter([(
            "plant".to_owned(),
            toml::Value::try_from(Plant::default()).unwrap(),
        )]);
        let text = commented(&sections(), &values, &[]);
        assert_eq!(
            text,
            "[plant]\n# By day.\n#  \"none\": Not.\n#  \"power\": As a power.\n#    exponent (2.0): The exponent, above 0.\n\
             #    halve (false): Whether\n#      to halve.\nday = { kind = \"power\", exponent = 3.0, halve = true }\n\
             # By night, if otherwise.\n# night = \"none\"\n# Leaves.\nleaves = 3\n"
        );
        assert_eq!(
            read(text.strip_prefix("[plant]\n").unwrap()).unwrap(),
            Plant::default()
        );
    }
}
