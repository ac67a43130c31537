//! A call that is drawn at random, and how it is run.

use burn::tensor::{DType, Device, Tensor, TensorData};
use regard_nn::{
    AttentionError, AttentionOptions, Observe, Path,
    dropout::DropoutRng,
    initialize::Initializer,
    mask::{Grid, Mask},
    normalize::Normalize,
    position::Alibi,
};

use super::{Problem, Run};
use crate::{
    dice::Dice,
    mechanism,
    tensors::{Input, Spread, length, numbers},
};

impl Problem {
    pub(super) fn new(dice: &mut Dice, device: Device) -> Option<Self> {
        let spread = dice.pick(&[
            Spread::Moderate,
            Spread::Moderate,
            Spread::Exact,
            Spread::Exact,
            Spread::Wild,
        ]);
        let dtype = match dice.below(12) {
            0 => dice.pick(&[DType::F64, DType::F16, DType::BF16]),
            _ => DType::F32,
        };
        let key_heads = if dice.once_in(60) {
            0
        } else {
            1 + dice.below(2)
        };
        let mut heads = key_heads * (1 + dice.below(3));
        if dice.once_in(80) {
            heads += 1;
        }
        let mut batch = if dice.once_in(30) {
            0
        } else {
            1 + dice.below(2)
        };
        let (mut queries, mut keys) = (length(dice), length(dice));
        if dice.once_in(100) {
            // Absurd sizes beside a size of 0.
            let absurd = dice.pick(&[1 << 20, 1 << 40]);
            match dice.below(3) {
                0 => (batch, queries, keys) = (0, queries, absurd),
                1 => (batch, queries, keys) = (0, absurd, keys),
                // These sizes have numbers, and take memory.
                _ => (batch, queries, keys) = (1, 0, 1 << 14),
            }
        }
        let size = match dice.below(60) {
            0 => 0,
            1 => 257,
            2..5 => 16 + dice.below(50),
            _ => 1 + dice.below(9),
        };
        let value_size = match dice.below(60) {
            0 => 0,
            1 => 257,
            _ => 1 + dice.below(6),
        };
        let grid = Grid {
            batch,
            heads,
            queries,
            keys,
            first_query: match dice.below(12) {
                0 => mechanism::distance(dice),
                1 => dice.below(5),
                _ => 0,
            },
            first_key: 0,
        };
        let init = &mut Initializer::new(dice.next(), &device);
        let attention = mechanism::attention(dice, heads, size, spread, init);
        let attention = mechanism::in_precision(&attention, dtype, &device);
        // For absurd lengths, a mask would take too much memory.
        let small = batch.max(1) * queries.max(1) * keys.max(1) < 1 << 16;
        let own = match small && dice.once_in(3) {
            true => mechanism::mask(dice, &grid, 1, &device)?,
            false => Mask::all(),
        };
        let mask = match small && dice.once_in(2) {
            true => mechanism::mask(dice, &grid, 2, &device)?,
            false => Mask::all(),
        };
        let number = |dice: &mut Dice| spread.number(dice);
        let query = Input::new(dice, [batch, heads, queries, size], number);
        let key = Input::new(dice, [batch, key_heads, keys, size], number);
        let value = Input::new(dice, [batch, key_heads, keys, value_size], number);
        let bias =
            (small && dice.once_in(if spread == Spread::Exact { 2 } else { 5 })).then(|| {
                let full = [batch, heads, queries, keys];
                let mut shape = full.map(|size| if dice.once_in(2) { 1 } else { size });
                shape[3] = keys + usize::from(dice.once_in(60));
                // Whole rows of one number, as people use them as masks.
                let constant = dice.once_in(3).then(|| spread.bias(dice));
                Input::new(dice, shape, |dice| match (constant, dice.below(12)) {
                    (None, 0) => f32::NEG_INFINITY,
                    (Some(constant), 1..) => constant,
                    _ => spread.bias(dice),
                })
            });
        let alibi = (heads > 0 && dice.once_in(12))
            .then(|| Alibi::new(heads + usize::from(dice.once_in(20))).ok())
            .flatten();
        let carried = dice.once_in(24).then(|| {
            let last = if dice.once_in(2) { keys.min(100) } else { 2 };
            Input::new(dice, [batch, heads, 1, last], |dice| dice.number(1.0).abs())
        });
        Some(Self {
            dtype,
            spread,
            grid,
            key_heads,
            size,
            value_size,
            attention: attention.with_mask(own),
            mask,
            query,
            key,
            value,
            bias,
            odd: dice.once_in(80).then(|| dice.below(4)),
            alibi,
            carried,
            seed: dice.once_in(3).then(|| dice.next()),
            differentiable: dice.once_in(10),
            poison: None,
            device,
        })
    }

