//! Where the weights of a model are in its files: a family says this once, for every matrix and norm, and all else follows: which
//! names and shapes the files must have, and how they are packed for [`regard_kernels::stack`].

use std::path::Path;

use rayon::prelude::*;
use regard_kernels::{
    KernelError,
    matmul::Storage,
    norm::Kind,
    stack::{Block, NormWeights, Product, RelativePositions, Rotation, Sizes, Stack},
};
use regard_nn::{position::RelativeBucketsConfig, weights::Values};

use super::{
    config::Config,
    error::PretrainedError,
    folder::{Folder, Names, Stored, Weights},
};
use crate::packed::by_distance;

/// A matrix `[inner, outputs]` and its bias, perhaps put together from several tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix {
    inner: usize,
    parts: Vec<Part>,
}

/// Some outputs of a matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    weight: String,
    bias: Option<Bias>,
    outputs: usize,
    layout: Layout,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Bias {
    name: String,
    shape: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// `[outputs, inner]`, PyTorch's `Linear`.
    OutputsFirst,
    /// `[inner, outputs]`, GPT-2's `Conv1D`.
    InputsFirst,
}

impl Matrix {
    /// A `Linear` of PyTorch: `{name}.weight [outputs, inner]`, and `{name}.bias [outputs]` if it has a `bias`.
    pub fn linear(name: &str, [inner, outputs]: [usize; 2], bias: bool) -> Self {
        Self::of(name, [inner, outputs], bias, Layout::OutputsFirst)
    }

    /// A `Conv1D` of GPT-2: `{name}.weight [inner, outputs]` and `{name}.bias [outputs]`.
    pub fn convolution(name: &str, [inner, outputs]: [usize; 2]) -> Self {
        Self::of(name, [inner, outputs], true, Layout::InputsFirst)
    }

    /// A table of embeddings, `{name}.weight [rows, size]`; row `i` makes output `i`.
    pub fn table(name: &str, [rows, size]: [usize; 2]) -> Self {
        Self::linear(name, [size, rows], false)
    }

    fn of(name: &str, [inner, outputs]: [usize; 2], bias: bool, layout: Layout) -> Self {
        let part = Part {
            weight: format!("{name}.weight"),
            bias: bias.then(|| Bias {
                name: format!("{name}.bias"),
                shape: vec![outputs],
            }),
            outputs,
            layout,
        };
        Self {
            inner,
            parts: vec![part],
        }
    }

    /// The outputs of `other` after those of this one.
    pub fn beside(mut self, other: Self) -> Self {
        self.parts.extend(other.parts);
        self
    }

    /// With the bias `name` of this shape for the last part. A table of embeddings has it where it is the output layer.
    pub fn with_bias(mut self, name: &str, shape: &[usize]) -> Self {
        if let Some(part) = self.parts.last_mut() {
            let (name, shape) = (name.to_owned(), shape.to_vec());
            part.bias = Some(Bias { name, shape });
        }
        self
    }

    /// How many outputs it has.
    pub fn outputs(&self) -> usize {
        self.parts.iter().map(|part| part.outputs).sum()
    }

    fn expected(&self, to: &mut Vec<(String, Vec<usize>)>) {
        for part in &self.parts {
            let shape = match part.layout {
                Layout::OutputsFirst => vec![part.outputs, self.inner],
                Layout::InputsFirst => vec![self.inner, part.outputs],
            };
            to.push((part.weight.clone(), shape));
            let bias = part.bias.iter();
            to.extend(bias.map(|bias| (bias.name.clone(), bias.shape.clone())));
        }
    }

