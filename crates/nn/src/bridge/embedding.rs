//! Rows of a table: `y[i] = table[ids[i]]`, `dtable[id] = Σ_{i: ids[i] = id} dy[i]`, added in the order of the ids.
//!
//! Burn adds the gradient up number by number.

use burn::{
    nn::Embedding,
    tensor::{Int, Tensor},
};
use regard_kernels::KernelError;

use super::{
    fused::{self, FlexTensor, Forward, Operation, numbers, tensor},
    memory,
};

/// The vectors of `ids [rows, columns]` in the table of `layer` `[entries, size]`: `[rows, columns, size]`, in place of Burn's
/// `Embedding::forward`. Fused for `f32` on the Flex backend, Burn's operation elsewhere.
///
/// # Panics
/// If an id is not an entry.
pub fn embed(layer: &Embedding, ids: Tensor<2, Int>) -> Tensor<3> {
    let table = layer.weight.val();
    if !fused::takes(&table) {
        #[expect(clippy::disallowed_methods, reason = "there is no kernel")]
        return layer.forward(ids);
    }
    let [entries, size] = table.dims();
    let [rows, columns] = ids.dims();
    let place = |id: i64| match usize::try_from(id) {
        Ok(place) if place < entries => place,
        _ => panic!("the id {id} is not an entry, expected 0 to below {entries}"),
    };
    let operation = Gather {
        places: ids.into_data().iter::<i64>().map(place).collect(),
        entries,
        shape: [rows, columns, size],
    };
    Tensor::from_dispatch(fused::run(operation, vec![table.into_dispatch()]).0)
}

#[derive(Debug)]
struct Gather {
    /// The entry of each vector, `[rows · columns]`.
    places: Vec<usize>,
    entries: usize,
    /// Of the output, `[rows, columns, size]`.
    shape: [usize; 3],
}

impl Operation for Gather {
    fn forward(&self, inputs: Vec<FlexTensor>, _tracked: bool) -> Result<Forward, KernelError> {
        let (table, size) = (numbers(&inputs[0]), self.shape[2]);
        let entry = |i: usize| &table[self.places[i] * size..][..size];
        let vectors = memory::rows(self.places.len(), size, entry);
        Ok(Forward::only(tensor(vectors, self.shape)))
    }

    fn backward(
        &self,
        _saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        _wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let size = self.shape[2];
        let mut table = memory::zeros(self.entries * size);
        let vectors = numbers(&gradient).chunks_exact(size.max(1));
        for (&place, vector) in self.places.iter().zip(vectors) {
            let entry = &mut table[place * size..][..size];
            entry.iter_mut().zip(vector).for_each(|(sum, x)| *sum += x);
        }
        Ok(vec![Some(tensor(table, [self.entries, size]))])
    }
}
