//! The weights of any module as named arrays, to and from safetensors.
//!
//! Names are the module's field path (`encoder.forward.recurrent`), layouts are Burn's (`Linear` is
//! `[inputs, outputs]`). Storage is f32, or f16 at half the size. Reading checks that every weight is
//! there with the right shape, that none is left over and that all values are finite.
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
    collections::{BTreeMap, HashMap},
    mem,
};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Tensor, TensorData},
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

/// One weight: its shape and its values in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// The size of each dimension.
    pub shape: Vec<usize>,
    /// As many values as the product of the shape.
    pub values: Vec<f32>,
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
    /// The bytes are no safetensors, or are cut short.
    #[error("not a complete safetensors file: {0}")]
    Format(#[from] safetensors::SafeTensorError),
    /// A tensor is stored in a type that is not read here.
    #[error("tensor `{name}` is stored as {dtype}; expected F32, F16 or BF16")]
    Dtype {
        /// The tensor.
        name: String,
        /// What was found.
        dtype: String,
    },
    /// The file lacks a weight of the model.
    #[error("weight `{name}` {shape:?} is missing; the file is of another model or another recipe")]
    Missing {
        /// The weight.
        name: String,
        /// Its shape in the model.
        shape: Vec<usize>,
    },
    /// The file has weights that the model lacks.
    #[error("the file has {} weights that the model lacks, the first is `{}`; it is of another model or another recipe", names.len(), names.first().map_or("", String::as_str))]
    Unexpected {
        /// The weights left over.
        names: Vec<String>,
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
    /// A value is NaN or infinite.
    #[error("weight `{name}` holds a value that is not finite, at index {index}")]
    NotFinite {
        /// The weight.
        name: String,
        /// The index in row-major order.
        index: usize,
    },
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
/// A weight that is missing, left over, of another shape or not finite.
pub fn apply<M: Module>(module: M, arrays: Arrays) -> Result<M, WeightsError> {
    struct Applier {
        path: Path,
        arrays: Arrays,
        error: Option<WeightsError>,
    }
    impl Applier {
        fn take(&mut self, shape: Vec<usize>) -> Result<Vec<f32>, WeightsError> {
            let name = self.path.name();
            let Some(array) = self.arrays.remove(&name) else {
                return Err(WeightsError::Missing { name, shape });
            };
            if array.shape != shape {
                return Err(WeightsError::Shape {
                    name,
                    expected: shape,
                    found: array.shape,
                });
            }
            match array.values.iter().position(|value| !value.is_finite()) {
                Some(index) => Err(WeightsError::NotFinite { name, index }),
                None => Ok(array.values),
            }
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
            if self.error.is_some() {
                return param;
            }
            // Shape and device are asked of the parameter: one without values yet is not to get any on the way.
            let shape: [usize; D] = param.lazy_shape().dims();
            match self.take(shape.to_vec()) {
                Ok(values) => {
                    let data = TensorData::new(values, shape);
                    let (id, device) = (param.id, param.lazy_device());
                    param.transform_for_load(Tensor::from_data(data, &device), id)
                }
                Err(error) => {
                    self.error = Some(error);
                    param
                }
            }
        }
    }
    let mut applier = Applier {
        path: Path::default(),
        arrays,
        error: None,
    };
    let module = module.map(&mut applier);
    if let Some(error) = applier.error {
        return Err(error);
    }
    if !applier.arrays.is_empty() {
        let names = mem::take(&mut applier.arrays).into_keys().collect();
        return Err(WeightsError::Unexpected { names });
    }
    Ok(module)
}

/// `arrays` as a safetensors file with `metadata`.
///
/// # Errors
/// A name that safetensors cannot hold.
pub fn to_bytes(
    arrays: &Arrays,
    metadata: HashMap<String, String>,
    storage: Storage,
) -> Result<Vec<u8>, WeightsError> {
    let stored: Vec<(&String, &Array, Vec<u8>)> = arrays
        .iter()
        .map(|(name, array)| {
            let bytes = match storage {
                Storage::F32 => array.values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                Storage::F16 => array
                    .values
                    .iter()
                    .flat_map(|&v| half::f16::from_f32(v).to_le_bytes())
                    .collect(),
            };
            (name, array, bytes)
        })
        .collect();
    let dtype = match storage {
        Storage::F32 => Dtype::F32,
        Storage::F16 => Dtype::F16,
    };
    let views = stored
        .iter()
        .map(|(name, array, bytes)| {
            Ok((
                name.as_str(),
                TensorView::new(dtype, array.shape.clone(), bytes)?,
            ))
        })
        .collect::<Result<Vec<_>, WeightsError>>()?;
    Ok(safetensors::serialize(views, Some(metadata))?)
}

/// The metadata of a safetensors file, its arrays left alone.
///
/// # Errors
/// Bytes that do not start as a safetensors file does.
pub fn metadata(bytes: &[u8]) -> Result<HashMap<String, String>, WeightsError> {
    let (_, header) = SafeTensors::read_metadata(bytes)?;
    Ok(header.metadata().clone().unwrap_or_default())
}

/// The arrays and metadata of a safetensors file.
///
/// # Errors
/// Bytes that are no safetensors or cut short, or a tensor that is not F32, F16 or BF16.
pub fn from_bytes(bytes: &[u8]) -> Result<(Arrays, HashMap<String, String>), WeightsError> {
    let metadata = metadata(bytes)?;
    let file = SafeTensors::deserialize(bytes)?;
    let arrays = file
        .iter()
        .map(|(name, view)| {
            let data = view.data();
            let halves = || data.chunks_exact(2).map(|b| [b[0], b[1]]);
            let values = match view.dtype() {
                Dtype::F32 => data
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                    .collect(),
                Dtype::F16 => halves()
                    .map(|b| half::f16::from_le_bytes(b).to_f32())
                    .collect(),
                Dtype::BF16 => halves()
                    .map(|b| half::bf16::from_le_bytes(b).to_f32())
                    .collect(),
                other => {
                    return Err(WeightsError::Dtype {
                        name: name.to_owned(),
                        dtype: format!("{other:?}"),
                    });
                }
            };
            let shape = view.shape().to_vec();
            Ok((name.to_owned(), Array { shape, values }))
        })
        .collect::<Result<Arrays, _>>()?;
    Ok((arrays, metadata))
}
