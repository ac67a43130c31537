//! The weights of any module as named arrays, to and from safetensors.
//!
//! Names are the module's field path (`encoder.forward.recurrent`), layouts are Burn's (`Linear` is
//! `[inputs, outputs]`). Storage is f32, or f16 at half the size. [`read`] checks the file while it reads it, array by array,
//! so that the arrays are in memory only once; [`apply`] checks that every weight is there with the right shape, that none is
//! left over and that all values are finite.
//!
//! ```
//! use burn::tensor::Device;
//! use regard_nn::{initialize::Initializer, weights};
//!
//! let device = Device::flex();
//! let layer = Initializer::new(1, &device).linear(3, 2, true);
//! let bytes = weights::to_bytes(&weights::collect(&layer), Default::default(), weights::Storage::F32).unwrap();
//! let (arrays, _) = weights::from_bytes(&bytes).unwrap();
//! let other = weights::apply(Initializer::new(2, &device).linear(3, 2, true), arrays).unwrap();
//! assert_eq!(weights::collect(&layer), weights::collect(&other));
//! ```

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::{self, Display},
    io::{self, Read},
};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Tensor, TensorData},
};
use half::{bf16, f16};
pub use safetensors::Dtype;
use safetensors::{
    SafeTensorError,
    tensor::{Metadata, TensorInfo},
};
use serde::{
    Serialize,
    de::{Deserializer, IgnoredAny, MapAccess, Visitor},
};

/// The most bytes of a file's header: the limit of the library `safetensors`.
const LARGEST_HEADER: u64 = 100_000_000;

/// One weight: its shape and its values in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// The size of each dimension.
    pub shape: Vec<usize>,
    /// As many values as the product of the shape.
    pub values: Vec<f32>,
}

/// The values of a tensor, as wide as a file stores them.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// 32 bits.
    F32(Vec<f32>),
    /// IEEE 754's 16 bits.
    F16(Vec<f16>),
    /// The first 16 bits of an `f32`.
    Bf16(Vec<bf16>),
}

impl Values {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values in 32 bits, exactly. Those that are stored so are not copied.
    pub fn into_f32(self) -> Vec<f32> {
        match self {
            Self::F32(values) => values,
            Self::F16(values) => values.into_iter().map(f16::to_f32).collect(),
            Self::Bf16(values) => values.into_iter().map(bf16::to_f32).collect(),
        }
    }

    /// The place of the first value that is NaN or infinite.
    pub fn first_not_finite(&self) -> Option<usize> {
        match self {
            Self::F32(values) => values.iter().position(|value| !value.is_finite()),
            Self::F16(values) => values.iter().position(|value| !value.is_finite()),
            Self::Bf16(values) => values.iter().position(|value| !value.is_finite()),
        }
    }
}

/// A tensor as the header of a safetensors file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The size of each dimension.
    pub shape: Vec<usize>,
    /// The type of its values.
    pub dtype: Dtype,
    /// Where its values begin, in bytes from the beginning of the file.
    pub offset: u64,
}

impl Entry {
    /// A tensor whose values stand alone, without a file around them.
    pub fn alone(name: &str, shape: &[usize], dtype: Dtype) -> Self {
        Self {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype,
            offset: 0,
        }
    }

    /// Reads the values from `file`, which stands at [`Entry::offset`].
    ///
    /// # Errors
    /// A type other than F32, F16 and BF16, or an error of the system.
    pub fn read(&self, mut file: impl Read) -> Result<Values, WeightsError> {
        let (file, count) = (&mut file, self.shape.iter().product());
        Ok(match self.dtype {
            Dtype::F32 => Values::F32(numbers(file, count, |bits| {
                f32::from_bits(u32::from_le(bits))
            })?),
            Dtype::F16 => Values::F16(numbers(file, count, |bits| {
                f16::from_bits(u16::from_le(bits))
            })?),
            Dtype::BF16 => Values::Bf16(numbers(file, count, |bits| {
                bf16::from_bits(u16::from_le(bits))
            })?),
            other => {
                return Err(WeightsError::Dtype {
                    name: self.name.clone(),
                    dtype: other.to_string(),
                });
            }
        })
    }
}

