//! Writes a long trace while a model reads.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use half::f16;
use regard_kernels::stack::{Observer, Positions, Seen};
use regard_kernels::{Attention, KernelError, View, ViewMut, dot};
use safetensors::tensor::{Metadata, TensorInfo};
use tempfile::NamedTempFile;

use super::{
    Description, LENGTH, LongMap, MAX_HEADER, Relative, VERSION, What, expect_possible, name,
};
use crate::file::{METADATA_KEY, temporary};
use crate::{Kind, Tokens, TraceError};

/// The longest that the description of a map, and of its tensors that are known later, can become, in bytes.
const ROOM: usize = 1024;

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
    /// The tensors, in the order of the file; those that not every map has are there when they are known.
    tensors: Vec<((usize, What), TensorInfo)>,
    /// The queries of each head that were written.
    done: BTreeMap<(usize, usize), usize>,
    /// The biases of each head that has begun: by distance, and of ALiBi; empty for none.
    biases: HashMap<(usize, usize), [Vec<f32>; 2]>,
    /// What went wrong first.
    failed: Option<TraceError>,
}

impl LongWriter {
    /// Begins the file `path`, which appears when it is [finished](Self::finish). `tokens` are the text that is read; of an
    /// encoder-decoder the `others` are what its decoder reads and writes, see [`LongMap::between`].
    ///
    /// # Errors
    /// [`TraceError::Description`] for maps that no model can have, [`TraceError::TooLong`] for texts whose description no reader
    /// takes, [`TraceError::NoFile`] for a folder, a pipe or a device, and [`TraceError::Io`].
    pub fn create(
        path: impl AsRef<Path>,
        model: impl Into<String>,
        source: impl Into<String>,
        texts: impl Into<Texts>,
        maps: Vec<LongMap>,
    ) -> Result<Self, TraceError> {
        // The target of a symbolic link is replaced, not the link.
        let path = path.as_ref();
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        // The file takes the place of what has its name: of a device too, which would be gone.
        if fs::metadata(&path).is_ok_and(|existing| !existing.is_file()) {
            return Err(TraceError::NoFile { path });
        }
        let Texts { tokens, others } = texts.into();
        let description = Description {
            version: VERSION,
            model: model.into(),
            source: source.into(),
            tokens,
            others,
            maps,
        };
        expect_possible(&description)?;
        let file = temporary(&path).map_err(|source| TraceError::Io {
            path: path.clone(),
            source,
        })?;
        let mut writer = Self {
            header: 0,
            tensors: vec![],
            description,
            path,
            file,
            done: BTreeMap::new(),
            biases: HashMap::new(),
            failed: None,
        };
        for map in 0..writer.description.maps.len() {
            for what in What::ALWAYS {
                writer.start(map, what);
            }
        }
        let room = writer.header()?.len() + ROOM * writer.description.maps.len();
        writer.header = room.next_multiple_of(8);
        writer.expect_room(writer.header, MAX_HEADER)?;
        Ok(writer)
    }

    /// Refuses a header of more bytes than allowed.
    fn expect_room(&self, bytes: usize, limit: u64) -> Result<(), TraceError> {
        let bytes = bytes as u64;
        match bytes <= limit {
            true => Ok(()),
            false => Err(TraceError::TooLong {
                path: self.path.clone(),
                bytes,
                limit,
            }),
        }
    }

    /// Where a tensor begins behind the header; one that is new stands behind the others.
    fn start(&mut self, map: usize, what: What) -> usize {
        let known = self.tensors.iter().find(|(of, _)| *of == (map, what));
        if let Some((_, info)) = known {
            return info.data_offsets.0;
        }
        let of = &self.description.maps[map];
        let (dtype, shape) = of.tensor(what, self.description.shape(of));
        let start = self
            .tensors
            .last()
            .map_or(0, |(_, info)| info.data_offsets.1);
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let data_offsets = (start, start + bytes);
        let info = TensorInfo {
            dtype,
            shape,
            data_offsets,
        };
        self.tensors.push(((map, what), info));
        start
    }

    /// Writes numbers of the head, or of the keys, `index` of a tensor, behind those of `skipped` bytes.
    fn put(
        &mut self,
        (map, what): (usize, What),
        index: usize,
        skipped: usize,
        bytes: &[u8],
    ) -> Result<(), TraceError> {
        let start = self.start(map, what);
        let of = &self.description.maps[map];
        let before = index * of.bytes_of_head(what, self.description.shape(of)) + skipped;
        self.write((self.header + start + before) as u64 + LENGTH, bytes)
    }

