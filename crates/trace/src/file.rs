//! The file format: one safetensors file for one or several traces.
//!
//! Weights are `f32` tensors `map.N.weights` of shape `[heads, queries, keys]`, numbered through
//! the file; images are `u8` tensors `image.N.pixels` of shape `[height, width, channels]`, each stored once, however many traces
//! are about it. Everything else is one JSON object under the metadata key `regard.trace`:
//!
//! ```json
//! { "version": 3,
//!   "axes": [ { "type": "tokens", "tokens": [ { "text": "rid", "word": 0 },
//!                                             { "text": "ing", "word": 0 },
//!                                             { "text": "</s>", "special": true } ] },
//!             { "type": "image", "rows": 14, "columns": 14 },
//!             { "type": "regions", "regions": [ { "label": "square", "score": 0.98,
//!                                                 "box": { "x": 4.5, "y": 8, "width": 12, "height": 12.5 },
//!                                                 "mask": { "height": 64, "width": 64, "runs": [264, 12, 3820] } } ] },
//!             { "type": "positions", "length": 7 } ],
//!   "traces": [ { "model": "rnnsearch", "source": "…", "target": "…", "score": -0.41, "rank": 0,
//!                 "metadata": { "beam": "5" }, "image": "image.0.pixels",
//!                 "maps": [ { "tensor": "map.0.weights", "name": "decoder.cross", "kind": "cross",
//!                             "layer": 0, "heads": 1, "normalized": true,
//!                             "queries": 0, "keys": 0 },
//!                           { "tensor": "map.1.weights", "name": "decoder.self", "kind": "decoder_self",
//!                             "layer": 0, "heads": 1, "normalized": true,
//!                             "queries": 4, "keys": 4, "predictions": 0 } ] } ] }
//! ```
//!
//! `queries`, `keys` and `predictions` are indices into `axes`, so that a deep model names its sequences once. An
//! optional field may be added without a new version; a change that an older reader would misread needs
//! one. The same traces give the same bytes.
//!
//! | version | change |
//! |---|---|
//! | 1 | the first |
//! | 2 | In a decoder's self-attention the queries are the tokens that were read; the tokens written after each are the `predictions`, which may be missing. Version 1 had the predictions in place of the queries, and is converted when it is read. |
//! | 3 | An axis may be made of regions. A file without any is written as version 2, which older readers read. |
//! | 4 | A [long trace](crate::long), which holds queries and keys in place of weights. Other traces are written as before. |
//! | 5 | A long trace that may have biases by distance, global positions and the texts of an encoder-decoder. |
//!
//! Input is hostile until checked: [`from_bytes`] returns an error, and never panics, on any bytes,
//! and the maps it returns have passed the checks of [`AttentionMap::new`].
//!
//! ```
//! use regard_trace::{AttentionMap, Kind, Tokens, Trace, from_bytes, to_bytes};
//!
//! let words = Tokens::from_words("to be or not to be");
//! let weights = vec![1.0 / 6.0; 36];
//! let map = AttentionMap::new(Kind::SelfAttention, words.clone(), words, 1, weights)?;
//! let traces = vec![Trace::new("bert", "to be or not to be", "").with_map(map)];
//! assert_eq!(from_bytes(&to_bytes(&traces)?)?, traces);
//! # Ok::<(), regard_trace::TraceError>(())
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::hash::Hash;
use std::io::{self, Read, Write};
use std::path::Path;

use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::{AttentionMap, Axis, Image, Kind, Trace, TraceError, long};

/// The latest version of the format of traces that hold weights.
pub const VERSION: u64 = 3;

/// The version of a file without regions.
const WITHOUT_REGIONS: u64 = 2;

/// The metadata key under which the description stands.
pub const METADATA_KEY: &str = "regard.trace";

/// The largest file that [`read`] takes into memory, and that is written: 1 GiB.
pub const MAX_BYTES: u64 = 1 << 30;

/// The last layer that a map can be of, and the last head of a long text, counted from 0: pictures count from 1.
pub const MAX_LAYER: usize = u32::MAX as usize - 1;

/// The most heads of a trace.
const MOST_HEADS: u64 = 1 << 16;

/// The most small heads of all traces of a file together. Whoever shows a trace keeps numbers of each head, and a head may have a single
/// weight, or none; how many heads of [`SMALL_HEAD`] weights or more there can be follows from [`MAX_BYTES`].
const MOST_SMALL_HEADS: u64 = 1 << 18;

/// The weights of a head from which on it is not small.
const SMALL_HEAD: u64 = 64;

#[derive(Deserialize)]
pub(crate) struct VersionOnly {
    pub(crate) version: u64,
}

#[derive(Serialize, Deserialize)]
struct Description {
    version: u64,
    axes: Vec<Axis>,
    traces: Vec<TraceEntry>,
}

