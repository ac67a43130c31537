//! Traces of long texts: queries and keys, from which any part of a map is computed when it is looked at.
//!
//! A head of a text of `L` tokens has `L²` weights, of 100,000 tokens 40 GB. Its queries and keys have `2 L d` numbers, and the
//! logarithms of its softmax `L`:
//! ```text
//! w_ij = e^{s_ij - lse_i}     s_ij = cap(scale · q_iᵀ k_j), where i may see j
//! ```
//! The file is a safetensors file, as that of a [`Trace`], of version 4:
//!
//! | tensor | shape | |
//! |---|---|---|
//! | `map.N.query` | `[heads, L, dim]`, f16 | as the product has them: after norms and rotary positions |
//! | `map.N.key` | `[key heads, L, dim]`, f16 | heads may share keys |
//! | `map.N.lse` | `[heads, L, 3]`, f32 | of these queries and keys, so that rows sum to 1; three addends ([`regard_kernels::dot::forward`]) |
//!
//! ```json
//! { "version": 4, "model": "gpt2", "source": "book.txt", "tokens": [ { "text": "Call" }, { "text": " me" } ],
//!   "maps": [ { "layer": 3, "heads": [7], "keys_of": [0], "dim": 64, "scale": 0.125, "causal": true,
//!               "left": 4095, "softcap": null } ] }
//! ```
//! `heads` are the numbers of the heads that were kept, counted from 0; head `heads[i]` reads the keys `keys_of[i]`. Opening
//! reads the description; a head's numbers are read when it is looked at, so that the size of a file is bounded by the disk alone.
//!
//! ```
//! use regard_kernels::{Attention, View, ViewMut, dot, pool::Kind};
//! use regard_trace::{LongMap, LongWriter, Opened, Tokens, long::Piece, open};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("long.safetensors");
//! let tokens = Tokens::from_words("to be or not to be");
//! let map = LongMap::new(0, vec![0], vec![0], 2);
//! let numbers: Vec<f32> = (0..12).map(|i| (i % 5) as f32 / 2.0).collect();
//! let mut writer = LongWriter::create(&path, "toy", "a text", tokens, vec![map])?;
//! let attention = Attention { causal: true, ..Attention::default() };
//! let piece = Piece { first: 0, query: &numbers, keys_from: 0, key: &numbers };
//! writer.piece(0, 0, &attention, piece)?;
//! writer.finish()?;
//!
//! let Opened::Long(trace) = open(&path)? else { panic!("not long") };
//! let head = trace.head(0, 0)?;
//! let row = head.rows(&[1])?;
//! assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-5 && row[2..].iter().all(|&w| w == 0.0));
//! assert_eq!(head.pooled(0..6, 0..6, 3, 3, Kind::Max)?.len(), 9);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod head;
mod writer;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use half::f16;
use regard_kernels::{Attention, Window};
use safetensors::tensor::{Dtype, Metadata};
use serde::{Deserialize, Serialize};

use crate::file::{METADATA_KEY, VersionOnly, in_file, parse};
use crate::{Tokens, Trace, TraceError};

pub use head::LongHead;
pub use writer::{LongWriter, Piece};

/// The version of a file that holds a long trace.
pub const VERSION: u64 = 4;

/// The longest text.
pub const MAX_TOKENS: usize = 1 << 24;

/// The most heads of a layer.
const MAX_HEADS: usize = 1 << 16;

/// The longest description that is read, in bytes: the limit of safetensors.
const MAX_HEADER: u64 = 100_000_000;

/// What stands before the header of a safetensors file: its length.
const LENGTH: u64 = 8;

/// Queries and keys of a model that read a long text.
#[derive(Debug)]
pub struct LongTrace {
    description: Description,
    path: PathBuf,
    file: Mutex<File>,
    /// Where the tensors begin.
    data: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Description {
    version: u64,
    model: String,
    source: String,
    tokens: Tokens,
    maps: Vec<LongMap>,
}

/// The heads of one layer, and how their scores follow from queries and keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LongMap {
    layer: usize,
    heads: Vec<usize>,
    keys_of: Vec<usize>,
    dim: usize,
    scale: f32,
    causal: bool,
    left: Option<usize>,
    right: Option<usize>,
    softcap: Option<f32>,
}

impl LongMap {
    /// Heads of `layer`, of which head `heads[i]` reads the keys `keys_of[i]`; queries and keys have `dim` numbers.
    pub fn new(layer: usize, heads: Vec<usize>, keys_of: Vec<usize>, dim: usize) -> Self {
        let scale = 1.0 / (dim as f32).sqrt();
        Self {
            layer,
            heads,
            keys_of,
            dim,
            scale,
            causal: false,
            left: None,
            right: None,
            softcap: None,
        }
    }

