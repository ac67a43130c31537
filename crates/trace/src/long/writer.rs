//! Writes a long trace while a model reads.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use half::f16;
use regard_kernels::stack::{Observer, Positions, Seen};
use regard_kernels::{Attention, KernelError, View, ViewMut, dot};
use safetensors::tensor::{Metadata, TensorInfo};
use tempfile::NamedTempFile;

use super::{Description, LENGTH, LongMap, VERSION, bytes_of, expect_possible, starts};
use crate::file::{METADATA_KEY, temporary};
use crate::{Tokens, TraceError};

/// Queries of one head that follow each other, and the keys that they may see.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Piece<'a> {
    /// The position of the first query.
    pub first: usize,
    /// `[queries, dim]`
    pub query: &'a [f32],
    /// The position of the first key.
    pub keys_from: usize,
    /// `[keys, dim]`
    pub key: &'a [f32],
}

/// Writes a long trace, piece by piece: a head's numbers need not be in memory together.
#[derive(Debug)]
pub struct LongWriter {
    description: Description,
    path: PathBuf,
    file: NamedTempFile,
    /// The length of the header, with room for descriptions.
    header: usize,
    /// The queries of each head that were written, and what went wrong first.
    done: BTreeMap<(usize, usize), usize>,
    failed: Option<TraceError>,
}

impl LongWriter {
    /// Begins the file `path`, which appears when it is [finished](Self::finish).
    ///
    /// # Errors
    /// [`TraceError::Description`] for maps that no model can have, and [`TraceError::Io`].
    pub fn create(
        path: impl AsRef<Path>,
        model: impl Into<String>,
        source: impl Into<String>,
        tokens: Tokens,
        maps: Vec<LongMap>,
    ) -> Result<Self, TraceError> {
        // The target of a symbolic link is replaced, not the link.
        let path = path.as_ref();
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let description = Description {
            version: VERSION,
            model: model.into(),
            source: source.into(),
            tokens,
            maps,
        };
        expect_possible(&description)?;
        let header = header(&description)?;
        // The longest that numbers can become which are described later.
        let room = header.len() + 256 * description.maps.len();
        let file = temporary(&path).map_err(|source| TraceError::Io {
            path: path.clone(),
            source,
        })?;
        Ok(Self {
            header: room.next_multiple_of(8),
            description,
            path,
            file,
            done: BTreeMap::new(),
            failed: None,
        })
    }

    /// How the scores of a map follow from queries and keys, and who sees whom.
    fn describe(&mut self, map: usize, attention: &Attention) -> Result<(), TraceError> {
        let to = &mut self.description.maps[map];
        let others = [
            ("a prefix", attention.prefix.is_some()),
            ("lengths", attention.lengths.is_some()),
            ("a mask of pairs", attention.keep.is_some()),
            ("documents", attention.documents.is_some()),
            ("blocks", attention.blocks.is_some()),
            ("a bias", attention.bias.is_some()),
            ("biases of relative positions", attention.relative.is_some()),
            ("ALiBi", attention.alibi.is_some()),
            ("sinks", attention.sink.is_some()),
            ("dropout", attention.dropout.is_some()),
            ("packed sequences", attention.offsets.is_some()),
        ];
        if let Some((name, _)) = others.iter().find(|(_, there)| *there) {
            return Err(TraceError::LongHead {
                layer: to.layer,
                head: 0,
                reason: format!("its attention has {name}, which a long trace does not keep"),
            });
        }
        let window = attention.window;
        to.scale = attention.scale.unwrap_or(1.0 / (to.dim as f32).sqrt());
        to.softcap = attention.softcap;
        to.causal = attention.causal;
        to.left = window.and_then(|window| window.left);
        to.right = window.and_then(|window| window.right);
        Ok(())
    }

