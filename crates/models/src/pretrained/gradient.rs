//! Gradients of attention weights in a [`Stack`], which itself computes no gradients: the same blocks as plain tensor operations, for
//! one text.

use burn::tensor::{DType, Device, Tensor, TensorData};
use regard_kernels::stack::{Block, FeedForward, NormWeights, Norms, Product, Rotation, Stack};
use regard_nn::{
    Attention, AttentionOptions, Observe,
    bridge::{activate_plain, matmul, norm_plain},
    score::{ScaledDot, Score},
};

use super::{
    classify::ClassScores,
    encoder::{Heads, Input, TextEncoder},
    language_model::{InputError, LanguageModel},
    seq2seq::Seq2SeqModel,
};
use crate::{
    generator::expect_valid,
    gradient::{
        GradientError, OutputGradients, WeightGradients, expect_few, expect_short, followed,
        log_probability, unzipped,
    },
};

/// Where and in which precision tensors are.
#[derive(Debug, Clone)]
struct On {
    device: Device,
    dtype: DType,
    /// What is added to the weights of the first calls of attention.
    added: Vec<Tensor<4>>,
}

impl On {
    fn new(device: &Device) -> Self {
        Self {
            device: device.clone().autodiff(),
            dtype: DType::F32,
            added: vec![],
        }
    }

    fn tensor<const D: usize>(&self, values: &[f32], shape: [usize; D]) -> Tensor<D> {
        let data = TensorData::new(values.to_vec(), shape);
        Tensor::from_data(data, (&self.device, self.dtype))
    }

    /// `x W + b` of `x [rows, inner]`.
    fn product(&self, product: &Product, x: Tensor<2>) -> Tensor<2> {
        let [inner, columns] = product.sizes();
        let mut values = vec![0.0; inner * columns]; // [columns, inner]
        for (column, to) in values.chunks_exact_mut(inner.max(1)).enumerate() {
            expect_valid(product.column(column, to));
        }
        let y = matmul(x, self.tensor(&values, [columns, inner]).transpose());
        match product.bias() {
            Some(bias) => y + self.tensor(bias, [1, columns]),
            None => y,
        }
    }

    /// Over the last axis.
    fn norm<const D: usize>(&self, norm: Option<&NormWeights>, x: Tensor<D>) -> Tensor<D> {
        let Some(norm) = norm else { return x };
        let width = [norm.weight.len()];
        let weight = self.tensor(&norm.weight, width);
        let bias = norm.bias.as_ref().map(|bias| self.tensor(bias, width));
        norm_plain(norm.kind, x, weight, bias, norm.epsilon)
    }

    /// What a part of a block leaves: `after(x + inside(y))`.
    fn leave(&self, norms: &Norms, x: Tensor<2>, y: Tensor<2>) -> Tensor<2> {
        let y = self.norm(norms.inside.as_ref(), y);
        self.norm(norms.after.as_ref(), x + y)
    }

    fn feed_forward(&self, part: &FeedForward, entered: Tensor<2>) -> Tensor<2> {
        let inner = self.product(&part.inner, entered);
        self.product(
            &part.outer,
            activate_plain(part.activation, part.gated, inner),
        )
    }

