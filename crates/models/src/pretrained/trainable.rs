//! Models that others have trained, in the form of those that are trained here, so that training can begin with them: the inverse of
//! [`PackedText::of`].
//!
//! | there | here |
//! |---|---|
//! | the vector of token type 0 | added to every row of the table of positions |
//! | rows of positions that no token has (RoBERTa: up to that of padding) | left out |
//! | biases of some products only (Qwen 2) | biases of all, the others 0 |
//! | pooler and head | left out |

use std::ops::Range;

use burn::tensor::Device;
use regard_kernels::{
    matmul::Storage,
    norm::Kind,
    stack::{Block, NormWeights, Norms, Product, Rotation, Stack},
};
use regard_nn::{
    initialize::Initializer,
    position::RotaryConfig,
    transformer::{self, Activation, NormPlace},
    weights::{self, Array, Arrays},
};

use super::{
    embedding::{self, Embedding},
    encoder::TextEncoder,
    error::PretrainedError,
    families,
    folder::Folder,
    language_model::LanguageModel,
    rotary,
};
use crate::{
    ModelConfig, ModelError, Objective, Vocabulary,
    language::{TextTransformerConfig, TransformerLm, TransformerLmConfig},
    transformer::{Norm, Positions, RotaryScalingConfig},
};

/// The activations of the networks that are trained here.
pub(super) const ACTIVATIONS: [Activation; 9] = [
    Activation::Relu,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Silu,
    Activation::QuickGelu,
    Activation::Reglu,
    Activation::Geglu,
    Activation::GegluTanh,
    Activation::Swiglu,
];

/// The name of the table of tokens.
const TOKENS: &str = "transformer.tokens.weight";

/// Why a model cannot be trained here.
pub(super) type Refused = String;

/// What training begins with.
#[derive(Debug, Clone)]
pub struct Trainable {
    /// Sizes and choices; dropout is that of the default.
    pub transformer: TextTransformerConfig,
    /// The most tokens that it reads: as many as its table of positions has rows, if it has one.
    pub context: usize,
    /// Whether a token sees only itself and those before it.
    pub causal: bool,
    /// The weights `transformer.*` of a [`TransformerLm`](crate::language::TransformerLm), and those of its output layer where a
    /// causal model has one of its own.
    pub arrays: Arrays,
}

impl Trainable {
    /// Reads an encoder's or a language model's folder. A `<pad>` inside a text takes a position then, which it does not in RoBERTa.
    ///
    /// # Errors
    /// [`PretrainedError`]; also for a model with a part that [`TextTransformerConfig`] has no key for, such as logits with a softcap,
    /// rotary angles that depend on the length of a text, global tokens, or blocks that differ otherwise than in turns of windows.
    pub fn open(folder: &Folder) -> Result<Self, PretrainedError> {
        let (family, storage) = (families::of(folder)?, Some(Storage::F32));
        let config = folder.config();
        let refused = |problem| PretrainedError::malformed(config.path(), problem);
        if family.encoder.is_some() {
            let encoder = TextEncoder::open(folder, storage)?;
            return Self::of(&encoder.embedding, &encoder.stack, None).map_err(refused);
        }
        if family.language_model.is_none() {
            let expected = "a family of encoders or of language models, such as bert or gpt2";
            return Err(config.refuse("model_type", expected));
        }
        let model = LanguageModel::open(folder, storage)?;
        let stated = match model.stack.rotations().is_empty() {
            true => None,
            false => rotary::stated(config, model.stack.sizes().head)?,
        };
        let found = Self::of(&model.embedding, &model.stack, stated.as_ref());
        let mut found = found.map_err(refused)?;
        if model.softcap.is_some() || model.output_scale != 1.0 {
            let problem = unlike("its logits have a softcap or a factor");
            return Err(PretrainedError::malformed(config.path(), problem));
        }
        if let Some(output) = &model.output {
            product(&mut found.arrays, "output", output, true).map_err(refused)?;
        }
        Ok(found)
    }

