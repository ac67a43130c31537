//! Which tensors of a folder become which arrays of a network that is trained here.

use regard_nn::weights::{Array, Arrays};

use super::{
    error::PretrainedError,
    folder::{Folder, Names},
};

/// A list of tensors with the arrays that they become.
#[derive(Debug, Default)]
pub(super) struct Copies(Vec<Copy>);

/// Tensors that become one array.
#[derive(Debug)]
struct Copy {
    there: Vec<(String, Vec<usize>)>,
    here: String,
    /// The shape here.
    shape: Vec<usize>,
    /// Whether rows and columns change places.
    transposed: bool,
}

impl Copies {
    /// A tensor of this shape, as it is.
    pub(super) fn same(
        &mut self,
        there: impl Into<String>,
        here: impl Into<String>,
        shape: &[usize],
    ) {
        self.0.push(Copy {
            there: vec![(there.into(), shape.to_vec())],
            here: here.into(),
            shape: shape.to_vec(),
            transposed: false,
        });
    }

    /// Weight and bias of each of `there`, layers of PyTorch with `inputs` and `outputs`, as one layer with all outputs; behind the
    /// weights' sizes come those of a `window` of 1.
    pub(super) fn linear(
        &mut self,
        there: &[String],
        here: &str,
        [inputs, outputs]: [usize; 2],
        window: &[usize],
    ) {
        let each = |end: &str, shape: Vec<usize>| {
            let named = there.iter().map(|name| format!("{name}.{end}"));
            named.map(|name| (name, shape.clone())).collect()
        };
        let all = there.len() * outputs;
        self.0.push(Copy {
            there: each("weight", [&[outputs, inputs], window].concat()),
            here: format!("{here}.weight"),
            shape: vec![inputs, all],
            transposed: true,
        });
        self.0.push(Copy {
            there: each("bias", vec![outputs]),
            here: format!("{here}.bias"),
            shape: vec![all],
            transposed: false,
        });
    }

    /// Weight and bias of a norm of `size` numbers, which are called `names` here.
    pub(super) fn norm(&mut self, there: &str, here: &str, names: [&str; 2], size: usize) {
        for (end, name) in ["weight", "bias"].iter().zip(names) {
            self.same(format!("{there}.{end}"), format!("{here}.{name}"), &[size]);
        }
    }

    /// Weight and bias of a convolution, `[outputs, inputs, kernel, kernel]`.
    pub(super) fn convolution(
        &mut self,
        there: &str,
        here: &str,
        [inputs, outputs]: [usize; 2],
        kernel: usize,
    ) {
        let shape = [outputs, inputs, kernel, kernel];
        self.same(format!("{there}.weight"), format!("{here}.weight"), &shape);
        self.same(format!("{there}.bias"), format!("{here}.bias"), &[outputs]);
    }

    /// Reads all of them.
    pub(super) fn read(
        self,
        folder: &Folder,
        names: &Names<'_>,
    ) -> Result<Arrays, PretrainedError> {
        let expected = self.0.iter().flat_map(|copy| copy.there.clone());
        let weights = folder.weights(expected, names)?;
        let arrays = self.0.into_iter().map(|copy| {
            let mut values = vec![];
            for (name, _) in &copy.there {
                values.extend(weights.read(name)?.values.into_f32());
            }
            if copy.transposed {
                values = transposed(&values, copy.shape[0]);
            }
            let shape = copy.shape;
            Ok((copy.here, Array { shape, values }))
        });
        arrays.collect()
    }
}

/// `[columns, rows]` of `[rows, columns]`.
pub(super) fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let column = |column: usize| values[column..].iter().step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}