    /// Queries or keys of positions 0, 1, .., `x [1, heads, length, head]`, turned.
    fn turn(&self, rotation: &Rotation, x: Tensor<4>) -> Tensor<4> {
        let [_, heads, length, head] = x.dims();
        let frequencies = rotation.at_length(length);
        let pairs = frequencies.len();
        let places = (0..length).flat_map(|at| frequencies.iter().map(move |f| at as f64 * f));
        let angles: Vec<f64> = places.collect();
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f32> = angles
                .iter()
                .map(|&a| (rotation.factor * of(a)) as f32)
                .collect();
            self.tensor(&values, [1, 1, length, pairs])
        };
        let (cosine, sine) = (table(f64::cos), table(f64::sin));
        let turning = x.clone().narrow(3, 0, 2 * pairs);
        let halves = |x: Tensor<4>| match rotation.interleaved {
            true => {
                let x = x.reshape([heads, length, pairs, 2]);
                let part = |at| {
                    x.clone()
                        .narrow(3, at, 1)
                        .reshape([1, heads, length, pairs])
                };
                [part(0), part(1)]
            }
            false => [x.clone().narrow(3, 0, pairs), x.narrow(3, pairs, pairs)],
        };
        let [a, b] = halves(turning);
        let first = a.clone() * cosine.clone() - b.clone() * sine.clone();
        let second = b * cosine + a * sine;
        let turned = match rotation.interleaved {
            true => {
                let apart = [first, second].map(|x| x.reshape([heads, length, pairs, 1]));
                Tensor::cat(apart.into(), 3).reshape([1, heads, length, 2 * pairs])
            }
            false => Tensor::cat(vec![first, second], 3),
        };
        match head - 2 * pairs {
            0 => turned,
            rest => Tensor::cat(vec![turned, x.narrow(3, 2 * pairs, rest)], 3),
        }
    }

    /// What distances add to the scores of self-attention, `-∞` for keys that are not seen, `[1, heads, length, length]`.
    fn bias(&self, stack: &Stack, layer: usize, length: usize) -> Tensor<4> {
        let (sizes, window) = (stack.sizes(), stack.blocks()[layer].attention.window);
        let mut values = Vec::with_capacity(sizes.heads * length * length);
        for head in 0..sizes.heads {
            for i in 0..length {
                values.extend((0..length).map(|j| {
                    let near = match (sizes.causal, window) {
                        (true, Some(window)) => i < j.saturating_add(window),
                        (false, Some(window)) => i.abs_diff(j) <= window,
                        (_, None) => true,
                    };
                    if !near || (sizes.causal && j > i) {
                        return f32::NEG_INFINITY;
                    }
                    stack.added_by_distance(layer, head, i, j)
                }));
            }
        }
        self.tensor(&values, [1, sizes.heads, length, length])
    }

    /// The context `[queries, heads · head]` of `q`, `k`, `v [1, heads, length, head]`.
    fn attend(
        &self,
        stack: &Stack,
        scale: Option<f32>,
        [q, k, v]: [Tensor<4>; 3],
        bias: Option<Tensor<4>>,
    ) -> Tensor<2> {
        let sizes = stack.sizes();
        let [_, _, queries, _] = q.dims();
        let score = match scale {
            Some(scale) => ScaledDot::with_scale(scale.into()),
            None => ScaledDot::default(),
        };
        let mut attention = Attention::new(Score::ScaledDot(score));
        if let Some(softcap) = sizes.softcap {
            attention = attention.with_softcap(softcap.into());
        }
        let mut options = AttentionOptions::new(Observe::Nothing);
        options.bias = bias;
        let attended = expect_valid(attention.forward_with(q, k, v, options));
        let context = attended.context.swap_dims(1, 2);
        context.reshape([queries, sizes.heads * sizes.head])
    }

    /// The states after the last block, `[length, model]`, of what enters the first, `x` of the same shape, and of the states of a
    /// source `[source length, source size]`.
    fn stack(&self, stack: &Stack, mut x: Tensor<2>, source: Option<&Tensor<2>>) -> Tensor<2> {
        let sizes = stack.sizes();
        let (heads, groups, head) = (sizes.heads, sizes.key_value_heads, sizes.head);
        let [length, _] = x.dims();
        // Some columns as heads: [rows, ..] -> [1, count, rows, head].
        let part = |x: &Tensor<2>, first: usize, count: usize| {
            let [rows, _] = x.dims();
            let x = x.clone().narrow(1, first * head, count * head);
            x.reshape([1, rows, count, head]).swap_dims(1, 2)
        };
        for (layer, block) in stack.blocks().iter().enumerate() {
            let (own, inner) = (&block.attention, &block.feed_forward);
            let entered = self.norm(own.norms.before.as_ref(), x.clone());
            let joint = self.product(&own.query_key_value, entered.clone());
            let place = |norm: &Option<NormWeights>, x: Tensor<4>| {
                let x = self.norm(norm.as_ref(), x);
                match own.rotation {
                    Some(at) => self.turn(&stack.rotations()[at], x),
                    None => x,
                }
            };
            let q = place(&own.query_norm, part(&joint, 0, heads));
            let k = place(&own.key_norm, part(&joint, heads, groups));
            let v = part(&joint, heads + groups, groups);
            let bias = self.bias(stack, layer, length);
            let read = self.attend(stack, own.scale, [q, k, v], Some(bias));
            x = self.leave(&own.norms, x, self.product(&own.output, read));
            if let (Some(cross), Some(source)) = (&block.cross, source) {
                let entered = self.norm(cross.norms.before.as_ref(), x.clone());
                let q = part(&self.product(&cross.query, entered), 0, heads);
                let states = self.product(&cross.key_value, source.clone());
                let (k, v) = (part(&states, 0, groups), part(&states, groups, groups));
                let read = self.attend(stack, cross.scale, [q, k, v], None);
                x = self.leave(&cross.norms, x, self.product(&cross.output, read));
            }
            let entered = match inner.parallel {
                true => entered,
                false => self.norm(inner.norms.before.as_ref(), x.clone()),
            };
            x = self.leave(&inner.norms, x, self.feed_forward(inner, entered));
        }
        self.norm(stack.last_norm(), x)
    }
}

