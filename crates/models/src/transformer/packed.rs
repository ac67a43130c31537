//! A Transformer prepared for generation: the weights that every step multiplies by are packed once, not at every step.
//!
//! Steps run on [`regard_kernels::decoder`], except for models that this kernel does not serve (such as those with positions
//! inside self-attention, or with GELU). The numbers are the same up to rounding.

use burn::{
    nn::Linear,
    tensor::{Device, Int, Tensor, TensorData},
};
use regard_kernels::{
    decoder::{self, Decoder, NormWeights, Product, Sizes, State},
    norm::Kind,
};
use regard_nn::{
    heads::{MultiHead, Projection},
    score::Score,
    transformer::{Activation, Block, FeedForward, Norm, NormPlace, Residual},
};

use super::model::Transformer;
use crate::{
    batch::SourceBatch,
    generator::{Packed, Stepper},
    vocabulary::Vocabulary,
};

/// A Transformer with the weights of its decoder packed.
#[derive(Debug)]
pub(super) struct PackedTransformer {
    model: Transformer,
    decoder: Decoder,
}

impl PackedTransformer {
    /// The packed weights of `model`, if the kernel serves its decoder.
    pub(super) fn of(model: &Transformer) -> Option<Self> {
        Some(Self {
            decoder: packed(model)?,
            model: model.clone(),
        })
    }
}

impl Packed for PackedTransformer {
    fn begin<'a>(&'a self, source: &SourceBatch) -> Box<dyn Stepper + 'a> {
        let states = self.model.states(source);
        let device = states.device();
        let [_, length, _] = states.dims();
        let numbers: Vec<f32> = states.into_data().iter().collect();
        let state = self.decoder.begin(&numbers, length, source.keep.lengths());
        Box::new(PackedStepper {
            model: &self.model,
            decoder: &self.decoder,
            device,
            // The sizes are those of the encoder that made the states.
            state: state.unwrap_or_else(|error| unreachable!("{error}")),
        })
    }
}

struct PackedStepper<'a> {
    model: &'a Transformer,
    decoder: &'a Decoder,
    device: Device,
    state: State,
}

impl Stepper for PackedStepper<'_> {
    fn vocabulary(&self) -> Vocabulary {
        self.model.tables.vocabularies.target
    }

    fn step(&mut self, previous: &[u32], log_probabilities: &mut Vec<f32>) -> Option<Vec<f32>> {
        let ids: Vec<i32> = previous.iter().map(|&id| id as i32).collect();
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [previous.len()]), &self.device);
        let embedded = self.model.embed_step(ids, self.state.steps());
        let embedded: Vec<f32> = embedded.into_data().iter().collect();
        let state = &mut self.state;
        if let Err(error) = self.decoder.step(state, &embedded, log_probabilities) {
            unreachable!("one embedding for each row: {error}");
        }
        None
    }

    fn select(&mut self, rows: &[usize], _same_sources: bool) {
        if let Err(error) = self.state.select(rows) {
            unreachable!("the search keeps rows that there are: {error}");
        }
    }
}

/// The packed weights of the decoder, if the kernel serves it.
fn packed(model: &Transformer) -> Option<Decoder> {
    let decoder = &model.decoder;
    let first = decoder.layers.first()?;
    let own = &first.attention;
    let sizes = Sizes {
        model: own.output.weight.dims()[1],
        heads: own.heads(),
        key_value_heads: own.key_value_heads(),
        head: own.head_size(),
        window: first.window(),
        post_norm: first.attention_block.place() == NormPlace::Post,
    };
    let alike = |block: &Block| block.window() == sizes.window;
    if !decoder.layers.iter().all(alike) {
        return None;
    }
    let layers = decoder.layers.iter().map(layer).collect::<Option<_>>()?;
    let last_norm = decoder.norm.as_ref().map(norm);
    let output = model.tables.output_weights();
    let [rows, columns] = output.weight.dims();
    let bias = output.bias.map(numbers);
    let output = match output.is_table {
        true => Product::transposed(&numbers(output.weight), columns, rows, bias),
        false => Product::new(&numbers(output.weight), rows, columns, bias),
    };
    Decoder::new(sizes, layers, last_norm, output.ok()?).ok()
}