    /// The layer, counted from 0.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// The numbers of the heads that were kept, counted from 0.
    pub fn heads(&self) -> &[usize] {
        &self.heads
    }

    /// Whether a query sees no key after itself.
    pub fn is_causal(&self) -> bool {
        self.causal
    }

    fn key_heads(&self) -> usize {
        self.keys_of
            .iter()
            .max()
            .map_or(0, |last| last.saturating_add(1))
    }

    fn attention(&self) -> Attention<'static> {
        let window = Window {
            left: self.left,
            right: self.right,
        };
        Attention {
            scale: Some(self.scale),
            softcap: self.softcap,
            causal: self.causal,
            window: (window.left.is_some() || window.right.is_some()).then_some(window),
            ..Attention::default()
        }
    }

    /// Name, type and shape of its tensors.
    fn tensors(&self, index: usize, length: usize) -> [(String, Dtype, Vec<usize>); 3] {
        let name = |what| format!("map.{index}.{what}");
        let (heads, keys) = (self.heads.len(), self.key_heads());
        [
            (name("query"), Dtype::F16, vec![heads, length, self.dim]),
            (name("key"), Dtype::F16, vec![keys, length, self.dim]),
            (name("lse"), Dtype::F32, vec![heads, length, 3]),
        ]
    }

    /// A sentence, if no model can have such a map.
    fn wrong(&self) -> Option<String> {
        let dim = 1..=regard_kernels::MAX_DIM;
        let cap = |cap: f32| cap.is_finite() && cap > 0.0;
        let wrong = [
            (
                self.heads.is_empty() || self.heads.len() > MAX_HEADS,
                "no heads, or more than 65536",
            ),
            (
                self.heads.len() != self.keys_of.len(),
                "keys_of has another length than heads",
            ),
            (
                self.key_heads() > self.heads.len(),
                "keys_of has more keys than heads",
            ),
            (!dim.contains(&self.dim), "dim is not from 1 to 256"),
            (
                !self.scale.is_finite() || self.scale == 0.0,
                "scale is not a number other than 0",
            ),
            (
                !self.softcap.is_none_or(cap),
                "softcap is not a number above 0",
            ),
            (
                self.layer > u32::MAX as usize
                    || self.heads.iter().any(|&head| head > u32::MAX as usize),
                "layer or head is too large",
            ),
        ];
        let wrong = wrong.into_iter().find(|(wrong, _)| *wrong);
        wrong.map(|(_, what)| what.to_owned())
    }
}

/// A trace file of either kind.
#[derive(Debug)]
pub enum Opened {
    /// With weights.
    Traces(Vec<Trace>),
    /// With queries and keys.
    Long(LongTrace),
}

/// Opens a trace file of either kind.
///
/// # Errors
/// Those of [`read`](crate::read); for a long trace, a description or tensors that do not fit each other.
pub fn open(path: impl AsRef<Path>) -> Result<Opened, TraceError> {
    let path = path.as_ref();
    match LongTrace::open(path)? {
        Some(long) => Ok(Opened::Long(long)),
        None => Ok(Opened::Traces(crate::read(path)?)),
    }
}