    /// The model itself on `device`, as one that is trained here: a language model from left to right, or over masked words, of which the
    /// output layer shares the word vectors where there is no other.
    ///
    /// # Errors
    /// [`ModelError`] for weights that do not fit [`transformer`](Self::transformer).
    pub fn language_model(self, device: &Device) -> Result<TransformerLm, ModelError> {
        let vocabulary = Vocabulary::new(self.vocabulary());
        let mut arrays = self.arrays;
        let tie = !arrays.contains_key("output.weight");
        if tie {
            let (shape, values) = (vec![vocabulary.size], vec![0.0; vocabulary.size]);
            arrays.insert("output_bias".to_owned(), Array { shape, values });
        }
        let config = TransformerLmConfig {
            objective: objective(self.causal),
            context: self.context,
            tie,
            transformer: self.transformer,
        };
        let model = config.without_values(&vocabulary, &arrays, device)?;
        weights::apply(model, arrays).map_err(|error| ModelError(error.to_string()))
    }

    /// How many tokens it has vectors for.
    pub fn vocabulary(&self) -> usize {
        let table = self.arrays.get(TOKENS);
        table.map_or(0, |table| table.shape[0])
    }

    /// The same for a vocabulary of `size` tokens: rows of tokens beyond it are left out, or added as zeros.
    #[must_use]
    pub fn with_vocabulary(mut self, size: usize) -> Self {
        if let Some(table) = self.arrays.get_mut(TOKENS) {
            let width = self.transformer.d_model;
            table.values.resize(size * width, 0.0);
            table.shape = vec![size, width];
        }
        for name in ["output.weight", "output.bias"] {
            let Some(array) = self.arrays.get_mut(name) else {
                continue;
            };
            if let Some(columns) = array.shape.last_mut() {
                let rows = array.values.chunks(*columns);
                let fitted = |row: &[f32]| {
                    let mut row = row.to_vec();
                    row.resize(size, 0.0);
                    row
                };
                array.values = rows.flat_map(fitted).collect();
                *columns = size;
            }
        }
        self
    }

    /// `stated` is what its files say of rotary positions.
    fn of(
        embedding: &Embedding,
        stack: &Stack,
        stated: Option<&RotaryConfig>,
    ) -> Result<Self, Refused> {
        let transformer = config(embedding, stack, stated)?;
        let mut arrays = Arrays::new();
        let [width, tokens] = embedding.tokens.sizes();
        let context = embedding.context;
        let table = |to: &mut Arrays, name: &str, values, rows| {
            let shape = vec![rows, width];
            to.insert(name.to_owned(), Array { shape, values });
        };
        let values = rows(&embedding.tokens, 0..tokens)?;
        table(&mut arrays, TOKENS, values, tokens);
        if let embedding::Positions::Table { table: all, first } = &embedding.positions {
            let mut values = rows(all, *first..first.saturating_add(context))?;
            if let Some(types) = &embedding.types {
                let first = rows(types, 0..1)?;
                let add = |row: &mut [f32]| row.iter_mut().zip(&first).for_each(|(x, y)| *x += y);
                values.chunks_mut(width.max(1)).for_each(add);
            }
            let name = "transformer.positions.table.weight";
            table(&mut arrays, name, values, context);
        }
        norm(&mut arrays, "transformer.norm", embedding.norm.as_ref());
        blocks(&mut arrays, "transformer.stack.", stack, transformer.bias)?;
        Ok(Self {
            transformer,
            context,
            causal: stack.sizes().causal,
            arrays,
        })
    }
}

