//! Dot-product attention in one operation, without `[batch, heads, queries, keys]`, forward or backward.
//!
//! `softmax(scale · q kᵀ) v` with masks, softcap, bias, sink and dropout; see [`regard_kernels::Attention`].
//! Query, key and value may have any strides over batch, heads and length: a transposed
//! `[batch, length, heads, dim]` is read in place, and so is the part of a cache that is filled.
//!
//! | call | kernel |
//! |---|---|
//! | one query on a device without autodiff, no dropout: a step of generation | [`dot::decode`], of keys and values stored as `f32`, bfloat16 or f16 |
//! | all others | [`dot::forward`] and [`dot::backward`], in `f32` |

use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor, TensorData};
use half::{bf16, f16};
use regard_kernels::{
    self as kernels, Dropout, Element, KernelError, View, ViewMut,
    dot::{self, Cache},
};

use super::fused::{
    self, FlexTensor, Forward, Operation, Reads, dims, numbers, tensor, view, view_of,
};
use super::memory;
use crate::{
    attention::{Observe, Observed, Top},
    mask::KernelMask,
};

/// The largest size of a query, key or value that the kernel takes.
pub(crate) const MAX_SIZE: usize = kernels::MAX_DIM;

/// What is done to the scores and weights, beside bias and sink.
#[derive(Debug)]
pub(crate) struct DotOptions {
    pub(crate) scale: f32,
    pub(crate) softcap: Option<f32>,
    pub(crate) mask: KernelMask,
    /// A slope for each head: `slope · |p_i - j|` is subtracted from the scores.
    pub(crate) alibi: Option<Vec<f32>>,
    pub(crate) dropout: Option<Dropout>,
}

/// The inputs of [`dot_attention`], `f32` on the Flex backend, whose shapes fit together. Key and value may be stored as bfloat16
/// or f16.
#[derive(Debug)]
pub(crate) struct DotInputs {
    pub(crate) query: Tensor<4>,        // [batch, heads, queries, size]
    pub(crate) key: Tensor<4>,          // [batch, key heads, keys, size]
    pub(crate) value: Tensor<4>,        // [batch, key heads, keys, value size]
    pub(crate) bias: Option<Tensor<4>>, // [batch or 1, heads or 1, queries or 1, keys or 1]
    pub(crate) sink: Option<Tensor<1>>, // [heads]
}

/// The context `[batch, heads, queries, value size]`, with gradients to every input; the `lse`
/// `[batch, heads, queries]` and what is observed, without.
pub(crate) fn dot_attention(
    inputs: DotInputs,
    options: DotOptions,
    observe: &Observe,
) -> (Tensor<4>, Tensor<3>, Observed) {
    // The kernel for one query reads keys and values of one type.
    let one_type = inputs.key.dtype() == inputs.value.dtype();
    let one_query = inputs.query.dims()[2] == 1;
    let operation = Dot {
        decodes: one_query && one_type && options.dropout.is_none() && !inputs.record(),
        options: Arc::new(options),
        has_bias: inputs.bias.is_some(),
        has_sink: inputs.sink.is_some(),
    };
    let device = inputs.query.device();
    let widened = |x: Tensor<4>| x.cast(DType::F32);
    let observes = *observe != Observe::Nothing;
    let observed_key = observes.then(|| widened(inputs.key.clone()));
    let (key, value) = match operation.decodes {
        true => (inputs.key, inputs.value),
        false => (widened(inputs.key), widened(inputs.value)),
    };
    let mut all = vec![
        inputs.query.into_dispatch(),
        key.into_dispatch(),
        value.into_dispatch(),
    ];
    all.extend(inputs.bias.map(Tensor::into_dispatch));
    all.extend(inputs.sink.map(Tensor::into_dispatch));
    let observed = observed_key.map(|key| {
        let mut all = all.clone();
        all[1] = key.into_dispatch();
        (operation.clone(), all)
    });
    let (context, lse) = fused::run(operation, all);
    let lse = lse.expect("dot attention gives the lse beside the context");
    let lse = fused::untracked(vec![lse], Reads::Contiguous);
    let [batch, heads, queries, _] = dims(&lse[0]);
    let lse = numbers(&lse[0]);
    let observed = match observed {
        None => Observed::default(),
        Some((operation, inputs)) => {
            let inputs = fused::untracked(inputs, Reads::Rows);
            operation.observe(&inputs, lse, observe, &device)
        }
    };
    let lse = TensorData::new(sum_lse(lse), [batch, heads, queries]);
    let lse = Tensor::from_data(lse, &device);
    (Tensor::from_dispatch(context), lse, observed)
}

impl DotInputs {
    /// Whether the inputs are on a device that records operations for gradients.
    fn record(&self) -> bool {
        let four = [
            Some(&self.query),
            Some(&self.key),
            Some(&self.value),
            self.bias.as_ref(),
        ];
        let four = four.into_iter().flatten().any(Tensor::is_autodiff);
        four || self.sink.as_ref().is_some_and(Tensor::is_autodiff)
    }
}

