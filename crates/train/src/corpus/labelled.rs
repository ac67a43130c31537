//! Sentences with a label each, from tab-separated files.

use std::collections::BTreeSet;
use std::path::Path;

use super::error::CorpusError;
use super::lines::Lines;
use super::parallel::ParallelText;

/// Sentences and their labels: one `sentence TAB label` a line. The label is the text after the last tab,
/// without white space around it.
///
/// ```
/// use regard_train::corpus::LabelledText;
///
/// let text = LabelledText::read_from(&b"a fine film\t1\nlong and dull\t0\n"[..], "example")?;
/// assert_eq!(text.labels(), ["0", "1"]);
/// assert_eq!(text.classes(text.labels())?, [1, 0]);
/// # Ok::<(), regard_train::corpus::CorpusError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledText {
    name: String,
    /// Sentences and labels as pairs, so that the filters of pairs apply to them.
    pairs: ParallelText,
}

impl LabelledText {
    /// Reads a file, plain or gzip.
    ///
    /// # Errors
    /// Those of [`Lines`]; [`CorpusError::Empty`] for a file without lines; [`CorpusError::Label`] for a
    /// line without a label.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, CorpusError> {
        let path = path.as_ref();
        let text = Self::from_lines(Lines::open(path)?, path.display().to_string())?;
        match text.pairs.is_empty() {
            true => Err(CorpusError::Empty {
                path: path.to_owned(),
            }),
            false => Ok(text),
        }
    }

    /// Reads from any reader; errors call it `name`.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), except that empty input is not an error.
    pub fn read_from(reader: impl std::io::Read + Send, name: &str) -> Result<Self, CorpusError> {
        Self::from_lines(Lines::new(reader, name)?, name.to_owned())
    }

    fn from_lines(lines: Lines<'_>, name: String) -> Result<Self, CorpusError> {
        let (mut sentences, mut labels) = (vec![], vec![]);
        for (index, line) in lines.enumerate() {
            let line = line?;
            let refuse = |problem| CorpusError::Label {
                name: name.clone(),
                line: index + 1,
                problem,
            };
            let (sentence, label) = line.rsplit_once('\t').ok_or_else(|| refuse("has no tab"))?;
            let label = label.trim();
            if label.is_empty() {
                return Err(refuse("has nothing after its last tab"));
            }
            sentences.push(sentence.to_owned());
            labels.push(label.to_owned());
        }
        Ok(Self {
            name,
            pairs: ParallelText::new(sentences, labels)?,
        })
    }

    /// Sentences as the source, labels as the target.
    pub fn pairs(&self) -> &ParallelText {
        &self.pairs
    }

    /// The sentences.
    pub fn sentences(&self) -> &[String] {
        self.pairs.source()
    }

    /// The different labels, sorted.
    pub fn labels(&self) -> Vec<String> {
        let labels: BTreeSet<&String> = self.pairs.target().iter().collect();
        labels.into_iter().cloned().collect()
    }

    /// The index of every sentence's label in `labels`.
    ///
    /// # Errors
    /// [`CorpusError::UnknownLabel`] for a label that is not among them.
    pub fn classes<S: AsRef<str>>(
        &self,
        labels: impl AsRef<[S]>,
    ) -> Result<Vec<usize>, CorpusError> {
        let labels = labels.as_ref();
        let class = |(index, label): (usize, &String)| {
            labels
                .iter()
                .position(|known| known.as_ref() == label)
                .ok_or_else(|| CorpusError::UnknownLabel {
                    name: self.name.clone(),
                    line: index + 1,
                    label: label.clone(),
                    known: labels
                        .iter()
                        .map(|known| known.as_ref().to_owned())
                        .collect(),
                })
        };
        self.pairs.target().iter().enumerate().map(class).collect()
    }
}
