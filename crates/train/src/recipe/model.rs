//! `[model]`: the architecture and its sizes.

use regard_config::{AnyConfig, Config};
use serde::{Serialize, Serializer, ser::Error as _, ser::SerializeMap};

/// An architecture, by its name, with its configuration: the section `[model]` of a recipe.
#[derive(Debug)]
pub struct Model {
    /// The name in `kind`.
    pub kind: &'static str,
    /// The other keys.
    pub config: Box<dyn AnyConfig>,
}

impl Model {
    /// The configuration, if it is a `C`.
    ///
    /// ```
    /// use regard_models::LuongConfig;
    /// use regard_train::Registry;
    ///
    /// let recipe = Registry::default().example("luong").unwrap();
    /// assert_eq!(recipe.model.config::<LuongConfig>().unwrap().window, 10);
    /// ```
    pub fn config<C: Config>(&self) -> Option<&C> {
        self.config.downcast_ref()
    }

    /// As [`config`](Self::config), for changing it.
    pub fn config_mut<C: Config>(&mut self) -> Option<&mut C> {
        self.config.downcast_mut()
    }
}

impl Clone for Model {
    fn clone(&self) -> Self {
        Self {
            kind: self.kind,
            config: self.config.boxed(),
        }
    }
}

impl PartialEq for Model {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.config.equals(&*other.config)
    }
}

impl Serialize for Model {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let values = self.config.values().map_err(S::Error::custom)?;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", self.kind)?;
        // In the order of the declaration, but with tables last, as TOML requires.
        for tables in [false, true] {
            for key in self.config.keys() {
                if let Some(value) = values
                    .get(key.name)
                    .filter(|value| value.is_table() == tables)
                {
                    map.serialize_entry(key.name, value)?;
                }
            }
        }
        map.end()
    }
}