#[derive(Serialize, Deserialize)]
struct TraceEntry {
    model: String,
    source: String,
    target: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rank: Option<usize>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    metadata: BTreeMap<String, String>,
    /// The tensor of its pixels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    maps: Vec<MapEntry>,
}

#[derive(Serialize, Deserialize)]
struct MapEntry {
    tensor: String,
    name: String,
    kind: Kind,
    layer: usize,
    heads: usize,
    normalized: bool,
    queries: usize,
    keys: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    predictions: Option<usize>,
}

/// The bytes of a trace file.
///
/// # Errors
/// [`TraceError::TooMany`] if they are more than [`MAX_BYTES`]; [`TraceError::Layer`] for a layer above 4,294,967,294;
/// [`TraceError::TooManyHeads`] for more than 65,536 heads of a trace, or more than 262,144 in all that have less than 64 weights each;
/// [`TraceError::Container`] if the description exceeds what a safetensors header holds (100 MB).
pub fn to_bytes(traces: &[Trace]) -> Result<Vec<u8>, TraceError> {
    expect_possible(traces)?;
    // Before they are copied.
    let maps = traces.iter().flat_map(|trace| &trace.maps);
    expect_room(maps.map(|map| 4 * map.weights().len() as u64).sum())?;
    let mut tensors: Vec<(String, [usize; 3], Vec<u8>)> = Vec::new();
    let mut axes = Distinct::<Axis>::default();
    let mut images = Distinct::<Image>::default();
    let mut entries = Vec::with_capacity(traces.len());
    for trace in traces {
        let mut maps = Vec::with_capacity(trace.maps.len());
        for map in &trace.maps {
            let tensor = format!("map.{}.weights", tensors.len());
            let bytes = map.weights().iter().flat_map(|w| w.to_le_bytes()).collect();
            tensors.push((tensor.clone(), map.shape(), bytes));
            maps.push(MapEntry {
                tensor,
                name: map.name().to_owned(),
                kind: map.kind(),
                layer: map.layer(),
                heads: map.heads(),
                normalized: map.is_normalized(),
                queries: axes.index(map.queries()),
                keys: axes.index(map.keys()),
                predictions: map.predictions().map(|axis| axes.index(axis)),
            });
        }
        entries.push(TraceEntry {
            model: trace.model.clone(),
            source: trace.source.clone(),
            target: trace.target.clone(),
            // JSON has no NaN and no infinity.
            score: trace.score.filter(|score| score.is_finite()),
            rank: trace.rank,
            metadata: trace.metadata.clone(),
            image: (trace.image.as_ref()).map(|image| pixels_name(images.index(image))),
            maps,
        });
    }
    let description = Description {
        version: match axes
            .list
            .iter()
            .any(|axis| matches!(axis, Axis::Regions { .. }))
        {
            true => VERSION,
            false => WITHOUT_REGIONS,
        },
        axes: axes.list,
        traces: entries,
    };
    let container = |reason: String| TraceError::Container { reason };
    let json = serde_json::to_string(&description).map_err(|e| container(e.to_string()))?;
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| {
            let view = TensorView::new(Dtype::F32, shape.to_vec(), bytes)?;
            Ok((name.clone(), view))
        })
        .chain(images.list.iter().enumerate().map(|(index, image)| {
            let shape = vec![image.height(), image.width(), image.channels()];
            let view = TensorView::new(Dtype::U8, shape, image.pixels())?;
            Ok((pixels_name(index), view))
        }))
        .collect::<Result<Vec<_>, SafeTensorError>>()
        .map_err(|e| container(e.to_string()))?;
    let metadata = HashMap::from([(METADATA_KEY.to_owned(), json)]);
    let bytes = safetensors::serialize(views, Some(metadata));
    let bytes = bytes.map_err(|e| container(e.to_string()))?;
    expect_room(bytes.len() as u64)?;
    Ok(bytes)
}

/// Refuses what could not be read again.
fn expect_room(bytes: u64) -> Result<(), TraceError> {
    match bytes <= MAX_BYTES {
        true => Ok(()),
        false => Err(TraceError::TooMany {
            bytes,
            limit: MAX_BYTES,
        }),
    }
}

