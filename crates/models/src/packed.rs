//! A trained [`Stack`](regard_nn::transformer::Stack) prepared for inference: its weights packed for
//! [`regard_kernels::stack`], which multiplies by them at every step.

use burn::{nn::Linear, tensor::Tensor};
use regard_kernels::{
    norm::Kind,
    stack::{self, NormWeights, Norms, Product, RelativePositions, Rotation, Sizes, Stack},
};
use regard_nn::{
    bridge::OutputWeights,
    heads::{MultiHead, Projection, QueryKeyNorm},
    normalize::Normalize,
    position::{Layout, Position, RelativeBucketsConfig, Rotary},
    score::Score,
    transformer::{self, Block, Norm, NormPlace, Residual},
};

/// The packed weights of `stack`, if the kernel serves it: heads that score by the scaled dot product and normalise by softmax,
/// all alike, with rotary positions, biases by distance (ALiBi, T5's buckets) or none, without gates.
pub(crate) fn packed(stack: &transformer::Stack) -> Option<Stack> {
    let own = &stack.layers.first()?.attention;
    let head = own.head_size();
    let scale = |heads: &MultiHead| match &heads.attention.score {
        Score::ScaledDot(score) => Some(score.scale(head)),
        _ => None,
    };
    let softcap = own.attention.softcap();
    let usual = 1.0 / (head as f64).sqrt();
    let first = scale(own)?;
    let factor = (first != usual).then_some(first as f32);
    let sizes = Sizes {
        softcap: softcap.map(|softcap| softcap as f32),
        causal: stack.is_causal(),
        ..Sizes::new(
            own.output.weight.dims()[1],
            own.heads(),
            own.key_value_heads(),
            head,
        )
    };
    let serves = |heads: &MultiHead| {
        let attention = &heads.attention;
        scale(heads) == Some(first)
            && attention.softcap() == softcap
            && (heads.heads(), heads.key_value_heads()) == (sizes.heads, sizes.key_value_heads)
            && (heads.head_size(), heads.value_size()) == (head, head)
            && heads.talking_heads.is_none()
            && heads.gate.is_none()
            && attention.mask().is_all()
            && matches!(attention.normalize, Normalize::Softmax(_))
    };
    let (mut rotations, mut relative, mut alibi) = (vec![], vec![], None);
    for layer in &stack.layers {
        match &layer.attention.position {
            Some(Position::Buckets(buckets)) => {
                let table = numbers(buckets.table.val());
                relative.push(by_distance(buckets.config(), &table, sizes.heads));
            }
            Some(Position::Alibi(slopes)) => {
                alibi = Some(slopes.slopes().iter().map(|&slope| slope as f32).collect());
            }
            _ => {}
        }
    }
    let blocks = stack.layers.iter().map(|layer| {
        if !serves(&layer.attention) {
            return None;
        }
        let mut block = block(layer, factor, &serves, &mut rotations)?;
        // The kernel's window counts the keys on each side without the query's own position, but those of a causal stack with it.
        if !sizes.causal {
            block.attention.window = block
                .attention
                .window
                .map(|window| window.saturating_sub(1));
        }
        Some(block)
    });
    let blocks = blocks.collect::<Option<_>>()?;
    let last_norm = stack.norm.as_ref().map(norm);
    let mut packed = Stack::new(sizes, blocks, last_norm, rotations).ok()?;
    if !relative.is_empty() {
        packed = packed.with_relative(relative).ok()?;
    }
    match alibi {
        Some(slopes) => packed.with_alibi(slopes).ok(),
        None => Some(packed),
    }
}

/// What each distance adds to scores, of the numbers of its bucket, `table [buckets, heads]`.
pub(crate) fn by_distance(
    buckets: &RelativeBucketsConfig,
    table: &[f32],
    heads: usize,
) -> RelativePositions {
    let zero = buckets.max_distance;
    // In the order of the key's position less the query's.
    let after = if buckets.bidirectional { zero } else { 0 };
    let distances = -(zero as i64)..=after as i64;
    let rows: Vec<usize> = distances.map(|d| buckets.bucket(d) * heads).collect();
    let of_head = |head| rows.iter().map(move |row| table[row + head]);
    let values = (0..heads).flat_map(of_head).collect();
    RelativePositions { values, zero }
}

