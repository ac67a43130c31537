//! A model's folder: its configuration, and its weights one by one.

use std::{
    collections::{BTreeMap, HashMap},
    io::{Seek, SeekFrom},
    path::{Path, PathBuf},
};

use pytorch_reader::{DType, PytorchReader, Tensor};
use regard_nn::weights::{self, Difference, Dtype, Entry, Values, WeightsError};
use serde::Deserialize;

use super::{
    config::Config,
    error::PretrainedError,
    json::{LARGEST_LIST, json, open},
};
use crate::guard::guarded;

/// One tensor of a file: its shape, and its values as they are stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// The size of each dimension.
    pub shape: Vec<usize>,
    /// As many values as the product of the shape, in row-major order.
    pub values: Values,
}

/// A tensor of a folder, without its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredTensor<'a> {
    /// Its name in the file.
    pub name: &'a str,
    /// The size of each dimension.
    pub shape: &'a [usize],
    /// The type of its values.
    pub dtype: Dtype,
}

/// A model's folder. Opening it reads the configuration and the headers of the weights; each tensor is read when it is asked for,
/// into the memory where it stays.
///
/// Weights are `model.safetensors`, or `model.safetensors.index.json` with its shards; where there is neither, `pytorch_model.bin` or
/// `pytorch_model.bin.index.json`, a pickle of which nothing is executed; or else a single other `*.safetensors`.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    config: Config,
    tensors: BTreeMap<String, Located>,
}

/// Where a tensor is.
#[derive(Debug)]
struct Located {
    file: PathBuf,
    shape: Vec<usize>,
    dtype: Dtype,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Safetensors(Entry),
    /// With the size of its file.
    Pickle(Tensor, u64),
}

/// How the names of a file may differ from those of a model, whoever saved it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Names<'a> {
    /// Beginnings that a name may have or lack, such as `transformer.`: a model may be saved with or without its head.
    pub prefixes: &'a [&'a str],
    /// Former endings and those of today, such as `("LayerNorm.gamma", "LayerNorm.weight")`.
    pub renamed: &'a [(&'a str, &'a str)],
    /// Names in the file, `*` standing for any text, of tensors that are not needed, such as `*.attn.bias`.
    pub ignored: &'a [&'a str],
}