/// Refuses layers that no model has, and more heads than a reader could show.
fn expect_possible(traces: &[Trace]) -> Result<(), TraceError> {
    let maps = || traces.iter().flat_map(|trace| &trace.maps);
    if let Some(map) = maps().find(|map| map.layer > MAX_LAYER) {
        return Err(TraceError::Layer {
            map: map.name.clone(),
            layer: map.layer,
            last: MAX_LAYER,
        });
    }
    let heads = |map: &AttentionMap| map.heads as u64;
    let of_trace = |trace: &Trace| -> u64 { trace.maps.iter().map(heads).sum() };
    let largest = traces.iter().map(of_trace).max().unwrap_or(0);
    let is_small = |map: &&AttentionMap| (map.weights.len() as u64) < SMALL_HEAD * heads(map);
    let small: u64 = maps().filter(is_small).map(heads).sum();
    for (found, limit, of) in [
        (largest, MOST_HEADS, "of a trace"),
        (
            small,
            MOST_SMALL_HEADS,
            "of less than 64 weights each in all traces",
        ),
    ] {
        if found > limit {
            return Err(TraceError::TooManyHeads { found, limit, of });
        }
    }
    Ok(())
}

fn pixels_name(index: usize) -> String {
    format!("image.{index}.pixels")
}

/// Every distinct value once, in the order of first use.
struct Distinct<T> {
    list: Vec<T>,
    index: HashMap<T, usize>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            index: HashMap::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Distinct<T> {
    fn index(&mut self, value: &T) -> usize {
        *self.index.entry(value.clone()).or_insert_with(|| {
            self.list.push(value.clone());
            self.list.len() - 1
        })
    }
}

/// Why bytes are no safetensors file where sizes have so many `bits`.
fn unread(error: SafeTensorError, bits: u32) -> TraceError {
    match error {
        // A tensor's size in bits does not fit, though the file itself did.
        SafeTensorError::ValidationOverflow if bits < 64 => TraceError::TooLargeHere,
        error => TraceError::Container {
            reason: error.to_string(),
        },
    }
}

/// The traces in the bytes of a trace file.
///
/// # Errors
/// [`TraceError::TooLargeHere`], [`TraceError::Container`], [`TraceError::Foreign`], [`TraceError::Version`],
/// [`TraceError::Description`], [`TraceError::Tensor`], [`TraceError::Layer`], [`TraceError::TooManyHeads`], and those of [`AttentionMap::new`] and [`Image::new`].
pub fn from_bytes(bytes: &[u8]) -> Result<Vec<Trace>, TraceError> {
    let unread = |error| unread(error, usize::BITS);
    let tensors = SafeTensors::deserialize(bytes).map_err(unread)?;
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(unread)?;
    let json = metadata
        .metadata()
        .as_ref()
        .and_then(|entries| entries.get(METADATA_KEY))
        .ok_or(TraceError::Foreign { key: METADATA_KEY })?;

    let VersionOnly { version } = parse(json)?;
    if (long::FIRST_VERSION..=long::VERSION).contains(&version) {
        return Err(TraceError::Long);
    }
    if version > VERSION {
        return Err(TraceError::Version {
            found: version,
            supported: long::VERSION,
        });
    }
    let description: Description = parse(json)?;
    let mut read = HashSet::new();
    for map in description.traces.iter().flat_map(|trace| &trace.maps) {
        // A small file that names one tensor many times could fill all memory.
        if !read.insert(map.tensor.as_str()) {
            return Err(TraceError::Description {
                key: METADATA_KEY,
                reason: format!("two maps have the tensor {:?}", map.tensor),
            });
        }
    }
    drop(read);
    let mut images = HashMap::new();
    let traces: Vec<Trace> = description
        .traces
        .into_iter()
        .map(|entry| {
            let maps = entry
                .maps
                .into_iter()
                .map(|map| read_map(map, &description.axes, &tensors))
                .map(|map| match version {
                    1 => map.map(queries_as_read),
                    _ => map,
                })
                .collect::<Result<_, _>>()?;
            let image = entry
                .image
                .map(|name| read_image(name, &mut images, &tensors));
            Ok(Trace {
                model: entry.model,
                source: entry.source,
                target: entry.target,
                score: entry.score,
                rank: entry.rank,
                image: image.transpose()?,
                maps,
                metadata: entry.metadata,
            })
        })
        .collect::<Result<_, TraceError>>()?;
    expect_possible(&traces)?;
    Ok(traces)
}

pub(crate) fn parse<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T, TraceError> {
    serde_json::from_str(json).map_err(|e| TraceError::Description {
        key: METADATA_KEY,
        reason: e.to_string(),
    })
}

fn read_map(
    entry: MapEntry,
    axes: &[Axis],
    tensors: &SafeTensors<'_>,
) -> Result<AttentionMap, TraceError> {
    let axis = |index: usize| {
        axes.get(index).ok_or_else(|| TraceError::Description {
            key: METADATA_KEY,
            reason: format!(
                "map {:?} uses axis {index}, but there are {}",
                entry.name,
                axes.len()
            ),
        })
    };
    let (queries, keys) = (axis(entry.queries)?.clone(), axis(entry.keys)?.clone());
    let predictions = entry.predictions.map(&axis).transpose()?.cloned();
    let shape = [entry.heads, queries.len(), keys.len()];
    let refused = |found: String| TraceError::Tensor {
        name: entry.tensor.clone(),
        expected: format!("F32 {shape:?}"),
        found,
    };
    let tensor = tensors
        .tensor(&entry.tensor)
        .map_err(|_| refused("no such tensor".to_owned()))?;
    if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
        return Err(refused(format!(
            "{:?} {:?}",
            tensor.dtype(),
            tensor.shape()
        )));
    }
    let (chunks, _) = tensor.data().as_chunks::<4>();
    let weights = chunks
        .iter()
        .map(|&bytes| f32::from_le_bytes(bytes))
        .collect();
    let map = AttentionMap {
        name: entry.name,
        kind: entry.kind,
        layer: entry.layer,
        heads: entry.heads,
        normalized: entry.normalized,
        queries,
        keys,
        predictions,
        weights,
    };
    map.check()?;
    Ok(map)
}