/// The blocks of a stack, and its last norm, on `device`, as those of a model that is trained here.
///
/// # Errors
/// A part that no such model has.
pub(super) fn stack_on(device: &Device, stack: &Stack) -> Result<transformer::Stack, Refused> {
    let config = config_of_stack(stack, None)?;
    let mut arrays = Arrays::new();
    blocks(&mut arrays, "", stack, config.bias)?;
    let objective = objective(stack.sizes().causal);
    let drawn = config.draw_stack(objective, &mut Initializer::deferred(device));
    let drawn = drawn.map_err(|error| error.to_string())?;
    weights::apply(drawn, arrays).map_err(|error| error.to_string())
}

/// What a model whose tokens see only those before them, or all, is trained for.
fn objective(causal: bool) -> Objective {
    match causal {
        true => Objective::Causal,
        false => Objective::Masked,
    }
}

/// Adds the weights of a stack, whose names begin with `prefix`; with a `bias` every product has one.
pub(super) fn blocks(
    to: &mut Arrays,
    prefix: &str,
    stack: &Stack,
    bias: bool,
) -> Result<(), Refused> {
    for (layer, block) in stack.blocks().iter().enumerate() {
        let at = |part: &str| format!("{prefix}layers.{layer}.{part}");
        let (own, inner) = (&block.attention, &block.feed_forward);
        for (part, matrix) in [
            (
                "attention.projection.Fused.query_key_value",
                &own.query_key_value,
            ),
            ("attention.output", &own.output),
            ("feed_forward.inner", &inner.inner),
            ("feed_forward.outer", &inner.outer),
        ] {
            product(to, &at(part), matrix, bias)?;
        }
        for (part, norms) in [
            ("attention_block", &own.norms),
            ("feed_forward_block", &inner.norms),
        ] {
            let main = norms.before.as_ref().or(norms.after.as_ref());
            norm(to, &at(&format!("{part}.norm")), main);
            let after = norms.inside.as_ref();
            norm(to, &at(&format!("{part}.after")), after);
        }
        for (part, norm) in [("query", &own.query_norm), ("key", &own.key_norm)] {
            if let Some(norm) = norm {
                let name = at(&format!("attention.query_key_norm.Rms.{part}"));
                to.insert(name, vector(&norm.weight));
            }
        }
    }
    norm(to, &format!("{prefix}norm"), stack.last_norm());
    Ok(())
}

fn unlike(what: &str) -> Refused {
    format!("{what}, which no model that is trained here has")
}

/// The configuration of a model with these embeddings and blocks.
fn config(
    embedding: &Embedding,
    stack: &Stack,
    stated: Option<&RotaryConfig>,
) -> Result<TextTransformerConfig, Refused> {
    let config = config_of_stack(stack, stated)?;
    expect_kind(&config, embedding.norm.as_ref())?;
    let positions = match (&embedding.positions, config.positions) {
        (embedding::Positions::Table { .. }, Positions::Learned) => Positions::Learned,
        (embedding::Positions::None, Positions::Rotary) => Positions::Rotary,
        _ => return Err(unlike("positions are neither a table nor rotary")),
    };
    if embedding.types.is_some() && positions != Positions::Learned {
        return Err(unlike(
            "it has types of tokens without a table of positions",
        ));
    }
    Ok(TextTransformerConfig {
        embedding_scale: embedding.scale.into(),
        embedding_norm: embedding.norm.is_some(),
        positions,
        ..config
    })
}

/// The configuration of blocks that are alike, with the norm after them.
fn config_of_stack(
    stack: &Stack,
    stated: Option<&RotaryConfig>,
) -> Result<TextTransformerConfig, Refused> {
    let blocks = stack.blocks().iter();
    let configs = blocks.map(|block| config_of_block(block, stack, stated));
    let configs = configs.collect::<Result<Vec<_>, _>>()?;
    let first = config_of_layers(&configs)?;
    if stack.has_distances() {
        return Err(unlike("its distances add to scores"));
    }
    expect_kind(&first, stack.last_norm())?;
    if stack.last_norm().is_some() == (first.norm_place == NormPlace::Post) {
        return Err(unlike(
            "it has a norm too many or too few after its last block",
        ));
    }
    Ok(TextTransformerConfig {
        layers: stack.blocks().len(),
        ..first
    })
}