/// The weights of a folder that are those of a model.
#[derive(Debug)]
pub struct Weights<'a> {
    folder: &'a Folder,
    /// The name in the file for each of the model.
    names: HashMap<String, &'a str>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Folder {
    /// Opens a folder.
    ///
    /// # Errors
    /// [`PretrainedError`] if it has no configuration or no weights, a file is damaged or a shard is missing, or a tensor is in two
    /// shards.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PretrainedError> {
        let path = path.as_ref();
        let file = |name: &str| path.join(name);
        let config = Config::read_file(file("config.json"))?;
        let mut tensors = BTreeMap::new();
        let index = |name: &str| -> Result<_, PretrainedError> { shards(path, &file(name)) };
        if file("model.safetensors").exists() {
            read_safetensors(&file("model.safetensors"), &mut tensors)?;
        } else if file("model.safetensors.index.json").exists() {
            let (shards, listed) = index("model.safetensors.index.json")?;
            for shard in &shards {
                read_safetensors(shard, &mut tensors)?;
            }
            expect_listed(&listed, &tensors)?;
        } else if file("pytorch_model.bin").exists() {
            read_pickle(&file("pytorch_model.bin"), &mut tensors)?;
        } else if file("pytorch_model.bin.index.json").exists() {
            let (shards, listed) = index("pytorch_model.bin.index.json")?;
            for shard in &shards {
                read_pickle(shard, &mut tensors)?;
            }
            expect_listed(&listed, &tensors)?;
        } else if let Some(only) = only_safetensors(path)? {
            read_safetensors(&only, &mut tensors)?;
        } else {
            return Err(without_weights(path));
        }
        Ok(Self {
            path: path.to_owned(),
            config,
            tensors,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its `config.json`.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Its tensors in the order of their names.
    pub fn tensors(&self) -> impl Iterator<Item = StoredTensor<'_>> {
        self.tensors.iter().map(|(name, located)| StoredTensor {
            name,
            shape: &located.shape,
            dtype: located.dtype,
        })
    }

    /// The tensor of this name, with or without one of the `prefixes`; it tells whether a model was saved with its head.
    pub fn find(&self, name: &str, names: &Names<'_>) -> Option<StoredTensor<'_>> {
        let name = names.plain(name);
        self.tensors()
            .find(|tensor| names.plain(tensor.name) == name)
    }

    /// The names of the table of tokens and of the output layer, without `.weight`; none for an output layer that is the table. Of a
    /// `tied` model a file may have both with different numbers, which then are two, or only the second, which then is the table:
    /// so transformers reads them from version 5 on.
    ///
    /// # Errors
    /// As [`read`](Self::read)'s.
    pub(super) fn shared<'n>(
        &self,
        [table, output]: [&'n str; 2],
        tied: bool,
        names: &Names<'_>,
    ) -> Result<(&'n str, Option<&'n str>), PretrainedError> {
        if !tied {
            return Ok((table, Some(output)));
        }
        let find = |name: &str| self.find(&format!("{name}.weight"), names);
        Ok(match (find(table), find(output)) {
            (None, Some(_)) => (output, None),
            (Some(one), Some(other)) => {
                let same =
                    one.shape == other.shape && self.read(one.name)? == self.read(other.name)?;
                (table, (!same).then_some(output))
            }
            _ => (table, None),
        })
    }

    /// Reads a tensor by its name in the file.
    ///
    /// # Errors
    /// [`PretrainedError::Weights`] for a name that the file lacks, or values other than F32, F16 and BF16; an error of the system.
    pub fn read(&self, name: &str) -> Result<Stored, PretrainedError> {
        let Some(located) = self.tensors.get(name) else {
            return Err(PretrainedError::malformed(
                &self.path,
                format!("no tensor is named {name:?}"),
            ));
        };
        let values = match &located.source {
            Source::Safetensors(entry) => {
                let (mut file, _) = open(&located.file)?;
                file.seek(SeekFrom::Start(entry.offset))
                    .map_err(WeightsError::from)
                    .and_then(|_| entry.read(file))
            }
            Source::Pickle(tensor, file_size) => pickled(name, located.dtype, tensor, *file_size),
        };
        Ok(Stored {
            shape: located.shape.clone(),
            values: values.map_err(PretrainedError::weights(&located.file))?,
        })
    }

    /// The weights of a model, checked before any is read: `expected` are its names and shapes. One that is used twice may be named twice.
    ///
    /// # Errors
    /// [`WeightsError::Different`] with every weight that is missing, left over or of another shape.
    pub fn weights(
        &self,
        expected: impl IntoIterator<Item = (String, Vec<usize>)>,
        names: &Names<'_>,
    ) -> Result<Weights<'_>, PretrainedError> {
        let mut differences = vec![];
        let mut found: HashMap<String, &str> = HashMap::new();
        for name in self.tensors.keys() {
            if let Some(other) = found.insert(names.plain(name), name) {
                return Err(PretrainedError::malformed(
                    &self.path,
                    format!("{other:?} and {name:?} are the same weight; expected one of them"),
                ));
            }
        }
        let mut weights: HashMap<String, &str> = HashMap::new();
        for (name, expected) in expected {
            let first = found.remove(&names.plain(&name));
            match first.or_else(|| weights.get(&name).copied()) {
                None => differences.push(Difference::Missing {
                    name: names.missing(&name, &self.tensors),
                    shape: expected,
                }),
                Some(stored) => {
                    if self.tensors[stored].shape != expected {
                        differences.push(Difference::Shape {
                            name: stored.to_owned(),
                            expected,
                            found: self.tensors[stored].shape.clone(),
                        });
                    }
                    weights.insert(name, stored);
                }
            }
        }
        let mut left_over: Vec<&str> = found.into_values().collect();
        left_over.retain(|name| !names.ignored.iter().any(|pattern| matches(pattern, name)));
        left_over.sort_unstable();
        differences.extend(left_over.into_iter().map(|name| Difference::Unexpected {
            name: name.to_owned(),
            shape: self.tensors[name].shape.clone(),
        }));
        if !differences.is_empty() {
            let different = WeightsError::Different(differences);
            return Err(PretrainedError::weights(&self.path)(different));
        }
        Ok(Weights {
            folder: self,
            names: weights,
        })
    }
}

impl Weights<'_> {
    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Reads a weight by its name in the model.
    ///
    /// # Errors
    /// As [`Folder::read`]'s; [`WeightsError::NotFinite`].
    pub fn read(&self, name: &str) -> Result<Stored, PretrainedError> {
        let in_file = self.names.get(name).copied().unwrap_or(name);
        let stored = self.folder.read(in_file)?;
        match stored.values.first_not_finite() {
            None => Ok(stored),
            Some(index) => {
                let name = in_file.to_owned();
                let error = WeightsError::NotFinite { name, index };
                Err(PretrainedError::weights(&self.folder.path)(error))
            }
        }
    }
}

