//! Multi-head layers and Transformer stacks: whole, by both paths, each sentence alone, and token by token from a cache.

use burn::tensor::{DType, Device, Tensor};
use regard_nn::{
    Attention, AttentionError, AttentionOptions, Observe, Path,
    bridge::without_kernels,
    cache::KeyValueCache,
    dropout::DropoutRng,
    heads::{Gate, MultiHead, MultiHeadConfig, ProjectionLayout, QueryKeyNormKind},
    initialize::Initializer,
    mask::{Alignment, Grid, Mask},
    normalize::Normalize,
    position::{
        Layout, Learned, PositionConfig, RelativeBucketsConfig, RotaryConfig, Scaling, Sinusoidal,
    },
    score::{ScaledDot, Score},
    transformer::{Activation, NormConfig, NormPlace, StackConfig, StackDropout, StackOptions},
};

use crate::{
    Outcome,
    compare::{close, dims, finite},
    dice::Dice,
    mechanism,
    tensors::{Input, Spread, largest, length, numbers},
};

fn position(dice: &mut Dice) -> PositionConfig {
    match dice.below(7) {
        0 => PositionConfig::Rotary(RotaryConfig {
            size: dice.pick(&[2, 2, 2, 4, 3, 0]),
            layout: dice.pick(&[Layout::HalfSplit, Layout::Interleaved]),
            scaling: dice.pick(&[
                Scaling::None,
                Scaling::Linear { factor: 2.0 },
                Scaling::Ntk { factor: 4.0 },
                Scaling::Llama3 {
                    factor: 8.0,
                    low_frequency_factor: 1.0,
                    high_frequency_factor: 4.0,
                    original_length: 16,
                },
            ]),
            ..RotaryConfig::new(2)
        }),
        1 => PositionConfig::Alibi,
        2 => PositionConfig::Buckets(RelativeBucketsConfig {
            buckets: dice.pick(&[4, 8, 32, 3]),
            max_distance: 3 + dice.below(20),
            bidirectional: dice.once_in(2),
        }),
        3 => PositionConfig::Relative {
            max_distance: dice.below(5),
            values: dice.once_in(2),
        },
        _ => PositionConfig::None,
    }
}

fn config(dice: &mut Dice) -> MultiHeadConfig {
    let heads = dice.pick(&[1, 2, 2, 4, 6]);
    let size = dice.pick(&[2, 4, 4, 3]);
    MultiHeadConfig {
        key_value_heads: dice.pick(&[1, heads, heads, 2]),
        source_size: (dice.once_in(6)).then(|| 1 + dice.below(9)),
        head_size: (dice.once_in(5)).then(|| dice.below(5)),
        value_size: (dice.once_in(5)).then(|| 1 + dice.below(5)),
        projection: dice.pick(&[ProjectionLayout::Separate, ProjectionLayout::Fused]),
        input_bias: dice.once_in(2),
        output_bias: dice.once_in(2),
        position: position(dice),
        query_key_norm: dice.once_in(5).then(|| {
            dice.pick(&[
                QueryKeyNormKind::Rms { epsilon: 1e-6 },
                QueryKeyNormKind::L2 { length: 16 },
                QueryKeyNormKind::L2 { length: 1 },
            ])
        }),
        talking_heads: dice.once_in(8),
        gate: dice
            .once_in(6)
            .then(|| dice.pick(&[Gate::Headwise, Gate::Elementwise])),
        ..MultiHeadConfig::new(heads * size, heads)
    }
}

fn layer(dice: &mut Dice, mask: Mask, device: &Device) -> Result<MultiHead, AttentionError> {
    let config = config(dice);
    let init = &mut Initializer::new(dice.next(), device);
    let score = match dice.below(4) {
        0 => Score::dot(),
        1 => Score::ScaledDot(ScaledDot::with_scale(0.5)),
        _ => Score::scaled_dot(),
    };
    let mut attention = Attention::new(score).with_mask(mask);
    if dice.once_in(8) {
        attention = attention.with_normalize(Normalize::sparsemax());
    }
    if dice.once_in(8) {
        attention = attention.with_softcap(5.0);
    }
    config.init_with(attention, init)
}