const BEYOND: GradientError = GradientError::Unserved("a place beyond the text");

/// Refuses tokens that an `output` layer does not have.
fn expect_known(output: &Product, tokens: &[u32]) -> Result<(), InputError> {
    let [_, vocabulary] = output.sizes();
    match tokens.iter().find(|&&id| id as usize >= vocabulary) {
        Some(&id) => Err(InputError::Token { id, vocabulary }),
        None => Ok(()),
    }
}

/// Refuses what is too large, of a text of `length` tokens and a `source` that `stacks` read, before an `output` layer.
fn expect_room(
    stacks: &[&Stack],
    [length, source]: [usize; 2],
    output: &Product,
) -> Result<(), GradientError> {
    expect_short(length.max(source))?;
    let numbers = |product: &Product| product.sizes().iter().product::<usize>();
    let (mut weights, mut parameters) = (0usize, numbers(output));
    for stack in stacks {
        let keys = length.max(source) + source;
        let pairs = stack.sizes().heads * length.max(source) * keys;
        weights = weights.saturating_add(pairs.saturating_mul(stack.blocks().len()));
        let sizes = stack.blocks().iter().flat_map(Block::products);
        parameters = sizes.map(numbers).fold(parameters, usize::saturating_add);
    }
    expect_few(weights, parameters)
}

impl LanguageModel {
    /// The gradients of `Σ log p(token | text up to place)` over `wanted`, pairs of a place in `text` and a token. Changed heads are
    /// not heeded: they are those of the model as it is.
    ///
    /// # Errors
    /// A text that is too long, a model that is too large; places beyond the text, tokens that are not in the vocabulary.
    pub fn gradients(
        &self,
        text: &[u32],
        wanted: &[(usize, u32)],
        device: &Device,
    ) -> Result<OutputGradients, GradientError> {
        self.gradients_on(text, wanted, On::new(device))
    }

    fn gradients_on(
        &self,
        text: &[u32],
        wanted: &[(usize, u32)],
        mut on: On,
    ) -> Result<OutputGradients, GradientError> {
        self.embedding.check(text, 0)?;
        let (places, tokens) = unzipped(wanted);
        expect_known(self.output(), &tokens)?;
        if wanted.iter().any(|&(place, _)| place >= text.len()) {
            return Err(BEYOND);
        }
        expect_room(&[&self.stack], [text.len(), 0], self.output())?;
        let mut embedded = vec![];
        self.embedding.embed(text, &[], 0, &mut embedded)?;
        let added = std::mem::take(&mut on.added);
        let (log_probability, own) = followed(added, || {
            let x = on.tensor(&embedded, [text.len(), self.stack.sizes().model]);
            let states = on.stack(&self.stack, x, None);
            let states = states.select(0, Tensor::from_ints(&places[..], &on.device));
            log_probability(self.plain_logits(&on, states), &tokens)
        });
        Ok(OutputGradients {
            log_probability,
            source: vec![],
            own,
            cross: vec![],
        })
    }

    /// `[rows, vocabulary]`
    fn plain_logits(&self, on: &On, states: Tensor<2>) -> Tensor<2> {
        let logits = on.product(self.output(), states) * self.output_scale;
        match self.softcap.map(f64::from) {
            Some(cap) => (logits * (1.0 / cap)).tanh() * cap,
            None => logits,
        }
    }
}

/// The output of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncoderOutput {
    /// A token in the place of a masked one.
    Token {
        /// The position of the mask.
        place: usize,
        /// The token.
        token: u32,
    },
    /// A class of the text, of which exactly one is true.
    Class(usize),
}

impl TextEncoder {
    /// The gradients of `log p` of `output`. Changed heads are not heeded: they are those of the model as it is.
    ///
    /// # Errors
    /// A text that is too long, a model that is too large, one with global tokens, or without a head that gives a probability to this output;
    /// a place beyond the text, a token that is not in the vocabulary.
    pub fn gradients(
        &self,
        text: Input<'_>,
        output: EncoderOutput,
        device: &Device,
    ) -> Result<OutputGradients, GradientError> {
        self.gradients_on(text, output, On::new(device))
    }

