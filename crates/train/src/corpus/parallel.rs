//! Two texts aligned by line.

use std::path::Path;

use super::error::CorpusError;
use super::lines::read_lines;

/// Sentence pairs: line `i` of the target is the translation of line `i` of the source.
///
/// ```
/// use regard_train::corpus::ParallelText;
/// let text = ParallelText::new(vec!["a dog".into()], vec!["ein Hund".into()])?;
/// assert_eq!(text.iter().next(), Some(("a dog", "ein Hund")));
/// # Ok::<(), regard_train::corpus::CorpusError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParallelText {
    source: Vec<String>,
    target: Vec<String>,
}

impl ParallelText {
    /// Pairs the lines of two files, plain or gzip.
    ///
    /// Empty lines stay, so that line numbers hold; the [filter](super::LengthFilter) drops them.
    ///
    /// # Errors
    /// Those of [`read_lines`]; [`CorpusError::Empty`] for a file without lines;
    /// [`CorpusError::LineCounts`] naming both files and both counts.
    pub fn read(source: impl AsRef<Path>, target: impl AsRef<Path>) -> Result<Self, CorpusError> {
        let read = |path: &Path| {
            let lines = read_lines(path)?;
            if lines.is_empty() {
                return Err(CorpusError::Empty {
                    path: path.to_owned(),
                });
            }
            Ok(lines)
        };
        let paths = [source.as_ref(), target.as_ref()];
        let names = paths.map(|path| path.display().to_string());
        Self::paired(read(paths[0])?, read(paths[1])?, names)
    }

    /// Pairs lines that are already in memory.
    ///
    /// # Errors
    /// [`CorpusError::LineCounts`].
    pub fn new(source: Vec<String>, target: Vec<String>) -> Result<Self, CorpusError> {
        let names = ["the source", "the target"].map(str::to_owned);
        Self::paired(source, target, names)
    }

    fn paired(
        source: Vec<String>,
        target: Vec<String>,
        [source_name, target_name]: [String; 2],
    ) -> Result<Self, CorpusError> {
        if source.len() != target.len() {
            return Err(CorpusError::LineCounts {
                source_name,
                source_lines: source.len(),
                target_name,
                target_lines: target.len(),
            });
        }
        Ok(Self { source, target })
    }

    /// The source lines.
    pub fn source(&self) -> &[String] {
        &self.source
    }

    /// The target lines.
    pub fn target(&self) -> &[String] {
        &self.target
    }

    /// The number of pairs.
    pub fn len(&self) -> usize {
        self.source.len()
    }

    /// Whether there is no pair.
    pub fn is_empty(&self) -> bool {
        self.source.is_empty()
    }

    /// The pairs in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.source
            .iter()
            .zip(&self.target)
            .map(|(source, target)| (source.as_str(), target.as_str()))
    }
}
