//! Random masks, scores, normalisers, and attentions made of them.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{DType, Device, Tensor},
};
use regard_nn::{
    Attention,
    initialize::Initializer,
    mask::{Alignment, Grid, Mask, PaddingMask, PositionPredictor},
    normalize::{
        Addressing, Entmax15, Estimator, Form, HardSample, Hardmax, Identity, Monotonic, Normalize,
        Sigmoid, Sink, Softmax, Sparsemax,
    },
    score::{
        Additive, Cosine, Distance, GaussianWindow, General, Location, ScaledDot, ScaledGeneral,
        Score, WeightNormAdditive,
    },
};

use crate::{dice::Dice, tensors::Spread};

/// A size for a mask: mostly small, sometimes absurd.
pub fn distance(dice: &mut Dice) -> usize {
    match dice.below(24) {
        0 => dice.pick(&[
            usize::MAX,
            usize::MAX - 1,
            1 << 63,
            (1 << 63) - 1,
            1 << 40,
            1 << 32,
            (1 << 31) - 1,
        ]),
        _ => dice.below(9),
    }
}

fn alignment(dice: &mut Dice) -> Alignment {
    dice.pick(&[Alignment::LowerRight, Alignment::UpperLeft])
}

/// Padding that mostly fits.
pub fn padding(dice: &mut Dice, batch: usize, length: usize, device: &Device) -> PaddingMask {
    let length = length + usize::from(dice.once_in(60));
    let rows = if dice.once_in(60) { batch + 1 } else { batch };
    match dice.once_in(2) {
        true => {
            let lengths: Vec<usize> = (0..rows).map(|_| dice.below(length + 2)).collect();
            PaddingMask::from_lengths(&lengths, length, device)
        }
        false => {
            let mut flag = |_| (0..length).map(|_| !dice.once_in(3)).collect();
            let flags: Vec<Vec<bool>> = (0..rows).map(&mut flag).collect();
            PaddingMask::from_flags(&flags, device).expect("rows of one length")
        }
    }
}

/// A mask for `grid`, if its arguments make one.
pub fn mask(dice: &mut Dice, grid: &Grid, depth: usize, device: &Device) -> Option<Mask> {
    let names = |dice: &mut Dice, length: usize| -> Vec<Vec<usize>> {
        let rows = if dice.once_in(3) { 1 } else { grid.batch };
        let mut row = |_| (0..length).map(|_| dice.below(3)).collect();
        (0..rows).map(&mut row).collect()
    };
    let most = if depth == 0 { 15 } else { 18 };
    Some(match dice.below(most) {
        0 => Mask::all(),
        1 => Mask::causal(),
        2 => Mask::causal_aligned(alignment(dice)),
        3 | 4 => Mask::padding(padding(dice, grid.batch, grid.keys, device)),
        5 => Mask::window(distance(dice)).ok()?,
        6 => Mask::dilated_window(distance(dice), distance(dice)).ok()?,
        7 => Mask::window_aligned(distance(dice), 1, alignment(dice)).ok()?,
        8 => Mask::local_monotonic(distance(dice)),
        9 => {
            let positions: Vec<usize> = (0..dice.below(3)).map(|_| distance(dice)).collect();
            match dice.once_in(2) {
                true => Mask::global(&positions),
                false => Mask::longformer(distance(dice), distance(dice), &positions).ok()?,
            }
        }
        10 => Mask::block(distance(dice)).ok()?,
        11 => Mask::chunked(distance(dice), distance(dice)).ok()?,
        12 => {
            let (query_size, key_size) = (1 + dice.below(4), 1 + dice.below(4));
            let rows = grid.queries.div_ceil(query_size);
            let columns = grid.keys.div_ceil(key_size);
            let mut row = |_| (0..columns).map(|_| dice.once_in(2)).collect();
            let table: Vec<Vec<bool>> = (0..rows).map(&mut row).collect();
            Mask::block_sparse(query_size, key_size, &table).ok()?
        }
        13 => {
            let queries = names(dice, grid.queries);
            Mask::documents(&queries, &names(dice, grid.keys))
        }
        14 => {
            let rows = if dice.once_in(3) { 1 } else { grid.batch };
            let lengths: Vec<usize> = (0..rows).map(|_| distance(dice)).collect();
            match dice.once_in(2) {
                true => Mask::prefix(&lengths),
                false => {
                    let salt = dice.below(5);
                    Mask::function("a function", move |at| {
                        !(at.batch + 2 * at.head + 3 * at.query + at.key + salt).is_multiple_of(4)
                    })
                }
            }
        }
        15 => !mask(dice, grid, depth - 1, device)?,
        16 => mask(dice, grid, depth - 1, device)? & mask(dice, grid, depth - 1, device)?,
        _ => mask(dice, grid, depth - 1, device)? | mask(dice, grid, depth - 1, device)?,
    })
}