/// One configuration for blocks that are alike, or of which every so many see all, and the others a window.
fn config_of_layers(layers: &[TextTransformerConfig]) -> Result<TextTransformerConfig, Refused> {
    let Some(first) = layers.first() else {
        return Err("it has no blocks".to_owned());
    };
    let full = layers.iter().position(|layer| layer.window.is_none());
    let found = match full.filter(|at| *at > 0) {
        Some(at) => {
            let (all, angles) = (&layers[at], |of: &TextTransformerConfig| {
                (of.rotary_base, of.rotary_scaling.clone())
            });
            TextTransformerConfig {
                window: first.window,
                full_every: Some(at + 1),
                window_rotary_base: (angles(first) != angles(all)).then_some(first.rotary_base),
                ..all.clone()
            }
        }
        None => first.clone(),
    };
    let layer = |at: usize| {
        let sees_all = found
            .full_every
            .is_some_and(|every| (at + 1).is_multiple_of(every));
        let (windowed, base) = (!sees_all, found.window_rotary_base.filter(|_| !sees_all));
        TextTransformerConfig {
            window: found.window.filter(|_| windowed),
            full_every: None,
            window_rotary_base: None,
            rotary_base: base.unwrap_or(found.rotary_base),
            rotary_scaling: match base {
                Some(_) => RotaryScalingConfig::None,
                None => found.rotary_scaling.clone(),
            },
            ..found.clone()
        }
    };
    match layers
        .iter()
        .enumerate()
        .all(|(at, found)| *found == layer(at))
    {
        true => Ok(found),
        false => Err(unlike(
            "its blocks differ (in windows, factors, rotary positions, biases or norms)",
        )),
    }
}

/// Refuses a norm unlike those of the blocks.
fn expect_kind(config: &TextTransformerConfig, norm: Option<&NormWeights>) -> Result<(), Refused> {
    match norm {
        Some(norm) if kind(norm) != (config.norm, config.norm_epsilon) => {
            Err(unlike("its norms are not all of one kind"))
        }
        _ => Ok(()),
    }
}

/// The keys that a block shows; positions are rotary, or [`Positions::Learned`] for all that do not act in attention.
fn config_of_block(
    block: &Block,
    stack: &Stack,
    stated: Option<&RotaryConfig>,
) -> Result<TextTransformerConfig, Refused> {
    let (sizes, own, inner) = (stack.sizes(), &block.attention, &block.feed_forward);
    if own.global.is_some() {
        return Err(unlike("it has global tokens with projections of their own"));
    }
    if block.cross.is_some() {
        return Err(unlike("its blocks read a source"));
    }
    let place = place(&own.norms).filter(|found| Some(*found) == place(&inner.norms));
    let norms = [&own.norms, &inner.norms];
    let norms = norms.map(|norms| [&norms.before, &norms.inside, &norms.after]);
    let mut kinds = norms
        .iter()
        .flatten()
        .filter_map(|norm| norm.as_ref().map(kind));
    let (Some(norm_place), Some((norm, norm_epsilon))) = (place, kinds.next()) else {
        return Err(unlike(
            "its norms stand neither before nor after the parts of a block",
        ));
    };
    if kinds.any(|kind| kind != (norm, norm_epsilon)) {
        return Err(unlike("its norms are not all of one kind"));
    }
    let query_key_norm = match [&own.query_norm, &own.key_norm] {
        [None, None] => false,
        [Some(query), Some(key)] if [query, key].map(kind) == [(Norm::Rms, norm_epsilon); 2] => {
            true
        }
        _ => {
            return Err(unlike(
                "queries and keys do not both have RMS norms with the epsilon of the others",
            ));
        }
    };
    let wanted = (inner.activation, inner.gated);
    let known = ACTIVATIONS
        .into_iter()
        .find(|one| (one.kind(), one.is_gated()) == wanted);
    let rotation = own.rotation.map(|place| &stack.rotations()[place]);
    let rotary = rotation.map(|rotation| rotary_of(rotation, sizes.head, stated));
    let rotary = rotary.transpose()?;
    let products = [
        &own.query_key_value,
        &own.output,
        &inner.inner,
        &inner.outer,
    ];
    let [feed_forward, _] = inner.outer.sizes();
    let usual = TextTransformerConfig::default();
    let usual_scale = (1.0 / (sizes.head as f64).sqrt()) as f32;
    Ok(TextTransformerConfig {
        d_model: sizes.model,
        heads: sizes.heads,
        key_value_heads: (sizes.key_value_heads != sizes.heads).then_some(sizes.key_value_heads),
        head_size: (sizes.head * sizes.heads != sizes.model).then_some(sizes.head),
        feed_forward: Some(feed_forward),
        activation: known.ok_or_else(|| unlike("its activation is another"))?,
        norm,
        norm_epsilon,
        norm_place,
        positions: match rotary {
            Some(_) => Positions::Rotary,
            None => Positions::Learned,
        },
        rotary_base: rotary.map_or(usual.rotary_base, |rotary| rotary.base),
        rotary_scaling: rotary.map_or(usual.rotary_scaling, |rotary| rotary.scaling.into()),
        // On both sides the kernel's window does not count the token itself, and the configuration's does.
        window: own.window.map(|window| match sizes.causal {
            true => window,
            false => window + 1,
        }),
        bias: products.iter().any(|product| product.bias().is_some()),
        query_key_norm,
        softcap: sizes.softcap.map(f64::from),
        score_scale: own
            .scale
            .filter(|scale| *scale != usual_scale)
            .map(f64::from),
        ..TextTransformerConfig::default()
    })
}