    /// Some queries of head `index` of map `map`, with the keys that they may see; pieces follow each other. The `lse` is computed here,
    /// of the numbers as they are kept.
    ///
    /// # Errors
    /// [`TraceError::LongHead`] for options that a long trace does not keep (anything but scale, softcap, causal and window), numbers
    /// beyond half precision and lengths that do not fit; [`TraceError::Io`].
    ///
    /// # Panics
    /// If there is no such map or head.
    pub fn piece(
        &mut self,
        map: usize,
        index: usize,
        attention: &Attention,
        piece: Piece,
    ) -> Result<(), TraceError> {
        let Piece {
            first,
            query,
            keys_from,
            key,
        } = piece;
        self.describe(map, attention)?;
        let length = self.description.tokens.len();
        let before: usize = self.description.maps[..map]
            .iter()
            .map(|map| bytes_of(map, length))
            .sum();
        let of = &self.description.maps[map];
        let (dim, layer, head) = (of.dim, of.layer, of.heads[index]);
        let wrong = |reason: String| TraceError::LongHead {
            layer,
            head,
            reason,
        };
        let narrow = |numbers: &[f32]| -> Result<Vec<f16>, TraceError> {
            let narrow: Vec<f16> = numbers.iter().map(|&x| f16::from_f32(x)).collect();
            match narrow.iter().position(|x| !x.is_finite()) {
                Some(at) => Err(wrong(format!(
                    "{} is beyond half precision, in which queries and keys are kept",
                    numbers[at]
                ))),
                None => Ok(narrow),
            }
        };
        let (queries, keys) = (query.len() / dim, key.len() / dim);
        if query.len() % dim + key.len() % dim != 0
            || first + queries > length
            || keys_from + keys > length
        {
            return Err(wrong(format!(
                "{} numbers of queries from position {first} on and {} of keys, of dim {dim}; the text has {length} tokens",
                query.len(),
                key.len()
            )));
        }
        let (query, key) = (narrow(query)?, narrow(key)?);
        // The numbers as they are kept.
        let [kept_query, kept_key] =
            [&query, &key].map(|kept| -> Vec<f32> { kept.iter().map(|&x| x.to_f32()).collect() });
        let nothing = vec![0.0; keys];
        let (mut output, mut lse) = (vec![0.0; queries], vec![0.0; 3 * queries]);
        let refused = |error: KernelError| wrong(error.to_string());
        dot::forward(
            attention,
            View::heads_first(&kept_query, [1, 1, queries, dim]),
            View::heads_first(&kept_key, [1, 1, keys, dim]),
            View::heads_first(&nothing, [1, 1, keys, 1]),
            ViewMut::heads_first(&mut output, [1, 1, queries, 1]),
            Some(&mut lse),
        )
        .map_err(refused)?;
        let [query_at, key_at, lse_at] = starts(of, length);
        let (rows, of_key) = (2 * length * dim, of.keys_of[index]);
        let halves = |numbers: &[f16]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let lse: Vec<u8> = lse.iter().flat_map(|x| x.to_le_bytes()).collect();
        // Keys before the first query were given with the queries there.
        let known = first.saturating_sub(keys_from).min(keys);
        let new_keys = key_at + of_key * rows + 2 * (keys_from + known) * dim;
        let parts: [(usize, Vec<u8>); 3] = [
            (query_at + index * rows + 2 * first * dim, halves(&query)),
            (new_keys, halves(&key[known * dim..])),
            (lse_at + 12 * (index * length + first), lse),
        ];
        for (at, bytes) in parts {
            self.write((self.header + before + at) as u64 + LENGTH, &bytes)?;
        }
        *self.done.entry((map, index)).or_default() += queries;
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), TraceError> {
        let file = self.file.as_file_mut();
        file.seek(SeekFrom::Start(at))
            .and_then(|_| file.write_all(bytes))
            .map_err(|source| TraceError::Io {
                path: self.path.clone(),
                source,
            })
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// What went wrong while it observed; [`TraceError::LongHead`] for a head that was not written whole; [`TraceError::Io`].
    pub fn finish(mut self) -> Result<(), TraceError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let length = self.description.tokens.len();
        for (number, map) in self.description.maps.iter().enumerate() {
            for (index, &head) in map.heads.iter().enumerate() {
                let done = self.done.get(&(number, index)).copied().unwrap_or(0);
                if done != length {
                    return Err(TraceError::LongHead {
                        layer: map.layer,
                        head,
                        reason: format!("{done} of {length} queries were given"),
                    });
                }
            }
        }
        let mut header = header(&self.description)?;
        debug_assert!(header.len() <= self.header);
        header.resize(self.header, b' ');
        let maps = self.description.maps.iter();
        let end: usize = maps.map(|map| bytes_of(map, length)).sum();
        let size = LENGTH + (self.header + end) as u64;
        let mut start = (self.header as u64).to_le_bytes().to_vec();
        start.append(&mut header);
        self.write(0, &start)?;
        let io = |source| TraceError::Io {
            path: self.path.clone(),
            source,
        };
        self.file.as_file().set_len(size).map_err(io)?;
        self.file.as_file().sync_all().map_err(io)?;
        self.file.persist(&self.path).map_err(|e| io(e.error))?;
        Ok(())
    }
}