    /// The packed matrix, in `storage` or as the first tensor is stored.
    pub(super) fn read(
        &self,
        weights: &Weights<'_>,
        storage: Option<Storage>,
    ) -> Result<Product, PretrainedError> {
        let outputs = self.outputs();
        let mut product: Option<Product> = None;
        let mut first = 0;
        for part in &self.parts {
            let Stored { values, .. } = weights.read(&part.weight)?;
            let product = match &mut product {
                Some(product) => product,
                None => {
                    let storage = storage.unwrap_or(as_stored(&values));
                    let zeros = Product::zeros(storage, self.inner, outputs);
                    product.insert(zeros.map_err(refused(weights.path()))?)
                }
            };
            match &values {
                Values::F32(values) => self.fill(product, first, part, values, |x| x),
                Values::F16(values) => self.fill(product, first, part, values, |x| x.to_f32()),
                Values::Bf16(values) => self.fill(product, first, part, values, |x| x.to_f32()),
            }
            .map_err(|error| {
                let problem = format!("{}: {error}", part.weight);
                PretrainedError::malformed(weights.path(), problem)
            })?;
            first += part.outputs;
        }
        let Some(product) = product else {
            let none = Product::zeros(Storage::F32, self.inner, 0);
            return none.map_err(refused(weights.path()));
        };
        if self.parts.iter().all(|part| part.bias.is_none()) {
            return Ok(product);
        }
        let mut bias = vec![];
        for part in &self.parts {
            match &part.bias {
                Some(part) => bias.extend(weights.read(&part.name)?.values.into_f32()),
                None => bias.resize(bias.len() + part.outputs, 0.0),
            }
        }
        product.with_bias(bias).map_err(refused(weights.path()))
    }

    fn fill<T: Copy>(
        &self,
        product: &mut Product,
        first: usize,
        part: &Part,
        values: &[T],
        widen: impl Fn(T) -> f32,
    ) -> Result<(), KernelError> {
        let mut column = vec![0.0; self.inner];
        for output in 0..part.outputs {
            let (start, step) = match part.layout {
                Layout::OutputsFirst => (output * self.inner, 1),
                Layout::InputsFirst => (output, part.outputs),
            };
            let from = values[start..].iter().step_by(step);
            column
                .iter_mut()
                .zip(from)
                .for_each(|(to, &x)| *to = widen(x));
            product.set_column(first + output, &column)?;
        }
        Ok(())
    }
}

fn as_stored(values: &Values) -> Storage {
    match values {
        Values::F32(_) => Storage::F32,
        Values::F16(_) => Storage::F16,
        Values::Bf16(_) => Storage::Bf16,
    }
}

/// The weights of a norm: `{name}.weight`, and `{name}.bias` for layer norm.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// Before `.weight` and `.bias`.
    pub name: String,
    /// The kind.
    pub kind: Kind,
    /// Numbers in a row.
    pub size: usize,
    /// `ε`
    pub epsilon: f64,
    /// Whether the factor is 1 plus the weight (Gemma).
    pub plus_one: bool,
}

impl Norm {
    /// Layer norm.
    pub fn layer(name: impl Into<String>, size: usize, epsilon: f64) -> Self {
        Self {
            name: name.into(),
            kind: Kind::Layer,
            size,
            epsilon,
            plus_one: false,
        }
    }

    /// RMS norm.
    pub fn rms(name: impl Into<String>, size: usize, epsilon: f64) -> Self {
        Self {
            kind: Kind::RootMeanSquare,
            ..Self::layer(name, size, epsilon)
        }
    }

    fn expected(&self, to: &mut Vec<(String, Vec<usize>)>) {
        to.push((format!("{}.weight", self.name), vec![self.size]));
        if self.kind == Kind::Layer {
            to.push((format!("{}.bias", self.name), vec![self.size]));
        }
    }

    pub(super) fn read(&self, weights: &Weights<'_>) -> Result<NormWeights, PretrainedError> {
        let numbers = |end: &str| {
            let stored = weights.read(&format!("{}.{end}", self.name))?;
            Ok::<_, PretrainedError>(stored.values.into_f32())
        };
        let mut weight = numbers("weight")?;
        if self.plus_one {
            weight.iter_mut().for_each(|weight| *weight += 1.0);
        }
        Ok(NormWeights {
            kind: self.kind,
            weight,
            bias: match self.kind {
                Kind::Layer => Some(numbers("bias")?),
                Kind::RootMeanSquare => None,
            },
            epsilon: self.epsilon,
        })
    }
}

/// A stack of blocks, by the names of its weights.
#[derive(Debug, Clone)]
pub struct StackSource {
    /// The sizes.
    pub sizes: Sizes,
    /// The blocks.
    pub blocks: Vec<Block<Matrix, Norm>>,
    /// The norm after the last block.
    pub last_norm: Option<Norm>,
    /// How blocks turn their queries and keys.
    pub rotations: Vec<Rotation>,
    /// What distances add to scores.
    pub relative: Option<BucketSource>,
}

/// A number for each bucket of distances and head, for all blocks of a stack (T5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketSource {
    /// The name of the table `[buckets, heads]`.
    pub name: String,
    /// Which distances are in a bucket.
    pub buckets: RelativeBucketsConfig,
}

