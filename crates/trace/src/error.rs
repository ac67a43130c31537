//! Everything that can be wrong with a trace or its file.

use std::path::PathBuf;

/// Why a map was refused, or a file could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The number of weights is not `heads · queries · keys`.
    #[error(
        "attention map {map:?}: {found} weights, but {heads} heads x {queries} queries x {keys} keys \
         need {expected}; pass the weights as [heads, queries, keys] with padding cut off",
        expected = .heads.saturating_mul(*.queries).saturating_mul(*.keys)
    )]
    Shape {
        /// Name of the map.
        map: String,
        /// Number of heads asked for.
        heads: usize,
        /// Length of the query axis.
        queries: usize,
        /// Length of the key axis.
        keys: usize,
        /// Number of weights given.
        found: usize,
    },
    /// There are not as many predictions as queries.
    #[error(
        "attention map {map:?}: {found} predictions for {queries} queries; each query has one, what was written after it"
    )]
    Predictions {
        /// Name of the map.
        map: String,
        /// Length of the query axis.
        queries: usize,
        /// Length of the predictions.
        found: usize,
    },
    /// A map has no head at all.
    #[error("attention map {map:?}: 0 heads; a map needs at least one")]
    NoHeads {
        /// Name of the map.
        map: String,
    },
    /// A map without a single weight claims to be vast.
    #[error(
        "attention map {map:?}: no weights at all, but {heads} heads x {queries} queries x {keys} \
         keys; a map with an empty axis may have at most {limit} entries on the others"
    )]
    Empty {
        /// Name of the map.
        map: String,
        /// Number of heads.
        heads: usize,
        /// Length of the query axis.
        queries: usize,
        /// Length of the key axis.
        keys: usize,
        /// The largest product of the lengths that are not 0.
        limit: usize,
    },
    /// A weight is NaN, infinite or negative.
    #[error(
        "attention map {map:?}: the weight of head {head}, query {query}, key {key} is {value}; \
         weights must be finite and not negative (pass weights, not scores)"
    )]
    Weight {
        /// Name of the map.
        map: String,
        /// Head of the weight.
        head: usize,
        /// Query of the weight.
        query: usize,
        /// Key of the weight.
        key: usize,
        /// The weight itself.
        value: f32,
    },
    /// A row of a normalised map does not sum to 1 (or 0, when everything is masked).
    #[error(
        "attention map {map:?}: the weights of head {head}, query {query} sum to {sum:.4}, not to 1 (or \
         to 0 when every key is masked); the map is damaged, or it is one for AttentionMap::unnormalized"
    )]
    RowSum {
        /// Name of the map.
        map: String,
        /// Head of the row.
        head: usize,
        /// Query of the row.
        query: usize,
        /// The sum found.
        sum: f64,
    },
    /// The pixels of an image do not fit its size.
    #[error(
        "image of {height} x {width} pixels, {channels} channels: {found} values; expected height x width x channels of them, \
         1 or 3 channels, and from 1 to {limit} pixels", limit = crate::image::MAX_PIXELS
    )]
    Image {
        /// Rows asked for.
        height: usize,
        /// Columns asked for.
        width: usize,
        /// Channels asked for.
        channels: usize,
        /// Number of values given.
        found: usize,
    },
    /// A number of a region is not possible.
    #[error(
        "region {label:?}: {field} is {value}; expected a finite number, and of width and height one of at least 0"
    )]
    Region {
        /// Label of the region.
        label: String,
        /// The field.
        field: &'static str,
        /// Its value.
        value: f32,
    },
    /// The runs of a mask do not fill its size.
    #[error(
        "mask of {height} x {width} pixels: its runs have {found} pixels; expected as many as the mask, and at most {limit}, \
         also of each side",
        limit = crate::image::MAX_PIXELS
    )]
    Mask {
        /// Rows asked for.
        height: usize,
        /// Columns asked for.
        width: usize,
        /// The sum of the runs.
        found: u64,
    },
    /// A head that the map does not have.
    #[error("attention map {map:?} has no head {head}: its heads are 0 to {last}")]
    Head {
        /// Name of the map.
        map: String,
        /// The head asked for.
        head: usize,
        /// The last head there is.
        last: usize,
    },
    /// The system refused to read or write.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is larger than any trace this library reads.
    #[error(
        "{path}: more than {limit} bytes, too large for a trace file of regard; check the path",
        path = .path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The largest size accepted, in bytes.
        limit: u64,
    },
    /// Traces need more bytes than [`read`](crate::read) takes.
    #[error(
        "the traces need at least {bytes} bytes, and a trace file may have {limit}; write fewer traces, layers or heads to a \
         file, or queries and keys in place of weights (`regard look --long`)"
    )]
    TooMany {
        /// The size of the weights, or of the whole file, in bytes.
        bytes: u64,
        /// The largest size accepted, in bytes.
        limit: u64,
    },
    /// More heads than a reader could show.
    #[error(
        "{found} heads {of}; a trace file may have {limit}: write fewer traces, layers or heads to a file"
    )]
    TooManyHeads {
        /// The number of heads.
        found: u64,
        /// The largest number accepted.
        limit: u64,
        /// Of what they are: of a trace, or of all traces together.
        of: &'static str,
    },
    /// A map of a layer that no model has.
    #[error("attention map {map:?} is of layer {layer}; the last one possible is {last}")]
    Layer {
        /// Name of the map.
        map: String,
        /// The layer, counted from 0.
        layer: usize,
        /// The last layer that a map of a file can be of.
        last: usize,
    },
    /// A long trace is to be written to something else than a file.
    #[error(
        "{path}: a folder, a pipe or a device; a long trace is written part by part in no order, so give the name of a file",
        path = .path.display()
    )]
    NoFile {
        /// What has the name.
        path: PathBuf,
    },
    /// The bytes are not a safetensors file, or are a truncated one.
    #[error("not a complete safetensors file ({reason}); write the trace again")]
    Container {
        /// What the safetensors reader said.
        reason: String,
    },
    /// A tensor of more bits than this machine can count: of half a gigabyte in a browser, of any possible file nowhere else.
    #[error(
        "a map too large for a browser, which counts to 2³²; `regard view FILE` and `regard serve FILE` open it"
    )]
    TooLargeHere,
    /// A safetensors file of another kind, such as a model checkpoint.
    #[error(
        "no {key:?} in the metadata: this safetensors file is not a trace (a model checkpoint?); \
         traces are written by `regard translate --trace FILE`"
    )]
    Foreign {
        /// The metadata key that a trace has.
        key: &'static str,
    },
    /// The file was written by a later version of the format.
    #[error(
        "trace format version {found}, but this regard reads up to version {supported}; \
         update regard"
    )]
    Version {
        /// The version in the file.
        found: u64,
        /// The latest version understood.
        supported: u64,
    },
    /// The description inside the file is malformed.
    #[error("metadata {key:?}: {reason}; the file is damaged or was not written by regard")]
    Description {
        /// The metadata key.
        key: &'static str,
        /// What is wrong and where.
        reason: String,
    },
    /// A tensor is missing or of another type or shape than the description says.
    #[error("tensor {name:?}: expected {expected}, found {found}; the file is damaged")]
    Tensor {
        /// The tensor.
        name: String,
        /// What the description asks for.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// The file is a long trace where weights are expected.
    #[error(
        "a trace of a long text, which holds queries and keys in place of weights: `regard view --png` and `regard serve` \
         show it"
    )]
    Long,
    /// The description of a long trace, with the tokens of its texts, is longer than the room for it.
    #[error(
        "{path}: {bytes} bytes for the tokens of the texts and their maps, more than the {limit} of a long trace; \
         give a shorter text",
        path = .path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The length of the description.
        bytes: u64,
        /// The largest length.
        limit: u64,
    },
    /// A number of a long trace is not possible.
    #[error("long trace, layer {layer}, head {head}: {reason}")]
    LongHead {
        /// The layer, counted from 0.
        layer: usize,
        /// The head, counted from 0.
        head: usize,
        /// What is wrong.
        reason: String,
    },
    /// The log of a training without measures of attention.
    #[error(
        "{path}: no validation with measures of attention; train with `validation.diagnose = 16` in the recipe, and a model with attention",
        path = .path.display()
    )]
    NoMeasures {
        /// The log.
        path: PathBuf,
    },
    /// An error inside a named file.
    #[error("{path}: {source}", path = .path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<TraceError>,
    },
}