impl Names<'_> {
    /// What a missing weight could be called beside the `tensors` of a file: `[model.]norm.weight`.
    fn missing(&self, name: &str, tensors: &BTreeMap<String, Located>) -> String {
        let used = |prefix: &&&str| tensors.keys().any(|name| name.starts_with(**prefix));
        let prefix = self.prefixes.iter().find(used);
        prefix.map_or_else(|| name.to_owned(), |prefix| format!("[{prefix}]{name}"))
    }

    /// A name without prefix, with the ending of today.
    fn plain(&self, name: &str) -> String {
        let prefixes = self.prefixes.iter();
        let bare = prefixes
            .filter_map(|prefix| name.strip_prefix(prefix))
            .min_by_key(|bare| bare.len())
            .unwrap_or(name);
        let renamed = self.renamed.iter();
        renamed
            .filter_map(|(former, now)| Some(format!("{}{now}", bare.strip_suffix(former)?)))
            .next()
            .unwrap_or_else(|| bare.to_owned())
    }
}

/// Whether `name` is `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut name) = name.strip_prefix(first) else {
        return false;
    };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        match name.find(part) {
            Some(place) => name = &name[place + part.len()..],
            None => return false,
        }
    }
    name.ends_with(last)
}

/// The shards that an index names, each once, and which tensor it expects in which of them.
fn shards(
    folder: &Path,
    index: &Path,
) -> Result<(Vec<PathBuf>, BTreeMap<String, PathBuf>), PretrainedError> {
    let listed: Index = json(index, LARGEST_LIST)?;
    let mut files: Vec<PathBuf> = vec![];
    let mut expected = BTreeMap::new();
    for (name, file) in listed.weight_map {
        // A name with a separator could lead out of the folder.
        if Path::new(&file)
            .file_name()
            .is_none_or(|plain| plain != file.as_str())
        {
            return Err(PretrainedError::malformed(
                index,
                format!("{name} is in {file:?}; expected the name of a file in the same folder"),
            ));
        }
        let file = folder.join(file);
        if !file.exists() {
            return Err(PretrainedError::malformed(
                index,
                format!(
                    "{name} is in {}, which is missing; download it again",
                    file.display()
                ),
            ));
        }
        if files.last() != Some(&file) && !files.contains(&file) {
            files.push(file.clone());
        }
        expected.insert(name, file);
    }
    Ok((files, expected))
}

/// Checks that every shard has the tensors that the index says it has.
fn expect_listed(
    listed: &BTreeMap<String, PathBuf>,
    tensors: &BTreeMap<String, Located>,
) -> Result<(), PretrainedError> {
    let wrong = listed.iter().find(|(name, file)| {
        let found = tensors.get(*name);
        found.is_none_or(|found| found.file != **file)
    });
    match wrong {
        None => Ok(()),
        Some((name, file)) => Err(PretrainedError::malformed(
            file,
            format!(
                "it lacks {name}, which the index says it has; the shards are not of one model"
            ),
        )),
    }
}

/// The only `*.safetensors` of a folder, if there is any.
fn only_safetensors(folder: &Path) -> Result<Option<PathBuf>, PretrainedError> {
    let mut found: Vec<PathBuf> = files(folder)?;
    found.retain(|file| file.extension().is_some_and(|it| it == "safetensors"));
    match &found[..] {
        [] => Ok(None),
        [only] => Ok(Some(only.clone())),
        several => Err(PretrainedError::malformed(
            folder,
            format!(
                "several files of weights ({}); expected model.safetensors, model.safetensors.index.json or a single file",
                names(several)
            ),
        )),
    }
}

/// The files of a folder in the order of their names.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>, PretrainedError> {
    let entries = folder.read_dir().map_err(PretrainedError::read(folder))?;
    let mut files = vec![];
    for entry in entries {
        files.push(entry.map_err(PretrainedError::read(folder))?.path());
    }
    files.retain(|path| path.is_file());
    files.sort_unstable();
    Ok(files)
}