    /// A map with how the scores of its head `index` follow from queries and keys, and who sees whom: the options of this head alone. All
    /// but the numbers of biases is common to the map's heads.
    fn described(
        &self,
        map: usize,
        index: usize,
        attention: &Attention,
    ) -> Result<LongMap, TraceError> {
        let to = &self.description.maps[map];
        let others = [
            ("a prefix", attention.prefix.is_some()),
            ("lengths", attention.lengths.is_some()),
            ("a mask of pairs", attention.keep.is_some()),
            ("documents", attention.documents.is_some()),
            ("blocks", attention.blocks.is_some()),
            ("a bias", attention.bias.is_some()),
            ("sinks", attention.sink.is_some()),
            ("dropout", attention.dropout.is_some()),
            ("packed sequences", attention.offsets.is_some()),
        ];
        if let Some((name, _)) = others.iter().find(|(_, there)| *there) {
            let reason = format!("its attention has {name}, which a long trace does not keep");
            return Err(self.wrong(map, index, reason));
        }
        let window = attention.window;
        let described = LongMap {
            scale: attention.scale.unwrap_or(1.0 / (to.dim as f32).sqrt()),
            softcap: attention.softcap,
            causal: attention.causal,
            left: window.and_then(|window| window.left),
            right: window.and_then(|window| window.right),
            relative: attention.relative.map(|relative| Relative {
                distances: relative.values.len(),
                zero: relative.zero,
            }),
            alibi: attention.alibi.is_some(),
            ..to.clone()
        };
        if self.done.keys().any(|(known, _)| *known == map) && *to != described {
            let reason = "its scale, softcap, causality, window or biases are others than those of a former piece of its layer";
            return Err(self.wrong(map, index, reason.to_owned()));
        }
        Ok(described)
    }

    /// Keeps the biases of a head with its first piece; those of the others must be the same.
    fn keep_biases(
        &mut self,
        map: usize,
        index: usize,
        attention: &Attention,
    ) -> Result<(), TraceError> {
        let given = [
            (What::Relative, attention.relative.map(|all| all.values)),
            (What::Alibi, attention.alibi),
        ];
        let numbers = given.map(|(_, numbers)| numbers.unwrap_or_default());
        if let Some(known) = self.biases.get(&(map, index)) {
            return match known.each_ref().map(Vec::as_slice) == numbers {
                true => Ok(()),
                false => {
                    let reason =
                        "the numbers of its biases are others than those of a former piece of it";
                    Err(self.wrong(map, index, reason.to_owned()))
                }
            };
        }
        for (what, numbers) in given {
            if let Some(numbers) = numbers {
                self.put((map, what), index, 0, &bytes(numbers))?;
            }
        }
        self.biases
            .insert((map, index), numbers.map(<[f32]>::to_vec));
        Ok(())
    }