/// Settings: mostly valid, sometimes out of range.
fn setting(dice: &mut Dice) -> f64 {
    match dice.below(40) {
        0 => dice.pick(&[
            0.0,
            -1.0,
            f64::NAN,
            f64::INFINITY,
            1e39,
            1e300,
            1e-60,
            1e-40,
            -1e39,
            1.0 - 1e-12,
        ]),
        1 => f64::from(dice.pick(&[f32::MAX, f32::MIN_POSITIVE, 1e30, 1e-30])),
        _ => 0.1 + f64::from(dice.number(2.0).abs()),
    }
}

/// A score for queries and keys of `size`.
pub fn score(dice: &mut Dice, size: usize, spread: Spread, init: &mut Initializer) -> Score {
    if spread == Spread::Exact {
        // Powers of two keep products exact.
        let scale = dice.pick(&[1.0, 0.5, 0.25, 2.0, -1.0]);
        return Score::ScaledDot(ScaledDot::with_scale(scale));
    }
    let inner = 1 + dice.below(5);
    match dice.below(14) {
        0..3 => Score::scaled_dot(),
        3 => Score::dot(),
        4 => Score::ScaledDot(ScaledDot::with_scale(setting(dice))),
        5 => Score::General(General::new(size, size, init)),
        6 => Score::ScaledGeneral(ScaledGeneral::new(size, size, init)),
        7 | 8 => Score::Additive(Additive::new(size, size, inner, init)),
        9 => Score::WeightNormAdditive(WeightNormAdditive::new(size, size, inner, init)),
        10 => match dice.once_in(2) {
            true => Score::Cosine(Cosine::fixed(setting(dice))),
            false => Score::Cosine(Cosine::learned(size, init)),
        },
        11 => match dice.once_in(2) {
            true => Score::Distance(Distance::default()),
            false => Score::Distance(Distance::with_scale(setting(dice))),
        },
        12 => Score::Location(Location::new(size, dice.below(12), init)),
        _ => Score::GaussianWindow(GaussianWindow::new(size, 1 + dice.below(3), init)),
    }
}

/// A normaliser for `heads` and queries of `size`.
pub fn normalize(dice: &mut Dice, heads: usize, size: usize, init: &mut Initializer) -> Normalize {
    match dice.below(20) {
        0..7 => Normalize::Softmax(Softmax),
        7 | 8 => Normalize::Sink(Sink::fixed(setting(dice))),
        9 => Normalize::Sink(Sink::learned(heads, init)),
        10 => Normalize::Sparsemax(Sparsemax),
        11 => Normalize::Entmax15(Entmax15),
        12 => match dice.once_in(2) {
            true => Normalize::Sigmoid(Sigmoid::default()),
            false => Normalize::Sigmoid(Sigmoid::with_bias(setting(dice))),
        },
        13 => Normalize::Hardmax(Hardmax),
        14 | 15 => {
            let soften = dice.once_in(2);
            let temperature = setting(dice);
            Normalize::HardSample(HardSample::new(dice.pick(&[
                Estimator::StraightThrough,
                Estimator::Gumbel { temperature },
                Estimator::Reinforce { soften },
            ])))
        }
        16 | 17 => {
            let monotonic =
                Monotonic::new(dice.pick(&[Form::Parallel, Form::Recursive, Form::Hard]));
            Normalize::Monotonic(match dice.once_in(3) {
                true => monotonic.with_noise(setting(dice)),
                false => monotonic,
            })
        }
        18 => Normalize::Addressing(Addressing::new(size, dice.below(3), init)),
        _ => Normalize::Identity(Identity),
    }
}

/// An attention for `heads` and queries and keys of `size`.
pub fn attention(
    dice: &mut Dice,
    heads: usize,
    size: usize,
    spread: Spread,
    init: &mut Initializer,
) -> Attention {
    let score = score(dice, size, spread, init);
    let normalize = match (&score, spread) {
        (Score::GaussianWindow(_), _) if !dice.once_in(10) => Normalize::identity(),
        (_, Spread::Exact) => match dice.once_in(4) {
            true => Normalize::Sink(Sink::fixed(dice.pick(&[0.0, 1.0, -1e30, 1e9]))),
            false => Normalize::softmax(),
        },
        _ => normalize(dice, heads, size, init),
    };
    let mut attention = Attention::new(score).with_normalize(normalize);
    if spread != Spread::Exact {
        if dice.once_in(8) {
            attention = attention.with_softcap(setting(dice));
        }
        if dice.once_in(16) {
            attention = attention.with_predictor(PositionPredictor::new(size, dice.below(4), init));
        }
    }
    match dice.below(12) {
        0 => attention.with_dropout(setting(dice)),
        1 => attention.with_dropout(0.3),
        _ => attention,
    }
}

/// A module with its weights in another precision.
pub fn in_precision<M: Module>(module: &M, dtype: DType, device: &Device) -> M {
    struct Precision<'a>(DType, &'a Device);
    impl ModuleMapper for Precision<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, tensor, mapper) = param.consume();
            let data = tensor.into_data();
            let tensor = Tensor::<D>::from_data(data, (self.1, DType::F32)).cast(self.0);
            let tensor = tensor.detach();
            let tensor = if self.1.is_autodiff() {
                tensor.require_grad()
            } else {
                tensor
            };
            Param::from_mapped_value(id, tensor, mapper)
        }
    }
    module.clone().map(&mut Precision(dtype, device))
}