/// The allowed rounding: relative to the largest number.
fn rounding(of: &[f64]) -> f64 {
    2e-4 * (1.0 + largest(of.iter().copied()))
}

pub fn case(dice: &mut Dice) -> Outcome {
    let device = match dice.once_in(3) {
        true => Device::flex(),
        false => Device::flex().autodiff(),
    };
    if dice.once_in(5) {
        return stack(dice, &device);
    }
    if dice.once_in(12) {
        return embeddings(dice, &device);
    }
    let batch = if dice.once_in(20) {
        0
    } else {
        1 + dice.below(3)
    };
    let (queries, keys) = (length(dice), length(dice));
    let cross = dice.once_in(3);
    let keys = if cross { keys } else { queries };
    let Ok(layer) = layer(dice, Mask::all(), &device) else {
        return Ok("layer refused");
    };
    let grid = Grid {
        batch,
        heads: layer.heads(),
        queries,
        keys,
        first_query: 0,
        first_key: 0,
    };
    let mask = match dice.once_in(2) {
        true => mechanism::mask(dice, &grid, 1, &device),
        false => Some(Mask::all()),
    };
    let Some(mask) = mask else {
        return Ok("no mask of such sizes");
    };
    let spread = dice.pick(&[
        Spread::Moderate,
        Spread::Moderate,
        Spread::Moderate,
        Spread::Wild,
    ]);
    // Sometimes a size or a precision that does not fit.
    let model = layer.output.weight.dims()[1] + usize::from(dice.once_in(60));
    let source_size = match &layer.projection {
        regard_nn::heads::Projection::Separate(separate) => separate.key.weight.dims()[0],
        regard_nn::heads::Projection::Fused(_) => model,
    };
    let dtype = if dice.once_in(60) {
        DType::F64
    } else {
        DType::F32
    };
    let number = |dice: &mut Dice| spread.number(dice);
    let x = Input::new(dice, [batch, queries, model], number);
    let other_batch = batch + usize::from(dice.once_in(60));
    let y = Input::new(dice, [other_batch, keys, source_size], number);
    let bias = dice.once_in(6).then(|| {
        Input::new(dice, [1, 1, queries, keys], |dice| {
            Spread::Moderate.bias(dice)
        })
    });
    let run = |path: Path, observe: Observe, rows: Option<usize>| {
        let row = |x: Tensor<3>| match rows {
            Some(row) => x.narrow(0, row, 1),
            None => x,
        };
        let (leaf, source) = (x.leaf(dtype, &device), y.leaf(DType::F32, &device));
        let mut call = AttentionOptions::new(observe).path(path);
        if rows.is_none() {
            call = call.mask(mask.clone());
        }
        call.bias = bias.as_ref().map(|bias| bias.leaf(DType::F32, &device));
        let read = match cross {
            true => layer.forward_cross(row(leaf.clone()), row(source), call),
            false => layer.forward(row(leaf.clone()), call),
        }?;
        let mut slope = vec![];
        if device.is_autodiff() {
            let all = read.output.clone().sum().backward();
            slope = leaf
                .grad(&all)
                .map(|slope| numbers(&slope))
                .unwrap_or_default();
        }
        Ok::<_, AttentionError>((read, slope))
    };
    let (auto, plain) = (
        run(Path::Auto, Observe::Nothing, None),
        without_kernels(|| run(Path::Plain, Observe::Nothing, None)),
    );
    let (auto, plain) = match (auto, plain) {
        (Ok(auto), Ok(plain)) => (auto, plain),
        (Err(_), Err(_)) => return Ok("heads refused"),
        (auto, plain) => {
            let [auto, plain] = [auto, plain].map(|run| run.err().map(|error| error.to_string()));
            return Err(format!("one path refuses: auto {auto:?}, plain {plain:?}"));
        }
    };
    dims("output", auto.0.output.dims(), [batch, queries, model])?;
    let found = numbers(&auto.0.output);
    let observed = run(Path::Auto, Observe::Weights, None).map_err(|error| error.to_string())?;
    let weights = observed.0.attended.weights.as_ref().ok_or("no weights")?;
    dims(
        "weights",
        weights.dims(),
        [batch, layer.heads(), queries, keys],
    )?;
    if spread == Spread::Wild {
        return Ok("heads on any numbers");
    }
    finite("output", &found)?;
    let tolerance = rounding(&found);
    let expected = numbers(&plain.0.output);
    close("output by both paths", &found, &expected, tolerance)?;
    close(
        "observed output",
        &numbers(&observed.0.output),
        &found,
        tolerance,
    )?;
    if !auto.1.is_empty() && !plain.1.is_empty() {
        close(
            "slope by both paths",
            &auto.1,
            &plain.1,
            4.0 * rounding(&plain.1),
        )?;
        close(
            "observed slope",
            &observed.1,
            &plain.1,
            4.0 * rounding(&plain.1),
        )?;
    }
    if mask.is_all() && batch > 0 && queries * keys > 0 {
        let row = dice.below(batch);
        let alone =
            run(Path::Auto, Observe::Nothing, Some(row)).map_err(|error| error.to_string())?;
        let each = queries * model;
        close(
            "row alone",
            &numbers(&alone.0.output),
            &found[row * each..][..each],
            tolerance,
        )?;
    }
    Ok("heads compared")
}