    /// Some queries of head `index` of map `map`, with the keys that they may see; pieces follow each other. The `lse` is computed here,
    /// of the numbers as they are kept. `attention` are the options of this head alone.
    ///
    /// # Errors
    /// [`TraceError::LongHead`] for options that a long trace does not keep (anything but scale, softcap, causal, window, biases by
    /// distance and ALiBi) or that differ from those of its layer's former pieces (biases: of the head's), numbers beyond half precision,
    /// lengths that do not fit, and a piece that does not begin where the head's former one ended; [`TraceError::Io`].
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
        self.piece_after(map, index, attention, piece, 0)
    }

    /// [`LongWriter::piece`], where the keys of `copies` global positions stand in front of those of the piece.
    fn piece_after(
        &mut self,
        map: usize,
        index: usize,
        attention: &Attention,
        piece: Piece,
        copies: usize,
    ) -> Result<(), TraceError> {
        let Piece {
            first,
            query,
            keys_from,
            key,
        } = piece;
        let described = self.described(
            map,
            index,
            &Attention {
                prefix: attention.prefix.filter(|_| copies == 0),
                documents: attention.documents.filter(|_| copies == 0),
                ..*attention
            },
        )?;
        let of = &self.description.maps[map];
        let (dim, of_key) = (of.dim, of.keys_of[index]);
        let [most, most_keys] = self.description.shape(of);
        let (queries, keys) = (query.len() / dim, (key.len() / dim).saturating_sub(copies));
        let fits = |first: usize, count: usize, most: usize| {
            first.checked_add(count).is_some_and(|end| end <= most)
        };
        if query.len() % dim + key.len() % dim != 0
            || !fits(first, queries, most)
            || !fits(keys_from, keys, most_keys)
        {
            let reason = format!(
                "{} numbers of queries from position {first} on and {} of keys, of dim {dim}; the text has {most} tokens",
                query.len(),
                key.len()
            );
            return Err(self.wrong(map, index, reason));
        }
        let done = self.done.get(&(map, index)).copied().unwrap_or(0);
        if first != done {
            let reason = format!(
                "a piece begins with the query of position {first}, expected {done}: pieces follow each other"
            );
            return Err(self.wrong(map, index, reason));
        }
        let Kept { query, key, lse } = self.kept(map, index, attention, query, key)?;
        // A piece that is refused leaves nothing in the file.
        self.description.maps[map] = described;
        self.keep_biases(map, index, attention)?;
        // Keys before the first query were given with the queries there.
        let known = match of_own(&self.description.maps[map]) {
            true => first.saturating_sub(keys_from).min(keys),
            false => 0,
        };
        self.put((map, What::Query), index, 2 * first * dim, &halves(&query))?;
        let at = 2 * (keys_from + known) * dim;
        self.put(
            (map, What::Key),
            of_key,
            at,
            &halves(&key[(copies + known) * dim..]),
        )?;
        self.put((map, What::Lse), index, 12 * first, &bytes(&lse))?;
        *self.done.entry((map, index)).or_default() += queries;
        Ok(())
    }

    /// The queries of the global positions of head `index` of map `map`, and the keys that they see, of all positions.
    fn globals(
        &mut self,
        map: usize,
        index: usize,
        attention: &Attention,
        positions: &[usize],
        [query, key]: [&[f32]; 2],
    ) -> Result<(), TraceError> {
        self.description.maps[map].globals = positions.len();
        let of_key = self.description.maps[map].keys_of[index];
        let positions: Vec<u8> = (positions.iter())
            .flat_map(|&at| (at as u32).to_le_bytes())
            .collect();
        let Kept { query, key, lse } = self.kept(map, index, attention, query, key)?;
        self.put((map, What::Global), 0, 0, &positions)?;
        self.put((map, What::GlobalQuery), index, 0, &halves(&query))?;
        self.put((map, What::GlobalKey), of_key, 0, &halves(&key))?;
        self.put((map, What::GlobalLse), index, 0, &bytes(&lse))
    }

    /// Queries and keys at half precision, and the `lse` of these.
    fn kept(
        &self,
        map: usize,
        index: usize,
        attention: &Attention,
        query: &[f32],
        key: &[f32],
    ) -> Result<Kept, TraceError> {
        let narrow = |numbers: &[f32]| -> Result<Vec<f16>, TraceError> {
            let narrow: Vec<f16> = numbers.iter().map(|&x| f16::from_f32(x)).collect();
            match narrow.iter().position(|x| !x.is_finite()) {
                Some(at) => {
                    let reason = format!(
                        "{} is beyond half precision, in which queries and keys are kept",
                        numbers[at]
                    );
                    Err(self.wrong(map, index, reason))
                }
                None => Ok(narrow),
            }
        };
        let dim = self.description.maps[map].dim;
        let (queries, keys) = (query.len() / dim, key.len() / dim);
        let (query, key) = (narrow(query)?, narrow(key)?);
        let [wide_query, wide_key] =
            [&query, &key].map(|kept| -> Vec<f32> { kept.iter().map(|&x| x.to_f32()).collect() });
        let nothing = vec![0.0; keys];
        let (mut output, mut lse) = (vec![0.0; queries], vec![0.0; 3 * queries]);
        dot::forward(
            attention,
            View::heads_first(&wide_query, [1, 1, queries, dim]),
            View::heads_first(&wide_key, [1, 1, keys, dim]),
            View::heads_first(&nothing, [1, 1, keys, 1]),
            ViewMut::heads_first(&mut output, [1, 1, queries, 1]),
            Some(&mut lse),
        )
        .map_err(|error| self.wrong(map, index, error.to_string()))?;
        Ok(Kept { query, key, lse })
    }

    fn wrong(&self, map: usize, index: usize, reason: String) -> TraceError {
        let of = &self.description.maps[map];
        TraceError::LongHead {
            layer: of.layer,
            head: of.heads[index],
            reason,
        }
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
        for (number, map) in self.description.maps.iter().enumerate() {
            let [queries, _] = self.description.shape(map);
            for (index, &head) in map.heads.iter().enumerate() {
                let done = self.done.get(&(number, index)).copied().unwrap_or(0);
                if done != queries {
                    return Err(TraceError::LongHead {
                        layer: map.layer,
                        head,
                        reason: format!("{done} of {queries} queries were given"),
                    });
                }
            }
        }
        let mut header = self.header()?;
        self.expect_room(header.len(), self.header as u64)?;
        header.resize(self.header, b' ');
        let end = self
            .tensors
            .last()
            .map_or(0, |(_, info)| info.data_offsets.1);
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

    /// The header of a safetensors file with what is known.
    fn header(&self) -> Result<Vec<u8>, TraceError> {
        let container = |reason: String| TraceError::Container { reason };
        let json =
            serde_json::to_string(&self.description).map_err(|e| container(e.to_string()))?;
        let tensors = self.tensors.iter();
        let tensors = tensors.map(|((map, what), info)| (name(*map, *what), info.clone()));
        let metadata = HashMap::from([(METADATA_KEY.to_owned(), json)]);
        let metadata = Metadata::new(Some(metadata), tensors.collect())
            .map_err(|e| container(e.to_string()))?;
        serde_json::to_vec(&metadata).map_err(|e| container(e.to_string()))
    }

    fn keep(&mut self, seen: &Seen<'_>, own: Kind) -> Result<(), TraceError> {
        let kind = if seen.cross { Kind::Cross } else { own };
        let maps = self.description.maps.iter();
        let Some(map) = maps
            .clone()
            .position(|map| (map.layer, map.kind) == (seen.layer, kind))
        else {
            return Ok(());
        };
        let of = self.description.maps[map].clone();
        let [_, heads, queries, _] = seen.query.shape;
        let [_, groups, keys, _] = seen.key.shape;
        if seen.row != 0 || of.heads.iter().any(|&head| head >= heads) {
            let reason = "the model has no such head, or reads several texts";
            return Err(self.wrong(map, 0, reason.to_owned()));
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
            let attention = seen.attention.of_head(heads, head);
            let piece = |first, keys_from| Piece {
                first,
                query: &query,
                keys_from,
                key: &key,
            };
            match (seen.queries, seen.keys) {
                (Positions::From(first), Positions::From(from)) => {
                    self.piece(map, index, &attention, piece(first, from))?;
                }
                // All queries, of which those of global positions see nothing here, to the keys of these and then all keys.
                (Positions::From(0), Positions::At(_)) => {
                    let copies = keys.saturating_sub(queries);
                    self.piece_after(map, index, &attention, piece(0, 0), copies)?;
                }
                (Positions::At(globals), Positions::From(0)) => {
                    self.globals(map, index, &attention, globals, [&query, &key])?;
                }
                _ => {
                    let reason =
                        "its positions are not in order; a long trace cannot keep this model";
                    return Err(self.wrong(map, index, reason.to_owned()));
                }
            }
        }
        Ok(())
    }
}