fn block(
    layer: &Block,
    scale: Option<f32>,
    serves: &impl Fn(&MultiHead) -> bool,
    rotations: &mut Vec<Rotation>,
) -> Option<stack::Block> {
    let own = &layer.attention;
    let Projection::Fused(joint) = &own.projection else {
        return None;
    };
    let rotation = match &own.position {
        None | Some(Position::Alibi(_) | Position::Buckets(_)) => None,
        Some(Position::Rotary(rotary)) if rotary.grid().is_none() => {
            Some(place_of(rotation(rotary), rotations))
        }
        Some(_) => return None,
    };
    let (query_norm, key_norm) = match &own.query_key_norm {
        None => (None, None),
        Some(QueryKeyNorm::Rms(norm)) => {
            let weights = |gain: &burn::module::Param<Tensor<1>>| NormWeights {
                kind: Kind::RootMeanSquare,
                weight: numbers(gain.val()),
                bias: None,
                epsilon: norm.epsilon(),
            };
            (Some(weights(&norm.query)), Some(weights(&norm.key)))
        }
        Some(QueryKeyNorm::L2(_)) => return None,
    };
    let cross = match (&layer.cross_attention, &layer.cross_block) {
        (Some(cross), Some(around)) => {
            let Projection::Separate(apart) = &cross.projection else {
                return None;
            };
            let plain = cross.position.is_none() && cross.query_key_norm.is_none();
            if !(serves(cross) && plain) {
                return None;
            }
            Some(stack::CrossAttention {
                query: product(&apart.query)?,
                key_value: side_by_side(&apart.key, &apart.value)?,
                output: product(&cross.output)?,
                scale,
                norms: norms(around),
            })
        }
        _ => None,
    };
    let inner = &layer.feed_forward;
    let parallel = layer.feed_forward_block.place() == NormPlace::Parallel;
    Some(stack::Block {
        attention: stack::SelfAttention {
            query_key_value: product(&joint.query_key_value)?,
            output: product(&own.output)?,
            query_norm,
            key_norm,
            scale,
            window: layer.window(),
            rotation,
            global: None,
            norms: norms(&layer.attention_block),
        },
        cross,
        feed_forward: stack::FeedForward {
            inner: product(&inner.inner)?,
            activation: inner.activation().kind(),
            gated: inner.activation().is_gated(),
            outer: product(&inner.outer)?,
            norms: match parallel {
                true => Norms::default(),
                false => norms(&layer.feed_forward_block),
            },
            parallel,
        },
    })
}

/// The packed output layer.
pub(crate) fn packed_output(output: OutputWeights) -> Option<Product> {
    let [rows, columns] = output.weight.dims();
    let bias = output.bias.map(numbers);
    match output.is_table {
        true => Product::transposed(&numbers(output.weight), columns, rows, bias).ok(),
        false => Product::new(&numbers(output.weight), rows, columns, bias).ok(),
    }
}

/// The place of `rotation` among `rotations`, where it is put if it is not there.
pub(crate) fn place_of(rotation: Rotation, rotations: &mut Vec<Rotation>) -> usize {
    let known = rotations.iter().position(|known| *known == rotation);
    known.unwrap_or_else(|| {
        rotations.push(rotation);
        rotations.len() - 1
    })
}

/// The frequencies of rotary positions.
pub(crate) fn rotation(rotary: &Rotary) -> Rotation {
    Rotation {
        frequencies: rotary.frequencies().to_vec(),
        factor: 1.0,
        interleaved: rotary.layout() == Layout::Interleaved,
        long: None,
    }
}

fn norms(residual: &Residual) -> Norms {
    let own = residual.norm.as_ref().map(norm);
    let inside = residual.after.as_ref().map(norm);
    match residual.place() {
        NormPlace::Post => Norms {
            after: own,
            ..Norms::default()
        },
        _ => Norms {
            before: own,
            inside,
            after: None,
        },
    }
}

/// The weights of a norm.
pub(crate) fn norm(norm: &Norm) -> NormWeights {
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

pub(crate) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter().collect()
}