/// Whether there is a position all of whose features are one number.
fn has_equal_features(x: &Input<3>) -> bool {
    numbers(&x.leaf(DType::F32, &Device::flex()))
        .chunks(x.shape[2].max(1))
        .any(|features| features.iter().all(|x| x == &features[0]))
}

/// Encoder and decoder: by both paths, observed, step by step.
fn stack(dice: &mut Dice, device: &Device) -> Outcome {
    let heads = dice.pick(&[1, 2, 4]);
    let model = heads * dice.pick(&[2, 4]);
    let config = StackConfig {
        key_value_heads: dice.pick(&[1, heads, 3]),
        feed_forward: dice.below(9),
        activation: dice.pick(&[
            Activation::Relu,
            Activation::GeluTanh,
            Activation::Silu,
            Activation::QuickGelu,
            Activation::Geglu,
            Activation::Swiglu,
        ]),
        norm: dice.pick(&[
            NormConfig::Layer { epsilon: 1e-5 },
            NormConfig::Rms { epsilon: 1e-5 },
        ]),
        norm_place: dice.pick(&[NormPlace::Pre, NormPlace::Post, NormPlace::Both]),
        position: position(dice),
        window: dice.once_in(3).then(|| mechanism::distance(dice)),
        biases: dice.once_in(2).into(),
        head_size: dice.once_in(4).then(|| dice.below(5)),
        softcap: dice.once_in(4).then(|| dice.pick(&[0.0, 2.0, 50.0])),
        dropout: match dice.once_in(8) {
            true => StackDropout {
                residual: dice.pick(&[0.1, 1.0, -1.0, f64::NAN]),
                ..StackDropout::default()
            },
            false => StackDropout::default(),
        },
        ..StackConfig::new(model, heads)
    };
    let layers = dice.below(3);
    let init = &mut Initializer::new(dice.next(), device);
    let (Ok(encoder), Ok(decoder)) = (config.encoder(layers, init), config.decoder(layers, init))
    else {
        return Ok("stack refused");
    };
    let batch = if dice.once_in(20) {
        0
    } else {
        1 + dice.below(2)
    };
    let (time, positions) = (length(dice).min(12), length(dice).min(12));
    let width = model + usize::from(dice.once_in(40));
    let number = |dice: &mut Dice| dice.number(2.0);
    let x = Input::new(dice, [batch, time, width], number);
    let source = Input::new(dice, [batch, positions, width], number);
    // For equal features, a norm leaves only rounding errors, multiplied by `1 / √ε` (316); and a stack has one norm after
    // another.
    let flat = [&x, &source].into_iter().any(has_equal_features);
    let keep = mechanism::padding(dice, batch, positions, device);
    let padding = Mask::padding(keep);
    let options = StackOptions::default();
    let options = options.mask(padding.clone()).source_mask(padding);
    let of_source = StackOptions {
        mask: Mask::all(),
        ..options.clone()
    };
    let noise = &mut DropoutRng::none();
    let leaf = source.leaf(DType::F32, device);
    let encoded = encoder.forward(leaf.clone(), None, &options, noise);
    let plain = without_kernels(|| encoder.forward(leaf, None, &options, &mut DropoutRng::none()));
    let (encoded, plain) = match (encoded, plain) {
        (Ok(encoded), Ok(plain)) => (encoded, plain),
        (Err(_), Err(_)) => return Ok("stack's input refused"),
        _ => return Err("only one path of the encoder refuses".to_owned()),
    };
    let found = numbers(&encoded.states);
    dims("encoded", encoded.states.dims(), [batch, positions, width])?;
    if flat {
        return Ok("stack of equal features");
    }
    close(
        "encoded by both paths",
        &found,
        &numbers(&plain.states),
        4.0 * rounding(&found),
    )?;
    let x = x.leaf(DType::F32, device);
    let whole = decoder.forward(x.clone(), Some(encoded.states.clone()), &of_source, noise);
    let whole =
        whole.map_err(|error| format!("decoder refuses what the encoder takes: {error}"))?;
    let whole = numbers(&whole.states);
    let mut cache = decoder
        .cache(Some(encoded.states))
        .map_err(|error| error.to_string())?;
    let (mut at, mut pieces) = (0, vec![]);
    while at < time {
        let count = (1 + dice.below(3)).min(time - at);
        let next = decoder.forward_cached(x.clone().narrow(1, at, count), &mut cache, &of_source);
        let next = next.map_err(|error| format!("cached decoder: {error}"))?;
        pieces.push(next.states);
        at += count;
    }
    if !pieces.is_empty() {
        let stepped = numbers(&Tensor::cat(pieces, 1));
        close(
            "decoded step by step",
            &stepped,
            &whole,
            4.0 * rounding(&whole),
        )?;
    }
    finite("decoded", &whole)?;
    Ok("stack compared")
}