/// Queries and keys as they are kept, and the `lse` of these.
struct Kept {
    query: Vec<f16>,
    key: Vec<f16>,
    lse: Vec<f32>,
}

/// Whether a map is of a text to itself.
fn of_own(map: &LongMap) -> bool {
    map.queries == map.keys
}

fn halves(numbers: &[f16]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The text that is read, and others.
#[derive(Debug, Clone, PartialEq)]
pub struct Texts {
    /// The text that is read.
    pub tokens: Tokens,
    /// Of an encoder-decoder, what the decoder reads and what it writes.
    pub others: Vec<Tokens>,
}

impl From<Tokens> for Texts {
    fn from(tokens: Tokens) -> Self {
        Self {
            tokens,
            others: vec![],
        }
    }
}

/// Keeps what it is told of: all queries and keys of the heads of a [`LongWriter`]. What goes wrong is told by [`LongWriter::finish`].
#[derive(Debug)]
pub struct Watch<'w> {
    writer: &'w Mutex<LongWriter>,
    own: Kind,
}

impl<'w> Watch<'w> {
    /// Watches a stack whose attention to its own text is of the kind `own`; its attention to a source is [`Kind::Cross`].
    pub fn new(writer: &'w Mutex<LongWriter>, own: Kind) -> Self {
        Self { writer, own }
    }
}

impl Observer for Watch<'_> {
    fn wants(&self, layer: usize, cross: bool) -> bool {
        let kind = if cross { Kind::Cross } else { self.own };
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut maps = writer.description.maps.iter();
        writer.failed.is_none() && maps.any(|map| (map.layer, map.kind) == (layer, kind))
    }

    fn see(&mut self, seen: Seen<'_>) -> Result<(), KernelError> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = writer.keep(&seen, self.own) {
            writer.failed.get_or_insert(error);
        }
        Ok(())
    }
}