    /// A description of the call, for the message of a failure.
    pub(super) fn options(&self) -> String {
        let attention = &self.attention;
        format!(
            "{:?} {:?}, {:?}, key heads {}, size {}, values of {}, {}, {}, softcap {:?}, dropout {} ({}), predictor {}, \
             query, key and value up to {:?}, bias {:?}, alibi {}, carried {}",
            self.dtype,
            self.spread,
            self.grid,
            self.key_heads,
            self.size,
            self.value_size,
            attention.score.name(),
            attention.normalize.name(),
            attention.softcap(),
            attention.dropout(),
            self.seed.is_some(),
            attention.predictor.is_some(),
            [&self.query, &self.key, &self.value].map(Input::largest),
            self.bias.as_ref().map(|bias| (bias.shape, bias.largest())),
            self.alibi.is_some(),
            self.carried.is_some(),
        )
    }

    pub(super) fn run(
        &self,
        path: Path,
        observe: &Observe,
        dtype: DType,
        backward: bool,
    ) -> Result<Run, AttentionError> {
        let attention = match dtype == self.dtype {
            true => self.attention.clone(),
            false => mechanism::in_precision(&self.attention, dtype, &self.device),
        };
        let precision = |which: usize| match self.odd == Some(which) {
            true if dtype == DType::F64 => DType::F32,
            true => DType::F64,
            false => dtype,
        };
        let inputs = [&self.query, &self.key, &self.value];
        let leaves: Vec<Tensor<4>> = inputs
            .into_iter()
            .enumerate()
            .map(|(i, input)| input.leaf(precision(i), &self.device))
            .collect();
        let bias = self
            .bias
            .as_ref()
            .map(|bias| bias.leaf(precision(3), &self.device));
        let mut noise = self.seed.map(DropoutRng::seeded);
        let mut call = AttentionOptions::new(observe.clone())
            .mask(self.mask.clone())
            .path(path)
            .first_query(self.grid.first_query);
        call.bias = bias.clone();
        call.alibi = self.alibi.as_ref();
        call.carried = self
            .carried
            .as_ref()
            .map(|carried| carried.leaf(dtype, &self.device));
        call.noise = noise.as_mut();
        call.differentiable = self.differentiable;
        let spoilt = |x: &Tensor<4>| match &self.poison {
            None => x.clone(),
            Some(poison) => x
                .clone()
                .mask_fill(poison.clone().expand(x.dims()), f32::NAN),
        };
        let (key, value) = (spoilt(&leaves[1]), spoilt(&leaves[2]));
        let attended = attention.forward_with(leaves[0].clone(), key, value, call)?;
        let mut gradients = vec![];
        if backward && self.device.is_autodiff() {
            let upstream = self.upstream(attended.context.dims());
            let upstream = Tensor::<4>::from_data(upstream, (&self.device, DType::F32)).cast(dtype);
            let all = (attended.context.clone() * upstream).sum().backward();
            gradients = leaves
                .iter()
                .chain(&bias)
                .map(|leaf| match leaf.grad(&all) {
                    Some(slope) => numbers(&slope),
                    None => vec![0.0; leaf.dims().iter().product()],
                })
                .collect();
        }
        Ok(Run {
            context: numbers(&attended.context),
            attended,
            gradients,
        })
    }

    /// The gradient of the context, numbers from -1 to 1.
    pub(super) fn upstream(&self, shape: [usize; 4]) -> TensorData {
        let count: usize = if shape.contains(&0) {
            0
        } else {
            shape.iter().product()
        };
        let values = (0..count).map(|i| ((i * 7919 + 13) % 17) as f32 / 8.0 - 1.0);
        TensorData::new(values.collect::<Vec<f32>>(), shape)
    }

    pub(super) fn grid_is_empty(&self) -> bool {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        [batch, heads, queries, keys].contains(&0)
    }

    pub(super) fn raise(&self) -> f64 {
        match self.seed {
            None => 1.0,
            Some(_) => 1.0 / (1.0 - self.attention.dropout()),
        }
    }

    /// Whether dropout changes the result.
    pub(super) fn drops(&self) -> bool {
        self.seed.is_some() && self.attention.dropout() > 0.0
    }

    pub(super) fn is_softmax(&self) -> bool {
        matches!(
            self.attention.normalize,
            Normalize::Softmax(_) | Normalize::Sink(_)
        ) && self.attention.predictor.is_none()
    }

    /// Writes NaN to the keys that no query sees. Returns whether there are such keys.
    pub(super) fn spoil(&mut self, dice: &mut Dice, seen: &[bool]) -> bool {
        let Grid {
            batch,
            heads,
            queries,
            keys,
            ..
        } = self.grid;
        let group = heads / self.key_heads;
        let hidden: Vec<bool> = (0..batch * self.key_heads * keys)
            .map(|i| {
                let (head, key) = (i / keys, i % keys);
                let first = head / self.key_heads * heads + head % self.key_heads * group;
                let mut rows = first * queries..(first + group) * queries;
                rows.all(|row| !seen[row * keys + key]) && !dice.once_in(4)
            })
            .collect();
        if !hidden.contains(&true) {
            return false;
        }
        let data = TensorData::new(hidden, [batch, self.key_heads, keys, 1]);
        self.poison = Some(Tensor::from_data(data, &self.device));
        true
    }
}