/// The image of this tensor. Traces that name the same one share its pixels.
fn read_image(
    name: String,
    images: &mut HashMap<String, Image>,
    tensors: &SafeTensors<'_>,
) -> Result<Image, TraceError> {
    if let Some(image) = images.get(&name) {
        return Ok(image.clone());
    }
    let refused = |name: &str, found: String| TraceError::Tensor {
        name: name.to_owned(),
        expected: "U8 [height, width, channels]".to_owned(),
        found,
    };
    let tensor = tensors
        .tensor(&name)
        .map_err(|_| refused(&name, "no such tensor".to_owned()))?;
    let (Dtype::U8, &[height, width, channels]) = (tensor.dtype(), tensor.shape()) else {
        let found = format!("{:?} {:?}", tensor.dtype(), tensor.shape());
        return Err(refused(&name, found));
    };
    let image = Image::new(height, width, channels, tensor.data())?;
    images.insert(name, image.clone());
    Ok(image)
}

/// Converts a map of version 1 to version 2: where the queries of a decoder's self-attention are its keys one step later, they
/// become the predictions.
fn queries_as_read(map: AttentionMap) -> AttentionMap {
    let shifted = match (map.queries.tokens(), map.keys.tokens()) {
        (Some(queries), Some(keys)) if queries.len() == keys.len() => {
            queries.iter().zip(keys.iter().skip(1)).all(|(a, b)| a == b)
        }
        _ => false,
    };
    match map.kind == Kind::DecoderSelf && shifted && map.queries != map.keys {
        true => AttentionMap {
            predictions: Some(map.queries),
            queries: map.keys.clone(),
            ..map
        },
        false => map,
    }
}

/// Writes traces to a file: first to a temporary file in the same folder, which then takes the
/// name, so that a full disk or a crash leaves the former file as it was.
///
/// # Errors
/// [`TraceError::Io`] with the path, and those of [`to_bytes`].
pub fn write(path: impl AsRef<Path>, traces: &[Trace]) -> Result<(), TraceError> {
    let path = path.as_ref();
    let bytes = to_bytes(traces).map_err(|e| in_file(path, e))?;
    write_atomically(path, &bytes).map_err(|source| TraceError::Io {
        path: path.to_owned(),
        source,
    })
}

fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // The target of a symbolic link is replaced, not the link; a pipe or a device is written to directly.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if fs::metadata(&path).is_ok_and(|existing| !existing.is_file()) {
        return File::options().write(true).open(&path)?.write_all(bytes);
    }
    let mut file = temporary(&path)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(&path)?;
    Ok(())
}

/// A temporary file in the folder of `path`, which may take its name.
pub(crate) fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".regard-trace-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The usual permissions of a new file; the system applies the umask to them.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// Reads the traces of a file.
///
/// # Errors
/// [`TraceError::Io`], [`TraceError::TooLarge`], and [`TraceError::InFile`] around those of
/// [`from_bytes`].
pub fn read(path: impl AsRef<Path>) -> Result<Vec<Trace>, TraceError> {
    let path = path.as_ref();
    let io = |source| TraceError::Io {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        .map_err(io)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(TraceError::TooLarge {
            path: path.to_owned(),
            limit: MAX_BYTES,
        });
    }
    from_bytes(&bytes).map_err(|e| in_file(path, e))
}

pub(crate) fn in_file(path: &Path, source: TraceError) -> TraceError {
    TraceError::InFile {
        path: path.to_owned(),
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_that_a_browser_cannot_count_is_no_damage() {
        let found = |bits| unread(SafeTensorError::ValidationOverflow, bits);
        assert!(found(32).to_string().contains("`regard serve FILE`"));
        assert!(matches!(found(64), TraceError::Container { .. }));
        let truncated = unread(SafeTensorError::MetadataIncompleteBuffer, 32);
        assert!(matches!(truncated, TraceError::Container { .. }));
    }
}