fn place(norms: &Norms) -> Option<NormPlace> {
    match (&norms.before, &norms.inside, &norms.after) {
        (Some(_), None, None) => Some(NormPlace::Pre),
        (Some(_), Some(_), None) => Some(NormPlace::Both),
        (None, None, Some(_)) => Some(NormPlace::Post),
        _ => None,
    }
}

fn kind(norm: &NormWeights) -> (Norm, f64) {
    let kind = match norm.kind {
        Kind::Layer => Norm::Layer,
        Kind::RootMeanSquare => Norm::Rms,
    };
    (kind, norm.epsilon)
}

/// Base and scaling that give a head's angles: those `stated`, or an unscaled base.
fn rotary_of(
    rotation: &Rotation,
    head: usize,
    stated: Option<&RotaryConfig>,
) -> Result<RotaryConfig, Refused> {
    let found = &rotation.frequencies;
    let pairs = found.len() as f64;
    let base = match found.last() {
        // As configurations write it.
        Some(last) if pairs > 1.0 => (last.powf(pairs / (1.0 - pairs)) * 1e3).round() / 1e3,
        _ => TextTransformerConfig::default().rotary_base,
    };
    let unscaled = RotaryConfig {
        base,
        ..RotaryConfig::new(head)
    };
    let gives = |config: &RotaryConfig| {
        config.size == head
            && config.init().is_ok_and(|rotary| {
                let mut pairs = rotary.frequencies().iter().zip(found);
                rotary.frequencies().len() == found.len()
                    && pairs.all(|(a, b)| (a / b - 1.0).abs() < 1e-9)
            })
    };
    let known = stated.copied().into_iter().chain([unscaled]).find(gives);
    match known {
        Some(known)
            if rotation.factor == 1.0 && !rotation.interleaved && rotation.long.is_none() =>
        {
            Ok(known)
        }
        _ => Err(unlike(
            "its rotary positions are scaled by the length of a text or for each pair, or on a part of a head",
        )),
    }
}