/// The `lse` of each row from the addends that the kernel keeps.
pub(super) fn sum_lse(addends: &[f32]) -> Vec<f32> {
    let rows = addends.as_chunks::<3>().0.iter();
    rows.map(|[high, low, log_sum]| high + (low + log_sum))
        .collect()
}

impl DotOptions {
    /// The kernel's options, without bias and sink.
    pub(super) fn kernel(&self) -> kernels::Attention<'_> {
        let mask = &self.mask;
        kernels::Attention {
            scale: Some(self.scale),
            softcap: self.softcap,
            alignment: mask.alignment,
            causal: mask.causal,
            window: mask.window,
            prefix: mask.prefix.as_deref(),
            lengths: mask.lengths.as_deref(),
            keep: mask
                .keep
                .as_ref()
                .map(|(keep, shape)| View::heads_first(keep, *shape)),
            documents: mask
                .documents
                .as_ref()
                .map(|[query, key]| kernels::Documents { query, key }),
            blocks: mask.blocks.as_ref().map(|blocks| kernels::Blocks {
                query_size: blocks.query_size,
                key_size: blocks.key_size,
                table: View::heads_first(&blocks.table, blocks.shape),
            }),
            alibi: self.alibi.as_deref(),
            dropout: self.dropout,
            ..kernels::Attention::default()
        }
    }
}

#[derive(Debug, Clone)]
struct Dot {
    options: Arc<DotOptions>,
    has_bias: bool,
    has_sink: bool,
    /// Whether the kernel for single queries computes this call.
    decodes: bool,
}

impl Dot {
    /// The index of the sink among the inputs.
    fn sink_index(&self) -> Option<usize> {
        self.has_sink.then_some(3 + usize::from(self.has_bias))
    }

    fn attention<'a>(&'a self, inputs: &'a [FlexTensor]) -> kernels::Attention<'a> {
        kernels::Attention {
            bias: self.has_bias.then(|| view(&inputs[3])),
            sink: self.sink_index().map(|at| numbers(&inputs[at])),
            ..self.options.kernel()
        }
    }

    /// The context and the `lse` of one query.
    fn decode<T: Element>(
        &self,
        inputs: &[FlexTensor],
        [key, value]: [&[T]; 2],
        context: ViewMut,
        lse: &mut [f32],
    ) -> Result<(), KernelError> {
        let cache = Cache::Contiguous {
            key: view_of(&inputs[1], key),
            value: view_of(&inputs[2], value),
            filled: None,
        };
        let attention = self.attention(inputs);
        dot::decode(&attention, view(&inputs[0]), cache, context, Some(lse))
    }

    /// Computes what `observe` asks for, from the scores, which are computed once more.
    ///
    /// # Panics
    /// Never: the forward pass has accepted the same arguments, and the request was checked.
    fn observe(
        &self,
        inputs: &[FlexTensor],
        lse: &[f32],
        observe: &Observe,
        device: &Device,
    ) -> Observed {
        let [batch, heads, queries, _] = dims(&inputs[0]);
        let [_, _, keys, _] = dims(&inputs[1]);
        let (rows, k): (Vec<usize>, usize) = match observe {
            Observe::Weights => ((0..queries).collect(), 0),
            Observe::Rows(rows) => (rows.clone(), 0),
            Observe::TopK(k) => (vec![], *k),
            _ => (vec![], 0),
        };
        let zeros =
            |shape: &[usize]| memory::zeros(batch * heads * shape.iter().product::<usize>());
        let mut weights = zeros(&[rows.len(), keys]);
        let mut per_query = zeros(&[queries]);
        let mut per_key = zeros(&[keys]);
        let mut top_weights = zeros(&[queries, k]);
        let mut top_keys = vec![0u32; top_weights.len()];
        let mut wanted = dot::Observe::default();
        match observe {
            Observe::Nothing => {}
            Observe::Weights | Observe::Rows(_) => wanted.rows = Some((&rows, &mut weights)),
            Observe::Entropy => wanted.entropy = Some(&mut per_query),
            Observe::ColumnSums => wanted.column_sums = Some(&mut per_key),
            Observe::TopK(_) => {
                wanted.top = Some(dot::Top {
                    k,
                    weights: &mut top_weights,
                    keys: &mut top_keys,
                });
            }
        }
        let attention = self.attention(inputs);
        let (query, key) = (view(&inputs[0]), view(&inputs[1]));
        let run = |lse: &[f32]| dot::observe(&attention, query, key, lse, wanted);
        let result = match self.decodes {
            false => run(lse),
            // The kernel for one query adds up a score in another order than `dot::observe` does, and under a large scale its
            // `lse` is that of other scores. `dot::forward` adds up in the same order; the keys stand in for values.
            true => {
                let shape @ [_, _, _, size] = dims(&inputs[0]);
                let mut context = memory::zeros(shape.iter().product());
                let mut lse = memory::zeros(3 * context.len() / size);
                let to = ViewMut::heads_first(&mut context, shape);
                dot::forward(&attention, query, key, key, to, Some(&mut lse))
                    .and_then(|()| run(&lse))
            }
        };
        if let Err(error) = result {
            panic!("{self:?}, observing: {error}");
        }
        let mut observed = Observed::default();
        match observe {
            Observe::Nothing => {}
            Observe::Weights | Observe::Rows(_) => {
                let weights = TensorData::new(weights, [batch, heads, rows.len(), keys]);
                observed.weights = Some(Tensor::from_data(weights, device));
            }
            Observe::Entropy => {
                let entropy = TensorData::new(per_query, [batch, heads, queries]);
                observed.entropy = Some(Tensor::from_data(entropy, device));
            }
            Observe::ColumnSums => {
                let sums = TensorData::new(per_key, [batch, heads, keys]);
                observed.column_sums = Some(Tensor::from_data(sums, device));
            }
            Observe::TopK(_) => {
                let shape = [batch, heads, queries, k];
                let keys: Vec<i32> = top_keys
                    .iter()
                    .zip(&top_weights)
                    .map(|(&key, &weight)| if weight == 0.0 { -1 } else { key as i32 })
                    .collect();
                observed.top = Some(Top {
                    keys: Tensor::from_data(TensorData::new(keys, shape), device),
                    weights: Tensor::from_data(TensorData::new(top_weights, shape), device),
                });
            }
        }
        observed
    }
}