/// The names of the first files.
pub(super) fn names(files: &[PathBuf]) -> String {
    const SHOWN: usize = 20;
    let names = files.iter().take(SHOWN).filter_map(|file| file.file_name());
    let names: Vec<_> = names.map(|name| name.to_string_lossy()).collect();
    match files.len().saturating_sub(SHOWN) {
        0 if names.is_empty() => "none".to_owned(),
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

fn without_weights(folder: &Path) -> PretrainedError {
    let found = files(folder).unwrap_or_default();
    let named = |ending: &str| {
        let mut names = found.iter().filter_map(|file| file.to_str());
        names.any(|name| name.ends_with(ending))
    };
    let other = named(".h5") || named(".msgpack") || named(".bin") || named(".pt");
    let what = if named(".gguf") {
        "gguf files are not read; use the folder of the model that they were made from".to_owned()
    } else if other {
        format!(
            "convert them with python3 -c \"from transformers import AutoModel; \
             AutoModel.from_pretrained('{0}').save_pretrained('{0}')\"",
            folder.display()
        )
    } else {
        "download model.safetensors into it".to_owned()
    };
    PretrainedError::malformed(
        folder,
        format!(
            "no weights that can be read (found: {}); {what}",
            names(&found)
        ),
    )
}

/// Adds the tensors of a file, which must have other names than those before.
fn add(
    tensors: &mut BTreeMap<String, Located>,
    name: String,
    located: Located,
) -> Result<(), PretrainedError> {
    if let Some(other) = tensors.get(&name) {
        return Err(PretrainedError::malformed(
            &located.file,
            format!(
                "{name} is also in {}; expected each tensor once",
                other.file.display()
            ),
        ));
    }
    tensors.insert(name, located);
    Ok(())
}

fn read_safetensors(
    path: &Path,
    tensors: &mut BTreeMap<String, Located>,
) -> Result<(), PretrainedError> {
    let (file, size) = open(path)?;
    for entry in weights::entries(file, size).map_err(PretrainedError::weights(path))? {
        let located = Located {
            file: path.to_owned(),
            shape: entry.shape.clone(),
            dtype: entry.dtype,
            source: Source::Safetensors(entry.clone()),
        };
        add(tensors, entry.name, located)?;
    }
    Ok(())
}

fn read_pickle(
    path: &Path,
    tensors: &mut BTreeMap<String, Located>,
) -> Result<(), PretrainedError> {
    let (_, size) = open(path)?;
    let problem = match guarded(|| PytorchReader::new(path)) {
        Some(Ok(reader)) => {
            for (name, tensor) in reader.into_tensors() {
                let located = Located {
                    file: path.to_owned(),
                    shape: tensor.shape().to_vec(),
                    dtype: dtype(tensor.dtype()),
                    source: Source::Pickle(tensor, size),
                };
                add(tensors, name, located)?;
            }
            return Ok(());
        }
        Some(Err(error)) => error.to_string(),
        None => "its reader panicked".to_owned(),
    };
    Err(PretrainedError::malformed(
        path,
        format!("not a checkpoint of PyTorch that can be read: {problem}"),
    ))
}

/// The values of a tensor in a checkpoint of PyTorch.
fn pickled(
    name: &str,
    dtype: Dtype,
    tensor: &Tensor,
    file_size: u64,
) -> Result<Values, WeightsError> {
    // A view may repeat its values any number of times.
    if tensor.byte_len() as u64 > file_size {
        return Err(WeightsError::Read(std::io::Error::other(format!(
            "tensor `{name}` has {} bytes, more than the file",
            tensor.byte_len()
        ))));
    }
    let bytes = guarded(|| tensor.read()).unwrap_or_else(|| {
        Err(std::io::Error::other(
            "the reader of the checkpoint panicked",
        ))
    })?;
    Entry::alone(name, tensor.shape(), dtype).read(&bytes[..])
}

fn dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F64 => Dtype::F64,
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I64 => Dtype::I64,
        DType::I32 => Dtype::I32,
        DType::I16 => Dtype::I16,
        DType::I8 => Dtype::I8,
        DType::U64 => Dtype::U64,
        DType::U32 => Dtype::U32,
        DType::U16 => Dtype::U16,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}

#[cfg(test)]
mod tests {
    use super::{Names, matches};

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("*.attn.bias", "h.0.attn.bias", true),
            ("*.attn.bias", "h.0.attn.c_attn.bias", false),
            ("*.attn.bias", "attn.bias", false),
            ("h.*.attn.*bias", "h.11.attn.masked_bias", true),
            ("h.*.attn.*bias", "g.11.attn.masked_bias", false),
            ("a*a", "a", false),
            ("*", "", true),
            ("**b*", "abc", true),
            ("position_ids", "position_ids", true),
            ("position_ids", "x.position_ids", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn names_have_prefixes_and_former_endings() {
        let names = Names {
            prefixes: &["bert.", "bert.encoder."],
            renamed: &[("LayerNorm.gamma", "LayerNorm.weight")],
            ..Names::default()
        };
        assert_eq!(names.plain("bert.a.LayerNorm.gamma"), "a.LayerNorm.weight");
        assert_eq!(names.plain("bert.encoder.x"), "x");
        assert_eq!(names.plain("cls.bert.x"), "cls.bert.x");
    }
}