fn layer(layer: &Block) -> Option<decoder::Layer> {
    let (own, cross) = (&layer.attention, layer.cross_attention.as_ref()?);
    if !(plain(own) && plain(cross)) {
        return None;
    }
    let (Projection::Fused(joint), Projection::Separate(apart)) =
        (&own.projection, &cross.projection)
    else {
        return None;
    };
    Some(decoder::Layer {
        own: product(&joint.query_key_value)?,
        own_output: product(&own.output)?,
        own_norm: residual_norm(&layer.attention_block)?,
        cross_query: product(&apart.query)?,
        cross_source: side_by_side(&apart.key, &apart.value)?,
        cross_output: product(&cross.output)?,
        cross_norm: residual_norm(layer.cross_block.as_ref()?)?,
        inner: product(&layer.feed_forward.inner)?,
        activation: activation(&layer.feed_forward)?,
        outer: product(&layer.feed_forward.outer)?,
        outer_norm: residual_norm(&layer.feed_forward_block)?,
    })
}

/// Whether heads score by `qᵀk / √d` and do nothing else.
fn plain(heads: &MultiHead) -> bool {
    let attention = &heads.attention;
    let scaled = match &attention.score {
        Score::ScaledDot(score) => {
            let size = heads.head_size();
            score.scale(size) == 1.0 / (size as f64).sqrt()
        }
        _ => false,
    };
    scaled
        && heads.position.is_none()
        && heads.query_key_norm.is_none()
        && heads.talking_heads.is_none()
        && heads.gate.is_none()
        && heads.head_size() == heads.value_size()
        && attention.softcap().is_none()
        && attention.mask().is_all()
        && matches!(
            attention.normalize,
            regard_nn::normalize::Normalize::Softmax(_)
        )
}

fn activation(layer: &FeedForward) -> Option<decoder::Activation> {
    match layer.activation() {
        Activation::Relu => Some(decoder::Activation::Relu),
        Activation::Swiglu => Some(decoder::Activation::Swiglu),
        _ => None,
    }
}

/// The norm of a block, if it stands before the block or after its residual sum and nowhere else.
fn residual_norm(residual: &Residual) -> Option<NormWeights> {
    match residual.place() {
        NormPlace::Pre | NormPlace::Post => residual.norm.as_ref().map(norm),
        NormPlace::Both | NormPlace::Parallel => None,
    }
}

fn norm(norm: &Norm) -> NormWeights {
    let bias = norm.bias.as_ref().map(|bias| numbers(bias.val()));
    NormWeights {
        kind: match bias {
            Some(_) => Kind::Layer,
            None => Kind::RootMeanSquare,
        },
        weight: numbers(norm.weight.val()),
        bias,
        epsilon: norm.epsilon(),
    }
}

fn product(linear: &Linear) -> Option<Product> {
    let [inner, columns] = linear.weight.dims();
    let bias = linear.bias.as_ref().map(|bias| numbers(bias.val()));
    Product::new(&numbers(linear.weight.val()), inner, columns, bias).ok()
}

fn side_by_side(key: &Linear, value: &Linear) -> Option<Product> {
    let weight = Tensor::cat(vec![key.weight.val(), value.weight.val()], 1);
    let [inner, columns] = weight.dims();
    let bias = match (&key.bias, &value.bias) {
        (Some(key), Some(value)) => Some(numbers(Tensor::cat(vec![key.val(), value.val()], 0))),
        _ => None,
    };
    Product::new(&numbers(weight), inner, columns, bias).ok()
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter().collect()
}
