//! Traces of long texts: queries and keys, from which any part of a map is computed when it is looked at.
//!
//! A head of a text of `L` tokens has `L²` weights, of 100,000 tokens 40 GB. Its queries and keys have `2 L d` numbers, and the
//! logarithms of its softmax `L`:
//! ```text
//! w_ij = e^{s_ij - lse_i}     s_ij = cap(scale · q_iᵀ k_j) + b_(j - i) - m |j - i|, where i may see j
//! ```
//! The file is a safetensors file, as that of a [`Trace`], of version 5:
//!
//! | tensor | shape | |
//! |---|---|---|
//! | `map.N.query` | `[heads, queries, dim]`, f16 | as the product has them: after norms and rotary positions |
//! | `map.N.key` | `[key heads, keys, dim]`, f16 | heads may share keys |
//! | `map.N.lse` | `[heads, queries, 3]`, f32 | of these queries and keys, so that rows sum to 1; three addends ([`regard_kernels::dot::forward`]) |
//! | `map.N.relative` | `[heads, distances]`, f32 | `b`, in the order of `j - i`; distances beyond either end count as the last one there (T5) |
//! | `map.N.alibi` | `[heads]`, f32 | slopes `m` |
//! | `map.N.global` | `[globals]`, u32 | positions that see all and are seen by all, ascending (Longformer) |
//! | `map.N.global_query` | `[heads, globals, dim]`, f16 | their queries |
//! | `map.N.global_key` | `[key heads, keys, dim]`, f16 | the keys that they see; others see them as `map.N.key` has them |
//! | `map.N.global_lse` | `[heads, globals, 3]`, f32 | of their queries |
//!
//! ```json
//! { "version": 5, "model": "t5", "source": "book.txt", "tokens": [ { "text": "Call" }, { "text": " me" } ],
//!   "others": [ [ { "text": "Nenn" }, { "text": "en" } ] ],
//!   "maps": [ { "kind": "cross", "layer": 3, "heads": [7], "keys_of": [0], "queries": 1, "keys": 0, "dim": 64, "scale": 0.125,
//!               "causal": false, "left": null, "right": null, "softcap": null, "alibi": false,
//!               "relative": { "distances": 255, "zero": 127 }, "globals": 0 } ] }
//! ```
//! `heads` are the numbers of the heads that were kept, counted from 0; head `heads[i]` reads the keys `keys_of[i]`. `queries` and `keys`
//! are texts: 0 is `tokens`, 1 the first of the `others`. The tensors of biases, slopes and global positions are there where the map
//! speaks of them. Version 4 had the first three tensors alone, and attention of a text to itself. Opening reads the description; a head's
//! numbers are read when it is looked at, so that the size of a file is bounded by the disk alone.
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

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use half::f16;
use regard_kernels::{Attention, Window};
use safetensors::tensor::{Dtype, Metadata};
use serde::{Deserialize, Serialize};

use crate::file::{MAX_LAYER, METADATA_KEY, VersionOnly, in_file, parse};
use crate::{Kind, Tokens, Trace, TraceError};

use head::Global;
pub use head::{LongHead, LongMeasures};
pub use writer::{LongWriter, Piece, Texts, Watch};

/// The version of a file that holds a long trace.
pub const VERSION: u64 = 5;

/// The first version, without biases, global positions and a second text.
pub const FIRST_VERSION: u64 = 4;

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
    file: Mutex<Box<dyn Source>>,
    /// Where the tensors of each map begin.
    tensors: Vec<Starts>,
}

/// What a long trace is read from.
trait Source: Read + Seek + Send + fmt::Debug {}

impl<T: Read + Seek + Send + fmt::Debug> Source for T {}

/// Where tensors begin, in bytes from the start of the file.
type Starts = HashMap<What, u64>;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Description {
    version: u64,
    model: String,
    source: String,
    tokens: Tokens,
    #[serde(default)]
    others: Vec<Tokens>,
    maps: Vec<LongMap>,
}

impl Description {
    /// The text of this number.
    fn text(&self, number: usize) -> Option<&Tokens> {
        match number.checked_sub(1) {
            None => Some(&self.tokens),
            Some(other) => self.others.get(other),
        }
    }