/// Keeps what it is told of: all queries and keys of its heads. What goes wrong is told by [`LongWriter::finish`].
impl Observer for LongWriter {
    fn wants(&self, layer: usize, cross: bool) -> bool {
        let maps = &self.description.maps;
        !cross && self.failed.is_none() && maps.iter().any(|map| map.layer == layer)
    }

    fn see(&mut self, seen: Seen<'_>) -> Result<(), KernelError> {
        if let Err(error) = self.keep(&seen) {
            self.failed.get_or_insert(error);
        }
        Ok(())
    }
}

impl LongWriter {
    fn keep(&mut self, seen: &Seen<'_>) -> Result<(), TraceError> {
        let maps = self.description.maps.iter();
        let Some(map) = maps.clone().position(|map| map.layer == seen.layer) else {
            return Ok(());
        };
        let of = self.description.maps[map].clone();
        let wrong = |reason: &str| TraceError::LongHead {
            layer: of.layer,
            head: of.heads[0],
            reason: reason.to_owned(),
        };
        let (Positions::From(first), Positions::From(keys_from)) = (seen.queries, seen.keys) else {
            return Err(wrong(
                "its positions are not in order; a long trace cannot keep this model",
            ));
        };
        let [_, heads, queries, _] = seen.query.shape;
        let [_, groups, keys, _] = seen.key.shape;
        if seen.row != 0 || of.heads.iter().any(|&head| head >= heads) {
            return Err(wrong("the model has no such head, or reads several texts"));
        }
        let gathered = |view: &View, head: usize, count: usize| -> Vec<f32> {
            let [_, by_head, by_row] = view.strides;
            let rows =
                (0..count).flat_map(|row| &view.data[head * by_head + row * by_row..][..of.dim]);
            rows.copied().collect()
        };
        for (index, &head) in of.heads.iter().enumerate() {
            let group = head / (heads / groups);
            let query = gathered(&seen.query, head, queries);
            let key = gathered(&seen.key, group, keys);
            let piece = Piece {
                first,
                query: &query,
                keys_from,
                key: &key,
            };
            self.piece(map, index, &seen.attention, piece)?;
        }
        Ok(())
    }
}

/// The header of a safetensors file with this description.
fn header(description: &Description) -> Result<Vec<u8>, TraceError> {
    let container = |reason: String| TraceError::Container { reason };
    let json = serde_json::to_string(description).map_err(|e| container(e.to_string()))?;
    let (mut tensors, mut end) = (vec![], 0);
    for (index, map) in description.maps.iter().enumerate() {
        for (name, dtype, shape) in map.tensors(index, description.tokens.len()) {
            let size = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            let data_offsets = (end, end + size);
            end += size;
            let info = TensorInfo {
                dtype,
                shape,
                data_offsets,
            };
            tensors.push((name, info));
        }
    }
    let metadata = HashMap::from([(METADATA_KEY.to_owned(), json)]);
    let metadata = Metadata::new(Some(metadata), tensors).map_err(|e| container(e.to_string()))?;
    serde_json::to_vec(&metadata).map_err(|e| container(e.to_string()))
}