/// Weights by name.
pub type Arrays = BTreeMap<String, Array>;

/// How values are stored in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Storage {
    /// 32 bits: exact.
    #[default]
    F32,
    /// 16 bits: half the size, 11 bits of mantissa.
    F16,
}

/// Why weights could not be written, read or given to a module.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The bytes are not a safetensors file, or are cut short.
    #[error("not a complete safetensors file: {0}")]
    Format(#[from] SafeTensorError),
    /// The file could not be read.
    #[error("cannot read: {0}")]
    Read(#[from] io::Error),
    /// A name occurs in the header more than once.
    #[error("not a safetensors file: its header names {0:?} twice")]
    Twice(String),
    /// A tensor is stored in a type that is not read here.
    #[error("tensor `{name}` is stored as {dtype}; expected F32, F16 or BF16")]
    Dtype {
        /// The tensor.
        name: String,
        /// What was found.
        dtype: String,
    },
    /// The weights of the file do not match those of the model.
    #[error("the file is of another model or another recipe: {}", Listed(.0))]
    Different(Vec<Difference>),
    /// A value is NaN or infinite.
    #[error("weight `{name}` holds a value that is not finite, at index {index}")]
    NotFinite {
        /// The weight.
        name: String,
        /// The index in row-major order.
        index: usize,
    },
}

/// Where the weights of a file and those of a model differ.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// The file lacks a weight of the model.
    #[error("weight `{name}` {shape:?} is missing")]
    Missing {
        /// The weight.
        name: String,
        /// Its shape in the model.
        shape: Vec<usize>,
    },
    /// The model lacks a weight of the file.
    #[error("weight `{name}` {shape:?} of the file is not in the model")]
    Unexpected {
        /// The weight.
        name: String,
        /// Its shape in the file.
        shape: Vec<usize>,
    },
    /// A weight has another shape in the file.
    #[error("weight `{name}` has shape {found:?} in the file, {expected:?} in the model")]
    Shape {
        /// The weight.
        name: String,
        /// The model's shape.
        expected: Vec<usize>,
        /// The file's shape.
        found: Vec<usize>,
    },
}

/// The first differences, and how many more there are.
struct Listed<'a>(&'a [Difference]);

impl Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 10;
        for (i, difference) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{difference}", if i == 0 { "" } else { "; " })?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

#[derive(Default)]
struct Path(Vec<String>);

impl Path {
    fn enter(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    fn exit(&mut self) {
        self.0.pop();
    }

    fn name(&self) -> String {
        self.0.join(".")
    }
}

/// All weights of `module`, by name.
pub fn collect<M: Module>(module: &M) -> Arrays {
    struct Collector {
        path: Path,
        arrays: Arrays,
    }
    impl ModuleVisitor for Collector {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.exit();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            let array = Array {
                shape: tensor.dims().to_vec(),
                values: tensor.into_data().iter::<f32>().collect(),
            };
            self.arrays.insert(self.path.name(), array);
        }
    }
    let mut collector = Collector {
        path: Path::default(),
        arrays: Arrays::new(),
    };
    module.visit(&mut collector);
    collector.arrays
}

