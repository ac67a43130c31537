//! The data that systems are scored with: source, references, gold alignment.

use std::path::{Path, PathBuf};

use regard_evaluate::{Gold, Link};
use regard_train::recipe::Split;

use super::{indexing, read_recipe, same_length};
use crate::{
    arguments::{Evaluate, Part},
    failure::{CommandError, Failure},
    input,
};

/// Texts that are aligned by line.
pub struct Data {
    /// A file and its number of lines, named in the error if a system has another number of lines.
    pub standard: (String, usize),
    /// The name of the source in errors.
    pub source_name: String,
    /// The source, if there is one.
    pub source: Option<Vec<String>>,
    /// Reference by reference; at least one.
    pub references: Vec<Vec<String>>,
    /// The true alignment of source and first reference, if it is known.
    pub gold: Option<Vec<Gold>>,
}

impl Data {
    /// Reads the files, or the part of a recipe's data, that the options name.
    ///
    /// # Errors
    /// Files that are wrong or of unequal length.
    pub fn load(options: &Evaluate) -> Result<Self, Failure> {
        match (options.split, options.model.first()) {
            (Some(part), Some(model)) => Self::of_recipe(&model.path, part),
            _ => Self::of_files(options),
        }
    }

    fn of_files(options: &Evaluate) -> Result<Self, Failure> {
        let mut standard: Option<(String, usize)> = None;
        let mut read = |path: &PathBuf| -> Result<Vec<String>, Failure> {
            let lines = input::segments(path)?;
            let name = input::name(path);
            match &standard {
                Some((first, count)) => same_length((first, *count), (&name, lines.len()))?,
                None => standard = Some((name, lines.len())),
            }
            Ok(lines)
        };
        let references = options
            .references
            .iter()
            .map(&mut read)
            .collect::<Result<_, _>>()?;
        let source = options.source.as_ref().map(&mut read).transpose()?;
        let standard = standard.unwrap_or_default();
        let gold = options
            .gold
            .as_ref()
            .map(|path| -> Result<Vec<Gold>, Failure> {
                let gold = self::gold(path, options.one_based)?;
                same_length((&standard.0, standard.1), (&input::name(path), gold.len()))?;
                Ok(gold)
            });
        Ok(Self {
            gold: gold.transpose()?,
            source_name: options
                .source
                .as_deref()
                .map(input::name)
                .unwrap_or_default(),
            standard,
            source,
            references,
        })
    }

    fn of_recipe(model: &Path, part: Part) -> Result<Self, Failure> {
        let (path, recipe) = read_recipe(model)?;
        let (split, name) = match part {
            Part::Valid => (Split::Valid, "validation"),
            Part::Test => (Split::Test, "test"),
        };
        let loaded = recipe.data.load(split, recipe.training.seed)?;
        let loaded = loaded.ok_or_else(|| CommandError::NoSplit {
            recipe: path.clone(),
            part: name,
        })?;
        let gold = loaded.alignments.map(|alignments| {
            alignments
                .into_iter()
                .map(|links| Gold::new(links.into_iter().map(link), []))
                .collect()
        });
        let source_name = format!("the {name} data of {}", path.display());
        Ok(Self {
            standard: (source_name.clone(), loaded.text.len()),
            source_name,
            source: Some(loaded.text.source().to_vec()),
            references: vec![loaded.text.target().to_vec()],
            gold,
        })
    }
}

/// Reads a gold standard.
pub fn gold(path: &Path, one_based: bool) -> Result<Vec<Gold>, Failure> {
    let text = input::segments(path)?.join("\n") + "\n";
    Ok(Gold::parse(&input::name(path), &text, indexing(one_based))?)
}

/// A link between two places of a sentence, which are far below 2^32.
pub fn link((source, target): (usize, usize)) -> Link {
    Link {
        source: source as u32,
        target: target as u32,
    }
}
