//! A recipe with every key explained.

use std::fmt::Write as _;
use std::path::PathBuf;

use toml::{Table, Value};

use super::parse::{SECTIONS, kinds, plain_keys};
use super::section::Key;
use super::{
    Gnmt, LabelledData, Lstm, Lstmn, Luong, Model, Recipe, RecipeError, Rnnsearch, SelfAttentive,
    Seq2seq, Task, Transformer,
};

impl Recipe {
    /// A complete recipe to start from, for a model kind; `None` if there is no such kind.
    ///
    /// ```
    /// use regard_train::recipe::Recipe;
    /// let text = Recipe::example("luong").unwrap().commented()?;
    /// assert!(text.contains("# Half width D of the window of local attention, in tokens."));
    /// assert_eq!(Recipe::parse(&text, "luong.toml", &[])?, Recipe::example("luong").unwrap());
    /// # Ok::<(), regard_train::recipe::RecipeError>(())
    /// ```
    pub fn example(kind: &str) -> Option<Self> {
        let model = match kind {
            "rnnsearch" => Model::Rnnsearch(Rnnsearch::default()),
            "luong" => Model::Luong(Luong::default()),
            "transformer" => Model::Transformer(Transformer::default()),
            "seq2seq" => Model::Seq2seq(Seq2seq::default()),
            "lstmn" => Model::Lstmn(Lstmn::default()),
            "lstm" => Model::Lstm(Lstm::default()),
            "self-attentive" => Model::SelfAttentive(SelfAttentive::default()),
            "gnmt" => Model::Gnmt(Gnmt::default()),
            _ => return None,
        };
        let mut recipe = Self::new(model);
        match recipe.model.task() {
            Task::Translation => {
                recipe.data.train_source = Some(PathBuf::from("data/train.en.gz"));
                recipe.data.train_target = Some(PathBuf::from("data/train.de.gz"));
                recipe.data.valid_source = Some(PathBuf::from("data/val.en.gz"));
                recipe.data.valid_target = Some(PathBuf::from("data/val.de.gz"));
            }
            Task::Classification => {
                recipe.data.labelled = Some(LabelledData {
                    train: Some(PathBuf::from("data/train.tsv")),
                    valid: Some(PathBuf::from("data/dev.tsv")),
                    ..LabelledData::default()
                });
            }
        }
        recipe.training.epochs = Some(20);
        Some(recipe)
    }

    /// The recipe as TOML with every key explained; keys that are off stand in comments.
    ///
    /// # Errors
    /// As for [`to_toml`](Self::to_toml).
    pub fn commented(&self) -> Result<String, RecipeError> {
        let values = Table::try_from(self).map_err(|error| RecipeError::Write {
            message: error.to_string(),
        })?;
        let mut text = String::new();
        for section in SECTIONS {
            let empty = Table::new();
            let table = values
                .get(section)
                .and_then(Value::as_table)
                .unwrap_or(&empty);
            if !text.is_empty() {
                text.push('\n');
            }
            // Writing to a string cannot fail.
            let _ = writeln!(text, "[{section}]");
            let kind = table.get("kind").and_then(Value::as_str);
            if let Some(kind) = kind {
                let names: Vec<String> = kinds(section)
                    .iter()
                    .map(|(name, _)| format!("{name:?}"))
                    .collect();
                let _ = writeln!(text, "# One of {}.\nkind = {kind:?}", names.join(", "));
            }
            let keys = kinds(section)
                .iter()
                .find(|&&(name, _)| Some(name) == kind)
                .map_or_else(|| plain_keys(section), |&(_, keys)| keys);
            write_keys(&mut text, section, keys, table, "");
        }
        Ok(text)
    }
}

/// Writes plain keys, then tables; `off` is `"# "` inside a table that is not there.
fn write_keys(text: &mut String, section: &str, keys: &[Key], values: &Table, off: &str) {
    for key in keys.iter().filter(|key| key.table.is_none()) {
        document(text, key);
        let _ = match (values.get(key.name), key.example) {
            (Some(value), _) => writeln!(text, "{off}{} = {value}", key.name),
            (None, Some(example)) => writeln!(text, "# {} = {example}", key.name),
            (None, None) => writeln!(text, "# {} =", key.name),
        };
    }
    for key in keys {
        let Some(inner) = key.table else { continue };
        let path = format!("{section}.{}", key.name);
        text.push('\n');
        document(text, key);
        let present = values.get(key.name).and_then(Value::as_table);
        let off = if present.is_some() { off } else { "# " };
        let _ = writeln!(text, "{off}[{path}]");
        let defaults = (key.default_table)().unwrap_or_default();
        write_keys(text, &path, inner, present.unwrap_or(&defaults), off);
    }
}

fn document(text: &mut String, key: &Key) {
    for line in key.documentation {
        let _ = writeln!(text, "#{line}");
    }
}