/// `module` with its weights replaced by `arrays`, which must hold exactly the module's weights.
///
/// # Errors
/// [`WeightsError::Different`] with every weight that is missing, left over or of another shape; then
/// [`WeightsError::NotFinite`].
pub fn apply<M: Module>(module: M, arrays: Arrays) -> Result<M, WeightsError> {
    struct Applier {
        path: Path,
        arrays: Arrays,
        differences: Vec<Difference>,
        not_finite: Option<WeightsError>,
    }
    impl Applier {
        /// The values of the weight at this path, if the file has them.
        fn take(&mut self, expected: &[usize]) -> Option<Vec<f32>> {
            let name = self.path.name();
            let expected = expected.to_vec();
            let Some(Array { shape, values }) = self.arrays.remove(&name) else {
                let shape = expected;
                self.differences.push(Difference::Missing { name, shape });
                return None;
            };
            if shape != expected {
                let found = shape;
                self.differences.push(Difference::Shape {
                    name,
                    expected,
                    found,
                });
                return None;
            }
            if let Some(index) = values.iter().position(|value| !value.is_finite()) {
                let error = WeightsError::NotFinite { name, index };
                self.not_finite.get_or_insert(error);
                return None;
            }
            Some(values)
        }
    }
    impl ModuleMapper for Applier {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.enter(name);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.exit();
        }
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            // Shape and device are read from the parameter, so that one without values yet is not initialised by this.
            let shape: [usize; D] = param.lazy_shape().dims();
            let Some(values) = self.take(&shape) else {
                return param;
            };
            let data = TensorData::new(values, shape);
            let (id, device) = (param.id, param.lazy_device());
            param.transform_for_load(Tensor::from_data(data, &device), id)
        }
    }
    let mut applier = Applier {
        path: Path::default(),
        arrays,
        differences: vec![],
        not_finite: None,
    };
    let module = module.map(&mut applier);
    let mut differences = applier.differences;
    let left_over = applier.arrays.into_iter();
    differences.extend(
        left_over.map(|(name, Array { shape, .. })| Difference::Unexpected { name, shape }),
    );
    if !differences.is_empty() {
        return Err(WeightsError::Different(differences));
    }
    applier.not_finite.map_or(Ok(module), Err)
}

/// The header of a file that is written. The library `safetensors` writes its metadata in the order of a `HashMap`, which is another
/// one in every process: files of the same content would differ.
#[derive(Serialize)]
struct Header {
    #[serde(rename = "__metadata__")]
    metadata: BTreeMap<String, String>,
    #[serde(flatten)]
    arrays: Metadata,
}

/// `arrays` as a safetensors file with `metadata`: the same bytes for the same content.
///
/// # Errors
/// An array with another number of values than its shape says, or more metadata than a header may hold (100 MB).
pub fn to_bytes(
    arrays: &Arrays,
    metadata: HashMap<String, String>,
    storage: Storage,
) -> Result<Vec<u8>, WeightsError> {
    let dtype = match storage {
        Storage::F32 => Dtype::F32,
        Storage::F16 => Dtype::F16,
    };
    let mut end = 0;
    let infos = arrays.iter().map(|(name, array)| {
        let start = end;
        end += array.values.len() * dtype.bitsize() / 8;
        let info = TensorInfo {
            dtype,
            shape: array.shape.clone(),
            data_offsets: (start, end),
        };
        (name.clone(), info)
    });
    let header = Header {
        arrays: Metadata::new(None, infos.collect())?,
        metadata: metadata.into_iter().collect(),
    };
    let mut header = serde_json::to_vec(&header).map_err(SafeTensorError::JsonError)?;
    // The values begin at a multiple of 8 bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    let length = header.len() as u64;
    if length > LARGEST_HEADER {
        return Err(SafeTensorError::HeaderTooLarge.into());
    }
    let mut bytes = Vec::with_capacity(size_of::<u64>() + header.len() + end);
    bytes.extend(length.to_le_bytes());
    bytes.append(&mut header);
    for array in arrays.values() {
        let values = array.values.iter();
        match storage {
            Storage::F32 => bytes.extend(values.flat_map(|value| value.to_le_bytes())),
            Storage::F16 => {
                bytes.extend(values.flat_map(|&value| f16::from_f32(value).to_le_bytes()));
            }
        }
    }
    Ok(bytes)
}

/// Whether a safetensors file may begin with these nine bytes: the length of its header, and a brace.
///
/// ```
/// use regard_nn::weights::is_beginning;
/// assert!(is_beginning(b"\x02\0\0\0\0\0\0\0{}"));
/// assert!(!is_beginning(&[0; 9]));
/// ```
pub fn is_beginning(bytes: &[u8]) -> bool {
    let length = bytes
        .first_chunk()
        .map(|&length| u64::from_le_bytes(length));
    length.is_some_and(|length| (2..=LARGEST_HEADER).contains(&length))
        && bytes.get(8) == Some(&b'{')
}