impl BucketSource {
    fn read(
        &self,
        weights: &Weights<'_>,
        heads: usize,
    ) -> Result<RelativePositions, PretrainedError> {
        let table = weights.read(&self.name)?.values.into_f32();
        Ok(by_distance(&self.buckets, &table, heads))
    }
}

impl StackSource {
    /// Refuses heads that are too large, before any weight is read.
    pub(super) fn expect_head(&self, folder: &Folder) -> Result<(), PretrainedError> {
        let (most, head) = (regard_kernels::MAX_DIM, self.sizes.head);
        match head <= most {
            true => Ok(()),
            false => {
                let path = folder.config().path();
                let problem =
                    format!("its heads have {head} features; at most {most} are supported");
                Err(PretrainedError::malformed(path, problem))
            }
        }
    }

    pub(super) fn expected(&self, to: &mut Vec<(String, Vec<usize>)>) {
        for block in &self.blocks {
            let mut matrices = vec![];
            let mut norms = vec![];
            // Nothing can fail: the closures only list.
            let listed = block.clone().try_map(
                |matrix| {
                    matrices.push(matrix);
                    Ok::<_, std::convert::Infallible>(())
                },
                |norm| {
                    norms.push(norm);
                    Ok(())
                },
            );
            let Ok(_) = listed;
            matrices.iter().for_each(|matrix| matrix.expected(to));
            norms.iter().for_each(|norm| norm.expected(to));
        }
        self.last_norm.iter().for_each(|norm| norm.expected(to));
        if let Some(relative) = &self.relative {
            let shape = vec![relative.buckets.buckets, self.sizes.heads];
            to.push((relative.name.clone(), shape));
        }
    }

    pub(super) fn read(
        self,
        weights: &Weights<'_>,
        storage: Option<Storage>,
    ) -> Result<Stack, PretrainedError> {
        // Packing takes longer than reading, and blocks are packed side by side.
        let blocks = self.blocks.into_par_iter().map(|block| {
            block.try_map(
                |matrix| matrix.read(weights, storage),
                |norm| norm.read(weights),
            )
        });
        let blocks = blocks.collect::<Result<_, PretrainedError>>()?;
        let last_norm = self.last_norm.map(|norm| norm.read(weights)).transpose()?;
        let refused = refused(weights.path());
        let stack = Stack::new(self.sizes, blocks, last_norm, self.rotations).map_err(&refused)?;
        match &self.relative {
            None => Ok(stack),
            Some(relative) => {
                let relative = relative.read(weights, self.sizes.heads)?;
                stack.with_relative(vec![relative]).map_err(refused)
            }
        }
    }
}

/// Collects the names and shapes of a model.
#[derive(Debug, Default)]
pub(super) struct Expected(pub(super) Vec<(String, Vec<usize>)>);

impl Expected {
    pub(super) fn matrix(mut self, matrix: Option<&Matrix>) -> Self {
        matrix
            .iter()
            .for_each(|matrix| matrix.expected(&mut self.0));
        self
    }

    pub(super) fn norm(mut self, norm: Option<&Norm>) -> Self {
        norm.iter().for_each(|norm| norm.expected(&mut self.0));
        self
    }

    pub(super) fn stack(mut self, stack: &StackSource) -> Self {
        stack.expected(&mut self.0);
        self
    }

    pub(super) fn weights<'f>(
        self,
        folder: &'f Folder,
        names: &Names<'_>,
    ) -> Result<Weights<'f>, PretrainedError> {
        folder.weights(self.0, names)
    }
}

/// Checks the number of layers that a configuration states under `key` before a name is made for each.
pub(super) fn expect_layers(
    folder: &Folder,
    config: &Config,
    key: &str,
    layers: usize,
) -> Result<(), PretrainedError> {
    let tensors = folder.tensors().count();
    if layers <= tensors {
        return Ok(());
    }
    if tensors == 0 {
        let problem = "its files of weights hold no tensors; download them again";
        return Err(PretrainedError::malformed(folder.path(), problem));
    }
    let expected = format!("at most {tensors}, the number of tensors in its files");
    Err(config.refuse(key, expected))
}

/// A refusal of a kernel as an error about `path`.
pub(super) fn refused(path: &Path) -> impl Fn(KernelError) -> PretrainedError {
    move |error| PretrainedError::malformed(path, error.to_string())
}