    /// How many queries and keys a map has, whose texts are there.
    fn shape(&self, map: &LongMap) -> [usize; 2] {
        [map.queries, map.keys].map(|text| self.text(text).map_or(0, |text| text.len()))
    }
}

/// The heads of one layer, and how their scores follow from queries and keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LongMap {
    #[serde(default = "own")]
    kind: Kind,
    layer: usize,
    heads: Vec<usize>,
    keys_of: Vec<usize>,
    /// The numbers of its texts.
    #[serde(default)]
    queries: usize,
    #[serde(default)]
    keys: usize,
    dim: usize,
    scale: f32,
    causal: bool,
    left: Option<usize>,
    right: Option<usize>,
    softcap: Option<f32>,
    #[serde(default)]
    relative: Option<Relative>,
    #[serde(default)]
    alibi: bool,
    /// How many positions are global.
    #[serde(default)]
    globals: usize,
}

/// Biases by distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Relative {
    distances: usize,
    /// The place of distance 0.
    zero: usize,
}

fn own() -> Kind {
    Kind::SelfAttention
}

/// A tensor of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum What {
    Query,
    Key,
    Lse,
    Relative,
    Alibi,
    Global,
    GlobalQuery,
    GlobalKey,
    GlobalLse,
}

impl What {
    /// Those that every map has.
    const ALWAYS: [Self; 3] = [Self::Query, Self::Key, Self::Lse];

    fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Key => "key",
            Self::Lse => "lse",
            Self::Relative => "relative",
            Self::Alibi => "alibi",
            Self::Global => "global",
            Self::GlobalQuery => "global_query",
            Self::GlobalKey => "global_key",
            Self::GlobalLse => "global_lse",
        }
    }
}

impl LongMap {
    /// Heads of `layer`, of which head `heads[i]` reads the keys `keys_of[i]`; queries and keys have `dim` numbers. It is
    /// self-attention of the text, unless [`LongMap::between`] says otherwise.
    pub fn new(layer: usize, heads: Vec<usize>, keys_of: Vec<usize>, dim: usize) -> Self {
        let scale = 1.0 / (dim as f32).sqrt();
        Self {
            kind: Kind::SelfAttention,
            layer,
            heads,
            keys_of,
            queries: 0,
            keys: 0,
            dim,
            scale,
            causal: false,
            left: None,
            right: None,
            softcap: None,
            relative: None,
            alibi: false,
            globals: 0,
        }
    }

    /// The same of another kind, from the text `queries` to the text `keys`: 0 is the text that is read, 1 the first of the others.
    pub fn between(self, kind: Kind, [queries, keys]: [usize; 2]) -> Self {
        Self {
            kind,
            queries,
            keys,
            ..self
        }
    }