/// Reads the header of a safetensors file of `size` bytes from the beginning of `file`, which is left at the position where the
/// values begin.
fn header(file: &mut impl Read, size: u64) -> Result<Metadata, WeightsError> {
    let mut length = [0; 8];
    let Some(after_length) = size.checked_sub(length.len() as u64) else {
        return Err(SafeTensorError::HeaderTooSmall.into());
    };
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > LARGEST_HEADER {
        return Err(SafeTensorError::HeaderTooLarge.into());
    }
    let Some(values) = after_length.checked_sub(length) else {
        return Err(SafeTensorError::InvalidHeaderLength.into());
    };
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    let malformed = SafeTensorError::InvalidHeaderDeserialization;
    let twice = serde_json::Deserializer::from_slice(&header).deserialize_map(RepeatedName);
    if let Some(name) = twice.map_err(malformed)? {
        return Err(WeightsError::Twice(name));
    }
    let header: Metadata = serde_json::from_slice(&header).map_err(malformed)?;
    match header.data_len() as u64 == values {
        true => Ok(header),
        false => Err(SafeTensorError::MetadataIncompleteBuffer.into()),
    }
}

/// Finds the first name that occurs twice in a JSON object.
struct RepeatedName;

impl<'de> Visitor<'de> for RepeatedName {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut names, mut twice) = (HashSet::new(), None);
        while let Some((name, _)) = map.next_entry::<String, IgnoredAny>()? {
            if let Some(name) = names.replace(name) {
                twice.get_or_insert(name);
            }
        }
        Ok(twice)
    }
}

/// The metadata of a safetensors file of `size` bytes, without reading its arrays.
///
/// # Errors
/// As [`read`]'s, as far as the header goes.
pub fn metadata(mut file: impl Read, size: u64) -> Result<HashMap<String, String>, WeightsError> {
    let header = header(&mut file, size)?;
    Ok(header.metadata().clone().unwrap_or_default())
}

/// What a safetensors file of `size` bytes holds, in the order of the file, by its header alone: names that differ, shapes that
/// fit the bytes, values one after the other to the end of the file.
///
/// # Errors
/// As [`read`]'s, as far as the header goes.
pub fn entries(mut file: impl Read, size: u64) -> Result<Vec<Entry>, WeightsError> {
    let header = header(&mut file, size)?;
    Ok(listed(&header, size))
}

fn listed(header: &Metadata, size: u64) -> Vec<Entry> {
    let start = size - header.data_len() as u64;
    let entry = |name: String| {
        let info = header.info(&name)?;
        Some(Entry {
            shape: info.shape.clone(),
            dtype: info.dtype,
            offset: start + info.data_offsets.0 as u64,
            name,
        })
    };
    let names = header.offset_keys().into_iter();
    names.filter_map(entry).collect()
}

/// The arrays and metadata of a safetensors file of `size` bytes. Nothing is allocated beyond the size.
///
/// # Errors
/// A file that is not safetensors, is cut short or is longer than its header says, an array that is not F32, F16 or BF16, or an
/// error of the system.
pub fn read(
    mut file: impl Read,
    size: u64,
) -> Result<(Arrays, HashMap<String, String>), WeightsError> {
    let header = header(&mut file, size)?;
    let mut arrays = Arrays::new();
    for entry in listed(&header, size) {
        let values = entry.read(&mut file)?.into_f32();
        let Entry { name, shape, .. } = entry;
        arrays.insert(name, Array { shape, values });
    }
    Ok((arrays, header.metadata().clone().unwrap_or_default()))
}

/// The next `count` numbers of a file, which are stored as `T`. Where `T` is as wide as `U`, they are converted in place.
fn numbers<T: bytemuck::Pod, U>(
    file: &mut impl Read,
    count: usize,
    number: impl Fn(T) -> U,
) -> io::Result<Vec<U>> {
    let mut bits = vec![T::zeroed(); count];
    file.read_exact(bytemuck::cast_slice_mut(&mut bits))?;
    Ok(bits.into_iter().map(number).collect())
}

/// As [`read`], from the bytes of a file.
///
/// # Errors
/// As [`read`]'s.
pub fn from_bytes(bytes: &[u8]) -> Result<(Arrays, HashMap<String, String>), WeightsError> {
    read(bytes, bytes.len() as u64)
}