/// Rows of a table of embeddings, one after another.
fn rows(table: &Product, wanted: Range<usize>) -> Result<Vec<f32>, Refused> {
    let [width, rows] = table.sizes();
    if wanted.end > rows || wanted.is_empty() {
        return Err(format!(
            "a table of {rows} rows; expected one with the rows {wanted:?}"
        ));
    }
    let mut values = vec![0.0; wanted.len() * width];
    for (row, to) in wanted.zip(values.chunks_exact_mut(width.max(1))) {
        table.column(row, to).map_err(|error| error.to_string())?;
    }
    Ok(values)
}

/// Adds `{name}.weight [inner, outputs]`, and with a `bias` `{name}.bias`, 0 if the product has none.
pub(super) fn product(
    to: &mut Arrays,
    name: &str,
    product: &Product,
    bias: bool,
) -> Result<(), Refused> {
    let [inner, outputs] = product.sizes();
    let mut values = vec![0.0; inner * outputs];
    let mut column = vec![0.0; inner];
    for output in 0..outputs {
        let read = product.column(output, &mut column);
        read.map_err(|error| error.to_string())?;
        let places = values[output..].iter_mut().step_by(outputs);
        places.zip(&column).for_each(|(to, x)| *to = *x);
    }
    let shape = vec![inner, outputs];
    to.insert(format!("{name}.weight"), Array { shape, values });
    if bias {
        let values = product
            .bias()
            .map_or_else(|| vec![0.0; outputs], <[f32]>::to_vec);
        let shape = vec![outputs];
        to.insert(format!("{name}.bias"), Array { shape, values });
    }
    Ok(())
}

/// Adds a norm's `{name}.weight`, and `{name}.bias` for layer norm.
pub(super) fn norm(to: &mut Arrays, name: &str, norm: Option<&NormWeights>) {
    let Some(norm) = norm else {
        return;
    };
    let parts = [("weight", Some(&norm.weight)), ("bias", norm.bias.as_ref())];
    for (end, values) in parts {
        if let Some(values) = values {
            to.insert(format!("{name}.{end}"), vector(values));
        }
    }
}

fn vector(values: &[f32]) -> Array {
    Array {
        shape: vec![values.len()],
        values: values.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::Trainable;
    use crate::{
        ModelConfig, Objective, TextModel, Vocabulary,
        language::{TextTransformerConfig, TransformerLmConfig},
        pretrained::PackedText,
        transformer::{Norm, Positions},
    };

    /// The configuration of a packed model is found again, though the kernel counts a window on both sides otherwise.
    #[test]
    fn packed_models_have_their_configuration() {
        for objective in [Objective::Causal, Objective::Masked] {
            let mut config = TransformerLmConfig {
                objective,
                ..TransformerLmConfig::tiny()
            };
            let chosen = &mut config.transformer;
            chosen.window = Some(4);
            chosen.full_every = Some(2);
            chosen.window_rotary_base = Some(50.0);
            chosen.embedding_scale = 3.0;
            chosen.score_scale = Some(0.25);
            chosen.query_key_norm = true;
            chosen.softcap = Some(0.3);
            chosen.norm = Norm::Rms;
            chosen.positions = Positions::Rotary;
            let wanted = chosen.clone();
            let model = config.init(&Vocabulary::new(20), 1, &Device::flex());
            let found = match model.unwrap().pack() {
                Some(PackedText::Writes(packed)) => {
                    Trainable::of(&packed.embedding, &packed.stack, None)
                }
                Some(PackedText::Reads(packed)) => {
                    Trainable::of(&packed.embedding, &packed.stack, None)
                }
                None => panic!("a kernel serves the model"),
            };
            let found = found.unwrap().transformer;
            let softcap = found.softcap.unwrap();
            assert!((softcap - 0.3).abs() < 1e-7, "{objective:?}");
            let found = TextTransformerConfig {
                softcap: wanted.softcap, // in 32 bits there
                feed_forward: None,
                dropout: wanted.dropout.clone(),
                ..found
            };
            assert_eq!(found, wanted, "{objective:?}");
        }
    }
}