    /// Which attention it is.
    pub fn kind(&self) -> Kind {
        self.kind
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

    /// Its tensors.
    fn tensors(&self) -> Vec<What> {
        let mut all = What::ALWAYS.to_vec();
        all.extend(self.relative.map(|_| What::Relative));
        all.extend(self.alibi.then_some(What::Alibi));
        if self.globals > 0 {
            all.extend([
                What::Global,
                What::GlobalQuery,
                What::GlobalKey,
                What::GlobalLse,
            ]);
        }
        all
    }

    /// Type and shape of one of its tensors, with so many queries and keys.
    fn tensor(&self, what: What, [queries, keys]: [usize; 2]) -> (Dtype, Vec<usize>) {
        let (heads, key_heads, globals) = (self.heads.len(), self.key_heads(), self.globals);
        let distances = self.relative.map_or(0, |relative| relative.distances);
        match what {
            What::Query => (Dtype::F16, vec![heads, queries, self.dim]),
            What::Key | What::GlobalKey => (Dtype::F16, vec![key_heads, keys, self.dim]),
            What::Lse => (Dtype::F32, vec![heads, queries, 3]),
            What::Relative => (Dtype::F32, vec![heads, distances]),
            What::Alibi => (Dtype::F32, vec![heads]),
            What::Global => (Dtype::U32, vec![globals]),
            What::GlobalQuery => (Dtype::F16, vec![heads, globals, self.dim]),
            What::GlobalLse => (Dtype::F32, vec![heads, globals, 3]),
        }
    }

    /// The bytes of one head, or of the keys of one, in one of its tensors.
    fn bytes_of_head(&self, what: What, shape: [usize; 2]) -> usize {
        let (dtype, shape) = self.tensor(what, shape);
        let of_head = match what {
            What::Global => &shape[..],
            _ => &shape[1..],
        };
        of_head.iter().product::<usize>() * dtype.bitsize() / 8
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
                self.relative
                    .is_some_and(|relative| relative.zero >= relative.distances),
                "relative has no distance 0",
            ),
            (
                self.globals > 0
                    && (self.causal
                        || self.relative.is_some()
                        || self.alibi
                        || self.queries != self.keys),
                "global positions beside causality, biases or another text",
            ),
            (
                self.layer > MAX_LAYER || self.heads.iter().any(|&head| head > MAX_LAYER),
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
    let io = |source| TraceError::Io {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(io)?;
    let about = file.metadata().map_err(io)?;
    let found = match about.is_file() {
        true => described(path, &mut file, about.len())?,
        false => None,
    };
    Ok(match found {
        Some(found) => Opened::Long(LongTrace::new(found, path, file)),
        None => Opened::Traces(crate::read(path)?),
    })
}

/// Opens the bytes of a trace file of either kind; errors call it `name`.
///
/// # Errors
/// Those of [`open`].
pub fn open_bytes(name: &str, bytes: Vec<u8>) -> Result<Opened, TraceError> {
    let name = Path::new(name);
    Ok(
        match described(name, &mut &bytes[..], bytes.len() as u64)? {
            Some(found) => Opened::Long(LongTrace::new(found, name, Cursor::new(bytes))),
            None => {
                Opened::Traces(crate::from_bytes(&bytes).map_err(|error| in_file(name, error))?)
            }
        },
    )
}

/// The description in a `file` of `size` bytes, and where its tensors begin; `None` if it is no long trace.
fn described(
    path: &Path,
    file: &mut impl Read,
    size: u64,
) -> Result<Option<(Description, Vec<Starts>)>, TraceError> {
    let io = |source| TraceError::Io {
        path: path.to_owned(),
        source,
    };
    let mut length = [0; LENGTH as usize];
    if file.read_exact(&mut length).is_err() {
        return Ok(None);
    }
    let length = u64::from_le_bytes(length);
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
        Ok(VersionOnly {
            version: FIRST_VERSION..=VERSION,
        }) => {}
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
    let maps = description.maps.iter().enumerate();
    let starts = |(index, map): (usize, &LongMap)| -> Starts {
        let at = |what| {
            Some((
                what,
                data + metadata.info(&name(index, what))?.data_offsets.0 as u64,
            ))
        };
        map.tensors().into_iter().filter_map(at).collect()
    };
    let starts = maps.map(starts).collect();
    Ok(Some((description, starts)))
}

impl LongTrace {
    fn new(
        (description, tensors): (Description, Vec<Starts>),
        path: &Path,
        source: impl Source + 'static,
    ) -> Self {
        Self {
            description,
            path: path.to_owned(),
            file: Mutex::new(Box::new(source)),
            tensors,
        }
    }

    /// The name of the model.
    pub fn model(&self) -> &str {
        &self.description.model
    }

    /// What was read, such as the name of a file.
    pub fn source(&self) -> &str {
        &self.description.source
    }

    /// The tokens that were read: queries and keys of every head, but for an encoder-decoder's.
    pub fn tokens(&self) -> &Tokens {
        &self.description.tokens
    }

    /// The queries of map `map`.
    ///
    /// # Panics
    /// If there is no such map, as slice indexing does.
    pub fn queries(&self, map: usize) -> &Tokens {
        let text = self.description.text(self.maps()[map].queries);
        text.unwrap_or(self.tokens())
    }

    /// The keys of map `map`.
    ///
    /// # Panics
    /// If there is no such map, as slice indexing does.
    pub fn keys(&self, map: usize) -> &Tokens {
        let text = self.description.text(self.maps()[map].keys);
        text.unwrap_or(self.tokens())
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
        let (starts, map) = (&self.tensors[map], &self.maps()[map]);
        let shape = self.description.shape(map);
        let read = |what: What| {
            let bytes = map.bytes_of_head(what, shape);
            let before = match what {
                What::Global => 0,
                What::Key | What::GlobalKey => map.keys_of[index],
                _ => index,
            };
            let start = starts.get(&what).copied().unwrap_or(u64::MAX);
            let at = start.saturating_add((before * bytes) as u64);
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
        let damaged = |reason: String| {
            let error = TraceError::LongHead {
                layer: map.layer,
                head: map.heads[index],
                reason: format!("{reason}; the file is damaged"),
            };
            in_file(&self.path, error)
        };
        let (mut key, mut global) = (wide(&read(What::Key)?), None);
        if map.globals > 0 {
            let positions = read(What::Global)?;
            let positions = positions.as_chunks().0.iter();
            let positions: Vec<usize> = positions
                .map(|&bytes| u32::from_le_bytes(bytes) as usize)
                .collect();
            let ascending = positions.is_sorted_by(|a, b| a < b);
            if !ascending || positions.iter().any(|&at| at >= shape[1]) {
                return Err(damaged(
                    "global positions that do not ascend in the text".to_owned(),
                ));
            }
            let front = positions.iter();
            let front = front.flat_map(|at| &key[at * map.dim..][..map.dim]);
            key = front.chain(&key).copied().collect();
            let [query, keys] = [What::GlobalQuery, What::GlobalKey].map(read);
            let lse = single(&read(What::GlobalLse)?);
            global = Some(Global::new(
                positions,
                shape[1],
                [wide(&query?), wide(&keys?), lse],
            ));
        }
        let head = LongHead {
            query: wide(&read(What::Query)?),
            key,
            lse: single(&read(What::Lse)?),
            shape,
            dim: map.dim,
            options: map.attention(),
            relative: match map.relative {
                None => None,
                Some(relative) => Some((single(&read(What::Relative)?), relative.zero)),
            },
            alibi: match map.alibi {
                false => None,
                true => Some(single(&read(What::Alibi)?)),
            },
            global,
        };
        head.check().map_err(damaged)?;
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

fn single(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|&word| f32::from_le_bytes(word)).collect()
}

/// The name of a tensor of map `index`.
fn name(index: usize, what: What) -> String {
    format!("map.{index}.{}", what.name())
}

/// Refuses what no model can have.
fn expect_possible(description: &Description) -> Result<(), TraceError> {
    let wrong = |reason: String| TraceError::Description {
        key: METADATA_KEY,
        reason,
    };
    for text in [&description.tokens].into_iter().chain(&description.others) {
        let length = text.len();
        if length == 0 || length > MAX_TOKENS {
            let expected = format!("{length} tokens; expected 1 to {MAX_TOKENS}");
            return Err(wrong(expected));
        }
    }
    let there = |map: &LongMap| {
        let mut texts = [map.queries, map.keys].into_iter();
        texts.all(|text| description.text(text).is_some())
    };
    let wrong_of = |map: &LongMap| match there(map) {
        true => map.wrong(),
        false => Some("queries or keys are a text that is not there".to_owned()),
    };
    let mut maps = description.maps.iter().enumerate();
    match maps.find_map(|(index, map)| Some((index, wrong_of(map)?))) {
        Some((index, reason)) => Err(wrong(format!("map {index}: {reason}"))),
        None => Ok(()),
    }
}

/// The description, which fits the tensors.
fn describe(json: &str, metadata: &Metadata) -> Result<Description, TraceError> {
    let description: Description = parse(json)?;
    expect_possible(&description)?;
    let mut tensors = 0;
    for (index, map) in description.maps.iter().enumerate() {
        for what in map.tensors() {
            let (name, (dtype, shape)) =
                (name(index, what), map.tensor(what, description.shape(map)));
            let refused = |found: String| TraceError::Tensor {
                name: name.clone(),
                expected: format!("{dtype:?} {shape:?}"),
                found,
            };
            let info = metadata.info(&name);
            let info = info.ok_or_else(|| refused("no such tensor".to_owned()))?;
            if info.dtype != dtype || info.shape != shape {
                return Err(refused(format!("{:?} {:?}", info.dtype, info.shape)));
            }
            tensors += 1;
        }
    }
    let found = metadata.tensors().len();
    if found != tensors {
        let reason = format!("{found} tensors, where the description speaks of {tensors}");
        return Err(TraceError::Container { reason });
    }
    Ok(description)
}