/// A layer that reads its own past: all at once, and in pieces from a cache.
pub fn cached(dice: &mut Dice) -> Outcome {
    let device = Device::flex();
    let alignment = dice.pick(&[Alignment::LowerRight, Alignment::UpperLeft]);
    let mask = match dice.below(12) {
        0 => Mask::chunked(1 + dice.below(4), dice.below(3)).ok(),
        1 => Mask::block(1 + dice.below(4)).ok(),
        2 => Some(Mask::global(&[dice.below(4)])),
        3 => Mask::longformer(1 + dice.below(3), 1 + dice.below(2), &[dice.below(4)]).ok(),
        4 => Mask::dilated_window(1 + dice.below(3), 1 + dice.below(3)).ok(),
        5 => Mask::window_aligned(1 + dice.below(4), 1, alignment).ok(),
        6 => Some(Mask::local_monotonic(dice.below(4))),
        7 => Some(Mask::prefix(&[dice.below(4)])),
        8 => Mask::chunked(mechanism::distance(dice), mechanism::distance(dice)).ok(),
        _ => Some(Mask::all()),
    };
    let Some(mask) = mask else {
        return Ok("no mask of such sizes");
    };
    let Ok(layer) = layer(dice, mask, &device) else {
        return Ok("layer refused");
    };
    let window = dice.once_in(2).then(|| mechanism::distance(dice));
    let cache = match window {
        None => Ok(KeyValueCache::growing()),
        Some(window) => KeyValueCache::rolling(window),
    };
    let Ok(mut cache) = cache else {
        return Ok("cache refused");
    };
    let batch = if dice.once_in(20) {
        0
    } else {
        1 + dice.below(3)
    };
    let time = match dice.once_in(30) {
        true => 60 + dice.below(40),
        false => dice.below(14),
    };
    let model = layer.output.weight.dims()[1];
    let x =
        Input::new(dice, [batch, time, model], |dice| dice.number(2.0)).leaf(DType::F32, &device);
    let mut call = AttentionOptions::default().mask(Mask::causal());
    if let Some(window) = window {
        match Mask::window(window) {
            Ok(mask) => call = call.mask(mask),
            Err(error) => return Err(format!("a window for the cache alone: {error}")),
        }
    }
    let Ok(whole) = layer.forward(x.clone(), call) else {
        return Ok("whole refused");
    };
    let mut whole = whole.output;
    let (mut at, mut rows) = (0, (0..batch).collect::<Vec<usize>>());
    while at < time {
        let count = match dice.below(4) {
            0 => dice.below(time - at + 1),
            _ => 1,
        };
        let mut piece = x.clone().narrow(1, at, count.max(1));
        if count == 0 {
            piece = piece.slice([0..batch, 0..1, 0..model]);
        }
        let count = count.max(1);
        if batch > 0 {
            let index: Vec<i32> = rows.iter().map(|&row| row as i32).collect();
            let index = Tensor::<1, burn::tensor::Int>::from_ints(index.as_slice(), &device);
            piece = piece.select(0, index);
        }
        let path = dice.pick(&[Path::Auto, Path::Plain]);
        let read = layer.forward_cached(piece, &mut cache, AttentionOptions::default().path(path));
        let Ok(read) = read else {
            return Ok("cache's mask refused");
        };
        let expected: Vec<f64> = rows
            .iter()
            .flat_map(|&row| numbers(&whole.clone().narrow(0, row, 1).narrow(1, at, count)))
            .collect();
        let found = numbers(&read.output);
        close(
            &format!("cached output at {at}"),
            &found,
            &expected,
            rounding(&expected),
        )?;
        at += count;
        if batch > 0 && dice.once_in(5) {
            let keep: Vec<usize> = (0..1 + dice.below(3))
                .map(|_| dice.below(rows.len()))
                .collect();
            cache.select(&keep).map_err(|error| error.to_string())?;
            rows = keep.iter().map(|&row| rows[row]).collect();
        }
    }
    if cache.next_position() != time {
        return Err(format!(
            "the cache counts {}, expected {time}",
            cache.next_position()
        ));
    }
    whole = whole.detach();
    finite("whole", &numbers(&whole))?;
    Ok("cache compared")
}

/// Positions that are added to embeddings, at any place.
fn embeddings(dice: &mut Dice, device: &Device) -> Outcome {
    let size = dice.below(6);
    let time = length(dice).min(10);
    let first = match dice.once_in(4) {
        true => mechanism::distance(dice),
        false => dice.below(8),
    };
    let width = size + usize::from(dice.once_in(20));
    let x = Input::new(dice, [1, time, width], |dice| dice.number(1.0));
    let dtype = dice.pick(&[DType::F32, DType::F32, DType::F64]);
    let x = x.leaf(dtype, device);
    if let Ok(sinusoidal) = Sinusoidal::new(size)
        && let Ok(y) = sinusoidal.forward(x.clone(), first)
    {
        dims("embedding", y.dims(), x.dims())?;
        finite("embedding", &numbers(&y))?;
    }
    let init = &mut Initializer::new(dice.next(), device);
    if let Ok(learned) = Learned::new(dice.below(12), size, init)
        && let Ok(y) = learned.forward(x.clone(), first)
    {
        dims("embedding", y.dims(), x.dims())?;
    }
    Ok("embeddings")
}