impl LongTrace {
    /// `None` if the file is something else, or cannot be read at all.
    fn open(path: &Path) -> Result<Option<Self>, TraceError> {
        let io = |source| TraceError::Io {
            path: path.to_owned(),
            source,
        };
        let mut file = File::open(path).map_err(io)?;
        let size = file.metadata().map_err(io)?;
        let mut length = [0; LENGTH as usize];
        if !size.is_file() || file.read_exact(&mut length).is_err() {
            return Ok(None);
        }
        let (length, size) = (u64::from_le_bytes(length), size.len());
        if length > MAX_HEADER || length > size - LENGTH {
            return Ok(None);
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(io)?;
        let Ok(metadata) = serde_json::from_slice::<Metadata>(&header) else {
            return Ok(None);
        };
        drop(header);
        let of_trace = metadata.metadata().as_ref();
        let Some(json) = of_trace.and_then(|entries| entries.get(METADATA_KEY)) else {
            return Ok(None);
        };
        match parse::<VersionOnly>(json) {
            Ok(VersionOnly { version: VERSION }) => {}
            _ => return Ok(None),
        }
        let description = describe(json, &metadata).map_err(|e| in_file(path, e))?;
        let data = LENGTH + length;
        if data + metadata.data_len() as u64 != size {
            let reason = format!(
                "{size} bytes, where the header speaks of {}",
                data + metadata.data_len() as u64
            );
            return Err(in_file(path, TraceError::Container { reason }));
        }
        Ok(Some(Self {
            description,
            path: path.to_owned(),
            file: Mutex::new(file),
            data,
        }))
    }

    /// The name of the model.
    pub fn model(&self) -> &str {
        &self.description.model
    }

    /// What was read, such as the name of a file.
    pub fn source(&self) -> &str {
        &self.description.source
    }

    /// The tokens that were read: queries and keys of every head.
    pub fn tokens(&self) -> &Tokens {
        &self.description.tokens
    }

    /// The layers of which heads were kept.
    pub fn maps(&self) -> &[LongMap] {
        &self.description.maps
    }

    /// Reads the numbers of head `index` of those that were kept of map `map`.
    ///
    /// # Errors
    /// [`TraceError::Io`]; [`TraceError::LongHead`] for numbers that no head can have.
    ///
    /// # Panics
    /// If there is no such map or head, as slice indexing does.
    pub fn head(&self, map: usize, index: usize) -> Result<LongHead, TraceError> {
        let length = self.tokens().len();
        let before: usize = self.maps()[..map]
            .iter()
            .map(|map| bytes_of(map, length))
            .sum();
        let map = &self.maps()[map];
        let [query, key, lse] = starts(map, length);
        let (rows, key_index) = (2 * length * map.dim, map.keys_of[index]);
        let read = |start: usize, bytes: usize| {
            let at = self.data + (before + start) as u64;
            let mut to = vec![0; bytes];
            let mut file = self
                .file
                .lock()
                .unwrap_or_else(|broken| broken.into_inner());
            file.seek(SeekFrom::Start(at))
                .and_then(|_| file.read_exact(&mut to))
                .map_err(|source| TraceError::Io {
                    path: self.path.clone(),
                    source,
                })?;
            Ok::<_, TraceError>(to)
        };
        let head = LongHead {
            query: wide(&read(query + index * rows, rows)?),
            key: wide(&read(key + key_index * rows, rows)?),
            lse: read(lse + index * 12 * length, 12 * length)?
                .as_chunks()
                .0
                .iter()
                .map(|&bytes| f32::from_le_bytes(bytes))
                .collect(),
            length,
            dim: map.dim,
            attention: map.attention(),
        };
        head.check().map_err(|reason| {
            let error = TraceError::LongHead {
                layer: map.layer,
                head: map.heads[index],
                reason: format!("{reason}; the file is damaged"),
            };
            in_file(&self.path, error)
        })?;
        Ok(head)
    }
}

fn wide(bytes: &[u8]) -> Vec<f32> {
    let (pairs, _) = bytes.as_chunks();
    pairs
        .iter()
        .map(|&pair| f16::from_le_bytes(pair).to_f32())
        .collect()
}

/// Where the tensors of a map begin, behind those of the maps before it.
fn starts(map: &LongMap, length: usize) -> [usize; 3] {
    let rows = 2 * length * map.dim;
    let key = map.heads.len() * rows;
    [0, key, key + map.key_heads() * rows]
}

/// Bytes of all tensors of a map.
fn bytes_of(map: &LongMap, length: usize) -> usize {
    starts(map, length)[2] + map.heads.len() * 12 * length
}

/// Refuses what no model can have.
fn expect_possible(description: &Description) -> Result<(), TraceError> {
    let wrong = |reason: String| TraceError::Description {
        key: METADATA_KEY,
        reason,
    };
    let length = description.tokens.len();
    if length == 0 || length > MAX_TOKENS {
        let expected = format!("{length} tokens; expected 1 to {MAX_TOKENS}");
        return Err(wrong(expected));
    }
    let mut maps = description.maps.iter().enumerate();
    match maps.find_map(|(index, map)| Some((index, map.wrong()?))) {
        Some((index, reason)) => Err(wrong(format!("map {index}: {reason}"))),
        None => Ok(()),
    }
}

/// The description, which fits the tensors.
fn describe(json: &str, metadata: &Metadata) -> Result<Description, TraceError> {
    let description: Description = parse(json)?;
    expect_possible(&description)?;
    let (length, mut end) = (description.tokens.len(), 0);
    for (index, map) in description.maps.iter().enumerate() {
        for (name, dtype, shape) in map.tensors(index, length) {
            let refused = |found: String| TraceError::Tensor {
                name: name.clone(),
                expected: format!("{dtype:?} {shape:?}, in the order of the maps"),
                found,
            };
            let info = metadata.info(&name);
            let info = info.ok_or_else(|| refused("no such tensor".to_owned()))?;
            if info.dtype != dtype || info.shape != shape || info.data_offsets.0 != end {
                let found = format!(
                    "{:?} {:?} at {}",
                    info.dtype, info.shape, info.data_offsets.0
                );
                return Err(refused(found));
            }
            end = info.data_offsets.1;
        }
    }
    Ok(description)
}