impl Operation for Dot {
    fn reads(&self) -> Reads {
        Reads::Rows
    }

    fn forward(&self, inputs: Vec<FlexTensor>, tracked: bool) -> Result<Forward, KernelError> {
        let [batch, heads, queries, _] = dims(&inputs[0]);
        let [_, _, _, value_size] = dims(&inputs[2]);
        let shape = [batch, heads, queries, value_size];
        let mut context = memory::zeros(shape.iter().product());
        let mut lse = memory::zeros(batch * heads * queries * 3);
        let to = ViewMut::heads_first(&mut context, shape);
        let both = [&inputs[1], &inputs[2]];
        match inputs[1].dtype() {
            DType::BF16 => self.decode(&inputs, both.map(|x| x.storage::<bf16>()), to, &mut lse)?,
            DType::F16 => self.decode(&inputs, both.map(|x| x.storage::<f16>()), to, &mut lse)?,
            _ if self.decodes => {
                self.decode(&inputs, both.map(|x| x.storage::<f32>()), to, &mut lse)?;
            }
            _ => dot::forward(
                &self.attention(&inputs),
                view(&inputs[0]),
                view(&inputs[1]),
                view(&inputs[2]),
                to,
                Some(&mut lse),
            )?,
        }
        let context = tensor(context, shape);
        let lse = tensor(lse, [batch, heads, queries, 3]);
        let mut saved = Vec::new();
        if tracked {
            saved = inputs;
            saved.extend([context.clone(), lse.clone()]);
        }
        Ok(Forward {
            output: context,
            beside: Some(lse),
            saved,
        })
    }

    fn backward(
        &self,
        mut saved: Vec<FlexTensor>,
        gradient: FlexTensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<FlexTensor>>, KernelError> {
        let lse = saved.pop().expect("the lse was saved last");
        let context = saved.pop().expect("the context was saved before it");
        let inputs = saved;
        let wants = |index: Option<usize>| index.filter(|&index| wanted.get(index) == Some(&true));
        let zeros = |index: usize| memory::zeros(inputs[index].layout().num_elements());
        let (bias_at, sink_at) = (wants(self.has_bias.then_some(3)), wants(self.sink_index()));
        let (mut query, mut key, mut value) = (zeros(0), zeros(1), zeros(2));
        let (mut bias, mut sink) = (bias_at.map(zeros), sink_at.map(zeros));
        let gradients = dot::Gradients {
            query: ViewMut::heads_first(&mut query, dims(&inputs[0])),
            key: ViewMut::heads_first(&mut key, dims(&inputs[1])),
            value: ViewMut::heads_first(&mut value, dims(&inputs[2])),
            bias: bias
                .as_mut()
                .map(|bias| ViewMut::heads_first(bias, dims(&inputs[3]))),
            sink: sink.as_deref_mut(),
        };
        dot::backward(
            &self.attention(&inputs),
            view(&inputs[0]),
            view(&inputs[1]),
            view(&inputs[2]),
            view(&context),
            numbers(&lse),
            view(&gradient),
            gradients,
        )?;
        let mut all = vec![Some(query), Some(key), Some(value)];
        if self.has_bias {
            all.push(bias);
        }
        if self.has_sink {
            all.push(sink);
        }
        let shaped = all.into_iter().zip(&inputs).map(|(gradient, input)| {
            gradient.map(|gradient| tensor(gradient, input.layout().shape().clone()))
        });
        Ok(shaped.collect())
    }
}