    fn gradients_on(
        &self,
        text: Input<'_>,
        output: EncoderOutput,
        mut on: On,
    ) -> Result<OutputGradients, GradientError> {
        let length = text.ids.len();
        self.embedding.check(text.ids, 0)?;
        expect_room(&[&self.stack], [length, 0], self.output())?;
        if text.global.is_some_and(|global| !global.is_empty()) || self.global.count(text.ids) > 0 {
            let what = "a model with global tokens, such as this one";
            return Err(GradientError::Unserved(what));
        }
        let (place, wanted) = match (output, self.purpose()) {
            (EncoderOutput::Token { place, token }, Some(Heads::MaskedTokens)) => (place, token),
            (EncoderOutput::Class(class), Some(Heads::Classes(labels)))
                if self.scores == ClassScores::Softmax && class < labels.len() =>
            {
                (0, class as u32)
            }
            _ => {
                let what = "a model whose head gives no probability to this output";
                return Err(GradientError::Unserved(what));
            }
        };
        if place >= length {
            return Err(BEYOND);
        }
        expect_known(self.output(), &[wanted])?;
        let mut embedded = vec![];
        self.embedding
            .embed(text.ids, text.types, 0, &mut embedded)?;
        let added = std::mem::take(&mut on.added);
        let (log_probability, own) = followed(added, || {
            let x = on.tensor(&embedded, [length, self.size()]);
            let state = on.stack(&self.stack, x, None).narrow(0, place, 1);
            log_probability(self.plain_outputs(&on, state), &[wanted])
        });
        Ok(OutputGradients {
            log_probability,
            source: vec![],
            own,
            cross: vec![],
        })
    }

    /// The last matrix of the head.
    fn output(&self) -> &Product {
        let own = self.head.as_ref().and_then(|head| head.output.as_ref());
        own.unwrap_or(&self.embedding.tokens)
    }

    /// The output of the head, of `states [rows, model]`: `[rows, outputs]`.
    fn plain_outputs(&self, on: &On, mut x: Tensor<2>) -> Tensor<2> {
        let Some(head) = &self.head else { return x };
        if let Some(dense) = &head.dense {
            x = on.product(dense, x);
            x = match head.activation {
                Some(activation) => activate_plain(activation, false, x),
                None => x.tanh(),
            };
        }
        x = on.norm(head.norm.as_ref(), x);
        let y = on.product(self.output(), x);
        match &self.output_bias {
            Some(bias) => y + on.tensor(bias, [1, bias.len()]),
            None => y,
        }
    }
}

impl Seq2SeqModel {
    /// The gradients of `log p` of `written`, with the mark that ends it if it has ended, after `source`. Changed heads are not heeded:
    /// they are those of the model as it is.
    ///
    /// # Errors
    /// Texts that are too long, or without tokens; a model that is too large; tokens that are not in the vocabulary.
    pub fn gradients(
        &self,
        source: &[u32],
        written: &[u32],
        device: &Device,
    ) -> Result<OutputGradients, GradientError> {
        self.gradients_on(source, written, On::new(device))
    }

    fn gradients_on(
        &self,
        source: &[u32],
        written: &[u32],
        mut on: On,
    ) -> Result<OutputGradients, GradientError> {
        let decoder = &self.decoder;
        if source.is_empty() || written.is_empty() {
            return Err(GradientError::Unserved("a text without tokens"));
        }
        self.embedding.check(source, 0)?;
        expect_known(decoder.output(), written)?;
        let lengths = [written.len(), source.len()];
        expect_room(&[&self.encoder, &decoder.stack], lengths, decoder.output())?;
        let before = &written[..written.len() - 1];
        let inputs: Vec<u32> = [self.writing.start].iter().chain(before).copied().collect();
        decoder.embedding.check(&inputs, 0)?;
        let (mut read, mut reads) = (vec![], vec![]);
        self.embedding.embed(source, &[], 0, &mut read)?;
        decoder.embedding.embed(&inputs, &[], 0, &mut reads)?;
        let added = std::mem::take(&mut on.added);
        let (log_probability, calls) = followed(added, || {
            let x = on.tensor(&read, [source.len(), self.encoder.sizes().model]);
            let states = on.stack(&self.encoder, x, None);
            let y = on.tensor(&reads, [inputs.len(), decoder.stack.sizes().model]);
            let written_states = on.stack(&decoder.stack, y, Some(&states));
            log_probability(decoder.plain_logits(&on, written_states), written)
        });
        let (of_source, rest) = calls.split_at(self.encoder.blocks().len());
        let every = |first: usize| -> Vec<WeightGradients> {
            rest.iter().skip(first).step_by(2).cloned().collect()
        };
        Ok(OutputGradients {
            log_probability,
            source: of_source.to_vec(),
            own: every(0),
            cross: every(1),
        })
    }
}

#[cfg(test)]
mod tests;
